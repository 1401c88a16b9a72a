//! Nodes of one loop each, and the cables between them.

use crate::context::Shared;
use crate::lease::Leases;
use crate::link::{Came, Ends, Hub, Membership, NoLink, Note, Owner};
use crate::service::NodeService;
use crate::{Config, Environment, shared};
use herd_core::collection::Spec;
use herd_core::key::CollectionId;
use herd_core::limits::TICK_MS;
use herd_core::place::{Collection, Draft, GroupId, Grows, HerdId, Kind, Life, Map, Node, NodeId, NodeState};
use herd_core::replica::{GroupEpoch, Want};
use herd_core::wire::{Fields, Header, LinkError, LinkErrorKind, MapMark, Secret, encode_frame};
use herd_net::{Cable, Engine, LoopStats, Peer, Pipes, System};
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex};

pub(crate) const HERD: HerdId = HerdId([7; 16]);
pub(crate) const SECRET: Secret = Secret(*b"sixteen bytes ..");
/// Room in a pipe, and bytes carried at once.
const ROOM: usize = 64 * 1024;

pub(crate) fn node(number: u32) -> NodeId {
    NodeId(NonZeroU32::new(number).expect("not 0"))
}

pub(crate) fn address(number: u32) -> SocketAddr {
    ([127, 0, 0, 1], 7000 + number as u16).into()
}

/// A map of the herd with these nodes, each where it should be and in its first life.
pub(crate) fn map(nodes: u32) -> Map {
    let mut draft = Draft::empty(HERD);
    draft.nodes = (1..=nodes).map(|number| member(number, address(number).to_string())).collect();
    draft.add_spread(Kind::Kept, 1, Grows::ByItself).expect("there is room");
    draft.term = 1;
    Map::first(draft, 1).expect("a valid map")
}

/// As [`map`], with collection `default`, of which so many copies are kept.
pub(crate) fn serving(nodes: u32, copies: u8) -> Map {
    let mut draft = Draft::empty(HERD);
    draft.nodes = (1..=nodes).map(|number| member(number, address(number).to_string())).collect();
    draft.add_spread(Kind::Kept, copies, Grows::No).expect("there is room");
    let (id, spec) = (CollectionId::DEFAULT, Spec::of("ram:1"));
    draft.collections.push(Collection { id, name: "default".into(), spec, generation: 1 });
    draft.term = 1;
    Map::first(draft, 1 << 20).expect("a valid map")
}

pub(crate) fn member(number: u32, address: String) -> Node {
    Node {
        id: node(number),
        name: format!("n{number}"),
        addresses: vec![address],
        incarnation: 1,
        host: format!("h{number}"),
        rack: String::new(),
        memory_bytes: 1 << 30,
        state: NodeState::Up,
        protocol: 1,
    }
}

/// What links told.
#[derive(Default)]
pub(crate) struct Told {
    pub(crate) came: Mutex<Vec<Came>>,
    pub(crate) has: Mutex<Vec<(u32, u64, MapMark)>>,
    pub(crate) refused: Mutex<Vec<(u32, LinkErrorKind)>>,
    pub(crate) wants: Mutex<Vec<(GroupId, Want)>>,
}

impl Told {
    pub(crate) fn refused(&self) -> Vec<(u32, LinkErrorKind)> {
        self.refused.lock().expect("no panic").clone()
    }

    pub(crate) fn came(&self) -> Vec<Came> {
        std::mem::take(&mut self.came.lock().expect("no panic"))
    }

    /// The last map that a node told of.
    pub(crate) fn has(&self, number: u32) -> Option<MapMark> {
        let all = self.has.lock().expect("no panic");
        all.iter().rev().find(|(from, ..)| *from == number).map(|(_, _, mark)| *mark)
    }
}

impl Owner for Told {
    fn map_came(&self, came: Came) {
        self.came.lock().expect("no panic").push(came);
    }

    fn has_map(&self, node: NodeId, incarnation: u64, mark: MapMark) {
        self.has.lock().expect("no panic").push((node.0.get(), incarnation, mark));
    }

    fn refused(&self, node: NodeId, error: &LinkError) {
        self.refused.lock().expect("no panic").push((node.0.get(), error.kind));
    }

    fn wants(&self, group: GroupId, _epoch: GroupEpoch, want: Want) {
        self.wants.lock().expect("no panic").push((group, want));
    }
}

pub(crate) fn membership(number: u32) -> Membership {
    let random = [number as u8; 16];
    Membership { herd: HERD, node: node(number), incarnation: 1, secret: SECRET, random }
}

