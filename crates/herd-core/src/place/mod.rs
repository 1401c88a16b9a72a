//! Placement: which nodes hold which slots. The map is what all nodes agree on, the planner makes one.
//!
//! * [`map`]: the herd's map as a value, its checks, its numbers (epoch, revision, term) and what is asked of it.
//! * [`code`]: its bytes, whole or as the difference of two maps (FORMATS.md, "The map").
//! * [`seat`]: what a node is to each slot, and which of two maps it goes by.
//! * [`plan`]: from the nodes and the copies wanted to replica groups and slots.
//! * `mend`: what becomes of groups as nodes come and go.
//! * `moves`: members that go from node to node.
//! * `placed`: groups that an operator has put on nodes.
//! * `loss`: what an operator gives up.
//! * `caches`: groups of class `cache`, which are given from node to node, empty.
//!
//! One warden writes maps; every node and every client that routes reads them. A [`Map`] that exists has passed all
//! checks, wherever its bytes came from; so nothing that is asked of it can fail.

mod caches;
pub mod code;
mod error;
mod loss;
pub mod map;
mod mend;
mod moves;
mod placed;
pub mod plan;
pub mod seat;
#[cfg(test)]
mod tests;

pub use error::MapError;
pub use loss::GivenUp;
pub use map::{
    Collection, Draft, Group, GroupId, Grows, HerdId, Kind, Map, Member, Node, NodeId, NodeState, Spread, Standing,
};
pub use placed::Placed;
pub use seat::{Life, Seat};

/// Replica groups the planner makes for each node and spread group, about: what a dead node was primary of goes to as
/// many others, and what moves is an eighth of a node at most.
pub const GROUPS_PER_NODE: usize = 8;

/// Slots in a row that lie on different nodes, where there are as many: a scan of an array, or of a striped file, uses
/// all of them.
pub const NEIGHBOURS: usize = 8;
