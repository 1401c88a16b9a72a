//! PUT and DELETE of an object. Bodies go straight into the store, of known length or chunked.

use super::get::head_of;
use super::{Later, Session, State, date};
use crate::apply::{Elsewhere, apply};
use crate::context::{Context, Durability, Output, not_found};
use crate::flight::{Handing, How, Intake, Landed, Later as Kept, Sink};
use crate::metrics::{DoorName, VerbName};
use herd_core::door::http::{
    About, Body, CONTINUE, ChunkedDecoder, Connection, Content, Fed, ObjectHead, Refusal, Request, Response, Status,
    put_error,
};
use herd_core::entry::{Condition, Version};
use herd_core::limits::{FLIGHT_MS, HTTP_DROPPED_MAX_BYTES};
use herd_core::op::{Action, Op, Put};
use herd_core::{Error, ErrorKind};
use herd_net::{Next, Step, Ticket};
use herd_store::{Collection, Given};
use std::io::IoSliceMut;

/// A PUT whose body is arriving.
pub(super) struct Incoming {
    collection: Collection,
    name: Box<[u8]>,
    condition: Condition,
    ttl_ms: Option<u64>,
    attributes: Vec<u8>,
    connection: Connection,
    sink: Sink,
    framing: Framing,
    /// Set when there was no room midway.
    failed: Option<Error>,
}

/// Where the body of a PUT came to.
enum Stored {
    /// Here: the version, and whether the object is new.
    Here(Version, bool),
    /// Another node decides on the object.
    Elsewhere(Handing),
    /// The same, and it goes there while it comes.
    OnItsWay,
}

enum Framing {
    /// Bytes still to come.
    Length(u64),
    Chunked(ChunkedDecoder),
}

impl Framing {
    fn of(request: &Request<'_>) -> Self {
        match request.body {
            Body::None => Framing::Length(0),
            Body::Length(n) => Framing::Length(n),
            Body::Chunked => Framing::Chunked(ChunkedDecoder::default()),
        }
    }

    /// Bytes still to come, where that is known.
    fn left(&self) -> Option<u64> {
        match self {
            Framing::Length(left) => Some(*left),
            Framing::Chunked(_) => None,
        }
    }
}

impl Incoming {
    fn begin(
        cx: &mut Context,
        request: &Request<'_>,
        collection: &str,
        name: &[u8],
        out: &mut Output<'_>,
    ) -> Result<Self, Error> {
        let collection = cx.shared.collection(collection)?;
        let framing = Framing::of(request);
        let expected = framing.left();
        let write = &request.write;
        let attributes = write.attributes().encode()?;
        let sink = match cx.goes_on(&collection, name, expected) {
            true => Sink::There(take_in(cx, request, (&collection, name), &attributes, expected, out)?),
            false => Sink::Here(cx.admit(&collection, name, expected)?),
        };
        if request.expect_continue && sink.ticket().is_none() {
            out.buf.extend_from_slice(CONTINUE);
        }
        Ok(Self {
            sink,
            collection,
            name: name.into(),
            condition: write.condition,
            ttl_ms: write.ttl_ms,
            attributes,
            connection: request.connection,
            framing,
            failed: None,
        })
    }

    /// Bytes that are certain to be body.
    fn pending(&self) -> u64 {
        match &self.framing {
            Framing::Length(left) => *left,
            Framing::Chunked(decoder) => decoder.pending_bytes(),
        }
    }

