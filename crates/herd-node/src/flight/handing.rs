//! An operation in the form in which it is handed on: the frame that it would be from a client, and its value.

use super::intake::Stream;
use super::landed::Landed;
use crate::apply::{Elsewhere, apply};
use crate::context::Context;
use crate::group::{self, Operation, Origin, Sent, Told};
use crate::request::{Request, Value, asked_of, asks};
use crate::wire::with_object;
use herd_core::entry;
use herd_core::key::CollectionId;
use herd_core::method::{Method, memcached};
use herd_core::op::{Action, Op};
use herd_core::place::{GroupId, NodeId};
use herd_core::replica::GroupEpoch;
use herd_core::replica::window::RequestId;
use herd_core::wire::{
    Asked, Between, FLAG_BRIEF, FLAG_HEAD_ONLY, FLAG_MORE, FLAG_QUIET, FLAG_RANGE, Fields, Header, LENGTH_UNKNOWN, Own,
    Verb, WireError, block_checks, encode_frame_head, encode_op, value_of,
};
use herd_core::{Error, ErrorKind};
use herd_store::{Body, Collection, Given, Key, Store};
use std::sync::Arc;

/// How an operation is handed on.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct How {
    /// The object's value comes with the answer.
    pub(crate) with_value: bool,
    /// The read is not counted.
    pub(crate) uncounted: bool,
}

/// An operation to hand on.
pub(crate) struct Handing {
    pub(crate) collection: Collection,
    pub(crate) key: Key,
    request: Arc<Request>,
    /// Who asks, as it is asked now.
    asked: Asked,
    /// Its value, where that is still to come.
    stream: Option<Box<Stream>>,
    /// There was no room for its value: what it was to replace goes, and this is the answer.
    refusal: Option<Error>,
    /// Another node has handed it on.
    pub(super) is_handed: bool,
    /// It may change the object.
    pub(crate) changes: bool,
    /// The object's value comes with the answer, and not what a method answers.
    pub(super) with_value: bool,
    /// This node is asked, whatever it has.
    pub(super) to: Option<NodeId>,
}

impl Handing {
    /// Of an operation that a door has made. Errors: `BadRequest` where no frame can have it.
    pub(crate) fn of_op(
        cx: &mut Context,
        collection: &Collection,
        name: &[u8],
        op: &Op<'_, Arc<Body>>,
        how: How,
    ) -> Result<Self, Error> {
        let id = cx.flights.next_id();
        Self::of_request(&cx.shared.store, (collection, name), op, (how, (id, None), cx.now.unix_ms))
    }

    /// Of an operation that a door has made, as this request.
    pub(super) fn of_request(
        store: &Store,
        (collection, name): (&Collection, &[u8]),
        op: &Op<'_, Arc<Body>>,
        (how, (id, own), now_ms): (How, (RequestId, Option<Own>), u64),
    ) -> Result<Self, Error> {
        let asked = Asked { uncounted: how.uncounted, ..asks(own, id, op.max_bytes) };
        let mut scratch = Vec::with_capacity(96);
        let Some((mut header, fields)) = encode_op(op, name, &asked, now_ms, &mut scratch) else {
            return Err(Error::new(ErrorKind::BadRequest, "this is handed on as it came"));
        };
        header.flags |= if how.with_value { 0 } else { FLAG_HEAD_ONLY };
        let mut handing = Self::of(store, collection, header, fields, value_of(op).map(Value::of))?;
        handing.with_value = how.with_value;
        handing.changes = !op.action.only_reads() && !is_look(&op.action) || op.token.is_some();
        Ok(handing)
    }

    /// Of a request as a client of the wire has sent it. Errors: as of [`Handing::of_op`].
    pub(crate) fn of_frame(
        cx: &mut Context,
        collection: &Collection,
        header: &Header,
        fields: &Fields<'_>,
        value: Given<'_>,
        max_bytes: u64,
    ) -> Result<Self, Error> {
        let mut bytes = Vec::new();
        asks(Own::told(fields)?, cx.flights.next_id(), max_bytes).encode(&mut bytes);
        let fields = Fields { collection: None, between: Some(Between::Asked(&bytes)), ..*fields };
        let mut handing = Self::of(&cx.shared.store, collection, *header, fields, Some(Value::of(&value)))?;
        let changes = match header.verb() {
            Some(Verb::Get) => false,
            Some(Verb::Execute) => fields.method.is_none_or(|method| !herd_core::method::only_reads(method)),
            _ => true,
        };
        handing.with_value = header.verb() == Some(Verb::Get);
        handing.changes = changes || fields.token.is_some();
        Ok(handing)
    }

