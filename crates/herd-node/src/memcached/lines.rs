//! What a line may be other than `get`: a command with a body, a list of keys that is still arriving, a mistake, or
//! any other command, which has its function in `text.rs`, `meta.rs` or `admin.rs`.

use super::text::Given;
use super::{Session, State, admin, meta, serve_key, text};
use crate::apply::Elsewhere;
use crate::context::{Context, Output};
use crate::metrics::{DoorName, VerbName};
use herd_core::Error;
use herd_core::door::memcached::{self as proto, ClientError, Command, GetHow, KeyStep, KeyStream, reply};
use herd_core::limits::{INLINE_MAX_BYTES, MEMCACHED_COMMAND_MAX_BYTES};
use herd_net::{Next, Step};

impl Session {
    #[cold]
    pub(super) fn refuse(&mut self, cx: &Context, error: &ClientError, used: usize, out: &mut Output<'_>) -> Step {
        cx.count_error(DoorName::Memcached, VerbName::Admin, herd_core::ErrorKind::BadRequest);
        if !error.quiet {
            out.buf.extend_from_slice(error.reply);
        }
        if error.swallow_bytes > 0 {
            self.state = State::Swallow(u64::from(error.swallow_bytes));
        }
        Step { used, next: if error.close { Next::Close } else { Next::Read } }
    }

    /// Serves the rest of a line of keys once output was taken.
    #[cold]
    pub(super) fn go_on_later(&mut self, how: GetHow, used: usize) -> Step {
        self.state = State::Keys(Box::new(KeyStream::within(how, used)));
        Step { used, next: Next::Again }
    }

    /// A command with a body.
    #[inline]
    pub(super) fn body_of(
        &mut self,
        cx: &mut Context,
        command: &Command<'_>,
        input: &[u8],
        line: &[u8],
        len: usize,
        out: &mut Output<'_>,
    ) -> Step {
        let bytes = match command {
            Command::Store(store) => store.bytes as usize,
            Command::MetaSet { bytes, .. } => *bytes as usize,
            _ => unreachable!("only these have a body"),
        };
        if bytes > INLINE_MAX_BYTES {
            return self.begin_body(cx, line, bytes as u64, len, out);
        }
        let Some(body) = input.get(len..len + bytes + 2) else {
            return Step { used: 0, next: Next::Read };
        };
        if &body[bytes..] != b"\r\n" {
            admin::say(reply::BAD_CHUNK, text::is_quiet(command), out);
            return Step { used: len + bytes + 2, next: Next::Read };
        }
        let given = Given::Small(&body[..bytes], None);
        if text::dispatch(cx, command, given, out).is_err() {
            self.hand_on(cx, command, line, Given::Small(&body[..bytes], None), out);
        }
        Step { used: len + bytes + 2, next: Next::Read }
    }

    /// No line end yet: only a line of keys may be that long.
    pub(super) fn begin_keys(&mut self, input: &[u8], out: &mut Output<'_>) -> Step {
        // A CR at the end may be that of the line end, which is not part of the line.
        if input.strip_suffix(b"\r").unwrap_or(input).len() <= MEMCACHED_COMMAND_MAX_BYTES {
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
    pub(super) fn keys(&mut self, cx: &mut Context, input: &[u8], out: &mut Output<'_>) -> Step {
        let State::Keys(stream) = &mut self.state else {
            unreachable!("called inside a line of keys");
        };
        if self.keys_out.is_some() {
            // An error would end the line.
            return Step { used: 0, next: if input.is_empty() { Next::Read } else { Next::Again } };
        }
        let how = stream.how();
        match stream.step(input) {
            KeyStep::Key { key, used } => {
                cx.count(VerbName::Get);
                match serve_key(cx, key, how, out) {
                    Ok(true) => {}
                    Ok(false) => self.state = State::SwallowLine,
                    Err(Elsewhere) => {
                        let more = self.keys_elsewhere(cx, key, &input[used..], out);
                        return Step { used: used + more, next: Next::Read };
                    }
                }
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

    pub(super) fn swallow_line(&mut self, input: &[u8]) -> Step {
        let end = input.iter().position(|byte| *byte == b'\n');
        if end.is_some() {
            self.state = State::Lines;
        }
        Step { used: end.map_or(input.len(), |at| at + 1), next: Next::Read }
    }

    pub(super) fn swallow(&mut self, left: u64, input: &[u8]) -> Step {
        let n = left.min(input.len() as u64);
        self.state = if n == left { State::Lines } else { State::Swallow(left - n) };
        Step { used: n as usize, next: Next::Read }
    }
}

/// Commands without a body other than `get`. Error: another node has the item.
pub(super) fn other(cx: &mut Context, command: &Command<'_>, out: &mut Output<'_>) -> Result<(), Elsewhere> {
    match command {
        Command::Delete { key, quiet } => return text::delete(cx, key, *quiet, out),
        Command::Arith { key, delta, decrement, quiet } => {
            return text::arith(cx, key, (*delta, *decrement), *quiet, out);
        }
        Command::Touch { key, exptime, quiet } => return text::touch(cx, key, *exptime, *quiet, out),
        Command::MetaGet(meta) => return meta::get(cx, meta, out),
        Command::MetaDelete(meta) => return meta::delete(cx, meta, out),
        Command::MetaArith { meta, decrement } => return meta::arith(cx, meta, *decrement, out),
        Command::MetaDebug(meta) => return meta::debug(cx, meta, out),
        Command::MetaNoop => out.buf.extend_from_slice(reply::META_NOOP),
        Command::FlushAll { delay, quiet } => admin::flush_all(cx, *delay, *quiet, out),
        Command::Verbosity { quiet, .. } => admin::say(reply::OK, *quiet, out),
        Command::Version => admin::version(cx, out),
        Command::Stats(_)
        | Command::DebugTime(_)
        | Command::Get(_)
        | Command::Store(_)
        | Command::MetaSet { .. }
        | Command::Quit => {
            unreachable!("served by the session")
        }
    }
    Ok(())
}

#[cold]
pub(super) fn answer_error(cx: &Context, verb: VerbName, error: &Error, quiet: bool, out: &mut Output<'_>) {
    cx.count_error(DoorName::Memcached, verb, error.kind);
    if !quiet {
        proto::write_refusal(out.buf, error);
    }
}
