//! A group in a test: nodes, the links between them, a warden, and what must hold after every step.

use super::shared::Shared;
use super::store::{Key, Store, Val};
use super::walk::seen;
use crate::entry::Version;
use crate::replica::{Effect, Member, Message, NodeId, Outcome, Part, Standing, Verdict, View, Want};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// An operation: its number, from 1, is what it writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    Put,
    Range(usize),
    Remove,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Op {
    pub(super) id: u8,
    pub(super) key: Key,
    pub(super) kind: Kind,
}

/// Copies go their own way: in a node they may travel on another loop's link. `Old`: what is unread of links before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Lane {
    Writes,
    Copies,
    Old,
}

type Letter = (u32, Message<Key, Val>);

#[derive(Clone, Debug, Hash)]
pub(super) struct Node {
    pub(super) part: Part<Key, Val, Op>,
    pub(super) store: Store,
}

#[derive(Clone, Debug, Hash)]
struct Wire {
    generation: u32,
    is_up: bool,
}

/// What the warden does next: one node may lose its memory, and there is another view.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Turn {
    pub(super) kill: Option<NodeId>,
    pub(super) view: View,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Action {
    Deliver(NodeId, NodeId, Lane),
    Settle(NodeId, NodeId),
    Break(NodeId, NodeId),
    Up(NodeId, NodeId),
    Warden,
    Tell(NodeId),
    Grant(Want),
    Promote(NodeId),
    Ask,
}

/// A write that some primary began.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Begun {
    /// The operations it was tried for.
    ids: Vec<u8>,
    removes: bool,
    /// Whether they were told that it will never be.
    is_void: bool,
}

#[derive(Clone, Debug, Hash)]
pub(super) struct World {
    pub(super) nodes: BTreeMap<NodeId, Shared<Node>>,
    pipes: BTreeMap<(NodeId, NodeId, Lane), Shared<VecDeque<Letter>>>,
    wires: BTreeMap<(NodeId, NodeId), Wire>,
    /// The warden's view, and whom it still tells.
    pub(super) view: View,
    untold: BTreeSet<NodeId>,
    pub(super) turns: VecDeque<Turn>,
    pub(super) breaks: u8,
    /// Whether the warden does what primaries want.
    pub(super) grants: bool,
    pub(super) tells_all: bool,
    wants: BTreeSet<(u32, Wanted)>,
    /// Asked of whoever is told that it is the primary.
    pub(super) asks: BTreeMap<NodeId, Vec<Op>>,
    /// Asked one by one, at any time.
    pub(super) later: VecDeque<Op>,
    open_ops: u32,
    begun: BTreeMap<(Key, Version), Begun>,
    acked: BTreeMap<Key, Version>,
    pub(super) fault: Option<String>,
}

type Wanted = (bool, NodeId);

pub(super) fn view(epoch: u32, since: u32, primary: u32, members: &[(u32, Standing, u32)], k: usize) -> View {
    let members =
        members.iter().map(|(id, standing, since)| (NodeId(*id), Member { standing: *standing, since: *since }));
    View { epoch, primary: NodeId(primary), since, members: members.collect(), k }
}

impl World {
    /// Nodes 1 to `nodes`, all linked; the warden has made its first view.
    pub(super) fn new(nodes: u32, view: View) -> Self {
        let ids: Vec<NodeId> = (1..=nodes).map(NodeId).collect();
        let node = |id: &NodeId| (*id, Shared::new(Node { part: Part::new(*id), store: Store::default() }));
        let mut world = World {
            nodes: ids.iter().map(node).collect(),
            pipes: BTreeMap::new(),
            wires: BTreeMap::new(),
            untold: BTreeSet::from([view.primary]),
            view,
            turns: VecDeque::new(),
            breaks: 0,
            grants: false,
            tells_all: false,
            wants: BTreeSet::new(),
            asks: BTreeMap::new(),
            later: VecDeque::new(),
            open_ops: 0,
            begun: BTreeMap::new(),
            acked: BTreeMap::new(),
            fault: None,
        };
        for a in &ids {
            for b in ids.iter().filter(|b| a < *b) {
                world.wires.insert((*a, *b), Wire { generation: 0, is_up: false });
                world.up(*a, *b);
            }
        }
        world
    }

