//! What another node decides on: by every door an error, never a miss, and nothing is changed or counted.

use super::{frame, frames_of, request, say};
use crate::drive::{Peer, World};
use herd_core::ErrorKind;
use herd_core::collection::Spec;
use herd_core::key::CollectionId;
use herd_core::limits::MEMCACHED_COMMAND_MAX_BYTES;
use herd_core::place::{Collection, Draft, Grows, HerdId, Kind, Life, Map, Node, NodeId, NodeState};
use herd_core::wire::{CODE_NEWER, Fields, Header, Kind as FrameKind, Status, Verb};
use herd_store::{Counts, Seat};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

const REFUSED: &str = "SERVER_ERROR the node that has it can't be reached\r\n";

fn seat_all(world: &World, seat: Seat) {
    world.shared.store.set_seats(0, |_| (seat, 0));
}

fn counts(world: &World) -> Counts {
    world.shared.store.counts(&world.shared.default)
}

/// A node with object `n` and the number `i`, all of which another one decides on by now.
fn away(seat: Seat) -> (World, Peer) {
    let mut world = World::new();
    let peer = world.connect();
    assert_eq!(say(&mut world, peer, "set n 0 0 1\r\nx\r\nset i 0 0 1\r\n7\r\n"), "STORED\r\nSTORED\r\n");
    seat_all(&world, seat);
    (world, peer)
}

fn http(world: &mut World, line: &str, more: &str) -> String {
    let peer = world.connect();
    say(world, peer, &format!("{line} HTTP/1.1\r\nHost: localhost\r\n{more}\r\n"))
}

#[test]
fn memcached_answers_an_error() {
    let large = format!("set l 0 0 9000\r\n{}\r\n", "x".repeat(9000));
    for seat in [Seat::Led, Seat::Held, Seat::Away] {
        let (mut world, peer) = away(seat);
        let before = counts(&world);
        for line in [
            "get n",
            "gets n",
            "gat 60 n",
            "set n 0 0 1\r\ny",
            "add n 0 0 1\r\ny",
            "replace n 0 0 1\r\ny",
            "append n 0 0 1\r\ny",
            "prepend n 0 0 1\r\ny",
            "cas n 0 0 1 1\r\ny",
            "delete n",
            "incr i 1",
            "decr i 1",
            "touch n 60",
            "mg n v",
            "mg n v N60",
            "mg n s v T60 q",
            "me n",
            "ms n 1\r\ny",
            "ms n 1 C5\r\ny",
            "md n",
            "ma i",
            "flush_all",
            "flush_all 60",
            "get absent",
            "md absent",
            "set absent 0 0 1\r\ny",
        ] {
            assert_eq!(say(&mut world, peer, &format!("{line}\r\n")), REFUSED, "{seat:?}: {line}");
        }
        assert_eq!(say(&mut world, peer, &large), REFUSED);
        assert_eq!(say(&mut world, peer, "set n 0 0 1 noreply\r\ny\r\nmn\r\n"), "MN\r\n");
        assert_eq!(counts(&world), before, "{seat:?}");
        seat_all(&world, Seat::Alone);
        assert_eq!(say(&mut world, peer, "get n i\r\n"), "VALUE n 0 1\r\nx\r\nVALUE i 0 1\r\n7\r\nEND\r\n");
    }
}

/// The keys behind it are not answered: a client can't tell which of them it would have been.
#[test]
fn one_error_ends_the_answer_to_a_line_of_keys() {
    let (mut world, peer) = away(Seat::Alone);
    let slot = |world: &World, key: &[u8]| world.shared.store.key(&world.shared.default, key).slot();
    let of_i = slot(&world, b"i");
    assert_ne!(slot(&world, b"n"), of_i);
    world.shared.store.set_seats(0, |at| (if at == of_i { Seat::Away } else { Seat::Alone }, 0));
    let value = "VALUE n 0 1\r\nx\r\n";
    for verb in ["get", "gat 60"] {
        assert_eq!(say(&mut world, peer, &format!("{verb} n i n\r\nmn\r\n")), format!("{value}{REFUSED}MN\r\n"));
        // A line that is still arriving.
        let long = format!("{verb} n i {}", "n ".repeat(MEMCACHED_COMMAND_MAX_BYTES));
        assert_eq!(say(&mut world, peer, &long), format!("{value}{REFUSED}"));
        assert_eq!(say(&mut world, peer, "n n\r\nmn\r\n"), "MN\r\n");
    }
}

