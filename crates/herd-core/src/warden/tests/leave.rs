//! Nodes that are about to end, and say so while they serve.

use super::tend::{all, held, led, state_of};
use super::*;
use crate::limits::{
    BALANCE_CALM_MS, REPAIR_AFTER_MS, WARDEN_HEARS_MS, WARDEN_LEAVE_MS, WARDEN_LEFT_MS, WARDEN_TICK_MS,
};
use crate::place::{Group, Life, NodeState, Standing};

fn node(number: u32) -> NodeId {
    NodeId(std::num::NonZeroU32::new(number).expect("from 1"))
}

pub(super) fn leave(bench: &mut Bench, number: u32, incarnation: u64) -> Ticket {
    bench.send(Ask::Leave(Life { node: node(number), incarnation }))
}

fn groups(bench: &Bench) -> Vec<Group> {
    bench.map().spread(0).expect("the default one").groups.clone()
}

/// Groups that a node is in.
fn kept(bench: &Bench, number: u32) -> usize {
    groups(bench).iter().filter(|group| group.members().any(|id| id == node(number))).count()
}

/// These tell that they have the present map.
pub(super) fn have(bench: &mut Bench, numbers: &[u32]) {
    let map = bench.map();
    for number in numbers {
        let life = map.node(node(*number)).expect("it is one of them").incarnation;
        bench.have(node(*number), life, map.epoch, map.revision);
    }
}

/// A herd of so many that keeps so many copies and holds objects, and all are heard.
fn herd(nodes: u8, copies: u8) -> Bench {
    let mut bench = Bench::new(Config { birth: Some(Birth { copies: Some(copies), ..birth() }), ..config("a") });
    bench.join_all(1..=nodes);
    bench.all_have();
    bench.ask(Ask::Hold).expect("all have the map");
    bench.tick(WARDEN_HEARS_MS);
    bench
}

#[test]
fn others_lead_first_and_then_it_is_taken_out_and_when_they_know_it_may_go() {
    let mut bench = herd(3, 2);
    have(&mut bench, &[1, 2, 3]);
    assert_eq!((led(&bench), kept(&bench, 2)), ([8, 8, 8], 16));
    let ticket = leave(&mut bench, 2, 1);
    // It is a backup still, and answers no reads when it has this map.
    let epoch = bench.map().epoch;
    assert_eq!((led(&bench), kept(&bench, 2), state_of(&bench, 2)), ([12, 0, 12], 16, NodeState::Up));
    assert!(groups(&bench).iter().all(|group| group.copies() == 2 && !group.eligible.contains(&node(2))));
    have(&mut bench, &[1, 3]);
    bench.tick(WARDEN_TICK_MS);
    assert_eq!((bench.map().epoch, bench.answer(ticket)), (epoch, None), "it has not told that it has the map");
    have(&mut bench, &[2]);
    assert_eq!((bench.map().epoch, kept(&bench, 2), state_of(&bench, 2)), (epoch + 1, 0, NodeState::Down));
    have(&mut bench, &[3, 2]);
    assert_eq!(bench.answer(ticket), None);
    have(&mut bench, &[1]);
    assert_eq!(bench.answer(ticket), Some(Ok(Answer::Leaves { epoch: epoch + 1 })));
    // It beats still, and gets nothing.
    let before = bench.map();
    bench.warden.beats(Vec::new(), (1..=3).map(|number| (node(number), 1)).collect());
    for _ in 0..REPAIR_AFTER_MS / WARDEN_TICK_MS - 30 {
        bench.tick(WARDEN_TICK_MS);
    }
    assert_eq!(bench.map(), before);
    assert_eq!(bench.ask(Ask::Obituary(Life { node: node(2), incarnation: 1 })), Ok(Answer::Noted));
    assert_eq!((state_of(&bench, 2), led(&bench)), (NodeState::Dead, [12, 0, 12]));
}

