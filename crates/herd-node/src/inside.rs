//! A node of one loop without a thread, for simulations and fuzzing: its service, and a look at what no client may see.

use crate::context::Shared;
use crate::link::Hub;
use crate::service::NodeService;
use crate::{Config, Environment, shared};
use herd_core::Error;
use herd_core::entry::{Fence, Version};
use herd_core::limits::{BLOCK_BYTES, SLOTS};
use herd_core::place::{GroupId, Life, Map, Seat};
use herd_core::replica::GroupEpoch;
use herd_net::Service;
use herd_store::{Now, SlotCursor, SlotItem, Upload};
use std::io;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};

/// A look into a node that somebody else drives.
pub struct Inside {
    shared: Arc<Shared>,
    /// What keeps memory from its clients.
    taken: Mutex<Vec<Upload>>,
    /// Which of the slots that were asked for last it has by its lease, and how many maps it had taken then.
    leased: Mutex<(u64, Vec<usize>)>,
}

/// What a node has of an object, whether it decides on it or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Copy {
    /// Its name.
    pub name: Box<[u8]>,
    /// Version that is committed; 0: none.
    pub version: u64,
    /// The value of that.
    pub value: Vec<u8>,
    /// The token of a lock that it remembers, or that is remembered where it would be.
    pub token: Option<Fence>,
    /// Version of the write that is pending, if there is one.
    pub pending: Option<u64>,
}

/// What a node holds that is given back when its clients have gone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unsettled {
    /// Requests that wait for an object to change.
    pub waiting: usize,
    /// Bytes promised to bodies that are on their way in.
    pub promised_bytes: u64,
    /// Bytes in buffers of connections, and of waits.
    pub held_bytes: u64,
}

impl Inside {
    /// The state of a node and the service of its one loop. Errors: as of [`Node::start`](crate::Node::start).
    pub fn new(config: Config, environment: &Environment) -> io::Result<(Self, impl Service + use<>)> {
        Self::start(config, environment, None)
    }

    /// The same of a node that has links to the others of its herd, by the maps that the hub is given.
    pub fn linked(
        config: Config,
        environment: &Environment,
        hub: Arc<Hub>,
    ) -> io::Result<(Self, impl Service + use<>)> {
        Self::start(config, environment, Some(hub))
    }

    fn start(config: Config, environment: &Environment, hub: Option<Arc<Hub>>) -> io::Result<(Self, NodeService)> {
        let shared = Arc::new(shared(Config { threads: 1, ..config }, environment)?);
        hub.into_iter().for_each(|hub| shared.link_by(hub));
        shared.gates.note_acts();
        let service = NodeService::new(shared.clone(), 0);
        Ok((Self { shared, taken: Mutex::default(), leased: Mutex::default() }, service))
    }

    /// The slot of a name in collection `default`.
    pub fn slot(&self, name: &[u8]) -> usize {
        self.shared.store.key(&self.shared.default, name).slot()
    }

    /// Of these slots of collection `default`, which are the same each time, if that is of class `cache`, those for
    /// whose objects it answers now.
    pub fn answers_for(&self, slots: &[usize]) -> Vec<usize> {
        // While the herd holds nothing there is nothing to answer, and nothing is put.
        let place = self.shared.place.get().filter(|place| place.map().is_some_and(|(_, held)| held));
        let Some(place) = place.filter(|_| self.shared.gates.has_cache_lease()) else { return Vec::new() };
        let mut leased = self.leased.lock().unwrap_or_else(PoisonError::into_inner);
        // Seats are set where that number rises, and nowhere else; no map fails in a simulation.
        if leased.0 != place.maps() {
            let (store, spread) = (&self.shared.store, self.shared.default.id().spread_group());
            let is_leased = |slot: &usize| store.slot(spread, *slot).seat == Seat::Leased;
            *leased = (place.maps(), slots.iter().copied().filter(is_leased).collect());
        }
        leased.1.clone()
    }