#[test]
fn http_answers_that_it_is_unavailable() {
    let (mut world, _) = away(Seat::Away);
    let before = counts(&world);
    let one = "Content-Length: 1\r\n";
    for (line, more) in [
        ("GET /o/default/n", ""),
        ("HEAD /o/default/n", ""),
        ("GET /o/default/n", "If-None-Match: \"5\"\r\nPrefer: wait=9\r\n"),
        ("GET /o/default/n", "Range: bytes=0-0\r\n"),
        ("DELETE /o/default/n", ""),
        ("PUT /o/default/n", one),
        ("PUT /o/default/n", "Content-Length: 1\r\nIf-None-Match: *\r\n"),
        ("PUT /o/default/n", "Content-Length: 1\r\nIf-Match: \"5\"\r\n"),
        ("PUT /o/default/n", "Content-Length: 999999\r\nExpect: 100-continue\r\n"),
        ("PUT /o/default/n", "Transfer-Encoding: chunked\r\n"),
        ("GET /o/default", ""),
    ] {
        let said = http(&mut world, line, more);
        assert!(said.starts_with("HTTP/1.1 503 ") && said.contains("\r\nRetry-After: 1\r\n"), "{line} {more}: {said}");
        assert!(line.starts_with("HEAD") || said.contains("\"error\":\"unreachable\""), "{line} {more}: {said}");
    }
    assert_eq!(counts(&world), before);
    let said = http(&mut world, "GET /o/default/n", "");
    assert!(said.contains("the node that has 'n' can't be reached: try again"), "{said}");
}

fn status(world: &mut World, header: Header, fields: &Fields<'_>, body: &[u8]) -> Status {
    let peer = world.connect();
    let said = world.send(peer, &frame(header, fields, body));
    let replies = frames_of(&said);
    let mut replies = replies.iter().filter(|frame| frame.header().kind == FrameKind::Reply);
    replies.next().and_then(|frame| frame.header().status()).expect("a reply")
}

#[test]
fn the_wire_answers_a_status() {
    let (mut world, _) = away(Seat::Away);
    let before = counts(&world);
    let (unreachable, n) = (Status::Error(ErrorKind::Unreachable), Fields::named(b"n"));
    let put = Header { length: 1, ..request(Verb::Put, 1) };
    let large = Header { length: 9_000, ..request(Verb::Put, 1) };
    let newer = Header { code: CODE_NEWER, version: u64::MAX >> 1, time_ms: 9_000, ..request(Verb::Get, 1) };
    let token = Fields { token: Some(&[1; 24]), ..Fields::named(b"n") };
    let method = |method| Fields { method: Some(method), ..Fields::named(b"n") };
    let (none, spec) =
        (Fields::default(), Fields { collection: Some("c"), spec: Some("{\"class\":\"ram:1\"}"), ..none() });
    for (header, fields, body) in [
        (request(Verb::Get, 1), &n, &b""[..]),
        (request(Verb::Get, 1), &token, b""),
        (newer, &n, b""),
        (put, &n, b"y"),
        (large, &n, &[0; 9_000]),
        (request(Verb::Remove, 1), &n, b""),
        (request(Verb::Execute, 1), &method("append"), b"\x01\0\0\0y"),
        (request(Verb::Execute, 1), &method("get-and-remove"), b""),
        (request(Verb::List, 1), &none, b""),
        (Header { collection: 0, ..request(Verb::Create, 1) }, &spec, b""),
    ] {
        assert_eq!(status(&mut world, header, fields, body), unreachable, "{header:?} {fields:?}");
    }
    assert_eq!(counts(&world), before);
}

fn none() -> Fields<'static> {
    Fields::default()
}

/// Whoever waits here would wait for ever: what changes is told elsewhere.
#[test]
fn who_waits_and_who_lists_is_told_when_a_map_gives_the_objects_away() {
    let (mut world, _) = away(Seat::Alone);
    let (http_peer, wire) = (world.connect(), world.connect());
    let version = world.shared.store.entry(&world.shared.default, b"n", Default::default()).version().expect("there");
    let get =
        format!("GET /o/default/n HTTP/1.1\r\nHost: h\r\nIf-None-Match: \"{version}\"\r\nPrefer: wait=99\r\n\r\n");
    assert_eq!(say(&mut world, http_peer, &get), "");
    let newer = Header { code: CODE_NEWER, version, time_ms: 99_000, ..request(Verb::Get, 1) };
    assert!(world.send(wire, &frame(newer, &Fields::named(b"n"), &[])).is_empty());
    let map = Arc::new(herd(2));
    let mine = life(1);
    assert_eq!(world.shared.take_map(mine, &map, false), Ok(true));
    let slot = world.shared.store.key(&world.shared.default, b"n").slot();
    // The first map of two nodes gives some of the slots away; the last one all of them.
    let last = map.next(|draft| draft.spreads[0].groups.iter_mut().for_each(|group| *group = only(2))).expect("valid");
    assert_eq!(world.shared.take_map(mine, &Arc::new(last), false), Ok(true));
    assert_eq!(world.shared.store.slot(0, slot).seat, Seat::Away);
    world.pass(Duration::from_millis(1));
    assert!(String::from_utf8_lossy(&world.hear(http_peer)).starts_with("HTTP/1.1 503 "));
    let said = world.hear(wire);
    assert_eq!(frames_of(&said)[0].header().status(), Some(Status::Error(ErrorKind::Unreachable)));
    assert_eq!(world.shared.watch.waiting(), 0);
}

