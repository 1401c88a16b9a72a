//! Values larger than a node's memory, which are put through it.

use super::*;
use crate::link::tests::world::serving;
use crate::tests::{frame, frames_of, request};
use herd_core::ErrorKind;
use herd_core::checksum::crc32c;
use herd_core::limits::{
    BLOCK_BYTES, BODY_STALL_MS, FLIGHT_LINK_MS, FLIGHT_MS, LINK_SILENCE_MS, TICK_MS, WIRE_FIRST_CREDIT_BYTES,
};
use herd_core::wire::{FLAG_MORE, FLAG_RANGE, Fields, Header, Kind, LENGTH_UNKNOWN, Status, Verb};
use herd_store::Seat;
use std::sync::Arc;

/// More than the node that is asked has, and no whole number of blocks.
const LARGE_BYTES: usize = (40 << 20) + 12_345;
/// What may be here of one value, the link's frame and what is being read included.
const MOST_BYTES: u64 = WIRE_FIRST_CREDIT_BYTES + (2 << 20);

fn value(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at % 251) as u8 ^ (at >> 16) as u8).collect()
}

/// A node of so little memory, and a second one of so much.
fn two(first_bytes: u64, second_bytes: u64) -> World {
    let mut world = World::new(2);
    world.memcached_max_bytes = 1 << 30;
    world.memory_bytes = first_bytes;
    world.start(1);
    world.memory_bytes = second_bytes;
    world.start(2);
    let map = Arc::new(serving(2, 1));
    world.machine(1).push(&map, true);
    world.machine(2).adopt(&map, true);
    world.settle();
    world
}

fn small_first() -> World {
    two(32 << 20, 256 << 20)
}

/// The first name `l..` that the second node decides on.
fn name_of(world: &mut World) -> String {
    let shared = world.machine(2).shared.clone();
    let has = |name: &String| matches!(shared.store.seat(&shared.default, name.as_bytes()), Seat::Alone | Seat::Led);
    (0..).map(|at| format!("l{at}")).find(has).expect("it has some")
}

fn used_bytes(world: &mut World) -> u64 {
    world.machine(1).shared.store.memory().1
}

/// Sends it all, and sees that little of it is at the first node at any time; what was answered.
fn put(world: &mut World, client: usize, bytes: &[u8]) -> Vec<u8> {
    let (before, mut most) = (used_bytes(world), 0);
    let left = world.feed(client, bytes, |world| most = most.max(used_bytes(world)));
    assert!(left.is_empty(), "{} bytes are not taken", left.len());
    assert!(most <= before + MOST_BYTES, "{} bytes were there", most - before);
    world.say(client, b"")
}

fn http(name: &str, length: usize) -> Vec<u8> {
    format!("PUT /o/default/{name} HTTP/1.1\r\nHost: h\r\nContent-Length: {length}\r\n\r\n").into_bytes()
}

fn text(said: &[u8]) -> String {
    String::from_utf8_lossy(&said[..said.len().min(600)]).into_owned()
}

/// A node's answer to a GET is that value.
fn assert_stored(world: &mut World, number: u32, name: &str, value: &[u8]) {
    let client = world.connect(number, 1 << 20);
    let said = world.say(client, format!("GET /o/default/{name} HTTP/1.1\r\nHost: h\r\n\r\n").as_bytes());
    let end = said.windows(4).position(|end| end == b"\r\n\r\n").expect("a head");
    let got = &said[end + 4..];
    assert_eq!((got.len(), crc32c(got)), (value.len(), crc32c(value)), "{name} at {number}: {}", text(&said));
}

/// Nothing is under way, and nothing is kept of it.
fn assert_over(world: &mut World) {
    for at in 1..=world.machines.len() as u32 {
        let machine = world.machine(at);
        assert!(machine.engine.service().cx.flights.is_empty(), "{at}");
        assert_eq!(machine.shared.store.unsettled(), (0, 0), "{at}");
    }
}

