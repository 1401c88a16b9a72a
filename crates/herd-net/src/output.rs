//! What a connection has to send: small replies in one buffer, large bodies by reference, and gaps for replies that
//! come later, in the order the protocol wants.

use crate::sys::LEND_BYTES;
use herd_core::Chunks;
use herd_core::bugs::{Bug, has};
use herd_core::limits::DEFERRED_MAX;
use std::collections::VecDeque;
use std::io::IoSlice;

/// Most pieces of one vectored write; the kernel takes 1,024, a megabyte in blocks needs 17.
const SLICES_MAX: usize = 32;

/// Names a deferred reply: the connection and the place in its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
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
enum What<B> {
    Bytes {
        bytes: Vec<u8>,
        at: usize,
    },
    Bulk {
        source: B,
        at: u64,
        end: u64,
    },
    /// A gap; open: a part of its reply stands before it, and more is to come.
    Waiting {
        open: bool,
    },
}

/// A thing to send and its place: serials never fall along a queue, and a gap is the first part with its own.
struct Part<B> {
    serial: u32,
    what: What<B>,
}

/// The queue of a connection; empty while its replies are taken as fast as they are made.
pub(crate) struct Queue<B> {
    parts: VecDeque<Part<B>>,
    waiting: u32,
    serial: u32,
    /// Unsent bytes of small replies.
    small_bytes: usize,
    /// Memory of the buffers they lie in.
    held_bytes: usize,
    /// Of a deferred reply: its gap is to be closed.
    pub(crate) passes: bool,
    /// Of a deferred reply: its gap stays, as there is more to come.
    keeps: bool,
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
    /// Bytes that the connection has to send besides.
    before_bytes: usize,
}

impl<'a, B: Chunks> Output<'a, B> {
    pub(crate) fn new(buf: &'a mut Vec<u8>, queue: &'a mut Queue<B>, conn: u64) -> Self {
        Self { buf, queue, conn, before_bytes: 0 }
    }

    /// Of a deferred reply, which is made in a queue of its own beside that of the connection, where so many bytes are.
    pub(crate) fn resumed(buf: &'a mut Vec<u8>, queue: &'a mut Queue<B>, conn: u64, before_bytes: usize) -> Self {
        Self { buf, queue, conn, before_bytes }
    }

    /// Queues bytes `at..end` of a body behind what was written so far.
    pub fn bulk(&mut self, source: B, at: u64, end: u64) {
        self.settle();
        if at < end {
            self.queue.push_back(What::Bulk { source, at, end });
        }
    }

    /// The connection, as its tickets have it.
    pub fn conn(&self) -> u64 {
        self.conn
    }

    /// Names a reply that comes later in no order; it needs no gap.
    pub fn ticket(&mut self) -> Ticket {
        self.queue.serial = self.queue.serial.wrapping_add(1);
        Ticket { conn: self.conn, serial: self.queue.serial }
    }

    /// What [`Output::ticket`] and [`Output::defer`] name next; `None` if there may be no further gap.
    pub fn next_ticket(&self) -> Option<Ticket> {
        let is_full = self.queue.waiting as usize >= DEFERRED_MAX;
        (!is_full).then(|| Ticket { conn: self.conn, serial: self.queue.serial.wrapping_add(1) })
    }

    /// Leaves a gap for a reply that comes later; `None` if the connection has too many.
    pub fn defer(&mut self) -> Option<Ticket> {
        if self.queue.waiting as usize >= DEFERRED_MAX {
            return None;
        }
        self.settle();
        self.queue.serial = self.queue.serial.wrapping_add(1);
        self.queue.waiting += 1;
        self.queue.push_back(What::Waiting { open: false });
        Some(Ticket { conn: self.conn, serial: self.queue.serial })
    }

    /// Of a deferred reply: nothing is said in its gap, and what was put off behind it is served.
    pub fn pass(&mut self) {
        self.queue.passes = true;
    }

    /// Of a deferred reply: this is a part of it, and its gap stays for the next one.
    pub fn keep(&mut self) {
        self.queue.keeps = true;
    }

    /// Bytes queued or written that are not sent yet, bodies not counted.
    pub fn pending_bytes(&self) -> usize {
        self.before_bytes + self.buf.len() + self.queue.small_bytes()
    }

    /// Whether large bodies are queued.
    pub fn has_bulk(&self) -> bool {
        self.queue.parts.iter().any(|part| matches!(part.what, What::Bulk { .. }))
    }

    fn settle(&mut self) {
        self.queue.push(self.buf);
        self.buf.clear();
    }
}

impl<B: Chunks> Queue<B> {
    pub(crate) fn new() -> Self {
        Self {
            parts: VecDeque::new(),
            waiting: 0,
            serial: 0,
            small_bytes: 0,
            held_bytes: 0,
            passes: false,
            keeps: false,
        }
    }

    /// The queue a deferred reply is made in: what it names comes behind `serial`, the last that was named.
    pub(crate) fn resumed(serial: u32) -> Self {
        Self { serial, ..Self::new() }
    }

