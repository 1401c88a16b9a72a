//! The warden over a store in memory: one, that is asked; two, that race, with faults, from a seed.

mod asked;
mod caches;
mod layout;
mod leases;
mod leave;
mod loss;
mod obituary;
mod race;
mod reach;
mod tend;
mod trouble;

use super::{Answer, Ask, Birth, Call, Config, Create, Identity, Join, Joined, Order, Refusal, Reply, Ticket, Warden};
use crate::collection::Spec;
use crate::control::{ControlError, Table};
use crate::limits::OFFICE_RENEW_MS;
use crate::place::{HerdId, Map, NodeId};
use std::sync::Arc;

const HERD: HerdId = HerdId(*b"a herd of tests.");
const GIB: u64 = 1 << 30;

fn birth() -> Birth {
    Birth { herd: HERD, hash_key: [7; 16], epoch: 1, protocol_min: 2, evict: false, copies: None }
}

fn config(name: &str) -> Config {
    Config { name: name.into(), protocol: 3, lasts: true, birth: Some(birth()) }
}

/// The node with that number, in one of its lives.
fn join(number: u8, life: u8) -> Join {
    let mut process = [number; 16];
    process[0] = life;
    Join {
        herd: None,
        protocol: 2,
        identity: Identity([number; 16]),
        process,
        name: format!("node-{number}"),
        addresses: vec![format!("10.0.0.{number}:7700")],
        host: format!("host-{number}"),
        rack: String::new(),
        memory_bytes: GIB,
        evict: false,
        moved: None,
    }
}

fn create(name: &str, class: &str) -> Create {
    Create { name: name.into(), spec: Spec::of(class), copies: None, spread: None }
}

/// A warden, its store, and who drives both.
struct Bench {
    store: Table,
    warden: Warden,
    now_ms: u64,
    tickets: Ticket,
    answers: Vec<(Ticket, Result<Answer, Refusal>)>,
    pushed: Vec<(Arc<Map>, bool)>,
    /// What people are told.
    told: Vec<String>,
    /// What the next calls come to, instead of what the store says; an error that is `Unknown` is told after the call.
    faults: Vec<ControlError>,
    /// The store has no room for anything.
    is_full: bool,
}

impl Bench {
    fn new(config: Config) -> Self {
        Self::over(Table::default(), config)
    }

    fn over(store: Table, config: Config) -> Self {
        let mut bench = Self::idle(store, config);
        bench.tick(0);
        bench
    }

    /// Nothing was begun yet.
    fn idle(store: Table, config: Config) -> Self {
        let (answers, pushed, told, faults) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let warden = Warden::new(config);
        Self { store, warden, now_ms: 0, tickets: 0, answers, pushed, told, faults, is_full: false }
    }

    /// Another process over the same store.
    fn restarted(self, name: &str) -> Self {
        let store = Table::restored(self.store.all()).expect("what it held");
        Self::over(store, config(name))
    }

    fn tick(&mut self, ms: u64) {
        self.now_ms += ms;
        let orders = self.warden.tick(self.now_ms);
        self.carry_out(orders);
    }

    fn carry_out(&mut self, mut orders: Vec<Order>) {
        while !orders.is_empty() {
            for order in std::mem::take(&mut orders) {
                match order {
                    Order::Store(call) => {
                        let reply = self.call(&call);
                        orders.extend(self.warden.reply(reply, self.now_ms));
                    }
                    Order::Push { map, held } => self.pushed.push((map, held)),
                    Order::Answer(ticket, answer) => self.answers.push((ticket, answer)),
                    Order::Tell(text) => self.told.push(text),
                }
            }
        }
    }

    fn call(&mut self, call: &Call) -> Result<Reply, ControlError> {
        match self.faults.pop() {
            Some(error @ ControlError::Unknown(_)) => {
                call.run(&mut self.store, self.now_ms).expect("a call that is right");
                Err(error)
            }
            Some(error) => Err(error),
            None if self.is_full && matches!(call, Call::Txn(txn) if !txn.writes.is_empty()) => {
                Err(ControlError::Full("no space left".into()))
            }
            None => call.run(&mut self.store, self.now_ms),
        }
    }

    fn send(&mut self, ask: Ask) -> Ticket {
        self.tickets += 1;
        let orders = self.warden.ask(self.tickets, ask);
        self.carry_out(orders);
        self.tickets
    }

    /// The one answer to a request, if it was answered.
    fn answer(&mut self, ticket: Ticket) -> Option<Result<Answer, Refusal>> {
        let at = self.answers.iter().position(|(answered, _)| *answered == ticket)?;
        let (_, answer) = self.answers.remove(at);
        assert!(self.answers.iter().all(|(answered, _)| *answered != ticket), "it is answered once");
        Some(answer)
    }

    /// Asks, and gives the answer that comes at once, or when all nodes have the map.
    fn ask(&mut self, ask: Ask) -> Result<Answer, Refusal> {
        let ticket = self.send(ask);
        if self.answers.iter().all(|(answered, _)| *answered != ticket) {
            self.all_have();
        }
        self.answer(ticket).expect("an answer")
    }

    fn join(&mut self, join: Join) -> Joined {
        match self.ask(Ask::Join(join)) {
            Ok(Answer::Joined(joined)) => joined,
            other => panic!("{other:?}"),
        }
    }

    fn join_all(&mut self, numbers: std::ops::RangeInclusive<u8>) {
        for number in numbers {
            self.join(join(number, 1));
        }
    }

    fn refused(&mut self, join: Join) -> Refusal {
        self.ask(Ask::Join(join)).expect_err("it is refused")
    }

    /// All nodes tell that they have the map.
    fn all_have(&mut self) {
        let map = self.map();
        map.nodes.iter().for_each(|node| self.have(node.id, node.incarnation, map.epoch, map.revision));
    }

    fn have(&mut self, node: NodeId, incarnation: u64, epoch: u32, revision: u64) {
        let orders = self.warden.have(node, incarnation, epoch, revision);
        self.carry_out(orders);
    }

    /// The warden's node has links to these.
    fn links(&mut self, numbers: &[u32]) {
        let id = |number: &u32| NodeId(std::num::NonZeroU32::new(*number).expect("from 1"));
        self.warden.links(numbers.iter().map(id).collect());
        self.tick(0);
    }

    fn map(&self) -> Arc<Map> {
        self.warden.map().expect("it is in office").clone()
    }

    /// Until the warden is in office again.
    fn settle(&mut self) {
        for _ in 0..5 {
            self.tick(OFFICE_RENEW_MS);
        }
    }
}
