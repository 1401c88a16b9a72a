//! Values larger than a node's memory, which are read through it.

use super::*;
use crate::tests::{frame, frames_of, request};
use herd_core::limits::{STALLED_TIMEOUT_MS, TICK_MS, WIRE_FIRST_CREDIT_BYTES};
use herd_core::wire::{FLAG_MORE, Fields, Header, Kind, LENGTH_UNKNOWN, Verb};
use herd_store::Seat;
use std::sync::Arc;

/// More than a node has that has it not, and no whole number of blocks.
const LARGE_BYTES: usize = (40 << 20) + 12_345;
const SMALL_NODE_BYTES: u64 = 32 << 20;

fn value() -> Vec<u8> {
    (0..LARGE_BYTES).map(|at| (at % 251) as u8 ^ (at >> 16) as u8).collect()
}

/// A node of little memory, and one of much that has the object of that name.
fn small_and_large() -> (World, String, Vec<u8>) {
    let mut world = World::new(2);
    world.memory_bytes = SMALL_NODE_BYTES;
    world.start(1);
    world.memory_bytes = 256 << 20;
    world.start(2);
    let map = Arc::new(crate::link::tests::world::serving(2, 1));
    world.machine(1).push(&map, true);
    world.machine(2).adopt(&map, true);
    world.settle();
    let shared = world.machine(2).shared.clone();
    let has = |name: &String| shared.store.seat(&shared.default, name.as_bytes()) == Seat::Alone;
    let (name, value) = ((0..).map(|at| format!("l{at}")).find(has).expect("it has some"), value());
    let owner = world.connect(2, 1 << 20);
    let mut put =
        format!("PUT /o/default/{name} HTTP/1.1\r\nHost: h\r\nContent-Length: {LARGE_BYTES}\r\n\r\n").into_bytes();
    put.extend_from_slice(&value);
    assert!(world.say(owner, &put).starts_with(b"HTTP/1.1 201 "));
    (world, name, value)
}

fn get(name: &str) -> String {
    format!("GET /o/default/{name} HTTP/1.1\r\nHost: h\r\n\r\n")
}

/// Memory in use at the node that was asked.
fn used_bytes(world: &mut World) -> u64 {
    world.machine(1).shared.store.memory().1
}

fn assert_over(world: &mut World) {
    let machine = world.machine(1);
    assert!(machine.engine.service().cx.flights.is_empty());
    assert_eq!(machine.shared.store.unsettled(), (0, 0));
}

#[test]
fn a_value_larger_than_the_node_is_read_through_it_in_order() {
    let (mut world, name, value) = small_and_large();
    let client = world.connect(1, 1 << 20);
    // What was asked behind it, and before it was there, is answered behind it.
    let asked = format!("{}{}GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n", get(&name), get(&name));
    let said = world.say(client, asked.as_bytes());
    let mut rest = &said[..];
    for _ in 0..2 {
        assert!(rest.starts_with(b"HTTP/1.1 200 "));
        let head = rest.windows(4).position(|end| end == b"\r\n\r\n").expect("a head") + 4;
        assert!(rest[head..].starts_with(&value));
        rest = &rest[head + LARGE_BYTES..];
    }
    assert!(rest.starts_with(b"HTTP/1.1 200 ") && rest.ends_with(b"ok\n"));
    let range = "Range: bytes=41000000-41000009\r\n\r\n";
    let said = world.say(client, get(&name).replace("\r\n\r\n", &format!("\r\n{range}")).as_bytes());
    assert!(said.starts_with(b"HTTP/1.1 206 ") && said.ends_with(&value[41_000_000..41_000_010]));
    assert_over(&mut world);
}

#[test]
fn a_value_is_read_by_the_wire_as_far_as_its_client_allows() {
    let (mut world, name, value) = small_and_large();
    let (before, wire) = (used_bytes(&mut world), world.connect(1, 1 << 20));
    let mut said = world.say(wire, &frame(request(Verb::Get, 7), &Fields::named(name.as_bytes()), b""));
    let bytes = |said: &[u8]| frames_of(said).iter().map(|part| u64::from(part.header().body_len)).sum::<u64>();
    assert_eq!(bytes(&said), WIRE_FIRST_CREDIT_BYTES);
    // The other node has sent another window at most, and the link goes on.
    assert!(used_bytes(&mut world) - before <= WIRE_FIRST_CREDIT_BYTES + (2 << 20));
    let other = world.connect(1, 1 << 20);
    assert_eq!(world.say(other, get(&format!("{name}-none")).as_bytes())[..13], *b"HTTP/1.1 404 ");
    said.extend(world.say(wire, &Header::credit(7, LENGTH_UNKNOWN).encode()));
    let (mut heard, frames) = (Vec::new(), frames_of(&said));
    for (number, part) in frames.iter().enumerate() {
        let header = part.header();
        assert_eq!((header.id, header.offset), (7, heard.len() as u64));
        assert_eq!(header.has(FLAG_MORE), number + 1 < frames.len());
        heard.extend_from_slice(part.body().expect("as it was sent"));
    }
    assert!(heard == value);
    assert_over(&mut world);
}

#[test]
fn a_client_that_stalls_stops_its_own_value_alone() {
    let (mut world, name, value) = small_and_large();
    let before = used_bytes(&mut world);
    let stalled = world.connect(1, 64 << 10);
    world.outside[stalled].1.write(get(&name).as_bytes());
    world.settle();
    assert!(used_bytes(&mut world) - before <= WIRE_FIRST_CREDIT_BYTES + (2 << 20));
    let client = world.connect(1, 1 << 20);
    assert!(world.say(client, get(&name).as_bytes()).ends_with(&value));
    world.pass(STALLED_TIMEOUT_MS + 2 * TICK_MS);
    assert!(world.outside[stalled].1.is_closed());
    assert_over(&mut world);
    assert!(used_bytes(&mut world) <= before + (1 << 20));
}

#[test]
fn a_value_whose_node_dies_on_the_way_ends_its_connection() {
    let (mut world, name, _) = small_and_large();
    let (http, wire) = (world.connect(1, 64 << 10), world.connect(1, 1 << 20));
    world.outside[http].1.write(get(&name).as_bytes());
    let mut said = world.say(wire, &frame(request(Verb::Get, 7), &Fields::named(name.as_bytes()), b""));
    world.kill(2);
    // The connection to that one is no more, and those behind it move up.
    let (http, wire) = (http - 1, wire - 1);
    let heard = world.say(http, b"");
    assert!(heard.starts_with(b"HTTP/1.1 200 ") && heard.len() < LARGE_BYTES);
    said.extend(world.say(wire, b""));
    assert_eq!(frames_of(&said).last().map(|last| last.header().kind), Some(Kind::Goodbye));
    world.pass(2 * TICK_MS);
    assert!(world.outside[http].1.is_closed() && world.outside[wire].1.is_closed());
    assert_over(&mut world);
}
