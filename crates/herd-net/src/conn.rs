//! One connection: its socket, what has arrived and is not consumed, and what is to be sent.

use crate::output::{Output, Queue};
use crate::service::{Next, Service, Step};
use herd_core::limits::{LINGER_MS, OUTPUT_HIGH_BYTES, SNIFF_TIMEOUT_MS, STALLED_TIMEOUT_MS};
use mio::net::TcpStream;
use std::io::{self, ErrorKind, IoSliceMut, Read, Write};
use std::net::Shutdown;

/// A connection of a loop.
pub(crate) struct Conn<S: Service> {
    pub(crate) socket: TcpStream,
    pub(crate) session: S::Session,
    /// Bytes that arrived and were not consumed.
    input: Vec<u8>,
    pub(crate) queue: Queue<S::Bulk>,
    /// Bytes of a body that go straight into the service's space.
    bulk: u64,
    /// The kernel may have bytes for us.
    pub(crate) readable: bool,
    /// The kernel may take bytes from us.
    pub(crate) writable: bool,
    /// Close once everything is sent.
    pub(crate) closing: bool,
    /// Everything is sent and the peer was told; what still arrives is dropped, so that the peer reads our last words
    /// instead of a reset, until it closes too or [`LINGER_MS`] are over.
    lingering: bool,
    /// It is in the list of connections that get another turn.
    pub(crate) again: bool,
    /// When it is given up unless something moves, ms of the loop's clock; 0: never.
    pub(crate) deadline_ms: u64,
}

/// What a loop lends to a connection for one turn.
pub(crate) struct Turn<'a, S: Service> {
    pub(crate) service: &'a mut S,
    /// Where small reads go; larger than any unconsumed rest plus one read.
    pub(crate) scratch: &'a mut [u8],
    /// Replies of this turn.
    pub(crate) buf: &'a mut Vec<u8>,
    /// Number of the connection.
    pub(crate) id: u64,
    /// Most bytes of bulk to move.
    pub(crate) budget: usize,
    pub(crate) now_ms: u64,
    pub(crate) read_bytes: u64,
    pub(crate) written_bytes: u64,
}

/// Most bytes a small read asks for.
pub(crate) const READ_BYTES: usize = 64 * 1024;
/// Longest rest a service may leave unconsumed and still be given more.
pub(crate) const REST_MAX_BYTES: usize = 64 * 1024;
/// Most bytes of a body in one read: they are checksummed right after it, while they are still in the core's cache.
const BULK_READ_BYTES: usize = 256 * 1024;
/// Read behind the end of a body in the same call: the next frame's header.
const OVERFLOW_BYTES: usize = 4096;

impl<S: Service> Conn<S> {
    pub(crate) fn new(socket: TcpStream, session: S::Session, now_ms: u64) -> Self {
        Self {
            socket,
            session,
            input: Vec::new(),
            queue: Queue::new(),
            bulk: 0,
            readable: false,
            writable: true,
            closing: false,
            lingering: false,
            again: false,
            deadline_ms: now_ms + SNIFF_TIMEOUT_MS,
        }
    }

    /// Reads, serves and sends until the socket or the budget is used up. An error ends the connection.
    pub(crate) fn turn(&mut self, turn: &mut Turn<'_, S>) -> io::Result<()> {
        if self.lingering {
            return self.linger(turn);
        }
        let mut budget = turn.budget;
        self.flush(turn, &mut budget)?;
        while self.readable && !self.closing && budget > 0 && !self.is_backed_up(turn.service) {
            let n = if self.bulk > 0 { self.read_bulk(turn, budget)? } else { self.read_small(turn)? };
            turn.read_bytes += n as u64;
            budget = budget.saturating_sub(n);
            self.flush(turn, &mut budget)?;
        }
        self.again = self.wants_another(turn.service);
        self.set_deadline(turn);
        if self.closing && self.queue.is_empty() { self.begin_linger(turn) } else { Ok(()) }
    }

    /// Tells the peer that nothing more comes.
    fn begin_linger(&mut self, turn: &mut Turn<'_, S>) -> io::Result<()> {
        self.socket.shutdown(Shutdown::Write)?;
        self.lingering = true;
        self.input = Vec::new();
        self.deadline_ms = turn.now_ms + LINGER_MS;
        self.linger(turn)
    }

