//! Leases of nodes, as the warden's calls to a store that takes its time let it grant them. While a call is under way
//! the warden's thread waits for it, and nodes beat on.

use super::*;
use crate::control::{Control, Outcome, Txn};
use crate::lease::{Grant, Grants};
use crate::limits::{LEASE_MS, OFFICE_LEASE_MS, OFFICE_SURE_MS, WARDEN_TICK_MS};
use crate::place::NodeState;

const BEAT_MS: u64 = WARDEN_TICK_MS;
const MS: u64 = 1_000_000;

/// A warden, what drives it, and the nodes, of which the first one is the warden's.
struct Reign {
    store: Table,
    warden: Warden,
    grants: Grants,
    now_ms: u64,
    /// How long each call takes, and what it comes to besides.
    takes_ms: u64,
    fault: Option<ControlError>,
    /// Whether that befalls only what writes; and the last of it, which may be done later.
    writes_alone: bool,
    late: Option<Txn>,
    /// Nodes that beat.
    beating: Vec<u32>,
    /// When a node was granted something: its number, and that.
    granted: Vec<(u64, u32, Grant)>,
    answers: Vec<(Ticket, Result<Answer, Refusal>)>,
}

fn unknown() -> ControlError {
    ControlError::Unknown("a test".into())
}

fn unreachable() -> ControlError {
    ControlError::Unreachable("a test".into())
}

fn id(number: u32) -> NodeId {
    NodeId(std::num::NonZeroU32::new(number).expect("from 1"))
}

impl Reign {
    /// In office for long, over three nodes with objects.
    fn new() -> Self {
        let mut reign = Self {
            store: Table::default(),
            warden: Warden::new(config("a")),
            grants: Grants::default(),
            now_ms: 0,
            takes_ms: 0,
            fault: None,
            writes_alone: false,
            late: None,
            beating: vec![1, 2, 3],
            granted: Vec::new(),
            answers: Vec::new(),
        };
        reign.tick();
        for number in 1..=3 {
            reign.ask(number.into(), Ask::Join(join(number, 1)));
        }
        reign.ask(4, Ask::Hold);
        reign.live(2 * LEASE_MS + 1_000);
        assert!(reign.answers.iter().all(|(_, answer)| answer.is_ok()), "{:?}", reign.answers);
        reign
    }

    fn ask(&mut self, ticket: Ticket, ask: Ask) {
        let orders = self.warden.ask(ticket, ask);
        self.carry_out(orders);
    }

    /// Time passes, in which nodes beat.
    fn pass(&mut self, ms: u64) {
        let end_ms = self.now_ms + ms;
        while self.now_ms < end_ms {
            self.now_ms = (self.now_ms + BEAT_MS).min(end_ms);
            for number in self.beating.clone() {
                let now_ns = self.now_ms * MS;
                let grant = match number {
                    1 => self.grants.own_beat(id(1), 1, now_ns),
                    _ => self.grants.beat(id(number), 1, now_ns),
                };
                self.granted.extend(grant.map(|grant| (self.now_ms, number, grant)));
            }
        }
    }

    /// The warden's thread works for so long.
    fn live(&mut self, ms: u64) {
        let end_ms = self.now_ms + ms;
        while self.now_ms < end_ms {
            self.pass(WARDEN_TICK_MS);
            self.tick();
        }
    }

    fn tick(&mut self) {
        if let Some(nodes) = self.warden.judged() {
            let now_ns = self.now_ms * MS;
            let silent = self.grants.silent(&nodes, now_ns);
            let heard = |(node, life): &(NodeId, u64)| self.grants.is_heard(*node, *life, now_ns);
            let heard = nodes.iter().copied().filter(heard).collect();
            self.warden.beats(silent, heard);
        }
        self.warden.links(self.beating.iter().map(|number| id(*number)).collect());
        let orders = self.warden.tick(self.now_ms);
        self.carry_out(orders);
        let map = self.warden.map().cloned();
        for node in map.iter().flat_map(|map| &map.nodes) {
            let map = self.warden.map().expect("as above").clone();
            let orders = self.warden.have(node.id, node.incarnation, map.epoch, map.revision);
            self.carry_out(orders);
        }
    }