pub(crate) struct Machine {
    pub(crate) engine: Engine<NodeService, Pipes>,
    pub(crate) pipes: Pipes,
    pub(crate) hub: Arc<Hub>,
    pub(crate) told: Arc<Told>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) map: Option<Arc<Map>>,
    held: bool,
    /// Takes the maps that come, and has its links told.
    pub(crate) adopts: bool,
}

impl Machine {
    pub(crate) fn links(&self) -> &Ends {
        &self.engine.service().cx.links
    }

    /// Nodes it has a link to.
    pub(crate) fn linked(&self) -> Vec<u32> {
        self.links().ends.keys().map(|target| target.node.0.get()).collect()
    }

    /// Asks a node something that it does not know, of so many bytes.
    pub(crate) fn probe(&mut self, to: u32, number: u64, bytes: usize) -> Result<(), NoLink> {
        let request = Header { verb: 200, ..Header::new(herd_core::wire::Kind::Request) };
        let body = vec![b'p'; bytes];
        let encode = |header, out: &mut Vec<u8>| encode_frame(out, header, &Fields::default(), &body);
        self.engine.service_mut().cx.links.ask(node(to), request, Note::Probe(number), encode).map(drop)
    }

    pub(crate) fn adopt(&mut self, map: &Arc<Map>, held: bool) {
        self.take(map, held);
        self.hub.adopt(map.clone(), held);
    }

    /// Goes by the map, if it is one of objects.
    fn take(&mut self, map: &Arc<Map>, held: bool) {
        (self.map, self.held) = (Some(map.clone()), held);
        if !map.collections.is_empty() {
            let me = Life { node: self.hub.me.node, incarnation: 1 };
            self.shared.take_map(me, map, held).expect("a map that nodes can take");
        }
    }

    pub(crate) fn push(&mut self, map: &Arc<Map>, held: bool) {
        self.take(map, held);
        self.hub.push(map.clone(), held);
    }
}

/// One end of a cable: a machine, in one of its lives, and the connection there.
pub(crate) type At = (usize, usize);

pub(crate) struct World {
    pub(crate) clock: Pipes,
    /// By number less one; `None`: it is not running.
    pub(crate) machines: Vec<Option<Machine>>,
    pub(crate) cables: Vec<([At; 2], Cable)>,
    /// What was dialed and refused, or is not answered.
    alone: Vec<(At, Peer)>,
    /// Connections of clients, and of those who pretend to be nodes.
    pub(crate) outside: Vec<(At, Peer)>,
    /// Nothing is carried, and who is dialed does not answer.
    pub(crate) cut: bool,
    /// Nodes that are started may answer reads without asking their groups.
    pub(crate) has_leases: bool,
    pub(crate) dialed: usize,
    /// Memory of nodes that are started from now on.
    pub(crate) memory_bytes: u64,
    /// And the largest value that memcached's clients may store there.
    pub(crate) memcached_max_bytes: u64,
    ticked_ms: u64,
}

impl World {
    /// Of so many nodes, none of which is running.
    pub(crate) fn new(nodes: usize) -> Self {
        let machines = (0..nodes).map(|_| None).collect();
        let (cables, alone, outside) = (Vec::new(), Vec::new(), Vec::new());
        Self {
            clock: Pipes::default(),
            machines,
            cables,
            alone,
            outside,
            cut: false,
            has_leases: true,
            dialed: 0,
            memory_bytes: 64 << 20,
            memcached_max_bytes: Config::default().memcached_max_bytes,
            ticked_ms: 0,
        }
    }

    /// Nodes that run and have the map of all, the first of them the warden's.
    pub(crate) fn linked(nodes: u32) -> Self {
        let mut world = World::new(nodes as usize);
        (1..=nodes).for_each(|number| world.start(number));
        let map = Arc::new(map(nodes));
        world.machine(1).push(&map, false);
        (2..=nodes).for_each(|number| world.machine(number).adopt(&map, false));
        world.settle();
        for number in 1..=nodes {
            assert_eq!(world.machine(number).linked().len(), nodes as usize - 1);
        }
        world
    }

    /// The same, with collection `default`, each slot at one of them.
    pub(crate) fn serving(nodes: u32) -> Self {
        Self::keeping(nodes, 1)
    }

