//! Long values on their way in, which go to the node that decides on their objects while they come: at most a window
//! of credit is here.
//!
//! A door cuts what comes into pieces, bodies of their own ([`Intake`]); each is freed when the link has taken it
//! ([`Stream`]). Where a window is here, nothing more is read of the client. Until the other node has admitted the
//! value, what was sent is kept, so that it can be sent again over another link, or to another node. The last byte goes
//! when the door has seen the end: before, the value can be given up, and what was there stays.

use super::passing::Piece;
use super::table::{FlightId, Part, State};
use super::{Handing, Landed, Later};
use crate::context::{Context, Output};
use herd_core::limits::{
    BLOCK_BYTES, BODY_STALL_MS, FLIGHT_BYTES_A_MS, FLIGHT_MS, INTAKE_PIECE_BYTES, WIRE_FIRST_CREDIT_BYTES,
};
use herd_core::{Error, ErrorKind, quote};
use herd_net::Ticket;
use herd_store::{Body, Collection, Upload};
use std::collections::VecDeque;
use std::io::IoSliceMut;
use std::sync::Arc;

/// A value on its way to the node that decides on its object, as a part of its flight.
pub(super) struct Stream {
    /// Bytes it will have, if that is known.
    pub(super) expected: Option<u64>,
    /// What is here of it, in order.
    pieces: VecDeque<Piece>,
    /// Bytes that have come, and of these that were sent.
    come: u64,
    sent: u64,
    /// How many were ever sent, to whomever; `None`: nothing was, nor the end of what is empty.
    furthest: Option<u64>,
    /// Nothing more comes.
    is_whole: bool,
    /// The other node takes it, so that what was sent is not kept.
    is_admitted: bool,
}

impl Stream {
    pub(super) fn new(expected: Option<u64>) -> Self {
        Self {
            expected,
            pieces: VecDeque::new(),
            come: 0,
            sent: 0,
            furthest: None,
            is_whole: false,
            is_admitted: false,
        }
    }

    /// Bytes that have come, and whether they are all.
    pub(super) fn ready(&self) -> (u64, bool) {
        (self.come, self.is_whole)
    }

    /// Bytes that are here.
    fn here_bytes(&self) -> u64 {
        self.come - self.pieces.front().map_or(self.come, |piece| piece.at)
    }

    fn is_full(&self) -> bool {
        self.here_bytes() >= WIRE_FIRST_CREDIT_BYTES
    }

    /// What is there from this position on, at most so much of it: a piece, and the part of it.
    fn at(&self, position: u64, bytes: usize) -> Option<(Arc<Body>, u64, u64)> {
        let piece = self.pieces.iter().find(|piece| position < piece.at + piece.body.len() && piece.at <= position)?;
        let from = position - piece.at;
        Some((piece.body.clone(), from, (from + bytes as u64).min(piece.body.len())))
    }

    fn drop_sent(&mut self) {
        while self.is_admitted && self.pieces.front().is_some_and(|piece| piece.at + piece.body.len() <= self.sent) {
            self.pieces.pop_front();
        }
    }

    /// Begins anew, if all that was sent is still here.
    pub(super) fn rewind(&mut self) -> bool {
        (self.sent, self.is_admitted) = (0, false);
        self.here_bytes() == self.come
    }

    /// How long it may take from now to the next sign of life.
    fn patience_ms(&self) -> u64 {
        match () {
            () if self.is_whole && self.sent == self.come => decide_ms(Some(self.come)),
            () if self.is_whole || self.is_full() => FLIGHT_MS,
            () => BODY_STALL_MS,
        }
    }

    /// Why it did not come to its end.
    pub(super) fn fault(&self, name: &[u8]) -> Error {
        let name = quote(name);
        if self.is_whole || self.is_full() {
            let text = format!("the node that has '{name}' does not take the value: nothing was stored, try again");
            return Error::new(ErrorKind::Unreachable, text);
        }
        let text = format!("no more came of the value of '{name}' for {} s: nothing was stored", BODY_STALL_MS / 1000);
        Error::new(ErrorKind::Timeout, text)
    }
}

