//! The load engine for small operations: one thread, one epoll set, many connections, every reply checked.
//!
//! Closed loop: each connection keeps `pipeline` requests outstanding. Open loop: requests are due at times drawn
//! before they are sent (Poisson), and latency counts from the due time, so a stalled server is charged for its stall
//! (no coordinated omission); the last millisecond before a request is polled, so no timer adds to a latency. Every
//! reply's status and length are checked, of one in [`SAMPLE`] also the content. Runs as a process of its own
//! (`herd-lab engine`), so that it can be pinned away from the server; the window's CPU times are read here, at its two
//! ends.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::error::{Context, Error, Result};
use crate::hist::Latencies;
use crate::proc;
use crate::proto::{Asked, Care, Link, Reply, herd};
use crate::side::Side;
use crate::spec::{Outcome, Spec, TICK_NS};
use crate::sys::{self, Epoll};
use crate::values::{Random, Values};

/// One reply in so many is compared byte by byte.
const SAMPLE: u64 = 64;
/// Without any reply for so long the run has failed.
const PATIENCE_NS: u64 = 10_000_000_000;
/// How long replies of the window are waited for after it.
const DRAIN_NS: u64 = 2_000_000_000;
/// Open loop: requests outstanding on one connection beyond which the next ones wait (their clock runs on).
const OUTSTANDING_MAX: usize = 256;
/// Longest wait for events, so that the window ends on time.
const WAIT_MS: i32 = 5;
/// Open loop: requests sent before the sockets are looked at again.
const BURST: usize = 32;
const RECEIVE_BYTES: usize = 256 * 1_024;

struct Open {
    asked: Asked,
    due_ns: u64,
}

struct Conn {
    stream: TcpStream,
    link: Link,
    open: VecDeque<Open>,
    sequence: u64,
    /// The start of a reply whose rest is still to come.
    received: Vec<u8>,
    /// Requests the socket had no room for.
    unsent: Vec<u8>,
}

/// Where the run stands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Warming,
    Measuring,
    Draining,
}

struct Engine {
    spec: Spec,
    values: Values,
    epoll: Epoll,
    conns: Vec<Conn>,
    side: Option<Side>,
    random: Random,
    phase: Phase,
    window: (u64, u64),
    latencies: Latencies,
    replies: u64,
    asked: u64,
    last_reply_ns: u64,
    next_due_ns: f64,
    next_conn: usize,
    outstanding: usize,
    due_in_window: u64,
    outcome: Outcome,
    scratch: Vec<u8>,
}

/// Runs one specification in this process.
pub(crate) fn run(spec: Spec) -> Result<Outcome> {
    spec.check()?;
    if let Some(core) = spec.core {
        sys::pin(core).during(|| format!("pin to core {core}"))?;
    }
    sys::raise_open_files().during(|| "raise the limit on open files".into())?;
    let mut engine = Engine::open(spec)?;
    let mut buffer = vec![0; RECEIVE_BYTES];
    engine.run(&mut buffer)?;
    Ok(engine.finish())
}

impl Engine {
    fn open(spec: Spec) -> Result<Self> {
        let epoll = Epoll::new(256)?;
        let mut conns = Vec::with_capacity(spec.conns);
        for token in 0..spec.conns {
            let conn = Conn::open(&spec).map_err(|error| Error::new(format!("connection {token}: {error}")))?;
            epoll.add(&conn.stream, token, false)?;
            conns.push(conn);
        }
        let side = spec.side.as_ref().map(|side| Side::open(side, &epoll, spec.conns)).transpose()?;
        let values = Values::new(spec.value_bytes);
        Ok(Self {
            values,
            epoll,
            conns,
            side,
            random: Random::new(spec.seed),
            phase: Phase::Warming,
            window: (0, u64::MAX),
            latencies: Latencies::new(),
            replies: 0,
            asked: 0,
            last_reply_ns: 0,
            next_due_ns: 0.0,
            next_conn: 0,
            outstanding: 0,
            due_in_window: 0,
            outcome: Outcome::default(),
            scratch: Vec::with_capacity(RECEIVE_BYTES),
            spec,
        })
    }

