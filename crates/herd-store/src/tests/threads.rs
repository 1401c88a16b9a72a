//! Threads side by side: what they read is what was written, and nobody waits for ever.
//!
//! Every value tells its name and which put wrote it, and every byte follows from these two, so a reader can tell any
//! mixture. A watchdog ends the process with a message when no thread gets anywhere.

use super::*;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// What no thread may need to get one step further.
const PATIENCE: Duration = Duration::from_secs(5);

/// Runs `threads` workers for a while, each with a random source of its own, step after step.
fn side_by_side(threads: u64, time: Duration, step: impl Fn(u64, &mut Random) + Sync) {
    let (steps, end) = (AtomicU64::new(0), AtomicBool::new(false));
    let running = AtomicU64::new(threads);
    std::thread::scope(|scope| {
        for t in 0..threads {
            let (steps, end, running, step) = (&steps, &end, &running, &step);
            scope.spawn(move || {
                let _leave = Leave(running);
                let mut random = Random(t + 1);
                while !end.load(Relaxed) {
                    step(t, &mut random);
                    steps.fetch_add(1, Relaxed);
                }
            });
        }
        watch(time, &steps, &end, &running);
    });
}

/// Counts a thread out, also when it panics.
struct Leave<'a>(&'a AtomicU64);

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

/// Ends the workers after `time`, or the process where they are stuck.
fn watch(time: Duration, steps: &AtomicU64, end: &AtomicBool, running: &AtomicU64) {
    let begin = Instant::now();
    let (mut seen, mut since) = (0, Instant::now());
    while running.load(Relaxed) > 0 {
        std::thread::sleep(Duration::from_millis(5));
        end.fetch_or(begin.elapsed() >= time, Relaxed);
        let now = steps.load(Relaxed);
        if now != seen {
            (seen, since) = (now, Instant::now());
        } else if since.elapsed() > PATIENCE {
            eprintln!("no thread got anywhere for {PATIENCE:?} after {now} steps: they wait for each other");
            std::process::abort();
        }
    }
}

#[test]
fn collections_come_and_go_beside_puts_into_full_memory() {
    let store = store(8 << 20);
    let c = store.create("r", spec("ram:1")).expect("new");
    side_by_side(3, Duration::from_secs(1), |t, random| match t {
        0 => {
            let other = store.create("other", spec("ram:1")).expect("there is a place");
            put(&store, &other, b"n", &[1; 100], at(1)).ok();
            store.destroy(&other);
            upkeep(&store, at(1));
        }
        _ => drop(put(&store, &c, &random.below(100_000).to_le_bytes(), &[2; 300], at(1))),
    });
}
