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

/// What a node has of an entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// Version of the committed state; 0: absent.
    pub committed: Version,
    /// The pending write.
    pub pending: Option<Pending>,
    /// Whether the entry's collection has been flushed since the generation that the key names: nothing of it is here,
    /// and what is prepared of it, or copied, is gone at once. A key of a later generation than is known here flushes
    /// the collection, before its write is prepared or its copy kept.
    pub is_over: bool,
}

/// The entries of one group at one node. An entry has a committed state (a version, or absent: 0) and at most one
/// pending write. Its key names the generation of its collection, as the map counts it: what a flush ends has other
/// keys than what comes after it.
pub trait Copies<K, C> {
    /// What is here of an entry.
    fn state(&self, key: &K) -> State;

    /// All pending writes of the group.
    fn pendings(&self) -> Vec<(K, Pending)>;

    /// A view or a link begins, and what is pending is told: what is noted of other writes is over, as of those that a
    /// flush ended.
    fn sift(&mut self) {}

    /// The next version of the entry: above all it ever had, and above all of primaries before epoch `since`.
    fn next_version(&mut self, key: &K, since: GroupEpoch) -> Version;

    /// Keeps a write beside the committed state; none is pending. Takes all the room there may be need of.
    fn prepare(&mut self, key: &K, write: Pending, change: &C) -> Result<(), Refusal>;

    /// As [`Copies::prepare`], if nothing is pending, what is committed is the write's base, and the entry is not over:
    /// one step for what mostly comes. `None`: it is not so, or that is not known in one step; nothing was done.
    fn prepare_next(&mut self, key: &K, write: Pending, change: &C) -> Option<Result<(), Refusal>> {
        let here = self.state(key);
        let follows = here.pending.is_none() && here.committed == write.base && !here.is_over;
        follows.then(|| self.prepare(key, write, change))
    }

    /// The pending write of this version becomes the committed state, or it goes. Can't fail; where it is not pending
    /// nothing happens.
    fn end(&mut self, key: &K, version: Version, is_committed: bool);

    /// The whole state that is pending, or else the committed one; absence is a removal, with the token that is left.
    fn whole(&self, key: &K) -> C;

    /// The whole committed state; absence is a removal, with the token that is left.
    fn whole_committed(&self, key: &K) -> C;

    /// Whether an entry is absent and left the token of a lock.
    fn has_token(&self, key: &K) -> bool;

    /// The first entry after `key`, or of all, that has a committed state or a pending write, or is absent and left the
    /// token of a lock.
    fn next_key(&self, key: Option<&K>) -> Option<K>;

    /// Sets the committed state; nothing is pending.
    fn copy(&mut self, key: &K, version: Version, state: &C) -> Result<(), Refusal>;
}

/// A prepare, at a member. It has the write already, or one that followed it: prepared. It has the base, or has it
/// pending, which its primary has then committed: it goes on from there, and nothing else stays pending. To one that
/// `is_syncing` what was committed before may come late. The answer, and whether the write is pending now.
pub(super) fn prepare<K, C: Change>(
    copies: &mut impl Copies<K, C>,
    key: &K,
    write: Pending,
    offer: &Offer<C>,
    is_syncing: bool,
) -> (Verdict, bool) {
    if let Offer::Change(change) = offer
        && let Some(done) = copies.prepare_next(key, write, change)
    {
        return done.map_or_else(|refusal| (Verdict::Refused(refusal), false), |()| (Verdict::Prepared, true));
    }
    let State { mut committed, mut pending, .. } = match copies.state(key) {
        state if is_over(&state) || state.committed >= write.version => return (Verdict::Prepared, false),
        state => state,
    };
    if pending.is_some_and(|pending| pending.version == write.version) {
        return (Verdict::Prepared, true);
    }
    let is_late = is_syncing && !bugs::has(Bug::OlderWhole);
    if is_late && pending.is_some_and(|pending| pending.version > write.version) {
        return (Verdict::Prepared, false);
    }
    let higher = |pending: &Pending| bugs::has(Bug::HigherCommits) && pending.version < write.version;
    if let Some(base) = pending.take_if(|pending| pending.makes() == write.base || higher(pending)) {
        copies.end(key, base.version, true);
        committed = base.makes();
    }
    let mut drop_pending = |copies: &mut _| {
        let gone = pending.take();
        gone.into_iter().for_each(|gone| Copies::end(copies, key, gone.version, false));
    };
    if write.removes && write.base != 0 && committed == 0 && !bugs::has(Bug::RemovedTwice) {
        // It was removed already, and acknowledged: there is nothing to keep, and no room that could be wanting. What
        // removes on an absent base was never there: it is to leave a token.
        drop_pending(copies);
        return (Verdict::Prepared, false);
    }
    let (change, whole) = match offer {
        Offer::Name => return (Verdict::NeedWhole, false),
        Offer::Change(change) => (change, bugs::has(Bug::HigherCommits)),
        Offer::Whole(change) => (change, true),
    };
    if committed != write.base && !whole {
        return (Verdict::NeedWhole, false);
    }
    drop_pending(copies);
    match copies.prepare(key, write, change) {
        Ok(()) => (Verdict::Prepared, true),
        Err(refusal) => (Verdict::Refused(refusal), false),
    }
}

fn is_over(state: &State) -> bool {
    state.is_over && !bugs::has(Bug::NoGeneration)
}

/// A copy, at a syncing member: what it has of the entry already it has by an earlier telling of it.
pub(super) fn copy<K, C>(copies: &mut impl Copies<K, C>, key: &K, version: Version, state: &C) -> Verdict {
    let here = copies.state(key);
    if is_over(&here) || here.committed >= version {
        return Verdict::Copied;
    }
    match copies.copy(key, version, state) {
        Ok(()) => Verdict::Copied,
        Err(_) => Verdict::CopyRefused,
    }
}
