//! The watchdog: a thread that ends the program when one input takes over 1 s of CPU, or 30 s in all.

use crate::drive::save;
use rustix::time::{ClockId, clock_gettime};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

const CPU_MAX: Duration = Duration::from_secs(1);
const WALL_MAX: Duration = Duration::from_secs(30);
const PERIOD: Duration = Duration::from_millis(50);

/// CPU time this process has used.
pub(crate) fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// What to say of an input that has run for so long, if it is too long.
fn hang(cpu: Duration, wall: Duration) -> Option<&'static str> {
    if cpu > CPU_MAX {
        Some("hang: over 1 s of CPU")
    } else if wall > WALL_MAX {
        Some("hang: over 30 s; or the fuzzer was stopped meanwhile")
    } else {
        None
    }
}

/// What is being run, shared with the watchdog.
#[derive(Default)]
pub(crate) struct Watch {
    /// Odd while an input runs; each run has its own number.
    run: AtomicU64,
    input: Mutex<Vec<u8>>,
}

impl Watch {
    /// Starts the watchdog of one target. Its thread ends with the process, or once the watch is dropped.
    pub(crate) fn start(target: &'static str) -> Arc<Self> {
        let watch = Arc::new(Self::default());
        let weak = Arc::downgrade(&watch);
        thread::spawn(move || {
            let (mut seen, mut since, mut cpu) = (0, Instant::now(), cpu_time());
            while let Some(watch) = weak.upgrade() {
                let run = watch.run.load(SeqCst);
                if run % 2 == 0 || run != seen {
                    (seen, since, cpu) = (run, Instant::now(), cpu_time());
                } else if let Some(hang) = hang(cpu_time() - cpu, since.elapsed()) {
                    let input = watch.input.lock().expect("nobody panics while copying").clone();
                    let text = save(target, &input, hang);
                    eprintln!("herd-fuzz: {text}");
                    std::process::exit(1);
                }
                drop(watch);
                thread::sleep(PERIOD);
            }
        });
        watch
    }

    /// An input begins to run.
    pub(crate) fn begin(&self, input: &[u8]) {
        let mut held = self.input.lock().expect("the watchdog does not panic");
        held.clear();
        held.extend_from_slice(input);
        drop(held);
        self.run.fetch_add(1, SeqCst);
    }

    /// It has run.
    pub(crate) fn end(&self) {
        self.run.fetch_add(1, SeqCst);
    }
}
