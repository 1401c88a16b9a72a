//! One run of a herd: its nodes, the cables between them, clients at all of them, and what goes wrong.
//!
//! The test is the warden: it makes the maps, and each node hears of one at a time of its own, from it or over a link.

use super::check::{Answer, Ask, Op, Verdict, check};
use super::client::{Client, History, name};
use super::machine::{Machine, Make, first_map, node};
use super::plan::{Cut, Fault, Plan};
use super::warden;
use herd_core::place::{Draft, GroupId, Map, Node, NodeId, NodeState, Standing};
use herd_core::replica::Want;
use herd_net::{Cable, Peer, Pipes, Service, System};
use herd_node::Unsettled;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

/// Room in a pipe between nodes.
const ROOM: usize = 256 * 1024;
/// Steps of a run before somebody is taken to hang.
const STEPS_MAX: usize = 400_000;
/// How long an operation may take at most, ms: the node's own bound and what moving it takes.
const ANSWER_MAX_MS: u64 = 14_000;
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
pub(super) const RARE: [&str; 13] = [
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
    SILENT,
    SILENT_PENDING,
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
const SILENT: &str = "nodes that live taken out as silent";
const SILENT_PENDING: &str = "nodes taken out as silent with writes pending there";
/// What is said where two primaries act in one epoch.
pub(crate) const BOTH_ACT: &str = "both act as the primary";
/// Faults that came, whether they could do anything or not.
pub(super) const FAULTS: &str = "faults";

/// One end of a cable: a machine, and the connection there.
type At = (usize, usize);

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

/// What the warden is about to do.
enum Task {
    /// Takes a node that died in that life of it out of its groups.
    Remove(usize, u64),
    /// Brings one back that started anew, in that life of it.
    BringBack(usize, u64),
    /// Does what the primary of a group asked for in the view of that epoch.
    Grant(GroupId, u32, Want),
    /// Makes those backups who are joining.
    Seat,
}

/// A fault that waits for its moment.
enum Trap {
    /// Something is on its way from the node that made the link to the other, which gets it so much later, ms.
    Late(usize, usize, u64),
    /// A node, in that life of it, refuses more writes than these; for how long others are not told then, ms.
    Refuse(usize, u64, u64, u64),
    /// The time has come, ns, to have others lead what a node leads.
    Depose(usize, u64),
    /// A write that the node decided, in that life of it, is at one member and not at another.
    Return(usize, u64),
    /// The time has come, ns, to have the second lead what the first leads.
    LeadAgain(usize, usize, u64),
}

/// A cable, the machines at its ends, and until when it carries nothing, ns.
struct Laid {
    ends: [At; 2],
    cable: Cable,
    late_ns: u64,
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
    paths: BTreeMap<(usize, usize), Path>,
    clients: Vec<Client>,
    pub(super) history: History,
    /// The first map, and the present one.
    plan_of_all: Arc<Map>,
    map: Arc<Map>,
    /// With the time from which on each may be done, ns.
    tasks: Vec<(u64, Task)>,
    /// When a machine hears of the map, ns.
    news: Vec<u64>,
    /// Slots of the objects' names.
    slots: BTreeMap<usize, usize>,
    /// Faults that wait for their moment.
    traps: Vec<Trap>,
    /// Who acted as the primary of a group, by epoch.
    acts: BTreeMap<(GroupId, u32), usize>,
    /// What is wrong, as soon as it is seen.
    wrong: Option<String>,
    /// Nothing goes wrong any more.
    quiet: bool,
    pub(super) counts: BTreeMap<&'static str, u64>,
}

impl<S: Service> World<S> {
    pub(super) fn new(make: Make<S>, seed: u64, cut: &Cut) -> Self {
        let plan = Plan::new(seed, cut);
        let (clock, nodes) = (Pipes::default(), plan.nodes);
        clock.pass(1_000_000_000);
        clock.pass_at_each_look(plan.look_ns);
        let clients = (0..plan.clients).map(Client::new).collect();
        let map = Arc::new(first_map(nodes, plan.copies));
        let mut world = Self {
            make,
            clock,
            machines: (0..nodes).map(|_| None).collect(),
            lives: vec![1; nodes],
            paused: vec![(0, 0); nodes],
            restarts: BTreeMap::new(),
            losses: BTreeMap::new(),
            cables: Vec::new(),
            alone: Vec::new(),
            paths: BTreeMap::new(),
            clients,
            history: History::default(),
            plan_of_all: map.clone(),
            map,
            tasks: Vec::new(),
            news: vec![0; nodes],
            slots: BTreeMap::new(),
            traps: Vec::new(),
            acts: BTreeMap::new(),
            wrong: None,
            quiet: false,
            counts: BTreeMap::new(),
            plan,
        };
        (0..nodes).for_each(|at| world.start(at));
        let inside = &world.machines[0].as_ref().expect("just started").inside;
        world.slots = (0..128).map(|key| (key, inside.slot(name(key).as_bytes()))).collect();
        world
    }

    /// Runs until all is done and quiet, and judges it.
    pub(super) fn run(&mut self) -> Result<(), String> {
        let mut steps = 0;
        while self.history.asked < self.plan.ops || !self.clients.iter().all(Client::is_idle) {
            steps += 1;
            if steps > STEPS_MAX {
                return Err("it never comes to an end".into());
            }
            self.go_wrong();
            self.step()?;
        }
        self.calm()?;
        (0..self.machines.len()).for_each(|at| self.count_happened(at));
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
        let memory_bytes = if self.plan.small == Some(at) { SMALL_MEMORY_BYTES } else { MEMORY_BYTES };
        let mut machine = Machine::start(self.make, at, self.lives[at], memory_bytes, pipes);
        machine.take(&self.map);
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
        for at in 0..self.clients.len() {
            if self.plan.random.chance(60) {
                moved += self.act(at)?;
            }
        }
        self.hear_of_maps();
        self.restart();
        self.judge_silence();
        self.reign();
        self.bury();
        if let Some(wrong) = self.wrong.take() {
            return Err(wrong);
        }
        let us = match self.plan.random.below(1000) {
            0..2 => 400_000,
            2..10 => self.plan.random.below(60_000),
            10..200 => self.plan.random.below(4_000),
            // Nothing moves: the next thing that happens is some way off.
            _ if moved == 0 => 2_000 + self.plan.random.below(20_000),
            _ => 50,
        };
        self.clock.pass(us * 1_000);
        let (now_ns, history, paused) = (self.now_ns(), &self.history, &self.paused);
        for client in &self.clients {
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
        let joined = self.cables.iter().flat_map(|it| [(it.ends[0], it.cable.end(0)), (it.ends[1], it.cable.end(1))]);
        let clients = self.clients.iter().filter_map(|client| client.link.as_ref());
        let clients = clients.map(|(at, number, peer)| ((*at, *number), peer));
        let alone = self.alone.iter().map(|(end, peer)| (*end, peer));
        for ((_, number), peer) in joined.chain(alone).chain(clients).filter(|((its, _), _)| *its == at) {
            if let Some(ready) = peer.news() {
                machine.engine.note(number, ready);
            }
        }
        machine.work();
        self.see_acts(at);
        self.hear_wants(at);
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
        self.paths.entry((a.min(b), a.max(b))).or_default()
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
        let client = &mut self.clients[at];
        let Some((node, ..)) = &client.link else { return Ok(0) };
        let paused_ns = slept(&self.paused[*node], now_ns);
        if client.is_idle() {
            if self.plan.random.chance(4) {
                client.lost(&mut self.history);
                return Ok(0);
            }
            if self.history.asked < self.plan.ops {
                client.ask(&mut self.plan, &mut self.history, now_ns, paused_ns);
            }
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
        let now_ms = self.now_ns() / 1_000_000;
        self.clients[at].connected((node, own.expect("a pipe is always had"), peer), kind, now_ms);
    }

    /// Faults whose time has come.
    fn go_wrong(&mut self) {
        while self.plan.faults.first().is_some_and(|(after, _)| *after <= self.history.asked) {
            let (_, fault) = self.plan.faults.remove(0);
            self.count(FAULTS);
            self.fail(fault);
        }
    }

    fn fail(&mut self, fault: Fault) {
        let now_ns = self.now_ns();
        let until = |ms: u64| now_ns + ms * 1_000_000;
        match fault {
            Fault::Break(a, b) => {
                self.count("links broken");
                self.break_links(a, b);
            }
            Fault::Cut(a, b, ms) => {
                self.count("cuts");
                self.path(a, b).cut_ns = until(ms);
                self.break_links(a, b);
            }
            Fault::Silence(a, b, ms) => {
                self.count("silences");
                self.path(a, b).silent_ns = until(ms);
            }
            Fault::Slow(a, b, ms) => {
                self.count("slow links");
                self.path(a, b).slow_ns = until(ms);
            }
            Fault::Pause(at, ms) | Fault::PauseInside(at, ms) => {
                let (end_ns, paused_ns) = self.paused[at];
                if end_ns > now_ns || self.machines[at].is_none() {
                    return;
                }
                self.count(if matches!(fault, Fault::Pause(..)) { "pauses" } else { INSIDE });
                if let (Some(machine), Fault::PauseInside(..)) = (&mut self.machines[at], fault)
                    && !machine.began
                {
                    machine.begin();
                }
                self.paused[at] = (until(ms), paused_ns + ms * 1_000_000);
            }
            Fault::Crash(at, ms) => self.crash(at, until(ms)),
            Fault::Epoch(at) => {
                self.count("epochs");
                self.next_map(|draft| draft.nodes[at].memory_bytes += 1);
            }
            Fault::Depose(at) => self.depose(at),
            Fault::Expel(at) => self.expel(at),
            Fault::Return(at) => self.traps.push(Trap::Return(at, self.lives[at])),
            Fault::Late(a, b, ms) => self.traps.push(Trap::Late(a.max(b), a.min(b), ms)),
            Fault::Refuse(at, ms) => {
                let Some(machine) = &self.machines[at] else { return };
                machine.inside.leave_memory(Some(0));
                self.traps.push(Trap::Refuse(at, self.lives[at], machine.inside.happened().0, ms));
            }
        }
    }

    /// Faults whose moment has come.
    fn spring(&mut self) {
        for trap in std::mem::take(&mut self.traps) {
            match trap {
                Trap::Late(from, to, ms) => self.be_late(from, to, ms),
                Trap::Refuse(at, life, before, ms) => self.refuse(at, life, before, ms),
                Trap::Depose(at, due_ns) if due_ns <= self.now_ns() => self.depose(at),
                Trap::Return(at, life) if self.lives[at] == life => self.lead_for_a_moment(at),
                Trap::Return(..) => {}
                Trap::LeadAgain(at, next, due_ns) if due_ns <= self.now_ns() => self.depose_for(at, next),
                Trap::Depose(..) | Trap::LeadAgain(..) => self.traps.push(trap),
            }
        }
    }

    fn be_late(&mut self, from: usize, to: usize, ms: u64) {
        let late_ns = self.now_ns() + ms * 1_000_000;
        let is_it = |it: &&mut Laid| (it.ends[0].0, it.ends[1].0) == (to, from) && it.late_ns == 0;
        let Some(it) = self.cables.iter_mut().find(|it| is_it(it) && it.cable.sent(1) > 0) else {
            return self.traps.push(Trap::Late(from, to, ms));
        };
        it.cable.lose(1);
        it.late_ns = late_ns;
        self.count(LATE);
    }

    /// When a node has refused a write, others lead what the write's primary led, before that can tell its members.
    fn refuse(&mut self, at: usize, life: u64, before: u64, ms: u64) {
        let Some(machine) = self.machines[at].as_ref().filter(|_| self.lives[at] == life) else { return };
        if machine.inside.happened().0 <= before {
            return self.traps.push(Trap::Refuse(at, life, before, ms));
        }
        machine.inside.leave_memory(None);
        let Some(primary) = (0..self.machines.len()).find(|other| self.waits_for(*other, at)) else { return };
        self.count(REFUSING);
        let until_ns = self.now_ns() + ms * 1_000_000;
        for other in (0..self.machines.len()).filter(|other| *other != at) {
            self.path(primary, other).silent_ns = until_ns;
        }
        let due_ns = self.now_ns() + self.plan.random.size(200) * 1_000_000;
        self.traps.push(Trap::Depose(primary, due_ns));
    }

    /// Whether a write that the machine decided waits for the other.
    fn waits_for(&self, at: usize, other: usize) -> bool {
        let (Some(machine), spread) = (&self.machines[at], &self.map.spreads[0]) else { return false };
        let waits = |name: &[u8]| {
            let group = spread.group_of(machine.inside.slot(name));
            group.primary == Some(node(at)) && group.members().any(|member| member == node(other))
        };
        at != other && machine.inside.pendings().iter().any(|(name, _)| waits(name))
    }

    /// Whether each machine runs.
    fn living(&self) -> impl Fn(NodeId) -> bool + use<S> {
        let living: Vec<bool> = self.machines.iter().map(Option::is_some).collect();
        move |node| living[node.0.get() as usize - 1]
    }

    /// Another leads what a node led, and after a moment that leads again, if a write that it decided is at one member
    /// and not at the other. It hears nothing from them meanwhile, nor they from it.
    fn lead_for_a_moment(&mut self, at: usize) {
        let Some((member, next)) = self.half_prepared(at) else {
            return self.traps.push(Trap::Return(at, self.lives[at]));
        };
        self.count(RETURNED);
        let now_ns = self.now_ns();
        let (back_ns, heard_ns) = (50 + self.plan.random.below(500), 400 + self.plan.random.below(1_000));
        self.path(at, member).silent_ns = now_ns + heard_ns * 1_000_000;
        self.path(at, next).silent_ns = now_ns + heard_ns * 1_000_000;
        self.depose_for(at, next);
        self.traps.push(Trap::LeadAgain(next, at, now_ns + back_ns * 1_000_000));
    }

    /// Of a write that this machine decided and that is under way: a member that holds it, and a backup that does not.
    fn half_prepared(&self, at: usize) -> Option<(usize, usize)> {
        let (mine, spread) = (self.machines[at].as_ref()?, &self.map.spreads[0]);
        let holds = |other: usize, name: &[u8], version: u64| {
            let pendings = self.machines[other].as_ref().map(|machine| machine.inside.pendings());
            pendings.is_some_and(|pendings| pendings.iter().any(|it| *it.0 == *name && it.1 == version))
        };
        mine.inside.pendings().iter().find_map(|(name, version)| {
            let group = spread.group_of(mine.inside.slot(name));
            if group.primary != Some(node(at)) {
                return None;
            }
            let backups = group.others.iter().filter(|member| member.standing == Standing::Backup);
            let (have, have_not): (Vec<usize>, Vec<usize>) = backups
                .map(|member| member.node.0.get() as usize - 1)
                .filter(|other| self.machines[*other].is_some() && self.paused[*other].0 <= self.now_ns())
                .partition(|other| holds(*other, name, *version));
            Some((*have.first()?, *have_not.first()?))
        })
    }

    /// The next one leads what a node led, where it may; both hear of it at once.
    fn depose_for(&mut self, at: usize, next: usize) {
        let living = self.living();
        self.depose_to(at, move |other| other == node(next) && living(other), true);
        let map = self.map.clone();
        if let Some(machine) = &mut self.machines[next] {
            machine.take(&map);
        }
    }

    /// Others lead what a node led, who hears of it first or, as it stays a member, sometime.
    fn depose(&mut self, at: usize) {
        let (living, hears_first) = (self.living(), self.map.epoch.is_multiple_of(2));
        self.depose_to(at, living, hears_first);
    }

    /// Those that may lead what a node led.
    fn depose_to(&mut self, at: usize, may: impl Fn(NodeId) -> bool, hears_first: bool) {
        let leads = |map: &Map| map.groups_of(node(at)).filter(|(_, group)| group.primary == Some(node(at))).count();
        let before = leads(&self.map);
        if self.machines[at].is_none() || self.paused[at].0 > self.now_ns() {
            return;
        }
        self.next_map(|draft| warden::depose(draft, node(at), may));
        if leads(&self.map) < before {
            self.count("take-overs from the living");
            self.count_pendings(at, TAKEN_OVER);
        }
        if let Some(machine) = self.machines[at].as_mut().filter(|_| hears_first) {
            machine.take(&self.map);
        }
    }

    /// A node that lives is in no group any more. It hears of it first, as above, and is brought back later.
    fn expel(&mut self, at: usize) {
        let may_hear = self.machines[at].is_some() && self.paused[at].0 <= self.now_ns();
        let living = self.living();
        if !may_hear || !warden::may_go(&self.map, node(at), |other| other != node(at) && living(other)) {
            return;
        }
        self.count("members taken out that live");
        self.count_pendings(at, EXPELLED);
        self.next_map(|draft| warden::remove(draft, node(at), &living));
        if let Some(machine) = &mut self.machines[at] {
            machine.take(&self.map);
        }
        self.later(Task::BringBack(at, self.lives[at]));
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

    /// The warden's node grants leases, and those of whom it has heard nothing for longer than one lasts are taken out:
    /// dead, paused or cut off from it, which they may not know.
    fn judge_silence(&mut self) {
        let is_awake = self.paused[WARDEN].0 <= self.now_ns();
        let Some(host) = self.machines[WARDEN].as_ref().filter(|_| is_awake && self.plan.copies > 1) else { return };
        let now_ns = host.leases.now_ns();
        let nodes: Vec<(NodeId, u64)> = self.map.nodes.iter().map(|node| (node.id, node.incarnation)).collect();
        let silent = {
            let mut grants = host.leases.grants();
            grants.in_office(self.map.term, now_ns, now_ns);
            grants.wrote(self.map.term, self.map.epoch);
            grants.silent(&nodes, now_ns)
        };
        let is_up = |node: &NodeId| self.map.node(*node).is_some_and(|node| node.state == NodeState::Up);
        let silent: Vec<NodeId> = silent.into_iter().map(|(node, _)| node).filter(is_up).collect();
        for node in silent {
            let at = node.0.get() as usize - 1;
            let lives = self.machines[at].is_some();
            self.count(if lives { SILENT } else { "dead nodes taken out as silent" });
            self.count_pendings(at, SILENT_PENDING);
            let living = self.living();
            self.next_map(|draft| draft.take_out(node, &living));
        }
        self.hear_again();
    }

    /// Those that were taken out as silent, and are heard again, are brought back.
    fn hear_again(&mut self) {
        let Some(host) = &self.machines[WARDEN] else { return };
        let (now_ns, grants) = (host.leases.now_ns(), host.leases.grants());
        let down = self.map.nodes.iter().filter(|node| node.state == NodeState::Down);
        let heard = down.filter(|node| grants.is_heard(node.id, node.incarnation, now_ns));
        let heard: Vec<NodeId> = heard.map(|node| node.id).collect();
        drop(grants);
        for node in heard {
            let at = node.0.get() as usize - 1;
            self.next_map(|draft| draft.bring_back(node));
            self.later(Task::BringBack(at, self.lives[at]));
        }
    }

    /// The warden does what it is about to.
    fn reign(&mut self) {
        let (now_ns, quiet) = (self.now_ns(), self.quiet);
        let is_due = |(from_ns, _): &mut (u64, Task)| *from_ns <= now_ns || quiet;
        let mut due: Vec<Task> = self.tasks.extract_if(.., is_due).map(|(_, task)| task).collect();
        // What was asked in a view is done before the view changes.
        due.sort_by_key(|task| !matches!(task, Task::Grant(..)));
        if due.is_empty() {
            return;
        }
        let (living, plan, lives) = (self.living(), self.plan_of_all.clone(), self.lives.clone());
        let mut granted = false;
        // Who could not keep a copy is asked to once more.
        let removed = due.iter().filter_map(|task| match task {
            Task::Grant(_, _, Want::Removed(node)) => Some(node.0.get() as usize - 1),
            _ => None,
        });
        let removed: Vec<usize> = removed.collect();
        let back: Vec<Task> = removed.iter().map(|at| Task::BringBack(*at, lives[*at])).collect();
        back.into_iter().for_each(|task| self.later(task));
        self.next_map(|draft| {
            for task in due {
                match task {
                    // What started anew was taken out then.
                    Task::Remove(at, life) if lives[at] == life => warden::remove(draft, node(at), &living),
                    // By another map than the one that takes it out, or nobody would see that it was out.
                    Task::BringBack(at, life) if lives[at] == life && living(node(at)) && !removed.contains(&at) => {
                        warden::bring_back(draft, node(at), &plan);
                    }
                    Task::Remove(..) | Task::BringBack(..) => {}
                    Task::Grant(group, epoch, want) => granted |= draft.grant(group, epoch, want),
                    Task::Seat => drop(draft.seat_joined()),
                }
            }
        });
        if granted {
            self.later(Task::Seat);
        }
    }

    /// Takes what the node asks of the warden, where it leads by the present view and asks in that.
    fn hear_wants(&mut self, at: usize) {
        let Some(machine) = &self.machines[at] else { return };
        for (id, epoch, want) in machine.take_wants() {
            let present = self.map.group(id).filter(|group| group.primary == Some(node(at)));
            let asked = (id, epoch, want);
            let is_known = |task: &Task| matches!(task, Task::Grant(of, since, what) if (*of, *since, *what) == asked);
            if present.is_some_and(|group| group.epoch == epoch) && !self.tasks.iter().any(|(_, task)| is_known(task)) {
                self.later(Task::Grant(id, epoch, want));
            }
        }
    }

    fn later(&mut self, task: Task) {
        let from_ns = self.now_ns() + self.plan.random.below(WARDEN_MS) * 1_000_000;
        self.tasks.push((from_ns, task));
    }

    fn break_links(&mut self, a: usize, b: usize) {
        let mut unread = 0;
        for Laid { ends: [(one, _), (other, _)], cable, .. } in &self.cables {
            if (*one, *other) == (a, b) || (*one, *other) == (b, a) {
                unread += cable.under_way();
                cable.cut();
            }
        }
        if unread > 0 {
            self.count(UNREAD);
        }
    }

    /// A map that differs from the one before; each node hears of it some time later.
    fn next_map(&mut self, change: impl FnOnce(&mut Draft)) {
        if self.clients.iter().any(Client::has_large) {
            self.count(UNDER_WAY);
        }
        self.map = Arc::new(self.map.next(change).expect("a valid map"));
        let now_ns = self.now_ns();
        for at in 0..self.news.len() {
            self.news[at] = now_ns + self.plan.random.size(2_000) * 1_000_000;
        }
    }

    fn hear_of_maps(&mut self) {
        let now_ns = self.now_ns();
        for (at, machine) in self.machines.iter_mut().enumerate() {
            let Some(machine) = machine else { continue };
            if self.news[at] <= now_ns && self.paused[at].0 <= now_ns {
                machine.take(&self.map);
            }
        }
    }

    /// The process dies; the kernel tells the others.
    fn crash(&mut self, at: usize, until_ns: u64) {
        let copied = self.plan.copies > 1;
        if self.machines[at].is_none() || (copied && !warden::may_go(&self.map, node(at), self.living())) {
            return;
        }
        self.count_pendings(at, CRASHED);
        self.count_happened(at);
        self.machines[at] = None;
        self.count("crashes");
        if copied {
            self.later(Task::Remove(at, self.lives[at]));
        }
        self.restarts.insert(at, until_ns);
        let is_its = |(machine, _): At| machine == at;
        let (gone, kept): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.cables).into_iter().partition(|it| it.ends.iter().any(|end| is_its(*end)));
        self.cables = kept;
        for Laid { ends, cable, .. } in gone {
            let [first, second] = cable.into_ends();
            let (end, peer) = if is_its(ends[0]) { (ends[1], second) } else { (ends[0], first) };
            peer.reset();
            self.alone.push((end, peer));
        }
        self.alone.retain(|(end, _)| !is_its(*end));
        for client in &mut self.clients {
            if client.link.as_ref().is_some_and(|(node, ..)| *node == at) {
                client.lost(&mut self.history);
            }
        }
        self.lose(at);
    }

    /// What only this machine had is lost.
    fn lose(&mut self, at: usize) {
        let (spread, mut lost) = (&self.map.spreads[0], Vec::new());
        for (key, slot) in &self.slots {
            let group = spread.group_of(*slot);
            if group.primary == Some(node(at)) && group.others.is_empty() {
                let by = format!("n{} died", at + 1);
                let begin = self.history.moment();
                let (ask, answer, version) = (Ask::Lose, Answer::Done, None);
                let op = Op { ask, answer, version, begin, end: u64::MAX, after: None, by };
                self.history.ops.entry(*key).or_default().push(op);
                lost.push((*key, begin));
            }
        }
        self.losses.insert(at, lost);
    }

    /// Machines whose time has come start anew.
    fn restart(&mut self) {
        let now_ns = self.now_ns();
        for at in 0..self.machines.len() {
            if self.restarts.get(&at).is_none_or(|until_ns| *until_ns > now_ns) {
                continue;
            }
            self.restarts.remove(&at);
            self.lives[at] += 1;
            let life = self.lives[at];
            let living = self.living();
            let is_alone = self.map.groups_of(node(at)).any(|(_, group)| group.others.is_empty());
            let at_once = !is_alone && (at as u64 + life).is_multiple_of(2);
            let mut lost = false;
            self.next_map(|draft| {
                match at_once {
                    true => drop(draft.start_anew(node(at), &living)),
                    false => warden::remove(draft, node(at), &living),
                }
                draft.nodes[at].incarnation = life;
                draft.nodes[at].state = NodeState::Up;
                lost = draft.has_lost_groups();
                if lost {
                    let is_there = |other: &Node| other.id == node(at) || living(other.id);
                    let there: Vec<Node> = draft.nodes.iter().filter(|other| is_there(other)).cloned().collect();
                    draft.reopen(&there);
                }
            });
            if lost {
                self.count("groups opened anew");
            }
            self.start(at);
            self.later(Task::BringBack(at, life));
            for (key, begin) in self.losses.remove(&at).into_iter().flatten() {
                let end = self.history.moment();
                let ops = self.history.ops.get_mut(&key).into_iter().flatten();
                ops.filter(|op| op.begin == begin).for_each(|op| op.end = end);
            }
        }
    }

    /// Forgets connections that are over on both sides.
    fn bury(&mut self) {
        self.cables.retain(|Laid { cable, .. }| !(cable.end(0).is_closed() && cable.end(1).is_closed()));
        self.alone.retain(|(_, peer)| !peer.is_closed());
    }

    /// Nothing goes wrong any more: what is under way ends, and each object is looked at by each node.
    fn calm(&mut self) -> Result<(), String> {
        self.quiet = true;
        self.paths.clear();
        self.traps.clear();
        self.cables.iter_mut().for_each(|it| it.late_ns = 0);
        let now_ns = self.now_ns();
        self.paused.iter_mut().for_each(|paused| wake(paused, now_ns));
        self.machines.iter().flatten().for_each(|machine| machine.inside.leave_memory(None));
        self.restarts.values_mut().for_each(|until_ns| *until_ns = 0);
        self.news.iter_mut().for_each(|news_ns| *news_ns = 0);
        self.rest(6_000)?;
        let keys: Vec<usize> = self.history.ops.keys().copied().collect();
        let untold = self.history.nothing + self.history.open;
        for at in 0..self.machines.len() {
            self.clients[0].lost(&mut self.history);
            self.connect_to(0, at, at as u64);
            for key in &keys {
                let (now_ns, paused_ns) = (self.now_ns(), slept(&self.paused[at], self.now_ns()));
                self.clients[0].look(&mut self.history, *key, now_ns, paused_ns);
                while !self.clients[0].is_idle() {
                    self.step()?;
                }
            }
        }
        if self.history.nothing + self.history.open > untold {
            let last = |ops: &Vec<Op>| ops.iter().rev().take(self.machines.len()).map(|op| format!("{op}\n")).collect();
            let last: Vec<String> = self.history.ops.values().map(last).collect();
            let groups: Vec<String> = self.map.spreads[0].groups.iter().map(|group| format!("{group:?}\n")).collect();
            let text = "not all objects can be had when nothing goes wrong any more";
            return Err(format!("{text}:\n{}{}", last.concat(), groups.concat()));
        }
        for client in &mut self.clients {
            client.lost(&mut self.history);
        }
        self.plan.ops = 0;
        self.rest(1_000)?;
        self.compare()?;
        for (at, machine) in self.machines.iter().enumerate() {
            let mut unsettled = machine.as_ref().expect("all run by now").inside.unsettled();
            if self.plan.copies > 1 {
                // The requests that groups answered are kept.
                unsettled.held_bytes = 0;
            }
            if unsettled != Unsettled::default() {
                return Err(format!("{unsettled:?} are left at n{} when all clients have gone", at + 1));
            }
        }
        Ok(())
    }

    /// All members of a group have the same, and no write is pending.
    fn compare(&self) -> Result<(), String> {
        let (spread, mut of_slot) = (&self.map.spreads[0], BTreeMap::new());
        for (at, machine) in self.machines.iter().enumerate() {
            for copy in machine.as_ref().expect("all run by now").inside.copies() {
                let inside = &machine.as_ref().expect("as above").inside;
                let slot = inside.slot(&copy.name);
                if spread.group_of(slot).members().any(|member| member == node(at)) {
                    of_slot.entry((slot, copy.name.clone())).or_insert_with(Vec::new).push((at, copy));
                }
            }
        }
        for ((slot, _), copies) in of_slot {
            let group = spread.group_of(slot);
            let (first, whole) =
                (&copies[0].1, group.copies() == copies.len() && group.others.len() + 1 == copies.len());
            // What fewer nodes have than it needs stays under way until there are enough.
            let is_enough = group.copies() >= usize::from(spread.needed);
            let state = |copy: &herd_node::Copy| (copy.version, copy.value.clone());
            let differs = |copy: &herd_node::Copy| state(copy) != state(first) || is_enough && copy.pending.is_some();
            if !whole || copies.iter().any(|(_, copy)| differs(copy)) {
                let told = |(at, copy): &(usize, herd_node::Copy)| {
                    let (version, pending) = (copy.version, copy.pending);
                    format!("n{} has {} bytes, version {version}, pending {pending:?}; ", at + 1, copy.value.len())
                };
                let all: String = copies.iter().map(told).collect();
                return Err(format!("copies of {} differ: {all}{group:?}", String::from_utf8_lossy(&first.name)));
            }
        }
        Ok(())
    }

    /// Lets so much time pass.
    fn rest(&mut self, ms: u64) -> Result<(), String> {
        let end_ns = self.now_ns() + ms * 1_000_000;
        while self.now_ns() < end_ns {
            self.step()?;
        }
        Ok(())
    }

    fn judge(&mut self) -> Result<(), String> {
        let mut undecided = 0;
        for (key, ops) in &self.history.ops {
            match check(ops) {
                Verdict::Right => {}
                Verdict::TooMany => undecided += 1,
                Verdict::Wrong(why) => {
                    let mut text = format!("no order of what happened to {} explains it: {why}", name(*key));
                    ops.iter().for_each(|op| text += &format!("    {op}\n"));
                    return Err(text);
                }
            }
        }
        self.counts.insert("objects not decided", undecided);
        Ok(())
    }
}
