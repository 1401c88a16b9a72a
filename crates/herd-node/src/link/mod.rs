//! Links to the other nodes of the herd (PROTOCOL.md §1.8).
//!
//! Each loop has its own ends of links ([`Ends`]), to one loop of each other node or to several. Of two nodes the one
//! with the higher number dials. A link carries requests of both sides: what a loop asks goes out by [`Ends::ask`],
//! from whichever of its connections, and leaves with all else that the round brought; the answer comes back to
//! [`verbs::answered`] with the [`Note`] that was left beside it, and so does its loss. What others ask comes to
//! [`verbs::asked`]. Both are one match.
//!
//! * [`Hub`]: what all loops of a node share of it: who the node is, and the map it has.
//! * `peers.rs`: whom a loop dials, when and where. Pure.
//! * `ends.rs`: the ends of a loop's links, and what it asks on them.
//! * `session.rs`: a connection that becomes a link; its frames.
//! * `admit.rs`: a connection of a node that wants to be let in.
//! * `verbs.rs`: what is asked and answered. `push.rs`: maps on their way.
//! * `resolve.rs`: names of machines, which are looked up beside the loops.
//!
//! A node that has no map with others has no link, and nothing of this runs there.

mod admit;
mod ends;
mod group;
mod hub;
mod peers;
mod petition;
mod push;
mod resolve;
mod session;
#[cfg(test)]
pub(crate) mod tests;
mod verbs;

use crate::flight::FlightId;
pub use admit::Warden;
pub(crate) use ends::Ends;
pub(crate) use group::{Change, close};
pub use hub::{Came, Hub, Membership, Owner, Replies};
pub(crate) use session::{Session, alarm, is_hello};

/// What a loop leaves beside a request that it asks over a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Note {
    /// A beat, sent at that time by the clock of leases, ns.
    Beat(u64),
    /// A map, of this edition.
    Map(u64),
    /// A request to the warden, of this number.
    Warden(u64),
    /// An errand of the warden's, of this number.
    Errand(u64),
    /// Part of a flight, and how often it was asked.
    Flight(FlightId, u32),
    /// Of a test.
    #[cfg(test)]
    Probe(u64),
}

/// Why nothing can be asked of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoLink {
    /// This loop has no link to it that is up.
    Down,
    /// As much is asked or unsent as may be.
    Busy,
}

/// The link was lost before the answer came; nobody knows whether the request was served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LinkLost;
