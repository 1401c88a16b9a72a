//! What a part does as the primary: it decides one write of an entry after the other, and a write ends when all
//! members it needs have said so in its epoch.

use super::bugs::{self, Bug};
use super::link::Link;
use super::target::Target;
use super::unacked::counted;
use super::write::{Why, Write};
use super::{
    Change, Copies, Departure, Effect, GroupEpoch, Member, Message, NodeId, Offer, Outcome, Part, Pending, Refusal,
};
use super::{Standing, Verdict, View};
use crate::entry::Version;
use crate::limits::{PART_BYTES_MAX, PART_OPS_MAX};

impl<K: Ord + Clone, C: Change, O> Part<K, C, O> {
    /// An operation that may change an entry. It is decided at once, or stands in line behind the write under way.
    pub fn ask(&mut self, key: K, op: O) {
        if !self.leads() || self.ops >= PART_OPS_MAX {
            let outcome = if self.leads() { Outcome::Busy } else { Outcome::Moved };
            return self.out.push(Effect::Answer(vec![op], outcome));
        }
        self.ops += 1;
        self.lines.entry(key.clone()).or_default().push(op);
        self.next(&key);
    }

    /// Takes out of their lines the operations of which `is_late` says so: nothing of them was begun.
    pub fn withdraw(&mut self, mut is_late: impl FnMut(&O) -> bool) -> Vec<O> {
        let mut late = Vec::new();
        self.lines.values_mut().for_each(|line| line.withdraw(&mut is_late, &mut late));
        self.lines.retain(|_, line| line.is_deciding || !line.is_empty());
        self.ops -= late.len();
        late
    }

    /// Operations that were to be decided come next instead, in this order: called before [`Part::begin`] tells what
    /// the others came to.
    pub fn put_back(&mut self, key: &K, ops: Vec<O>) {
        if !ops.is_empty() {
            self.ops += ops.len();
            self.lines.entry(key.clone()).or_default().put_back(ops);
        }
    }

    /// What operations came to: a change, or none, of which nobody needs to hear.
    pub fn begin<S: Copies<K, C>>(&mut self, at: &mut S, key: K, ops: Vec<O>, change: Option<C>) {
        self.ops += ops.len();
        if !self.is_open {
            return self.tell(ops, Outcome::Moved);
        }
        if let Some(line) = self.lines.get_mut(&key) {
            line.is_deciding = false;
        }
        match change {
            None => self.ops -= ops.len(),
            Some(_) if bugs::has(Bug::DecidedBeside) && self.writes.contains_key(&key) => {
                return self.lines.entry(key).or_default().push_first(ops);
            }
            Some(_) if !self.view.is_enough() => self.tell(ops, Outcome::TooFew),
            Some(change) if self.is_full(change.size_bytes()) => self.tell(ops, Outcome::Busy),
            Some(change) => return self.write(at, key, ops, change),
        }
        self.next(&key);
    }

    /// Whether a change of so many bytes is too much beside what is under way.
    fn is_full(&self, size_bytes: u64) -> bool {
        let is_long = |member: &Member| {
            let link = self.links.get(&member.node);
            link.is_some_and(|link| link.unsettled() >= PART_OPS_MAX)
        };
        self.bytes + counted(size_bytes) > PART_BYTES_MAX || self.view.members.iter().any(is_long)
    }

    fn write<S: Copies<K, C>>(&mut self, at: &mut S, key: K, ops: Vec<O>, change: C) {
        let version = at.next_version(&key, self.view.since);
        let pending = Pending { version, base: at.state(&key).committed, removes: change.removes() };
        if let Err(refusal) = at.prepare(&key, pending, &change) {
            self.refuse(&key, ops, (self.me, refusal));
            return self.next(&key);
        }
        self.bytes += counted(change.size_bytes());
        self.writes.insert(key.clone(), Write::new(pending, Some(change.clone()), ops));
        self.note_unacked(&key, version, change.size_bytes());
        for member in 0..self.view.members.len() {
            if let Some(peer) = self.receiver(member, &key) {
                self.send_prepare(peer, &key, pending, Offer::Change(change.clone()));
            }
        }
        self.end(at, &key);
    }