    /// Drops what arrives; an error, which ends the connection, when the peer has closed too.
    fn linger(&mut self, turn: &mut Turn<'_, S>) -> io::Result<()> {
        let mut budget = turn.budget;
        while self.readable && budget > 0 {
            let n = match self.socket.read(&mut turn.scratch[..READ_BYTES]) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(n) => n,
                Err(error) => self.not_now(error)?,
            };
            budget = budget.saturating_sub(n);
        }
        self.again = self.readable;
        Ok(())
    }

    /// Whether it waits only for its peer to close.
    pub(crate) fn is_lingering(&self) -> bool {
        self.lingering
    }

    /// Replies wait to be sent: more requests would only add to them.
    fn is_backed_up(&self, service: &S) -> bool {
        let in_order = self.queue.can_send() && !service.is_multiplexed(&self.session);
        in_order || self.queue.small_bytes() > OUTPUT_HIGH_BYTES
    }

    fn wants_another(&self, service: &S) -> bool {
        let has_more = self.queue.can_send() || (self.queue.is_empty() && service.wants_more(&self.session));
        (self.writable && has_more) || (self.readable && !self.closing && !self.is_backed_up(service))
    }

    /// One read into the loop's buffer, behind what was left over; then serves it.
    fn read_small(&mut self, turn: &mut Turn<'_, S>) -> io::Result<usize> {
        let rest = self.input.len();
        if rest > REST_MAX_BYTES {
            return Err(ErrorKind::InvalidData.into());
        }
        let end = rest + READ_BYTES;
        let n = match self.socket.read(&mut turn.scratch[rest..end]) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(n) => n,
            Err(error) => return self.not_now(error),
        };
        self.readable = n == READ_BYTES;
        turn.scratch[..rest].copy_from_slice(&self.input);
        self.input.clear();
        self.serve(turn, rest + n)?;
        Ok(n)
    }

    /// Serves the first `len` bytes of the loop's buffer; keeps what is left over.
    fn serve(&mut self, turn: &mut Turn<'_, S>, len: usize) -> io::Result<()> {
        let mut at = 0;
        loop {
            let mut out = Output::new(turn.buf, &mut self.queue, turn.id);
            let step = turn.service.serve(&mut self.session, &turn.scratch[at..len], &mut out);
            at += step.used;
            assert!(at <= len, "a service consumes only what it was given");
            self.apply(step);
            if step.next != Next::Again || at == len {
                break;
            }
            let mut unlimited = usize::MAX;
            self.flush(turn, &mut unlimited)?;
            if self.is_backed_up(turn.service) {
                break;
            }
        }
        if at < len {
            self.input.extend_from_slice(&turn.scratch[at..len]);
        } else if self.input.capacity() > 0 {
            self.input = Vec::new();
        }
        Ok(())
    }

    /// Serves what was left over when output had been high.
    fn serve_rest(&mut self, turn: &mut Turn<'_, S>) -> io::Result<()> {
        let len = self.input.len();
        turn.scratch[..len].copy_from_slice(&self.input);
        self.input.clear();
        self.serve(turn, len)
    }

    /// Reads body bytes to where the service wants them, and a little beyond.
    fn read_bulk(&mut self, turn: &mut Turn<'_, S>, budget: usize) -> io::Result<usize> {
        assert!(self.input.is_empty(), "what arrived before a body was consumed");
        let max = self.bulk.min(budget.min(BULK_READ_BYTES) as u64) as usize;
        let mut slices = turn.service.space(&mut self.session, max);
        if slices.is_empty() {
            self.bulk = 0;
            return self.read_small(turn);
        }
        let space: usize = slices.iter().map(|slice| slice.len()).sum();
        assert!(space <= max, "space is at most what was asked for");
        let whole = space as u64 == self.bulk;
        if whole {
            slices.push(IoSliceMut::new(&mut turn.scratch[..OVERFLOW_BYTES]));
        }
        let asked = if whole { space + OVERFLOW_BYTES } else { space };
        let n = match self.socket.read_vectored(&mut slices) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(n) => n,
            Err(error) => return self.not_now(error),
        };
        drop(slices);
        self.readable = n == asked;
        let body = n.min(space);
        self.bulk -= body as u64;
        let mut out = Output::new(turn.buf, &mut self.queue, turn.id);
        let step = turn.service.filled(&mut self.session, body, &mut out);
        self.apply(step);
        if n > body {
            self.serve(turn, n - body)?;
        }
        Ok(n)
    }

    fn apply(&mut self, step: Step) {
        self.bulk = if let Next::Bulk(n) = step.next { n } else { 0 };
        self.closing |= step.next == Next::Close;
    }

    fn not_now(&mut self, error: io::Error) -> io::Result<usize> {
        match error.kind() {
            ErrorKind::WouldBlock => {
                self.readable = false;
                Ok(0)
            }
            ErrorKind::Interrupted => Ok(0),
            _ => Err(error),
        }
    }

    /// Sends this turn's replies and what is queued; then serves what waited for room.
    pub(crate) fn flush(&mut self, turn: &mut Turn<'_, S>, budget: &mut usize) -> io::Result<()> {
        if !turn.buf.is_empty() {
            if self.queue.is_empty() && self.writable {
                self.send_direct(turn)?;
            }
            self.queue.push(turn.buf);
        }
        while self.writable && *budget > 0 && (self.queue.can_send() || self.refill(turn)) {
            self.send_queued(turn, budget)?;
        }
        if self.bulk == 0 && !self.input.is_empty() && self.queue.is_empty() && !self.closing && !self.readable {
            return self.serve_rest_once(turn, budget);
        }
        Ok(())
    }

    /// Has the service queue more once everything was sent; false if there is nothing.
    fn refill(&mut self, turn: &mut Turn<'_, S>) -> bool {
        if !self.queue.is_empty() || !turn.service.wants_more(&self.session) {
            return false;
        }
        let mut out = Output::new(turn.buf, &mut self.queue, turn.id);
        turn.service.more(&mut self.session, &mut out);
        self.queue.push(turn.buf);
        self.queue.can_send()
    }

    /// Requests that were left over because output was high get their turn when it is sent.
    fn serve_rest_once(&mut self, turn: &mut Turn<'_, S>, budget: &mut usize) -> io::Result<()> {
        let before = self.input.len();
        self.serve_rest(turn)?;
        let moved = self.input.len() < before;
        if moved || !turn.buf.is_empty() { self.flush(turn, budget) } else { Ok(()) }
    }

    fn send_direct(&mut self, turn: &mut Turn<'_, S>) -> io::Result<()> {
        match self.socket.write(turn.buf) {
            Ok(n) => {
                turn.written_bytes += n as u64;
                self.writable = n == turn.buf.len();
                if self.writable {
                    turn.buf.clear();
                } else {
                    turn.buf.drain(..n);
                }
                Ok(())
            }
            Err(error) => self.not_writable(error),
        }
    }

    fn send_queued(&mut self, turn: &mut Turn<'_, S>, budget: &mut usize) -> io::Result<()> {
        let slices = self.queue.slices(*budget);
        let asked: usize = slices.iter().map(|slice| slice.len()).sum();
        match self.socket.write_vectored(&slices) {
            Ok(n) => {
                drop(slices);
                self.queue.sent(n);
                turn.written_bytes += n as u64;
                *budget = budget.saturating_sub(n);
                self.writable = n == asked;
                self.deadline_ms = 0;
                Ok(())
            }
            Err(error) => self.not_writable(error),
        }
    }

    fn not_writable(&mut self, error: io::Error) -> io::Result<()> {
        match error.kind() {
            ErrorKind::WouldBlock => {
                self.writable = false;
                Ok(())
            }
            ErrorKind::Interrupted => Ok(()),
            _ => Err(error),
        }
    }

    /// A connection within a request or with replies to send must move; one between requests may rest.
    fn set_deadline(&mut self, turn: &Turn<'_, S>) {
        let known = turn.service.is_known(&self.session);
        let waiting = self.queue.is_empty() || self.queue.is_waiting();
        let resting = waiting && self.input.is_empty() && turn.service.is_idle(&self.session);
        let moved = turn.read_bytes + turn.written_bytes > 0;
        match (resting, known) {
            (true, true) => self.deadline_ms = 0,
            (false, true) if moved || self.deadline_ms == 0 => self.deadline_ms = turn.now_ms + STALLED_TIMEOUT_MS,
            // One that has not told its protocol keeps the deadline it began with.
            _ => {}
        }
    }
}
