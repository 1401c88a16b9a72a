//! GET and HEAD of an object: conditions, one range, and waiting for a newer version (`Prefer: wait`, RFC 7240).

use super::{Session, date, fail};
use crate::context::Context;
use crate::metrics::DoorName;
use crate::metrics::{VerbName, add};
use crate::service::Output;
use herd_core::attributes::Attributes;
use herd_core::door::http::{Connection, Content, Method, ObjectHead, Plan, Request, Response, Status};
use herd_core::entry::Version;
use herd_core::{Error, ErrorKind, quote};
use herd_net::Ticket;
use herd_store::{Body, Collection, Found, Value};
use std::sync::Arc;

/// A GET that waits for a newer version than its client has.
pub(super) struct Wait {
    collection: Collection,
    name: Box<[u8]>,
    newer_than: Version,
    until_ms: u64,
    connection: Connection,
    head_only: bool,
}

/// What was found and must be sent after the lock is gone.
enum Taken {
    Done,
    Large(Arc<Body>, u64, u64),
    Unsatisfiable(u64),
    ConditionFailed,
    NotModified(Version),
}

/// What an answer depends on besides the object.
struct Form {
    connection: Connection,
    head_only: bool,
}

impl Session {
    pub(super) fn get(
        &mut self,
        cx: &mut Context,
        request: &Request<'_>,
        collection: &str,
        name: &[u8],
        out: &mut Output<'_>,
    ) {
        let found = match cx.shared.collection(collection) {
            Ok(found) => found,
            Err(error) => return fail(cx, request, VerbName::Get, &error, None, out),
        };
        let form = Form { connection: request.connection, head_only: request.method == Method::Head };
        let taken = cx.shared.store.get(&found, name, cx.now, |object| {
            answer(cx, &form, &found, object, |version, size| request.read.plan(version, size), out)
        });
        match taken {
            None => fail(cx, request, VerbName::Get, &not_found(collection, name), None, out),
            Some(Taken::NotModified(version)) => match request.read.wait() {
                Some(wait) if wait.newer_than >= version && wait.wait_ms > 0 => {
                    let until_ms = cx.now.unix_ms.saturating_add(wait.wait_ms);
                    let name = name.into();
                    let Form { connection, head_only } = form;
                    let newer_than = wait.newer_than;
                    let wait = Wait { collection: found, name, newer_than, until_ms, connection, head_only };
                    self.wait(cx, wait, out);
                }
                _ => not_modified(cx, &form, &found, version, out),
            },
            Some(taken) => finish(cx, request, taken, out),
        }
    }

    fn wait(&mut self, cx: &mut Context, wait: Wait, out: &mut Output<'_>) {
        let Some(ticket) = out.defer() else {
            let form = Form { connection: wait.connection, head_only: wait.head_only };
            return not_modified(cx, &form, &wait.collection, wait.newer_than, out);
        };
        cx.watch(&wait.collection, &wait.name, ticket, wait.until_ms);
        let version = cx.shared.store.entry(&wait.collection, &wait.name, cx.now).version();
        if version != Some(wait.newer_than) {
            cx.resume_soon(ticket);
        }
        self.waits.push((ticket, wait));
    }

    /// A wait may be over.
    pub(crate) fn resume(&mut self, cx: &mut Context, ticket: Ticket, out: &mut Output<'_>) {
        let Some(at) = self.waits.iter().position(|(waiting, _)| *waiting == ticket) else {
            return;
        };
        let (_, wait) = &self.waits[at];
        let version = cx.shared.store.entry(&wait.collection, &wait.name, cx.now).version();
        if version == Some(wait.newer_than) && cx.now.unix_ms < wait.until_ms {
            return;
        }
        let (_, wait) = self.waits.swap_remove(at);
        cx.unwatch(&wait.collection, &wait.name, ticket);
        let form = Form { connection: wait.connection, head_only: wait.head_only };
        let plan = |version, _| if version > wait.newer_than { Plan::Whole } else { Plan::NotModified };
        let taken = cx
            .shared
            .store
            .get(&wait.collection, &wait.name, cx.now, |object| answer(cx, &form, &wait.collection, object, plan, out));
        match taken {
            Some(Taken::Large(body, from, to)) => out.bulk(body, from, to),
            Some(Taken::NotModified(version)) => not_modified(cx, &form, &wait.collection, version, out),
            Some(_) => {}
            None => {
                let error = not_found(wait.collection.name(), &wait.name);
                let about = herd_core::door::http::About {
                    connection: form.connection,
                    head_only: form.head_only,
                    date: Some(&date(cx)),
                    size_bytes: None,
                };
                herd_core::door::http::put_error(out.buf, &error, &about);
            }
        }
    }

    /// The connection is closed: nobody waits any more.
    pub(crate) fn close(self, cx: &mut Context) {
        for (ticket, wait) in self.waits {
            cx.unwatch(&wait.collection, &wait.name, ticket);
        }
    }
}

/// Writes the head, and a small value, under the object's lock; takes hold of a large one.
fn answer(
    cx: &Context,
    form: &Form,
    collection: &Collection,
    found: &Found<'_>,
    plan: impl FnOnce(Version, u64) -> Plan,
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
    let object =
        ObjectHead { version: head.version, class: collection.class(), copies: 1, attributes: attributes.as_ref() };
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
    add(&cx.metrics().of(DoorName::Http, VerbName::Get).out_bytes, to - from);
    match found.value {
        Value::Inline(bytes, _) => out.buf.extend_from_slice(&bytes[from as usize..to as usize]),
        Value::Body(body) => return Taken::Large(body.clone(), from, to),
    }
    Taken::Done
}

fn finish(cx: &Context, request: &Request<'_>, taken: Taken, out: &mut Output<'_>) {
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

fn not_modified(cx: &Context, form: &Form, collection: &Collection, version: Version, out: &mut Output<'_>) {
    let object = ObjectHead { version, class: collection.class(), copies: 1, attributes: None };
    let response = Response {
        connection: form.connection,
        date: Some(&date(cx)),
        content: Content::Absent,
        object: Some(object),
        ..Response::of(Status::NotModified)
    };
    response.encode(out.buf);
}

pub(super) fn not_found(collection: &str, name: &[u8]) -> Error {
    let text = format!("no object '{}' in collection '{}'", quote(name), quote(collection.as_bytes()));
    Error::new(ErrorKind::NotFound, text)
}
