//! What the clients of a history do: random operations on few objects, guarded objects and locks, through all nodes.
//!
//! Each client asks one thing at a time, of a node it draws anew for each; the versions and tokens it shows are those
//! it was told, or older ones. Every value is written once in a history, so that what is read tells who wrote it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::histories::door::{Door, Kind, Request};
use crate::histories::record::{Arg, Op, Outcome, Record, Status};
use crate::histories::wire_door::Token;
use crate::sys;
use crate::values::Random;

/// Keys of each kind. Locks guard the guarded objects of their number.
const OBJECTS: u64 = 5;
const LOCKS: u64 = 2;
/// Leases, drawn between these: some run out while they are held.
const LEASE_MS: (u64, u64) = (100, 400);
/// Tokens of a lock that a client remembers, to show an older one now and then.
const TOKENS: usize = 3;
/// A client that reaches no node rests so long before it asks again.
const REST: Duration = Duration::from_millis(20);
/// One that was refused rests so long: what is refused at once for seconds is not to be most of a history.
const REFUSED_REST: Duration = Duration::from_millis(100);
/// The last reads are tried so long.
const LAST_PATIENCE: Duration = Duration::from_secs(40);

/// One history.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// Where the nodes are.
    pub(crate) nodes: Vec<SocketAddr>,
    /// What names begin with: no two histories share an object.
    pub(crate) prefix: String,
    pub(crate) clients: usize,
    pub(crate) operations: usize,
    /// How long it takes about; zero: as long as it takes.
    pub(crate) span: Duration,
    pub(crate) seed: u64,
    /// It ends then, whatever was done.
    pub(crate) until: Instant,
}

/// All requests of a history, but for the last reads.
pub(crate) fn run(plan: &Plan) -> Result<Vec<Record>> {
    let left = AtomicUsize::new(plan.operations);
    let take_one = || left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok();
    let mut records: Vec<Record> = thread::scope(|scope| {
        let work = |client| {
            move || {
                let mut client = Client::new(plan, client);
                while Instant::now() < plan.until && take_one() {
                    client.step();
                }
                client.records
            }
        };
        let clients: Vec<_> = (0..plan.clients).map(|client| scope.spawn(work(client))).collect();
        let joined = clients.into_iter().map(|client| client.join().map_err(|_| Error::new("a client panicked")));
        joined.collect::<Result<Vec<_>>>().map(|all| all.into_iter().flatten().collect())
    })?;
    records.sort_by_key(|record| record.call_ns);
    Ok(records)
}

/// Reads every object through every node, once all is well again: what was acknowledged must be there.
pub(crate) fn last_reads(plan: &Plan) -> Result<Vec<Record>> {
    let mut client = Client::new(plan, plan.clients);
    let until = Instant::now() + LAST_PATIENCE;
    let objects = (0..OBJECTS).map(|number| format!("object-{number}"));
    let keys: Vec<String> = objects.chain((0..LOCKS).map(|number| format!("guarded-{number}"))).collect();
    let nodes = 0..plan.nodes.len();
    for (node, key) in nodes.flat_map(|node| keys.iter().map(move |key| (node, key))) {
        while !client.ask(node, Op::Get, key, Arg::default(), None) {
            if Instant::now() > until {
                let last = client.records.pop();
                let why = last.map_or_else(|| "no connection".into(), |record| format!("{:?}", record.outcome));
                return Err(Error::new(format!("{key} cannot be read through {} in the end: {why}", plan.nodes[node])));
            }
            thread::sleep(REST);
        }
    }
    client.records.retain(|record| matches!(record.outcome, Outcome::Answered(_)));
    Ok(client.records)
}

struct Client<'a> {
    plan: &'a Plan,
    number: usize,
    kind: Kind,
    /// How often it had no answer: from then on it counts as another client, whose requests do not overlap.
    lives: usize,
    random: Random,
    doors: Vec<Option<Door>>,
    /// The version of each object that it was told last.
    versions: BTreeMap<String, u64>,
    /// The tokens of each lock, newest last.
    tokens: BTreeMap<u64, Vec<Token>>,
    values: u64,
    records: Vec<Record>,
}

impl<'a> Client<'a> {
    fn new(plan: &'a Plan, number: usize) -> Self {
        Self {
            plan,
            number,
            kind: Kind::of(number),
            lives: 0,
            random: Random::new(plan.seed.wrapping_mul(1_009).wrapping_add(number as u64)),
            doors: plan.nodes.iter().map(|_| None).collect(),
            versions: BTreeMap::new(),
            tokens: BTreeMap::new(),
            values: 0,
            records: Vec::new(),
        }
    }

    /// One random operation, and a rest.
    fn step(&mut self) {
        let node = self.random.below(self.plan.nodes.len() as u64) as usize;
        match self.random.below(10) {
            6..8 => self.on_guarded(node),
            8.. if self.kind.has(Op::Lock) => self.on_lock(node),
            _ => self.on_object(node),
        }
        let each = self.plan.span.as_micros() as u64 * self.plan.clients as u64 / self.plan.operations.max(1) as u64;
        if each > 0 {
            thread::sleep(Duration::from_micros(self.random.below(2 * each + 1)));
        }
    }

