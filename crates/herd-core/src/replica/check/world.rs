//! A group in a test: nodes, the links between them, a warden, and what must hold after every step.

use super::shared::Shared;
use super::store::{Key, Store, Val, key_of};
use super::walk::seen;
use crate::entry::Version;
use crate::replica::{Change, Copies, Departure, Effect, Member, Message, NodeId, Offer, Outcome, Part, Pending};
use crate::replica::{Standing, Verdict, View, Want};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::num::NonZeroU32;

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
    /// The entry, whatever its generation.
    pub(super) key: u8,
    pub(super) kind: Kind,
}

/// Copies go their own way: in a node they may travel on another loop's link. `Old`: what is unread of links before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Lane {
    Writes,
    Copies,
    Old,
}

type Letter = (u64, Message<Key, Val>);

#[derive(Clone, Debug, Hash)]
pub(super) struct Node {
    pub(super) part: Part<Key, Val, Op>,
    pub(super) store: Store,
    /// Whether it was told to drop what it has, and has not.
    clears: bool,
}

impl Node {
    fn new(id: NodeId) -> Self {
        Self { part: Part::new(id), store: Store::default(), clears: false }
    }
}

#[derive(Clone, Debug, Hash)]
struct Wire {
    generation: u64,
    is_up: bool,
}

/// What the warden does next: one node may lose its memory, and there is another view.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Turn {
    pub(super) kill: Option<NodeId>,
    /// Whether it is there again at once, without its memory.
    pub(super) comes_back: bool,
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
    Flush,
    Flushed(NodeId),
    Cleared(NodeId),
    Ask,
    Read,
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
    /// The epoch with which nodes came back without their memory.
    born: BTreeMap<NodeId, u32>,
    /// The warden's view, and whom it still tells.
    pub(super) view: View,
    untold: BTreeSet<NodeId>,
    pub(super) turns: VecDeque<Turn>,
    pub(super) breaks: u8,
    /// Flushes to come, the generation there is, and who has not heard of it, since which epoch.
    pub(super) flushes: u8,
    pub(super) generation: u8,
    unflushed: BTreeMap<NodeId, u32>,
    /// Whether the warden does what primaries want.
    pub(super) grants: bool,
    pub(super) tells_all: bool,
    wants: BTreeSet<(u32, Wanted)>,
    /// Asked of whoever is told that it is the primary.
    pub(super) asks: BTreeMap<NodeId, Vec<Op>>,
    /// Asked one by one, at any time.
    pub(super) later: VecDeque<Op>,
    /// Reads by node 1, at any time.
    pub(super) reads: u8,
    /// Whether puts begin at once where they may.
    pub(super) at_once: bool,
    open_ops: u32,
    begun: BTreeMap<(Key, Version), Begun>,
    acked: BTreeMap<Key, Version>,
    /// Who has looked without a lease, the round that tells whether it may answer, and what it did not see.
    looks: Vec<(NodeId, u64, Option<String>)>,
    pub(super) fault: Option<String>,
}

type Wanted = (bool, NodeId);

pub(super) fn node(id: u32) -> NodeId {
    NodeId(NonZeroU32::new(id).expect("not 0"))
}

pub(super) fn view(epoch: u32, since: u32, primary: u32, members: &[(u32, Standing, u32)], needed: u8) -> View {
    let member =
        |(id, standing, since): &(u32, Standing, u32)| Member { node: node(*id), standing: *standing, since: *since };
    View { epoch, primary: node(primary), since, members: members.iter().map(member).collect(), needed, lost: 0 }
}

/// Gives a member another standing, or takes it out; who was none comes in.
pub(super) fn stand(view: &mut View, id: NodeId, standing: Option<Standing>) {
    let since = view.member(id).map_or(view.epoch, |member| member.since);
    view.members.retain(|member| member.node != id);
    view.members.extend(standing.map(|standing| Member { node: id, standing, since }));
    view.members.sort_by_key(|member| member.node);
}

