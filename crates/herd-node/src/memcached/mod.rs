//! The memcached door: lines in, commands on collection `default`, replies out.
//!
//! A session is between lines, inside a long line of keys, or inside a body. Values up to 4 KiB are taken when they
//! are wholly there; larger ones are received straight into the store.

use crate::context::Context;
use crate::metrics::{DoorName, VerbName};
use crate::service::Output;
use herd_core::door::memcached::{self as proto, ClientError, Command, Get, GetHow, Store, StoreVerb, reply};
use herd_core::limits::{INLINE_MAX_BYTES, OUTPUT_HIGH_BYTES};
use herd_core::{Chunks, Error};
use herd_net::{Next, Step};
use herd_store::{Found, NewObject, NewValue, Upload, Value};
use std::io::IoSliceMut;
use std::sync::Arc;

/// State of a connection.
#[derive(Default)]
pub(crate) struct Session {
    state: State,
}

#[derive(Default)]
enum State {
    /// Between lines.
    #[default]
    Lines,
    /// Inside the body of the kept line.
    Body(Box<Receiving>),
    /// Dropping that many bytes.
    Swallow(u64),
}

/// A body on its way in.
struct Receiving {
    line: Vec<u8>,
    upload: Upload,
    left: u64,
}

impl Session {
    /// Whether it is between lines.
    pub(crate) fn is_idle(&self) -> bool {
        matches!(self.state, State::Lines)
    }

    /// Serves what is there of `input`.
    #[inline]
    pub(crate) fn serve(&mut self, cx: &mut Context, input: &[u8], out: &mut Output<'_>) -> Step {
        let mut used = 0;
        loop {
            let step = match self.state {
                State::Lines => self.line(cx, &input[used..], out),
                State::Body(_) => self.body(cx, &input[used..], out),
                State::Swallow(left) => self.swallow(left, &input[used..]),
            };
            used += step.used;
            if step.used == 0 || step.next != Next::Read {
                return Step { used, next: step.next };
            }
            if out.pending_bytes() > OUTPUT_HIGH_BYTES {
                return Step { used, next: Next::Again };
            }
        }
    }

    /// One line, with its body if that is wholly there.
    #[inline]
    fn line(&mut self, cx: &mut Context, input: &[u8], out: &mut Output<'_>) -> Step {
        let Some((line, len)) = proto::split_line(input) else {
            return Step { used: 0, next: Next::Read };
        };
        match proto::parse_line(line) {
            Ok(Command::Get(get)) => {
                serve_get(cx, &get, out);
                Step { used: len, next: Next::Read }
            }
            Ok(Command::Store(store)) => self.store(cx, &store, input, line, len, out),
            Ok(Command::Quit) => Step { used: len, next: Next::Close },
            Ok(_) => {
                out.buf.extend_from_slice(reply::ERROR);
                Step { used: len, next: Next::Read }
            }
            Err(error) => self.refuse(&error, len, out),
        }
    }

    fn refuse(&mut self, error: &ClientError, used: usize, out: &mut Output<'_>) -> Step {
        if !error.quiet {
            out.buf.extend_from_slice(error.reply);
        }
        if error.swallow_bytes > 0 {
            self.state = State::Swallow(u64::from(error.swallow_bytes));
        }
        Step { used, next: if error.close { Next::Close } else { Next::Read } }
    }

    #[inline]
    fn store(
        &mut self,
        cx: &mut Context,
        store: &Store<'_>,
        input: &[u8],
        line: &[u8],
        len: usize,
        out: &mut Output<'_>,
    ) -> Step {
        let bytes = store.bytes as usize;
        if bytes > INLINE_MAX_BYTES {
            return self.begin_body(cx, store, line, len, out);
        }
        let Some(body) = input.get(len..len + bytes + 2) else {
            return Step { used: 0, next: Next::Read };
        };
        let step = Step { used: len + bytes + 2, next: Next::Read };
        if &body[bytes..] != b"\r\n" {
            out.buf.extend_from_slice(reply::BAD_CHUNK);
            return step;
        }
        serve_store(cx, store, NewValue::Inline(&body[..bytes]), out);
        step
    }

    fn begin_body(
        &mut self,
        cx: &mut Context,
        store: &Store<'_>,
        line: &[u8],
        used: usize,
        out: &mut Output<'_>,
    ) -> Step {
        let left = u64::from(store.bytes);
        match cx.shared.store.admit(&cx.shared.default, Some(left)) {
            Ok(upload) => self.state = State::Body(Box::new(Receiving { line: line.to_vec(), upload, left })),
            Err(error) => {
                self.state = State::Swallow(left + 2);
                answer_error(cx, VerbName::Put, &error, store.quiet, out);
            }
        }
        Step { used, next: Next::Read }
    }

