//! Bodies too large to lie beside their key: received straight into the store, or sent on to the node that has the
//! item.

use super::later::handing;
use super::lines::answer_error;
use super::text::{self, Given};
use super::{Later, Session, State, admin};
use crate::context::{Context, Output};
use crate::flight::{Later as Kept, Sink};
use crate::metrics::VerbName;
use herd_core::door::memcached::{self as proto, Command, reply};
use herd_core::op::{Action, Op};
use herd_core::{Error, ErrorKind};
use herd_net::{Next, Step, Ticket};
use std::io::IoSliceMut;
use std::sync::Arc;

/// A body on its way in.
pub(super) struct Receiving {
    /// The command line, parsed again when the body is there.
    line: Vec<u8>,
    sink: Sink,
    left: u64,
    /// There was no room midway: what is still to come is dropped, then this is answered.
    failed: Option<Error>,
}

/// As `text::is_quiet`, of a line.
fn is_quiet(line: &[u8]) -> bool {
    proto::parse_line(line).is_ok_and(|command| text::is_quiet(&command))
}

impl Session {
    /// Admits a body of `bytes`, or drops it with an answer.
    pub(super) fn begin_body(
        &mut self,
        cx: &mut Context,
        line: &[u8],
        bytes: u64,
        used: usize,
        out: &mut Output<'_>,
    ) -> Step {
        if bytes > cx.shared.config.memcached_max_bytes {
            cx.count_error(crate::metrics::DoorName::Memcached, VerbName::Put, herd_core::ErrorKind::TooLarge);
            self.drop_old(cx, line, out);
            if !is_quiet(line) {
                out.buf.extend_from_slice(reply::TOO_LARGE);
            }
            self.state = State::Swallow(bytes + 2);
            return Step { used, next: Next::Read };
        }
        let (mut buffer, command) = (Vec::new(), proto::parse_line(line));
        let key = command.as_ref().map_or(&b""[..], |command| text::key(command, &mut buffer));
        let default = cx.shared.default.clone();
        let admitted = match &command {
            Ok(command) if cx.goes_on(&default, key, Some(bytes)) => self.take_in(cx, command, line, bytes, out),
            _ => cx.admit(&default, key, Some(bytes)).map(Sink::Here),
        };
        match admitted {
            Ok(sink) => {
                let receiving = Receiving { line: line.to_vec(), sink, left: bytes, failed: None };
                self.state = State::Body(Box::new(receiving));
            }
            Err(error) => {
                self.drop_old(cx, line, out);
                self.state = State::Swallow(bytes + 2);
                answer_error(cx, VerbName::Put, &error, is_quiet(line), out);
            }
        }
        Step { used, next: Next::Read }
    }

    /// More of a body, or its end.
    pub(super) fn body(&mut self, cx: &mut Context, input: &[u8], out: &mut Output<'_>) -> Step {
        let State::Body(receiving) = &mut self.state else {
            unreachable!("called inside a body");
        };
        if receiving.left > 0 {
            let n = (input.len() as u64).min(receiving.left) as usize;
            receiving.left -= n as u64;
            if receiving.failed.is_none() {
                receiving.failed = receiving.sink.write(cx, &input[..n], &[]).err();
            }
            let straight = receiving.left > 0 && receiving.failed.is_none();
            return Step { used: n, next: if straight { Next::Bulk(receiving.left) } else { Next::Read } };
        }
        let Some(end) = input.get(..2) else {
            return Step { used: 0, next: Next::Read };
        };
        let State::Body(receiving) = std::mem::take(&mut self.state) else {
            unreachable!("called inside a body");
        };
        self.store(cx, *receiving, end == b"\r\n", out);
        Step { used: 2, next: Next::Read }
    }

