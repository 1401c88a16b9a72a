//! Nodes whose process is known to have ended.

use super::tend::{all, held, led, state_of};
use super::*;
use crate::limits::{
    FORGET_DEAD_AFTER_MS, MOVE_UNBURIED_MS, OFFICE_LEASE_MS, REPAIR_AFTER_MS, WARDEN_HEARS_MS, WARDEN_TICK_MS,
};
use crate::place::{Life, NodeState, Standing};
use crate::warden::{Mark, MoveId};

fn node(number: u32) -> NodeId {
    NodeId(std::num::NonZeroU32::new(number).expect("from 1"))
}

fn obituary(number: u32, incarnation: u64) -> Ask {
    Ask::Obituary(Life { node: node(number), incarnation })
}

/// That life of a node is over, as somebody says.
fn dies(bench: &mut Bench, number: u32, incarnation: u64) {
    assert_eq!(bench.ask(obituary(number, incarnation)), Ok(Answer::Noted));
}

/// Of a move to the second node.
fn mark(bench: &Bench) -> Mark {
    let (id, term, node) = (MoveId([1; 16]), bench.map().term, "node-2".into());
    Mark { id, herd: HERD, term, node, addresses: Vec::new(), etcd: None }
}

fn copies(bench: &Bench) -> Vec<usize> {
    let map = bench.map();
    let mut copies: Vec<usize> = map.spread(0).expect("the default one").groups.iter().map(|it| it.copies()).collect();
    copies.dedup();
    copies
}

#[test]
fn who_has_died_is_taken_out_at_once() {
    let mut bench = held();
    dies(&mut bench, 2, 1);
    assert_eq!((led(&bench), state_of(&bench, 2), copies(&bench)), ([12, 0, 12], NodeState::Dead, vec![2]));
    assert!(bench.pushed.last().is_some_and(|(map, _)| map.epoch == bench.map().epoch), "without a tick");
    let epoch = bench.map().epoch;
    dies(&mut bench, 2, 1);
    // What came of it before its end is no sign of life.
    bench.warden.beats(Vec::new(), vec![(node(2), 1)]);
    bench.links(&[1, 2, 3]);
    bench.tick(WARDEN_TICK_MS);
    assert_eq!((bench.map().epoch, state_of(&bench, 2)), (epoch, NodeState::Dead));
    let joined = bench.join(join(2, 2));
    assert_eq!((joined.incarnation, state_of(&bench, 2)), (2, NodeState::Up));
    bench.tick(WARDEN_TICK_MS);
    assert_eq!(all(&bench, Standing::Syncing).len(), 24, "at once: there is nobody to wait for");
    dies(&mut bench, 2, 1);
    assert_eq!(state_of(&bench, 2), NodeState::Up, "its life before");
}

#[test]
fn what_is_said_of_another_life_changes_nothing() {
    let mut bench = held();
    bench.join(join(2, 2));
    let before = bench.map();
    for (number, incarnation) in [(2, 1), (2, 3), (2, 0), (2, u64::MAX), (9, 1)] {
        dies(&mut bench, number, incarnation);
        bench.tick(0);
        assert_eq!(bench.map(), before, "{number} {incarnation}");
    }
}

/// It was let in again by another warden, and this one is in office after that.
#[test]
fn what_was_said_of_an_earlier_life_is_forgotten() {
    let mut bench = held();
    dies(&mut bench, 2, 1);
    assert_eq!(state_of(&bench, 2), NodeState::Dead);
    let change = |bench: &mut Bench, warden: Warden| {
        let before = std::mem::replace(&mut bench.warden, warden);
        bench.now_ms += 2 * OFFICE_LEASE_MS;
        bench.settle();
        before
    };
    let first = change(&mut bench, Warden::new(config("b")));
    assert_eq!(bench.join(join(2, 2)).incarnation, 2);
    change(&mut bench, first);
    assert_eq!(state_of(&bench, 2), NodeState::Up);
    bench.links(&[1, 2, 3]);
    bench.tick(REPAIR_AFTER_MS);
    bench.tick(WARDEN_TICK_MS);
    assert_eq!(all(&bench, Standing::Syncing).len(), 24, "it is heard, and gets copies");
}

