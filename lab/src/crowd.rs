//! The crowd: thousands of connections, objects of any size, one or several servers, one thread and one epoll set.
//!
//! First every connection is opened and answered once ([`opening`]), then the objects are stored, then the run begins.
//! Closed loop: each connection keeps one get outstanding. Open loop: gets are due at times drawn beforehand (Poisson),
//! each takes the connection that was idle longest, and latency counts from the due time. Body bytes are counted as
//! they arrive, so that a window shorter than one object's transfer is measured rightly. Heads, status and length of
//! every reply are checked, one body in [`SAMPLE`] is compared. One buffer receives for all; a connection has its
//! [`Bulk`] only, which holds no body. A process of its own (`herd-lab crowd`), so that it can be pinned; the window's
//! CPU times are read here, at its two ends.

mod opening;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::bulk::{Bulk, Done};
use crate::crowd::opening::Opening;
use crate::error::{Context, Error, Result};
use crate::hist::{Latencies, Recorded};
use crate::peers::Load;
use crate::proc;
use crate::processor::Processor;
use crate::proto::{Op, Proto};
use crate::sys::{self, Epoll, Event};
use crate::values::{Random, Source};

/// One body in so many is compared byte by byte.
const SAMPLE: u64 = 64;
/// Without a new open connection, later without a byte on any, for so long the run has failed.
const PATIENCE: Duration = Duration::from_secs(20);
/// Bytes moved for one readiness event: no connection holds up the others for longer than some 100 us.
const STEP_BYTES: usize = 256 * 1_024;
/// Connections that store to one server at once: enough to hide a round trip, few enough for its memory.
const STORING_LANES: usize = 8;
/// Open loop: how long replies to what was due in the window are waited for after it.
const DRAIN_NS: u64 = 2_000_000_000;
/// Longest wait for events, so that the window ends on time.
const WAIT_MS: i32 = 5;
/// Events of one wait.
const BATCH: usize = 512;

/// One run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct CrowdSpec {
    /// Where the servers listen: 1 to 16 IPv4 addresses.
    pub(crate) servers: Vec<SocketAddr>,
    /// By which door; `http` asks for `/o/default/lab-crowd-NUMBER`, which can be a file.
    pub(crate) proto: Proto,
    /// Connections in all, dealt evenly over the servers: at least one for each, at most 8,192.
    pub(crate) conns: usize,
    /// Bytes of each object: 512 to 67,108,864.
    pub(crate) object_bytes: usize,
    /// Distinct names in all, `lab-crowd-0` and on.
    pub(crate) objects: usize,
    /// The server of each object, by its place in `servers`. Empty: object `i` is on server `i` modulo their number.
    pub(crate) places: Vec<u8>,
    /// What is asked for: the objects, or to write them again.
    pub(crate) op: Op,
    /// Collection of the objects, which are named by index there (Herd's wire only); none: `default`.
    pub(crate) collection: Option<u64>,
    /// Store the objects first; else they are there, each the bytes of [`Source`].
    pub(crate) store: bool,
    /// Open loop: gets per second over all connections. None: closed loop.
    pub(crate) rate_per_s: Option<f64>,
    /// Time before the measured window, in milliseconds.
    pub(crate) warm_ms: u64,
    /// The measured window, in milliseconds.
    pub(crate) run_ms: u64,
    /// Core to stay on.
    pub(crate) core: Option<usize>,
    /// Processes whose CPU time is the servers'; may be empty.
    pub(crate) server_pids: Vec<i32>,
    /// The process whose time counts as idle ([`crate::awake`]); none: nothing is said of idleness.
    pub(crate) awake_pid: Option<i32>,
    /// Seed of names and arrivals.
    pub(crate) seed: u64,
}

