//! The herd's own warden, in place of the test: machines that start ask it to be let in, primaries tell it what they
//! want, it gives maps to nodes, and all of it lies in a store in virtual time.

use super::super::check::{Answer, Ask as Asked, Op};
use super::super::control::Store;
use super::super::machine::{HERD, node};
use super::super::plan::Reigning;
use super::leave::Leaving;
use super::office::Office;
use super::*;
use crate::random::Random;
use herd_core::collection::Spec;
use herd_core::control::Term;
use herd_core::place::{Life, NodeState};
use herd_core::warden::{Ask, Birth, Create, Identity, Join, Joined};
use herd_node::Leases;
use std::collections::BTreeSet;

/// How long somebody who was not answered waits before it asks again, ms.
const AGAIN_MS: u64 = 500;
/// How often primaries tell what they want, ms.
const WANTS_MS: u64 = 200;
/// How long it takes a herd to begin at most, ms.
const BEGINS_MS: u64 = 30_000;

pub(super) const DIED: &str = "wardens that died";
pub(super) const PAUSED: &str = "wardens paused for longer than their term";
pub(super) const APART: &str = "nodes that do not hear the warden";
pub(super) const HEARD_LATE: &str = "nodes that led or answered something, and hear late that they do no more";
pub(super) const LEAD_MOVED: &str = "leads that moved with a copy, while clients asked";
pub(super) const MOVED: &str = "stores that went on somewhere else";
pub(super) const STORE_GONE: &str = "stores gone while a change was under way";
pub(super) const SECOND: &str = "wardens that came after another one";
pub(super) const JOINED_AMID: &str = "nodes that joined while writes were pending";

/// See the module.
pub(super) struct Reign {
    pub(super) store: Store,
    pub(super) offices: Vec<Office>,
    starting: BTreeMap<usize, Starting>,
    /// Nodes that are about to end, and when which ends are told.
    pub(super) leaving: BTreeMap<usize, Leaving>,
    pub(super) obituaries: Vec<(u64, Life)>,
    pub(super) random: Random,
    /// Processes so far.
    processes: u64,
    asked_ns: u64,
    letters: Vec<Letter>,
    /// The last term that a map had, and who wrote it.
    term: Term,
    /// Nodes that died and had all of a group, since it was whole.
    deaths: BTreeMap<GroupId, usize>,
    /// Lives that have ended.
    died: BTreeSet<(NodeId, u64)>,
}

/// A process that wants to be a node.
struct Starting {
    process: [u8; 16],
    pipes: Pipes,
    leases: Arc<Leases>,
    again_ns: u64,
}

/// A map on its way to a machine.
struct Letter {
    from: usize,
    to: usize,
    due_ns: u64,
    map: Arc<Map>,
    held: bool,
}

impl Reign {
    pub(super) fn new(seed: u64, is_embedded: bool) -> Self {
        let (offices, starting, letters, deaths) = <_>::default();
        let (leaving, obituaries, died) = <_>::default();
        let (store, random) = (Store::new(seed, is_embedded), Random::new(seed ^ 0x4E1_6401));
        let (processes, asked_ns, term) = (0, 0, 0);
        Self { store, offices, starting, leaving, obituaries, random, processes, asked_ns, letters, term, deaths, died }
    }

    /// Somebody asks all wardens, whose answer nobody waits for.
    fn ask_all(&mut self, ask: &Ask) {
        for office in &mut self.offices {
            office.ask(ask.clone());
        }
    }

    /// Whether a machine may have the warden.
    fn is_seat(&self, at: usize) -> bool {
        at == 0 || at == 1 && !self.store.is_embedded
    }
}

impl<S: Service> World<S> {
    /// The herd begins: one node after the other joins, then it may hold objects.
    pub(super) fn begin(&mut self) -> Result<(), String> {
        let until_ns = self.now_ns() + BEGINS_MS * 1_000_000;
        for at in 0..self.plan.nodes {
            self.begin_process(at);
            while self.machines[at].is_none() || self.map.nodes.len() <= at {
                self.go_on(until_ns)?;
            }
        }
        while !self.is_held() {
            self.go_on(until_ns)?;
        }
        Ok(())
    }

