//! Herd's object store: the one hot data structure and its eviction.
//!
//! A [`Store`] is shared by all event loops. It is cut into shards, each an index and logs of entries behind its own
//! lock; small values lie in the log and are copied under the lock, large ones are reference-counted blocks. Memory is
//! one arena of pages with a hard budget (`arena.rs`). Reading order: `record.rs`, `index.rs`, `shard.rs`, `evict.rs`.
//!
//! Callers: `herd-node`. Every call takes the time as a value; nothing here reads a clock.

mod arena;
mod body;
mod collection;
mod entry;
mod evict;
mod find;
mod index;
mod list;
mod pool;
mod record;
mod shard;

pub use body::{Body, BodyWriter, NoRoom};
pub use collection::{Collection, Counts};
pub use entry::{Entry, NewObject, NewValue};
pub use find::{Found, Value};
pub use list::{ListItem, Page};

use arena::{Arena, PAGE_BYTES, PageId};
use collection::{Registry, State};
use evict::Effort;
use herd_core::collection::Spec;
use herd_core::key::{CollectionId, HashKey, ObjectId};
use herd_core::limits::{BLOCK_BYTES, HELD_PART, SLOTS};
use herd_core::{Error, ErrorKind, entry as core_entry, size};
use index::Tag;
use shard::Shard;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

/// Pages kept so that eviction can always move an entry.
const RESERVE_PAGES: u32 = 16;
/// Pages that maintenance keeps free while something can be evicted, so that puts rarely make room themselves.
const SPARE_PAGES: u32 = 32;
/// How far apart the versions of two slots begin: a millisecond of [`core_entry::first_version`] over all slots.
const SLOT_STEP: u64 = (1 << 22) / SLOTS as u64;
/// Bytes fetched ahead of an entry: a small object, or the start of a larger one that the hardware goes on with.
const FETCH_BYTES: usize = 320;
/// Least memory a store works with.
pub const MEMORY_MIN_BYTES: u64 = 8 << 20;

/// The time, as the caller's clock has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// Milliseconds since 1970.
    pub unix_ms: u64,
    /// Seconds since the node's start.
    pub uptime_s: u32,
}

/// What a store is made with.
pub struct Config {
    /// Bound on all memory of the store, overhead included.
    pub memory_bytes: u64,
    /// Event loops that will use it.
    pub threads: usize,
    /// Largest object.
    pub object_max_bytes: u64,
    /// Key of the name hash.
    pub hash_key: HashKey,
    /// When the node started, ms since 1970: versions begin above those of earlier starts.
    pub start_ms: u64,
}

/// An object that will be asked for soon; see [`Store::foresee`].
#[derive(Clone, Copy, Debug)]
pub struct Foreseen {
    shard: usize,
    tag: Tag,
}

/// The objects of a node.
pub struct Store {
    arena: Arc<Arena>,
    shards: Box<[Lane]>,
    registry: Registry,
    hash_key: HashKey,
    object_max_bytes: u64,
    /// Bytes of bodies that were admitted and are not finished.
    promised: AtomicU64,
    /// Bytes the node holds outside the store.
    held: AtomicU64,
    next_shard: AtomicUsize,
}

/// A shard on cache lines of its own.
#[repr(align(128))]
struct Lane(Mutex<Shard>);

/// A large value on its way in, admitted against the budget.
pub struct Upload {
    store: Arc<Store>,
    collection: Collection,
    promised: u64,
    /// Where its bytes go.
    pub writer: BodyWriter,
}

impl Drop for Upload {
    fn drop(&mut self) {
        self.store.promised.fetch_sub(self.promised, Relaxed);
    }
}