    pub(super) fn space<'a>(&'a mut self, cx: &mut Context, max: usize) -> Vec<IoSliceMut<'a>> {
        match self.sink.space(cx, max) {
            Ok(space) => space,
            Err(error) => {
                self.failed = Some(error);
                Vec::new()
            }
        }
    }

    fn received(&mut self, n: usize) {
        match &mut self.framing {
            Framing::Length(left) => *left -= n as u64,
            Framing::Chunked(decoder) => decoder.received(n as u64),
        }
    }

    /// Takes body bytes out of `input`: how many bytes were used, and whether the body is whole.
    fn feed(&mut self, cx: &mut Context, input: &[u8]) -> Result<(usize, bool), Broken> {
        if let Some(error) = self.failed.take() {
            return Err(error.into());
        }
        let decoder = match &mut self.framing {
            Framing::Length(left) => {
                let n = (input.len() as u64).min(*left) as usize;
                self.sink.write(cx, &input[..n], &[])?;
                *left -= n as u64;
                return Ok((n, *left == 0));
            }
            Framing::Chunked(decoder) => decoder,
        };
        let mut used = 0;
        loop {
            match decoder.feed(&input[used..])? {
                Fed::Data { skip, length } => {
                    cx.shared.store.check_size(decoder.announced_bytes())?;
                    used += skip;
                    self.sink.write(cx, &input[used..used + length], &[])?;
                    used += length;
                }
                Fed::More => return Ok((input.len(), false)),
                Fed::End { used: last } => return Ok((used + last, true)),
            }
        }
    }

    /// Stores the whole body, unless another node decides on the object: its version, and whether the object is new; or
    /// what is handed on.
    fn finish(self, cx: &mut Context) -> Result<Stored, Error> {
        let upload = match self.sink {
            Sink::Here(upload) => upload,
            Sink::There(intake) => {
                cx.count_in(VerbName::Put, intake.len());
                intake.end(cx, &[]);
                return Ok(Stored::OnItsWay);
            }
        };
        let body = upload.finish(cx.now)?;
        cx.count_in(VerbName::Put, body.len());
        let mut bytes = Vec::new();
        let put = Put {
            expires_ms: self.ttl_ms.map(|ttl| cx.now.unix_ms.saturating_add(ttl).max(1)),
            attributes: Some(&self.attributes),
            ..Put::of(crate::bulk::given(body, &mut bytes))
        };
        let op = Op { condition: self.condition, ..Op::new(Action::Put(put), cx.shared.config.object_max_bytes) };
        let done = apply(cx, &self.collection, &self.name, &op, |outcome| {
            let created = outcome.before.is_none();
            outcome.done.map(|(version, _)| (version, created))
        });
        match done {
            Ok(done) => done.map(|(version, created)| Stored::Here(version, created)),
            Err(Elsewhere) => {
                cx.check_reachable(&self.collection, &self.name)?;
                let handing = Handing::of_op(cx, &self.collection, &self.name, &op, How::default())?;
                Ok(Stored::Elsewhere(handing))
            }
        }
    }
}

/// Whether so much of a body is dropped where its PUT is refused; otherwise the connection is closed.
fn is_small(left: u64) -> bool {
    left <= HTTP_DROPPED_MAX_BYTES as u64
}

/// Bytes of the body of a PUT that are dropped if it is refused; `None`: the connection is closed.
fn dropped_bytes(request: &Request<'_>) -> Option<u64> {
    // A client that waits for 100 may send the body all the same, or not.
    Framing::of(request).left().filter(|left| is_small(*left) && !request.expect_continue)
}

/// Why a body is given up.
enum Broken {
    Error(Error),
    Refusal(Refusal),
}

impl From<Error> for Broken {
    fn from(error: Error) -> Self {
        Broken::Error(error)
    }
}

impl From<Refusal> for Broken {
    fn from(refusal: Refusal) -> Self {
        Broken::Refusal(refusal)
    }
}

impl Session {
    pub(super) fn begin_put(
        &mut self,
        cx: &mut Context,
        request: &Request<'_>,
        collection: &str,
        name: &[u8],
        out: &mut Output<'_>,
    ) -> Next {
        let begun = match self.judge(cx, request, collection, name, out) {
            Ok(true) => Incoming::begin(cx, request, collection, name, out),
            // Its head is served again.
            Ok(false) => return Next::Again,
            Err(error) => Err(error),
        };
        match begun {
            Ok(incoming) => {
                self.conn = incoming.sink.ticket().map(|ticket| ticket.conn).or(self.conn);
                let empty = matches!(incoming.framing, Framing::Length(0));
                if empty {
                    return self.end_put(cx, incoming, out);
                }
                self.state = State::Body(Box::new(incoming));
                Next::Read
            }
            Err(error) => self.refuse(cx, &error, (request.connection, dropped_bytes(request)), out),
        }
    }

    /// Looks at the condition before the body is read; it is looked at again when the body is stored. False: another
    /// node is asked for the version, and the connection is put off until it has told it.
    fn judge(
        &mut self,
        cx: &mut Context,
        request: &Request<'_>,
        collection: &str,
        name: &[u8],
        out: &mut Output<'_>,
    ) -> Result<bool, Error> {
        if let Some(verdict) = self.verdict.take() {
            return verdict.map(|()| true);
        }
        cx.count(VerbName::Put);
        let condition = request.write.condition;
        if condition == Condition::None {
            return Ok(true);
        }
        let collection = cx.shared.collection(collection)?;
        let entry = cx.shared.store.entry(&collection, name, cx.now);
        if cx.shared.gates.decides(&entry) {
            return condition.check(entry.version()).map(|()| true);
        }
        drop(entry);
        // A refusal that only drops the body may as well come behind it.
        if dropped_bytes(request).is_some() {
            return Ok(true);
        }
        cx.check_reachable(&collection, name)?;
        let how = How { with_value: false, uncounted: true };
        let handing = Handing::of_op(cx, &collection, name, &Op::new(Action::Read, 0), how)?;
        self.hand_on(cx, Later::Judge(condition), handing, FLIGHT_MS, out)?;
        Ok(false)
    }