    /// Of a request as another node hands it on, for a part that decides it here. Errors: as of [`Handing::of_op`].
    pub(crate) fn of_asked(
        store: &Store,
        collection: &Collection,
        header: &Header,
        fields: &Fields<'_>,
        value: Given<'_>,
    ) -> Result<Self, Error> {
        let fields = Fields { collection: None, ..*fields };
        let kept = match &value {
            // Arguments of a method are wanted in one piece.
            Given::Large(body) if fields.method.is_some() => {
                let mut arguments = Vec::new();
                entry::Value::Body(&**body).copy(0, body.len(), &mut arguments);
                Value::Small(arguments.into(), None)
            }
            value => Value::of(value),
        };
        let mut handing = Self::of(store, collection, *header, fields, Some(kept))?;
        handing.with_value = handing.request.with_op(0, |op, _| with_object(header, op))?;
        handing.changes = header.verb() != Some(Verb::Get) || fields.token.is_some();
        handing.is_handed = true;
        Ok(handing)
    }

    /// Of what is about no object, for a certain node. Errors: as of [`Handing::of_op`].
    pub(crate) fn to_node(
        cx: &mut Context,
        collection: &Collection,
        node: NodeId,
        header: Header,
        fields: &Fields<'_>,
    ) -> Result<Self, Error> {
        Self::about_node(cx, collection, node, Header { collection: collection.id().0, ..header }, fields)
    }

    fn about_node(
        cx: &mut Context,
        collection: &Collection,
        node: NodeId,
        header: Header,
        fields: &Fields<'_>,
    ) -> Result<Self, Error> {
        let (asked, mut bytes) = (Asked::new(cx.flights.next_id(), 0), Vec::new());
        asked.encode(&mut bytes);
        let fields = Fields { between: Some(Between::Asked(&bytes)), ..*fields };
        let request = Request::new(header, &fields, Value::none())?;
        Ok(Self {
            collection: collection.clone(),
            key: cx.shared.store.key(collection, b""),
            request: Arc::new(request),
            asked,
            stream: None,
            refusal: None,
            is_handed: false,
            changes: false,
            with_value: false,
            to: Some(node),
        })
    }

    /// What one node has another do, or tell, for memcached's clients: a method of the system collection, and a word to
    /// it. Errors: as of [`Handing::of_op`].
    pub(crate) fn admin(cx: &mut Context, node: NodeId, method: &str, word: &[u8]) -> Result<Self, Error> {
        let default = cx.shared.default.clone();
        let fields = Fields { method: Some(method), ..Fields::named(word) };
        let header = Header { collection: CollectionId::SYSTEM.0, ..Header::request(Verb::Execute, 0) };
        let mut handing = Self::about_node(cx, &default, node, header, &fields)?;
        handing.changes = true;
        Ok(handing)
    }

    fn of(
        store: &Store,
        collection: &Collection,
        header: Header,
        fields: Fields<'_>,
        value: Option<Value>,
    ) -> Result<Self, Error> {
        let Some(name) = fields.name else {
            return Err(Error::new(ErrorKind::BadRequest, "the request names no object"));
        };
        let flags = header.flags & !(FLAG_QUIET | FLAG_BRIEF | FLAG_MORE);
        let header = Header { flags, collection: collection.id().0, hops: 0, brief: false, ..header };
        let request = Request::new(header, &fields, value.unwrap_or_else(Value::none))?;
        Ok(Self {
            collection: collection.clone(),
            key: store.key(collection, name),
            asked: request.asked()?,
            request: Arc::new(request),
            stream: None,
            refusal: None,
            is_handed: false,
            changes: true,
            with_value: false,
            to: None,
        })
    }

    pub(crate) fn name(&self) -> &[u8] {
        &self.key.name
    }

    /// Bytes that it takes in memory, a large value aside: that is the store's.
    pub(super) fn bytes(&self) -> u64 {
        (size_of::<Self>() + self.key.name.len()) as u64 + self.request.bytes()
    }

