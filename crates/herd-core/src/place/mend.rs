//! Groups as nodes come and go while the herd holds objects: who leads when a node was started anew, who gets its
//! copies back, who is a backup again, and that the lead is shared out evenly.
//!
//! * Nobody leads who has not all that was acknowledged: the next primary is one of the backups.
//! * What a node had is gone when it is started anew. It is syncing from then on, in the very map that tells of its new
//!   life, so nobody takes for a copy what is none.
//! * A member that has all, as its primary says, is joining; who is joining by one map is a backup by a later one.
//! * The lead goes from one member to another of a group that is whole: who led stays a backup, so the next primary
//!   decides nothing before that has heard of it.
//!
//! All these are changes of a draft; the map numbers what has changed. Callers: the warden, and that of the simulator.

use super::map::{Draft, Group, GroupId, Kind, Member, Node, NodeId, NodeState, Spread, Standing};
use crate::bugs::{Bug, has};
use crate::limits::BALANCE_MOVES_MAX;
use crate::replica::Want;
use std::collections::{BTreeMap, BTreeSet};

impl Draft {
    /// The memory of a node is gone. Groups that it led are led by a backup, of those that are heard first; it is
    /// syncing where it was a member and others have what was acknowledged, also who was joining until now. Where
    /// nobody has, that is noted. Gives whether anybody has anything.
    pub fn start_anew(&mut self, node: NodeId, is_heard: impl Fn(NodeId) -> bool) -> bool {
        self.seat_joined();
        // That of the map that comes of it: a node in another life changes it.
        let epoch = self.epoch + 1;
        let mut held = false;
        for spread in &mut self.spreads {
            let slots = spread.slots_of_groups();
            let mut loads = Loads::of(spread, &slots);
            for (group, slots) in spread.groups.iter_mut().zip(slots) {
                let was_eligible = group.eligible.contains(&node);
                group.start_anew(node, |backups| loads.lightest(backups, slots, &is_heard));
                held |= !group.eligible.is_empty();
                if was_eligible && group.eligible.is_empty() {
                    group.lost = if spread.kind == Kind::Kept { epoch } else { 0 };
                }
            }
        }
        held
    }

    /// A node is silent, and may live: it is in no group any more that has as many copies as a write needs without it,
    /// one of them at a node that is heard, and in none of which it has no copy yet. Where no copy is heard, nobody
    /// knows which of them lives. Groups that it led are led by a backup, of those that are heard first.
    /// What it has of class `cache` it may answer for much longer ([`Draft::give_up_caches`]). One that drains goes on
    /// to: it gets nothing when it is heard again.
    pub fn take_out(&mut self, node: NodeId, is_heard: impl Fn(NodeId) -> bool) {
        self.seat_joined();
        for spread in self.spreads.iter_mut().filter(|spread| spread.kind == Kind::Kept) {
            let slots = spread.slots_of_groups();
            let (mut loads, needed) = (Loads::of(spread, &slots), usize::from(spread.needed));
            for (group, slots) in spread.groups.iter_mut().zip(slots) {
                // A group that waits for it, led by nobody, goes on to.
                let is_spare = group.full().all(|member| member != node) && !group.is_only_at(node);
                let lives_on = group.full().any(|member| member != node && is_heard(member));
                if group.copies_without(node) >= needed.max(1) && lives_on || is_spare {
                    group.take_out(node, |backups| loads.lightest(backups, slots, &is_heard));
                }
            }
        }
        let up = self.nodes.iter_mut().filter(|it| it.id == node && it.state == NodeState::Up);
        up.for_each(|it| it.state = NodeState::Down);
    }

    /// The process of a node has ended, and what it had is gone: it is in no group any more, also where fewer copies
    /// stay than a write needs. Groups that it led are led by a backup, of those that are heard first. A kept group of
    /// which nobody else has all waits for it, led by nobody: what was lost is noted when it is started anew. One that
    /// drains goes on to.
    pub fn bury(&mut self, node: NodeId, is_heard: impl Fn(NodeId) -> bool) {
        self.seat_joined();
        for spread in &mut self.spreads {
            let slots = spread.slots_of_groups();
            let (mut loads, is_kept) = (Loads::of(spread, &slots), spread.kind == Kind::Kept);
            for (group, slots) in spread.groups.iter_mut().zip(slots) {
                let is_last = group.is_only_at(node);
                group.take_out(node, |backups| loads.lightest(backups, slots, &is_heard));
                group.eligible.extend((is_last && is_kept).then_some(node));
            }
        }
        let drains = |it: &Node| it.state == NodeState::Draining;
        let its = self.nodes.iter_mut().filter(|it| it.id == node && !drains(it));
        its.for_each(|it| it.state = NodeState::Dead);
    }