    fn carry_out(&mut self, mut orders: Vec<Order>) {
        while !orders.is_empty() {
            for order in std::mem::take(&mut orders) {
                match order {
                    Order::Store(call) => {
                        let asked_ms = self.now_ms;
                        let reply = self.call(&call);
                        self.pass(self.takes_ms);
                        self.grants.answered(&call, &reply, asked_ms * MS, self.now_ms * MS);
                        orders.extend(self.warden.reply(reply, self.now_ms));
                    }
                    Order::Push { map, .. } => self.grants.wrote(map.term, map.epoch),
                    Order::Answer(ticket, answer) => self.answers.push((ticket, answer)),
                    Order::Tell(text) => panic!("{text}"),
                }
            }
        }
    }

    fn call(&mut self, call: &Call) -> Result<Reply, ControlError> {
        let writes = match call {
            Call::Txn(txn) if !txn.writes.is_empty() => Some(txn),
            _ => None,
        };
        match self.fault.clone().filter(|_| writes.is_some() || !self.writes_alone) {
            Some(fault) => {
                self.late = writes.cloned().or(self.late.take());
                Err(fault)
            }
            None => call.run(&mut self.store, self.now_ms),
        }
    }

    /// Whether a node was granted something since that time.
    fn was_granted(&self, number: u32, since_ms: u64) -> bool {
        self.granted.iter().any(|(at_ms, to, _)| *to == number && *at_ms > since_ms)
    }

    fn is_up(&self, number: u32) -> bool {
        let map = self.warden.map().expect("it is in office");
        map.node(id(number)).is_some_and(|node| node.state == NodeState::Up)
    }
}

/// Leases last for half of that, so of ten beats four may be in vain.
#[test]
fn a_store_that_takes_400_ms_for_each_answer_lets_leases_last() {
    let mut reign = Reign::new();
    reign.takes_ms = 400;
    let since_ms = reign.now_ms;
    reign.live(20_000);
    let mut last_ms = since_ms;
    for (at_ms, ..) in reign.granted.iter().filter(|(at_ms, to, _)| *to == 2 && *at_ms > since_ms) {
        assert!(at_ms - last_ms <= LEASE_MS / 2, "nothing from {last_ms} to {at_ms}");
        last_ms = *at_ms;
    }
    assert!(last_ms + LEASE_MS / 2 > reign.now_ms);
    assert!([1, 2, 3].into_iter().all(|number| reign.is_up(number)));
    // Who falls silent is taken out all the same.
    reign.beating = vec![1, 2];
    reign.live(LEASE_MS + 3_000);
    assert!(reign.is_up(2) && !reign.is_up(3));
}

#[test]
fn a_store_that_stands_still_ends_all_leases_and_takes_out_nobody() {
    for fault in [unknown(), unreachable()] {
        let mut reign = Reign::new();
        let since_ms = reign.now_ms;
        (reign.takes_ms, reign.fault) = (3_000, Some(fault));
        // One of them falls silent meanwhile.
        reign.beating = vec![1, 2];
        reign.live(9_000);
        let ends_ms = since_ms + LEASE_MS / 2;
        assert!(!reign.was_granted(1, ends_ms) && !reign.was_granted(2, ends_ms), "{:?}", reign.granted.last());
        assert!([1, 2, 3].into_iter().all(|number| reign.is_up(number)));
        (reign.takes_ms, reign.fault) = (0, None);
        let back_ms = reign.now_ms;
        reign.live(1_500);
        assert!(reign.was_granted(2, back_ms) && reign.is_up(2));
        assert!(!reign.was_granted(3, since_ms));
        reign.live(2 * LEASE_MS);
        assert!(reign.is_up(2) && !reign.is_up(3), "it was silent, and has no lease");
    }
}

/// What waits is refused while the store hangs, as soon as one call has hung for long.
#[test]
fn requests_are_refused_while_the_store_stands_still() {
    let mut reign = Reign::new();
    let since_ms = reign.now_ms;
    (reign.takes_ms, reign.fault) = (3_000, Some(unreachable()));
    reign.live(OFFICE_SURE_MS);
    assert!(reign.now_ms >= since_ms + 3_000, "the store was asked who is in office");
    reign.ask(9, Ask::Flush { name: "default".into() });
    let refused = |(ticket, answer): &(Ticket, _)| *ticket == 9 && matches!(answer, Err(Refusal::Store(_)));
    assert!(reign.answers.iter().any(refused), "{:?}", reign.answers.last());
}

