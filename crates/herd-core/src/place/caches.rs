//! Groups of class `cache` as nodes come and go while the herd serves. They have one copy, which may go; so they are
//! not copied, but given to another node, empty.
//!
//! Nobody may get one while its node may still answer for it, and there is no other member who could be asked:
//!
//! * A node whose process has ended answers nothing; nor does one that has been silent for so long that all that was
//!   granted to it is over ([`crate::lease`]). Its groups are given up ([`Draft::give_up_caches`]), and opened anew
//!   elsewhere in the same map, as all groups that hold nothing are.
//! * A node that lives, and drains, or ends, or has more than its share, is told first: its group is *sealed*, led by
//!   nobody by one map, with the node as the one that is eligible. When it has told that it has that map, another node
//!   leads the group by the next one. Nothing else is kept of it, so any warden goes on with what another began.
//!
//! Who has lost a group drops what it has of it when it hears so, also if it gets the group again: the epoch since
//! which the group is led tells. Callers: the warden.

use super::map::{Draft, Group, Kind, Node, NodeId, NodeState, Spread};
use super::moves::Moves;
use crate::bugs::{self, Bug};
use std::cmp::Reverse;

impl Draft {
    fn caches(&self) -> impl Iterator<Item = &Spread> {
        self.spreads.iter().filter(|spread| spread.kind == Kind::Cache)
    }

    fn caches_mut(&mut self) -> impl Iterator<Item = &mut Spread> {
        self.spreads.iter_mut().filter(|spread| spread.kind == Kind::Cache)
    }

    /// Whether a node has groups of class `cache`, sealed ones too.
    pub fn has_caches(&self, node: NodeId) -> bool {
        self.caches().any(|spread| spread.groups.iter().any(|group| group.eligible.contains(&node)))
    }

    /// Whether such a group is sealed that this node had.
    pub fn has_sealed(&self, node: NodeId) -> bool {
        self.caches().any(|spread| spread.groups.iter().any(|group| is_sealed(group) && group.eligible.contains(&node)))
    }

    /// Whether such a group goes to another node, or is to, as its own drains.
    pub fn moves_caches(&self) -> bool {
        let drains = |id: NodeId| self.node(id).is_some_and(|node| node.state == NodeState::Draining);
        let moves = |group: &Group| is_sealed(group) || group.primary.is_some_and(drains);
        self.caches().any(|spread| spread.groups.iter().any(moves))
    }

    /// What a node had of class `cache` is gone: all is over that was granted to it. Whether there was anything.
    pub fn give_up_caches(&mut self, node: NodeId) -> bool {
        let groups = self.caches_mut().flat_map(|spread| &mut spread.groups);
        let its = groups.filter(|group| group.eligible.contains(&node));
        its.map(|group| (group.primary, group.eligible) = (None, Vec::new())).count() > 0
    }

    /// A node that lives is to lead no such groups any more; whether it led any.
    pub fn seal_caches_of(&mut self, node: NodeId) -> bool {
        let groups = self.caches_mut().flat_map(|spread| &mut spread.groups);
        groups.filter(|group| group.primary == Some(node)).map(|group| group.primary = None).count() > 0
    }

    /// Seals the groups of nodes that drain, where there is somebody to get them, and, if `evens`, a group of a node
    /// that has more than its share. Whether there were any.
    pub fn seal_caches(&mut self, is_there: impl Fn(NodeId) -> bool, evens: bool) -> bool {
        let up: Vec<NodeId> =
            self.nodes.iter().filter(|it| it.state == NodeState::Up && is_there(it.id)).map(|it| it.id).collect();
        let draining = self.nodes.iter().filter(|it| it.state == NodeState::Draining && !up.is_empty());
        let draining: Vec<NodeId> = draining.map(|node| node.id).collect();
        let mut any = false;
        draining.into_iter().for_each(|node| any |= self.seal_caches_of(node));
        let nodes = std::mem::take(&mut self.nodes);
        // One at a time: what is under way counts for nobody.
        for spread in self.caches_mut().filter(|it| evens && it.groups.iter().all(|group| group.primary.is_some())) {
            if let Some(number) = Moves::of(spread, &nodes).uneven_cache(spread, &up) {
                spread.groups[number].primary = None;
                any = true;
            }
        }
        self.nodes = nodes;
        any
    }

    /// Sealed groups whose node has told that it has the map by which they are so hold nothing any more, and may be
    /// opened elsewhere. `has`: whether a node has the map of this epoch. Whether there were any.
    pub fn unseal_caches(&mut self, has: impl Fn(NodeId, u32) -> bool) -> bool {
        let groups = self.caches_mut().flat_map(|spread| &mut spread.groups).filter(|group| is_sealed(group));
        let has = |node, epoch| has(node, epoch) || bugs::has(Bug::UnsealedCache);
        let is_told = |group: &&mut Group| group.eligible.iter().all(|node| has(*node, group.epoch));
        groups.filter(is_told).map(|group| group.eligible = Vec::new()).count() > 0
    }
}

impl Spread {
    /// A group of class `cache` that holds nothing is led by the node, of those that are there, that has least of its
    /// share.
    pub(super) fn open_cache(&mut self, number: usize, there: &[Node]) {
        let moves = Moves::of(self, there);
        let up = there.iter().filter(|node| node.state == NodeState::Up);
        let Some(next) = up.min_by_key(|node| (moves.excess(node.id), node.id)) else { return };
        self.groups[number] = Group { primary: Some(next.id), eligible: vec![next.id], ..Group::default() };
    }
}

impl Moves<'_> {
    /// A group of a node that has more than its share, if it and the one of these nodes that has least are together
    /// nearer to their shares when that one has it, and the one by which they are nearest. It is the one that gets it
    /// ([`Spread::open_cache`]).
    fn uneven_cache(&self, spread: &Spread, up: &[NodeId]) -> Option<usize> {
        let to = up.iter().copied().min_by_key(|id| (self.excess(*id), *id))?;
        let led = spread.groups.iter().enumerate().filter_map(|(number, group)| Some((number, group.primary?)));
        let better = led.filter_map(|(number, from)| {
            let (slots, more, less) = (self.slots[number] as i64, self.excess(from), -self.excess(to));
            let is_better = slots > 0 && more > 0 && 2 * less > slots && more + less > slots;
            (is_better && from != to && self.is_up(from)).then_some((slots * (more + less - slots), Reverse(number)))
        });
        better.max().map(|(_, Reverse(number))| number)
    }
}

/// Whether nobody may lead a group of class `cache` until its node has heard that it does not.
fn is_sealed(group: &Group) -> bool {
    group.primary.is_none() && !group.eligible.is_empty()
}
