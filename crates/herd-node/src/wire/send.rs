//! Bodies on their way out: cut into frames as the connection takes them, one transfer after the other in turn, and
//! none beyond its credit.

use super::later;
use super::passing::Rest;
use super::{Session, write_frame};
use crate::context::{Context, Output};
use crate::flight::Piece;
use crate::held::Held;
use herd_core::Error;
use herd_core::checksum::Crc32c;
use herd_core::limits::{BLOCK_BYTES, WIRE_FIRST_CREDIT_BYTES, WIRE_FRAME_BODY_MAX_BYTES};
use herd_core::wire::{self, Between, FLAG_MORE, Fields, Header, LENGTH_UNKNOWN};
use herd_net::Ticket;
use herd_store::{Body, Store};
use std::collections::VecDeque;
use std::sync::Arc;

/// A get whose body is being sent.
pub(super) struct Outgoing {
    /// The reply's header until the first frame is sent; then of data frames.
    header: Header,
    first: Option<Box<FirstFields>>,
    /// What those fields take.
    held: Option<Held>,
    body: Arc<Body>,
    /// Where the body begins in the object.
    base: u64,
    /// What else stands in the head of its first frame, between nodes.
    became: Box<[u8]>,
    /// First byte of the range, next byte to send, and end of the range.
    from: u64,
    at: u64,
    end: u64,
    /// Bytes that may still be sent.
    credit: u64,
    /// What else is to come of the body from another node; `body` is a piece of it then.
    pub(super) rest: Option<Rest>,
}

/// The fields of a reply, kept until its first frame is sent.
pub(super) struct FirstFields {
    pub(super) flags: u32,
    pub(super) expires_ms: u64,
    pub(super) attributes: Box<[u8]>,
}

impl FirstFields {
    /// As the wire has them.
    pub(super) fn fields(&self) -> Fields<'_> {
        Fields {
            flags: (self.flags != 0).then_some(self.flags),
            expires_ms: (self.expires_ms != 0).then_some(self.expires_ms),
            attributes: (!self.attributes.is_empty()).then_some(&*self.attributes),
            ..Fields::default()
        }
    }
}

impl Outgoing {
    pub(super) fn new(header: Header, first: FirstFields, body: Arc<Body>, from: u64, end: u64) -> Self {
        let (first, held) = (Some(Box::new(first)), None);
        let (base, became) = (0, Box::default());
        let credit = WIRE_FIRST_CREDIT_BYTES;
        Self { header, first, held, body, base, became, from, at: from, end, credit, rest: None }
    }

    /// A part of an object, which begins at `base` there and is all that is known of it here.
    pub(super) fn part(header: Header, first: FirstFields, body: Arc<Body>, base: u64) -> Self {
        let end = body.len();
        Self { base, ..Self::new(header, first, body, 0, end) }
    }

    /// The same, to another node, which is told what became of the object.
    pub(super) fn telling(self, became: &[u8]) -> Self {
        Self { became: became.into(), ..self }
    }

    /// The client has allowed so many bytes more, before it began.
    pub(super) fn allowed(mut self, bytes: u64) -> Self {
        self.credit = self.credit.saturating_add(bytes);
        self
    }

    /// The rest comes under this ticket.
    pub(super) fn following(self, ticket: Option<Ticket>) -> Self {
        Self { rest: ticket.map(Rest::new), ..self }
    }

    /// Whether its rest comes under this ticket.
    pub(super) fn is_of(&self, ticket: Ticket) -> bool {
        self.rest.as_ref().is_some_and(|rest| rest.ticket == ticket)
    }

    /// More of its rest has come.
    pub(super) fn arrived(&mut self, pieces: VecDeque<Piece>, is_whole: bool) {
        if let Some(rest) = &mut self.rest {
            rest.add(pieces, is_whole);
        }
        if self.at == self.end {
            self.go_on(0);
        }
    }

    /// Whether the other node is to be told of what was sent.
    fn is_unpaid(&self) -> bool {
        self.rest.as_ref().is_some_and(Rest::is_unpaid)
    }

    /// Goes on with the next piece, if it is there.
    fn go_on(&mut self, sent_bytes: u64) {
        if let Some(Piece { at, body }) = self.rest.as_mut().and_then(|rest| rest.next(sent_bytes)) {
            (self.base, self.from, self.at, self.end) = (at, 0, 0, body.len());
            self.body = body;
        }
    }

    /// Counts what it keeps until its first frame is sent in the node's memory. Error: `Busy` where there is none.
    pub(super) fn hold(&mut self, store: &Arc<Store>) -> Result<(), Error> {
        let attributes = self.first.as_ref().map_or(0, |first| first.attributes.len() as u64);
        if attributes > 0 {
            self.held.get_or_insert_with(|| Held::nothing(store)).set(attributes)?;
        }
        Ok(())
    }

    pub(super) fn id(&self) -> u64 {
        self.header.id
    }