/// How long the node that decides may take with a value of so many bytes once it is there.
pub(super) fn decide_ms(bytes: Option<u64>) -> u64 {
    FLIGHT_MS + bytes.unwrap_or(1 << 30) / FLIGHT_BYTES_A_MS
}

/// The link broke, or the map changed, midway.
#[cold]
pub(super) fn cut_short(name: &[u8]) -> Error {
    let text =
        format!("the node that has '{}' went out of reach before it had the value: nothing was stored", quote(name));
    Error::new(ErrorKind::Unreachable, text)
}

/// A door's side of such a value.
pub(crate) struct Intake {
    pub(crate) ticket: Ticket,
    collection: Collection,
    name: Arc<[u8]>,
    expected: Option<u64>,
    /// Bytes of the pieces that were handed over.
    at: u64,
    piece: Option<Upload>,
}

impl Intake {
    /// Bytes that have come.
    pub(crate) fn len(&self) -> u64 {
        self.at + self.piece.as_ref().map_or(0, |piece| piece.writer.len())
    }

    /// The piece that is being filled, and how many bytes go into it.
    fn piece(&mut self, cx: &Context) -> Result<(&mut Upload, usize), Error> {
        let left =
            self.expected.map_or(INTAKE_PIECE_BYTES, |bytes| INTAKE_PIECE_BYTES.min(bytes.saturating_sub(self.at)));
        let expected = self.expected.map(|_| left);
        let piece = match &mut self.piece {
            Some(piece) => piece,
            none => none.insert(cx.shared.store.admit_passing(&self.collection, &self.name, expected)?),
        };
        let room = left.saturating_sub(piece.writer.len()) as usize;
        Ok((piece, room))
    }

    /// Where up to `max` bytes go; none where nobody wants them any more.
    fn space<'a>(&'a mut self, cx: &Context, max: usize) -> Result<Vec<IoSliceMut<'a>>, Error> {
        if !cx.is_taken_in(self.ticket) {
            return Ok(Vec::new());
        }
        let (piece, room) = self.piece(cx)?;
        let room = piece.reserve(max.min(room), cx.now)?;
        Ok(crate::bulk::cut(piece.writer.space(), room))
    }

    /// So many bytes were received into that space; `checks` are those of the value's blocks, as far as they are known.
    fn advance(&mut self, cx: &mut Context, n: usize, checks: &[u32]) -> Result<(), Error> {
        let (piece, room) = self.piece(cx)?;
        piece.writer.advance(n);
        if n == room { self.hand_over(cx, checks) } else { Ok(()) }
    }

    fn write(&mut self, cx: &mut Context, mut bytes: &[u8], checks: &[u32]) -> Result<(), Error> {
        while !bytes.is_empty() && cx.is_taken_in(self.ticket) {
            cx.shared.store.check_size(self.len() + bytes.len() as u64)?;
            let (piece, room) = self.piece(cx)?;
            if room == 0 {
                return Err(Error::new(ErrorKind::BadRequest, "the body is longer than its length says"));
            }
            let (now, after) = bytes.split_at(bytes.len().min(room));
            piece.write(now, cx.now)?;
            bytes = after;
            if now.len() == room {
                self.hand_over(cx, checks)?;
            }
        }
        Ok(())
    }

    /// Hands over what is there of the piece.
    fn hand_over(&mut self, cx: &mut Context, checks: &[u32]) -> Result<(), Error> {
        let Some(piece) = self.piece.take() else { return Ok(()) };
        let body = piece.finish(cx.now)?;
        let first = (self.at / BLOCK_BYTES as u64) as usize;
        let announced = checks.get(first..).unwrap_or_default();
        if let Some(block) = body.checksums().iter().zip(announced).position(|(made, sent)| made != sent) {
            return Err(bad_block(first + block));
        }
        let at = self.at;
        self.at += body.len();
        cx.take_piece(self.ticket, Piece { at, body: Arc::new(body) });
        Ok(())
    }

    /// All has come: it may be decided.
    pub(crate) fn end(mut self, cx: &mut Context, checks: &[u32]) {
        match self.hand_over(cx, checks) {
            Ok(()) => cx.end_intake(self.ticket),
            Err(error) => cx.fail_intake(self.ticket, error),
        }
    }
}