/// What it measured.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct CrowdOutcome {
    /// Whole right replies within the window.
    pub(crate) replies: u64,
    /// The same for each server.
    pub(crate) server_replies: Vec<u64>,
    /// Body bytes received within the window, of unfinished objects too.
    pub(crate) bytes: u64,
    /// Length of the window.
    pub(crate) seconds: f64,
    /// Latencies of whole objects that were due (closed loop: started) in the window. Open loop: up to 2 s after it;
    /// closed loop: only those that ended in it, so they lean to short ones unless the window is much longer.
    pub(crate) latencies: Recorded,
    /// Open loop: gets due in the window without a whole reply 2 s after it.
    pub(crate) unanswered: u64,
    /// CPU time of the servers within the window, in nanoseconds.
    pub(crate) server_cpu_ns: u64,
    /// CPU time of this client within the window, in nanoseconds; an open loop polls, so there it means nothing.
    pub(crate) client_cpu_ns: u64,
    /// Share of the window in which the cores had nothing to do; 0 where nobody kept them awake.
    pub(crate) idle: f64,
    /// Time until every connection was open and answered, in milliseconds.
    pub(crate) connect_ms: f64,
}

impl CrowdSpec {
    /// Refuses what a crowd cannot do.
    fn check(&self) -> Result<()> {
        let good = (1..=16).contains(&self.servers.len())
            && self.servers.iter().all(SocketAddr::is_ipv4)
            && !matches!(self.proto, Proto::Null | Proto::Etcd)
            && (self.servers.len()..=8_192).contains(&self.conns)
            && (512..=64 << 20).contains(&self.object_bytes)
            && (self.servers.len()..=1 << 20).contains(&self.objects)
            && self.rate_per_s.is_none_or(|rate| rate.is_finite() && rate > 0.0)
            && (self.op == Op::Get || self.rate_per_s.is_none())
            && (self.places.is_empty() || self.places.len() == self.objects)
            && (self.collection.is_none() || self.proto == Proto::Herd)
            && self.objects_by_server().iter().all(|objects| !objects.is_empty())
            && self.run_ms > 0;
        if good { Ok(()) } else { Err(Error::new(format!("a crowd cannot run {self:?}"))) }
    }

    /// Index of the server that connection `token` belongs to.
    fn server_of(&self, token: usize) -> usize {
        token % self.servers.len()
    }

    /// The objects of each server; what is on none of them is left out.
    fn objects_by_server(&self) -> Vec<Vec<usize>> {
        let mut objects = vec![Vec::new(); self.servers.len()];
        for index in 0..self.objects {
            let place = self.places.get(index).map_or(index % self.servers.len(), |place| usize::from(*place));
            if let Some(objects) = objects.get_mut(place) {
                objects.push(index);
            }
        }
        objects
    }

    /// A run by a load that a figure describes, on no server yet.
    pub(crate) fn of(load: &Load) -> Self {
        Self {
            servers: Vec::new(),
            proto: Proto::Memcached,
            conns: load.conns,
            object_bytes: load.object_bytes,
            objects: load.objects,
            places: Vec::new(),
            op: load.op,
            collection: None,
            store: true,
            rate_per_s: load.gets_per_s,
            warm_ms: load.warm_ms,
            run_ms: load.run_ms,
            core: load.core,
            server_pids: Vec::new(),
            awake_pid: Some(load.awake_pid),
            seed: load.seed,
        }
    }

    /// Name of object `index`.
    fn name(&self, index: usize) -> String {
        if self.collection.is_some() { index.to_string() } else { usual_name(index) }
    }

    /// A name that no object has, for the server of connection `token`.
    fn absent(&self, token: usize) -> String {
        let first = || self.places.iter().position(|place| usize::from(*place) == self.server_of(token));
        match (self.collection, self.proto) {
            (Some(_), _) => u64::MAX.to_string(),
            // In a Redis Cluster what stands in braces tells the slot, and so the server.
            (None, Proto::Resp) => format!("{{{}}}absent", usual_name(first().unwrap_or(0))),
            (None, _) => "lab-crowd-absent".into(),
        }
    }

    /// Puts the connection and its server in front of what went wrong on it.
    fn blame(&self, token: usize, error: &Error) -> Error {
        Error::new(format!("connection {token} to {}: {error}", self.servers[self.server_of(token)]))
    }
}

/// Name of object `index` where it is not named by index.
pub(crate) fn usual_name(index: usize) -> String {
    format!("lab-crowd-{index}")
}

