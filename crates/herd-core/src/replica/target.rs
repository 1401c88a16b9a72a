//! A member that is syncing, as its primary sees it: how far the copy has come, and what it has not acked yet.
//!
//! The copy goes entry by entry in the order of the keys, one under way at a time, on whatever link: its order with
//! prepares does not matter. The target gets prepares only for what the cursor has passed.

use super::bugs::{self, Bug};
use super::{Change, Copies, Effect, Message, NodeId, Offer, Part, Pending, Want};
use crate::entry::Version;
use std::collections::{BTreeMap, BTreeSet};

/// A member that is syncing.
#[derive(Clone, Debug, Hash)]
pub(super) struct Target<K: Ord> {
    /// The last key the cursor has passed.
    at: Option<K>,
    /// Whether it has passed all.
    is_at_end: bool,
    /// Whether a copy has not been answered.
    is_copying: bool,
    /// Writes it was sent and has not acked.
    pub(super) unacked: BTreeSet<(K, Version)>,
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

impl<K: Ord> Target<K> {
    pub(super) fn new() -> Self {
        let (at, unacked) = (None, BTreeSet::new());
        Self { at, is_at_end: false, is_copying: false, unacked, stage: Stage::Copying }
    }

    /// Whether writes of this key are sent to it.
    pub(super) fn gets(&self, key: &K) -> bool {
        self.stage != Stage::Failed && (self.is_at_end || self.at.as_ref().is_some_and(|at| key <= at))
    }
}

impl<K: Ord + Clone> Target<K> {
    /// It holds this write. Once that is committed, it needs none before it any more.
    pub(super) fn acked(&mut self, key: &K, version: Version, is_committed: bool) {
        if is_committed {
            self.unacked.retain(|(other, older)| other != key || *older > version);
        } else {
            self.unacked.remove(&(key.clone(), version));
        }
    }
}

impl<K: Ord + Clone, C: Change, O> Part<K, C, O> {
    /// The target adopted the view on a link: what was lost with the one before goes again. `theirs`: what it has
    /// pending.
    pub(super) fn resume<S: Copies<K, C>>(&mut self, at: &mut S, peer: NodeId, theirs: &[(K, Pending)]) {
        let Some(target) = self.targets.get_mut(&peer) else { return };
        let is_live = |key: &K, version| self.writes.get(key).is_some_and(|write| write.pending.version == version);
        for (key, pending) in theirs {
            let is_committed = !is_live(key, pending.version) && at.committed(key) == pending.makes();
            target.acked(key, pending.version, is_committed);
        }
        // The state as it is now is sent once for a key, under its last version.
        let lost = target.unacked.iter().filter(|(key, version)| !is_live(key, *version)).cloned();
        let lost: BTreeMap<K, Version> = lost.collect();
        let copied = target.at.clone().filter(|_| target.is_copying);
        let stage = target.stage;
        lost.iter().for_each(|(key, version)| self.send_committed(at, peer, key, *version));
        if let Some(key) = copied {
            self.send_copy(at, peer, &key);
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
        target.unacked.remove(&(key.clone(), version));
        let state = at.whole_committed(key);
        let committed = if state.removes() { version } else { at.committed(key) };
        let write = Pending { version: committed, base: 0, removes: state.removes() };
        self.send_prepare(to, key, write, Offer::Whole(state));
        if let Some(link) = self.links.get_mut(&to) {
            link.done(key, committed);
        }
    }

    /// The cursors of all targets go on, where nothing holds them.
    pub(super) fn go_on<S: Copies<K, C>>(&mut self, at: &mut S) {
        let peers: Vec<NodeId> = self.targets.keys().copied().collect();
        for peer in peers {
            while self.go_on_one(at, peer) {}
        }
    }

    fn go_on_one<S: Copies<K, C>>(&mut self, at: &mut S, peer: NodeId) -> bool {
        let is_ready = self.links.get(&peer).is_some_and(|link| link.is_ready);
        let Some(target) = self.targets.get_mut(&peer) else { return false };
        if !is_ready || target.is_copying || target.stage != Stage::Copying {
            return false;
        }
        let next = if target.is_at_end { None } else { at.next_key(target.at.as_ref()) };
        match next {
            Some(key) if at.pending(&key).is_some() && bugs::has(Bug::WaitingCursor) => false,
            Some(key) => {
                target.at = Some(key.clone());
                self.send_copy(at, peer, &key);
                self.send_under_way(at, peer, &key);
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

    /// An entry that is gone meanwhile needs no copy: its removal was prepared.
    fn send_copy<S: Copies<K, C>>(&mut self, at: &mut S, peer: NodeId, key: &K) {
        let version = at.committed(key);
        let Some(target) = self.targets.get_mut(&peer) else { return };
        target.is_copying = version != 0;
        if version != 0 {
            let (epoch, state) = (self.view.epoch, at.whole_committed(key));
            self.send(peer, Message::Copy { epoch, key: key.clone(), version, state });
        }
    }

    /// A write that began before the cursor came goes to the target whole. Were the cursor to wait for its end, a group
    /// below k, where no write ends, would stay there.
    fn send_under_way<S: Copies<K, C>>(&mut self, at: &mut S, peer: NodeId, key: &K) {
        if let Some(write) = self.writes.get(key).filter(|write| !write.is_aborting) {
            let (pending, state) = (write.pending, at.whole(key));
            self.send_prepare(peer, key, pending, Offer::Whole(state));
        }
    }

    /// A write begins: a target whose link is not ready may get it only after it has ended.
    pub(super) fn note_unacked(&mut self, key: &K, version: Version) {
        for target in self.targets.values_mut().filter(|target| target.gets(key) && !bugs::has(Bug::MissedTarget)) {
            target.unacked.insert((key.clone(), version));
        }
    }

    /// The target answered a copy.
    pub(super) fn copied<S: Copies<K, C>>(&mut self, at: &mut S, peer: NodeId) {
        if let Some(target) = self.targets.get_mut(&peer) {
            target.is_copying = false;
        }
        self.go_on(at);
    }

    /// The target has no room: its copy ends, and no write with it.
    pub(super) fn fail(&mut self, peer: NodeId) {
        let Some(target) = self.targets.get_mut(&peer) else { return };
        target.stage = Stage::Failed;
        target.unacked.clear();
        self.out.push(Effect::Want(Want::Removed(peer)));
    }

    /// Whether the write waits for this target.
    pub(super) fn waits_for_target(&self, peer: NodeId) -> bool {
        let is_needed = self.targets.get(&peer).is_some_and(|target| target.stage == Stage::Needed);
        is_needed && !bugs::has(Bug::LateNeed)
    }
}