    /// A node is about to end, and lives. Of the groups that it leads those go to a backup that has one which is heard,
    /// and it stays a backup there. It is in no group any more that has as many copies as a write needs, at nodes which
    /// are heard, once it has told that it has the map by which it does not lead it: until then it may answer reads. So
    /// this is done with one map, and again with a later one. `has`: whether it has told that it has the map of this
    /// epoch. Whether anything changed.
    pub fn retire(&mut self, node: NodeId, has: impl Fn(u32) -> bool, is_heard: impl Fn(NodeId) -> bool) -> bool {
        let mut any = false;
        for spread in &mut self.spreads {
            let slots = spread.slots_of_groups();
            let (mut loads, needed) = (Loads::of(spread, &slots), usize::from(spread.needed));
            for (group, slots) in spread.groups.iter_mut().zip(slots) {
                if group.primary == Some(node) {
                    let backups: Vec<NodeId> = group.backups().filter(|id| is_heard(*id)).collect();
                    let next = loads.lightest(&backups, slots, |_| true);
                    any |= next.is_some_and(|next| group.hand_over(next));
                }
                if group.can_spare(node, needed, &is_heard) {
                    // One that is syncing answers nothing.
                    let is_over = || has(group.epoch) && !group.answers(node);
                    any |= if is_over() { group.leave(node) } else { group.seal(node) };
                }
            }
        }
        // When it has told that it has the map which says so, others get them, empty.
        any |= self.nodes.iter().any(|it| it.state == NodeState::Up && it.id != node && is_heard(it.id))
            && self.seal_caches_of(node);
        any |= self.idles(node);
        let is_up = |it: &Node| it.id == node && it.state == NodeState::Up;
        if !self.keeps(node) {
            self.nodes.iter_mut().filter(|it| is_up(it)).for_each(|it| it.state = NodeState::Down);
        }
        any
    }

    /// Whether nothing is left to be done by [`Draft::retire`], once the node has told that it has each map.
    pub fn is_retired(&self, node: NodeId, is_heard: impl Fn(NodeId) -> bool) -> bool {
        !self.has_sealed(node) && !self.clone().retire(node, |_| true, is_heard)
    }

    /// Whether a node is about to leave some group that is kept.
    pub(crate) fn is_sealed(&self, node: NodeId) -> bool {
        let mut groups = self.spreads.iter().filter(|spread| spread.kind == Kind::Kept).flat_map(|it| &it.groups);
        groups.any(|group| group.sealed().any(|id| id == node))
    }

    /// Whether a node is up and keeps nothing.
    fn idles(&self, node: NodeId) -> bool {
        self.nodes.iter().any(|it| it.id == node && it.state == NodeState::Up) && !self.keeps(node)
    }

    /// A node that was taken out is heard again.
    pub fn bring_back(&mut self, node: NodeId) {
        self.nodes.iter_mut().filter(|it| it.id == node).for_each(|it| it.state = NodeState::Up);
    }

    /// All objects of the collections of these spread groups are gone, wherever somebody has some of them still: half
    /// of a copy whose original was lost.
    pub fn forget_objects(&mut self, is_meant: impl Fn(u16) -> bool) {
        let its = self.collections.iter_mut().filter(|it| is_meant(it.id.spread_group()));
        its.for_each(|it| it.generation = it.generation.saturating_add(1));
    }

    /// What the primary of a group asked for in the view of that epoch, if that is the present one; whether there was
    /// anything to do.
    pub fn grant(&mut self, id: GroupId, epoch: u32, want: Want) -> bool {
        let spread = self.spreads.iter_mut().find(|spread| spread.id == id.spread);
        let group = spread.and_then(|spread| spread.groups.get_mut(usize::from(id.number)));
        let Some(group) = group.filter(|it| it.epoch == epoch && it.primary.is_some()) else { return false };
        let (Want::Joining(node) | Want::Removed(node)) = want;
        let Some(at) = group.others.iter().position(|member| member.node == node) else { return false };
        match (want, group.others[at].standing) {
            (Want::Joining(_), Standing::Syncing) => group.others[at].standing = Standing::Joining,
            (Want::Removed(_), Standing::Syncing | Standing::Joining) => drop(group.others.remove(at)),
            _ => return false,
        }
        true
    }

