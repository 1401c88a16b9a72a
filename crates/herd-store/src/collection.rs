//! Collections of one node: what each promises, what it holds, and the registry that finds them by name or id.

use herd_core::collection::{Class, Spec};
use herd_core::key::{self, CollectionId};
use herd_core::limits::COLLECTIONS_MAX;
use herd_core::{Error, ErrorKind, quote};
use std::collections::BTreeSet;
use std::ops::AddAssign;
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

/// A collection; cheap to clone, valid after it was destroyed (then empty, and refusing).
#[derive(Clone)]
pub struct Collection(pub(crate) Arc<State>);

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
    generation: AtomicU32,
    /// The last generation of any collection, so that no two share one.
    generations: Arc<AtomicU32>,
    /// When to begin the next generation, ms since 1970; 0: never.
    flush_at_ms: AtomicU64,
    /// Set once, when it is destroyed.
    destroyed: AtomicU32,
    /// Large values refused before or while they came, so by no shard.
    pub(crate) refused: AtomicU64,
    /// Names in order, if listings are sorted.
    ordered: Option<Mutex<BTreeSet<Box<[u8]>>>>,
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

    fn new(id: CollectionId, index: u16, name: &str, spec: Spec, generations: Arc<AtomicU32>) -> Result<Self, Error> {
        Ok(Self {
            id,
            index,
            name: name.to_string(),
            class: spec.class()?,
            used_bytes: AtomicI64::new(0),
            generation: AtomicU32::new(generations.fetch_add(1, Relaxed) + 1),
            generations,
            flush_at_ms: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            destroyed: AtomicU32::new(0),
            ordered: spec.ordered.then(Mutex::default),
            spec,
        })
    }

    /// The generation at `now_ms`; begins a new one if a flush is due.
    #[inline]
    pub(crate) fn generation(&self, now_ms: u64) -> u32 {
        let due = self.flush_at_ms.load(Relaxed);
        if due != 0 && due <= now_ms && self.flush_at_ms.compare_exchange(due, 0, Relaxed, Relaxed).is_ok() {
            self.begin_generation();
        }
        self.generation.load(Relaxed)
    }

    pub(crate) fn begin_generation(&self) {
        self.generation.store(self.generations.fetch_add(1, Relaxed) + 1, Relaxed);
        if let Some(mut names) = self.names() {
            names.clear();
        }
    }

    pub(crate) fn flush_at(&self, at_ms: u64) {
        self.flush_at_ms.store(at_ms, Relaxed);
    }

    pub(crate) fn destroy(&self) {
        self.destroyed.store(1, Relaxed);
        self.begin_generation();
    }

    pub(crate) fn is_destroyed(&self) -> bool {
        self.destroyed.load(Relaxed) != 0
    }

    /// The names in order, if it keeps them.
    pub(crate) fn names(&self) -> Option<MutexGuard<'_, BTreeSet<Box<[u8]>>>> {
        self.ordered.as_ref().map(|names| names.lock().unwrap_or_else(PoisonError::into_inner))
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

    /// Whether `more` bytes would pass the quota.
    #[inline]
    pub(crate) fn over_quota(&self, more: u64) -> bool {
        self.spec.quota_bytes.is_some_and(|quota| self.used_bytes() + more > quota)
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
}

/// The collections of a node.
pub(crate) struct Registry {
    inner: RwLock<Inner>,
}

struct Inner {
    /// By index; a destroyed collection's place stays until its last page is gone.
    all: Vec<Option<Arc<State>>>,
    next_id: u64,
    generations: Arc<AtomicU32>,
}

impl Registry {
    pub(crate) fn new() -> Self {
        Self {
            inner: RwLock::new(Inner {
                all: Vec::new(),
                next_id: CollectionId::DEFAULT.0,
                generations: Arc::default(),
            }),
        }
    }