/// A block is not as it was sent.
#[cold]
pub(crate) fn bad_block(block: usize) -> Error {
    Error::new(ErrorKind::BadChecksum, format!("block {block} of the body failed its checksum; nothing was stored"))
}

/// Where the bytes of a long value go.
pub(crate) enum Sink {
    /// Into this node's store.
    Here(Upload),
    /// To the node that decides on the object.
    There(Intake),
}

impl Sink {
    /// Bytes that have come.
    pub(crate) fn len(&self) -> u64 {
        match self {
            Sink::Here(upload) => upload.writer.len(),
            Sink::There(intake) => intake.len(),
        }
    }

    /// Where up to `max` bytes go; none where nobody wants them any more.
    pub(crate) fn space<'a>(&'a mut self, cx: &Context, max: usize) -> Result<Vec<IoSliceMut<'a>>, Error> {
        match self {
            Sink::Here(upload) => {
                let room = upload.reserve(max, cx.now)?;
                Ok(crate::bulk::cut(upload.writer.space(), room))
            }
            Sink::There(intake) => intake.space(cx, max),
        }
    }

    /// So many bytes were received into that space; `checks` are those of the value's blocks, as far as they are known.
    pub(crate) fn advance(&mut self, cx: &mut Context, n: usize, checks: &[u32]) -> Result<(), Error> {
        match self {
            Sink::Here(upload) => {
                upload.writer.advance(n);
                Ok(())
            }
            Sink::There(intake) => intake.advance(cx, n, checks),
        }
    }

    /// Takes bytes that lie elsewhere.
    pub(crate) fn write(&mut self, cx: &mut Context, bytes: &[u8], checks: &[u32]) -> Result<(), Error> {
        match self {
            Sink::Here(upload) => upload.write(bytes, cx.now),
            Sink::There(intake) => intake.write(cx, bytes, checks),
        }
    }

    /// The reply that waits for it.
    pub(crate) fn ticket(&self) -> Option<Ticket> {
        match self {
            Sink::Here(_) => None,
            Sink::There(intake) => Some(intake.ticket),
        }
    }
}

impl Context {
    /// Whether a value of so many bytes, or of unknown length, goes to another node while it comes.
    pub(crate) fn goes_on(&self, c: &Collection, name: &[u8], expected: Option<u64>) -> bool {
        let is_long = expected.is_none_or(|bytes| bytes > WIRE_FIRST_CREDIT_BYTES);
        let is_away = || !self.shared.store.is_alone(c) && matches!(self.whereabouts(c, name), super::Where::Node(_));
        is_long && is_away()
    }

    /// Hands an operation on whose value is still to come. Errors: as of [`Context::hand_on`], and `TooLarge`.
    pub(crate) fn take_in(
        &mut self,
        out: &mut Output<'_>,
        ordered: bool,
        later: Later,
        handing: Handing,
        expected: Option<u64>,
    ) -> Result<Intake, Error> {
        self.shared.store.check_size(expected.unwrap_or(0))?;
        self.check_members(&handing.collection, handing.name(), expected)?;
        let (collection, name) = (handing.collection.clone(), handing.key.name.clone());
        let ticket = self.hand_on(out, ordered, later, vec![handing.streamed(expected)], BODY_STALL_MS)?;
        Ok(Intake { ticket, collection, name, expected, at: 0, piece: None })
    }

    /// Whether the value of this reply is still wanted.
    fn is_taken_in(&self, ticket: Ticket) -> bool {
        self.stream(ticket).is_some()
    }

    /// Whether nothing more is to be read of the value of this reply for now.
    pub(crate) fn is_full(&self, ticket: Ticket) -> bool {
        self.stream(ticket).is_some_and(Stream::is_full)
    }

    /// Bytes of the value of this reply that are not here any more, nor wanted again.
    pub(crate) fn gone_on_bytes(&self, ticket: Ticket) -> Option<u64> {
        self.stream(ticket).map(|stream| stream.come - stream.here_bytes())
    }

