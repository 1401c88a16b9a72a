//! The way of a get through the store: hash the name, lock its shard, probe the index, compare the name, and hand the
//! object over under the lock.

use crate::collection::Collection;
use crate::entry::{Entry, Found};
use crate::scan::Key;
use crate::shard::Locked;
use crate::slot::Seat;
use crate::{Now, Store};
use herd_core::bugs::{Bug, has};
use herd_core::key::ObjectId;

/// What came of a get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Got<R> {
    /// What was made of the object.
    Hit(R),
    /// There is no such object.
    Miss,
    /// Its slot is not this node's alone: the caller finds out whether the object may be read here. Nothing was
    /// counted.
    Away {
        /// The slot.
        slot: usize,
        /// What this node is to it.
        seat: Seat,
    },
}

impl Store {
    /// Gets an object: hands it to `f` under its lock; counts the hit or miss and notes the use.
    #[inline]
    pub fn get<R>(&self, collection: &Collection, name: &[u8], now: Now, f: impl FnOnce(&Found<'_>) -> R) -> Got<R> {
        self.get_where(collection, name, now, |_| false, f)
    }

    /// As [`Store::get`], where `may_read` says of the entry whether an object that is not this node's alone is read
    /// here.
    #[inline]
    pub fn get_where<R>(
        &self,
        collection: &Collection,
        name: &[u8],
        now: Now,
        may_read: impl FnOnce(&Entry<'_>) -> bool,
        f: impl FnOnce(&Found<'_>) -> R,
    ) -> Got<R> {
        let mut entry = self.entry(collection, name, now);
        if entry.seat() != Seat::Alone && !may_read(&entry) {
            return Got::Away { slot: entry.slot(), seat: entry.seat() };
        }
        let result = entry.found().map(|found| f(&found));
        entry.count_get(result.is_some());
        result.map_or(Got::Miss, Got::Hit)
    }

    /// Locks the entry of `name` (1 to 1,024 bytes), whether there is an object or not.
    #[inline]
    pub fn entry<'s>(&'s self, collection: &'s Collection, name: &'s [u8], now: Now) -> Entry<'s> {
        self.entry_of_id(collection, name, collection.0.object_id(&self.hash_key, name), now)
    }

    /// As [`Store::entry`], of a key of that collection.
    #[inline]
    pub fn entry_of<'s>(&'s self, collection: &'s Collection, key: &'s Key, now: Now) -> Entry<'s> {
        self.entry_of_id(collection, &key.name, key.id(), now)
    }

    #[inline]
    fn entry_of_id<'s>(&'s self, collection: &'s Collection, name: &'s [u8], id: ObjectId, now: Now) -> Entry<'s> {
        let c = &collection.0;
        let (tag, (at, number)) = (self.layout.tag(id), self.layout.place(id.slot()));
        let slot_at = self.layout.of_spread(c.spread(), number);
        let mut shard = self.lock(at);
        let generation = shard.begin(c, now.unix_ms);
        shard.foresee_slot(slot_at);
        let place = shard.find(c, generation, tag, name);
        let expires_ms = place.map_or(0, |(_, addr)| shard.record(addr).expires_ms());
        let entry = Entry { store: self, shard, c, name, id, tag, slot_at, now, generation, place, is_due: false };
        // An entry is large: only what is rare moves it.
        if expires_ms != 0 && expires_ms <= now.unix_ms && !has(Bug::NeverExpires) { entry.expired() } else { entry }
    }

    #[inline]
    pub(crate) fn lock(&self, at: usize) -> Locked<'_> {
        let _inverted = has(Bug::LockOrder).then(|| self.arena.lock());
        self.shards[at].lock()
    }
}