/// Runs one specification in this process.
pub(crate) fn run(spec: &CrowdSpec) -> Result<CrowdOutcome> {
    spec.check()?;
    if let Some(core) = spec.core {
        sys::pin(core).during(|| format!("pin to core {core}"))?;
    }
    sys::raise_open_files().during(|| "raise the limit on open files".into())?;
    let mut buffer = vec![0; STEP_BYTES];
    let mut epoll = Epoll::new(BATCH)?;
    let start_ns = sys::monotonic_ns();
    let bulks = Opening::new(spec).run(&mut epoll, &mut buffer)?;
    let connect_ms = (sys::monotonic_ns() - start_ns) as f64 / 1e6;
    let mut crowd = Crowd::new(spec, epoll, bulks);
    crowd.outcome.connect_ms = connect_ms;
    if spec.store {
        crowd.store(&mut buffer)?;
    }
    crowd.run(&mut buffer)?;
    Ok(crowd.finish())
}

/// What a connection is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Task {
    Idle,
    Put,
    Set {
        due_ns: u64,
    },
    Get {
        due_ns: u64,
        /// Its body is compared with the source.
        compare: bool,
    },
}

struct Conn {
    bulk: Bulk,
    task: Task,
    /// Watched for room to write.
    writing: bool,
}

/// Where the run stands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Warming,
    Measuring,
    Draining,
}

struct Crowd<'a> {
    spec: &'a CrowdSpec,
    source: Source,
    names: Vec<String>,
    /// The objects of each server.
    objects: Vec<Vec<usize>>,
    epoll: Epoll,
    conns: Vec<Conn>,
    /// Open loop: connections without a request, that which waited longest first.
    idle: VecDeque<usize>,
    /// How many objects are stored or being stored, by server.
    stored: Vec<usize>,
    random: Random,
    phase: Phase,
    window: (u64, u64),
    latencies: Latencies,
    server_replies: Vec<u64>,
    bytes: u64,
    gets: u64,
    busy: usize,
    progress_ns: u64,
    next_due_ns: f64,
    due_in_window: u64,
    /// At the start of the window.
    processor: Option<Processor>,
    outcome: CrowdOutcome,
}

impl<'a> Crowd<'a> {
    fn new(spec: &'a CrowdSpec, epoll: Epoll, bulks: Vec<Bulk>) -> Self {
        let servers = spec.servers.len();
        Self {
            spec,
            source: Source::new(spec.object_bytes),
            names: (0..spec.objects).map(|index| spec.name(index)).collect(),
            objects: spec.objects_by_server(),
            epoll,
            conns: bulks.into_iter().map(|bulk| Conn { bulk, task: Task::Idle, writing: false }).collect(),
            idle: (0..spec.conns).collect(),
            stored: vec![0; servers],
            random: Random::new(spec.seed),
            phase: Phase::Warming,
            window: (0, u64::MAX),
            latencies: Latencies::new(),
            server_replies: vec![0; servers],
            bytes: 0,
            gets: 0,
            busy: 0,
            progress_ns: sys::monotonic_ns(),
            next_due_ns: 0.0,
            due_in_window: 0,
            processor: None,
            outcome: CrowdOutcome::default(),
        }
    }

    fn store(&mut self, buffer: &mut [u8]) -> Result<()> {
        for token in 0..self.conns.len().min(STORING_LANES * self.spec.servers.len()) {
            self.store_next(token)?;
        }
        while self.busy > 0 {
            self.turn(WAIT_MS, buffer)?;
            self.check_patience(sys::monotonic_ns())?;
        }
        Ok(())
    }

    /// Stores the next object of the connection's server, where there is one.
    fn store_next(&mut self, token: usize) -> Result<()> {
        let server = self.spec.server_of(token);
        let Some(&object) = self.objects[server].get(self.stored[server]) else { return Ok(()) };
        self.stored[server] += 1;
        self.conns[token].bulk.start_put(&self.names[object], &self.source, self.spec.object_bytes);
        self.begin(token, Task::Put)
    }

    /// Asks for any object of the connection's server, or writes it again.
    fn start(&mut self, token: usize, due_ns: u64) -> Result<()> {
        let objects = &self.objects[self.spec.server_of(token)];
        let object = objects[usize::try_from(self.random.below(objects.len() as u64)).expect("a place in a Vec")];
        if self.spec.op == Op::Set {
            self.conns[token].bulk.start_put(&self.names[object], &self.source, self.spec.object_bytes);
            return self.begin(token, Task::Set { due_ns });
        }
        let compare = self.gets.is_multiple_of(SAMPLE);
        self.gets += 1;
        self.conns[token].bulk.start_get(&self.names[object], self.spec.object_bytes);
        self.begin(token, Task::Get { due_ns, compare })
    }

