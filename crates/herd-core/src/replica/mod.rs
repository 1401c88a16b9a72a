//! Replica groups: what is sent, what is checked, who may act. The rules and their reasons are in
//! `docs/decisions/007-replica-groups.md`; this is their one text in code. Nodes and members are those of the map.
//!
//! Pure: a [`Part`] takes what happens (an operation, a message, a link that broke, a new view) and gives back
//! [`Effect`]s. It opens nothing, waits for nothing, and no clock decides about a write. What is kept lies behind
//! [`Copies`]. Callers: the node, one `Part` a loop and group; the checker in `check.rs`, which drives the same.
//!
//! # Who does what on which message
//!
//! | message | sent by | what it does | answer |
//! |---|---|---|---|
//! | adopt | primary, first on each link and in each view | obeys no lower epoch | adopted, with all pendings |
//! | prepare | primary | `copies::prepare` | prepared, refused, need whole |
//! | settle, also within prepare and abort | primary | commits what came up to a serial | none |
//! | abort | primary, after a refusal | drops the pending write | aborted |
//! | resolve | primary, for what only the member has pending | commits or drops it | resolved |
//! | copy | primary, to who is syncing | `copies::copy` | copied, copy refused |
//! | confirm | primary without a lease, for its reads (`confirm.rs`) | nothing | confirmed |
//! | moved | anybody, to a lower epoch | takes the view in it | none |
//!
//! # What a primary does with a link
//!
//! down -> (`link_up`, or a new view) -> adopting -> (the last adopted) -> ready. Only a ready link gets prepares. When
//! it becomes ready, each write under way is sent on it, and what the member has pending besides is resolved. So a link
//! that broke, a view with other members, and a take-over are one and the same case.
//!
//! # A write
//!
//! decided -> prepared at home, sent -> every needed member has acked in this epoch -> committed, answered.
//! What needs no decision may begin prepared ([`Part::begin_prepared`]); from there on it is a write like any other.
//! One needed member refused -> aborting -> every needed member has aborted -> dropped, answered.

pub(crate) mod bugs;
mod confirm;
mod copies;
mod link;
mod member;
mod part;
mod primary;
mod target;
mod unacked;
pub mod window;
mod write;

#[cfg(test)]
mod check;

pub use crate::place::{Member, NodeId};
pub use copies::{Change, Copies, Refusal, State};
pub use part::Part;

use crate::entry::Version;
use crate::place::Group;
use std::num::NonZeroU32;

/// Epoch of a group: rises with each of its views. The first is 1.
pub type GroupEpoch = u32;

/// What a member is to its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Standing {
    /// Its ack is needed, and counts to k.
    Backup,
    /// Its ack is needed, and does not count.
    Joining,
    /// Gets writes, and is not waited for.
    Syncing,
}

/// A view of a group. Only the warden makes one; it makes a primary of nobody but a backup of the view before.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct View {
    /// Its epoch.
    pub epoch: GroupEpoch,
    /// Who decides.
    pub primary: NodeId,
    /// The epoch from which on it does: one that does not know it yet takes over.
    pub since: GroupEpoch,
    /// The others, each once. One that is syncing since another epoch than it knows of holds nothing of worth.
    pub members: Vec<Member>,
    /// Copies a write needs, the primary's among them.
    pub needed: u8,
    /// The epoch since which nobody has what was held in views before; 0: it was never lost. A copy of before that a
    /// member has still, half made perhaps, is of no worth.
    pub lost: GroupEpoch,
}

impl View {
    /// The view of a group of the map, whose writes need so many copies. `None`: it has no primary; then its parts stay
    /// in the view they are in, as whoever was the primary may do all that its members still allow it.
    pub fn of(group: &Group, needed: u8) -> Option<View> {
        let (epoch, since, members) = (group.epoch, group.primary_since, group.others.clone());
        Some(View { epoch, primary: group.primary?, since, members, needed, lost: group.lost })
    }

    /// Before any: nobody leads it or belongs to it, and every view is newer.
    pub fn none() -> Self {
        View { epoch: 0, primary: NodeId(NonZeroU32::MIN), since: 0, members: Vec::new(), needed: 1, lost: 0 }
    }

    /// What a node is in it, unless it is the primary or none of it.
    pub fn member(&self, node: NodeId) -> Option<&Member> {
        self.members.iter().find(|member| member.node == node)
    }

