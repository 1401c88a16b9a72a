//! Who waits for which object: the only notification of the core.
//!
//! A put looks at one counter; only if somebody waits does it look further. Waiters are told that something changed
//! and look for themselves.
//!
//! A wait is a [`Watched`], which gives up its place, its time and its memory when it is dropped. What waits hold
//! counts in the memory budget, and is at most one part in [`WAITS_SHARE`] of it. Whoever waits takes its place while
//! the object is locked, so that no change comes between its look and its place: this table's lock comes after a
//! shard's.

use herd_core::bugs::{Bug, has};
use herd_core::key::CollectionId;
use herd_core::limits::{WAIT_BYTES, WAITS_SHARE};
use herd_core::{Error, ErrorKind};
use herd_net::Ticket;
use herd_store::{Collection, Store};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The waiters of a node.
pub(crate) struct Watch {
    store: Arc<Store>,
    /// How many wait.
    waiting: AtomicUsize,
    /// Bytes their waits are charged.
    held_bytes: AtomicU64,
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    objects: HashMap<CollectionId, HashMap<Box<[u8]>, Places>>,
    /// By loop: who is resumed when, ms since 1970.
    timers: BTreeMap<usize, BTreeSet<(u64, Ticket)>>,
    /// Collections that will be emptied, and when.
    flushes: BTreeMap<CollectionId, u64>,
}

/// Who waits for one object.
#[derive(Default)]
struct Places {
    /// Those who have not been told of a change since they looked.
    armed: BTreeSet<Waiter>,
    /// How many wait, those who were told and have not looked yet included.
    waits: usize,
}

impl Places {
    /// Those who are to be told. Each is told once until it has looked, however often the object changes.
    fn tell(&mut self) -> impl Iterator<Item = Waiter> + use<> {
        std::mem::take(&mut self.armed).into_iter()
    }
}

/// A connection that waits: its loop and the ticket of its reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Waiter {
    pub(crate) loop_number: usize,
    pub(crate) ticket: Ticket,
}

/// Memory for one wait, charged to the budget until it is dropped.
pub(crate) struct Seat {
    watch: Arc<Watch>,
    bytes: u64,
}

/// A place in the table.
pub(crate) struct Watched {
    seat: Seat,
    collection: Collection,
    name: Box<[u8]>,
    waiter: Waiter,
    /// When it is resumed at the latest, ms since 1970.
    at_ms: u64,
}

impl Watch {
    pub(crate) fn new(store: Arc<Store>) -> Arc<Self> {
        let (waiting, held_bytes) = Default::default();
        Arc::new(Self { store, waiting, held_bytes, table: Mutex::default() })
    }

    /// Memory for a wait for an object with that name. Error: `Busy` where waits hold all they may.
    pub(crate) fn admit(self: &Arc<Self>, name: &[u8]) -> Result<Seat, Error> {
        // The name is in the table and with the wait.
        let bytes = WAIT_BYTES + 2 * name.len() as u64;
        let most = self.store.memory().0 / WAITS_SHARE;
        let more = |held: u64| (held + bytes <= most).then_some(held + bytes);
        let taken = self.held_bytes.fetch_update(SeqCst, SeqCst, more).is_ok();
        if taken && self.store.hold(bytes as i64) {
            return Ok(Seat { watch: self.clone(), bytes });
        }
        if taken {
            self.held_bytes.fetch_sub(bytes, SeqCst);
        }
        Err(Error::new(ErrorKind::Busy, "too many requests wait for objects to change: ask again later"))
    }

    /// Who waits for an object that changed.
    #[inline]
    pub(crate) fn waiters(&self, collection: CollectionId, name: &[u8]) -> Vec<Waiter> {
        if self.waiting.load(SeqCst) == 0 || has(Bug::UntoldWaiter) {
            return Vec::new();
        }
        let mut table = self.lock();
        let there = table.objects.get_mut(&collection).and_then(|names| names.get_mut(name));
        there.map_or_else(Vec::new, |places| places.tell().collect())
    }

    /// Who waits for any object of a collection.
    pub(crate) fn waiters_of_all(&self, collection: CollectionId) -> Vec<Waiter> {
        let mut table = self.lock();
        table.objects.get_mut(&collection).into_iter().flat_map(HashMap::values_mut).flat_map(Places::tell).collect()
    }

    /// Who waits for any object.
    pub(crate) fn everybody(&self) -> Vec<Waiter> {
        let mut table = self.lock();
        table.objects.values_mut().flat_map(HashMap::values_mut).flat_map(Places::tell).collect()
    }

