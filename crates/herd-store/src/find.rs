//! The way of a get through the store: hash the name, lock its shard, probe the index, compare the name, and hand the
//! object over under the lock. What a record looks like is told in `record.rs`; what else may be done to an entry is in
//! `entry.rs`.

use crate::arena::PageId;
use crate::body::Body;
use crate::collection::{Collection, State};
use crate::entry::Entry;
use crate::index::{ADDR_BITS, ADDR_MASK, Addr, Index, TAG_BITS, Tag};
use crate::record::*;
use crate::shard::Shard;
use crate::{FETCH_BYTES, Now, Store};
use herd_core::entry::Head;
use herd_core::key::ObjectId;
use std::sync::{Arc, MutexGuard, PoisonError};

/// An object that was found.
pub struct Found<'a> {
    /// What is known of it.
    pub head: Head,
    /// Its attributes, encoded; empty if it has none.
    pub attributes: &'a [u8],
    /// Its value.
    pub value: Value<'a>,
}

/// The value of an object that was found.
#[derive(Clone, Copy)]
pub enum Value<'a> {
    /// Up to 4 KiB, with its CRC-32C; valid while the entry is locked.
    Inline(&'a [u8], u32),
    /// Larger; may be kept.
    Body(&'a Arc<Body>),
}

impl Store {
    /// Gets an object: hands it to `f` under its lock; counts the hit or miss and notes the use.
    #[inline]
    pub fn get<R>(&self, collection: &Collection, name: &[u8], now: Now, f: impl FnOnce(&Found<'_>) -> R) -> Option<R> {
        let mut entry = self.entry(collection, name, now);
        let result = entry.found().map(|found| f(&found));
        entry.count_get(result.is_some());
        result
    }

    /// Locks the entry of `name` (1 to 1,024 bytes), whether there is an object or not.
    #[inline]
    pub fn entry<'s>(&'s self, collection: &'s Collection, name: &'s [u8], now: Now) -> Entry<'s> {
        let c = &*collection.0;
        let id = ObjectId::of(&self.hash_key, c.id, name);
        let (tag, slot) = (Tag::new(id.tag_bits()), id.slot() / self.shards.len());
        let mut shard = self.lock(id.slot() & (self.shards.len() - 1));
        shard.foresee_version(slot);
        let generation = shard.logs(c, now.unix_ms).generation;
        let place = shard.find(c, generation, tag, name);
        let expires_ms = place.map_or(0, |(_, addr)| shard.record(addr).expires_ms());
        let mut entry = Entry { store: self, shard, c, name, tag, slot, now, generation, place };
        if expires_ms != 0 && expires_ms <= now.unix_ms {
            entry.expire();
        }
        entry
    }

    #[inline]
    pub(crate) fn lock(&self, at: usize) -> MutexGuard<'_, Shard> {
        self.shards[at].0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entry<'_> {
    /// The object, if there is one.
    #[inline]
    pub fn found(&self) -> Option<Found<'_>> {
        let (_, addr) = self.place?;
        let record = self.shard.record(addr);
        let value = match record.value() {
            Stored::Inline(bytes, crc) => Value::Inline(bytes, crc),
            Stored::Large(body, _) => Value::Body(self.shard.body(body)),
        };
        Some(Found { head: record.head(), attributes: record.attributes(), value })
    }

    /// Counts a get and notes the use of what was found.
    #[inline]
    pub fn count_get(&mut self, hit: bool) {
        let counts = &mut self.shard.logs(self.c, self.now.unix_ms).counts;
        *(if hit { &mut counts.hits } else { &mut counts.misses }) += 1;
        if hit {
            self.mark_used();
        }
    }

    /// Notes a use, for eviction and for `last access`.
    #[inline]
    pub fn mark_used(&mut self) {
        if let Some((_, addr)) = self.place {
            mark_used(self.shard.bytes_mut(addr), self.now.uptime_s);
        }
    }
}

