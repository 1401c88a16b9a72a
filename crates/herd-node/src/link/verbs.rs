//! What nodes ask of each other over links, and what comes of it: one match each, a line for each verb or note.

use super::ends::End;
use super::{LinkLost, Note};
use crate::context::{Context, Output};
use crate::group;
use herd_core::wire::{
    Fields, Frame, Header, LinkId, MapMark, MapSent, Status, VERB_BEAT, VERB_CONTROL, VERB_GROUP, VERB_MAP,
    VERB_WARDEN, WireError, encode_frame,
};
use herd_core::{Error, ErrorKind};

/// What came back to what was asked: its first frame.
pub(super) struct Reply<'a> {
    /// Over this link.
    pub(super) from: LinkId,
    /// Its header.
    pub(super) header: &'a Header,
    /// The fields of its head.
    pub(super) fields: Fields<'a>,
    /// What the frame has of its body.
    pub(super) body: &'a [u8],
}

/// Takes a request of a node whose frame is wholly there, and answers it; those of clients (verbs below 16) go to the
/// session's own. Error: the other end breaks the protocol.
pub(super) fn asked(
    cx: &mut Context,
    id: LinkId,
    frame: &Frame<'_>,
    fields: &Fields<'_>,
    out: &mut Output<'_>,
) -> Result<(), WireError> {
    let (header, body) = (frame.header(), frame.body()?);
    let answer = match header.verb {
        VERB_BEAT => {
            mark(cx, id, header, fields)?;
            cx.links.answer_beat(id, header, out.buf);
            Ok(false)
        }
        VERB_GROUP => return group::came(cx, id, &frame.head, fields, body),
        VERB_WARDEN => cx.links.petition(id, header, fields).map(|()| false),
        VERB_CONTROL => cx.links.errand(id, header, fields, body).map(|()| false),
        VERB_MAP => cx.links.receive(id, header, MapSent::decode(header, fields), body),
        _ => Err(not_in_version()),
    };
    match answer {
        Ok(true) => cx.links.mark().tell(out.buf, Header::reply_to(header, Status::Ok)),
        Ok(false) => {}
        Err(error) => refuse(header, &error, out)?,
    }
    Ok(())
}

/// Takes a further frame of the body of a request. Where there is none it belongs to one that was refused, and is
/// dropped.
pub(super) fn more(cx: &mut Context, id: LinkId, frame: &Frame<'_>, out: &mut Output<'_>) -> Result<(), WireError> {
    if let Some(request) = cx.links.receive_more(id, frame.header(), frame.body()?)? {
        cx.links.mark().tell(out.buf, Header::reply_to(&request, Status::Ok));
    }
    cx.links.errand_more(id, frame.header(), frame.body()?)
}

/// Whether a client's request that another node hands on is taken: they alone are refused, where too much of what was
/// answered is not sent yet. How many may be open its session knows.
pub(super) fn admit(cx: &mut Context, id: LinkId, header: &Header, out: &mut Output<'_>) -> Result<bool, WireError> {
    if cx.links.end(id).is_some_and(|end| out.pending_bytes() as u64 <= end.room_bytes) {
        return Ok(true);
    }
    let text = "too many requests of this node are under way here: ask again later";
    refuse(header, &Error::new(ErrorKind::Busy, text), out).map(|()| false)
}

fn not_in_version() -> Error {
    Error::new(ErrorKind::NotInVersion, "this verb is not in this version of Herd")
}

fn refuse(request: &Header, error: &Error, out: &mut Output<'_>) -> Result<(), WireError> {
    let header = Header::reply_to(request, Status::Error(error.kind));
    encode_frame(out.buf, header, &Fields::failed(&error.text), b"")
}

/// What became of a request that this loop asked. Error: the other end breaks the protocol.
pub(super) fn answered(cx: &mut Context, note: Note, reply: Result<Reply<'_>, LinkLost>) -> Result<(), WireError> {
    match (note, reply) {
        (Note::Beat(sent_ns), Ok(reply)) => {
            cx.links.end(reply.from).into_iter().for_each(End::beat_answered);
            cx.links.granted(&reply.fields, sent_ns);
            mark(cx, reply.from, reply.header, &reply.fields)
        }
        (Note::Map(edition), Ok(reply)) => {
            cx.links.push_answered(reply.from, edition);
            mark(cx, reply.from, reply.header, &reply.fields)
        }
        (Note::Warden(number), Ok(reply)) => {
            cx.warden_answered(number, Some((reply.header, &reply.fields)));
            Ok(())
        }
        (Note::Warden(number), Err(LinkLost)) => {
            cx.warden_answered(number, None);
            Ok(())
        }
        (Note::Errand(number), Ok(reply)) => {
            cx.errand_answered(number, Some((reply.header, &reply.fields)));
            Ok(())
        }
        (Note::Errand(number), Err(LinkLost)) => {
            cx.errand_answered(number, None);
            Ok(())
        }
        (Note::Beat(_) | Note::Map(_), Err(LinkLost)) => Ok(()),
        (Note::Flight(id, attempt), Ok(Reply { from, header, fields, body })) => {
            cx.flight_answered((id, attempt), from, header, &fields, body)
        }
        (Note::Flight(id, attempt), Err(lost)) => {
            cx.flight_lost(id, attempt, lost);
            Ok(())
        }
        #[cfg(test)]
        (Note::Probe(number), reply) => {
            cx.links.probes.push((number, reply.map(|reply| reply.header.status())));
            Ok(())
        }
    }
}

/// Takes the map that a beat or an answer tells of.
fn mark(cx: &mut Context, id: LinkId, header: &Header, fields: &Fields<'_>) -> Result<(), WireError> {
    let now_ms = cx.now_ms();
    MapMark::told(header, fields)?.into_iter().for_each(|mark| cx.links.marked(id, mark, now_ms));
    Ok(())
}
