//! The output of a connection without a socket, so that a service can be driven and heard by tests.

use crate::output::{Output, Piece, Queue, Ticket};
use herd_core::Chunks;

/// What a service says to a peer that takes all of it at once.
pub struct Sink<B> {
    buf: Vec<u8>,
    queue: Queue<B>,
    conn: u64,
}

impl<B: Chunks> Sink<B> {
    /// The output of the connection with that number.
    pub fn new(conn: u64) -> Self {
        Self { buf: Vec::new(), queue: Queue::new(), conn }
    }

    /// Where the service puts its replies.
    pub fn output(&mut self) -> Output<'_, B> {
        Output::new(&mut self.buf, &mut self.queue, self.conn)
    }

    /// Has `make` make the deferred reply of `ticket` and puts it in its place.
    pub fn resume(&mut self, ticket: Ticket, make: impl FnOnce(&mut Output<'_, B>)) {
        let (mut buf, mut reply) = (Vec::new(), Queue::resumed(ticket.serial));
        let before_bytes = self.pending_bytes();
        make(&mut Output::resumed(&mut buf, &mut reply, ticket.conn, before_bytes));
        reply.push(&buf);
        if !reply.is_empty() || reply.passes {
            self.settle();
            self.queue.fill(ticket.serial, reply);
        }
    }

    /// Takes all that can be sent.
    pub fn take(&mut self) -> Vec<u8> {
        self.settle();
        let mut sent = Vec::new();
        while self.queue.can_send() {
            let before = sent.len();
            match self.queue.piece(usize::MAX) {
                Piece::Lent { bytes, .. } => sent.extend_from_slice(bytes),
                Piece::Slices { slices, .. } => slices.iter().for_each(|slice| sent.extend_from_slice(slice)),
            }
            self.queue.sent(sent.len() - before);
        }
        sent
    }

    /// Bytes of small replies that wait to be taken.
    pub fn pending_bytes(&self) -> usize {
        self.buf.len() + self.queue.small_bytes()
    }

    fn settle(&mut self) {
        self.queue.push(&self.buf);
        self.buf.clear();
    }
}