    fn go_on(&mut self, until_ns: u64) -> Result<(), String> {
        if self.now_ns() > until_ns {
            return Err("the herd does not begin".into());
        }
        self.step()
    }

    /// Whether the herd may hold objects.
    pub(super) fn is_held(&self) -> bool {
        let held = |reign: &Reign| reign.store.map.as_ref().is_some_and(|(_, held)| *held);
        self.reign.as_deref().is_none_or(held)
    }

    /// A process starts on a machine: it has the warden, where that may be, and wants to be a node.
    pub(super) fn begin_process(&mut self, at: usize) {
        let now_ns = self.now_ns();
        let pipes = self.clock.another_slower(self.plan.lags[at]);
        wake(&mut self.paused[at], now_ns);
        self.begun = self.begun.max(at + 1);
        let copies = self.plan.copies;
        let Some(reign) = &mut self.reign else { return };
        reign.processes += 1;
        let leases = Leases::new(Arc::new(pipes.clock()));
        let mut process = [at as u8; 16];
        process[8..].copy_from_slice(&reign.processes.to_le_bytes());
        if reign.is_seat(at) {
            let birth = Birth {
                herd: HERD,
                hash_key: [7; 16],
                epoch: 1,
                protocol_min: herd_core::wire::LINK_PROTOCOL_LEAST.into(),
                evict: self.plan.evicts,
                copies: Some(copies).filter(|_| !self.plan.evicts),
            };
            let name = format!("n{} process {}", at + 1, reign.processes);
            reign.offices.push(Office::new(at, name, Some(birth).filter(|_| at == 0), leases.clone()));
        }
        reign.starting.insert(at, Starting { process, pipes, leases, again_ns: now_ns });
    }

    /// The store, the wardens, and who asks them, go on.
    pub(super) fn govern(&mut self) {
        let Some(mut reign) = self.reign.take() else { return };
        reign.store.pass(self.now_ns());
        if std::mem::take(&mut reign.store.has_news) {
            self.see_map(&mut reign);
        }
        self.wrong = self.wrong.take().or(reign.store.wrong.take());
        (0..reign.offices.len()).for_each(|number| self.drive(&mut reign, number));
        self.ask_to_join(&mut reign);
        self.tell(&mut reign);
        self.tell_of_ends(&mut reign);
        self.deliver(&mut reign);
        self.reign = Some(reign);
    }

    /// Whether something said by one machine is heard by the other now.
    pub(super) fn hears(&mut self, a: usize, b: usize) -> bool {
        let (now_ns, path) = (self.now_ns(), *self.path(a, b));
        a == b || path.cut_ns.max(path.silent_ns) <= now_ns
    }

    /// Processes that are no nodes yet ask some warden.
    fn ask_to_join(&mut self, reign: &mut Reign) {
        let now_ns = self.now_ns();
        let due = |(_, it): &(&usize, &mut Starting)| it.again_ns <= now_ns;
        let due: Vec<_> = reign
            .starting
            .iter_mut()
            .filter(due)
            .map(|(at, it)| {
                it.again_ns = now_ns + (AGAIN_MS + reign.random.below(AGAIN_MS)) * 1_000_000;
                (*at, it.process)
            })
            .collect();
        let wardens = reign.offices.len() as u64;
        for (at, process) in due.into_iter().filter(|_| wardens > 0) {
            let number = reign.random.below(wardens) as usize;
            let to = reign.offices[number].at;
            // It is proved who asks, with words that go both ways: so nobody asks who stands still.
            if self.paused[at].0.max(self.paused[to].0) <= now_ns && self.hears(at, to) {
                let office = &mut reign.offices[number];
                let ticket = office.ask(Ask::Join(Join { evict: self.plan.evicts, ..join(at, process) }));
                office.joins.insert(ticket, (at, process));
            }
        }
    }

