//! One connection: its socket, what has arrived and is not consumed, and what is to be sent. This file has the way of a
//! small request: received, served, answered. Large bodies and all that waits are in `turn.rs`.

use crate::output::{Output, Queue};
use crate::service::{Intake, Next, Service, Step};
use crate::system::System;
use herd_core::bugs::{Bug, has};
use herd_core::limits::{DIAL_TIMEOUT_MS, HELD_STEP_BYTES, SNIFF_TIMEOUT_MS};
use std::io::{self, ErrorKind};

/// How far what the peer sends has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Inflow {
    /// More may come.
    Open,
    /// The kernel knows the end: what stands before it is read, however short the reads, until it is met.
    Ending,
    /// All was read. Replies that are owed are still sent: the peer may only have stopped sending.
    Ended,
}

/// Why a loop closes a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// One side wanted it, the socket failed, or the node stops.
    Done,
    /// It was too slow, or held too much.
    Shed,
    /// More of a request came than may be kept.
    Overrun,
}

impl From<io::Error> for Why {
    fn from(error: io::Error) -> Self {
        if error.kind() == ErrorKind::InvalidData { Why::Overrun } else { Why::Done }
    }
}

/// A connection of a loop.
pub(crate) struct Conn<S: Service, M: System> {
    pub(crate) socket: M::Socket,
    pub(crate) session: S::Session,
    /// Bytes that arrived and were not consumed.
    pub(crate) input: Vec<u8>,
    pub(crate) queue: Queue<S::Bulk>,
    /// Bytes of a body that go straight into the service's space.
    pub(crate) bulk: u64,
    /// The kernel tells of arrivals only when there are so many bytes.
    pub(crate) low_water: usize,
    /// The kernel may have bytes for us, or the end of them.
    pub(crate) readable: bool,
    pub(crate) inflow: Inflow,
    /// We dialed, and it is not made yet.
    pub(crate) connecting: bool,
    /// We dialed: that it is too slow is no client's doing.
    pub(crate) dialed: bool,
    /// The kernel may take bytes from us.
    pub(crate) writable: bool,
    /// `input` holds requests that were put off because output was high.
    pub(crate) put_off: bool,
    /// Close once everything is sent; or hand it over.
    pub(crate) closing: bool,
    /// The loop it belongs to.
    pub(crate) moves_to: Option<usize>,
    /// Everything is sent and the peer was told; what still arrives is dropped, so that the peer reads our last words
    /// instead of a reset, until it closes too or the time for that is over.
    pub(crate) lingering: bool,
    /// It is to be served in the next round.
    pub(crate) in_round: bool,
    /// It stands in line for a turn.
    pub(crate) in_line: bool,
    /// Bytes in its buffers, as the service was told of them.
    pub(crate) held_bytes: usize,
    /// When it is given up unless something moves, ms of the loop's clock; 0: never.
    pub(crate) deadline_ms: u64,
    /// Whether that is still the time it has to tell its protocol.
    pub(crate) sniffs: bool,
}

/// Most bytes a small read asks for: 50 pipelined puts of 256 bytes come in one. With half of it they took a fifth more
/// processor time.
pub(crate) const READ_BYTES: usize = 32 * 1024;
/// Longest rest a service may leave unconsumed and still be given more.
pub(crate) const REST_MAX_BYTES: usize = 64 * 1024;
/// A buffer for the replies of a round that had to grow beyond this is given back.
const REPLIES_KEEP_BYTES: usize = 256 * 1024;

impl<S: Service, M: System> Conn<S, M> {
    pub(crate) fn new(socket: M::Socket, session: S::Session, now_ms: u64) -> Self {
        Self {
            socket,
            session,
            input: Vec::new(),
            queue: Queue::new(),
            bulk: 0,
            low_water: 1,
            readable: false,
            inflow: Inflow::Open,
            connecting: false,
            dialed: false,
            writable: true,
            put_off: false,
            closing: false,
            moves_to: None,
            lingering: false,
            in_round: false,
            in_line: false,
            held_bytes: 0,
            deadline_ms: now_ms + SNIFF_TIMEOUT_MS,
            sniffs: true,
        }
    }

    /// One that we dialed.
    pub(crate) fn dialed(socket: M::Socket, session: S::Session, now_ms: u64) -> Self {
        let deadline_ms = now_ms + DIAL_TIMEOUT_MS;
        let new = Self::new(socket, session, now_ms);
        Self { connecting: true, dialed: true, writable: false, sniffs: false, deadline_ms, ..new }
    }

    /// Whether all it has are requests that have arrived, so that a round can serve it.
    #[inline]
    pub(crate) fn is_fresh(&self) -> bool {
        let is_open = !self.closing && !self.connecting;
        self.readable && self.bulk == 0 && self.queue.is_empty() && !self.put_off && is_open && !self.in_line
    }

    /// Tells the service of what it holds, where that changed much; false if it may not hold so much, and is to be
    /// closed. A link is not: clients could keep nodes apart.
    #[inline]
    pub(crate) fn tell_held(&mut self, service: &mut S) -> bool {
        let held_bytes = (self.queue.held_bytes() + self.input.capacity()) / HELD_STEP_BYTES * HELD_STEP_BYTES;
        held_bytes == self.held_bytes || self.hold(service, held_bytes)
    }

