//! What the warden does of itself, as time passes: it does what primaries want, seats who has joined, takes out who is
//! silent or about to end, has lost copies made anew, opens groups that hold nothing any more, and shares the lead out
//! again when all is whole.

use super::flight::Flight;
use super::reach::Heard;
use super::state::{Rules, State};
use super::{Order, Phase, Warden};
use crate::limits::{BALANCE_CALM_MS, REPAIR_AFTER_MS, REPAIR_AGAIN_MAX_MS, TEND_AGAIN_MS};
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
    /// Steps of what is to be done that make no map, each as a bit, and until when they are left out.
    failing: Option<(u64, u32)>,
    /// Why, as it was told last.
    told: Option<String>,
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
    pub(super) wants: Vec<(GroupId, u32, Want)>,
    /// Groups that are to get a copy more, at one of these nodes.
    pub(super) repair: BTreeMap<GroupId, BTreeSet<NodeId>>,
    /// Whether the lead may be shared out.
    pub(super) balance: bool,
    /// Whether members move, and whether to nodes that keep less than their share.
    pub(super) moves: Option<bool>,
    /// Nodes that are silent.
    pub(super) silent: Vec<NodeId>,
    /// Nodes that were, and are heard again.
    pub(super) back: Vec<NodeId>,
    /// Nodes that drained and have ended.
    pub(super) left: Vec<NodeId>,
    /// Nodes whose process has ended.
    pub(super) dead: Vec<NodeId>,
    /// Nodes that are about to end.
    pub(super) leaving: Vec<NodeId>,
    /// Nodes that are silent for so long that others may have their groups of class `cache`.
    pub(super) cold: Vec<NodeId>,
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

    /// What is to be told of something that can't be done: once while it lasts. `rests`: it is left out for now.
    fn news(&mut self, why: Option<String>, rests: bool) -> Option<String> {
        if why.is_some() || !rests {
            let told = std::mem::replace(&mut self.told, why.clone());
            return why.filter(|why| told.as_ref() != Some(why));
        }
        None
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
        let unburied = self.reach.unburied(map);
        let since_ms = self.unburied_ms.unwrap_or(self.now_ms);
        self.unburied_ms = (!unburied.is_empty()).then_some(since_ms);
        if !kept.state.held {
            // Groups are planned anew before the first object, and who is silent may live by an older plan.
            todo.silent.clear();
        } else {
            todo.dead = unburied;
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
        let but = self.care.failing.filter(|(until_ms, _)| self.now_ms < *until_ms).map_or(0, |(_, steps)| steps);
        let Tended { map: next, failing, why } = kept.state.tended(&self.rules(), &todo, &known, but);
        let has_failed = failing != 0;
        if has_failed || but == 0 {
            self.care.failing = has_failed.then_some((self.now_ms + TEND_AGAIN_MS, failing | but));
        }
        if let Some(why) = self.care.news(why, but != 0) {
            self.orders.push(Order::Tell(format!("the herd's map can't be changed as it should be: {why}")));
        }
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
pub(super) struct Known<'a> {
    /// The nodes that are up and heard.
    pub(super) there: &'a [Node],
    /// Whether a node has told that it has the map of this epoch.
    pub(super) has: &'a dyn Fn(NodeId, u32) -> bool,
    /// Whether a node may be asked to keep a group.
    pub(super) may: &'a dyn Fn(GroupId, NodeId) -> bool,
}

/// A part of what is done, as it is told where it can't be, and done to a draft; whether there was anything to do.
type Step<'a> = (&'static str, &'a dyn Fn(&mut Draft) -> bool);

/// What came of it all.
#[derive(Debug, Default)]
pub(super) struct Tended {
    /// The map after what could be done; `None`: there was nothing.
    pub(super) map: Option<Arc<Map>>,
    /// The steps that make no map of it, each as a bit, and why the first one does not.
    pub(super) failing: u32,
    pub(super) why: Option<String>,
}

impl State {
    /// The map after all of it, but for those steps that failed just now.
    pub(super) fn tended(&self, rules: &Rules, todo: &Todo, known: &Known<'_>, but: u32) -> Tended {
        let Todo { wants, repair, balance, moves, silent, back, left, dead, leaving, cold } = todo;
        let opens = may_reopen(&self.map, &rules.heard).is_some();
        let has_joining = self.map.has_any(Standing::Joining);
        let has_changed =
            !(silent.is_empty() && back.is_empty() && left.is_empty() && dead.is_empty() && cold.is_empty());
        let is_calm = wants.is_empty() && repair.is_empty() && !balance && moves.is_none() && leaving.is_empty();
        if is_calm && !opens && !has_joining && !has_changed {
            return Tended::default();
        }
        let hears = |node: NodeId| rules.heard.hears(node);
        let steps: [Step<'_>; 12] = [
            // What is sealed from here on has an epoch that nobody can have.
            ("groups that change their node", &|draft| draft.unseal_caches(known.has)),
            ("members that have all", &Draft::seat_joined),
            ("what primaries want", &|draft| {
                wants.iter().fold(false, |any, (id, epoch, want)| draft.grant(*id, *epoch, *want) | any)
            }),
            ("nodes that are heard again", &|draft| {
                back.iter().for_each(|node| draft.bring_back(*node));
                !back.is_empty()
            }),
            ("nodes that are gone", &|draft| draft.lose(dead, silent, hears)),
            ("nodes that are about to end", &|draft| {
                let of = |node: NodeId| move |epoch| (known.has)(node, epoch);
                leaving.iter().fold(false, |any, node| draft.retire(*node, of(*node), hears) | any)
            }),
            ("nodes that drained", &|draft| {
                left.iter().for_each(|node| draft.forget(*node));
                !left.is_empty()
            }),
            ("caches of nodes that are gone", &|draft| {
                cold.iter().fold(false, |any, node| draft.give_up_caches(*node) | any)
            }),
            ("groups that hold nothing", &|draft| {
                let there = may_reopen(draft, &rules.heard);
                there.iter().for_each(|there| draft.reopen(there));
                there.is_some()
            }),
            ("groups with too few copies", &|draft| draft.repair(repair, known.there)),
            ("what moves", &|draft| moves.is_some_and(|evens| draft.go_on_moving(known, hears, leaving, evens))),
            ("the lead", &|draft| *balance && !draft.is_moving() && draft.balance()),
        ];
        self.done(rules, &steps, but)
    }

    /// Does all of these steps that make a map; those are tried one by one only where all together make none.
    fn done(&self, rules: &Rules, steps: &[Step<'_>], but: u32) -> Tended {
        let attempt = |mask: u32| {
            let mut any = false;
            let chosen = steps.iter().enumerate().filter(|(at, _)| mask & 1 << at != 0);
            let map = self.changed(rules, |draft| chosen.for_each(|(_, (_, step))| any |= step(draft)));
            map.map(|map| Some(map).filter(|map| any && **map != *self.map))
        };
        let all = ((1 << steps.len()) - 1) & !but;
        if let Ok(map) = attempt(all) {
            return Tended { map, failing: 0, why: None };
        }
        let mut tended = Tended::default();
        let mut good = 0;
        for (at, (what, _)) in steps.iter().enumerate().filter(|(at, _)| all & 1 << at != 0) {
            match attempt(good | 1 << at) {
                Ok(map) => (good, tended.map) = (good | 1 << at, map),
                Err(error) => {
                    tended.failing |= 1 << at;
                    tended.why.get_or_insert_with(|| format!("{what}: {error}"));
                }
            }
        }
        tended
    }
}

impl Draft {
    /// Takes out who has died, and who is silent; whether anything changed: who drains stays where fewer copies than a
    /// write needs would be left. Of those who are found silent at the same look who is about to leave some group goes
    /// first: it has probably ended, and what it had is gone, where another one that lives has all.
    pub(super) fn lose(&mut self, dead: &[NodeId], silent: &[NodeId], hears: impl Fn(NodeId) -> bool) -> bool {
        if dead.is_empty() && silent.is_empty() {
            return false;
        }
        let before = self.clone();
        dead.iter().for_each(|node| self.bury(*node, &hears));
        let (leave, others): (Vec<NodeId>, Vec<NodeId>) = silent.iter().partition(|node| self.is_sealed(**node));
        for node in leave.into_iter().chain(others) {
            self.take_out(node, |other| hears(other) && !silent.contains(&other));
        }
        before != *self
    }

    /// Ends moves, begins others, and has groups of class `cache` change their node; whether there were any.
    fn go_on_moving(
        &mut self,
        known: &Known<'_>,
        hears: impl Fn(NodeId) -> bool,
        leaving: &[NodeId],
        evens: bool,
    ) -> bool {
        let is_there = |node: NodeId| known.there.iter().any(|it| it.id == node);
        let ended = self.end_moves(known.has, hears, |node| leaving.contains(&node));
        let begun = self.begin_moves(|id, node| is_there(node) && (known.may)(id, node), evens);
        self.seal_caches(is_there, evens) | begun | ended
    }
}

/// The nodes over which groups that hold nothing any more are opened, if there are such groups.
fn may_reopen(map: &Draft, heard: &Heard<'_>) -> Option<Vec<Node>> {
    if !map.has_lost_groups() {
        return None;
    }
    heard.all_there(&map.nodes, None).filter(|there| map.may_reopen(there))
}
