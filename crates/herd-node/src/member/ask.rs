//! What a loop asks of the warden, wherever that is: of its handle here, or over the loop's own link to its node
//! (PROTOCOL.md §1.14). The answer is put in a [`Slot`], and who waits for it is resumed; a session that is gone leaves
//! its slot to nobody.
//!
//! Each request ends: by the answer, by the loss of its link, or by time. One to which it is answered that the warden
//! is elsewhere was not done, and is asked again, of wherever it is by then: it may be on its way to another node.

use crate::context::Context;
use crate::link::{NoLink, Note};
use crate::warden::Handle;
use herd_core::limits::{ELSEWHERE_MS, PETITION_PATIENCE_MS, UNLINKED_MS, WARDEN_ASKS_MAX};
use herd_core::warden::{Answer, Ask, Refusal};
use herd_core::wire::{Fields, Header, Kind, VERB_WARDEN, answer_of, encode_ask, is_elsewhere};
use herd_core::{Error, ErrorKind};
use herd_net::Ticket;
use std::collections::BTreeMap;
use std::sync::atomic::{
    AtomicBool,
    Ordering::{Acquire, Relaxed, Release},
};
use std::sync::{Arc, Mutex, PoisonError};

/// What the warden said.
pub(crate) type Said = Result<Answer, Error>;

/// Where it is put.
#[derive(Clone, Debug, Default)]
pub(crate) struct Slot(Arc<Mutex<Option<Said>>>);

impl Slot {
    /// One in which something is already.
    pub(crate) fn of(said: Said) -> Self {
        Self(Arc::new(Mutex::new(Some(said))))
    }

    /// Takes what was said, if it was.
    pub(crate) fn take(&self) -> Option<Said> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Puts it there; the first word counts.
    fn put(&self, said: Said) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(said);
    }
}

/// A request that is not answered.
struct Petition {
    ask: Ask,
    slot: Slot,
    /// Who waits.
    ticket: Option<Ticket>,
    until_ms: u64,
    /// When it may be asked again.
    again_ms: u64,
}

/// How soon a request is asked again whose warden is elsewhere.
const ELSEWHERE_AGAIN_MS: u64 = 20;

/// Those of a loop.
#[derive(Default)]
pub(crate) struct Petitions {
    open: BTreeMap<u64, Petition>,
    /// Those that wait for a link, or for the warden to be somewhere.
    unsent: Vec<u64>,
    /// What the warden's thread here said to some.
    heard: Arc<Heard>,
    last: u64,
}

/// What the warden's thread tells a loop: requests that it has answered, and those to which it said that it is
/// elsewhere.
#[derive(Default)]
struct Heard {
    any: AtomicBool,
    all: Mutex<Vec<(u64, bool)>>,
}

impl Heard {
    fn put(&self, number: u64, is_elsewhere: bool) {
        self.all.lock().unwrap_or_else(PoisonError::into_inner).push((number, is_elsewhere));
        self.any.store(true, Release);
    }

    fn take(&self) -> Vec<(u64, bool)> {
        match self.any.swap(false, Acquire) {
            true => std::mem::take(&mut *self.all.lock().unwrap_or_else(PoisonError::into_inner)),
            false => Vec::new(),
        }
    }
}

impl Context {
    /// Asks the warden; `ticket` is resumed when it has answered. Error: it can't be asked.
    pub(crate) fn ask_warden(&mut self, ask: Ask, ticket: Option<Ticket>) -> Result<Slot, Error> {
        if let Ask::Create(create) = &ask {
            create.check_copies()?;
        }
        // What does not fit a frame is refused before anything is open.
        encode_ask(&mut Vec::new(), 0, &ask).map_err(|error| Error::new(ErrorKind::BadRequest, error.to_string()))?;
        if self.petitions.open.len() >= WARDEN_ASKS_MAX {
            return Err(Error::new(ErrorKind::Busy, "too many changes of the herd are waiting: try again"));
        }
        let nobody = || Error::new(ErrorKind::Unreachable, "this node is in no herd");
        self.shared.member.get().ok_or_else(nobody)?;
        let (number, slot) = (self.petitions.last + 1, Slot::default());
        self.petitions.unsent.push(number);
        self.petitions.last = number;
        let until_ms = self.now_ms() + PETITION_PATIENCE_MS;
        self.petitions.open.insert(number, Petition { ask, slot: slot.clone(), ticket, until_ms, again_ms: 0 });
        self.send_petitions();
        Ok(slot)
    }

    /// Asks the warden that is here.
    fn ask_here(&self, handle: &Handle, number: u64, Petition { ask, slot, ticket, .. }: &Petition) {
        let (answered, ticket, shared, own) = (slot.clone(), *ticket, Arc::downgrade(&self.shared), self.number);
        let heard = self.petitions.heard.clone();
        handle.ask(ask.clone(), move |answer| {
            let is_elsewhere = matches!(answer, Err(Refusal::NotWarden(_)));
            if !is_elsewhere {
                answered.put(answer.map_err(Error::from));
            }
            heard.put(number, is_elsewhere);
            let tickets = ticket.filter(|_| !is_elsewhere);
            // Nobody waits any more where the loops are gone.
            let loops = shared.upgrade().and_then(|shared| shared.loops.get().cloned());
            if let Some(remote) = loops.as_ref().and_then(|loops| loops.loops().get(own)) {
                remote.resume(tickets.as_slice());
            }
        });
    }

