//! Tests of placement, and the herds they are about.

mod caches;
mod code;
mod map;
mod mend;
mod moves;
mod plan;
mod seat;

use super::*;
use crate::chance::Chance;
use crate::collection::Spec;
use crate::key::CollectionId;
use crate::limits::{MAP_EPOCHS_END, MAP_MAX_BYTES, NODES_MAX};
use std::num::NonZeroU32;

const HERD: HerdId = HerdId(*b"a herd of tests.");
const GIB: u64 = 1 << 30;

fn id(number: u32) -> NodeId {
    NodeId(NonZeroU32::new(number).expect("nodes count from 1"))
}

/// A node on a host of its own.
fn node(number: u32, memory_bytes: u64) -> Node {
    Node {
        id: id(number),
        name: format!("node-{number}"),
        addresses: vec![format!("10.0.{}.{}:7700", number / 256, number % 256)],
        incarnation: 1,
        host: format!("host-{number}"),
        rack: String::new(),
        memory_bytes,
        state: NodeState::Up,
        protocol: 1,
    }
}

fn nodes(count: u32) -> Vec<Node> {
    (1..=count).map(|number| node(number, 64 * GIB)).collect()
}

/// A herd of these nodes whose default spread group grows, at its first map.
fn herd(nodes: Vec<Node>) -> Map {
    let mut draft = Draft { nodes, ..Draft::empty(HERD) };
    assert_eq!(draft.add_spread(Kind::Kept, 1, Grows::ByItself), Some(0));
    draft.collections.push(collection(CollectionId::DEFAULT, "default", "ram:1"));
    Map::first(draft, 1).expect("a valid map")
}

fn collection(id: CollectionId, name: &str, class: &str) -> Collection {
    Collection { id, name: name.into(), spec: Spec::of(class), generation: 1 }
}
