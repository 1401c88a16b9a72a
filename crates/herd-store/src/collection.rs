//! Collections of one node: what each promises, what it holds, and the registry that finds them by name or id.
//!
//! Each has a small number, its *index*, that stands in every page of its entries. Invariant: an index is given to
//! another collection only when nobody knows the old one any more, neither a handle nor a shard with a page of it.

use crate::arena::Arena;
use crate::names::{self, Names};
use crate::refusal;
use crate::sync::atomic::{
    AtomicBool, AtomicI64, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};
use crate::sync::{Mutex, Rank, RwLock};
use herd_core::collection::{Class, Spec};
use herd_core::key::{self, CollectionId, HashKey, ObjectId};
use herd_core::limits::{COLLECTIONS_KEPT_MAX, COLLECTIONS_MAX};
use herd_core::place::Map;
use herd_core::{Error, ErrorKind, quote};
use std::collections::{BTreeSet, VecDeque};
use std::ops::AddAssign;
use std::sync::Arc;

/// Indexed collections that are gone and still known.
const INDEXED_GONE: usize = 4_096;

/// A collection; cheap to clone, valid after it was destroyed (then empty, and refusing).
#[derive(Clone)]
pub struct Collection(pub(crate) Arc<State>);

/// Counts all flushes, removals and makings of collections. 64 bits: whoever flushes without end must not come to it.
pub(crate) type Generation = u64;

/// What all shards share of a collection.
pub(crate) struct State {
    pub(crate) id: CollectionId,
    pub(crate) index: u16,
    pub(crate) name: String,
    pub(crate) spec: Spec,
    pub(crate) class: Class,
    /// Bytes of live entries and bodies; shards report changes in steps, see [`State::report`].
    used_bytes: AtomicI64,
    /// Entries written under an earlier generation are gone: removing all is one addition.
    generation: AtomicU64,
    /// The last generation of any collection, so that no two share one.
    generations: Arc<AtomicU64>,
    /// One more than the generation of the map that it goes over to; 0: no map has told of it yet. It rises before
    /// what there was is gone, and `reached` after.
    followed: AtomicU64,
    reached: AtomicU64,
    following: Mutex<()>,
    /// When to begin the next generation, ms since 1970; 0: never.
    flush_at_ms: AtomicU64,
    /// Set once, when it is destroyed.
    destroyed: AtomicBool,
    /// Large values refused before or while they came, so by no shard.
    pub(crate) refused: AtomicU64,
    /// Names in order, if listings are sorted.
    pub(crate) names: Option<Names>,
}

/// What a collection counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Objects now.
    pub objects: u64,
    /// Bytes now, overhead included.
    pub bytes: u64,
    /// Gets that found their object.
    pub hits: u64,
    /// Gets that did not.
    pub misses: u64,
    /// Objects evicted to make room.
    pub evictions: u64,
    /// Objects that expired.
    pub expired: u64,
    /// Puts refused for want of memory or quota.
    pub refusals: u64,
    /// Objects put.
    pub puts: u64,
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.objects += other.objects;
        self.bytes += other.bytes;
        self.hits += other.hits;
        self.misses += other.misses;
        self.evictions += other.evictions;
        self.expired += other.expired;
        self.refusals += other.refusals;
        self.puts += other.puts;
    }
}

/// Shards report changes of a collection without a quota in steps of this.
const REPORT_STEP_BYTES: i64 = 16 * 1024;

impl State {
    /// Counts a large value that was refused.
    pub(crate) fn count_refused(&self) {
        self.refused.fetch_add(1, Relaxed);
    }

    fn new(id: CollectionId, index: u16, made: &Made<'_>, shared: &Inner) -> Self {
        let generation = shared.generations.fetch_add(1, Relaxed) + 1;
        let Made { name, spec, class } = *made;
        Self {
            id,
            index,
            name: name.to_string(),
            class,
            used_bytes: AtomicI64::new(0),
            generation: AtomicU64::new(generation),
            generations: shared.generations.clone(),
            followed: AtomicU64::new(0),
            reached: AtomicU64::new(0),
            following: Mutex::new(Rank::Follow, ()),
            flush_at_ms: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            destroyed: AtomicBool::new(false),
            names: spec.ordered.then(|| Names::new(shared.arena.clone(), generation)),
            spec: spec.clone(),
        }
    }

    /// Its spread group.
    #[inline]
    pub(crate) fn spread(&self) -> u16 {
        self.id.spread_group()
    }

