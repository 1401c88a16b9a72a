//! How long a loop did nothing but one thing: the time between two looks at its clock, which it takes after every
//! round, turn and tick. Whoever waits for the loop waits at least so long.
//!
//! The clock it has to look at anyway also runs while other threads have the core. So a lap that seems long is bounded
//! by the processor time since that was last asked for: at most half a millisecond before the loop began to work. So
//! it may be told too long by that much, and never too short. Asking costs a system call, which few requests pay.

use crate::stats::LoopStats;
use crate::system::System;
use std::sync::atomic::Ordering::Relaxed;

/// A lap from which on the processor's time is asked for, and how old its last answer may be.
const LONG_NS: u64 = 500_000;
/// The longest lap of this time, or of twice as much, is the recent one.
const WINDOW_NS: u64 = 60_000_000_000;

/// The laps of one loop.
#[derive(Default)]
pub(crate) struct Laps {
    from_ns: u64,
    /// The processor time at the last asking, and when that was.
    cpu_ns: u64,
    asked_ns: u64,
    /// The longest of this window and of the one before.
    recent_ns: [u64; 2],
    window_ns: u64,
}

impl Laps {
    /// The loop begins to work.
    #[inline]
    pub(crate) fn begin(&mut self, now_ns: u64, system: &impl System) {
        self.from_ns = now_ns;
        if now_ns - self.asked_ns > LONG_NS {
            self.ask(system);
        }
    }

    fn ask(&mut self, system: &impl System) {
        (self.asked_ns, self.cpu_ns) = (self.from_ns, system.cpu_ns());
    }

    /// One thing was done.
    #[inline]
    pub(crate) fn lap(&mut self, now_ns: u64, system: &impl System) {
        let lap_ns = now_ns - self.from_ns;
        self.from_ns = now_ns;
        if lap_ns > self.recent_ns[0] {
            self.note(lap_ns, system);
        }
    }

    #[cold]
    fn note(&mut self, lap_ns: u64, system: &impl System) {
        let mut lap_ns = lap_ns;
        if lap_ns > LONG_NS {
            let before_ns = self.cpu_ns;
            self.ask(system);
            lap_ns = lap_ns.min(self.cpu_ns - before_ns);
        }
        self.recent_ns[0] = self.recent_ns[0].max(lap_ns);
    }

    /// A tick was done: tells the longest laps.
    pub(crate) fn tell(&mut self, stats: &LoopStats) {
        let recent_ns = self.recent_ns[0].max(self.recent_ns[1]);
        stats.longest_recent_ns.store(recent_ns, Relaxed);
        stats.longest_ns.store(stats.longest_ns.load(Relaxed).max(recent_ns), Relaxed);
        if self.from_ns - self.window_ns > WINDOW_NS {
            self.window_ns = self.from_ns;
            self.recent_ns = [0, self.recent_ns[0]];
        }
    }
}
