//! Members of groups that go from node to node while the herd serves: a node that drains gives its copies away, and one
//! that came late gets its share.
//!
//! A move is two changes of the map, and nothing else is kept of it, so any warden goes on with what another began. A
//! group gets one member more, which has nothing yet, and its primary brings that up to date. When it is a backup the
//! group has one member too many, and one goes:
//!
//! * one whose node was taken out; else one whose node drains; else one that an operator has sent away; but then none
//!   that an operator has put there ([`Placed`]); else one that is on the host of another; else one of the node that
//!   keeps most above its share;
//! * who leads hands the lead over first, and stays a backup until it has told that it has the map which says so.
//!   Nobody is taken out that may take itself for the primary: it would answer reads while others write.
//!
//! Some moves at a time to each node: what clients want there must not stand behind all that moves.
//!
//! Callers: the warden, and that of the simulator.

use super::map::{Draft, Group, GroupId, Kind, Member, Node, NodeId, NodeState, Spread, Standing};
use super::mend::Loads;
use super::placed::{Placed, is_due};
use super::plan::shares;
use crate::bugs::{self, Bug};
use crate::limits::MOVES_AT_ONCE;
use std::cmp::Reverse;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

impl Draft {
    /// Whether a group has more members than it keeps copies, one whose node drains, or one that is sealed: something
    /// moves, or is to.
    pub fn is_moving(&self) -> bool {
        let draining = self.nodes.iter().filter(|node| node.state == NodeState::Draining).map(|node| node.id);
        let draining: Vec<NodeId> = draining.collect();
        let moves = |spread: &Spread, group: &Group| {
            let has_more = group.members().count() > usize::from(spread.copies);
            has_more || group.sealed().next().is_some() || group.members().any(|id| draining.contains(&id))
        };
        let mut kept = self.spreads.iter().filter(|spread| spread.kind == Kind::Kept);
        kept.any(|spread| spread.groups.iter().any(|group| moves(spread, group)))
            || self.moves_caches()
            || self.has_to_place()
    }

    /// Whether a node keeps something, or may get something: what all must have heard, it must. One that is silent
    /// keeps what fewer others have than a write needs.
    pub fn counts(&self, node: &Node) -> bool {
        match node.state {
            NodeState::Up => true,
            NodeState::Draining | NodeState::Down => self.keeps(node.id),
            NodeState::Dead => false,
        }
    }

    /// Whether a node is none that was taken out: what it keeps still, it may have lost.
    pub(super) fn is_in(&self, node: NodeId) -> bool {
        self.node(node).is_some_and(|node| matches!(node.state, NodeState::Up | NodeState::Draining))
    }

    /// Whether a node is in some group, or was the last one there that had all.
    pub(crate) fn keeps(&self, node: NodeId) -> bool {
        let groups = self.spreads.iter().flat_map(|spread| &spread.groups);
        groups.into_iter().any(|group| group.members().any(|id| id == node) || group.eligible.contains(&node))
    }

    /// Begins moves: of what nodes that drain have, to where operators have put groups, and, if `evens`, to nodes that
    /// keep less than their share. `may`: whether a node may be asked to keep a group. Whether there were any.
    pub fn begin_moves(&mut self, may: impl Fn(GroupId, NodeId) -> bool, evens: bool) -> bool {
        let mut busy = self.busy();
        let nodes = std::mem::take(&mut self.nodes);
        let mut any = false;
        for spread in self.spreads.iter_mut().filter(|spread| spread.kind == Kind::Kept) {
            let mut moves = Moves::of(spread, &nodes).with(&self.placed);
            drop(moves.leavers(spread));
            for heir in moves.heirs(spread, &may) {
                if is_free(&busy, heir.to) {
                    moves.begin(spread, &mut busy, (heir.number, heir.from, heir.to));
                    any = true;
                }
            }
            while let Some(next) = moves.next(spread, &busy, &may, evens) {
                moves.begin(spread, &mut busy, next);
                any = true;
            }
        }
        self.nodes = nodes;
        any
    }