impl World {
    /// Nodes 1 to `nodes`, all linked; the warden has made its first view.
    pub(super) fn new(nodes: u32, view: View) -> Self {
        let ids: Vec<NodeId> = (1..=nodes).map(node).collect();
        let node = |id: &NodeId| (*id, Shared::new(Node::new(*id)));
        let mut world = World {
            nodes: ids.iter().map(node).collect(),
            pipes: BTreeMap::new(),
            wires: BTreeMap::new(),
            born: BTreeMap::new(),
            untold: BTreeSet::from([view.primary]),
            view,
            turns: VecDeque::new(),
            breaks: 0,
            flushes: 0,
            generation: 0,
            unflushed: BTreeMap::new(),
            grants: false,
            tells_all: false,
            wants: BTreeSet::new(),
            asks: BTreeMap::new(),
            later: VecDeque::new(),
            reads: 0,
            at_once: false,
            open_ops: 0,
            begun: BTreeMap::new(),
            acked: BTreeMap::new(),
            looks: Vec::new(),
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
            actions.extend(node.clears.then_some(Action::Cleared(*id)));
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
        if self.reads > 0 {
            actions.push(Action::Read);
        }
        if self.flushes > 0 {
            actions.push(Action::Flush);
        }
        actions.extend(self.unflushed.keys().map(|id| Action::Flushed(*id)));
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
            let joining = self.view.members.iter().filter(|member| member.standing == Standing::Joining);
            actions.extend(joining.map(|member| Action::Promote(member.node)));
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
                match turn.kill {
                    Some(id) if turn.comes_back => self.restart(id),
                    Some(id) => self.kill(id),
                    None => {}
                }
                self.new_view(turn.view);
            }
            Action::Tell(id) => self.tell(*id),
            Action::Flush => {
                self.flushes -= 1;
                self.flush();
            }
            Action::Flushed(id) => self.flushed(*id),
            Action::Cleared(id) => self.with(*id, |node| {
                node.clears = false;
                node.store.entries.clear();
                node.part.cleared(&mut node.store);
            }),
            Action::Ask => {
                let Some(op) = self.later.pop_front() else { return };
                self.ask(self.view.primary, op);
            }
            Action::Read => {
                self.reads -= 1;
                self.read(node(1));
            }
            Action::Grant(want) => {
                let mut view = self.view.clone();
                view.epoch += 1;
                match want {
                    Want::Joining(id) => {
                        seen("joined");
                        stand(&mut view, *id, Some(Standing::Joining));
                    }
                    Want::Removed(id) => stand(&mut view, *id, None),
                }
                self.new_view(view);
            }
            Action::Promote(id) => {
                let mut view = self.view.clone();
                view.epoch += 1;
                stand(&mut view, *id, Some(Standing::Backup));
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

    /// The map has another generation of the one collection.
    pub(super) fn flush(&mut self) {
        self.generation += 1;
        for id in self.nodes.keys() {
            self.unflushed.entry(*id).or_insert(self.view.epoch);
        }
    }

    fn flushed(&mut self, id: NodeId) {
        let generation = self.generation;
        self.unflushed.remove(&id);
        if self.nodes.get(&id).is_some_and(|node| node.part.is_open() && node.store.has_pending()) {
            seen("flush beside a write");
        }
        self.with(id, |node| node.store.flush(generation));
    }

    /// A node has the map: first what it says of collections.
    fn tell(&mut self, id: NodeId) {
        self.flushed(id);
        self.untold.remove(&id);
        let view = self.view.clone();
        let takes_over = |node: &Node| view.primary == id && node.part.view().primary != id;
        let has_pending = |node: &Node| node.store.has_pending();
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
        if self.at_once && op.kind == Kind::Put && self.put_at_once(id, op) {
            return;
        }
        self.with(id, |node| node.part.ask(key_of(op.key, node.store.generation), op));
    }

    /// Who takes itself for the primary looks at all there is, and asks its members whether it is.
    pub(super) fn read(&mut self, id: NodeId) {
        let Some(node) = self.nodes.get(&id).filter(|node| node.part.is_open()) else { return };
        let unseen = self.acked.iter().find_map(|(key, acked)| self.lost(id, node, *key, *acked));
        if unseen.is_some() {
            seen("read by who leads no more");
        }
        let mut round = 0;
        self.with(id, |node| round = node.part.confirm());
        self.looks.push((id, round, unseen));
        self.check();
    }

    /// What is confirmed may be answered.
    fn check_looks(&mut self) {
        for (id, round, unseen) in std::mem::take(&mut self.looks) {
            let told = self.nodes.get(&id).and_then(|node| node.part.confirmed(round));
            match (told, unseen) {
                (Some(true), Some(unseen)) => self.fail(format!("{unseen}, and its members confirm it")),
                (Some(true), None) => seen("read confirmed"),
                (Some(false), _) => seen("read void"),
                (None, unseen) => self.looks.push((id, round, unseen)),
            }
        }
    }

    /// A put begins at once, if it may.
    fn put_at_once(&mut self, id: NodeId, op: Op) -> bool {
        let Some(node) = self.nodes.get(&id) else { return false };
        let (key, change) = (key_of(op.key, node.store.generation), Val::Whole([op.id; 2]));
        if !node.part.takes_at_once(&key, change.size_bytes()) {
            return false;
        }
        let (mut sent, mut begun) = (Vec::new(), None);
        self.with(id, |node| {
            let version = node.store.next_version(&key, node.part.view().since);
            let write = Pending { version, base: node.store.state(&key).committed, removes: false };
            if node.store.prepare(&key, write, &change).is_err() {
                return;
            }
            begun = Some(write);
            let of = (&key, write, change.size_bytes());
            node.part.begin_prepared(&mut node.store, of, op, |departure| sent.push(departure));
        });
        let Some(write) = begun else { return false };
        seen("begun at once");
        self.begun.insert((key, write.version), Begun { ids: vec![op.id], removes: false, is_void: false });
        for Departure { to, generation, epoch, serial, settled } in sent {
            let offer = Offer::Change(change);
            self.post(id, to, generation, Message::Prepare { epoch, serial, settled, key, write, offer });
        }
        true
    }

    /// The node and all it kept are gone; what it sent may still arrive.
    pub(super) fn kill(&mut self, id: NodeId) {
        let Some(dead) = self.nodes.remove(&id) else { return };
        let mut dead = dead.take();
        self.looks.retain(|(at, ..)| *at != id);
        if dead.store.has_pending() {
            seen("write pending at who dies");
        }
        self.pipes.retain(|(_, to, _), _| *to != id);
        self.untold.remove(&id);
        self.unflushed.remove(&id);
        // Its clients hear nothing any more.
        dead.part.take(&mut dead.store, View { epoch: u32::MAX, primary: node(u32::MAX), ..View::none() });
        let ops = dead.part.effects().into_iter().filter_map(|effect| match effect {
            Effect::Answer(ops, _) => Some(ops.len() as u32),
            _ => None,
        });
        self.open_ops -= ops.sum::<u32>();
    }

    /// The node comes back with nothing, under its number; the view that says so comes next. What it sent before may
    /// still arrive where nobody knows yet.
    pub(super) fn restart(&mut self, id: NodeId) {
        seen("comes back without its memory");
        self.kill(id);
        self.born.insert(id, self.view.epoch + 1);
        self.nodes.insert(id, Shared::new(Node::new(id)));
        self.flushed(id);
        self.wires.iter_mut().filter(|((a, b), _)| *a == id || *b == id).for_each(|(_, wire)| wire.is_up = false);
    }

    /// Whether the node lives, and has not come back with this epoch or later.
    pub(super) fn has_memory(&self, id: NodeId, epoch: u32) -> bool {
        self.nodes.contains_key(&id) && self.born.get(&id).is_none_or(|born| *born < epoch)
    }

    /// The one that dialled knows at once; the other reads on until a new link comes.
    pub(super) fn break_link(&mut self, a: NodeId, b: NodeId) {
        let Some(wire) = self.wires.get_mut(&(a, b)) else { return };
        wire.is_up = false;
        let generation = wire.generation;
        self.pipes.retain(|(from, to, _), _| (*from, *to) != (b, a));
        self.with(a, |node| node.part.link_down(b, generation));
    }

    fn up(&mut self, a: NodeId, b: NodeId) {
        let Some(wire) = self.wires.get_mut(&(a, b)) else { return };
        (wire.generation, wire.is_up) = (wire.generation + 1, true);
        let generation = wire.generation;
        self.pipes.retain(|(from, to, _), _| (*from, *to) != (b, a));
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
            Effect::Send(to, generation, message) => self.post(id, to, generation, message),
            Effect::Decide(key, ops) => self.decide(node, key, ops),
            Effect::Answer(ops, outcome) => self.answered(id, node, &ops, outcome),
            Effect::Want(Want::Joining(peer)) => drop(self.wants.insert((node.part.view().epoch, (true, peer)))),
            Effect::Want(Want::Removed(peer)) => drop(self.wants.insert((node.part.view().epoch, (false, peer)))),
            Effect::Clear => node.clears = true,
            Effect::TookOver(_) => {}
            Effect::Close(peer) => self.fault = Some(format!("{id:?} says {peer:?} broke the rules")),
        }
    }

    fn post(&mut self, from: NodeId, to: NodeId, generation: u64, message: Message<Key, Val>) {
        note(&message);
        if let Message::Prepare { key, write: Pending { version, base: 0, removes: true }, .. } = &message {
            // What is told at a take-over of what is not there is no operation's.
            let told = Begun { ids: Vec::new(), removes: false, is_void: false };
            self.begun.entry((*key, *version)).or_insert(told);
        }
        let pair = (from.min(to), from.max(to));
        let wire = &self.wires[&pair];
        if wire.is_up && wire.generation == generation && self.nodes.contains_key(&to) {
            let is_copy = matches!(message, Message::Copy { .. });
            let lane = if is_copy { Lane::Copies } else { Lane::Writes };
            let pipe = self.pipes.remove(&(from, to, lane));
            let mut pipe = pipe.map(Shared::take).unwrap_or_default();
            pipe.push_back((generation, message));
            self.pipes.insert((from, to, lane), Shared::new(pipe));
        }
    }

    fn decide(&mut self, node: &mut Node, key: Key, ops: Vec<Op>) {
        if node.store.state(&key).is_over {
            seen("asked again after a flush");
            node.part.begin(&mut node.store, key, Vec::new(), None);
            return ops.into_iter().for_each(|op| node.part.ask(key_of(op.key, node.store.generation), op));
        }
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
        let Some(first) = ops.first().filter(|_| matches!(outcome, Outcome::Refused(..)) || done != 0) else { return };
        let keys = key_of(first.key, 0)..=key_of(first.key, 3);
        let tries = self.begun.range_mut((*keys.start(), 0)..=(*keys.end(), Version::MAX));
        let mut key = *keys.start();
        for (at, begun) in tries {
            // What was tried for these operations before, together with others, was refused.
            match at.1 == done {
                true => key = at.0,
                false => begun.is_void |= ops.iter().any(|op| begun.ids.contains(&op.id)),
            }
        }
        if done != 0 {
            let acked = self.acked.entry(key).or_default();
            *acked = (*acked).max(done);
            self.check_ack(id, node, key, done);
        }
    }

    /// An acknowledged write is at every member that it needs, in the epoch it was acknowledged in, and at k.
    fn check_ack(&mut self, id: NodeId, node: &Node, key: Key, version: Version) {
        let view = node.part.view();
        // What a flush has ended at the primary is absent at a member to which it went after that.
        let is_gone =
            node.store.state(&key).is_over && self.begun.get(&(key, version)).is_some_and(|begun| begun.removes);
        let holds = |id: NodeId| {
            let Some(peer) = self.nodes.get(&id).filter(|_| self.has_memory(id, view.epoch + 1)) else { return true };
            let (newer, entry) = (peer.part.view(), peer.store.entry(key));
            let left = newer.primary != id && newer.member(id).is_none_or(|member| member.since > view.epoch);
            let has = peer.store.state(&key).is_over
                || entry.last >= version
                || is_gone && entry.version == 0 && entry.pending.is_none()
                || entry.pending.is_some_and(|(write, _)| write.version == version);
            newer.epoch >= view.epoch && (left || has)
        };
        let mut needed = view.members.iter().filter(|member| member.standing != Standing::Syncing);
        if !needed.all(|member| holds(member.node)) {
            self.fail(format!("{id:?} acknowledged {version:x}, and not all of epoch {} have it", view.epoch));
        }
        let backups = view.members.iter().filter(|member| member.standing == Standing::Backup);
        if backups.count() + 1 < usize::from(view.needed) {
            self.fail(format!("{id:?} acknowledged {version:x} with fewer than k"));
        }
    }

    fn fail(&mut self, fault: String) {
        self.fault.get_or_insert(fault);
    }

    /// What must hold in each state.
    fn check(&mut self) {
        self.check_looks();
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
            let (is_current, standing) = (node.part.view() == &self.view, self.view.member(*id).map(|it| it.standing));
            let leads = node.part.is_open() && node.part.view().epoch == self.view.epoch;
            // A backup answers what is clean there. It has the map of its view, and so all flushes before that.
            let is_told = self.unflushed.get(id).is_none_or(|since| *since == self.view.epoch);
            let reads = is_current && is_told && standing == Some(Standing::Backup);
            let is_read = |key: &Key| leads || reads && node.store.entry(*key).pending.is_none();
            let lost = self.acked.iter().filter(|(key, _)| is_read(key));
            faults.extend(lost.filter_map(|(key, acked)| self.lost(*id, node, *key, *acked)));
            let acts = |other: &Node| other.part.is_open() && other.part.view().epoch == node.part.view().epoch;
            if node.part.is_open() && self.nodes.iter().any(|(other, peer)| other != id && acts(peer)) {
                faults.push("two primaries act in one epoch".into());
            }
        }
        faults.into_iter().take(1).for_each(|fault| self.fail(fault));
    }

    fn lost(&self, id: NodeId, node: &Node, key: Key, acked: Version) -> Option<String> {
        if node.store.state(&key).is_over {
            return None;
        }
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
        if self.looks.iter().any(|(id, ..)| *id == self.view.primary) {
            faults.push("hangs: a read waits to be confirmed".into());
        }
        for peer in std::iter::once(&self.view.primary).chain(self.view.members.iter().map(|member| &member.node)) {
            let Some(node) = self.nodes.get(peer) else { continue };
            if self.view.member(*peer).is_some_and(|member| member.standing == Standing::Syncing) && !self.grants {
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
            Verdict::Refused(_) => seen("prepare refused"),
            Verdict::CopyRefused => seen("copy refused"),
            Verdict::NeedWhole => seen("need whole"),
            _ => {}
        },
        _ => {}
    }
}
