//! The memcached door: lines in, commands on collection `default`, replies out.
//!
//! A session is between lines, inside a long line of keys, or inside a body. Values up to 4 KiB are taken when they
//! are wholly there; larger ones are received straight into the store (`body.rs`). This file has the loop and `get`;
//! the other text commands are in `text.rs`, the meta commands in `meta.rs`, the rest in `admin.rs`.

mod admin;
mod body;
mod meta;
mod text;

use crate::context::Context;
use crate::metrics::{DoorName, VerbName};
use crate::service::Output;
use body::Receiving;
use herd_core::Error;
use herd_core::door::memcached::{self as proto, ClientError, Command, Get, GetHow, KeyStep, KeyStream, reply};
use herd_core::limits::{INLINE_MAX_BYTES, OUTPUT_HIGH_BYTES};
use herd_net::{Next, Step};
use herd_store::{Found, Value};
use text::Given;

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
    /// Inside a line of keys that is still arriving.
    Keys(Box<KeyStream>),
    /// Inside a body.
    Body(Box<Receiving>),
    /// Dropping that many bytes.
    Swallow(u64),
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
            let step = match &mut self.state {
                State::Lines => self.line(cx, &input[used..], out),
                State::Keys(_) => self.keys(cx, &input[used..], out),
                State::Body(_) => self.body(cx, &input[used..], out),
                State::Swallow(left) => {
                    let left = *left;
                    self.swallow(left, &input[used..])
                }
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
            return self.begin_keys(input, out);
        };
        if line.len() > proto::COMMAND_MAX_BYTES {
            return self.begin_keys(input, out);
        }
        let done = Step { used: len, next: Next::Read };
        match proto::parse_line(line) {
            Ok(Command::Get(get)) => serve_get(cx, &get, out),
            Ok(Command::Store(store)) => return self.body_of(cx, store.bytes, input, line, len, out),
            Ok(Command::MetaSet { bytes, .. }) => return self.body_of(cx, bytes, input, line, len, out),
            Ok(Command::Quit) => return Step { used: len, next: Next::Close },
            Ok(command) => other(cx, &command, out),
            Err(error) => return self.refuse(cx, &error, len, out),
        }
        done
    }

    #[cold]
    fn refuse(&mut self, cx: &Context, error: &ClientError, used: usize, out: &mut Output<'_>) -> Step {
        cx.count_error(DoorName::Memcached, VerbName::Admin, herd_core::ErrorKind::BadRequest);
        if !error.quiet {
            out.buf.extend_from_slice(error.reply);
        }
        if error.swallow_bytes > 0 {
            self.state = State::Swallow(u64::from(error.swallow_bytes));
        }
        Step { used, next: if error.close { Next::Close } else { Next::Read } }
    }

    /// A command with a body.
    #[inline]
    fn body_of(
        &mut self,
        cx: &mut Context,
        bytes: u32,
        input: &[u8],
        line: &[u8],
        len: usize,
        out: &mut Output<'_>,
    ) -> Step {
        let bytes = bytes as usize;
        if bytes > INLINE_MAX_BYTES {
            return self.begin_body(cx, line, bytes as u64, len, out);
        }
        let Some(body) = input.get(len..len + bytes + 2) else {
            return Step { used: 0, next: Next::Read };
        };
        if &body[bytes..] != b"\r\n" {
            out.buf.extend_from_slice(reply::BAD_CHUNK);
            return Step { used: len + bytes + 2, next: Next::Read };
        }
        text::dispatch(cx, line, Given::Small(&body[..bytes]), out);
        Step { used: len + bytes + 2, next: Next::Read }
    }

    /// No line end yet: only a line of keys may be that long.
    fn begin_keys(&mut self, input: &[u8], out: &mut Output<'_>) -> Step {
        if input.len() <= proto::COMMAND_MAX_BYTES {
            return Step { used: 0, next: Next::Read };
        }
        match KeyStream::open(input) {
            Ok((stream, used)) => {
                self.state = State::Keys(Box::new(stream));
                Step { used, next: Next::Read }
            }
            Err(error) => {
                out.buf.extend_from_slice(error.reply);
                Step { used: input.len(), next: Next::Close }
            }
        }
    }

    /// Keys of a line that is still arriving.
    fn keys(&mut self, cx: &mut Context, input: &[u8], out: &mut Output<'_>) -> Step {
        let State::Keys(stream) = &mut self.state else {
            unreachable!("called inside a line of keys");
        };
        let how = stream.how();
        match stream.step(input) {
            KeyStep::Key { key, used } => {
                cx.count(VerbName::Get);
                serve_key(cx, key, how, out);
                Step { used, next: Next::Read }
            }
            KeyStep::More { used } => Step { used, next: Next::Read },
            KeyStep::End { used, reply } => {
                out.buf.extend_from_slice(reply);
                self.state = State::Lines;
                Step { used, next: Next::Read }
            }
            KeyStep::Refused { error, used } => {
                out.buf.extend_from_slice(error.reply);
                let used = if error.close { input.len() } else { used };
                Step { used, next: if error.close { Next::Close } else { Next::Read } }
            }
        }
    }

    fn swallow(&mut self, left: u64, input: &[u8]) -> Step {
        let n = left.min(input.len() as u64);
        self.state = if n == left { State::Lines } else { State::Swallow(left - n) };
        Step { used: n as usize, next: Next::Read }
    }
}

