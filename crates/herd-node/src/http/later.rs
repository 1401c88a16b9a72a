//! Requests on objects of other nodes: what is handed on, what is kept of it, and the replies once the answers are
//! there.

use super::get::{Form, Taken, answer, finish, not_modified, plan_of_wait};
use super::list::Asked;
use super::passing::Passing;
use super::put::{answer_put, answer_removed};
use super::{Session, fail, fail_as};
use crate::context::{Context, Durability, Output, not_found};
use crate::flight::{Handing, How, Landed, Later as Kept, Taken as Flown};
use crate::metrics::VerbName;
use herd_core::door::http::{self as proto, ByteRange, Connection, Method, Plan, Request};
use herd_core::entry::{Condition, Version};
use herd_core::limits::{FLIGHT_MS, LINK_SILENCE_MS, WAIT_MAX_MS};
use herd_core::op::{Action, Op};
use herd_core::wire::{CODE_NEWER, FLAG_RANGE, Fields, Header, LENGTH_UNKNOWN, OFFSET_LAST, Verb};
use herd_core::{Error, ErrorKind};
use herd_net::Ticket;
use herd_store::{Collection, Given, Value};

/// What is kept of a request that was handed on.
pub(crate) enum Later {
    /// A GET or HEAD, as it was sent; `is_part`: no more than its range was asked for.
    Get { sent: Box<[u8]>, collection: Collection, name: Box<[u8]>, is_part: bool },
    /// A GET that waits for another version than its client has, until then.
    Wait { form: Form, collection: Collection, name: Box<[u8]>, newer_than: Version, until_ms: u64 },
    /// A PUT that is put off until it is known whether its condition holds.
    Judge(Condition),
    /// A PUT.
    Put { connection: Connection, kept: Durability },
    /// A page of names, of which the other nodes are asked.
    List(Asked),
    /// A DELETE.
    Remove { connection: Connection, collection: Collection, name: Box<[u8]> },
}

impl Later {
    /// Whether the reply can be written while the value comes.
    pub(crate) fn may_pass(&self) -> bool {
        matches!(self, Later::Get { .. })
    }
}

/// The range that a GET asks for: its offset and length, as the wire has them.
fn part(request: &Request<'_>) -> Option<(u64, u64)> {
    match request.read.range {
        Some(ByteRange::From { first, last: None }) => Some((first, LENGTH_UNKNOWN)),
        Some(ByteRange::From { first, last: Some(last) }) => Some((first, (last - first).saturating_add(1))),
        Some(ByteRange::Last(count)) => Some((OFFSET_LAST, count)),
        None => None,
    }
}

/// What the answer to a GET whose range was asked for has of what is needed.
pub(super) enum Part {
    /// Something else is needed: the object has changed, or If-Range names another version.
    None,
    /// All, at its place in the object, or as much as has come of that; or nothing is needed.
    All,
    /// Just so many bytes that are needed.
    Only(u64),
}

/// See [`Part`].
pub(super) fn part_of(request: &Request<'_>, landed: &Landed) -> Part {
    let found = match (&landed.done, landed.found()) {
        (Err(error), _) if error.kind == ErrorKind::BadRange => return Part::None,
        (Ok(_), Some(found)) => found,
        _ => return Part::All,
    };
    let Some((relayed, _)) = landed.relayed else { return Part::All };
    match request.read.plan(found.head.version, found.head.size_bytes) {
        Plan::NotModified | Plan::ConditionFailed | Plan::Unsatisfiable => Part::All,
        Plan::Part { offset_bytes, length_bytes } if offset_bytes == relayed.offset => Part::Only(length_bytes),
        Plan::Part { .. } | Plan::Whole => Part::None,
    }
}

/// Answers with the part of the object that has come.
fn answer_part(
    cx: &Context,
    request: &Request<'_>,
    (collection, name): (&Collection, &[u8]),
    landed: &Landed,
    bytes: u64,
    out: &mut Output<'_>,
) {
    let has = |value: &Value<'_>| match value {
        Value::Inline(value, _) => value.len() as u64,
        Value::Body(body) => body.len(),
    };
    let Some(found) = landed.found().filter(|found| has(&found.value) == bytes) else {
        let error = Error::new(ErrorKind::Unreachable, "the node that has the object gave another part of it");
        return fail(cx, request, VerbName::Get, &error, None, out);
    };
    let (form, kept) = (Form { head_only: true, ..Form::of(request) }, cx.durability(collection, name));
    let plan = |version, size| request.read.plan(version, size);
    answer(cx, &form, kept, &found, (plan, landed.clock.now_ms), out);
    cx.count_out(VerbName::Get, bytes);
    match found.value {
        Value::Inline(value, _) => out.buf.extend_from_slice(value),
        Value::Body(body) => out.bulk(body.clone(), 0, bytes),
    }
}

