//! Puts that begin at once, at the node that decides on their object, while other nodes keep copies.

use super::*;
use crate::metrics::{DoorName, VerbName};
use crate::tests::{frame, frames_of, request};
use herd_core::limits::{FLIGHT_MS, LINK_SILENCE_MS};
use herd_core::wire::{Fields, Header, Status, Verb};
use herd_store::Seat;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// A key that this node decides on, which begins so.
fn key_led_by(world: &mut World, number: u32, begin: &str) -> String {
    let shared = world.machine(number).shared.clone();
    let leads = |key: &String| shared.store.seat(&shared.default, key.as_bytes()) == Seat::Led;
    (0..).map(|at| format!("{begin}{at}")).find(leads).expect("it leads some")
}

fn begun(world: &mut World, number: u32) -> usize {
    world.machine(number).engine.service().cx.flights.puts_at_once()
}

/// Nothing is kept of any request.
fn assert_settled(world: &mut World, number: u32) {
    assert!(world.machine(number).engine.service().cx.flights.is_empty());
}

#[test]
fn what_a_connection_asks_of_the_same_object_stands_behind_and_of_another_does_not() {
    let mut world = World::keeping(3, 2);
    let client = world.connect(1, 1 << 20);
    let key = key_led_by(&mut world, 1, "k");
    assert_eq!(say(&mut world, client, &format!("set {key} 0 0 1\r\na\r\n")), "STORED\r\n");
    world.cut = true;
    let lines = format!("set {key} 5 0 1\r\nb\r\nget {key}\r\nset {key} 0 0 1 noreply\r\nc\r\nget {key}\r\n");
    assert_eq!(say(&mut world, client, &lines), "");
    assert_eq!(begun(&mut world, 1), 1, "the second waits for the first");
    let other = world.connect(1, 1 << 20);
    let committed = format!("VALUE {key} 0 1\r\na\r\nEND\r\n");
    assert_eq!(say(&mut world, other, &format!("get {key}\r\n")), committed, "others read what is committed");
    world.cut = false;
    world.pass(50);
    let answers = format!("STORED\r\nVALUE {key} 5 1\r\nb\r\nEND\r\nVALUE {key} 0 1\r\nc\r\nEND\r\n");
    assert_eq!(say(&mut world, client, ""), answers);
    (1..=3).for_each(|number| assert_settled(&mut world, number));
}

#[test]
fn one_that_is_not_plain_goes_the_long_way() {
    let mut world = World::keeping(2, 2);
    let (client, key) = (world.connect(1, 1 << 20), key_led_by(&mut world, 1, "k"));
    world.cut = true;
    let long = "x".repeat(5_000);
    let lines = [
        format!("add {key} 0 0 1\r\na\r\n"),
        format!("append {key} 0 0 1\r\nb\r\n"),
        format!("ms {key} 1\r\nc\r\n"),
        format!("set {key} 0 0 5000\r\n{long}\r\n"),
    ];
    assert_eq!(say(&mut world, client, &lines.concat()), "");
    assert_eq!(begun(&mut world, 1), 0);
    world.cut = false;
    world.pass(50);
    assert_eq!(say(&mut world, client, ""), "STORED\r\nSTORED\r\nHD\r\nSTORED\r\n");
    assert_settled(&mut world, 1);
}

#[test]
fn a_client_that_goes_leaves_nothing_behind_and_its_put_is_done() {
    let mut world = World::keeping(2, 2);
    let (client, key) = (world.connect(1, 1 << 20), key_led_by(&mut world, 1, "k"));
    world.cut = true;
    let held = |world: &mut World| world.machine(1).shared.store.unsettled().1;
    let before = held(&mut world);
    assert_eq!(say(&mut world, client, &format!("set {key} 0 0 1\r\na\r\n")), "");
    assert_eq!(begun(&mut world, 1), 1);
    world.outside[client].1.reset();
    world.settle();
    assert_settled(&mut world, 1);
    assert!(held(&mut world) > before, "what the group keeps of it counts until the member has it");
    world.cut = false;
    world.pass(LINK_SILENCE_MS);
    let other = world.connect(2, 1 << 20);
    assert_eq!(say(&mut world, other, &format!("get {key}\r\n")), format!("VALUE {key} 0 1\r\na\r\nEND\r\n"));
}

