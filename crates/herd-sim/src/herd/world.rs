//! One run of a herd: its nodes, the cables between them, clients at all of them, and what goes wrong.
//!
//! Who makes the maps is the test itself (`maps.rs`) or, with half of the seeds of which others keep copies, the herd's
//! own warden (`reign.rs`, `office.rs`). Each node hears of a map at a time of its own, from there or over a link.
//!
//! * `faults.rs`: what goes wrong. `leave.rs`: nodes that end in good order. `readers.rs`: who reads where that
//!   matters. `caches.rs`: who answers for what is of class `cache`. `changes.rs`: what
//!   one map changes of the one before. `calm.rs`: the end of a run.

mod caches;
mod calm;
mod changes;
mod faults;
mod leave;
mod maps;
mod office;
mod readers;
mod reign;

pub(super) use changes::RECONFIGURED;

use super::client::{Client, History, key_of, name};
use super::machine::{Machine, Make, first_map, node};
use super::plan::{Cut, Plan};
use faults::Trap;
use herd_core::place::{Group, GroupId, Map, NodeId};
use herd_net::{Cable, Peer, Pipes, Service, System};
use herd_node::Leases;
use maps::Task;
use readers::Readers;
use reign::Reign;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

/// Room in a pipe between nodes.
const ROOM: usize = 256 * 1024;
/// Steps of a run before somebody is taken to hang.
const STEPS_MAX: usize = 400_000;
/// How long an operation may take at most, ms: the node's own bounds, at its door and on its way, and what moving it
/// takes.
const ANSWER_MAX_MS: u64 = 18_000;
/// And of its value each ms so many bytes, through a pipe of some hundred bytes.
const BYTES_A_MS: u64 = 100;
const MEMORY_BYTES: u64 = 64 << 20;
/// That of a node which is soon full.
const SMALL_MEMORY_BYTES: u64 = 8 << 20;
/// What it has free at its start, besides the largest value.
const SMALL_FREE_BYTES: u64 = 256 << 10;
/// The machine of the node that hears all others, and grants leases.
const WARDEN: usize = 0;
/// How long the warden takes for what it does at most, ms.
const WARDEN_MS: u64 = 3_000;

/// What happens seldom, as it is counted: a run tells nothing of what never happens in it.
pub(super) const RARE: [&str; 27] = [
    RECONFIGURED,
    readers::PUT,
    leave::LEFT,
    leave::LEFT_PENDING,
    reign::HEARD_LATE,
    CRASHED,
    REFUSED,
    TAKEN_OVER,
    EXPELLED,
    RETURNED,
    UNDER_WAY,
    ANSWERED_AGAIN,
    UNREAD,
    LATE,
    REFUSING,
    INSIDE,
    UNHEARD,
    readers::UNAWARE,
    SILENT,
    SILENT_PENDING,
    reign::DIED,
    reign::PAUSED,
    reign::SECOND,
    reign::STORE_GONE,
    reign::JOINED_AMID,
    caches::WENT,
    caches::COLD,
];
const CRASHED: &str = "crashes with writes pending there";
const REFUSED: &str = "writes and copies refused by a member";
const TAKEN_OVER: &str = "take-overs from the living, with writes pending there";
const EXPELLED: &str = "members taken out that live, with writes pending there";
const RETURNED: &str = "leads lost for a moment, with a write at one member and not at the other";
const UNDER_WAY: &str = "maps with a body under way";
const ANSWERED_AGAIN: &str = "retries answered from the window";
const UNREAD: &str = "links broken with unread bytes";
const LATE: &str = "links made anew with bytes of the old ones on their way";
const REFUSING: &str = "take-overs while a member refuses a write";
const INSIDE: &str = "pauses between a look at the clock and its use";
const UNHEARD: &str = "nodes that hear neither maps nor who grants leases";
const SILENT: &str = "nodes that live taken out as silent";
const SILENT_PENDING: &str = "nodes taken out as silent with writes pending there";
const ASKED_AGAIN: &str = "changes that clients asked again by their ids";
pub(super) const FORGOTTEN: &str = "runs that end as a node leaves the herd";
const DEAD: &str = "dead nodes taken out as silent";
/// What is said where two primaries act in one epoch.
pub(crate) const BOTH_ACT: &str = "both act as the primary";
/// Faults that came, whether they could do anything or not.
pub(super) const FAULTS: &str = "faults";

