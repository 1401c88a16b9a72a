//! An operation in the form in which it is handed on: the frame that it would be from a client, and its value.

use super::intake::Stream;
use super::landed::Landed;
use crate::apply::{Elsewhere, apply};
use crate::context::Context;
use crate::group::{self, Operation, Origin, Told};
use crate::wire::with_object;
use herd_core::entry::Value;
use herd_core::key::CollectionId;
use herd_core::limits::{WIRE_FRAME_BODY_MAX_BYTES, WIRE_HEAD_MAX_BYTES};
use herd_core::method::{Method, memcached};
use herd_core::op::{Action, Op};
use herd_core::place::{GroupId, NodeId};
use herd_core::wire::{
    Asked, Between, FIELD_BYTES, FLAG_BRIEF, FLAG_HEAD_ONLY, FLAG_MORE, FLAG_QUIET, FLAG_RANGE, Fields, Handed, Header,
    LENGTH_UNKNOWN, Verb, WireError, block_checks, encode_frame_head, encode_op, value_of,
};
use herd_core::{Error, ErrorKind};
use herd_store::{Body, Collection, Given};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;
use std::sync::Arc;

/// Where the first epoch stands in the bytes of who asks.
const FIRST_EPOCH: Range<usize> = 16..20;

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
    pub(crate) name: Box<[u8]>,
    header: Header,
    /// The fields of the head but for who asks, and the bytes of that.
    head: Vec<u8>,
    asked: Vec<u8>,
    value: Kept,
    /// It may change the object.
    pub(crate) changes: bool,
    /// The object's value comes with the answer, and not what a method answers.
    pub(super) with_value: bool,
    /// This node is asked, whatever it has.
    pub(super) to: Option<NodeId>,
}

/// A value that is kept.
enum Kept {
    Small(Vec<u8>, Option<u32>),
    Large(Arc<Body>),
    /// It is still to come.
    Stream(Box<Stream>),
}

impl Kept {
    fn of(given: &Given<'_>) -> Self {
        match given {
            Given::Small(bytes, check) => Kept::Small(bytes.to_vec(), *check),
            Given::Large(body) => Kept::Large(body.clone()),
        }
    }

