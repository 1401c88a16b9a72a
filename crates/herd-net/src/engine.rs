//! A loop without its poller: its connections, their rounds and turns, deferred replies, deadlines, the end.
//!
//! Somebody tells it what sockets have ([`Engine::note`]) and when to work: [`EventLoop`](crate::EventLoop) with a
//! poller and the kernel's sockets, a simulation with pipes and a clock of its own. The code between is the same.
//!
//! *Readable* is a connection from the kernel's word until a read comes back short. Connections that have small
//! requests are served in *rounds* of up to [`ROUND`]: all are read, then all are served, then all are answered.
//! Between a request's arrival and its service the memory it needs is fetched (`Service::foresee`), and a client with
//! many connections is woken once a round instead of once a reply. All else stands in line for a *turn* of bounded
//! bytes behind the rounds (`turn.rs`), so that nobody waits for a large transfer.

use crate::conn::{Conn, Inflow, READ_BYTES, REST_MAX_BYTES, Why};
use crate::laps::Laps;
use crate::output::{Output, Queue, Ticket, ticket_id};
use crate::service::{Call, Due, Service};
use crate::stats::{LoopStats, add};
use crate::system::System;
use herd_core::limits::STOP_MS;
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

/// Deferred replies looked at before requests are served again: some 0.3 ms.
const RESUMES: usize = 256;
/// Connections of a round: enough to hide the memory's latency, few enough that what they read is still in cache.
const ROUND: usize = 16;
/// A round takes no more connections when it has read so much: some 2,500 requests of 100 bytes, 1 us each.
const ROUND_BYTES: usize = 256 * 1024;
/// Most bytes of one connection in a round.
const DESK_BYTES: usize = REST_MAX_BYTES + READ_BYTES;

/// What is known of a socket since it was last told of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ready {
    /// It may have bytes.
    pub readable: bool,
    /// It will have no more than are there now.
    pub ended: bool,
    /// It may have room.
    pub writable: bool,
}

/// The connections of a loop, and how they are served.
pub struct Engine<S: Service, M: System> {
    pub(crate) system: M,
    pub(crate) service: S,
    pub(crate) conns: Vec<Option<Box<Conn<S, M>>>>,
    /// How often each place was used, so that an old ticket names nobody new.
    pub(crate) uses: Vec<u32>,
    free: Vec<usize>,
    /// Connections with requests that have just arrived.
    fresh: Vec<usize>,
    /// Connections in line for a turn.
    pub(crate) line: VecDeque<usize>,
    pub(crate) desks: Box<[Desk]>,
    /// What arrived for a round, side by side, so that it stays in the core's cache; or for a turn. Room for as many
    /// connections as a round ever had.
    pub(crate) input: Vec<u8>,
    pub(crate) now_ms: u64,
    /// When the last small request was served, and to whom.
    pub(crate) last_small: (u64, usize),
    stopping_ms: Option<u64>,
    /// The service has work of its own left.
    pub(crate) upkeep_left: bool,
    laps: Laps,
    /// Deferred replies to look at, kept for its memory.
    ready: Vec<Ticket>,
    /// Those whose turn has not come.
    late: VecDeque<Ticket>,
    /// What is due, kept for its memory.
    due: Due<S::Session>,
    pub(crate) stats: Arc<LoopStats>,
}

/// Where one connection of a round is served.
#[derive(Default)]
pub(crate) struct Desk {
    /// Where in the loop's input lies what arrived.
    from: usize,
    len: usize,
    /// Replies to it.
    pub(crate) replies: Vec<u8>,
    failed: Option<Why>,
}

impl<S: Service, M: System> Engine<S, M> {
    /// An engine without connections.
    pub fn new(service: S, system: M, stats: Arc<LoopStats>) -> Self {
        Self {
            system,
            service,
            conns: Vec::new(),
            uses: Vec::new(),
            free: Vec::new(),
            fresh: Vec::new(),
            line: VecDeque::new(),
            desks: (0..ROUND).map(|_| Desk::default()).collect(),
            input: vec![0; DESK_BYTES],
            now_ms: 0,
            last_small: (0, usize::MAX),
            stopping_ms: None,
            upkeep_left: false,
            laps: Laps::default(),
            ready: Vec::new(),
            late: VecDeque::new(),
            due: Due::default(),
            stats,
        }
    }

    /// The service.
    pub fn service(&self) -> &S {
        &self.service
    }

    /// The service, for tests that have it do something: what it makes ready is looked at with the next rounds.
    pub fn service_mut(&mut self) -> &mut S {
        &mut self.service
    }

