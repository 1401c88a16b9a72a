//! What memcached's commands do to an item, as memcached 1.6 does it (its protocol.txt); where not, PROTOCOL.md §3 says
//! so. The door parses the line and writes the reply; here is only what becomes of the item.
//!
//! Flags of a meta command take effect in their order, so the door writes its reply by the same walk over the item as
//! it was ([`crate::door::memcached::meta_get`]) as is taken here to change it.

use super::value;
use crate::change::{Answer, Change, Circumstances, Decided, Given, Large, New, NewValue, absent, check_size, kept};
use crate::door::memcached::{self as door, Clock, Meta, SetMode};
use crate::entry::{Condition, Fence, Found, Head, Memcached, Value};
use crate::{Error, ErrorKind};
use std::borrow::Cow;

/// Longest number.
const NUMBER_MAX_BYTES: usize = 20;

/// What a memcached command does, where it is more than a put or a remove under a condition.
#[derive(Clone, Debug)]
pub enum Method<'a, B> {
    /// `touch`, `gat`, `gats`: a new expiry.
    Touch {
        /// As memcached counts it.
        exptime: i64,
    },
    /// `incr`, `decr`; answers the new number.
    Arith {
        /// What to add or take away.
        delta: u64,
        /// Take away, but not below 0.
        decrement: bool,
    },
    /// `mg` that may make an item, change its expiry or hand out the right to recache.
    Get(&'a Meta<'a>),
    /// `ms`; answers the size of the item.
    Set {
        /// Key and flags.
        meta: &'a Meta<'a>,
        /// How to store.
        mode: SetMode,
        /// The value.
        value: Given<'a, B>,
    },
    /// `md`.
    Delete(&'a Meta<'a>),
    /// `ma`; answers the new number.
    MetaArith {
        /// Key and flags.
        meta: &'a Meta<'a>,
        /// Take away.
        decrement: bool,
    },
}

pub(super) fn decide<'a, B: Large>(
    method: &Method<'a, B>,
    max_bytes: u64,
    found: Option<&Found<'_, B>>,
    fence: Option<Fence>,
    at: &Circumstances,
) -> Result<Decided<'a, B>, Error> {
    match method {
        Method::Touch { exptime } => {
            let found = found.ok_or_else(absent)?;
            let expires_ms = door::expires_ms(*exptime, at.now_ms);
            Ok(put(New { expires_ms, fence, ..kept(&found.head) }, Answer::Nothing))
        }
        Method::Arith { delta, decrement } => {
            let found = found.ok_or_else(absent)?;
            let (digits, padded) = sum(found, *delta, *decrement)?;
            let expires_ms = found.head.expires_ms;
            Ok(number(digits, padded, Some(found), expires_ms, Memcached::default(), fence))
        }
        Method::Get(meta) => get(meta, found, fence, at),
        Method::Set { meta, mode, value } => set(meta, *mode, value, max_bytes, found, fence, at),
        Method::Delete(meta) => delete(meta, found, fence, at),
        Method::MetaArith { meta, decrement } => arith(meta, *decrement, found, fence, at),
    }
}

fn put<'a, B>(new: New<'a, B>, answer: Answer<B>) -> Decided<'a, B> {
    Decided { change: Change::Put(new), answer }
}

fn clock(at: &Circumstances) -> Clock {
    Clock { now_ms: at.now_ms, node_s: 0 }
}

/// Flag `C`: the CAS value is the one that was given.
fn compare(meta: &Meta<'_>, head: &Head) -> Result<(), Error> {
    if meta.has(b'C') { Condition::IfCas(meta.compare_cas).check_head(Some(head)) } else { Ok(()) }
}

/// Whether an `mg` leaves the item, or that there is none, as it is.
pub(super) fn only_shows<B>(meta: &Meta<'_>, found: Option<&Found<'_, B>>, at: &Circumstances) -> bool {
    let Some(found) = found else {
        return !meta.has(b'N');
    };
    let mut head = found.head;
    door::meta_get_effects(meta, &mut head, false, clock(at));
    head == found.head
}

/// A miss makes an item where `N` was given; a hit is changed as its flags say.
fn get<'a, B: Large>(
    meta: &Meta<'_>,
    found: Option<&Found<'_, B>>,
    fence: Option<Fence>,
    at: &Circumstances,
) -> Result<Decided<'a, B>, Error> {
    let Some(found) = found else {
        if !meta.has(b'N') {
            return Err(absent());
        }
        let mut head = Head { memcached: Memcached { cas: meta.new_cas, ..Default::default() }, ..Head::default() };
        door::meta_get_effects(meta, &mut head, true, clock(at));
        let new = New {
            value: NewValue::Small(Cow::Borrowed(&[]), None),
            attributes: Some(&[]),
            memcached: head.memcached,
            fence,
            ..kept(&head)
        };
        return Ok(put(new, Answer::Nothing));
    };
    let mut head = found.head;
    door::meta_get_effects(meta, &mut head, false, clock(at));
    if head == found.head {
        return Ok(Decided { change: Change::None, answer: Answer::Nothing });
    }
    Ok(put(New { fence, ..kept(&head) }, Answer::Nothing))
}

