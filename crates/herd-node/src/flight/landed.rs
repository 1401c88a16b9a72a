//! What came back of a part of a flight: the object before and after, and what was answered, by the clocks of the node
//! that has it. A door writes its reply from it as from an object that is here.

use crate::apply::{At, Done, Outcome, Snapshot};
use crate::context::{Context, away};
use crate::group::Told;
use herd_core::Error;
use herd_core::door::memcached::Clock;
use herd_core::entry::Head;
use herd_core::op::Answer;
use herd_core::wire::{Became, Fields, Header};
use herd_store::{Body, Found};
use std::sync::Arc;

/// See the module.
pub(crate) struct Landed {
    /// The clocks by which its times count.
    pub(crate) clock: Clock,
    /// The object before.
    pub(crate) before: Option<Head>,
    /// The version then, and what a method answered; or why not.
    pub(crate) done: Done,
    /// The object as it is now; its value is there where it was asked for.
    pub(crate) object: Option<Snapshot>,
    /// The header of the reply of another node, which may have only a part of the value, and the checksum it told.
    pub(crate) relayed: Option<(Header, Option<u32>)>,
    /// The object has come here, and a get that waits waits here.
    pub(crate) is_here: bool,
    /// Another node decides by now, which the node that handed it on asks; and whether it may have been done.
    pub(crate) moved: Option<bool>,
    /// The object's value is what was asked for, and not what a method answered.
    pub(crate) with_value: bool,
}

/// The body of a reply.
pub(crate) enum Cargo {
    /// At most what lies beside a key.
    Small(Vec<u8>),
    /// More.
    Large(Arc<Body>),
}

impl Cargo {
    fn answer(self) -> Answer<Arc<Body>> {
        match self {
            Cargo::Small(bytes) if bytes.is_empty() => Answer::Nothing,
            Cargo::Small(bytes) => Answer::Bytes(bytes),
            Cargo::Large(body) => Answer::Large(body),
        }
    }
}

impl Landed {
    /// What it came to, by that clock, where nothing more is known.
    fn came(clock: Clock, done: Done) -> Self {
        let (before, object, relayed) = (None, None, None);
        Self { clock, before, done, object, relayed, is_here: false, moved: None, with_value: false }
    }

    /// It was not done, or nobody knows.
    pub(crate) fn failed(cx: &Context, error: Error) -> Self {
        Self::came(cx.clock(), Err(error))
    }

    /// Another node decides by now; it may have been done, or nothing was.
    pub(super) fn moved(cx: &Context, name: &[u8], may_be_done: bool) -> Self {
        Self { moved: Some(may_be_done), ..Self::failed(cx, away(name)) }
    }

    /// The object has come here while it was waited for elsewhere.
    pub(super) fn here(cx: &Context, name: &[u8]) -> Self {
        Self { is_here: true, ..Self::failed(cx, away(name)) }
    }

    /// What became of an operation here.
    pub(crate) fn of(cx: &Context, outcome: &Outcome<'_, '_>, with_value: bool) -> Self {
        let object = outcome.found().map(|found| match with_value {
            true => Snapshot::of(&found),
            false => Snapshot::without_value(&found),
        });
        let (clock, before) = (outcome.clock(cx), outcome.before);
        Self { before, object, with_value, ..Self::came(clock, outcome.done.clone()) }
    }

    /// What a part of a replica group here has come to; `Err`: it is to be asked again, and may have been done.
    pub(super) fn told(cx: &Context, told: Told, with_value: bool) -> Result<Self, bool> {
        let done = match told {
            Told::Again { may_be_done } => return Err(may_be_done),
            Told::Failed(error, before) => return Ok(Self { before, ..Self::failed(cx, error) }),
            Told::Done(done) => *done,
            // Where it is told of a put, nobody waits for more than its version.
            Told::Put(version) => {
                let became = Became { clock: cx.clock(), before: None, after: None };
                crate::group::Done { version, became, answer: Answer::Nothing, object: None }
            }
        };
        let object = match done.object {
            // With its value, whose checksum may be told.
            Some(object) => Some(Arc::unwrap_or_clone(object)),
            // Of a request that was asked again.
            None => done.became.after.map(|head| Snapshot::made(head, Vec::new(), Cargo::Small(Vec::new()))),
        };
        let (clock, before, done) = (done.became.clock, done.became.before, Ok((done.version, done.answer)));
        Ok(Self { before, object, with_value, ..Self::came(clock, done) })
    }

    /// What another node replied that it was done.
    pub(super) fn replied(cx: &Context, header: &Header, fields: &Fields<'_>, cargo: Cargo, with_value: bool) -> Self {
        let became = Became::decode(fields).ok().flatten();
        let clock = became.map_or_else(|| cx.clock(), |became| became.clock);
        let (before, after) = became.map_or((None, None), |became| (became.before, became.after));
        let attributes = fields.attributes.unwrap_or_default();
        let (cargo, answer) = match with_value {
            true => (cargo, Answer::Nothing),
            false => (Cargo::Small(Vec::new()), cargo.answer()),
        };
        let object = after.map(|head| Snapshot::made(head, attributes.to_vec(), cargo));
        let relayed = Some((*header, fields.checksum));
        Self { before, object, relayed, with_value, ..Self::came(clock, Ok((header.version, answer))) }
    }

    /// What another node replied that it was not done.
    pub(super) fn refused(cx: &Context, fields: &Fields<'_>, error: Error) -> Self {
        let became = Became::decode(fields).ok().flatten();
        let before = became.and_then(|became| became.before);
        let clock = became.map_or_else(|| cx.clock(), |became| became.clock);
        Self { before, ..Self::came(clock, Err(error)) }
    }

    /// Whether it was read here.
    pub(crate) fn is_read(&self) -> bool {
        self.done.is_ok() && self.relayed.is_none() && !self.is_here
    }

    /// The object as it is now.
    pub(crate) fn found(&self) -> Option<Found<'_>> {
        self.object.as_ref().map(Snapshot::found)
    }

    /// For the formatter of a door.
    pub(crate) fn outcome(&self) -> Outcome<'_, '_> {
        Outcome { before: self.before, done: self.done.clone(), at: At::There(self) }
    }

    /// Bytes of it that count, a large value aside.
    pub(super) fn bytes(&self) -> u64 {
        let object = self.object.as_ref().map_or(0, Snapshot::bytes);
        let answer = match &self.done {
            Ok((_, Answer::Bytes(bytes))) => bytes.len() as u64,
            _ => 0,
        };
        object + answer
    }
}
