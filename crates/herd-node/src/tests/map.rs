//! What clients are told of the map, and how they find the node they mean.

use super::away::{herd, life};
use super::{frame, frames_of, request};
use crate::drive::{Peer, World};
use herd_core::ErrorKind;
use herd_core::place::{HerdId, Map};
use herd_core::wire::{
    Assembly, Between, Fields, Header, Kind, LinkErrorKind, MapMark, Meant, Routes, Status, VERB_MAP, Verb,
};
use std::sync::Arc;
use std::time::Duration;

const HERD: HerdId = HerdId([7; 16]);

fn in_herd(nodes: u32) -> (World, Arc<Map>) {
    let (world, map) = (World::new(), Arc::new(herd(nodes)));
    assert_eq!(world.shared.take_map(life(1), &map, true), Ok(true));
    (world, map)
}

/// What a node answers to a client with the map of `mark`: the epoch in its header, what it tells, and the map.
fn asked(world: &mut World, peer: Peer, mark: MapMark) -> (u32, Option<MapMark>, Vec<u8>) {
    let mut out = Vec::new();
    mark.tell(&mut out, Header { verb: VERB_MAP, id: 3, ..Header::new(Kind::Request) });
    let said = world.send(peer, &out);
    let frames = frames_of(&said);
    let header = frames[0].header();
    assert_eq!((header.kind, header.verb, header.id, header.status()), (Kind::Reply, VERB_MAP, 3, Some(Status::Ok)));
    let mut map = Assembly::new(header.length, 1 << 20).expect("within the limits");
    for frame in frames.iter().filter(|frame| frame.header().body_len > 0) {
        map.take(frame.header(), frame.body().expect("checked")).expect("goes on");
    }
    let told = Routes::told(header, &frames[0].fields().expect("fields")).expect("well formed");
    if let Some(routes) = told {
        assert_eq!(routes.key.0, world.shared.store.hash_key().0);
    }
    (header.epoch, told.map(|routes| routes.mark), map.into_bytes())
}

#[test]
fn a_client_is_told_the_map_if_it_has_an_older_one() {
    let (mut world, map) = in_herd(3);
    let peer = world.connect();
    let ours = MapMark::of(&map, true);
    let (epoch, mark, bytes) = asked(&mut world, peer, MapMark::default());
    assert_eq!((epoch, mark), (map.epoch, Some(ours)));
    assert_eq!(Map::decode(&bytes).as_ref(), Ok(&*map));
    assert_eq!(asked(&mut world, peer, MapMark { held: false, ..ours }).2, map.encode(), "the later is told");
    assert_eq!(asked(&mut world, peer, ours), (map.epoch, Some(ours), Vec::new()));
    let later = MapMark { epoch: map.epoch + 1, ..ours };
    assert_eq!(asked(&mut world, peer, later), (map.epoch, Some(ours), Vec::new()));
}

#[test]
fn a_node_that_has_no_others_says_that_there_is_nothing_to_know() {
    let mut alone = World::new();
    let peer = alone.connect();
    assert_eq!(asked(&mut alone, peer, MapMark::default()), (0, None, Vec::new()));
    let (mut single, _) = in_herd(1);
    let peer = single.connect();
    assert_eq!(asked(&mut single, peer, MapMark::default()), (0, None, Vec::new()));
}

#[test]
fn the_welcome_and_every_reply_tell_the_epoch() {
    for (nodes, is_told) in [(1, false), (2, true)] {
        let (mut world, map) = in_herd(nodes);
        world.pass(Duration::from_millis(1));
        let peer = world.connect();
        let named = Fields::named(b"n");
        let frames = [
            frame(Header::new(Kind::Hello), &Fields::default(), b""),
            frame(Header { length: 1, ..request(Verb::Put, 1) }, &named, b"x"),
            frame(request(Verb::Get, 2), &named, b""),
            frame(request(Verb::Get, 3), &Fields::named(b"absent"), b""),
            frame(request(Verb::Remove, 4), &named, b""),
            frame(request(Verb::List, 5), &Fields::default(), b""),
            frame(Header { collection: 1, ..request(Verb::Get, 6) }, &Fields::named(b"status"), b""),
        ];
        let said = world.send(peer, &frames.concat());
        let epochs: Vec<u32> = frames_of(&said).iter().map(|frame| frame.header().epoch).collect();
        let told = if is_told { map.epoch } else { 0 };
        assert_eq!(epochs, vec![told; frames.len()], "{nodes} nodes");
    }
}

#[test]
fn a_client_that_means_another_node_is_refused_before_its_request_is_read() {
    let hello = |meant: Meant| {
        let bytes = meant.bytes();
        let fields = Fields { between: Some(Between::Meant(&bytes)), ..Fields::default() };
        let put = frame(Header { length: 1, ..request(Verb::Put, 1) }, &Fields::named(b"n"), b"x");
        [frame(Header::new(Kind::Hello), &fields, b""), put].concat()
    };
    let (this, other) = (life(1).node, life(2).node);
    let (mut world, _) = in_herd(1);
    for meant in [Meant { herd: HERD, node: other }, Meant { herd: HerdId([8; 16]), node: this }] {
        let peer = world.connect();
        let said = world.send(peer, &hello(meant));
        let frames = frames_of(&said);
        let codes: Vec<_> = frames.iter().map(|frame| (frame.header().kind, frame.header().code)).collect();
        assert_eq!(codes, [(Kind::Goodbye, LinkErrorKind::OtherNode as u16)]);
    }
    let mut alone = World::new();
    let peer = alone.connect();
    let said = alone.send(peer, &hello(Meant { herd: HERD, node: this }));
    assert_eq!(frames_of(&said)[0].header().kind, Kind::Goodbye);
    let peer = world.connect();
    let get = frame(request(Verb::Get, 1), &Fields::named(b"n"), b"");
    let said = world.send(peer, &get);
    assert_eq!(frames_of(&said)[0].header().status(), Some(Status::Error(ErrorKind::NotFound)), "nothing was done");
    let peer = world.connect();
    let said = world.send(peer, &hello(Meant { herd: HERD, node: this }));
    let kinds: Vec<Kind> = frames_of(&said).iter().map(|frame| frame.header().kind).collect();
    assert_eq!(kinds, [Kind::Welcome, Kind::Reply]);
}
