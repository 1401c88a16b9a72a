//! A member that is syncing, as its primary sees it: how far the copy has come, and what it has not acked yet.
//!
//! The copy goes entry by entry in the order of the keys, one under way at a time, on whatever link. The target gets
//! prepares only for what the cursor has passed, and none of the entry whose copy is under way: what becomes of that
//! follows when the copy is answered. So a copy never meets anything newer, and a removal is remembered nowhere, but
//! for the token of a lock that it leaves: that is copied in its place, like an object.

use super::bugs::{self, Bug};
use super::unacked::Unacked;
use super::{Change, Copies, Effect, Message, NodeId, Offer, Part, Pending, Want};
use crate::entry::Version;
use std::collections::BTreeMap;

/// A member that is syncing.
#[derive(Clone, Debug, Hash)]
pub(super) struct Target<K: Ord> {
    /// The last key the cursor has passed.
    at: Option<K>,
    /// Whether it has passed all.
    is_at_end: bool,
    /// Whether the copy of that key has not been answered.
    is_copying: bool,
    /// What was committed of it since its copy was sent.
    behind: Option<Version>,
    /// Whether the next waits until it is said.
    rests: bool,
    /// Writes it was sent and has not acked.
    pub(super) unacked: Unacked<K>,
    pub(super) stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Stage {
    /// The copy is under way.
    Copying,
    /// It has all, and the warden is asked; it is waited for as if it were joining already.
    Needed,
    /// It had no room, and the warden is asked; it gets nothing any more.
    Failed,
}

impl<K: Ord + Clone> Target<K> {
    pub(super) fn new() -> Self {
        let (at, behind, unacked) = (None, None, Unacked::new());
        let (is_at_end, is_copying, rests, stage) = (false, false, false, Stage::Copying);
        Self { at, is_at_end, is_copying, behind, rests, unacked, stage }
    }

    /// Whether writes of this key are sent to it.
    pub(super) fn gets(&self, key: &K) -> bool {
        let is_beside = self.is_copied_now(key) && !bugs::has(Bug::BesideCopy);
        let is_passed = self.is_at_end || self.at.as_ref().is_some_and(|at| key <= at);
        self.stage != Stage::Failed && is_passed && !is_beside
    }

    fn is_copied_now(&self, key: &K) -> bool {
        self.is_copying && self.at.as_ref() == Some(key)
    }

    /// A write is committed. If it was not sent because of a copy, it is after it.
    pub(super) fn committed(&mut self, key: &K, version: Version) {
        if self.is_copied_now(key) && !bugs::has(Bug::BehindCopy) {
            self.behind = Some(version);
        }
        if !self.unacked.contains(key, version) {
            self.unacked.remove_up_to(key, version);
        }
    }

    /// It holds this write. Once that is committed, it needs none before it any more.
    pub(super) fn acked(&mut self, key: &K, version: Version, is_committed: bool) {
        if is_committed {
            self.unacked.remove_up_to(key, version);
        } else {
            self.unacked.remove(key, version);
        }
    }
}

impl<K: Ord + Clone, C: Change, O> Part<K, C, O> {
    /// The target adopted the view on a link: what was lost with the one before goes again. `theirs`: what it has
    /// pending.
    pub(super) fn resume<S: Copies<K, C>>(&mut self, at: &mut S, peer: NodeId, theirs: &BTreeMap<K, Pending>) {
        let Some(target) = self.targets.get_mut(&peer) else { return };
        let is_live = |key: &K, version| self.writes.get(key).is_some_and(|write| write.pending.version == version);
        for (key, pending) in theirs {
            let is_committed = !is_live(key, pending.version) && at.state(key).committed == pending.makes();
            target.acked(key, pending.version, is_committed);
        }
        // The state as it is now is sent once for a key, under its last version.
        let lost = target.unacked.last(|key, version| !is_live(key, version));
        let copied = target.at.clone().filter(|_| target.is_copying);
        let behind = target.behind.take();
        let stage = target.stage;
        lost.iter().for_each(|(key, version)| self.send_committed(at, peer, key, *version));
        if let Some(key) = copied {
            self.copy_again(at, peer, &key, behind);
        }
        match stage {
            Stage::Copying => {}
            Stage::Needed => self.out.push(Effect::Want(Want::Joining(peer))),
            Stage::Failed => self.out.push(Effect::Want(Want::Removed(peer))),
        }
    }

    /// The committed state of an entry, as a prepare that is settled at once: the target can't follow `version`, or
    /// it was lost, and it is waited for no more.
    pub(super) fn send_committed<S: Copies<K, C>>(&mut self, at: &mut S, to: NodeId, key: &K, version: Version) {
        let Some(target) = self.targets.get_mut(&to) else { return };
        target.unacked.remove(key, version);
        let state = at.whole_committed(key);
        let committed = if state.removes() { version } else { at.state(key).committed };
        let write = Pending { version: committed, base: 0, removes: state.removes() };
        let serial = self.send_prepare(to, key, write, Offer::Whole(state));
        if let Some(link) = self.links.get_mut(&to) {
            link.done(serial);
        }
    }

