//! What a loop counts; written by the loop alone, read by anyone.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Counters of one loop.
#[derive(Default)]
pub struct LoopStats {
    /// Connections accepted into this loop.
    pub opened: AtomicU64,
    /// Connections closed.
    pub closed: AtomicU64,
    /// Connections closed because they were too slow or held too much, or refused because there were too many.
    pub shed: AtomicU64,
    /// Connections closed because of a request of which more came than may be kept until it is whole.
    pub overrun: AtomicU64,
    /// Bytes read.
    pub read_bytes: AtomicU64,
    /// Bytes written.
    pub written_bytes: AtomicU64,
    /// The longest the loop was busy with one thing, ns (`laps.rs`): since its start, and in the last minute or two.
    /// Both are written every [`TICK_MS`](herd_core::limits::TICK_MS).
    pub longest_ns: AtomicU64,
    /// See `longest_ns`.
    pub longest_recent_ns: AtomicU64,
}

/// Adds to a counter that only this thread writes: no locked instruction is needed.
#[inline]
pub(crate) fn add(counter: &AtomicU64, n: u64) {
    counter.store(counter.load(Relaxed).wrapping_add(n), Relaxed);
}
