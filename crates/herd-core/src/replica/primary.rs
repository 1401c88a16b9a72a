//! What a part does as the primary: it decides one write of an entry after the other, and a write ends when all
//! members it needs have said so in its epoch.

use super::bugs::{self, Bug};
use super::target::Target;
use super::write::Write;
use super::{Change, Copies, Effect, GroupEpoch, Message, NoRoom, NodeId, Offer, Outcome, Part, Pending, Standing};
use super::{Verdict, View};
use crate::entry::Version;

impl<K: Ord + Clone, C: Change, O> Part<K, C, O> {
    /// An operation that may change an entry. It is decided at once, or stands in line behind the write under way.
    pub fn ask(&mut self, key: K, op: O) {
        if !self.leads() {
            return self.tell(vec![op], Outcome::Moved);
        }
        self.lines.entry(key.clone()).or_default().push(op);
        self.next(&key);
    }

    /// What operations came to: a change, or none, of which nobody needs to hear.
    pub fn begin<S: Copies<K, C>>(&mut self, at: &mut S, key: K, ops: Vec<O>, change: Option<C>) {
        if !self.is_open {
            return self.tell(ops, Outcome::Moved);
        }
        if let Some(line) = self.lines.get_mut(&key) {
            line.is_deciding = false;
        }
        match change {
            None => self.next(&key),
            Some(_) if !self.view.is_enough() => {
                self.tell(ops, Outcome::TooFew);
                self.next(&key);
            }
            Some(change) => self.write(at, key, ops, change),
        }
    }

    fn write<S: Copies<K, C>>(&mut self, at: &mut S, key: K, ops: Vec<O>, change: C) {
        let version = at.next_version(&key, self.view.since);
        let pending = Pending { version, base: at.committed(&key), removes: change.removes() };
        if at.prepare(&key, pending, &change) == Err(NoRoom) {
            self.refuse(&key, ops);
            return self.next(&key);
        }
        let acks = Default::default();
        self.writes.insert(key.clone(), Write { pending, change: Some(change.clone()), ops, acks, is_aborting: false });
        self.note_unacked(&key, version);
        for peer in self.receivers(&key) {
            self.send_prepare(peer, &key, pending, Offer::Change(change.clone()));
        }
        self.end(at, &key);
    }

    /// Up to where the member may commit, if it does not know; called when a link was silent for 1 ms.
    pub fn settle(&mut self, peer: NodeId) {
        let Some(link) = self.links.get_mut(&peer).filter(|link| link.owes_settle()) else { return };
        let (epoch, settled) = (self.view.epoch, link.settle());
        self.send(peer, Message::Settle { epoch, settled });
    }

    /// Whether [`Part::settle`] has something to tell this node.
    pub fn owes_settle(&self, peer: NodeId) -> bool {
        self.leads() && self.links.get(&peer).is_some_and(|link| link.owes_settle())
    }

    /// A new view with this node as its primary.
    pub(super) fn lead<S: Copies<K, C>>(&mut self, at: &mut S, old: &View) {
        if old.primary != self.me || old.since != self.view.since {
            if old.primary == self.me {
                self.resign();
            }
            self.take_over(at);
        }
        self.resolving.clear();
        if !bugs::has(Bug::OldAck) {
            self.writes.values_mut().for_each(|write| write.acks.clear());
        }
        let syncing = |view: &View, peer: &NodeId| {
            view.members.get(peer).filter(|member| member.standing == Standing::Syncing).map(|member| member.since)
        };
        let view = &self.view;
        self.targets.retain(|peer, _| syncing(old, peer) == syncing(view, peer));
        let members: Vec<NodeId> = view.members.keys().copied().collect();
        for peer in members {
            if syncing(&self.view, &peer).is_some() {
                self.targets.entry(peer).or_insert_with(Target::new);
            }
            self.adopt(peer);
        }
        self.end_all(at);
    }

    /// What is pending here may have been acknowledged. It is prepared again as it is, and nothing is decided before.
    fn take_over<S: Copies<K, C>>(&mut self, at: &mut S) {
        self.is_open = bugs::has(Bug::EarlyOpen);
        self.targets.clear();
        self.writes.clear();
        for (key, mut pending) in at.pendings() {
            if bugs::has(Bug::ForgottenPending) {
                at.drop_pending(&key);
                continue;
            }
            if bugs::has(Bug::NewVersion) {
                let state = at.whole(&key);
                pending.version = at.next_version(&key, self.view.since);
                at.drop_pending(&key);
                let _ = at.prepare(&key, pending, &state);
            }
            let (ops, acks) = (Vec::new(), Default::default());
            self.writes.insert(key, Write { pending, change: None, ops, acks, is_aborting: false });
        }
    }

    /// The view goes to a member, and nothing else before it has adopted it.
    pub(super) fn adopt(&mut self, peer: NodeId) {
        self.links.entry(peer).or_default().restart();
        let view = self.view.clone();
        self.send(peer, Message::Adopt { view });
    }

