//! Requests that are handed on: what is kept of them, and the replies once the answers are there.

use super::list::Asked;
use super::send::{FirstFields, Outgoing, send_small};
use super::verbs::{self, Place, Taken as Read, answer_get};
use super::write::{answer_done, done};
use super::{Session, count_as, refuse, write_frame};
use crate::context::{Context, Output, not_found};
use crate::flight::{Handing, Landed, Later as Kept, Plain, Taken, Where};
use crate::metrics::VerbName;
use crate::request::asked_of;
use herd_core::entry::Value;
use herd_core::limits::{FLIGHT_MS, LINK_SILENCE_MS, WAIT_MAX_MS};
use herd_core::op::Op;
use herd_core::wire::{Between, FLAG_HEAD_ONLY, Fields, Handed, Header, Own, Status, Verb};
use herd_core::{Error, ErrorKind};
use herd_net::Ticket;
use herd_store::{Body, Collection, Given};
use std::sync::Arc;

/// What is kept of a request that was handed on.
pub(crate) struct Later {
    pub(super) request: Header,
    pub(super) collection: Collection,
    pub(super) name: Box<[u8]>,
    /// Of a get that waits for a newer version.
    pub(super) waits: Waits,
    /// Bytes of the answer that its client has allowed beforehand.
    pub(super) credit: u64,
    /// It is a listing, and the other nodes are asked.
    pub(super) listing: Option<Asked>,
}

/// What is kept of a get that waits, for the time when it waits here, or is asked again.
#[derive(Default)]
pub(super) struct Waits {
    until_ms: u64,
    /// What the node asked that has handed it on; empty: nobody has.
    asked: Box<[u8]>,
    /// There was an object when it began.
    was_there: bool,
}

impl Later {
    pub(super) fn of(request: &Header, collection: &Collection, name: &[u8]) -> Self {
        let (collection, name, waits) = (collection.clone(), name.into(), Waits::default());
        Self { request: *request, collection, name, waits, credit: 0, listing: None }
    }

    /// As it is asked now, if it is a get: who waits has the time that is left.
    fn get(&self, cx: &Context) -> (Header, Fields<'_>) {
        let Waits { until_ms, asked, .. } = &self.waits;
        let mut request = self.request;
        if request.newer_than().is_some() {
            request.time_ms = until_ms.saturating_sub(cx.now.unix_ms).min(request.time_ms.into()) as u32;
        }
        let between = (!asked.is_empty()).then_some(Between::Asked(asked));
        (request, Fields { between, ..Fields::named(&self.name) })
    }

    /// Whether the reply can be sent while the value comes.
    pub(crate) fn may_pass(&self) -> bool {
        self.request.verb() == Some(Verb::Get) && self.listing.is_none()
    }
}

/// How long a request may take.
fn limit_ms(header: &Header) -> u64 {
    match (header.newer_than(), header.time_ms) {
        // The node that has the object ends the wait.
        (Some(_), wait_ms) => u64::from(wait_ms).min(WAIT_MAX_MS) + LINK_SILENCE_MS,
        (None, 0) => FLIGHT_MS,
        (None, limit_ms) => limit_ms.into(),
    }
}

/// Gives up a request that was handed on.
pub(super) fn cancel(cx: &mut Context, conn: u64, id: u64) {
    let is_it = |later: &Kept| matches!(later, Kept::Wire(later) if later.request.id == id);
    let found = cx.flights.kept(conn).find(|(_, later)| is_it(later)).map(|(ticket, _)| ticket);
    found.into_iter().for_each(|ticket| cx.forget_flight(ticket));
}

/// What is kept of a request that was handed on.
fn kept(cx: &mut Context, conn: u64, id: u64) -> Option<&mut Later> {
    cx.flights.kept_mut(conn).find_map(|later| match later {
        Kept::Wire(later) if later.request.id == id => Some(&mut **later),
        _ => None,
    })
}

/// Credit for a request that was handed on: its answer is not there yet.
pub(super) fn credit(cx: &mut Context, conn: u64, header: &Header) {
    let kept = kept(cx, conn, header.id);
    kept.into_iter().for_each(|later| later.credit = later.credit.saturating_add(header.length));
}

/// There was an object when a get that waits began; it may be handed on by now.
pub(super) fn was_there(cx: &mut Context, conn: u64, id: u64) {
    kept(cx, conn, id).into_iter().for_each(|later| later.waits.was_there = true);
}

/// Whether this node decides, for a group, on what another hands on. What changes something and was sent by a map of
/// before this node came to decide may have been asked anew of others since, and its client told: who asks is to ask
/// anew.
fn is_for_here(cx: &Context, (c, name): (&Collection, &[u8]), header: &Header) -> bool {
    let Where::Group(group) = cx.whereabouts(c, name) else { return false };
    header.verb() == Some(Verb::Get) || header.epoch >= cx.shared.gates.since(group)
}