/// The link breaks before the member has the put, and at the primary the collection is flushed: the put is dropped
/// everywhere, and done once more under the present generation.
#[test]
fn one_that_a_flush_drops_is_done_anew() {
    let mut world = World::keeping(2, 2);
    let (client, key) = (world.connect(1, 1 << 20), key_led_by(&mut world, 1, "k"));
    assert_eq!(say(&mut world, client, &format!("set {key} 0 0 1\r\na\r\n")), "STORED\r\n");
    world.cut = true;
    assert_eq!(say(&mut world, client, &format!("set {key} 0 0 1\r\nb\r\n")), "");
    assert_eq!(begun(&mut world, 1), 1);
    let map = world.machine(1).map.clone().expect("it has one");
    let map = Arc::new(map.next(|draft| draft.collections[0].generation += 1).expect("a valid map"));
    world.machine(2).adopts = false;
    world.machine(1).push(&map, true);
    world.settle();
    for cable in (0..world.cables.len()).rev() {
        let (ends, cable) = world.unplug(cable);
        for (end, peer) in ends.into_iter().zip(cable.into_ends()) {
            peer.reset();
            world.note(end, &peer);
        }
    }
    world.cut = false;
    world.pass(LINK_SILENCE_MS);
    world.machine(2).adopts = true;
    world.pass(LINK_SILENCE_MS);
    assert_eq!(say(&mut world, client, ""), "STORED\r\n");
    for number in 1..=2 {
        let other = world.connect(number, 1 << 20);
        let there = format!("VALUE {key} 0 1\r\nb\r\nEND\r\n");
        assert_eq!(say(&mut world, other, &format!("get {key}\r\n")), there, "at {number}");
        assert_settled(&mut world, number);
    }
}

/// What is asked before a flush on a connection goes with it, however long its line is.
#[test]
fn a_flush_stands_behind_all_that_its_connection_asked_before() {
    let mut world = World::keeping(2, 2);
    let (client, key) = (world.connect(1, 1 << 20), key_led_by(&mut world, 1, "k"));
    world.cut = true;
    let sets: String = (0..20).map(|n| format!("set {key} 0 0 2 noreply\r\n{n:02}\r\n")).collect();
    assert_eq!(say(&mut world, client, &format!("{sets}flush_all\r\nget {key}\r\n")), "");
    let flushes = |world: &mut World| {
        let metrics = &world.machine(1).shared.metrics[0];
        metrics.of(DoorName::Memcached, VerbName::Admin).requests.load(Relaxed)
    };
    assert_eq!(flushes(&mut world), 0, "it begins when that is done");
    world.cut = false;
    world.pass(50);
    assert_eq!(flushes(&mut world), 1);
    // There is no warden here.
    let said = say(&mut world, client, "");
    assert!(said.starts_with("SERVER_ERROR"), "{said}");
    assert!(said.ends_with(&format!("VALUE {key} 0 2\r\n19\r\nEND\r\n")), "{said}");
}

#[test]
fn one_that_no_member_answers_ends_in_time_as_of_unknown_outcome() {
    let mut world = World::keeping(2, 2);
    let (client, key) = (world.connect(1, 1 << 20), key_led_by(&mut world, 1, "k"));
    let wire = world.connect(1, 1 << 20);
    world.cut = true;
    assert_eq!(say(&mut world, client, &format!("set {key} 0 0 1\r\na\r\n")), "");
    let other = key_led_by(&mut world, 1, "w");
    let put = Header { length: 1, ..request(Verb::Put, 7) };
    assert!(world.say(wire, &frame(put, &Fields::named(other.as_bytes()), b"v")).is_empty());
    assert_eq!(begun(&mut world, 1), 2);
    world.pass(FLIGHT_MS + 100);
    let said = say(&mut world, client, "");
    assert!(said.starts_with("SERVER_ERROR ") && said.contains("outcome is unknown"), "{said}");
    let said = world.say(wire, b"");
    let frames = frames_of(&said);
    let status = frames[0].header().status();
    assert!(matches!(status, Some(Status::Error(herd_core::ErrorKind::OutcomeUnknown))), "{status:?}");
    assert_settled(&mut world, 1);
    world.cut = false;
    world.pass(2 * LINK_SILENCE_MS);
    assert_eq!(say(&mut world, client, &format!("set {key} 0 0 1\r\nb\r\n")), "STORED\r\n");
}