    /// What another node has told of the object of a PUT: whether its condition holds.
    pub(super) fn judged(&mut self, condition: Condition, landed: &Landed, out: &mut Output<'_>) {
        self.verdict = Some(match &landed.done {
            Err(error) if error.kind != ErrorKind::NotFound => Err(error.clone()),
            _ => condition.check(landed.found().map(|found| found.head.version)),
        });
        out.pass();
    }

    /// Answers with an error. Where the `left` bytes of the body are known and few, they are dropped and the connection
    /// stays, if it was to; else it closes.
    fn refuse(
        &mut self,
        cx: &Context,
        error: &Error,
        (connection, left): (Connection, Option<u64>),
        out: &mut Output<'_>,
    ) -> Next {
        let connection = if left.is_some_and(is_small) { connection } else { Connection::Close };
        cx.count_error(DoorName::Http, VerbName::Put, error.kind);
        put_error(out.buf, error, &About { connection, date: Some(&date(cx)), ..About::default() });
        if connection == Connection::Close {
            self.state = State::Heads;
            return Next::Close;
        }
        self.state = left.filter(|left| *left > 0).map_or(State::Heads, State::Drop);
        Next::Read
    }

    /// The reply whose value is coming, and goes to another node.
    pub(crate) fn taking_in(&self) -> Option<Ticket> {
        if let State::Body(incoming) = &self.state { incoming.sink.ticket() } else { None }
    }

    /// A reply has its answer; if its value is still coming, the connection is closed behind it: true.
    pub(super) fn answered(&mut self, ticket: Ticket) -> bool {
        let is_early = self.taking_in() == Some(ticket);
        if is_early {
            self.state = State::Over;
        }
        is_early
    }

    /// Drops what has come of a body of which `left` bytes are still to be dropped.
    pub(super) fn drop_body(&mut self, left: u64, input_bytes: usize) -> Step {
        let n = left.min(input_bytes as u64);
        self.state = if n == left { State::Heads } else { State::Drop(left - n) };
        Step { used: n as usize, next: Next::Read }
    }

    /// More bytes of a body, or of its framing.
    pub(super) fn body(&mut self, cx: &mut Context, input: &[u8], out: &mut Output<'_>) -> Step {
        let State::Body(incoming) = &mut self.state else {
            unreachable!("called inside a body");
        };
        match incoming.feed(cx, input) {
            Ok((used, false)) => match incoming.pending() {
                0 => Step { used, next: Next::Read },
                left => Step { used, next: Next::Bulk(left) },
            },
            Ok((used, true)) => {
                let State::Body(incoming) = std::mem::take(&mut self.state) else {
                    unreachable!("called inside a body");
                };
                let next = self.end_put(cx, *incoming, out);
                Step { used, next }
            }
            Err(broken) if incoming.sink.ticket().is_some() => {
                let ticket = incoming.sink.ticket();
                let error = match broken {
                    Broken::Error(error) => error,
                    Broken::Refusal(refusal) => Error::new(ErrorKind::BadRequest, refusal.text),
                };
                // Its reply closes the connection.
                ticket.into_iter().for_each(|ticket| cx.fail_intake(ticket, error.clone()));
                Step { used: input.len(), next: Next::Read }
            }
            Err(Broken::Error(error)) => {
                let (connection, left) = (incoming.connection, incoming.framing.left());
                match self.refuse(cx, &error, (connection, left), out) {
                    Next::Read => self.drop_body(left.unwrap_or(0), input.len()),
                    next => Step { used: input.len(), next },
                }
            }
            Err(Broken::Refusal(refusal)) => {
                cx.count_error(DoorName::Http, VerbName::Put, ErrorKind::BadRequest);
                refusal.encode(out.buf, Some(&date(cx)));
                self.state = State::Heads;
                Step { used: input.len(), next: Next::Close }
            }
        }
    }

    /// Bytes of a body were received into its space.
    pub(crate) fn filled(&mut self, cx: &mut Context, n: usize, out: &mut Output<'_>) -> Step {
        let State::Body(incoming) = &mut self.state else {
            unreachable!("space was given for a body");
        };
        if let Err(error) = incoming.sink.advance(cx, n, &[]) {
            incoming.failed.get_or_insert(error);
            // What is left comes by the way that looks at that.
            incoming.received(n);
            return self.body(cx, &[], out);
        }
        incoming.received(n);
        let left = incoming.pending();
        let whole = left == 0 && matches!(incoming.framing, Framing::Length(_));
        if !whole {
            return Step { used: 0, next: if left > 0 { Next::Bulk(left) } else { Next::Read } };
        }
        let State::Body(incoming) = std::mem::take(&mut self.state) else {
            unreachable!("called inside a body");
        };
        Step { used: 0, next: self.end_put(cx, *incoming, out) }
    }

