//! What an operator has placed: that a node is to keep a group, and, if it is said so, instead of which other one.
//!
//! The map notes it, and the warden's moves follow: the node gets the group when it is there and has room, whoever
//! keeps most above its share goes, and evening out leaves the group there. It ends where it is called off, and with
//! what it is about: the node drains or is none of the herd any more, or the group is gone.

use super::map::{Draft, Group, GroupId, Kind, Node, NodeId, NodeState, Standing};

/// That a node is to keep a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Placed {
    /// The group.
    pub group: GroupId,
    /// Who is to keep it.
    pub node: NodeId,
    /// Who is to go for it; `None`: as for any move.
    pub from: Option<NodeId>,
}

impl Placed {
    /// What there is one of.
    pub(super) fn key(&self) -> (GroupId, NodeId) {
        (self.group, self.node)
    }
}

impl Draft {
    /// Notes that a node is to keep a group, and who is to go for it. Of what was noted before as much stays as the
    /// group keeps copies.
    pub fn place(&mut self, placed: Placed) {
        let copies = self.spread(placed.group.spread).map_or(1, |spread| usize::from(spread.copies));
        self.placed.retain(|it| it.group != placed.group || Some(it.node) != placed.from);
        let others = |it: &Placed| it.group == placed.group && it.node != placed.node;
        while self.placed.iter().filter(|it| others(it)).count() >= copies
            && let Some(at) = self.placed.iter().position(others)
        {
            self.placed.remove(at);
        }
        match self.placed.binary_search_by_key(&placed.key(), Placed::key) {
            Ok(at) => self.placed[at] = placed,
            Err(at) => self.placed.insert(at, placed),
        }
    }

    /// Nobody is to keep that group any more but as it comes; a copy that is on its way to one who was is called off.
    pub fn unplace(&mut self, id: GroupId) {
        let placed = self.placed.iter().filter(|it| it.group == id).map(|it| it.node).collect::<Vec<_>>();
        self.placed.retain(|it| it.group != id);
        let Some(spread) = self.spreads.iter_mut().find(|spread| spread.id == id.spread) else { return };
        let copies = usize::from(spread.copies);
        let Some(group) = spread.groups.get_mut(usize::from(id.number)) else { return };
        while group.members().count() > copies
            && let Some(at) =
                group.others.iter().position(|it| it.standing == Standing::Syncing && placed.contains(&it.node))
        {
            group.others.remove(at);
        }
    }

    /// Forgets what is about nodes or groups that are no more, or may keep nothing.
    pub(super) fn forget_placed(&mut self) {
        let mut placed = std::mem::take(&mut self.placed);
        placed.retain(|it| self.may_be_placed(it));
        for it in &mut placed {
            // Who has gone may come again.
            let group = self.group(it.group);
            it.from = it.from.filter(|from| group.is_some_and(|group| group.members().any(|node| node == *from)));
        }
        self.placed = placed;
    }

    /// Whether the map has such a group, which keeps what it has, and such a node, which may get some.
    pub(super) fn may_be_placed(&self, it: &Placed) -> bool {
        let kept = self.spread(it.group.spread).filter(|spread| spread.kind == Kind::Kept);
        let is_there = kept.is_some_and(|spread| usize::from(it.group.number) < spread.groups.len());
        is_there && self.node(it.node).is_some_and(|node| node.state != NodeState::Draining)
    }

    /// Whether a node that is up is still to get a group that it is to keep.
    pub(super) fn has_to_place(&self) -> bool {
        self.placed.iter().any(|it| self.group(it.group).is_some_and(|group| is_due(it, group, self.node(it.node))))
    }
}

/// Whether the node is up, and the group has yet to come to it.
pub(super) fn is_due(it: &Placed, group: &Group, node: Option<&Node>) -> bool {
    node.is_some_and(|node| node.state == NodeState::Up) && group.members().all(|member| member != it.node)
}
