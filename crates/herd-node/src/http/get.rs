//! GET and HEAD of an object: conditions, one range, and waiting for a newer version (`Prefer: wait`, RFC 7240).

use super::{Session, date, fail, fail_as};
use crate::context::{Context, Durability, Output, not_found};
use crate::metrics::VerbName;
use crate::watch::Watched;
use herd_core::attributes::Attributes;
use herd_core::door::http::{Connection, Content, Method, ObjectHead, Plan, Request, Response, Status};
use herd_core::entry::{Head, Version};
use herd_core::limits::WAIT_MAX_MS;
use herd_core::{Error, ErrorKind};
use herd_net::Ticket;
use herd_store::{Body, Collection, Entry, Found, Got, Value};
use std::sync::Arc;

/// A GET that waits for a newer version than its client has.
pub(super) struct Wait {
    watched: Watched,
    newer_than: Version,
    until_ms: u64,
    form: Form,
}

impl Wait {
    /// Looks at the object: whether the wait goes on. It is looked at again when the object expires.
    fn goes_on(&mut self, cx: &Context) -> bool {
        self.watched.arm();
        let (collection, name) = (self.watched.collection(), self.watched.name());
        let head = present(cx, &cx.shared.store.entry(collection, name, cx.now));
        let same = head.filter(|head| head.version == self.newer_than && cx.now.unix_ms < self.until_ms);
        let on = same.filter(|_| cx.shared.check_serving().is_ok());
        if let Some(head) = on {
            self.watched.set_time(head.or_expiry_ms(self.until_ms));
        }
        on.is_some()
    }
}

/// What was found and must be sent after the lock is gone.
pub(super) enum Taken {
    Done,
    Large(Arc<Body>, u64, u64),
    Unsatisfiable(u64),
    ConditionFailed,
    NotModified(Version),
}

/// What an answer depends on besides the object.
#[derive(Clone, Copy)]
pub(crate) struct Form {
    pub(super) connection: Connection,
    pub(super) head_only: bool,
}

impl Form {
    pub(super) fn of(request: &Request<'_>) -> Self {
        Self { connection: request.connection, head_only: request.method == Method::Head }
    }
}

impl Session {
    pub(super) fn get(
        &mut self,
        cx: &mut Context,
        (request, sent): (&Request<'_>, &[u8]),
        collection: &str,
        name: &[u8],
        out: &mut Output<'_>,
    ) {
        let found = match cx.shared.collection(collection) {
            Ok(found) => found,
            Err(error) => return fail(cx, request, VerbName::Get, &error, None, out),
        };
        let (form, kept) = (Form::of(request), cx.durability(&found, name));
        let (conn, waits) = (out.conn(), request.read.wait().is_some());
        let answer = |object: &Found<'_>| {
            let plan = |version, size| request.read.plan(version, size);
            answer(cx, &form, kept, object, (plan, cx.now.unix_ms), out)
        };
        let taken = match waits {
            true => cx.get_to_wait(conn, &found, name, answer),
            false => cx.get(conn, &found, name, answer),
        };
        match taken {
            Got::Away { .. } => self.get_elsewhere(cx, request, sent, &found, name, out),
            Got::Miss => fail(cx, request, VerbName::Get, &not_found(collection, name), None, out),
            Got::Hit(Taken::NotModified(version)) => match request.read.wait() {
                Some(wait) if wait.newer_than >= version && wait.wait_ms > 0 => {
                    let until_ms = cx.now.unix_ms.saturating_add(wait.wait_ms.min(WAIT_MAX_MS));
                    if let Err(error) = self.wait(cx, &found, name, (wait.newer_than, until_ms), form, out) {
                        fail(cx, request, VerbName::Get, &error, None, out);
                    }
                }
                _ => not_modified(cx, &form, kept, version, out),
            },
            Got::Hit(taken) => finish(cx, request, taken, out),
        }
    }