/// As by the node itself: memcached's clients take the old value for gone where a `set` was refused.
#[test]
fn a_set_that_the_node_that_decides_has_no_room_for_leaves_no_old_value() {
    for copies in [1, 2] {
        let mut world = if copies == 1 { two(256 << 20, 24 << 20) } else { World::keeping(2, 2) };
        let (name, client, own) = (name_of(&mut world), world.connect(1, 1 << 20), world.connect(2, 1 << 20));
        for length in [30_000, 300_000] {
            let small = format!("set {name} 0 0 3\r\nold\r\n");
            assert_eq!(world.say(client, small.as_bytes()), b"STORED\r\n");
            let shared = world.machine(2).shared.clone();
            let admit = |_| shared.store.admit_passing(&shared.default, b"taken", Some(BLOCK_BYTES as u64)).ok();
            let taken: Vec<_> = (0..).map_while(admit).collect();
            let set = format!("set {name} 0 0 {length}\r\n{}\r\n", "x".repeat(length));
            let left = world.feed(client, set.as_bytes(), |_| ());
            assert!(left.is_empty());
            let said = world.say(client, b"");
            assert!(said.starts_with(b"SERVER_ERROR out of memory"), "{copies}, {length}: {}", text(&said));
            let get = format!("get {name}\r\n");
            assert_eq!(text(&world.say(own, get.as_bytes())), "END\r\n", "{copies} copies, {length} bytes");
            drop(taken);
        }
    }
}

#[test]
fn a_value_larger_than_the_node_is_put_through_it_by_http() {
    let mut world = small_first();
    let (name, value) = (name_of(&mut world), value(LARGE_BYTES));
    let client = world.connect(1, 1 << 20);
    let said = put(&mut world, client, &[&http(&name, LARGE_BYTES)[..], &value].concat());
    assert!(said.starts_with(b"HTTP/1.1 201 "), "{}", text(&said));
    assert_stored(&mut world, 2, &name, &value);
    // In chunks, behind a request that is answered first, and with one behind it.
    let mut chunked = b"GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n".to_vec();
    let head = format!("PUT /o/default/{name} HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n");
    chunked.extend(head.bytes());
    for chunk in value[7..].chunks(99_991) {
        chunked.extend(format!("{:x}\r\n", chunk.len()).bytes());
        chunked.extend_from_slice(chunk);
        chunked.extend(b"\r\n");
    }
    chunked.extend(b"0\r\n\r\nHEAD /healthz HTTP/1.1\r\nHost: h\r\n\r\n");
    let said = put(&mut world, client, &chunked);
    let said = String::from_utf8(said).expect("text");
    let codes: Vec<&str> = said.split("HTTP/1.1 ").map(|it| &it[..it.len().min(3)]).collect();
    assert_eq!(codes, ["", "200", "204", "200"]);
    assert_stored(&mut world, 2, &name, &value[7..]);
    // A chunk that is none ends it.
    let broken = [head.as_bytes(), b"100000\r\n", &value[..1 << 20], b"\r\nx\r\n"].concat();
    let said = put(&mut world, client, &broken);
    assert!(said.starts_with(b"HTTP/1.1 400 ") && text(&said).to_lowercase().contains("connection: close"));
    assert_stored(&mut world, 2, &name, &value[7..]);
    assert_over(&mut world);
}

#[test]
fn a_value_larger_than_the_node_is_put_through_it_by_memcached() {
    let mut world = small_first();
    let (name, value) = (name_of(&mut world), value(LARGE_BYTES));
    let client = world.connect(1, 1 << 20);
    let set = [format!("set {name} 7 0 {LARGE_BYTES}\r\n").as_bytes(), &value, b"\r\nmn\r\n"].concat();
    assert_eq!(text(&put(&mut world, client, &set)), "STORED\r\nMN\r\n");
    assert_stored(&mut world, 2, &name, &value);
    let set = [format!("ms {name} {LARGE_BYTES} T0 F9\r\n").as_bytes(), &value, b"\r\nmn\r\n"].concat();
    assert_eq!(text(&put(&mut world, client, &set)), "HD\r\nMN\r\n");
    // Where it does not end as it should, what was there stays.
    let set = [format!("set {name} 7 0 {LARGE_BYTES}\r\n").as_bytes(), &value, b"!!mn\r\n"].concat();
    assert_eq!(text(&put(&mut world, client, &set)), "CLIENT_ERROR bad data chunk\r\nMN\r\n");
    assert_stored(&mut world, 2, &name, &value);
    assert_over(&mut world);
}

/// The frames of a put's body, each of a megabyte.
fn frames(header: Header, name: &str, value: &[u8]) -> Vec<Vec<u8>> {
    let (id, from) = (header.id, if header.has(FLAG_RANGE) { header.offset } else { 0 });
    let parts: Vec<&[u8]> = value.chunks(16 * BLOCK_BYTES).collect();
    let each = parts.iter().enumerate().map(|(at, part)| match at {
        0 => frame(Header { flags: header.flags | FLAG_MORE, ..header }, &Fields::named(name.as_bytes()), part),
        _ => {
            let offset = from + (at * 16 * BLOCK_BYTES) as u64;
            frame(Header::data(id, offset, at + 1 < parts.len()), &Fields::default(), part)
        }
    });
    each.collect()
}

