//! A request on an object, as it goes from node to node: made once, and shared by the flight that waits for it and by
//! the line of the object's group that decides it.

use herd_core::checksum::crc32c;
use herd_core::limits::WIRE_FRAME_BODY_MAX_BYTES;
use herd_core::op::{Given, Op};
use herd_core::replica::window::RequestId;
use herd_core::wire::{Asked, Between, Fields, Handed, Header, Own, WireError};
use herd_core::{Error, ErrorKind};
use herd_store::Body;
use std::sync::Arc;

/// See the module.
#[derive(Clone)]
pub(crate) struct Request {
    /// Its header, but for what another try changes.
    pub(crate) header: Header,
    /// Its fields, encoded.
    head: Box<[u8]>,
    /// Its value.
    pub(crate) value: Value,
}

/// A value that came with a request.
#[derive(Clone)]
pub(crate) enum Value {
    /// At most what lies beside a key, and its CRC-32C, if it is known.
    Small(Arc<[u8]>, Option<u32>),
    /// More.
    Large(Arc<Body>),
}

impl Value {
    /// None.
    pub(crate) fn none() -> Self {
        Value::Small(Arc::default(), None)
    }

    /// Of what a door was given.
    pub(crate) fn of(given: &Given<'_, Arc<Body>>) -> Self {
        match given {
            Given::Small(bytes, check) => Value::Small((*bytes).into(), *check),
            Given::Large(body) => Value::Large(body.clone()),
        }
    }

    /// As it is given to an operation.
    pub(crate) fn given(&self) -> Given<'_, Arc<Body>> {
        match self {
            Value::Small(bytes, check) => Given::Small(bytes, *check),
            Value::Large(body) => Given::Large(body.clone()),
        }
    }

    /// Its bytes.
    pub(crate) fn len(&self) -> u64 {
        match self {
            Value::Small(bytes, _) => bytes.len() as u64,
            Value::Large(body) => body.len(),
        }
    }

    /// Where it is too long for one frame.
    pub(crate) fn long(&self) -> Option<&Arc<Body>> {
        match self {
            Value::Large(body) if body.len() > WIRE_FRAME_BODY_MAX_BYTES as u64 => Some(body),
            _ => None,
        }
    }

    /// What an operation makes of it, with its checksum: this very value, where it is that.
    pub(crate) fn share(&self, made: &[u8], check: Option<u32>) -> (Arc<[u8]>, u32) {
        let bytes = match self {
            Value::Small(bytes, _) if std::ptr::eq(&**bytes, made) => bytes.clone(),
            _ => made.into(),
        };
        let check = check.unwrap_or_else(|| crc32c(&bytes));
        (bytes, check)
    }
}

impl Request {
    /// Error: its fields do not fit a head.
    pub(crate) fn new(header: Header, fields: &Fields<'_>, value: Value) -> Result<Self, WireError> {
        let mut head = Vec::with_capacity(128);
        fields.encode(&mut head)?;
        Ok(Self { header, head: head.into(), value })
    }

    /// Its fields.
    pub(crate) fn fields(&self) -> Result<Fields<'_>, WireError> {
        Fields::decode(&self.head)
    }

    /// Who asks. Error: nobody that was handed on does.
    pub(crate) fn asked(&self) -> Result<Asked, Error> {
        Ok(Handed::decode(&self.header, &self.fields()?)?.ok_or_else(not_handed)?.asked)
    }

    /// Bytes that it takes in memory, a large value aside: that is the store's.
    pub(crate) fn bytes(&self) -> u64 {
        let value = if let Value::Small(bytes, _) = &self.value { bytes.len() } else { 0 };
        (size_of::<Self>() + self.head.len() + value) as u64
    }

    /// Hands the operation and who asks to `f`, to be decided here. Error: that of the request.
    pub(crate) fn with_op<R>(&self, now_ms: u64, f: impl FnOnce(&Op<'_, Arc<Body>>, &Asked) -> R) -> Result<R, Error> {
        let fields = self.fields()?;
        let handed = Handed::decode(&self.header, &fields)?.ok_or_else(not_handed)?;
        handed.op(&self.header, &fields, self.value.given(), now_ms).map(|op| f(&op, &handed.asked))
    }
}

/// Who asks, of a request of a client of this node: by the id that the client has made, or this one.
pub(crate) fn asks(own: Option<Own>, id: RequestId, max_bytes: u64) -> Asked {
    own.map_or_else(|| Asked::new(id, max_bytes), |own| Asked::of_own(&own, max_bytes))
}

/// The bytes of who asks, of the fields of a request; none of what is about no object.
pub(crate) fn asked_of<'a>(fields: &Fields<'a>) -> Option<&'a [u8]> {
    if let Some(Between::Asked(asked)) = fields.between { Some(asked) } else { None }
}

#[cold]
fn not_handed() -> Error {
    Error::new(ErrorKind::BadRequest, "nobody asks")
}
