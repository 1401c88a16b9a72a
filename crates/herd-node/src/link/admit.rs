//! A node that wants in, as the member sees it that is asked (PROTOCOL.md §1.9): hello, welcome, proof; then the warden
//! is asked, if it is here, or named. So it is with who tells that a node's process has ended. The connection
//! is of no other use, and ends like any that tells no protocol.

use super::Hub;
use crate::context::{Context, Output};
use herd_core::control::Term;
use herd_core::place::Map;
use herd_core::warden::{Answer, Ask, MoveId, Refusal};
use herd_core::wire::{
    Admitting, Errand, Fields, Greeting, Hearing, LINK_PROTOCOL, LinkError, LinkErrorKind, encode_heard, encode_joined,
    is_obituary,
};
use herd_net::Ticket;
use std::sync::{Arc, Mutex, PoisonError};

/// Where the warden is, as a node knows it.
pub enum Warden {
    /// Here.
    Here(crate::warden::Handle),
    /// At another node, of this address.
    At(String),
    /// This node knows of none, or takes no joins: why.
    None(String),
}

const JOINS: &str = "a node that wanted to join";
const TELLS: &str = "the witness of a node";

/// Who has something for the warden, and is no node with links.
pub(crate) enum Guest {
    /// A node that wants in.
    Joins(Box<Admitting>),
    /// Who tells that a node's process has ended.
    Tells(Box<Hearing>),
}

impl Guest {
    /// As the log speaks of it.
    fn called(&self) -> &'static str {
        match self {
            Guest::Joins(_) => JOINS,
            Guest::Tells(_) => TELLS,
        }
    }

    /// What the warden is asked, once that is proved.
    fn proved(self, hello: &Fields<'_>) -> Result<Ask, LinkError> {
        match self {
            Guest::Joins(admitting) => admitting.proved(hello).map(Ask::Join),
            Guest::Tells(hearing) => hearing.proved(hello).map(Ask::Obituary),
        }
    }
}