/// Sends frames as far as credit goes; what was answered but for credit.
fn put_by_wire(world: &mut World, client: usize, frames: &[Vec<u8>]) -> Vec<Option<Status>> {
    let (mut credit, mut sent, mut answered) = (WIRE_FIRST_CREDIT_BYTES, 0, Vec::new());
    for bytes in frames {
        let body = u64::from(wire_header(bytes).body_len);
        assert!(sent + body <= credit, "{sent} bytes were sent of {credit} that are allowed");
        sent += body;
        let said = put(world, client, bytes);
        for part in frames_of(&said) {
            match part.header().kind {
                Kind::Credit => credit = credit.saturating_add(part.header().length),
                _ => answered.push(part.header().status()),
            }
        }
        assert!(credit <= sent + 2 * WIRE_FIRST_CREDIT_BYTES, "no more is allowed than has room");
    }
    answered
}

fn wire_header(bytes: &[u8]) -> Header {
    herd_core::wire::parse_header(bytes).expect("a header").expect("a whole one")
}

#[test]
fn a_put_by_the_wire_is_allowed_as_it_goes_on() {
    let mut world = small_first();
    let (name, value) = (name_of(&mut world), value(LARGE_BYTES));
    let wire = world.connect(1, 1 << 20);
    for length in [LARGE_BYTES as u64, LENGTH_UNKNOWN] {
        let header = Header { length, ..request(Verb::Put, 7) };
        assert_eq!(put_by_wire(&mut world, wire, &frames(header, &name, &value)), [Some(Status::Ok)]);
        assert_stored(&mut world, 2, &name, &value);
    }
    let (from, part) = (9_999_999, &value[..6 << 20]);
    let range = Header { flags: FLAG_RANGE, offset: from, length: part.len() as u64, ..request(Verb::Put, 8) };
    assert_eq!(put_by_wire(&mut world, wire, &frames(range, &name, part)), [Some(Status::Ok)]);
    let mut changed = value.clone();
    changed[from as usize..][..part.len()].copy_from_slice(part);
    assert_stored(&mut world, 2, &name, &changed);
    // A block that is not as it was sent, a body that is too short, and one that is given up.
    let header = Header { length: LARGE_BYTES as u64, ..request(Verb::Put, 9) };
    let mut wrong = frames(header, &name, &value);
    *wrong[3].last_mut().expect("it has a body") ^= 1;
    let refused = |kind| [Some(Status::Error(kind))];
    assert_eq!(put_by_wire(&mut world, wire, &wrong[..4]), refused(ErrorKind::BadChecksum));
    let mut short = frames(Header { id: 10, ..header }, &name, &value[..10 << 20]);
    assert_eq!(put_by_wire(&mut world, wire, &short), refused(ErrorKind::BadRequest));
    short.truncate(5);
    assert_eq!(put_by_wire(&mut world, wire, &short), []);
    world.say(wire, &Header::cancel(10).encode());
    assert_stored(&mut world, 2, &name, &changed);
    assert_over(&mut world);
}

#[test]
fn a_value_is_put_through_a_node_to_a_group() {
    let mut world = World::keeping(3, 3);
    let (name, value) = (name_of(&mut world), value(9 << 20));
    let (client, before) = (world.connect(1, 1 << 20), used_bytes(&mut world));
    let said = world.say(client, &[&http(&name, value.len())[..], &value].concat());
    assert!(said.starts_with(b"HTTP/1.1 201 "), "{}", text(&said));
    (1..=3).for_each(|number| assert_stored(&mut world, number, &name, &value));
    assert!(used_bytes(&mut world) - before < (11 << 20), "its own copy, and no second one");
    for number in 1..=3 {
        let machine = world.machine(number);
        assert!(machine.engine.service().cx.flights.is_empty(), "{number}");
        assert_eq!(machine.shared.store.unsettled().0, 0, "{number}");
    }
}