    pub(super) fn wait(
        &mut self,
        cx: &mut Context,
        collection: &Collection,
        name: &[u8],
        (newer_than, until_ms): (Version, u64),
        form: Form,
        out: &mut Output<'_>,
    ) -> Result<(), Error> {
        cx.shared.check_serving()?;
        let seat = cx.shared.watch.admit(name)?;
        let entry = cx.shared.store.entry(collection, name, cx.now);
        let head = present(cx, &entry).filter(|head| head.version == newer_than);
        // Without a place for its reply it does not wait.
        if let Some(head) = head
            && let Some(ticket) = out.defer()
        {
            let watched = seat.watch(collection, name, cx.waiter(ticket), head.or_expiry_ms(until_ms));
            self.waits.insert(ticket.serial, Wait { watched, newer_than, until_ms, form });
            return Ok(());
        }
        drop(entry);
        self.end_wait(cx, None, (form, collection, name), (newer_than, until_ms), out);
        Ok(())
    }

    /// The object of a wait has come here: it goes on under the same ticket.
    pub(super) fn wait_here(
        &mut self,
        cx: &mut Context,
        ticket: Ticket,
        (form, collection, name): (Form, &Collection, &[u8]),
        (newer_than, until_ms): (Version, u64),
        out: &mut Output<'_>,
    ) {
        let seat = cx.shared.check_serving().and_then(|()| cx.shared.watch.admit(name));
        let seat = match seat {
            Ok(seat) => seat,
            Err(error) => return fail_as(cx, form, VerbName::Get, &error, None, out),
        };
        let entry = cx.shared.store.entry(collection, name, cx.now);
        if let Some(head) = present(cx, &entry).filter(|head| head.version == newer_than) {
            let watched = seat.watch(collection, name, cx.waiter(ticket), head.or_expiry_ms(until_ms));
            self.waits.insert(ticket.serial, Wait { watched, newer_than, until_ms, form });
            return;
        }
        drop(entry);
        self.end_wait(cx, Some(ticket), (form, collection, name), (newer_than, until_ms), out);
    }

    /// A wait may be over, or a listing has its turn. False: there is neither any more.
    pub(crate) fn resume(&mut self, cx: &mut Context, ticket: Ticket, out: &mut Output<'_>) -> bool {
        if self.conn.is_some()
            && let Some(is_there) = self.landed(cx, ticket, out)
        {
            return is_there;
        }
        if let Some(listing) = self.listings.remove(&ticket.serial) {
            self.list_turn(cx, listing, Some(ticket), out);
            return true;
        }
        let Some(wait) = self.waits.get_mut(&ticket.serial) else {
            return false;
        };
        if wait.goes_on(cx) {
            return true;
        }
        let Wait { watched, newer_than, until_ms, form } = self.waits.remove(&ticket.serial).expect("found above");
        match cx.shared.check_serving() {
            Err(error) if cx.now.unix_ms < until_ms => fail_as(cx, form, VerbName::Get, &error, None, out),
            _ => {
                let of = (form, watched.collection(), watched.name());
                self.end_wait(cx, Some(ticket), of, (newer_than, until_ms), out);
            }
        }
        true
    }
}

/// What is known of an object that is there, and that no other node decides on; without a lease it is not answered.
fn present(cx: &Context, entry: &Entry<'_>) -> Option<Head> {
    entry.found().filter(|_| cx.shared.gates.may_wait(entry)).map(|found| found.head)
}

impl Session {
    /// Answers a GET whose wait is over with what is there; where that is another node by now, the wait goes on there.
    pub(super) fn end_wait(
        &mut self,
        cx: &mut Context,
        ticket: Option<Ticket>,
        (form, collection, name): (Form, &Collection, &[u8]),
        (newer_than, until_ms): (Version, u64),
        out: &mut Output<'_>,
    ) {
        let (plan, now_ms, conn) = (plan_of_wait(newer_than), cx.now.unix_ms, out.conn());
        let kept = cx.durability(collection, name);
        let answer = |object: &Found<'_>| answer(cx, &form, kept, object, (plan, now_ms), out);
        let taken = cx.get_to_wait(conn, collection, name, answer);
        match taken {
            Got::Hit(Taken::Large(body, from, to)) => out.bulk(body, from, to),
            Got::Hit(Taken::NotModified(version)) => not_modified(cx, &form, kept, version, out),
            Got::Hit(_) => {}
            Got::Away { .. } => {
                let wait = (newer_than, until_ms.saturating_sub(now_ms));
                self.wait_elsewhere(cx, ticket, (form, collection, name), wait, out);
            }
            Got::Miss => fail_as(cx, form, VerbName::Get, &not_found(collection.name(), name), None, out),
        }
    }
}

