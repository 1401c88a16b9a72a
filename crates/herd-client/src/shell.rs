//! What the two shells share: settings, the pool of connections, and how an answer or a loss becomes a result.

use crate::error::{Error, ErrorKind, Result};
use crate::limits::{IDLE_CONNECTIONS_MAX, TRIES_MAX};
use crate::link::{Call, Link, Socket};
use crate::reply::Reply;
use crate::request::Request;
use crate::retry::{Failure, Turns};
use herd_core::limits::OBJECT_MAX_BYTES;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Settings of a client.
#[derive(Clone, Debug)]
pub struct Config {
    /// Longest silence in a request: it fails when nothing of it moves for so long. Also the deadline the node sees.
    pub timeout: Duration,
    /// Longest wait for a connection to one address.
    pub connect_timeout: Duration,
    /// Largest value read into memory; larger ones must be streamed.
    pub value_max_bytes: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(10),
            connect_timeout: Duration::from_secs(2),
            value_max_bytes: OBJECT_MAX_BYTES,
        }
    }
}

impl Config {
    pub(crate) fn patience_ms(&self) -> u64 {
        u64::try_from(self.timeout.as_millis()).unwrap_or(u64::MAX)
    }
}

/// The nodes of a herd and the idle connections to them.
pub(crate) struct Pool<S> {
    nodes: Vec<String>,
    state: Mutex<State<S>>,
}

struct State<S> {
    turns: Turns,
    idle: Vec<Link<S>>,
}

impl<S: Socket> Pool<S> {
    /// For `nodes`: `HOST:PORT`, several separated by commas.
    pub(crate) fn new(nodes: &str) -> Result<Self> {
        let nodes: Vec<String> =
            nodes.split(',').map(str::trim).filter(|node| !node.is_empty()).map(Into::into).collect();
        if nodes.is_empty() {
            return Err(Error::bad_request("no node is given: use HOST:PORT[,HOST:PORT..]"));
        }
        let turns = Turns::new(nodes.len());
        Ok(Self { nodes, state: Mutex::new(State { turns, idle: Vec::new() }) })
    }

    fn state(&self) -> MutexGuard<'_, State<S>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn node(&self, index: usize) -> &str {
        &self.nodes[index]
    }

    /// The nodes to try, in this order.
    pub(crate) fn order(&self) -> impl Iterator<Item = usize> + use<S> {
        self.state().turns.order()
    }

    /// An idle connection that still works.
    pub(crate) fn take(&self) -> Option<Link<S>> {
        loop {
            let mut link = self.state().idle.pop()?;
            if link.is_usable() {
                return Some(link);
            }
        }
    }

    /// Keeps a connection whose request is answered, if it can serve another.
    pub(crate) fn give_back(&self, mut link: Link<S>) {
        let usable = link.is_usable();
        let mut state = self.state();
        state.turns.serves(link.node);
        if usable && state.idle.len() < IDLE_CONNECTIONS_MAX {
            state.idle.push(link);
        }
    }

    /// Notes that a node does not serve: connections to it are dropped, and the next node comes first.
    pub(crate) fn failed(&self, node: usize) {
        let mut state = self.state();
        state.turns.failed(node);
        state.idle.retain(|link| link.node != node);
    }

    /// The failure of a request when no node could be connected to.
    pub(crate) fn unreachable(&self, last: Option<io::Error>) -> Failure {
        let text = format!("no node answers at {}", self.nodes.join(", "));
        let error = Error::new(ErrorKind::Unreachable, text);
        Failure::NoConnection(match last {
            Some(last) => error.caused_by(last),
            None => error,
        })
    }
}

/// The failure of the open request `id` after `error` from its link.
pub(crate) fn failure_of<S: Socket>(link: &Link<S>, id: u64, error: Error) -> Failure {
    match error.kind() {
        ErrorKind::Unreachable | ErrorKind::BadReply => Failure::Lost { error, nothing_sent: link.nothing_sent(id) },
        _ => Failure::Final(error),
    }
}

/// The failure of the request `id` when nothing moved for its time; `None` if its time is not over.
pub(crate) fn silence<S: Socket>(link: &mut Link<S>, id: u64) -> Option<Failure> {
    let nothing_sent = link.nothing_sent(id);
    link.expire();
    let expired = link.is_answered(id);
    expired.then(|| Failure::Lost { error: Error::new(ErrorKind::Unreachable, "no answer in time"), nothing_sent })
}

/// The answer of a call that has ended, with its body if that went to memory.
pub(crate) fn answer(call: Call) -> std::result::Result<(Reply, Vec<u8>), Failure> {
    let reply = call.reply.clone().expect("a call ends with its answer");
    match reply.error() {
        None => Ok((reply, call.into_value())),
        Some(error) if reply.is_busy() => Err(Failure::Busy(error)),
        Some(error) => Err(Failure::Final(error)),
    }
}

/// Where a get to a stream stands, so that it can go on over another connection.
#[derive(Default)]
pub(crate) struct Progress {
    /// Bytes given out.
    pub(crate) bytes: u64,
    /// The answer they belong to.
    pub(crate) reply: Option<Reply>,
}

impl Progress {
    /// Takes the answer of the next connection; an error if the object is another by now.
    pub(crate) fn accept(&mut self, reply: &Reply) -> Result<()> {
        match &self.reply {
            Some(first) if first.version != reply.version => {
                let text = format!("the object changed after {} bytes had been read", self.bytes);
                Err(Error::new(ErrorKind::Changed, text))
            }
            Some(_) => Ok(()),
            None => {
                self.reply = Some(reply.clone());
                Ok(())
            }
        }
    }

    /// Whether it may go on after `error`, where `before` bytes had been given out by the tries before. `tries` counts
    /// those that brought nothing.
    pub(crate) fn after(&self, error: Error, before: u64, tries: &mut u32) -> Result<()> {
        use herd_core::ErrorKind::BadRange;
        *tries = if self.bytes > before { 0 } else { *tries + 1 };
        match error.kind() {
            ErrorKind::Unreachable | ErrorKind::BadReply if self.bytes > 0 && *tries < TRIES_MAX => Ok(()),
            ErrorKind::NotFound | ErrorKind::Refused(BadRange) if before > 0 => {
                Err(error.with_kind(ErrorKind::Changed))
            }
            _ => Err(error),
        }
    }

    /// The request for the bytes that are missing, of `key` from `range`; `None`: there are none.
    pub(crate) fn rest<'a>(&self, key: &'a [u8], range: Option<crate::Range>) -> Option<Result<Request<'a>>> {
        if self.bytes == 0 {
            return Some(match range {
                Some(range) => Request::get_range(key, range),
                None => Request::get(key),
            });
        }
        let range = range.unwrap_or(crate::Range::ALL);
        let size = self.reply.as_ref().and_then(|reply| reply.size_bytes).unwrap_or(u64::MAX);
        let whole = range.length.unwrap_or(u64::MAX).min(size.saturating_sub(range.offset));
        let left = whole - self.bytes.min(whole);
        let rest = crate::Range { offset: range.offset + self.bytes, length: Some(left) };
        (left > 0).then(|| Request::get_range(key, rest))
    }
}
