//! The meta commands.

use super::lines::answer_error;
use super::text::{self, Given};
use super::write_bytes;
use crate::context::Context;
use crate::metrics::VerbName;
use crate::service::Output;
use herd_core::Error;
use herd_core::door::memcached::{self as proto, Clock, Command, Meta, SetMode, reply};
use herd_core::entry::{Head, Memcached, Version};
use herd_core::limits::INLINE_MAX_BYTES;
use herd_core::{ErrorKind, entry};
use herd_store::{Body, Entry, NewObject, NewValue, Value};
use std::sync::Arc;

fn clock(cx: &Context) -> Clock {
    Clock { now_ms: cx.now.unix_ms, node_s: cx.now.uptime_s }
}

/// `mg`.
pub(super) fn get(cx: &mut Context, meta: &Meta<'_>, out: &mut Output<'_>) {
    cx.count(VerbName::Get);
    let mut buffer = Vec::new();
    let key = meta.key(&mut buffer);
    let shared = cx.shared.clone();
    let mut entry = shared.store.entry(&shared.default, key, cx.now);
    let mut created = false;
    if entry.version().is_none() {
        entry.count_get(false);
        if !meta.has(b'N') {
            drop(entry);
            if !meta.is_quiet() {
                proto::meta_miss(meta, b"EN", out.buf);
            }
            return;
        }
        created = true;
        let memcached = Memcached { cas: meta.new_cas, ..Memcached::default() };
        if let Err(error) = entry.put(&NewObject { memcached, ..NewObject::of(NewValue::Inline(b"")) }) {
            drop(entry);
            return answer_error(cx, VerbName::Get, &error, false, out);
        }
    }
    answer_get(cx, meta, &mut entry, created, out);
}

fn answer_get(cx: &Context, meta: &Meta<'_>, entry: &mut Entry<'_>, created: bool, out: &mut Output<'_>) {
    let Some(found) = entry.found() else {
        return proto::meta_miss(meta, b"EN", out.buf);
    };
    let before = found.head;
    let mut head = before;
    if proto::meta_get(meta, &mut head, created, clock(cx), out.buf) {
        write_bytes(found.value, out);
    }
    if (head.expires_ms, head.memcached) != (before.expires_ms, before.memcached) {
        // Without memory for a few bytes more the object stays as it is.
        entry.amend(head.expires_ms, head.flags, head.memcached).ok();
    }
    if created {
        return;
    }
    if meta.has(b'u') { entry.count_hit() } else { entry.count_get(true) }
}