fn set<'a, B: Large>(
    meta: &Meta<'_>,
    mode: SetMode,
    given: &Given<'a, B>,
    max_bytes: u64,
    found: Option<&Found<'_, B>>,
    fence: Option<Fence>,
    at: &Circumstances,
) -> Result<Decided<'a, B>, Error> {
    let mut memcached = Memcached { cas: meta.new_cas, ..Memcached::default() };
    if let (SetMode::Append | SetMode::Prepend, Some(found)) = (mode, found) {
        compare(meta, &found.head)?;
        let mut joined = value::join(max_bytes, given, mode == SetMode::Append, false, Some(found), fence)?;
        if let Change::Put(new) = &mut joined.change {
            new.memcached = memcached;
        }
        return Ok(joined);
    }
    let head = found.map(|found| &found.head);
    let mut expires_ms = door::expires_ms(meta.exptime, at.now_ms);
    match (mode, head) {
        (SetMode::Add, head) => Condition::IfAbsent.check_head(head)?,
        (SetMode::Append | SetMode::Prepend, _) if meta.has(b'N') => {
            expires_ms = door::expires_ms(meta.vivify_exptime, at.now_ms);
        }
        (SetMode::Append | SetMode::Prepend, _) => return Err(absent()),
        (SetMode::Set | SetMode::Replace, None) if meta.has(b'C') => return Err(absent()),
        (SetMode::Replace, head) if !meta.has(b'C') => Condition::IfPresent.check_head(head)?,
        (SetMode::Set | SetMode::Replace, Some(head)) => {
            let older = meta.has(b'I') && meta.compare_cas != 0 && meta.compare_cas < head.cas();
            if older {
                // An older value is kept as a stale one, with the expiry and the token of what it replaces.
                expires_ms = head.expires_ms;
                (memcached.stale, memcached.token_sent) = (true, head.memcached.token_sent);
            } else {
                compare(meta, head)?;
            }
        }
        (SetMode::Set | SetMode::Replace, None) => {}
    }
    check_size(given.len(), max_bytes)?;
    let answer = Answer::Bytes(given.len().to_string().into_bytes());
    let flags = meta.client_flags;
    let value = NewValue::of(given);
    Ok(put(New { value, flags, expires_ms, attributes: Some(&[]), memcached, fence }, answer))
}

/// Removes the item, empties it (`x`), or marks it stale (`I`).
fn delete<'a, B: Large>(
    meta: &Meta<'_>,
    found: Option<&Found<'_, B>>,
    fence: Option<Fence>,
    at: &Circumstances,
) -> Result<Decided<'a, B>, Error> {
    let found = found.ok_or_else(absent)?;
    compare(meta, &found.head)?;
    let (empty, stale) = (meta.has(b'x'), meta.has(b'I'));
    if !empty && !stale {
        return Ok(Decided { change: Change::Remove(fence), answer: Answer::Nothing });
    }
    let head = &found.head;
    let expires_ms = match meta.has(b'T') {
        true => door::expires_ms(meta.exptime, at.now_ms),
        false if empty => 0,
        false => head.expires_ms,
    };
    let new = New {
        value: if empty { NewValue::Small(Cow::Borrowed(&[]), None) } else { NewValue::Kept },
        flags: if empty { meta.client_flags } else { head.flags },
        expires_ms,
        attributes: None,
        memcached: Memcached { cas: meta.new_cas, stale, token_sent: false },
        fence,
    };
    Ok(put(new, Answer::Nothing))
}

fn arith<'a, B: Large>(
    meta: &Meta<'_>,
    decrement: bool,
    found: Option<&Found<'_, B>>,
    fence: Option<Fence>,
    at: &Circumstances,
) -> Result<Decided<'a, B>, Error> {
    let memcached = Memcached { cas: meta.new_cas, ..Memcached::default() };
    let mut head = found.map(|found| found.head).unwrap_or_default();
    let (digits, padded) = match found {
        None if !meta.has(b'N') => return Err(absent()),
        None => {
            let mut digits = Vec::with_capacity(NUMBER_MAX_BYTES);
            door::decimal(meta.initial, &mut digits);
            (digits.clone(), digits)
        }
        Some(found) => {
            compare(meta, &found.head)?;
            sum(found, meta.delta, decrement)?
        }
    };
    door::meta_arith_effects(meta, &mut head, found.is_none(), clock(at));
    Ok(number(digits, padded, found, head.expires_ms, memcached, fence))
}

/// The number that is there and `delta`, and the same padded with spaces to the length that was there, as memcached
/// does. Error `BadRequest`: it is no number.
fn sum<B>(found: &Found<'_, B>, delta: u64, decrement: bool) -> Result<(Vec<u8>, Vec<u8>), Error> {
    let no_number = || Error::new(ErrorKind::BadRequest, "cannot increment or decrement a value that is no number");
    let Value::Inline(old, _) = found.value else {
        return Err(no_number());
    };
    let value = door::apply_delta(old.trim_ascii_end(), delta, decrement).ok_or_else(no_number)?;
    let mut digits = Vec::with_capacity(NUMBER_MAX_BYTES);
    door::decimal(value, &mut digits);
    let mut padded = digits.clone();
    padded.resize(padded.len().max(old.len()), b' ');
    Ok((digits, padded))
}

fn number<'a, B>(
    digits: Vec<u8>,
    padded: Vec<u8>,
    found: Option<&Found<'_, B>>,
    expires_ms: u64,
    memcached: Memcached,
    fence: Option<Fence>,
) -> Decided<'a, B> {
    let new = New {
        value: NewValue::Small(Cow::Owned(padded), None),
        flags: found.map_or(0, |found| found.head.flags),
        expires_ms,
        attributes: if found.is_some() { None } else { Some(&[]) },
        memcached,
        fence,
    };
    put(new, Answer::Bytes(digits))
}