/// One end of a cable: a machine, and the connection there.
pub(super) type At = (usize, usize);

/// How two nodes hear from each other.
#[derive(Clone, Copy, Default)]
struct Path {
    /// No link can be made until then, ns.
    cut_ns: u64,
    /// Nothing is carried until then.
    silent_ns: u64,
    /// Little is carried until then.
    slow_ns: u64,
}

/// A cable, the machines at its ends, and until when it carries nothing, ns.
struct Laid {
    ends: [At; 2],
    cable: Cable,
    late_ns: u64,
}

/// Whether a node answers reads of what a group keeps.
fn answers(group: &Group, node: NodeId) -> bool {
    group.primary == Some(node) || group.answers(node)
}

/// For how long a machine did nothing so far, ns: its pause may not be over.
fn slept((until_ns, all_ns): &(u64, u64), now_ns: u64) -> u64 {
    all_ns - until_ns.saturating_sub(now_ns)
}

/// A machine's pause is over.
fn wake(paused: &mut (u64, u64), now_ns: u64) {
    *paused = (0, slept(paused, now_ns));
}

/// See the module.
pub(super) struct World<S: Service> {
    make: Make<S>,
    plan: Plan,
    clock: Pipes,
    /// `None`: it is not running.
    machines: Vec<Option<Machine<S>>>,
    lives: Vec<u64>,
    /// Until when a machine does nothing, and for how long it will have done nothing then, ns.
    paused: Vec<(u64, u64)>,
    /// When machines that died start anew.
    restarts: BTreeMap<usize, u64>,
    /// Objects lost with machines that died: by machine.
    losses: BTreeMap<usize, Vec<(usize, u64)>>,
    cables: Vec<Laid>,
    /// What was dialed and refused, or is not answered.
    alone: Vec<(At, Peer)>,
    /// Connections whose clients are gone, of which their nodes hear nothing before all is calm.
    unheard: Vec<(At, Peer)>,
    /// By machine, and by the other one, of a higher number.
    paths: Vec<Vec<Path>>,
    /// Until when a machine hears of no map from the test, or from a warden elsewhere, ns.
    deaf: Vec<u64>,
    /// The readers come after the others.
    clients: Vec<Client>,
    readers: Option<Readers>,
    pub(super) history: History,
    /// The first map, and the present one.
    plan_of_all: Arc<Map>,
    map: Arc<Map>,
    /// With the time from which on each may be done, ns.
    tasks: Vec<(u64, Task)>,
    /// When it is looked at what moves, ns.
    moves_ns: u64,
    /// When a machine hears of the map, ns.
    news: Vec<u64>,
    /// The herd's own warden; `None`: the test is it.
    reign: Option<Box<Reign>>,
    /// Machines that were ever started.
    begun: usize,
    /// Slots of the objects' names.
    slots: BTreeMap<usize, usize>,
    /// Those of names of class `cache`, in order.
    soft_slots: Vec<usize>,
    /// Faults that wait for their moment.
    traps: Vec<Trap>,
    /// Until when clients keep back what is left to be asked; `None`: they have not begun to.
    waits_until_ns: Option<u64>,
    /// Who had each group of class `cache` last, by number.
    had: BTreeMap<usize, NodeId>,
    /// Who acted as the primary of a group, by epoch.
    acts: BTreeMap<(GroupId, u32), usize>,
    /// What is wrong, as soon as it is seen.
    wrong: Option<String>,
    /// Nothing goes wrong any more.
    quiet: bool,
    /// A node has left the herd, as which no machine goes on: the run ends there.
    is_over: bool,
    pub(super) counts: BTreeMap<&'static str, u64>,
}

