//! Several wardens over one store, by chance, from a seed: replies are lost, calls come late, wardens pause past their
//! lease and die; nodes start anew, clients make, empty and remove collections.
//!
//! Held against: one map for each epoch and revision; numbers given once; each request answered at most once; answers
//! that agree with what is there, as far as it is known; and in the end, one warden whose map is what was answered.

use super::super::layout::load;
use super::*;
use crate::chance::Chance;
use crate::control::{Control, Txn};
use crate::error::ErrorKind;
use crate::key::CollectionId;
use crate::limits::OFFICE_LEASE_MS;
use crate::place::{Collection, Draft, Member, Standing};
use std::collections::{BTreeMap, BTreeSet};

const WARDENS: usize = 3;
const NODES: usize = 4;
const CLIENTS: usize = 3;
const STEPS: usize = 500;
const SEEDS: u64 = 40;

/// A warden and its one call that is under way.
struct Seat {
    warden: Warden,
    call: Option<Call>,
    lives: u32,
    /// Steps until it goes on: until then its clock stands, and it is asked all the same.
    paused: usize,
}

/// Who asks one thing after the other.
struct Asker {
    out: Option<(usize, Ticket, Ask)>,
    /// A node: its life, and whether it is in.
    life: u8,
    joined: Option<Joined>,
    /// A client: whether its collection is there, and in which generation; `None`: not known.
    exists: Option<bool>,
    generation: Option<u32>,
}

struct World {
    chance: Chance,
    store: Table,
    now_ms: u64,
    seats: Vec<Seat>,
    /// Transactions whose callers were told that nothing is known.
    late: Vec<Txn>,
    askers: Vec<Asker>,
    tickets: Ticket,
    faults: bool,
    /// Maps by epoch and revision, their term taken out; and whether, by the last push of each, the herd may hold
    /// objects.
    maps: BTreeMap<(u32, u64), (Draft, bool)>,
    /// Processes by number and life.
    lives: BTreeMap<(NodeId, u64), [u8; 16]>,
    /// Ids of collections.
    ids: BTreeSet<CollectionId>,
    answered: u64,
    unknown: u64,
}

impl World {
    fn new(seed: u64) -> Self {
        let asker = |_| Asker { out: None, life: 1, joined: None, exists: Some(false), generation: None };
        let mut world = Self {
            chance: Chance(seed),
            store: Table::default(),
            now_ms: 0,
            seats: Vec::new(),
            late: Vec::new(),
            askers: (0..NODES + CLIENTS).map(asker).collect(),
            tickets: 0,
            faults: true,
            maps: BTreeMap::new(),
            lives: BTreeMap::new(),
            ids: BTreeSet::new(),
            answered: 0,
            unknown: 0,
        };
        world.seats =
            (0..WARDENS).map(|seat| Seat { warden: warden(seat, 0), call: None, lives: 0, paused: 0 }).collect();
        world
    }

    fn step(&mut self) {
        let seat = self.chance.index(WARDENS);
        self.seats.iter_mut().for_each(|seat| seat.paused = seat.paused.saturating_sub(1));
        match self.chance.below(100) {
            0..50 if self.seats[seat].paused > 0 => {}
            0..30 => self.deliver(seat),
            30..50 => {
                self.now_ms += self.chance.below(400);
                let orders = self.seats[seat].warden.tick(self.now_ms);
                self.carry_out(seat, orders);
            }
            50..52 if self.faults => self.now_ms += self.chance.below(8_000),
            52..53 if self.faults => {
                self.now_ms += OFFICE_LEASE_MS;
                self.seats[seat].paused = 150;
            }
            53..54 if self.faults => self.die(seat),
            54..57 => self.come_late(),
            57..70 => self.have(seat),
            _ => {
                let asker = self.chance.index(self.askers.len());
                let in_office = (0..WARDENS).filter(|seat| self.seats[*seat].warden.map().is_some());
                let likely = in_office.collect::<Vec<_>>();
                let likely = self.chance.one_of(&likely).filter(|_| self.chance.below(4) > 0);
                self.ask(asker, likely.unwrap_or(seat));
            }
        }
    }