    /// Whether connections stand in line for a turn.
    pub fn is_busy(&self) -> bool {
        !self.line.is_empty() || !self.late.is_empty() || self.upkeep_left
    }

    /// Connections that are open.
    pub fn open(&self) -> usize {
        self.conns.len() - self.free.len()
    }

    /// Milliseconds of the system's clock when the engine last began.
    pub(crate) fn now_ms(&self) -> u64 {
        self.now_ms
    }

    /// Nanoseconds of the system's clock now.
    pub(crate) fn now_ns(&self) -> u64 {
        self.system.now_ns()
    }

    /// Begins to work: takes the time.
    #[inline]
    pub fn begin(&mut self) {
        let now_ns = self.system.now_ns();
        self.now_ms = now_ns / 1_000_000;
        self.laps.begin(now_ns, || self.system.cpu_ns());
        self.service.begin(now_ns);
    }

    /// Takes a connection, whose socket `make` gives when it is told the connection's number; that number.
    pub fn adopt(&mut self, peer: SocketAddr, make: impl FnOnce(usize) -> io::Result<M::Socket>) -> io::Result<usize> {
        let at = self.place();
        let socket = make(at).inspect_err(|_| self.free.push(at))?;
        add(&self.stats.opened, 1);
        let session = self.service.open(peer);
        self.conns[at] = Some(Box::new(Conn::new(socket, session, self.now_ms)));
        Ok(at)
    }

    /// Has a connection that another loop handed over serve what it had received there.
    pub fn hand_in(&mut self, at: usize, input: Vec<u8>) {
        if let Some(Some(conn)) = self.conns.get_mut(at)
            && !input.is_empty()
        {
            (conn.input, conn.put_off) = (input, true);
            self.stand_in_line(at);
        }
    }

    /// Gives a connection to the loop it belongs to.
    #[cold]
    pub(crate) fn hand_over(&mut self, at: usize) {
        let Some((conn, to)) = self.vacate(at).and_then(|conn| conn.moves_to.map(|to| (conn, to))) else { return };
        let Conn { socket, session, input, queue, .. } = *conn;
        self.service.close(session);
        // The rest of what was said could not follow.
        if queue.is_empty() {
            self.system.hand_over(socket, to, input);
        }
    }

    /// Takes a connection from its place.
    fn vacate(&mut self, at: usize) -> Option<Box<Conn<S, M>>> {
        let mut conn = self.conns[at].take()?;
        add(&self.stats.closed, 1);
        conn.release(&mut self.service);
        self.uses[at] = self.uses[at].wrapping_add(1);
        self.free.push(at);
        Some(conn)
    }

    /// A place for a connection.
    fn place(&mut self) -> usize {
        self.free.pop().unwrap_or_else(|| {
            self.conns.push(None);
            self.uses.push(0);
            self.conns.len() - 1
        })
    }

    /// Begins to make a connection that the service wants.
    fn call(&mut self, call: Call<S::Session>) {
        let at = self.place();
        match self.system.dial(call.to, at) {
            Ok(socket) => {
                add(&self.stats.opened, 1);
                self.conns[at] = Some(Box::new(Conn::dialed(socket, call.session, self.now_ms)));
            }
            Err(_) => {
                self.free.push(at);
                self.service.close(call.session);
            }
        }
    }

    /// What is known of a connection's socket. It may be told more than once before the next rounds.
    #[inline]
    pub fn note(&mut self, at: usize, ready: Ready) {
        let Some(Some(conn)) = self.conns.get_mut(at) else {
            return;
        };
        if ready.ended && conn.inflow == Inflow::Open {
            conn.inflow = Inflow::Ending;
        }
        conn.readable |= ready.readable || ready.ended;
        conn.writable |= ready.writable;
        match () {
            () if conn.in_round => {}
            () if conn.is_fresh() => {
                conn.in_round = true;
                self.fresh.push(at);
            }
            () => self.stand_in_line(at),
        }
    }

    /// Serves all connections with fresh requests.
    #[inline]
    pub fn rounds(&mut self) {
        let fresh = std::mem::take(&mut self.fresh);
        let mut rest = &fresh[..];
        while !rest.is_empty() {
            let served = self.round(&rest[..rest.len().min(ROUND)]);
            rest = &rest[served..];
        }
        self.fresh = fresh;
        self.fresh.clear();
        // Not before: it may close any connection, also one that waits for its round.
        if self.resume_ready() {
            self.served();
        }
    }