    fn run(&mut self, buffer: &mut [u8]) -> Result<()> {
        let start_ns = sys::monotonic_ns();
        self.outcome.ticks_from_ns = start_ns;
        self.last_reply_ns = start_ns;
        self.next_due_ns = start_ns as f64;
        let warm_ns = if self.spec.sequential { 0 } else { self.spec.warm_ms * 1_000_000 };
        self.window.0 = start_ns + warm_ns;
        if self.spec.rate_per_s.is_none() {
            for token in 0..self.conns.len() {
                self.ask_many(token, self.spec.pipeline, start_ns)?;
            }
        }
        loop {
            let now_ns = sys::monotonic_ns();
            if !self.advance_phase(now_ns)? {
                return Ok(());
            }
            let mut timeout_ms = WAIT_MS;
            if self.spec.rate_per_s.is_some() && self.is_due_more() {
                self.ask_due(now_ns)?;
                timeout_ms = sys::pause_ms(self.next_due_ns, now_ns, timeout_ms);
            }
            if let Some(side) = &mut self.side {
                side.start_due(now_ns, self.phase == Phase::Measuring, &self.epoll)?;
            }
            for index in 0..self.epoll.wait(timeout_ms)? {
                let event = self.epoll.event(index);
                if event.token >= self.conns.len() {
                    let side = self.side.as_mut().expect("only its connections have such tokens");
                    side.ready(event, buffer, &self.epoll)?;
                    continue;
                }
                if event.writable {
                    self.flush(event.token)?;
                }
                if event.readable {
                    self.receive(event.token, buffer)?;
                }
            }
        }
    }

    /// Moves from warm-up to the window and to its end; false when the run is over.
    fn advance_phase(&mut self, now_ns: u64) -> Result<bool> {
        if now_ns.saturating_sub(self.last_reply_ns) > PATIENCE_NS {
            return Err(Error::new(format!("no reply for 10 s; {} requests outstanding", self.outstanding)));
        }
        if self.phase == Phase::Warming && now_ns >= self.window.0 {
            self.phase = Phase::Measuring;
            self.window = (now_ns, now_ns.saturating_add(self.spec.run_ms * 1_000_000));
            self.read_clocks(false)?;
            self.outcome.ops = self.replies;
        }
        let over = if self.spec.sequential { self.outstanding == 0 } else { now_ns >= self.window.1 };
        if self.phase == Phase::Measuring && over {
            self.phase = Phase::Draining;
            self.window.1 = now_ns;
            self.outcome.seconds = (now_ns - self.window.0) as f64 / 1e9;
            self.read_clocks(true)?;
            self.outcome.ops = self.replies - self.outcome.ops;
        }
        let due = self.due_in_window > self.latencies.count() || self.is_due_more();
        let waiting = self.spec.rate_per_s.is_some() && due;
        Ok(self.phase != Phase::Draining || (waiting && now_ns < self.window.1 + DRAIN_NS))
    }

    /// Notes both CPU clocks, or how far they went since.
    fn read_clocks(&mut self, end: bool) -> Result<()> {
        let own = i32::try_from(std::process::id()).expect("pids fit an i32");
        let (server_ns, client_ns) = (proc::cpu_ns(&self.spec.server_pids)?, proc::cpu_ns(&[own])?);
        let outcome = &mut self.outcome;
        let (server_from, client_from) = if end { (outcome.server_cpu_ns, outcome.client_cpu_ns) } else { (0, 0) };
        outcome.server_cpu_ns = server_ns - server_from;
        outcome.client_cpu_ns = client_ns - client_from;
        Ok(())
    }

    fn next_key(&mut self) -> u32 {
        if !self.spec.chosen.is_empty() {
            let at = self.random.below(self.spec.chosen.len() as u64);
            return self.spec.chosen[usize::try_from(at).expect("a place in a Vec")];
        }
        let key = if self.spec.sequential { self.asked } else { self.random.below(u64::from(self.spec.keys)) };
        self.asked += 1;
        u32::try_from(key).expect("keys are numbered below 2^24")
    }

