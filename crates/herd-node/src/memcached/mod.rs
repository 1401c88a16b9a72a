//! The memcached door: lines in, commands on collection `default`, replies out.
//!
//! A session is between lines, inside a long line of keys, or inside a body. Values up to 4 KiB are taken when they
//! are wholly there; larger ones are received straight into the store (`body.rs`). This file has the loop and `get`;
//! what else a line may be is told in `lines.rs`, and what another node
//! answers in `later.rs`.

mod admin;
mod body;
mod flush;
pub(crate) mod herd;
mod later;
mod lines;
mod meta;
mod text;

use crate::apply::Elsewhere;
use crate::context::{Context, Output};
use crate::metrics::VerbName;
use body::Receiving;
pub(crate) use flush::Flushes;
use herd_core::door::memcached::{self as proto, Command, Get, GetHow, KeyStream, reply};
use herd_core::limits::{MEMCACHED_COMMAND_MAX_BYTES, OUTPUT_HIGH_BYTES};
use herd_net::{Next, Step, Ticket};
use herd_store::{Found, Given, Got, Value};
pub(crate) use later::Later;

/// State of a connection.
#[derive(Default)]
pub(crate) struct Session {
    state: State,
    /// The number of its connection, once it has handed something on.
    conn: Option<u64>,
    /// The reply with keys of a line that goes on, and is not answered yet.
    keys_out: Option<Ticket>,
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
    /// Dropping the rest of a line.
    SwallowLine,
}

/// Answers whatever was asked with an error; the connection is closed then.
#[cold]
pub(crate) fn fail(cx: &Context, error: &herd_core::Error, out: &mut Output<'_>) {
    lines::answer_error(cx, VerbName::Put, error, false, out);
}

impl Session {
    /// Whether it is between lines.
    pub(crate) fn is_idle(&self) -> bool {
        matches!(self.state, State::Lines)
    }

    /// The number of its connection, if it has handed anything on.
    pub(crate) fn flying(&self) -> Option<u64> {
        self.conn
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
                State::SwallowLine => self.swallow_line(&input[used..]),
            };
            used += step.used;
            if step.used == 0 || step.next != Next::Read {
                return Step { used, next: step.next };
            }
            if out.pending_bytes() > OUTPUT_HIGH_BYTES || cx.take_dear() {
                return Step { used, next: Next::Again };
            }
        }
    }

    /// One line, with its body if that is wholly there.
    #[inline]
    fn line(&mut self, cx: &mut Context, input: &[u8], out: &mut Output<'_>) -> Step {
        let Some((line, len)) = proto::split_line(input).filter(|(line, _)| line.len() <= MEMCACHED_COMMAND_MAX_BYTES)
        else {
            return self.begin_keys(input, out);
        };
        match proto::parse_line(line) {
            Ok(Command::Get(get)) => match serve_get(cx, get, out) {
                Rest::None => {}
                Rest::Later(rest_bytes) => return self.go_on_later(get.how, line.len() - rest_bytes),
                Rest::Elsewhere(key, get) => return self.hand_on_line(cx, line, len, key, get, out),
            },
            Ok(command @ (Command::Store(_) | Command::MetaSet { .. })) => {
                return self.body_of(cx, &command, input, line, len, out);
            }
            Ok(Command::Stats(topic)) => {
                let asked = admin::stats(cx, topic, out);
                self.conn = asked.map(|ticket| ticket.conn).or(self.conn);
            }
            Ok(Command::DebugTime(time)) => {
                let asked = admin::debug_time(cx, time, out);
                self.conn = asked.map(|ticket| ticket.conn).or(self.conn);
            }
            Ok(Command::FlushAll { delay: ..=0, .. }) if cx.flights.of_connection(out.conn()) > 0 => {
                // What it asked for before is to go too: that ends first.
                return Step { used: 0, next: Next::Again };
            }
            Ok(Command::Quit) => return Step { used: len, next: Next::Close },
            Ok(command) => {
                if lines::other(cx, &command, out).is_err() {
                    self.hand_on(cx, &command, line, Given::Small(b"", None), out);
                }
            }
            Err(error) => return self.refuse(cx, &error, len, out),
        }
        Step { used: len, next: Next::Read }
    }
}

/// What is left of a line of keys.
enum Rest<'a> {
    None,
    /// So many bytes: output is high.
    Later(usize),
    /// This key, and those behind it: another node has it.
    Elsewhere(&'a [u8], Get<'a>),
}

/// `get` and its kin: a value line and the value for each key that is there, then `END`.
#[inline]
fn serve_get<'a>(cx: &mut Context, mut get: Get<'a>, out: &mut Output<'_>) -> Rest<'a> {
    while let Some(key) = get.keys.next() {
        cx.count(VerbName::Get);
        match serve_key(cx, key, get.how, out) {
            Ok(true) => {}
            Ok(false) => return Rest::None,
            Err(Elsewhere) => return Rest::Elsewhere(key, get),
        }
        if out.buf.len() > OUTPUT_HIGH_BYTES && get.keys.rest_bytes() > 0 {
            return Rest::Later(get.keys.rest_bytes());
        }
    }
    out.buf.extend_from_slice(reply::END);
    Rest::None
}

/// The answer for one key; false if that is an error, which ends the answer to the line.
#[inline]
fn serve_key(cx: &Context, key: &[u8], how: GetHow, out: &mut Output<'_>) -> Result<bool, Elsewhere> {
    match how.touch {
        Some(exptime) => text::get_and_touch(cx, key, exptime, how.with_cas, out),
        None => {
            let conn = out.conn();
            let write = |found: &Found<'_>| write_value(cx, key, found, how.with_cas, out);
            match cx.get(conn, &cx.shared.default, key, write) {
                Got::Hit(()) | Got::Miss => Ok(true),
                Got::Away { .. } => Err(Elsewhere),
            }
        }
    }
}

#[inline]
fn write_value(cx: &Context, key: &[u8], found: &Found<'_>, with_cas: bool, out: &mut Output<'_>) {
    let head = &found.head;
    cx.count_out(VerbName::Get, head.size_bytes);
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
