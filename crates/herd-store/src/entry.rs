//! One entry under its lock: what is there, and what may be done to it.
//!
//! The door looks at what it finds, lets the pure core decide, and tells the entry what to do, all while the shard is
//! locked; so each request on an object is atomic.

use crate::body::Body;
use crate::collection::State;
use crate::find::Value;
use crate::index::{Addr, Tag};
use crate::record::{Draft, Stored};
use crate::shard::{MAIN, SMALL, Shard};
use crate::{Now, PAGE_BYTES, Store, full_error, quota_error};
use herd_core::checksum::crc32c;
use herd_core::entry::{Head, Memcached, Version};
use herd_core::limits::INLINE_MAX_BYTES;
use herd_core::{Error, ErrorKind, quote};
use std::sync::{Arc, MutexGuard};

/// An entry, locked.
pub struct Entry<'s> {
    pub(crate) store: &'s Store,
    pub(crate) shard: MutexGuard<'s, Shard>,
    pub(crate) c: &'s State,
    pub(crate) name: &'s [u8],
    pub(crate) tag: Tag,
    pub(crate) slot: usize,
    pub(crate) now: Now,
    pub(crate) generation: u32,
    /// Position in the index and address, if there is an object.
    pub(crate) place: Option<(usize, Addr)>,
}

/// An object to put.
#[derive(Clone)]
pub struct NewObject<'a> {
    /// Its value.
    pub value: NewValue<'a>,
    /// Opaque flags.
    pub flags: u32,
    /// When it expires, ms since 1970; 0: never.
    pub expires_ms: u64,
    /// Attributes, encoded.
    pub attributes: &'a [u8],
    /// What the memcached door keeps.
    pub memcached: Memcached,
}