    /// How many copies are being made at each node.
    fn busy(&self) -> BTreeMap<NodeId, usize> {
        let mut busy = BTreeMap::new();
        // What nobody gives is not on its way.
        let groups = self.spreads.iter().flat_map(|spread| &spread.groups);
        let groups = groups.filter(|group| group.primary.is_some_and(|node| self.is_in(node)));
        let members = groups.flat_map(|group| &group.others);
        let syncing = members.filter(|member| member.standing != Standing::Backup);
        syncing.for_each(|member| *busy.entry(member.node).or_default() += 1);
        busy
    }

    /// Ends moves: where a group has one full member too many one goes. By one map it hands the lead over and is
    /// sealed, and when it has told that it has that it goes by another one: it has answered reads. `has`: whether a
    /// node has told that it has the map of this epoch. `leaves`: whether it is about to end. Whether anything changed.
    pub fn end_moves(
        &mut self,
        has: impl Fn(NodeId, u32) -> bool,
        is_heard: impl Fn(NodeId) -> bool,
        leaves: impl Fn(NodeId) -> bool,
    ) -> bool {
        let nodes = std::mem::take(&mut self.nodes);
        let mut any = false;
        for spread in self.spreads.iter_mut().filter(|spread| spread.kind == Kind::Kept) {
            let mut moves = Moves::of(spread, &nodes).with(&self.placed);
            let mut loads = Loads::of(spread, &moves.slots);
            let leavers = moves.leavers(spread);
            for (number, group) in spread.groups.iter_mut().enumerate() {
                // Who was to go stays where the move was called off.
                any |= group.unseal(|id| leaves(id) || leavers.contains(&(number, id)));
            }
            for (number, goes) in leavers {
                let (group, slots) = (&mut spread.groups[number], moves.slots[number]);
                if group.copies() <= usize::from(spread.copies) {
                    continue;
                }
                any |= match group.primary == Some(goes) {
                    true => {
                        let next = loads.lightest(&moves.successors(group, &is_heard), slots, |_| true);
                        let is_over = next.is_some_and(|next| group.hand_over(next));
                        if is_over {
                            if bugs::has(Bug::Unsealed) {
                                group.leave(goes)
                            } else {
                                group.seal(goes)
                            };
                        }
                        is_over
                    }
                    false if group.answers(goes) && !bugs::has(Bug::UnsealedCopy) => group.seal(goes),
                    false => has(goes, group.epoch) && group.leave(goes),
                };
            }
        }
        self.nodes = nodes;
        // Who was sent away has gone: it may get the group again, as any other.
        self.forget_placed();
        any
    }

    /// A node gives away all that it keeps, or stays; what was on its way from it is called off then.
    pub fn drain(&mut self, node: NodeId, drains: bool) {
        let state = if drains { NodeState::Draining } else { NodeState::Up };
        self.nodes.iter_mut().filter(|it| it.id == node).for_each(|it| it.state = state);
        if !drains {
            self.call_off_moves(node);
        }
    }

    /// A node gets no copies any more that it has not whole.
    pub fn call_off_copies(&mut self, node: NodeId) {
        let groups = self.spreads.iter_mut().flat_map(|spread| &mut spread.groups);
        groups.for_each(|group| group.others.retain(|it| it.node != node || it.standing == Standing::Backup));
    }

    /// Calls off what moves from a node, or to it, and has not come yet: members that are being brought up to date
    /// where there are as many others as copies are kept.
    fn call_off_moves(&mut self, node: NodeId) {
        for spread in &mut self.spreads {
            let copies = usize::from(spread.copies);
            for group in spread.groups.iter_mut().filter(|group| group.members().any(|id| id == node)) {
                while group.members().count() > copies
                    && let Some(at) = group.others.iter().position(|it| it.standing == Standing::Syncing)
                {
                    group.others.remove(at);
                }
            }
        }
    }

    /// A node that keeps nothing is none of the herd any more.
    pub fn forget(&mut self, node: NodeId) {
        self.nodes.retain(|it| it.id != node);
        let groups = self.spreads.iter_mut().flat_map(|spread| &mut spread.groups);
        groups.for_each(|group| group.eligible.retain(|id| *id != node));
    }
}

