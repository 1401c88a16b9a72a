//! One link between two nodes, as a group sees it: what is under way on it, and up to where it is settled.
//!
//! Serials count the prepares since the last adopt, so both ends begin anew with it. Messages arrive in order, or the
//! link breaks and another takes its place, with another generation. Whether a message is still to be served is judged
//! where it meets the part ([`Link::is_current`]) and nowhere else.

use super::Pending;
use super::bugs::{self, Bug};
use crate::entry::Version;
use std::collections::{BTreeMap, VecDeque};

/// A link. `owes_adopted` and `got` are the member's, the rest is the primary's.
#[derive(Clone, Debug, Hash)]
pub(super) struct Link<K> {
    /// Which of the links to this node, one after the other, it is.
    pub(super) generation: u64,
    /// Whether it is there.
    pub(super) is_up: bool,
    /// Whether the member has adopted the view on it.
    pub(super) is_ready: bool,
    /// What the member has told so far to be pending there.
    pub(super) theirs: BTreeMap<K, Pending>,
    /// The last serial.
    serial: u64,
    told: u64,
    /// Of the last serials, whether each is done with; the first is not.
    sent: VecDeque<bool>,
    /// Whether the primary waits to be told what is pending here.
    pub(super) owes_adopted: bool,
    got: VecDeque<(u64, K, Version)>,
}

impl<K> Link<K> {
    /// A link that is there.
    pub(super) fn new(generation: u64) -> Self {
        Self { is_up: true, ..Self::down(generation) }
    }

    /// A link that is not there.
    pub(super) fn down(generation: u64) -> Self {
        let (sent, got, theirs) = (VecDeque::new(), VecDeque::new(), BTreeMap::new());
        Self { generation, is_up: false, is_ready: false, theirs, serial: 0, told: 0, sent, owes_adopted: false, got }
    }

    /// Whether what came over the link of this generation is to be served.
    pub(super) fn is_current(&self, generation: u64) -> bool {
        self.is_up && generation == self.generation || bugs::has(Bug::OldLink)
    }

    /// An adopt is sent, or a new view is there: what was under way before is told again after it.
    pub(super) fn restart(&mut self) {
        (self.is_ready, self.owes_adopted, self.serial, self.told) = (false, false, 0, 0);
        self.theirs.clear();
        self.sent.clear();
    }

    /// An adopt came.
    pub(super) fn adopted(&mut self) {
        self.got.clear();
    }

    /// A prepare goes out: its serial, and what is settled before it.
    pub(super) fn send(&mut self) -> (u64, u64) {
        let settled = self.settle();
        self.serial += 1;
        self.sent.push_back(false);
        (self.serial, settled)
    }

    /// The write of this serial has been committed, or aborted everywhere, or goes again under another one.
    pub(super) fn done(&mut self, serial: u64) {
        let sent = serial.checked_sub(self.settled() + 1).and_then(|at| self.sent.get_mut(usize::try_from(at).ok()?));
        if let Some(is_done) = sent {
            *is_done = true;
        }
        while self.sent.front() == Some(&true) {
            self.sent.pop_front();
        }
    }

    /// Prepares that are not settled.
    pub(super) fn unsettled(&self) -> usize {
        self.sent.len()
    }

    /// Up to where it is settled; the member is told.
    pub(super) fn settle(&mut self) -> u64 {
        self.told = self.settled();
        self.told
    }

    /// Whether the member does not know yet up to where it is settled.
    pub(super) fn owes_settle(&self) -> bool {
        self.is_up && self.is_ready && self.settled() > self.told
    }

    fn settled(&self) -> u64 {
        self.serial - self.sent.len() as u64
    }

    /// A prepare came in, and its write is pending.
    pub(super) fn receive(&mut self, serial: u64, key: K, version: Version) {
        self.got.push_back((serial, key, version));
    }

    /// The next write that is settled up to this serial.
    pub(super) fn next_settled(&mut self, settled: u64) -> Option<(K, Version)> {
        if self.got.front()?.0 > settled {
            return None;
        }
        self.got.pop_front().map(|(_, key, version)| (key, version))
    }
}