/// The value of an object to put.
#[derive(Clone)]
pub enum NewValue<'a> {
    /// At most 4 KiB.
    Inline(&'a [u8]),
    /// At most 4 KiB, with their CRC-32C.
    Checked(&'a [u8], u32),
    /// Any size above 0.
    Body(Arc<Body>),
}

impl<'a> NewObject<'a> {
    /// An object of a value alone.
    pub fn of(value: NewValue<'a>) -> Self {
        Self { value, flags: 0, expires_ms: 0, attributes: &[], memcached: Memcached::default() }
    }
}

impl<'s> Entry<'s> {
    /// Its version, if there is an object.
    pub fn version(&self) -> Option<Version> {
        self.place.map(|(_, addr)| self.shard.record(addr).head().version)
    }

    /// Counts a get that found its object without noting the use.
    pub fn count_hit(&mut self) {
        self.shard.logs(self.c, self.now.unix_ms).counts.hits += 1;
    }

    /// Puts an object in place of what is there; gives its version.
    ///
    /// Errors: `Full` and `Quota` where no room can be had, `NoCollection` after it was destroyed. What was there then
    /// stays, unless it was evicted to make room.
    pub fn put(&mut self, new: &NewObject<'_>) -> Result<Version, Error> {
        if self.c.is_destroyed() {
            let text = format!("collection '{}' was removed", quote(self.c.name.as_bytes()));
            return Err(Error::new(ErrorKind::NoCollection, text));
        }
        let result = self.try_put(new);
        let counts = &mut self.shard.logs(self.c, self.now.unix_ms).counts;
        *(if result.is_ok() { &mut counts.puts } else { &mut counts.refusals }) += 1;
        result
    }

    fn try_put(&mut self, new: &NewObject<'_>) -> Result<Version, Error> {
        let mut draft = self.draft(new);
        let (len, weight) = (draft.bytes(), draft.bytes() as u64 + body_bytes(&new.value));
        self.make_quota(weight)?;
        if self.can_overwrite(len) {
            draft.head.version = self.shard.next_version(self.slot);
            self.keep(&mut draft, &new.value);
            let (_, addr) = self.place.expect("there is one to overwrite");
            self.shard.overwrite(self.c, addr, &draft, weight);
            return Ok(draft.head.version);
        }
        self.make_index_room()?;
        let queue = self.queue_for_new();
        let addr = self.room_for(queue, len)?;
        draft.head.version = self.shard.next_version(self.slot);
        self.keep(&mut draft, &new.value);
        draft.write(self.shard.bytes_mut(addr), 0);
        self.shard.note_expiry(crate::arena::PageId(addr.page()), new.expires_ms);
        self.shard.count_in(self.c, queue, weight);
        self.link(addr);
        Ok(draft.head.version)
    }

    fn draft<'a>(&self, new: &NewObject<'a>) -> Draft<'a>
    where
        's: 'a,
    {
        let (value, size_bytes) = match &new.value {
            NewValue::Inline(bytes) => (Stored::Inline(bytes, crc32c(bytes)), bytes.len() as u64),
            NewValue::Checked(bytes, crc) => (Stored::Inline(bytes, *crc), bytes.len() as u64),
            NewValue::Body(body) => (Stored::Large(0, body.len()), body.len()),
        };
        let inline = matches!(value, Stored::Inline(..));
        assert!(!inline || size_bytes <= INLINE_MAX_BYTES as u64, "a larger value is a body");
        let head = Head {
            version: 0,
            size_bytes,
            flags: new.flags,
            expires_ms: new.expires_ms,
            access_s: self.now.uptime_s,
            fetched: false,
            memcached: new.memcached,
        };
        Draft { head, name: self.name, attributes: new.attributes, value }
    }

    /// Takes a body into the shard, now that there is a place for its record.
    fn keep(&mut self, draft: &mut Draft<'_>, value: &NewValue<'_>) {
        if let NewValue::Body(body) = value {
            draft.value = Stored::Large(self.shard.keep_body(body.clone()), body.len());
        }
    }

    fn can_overwrite(&self, len: usize) -> bool {
        self.place.is_some_and(|(_, addr)| self.shard.record(addr).len_bytes() == len)
    }

    /// New objects of an evicting collection begin in the small queue, unless they left it a short while ago.
    fn queue_for_new(&mut self) -> u8 {
        if !self.c.class.evicts() {
            return MAIN;
        }
        match self.place {
            Some((_, addr)) => self.shard.arena.note(&self.shard.owner, crate::arena::PageId(addr.page())).queue,
            None if self.shard.recall(self.tag.value()) => MAIN,
            None => SMALL,
        }
    }

    /// Points the index at the new record and buries the old one.
    fn link(&mut self, addr: Addr) {
        match self.place {
            Some((at, old)) => {
                self.shard.index.set_addr(at, addr);
                self.shard.bury(self.c, old);
                self.place = Some((at, addr));
            }
            None => {
                self.shard.index.insert(self.tag, addr);
                if let Some(mut names) = self.c.names() {
                    names.insert(self.name.into());
                }
                self.look_again();
            }
        }
    }

    fn make_quota(&mut self, weight: u64) -> Result<(), Error> {
        let old = self.place.map_or(0, |(_, addr)| self.shard.weight(self.shard.record(addr)));
        let more = weight.saturating_sub(old);
        while self.c.over_quota(more) {
            let quota = self.c.spec.quota_bytes.unwrap_or(0);
            if !self.c.class.evicts() || weight > quota || !self.evict_own() {
                return Err(quota_error(self.c, more, quota));
            }
        }
        Ok(())
    }

    /// Evicts from this collection, here or in a shard nobody holds.
    fn evict_own(&mut self) -> bool {
        let now_ms = self.now.unix_ms;
        let evicted = self.shard.evict(self.c, now_ms)
            || self.store.rotation().any(|at| {
                let other = self.store.shards[at].0.try_lock();
                other.is_ok_and(|mut other| other.evict(self.c, now_ms))
            });
        self.shard.trash.clear();
        self.look_again();
        evicted
    }

    fn make_index_room(&mut self) -> Result<(), Error> {
        while let Some(growth) = self.shard.index.growth_bytes() {
            if self.place.is_some() {
                return Ok(());
            }
            if u64::from(self.store.arena.spare_pages()) * PAGE_BYTES as u64 >= growth {
                self.store.arena.charge(growth / 2);
                self.shard.index.grow();
                self.look_again();
            } else if !self.reclaim() {
                return Err(full_error(self.c, &self.store.arena));
            }
        }
        Ok(())
    }

    fn room_for(&mut self, queue: u8, len: usize) -> Result<Addr, Error> {
        loop {
            if let Ok(addr) = self.shard.append(self.c, queue, len, false) {
                return Ok(addr);
            }
            if !self.reclaim() {
                return Err(full_error(self.c, &self.store.arena));
            }
        }
    }

    /// Frees memory; what this entry refers to may move or go meanwhile.
    fn reclaim(&mut self) -> bool {
        let freed = self.store.reclaim_within(&mut self.shard, self.now);
        self.look_again();
        freed
    }

    fn look_again(&mut self) {
        self.place = self.shard.find(self.c, self.generation, self.tag, self.name);
    }

    /// Removes the object; gives the version of the removal. No-op without one.
    pub fn remove(&mut self) -> Option<Version> {
        let (at, addr) = self.place.take()?;
        self.shard.kill(self.c, at, addr);
        if let Some(mut names) = self.c.names() {
            names.remove(self.name);
        }
        Some(self.shard.next_version(self.slot))
    }

    /// Takes the object out, since its time is over.
    #[cold]
    pub(crate) fn expire(&mut self) {
        if let Some((at, addr)) = self.place.take() {
            self.shard.kill(self.c, at, addr);
            if let Some(mut names) = self.c.names() {
                names.remove(self.name);
            }
            self.shard.logs(self.c, self.now.unix_ms).counts.expired += 1;
        }
    }

    /// Changes what is known of the object without changing its value or version: expiry, flags, memcached's state.
    pub fn amend(&mut self, expires_ms: u64, flags: u32, memcached: Memcached) -> Result<(), Error> {
        let Some(found) = self.found() else {
            return Ok(());
        };
        let (head, attributes) = (found.head, found.attributes.to_vec());
        let inline = match found.value {
            Value::Inline(bytes, crc) => Ok((bytes.to_vec(), crc)),
            Value::Body(body) => Err(body.clone()),
        };
        let value = match &inline {
            Ok((bytes, crc)) => NewValue::Checked(bytes, *crc),
            Err(body) => NewValue::Body(body.clone()),
        };
        let new = NewObject { value, flags, expires_ms, attributes: &attributes, memcached };
        let mut draft = self.draft(&new);
        (draft.head.version, draft.head.fetched) = (head.version, head.fetched);
        let (len, weight) = (draft.bytes(), draft.bytes() as u64 + body_bytes(&new.value));
        let freq = self.place.map_or(0, |(_, addr)| self.shard.record(addr).freq());
        if self.can_overwrite(len) {
            self.keep(&mut draft, &new.value);
            let (_, addr) = self.place.expect("there is one to overwrite");
            self.shard.overwrite(self.c, addr, &draft, weight);
            return Ok(());
        }
        let queue = self.queue_for_new();
        let addr = self.room_for(queue, len)?;
        self.keep(&mut draft, &new.value);
        draft.write(self.shard.bytes_mut(addr), freq);
        self.shard.note_expiry(crate::arena::PageId(addr.page()), expires_ms);
        self.shard.count_in(self.c, queue, weight);
        self.link(addr);
        Ok(())
    }
}

impl Drop for Entry<'_> {
    /// Bodies that went are dropped after the lock is.
    #[inline]
    fn drop(&mut self) {
        if !self.shard.trash.is_empty() {
            self.shard.trash.clear();
        }
    }
}

fn body_bytes(value: &NewValue<'_>) -> u64 {
    match value {
        NewValue::Inline(_) | NewValue::Checked(..) => 0,
        NewValue::Body(body) => body.memory_bytes(),
    }
}