    /// Whether the node decides in it.
    pub fn is_led_by(&self, node: NodeId) -> bool {
        self.epoch > 0 && self.primary == node
    }

    /// Whether primary and backups are as many as a write needs.
    pub fn is_enough(&self) -> bool {
        let backups = self.members.iter().filter(|member| member.standing == Standing::Backup).count();
        backups + 1 >= usize::from(self.needed) || bugs::has(bugs::Bug::AckBelowK)
    }
}

/// A write that is prepared and neither committed nor dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pending {
    /// Its version.
    pub version: Version,
    /// The committed version it was decided on; 0: absent.
    pub base: Version,
    /// Whether it removes the entry.
    pub removes: bool,
}

impl Pending {
    /// The version the entry has after it; 0: absent.
    pub fn makes(&self) -> Version {
        if self.removes { 0 } else { self.version }
    }
}

/// What a prepare brings of its write.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Offer<C> {
    /// Nothing: it asks whether the member has it.
    Name,
    /// The change of the base.
    Change(C),
    /// The whole new state, which follows whatever is there.
    Whole(C),
}

impl<C: Change> Offer<C> {
    /// Bytes of the change, about.
    fn size_bytes(&self) -> u64 {
        match self {
            Offer::Name => 0,
            Offer::Change(change) | Offer::Whole(change) => change.size_bytes(),
        }
    }
}

/// What a member says of one entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// It holds the write.
    Prepared,
    /// It can't keep it, and holds nothing of it.
    Refused(Refusal),
    /// It can't follow: it has not the base, or was sent the write's name alone.
    NeedWhole,
    /// It holds the write no more.
    Aborted,
    /// It has done with the write as it was told.
    Resolved,
    /// It has the entry, or a later one.
    Copied,
    /// It can't keep the copy.
    CopyRefused,
}

/// A message of one node's part in a group to another's.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Message<K, C> {
    /// The first of a link and of a view.
    Adopt {
        /// The view.
        view: View,
    },
    /// The answer: what is pending at the member, in as many messages as it takes.
    Adopted {
        /// The epoch it obeys.
        epoch: GroupEpoch,
        /// At most [`ADOPTED_PENDING_MAX`](crate::limits::ADOPTED_PENDING_MAX).
        pending: Vec<(K, Pending)>,
        /// Whether this is all; nothing is concluded before.
        is_last: bool,
    },
    /// A write.
    Prepare {
        /// Of the primary.
        epoch: GroupEpoch,
        /// Counts the prepares of this link since its adopt.
        serial: u64,
        /// All up to this serial is done with.
        settled: u64,
        /// The entry.
        key: K,
        /// The write.
        write: Pending,
        /// What it brings of it.
        offer: Offer<C>,
    },
    /// The write will not be.
    Abort {
        /// Of the primary.
        epoch: GroupEpoch,
        /// As in a prepare.
        settled: u64,
        /// The entry.
        key: K,
        /// The write's version.
        version: Version,
    },
    /// All up to a serial is done with.
    Settle {
        /// Of the primary.
        epoch: GroupEpoch,
        /// As in a prepare.
        settled: u64,
    },
    /// What becomes of a write that the primary has not pending itself.
    Resolve {
        /// Of the primary.
        epoch: GroupEpoch,
        /// The entry.
        key: K,
        /// The write's version.
        version: Version,
        /// Whether it was committed.
        commit: bool,
    },
    /// An entry as committed.
    Copy {
        /// Of the primary.
        epoch: GroupEpoch,
        /// The entry.
        key: K,
        /// Its version.
        version: Version,
        /// Its state.
        state: C,
    },
    /// Whether the member is in the primary's view still: reads wait for that.
    Confirm {
        /// Of the primary.
        epoch: GroupEpoch,
        /// Which round of asking it is.
        round: u64,
    },
    /// It is.
    Confirmed {
        /// Of what is answered.
        epoch: GroupEpoch,
        /// As it was asked.
        round: u64,
    },
    /// The answer to all that is about one entry.
    Answer {
        /// Of what is answered.
        epoch: GroupEpoch,
        /// The entry.
        key: K,
        /// The version it is about.
        version: Version,
        /// The answer.
        verdict: Verdict,
    },
    /// The epoch is over.
    Moved {
        /// The view that holds.
        view: View,
    },
}

