//! Pipelining: many requests on one connection, answered in any order.
//!
//! Nothing is sent twice here: when the connection is lost, each open request fails for itself, with `OutcomeUnknown`
//! if it may have been done.

use super::{Client, wait};
use crate::connection::Patience;
use crate::error::{Error, ErrorKind, Result};
use crate::exchange::{answer, body_of};
use crate::limits::PIPELINE_OUTPUT_BYTES;
use crate::link::{Link, Sink, Source, Step};
use crate::reply::Reply;
use crate::request::Request;
use crate::retry::Failure;
use std::net::TcpStream;
use std::time::Duration;

/// A connection for requests that do not wait for each other. Dropping it gives up what is not answered.
///
/// Answers are kept in memory until they are waited for.
pub struct Pipeline<'a> {
    client: &'a Client,
    /// `None` only while it is dropped.
    link: Option<Link<TcpStream>>,
    /// Why the connection is lost.
    lost: Option<String>,
}

/// A request under way; hand it to [`Pipeline::wait`] of the pipeline that gave it.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "an answer that is not waited for keeps its memory"]
pub struct Ticket {
    id: u64,
    changes: bool,
}

impl<'a> Pipeline<'a> {
    pub(super) fn new(client: &'a Client, link: Link<TcpStream>) -> Self {
        Self { client, link: Some(link), lost: None }
    }

    /// Sends a request. Small ones are gathered and go out with a later one, [`Pipeline::wait`] or
    /// [`Pipeline::flush`]; a put over 64 KiB returns when its value has been taken.
    pub fn send(&mut self, request: &Request<'_>) -> Result<Ticket> {
        if let Some(lost) = &self.lost {
            return Err(Error::new(ErrorKind::Unreachable, lost.clone()));
        }
        let request = request.clone().held_by(self.client.common.token);
        let value = request.body();
        let then_ms = self.client.common.patience_ms;
        let patience = Patience { first_ms: then_ms.saturating_add(request.wait_ms()), then_ms };
        let sink = (Sink::Memory(self.client.common.pool.config.value_max_bytes), Vec::new());
        let now_ms = self.client.common.now_ms();
        let id = self.link().begin(now_ms, &request, body_of(value), sink, patience)?;
        let source = Source::Slice(value);
        while self.lost.is_none() && self.must_drain(id) {
            let blocked = self.step(None, source);
            if self.must_drain(id) {
                self.pause(blocked);
                self.give_up_half_sent(id);
            }
        }
        Ok(Ticket { id, changes: request.changes() })
    }

    /// Waits for the answer: its head, and the value of a get.
    pub fn wait(&mut self, ticket: Ticket) -> Result<(Reply, Vec<u8>)> {
        while self.lost.is_none() && !self.link().is_answered(ticket.id) {
            let blocked = self.step(Some(ticket.id), Source::Nothing);
            self.pause(blocked);
        }
        // A connection that lasts may still send what it holds of a request that was given up.
        let may_be_done = self.lost.is_none() || self.link().may_be_done(ticket.id);
        let now_ms = self.client.common.now_ms();
        let call = self.link().finish(now_ms, ticket.id);
        if call.is_answered() {
            return answer(call).map_err(|failure| match failure {
                Failure::Busy(error) | Failure::Final(error) => error,
                other => unreachable!("an answer is not a loss: {other:?}"),
            });
        }
        let unknown = ticket.changes && may_be_done;
        let kind = if unknown { ErrorKind::OutcomeUnknown } else { ErrorKind::Unreachable };
        Err(Error::new(kind, self.lost.clone().unwrap_or_else(|| "no answer in time".to_owned())))
    }

    /// Hands all that was gathered to the system.
    pub fn flush(&mut self) {
        while self.lost.is_none() && self.link().output_bytes() > 0 {
            let blocked = self.step(None, Source::Nothing);
            if self.link().output_bytes() > 0 {
                self.pause(blocked);
            }
        }
    }

    fn link(&mut self) -> &mut Link<TcpStream> {
        self.link.as_mut().expect("it is there until it is dropped")
    }

    /// Whether a streamed value must still be at hand, or too much output has gathered.
    fn must_drain(&mut self, id: u64) -> bool {
        let link = self.link();
        link.is_half_sent(id)
            || (link.is_sending(id) && !link.is_answered(id))
            || link.output_bytes() > PIPELINE_OUTPUT_BYTES
    }

    /// Moves bytes; what to wait for, if no more can be moved.
    fn step(&mut self, id: Option<u64>, source: Source<'_>) -> Option<Step> {
        let now_ms = self.client.common.now_ms();
        self.link().step(now_ms, id, source).map_err(|error| self.lost = Some(error.to_string())).ok()
    }

    fn pause(&mut self, blocked: Option<Step>) {
        let Some(Step::Wait { write }) = blocked else { return };
        let before_ms = self.client.common.now_ms();
        let link = self.link();
        let most = Duration::from_millis(link.patience_ms(before_ms));
        if most.is_zero() {
            link.expire(before_ms);
        } else if let Err(error) = wait(&link.socket, write, most) {
            self.lost = Some(Error::lost(error).to_string());
        }
    }

    /// A value whose time ran out in the middle of a frame leaves nothing that could follow it.
    fn give_up_half_sent(&mut self, id: u64) {
        let link = self.link();
        if link.is_half_sent(id) && link.is_expired(id) {
            self.lost = Some("the node takes no more bytes".to_owned());
        }
    }
}

impl Drop for Pipeline<'_> {
    fn drop(&mut self) {
        if let (Some(link), None) = (self.link.take(), &self.lost) {
            self.client.common.pool.give_back(self.client.common.now_ms(), link);
        }
    }
}
