//! Requests of clients that the herd's warden decides: collections are made and removed there, and are in the map when
//! that is answered.

use super::write::answer_done;
use super::{Session, count_as, refuse};
use crate::context::{Context, Output};
use crate::member::{Said, Slot};
use herd_core::key::CollectionId;
use herd_core::warden::{Answer, Ask};
use herd_core::wire::{FLAG_QUIET, Fields, Header, Status};
use herd_core::{Error, ErrorKind};
use herd_net::Ticket;

/// A request that the warden has.
pub(super) struct Asking {
    request: Header,
    slot: Slot,
}

impl Asking {
    pub(super) fn id(&self) -> u64 {
        self.request.id
    }
}

impl Session {
    /// Asks the warden; the reply comes when it has answered.
    pub(super) fn ask_warden(
        &mut self,
        cx: &mut Context,
        header: &Header,
        ask: Ask,
        out: &mut Output<'_>,
    ) -> Result<(), Error> {
        self.check_open(cx)?;
        cx.shared.check_serving()?;
        let ticket = out.ticket();
        let slot = cx.ask_warden(ask, Some(ticket))?;
        self.open().asks.insert(ticket.serial, Asking { request: *header, slot });
        Ok(())
    }

    /// The warden may have answered. False: nothing of this ticket was asked.
    pub(super) fn warden_answered(&mut self, cx: &mut Context, ticket: Ticket, out: &mut Output<'_>) -> bool {
        let Some(open) = &mut self.open else { return false };
        let Some(asking) = open.asks.get(&ticket.serial) else { return false };
        let Some(said) = asking.slot.take() else { return true };
        let request = asking.request;
        open.asks.remove(&ticket.serial);
        if let Err(error) = answer(cx, &request, said, out) {
            refuse(cx, count_as(&request), &request, 0, &error, out);
        }
        true
    }
}

fn answer(cx: &mut Context, request: &Header, said: Said, out: &mut Output<'_>) -> Result<(), Error> {
    match said? {
        Answer::Created(id) => {
            let late = || {
                let text = "the collection is made, and the map with it has not come to this node yet: look again";
                Error::new(ErrorKind::Unreachable, text)
            };
            let collection = cx.shared.store.collection_by_id(id).ok_or_else(late)?;
            answer_done(cx, (&collection, b""), request, Ok(0), out);
        }
        Answer::Control(json) => {
            let mut reply = Header::reply_to(request, Status::Ok);
            reply.length = json.len() as u64;
            super::write_frame(reply, &Fields::default(), json.as_bytes(), out);
        }
        _ if request.has(FLAG_QUIET) => {}
        answer => {
            let mut reply = Header::reply_to(request, Status::Ok);
            if let Answer::GaveUp { groups } = answer {
                reply.version = groups as u64;
            }
            reply.collection = CollectionId::BY_NAME.0;
            super::write_frame(reply, &Fields::default(), &[], out);
        }
    }
    Ok(())
}