    /// The node refuses its prepare, or copy, so many from now.
    pub(super) fn refuse(&mut self, id: NodeId, at: u8) {
        self.with(id, |node| node.store.refuse_at = at);
    }

    /// All that may happen next; `true`: also what nobody needs to happen.
    pub(super) fn actions(&self, faults: bool) -> Vec<Action> {
        let mut actions: Vec<Action> = Vec::new();
        actions.extend(self.pipes.keys().map(|(from, to, lane)| Action::Deliver(*from, *to, *lane)));
        for (id, node) in &self.nodes {
            let owed = self.nodes.keys().filter(|peer| node.part.owes_settle(**peer));
            actions.extend(owed.map(|peer| Action::Settle(*id, *peer)));
        }
        actions.extend(self.untold.iter().map(|id| Action::Tell(*id)));
        let both_live = |(a, b): &&(NodeId, NodeId)| self.nodes.contains_key(a) && self.nodes.contains_key(b);
        for wire in self.wires.keys().filter(both_live) {
            match self.wires[wire].is_up {
                false => actions.push(Action::Up(wire.0, wire.1)),
                true if faults && self.breaks > 0 => actions.push(Action::Break(wire.0, wire.1)),
                true => {}
            }
        }
        if !self.later.is_empty() {
            actions.push(Action::Ask);
        }
        if self.turns.front().is_some_and(|turn| turn.view.epoch > self.view.epoch) {
            actions.push(Action::Warden);
        }
        if self.grants {
            let current = self.wants.iter().filter(|(epoch, _)| *epoch == self.view.epoch);
            actions.extend(
                current.map(|(_, (joins, id))| {
                    Action::Grant(if *joins { Want::Joining(*id) } else { Want::Removed(*id) })
                }),
            );
            let joining = self.view.members.iter().filter(|(_, member)| member.standing == Standing::Joining);
            actions.extend(joining.map(|(id, _)| Action::Promote(*id)));
        }
        actions
    }

    /// What the action delivers.
    pub(super) fn letter(&self, action: &Action) -> String {
        let Action::Deliver(from, to, lane) = action else { return String::new() };
        self.pipes.get(&(*from, *to, *lane)).and_then(|pipe| pipe.front()).map_or(String::new(), |l| format!("{l:x?}"))
    }

    pub(super) fn act(&mut self, action: &Action) {
        match action {
            Action::Deliver(from, to, lane) => self.deliver(*from, *to, *lane),
            Action::Settle(at, peer) => self.with(*at, |node| node.part.settle(*peer)),
            Action::Break(a, b) => {
                self.breaks -= 1;
                self.break_link(*a, *b);
            }
            Action::Up(a, b) => self.up(*a, *b),
            Action::Warden => {
                let Some(turn) = self.turns.pop_front() else { return };
                turn.kill.into_iter().for_each(|id| self.kill(id));
                self.new_view(turn.view);
            }
            Action::Tell(id) => self.tell(*id),
            Action::Ask => {
                let Some(op) = self.later.pop_front() else { return };
                self.ask(self.view.primary, op);
            }
            Action::Grant(want) => {
                let mut view = self.view.clone();
                view.epoch += 1;
                match want {
                    Want::Joining(id) => {
                        seen("joined");
                        view.members.entry(*id).and_modify(|member| member.standing = Standing::Joining);
                    }
                    Want::Removed(id) => drop(view.members.remove(id)),
                }
                self.new_view(view);
            }
            Action::Promote(id) => {
                let mut view = self.view.clone();
                view.epoch += 1;
                view.members.entry(*id).and_modify(|member| member.standing = Standing::Backup);
                self.new_view(view);
            }
        }
        self.check();
    }

    pub(super) fn new_view(&mut self, view: View) {
        self.wants.retain(|(epoch, _)| *epoch >= view.epoch);
        self.view = view;
        self.untold.insert(self.view.primary);
        if self.tells_all {
            self.untold.extend(self.nodes.keys());
        }
    }