    fn can_send(&self) -> bool {
        self.credit > 0 && (self.rest.is_none() || self.at < self.end)
    }

    /// Sends the next frame, of at most `max` bytes; true when it was the last.
    fn send(&mut self, max: usize, out: &mut Output<'_>) -> bool {
        let allowed = (max as u64).min(self.credit.max(BLOCK_BYTES as u64));
        let whole_blocks = allowed / BLOCK_BYTES as u64 * BLOCK_BYTES as u64;
        let len = (self.end - self.at).min(whole_blocks);
        let to = self.at + len;
        let follows = self.rest.as_ref().is_some_and(Rest::follows);
        let more = to < self.end || follows;
        let first = self.first.take();
        self.held = None;
        let mut header = self.header;
        if first.is_none() {
            header = Header::data(self.header.id, self.base + self.at, more);
            header.length = len;
        } else if more {
            header.flags |= FLAG_MORE;
        }
        let mut fields = first.as_ref().map_or_else(Fields::default, |first| first.fields());
        let became = std::mem::take(&mut self.became);
        fields.between = (!became.is_empty()).then_some(Between::Became(&became));
        let checks = block_checks(&self.body, self.from, self.at, to);
        wire::encode_frame_head(out.buf, header, &fields, len as usize, checks)
            .expect("a frame of this door is within the limits");
        out.bulk(self.body.clone(), self.at, to);
        self.at = to;
        self.credit = self.credit.saturating_sub(len);
        if follows && self.at == self.end {
            self.go_on(self.end);
        }
        !more
    }
}

/// Checksums of the blocks of `at..to`, counted from `from`: the stored ones where the blocks are the same.
fn block_checks(body: &Body, from: u64, at: u64, to: u64) -> Vec<u32> {
    let block = BLOCK_BYTES as u64;
    let mut checks = Vec::with_capacity((to - at).div_ceil(block) as usize);
    let mut start = at;
    while start < to {
        let end = (start + block).min(to);
        let whole = from.is_multiple_of(block) && (end == body.len() || end - start == block);
        checks.push(if whole { body.checksums()[(start / block) as usize] } else { check_of(body, start, end) });
        start = end;
    }
    checks
}

fn check_of(body: &Body, mut at: u64, end: u64) -> u32 {
    let mut crc = Crc32c::default();
    while at < end {
        let chunk = body.chunk(at);
        let n = chunk.len().min((end - at) as usize);
        crc.update(&chunk[..n]);
        at += n as u64;
    }
    crc.value()
}

impl Session {
    /// Begins to send a body.
    pub(super) fn begin_send(&mut self, outgoing: Outgoing, out: &mut Output<'_>) {
        self.open().outgoing.push_back(outgoing);
        if !out.has_bulk() {
            self.send_next(out);
        }
    }

    /// Whether a frame of some body can be sent, or another node is to be told of one that was.
    pub(crate) fn wants_more(&self) -> bool {
        self.open
            .as_ref()
            .is_some_and(|open| open.outgoing.iter().any(|outgoing| outgoing.can_send() || outgoing.is_unpaid()))
    }

    /// Everything queued was sent: the next frame of the body whose turn it is.
    pub(crate) fn more(&mut self, cx: &mut Context, out: &mut Output<'_>) {
        self.pay(cx);
        self.send_next(out);
    }

    pub(super) fn send_next(&mut self, out: &mut Output<'_>) {
        let open = self.open();
        let alone = open.outgoing.len() == 1 && open.incoming.is_empty();
        let Some(at) = open.outgoing.iter().position(Outgoing::can_send) else {
            return;
        };
        let mut outgoing = open.outgoing.remove(at).expect("found above");
        let max = if alone { WIRE_FRAME_BODY_MAX_BYTES } else { BLOCK_BYTES };
        if !outgoing.send(max, out) {
            open.outgoing.push_back(outgoing);
        }
    }

    /// Credit for a body arrived.
    pub(super) fn credit(&mut self, cx: &mut Context, header: &Header) {
        if let Some(conn) = self.conn {
            later::credit(cx, conn, header);
        }
        let Some(open) = &mut self.open else {
            return;
        };
        if let Some(outgoing) = open.outgoing.iter_mut().find(|outgoing| outgoing.id() == header.id) {
            let unlimited = header.length == LENGTH_UNKNOWN;
            outgoing.credit = if unlimited { u64::MAX } else { outgoing.credit.saturating_add(header.length) };
        }
    }
}

/// A whole small reply.
pub(super) fn send_small(header: Header, fields: &Fields<'_>, value: &[u8], check: Option<u32>, out: &mut Output<'_>) {
    let Some(check) = check.filter(|_| !value.is_empty()) else {
        return write_frame(header, fields, value, out);
    };
    wire::encode_frame_head(out.buf, header, fields, value.len(), [check]).expect("a small value is within the limits");
    out.buf.extend_from_slice(value);
}
