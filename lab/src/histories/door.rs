//! The doors by which the clients of a history ask: Herd's wire, memcached's meta commands, HTTP.
//!
//! Whoever is told that nothing was done believes it: such a request is *refused*. What has no answer in time, or ends
//! with its connection, or gets an answer that is not understood, is *unknown*.

use std::net::SocketAddr;
use std::time::Duration;

use crate::error::Result;
use crate::histories::plain_door::{HttpDoor, MemcachedDoor};
use crate::histories::record::{Arg, Op, Outcome};
use crate::histories::wire_door::{Token, WireDoor};

/// How long an answer is waited for.
pub(super) const PATIENCE: Duration = Duration::from_millis(1_500);

/// What is to be asked.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) op: Op,
    /// The object's whole name.
    pub(super) name: String,
    pub(super) arg: Arg,
    /// The token that is shown, or that a method on a lock names; its grant is in `arg` too.
    pub(super) token: Option<Token>,
}

/// Which door a client uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Wire,
    Memcached,
    Http,
}

impl Kind {
    /// Of a client, by its number: half of them speak the wire.
    pub(super) fn of(client: usize) -> Self {
        match client % 4 {
            1 => Self::Memcached,
            3 => Self::Http,
            _ => Self::Wire,
        }
    }

    /// Whether it has such an operation.
    pub(super) fn has(self, op: Op) -> bool {
        match op {
            Op::Get | Op::Put | Op::Cas | Op::Add | Op::Remove => true,
            Op::Append => self != Self::Http,
            Op::Take | Op::Lock | Op::Renew | Op::Unlock | Op::Check => self == Self::Wire,
        }
    }
}

/// A connection to one node.
pub(super) enum Door {
    Wire(WireDoor),
    Memcached(MemcachedDoor),
    Http(HttpDoor),
}

impl Door {
    /// Connects.
    pub(super) fn open(kind: Kind, addr: SocketAddr) -> Result<Self> {
        Ok(match kind {
            Kind::Wire => Self::Wire(WireDoor::open(addr)?),
            Kind::Memcached => Self::Memcached(MemcachedDoor::open(addr)?),
            Kind::Http => Self::Http(HttpDoor::open(addr)?),
        })
    }

    /// Asks; the token is what a lock gave. An error ends the connection, and the outcome is unknown.
    pub(super) fn ask(&mut self, request: &Request) -> Result<(Outcome, Option<Token>)> {
        Ok(match self {
            Self::Wire(door) => door.ask(request)?,
            Self::Memcached(door) => (door.ask(request)?, None),
            Self::Http(door) => (door.ask(request)?, None),
        })
    }
}
