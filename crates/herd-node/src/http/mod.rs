//! The HTTP door: objects under `/o/COLLECTION/NAME`, pages of names, metrics and status (PROTOCOL.md §2, RFC 9110,
//! 9112).
//!
//! A session is between requests, inside a body, or dropping one. A refused body that is not small is not read: the
//! answer is sent and the connection closed. Replies keep the order of their requests; a GET that
//! waits for a newer version leaves a gap.

mod get;
mod later;
mod list;
mod passing;
mod put;

use crate::context::{Context, Output};
use crate::metrics::{DoorName, VerbName};
use get::{Form, Wait};
use herd_core::door::http::{
    self as proto, About, Connection, Content, HttpDate, Method, Refusal, Request, Response, Status, Target,
};
use herd_core::limits::OUTPUT_HIGH_BYTES;
use herd_core::{Error, ErrorKind};
use herd_net::{Next, Step};
pub(crate) use later::Later;
use list::{Listing, Wanted};
use passing::Passing;
use put::Incoming;
use std::collections::BTreeMap;
use std::io::IoSliceMut;
use std::net::IpAddr;

/// State of a connection.
#[derive(Default)]
pub(crate) struct Session {
    state: State,
    /// By the serial of their tickets.
    waits: BTreeMap<u32, Wait>,
    listings: BTreeMap<u32, Listing>,
    /// Values of other nodes that are sent while they come, in the order of their replies.
    passing: Vec<Passing>,
    /// One of them came to no end, so that nothing behind it can be told from it.
    is_broken: bool,
    /// A whole head was read.
    known: bool,
    /// The number of its connection, once it has handed something on.
    conn: Option<u64>,
    /// Whether the condition of the PUT holds that was put off until another node had told it, and is served next.
    verdict: Option<Result<(), Error>>,
}

#[derive(Default)]
enum State {
    /// Between requests.
    #[default]
    Heads,
    /// Inside the body of a PUT.
    Body(Box<Incoming>),
    /// Dropping so many bytes of the body of a PUT that was refused.
    Drop(u64),
    /// The body of a PUT came to no end: what follows can't be told from it.
    Over,
}

impl Session {
    /// Whether it has shown to speak HTTP.
    pub(crate) fn is_known(&self) -> bool {
        self.known
    }

    /// The number of its connection, if it has handed anything on.
    pub(crate) fn flying(&self) -> Option<u64> {
        self.conn
    }

    /// Whether nothing is under way.
    pub(crate) fn is_idle(&self) -> bool {
        matches!(self.state, State::Heads)
    }

    /// Serves what is there of `input`.
    pub(crate) fn serve(&mut self, cx: &mut Context, input: &[u8], out: &mut Output<'_>) -> Step {
        let mut used = 0;
        loop {
            let step = match &self.state {
                State::Heads => self.head(cx, &input[used..], out),
                State::Body(_) => self.body(cx, &input[used..], out),
                State::Drop(left) => self.drop_body(*left, input.len() - used),
                State::Over => return Step { used: input.len(), next: Next::Close },
            };
            used += step.used;
            if step.used == 0 || step.next != Next::Read {
                return Step { used, next: step.next };
            }
            if out.pending_bytes() > OUTPUT_HIGH_BYTES || out.has_bulk() || cx.take_dear() {
                return Step { used, next: Next::Again };
            }
        }
    }

    fn head(&mut self, cx: &mut Context, input: &[u8], out: &mut Output<'_>) -> Step {
        match proto::parse_head(input) {
            Ok(None) => Step { used: 0, next: Next::Read },
            Ok(Some((request, used))) => {
                self.known = true;
                match self.request(cx, &request, &input[..used], out) {
                    Next::Again => Step { used: 0, next: Next::Again },
                    next => Step { used, next },
                }
            }
            // A first line that is no HTTP, of a head that is not whole: something else is talking, or an attack.
            Err(refusal) if !self.known && refusal.status == Status::BadRequest && !is_whole(input) => {
                Step { used: input.len(), next: Next::Close }
            }
            Err(refusal) => refuse(cx, &refusal, input.len(), out),
        }
    }

    fn request(&mut self, cx: &mut Context, request: &Request<'_>, sent: &[u8], out: &mut Output<'_>) -> Next {
        if cx.shared.is_private && request.host.is_some_and(|host| !is_local(host, &cx.shared.config.name)) {
            return foreign(cx, request, out);
        }
        let next = if request.connection == Connection::Close { Next::Close } else { Next::Read };
        match &request.target {
            Target::Object { collection, name } => {
                let done = self.object(cx, (request, sent), collection, name, out);
                return done.unwrap_or(next);
            }
            Target::List { collection, prefix, after, limit } => {
                cx.count(VerbName::List);
                let wanted = Wanted { collection, prefix, after, limit: *limit };
                if let Err(error) = self.list(cx, Form::of(request), &wanted, out) {
                    fail(cx, request, VerbName::List, &error, None, out);
                }
            }
            Target::Metrics => {
                cx.count(VerbName::Admin);
                cx.was_dear();
                let text = cx.shared.metrics_text(cx.now).into_bytes();
                answer_text(cx, Form::of(request), &text, "text/plain; version=0.0.4", out);
            }
            Target::Status => {
                cx.count(VerbName::Admin);
                cx.was_dear();
                let text = cx.shared.status_json(cx.now).into_bytes();
                answer_text(cx, Form::of(request), &text, "application/json", out);
            }
            Target::Root => {
                cx.count(VerbName::Admin);
                let text = format!(
                    "{}: /o/COLLECTION/NAME, /o/COLLECTION?prefix=, /status, /metrics, /healthz\n",
                    cx.shared.config.build
                );
                answer_text(cx, Form::of(request), text.as_bytes(), "text/plain", out);
            }
            Target::Health => {
                cx.count(VerbName::Admin);
                health(cx, request, out);
            }
            Target::NotFound => {
                cx.count(VerbName::Admin);
                let error = Error::new(ErrorKind::NotFound, "no such page: objects are at /o/COLLECTION/NAME");
                fail(cx, request, VerbName::Admin, &error, None, out);
            }
        }
        next
    }