impl Store {
    /// An empty store.
    pub fn new(config: &Config) -> std::io::Result<Arc<Self>> {
        if config.memory_bytes < MEMORY_MIN_BYTES {
            let text = format!("memory of {} is too little: give at least 8 MiB", size::show(config.memory_bytes));
            return Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, text));
        }
        let shards = shard_count(config);
        let (arena, owners) = Arena::new(config.memory_bytes, shards as u16, RESERVE_PAGES)?;
        let arena = Arc::new(arena);
        let first = core_entry::first_version(config.start_ms);
        let lane = |(shard, owner)| {
            // Slots begin apart, so that versions of two objects are seldom the same number.
            let version = |local| first + ((local * shards + shard) as u64 * SLOT_STEP);
            let versions = (0..SLOTS / shards).map(version).collect();
            Lane(Mutex::new(Shard::new(arena.clone(), owner, config.hash_key, versions)))
        };
        Ok(Arc::new(Self {
            shards: owners.into_iter().enumerate().map(lane).collect(),
            arena,
            registry: Registry::new(),
            hash_key: config.hash_key,
            object_max_bytes: config.object_max_bytes,
            promised: AtomicU64::new(0),
            held: AtomicU64::new(0),
            next_shard: AtomicUsize::new(0),
        }))
    }

    /// Creates a collection, or finds one of the same name and specification.
    pub fn create(&self, name: &str, spec: Spec) -> Result<Collection, Error> {
        self.registry.create(name, spec)
    }

    /// Destroys a collection with all its objects; their memory is given back little by little.
    pub fn destroy(&self, collection: &Collection) {
        collection.0.destroy();
    }

    /// Removes all objects of a collection, now or at `at_ms` (ms since 1970).
    pub fn flush(&self, collection: &Collection, at_ms: Option<u64>) {
        match at_ms {
            Some(at_ms) => collection.0.flush_at(at_ms.max(1)),
            None => collection.0.begin_generation(),
        }
    }

    /// The collection of that name.
    pub fn collection(&self, name: &[u8]) -> Option<Collection> {
        self.registry.by_name(name)
    }

    /// The collection with that id.
    pub fn collection_by_id(&self, id: CollectionId) -> Option<Collection> {
        self.registry.by_id(id)
    }

    /// All collections.
    pub fn collections(&self) -> Vec<Collection> {
        self.registry.all()
    }

    /// Begins to fetch what finding an object will need.
    #[inline]
    pub fn foresee(&self, collection: &Collection, name: &[u8]) -> Foreseen {
        let id = ObjectId::of(&self.hash_key, collection.0.id, name);
        let foreseen = Foreseen { shard: id.slot() & (self.shards.len() - 1), tag: Tag::new(id.tag_bits()) };
        self.lock(foreseen.shard).index.foresee(foreseen.tag);
        foreseen
    }

    /// Begins to fetch the object itself, if one was foreseen.
    #[inline]
    pub fn fetch(&self, foreseen: Option<Foreseen>) {
        let Some(foreseen) = foreseen else { return };
        let shard = self.lock(foreseen.shard);
        if let Some((_, addr)) = shard.index.find(foreseen.tag, |_| true) {
            shard.arena.fetch(&shard.owner, PageId(addr.page()), addr.offset(), FETCH_BYTES);
        }
    }

    /// Admits a value of `expected` bytes (or of unknown size) to a collection before its first byte is read.
    pub fn admit(self: &Arc<Self>, collection: &Collection, expected: Option<u64>) -> Result<Upload, Error> {
        let size_bytes = expected.unwrap_or(0);
        self.check_size(size_bytes)?;
        self.check_room(collection, size_bytes).inspect_err(|_| collection.0.count_refused())?;
        self.promised.fetch_add(size_bytes, Relaxed);
        Ok(Upload {
            store: self.clone(),
            collection: collection.clone(),
            promised: size_bytes,
            writer: BodyWriter::new(self.arena.clone(), expected),
        })
    }

    /// An error if an object of that size is over the limit.
    pub fn check_size(&self, size_bytes: u64) -> Result<(), Error> {
        if size_bytes <= self.object_max_bytes {
            return Ok(());
        }
        let (has, limit) = (size::show(size_bytes), size::show(self.object_max_bytes));
        Err(Error::new(ErrorKind::TooLarge, format!("object of {has} is over the limit of {limit}")))
    }

    /// An error if `size_bytes` more can't fit beside what is never evicted, or within the quota.
    fn check_room(&self, collection: &Collection, size_bytes: u64) -> Result<(), Error> {
        let state = &collection.0;
        if let Some(quota) = state.spec.quota_bytes {
            let held = if state.class.evicts() { 0 } else { state.used_bytes() };
            if held + size_bytes > quota {
                return Err(quota_error(state, size_bytes, quota));
            }
        }
        let budget = self.arena.budget_bytes() - u64::from(RESERVE_PAGES) * PAGE_BYTES as u64;
        let held = self.registry.pinned_bytes() + self.promised.load(Relaxed);
        if size_bytes > 0 && held + size_bytes > budget {
            let (has, free) = (size::show(size_bytes), size::show(budget.saturating_sub(held)));
            let text = format!("object of {has} does not fit: {free} of {} free", size::show(budget));
            return Err(Error::new(ErrorKind::Full, text));
        }
        Ok(())
    }

    /// What a collection holds and counted.
    pub fn counts(&self, collection: &Collection) -> Counts {
        let mut sum = Counts { refusals: collection.0.refused.load(Relaxed), ..Counts::default() };
        for at in 0..self.shards.len() {
            let shard = self.lock(at);
            if let Some(Some(logs)) = shard.logs.get(usize::from(collection.0.index)) {
                let current = logs.generation == collection.0.generation(0);
                sum += if current { logs.counts } else { Counts { objects: 0, bytes: 0, ..logs.counts } };
            }
        }
        sum
    }

    /// Counts a change of what the node holds outside the store, in buffers of its connections, against the budget.
    /// False, and not counted: it would be more than its part ([`HELD_PART`]). Less is always taken.
    pub fn hold(&self, change_bytes: i64) -> bool {
        let bytes = change_bytes.unsigned_abs();
        if change_bytes < 0 {
            self.held.fetch_sub(bytes, Relaxed);
            self.arena.discharge(bytes);
            return true;
        }
        let fits = self.held.fetch_add(bytes, Relaxed) + bytes <= self.arena.budget_bytes() / HELD_PART;
        if fits {
            self.arena.charge(bytes);
        } else {
            self.held.fetch_sub(bytes, Relaxed);
        }
        fits
    }

    /// Bytes of the budget, and of it in use.
    pub fn memory(&self) -> (u64, u64) {
        (self.arena.budget_bytes(), self.arena.used_bytes())
    }

    /// Upkeep, to be called a few times a second: gives back memory of removed collections, takes out expired
    /// objects, and evicts a little ahead of need. Holds a lock for a fraction of a millisecond at a time.
    pub fn maintain(&self, now: Now) {
        let all = self.states();
        let refs: Vec<&State> = all.iter().map(Arc::as_ref).collect();
        for at in 0..self.shards.len() {
            while self.lock(at).free_stale(&refs, now.unix_ms) {}
            while !self.lock(at).sweep(&refs, now.unix_ms, 64) {}
        }
        let mut tries = SPARE_PAGES * 4;
        while self.arena.spare_pages() < SPARE_PAGES && tries > 0 && self.registry.victim(1).is_some() {
            self.reclaim(now);
            tries -= 1;
        }
        self.registry.forget(|c| {
            let index = usize::from(c.index);
            (0..self.shards.len()).all(|at| {
                let mut shard = self.lock(at);
                let clear = shard.stale.is_empty();
                if clear && shard.logs.get(index).is_some_and(|logs| logs.is_some()) {
                    shard.logs(c, now.unix_ms);
                    shard.logs[index] = None;
                }
                clear && shard.stale.is_empty()
            })
        });
    }

    /// Frees some memory while no lock is held; false if nothing can be freed.
    fn reclaim(&self, now: Now) -> bool {
        let all = self.states();
        let refs: Vec<&State> = all.iter().map(Arc::as_ref).collect();
        let victim = self.registry.victim(self.arena.budget_bytes());
        for effort in [Effort::Usual, Effort::Last] {
            for at in self.rotation() {
                let mut shard = self.lock(at);
                let freed = shard.free_memory(victim.as_deref(), &refs, now.unix_ms, effort);
                let trash = std::mem::take(&mut shard.trash);
                drop(shard);
                drop(trash);
                if freed {
                    return true;
                }
            }
        }
        false
    }

    /// Frees some memory while `own` is locked: in it, or in others that nobody holds.
    #[cold]
    fn reclaim_within(&self, own: &mut Shard, now: Now) -> bool {
        let all = self.states();
        let refs: Vec<&State> = all.iter().map(Arc::as_ref).collect();
        let victim = self.registry.victim(self.arena.budget_bytes());
        for effort in [Effort::Usual, Effort::Last] {
            if own.free_memory(victim.as_deref(), &refs, now.unix_ms, effort) {
                own.trash.clear();
                return true;
            }
            for at in self.rotation() {
                // Another shard's lock is only tried: waiting for one while holding one could wait for ever.
                let Ok(mut other) = self.shards[at].0.try_lock() else {
                    continue;
                };
                if other.free_memory(victim.as_deref(), &refs, now.unix_ms, effort) {
                    other.trash.clear();
                    return true;
                }
            }
        }
        false
    }

    fn rotation(&self) -> impl Iterator<Item = usize> + use<> {
        let shards = self.shards.len();
        let from = self.next_shard.fetch_add(1, Relaxed);
        (0..shards).map(move |i| (from + i) & (shards - 1))
    }

    fn states(&self) -> Vec<Arc<State>> {
        self.registry.everything()
    }

    /// A body of `parts` one after the other, for values put together by the node.
    pub fn body_of(self: &Arc<Self>, collection: &Collection, parts: &[&[u8]], now: Now) -> Result<Body, Error> {
        let size_bytes: usize = parts.iter().map(|part| part.len()).sum();
        let mut upload = self.admit(collection, Some(size_bytes as u64))?;
        for part in parts {
            upload.write(part, now)?;
        }
        upload.finish(now)
    }
}