/// What `ms` did.
enum Stored {
    /// Version and size of what is stored now.
    Done(Version, u64),
    /// Nothing, with this status.
    Not(&'static [u8; 2]),
}

/// `ms`.
pub(super) fn set(
    cx: &mut Context,
    command: &Command<'_>,
    meta: &Meta<'_>,
    mode: SetMode,
    given: &Given<'_>,
    out: &mut Output<'_>,
) {
    let mut buffer = Vec::new();
    let key = meta.key(&mut buffer).to_vec();
    let done = match mode {
        SetMode::Append | SetMode::Prepend => set_joined(cx, meta, mode, &key, given),
        SetMode::Set | SetMode::Add | SetMode::Replace => set_whole(cx, meta, mode, &key, given),
    };
    match done {
        Ok(Stored::Done(version, size_bytes)) => {
            cx.changed(&cx.shared.default, &key);
            if !meta.is_quiet() {
                let cas = if meta.new_cas != 0 { meta.new_cas } else { version };
                proto::meta_status(meta, b"HD", cas, size_bytes, out.buf);
            }
        }
        Ok(Stored::Not(status)) => proto::meta_status(meta, status, 0, given.len(), out.buf),
        Err(error) => {
            text::drop_old(cx, command);
            answer_error(cx, VerbName::Put, &error, false, out);
        }
    }
}

fn set_whole(cx: &Context, meta: &Meta<'_>, mode: SetMode, key: &[u8], given: &Given<'_>) -> Result<Stored, Error> {
    let mut entry = cx.shared.store.entry(&cx.shared.default, key, cx.now);
    let there = entry.found().map(|found| found.head);
    let mut expires_ms = proto::expires_ms(meta.exptime, cx.now.unix_ms);
    let mut memcached = Memcached { cas: meta.new_cas, ..Memcached::default() };
    match (mode, there) {
        (SetMode::Add, Some(_)) => {
            entry.mark_used();
            return Ok(Stored::Not(b"NS"));
        }
        (SetMode::Set | SetMode::Replace, None) if meta.has(b'C') => return Ok(Stored::Not(b"NF")),
        (SetMode::Replace, None) => return Ok(Stored::Not(b"NS")),
        (SetMode::Set | SetMode::Replace, Some(head)) if meta.has(b'C') && head.cas() != meta.compare_cas => {
            if !meta.has(b'I') || meta.compare_cas > head.cas() {
                return Ok(Stored::Not(b"EX"));
            }
            // An older value is kept as a stale one, with the expiry and the token of what it replaces.
            expires_ms = head.expires_ms;
            memcached.stale = true;
            memcached.token_sent = head.memcached.token_sent;
        }
        _ => {}
    }
    let new = NewObject { flags: meta.client_flags, expires_ms, memcached, ..NewObject::of(given.value()) };
    let version = entry.put(&new)?;
    Ok(Stored::Done(version, given.len()))
}

fn set_joined(
    cx: &mut Context,
    meta: &Meta<'_>,
    mode: SetMode,
    key: &[u8],
    given: &Given<'_>,
) -> Result<Stored, Error> {
    let check = |head: &Head| match meta.has(b'C') && head.cas() != meta.compare_cas {
        true => Err(Error::new(ErrorKind::ConditionFailed, "another CAS value")),
        false => Ok(()),
    };
    let memcached = Memcached { cas: meta.new_cas, ..Memcached::default() };
    match text::join(cx, key, given, mode == SetMode::Append, check, memcached) {
        Ok(Some((version, size_bytes))) => Ok(Stored::Done(version, size_bytes)),
        Ok(None) if meta.has(b'N') => {
            let expires_ms = proto::expires_ms(meta.vivify_exptime, cx.now.unix_ms);
            let new = NewObject { flags: meta.client_flags, expires_ms, memcached, ..NewObject::of(given.value()) };
            let version = cx.shared.store.entry(&cx.shared.default, key, cx.now).put(&new)?;
            Ok(Stored::Done(version, given.len()))
        }
        Ok(None) => Ok(Stored::Not(b"NS")),
        Err(error) if error.kind == ErrorKind::ConditionFailed => Ok(Stored::Not(b"EX")),
        Err(error) => Err(error),
    }
}

/// `md`.
pub(super) fn delete(cx: &mut Context, meta: &Meta<'_>, out: &mut Output<'_>) {
    cx.count(VerbName::Remove);
    let mut buffer = Vec::new();
    let key = meta.key(&mut buffer).to_vec();
    let shared = cx.shared.clone();
    let mut entry = shared.store.entry(&shared.default, &key, cx.now);
    let Some(head) = entry.found().map(|found| found.head) else {
        return proto::meta_miss(meta, b"NF", out.buf);
    };
    if meta.has(b'C') && head.cas() != meta.compare_cas {
        return proto::meta_miss(meta, b"EX", out.buf);
    }
    if let Err(error) = delete_found(cx, meta, &mut entry, &head) {
        drop(entry);
        return answer_error(cx, VerbName::Remove, &error, false, out);
    }
    drop(entry);
    cx.changed(&shared.default, &key);
    if !meta.is_quiet() {
        proto::meta_miss(meta, b"HD", out.buf);
    }
}

/// Removes it, empties it (`x`), or marks it stale (`I`).
fn delete_found(cx: &Context, meta: &Meta<'_>, entry: &mut Entry<'_>, head: &Head) -> Result<(), Error> {
    let (empty, stale) = (meta.has(b'x'), meta.has(b'I'));
    if !empty && !stale {
        entry.remove();
        return Ok(());
    }
    let kept = Kept::of(entry);
    let value = if empty { NewValue::Inline(b"") } else { kept.value() };
    let expires_ms = match meta.has(b'T') {
        true => proto::expires_ms(meta.exptime, cx.now.unix_ms),
        false if empty => 0,
        false => head.expires_ms,
    };
    let flags = if empty { meta.client_flags } else { head.flags };
    let memcached = Memcached { cas: meta.new_cas, stale, token_sent: false };
    entry.put(&NewObject { value, flags, expires_ms, attributes: &kept.attributes, memcached }).map(|_| ())
}

/// A value taken out of an entry, to be put back with another head.
struct Kept {
    bytes: Vec<u8>,
    body: Option<Arc<Body>>,
    attributes: Vec<u8>,
}

impl Kept {
    fn of(entry: &Entry<'_>) -> Self {
        let mut kept = Self { bytes: Vec::new(), body: None, attributes: Vec::new() };
        if let Some(found) = entry.found() {
            kept.attributes = found.attributes.to_vec();
            match found.value {
                Value::Inline(bytes, _) => kept.bytes = bytes.to_vec(),
                Value::Body(body) => kept.body = Some(body.clone()),
            }
        }
        assert!(kept.bytes.len() <= INLINE_MAX_BYTES, "an inline value fits beside its key");
        kept
    }

