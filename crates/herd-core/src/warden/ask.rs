//! What is asked of the warden, and what it answers.

use crate::collection::{Class, Spec, Wanted};
use crate::error::{Error, ErrorKind, quote};
use crate::key::CollectionId;
use crate::limits::{COPIES_BUILT, NODES_MAX};
use crate::place::{GroupId, HerdId, Life, MapError, NodeId};
use crate::replica::{GroupEpoch, Want};
use crate::warden::MoveId;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Who a node is, over its restarts: random, kept in its own directory; of a node without one, drawn at each start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity(pub [u8; 16]);

/// A node wants in, or is back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Join {
    /// The herd it belonged to; `None`: to none.
    pub herd: Option<HerdId>,
    /// The newest protocol it speaks among nodes.
    pub protocol: u32,
    /// Who it is.
    pub identity: Identity,
    /// Which process it is: drawn at each start. What an earlier one held is gone.
    pub process: [u8; 16],
    /// Its name, unique in the herd.
    pub name: String,
    /// Where it can be reached, best first; at least one.
    pub addresses: Vec<String>,
    /// The machine it runs on.
    pub host: String,
    /// The rack of that; empty: not told.
    pub rack: String,
    /// Memory for objects.
    pub memory_bytes: u64,
    /// It was told that collection `default` evicts.
    pub evict: bool,
    /// The control store that was in its directory went to where it asks, by this move: that is to begin with it.
    pub moved: Option<MoveId>,
}

/// A collection is to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Create {
    /// Its name.
    pub name: String,
    /// What it promises.
    pub spec: Spec,
    /// Copies to keep; `None`: as the class needs.
    pub copies: Option<u8>,
    /// The spread group to lie in; `None`: one that fits, made if there is none.
    pub spread: Option<u16>,
}

impl Create {
    /// Refuses more copies than nodes of this version keep, whoever asks for them.
    pub fn check_copies(&self) -> Result<(), Error> {
        let needed = match Class::parse(&self.spec.class) {
            Some(Class::Ram(needed)) => needed,
            _ => 1,
        };
        let copies = self.copies.unwrap_or(1).max(needed);
        if copies <= COPIES_BUILT {
            return Ok(());
        }
        let text = format!("{copies} copies of an object are not in this version, which keeps up to {COPIES_BUILT}");
        Err(Error::new(ErrorKind::NotInVersion, text))
    }

    /// What a client asks for.
    pub fn of(name: String, wanted: &Wanted) -> Self {
        Self { name, spec: wanted.spec(), copies: wanted.copies, spread: wanted.spread }
    }
}

/// What is lost is to be given up: of a node, which goes from the herd, or of groups that wait for nodes which will not
/// come back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GiveUp {
    /// The node, by name; `None`: groups.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Of groups, those of this spread group; `None`: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spread: Option<u16>,
    /// Of these, the one of this number; `None`: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<u16>,
    /// It may lose objects.
    pub accepts: bool,
    /// Who asks.
    pub who: String,
    /// When, ms since 1970.
    pub unix_ms: u64,
}

/// A node is to keep a group, and another one is not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoveGroup {
    /// The group's spread group.
    pub spread: u16,
    /// Its number there.
    pub group: u16,
    /// The node that is to keep it, by name; `None`: what was asked of this group is called off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// The member that is to go; `None`: the one of the node that keeps most above its share.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
}

/// A request. Asked again, one that was done is answered as before, but for `Flush`, which flushes again, and
/// `Destroy`, which finds nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ask {
    /// [`Join`].
    Join(Join),
    /// A primary is to hold an object, and its map says that the herd holds none: answered when it may. Once for each
    /// node, not for each object.
    Hold,
    /// [`Create`].
    Create(Create),
    /// A collection and all its objects are to go.
    Destroy {
        /// Its name.
        name: String,
    },
    /// All objects of a collection are to go.
    Flush {
        /// Its name.
        name: String,
    },
    /// A node is to give away all that it keeps, and gets nothing new; or, called off, it stays.
    Drain {
        /// Its name.
        name: String,
        /// It stays.
        stays: bool,
    },
    /// [`GiveUp`].
    GiveUp(GiveUp),
    /// [`MoveGroup`]: noted in the map, and done as other moves are.
    MoveGroup(MoveGroup),
    /// What the primaries of groups want, each in the view of that epoch: noted, and done with the next map, if it is
    /// the present view still. At most [`WANTS_MAX`](crate::limits::WANTS_MAX); told again until the map says so.
    Wants(Vec<(GroupId, GroupEpoch, Want)>),
    /// The process of a node has ended: noted, and the node is taken out at once, if that is its present life. One of a
    /// herd that holds no object is taken out when it does.
    Obituary(Life),
    /// This life of a node is about to end, and lives still: others are to lead what it leads. Answered once the others
    /// that are heard have the map that says so, or after [`WARDEN_LEAVE_MS`](crate::limits::WARDEN_LEAVE_MS).
    Leave(Life),
    /// About the control store itself: done by who drives the warden, and never by that.
    Control(ControlAsk),
}

