//! The nodes of a simulated herd: real services with their links, each in one of its lives.

use herd_core::collection::Spec;
use herd_core::key::CollectionId;
use herd_core::limits::TICK_MS;
use herd_core::place::{Collection, Draft, GroupId, Grows, HerdId, Kind, Life, Map, Node, NodeId, NodeState};
use herd_core::replica::{GroupEpoch, Want};
use herd_core::wire::{LinkError, MapMark, Secret};
use herd_net::{Engine, LoopStats, Pipes, Service, System};
use herd_node::{Came, Config, Environment, Hub, Inside, Leases, Membership, Owner};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex};

/// The date at which each run begins, ms since 1970: before versions count from, so that they go by the map's epochs,
/// as they do where the map outlives its nodes.
const START_MS: u64 = 1_700_000_000_000;
pub(super) const HERD: HerdId = HerdId([7; 16]);

/// How a node is made.
pub(super) type Make<S> = fn(Config, &Environment, Arc<Hub>) -> io::Result<(Inside, S)>;

/// The number of the node at that place among the machines.
pub(super) fn node(at: usize) -> NodeId {
    NodeId(NonZeroU32::new(at as u32 + 1).expect("from 1"))
}

/// The herd's first map: so many nodes that keep one copy of each object.
pub(super) fn first_map(nodes: usize, copies: u8) -> Map {
    let member = |at: usize| Node {
        id: node(at),
        name: format!("n{}", at + 1),
        addresses: vec![format!("127.0.0.1:{}", 7001 + at)],
        incarnation: 1,
        host: format!("h{}", at + 1),
        rack: String::new(),
        memory_bytes: 1 << 30,
        state: NodeState::Up,
        protocol: 1,
    };
    let mut draft = Draft { nodes: (0..nodes).map(member).collect(), term: 1, ..Draft::empty(HERD) };
    draft.add_spread(Kind::Kept, copies, Grows::No).expect("there is room");
    let spec = Config { threads: 1, ..Config::default() };
    let class = if spec.evict { "cache" } else { "ram:1" };
    draft.collections.push(Collection {
        id: CollectionId::DEFAULT,
        name: "default".into(),
        spec: Spec::of(class),
        generation: 1,
    });
    Map::first(draft, 1).expect("a valid map")
}

/// What a node's links told of maps.
#[derive(Default)]
pub(super) struct Told {
    came: Mutex<Vec<Came>>,
    wants: Mutex<Vec<(GroupId, GroupEpoch, Want)>>,
    haves: Mutex<BTreeMap<NodeId, Have>>,
}

/// A life of a node, and epoch and revision of the map that it has.
pub(super) type Have = (u64, u32, u64);

impl Owner for Told {
    fn map_came(&self, came: Came) {
        self.came.lock().expect("no panic").push(came);
    }

    fn has_map(&self, node: NodeId, incarnation: u64, mark: MapMark) {
        self.haves.lock().expect("no panic").insert(node, (incarnation, mark.epoch, mark.revision));
    }

    fn refused(&self, _node: NodeId, _error: &LinkError) {}

    fn wants(&self, group: GroupId, epoch: GroupEpoch, want: Want) {
        self.wants.lock().expect("no panic").push((group, epoch, want));
    }
}

/// A node that runs.
pub(super) struct Machine<S: Service> {
    pub(super) engine: Engine<S, Pipes>,
    pub(super) pipes: Pipes,
    pub(super) inside: Inside,
    hub: Arc<Hub>,
    /// What it is granted, and what it grants while the warden is there.
    pub(super) leases: Arc<Leases>,
    told: Arc<Told>,
    /// What it wants of the warden, until a map says something of these groups.
    wanted: BTreeMap<GroupId, (GroupEpoch, Want)>,
    /// It gives maps to others over its links.
    pub(super) pushes: bool,
    pub(super) map: Option<Arc<Map>>,
    pub(super) me: Life,
    ticked_ms: u64,
    /// It looked at the clock and did nothing yet.
    pub(super) began: bool,
}