    fn begin(&mut self, token: usize, task: Task) -> Result<()> {
        if self.busy == 0 {
            self.progress_ns = sys::monotonic_ns();
        }
        self.busy += 1;
        self.conns[token].task = task;
        self.send(token)
    }

    /// Sends one step, and watches for room only where there is more to send.
    fn send(&mut self, token: usize) -> Result<()> {
        let conn = &mut self.conns[token];
        conn.bulk.send(&self.source, STEP_BYTES).map_err(|error| self.spec.blame(token, &error))?;
        let writing = !conn.bulk.sent() && !conn.bulk.needs_credit();
        if writing != conn.writing {
            conn.writing = writing;
            self.epoll.change(conn.bulk.stream(), token, writing)?;
        }
        Ok(())
    }

    fn run(&mut self, buffer: &mut [u8]) -> Result<()> {
        let start_ns = sys::monotonic_ns();
        self.progress_ns = start_ns;
        self.next_due_ns = start_ns as f64;
        self.window.0 = start_ns + self.spec.warm_ms * 1_000_000;
        if self.spec.rate_per_s.is_none() {
            for token in 0..self.conns.len() {
                self.start(token, sys::monotonic_ns())?;
            }
        }
        loop {
            let now_ns = sys::monotonic_ns();
            self.check_patience(now_ns)?;
            if !self.advance_phase(now_ns)? {
                return Ok(());
            }
            let timeout_ms = match self.spec.rate_per_s {
                Some(rate_per_s) => self.start_due(now_ns, rate_per_s)?,
                None => WAIT_MS,
            };
            self.turn(timeout_ms, buffer)?;
        }
    }

    fn check_patience(&self, now_ns: u64) -> Result<()> {
        if self.busy == 0 || u128::from(now_ns.saturating_sub(self.progress_ns)) <= PATIENCE.as_nanos() {
            return Ok(());
        }
        let token = self.conns.iter().position(|conn| conn.task != Task::Idle).expect("some are busy");
        let error = format!("no byte on any of {} busy connections for {} s", self.busy, PATIENCE.as_secs());
        Err(self.spec.blame(token, &Error::new(error)))
    }

    /// Moves from warm-up to the window and to its end; false when the run is over.
    fn advance_phase(&mut self, now_ns: u64) -> Result<bool> {
        if self.phase == Phase::Warming && now_ns >= self.window.0 {
            self.phase = Phase::Measuring;
            self.window = (now_ns, now_ns.saturating_add(self.spec.run_ms * 1_000_000));
            self.read_counters(false)?;
        } else if self.phase == Phase::Measuring && now_ns >= self.window.1 {
            self.phase = Phase::Draining;
            self.window.1 = now_ns;
            self.outcome.seconds = (now_ns - self.window.0) as f64 / 1e9;
            self.read_counters(true)?;
        }
        let due = self.due_in_window > self.latencies.count() || self.next_due_ns < self.window.1 as f64;
        let waiting = self.spec.rate_per_s.is_some() && due && now_ns < self.window.1.saturating_add(DRAIN_NS);
        Ok(self.phase != Phase::Draining || waiting)
    }

    /// Notes CPU clocks, bytes and replies, or how far they went since.
    fn read_counters(&mut self, end: bool) -> Result<()> {
        let own = i32::try_from(std::process::id()).expect("pids fit an i32");
        let (server_ns, client_ns) = (proc::cpu_ns(&self.spec.server_pids)?, proc::cpu_ns(&[own])?);
        let processor = self.spec.awake_pid.map(Processor::now).transpose()?;
        let outcome = &mut self.outcome;
        let from = if end { outcome.clone() } else { CrowdOutcome::default() };
        let since = |index: usize| from.server_replies.get(index).copied().unwrap_or(0);
        let replies = self.server_replies.iter().enumerate().map(|(index, replies)| replies - since(index));
        outcome.server_replies = replies.collect();
        outcome.replies = outcome.server_replies.iter().sum();
        outcome.bytes = self.bytes - from.bytes;
        outcome.server_cpu_ns = server_ns - from.server_cpu_ns;
        outcome.client_cpu_ns = client_ns - from.client_cpu_ns;
        if let (Some(now), Some(before)) = (processor, self.processor) {
            outcome.idle = now.since(before).idle;
        }
        self.processor = processor;
        Ok(())
    }

