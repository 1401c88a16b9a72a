//! The text commands that change something: storage commands, `delete`, `incr`, `decr`, `touch`.

use super::lines::answer_error;
use super::meta;
use crate::context::Context;
use crate::metrics::VerbName;
use crate::service::Output;
use herd_core::door::memcached::{self as proto, Command, Store, StoreVerb, reply};
use herd_core::entry::{Head, Memcached, Version};
use herd_core::limits::INLINE_MAX_BYTES;
use herd_core::{Error, ErrorKind};
use herd_store::{Body, Entry, NewObject, NewValue, Value};
use std::sync::Arc;

/// Longest value `incr` takes for a number.
const NUMBER_MAX_BYTES: usize = 20;
/// Tries of an append that others keep coming before.
const TRIES: usize = 16;

/// The value that came with a command.
#[derive(Clone)]
pub(super) enum Given<'a> {
    Small(&'a [u8]),
    Large(Arc<Body>),
}

impl<'a> Given<'a> {
    pub(super) fn value(&self) -> NewValue<'a> {
        match self {
            Given::Small(bytes) => NewValue::Inline(bytes),
            Given::Large(body) => NewValue::Body(body.clone()),
        }
    }

    pub(super) fn len(&self) -> u64 {
        match self {
            Given::Small(bytes) => bytes.len() as u64,
            Given::Large(body) => body.len(),
        }
    }
}

/// A storage command whose value is there.
#[inline]
pub(super) fn dispatch(cx: &mut Context, command: &Command<'_>, given: Given<'_>, out: &mut Output<'_>) {
    cx.count(VerbName::Put);
    match command {
        Command::Store(store) => match serve_store(cx, store, &given) {
            Ok(reply) if !store.quiet => out.buf.extend_from_slice(reply),
            Ok(_) => {}
            Err(error) => {
                drop_old(cx, command);
                answer_error(cx, VerbName::Put, &error, store.quiet, out);
            }
        },
        Command::MetaSet { meta, mode, .. } => meta::set(cx, command, meta, *mode, &given, out),
        _ => unreachable!("only these have a body"),
    }
}

/// A `set`, or an `ms` in its own mode that compares nothing, must not leave the old value where it fails: the client
/// meant it to be gone. Every other command leaves what is there.
pub(super) fn drop_old(cx: &Context, command: &Command<'_>) {
    let mut buffer = Vec::new();
    let key = match command {
        Command::Store(store) if store.verb == StoreVerb::Set => store.key,
        Command::MetaSet { meta, mode: proto::SetMode::Set, .. } if !meta.has(b'C') => meta.key(&mut buffer),
        _ => return,
    };
    cx.shared.store.entry(&cx.shared.default, key, cx.now).remove();
    cx.changed(&cx.shared.default, key);
}

#[inline]
fn serve_store(cx: &mut Context, store: &Store<'_>, given: &Given<'_>) -> Result<&'static [u8], Error> {
    if matches!(store.verb, StoreVerb::Append | StoreVerb::Prepend) {
        let joined = join(cx, store.key, given, store.verb == StoreVerb::Append, |_| Ok(()), Memcached::default())?;
        return Ok(if joined.is_some() { reply::STORED } else { reply::NOT_STORED });
    }
    let expires_ms = proto::expires_ms(store.exptime, cx.now.unix_ms);
    let new = NewObject { flags: store.flags, expires_ms, ..NewObject::of(given.value()) };
    let mut entry = cx.shared.store.entry(&cx.shared.default, store.key, cx.now);
    let refused = match store.verb {
        StoreVerb::Set | StoreVerb::Append | StoreVerb::Prepend => None,
        StoreVerb::Add => entry.version().map(|_| reply::NOT_STORED),
        StoreVerb::Replace if entry.version().is_none() => Some(reply::NOT_STORED),
        StoreVerb::Replace => None,
        StoreVerb::Cas => match entry.found().map(|found| found.head.cas()) {
            None => Some(reply::NOT_FOUND),
            Some(cas) if cas != store.cas => Some(reply::EXISTS),
            Some(_) => None,
        },
    };
    if let Some(refused) = refused {
        entry.mark_used();
        return Ok(refused);
    }
    entry.put(&new)?;
    drop(entry);
    cx.changed(&cx.shared.default, store.key);
    Ok(reply::STORED)
}

