//! The verbs that change an object: their bytes as an operation, and what became of it as a reply.

use super::receive::{Incoming, PutOptions, Scratch};
use super::send::{FirstFields, Outgoing};
use super::verbs::{Place, name};
use super::{Session, count_as, refuse, write_frame};
use crate::apply::{Elsewhere, Outcome, apply};
use crate::context::{Context, Output, not_found};
use crate::group;
use crate::metrics::VerbName;
use herd_core::entry::{Token, Version};
use herd_core::limits::{METHOD_VALUE_MAX_BYTES, WIRE_FRAME_BODY_MAX_BYTES};
use herd_core::method::Method;
use herd_core::op::{Action, Answer, Given, Op, Put};
use herd_core::wire::{Asked, FLAG_QUIET, Fields, Frame, Header, LENGTH_UNKNOWN, Own, Status};
use herd_core::{Error, ErrorKind};
use herd_store::{Body, Collection, Seat};
use std::sync::Arc;

/// The new version, and what a method answered.
pub(super) type Done = (Version, Answer<Arc<Body>>);
/// Why not, and the version that is there where the condition did not hold, else 0.
pub(super) type Refused = (Error, Version);

/// The lock's token that a request shows.
#[inline]
pub(super) fn token(fields: &Fields<'_>) -> Option<Token> {
    fields.token.and_then(|bytes| Token::from_bytes(bytes))
}

impl Session {
    /// A put whose body came whole in its frame and lies beside its key.
    #[inline]
    pub(super) fn put_small(
        &mut self,
        cx: &mut Context,
        frame: &Frame<'_>,
        fields: &Fields<'_>,
        out: &mut Output<'_>,
    ) -> Result<(), Error> {
        let header = frame.header();
        let (name, body) = (name(fields)?, frame.body()?);
        if header.length != LENGTH_UNKNOWN && header.length != body.len() as u64 {
            return Err(Error::new(ErrorKind::BadRequest, "the length of the body is not what the frame says"));
        }
        cx.count_in(VerbName::Put, body.len() as u64);
        let options = PutOptions::of(header, fields)?;
        let place = Place::of(cx, header, fields)?;
        let value = Given::Small(body, frame.head.block_checks().next());
        let op = put(cx, &options, value.clone());
        match run(cx, place.get(cx), name, &op, options.own)? {
            Ok(done) => answer_done(cx, (place.get(cx), name), header, done.map(|(version, _)| version), out),
            Err(Elsewhere) => {
                let (collection, max_bytes) = (place.get(cx).clone(), op.max_bytes);
                if self.put_at_once(cx, (&collection, header), name, (&op, options.own), out)? {
                    return Ok(());
                }
                self.elsewhere(cx, &collection, header, fields, value, max_bytes, out)?;
            }
        }
        Ok(())
    }

    /// A put whose body has arrived in blocks.
    pub(super) fn put_large(&mut self, cx: &mut Context, incoming: Incoming, out: &mut Output<'_>) {
        let (request, collection, name) = (incoming.request, incoming.collection.clone(), incoming.name.clone());
        let (options, handed) = (incoming.options.clone(), incoming.handed.clone());
        let body = match incoming.finish(cx) {
            Ok(Some(body)) => body,
            // Its reply is that of its flight.
            Ok(None) => return,
            Err(error) => {
                let fields = handed.as_ref().and_then(|head| Fields::decode(head).ok());
                if fields.is_some_and(|fields| self.refuse_handed(cx, &request, &fields, &error, out)) {
                    return;
                }
                return answer_done(cx, (&collection, &name), &request, Err((error, 0)), out);
            }
        };
        cx.count_in(VerbName::Put, body.len());
        let mut bytes = Vec::new();
        let value = crate::bulk::given(body, &mut bytes);
        let done = match handed {
            Some(head) => Fields::decode(&head)
                .map_err(Error::from)
                .and_then(|fields| self.handed(cx, &request, &fields, value, out)),
            None => match run(cx, &collection, &name, &put(cx, &options, value.clone()), options.own) {
                Ok(Ok(done)) => {
                    return answer_done(cx, (&collection, &name), &request, done.map(|(version, _)| version), out);
                }
                Err(error) => Err(error),
                Ok(Err(Elsewhere)) => {
                    let (mut scratch, max_bytes) = (Scratch::default(), cx.shared.config.object_max_bytes);
                    let fields = options.fields(&name, &mut scratch);
                    self.elsewhere(cx, &collection, &request, &fields, value, max_bytes, out)
                }
            },
        };
        if let Err(error) = done {
            answer_done(cx, (&collection, &name), &request, Err((error, 0)), out);
        }
    }
}

