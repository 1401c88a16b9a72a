//! What the two shells share: settings, the nodes and the idle connections to them, and where a get to a stream stands.

use crate::address::Address;
use crate::error::{Error, ErrorKind, Result};
use crate::limits::IDLE_CONNECTIONS_MAX;
use crate::link::{Link, Socket};
use crate::reply::Reply;
use crate::request::Request;
use crate::retry::{Failure, Turns};
use herd_core::entry::{Range, Token};
use herd_core::limits::OBJECT_MAX_BYTES;
use std::hash::BuildHasher;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Settings of a client.
#[derive(Clone, Debug)]
pub struct Config {
    /// How long to wait for a reply, or for progress: a call fails when nothing of it moves for so long, connecting,
    /// other nodes and repeats included. A transfer that moves may take longer.
    pub timeout: Duration,
    /// Longest wait for a connection to one node, within `timeout`.
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

/// What a client and all made of it have in common, and in what they differ.
pub(crate) struct Common<S> {
    shared: Arc<Shared<S>>,
    /// Shown with each request about an object.
    pub(crate) token: Option<Token>,
    /// How long a request may be silent.
    pub(crate) patience_ms: u64,
}

pub(crate) struct Shared<S> {
    pub(crate) pool: Pool<S>,
    started: Instant,
}

impl<S: Socket> Common<S> {
    pub(crate) fn new(nodes: &str, config: Config) -> Result<Self> {
        // A number nobody else has, from the system.
        let seed = std::hash::RandomState::new().hash_one(0);
        let patience_ms = millis(config.timeout);
        let shared = Shared { pool: Pool::new(nodes, config, seed)?, started: Instant::now() };
        Ok(Self { shared: Arc::new(shared), token: None, patience_ms })
    }

    /// Ms since the client was made.
    pub(crate) fn now_ms(&self) -> u64 {
        millis(self.started.elapsed())
    }

    pub(crate) fn with_token(&self, token: Token) -> Self {
        Self { token: Some(token), ..self.clone() }
    }

    pub(crate) fn without_token(&self) -> Self {
        Self { token: None, ..self.clone() }
    }

    pub(crate) fn with_timeout(&self, timeout: Duration) -> Self {
        Self { patience_ms: millis(timeout), ..self.clone() }
    }
}

impl<S> Clone for Common<S> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone(), token: self.token, patience_ms: self.patience_ms }
    }
}

impl<S> std::ops::Deref for Common<S> {
    type Target = Shared<S>;

    fn deref(&self) -> &Shared<S> {
        &self.shared
    }
}

pub(crate) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// The nodes of a herd and the idle connections to them.
pub(crate) struct Pool<S> {
    pub(crate) config: Config,
    nodes: Vec<Address>,
    state: Mutex<State<S>>,
}

struct State<S> {
    turns: Turns,
    idle: Vec<Link<S>>,
    chance: u64,
}

impl<S: Socket> Pool<S> {
    /// For the nodes at such addresses, see [`Address::parse_list`]; `seed` is a number nobody else has.
    pub(crate) fn new(nodes: &str, config: Config, seed: u64) -> Result<Self> {
        let nodes = Address::parse_list(nodes)?;
        let state = State { turns: Turns::new(nodes.len()), idle: Vec::new(), chance: seed };
        Ok(Self { config, nodes, state: Mutex::new(state) })
    }

    fn state(&self) -> MutexGuard<'_, State<S>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn node(&self, index: usize) -> &Address {
        &self.nodes[index]
    }

    /// How many nodes there are.
    pub(crate) fn nodes(&self) -> usize {
        self.nodes.len()
    }

    /// Begins to connect.
    pub(crate) fn dial(&self) -> Dial {
        let order = self.state().turns.order().collect();
        Dial { order, tried: 0, node: 0, most_ms: millis(self.config.connect_timeout).max(1), last: None }
    }

    /// An idle connection that still works.
    pub(crate) fn take(&self, now_ms: u64) -> Option<Link<S>> {
        loop {
            let mut link = self.state().idle.pop()?;
            if link.is_usable(now_ms) {
                return Some(link);
            }
        }
    }

    /// Keeps a connection whose request is answered, if it can serve another.
    pub(crate) fn give_back(&self, now_ms: u64, mut link: Link<S>) {
        let usable = link.is_usable(now_ms);
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

    /// What is told when no node could be connected to.
    pub(crate) fn unreachable(&self, last: Option<io::Error>) -> Error {
        let nodes: Vec<String> = self.nodes.iter().map(ToString::to_string).collect();
        let error = Error::new(ErrorKind::Unreachable, format!("no node answers at {}", nodes.join(", ")));
        match last {
            Some(last) => error.caused_by(last),
            None => error,
        }
    }

    /// A number by chance, good enough to spread pauses.
    pub(crate) fn chance(&self) -> u64 {
        let mut state = self.state();
        state.chance = state.chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state.chance >> 33
    }
}