impl<S: Service> World<S> {
    pub(super) fn new(make: Make<S>, seed: u64, cut: &Cut) -> Self {
        let plan = Plan::new(seed, cut);
        let (clock, nodes) = (Pipes::default(), plan.nodes);
        clock.pass(1_000_000_000);
        clock.pass_at_each_look(plan.look_ns);
        let all = nodes + plan.newcomers;
        let readers = plan.readers.then(|| Readers::new(seed, plan.clients));
        let clients = (0..plan.clients + if plan.readers { all } else { 0 }).map(Client::new).collect();
        // Nothing is known of a herd that has not begun.
        let map = Arc::new(first_map(if plan.reigns { 0 } else { nodes }, plan.copies));
        let reign = plan.reigns.then(|| Box::new(Reign::new(seed, plan.is_embedded)));
        let mut world = Self {
            make,
            clock,
            machines: (0..all).map(|_| None).collect(),
            lives: vec![1; all],
            paused: vec![(0, 0); all],
            restarts: BTreeMap::new(),
            losses: BTreeMap::new(),
            cables: Vec::new(),
            alone: Vec::new(),
            unheard: Vec::new(),
            paths: vec![vec![Path::default(); all]; all],
            deaf: vec![0; all],
            clients,
            readers,
            history: History::default(),
            plan_of_all: map.clone(),
            map,
            tasks: Vec::new(),
            moves_ns: 0,
            news: vec![0; all],
            reign,
            begun: 0,
            slots: BTreeMap::new(),
            soft_slots: Vec::new(),
            traps: Vec::new(),
            waits_until_ns: None,
            had: BTreeMap::new(),
            acts: BTreeMap::new(),
            wrong: None,
            quiet: false,
            is_over: false,
            counts: BTreeMap::new(),
            plan,
        };
        if world.reign.is_none() {
            (0..nodes).for_each(|at| world.start(at));
        }
        world
    }

    /// Runs until all is done and quiet, and judges it.
    pub(super) fn run(&mut self) -> Result<(), String> {
        if self.reign.is_some() {
            self.begin()?;
        }
        let inside = &self.machines[0].as_ref().expect("it has begun").inside;
        self.slots = (0..128).map(|key| (key, inside.slot(name(key).as_bytes()))).collect();
        let soft: BTreeSet<usize> = self.plan.soft_keys().map(|key| self.slots[&key]).collect();
        self.soft_slots = soft.into_iter().collect();
        let mut steps = 0;
        while !self.is_over && (self.history.asked < self.plan.ops || !self.clients.iter().all(Client::is_idle)) {
            steps += 1;
            if steps > STEPS_MAX {
                return Err("it never comes to an end".into());
            }
            self.go_wrong();
            self.step()?;
        }
        if !self.is_over {
            self.calm()?;
        }
        if self.is_over {
            self.count(FORGOTTEN);
            for client in &mut self.clients {
                self.alone.extend(client.lost(&mut self.history));
                client.give_up(&mut self.history);
            }
        }
        (0..self.begun).for_each(|at| self.count_happened(at));
        self.judge()
    }

    fn now_ns(&self) -> u64 {
        self.clock.now_ns()
    }

    fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    fn start(&mut self, at: usize) {
        let pipes = self.clock.another_slower(self.plan.lags[at]);
        let leases = Leases::new(Arc::new(pipes.clock()));
        self.begun = self.begun.max(at + 1);
        self.start_node(at, pipes, leases);
        let map = self.map.clone();
        if let Some(machine) = &mut self.machines[at] {
            machine.take(&map, true);
        }
    }

    /// The node of a machine, in its present life.
    fn start_node(&mut self, at: usize, pipes: Pipes, leases: Arc<Leases>) {
        let memory_bytes = if self.plan.small == Some(at) { SMALL_MEMORY_BYTES } else { MEMORY_BYTES };
        let machine = Machine::start(self.make, (at, self.lives[at]), (memory_bytes, self.plan.evicts), pipes, leases);
        if self.plan.small == Some(at) && !self.quiet {
            machine.inside.leave_memory(Some(SMALL_FREE_BYTES + self.plan.value_bytes));
        }
        self.machines[at] = Some(machine);
        wake(&mut self.paused[at], self.clock.now_ns());
    }

