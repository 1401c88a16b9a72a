//! Loops that belong together: how they are made, share new connections, and are reached by other threads.

use crate::engine::Engine;
use crate::event_loop::EventLoop;
use crate::output::Ticket;
use crate::service::Service;
use crate::stats::{LoopStats, add};
use crate::sys::{Alarm, Kernel, Tcp, Ticker};
use herd_core::limits::STOP_MS;
use mio::net::{TcpListener, TcpStream};
use mio::{Interest, Poll, Token, Waker};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

pub(crate) const WAKE: Token = Token(usize::MAX);
pub(crate) const TICK: Token = Token(usize::MAX - 1);
pub(crate) const ALARM: Token = Token(usize::MAX - 2);
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
    pub stats: Arc<LoopStats>,
}

#[derive(Default)]
pub(crate) struct Inbox {
    pub(crate) sockets: Vec<Handed>,
    pub(crate) tickets: Vec<Ticket>,
    /// It is to stop, within so many ms.
    pub(crate) stop: Option<u64>,
}

/// A connection for another loop.
pub(crate) struct Handed {
    pub(crate) socket: std::net::TcpStream,
    pub(crate) peer: SocketAddr,
    pub(crate) seat: Option<Seat>,
    /// What it has received and not served.
    pub(crate) input: Vec<u8>,
}

/// Loops that belong together: they share the accepted connections.
#[derive(Clone)]
pub struct LoopHandle {
    loops: Arc<[Arc<Remote>]>,
    next: Arc<AtomicUsize>,
    open: Arc<AtomicU64>,
    open_max: u64,
    start: Instant,
}

/// A place among the connections a node may have, given back when it is dropped.
pub(crate) struct Seat {
    open: Arc<AtomicU64>,
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.open.fetch_sub(1, Relaxed);
    }
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
    /// The time by the clock of the loops, ns: what a batch began with may be long ago.
    pub fn now_ns(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    /// Has all loops finish what is under way and end, within [`STOP_MS`].
    pub fn stop(&self) {
        self.stop_within(STOP_MS);
    }

    /// As [`LoopHandle::stop`], within so many ms.
    pub fn stop_within(&self, within_ms: u64) {
        self.loops.iter().for_each(|remote| remote.post(|inbox| inbox.stop = Some(within_ms)));
    }

    /// The loops, by number.
    pub fn loops(&self) -> &[Arc<Remote>] {
        &self.loops
    }

    /// Gives a connection to a loop; to one that there is not it is closed.
    pub(crate) fn hand(&self, to: usize, handed: Handed) {
        if let Some(remote) = self.loops.get(to) {
            remote.post(|inbox| inbox.sockets.push(handed));
        }
    }

    /// Connections open in all loops.
    pub fn open(&self) -> u64 {
        self.open.load(Relaxed)
    }

    /// A place for one more connection, if there are not too many.
    fn admit(&self) -> Option<Seat> {
        let before = self.open.fetch_add(1, Relaxed);
        let seat = Seat { open: self.open.clone() };
        (before < self.open_max).then_some(seat)
    }
}

impl<S: Service> EventLoop<S> {
    /// As many loops as there are services; the first accepts for all, up to `open_max` connections. Their clocks count
    /// from `start`.
    pub fn group(
        listeners: Vec<std::net::TcpListener>,
        services: Vec<S>,
        open_max: u64,
        start: Instant,
    ) -> io::Result<(LoopHandle, Vec<Self>)> {
        let polls = services.iter().map(|_| Poll::new()).collect::<io::Result<Vec<_>>>()?;
        let remote = |poll: &Poll| {
            let waker = Waker::new(poll.registry(), WAKE)?;
            Ok(Arc::new(Remote { waker, inbox: Mutex::default(), stats: Arc::default() }))
        };
        let loops = polls.iter().map(remote).collect::<io::Result<Vec<_>>>()?;
        let handle = LoopHandle { loops: loops.into(), next: Arc::default(), open: Arc::default(), open_max, start };
        let mut listeners = Some(listeners.into_iter().map(TcpListener::from_std).collect::<Vec<_>>());
        let mut group = Vec::new();
        for (i, (poll, service)) in polls.into_iter().zip(services).enumerate() {
            let mut mine = listeners.take().unwrap_or_default();
            for (n, listener) in mine.iter_mut().enumerate() {
                poll.registry().register(listener, Token(LISTENERS + n), Interest::READABLE)?;
            }
            let remote = handle.loops[i].clone();
            group.push(Self {
                engine: {
                    let kernel = Kernel::new(start, poll.registry().try_clone()?, handle.clone())?;
                    Engine::new(service, kernel, remote.stats.clone())
                },
                ticker: Ticker::new(poll.registry(), TICK)?,
                alarm: Alarm::new(poll.registry(), ALARM)?,
                poll,
                handle: handle.clone(),
                remote,
                listeners: mine,
                ticked: false,
                woken: false,
                accept_after_ms: 0,
                accept_more: false,
                reserve: if i == 0 { Some(File::open("/dev/null")?) } else { None },
            });
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
                    self.accept_after_ms = self.engine.now_ms() + ACCEPT_REST_MS;
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
        let Some(seat) = self.handle.admit() else {
            return add(&self.remote.stats.shed, 1);
        };
        let to = self.handle.next.fetch_add(1, Relaxed) % self.handle.loops.len();
        let (seat, input) = (Some(seat), Vec::new());
        if Arc::ptr_eq(&self.handle.loops[to], &self.remote) {
            self.adopt(socket, peer, seat, input);
        } else {
            self.handle.hand(to, Handed { socket: socket.into(), peer, seat, input });
        }
    }

    /// Takes a connection into this loop; one that can't be polled is closed.
    pub(crate) fn adopt(&mut self, mut stream: TcpStream, peer: SocketAddr, seat: Option<Seat>, input: Vec<u8>) {
        stream.set_nodelay(true).ok();
        let registry = self.poll.registry();
        let register = |at| {
            registry.register(&mut stream, Token(at), Interest::READABLE | Interest::WRITABLE)?;
            Ok(Tcp { stream, seat })
        };
        if let Ok(at) = self.engine.adopt(peer, register) {
            self.engine.hand_in(at, input);
        }
    }
}

/// Whether this process, or the machine, has no descriptor left.
fn no_descriptor(error: &io::Error) -> bool {
    [Errno::MFILE, Errno::NFILE].iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}