    /// The same, each slot at so many of them.
    pub(crate) fn keeping(nodes: u32, copies: u8) -> Self {
        let mut world = World::new(nodes as usize);
        (1..=nodes).for_each(|number| world.start(number));
        let map = Arc::new(serving(nodes, copies));
        world.machine(1).push(&map, true);
        (2..=nodes).for_each(|number| world.machine(number).adopt(&map, true));
        world.settle();
        world
    }

    pub(crate) fn start(&mut self, number: u32) {
        self.start_as(number, membership(number));
    }

    pub(crate) fn start_as(&mut self, number: u32, me: Membership) {
        let told = Arc::new(Told::default());
        let leases = Leases::new(Arc::new(self.clock.clock()));
        leases.lasts_until(if self.has_leases { u64::MAX } else { 0 });
        leases.caches_last_until(if self.has_leases { u64::MAX } else { 0 });
        let hub = Hub::new(me, told.clone(), leases);
        let config = Config {
            memory_bytes: self.memory_bytes,
            memcached_max_bytes: self.memcached_max_bytes,
            threads: 1,
            ..Config::default()
        };
        let environment = Environment { unix_ms: 1_800_000_000_000, random: [7; 16] };
        let shared = Arc::new(shared(config, &environment).expect("a node's state"));
        shared.link_by(hub.clone());
        let (service, pipes) = (NodeService::new(shared.clone(), 0), self.clock.another());
        let engine = Engine::new(service, pipes.clone(), Arc::new(LoopStats::default()));
        let machine = Machine { engine, pipes, hub, told, shared, map: None, held: false, adopts: true };
        self.machines[number as usize - 1] = Some(machine);
    }

    /// The process dies; the kernel tells the others.
    pub(crate) fn kill(&mut self, number: u32) {
        let at = number as usize - 1;
        self.machines[at] = None;
        let is_its = |(machine, _): At| machine == at;
        let (gone, kept) =
            std::mem::take(&mut self.cables).into_iter().partition(|(ends, _)| ends.iter().any(|end| is_its(*end)));
        self.cables = kept;
        let gone: Vec<([At; 2], Cable)> = gone;
        for (ends, cable) in gone {
            let [first, second] = cable.into_ends();
            let (end, peer) = if is_its(ends[0]) { (ends[1], second) } else { (ends[0], first) };
            peer.reset();
            self.alone.push((end, peer));
        }
        self.alone.retain(|(end, _)| !is_its(*end));
        self.outside.retain(|(end, _)| !is_its(*end));
    }

    pub(crate) fn machine(&mut self, number: u32) -> &mut Machine {
        self.machines[number as usize - 1].as_mut().expect("it runs")
    }

    /// A connection from outside; its number among those.
    pub(crate) fn connect(&mut self, to: u32, room: usize) -> usize {
        let (pipe, peer) = self.clock.connect(room, room);
        let own = self.machine(to).engine.adopt(address(99), |_| Ok(pipe)).expect("a pipe is always had");
        self.outside.push(((to as usize - 1, own), peer));
        self.outside.len() - 1
    }

    /// Sends bytes from outside, and gives what is answered; what there is no room for is sent when there is.
    pub(crate) fn say(&mut self, outside: usize, mut bytes: &[u8]) -> Vec<u8> {
        let mut heard = Vec::new();
        loop {
            bytes = &bytes[self.outside[outside].1.write(bytes)..];
            self.settle();
            let now = self.outside[outside].1.read(usize::MAX);
            if now.is_empty() && (bytes.is_empty() || self.outside[outside].1.is_over()) {
                return heard;
            }
            heard.extend(now);
        }
    }

