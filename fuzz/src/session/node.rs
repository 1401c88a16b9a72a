//! The node under test: its loop, sessions and store as they are, over pretended sockets and in virtual time.

use crate::session::OBJECT_MAX_BYTES;
use herd_core::limits::NODE_NAME_MAX_BYTES;
use herd_net::{Engine, LoopStats, Peer, Pipe, Pipes, Service, System};
use herd_node::{Config, Environment, Inside};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// The date at which every run begins, ms since 1970.
pub(super) const START_MS: u64 = 1_800_000_000_000;

/// Virtual time that passes at each look at the clock: some microseconds of work.
const LOOK_NS: u64 = 2_000;

/// Rounds after which a node that has not come to rest never will: a whole input is some MiB, a round moves 64 KiB.
const ROUNDS_MAX: usize = 20_000;

/// What the loop is asked for, whatever its service is called.
trait Loop {
    fn adopt(&mut self, peer: SocketAddr, pipe: Pipe) -> usize;
    fn round(&mut self, peers: &[(usize, Peer)]) -> bool;
    fn tick(&mut self);
    fn open(&self) -> usize;
}

impl<S: Service> Loop for Engine<S, Pipes> {
    fn adopt(&mut self, peer: SocketAddr, pipe: Pipe) -> usize {
        Engine::adopt(self, peer, |_| Ok::<_, io::Error>(pipe)).expect("a pipe is always had")
    }

    fn round(&mut self, peers: &[(usize, Peer)]) -> bool {
        self.begin();
        let mut news = false;
        for (at, peer) in peers {
            if let Some(ready) = peer.news() {
                self.note(*at, ready);
                news = true;
            }
        }
        self.rounds();
        self.turns();
        news || self.is_busy()
    }

    fn tick(&mut self) {
        self.begin();
        Engine::tick(self);
    }

    fn open(&self) -> usize {
        Engine::open(self)
    }
}

/// A node and the clients' ends of its connections.
pub(super) struct Node {
    inside: Inside,
    pipes: Pipes,
    stats: Arc<LoopStats>,
    engine: Box<dyn Loop>,
    peers: Vec<(usize, Peer)>,
}

impl Node {
    /// A node with so much memory, whose collection `default` evicts or refuses when it is full.
    pub(super) fn new(memory_bytes: u64, evict: bool) -> Self {
        let name = "f".repeat(NODE_NAME_MAX_BYTES);
        let config = Config {
            name,
            memory_bytes,
            evict,
            threads: 1,
            object_max_bytes: OBJECT_MAX_BYTES as u64,
            ..Config::default()
        };
        let environment = Environment { unix_ms: START_MS, random: [7; 16] };
        let (inside, service) = Inside::new(config, &environment).expect("a node's state");
        let (pipes, stats) = (Pipes::default(), Arc::new(LoopStats::default()));
        pipes.pass_at_each_look(LOOK_NS);
        let engine = Box::new(Engine::new(service, pipes.clone(), stats.clone()));
        Self { inside, pipes, stats, engine, peers: Vec::new() }
    }

    /// A connection whose buffers hold so many bytes; its number.
    pub(super) fn connect(&mut self, to_node_bytes: usize, to_client_bytes: usize) -> usize {
        let (pipe, peer) = self.pipes.connect(to_node_bytes, to_client_bytes);
        let at = self.engine.adopt(([127, 0, 0, 1], 1).into(), pipe);
        self.peers.push((at, peer));
        self.peers.len() - 1
    }

    /// The client's end of a connection.
    pub(super) fn peer(&self, number: usize) -> &Peer {
        &self.peers[number].1
    }

    /// Lets the node work until it rests.
    pub(super) fn work(&mut self) {
        let mut rounds = 0;
        while self.engine.round(&self.peers) {
            rounds += 1;
            assert!(rounds < ROUNDS_MAX, "the node does not come to rest");
        }
        self.check();
    }

    /// Lets time pass, with a tick at its end.
    pub(super) fn pass(&mut self, ms: u64) {
        self.pipes.pass(ms * 1_000_000);
        self.engine.tick();
        self.work();
    }

    /// The date, ms since 1970.
    pub(super) fn now_ms(&self) -> u64 {
        START_MS + self.pipes.now_ns() / 1_000_000
    }

    /// Objects evicted so far.
    pub(super) fn evictions(&self) -> u64 {
        self.inside.evictions()
    }

    /// Connections given up so far because they were too slow or held too much, or sent too much.
    pub(super) fn shed(&self) -> u64 {
        self.stats.shed.load(Relaxed) + self.stats.overrun.load(Relaxed)
    }

    /// Whether more than a part of the memory is taken or promised, so that a refusal is no surprise.
    pub(super) fn may_be_full(&self) -> bool {
        let (budget_bytes, used_bytes) = self.inside.memory();
        used_bytes + self.inside.unsettled().promised_bytes > budget_bytes / 4
    }

    fn check(&self) {
        let (budget_bytes, used_bytes) = self.inside.memory();
        assert!(used_bytes <= budget_bytes, "{used_bytes} bytes are used of {budget_bytes}");
    }

    /// What must hold once all clients have gone.
    pub(super) fn check_settled(&self) {
        assert_eq!(self.engine.open(), 0, "connections are left");
        assert_eq!(self.inside.unsettled(), herd_node::Unsettled::default(), "something is held for nobody");
    }
}