    /// The call of a warden is made, or seems to be.
    fn deliver(&mut self, seat: usize) {
        let Some(call) = self.seats[seat].call.take() else { return };
        let unknown = || Err(ControlError::Unknown("a test".into()));
        let fate = if self.faults { self.chance.below(20) } else { 19 };
        let reply = match fate {
            0 => unknown(),
            1 => Err(ControlError::Unreachable("a test".into())),
            2 => Err(ControlError::Full("a test".into())),
            3 | 4 => {
                call.run(&mut self.store, self.now_ms).ok();
                unknown()
            }
            5 => {
                if let Call::Txn(txn) = call {
                    self.late.push(txn);
                }
                unknown()
            }
            _ => call.run(&mut self.store, self.now_ms),
        };
        let orders = self.seats[seat].warden.reply(reply, self.now_ms);
        self.carry_out(seat, orders);
    }

    fn come_late(&mut self) {
        if !self.late.is_empty() {
            let at = self.chance.index(self.late.len());
            let txn = self.late.swap_remove(at);
            self.store.txn(&txn).expect("a transaction within its limits");
        }
    }

    fn die(&mut self, seat: usize) {
        let lives = self.seats[seat].lives + 1;
        if let Some(Call::Txn(txn)) = self.seats[seat].call.take() {
            self.late.push(txn);
        }
        self.seats[seat] = Seat { warden: warden(seat, lives), call: None, lives, paused: 0 };
        let asked: Vec<usize> =
            (0..self.askers.len()).filter(|n| self.askers[*n].out.as_ref().is_some_and(|out| out.0 == seat)).collect();
        for asker in asked {
            let (_, _, ask) = self.askers[asker].out.take().expect("it has asked");
            self.learn(asker, &ask, Err(Refusal::Unknown));
        }
    }

    fn have(&mut self, seat: usize) {
        let Some(map) = self.seats[seat].warden.map().cloned() else { return };
        let linked = self.askers.iter().filter_map(|asker| asker.joined.as_ref());
        let linked = linked.map(|joined| joined.node).collect();
        self.seats[seat].warden.links(linked);
        for asker in 0..NODES {
            if let Some(joined) = self.askers[asker].joined.clone() {
                let orders = self.seats[seat].warden.have(joined.node, joined.incarnation, map.epoch, map.revision);
                self.carry_out(seat, orders);
            }
        }
    }

    fn ask(&mut self, asker: usize, seat: usize) {
        if self.askers[asker].out.is_some() {
            return;
        }
        let ask = if asker < NODES { self.node_asks(asker) } else { self.client_asks(asker) };
        self.tickets += 1;
        self.askers[asker].out = Some((seat, self.tickets, ask.clone()));
        let orders = self.seats[seat].warden.ask(self.tickets, ask);
        self.carry_out(seat, orders);
    }

    fn node_asks(&mut self, asker: usize) -> Ask {
        let begins_anew = self.faults && self.chance.below(6) == 0;
        let node = &mut self.askers[asker];
        if begins_anew {
            (node.life, node.joined) = (node.life.wrapping_add(1), None);
        }
        match node.joined {
            Some(_) => Ask::Hold,
            None => Ask::Join(join(asker as u8 + 1, node.life)),
        }
    }

    fn client_asks(&mut self, asker: usize) -> Ask {
        let name = format!("c{asker}");
        match self.chance.below(4) {
            0 => Ask::Destroy { name },
            1 | 2 => Ask::Flush { name },
            _ => Ask::Create(create(&name, "ram:1")),
        }
    }

    fn carry_out(&mut self, seat: usize, orders: Vec<Order>) {
        for order in orders {
            match order {
                Order::Store(call) => assert!(self.seats[seat].call.replace(call).is_none(), "one call at a time"),
                Order::Push { map, held } => {
                    let bare = Draft { term: 0, ..Draft::clone(&map) };
                    let there = self.maps.entry((map.epoch, map.revision)).or_insert_with(|| (bare.clone(), held));
                    assert!(there.0 == bare, "two maps of epoch {} revision {}", map.epoch, map.revision);
                    there.1 |= held;
                }
                Order::Answer(ticket, answer) => self.answer(seat, ticket, answer),
                Order::Tell(text) => panic!("{text}"),
            }
        }
    }

