//! What other nodes ask of the warden that is here (PROTOCOL.md §1.14): its thread answers, and the loop whose link it
//! came over passes the answer on.

use super::Warden;
use super::ends::Ends;
use herd_core::warden::{Answer, Ask, Refusal};
use herd_core::wire::{Fields, Header, LinkId, ask_of, encode_answer};
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
    /// Takes a request to the warden; it is answered later.
    pub(super) fn petition(&self, id: LinkId, header: &Header, fields: &Fields<'_>) -> Result<(), Error> {
        let elsewhere = || Error::new(ErrorKind::Unreachable, "the warden is not at this node any more: try again");
        let ask = ask_of(header, fields)?;
        if matches!(ask, Ask::Leave(life) if life.node != id.node) {
            return Err(Error::new(ErrorKind::NotAllowed, "a node asks for leave for itself alone"));
        }
        let hub = self.hub().ok_or_else(elsewhere)?;
        let Warden::Here(handle) = hub.owner.warden() else { return Err(elsewhere()) };
        let (answers, loops, number, header) = (Arc::clone(&self.answers), hub.loops(), self.number(), *header);
        handle.ask(ask, move |answer| {
            answers.put((id, header, answer));
            if let Some(remote) = loops.as_ref().and_then(|loops| loops.loops().get(number)) {
                remote.resume(&[]);
            }
        });
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