    /// Reads up to [`ROUND`] connections, fewer if they have much, serves them, and answers them; gives how many.
    #[inline]
    fn round(&mut self, round: &[usize]) -> usize {
        let (mut read, mut written, mut from, mut count) = (0, 0, 0, 0);
        if self.input.len() < round.len() * DESK_BYTES {
            self.widen(round.len());
        }
        for (desk, &at) in self.desks.iter_mut().zip(round) {
            let conn = self.conns[at].as_mut().expect("it stays open until its round");
            let received = conn.receive(&self.system, &mut self.input[from..from + DESK_BYTES]);
            conn.in_round = false;
            let (len, new) = *received.as_ref().unwrap_or(&(0, 0));
            desk.failed = received.err().map(Why::from);
            (desk.from, desk.len, read) = (from, len, read + new);
            if round.len() > 1 {
                self.service.foresee(&conn.session, &self.input[from..from + len]);
            }
            from += len.next_multiple_of(64); // the next cache line
            count += 1;
            if read > ROUND_BYTES {
                break;
            }
        }
        let round = &round[..count];
        self.service.foreseen();
        for (desk, &at) in self.desks.iter_mut().zip(round).filter(|(desk, _)| desk.len > 0) {
            let conn = self.conns[at].as_mut().expect("as above");
            let input = &self.input[desk.from..desk.from + desk.len];
            conn.serve(&mut self.service, ticket_id(at, self.uses[at]), input, &mut desk.replies);
        }
        self.served();
        for (i, &at) in round.iter().enumerate() {
            let desk = &mut self.desks[i];
            let conn = self.conns[at].as_mut().expect("as above");
            match conn.send(&self.system, &mut desk.replies) {
                Ok(n) => written += n,
                Err(error) => desk.failed = Some(error.into()),
            }
            if let Some(why) = desk.failed.or_else(|| conn.wants_end(&mut self.service)) {
                self.close(at, why);
            } else if conn.is_resting(&self.service) {
                conn.set_deadline(&self.service, self.now_ms, desk.len > 0);
            } else {
                self.stand_in_line(at);
            }
        }
        add(&self.stats.read_bytes, read as u64);
        add(&self.stats.written_bytes, written as u64);
        self.last_small = (self.now_ms, if round.len() == 1 { round[0] } else { usize::MAX });
        count
    }

    /// Makes room for so many connections in a round.
    #[cold]
    fn widen(&mut self, connections: usize) {
        // Nothing is in it between rounds.
        self.input = vec![0; connections * DESK_BYTES];
    }

    /// Tells the service what time it is after what it did.
    #[inline]
    pub(crate) fn served(&mut self) {
        let now_ns = self.system.now_ns();
        self.laps.lap(now_ns, || self.system.cpu_ns());
        self.service.served(now_ns);
    }

    /// Puts a connection in line for a turn, once.
    pub(crate) fn stand_in_line(&mut self, at: usize) {
        if let Some(Some(conn)) = self.conns.get_mut(at)
            && !std::mem::replace(&mut conn.in_line, true)
        {
            self.line.push_back(at);
        }
    }

    /// Has the service make the replies of this loop that what was served just now made ready. Whether any was there.
    #[inline]
    pub(crate) fn resume_ready(&mut self) -> bool {
        let urgent = self.resume_urgent();
        self.service.ready(&mut self.ready);
        self.late.extend(self.ready.drain(..));
        let mut left = RESUMES;
        while left > 0
            && let Some(ticket) = self.late.pop_front()
        {
            // What was cancelled meanwhile does not count, or cancelled waits would gather here.
            left -= usize::from(self.resume(ticket));
        }
        // What these had others say, or made ready, would wait for the next event.
        let urgent = self.resume_urgent() || urgent;
        self.service.ready(&mut self.ready);
        self.late.extend(self.ready.drain(..));
        if self.late.is_empty() && self.late.capacity() > RESUMES {
            self.late = VecDeque::new();
        }
        // After those that were resumed, which may want another turn.
        self.upkeep_left |= self.service.wants_upkeep();
        urgent || left < RESUMES
    }

    /// Has the service make what comes before all that waits.
    #[inline]
    fn resume_urgent(&mut self) -> bool {
        self.service.urgent(&mut self.ready);
        let any = !self.ready.is_empty();
        while let Some(ticket) = self.ready.pop() {
            self.resume(ticket);
        }
        any
    }

    /// Has a deferred reply looked at when its turn comes.
    pub fn resume_later(&mut self, ticket: Ticket) {
        self.late.push_back(ticket);
    }

