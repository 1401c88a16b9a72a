//! Nodes that are gone: groups that all lost open anew over those that are there, and so do new ones begin.

use super::*;
use crate::limits::{SLOTS, WARDEN_HEARS_MS};
use crate::place::Spread;

/// Some copies of collection `default`.
fn keeping(copies: u8) -> Config {
    Config { birth: Some(Birth { copies: Some(copies), ..birth() }), ..config("a") }
}

/// So many nodes, and the herd holds objects.
fn held(config: Config, nodes: u8) -> Bench {
    let mut bench = Bench::new(config);
    bench.join_all(1..=nodes);
    bench.all_have();
    bench.ask(Ask::Hold).expect("all have the map");
    bench
}

fn spread_of(bench: &Bench, name: &str) -> Spread {
    let map = bench.map();
    let id = map.collection(name).expect("it was made").id;
    map.spread(id.spread_group()).expect("it is there").clone()
}

/// Whether all its groups take writes, and have this many copies.
fn is_open(spread: &Spread, copies: usize) -> bool {
    let is_open = |slot: usize| spread.group_of(slot).primary.is_some() && spread.group_of(slot).copies() == copies;
    (0..SLOTS).all(is_open)
}

/// The story of a herd that is ended and started with a node more, and then once again.
#[test]
fn groups_of_before_a_third_node_open_anew_when_all_nodes_were_started_anew() {
    let mut bench = Bench::new(keeping(1));
    bench.join_all(1..=2);
    bench.ask(Ask::Create(Create { copies: Some(2), ..create("photos", "ram:1") })).expect("it is made");
    bench.ask(Ask::Create(create("pics", "ram:2"))).expect("it is made");
    bench.all_have();
    bench.ask(Ask::Hold).expect("all have the map");
    let mut bench = bench.restarted("b");
    for (number, life) in [(1, 2), (2, 2), (3, 1)] {
        bench.join(join(number, life));
    }
    let mut bench = bench.restarted("c");
    for (number, life) in [(1, 3), (2, 3), (3, 2)] {
        bench.join(join(number, life));
    }
    assert!(is_open(&spread_of(&bench, "photos"), 2));
    let pics = spread_of(&bench, "pics");
    assert!((0..SLOTS).all(|slot| pics.group_of(slot).copies() >= 2 && pics.group_of(slot).primary.is_some()));
    assert!((0..SLOTS).all(|slot| pics.group_of(slot).lost > 0), "the loss is told");
}

/// Two of one group, one after the other, and the second is the warden's node.
#[test]
fn a_group_that_needs_a_node_waits_until_that_is_heard() {
    let mut bench = Bench::new(keeping(1));
    bench.join_all(1..=2);
    bench.ask(Ask::Create(create("pics", "ram:2"))).expect("it is made");
    bench.all_have();
    bench.ask(Ask::Hold).expect("all have the map");
    bench.join(join(2, 2));
    let mut bench = bench.restarted("b");
    bench.join(join(1, 2));
    assert!(spread_of(&bench, "pics").groups.iter().all(|group| group.eligible.is_empty() && group.lost > 0));
    let epoch = bench.map().epoch;
    bench.tick(WARDEN_HEARS_MS);
    bench.tick(1);
    assert_eq!(bench.map().epoch, epoch + 1, "what needs one node goes on with one");
    assert!(spread_of(&bench, "pics").groups.iter().all(|group| group.primary.is_none()));
    bench.links(&[2]);
    assert!(is_open(&spread_of(&bench, "pics"), 2));
}

#[test]
fn who_is_started_anew_alone_has_its_share_at_once_and_the_warden_s_node_when_it_hears_the_others() {
    let mut bench = held(keeping(1), 3);
    let led = |bench: &Bench, number: u32| {
        let map = bench.map();
        let groups = &map.spread(0).expect("the default one").groups;
        groups.iter().filter(|group| group.primary.is_some_and(|node| node.0.get() == number)).count()
    };
    let before = [1, 2, 3].map(|number| led(&bench, number));
    bench.join(join(3, 2));
    assert_eq!([1, 2, 3].map(|number| led(&bench, number)), before);
    let mut bench = bench.restarted("b");
    bench.join(join(1, 2));
    bench.links(&[2]);
    assert_eq!(led(&bench, 1), 0, "node 3 may be late");
    bench.links(&[2, 3]);
    assert_eq!([1, 2, 3].map(|number| led(&bench, number)), before);
}

#[test]
fn new_groups_are_made_of_nodes_that_are_there() {
    let mut bench = held(config("a"), 4);
    bench.links(&[2, 3, 4]);
    bench.links(&[2, 3]);
    bench.ask(Ask::Create(Create { copies: Some(3), ..create("three", "ram:3") })).expect("three are there");
    let three = spread_of(&bench, "three");
    assert!(is_open(&three, 3));
    assert!(three.groups.iter().all(|group| group.members().all(|node| node.0.get() != 4)));
    bench.links(&[2]);
    let before = bench.map();
    let refused = |bench: &mut Bench, create: Create| {
        let error = bench.ask(Ask::Create(create)).expect_err("too few are there");
        crate::error::Error::from(error)
    };
    let error = refused(&mut bench, create("safe", "ram:4"));
    assert_eq!(error.kind, crate::error::ErrorKind::Unreachable);
    assert_eq!(
        error.to_string(),
        "class ram:4 needs 4 nodes, and of the 4 of this herd 2 can't be reached (node-3, node-4): start them, then \
         create the collection"
    );
    let error = refused(&mut bench, Create { copies: Some(4), ..create("safe", "ram:1") });
    assert!(error.to_string().starts_with("to keep 4 copies needs 4 nodes, and of the 4"), "{error}");
    assert_eq!(bench.map(), before);
    bench.links(&[2, 3, 4]);
    bench.ask(Ask::Create(create("safe", "ram:4"))).expect("they are back");
}

#[test]
fn who_wants_to_hold_the_first_object_is_told_at_once_who_is_gone() {
    let mut bench = Bench::new(config("a"));
    bench.join_all(1..=3);
    bench.links(&[2, 3]);
    bench.tick(WARDEN_HEARS_MS);
    let early = bench.send(Ask::Hold);
    assert_eq!(bench.answer(early), None, "they are there, and will have the map");
    bench.links(&[2]);
    let refusal = Refusal::Away(vec!["node-3".into()]);
    assert_eq!(bench.answer(early), Some(Err(refusal.clone())));
    assert_eq!(bench.ask(Ask::Hold), Err(refusal));
    bench.links(&[2, 3]);
    assert_eq!(bench.ask(Ask::Hold), Ok(Answer::Held));
}

#[test]
fn a_warden_that_was_started_anew_waits_for_who_is_late() {
    let mut bench = Bench::new(config("a"));
    bench.join_all(1..=2);
    let mut bench = bench.restarted("b");
    bench.join(join(1, 2));
    let hold = bench.send(Ask::Hold);
    bench.tick(WARDEN_HEARS_MS - 1);
    assert_eq!(bench.answer(hold), None);
    bench.tick(1);
    assert_eq!(bench.answer(hold), Some(Err(Refusal::Away(vec!["node-2".into()]))));
}
