//! The text commands that change something: storage commands, `delete`, `incr`, `decr`, `touch`. Each is an operation
//! and the words for what became of it, here or at another node.

use super::lines::answer_error;
use super::meta;
use crate::apply::{Done, Elsewhere, Outcome, apply};
use crate::context::{Context, Output};
use crate::metrics::VerbName;
use herd_core::Error;
use herd_core::ErrorKind;
use herd_core::door::memcached::{self as proto, Command, Store, StoreVerb, reply};
use herd_core::entry::{Condition, Head};
use herd_core::method::{Method, memcached};
use herd_core::op::{Action, Answer, Op, Put};
use herd_store::Body;
use std::sync::Arc;

pub(super) use herd_store::Given;

/// A storage command whose value is there.
#[inline]
pub(super) fn dispatch(
    cx: &mut Context,
    command: &Command<'_>,
    given: Given<'_>,
    out: &mut Output<'_>,
) -> Result<(), Elsewhere> {
    cx.count(VerbName::Put);
    cx.count_in(VerbName::Put, given.len());
    match command {
        Command::Store(store) => {
            let op = store_op(cx, store, given);
            let (done, before) = run(cx, store.key, &op, |outcome| (outcome.done.map(drop), outcome.before))?;
            answer_store(cx, store, done, before, out);
            Ok(())
        }
        Command::MetaSet { meta, mode, .. } => meta::set(cx, meta, *mode, given, out),
        _ => unreachable!("only these have a body"),
    }
}

/// A memcached command as an operation on collection `default`.
pub(super) fn method<'a>(cx: &Context, method: memcached::Method<'a, Arc<Body>>) -> Op<'a, Arc<Body>> {
    Op::new(Action::Execute(Method::Memcached(method)), cx.shared.config.memcached_max_bytes)
}

/// Carries out an operation on an item.
#[inline]
pub(super) fn run<R>(
    cx: &Context,
    key: &[u8],
    op: &Op<'_, Arc<Body>>,
    finish: impl FnOnce(Outcome<'_, '_>) -> R,
) -> Result<R, Elsewhere> {
    apply(cx, &cx.shared.default, key, op, finish)
}

/// The words for what became of a storage command.
#[inline]
pub(super) fn answer_store(
    cx: &Context,
    store: &Store<'_>,
    done: Result<(), Error>,
    before: Option<Head>,
    out: &mut Output<'_>,
) {
    let said = match (&done, store.verb) {
        (Ok(()), _) => reply::STORED,
        (Err(error), StoreVerb::Cas) if error.kind == ErrorKind::ConditionFailed => match before {
            Some(_) => reply::EXISTS,
            None => reply::NOT_FOUND,
        },
        // An append to nothing stores nothing, as an add to something does.
        (Err(error), _) if matches!(error.kind, ErrorKind::ConditionFailed | ErrorKind::NotFound) => reply::NOT_STORED,
        (Err(error), _) => return answer_error(cx, VerbName::Put, error, store.quiet, out),
    };
    super::admin::say(said, store.quiet, out);
}

#[inline]
pub(super) fn store_op<'a>(cx: &Context, store: &Store<'_>, value: Given<'a>) -> Op<'a, Arc<Body>> {
    let condition = match store.verb {
        StoreVerb::Add => Condition::IfAbsent,
        StoreVerb::Replace => Condition::IfPresent,
        StoreVerb::Cas => Condition::IfCas(store.cas),
        StoreVerb::Set | StoreVerb::Append | StoreVerb::Prepend => Condition::None,
    };
    let action = match store.verb {
        StoreVerb::Append | StoreVerb::Prepend => {
            Action::Execute(Method::Join { value, behind: store.verb == StoreVerb::Append, create: false })
        }
        _ => {
            let expires_ms = proto::expires_ms(store.exptime, cx.now.unix_ms);
            Action::Put(Put { flags: Some(store.flags), expires_ms: Some(expires_ms), ..Put::of(value) })
        }
    };
    let max_bytes = cx.shared.config.memcached_max_bytes;
    Op { condition, else_remove: store.verb == StoreVerb::Set, ..Op::new(action, max_bytes) }
}

/// Whether a storage command wants no answer, an error neither; an `ms` wants its errors always.
pub(super) fn is_quiet(command: &Command<'_>) -> bool {
    matches!(command, Command::Store(store) if store.quiet)
}