    /// Where it is wholly here. Error: it is not.
    fn given(&self) -> Result<Given<'_>, Error> {
        match self {
            Kept::Small(bytes, check) => Ok(Given::Small(bytes, *check)),
            Kept::Large(body) => Ok(Given::Large(body.clone())),
            Kept::Stream(_) => Err(Error::new(ErrorKind::Unreachable, "the value is still to come")),
        }
    }
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
        let asked = Asked {
            id: cx.flights.next_id(),
            first_epoch: 0,
            max_bytes: op.max_bytes,
            at_primary: false,
            else_remove: false,
            uncounted: how.uncounted,
        };
        let mut scratch = Vec::new();
        let Some((header, fields)) = encode_op(op, name, &asked, cx.now.unix_ms, &mut scratch) else {
            return Err(Error::new(ErrorKind::BadRequest, "this is handed on as it came"));
        };
        let mut handing = Self::of(collection, header, fields, value_of(op).map(Kept::of))?;
        handing.header.flags |= if how.with_value { 0 } else { FLAG_HEAD_ONLY };
        handing.with_value = how.with_value;
        handing.changes = !op.action.only_reads() || op.token.is_some();
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
        let id = cx.flights.next_id();
        Asked { id, first_epoch: 0, max_bytes, at_primary: false, else_remove: false, uncounted: false }
            .encode(&mut bytes);
        let fields = Fields { collection: None, between: Some(Between::Asked(&bytes)), ..*fields };
        let mut handing = Self::of(collection, *header, fields, Some(Kept::of(&value)))?;
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
                Value::Body(&**body).copy(0, body.len(), &mut arguments);
                Kept::Small(arguments, None)
            }
            value => Kept::of(value),
        };
        let mut handing = Self::of(collection, *header, fields, Some(kept))?;
        handing.with_value = handing.with_op(0, |op, _| with_object(header, op))?;
        handing.changes = header.verb() != Some(Verb::Get) || fields.token.is_some();
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
        let (id, mut asked, mut head) = (cx.flights.next_id(), Vec::new(), Vec::new());
        Asked { id, first_epoch: 0, max_bytes: 0, at_primary: false, else_remove: false, uncounted: false }
            .encode(&mut asked);
        fields.encode(&mut head)?;
        let (collection, header) = (collection.clone(), Header { collection: collection.id().0, ..header });
        let (value, name) = (Kept::Small(Vec::new(), None), Box::default());
        Ok(Self { collection, name, header, head, asked, value, changes: false, with_value: false, to: Some(node) })
    }

    /// What one node has another do, or tell, for memcached's clients: a method of the system collection, and a word to
    /// it. Errors: as of [`Handing::of_op`].
    pub(crate) fn admin(cx: &mut Context, node: NodeId, method: &str, word: &[u8]) -> Result<Self, Error> {
        let default = cx.shared.default.clone();
        let fields = Fields { method: Some(method), ..Fields::named(word) };
        let mut handing = Self::to_node(cx, &default, node, Header::request(Verb::Execute, 0), &fields)?;
        handing.header.collection = CollectionId::SYSTEM.0;
        handing.changes = true;
        Ok(handing)
    }

    fn of(collection: &Collection, header: Header, fields: Fields<'_>, value: Option<Kept>) -> Result<Self, Error> {
        let (Some(name), Some(Between::Asked(asked))) = (fields.name, fields.between) else {
            return Err(Error::new(ErrorKind::BadRequest, "the request names no object"));
        };
        let (name, asked, mut head) = (name.into(), asked.to_vec(), Vec::new());
        Fields { between: None, ..fields }.encode(&mut head)?;
        // A client's head may be full without who asks.
        let bytes = head.len() + FIELD_BYTES + asked.len();
        if bytes > WIRE_HEAD_MAX_BYTES {
            return Err(WireError::HeadTooLong(bytes).into());
        }
        let value = value.unwrap_or(Kept::Small(Vec::new(), None));
        let flags = header.flags & !(FLAG_QUIET | FLAG_BRIEF | FLAG_MORE);
        let header = Header { flags, collection: collection.id().0, hops: 0, brief: false, ..header };
        Ok(Self {
            collection: collection.clone(),
            name,
            header,
            head,
            asked,
            value,
            changes: true,
            with_value: false,
            to: None,
        })
    }

    /// Bytes that it takes in memory, a large value aside: that is the store's.
    pub(super) fn bytes(&self) -> u64 {
        let value = match &self.value {
            Kept::Small(bytes, _) => bytes.len(),
            Kept::Large(_) | Kept::Stream(_) => 0,
        };
        (size_of::<Self>() + self.name.len() + self.head.len() + self.asked.len() + value) as u64
    }

    /// Whether it may have been done before it is asked now.
    pub(super) fn is_retry(&self) -> bool {
        self.asked.get(FIRST_EPOCH).is_some_and(|epoch| epoch != [0; 4])
    }

    /// It may have been done from now on, by nobody before that epoch; if that was so already, it stays as it was.
    pub(super) fn may_be_done(&mut self, since: u32) {
        if !self.is_retry()
            && let Some(epoch) = self.asked.get_mut(FIRST_EPOCH)
        {
            epoch.copy_from_slice(&since.max(1).to_le_bytes());
        }
    }

    /// As it is asked of a part of a replica group here.
    pub(super) fn operation(&self, origin: Origin) -> Result<Operation, Error> {
        let fields = Fields { between: Some(Between::Asked(&self.asked)), ..Fields::decode(&self.head)? };
        Ok(Operation::new(self.header, &fields, self.value.given()?, origin)?)
    }

    /// Answers it from what is committed here of a replica group that this node decides for; `None`: it changes
    /// something, or this node does not decide.
    pub(super) fn read(&self, cx: &Context, group: GroupId) -> Option<Told> {
        let read = |op: &Op<'_, Arc<Body>>, asked: &Asked| {
            let is_counted = matches!(op.action, Action::Read) && !asked.uncounted;
            group::read(cx, group, (&self.collection, &self.name), op, is_counted)
        };
        // An `mg` seldom changes anything; where it does, that is decided in line with others.
        let may_read = |op: &Op<'_, Arc<Body>>| {
            let is_get = matches!(op.action, Action::Execute(Method::Memcached(memcached::Method::Get(_))));
            !self.changes || is_get && op.token.is_none()
        };
        let read = |op: &Op<'_, Arc<Body>>, asked: &Asked| if may_read(op) { read(op, asked) } else { None };
        if self.changes && (self.header.verb() != Some(Verb::Execute) || self.is_retry()) {
            return None;
        }
        self.with_op(cx.now.unix_ms, read).ok().flatten()
    }

    /// What tells its object from others, nearly.
    pub(super) fn object_hash(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        (self.collection.id().0, &self.name).hash(&mut hasher);
        hasher.finish()
    }

    pub(super) fn verb(&self) -> u8 {
        self.header.verb
    }

    /// Of a get that waits for a newer version: how long still.
    pub(super) fn wait_ms(&self, age_ms: u32) -> Option<u32> {
        self.header.newer_than().map(|_| self.header.time_ms.saturating_sub(age_ms))
    }

    /// Whether a part of the value is asked for.
    pub(super) fn is_range(&self) -> bool {
        self.header.has(FLAG_RANGE)
    }

    /// Bytes of the value that are asked for, at most.
    pub(super) fn most_bytes(&self) -> u64 {
        if self.is_range() { self.header.length } else { u64::MAX }
    }

    /// The value, where it is too long for one frame.
    pub(super) fn long_value(&self) -> Option<&Arc<Body>> {
        match &self.value {
            Kept::Large(body) if body.len() > WIRE_FRAME_BODY_MAX_BYTES as u64 => Some(body),
            _ => None,
        }
    }

    /// Its value is still to come; of so many bytes, if that is known.
    pub(super) fn streamed(self, expected: Option<u64>) -> Self {
        // Without a range a body begins at 0.
        let offset = if self.is_range() { self.header.offset } else { 0 };
        let header = Header { offset, ..self.header };
        Self { header, value: Kept::Stream(Box::new(Stream::new(expected))), ..self }
    }

    /// Its value, where it comes while it goes on.
    pub(super) fn stream(&self) -> Option<&Stream> {
        if let Kept::Stream(stream) = &self.value { Some(stream) } else { None }
    }

    /// As [`Handing::stream`].
    pub(super) fn stream_mut(&mut self) -> Option<&mut Stream> {
        if let Kept::Stream(stream) = &mut self.value { Some(stream) } else { None }
    }

    /// Whether its body is sent frame by frame.
    pub(super) fn is_long(&self) -> bool {
        self.stream().is_some() || self.long_value().is_some()
    }

    /// Header and fields of the frame, as it is asked now; its length is that of the value.
    pub(super) fn request(&self, from: Header) -> Result<(Header, Fields<'_>), WireError> {
        let Header { epoch, time_ms, hops, .. } = from;
        let length = match &self.value {
            _ if matches!(self.header.verb(), Some(Verb::Get | Verb::Remove)) => self.header.length,
            Kept::Small(bytes, _) => bytes.len() as u64,
            Kept::Large(body) => body.len(),
            Kept::Stream(stream) => stream.expected.unwrap_or(LENGTH_UNKNOWN),
        };
        let header = Header { epoch, time_ms, hops, length, ..self.header };
        let fields = Fields { between: Some(Between::Asked(&self.asked)), ..Fields::decode(&self.head)? };
        Ok((header, fields))
    }

    /// Appends the whole frame, whose header is that of [`Handing::request`] with the id it was given.
    pub(super) fn encode(&self, request: Header, out: &mut Vec<u8>) -> Result<(), WireError> {
        let fields = Fields { between: Some(Between::Asked(&self.asked)), ..Fields::decode(&self.head)? };
        match &self.value {
            Kept::Small(bytes, _) => {
                encode_frame_head(out, request, &fields, bytes.len(), block_checks(bytes))?;
                out.extend_from_slice(bytes);
            }
            Kept::Large(body) => {
                encode_frame_head(out, request, &fields, body.len() as usize, body.checksums().iter().copied())?;
                Value::Body(&**body).copy(0, body.len(), out);
            }
            Kept::Stream(_) => unreachable!("it is sent frame by frame"),
        }
        Ok(())
    }

    /// Does it here, where the object has come meanwhile.
    pub(super) fn run(&self, cx: &Context) -> Result<Landed, Elsewhere> {
        if self.header.newer_than().is_some() {
            return Ok(Landed::here(cx, &self.name));
        }
        let done = self.with_op(cx.now.unix_ms, |op, asked| {
            apply(cx, &self.collection, &self.name, op, |mut outcome| {
                if matches!(op.action, Action::Read) && !asked.uncounted {
                    outcome.count_get(outcome.before.is_some());
                }
                Landed::of(cx, &outcome, self.with_value)
            })
        });
        done.unwrap_or_else(|error| Ok(Landed::failed(cx, error)))
    }

    /// Hands the operation and who asks to `f`, to be decided here. Error: that of the request.
    pub(crate) fn with_op<R>(&self, now_ms: u64, f: impl FnOnce(&Op<'_, Arc<Body>>, &Asked) -> R) -> Result<R, Error> {
        let fields = Fields { between: Some(Between::Asked(&self.asked)), ..Fields::decode(&self.head)? };
        let handed = Handed::decode(&self.header, &fields)?.ok_or_else(not_handed)?;
        let value = self.value.given()?;
        handed.op(&self.header, &fields, value, now_ms).map(|op| f(&op, &handed.asked))
    }
}

#[cold]
fn not_handed() -> Error {
    Error::new(ErrorKind::BadRequest, "nobody asks")
}
