//! `fetch-and-add`: counters. The value is a number of 64 bits with a sign, in decimal digits.

use crate::change::{Answer, Change, Decided, New, NewValue, kept};
use crate::entry::{Fence, Found, Head, Value};
use crate::{Error, ErrorKind};
use std::borrow::Cow;

/// Longest value taken for a number: 19 digits and a sign.
const MAX_BYTES: u64 = 20;

/// A number of decimal digits, perhaps with a sign.
pub(super) fn parse(bytes: &[u8]) -> Option<i64> {
    let digits = bytes.strip_prefix(b"-").unwrap_or(bytes);
    let plain = !digits.is_empty() && bytes.len() as u64 <= MAX_BYTES && digits.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(bytes).ok().filter(|_| plain)?.parse().ok()
}

pub(super) fn add<'a, B>(
    delta: i64,
    found: Option<&Found<'_, B>>,
    fence: Option<Fence>,
) -> Result<Decided<'a, B>, Error> {
    let before = found.map_or(Ok(0), |found| match found.value {
        // A counter that was put with a line end, as text tools do, is one too.
        Value::Inline(bytes, _) => parse(bytes.trim_ascii_end()).ok_or_else(not_a_number),
        Value::Body(_) => Err(not_a_number()),
    })?;
    let too_far = || Error::new(ErrorKind::BadRange, format!("{before} and {delta} are more than 64 bits hold"));
    let after = before.checked_add(delta).ok_or_else(too_far)?;
    let head = found.map_or_else(Head::default, |found| found.head);
    let new = New {
        value: NewValue::Small(Cow::Owned(after.to_string().into_bytes()), None),
        attributes: if found.is_some() { None } else { Some(&[]) },
        memcached: Default::default(),
        fence,
        ..kept(&head)
    };
    Ok(Decided { change: Change::Put(new), answer: Answer::Bytes(before.to_string().into_bytes()) })
}

fn not_a_number() -> Error {
    Error::new(ErrorKind::BadRequest, "the object is not a number")
}
