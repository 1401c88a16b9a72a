//! A write at its primary, from its prepare to its answer, and the line of operations behind it.

use super::{Change, NodeId, Pending, Refusal};
use std::collections::VecDeque;

/// A write under way.
#[derive(Clone, Debug, Hash)]
pub(super) struct Write<C, O> {
    pub(super) pending: Pending,
    /// What it changes; `None` where only the state it makes is known: after a take-over, and of what began at once.
    pub(super) change: Option<C>,
    /// Bytes that it takes on a link.
    pub(super) size_bytes: u64,
    /// The operations it was decided for.
    pub(super) ops: Vec<O>,
    /// By node.
    told: Vec<Told>,
    /// Why it ends everywhere without having been done, if it does.
    pub(super) aborting: Option<Why>,
}

/// Why a write is aborted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Why {
    /// Somebody needed has refused it.
    Refused(NodeId, Refusal),
    /// Its collection has been flushed, and somebody wants of it what is not there any more: it is decided again.
    Over,
}

/// What a member knows of a write in this epoch.
#[derive(Clone, Debug, Hash)]
struct Told {
    peer: NodeId,
    /// Of its last prepare since the last adopt; 0: none.
    serial: u64,
    /// Whether it has prepared the write, or, when that is aborted, dropped it.
    is_acked: bool,
}

impl<C: Change, O> Write<C, O> {
    pub(super) fn new(pending: Pending, change: Option<C>, ops: Vec<O>) -> Self {
        let size_bytes = change.as_ref().map_or(0, Change::size_bytes);
        Self { pending, change, size_bytes, ops, told: Vec::new(), aborting: None }
    }

    /// Of one operation, whose caller has prepared it.
    pub(super) fn prepared(pending: Pending, size_bytes: u64, op: O) -> Self {
        Self { size_bytes, ..Self::new(pending, None, vec![op]) }
    }

    fn told(&mut self, peer: NodeId) -> &mut Told {
        let at = self.told.binary_search_by_key(&peer, |told| told.peer).unwrap_or_else(|at| {
            self.told.insert(at, Told { peer, serial: 0, is_acked: false });
            at
        });
        &mut self.told[at]
    }

    pub(super) fn ack(&mut self, peer: NodeId) {
        self.told(peer).is_acked = true;
    }

    pub(super) fn has_ack(&self, peer: NodeId) -> bool {
        self.told.iter().any(|told| told.peer == peer && told.is_acked)
    }

    pub(super) fn has_acks(&self) -> bool {
        self.told.iter().any(|told| told.is_acked)
    }

    pub(super) fn forget_acks(&mut self) {
        self.told.iter_mut().for_each(|told| told.is_acked = false);
    }

    /// It goes to a member under this serial. The one before, since the last adopt; 0: none.
    pub(super) fn send(&mut self, peer: NodeId, serial: u64) -> u64 {
        std::mem::replace(&mut self.told(peer).serial, serial)
    }

    /// Nodes and the serials under which it was sent to them since the last adopt.
    pub(super) fn serials(&self) -> impl Iterator<Item = (NodeId, u64)> + '_ {
        self.told.iter().map(|told| (told.peer, told.serial)).filter(|(_, serial)| *serial > 0)
    }

    /// The link of a node begins its serials anew.
    pub(super) fn forget_serial(&mut self, peer: NodeId) {
        self.told.iter_mut().filter(|told| told.peer == peer).for_each(|told| told.serial = 0);
    }

    /// All links do.
    pub(super) fn forget_serials(&mut self) {
        self.told.iter_mut().for_each(|told| told.serial = 0);
    }
}

/// The operations that wait for an entry.
#[derive(Clone, Debug, Hash)]
pub(super) struct Line<O> {
    ops: VecDeque<O>,
    /// So many of them are decided one by one: together they were refused.
    alone: usize,
    /// Whether some were taken out to be decided and have not come back.
    pub(super) is_deciding: bool,
}

impl<O> Default for Line<O> {
    fn default() -> Self {
        Self { ops: VecDeque::new(), alone: 0, is_deciding: false }
    }
}

impl<O> Line<O> {
    /// One more.
    pub(super) fn push(&mut self, op: O) {
        self.ops.push_back(op);
    }

    /// Operations that were refused together come first, one by one.
    pub(super) fn push_first(&mut self, ops: Vec<O>) {
        self.alone += ops.len();
        ops.into_iter().rev().for_each(|op| self.ops.push_front(op));
    }

    /// Operations that were taken and not decided come first again.
    pub(super) fn put_back(&mut self, ops: Vec<O>) {
        ops.into_iter().rev().for_each(|op| self.ops.push_front(op));
    }

    /// Those to be decided next.
    pub(super) fn take(&mut self) -> Vec<O> {
        if self.alone > 0 {
            self.alone -= 1;
            return self.ops.pop_front().into_iter().collect();
        }
        self.take_all()
    }

    /// All of them.
    pub(super) fn take_all(&mut self) -> Vec<O> {
        self.alone = 0;
        std::mem::take(&mut self.ops).into()
    }

    /// Takes out those of which `is_late` says so.
    pub(super) fn withdraw(&mut self, is_late: &mut impl FnMut(&O) -> bool, late: &mut Vec<O>) {
        let alone = std::mem::take(&mut self.alone);
        for (at, op) in std::mem::take(&mut self.ops).into_iter().enumerate() {
            if is_late(&op) {
                late.push(op);
            } else {
                self.alone += usize::from(at < alone);
                self.ops.push_back(op);
            }
        }
    }

    /// Whether none waits.
    pub(super) fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }
}
