//! What another node hands on to this one (PROTOCOL.md §1.12): done like a client's request, and answered with what
//! became of the object, so that the node which was asked can write its own answer.

use super::later::Later;
use super::send::{FirstFields, Outgoing};
use super::verbs::{self, name};
use super::{Session, write_frame};
use crate::apply::{Elsewhere, Outcome, apply};
use crate::context::{Context, Output};
use crate::flight::{Landed, Where};
use herd_core::entry::Value;
use herd_core::limits::WIRE_FRAME_BODY_MAX_BYTES;
use herd_core::method::{Method, memcached};
use herd_core::op::{Action, Answer, Op};
use herd_core::wire::{Became, Between, FLAG_HEAD_ONLY, Fields, Handed, Header, Status};
use herd_core::{Error, ErrorKind};
use herd_store::{Body, Collection, Given};
use std::sync::Arc;

/// A large answer, which is sent once the object is let go.
type Large = Option<Box<Outgoing>>;

/// Whether the object's value is the answer.
pub(crate) fn with_object(header: &Header, op: &Op<'_, Arc<Body>>) -> bool {
    let is_read = match &op.action {
        Action::Read => true,
        Action::Execute(Method::Memcached(method)) => {
            matches!(method, memcached::Method::Touch { .. } | memcached::Method::Get(_))
        }
        _ => false,
    };
    is_read && !header.has(FLAG_HEAD_ONLY)
}

/// Whether a method is a get of memcached's, which is counted; and if so, whether it is a use of what it finds.
pub(crate) fn get_is_use(header: &Header, op: &Op<'_, Arc<Body>>) -> Option<bool> {
    match &op.action {
        Action::Execute(Method::Memcached(memcached::Method::Get(meta))) => Some(!meta.has(b'u')),
        Action::Execute(Method::Memcached(memcached::Method::Touch { .. })) => {
            (!header.has(FLAG_HEAD_ONLY)).then_some(true)
        }
        _ => None,
    }
}

/// Counts what a client of this node would have been counted for.
fn count(header: &Header, op: &Op<'_, Arc<Body>>, outcome: &mut Outcome<'_, '_>) {
    let hit = outcome.before.is_some();
    match get_is_use(header, op) {
        Some(false) if hit => outcome.count_hit(),
        Some(_) => outcome.count_get(hit),
        None => {}
    }
}

/// Whether it is a get that nobody is to see.
pub(super) fn is_uncounted(header: &Header, fields: &Fields<'_>) -> bool {
    matches!(Handed::decode(header, fields), Ok(Some(handed)) if handed.asked.uncounted)
}

impl Session {
    /// A put, a remove or a method that another node hands on; its body is wholly there.
    pub(super) fn handed(
        &mut self,
        cx: &mut Context,
        header: &Header,
        fields: &Fields<'_>,
        value: Given<'_>,
        out: &mut Output<'_>,
    ) -> Result<(), Error> {
        let (collection, name) = (verbs::collection(cx, header, fields)?, name(fields)?);
        let nobody = || Error::new(ErrorKind::BadRequest, "nobody hands this on");
        let handed = Handed::decode(header, fields)?.ok_or_else(nobody)?;
        let mut arguments = Vec::new();
        let given = match &value {
            // Arguments of a method are wanted in one piece.
            Given::Large(body) if fields.method.is_some() => {
                Value::Body(&**body).copy(0, body.len(), &mut arguments);
                Given::Small(&arguments, None)
            }
            value => value.clone(),
        };
        let op = handed.op(header, fields, given, cx.now.unix_ms)?;
        let with_object = with_object(header, &op);
        let asked = handed.asked;
        if asked.first_epoch != 0 && !op.action.only_reads() {
            if cx.whereabouts(&collection, name) != Where::Here {
                return self.elsewhere(cx, &collection, header, fields, value, asked.max_bytes, out);
            }
            let key = cx.shared.store.key(&collection, name);
            if let Some(error) = cx.refusal_alone(&key, &asked) {
                return Err(error);
            }
        }
        let applied = apply(cx, &collection, name, &op, |mut outcome| {
            count(header, &op, &mut outcome);
            answer(cx, header, (&collection, name), &outcome, with_object, out)
        });
        match applied {
            Ok(large) => large.into_iter().for_each(|outgoing| self.begin_send(*outgoing, out)),
            Err(Elsewhere) => self.elsewhere(cx, &collection, header, fields, value, handed.asked.max_bytes, out)?,
        }
        Ok(())
    }