    /// Whether a group that somebody leads has a member that stands so.
    pub fn has_any(&self, standing: Standing) -> bool {
        let groups = self.spreads.iter().flat_map(|spread| &spread.groups).filter(|group| group.primary.is_some());
        groups.flat_map(|group| &group.others).any(|member| member.standing == standing)
    }

    /// Who is joining, and is waited for therefore, has all and is a backup; whether there was anybody.
    pub fn seat_joined(&mut self) -> bool {
        let mut any = false;
        let groups = self.spreads.iter_mut().flat_map(|spread| &mut spread.groups);
        // Where nobody leads what they have is lost.
        for group in groups.filter(|group| group.primary.is_some()) {
            for member in group.others.iter_mut().filter(|member| member.standing == Standing::Joining) {
                member.standing = Standing::Backup;
                group.eligible.push(member.node);
                any = true;
            }
        }
        any
    }

    /// The groups that have fewer members than they should keep copies, those aside that were taken out, and somebody
    /// who decides; while so many nodes are there.
    pub fn short_groups(&self, nodes: usize) -> Vec<GroupId> {
        let mut short = Vec::new();
        for spread in self.spreads.iter().filter(|spread| spread.kind == Kind::Kept) {
            let has_fewer =
                |group: &Group| group.members().filter(|id| self.is_in(*id)).count() < nodes.min(spread.copies.into());
            let is_short = |group: &Group| group.primary.is_some_and(|id| self.is_in(id)) && has_fewer(group);
            let numbers = (0..).zip(&spread.groups).filter(|(_, group)| is_short(group)).map(|(number, _)| number);
            short.extend(numbers.map(|number| GroupId { spread: spread.id, number }));
        }
        short
    }

    /// Has these groups get one copy more each, at one of their nodes of those that are there; whether any could.
    pub fn repair(&mut self, groups: &BTreeMap<GroupId, BTreeSet<NodeId>>, there: &[Node]) -> bool {
        let mut any = false;
        let nodes: BTreeMap<NodeId, &Node> = self.nodes.iter().map(|node| (node.id, node)).collect();
        for (id, may) in groups {
            let there: Vec<Node> = there.iter().filter(|node| may.contains(&node.id)).cloned().collect();
            let Some(spread) = self.spreads.iter_mut().find(|spread| spread.id == id.spread) else { continue };
            let Some(group) = spread.groups.get(usize::from(id.number)) else { continue };
            let members: Vec<&Node> = group.members().filter_map(|id| nodes.get(&id).copied()).collect();
            let next = spread.next_member(&members, &there).map(|node| node.id);
            let group = &mut spread.groups[usize::from(id.number)];
            group.others.extend(next.map(|node| Member { node, standing: Standing::Syncing, since: 0 }));
            any |= next.is_some();
        }
        any
    }

    /// Shares the lead out: nobody leads a larger part of the slots that he keeps than another member who could lead
    /// some of them instead. While no copy is being made. Some groups at a time; whether there were any.
    pub fn balance(&mut self) -> bool {
        let mut left = BALANCE_MOVES_MAX;
        for spread in &mut self.spreads {
            let slots = spread.slots_of_groups();
            let mut loads = Loads::of(spread, &slots);
            while left > 0
                && let Some((number, next)) = loads.uneven(spread, &slots)
            {
                let group = &mut spread.groups[number];
                let Some(old) = group.primary.filter(|_| group.hand_over(next)) else { break };
                loads.moves(old, next, slots[number]);
                left -= 1;
            }
        }
        left < BALANCE_MOVES_MAX
    }
}

impl Group {
    fn start_anew(&mut self, node: NodeId, successor: impl FnOnce(&[NodeId]) -> Option<NodeId>) {
        let was_member = self.members().any(|member| member == node);
        self.take_out(node, successor);
        if was_member && self.primary.is_some() {
            self.others.push(Member { node, standing: Standing::Syncing, since: 0 });
        }
    }

