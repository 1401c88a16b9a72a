//! The ids that a client gives what it changes, so that the herd knows what is asked again (PROTOCOL.md §1.17).
//!
//! An id is the client's, drawn by chance, and a stamp: the time by the highest clock that a node's welcome has told,
//! and never the same twice. The client's own clock tells only how long ago that was.

use herd_core::replica::window::RequestId;
use herd_core::wire::{Own, stamp_at};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// What a welcome tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IdsTold {
    /// How far the node's clock is ahead of the client's, ms.
    pub(crate) ahead_ms: u64,
    /// The epoch of the node's map.
    pub(crate) epoch: u32,
}

/// The ids of a client.
#[derive(Debug)]
pub(crate) struct Ids {
    client: u64,
    last: AtomicU64,
    ahead_ms: AtomicU64,
    /// The latest epoch that any node has told.
    epoch: AtomicU32,
}

impl Ids {
    /// Of a client with this number, which nobody else has.
    pub(crate) fn new(client: u64) -> Self {
        Self { client, last: AtomicU64::new(0), ahead_ms: AtomicU64::new(0), epoch: AtomicU32::new(0) }
    }

    /// Takes note of the epoch that a node tells.
    pub(crate) fn heard(&self, epoch: u32) {
        if epoch > self.epoch.load(Relaxed) {
            self.epoch.fetch_max(epoch, Relaxed);
        }
    }

    /// The id of what is asked now for the first time, over a connection whose node has told this.
    pub(crate) fn next(&self, now_ms: u64, told: IdsTold) -> Own {
        if told.ahead_ms > self.ahead_ms.load(Relaxed) {
            self.ahead_ms.fetch_max(told.ahead_ms, Relaxed);
        }
        self.heard(told.epoch);
        let least = stamp_at(self.ahead_ms.load(Relaxed).saturating_add(now_ms));
        let after = |last: u64| Some(least.max(last.saturating_add(1)));
        let before = self.last.fetch_update(Relaxed, Relaxed, after).unwrap_or_default();
        let sequence = after(before).unwrap_or_default();
        let id = RequestId { client: self.client, sequence };
        Own { id, epoch: self.epoch.load(Relaxed), may_be_done: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_go_by_the_highest_clock_and_never_come_twice() {
        let (ids, told) = (Ids::new(7), IdsTold { ahead_ms: 1_000_000, epoch: 5 });
        let first = ids.next(10, told);
        assert_eq!((first.id.client, first.id.sequence), (7, stamp_at(1_000_010)));
        assert_eq!(ids.next(10, IdsTold { ahead_ms: 3, epoch: 4 }).id.sequence, first.id.sequence + 1);
        let later = ids.next(11, told);
        assert_eq!((later.id.sequence, later.epoch), (stamp_at(1_000_011), 5));
        ids.heard(9);
        ids.heard(8);
        let ahead = ids.next(12, IdsTold { ahead_ms: 2_000_000, ..told });
        assert_eq!((ahead.id.sequence, ahead.epoch), (stamp_at(2_000_012), 9));
    }

    #[test]
    fn threads_draw_different_stamps() {
        let (ids, told) = (Ids::new(7), IdsTold { ahead_ms: 5, epoch: 1 });
        let draw = || (0..1_000).map(|_| ids.next(1, told).id.sequence).collect::<Vec<_>>();
        let drawn = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(draw)).collect();
            threads.into_iter().flat_map(|thread| thread.join().expect("it draws")).collect::<Vec<_>>()
        });
        let apart: std::collections::BTreeSet<u64> = drawn.iter().copied().collect();
        assert_eq!(apart.len(), drawn.len());
    }
}
