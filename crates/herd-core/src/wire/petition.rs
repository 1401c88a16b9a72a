//! What a node asks of the warden over a link (PROTOCOL.md §1.14): leave to hold objects, changes of collections, and
//! of groups that it leads, and leave to end.
//! Joins are asked otherwise ([`super::join`]): who joins has no link yet. Pure.
//!
//! Callers: link sessions of nodes.

use super::fields::Fields;
use super::header::{Header, Kind, STATUS_MOVED, Status};
use super::{WireError, encode_frame};
use crate::collection::Wanted;
use crate::error::{Error, ErrorKind};
use crate::key::CollectionId;
use crate::place::{GroupId, Life, NodeId};
use crate::replica::Want;
use crate::warden::{Answer, Ask, Create, Refusal};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::num::NonZeroU32;

/// The verb by which nodes ask something of the warden.
pub const VERB_WARDEN: u8 = 19;

const HOLD: u16 = 1;
const CREATE: u16 = 2;
const DESTROY: u16 = 3;
const FLUSH: u16 = 4;
const WANTS: u16 = 5;
const DRAIN: u16 = 6;
const STAY: u16 = 7;
const LEAVE: u16 = 8;
const CONTROL: u16 = 9;
const GIVE_UP: u16 = 16;
const MOVE_GROUP: u16 = 17;

/// A life of a node, as it is sent.
#[derive(Serialize, Deserialize)]
struct Lives {
    node: NonZeroU32,
    incarnation: u64,
}

/// What a primary wants, as it is sent.
#[derive(Serialize, Deserialize)]
struct Wish {
    /// Spread group, and number there.
    group: (u16, u16),
    epoch: u32,
    /// The member that is to be joining; or to be taken out.
    #[serde(skip_serializing_if = "Option::is_none")]
    joining: Option<NonZeroU32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    removed: Option<NonZeroU32>,
}

impl Wish {
    fn of((group, epoch, want): &(GroupId, u32, Want)) -> Self {
        let (joining, removed) = match want {
            Want::Joining(node) => (Some(node.0), None),
            Want::Removed(node) => (None, Some(node.0)),
        };
        Self { group: (group.spread, group.number), epoch: *epoch, joining, removed }
    }

    /// `None`: a later program wants something that this one knows nothing of.
    fn want(&self) -> Option<(GroupId, u32, Want)> {
        let joining = self.joining.map(|node| Want::Joining(NodeId(node)));
        let want = joining.or(self.removed.map(|node| Want::Removed(NodeId(node))))?;
        let (spread, number) = self.group;
        Some((GroupId { spread, number }, self.epoch, want))
    }
}

/// Appends the request with this id. Error: it is a join or an obituary, which are not asked so, or its name is too
/// long.
pub fn encode_ask(out: &mut Vec<u8>, id: u64, ask: &Ask) -> Result<(), WireError> {
    let json;
    let none = Fields::default();
    let (code, fields) = match ask {
        Ask::Hold => (HOLD, none),
        Ask::Create(create) => {
            let Create { spec, copies, spread, .. } = create.clone();
            json = json_of(&Wanted { copies, spread, ..Wanted::of(spec) });
            (CREATE, Fields { collection: Some(&create.name), spec: Some(&json), ..none })
        }
        Ask::Destroy { name } => (DESTROY, Fields { collection: Some(name), ..none }),
        Ask::Flush { name } => (FLUSH, Fields { collection: Some(name), ..none }),
        Ask::Wants(wants) => {
            json = json_of(&wants.iter().map(Wish::of).collect::<Vec<_>>());
            (WANTS, Fields { spec: Some(&json), ..none })
        }
        Ask::Drain { name, stays } => {
            let code = if *stays { STAY } else { DRAIN };
            (code, Fields { name: Some(name.as_bytes()), ..none })
        }
        Ask::Leave(life) => {
            let lives = Lives { node: life.node.0, incarnation: life.incarnation };
            json = json_of(&lives);
            (LEAVE, Fields { spec: Some(&json), ..none })
        }
        Ask::Control(ask) => {
            json = json_of(ask);
            (CONTROL, Fields { spec: Some(&json), ..none })
        }
        Ask::GiveUp(give_up) => {
            json = json_of(give_up);
            (GIVE_UP, Fields { spec: Some(&json), ..none })
        }
        Ask::MoveGroup(asked) => {
            json = json_of(asked);
            (MOVE_GROUP, Fields { spec: Some(&json), ..none })
        }
        Ask::Join(_) | Ask::Obituary(_) => return Err(WireError::BadField(super::fields::JOIN)),
    };
    let header = Header { verb: VERB_WARDEN, id, code, ..Header::new(Kind::Request) };
    encode_frame(out, header, &fields, b"")
}