/// What the nodes of a spread group keep, and what they should.
pub(super) struct Moves<'n> {
    nodes: BTreeMap<NodeId, &'n Node>,
    /// Slots of the groups, by number.
    pub(super) slots: Vec<u64>,
    kept: BTreeMap<NodeId, i64>,
    shares: BTreeMap<NodeId, i64>,
    placed: &'n [Placed],
}

impl<'n> Moves<'n> {
    pub(super) fn of(spread: &Spread, nodes: &'n [Node]) -> Self {
        let slots = spread.slots_of_groups();
        let mut kept = BTreeMap::new();
        for (group, slots) in spread.groups.iter().zip(&slots) {
            group.members().for_each(|id| *kept.entry(id).or_default() += *slots as i64);
        }
        let shares = shares(nodes, spread.copies.into()).into_iter().map(|(id, slots)| (id, slots as i64)).collect();
        Self { nodes: nodes.iter().map(|node| (node.id, node)).collect(), slots, kept, shares, placed: &[] }
    }

    /// Where an operator has put groups.
    fn with(self, placed: &'n [Placed]) -> Self {
        Self { placed, ..self }
    }

    /// What an operator has said of a group.
    fn placed_of(&self, id: GroupId) -> impl Iterator<Item = &Placed> {
        self.placed.iter().filter(move |it| it.group == id)
    }

    fn drains(&self, id: NodeId) -> bool {
        self.nodes.get(&id).is_some_and(|node| node.state == NodeState::Draining)
    }

    pub(super) fn is_up(&self, id: NodeId) -> bool {
        self.nodes.get(&id).is_some_and(|node| node.state == NodeState::Up)
    }

    /// Who may lead after a primary that goes, of those that are heard. Who has just come knows least of which requests
    /// were answered before: it leads only where nobody else has all.
    fn successors(&self, group: &Group, is_heard: impl Fn(NodeId) -> bool) -> Vec<NodeId> {
        let backups = group.others.iter().filter(|it| it.standing == Standing::Backup && !self.drains(it.node));
        let latest = backups.clone().map(|it| it.since).max();
        let there = backups.filter(|it| is_heard(it.node) && self.is_up(it.node));
        let (new, old): (Vec<&Member>, Vec<&Member>) = there.partition(|it| Some(it.since) == latest);
        let may = if old.is_empty() { new } else { old };
        may.into_iter().map(|member| member.node).collect()
    }

    /// How much more a node keeps than its share.
    pub(super) fn excess(&self, id: NodeId) -> i64 {
        let of = |slots: &BTreeMap<NodeId, i64>| slots.get(&id).copied().unwrap_or(0);
        of(&self.kept) - of(&self.shares)
    }

    /// Whether a node is on the host of one of these, and in the rack of one of them.
    fn is_near(&self, id: NodeId, others: &[NodeId]) -> (bool, bool) {
        let Some(own) = self.nodes.get(&id) else { return (false, false) };
        let others: Vec<&&Node> = others.iter().filter_map(|id| self.nodes.get(id)).collect();
        (others.iter().any(|it| it.host == own.host), others.iter().any(|it| it.rack == own.rack))
    }

    /// Which member goes, of each group that has one too many, or gets one; from now on they keep that no more.
    fn leavers(&mut self, spread: &Spread) -> Vec<(usize, NodeId)> {
        let mut leavers = Vec::new();
        let has_more = |group: &Group| group.members().count() > usize::from(spread.copies);
        for (number, group) in spread.groups.iter().enumerate().filter(|(_, group)| has_more(group)) {
            let Some(goes) = self.leaver(id_of(spread, number), group) else { continue };
            *self.kept.entry(goes).or_default() -= self.slots[number] as i64;
            leavers.push((number, goes));
        }
        leavers
    }

