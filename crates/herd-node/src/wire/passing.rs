//! Long values of other nodes, which are sent while they come, as far as their clients allow.

use super::later::Later;
use super::{Session, fail_all};
use crate::context::{Context, Output};
use crate::flight::{Later as Kept, Piece};
use herd_core::{Error, ErrorKind};
use herd_net::Ticket;
use std::collections::VecDeque;

/// What is still to come of a body that is being sent.
pub(super) struct Rest {
    pub(super) ticket: Ticket,
    pieces: VecDeque<Piece>,
    /// Nothing else comes.
    is_whole: bool,
    /// Bytes that were sent, and that the other node was not told of yet.
    sent_bytes: u64,
}

impl Rest {
    pub(super) fn new(ticket: Ticket) -> Self {
        Self { ticket, pieces: VecDeque::new(), is_whole: false, sent_bytes: 0 }
    }

    /// More has come.
    pub(super) fn add(&mut self, pieces: VecDeque<Piece>, is_whole: bool) {
        self.pieces.extend(pieces);
        self.is_whole = is_whole;
    }

    /// Whether something follows what is being sent now.
    pub(super) fn follows(&self) -> bool {
        !self.is_whole || !self.pieces.is_empty()
    }

    /// Whether the other node is to be told of what was sent.
    pub(super) fn is_unpaid(&self) -> bool {
        self.sent_bytes > 0
    }

    /// So much was sent; the next piece, if it is there.
    pub(super) fn next(&mut self, sent_bytes: u64) -> Option<Piece> {
        self.sent_bytes += sent_bytes;
        self.pieces.pop_front()
    }
}

impl Session {
    /// Something of a value has come.
    pub(super) fn pass_on(&mut self, cx: &mut Context, ticket: Ticket, out: &mut Output<'_>) {
        let kept = match cx.flights.later(ticket) {
            Some(Kept::Wire(later)) => {
                Some(Later { credit: later.credit, ..Later::of(&later.request, &later.collection, &later.name) })
            }
            _ => None,
        };
        let (Some(mut passage), Some(later)) = (cx.pass_on(ticket), kept) else { return };
        if let Some(landed) = passage.begun.take() {
            // It is what the reply begins with.
            passage.pieces.pop_front();
            if let Err(error) = self.answer_got(cx, (&later, Some(ticket)), landed, out) {
                cx.forget_flight(ticket);
                return super::refuse(cx, super::VerbName::Get, &later.request, 0, &error, out);
            }
        }
        let open = self.open();
        let Some(outgoing) = open.outgoing.iter_mut().find(|outgoing| outgoing.is_of(ticket)) else {
            return cx.forget_flight(ticket);
        };
        let bytes = passage.pieces.iter().map(|piece| piece.body.len()).sum();
        cx.count_out(super::VerbName::Get, bytes);
        outgoing.arrived(passage.pieces, passage.is_whole);
        if !out.has_bulk() {
            self.send_next(out);
        }
    }

    /// Tells the other nodes what was sent of their values: as much more may come.
    pub(super) fn pay(&mut self, cx: &mut Context) {
        for outgoing in self.open.iter_mut().flat_map(|open| &mut open.outgoing) {
            if let Some(rest) = &mut outgoing.rest {
                cx.passed(rest.ticket, std::mem::take(&mut rest.sent_bytes));
            }
        }
    }

    /// A value of which a part was sent comes to no end: false, if this is none.
    pub(super) fn break_off(&mut self, cx: &Context, ticket: Ticket, out: &mut Output<'_>) -> bool {
        let is_it = self.open.iter().flat_map(|open| &open.outgoing).any(|outgoing| outgoing.is_of(ticket));
        if is_it {
            let text = "the node that has the object went out of reach while it was being read";
            fail_all(cx, &Error::new(ErrorKind::Unreachable, text), out);
            (self.open, self.is_broken) = (None, true);
        }
        is_it
    }
}