#[test]
fn a_client_that_stalls_blocks_nobody_and_is_told_in_the_end() {
    let mut world = small_first();
    let (name, value) = (name_of(&mut world), value(LARGE_BYTES));
    let stalled = world.connect(1, 1 << 20);
    let whole = [&http(&name, LARGE_BYTES)[..], &value].concat();
    assert!(world.feed(stalled, &whole[..20 << 20], |_| {}).is_empty());
    for at in 0..20 {
        let other = world.connect(1, 1 << 20);
        let small = [&http(&format!("{name}-{at}"), 5)[..], b"small"].concat();
        assert!(world.say(other, &small).starts_with(b"HTTP/1.1 201 "));
    }
    // Another large one passes it, to the very same object.
    let other = world.connect(1, 1 << 20);
    let said = put(&mut world, other, &[&http(&name, 30 << 20)[..], &value[..30 << 20]].concat());
    assert!(said.starts_with(b"HTTP/1.1 201 "), "{}", text(&said));
    world.pass(BODY_STALL_MS + TICK_MS);
    let said = text(&world.say(stalled, b""));
    assert!(said.starts_with("HTTP/1.1 504 ") && said.contains("nothing was stored"), "{said}");
    assert!(said.to_lowercase().contains("connection: close"), "{said}");
    assert_stored(&mut world, 2, &name, &value[..30 << 20]);
    world.feed(stalled, &whole[20 << 20..], |_| {});
    world.pass(5_000);
    assert_over(&mut world);
    assert!(world.outside[stalled].1.is_over());
}

#[test]
fn a_client_that_goes_away_leaves_what_was_there() {
    let mut world = small_first();
    let (name, value) = (name_of(&mut world), value(LARGE_BYTES));
    let client = world.connect(1, 1 << 20);
    assert!(world.say(client, &[&http(&name, 3)[..], b"old"].concat()).starts_with(b"HTTP/1.1 201 "));
    for resets in [true, false] {
        let http = [&http(&name, LARGE_BYTES)[..], &value[..17_000_000]].concat();
        let set = [format!("set {name} 0 0 {LARGE_BYTES}\r\n").as_bytes(), &value[..17_000_000]].concat();
        let header = Header { length: LARGE_BYTES as u64, ..request(Verb::Put, 9) };
        for said in [http, set, frames(header, &name, &value)[..4].concat()] {
            let client = world.connect(1, 1 << 20);
            assert!(world.feed(client, &said, |_| {}).is_empty());
            let peer = &world.outside[client].1;
            if resets {
                peer.reset()
            } else {
                peer.end()
            }
            world.settle();
            assert_over(&mut world);
            assert_stored(&mut world, 2, &name, b"old");
        }
    }
}

#[test]
fn what_was_not_sent_whole_is_not_stored_and_what_was_may_be() {
    let mut world = small_first();
    let (name, value) = (name_of(&mut world), value(LARGE_BYTES));
    let whole = [&http(&name, LARGE_BYTES)[..], &value].concat();
    for (bytes, status, has) in [(20 << 20, "503", "nothing was stored"), (whole.len(), "504", "outcome_lost")] {
        let client = world.connect(1, 1 << 20);
        assert!(world.feed(client, &whole[..bytes - 1], |_| {}).is_empty());
        world.cut = true;
        world.feed(client, &whole[bytes - 1..bytes], |_| {});
        world.pass(LINK_SILENCE_MS + FLIGHT_LINK_MS + FLIGHT_MS);
        let said = text(&world.say(client, b""));
        assert!(said.starts_with(&format!("HTTP/1.1 {status} ")) && said.contains(has), "{said}");
        world.cut = false;
        world.pass(5_000);
        assert_over(&mut world);
    }
    // A link that is lost before the other node has begun is as good as none: it goes over the next one.
    let client = world.connect(1, 1 << 20);
    world.cut = true;
    let left = world.feed(client, &whole, |_| {}).len();
    while !world.cables.is_empty() {
        let (ends, cable) = world.unplug(0);
        for (end, peer) in ends.into_iter().zip(cable.into_ends()) {
            peer.reset();
            world.note(end, &peer);
        }
    }
    world.cut = false;
    world.pass(500);
    let said = put(&mut world, client, &whole[whole.len() - left..]);
    assert!(said.starts_with(b"HTTP/1.1 20"), "{}", text(&said));
    assert_stored(&mut world, 2, &name, &value);
    assert_over(&mut world);
}

#[test]
fn a_node_that_has_no_room_says_so_before_the_value_has_come() {
    let mut world = two(64 << 20, 64 << 20);
    let (name, value) = (name_of(&mut world), value(100 << 20));
    let client = world.connect(1, 1 << 20);
    let whole = [&http(&name, value.len())[..], &value].concat();
    let left = world.feed(client, &whole[..12 << 20], |_| {}).len();
    let said = world.say(client, b"");
    assert!(said.starts_with(b"HTTP/1.1 507 "), "{} {left}", text(&said));
    world.pass(5_000);
    assert_over(&mut world);
}
