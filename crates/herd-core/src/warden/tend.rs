//! What the warden does of itself, as time passes: it does what primaries want, seats who has joined, has lost copies
//! made anew, opens groups that hold nothing any more, and shares the lead out again when all is whole.

use super::flight::Flight;
use super::reach::Heard;
use super::state::{Rules, State};
use super::{Phase, Warden};
use crate::limits::{BALANCE_CALM_MS, REPAIR_AFTER_MS, REPAIR_AGAIN_MAX_MS};
use crate::place::{GroupId, Map, Node, NodeId, NodeState};
use crate::replica::Want;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What it keeps for that.
#[derive(Debug, Default)]
pub(super) struct Care {
    /// What primaries want: told again and again, until a map says something else of their groups.
    wants: BTreeMap<GroupId, (u32, Want)>,
    /// Groups with fewer members than they should have: their epoch, and since when it is so.
    short: BTreeMap<GroupId, (u32, u64)>,
    /// Who could not keep a copy of a group: until when it is not asked again, and how long that was.
    barred: BTreeMap<(GroupId, NodeId), (u64, u64)>,
    /// The map's epoch, and since when it is that.
    calm: (u32, u64),
    /// The epoch at which the lead was even.
    even: u32,
}

/// What there is to do.
#[derive(Default)]
pub(super) struct Todo {
    wants: Vec<(GroupId, u32, Want)>,
    /// Groups that are to get a copy more.
    repair: Vec<GroupId>,
    /// At none of these nodes.
    barred: BTreeSet<(GroupId, NodeId)>,
    /// Whether the lead may be shared out.
    balance: bool,
}

impl Care {
    /// The primaries of groups want something, each in the view of that epoch.
    pub(super) fn wants(&mut self, wants: &[(GroupId, u32, Want)]) {
        for (group, epoch, want) in wants {
            let known = self.wants.entry(*group).or_insert((*epoch, *want));
            if known.0 <= *epoch {
                *known = (*epoch, *want);
            }
        }
    }

    /// Looks at the map, while these nodes are heard; what there is to do.
    fn look(&mut self, map: &Map, there: usize, now_ms: u64) -> Todo {
        if self.calm.0 != map.epoch {
            self.calm = (map.epoch, now_ms);
        }
        let short: BTreeMap<GroupId, u32> =
            map.short_groups(there).into_iter().filter_map(|id| Some((id, map.group(id)?.epoch))).collect();
        self.short.retain(|id, (epoch, _)| short.get(id) == Some(epoch));
        for (id, epoch) in short {
            self.short.entry(id).or_insert((epoch, now_ms));
        }
        let wants = std::mem::take(&mut self.wants);
        for (id, (_, want)) in &wants {
            if let Want::Removed(node) = want {
                self.bar((*id, *node), now_ms);
            }
        }
        self.barred.retain(|_, (until_ms, for_ms)| now_ms < *until_ms + *for_ms);
        let is_due = |since_ms: u64| now_ms >= since_ms + REPAIR_AFTER_MS;
        Todo {
            wants: wants.into_iter().map(|(id, (epoch, want))| (id, epoch, want)).collect(),
            repair: self.short.iter().filter(|(_, (_, since_ms))| is_due(*since_ms)).map(|(id, _)| *id).collect(),
            barred: self.barred.iter().filter(|(_, (until_ms, _))| now_ms < *until_ms).map(|(of, _)| *of).collect(),
            balance: self.even != map.epoch && now_ms >= self.calm.1 + BALANCE_CALM_MS,
        }
    }

    /// A node could not keep a copy of a group: it is asked again ever later, as each time costs a copy.
    fn bar(&mut self, of: (GroupId, NodeId), now_ms: u64) {
        let (until_ms, for_ms) = self.barred.entry(of).or_insert((0, REPAIR_AFTER_MS / 2));
        // What is told again in the same view is one time.
        if now_ms >= *until_ms {
            *for_ms = (2 * *for_ms).min(REPAIR_AGAIN_MAX_MS);
            *until_ms = now_ms + *for_ms;
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
        let mut todo = self.care.look(map, there.len(), self.now_ms);
        todo.balance &= heard.all_there(&map.nodes, None).is_some_and(|all| all.len() == there.len())
            && there.len() == up(map)
            && self.is_ready(&kept.state)
            && map.is_whole(there.len());
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

fn up(map: &Map) -> usize {
    map.nodes.iter().filter(|node| node.state == NodeState::Up).count()
}

impl State {
    /// The map after all of it; `None`: there was nothing to do, or it can't be done.
    fn tended(&self, rules: &Rules, todo: Todo, there: &[Node]) -> Option<Arc<Map>> {
        let Todo { wants, repair, barred, balance } = todo;
        let opens = may_reopen(&self.map, &rules.heard);
        let has_joining = self.map.has_joining();
        if wants.is_empty() && repair.is_empty() && !balance && opens.is_none() && !has_joining {
            return None;
        }
        let mut any = false;
        let map = self.changed(rules, |draft| {
            any |= draft.seat_joined();
            for (id, epoch, want) in wants {
                any |= draft.grant(id, epoch, want);
            }
            if let Some(there) = &opens {
                draft.reopen(there);
                any = true;
            }
            any |= draft.repair(&repair, there, |group, node| !barred.contains(&(group, node)));
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