    /// Sends `count` requests on one connection, all due at `due_ns`.
    fn ask_many(&mut self, token: usize, count: usize, due_ns: u64) -> Result<()> {
        self.scratch.clear();
        for _ in 0..count {
            if self.spec.sequential && self.asked == u64::from(self.spec.keys) {
                break;
            }
            let key = self.next_key();
            let conn = &mut self.conns[token];
            let asked = Asked { key, sequence: conn.sequence };
            conn.sequence += 1;
            conn.open.push_back(Open { asked, due_ns });
            self.outstanding += 1;
            let op = self.spec.op_of(Some(asked.sequence));
            self.spec.proto.append_request(&conn.link, op, asked, &self.values, &mut self.scratch);
        }
        self.conns[token].send(&self.scratch, token, &self.epoll)
    }

    /// Open loop: sends what is due, going round the connections.
    fn ask_due(&mut self, now_ns: u64) -> Result<()> {
        let rate_per_s = self.spec.rate_per_s.expect("called in the open loop only");
        for _ in 0..BURST {
            let due_ns = self.next_due_ns as u64;
            if due_ns > now_ns || !self.is_due_more() || self.conns[self.next_conn].open.len() >= OUTSTANDING_MAX {
                break;
            }
            let token = self.next_conn;
            self.next_conn = (token + 1) % self.conns.len();
            self.draw_next(rate_per_s);
            self.ask_many(token, 1, due_ns)?;
        }
        Ok(())
    }

    /// Open loop: whether the window is not over, or has left requests that were due in it.
    fn is_due_more(&self) -> bool {
        self.phase != Phase::Draining || self.next_due_ns < self.window.1 as f64
    }

    /// Counts the arrival that is next and draws the one after it.
    fn draw_next(&mut self, rate_per_s: f64) {
        let due_ns = self.next_due_ns as u64;
        let in_window = self.phase != Phase::Warming && (self.window.0..self.window.1).contains(&due_ns);
        self.due_in_window += u64::from(in_window);
        self.next_due_ns += self.random.gap_ns(rate_per_s);
    }

    fn flush(&mut self, token: usize) -> Result<()> {
        let conn = &mut self.conns[token];
        let unsent = std::mem::take(&mut conn.unsent);
        conn.send(&unsent, token, &self.epoll)?;
        if conn.unsent.is_empty() {
            self.epoll.change(&conn.stream, token, false)?;
        }
        Ok(())
    }

    /// Reads once, takes all whole replies and (closed loop) asks as many again.
    fn receive(&mut self, token: usize, buffer: &mut [u8]) -> Result<()> {
        let conn = &mut self.conns[token];
        let kept = conn.received.len();
        buffer[..kept].copy_from_slice(&conn.received);
        conn.received.clear();
        let count = match conn.stream.read(&mut buffer[kept..]) {
            Ok(0) => return Err(Error::new(format!("the server closed connection {token}"))),
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
            Err(error) => return Err(error).during(|| format!("receive on connection {token}")),
        };
        let bytes = &buffer[..kept + count];
        let now_ns = sys::monotonic_ns();
        let mut at = 0;
        let mut taken = 0;
        while let Some(used) = self.take_reply(token, &bytes[at..], now_ns)? {
            at += used;
            taken += 1;
        }
        self.conns[token].received.extend_from_slice(&bytes[at..]);
        self.count(taken, now_ns);
        let closed = self.spec.rate_per_s.is_none() && self.phase != Phase::Draining;
        if closed && taken > 0 { self.ask_many(token, taken, now_ns) } else { Ok(()) }
    }