    fn tell(&mut self, id: NodeId) {
        self.untold.remove(&id);
        let view = self.view.clone();
        let takes_over = |node: &Node| view.primary == id && node.part.view().primary != id;
        let has_pending = |node: &Node| node.store.entries.values().any(|entry| entry.pending.is_some());
        if self.nodes.get(&id).is_some_and(|node| takes_over(node) && has_pending(node)) {
            seen("take-over with pendings");
        }
        self.with(id, |node| node.part.take(&mut node.store, view));
        if self.view.primary == id {
            let ops = self.asks.remove(&id).unwrap_or_default();
            ops.into_iter().for_each(|op| self.ask(id, op));
        }
    }

    pub(super) fn ask(&mut self, id: NodeId, op: Op) {
        self.open_ops += 1;
        self.with(id, |node| node.part.ask(op.key, op));
    }

    /// The node and all it kept are gone; what it sent may still arrive.
    pub(super) fn kill(&mut self, id: NodeId) {
        let Some(node) = self.nodes.remove(&id) else { return };
        let mut node = node.take();
        if node.store.entries.values().any(|entry| entry.pending.is_some()) {
            seen("write pending at who dies");
        }
        self.pipes.retain(|(_, to, _), _| *to != id);
        self.untold.remove(&id);
        // Its clients hear nothing any more.
        node.part.take(&mut node.store, View { epoch: u32::MAX, ..View::none() });
        let ops = node.part.effects().into_iter().filter_map(|effect| match effect {
            Effect::Answer(ops, _) => Some(ops.len() as u32),
            _ => None,
        });
        self.open_ops -= ops.sum::<u32>();
    }

    /// The one that dialled knows at once; the other reads on until a new link comes.
    pub(super) fn break_link(&mut self, a: NodeId, b: NodeId) {
        self.wires.entry((a, b)).and_modify(|wire| wire.is_up = false);
        self.pipes.retain(|(from, to, _), _| (*from, *to) != (b, a));
        self.with(a, |node| node.part.link_down(b));
    }

    fn up(&mut self, a: NodeId, b: NodeId) {
        let Some(wire) = self.wires.get_mut(&(a, b)) else { return };
        (wire.generation, wire.is_up) = (wire.generation + 1, true);
        let generation = wire.generation;
        self.with(b, |node| node.part.link_up(a, generation));
        let unread =
            [Lane::Old, Lane::Writes, Lane::Copies].into_iter().filter_map(|lane| self.pipes.remove(&(a, b, lane)));
        let unread: VecDeque<Letter> = unread.flat_map(Shared::take).collect();
        if !unread.is_empty() {
            seen("link replaced with unread bytes");
        }
        let is_read = |letter: &Letter| self.nodes[&b].part.is_current(a, letter.0);
        let unread: VecDeque<Letter> = unread.into_iter().filter(is_read).collect();
        if !unread.is_empty() {
            self.pipes.insert((a, b, Lane::Old), Shared::new(unread));
        }
        self.with(a, |node| node.part.link_up(b, generation));
    }

    fn deliver(&mut self, from: NodeId, to: NodeId, lane: Lane) {
        let Some(pipe) = self.pipes.remove(&(from, to, lane)) else { return };
        let mut pipe = pipe.take();
        let letter = pipe.pop_front();
        if !pipe.is_empty() {
            self.pipes.insert((from, to, lane), Shared::new(pipe));
        }
        if let Some((generation, message)) = letter {
            self.with(to, |node| node.part.receive(&mut node.store, from, generation, message));
        }
    }

    /// Something happens at a node, and all that follows there.
    fn with(&mut self, id: NodeId, f: impl FnOnce(&mut Node)) {
        let Some(node) = self.nodes.remove(&id) else { return };
        let mut node = node.take();
        f(&mut node);
        loop {
            let effects = node.part.effects();
            if effects.is_empty() {
                break;
            }
            for effect in effects {
                self.carry_out(id, &mut node, effect);
            }
        }
        self.nodes.insert(id, Shared::new(node));
    }

