//! What may become of an object, and the pieces a new value is put together from. Made by methods and by
//! [`crate::op::decide`], carried out by the node.

use crate::entry::{Fence, Found, Head, Memcached, Value, Version};
use crate::limits::INLINE_MAX_BYTES;
use crate::{Chunks, Error, ErrorKind};
use std::borrow::Cow;

/// A value too large to lie beside its key, as the store holds it; cheap to clone.
pub trait Large: Chunks + Clone {}

impl<T: Chunks + Clone> Large for T {}

/// A value that came with a request.
#[derive(Clone, Debug)]
pub enum Given<'a, B> {
    /// At most 4 KiB, with their CRC-32C if it is known.
    Small(&'a [u8], Option<u32>),
    /// Larger.
    Large(B),
}

impl<B: Large> Given<'_, B> {
    /// Bytes of the value.
    pub fn len(&self) -> u64 {
        match self {
            Given::Small(bytes, _) => bytes.len() as u64,
            Given::Large(body) => body.size_bytes(),
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// What a decision depends on besides the operation and the object.
#[derive(Clone, Copy, Debug)]
pub struct Circumstances {
    /// Now, ms since 1970.
    pub now_ms: u64,
    /// A version above all that the object ever had: the one it will have, or lower than that.
    pub next_version: Version,
    /// The object's id: what tells one lock's tokens from another's.
    pub id: [u8; 16],
    /// Whether the collection evicts.
    pub evicts: bool,
}

/// What is to be done, and what to answer once it is.
#[derive(Debug)]
pub struct Decided<'a, B> {
    /// The change.
    pub change: Change<'a, B>,
    /// The answer of a method.
    pub answer: Answer<B>,
}

/// What becomes of an object.
#[derive(Debug)]
pub enum Change<'a, B> {
    /// Nothing.
    None,
    /// It is put.
    Put(New<'a, B>),
    /// It is removed; a fence stays behind.
    Remove(Option<Fence>),
    /// There is none, and there will be none, but a fence.
    Leave(Fence),
}

/// An object as it is to be.
#[derive(Debug)]
pub struct New<'a, B> {
    /// Its value.
    pub value: NewValue<'a, B>,
    /// Opaque flags.
    pub flags: u32,
    /// When it expires, ms since 1970; 0: never.
    pub expires_ms: u64,
    /// Attributes, encoded; `None`: as they are.
    pub attributes: Option<&'a [u8]>,
    /// What the memcached door keeps.
    pub memcached: Memcached,
    /// The fence it will have.
    pub fence: Option<Fence>,
}

/// The value of an object as it is to be.
#[derive(Debug)]
pub enum NewValue<'a, B> {
    /// As it is.
    Kept,
    /// At most 4 KiB, with their CRC-32C if it is known.
    Small(Cow<'a, [u8]>, Option<u32>),
    /// Larger, and whole.
    Large(B),
    /// Larger than 4 KiB, to be put together.
    Parts(Vec<Part<'a, B>>),
}

impl<'a, B: Clone> NewValue<'a, B> {
    /// The value that came with a request.
    #[inline]
    pub fn of(given: &Given<'a, B>) -> Self {
        match given {
            Given::Small(bytes, crc) => NewValue::Small(Cow::Borrowed(*bytes), *crc),
            Given::Large(body) => NewValue::Large(body.clone()),
        }
    }
}

/// A piece of a value that is put together.
#[derive(Clone, Debug)]
pub enum Part<'a, B> {
    /// Bytes `from..to` of the value that is there.
    Old(u64, u64),
    /// Bytes.
    Bytes(Cow<'a, [u8]>),
    /// A large value, whole.
    Large(B),
    /// So many zeros.
    Zeros(u64),
}

impl<B: Large> Part<'_, B> {
    /// Bytes of the piece.
    pub fn len(&self) -> u64 {
        match self {
            Part::Old(from, to) => to - from,
            Part::Bytes(bytes) => bytes.len() as u64,
            Part::Large(body) => body.size_bytes(),
            Part::Zeros(n) => *n,
        }
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// What a method answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer<B> {
    /// Nothing but that it was done.
    Nothing,
    /// Bytes: a value, a number in decimal digits, or a list ([`method::items`]).
    Bytes(Vec<u8>),
    /// A large value.
    Large(B),
}

/// The object as it is, with a new version; memcached's clients see the CAS value they saw before.
pub(crate) fn kept<'a, B>(head: &Head) -> New<'a, B> {
    New {
        value: NewValue::Kept,
        flags: head.flags,
        expires_ms: head.expires_ms,
        attributes: None,
        memcached: Memcached { cas: head.cas(), ..head.memcached },
        fence: None,
    }
}

/// An object whose value is these pieces of the one that is there and others; flags, expiry and attributes stay.
pub(crate) fn assembled<'a, B: Large>(
    mut parts: Vec<Part<'a, B>>,
    found: Option<&Found<'_, B>>,
    max_bytes: u64,
) -> Result<New<'a, B>, Error> {
    parts.retain(|part| !part.is_empty());
    let size_bytes: u64 = parts.iter().map(Part::len).sum();
    check_size(size_bytes, max_bytes)?;
    let value = if size_bytes <= INLINE_MAX_BYTES as u64 {
        let mut bytes = Vec::with_capacity(size_bytes as usize);
        parts.iter().for_each(|part| append(part, found, &mut bytes));
        NewValue::Small(Cow::Owned(bytes), None)
    } else {
        NewValue::Parts(parts)
    };
    let head = found.map(|found| found.head).unwrap_or_default();
    let memcached = Memcached::default();
    Ok(New { value, flags: head.flags, expires_ms: head.expires_ms, attributes: None, memcached, fence: None })
}

fn append<B: Large>(part: &Part<'_, B>, found: Option<&Found<'_, B>>, out: &mut Vec<u8>) {
    match part {
        Part::Old(from, to) => found.into_iter().for_each(|found| found.value.copy(*from, *to, out)),
        Part::Bytes(bytes) => out.extend_from_slice(bytes),
        Part::Large(body) => Value::Body(body).copy(0, body.size_bytes(), out),
        Part::Zeros(n) => out.resize(out.len() + *n as usize, 0),
    }
}

/// The value that came with a request as a piece of a new one.
pub(crate) fn part_of<'a, B: Clone>(given: &Given<'a, B>) -> Part<'a, B> {
    match given {
        Given::Small(bytes, _) => Part::Bytes(Cow::Borrowed(*bytes)),
        Given::Large(body) => Part::Large(body.clone()),
    }
}

#[inline]
pub(crate) fn check_size(size_bytes: u64, max_bytes: u64) -> Result<(), Error> {
    if size_bytes <= max_bytes {
        return Ok(());
    }
    Err(Error::too_large(size_bytes, max_bytes))
}

/// The error where an operation needs an object and there is none.
pub(crate) fn absent() -> Error {
    Error::new(ErrorKind::NotFound, "no such object")
}