/// The request of a frame with verb [`VERB_WARDEN`].
pub fn ask_of(header: &Header, fields: &Fields<'_>) -> Result<Ask, Error> {
    let bad = |text: &str| Error::new(ErrorKind::BadRequest, text);
    let name = || fields.collection.map(str::to_owned).ok_or_else(|| bad("the request names no collection"));
    match header.code {
        HOLD => Ok(Ask::Hold),
        CREATE => {
            let json = fields.spec.ok_or_else(|| bad("the request has no specification"))?;
            let wanted: Wanted = serde_json::from_str(json).map_err(|_| bad("the specification can't be read"))?;
            let create = Create::of(name()?, &wanted);
            create.check_copies()?;
            Ok(Ask::Create(create))
        }
        DESTROY => Ok(Ask::Destroy { name: name()? }),
        FLUSH => Ok(Ask::Flush { name: name()? }),
        WANTS => {
            let wishes: Vec<Wish> = told(fields, "what is wanted")?;
            Ok(Ask::Wants(wishes.iter().filter_map(Wish::want).collect()))
        }
        DRAIN | STAY => {
            let name = fields.name.and_then(|name| std::str::from_utf8(name).ok());
            let name = name.ok_or_else(|| bad("the request names no node"))?;
            Ok(Ask::Drain { name: name.into(), stays: header.code == STAY })
        }
        LEAVE => {
            let Lives { node, incarnation } = told(fields, "which life it is")?;
            Ok(Ask::Leave(Life { node: NodeId(node), incarnation }))
        }
        CONTROL => told(fields, "what is asked of the control store").map(Ask::Control),
        GIVE_UP => told(fields, "what is given up").map(Ask::GiveUp),
        MOVE_GROUP => told(fields, "which group is moved").map(Ask::MoveGroup),
        _ => Err(Error::new(ErrorKind::NotInVersion, "the warden of this version knows no such request")),
    }
}

/// What a request says, as JSON.
fn json_of(asked: &impl Serialize) -> String {
    serde_json::to_string(asked).expect("plain data")
}

/// What [`json_of`] has said.
fn told<T: DeserializeOwned>(fields: &Fields<'_>, what: &str) -> Result<T, Error> {
    let bad = |text: String| Error::new(ErrorKind::BadRequest, text);
    let json = fields.spec.ok_or_else(|| bad("the request says nothing".into()))?;
    serde_json::from_str(json).map_err(|_| bad(format!("{what} can't be read")))
}

