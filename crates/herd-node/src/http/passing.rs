//! Long values of other nodes, which are sent while they come: what has come goes into the gap of the reply, which
//! stays open for the rest.

use super::Session;
use super::later::{Later, Part, part_of};
use crate::context::{Context, Output};
use crate::flight::{Landed, Later as Kept, Passage};
use crate::metrics::{DoorName, VerbName};
use herd_core::ErrorKind;
use herd_core::door::http as proto;
use herd_net::Ticket;
use herd_store::Collection;

/// A value that is being sent.
pub(super) struct Passing {
    ticket: Ticket,
    /// The part of the object that was asked for, and how far it has come.
    from: u64,
    to: u64,
    at: u64,
    /// Bytes that were queued, and that the other node was not told of yet.
    queued_bytes: u64,
}

impl Passing {
    pub(super) fn new(ticket: Ticket, from: u64, to: u64) -> Self {
        Self { ticket, from, to, at: 0, queued_bytes: 0 }
    }

    /// Queues what has come. True: it is all.
    fn take(&mut self, cx: &mut Context, passage: Passage, out: &mut Output<'_>) -> bool {
        let mut skipped_bytes = 0;
        for piece in passage.pieces {
            let (begin, end) = (piece.at, piece.at + piece.body.len());
            let (from, to) = (self.from.max(begin), self.to.min(end));
            self.at = end;
            if from < to {
                self.queued_bytes += end - begin;
                out.bulk(piece.body, from - begin, to - begin);
            } else {
                skipped_bytes += end - begin;
            }
        }
        let is_over = self.at >= self.to;
        if !is_over {
            cx.passed(self.ticket, skipped_bytes);
        }
        is_over
    }
}

impl Session {
    /// Whether its connection can't go on.
    pub(crate) fn is_broken(&self) -> bool {
        self.is_broken
    }

    /// Whether more of the value that is sent first may come once what is queued was sent.
    pub(crate) fn wants_more(&self) -> bool {
        self.passing.first().is_some_and(|passing| passing.queued_bytes > 0)
    }

    /// All that had come of the first value was sent.
    pub(crate) fn more(&mut self, cx: &mut Context) {
        if let Some(passing) = self.passing.first_mut() {
            cx.passed(passing.ticket, std::mem::take(&mut passing.queued_bytes));
        }
    }

    /// A value begins to be sent: it stands in the order of replies.
    pub(super) fn insert_passing(&mut self, passing: Passing) {
        let serial = passing.ticket.serial;
        // Serials may pass zero.
        let is_before = |other: &Passing| other.ticket.serial.wrapping_sub(serial) > u32::MAX / 2;
        let at = self.passing.partition_point(is_before);
        self.passing.insert(at, passing);
    }

    /// Something of a value has come.
    pub(super) fn pass_on(&mut self, cx: &mut Context, ticket: Ticket, out: &mut Output<'_>) {
        if self.is_broken {
            return cx.forget_flight(ticket);
        }
        let kept = match cx.flights.later(ticket) {
            Some(Kept::Http(later)) => match &**later {
                Later::Get { sent, collection, name, is_part } => {
                    Some((sent.clone(), collection.clone(), name.clone(), *is_part))
                }
                _ => None,
            },
            _ => None,
        };
        let (Some(mut passage), Some((sent, collection, name, is_part))) = (cx.pass_on(ticket), kept) else { return };
        if let Some(landed) = passage.begun.take() {
            self.begin_passing(cx, (ticket, is_part), (&sent, &collection, &name), landed, out);
        }
        // Otherwise none of the value is wanted, and that was answered.
        let Some(passing) = self.passing.iter_mut().find(|passing| passing.ticket == ticket) else { return };
        let is_whole = passage.is_whole;
        if passing.take(cx, passage, out) {
            self.passing.retain(|passing| passing.ticket != ticket);
            cx.forget_flight(ticket);
            out.pass();
        } else if is_whole {
            self.break_off(cx, ticket, out);
        } else {
            out.keep();
        }
    }

    fn begin_passing(
        &mut self,
        cx: &mut Context,
        (ticket, is_part): (Ticket, bool),
        (sent, collection, name): (&[u8], &Collection, &[u8]),
        landed: Landed,
        out: &mut Output<'_>,
    ) {
        if let Ok(Some((request, _))) = proto::parse_head(sent) {
            if is_part && matches!(part_of(&request, &landed), Part::None) {
                cx.forget_flight(ticket);
                self.get_whole(cx, ticket, &request, (sent, collection, name), out);
                return;
            }
            self.answer_got(cx, (ticket, true), &request, (collection, name), landed, out);
        }
    }

    /// A value of which a part was sent comes to no end: false, if this is none.
    pub(super) fn break_off(&mut self, cx: &Context, ticket: Ticket, out: &mut Output<'_>) -> bool {
        let is_it = self.passing.iter().any(|passing| passing.ticket == ticket);
        if is_it {
            cx.count_error(DoorName::Http, VerbName::Get, ErrorKind::Unreachable);
            (self.is_broken, self.passing) = (true, Vec::new());
            out.keep();
        }
        is_it
    }
}
