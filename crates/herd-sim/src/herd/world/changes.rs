//! What one map changes of the one before, as it is counted while clients ask: a run in which nothing of the herd
//! changes tells little.

use super::*;
use herd_core::place::{Group, NodeState};

/// There is at least one in each run.
pub(crate) const RECONFIGURED: &str = "maps that change members or leads of groups, while clients ask";

const JOINED: &str = "changes: nodes that joined";
const RESTARTED: &str = "changes: nodes that came back with nothing";
const FORGOTTEN: &str = "changes: nodes that left the herd";
const DRAINING: &str = "changes: drains begun";
const STAYS: &str = "changes: drains called off";
const SILENT: &str = "changes: nodes taken out as silent";
const DEAD: &str = "changes: nodes taken out as dead";
const BACK: &str = "changes: nodes heard again";
const LED_ON: &str = "changes: leads that went from a node that is in to another";
const TAKEN: &str = "changes: leads that others took over";
const UNLED: &str = "changes: groups that nobody leads";
const CAME: &str = "changes: members that came";
const SEATED: &str = "changes: members that came to have all";
const WENT: &str = "changes: members that went";
const TERM: &str = "changes: wardens";

impl<S: Service> World<S> {
    /// Counts what the map changes of the one before, once clients ask.
    pub(super) fn count_changes(&mut self, old: &Map) {
        let asks = !self.quiet && !self.slots.is_empty() && self.history.asked < self.plan.ops;
        let Some((before, now)) = old.spreads.first().zip(self.map.spreads.first()).filter(|_| asks) else { return };
        let mut seen = Vec::new();
        self.map.nodes.iter().for_each(|node| seen.extend(of_node(old, node)));
        seen.extend(old.nodes.iter().filter(|node| self.map.node(node.id).is_none()).map(|_| FORGOTTEN));
        seen.extend((old.term < self.map.term).then_some(TERM));
        let is_in = |id: NodeId| {
            let state = self.map.node(id).map(|node| node.state);
            matches!(state, Some(NodeState::Up | NodeState::Draining))
                && self.machines[id.0.get() as usize - 1].is_some()
        };
        let both = before.groups.iter().zip(&now.groups).filter(|(before, now)| before.epoch != now.epoch);
        let groups: Vec<&str> = both.flat_map(|(before, now)| of_group(before, now, is_in)).collect();
        let is_changed = !groups.is_empty();
        seen.into_iter().chain(groups).for_each(|what| self.count(what));
        if is_changed {
            self.count(RECONFIGURED);
        }
    }
}

fn of_node(old: &Map, node: &herd_core::place::Node) -> Option<&'static str> {
    let Some(before) = old.node(node.id) else { return Some(JOINED) };
    match (before.state, node.state) {
        _ if before.incarnation != node.incarnation => Some(RESTARTED),
        (before, now) if before == now => None,
        (_, NodeState::Draining) => Some(DRAINING),
        (NodeState::Draining, NodeState::Up) => Some(STAYS),
        (_, NodeState::Down) => Some(SILENT),
        (_, NodeState::Dead) => Some(DEAD),
        (_, NodeState::Up) => Some(BACK),
    }
}

/// What is another in a group.
fn of_group(before: &Group, now: &Group, is_in: impl Fn(NodeId) -> bool) -> Vec<&'static str> {
    let mut seen = Vec::new();
    if before.primary != now.primary {
        seen.push(match (before.primary, now.primary) {
            (_, None) => UNLED,
            (Some(old), _) if is_in(old) => LED_ON,
            _ => TAKEN,
        });
    }
    let is_member = |group: &Group, id: NodeId| group.members().any(|member| member == id);
    seen.extend(now.members().filter(|id| !is_member(before, *id)).map(|_| CAME));
    seen.extend(before.members().filter(|id| !is_member(now, *id)).map(|_| WENT));
    if now.copies() > before.copies() && before.primary.is_some() {
        seen.push(SEATED);
    }
    seen
}
