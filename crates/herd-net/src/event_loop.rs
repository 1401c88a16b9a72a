//! The event loop of one thread.
//!
//! Edge-triggered: a connection is *readable* from the kernel's word until a read comes back short. Small requests are
//! served as they come; a bulk transfer gets at most a turn's bytes and then stands behind all other connections that
//! are ready, so none waits for it. Turns are short while others are about and long while a transfer is alone.

use crate::conn::{Conn, READ_BYTES, REST_MAX_BYTES, Turn};
use crate::output::{Output, Queue, Ticket};
use crate::service::{Service, Why};
use crate::stats::{LoopStats, add};
use herd_core::limits::{STOP_MS, TURN_LARGE_BYTES, TURN_SMALL_BYTES};
use mio::event::Event;
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token, Waker};
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

const WAKE: Token = Token(usize::MAX);
const LISTENERS: usize = usize::MAX / 2;
/// Connections accepted before others are served again.
const ACCEPT_BATCH: usize = 256;
/// How long accepting rests when descriptors run out.
const ACCEPT_REST_MS: u64 = 100;
/// A transfer is alone if nobody else was served for this long.
const ALONE_MS: u64 = 20;
const TICK_MS: u64 = 250;
const EVENTS: usize = 1024;

/// What other threads may do to a loop.
pub struct Remote {
    waker: Waker,
    inbox: Mutex<Inbox>,
    /// Counters of the loop.
    pub stats: LoopStats,
}

#[derive(Default)]
struct Inbox {
    sockets: Vec<(std::net::TcpStream, SocketAddr)>,
    tickets: Vec<Ticket>,
    stop: bool,
}

/// Loops that belong together: they share the accepted connections.
#[derive(Clone)]
pub struct LoopHandle {
    loops: Arc<[Arc<Remote>]>,
    next: Arc<AtomicUsize>,
    open: Arc<AtomicU64>,
    open_max: u64,
}

impl Remote {
    fn post(&self, change: impl FnOnce(&mut Inbox)) {
        change(&mut self.inbox.lock().unwrap_or_else(PoisonError::into_inner));
        // A loop that is gone can't be woken, and needs not be.
        self.waker.wake().ok();
    }

    /// Has the loop look at deferred replies again.
    pub fn resume(&self, tickets: &[Ticket]) {
        self.post(|inbox| inbox.tickets.extend_from_slice(tickets));
    }
}

impl LoopHandle {
    /// Has all loops finish what is under way and end.
    pub fn stop(&self) {
        self.loops.iter().for_each(|remote| remote.post(|inbox| inbox.stop = true));
    }

    /// The loops, by number.
    pub fn loops(&self) -> &[Arc<Remote>] {
        &self.loops
    }

    /// Connections open in all loops.
    pub fn open(&self) -> u64 {
        self.open.load(Relaxed)
    }
}

/// A loop, to be run by a thread of its own.
pub struct EventLoop<S: Service> {
    poll: Poll,
    handle: LoopHandle,
    remote: Arc<Remote>,
    listeners: Vec<TcpListener>,
    service: S,
    conns: Vec<Option<Box<Conn<S>>>>,
    /// How often each place was used, so that an old ticket names nobody new.
    uses: Vec<u32>,
    free: Vec<usize>,
    again: VecDeque<usize>,
    scratch: Box<[u8]>,
    buf: Vec<u8>,
    start: Instant,
    now_ms: u64,
    tick_ms: u64,
    /// When the last small request was served, and to whom.
    last_small: (u64, usize),
    accept_after_ms: u64,
    /// A batch was accepted and more may be waiting.
    accept_more: bool,
    stopping_ms: Option<u64>,
}

impl<S: Service> EventLoop<S> {
    /// As many loops as there are services; the first accepts for all, up to `open_max` connections.
    pub fn group(
        listeners: Vec<std::net::TcpListener>,
        services: Vec<S>,
        open_max: u64,
    ) -> io::Result<(LoopHandle, Vec<Self>)> {
        let polls = services.iter().map(|_| Poll::new()).collect::<io::Result<Vec<_>>>()?;
        let remote = |poll: &Poll| {
            let waker = Waker::new(poll.registry(), WAKE)?;
            Ok(Arc::new(Remote { waker, inbox: Mutex::default(), stats: LoopStats::default() }))
        };
        let loops = polls.iter().map(remote).collect::<io::Result<Vec<_>>>()?;
        let handle = LoopHandle { loops: loops.into(), next: Arc::default(), open: Arc::default(), open_max };
        let mut listeners = Some(listeners.into_iter().map(TcpListener::from_std).collect::<Vec<_>>());
        let mut group = Vec::new();
        for (i, (poll, service)) in polls.into_iter().zip(services).enumerate() {
            let mut mine = listeners.take().unwrap_or_default();
            for (n, listener) in mine.iter_mut().enumerate() {
                poll.registry().register(listener, Token(LISTENERS + n), Interest::READABLE)?;
            }
            group.push(Self::new(poll, handle.clone(), handle.loops[i].clone(), mine, service));
        }
        Ok((handle, group))
    }

