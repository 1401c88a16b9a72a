//! What the warden does of itself, as time passes: it does what primaries want, seats who has joined, takes out who is
//! silent or about to end, has lost copies made anew, opens groups that hold nothing any more, and shares the lead out
//! again when all is whole.

use super::flight::Flight;
use super::reach::Heard;
use super::state::{Rules, State};
use super::{Phase, Warden};
use crate::limits::{BALANCE_CALM_MS, REPAIR_AFTER_MS, REPAIR_AGAIN_MAX_MS};
use crate::place::{Draft, Group, GroupId, Map, Node, NodeId, Standing};
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
    /// The epoch at which the lead was even, and what nodes keep.
    even: u32,
    /// Whether nodes are being given their shares.
    evening: bool,
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
    /// Whether members move, and whether to nodes that keep less than their share.
    moves: Option<bool>,
    /// Nodes that are silent.
    silent: Vec<NodeId>,
    /// Nodes that were, and are heard again.
    back: Vec<NodeId>,
    /// Nodes that drained and have ended.
    left: Vec<NodeId>,
    /// Nodes whose process has ended.
    dead: Vec<NodeId>,
    /// Nodes that are about to end.
    leaving: Vec<NodeId>,
    /// Nodes that are silent for so long that others may have their groups of class `cache`.
    cold: Vec<NodeId>,
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

    /// Groups that have been short of members, for a while if a node is gone that may come back and writes go on
    /// without it, and the nodes that may be asked: those that are there, are none of its members and are not barred.
    fn repairs_due(&mut self, map: &Map, there: &[Node], now_ms: u64) -> BTreeMap<GroupId, BTreeSet<NodeId>> {
        let short = map.short_groups(there.len()).into_iter().filter_map(|id| Some((id, map.group(id)?)));
        let short: BTreeMap<GroupId, &Group> = short.collect();
        self.short.retain(|id, (epoch, _)| short.get(id).is_some_and(|group| group.epoch == *epoch));
        let after_ms = if there.len() < map.nodes.len() { REPAIR_AFTER_MS } else { 0 };
        let mut due = BTreeMap::new();
        for (id, group) in short {
            let (_, since_ms) = *self.short.entry(id).or_insert((group.epoch, now_ms));
            let may =
                |node: &NodeId| group.members().all(|member| member != *node) && !self.is_barred(id, *node, now_ms);
            let nodes: BTreeSet<NodeId> = there.iter().map(|node| node.id).filter(may).collect();
            let is_stopped = map.spread(id.spread).is_some_and(|spread| group.copies() < spread.needed.into());
            if (is_stopped || now_ms >= since_ms + after_ms) && !nodes.is_empty() {
                due.insert(id, nodes);
            }
        }
        due
    }

    /// Whether a node could not keep a copy of a group lately.
    fn is_barred(&self, id: GroupId, node: NodeId, now_ms: u64) -> bool {
        self.barred.get(&(id, node)).is_some_and(|bar| now_ms < bar.until_ms)
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
        self.reach.forget_others(map);
        let heard = self.reach.at(self.now_ms);
        let there = heard.there(&map.nodes);
        let mut todo = self.care.look(map, &there, self.now_ms);
        let all_there = heard.all_count(map);
        todo.balance &= all_there
            && self.is_ready(&kept.state)
            && !map.has_any(Standing::Syncing)
            && !map.has_any(Standing::Joining);
        self.care.evening = (self.care.evening || todo.balance) && all_there && kept.state.held;
        todo.moves = (self.care.evening || map.is_moving()).then_some(self.care.evening);
        (todo.silent, todo.back) = self.reach.changed(map, self.now_ms);
        if !kept.state.held {
            // Groups are planned anew before the first object, and who is silent may live by an older plan.
            todo.silent.clear();
        } else {
            todo.dead = self.reach.unburied(map);
            todo.leaving = self.reach.leaving(map, self.now_ms);
            todo.cold = self.reach.cold(map);
        }
        todo.left = self.reach.left(map, kept.state.held, self.now_ms);
        let (balances, epoch) = (todo.balance, map.epoch);
        let has = |node: NodeId, epoch: u32| {
            let told = self.have.get(&node).filter(|told| map.node(node).is_some_and(|it| it.incarnation == told.0));
            told.is_some_and(|told| told.1 >= epoch)
        };
        let may = |id: GroupId, node: NodeId| !self.care.is_barred(id, node, self.now_ms);
        let known = Known { there: &there, has: &has, may: &may };
        let next = kept.state.tended(&self.rules(), todo, &known);
        let rests = next.is_none() && !map.is_moving();
        self.care.evening &= !rests;
        if balances && rests {
            self.care.even = epoch;
        }
        let flight = next.map(|map| {
            let stamp = self.next_stamp();
            let mut state = State { map, ..kept.state.clone() };
            state.members.retain(|id, _| state.map.node(*id).is_some());
            Flight::new(Some(&kept), state, stamp, Vec::new(), Vec::new())
        });
        self.kept = Some(kept);
        flight.into_iter().for_each(|flight| self.fly(flight));
    }
}

