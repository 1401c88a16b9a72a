//! Long values of other nodes that go to their clients while they come: at most a window of credit is here.
//!
//! The first frame of an answer begins it; each frame is a piece, a body of its own, which is freed when it was sent.
//! The node that has the value may send as much more as its client has taken ([`Context::passed`]). So a client that
//! stalls stops its own value, and never the link.

use super::landed::{Cargo, Landed};
use super::table::{Coming, FlightId, Flights, Part, State};
use super::{Handing, Later};
use crate::context::Context;
use herd_core::Error;
use herd_core::limits::{STALLED_TIMEOUT_MS, WIRE_FIRST_CREDIT_BYTES};
use herd_core::wire::{Fields, Header, LENGTH_UNKNOWN, Status};
use herd_net::Ticket;
use herd_store::Body;
use std::collections::VecDeque;
use std::sync::Arc;

/// A value on its way to its client.
pub(super) struct Passing {
    /// What its reply begins with, until the door has taken that.
    begun: Option<Landed>,
    pieces: VecDeque<Piece>,
    /// Where the next piece begins in the object.
    at: u64,
    /// Bytes that the other node may send still.
    allowed_bytes: u64,
    /// Nothing more comes.
    is_whole: bool,
}

/// A part of such a value.
pub(crate) struct Piece {
    /// Where it begins in the object.
    pub(crate) at: u64,
    /// Its bytes.
    pub(crate) body: Arc<Body>,
}

/// What has come of such a value since it was asked for last.
pub(crate) struct Passage {
    /// What the reply begins with, the first time; its value is the first piece.
    pub(crate) begun: Option<Landed>,
    /// The pieces that have come.
    pub(crate) pieces: VecDeque<Piece>,
    /// These are the last ones, and the flight is over.
    pub(crate) is_whole: bool,
}

impl Later {
    /// Whether a door can write its reply while the value comes.
    fn may_pass(&self) -> bool {
        match self {
            Later::Memcached(_) => false,
            Later::Http(later) => later.may_pass(),
            Later::Wire(later) => later.may_pass(),
        }
    }
}

impl Context {
    /// Whether the value whose answer begins so goes to its client while it comes: it is longer than a window.
    pub(super) fn may_pass(&self, id: FlightId, header: &Header) -> bool {
        let Some(flight) = self.flights.flight(id.ticket).filter(|flight| flight.parts.len() == 1) else {
            return false;
        };
        let is_known = header.status() == Some(Status::Ok) && header.length != LENGTH_UNKNOWN;
        let most_bytes = flight.parts[0].handing.most_bytes();
        let left_bytes = header.length.saturating_sub(header.offset).min(most_bytes);
        is_known && left_bytes > WIRE_FIRST_CREDIT_BYTES && flight.later.may_pass()
    }

    /// Takes the first frame of such an answer. Error: there is no room for it.
    pub(super) fn begin_passing(
        &mut self,
        id: FlightId,
        header: &Header,
        fields: &Fields<'_>,
        body: &[u8],
    ) -> Result<Coming, Error> {
        let (at, bytes) = (header.offset, body.len() as u64);
        let piece = match self.flights.part_of(id) {
            Some(part) => self.piece(&part.handing, at, body)?,
            None => return Err(super::route::nobody_waits()),
        };
        let landed = self.replied(id, header, fields, Cargo::Large(piece.body.clone()));
        let at_ms = self.now_ms() + STALLED_TIMEOUT_MS;
        self.flights.set_deadline(id.ticket, at_ms);
        self.wake_later(id.ticket);
        let passing = Passing {
            begun: Some(landed),
            pieces: VecDeque::from([piece]),
            at: at + bytes,
            allowed_bytes: WIRE_FIRST_CREDIT_BYTES.saturating_sub(bytes),
            is_whole: false,
        };
        Ok(Coming::Passing(Box::new(passing)))
    }

    fn piece(&self, handing: &Handing, at: u64, bytes: &[u8]) -> Result<Piece, Error> {
        let expected = Some(bytes.len() as u64);
        let mut upload = self.shared.store.admit_passing(&handing.collection, handing.name(), expected)?;
        upload.write(bytes, self.now)?;
        upload.finish(self.now).map(|body| Piece { at, body: Arc::new(body) })
    }

    /// Takes a further frame of such an answer; `None`: it is another answer. Error: there is no room for it.
    pub(super) fn pass_more(&mut self, id: FlightId, bytes: &[u8], is_last: bool) -> Option<Result<(), Error>> {
        let Part { handing, state: State::Out(_, _, Some(arriving)), .. } = self.flights.part_of(id)? else {
            return None;
        };
        let Coming::Passing(passing) = &arriving.body else { return None };
        let piece = match self.piece(handing, passing.at, bytes) {
            Ok(piece) => piece,
            Err(error) => return Some(Err(error)),
        };
        let now_ms = self.now_ms();
        if let Some(passing) = self.flights.passing(id) {
            passing.at += bytes.len() as u64;
            passing.allowed_bytes = passing.allowed_bytes.saturating_sub(bytes.len() as u64);
            passing.pieces.push_back(piece);
            passing.is_whole = is_last;
            // Where all that may come has come, the client is waited for: the loop ends a connection that stalls.
            let waits = !is_last && passing.allowed_bytes > 0;
            let at_ms = if waits { now_ms + STALLED_TIMEOUT_MS } else { u64::MAX };
            self.flights.set_deadline(id.ticket, at_ms);
            self.wake_later(id.ticket);
        }
        Some(Ok(()))
    }

    /// Takes what has come of a value that passes.
    pub(crate) fn pass_on(&mut self, ticket: Ticket) -> Option<Passage> {
        let passing = self.flights.passing(FlightId { ticket, part: 0 })?;
        let (begun, pieces) = (passing.begun.take(), std::mem::take(&mut passing.pieces));
        let is_whole = passing.is_whole;
        if is_whole {
            self.forget_flight(ticket);
            self.fly();
        }
        Some(Passage { begun, pieces, is_whole })
    }

    /// The client has taken so much of a value that passes: as much more may come.
    pub(crate) fn passed(&mut self, ticket: Ticket, bytes: u64) {
        let id = FlightId { ticket, part: 0 };
        let Some(Part { state: State::Out(link, request, _), .. }) = self.flights.part_of(id) else { return };
        let (link, request, at_ms) = (*link, *request, self.now_ms() + STALLED_TIMEOUT_MS);
        let Some(passing) = self.flights.passing(id) else { return };
        if !passing.is_whole && bytes > 0 {
            passing.allowed_bytes += bytes;
            self.flights.set_deadline(ticket, at_ms);
            self.links.allow(link, request, bytes);
        }
    }
}

impl Flights {
    /// The value of a part that goes to its client while it comes.
    fn passing(&mut self, id: FlightId) -> Option<&mut Passing> {
        match &mut self.part(id)?.state {
            State::Out(_, _, Some(arriving)) => match &mut arriving.body {
                Coming::Passing(passing) => Some(passing),
                Coming::Value(_) | Coming::Bytes(_) => None,
            },
            _ => None,
        }
    }
}