impl<S: Service> Machine<S> {
    /// Starts the node at that place, in that life.
    pub(super) fn start(
        make: Make<S>,
        (at, incarnation): (usize, u64),
        (memory_bytes, evict): (u64, bool),
        pipes: Pipes,
        leases: Arc<Leases>,
    ) -> Self {
        let told = Arc::new(Told::default());
        let mut random = [at as u8; 16];
        random[8..].copy_from_slice(&incarnation.to_le_bytes());
        let secret = Secret(*b"sixteen bytes ..");
        let me = Membership { herd: HERD, node: node(at), incarnation, secret, random };
        let hub = Hub::new(me, told.clone(), leases.clone());
        let config = Config { memory_bytes, evict, threads: 1, name: format!("n{}", at + 1), ..Config::default() };
        // The hash of names is the herd's.
        let environment = Environment { unix_ms: START_MS, random: [7; 16] };
        let (inside, service) = make(config, &environment, hub.clone()).expect("a node's state");
        let engine = Engine::new(service, pipes.clone(), Arc::new(LoopStats::default()));
        let (me, ticked_ms) = (Life { node: node(at), incarnation }, pipes.now_ns() / 1_000_000);
        let (wanted, pushes) = <_>::default();
        Self { engine, pipes, inside, hub, leases, told, wanted, pushes, map: None, me, ticked_ms, began: false }
    }

    /// Takes a map, if it is later than the one it has.
    pub(super) fn take(&mut self, map: &Arc<Map>, held: bool) -> bool {
        let taken = self.inside.take_map(self.me, map, held).expect("a map of this herd");
        if taken {
            let before = self.map.replace(map.clone()).map_or(0, |before| before.epoch);
            assert!(map.epoch >= before, "epoch {} at {:?}, which had {before}", map.epoch, self.me);
            let give = if self.pushes { Hub::push } else { Hub::adopt };
            give(&self.hub, map.clone(), held);
        }
        taken
    }

    /// Takes the maps that came over its links.
    pub(super) fn take_what_came(&mut self) {
        let came = std::mem::take(&mut *self.told.came.lock().expect("no panic"));
        for came in came {
            let map = match &self.map {
                Some(map) => came.sent.map(&came.bytes, map),
                None => Map::decode(&came.bytes),
            };
            if let Ok(map) = map {
                self.take(&Arc::new(map), came.sent.mark.held);
            }
        }
    }

    /// What it asked of the warden since the last time.
    pub(super) fn take_wants(&self) -> Vec<(GroupId, GroupEpoch, Want)> {
        std::mem::take(&mut *self.told.wants.lock().expect("no panic"))
    }

    /// What it wants of the warden still.
    pub(super) fn wanted(&mut self) -> Vec<(GroupId, GroupEpoch, Want)> {
        let wants = self.take_wants();
        self.wanted.extend(wants.into_iter().map(|(group, epoch, want)| (group, (epoch, want))));
        let map = self.map.as_ref();
        let is_open = |id: &GroupId, epoch| map.and_then(|map| map.group(*id)).is_some_and(|it| it.epoch <= epoch);
        self.wanted.retain(|id, (epoch, _)| is_open(id, *epoch));
        self.wanted.iter().map(|(id, (epoch, want))| (*id, *epoch, *want)).collect()
    }

    /// The same as it was told last.
    pub(super) fn still_wanted(&self) -> &BTreeMap<GroupId, (GroupEpoch, Want)> {
        &self.wanted
    }

    /// The maps that nodes told of, and this one: all of them each time, as a real node's member does, since a warden
    /// forgets what it hears while it is not in office.
    pub(super) fn haves(&self) -> BTreeMap<NodeId, Have> {
        let mut haves = self.told.haves.lock().expect("no panic").clone();
        let own = self.map.as_ref().map(|map| (self.me.node, (self.me.incarnation, map.epoch, map.revision)));
        haves.extend(own);
        haves
    }

    /// The nodes to which it has links, and itself.
    pub(super) fn links(&self) -> BTreeSet<NodeId> {
        self.hub.links().into_keys().chain([self.me.node]).collect()
    }

    /// Looks at the clock, and ticks when it is time.
    pub(super) fn begin(&mut self) {
        self.engine.begin();
        let now_ms = self.pipes.now_ns() / 1_000_000;
        if now_ms >= self.ticked_ms + TICK_MS {
            self.ticked_ms = now_ms;
            self.engine.tick();
        }
        self.began = true;
    }

    /// Does what there is to do; [`Machine::begin`] comes before, and what its sockets have.
    pub(super) fn work(&mut self) {
        self.engine.rounds();
        self.engine.turns();
        self.engine.alarm();
        self.began = false;
    }
}
