//! Puts that began at once (`group/at_once.rs`), while they wait for the members. Each is known by the ticket of its
//! reply, stands in the line of its object as a flight does, and becomes a flight in its place where it comes to
//! anything but its end.

use super::table::{Flight, FlightId, Part, State};
use super::{Handing, How, Later};
use crate::context::{Context, Output};
use crate::group::{self, AtOnce, Told};
use crate::held::Held;
use herd_core::checksum::crc32c;
use herd_core::entry::Version;
use herd_core::limits::{DEFERRED_MAX, INLINE_MAX_BYTES};
use herd_core::op::{Action, Given, Op};
use herd_core::replica::window::RequestId;
use herd_core::wire::Own;
use herd_net::Ticket;
use herd_store::{Body, Collection, Key};
use std::sync::Arc;

/// A put that began at once.
pub(super) struct Put {
    pub(super) later: Later,
    collection: Collection,
    pub(super) key: Key,
    /// What is put, in case it has to be asked again.
    value: Box<[u8]>,
    check: u32,
    flags: u32,
    expires_ms: u64,
    else_remove: bool,
    id: RequestId,
    own: Option<Own>,
    began_ms: u64,
    /// The epoch of this node's map then.
    began_epoch: u32,
    pub(super) deadline_ms: u64,
    /// Its end is not looked for any more.
    pub(super) is_late: bool,
    /// It was done.
    pub(super) version: Option<Version>,
}

impl Put {
    fn op(&self) -> Op<'_, Arc<Body>> {
        let put = herd_core::op::Put {
            flags: Some(self.flags),
            expires_ms: Some(self.expires_ms),
            ..herd_core::op::Put::of(Given::Small(&self.value, Some(self.check)))
        };
        Op { else_remove: self.else_remove, ..Op::new(Action::Put(put), self.value.len() as u64) }
    }
}

/// What a door wants put at once.
pub(crate) struct Plain<'a, 'o> {
    /// The collection.
    pub(crate) collection: &'a Collection,
    /// The object.
    pub(crate) name: &'a [u8],
    /// What is asked of it.
    pub(crate) op: &'o Op<'a, Arc<Body>>,
    /// The id that its client has given it.
    pub(crate) own: Option<Own>,
    /// Whether its reply has a place among others.
    pub(crate) is_ordered: bool,
    /// How long it may take.
    pub(crate) limit_ms: u64,
}

impl Context {
    /// Begins a put at once, if it is plain and this node decides on its object; what the door keeps is asked for then.
    /// `None`: nothing was begun, and it is handed on like anything else.
    pub(crate) fn put_at_once(
        &mut self,
        out: &mut Output<'_>,
        plain: &Plain<'_, '_>,
        later: impl FnOnce() -> Later,
    ) -> Option<Ticket> {
        let (op, collection, own) = (plain.op, plain.collection, plain.own);
        if own.is_some_and(|own| own.may_be_done) {
            return None;
        }
        let (flags, expires_ms, value, check) = plain_put(op)?;
        let key = self.shared.store.key(collection, plain.name);
        if !group::may_put_at_once(self, &key) {
            return None;
        }
        let ticket = out.next_ticket()?;
        if !self.flights.is_free(ticket.conn, key.fingerprint()) {
            return None;
        }
        let (id, check) =
            (own.map_or_else(|| self.flights.next_id(), |own| own.id), check.unwrap_or_else(|| crc32c(value)));
        let (began_ms, began_epoch) = (self.now_ms(), self.shared.map_mark().epoch);
        let else_remove = op.else_remove;
        let held_bytes = size_of::<Put>() as u64;
        let put =
            AtOnce { collection, key: &key, value, check, flags, expires_ms, else_remove, id, own, ticket, held_bytes };
        if !group::put_at_once(self, &put) {
            return None;
        }
        let put = Put {
            later: later(),
            collection: collection.clone(),
            key,
            value: value.into(),
            check,
            flags,
            expires_ms,
            else_remove,
            id,
            own,
            began_ms,
            began_epoch,
            deadline_ms: began_ms.saturating_add(plain.limit_ms),
            is_late: false,
            version: None,
        };
        self.flights.insert_put(ticket, Box::new(put));
        if plain.is_ordered {
            out.defer();
        } else {
            out.ticket();
        }
        if self.flights.of_connection(ticket.conn) >= DEFERRED_MAX / 2 {
            self.was_dear();
        }
        group::deliver(self);
        Some(ticket)
    }

    /// What a put that began at once has come to.
    pub(crate) fn put_told(&mut self, ticket: Ticket, told: Told) {
        if let Told::Put(version) = told {
            if self.flights.land_put(ticket, version) {
                self.wake_later(ticket);
                self.fly();
            }
            return;
        }
        self.make_flight(ticket);
        self.flight_told(FlightId { ticket, part: 0 }, told);
    }

    /// Makes a flight of a put that began at once; it may have been done.
    pub(super) fn make_flight(&mut self, ticket: Ticket) {
        let handing = match self.flights.put(ticket) {
            Some(put) => {
                let how = (How::default(), (put.id, put.own), self.now.unix_ms);
                Handing::of_request(&self.shared.store, (&put.collection, &put.key.name), &put.op(), how)
            }
            None => return,
        };
        let Ok(handing) = handing else { return };
        // What it held went with its operation. It can't be refused any more, so it is there even if nobody counts it.
        let mut held = Held::nothing(&self.shared.store);
        held.set(handing.bytes()).ok();
        self.flights.replace_put(ticket, |put| {
            let Put { later, began_ms, began_epoch, deadline_ms, is_late, key, .. } = put;
            let part = Part {
                object: key.fingerprint(),
                handing,
                state: State::InGroup,
                is_lined: true,
                was_sent: true,
                moved: 0,
                attempt: 0,
            };
            let (parts, line_ms) = (vec![part], deadline_ms);
            Box::new(Flight { later, parts, open: 1, began_ms, began_epoch, line_ms, deadline_ms, is_late, held })
        });
    }
}

/// Flags, expiry and value of a put that needs no decision, whatever is there; the value's checksum if it is known.
fn plain_put<'a>(op: &Op<'a, Arc<Body>>) -> Option<(u32, u64, &'a [u8], Option<u32>)> {
    use herd_core::entry::Condition;
    let Action::Put(put) = &op.action else { return None };
    let Given::Small(value, check) = &put.value else { return None };
    let has_more = put.from.is_some() || put.attributes.is_some() || !put.memcached.is_empty();
    let is_small = value.len() <= INLINE_MAX_BYTES && value.len() as u64 <= op.max_bytes;
    let is_plain = op.condition == Condition::None && op.token.is_none() && !has_more && is_small;
    is_plain.then(|| (put.flags.unwrap_or(0), put.expires_ms.unwrap_or(0), *value, *check))
}