#[test]
fn a_warden_whose_office_is_taken_grants_nothing_more() {
    let mut reign = Reign::new();
    reign.store.campaign("a", 0, reign.now_ms).expect("it is resigned");
    let taken = reign.store.campaign("b", OFFICE_LEASE_MS, reign.now_ms).expect("it is won");
    assert_eq!(taken.holder.as_deref(), Some("b"));
    let since_ms = reign.now_ms;
    reign.live(4_000);
    assert!(!reign.was_granted(2, since_ms + OFFICE_SURE_MS + 100), "{:?}", reign.granted.last());
    assert!(reign.warden.map().is_none());
    // Back in office it grants by the map that is there, and not by the one it had.
    reign.store.campaign("b", 0, reign.now_ms).expect("it is resigned");
    reign.live(2_000);
    let (_, _, grant) = reign.granted.last().expect("a grant");
    assert_eq!((grant.term, grant.epoch), (taken.term + 1, reign.warden.map().expect("in office").epoch));
}

/// A term in which no map was read yet may be one after others wrote theirs.
#[test]
fn nothing_is_granted_in_a_term_before_its_map_was_read() {
    let mut grants = Grants::default();
    grants.in_office(1, 0, 0);
    grants.wrote(1, 5);
    assert!(grants.beat(id(2), 1, 10 * MS).is_some());
    grants.in_office(3, 20 * MS, 20 * MS);
    assert_eq!(grants.beat(id(2), 1, 30 * MS), None);
    grants.wrote(3, 7);
    assert_eq!(grants.beat(id(2), 1, 40 * MS).map(|grant| (grant.term, grant.epoch)), Some((3, 7)));
}

/// It may have won just before the answer came: until then another one granted.
#[test]
fn a_term_counts_from_when_the_store_said_so() {
    let mut grants = Grants::default();
    grants.wrote(2, 5);
    let (mut ms, won_ms) = (0, 3_000);
    while ms < won_ms + 2 * LEASE_MS + 200 {
        ms += 100;
        grants.own_beat(id(1), 1, ms * MS);
        if ms >= won_ms {
            grants.in_office(2, if ms == won_ms { 0 } else { ms * MS }, ms * MS);
        }
        let silent = grants.silent(&[(id(2), 1)], ms * MS);
        assert_eq!(silent.is_empty(), ms < won_ms + 2 * LEASE_MS, "{ms}");
    }
}

/// A node is taken out, and the answer is lost; then there is no room to do it again. It may be done later, and until
/// that is over the node is granted nothing.
#[test]
fn a_write_that_may_still_come_is_not_gone_on_without() {
    let mut reign = Reign::new();
    let term = reign.store.term();
    (reign.beating, reign.writes_alone, reign.fault) = (vec![1, 2], true, Some(unknown()));
    reign.live(LEASE_MS + 500);
    assert_eq!(reign.warden.judged(), None, "it is in doubt");
    reign.beating = vec![1, 2, 3];
    let since_ms = reign.now_ms;
    reign.live(2_000);
    assert!(reign.was_granted(2, since_ms) && !reign.was_granted(3, since_ms));
    reign.fault = Some(ControlError::Full("a test".into()));
    reign.live(1_500);
    reign.fault = None;
    reign.live(3_000);
    let late = reign.late.take().expect("it was not done");
    assert_eq!((late.term, reign.store.txn(&late)), (Some(term), Ok(Outcome::Refused)), "and never will be");
    let mut later = reign.granted.iter().filter(|(at_ms, to, _)| *to == 3 && *at_ms > since_ms);
    assert!(later.all(|(.., grant)| grant.term > term));
    assert!(reign.is_up(3) && reign.was_granted(3, reign.now_ms - 300));
}

/// As no store does, but something between may.
#[test]
fn a_store_that_contradicts_itself_is_not_asked_on_and_on() {
    let mut warden = Warden::new(config("a"));
    let (mut empty, mut calls) = (Table::default(), 0);
    let mut orders = warden.tick(0);
    while let Some(order) = orders.pop() {
        if let Order::Store(call) = order {
            calls += 1;
            assert!(calls < 10, "{call:?}");
            let reply = match &call {
                Call::Txn(_) => Ok(Reply::Outcome(Outcome::Refused)),
                call => call.run(&mut empty, 0),
            };
            orders.extend(warden.reply(reply, 0));
        }
    }
    let mut reign = Reign::new();
    let orders = reign.warden.ask(10, Ask::Flush { name: "default".into() });
    let (mut orders, mut calls) = (orders, 0);
    while let Some(order) = orders.pop() {
        if let Order::Store(call) = order {
            calls += 1;
            assert!(calls < 10, "{call:?}");
            let reply = match &call {
                Call::Txn(_) => Ok(Reply::Outcome(Outcome::Refused)),
                call => call.run(&mut reign.store, reign.now_ms),
            };
            orders.extend(reign.warden.reply(reply, reign.now_ms));
        }
    }
}