impl Shard {
    /// Position and address of an entry.
    #[inline]
    pub(crate) fn find(&self, c: &State, generation: u32, tag: Tag, name: &[u8]) -> Option<(usize, Addr)> {
        self.index.find(tag, |addr| {
            self.arena.fetch(&self.owner, PageId(addr.page()), addr.offset(), FETCH_BYTES);
            let note = self.arena.note(&self.owner, PageId(addr.page()));
            note.collection == c.index && note.generation == generation && self.record(addr).name() == name
        })
    }

    /// The entry at an address.
    #[inline]
    pub(crate) fn record(&self, addr: Addr) -> Record<'_> {
        Record::at(&self.arena.page(&self.owner, PageId(addr.page()))[addr.offset()..])
    }
}

impl Index {
    /// Position and address of the entry with `tag` for which `is_it` holds.
    #[inline]
    pub(crate) fn find(&self, tag: Tag, mut is_it: impl FnMut(Addr) -> bool) -> Option<(usize, Addr)> {
        let mask = self.slots.len() - 1;
        let mut at = self.home(tag);
        while self.slots[at] != 0 {
            let (slot, addr) = (self.slots[at], Addr(self.slots[at] & ADDR_MASK));
            if slot >> ADDR_BITS == u64::from(tag.0) && is_it(addr) {
                return Some((at, addr));
            }
            at = (at + 1) & mask;
        }
        None
    }

    /// Where the search for a tag begins.
    #[inline]
    pub(crate) fn home(&self, tag: Tag) -> usize {
        (tag.0 >> (TAG_BITS - self.bits)) as usize
    }
}

/// An entry in a page, to read.
#[derive(Clone, Copy)]
pub(crate) struct Record<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) bits: u32,
}

impl<'a> Record<'a> {
    /// The entry that starts at the first byte of `bytes`.
    #[inline]
    pub(crate) fn at(bytes: &'a [u8]) -> Self {
        Self { bytes, bits: u32_at(bytes, 8) }
    }

    /// Its name.
    #[inline]
    pub(crate) fn name(&self) -> &'a [u8] {
        let at = self.starts().1;
        &self.bytes[at..at + self.name_len()]
    }

    /// Its value.
    #[inline]
    pub(crate) fn value(&self) -> Stored<'a> {
        let at = self.starts().1 + self.name_len();
        if self.has(LARGE) {
            Stored::Large(u32_at(self.bytes, at), u64_at(self.bytes, at + 4))
        } else {
            Stored::Inline(&self.bytes[at..at + self.value_len()], u32_at(self.bytes, 16))
        }
    }

    /// All that is known besides the value.
    #[inline]
    pub(crate) fn head(&self) -> Head {
        let mut head = Head {
            version: u64_at(self.bytes, 0),
            size_bytes: self.value_len() as u64,
            access_s: u32_at(self.bytes, 12) & !DEAD,
            fetched: self.has(FETCHED),
            ..Head::default()
        };
        if self.bits & (HAS_FLAGS | HAS_EXPIRY | HAS_MEMCACHED | LARGE) != 0 {
            self.optional(&mut head);
        }
        head
    }
}

/// Notes a use at `access_s` of the entry at the start of `bytes`; writes only what changes, so that hot entries stay
/// clean in the cache.
#[inline]
pub(crate) fn mark_used(bytes: &mut [u8], access_s: u32) {
    let bits = u32_at(bytes, 8);
    let freq = bits >> FREQ_SHIFT;
    let next = (bits & !(3 << FREQ_SHIFT)) | FETCHED | (freq + 1).min(3) << FREQ_SHIFT;
    if next != bits {
        bytes[8..12].copy_from_slice(&next.to_le_bytes());
    }
    if u32_at(bytes, 12) != access_s {
        bytes[12..16].copy_from_slice(&(access_s & !DEAD).to_le_bytes());
    }
}
