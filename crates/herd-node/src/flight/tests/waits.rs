//! Gets that wait for a newer version of an object of another node.

use super::*;
use crate::tests::{frame, frames_of, request};
use herd_core::ErrorKind;
use herd_core::limits::{TICK_MS, WIRE_OPEN_REQUESTS_MAX};
use herd_core::wire::{CODE_NEWER, Fields, Header, Status, Verb};
use std::sync::atomic::Ordering::Relaxed;

/// Herds of which each object is at one node, and at all of them, and so without leases, with a connection to each.
fn herds() -> [(World, Vec<usize>); 3] {
    let of_groups = |mut world: World| {
        let clients = (1..=3).map(|number| world.connect(number, 1 << 20)).collect();
        (world, clients)
    };
    [herd(2), of_groups(World::keeping(3, 3)), of_groups(without_leases(3, 3))]
}

/// Calls `f` with each such herd, and with who is asked: a node that hands on, and the one that decides.
fn with_herds(f: impl Fn(World, &[usize], u32)) {
    [1, 2].into_iter().for_each(|asked| herds().into_iter().for_each(|(world, clients)| f(world, &clients, asked)));
}

/// An object `w..` that the second node decides on, and its version.
fn object(world: &mut World, client: usize) -> (String, u64) {
    let shared = world.machine(2).shared.clone();
    let decides = |name: &String| {
        matches!(shared.store.seat(&shared.default, name.as_bytes()), herd_store::Seat::Alone | herd_store::Seat::Led)
    };
    let name = (0..).map(|at| format!("w{at}")).find(decides).expect("it has some");
    assert_eq!(say(world, client, &format!("set {name} 0 0 1\r\nx\r\n")), "STORED\r\n");
    let version = shared.store.entry(&shared.default, name.as_bytes(), Default::default()).version();
    (name, version.expect("it is there"))
}

fn wait_by_http(name: &str, version: u64, seconds: u64) -> String {
    format!(
        "GET /o/default/{name} HTTP/1.1\r\nHost: h\r\nIf-None-Match: \"{version}\"\r\nPrefer: wait={seconds}\r\n\r\n"
    )
}

fn wait_by_wire(name: &str, version: u64, time_ms: u32) -> Vec<u8> {
    let get = Header { code: CODE_NEWER, version, time_ms, ..request(Verb::Get, 5) };
    frame(get, &Fields::named(name.as_bytes()), b"")
}

fn status(said: &[u8]) -> Option<Status> {
    frames_of(said).first().and_then(|reply| reply.header().status())
}

#[test]
fn who_waits_at_one_node_is_told_of_what_changes_at_another() {
    with_herds(is_told);
}

fn is_told(mut world: World, clients: &[usize], asked: u32) {
    let (name, version) = object(&mut world, clients[1]);
    let [http, wire] = [(); 2].map(|()| world.connect(asked, 1 << 20));
    assert_eq!(say(&mut world, http, &wait_by_http(&name, version, 60)), "");
    assert!(world.say(wire, &wait_by_wire(&name, version, 60_000)).is_empty());
    world.pass(20_000);
    assert_eq!(say(&mut world, http, ""), "");
    assert_eq!(say(&mut world, clients[1], &format!("append {name} 0 0 1\r\ny\r\n")), "STORED\r\n");
    let said = say(&mut world, http, "");
    assert!(said.starts_with("HTTP/1.1 200 ") && said.ends_with("\r\n\r\nxy"), "{said}");
    let said = world.say(wire, b"");
    assert_eq!(frames_of(&said)[0].body(), Ok(&b"xy"[..]));
    // And of its end.
    let version = frames_of(&said)[0].header().version;
    assert_eq!(say(&mut world, http, &wait_by_http(&name, version, 60)), "");
    assert!(world.say(wire, &wait_by_wire(&name, version, 60_000)).is_empty());
    assert_eq!(say(&mut world, clients[1], &format!("delete {name}\r\n")), "DELETED\r\n");
    assert!(say(&mut world, http, "").starts_with("HTTP/1.1 404 "));
    assert_eq!(status(&world.say(wire, b"")), Some(Status::Error(ErrorKind::NotFound)));
    assert_eq!(world.machine(2).shared.watch.waiting(), 0);
}