    /// A backup leads, who led is a backup; whether it could.
    pub(super) fn hand_over(&mut self, next: NodeId) -> bool {
        let Some(at) = self.others.iter().position(|member| member.node == next) else { return false };
        self.unseal(|_| false);
        let Some(old) = self.primary.replace(next) else { return false };
        self.others[at].node = old;
        true
    }

    /// Whether a node is a member that does not lead, and enough others that are heard have all.
    fn can_spare(&self, node: NodeId, needed: usize, is_heard: impl Fn(NodeId) -> bool) -> bool {
        let is_other = self.others.iter().any(|member| member.node == node);
        is_other && self.full().filter(|id| *id != node && is_heard(*id)).count() >= needed.max(1)
    }

    /// The copies that others than this node have.
    fn copies_without(&self, node: NodeId) -> usize {
        self.full().filter(|member| *member != node).count()
    }

    /// A member that does not lead goes.
    pub(super) fn leave(&mut self, node: NodeId) -> bool {
        self.others.retain(|member| member.node != node);
        self.eligible.retain(|id| *id != node);
        true
    }

    fn take_out(&mut self, node: NodeId, successor: impl FnOnce(&[NodeId]) -> Option<NodeId>) {
        if !self.eligible.contains(&node) && self.members().all(|member| member != node) {
            return;
        }
        // Any of them may lead.
        self.unseal(|_| false);
        self.eligible.retain(|eligible| *eligible != node);
        self.others.retain(|member| member.node != node);
        self.primary = self.primary.filter(|primary| *primary != node);
        if self.primary.is_none() {
            let has_all = |member: &&Member| member.standing == Standing::Backup || has(Bug::Ineligible);
            let backups = self.others.iter().filter(has_all);
            self.primary = successor(&backups.map(|member| member.node).collect::<Vec<_>>());
            let primary = self.primary;
            self.others.retain(|member| Some(member.node) != primary);
            if has(Bug::Ineligible) {
                let new = primary.filter(|primary| !self.eligible.contains(primary));
                self.eligible.extend(new);
            }
        }
    }
}

/// The slots that nodes lead, and those that they keep.
pub(super) struct Loads(BTreeMap<NodeId, (u64, u64)>);

impl Loads {
    pub(super) fn of(spread: &Spread, slots: &[u64]) -> Self {
        let mut loads = Self(BTreeMap::new());
        for (group, slots) in spread.groups.iter().zip(slots) {
            for member in group.members() {
                let (led, kept) = loads.0.entry(member).or_default();
                *led += if group.primary == Some(member) { *slots } else { 0 };
                *kept += slots;
            }
        }
        loads
    }

    /// The part of its slots that a node leads, if it leads `more` than now.
    fn part(&self, node: NodeId, more: u64) -> u64 {
        let (led, kept) = self.0.get(&node).copied().unwrap_or_default();
        ((led + more) << 32) / kept.max(1)
    }

    /// Of those nodes, of which some are heard, the one that leads the least; it leads so many slots more from now on.
    pub(super) fn lightest(
        &mut self,
        nodes: &[NodeId],
        slots: u64,
        is_heard: impl Fn(NodeId) -> bool,
    ) -> Option<NodeId> {
        let next = nodes.iter().copied().min_by_key(|node| (!is_heard(*node), self.part(*node, slots), *node))?;
        self.0.entry(next).or_default().0 += slots;
        Some(next)
    }

    /// The group, and its next primary, by which the lead is shared out most.
    fn uneven(&self, spread: &Spread, slots: &[u64]) -> Option<(usize, NodeId)> {
        let mut best = (0, None);
        for (number, group) in spread.groups.iter().enumerate().filter(|(number, _)| slots[*number] > 0) {
            let Some(primary) = group.primary else { continue };
            for member in group.backups() {
                let gain = self.part(primary, 0).saturating_sub(self.part(member, slots[number]));
                if gain > best.0 {
                    best = (gain, Some((number, member)));
                }
            }
        }
        best.1
    }

    /// The lead of so many slots goes from one node to another.
    fn moves(&mut self, from: NodeId, to: NodeId, slots: u64) {
        self.0.entry(from).and_modify(|(led, _)| *led -= slots);
        self.0.entry(to).and_modify(|(led, _)| *led += slots);
    }
}
