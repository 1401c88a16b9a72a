//! One operation on one object: what is asked ([`Op`]), what is there ([`There`]), what is decided ([`Decided`]).
//!
//! Every door makes an [`Op`] of its bytes. The node finds the object, calls [`decide`] and carries out the change it
//! names, in one place for all doors. Nothing here locks, reads a clock or knows how a value is stored, so that the
//! same decision can be taken by a simulator, and its result, never the call, be replicated.
//!
//! A decision may be taken again: a new value that is too large to lie beside its key ([`NewValue::Parts`]) is put
//! together while the object is not held, and if the object has changed meanwhile, it is decided anew.
//!
//! An object may be *fenced* ([`Fence`]): it remembers the highest token of a lock that was shown with an operation,
//! and refuses what comes with a lower one, or with none.

use crate::entry::{Condition, Fence, Found, Head, Memcached, Token, Value, Version};
use crate::limits::INLINE_MAX_BYTES;
use crate::method::{self, Method};
use crate::{Chunks, Error, ErrorKind};
use std::borrow::Cow;

/// A value too large to lie beside its key, as the store holds it; cheap to clone.
pub trait Large: Chunks + Clone {}

impl<T: Chunks + Clone> Large for T {}

/// What is asked of one object.
#[derive(Clone, Debug)]
pub struct Op<'a, B> {
    /// What to do.
    pub action: Action<'a, B>,
    /// What must hold for it to be done.
    pub condition: Condition,
    /// The lock's token that was shown, if one was.
    pub token: Option<Token>,
    /// Largest value it may make, bytes.
    pub max_bytes: u64,
    /// If it fails, but for its condition, what was there goes: a memcached client that can't set means it to be gone.
    pub else_remove: bool,
}

impl<'a, B> Op<'a, B> {
    /// An operation under no condition.
    pub fn new(action: Action<'a, B>, max_bytes: u64) -> Self {
        Self { action, condition: Condition::None, token: None, max_bytes, else_remove: false }
    }
}

/// What to do with an object.
#[derive(Clone, Debug)]
pub enum Action<'a, B> {
    /// Reads it; with a token, the object remembers the token, so that an earlier holder can write no more.
    Read,
    /// Puts a whole object, or a range of one.
    Put(Put<'a, B>),
    /// Removes it.
    Remove,
    /// Runs a method on it.
    Execute(Method<'a, B>),
}

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

/// An object, or a range of one, to put. What is `None` is nothing in a whole object and stays in a range.
#[derive(Clone, Debug)]
pub struct Put<'a, B> {
    /// The value, or the bytes of the range.
    pub value: Given<'a, B>,
    /// Where the range begins; `None`: the whole object.
    pub from: Option<u64>,
    /// Opaque flags.
    pub flags: Option<u32>,
    /// When it expires, ms since 1970; 0: never.
    pub expires_ms: Option<u64>,
    /// Attributes, encoded.
    pub attributes: Option<&'a [u8]>,
    /// What the memcached door keeps of a whole object.
    pub memcached: Memcached,
}

impl<'a, B> Put<'a, B> {
    /// A whole object of a value alone.
    pub fn of(value: Given<'a, B>) -> Self {
        let memcached = Memcached::default();
        Self { value, from: None, flags: None, expires_ms: None, attributes: None, memcached }
    }
}

/// What is there when an operation is decided.
pub struct There<'a, B> {
    /// The object, if there is one.
    pub found: Option<Found<'a, B>>,
    /// What an object that was removed under a token left behind.
    pub left: Option<Fence>,
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

/// Decides an operation. Errors: `ConditionFailed` (also for a token that a later one has passed), `NotAllowed` (the
/// object is fenced and no token of its lock was shown), `TooLarge`, `NotFound`, and what a method says.
#[inline]
pub fn decide<'a, B: Large>(op: &Op<'a, B>, there: &There<'_, B>, at: &Circumstances) -> Result<Decided<'a, B>, Error> {
    let found = there.found.as_ref();
    op.condition.check_head(found.map(|found| &found.head))?;
    let fence = fence(op, there)?;
    match &op.action {
        Action::Put(put) if put.from.is_none() => whole(op, put, fence),
        Action::Put(put) => range(op, put, found, fence),
        Action::Read => Ok(read(found, fence)),
        Action::Remove => match found {
            None => Err(absent()),
            Some(_) => Ok(Decided { change: Change::Remove(fence), answer: Answer::Nothing }),
        },
        Action::Execute(method) => method::decide(method, op, found, fence, at),
    }
}