    /// Whether it may have been done before it is asked now.
    pub(super) fn is_retry(&self) -> bool {
        self.asked.may_be_done()
    }

    /// Why this node does not do it, where it decides alone.
    pub(super) fn why_not_alone(&self, cx: &Context) -> Option<Error> {
        if self.changes { cx.refusal_alone(&self.key, &self.asked) } else { None }
    }

    /// The epoch of the map by which another node has handed it on.
    pub(super) fn sent_epoch(&self) -> Option<u32> {
        self.is_handed.then_some(self.request.header.epoch)
    }

    /// Whether the node that handed it on is to ask anew where it can't be decided here: it changes something, and is
    /// never on its way from two nodes at once. A long value that node may not have any more.
    pub(super) fn goes_back(&self) -> bool {
        self.is_handed && self.changes && !self.is_long()
    }

    /// It may have been done from now on, by nobody before that epoch; if that was so already, it stays as it was.
    pub(super) fn may_be_done(&mut self, since: u32) {
        if self.asked.first_epoch == 0 {
            self.asked.first_epoch = since.max(1);
        }
        self.asked.is_again = self.asked.is_first;
    }

    /// As it is asked of a part of a replica group here. Error: its value is not here.
    pub(super) fn operation(&self, origin: Origin) -> Result<Operation, Error> {
        if self.stream.is_some() {
            return Err(Error::new(ErrorKind::Unreachable, "the value is still to come"));
        }
        let looks_new = self.changes && self.asked.first_epoch == 0;
        let sent_epoch = self.sent_epoch().filter(|_| looks_new || self.goes_back());
        let sent = sent_epoch.map(|epoch| Sent { epoch, goes_back: self.goes_back() });
        let operation = Operation::new(self.request.clone(), (self.asked, sent), origin);
        match &self.refusal {
            Some(error) => operation.instead(error.clone()).map_err(|refused| refused.1),
            None => Ok(operation),
        }
    }

    /// There was no room for the value of this put, whose client meant what was there to be gone.
    pub(crate) fn refused(self, error: Error) -> Self {
        Self { refusal: Some(error), ..self }
    }

    /// The answer to a put for whose value there was no room.
    pub(super) fn refusal(&self) -> Option<&Error> {
        self.refusal.as_ref()
    }

