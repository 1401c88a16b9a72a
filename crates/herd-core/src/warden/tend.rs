//! What the warden does of itself, as time passes: it does what primaries want, seats who has joined, takes out who is
//! silent, has lost copies made anew, opens groups that hold nothing any more, and shares the lead out again when all
//! is whole.

use super::flight::Flight;
use super::reach::Heard;
use super::state::{Rules, State};
use super::{Phase, Warden};
use crate::limits::{BALANCE_CALM_MS, REPAIR_AFTER_MS, REPAIR_AGAIN_MAX_MS};
use crate::place::{Group, GroupId, Map, Node, NodeId, Standing};
use crate::replica::Want;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What it keeps for that.
#[derive(Debug, Default)]
pub(super) struct Care {
    /// What primaries want, in which epoch: told again and again, until a map says something else of their groups.
    wants: BTreeMap<GroupId, (u32, Want)>,
    /// Groups with fewer members than they should have: their epoch, and since when it is so.
    short: BTreeMap<GroupId, (u32, u64)>,
    /// Who could not keep a copy of a group.
    barred: BTreeMap<(GroupId, NodeId), Bar>,
    /// The map's epoch, and since when it is that.
    calm: (u32, u64),
    /// The epoch at which the lead was even.
    even: u32,
}

/// A node could not keep a copy of a group, in that life of it: until when it is not asked again, and how long that
/// was.
#[derive(Debug)]
struct Bar {
    incarnation: u64,
    until_ms: u64,
    for_ms: u64,
}

/// What there is to do.
#[derive(Default)]
pub(super) struct Todo {
    wants: Vec<(GroupId, u32, Want)>,
    /// Groups that are to get a copy more, at one of these nodes.
    repair: BTreeMap<GroupId, BTreeSet<NodeId>>,
    /// Whether the lead may be shared out.
    balance: bool,
    /// Nodes that are silent.
    silent: Vec<NodeId>,
    /// Nodes that were, and are heard again.
    back: Vec<NodeId>,
}

impl Care {
    /// The primaries of groups want something, each in the view of that epoch; what is not of the map's stands for
    /// nothing.
    pub(super) fn wants(&mut self, map: &Map, wants: &[(GroupId, u32, Want)]) {
        let present = wants.iter().filter(|(id, epoch, _)| map.group(*id).is_some_and(|it| it.epoch == *epoch));
        self.wants.extend(present.map(|(id, epoch, want)| (*id, (*epoch, *want))));
    }

    /// Looks at the map, while these nodes are heard; what there is to do.
    fn look(&mut self, map: &Map, there: &[Node], now_ms: u64) -> Todo {
        if self.calm.0 != map.epoch {
            self.calm = (map.epoch, now_ms);
        }
        let wants = std::mem::take(&mut self.wants);
        for (id, (_, want)) in &wants {
            if let Want::Removed(node) = want {
                self.bar((*id, *node), map, now_ms);
            }
        }
        let lives = |node: NodeId, bar: &Bar| map.node(node).is_some_and(|it| it.incarnation == bar.incarnation);
        self.barred.retain(|(_, node), bar| lives(*node, bar) && now_ms < bar.until_ms + REPAIR_AGAIN_MAX_MS);
        Todo {
            wants: wants.into_iter().map(|(id, (epoch, want))| (id, epoch, want)).collect(),
            repair: self.repairs_due(map, there, now_ms),
            balance: self.even != map.epoch && now_ms >= self.calm.1 + BALANCE_CALM_MS,
            ..Todo::default()
        }
    }

    /// Groups that have been short of members, for a while if a node is gone that may come back, and the nodes that may
    /// be asked: those that are there, are none of its members and are not barred.
    fn repairs_due(&mut self, map: &Map, there: &[Node], now_ms: u64) -> BTreeMap<GroupId, BTreeSet<NodeId>> {
        let short = map.short_groups(there.len()).into_iter().filter_map(|id| Some((id, map.group(id)?)));
        let short: BTreeMap<GroupId, &Group> = short.collect();
        self.short.retain(|id, (epoch, _)| short.get(id).is_some_and(|group| group.epoch == *epoch));
        let after_ms = if there.len() < map.nodes.len() { REPAIR_AFTER_MS } else { 0 };
        let mut due = BTreeMap::new();
        for (id, group) in short {
            let (_, since_ms) = *self.short.entry(id).or_insert((group.epoch, now_ms));
            let is_barred = |node| self.barred.get(&(id, node)).is_some_and(|bar| now_ms < bar.until_ms);
            let may = |node: &NodeId| group.members().all(|member| member != *node) && !is_barred(*node);
            let nodes: BTreeSet<NodeId> = there.iter().map(|node| node.id).filter(may).collect();
            if now_ms >= since_ms + after_ms && !nodes.is_empty() {
                due.insert(id, nodes);
            }
        }
        due
    }