/// The nodes in turn, each with its share of the time.
pub(crate) struct Dial {
    order: Vec<usize>,
    tried: usize,
    /// The node that was told last.
    pub(crate) node: usize,
    most_ms: u64,
    /// Why it could not be connected to.
    pub(crate) last: Option<io::Error>,
}

impl Dial {
    /// The next node and how long connecting to it may take, if all may take until `deadline_ms`.
    pub(crate) fn next(&mut self, now_ms: u64, deadline_ms: u64) -> Option<(usize, Duration)> {
        let left_ms = deadline_ms.saturating_sub(now_ms);
        let share_ms = left_ms.div_ceil((self.order.len() - self.tried).max(1) as u64).min(self.most_ms);
        self.node = *self.order.get(self.tried).filter(|_| left_ms > 0)?;
        self.tried += 1;
        Some((self.node, Duration::from_millis(share_ms)))
    }
}

/// Where a get to a stream stands, so that it can go on over another connection.
pub(crate) struct Progress {
    /// What was asked for.
    range: Range,
    /// Bytes given out by the tries before this one.
    before: u64,
    /// Bytes given out.
    pub(crate) bytes: u64,
    /// The answer they belong to.
    pub(crate) reply: Option<Reply>,
}

impl Progress {
    /// Of a request that has given out nothing yet.
    pub(crate) fn new(request: &Request<'_>) -> Self {
        Self { range: request.range.unwrap_or(Range::ALL), before: 0, bytes: 0, reply: None }
    }

    /// Takes the answer of a try; an error if the object is another by now.
    pub(crate) fn accept(&mut self, reply: &Reply) -> Result<()> {
        match &self.reply {
            Some(first) if first.version != reply.version => {
                let text = format!("the object changed after {} bytes had been read", self.bytes);
                return Err(Error::new(ErrorKind::Changed, text));
            }
            Some(_) => {}
            None => self.reply = Some(reply.clone()),
        }
        Ok(())
    }

    /// The failure of a try as it is for the whole: an object that is gone, or shorter, is another one.
    pub(crate) fn judged(&self, failure: Failure) -> Failure {
        use herd_core::ErrorKind::BadRange;
        match failure {
            Failure::Final(error)
                if self.before > 0 && matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Refused(BadRange)) =>
            {
                Failure::Final(error.with_kind(ErrorKind::Changed))
            }
            other => other,
        }
    }

    /// Ends a try; whether it gave out anything.
    pub(crate) fn end_try(&mut self) -> bool {
        let moved = self.bytes > self.before;
        self.before = self.bytes;
        moved
    }

    /// The bytes that are missing; `None`: there are none.
    pub(crate) fn rest(&self) -> Option<Range> {
        let size = self.reply.as_ref().and_then(|reply| reply.size_bytes).unwrap_or(u64::MAX);
        let whole = self.range.length.unwrap_or(u64::MAX).min(size.saturating_sub(self.range.offset));
        let left = whole.saturating_sub(self.bytes);
        (left > 0).then(|| Range { offset: self.range.offset + self.bytes, length: Some(left) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_share_the_time_to_connect() {
        let mut dial = Dial { order: vec![2, 0, 1], tried: 0, node: 0, most_ms: 2_000, last: None };
        assert_eq!(dial.next(100, 1_000), Some((2, Duration::from_millis(300))));
        assert_eq!(dial.next(150, 1_000), Some((0, Duration::from_millis(425))), "what one leaves is the others'");
        assert_eq!(dial.next(1_000, 1_000), None, "the time is over");
        assert_eq!(dial.next(150, 10_000), Some((1, Duration::from_millis(2_000))));
        assert_eq!(dial.next(150, 10_000), None, "all were tried");
    }
}
