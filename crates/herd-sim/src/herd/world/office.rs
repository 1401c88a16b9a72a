//! A warden at work on its machine, driven as a node's own thread drives it (`herd_node::warden`): one call to the
//! store at a time, and nothing else meanwhile; then what has come.

use super::super::control;
use super::reign::{Reign, STORE_GONE};
use super::*;
use herd_core::control::{ControlError, Outcome, Term};
use herd_core::limits::WARDEN_TICK_MS;
use herd_core::place::{Life, NodeId};
use herd_core::warden::{Answer, Ask, Birth, Call, Config, Order, Refusal, Reply, Warden};
use herd_node::Leases;
use std::collections::VecDeque;

/// See the module.
pub(super) struct Office {
    /// Its machine.
    pub(super) at: usize,
    /// Its name as a candidate.
    pub(super) name: String,
    warden: Warden,
    leases: Arc<Leases>,
    start_ns: u64,
    /// The call under way, and when it was made by the clock of leases.
    call: Option<(Call, u64, control::Ticket)>,
    orders: VecDeque<Order>,
    ticked_ms: Option<u64>,
    /// What has come is still to be looked at, after a tick.
    is_behind: bool,
    /// With the term that was known of when they came.
    asks: VecDeque<(u64, Term, Ask)>,
    tickets: u64,
    /// Who asked to be let in, and which process of it.
    pub(super) joins: BTreeMap<u64, (usize, [u8; 16])>,
    /// Who asked for leave.
    pub(super) leaves: BTreeMap<u64, Life>,
    /// The map that was pushed last.
    pub(super) pushed: Option<(Arc<Map>, bool)>,
    /// The term in which it was in office last.
    pub(super) term: Term,
}

impl Office {
    pub(super) fn new(at: usize, name: String, birth: Option<Birth>, leases: Arc<Leases>) -> Self {
        let config = Config { name: name.clone(), protocol: herd_core::wire::LINK_PROTOCOL.into(), lasts: true, birth };
        let (warden, start_ns) = (Warden::new(config), leases.now_ns());
        let (call, orders, ticked_ms, asks, joins, pushed) = <_>::default();
        let (is_behind, tickets, leaves, term) = <_>::default();
        Self {
            at,
            name,
            warden,
            leases,
            start_ns,
            call,
            orders,
            ticked_ms,
            is_behind,
            asks,
            tickets,
            joins,
            leaves,
            pushed,
            term,
        }
    }

    /// What it is about, for people.
    pub(super) fn told(&self) -> String {
        let text = format!("{:?}", self.warden);
        let pushed = self.pushed.as_ref().map(|(map, _)| (map.term, map.epoch));
        let (name, has_call) = (&self.name, self.call.is_some());
        format!(
            "{name} at {} has pushed {pushed:?}, calls: {has_call}: {}",
            self.at,
            text.chars().take(700).collect::<String>()
        )
    }

    /// Somebody asks; what the answer will be known by.
    pub(super) fn ask(&mut self, ask: Ask) -> u64 {
        self.tickets += 1;
        self.asks.push_back((self.tickets, self.warden.term(), ask));
        self.tickets
    }

    fn now_ms(&self) -> u64 {
        (self.leases.now_ns() - self.start_ns) / 1_000_000
    }

    /// Which nodes are silent, and which are not.
    fn judge(&mut self) {
        let Some(nodes) = self.warden.judged() else { return };
        let now_ns = self.leases.now_ns();
        let mut grants = self.leases.grants();
        let silent = grants.silent(&nodes, now_ns);
        let cold = grants.cold(&silent, now_ns);
        let has_caches = |(node, _): &(NodeId, u64)| self.warden.map().is_some_and(|map| map.has_caches(*node));
        let may_answer = |life: &(NodeId, u64)| grants.may_answer(*life, has_caches(life), now_ns);
        let granted = nodes.iter().copied().filter(may_answer).collect();
        let beating = nodes.into_iter().filter(|(node, life)| grants.is_heard(*node, *life, now_ns)).collect();
        drop(grants);
        self.warden.beats(silent, beating);
        self.warden.granted(granted);
        self.warden.cold(cold);
    }

    /// The call under way was answered.
    fn answered(&mut self, call: &Call, asked_ns: u64, reply: Result<Reply, ControlError>) {
        self.leases.grants().answered(call, &reply, asked_ns, self.leases.now_ns());
        self.term = in_office(call, &reply).unwrap_or(self.term);
        let now_ms = self.now_ms();
        self.orders.extend(self.warden.reply(reply, now_ms));
    }
}