    fn new(poll: Poll, handle: LoopHandle, remote: Arc<Remote>, listeners: Vec<TcpListener>, service: S) -> Self {
        Self {
            poll,
            handle,
            remote,
            listeners,
            service,
            conns: Vec::new(),
            uses: Vec::new(),
            free: Vec::new(),
            again: VecDeque::new(),
            scratch: vec![0; REST_MAX_BYTES + READ_BYTES].into(),
            buf: Vec::new(),
            start: Instant::now(),
            now_ms: 0,
            tick_ms: 0,
            last_small: (0, usize::MAX),
            accept_after_ms: 0,
            accept_more: false,
            stopping_ms: None,
        }
    }

    /// Runs until it is stopped; an error is one of the poller itself.
    pub fn run(mut self) -> io::Result<()> {
        let mut events = Events::with_capacity(EVENTS);
        loop {
            let busy = !self.again.is_empty() || self.accept_more;
            let wait = if busy { 0 } else { self.tick_ms.saturating_sub(self.now_ms) };
            match self.poll.poll(&mut events, Some(Duration::from_millis(wait))) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
                _ => {}
            }
            self.now_ms = self.start.elapsed().as_millis() as u64;
            self.service.begin();
            for event in &events {
                self.dispatch(event);
            }
            for _ in 0..self.again.len() {
                let at = self.again.pop_front().expect("counted");
                self.take_turn(at);
            }
            if self.accept_more {
                self.accept_all();
            }
            if self.now_ms >= self.tick_ms && self.tick() {
                return Ok(());
            }
        }
    }

    fn dispatch(&mut self, event: &Event) {
        match event.token() {
            WAKE => self.read_inbox(),
            Token(n) if n >= LISTENERS => self.accept(n - LISTENERS),
            Token(at) => {
                let Some(Some(conn)) = self.conns.get_mut(at) else {
                    return;
                };
                conn.readable |= event.is_readable() || event.is_read_closed() || event.is_error();
                conn.writable |= event.is_writable();
                if !conn.again {
                    self.take_turn(at);
                }
            }
        }
    }

    /// Lets one connection read, serve and send within its budget.
    #[inline]
    fn take_turn(&mut self, at: usize) {
        let Some(mut conn) = self.conns.get_mut(at).and_then(Option::take) else {
            return;
        };
        let alone = self.last_small.1 == at || self.now_ms > self.last_small.0 + ALONE_MS;
        let mut turn = Turn {
            service: &mut self.service,
            scratch: &mut self.scratch,
            buf: &mut self.buf,
            id: ticket_id(at, self.uses[at]),
            budget: if alone { TURN_LARGE_BYTES } else { TURN_SMALL_BYTES },
            now_ms: self.now_ms,
            read_bytes: 0,
            written_bytes: 0,
        };
        let result = conn.turn(&mut turn);
        let (read, written) = (turn.read_bytes, turn.written_bytes);
        add(&self.remote.stats.read_bytes, read);
        add(&self.remote.stats.written_bytes, written);
        if read + written < READ_BYTES as u64 {
            self.last_small = (self.now_ms, at);
        }
        match result {
            Ok(()) => {
                if conn.again {
                    self.again.push_back(at);
                }
                self.conns[at] = Some(conn);
            }
            Err(_) => {
                let why = if conn.closing { Why::Asked } else { Why::Gone };
                self.close(at, conn, why);
            }
        }
    }

    fn close(&mut self, at: usize, mut conn: Box<Conn<S>>, why: Why) {
        self.buf.clear();
        // The poller forgets a socket when it is closed; saying so first is only tidy.
        self.poll.registry().deregister(&mut conn.socket).ok();
        add(&self.remote.stats.closed, 1);
        if why == Why::Slow {
            add(&self.remote.stats.shed, 1);
        }
        self.handle.open.fetch_sub(1, Relaxed);
        self.service.close(conn.session, why);
        self.uses[at] = self.uses[at].wrapping_add(1);
        self.free.push(at);
    }

    fn accept(&mut self, listener: usize) {
        for _ in 0..ACCEPT_BATCH {
            match self.listeners[listener].accept() {
                Ok((socket, peer)) => self.hand_out(socket, peer),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => {
                    // Out of descriptors or memory: let some connections end first.
                    self.accept_after_ms = self.now_ms + ACCEPT_REST_MS;
                    return;
                }
            }
        }
        self.accept_more = true;
    }

    fn accept_all(&mut self) {
        self.accept_more = false;
        (0..self.listeners.len()).for_each(|listener| self.accept(listener));
    }

    /// Gives a new connection to the next loop in turn; sheds it if there are too many.
    fn hand_out(&mut self, socket: TcpStream, peer: SocketAddr) {
        if self.handle.open.fetch_add(1, Relaxed) >= self.handle.open_max {
            self.handle.open.fetch_sub(1, Relaxed);
            add(&self.remote.stats.shed, 1);
            return;
        }
        let loops = self.handle.loops.len();
        let to = self.handle.next.fetch_add(1, Relaxed) % loops;
        let target = &self.handle.loops[to];
        if Arc::ptr_eq(target, &self.remote) {
            self.adopt(socket, peer);
        } else {
            let socket = std::net::TcpStream::from(socket);
            target.post(|inbox| inbox.sockets.push((socket, peer)));
        }
    }

    fn adopt(&mut self, mut socket: TcpStream, peer: SocketAddr) {
        socket.set_nodelay(true).ok();
        let at = self.free.pop().unwrap_or_else(|| {
            self.conns.push(None);
            self.uses.push(0);
            self.conns.len() - 1
        });
        let interest = Interest::READABLE | Interest::WRITABLE;
        if self.poll.registry().register(&mut socket, Token(at), interest).is_err() {
            self.handle.open.fetch_sub(1, Relaxed);
            self.free.push(at);
            return;
        }
        add(&self.remote.stats.opened, 1);
        let session = self.service.open(peer);
        self.conns[at] = Some(Box::new(Conn::new(socket, session, self.now_ms)));
    }

    fn read_inbox(&mut self) {
        let inbox = std::mem::take(&mut *self.remote.inbox.lock().unwrap_or_else(PoisonError::into_inner));
        for (socket, peer) in inbox.sockets {
            self.adopt(TcpStream::from_std(socket), peer);
        }
        for ticket in inbox.tickets {
            self.resume(ticket);
        }
        if inbox.stop && self.stopping_ms.is_none() {
            self.stopping_ms = Some(self.now_ms + STOP_MS);
            self.listeners.clear();
            self.tick_ms = self.now_ms;
        }
    }

    /// Has the service make a deferred reply and puts it in its place.
    fn resume(&mut self, ticket: Ticket) {
        let at = (ticket.conn & 0xFFFF_FFFF) as usize;
        let Some(Some(conn)) = self.conns.get_mut(at) else {
            return;
        };
        if ticket.conn != ticket_id(at, self.uses[at]) {
            return;
        }
        let (mut buf, mut reply) = (Vec::new(), Queue::resumed(ticket.serial));
        let mut out = Output::new(&mut buf, &mut reply, ticket.conn);
        self.service.resume(&mut conn.session, ticket, &mut out);
        reply.push(&mut buf);
        if !reply.is_empty() {
            conn.queue.fill(ticket.serial, reply);
            if !conn.again {
                self.take_turn(at);
            }
        }
    }

    /// Upkeep; true when a stopping loop is done.
    fn tick(&mut self) -> bool {
        self.tick_ms = self.now_ms + TICK_MS;
        if self.accept_after_ms > 0 && self.now_ms >= self.accept_after_ms {
            self.accept_after_ms = 0;
            self.accept_all();
        }
        let mut due = Vec::new();
        self.service.tick(&mut due);
        due.into_iter().for_each(|ticket| self.resume(ticket));
        self.shed();
        self.stopping_ms.is_some_and(|until| self.now_ms >= until || self.conns.iter().all(Option::is_none))
    }

    /// Closes connections whose time is up, and idle ones while stopping.
    fn shed(&mut self) {
        for at in 0..self.conns.len() {
            let Some(conn) = &self.conns[at] else {
                continue;
            };
            let late = conn.deadline_ms != 0 && conn.deadline_ms <= self.now_ms;
            let slow = late && !conn.is_lingering();
            let idle = conn.queue.is_empty() && self.service.is_idle(&conn.session);
            let stop = self.stopping_ms.is_some() && idle;
            if late || stop {
                let conn = self.conns[at].take().expect("seen above");
                self.close(at, conn, if slow { Why::Slow } else { Why::Stopping });
            }
        }
    }
}

fn ticket_id(at: usize, uses: u32) -> u64 {
    u64::from(uses) << 32 | at as u64
}