/// It has ended, probably, and another one that lives has all.
#[test]
fn of_two_that_are_silent_who_was_about_to_leave_goes_first() {
    for leaves in [2, 3] {
        let mut bench = herd(3, 3);
        have(&mut bench, &[1, 2, 3]);
        leave(&mut bench, leaves, 1);
        assert!(groups(&bench).iter().all(|group| group.sealed().eq([node(leaves)])), "{:?}", groups(&bench));
        bench.warden.beats(vec![(node(2), 1), (node(3), 1)], vec![(node(1), 1)]);
        bench.tick(WARDEN_TICK_MS);
        assert_eq!((kept(&bench, leaves), kept(&bench, 5 - leaves)), (0, groups(&bench).len()));
        assert!(groups(&bench).iter().all(|group| group.eligible.contains(&node(5 - leaves))));
    }
}

#[test]
fn who_is_started_anew_gets_its_groups_back() {
    let mut bench = herd(3, 2);
    have(&mut bench, &[1, 2, 3]);
    let ticket = leave(&mut bench, 2, 1);
    have(&mut bench, &[2]);
    have(&mut bench, &[1, 3]);
    assert!(bench.answer(ticket).is_some());
    // Whether its end was heard of or not.
    let joined = bench.join(join(2, 2));
    assert_eq!((joined.incarnation, state_of(&bench, 2)), (2, NodeState::Up));
    bench.tick(WARDEN_TICK_MS);
    assert_eq!((all(&bench, Standing::Syncing).len(), kept(&bench, 2)), (16, 16), "at once");
    let syncing = all(&bench, Standing::Syncing);
    for (id, epoch, node) in syncing {
        let want = crate::replica::Want::Joining(node);
        assert_eq!(bench.ask(Ask::Wants(vec![(id, epoch, want)])), Ok(Answer::Noted));
        bench.tick(WARDEN_TICK_MS);
    }
    for _ in 0..2 * BALANCE_CALM_MS / WARDEN_TICK_MS {
        bench.tick(WARDEN_TICK_MS);
        bench.all_have();
    }
    assert_eq!(led(&bench), [8, 8, 8]);
}

#[test]
fn what_nobody_else_has_it_keeps_and_serves() {
    let mut bench = herd(3, 1);
    let (before, its) = (bench.map(), led(&bench)[1]);
    assert!(its > 0);
    let ticket = leave(&mut bench, 2, 1);
    assert_eq!(bench.map(), before, "there is nobody to hand it to");
    assert_eq!(bench.answer(ticket), Some(Ok(Answer::Leaves { epoch: before.epoch })), "all have this map");
    bench.ask(Ask::Obituary(Life { node: node(2), incarnation: 1 })).expect("noted");
    let waiting: Vec<_> = groups(&bench).into_iter().filter(|group| group.primary.is_none()).collect();
    assert_eq!(waiting.len(), its);
    assert!(waiting.iter().all(|group| group.eligible == [node(2)] && group.lost == 0));
}

#[test]
fn a_group_that_would_have_too_few_copies_keeps_it_as_a_backup() {
    let mut bench = held();
    have(&mut bench, &[1, 2, 3]);
    // Three copies, of which a write needs two; one of the others can't be reached.
    bench.links(&[1, 2, 3]);
    bench.links(&[1, 2]);
    let ticket = leave(&mut bench, 2, 1);
    assert_eq!((led(&bench), kept(&bench, 2)), ([16, 0, 8], 24));
    have(&mut bench, &[2]);
    assert_eq!((kept(&bench, 2), state_of(&bench, 2)), (24, NodeState::Up));
    // Who is not heard is not waited for.
    have(&mut bench, &[1]);
    assert!(matches!(bench.answer(ticket), Some(Ok(Answer::Leaves { .. }))));
}

#[test]
fn nobody_hands_over_to_one_that_leaves_too() {
    let mut bench = held();
    have(&mut bench, &[1, 2, 3]);
    let tickets = [leave(&mut bench, 2, 1), leave(&mut bench, 3, 1)];
    assert_eq!(led(&bench), [24, 0, 0]);
    have(&mut bench, &[1, 2, 3]);
    have(&mut bench, &[1, 2, 3]);
    assert!(tickets.into_iter().all(|ticket| bench.answer(ticket).is_some_and(|answer| answer.is_ok())));
    // A write needs two copies: the first one was a backup still when the second asked.
    assert_eq!((led(&bench), kept(&bench, 2), kept(&bench, 3)), ([24, 0, 0], 24, 24));
    let last = leave(&mut bench, 1, 1);
    assert_eq!(led(&bench), [24, 0, 0], "nobody is left");
    assert!(bench.answer(last).is_some_and(|answer| answer.is_ok()));
}