/// Appends what the warden answers to a request.
pub fn encode_answer(out: &mut Vec<u8>, request: &Header, answer: &Result<Answer, Refusal>) -> Result<(), WireError> {
    let ok = Header::reply_to(request, Status::Ok);
    let header = match answer {
        Ok(Answer::Control(json)) => {
            let told = encode_frame(out, ok, &Fields { spec: Some(json), ..Fields::default() }, b"");
            return told.or_else(|_| {
                let header = Header::reply_to(request, Status::Error(ErrorKind::OutcomeUnknown));
                let text = "what is to be told of the control store is too long for a link: ask the warden's node";
                encode_frame(out, header, &Fields::failed(text), b"")
            });
        }
        Ok(Answer::Created(id)) => Header { collection: id.0, ..ok },
        Ok(Answer::Leaves { epoch }) => Header { version: u64::from(*epoch), ..ok },
        Ok(Answer::Flushed { generation }) => Header { version: u64::from(*generation), ..ok },
        Ok(Answer::GaveUp { groups }) => Header { version: *groups as u64, ..ok },
        Ok(Answer::Held | Answer::Destroyed | Answer::Joined(_) | Answer::Drains | Answer::Placed | Answer::Noted) => {
            ok
        }
        Err(refusal) => {
            let error = Error::from(refusal.clone());
            let header = match refusal {
                Refusal::NotWarden(_) => Header { code: STATUS_MOVED, ..ok },
                _ => Header::reply_to(request, Status::Error(error.kind)),
            };
            return encode_frame(out, header, &Fields::failed(&error.text), b"");
        }
    };
    encode_frame(out, header, &Fields::default(), b"")
}

/// What was answered to `ask`.
pub fn answer_of(ask: &Ask, header: &Header, fields: &Fields<'_>) -> Result<Answer, Error> {
    let text = "the warden's answer can't be read: it may have been done, look before trying again";
    let unknown = || Error::new(ErrorKind::OutcomeUnknown, text);
    match header.status() {
        _ if is_elsewhere(header) => return Err(Error::from(Refusal::NotWarden(None))),
        Some(Status::Ok) => {}
        Some(Status::Error(kind)) => return Err(Error::new(kind, fields.error.unwrap_or("the warden refuses"))),
        _ => return Err(unknown()),
    }
    match ask {
        Ask::Hold => Ok(Answer::Held),
        Ask::Create(_) => Ok(Answer::Created(CollectionId(header.collection))),
        Ask::Destroy { .. } => Ok(Answer::Destroyed),
        Ask::Flush { .. } => {
            let generation = u32::try_from(header.version).map_err(|_| unknown())?;
            Ok(Answer::Flushed { generation })
        }
        Ask::Wants(_) => Ok(Answer::Noted),
        Ask::Drain { .. } => Ok(Answer::Drains),
        Ask::MoveGroup(_) => Ok(Answer::Placed),
        Ask::Leave(_) => Ok(Answer::Leaves { epoch: u32::try_from(header.version).map_err(|_| unknown())? }),
        Ask::Control(_) => Ok(Answer::Control(fields.spec.ok_or_else(unknown)?.into())),
        Ask::GiveUp(_) => Ok(Answer::GaveUp { groups: usize::try_from(header.version).map_err(|_| unknown())? }),
        Ask::Join(_) | Ask::Obituary(_) => Err(unknown()),
    }
}

