//! One link between two nodes, as a group sees it: what is under way on it, and up to where it is settled.
//!
//! Serials count the prepares since the last adopt, so both ends begin anew with it. Messages arrive in order, or the
//! link breaks and another takes its place, with a higher generation.

use super::bugs::{self, Bug};
use crate::entry::Version;
use std::collections::VecDeque;

/// A link. The first half is the primary's, `got` the member's.
#[derive(Clone, Debug, Hash)]
pub(super) struct Link<K> {
    /// Which of the links to this node, one after the other, it is.
    pub(super) generation: u32,
    /// Whether it is there.
    pub(super) is_up: bool,
    /// Whether the member has adopted the view on it.
    pub(super) is_ready: bool,
    serial: u64,
    told: u64,
    sent: VecDeque<Sent<K>>,
    got: VecDeque<(u64, K, Version)>,
}

#[derive(Clone, Debug, Hash)]
struct Sent<K> {
    serial: u64,
    key: K,
    version: Version,
    done: bool,
}

impl<K> Default for Link<K> {
    fn default() -> Self {
        let (sent, got) = (VecDeque::new(), VecDeque::new());
        Self { generation: 0, is_up: false, is_ready: false, serial: 0, told: 0, sent, got }
    }
}

impl<K: PartialEq> Link<K> {
    /// A link that is there.
    pub(super) fn new(generation: u32) -> Self {
        Self { generation, is_up: true, ..Self::default() }
    }

    /// Whether what came over the link of this generation is to be read.
    pub(super) fn is_current(&self, generation: u32) -> bool {
        self.is_up && generation == self.generation || bugs::has(Bug::OldLink)
    }

    /// An adopt is sent: what was under way before it is told again after it.
    pub(super) fn restart(&mut self) {
        (self.is_ready, self.serial, self.told) = (false, 0, 0);
        self.sent.clear();
    }

    /// An adopt came.
    pub(super) fn adopted(&mut self) {
        self.got.clear();
    }

    /// A prepare goes out: its serial, and what is settled before it.
    pub(super) fn send(&mut self, key: K, version: Version) -> (u64, u64) {
        let settled = self.settle();
        self.serial += 1;
        self.sent.push_back(Sent { serial: self.serial, key, version, done: false });
        (self.serial, settled)
    }

    /// The write has been committed, or aborted everywhere.
    pub(super) fn done(&mut self, key: &K, version: Version) {
        let same = |sent: &&mut Sent<K>| sent.version == version && sent.key == *key;
        self.sent.iter_mut().filter(same).for_each(|sent| sent.done = true);
        while self.sent.front().is_some_and(|sent| sent.done) {
            self.sent.pop_front();
        }
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
        self.sent.front().map_or(self.serial, |sent| sent.serial - 1)
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