impl Session {
    /// The object is not this node's alone: hands the request on, or tells the node that has handed it on where to ask.
    #[cold]
    #[expect(clippy::too_many_arguments, reason = "they are what a request is, and where its reply goes")]
    pub(super) fn elsewhere(
        &mut self,
        cx: &mut Context,
        collection: &Collection,
        header: &Header,
        fields: &Fields<'_>,
        value: Given<'_>,
        max_bytes: u64,
        out: &mut Output<'_>,
    ) -> Result<(), Error> {
        let name = fields.name.unwrap_or_default();
        let handing = match self.peer {
            None => {
                cx.check_reachable(collection, name)?;
                Handing::of_frame(cx, collection, header, fields, value, max_bytes)?
            }
            Some(link) if !is_for_here(cx, (collection, name), header) => {
                cx.links.moved(link, header, false, out.buf);
                return Ok(());
            }
            Some(_) => Handing::of_asked(&cx.shared.store, collection, header, fields, value)?,
        };
        self.check_open(cx)?;
        let mut later = Later::of(header, collection, name);
        if header.newer_than().is_some() {
            later.waits.until_ms = cx.now.unix_ms + u64::from(header.time_ms).min(WAIT_MAX_MS);
            later.waits.asked = asked_of(fields).unwrap_or_default().into();
        }
        let ticket = cx.hand_on(out, false, Kept::Wire(Box::new(later)), vec![handing], limit_ms(header))?;
        self.conn = Some(ticket.conn);
        Ok(())
    }

    /// A put that another node hands on has no room here. If its client meant what was there to be gone, that goes
    /// before the refusal is told; false: nothing is to go. A retry may have been done, and removes nothing.
    pub(super) fn refuse_handed(
        &mut self,
        cx: &mut Context,
        header: &Header,
        fields: &Fields<'_>,
        error: &Error,
        out: &mut Output<'_>,
    ) -> bool {
        let may_remove = error.kind.lacks_room() && self.peer.is_some();
        let handed = Handed::decode(header, fields).ok().flatten().filter(|_| may_remove);
        let removes = handed.is_some_and(|it| it.asked.else_remove && it.asked.first_epoch == 0);
        let Some(collection) = verbs::collection(cx, header, fields).ok().filter(|_| removes) else { return false };
        let name = fields.name.unwrap_or_default();
        if !matches!(cx.whereabouts(&collection, name), Where::Here | Where::Group(_)) {
            return false;
        }
        let none = Given::Small(b"", None);
        let Ok(handing) = Handing::of_asked(&cx.shared.store, &collection, header, fields, none) else { return false };
        let later = Kept::Wire(Box::new(Later::of(header, &collection, name)));
        let handed_on = cx.hand_on(out, false, later, vec![handing.refused(error.clone())], limit_ms(header));
        self.conn = handed_on.as_ref().ok().map(|ticket| ticket.conn).or(self.conn);
        handed_on.is_ok()
    }