    /// A process was let in; it may hear of it.
    pub(super) fn let_in(
        &mut self,
        reign: &mut Reign,
        (at, process): (usize, [u8; 16]),
        from: usize,
        joined: &Joined,
        pushed: Option<(Arc<Map>, bool)>,
    ) {
        let is_it = reign.starting.get(&at).is_some_and(|it| it.process == process);
        let Some((map, held)) = pushed.filter(|_| is_it && self.hears(at, from)) else { return };
        let Some(Starting { pipes, leases, .. }) = reign.starting.remove(&at) else { return };
        if joined.node != node(at) {
            let is_known = |(map, _): &(Arc<Map>, bool)| map.node(node(at)).is_some();
            // Another one may have that number since somebody was forgotten: then the run is over already.
            let is_known = !self.is_over && reign.store.map.as_ref().is_some_and(is_known);
            assert!(!is_known, "a node of the map joins as another one");
            // It had drained, and was forgotten when it ended.
            self.is_over = true;
            return;
        }
        if self.any_pending() {
            self.count(JOINED_AMID);
        }
        self.lives[at] = joined.incarnation;
        self.start_node(at, pipes, leases);
        if let Some(machine) = &mut self.machines[at] {
            machine.pushes = reign.is_seat(at) && reign.random.chance(50);
            machine.take(&map, held);
        }
    }

    fn any_pending(&self) -> bool {
        self.machines.iter().flatten().any(|machine| !machine.inside.pendings().is_empty())
    }

    /// Primaries tell what they want, and somebody asks for leave to hold objects.
    fn tell(&mut self, reign: &mut Reign) {
        let now_ns = self.now_ns();
        if now_ns < reign.asked_ns + WANTS_MS * 1_000_000 {
            return;
        }
        reign.asked_ns = now_ns;
        let wardens = reign.offices.len() as u64;
        for at in (0..self.begun).filter(|_| wardens > 0) {
            let number = reign.random.below(wardens) as usize;
            let to = reign.offices[number].at;
            let hears = self.paused[at].0 <= now_ns && self.hears(at, to);
            let Some(machine) = self.machines[at].as_mut().filter(|_| hears) else { continue };
            for wants in machine.wanted().chunks(herd_core::limits::WANTS_MAX) {
                reign.offices[number].ask(Ask::Wants(wants.to_vec()));
            }
        }
        // Who missed a map, or was not there, is given it again.
        for number in 0..reign.offices.len() {
            if reign.random.chance(10)
                && let Some((map, held)) = reign.offices[number].pushed.clone()
            {
                self.send_map(reign, number, &map, held);
            }
        }
        let is_empty = reign.store.map.as_ref().is_none_or(|(map, held)| *held || map.nodes.len() < self.plan.nodes);
        if !is_empty {
            reign.ask_all(&Ask::Hold);
        }
    }

    /// A warden gives a map to all nodes, each at a time of its own.
    pub(super) fn send_map(&mut self, reign: &mut Reign, number: usize, map: &Arc<Map>, held: bool) {
        let (from, now_ns) = (reign.offices[number].at, self.now_ns());
        for to in 0..self.begun {
            let ms = if to == from { reign.random.size(50) } else { reign.random.size(2_000) };
            let due_ns = now_ns + ms * 1_000_000;
            reign.letters.push(Letter { from, to, due_ns, map: map.clone(), held });
        }
    }

    fn deliver(&mut self, reign: &mut Reign) {
        let now_ns = self.now_ns();
        reign.letters.retain(|letter| {
            if letter.due_ns > now_ns {
                return true;
            }
            let is_deaf = letter.to != letter.from && self.deaf[letter.to] > now_ns;
            let hears = !is_deaf && self.paused[letter.to].0 <= now_ns && self.hears(letter.from, letter.to);
            if let Some(machine) = self.machines[letter.to].as_mut().filter(|_| hears) {
                machine.take(&letter.map, letter.held);
            }
            !hears
        });
    }

    /// The store has another map.
    fn see_map(&mut self, reign: &mut Reign) {
        let Some((map, _)) = reign.store.map.clone() else { return };
        if self.clients.iter().any(Client::has_large) {
            self.count(UNDER_WAY);
        }
        let old = std::mem::replace(&mut self.map, map.clone());
        if reign.term > 0 && map.term > reign.term {
            self.count(SECOND);
        }
        reign.term = map.term;
        self.count_changes(&old);
        self.hear_late(reign, &old);
        self.see_removals(&old);
        self.see_new_homes();
        self.see_moves(&old);
        self.see_forgotten(&old);
        self.see_losses(reign, &old);
        self.note_late_deaths(reign, &old);
        self.forget_deaths(reign);
    }

