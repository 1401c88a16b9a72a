//! Slots: where the objects of one lie, what this node is to it, and what is known of all its objects together.
//!
//! A shard has slots that follow each other, as many as every other. So a node that has each N-th slot of a herd has
//! some in every shard. Within the shard a slot has a number, which stands in the low bits of the tags of its objects:
//! the index alone tells which objects are those of a slot (`scan.rs`), at no bytes for each.
//!
//! A [`Seat`] is read and set under the lock of the slot's shard, so each operation obeys the one that is set when its
//! entry is locked. Invariant: what is not [`Seat::Alone`] never changes by itself: nothing in it expires, and nothing
//! is evicted; the node does that as it does any change. Who may call: the store, its shards and entries; the node sets
//! seats as the map says.

use crate::Store;
use crate::index::Tag;
use crate::shard::Shard;
use herd_core::entry::Version;
use herd_core::key::ObjectId;
use herd_core::limits::SLOTS;

/// What a node is to a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Seat {
    /// It has the only copy: it reads and changes objects and asks nobody.
    Alone,
    /// It decides, and others have copies.
    Led,
    /// It has a copy, and another node decides.
    Held,
    /// It has none that counts.
    Away,
}

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
    /// What is known of a slot (below [`SLOTS`]).
    pub fn slot(&self, slot: usize) -> Slot {
        let (at, number) = self.layout.place(slot);
        self.lock(at).slots[number]
    }

    /// Sets what this node is to a slot (below [`SLOTS`]), whose versions are above `floor` from now on.
    pub fn set_seat(&self, slot: usize, seat: Seat, floor: Version) {
        let (at, number) = self.layout.place(slot);
        let mut shard = self.lock(at);
        shard.shared_slots -= usize::from(shard.slots[number].seat != Seat::Alone);
        shard.shared_slots += usize::from(seat != Seat::Alone);
        shard.slots[number].seat = seat;
        shard.raise_version(number, floor);
        shard.logs.iter_mut().flatten().for_each(|logs| logs.kept_pages = 0);
    }
}

impl Shard {
    /// The next version of a slot.
    #[inline]
    pub(crate) fn next_version(&mut self, number: usize) -> Version {
        self.slots[number].version += 1;
        self.slots[number].version
    }

    /// Later versions of a slot are above this one.
    pub(crate) fn raise_version(&mut self, number: usize, version: Version) {
        let slot = &mut self.slots[number];
        slot.version = slot.version.max(version);
    }

    /// Whether the object with this tag may not go by itself.
    #[inline]
    pub(crate) fn is_shared(&self, tag: Tag) -> bool {
        self.slots[self.layout.number(tag)].seat != Seat::Alone
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
        shard << self.bits | self.number(tag)
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
