//! Turns: how a connection that has more than small requests moves its bytes, a bounded number at a time.
//!
//! Bodies on their way in are received straight into the service's space, with a low-water mark so that a slow sender
//! does not wake us for every packet; bodies on their way out are lent to the kernel where that can be, else sent from
//! where they lie.

use crate::conn::{Conn, READ_BYTES, Why};
use crate::engine::Engine;
use crate::output::{Output, Piece, ticket_id};
use crate::service::{Intake, Service};
use crate::stats::add;
use crate::system::System;
use herd_core::limits::{
    LINGER_MS, OUTPUT_HIGH_BYTES, STALLED_TIMEOUT_MS, TURN_LARGE_BYTES, TURN_REQUEST_COSTS, TURN_SMALL_BYTES,
};
use std::io::{self, ErrorKind, IoSliceMut};

/// A transfer is alone if nobody else was served for this long.
const ALONE_MS: u64 = 20;
/// Most bytes of a body in one read: they are checksummed right after it, while they are still in the core's cache.
const BULK_READ_BYTES: usize = 256 * 1024;
/// The kernel tells of a long body when it has so much of it: fewer wake-ups, and little waiting for the first of them.
const LOW_WATER_BYTES: usize = 64 * 1024;
/// Read behind the end of a body in the same call: the next frame's header.
const OVERFLOW_BYTES: usize = 4096;

/// What a loop lends to a connection for one turn.
pub(crate) struct Turn<'a, S: Service, M: System> {
    service: &'a mut S,
    system: &'a M,
    /// Where small reads go.
    input: &'a mut [u8],
    /// Replies of this turn.
    replies: &'a mut Vec<u8>,
    /// Number of the connection.
    id: u64,
    /// Bytes it may still move.
    budget: usize,
    now_ms: u64,
    read_bytes: usize,
    written_bytes: usize,
}

impl<S: Service, M: System> Turn<'_, S, M> {
    /// So many bytes of a body were read, and of requests.
    fn has_read(&mut self, body: usize, requests: usize) {
        self.read_bytes += body + requests;
        self.budget = self.budget.saturating_sub(body + requests * TURN_REQUEST_COSTS);
    }
}

impl<S: Service, M: System> Engine<S, M> {
    /// Gives a turn to each connection that is in line now, and to the service, if it has work of its own left.
    pub fn turns(&mut self) {
        if self.upkeep_left {
            self.upkeep_left = self.service.upkeep();
            // Or what a turn of upkeep made ready would wait for the next event.
            self.resume_ready();
            self.served();
        }
        for _ in 0..self.line.len() {
            let at = self.line.pop_front().expect("counted");
            self.take_turn(at);
        }
    }

    /// Lets one connection read, serve and send within its budget.
    fn take_turn(&mut self, at: usize) {
        let Some(conn) = self.conns[at].as_mut() else {
            return;
        };
        conn.in_line = false;
        if conn.moves_to.is_some() {
            return self.hand_over(at);
        }
        let alone = self.last_small.1 == at || self.now_ms > self.last_small.0 + ALONE_MS;
        let desk = &mut self.desks[0];
        let mut turn = Turn {
            service: &mut self.service,
            system: &self.system,
            input: &mut self.input,
            replies: &mut desk.replies,
            id: ticket_id(at, self.uses[at]),
            budget: if alone { TURN_LARGE_BYTES } else { TURN_SMALL_BYTES },
            now_ms: self.now_ms,
            read_bytes: 0,
            written_bytes: 0,
        };
        let again = conn.turn(&mut turn);
        let (read, written) = (turn.read_bytes, turn.written_bytes);
        desk.replies.clear();
        add(&self.stats.read_bytes, read as u64);
        add(&self.stats.written_bytes, written as u64);
        if read + written < READ_BYTES {
            self.last_small = (self.now_ms, at);
        }
        match again {
            Err(error) => self.close(at, error.into()),
            Ok(_) if !conn.tell_held(&mut self.service) => self.close(at, Why::Shed),
            Ok(again) if again => self.stand_in_line(at),
            Ok(_) => {}
        }
        // Before the time is taken: what it does is part of this turn.
        self.resume_ready();
        self.served();
    }
}