    fn end_put(&mut self, cx: &mut Context, incoming: Incoming, out: &mut Output<'_>) -> Next {
        let (connection, kept) = (incoming.connection, cx.durability(&incoming.collection, &incoming.name));
        let done = match incoming.finish(cx) {
            Ok(Stored::Here(version, created)) => Ok((kept, (version, created))),
            Ok(Stored::OnItsWay) => return if connection == Connection::Close { Next::Close } else { Next::Read },
            Ok(Stored::Elsewhere(handing)) => {
                let later = Later::Put { connection, kept };
                match self.hand_on(cx, later, handing, FLIGHT_MS, out) {
                    Ok(()) => return if connection == Connection::Close { Next::Close } else { Next::Read },
                    Err(error) => Err(error),
                }
            }
            Err(error) => Err(error),
        };
        answer_put(cx, connection, done, out);
        if connection == Connection::Close { Next::Close } else { Next::Read }
    }

    pub(super) fn remove(
        &mut self,
        cx: &mut Context,
        request: &Request<'_>,
        collection: &str,
        name: &[u8],
        out: &mut Output<'_>,
    ) -> Result<(), Error> {
        let found = cx.shared.collection(collection)?;
        let op = Op { condition: request.write.condition, ..Op::new(Action::Remove, 0) };
        match apply(cx, &found, name, &op, |outcome| outcome.done.map(|(version, _)| version)) {
            Ok(done) => answer_removed(cx, request.connection, &found, name, done, out),
            Err(Elsewhere) => {
                cx.check_reachable(&found, name)?;
                let handing = Handing::of_op(cx, &found, name, &op, How::default())?;
                let later = Later::Remove { connection: request.connection, collection: found, name: name.into() };
                self.hand_on(cx, later, handing, FLIGHT_MS, out)
            }
        }
    }
}

/// Hands a PUT on whose body is still to come.
fn take_in(
    cx: &mut Context,
    request: &Request<'_>,
    (collection, name): (&Collection, &[u8]),
    attributes: &[u8],
    expected: Option<u64>,
    out: &mut Output<'_>,
) -> Result<Intake, Error> {
    let write = &request.write;
    let put = Put {
        expires_ms: write.ttl_ms.map(|ttl| cx.now.unix_ms.saturating_add(ttl).max(1)),
        attributes: Some(attributes),
        ..Put::of(Given::Small(b"", None))
    };
    let op = Op { condition: write.condition, ..Op::new(Action::Put(put), cx.shared.config.object_max_bytes) };
    let handing = Handing::of_op(cx, collection, name, &op, How::default())?;
    if request.expect_continue {
        out.buf.extend_from_slice(CONTINUE);
    }
    let later = Later::Put { connection: request.connection, kept: cx.durability(collection, name) };
    cx.take_in(out, true, Kept::Http(Box::new(later)), handing, expected)
}

/// The answer to a PUT: the version, and whether the object is new.
pub(super) fn answer_put(
    cx: &Context,
    connection: Connection,
    done: Result<(Durability, (Version, bool)), Error>,
    out: &mut Output<'_>,
) {
    match done {
        Ok((kept, (version, created))) => {
            let object = head_of(version, kept);
            let (status, content) = match created {
                true => (Status::Created, Content::Whole { length_bytes: 0 }),
                false => (Status::NoContent, Content::Absent),
            };
            answer(cx, connection, status, content, Some(object), out);
        }
        Err(error) => {
            cx.count_error(DoorName::Http, VerbName::Put, error.kind);
            let about = About { connection, date: Some(&date(cx)), ..About::default() };
            put_error(out.buf, &error, &about);
        }
    }
}

/// The answer to a DELETE, unless it is an error.
pub(super) fn answer_removed(
    cx: &Context,
    connection: Connection,
    collection: &Collection,
    name: &[u8],
    done: Result<Version, Error>,
    out: &mut Output<'_>,
) -> Result<(), Error> {
    let version = done.map_err(|error| match error.kind {
        ErrorKind::NotFound => not_found(collection.name(), name),
        _ => error,
    })?;
    let object = head_of(version, cx.durability(collection, name));
    answer(cx, connection, Status::NoContent, Content::Absent, Some(object), out);
    Ok(())
}

fn answer(
    cx: &Context,
    connection: Connection,
    status: Status,
    content: Content,
    object: Option<ObjectHead<'_>>,
    out: &mut Output<'_>,
) {
    Response { connection, date: Some(&date(cx)), content, object, ..Response::of(status) }.encode(out.buf);
}