    /// A request on an object; `None`: go on as the request's connection says.
    fn object(
        &mut self,
        cx: &mut Context,
        (request, sent): (&Request<'_>, &[u8]),
        collection: &str,
        name: &[u8],
        out: &mut Output<'_>,
    ) -> Option<Next> {
        match request.method {
            Method::Get | Method::Head => {
                cx.count(VerbName::Get);
                self.get(cx, (request, sent), collection, name, out);
                None
            }
            Method::Delete => {
                cx.count(VerbName::Remove);
                if let Err(error) = self.remove(cx, request, collection, name, out) {
                    fail(cx, request, VerbName::Remove, &error, None, out);
                }
                None
            }
            Method::Put => Some(self.begin_put(cx, request, collection, name, out)),
        }
    }

    /// Where the next bytes of a body go.
    pub(crate) fn space<'a>(&'a mut self, cx: &mut Context, max: usize) -> Vec<IoSliceMut<'a>> {
        match &mut self.state {
            State::Body(incoming) => incoming.space(cx, max),
            State::Heads | State::Drop(_) | State::Over => Vec::new(),
        }
    }
}

/// Whether no page of another site can have this Host: it is an address, the node's own name, or a name without a dot,
/// which no public site has.
fn is_local(host: &[u8], name: &str) -> bool {
    let host = std::str::from_utf8(host).unwrap_or(".");
    let bare = match host.rsplit_once(':') {
        Some((bare, port)) if port.bytes().all(|b| b.is_ascii_digit()) && !bare.ends_with(':') => bare,
        _ => host,
    };
    let address = bare.strip_prefix('[').and_then(|bare| bare.strip_suffix(']')).unwrap_or(bare);
    !bare.contains('.') || address.parse::<IpAddr>().is_ok() || bare.eq_ignore_ascii_case(name)
}

/// A browser that was sent here by a page of another site under that site's name (DNS rebinding).
#[cold]
fn foreign(cx: &mut Context, request: &Request<'_>, out: &mut Output<'_>) -> Next {
    cx.count(VerbName::Admin);
    let text = "this node serves its own machine: name it by address or as localhost, not by another host's name";
    let form = Form { connection: Connection::Close, head_only: request.method == Method::Head };
    fail_as(cx, form, VerbName::Admin, &Error::new(ErrorKind::NotAllowed, text), None, out);
    Next::Close
}

/// Whether a head has come to its end.
fn is_whole(input: &[u8]) -> bool {
    input.windows(4).any(|end| end == b"\r\n\r\n") || input.windows(2).any(|end| end == b"\n\n")
}

/// The date of replies.
fn date(cx: &Context) -> HttpDate {
    HttpDate::from_unix_s((cx.now.unix_ms / 1000) as i64)
}

/// A request that is not understood or not allowed: answered, and the connection closed.
#[cold]
fn refuse(cx: &mut Context, refusal: &Refusal, used: usize, out: &mut Output<'_>) -> Step {
    cx.count(VerbName::Admin);
    cx.count_error(DoorName::Http, VerbName::Admin, ErrorKind::BadRequest);
    refusal.encode(out.buf, Some(&date(cx)));
    Step { used, next: Next::Close }
}

/// Answers with an error.
#[cold]
fn fail(
    cx: &Context,
    request: &Request<'_>,
    verb: VerbName,
    error: &Error,
    size_bytes: Option<u64>,
    out: &mut Output<'_>,
) {
    fail_as(cx, Form::of(request), verb, error, size_bytes, out);
}

/// As `fail`, where the request is gone.
#[cold]
fn fail_as(cx: &Context, form: Form, verb: VerbName, error: &Error, size_bytes: Option<u64>, out: &mut Output<'_>) {
    cx.count_error(DoorName::Http, verb, error.kind);
    let Form { connection, head_only } = form;
    proto::put_error(out.buf, error, &About { connection, head_only, date: Some(&date(cx)), size_bytes });
}

/// Answers whatever was asked with an error; the connection is closed then.
#[cold]
pub(crate) fn fail_all(cx: &Context, error: &Error, out: &mut Output<'_>) {
    fail_as(cx, Form { connection: Connection::Close, head_only: false }, VerbName::Put, error, None, out);
}

/// Answers with a text.
fn answer_text(cx: &Context, form: Form, text: &[u8], content_type: &str, out: &mut Output<'_>) {
    let response = Response {
        connection: form.connection,
        date: Some(&date(cx)),
        content: Content::Whole { length_bytes: text.len() as u64 },
        content_type: Some(content_type),
        ..Response::of(Status::Ok)
    };
    response.encode(out.buf);
    if !form.head_only {
        out.buf.extend_from_slice(text);
    }
}

fn health(cx: &Context, request: &Request<'_>, out: &mut Output<'_>) {
    if cx.shared.stopping.load(std::sync::atomic::Ordering::Relaxed) {
        let error = Error::new(ErrorKind::Busy, "the node is stopping");
        return fail(cx, request, VerbName::Admin, &error, None, out);
    }
    answer_text(cx, Form::of(request), b"ok\n", "text/plain", out);
}
