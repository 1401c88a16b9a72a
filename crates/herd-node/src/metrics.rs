//! What a loop counts of its requests: by door and verb, with errors by kind and a latency histogram.
//!
//! Each loop writes its own counters and nobody else's, so counting needs no locked instruction; `/metrics` adds the
//! loops up. Latency is that of the server: from the moment the loop learned of the bytes to the reply being built,
//! taken once for all requests of a round.

use herd_core::ErrorKind;
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A protocol, as counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DoorName {
    /// memcached text and meta.
    Memcached,
    /// HTTP/1.1.
    Http,
    /// Herd's wire.
    Wire,
    /// A link: what another node was asked, and has counted at its own door.
    Node,
    /// Anything that was turned away.
    Other,
}

/// What was asked, as counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VerbName {
    /// Read an object.
    Get,
    /// Write an object.
    Put,
    /// Remove an object.
    Remove,
    /// Change expiry.
    Touch,
    /// Add to a number.
    Arithmetic,
    /// Run a method.
    Execute,
    /// List objects.
    List,
    /// Create or destroy a collection.
    Collection,
    /// Status, statistics and the like.
    Admin,
}

impl DoorName {
    /// All doors, in the order of their counters.
    pub(crate) const ALL: [DoorName; 5] =
        [DoorName::Memcached, DoorName::Http, DoorName::Wire, DoorName::Node, DoorName::Other];

    /// As a label.
    pub(crate) fn name(self) -> &'static str {
        ["memcached", "http", "wire", "node", "other"][self as usize]
    }
}

impl VerbName {
    /// All verbs, in the order of their counters.
    pub(crate) const ALL: [VerbName; 9] = [
        VerbName::Get,
        VerbName::Put,
        VerbName::Remove,
        VerbName::Touch,
        VerbName::Arithmetic,
        VerbName::Execute,
        VerbName::List,
        VerbName::Collection,
        VerbName::Admin,
    ];

    /// As a label.
    pub(crate) fn name(self) -> &'static str {
        ["get", "put", "remove", "touch", "arithmetic", "execute", "list", "collection", "admin"][self as usize]
    }
}

const DOORS: usize = DoorName::ALL.len();
const VERBS: usize = VerbName::ALL.len();
/// Upper bounds of the latency buckets are 2^0 to 2^23 us (8 s); the last bucket has none.
pub(crate) const LATENCY_BUCKETS: usize = 25;

/// Counters of one door and verb.
#[derive(Default)]
pub(crate) struct VerbMetrics {
    /// Requests answered.
    pub(crate) requests: AtomicU64,
    /// Errors, by [`ErrorKind`].
    pub(crate) errors: [AtomicU64; ErrorKind::ALL.len()],
    /// Requests by latency.
    pub(crate) latency: [AtomicU64; LATENCY_BUCKETS],
    /// Sum of latencies, ns.
    pub(crate) latency_ns: AtomicU64,
    /// Bytes of values received.
    pub(crate) in_bytes: AtomicU64,
    /// Bytes of values sent.
    pub(crate) out_bytes: AtomicU64,
}

/// Counters of one loop.
#[derive(Default)]
pub(crate) struct Metrics {
    /// Requests, and parts of them, that were handed on to another node.
    pub(crate) handed_on: AtomicU64,
    /// Writes that a group's primary sent and this node has no room for.
    pub(crate) refused_copies: AtomicU64,
    /// Requests that were asked again and answered as the first time.
    pub(crate) answered_again: AtomicU64,
    /// Groups that this node came to decide for, and those of them with writes under way of before.
    pub(crate) take_overs: AtomicU64,
    pub(crate) take_overs_pending: AtomicU64,
    verbs: [[VerbMetrics; VERBS]; DOORS],
}

/// What a loop counted in a round or turn; plain numbers.
#[derive(Default)]
pub(crate) struct Batch {
    requests: [[u32; VERBS]; DOORS],
    /// Bytes of values that came, and that were answered.
    values: [[[Cell<u64>; 2]; VERBS]; DOORS],
    /// Doors with either, one bit each.
    doors: Cell<u32>,
    /// Objects were asked for.
    of_objects: bool,
}