    /// Which of the members that have all goes.
    fn leaver(&self, number: GroupId, group: &Group) -> Option<NodeId> {
        let members: Vec<NodeId> = group.members().collect();
        group.full().max_by_key(|id| {
            let others: Vec<NodeId> = members.iter().copied().filter(|other| other != id).collect();
            let (host, _) = self.is_near(*id, &others);
            let is_out = !self.is_up(*id) && !self.drains(*id);
            let is_sent = self.placed_of(number).any(|it| it.from == Some(*id));
            let stays = self.placed_of(number).any(|it| it.node == *id);
            // Who was chosen goes, if all else is the same.
            let is_sealed = group.sealed().any(|it| it == *id);
            (is_out, self.drains(*id), is_sent, !stays, is_sealed, host, self.excess(*id), *id)
        })
    }

    /// A group gets a member more, which is to have what another one has.
    fn begin(
        &mut self,
        spread: &mut Spread,
        busy: &mut BTreeMap<NodeId, usize>,
        (number, from, to): (usize, NodeId, NodeId),
    ) {
        let slots = self.slots[number] as i64;
        spread.groups[number].others.push(Member { node: to, standing: Standing::Syncing, since: 0 });
        *self.kept.entry(from).or_default() -= slots;
        *self.kept.entry(to).or_default() += slots;
        *busy.entry(to).or_default() += 1;
    }

    /// Whether a group may get a member more.
    fn may_begin(spread: &Spread, group: &Group) -> bool {
        is_whole(group) && group.members().count() <= usize::from(spread.copies)
    }

    /// Who gets what nodes have that drain, so that in the end all have their shares as nearly as can be: what went to
    /// a node that is above its share then would have to go on from there.
    fn heirs(&self, spread: &Spread, may: impl Fn(GroupId, NodeId) -> bool) -> Vec<Heir> {
        let mut heirs = Vec::new();
        let mut excess: BTreeMap<NodeId, i64> = self.nodes.keys().map(|id| (*id, self.excess(*id))).collect();
        for (number, group) in spread.groups.iter().enumerate().filter(|(_, group)| Self::may_begin(spread, group)) {
            let Some(from) = group.members().find(|id| self.drains(*id)) else { continue };
            let may = self.candidates(group, from, |to| may(id_of(spread, number), to));
            let Some(to) = may.iter().copied().min_by_key(|id| (excess[id], *id)) else { continue };
            let slots = self.slots[number] as i64;
            excess.entry(to).and_modify(|it| *it += slots);
            heirs.push(Heir { number, from, to, may, slots });
        }
        // Each makes it more even; where groups are of many sizes not each is worth the search.
        for _ in 0..heirs.len() {
            if !even_out(&mut heirs, &mut excess) {
                break;
            }
        }
        heirs
    }

    /// A group that is to get a member more, the one that goes then, and the one that comes: where an operator wants
    /// it, or, if `evens`, where it makes shares more even.
    fn next(
        &self,
        spread: &Spread,
        busy: &BTreeMap<NodeId, usize>,
        may: impl Fn(GroupId, NodeId) -> bool,
        evens: bool,
    ) -> Option<(usize, NodeId, NodeId)> {
        let id = |number: usize| id_of(spread, number);
        let is_free = |id: NodeId| is_free(busy, id);
        let groups = || spread.groups.iter().enumerate().filter(|(_, group)| Self::may_begin(spread, group));
        let placed = groups().find_map(|(number, group)| {
            let due = |it: &&Placed| is_due(it, group, self.nodes.get(&it.node).copied());
            let may = |it: &&Placed| is_free(it.node) && may(id(number), it.node);
            let to = self.placed_of(id(number)).find(|it| due(it) && may(it))?.node;
            Some((number, self.leaver(id(number), group)?, to))
        });
        if placed.is_some() || !evens {
            return placed;
        }
        let evened = groups().filter_map(|(number, group)| {
            let stays = |node: &NodeId| self.placed_of(id(number)).any(|it| it.node == *node);
            let from = group.members().filter(|node| !stays(node)).max_by_key(|id| (self.excess(*id), *id))?;
            let to = self.candidates(group, from, |to| may(id(number), to)).into_iter().filter(|to| is_free(*to));
            let to = to.min_by_key(|id| (self.excess(*id), *id))?;
            let slots = self.slots[number] as i64;
            let (more, less) = (self.excess(from), -self.excess(to));
            // Both together are nearer to their shares then, and nobody gets much more than its own.
            let is_better = slots > 0 && more > 0 && 2 * less > slots && more + less > slots;
            is_better.then_some((more + less, Reverse(number), from, to))
        });
        evened.max().map(|(_, Reverse(number), from, to)| (number, from, to))
    }

