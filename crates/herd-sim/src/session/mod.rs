//! Clients: each session is one connection that asks by one protocol and judges the answers.

mod http;
mod memcached;
mod wire;

pub(crate) use http::Http;
pub(crate) use memcached::Memcached;
pub(crate) use wire::Wire;

use crate::history::History;
use crate::random::Random;

/// What a run is like.
pub(crate) struct Plan {
    pub(crate) random: Random,
    pub(crate) history: History,
    /// Objects there are.
    pub(crate) keys: u64,
    /// Largest value.
    pub(crate) value_bytes: u64,
    /// Whether objects expire, are flushed, and waited for.
    pub(crate) expires: bool,
    pub(crate) flushes: bool,
    pub(crate) waits: bool,
    /// Whether the memory is nearly full of small objects from the start.
    pub(crate) crowded: bool,
    /// Seeds of values so far.
    values: u64,
}

impl Plan {
    pub(crate) fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let crowded = random.chance(15);
        let most = [100, 2_000, 20_000, 300_000, 1_000_000][random.below(5) as usize];
        let value_bytes = if crowded { 3_900 } else { most };
        let (expires, flushes, waits) = (random.chance(40), random.chance(30), random.chance(50));
        let keys = if crowded { 40 } else { 4 + random.below(12) };
        let history = History::new(random.chance(30));
        Self { random, history, keys, value_bytes, expires, flushes, waits, crowded, values: seed << 20 }
    }

    fn key(&mut self) -> usize {
        self.random.below(self.keys) as usize
    }

    /// Seed and size of a value that no other has.
    fn value(&mut self) -> (u64, usize) {
        self.values += 1;
        let len = if self.crowded { 3_000 + self.random.below(900) } else { self.random.size(self.value_bytes) };
        (self.values, len as usize)
    }

    /// A time to live, s; mostly none.
    fn ttl_s(&mut self) -> Option<u64> {
        (self.expires && self.random.chance(30)).then(|| 1 + self.random.below(5))
    }
}

/// One connection's protocol.
pub(crate) trait Session {
    /// Adds a request to what is to be sent.
    fn ask(&mut self, plan: &mut Plan);

    /// What is to be sent.
    fn output(&mut self) -> &[u8];

    /// So much of it was.
    fn sent(&mut self, n: usize);

    /// Bytes came; an error is an answer that can't be.
    fn hear(&mut self, plan: &mut Plan, bytes: &[u8]) -> Result<(), String>;

    /// Requests that are not answered.
    fn pending(&self) -> usize;

    /// Whether the node was asked to close.
    fn expects_end(&self) -> bool;

    /// Nothing that was asked can take effect any more.
    fn lost(&mut self, plan: &mut Plan);
}

/// Bytes to be sent, from the front.
#[derive(Default)]
pub(crate) struct Outbox {
    pub(crate) bytes: Vec<u8>,
    at: usize,
}

impl Outbox {
    fn rest(&self) -> &[u8] {
        &self.bytes[self.at..]
    }

    fn sent(&mut self, n: usize) {
        self.at += n;
        if self.at == self.bytes.len() {
            (self.bytes, self.at) = (Vec::new(), 0);
        }
    }
}

/// The first line of `bytes`, without its end, and how long it is with it.
fn line(bytes: &[u8]) -> Option<(&[u8], usize)> {
    let end = bytes.windows(2).position(|end| end == b"\r\n")?;
    Some((&bytes[..end], end + 2))
}

fn number(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text).ok()?.trim().parse().ok()
}
