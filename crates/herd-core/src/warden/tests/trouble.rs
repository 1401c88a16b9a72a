//! Nodes that do not tell, stores that can't be used, an end in the middle.

use super::*;
use crate::control::{Control, Outcome};
use crate::limits::{OFFICE_LEASE_MS, SLOTS, WARDEN_ASKS_MAX, WARDEN_GONE_MS, WARDEN_PATIENCE_MS};
use crate::place::Group;

fn flush() -> Ask {
    Ask::Flush { name: "default".into() }
}

#[test]
fn that_objects_are_gone_is_told_when_all_nodes_know() {
    let mut bench = Bench::new(config("a"));
    bench.join_all(1..=2);
    bench.all_have();
    let before = bench.map();
    let flush = bench.send(flush());
    let map = bench.map();
    assert_eq!(map.revision, before.revision + 1);
    bench.have(map.nodes[0].id, 1, map.epoch, map.revision);
    bench.have(map.nodes[1].id, 1, map.epoch, before.revision);
    assert_eq!(bench.answer(flush), None);
    bench.have(map.nodes[1].id, 1, map.epoch, map.revision);
    assert_eq!(bench.answer(flush), Some(Ok(Answer::Flushed { generation: 2 })));
    // Node 2 is gone; and what it was heard of late changes nothing.
    let gone = bench.send(self::flush());
    bench.have(map.nodes[0].id, 1, map.epoch, map.revision + 1);
    bench.have(map.nodes[0].id, 1, map.epoch, map.revision);
    bench.tick(WARDEN_GONE_MS - 1);
    assert_eq!(bench.answer(gone), None);
    bench.tick(1);
    assert_eq!(
        bench.answer(gone),
        Some(Err(Refusal::NotTold { done: "flushed", names: vec!["node-2".into()], nodes: 2 }))
    );
    bench.have(map.nodes[1].id, 1, map.epoch, map.revision + 1);
    assert!(bench.warden.missing().is_empty());
}

#[test]
fn who_asked_a_warden_that_then_stood_still_is_not_let_in_by_its_next_term() {
    let mut bench = Bench::new(config("a"));
    bench.join_all(1..=2);
    let (asked, term) = (Ask::Join(join(2, 2)), bench.warden.term());
    let orders = bench.warden.ask(98, asked.clone());
    assert_eq!(bench.warden.ask(99, Ask::Join(join(3, 1))), Vec::new(), "it waits behind");
    // That process is over, and the next one is in by another warden.
    let mut other = Bench::idle(std::mem::take(&mut bench.store), config("b"));
    other.tick(bench.now_ms + OFFICE_LEASE_MS);
    let lives = other.join(join(2, 3)).incarnation;
    (bench.store, bench.now_ms) = (other.store, other.now_ms + OFFICE_LEASE_MS);
    bench.carry_out(orders);
    bench.settle();
    assert!(bench.warden.term() > term && bench.warden.is_late(&asked, term), "what it has not heard yet is late too");
    let again = Some(Err(Refusal::NotWarden(None)));
    assert_eq!((bench.answer(98), bench.answer(99)), (again.clone(), again), "who lives asks again");
    assert_eq!(bench.map().nodes[1].incarnation, lives);
    assert_eq!(bench.join(join(3, 1)).node.0.get(), 3);
    assert!(!bench.warden.is_late(&Ask::Hold, term));
}

