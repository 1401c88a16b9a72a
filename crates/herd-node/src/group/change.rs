//! What a group's members tell each other of an object: its key, and a change of it, owned and cheap to clone.
//!
//! The value of a change is up to 4 KiB of bytes, or a body of the store, which every member's message shares. On a
//! link it lies in the frame of its message up to 64 KiB; above, it went before (`outbox.rs`).

use crate::apply::{Kept, Snapshot};
use herd_core::bugs::{Bug, has};
use herd_core::checksum::crc32c;
use herd_core::entry::{Fence, Memcached};
use herd_core::limits::{BLOCK_BYTES, INLINE_MAX_BYTES};
use herd_core::replica::{self, Refusal};
use herd_core::wire::{self, Answers, Delta, PutOf, Sent, ValueOf};
use herd_core::{Error, ErrorKind};
use herd_store::{Body, Now, Store};
use std::sync::Arc;

/// An object of a group, in the order in which a slot is gone through. What a flush ends has other keys than what comes
/// after it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Key {
    /// The object.
    pub(crate) of: herd_store::Key,
    /// The generation of its collection, as the map counts it.
    pub(crate) generation: u32,
}

impl Key {
    /// As it came.
    pub(crate) fn came(store: &Store, key: &wire::Key<'_>) -> Self {
        Self { of: store.key_in(key.collection, key.name), generation: key.generation }
    }

    /// As it is sent.
    pub(crate) fn sent(&self) -> wire::Key<'_> {
        wire::Key { collection: self.of.collection, generation: self.generation, name: &self.of.name }
    }
}

/// A change of an object, and the requests that it answers.
#[derive(Clone)]
pub(crate) struct Edit(Arc<Made>);

struct Made {
    becomes: Becomes,
    /// Encoded.
    answers: Vec<u8>,
}

/// What becomes of an object.
pub(crate) enum Becomes {
    /// It is removed; a fence may stay behind.
    Removed(Option<Fence>),
    /// It is as this says.
    Put(Object),
    /// What came found no room here.
    Refused(Refusal),
}

/// An object as it is to be.
pub(crate) struct Object {
    /// Its value.
    pub(crate) value: Held,
    /// Opaque flags.
    pub(crate) flags: u32,
    /// When it expires by this node's clock, ms since 1970; 0: never.
    pub(crate) expires_ms: u64,
    /// Attributes, encoded; `None`: as they are.
    pub(crate) attributes: Option<Box<[u8]>>,
    /// What the memcached door keeps.
    pub(crate) memcached: Memcached,
    /// The highest token that was shown.
    pub(crate) fence: Option<Fence>,
}

/// A value as it is to be.
#[derive(Clone)]
pub(crate) enum Held {
    /// As it is.
    Kept,
    /// At most 4 KiB, with their CRC-32C.
    Small(Arc<[u8]>, u32),
    /// Larger.
    Large(Arc<Body>),
}

impl replica::Change for Edit {
    fn removes(&self) -> bool {
        matches!(self.0.becomes, Becomes::Removed(_))
    }

    fn size_bytes(&self) -> u64 {
        let value = match &self.0.becomes {
            Becomes::Put(object) => match &object.value {
                Held::Kept => 0,
                Held::Small(bytes, _) => bytes.len() as u64,
                Held::Large(body) => body.len(),
            },
            Becomes::Removed(_) | Becomes::Refused(_) => 0,
        };
        value + self.0.answers.len() as u64
    }
}

impl Edit {
    /// Of these requests, encoded as [`Answers`].
    pub(crate) fn new(becomes: Becomes, answers: Vec<u8>) -> Self {
        Self(Arc::new(Made { becomes, answers }))
    }

    /// The whole of a state; `None` is absence, with the token that is left there.
    pub(crate) fn whole(state: Option<&Snapshot>, left: Option<Fence>, answers: Vec<u8>) -> Self {
        let becomes = state.map_or(Becomes::Removed(left), |state| Becomes::Put(Object::of(state, Held::of(state))));
        Self::new(becomes, answers)
    }

    /// What becomes of the object.
    pub(crate) fn becomes(&self) -> &Becomes {
        &self.0.becomes
    }

    /// The requests it answers.
    pub(crate) fn answers(&self) -> Answers<'_> {
        Answers::of(&self.0.answers).unwrap_or_default()
    }

    /// The value that goes before the message that names it, where it is too long for one frame.
    pub(crate) fn long_value(&self) -> Option<&Arc<Body>> {
        match &self.0.becomes {
            Becomes::Put(Object { value: Held::Large(body), .. }) if body.len() > BLOCK_BYTES as u64 => Some(body),
            _ => None,
        }
    }

    /// As it is sent; a long value went before under the number `id`.
    pub(crate) fn sent(&self, id: u64, now_ms: u64) -> Delta<'_> {
        let becomes = match &self.0.becomes {
            Becomes::Put(object) => wire::Becomes::Put(object.sent(id, now_ms)),
            Becomes::Removed(fence) => wire::Becomes::Removed(*fence),
            // What found no room here is never sent on.
            Becomes::Refused(_) => wire::Becomes::Removed(None),
        };
        let answers = if has(Bug::WindowAtHome) { Answers::default() } else { self.answers() };
        Delta { becomes, answers }
    }

    /// As it came. `staged` gives the value that came before it; what finds no room here is refused.
    pub(crate) fn came(
        of: (&Arc<Store>, &wire::Key<'_>, Now),
        delta: &Delta<'_>,
        staged: impl FnOnce(u64, u64) -> Result<Arc<Body>, Refusal>,
    ) -> Self {
        let becomes = match &delta.becomes {
            wire::Becomes::Removed(fence) => Becomes::Removed(*fence),
            wire::Becomes::Put(put) => match Held::came(of, &put.value, staged) {
                Ok(value) => Becomes::Put(Object::came(put, value.called(put, of.2), of.2.unix_ms)),
                Err(refusal) => Becomes::Refused(refusal),
            },
        };
        Self::new(becomes, delta.answers.bytes().to_vec())
    }
}

