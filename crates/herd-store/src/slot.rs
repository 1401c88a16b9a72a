//! Slots: where the objects of one lie, and what is known of each for all of its objects.
//!
//! A shard has slots that follow each other, as many as every other. So a node that has each N-th slot of a herd has
//! some in every shard. Within the shard a slot has a number, which stands in the low bits of the tags of its objects:
//! the index alone tells which objects are those of a slot (`scan.rs`), at no bytes for each.

use crate::index::Tag;
use herd_core::key::ObjectId;
use herd_core::limits::SLOTS;

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
        Tag::new(id.tag_bits(), self.place(id.slot()).1, self.bits)
    }

    /// The number that the slot of an object with this tag has in its shard.
    #[inline]
    pub(crate) fn number(self, tag: Tag) -> usize {
        tag.value() as usize & (self.slots() - 1)
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
                assert_eq!(shard * layout.slots() + number, id.slot());
                assert_eq!(layout.number(layout.tag(id)), number);
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