impl Metrics {
    /// Counters of a door and verb.
    pub(crate) fn of(&self, door: DoorName, verb: VerbName) -> &VerbMetrics {
        &self.verbs[door as usize][verb as usize]
    }

    /// Counts an error.
    pub(crate) fn error(&self, door: DoorName, verb: VerbName, kind: ErrorKind) {
        add(&self.of(door, verb).errors[kind as usize], 1);
    }

    /// Adds a batch of requests that took `elapsed_ns`.
    #[inline]
    pub(crate) fn settle(&self, batch: &mut Batch, elapsed_ns: u64) {
        let bucket = latency_bucket(elapsed_ns);
        let mut doors = batch.doors.take();
        while doors != 0 {
            let door = doors.trailing_zeros() as usize;
            doors &= doors - 1;
            let counted = batch.requests[door].iter_mut().zip(&batch.values[door]);
            for (verb, (requests, [came, went])) in self.verbs[door].iter().zip(counted) {
                if *requests > 0 {
                    let n = u64::from(std::mem::take(requests));
                    add(&verb.requests, n);
                    add(&verb.latency[bucket], n);
                    add(&verb.latency_ns, n * elapsed_ns);
                }
                if came.get() + went.get() > 0 {
                    add(&verb.in_bytes, came.take());
                    add(&verb.out_bytes, went.take());
                }
            }
        }
    }
}

impl Batch {
    /// Counts a request.
    #[inline]
    pub(crate) fn count(&mut self, door: DoorName, verb: VerbName) {
        self.requests[door as usize][verb as usize] += 1;
        self.of_objects |= !matches!(verb, VerbName::Collection | VerbName::Admin);
        self.doors.set(self.doors.get() | 1 << door as u32);
    }

    /// Counts bytes of values that came and that were answered.
    #[inline]
    pub(crate) fn count_values(&self, door: DoorName, verb: VerbName, came_bytes: u64, went_bytes: u64) {
        let [came, went] = &self.values[door as usize][verb as usize];
        came.set(came.get() + came_bytes);
        went.set(went.get() + went_bytes);
        self.doors.set(self.doors.get() | 1 << door as u32);
    }

    /// Whether objects were asked for since this was called last.
    #[inline]
    pub(crate) fn take_of_objects(&mut self) -> bool {
        std::mem::take(&mut self.of_objects)
    }

    /// Whether nothing was counted.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.doors.get() == 0
    }
}

/// The bucket of a latency: the first whose bound is not below it.
fn latency_bucket(ns: u64) -> usize {
    let us = ns.div_ceil(1000).max(1);
    (u64::BITS - (us - 1).leading_zeros()).min(LATENCY_BUCKETS as u32 - 1) as usize
}

/// Adds to a counter only this loop writes.
#[inline]
pub(crate) fn add(counter: &AtomicU64, n: u64) {
    counter.store(counter.load(Relaxed).wrapping_add(n), Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_latency_falls_under_the_first_bound_that_holds_it() {
        for (ns, bucket) in [(0, 0), (1000, 0), (1001, 1), (2000, 1), (2001, 2), (4_000_000, 12), (u64::MAX, 24)] {
            assert_eq!(latency_bucket(ns), bucket, "{ns}");
        }
    }

    #[test]
    fn a_batch_is_counted_once() {
        let (metrics, mut batch) = (Metrics::default(), Batch::default());
        batch.count(DoorName::Wire, VerbName::Get);
        batch.count(DoorName::Wire, VerbName::Get);
        metrics.settle(&mut batch, 5_000);
        metrics.settle(&mut batch, 5_000);
        let get = metrics.of(DoorName::Wire, VerbName::Get);
        assert_eq!((get.requests.load(Relaxed), get.latency_ns.load(Relaxed)), (2, 10_000));
        assert!(batch.is_empty());
    }
}
