//! One entry under its lock: what is there, and what may be done to it.
//!
//! The door looks at what it finds, lets the pure core decide, and tells the entry what to do, all while the shard is
//! locked; so each request on an object is atomic.
//!
//! Invariant: while an entry is locked, its collection's generation stays as it is in this shard. A flush or a removal
//! that comes meanwhile comes after whatever is done to the entry.

use crate::arena::{PAGE_BYTES, PageId};
use crate::body::Body;
use crate::collection::{Generation, State};
use crate::index::{Addr, Tag};
use crate::left::Cause;
use crate::record::{self, Draft, Stored};
use crate::refusal;
use crate::shard::{Locked, MAIN, SMALL};
use crate::slot::Seat;
use crate::{Now, Store};
use herd_core::Error;
use herd_core::bugs::{Bug, has};
use herd_core::checksum::crc32c;
use herd_core::entry::{Fence, Head, Memcached, Version};
use herd_core::key::ObjectId;
use herd_core::limits::INLINE_MAX_BYTES;
use std::sync::Arc;

/// An entry, locked.
pub struct Entry<'s> {
    pub(crate) store: &'s Store,
    pub(crate) shard: Locked<'s>,
    pub(crate) c: &'s Arc<State>,
    pub(crate) name: &'s [u8],
    pub(crate) id: ObjectId,
    pub(crate) tag: Tag,
    /// Where its slot stands among those that the shard knows.
    pub(crate) slot_at: usize,
    pub(crate) now: Now,
    pub(crate) generation: Generation,
    /// Position in the index and address, if there is an object.
    pub(crate) place: Option<(usize, Addr)>,
    /// Its time is over, and it is not this node's to take out.
    pub(crate) is_due: bool,
}

/// An object that was found.
pub type Found<'a> = herd_core::entry::Found<'a, Arc<Body>>;

/// The value of an object that was found.
pub type Value<'a> = herd_core::entry::Value<'a, Arc<Body>>;

/// The value of an object to put.
pub type Given<'a> = herd_core::op::Given<'a, Arc<Body>>;

/// An object to put.
#[derive(Clone)]
pub struct NewObject<'a> {
    /// Its value.
    pub value: Given<'a>,
    /// Opaque flags.
    pub flags: u32,
    /// When it expires, ms since 1970; 0: never.
    pub expires_ms: u64,
    /// Attributes, encoded.
    pub attributes: &'a [u8],
    /// What the memcached door keeps.
    pub memcached: Memcached,
    /// The highest token of a lock that was shown.
    pub fence: Option<Fence>,
}

/// What is to be known of an object whose value stays.
#[derive(Clone, Copy, Debug)]
pub struct Amended {
    /// Opaque flags.
    pub flags: u32,
    /// When it expires, ms since 1970; 0: never.
    pub expires_ms: u64,
    /// What the memcached door keeps.
    pub memcached: Memcached,
    /// The highest token of a lock that was shown.
    pub fence: Option<Fence>,
}

impl<'a> NewObject<'a> {
    /// An object of a value alone.
    pub fn of(value: Given<'a>) -> Self {
        Self { value, flags: 0, expires_ms: 0, attributes: &[], memcached: Memcached::default(), fence: None }
    }
}

impl<'s> Entry<'s> {
    /// Its version, if there is an object whose time is not over.
    pub fn version(&self) -> Option<Version> {
        self.place.filter(|_| !self.is_due).map(|(_, addr)| self.shard.record(addr).version())
    }

    /// The spread group of its collection.
    pub fn spread(&self) -> u16 {
        self.c.spread()
    }

    /// Its slot.
    pub fn slot(&self) -> usize {
        self.id.slot()
    }

    /// What this node is to its slot, as long as the entry is locked.
    #[inline]
    pub fn seat(&self) -> Seat {
        self.shard.slots[self.slot_at].seat
    }

    /// Whether there is an object whose time is over, and that others have too: nobody finds it, and the node that
    /// decides is to remove it.
    pub fn is_due(&self) -> bool {
        self.is_due
    }