#[test]
fn what_waits_for_a_store_that_does_not_answer_is_refused_and_may_be_asked_again() {
    let mut bench = Bench::new(config("a"));
    bench.join_all(1..=1);
    bench.faults = vec![ControlError::Unreachable("a test".into()); 100];
    let flown = bench.send(Ask::Join(join(2, 1)));
    bench.tick(OFFICE_RENEW_MS);
    let waits = bench.send(Ask::Join(join(3, 1)));
    bench.tick(OFFICE_RENEW_MS);
    assert_eq!((bench.answer(flown), bench.answer(waits)), (None, None), "it may be back soon");
    (0..4).for_each(|_| bench.tick(OFFICE_RENEW_MS));
    let told = |answer| matches!(answer, Some(Err(Refusal::Store(text))) if text.contains("a test"));
    assert!(told(bench.answer(flown)) && told(bench.answer(waits)));
    assert!(told(Some(Err(bench.refused(join(3, 1))))), "from then on it is told at once");
    bench.faults.clear();
    bench.settle();
    assert_eq!(bench.join(join(2, 1)).node.0.get(), 2);
    // What may have been done is no refusal, however long it takes.
    bench.faults = vec![ControlError::Unreachable("a test".into()); 10];
    bench.faults.push(ControlError::Unknown("a test".into()));
    let doubt = bench.send(Ask::Join(join(3, 1)));
    (0..9).for_each(|_| bench.tick(OFFICE_RENEW_MS));
    assert_eq!(bench.answer(doubt), None);
    bench.faults.clear();
    bench.settle();
    assert!(matches!(bench.answer(doubt), Some(Ok(Answer::Joined(_)))));
}

#[test]
fn what_is_done_but_for_some_nodes_is_said_so() {
    let told = |names: &[&str]| {
        let names = names.iter().map(|name| name.to_string()).collect();
        Refusal::NotTold { done: "removed", names, nodes: 5 }.to_string()
    };
    let one = "removed at 4 of 5 nodes; n4 can't be reached and does it when it is back; until then the outcome is \
               unknown there";
    assert_eq!(told(&["n4"]), one);
    assert!(
        told(&["n4", "n5"]).starts_with("removed at 3 of 5 nodes; n4, n5 can't be reached and do it when they are")
    );
}

#[test]
fn who_is_to_hold_objects_is_told_for_whom_it_waits() {
    let mut bench = Bench::new(config("a"));
    bench.join_all(1..=3);
    let map = bench.map();
    bench.have(map.nodes[0].id, 1, map.epoch, map.revision);
    let hold = bench.send(Ask::Hold);
    bench.tick(WARDEN_PATIENCE_MS);
    let refusal = bench.answer(hold).expect("an answer").expect_err("two are missing");
    assert!(refusal.to_string().contains("(node-2, node-3): see that they run"), "{refusal}");
}

#[test]
fn those_who_wait_for_nodes_do_not_keep_out_the_node_they_wait_for() {
    let mut bench = Bench::new(config("a"));
    bench.join_all(1..=2);
    let holds: Vec<Ticket> = (0..WARDEN_ASKS_MAX).map(|_| bench.send(Ask::Hold)).collect();
    assert_eq!(bench.ask(Ask::Hold), Err(Refusal::Busy));
    assert_eq!(bench.join(join(2, 2)).incarnation, 2);
    bench.all_have();
    assert!(holds.into_iter().all(|hold| bench.answer(hold) == Some(Ok(Answer::Held))));
}

#[test]
fn what_is_heard_late_of_an_earlier_map_or_life_is_passed_over() {
    let mut bench = Bench::new(config("a"));
    bench.join(join(1, 1));
    bench.join(join(1, 2));
    bench.all_have();
    let map = bench.map();
    bench.have(map.nodes[0].id, 1, map.epoch, map.revision);
    bench.have(map.nodes[0].id, 2, map.epoch - 1, map.revision);
    assert!(bench.warden.missing().is_empty());
}

