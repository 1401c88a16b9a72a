//! What a connection has to send: small replies in one buffer, large bodies by reference, and gaps for replies that
//! come later, in the order the protocol wants.

use crate::sys::LEND_BYTES;
use herd_core::Chunks;
use herd_core::limits::DEFERRED_MAX;
use std::collections::VecDeque;
use std::io::IoSlice;

/// Most pieces of one vectored write; the kernel takes 1,024, a megabyte in blocks needs 17.
const SLICES_MAX: usize = 32;

/// Names a deferred reply: the connection and the place in its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket {
    /// The connection within its loop.
    pub conn: u64,
    /// The reply within its connection.
    pub serial: u32,
}

/// Names a connection beyond its place, which others had and will have.
#[inline]
pub(crate) fn ticket_id(at: usize, uses: u32) -> u64 {
    u64::from(uses) << 32 | at as u64
}

/// One thing to send.
enum Part<B> {
    Bytes { bytes: Vec<u8>, at: usize },
    Bulk { source: B, at: u64, end: u64 },
    Waiting(u32),
}

/// The queue of a connection; empty while its replies are taken as fast as they are made.
pub(crate) struct Queue<B> {
    parts: VecDeque<Part<B>>,
    waiting: u32,
    serial: u32,
}

/// What is sent with one call.
pub(crate) enum Piece<'a> {
    /// Bytes to copy; `more`: what follows at once is lent.
    Slices { slices: Vec<IoSlice<'a>>, more: bool },
    /// Bytes to lend to the kernel; `more`: more of the same body follows.
    Lent { bytes: &'a [u8], more: bool },
}

/// Where a service puts its replies.
pub struct Output<'a, B> {
    /// Bytes of replies that follow all that was queued before.
    pub buf: &'a mut Vec<u8>,
    queue: &'a mut Queue<B>,
    conn: u64,
}

impl<'a, B: Chunks> Output<'a, B> {
    pub(crate) fn new(buf: &'a mut Vec<u8>, queue: &'a mut Queue<B>, conn: u64) -> Self {
        Self { buf, queue, conn }
    }

    /// Queues bytes `at..end` of a body behind what was written so far.
    pub fn bulk(&mut self, source: B, at: u64, end: u64) {
        self.settle();
        if at < end {
            self.queue.parts.push_back(Part::Bulk { source, at, end });
        }
    }

    /// Names a reply that comes later in no order; it needs no gap.
    pub fn ticket(&mut self) -> Ticket {
        self.queue.serial = self.queue.serial.wrapping_add(1);
        Ticket { conn: self.conn, serial: self.queue.serial }
    }

    /// Leaves a gap for a reply that comes later; `None` if the connection has too many.
    pub fn defer(&mut self) -> Option<Ticket> {
        if self.queue.waiting as usize >= DEFERRED_MAX {
            return None;
        }
        self.settle();
        self.queue.serial = self.queue.serial.wrapping_add(1);
        self.queue.waiting += 1;
        self.queue.parts.push_back(Part::Waiting(self.queue.serial));
        Some(Ticket { conn: self.conn, serial: self.queue.serial })
    }

    /// Bytes queued or written that are not sent yet, bodies not counted.
    pub fn pending_bytes(&self) -> usize {
        self.buf.len() + self.queue.small_bytes()
    }

    /// Whether large bodies are queued.
    pub fn has_bulk(&self) -> bool {
        self.queue.parts.iter().any(|part| matches!(part, Part::Bulk { .. }))
    }

    /// Whether a reply is being waited for.
    pub fn has_waiting(&self) -> bool {
        self.queue.waiting > 0
    }

    fn settle(&mut self) {
        self.queue.push(self.buf);
        self.buf.clear();
    }
}

impl<B: Chunks> Queue<B> {
    pub(crate) fn new() -> Self {
        Self { parts: VecDeque::new(), waiting: 0, serial: 0 }
    }

    /// The queue a deferred reply is made in: the place of `serial`.
    pub(crate) fn resumed(serial: u32) -> Self {
        Self { serial, ..Self::new() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Whether there is something that can be sent now.
    pub(crate) fn can_send(&self) -> bool {
        self.parts.front().is_some_and(|part| !matches!(part, Part::Waiting(_)))
    }

    /// Whether the first thing in the queue is a reply that is waited for.
    pub(crate) fn is_waiting(&self) -> bool {
        self.waiting > 0
    }

    pub(crate) fn small_bytes(&self) -> usize {
        self.parts.iter().map(|part| if let Part::Bytes { bytes, at } = part { bytes.len() - at } else { 0 }).sum()
    }

    /// Puts a copy of `bytes` at the end of the queue.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        match self.parts.back_mut() {
            _ if bytes.is_empty() => {}
            Some(Part::Bytes { bytes: last, .. }) if last.len() + bytes.len() < 64 * 1024 => {
                last.extend_from_slice(bytes);
            }
            _ => self.parts.push_back(Part::Bytes { bytes: bytes.to_vec(), at: 0 }),
        }
    }

