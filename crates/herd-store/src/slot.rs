//! Slots: where the objects of one lie, what this node is to it, and what is known of all its objects together.
//!
//! A shard has slots that follow each other, as many as every other. So a node that has each N-th slot of a herd has
//! some in every shard. Within the shard a slot has a number, which stands in the low bits of the tags of its objects:
//! the index alone tells which objects may be those of a slot (`scan.rs`), at no bytes for each.
//!
//! Each spread group has slots of its own, which it shares with no other; its objects lie in the same shards as those
//! of the others, and their pages tell whose they are. A shard keeps the slots of all spread groups in one table, one
//! group after the other, so that an operation finds its own by one sum. A group's slots are made when it is first met.
//!
//! A [`Seat`] is read and set under the lock of the slot's shard, so each operation obeys the one that is set when its
//! entry is locked. Invariant: what is not the node's own ([`Seat::is_own`]) never changes by itself: nothing in it
//! expires, and nothing is evicted; the node does that as it does any change. Who may call: the store, its shards and
//! entries; the node sets seats as the map says.

use crate::collection::{Collection, State};
use crate::index::Tag;
use crate::shard::Shard;
use crate::sync::atomic::Ordering::Relaxed;
use crate::{Now, SLOT_STEP, SlotCursor, Store};
use herd_core::bugs::{Bug, has};
use herd_core::entry::Version;
use herd_core::key::ObjectId;
use herd_core::limits::{SLOTS, SPREADS_MAX};
pub use herd_core::place::Seat;

/// Entries that are removed while a shard is locked: some 0.1 ms.
const CLEAR_TURN_ENTRIES: usize = 512;

/// What is known of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// The last version of any of its objects: it never falls.
    pub version: Version,
    /// Entries in the index: its objects, what is pending, and what was flushed and is not given back yet. 0: it has
    /// nothing.
    pub entries: u32,
    /// What this node is to it.
    pub seat: Seat,
}

const _: () = assert!(size_of::<Slot>() == 16, "four slots lie in a cache line");

impl Slot {
    /// An empty slot of a node that is alone; its versions follow `version`.
    pub(crate) fn new(version: Version) -> Self {
        Self { version, entries: 0, seat: Seat::Alone }
    }
}

impl Store {
    /// What is known of a slot (below [`SLOTS`]) of a spread group (below [`SPREADS_MAX`]).
    pub fn slot(&self, spread: u16, slot: usize) -> Slot {
        let (at, number) = self.layout.place(slot);
        let mut shard = self.lock(at);
        shard.meet(spread);
        shard.slots[self.layout.of_spread(spread, number)]
    }

    /// Sets what this node is to each slot of a spread group (below [`SPREADS_MAX`]), and a version that those of the
    /// slot are above from now on. `seat` is asked with each slot's number while its shard is locked.
    pub fn set_seats(&self, spread: u16, seat: impl Fn(usize) -> (Seat, Version)) {
        for at in 0..self.shards.len() {
            let shard = &mut *self.lock(at);
            shard.meet(spread);
            let (first, from) = (self.layout.slot_at(at, 0), self.layout.of_spread(spread, 0));
            let (mut before, mut after) = (0, 0);
            for (known, slot) in shard.slots[from..from + self.layout.slots()].iter_mut().zip(first..) {
                let (seat, floor) = seat(slot);
                before += usize::from(known.seat != Seat::Alone);
                after += usize::from(seat != Seat::Alone);
                known.seat = seat;
                if !has(Bug::LowVersion) {
                    known.version = known.version.max(floor);
                }
            }
            shard.shared_slots = shard.shared_slots + after - before;
            shard.logs.iter_mut().flatten().for_each(|logs| logs.kept_pages = 0);
            self.shared_slots[usize::from(spread)].fetch_add(after.wrapping_sub(before), Relaxed);
        }
    }

    /// Removes all that is in these slots of a spread group, in which nothing is read or written meanwhile.
    pub fn clear_slots(&self, spread: u16, slots: impl IntoIterator<Item = usize>, now: Now) {
        for slot in slots {
            let mut cursor = SlotCursor::new(spread, slot);
            while !cursor.is_at_end() {
                self.clear_turn(&mut cursor, CLEAR_TURN_ENTRIES, now, |_| true);
            }
        }
    }

    /// What this node is to the slot of an object.
    pub fn seat(&self, c: &Collection, name: &[u8]) -> Seat {
        self.slot(c.0.spread(), self.slot_of(c, name)).seat
    }

    /// The slot of an object.
    pub fn slot_of(&self, c: &Collection, name: &[u8]) -> usize {
        c.0.object_id(&self.hash_key, name).slot()
    }

    /// Whether all slots of a collection's spread group are this node's alone.
    #[inline]
    pub fn is_alone(&self, c: &Collection) -> bool {
        self.shared_slots[usize::from(c.0.spread())].load(Relaxed) == 0
    }

    /// Whether all slots of all spread groups are this node's alone.
    pub fn is_alone_with_all(&self) -> bool {
        self.shared_slots.iter().all(|shared| shared.load(Relaxed) == 0)
    }
}