    /// The generation of the map that it has gone over to: nothing of an earlier one is found any more.
    pub(crate) fn followed_generation(&self) -> u32 {
        // One that a map gave fits.
        u32::try_from(self.reached.load(Acquire).saturating_sub(1)).unwrap_or(u32::MAX)
    }

    /// Goes over to a generation of the map, if it is another: all objects of an earlier one go. The first that is told
    /// is that of what is there.
    fn follow(&self, generation: u32) {
        let next = u64::from(generation) + 1;
        // Who comes second waits: what it is to write under this generation must not go with the one before.
        let _alone = self.following.lock();
        let before = self.followed.load(Relaxed);
        if before >= next {
            return;
        }
        self.followed.store(next, Relaxed);
        if before != 0 {
            self.flush(None);
        }
        self.reached.store(next, Release);
    }

    /// The generation at `now_ms`; begins a new one if a flush is due.
    #[inline]
    pub(crate) fn generation(&self, now_ms: u64) -> Generation {
        let due = self.flush_at_ms.load(Relaxed);
        if due != 0 && due <= now_ms && self.flush_at_ms.compare_exchange(due, 0, Relaxed, Relaxed).is_ok() {
            self.begin_generation();
        }
        self.generation.load(Acquire)
    }

    fn begin_generation(&self) {
        let next = self.generations.fetch_add(1, Relaxed) + 1;
        // After the number of the map: who sees this generation with an entry locked sees that too.
        self.generation.fetch_max(next, Release);
        if let Some(names) = &self.names {
            names.begin(next);
        }
    }

    /// Begins a new generation now, which ends what was to come later, or at `at_ms`.
    pub(crate) fn flush(&self, at_ms: Option<u64>) {
        self.flush_at_ms.store(at_ms.map_or(0, |at_ms| at_ms.max(1)), Relaxed);
        if at_ms.is_none() {
            self.begin_generation();
        }
    }

    pub(crate) fn destroy(&self) {
        self.destroyed.store(true, Relaxed);
        self.begin_generation();
    }

    /// The id of an object.
    #[inline]
    pub(crate) fn object_id(&self, key: &HashKey, name: &[u8]) -> ObjectId {
        object_id(key, (self.id, self.spec.indexed), name)
    }

    /// An error if no object of this collection may have that name.
    #[inline]
    pub(crate) fn check_name(&self, name: &[u8]) -> Result<(), Error> {
        if !self.spec.indexed || key::index(name).is_some() {
            return Ok(());
        }
        let text = format!("'{}' names objects by index: 0 to 18446744073709551615", self.name);
        Err(Error::new(ErrorKind::BadRequest, text))
    }

    pub(crate) fn is_destroyed(&self) -> bool {
        self.destroyed.load(Relaxed)
    }

    /// Adds the name of an entry of `generation`, if it keeps names in order.
    #[inline]
    pub(crate) fn add_name(&self, generation: Generation, name: &[u8]) {
        if let Some(names) = &self.names {
            names.insert(generation, name);
        }
    }

    /// Takes the name of an entry of `generation` out.
    #[inline]
    pub(crate) fn remove_name(&self, generation: Generation, name: &[u8]) {
        if let Some(names) = &self.names {
            names.remove(generation, name);
        }
    }

    fn has_no_name(&self) -> bool {
        self.names.as_ref().is_none_or(Names::is_empty)
    }

    /// What an entry costs here beyond its record and body: its name in the sorted names.
    #[inline]
    pub(crate) fn name_cost_bytes(&self, name_len: usize) -> u64 {
        if self.names.is_some() { names::cost_bytes(name_len) } else { 0 }
    }

    /// Adds a shard's `change` if it is worth reporting; gives what is left to report.
    #[inline]
    pub(crate) fn report(&self, change: i64) -> i64 {
        if self.spec.quota_bytes.is_none() && change.abs() < REPORT_STEP_BYTES {
            return change;
        }
        self.used_bytes.fetch_add(change, Relaxed);
        0
    }

    /// Adds a change at once.
    pub(crate) fn report_now(&self, change: i64) {
        self.used_bytes.fetch_add(change, Relaxed);
    }

    /// Bytes in use as reported.
    pub(crate) fn used_bytes(&self) -> u64 {
        self.used_bytes.load(Relaxed).max(0) as u64
    }

