//! `flush_all` in a herd of several nodes: the warden gives the collection its next generation, and it is answered when
//! all nodes have the map that says so. Until then the connection is served no further: what it asks behind the command
//! must find nothing.

use super::lines::answer_error;
use crate::context::{Context, Output};
use crate::member::Slot;
use crate::metrics::{DoorName, VerbName};
use herd_core::door::memcached::reply;
use herd_core::limits::PETITION_PATIENCE_MS;
use herd_core::warden::Ask;
use herd_core::{Error, ErrorKind};
use herd_net::{Next, Step, Ticket};
use std::collections::BTreeMap;

/// Those of a loop that are under way, by their connections.
#[derive(Default)]
pub(crate) struct Flushes(BTreeMap<u64, Flush>);

struct Flush {
    ticket: Ticket,
    slot: Slot,
    quiet: bool,
    until_ms: u64,
}

/// Asks the warden.
pub(super) fn begin(cx: &mut Context, quiet: bool, out: &mut Output<'_>) -> Result<(), Error> {
    cx.shared.check_serving()?;
    let busy = || Error::new(ErrorKind::Busy, "too many requests of this connection are under way");
    let ticket = out.defer().ok_or_else(busy)?;
    let slot = match cx.ask_warden(Ask::Flush { name: "default".into() }, Some(ticket)) {
        Ok(slot) => slot,
        Err(error) => {
            // The gap is there: it is filled like any other.
            cx.wake_later(ticket);
            Slot::of(Err(error))
        }
    };
    // The lines behind it are put off.
    cx.was_dear();
    // What is asked of the warden has ended by then.
    let until_ms = cx.now_ms() + 2 * PETITION_PATIENCE_MS;
    cx.flushes.0.insert(ticket.conn, Flush { ticket, slot, quiet, until_ms });
    Ok(())
}

impl Context {
    /// Puts a connection off which waits for its flush.
    #[inline]
    pub(crate) fn put_off_behind_flush(&mut self, out: &mut Output<'_>) -> Option<Step> {
        let waits = !self.flushes.0.is_empty() && self.flushes.0.contains_key(&out.ticket().conn);
        waits.then_some(Step { used: 0, next: Next::Again })
    }

    /// Answers a flush that may be done; false: this ticket is of none.
    #[inline]
    pub(crate) fn end_flush(&mut self, ticket: Ticket, out: &mut Output<'_>) -> bool {
        if self.flushes.0.get(&ticket.conn).is_none_or(|flush| flush.ticket != ticket) {
            return false;
        }
        let Some(said) = self.flushes.0.get(&ticket.conn).and_then(|flush| flush.slot.take()) else { return true };
        let Some(Flush { quiet, .. }) = self.flushes.0.remove(&ticket.conn) else { return true };
        match said {
            Ok(_) if !quiet => out.buf.extend_from_slice(reply::OK),
            Ok(_) => {}
            // It names the nodes that have not heard of it.
            Err(error) if error.kind == ErrorKind::OutcomeUnknown && !quiet => {
                self.count_error(DoorName::Memcached, VerbName::Admin, error.kind);
                out.buf.extend_from_slice(format!("SERVER_ERROR {}\r\n", error.text).as_bytes());
            }
            Err(error) => answer_error(self, VerbName::Admin, &error, quiet, out),
        }
        out.pass();
        true
    }

    /// Forgets those whose connections are gone.
    pub(crate) fn sweep_flushes(&mut self) {
        let now_ms = self.now_ms();
        self.flushes.0.retain(|_, flush| flush.until_ms > now_ms);
    }
}
