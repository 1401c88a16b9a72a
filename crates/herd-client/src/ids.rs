//! The ids that a client gives what it changes, so that the herd knows what is asked again (PROTOCOL.md §1.17).
//!
//! An id is a number that nobody else has, and a stamp: the time by the highest clock that a node's welcome has told,
//! and never the same twice. The client's own clock tells only how long ago that was. The herd remembers the last stamp
//! of each number, so what is under way at once has different ones ([`Lane`]).

use herd_core::replica::window::RequestId;
use herd_core::wire::{Own, stamp_at};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

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
    lanes: Mutex<Lanes>,
    last: AtomicU64,
    ahead_ms: AtomicU64,
    /// The latest epoch that any node has told.
    epoch: AtomicU32,
}

#[derive(Debug)]
struct Lanes {
    /// The number that is given next; they rise from one that was drawn by chance.
    next: u64,
    /// Those that nothing is under way with.
    free: Vec<u64>,
}

/// A number for the ids of one request at a time, which is given back when that is over.
#[derive(Debug)]
pub(crate) struct Lane<'a> {
    ids: &'a Ids,
    client: u64,
}

impl Drop for Lane<'_> {
    fn drop(&mut self) {
        self.ids.lanes.lock().unwrap_or_else(PoisonError::into_inner).free.push(self.client);
    }
}

impl Ids {
    /// Of a client; its numbers begin with this one, which was drawn by chance.
    pub(crate) fn new(first: u64) -> Self {
        let lanes = Mutex::new(Lanes { next: first, free: Vec::new() });
        Self { lanes, last: AtomicU64::new(0), ahead_ms: AtomicU64::new(0), epoch: AtomicU32::new(0) }
    }

    /// For a request that begins: a number with which nothing is under way.
    pub(crate) fn lane(&self) -> Lane<'_> {
        let mut lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        let client = lanes.free.pop().unwrap_or_else(|| {
            let next = lanes.next.wrapping_add(1);
            std::mem::replace(&mut lanes.next, next)
        });
        Lane { ids: self, client }
    }

    /// Takes note of the epoch that a node tells.
    pub(crate) fn heard(&self, epoch: u32) {
        if epoch > self.epoch.load(Relaxed) {
            self.epoch.fetch_max(epoch, Relaxed);
        }
    }
}

impl Lane<'_> {
    /// The id of what is asked now for the first time, over a connection whose node has told this.
    pub(crate) fn next(&self, now_ms: u64, told: IdsTold) -> Own {
        let Ids { last, ahead_ms, epoch, .. } = self.ids;
        if told.ahead_ms > ahead_ms.load(Relaxed) {
            ahead_ms.fetch_max(told.ahead_ms, Relaxed);
        }
        self.ids.heard(told.epoch);
        let least = stamp_at(ahead_ms.load(Relaxed).saturating_add(now_ms));
        let after = |last: u64| Some(least.max(last.saturating_add(1)));
        let before = last.fetch_update(Relaxed, Relaxed, after).unwrap_or_default();
        let sequence = after(before).unwrap_or_default();
        let id = RequestId { client: self.client, sequence };
        Own { id, epoch: epoch.load(Relaxed), may_be_done: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_go_by_the_highest_clock_and_never_come_twice() {
        let (ids, told) = (Ids::new(7), IdsTold { ahead_ms: 1_000_000, epoch: 5 });
        let lane = ids.lane();
        let first = lane.next(10, told);
        assert_eq!((first.id.client, first.id.sequence), (7, stamp_at(1_000_010)));
        assert_eq!(lane.next(10, IdsTold { ahead_ms: 3, epoch: 4 }).id.sequence, first.id.sequence + 1);
        let later = lane.next(11, told);
        assert_eq!((later.id.sequence, later.epoch), (stamp_at(1_000_011), 5));
        ids.heard(9);
        ids.heard(8);
        let ahead = lane.next(12, IdsTold { ahead_ms: 2_000_000, ..told });
        assert_eq!((ahead.id.sequence, ahead.epoch), (stamp_at(2_000_012), 9));
    }

    #[test]
    fn threads_draw_different_stamps() {
        let (ids, told) = (Ids::new(7), IdsTold { ahead_ms: 5, epoch: 1 });
        let draw = || (0..1_000).map(|_| ids.lane().next(1, told).id.sequence).collect::<Vec<_>>();
        let drawn = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(draw)).collect();
            threads.into_iter().flat_map(|thread| thread.join().expect("it draws")).collect::<Vec<_>>()
        });
        let apart: std::collections::BTreeSet<u64> = drawn.iter().copied().collect();
        assert_eq!(apart.len(), drawn.len());
    }

    #[test]
    fn what_is_under_way_at_once_has_different_numbers_and_they_are_used_again() {
        let (ids, told) = (Ids::new(7), IdsTold { ahead_ms: 5, epoch: 1 });
        let (first, second) = (ids.lane(), ids.lane());
        assert_eq!([&first, &second].map(|lane| lane.next(1, told).id.client), [7, 8]);
        drop(first);
        let third = ids.lane().next(1, told).id;
        assert_eq!((third.client, ids.lane().next(1, told).id.client), (7, 7));
    }
}