    fn value(&self) -> NewValue<'_> {
        self.body.as_ref().map_or(NewValue::Inline(&self.bytes), |body| NewValue::Body(body.clone()))
    }
}

/// `ma`.
pub(super) fn arith(cx: &mut Context, meta: &Meta<'_>, decrement: bool, out: &mut Output<'_>) {
    cx.count(VerbName::Arithmetic);
    let mut buffer = Vec::new();
    let key = meta.key(&mut buffer).to_vec();
    let shared = cx.shared.clone();
    let mut entry = shared.store.entry(&shared.default, &key, cx.now);
    let there = entry.found().map(|found| found.head);
    let memcached = Memcached { cas: meta.new_cas, ..Memcached::default() };
    let (created, done) = match there {
        None if !meta.has(b'N') => return proto::meta_miss(meta, b"NF", out.buf),
        None => (true, begin_number(cx, meta, &mut entry, memcached).map(Some)),
        Some(head) if meta.has(b'C') && head.cas() != meta.compare_cas => {
            return proto::meta_miss(meta, b"EX", out.buf);
        }
        Some(head) => (false, text::add(&mut entry, meta.delta, decrement, head.expires_ms, memcached)),
    };
    let value = match done {
        Ok(Some((value, _))) => value,
        Ok(None) => return out.buf.extend_from_slice(reply::NON_NUMERIC),
        Err(error) => {
            drop(entry);
            return answer_error(cx, VerbName::Arithmetic, &error, false, out);
        }
    };
    let mut head = entry.found().map(|found| found.head).unwrap_or_default();
    let before = head.expires_ms;
    let start = out.buf.len();
    proto::meta_arith(meta, &mut head, created, clock(cx), value, out.buf);
    if meta.is_quiet() {
        out.buf.truncate(start);
    }
    if head.expires_ms != before {
        // Without memory for a few bytes more the object keeps its expiry.
        entry.amend(head.expires_ms, head.flags, head.memcached).ok();
    }
    drop(entry);
    cx.changed(&shared.default, &key);
}

fn begin_number(
    cx: &Context,
    meta: &Meta<'_>,
    entry: &mut Entry<'_>,
    memcached: Memcached,
) -> Result<(u64, entry::Version), Error> {
    let mut digits = Vec::new();
    proto::decimal(meta.initial, &mut digits);
    let expires_ms = proto::expires_ms(meta.vivify_exptime, cx.now.unix_ms);
    let new = NewObject { expires_ms, memcached, ..NewObject::of(NewValue::Inline(&digits)) };
    Ok((meta.initial, entry.put(&new)?))
}

/// `me`.
pub(super) fn debug(cx: &mut Context, meta: &Meta<'_>, out: &mut Output<'_>) {
    cx.count(VerbName::Admin);
    let mut buffer = Vec::new();
    let key = meta.key(&mut buffer);
    let entry = cx.shared.store.entry(&cx.shared.default, key, cx.now);
    match entry.found() {
        Some(found) => proto::meta_debug(meta, &found.head, clock(cx), out.buf),
        None => out.buf.extend_from_slice(reply::META_DEBUG_MISS),
    }
}