    /// Whether a write of so many bytes may begin at once, by [`Part::begin_prepared`]: nothing of its entry waits or
    /// is under way, all members have the view, and none is syncing.
    pub fn takes_at_once(&self, key: &K, size_bytes: u64) -> bool {
        let is_ready = |member: &Member| self.links.get(&member.node).is_some_and(|link| link.is_ready);
        let has_room = || self.ops < PART_OPS_MAX && !self.is_full(size_bytes);
        let is_open = self.is_open && self.targets.is_empty() && self.view.is_enough();
        is_open && self.view.members.iter().all(is_ready) && has_room() && !self.is_busy(key)
    }

    /// Whether an operation on an entry would stand behind others.
    pub fn is_busy(&self, key: &K) -> bool {
        self.writes.contains_key(key) || self.lines.contains_key(key)
    }

    /// A write that the caller has decided and prepared here, where [`Part::takes_at_once`]: a short way for what needs
    /// no decision. Its prepares are told to `send` and not kept: a member that must be told once more is sent the
    /// write's name, and if it has it not, the whole.
    pub fn begin_prepared<S: Copies<K, C>>(
        &mut self,
        at: &mut S,
        (key, pending, size_bytes): (&K, Pending, u64),
        op: O,
        mut send: impl FnMut(Departure),
    ) {
        self.ops += 1;
        self.bytes += counted(size_bytes);
        let mut write = Write::prepared(pending, size_bytes, op);
        for member in &self.view.members {
            let Some(link) = self.links.get_mut(&member.node) else { continue };
            let (serial, settled) = link.send();
            write.send(member.node, serial);
            let (to, generation) = (member.node, link.generation);
            send(Departure { to, generation, epoch: self.view.epoch, serial, settled });
        }
        self.writes.insert(key.clone(), write);
        self.end(at, key);
    }