    /// What was named last.
    pub(crate) fn serial(&self) -> u32 {
        self.serial
    }

    /// What a deferred reply has named is named here no more.
    pub(crate) fn go_on_behind(&mut self, reply: &Self) {
        self.serial = reply.serial;
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Whether there is something that can be sent now.
    pub(crate) fn can_send(&self) -> bool {
        self.parts.front().is_some_and(|part| !matches!(part.what, What::Waiting { .. }))
    }

    /// Whether the first thing in the queue is a reply that is waited for.
    pub(crate) fn is_waiting(&self) -> bool {
        self.parts.front().is_some_and(|part| matches!(part.what, What::Waiting { .. }))
    }

    /// Whether the first thing in the queue is the rest of a reply that is waited for.
    pub(crate) fn is_open(&self) -> bool {
        self.parts.front().is_some_and(|part| matches!(part.what, What::Waiting { open: true }))
    }

    /// Unsent bytes, bodies not counted.
    #[inline]
    pub(crate) fn small_bytes(&self) -> usize {
        self.small_bytes
    }

    /// Memory of what is queued, bodies not counted: they are the store's.
    #[inline]
    pub(crate) fn held_bytes(&self) -> usize {
        self.held_bytes
    }

    fn push_back(&mut self, what: What<B>) {
        self.parts.push_back(Part { serial: self.serial, what });
    }

    /// Puts a copy of `bytes` at the end of the queue.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        self.small_bytes += bytes.len();
        if let Some(Part { what: What::Bytes { bytes: last, .. }, .. }) = self.parts.back_mut()
            && last.len() + bytes.len() < 64 * 1024
        {
            let before = last.capacity();
            last.extend_from_slice(bytes);
            self.held_bytes += last.capacity() - before;
        } else {
            self.held_bytes += bytes.len();
            self.push_back(What::Bytes { bytes: bytes.to_vec(), at: 0 });
        }
    }

    /// Puts a resumed reply where its gap is, or behind everything if it has none.
    pub(crate) fn fill(&mut self, serial: u32, reply: Queue<B>) {
        self.small_bytes += reply.small_bytes;
        self.held_bytes += reply.held_bytes;
        if let Some(at) = self.gap(serial).filter(|_| has(Bug::LateReplyLast)) {
            self.parts.remove(at);
            self.waiting -= 1;
        }
        let Some(at) = self.gap(serial) else {
            let serial = self.serial;
            return self.parts.extend(reply.parts.into_iter().map(|part| Part { serial, ..part }));
        };
        if reply.keeps {
            return self.extend_gap(at, reply);
        }
        self.waiting -= 1;
        let mut parts = reply.parts.into_iter().map(|part| Part { serial, ..part });
        let Some(first) = parts.next() else {
            self.parts.remove(at);
            return;
        };
        self.parts[at] = first;
        parts.enumerate().for_each(|(i, part)| self.parts.insert(at + 1 + i, part));
    }

    /// Puts a part of a reply before its gap, which stays. It has the serial before: a gap is the first with its own.
    fn extend_gap(&mut self, at: usize, reply: Queue<B>) {
        let serial = self.parts[at].serial.wrapping_sub(1);
        self.parts[at].what = What::Waiting { open: true };
        let parts = reply.parts.into_iter().map(|part| Part { serial, ..part });
        parts.enumerate().for_each(|(i, part)| self.parts.insert(at + i, part));
    }

    /// Where the gap of that serial is.
    fn gap(&self, serial: u32) -> Option<usize> {
        // Serials may pass zero, but never come round while a part waits.
        let first = self.parts.front()?.serial;
        let at = self.parts.partition_point(|part| part.serial.wrapping_sub(first) < serial.wrapping_sub(first));
        let is_it = |part: &&Part<B>| part.serial == serial && matches!(part.what, What::Waiting { .. });
        self.parts.get(at).filter(is_it).map(|_| at)
    }