    /// More of a body, or its end.
    fn body(&mut self, cx: &mut Context, input: &[u8], out: &mut Output<'_>) -> Step {
        let State::Body(receiving) = &mut self.state else {
            unreachable!("called inside a body");
        };
        if receiving.left > 0 {
            let n = (input.len() as u64).min(receiving.left) as usize;
            receiving.left -= n as u64;
            if let Err(error) = receiving.upload.write(&input[..n], cx.now) {
                return self.give_up(cx, n, &error, out);
            }
            let next = if receiving.left > 0 { Next::Bulk(receiving.left) } else { Next::Read };
            return Step { used: n, next };
        }
        let Some(end) = input.get(..2) else {
            return Step { used: 0, next: Next::Read };
        };
        let State::Body(receiving) = std::mem::take(&mut self.state) else {
            unreachable!("called inside a body");
        };
        let Ok(Command::Store(store)) = proto::parse_line(&receiving.line) else {
            unreachable!("it was parsed before");
        };
        if end != b"\r\n" {
            out.buf.extend_from_slice(reply::BAD_CHUNK);
            return Step { used: 2, next: Next::Read };
        }
        match receiving.upload.finish(cx.now) {
            Ok(body) => serve_store(cx, &store, NewValue::Body(Arc::new(body)), out),
            Err(error) => answer_error(cx, VerbName::Put, &error, store.quiet, out),
        }
        Step { used: 2, next: Next::Read }
    }

    fn give_up(&mut self, cx: &mut Context, used: usize, error: &Error, out: &mut Output<'_>) -> Step {
        if let State::Body(receiving) = std::mem::take(&mut self.state) {
            self.state = State::Swallow(receiving.left + 2);
        }
        answer_error(cx, VerbName::Put, error, false, out);
        Step { used, next: Next::Read }
    }

    fn swallow(&mut self, left: u64, input: &[u8]) -> Step {
        let n = left.min(input.len() as u64);
        self.state = if n == left { State::Lines } else { State::Swallow(left - n) };
        Step { used: n as usize, next: Next::Read }
    }

    /// Where the next bytes of a body go.
    pub(crate) fn space<'a>(&'a mut self, cx: &mut Context, max: usize) -> Vec<IoSliceMut<'a>> {
        let State::Body(receiving) = &mut self.state else {
            return Vec::new();
        };
        let Ok(room) = receiving.upload.reserve(max, cx.now) else {
            return Vec::new();
        };
        crate::bulk::cut(receiving.upload.writer.space(), room)
    }

    /// Bytes of a body were received.
    pub(crate) fn filled(&mut self, _cx: &mut Context, n: usize, _out: &mut Output<'_>) -> Step {
        let State::Body(receiving) = &mut self.state else {
            unreachable!("called inside a body");
        };
        receiving.upload.writer.advance(n);
        receiving.left -= n as u64;
        Step { used: 0, next: if receiving.left > 0 { Next::Bulk(receiving.left) } else { Next::Read } }
    }
}

/// `get` and its kin: a value line and the value for each key that is there, then `END`.
#[inline]
fn serve_get(cx: &mut Context, get: &Get<'_>, out: &mut Output<'_>) {
    for key in get.keys {
        cx.count(VerbName::Get);
        serve_key(cx, key, get.how, out);
    }
    out.buf.extend_from_slice(reply::END);
}

#[inline]
fn serve_key(cx: &Context, key: &[u8], how: GetHow, out: &mut Output<'_>) {
    cx.shared.store.get(&cx.shared.default, key, cx.now, |found| write_value(key, found, how.with_cas, out));
}

#[inline]
fn write_value(key: &[u8], found: &Found<'_>, with_cas: bool, out: &mut Output<'_>) {
    let head = &found.head;
    proto::value_line(key, head.flags, head.size_bytes, with_cas.then(|| head.cas()), out.buf);
    match found.value {
        Value::Inline(bytes, _) => out.buf.extend_from_slice(bytes),
        Value::Body(body) => out.bulk(body.clone(), 0, body.len()),
    }
    out.buf.extend_from_slice(b"\r\n");
}

#[inline]
fn serve_store(cx: &mut Context, store: &Store<'_>, value: NewValue<'_>, out: &mut Output<'_>) {
    cx.count(VerbName::Put);
    let expires_ms = proto::expires_ms(store.exptime, cx.now.unix_ms);
    let new = NewObject { flags: store.flags, expires_ms, ..NewObject::of(value) };
    let mut entry = cx.shared.store.entry(&cx.shared.default, store.key, cx.now);
    let result = match store.verb {
        StoreVerb::Set => entry.put(&new).map(|_| reply::STORED),
        _ => Ok(reply::ERROR),
    };
    drop(entry);
    match result {
        Ok(reply) if !store.quiet => out.buf.extend_from_slice(reply),
        Ok(_) => {}
        Err(error) => answer_error(cx, VerbName::Put, &error, store.quiet, out),
    }
}

#[cold]
fn answer_error(cx: &Context, verb: VerbName, error: &Error, quiet: bool, out: &mut Output<'_>) {
    cx.count_error(DoorName::Memcached, verb, error.kind);
    if !quiet {
        out.buf.extend_from_slice(proto::refusal(error.kind));
    }
}
