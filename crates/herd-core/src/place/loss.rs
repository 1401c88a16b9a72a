//! What an operator gives up: groups that wait, led by nobody, for nodes which will not come back, and nodes that are
//! taken out for good. What only these had is lost, which the map notes, with who gave it up and when.
//!
//! Nothing here waits: who calls knows that the nodes answer for nothing any more. Caller: the warden.

use super::map::{Draft, Group, GroupId, Kind, NodeId};
use crate::limits::GIVEN_UP_MAX;
use std::collections::BTreeSet;

/// That somebody gave up what groups held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GivenUp {
    /// Map epoch of the loss, as the groups tell it.
    pub epoch: u32,
    /// How many groups.
    pub groups: u16,
    /// When, by the clock of who asked, ms since 1970.
    pub unix_ms: u64,
    /// Who.
    pub who: String,
}

impl Draft {
    /// The kept groups that are so, and lie in that spread group and have that number, where these are told.
    fn kept_where(&self, is_meant: impl Fn(GroupId, &Group) -> bool) -> BTreeSet<GroupId> {
        let kept = self.spreads.iter().filter(|spread| spread.kind == Kind::Kept);
        let all = kept.flat_map(|spread| {
            (0..).zip(&spread.groups).map(|(number, group)| (GroupId { spread: spread.id, number }, group))
        });
        all.filter(|(id, group)| is_meant(*id, group)).map(|(id, _)| id).collect()
    }

    /// The kept groups of which this node alone has all that was acknowledged.
    pub fn only_at(&self, node: NodeId) -> BTreeSet<GroupId> {
        self.kept_where(|_, group| group.is_only_at(node))
    }

    /// The kept groups that nobody leads, and that wait for nodes none of which is there.
    pub fn waiting(&self, is_there: impl Fn(NodeId) -> bool) -> BTreeSet<GroupId> {
        let waits = |group: &Group| group.primary.is_none() && !group.eligible.is_empty();
        self.kept_where(|_, group| waits(group) && !group.eligible.iter().any(|node| is_there(*node)))
    }

    /// What these groups held is lost: nobody has it any more who could lead them. They may be opened anew.
    pub fn give_up(&mut self, groups: &BTreeSet<GroupId>, who: &str, unix_ms: u64) {
        let epoch = self.epoch + 1;
        for id in groups {
            let spread = self.spreads.iter_mut().find(|spread| spread.id == id.spread);
            let group = spread.and_then(|spread| spread.groups.get_mut(usize::from(id.number)));
            group.into_iter().for_each(|group| *group = Group { lost: epoch, ..Group::default() });
        }
        if !groups.is_empty() {
            let excess = (self.given_up.len() + 1).saturating_sub(GIVEN_UP_MAX);
            self.given_up.drain(..excess);
            self.given_up.push(GivenUp { epoch, groups: groups.len() as u16, unix_ms, who: who.to_owned() });
        }
    }

    /// A node that answers for nothing any more is none of the herd from now on.
    pub fn detach(&mut self, node: NodeId, is_heard: impl Fn(NodeId) -> bool) {
        self.bury(node, is_heard);
        self.give_up_caches(node);
        self.forget(node);
    }
}
