//! What other nodes ask of the warden that is here (PROTOCOL.md §1.14): its thread answers, and the loop whose link it
//! came over passes the answer on.

use super::Warden;
use super::ends::Ends;
use herd_core::warden::{Answer, Ask, Refusal};
use herd_core::wire::{ErrandComing, Fields, Header, LinkId, WireError, ask_of, encode_answer};
use herd_core::{Error, ErrorKind};
use std::sync::atomic::{
    AtomicBool,
    Ordering::{Acquire, Relaxed, Release},
};
use std::sync::{Arc, Mutex, PoisonError};

/// An answer, and to what.
type Answered = (LinkId, Header, Result<Answer, Refusal>);

/// Answers that wait for their loop; as many at most as the warden takes requests.
#[derive(Default)]
pub(super) struct Answers {
    any: AtomicBool,
    all: Mutex<Vec<Answered>>,
}

impl Answers {
    #[inline]
    pub(super) fn are_there(&self) -> bool {
        self.any.load(Relaxed) && self.any.swap(false, Acquire)
    }

    fn put(&self, answered: Answered) {
        self.all.lock().unwrap_or_else(PoisonError::into_inner).push(answered);
        self.any.store(true, Release);
    }

    fn take(&self) -> Vec<Answered> {
        std::mem::take(&mut *self.all.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Ends {
    /// Takes the first frame of an errand; it is answered when it is done. Error: it is none, or another one is just
    /// coming.
    pub(super) fn errand(
        &mut self,
        id: LinkId,
        header: &Header,
        fields: &Fields<'_>,
        body: &[u8],
    ) -> Result<(), Error> {
        let mut coming = ErrandComing::begin(header, fields)?;
        if self.errand.as_ref().is_some_and(|(from, ..)| *from != id && self.is_current(*from)) {
            return Err(Error::new(ErrorKind::Busy, "another control store is coming"));
        }
        let is_whole = coming.take(header, body)?;
        self.errand = Some((id, *header, coming));
        if is_whole {
            self.errand_came();
        }
        Ok(())
    }

    /// Takes a further frame of one, if that is what it is of.
    pub(super) fn errand_more(&mut self, id: LinkId, header: &Header, body: &[u8]) -> Result<(), WireError> {
        let Some((from, request, coming)) = &mut self.errand else { return Ok(()) };
        if *from == id && request.id == header.id && coming.take(header, body)? {
            self.errand_came();
        }
        Ok(())
    }

    fn errand_came(&mut self) {
        let Some(((id, header, coming), hub)) = self.errand.take().zip(self.hub()) else { return };
        hub.owner.errand(id.node, coming.done(), Box::new(self.passes_on(id, header)));
    }

    /// Passes an answer on over the link.
    fn passes_on(&self, id: LinkId, header: Header) -> impl FnOnce(Result<Answer, Refusal>) + Send + use<> {
        let loops = self.hub().and_then(|hub| hub.loops());
        let (answers, number) = (Arc::clone(&self.answers), self.number());
        move |answer| {
            answers.put((id, header, answer));
            if let Some(remote) = loops.as_ref().and_then(|loops| loops.loops().get(number)) {
                remote.resume(&[]);
            }
        }
    }

    /// Takes a request to the warden; it is answered later.
    pub(super) fn petition(&self, id: LinkId, header: &Header, fields: &Fields<'_>) -> Result<(), Error> {
        let elsewhere = || Error::new(ErrorKind::Unreachable, "this node is in no herd");
        let ask = ask_of(header, fields)?;
        if matches!(ask, Ask::Leave(life) if life.node != id.node) {
            return Err(Error::new(ErrorKind::NotAllowed, "a node asks for leave for itself alone"));
        }
        let hub = self.hub().ok_or_else(elsewhere)?;
        let reply = self.passes_on(id, *header);
        match hub.owner.warden() {
            Warden::Here(handle) => handle.ask(ask, reply),
            _ => reply(Err(Refusal::NotWarden(None))),
        }
        Ok(())
    }

    /// Sends the answers that are there; those to links that are gone are dropped, as their askers know.
    #[cold]
    pub(super) fn pass_on_answers(&mut self) {
        for (id, request, answer) in self.answers.take() {
            self.say(id, |out| {
                encode_answer(out, &request, &answer).expect("a text that was cut fits");
            });
        }
    }
}
