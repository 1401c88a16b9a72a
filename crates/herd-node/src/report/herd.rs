//! What a node knows of its herd, as `/status` tells it: nodes, groups, the warden. From the map, and from the links
//! that this node has: whom it has none to it calls unreachable, whatever others see.

use super::groups::{losses, syncing, used, waiting_for, why_stopped};
use crate::context::Shared;
use crate::member::Member;
use herd_core::limits::STATUS_GROUPS_MAX;
use herd_core::place::{GroupId, Kind, Map, Node, NodeId, NodeState, Spread};
use herd_core::warden::Hex;
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// The herd's part of the state.
pub(super) struct Herd {
    /// The fields, to be added to those of the node.
    pub(super) fields: Value,
}

impl Shared {
    /// What is known of the herd: of a node alone, only itself.
    pub(super) fn herd(&self, listen: Option<&String>) -> Herd {
        let state = if self.stopping.load(Relaxed) { "stopping" } else { "serving" };
        let known = self.member.get().zip(self.place.get().and_then(|place| place.map()));
        let Some((member, (map, held))) = known else {
            let nodes = json!([{"name": self.config.name, "id": 1, "addr": listen, "state": state}]);
            return Herd { fields: json!({"epoch": 0, "warden": null, "nodes": nodes, "groups": 1}) };
        };
        let view = View { member, map, own: state };
        Herd { fields: view.fields(held) }
    }
}

struct View<'a> {
    member: &'a Member,
    map: Arc<Map>,
    /// The state of this node.
    own: &'static str,
}

impl View<'_> {
    fn fields(&self, held: bool) -> Value {
        let map = &self.map;
        let name = |id: NodeId| map.node(id).map(|node| node.name.clone());
        let groups: Vec<Value> = map.spreads.iter().flat_map(|spread| self.groups(spread)).collect();
        let (count, listed) = (groups.len(), &groups[..groups.len().min(STATUS_GROUPS_MAX)]);
        let stopped = groups.iter().filter(|group| !group["stops"].is_null()).count();
        json!({
            "herd_id": String::from(Hex(map.herd.0)),
            "node_id": self.member.life.node.0.get(),
            "epoch": map.epoch,
            "revision": map.revision,
            "term": map.term,
            "protocol": map.protocol(),
            "held": held,
            "links": if self.member.hub.get().is_some() { "plain" } else { "none" },
            "warden": name(self.member.warden_node()),
            "warden_state": self.state(self.member.warden_node()),
            "nodes": map.nodes.iter().map(|node| self.node(node)).collect::<Vec<_>>(),
            "groups": count,
            "groups_stopped": stopped,
            "shortfalls": map.shortfalls().iter().map(ToString::to_string).collect::<Vec<_>>(),
            "losses": losses(map).into_values().collect::<Vec<_>>(),
            "group_list": listed,
        })
    }

    fn state(&self, id: NodeId) -> &'static str {
        match self.map.node(id).map(|node| node.state) {
            None | Some(NodeState::Down | NodeState::Dead) => "down",
            Some(NodeState::Draining) => "draining",
            Some(_) if id == self.member.life.node => self.own,
            Some(_) if self.member.hub.get().is_some_and(|hub| hub.is_linked(id)) => "serving",
            Some(_) => "unreachable",
        }
    }

    fn node(&self, node: &Node) -> Value {
        json!({
            "name": node.name,
            "id": node.id.0.get(),
            "addr": node.addresses.first(),
            "addresses": node.addresses,
            "state": self.state(node.id),
            "incarnation": node.incarnation,
            "protocol": node.protocol,
            "host": node.host,
            "rack": node.rack,
            "memory_bytes": node.memory_bytes,
            "groups": self.map.groups_of(node.id).count(),
            "waiting_groups": waiting_for(&self.map, node.id),
        })
    }

    fn groups<'s>(&'s self, spread: &'s Spread) -> impl Iterator<Item = Value> + 's {
        used(spread).map(move |(id, group, slots)| {
            let members: Vec<u32> = group.members().map(|id| id.0.get()).collect();
            json!({
                "spread": spread.id,
                "group": id.number,
                "kind": match spread.kind { Kind::Cache => "cache", Kind::Kept => "kept" },
                "copies": spread.copies,
                "needed": spread.needed,
                "slots": slots,
                "epoch": group.epoch,
                "lost": (group.lost > 0).then_some(group.lost),
                "primary": group.primary.map(|id| id.0.get()),
                "members": members,
                "full": group.full().map(|id| id.0.get()).collect::<Vec<_>>(),
                "placed": placed(&self.map, id),
                "eligible": group.eligible.iter().map(|id| id.0.get()).collect::<Vec<_>>(),
                "has": group.copies(),
                "syncing": syncing(&self.map, group),
                "stops": why_stopped(&self.map, spread, group, |id| self.state(id) == "serving"),
            })
        })
    }
}

/// The nodes on which an operator has put a group.
fn placed(map: &Map, id: GroupId) -> Vec<u32> {
    map.placed.iter().filter(|it| it.group == id).map(|it| it.node.0.get()).collect()
}