    /// A node that gave all away and is silent is none of the herd any more: the run is over.
    fn see_forgotten(&mut self, old: &Map) {
        self.is_over |= old.nodes.iter().any(|node| self.map.node(node.id).is_none());
    }

    /// A lead goes on to another node, as copies move, while clients write.
    fn see_moves(&mut self, old: &Map) {
        let Some((before, now)) = old.spreads.first().zip(self.map.spreads.first()) else { return };
        let copies = usize::from(now.copies);
        let moves = |(before, now): &(&Group, &Group)| {
            let is_there =
                |id| self.map.node(id).is_some_and(|node| matches!(node.state, NodeState::Up | NodeState::Draining));
            before.copies() > copies && before.primary.is_some_and(is_there) && now.primary != before.primary
        };
        if !self.quiet && before.groups.iter().zip(&now.groups).any(|both| moves(&both)) {
            self.count(LEAD_MOVED);
        }
    }

    /// Who led something, or answered reads of it, and does not any more often hears late of it.
    fn hear_late(&mut self, reign: &mut Reign, old: &Map) {
        let Some((before, now)) = old.spreads.first().zip(self.map.spreads.first()) else { return };
        let both = before.groups.iter().zip(&now.groups);
        let ends = |id: &NodeId, (before, now): (&Group, &Group)| {
            before.primary == Some(*id) && now.primary != Some(*id) || answers(before, *id) && !answers(now, *id)
        };
        let less = both.flat_map(|pair| pair.0.members().filter(move |id| ends(id, pair)));
        let less: BTreeSet<NodeId> = less.collect();
        for id in less {
            let at = id.0.get() as usize - 1;
            let chance = if reign.leaving.contains_key(&at) { 15 } else { 50 };
            if !self.quiet && self.machines[at].is_some() && reign.random.chance(chance) {
                let ms = 300 + reign.random.below(1_000);
                self.deaf[at] = self.deaf[at].max(self.now_ns() + ms * 1_000_000);
                self.count(HEARD_LATE);
            }
        }
    }

    /// Nodes are taken out as silent.
    fn see_removals(&mut self, old: &Map) {
        let state = |map: &Map, id| map.node(id).map(|node| node.state);
        let is_out = |id| (state(old, id), state(&self.map, id)) == (Some(NodeState::Up), Some(NodeState::Down));
        let out: Vec<NodeId> = self.map.nodes.iter().map(|node| node.id).filter(|id| is_out(*id)).collect();
        for id in out {
            let at = id.0.get() as usize - 1;
            let lives = self.machines[at].is_some();
            self.count(if lives { SILENT } else { DEAD });
            self.count_pendings(at, SILENT_PENDING);
        }
    }

    /// What a group held is lost: that must be more than it was to outlive.
    fn see_losses(&mut self, reign: &mut Reign, old: &Map) {
        let Some((before, now)) = old.spreads.first().zip(self.map.spreads.first()) else { return };
        let is_lost = |slot: usize| now.group_of(slot).lost > before.group_of(slot).lost;
        for (key, slot) in self.slots.iter().filter(|(_, slot)| is_lost(**slot)) {
            let (id, group) = (GroupId { spread: 0, number: before.slots[*slot] }, before.group_of(*slot));
            // Who died before the map told that it had all is not among those that were counted.
            let dead = group.eligible.iter().filter(|id| !self.is_alive(**id)).count();
            let deaths = reign.deaths.get(&id).copied().unwrap_or(0).max(dead);
            // Where nobody had anything it was opened and lost between two maps that are seen here.
            if deaths < usize::from(before.needed) && !group.eligible.is_empty() {
                self.wrong = Some(format!("{id:?} is lost after {deaths} deaths: {group:?}"));
            }
            let (begin, end) = (self.history.moment(), self.history.moment());
            let by = format!("epoch {}", self.map.epoch);
            let op = Op { ask: Asked::Lose, answer: Answer::Done, version: None, begin, end, after: None, by };
            self.history.ops.entry(*key).or_default().push(op);
        }
    }