    fn on_object(&mut self, node: usize) {
        let key = format!("object-{}", self.random.below(OBJECTS));
        let version = self.versions.get(&key).copied().unwrap_or(0);
        let op = match self.random.below(100) {
            0..38 => Op::Get,
            38..52 => Op::Put,
            52..70 if version != 0 => Op::Cas,
            52..70 => Op::Get,
            70..78 => Op::Add,
            78..90 => Op::Append,
            90..95 => Op::Take,
            _ => Op::Remove,
        };
        let op = self.offered(op);
        let version = if op == Op::Cas { version } else { 0 };
        let arg = Arg { value: self.value(op), version, ..Arg::default() };
        self.ask(node, op, &key, arg, None);
    }

    fn on_guarded(&mut self, node: usize) {
        let number = self.random.below(LOCKS);
        let token = if self.random.below(8) == 0 { None } else { self.token(number) };
        let op = match self.random.below(100) {
            0..40 => Op::Get,
            40..65 => Op::Put,
            65..80 => Op::Append,
            80..88 => Op::Add,
            88..94 => Op::Take,
            _ => Op::Remove,
        };
        let op = self.offered(op);
        let grant = token.map_or(0, |token| token.grant);
        let arg = Arg { value: self.value(op), grant, ..Arg::default() };
        self.ask(node, op, &format!("guarded-{number}"), arg, token);
    }

    fn on_lock(&mut self, node: usize) {
        let number = self.random.below(LOCKS);
        let token = self.token(number).filter(|_| self.random.below(3) != 0);
        let op = match (token, self.random.below(4)) {
            (None, _) => Op::Lock,
            (Some(_), 0..2) => Op::Unlock,
            (Some(_), 2) => Op::Renew,
            (Some(_), _) => Op::Check,
        };
        let lease = LEASE_MS.0 + self.random.below(LEASE_MS.1 - LEASE_MS.0);
        let lease_ms = if matches!(op, Op::Lock | Op::Renew) { lease } else { 0 };
        let arg = Arg { grant: token.map_or(0, |token| token.grant), lease_ms, ..Arg::default() };
        self.ask(node, op, &format!("lock-{number}"), arg, token);
    }

    /// The operation, or the next best where its door does not have it.
    fn offered(&self, op: Op) -> Op {
        match op {
            Op::Append if !self.kind.has(op) => Op::Put,
            Op::Take if !self.kind.has(op) => Op::Remove,
            _ => op,
        }
    }

    /// A value that nobody has written before, for an operation that writes one.
    fn value(&mut self, op: Op) -> String {
        if !matches!(op, Op::Put | Op::Cas | Op::Add | Op::Append) {
            return String::new();
        }
        self.values += 1;
        format!("{}.{};", self.number, self.values)
    }

    /// Mostly the newest token it has of a lock, now and then an older one.
    fn token(&mut self, lock: u64) -> Option<Token> {
        let tokens = self.tokens.get(&lock).filter(|tokens| !tokens.is_empty())?;
        let older = if self.random.below(5) == 0 { self.random.below(tokens.len() as u64) as usize } else { 0 };
        tokens.get(tokens.len() - 1 - older).copied()
    }

    /// Asks a node; false if there is no answer. Where no connection can be had nothing was asked.
    fn ask(&mut self, node: usize, op: Op, key: &str, arg: Arg, token: Option<Token>) -> bool {
        let mut door = match self.doors[node].take().map_or_else(|| Door::open(self.kind, self.plan.nodes[node]), Ok) {
            Ok(door) => door,
            Err(_) => {
                thread::sleep(REST);
                return false;
            }
        };
        let request = Request { op, name: format!("{}{key}", self.plan.prefix), arg, token };
        let call_ns = sys::monotonic_ns();
        let asked = door.ask(&request);
        let return_ns = sys::monotonic_ns();
        let client = self.number + self.lives * (self.plan.clients + 1);
        let (mut outcome, given) = asked.unwrap_or((Outcome::Unknown, None));
        // An object that learns a token has another version, but keeps the CAS value that memcached's clients see.
        if let (Outcome::Answered(answer), Kind::Memcached, true) =
            (&mut outcome, self.kind, key.starts_with("guarded"))
        {
            answer.version = 0;
        }
        let answered = matches!(outcome, Outcome::Answered(_));
        match &outcome {
            // A connection that did not answer in time may still do so: it is of no more use.
            Outcome::Unknown => self.lives += 1,
            Outcome::Answered(_) => self.doors[node] = Some(door),
            Outcome::Refused(_) => {
                self.doors[node] = Some(door);
                thread::sleep(REFUSED_REST);
            }
            // Its record has no end.
            Outcome::Removed => {
                self.lives += 1;
                self.doors[node] = Some(door);
            }
        }
        self.learn(&request, &outcome, given);
        let Request { op, arg, .. } = request;
        self.records.push(Record { client, op, key: key.to_owned(), arg, outcome, call_ns, return_ns });
        answered
    }

    /// Remembers versions and tokens that it is told.
    fn learn(&mut self, request: &Request, outcome: &Outcome, given: Option<Token>) {
        let Outcome::Answered(answer) = outcome else { return };
        let key = &request.name[self.plan.prefix.len()..];
        if answer.version != 0 && answer.status != Status::NotFound {
            self.versions.insert(key.to_owned(), answer.version);
        }
        if let (Some(token), Some(lock)) = (given, key.strip_prefix("lock-").and_then(|number| number.parse().ok())) {
            let tokens = self.tokens.entry(lock).or_default();
            tokens.push(token);
            if tokens.len() > TOKENS {
                tokens.remove(0);
            }
        }
    }
}