impl Session {
    /// Hands a request on.
    pub(super) fn hand_on(
        &mut self,
        cx: &mut Context,
        later: Later,
        handing: Handing,
        limit_ms: u64,
        out: &mut Output<'_>,
    ) -> Result<(), Error> {
        let ticket = cx.hand_on(out, true, Kept::Http(Box::new(later)), vec![handing], limit_ms)?;
        self.conn = Some(ticket.conn);
        Ok(())
    }

    /// A GET or HEAD of an object that another node has.
    #[cold]
    pub(super) fn get_elsewhere(
        &mut self,
        cx: &mut Context,
        request: &Request<'_>,
        sent: &[u8],
        collection: &Collection,
        name: &[u8],
        out: &mut Output<'_>,
    ) {
        let how = How { with_value: request.method == Method::Get, uncounted: false };
        let begun = cx.check_reachable(collection, name).and_then(|()| {
            let part = if how.with_value { part(request) } else { None };
            let handing = match part {
                None => Handing::of_op(cx, collection, name, &Op::new(Action::Read, 0), how)?,
                Some((offset, length)) => {
                    let header = Header { flags: FLAG_RANGE, offset, length, ..Header::request(Verb::Get, 0) };
                    Handing::of_frame(cx, collection, &header, &Fields::named(name), Given::Small(b"", None), 0)?
                }
            };
            let (sent, collection, name, is_part) = (sent.into(), collection.clone(), name.into(), part.is_some());
            let later = Later::Get { sent, collection, name, is_part };
            self.hand_on(cx, later, handing, FLIGHT_MS, out)
        });
        if let Err(error) = begun {
            fail(cx, request, VerbName::Get, &error, None, out);
        }
    }

    /// A GET whose range was asked for, and that needs all of the object.
    pub(super) fn get_whole(
        &mut self,
        cx: &mut Context,
        ticket: Ticket,
        request: &Request<'_>,
        (sent, collection, name): (&[u8], &Collection, &[u8]),
        out: &mut Output<'_>,
    ) {
        let how = How { with_value: true, uncounted: false };
        let begun = Handing::of_op(cx, collection, name, &Op::new(Action::Read, 0), how).and_then(|handing| {
            let (sent, collection, name) = (sent.into(), collection.clone(), name.into());
            let later = Kept::Http(Box::new(Later::Get { sent, collection, name, is_part: false }));
            cx.hand_on_again(ticket, later, vec![handing], FLIGHT_MS)
        });
        if let Err(error) = begun {
            fail(cx, request, VerbName::Get, &error, None, out);
        }
    }

    /// A GET that waits for a newer version of an object that another node has, so long at most.
    pub(super) fn wait_elsewhere(
        &mut self,
        cx: &mut Context,
        ticket: Option<Ticket>,
        (form, collection, name): (Form, &Collection, &[u8]),
        (newer_than, wait_ms): (Version, u64),
        out: &mut Output<'_>,
    ) {
        let wait_ms = wait_ms.min(WAIT_MAX_MS);
        let time_ms = u32::try_from(wait_ms).unwrap_or(u32::MAX);
        let header = Header { code: CODE_NEWER, version: newer_than, time_ms, ..Header::request(Verb::Get, 0) };
        let until_ms = cx.now.unix_ms.saturating_add(wait_ms);
        let (collection_kept, name_kept) = (collection.clone(), name.into());
        let later = Later::Wait { form, collection: collection_kept, name: name_kept, newer_than, until_ms };
        let begun = cx.check_reachable(collection, name).and_then(|()| {
            let none = Given::Small(b"", None);
            let handing = Handing::of_frame(cx, collection, &header, &Fields::named(name), none, 0)?;
            let limit_ms = wait_ms + LINK_SILENCE_MS;
            match ticket {
                None => self.hand_on(cx, later, handing, limit_ms, out),
                Some(ticket) => {
                    self.conn = Some(ticket.conn);
                    cx.hand_on_again(ticket, Kept::Http(Box::new(later)), vec![handing], limit_ms)
                }
            }
        });
        if let Err(error) = begun {
            fail_as(cx, form, VerbName::Get, &error, None, out);
        }
    }