    /// Begins a put at once, of a client of this node; false: it is handed on like anything else.
    pub(super) fn put_at_once(
        &mut self,
        cx: &mut Context,
        (collection, header): (&Collection, &Header),
        name: &[u8],
        (op, own): (&Op<'_, Arc<Body>>, Option<Own>),
        out: &mut Output<'_>,
    ) -> Result<bool, Error> {
        if self.peer.is_some() {
            return Ok(false);
        }
        self.check_open(cx)?;
        let plain = Plain { collection, name, op, own, is_ordered: false, limit_ms: limit_ms(header) };
        let ticket = cx.put_at_once(out, &plain, || Kept::Wire(Box::new(Later::of(header, collection, name))));
        self.conn = ticket.map(|ticket| ticket.conn).or(self.conn);
        Ok(ticket.is_some())
    }

    /// Writes the reply of this ticket if its answer is there; `None`: nothing was handed on under it. False: it was,
    /// and there is no answer yet.
    pub(super) fn landed(&mut self, cx: &mut Context, ticket: Ticket, out: &mut Output<'_>) -> Option<bool> {
        let (later, landed) = match cx.take_flight(ticket) {
            Taken::None => return None,
            Taken::Open => {
                self.grant_on(cx, ticket, out);
                return Some(false);
            }
            Taken::Passing => {
                self.pass_on(cx, ticket, out);
                return Some(true);
            }
            Taken::Landed(Kept::Wire(later), landed) => (later, landed),
            Taken::Put(Kept::Wire(later), version) => {
                let of = (&later.collection, &*later.name);
                answer_done(cx, of, &later.request, Ok(version), out);
                return Some(true);
            }
            Taken::Landed(..) | Taken::Put(..) => return Some(false),
        };
        let request = later.request;
        self.end_intake(ticket);
        if self.break_off(cx, ticket, out) {
            return Some(true);
        }
        if later.listing.is_some() {
            if let Err(error) = self.list_own(cx, ticket, *later, landed, out) {
                refuse(cx, VerbName::List, &request, 0, &error, out);
            }
            return Some(true);
        }
        let answered = match landed.into_iter().next() {
            Some(landed) if self.peer.is_some() && request.verb() == Some(Verb::Get) && landed.is_read() => {
                self.answer_read(cx, &later, &landed, out)
            }
            Some(landed) if self.peer.is_some() => self.answer_node(cx, &later, &landed, out),
            Some(landed) if request.verb() == Some(Verb::Get) => self.answer_got(cx, (&later, None), landed, out),
            Some(landed) => {
                let done = done(&later.collection, &later.name, landed.outcome());
                match request.verb() {
                    Some(Verb::Execute) => {
                        self.answer_execute(cx, (&later.collection, &later.name), &request, done, out)
                    }
                    _ => {
                        answer_done(
                            cx,
                            (&later.collection, &later.name),
                            &request,
                            done.map(|(version, _)| version),
                            out,
                        );
                        Ok(())
                    }
                }
            }
            None => Err(Error::new(ErrorKind::Busy, "nobody was asked")),
        };
        if let Err(error) = answered {
            refuse(cx, count_as(&request), &request, 0, &error, out);
        }
        Some(true)
    }

    /// The reply to a get that a part of a replica group here has read.
    fn answer_read(
        &mut self,
        cx: &mut Context,
        later: &Later,
        landed: &Landed,
        out: &mut Output<'_>,
    ) -> Result<(), Error> {
        let Later { request, collection, name, .. } = later;
        let mut reply = cx.reply_to(request, Status::Ok);
        reply.collection = collection.id().0;
        cx.durability(collection, name).tell(&mut reply);
        let found = landed.found();
        let is_handed = self.peer.is_some();
        match found.map(|found| answer_get(cx, request, reply, &found, is_handed, out)).transpose()? {
            Some(Read::Done) => Ok(()),
            Some(Read::Large(mut outgoing)) => {
                self.check_open(cx)?;
                outgoing.hold(&cx.shared.store)?;
                self.begin_send(*outgoing, out);
                Ok(())
            }
            Some(Read::NotNewer) => {
                let (request, fields) = later.get(cx);
                self.wait(cx, collection, (&request, &fields), true, out)
            }
            None if request.newer_than().is_some() && !later.waits.was_there => {
                let (request, fields) = later.get(cx);
                self.wait(cx, collection, (&request, &fields), false, out)
            }
            None => Err(not_found(collection.name(), name)),
        }
    }

    /// The reply to a get: as the other node has made it, for this client. Where the value has come in part, the rest
    /// follows under that ticket.
    pub(super) fn answer_got(
        &mut self,
        cx: &mut Context,
        (later, follows): (&Later, Option<Ticket>),
        landed: Landed,
        out: &mut Output<'_>,
    ) -> Result<(), Error> {
        let Later { request, collection, name, .. } = later;
        if let Err(error) = landed.done {
            return match error.kind {
                // A wait goes on where the object is.
                _ if landed.is_here => {
                    let (place, (request, fields)) = (Place::Other(collection.clone()), later.get(cx));
                    self.get_from(cx, &place, &request, &fields, out)
                }
                ErrorKind::NotFound => Err(not_found(collection.name(), name)),
                _ => Err(error),
            };
        }
        let Some((relayed, checksum)) = landed.relayed else { return self.answer_read(cx, later, &landed, out) };
        let Some(found) = landed.found() else { return Err(not_found(collection.name(), name)) };
        let head = &found.head;
        let mut reply = cx.reply_to(request, Status::Ok);
        reply.collection = collection.id().0;
        (reply.version, reply.length, reply.offset) = (head.version, head.size_bytes, relayed.offset);
        reply.extra = relayed.extra;
        let first = FirstFields { flags: head.flags, expires_ms: head.expires_ms, attributes: found.attributes.into() };
        match found.value {
            _ if request.has(FLAG_HEAD_ONLY) => {
                write_frame(reply, &Fields { checksum, ..first.fields() }, &[], out);
            }
            Value::Inline(bytes, check) => {
                cx.count_out(VerbName::Get, bytes.len() as u64);
                send_small(reply, &first.fields(), bytes, Some(check), out);
            }
            Value::Body(body) => {
                cx.count_out(VerbName::Get, body.len());
                let part = Outgoing::part(reply, first, body.clone(), relayed.offset);
                let mut outgoing = part.allowed(later.credit).following(follows);
                outgoing.hold(&cx.shared.store)?;
                self.begin_send(outgoing, out);
            }
        }
        Ok(())
    }
}
