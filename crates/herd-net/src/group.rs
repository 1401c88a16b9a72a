//! Loops that belong together: how they are made, share new connections, and are reached by other threads.

use crate::conn::Conn;
use crate::event_loop::{Desk, EventLoop, INPUT_BYTES, ROUND};
use crate::output::Ticket;
use crate::service::Service;
use crate::stats::{LoopStats, add};
use crate::sys::{Lender, Ticker};
use mio::net::{TcpListener, TcpStream};
use mio::{Interest, Poll, Token, Waker};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

pub(crate) const WAKE: Token = Token(usize::MAX);
pub(crate) const TICK: Token = Token(usize::MAX - 1);
/// Tokens from here on are listeners.
pub(crate) const LISTENERS: usize = usize::MAX / 2;
/// Connections accepted before others are served again.
const ACCEPT_BATCH: usize = 256;
/// How long accepting rests when descriptors run out.
const ACCEPT_REST_MS: u64 = 100;

/// What other threads may do to a loop.
pub struct Remote {
    waker: Waker,
    inbox: Mutex<Inbox>,
    /// Counters of the loop.
    pub stats: LoopStats,
}

#[derive(Default)]
pub(crate) struct Inbox {
    pub(crate) sockets: Vec<(std::net::TcpStream, SocketAddr)>,
    pub(crate) tickets: Vec<Ticket>,
    pub(crate) stop: bool,
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

    /// What was posted since the last time.
    pub(crate) fn inbox(&self) -> Inbox {
        std::mem::take(&mut *self.inbox.lock().unwrap_or_else(PoisonError::into_inner))
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

    /// Counts a connection in; false, and not counted, if there are too many.
    fn admit(&self) -> bool {
        let admitted = self.open.fetch_add(1, Relaxed) < self.open_max;
        if !admitted {
            self.leave();
        }
        admitted
    }

    /// Counts a connection out.
    pub(crate) fn leave(&self) {
        self.open.fetch_sub(1, Relaxed);
    }
}

impl<S: Service> EventLoop<S> {
    fn new(
        poll: Poll,
        handle: LoopHandle,
        remote: Arc<Remote>,
        listeners: Vec<TcpListener>,
        service: S,
    ) -> io::Result<Self> {
        Ok(Self {
            ticker: Ticker::new(poll.registry(), TICK)?,
            poll,
            handle,
            remote,
            listeners,
            service,
            conns: Vec::new(),
            uses: Vec::new(),
            free: Vec::new(),
            fresh: Vec::new(),
            line: VecDeque::new(),
            desks: (0..ROUND).map(|_| Desk::default()).collect(),
            input: vec![0; INPUT_BYTES].into(),
            lender: Lender::new()?,
            start: Instant::now(),
            now_ms: 0,
            ticked: false,
            last_small: (0, usize::MAX),
            woken: false,
            accept_after_ms: 0,
            accept_more: false,
            reserve: None,
            stopping_ms: None,
        })
    }

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
            let mut one = Self::new(poll, handle.clone(), handle.loops[i].clone(), mine, service)?;
            if i == 0 {
                one.reserve = Some(File::open("/dev/null")?);
            }
            group.push(one);
        }
        Ok((handle, group))
    }

    /// Accepts what has come, up to a batch.
    pub(crate) fn accept(&mut self, listener: usize) {
        for _ in 0..ACCEPT_BATCH {
            match self.listeners[listener].accept() {
                Ok((socket, peer)) => self.hand_out(socket, peer),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if no_descriptor(&error) && self.turn_away(listener) => {}
                Err(_) => {
                    // Out of memory, or nothing can be taken: let some connections end first.
                    self.accept_after_ms = self.now_ms + ACCEPT_REST_MS;
                    return;
                }
            }
        }
        self.accept_more = true;
    }

    /// Takes the next connection with the descriptor held back for that, and closes it; false if there was none.
    fn turn_away(&mut self, listener: usize) -> bool {
        drop(self.reserve.take());
        let taken = self.listeners[listener].accept().is_ok();
        self.reserve = File::open("/dev/null").ok();
        add(&self.remote.stats.shed, u64::from(taken));
        taken
    }

    pub(crate) fn accept_all(&mut self) {
        self.accept_more = false;
        (0..self.listeners.len()).for_each(|listener| self.accept(listener));
    }

    /// Gives a new connection to the next loop in turn; sheds it if there are too many.
    fn hand_out(&mut self, socket: TcpStream, peer: SocketAddr) {
        if !self.handle.admit() {
            return add(&self.remote.stats.shed, 1);
        }
        let to = self.handle.next.fetch_add(1, Relaxed) % self.handle.loops.len();
        let target = &self.handle.loops[to];
        if Arc::ptr_eq(target, &self.remote) {
            self.adopt(socket, peer);
        } else {
            let socket = std::net::TcpStream::from(socket);
            target.post(|inbox| inbox.sockets.push((socket, peer)));
        }
    }

    /// Takes a connection into this loop.
    pub(crate) fn adopt(&mut self, mut socket: TcpStream, peer: SocketAddr) {
        socket.set_nodelay(true).ok();
        let at = self.free.pop().unwrap_or_else(|| {
            self.conns.push(None);
            self.uses.push(0);
            self.conns.len() - 1
        });
        let interest = Interest::READABLE | Interest::WRITABLE;
        if self.poll.registry().register(&mut socket, Token(at), interest).is_err() {
            self.handle.leave();
            self.free.push(at);
            return;
        }
        add(&self.remote.stats.opened, 1);
        let session = self.service.open(peer);
        self.conns[at] = Some(Box::new(Conn::new(socket, session, self.now_ms)));
    }
}

/// Whether this process, or the machine, has no descriptor left.
fn no_descriptor(error: &io::Error) -> bool {
    [Errno::MFILE, Errno::NFILE].iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}