    /// Claims `more` bytes of the quota for a put that is under way, so that no two share the last of it; false if it
    /// has no more. What was claimed is given up by [`State::unclaim`] once the put is counted, or has failed.
    #[inline]
    pub(crate) fn claim(&self, more: u64) -> bool {
        let Some(quota) = self.spec.quota_bytes else { return true };
        let more = i64::try_from(more).unwrap_or(i64::MAX);
        let within = |used: i64| used.checked_add(more).filter(|sum| u64::try_from(*sum).unwrap_or(0) <= quota);
        self.used_bytes.fetch_update(Relaxed, Relaxed, within).is_ok()
    }

    /// Gives up a claim.
    #[inline]
    pub(crate) fn unclaim(&self, more: u64) {
        if self.spec.quota_bytes.is_some() {
            self.used_bytes.fetch_sub(more as i64, Relaxed);
        }
    }
}

impl Collection {
    /// Its id, for ever.
    pub fn id(&self) -> CollectionId {
        self.0.id
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Its specification.
    pub fn spec(&self) -> &Spec {
        &self.0.spec
    }

    /// Its class.
    pub fn class(&self) -> Class {
        self.0.class
    }

    /// Whether it was destroyed.
    pub fn is_destroyed(&self) -> bool {
        self.0.is_destroyed()
    }

    /// Its generation as the map counts them; 0 before a map has told of it.
    pub fn generation(&self) -> u32 {
        self.0.followed_generation()
    }

    /// Whether an entry that is locked is of this generation of the map, or of one before: then what is written to it
    /// is gone with what it is of. False: it may be of a later one.
    pub fn is_still(&self, generation: u32) -> bool {
        self.0.followed.load(Relaxed) <= u64::from(generation) + 1
    }

    /// Waits for the end of a flush that is under way: from then on [`Collection::generation`] tells what it began. Who
    /// calls has no entry locked.
    pub fn wait_for_flush(&self) {
        drop(self.0.following.lock());
    }

    /// Goes over to a generation of the map that somebody else has heard of, if it is later than the one that is known:
    /// all objects of an earlier one go.
    pub fn reach(&self, generation: u32) {
        self.0.follow(generation);
    }
}

/// The collections of a node.
pub(crate) struct Registry {
    inner: RwLock<Inner>,
    generations: Arc<AtomicU64>,
}

/// The id of an object of a collection; whether that is indexed.
#[inline]
pub(crate) fn object_id(key: &HashKey, (id, is_indexed): (CollectionId, bool), name: &[u8]) -> ObjectId {
    match if is_indexed { key::index(name) } else { None } {
        Some(index) => ObjectId::at(key, id, index),
        None => ObjectId::of(key, id, name),
    }
}

/// What a collection is made with.
struct Made<'a> {
    name: &'a str,
    spec: &'a Spec,
    class: Class,
}

struct Inner {
    /// By index; a destroyed one keeps its place until another may have it.
    all: Vec<Arc<State>>,
    next_serial: u64,
    /// Indexed collections that a map has no more, the last [`INDEXED_GONE`]: what is under way of them is still known
    /// by its key.
    indexed_gone: VecDeque<CollectionId>,
    generations: Arc<AtomicU64>,
    arena: Arc<Arena>,
}

impl Registry {
    pub(crate) fn new(arena: Arc<Arena>) -> Self {
        let generations = Arc::<AtomicU64>::default();
        let inner = Inner {
            all: Vec::new(),
            next_serial: CollectionId::DEFAULT.serial(),
            indexed_gone: VecDeque::new(),
            generations: generations.clone(),
            arena,
        };
        Self { inner: RwLock::new(Rank::Registry, inner), generations }
    }

    /// Creates a collection; one of the same name and specification is found instead.
    pub(crate) fn create(&self, name: &str, spec: Spec) -> Result<Collection, Error> {
        if !key::collection_name_is_valid(name) {
            let name = quote(name.as_bytes());
            let text = format!("'{name}' can't name a collection: use 1 to 255 letters, digits, '.', '-' or '_'");
            return Err(Error::new(ErrorKind::BadRequest, text));
        }
        let mut inner = self.inner.write();
        if let Some(there) = inner.all.iter().find(|c| c.name == name && !c.is_destroyed()) {
            if there.spec == spec {
                return Ok(Collection(there.clone()));
            }
            let name = quote(name.as_bytes());
            let text = format!("collection '{name}' exists with {}: take another name, or remove it", there.spec);
            return Err(Error::new(ErrorKind::Exists, text));
        }
        let index = inner.free_index();
        if index >= COLLECTIONS_MAX {
            let text = format!("this node has {COLLECTIONS_MAX} collections, the most it can: remove one");
            return Err(Error::new(ErrorKind::Full, text));
        }
        let class = spec.check()?;
        let id = inner.next_id(class);
        Ok(Collection(inner.make(id, index, &Made { name, spec: &spec, class })))
    }

