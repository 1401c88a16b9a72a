//! Waiting for a newer version.

use super::{frame, frames_of, request, say};
use crate::drive::{Peer, World};
use herd_core::ErrorKind;
use herd_core::limits::{NAME_MAX_BYTES, WAIT_MAX_MS, WIRE_OPEN_REQUESTS_MAX};
use herd_core::wire::{CODE_NEWER, Fields, Header, Kind, Status, Verb};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

fn newer(id: u64, time_ms: u32) -> Header {
    Header { code: CODE_NEWER, version: u64::MAX >> 1, time_ms, ..request(Verb::Get, id) }
}

fn put(world: &mut World, name: &[u8]) {
    let peer = world.connect();
    let header = Header { length: 1, ..request(Verb::Put, 1) };
    let said = world.send(peer, &frame(header, &Fields::named(name), b"x"));
    assert_eq!(frames_of(&said)[0].header().status(), Some(Status::Ok));
    world.close(peer);
}

/// The status that came, if one did.
fn status(said: &[u8]) -> Option<Status> {
    frames_of(said).first().map(|frame| frame.header().status().expect("a reply"))
}

/// Puts an object over HTTP and has a second connection wait for its next version.
fn wait_by_http(world: &mut World, collection: &str, more: &str) -> Peer {
    let writer = world.connect();
    let put = format!("PUT /o/{collection}/n HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n{more}\r\nx");
    let said = say(world, writer, &put);
    let etag = said.split("ETag: ").nth(1).expect("a version").split("\r\n").next().expect("a line");
    let peer = world.connect();
    let get = format!(
        "GET /o/{collection}/n HTTP/1.1\r\nHost: localhost\r\nIf-None-Match: {etag}\r\nPrefer: wait=100\r\n\r\n"
    );
    assert_eq!(say(world, peer, &get), "");
    assert_eq!(world.shared.watch.waiting(), 1);
    peer
}

fn heard(world: &mut World, peer: Peer) -> String {
    String::from_utf8_lossy(&world.hear(peer)).chars().take(12).collect()
}

#[test]
fn what_is_cancelled_or_closed_waits_no_more() {
    let mut world = World::new();
    let before = world.shared.store.memory().1;
    let peer = world.connect();
    for id in 1..=100 {
        assert!(world.send(peer, &frame(newer(id, 60_000), &Fields::named(b"n"), &[])).is_empty());
    }
    assert_eq!(world.shared.watch.waiting(), 100);
    for id in 1..=99 {
        world.send(peer, &frame(Header { id, ..Header::new(Kind::Cancel) }, &Fields::default(), &[]));
    }
    assert_eq!(world.shared.watch.waiting(), 1);
    world.close(peer);
    assert_eq!((world.shared.watch.waiting(), world.shared.store.memory().1), (0, before));
}

#[test]
fn waits_count_in_the_memory_and_are_bounded() {
    let mut world = World::new();
    let (name, budget) = (vec![b'n'; NAME_MAX_BYTES], world.shared.store.memory().0);
    let before = world.shared.store.memory().1;
    let mut peers = Vec::new();
    let refused = loop {
        let peer = world.connect();
        peers.push(peer);
        let wait = |id| frame(newer(id, u32::MAX), &Fields::named(&name), &[]);
        let refused = (1..=WIRE_OPEN_REQUESTS_MAX as u64).map(|id| world.send(peer, &wait(id))).find(|r| !r.is_empty());
        assert!(peers.len() < 1000, "they are bounded");
        if let Some(refused) = refused {
            break refused;
        }
    };
    assert_eq!(status(&refused), Some(Status::Error(ErrorKind::Busy)));
    let held = world.shared.store.memory().1 - before;
    assert!(held > budget / 16 && held <= budget / 8, "{held}");
    // However long was asked for, it ends.
    world.pass(Duration::from_millis(WAIT_MAX_MS));
    assert_eq!((world.shared.watch.waiting(), world.shared.store.memory().1), (0, before));
    assert_eq!(status(&world.hear(peers[0])), Some(Status::Error(ErrorKind::Timeout)));
}