/// The term that was in office for certain when the call was made.
fn in_office(call: &Call, reply: &Result<Reply, ControlError>) -> Option<Term> {
    match (call, reply.as_ref().ok()?) {
        (Call::Txn(txn), Reply::Outcome(Outcome::Done(_))) => txn.term,
        (Call::Campaign { name, .. }, Reply::Office(office)) if office.holder.as_ref() == Some(name) => {
            Some(office.term)
        }
        _ => None,
    }
}

impl<S: Service> World<S> {
    /// A warden does what it has to do, until it waits for the store, or for time.
    pub(super) fn drive(&mut self, reign: &mut Reign, number: usize) {
        let at = reign.offices[number].at;
        while self.paused[at].0 <= self.now_ns() && self.drive_once(reign, number) {}
    }

    /// Whether there may be more to do.
    fn drive_once(&mut self, reign: &mut Reign, number: usize) -> bool {
        let office = &mut reign.offices[number];
        if let Some((call, asked_ns, ticket)) = office.call.take_if(|(.., ticket)| reign.store.is_due(ticket)) {
            let reply = reign.store.answer(ticket);
            if matches!(reply, Err(ControlError::Unreachable(_)))
                && matches!(&call, Call::Txn(txn) if !txn.writes.is_empty())
            {
                self.count(STORE_GONE);
            }
            office.answered(&call, asked_ns, reply);
        }
        if office.call.is_some() {
            return false;
        }
        match office.orders.pop_front() {
            Some(order) => self.carry_out(reign, number, order),
            None if office.is_behind => self.take_what_came(office),
            None => return self.tick(office),
        }
        true
    }

    fn carry_out(&mut self, reign: &mut Reign, number: usize, order: Order) {
        let office = &mut reign.offices[number];
        match order {
            Order::Store(call) => {
                let (now_ms, asked_ns) = (office.now_ms(), office.leases.now_ns());
                let ticket = reign.store.begin(&office.name, call.clone(), now_ms, self.now_ns());
                office.call = Some((call, asked_ns, ticket));
            }
            Order::Push { map, held } => {
                office.leases.grants().wrote(map.term, map.epoch);
                office.pushed = Some((map.clone(), held));
                self.send_map(reign, number, &map, held);
            }
            Order::Answer(ticket, answer) => self.told(reign, number, ticket, answer),
            Order::Tell(text) => panic!("{text}"),
        }
    }

    /// A request was answered. Who is in starts to be a node.
    fn told(&mut self, reign: &mut Reign, number: usize, ticket: u64, answer: Result<Answer, Refusal>) {
        let office = &mut reign.offices[number];
        if let Some(life) = office.leaves.remove(&ticket) {
            let from = office.at;
            return self.told_of_leave(reign, from, life, &answer);
        }
        let asker = office.joins.remove(&ticket);
        if let (Some((at, process)), Ok(Answer::Joined(joined))) = (asker, answer) {
            let (from, pushed) = (office.at, office.pushed.clone());
            self.let_in(reign, (at, process), from, &joined, pushed);
        }
    }

    /// What nodes told of their maps, and requests.
    fn take_what_came(&mut self, office: &mut Office) {
        office.is_behind = false;
        let haves = self.machines[office.at].as_ref().map(Machine::haves).unwrap_or_default();
        for (node, (life, epoch, revision)) in haves {
            office.orders.extend(office.warden.have(node, life, epoch, revision));
        }
        for (ticket, term, ask) in std::mem::take(&mut office.asks) {
            if office.warden.is_late(&ask, term) {
                office.orders.push_back(Order::Answer(ticket, Err(Refusal::NotWarden(None))));
                continue;
            }
            office.orders.extend(office.warden.ask(ticket, ask));
        }
    }

    /// Whether it was time.
    fn tick(&mut self, office: &mut Office) -> bool {
        let now_ms = office.now_ms();
        let is_due = office.ticked_ms.is_none_or(|ticked_ms| now_ms >= ticked_ms + WARDEN_TICK_MS);
        if !is_due && office.asks.is_empty() {
            return false;
        }
        office.ticked_ms = Some(now_ms);
        if let Some(machine) = &self.machines[office.at] {
            office.warden.links(machine.links());
        }
        office.judge();
        let orders = office.warden.tick(now_ms);
        office.orders.extend(orders);
        office.is_behind = true;
        true
    }
}