    /// Where the next bytes of a body go.
    pub(crate) fn space<'a>(&'a mut self, cx: &mut Context, max: usize) -> Vec<IoSliceMut<'a>> {
        let State::Body(receiving) = &mut self.state else {
            return Vec::new();
        };
        match receiving.sink.space(cx, max) {
            Ok(space) => space,
            Err(error) => {
                receiving.failed = Some(error);
                Vec::new()
            }
        }
    }

    /// Bytes of a body were received.
    pub(crate) fn filled(&mut self, cx: &mut Context, n: usize) -> Step {
        let State::Body(receiving) = &mut self.state else {
            unreachable!("space was given for a body");
        };
        if let Err(error) = receiving.sink.advance(cx, n, &[]) {
            receiving.failed.get_or_insert(error);
        }
        receiving.left -= n as u64;
        Step { used: 0, next: if receiving.left > 0 { Next::Bulk(receiving.left) } else { Next::Read } }
    }
}

impl Session {
    /// The body and its end are there.
    fn store(&mut self, cx: &mut Context, receiving: Receiving, ended: bool, out: &mut Output<'_>) {
        let line = receiving.line;
        let quiet = is_quiet(&line);
        let upload = match receiving.sink {
            Sink::Here(upload) => upload,
            Sink::There(intake) => {
                match (receiving.failed, ended) {
                    (Some(error), _) => {
                        cx.fail_intake(intake.ticket, error);
                        self.drop_old(cx, &line, out);
                    }
                    (None, true) => intake.end(cx, &[]),
                    (None, false) => {
                        if let Some(Kept::Memcached(later)) = cx.flights.later_mut(intake.ticket) {
                            *later = Later::BadChunk(quiet);
                        }
                        let error = Error::new(ErrorKind::BadRequest, "the value does not end where it should");
                        cx.fail_intake(intake.ticket, error);
                    }
                }
                return;
            }
        };
        if let Some(error) = receiving.failed {
            self.drop_old(cx, &line, out);
            return answer_error(cx, VerbName::Put, &error, quiet, out);
        }
        if !ended {
            return admin::say(reply::BAD_CHUNK, quiet, out);
        }
        let body = match upload.finish(cx.now) {
            Ok(body) => Arc::new(body),
            Err(error) => {
                self.drop_old(cx, &line, out);
                return answer_error(cx, VerbName::Put, &error, quiet, out);
            }
        };
        let Ok(command) = proto::parse_line(&line) else {
            unreachable!("the line was parsed before its body was read");
        };
        if text::dispatch(cx, &command, Given::Large(body.clone()), out).is_err() {
            self.hand_on(cx, &command, &line, Given::Large(body), out);
        }
    }

    /// Hands a command on whose value is still to come.
    fn take_in(
        &mut self,
        cx: &mut Context,
        command: &Command<'_>,
        line: &[u8],
        bytes: u64,
        out: &mut Output<'_>,
    ) -> Result<Sink, Error> {
        let handing = handing(cx, command, Given::Small(b"", None))?;
        cx.count(VerbName::Put);
        cx.count_in(VerbName::Put, bytes);
        let later = Kept::Memcached(Later::Line(line.into()));
        let intake = cx.take_in(out, true, later, handing, Some(bytes))?;
        self.conn = Some(intake.ticket.conn);
        Ok(Sink::There(intake))
    }

    /// The reply whose value is coming, and goes to another node.
    pub(crate) fn taking_in(&self) -> Option<Ticket> {
        if let State::Body(receiving) = &self.state { receiving.sink.ticket() } else { None }
    }

    /// A reply has its answer; if its value is still coming, the rest is dropped. What it was to replace has gone,
    /// where the node that decides had no room for it.
    pub(super) fn answered(&mut self, ticket: Ticket) {
        if self.taking_in() != Some(ticket) {
            return;
        }
        if let State::Body(receiving) = std::mem::take(&mut self.state) {
            self.state = State::Swallow(receiving.left + 2);
        }
    }

    /// What a `set` that failed was to replace goes, wherever it is.
    fn drop_old(&mut self, cx: &mut Context, line: &[u8], out: &mut Output<'_>) {
        let (mut buffer, command) = (Vec::new(), proto::parse_line(line));
        let Some(key) = command.as_ref().ok().and_then(|command| text::old_to_drop(command, &mut buffer)) else {
            return;
        };
        // There may be none, or it may be guarded by a lock: then it stays.
        let op = Op::new(Action::Remove, 0);
        if text::run(cx, key, &op, |outcome| outcome.done.ok()).is_err() {
            self.remove_elsewhere(cx, key, &op, out);
        }
    }
}