    /// Puts a resumed reply where its gap is, or behind everything if it has none.
    pub(crate) fn fill(&mut self, serial: u32, reply: Queue<B>) {
        let Some(at) = self.parts.iter().position(|part| matches!(part, Part::Waiting(s) if *s == serial)) else {
            self.parts.extend(reply.parts);
            return;
        };
        self.waiting -= 1;
        let after = self.parts.split_off(at + 1);
        self.parts.pop_back();
        self.parts.extend(reply.parts);
        self.parts.extend(after);
    }

    /// What to send first, at most `max` bytes.
    pub(crate) fn piece(&self, max: usize) -> Piece<'_> {
        let mut slices = Vec::with_capacity(SLICES_MAX);
        let mut left = max;
        for part in &self.parts {
            match part {
                Part::Bytes { bytes, at } => take(&mut slices, &bytes[*at..], &mut left),
                Part::Bulk { source, at, end } => {
                    let max = left.min(LEND_BYTES).min((end - at) as usize);
                    if let Some(bytes) = source.lend(*at, max) {
                        assert!(!bytes.is_empty(), "nothing is lent as `None`");
                        return if slices.is_empty() {
                            Piece::Lent { bytes, more: at + (bytes.len() as u64) < *end }
                        } else {
                            Piece::Slices { slices, more: true }
                        };
                    }
                    let mut from = *at;
                    while from < *end && left > 0 && slices.len() < SLICES_MAX {
                        let chunk = source.chunk(from);
                        let n = chunk.len().min((end - from) as usize);
                        take(&mut slices, &chunk[..n], &mut left);
                        from += n as u64;
                    }
                }
                Part::Waiting(_) => break,
            }
            if left == 0 || slices.len() >= SLICES_MAX {
                break;
            }
        }
        Piece::Slices { slices, more: false }
    }

    /// Notes that `n` bytes were sent.
    pub(crate) fn sent(&mut self, mut n: usize) {
        while n > 0 {
            let (done, rest) = match self.parts.front_mut().expect("only what is queued is sent") {
                Part::Bytes { bytes, at } => {
                    let step = n.min(bytes.len() - *at);
                    *at += step;
                    (*at == bytes.len(), n - step)
                }
                Part::Bulk { at, end, .. } => {
                    let step = (n as u64).min(*end - *at);
                    *at += step;
                    (*at == *end, n - step as usize)
                }
                Part::Waiting(_) => unreachable!("a gap is not sent"),
            };
            n = rest;
            if done {
                self.parts.pop_front();
            }
        }
        if self.parts.is_empty() && self.parts.capacity() > 16 {
            self.parts = VecDeque::new();
        }
    }
}

fn take<'a>(slices: &mut Vec<IoSlice<'a>>, bytes: &'a [u8], left: &mut usize) {
    let n = bytes.len().min(*left);
    if n > 0 && slices.len() < SLICES_MAX {
        slices.push(IoSlice::new(&bytes[..n]));
        *left -= n;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes that lie in pieces of four.
    struct Fours(Vec<u8>);

    impl Chunks for Fours {
        fn size_bytes(&self) -> u64 {
            self.0.len() as u64
        }

        fn chunk(&self, at: u64) -> &[u8] {
            let at = at as usize;
            &self.0[at..(at / 4 * 4 + 4).min(self.0.len())]
        }
    }

    fn drain(queue: &mut Queue<Fours>, step: usize) -> Vec<u8> {
        let mut out = Vec::new();
        while queue.can_send() {
            let Piece::Slices { slices, .. } = queue.piece(step) else {
                panic!("nothing of this is lent");
            };
            let bytes: Vec<u8> = slices.iter().flat_map(|slice| slice.iter().copied()).collect();
            queue.sent(bytes.len());
            out.extend(bytes);
        }
        out
    }

    #[test]
    fn parts_are_sent_in_order_however_small_the_steps() {
        for step in 1..12 {
            let (mut buf, mut queue) = (Vec::new(), Queue::new());
            let mut out = Output::new(&mut buf, &mut queue, 1);
            out.buf.extend(b"head:");
            out.bulk(Fours(b"0123456789".to_vec()), 1, 9);
            out.buf.extend(b":tail");
            queue.push(&buf);
            assert_eq!(drain(&mut queue, step), b"head:12345678:tail");
            assert!(queue.is_empty());
        }
    }

    #[test]
    fn a_gap_holds_back_what_follows_until_it_is_filled() {
        let (mut buf, mut queue) = (Vec::new(), Queue::new());
        let mut out = Output::new(&mut buf, &mut queue, 1);
        out.buf.extend(b"a");
        let ticket = out.defer().expect("few are waiting");
        out.buf.extend(b"c");
        queue.push(&buf);
        assert_eq!(drain(&mut queue, 10), b"a");
        let (late, mut reply) = (b"b".to_vec(), Queue::new());
        reply.push(&late);
        queue.fill(ticket.serial, reply);
        assert_eq!(drain(&mut queue, 10), b"bc");
        assert!(queue.is_empty());
    }
}
