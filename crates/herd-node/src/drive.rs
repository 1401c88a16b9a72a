//! A node without sockets, for tests: bytes in, bytes out, over the real sessions and the real store.

use crate::context::Shared;
use crate::doors::Session;
use crate::service::NodeService;
use crate::{Config, Environment, shared};
use herd_core::limits::{BLOCK_BYTES, OUTPUT_HIGH_BYTES};
use herd_net::{Next, Service, Sink, Step};
use herd_store::Body;
use std::sync::Arc;
use std::time::Duration;

/// A node of one loop.
pub(crate) struct World {
    pub(crate) shared: Arc<Shared>,
    service: NodeService,
    now_ns: u64,
    connections: u64,
    peers: Vec<Option<Wire>>,
}

/// One connection of a [`World`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Peer(usize);

struct Wire {
    session: Session,
    sink: Sink<Arc<Body>>,
    input: Vec<u8>,
    bulk: u64,
    closed: bool,
}

impl World {
    /// A node with 64 MiB that refuses when it is full.
    pub(crate) fn new() -> Self {
        Self::with(Config { memory_bytes: 64 << 20, threads: 1, ..Config::default() })
    }

    pub(crate) fn with(config: Config) -> Self {
        let environment = Environment { unix_ms: 1_800_000_000_000, random: [7; 16] };
        let shared = Arc::new(shared(config, &environment).expect("a node's state"));
        let service = NodeService::new(shared.clone(), 0);
        Self { now_ns: 0, shared, service, connections: 0, peers: Vec::new() }
    }

    /// Another loop of the same node.
    pub(crate) fn beside(&self, number: usize) -> Self {
        let shared = self.shared.clone();
        let service = NodeService::new(shared.clone(), number);
        Self { now_ns: 0, shared, service, connections: 0, peers: Vec::new() }
    }

    pub(crate) fn connect(&mut self) -> Peer {
        let session = self.service.open(([127, 0, 0, 1], 1).into());
        let at = self.peers.len();
        self.connections += 1;
        let sink = Sink::new(self.peers.len() as u64);
        self.peers.push(Some(Wire { session, sink, input: Vec::new(), bulk: 0, closed: false }));
        Peer(at)
    }

    /// Sends bytes and gives all that is answered by now.
    pub(crate) fn send(&mut self, peer: Peer, bytes: &[u8]) -> Vec<u8> {
        self.wire(peer).input.extend_from_slice(bytes);
        let mut said = Vec::new();
        loop {
            let left = self.wire(peer).input.len();
            while self.turn(peer) {
                said.extend(self.wire(peer).sink.take());
            }
            said.extend(self.hear(peer));
            self.deliver();
            said.extend(self.hear(peer));
            let wire = self.wire(peer);
            // What was put off is served once what it waited for is there.
            if wire.closed || wire.input.is_empty() || wire.input.len() == left {
                return said;
            }
        }
    }

    /// One step of a loop with these bytes, and what it answered.
    pub(crate) fn step(&mut self, peer: Peer, bytes: &[u8]) -> Vec<u8> {
        self.wire(peer).input.extend_from_slice(bytes);
        self.turn(peer);
        self.wire(peer).sink.take()
    }

    /// As `send`, but nothing of what is answered is taken: the bytes that wait.
    pub(crate) fn send_deaf(&mut self, peer: Peer, bytes: &[u8]) -> usize {
        self.wire(peer).input.extend_from_slice(bytes);
        while self.wire(peer).sink.pending_bytes() <= OUTPUT_HIGH_BYTES && self.turn(peer) {}
        self.wire(peer).sink.pending_bytes()
    }

    /// All that is answered to what was sent.
    pub(crate) fn hear_all(&mut self, peer: Peer) -> Vec<u8> {
        let mut said = self.hear(peer);
        said.extend(self.send(peer, &[]));
        said
    }

    /// What was said since, by waits that ended.
    pub(crate) fn hear(&mut self, peer: Peer) -> Vec<u8> {
        let mut said = Vec::new();
        loop {
            let (service, wire) = (&mut self.service, self.peers[peer.0].as_mut().expect("open"));
            let now = wire.sink.take();
            if now.is_empty() && !service.wants_more(&wire.session) {
                return said;
            }
            if now.is_empty() {
                service.more(&mut wire.session, &mut wire.sink.output());
            }
            said.extend(now);
        }
    }

    pub(crate) fn is_closed(&mut self, peer: Peer) -> bool {
        self.wire(peer).closed
    }

    /// The connection is lost.
    pub(crate) fn close(&mut self, peer: Peer) {
        let wire = self.peers[peer.0].take().expect("open");
        self.service.close(wire.session);
    }

    /// Lets time pass, with a tick at its end.
    pub(crate) fn pass(&mut self, time: Duration) {
        self.now_ns += time.as_nanos() as u64;
        self.service.begin(self.now_ns);
        let mut due = Vec::new();
        self.service.tick(&mut due);
        while self.service.upkeep() {}
        due.into_iter().for_each(|ticket| self.resume(ticket));
        self.deliver();
    }

    /// Tells those who wait of what changed, as the loops do.
    fn deliver(&mut self) {
        loop {
            let mut woken = Vec::new();
            if self.service.wants_upkeep() {
                self.service.upkeep();
            }
            self.service.ready(&mut woken);
            if woken.is_empty() {
                return;
            }
            woken.into_iter().for_each(|ticket| self.resume(ticket));
        }
    }

    fn resume(&mut self, ticket: herd_net::Ticket) {
        let Some(Some(wire)) = self.peers.get_mut(ticket.conn as usize) else {
            return;
        };
        let Wire { session, sink, .. } = wire;
        sink.resume(ticket, |out| {
            self.service.resume(session, ticket, out);
        });
    }

    /// One step as a loop makes it; false when more bytes are needed.
    fn turn(&mut self, peer: Peer) -> bool {
        let (service, wire) = (&mut self.service, self.peers[peer.0].as_mut().expect("open"));
        if wire.closed {
            return false;
        }
        if wire.bulk > 0 && !wire.input.is_empty() {
            return bulk(service, wire);
        }
        let input = std::mem::take(&mut wire.input);
        let step = service.serve(&mut wire.session, &input, &mut wire.sink.output());
        service.served(self.now_ns);
        wire.input = input[step.used..].to_vec();
        apply(wire, step);
        (step.used > 0 || wire.bulk > 0) && !wire.input.is_empty()
    }

    fn wire(&mut self, peer: Peer) -> &mut Wire {
        self.peers[peer.0].as_mut().expect("open")
    }
}

/// Body bytes to where the service wants them.
fn bulk(service: &mut NodeService, wire: &mut Wire) -> bool {
    let max = wire.bulk.min(BLOCK_BYTES as u64 * 4) as usize;
    let mut n = 0;
    for place in &mut service.space(&mut wire.session, max) {
        let part = place.len().min(wire.input.len() - n);
        place[..part].copy_from_slice(&wire.input[n..n + part]);
        n += part;
    }
    if n == 0 {
        wire.bulk = 0;
        return true;
    }
    wire.input.drain(..n);
    wire.bulk -= n as u64;
    let step = service.filled(&mut wire.session, n, &mut wire.sink.output());
    apply(wire, step);
    !wire.input.is_empty()
}

fn apply(wire: &mut Wire, step: Step) {
    wire.bulk = if let Next::Bulk(n) = step.next { n } else { 0 };
    wire.closed |= step.next == Next::Close;
}