#[inline]
fn put<'a>(cx: &Context, options: &'a PutOptions, value: Given<'a, Arc<Body>>) -> Op<'a, Arc<Body>> {
    let action = Action::Put(Put {
        from: options.range_from,
        flags: options.flags,
        expires_ms: options.ttl_ms.map(|ttl| cx.now.unix_ms.saturating_add(ttl).max(1)),
        attributes: options.attributes.as_deref(),
        ..Put::of(value)
    });
    let max_bytes = cx.shared.config.object_max_bytes;
    Op { condition: options.condition, token: options.token, ..Op::new(action, max_bytes) }
}

impl Session {
    pub(super) fn remove(
        &mut self,
        cx: &mut Context,
        header: &Header,
        fields: &Fields<'_>,
        out: &mut Output<'_>,
    ) -> Result<(), Error> {
        let (name, place) = (name(fields)?, Place::of(cx, header, fields)?);
        let bad = || Error::new(ErrorKind::BadRequest, "this condition is not one of a remove");
        let condition = header.condition().ok_or_else(bad)?;
        let op = Op { condition, token: token(fields), ..Op::new(Action::Remove, 0) };
        match run(cx, place.get(cx), name, &op, Own::told(fields)?)? {
            Ok(done) => answer_done(cx, (place.get(cx), name), header, done.map(|(version, _)| version), out),
            Err(Elsewhere) => {
                let collection = place.get(cx).clone();
                self.elsewhere(cx, &collection, header, fields, Given::Small(b"", None), 0, out)?;
            }
        }
        Ok(())
    }

    /// A method on an object; its arguments are the body, and so is its answer.
    pub(super) fn execute(
        &mut self,
        cx: &mut Context,
        frame: &Frame<'_>,
        fields: &Fields<'_>,
        out: &mut Output<'_>,
    ) -> Result<(), Error> {
        let header = frame.header();
        let (name, place) = (name(fields)?, Place::of(cx, header, fields)?);
        let bad = |text| Error::new(ErrorKind::BadRequest, text);
        let method = fields.method.ok_or_else(|| bad("the request names no method"))?;
        let method = Method::parse(method, frame.body()?)?;
        let condition = header.condition().ok_or_else(|| bad("this condition is not one of a method"))?;
        if matches!(method, Method::Take) {
            // What it takes may be large, and must not be lost.
            self.check_open(cx)?;
        }
        let max_bytes = METHOD_VALUE_MAX_BYTES.min(cx.shared.config.object_max_bytes);
        let op = Op { condition, token: token(fields), ..Op::new(Action::Execute(method), max_bytes) };
        let collection = place.get(cx).clone();
        match run(cx, &collection, name, &op, Own::told(fields)?)? {
            Ok(done) => self.answer_execute(cx, (&collection, name), header, done, out),
            Err(Elsewhere) => {
                let value = Given::Small(frame.body()?, None);
                self.elsewhere(cx, &collection, header, fields, value, max_bytes, out)
            }
        }
    }