/// What is answered when a wait is over.
pub(super) fn plan_of_wait(newer_than: Version) -> impl Fn(Version, u64) -> Plan {
    move |version, _| if version > newer_than { Plan::Whole } else { Plan::NotModified }
}

/// Writes the head, and a small value, under the object's lock; takes hold of a large one. Times are by the clock of
/// the node that has it.
pub(super) fn answer(
    cx: &Context,
    form: &Form,
    kept: Durability,
    found: &Found<'_>,
    (plan, now_ms): (impl FnOnce(Version, u64) -> Plan, u64),
    out: &mut Output<'_>,
) -> Taken {
    let head = &found.head;
    let (status, content, from, to) = match plan(head.version, head.size_bytes) {
        Plan::Whole => (Status::Ok, Content::Whole { length_bytes: head.size_bytes }, 0, head.size_bytes),
        Plan::Part { offset_bytes, length_bytes } => {
            let part = Content::Part { offset_bytes, length_bytes, size_bytes: head.size_bytes };
            (Status::Partial, part, offset_bytes, offset_bytes + length_bytes)
        }
        Plan::NotModified => return Taken::NotModified(head.version),
        Plan::ConditionFailed => return Taken::ConditionFailed,
        Plan::Unsatisfiable => return Taken::Unsatisfiable(head.size_bytes),
    };
    let attributes = (!found.attributes.is_empty()).then(|| Attributes::decode(found.attributes).unwrap_or_default());
    let attributes = attributes.as_ref();
    let ttl_ms = (head.expires_ms != 0).then(|| head.expires_ms.saturating_sub(now_ms));
    let object = ObjectHead { version: head.version, class: kept.class, copies: kept.copies, attributes, ttl_ms };
    let response = Response {
        connection: form.connection,
        date: Some(&date(cx)),
        content,
        object: Some(object),
        ..Response::of(status)
    };
    response.encode(out.buf);
    if form.head_only {
        return Taken::Done;
    }
    cx.count_out(VerbName::Get, to - from);
    match found.value {
        Value::Inline(bytes, _) => out.buf.extend_from_slice(&bytes[from as usize..to as usize]),
        Value::Body(body) => return Taken::Large(body.clone(), from, to),
    }
    Taken::Done
}

pub(super) fn finish(cx: &Context, request: &Request<'_>, taken: Taken, out: &mut Output<'_>) {
    match taken {
        Taken::Done | Taken::NotModified(_) => {}
        Taken::Large(body, from, to) => out.bulk(body, from, to),
        Taken::Unsatisfiable(size) => {
            let error = Error::new(ErrorKind::BadRange, format!("the range starts past the end of {size} bytes"));
            fail(cx, request, VerbName::Get, &error, Some(size), out);
        }
        Taken::ConditionFailed => {
            let error = Error::new(ErrorKind::ConditionFailed, "If-Match names another version");
            fail(cx, request, VerbName::Get, &error, None, out);
        }
    }
}

/// The head of an object of which there is but the version to tell.
pub(super) fn head_of(version: Version, kept: Durability) -> ObjectHead<'static> {
    ObjectHead { version, class: kept.class, copies: kept.copies, attributes: None, ttl_ms: None }
}

pub(super) fn not_modified(cx: &Context, form: &Form, kept: Durability, version: Version, out: &mut Output<'_>) {
    let object = head_of(version, kept);
    let response = Response {
        connection: form.connection,
        date: Some(&date(cx)),
        content: Content::Absent,
        object: Some(object),
        ..Response::of(Status::NotModified)
    };
    response.encode(out.buf);
}