    fn carry_out(&mut self, id: NodeId, node: &mut Node, effect: Effect<Key, Val, Op>) {
        match effect {
            Effect::Send(to, message) => self.post(id, to, message),
            Effect::Decide(key, ops) => self.decide(node, key, ops),
            Effect::Answer(ops, outcome) => self.answered(id, node, &ops, outcome),
            Effect::Want(Want::Joining(peer)) => drop(self.wants.insert((node.part.view().epoch, (true, peer)))),
            Effect::Want(Want::Removed(peer)) => drop(self.wants.insert((node.part.view().epoch, (false, peer)))),
            Effect::Close(peer) => self.fault = Some(format!("{id:?} says {peer:?} broke the rules")),
        }
    }

    fn post(&mut self, from: NodeId, to: NodeId, message: Message<Key, Val>) {
        note(&message);
        let pair = (from.min(to), from.max(to));
        let wire = &self.wires[&pair];
        if wire.is_up && self.nodes.contains_key(&to) {
            let is_copy = matches!(message, Message::Copy { .. });
            let lane = if is_copy { Lane::Copies } else { Lane::Writes };
            let pipe = self.pipes.remove(&(from, to, lane));
            let mut pipe = pipe.map(Shared::take).unwrap_or_default();
            pipe.push_back((wire.generation, message));
            self.pipes.insert((from, to, lane), Shared::new(pipe));
        }
    }

    fn decide(&mut self, node: &mut Node, key: Key, ops: Vec<Op>) {
        let before = node.store.entry(key).state;
        let one = |op: &Op| match op.kind {
            Kind::Put => Val::Whole([op.id; 2]),
            Kind::Range(at) => Val::Range(at, op.id),
            Kind::Remove => Val::Gone,
        };
        let after = ops.iter().fold(before, |state, op| one(op).over(state));
        let change = match (ops.as_slice(), after) {
            ([op], Some(_)) => Some(one(op)),
            (_, None) => before.map(|_| Val::Gone),
            (_, Some(bytes)) => Some(Val::Whole(bytes)),
        };
        if change.is_none() {
            self.open_ops -= ops.len() as u32;
        }
        let ids = ops.iter().map(|op| op.id).collect();
        let last = node.store.entry(key).last;
        node.part.begin(&mut node.store, key, ops, change);
        let entry = node.store.entry(key);
        let version = entry.pending.map_or(entry.last, |(write, _)| write.version);
        if version != last {
            let removes = entry.pending.map_or(entry.version == 0, |(write, _)| write.removes);
            self.begun.insert((key, version), Begun { ids, removes, is_void: false });
        }
    }

    fn answered(&mut self, id: NodeId, node: &Node, ops: &[Op], outcome: Outcome) {
        self.open_ops -= ops.len() as u32;
        let done = if let Outcome::Done(version) = outcome { version } else { 0 };
        if outcome == Outcome::Full || done != 0 {
            // What was tried for these operations before, together with others, was refused.
            let key = ops[0].key;
            let is_theirs = |begun: &&mut Begun| ops.iter().any(|op| begun.ids.contains(&op.id));
            let tries =
                self.begun.range_mut((key, 0)..(key + 1, 0)).filter(|(at, _)| at.1 != done).map(|(_, begun)| begun);
            tries.filter(is_theirs).for_each(|begun| begun.is_void = true);
        }
        if done != 0 {
            let acked = self.acked.entry(ops[0].key).or_default();
            *acked = (*acked).max(done);
            self.check_ack(id, node, ops[0].key, done);
        }
    }

    /// An acknowledged write is at every member that it needs, in the epoch it was acknowledged in, and at k.
    fn check_ack(&mut self, id: NodeId, node: &Node, key: Key, version: Version) {
        let view = node.part.view();
        let holds = |id: &&NodeId| {
            let Some(peer) = self.nodes.get(*id) else { return true };
            let (newer, entry) = (peer.part.view(), peer.store.entry(key));
            let left = newer.primary != **id && newer.members.get(id).is_none_or(|member| member.since > view.epoch);
            let has = entry.last >= version || entry.pending.is_some_and(|(write, _)| write.version == version);
            newer.epoch >= view.epoch && (left || has)
        };
        let needed = view.members.iter().filter(|(_, member)| member.standing != Standing::Syncing).map(|(id, _)| id);
        if !needed.clone().all(|peer| holds(&peer)) {
            self.fail(format!("{id:?} acknowledged {version:x}, and not all of epoch {} have it", view.epoch));
        }
        let backups = view.members.iter().filter(|(_, member)| member.standing == Standing::Backup);
        if backups.count() + 1 < view.k {
            self.fail(format!("{id:?} acknowledged {version:x} with fewer than k"));
        }
    }