#[test]
fn a_store_that_holds_less_than_nodes_were_told_is_not_gone_on_from() {
    let mut bench = Bench::new(config("a"));
    bench.join(join(1, 1));
    let old = bench.store.all();
    bench.join(join(2, 1));
    let (latest, map) = (bench.store.all(), bench.map());
    let mut bench = Bench::over(Table::restored(old).expect("what it held"), config("b"));
    let next = bench.store.revision();
    bench.have(map.nodes[0].id, 1, map.epoch, map.revision);
    let refusal = bench.refused(join(3, 1)).to_string();
    assert!(refusal.contains("it has epoch 2,") && refusal.contains("and nodes have epoch 3,"), "{refusal}");
    bench.settle();
    bench.ask(flush()).expect_err("it stays so");
    assert_eq!(bench.store.revision(), next, "nothing is written");
    bench.store = Table::restored(latest).expect("what it held");
    bench.tick(2 * OFFICE_LEASE_MS);
    assert_eq!(bench.join(join(3, 1)).node.0.get(), 3);
}

#[test]
fn a_herd_that_can_t_begin_says_so_and_begins_later() {
    let mut bench = Bench::idle(Table::default(), config("a"));
    let ticket = bench.send(Ask::Join(join(1, 1)));
    let campaign = bench.warden.tick(0);
    // The office is had, and nothing can be written.
    let [Order::Store(call)] = &campaign[..] else { panic!("{campaign:?}") };
    let office = call.run(&mut bench.store, 0);
    let load = bench.warden.reply(office, 0);
    let [Order::Store(call)] = &load[..] else { panic!("{load:?}") };
    let nothing = call.run(&mut bench.store, 0);
    let begin = bench.warden.reply(nothing, 0);
    assert!(matches!(&begin[..], [Order::Store(Call::Txn(_))]), "{begin:?}");
    let orders = bench.warden.reply(Err(ControlError::Full("no room".into())), 0);
    assert!(orders.iter().all(|order| matches!(order, Order::Answer(..))), "it rests: {orders:?}");
    bench.carry_out(orders);
    assert!(matches!(bench.answer(ticket), Some(Err(Refusal::Store(text))) if text.contains("no room")));
    bench.settle();
    assert_eq!(bench.join(join(1, 1)).node.0.get(), 1);
}

#[test]
fn a_herd_is_begun_once() {
    let mut bench = Bench::new(config("a"));
    bench.join(join(1, 1));
    bench.store = Table::default();
    bench.store.campaign("other", 1, 0).expect("an office");
    bench.settle();
    assert_eq!(bench.store.all().entries, [], "somebody emptied the store");
    assert!(bench.refused(join(2, 1)).to_string().contains("there is no herd in it"));
}

#[test]
fn who_can_t_use_the_store_leaves_the_office_to_others() {
    let mut store = Table::default();
    let value = b"of another program".as_slice().into();
    let foreign = crate::control::Write::Put { key: "herd".into(), value };
    store.txn(&crate::control::Txn { writes: vec![foreign], ..Default::default() }).expect("a transaction");
    let mut bench = Bench::over(store, config("a"));
    bench.refused(join(1, 1));
    bench.settle();
    let later = bench.now_ms + 100;
    assert_eq!(bench.store.campaign("b", 1, later).expect("a candidacy").holder.as_deref(), Some("b"));
}

#[test]
fn the_office_is_renewed_also_while_requests_wait() {
    let mut bench = Bench::new(config("a"));
    bench.join(join(1, 1));
    let late = bench.now_ms + OFFICE_RENEW_MS;
    let orders = bench.warden.ask(1_000, flush());
    let [Order::Store(call)] = &orders[..] else { panic!("{orders:?}") };
    assert_eq!(bench.warden.ask(1_001, flush()), []);
    let reply = call.run(&mut bench.store, late);
    let orders = bench.warden.reply(reply, late);
    assert!(matches!(orders.last(), Some(Order::Store(Call::Campaign { .. }))), "{orders:?}");
}