/// The fence the object has after the operation, or why it is refused.
#[inline]
fn fence<B>(op: &Op<'_, B>, there: &There<'_, B>) -> Result<Option<Fence>, Error> {
    let held = there.found.as_ref().map_or(there.left, |found| found.fence);
    match (op.token, held) {
        (None, None) => Ok(None),
        (None, Some(held)) if op.action.only_reads() => Ok(Some(held)),
        (None, Some(_)) => {
            Err(Error::new(ErrorKind::NotAllowed, "the object is guarded by a lock: show the token of its holder"))
        }
        (Some(token), None) => Ok(Some(token)),
        (Some(token), Some(held)) if token.lock != held.lock => {
            Err(Error::new(ErrorKind::NotAllowed, "the object is guarded by another lock than the token's"))
        }
        (Some(token), Some(held)) if token.grant < held.grant => {
            Err(Error::new(ErrorKind::ConditionFailed, "the lock was lost: somebody has held it since"))
        }
        (Some(token), Some(_)) => Ok(Some(token)),
    }
}

impl<B> Action<'_, B> {
    /// Whether the decision reads the value that is there, which may be large.
    pub fn reads_value(&self) -> bool {
        match self {
            Action::Execute(method) => method.reads_value(),
            Action::Read | Action::Put(_) | Action::Remove => false,
        }
    }

    /// Whether it never changes the object.
    pub fn only_reads(&self) -> bool {
        match self {
            Action::Read => true,
            Action::Execute(method) => method.only_reads(),
            Action::Put(_) | Action::Remove => false,
        }
    }
}

#[inline]
fn whole<'a, B: Large>(op: &Op<'a, B>, put: &Put<'a, B>, fence: Option<Fence>) -> Result<Decided<'a, B>, Error> {
    check_size(put.value.len(), op.max_bytes)?;
    let new = New {
        value: NewValue::of(&put.value),
        flags: put.flags.unwrap_or(0),
        expires_ms: put.expires_ms.unwrap_or(0),
        attributes: Some(put.attributes.unwrap_or(&[])),
        memcached: put.memcached,
        fence,
    };
    Ok(Decided { change: Change::Put(new), answer: Answer::Nothing })
}

/// A range replaces what is there; the object grows where the range ends beyond it, and a gap reads as zeros.
fn range<'a, B: Large>(
    op: &Op<'a, B>,
    put: &Put<'a, B>,
    found: Option<&Found<'_, B>>,
    fence: Option<Fence>,
) -> Result<Decided<'a, B>, Error> {
    let from = put.from.unwrap_or(0);
    let old_len = found.map_or(0, |found| found.head.size_bytes);
    let too_far = || Error::new(ErrorKind::TooLarge, "the range ends beyond any object");
    let end = from.checked_add(put.value.len()).ok_or_else(too_far)?;
    let parts = vec![
        Part::Old(0, from.min(old_len)),
        Part::Zeros(from.saturating_sub(old_len)),
        part_of(&put.value),
        Part::Old(end.min(old_len), old_len),
    ];
    let mut new = assembled(parts, found, op.max_bytes)?;
    let head = found.map(|found| &found.head);
    new.flags = put.flags.or(head.map(|head| head.flags)).unwrap_or(0);
    new.expires_ms = put.expires_ms.or(head.map(|head| head.expires_ms)).unwrap_or(0);
    (new.attributes, new.fence) = (put.attributes, fence);
    Ok(Decided { change: Change::Put(new), answer: Answer::Nothing })
}

/// A get that shows a token leaves it at the object, or where the object would be.
fn read<'a, B>(found: Option<&Found<'_, B>>, fence: Option<Fence>) -> Decided<'a, B> {
    let change = match (found, fence) {
        (Some(found), Some(fence)) if found.fence != Some(fence) => {
            Change::Put(New { fence: Some(fence), ..kept(&found.head) })
        }
        (None, Some(fence)) => Change::Leave(fence),
        _ => Change::None,
    };
    Decided { change, answer: Answer::Nothing }
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

#[cfg(test)]
pub(crate) mod tests;