/// What is asked about the control store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ControlAsk {
    /// Where it is, and what it has come to.
    Show,
    /// It is to go to the directory of a node, and the warden with it.
    Move {
        /// Its name; `None`: of any node that can take it, other than the warden's.
        node: Option<String>,
    },
    /// It is to go to an etcd.
    ToEtcd {
        /// `etcd://..`, as on the command line.
        etcd: String,
        /// One whose version may read what is no longer so is taken too.
        forced: bool,
    },
    /// It is to come from an etcd to the directory of a node.
    Embed {
        /// Its name; `None`: of the warden's node.
        node: Option<String>,
    },
}

/// What was done. Its map was pushed before; that objects are gone is answered when all nodes that are up have it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The node is in.
    Joined(Joined),
    /// The map that says so was pushed; the primary accepts writes once it has it.
    Held,
    /// The collection is there.
    Created(CollectionId),
    /// The collection is gone.
    Destroyed,
    /// All its objects are of before this generation.
    Flushed {
        /// The generation.
        generation: u32,
    },
    /// The node drains, or stays: the map says so.
    Drains,
    /// The map says where the group is to be.
    Placed,
    /// So many groups lost what they held.
    GaveUp {
        /// How many.
        groups: usize,
    },
    /// It will be done, if it can be.
    Noted,
    /// What the control store is now, as JSON.
    Control(String),
    /// The node leads nothing any more that another one can lead.
    Leaves {
        /// The epoch of the map that says so.
        epoch: u32,
    },
}

/// What a node must know to be one of the herd, besides the map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Joined {
    /// The herd.
    pub herd: HerdId,
    /// The key of its name hash.
    pub hash_key: [u8; 16],
    /// The node's number.
    pub node: NodeId,
    /// Its life.
    pub incarnation: u64,
}

/// Why something was not done, or not known to be. What a person reads says what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The node belongs to another herd.
    OtherHerd {
        /// This one.
        here: HerdId,
        /// That one.
        theirs: HerdId,
    },
    /// The node, or this program, speaks only protocols that the herd has left behind.
    OldProtocol {
        /// The newest it speaks.
        theirs: u32,
        /// The oldest the herd speaks.
        least: u32,
    },
    /// Another node has the name.
    NameTaken(String),
    /// The herd's first node has no place that lasts, so it can't be more than one.
    NoPlace,
    /// The node was started with `--evict`, and the herd was not.
    NotEvicting,
    /// The node tells no address.
    NoAddress,
    /// An address of the node is that of another one, of this name.
    AddressTaken {
        /// The address.
        address: String,
        /// The other node.
        name: String,
    },
    /// The node is reached from its own machine alone, at this address, and others of the herd are not on loopback.
    OnLoopback(String),
    /// There are as many nodes as may be.
    TooManyNodes,
    /// Numbers have run out: of what.
    NoNumber(&'static str),
    /// The map can't be so.
    Map(MapError),
    /// No node has that name.
    NoNode(String),
    /// It is asked for a life of a node that is over, or that the herd does not know.
    OldLife,
    /// What the node of this name keeps has nowhere to go.
    NoRoomFor {
        /// The node.
        name: String,
        /// Copies that are kept.
        copies: usize,
        /// Nodes that would be there without it.
        nodes: usize,
    },
    /// There is no such group.
    NoGroup(GroupId),
    /// Why a group can't be moved as it was asked.
    NotMoved(String),
    /// The node of this name lives, or may.
    Lives(String),
    /// Another process of the node that asks to be let in may answer for what it has.
    Runs {
        /// The node.
        name: String,
        /// Where that process is.
        address: String,
    },
    /// What so many groups hold would be lost, and it was not said that it may be.
    WouldLose(usize),
    /// Of collections.
    Collection(Error),
    /// Somebody else is the warden: who, if known. Ask there.
    NotWarden(Option<String>),
    /// Nodes, by name, that do not tell that they have the herd's map; empty: they have it by now.
    Missing(Vec<String>),
    /// Nodes, by name, that can't be reached, and must have the herd's map before its first object comes.
    Away(Vec<String>),
    /// It is done, but for some nodes, which do not tell that they have the map that says so.
    NotTold {
        /// What is done.
        done: &'static str,
        /// These nodes, by name.
        names: Vec<String>,
        /// How many nodes the herd has.
        nodes: usize,
    },
    /// Too much waits already.
    Busy,
    /// The control store did not take it; nothing was done.
    Store(String),
    /// Whether it was done is not known.
    Unknown,
}