    /// A collection will be emptied at `at_ms`, and at no other time; `None`: it was emptied.
    pub(crate) fn flush_at(&self, collection: CollectionId, at_ms: Option<u64>) {
        let flushes = &mut self.lock().flushes;
        match at_ms {
            Some(at_ms) => flushes.insert(collection, at_ms),
            None => flushes.remove(&collection),
        };
    }

    /// Collections that were emptied since, by their time.
    pub(crate) fn flushed(&self, now_ms: u64) -> Vec<CollectionId> {
        let mut table = self.lock();
        let due = table.flushes.iter().filter(|(_, at_ms)| **at_ms <= now_ms).map(|(id, _)| *id).collect();
        table.flushes.retain(|_, at_ms| *at_ms > now_ms);
        due
    }

    /// Those of a loop whose time has come.
    pub(crate) fn due(&self, loop_number: usize, now_ms: u64, due: &mut Vec<Ticket>) {
        if self.waiting.load(SeqCst) == 0 {
            return;
        }
        let mut table = self.lock();
        let Some(timers) = table.timers.get_mut(&loop_number) else {
            return;
        };
        while let Some((_, ticket)) = timers.first().copied().filter(|(at_ms, _)| *at_ms <= now_ms) {
            timers.pop_first();
            due.push(ticket);
        }
    }

    /// How many wait; asserts that its tables agree.
    pub(crate) fn waiting(&self) -> usize {
        let table = self.lock();
        let timers: usize = table.timers.values().map(BTreeSet::len).sum();
        let waiters: usize = table.objects.values().flat_map(HashMap::values).map(|places| places.waits).sum();
        assert!(timers <= waiters, "each has at most one time");
        assert_eq!(waiters, self.waiting.load(SeqCst));
        assert_eq!(waiters == 0, self.held_bytes.load(SeqCst) == 0);
        waiters
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seat {
    /// Waits for the object, which the caller has locked and looked at, until `at_ms` at the latest.
    pub(crate) fn watch(self, collection: &Collection, name: &[u8], waiter: Waiter, at_ms: u64) -> Watched {
        let mut table = self.watch.lock();
        let names = table.objects.entry(collection.id()).or_default();
        let places = names.entry(name.into()).or_default();
        places.armed.insert(waiter);
        places.waits += 1;
        table.timers.entry(waiter.loop_number).or_default().insert((at_ms, waiter.ticket));
        self.watch.waiting.fetch_add(1, SeqCst);
        drop(table);
        Watched { seat: self, collection: collection.clone(), name: name.into(), waiter, at_ms }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.watch.store.hold(-(self.bytes as i64));
        self.watch.held_bytes.fetch_sub(self.bytes, SeqCst);
    }
}

impl Watched {
    pub(crate) fn collection(&self) -> &Collection {
        &self.collection
    }

    pub(crate) fn name(&self) -> &[u8] {
        &self.name
    }

    /// It is about to look, and wants to be told of what changes from now on.
    pub(crate) fn arm(&self) {
        if has(Bug::ToldOnce) {
            return;
        }
        let mut table = self.seat.watch.lock();
        let names = table.objects.get_mut(&self.collection.id()).expect("it has its place until it is dropped");
        names.get_mut(&self.name).expect("as above").armed.insert(self.waiter);
    }

    /// Changes when it is resumed at the latest.
    pub(crate) fn set_time(&mut self, at_ms: u64) {
        let mut table = self.seat.watch.lock();
        let timers = table.timers.entry(self.waiter.loop_number).or_default();
        timers.remove(&(self.at_ms, self.waiter.ticket));
        timers.insert((at_ms, self.waiter.ticket));
        self.at_ms = at_ms;
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        if has(Bug::ForgottenUnwatch) {
            return;
        }
        let mut table = self.seat.watch.lock();
        if let Some(timers) = table.timers.get_mut(&self.waiter.loop_number) {
            timers.remove(&(self.at_ms, self.waiter.ticket));
        }
        let names = table.objects.get_mut(&self.collection.id()).expect("it has its place until now");
        let places = names.get_mut(&self.name).expect("as above");
        places.armed.remove(&self.waiter);
        places.waits -= 1;
        if places.waits == 0 {
            names.remove(&self.name);
        }
        if names.is_empty() {
            table.objects.remove(&self.collection.id());
        }
        self.seat.watch.waiting.fetch_sub(1, SeqCst);
    }
}