#[test]
fn a_wait_ends_by_its_time_by_a_cancel_and_with_its_node() {
    with_herds(ends);
}

fn ends(mut world: World, clients: &[usize], asked: u32) {
    let (name, version) = object(&mut world, clients[1]);
    let [http, wire] = [(); 2].map(|()| world.connect(asked, 1 << 20));
    assert_eq!(say(&mut world, http, &wait_by_http(&name, version, 3)), "");
    assert!(world.say(wire, &wait_by_wire(&name, version, 3_000)).is_empty());
    world.pass(3_000 + 2 * TICK_MS);
    let said = say(&mut world, http, "");
    assert!(said.starts_with("HTTP/1.1 304 ") && said.contains(&format!("\"{version}\"")), "{said}");
    assert_eq!(status(&world.say(wire, b"")), Some(Status::Error(ErrorKind::Timeout)));
    // A cancel ends it at both nodes.
    assert!(world.say(wire, &wait_by_wire(&name, version, 60_000)).is_empty());
    assert_eq!(world.machine(2).shared.watch.waiting(), 1);
    world.say(wire, &Header::cancel(5).encode());
    assert_eq!(world.machine(2).shared.watch.waiting(), 0);
    // The node that was asked stops.
    assert_eq!(say(&mut world, http, &wait_by_http(&name, version, 60)), "");
    assert!(world.say(wire, &wait_by_wire(&name, version, 60_000)).is_empty());
    world.machine(asked).shared.stopping.store(true, Relaxed);
    world.pass(TICK_MS);
    assert!(say(&mut world, http, "").starts_with("HTTP/1.1 503 "));
    assert_eq!(status(&world.say(wire, b"")), Some(Status::Error(ErrorKind::Busy)));
}

/// What else goes over a link is under way when the wait comes there, and when it ends.
#[test]
fn a_wait_that_is_handed_on_beside_others_is_told_too() {
    let mut world = World::keeping(3, 2);
    let [own, wire, other] = [2, 1, 1].map(|number| world.connect(number, 1 << 20));
    let (name, busy) = (led_by_second(&mut world, 1), led_by_second(&mut world, 3));
    assert_eq!(say(&mut world, own, &format!("set {name} 0 0 1\r\nx\r\n")), "STORED\r\n");
    let shared = world.machine(2).shared.clone();
    let version = shared.store.entry(&shared.default, name.as_bytes(), Default::default()).version();
    let is_between = |(ends, _): &([(usize, usize); 2], _)| [[1, 2], [2, 1]].contains(&ends.map(|end| end.0));
    let cable = world.cables.iter().position(is_between).expect("there is one");
    let unplugged = world.unplug(cable);
    assert_eq!(say(&mut world, other, &format!("set {busy} 0 0 1\r\nx\r\n")), "");
    assert!(world.say(wire, &wait_by_wire(&name, version.expect("it is there"), 60_000)).is_empty());
    assert_eq!(shared.watch.waiting(), 1);
    assert_eq!(say(&mut world, own, &format!("append {name} 0 0 1\r\ny\r\n")), "STORED\r\n");
    let said = world.say(wire, b"");
    assert_eq!((status(&said), frames_of(&said)[0].body()), (Some(Status::Ok), Ok(&b"xy"[..])));
    assert_eq!(say(&mut world, other, ""), "", "that is under way still");
    drop(unplugged);
}

/// A link has what the clients of a whole loop ask, which is more than one connection may.
#[test]
fn as_many_wait_over_a_link_as_it_may_have() {
    let (mut world, clients) = herd(2);
    let (name, version) = object(&mut world, clients[1]);
    let each = WIRE_OPEN_REQUESTS_MAX as u64 * 3 / 4;
    for _ in 0..2 {
        let wire = world.connect(1, 1 << 20);
        let wait = |id| Header { code: CODE_NEWER, version, time_ms: 60_000, ..request(Verb::Get, id) };
        let all: Vec<u8> = (1..=each).flat_map(|id| frame(wait(id), &Fields::named(name.as_bytes()), b"")).collect();
        let said = world.say(wire, &all);
        assert_eq!(frames_of(&said).len(), 0, "{:?}", status(&said));
    }
    assert_eq!(world.machine(2).shared.watch.waiting(), 2 * each as usize);
}
