//! A client that asks for one object at a time and says how each request ended: Herd's own library, or memcached's
//! protocol at one node. The only module that links a crate of Herd: what its users' programs are told is measured.

use std::net::SocketAddr;
use std::time::Duration;

use herd_client::blocking::Client;
use herd_client::{Config, ErrorKind, PutOptions};

use crate::error::{Error, Result};
use crate::faults::redis;
use crate::faults::register::End;
use crate::histories::door::{Door, Kind, Request};
use crate::histories::record::{Arg, Op, Outcome, Status};

/// A client; [`Caller::renewed`] makes another one of its kind.
pub(crate) enum Caller {
    /// Herd's library. It knows all nodes, asks the owners of objects, and asks again where that is safe.
    Own(Client),
    /// memcached's protocol, at this node and no other; connected when it is first asked, and after a failure.
    Memcached { node: SocketAddr, patience: Duration, door: Option<Door> },
    /// A Redis Cluster, whose redirections it follows.
    Redis(redis::Client),
}

/// A request that did not end well, and whether it may have been done all the same.
#[derive(Clone, Debug)]
pub(crate) struct Failed {
    pub(crate) end: End,
    pub(crate) why: String,
}

impl Failed {
    fn unknown(why: impl ToString) -> Self {
        Self { end: End::Unknown, why: why.to_string() }
    }
}

impl Caller {
    /// Herd's own client of a herd with these nodes.
    pub(crate) fn own(nodes: &[SocketAddr], patience: Duration) -> Result<Self> {
        let nodes: Vec<String> = nodes.iter().map(ToString::to_string).collect();
        let config = Config { timeout: patience, ..Config::default() };
        Client::new(&nodes.join(","), config).map(Self::Own).map_err(|error| Error::new(error.to_string()))
    }

    /// A client of memcached's protocol.
    pub(crate) fn memcached(node: SocketAddr, patience: Duration) -> Self {
        Self::Memcached { node, patience, door: None }
    }

    /// Another one of the same kind, for another thread; Herd's own share what they know of the herd.
    pub(crate) fn renewed(&self) -> Self {
        match self {
            Self::Own(client) => Self::Own(client.clone()),
            Self::Memcached { node, patience, .. } => Self::memcached(*node, *patience),
            Self::Redis(client) => Self::Redis(client.renewed()),
        }
    }

    /// Gives up the connection of a client that knows one node only; the next request makes another.
    pub(crate) fn hang_up(&mut self) {
        if let Self::Memcached { door, .. } = self {
            *door = None;
        }
    }

    /// Where a client asks that knows one node only.
    pub(crate) fn node(&self) -> Option<SocketAddr> {
        match self {
            Self::Memcached { node, .. } => Some(*node),
            Self::Own(_) | Self::Redis(_) => None,
        }
    }

    /// Writes an object.
    pub(crate) fn put(&mut self, name: &str, value: &str) -> Result<(), Failed> {
        match self {
            Self::Own(client) => {
                client.put(name, value.as_bytes(), &PutOptions::default()).map(drop).map_err(|error| failed(&error))
            }
            Self::Memcached { .. } => self.ask(Op::Put, name, value).map(drop),
            Self::Redis(client) => match client.ask(name, &["SET", name, value]) {
                Ok(told) if told == "OK" => Ok(()),
                Ok(told) => Err(Failed::unknown(told)),
                Err(error) => Err(Failed::unknown(error)),
            },
        }
    }

    /// Reads an object; none if there is no such.
    pub(crate) fn get(&mut self, name: &str) -> Result<Option<String>, Failed> {
        let text = |value: Vec<u8>| String::from_utf8(value).map_err(|_| Failed::unknown("a value that nobody wrote"));
        match self {
            Self::Own(client) => match client.get(name) {
                Ok(object) => text(object.value).map(Some),
                Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
                Err(error) => Err(failed(&error)),
            },
            Self::Memcached { .. } => self.ask(Op::Get, name, ""),
            Self::Redis(client) => match client.ask(name, &["GET", name]) {
                Ok(told) if told.starts_with('-') => Err(Failed::unknown(told)),
                Ok(told) => Ok(Some(told).filter(|told| !told.is_empty())),
                Err(error) => Err(Failed::unknown(error)),
            },
        }
    }

    /// One request by memcached's protocol.
    fn ask(&mut self, op: Op, name: &str, value: &str) -> Result<Option<String>, Failed> {
        let Self::Memcached { node, patience, door } = self else { unreachable!("the others have their own ways") };
        let mut open = match door.take() {
            Some(open) => open,
            // Nothing was asked.
            None => Door::open_within(Kind::Memcached, *node, *patience)
                .map_err(|error| Failed { end: End::Refused, why: error.to_string() })?,
        };
        let arg = Arg { value: value.to_owned(), ..Arg::default() };
        let request = Request { op, name: name.to_owned(), arg, token: None };
        let (outcome, _) = open.ask(&request).map_err(Failed::unknown)?;
        *door = Some(open);
        match outcome {
            Outcome::Answered(answer) if answer.status == Status::Ok => Ok(Some(answer.value)),
            Outcome::Answered(answer) if answer.status == Status::NotFound && op == Op::Get => Ok(None),
            Outcome::Refused(why) => Err(Failed { end: End::Refused, why }),
            Outcome::Removed => Err(Failed { end: End::Removed, why: "there was no room".into() }),
            other => Err(Failed::unknown(format!("{other:?}"))),
        }
    }
}

/// What an error of the library says of the request.
fn failed(error: &herd_client::Error) -> Failed {
    let end = match error.kind() {
        ErrorKind::Refused(_) | ErrorKind::Unreachable | ErrorKind::NoCollection => End::Refused,
        _ => End::Unknown,
    };
    Failed { end, why: error.to_string() }
}