/// What else decides.
struct Known<'a> {
    /// The nodes that are up and heard.
    there: &'a [Node],
    /// Whether a node has told that it has the map of this epoch.
    has: &'a dyn Fn(NodeId, u32) -> bool,
    /// Whether a node may be asked to keep a group.
    may: &'a dyn Fn(GroupId, NodeId) -> bool,
}

impl State {
    /// The map after all of it; `None`: there was nothing to do, or it can't be done.
    fn tended(&self, rules: &Rules, todo: Todo, known: &Known<'_>) -> Option<Arc<Map>> {
        let Todo { wants, repair, balance, moves, silent, back, left, dead, leaving, cold } = todo;
        let opens = may_reopen(&self.map, &rules.heard).is_some();
        let has_joining = self.map.has_any(Standing::Joining);
        let has_changed =
            !(silent.is_empty() && back.is_empty() && left.is_empty() && dead.is_empty() && cold.is_empty());
        let is_calm = wants.is_empty() && repair.is_empty() && !balance && moves.is_none() && leaving.is_empty();
        if is_calm && !opens && !has_joining && !has_changed {
            return None;
        }
        let mut any = false;
        let map = self.changed(rules, |draft| {
            // What is sealed from here on has an epoch that nobody can have.
            any |= draft.unseal_caches(known.has);
            any |= draft.seat_joined() || !back.is_empty() || !left.is_empty();
            for (id, epoch, want) in wants {
                any |= draft.grant(id, epoch, want);
            }
            back.into_iter().for_each(|node| draft.bring_back(node));
            let before = (!silent.is_empty() || !dead.is_empty()).then(|| draft.clone());
            for node in dead {
                draft.bury(node, |other| rules.heard.hears(other));
            }
            for node in &silent {
                draft.take_out(*node, |other| rules.heard.hears(other) && !silent.contains(&other));
            }
            // Who drains stays where fewer copies than a write needs would be left, and that is no change.
            any |= before.is_some_and(|before| before != *draft);
            for node in leaving {
                any |= draft.retire(node, |epoch| (known.has)(node, epoch), |other| rules.heard.hears(other));
            }
            left.into_iter().for_each(|node| draft.forget(node));
            cold.into_iter().for_each(|node| any |= draft.give_up_caches(node));
            if let Some(there) = may_reopen(draft, &rules.heard) {
                draft.reopen(&there);
                any = true;
            }
            any |= draft.repair(&repair, known.there);
            if let Some(evens) = moves {
                any |= draft.end_moves(known.has, |node| rules.heard.hears(node));
                let is_there = |node: NodeId| known.there.iter().any(|it| it.id == node);
                any |= draft.begin_moves(|id, node| is_there(node) && (known.may)(id, node), evens);
                any |= draft.seal_caches(is_there, evens);
            }
            any |= balance && !draft.is_moving() && draft.balance();
        });
        map.ok().filter(|_| any)
    }
}

/// The nodes over which groups that hold nothing any more are opened, if there are such groups.
fn may_reopen(map: &Draft, heard: &Heard<'_>) -> Option<Vec<Node>> {
    if !map.has_lost_groups() {
        return None;
    }
    heard.all_there(&map.nodes, None).filter(|there| map.may_reopen(there))
}