#[test]
fn asked_twice_it_is_answered_twice_and_nothing_more_changes() {
    let mut bench = herd(3, 2);
    have(&mut bench, &[1, 2, 3]);
    let tickets = [leave(&mut bench, 2, 1), leave(&mut bench, 2, 1)];
    have(&mut bench, &[2]);
    have(&mut bench, &[1, 3]);
    let before = bench.map();
    assert!(tickets.into_iter().all(|ticket| bench.answer(ticket).is_some_and(|answer| answer.is_ok())));
    let again = leave(&mut bench, 2, 1);
    assert_eq!(bench.answer(again), Some(Ok(Answer::Leaves { epoch: before.epoch })));
    assert_eq!(bench.map(), before);
}

#[test]
fn of_another_life_it_is_refused() {
    let mut bench = held();
    bench.join(join(2, 2));
    bench.tick(WARDEN_TICK_MS);
    let before = bench.map();
    for (number, incarnation) in [(2, 1), (2, 3), (9, 1)] {
        let ticket = leave(&mut bench, number, incarnation);
        assert_eq!(bench.answer(ticket), Some(Err(Refusal::OldLife)));
    }
    bench.ask(Ask::Obituary(Life { node: node(3), incarnation: 1 })).expect("noted");
    let ticket = leave(&mut bench, 3, 1);
    assert_eq!(bench.answer(ticket), Some(Err(Refusal::OldLife)), "it is over");
    bench.tick(WARDEN_TICK_MS);
    assert_eq!(bench.map().node(node(2)), before.node(node(2)));
}

#[test]
fn a_node_that_drains_goes_on_to() {
    let mut bench = herd(4, 2);
    have(&mut bench, &[1, 2, 3, 4]);
    bench.ask(Ask::Drain { name: "node-2".into(), stays: false }).expect("it may");
    let ticket = leave(&mut bench, 2, 1);
    for _ in 0..3 {
        have(&mut bench, &[1, 2, 3, 4]);
    }
    assert!(bench.answer(ticket).is_some_and(|answer| answer.is_ok()));
    assert_eq!((kept(&bench, 2), state_of(&bench, 2)), (0, NodeState::Draining));
    bench.ask(Ask::Obituary(Life { node: node(2), incarnation: 1 })).expect("noted");
    bench.tick(WARDEN_TICK_MS);
    assert_eq!(bench.map().node(node(2)), None, "it is forgotten");
}

#[test]
fn where_the_others_say_nothing_it_is_answered_all_the_same() {
    let mut bench = herd(3, 2);
    have(&mut bench, &[1, 2, 3]);
    let tickets = [leave(&mut bench, 2, 1), leave(&mut bench, 3, 1)];
    have(&mut bench, &[2]);
    bench.tick(WARDEN_LEAVE_MS);
    assert!(tickets.into_iter().all(|ticket| bench.answer(ticket).is_some_and(|answer| answer.is_ok())));
    // One that lives on after all is brought back.
    bench.warden.beats(Vec::new(), (1..=3).map(|number| (node(number), 1)).collect());
    bench.tick(WARDEN_LEFT_MS);
    bench.tick(WARDEN_TICK_MS);
    assert_eq!(state_of(&bench, 2), NodeState::Up);
}

#[test]
fn before_the_first_object_nothing_changes_and_who_loses_the_office_says_so() {
    let mut bench = Bench::new(config("a"));
    bench.join_all(1..=3);
    let before = bench.map();
    let ticket = leave(&mut bench, 2, 1);
    assert_eq!(bench.answer(ticket), Some(Ok(Answer::Leaves { epoch: before.epoch })));
    assert_eq!(bench.map(), before);
    let mut bench = held();
    let ticket = leave(&mut bench, 2, 1);
    let orders = bench.warden.stop();
    bench.carry_out(orders);
    assert_eq!(bench.answer(ticket), Some(Err(Refusal::NotWarden(None))));
}