impl Shard {
    /// Makes the slots of a spread group, if they are not there; this node is alone with them.
    pub(crate) fn meet(&mut self, spread: u16) {
        let (each, spreads) = (self.layout.slots(), usize::from(spread) + 1);
        assert!(spreads <= SPREADS_MAX, "a map has no spread group {spread}");
        let missing = (spreads * each).saturating_sub(self.slots.len());
        self.slots.reserve_exact(missing);
        for _ in 0..missing {
            let number = self.slots.len() % each;
            self.slots.push(Slot::new(self.first_version + number as u64 * SLOT_STEP));
        }
    }

    /// Whether nothing is in the slot of that number of a spread group, and no token, which has no place in the index:
    /// neither left nor pending.
    pub(crate) fn is_empty_slot(&self, spread: u16, number: usize) -> bool {
        let is_other = |tag: Tag| self.layout.number(tag) != number;
        self.slots.get(self.layout.of_spread(spread, number)).is_none_or(|slot| slot.entries == 0)
            && self.pending.iter().all(|((tag, ..), _)| is_other(*tag))
            && self.left.tags().all(is_other)
    }

    /// The next version of the slot at this place of the table.
    #[inline]
    pub(crate) fn next_version(&mut self, at: usize) -> Version {
        self.slots[at].version += 1;
        self.slots[at].version
    }

    /// Later versions of the slot at this place are above this one.
    pub(crate) fn raise_version(&mut self, at: usize, version: Version) {
        let slot = &mut self.slots[at];
        slot.version = slot.version.max(version);
    }

    /// Counts an entry of a collection with this tag.
    #[inline]
    pub(crate) fn count_entry(&mut self, c: &State, tag: Tag) {
        let at = self.layout.of_tag(c, tag);
        self.slots[at].entries += 1;
    }

    /// Uncounts such an entry.
    #[inline]
    pub(crate) fn uncount_entry(&mut self, c: &State, tag: Tag) {
        let at = self.layout.of_tag(c, tag);
        self.slots[at].entries -= 1;
    }

    /// Whether an object of a collection with this tag may not go by itself.
    #[inline]
    pub(crate) fn is_shared(&self, c: &State, tag: Tag) -> bool {
        !self.slots[self.layout.of_tag(c, tag)].seat.is_own()
    }
}

/// Which slots lie in which shard.
#[derive(Clone, Copy)]
pub(crate) struct Layout {
    /// Bits of a slot's number within its shard.
    bits: u32,
}

impl Layout {
    /// That of a store of so many shards, a power of two up to [`SLOTS`].
    pub(crate) fn new(shards: usize) -> Self {
        Self { bits: (SLOTS / shards).ilog2() }
    }

    /// Slots of a shard.
    #[inline]
    pub(crate) fn slots(self) -> usize {
        1 << self.bits
    }

    /// The shard of a slot, and the slot's number in it.
    #[inline]
    pub(crate) fn place(self, slot: usize) -> (usize, usize) {
        (slot >> self.bits, slot & (self.slots() - 1))
    }

    /// The tag of an object.
    #[inline]
    pub(crate) fn tag(self, id: ObjectId) -> Tag {
        self.tag_at(id.slot(), id.tag_bits())
    }

    /// The tag of an object in this slot whose name's hash has these bits.
    #[inline]
    pub(crate) fn tag_at(self, slot: usize, hash: u64) -> Tag {
        Tag::new(hash, self.place(slot).1, self.bits)
    }

    /// The number that the slot of an object with this tag has in its shard.
    #[inline]
    pub(crate) fn number(self, tag: Tag) -> usize {
        tag.value() as usize & (self.slots() - 1)
    }

    /// The slot of an object with this tag in that shard.
    pub(crate) fn slot(self, shard: usize, tag: Tag) -> usize {
        self.slot_at(shard, self.number(tag))
    }

    /// The slot of that number in that shard.
    fn slot_at(self, shard: usize, number: usize) -> usize {
        shard << self.bits | number
    }

    /// The place, among what a shard knows of slots, of the one of that number in a spread group.
    #[inline]
    pub(crate) fn of_spread(self, spread: u16, number: usize) -> usize {
        usize::from(spread) << self.bits | number
    }

    /// That of the slot in which a collection's objects with this tag lie.
    #[inline]
    fn of_tag(self, c: &State, tag: Tag) -> usize {
        self.of_spread(c.spread(), self.number(tag))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use herd_core::key::{CollectionId, HashKey};

    #[test]
    fn a_tag_tells_the_slot_of_its_object() {
        for shards in [1, 2, 64, SLOTS] {
            let layout = Layout::new(shards);
            for i in 0..1_000u32 {
                let id = ObjectId::of(&HashKey([5; 16]), CollectionId::DEFAULT, &i.to_le_bytes());
                let (shard, number) = layout.place(id.slot());
                assert!(shard < shards && number < layout.slots());
                assert_eq!(layout.number(layout.tag(id)), number);
                assert_eq!(layout.slot(shard, layout.tag(id)), id.slot());
            }
        }
    }

    #[test]
    fn a_node_that_has_every_nth_slot_has_as_many_in_each_shard() {
        let layout = Layout::new(64);
        for nodes in 1..=64 {
            let mut count = [0; 64];
            (0..SLOTS).step_by(nodes).for_each(|slot| count[layout.place(slot).0] += 1);
            let (least, most) = (count.iter().min(), count.iter().max());
            assert!(least.zip(most).is_some_and(|(least, most)| most - least <= 1), "{nodes} nodes: {count:?}");
        }
    }
}
