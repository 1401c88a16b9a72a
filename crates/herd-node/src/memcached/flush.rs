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
use std::sync::atomic::Ordering::Relaxed;

/// Those of a loop that are under way.
#[derive(Default)]
pub(crate) struct Flushes {
    /// By their connections.
    open: BTreeMap<u64, Flush>,
    /// What the warden says of the one with a delay whose time has come.
    due: Option<Slot>,
}

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
    cx.flushes.open.insert(ticket.conn, Flush { ticket, slot, quiet, until_ms });
    Ok(())
}

impl Context {
    /// Puts a connection off which waits for its flush.
    #[inline]
    pub(crate) fn put_off_behind_flush(&mut self, out: &mut Output<'_>) -> Option<Step> {
        let waits = !self.flushes.open.is_empty() && self.flushes.open.contains_key(&out.ticket().conn);
        waits.then_some(Step { used: 0, next: Next::Again })
    }

    /// Answers a flush that may be done; false: this ticket is of none.
    #[inline]
    pub(crate) fn end_flush(&mut self, ticket: Ticket, out: &mut Output<'_>) -> bool {
        if self.flushes.open.get(&ticket.conn).is_none_or(|flush| flush.ticket != ticket) {
            return false;
        }
        let Some(said) = self.flushes.open.get(&ticket.conn).and_then(|flush| flush.slot.take()) else { return true };
        let Some(Flush { quiet, .. }) = self.flushes.open.remove(&ticket.conn) else { return true };
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

    /// Asks for the flush that was put off until now, till it is done; forgets those whose connections are gone.
    pub(crate) fn sweep_flushes(&mut self) {
        if self.number == 0 {
            self.flush_when_due();
        }
        let now_ms = self.now_ms();
        self.flushes.open.retain(|_, flush| flush.until_ms > now_ms);
    }

    /// The node that was told keeps the time; at most one is to come, as at a node by itself.
    fn flush_when_due(&mut self) {
        let at_ms = self.shared.flush_at_ms.load(Relaxed);
        if at_ms == 0 || at_ms > self.now.unix_ms {
            self.flushes.due = None;
            return;
        }
        let Some(slot) = &self.flushes.due else { return self.ask_to_flush() };
        match slot.take() {
            None => {}
            Some(Err(error)) if error.kind != ErrorKind::OutcomeUnknown => self.ask_to_flush(),
            // Who has not heard of it does it when it is back.
            Some(_) => {
                self.flushes.due = None;
                // Unless another was told meanwhile.
                self.shared.flush_at_ms.compare_exchange(at_ms, 0, Relaxed, Relaxed).ok();
            }
        }
    }

    fn ask_to_flush(&mut self) {
        self.flushes.due = self.ask_warden(Ask::Flush { name: "default".into() }, None).ok();
    }
}
