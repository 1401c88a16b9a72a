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

/// How long an answer of a history is waited for.
const PATIENCE: Duration = Duration::from_millis(1_500);

/// What is to be asked.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) op: Op,
    /// The object's whole name.
    pub(crate) name: String,
    pub(crate) arg: Arg,
    /// The token that is shown, or that a method on a lock names; its grant is in `arg` too.
    pub(crate) token: Option<Token>,
}

/// Which door a client uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Wire,
    Memcached,
    Http,
}

impl Kind {
    /// Of a client, by its number: half of them speak the wire.
    pub(crate) fn of(client: usize) -> Self {
        match client % 4 {
            1 => Self::Memcached,
            3 => Self::Http,
            _ => Self::Wire,
        }
    }

    /// Whether it has such an operation.
    pub(crate) fn has(self, op: Op) -> bool {
        match op {
            Op::Get | Op::Put | Op::Cas | Op::Add | Op::Remove => true,
            Op::Append => self != Self::Http,
            Op::Take | Op::Lock | Op::Renew | Op::Unlock | Op::Check => self == Self::Wire,
        }
    }
}

/// A connection to one node.
pub(crate) enum Door {
    Wire(WireDoor),
    Memcached(MemcachedDoor),
    Http(HttpDoor),
}

impl Door {
    /// Connects; answers are waited for as long as those of histories.
    pub(crate) fn open(kind: Kind, addr: SocketAddr) -> Result<Self> {
        Self::open_within(kind, addr, PATIENCE)
    }

    /// Connects; no answer is waited for longer than `patience`.
    pub(crate) fn open_within(kind: Kind, addr: SocketAddr, patience: Duration) -> Result<Self> {
        Ok(match kind {
            Kind::Wire => Self::Wire(WireDoor::open(addr, patience)?),
            Kind::Memcached => Self::Memcached(MemcachedDoor::open(addr, patience)?),
            Kind::Http => Self::Http(HttpDoor::open(addr, patience)?),
        })
    }

    /// Asks; the token is what a lock gave. An error ends the connection, and the outcome is unknown.
    pub(crate) fn ask(&mut self, request: &Request) -> Result<(Outcome, Option<Token>)> {
        Ok(match self {
            Self::Wire(door) => door.ask(request)?,
            Self::Memcached(door) => (door.ask(request)?, None),
            Self::Http(door) => (door.ask(request)?, None),
        })
    }
}