impl Object {
    /// That of a state, with its value, or another form of it.
    pub(crate) fn of(state: &Snapshot, value: Held) -> Self {
        Self {
            value,
            flags: state.head.flags,
            expires_ms: state.head.expires_ms,
            attributes: Some(state.attributes.as_slice().into()),
            memcached: state.head.memcached,
            fence: state.fence,
        }
    }

    fn came(put: &PutOf<'_>, value: Held, now_ms: u64) -> Self {
        Self {
            value,
            flags: put.flags,
            expires_ms: put.left_ms.map_or(0, |left_ms| now_ms.saturating_add(left_ms).max(1)),
            attributes: put.attributes.map(Into::into),
            memcached: put.memcached,
            fence: put.fence,
        }
    }

    fn sent(&self, id: u64, now_ms: u64) -> PutOf<'_> {
        PutOf {
            value: self.value.sent(id),
            flags: self.flags,
            left_ms: left_ms(self.expires_ms, now_ms),
            attributes: self.attributes.as_deref(),
            memcached: self.memcached,
            fence: self.fence,
        }
    }
}

impl Held {
    /// The value of a state.
    pub(crate) fn of(state: &Snapshot) -> Self {
        match &state.value {
            Kept::Small(bytes, crc) => Held::Small(bytes.clone(), *crc),
            Kept::Large(body) => Held::Large(body.clone()),
        }
    }

    fn sent(&self, id: u64) -> ValueOf<'_> {
        match self {
            Held::Kept => ValueOf::Kept,
            Held::Small(bytes, crc) => ValueOf::Whole(Sent::Inline(bytes, *crc)),
            Held::Large(body) if body.len() > BLOCK_BYTES as u64 => {
                ValueOf::Whole(Sent::Staged { id, length: body.len() })
            }
            // One block, whose checksum is the body's.
            Held::Large(body) => ValueOf::Whole(Sent::Inline(body.chunk(0), body.checksum())),
        }
    }

    fn came(
        (store, key, now): (&Arc<Store>, &wire::Key<'_>, Now),
        value: &ValueOf<'_>,
        staged: impl FnOnce(u64, u64) -> Result<Arc<Body>, Refusal>,
    ) -> Result<Self, Refusal> {
        Ok(match value {
            ValueOf::Kept => Held::Kept,
            ValueOf::Whole(Sent::Staged { id, length }) => Held::Large(staged(*id, *length)?),
            ValueOf::Whole(Sent::Inline(bytes, crc)) if bytes.len() <= INLINE_MAX_BYTES => {
                Held::Small((*bytes).into(), *crc)
            }
            ValueOf::Whole(Sent::Inline(bytes, _)) => {
                let c = store.collection_by_id(key.collection).ok_or(Refusal::NoCollection)?;
                let body = store.body_of(&c, key.name, &[bytes], now).map_err(|error| refusal_of(&error))?;
                Held::Large(Arc::new(body))
            }
            // Values go whole so far: no member sends a range.
            ValueOf::Range(..) => return Err(Refusal::Full),
        })
    }

    /// The value of an object as it came: with a bug, as this node makes it that is sent the call. Of a lock with one
    /// holder that is another one, as its lease counts by the clock of who decides.
    fn called(self, put: &PutOf<'_>, now: Now) -> Self {
        const LEASE_END: std::ops::Range<usize> = 17..25;
        let end_ms = put.left_ms.map(|left_ms| now.unix_ms.saturating_add(left_ms).to_le_bytes());
        match (self, end_ms) {
            (Held::Small(bytes, _), Some(end_ms))
                if has(Bug::SentCall) && bytes.starts_with(b"HERDLOCK") && bytes.len() > LEASE_END.end =>
            {
                let mut bytes = bytes.to_vec();
                bytes[LEASE_END].copy_from_slice(&end_ms);
                let crc = crc32c(&bytes);
                Held::Small(bytes.into(), crc)
            }
            (value, _) => value,
        }
    }
}

/// How long an object has to live that expires then; `None`: for ever.
pub(super) fn left_ms(expires_ms: u64, now_ms: u64) -> Option<u64> {
    (expires_ms != 0).then(|| expires_ms.saturating_sub(now_ms))
}

/// What a primary is told of an error of this node's store.
pub(crate) fn refusal_of(error: &Error) -> Refusal {
    match error.kind {
        ErrorKind::Quota => Refusal::Quota,
        ErrorKind::NoCollection => Refusal::NoCollection,
        _ => Refusal::Full,
    }
}
