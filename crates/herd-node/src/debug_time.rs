//! The clock of memcached's tests (`debugtime`): stopped, set going and moved on command. Off unless the node was
//! started with `HERD_DEBUG_TIME=1`.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering::Relaxed};
use std::time::Duration;

/// The clock is moved no further: a thousand years.
const MOVED_MAX_MS: i64 = 1_000 * 365 * 86_400_000;

/// How requests' time differs from that of the loops.
pub(crate) struct DebugTime {
    used: AtomicBool,
    moved_ms: AtomicI64,
    /// Where it stands still, ms since the start; -1: it runs.
    stopped_ms: AtomicI64,
}

impl DebugTime {
    pub(crate) fn new() -> Self {
        let (used, moved_ms, stopped_ms) = (AtomicBool::new(false), AtomicI64::new(0), AtomicI64::new(-1));
        Self { used, moved_ms, stopped_ms }
    }

    /// Time since the start, as requests see it.
    #[inline]
    pub(crate) fn up(&self, up: Duration) -> Duration {
        if self.used.load(Relaxed) { self.changed(up) } else { up }
    }

    #[cold]
    fn changed(&self, up: Duration) -> Duration {
        let stopped = self.stopped_ms.load(Relaxed);
        let up_ms =
            if stopped >= 0 { stopped } else { (up.as_millis() as i64).saturating_add(self.moved_ms.load(Relaxed)) };
        Duration::from_millis(up_ms.max(0) as u64)
    }

    /// `up`: the time since the start, as the loops have it.
    pub(crate) fn pause(&self, up: Duration) {
        let now = self.changed(up).as_millis() as i64;
        self.stopped_ms.store(now, Relaxed);
        self.used.store(true, Relaxed);
    }

    /// See `pause`.
    pub(crate) fn resume(&self, up: Duration) {
        let stopped = self.stopped_ms.swap(-1, Relaxed);
        if stopped >= 0 {
            self.moved_ms.store(stopped - up.as_millis() as i64, Relaxed);
        }
    }

    pub(crate) fn advance(&self, seconds: i64) {
        let ms = seconds.saturating_mul(1000).clamp(-MOVED_MAX_MS, MOVED_MAX_MS);
        let stopped = self.stopped_ms.load(Relaxed) >= 0;
        let (moved, least) = if stopped { (&self.stopped_ms, 0) } else { (&self.moved_ms, -MOVED_MAX_MS) };
        let further = |at: i64| Some((at + ms).clamp(least, MOVED_MAX_MS));
        moved.fetch_update(Relaxed, Relaxed, further).expect("it always gives a time");
        self.used.store(true, Relaxed);
    }
}