    /// Creates a collection; one of the same name and specification is found instead.
    pub(crate) fn create(&self, name: &str, spec: Spec) -> Result<Collection, Error> {
        if !key::collection_name_is_valid(name) {
            let name = quote(name.as_bytes());
            let text = format!("'{name}' can't name a collection: use 1 to 255 letters, digits, '.', '-' or '_'");
            return Err(Error::new(ErrorKind::BadRequest, text));
        }
        let mut inner = self.inner.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(there) = inner.all.iter().flatten().find(|c| c.name == name && !c.is_destroyed()) {
            if there.spec == spec {
                return Ok(Collection(there.clone()));
            }
            let text = format!("collection '{}' exists with another specification", quote(name.as_bytes()));
            return Err(Error::new(ErrorKind::Exists, text));
        }
        let free = inner.all.iter().position(Option::is_none).unwrap_or(inner.all.len());
        if free >= COLLECTIONS_MAX {
            let text = format!("this node has {COLLECTIONS_MAX} collections, the most it can: remove one");
            return Err(Error::new(ErrorKind::Full, text));
        }
        let state =
            Arc::new(State::new(CollectionId(inner.next_id), free as u16, name, spec, inner.generations.clone())?);
        inner.next_id += 1;
        if free == inner.all.len() {
            inner.all.push(None);
        }
        inner.all[free] = Some(state.clone());
        Ok(Collection(state))
    }

    pub(crate) fn by_name(&self, name: &[u8]) -> Option<Collection> {
        self.find(|c| c.name.as_bytes() == name)
    }

    pub(crate) fn by_id(&self, id: CollectionId) -> Option<Collection> {
        self.find(|c| c.id == id)
    }

    fn find(&self, mut wanted: impl FnMut(&State) -> bool) -> Option<Collection> {
        let inner = self.inner.read().unwrap_or_else(PoisonError::into_inner);
        let found = inner.all.iter().flatten().find(|c| wanted(c) && !c.is_destroyed());
        found.map(|c| Collection(c.clone()))
    }

    /// All that are not destroyed.
    pub(crate) fn all(&self) -> Vec<Collection> {
        let inner = self.inner.read().unwrap_or_else(PoisonError::into_inner);
        inner.all.iter().flatten().filter(|c| !c.is_destroyed()).map(|c| Collection(c.clone())).collect()
    }

    /// All, destroyed ones whose memory is still being given back included.
    pub(crate) fn everything(&self) -> Vec<Arc<State>> {
        let inner = self.inner.read().unwrap_or_else(PoisonError::into_inner);
        inner.all.iter().flatten().cloned().collect()
    }

    /// Frees the places of destroyed collections that no shard holds pages of any more.
    pub(crate) fn forget(&self, is_empty: impl Fn(&State) -> bool) {
        let mut inner = self.inner.write().unwrap_or_else(PoisonError::into_inner);
        for place in &mut inner.all {
            if place.as_ref().is_some_and(|c| c.is_destroyed() && is_empty(c)) {
                *place = None;
            }
        }
    }

    /// The evicting collection furthest over its share of `memory` (DESIGN: it gives way first). A share is the
    /// quota, or an equal part among the evicting collections.
    pub(crate) fn victim(&self, memory_bytes: u64) -> Option<Arc<State>> {
        let inner = self.inner.read().unwrap_or_else(PoisonError::into_inner);
        let evicting = || inner.all.iter().flatten().filter(|c| c.class.evicts() && c.used_bytes() > 0);
        let part = memory_bytes / evicting().count().max(1) as u64;
        let over = |c: &Arc<State>| {
            let share = c.spec.quota_bytes.unwrap_or(part).clamp(1, part.max(1));
            (c.used_bytes() as u128) * 1000 / u128::from(share)
        };
        evicting().max_by_key(|c| over(c)).cloned()
    }

    /// Bytes held by collections that never evict.
    pub(crate) fn pinned_bytes(&self) -> u64 {
        let inner = self.inner.read().unwrap_or_else(PoisonError::into_inner);
        inner.all.iter().flatten().filter(|c| !c.class.evicts()).map(|c| c.used_bytes()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(class: &str, quota_bytes: Option<u64>) -> Spec {
        Spec { class: class.into(), ordered: false, quota_bytes }
    }

    #[test]
    fn the_collection_furthest_over_its_share_is_the_victim() {
        let registry = Registry::new();
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
        let registry = Registry::new();
        let one = registry.create("c", spec("cache", None)).expect("new");
        assert_eq!(registry.create("c", spec("cache", None)).expect("found").id(), one.id());
        assert_eq!(registry.create("c", spec("ram:1", None)).err().map(|e| e.kind), Some(ErrorKind::Exists));
        assert_eq!(registry.create("../x", spec("cache", None)).err().map(|e| e.kind), Some(ErrorKind::BadRequest));
        one.0.destroy();
        registry.forget(|_| true);
        assert!(registry.by_name(b"c").is_none());
        assert_ne!(registry.create("c", spec("ram:1", None)).expect("new").id(), one.id(), "ids are never reused");
    }
}
