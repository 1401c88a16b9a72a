//! What tells whether two nodes hold the same objects: sums of slots, and of one slot's objects.
//!
//! A sum does not depend on the order in which objects are met, so parts of it, taken in turns, can be added up by
//! whoever asks; a node keeps nothing of it. Only what is committed counts, and of that what every copy must have
//! alike: not when it was last used. The time at which an object ends each node tells by its own clock, and hears of it
//! as what is left: that is told beside the sum, as it is never quite the same.
//!
//! Who may call: the node, without any lock. A turn has the lock of a shard for a stretch at a time.

use crate::collection::State;
use crate::index::Tag;
use crate::record::{PENDING, Record, Stored};
use crate::scan::{Key, SlotCursor, Stretch};
use crate::shard::Shard;
use crate::{Now, Store};
use herd_core::entry::Version;
use herd_core::key::ObjectId;
use std::collections::BTreeMap;

/// Entries of a stretch whose records are read with the shard locked: 10 us.
const SUM_STRETCH_ENTRIES: usize = 64;
/// A stretch without an entry costs as much as so many entries.
const EMPTY_STRETCH_ENTRIES: usize = 16;

/// Objects and the sum of their digests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlotSum {
    /// Objects.
    pub objects: u64,
    /// Of their digests, whatever the order.
    pub sum: u128,
    /// Those of them that end some time.
    pub ending: u64,
    /// What is left to these, all together, ms.
    pub left_ms: u64,
}

impl SlotSum {
    fn add(&mut self, digest: u128, left_ms: Option<u64>) {
        self.ending += u64::from(left_ms.is_some());
        self.left_ms = self.left_ms.saturating_add(left_ms.unwrap_or(0));
        self.objects += 1;
        self.sum = self.sum.wrapping_add(digest);
    }
}

/// An object of a slot, as it is compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotDigest {
    /// The object.
    pub key: Key,
    /// Its version.
    pub version: Version,
    /// Of all that its copies must have alike.
    pub digest: u128,
    /// How long it has to live, if it ends some time.
    pub left_ms: Option<u64>,
}

/// Where one who sums up a node's slots stands. It holds no lock and no object, and means something at this node only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SumCursor {
    /// The shard; behind the last: at the end.
    pub shard: u32,
    /// What comes next there.
    pub next: u32,
}

impl SlotCursor {
    /// Where it stands: a number that means something at this node only. `None`: at the end.
    pub fn mark(&self) -> Option<u32> {
        self.next.map(Tag::value)
    }

    /// One that stands there in a slot (below [`herd_core::limits::SLOTS`]) of a spread group.
    pub fn at_mark(spread: u16, slot: usize, mark: u32) -> Self {
        Self { spread, slot, next: Tag::from_value(mark) }
    }
}

impl Store {
    /// A turn through all slots of a spread group: adds what it meets to `sums`, by slot, and ends when it has looked
    /// at some `budget` entries, at 100 ns each. False: all were met.
    pub fn sum_turn(
        &self,
        spread: u16,
        cursor: &mut SumCursor,
        sums: &mut BTreeMap<u16, SlotSum>,
        budget: usize,
        now: Now,
    ) -> bool {
        let mut looked = 0;
        while looked < budget && (cursor.shard as usize) < self.shards.len() {
            let at = cursor.shard as usize;
            let Some(from) = Tag::from_value(cursor.next) else {
                *cursor = SumCursor { shard: cursor.shard + 1, next: 0 };
                continue;
            };
            let shard = self.lock(at);
            let to = shard.index.stretch(from, SUM_STRETCH_ENTRIES);
            let stretch = Stretch { spread, number: None, from, to };
            looked += shard.look(&stretch, now, |c, addr| {
                if let Some((record, digest)) = self.digest(&shard, c, addr) {
                    let slot = c.object_id(&self.hash_key, record.name()).slot() as u16;
                    sums.entry(slot).or_default().add(digest, left_ms(&record, now));
                }
            });
            looked += EMPTY_STRETCH_ENTRIES;
            cursor.next = to.value() + 1;
        }
        (cursor.shard as usize) < self.shards.len()
    }

    /// A turn through a slot: appends what it meets to `items`, in order, and ends when it has looked at some `budget`
    /// entries of the shard, of any slot.
    pub fn digest_turn(&self, cursor: &mut SlotCursor, items: &mut Vec<SlotDigest>, budget: usize, now: Now) {
        self.turn(cursor, budget, |shard, stretch| {
            let mut met = Vec::new();
            let looked = shard.look(stretch, now, |c, addr| {
                if let Some((record, digest)) = self.digest(shard, c, addr) {
                    let (key, left_ms) = (self.key_of(c, record.name()), left_ms(&record, now));
                    met.push(SlotDigest { key, version: record.version(), digest, left_ms });
                }
            });
            met.sort_by(|a, b| a.key.cmp(&b.key));
            items.append(&mut met);
            looked
        });
    }

    /// What all copies of an object must have alike; `None`: it is not committed.
    fn digest<'s>(&self, shard: &'s Shard, c: &State, addr: crate::index::Addr) -> Option<(Record<'s>, u128)> {
        let record = shard.record(addr);
        if record.is_marked(PENDING) {
            return None;
        }
        let (head, fence) = (record.head(), record.fence());
        let (size_bytes, checksum) = match record.value() {
            Stored::Inline(bytes, crc) => (bytes.len() as u64, crc),
            Stored::Large(body, size_bytes) => (size_bytes, shard.body(body).checksum()),
        };
        let bit = |is_set: bool, bit: u8| if is_set { bit } else { 0 };
        let memcached = head.memcached;
        let bits = bit(memcached.stale, 1) | bit(memcached.token_sent, 2) | bit(head.expires_ms != 0, 4);
        let (name, attributes) = (record.name(), record.attributes());
        let mut bytes = Vec::with_capacity(64 + name.len() + attributes.len());
        for number in [head.version, size_bytes, memcached.cas] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        for number in [c.followed_generation(), head.flags, checksum, attributes.len() as u32] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        bytes.extend_from_slice(&[bits | bit(fence.is_some(), 8)]);
        fence.into_iter().for_each(|fence| bytes.extend_from_slice(&fence.to_bytes()));
        bytes.extend_from_slice(attributes);
        bytes.extend_from_slice(name);
        Some((record, u128::from_le_bytes(ObjectId::of(&self.hash_key, c.id, &bytes).to_bytes())))
    }
}

/// What is left of an object's time, if it ends.
fn left_ms(record: &Record<'_>, now: Now) -> Option<u64> {
    let expires_ms = record.head().expires_ms;
    (expires_ms != 0).then(|| expires_ms.saturating_sub(now.unix_ms))
}