    fn answer(&mut self, seat: usize, ticket: Ticket, answer: Result<Answer, Refusal>) {
        let asked = |asker: &Asker| asker.out.as_ref().is_some_and(|out| (out.0, out.1) == (seat, ticket));
        let asker = self.askers.iter().position(asked).expect("an answer to what was asked, and not answered yet");
        let (_, _, ask) = self.askers[asker].out.take().expect("it has asked");
        self.answered += 1;
        self.learn(asker, &ask, answer);
    }

    /// Whether objects were lost: their collections were emptied then by nobody's request.
    fn has_lost(&self) -> bool {
        let groups = |map: &Draft| map.spreads.iter().any(|spread| spread.groups.iter().any(|group| group.lost > 0));
        self.maps.values().any(|(map, _)| groups(map))
    }

    /// What an answer says must be so, as far as is known; from then on it is known.
    fn learn(&mut self, asker: usize, ask: &Ask, answer: Result<Answer, Refusal>) {
        let has_lost = self.has_lost();
        let asking = &mut self.askers[asker];
        match (ask, answer) {
            (_, Err(Refusal::NotWarden(_) | Refusal::Busy | Refusal::Store(_)))
            | (Ask::Hold, Err(Refusal::Missing(_) | Refusal::Away(_))) => {}
            (Ask::Join(join), Ok(Answer::Joined(joined))) => {
                let process = *self.lives.entry((joined.node, joined.incarnation)).or_insert(join.process);
                assert_eq!(process, join.process, "a life is one process's");
                asking.joined = Some(joined);
            }
            (Ask::Join(_) | Ask::Hold, Err(Refusal::Unknown)) | (Ask::Hold, Ok(Answer::Held)) => {}
            (Ask::Create(_), Ok(Answer::Created(id))) => {
                let new = self.ids.insert(id);
                assert!(asking.exists.is_none_or(|exists| exists != new), "an id is given once, and stays");
                let generation = if asking.exists == Some(false) { Some(1) } else { asking.generation };
                (asking.exists, asking.generation) = (Some(true), generation);
            }
            (Ask::Flush { .. }, Ok(Answer::Flushed { generation })) => {
                assert_ne!(asking.exists, Some(false), "what is not there can't be emptied");
                let is_next = |known: u32| generation == known + 1 || has_lost && generation > known;
                assert!(asking.generation.is_none_or(is_next), "emptied once");
                (asking.exists, asking.generation) = (Some(true), Some(generation));
            }
            (Ask::Destroy { .. }, Ok(Answer::Destroyed)) => {
                assert_ne!(asking.exists, Some(false), "what is not there can't be removed");
                asking.exists = Some(false);
            }
            (
                Ask::Create(_) | Ask::Flush { .. } | Ask::Destroy { .. },
                Err(Refusal::Unknown | Refusal::NotTold { .. }),
            ) => {
                self.unknown += 1;
                (asking.exists, asking.generation) = (None, None);
            }
            (Ask::Flush { .. } | Ask::Destroy { .. }, Err(Refusal::Collection(error))) => {
                assert_eq!(error.kind, ErrorKind::NoCollection);
                assert_ne!(asking.exists, Some(true), "what is there is found");
                asking.exists = Some(false);
            }
            // Before the first node, or a link to it.
            (Ask::Create(_), Err(Refusal::Collection(error))) => {
                assert!(matches!(error.kind, ErrorKind::BadRequest | ErrorKind::Unreachable), "{error}");
            }
            (ask, answer) => panic!("{ask:?} was answered {answer:?}"),
        }
    }