    /// A node dies that had all of some groups; who is about to leave one has all of it, too.
    pub(super) fn note_death(&mut self, at: usize) {
        let Some(reign) = &mut self.reign else { return };
        reign.died.insert((node(at), self.lives[at]));
        for (number, group) in self.map.spreads[0].groups.iter().enumerate() {
            if group.eligible.contains(&node(at)) || group.sealed().any(|id| id == node(at)) {
                *reign.deaths.entry(GroupId { spread: 0, number: number as u16 }).or_default() += 1;
            }
        }
    }

    /// Who died just before the map told that it had all of a group did have it.
    fn note_late_deaths(&self, reign: &mut Reign, old: &Map) {
        let Some((before, now)) = old.spreads.first().zip(self.map.spreads.first()) else { return };
        let has_died = |id: NodeId| {
            let life = self.map.node(id).map(|node| (id, node.incarnation));
            life.is_some_and(|life| reign.died.contains(&life))
        };
        for (number, (before, now)) in before.groups.iter().zip(&now.groups).enumerate() {
            let is_noted = |id: NodeId| before.eligible.contains(&id) || before.sealed().any(|sealed| sealed == id);
            let dead = now.eligible.iter().filter(|id| !is_noted(**id) && has_died(**id)).count();
            if dead > 0 {
                *reign.deaths.entry(GroupId { spread: 0, number: number as u16 }).or_default() += dead;
            }
        }
    }

    /// Groups that are whole begin anew.
    fn forget_deaths(&self, reign: &mut Reign) {
        let copies = usize::from(self.plan.copies);
        let lives = |group: &Group| group.full().all(|id| self.is_alive(id));
        reign.deaths.retain(|id, _| self.map.group(*id).is_none_or(|it| it.copies() < copies || !lives(it)));
    }

    /// Whether a node runs in the life that the map knows.
    pub(super) fn is_alive(&self, id: NodeId) -> bool {
        let at = id.0.get() as usize - 1;
        let life = self.machines.get(at).filter(|machine| machine.is_some()).map(|_| self.lives[at]);
        life.is_some() && self.map.node(id).map(|node| node.incarnation) == life
    }

    /// A machine's process is over, and with it its warden.
    pub(super) fn end_process(&mut self, at: usize) {
        let Some(reign) = &mut self.reign else { return };
        reign.starting.remove(&at);
        for office in reign.offices.extract_if(.., |office| office.at == at) {
            reign.store.forget(&office.name);
        }
    }

    /// Where the herd is not as it is to be when all is well; `None`: nowhere.
    pub(super) fn shortfall(&self) -> Option<String> {
        let spread = self.map.spreads.first()?;
        let copies = usize::from(spread.copies).min(self.map.nodes.len());
        let is_whole = |group: &Group| group.copies() == copies && group.others.len() + 1 == copies;
        let is_there = |at: usize| {
            let map = self.machines[at].as_ref().and_then(|it| it.map.as_ref());
            // One that nobody changed has the term of who gave it last.
            map.is_some_and(|map| (map.epoch, map.revision) == (self.map.epoch, self.map.revision))
        };
        if let Some(at) = (0..self.begun).find(|at| !is_there(*at)) {
            return Some(format!("n{} is not there, or has an older map", at + 1));
        }
        let is_out = |node: &&herd_core::place::Node| node.state != NodeState::Up;
        let short = spread.groups.iter().find(|group| !is_whole(group)).map(|group| format!("{group:?}"));
        short.or(self.map.nodes.iter().find(is_out).map(|node| format!("{node:?}")))
    }
}

impl<S: Service> World<S> {
    /// Who is in office, as the store says: its machine.
    pub(super) fn in_office(&self) -> Option<usize> {
        let reign = self.reign.as_ref()?;
        let holder = reign.store.holder(self.now_ns());
        reign.offices.iter().find(|office| Some(&office.name) == holder.as_ref()).map(|office| office.at)
    }