impl<S: Service, M: System> Conn<S, M> {
    /// Reads, serves and sends until the socket or the budget is used up; true if it wants another turn. An error ends
    /// the connection.
    fn turn(&mut self, turn: &mut Turn<'_, S, M>) -> io::Result<bool> {
        match () {
            () if self.lingering => return self.linger(turn),
            () if self.connecting && !self.connect(turn)? => return Ok(false),
            () => {}
        }
        // A long body that is taken as fast as it is sent must not keep what comes unread: a link would miss its beats.
        let kept = if self.reads_beside(turn.service) { turn.budget / 2 } else { 0 };
        turn.budget -= kept;
        self.flush(turn)?;
        turn.budget += kept;
        while self.wants_to_read(turn.service) && turn.budget > 0 {
            if self.bulk > 0 {
                self.read_bulk(turn)?
            } else {
                self.read_small(turn)?
            }
            self.flush(turn)?;
        }
        self.set_low_water(turn.system);
        self.set_deadline(turn.service, turn.now_ms, turn.read_bytes + turn.written_bytes > 0);
        match () {
            () if self.is_over(turn.service) => Err(ErrorKind::UnexpectedEof.into()),
            () if self.moves_to.is_some() => Ok(true),
            () if self.closing && self.queue.is_empty() => self.begin_linger(turn),
            () => Ok(self.wants_another(turn)),
        }
    }