    fn stream(&self, ticket: Ticket) -> Option<&Stream> {
        let part = self.flights.part_of(FlightId { ticket, part: 0 })?;
        if matches!(part.state, State::Landed(_)) { None } else { part.handing.stream() }
    }

    fn stream_mut(&mut self, ticket: Ticket) -> Option<&mut Stream> {
        let part = self.flights.part(FlightId { ticket, part: 0 })?;
        if matches!(part.state, State::Landed(_)) { None } else { part.handing.stream_mut() }
    }

    fn take_piece(&mut self, ticket: Ticket, piece: Piece) {
        if let Some(stream) = self.stream_mut(ticket) {
            stream.come += piece.body.len();
            stream.pieces.push_back(piece);
            self.supply(ticket, true);
        }
    }

    fn end_intake(&mut self, ticket: Ticket) {
        if let Some(stream) = self.stream_mut(ticket) {
            stream.is_whole = true;
            self.supply(ticket, true);
        }
    }

    /// The value of this reply comes to no end: what was there stays.
    pub(crate) fn fail_intake(&mut self, ticket: Ticket, error: Error) {
        if self.is_taken_in(ticket) {
            self.fail_arriving(FlightId { ticket, part: 0 }, error);
        }
    }

    /// Tells the link how much there is to send; `is_news`: there is more than before, and its time begins anew.
    pub(super) fn supply(&mut self, ticket: Ticket, is_news: bool) {
        let now_ms = self.now_ms();
        let Some(part) = self.flights.part(FlightId { ticket, part: 0 }) else { return };
        let (Some(stream), state) = (part.handing.stream(), &part.state) else { return };
        let ((bytes, is_whole), patience_ms) = (stream.ready(), stream.patience_ms());
        if let State::Out(link, request, _) = state {
            let (link, request) = (*link, *request);
            self.links.supply(link, request, bytes, is_whole);
        }
        if is_news {
            self.flights.set_deadline(ticket, now_ms + patience_ms);
        }
    }

    /// What a request sends next of its body: of this one, so much.
    pub(crate) fn flight_body(
        &self,
        id: FlightId,
        position: u64,
        bytes: usize,
    ) -> Option<(Option<Arc<Body>>, u64, u64)> {
        let handing = &self.flights.part_of(id)?.handing;
        match handing.stream() {
            Some(_) if bytes == 0 => Some((None, 0, 0)),
            Some(stream) => stream.at(position, bytes).map(|(body, from, to)| (Some(body), from, to)),
            None => handing.long_value().map(|body| (Some(body.clone()), position, position + bytes as u64)),
        }
    }

    /// So much of its body was sent; `is_last`: it is all, and may be decided from now on.
    pub(crate) fn flight_sent(&mut self, id: FlightId, to: u64, is_last: bool) {
        let now_ms = self.now_ms();
        let Some(part) = self.flights.part(id) else { return };
        let Some(stream) = part.handing.stream_mut() else { return };
        let is_news = stream.furthest < Some(to);
        (stream.sent, stream.furthest) = (to, stream.furthest.max(Some(to)));
        stream.drop_sent();
        let patience_ms = stream.patience_ms();
        part.was_sent |= is_last;
        if is_news {
            // What is sent once more has the time that is left.
            self.flights.set_deadline(id.ticket, now_ms + patience_ms);
        }
        self.wake_later(id.ticket);
    }

    /// The other node allows more of the body: it takes it.
    pub(crate) fn flight_admitted(&mut self, id: FlightId) {
        let Some(stream) = self.flights.part(id).and_then(|part| part.handing.stream_mut()) else { return };
        if !stream.is_admitted {
            stream.is_admitted = true;
            stream.drop_sent();
            self.wake_later(id.ticket);
        }
    }
}

impl Part {
    /// Begins the value anew, for another attempt; false: it is not wholly here any more.
    pub(super) fn rewind(&mut self) -> bool {
        self.handing.stream_mut().is_none_or(Stream::rewind)
    }
}

impl Landed {
    /// The object has come here while its value was on its way elsewhere.
    pub(super) fn crossed(cx: &Context, name: &[u8]) -> Self {
        Self::failed(cx, cut_short(name))
    }
}
