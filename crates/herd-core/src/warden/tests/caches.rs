//! What is of class `cache` when nodes die, fall silent, end, drain and come.

use super::leave::{have, leave};
use super::tend::{led, state_of};
use super::*;
use crate::limits::{BALANCE_CALM_MS, OFFICE_LEASE_MS, WARDEN_HEARS_MS, WARDEN_TICK_MS};
use crate::place::{Life, NodeState};

fn node(number: u32) -> NodeId {
    NodeId(std::num::NonZeroU32::new(number).expect("from 1"))
}

/// Three nodes of a herd that evicts, and it holds objects.
fn held() -> Bench {
    let mut bench = Bench::new(Config { birth: Some(Birth { evict: true, ..birth() }), ..config("a") });
    bench.join_all(1..=3);
    bench.all_have();
    bench.ask(Ask::Hold).expect("all have the map");
    bench.links(&[1, 2, 3]);
    bench.tick(WARDEN_HEARS_MS);
    bench.all_have();
    assert_eq!(led(&bench), [8, 8, 8]);
    bench
}

fn drain(stays: bool) -> Ask {
    Ask::Drain { name: "node-2".into(), stays }
}

#[test]
fn what_a_dead_node_had_is_led_by_others_in_the_map_that_says_so() {
    let mut bench = held();
    let epoch = bench.map().epoch;
    assert_eq!(bench.ask(Ask::Obituary(Life { node: node(2), incarnation: 1 })), Ok(Answer::Noted));
    assert_eq!((led(&bench), state_of(&bench, 2), bench.map().epoch), ([12, 0, 12], NodeState::Dead, epoch + 1));
    let map = bench.map();
    assert!(map.spread(0).expect("the default one").groups.iter().all(|group| group.lost == 0));
    assert_eq!(map.collections[0].generation, 1, "what others have stays");
    // It comes back and gets its share, when all is calm.
    bench.join(join(2, 2));
    assert_eq!(led(&bench), [12, 0, 12]);
    for _ in 0..4 * BALANCE_CALM_MS / WARDEN_TICK_MS {
        bench.all_have();
        bench.tick(WARDEN_TICK_MS);
    }
    assert_eq!(led(&bench), [8, 8, 8]);
    let before = bench.map();
    (0..100).for_each(|_| bench.tick(WARDEN_TICK_MS));
    assert_eq!(bench.map(), before, "nothing goes to and fro");
}

#[test]
fn what_a_silent_node_had_is_led_by_others_when_it_is_cold() {
    let mut bench = held();
    bench.warden.beats(vec![(node(2), 1)], vec![(node(1), 1), (node(3), 1)]);
    (0..3).for_each(|_| bench.tick(WARDEN_TICK_MS));
    assert_eq!((led(&bench), state_of(&bench, 2)), ([8, 8, 8], NodeState::Down));
    bench.warden.cold(vec![(node(2), 7)]);
    bench.tick(WARDEN_TICK_MS);
    assert_eq!(led(&bench), [8, 8, 8], "another life of it");
    bench.warden.cold(vec![(node(2), 1)]);
    bench.tick(WARDEN_TICK_MS);
    assert_eq!(led(&bench), [12, 0, 12]);
    let epoch = bench.map().epoch;
    bench.tick(WARDEN_TICK_MS);
    assert_eq!(bench.map().epoch, epoch, "there is nothing left to do");
}

#[test]
fn what_was_cold_in_an_earlier_term_is_judged_anew() {
    let mut bench = held();
    bench.warden.beats(vec![(node(2), 1)], vec![(node(1), 1), (node(3), 1)]);
    bench.warden.cold(vec![(node(2), 1)]);
    bench.faults = vec![ControlError::Unreachable("a test".into()); 3];
    bench.tick(WARDEN_TICK_MS);
    // Meanwhile another warden grants something to all.
    bench.faults.clear();
    bench.now_ms += 3 * OFFICE_LEASE_MS;
    let other = Call::Campaign { name: "b".into(), lease_ms: OFFICE_LEASE_MS };
    assert!(matches!(bench.call(&other), Ok(Reply::Office(office)) if office.holder.as_deref() == Some("b")));
    bench.tick(WARDEN_TICK_MS);
    assert!(bench.warden.map().is_none(), "it is not in office");
    bench.now_ms += 3 * OFFICE_LEASE_MS;
    bench.settle();
    (0..3).for_each(|_| bench.tick(WARDEN_TICK_MS));
    assert_eq!((led(&bench), state_of(&bench, 2)), ([8, 8, 8], NodeState::Up));
}