    /// What to send first, at most `max` bytes.
    pub(crate) fn piece(&self, max: usize) -> Piece<'_> {
        let mut slices = Vec::with_capacity(SLICES_MAX);
        let mut left = max;
        for part in &self.parts {
            match &part.what {
                What::Bytes { bytes, at } => take(&mut slices, &bytes[*at..], &mut left),
                What::Bulk { source, at, end } => {
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
                What::Waiting { .. } => break,
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
            let (done, rest) = match &mut self.parts.front_mut().expect("only what is queued is sent").what {
                What::Bytes { bytes, at } => {
                    let step = n.min(bytes.len() - *at);
                    *at += step;
                    self.small_bytes -= step;
                    let done = *at == bytes.len();
                    self.held_bytes -= if done { bytes.capacity() } else { 0 };
                    (done, n - step)
                }
                What::Bulk { at, end, .. } => {
                    let step = (n as u64).min(*end - *at);
                    *at += step;
                    (*at == *end, n - step as usize)
                }
                What::Waiting { .. } => unreachable!("a gap is not sent"),
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

    #[test]
    fn a_gap_that_is_passed_holds_nothing_back() {
        let (mut buf, mut queue) = (Vec::new(), Queue::new());
        let mut out = Output::new(&mut buf, &mut queue, 1);
        let ticket = out.defer().expect("few are waiting");
        out.buf.extend(b"c");
        queue.push(&buf);
        let (mut none, mut reply) = (Vec::new(), Queue::resumed(ticket.serial));
        Output::resumed(&mut none, &mut reply, 1, 0).pass();
        assert!(reply.passes && reply.is_empty());
        queue.fill(ticket.serial, reply);
        assert_eq!((drain(&mut queue, 10), queue.waiting), (b"c".to_vec(), 0));
    }

    #[test]
    fn a_gap_that_is_kept_takes_one_part_after_the_other() {
        let mut queue: Queue<Fours> = Queue::new();
        queue.serial = u32::MAX - 1; // serials pass zero on the way
        let (mut buf, mut tickets) = (Vec::new(), Vec::new());
        for i in 0..3 {
            let mut out = Output::new(&mut buf, &mut queue, 1);
            tickets.push(out.defer().expect("few are waiting"));
            out.buf.extend(format!("{i};").bytes());
        }
        queue.push(&buf);
        let mut heard = Vec::new();
        for (round, which) in [1, 0, 1, 0, 2, 1].into_iter().enumerate() {
            let (mut buf, mut reply) = (Vec::new(), Queue::resumed(tickets[which].serial));
            let mut out = Output::resumed(&mut buf, &mut reply, 1, 0);
            out.buf.extend(format!("<{which}").bytes());
            out.bulk(Fours(b"01234567".to_vec()), 2, 4);
            out.buf.extend(b">");
            if round < 3 {
                out.keep();
            }
            reply.push(&buf);
            queue.fill(tickets[which].serial, reply);
            heard.extend(drain(&mut queue, 3));
            let open = queue.is_open().then(|| queue.parts[0].serial);
            let expected = [None, Some(0), Some(0), Some(1), Some(1), None][round];
            assert_eq!(open, expected.map(|which: usize| tickets[which].serial), "{round}");
        }
        assert_eq!(String::from_utf8(heard).expect("text"), "<023><023>0;<123><123><123>1;<223>2;");
        assert_eq!((queue.small_bytes(), queue.held_bytes(), queue.waiting), (0, 0, 0));
    }

    #[test]
    fn gaps_are_filled_in_any_order_and_late_replies_without_one_go_last() {
        let mut queue: Queue<Fours> = Queue::new();
        queue.serial = u32::MAX - 3; // serials pass zero on the way
        let (mut buf, mut tickets) = (Vec::new(), Vec::new());
        for i in 0..8 {
            let mut out = Output::new(&mut buf, &mut queue, 1);
            out.buf.extend(format!("<{i}").bytes());
            tickets.push(out.defer().expect("few are waiting"));
            out.buf.extend(b">");
        }
        let loose = Output::new(&mut buf, &mut queue, 1).ticket();
        queue.push(&buf);
        let reply = |bytes: &[u8]| {
            let (mut buf, mut reply) = (Vec::new(), Queue::resumed(0));
            let mut out = Output::new(&mut buf, &mut reply, 1);
            out.buf.extend(bytes);
            out.bulk(Fours(b"01234567".to_vec()), 2, 4);
            out.buf.extend(b".");
            reply.push(&buf);
            reply
        };
        for i in [3, 0, 7, 1, 2, 6, 5, 4] {
            queue.fill(tickets[i].serial, reply(&[b'a' + i as u8]));
        }
        queue.fill(loose.serial, reply(b"z"));
        let whole: String = (0..8u8).map(|i| format!("<{i}{}23.>", char::from(b'a' + i))).collect();
        assert_eq!(String::from_utf8(drain(&mut queue, 5)).expect("text"), whole + "z23.");
        assert_eq!((queue.small_bytes(), queue.held_bytes(), queue.waiting), (0, 0, 0));
    }

    #[test]
    fn what_is_counted_is_what_is_there() {
        let mut queue: Queue<Fours> = Queue::new();
        for round in 1..200 {
            queue.push(&vec![b'x'; round * 37]);
            if round % 3 > 0 {
                let Piece::Slices { slices, .. } = queue.piece(round * 41) else { panic!("nothing of this is lent") };
                let n = slices.iter().map(|slice| slice.len()).sum();
                queue.sent(n);
            }
            let each = queue.parts.iter().map(|part| match &part.what {
                What::Bytes { bytes, at } => (bytes.len() - at, bytes.capacity()),
                _ => (0, 0),
            });
            let (small, held) = each.fold((0, 0), |sum, part| (sum.0 + part.0, sum.1 + part.1));
            assert_eq!((queue.small_bytes(), queue.held_bytes()), (small, held), "round {round}");
        }
    }
}