    pub(super) fn fail_reign(&mut self, fault: Reigning) {
        let (now_ns, lord) = (self.now_ns(), self.in_office());
        let until = |ms: u64| now_ns + ms * 1_000_000;
        match (fault, lord) {
            (Reigning::Die(ms), Some(lord)) => {
                self.crash(lord, until(ms));
                if self.machines[lord].is_none() {
                    self.count(DIED);
                }
            }
            (Reigning::Pause(ms), Some(lord)) if self.paused[lord].0 <= now_ns => {
                self.paused[lord] = (until(ms), self.paused[lord].1 + ms * 1_000_000);
                self.count(PAUSED);
            }
            (Reigning::Apart(at, ms), Some(lord)) if at != lord => {
                self.path(at, lord).silent_ns = until(ms);
                self.count(APART);
            }
            (Reigning::Move(at, ms), lord) => {
                let other = usize::from(lord == Some(0));
                if at != other {
                    self.path(at, other).silent_ns = until(3 * ms);
                }
                self.traps.push(Trap::Move(until(2 * ms)));
            }
            (Reigning::Ail(trouble, ms), _) => {
                self.reign.iter_mut().for_each(|reign| reign.store.ail(trouble, until(ms)));
                // Something is to be written meanwhile.
                self.change_collection(2 + 3 * ms);
                self.change_collection(3 * ms);
            }
            (Reigning::Drain(at, ms), Some(lord)) if at != lord => {
                self.drain(at, false);
                self.traps.push(Trap::Stay(at, until(ms)));
            }
            (Reigning::Leave(at, ms), _) => self.leave(at, ms),
            (Reigning::Join, _) if self.begun < self.machines.len() && self.machines[self.begun - 1].is_some() => {
                self.begin_process(self.begun);
            }
            (Reigning::Collection(draw), _) => self.change_collection(draw),
            _ => {}
        }
    }

    /// The store goes on somewhere else, with another warden.
    pub(super) fn move_store(&mut self) {
        let (lord, now_ns) = (self.in_office(), self.now_ns());
        if let Some(reign) = self.reign.as_mut().filter(|reign| !reign.store.is_embedded) {
            let other = reign.offices.iter().find(|office| Some(office.at) != lord).map(|office| office.name.clone());
            other.into_iter().for_each(|other| reign.store.anew_for(&other, now_ns));
            self.count(MOVED);
        }
    }

    /// A node is to give all away, or stays. Not while the herd holds nothing: groups are planned anew then.
    pub(super) fn drain(&mut self, at: usize, stays: bool) {
        if !self.is_held() {
            return;
        }
        let ask = Ask::Drain { name: format!("n{}", at + 1), stays };
        self.reign.iter_mut().for_each(|reign| reign.ask_all(&ask));
    }

    /// All nodes that drain are to stay.
    pub(super) fn end_drains(&mut self) {
        for at in 0..self.begun {
            let state = self.map.node(node(at)).map(|node| node.state);
            if state == Some(NodeState::Draining) {
                self.drain(at, true);
            }
        }
    }

    fn change_collection(&mut self, draw: u64) {
        let name = format!("c{}", draw % 2);
        let ask = match draw % 3 {
            0 => Ask::Flush { name },
            1 => Ask::Destroy { name },
            _ => Ask::Create(Create { name, spec: Spec::of("ram:1"), copies: None, spread: None }),
        };
        self.reign.iter_mut().for_each(|reign| reign.ask_all(&ask));
    }
}

/// What the node of a machine says of itself.
fn join(at: usize, process: [u8; 16]) -> Join {
    Join {
        herd: None,
        protocol: herd_core::wire::LINK_PROTOCOL.into(),
        identity: Identity([at as u8; 16]),
        process,
        name: format!("n{}", at + 1),
        addresses: vec![format!("127.0.0.1:{}", 7001 + at)],
        host: format!("h{}", at + 1),
        rack: String::new(),
        memory_bytes: 1 << 30,
        evict: false,
        moved: None,
    }
}