    /// Takes one reply from the start of `bytes`; `None` when there is no whole one.
    fn take_reply(&mut self, token: usize, bytes: &[u8], now_ns: u64) -> Result<Option<usize>> {
        if bytes.is_empty() {
            return Ok(None);
        }
        let conn = &mut self.conns[token];
        let sampled = !self.spec.fixed_reply && self.replies.is_multiple_of(SAMPLE);
        let care = if sampled { Care::Content } else { Care::Shape };
        let fixed = self.spec.fixed_reply;
        let open = &conn.open;
        let asked = |sequence: Option<u64>| find(open, sequence, fixed).map(|index| open[index].asked.key);
        let op = self.spec.op_of(self.spec.mixed.then(|| herd::sequence_of(bytes)).flatten());
        match self.spec.proto.read_reply(op, care, asked, &self.values, bytes) {
            Reply::Partial => Ok(None),
            Reply::Wrong(what) => Err(Error::new(format!("wrong reply on connection {token}: {what}"))),
            Reply::Good { used, sequence } => {
                let index = find(&conn.open, sequence, fixed)
                    .ok_or_else(|| Error::new(format!("a reply nobody asked for on connection {token}")))?;
                let answered = conn.open.remove(index).expect("find gives an index within");
                self.replies += 1;
                self.outstanding -= 1;
                if self.phase != Phase::Warming && (self.window.0..self.window.1).contains(&answered.due_ns) {
                    self.latencies.record(now_ns.saturating_sub(answered.due_ns));
                }
                Ok(Some(used))
            }
        }
    }

    fn count(&mut self, replies: usize, now_ns: u64) {
        let tick = usize::try_from((now_ns - self.outcome.ticks_from_ns) / TICK_NS).expect("runs are short");
        if self.outcome.ticks.len() <= tick {
            self.outcome.ticks.resize(tick + 1, 0);
        }
        self.outcome.ticks[tick] += replies as u64;
        if replies > 0 {
            self.last_reply_ns = now_ns;
        }
    }

    fn finish(mut self) -> Outcome {
        if let Some(rate_per_s) = self.spec.rate_per_s {
            while self.is_due_more() {
                self.draw_next(rate_per_s);
            }
        }
        self.outcome.latencies = self.latencies.recorded();
        self.outcome.unanswered = self.due_in_window.saturating_sub(self.latencies.count());
        if let Some(side) = &self.side {
            self.outcome.side_done = side.done();
            self.outcome.side_due = side.due();
        }
        self.outcome
    }
}

/// Index of the open request a reply answers: that of its sequence number, else the oldest.
fn find(open: &VecDeque<Open>, sequence: Option<u64>, fixed_reply: bool) -> Option<usize> {
    match sequence {
        Some(sequence) if !fixed_reply => open.iter().position(|open| open.asked.sequence == sequence),
        _ => (!open.is_empty()).then_some(0),
    }
}

impl Conn {
    fn open(spec: &Spec) -> Result<Self> {
        let mut stream =
            sys::connect_blocking(spec.addr, Duration::from_secs(5)).during(|| format!("connect to {}", spec.addr))?;
        let mut link = spec.proto.greet(&mut stream)?;
        link.collection = spec.collection.unwrap_or(0);
        stream.set_nonblocking(true)?;
        let (open, received, unsent) = (VecDeque::new(), Vec::new(), Vec::new());
        Ok(Self { stream, link, open, sequence: 0, received, unsent })
    }

    /// Sends `bytes` behind what is already waiting; keeps what the socket does not take.
    fn send(&mut self, bytes: &[u8], token: usize, epoll: &Epoll) -> Result<()> {
        if !self.unsent.is_empty() {
            self.unsent.extend_from_slice(bytes);
            return Ok(());
        }
        if bytes.is_empty() {
            return Ok(());
        }
        let sent = match self.stream.write(bytes) {
            Ok(sent) => sent,
            Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
            Err(error) => return Err(error).during(|| format!("send on connection {token}")),
        };
        if sent < bytes.len() {
            self.unsent.extend_from_slice(&bytes[sent..]);
            epoll.change(&self.stream, token, true)?;
        }
        Ok(())
    }
}
