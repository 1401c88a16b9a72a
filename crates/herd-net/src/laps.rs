//! How long a loop did nothing but one thing: the time between two looks at its clock, which it takes after every
//! round, turn and tick. Whoever waits for the loop waits at least so long. What an iteration does after its last look
//! is not told: the sends of its last round, and connections that are accepted.
//!
//! The clock it has to look at anyway also runs while other threads have the core. So a lap that seems long is bounded
//! by the processor time since that was last asked for: at most half a millisecond, or one lap, before it began. So
//! it may be told too long by that much, and never too short. Asking costs a system call, 2,000 a second at most.

use crate::stats::LoopStats;
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
    pub(crate) fn begin(&mut self, now_ns: u64, processor_ns: impl FnOnce() -> u64) {
        self.from_ns = now_ns;
        if now_ns - self.asked_ns > LONG_NS {
            self.ask(processor_ns);
        }
    }

    fn ask(&mut self, processor_ns: impl FnOnce() -> u64) {
        (self.asked_ns, self.cpu_ns) = (self.from_ns, processor_ns());
    }

    /// One thing was done.
    #[inline]
    pub(crate) fn lap(&mut self, now_ns: u64, processor_ns: impl Fn() -> u64) {
        let lap_ns = now_ns - self.from_ns;
        self.from_ns = now_ns;
        if lap_ns > self.recent_ns[0] {
            self.note(lap_ns, &processor_ns);
        }
        if now_ns - self.asked_ns > LONG_NS {
            self.ask(processor_ns);
        }
    }

    #[cold]
    fn note(&mut self, lap_ns: u64, processor_ns: impl FnOnce() -> u64) {
        let mut lap_ns = lap_ns;
        if lap_ns > LONG_NS {
            let before_ns = self.cpu_ns;
            self.ask(processor_ns);
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The longest lap, us, of a loop that begins at 0: after each lap, the time and the processor time so far, us.
    fn longest_us(laps: &[(u64, u64)]) -> u64 {
        let (mut all, stats) = (Laps::default(), LoopStats::default());
        all.begin(0, || 0);
        laps.iter().for_each(|(now_us, cpu_us)| all.lap(now_us * 1_000, || cpu_us * 1_000));
        all.tell(&stats);
        stats.longest_ns.load(Relaxed) / 1_000
    }

    #[test]
    fn what_a_loop_waits_for_its_core_is_none_of_its_work() {
        assert_eq!(longest_us(&[(3_000, 3_000), (4_000, 4_000)]), 3_000);
        assert_eq!(longest_us(&[(2_000, 2_000), (30_000, 3_000)]), 2_000, "it had its core for 1 ms of the 28");
        assert_eq!(longest_us(&[(2_000, 2_000), (30_000, 30_000)]), 28_000);
    }

    #[test]
    fn what_earlier_laps_worked_does_not_count_for_one_that_waited() {
        let mut laps: Vec<(u64, u64)> = (1..=10).map(|lap| (400 * lap, 400 * lap)).collect();
        laps.push((14_400, 4_800));
        assert!((800..=1_300).contains(&longest_us(&laps)), "{} us", longest_us(&laps));
        // Nor does one that was long and no longer than the longest.
        let laps = [(5_000, 5_000), (9_900, 9_900), (19_900, 10_200)];
        assert_eq!(longest_us(&laps), 5_000);
    }

    #[test]
    fn what_a_loop_worked_long_before_does_not_count_for_a_lap_that_waited() {
        let (mut all, stats, mut cpu_ns) = (Laps::default(), LoopStats::default(), 0);
        for ms in 1..=100 {
            all.begin(ms * 1_000_000, || cpu_ns);
            cpu_ns += 400_000;
            all.lap(ms * 1_000_000 + 400_000, || cpu_ns);
        }
        all.begin(101_000_000, || cpu_ns);
        all.lap(140_000_000, || cpu_ns + 400_000);
        all.tell(&stats);
        assert_eq!(stats.longest_ns.load(Relaxed), 400_000);
    }
}
