//! Requests of this loop's connections that are answered by another node, or by the part of a replica group here
//! (docs/decisions/008).
//!
//! A door that finds an object not to be this node's alone makes a [`Handing`] of its operation, leaves a gap for the
//! reply, and keeps what it needs to write it later ([`Later`]). That is a *flight*; one of several objects has as many
//! parts. Each part goes where the map says ([`Where`]), and lands ([`Landed`]) as an answer or as an error, by its
//! deadline at the latest. When all have landed, the connection is resumed, takes the flight and writes its reply with
//! the formatter it has for what is here.
//!
//! | a part | until |
//! |---|---|
//! | stands in line | what its connection asked of the same object before, and changes it, has landed |
//! | waits | there is a link to the node, or a later map here |
//! | is out | its answer comes, or the link is lost |
//! | is with the group's part here | that tells it ([`Context::flight_told`]) |
//! | has landed | the flight is taken |
//!
//! So a connection sees what it has changed itself, also by commands that want no answer, and a change that was sent to
//! the wrong node is not passed by a later one. What changes an object and may have been done is never asked again;
//! what was never sent, or only reads, is.
//!
//! * `at_once.rs`: puts that need no decision, and wait for the members of their group only.
//! * `handing.rs`: what is handed on. `landed.rs`: what came back. `table.rs`: the flights of a loop.
//! * `intake.rs`: long values that go to the node that decides while they come.
//! * `pages.rs`: pages of names, of which each node has a part.
//! * `passing.rs`: long values that go to their clients while they come.
//! * `route.rs`: where a part goes, and what becomes of it there.

mod at_once;
mod handing;
mod intake;
mod landed;
mod pages;
mod passing;
mod route;
mod table;
#[cfg(test)]
mod tests;

pub(crate) use at_once::Plain;
pub(crate) use handing::{Handing, How};
pub(crate) use intake::{Intake, Sink, bad_block};
pub(crate) use landed::{Cargo, Landed};
pub(crate) use pages::Pages;
pub(crate) use passing::{Passage, Piece};
pub(crate) use route::Where;
pub(crate) use table::{FlightId, Flights, Taken};

use crate::{http, memcached, wire};

/// What a door keeps to write its reply later.
pub(crate) enum Later {
    /// memcached text and meta.
    Memcached(memcached::Later),
    /// HTTP.
    Http(Box<http::Later>),
    /// Herd's wire.
    Wire(Box<wire::Later>),
}

impl Later {
    /// Whether its door answers in the order in which it was asked.
    fn is_ordered(&self) -> bool {
        !matches!(self, Later::Wire(_))
    }
}
