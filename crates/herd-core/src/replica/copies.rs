//! What a node keeps of a group's entries ([`Copies`]), and the steps of a member on one entry: functions of what is
//! there and of one message. They hold whoever calls them; in a node several loops do, each step under the lock of the
//! entry.

use super::bugs::{self, Bug};
use super::{GroupEpoch, Offer, Pending, Verdict};
use crate::entry::Version;

/// A change of an entry as it is sent: a range of it, its whole state, or its removal. It is cloned for each member, so
/// that a large one is best a reference.
pub trait Change: Clone {
    /// Whether nothing is there after it, but for a token of a lock that it may leave.
    fn removes(&self) -> bool;

    /// Bytes that it takes on a link, about: what is under way at once is bounded by them.
    fn size_bytes(&self) -> u64;
}

/// Why a node can't keep a write; who asked is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// Its memory is full.
    Full,
    /// The collection's quota is full.
    Quota,
    /// It has no such collection any more.
    NoCollection,
}

/// The entries of one group at one node. An entry has a committed state (a version, or absent: 0) and at most one
/// pending write. Its key names the generation of its collection, as the map counts it: what a flush ends has other
/// keys than what comes after it.
pub trait Copies<K, C> {
    /// Version of the committed state; 0: absent.
    fn committed(&self, key: &K) -> Version;

    /// The pending write.
    fn pending(&self, key: &K) -> Option<Pending>;

    /// Whether the entry's collection has been flushed since the generation that the key names: nothing of it is here,
    /// and what is prepared of it, or copied, is gone at once. A key of a later generation than is known here flushes
    /// the collection, before its write is prepared or its copy kept.
    fn is_over(&self, key: &K) -> bool;

    /// All pending writes of the group.
    fn pendings(&self) -> Vec<(K, Pending)>;

    /// The next version of the entry: above all it ever had, and above all of primaries before epoch `since`.
    fn next_version(&mut self, key: &K, since: GroupEpoch) -> Version;

    /// Keeps a write beside the committed state; none is pending. Takes all the room there may be need of.
    fn prepare(&mut self, key: &K, write: Pending, change: &C) -> Result<(), Refusal>;

    /// The pending write becomes the committed state. Can't fail; without one nothing happens.
    fn commit(&mut self, key: &K);

    /// The pending write goes; without one nothing happens.
    fn drop_pending(&mut self, key: &K);

    /// The whole state that is pending, or else the committed one; absence is a removal, with the token that is left.
    fn whole(&self, key: &K) -> C;

    /// The whole committed state; absence is a removal, with the token that is left.
    fn whole_committed(&self, key: &K) -> C;

    /// The first entry after `key`, or of all: one that has a committed state, or a pending write.
    fn next_key(&self, key: Option<&K>) -> Option<K>;

    /// Sets the committed state; nothing is pending.
    fn copy(&mut self, key: &K, version: Version, state: &C) -> Result<(), Refusal>;
}

/// A prepare, at a member. It has the write already, or one that followed it: prepared. It has the base, or has it
/// pending, which its primary has then committed: it goes on from there, and nothing else stays pending.
pub(super) fn prepare<K, C: Change>(
    copies: &mut impl Copies<K, C>,
    key: &K,
    write: Pending,
    offer: &Offer<C>,
) -> Verdict {
    if is_over(copies, key) || copies.committed(key) >= write.version {
        return Verdict::Prepared;
    }
    if let Some(pending) = copies.pending(key) {
        if pending.version == write.version {
            return Verdict::Prepared;
        }
        let higher = bugs::has(Bug::HigherCommits) && pending.version < write.version;
        if pending.makes() == write.base || higher {
            copies.commit(key);
        }
    }
    if write.removes && write.base != 0 && copies.committed(key) == 0 && !bugs::has(Bug::RemovedTwice) {
        // It was removed already, and acknowledged: there is nothing to keep, and no room that could be wanting. What
        // removes on an absent base was never there: it is to leave a token.
        copies.drop_pending(key);
        return Verdict::Prepared;
    }
    let (change, whole) = match offer {
        Offer::Name => return Verdict::NeedWhole,
        Offer::Change(change) => (change, bugs::has(Bug::HigherCommits)),
        Offer::Whole(change) => (change, true),
    };
    if copies.committed(key) != write.base && !whole {
        return Verdict::NeedWhole;
    }
    copies.drop_pending(key);
    match copies.prepare(key, write, change) {
        Ok(()) => Verdict::Prepared,
        Err(refusal) => Verdict::Refused(refusal),
    }
}

fn is_over<K, C>(copies: &impl Copies<K, C>, key: &K) -> bool {
    copies.is_over(key) && !bugs::has(Bug::NoGeneration)
}

/// Commits or drops this very write, if it is pending.
pub(super) fn end<K, C>(copies: &mut impl Copies<K, C>, key: &K, version: Version, committed: bool) {
    if copies.pending(key).is_none_or(|pending| pending.version != version) {
        return;
    }
    if committed { copies.commit(key) } else { copies.drop_pending(key) }
}

/// A copy, at a syncing member: what it has of the entry already it has by an earlier telling of it.
pub(super) fn copy<K, C>(copies: &mut impl Copies<K, C>, key: &K, version: Version, state: &C) -> Verdict {
    if is_over(copies, key) || copies.committed(key) >= version {
        return Verdict::Copied;
    }
    match copies.copy(key, version, state) {
        Ok(()) => Verdict::Copied,
        Err(_) => Verdict::CopyRefused,
    }
}