/// The key of a command with a body; of a meta command it may be decoded into `buffer`.
pub(super) fn key<'k>(command: &Command<'k>, buffer: &'k mut Vec<u8>) -> &'k [u8] {
    match command {
        Command::Store(store) => store.key,
        Command::MetaSet { meta, .. } => meta.key(buffer),
        _ => unreachable!("only these have a body"),
    }
}

/// A `set`, or an `ms` in its own mode that compares nothing, must not leave the old value where it fails: the client
/// meant it to be gone. Every other command leaves what is there. Gives its key.
pub(super) fn old_to_drop<'k>(command: &Command<'k>, buffer: &'k mut Vec<u8>) -> Option<&'k [u8]> {
    match command {
        Command::Store(store) if store.verb == StoreVerb::Set => Some(store.key),
        Command::MetaSet { meta, mode, .. } if meta::else_removes(meta, *mode) => Some(meta.key(buffer)),
        _ => None,
    }
}

pub(super) fn delete(cx: &mut Context, key: &[u8], quiet: bool, out: &mut Output<'_>) -> Result<(), Elsewhere> {
    cx.count(VerbName::Remove);
    let done = run(cx, key, &Op::new(Action::Remove, 0), |outcome| outcome.done)?;
    answer_delete(cx, done, quiet, out);
    Ok(())
}

pub(super) fn answer_delete(cx: &Context, done: Done, quiet: bool, out: &mut Output<'_>) {
    match done {
        Ok(_) => super::admin::say(reply::DELETED, quiet, out),
        Err(error) => answer_error(cx, VerbName::Remove, &error, quiet, out),
    }
}

pub(super) fn touch(
    cx: &mut Context,
    key: &[u8],
    exptime: i64,
    quiet: bool,
    out: &mut Output<'_>,
) -> Result<(), Elsewhere> {
    cx.count(VerbName::Touch);
    let done = run(cx, key, &method(cx, memcached::Method::Touch { exptime }), |outcome| outcome.done)?;
    answer_touch(cx, done, quiet, out);
    Ok(())
}

pub(super) fn answer_touch(cx: &Context, done: Done, quiet: bool, out: &mut Output<'_>) {
    match done {
        Ok(_) => super::admin::say(reply::TOUCHED, quiet, out),
        Err(error) => answer_error(cx, VerbName::Touch, &error, quiet, out),
    }
}

/// A key of `gat`: the value, and a new expiry; it is given even if that is past. False: an error was answered.
pub(super) fn get_and_touch(
    cx: &Context,
    key: &[u8],
    exptime: i64,
    with_cas: bool,
    out: &mut Output<'_>,
) -> Result<bool, Elsewhere> {
    let done = run(cx, key, &method(cx, memcached::Method::Touch { exptime }), |mut outcome| {
        if let (Ok(_), Some(found)) = (&outcome.done, outcome.found()) {
            super::write_value(cx, key, &found, with_cas, out);
        }
        outcome.count_get(outcome.before.is_some());
        outcome.done
    })?;
    Ok(match done {
        Err(error) if error.kind != ErrorKind::NotFound => {
            answer_error(cx, VerbName::Get, &error, false, out);
            false
        }
        _ => true,
    })
}

pub(super) fn arith(
    cx: &mut Context,
    key: &[u8],
    (delta, decrement): (u64, bool),
    quiet: bool,
    out: &mut Output<'_>,
) -> Result<(), Elsewhere> {
    cx.count(VerbName::Arithmetic);
    let done = run(cx, key, &method(cx, memcached::Method::Arith { delta, decrement }), |outcome| outcome.done)?;
    answer_arith(cx, done, quiet, out);
    Ok(())
}

pub(super) fn answer_arith(cx: &Context, done: Done, quiet: bool, out: &mut Output<'_>) {
    match done {
        Ok((_, Answer::Bytes(digits))) if !quiet => {
            out.buf.extend_from_slice(&digits);
            out.buf.extend_from_slice(b"\r\n");
        }
        Ok(_) => {}
        Err(error) if error.kind == ErrorKind::BadRequest => super::admin::say(reply::NON_NUMERIC, quiet, out),
        Err(error) => answer_error(cx, VerbName::Arithmetic, &error, quiet, out),
    }
}