    /// Looks whether the connection that was dialed is made; it speaks first.
    fn connect(&mut self, turn: &mut Turn<'_, S, M>) -> io::Result<bool> {
        match turn.system.connected(&self.socket) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
            made => made?,
        }
        (self.connecting, self.writable) = (false, true);
        turn.service.connected(&mut self.session, &mut Output::new(turn.replies, &mut self.queue, turn.id));
        Ok(true)
    }

    /// Whether bytes are to be read: not before those that were put off are served.
    fn wants_to_read(&self, service: &S) -> bool {
        let may_read = self.readable && !self.closing && !self.put_off && !self.is_backed_up(service);
        may_read && service.intake(&self.session) != Intake::Full
    }

    /// Whether there is something to read that does not wait for what is being sent.
    fn reads_beside(&self, service: &S) -> bool {
        service.is_multiplexed(&self.session) && self.wants_to_read(service)
    }

    /// Whether what was put off may be served: not before what is queued was sent and the replies that are waited for
    /// have come, but for a body whose own reply that is.
    fn serves_put_off(&self, service: &S) -> bool {
        let is_free = || match service.intake(&self.session) {
            Intake::None => self.queue.is_empty() || service.is_link(&self.session),
            Intake::Takes => !self.queue.can_send(),
            Intake::Full => false,
        };
        self.put_off && !self.closing && is_free()
    }

    /// Whether a turn would do something, as far as it does not depend on the socket.
    pub(crate) fn wants_turn(&self, service: &S) -> bool {
        let has_more = || self.queue.is_empty() && service.wants_more(&self.session);
        !self.connecting
            && !self.lingering
            && (self.wants_to_read(service) || self.serves_put_off(service) || has_more())
    }

    /// Tells the peer that nothing more comes.
    fn begin_linger(&mut self, turn: &mut Turn<'_, S, M>) -> io::Result<bool> {
        turn.system.end(&self.socket)?;
        self.lingering = true;
        (self.input, self.bulk) = (Vec::new(), 0);
        self.deadline_ms = turn.now_ms + LINGER_MS;
        self.linger(turn)
    }

    /// Drops what arrives; an error, which ends the connection, when the peer has closed too.
    fn linger(&mut self, turn: &mut Turn<'_, S, M>) -> io::Result<bool> {
        while self.readable && turn.budget > 0 {
            let n = match turn.system.recv(&self.socket, &mut turn.input[..READ_BYTES]) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(n) => n,
                Err(error) => self.not_now(error).map(|()| 0)?,
            };
            turn.budget = turn.budget.saturating_sub(n);
        }
        Ok(self.readable)
    }

    /// Replies wait to be sent: more requests would only add to them. The other end of a link may wait for the same.
    fn is_backed_up(&self, service: &S) -> bool {
        let in_order = self.queue.can_send() && !service.is_multiplexed(&self.session);
        (in_order || self.queue.small_bytes() > OUTPUT_HIGH_BYTES) && !service.is_link(&self.session)
    }

    fn wants_another(&self, turn: &Turn<'_, S, M>) -> bool {
        let is_out = self.queue.is_empty() || self.queue.is_open();
        let has_more = self.queue.can_send() || (is_out && turn.service.wants_more(&self.session));
        (self.writable && has_more) || self.serves_put_off(turn.service) || self.wants_to_read(turn.service)
    }

    fn read_small(&mut self, turn: &mut Turn<'_, S, M>) -> io::Result<()> {
        let (len, new) = self.receive(turn.system, turn.input)?;
        turn.has_read(0, new);
        if len > 0 {
            self.serve(turn.service, turn.id, &turn.input[..len], turn.replies);
        }
        Ok(())
    }

    /// Reads body bytes to where the service wants them, and a little beyond.
    fn read_bulk(&mut self, turn: &mut Turn<'_, S, M>) -> io::Result<()> {
        assert!(self.input.is_empty(), "what arrived before a body was consumed");
        let max = self.bulk.min(turn.budget.min(BULK_READ_BYTES) as u64) as usize;
        let mut slices = turn.service.space(&mut self.session, max);
        if slices.is_empty() {
            self.bulk = 0;
            return self.read_small(turn);
        }
        let space: usize = slices.iter().map(|slice| slice.len()).sum();
        assert!(space <= max, "space is at most what was asked for");
        let whole = space as u64 == self.bulk;
        if whole {
            slices.push(IoSliceMut::new(&mut turn.input[..OVERFLOW_BYTES]));
        }
        let asked = if whole { space + OVERFLOW_BYTES } else { space };
        let n = match turn.system.recv_slices(&self.socket, &mut slices) {
            Ok(0) => {
                drop(slices);
                self.end();
                return Ok(());
            }
            Ok(n) => n,
            Err(error) => return self.not_now(error),
        };
        drop(slices);
        self.arrived(n == asked);
        let body = n.min(space);
        turn.has_read(body, n - body);
        self.bulk -= body as u64;
        let step =
            turn.service.filled(&mut self.session, body, &mut Output::new(turn.replies, &mut self.queue, turn.id));
        self.apply(step);
        if n > body {
            self.serve(turn.service, turn.id, &turn.input[..n - body], turn.replies);
        }
        Ok(())
    }

    /// Has the kernel tell of a long body in large steps; of all else, and of a body's end, at once.
    fn set_low_water(&mut self, system: &M) {
        let bytes = if self.bulk < BULK_READ_BYTES as u64 { 1 } else { LOW_WATER_BYTES };
        if self.low_water != bytes {
            system.set_low_water(&self.socket, bytes);
            self.low_water = bytes;
        }
    }

    /// Sends this turn's replies and what is queued; serves what was put off when there is room.
    fn flush(&mut self, turn: &mut Turn<'_, S, M>) -> io::Result<()> {
        loop {
            let sent = self.send(turn.system, turn.replies)?;
            turn.written_bytes += sent;
            turn.budget = turn.budget.saturating_sub(sent);
            while self.writable && turn.budget > 0 && (self.queue.can_send() || self.refill(turn)) {
                self.send_queued(turn)?;
            }
            if turn.budget == 0 || !self.serves_put_off(turn.service) {
                return Ok(());
            }
            self.serve_put_off(turn);
            if self.put_off {
                // What is put off again was dear in bytes, or in time: others come before it.
                turn.budget = 0;
            }
        }
    }

    /// Has the service queue more once everything was sent; false if there is nothing.
    fn refill(&mut self, turn: &mut Turn<'_, S, M>) -> bool {
        let is_out = self.queue.is_empty() || self.queue.is_open();
        if !is_out || !turn.service.wants_more(&self.session) {
            return false;
        }
        turn.service.more(&mut self.session, &mut Output::new(turn.replies, &mut self.queue, turn.id));
        self.queue.push(turn.replies);
        turn.replies.clear();
        self.queue.can_send()
    }

    /// Requests that were left over because output was high.
    fn serve_put_off(&mut self, turn: &mut Turn<'_, S, M>) {
        let input = std::mem::take(&mut self.input);
        self.serve(turn.service, turn.id, &input, turn.replies);
    }

    /// Sends the first pieces of the queue.
    fn send_queued(&mut self, turn: &mut Turn<'_, S, M>) -> io::Result<()> {
        let (is_head, result) = match self.queue.piece(turn.budget) {
            Piece::Lent { bytes, more } => (false, turn.system.lend(&self.socket, bytes, more)),
            Piece::Slices { slices, more } => {
                let asked = slices.iter().map(|slice| slice.len()).sum();
                (more, turn.system.send_slices(&self.socket, &slices, more).map(|n| (asked, n)))
            }
        };
        match result {
            Ok((asked, n)) => {
                self.queue.sent(n);
                turn.written_bytes += n;
                // The head of a body is not counted, or it would cut the last bytes off every body.
                turn.budget = turn.budget.saturating_sub(if is_head { 0 } else { n });
                self.writable = n == asked;
                Ok(())
            }
            Err(error) => self.not_now_writable(error),
        }
    }

    /// A connection within a request or with replies to send must move; one between requests may rest.
    pub(crate) fn set_deadline(&mut self, service: &S, now_ms: u64, moved: bool) {
        let waiting = self.queue.is_empty() || self.queue.is_waiting();
        let resting = waiting && self.input.is_empty() && service.is_idle(&self.session);
        let is_known = service.is_known(&self.session);
        // What it told may have been put off, and be read in a turn in which nothing moves.
        let moved = moved || is_known && self.sniffs;
        self.sniffs &= !is_known;
        match (resting, is_known) {
            (true, true) => self.deadline_ms = 0,
            (false, true) if moved || self.deadline_ms == 0 => self.deadline_ms = now_ms + STALLED_TIMEOUT_MS,
            // One that has not told its protocol keeps the deadline it began with.
            _ => {}
        }
    }
}