#[test]
fn a_group_of_which_all_came_back_empty_begins_anew() {
    let mut bench = Bench::new(Config { birth: Some(Birth { copies: Some(1), ..birth() }), ..config("a") });
    bench.join_all(1..=3);
    bench.all_have();
    bench.ask(Ask::Hold).expect("all have the map");
    let before = bench.map();
    let back = bench.join(join(2, 2));
    let map = bench.map();
    let (old, new) = (before.spread(0).expect("it is there"), map.spread(0).expect("it is there"));
    assert_eq!(old.slots, new.slots);
    for slot in 0..SLOTS {
        let (old, new) = (old.group_of(slot), new.group_of(slot));
        let lost = old.primary == Some(back.node);
        assert!(if lost { began(new, &map, back.node) } else { old == new }, "slot {slot}");
    }
    assert_eq!(bench.pushed.last().map(|(_, held)| *held), Some(true), "the others hold theirs");
}

/// Whether a group is a node's alone, from now on.
fn began(group: &Group, map: &Map, node: NodeId) -> bool {
    (group.primary, group.primary_since) == (Some(node), map.epoch)
        && group.eligible == [node]
        && group.others.is_empty()
        && group.lost == map.epoch
}

#[test]
fn a_store_that_comes_to_last_lets_nodes_in() {
    let mut bench = Bench::new(Config { lasts: false, ..config("a") });
    bench.join(join(1, 1));
    assert_eq!(bench.refused(join(2, 1)), Refusal::NoPlace);
    bench.warden.lasts();
    bench.store = Table::restored(bench.store.all()).expect("what it held");
    assert_eq!(bench.join(join(2, 1)).node.0.get(), 2);
}

#[test]
fn all_that_waits_is_answered_at_the_end() {
    let mut bench = Bench::new(config("a"));
    bench.join_all(1..=2);
    let (hold, flushed) = (bench.send(Ask::Hold), bench.send(flush()));
    bench.faults = vec![ControlError::Unknown("a test".into())];
    let (in_doubt, queued) = (bench.send(flush()), bench.send(flush()));
    let orders = bench.warden.stop();
    bench.carry_out(orders);
    for (ticket, refusal) in [
        (hold, Refusal::NotWarden(None)),
        (flushed, Refusal::Unknown),
        (in_doubt, Refusal::Unknown),
        (queued, Refusal::NotWarden(None)),
    ] {
        assert_eq!(bench.answer(ticket), Some(Err(refusal)));
    }
    bench.settle();
    assert_eq!(bench.refused(join(3, 1)), Refusal::NotWarden(None));
}

#[test]
fn who_keeps_two_copies_does_not_lie_where_they_will_be_three() {
    let mut bench = Bench::new(config("a"));
    bench.join_all(1..=2);
    let two = || Ask::Create(Create { copies: Some(2), ..create("c", "ram:1") });
    let made = bench.ask(two());
    bench.join(join(3, 1));
    assert_eq!(bench.ask(two()), made);
}

/// A mark of which nothing was heard may come late. It must not then: the warden has gone on, and the copy it is of may
/// be gone.
#[test]
fn a_mark_that_is_in_doubt_never_comes_late() {
    for comes_at_once in [false, true] {
        let mut bench = Bench::new(config("a"));
        bench.join_all(1..=2);
        bench.all_have();
        let term = bench.map().term;
        let (id, node) = (crate::warden::MoveId([5; 16]), join(2, 1).name);
        let mark = crate::warden::Mark { id, herd: HERD, term, node, addresses: Vec::new(), etcd: None };
        let txn = bench.warden.marking(&mark).expect("nothing is under way");
        if comes_at_once {
            assert!(matches!(bench.store.txn(&txn), Ok(Outcome::Done(_))));
        }
        let orders = bench.warden.marked(Err(ControlError::Unknown("no answer".into())), mark.clone(), bench.now_ms);
        bench.carry_out(orders);
        bench.settle();
        if comes_at_once {
            assert_eq!(bench.warden.moved(), Some(&mark));
            continue;
        }
        assert_eq!((bench.warden.moved(), bench.map().term > term), (None, true), "it goes on, in a later term");
        assert_eq!(bench.store.txn(&txn), Ok(Outcome::Refused));
        assert_eq!(bench.join(join(3, 1)).node.0.get(), 3);
    }
}