#[test]
fn who_has_died_is_taken_out_where_fewer_copies_stay_than_a_write_needs_and_these_get_one_at_once() {
    let mut bench = Bench::new(Config { birth: Some(Birth { copies: Some(3), ..birth() }), ..config("a") });
    bench.join_all(1..=4);
    bench.all_have();
    bench.ask(Ask::Hold).expect("all have the map");
    bench.links(&[1, 2, 3, 4]);
    bench.tick(WARDEN_HEARS_MS);
    bench.links(&[1, 4]);
    dies(&mut bench, 2, 1);
    dies(&mut bench, 3, 1);
    let alone = |bench: &Bench| {
        let map = bench.map();
        let groups = &map.spread(0).expect("the default one").groups;
        assert!(groups.iter().all(|group| group.lost == 0 && group.eligible.len() == group.copies()));
        groups.iter().filter(|group| group.copies() == 1).count()
    };
    let stopped = alone(&bench);
    assert!(stopped > 0 && all(&bench, Standing::Syncing).is_empty());
    bench.tick(WARDEN_TICK_MS);
    assert_eq!((alone(&bench), all(&bench, Standing::Syncing).len()), (stopped, stopped), "their writes wait for it");
    bench.tick(REPAIR_AFTER_MS);
    assert_eq!(all(&bench, Standing::Syncing).len(), stopped, "there is no third node for the others");
}

#[test]
fn the_last_that_had_all_is_waited_for() {
    let mut bench = Bench::new(Config { birth: Some(Birth { copies: Some(1), ..birth() }), ..config("a") });
    bench.join_all(1..=3);
    bench.all_have();
    bench.ask(Ask::Hold).expect("all have the map");
    bench.tick(WARDEN_HEARS_MS);
    let its = led(&bench)[1];
    dies(&mut bench, 2, 1);
    bench.tick(WARDEN_TICK_MS);
    let groups = |bench: &Bench| bench.map().spread(0).expect("the default one").groups.clone();
    let waiting = groups(&bench).into_iter().filter(|group| group.primary.is_none());
    let waiting: Vec<_> = waiting.map(|group| (group.eligible, group.lost)).collect();
    assert_eq!(waiting, vec![(vec![node(2)], 0); its]);
    bench.join(join(2, 2));
    let lost = groups(&bench).into_iter().filter(|group| group.lost > 0);
    assert_eq!(lost.map(|group| group.primary.is_some()).collect::<Vec<_>>(), vec![true; its], "they are open again");
}

#[test]
fn it_does_not_wait_for_a_tick_where_something_is_being_written() {
    let mut bench = held();
    let orders = bench.warden.ask(90, Ask::Flush { name: "default".into() });
    let noted = bench.warden.ask(91, obituary(2, 1));
    assert_eq!(noted, [Order::Answer(91, Ok(Answer::Noted))]);
    bench.carry_out(orders);
    assert_eq!((led(&bench), state_of(&bench, 2)), ([12, 0, 12], NodeState::Dead));
}

#[test]
fn a_write_that_fails_is_made_again() {
    let mut bench = held();
    bench.faults.push(ControlError::Unreachable("its disk is away".into()));
    dies(&mut bench, 2, 1);
    assert_eq!(state_of(&bench, 2), NodeState::Up);
    bench.settle();
    assert_eq!(state_of(&bench, 2), NodeState::Dead);
}

/// Until then groups are planned anew with each join, over all nodes that are known.
#[test]
fn who_dies_before_the_first_object_is_taken_out_once_there_is_one() {
    let mut bench = Bench::new(config("a"));
    bench.join_all(1..=3);
    bench.all_have();
    let before = bench.map();
    dies(&mut bench, 2, 1);
    bench.tick(WARDEN_TICK_MS);
    assert_eq!(bench.map(), before);
    bench.ask(Ask::Hold).expect("all have had the map");
    bench.tick(WARDEN_TICK_MS);
    assert_eq!((led(&bench), state_of(&bench, 2)), ([12, 0, 12], NodeState::Dead));
}

/// What it was to give away others have, or its next life has not: it goes on draining in either case.
#[test]
fn who_dies_while_it_drains_is_waited_for_a_while_and_goes_on_draining() {
    let mut bench = held();
    let drain = |number: u8| Ask::Drain { name: join(number, 1).name, stays: false };
    for number in [4, 5] {
        bench.join(join(number, 1));
    }
    bench.links(&[1, 2, 3, 4, 5]);
    bench.all_have();
    bench.ask(drain(2)).expect("four stay");
    bench.tick(WARDEN_TICK_MS);
    dies(&mut bench, 2, 1);
    bench.tick(FORGET_DEAD_AFTER_MS - WARDEN_TICK_MS);
    dies(&mut bench, 2, 1);
    assert_eq!(state_of(&bench, 2), NodeState::Draining);
    let joined = bench.join(join(2, 2));
    bench.tick(FORGET_DEAD_AFTER_MS);
    let keeps = |bench: &Bench| {
        let map = bench.map();
        map.spread(0).expect("the default one").groups.iter().any(|group| group.members().any(|id| id == node(2)))
    };
    assert_eq!((joined.node, state_of(&bench, 2), keeps(&bench)), (node(2), NodeState::Draining, false));
    // Now it is empty.
    dies(&mut bench, 2, 2);
    bench.tick(WARDEN_TICK_MS);
    assert_eq!(bench.map().node(node(2)), None);
    // One that does not come back is forgotten.
    bench.ask(drain(3)).expect("three stay");
    dies(&mut bench, 3, 1);
    bench.tick(FORGET_DEAD_AFTER_MS / 2);
    dies(&mut bench, 3, 1);
    bench.tick(FORGET_DEAD_AFTER_MS / 2);
    bench.tick(WARDEN_TICK_MS);
    assert_eq!(bench.map().node(node(3)), None, "counted from when it was told first");
}