    /// Sends bytes from outside as far as they are taken, and gives what is left; `look` is asked at each step.
    pub(crate) fn feed<'b>(
        &mut self,
        outside: usize,
        mut bytes: &'b [u8],
        mut look: impl FnMut(&mut Self),
    ) -> &'b [u8] {
        while !bytes.is_empty() {
            let taken = self.outside[outside].1.write(bytes);
            self.settle();
            look(self);
            if taken == 0 {
                break;
            }
            bytes = &bytes[taken..];
        }
        bytes
    }

    /// Tells a node what its sockets have, and lets it work once.
    pub(crate) fn work(&mut self, at: usize) {
        let Some(machine) = &mut self.machines[at] else { return };
        machine.engine.begin();
        let joined = self.cables.iter().flat_map(|(ends, cable)| [(ends[0], cable.end(0)), (ends[1], cable.end(1))]);
        let others = self.alone.iter().chain(&self.outside).map(|(end, peer)| (*end, peer));
        for ((_, number), peer) in joined.chain(others).filter(|((its, _), _)| *its == at) {
            if let Some(ready) = peer.news() {
                machine.engine.note(number, ready);
            }
        }
        machine.engine.rounds();
        machine.engine.turns();
        machine.engine.alarm();
    }

    /// Answers what nodes dialed.
    pub(crate) fn answer(&mut self) -> bool {
        let mut any = false;
        for from in 0..self.machines.len() {
            let dialed = self.machines[from].as_ref().map(|machine| machine.pipes.dialed()).unwrap_or_default();
            for dial in dialed {
                (any, self.dialed) = (true, self.dialed + 1);
                let to = usize::from(dial.to.port() - 7001);
                match self.machines.get_mut(to).and_then(Option::as_mut).filter(|_| !self.cut) {
                    Some(machine) => {
                        let (pipe, outer) = self.clock.connect(ROOM, ROOM);
                        dial.peer.accept(ROOM, ROOM);
                        let own = machine.engine.adopt(dial.to, |_| Ok(pipe)).expect("a pipe is always had");
                        self.cables.push(([(to, own), (from, dial.at)], Cable::new(outer, dial.peer)));
                    }
                    None => {
                        if !self.cut {
                            dial.peer.reset();
                        }
                        self.alone.push(((from, dial.at), dial.peer));
                    }
                }
            }
        }
        any
    }

    /// Carries on every cable, once each way; whether anything moved.
    pub(crate) fn carry(&mut self) -> bool {
        let mut moved = 0;
        for (_, cable) in self.cables.iter_mut().filter(|_| !self.cut) {
            moved += (0..2).map(|from| cable.carry(from, ROOM)).sum::<usize>();
        }
        moved > 0
    }

    /// Gives the nodes that take them the maps that came.
    fn adopt(&mut self) -> bool {
        let mut any = false;
        for machine in self.machines.iter_mut().flatten().filter(|machine| machine.adopts) {
            for came in machine.told.came() {
                let mark = machine.map.as_ref().map(|map| MapMark::of(map, machine.held));
                if mark.is_some_and(|mark| mark >= came.sent.mark) {
                    continue;
                }
                let map = match &machine.map {
                    Some(map) => came.sent.map(&came.bytes, map),
                    None => Map::decode(&came.bytes),
                };
                if let Ok(map) = map {
                    any = true;
                    machine.adopt(&Arc::new(map), came.sent.mark.held);
                }
            }
        }
        any
    }

    /// Until nothing moves any more.
    pub(crate) fn settle(&mut self) {
        for _ in 0..200_000 {
            (0..self.machines.len()).for_each(|at| self.work(at));
            let moved = self.answer() | self.carry() | self.adopt();
            let now_ms = self.now_ms();
            let busy = |machine: &Machine| machine.engine.is_busy() || machine.engine.alarm_ms() <= now_ms;
            if !moved && !self.machines.iter().flatten().any(busy) {
                return;
            }
        }
        panic!("they never come to rest");
    }

    /// Lets time pass; each node works at its own times and at each tick.
    pub(crate) fn pass(&mut self, ms: u64) {
        let end_ms = self.now_ms() + ms;
        loop {
            let alarms = self.machines.iter().flatten().map(|machine| machine.engine.alarm_ms());
            let now_ms = self.now_ms();
            let next_ms = alarms.min().unwrap_or(u64::MAX).max(now_ms + 1).min(self.ticked_ms + TICK_MS).min(end_ms);
            self.clock.pass(next_ms.saturating_sub(now_ms) * 1_000_000);
            if next_ms >= self.ticked_ms + TICK_MS {
                self.ticked_ms = next_ms;
                self.machines.iter_mut().flatten().for_each(|machine| {
                    machine.engine.begin();
                    machine.engine.tick();
                });
            }
            self.settle();
            if next_ms >= end_ms {
                return;
            }
        }
    }

    pub(crate) fn now_ms(&self) -> u64 {
        self.clock.now_ns() / 1_000_000
    }

    /// Takes a cable from the world: what lies in it stays there.
    pub(crate) fn unplug(&mut self, cable: usize) -> ([At; 2], Cable) {
        self.cables.remove(cable)
    }

    /// Tells a node of a connection whose cable was taken away.
    pub(crate) fn note(&mut self, end: At, peer: &Peer) {
        let engine = &mut self.machines[end.0].as_mut().expect("it runs").engine;
        engine.begin();
        if let Some(ready) = peer.news() {
            engine.note(end.1, ready);
        }
        engine.rounds();
        engine.turns();
    }
}
