//! The nodes of a simulated herd: real services with their links, each in one of its lives.

use herd_core::collection::Spec;
use herd_core::key::CollectionId;
use herd_core::limits::TICK_MS;
use herd_core::place::{Collection, Draft, GroupId, Grows, HerdId, Kind, Life, Map, Node, NodeId, NodeState};
use herd_core::replica::{GroupEpoch, Want};
use herd_core::wire::{LinkError, MapMark, Secret};
use herd_net::{Engine, LoopStats, Pipes, Service, System};
use herd_node::{Came, Config, Environment, Hub, Inside, Leases, Membership, Owner};
use std::io;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex};

/// The date at which each run begins, ms since 1970: before versions count from, so that they go by the map's epochs,
/// as they do where the map outlives its nodes.
const START_MS: u64 = 1_700_000_000_000;
const HERD: HerdId = HerdId([7; 16]);

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
}

impl Owner for Told {
    fn map_came(&self, came: Came) {
        self.came.lock().expect("no panic").push(came);
    }

    fn has_map(&self, _node: NodeId, _incarnation: u64, _mark: MapMark) {}

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
    pub(super) map: Option<Arc<Map>>,
    pub(super) me: Life,
    ticked_ms: u64,
    /// It looked at the clock and did nothing yet.
    pub(super) began: bool,
}

impl<S: Service> Machine<S> {
    /// Starts the node at that place, in that life.
    pub(super) fn start(make: Make<S>, at: usize, incarnation: u64, memory_bytes: u64, pipes: Pipes) -> Self {
        let told = Arc::new(Told::default());
        let mut random = [at as u8; 16];
        random[8..].copy_from_slice(&incarnation.to_le_bytes());
        let secret = Secret(*b"sixteen bytes ..");
        let me = Membership { herd: HERD, node: node(at), incarnation, secret, random };
        let leases = Leases::new(Arc::new(pipes.clock()));
        let hub = Hub::new(me, told.clone(), leases.clone());
        let config = Config { memory_bytes, threads: 1, name: format!("n{}", at + 1), ..Config::default() };
        // The hash of names is the herd's.
        let environment = Environment { unix_ms: START_MS, random: [7; 16] };
        let (inside, service) = make(config, &environment, hub.clone()).expect("a node's state");
        let engine = Engine::new(service, pipes.clone(), Arc::new(LoopStats::default()));
        let (me, ticked_ms) = (Life { node: node(at), incarnation }, pipes.now_ns() / 1_000_000);
        Self { engine, pipes, inside, hub, leases, told, map: None, me, ticked_ms, began: false }
    }

    /// Takes a map, if it is later than the one it has.
    pub(super) fn take(&mut self, map: &Arc<Map>) -> bool {
        let taken = self.inside.take_map(self.me, map, true).expect("a map of this herd");
        if taken {
            self.map = Some(map.clone());
            self.hub.adopt(map.clone(), true);
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
                self.take(&Arc::new(map));
            }
        }
    }

    /// What it asked of the warden since the last time.
    pub(super) fn take_wants(&self) -> Vec<(GroupId, GroupEpoch, Want)> {
        std::mem::take(&mut *self.told.wants.lock().expect("no panic"))
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
