//! Placement: which nodes hold which slots. The map is what all nodes agree on, the planner makes one.
//!
//! * [`map`]: the herd's map as a value, its checks, its numbers (epoch, revision, term) and what is asked of it.
//! * [`code`]: its bytes, whole or as the difference of two maps (FORMATS.md, "The map").
//! * [`plan`]: from the nodes and the copies wanted to replica groups and slots.
//!
//! One warden writes maps; every node and every client that routes reads them. A [`Map`] that exists has passed all
//! checks, wherever its bytes came from; so nothing that is asked of it can fail.

pub mod code;
mod error;
pub mod map;
pub mod plan;
#[cfg(test)]
mod tests;

pub use error::MapError;
pub use map::{
    Collection, Draft, Group, GroupId, HerdId, Kind, Map, Member, Node, NodeId, NodeState, Spread, Standing,
};

/// Map epochs end here: they are the high 24 bits of versions. At one change a second it takes half a year; changes
/// are joins, deaths and moves.
pub const EPOCHS_END: u32 = 1 << 24;

/// Nodes of a herd: four slots a node in each spread group, below which shares grow coarse.
pub const NODES_MAX: usize = 1024;

/// Spread groups of a herd: one for each way to keep copies; a node keeps 24 KiB of tables for each.
pub const SPREADS_MAX: usize = 16;

/// Copies a spread group may keep, as the classes `ram:9` and `log:9` have it.
pub const COPIES_MAX: u8 = 9;

/// Members of one replica group: all copies, and some more that are on their way in while others leave.
pub const MEMBERS_MAX: usize = 16;

/// Addresses of one node: some networks, and a local socket.
pub const ADDRESSES_MAX: usize = 8;

/// Name, address or label in a map: its length is one byte.
pub const TEXT_MAX_BYTES: usize = 255;

/// A collection's specification as JSON; those of today take some 80 bytes.
pub const SPEC_MAX_BYTES: usize = 1024;

/// Bytes of a map: with every limit above reached it takes some 18 MiB; one of 100 nodes takes some 50 KiB.
pub const MAP_MAX_BYTES: usize = 32 << 20;

/// Replica groups the planner makes for each node and spread group, about: what a dead node was primary of goes to as
/// many others, and what moves is an eighth of a node at most.
pub const GROUPS_PER_NODE: usize = 8;

/// Slots in a row that lie on different nodes, where there are as many: a scan of an array, or of a striped file, uses
/// all of them.
pub const NEIGHBOURS: usize = 8;