    /// Open loop: starts what is due while a connection is idle; returns how long events may be waited for.
    fn start_due(&mut self, now_ns: u64, rate_per_s: f64) -> Result<i32> {
        let last_ns = if self.phase == Phase::Draining { self.window.1 - 1 } else { now_ns };
        while self.next_due_ns as u64 <= last_ns {
            let Some(token) = self.idle.pop_front() else { return Ok(WAIT_MS) };
            let due_ns = self.next_due_ns as u64;
            self.draw_next(rate_per_s);
            self.start(token, due_ns)?;
        }
        Ok(sys::pause_ms(self.next_due_ns, now_ns, WAIT_MS))
    }

    /// Counts the arrival that is next and draws the one after it.
    fn draw_next(&mut self, rate_per_s: f64) {
        let due_ns = self.next_due_ns as u64;
        let in_window = self.phase != Phase::Warming && (self.window.0..self.window.1).contains(&due_ns);
        self.due_in_window += u64::from(in_window);
        self.next_due_ns += self.random.gap_ns(rate_per_s);
    }

    /// Waits once and moves every connection that is ready by one step.
    fn turn(&mut self, timeout_ms: i32, buffer: &mut [u8]) -> Result<()> {
        for index in 0..self.epoll.wait(timeout_ms)? {
            let Event { token, readable, writable } = self.epoll.event(index);
            if self.conns[token].task == Task::Idle {
                let error = Error::new("the server spoke, or hung up, on an idle connection");
                return Err(self.spec.blame(token, &error));
            }
            if writable {
                self.send(token)?;
            }
            if readable {
                self.receive(token, buffer)?;
            }
        }
        Ok(())
    }

    fn receive(&mut self, token: usize, buffer: &mut [u8]) -> Result<()> {
        let conn = &mut self.conns[token];
        let compare = matches!(conn.task, Task::Get { compare: true, .. });
        let (source, bytes) = (&self.source, &mut self.bytes);
        let done = conn.bulk.receive(buffer, |offset, part| {
            *bytes += part.len() as u64;
            let from = usize::try_from(offset).unwrap_or(usize::MAX);
            !compare || source.bytes.get(from..).is_some_and(|rest| rest.starts_with(part))
        });
        let now_ns = sys::monotonic_ns();
        self.progress_ns = now_ns;
        match done.map_err(|error| self.spec.blame(token, &error))? {
            Some(done) => self.finished(token, done, now_ns),
            // Herd's credit may have come: only then is there more to send.
            None if !matches!(conn.task, Task::Get { .. }) => self.send(token),
            None => Ok(()),
        }
    }

    fn finished(&mut self, token: usize, done: Done, now_ns: u64) -> Result<()> {
        self.busy -= 1;
        let due_ns = match std::mem::replace(&mut self.conns[token].task, Task::Idle) {
            Task::Get { due_ns, .. } => {
                if done != (Done { found: true, body_bytes: self.spec.object_bytes as u64 }) {
                    let error = Error::new(format!("{done:?} where {} bytes were stored", self.spec.object_bytes));
                    return Err(self.spec.blame(token, &error));
                }
                due_ns
            }
            Task::Set { due_ns } => {
                self.bytes += self.spec.object_bytes as u64;
                due_ns
            }
            Task::Idle | Task::Put => return self.store_next(token),
        };
        self.server_replies[self.spec.server_of(token)] += 1;
        if self.phase != Phase::Warming && (self.window.0..self.window.1).contains(&due_ns) {
            self.latencies.record(now_ns.saturating_sub(due_ns));
        }
        if self.spec.rate_per_s.is_none() {
            return self.start(token, now_ns);
        }
        self.idle.push_back(token);
        Ok(())
    }

    fn finish(mut self) -> CrowdOutcome {
        if let Some(rate_per_s) = self.spec.rate_per_s {
            while self.next_due_ns < self.window.1 as f64 {
                self.draw_next(rate_per_s);
            }
            self.outcome.unanswered = self.due_in_window.saturating_sub(self.latencies.count());
        }
        self.outcome.latencies = self.latencies.recorded();
        self.outcome
    }
}