const NO_PLACE: &str =
    "the herd's first node has no place for the control store: start that one with --data, then join";
const NOT_EVICTING: &str = "the herd does not evict, and --evict says it does: leave --evict out, or begin a herd anew";

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::OtherHerd { here, theirs } => write!(
                f,
                "this node belongs to herd {}, not to {}: join that one, or give the node an empty --data",
                theirs.short(),
                here.short()
            ),
            Refusal::OldProtocol { theirs, least } => {
                write!(f, "this node speaks protocol {theirs} and the herd {least} or later: install a later version")
            }
            Refusal::NameTaken(name) => {
                let name = quote(name.as_bytes());
                write!(f, "another node has the name '{name}': give this one another with --name, or its own --data")
            }
            Refusal::NoPlace => f.write_str(NO_PLACE),
            Refusal::NotEvicting => f.write_str(NOT_EVICTING),
            Refusal::NoAddress => f.write_str("the node tells no address: give it one with --advertise"),
            Refusal::AddressTaken { address, name } => {
                let (address, name) = (quote(address.as_bytes()), quote(name.as_bytes()));
                let todo = "start that one from its --data, or take another port";
                write!(f, "{address} is the address of node '{name}': {todo}")
            }
            Refusal::OnLoopback(address) => {
                let (address, todo) = (quote(address.as_bytes()), "--listen on an address that they reach");
                write!(f, "{address} can't be reached from other machines: {todo}, or give --advertise")
            }
            Refusal::TooManyNodes => write!(f, "the herd has {NODES_MAX} nodes, the most it can: take one out"),
            Refusal::NoNumber(what) => write!(f, "the herd has run out of numbers for {what}"),
            Refusal::Map(error) => error.fmt(f),
            Refusal::NoNode(name) => write!(f, "no node '{}': `herd nodes` shows all", quote(name.as_bytes())),
            Refusal::NoGroup(id) => write!(f, "no group {}/{}: `herd group ls` shows all", id.spread, id.number),
            Refusal::OldLife => f.write_str("the herd goes by another process of this node: it was started anew since"),
            Refusal::NoRoomFor { name, copies, nodes } => no_room_for(name, *copies, *nodes).fmt(f),
            Refusal::Lives(name) => {
                let name = quote(name.as_bytes());
                write!(f, "node '{name}' was heard a moment ago, and may answer for what it has: stop it, or wait 10 s")
            }
            Refusal::Runs { name, address } => {
                let (name, address) = (quote(name.as_bytes()), quote(address.as_bytes()));
                write!(f, "a process of node '{name}' runs at {address}: end that one first")
            }
            Refusal::WouldLose(groups) => {
                let hold = if *groups == 1 { "1 group holds".into() } else { format!("{groups} groups hold") };
                write!(f, "what {hold} would be lost, and it was not said that it may be")
            }
            Refusal::Collection(error) => error.fmt(f),
            Refusal::NotWarden(Some(name)) => write!(f, "the warden is {}: ask there", quote(name.as_bytes())),
            Refusal::NotWarden(None) => f.write_str("the herd has no warden at the moment: try again"),
            Refusal::Missing(names) => {
                let names = listed(names);
                write!(f, "the herd's map has not come to all nodes yet ({names}): see that they run, and try again")
            }
            Refusal::Away(names) => {
                let (is, names) = (if names.len() == 1 { "it is" } else { "they are" }, listed(names));
                let why = "all nodes must be there when the herd's first object comes";
                write!(f, "{names} can't be reached, and {why}: see that {is}, and try again")
            }
            Refusal::NotTold { done, names, nodes } => {
                let back = if names.len() == 1 { "does it when it is back" } else { "do it when they are back" };
                let at = nodes.saturating_sub(names.len());
                let there = "until then the outcome is unknown there";
                write!(f, "{done} at {at} of {nodes} nodes; {} can't be reached and {back}; {there}", listed(names))
            }
            Refusal::Busy => f.write_str("too many changes of the herd are waiting: try again"),
            Refusal::Store(text) | Refusal::NotMoved(text) => f.write_str(text),
            Refusal::Unknown => f.write_str("outcome unknown: look before trying again"),
        }
    }
}