    /// The object, if there is one whose time is not over.
    #[inline]
    pub fn found(&self) -> Option<Found<'_>> {
        if has(Bug::DirtyRead)
            && let Some(pending) = self.pending()
        {
            return if pending.removes { None } else { self.found_pending() };
        }
        let (_, addr) = self.place.filter(|_| !self.is_due)?;
        Some(self.found_at(addr))
    }

    #[inline]
    pub(crate) fn found_at(&self, addr: Addr) -> Found<'_> {
        let record = self.shard.record(addr);
        let value = match record.value() {
            Stored::Inline(bytes, crc) => Value::Inline(bytes, crc),
            Stored::Large(body, _) => Value::Body(self.shard.body(body)),
        };
        Found { head: record.head(), attributes: record.attributes(), fence: record.fence(), value }
    }

    /// What tells the object from all others.
    pub fn id(&self) -> [u8; 16] {
        self.id.to_bytes()
    }

    /// The version the next change of it will have, if nothing else of its slot is changed before.
    pub fn next_version(&self) -> Version {
        self.shard.slots[self.slot_at].version + 1
    }

    /// The token that the object that was here left behind.
    #[inline]
    pub fn left(&self) -> Option<Fence> {
        self.shard.left.get(self.generation, self.tag, self.name, self.now.unix_ms)
    }

    /// Whether a token of a lock was shown with an operation on what is committed, or on what was here.
    pub fn is_fenced(&self) -> bool {
        self.place.is_some_and(|(_, addr)| self.shard.record(addr).fence().is_some()) || self.left().is_some()
    }

    /// Counts a get and notes the use of what was found.
    #[inline]
    pub fn count_get(&mut self, hit: bool) {
        let counts = &mut self.shard.logs(self.c).counts;
        *(if hit { &mut counts.hits } else { &mut counts.misses }) += 1;
        if hit {
            self.mark_used();
        }
    }

    /// Notes a use, for eviction and for `last access`.
    #[inline]
    pub fn mark_used(&mut self) {
        if let Some((_, addr)) = self.place {
            record::mark_used(self.shard.bytes_mut(addr), self.now.uptime_s);
        }
    }

    /// Whether the object, if there is one, has no end before that time, ms since 1970.
    #[inline]
    pub fn lives_until(&self, unix_ms: u64) -> bool {
        let ends_ms = self.place.map_or(0, |(_, addr)| self.shard.record(addr).expires_ms());
        ends_ms == 0 || ends_ms > unix_ms
    }

    /// Bytes of the object as counted; 0 without one.
    pub(crate) fn weight(&self) -> u64 {
        self.place.map_or(0, |(_, addr)| self.shard.weight(self.c, self.shard.record(addr)))
    }

    /// Counts a get that found its object without noting the use.
    pub fn count_hit(&mut self) {
        self.shard.logs(self.c).counts.hits += 1;
    }

    /// Puts an object in place of what is there; gives its version.
    ///
    /// Errors: `Full` and `Quota` where no room can be had, `NoCollection` after it was destroyed. What was there then
    /// stays, unless it was evicted to make room.
    pub fn put(&mut self, new: &NewObject<'_>) -> Result<Version, Error> {
        let result = self.try_put(0, new);
        match result {
            Ok(_) => self.shard.logs(self.c).counts.puts += 1,
            Err(_) => self.refused(new),
        }
        result
    }

    /// An object was refused.
    pub(crate) fn refused(&mut self, new: &NewObject<'_>) {
        if let Given::Large(body) = &new.value {
            // The caller may let go of it before the lock is left; so it isn't freed by that.
            self.shard.trash.push(body.clone());
        }
        self.shard.logs(self.c).counts.refusals += 1;
    }

    /// Puts an object; it gets this version, or the next (0).
    pub(crate) fn try_put(&mut self, version: Version, new: &NewObject<'_>) -> Result<Version, Error> {
        self.check_name()?;
        let mut draft = self.draft(version, new);
        let weight = self.weight_of(&draft, &new.value);
        let claimed = self.claim_quota(weight)?;
        let done = self.store_draft(&mut draft, &new.value, weight, true);
        self.c.unclaim(claimed);
        done.map(|()| draft.head.version)
    }

    /// Puts a draft in place of what is there; `is_new`: with a use count of its own.
    fn store_draft(
        &mut self,
        draft: &mut Draft<'_>,
        value: &Given<'_>,
        weight: u64,
        is_new: bool,
    ) -> Result<(), Error> {
        let len = draft.bytes();
        if let Some((_, addr)) = self.place.filter(|(_, addr)| self.shard.record(*addr).len_bytes() == len) {
            self.complete(draft, value);
            self.is_due = false;
            self.shard.overwrite(self.c, addr, draft, weight);
            self.mark_put();
            return Ok(());
        }
        let freq = self.place.filter(|_| !is_new).map_or(0, |(_, addr)| self.shard.record(addr).freq());
        if self.place.is_none() {
            self.make_index_room()?;
        }
        let (queue, addr) = self.room_for_new(len)?;
        self.complete(draft, value);
        draft.write(self.shard.bytes_mut(addr), freq);
        self.shard.note_expiry(PageId(addr.page()), draft.head.expires_ms);
        self.shard.count_in(self.c, queue, weight);
        self.shard.logs(self.c).counts.objects += 1;
        self.link(addr);
        self.mark_put();
        Ok(())
    }

    /// An error if no object of that name may be put.
    pub(crate) fn check_name(&self) -> Result<(), Error> {
        if self.c.is_destroyed() { Err(refusal::removed(self.c)) } else { self.c.check_name(self.name) }
    }

    /// Gives a draft its version and takes its body into the shard, now that there is a place for its record.
    pub(crate) fn complete(&mut self, draft: &mut Draft<'_>, value: &Given<'_>) {
        match draft.head.version {
            0 => draft.head.version = self.shard.next_version(self.slot_at),
            given => self.shard.raise_version(self.slot_at, given),
        }
        if let Given::Large(body) = value {
            draft.value = Stored::Large(self.shard.keep_body(body.clone()), body.len());
        }
    }

    /// What an object weighs that is about to be written.
    pub(crate) fn weight_of(&self, draft: &Draft<'_>, value: &Given<'_>) -> u64 {
        let body = match value {
            Given::Small(..) => 0,
            Given::Large(body) => body.memory_bytes(),
        };
        draft.bytes() as u64 + body + self.c.name_cost_bytes(self.name.len())
    }

    /// An object about to be written, of this version, or of the next (0).
    #[inline]
    pub(crate) fn draft<'a>(&self, version: Version, new: &NewObject<'a>) -> Draft<'a>
    where
        's: 'a,
    {
        let (value, size_bytes) = match &new.value {
            Given::Small(bytes, crc) => {
                (Stored::Inline(bytes, crc.unwrap_or_else(|| crc32c(bytes))), bytes.len() as u64)
            }
            Given::Large(body) => (Stored::Large(0, body.len()), body.len()),
        };
        let inline = matches!(value, Stored::Inline(..));
        assert!(!inline || size_bytes <= INLINE_MAX_BYTES as u64, "a larger value is a body");
        let head = Head {
            version,
            size_bytes,
            flags: new.flags,
            expires_ms: new.expires_ms,
            access_s: self.now.uptime_s,
            fetched: false,
            memcached: new.memcached,
        };
        Draft { head, name: self.name, attributes: new.attributes, fence: new.fence, value }
    }

    /// Room for a record of `len` bytes: its queue and address.
    pub(crate) fn room_for_new(&mut self, len: usize) -> Result<(u8, Addr), Error> {
        let queue = self.queue_for_new();
        Ok((queue, self.room_for(queue, len)?))
    }

    /// New objects of an evicting collection begin in the small queue, unless they left it a short while ago.
    fn queue_for_new(&mut self) -> u8 {
        if !self.c.class.evicts() {
            return MAIN;
        }
        match self.place {
            Some((_, addr)) => self.shard.arena.note(&self.shard.owner, PageId(addr.page())).queue,
            None if self.shard.recall(self.tag.value()) => MAIN,
            None => SMALL,
        }
    }

    /// Points the index at the new record and buries the old one.
    fn link(&mut self, addr: Addr) {
        self.is_due = false;
        match self.place {
            Some((at, old)) => {
                self.shard.index.set_addr(at, addr);
                self.shard.bury(self.c, old);
                self.place = Some((at, addr));
            }
            None => {
                self.place = Some((self.shard.link(self.c, self.tag, addr), addr));
                self.c.add_name(self.generation, self.name);
                self.shard.forget_left(self.generation, self.tag, self.name);
            }
        }
    }

    /// Claims what a put adds to the bytes of a collection with a quota, evicting its own if it may; gives how much.
    pub(crate) fn claim_quota(&mut self, weight: u64) -> Result<u64, Error> {
        let Some(quota) = self.c.spec.quota_bytes else { return Ok(0) };
        loop {
            let more = weight.saturating_sub(self.weight());
            if self.c.claim(more) {
                return Ok(more);
            }
            if !self.c.class.evicts() || weight > quota || !self.evict_own() {
                return Err(refusal::quota(self.c, more, quota));
            }
        }
    }

    /// Evicts from this collection, here or in a shard nobody holds.
    fn evict_own(&mut self) -> bool {
        let now_ms = self.now.unix_ms;
        let evicted = self.shard.evict(self.c, now_ms)
            || self.store.rotation().any(|at| {
                let Some(mut other) = self.store.shards[at].try_lock() else { return false };
                let evicted = other.evict(self.c, now_ms);
                self.shard.trash.append(&mut other.trash);
                evicted
            });
        self.look_again();
        evicted
    }

    /// Room for one more entry in the index, and for its name where names are kept in order.
    pub(crate) fn make_index_room(&mut self) -> Result<(), Error> {
        while self.shard.index.is_full() {
            let Some(growth) = self.shard.index.growth_bytes() else {
                if self.c.class.evicts() && self.shard.evict(self.c, self.now.unix_ms) {
                    self.look_again();
                    continue;
                }
                return Err(refusal::index(self.c, self.shard.index.len(), &self.store.arena));
            };
            if self.has_spare(growth) {
                self.store.arena.charge(growth / 2);
                self.shard.index.grow();
                self.look_again();
            } else if !self.reclaim() {
                return Err(refusal::full(self.c, &self.store.arena));
            }
        }
        while self.c.names.is_some() && !self.has_spare(1) {
            if !self.reclaim() {
                return Err(refusal::full(self.c, &self.store.arena));
            }
        }
        Ok(())
    }

    fn has_spare(&self, bytes: u64) -> bool {
        u64::from(self.store.arena.spare_pages()) * PAGE_BYTES as u64 >= bytes
    }

    fn room_for(&mut self, queue: u8, len: usize) -> Result<Addr, Error> {
        loop {
            if let Ok(addr) = self.shard.append(self.c, queue, len, false) {
                return Ok(addr);
            }
            if !self.reclaim() {
                return Err(refusal::full(self.c, &self.store.arena));
            }
        }
    }

    /// Frees memory; what this entry refers to may move or go meanwhile.
    fn reclaim(&mut self) -> bool {
        let freed = self.store.reclaim_within(&mut self.shard, self.c, self.now);
        self.look_again();
        freed
    }

    pub(crate) fn look_again(&mut self) {
        self.place = self.shard.find(self.c, self.generation, self.tag, self.name);
    }

    /// Removes the object, which leaves a fence behind; gives the version of the removal. No-op without an object.
    pub fn remove(&mut self, fence: Option<Fence>) -> Option<Version> {
        self.take_out(fence).then(|| self.shard.next_version(self.slot_at))
    }

    /// Takes the object out, which leaves a fence behind; false without an object.
    pub(crate) fn take_out(&mut self, fence: Option<Fence>) -> bool {
        let Some((at, addr)) = self.place.take() else { return false };
        self.is_due = false;
        if let Some(fence) = fence {
            self.leave_by(Cause::Gone, fence);
        }
        self.shard.kill(self.c, at, addr);
        self.c.remove_name(self.generation, self.name);
        true
    }

    fn leave_by(&mut self, cause: Cause, fence: Fence) {
        self.shard.leave((self.generation, self.tag, self.name), cause, fence, self.now.unix_ms);
    }

    /// Leaves a fence that was shown where there is no object.
    pub fn leave(&mut self, fence: Fence) {
        self.leave_by(Cause::Shown, fence);
    }

    /// Leaves a fence that another node keeps of the object that was here; nothing where there is one.
    pub fn copy_left(&mut self, fence: Fence) {
        if self.place.is_none() {
            self.leave_by(Cause::Gone, fence);
        }
    }

    /// As it is once its time is over.
    #[cold]
    pub(crate) fn expired(mut self) -> Self {
        self.expire();
        self
    }

    /// Takes the object out, since its time is over.
    #[cold]
    pub(crate) fn expire(&mut self) {
        let may_go = self.seat().is_own() || self.seat() == Seat::Held && has(Bug::BackupExpires);
        if !may_go {
            self.is_due = true;
            return;
        }
        if let Some((at, addr)) = self.place.take() {
            if let Some(fence) = self.shard.record(addr).fence() {
                self.leave_by(Cause::Gone, fence);
            }
            self.shard.kill(self.c, at, addr);
            self.c.remove_name(self.generation, self.name);
            self.shard.logs(self.c).counts.expired += 1;
        }
    }

    /// Changes what is known of the object, but not its value; gives its new version, or 0 if there is none. Error:
    /// `Full` where there is no memory for the few bytes more.
    pub fn amend(&mut self, new: &Amended) -> Result<Version, Error> {
        let Some(found) = self.found() else {
            return Ok(0);
        };
        let (head, attributes) = (found.head, found.attributes.to_vec());
        let inline = match found.value {
            Value::Inline(bytes, crc) => Ok((bytes.to_vec(), crc)),
            Value::Body(body) => Err(body.clone()),
        };
        let value = match &inline {
            Ok((bytes, crc)) => Given::Small(bytes, Some(*crc)),
            Err(body) => Given::Large(body.clone()),
        };
        if has(Bug::TouchKeepsVersion) {
            self.shard.slots[self.slot_at].version -= 1;
        }
        let Amended { flags, expires_ms, memcached, fence } = *new;
        let new = NewObject { value, flags, expires_ms, attributes: &attributes, memcached, fence };
        let mut draft = self.draft(0, &new);
        let weight = self.weight_of(&draft, &new.value);
        draft.head.fetched = head.fetched;
        self.store_draft(&mut draft, &new.value, weight, false)?;
        Ok(draft.head.version)
    }
}