/// It drains and is dead, and only when somebody gives up what it had is it gone: the control store may go elsewhere.
#[test]
fn a_dead_node_that_drains_and_is_waited_for_keeps_no_store_from_moving() {
    let mut bench = held();
    bench.join(join(4, 1));
    bench.links(&[1, 2, 3, 4]);
    bench.ask(Ask::Create(create("one", "ram:1"))).expect("it is made");
    bench.all_have();
    bench.ask(Ask::Drain { name: join(3, 1).name, stays: false }).expect("three stay");
    dies(&mut bench, 3, 1);
    bench.tick(WARDEN_TICK_MS);
    assert!(state_of(&bench, 3) == NodeState::Draining && bench.map().keeps(node(3)), "it is waited for");
    assert!(bench.map().groups_of(node(3)).next().is_none());
    let mark = mark(&bench);
    bench.tick(WARDEN_TICK_MS);
    assert!(bench.warden.marking(&mark).is_some());
}

/// To move it is what helps.
#[test]
fn a_store_that_takes_no_more_may_move_though_it_does_not_say_who_has_died() {
    let mut bench = held();
    bench.links(&[1, 2, 3]);
    let mark = mark(&bench);
    bench.is_full = true;
    dies(&mut bench, 3, 1);
    assert!(bench.warden.marking(&mark).is_none(), "it may say so at once");
    let mut ticks = 0;
    while bench.warden.marking(&mark).is_none() {
        bench.tick(WARDEN_TICK_MS);
        ticks += 1;
        assert!(ticks < 20, "it is not waited for for ever");
    }
    assert!(state_of(&bench, 3) != NodeState::Dead && ticks as u64 * WARDEN_TICK_MS >= MOVE_UNBURIED_MS - 200);
}

#[test]
fn who_waits_for_all_nodes_does_not_wait_for_one_that_has_died() {
    let mut bench = held();
    let flush = bench.send(Ask::Flush { name: "default".into() });
    let map = bench.map();
    [1, 3].into_iter().for_each(|number| bench.have(node(number), 1, map.epoch, map.revision));
    assert_eq!(bench.answer(flush), None);
    dies(&mut bench, 2, 1);
    assert!(bench.answer(flush).is_some_and(|answer| answer.is_ok()));
}

#[test]
fn what_was_kept_for_a_collection_that_is_removed_holds_no_dead_node() {
    let mut bench = held();
    for name in ["one", "two"] {
        bench.ask(Ask::Create(create(name, "ram:1"))).expect("it is made");
    }
    let spread = |bench: &Bench| bench.map().collection("one").map(|it| it.id.spread_group());
    let one = spread(&bench).expect("it is there");
    assert!(one > 0 && spread(&bench) == bench.map().collection("two").map(|it| it.id.spread_group()));
    bench.ask(Ask::Create(create("cache", "cache"))).expect("it is made");
    dies(&mut bench, 3, 1);
    bench.tick(WARDEN_TICK_MS);
    assert!(bench.map().keeps(node(3)), "it is waited for");
    bench.links(&[1, 2]);
    let destroy = |name: &str| Ask::Destroy { name: name.into() };
    bench.ask(destroy("one")).expect("it is removed");
    assert!(bench.map().keeps(node(3)), "the other collection lies there");
    bench.ask(destroy("two")).expect("it is removed");
    assert!(bench.map().spread(one).is_none() && !bench.map().keeps(node(3)));
    // Its number is given again.
    bench.ask(Ask::Create(create("three", "ram:1"))).expect("it is made");
    let map = bench.map();
    let id = map.collection("three").expect("it is there").id;
    assert_eq!(id.spread_group(), one);
    assert!(map.spread(one).is_some_and(|it| it.groups.iter().all(|group| group.epoch == map.epoch)));
    assert!(map.spreads.is_sorted_by(|a, b| a.id < b.id));
}