    /// A node could not keep a copy of a group: it is asked again ever later, as each time costs a copy.
    fn bar(&mut self, of: (GroupId, NodeId), map: &Map, now_ms: u64) {
        let Some(incarnation) = map.node(of.1).map(|node| node.incarnation) else { return };
        let bar = self.barred.entry(of).or_insert(Bar { incarnation, until_ms: 0, for_ms: REPAIR_AFTER_MS / 2 });
        // What is told again in the same view is one time.
        if now_ms >= bar.until_ms {
            bar.for_ms = (2 * bar.for_ms).min(REPAIR_AGAIN_MAX_MS);
            bar.until_ms = now_ms + bar.for_ms;
        }
    }
}

impl Warden {
    /// Does what there is to do, in one change of the map.
    pub(super) fn tend(&mut self) {
        let is_idle = matches!(self.phase, Phase::Idle);
        let Some(kept) = self.kept.take_if(|_| is_idle) else { return };
        let map = &kept.state.map;
        let heard = self.reach.at(self.now_ms);
        let there = heard.there(&map.nodes);
        let mut todo = self.care.look(map, &there, self.now_ms);
        todo.balance &= heard.silent(&map.nodes).is_empty()
            && self.is_ready(&kept.state)
            && !map.has_any(Standing::Syncing)
            && !map.has_any(Standing::Joining);
        (todo.silent, todo.back) = self.reach.changed(map);
        if !kept.state.held {
            // Groups are planned anew before the first object, and who is silent may live by an older plan.
            todo.silent.clear();
        }
        let (balances, epoch) = (todo.balance, map.epoch);
        let next = kept.state.tended(&self.rules(), todo, &there);
        if balances && next.is_none() {
            self.care.even = epoch;
        }
        let flight = next.map(|map| {
            let stamp = self.next_stamp();
            let state = State { map, ..kept.state.clone() };
            Flight::new(Some(&kept), state, stamp, Vec::new(), Vec::new())
        });
        self.kept = Some(kept);
        flight.into_iter().for_each(|flight| self.fly(flight));
    }
}

impl State {
    /// The map after all of it; `None`: there was nothing to do, or it can't be done.
    fn tended(&self, rules: &Rules, todo: Todo, there: &[Node]) -> Option<Arc<Map>> {
        let Todo { wants, repair, balance, silent, back } = todo;
        let opens = may_reopen(&self.map, &rules.heard);
        let has_joining = self.map.has_any(Standing::Joining);
        let has_changed = !silent.is_empty() || !back.is_empty();
        if wants.is_empty() && repair.is_empty() && !balance && opens.is_none() && !has_joining && !has_changed {
            return None;
        }
        let mut any = false;
        let map = self.changed(rules, |draft| {
            any |= draft.seat_joined() || has_changed;
            for (id, epoch, want) in wants {
                any |= draft.grant(id, epoch, want);
            }
            back.into_iter().for_each(|node| draft.bring_back(node));
            for node in &silent {
                draft.take_out(*node, |other| rules.heard.hears(other) && !silent.contains(&other));
            }
            if let Some(there) = &opens {
                draft.reopen(there);
                any = true;
            }
            any |= draft.repair(&repair, there);
            any |= balance && draft.balance();
        });
        map.ok().filter(|_| any)
    }
}

/// The nodes over which groups that hold nothing any more are opened, if there are such groups.
fn may_reopen(map: &Map, heard: &Heard<'_>) -> Option<Vec<Node>> {
    if !map.has_lost_groups() {
        return None;
    }
    heard.all_there(&map.nodes, None).filter(|there| map.may_reopen(there))
}
