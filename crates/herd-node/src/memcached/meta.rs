//! The meta commands: each is an operation, and a reply by the walk over its flags.

use super::lines::answer_error;
use super::text::{self, Given};
use super::write_bytes;
use crate::apply::{Done, Elsewhere, Outcome};
use crate::context::{Context, Output};
use crate::metrics::VerbName;
use herd_core::ErrorKind;
use herd_core::door::memcached::{self as proto, Clock, Meta, SetMode, reply};
use herd_core::entry::{Head, Memcached};
use herd_core::method::memcached::Method;
use herd_core::op::{Answer, Op};
use herd_store::{Body, Found};
use std::sync::Arc;

/// `mg`. One that changes nothing is answered from the object where it lies.
pub(super) fn get(cx: &mut Context, meta: &Meta<'_>, out: &mut Output<'_>) -> Result<(), Elsewhere> {
    cx.count(VerbName::Get);
    let mut buffer = Vec::new();
    let key = meta.key(&mut buffer);
    if [b'N', b'T', b'R'].iter().any(|flag| meta.has(*flag)) || !get_as_it_is(cx, meta, key, out)? {
        let op = text::method(cx, Method::Get(meta));
        text::run(cx, key, &op, |outcome| answer_got(cx, meta, outcome, out))?;
    }
    Ok(())
}

/// Answers with the item as it is; false, with nothing done, if the right to recache must be handed out with it.
fn get_as_it_is(cx: &Context, meta: &Meta<'_>, key: &[u8], out: &mut Output<'_>) -> Result<bool, Elsewhere> {
    let mut entry = cx.shared.store.entry(&cx.shared.default, key, cx.now);
    if !cx.shared.gates.decides(&entry) {
        return Err(Elsewhere);
    }
    match entry.found() {
        Some(found) if found.head.memcached.stale && !found.head.memcached.token_sent => return Ok(false),
        Some(found) => answer_get(cx, meta, found.head, &found, (false, cx.clock()), out),
        None if !meta.is_quiet() => proto::meta_miss(meta, b"EN", out.buf),
        None => {}
    }
    let hit = entry.version().is_some();
    if hit && meta.has(b'u') {
        entry.count_hit()
    } else {
        entry.count_get(hit)
    }
    Ok(true)
}

/// The reply to `mg`, by what became of the item.
pub(super) fn answer_got(cx: &Context, meta: &Meta<'_>, mut outcome: Outcome<'_, '_>, out: &mut Output<'_>) {
    let (hit, clock) = (outcome.before.is_some(), outcome.clock(cx));
    if let (Ok((version, _)), Some(found)) = (&outcome.done, outcome.found()) {
        let made = Memcached { cas: meta.new_cas, ..Memcached::default() };
        let head = Head { version: *version, memcached: made, access_s: clock.node_s, ..Head::default() };
        answer_get(cx, meta, outcome.before.unwrap_or(head), &found, (!hit, clock), out);
    }
    if hit && meta.has(b'u') {
        outcome.count_hit()
    } else {
        outcome.count_get(hit)
    }
    match outcome.done.err() {
        Some(error) if error.kind == ErrorKind::NotFound && meta.is_quiet() => {}
        Some(error) if error.kind == ErrorKind::NotFound => proto::meta_miss(meta, b"EN", out.buf),
        Some(error) => answer_error(cx, VerbName::Get, &error, false, out),
        None => {}
    }
}

/// The reply to a hit, or to a miss that made an item; `head` is the item's before the command changed it.
fn answer_get(
    cx: &Context,
    meta: &Meta<'_>,
    mut head: Head,
    found: &Found<'_>,
    (created, clock): (bool, Clock),
    out: &mut Output<'_>,
) {
    if proto::meta_get(meta, &mut head, created, clock, out.buf) {
        cx.count_out(VerbName::Get, found.head.size_bytes);
        write_bytes(found.value, out);
    }
}

/// Whether a failed `ms` must not leave the old value.
pub(super) fn else_removes(meta: &Meta<'_>, mode: SetMode) -> bool {
    mode == SetMode::Set && !meta.has(b'C')
}

/// `ms`, as an operation.
pub(super) fn set_op<'a>(cx: &Context, meta: &'a Meta<'a>, mode: SetMode, value: Given<'a>) -> Op<'a, Arc<Body>> {
    let op = text::method(cx, Method::Set { meta, mode, value });
    Op { else_remove: else_removes(meta, mode), ..op }
}

/// `ms`.
pub(super) fn set(
    cx: &mut Context,
    meta: &Meta<'_>,
    mode: SetMode,
    given: Given<'_>,
    out: &mut Output<'_>,
) -> Result<(), Elsewhere> {
    let mut buffer = Vec::new();
    let (key, given_bytes) = (meta.key(&mut buffer), given.len());
    let done = text::run(cx, key, &set_op(cx, meta, mode, given), |outcome| outcome.done)?;
    answer_set(cx, meta, mode, given_bytes, done, out);
    Ok(())
}