fn no_room_for(name: &str, copies: usize, nodes: usize) -> String {
    let others = match nodes {
        0 => "no other node is".to_owned(),
        1 => "1 other node is".to_owned(),
        _ => format!("{nodes} other nodes are"),
    };
    let copies = if copies == 1 { "1 copy is".to_owned() } else { format!("{copies} copies are") };
    let name = quote(name.as_bytes());
    format!("node '{name}' can't be drained: {copies} kept, and {others} there: add a node first")
}

impl std::error::Error for Refusal {}

impl Refusal {
    /// Whether the herd has said no, and it was not done. Any other is of the moment: it may be asked again, and may
    /// have been done.
    pub fn is_final(&self) -> bool {
        match self {
            Refusal::Unknown
            | Refusal::Store(_)
            | Refusal::Busy
            | Refusal::NotWarden(_)
            | Refusal::Missing(_)
            | Refusal::Away(_)
            | Refusal::Lives(_)
            | Refusal::Runs { .. }
            | Refusal::NotTold { .. } => false,
            Refusal::OtherHerd { .. }
            | Refusal::OldProtocol { .. }
            | Refusal::NameTaken(_)
            | Refusal::NoPlace
            | Refusal::NotEvicting
            | Refusal::NoAddress
            | Refusal::AddressTaken { .. }
            | Refusal::OnLoopback(_)
            | Refusal::TooManyNodes
            | Refusal::NoNumber(_)
            | Refusal::Map(_)
            | Refusal::NoNode(_)
            | Refusal::NoGroup(_)
            | Refusal::NotMoved(_)
            | Refusal::OldLife
            | Refusal::NoRoomFor { .. }
            | Refusal::WouldLose(_)
            | Refusal::Collection(_) => true,
        }
    }
}

impl From<MapError> for Refusal {
    fn from(error: MapError) -> Self {
        Refusal::Map(error)
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Refusal::Collection(error)
    }
}

/// As a door tells it to a client.
impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        let kind = match refusal {
            Refusal::Collection(error) => return error,
            Refusal::Busy => ErrorKind::Busy,
            Refusal::Unknown | Refusal::NotTold { .. } => ErrorKind::OutcomeUnknown,
            Refusal::NotWarden(_) | Refusal::Missing(_) | Refusal::Away(_) | Refusal::Store(_) => {
                ErrorKind::Unreachable
            }
            Refusal::NoNode(_) | Refusal::NoGroup(_) => ErrorKind::NotFound,
            Refusal::Lives(_) | Refusal::Runs { .. } => ErrorKind::Busy,
            Refusal::WouldLose(_) => ErrorKind::NotAllowed,
            Refusal::NoNumber(_) | Refusal::TooManyNodes | Refusal::Map(_) => ErrorKind::Full,
            Refusal::OtherHerd { .. }
            | Refusal::OldProtocol { .. }
            | Refusal::NameTaken(_)
            | Refusal::NoPlace
            | Refusal::NotEvicting
            | Refusal::AddressTaken { .. }
            | Refusal::OnLoopback(_)
            | Refusal::NoRoomFor { .. }
            | Refusal::OldLife
            | Refusal::NotMoved(_)
            | Refusal::NoAddress => ErrorKind::NotAllowed,
        };
        Error::new(kind, refusal.to_string())
    }
}

pub(super) fn listed(names: &[String]) -> String {
    names.iter().map(|name| quote(name.as_bytes()).to_string()).collect::<Vec<_>>().join(", ")
}