    /// No more faults: one warden remains, all ask until they know, and what they know is so.
    fn settle(&mut self) {
        self.faults = false;
        self.late.drain(..).for_each(|txn| drop(self.store.txn(&txn)));
        for _ in 0..200 {
            self.now_ms += 300;
            for seat in 0..WARDENS {
                let orders = self.seats[seat].warden.tick(self.now_ms);
                self.carry_out(seat, orders);
                while self.seats[seat].call.is_some() {
                    self.deliver(seat);
                }
                self.have(seat);
                for node in 0..NODES {
                    if self.askers[node].joined.is_none() {
                        self.ask(node, seat);
                    }
                }
                while self.seats[seat].call.is_some() {
                    self.deliver(seat);
                }
            }
        }
        let kept = load(&self.store.all().entries).expect("a herd").expect("it is there");
        let has_lost = self.has_lost();
        let in_office: Vec<_> = self.seats.iter().filter_map(|seat| seat.warden.map()).collect();
        assert_eq!(in_office.len(), 1);
        assert_eq!(Draft { term: 0, ..Draft::clone(in_office[0]) }, Draft { term: 0, ..Draft::clone(&kept.state.map) });
        for (n, asker) in self.askers.iter().enumerate() {
            assert!(asker.out.is_none(), "all is answered");
            let there = kept.state.map.collection(&format!("c{n}"));
            if n < NODES {
                let joined = asker.joined.as_ref().expect("all are in");
                assert_eq!(kept.state.map.node(joined.node).map(|node| node.incarnation), Some(joined.incarnation));
            } else if let Some(exists) = asker.exists {
                assert_eq!(there.is_some(), exists);
                let is_known = |it: &Collection, known| it.generation == known || has_lost && it.generation > known;
                assert!(asker.generation.is_none_or(|known| there.is_none_or(|it| is_known(it, known))));
            }
        }
    }

    /// While somebody holds objects slots stay where they are, and so do members, but who lost its memory is syncing;
    /// who leads had all. Where nobody is left, they begin anew.
    fn check_held(&self) {
        let maps: Vec<&Draft> = self.maps.values().filter(|(_, held)| *held).map(|(map, _)| map).collect();
        for pair in maps.windows(2) {
            let [before, after] = [pair[0], pair[1]];
            let incarnation = |map: &Draft, node| map.node(node).map(|it| it.incarnation);
            let lives = |node: &NodeId| incarnation(before, *node) == incarnation(after, *node);
            for spread in &before.spreads {
                let new = after.spread(spread.id).expect("spread groups stay");
                // Who was syncing has half of it, which is nothing.
                if !spread.groups.iter().any(|group| group.eligible.iter().any(lives)) {
                    continue;
                }
                assert_eq!(spread.slots, new.slots);
                for (old, new) in spread.groups.iter().zip(&new.groups) {
                    let left: BTreeSet<NodeId> = old.members().collect();
                    let members: Vec<NodeId> = new.members().collect();
                    let is_syncing = |member: &Member| member.standing == Standing::Syncing || lives(&member.node);
                    let stays = new.primary.is_none_or(|primary| old.eligible.contains(&primary) && lives(&primary))
                        && new.others.iter().all(is_syncing)
                        && (left.iter().all(|node| members.contains(node)) || new.primary.is_none());
                    let lost = !old.eligible.iter().any(lives);
                    let again = lost && members == new.eligible && new.primary_since > before.epoch;
                    assert!(stays || again, "epoch {}: {old:?} {new:?}", after.epoch);
                }
            }
        }
    }
}

fn warden(seat: usize, lives: u32) -> Warden {
    Warden::new(config(&format!("warden {seat}, life {lives}")))
}

#[test]
fn wardens_race_by_chance_and_one_map_follows_the_other() {
    let (mut answered, mut unknown, mut terms) = (0, 0, 0);
    for seed in 0..SEEDS {
        let result = std::panic::catch_unwind(|| {
            let mut world = World::new(seed);
            (0..STEPS).for_each(|_| world.step());
            world.settle();
            world.check_held();
            (world.answered, world.unknown, world.store.term())
        });
        let (more, in_doubt, wardens) = result.unwrap_or_else(|_| panic!("seed {seed}"));
        (answered, unknown, terms) = (answered + more, unknown + in_doubt, terms + wardens);
    }
    assert!(answered > SEEDS * 40 && unknown > SEEDS && terms > SEEDS * 3, "{answered} {unknown} {terms}");
}