    /// Who may get what a member has: on the host of no other member, and in the rack of none, as far as there are
    /// such. Nobody on a host that another member is on, unless that one is, too, or must go.
    fn candidates(&self, group: &Group, from: NodeId, may: impl Fn(NodeId) -> bool) -> Vec<NodeId> {
        let stay: Vec<NodeId> = group.members().filter(|id| *id != from).collect();
        let may = |id: &NodeId| *id != from && self.is_up(*id) && !stay.contains(id) && may(*id);
        let all: Vec<NodeId> = self.nodes.keys().copied().filter(may).collect();
        let Some(near) = all.iter().map(|id| self.is_near(*id, &stay)).min() else { return all };
        let was_near = self.is_near(from, &stay).0;
        let is_so = !near.0 || was_near || self.drains(from);
        all.into_iter().filter(|id| is_so && self.is_near(*id, &stay) == near).collect()
    }
}

/// Who gets a group of a node that drains.
struct Heir {
    number: usize,
    from: NodeId,
    to: NodeId,
    /// Who might.
    may: Vec<NodeId>,
    slots: i64,
}

/// Has something go elsewhere, and if need be something else from there, so that a node has less above its share and
/// another one more below it. `excess`: of what each will keep. Whether that could be.
fn even_out(heirs: &mut [Heir], excess: &mut BTreeMap<NodeId, i64>) -> bool {
    let most = heirs.iter().map(|heir| heir.slots).max().unwrap_or(0);
    let least = heirs.iter().flat_map(|heir| &heir.may).map(|id| excess[id]).min().unwrap_or(0);
    let full: BTreeSet<NodeId> = heirs.iter().map(|heir| heir.to).collect();
    let mut full: Vec<NodeId> = full.into_iter().filter(|id| excess[id] - least > most).collect();
    full.sort_by_key(|id| Reverse(excess[id]));
    for first in full {
        // How each node is reached: what goes there, and from whom.
        let mut ways: BTreeMap<NodeId, (usize, NodeId)> = BTreeMap::new();
        let mut next = VecDeque::from([first]);
        while let Some(from) = next.pop_front() {
            for (at, heir) in heirs.iter().enumerate().filter(|(_, heir)| heir.to == from) {
                for to in heir.may.iter().filter(|to| **to != first) {
                    if let Entry::Vacant(way) = ways.entry(*to) {
                        way.insert((at, from));
                        next.push_back(*to);
                    }
                }
            }
        }
        let last = ways.keys().copied().min_by_key(|id| (excess[id], *id));
        let Some(mut to) = last.filter(|last| excess[&first] - excess[last] > most) else { continue };
        while let Some((at, from)) = ways.get(&to).copied() {
            let slots = heirs[at].slots;
            heirs[at].to = to;
            excess.entry(from).and_modify(|it| *it -= slots);
            excess.entry(to).and_modify(|it| *it += slots);
            to = from;
        }
        return true;
    }
    false
}

fn is_free(busy: &BTreeMap<NodeId, usize>, id: NodeId) -> bool {
    busy.get(&id).is_none_or(|copies| *copies < MOVES_AT_ONCE)
}

fn id_of(spread: &Spread, number: usize) -> GroupId {
    GroupId { spread: spread.id, number: number as u16 }
}

/// Whether somebody leads, and all others have all.
fn is_whole(group: &Group) -> bool {
    group.primary.is_some() && group.others.iter().all(|member| member.standing == Standing::Backup)
}
