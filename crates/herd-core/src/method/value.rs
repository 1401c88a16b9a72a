//! Methods on a value as a whole: `get-and-remove`, `append`, `prepend`, `set-if-absent`, `compare-and-set`, `touch`.

use crate::change::{
    Answer, Change, Circumstances, Decided, Given, Large, New, Part, absent, assembled, kept, part_of,
};
use crate::entry::{Condition, Fence, Found, Value};
use crate::{Error, ErrorKind};
use std::borrow::Cow;

pub(super) fn take<'a, B: Large>(found: Option<&Found<'_, B>>, fence: Option<Fence>) -> Result<Decided<'a, B>, Error> {
    let answer = match found.ok_or_else(absent)?.value {
        Value::Inline(bytes, _) => Answer::Bytes(bytes.to_vec()),
        Value::Body(body) => Answer::Large(body.clone()),
    };
    Ok(Decided { change: Change::Remove(fence), answer })
}

/// Flags, expiry and attributes stay.
pub(super) fn join<'a, B: Large>(
    max_bytes: u64,
    value: &Given<'a, B>,
    behind: bool,
    create: bool,
    found: Option<&Found<'_, B>>,
    fence: Option<Fence>,
) -> Result<Decided<'a, B>, Error> {
    if found.is_none() && !create {
        return Err(absent());
    }
    let old_len = found.map_or(0, |found| found.head.size_bytes);
    let (old, given) = (Part::Old(0, old_len), part_of(value));
    let parts = if behind { vec![old, given] } else { vec![given, old] };
    let new = New { fence, ..assembled(parts, found, max_bytes)? };
    let answer = Answer::Bytes((old_len + value.len()).to_string().into_bytes());
    Ok(Decided { change: Change::Put(new), answer })
}

pub(super) fn set_if_absent<'a, B: Large>(
    max_bytes: u64,
    value: &Given<'a, B>,
    found: Option<&Found<'_, B>>,
    fence: Option<Fence>,
) -> Result<Decided<'a, B>, Error> {
    Condition::IfAbsent.check_head(found.map(|found| &found.head))?;
    let new = New { fence, ..assembled(vec![part_of(value)], None, max_bytes)? };
    Ok(Decided { change: Change::Put(New { attributes: Some(&[]), ..new }), answer: Answer::Nothing })
}

pub(super) fn compare_and_set<'a, B: Large>(
    max_bytes: u64,
    expected: &[u8],
    new: &'a [u8],
    found: Option<&Found<'_, B>>,
    fence: Option<Fence>,
) -> Result<Decided<'a, B>, Error> {
    let found = found.ok_or_else(absent)?;
    let mut there = Vec::new();
    let same_size = found.head.size_bytes == expected.len() as u64;
    if same_size {
        found.value.copy(0, found.head.size_bytes, &mut there);
    }
    if !same_size || there != expected {
        return Err(Error::new(ErrorKind::ConditionFailed, "condition failed: it has another value"));
    }
    let parts = vec![Part::Bytes(Cow::Borrowed(new))];
    let new = New { fence, ..assembled(parts, Some(found), max_bytes)? };
    Ok(Decided { change: Change::Put(new), answer: Answer::Nothing })
}

pub(super) fn touch<'a, B>(
    ttl_ms: u64,
    found: Option<&Found<'_, B>>,
    fence: Option<Fence>,
    at: &Circumstances,
) -> Result<Decided<'a, B>, Error> {
    let found = found.ok_or_else(absent)?;
    let expires_ms = if ttl_ms == 0 { 0 } else { at.now_ms.saturating_add(ttl_ms).max(1) };
    let new = New { expires_ms, fence, ..kept(&found.head) };
    Ok(Decided { change: Change::Put(new), answer: Answer::Nothing })
}
