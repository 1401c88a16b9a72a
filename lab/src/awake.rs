//! Keeps the processor awake while something is measured.
//!
//! A core of a virtual machine that has nothing to do is given back to the machine below, and waits for its turn when
//! it is wanted again: milliseconds, where others share that machine. So each core gets a thread that never sleeps, of
//! a class (`SCHED_IDLE`) that runs only when nothing else wants the core and yields at once to all that does. Here it
//! made the difference between 14 % of a run's time stolen and 0.5 %. All arms of a comparison have it alike; its own
//! time counts as idle in [`crate::processor`].
//!
//! "At once" holds for what wakes up. From a thread that never rests the kernel (6.18) takes the core for a tick of
//! 4 ms every 50 ms, and who measures single milliseconds then has it stand [`aside`](Awake::aside).

use std::hint::black_box;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

use crate::client;
use crate::error::{Context, Result};
use crate::sys;

/// The process that keeps the cores awake; ended when dropped, or with the thread that started it.
pub(crate) struct Awake {
    child: Child,
}

impl Awake {
    /// Starts it.
    pub(crate) fn start() -> Result<Self> {
        let mut command = Command::new(client::program()?);
        command.arg("awake").stdin(Stdio::null());
        sys::tie(&mut command, None);
        Ok(Self { child: command.spawn().during(|| "start what keeps the processor awake".into())? })
    }

    /// Its process, whose time is what nothing else wanted.
    pub(crate) fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).expect("pids fit an i32")
    }

    /// Runs `busy`, which keeps that core awake itself, with nothing beside it there; the other cores are kept awake.
    pub(crate) fn aside<R>(&self, core: usize, busy: impl FnOnce() -> R) -> Result<R> {
        let cores = sys::cores().during(|| "ask for this process's cores".into())?;
        let over = &AtomicBool::new(false);
        sys::signal(self.pid(), libc::SIGSTOP).during(|| "stop what keeps the processor awake".into())?;
        let result = thread::scope(|scope| -> Result<R> {
            let others = cores.into_iter().filter(|other| *other != core);
            let others: Vec<_> = others.map(|core| scope.spawn(move || keep_awake(core, over))).collect();
            let result = busy();
            over.store(true, Relaxed);
            others.into_iter().try_for_each(|thread| thread.join().expect("it has nothing to panic about"))?;
            Ok(result)
        });
        sys::signal(self.pid(), libc::SIGCONT).during(|| "go on keeping the processor awake".into())?;
        result
    }
}

impl Drop for Awake {
    fn drop(&mut self) {
        // Both fail only for a process that was waited for, which it was not before.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The process itself: a busy thread on every core, for ever.
pub(crate) fn run() -> Result<()> {
    let threads: Vec<_> = sys::cores().during(|| "ask for this process's cores".into())?;
    let never = &AtomicBool::new(false);
    thread::scope(|scope| {
        let busy = threads.into_iter().map(|core| scope.spawn(move || keep_awake(core, never))).collect::<Vec<_>>();
        busy.into_iter().try_for_each(|thread| thread.join().expect("it has nothing to panic about"))
    })
}

/// Is busy on a core until it is over.
fn keep_awake(core: usize, over: &AtomicBool) -> Result<()> {
    sys::pin(core).during(|| format!("pin to core {core}"))?;
    sys::run_when_idle().during(|| "ask for the class SCHED_IDLE".into())?;
    let mut turns = 0_u64;
    // No pause instruction: below a virtual machine many of them are taken for a wish to sleep.
    while !over.load(Relaxed) {
        turns = black_box(turns.wrapping_add(1));
    }
    Ok(())
}
