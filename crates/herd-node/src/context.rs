//! What every door works with: the store, the time, the counters; one context per loop.

use crate::config::Config;
use crate::metrics::{Batch, DoorName, Metrics, VerbName};
use herd_core::ErrorKind;
use herd_net::LoopHandle;
use herd_store::{Collection, Now, Store};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// What all loops of a node share.
pub struct Shared {
    /// The objects.
    pub store: Arc<Store>,
    /// The collection of names without a slash, and of the memcached door.
    pub default: Collection,
    /// How the node was started.
    pub config: Config,
    /// Counters, by loop.
    pub metrics: Vec<Metrics>,
    /// Handle on the loops, once they are made.
    pub loops: OnceLock<LoopHandle>,
    /// Set when the node stops.
    pub stopping: AtomicBool,
    /// When it was started.
    pub start: Instant,
    /// The same, ms since 1970.
    pub start_unix_ms: u64,
    /// What memcached's `debugtime` moved the clock by, ms; `i64::MIN` + time: paused.
    pub debug_time_ms: AtomicI64,
}

/// A loop's view of the node.
pub struct Context {
    /// What all loops share.
    pub shared: Arc<Shared>,
    /// Number of this loop.
    pub number: usize,
    /// The time of this batch of events.
    pub now: Now,
    /// When this batch of events began, or the last request of it was served.
    began: Instant,
    /// Requests counted since.
    batch: Batch,
}

impl Context {
    pub(crate) fn new(shared: Arc<Shared>, number: usize) -> Self {
        let mut context =
            Self { shared, number, now: Now::default(), began: Instant::now(), batch: Batch::default() };
        context.begin();
        context
    }

    /// Reads the clock, once for all events of a batch.
    #[inline]
    pub(crate) fn begin(&mut self) {
        self.began = Instant::now();
        self.now = self.shared.now_at(self.began);
    }

    /// Counts a request.
    #[inline]
    pub fn count(&mut self, verb: VerbName) {
        self.batch.count(verb);
    }

    /// Counts an error.
    pub fn count_error(&self, door: DoorName, verb: VerbName, kind: ErrorKind) {
        self.metrics().error(door, verb, kind);
    }

    /// Books the requests counted since the batch began.
    #[inline]
    pub(crate) fn settle(&mut self, door: DoorName) {
        if !self.batch.is_empty() {
            let elapsed_ns = self.began.elapsed().as_nanos() as u64;
            self.shared.metrics[self.number].settle(door, &mut self.batch, elapsed_ns);
        }
    }

    /// This loop's counters.
    pub fn metrics(&self) -> &Metrics {
        &self.shared.metrics[self.number]
    }
}

impl Shared {
    /// The time, as requests see it.
    pub fn now(&self) -> Now {
        self.now_at(Instant::now())
    }

    #[inline]
    fn now_at(&self, instant: Instant) -> Now {
        let up = instant.saturating_duration_since(self.start);
        let moved = self.debug_time_ms.load(Relaxed);
        if moved != 0 {
            return self.debug_now(up, moved);
        }
        Now { unix_ms: self.start_unix_ms + up.as_millis() as u64, uptime_s: up.as_secs() as u32 }
    }

    /// Time as memcached's tests move it.
    #[cold]
    fn debug_now(&self, up: Duration, moved: i64) -> Now {
        let up_ms = if moved < 0 { (moved - i64::MIN) as u64 } else { up.as_millis() as u64 + moved as u64 };
        Now { unix_ms: self.start_unix_ms + up_ms, uptime_s: (up_ms / 1000) as u32 }
    }
}

/// Milliseconds since 1970 by the machine's clock.
pub(crate) fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64)
}