    fn fail(&mut self, fault: String) {
        self.fault.get_or_insert(fault);
    }

    /// What must hold in each state.
    fn check(&mut self) {
        let mut faults: Vec<String> = Vec::new();
        for (id, node) in &self.nodes {
            faults.extend(node.store.fault.clone());
            for (key, entry) in &node.store.entries {
                match self.begun.get(&(*key, entry.last)) {
                    None if entry.last != 0 => faults.push(format!("{id:?} has {:x}, which nobody wrote", entry.last)),
                    Some(begun) if begun.is_void => faults.push(format!("{id:?} has {:x}, refused", entry.last)),
                    _ => {}
                }
            }
            let serves = node.part.is_open() && node.part.view().epoch == self.view.epoch;
            if serves {
                faults.extend(self.acked.iter().filter_map(|(key, acked)| self.lost(*id, node, *key, *acked)));
            }
            let acts = |other: &Node| other.part.is_open() && other.part.view().epoch == node.part.view().epoch;
            if node.part.is_open() && self.nodes.iter().any(|(other, peer)| other != id && acts(peer)) {
                faults.push("two primaries act in one epoch".into());
            }
        }
        faults.into_iter().take(1).for_each(|fault| self.fail(fault));
    }

    fn lost(&self, id: NodeId, node: &Node, key: Key, acked: Version) -> Option<String> {
        let entry = node.store.entry(key);
        let mut since = self.begun.range((key, acked)..(key + 1, 0)).map(|(_, begun)| begun);
        let is_there = entry.last >= acked || entry.version == 0 && since.any(|begun| begun.removes && !begun.is_void);
        (!is_there).then(|| format!("{id:?} serves {:x} of key {key}, {acked:x} was acknowledged", entry.last))
    }

    /// What must hold when nothing is left to happen: all is answered, and the members hold the same.
    pub(super) fn check_quiet(&mut self) {
        let Some(primary) = self.nodes.get(&self.view.primary) else { return };
        let mut faults: Vec<String> = Vec::new();
        if !primary.part.is_open() || self.open_ops != 0 {
            faults.push(format!("hangs: {} operations wait", self.open_ops));
        }
        for peer in std::iter::once(&self.view.primary).chain(self.view.members.keys()) {
            let Some(node) = self.nodes.get(peer) else { continue };
            if self.view.members.get(peer).is_some_and(|member| member.standing == Standing::Syncing) && !self.grants {
                continue;
            }
            if node.part.view() != &self.view {
                faults.push(format!("{peer:?} is left behind in epoch {}", node.part.view().epoch));
            }
            let entries = |node: &Node| -> Vec<_> {
                let entries = node.store.entries.iter().filter(|(_, e)| e.version != 0 || e.pending.is_some());
                entries.map(|(key, entry)| (*key, entry.version, entry.state, entry.pending)).collect()
            };
            let (theirs, ours) = (entries(node), entries(primary));
            if theirs != ours || ours.iter().any(|entry| entry.3.is_some()) {
                faults.push(format!("{peer:?} ends with {theirs:x?}, its primary with {ours:x?}"));
            }
        }
        faults.into_iter().take(1).for_each(|fault| self.fail(fault));
    }
}

/// Counts what is rare.
fn note(message: &Message<Key, Val>) {
    match message {
        Message::Resolve { commit: true, .. } => seen("resolve commit"),
        Message::Resolve { commit: false, .. } => seen("resolve drop"),
        Message::Abort { .. } => seen("abort"),
        Message::Answer { verdict, .. } => match verdict {
            Verdict::Refused => seen("prepare refused"),
            Verdict::CopyRefused => seen("copy refused"),
            Verdict::NeedWhole => seen("need whole"),
            _ => {}
        },
        _ => {}
    }
}
