//! One loop's part in one group: what comes in, and the change from one view to the next. What it does as the primary
//! is in `primary.rs` and `target.rs`, what it does as a member in `member.rs`.

use super::bugs::{self, Bug};
use super::confirm::Rounds;
use super::link::Link;
use super::target::Target;
use super::write::{Line, Write};
use super::{Change, Copies, Effect, GroupEpoch, Message, NodeId, Outcome, Standing, View};
use crate::entry::Version;
use std::collections::{BTreeMap, BTreeSet};

/// A part in a group. `K` is a key, `C` a [`Change`], `O` whatever tells the caller which operation is meant. Keys and
/// changes are cloned for each member.
///
/// An operation whose key is over ([`Copies::is_over`]) when it is to be decided is asked again under the present key.
/// After each call the caller carries out [`Part::effects`], in order, before the next.
#[derive(Clone, Debug, Hash)]
pub struct Part<K: Ord, C, O> {
    pub(super) me: NodeId,
    pub(super) view: View,
    /// Whether this is the primary, and its take-over is done.
    pub(super) is_open: bool,
    /// Whether what is here of the group is being dropped.
    pub(super) is_clearing: bool,
    pub(super) links: BTreeMap<NodeId, Link<K>>,
    pub(super) writes: BTreeMap<K, Write<C, O>>,
    pub(super) lines: BTreeMap<K, Line<O>>,
    /// Who is syncing, at the primary.
    pub(super) targets: BTreeMap<NodeId, Target<K>>,
    /// What reads wait for, at the primary.
    pub(super) rounds: Rounds,
    /// What members were told to resolve and have not yet.
    pub(super) resolving: BTreeSet<(NodeId, K, Version)>,
    /// Operations in lines and writes.
    pub(super) ops: usize,
    /// Bytes of the changes under way.
    pub(super) bytes: u64,
    pub(super) out: Vec<Effect<K, C, O>>,
}

impl<K: Ord + Clone, C: Change, O> Part<K, C, O> {
    /// The part of a node that knows of no view yet. A node that lost its memory comes back under its number; the map
    /// then names it since another epoch, and in no view since before does anybody make it more than it was. What it
    /// says until its primary has that map counts as if its earlier life had said it just before it ended.
    pub fn new(me: NodeId) -> Self {
        Self {
            me,
            view: View::none(),
            is_open: false,
            is_clearing: false,
            links: BTreeMap::new(),
            writes: BTreeMap::new(),
            lines: BTreeMap::new(),
            targets: BTreeMap::new(),
            rounds: Rounds::default(),
            resolving: BTreeSet::new(),
            ops: 0,
            bytes: 0,
            out: Vec::new(),
        }
    }

    /// Whether all writes come by here: it is the primary, or each write waits for it.
    pub fn is_waited_for(&self) -> bool {
        let member = self.view.member(self.me);
        self.leads() || member.is_some_and(|member| member.standing != Standing::Syncing)
    }

    /// The view it is in.
    pub fn view(&self) -> &View {
        &self.view
    }

    /// Whether it decides: it is the primary, and its take-over is done.
    pub fn is_open(&self) -> bool {
        self.is_open
    }

    /// Whether operations stand in line here, or are under way.
    pub fn has_ops(&self) -> bool {
        self.ops > 0
    }

    /// Writes of its own that wait for members.
    pub fn pending(&self) -> usize {
        self.writes.len()
    }

    /// What is to be done now; takes it out.
    pub fn effects(&mut self) -> Vec<Effect<K, C, O>> {
        self.go_on_confirming();
        std::mem::take(&mut self.out)
    }

    /// As [`Part::effects`], into a list that is empty, whose room is used again.
    pub fn effects_into(&mut self, list: &mut Vec<Effect<K, C, O>>) {
        self.go_on_confirming();
        std::mem::swap(&mut self.out, list);
    }

    /// A link to this node is there, in place of all older ones, by the generation that tells them apart. The node that
    /// was dialled calls this once the second hello has proved who it is, before it serves anything of it; the one that
    /// dialled when it has sent its own.
    pub fn link_up(&mut self, peer: NodeId, generation: u64) {
        self.links.insert(peer, Link::new(generation));
        if self.leads() && self.view.member(peer).is_some() {
            self.adopt(peer);
        }
    }

    /// The link of this generation broke.
    pub fn link_down(&mut self, peer: NodeId, generation: u64) {
        if let Some(link) = self.links.get_mut(&peer).filter(|link| link.generation == generation) {
            (link.is_up, link.is_ready) = (false, false);
        }
    }

    /// Whether what is left to read of a link of this generation is to be read at all.
    pub fn is_current(&self, from: NodeId, generation: u64) -> bool {
        self.links.get(&from).is_some_and(|link| link.is_current(generation))
    }