    /// Answers with what a method has answered.
    pub(super) fn answer_execute(
        &mut self,
        cx: &Context,
        of: (&Collection, &[u8]),
        header: &Header,
        done: Result<Done, Refused>,
        out: &mut Output<'_>,
    ) -> Result<(), Error> {
        let (version, answer) = match done {
            Err(refused) => {
                answer_done(cx, of, header, Err(refused), out);
                return Ok(());
            }
            Ok(done) => done,
        };
        let bytes = match answer {
            _ if header.has(FLAG_QUIET) => return Ok(()),
            Answer::Large(body) => {
                cx.count_out(VerbName::Execute, body.len());
                let (reply, len) = (Header { length: body.len(), ..reply(cx, of, header, version) }, body.len());
                let first = FirstFields { flags: 0, expires_ms: 0, attributes: Box::default() };
                self.begin_send(Outgoing::new(reply, first, body, 0, len), out);
                return Ok(());
            }
            Answer::Bytes(bytes) => bytes,
            Answer::Nothing => Vec::new(),
        };
        if bytes.len() > WIRE_FRAME_BODY_MAX_BYTES {
            return Err(Error::new(ErrorKind::TooLarge, "the answer is over 1 MiB: ask for fewer items"));
        }
        cx.count_out(VerbName::Execute, bytes.len() as u64);
        let reply = Header { length: bytes.len() as u64, ..reply(cx, of, header, version) };
        write_frame(reply, &Fields::default(), &bytes, out);
        Ok(())
    }
}

/// Carries out an operation, if it is for this node alone to decide. Error: its client has given it an id, and it can't
/// be known here whether it was done already.
#[inline]
fn run(
    cx: &Context,
    collection: &Collection,
    name: &[u8],
    op: &Op<'_, Arc<Body>>,
    own: Option<Own>,
) -> Result<Result<Result<Done, Refused>, Elsewhere>, Error> {
    if let Some(own) = own
        && !op.action.only_reads()
        && is_elsewhere(cx, (collection, name), own)?
    {
        return Ok(Err(Elsewhere));
    }
    Ok(apply(cx, collection, name, op, |outcome| done(collection, name, outcome)))
}

/// Whether what its client has given an id is not for this node alone. Error: as of [`run`].
fn is_elsewhere(cx: &Context, (collection, name): (&Collection, &[u8]), own: Own) -> Result<bool, Error> {
    check_own(cx, Some(own))?;
    let key = cx.shared.store.key(collection, name);
    let is_here = match cx.shared.store.slot(key.spread(), key.slot()).seat {
        Seat::Alone => true,
        Seat::Leased => cx.shared.gates.has_cache_lease(),
        _ => false,
    };
    if !is_here {
        return Ok(true);
    }
    cx.refusal_alone(&key, &Asked::of_own(&own, 0)).map_or(Ok(false), Err)
}

/// Refuses a stamp that would make those of all others look old.
pub(super) fn check_own(cx: &Context, own: Option<Own>) -> Result<(), Error> {
    let is_ahead = own.is_some_and(|own| own.is_ahead(cx.now.unix_ms));
    if is_ahead { Err(group::too_old()) } else { Ok(()) }
}

/// What a client is told of what became of an operation.
#[inline]
pub(super) fn done(collection: &Collection, name: &[u8], outcome: Outcome<'_, '_>) -> Result<Done, Refused> {
    let there = outcome.before.map_or(0, |head| head.version);
    outcome.done.map_err(|error| match error.kind {
        ErrorKind::ConditionFailed => (error, there),
        ErrorKind::NotFound => (not_found(collection.name(), name), 0),
        _ => (error, 0),
    })
}

/// The header of a reply that says it was done.
#[inline]
fn reply(cx: &Context, (collection, name): (&Collection, &[u8]), request: &Header, version: Version) -> Header {
    let mut reply = cx.reply_to(request, Status::Ok);
    (reply.version, reply.collection) = (version, collection.id().0);
    cx.durability(collection, name).tell(&mut reply);
    reply
}

/// Answers a request that has no body to give back.
#[inline]
pub(super) fn answer_done(
    cx: &Context,
    of: (&Collection, &[u8]),
    request: &Header,
    done: Result<Version, Refused>,
    out: &mut Output<'_>,
) {
    match done {
        Ok(_) if request.has(FLAG_QUIET) => {}
        Ok(version) => write_frame(reply(cx, of, request, version), &Fields::default(), &[], out),
        Err((error, there)) => refuse(cx, count_as(request), request, there, &error, out),
    }
}