    /// Makes the collections those of a map; see [`crate::Store::adopt`].
    pub(crate) fn adopt(&self, map: &Map) -> Result<(), Error> {
        let mut inner = self.inner.write();
        let of_map = |c: &State| {
            let at = map.collections.binary_search_by_key(&c.id, |it| it.id).ok()?;
            Some(&map.collections[at]).filter(|it| it.name == c.name && it.spec == c.spec)
        };
        let (mut there, mut gone) = (BTreeSet::new(), Vec::new());
        for c in inner.all.iter().filter(|c| !c.is_destroyed()) {
            match of_map(c) {
                Some(it) => {
                    c.follow(it.generation);
                    there.insert(it.id);
                }
                None => {
                    c.destroy();
                    gone.extend(c.spec.indexed.then_some(c.id));
                }
            }
        }
        inner.indexed_gone.extend(gone);
        let over = inner.indexed_gone.len().saturating_sub(INDEXED_GONE);
        inner.indexed_gone.drain(..over);
        // By serial: whoever has one of these has all before it, or they are gone.
        let mut new: Vec<_> = map.collections.iter().filter(|it| !there.contains(&it.id)).collect();
        new.sort_by_key(|it| it.id.serial());
        for it in new {
            let index = inner.free_index();
            if index >= COLLECTIONS_KEPT_MAX {
                return Err(refusal::too_many_gone(&it.name));
            }
            let class = Class::parse(&it.spec.class).expect("a map has passed its checks");
            inner.make(it.id, index, &Made { name: &it.name, spec: &it.spec, class }).follow(it.generation);
        }
        Ok(())
    }

    pub(crate) fn by_name(&self, name: &[u8]) -> Option<Collection> {
        self.find(|c| c.name.as_bytes() == name)
    }

    pub(crate) fn by_id(&self, id: CollectionId) -> Option<Collection> {
        self.find(|c| c.id == id)
    }

    /// Whether objects of this collection lie by their indexes. One that is not known yet: no.
    pub(crate) fn is_indexed(&self, id: CollectionId) -> bool {
        let inner = self.inner.read();
        let there = inner.all.iter().find(|c| c.id == id && !c.is_destroyed());
        there.map_or_else(|| inner.indexed_gone.contains(&id), |c| c.spec.indexed)
    }

    /// Whether there was a collection of this id, or of a later one, and there is none of this any more.
    pub(crate) fn is_gone(&self, id: CollectionId) -> bool {
        let inner = self.inner.read();
        let is_there = inner.all.iter().any(|c| c.id == id && !c.is_destroyed());
        !is_there && id.serial() < inner.next_serial
    }

    fn find(&self, wanted: impl Fn(&State) -> bool) -> Option<Collection> {
        let inner = self.inner.read();
        inner.all.iter().find(|c| wanted(c) && !c.is_destroyed()).map(|c| Collection(c.clone()))
    }

    /// All that are not destroyed.
    pub(crate) fn all(&self) -> Vec<Collection> {
        let inner = self.inner.read();
        inner.all.iter().filter(|c| !c.is_destroyed()).map(|c| Collection(c.clone())).collect()
    }

    /// How many flushes and removals there were: another number, and memory may be had again.
    pub(crate) fn generations(&self) -> Generation {
        self.generations.load(Relaxed)
    }

    /// Frees up to `max` names of objects that were flushed; gives how many.
    pub(crate) fn free_names(&self, max: usize) -> usize {
        let inner = self.inner.read();
        inner.all.iter().filter_map(|c| c.names.as_ref()).fold(0, |freed, names| freed + names.free(max - freed))
    }

    /// The evicting collection furthest over its share of `memory` , which gives way first. A share is the quota, or
    /// an equal part among the evicting collections.
    pub(crate) fn victim(&self, memory_bytes: u64) -> Option<Arc<State>> {
        let inner = self.inner.read();
        let gives = |c: &&Arc<State>| c.class.evicts() && c.used_bytes() > 0 && !c.is_destroyed();
        let evicting = || inner.all.iter().filter(gives);
        let part = memory_bytes / evicting().count().max(1) as u64;
        let over = |c: &Arc<State>| {
            let share = c.spec.quota_bytes.unwrap_or(part).clamp(1, part.max(1));
            (c.used_bytes() as u128) * 1000 / u128::from(share)
        };
        evicting().max_by_key(|c| over(c)).cloned()
    }