    /// Answers it from what is committed here of a replica group that this node decides for; `None`: it changes
    /// something, or this node does not decide. With the epoch since which it does.
    pub(super) fn read(&self, cx: &Context, group: GroupId) -> Option<(Told, GroupEpoch)> {
        let read = |op: &Op<'_, Arc<Body>>, asked: &Asked| {
            let is_counted = matches!(op.action, Action::Read) && !asked.uncounted;
            group::read(cx, group, (&self.collection, self.name()), op, is_counted)
        };
        // An `mg` seldom changes anything; where it does, that is decided in line with others.
        let may_read = |op: &Op<'_, Arc<Body>>| {
            let is_get = matches!(op.action, Action::Execute(Method::Memcached(memcached::Method::Get(_))));
            !self.changes || is_get && op.token.is_none()
        };
        let read = |op: &Op<'_, Arc<Body>>, asked: &Asked| if may_read(op) { read(op, asked) } else { None };
        if self.changes && (self.request.header.verb() != Some(Verb::Execute) || self.is_retry()) {
            return None;
        }
        self.request.with_op(cx.now.unix_ms, read).ok().flatten()
    }

    /// Whether it may bring something.
    pub(super) fn brings(&self) -> bool {
        self.changes && self.request.with_op(0, |op, _| op.brings()).unwrap_or(true)
    }

    pub(super) fn verb(&self) -> u8 {
        self.request.header.verb
    }

    /// Of a get that waits for a newer version: how long still.
    pub(super) fn wait_ms(&self, age_ms: u32) -> Option<u32> {
        self.request.header.newer_than().map(|_| self.request.header.time_ms.saturating_sub(age_ms))
    }

    /// Whether a part of the value is asked for.
    pub(super) fn is_range(&self) -> bool {
        self.request.header.has(FLAG_RANGE)
    }

    /// Bytes of the value that are asked for, at most.
    pub(super) fn most_bytes(&self) -> u64 {
        if self.is_range() { self.request.header.length } else { u64::MAX }
    }

    /// The value, where it is too long for one frame.
    pub(super) fn long_value(&self) -> Option<&Arc<Body>> {
        self.request.value.long()
    }

    /// Its value is still to come; of so many bytes, if that is known.
    pub(super) fn streamed(self, expected: Option<u64>) -> Self {
        let mut request = Arc::unwrap_or_clone(self.request);
        if !request.header.has(FLAG_RANGE) {
            // Without a range a body begins at 0.
            request.header.offset = 0;
        }
        Self { request: Arc::new(request), stream: Some(Box::new(Stream::new(expected))), ..self }
    }

    /// Its value, where it comes while it goes on.
    pub(super) fn stream(&self) -> Option<&Stream> {
        self.stream.as_deref()
    }

    /// As [`Handing::stream`].
    pub(super) fn stream_mut(&mut self) -> Option<&mut Stream> {
        self.stream.as_deref_mut()
    }

    /// Whether its body is sent frame by frame.
    pub(super) fn is_long(&self) -> bool {
        self.stream().is_some() || self.long_value().is_some()
    }

    /// Header of the frame, as it is asked now; its length is that of the value.
    pub(super) fn header(&self, from: Header) -> Header {
        let Header { epoch, time_ms, hops, .. } = from;
        let header = self.request.header;
        let length = match header.verb() {
            Some(Verb::Get | Verb::Remove) => header.length,
            _ => self.stream().map_or_else(|| self.request.value.len(), |it| it.expected.unwrap_or(LENGTH_UNKNOWN)),
        };
        Header { epoch, time_ms, hops, length, ..header }
    }

    /// Hands the fields of the frame to `f`, as it is asked now.
    pub(super) fn with_fields<R>(&self, f: impl FnOnce(&Fields<'_>) -> R) -> Result<R, WireError> {
        let fields = self.request.fields()?;
        let Some(asked) = asked_of(&fields).filter(|_| self.is_retry()) else { return Ok(f(&fields)) };
        let mut asked = asked.to_vec();
        Asked::ask_again(&mut asked, self.asked.first_epoch);
        Ok(f(&Fields { between: Some(Between::Asked(&asked)), ..fields }))
    }

    /// Appends the whole frame, whose header is [`Handing::header`] with the id it was given.
    pub(super) fn encode(&self, header: Header, out: &mut Vec<u8>) -> Result<(), WireError> {
        self.with_fields(|fields| match &self.request.value {
            Value::Small(bytes, _) => {
                encode_frame_head(out, header, fields, bytes.len(), block_checks(bytes))?;
                out.extend_from_slice(bytes);
                Ok(())
            }
            Value::Large(body) => {
                encode_frame_head(out, header, fields, body.len() as usize, body.checksums().iter().copied())?;
                entry::Value::Body(&**body).copy(0, body.len(), out);
                Ok(())
            }
        })?
    }

    /// Does it here, where the object has come meanwhile.
    pub(super) fn run(&self, cx: &Context) -> Result<Landed, Elsewhere> {
        if self.request.header.newer_than().is_some() {
            return Ok(Landed::here(cx, self.name()));
        }
        if let Some(error) = &self.refusal {
            // There may be none, or it may be guarded by a lock: then it stays.
            apply(cx, &self.collection, self.name(), &Op::new(Action::Remove, 0), |_| ())?;
            return Ok(Landed::failed(cx, error.clone()));
        }
        let done = self.request.with_op(cx.now.unix_ms, |op, asked| {
            apply(cx, &self.collection, self.name(), op, |mut outcome| {
                if matches!(op.action, Action::Read) && !asked.uncounted {
                    outcome.count_get(outcome.before.is_some());
                }
                Landed::of(cx, &outcome, self.with_value)
            })
        });
        done.unwrap_or_else(|error| Ok(Landed::failed(cx, error)))
    }
}

/// Whether it is an `mg` that asks for no change. It may win the token of a stale item all the same; asked again it
/// finds that given away, and with its answer the token would have been lost too.
fn is_look(action: &Action<'_, Arc<Body>>) -> bool {
    match action {
        Action::Execute(Method::Memcached(memcached::Method::Get(meta))) => !b"NTR".iter().any(|flag| meta.has(*flag)),
        _ => false,
    }
}