pub(crate) fn life(number: u32) -> Life {
    Life { node: NodeId(NonZeroU32::new(number).expect("from 1")), incarnation: 1 }
}

/// A group of one node.
fn only(number: u32) -> herd_core::place::Group {
    let node = life(number).node;
    herd_core::place::Group { primary: Some(node), eligible: vec![node], ..Default::default() }
}

/// The first map of a herd of so many nodes that keeps one copy, with collection `default` and one that evicts.
pub(crate) fn herd(nodes: u32) -> Map {
    let node = |number| Node {
        id: life(number).node,
        name: format!("n{number}"),
        addresses: vec!["127.0.0.1:1".into()],
        incarnation: 1,
        host: format!("h{number}"),
        rack: String::new(),
        memory_bytes: 1 << 30,
        state: NodeState::Up,
        protocol: 1,
    };
    let mut draft = Draft { nodes: (1..=nodes).map(node).collect(), ..Draft::empty(HerdId([7; 16])) };
    draft.add_spread(Kind::Kept, 1, Grows::No).expect("the first");
    draft.add_spread(Kind::Cache, 1, Grows::No).expect("the second");
    let of = |id, name: &str, class| Collection { id, name: name.into(), spec: Spec::of(class), generation: 1 };
    draft.collections.push(of(CollectionId::DEFAULT, "default", "ram:1"));
    draft.collections.push(of(CollectionId::new(1, 3), "cache", "cache"));
    Map::first(draft, 1 << 20).expect("a valid map")
}

#[test]
fn a_map_is_taken_once_and_none_that_is_earlier() {
    let mut world = World::new();
    let peer = world.connect();
    let map = Arc::new(herd(1));
    assert_eq!(world.shared.take_map(life(1), &map, true), Ok(true));
    assert_eq!(world.shared.take_map(life(1), &map, true), Ok(false));
    assert!(world.shared.store.is_alone_with_all(), "the only node has all");
    assert_eq!(say(&mut world, peer, "set n 0 0 1\r\nx\r\n"), "STORED\r\n");
    let cache = http(&mut world, "PUT /o/cache/n", "Content-Length: 0\r\n");
    assert!(cache.starts_with("HTTP/1.1 201 "), "{cache}");
    let version = world.shared.store.entry(&world.shared.default, b"n", Default::default()).version().expect("there");
    assert!(version >> 40 >= 1 << 20, "versions are above the epoch since which it decides");
    let flushed = map.next(|draft| draft.collections[0].generation += 1).expect("valid");
    assert_eq!(world.shared.take_map(life(1), &Arc::new(flushed), false), Ok(true));
    assert_eq!(say(&mut world, peer, "get n\r\n"), "END\r\n");
    assert_eq!(world.shared.take_map(life(1), &map, true), Ok(false), "an earlier one, whatever is told with it");
    let now = world.shared.place.get().and_then(crate::place::Place::map).expect("a map");
    assert_eq!((now.0.revision, now.1), (map.revision + 1, false));
}

/// Its objects would be gone, and the memcached door would serve a collection that is no more.
#[test]
fn a_map_with_another_default_is_refused() {
    let evicting = World::with(crate::Config { evict: true, memory_bytes: 8 << 20, ..Default::default() });
    let refused = evicting.shared.take_map(life(1), &Arc::new(herd(1)), false).map_err(|error| error.kind);
    assert_eq!(refused, Err(ErrorKind::NotAllowed));
    assert!(!evicting.shared.default.is_destroyed() && evicting.shared.place.get().is_none());
}

/// The store is told by slot and by spread group, so what one node has the other has not.
#[test]
fn two_nodes_have_each_slot_once() {
    let map = Arc::new(herd(2));
    let worlds = [1, 2].map(|number| {
        let world = World::new();
        assert_eq!(world.shared.take_map(life(number), &map, true), Ok(true));
        world
    });
    for spread in [0, 1] {
        for slot in 0..herd_core::limits::SLOTS {
            let seats = [&worlds[0], &worlds[1]].map(|world| world.shared.store.slot(spread, slot).seat);
            assert!(
                matches!(seats, [Seat::Alone, Seat::Away] | [Seat::Away, Seat::Alone]),
                "{spread} {slot} {seats:?}"
            );
        }
    }
}