    /// Bytes held by collections that never evict.
    pub(crate) fn pinned_bytes(&self) -> u64 {
        let inner = self.inner.read();
        inner.all.iter().filter(|c| !c.class.evicts()).map(|c| c.used_bytes()).sum()
    }
}

impl Inner {
    /// An index that nobody knows any more, or a new one.
    fn free_index(&self) -> usize {
        // With the lock to write nobody can find a collection, so one that only the registry knows stays unknown.
        let free = self.all.iter().position(|c| c.is_destroyed() && Arc::strong_count(c) == 1 && c.has_no_name());
        free.unwrap_or(self.all.len())
    }

    /// The id of the next collection that is made here. The first is `default`, whose id is in the protocol. What
    /// evicts and what does not lie in two spread groups.
    fn next_id(&self, class: Class) -> CollectionId {
        if self.next_serial == CollectionId::DEFAULT.serial() {
            return CollectionId::DEFAULT;
        }
        let is_other = self.all.first().is_some_and(|first| first.class.evicts() != class.evicts());
        CollectionId::new(u16::from(is_other), self.next_serial)
    }

    /// Makes a collection at a free index.
    fn make(&mut self, id: CollectionId, index: usize, made: &Made<'_>) -> Arc<State> {
        let state = Arc::new(State::new(id, index as u16, made, self));
        self.next_serial = self.next_serial.max(id.serial() + 1);
        match self.all.get_mut(index) {
            Some(place) => *place = state.clone(),
            None => self.all.push(state.clone()),
        }
        state
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn registry() -> Registry {
        Registry::new(Arc::new(Arena::new(1 << 20, 1, 0).expect("maps").0))
    }

    fn spec(class: &str, quota_bytes: Option<u64>) -> Spec {
        Spec { quota_bytes, ..Spec::of(class) }
    }

    #[test]
    fn the_collection_furthest_over_its_share_is_the_victim() {
        let registry = registry();
        let pinned = registry.create("pinned", spec("ram:1", None)).expect("new");
        let a = registry.create("a", spec("cache", None)).expect("new");
        let b = registry.create("b", spec("cache", Some(100))).expect("new");
        pinned.0.report_now(5000);
        assert!(registry.victim(1000).is_none(), "ram is never a victim");
        a.0.report_now(400);
        assert_eq!(registry.victim(1000).map(|c| c.index), Some(a.0.index));
        b.0.report_now(90);
        assert_eq!(registry.victim(1000).map(|c| c.index), Some(b.0.index), "90 of 100 against 400 of 500");
        assert_eq!(registry.pinned_bytes(), 5000);
    }

    #[test]
    fn creating_again_finds_and_another_specification_is_refused() {
        let registry = registry();
        let one = registry.create("c", spec("cache", None)).expect("new");
        assert_eq!(registry.create("c", spec("cache", None)).expect("found").id(), one.id());
        assert_eq!(registry.create("c", spec("ram:1", None)).err().map(|e| e.kind), Some(ErrorKind::Exists));
        assert_eq!(registry.create("../x", spec("cache", None)).err().map(|e| e.kind), Some(ErrorKind::BadRequest));
        one.0.destroy();
        assert!(registry.by_name(b"c").is_none());
        let two = registry.create("c", spec("ram:1", None)).expect("new");
        assert_ne!((two.id(), two.0.index), (one.id(), one.0.index), "the old one is known");
        two.0.destroy();
        let (old, index) = (two.id(), two.0.index);
        drop(two);
        let three = registry.create("c", spec("ram:1", None)).expect("new");
        assert_ne!(three.id(), old, "ids are never reused");
        assert_eq!(three.0.index, index, "nobody knows the one that had it");
    }

    #[test]
    fn a_quota_is_claimed_by_one_only() {
        let registry = registry();
        let c = registry.create("c", spec("ram:1", Some(100))).expect("new");
        assert!(c.0.claim(60));
        assert!(!c.0.claim(60), "the rest is too little");
        c.0.unclaim(60);
        assert!(c.0.claim(100));
        assert!(!c.0.claim(u64::MAX));
    }
}
