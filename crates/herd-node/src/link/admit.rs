//! A node that wants in, as the member sees it that is asked (PROTOCOL.md §1.9): hello, welcome, proof; then the warden
//! is asked, if it is here, or named. The connection is of no other use, and ends like any that tells no protocol.

use super::Hub;
use crate::context::{Context, Output};
use herd_core::place::Map;
use herd_core::warden::{Answer, Ask, Refusal};
use herd_core::wire::{Admitting, Fields, Greeting, LINK_PROTOCOL, LinkError, LinkErrorKind, encode_joined};
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

/// The way of a node into the herd.
pub(crate) enum Admission {
    /// Its proof is to come.
    Greeted(Box<Admitting>),
    /// The warden is asked.
    Asked(Slot),
    /// It is in, or was refused.
    Over,
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

impl Admission {
    /// Answers the hello of a node that wants in.
    pub(crate) fn begin(cx: &Context, hello: &Fields<'_>, out: &mut Output<'_>) -> Result<Self, LinkError> {
        let why = "the node takes no joins: it listens beyond loopback and was started without HERD_SECRET";
        let hub = cx.links.hub().ok_or_else(|| refuse(why))?;
        let me = &hub.me;
        let greeting = Greeting { protocol: LINK_PROTOCOL.into(), herd: me.herd, node: me.node, nonce: hub.nonce() };
        let admitting = Admitting::new(hello, &greeting, me.secret)?;
        admitting.welcome(out.buf);
        Ok(Admission::Greeted(Box::new(admitting)))
    }

    /// Takes the proof, and asks the warden.
    pub(crate) fn proved(self, cx: &Context, hello: &Fields<'_>, ticket: Ticket) -> Result<Self, LinkError> {
        let (Admission::Greeted(admitting), Some(hub)) = (self, cx.links.hub()) else {
            return Err(LinkError::new(LinkErrorKind::BadHello, "this is not what a join goes on with"));
        };
        let join = admitting.proved(hello)?;
        cx.shared.check_serving().map_err(|error| refuse(error.text))?;
        match hub.owner.warden() {
            Warden::Here(handle) => Ok(Admission::Asked(ask(hub, &handle, cx.number, Ask::Join(join), ticket))),
            Warden::At(address) => Err(LinkError::new(LinkErrorKind::AskWarden, address)),
            Warden::None(why) => Err(refuse(why)),
        }
    }

    /// The warden may have answered; whether it has.
    pub(crate) fn resume(&mut self, cx: &Context, out: &mut Output<'_>) -> bool {
        let Admission::Asked(slot) = self else { return false };
        let Some(((answer, map), hub)) = slot.take().zip(cx.links.hub()) else { return false };
        *self = Admission::Over;
        let joined = match answer {
            Ok(Answer::Joined(joined)) => map.map(|map| (joined, map)).ok_or_else(|| refuse("there is no map yet")),
            Ok(_) => Err(refuse("the warden answered something else")),
            // It is one no more.
            Err(Refusal::NotWarden(_)) => Err(match hub.owner.warden() {
                Warden::At(address) => LinkError::new(LinkErrorKind::AskWarden, address),
                _ => refuse(Refusal::NotWarden(None).to_string()),
            }),
            Err(refusal) => Err(refuse(refusal.to_string())),
        };
        match joined {
            Ok((joined, map)) => {
                encode_joined(out.buf, &joined, &map.encode())
                    .expect("a map keeps its limits, which are within a body's");
            }
            Err(error) => {
                hub.owner.turned_away("a node that wanted to join", &error);
                error.goodbye(out.buf);
            }
        }
        true
    }
}

/// Asks the warden that is here; the answer resumes a connection of this loop.
fn ask(hub: &Hub, handle: &crate::warden::Handle, number: usize, ask: Ask, ticket: Ticket) -> Slot {
    let (slot, loops, maps) = (Slot::default(), hub.loops(), handle.clone());
    let answered = slot.clone();
    handle.ask(ask, move |answer| {
        answered.put((answer, maps.map().map(|(map, _)| map)));
        if let Some(remote) = loops.as_ref().and_then(|loops| loops.loops().get(number)) {
            remote.resume(&[ticket]);
        }
    });
    slot
}