    /// Sends what could not be sent yet, in its order. A node that has just joined has no link for some ms; where there
    /// is none for longer, it is said so.
    #[inline]
    pub(crate) fn send_petitions(&mut self) {
        if !self.petitions.unsent.is_empty() || self.petitions.heard.any.load(Relaxed) {
            self.send_now();
        }
    }

    #[cold]
    fn send_now(&mut self) {
        for (number, is_elsewhere) in self.petitions.heard.take() {
            match is_elsewhere {
                true => self.ask_again(number),
                false => drop(self.petitions.open.remove(&number)),
            }
        }
        let Some(member) = self.shared.member.get().cloned() else { return };
        let (here, warden) = (member.warden(), member.warden_node());
        let unsent = std::mem::take(&mut self.petitions.unsent);
        for number in unsent {
            let Some(petition) = self.petitions.open.get(&number) else { continue };
            let Petition { ask, until_ms, .. } = petition;
            if self.now_ms() < petition.again_ms {
                self.petitions.unsent.push(number);
                continue;
            }
            if let Some(handle) = &here {
                self.ask_here(handle, number, petition);
                continue;
            }
            let is_late = self.now_ms() + PETITION_PATIENCE_MS >= until_ms + UNLINKED_MS;
            let request = Header { verb: VERB_WARDEN, ..Header::new(Kind::Request) };
            let encode = |header: Header, out: &mut Vec<u8>| encode_ask(out, header.id, ask);
            match self.links.ask(warden, request, Note::Warden(number), encode) {
                Ok(_) => {}
                Err(NoLink::Down) if !is_late => self.petitions.unsent.push(number),
                Err(error) => {
                    let petition = self.petitions.open.remove(&number);
                    petition.into_iter().for_each(|petition| self.end(petition, Err(no_link(error))));
                }
            }
        }
    }

    /// Tells the warden what the groups that this node leads want. It is told again until the map says so, so nobody
    /// waits for an answer.
    pub(crate) fn tell_wants(&mut self) {
        let member = self.shared.member.get().cloned();
        for ask in member.map(|member| member.take_wants()).unwrap_or_default() {
            drop(self.ask_warden(ask, None));
        }
    }

    /// The warden was not where it was asked: it is asked again soon, for a while.
    fn ask_again(&mut self, number: u64) {
        let now_ms = self.now_ms();
        let Some(petition) = self.petitions.open.get_mut(&number) else { return };
        let is_late = now_ms + PETITION_PATIENCE_MS >= petition.until_ms + ELSEWHERE_MS;
        if is_late || self.shared.check_serving().is_err() {
            let petition = self.petitions.open.remove(&number);
            let error = || Error::from(Refusal::NotWarden(None));
            return petition.into_iter().for_each(|petition| self.end(petition, Err(error())));
        }
        petition.again_ms = now_ms + ELSEWHERE_AGAIN_MS;
        self.petitions.unsent.push(number);
    }

    /// What came back over a link; `None`: it was lost.
    pub(crate) fn warden_answered(&mut self, number: u64, reply: Option<(&Header, &Fields<'_>)>) {
        if reply.is_some_and(|(header, _)| is_elsewhere(header)) {
            return self.ask_again(number);
        }
        let Some(petition) = self.petitions.open.remove(&number) else { return };
        let said = reply.map_or_else(|| Err(unknown()), |(header, fields)| answer_of(&petition.ask, header, fields));
        self.end(petition, said);
    }

    /// Ends what has taken too long.
    pub(crate) fn sweep_petitions(&mut self) {
        let now_ms = self.now_ms();
        let late = |_: &u64, petition: &mut Petition| petition.until_ms <= now_ms;
        let late: Vec<_> = self.petitions.open.extract_if(.., late).collect();
        late.into_iter().for_each(|(_, petition)| self.end(petition, Err(unknown())));
    }

    fn end(&mut self, petition: Petition, said: Said) {
        petition.slot.put(said);
        petition.ticket.into_iter().for_each(|ticket| self.wake_later(ticket));
    }
}

fn unknown() -> Error {
    let text = "the warden did not answer in time: it may have been done, look before trying again";
    Error::new(ErrorKind::OutcomeUnknown, text)
}

fn no_link(error: NoLink) -> Error {
    match error {
        NoLink::Busy => Error::new(ErrorKind::Busy, "too much is on its way to the warden's node: try again"),
        NoLink::Down => Error::new(
            ErrorKind::Unreachable,
            "the warden's node can't be reached: `herd status` names it, see that it runs",
        ),
    }
}