    /// A member obeys this epoch, and told what is pending there. All under way goes to it, and what is not under way
    /// here is resolved there: committed, if that is what is committed here, else dropped.
    pub(super) fn adopted<S: Copies<K, C>>(
        &mut self,
        at: &mut S,
        from: NodeId,
        epoch: GroupEpoch,
        theirs: &[(K, Pending)],
    ) {
        let is_member = self.leads_in(epoch) && self.view.members.contains_key(&from);
        let Some(link) = self.links.get_mut(&from).filter(|_| is_member) else { return };
        link.is_ready = true;
        self.resolving.retain(|(peer, ..)| *peer != from);
        for (key, pending) in theirs {
            if at.pending(key).is_none_or(|mine| mine.version != pending.version) {
                self.resolve(at, from, key, *pending);
            }
        }
        self.resume(at, from, theirs);
        let keys: Vec<K> = self.writes.keys().cloned().collect();
        for key in &keys {
            let there = theirs.iter().find(|(theirs, _)| theirs == key).map(|(_, pending)| pending.version);
            self.go_again(from, key, there);
        }
        self.end_all(at);
    }

    fn resolve<S: Copies<K, C>>(&mut self, at: &S, peer: NodeId, key: &K, theirs: Pending) {
        if bugs::has(Bug::HigherCommits) || bugs::has(Bug::LostSettle) {
            return;
        }
        // Absence alone says little: what is pending here may be what theirs removes.
        let follows = at.pending(key).is_some_and(|mine| mine.version < theirs.version);
        let commit = at.committed(key) == theirs.makes() && (!follows || bugs::has(Bug::RemovedAhead));
        let commit = commit && !bugs::has(Bug::DropCommitted);
        let (epoch, version) = (self.view.epoch, theirs.version);
        if self.needs(peer) {
            self.resolving.insert((peer, key.clone(), version));
        }
        self.send(peer, Message::Resolve { epoch, key: key.clone(), version, commit });
    }

    /// A write under way goes to a member that has `there` pending.
    fn go_again(&mut self, peer: NodeId, key: &K, there: Option<Version>) {
        let gets = self.gets(peer, key);
        let Some(write) = self.writes.get_mut(key).filter(|_| gets) else { return };
        let is_there = there == Some(write.pending.version);
        if write.is_aborting && is_there {
            return self.send_abort(peer, key);
        }
        if write.is_aborting || is_there {
            write.acks.insert(peer);
        }
        if !write.is_aborting {
            let offer = match &write.change {
                Some(change) if !is_there => Offer::Change(change.clone()),
                _ => Offer::Name,
            };
            let pending = write.pending;
            self.send_prepare(peer, key, pending, offer);
        }
    }

    /// A member's answer about one entry.
    pub(super) fn answer<S: Copies<K, C>>(
        &mut self,
        at: &mut S,
        from: NodeId,
        epoch: GroupEpoch,
        about: (K, Version),
        verdict: Verdict,
    ) {
        if !(self.leads_in(epoch) || bugs::has(Bug::OldAck) && self.leads()) {
            return;
        }
        let (key, version) = &about;
        match verdict {
            Verdict::Prepared => self.acked(at, from, about, false),
            Verdict::Aborted => self.acked(at, from, about, true),
            Verdict::Refused => self.refused(at, from, key, *version),
            Verdict::NeedWhole => self.need_whole(at, from, key, *version),
            Verdict::Copied => self.copied(at, from),
            Verdict::CopyRefused => self.fail(from),
            Verdict::Resolved => {
                self.resolving.remove(&(from, key.clone(), *version));
                self.open(at);
            }
        }
    }

    fn acked<S: Copies<K, C>>(&mut self, at: &mut S, from: NodeId, about: (K, Version), aborted: bool) {
        let (key, version) = &about;
        let is_live = self.writes.get(key).is_some_and(|write| write.pending.version == *version);
        if let Some(write) = self.writes.get_mut(key)
            && write.pending.version == *version
            && write.is_aborting == aborted
        {
            write.acks.insert(from);
        }
        if let Some(target) = self.targets.get_mut(&from) {
            target.acked(key, *version, !is_live && !aborted);
        }
        self.end(at, &about.0);
        self.go_on(at);
    }

    fn refused<S: Copies<K, C>>(&mut self, at: &mut S, from: NodeId, key: &K, version: Version) {
        if !self.needs(from) {
            return self.fail(from);
        }
        let Some(write) = self.writes.get_mut(key) else { return };
        if write.pending.version != version || write.is_aborting {
            return;
        }
        write.is_aborting = true;
        write.acks.clear();
        write.acks.insert(from);
        let ops = if bugs::has(Bug::EarlyRefusal) { std::mem::take(&mut write.ops) } else { Vec::new() };
        self.tell(ops, Outcome::Full);
        for peer in self.receivers(key) {
            self.send_abort(peer, key);
        }
        self.end(at, key);
    }