    /// A message came in over the link of this generation. If that is not the present one the message is dropped: here,
    /// and nowhere else, it is judged, whatever way the message took within the node.
    pub fn receive<S: Copies<K, C>>(&mut self, at: &mut S, from: NodeId, generation: u64, message: Message<K, C>) {
        if !self.is_current(from, generation) {
            return;
        }
        match message {
            Message::Moved { view } => self.take(at, view),
            Message::Adopted { epoch, pending, is_last } => self.adopted(at, from, epoch, pending, is_last),
            Message::Answer { epoch, key, version, verdict } => self.answer(at, from, epoch, (key, version), verdict),
            Message::Confirmed { epoch, round } => self.says_yes(from, epoch, round),
            Message::Adopt { view } => self.obey(at, from, view),
            Message::Prepare { epoch, .. }
            | Message::Abort { epoch, .. }
            | Message::Settle { epoch, .. }
            | Message::Resolve { epoch, .. }
            | Message::Confirm { epoch, .. }
            | Message::Copy { epoch, .. } => {
                if self.obeys(from, epoch) {
                    self.serve(at, from, epoch, message);
                }
            }
        }
    }

    /// A view, from the warden or from a peer. One that is not newer is nothing new.
    pub fn take<S: Copies<K, C>>(&mut self, at: &mut S, view: View) {
        if view.epoch <= self.view.epoch {
            return;
        }
        let old = std::mem::replace(&mut self.view, view);
        if bugs::has(Bug::TwoPrimaries) && old.is_led_by(self.me) {
            let next = std::mem::replace(&mut self.view.primary, self.me);
            let mine = self.view.members.iter_mut().find(|member| member.node == self.me);
            mine.into_iter().for_each(|member| member.node = next);
            self.view.since = old.since;
        }
        self.links.values_mut().for_each(Link::restart);
        self.writes.values_mut().for_each(Write::forget_serials);
        let is_void = old.epoch > 0 && self.view.lost > old.epoch;
        if old.is_led_by(self.me) && (is_void || !self.leads()) {
            self.resign();
        }
        if is_void {
            drop_pendings(at);
            self.clear();
        }
        if self.leads() {
            return self.lead(at, &old);
        }
        let mine = |view: &View| view.member(self.me).map(|member| (member.since, member.standing));
        match (mine(&old), mine(&self.view)) {
            // A copy that is one no more takes the room that its node may need for others.
            (before, None) => {
                drop_pendings(at);
                if before.is_some() || old.is_led_by(self.me) {
                    self.clear();
                }
            }
            (Some((before, _)), Some((since, Standing::Syncing))) if before == since => {}
            (_, Some((_, Standing::Syncing))) => self.clear(),
            (_, Some(_)) => {}
        }
    }

    /// What is here of the group is of no worth. It may be much, so the caller drops it in turns; until that is done a
    /// primary does not open, and a member tells nobody that it obeys.
    fn clear(&mut self) {
        if !std::mem::replace(&mut self.is_clearing, true) {
            self.out.push(Effect::Clear);
        }
    }

    /// Somebody else decides now. What was under way may have been done, or the next primary does it.
    pub(super) fn resign(&mut self) {
        self.is_open = false;
        self.rounds.end();
        self.targets.clear();
        self.resolving.clear();
        self.bytes = 0;
        for (_, write) in std::mem::take(&mut self.writes) {
            self.tell(write.ops, Outcome::Unknown);
        }
        for (_, mut line) in std::mem::take(&mut self.lines) {
            let ops = line.take_all();
            self.tell(ops, Outcome::Moved);
        }
    }

    /// Whether this node is the primary.
    pub fn leads(&self) -> bool {
        self.view.is_led_by(self.me)
    }

    /// Whether this node is the primary of this epoch.
    pub(super) fn leads_in(&self, epoch: GroupEpoch) -> bool {
        self.leads() && self.view.epoch == epoch
    }

    /// Operations leave the part, answered.
    pub(super) fn tell(&mut self, ops: Vec<O>, outcome: Outcome) {
        if !ops.is_empty() {
            self.ops -= ops.len();
            self.out.push(Effect::Answer(ops, outcome));
        }
    }

    pub(super) fn send(&mut self, to: NodeId, message: Message<K, C>) {
        if let Some(link) = self.links.get(&to).filter(|link| link.is_up) {
            self.out.push(Effect::Send(to, link.generation, message));
        }
    }
}

fn drop_pendings<K, C, S: Copies<K, C>>(at: &mut S) {
    at.pendings().iter().for_each(|(key, pending)| at.end(key, pending.version, false));
}