#[test]
fn who_drains_is_told_first_and_then_others_lead() {
    let mut bench = held();
    have(&mut bench, &[1, 2, 3]);
    assert_eq!(bench.ask(drain(false)), Ok(Answer::Drains));
    bench.tick(WARDEN_TICK_MS);
    assert_eq!(led(&bench), [8, 0, 8], "nobody leads them, as it may not have heard of that");
    let epoch = bench.map().epoch;
    have(&mut bench, &[1, 3]);
    (0..50).for_each(|_| bench.tick(WARDEN_TICK_MS));
    assert_eq!((led(&bench), bench.map().epoch), ([8, 0, 8], epoch));
    have(&mut bench, &[2]);
    assert_eq!((led(&bench), bench.map().epoch), ([12, 0, 12], epoch + 1), "without a tick");
    assert!(!bench.map().keeps(node(2)));
    // Called off it gets its share again.
    assert_eq!(bench.ask(drain(true)), Ok(Answer::Drains));
    for _ in 0..4 * BALANCE_CALM_MS / WARDEN_TICK_MS {
        bench.all_have();
        bench.tick(WARDEN_TICK_MS);
    }
    assert_eq!(led(&bench), [8, 8, 8]);
}

#[test]
fn who_dies_or_goes_cold_before_it_was_told_is_not_waited_for() {
    for dies in [true, false] {
        let mut bench = held();
        bench.ask(drain(false)).expect("it drains");
        bench.tick(WARDEN_TICK_MS);
        assert_eq!(led(&bench), [8, 0, 8]);
        match dies {
            true => drop(bench.ask(Ask::Obituary(Life { node: node(2), incarnation: 1 }))),
            false => {
                bench.warden.beats(vec![(node(2), 1)], vec![(node(1), 1), (node(3), 1)]);
                bench.tick(WARDEN_TICK_MS);
                assert_eq!(led(&bench), [8, 0, 8], "it may lead still");
                bench.warden.cold(vec![(node(2), 1)]);
                bench.tick(WARDEN_TICK_MS);
            }
        }
        assert_eq!(led(&bench), [12, 0, 12], "dies: {dies}");
    }
}

#[test]
fn another_warden_goes_on_with_what_was_sealed() {
    let mut bench = held();
    bench.ask(drain(false)).expect("it drains");
    bench.tick(WARDEN_TICK_MS);
    let mut bench = bench.restarted("a");
    bench.settle();
    bench.links(&[1, 2, 3]);
    assert_eq!(led(&bench), [8, 0, 8]);
    bench.all_have();
    bench.tick(WARDEN_TICK_MS);
    assert_eq!(led(&bench), [12, 0, 12]);
}

#[test]
fn who_is_about_to_end_is_let_go_when_others_lead_what_it_had() {
    let mut bench = held();
    have(&mut bench, &[1, 2, 3]);
    let ticket = leave(&mut bench, 2, 1);
    assert_eq!(led(&bench), [8, 0, 8]);
    have(&mut bench, &[1, 3]);
    assert_eq!((led(&bench), bench.answer(ticket)), ([8, 0, 8], None));
    have(&mut bench, &[2]);
    assert_eq!((led(&bench), bench.answer(ticket)), ([12, 0, 12], None));
    have(&mut bench, &[1, 3]);
    assert_eq!(bench.answer(ticket), Some(Ok(Answer::Leaves { epoch: bench.map().epoch })));
    assert_eq!(state_of(&bench, 2), NodeState::Down);
}

#[test]
fn who_is_alone_keeps_what_it_has() {
    let mut bench = Bench::new(Config { birth: Some(Birth { evict: true, ..birth() }), ..config("a") });
    bench.join_all(1..=1);
    bench.all_have();
    bench.ask(Ask::Hold).expect("it has the map");
    let before = bench.map();
    bench.ask(Ask::Drain { name: "node-1".into(), stays: false }).expect_err("there is nobody to get it");
    bench.ask(Ask::Leave(Life { node: node(1), incarnation: 1 })).ok();
    (0..20).for_each(|_| bench.tick(WARDEN_TICK_MS));
    assert_eq!(bench.map(), before);
}
