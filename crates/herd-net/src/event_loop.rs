//! The event loop of one thread.
//!
//! Edge-triggered: a connection is *readable* from the kernel's word until a read comes back short. Connections that
//! have small requests are served in *rounds* of up to [`ROUND`]: all are read, then all are served, then all are
//! answered. Between a request's arrival and its service the memory it needs is fetched (`Service::foresee`), and a
//! client with many connections is woken once a round instead of once a reply. All else stands in line for a *turn*
//! of bounded bytes behind the rounds (`turn.rs`), so that nobody waits for a large transfer.

use crate::conn::{Conn, Inflow, READ_BYTES, REST_MAX_BYTES, Why};
use crate::group::{LISTENERS, LoopHandle, Remote, TICK, WAKE};
use crate::output::ticket_id;
use crate::service::Service;
use crate::stats::add;
use crate::sys::{Lender, Ticker};
use mio::event::Event;
use mio::net::TcpListener;
use mio::{Events, Poll, Token};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Connections of a round: enough to hide the memory's latency, few enough that what they read is still in cache.
pub(crate) const ROUND: usize = 16;
const EVENTS: usize = 1024;
/// Most bytes of one connection in a round.
const DESK_BYTES: usize = REST_MAX_BYTES + READ_BYTES;
/// Bytes of all connections in a round.
pub(crate) const INPUT_BYTES: usize = ROUND * DESK_BYTES;

/// A loop, to be run by a thread of its own.
pub struct EventLoop<S: Service> {
    pub(crate) poll: Poll,
    pub(crate) handle: LoopHandle,
    pub(crate) remote: Arc<Remote>,
    pub(crate) listeners: Vec<TcpListener>,
    pub(crate) service: S,
    pub(crate) conns: Vec<Option<Box<Conn<S>>>>,
    /// How often each place was used, so that an old ticket names nobody new.
    pub(crate) uses: Vec<u32>,
    pub(crate) free: Vec<usize>,
    /// Connections with requests that have just arrived.
    pub(crate) fresh: Vec<usize>,
    /// Connections in line for a turn.
    pub(crate) line: VecDeque<usize>,
    pub(crate) desks: Box<[Desk]>,
    /// What arrived for a round, side by side, so that it stays in the core's cache; or for a turn.
    pub(crate) input: Box<[u8]>,
    pub(crate) lender: Lender,
    pub(crate) start: Instant,
    pub(crate) now_ms: u64,
    pub(crate) ticker: Ticker,
    /// It is time for upkeep.
    pub(crate) ticked: bool,
    /// When the last small request was served, and to whom.
    pub(crate) last_small: (u64, usize),
    pub(crate) woken: bool,
    pub(crate) accept_after_ms: u64,
    /// A batch was accepted and more may be waiting.
    pub(crate) accept_more: bool,
    /// A descriptor held back, so that a connection that can't be kept can still be taken and closed.
    pub(crate) reserve: Option<std::fs::File>,
    pub(crate) stopping_ms: Option<u64>,
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

impl<S: Service> EventLoop<S> {
    /// Runs until it is stopped; an error is one of the poller itself.
    pub fn run(mut self) -> io::Result<()> {
        let mut events = Events::with_capacity(EVENTS);
        loop {
            let busy = !self.line.is_empty() || self.accept_more;
            let wait = if busy { Some(Duration::ZERO) } else { self.ticker.wait(self.now_ms) };
            match self.poll.poll(&mut events, wait) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
                _ => {}
            }
            let now = Instant::now();
            self.now_ms = now.duration_since(self.start).as_millis() as u64;
            self.service.begin(now);
            events.iter().for_each(|event| self.note(event));
            self.rounds();
            self.turns();
            self.ticked = self.ticker.is_due(self.ticked, self.now_ms);
            if (self.woken || self.accept_more || self.ticked) && self.upkeep() {
                return Ok(());
            }
        }
    }

    /// Sorts out what the kernel says.
    #[inline]
    fn note(&mut self, event: &Event) {
        match event.token() {
            WAKE => self.woken = true,
            TICK => self.ticked = true,
            Token(n) if n >= LISTENERS => self.accept(n - LISTENERS),
            Token(at) => {
                let ends = event.is_read_closed() || event.is_error();
                self.note_conn(at, event.is_readable(), ends, event.is_writable());
            }
        }
    }

    /// What the kernel says of a connection. It may say more than once before the next round.
    #[inline]
    fn note_conn(&mut self, at: usize, readable: bool, ends: bool, writable: bool) {
        let Some(Some(conn)) = self.conns.get_mut(at) else {
            return;
        };
        if ends && conn.inflow == Inflow::Open {
            conn.inflow = Inflow::Ending;
        }
        conn.readable |= readable || ends;
        conn.writable |= writable;
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
    fn rounds(&mut self) {
        let fresh = std::mem::take(&mut self.fresh);
        fresh.chunks(ROUND).for_each(|round| self.round(round));
        self.fresh = fresh;
        self.fresh.clear();
    }

    /// Reads up to [`ROUND`] connections, serves them, and answers them.
    #[inline]
    fn round(&mut self, round: &[usize]) {
        let (mut read, mut written, mut from) = (0, 0, 0);
        for (desk, &at) in self.desks.iter_mut().zip(round) {
            let conn = self.conns[at].as_mut().expect("it stays open until its round");
            let received = conn.receive(&mut self.input[from..from + DESK_BYTES]);
            conn.in_round = false;
            let (len, new) = *received.as_ref().unwrap_or(&(0, 0));
            desk.failed = received.err().map(Why::from);
            (desk.from, desk.len, read) = (from, len, read + new);
            if round.len() > 1 {
                self.service.foresee(&conn.session, &self.input[from..from + len]);
            }
            from += len.next_multiple_of(64); // the next cache line
        }
        self.service.foreseen();
        for (desk, &at) in self.desks.iter_mut().zip(round).filter(|(desk, _)| desk.len > 0) {
            let conn = self.conns[at].as_mut().expect("as above");
            let input = &self.input[desk.from..desk.from + desk.len];
            conn.serve(&mut self.service, ticket_id(at, self.uses[at]), input, &mut desk.replies);
        }
        self.service.served();
        for (i, &at) in round.iter().enumerate() {
            let desk = &mut self.desks[i];
            let conn = self.conns[at].as_mut().expect("as above");
            match conn.send(&mut desk.replies) {
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
        add(&self.remote.stats.read_bytes, read as u64);
        add(&self.remote.stats.written_bytes, written as u64);
        self.last_small = (self.now_ms, if round.len() == 1 { round[0] } else { usize::MAX });
    }

    /// Puts a connection in line for a turn, once.
    pub(crate) fn stand_in_line(&mut self, at: usize) {
        if let Some(Some(conn)) = self.conns.get_mut(at)
            && !std::mem::replace(&mut conn.in_line, true)
        {
            self.line.push_back(at);
        }
    }
}