    /// Has the service make a deferred reply and puts it in its place. False: there is none of that ticket any more.
    pub fn resume(&mut self, ticket: Ticket) -> bool {
        let at = (ticket.conn & 0xFFFF_FFFF) as usize;
        let Some(Some(conn)) = self.conns.get_mut(at) else {
            return false;
        };
        if ticket.conn != ticket_id(at, self.uses[at]) {
            return false;
        }
        let (mut buf, mut reply) = (Vec::new(), Queue::resumed(conn.queue.serial()));
        let mut out = Output::resumed(&mut buf, &mut reply, ticket.conn, conn.queue.small_bytes());
        let is_there = self.service.resume(&mut conn.session, ticket, &mut out);
        reply.push(&buf);
        conn.queue.go_on_behind(&reply);
        if !reply.is_empty() || reply.passes {
            conn.queue.fill(ticket.serial, reply);
            if conn.tell_held(&mut self.service) { self.stand_in_line(at) } else { self.close(at, Why::Shed) }
        } else if conn.wants_turn(&self.service) {
            self.stand_in_line(at);
        }
        is_there
    }

    /// When [`Engine::alarm`] has something to do, ms of the system's clock; `u64::MAX`: never.
    #[inline]
    pub fn alarm_ms(&self) -> u64 {
        self.service.alarm_ms()
    }

    /// Has the service do what is due; called after the turns.
    #[inline]
    pub fn alarm(&mut self) {
        if self.service.alarm_ms() <= self.now_ms {
            self.ring();
        }
    }

    #[cold]
    fn ring(&mut self) {
        let mut due = std::mem::take(&mut self.due);
        self.service.alarm(self.now_ms, &mut due);
        self.late.extend(due.tickets.drain(..));
        due.calls.drain(..).for_each(|call| self.call(call));
        self.due = due;
        self.resume_ready();
        self.served();
    }

    /// Called every [`TICK_MS`](herd_core::limits::TICK_MS): upkeep of the service, replies whose time has come,
    /// connections whose time is up.
    pub fn tick(&mut self) {
        let mut due = Vec::new();
        self.service.tick(&mut due);
        self.upkeep_left = true;
        self.late.extend(due);
        self.resume_ready();
        self.shed();
        self.laps.lap(self.system.now_ns(), || self.system.cpu_ns());
        self.laps.tell(&self.stats);
    }

    /// Begins to stop: idle connections are closed at the next ticks, the others when they are idle or out of time.
    pub fn stop(&mut self) {
        self.stop_within(STOP_MS);
    }

    /// As [`Engine::stop`]; all are out of time in so many ms.
    pub fn stop_within(&mut self, within_ms: u64) {
        self.stopping_ms.get_or_insert(self.now_ms + within_ms);
    }

    /// Whether it was told to stop, and has.
    pub fn has_stopped(&self) -> bool {
        self.stopping_ms.is_some_and(|until| self.now_ms >= until || self.open() == 0)
    }

    /// Closes connections whose time is up, or that the service drops, and idle ones while stopping: links when nothing
    /// else is left, as others may need them.
    fn shed(&mut self) {
        (0..self.conns.len()).for_each(|at| self.shed_one(at, false));
        let is_client = |conn: &Conn<S, M>| !self.service.is_link(&conn.session);
        if self.stopping_ms.is_some() && !self.conns.iter().flatten().any(|conn| is_client(conn)) {
            (0..self.conns.len()).for_each(|at| self.shed_one(at, true));
        }
    }

    fn shed_one(&mut self, at: usize, ends_links: bool) {
        let Some(conn) = &self.conns[at] else { return };
        let late = conn.deadline_ms != 0 && conn.deadline_ms <= self.now_ms;
        let slow = late && !conn.lingering && !conn.dialed;
        let owed = !conn.queue.is_empty() || self.service.owes(&conn.session);
        let idle = !owed && self.service.is_idle(&conn.session);
        let is_kept = !ends_links && self.service.is_link(&conn.session);
        let stop = self.stopping_ms.is_some() && idle && !is_kept;
        if late || stop || self.service.is_dropped(&conn.session) {
            self.close(at, if slow { Why::Shed } else { Why::Done });
        }
    }

    /// Closes the connection at `at`.
    pub(crate) fn close(&mut self, at: usize, why: Why) {
        let Some(conn) = self.vacate(at) else {
            return;
        };
        match why {
            Why::Done => {}
            Why::Shed => add(&self.stats.shed, 1),
            Why::Overrun => add(&self.stats.overrun, 1),
        }
        self.service.close(conn.session);
    }
}
