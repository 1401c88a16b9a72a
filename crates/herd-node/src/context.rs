//! What every door works with: the store, the time, the counters; one context per loop.

use crate::config::Config;
use crate::debug_time::DebugTime;
use crate::metrics::{Batch, DoorName, Metrics, VerbName};
use crate::watch::{Waiter, Watch};
use herd_core::{Error, ErrorKind, quote};
use herd_net::{LoopHandle, Ticket};
use herd_store::{Collection, Now, Store};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// What all loops of a node share.
pub(crate) struct Shared {
    /// The objects.
    pub(crate) store: Arc<Store>,
    /// The collection of names without a slash, and of the memcached door.
    pub(crate) default: Collection,
    /// How the node was started.
    pub(crate) config: Config,
    /// Counters, by loop.
    pub(crate) metrics: Vec<Metrics>,
    /// Handle on the loops, once they are made.
    pub(crate) loops: OnceLock<LoopHandle>,
    /// Set when the node stops.
    pub(crate) stopping: AtomicBool,
    /// When it was started.
    pub(crate) start: Instant,
    /// The same, ms since 1970.
    pub(crate) start_unix_ms: u64,
    /// The clock of memcached's tests.
    pub(crate) debug_time: DebugTime,
    /// Who waits for which object.
    pub(crate) watch: Watch,
    /// Addresses it listens on, once it does.
    pub(crate) addrs: OnceLock<Vec<SocketAddr>>,
    /// Sessions of the wire so far.
    pub(crate) sessions: AtomicU32,
    /// Who was woken, where no loop runs.
    #[cfg(test)]
    pub(crate) woken: std::sync::Mutex<Vec<Woken>>,
}

/// A ticket to be resumed.
#[cfg(test)]
pub(crate) struct Woken(pub(crate) Ticket);

/// A loop's view of the node.
pub(crate) struct Context {
    /// What all loops share.
    pub(crate) shared: Arc<Shared>,
    /// Number of this loop.
    pub(crate) number: usize,
    /// The time of this batch of events.
    pub(crate) now: Now,
    /// When this batch of events began.
    began: Instant,
    /// The door that is being served.
    pub(crate) door: DoorName,
    /// Requests counted since.
    batch: Batch,
    /// Waits of this loop by when they end, ms since 1970.
    timers: Vec<(u64, Ticket)>,
}

impl Context {
    pub(crate) fn new(shared: Arc<Shared>, number: usize) -> Self {
        let mut context = Self {
            shared,
            number,
            now: Now::default(),
            began: Instant::now(),
            door: DoorName::Other,
            batch: Batch::default(),
            timers: Vec::new(),
        };
        context.begin(Instant::now());
        context
    }

    /// Takes the time, once for all events of a batch.
    #[inline]
    pub(crate) fn begin(&mut self, now: Instant) {
        self.began = now;
        self.now = self.shared.now_at(now);
    }

    /// Counts a request to the door that is being served.
    #[inline]
    pub(crate) fn count(&mut self, verb: VerbName) {
        self.batch.count(self.door, verb);
    }

    /// Counts an error.
    pub(crate) fn count_error(&self, door: DoorName, verb: VerbName, kind: ErrorKind) {
        self.metrics().error(door, verb, kind);
    }

    /// Books the requests counted since the last time.
    #[inline]
    pub(crate) fn settle(&mut self) {
        if !self.batch.is_empty() {
            let elapsed_ns = self.began.elapsed().as_nanos() as u64;
            self.shared.metrics[self.number].settle(&mut self.batch, elapsed_ns);
        }
    }

    /// Has `ticket` resumed when the object changes, and at `until_ms`.
    pub(crate) fn watch(&mut self, collection: &Collection, name: &[u8], ticket: Ticket, until_ms: u64) {
        self.shared.watch.add(collection.id(), name, Waiter { loop_number: self.number, ticket });
        if !self.timers.contains(&(until_ms, ticket)) {
            self.timers.push((until_ms, ticket));
        }
    }

    /// Ends a watch.
    pub(crate) fn unwatch(&mut self, collection: &Collection, name: &[u8], ticket: Ticket) {
        self.shared.watch.remove(collection.id(), name, Waiter { loop_number: self.number, ticket });
    }

    /// An object was put or removed: those who wait for it look again.
    #[inline]
    pub(crate) fn changed(&self, collection: &Collection, name: &[u8]) {
        for waiter in self.shared.watch.waiters(collection.id(), name) {
            if let Some(loops) = self.shared.loops.get() {
                loops.loops()[waiter.loop_number].resume(&[waiter.ticket]);
            }
        }
    }

    /// Has a ticket of this loop resumed at the next tick.
    pub(crate) fn resume_soon(&mut self, ticket: Ticket) {
        self.timers.push((0, ticket));
    }

    /// Tickets whose time has come.
    pub(crate) fn due(&mut self, due: &mut Vec<Ticket>) {
        let now_ms = self.now.unix_ms;
        due.extend(self.timers.iter().filter(|(at_ms, _)| *at_ms <= now_ms).map(|(_, ticket)| *ticket));
        self.timers.retain(|(at_ms, _)| *at_ms > now_ms);
    }

    /// This loop's counters.
    pub(crate) fn metrics(&self) -> &Metrics {
        &self.shared.metrics[self.number]
    }
}

impl Shared {
    /// The collection of that name; the error says how to make it.
    pub(crate) fn collection(&self, name: &str) -> Result<Collection, Error> {
        if name == "default" {
            return Ok(self.default.clone());
        }
        let missing = || {
            let name = quote(name.as_bytes());
            let text = format!("no collection '{name}': make it with `herd collection create {name}`");
            Error::new(ErrorKind::NoCollection, text)
        };
        self.store.collection(name.as_bytes()).ok_or_else(missing)
    }

    /// The number of a new session of the wire; 24 bits, never 0.
    pub(crate) fn next_session(&self) -> u32 {
        self.sessions.fetch_add(1, Relaxed) % 0xFF_FFFF + 1
    }

    #[inline]
    fn now_at(&self, instant: Instant) -> Now {
        let up = self.debug_time.up(instant.saturating_duration_since(self.start));
        Now { unix_ms: self.start_unix_ms + up.as_millis() as u64, uptime_s: up.as_secs() as u32 }
    }
}

/// Milliseconds since 1970 by the machine's clock.
pub(crate) fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64)
}