impl Upload {
    /// Makes room for up to `max` more bytes, evicting if need be; gives how many fit now.
    pub fn reserve(&mut self, max: usize, now: Now) -> Result<usize, Error> {
        self.retry(now, |writer| writer.reserve(max))
    }

    /// Copies `bytes` in.
    pub fn write(&mut self, bytes: &[u8], now: Now) -> Result<(), Error> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let room = self.reserve(rest.len().min(BLOCK_BYTES), now)?;
            assert!(room > 0, "not more bytes than were announced");
            let (chunk, after) = rest.split_at(room);
            self.retry(now, |writer| writer.write(chunk))?;
            rest = after;
        }
        Ok(())
    }

    /// Copies a range of another body in.
    pub fn copy(&mut self, body: &Body, from: u64, to: u64, now: Now) -> Result<(), Error> {
        let mut at = from;
        while at < to {
            let step = (BLOCK_BYTES as u64 - at % BLOCK_BYTES as u64).min(to - at);
            self.retry(now, |writer| writer.copy(body, at, at + step))?;
            at += step;
        }
        Ok(())
    }

    /// The finished body.
    pub fn finish(mut self, now: Now) -> Result<Body, Error> {
        let empty = BodyWriter::new(self.store.arena.clone(), None);
        let writer = std::mem::replace(&mut self.writer, empty);
        // Only a value of unforeseen size takes memory here, for its last, smaller block.
        let mut tries = 0;
        while self.store.arena.spare_pages() == 0 && tries < 64 && self.store.reclaim(now) {
            tries += 1;
        }
        writer.finish().map_err(|NoRoom| self.full())
    }

    fn retry<R>(&mut self, now: Now, mut step: impl FnMut(&mut BodyWriter) -> Result<R, NoRoom>) -> Result<R, Error> {
        if self.writer.len() >= self.store.object_max_bytes.saturating_add(1) {
            self.store.check_size(self.writer.len())?;
        }
        loop {
            match step(&mut self.writer) {
                Ok(done) => return Ok(done),
                Err(NoRoom) if self.store.reclaim(now) => {}
                Err(NoRoom) => return Err(self.full()),
            }
        }
    }

    #[cold]
    fn full(&self) -> Error {
        self.collection.0.count_refused();
        full_error(&self.collection.0, &self.store.arena)
    }
}

#[cold]
fn full_error(c: &State, arena: &Arena) -> Error {
    let text = format!(
        "memory is full: {} of {} in use and collection '{}' of class {} does not evict",
        size::show(arena.used_bytes()),
        size::show(arena.budget_bytes()),
        c.name,
        c.class
    );
    Error::new(ErrorKind::Full, text)
}

#[cold]
fn quota_error(c: &State, more: u64, quota: u64) -> Error {
    let (used, more, quota) = (size::show(c.used_bytes()), size::show(more), size::show(quota));
    Error::new(ErrorKind::Quota, format!("quota of collection '{}' is {quota}: {used} in use, {more} asked", c.name))
}

/// Enough shards that loops rarely meet, few enough that open pages are a small part of the memory.
fn shard_count(config: &Config) -> usize {
    let by_threads = config.threads.max(1) * 32;
    let by_memory = (config.memory_bytes / (2 << 20)).max(1) as usize;
    let shards = by_threads.min(by_memory).clamp(1, SLOTS);
    1 << shards.ilog2()
}

#[cfg(test)]
mod tests;