    /// Answers what a part of a replica group has decided.
    pub(super) fn answer_node(
        &mut self,
        cx: &mut Context,
        later: &Later,
        landed: &Landed,
        out: &mut Output<'_>,
    ) -> Result<(), Error> {
        if landed.is_here {
            // It is this node's alone by now: the node that asked asks once more.
            return Err(Error::new(ErrorKind::Busy, "the object has just come to another node: try again"));
        }
        if let Some((link, may_be_done)) = self.peer.zip(landed.moved) {
            cx.links.moved(link, &later.request, may_be_done, out.buf);
            return Ok(());
        }
        let with_object = landed.with_value && landed.object.is_some();
        let large = answer(cx, &later.request, (&later.collection, &later.name), &landed.outcome(), with_object, out);
        large.into_iter().for_each(|outgoing| self.begin_send(*outgoing, out));
        Ok(())
    }
}

/// Writes the answer to a node; a large value is only taken hold of.
fn answer(
    cx: &Context,
    request: &Header,
    (collection, name): (&Collection, &[u8]),
    outcome: &Outcome<'_, '_>,
    with_object: bool,
    out: &mut Output<'_>,
) -> Large {
    let found = outcome.found();
    let mut became = Vec::new();
    let after = found.as_ref().map(|found| found.head);
    Became { clock: outcome.clock(cx), before: outcome.before, after }.encode(&mut became);
    let between = Some(Between::Became(&became));
    let (version, answer) = match &outcome.done {
        Ok((version, answer)) => (*version, answer),
        Err(error) => {
            let header = cx.reply_to(request, Status::Error(error.kind));
            write_frame(header, &Fields { between, ..Fields::failed(&error.text) }, &[], out);
            return None;
        }
    };
    let mut reply = cx.reply_to(request, Status::Ok);
    (reply.version, reply.collection, reply.offset) = (version, collection.id().0, 0);
    cx.durability(collection, name).tell(&mut reply);
    let none = || FirstFields { flags: 0, expires_ms: 0, attributes: Box::default() };
    match (answer, found.filter(|_| with_object)) {
        (_, Some(found)) => {
            let fields = Fields {
                attributes: (!found.attributes.is_empty()).then_some(found.attributes),
                between,
                ..Fields::default()
            };
            reply.length = found.head.size_bytes;
            match found.value {
                Value::Inline(bytes, _) => write_frame(reply, &fields, bytes, out),
                Value::Body(body) => {
                    let first = FirstFields { attributes: found.attributes.into(), ..none() };
                    let outgoing = Outgoing::new(reply, first, body.clone(), 0, body.len());
                    return Some(Box::new(outgoing.telling(&became)));
                }
            }
        }
        (Answer::Large(body), None) => {
            reply.length = body.len();
            let outgoing = Outgoing::new(reply, none(), body.clone(), 0, body.len());
            return Some(Box::new(outgoing.telling(&became)));
        }
        (Answer::Bytes(bytes), None) if bytes.len() > WIRE_FRAME_BODY_MAX_BYTES => {
            let error = Error::new(ErrorKind::TooLarge, "the answer is over 1 MiB: ask for fewer items");
            let header = cx.reply_to(request, Status::Error(error.kind));
            write_frame(header, &Fields { between, ..Fields::failed(&error.text) }, &[], out);
        }
        (Answer::Bytes(bytes), None) => {
            reply.length = bytes.len() as u64;
            write_frame(reply, &Fields { between, ..Fields::default() }, bytes, out);
        }
        (Answer::Nothing, None) => write_frame(reply, &Fields { between, ..Fields::default() }, &[], out),
    }
    None
}
