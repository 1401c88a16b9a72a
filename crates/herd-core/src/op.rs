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

pub use crate::change::{Answer, Change, Circumstances, Decided, Given, Large, New, NewValue, Part};

use crate::change::{absent, assembled, check_size, kept, part_of};
use crate::entry::{Condition, Fence, Found, Memcached, Token};
use crate::method::{self, Method};
use crate::{Error, ErrorKind};

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

    /// Whether something may be there after it that was not before: an object, or a token.
    pub fn brings(&self) -> bool {
        self.token.is_some() || !matches!(self.action, Action::Remove) && !self.action.only_reads()
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

/// Decides an operation. Errors: `ConditionFailed` (also for a token that a later one has passed), `NotAllowed` (the
/// object is fenced and no token of its lock was shown), `TooLarge`, `NotFound`, and what a method says.
pub fn decide<'a, B: Large>(op: &Op<'a, B>, there: &There<'_, B>, at: &Circumstances) -> Result<Decided<'a, B>, Error> {
    let found = there.found.as_ref();
    op.condition.check_head(found.map(|found| &found.head))?;
    let fence = match &op.action {
        Action::Execute(method) if method.is_lock() => fence_of_lock(op, method, there, at)?,
        // Like any get, it needs no token where it changes nothing.
        Action::Execute(method) if op.token.is_none() && method.only_shows(found, at) => there.held(),
        _ => fence(op, there)?,
    };
    match &op.action {
        Action::Put(put) if put.from.is_none() => {
            whole(op, put, fence).map(|new| Decided { change: Change::Put(new), answer: Answer::Nothing })
        }
        Action::Put(put) => range(op, put, found, fence),
        Action::Read => Ok(read(found, fence)),
        Action::Remove => match found {
            None => Err(absent()),
            Some(_) => Ok(Decided { change: Change::Remove(fence), answer: Answer::Nothing }),
        },
        Action::Execute(method) => {
            let decided = method::decide(method, op.max_bytes, found, fence, at)?;
            Ok(match decided.change {
                // A method that only reads leaves the token it shows, as a get does.
                Change::None if op.token.is_some() && !method.is_lock() => {
                    Decided { change: read(found, fence).change, ..decided }
                }
                _ => decided,
            })
        }
    }
}

/// The fence the object has after the operation, or why it is refused.
#[inline]
fn fence<B>(op: &Op<'_, B>, there: &There<'_, B>) -> Result<Option<Fence>, Error> {
    match (op.token, there.held()) {
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

/// As [`fence`] of a lock, which is guarded by its own grants; but none is made where the token of another was left.
fn fence_of_lock<B>(
    op: &Op<'_, B>,
    method: &Method<'_, B>,
    there: &There<'_, B>,
    at: &Circumstances,
) -> Result<Option<Fence>, Error> {
    match there.held() {
        Some(held) if there.found.is_none() && method.takes_lock() && held.lock != at.id => fence(op, there),
        held => Ok(held),
    }
}

impl<B> There<'_, B> {
    /// The highest token that was shown.
    #[inline]
    fn held(&self) -> Option<Fence> {
        self.found.as_ref().map_or(self.left, |found| found.fence)
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

/// [`decide`] where the action is `put`, of a whole object, as most are: what the object becomes. Errors: as there.
#[inline]
pub fn decide_put<'a, B: Large>(op: &Op<'a, B>, put: &Put<'a, B>, there: &There<'_, B>) -> Result<New<'a, B>, Error> {
    op.condition.check_head(there.found.as_ref().map(|found| &found.head))?;
    whole(op, put, fence(op, there)?)
}

#[inline]
fn whole<'a, B: Large>(op: &Op<'a, B>, put: &Put<'a, B>, fence: Option<Fence>) -> Result<New<'a, B>, Error> {
    check_size(put.value.len(), op.max_bytes)?;
    Ok(New {
        value: NewValue::of(&put.value),
        flags: put.flags.unwrap_or(0),
        expires_ms: put.expires_ms.unwrap_or(0),
        attributes: Some(put.attributes.unwrap_or(&[])),
        memcached: put.memcached,
        fence,
    })
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

#[cfg(test)]
pub(crate) mod tests;