    /// Bytes of the budget, and of it in use.
    pub fn memory(&self) -> (u64, u64) {
        self.shared.store.memory()
    }

    /// Leaves its clients so many bytes of what is free now; `None`: all of it again.
    pub fn leave_memory(&self, bytes: Option<u64>) {
        let (budget, used) = self.memory();
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.clear();
        let most = bytes.map_or(0, |bytes| (budget - used).saturating_sub(bytes));
        // Values that never come.
        let admit = |_| self.shared.store.admit_passing(&self.shared.default, b"taken", Some(BLOCK_BYTES as u64)).ok();
        taken.extend((0..most / BLOCK_BYTES as u64).map_while(admit));
    }

    /// Writes of other nodes that found no room here, and retries that were answered from the window.
    pub fn happened(&self) -> (u64, u64) {
        let metrics = &self.shared.metrics[0];
        (metrics.refused_copies.load(Relaxed), metrics.answered_again.load(Relaxed))
    }

    /// In which epochs of which groups it acted as the primary since the last time.
    pub fn acts(&self) -> impl IntoIterator<Item = (GroupId, GroupEpoch)> + use<> {
        self.shared.gates.take_acts()
    }

    /// What is not settled now.
    pub fn unsettled(&self) -> Unsettled {
        let (promised_bytes, held_bytes) = self.shared.store.unsettled();
        Unsettled { waiting: self.shared.watch.waiting(), promised_bytes, held_bytes }
    }

    /// What it has of collection `default`, by slot and name; and where something is remembered.
    pub fn copies(&self) -> Vec<Copy> {
        let (store, now, mut items) =
            (&self.shared.store, Now { unix_ms: self.shared.start_unix_ms, ..Now::default() }, Vec::new());
        for slot in 0..SLOTS {
            let mut cursor = SlotCursor::new(self.shared.default.id().spread_group(), slot);
            while !cursor.is_at_end() {
                store.slot_turn(&mut cursor, &mut items, usize::MAX, now);
            }
        }
        items.dedup_by(|a, b| a.key == b.key);
        let copy = |item: SlotItem| {
            let (name, mut value) = (item.key.name, Vec::new());
            let entry = store.entry(&self.shared.default, &name, now);
            let found = entry.found_committed().inspect(|found| {
                found.value.copy(0, found.head.size_bytes, &mut value);
            });
            let (version, fence) = found.map_or((0, None), |found| (found.head.version, found.fence));
            let (token, pending) = (fence.or(entry.left()), entry.pending().map(|pending| pending.version));
            drop(entry);
            Copy { name: (&*name).into(), version, value, token, pending }
        };
        items.into_iter().map(copy).collect()
    }

    /// What it has pending of collection `default`: names and versions.
    pub fn pendings(&self) -> Vec<(Arc<[u8]>, Version)> {
        let (spread, now) = (self.shared.default.id().spread_group(), Now::default());
        let pendings = self.shared.store.pendings(spread, |_| true, now).into_iter();
        pendings.map(|(key, pending)| (key.name, pending.version)).collect()
    }

    /// Objects that were evicted so far, of collection `default`.
    pub fn evictions(&self) -> u64 {
        self.shared.store.counts(&self.shared.default).evictions
    }

    /// Goes over to a map of the herd in which this node is `me`, if it is later than the one it has; gives whether it
    /// did. While the herd may hold no objects who brings one waits, and somebody else has to ask the warden for leave.
    /// Errors: as of [`Place::take`](crate::place::Place::take), and `NotAllowed` where the herd's collection
    /// `default` is not the node's.
    pub fn take_map(&self, me: Life, map: &Arc<Map>, held: bool) -> Result<bool, Error> {
        let is_taken = self.shared.take_map(me, map, held)?;
        if is_taken {
            self.shared.held.store(held, Relaxed);
        }
        Ok(is_taken)
    }

    /// Has requests that wait be answered, and no new ones wait: the node stops.
    pub fn stop(&self) {
        self.shared.stopping.store(true, Relaxed);
    }
}