pub(super) fn answer_set(
    cx: &Context,
    meta: &Meta<'_>,
    mode: SetMode,
    given_bytes: u64,
    done: Done,
    out: &mut Output<'_>,
) {
    let status = match done {
        Ok((_, _)) if meta.is_quiet() => return,
        Ok((version, answer)) => {
            let cas = if meta.new_cas != 0 { meta.new_cas } else { version };
            let size_bytes = number(&answer).unwrap_or(given_bytes);
            return proto::meta_status(meta, b"HD", cas, size_bytes, out.buf);
        }
        Err(error) => match (error.kind, mode) {
            (ErrorKind::ConditionFailed, SetMode::Add) => b"NS",
            (ErrorKind::ConditionFailed, SetMode::Replace) if !meta.has(b'C') => b"NS",
            (ErrorKind::ConditionFailed, _) => b"EX",
            (ErrorKind::NotFound, SetMode::Append | SetMode::Prepend) => b"NS",
            (ErrorKind::NotFound, _) => b"NF",
            _ => return answer_error(cx, VerbName::Put, &error, false, out),
        },
    };
    proto::meta_status(meta, status, 0, given_bytes, out.buf);
}

/// `md`.
pub(super) fn delete(cx: &mut Context, meta: &Meta<'_>, out: &mut Output<'_>) -> Result<(), Elsewhere> {
    cx.count(VerbName::Remove);
    let mut buffer = Vec::new();
    let key = meta.key(&mut buffer);
    let done = text::run(cx, key, &text::method(cx, Method::Delete(meta)), |outcome| outcome.done)?;
    answer_delete(cx, meta, done, out);
    Ok(())
}

pub(super) fn answer_delete(cx: &Context, meta: &Meta<'_>, done: Done, out: &mut Output<'_>) {
    match done {
        Ok(_) if meta.is_quiet() => {}
        Ok(_) => proto::meta_miss(meta, b"HD", out.buf),
        Err(error) => answer_miss(cx, meta, VerbName::Remove, &error, out),
    }
}

/// `ma`.
pub(super) fn arith(cx: &mut Context, meta: &Meta<'_>, decrement: bool, out: &mut Output<'_>) -> Result<(), Elsewhere> {
    cx.count(VerbName::Arithmetic);
    let mut buffer = Vec::new();
    let key = meta.key(&mut buffer);
    let op = text::method(cx, Method::MetaArith { meta, decrement });
    let (done, before) = text::run(cx, key, &op, |outcome| (outcome.done, outcome.before))?;
    answer_arith(cx, meta, done, before, cx.clock(), out);
    Ok(())
}

pub(super) fn answer_arith(
    cx: &Context,
    meta: &Meta<'_>,
    done: Done,
    before: Option<Head>,
    clock: Clock,
    out: &mut Output<'_>,
) {
    match done {
        Ok(_) if meta.is_quiet() => {}
        Ok((version, answer)) => {
            // The reply speaks of the new CAS value, and of the expiry as the flags change it, one after the other.
            let memcached = Memcached { cas: meta.new_cas, ..Memcached::default() };
            let expires_ms = before.map_or(0, |head| head.expires_ms);
            let mut head = Head { version, memcached, expires_ms, ..Head::default() };
            let value = number(&answer).unwrap_or_default();
            proto::meta_arith(meta, &mut head, before.is_none(), clock, value, out.buf);
        }
        Err(error) if error.kind == ErrorKind::BadRequest => out.buf.extend_from_slice(reply::NON_NUMERIC),
        Err(error) => answer_miss(cx, meta, VerbName::Arithmetic, &error, out),
    }
}

/// `NF` and `EX` with the opaque and the key; other errors as they are.
fn answer_miss(cx: &Context, meta: &Meta<'_>, verb: VerbName, error: &herd_core::Error, out: &mut Output<'_>) {
    match error.kind {
        ErrorKind::NotFound => proto::meta_miss(meta, b"NF", out.buf),
        ErrorKind::ConditionFailed => proto::meta_miss(meta, b"EX", out.buf),
        _ => answer_error(cx, verb, error, false, out),
    }
}

/// The number a method answered.
fn number<B>(answer: &Answer<B>) -> Option<u64> {
    match answer {
        Answer::Bytes(digits) => std::str::from_utf8(digits).ok()?.parse().ok(),
        Answer::Nothing | Answer::Large(_) => None,
    }
}

/// `me`.
pub(super) fn debug(cx: &mut Context, meta: &Meta<'_>, out: &mut Output<'_>) -> Result<(), Elsewhere> {
    cx.count(VerbName::Admin);
    let mut buffer = Vec::new();
    let key = meta.key(&mut buffer);
    let entry = cx.shared.store.entry(&cx.shared.default, key, cx.now);
    if !cx.shared.gates.decides(&entry) {
        return Err(Elsewhere);
    }
    answer_debug(meta, entry.found().map(|found| found.head), cx.clock(), out);
    Ok(())
}

pub(super) fn answer_debug(meta: &Meta<'_>, head: Option<Head>, clock: Clock, out: &mut Output<'_>) {
    match head {
        Some(head) => proto::meta_debug(meta, &head, clock, out.buf),
        None => out.buf.extend_from_slice(reply::META_DEBUG_MISS),
    }
}