/// Puts a value behind or before what is there; `None` if nothing is. The new value is made outside the lock, so it is
/// made again if somebody else was quicker. `check` may refuse what is there.
pub(super) fn join(
    cx: &mut Context,
    key: &[u8],
    given: &Given<'_>,
    behind: bool,
    check: impl Fn(&Head) -> Result<(), Error>,
    memcached: Memcached,
) -> Result<Option<(Version, u64)>, Error> {
    let shared = cx.shared.clone();
    for _ in 0..TRIES {
        let entry = shared.store.entry(&shared.default, key, cx.now);
        let Some(found) = entry.found() else {
            return Ok(None);
        };
        let (head, attributes) = (found.head, found.attributes.to_vec());
        check(&head)?;
        let old = match found.value {
            Value::Inline(bytes, _) => Ok(bytes.to_vec()),
            Value::Body(body) => Err(body.clone()),
        };
        drop(entry);
        let old = match &old {
            Ok(bytes) => Given::Small(bytes),
            Err(body) => Given::Large(body.clone()),
        };
        let parts = if behind { [&old, given] } else { [given, &old] };
        let size_bytes = old.len() + given.len();
        if size_bytes > shared.config.memcached_max_bytes {
            return Err(Error::new(ErrorKind::TooLarge, "the joined value is over the limit"));
        }
        let bytes;
        let value = if size_bytes <= INLINE_MAX_BYTES as u64 {
            bytes = parts.iter().flat_map(|part| bytes_of(part)).collect::<Vec<u8>>();
            NewValue::Inline(&bytes)
        } else {
            NewValue::Body(Arc::new(join_large(cx, key, parts, size_bytes)?))
        };
        let mut entry = shared.store.entry(&shared.default, key, cx.now);
        if entry.version() != Some(head.version) {
            continue;
        }
        let (flags, expires_ms) = (head.flags, head.expires_ms);
        let version = entry.put(&NewObject { value, flags, expires_ms, attributes: &attributes, memcached })?;
        drop(entry);
        cx.changed(&shared.default, key);
        return Ok(Some((version, size_bytes)));
    }
    Err(Error::new(ErrorKind::Busy, "the object changed again and again"))
}

fn bytes_of(part: &Given<'_>) -> Vec<u8> {
    match part {
        Given::Small(bytes) => bytes.to_vec(),
        // Both parts together fit beside a key, so this one has one block.
        Given::Large(body) => body.chunk(0).to_vec(),
    }
}

fn join_large(cx: &Context, key: &[u8], parts: [&Given<'_>; 2], size_bytes: u64) -> Result<Body, Error> {
    let mut upload = cx.shared.store.admit(&cx.shared.default, key, Some(size_bytes))?;
    for part in parts {
        match part {
            Given::Small(bytes) => upload.write(bytes, cx.now)?,
            Given::Large(body) => upload.copy(body, 0, body.len(), cx.now)?,
        }
    }
    upload.finish(cx.now)
}

pub(super) fn delete(cx: &mut Context, key: &[u8], quiet: bool, out: &mut Output<'_>) {
    cx.count(VerbName::Remove);
    let removed = cx.shared.store.entry(&cx.shared.default, key, cx.now).remove();
    if removed.is_some() {
        cx.changed(&cx.shared.default, key);
    }
    super::admin::say(if removed.is_some() { reply::DELETED } else { reply::NOT_FOUND }, quiet, out);
}

pub(super) fn touch(cx: &mut Context, key: &[u8], exptime: i64, quiet: bool, out: &mut Output<'_>) {
    cx.count(VerbName::Touch);
    let done = set_expiry(cx, key, exptime);
    super::admin::say(if done { reply::TOUCHED } else { reply::NOT_FOUND }, quiet, out);
}

/// Gives an object a new expiry; false if there is none.
pub(super) fn set_expiry(cx: &mut Context, key: &[u8], exptime: i64) -> bool {
    let mut entry = cx.shared.store.entry(&cx.shared.default, key, cx.now);
    let Some(head) = entry.found().map(|found| found.head) else {
        return false;
    };
    let expires_ms = proto::expires_ms(exptime, cx.now.unix_ms);
    // Without memory for the few bytes of an expiry it keeps the old one.
    entry.amend(expires_ms, head.flags, head.memcached).is_ok()
}

pub(super) fn arith(cx: &mut Context, key: &[u8], delta: u64, decrement: bool, quiet: bool, out: &mut Output<'_>) {
    cx.count(VerbName::Arithmetic);
    let shared = cx.shared.clone();
    let mut entry = shared.store.entry(&shared.default, key, cx.now);
    let Some(head) = entry.found().map(|found| found.head) else {
        return super::admin::say(reply::NOT_FOUND, quiet, out);
    };
    match add(&mut entry, delta, decrement, head.expires_ms, Memcached::default()) {
        Ok(Some((value, _))) => {
            drop(entry);
            cx.changed(&shared.default, key);
            if !quiet {
                proto::decimal(value, out.buf);
                out.buf.extend_from_slice(b"\r\n");
            }
        }
        Ok(None) => super::admin::say(reply::NON_NUMERIC, quiet, out),
        Err(error) => answer_error(cx, VerbName::Arithmetic, &error, quiet, out),
    }
}

/// Adds to the number that is there: the new number and version, or `None` if it is none. A shorter number is padded
/// with spaces, as memcached does.
pub(super) fn add(
    entry: &mut Entry<'_>,
    delta: u64,
    decrement: bool,
    expires_ms: u64,
    memcached: Memcached,
) -> Result<Option<(u64, Version)>, Error> {
    let Some(found) = entry.found() else {
        return Ok(None);
    };
    let Value::Inline(old, _) = found.value else {
        return Ok(None);
    };
    let Some(value) = proto::apply_delta(old.trim_ascii_end(), delta, decrement) else {
        return Ok(None);
    };
    let (flags, attributes, len) = (found.head.flags, found.attributes.to_vec(), old.len());
    let mut digits = Vec::with_capacity(NUMBER_MAX_BYTES);
    proto::decimal(value, &mut digits);
    digits.resize(digits.len().max(len), b' ');
    let new = NewObject { value: NewValue::Inline(&digits), flags, expires_ms, attributes: &attributes, memcached };
    let version = entry.put(&new)?;
    Ok(Some((value, version)))
}