    fn need_whole<S: Copies<K, C>>(&mut self, at: &mut S, from: NodeId, key: &K, version: Version) {
        match self.writes.get(key) {
            Some(write) if write.pending.version == version => {
                if !write.is_aborting {
                    let (pending, state) = (write.pending, at.whole(key));
                    self.send_prepare(from, key, pending, Offer::Whole(state));
                }
            }
            _ => {
                let about = (key.clone(), version);
                if self.targets.get(&from).is_some_and(|target| target.unacked.contains(&about)) {
                    self.send_committed(at, from, key, version);
                }
            }
        }
    }

    pub(super) fn send_prepare(&mut self, to: NodeId, key: &K, write: Pending, offer: Offer<C>) {
        let Some(link) = self.links.get_mut(&to) else { return };
        let (serial, settled) = link.send(key.clone(), write.version);
        if let Some(target) = self.targets.get_mut(&to) {
            target.unacked.insert((key.clone(), write.version));
        }
        let epoch = self.view.epoch;
        self.send(to, Message::Prepare { epoch, serial, settled, key: key.clone(), write, offer });
    }

    fn send_abort(&mut self, to: NodeId, key: &K) {
        let Some(link) = self.links.get_mut(&to) else { return };
        let Some(write) = self.writes.get(key) else { return };
        let (epoch, settled, version) = (self.view.epoch, link.settle(), write.pending.version);
        self.send(to, Message::Abort { epoch, settled, key: key.clone(), version });
    }

    /// Whether writes wait for this member.
    fn needs(&self, peer: NodeId) -> bool {
        match self.view.members.get(&peer).map(|member| member.standing) {
            Some(Standing::Backup | Standing::Joining) => true,
            Some(Standing::Syncing) => self.waits_for_target(peer),
            None => false,
        }
    }

    /// Whether writes of this key are sent to this member.
    fn gets(&self, peer: NodeId, key: &K) -> bool {
        self.needs(peer) || self.targets.get(&peer).is_some_and(|target| target.gets(key))
    }

    /// Who is sent writes of this key now; the others get them when they have adopted.
    fn receivers(&self, key: &K) -> Vec<NodeId> {
        let is_ready = |peer: &NodeId| self.links.get(peer).is_some_and(|link| link.is_ready);
        self.view.members.keys().copied().filter(|peer| is_ready(peer) && self.gets(*peer, key)).collect()
    }

    fn end_all<S: Copies<K, C>>(&mut self, at: &mut S) {
        let keys: Vec<K> = self.writes.keys().cloned().collect();
        keys.iter().for_each(|key| self.end(at, key));
        self.open(at);
        self.go_on(at);
    }

    /// Ends a write if all it needs have answered.
    fn end<S: Copies<K, C>>(&mut self, at: &mut S, key: &K) {
        let Some(write) = self.writes.get(key) else { return };
        let is_acked = |peer: &NodeId| !self.needs(*peer) || write.acks.contains(peer);
        let few = bugs::has(Bug::AckBelowK) && !write.acks.is_empty();
        if !few && !self.view.members.keys().all(is_acked) || !write.is_aborting && !self.view.is_enough() {
            return;
        }
        let Some(write) = self.writes.remove(key) else { return };
        let version = write.pending.version;
        self.links.values_mut().for_each(|link| link.done(key, version));
        if write.is_aborting {
            for target in self.targets.values_mut() {
                target.unacked.remove(&(key.clone(), version));
            }
            at.drop_pending(key);
            self.refuse(key, write.ops);
        } else {
            at.commit(key);
            for target in self.targets.values_mut() {
                if !target.unacked.contains(&(key.clone(), version)) {
                    target.acked(key, version, true);
                }
            }
            self.tell(write.ops, Outcome::Done(version));
        }
        self.next(key);
        self.open(at);
        self.go_on(at);
    }

    /// Operations that were refused: alone, that is the answer; together, each is tried for itself.
    fn refuse(&mut self, key: &K, ops: Vec<O>) {
        if ops.len() > 1 {
            return self.lines.entry(key.clone()).or_default().push_first(ops);
        }
        self.tell(ops, Outcome::Full);
    }

    /// Has the operations decided that wait for an entry, if nothing is under way there.
    fn next(&mut self, key: &K) {
        if !self.is_open || self.writes.contains_key(key) {
            return;
        }
        let Some(line) = self.lines.get_mut(key).filter(|line| !line.is_deciding) else { return };
        if line.is_empty() {
            self.lines.remove(key);
            return;
        }
        line.is_deciding = true;
        let ops = line.take();
        self.out.push(Effect::Decide(key.clone(), ops));
    }

    /// Serves, once all needed members obey and nothing is left of the primary before.
    fn open<S: Copies<K, C>>(&mut self, at: &mut S) {
        let is_ready = |peer: &NodeId| !self.needs(*peer) || self.links.get(peer).is_some_and(|link| link.is_ready);
        if self.is_open || !self.leads() || !self.writes.is_empty() || !self.resolving.is_empty() {
            return;
        }
        if self.view.members.keys().all(is_ready) {
            self.is_open = true;
            let keys: Vec<K> = self.lines.keys().cloned().collect();
            keys.iter().for_each(|key| self.next(key));
            self.go_on(at);
        }
    }
}
