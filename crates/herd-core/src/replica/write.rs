//! A write at its primary, from its prepare to its answer, and the line of operations behind it.

use super::{NodeId, Pending};
use std::collections::{BTreeSet, VecDeque};

/// A write under way.
#[derive(Clone, Debug, Hash)]
pub(super) struct Write<C, O> {
    pub(super) pending: Pending,
    /// What it changes; `None` after a take-over, where only the state it makes is known.
    pub(super) change: Option<C>,
    /// The operations it was decided for.
    pub(super) ops: Vec<O>,
    /// Who has prepared it, or, when it is aborted, dropped it, in this epoch.
    pub(super) acks: BTreeSet<NodeId>,
    /// Whether somebody needed has refused it.
    pub(super) is_aborting: bool,
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

    /// Whether none waits.
    pub(super) fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }
}