    /// One thing of each kind happens, or does not.
    fn step(&mut self) -> Result<(), String> {
        let mut moved = 0;
        for at in 0..self.machines.len() {
            if self.plan.random.chance(70) {
                self.work(at);
            }
        }
        self.spring();
        self.answer();
        moved += self.carry();
        let acting = if self.slots.is_empty() { 0 } else { self.plan.clients };
        for at in 0..acting {
            if self.plan.random.chance(60) {
                moved += self.act(at)?;
            }
        }
        moved += self.read_behind()?;
        self.restart();
        if self.reign.is_some() {
            self.govern();
            self.go_on_leaving();
        } else {
            self.hear_of_maps();
            self.judge_silence();
            self.reign();
            self.go_on_moving();
        }
        self.bury();
        self.see_caches();
        if let Some(wrong) = self.wrong.take() {
            return Err(wrong);
        }
        let us = match self.plan.random.below(1000) {
            0..2 => 400_000,
            2..10 => self.plan.random.below(60_000),
            10..200 => self.plan.random.below(4_000),
            // Nothing moves: the next thing that happens is some way off.
            _ if moved == 0 && self.quiet => 5_000 + self.plan.random.below(40_000),
            _ if moved == 0 => 2_000 + self.plan.random.below(20_000),
            // Nothing races any more: bytes on their way take as long as on a real network.
            _ if self.quiet => 1_000,
            _ => 50,
        };
        self.clock.pass(us * 1_000);
        let (now_ns, history, paused) = (self.now_ns(), &self.history, &self.paused);
        for client in self.clients.iter().filter(|client| !client.is_idle()) {
            let Some((at, ..)) = &client.link else { continue };
            let most_ms = ANSWER_MAX_MS * 1000 / (1000 - self.plan.lags[*at]) + self.plan.value_bytes / BYTES_A_MS;
            let most_ns = most_ms * 1_000_000;
            client.check(history, now_ns, slept(&paused[*at], now_ns), most_ns)?;
        }
        Ok(())
    }

    /// Tells a node what its sockets have, and lets it work once.
    fn work(&mut self, at: usize) {
        let now_ns = self.now_ns();
        let Some(machine) = &mut self.machines[at] else { return };
        if self.paused[at].0 > now_ns {
            return;
        }
        if !machine.began {
            machine.begin();
        }
        let mut tell = |(its, number): At, peer: &Peer| {
            if its == at
                && let Some(ready) = peer.news()
            {
                machine.engine.note(number, ready);
            }
        };
        for Laid { ends: [one, other], cable, .. } in &self.cables {
            tell(*one, cable.end(0));
            tell(*other, cable.end(1));
        }
        self.alone.iter().for_each(|(end, peer)| tell(*end, peer));
        for (its, number, peer) in self.clients.iter().filter_map(|client| client.link.as_ref()) {
            tell((*its, *number), peer);
        }
        machine.work();
        self.see_acts(at);
        if self.reign.is_none() {
            self.hear_wants(at);
        }
        if let Some(machine) = &mut self.machines[at] {
            machine.take_what_came();
        }
    }

    /// No two nodes act as the primary of a group in one epoch.
    fn see_acts(&mut self, at: usize) {
        let Some(machine) = &self.machines[at] else { return };
        for (group, epoch) in machine.inside.acts() {
            let other = *self.acts.entry((group, epoch)).or_insert(at);
            if other != at {
                let (one, other) = (at + 1, other + 1);
                self.wrong = Some(format!("n{other} and n{one} {BOTH_ACT} of {group:?} in epoch {epoch}"));
            }
        }
    }

    fn path(&mut self, a: usize, b: usize) -> &mut Path {
        &mut self.paths[a.min(b)][a.max(b)]
    }

    /// Answers what nodes dialed.
    fn answer(&mut self) {
        let now_ns = self.now_ns();
        for from in 0..self.machines.len() {
            let dialed = self.machines[from].as_ref().map(|machine| machine.pipes.dialed()).unwrap_or_default();
            for dial in dialed {
                let to = usize::from(dial.to.port()) - 7001;
                let path = *self.path(from, to);
                let machine = self.machines[to].as_mut().filter(|_| path.cut_ns.max(path.silent_ns) <= now_ns);
                let Some(machine) = machine else {
                    if path.silent_ns <= now_ns {
                        dial.peer.reset();
                    }
                    self.alone.push(((from, dial.at), dial.peer));
                    continue;
                };
                let (pipe, outer) = self.clock.connect(ROOM, ROOM);
                dial.peer.accept(ROOM, ROOM);
                let own = machine.engine.adopt(dial.to, |_| Ok(pipe)).expect("a pipe is always had");
                let (ends, cable) = ([(to, own), (from, dial.at)], Cable::new(outer, dial.peer));
                self.cables.push(Laid { ends, cable, late_ns: 0 });
            }
        }
    }