/// The way of a node into the herd, or of word of its end.
pub(crate) enum Admission {
    /// Its proof is to come. The term that was in office when it was greeted, if the warden was here: its process lived
    /// after that, as it proves by what it was greeted with.
    Greeted(Guest, Term),
    /// The warden is asked, by somebody who is called so.
    Asked(Slot, &'static str),
    /// Somebody who is called so is in, or was refused.
    Over(&'static str),
}

/// Where the warden's answer is put.
#[derive(Clone, Default)]
pub(crate) struct Slot(Arc<Mutex<Option<Answered>>>);

/// What the warden answered, and the map of then.
type Answered = (Result<Answer, Refusal>, Option<Arc<Map>>);

impl Slot {
    fn put(&self, answered: Answered) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(answered);
    }

    fn take(&self) -> Option<Answered> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

fn refuse(text: impl Into<String>) -> LinkError {
    LinkError::new(LinkErrorKind::JoinRefused, text)
}

/// It may be asked again; it may have been done, too.
fn not_now(text: impl Into<String>) -> LinkError {
    LinkError::new(LinkErrorKind::NotNow, text)
}

/// What a refusal of the warden's is to who asked: a node that is told that it is refused forgets who it is.
fn told(refusal: &Refusal) -> LinkError {
    match refusal {
        Refusal::Unknown => not_now("whether it is in is not known"),
        refusal if refusal.is_final() => refuse(refusal.to_string()),
        refusal => not_now(refusal.to_string()),
    }
}

impl Admission {
    /// Who it is, as the log speaks of it.
    pub(crate) fn called(&self) -> &'static str {
        match self {
            Admission::Greeted(guest, _) => guest.called(),
            Admission::Asked(_, called) | Admission::Over(called) => called,
        }
    }

    /// Answers the hello of a node that wants in.
    pub(crate) fn begin(cx: &Context, hello: &Fields<'_>, out: &mut Output<'_>) -> Result<Self, LinkError> {
        let why = "the node takes no joins: it listens beyond loopback and was started without HERD_SECRET";
        let hub = cx.links.hub().ok_or_else(|| refuse(why))?;
        let me = &hub.me;
        let term = if let Warden::Here(handle) = hub.owner.warden() { handle.term() } else { 0 };
        let greeting = Greeting { protocol: LINK_PROTOCOL.into(), herd: me.herd, node: me.node, nonce: hub.nonce() };
        if is_obituary(hello) {
            let hearing = Hearing::new(hello, &greeting, me.secret)?;
            hearing.welcome(out.buf);
            return Ok(Admission::Greeted(Guest::Tells(Box::new(hearing)), term));
        }
        let admitting = Admitting::new(hello, &greeting, me.secret)?;
        admitting.welcome(out.buf);
        Ok(Admission::Greeted(Guest::Joins(Box::new(admitting)), term))
    }

    /// Takes the proof, and asks the warden.
    pub(crate) fn proved(&mut self, cx: &Context, hello: &Fields<'_>, ticket: Ticket) -> Result<(), LinkError> {
        let called = self.called();
        let greeted = std::mem::replace(self, Admission::Over(called));
        let (Admission::Greeted(guest, term), Some(hub)) = (greeted, cx.links.hub()) else {
            return Err(LinkError::new(LinkErrorKind::BadHello, "this is not what a join goes on with"));
        };
        let wish = guest.proved(hello)?;
        if let Ask::Obituary(life) = &wish
            && (life.node, life.incarnation) == (hub.me.node, hub.me.incarnation)
        {
            return Err(refuse("this process of the node has not ended: it is the one that hears this"));
        }
        cx.shared.check_serving().map_err(|error| not_now(error.text))?;
        let moved = if let Ask::Join(join) = &wish { join.moved } else { None };
        match hub.owner.warden() {
            Warden::Here(handle) => {
                *self = Admission::Asked(ask(hub, &handle, cx.number, (term, wish), ticket), called);
                Ok(())
            }
            Warden::At(_) | Warden::None(_) if let Some(id) = moved => {
                // Its control store may have come here, and it was not there to say that this is to begin with it.
                *self = Admission::Asked(begin(hub, cx.number, id, ticket), called);
                Ok(())
            }
            Warden::At(address) => Err(LinkError::new(LinkErrorKind::AskWarden, address)),
            Warden::None(why) => Err(not_now(why)),
        }
    }

    /// The warden may have answered; whether it has.
    pub(crate) fn resume(&mut self, cx: &Context, out: &mut Output<'_>) -> bool {
        let Admission::Asked(slot, called) = self else { return false };
        let Some(((answer, map), hub)) = slot.take().zip(cx.links.hub()) else { return false };
        let called = *called;
        *self = Admission::Over(called);
        let joined = match answer {
            Ok(Answer::Noted) => {
                encode_heard(out.buf);
                return true;
            }
            Ok(Answer::Joined(joined)) => map.map(|map| (joined, map)).ok_or_else(|| not_now("there is no map yet")),
            Ok(_) => Err(not_now("the warden answered something else")),
            // It is one no more.
            Err(Refusal::NotWarden(_)) => Err(match hub.owner.warden() {
                Warden::At(address) => LinkError::new(LinkErrorKind::AskWarden, address),
                _ => told(&Refusal::NotWarden(None)),
            }),
            Err(refusal) => Err(told(&refusal)),
        };
        match joined {
            Ok((joined, map)) => {
                encode_joined(out.buf, &joined, &map.encode())
                    .expect("a map keeps its limits, which are within a body's");
            }
            Err(error) => {
                hub.owner.turned_away(called, &error);
                error.goodbye(out.buf);
            }
        }
        true
    }
}

/// Begins with the copy of that move, if it is here. Who asked is told where the warden is then: here, or where it went
/// since the move.
fn begin(hub: &Hub, number: usize, id: MoveId, ticket: Ticket) -> Slot {
    let slot = Slot::default();
    let tell = telling(hub, &slot, number, ticket);
    hub.owner.errand(hub.me.node, Errand::Begin(id), Box::new(|_| tell(Err(Refusal::NotWarden(None)), None)));
    slot
}

/// Asks the warden that is here; the answer resumes a connection of this loop.
fn ask(hub: &Hub, handle: &crate::warden::Handle, number: usize, (term, ask): (Term, Ask), ticket: Ticket) -> Slot {
    let (slot, maps) = (Slot::default(), handle.clone());
    let tell = telling(hub, &slot, number, ticket);
    handle.ask_since(term, ask, move |answer| tell(answer, maps.map().map(|(map, _)| map)));
    slot
}

/// Puts an answer there, and resumes the connection of that loop which waits for it.
fn telling(
    hub: &Hub,
    slot: &Slot,
    number: usize,
    ticket: Ticket,
) -> impl FnOnce(Result<Answer, Refusal>, Option<Arc<Map>>) + Send + use<> {
    let (slot, loops) = (slot.clone(), hub.loops());
    move |answer, map| {
        slot.put((answer, map));
        if let Some(remote) = loops.as_ref().and_then(|loops| loops.loops().get(number)) {
            remote.resume(&[ticket]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_herd_has_refused_for_good_is_told_as_refused() {
        let sure = [Refusal::NameTaken("n".into()), Refusal::NoPlace, Refusal::OnLoopback("a".into())];
        let unsure = [
            Refusal::Unknown,
            Refusal::Store("etcd has no leader".into()),
            Refusal::Busy,
            Refusal::NotWarden(None),
            Refusal::NotWarden(Some("w".into())),
        ];
        assert!(sure.iter().all(|refusal| told(refusal).kind == LinkErrorKind::JoinRefused));
        assert!(unsure.iter().all(|refusal| told(refusal).kind == LinkErrorKind::NotNow));
        assert_eq!(told(&unsure[1]).text, "etcd has no leader");
    }
}