    #[cold]
    fn hold(&mut self, service: &mut S, held_bytes: usize) -> bool {
        let fits = service.hold(held_bytes as i64 - self.held_bytes as i64);
        if fits {
            self.held_bytes = held_bytes;
        }
        fits || service.is_link(&self.session)
    }

    /// Gives back what the service was told it holds.
    pub(crate) fn release(&mut self, service: &mut S) {
        if self.held_bytes > 0 && !has(Bug::HeldForEver) {
            self.hold(service, 0);
        }
    }

    /// Whether there is nothing to do until the kernel says more.
    #[inline]
    pub(crate) fn is_resting(&self, service: &S) -> bool {
        self.queue.is_empty() && !self.readable && !self.put_off && !self.closing && !service.wants_more(&self.session)
    }

    /// Reads once into `desk`, behind what was left over; gives how many bytes lie there, and how many are new.
    #[inline]
    pub(crate) fn receive(&mut self, system: &M, desk: &mut [u8]) -> io::Result<(usize, usize)> {
        let rest = self.input.len();
        if rest > REST_MAX_BYTES {
            return Err(ErrorKind::InvalidData.into());
        }
        match system.recv(&self.socket, &mut desk[rest..rest + READ_BYTES]) {
            Ok(0) => {
                self.end();
                Ok((0, 0))
            }
            Ok(n) => {
                self.arrived(n == READ_BYTES);
                desk[..rest].copy_from_slice(&self.input);
                self.input.clear();
                Ok((rest + n, n))
            }
            Err(error) => self.not_now(error).map(|()| (0, 0)),
        }
    }

    /// A read gave bytes; `all`: as many as were asked for, so that there may be more.
    #[inline]
    pub(crate) fn arrived(&mut self, all: bool) {
        self.readable = all || (self.inflow == Inflow::Ending && !has(Bug::LostEnd));
    }

    /// The peer sends no more; a request that is not whole never will be.
    #[cold]
    pub(crate) fn end(&mut self) {
        self.readable = false;
        self.inflow = Inflow::Ended;
        (self.input, self.bulk) = (Vec::new(), 0);
    }

    /// Why it is to be closed after it was served and answered, if it is.
    #[inline]
    pub(crate) fn wants_end(&mut self, service: &mut S) -> Option<Why> {
        match () {
            () if self.is_over(service) => Some(Why::Done),
            () if !self.tell_held(service) => Some(Why::Shed),
            () => None,
        }
    }

    /// Whether the peer sends no more and has all that it was owed.
    #[inline]
    pub(crate) fn is_over(&self, service: &S) -> bool {
        // A body that is cut short leaves a gap that nobody waits for.
        let is_out = self.queue.is_empty() || self.queue.is_waiting() && service.intake(&self.session) != Intake::None;
        self.inflow == Inflow::Ended && is_out && !service.owes(&self.session)
    }

    /// Has the service take `input`; keeps what it left over.
    #[inline]
    pub(crate) fn serve(&mut self, service: &mut S, id: u64, input: &[u8], replies: &mut Vec<u8>) {
        let step = service.serve(&mut self.session, input, &mut Output::new(replies, &mut self.queue, id));
        self.apply(step);
        if step.used < input.len() {
            self.input.extend_from_slice(&input[step.used..]);
        } else if self.input.capacity() > 0 {
            self.input = Vec::new();
        }
        self.put_off = step.next == Next::Again && step.used < input.len();
        if self.put_off && has(Bug::EatenRequests) {
            (self.input, self.put_off) = (Vec::new(), false);
        }
    }

    /// Sends replies, or queues them behind what waits; gives how many bytes were sent. Leaves `replies` empty, also
    /// after an error: another connection is served there next.
    #[inline]
    pub(crate) fn send(&mut self, system: &M, replies: &mut Vec<u8>) -> io::Result<usize> {
        let mut sent = Ok(0);
        if self.writable && !replies.is_empty() && self.queue.is_empty() {
            sent = system.send(&self.socket, replies).or_else(|error| self.not_now_writable(error).map(|()| 0));
            self.writable &= !matches!(sent, Ok(n) if n > 0 && n < replies.len());
        }
        if let Ok(n) = sent {
            let again = usize::from(has(Bug::ByteTwice) && n > 0 && n < replies.len());
            self.queue.push(&replies[n - again..]);
        }
        replies.clear();
        if replies.capacity() > REPLIES_KEEP_BYTES {
            *replies = Vec::new();
        }
        sent
    }

    #[inline]
    pub(crate) fn apply(&mut self, step: Step) {
        self.bulk = if let Next::Bulk(n) = step.next { n } else { 0 };
        self.closing |= matches!(step.next, Next::Close | Next::Move(_));
        if let Next::Move(to) = step.next {
            self.moves_to = Some(to);
        }
    }

    /// An error of reading: one that ends the connection is given back.
    pub(crate) fn not_now(&mut self, error: io::Error) -> io::Result<()> {
        self.readable &= error.kind() != ErrorKind::WouldBlock;
        passing(error)
    }

    /// As `not_now`, of writing.
    pub(crate) fn not_now_writable(&mut self, error: io::Error) -> io::Result<()> {
        self.writable &= error.kind() != ErrorKind::WouldBlock;
        passing(error)
    }
}

fn passing(error: io::Error) -> io::Result<()> {
    let passes = matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted);
    if passes { Ok(()) } else { Err(error) }
}