    /// Up to where the member may commit, if it does not know; called when a link was silent for a few ms.
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
        let led = old.is_led_by(self.me);
        if !led || old.since != self.view.since {
            if led {
                self.resign();
            }
            self.take_over(at);
        }
        self.resolving.clear();
        if !bugs::has(Bug::OldAck) {
            self.writes.values_mut().for_each(Write::forget_acks);
        }
        let syncing = |view: &View, peer: &NodeId| {
            view.member(*peer).filter(|member| member.standing == Standing::Syncing).map(|member| member.since)
        };
        let view = &self.view;
        self.targets.retain(|peer, _| syncing(old, peer) == syncing(view, peer));
        for member in 0..self.view.members.len() {
            let peer = self.view.members[member].node;
            if syncing(&self.view, &peer).is_some() {
                self.targets.entry(peer).or_insert_with(Target::new);
            }
            self.adopt(peer);
        }
        self.rounds.forget();
        self.end_all(at);
    }

    /// What is pending here may have been acknowledged. It is prepared again as it is, and nothing is decided before.
    fn take_over<S: Copies<K, C>>(&mut self, at: &mut S) {
        self.is_open = bugs::has(Bug::EarlyOpen);
        self.targets.clear();
        self.writes.clear();
        at.sift();
        for (key, mut pending) in at.pendings() {
            if bugs::has(Bug::ForgottenPending) {
                at.end(&key, pending.version, false);
                continue;
            }
            if bugs::has(Bug::NewVersion) {
                let state = at.whole(&key);
                at.end(&key, pending.version, false);
                pending.version = at.next_version(&key, self.view.since);
                let _ = at.prepare(&key, pending, &state);
            }
            self.writes.insert(key, Write::new(pending, None, Vec::new()));
        }
        self.out.push(Effect::TookOver(self.writes.len()));
    }

    /// The view goes to a member, and nothing else before it has adopted it.
    pub(super) fn adopt(&mut self, peer: NodeId) {
        self.links.entry(peer).or_insert_with(|| Link::down(0)).restart();
        self.writes.values_mut().for_each(|write| write.forget_serial(peer));
        let view = self.view.clone();
        self.send(peer, Message::Adopt { view });
    }

    /// A member obeys this epoch, and told what is pending there. With the last of it all under way goes to it, and
    /// what is not under way here is resolved there: committed, if that is what is committed here, else dropped.
    pub(super) fn adopted<S: Copies<K, C>>(
        &mut self,
        at: &mut S,
        from: NodeId,
        epoch: GroupEpoch,
        pending: Vec<(K, Pending)>,
        is_last: bool,
    ) {
        let is_member = self.leads_in(epoch) && self.view.member(from).is_some();
        let Some(link) = self.links.get_mut(&from).filter(|link| is_member && !link.is_ready) else { return };
        link.theirs.extend(pending);
        if !is_last && !bugs::has(Bug::FirstForAll) {
            return;
        }
        link.is_ready = true;
        let theirs = std::mem::take(&mut link.theirs);
        self.resolving.retain(|(peer, ..)| *peer != from);
        for (key, pending) in &theirs {
            if self.writes.get(key).is_none_or(|mine| mine.pending.version != pending.version) {
                self.resolve(at, from, key, *pending);
            }
        }
        self.resume(at, from, &theirs);
        let keys: Vec<K> = self.writes.keys().cloned().collect();
        for key in &keys {
            self.go_again(at, from, key, theirs.get(key).map(|pending| pending.version));
        }
        self.end_all(at);
    }

    fn resolve<S: Copies<K, C>>(&mut self, at: &mut S, peer: NodeId, key: &K, theirs: Pending) {
        if bugs::has(Bug::HigherCommits) || bugs::has(Bug::LostSettle) {
            return;
        }
        let here = at.state(key);
        // A flush has ended it here, and ends it there. It may be acknowledged: until then nothing older is read.
        if here.is_over && !bugs::has(Bug::ResolvedOver) {
            return;
        }
        if theirs.removes && theirs.base == 0 && here.committed == 0 && here.pending.is_none() && self.gets(peer, key) {
            return self.tell_absence(at, peer, key);
        }
        // Absence alone says little: what is pending here may be what theirs removes.
        let follows = here.pending.is_some_and(|mine| mine.version < theirs.version);
        let commit = here.committed == theirs.makes() && (!follows || bugs::has(Bug::RemovedAhead));
        let commit = commit && !bugs::has(Bug::DropCommitted);
        let (epoch, version) = (self.view.epoch, theirs.version);
        if self.needs(peer) {
            self.resolving.insert((peer, key.clone(), version));
        }
        self.send(peer, Message::Resolve { epoch, key: key.clone(), version, commit });
    }

    /// A member has a write pending where nothing was, and nothing is here: the token that it leaves has no version to
    /// tell it from the one that is left here. So the whole state follows it, as a write of its own that is settled.
    fn tell_absence<S: Copies<K, C>>(&mut self, at: &mut S, peer: NodeId, key: &K) {
        let version = at.next_version(key, self.view.since);
        let absent = Pending { version, base: 0, removes: true };
        let serial = self.send_prepare(peer, key, absent, Offer::Whole(at.whole_committed(key)));
        self.links.get_mut(&peer).into_iter().for_each(|link| link.done(serial));
        if self.needs(peer) {
            self.resolving.insert((peer, key.clone(), version));
        }
    }

    /// A write under way goes to a member that has `there` pending. To who is not waited for, what follows the write is
    /// sent before it could ask for the whole, so it gets that at once.
    fn go_again<S: Copies<K, C>>(&mut self, at: &mut S, peer: NodeId, key: &K, there: Option<Version>) {
        let (gets, needs) = (self.gets(peer, key), self.needs(peer));
        let Some(write) = self.writes.get_mut(key).filter(|_| gets) else { return };
        let is_there = there == Some(write.pending.version);
        let is_aborting = write.aborting.is_some();
        if is_aborting && is_there {
            return self.send_abort(peer, key);
        }
        if is_aborting || is_there {
            write.ack(peer);
        }
        if !is_aborting {
            let lacks_all = write.change.is_none() && !is_there;
            if lacks_all && !needs && !bugs::has(Bug::NamedAtCopy) {
                return self.send_whole(at, peer, key);
            }
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
        if self.resolving.remove(&(from, key.clone(), *version)) {
            self.open(at);
        }
        match verdict {
            Verdict::Prepared => self.acked(at, from, about, false),
            Verdict::Aborted => self.acked(at, from, about, true),
            Verdict::Refused(refusal) => self.refused(at, from, key, *version, refusal),
            Verdict::NeedWhole => self.need_whole(at, from, key, *version),
            Verdict::Copied => self.copied(at, from, key),
            Verdict::CopyRefused => self.fail(from),
            Verdict::Resolved => {}
        }
    }

    fn acked<S: Copies<K, C>>(&mut self, at: &mut S, from: NodeId, about: (K, Version), aborted: bool) {
        let (key, version) = &about;
        let is_live = self.writes.get(key).is_some_and(|write| write.pending.version == *version);
        if let Some(write) = self.writes.get_mut(key)
            && write.pending.version == *version
            && write.aborting.is_some() == aborted
        {
            write.ack(from);
        }
        if let Some(target) = self.targets.get_mut(&from) {
            target.acked(key, *version, !is_live && !aborted);
        }
        self.end(at, &about.0);
        self.go_on(at);
    }

    fn refused<S: Copies<K, C>>(&mut self, at: &mut S, from: NodeId, key: &K, version: Version, refusal: Refusal) {
        if !self.needs(from) {
            return self.fail(from);
        }
        if self.writes.get(key).is_some_and(|write| write.pending.version == version && write.aborting.is_none()) {
            self.abort(at, from, key, Why::Refused(from, refusal));
        }
    }

    /// The write under way is to be dropped everywhere; one member does not hold it.
    pub(super) fn abort<S: Copies<K, C>>(&mut self, at: &mut S, from: NodeId, key: &K, why: Why) {
        let Some(write) = self.writes.get_mut(key) else { return };
        write.aborting = Some(why);
        write.forget_acks();
        write.ack(from);
        if let Why::Refused(node, refusal) = why
            && bugs::has(Bug::EarlyRefusal)
        {
            let ops = std::mem::take(&mut write.ops);
            self.tell(ops, Outcome::Refused(node, refusal));
        }
        for member in 0..self.view.members.len() {
            if let Some(peer) = self.receiver(member, key) {
                self.send_abort(peer, key);
            }
        }
        self.end(at, key);
    }

    fn need_whole<S: Copies<K, C>>(&mut self, at: &mut S, from: NodeId, key: &K, version: Version) {
        match self.writes.get(key) {
            Some(write) if write.pending.version == version => {
                self.send_whole(at, from, key);
            }
            _ => {
                if self.targets.get(&from).is_some_and(|target| target.unacked.contains(key, version)) {
                    self.send_committed(at, from, key, version);
                }
            }
        }
    }

    /// The write under way of an entry, if there is one, with the whole state it makes. Where a flush has ended that
    /// state the write ends everywhere if the member is waited for: it would have the write, had that been acknowledged
    /// in its life. A member that is not waited for gets the absence that the flush has made, and the write goes on.
    pub(super) fn send_whole<S: Copies<K, C>>(&mut self, at: &mut S, to: NodeId, key: &K) {
        let Some(write) = self.writes.get(key).filter(|write| write.aborting.is_none()) else { return };
        // In this order: a flush that comes between is seen.
        let (mut pending, state, here) = (write.pending, at.whole(key), at.state(key));
        let is_gone = here.is_over || here.pending.is_none_or(|there| there.version != pending.version);
        if is_gone && !bugs::has(Bug::WholeOfNothing) {
            if self.needs(to) {
                return self.abort(at, to, key, Why::Over);
            }
            (pending.base, pending.removes) = (0, state.removes());
        }
        self.send_prepare(to, key, pending, Offer::Whole(state));
    }

    /// Sends a prepare; its serial. If the write went to the member before, that one is done with: the member has not
    /// kept it.
    pub(super) fn send_prepare(&mut self, to: NodeId, key: &K, write: Pending, offer: Offer<C>) -> u64 {
        let Some(link) = self.links.get_mut(&to) else { return 0 };
        let (serial, settled) = link.send();
        if let Some(live) = self.writes.get_mut(key).filter(|live| live.pending.version == write.version) {
            link.done(live.send(to, serial));
        }
        if let Some(target) = self.targets.get_mut(&to) {
            target.unacked.insert(key, write.version, offer.size_bytes());
        }
        let epoch = self.view.epoch;
        self.send(to, Message::Prepare { epoch, serial, settled, key: key.clone(), write, offer });
        serial
    }

    fn send_abort(&mut self, to: NodeId, key: &K) {
        let Some(link) = self.links.get_mut(&to) else { return };
        let Some(write) = self.writes.get(key) else { return };
        let (epoch, settled, version) = (self.view.epoch, link.settle(), write.pending.version);
        self.send(to, Message::Abort { epoch, settled, key: key.clone(), version });
    }

    /// Whether writes wait for this member.
    pub(super) fn needs(&self, peer: NodeId) -> bool {
        match self.view.member(peer).map(|member| member.standing) {
            Some(Standing::Backup | Standing::Joining) => true,
            Some(Standing::Syncing) => self.waits_for_target(peer),
            None => false,
        }
    }

    /// Whether writes of this key are sent to this member.
    fn gets(&self, peer: NodeId, key: &K) -> bool {
        self.needs(peer) || self.targets.get(&peer).is_some_and(|target| target.gets(key))
    }

    /// The member at this place of the view, if it is sent writes of this key now; else it gets them when it has
    /// adopted.
    fn receiver(&self, member: usize, key: &K) -> Option<NodeId> {
        let peer = self.view.members.get(member)?.node;
        let is_ready = self.links.get(&peer).is_some_and(|link| link.is_ready);
        (is_ready && self.gets(peer, key)).then_some(peer)
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
        let is_acked = |member: &Member| !self.needs(member.node) || write.has_ack(member.node);
        let few = bugs::has(Bug::AckBelowK) && write.has_acks();
        let is_enough = write.aborting.is_some() || self.view.is_enough();
        if !is_enough || !few && !self.view.members.iter().all(is_acked) {
            return;
        }
        let Some(write) = self.writes.remove(key) else { return };
        self.bytes -= counted(write.size_bytes);
        for (peer, serial) in write.serials() {
            self.links.entry(peer).and_modify(|link| link.done(serial));
        }
        match write.aborting {
            Some(why) => self.dropped(at, key, write, why),
            None => self.committed(at, key, write),
        }
        self.next(key);
        self.open(at);
        self.go_on(at);
    }

    fn dropped<S: Copies<K, C>>(&mut self, at: &mut S, key: &K, write: Write<C, O>, why: Why) {
        let version = write.pending.version;
        self.targets.values_mut().for_each(|target| target.unacked.remove(key, version));
        at.end(key, version, false);
        match why {
            Why::Refused(node, refusal) => self.refuse(key, write.ops, (node, refusal)),
            Why::Over => self.lines.entry(key.clone()).or_default().push_first(write.ops),
        }
    }

    fn committed<S: Copies<K, C>>(&mut self, at: &mut S, key: &K, write: Write<C, O>) {
        let version = write.pending.version;
        at.end(key, version, true);
        self.targets.values_mut().for_each(|target| target.committed(key, version));
        self.tell(write.ops, Outcome::Done(version));
    }

    /// Operations that were refused: alone, that is the answer; together, each is tried for itself.
    fn refuse(&mut self, key: &K, ops: Vec<O>, (node, refusal): (NodeId, Refusal)) {
        if ops.len() > 1 {
            return self.lines.entry(key.clone()).or_default().push_first(ops);
        }
        self.tell(ops, Outcome::Refused(node, refusal));
    }

    /// Has the operations decided that wait for an entry, if nothing is under way there.
    fn next(&mut self, key: &K) {
        if !self.is_open || self.writes.contains_key(key) && !bugs::has(Bug::DecidedBeside) {
            return;
        }
        let Some(line) = self.lines.get_mut(key).filter(|line| !line.is_deciding) else { return };
        if line.is_empty() {
            self.lines.remove(key);
            return;
        }
        line.is_deciding = true;
        let ops = line.take();
        self.ops -= ops.len();
        self.out.push(Effect::Decide(key.clone(), ops));
    }

    /// Serves, once all needed members obey and nothing is left of the primary before.
    pub(super) fn open<S: Copies<K, C>>(&mut self, at: &mut S) {
        let has_adopted = |peer: &NodeId| self.links.get(peer).is_some_and(|link| link.is_ready);
        let is_ready = |member: &Member| !self.needs(member.node) || has_adopted(&member.node);
        let is_busy = self.is_clearing || !self.writes.is_empty() || !self.resolving.is_empty();
        if self.is_open || !self.leads() || is_busy {
            return;
        }
        if self.view.members.iter().all(is_ready) {
            self.is_open = true;
            let keys: Vec<K> = self.lines.keys().cloned().collect();
            keys.iter().for_each(|key| self.next(key));
            self.go_on(at);
        }
    }
}
