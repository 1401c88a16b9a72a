//! What a node keeps of a group's entries ([`Copies`]), and the steps of a member on one entry: functions of what is
//! there and of one message. They hold whoever calls them; in a node several loops do, each step under the lock of the
//! entry.

use super::bugs::{self, Bug};
use super::{GroupEpoch, Offer, Pending, Verdict};
use crate::entry::Version;

/// A change of an entry as it is sent: a range of it, its whole state, or its removal.
pub trait Change: Clone {
    /// Whether nothing is there after it.
    fn removes(&self) -> bool;
}

/// There is no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoRoom;

/// The entries of one group at one node. An entry has a committed state (a version, or absent: 0) and at most one
/// pending write.
pub trait Copies<K, C> {
    /// Version of the committed state; 0: absent.
    fn committed(&self, key: &K) -> Version;

    /// The pending write.
    fn pending(&self, key: &K) -> Option<Pending>;

    /// All pending writes of the group.
    fn pendings(&self) -> Vec<(K, Pending)>;

    /// The next version of the entry: above all it ever had, and above all of primaries before epoch `since`.
    fn next_version(&mut self, key: &K, since: GroupEpoch) -> Version;

    /// Keeps a write beside the committed state; none is pending. Takes all the room there may be need of.
    fn prepare(&mut self, key: &K, write: Pending, change: &C) -> Result<(), NoRoom>;

    /// The pending write becomes the committed state. Can't fail; without one nothing happens.
    fn commit(&mut self, key: &K);

    /// The pending write goes; without one nothing happens.
    fn drop_pending(&mut self, key: &K);

    /// The whole state that is pending, or else the committed one; absence is a removal.
    fn whole(&self, key: &K) -> C;

    /// The whole committed state; absence is a removal.
    fn whole_committed(&self, key: &K) -> C;

    /// The first entry after `key`, or of all: one that has a committed state, or a pending write.
    fn next_key(&self, key: Option<&K>) -> Option<K>;

    /// Sets the committed state, below what is pending.
    fn copy(&mut self, key: &K, version: Version, state: &C) -> Result<(), NoRoom>;

    /// The version of the removal that is remembered of the entry; 0: none.
    fn grave(&self, key: &K) -> Version;

    /// Remembers a removal.
    fn bury(&mut self, key: &K, version: Version);

    /// Forgets all removals.
    fn forget_graves(&mut self);

    /// Forgets all entries of the group, pending ones too.
    fn clear(&mut self);
}

/// A prepare, at a member. It has the write already, or one that followed it: prepared. It has the base, or has it
/// pending, which its primary has then committed: it goes on from there, and nothing else stays pending.
pub(super) fn prepare<K, C: Change>(
    copies: &mut impl Copies<K, C>,
    key: &K,
    write: Pending,
    offer: &Offer<C>,
    graves: bool,
) -> Verdict {
    if copies.committed(key) >= write.version {
        return Verdict::Prepared;
    }
    if let Some(pending) = copies.pending(key) {
        if pending.version == write.version {
            return Verdict::Prepared;
        }
        let higher = bugs::has(Bug::HigherCommits) && pending.version < write.version;
        if pending.makes() == write.base || higher {
            commit(copies, key, graves);
        }
    }
    if write.removes && copies.committed(key) == 0 && !graves && !bugs::has(Bug::RemovedTwice) {
        // It was removed already, and acknowledged: there is nothing to keep, and no room that could be wanting.
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
        Err(NoRoom) => Verdict::Refused,
    }
}

/// Commits what is pending. With `graves`, a removal is remembered, so that a copy that comes late does not undo it.
pub(super) fn commit<K, C>(copies: &mut impl Copies<K, C>, key: &K, graves: bool) {
    let Some(pending) = copies.pending(key) else { return };
    copies.commit(key);
    if graves && pending.removes && !bugs::has(Bug::NoGrave) {
        copies.bury(key, pending.version);
    }
}

/// Commits or drops this very write, if it is pending.
pub(super) fn end<K, C>(copies: &mut impl Copies<K, C>, key: &K, version: Version, committed: bool, graves: bool) {
    if copies.pending(key).is_none_or(|pending| pending.version != version) {
        return;
    }
    if committed { commit(copies, key, graves) } else { copies.drop_pending(key) }
}

/// A copy, at a syncing member: never over what is equal or newer, but below what is pending.
pub(super) fn copy<K, C>(copies: &mut impl Copies<K, C>, key: &K, version: Version, state: &C) -> Verdict {
    let newest = copies.committed(key).max(copies.grave(key));
    if newest >= version && !bugs::has(Bug::CopyOver) {
        return Verdict::Copied;
    }
    match copies.copy(key, version, state) {
        Ok(()) => Verdict::Copied,
        Err(NoRoom) => Verdict::CopyRefused,
    }
}