    /// Members to which copies are being made, and that are there.
    pub fn copies_under_way(&self) -> usize {
        let is_there = |peer: &NodeId| self.links.get(peer).is_some_and(|link| link.is_ready);
        let copying = self.targets.iter().filter(|(_, target)| target.stage == Stage::Copying);
        copying.filter(|(peer, _)| is_there(peer)).count()
    }

    /// Nothing more is copied to a member that is syncing until [`Part::copy_on`] says so; writes go on to it.
    pub fn rest(&mut self, peer: NodeId) {
        self.targets.entry(peer).and_modify(|target| target.rests = true);
    }

    /// The copy to a member goes on after [`Part::rest`].
    pub fn copy_on<S: Copies<K, C>>(&mut self, at: &mut S, peer: NodeId) {
        self.targets.entry(peer).and_modify(|target| target.rests = false);
        self.go_on(at);
    }

    /// The cursors of all targets go on, where nothing holds them.
    pub(super) fn go_on<S: Copies<K, C>>(&mut self, at: &mut S) {
        let peers: Vec<NodeId> = self.targets.keys().copied().collect();
        for peer in peers {
            while self.go_on_one(at, peer) {}
        }
    }

    fn go_on_one<S: Copies<K, C>>(&mut self, at: &mut S, peer: NodeId) -> bool {
        let is_ready = !self.is_clearing && self.links.get(&peer).is_some_and(|link| link.is_ready);
        let Some(target) = self.targets.get_mut(&peer) else { return false };
        if !is_ready || target.is_copying || target.rests || target.stage != Stage::Copying {
            return false;
        }
        let next = if target.is_at_end { None } else { at.next_key(target.at.as_ref()) };
        match next {
            Some(key) if at.state(&key).pending.is_some() && bugs::has(Bug::WaitingCursor) => false,
            Some(key) => {
                target.at = Some(key.clone());
                // The cursor waits for no write: a group below k, where none ends, would stay there.
                if !self.send_copy(at, peer, &key) {
                    self.send_whole(at, peer, &key);
                }
                true
            }
            None => {
                target.is_at_end = true;
                if target.unacked.is_empty() {
                    target.stage = Stage::Needed;
                    self.out.push(Effect::Want(Want::Joining(peer)));
                }
                false
            }
        }
    }

    /// Copies the committed state of an entry, if it has one, or left a token.
    fn send_copy<S: Copies<K, C>>(&mut self, at: &mut S, peer: NodeId, key: &K) -> bool {
        let committed = at.state(key).committed;
        let is_there = committed != 0 || at.has_token(key);
        let Some(target) = self.targets.get_mut(&peer) else { return false };
        target.is_copying = is_there;
        if is_there {
            // Of what is absent it has no version: it is above nothing.
            let (epoch, version, state) = (self.view.epoch, committed.max(1), at.whole_committed(key));
            self.send(peer, Message::Copy { epoch, key: key.clone(), version, state });
        }
        is_there
    }

    /// The answer to a copy was lost. What was removed since, `behind`, may have come to the target before.
    fn copy_again<S: Copies<K, C>>(&mut self, at: &mut S, peer: NodeId, key: &K, behind: Option<Version>) {
        match behind.filter(|_| at.state(key).committed == 0) {
            Some(version) => {
                self.targets.entry(peer).and_modify(|target| target.is_copying = false);
                self.send_committed(at, peer, key, version);
            }
            None => drop(self.send_copy(at, peer, key)),
        }
    }

    /// A write begins: a target whose link is not ready may get it only after it has ended. One that does not keep up
    /// fails, or what it is owed would have no bound.
    pub(super) fn note_unacked(&mut self, key: &K, version: Version, size_bytes: u64) {
        let mut failed = Vec::new();
        for (peer, target) in &mut self.targets {
            if target.gets(key) && !bugs::has(Bug::MissedTarget) {
                target.unacked.insert(key, version, size_bytes);
            }
            if target.stage == Stage::Copying && target.unacked.is_over() {
                failed.push(*peer);
            }
        }
        failed.into_iter().for_each(|peer| self.fail(peer));
    }

    /// The target has a copy. What was not sent because of it follows.
    pub(super) fn copied<S: Copies<K, C>>(&mut self, at: &mut S, peer: NodeId, key: &K) {
        let Some(target) = self.targets.get_mut(&peer).filter(|target| target.is_copied_now(key)) else { return };
        target.is_copying = false;
        if let Some(version) = target.behind.take() {
            self.send_committed(at, peer, key, version);
        }
        if !bugs::has(Bug::BesideCopy) {
            self.send_whole(at, peer, key);
        }
        self.go_on(at);
    }

    /// The target has no room, or does not keep up: its copy ends, and no write with it.
    pub(super) fn fail(&mut self, peer: NodeId) {
        let Some(target) = self.targets.get_mut(&peer) else { return };
        (target.stage, target.unacked) = (Stage::Failed, Unacked::new());
        self.out.push(Effect::Want(Want::Removed(peer)));
    }

    /// Whether the write waits for this target.
    pub(super) fn waits_for_target(&self, peer: NodeId) -> bool {
        let is_needed = self.targets.get(&peer).is_some_and(|target| target.stage == Stage::Needed);
        is_needed && !bugs::has(Bug::LateNeed)
    }
}