/// Commands without a body other than `get`.
fn other(cx: &mut Context, command: &Command<'_>, out: &mut Output<'_>) {
    match command {
        Command::Delete { key, quiet } => text::delete(cx, key, *quiet, out),
        Command::Arith { key, delta, decrement, quiet } => text::arith(cx, key, *delta, *decrement, *quiet, out),
        Command::Touch { key, exptime, quiet } => text::touch(cx, key, *exptime, *quiet, out),
        Command::MetaGet(meta) => meta::get(cx, meta, out),
        Command::MetaDelete(meta) => meta::delete(cx, meta, out),
        Command::MetaArith { meta, decrement } => meta::arith(cx, meta, *decrement, out),
        Command::MetaNoop => out.buf.extend_from_slice(reply::META_NOOP),
        Command::MetaDebug(meta) => meta::debug(cx, meta, out),
        Command::FlushAll { delay, quiet } => admin::flush_all(cx, *delay, *quiet, out),
        Command::Stats(topic) => admin::stats(cx, *topic, out),
        Command::Verbosity { quiet, .. } => admin::say(reply::OK, *quiet, out),
        Command::Version => admin::version(cx, out),
        Command::DebugTime(time) => admin::debug_time(cx, *time, out),
        Command::Get(_) | Command::Store(_) | Command::MetaSet { .. } | Command::Quit => {
            unreachable!("served by the session")
        }
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
fn serve_key(cx: &mut Context, key: &[u8], how: GetHow, out: &mut Output<'_>) {
    let Some(exptime) = how.touch else {
        cx.shared.store.get(&cx.shared.default, key, cx.now, |found| write_value(key, found, how.with_cas, out));
        return;
    };
    // The value is given as it was, even if the new expiry is past.
    cx.shared.store.get(&cx.shared.default, key, cx.now, |found| write_value(key, found, how.with_cas, out));
    text::set_expiry(cx, key, exptime);
}

#[inline]
fn write_value(key: &[u8], found: &Found<'_>, with_cas: bool, out: &mut Output<'_>) {
    let head = &found.head;
    proto::value_line(key, head.flags, head.size_bytes, with_cas.then(|| head.cas()), out.buf);
    write_bytes(found.value, out);
}

/// A value and its CR LF.
#[inline]
fn write_bytes(value: Value<'_>, out: &mut Output<'_>) {
    match value {
        Value::Inline(bytes, _) => out.buf.extend_from_slice(bytes),
        Value::Body(body) => out.bulk(body.clone(), 0, body.len()),
    }
    out.buf.extend_from_slice(b"\r\n");
}

#[cold]
fn answer_error(cx: &Context, verb: VerbName, error: &Error, quiet: bool, out: &mut Output<'_>) {
    cx.count_error(DoorName::Memcached, verb, error.kind);
    if !quiet {
        out.buf.extend_from_slice(proto::refusal(error.kind));
    }
}
