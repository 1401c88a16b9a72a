//! Herd's object store: the one hot data structure and its eviction.
//!
//! A [`Store`] is shared by all event loops. It is cut into shards, each an index and logs of entries behind its own
//! lock; small values lie in the log and are copied under the lock, large ones are reference-counted blocks. Memory is
//! one arena of pages with a hard budget (`arena.rs`). Reading order: `record.rs`, `slot.rs`, `index.rs`, `shard.rs`,
//! `evict.rs`, `pending.rs`.
//!
//! # Locks, in the order in which they are taken
//!
//! | rank | guards | held for |
//! |---|---|---|
//! | shard | index, logs, bodies and slots of a part of the names | an operation on an entry, or a page of upkeep |
//! | registry | the list of collections | finding one; no shard is ever waited for with it |
//! | follow | one collection while it goes over to another generation of the map | a flush |
//! | names | the sorted names of one ordered collection | one insertion, removal, or stretch of a listing |
//! | pool | which pages and pieces are free | taking or giving one |
//!
//! A thread that has a lock waits only for those further down; of shards it has one, and only tries others. `sync.rs`
//! checks that in builds with debug assertions.
//!
//! Callers: `herd-node`. Every call takes the time as a value; nothing here reads a clock.

mod arena;
mod body;
mod collection;
mod compare;
mod entry;
mod evict;
mod find;
mod index;
mod left;
mod list;
mod names;
mod pending;
mod pool;
mod record;
mod refusal;
mod scan;
mod shard;
mod slot;
mod sync;
mod upkeep;
mod upload;

pub use body::{Body, BodyWriter, NoRoom};
pub use collection::{Collection, Counts};
pub use compare::{SlotDigest, SlotSum, SumCursor};
pub use entry::{Amended, Entry, Found, Given, NewObject, Value};
pub use find::Got;
pub use list::{ListCursor, ListItem, Page};
pub use scan::{Key, SlotCursor, SlotItem};
pub use slot::{Seat, Slot};
pub use upload::Upload;

use arena::{Arena, PAGE_BYTES, PageId};
use body::Zeros;
use collection::Registry;
use herd_core::collection::Spec;
use herd_core::key::{CollectionId, HashKey, ObjectId};
use herd_core::limits::{HELD_PART, SLOTS, SPREADS_MAX};
use herd_core::place::Map;
use herd_core::{Error, entry as core_entry, quote, size};
use index::Tag;
use shard::{FETCH_BYTES, Lane, Shard};
use slot::Layout;
use std::sync::{Arc, OnceLock};
use sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Pages kept so that eviction can always move an entry.
const RESERVE_PAGES: u32 = 16;
/// How far apart the versions of two slots begin: a millisecond of [`core_entry::first_version`] over all slots.
const SLOT_STEP: u64 = (1 << 22) / SLOTS as u64;
/// Least memory a store works with.
pub const MEMORY_MIN_BYTES: u64 = 8 << 20;

/// An error where a store of so much memory can't be made.
pub fn check_memory(bytes: u64) -> std::io::Result<()> {
    if bytes >= MEMORY_MIN_BYTES {
        return Ok(());
    }
    let text = format!("memory of {} is too little: give at least 8 MiB", size::show(bytes));
    Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, text))
}

/// What a store of so much memory has for values over 4 KiB and their lists.
pub fn values_bytes(memory_bytes: u64) -> u64 {
    memory_bytes.saturating_sub(u64::from(RESERVE_PAGES) * PAGE_BYTES as u64)
}

/// The error of a value that no store of so much memory, at that node, has room for.
pub fn never_fits(node: &str, size_bytes: u64, memory_bytes: u64) -> Error {
    let values_bytes = values_bytes(memory_bytes);
    refusal::no_room(size_bytes, values_bytes, values_bytes, &quote(node.as_bytes()))
}

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
    /// The node whose store it is, as errors name it.
    pub node: String,
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
    layout: Layout,
    /// Slots of each spread group that are not this node's alone.
    shared_slots: [AtomicUsize; SPREADS_MAX],
    registry: Registry,
    hash_key: HashKey,
    object_max_bytes: u64,
    /// Bytes of bodies that were admitted and are not finished.
    promised: AtomicU64,
    /// Bytes the node holds outside the store.
    held: AtomicU64,
    /// Where the next search for memory begins.
    next_shard: AtomicUsize,
    /// Where the next turn of upkeep begins.
    upkeep_at: AtomicUsize,
    /// What `freeable` was when nothing could be freed.
    futile: AtomicU64,
    /// The block that all gaps share, once there is one.
    zeros: OnceLock<Zeros>,
}