impl<K, C> Message<K, C> {
    /// The epoch, of what only its primary says.
    pub fn led_in(&self) -> Option<GroupEpoch> {
        match *self {
            Message::Adopt { ref view } => Some(view.epoch),
            Message::Prepare { epoch, .. }
            | Message::Abort { epoch, .. }
            | Message::Settle { epoch, .. }
            | Message::Resolve { epoch, .. }
            | Message::Copy { epoch, .. }
            | Message::Confirm { epoch, .. } => Some(epoch),
            Message::Adopted { .. } | Message::Confirmed { .. } | Message::Answer { .. } | Message::Moved { .. } => {
                None
            }
        }
    }

    /// The same message with its keys and its change in another form.
    pub fn map<'a, L, D>(&'a self, key: impl Fn(&'a K) -> L, change: impl Fn(&'a C) -> D) -> Message<L, D> {
        match *self {
            Message::Adopt { ref view } => Message::Adopt { view: view.clone() },
            Message::Adopted { epoch, ref pending, is_last } => {
                let pending = pending.iter().map(|(of, write)| (key(of), *write)).collect();
                Message::Adopted { epoch, pending, is_last }
            }
            Message::Prepare { epoch, serial, settled, key: ref of, write, ref offer } => {
                let offer = match offer {
                    Offer::Name => Offer::Name,
                    Offer::Change(it) => Offer::Change(change(it)),
                    Offer::Whole(it) => Offer::Whole(change(it)),
                };
                Message::Prepare { epoch, serial, settled, key: key(of), write, offer }
            }
            Message::Abort { epoch, settled, key: ref of, version } => {
                Message::Abort { epoch, settled, key: key(of), version }
            }
            Message::Settle { epoch, settled } => Message::Settle { epoch, settled },
            Message::Confirm { epoch, round } => Message::Confirm { epoch, round },
            Message::Confirmed { epoch, round } => Message::Confirmed { epoch, round },
            Message::Resolve { epoch, key: ref of, version, commit } => {
                Message::Resolve { epoch, key: key(of), version, commit }
            }
            Message::Copy { epoch, key: ref of, version, ref state } => {
                Message::Copy { epoch, key: key(of), version, state: change(state) }
            }
            Message::Answer { epoch, key: ref of, version, verdict } => {
                Message::Answer { epoch, key: key(of), version, verdict }
            }
            Message::Moved { ref view } => Message::Moved { view: view.clone() },
        }
    }
}

/// A prepare that is to be sent to a member, for the link of this generation and no later one, as it is in
/// [`Message::Prepare`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Departure {
    /// The member.
    pub to: NodeId,
    /// That of the link.
    pub generation: u64,
    /// Of the primary.
    pub epoch: GroupEpoch,
    /// Counts the prepares of the link.
    pub serial: u64,
    /// All up to this serial is done with.
    pub settled: u64,
}

/// What became of operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// Done: all needed members have it.
    Done(Version),
    /// This node, a member or the primary itself, can't keep it; none has it.
    Refused(NodeId, Refusal),
    /// Too much is under way; nothing was begun.
    Busy,
    /// Fewer members than it needs; nothing was begun.
    TooFew,
    /// Somebody else decides here now; nothing was begun.
    Moved,
    /// Somebody else decides here now, and finds out: asked again with its id it is answered, not done twice.
    Unknown,
}

/// What a primary asks of the warden; all of it in a view that follows the one it is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Want {
    /// The member has all, and from here on is waited for: it is to be joining.
    Joining(NodeId),
    /// The member can't keep its copy, or can't follow: the copy ended.
    Removed(NodeId),
}

/// What is to be done, in order, before the next input.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Effect<K, C, O> {
    /// A message to a member, for the link of this generation and no later one: if that is gone, so is the message.
    Send(NodeId, u64, Message<K, C>),
    /// Operations to decide, one after the other, on the committed state; what they come to goes to [`Part::begin`].
    Decide(K, Vec<O>),
    /// Operations are answered.
    Answer(Vec<O>, Outcome),
    /// The warden is asked.
    Want(Want),
    /// All that is here of the group is to be dropped, in turns, and then [`Part::cleared`] to be called; effects that
    /// follow do not wait for it.
    Clear,
    /// This node decides from now on, and did not before: so many writes were pending here, which are gone on with.
    TookOver(usize),
    /// The peer broke the rules: its link is to be closed.
    Close(NodeId),
}
