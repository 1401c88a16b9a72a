//! Values of many frames, on their way through a node that has not the object.

use super::*;
use crate::tests::{frame, frames_of, request};
use herd_core::limits::{FLIGHT_BYTES_A_MS, FLIGHT_MS, TICK_MS};
use herd_core::wire::{FLAG_RANGE, Fields, Header, LENGTH_UNKNOWN, Verb};
use herd_store::Seat;

/// More than a window of credit, and no whole number of blocks.
const LARGE_BYTES: usize = (9 << 20) + 12_345;

fn value() -> Vec<u8> {
    (0..LARGE_BYTES).map(|at| (at % 251) as u8 ^ (at >> 16) as u8).collect()
}

/// A name `l..` that the node of that number has.
fn name_at(world: &mut World, number: u32) -> String {
    let shared = world.machine(number).shared.clone();
    let has = |name: &String| shared.store.seat(&shared.default, name.as_bytes()) == Seat::Alone;
    (0..).map(|at| format!("l{at}")).find(has).expect("it has some")
}

fn assert_nothing_is_kept(world: &mut World, number: u32) {
    let store = &world.machine(number).shared.store;
    assert_eq!(store.unsettled(), (0, 0), "at {number}");
}

/// The body of an answer by HTTP.
fn body(said: &[u8]) -> &[u8] {
    let end = said.windows(4).position(|end| end == b"\r\n\r\n").expect("a head");
    &said[end + 4..]
}

#[test]
fn large_values_go_through_nodes_that_have_them_not() {
    let (mut world, clients) = herd(3);
    let (name, value) = (name_at(&mut world, 2), value());
    let mut put =
        format!("PUT /o/default/{name} HTTP/1.1\r\nHost: h\r\nContent-Length: {LARGE_BYTES}\r\n\r\n").into_bytes();
    put.extend_from_slice(&value);
    let said = world.say(clients[0], &put);
    assert!(said.starts_with(b"HTTP/1.1 201 "), "{}", String::from_utf8_lossy(&said));
    assert_nothing_is_kept(&mut world, 1);
    let shared = world.machine(2).shared.clone();
    assert_eq!(shared.store.counts(&shared.default).objects, 1);
    for client in &clients {
        let got = world.say(*client, format!("GET /o/default/{name} HTTP/1.1\r\nHost: h\r\n\r\n").as_bytes());
        assert!(got.starts_with(b"HTTP/1.1 200 ") && body(&got) == value);
        let range = "Range: bytes=5000000-5000009";
        let got =
            world.say(*client, format!("GET /o/default/{name} HTTP/1.1\r\nHost: h\r\n{range}\r\n\r\n").as_bytes());
        assert!(got.starts_with(b"HTTP/1.1 206 ") && body(&got) == &value[5_000_000..5_000_010]);
    }
    (1..=3).for_each(|number| assert_nothing_is_kept(&mut world, number));
}

/// At the node that leads it is sent to the members when all of it is there.
#[test]
fn the_copies_of_a_large_value_have_time_for_it() {
    let mut world = World::keeping(2, 2);
    let (client, shared) = (world.connect(1, 1 << 20), world.machine(1).shared.clone());
    let leads = |name: &String| shared.store.seat(&shared.default, name.as_bytes()) == Seat::Led;
    let name = (0..).map(|at| format!("l{at}")).find(leads).expect("it leads some");
    let mut put =
        format!("PUT /o/default/{name} HTTP/1.1\r\nHost: h\r\nContent-Length: {LARGE_BYTES}\r\n\r\n").into_bytes();
    put.extend_from_slice(&value());
    world.cut = true;
    assert!(world.say(client, &put).is_empty());
    let more_ms = LARGE_BYTES as u64 / FLIGHT_BYTES_A_MS;
    world.pass(FLIGHT_MS + more_ms - TICK_MS);
    assert_eq!(say(&mut world, client, ""), "");
    world.pass(2 * TICK_MS);
    let said = say(&mut world, client, "");
    assert!(said.contains("outcome_unknown"), "{said}");
}

#[test]
fn a_part_of_a_large_value_comes_by_the_wire_with_its_place() {
    let (mut world, clients) = herd(2);
    let (name, value) = (name_at(&mut world, 2), value());
    let mut put =
        format!("PUT /o/default/{name} HTTP/1.1\r\nHost: h\r\nContent-Length: {LARGE_BYTES}\r\n\r\n").into_bytes();
    put.extend_from_slice(&value);
    assert!(world.say(clients[1], &put).starts_with(b"HTTP/1.1 201 "));
    let wire = world.connect(1, 1 << 20);
    for (offset, length) in [(0, 10), (70_000, 200_000), (65_536, 2 << 20), (123, LENGTH_UNKNOWN)] {
        let get = Header { flags: FLAG_RANGE, offset, length, ..request(Verb::Get, 7) };
        let credit = Header::credit(7, LENGTH_UNKNOWN).encode();
        let said = world.say(wire, &[&frame(get, &Fields::named(name.as_bytes()), b"")[..], &credit].concat());
        let frames = frames_of(&said);
        let (mut bytes, mut due) = (Vec::new(), offset);
        for part in &frames {
            assert_eq!(part.header().offset, due);
            bytes.extend_from_slice(part.body().expect("as it was sent"));
            due += part.header().body_len as u64;
        }
        let end = length.saturating_add(offset).min(LARGE_BYTES as u64) as usize;
        assert!(bytes == value[offset as usize..end], "{offset} {length}: {} bytes", bytes.len());
        assert_eq!(frames[0].header().length, LARGE_BYTES as u64);
    }
}

/// Whoever is not interested any more leaves nothing behind at either node.
#[test]
fn a_large_get_that_is_given_up_leaves_nothing() {
    let (mut world, clients) = herd(2);
    let (name, value) = (name_at(&mut world, 2), value());
    let mut put =
        format!("PUT /o/default/{name} HTTP/1.1\r\nHost: h\r\nContent-Length: {LARGE_BYTES}\r\n\r\n").into_bytes();
    put.extend_from_slice(&value);
    // The link is lost midway: the other node can't have all of it.
    world.cut = true;
    world.feed(clients[0], &put, |_| {});
    world.pass(12_000);
    let said = world.say(clients[0], b"");
    assert!(said.starts_with(b"HTTP/1.1 503 "), "{}", String::from_utf8_lossy(&said));
    world.cut = false;
    world.pass(5_000);
    (1..=2).for_each(|number| assert_nothing_is_kept(&mut world, number));
    let client = world.connect(1, 1 << 20);
    assert!(world.say(client, &put).starts_with(b"HTTP/1.1 20"));
    let wire = world.connect(1, 1 << 20);
    let get = frame(request(Verb::Get, 7), &Fields::named(name.as_bytes()), b"");
    world.say(wire, &get);
    world.say(wire, &Header::cancel(7).encode());
    world.outside[client].1.reset();
    world.settle();
    (1..=2).for_each(|number| assert_nothing_is_kept(&mut world, number));
}
