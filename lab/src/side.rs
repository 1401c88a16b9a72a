//! Large transfers beside the small requests of an engine, in the same loop and thread, on connections of their own.
//!
//! Open loop: gets and puts are due at even intervals. A due transfer takes the connection of its kind that has been
//! idle longest, so that none is silent for seconds (servers close silent ones); when all are busy it waits. Each
//! readiness event moves at most [`STEP_BYTES`], so that the client itself delays the small requests by microseconds.

use std::time::Duration;

use crate::bulk::Bulk;
use crate::error::{Context, Error, Result};
use crate::proto::Op;
use crate::spec::SideSpec;
use crate::sys::{self, Epoll, Event};
use crate::values::Source;

/// Bytes moved for one readiness event.
const STEP_BYTES: usize = 64 * 1_024;
/// Connections for gets and for puts.
const GETTERS: usize = 8;
const PUTTERS: usize = 4;

struct Lane {
    bulk: Bulk,
    op: Op,
    busy: bool,
    started_ns: u64,
}

/// One kind of transfer's timetable.
struct Due {
    op: Op,
    gap_ns: f64,
    next_ns: f64,
    waiting: u64,
    done: u64,
}

/// The side traffic of one engine.
pub(crate) struct Side {
    spec: SideSpec,
    source: Source,
    lanes: Vec<Lane>,
    first_token: usize,
    due: [Due; 2],
    due_in_window: u64,
}

fn name(op: Op) -> &'static str {
    match op {
        Op::Get => "lab-side-get",
        Op::Set => "lab-side-put",
    }
}

impl Side {
    /// Connects, stores the object that is read later, and watches the connections from `first_token` on.
    pub(crate) fn open(spec: &SideSpec, epoll: &Epoll, first_token: usize) -> Result<Self> {
        let source = Source::new(spec.object_bytes);
        let mut lanes = Vec::new();
        for index in 0..GETTERS + PUTTERS {
            let stream = sys::connect_blocking(spec.addr, Duration::from_secs(10))
                .during(|| format!("connect to {}", spec.addr))?;
            let mut bulk = Bulk::open(stream, spec.proto)?;
            let op = if index < GETTERS { Op::Get } else { Op::Set };
            if index == 0 {
                transfer(&mut bulk, Op::Set, name(Op::Get), &source)?;
            }
            transfer(&mut bulk, op, name(op), &source)?;
            bulk.stream().set_nonblocking(true)?;
            epoll.add(bulk.stream(), first_token + index, false)?;
            lanes.push(Lane { bulk, op, busy: false, started_ns: 0 });
        }
        let now_ns = sys::monotonic_ns() as f64;
        let timetable = |op, per_s: f64| Due { op, gap_ns: 1e9 / per_s, next_ns: now_ns, waiting: 0, done: 0 };
        let due = [timetable(Op::Get, spec.gets_per_s), timetable(Op::Set, spec.puts_per_s)];
        Ok(Self { spec: spec.clone(), source, lanes, first_token, due, due_in_window: 0 })
    }

    /// Starts the transfers that are due.
    pub(crate) fn start_due(&mut self, now_ns: u64, measuring: bool, epoll: &Epoll) -> Result<()> {
        for kind in 0..self.due.len() {
            let due = &mut self.due[kind];
            while due.next_ns <= now_ns as f64 {
                due.next_ns += due.gap_ns;
                due.waiting += 1;
                self.due_in_window += u64::from(measuring);
            }
            while self.due[kind].waiting > 0 {
                let op = self.due[kind].op;
                let idle = (0..self.lanes.len()).filter(|&index| self.lanes[index].op == op && !self.lanes[index].busy);
                let Some(index) = idle.min_by_key(|&index| self.lanes[index].started_ns) else { break };
                self.due[kind].waiting -= 1;
                self.lanes[index].started_ns = now_ns;
                self.start(index, epoll)?;
            }
        }
        Ok(())
    }

    fn start(&mut self, index: usize, epoll: &Epoll) -> Result<()> {
        let lane = &mut self.lanes[index];
        lane.busy = true;
        match lane.op {
            Op::Get => lane.bulk.start_get(name(Op::Get), self.spec.object_bytes),
            Op::Set => lane.bulk.start_put(name(Op::Set), &self.source, self.spec.object_bytes),
        }
        Ok(epoll.change(lane.bulk.stream(), self.first_token + index, true)?)
    }

    /// Moves one connection on by one step.
    pub(crate) fn ready(&mut self, event: Event, buffer: &mut [u8], epoll: &Epoll) -> Result<()> {
        let index = event.token - self.first_token;
        let lane = &mut self.lanes[index];
        if !lane.busy {
            return Err(Error::new("a server spoke, or hung up, on an idle connection"));
        }
        if event.writable {
            lane.bulk.send(&self.source, STEP_BYTES)?;
            if lane.bulk.sent() || lane.bulk.needs_credit() {
                epoll.change(lane.bulk.stream(), event.token, false)?;
            }
        }
        if event.readable {
            let done = lane.bulk.receive(&mut buffer[..STEP_BYTES], |_, _| true)?;
            if !lane.bulk.sent() && !lane.bulk.needs_credit() {
                epoll.change(lane.bulk.stream(), event.token, true)?;
            }
            if let Some(done) = done {
                let wanted = if lane.op == Op::Get { self.spec.object_bytes as u64 } else { 0 };
                if !done.found || (lane.op == Op::Get && done.body_bytes != wanted) {
                    return Err(Error::new(format!("a large {} ended wrongly: {done:?}", lane.op.name())));
                }
                lane.busy = false;
                self.due[usize::from(lane.op == Op::Set)].done += 1;
            }
        }
        Ok(())
    }

    /// Transfers completed: gets, puts.
    pub(crate) fn done(&self) -> (u64, u64) {
        (self.due[0].done, self.due[1].done)
    }

    /// Transfers that were due within the window.
    pub(crate) fn due(&self) -> u64 {
        self.due_in_window
    }
}

/// One whole transfer, blocking, before the run.
fn transfer(bulk: &mut Bulk, op: Op, name: &str, source: &Source) -> Result<()> {
    match op {
        Op::Get => bulk.start_get(name, source.bytes.len()),
        Op::Set => bulk.start_put(name, source, source.bytes.len()),
    }
    bulk.complete(source, &mut [0; STEP_BYTES], |_, _| true).map(drop)
}