impl Store {
    /// An empty store.
    pub fn new(config: &Config) -> std::io::Result<Arc<Self>> {
        check_memory(config.memory_bytes)?;
        let shards = shard_count(config);
        let (mut arena, owners) = Arena::new(config.memory_bytes, shards as u16, RESERVE_PAGES)?;
        arena.name_node(&config.node);
        let arena = Arc::new(arena);
        let first = core_entry::first_version(config.start_ms);
        let layout = Layout::new(shards);
        let lane = |(shard, owner)| {
            // Slots begin apart, so that versions of two objects are seldom the same number.
            let first = first + (shard * layout.slots()) as u64 * SLOT_STEP;
            Lane::new(Shard::new(arena.clone(), owner, config.hash_key, layout, first))
        };
        Ok(Arc::new(Self {
            shards: owners.into_iter().enumerate().map(lane).collect(),
            layout,
            shared_slots: std::array::from_fn(|_| AtomicUsize::new(0)),
            registry: Registry::new(arena.clone()),
            arena,
            hash_key: config.hash_key,
            object_max_bytes: config.object_max_bytes,
            promised: AtomicU64::new(0),
            held: AtomicU64::new(0),
            next_shard: AtomicUsize::new(0),
            upkeep_at: AtomicUsize::new(0),
            futile: AtomicU64::new(u64::MAX),
            zeros: OnceLock::new(),
        }))
    }

    /// Creates a collection, or finds one of the same name and specification.
    pub fn create(&self, name: &str, spec: Spec) -> Result<Collection, Error> {
        self.registry.create(name, spec)
    }

    /// Makes the collections those of a map, and no others: makes, destroys and flushes. What is there when the map
    /// first tells of a collection is of the generation that it tells.
    ///
    /// Error: `Busy` where too many that are gone are not forgotten yet: it is done in part, and may be tried again.
    pub fn adopt(&self, map: &Map) -> Result<(), Error> {
        self.registry.adopt(map)
    }

    /// Destroys a collection with all its objects; their memory is given back little by little.
    pub fn destroy(&self, collection: &Collection) {
        collection.0.destroy();
    }

    /// Removes all objects of a collection, now or at `at_ms` (ms since 1970); the last word counts.
    pub fn flush(&self, collection: &Collection, at_ms: Option<u64>) {
        collection.0.flush(at_ms);
    }

    /// The collection of that name.
    pub fn collection(&self, name: &[u8]) -> Option<Collection> {
        self.registry.by_name(name)
    }

    /// The collection with that id.
    pub fn collection_by_id(&self, id: CollectionId) -> Option<Collection> {
        self.registry.by_id(id)
    }

    /// Whether a collection was removed: serial numbers rise, and this one was given out before the last that is known
    /// here. One that is not gone and not there is of a later map.
    pub fn is_gone(&self, id: CollectionId) -> bool {
        self.registry.is_gone(id)
    }

    /// All collections.
    pub fn collections(&self) -> Vec<Collection> {
        self.registry.all()
    }

    /// The key of the name hash: clients that go straight to the owner of an object know it too.
    pub fn hash_key(&self) -> HashKey {
        self.hash_key
    }

    /// In how many shards its objects lie.
    pub fn shards(&self) -> usize {
        self.shards.len()
    }

    /// Begins to fetch what finding an object will need.
    #[inline]
    pub fn foresee(&self, collection: &Collection, name: &[u8]) -> Foreseen {
        self.foresee_id(collection.0.object_id(&self.hash_key, name))
    }

    /// As [`Store::foresee`], of a collection that may not be known here.
    pub fn foresee_in(&self, collection: CollectionId, name: &[u8]) -> Foreseen {
        self.foresee_id(ObjectId::of(&self.hash_key, collection, name))
    }

    #[inline]
    fn foresee_id(&self, id: ObjectId) -> Foreseen {
        let foreseen = Foreseen { shard: self.layout.place(id.slot()).0, tag: self.layout.tag(id) };
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

    /// What a collection holds and counted.
    pub fn counts(&self, collection: &Collection) -> Counts {
        self.counts_of(std::slice::from_ref(collection))[0]
    }

    /// What each of these collections holds and counted; each shard is locked once.
    pub fn counts_of(&self, collections: &[Collection]) -> Vec<Counts> {
        let refused = |c: &Collection| Counts { refusals: c.0.refused.load(Relaxed), ..Counts::default() };
        let mut sums: Vec<Counts> = collections.iter().map(refused).collect();
        for at in 0..self.shards.len() {
            let shard = self.lock(at);
            sums.iter_mut().zip(collections).for_each(|(sum, c)| *sum += shard.counts(&c.0));
        }
        sums
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

    /// Bytes promised to bodies on their way in, and bytes held outside the store.
    pub fn unsettled(&self) -> (u64, u64) {
        (self.promised.load(Relaxed), self.held.load(Relaxed))
    }

    /// Bytes of the budget, and of it in use.
    pub fn memory(&self) -> (u64, u64) {
        (self.arena.budget_bytes(), self.arena.used_bytes())
    }

    /// The block of zeros that all gaps share.
    fn zeros(&self) -> Result<Zeros, NoRoom> {
        if let Some(zeros) = self.zeros.get() {
            return Ok(zeros.clone());
        }
        let zeros = Zeros::new(&self.arena)?;
        Ok(self.zeros.get_or_init(|| zeros).clone())
    }
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