    /// Writes the reply of this ticket if its answer is there; `None`: nothing was handed on under it. False: it was,
    /// and there is no answer yet.
    pub(super) fn landed(&mut self, cx: &mut Context, ticket: Ticket, out: &mut Output<'_>) -> Option<bool> {
        let (later, landed) = match cx.take_flight(ticket) {
            Flown::None => return None,
            Flown::Landed(Kept::Http(later), landed) => (*later, landed),
            Flown::Passing => {
                self.pass_on(cx, ticket, out);
                return Some(true);
            }
            Flown::Open | Flown::Landed(..) | Flown::Put(..) => return Some(false),
        };
        if self.break_off(cx, ticket, out) {
            return Some(true);
        }
        let (later, landed) = match later {
            Later::List(asked) => {
                self.list_own(cx, ticket, asked, landed, out);
                return Some(true);
            }
            later => (later, landed.into_iter().next()?),
        };
        match later {
            Later::List(_) => {}
            Later::Judge(condition) => self.judged(condition, &landed, out),
            Later::Get { sent, collection, name, is_part } => {
                if let Ok(Some((request, _))) = proto::parse_head(&sent) {
                    match if is_part { part_of(&request, &landed) } else { Part::All } {
                        Part::None => self.get_whole(cx, ticket, &request, (&sent, &collection, &name), out),
                        Part::All => self.answer_got(cx, (ticket, false), &request, (&collection, &name), landed, out),
                        Part::Only(bytes) => answer_part(cx, &request, (&collection, &name), &landed, bytes, out),
                    }
                }
            }
            Later::Wait { form, collection, name, newer_than, until_ms } => {
                self.answer_waited(cx, ticket, (form, &collection, &name), (newer_than, until_ms), landed, out);
            }
            Later::Put { connection, kept } => {
                let connection = if self.answered(ticket) { Connection::Close } else { connection };
                let created = landed.before.is_none();
                let done = landed.done.map(|(version, _)| (kept, (version, created)));
                answer_put(cx, connection, done, out);
            }
            Later::Remove { connection, collection, name } => {
                let done = landed.done.map(|(version, _)| version);
                if let Err(error) = answer_removed(cx, connection, &collection, &name, done, out) {
                    let form = Form { connection, head_only: false };
                    fail_as(cx, form, VerbName::Remove, &error, None, out);
                }
            }
        }
        Some(true)
    }

    /// The answer to a GET or HEAD; it may have to wait for another version, or its value to pass, of which there is
    /// only a part yet.
    pub(super) fn answer_got(
        &mut self,
        cx: &mut Context,
        (ticket, passes): (Ticket, bool),
        request: &Request<'_>,
        (collection, name): (&Collection, &[u8]),
        landed: Landed,
        out: &mut Output<'_>,
    ) {
        let form = Form::of(request);
        let found = match (&landed.done, landed.found()) {
            (Ok(_), Some(found)) => found,
            (Err(error), _) if error.kind != ErrorKind::NotFound => {
                return fail(cx, request, VerbName::Get, error, None, out);
            }
            _ => return fail(cx, request, VerbName::Get, &not_found(collection.name(), name), None, out),
        };
        let plan = |version, size| request.read.plan(version, size);
        let kept = cx.durability(collection, name);
        let taken = answer(cx, &form, kept, &found, (plan, landed.clock.now_ms), out);
        if passes && !matches!(taken, Taken::Large(..)) {
            cx.forget_flight(ticket);
        }
        match taken {
            Taken::Large(_, from, to) if passes => {
                self.insert_passing(Passing::new(ticket, from, to));
            }
            Taken::NotModified(version) => match request.read.wait() {
                Some(wait) if wait.newer_than == version && wait.wait_ms > 0 => {
                    let wait = (version, wait.wait_ms);
                    self.wait_elsewhere(cx, Some(ticket), (form, collection, name), wait, out);
                }
                _ => not_modified(cx, &form, kept, version, out),
            },
            taken => finish(cx, request, taken, out),
        }
    }

    /// The answer to a GET whose wait is over.
    fn answer_waited(
        &mut self,
        cx: &mut Context,
        ticket: Ticket,
        (form, collection, name): (Form, &Collection, &[u8]),
        (newer_than, until_ms): (Version, u64),
        landed: Landed,
        out: &mut Output<'_>,
    ) {
        let (now_ms, kept) = (cx.now.unix_ms, cx.durability(collection, name));
        let error = match (&landed.done, landed.found()) {
            (Ok(_), Some(found)) if landed.is_read() && found.head.version <= newer_than && now_ms < until_ms => {
                return self.wait_here(cx, ticket, (form, collection, name), (newer_than, until_ms), out);
            }
            (Ok(_), Some(found)) => {
                let plan = (plan_of_wait(newer_than), landed.clock.now_ms);
                match answer(cx, &form, kept, &found, plan, out) {
                    Taken::Large(body, from, to) => out.bulk(body, from, to),
                    Taken::NotModified(version) => not_modified(cx, &form, kept, version, out),
                    _ => {}
                }
                return;
            }
            (Err(error), _) if error.kind == ErrorKind::Timeout || landed.is_here && now_ms >= until_ms => {
                return not_modified(cx, &form, kept, newer_than, out);
            }
            (Err(_), _) if landed.is_here => {
                return self.wait_here(cx, ticket, (form, collection, name), (newer_than, until_ms), out);
            }
            (Err(error), _) if error.kind != ErrorKind::NotFound => error.clone(),
            _ => not_found(collection.name(), name),
        };
        fail_as(cx, form, VerbName::Get, &error, None, out);
    }
}