#[test]
fn who_waits_learns_of_a_flush_an_expiry_and_the_end_of_the_collection() {
    let mut world = World::new();
    let text = world.connect();
    let peer = wait_by_http(&mut world, "default", "");
    say(&mut world, text, "flush_all\r\n");
    assert_eq!(heard(&mut world, peer), "HTTP/1.1 404");

    let peer = wait_by_http(&mut world, "default", "");
    say(&mut world, text, "flush_all 5\r\n");
    world.pass(Duration::from_secs(4));
    assert_eq!(heard(&mut world, peer), "");
    world.pass(Duration::from_secs(2));
    assert_eq!(heard(&mut world, peer), "HTTP/1.1 404");

    let peer = wait_by_http(&mut world, "default", "Herd-TTL: 3\r\n");
    world.pass(Duration::from_secs(2));
    assert_eq!(heard(&mut world, peer), "");
    world.pass(Duration::from_secs(2));
    assert_eq!(heard(&mut world, peer), "HTTP/1.1 404");

    let wire = world.connect();
    let by_name = |verb| Header::request(verb, 1);
    let spec = Fields { collection: Some("c"), spec: Some("{\"class\":\"ram:1\"}"), ..Fields::default() };
    assert_eq!(status(&world.send(wire, &frame(by_name(Verb::Create), &spec, &[]))), Some(Status::Ok));
    let peer = wait_by_http(&mut world, "c", "");
    let second = world.connect();
    let wait = Header { collection: 0, ..newer(9, 60_000) };
    let named = Fields { collection: Some("c"), ..Fields::named(b"n") };
    assert!(world.send(second, &frame(wait, &named, &[])).is_empty());
    let gone = Fields { collection: Some("c"), ..Fields::default() };
    assert_eq!(status(&world.send(wire, &frame(by_name(Verb::Destroy), &gone, &[]))), Some(Status::Ok));
    assert_eq!(heard(&mut world, peer), "HTTP/1.1 404");
    assert_eq!(status(&world.hear(second)), Some(Status::Error(ErrorKind::NoCollection)));
    assert_eq!(world.shared.watch.waiting(), 0);
}

#[test]
fn who_waits_is_answered_when_the_node_stops() {
    let mut world = World::new();
    let http = wait_by_http(&mut world, "default", "");
    let wire = world.connect();
    assert!(world.send(wire, &frame(newer(1, 60_000), &Fields::named(b"n"), &[])).is_empty());
    world.shared.stopping.store(true, Relaxed);
    world.pass(Duration::ZERO);
    assert_eq!(heard(&mut world, http), "HTTP/1.1 503");
    assert_eq!(status(&world.hear(wire)), Some(Status::Error(ErrorKind::Busy)));
    let late = world.send(wire, &frame(newer(2, 60_000), &Fields::named(b"n"), &[]));
    assert_eq!(status(&late), Some(Status::Error(ErrorKind::Busy)));
}

#[test]
fn a_put_wakes_those_who_wait_for_that_object_only() {
    let mut world = World::new();
    let (one, other) = (world.connect(), world.connect());
    let wait = |name: &'static [u8]| frame(Header { version: 0, ..newer(1, 60_000) }, &Fields::named(name), &[]);
    assert!(world.send(one, &wait(b"one")).is_empty() && world.send(other, &wait(b"other")).is_empty());
    put(&mut world, b"one");
    world.pass(Duration::ZERO);
    assert_eq!(status(&world.hear(one)), Some(Status::Ok));
    assert_eq!(status(&world.hear(other)), None);
    assert_eq!(world.shared.watch.waiting(), 1);
}

/// As a lock is when it is given back, or its lease ends.
#[test]
fn who_waits_on_the_wire_learns_that_the_object_is_gone() {
    for gone in ["delete n\r\n", "touch n 2\r\n", "flush_all\r\n"] {
        let mut world = World::new();
        let (text, wire) = (world.connect(), world.connect());
        say(&mut world, text, "set n 0 0 1\r\nx\r\n");
        let wait = frame(newer(1, 60_000), &Fields::named(b"n"), &[]);
        assert!(world.send(wire, &wait).is_empty());
        say(&mut world, text, gone);
        world.pass(Duration::from_secs(3));
        assert_eq!(status(&world.hear(wire)), Some(Status::Error(ErrorKind::NotFound)), "{gone}");
        assert_eq!(world.shared.watch.waiting(), 0);
    }
}

#[test]
fn who_waits_is_told_once_until_it_has_looked() {
    let mut world = World::new();
    let peer = world.connect();
    put(&mut world, b"n");
    assert!(world.send(peer, &frame(newer(2, 60_000), &Fields::named(b"n"), b"")).is_empty());
    let (watch, default) = (world.shared.watch.clone(), world.shared.default.id());
    put(&mut world, b"n");
    assert_eq!(watch.waiters(default, b"n").len(), 1, "it has looked, and waits on");
    assert!(watch.waiters(default, b"n").is_empty(), "it was told, and has not looked");
    assert!(watch.waiters_of_all(default).is_empty());
    world.close(peer);
    assert_eq!(watch.waiting(), 0);
}

#[test]
fn a_wait_ends_in_time_also_when_an_object_came_and_expired_meanwhile() {
    let mut world = World::new();
    let peer = world.connect();
    assert!(world.send(peer, &frame(newer(1, 10_000), &Fields::named(b"n"), &[])).is_empty());
    let writer = world.connect();
    let fields = Fields { ttl_ms: Some(1_000), ..Fields::named(b"n") };
    let said = world.send(writer, &frame(Header { length: 1, ..request(Verb::Put, 1) }, &fields, b"x"));
    assert_eq!(status(&said), Some(Status::Ok));
    world.pass(Duration::from_secs(5));
    assert_eq!(status(&world.hear(peer)), None, "its version is not above the one asked for");
    world.pass(Duration::from_secs(10));
    assert_eq!(status(&world.hear(peer)), Some(Status::Error(ErrorKind::Timeout)));
    assert_eq!(world.shared.watch.waiting(), 0);
}