    /// Carries on some cables, some of the bytes; how many.
    fn carry(&mut self) -> usize {
        let (now_ns, mut moved) = (self.now_ns(), 0);
        for at in 0..self.cables.len() {
            let [(a, _), (b, _)] = self.cables[at].ends;
            if self.cables[at].late_ns > now_ns {
                continue;
            }
            let path = *self.path(a, b);
            let slow = path.slow_ns > now_ns;
            for from in 0..2 {
                let (random, cable) = (&mut self.plan.random, &mut self.cables[at].cable);
                if path.silent_ns > now_ns || !random.chance(if slow { 10 } else { 70 }) {
                    continue;
                }
                let most = match random.below(10) {
                    _ if slow => 1 + random.size(2_000) as usize,
                    0 => 1 + random.size(300) as usize,
                    _ => ROOM,
                };
                moved += cable.carry(from, most);
            }
        }
        moved
    }

    /// Something that a client does; how many bytes moved.
    fn act(&mut self, at: usize) -> Result<usize, String> {
        let now_ns = self.now_ns();
        if self.clients[at].link.is_none() {
            self.connect(at);
        }
        let waits = self.waits_for_change();
        let client = &mut self.clients[at];
        let Some((node, ..)) = &client.link else { return Ok(0) };
        let paused_ns = slept(&self.paused[*node], now_ns);
        if client.is_idle() {
            if waits || !self.plan.asks_now() {
                return client.exchange(&mut self.plan, &mut self.history, now_ns);
            }
            if !self.quiet && self.plan.random.chance(4) {
                self.alone.extend(client.lost(&mut self.history));
                return Ok(0);
            }
            if self.history.asked < self.plan.ops {
                client.ask(&mut self.plan, &mut self.history, now_ns, paused_ns);
            }
        } else if client.can_ask_again() && self.plan.random.chance(1) {
            // It asks another node while the first one may still be at it.
            let gone = client.lost(&mut self.history);
            let is_heard = self.quiet || self.plan.random.chance(50);
            if is_heard { &mut self.alone } else { &mut self.unheard }.extend(gone);
            return Ok(0);
        }
        client.exchange(&mut self.plan, &mut self.history, now_ns)
    }

    /// Connects a client to any node that runs.
    fn connect(&mut self, at: usize) {
        let node = self.plan.random.below(self.machines.len() as u64) as usize;
        let kind = self.plan.random.below(3);
        self.connect_to(at, node, kind);
    }

    fn connect_to(&mut self, at: usize, node: usize, kind: u64) {
        let Some(machine) = &mut self.machines[node] else { return };
        let least = self.plan.value_bytes + 4_096;
        // The least that carries any value in some seconds.
        let mut room = || self.plan.random.size(1 << 20) + 512.max(least / 16);
        let (to_node, to_client) = (room(), room());
        let (pipe, peer) = self.clock.connect(to_node as usize, to_client as usize);
        let own = machine.engine.adopt(SocketAddr::from(([127, 0, 0, 1], 1)), |_| Ok(pipe));
        let (now_ns, link) = (self.now_ns(), (node, own.expect("a pipe is always had"), peer));
        let paused_ns = slept(&self.paused[node], now_ns);
        let again = self.clients[at].connected(link, kind, now_ns, paused_ns);
        (0..again).for_each(|_| self.count(ASKED_AGAIN));
    }

    /// Whether each machine runs.
    fn living(&self) -> impl Fn(NodeId) -> bool + use<S> {
        let living: Vec<bool> = self.machines.iter().map(Option::is_some).collect();
        move |node| living[node.0.get() as usize - 1]
    }

    /// Counts that a machine has writes pending, if so.
    fn count_pendings(&mut self, at: usize, what: &'static str) {
        let pending = |machine: &Machine<S>| !machine.inside.pendings().is_empty();
        if self.machines[at].as_ref().is_some_and(pending) {
            self.count(what);
        }
    }

    /// Counts what a machine has done in this life of it.
    fn count_happened(&mut self, at: usize) {
        let Some(machine) = &self.machines[at] else { return };
        let (refused, again) = machine.inside.happened();
        *self.counts.entry(REFUSED).or_default() += refused;
        *self.counts.entry(ANSWERED_AGAIN).or_default() += again;
    }

    /// Forgets connections that are over on both sides.
    fn bury(&mut self) {
        self.cables.retain(|Laid { cable, .. }| !(cable.end(0).is_closed() && cable.end(1).is_closed()));
        self.alone.retain(|(_, peer)| !peer.is_closed());
    }
}
