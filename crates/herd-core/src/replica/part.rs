//! One loop's part in one group: what comes in, and the change from one view to the next. What it does as the primary
//! is in `primary.rs` and `target.rs`, what it does as a member in `member.rs`.

use super::link::Link;
use super::target::Target;
use super::write::{Line, Write};
use super::{Change, Copies, Effect, GroupEpoch, Message, NodeId, Outcome, Standing, View};
use crate::entry::Version;
use std::collections::{BTreeMap, BTreeSet};

/// A part in a group. `K` is a key, `C` a [`Change`], `O` whatever tells the caller which operation is meant.
///
/// After each call the caller carries out [`Part::effects`], in order, before the next.
#[derive(Clone, Debug, Hash)]
pub struct Part<K: Ord, C, O> {
    pub(super) me: NodeId,
    pub(super) view: View,
    /// Whether this is the primary, and its take-over is done.
    pub(super) is_open: bool,
    pub(super) links: BTreeMap<NodeId, Link<K>>,
    pub(super) writes: BTreeMap<K, Write<C, O>>,
    pub(super) lines: BTreeMap<K, Line<O>>,
    /// Who is syncing, at the primary.
    pub(super) targets: BTreeMap<NodeId, Target<K>>,
    /// What members were told to resolve and have not yet.
    pub(super) resolving: BTreeSet<(NodeId, K, Version)>,
    pub(super) out: Vec<Effect<K, C, O>>,
}

impl<K: Ord + Clone, C: Change, O> Part<K, C, O> {
    /// The part of a node that knows of no view yet.
    pub fn new(me: NodeId) -> Self {
        Self {
            me,
            view: View::none(),
            is_open: false,
            links: BTreeMap::new(),
            writes: BTreeMap::new(),
            lines: BTreeMap::new(),
            targets: BTreeMap::new(),
            resolving: BTreeSet::new(),
            out: Vec::new(),
        }
    }

    /// The view it is in.
    pub fn view(&self) -> &View {
        &self.view
    }

    /// Whether it decides: it is the primary, and its take-over is done.
    pub fn is_open(&self) -> bool {
        self.is_open
    }

    /// What is to be done now; takes it out.
    pub fn effects(&mut self) -> Vec<Effect<K, C, O>> {
        std::mem::take(&mut self.out)
    }

    /// A link to this node is there, in place of all older ones. The node that was dialled calls this before it
    /// answers the hello, the one that dialled when it has the answer.
    pub fn link_up(&mut self, peer: NodeId, generation: u32) {
        let link = self.links.entry(peer).or_default();
        *link = Link::new(generation);
        if self.leads() && self.view.members.contains_key(&peer) {
            self.adopt(peer);
        }
    }

    /// The link to this node broke.
    pub fn link_down(&mut self, peer: NodeId) {
        let link = self.links.entry(peer).or_default();
        (link.is_up, link.is_ready) = (false, false);
    }

    /// Whether what is left to read of a link of this generation is to be read at all.
    pub fn is_current(&self, from: NodeId, generation: u32) -> bool {
        self.links.get(&from).is_some_and(|link| link.is_current(generation))
    }

    /// A message came in over the link of this generation.
    pub fn receive<S: Copies<K, C>>(&mut self, at: &mut S, from: NodeId, generation: u32, message: Message<K, C>) {
        if !self.is_current(from, generation) {
            return;
        }
        match message {
            Message::Moved { view } => self.take(at, view),
            Message::Adopted { epoch, pending } => self.adopted(at, from, epoch, &pending),
            Message::Answer { epoch, key, version, verdict } => self.answer(at, from, epoch, (key, version), verdict),
            Message::Adopt { view } => self.obey(at, from, view),
            Message::Prepare { epoch, .. }
            | Message::Abort { epoch, .. }
            | Message::Settle { epoch, .. }
            | Message::Resolve { epoch, .. }
            | Message::Copy { epoch, .. } => {
                if self.obeys(from, epoch) {
                    self.serve(at, from, message);
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
        self.links.values_mut().for_each(Link::restart);
        if self.leads() {
            return self.lead(at, &old);
        }
        if old.primary == self.me {
            self.resign();
        }
        let since = |view: &View| view.members.get(&self.me).map(|member| (member.since, member.standing));
        match (since(&old), since(&self.view)) {
            (_, None) => at.pendings().iter().for_each(|(key, _)| at.drop_pending(key)),
            (Some((before, _)), Some((since, Standing::Syncing))) if before == since => {}
            (_, Some((_, Standing::Syncing))) => at.clear(),
            (_, Some(_)) => at.forget_graves(),
        }
    }

    /// Somebody else decides now. What was under way may have been done, or the next primary does it.
    pub(super) fn resign(&mut self) {
        self.is_open = false;
        self.targets.clear();
        self.resolving.clear();
        for (_, write) in std::mem::take(&mut self.writes) {
            self.tell(write.ops, Outcome::Unknown);
        }
        for (_, mut line) in std::mem::take(&mut self.lines) {
            let ops = line.take_all();
            self.tell(ops, Outcome::Moved);
        }
    }

    /// Whether this node is the primary.
    pub(super) fn leads(&self) -> bool {
        self.view.primary == self.me && self.view.epoch > 0
    }

    /// Whether this node is the primary of this epoch.
    pub(super) fn leads_in(&self, epoch: GroupEpoch) -> bool {
        self.leads() && self.view.epoch == epoch
    }

    pub(super) fn tell(&mut self, ops: Vec<O>, outcome: Outcome) {
        if !ops.is_empty() {
            self.out.push(Effect::Answer(ops, outcome));
        }
    }

    pub(super) fn send(&mut self, to: NodeId, message: Message<K, C>) {
        if self.links.get(&to).is_some_and(|link| link.is_up) {
            self.out.push(Effect::Send(to, message));
        }
    }
}