/// Whether the answer says that the warden is not there, so that nothing was done: it may be asked elsewhere, or again.
pub fn is_elsewhere(reply: &Header) -> bool {
    reply.code == STATUS_MOVED
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collection::Spec;
    use crate::warden::{ControlAsk, GiveUp, MoveGroup};
    use crate::wire::{Frame, parse_frame};

    fn parse(bytes: &[u8]) -> Frame<'_> {
        parse_frame(bytes).expect("parses").expect("is whole")
    }

    fn asks() -> Vec<Ask> {
        let (name, spec) = (String::from("photos"), Spec { ordered: true, ..Spec::of("cache") });
        let create = Create { name: name.clone(), spec, copies: None, spread: None };
        let spread = Create { copies: Some(3), spread: Some(7), ..create.clone() };
        vec![
            Ask::Hold,
            Ask::Create(create),
            Ask::Create(spread),
            Ask::Destroy { name: name.clone() },
            Ask::Flush { name: name.clone() },
            Ask::Drain { name: name.clone(), stays: false },
            Ask::Drain { name, stays: true },
            Ask::Wants((0..crate::limits::WANTS_MAX as u32).map(wish).collect()),
            Ask::Leave(Life { node: NodeId(NonZeroU32::MAX), incarnation: u64::MAX }),
            Ask::Control(ControlAsk::Show),
            Ask::Control(ControlAsk::Move { node: None }),
            Ask::Control(ControlAsk::ToEtcd { etcd: "etcd://e1:2379".into(), forced: true }),
            Ask::Control(ControlAsk::Embed { node: Some("n2".into()) }),
            Ask::GiveUp(GiveUp {
                node: Some("n\"1".into()),
                spread: Some(7),
                group: None,
                accepts: true,
                who: "somebody".into(),
                unix_ms: u64::MAX,
            }),
            Ask::MoveGroup(MoveGroup { spread: 7, group: 4_095, to: Some("n4".into()), from: Some("n\"1".into()) }),
            Ask::MoveGroup(MoveGroup { spread: 0, group: 3, to: None, from: None }),
        ]
    }

    /// The longest numbers there are.
    fn wish(number: u32) -> (GroupId, u32, Want) {
        let node = NodeId(NonZeroU32::MAX);
        let want = if number.is_multiple_of(2) { Want::Joining(node) } else { Want::Removed(node) };
        (GroupId { spread: 15, number: 4_095 }, u32::MAX >> 8, want)
    }

    #[test]
    fn what_is_asked_is_read_as_it_was_written() {
        for ask in asks() {
            let mut out = Vec::new();
            encode_ask(&mut out, 7, &ask).expect("within the limits");
            let frame = parse(&out);
            assert_eq!((frame.header().verb, frame.header().id), (VERB_WARDEN, 7));
            assert_eq!(ask_of(frame.header(), &frame.fields().expect("fields")), Ok(ask));
        }
        for (code, kind) in
            [(CREATE, ErrorKind::BadRequest), (CONTROL, ErrorKind::BadRequest), (10, ErrorKind::NotInVersion)]
        {
            let header = Header { verb: VERB_WARDEN, code, ..Header::new(Kind::Request) };
            assert_eq!(ask_of(&header, &Fields::default()).map_err(|error| error.kind), Err(kind));
        }
    }

    #[test]
    fn what_is_answered_is_read_as_it_was_written() {
        let created = Answer::Created(CollectionId(0x1_0000_0009));
        let answers = [
            Answer::Held,
            created.clone(),
            created,
            Answer::Destroyed,
            Answer::Flushed { generation: 7 },
            Answer::Drains,
            Answer::Drains,
            Answer::Noted,
            Answer::Leaves { epoch: u32::MAX >> 8 },
            Answer::Control("{\"term\":7}".into()),
            Answer::Control("{}".into()),
            Answer::Control("{\"backend\":\"etcd\"}".into()),
            Answer::Control("{\"node\":\"n2\"}".into()),
            Answer::GaveUp { groups: 4_096 },
            Answer::Placed,
            Answer::Placed,
        ];
        let request = Header { verb: VERB_WARDEN, id: 3, ..Header::new(Kind::Request) };
        assert_eq!(asks().len(), answers.len());
        for (ask, answer) in asks().iter().zip(answers) {
            for answer in [Ok(answer), Err(Refusal::Busy), Err(Refusal::NotWarden(None))] {
                let mut out = Vec::new();
                encode_answer(&mut out, &request, &answer).expect("within the limits");
                let frame = parse(&out);
                let told = answer_of(ask, frame.header(), &frame.fields().expect("fields"));
                assert_eq!(told, answer.map_err(Error::from));
            }
        }
    }

    #[test]
    fn an_answer_that_no_frame_carries_is_told_as_an_error() {
        let request = Header { verb: VERB_WARDEN, id: 3, ..Header::new(Kind::Request) };
        let (mut out, answer) = (Vec::new(), Ok(Answer::Control("x".repeat(100_000))));
        encode_answer(&mut out, &request, &answer).expect("it is told");
        let frame = parse(&out);
        let ask = Ask::Control(crate::warden::ControlAsk::Show);
        let told = answer_of(&ask, frame.header(), &frame.fields().expect("fields"));
        assert!(told.is_err_and(|error| error.kind == ErrorKind::OutcomeUnknown && error.text.contains("too long")));
    }
}
