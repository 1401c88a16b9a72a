//! Who breaks the protocol, or takes without end, costs little and harms nobody else; clients are served as before.

use super::world::*;
use herd_core::ErrorKind;
use herd_core::key::CollectionId;
use herd_core::limits::{
    LINK_SILENCE_MS, LINK_UNSENT_MAX_BYTES, STALLED_TIMEOUT_MS, TICK_MS, WIRE_FRAME_BODY_MAX_BYTES,
};
use herd_core::wire::{
    Dialing, FLAG_MORE, Fields, Frame, Header, Kind, LINK_PROTOCOL, MapMark, MapSent, Peer, Status, VERB_BEAT,
    VERB_MAP, Verb, encode_frame, parse_frame,
};
use std::sync::Arc;

const ROOM: usize = 1 << 20;

fn frame(header: Header, fields: &Fields<'_>, body: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    encode_frame(&mut out, header, fields, body).expect("within the limits");
    out
}

fn request(verb: u8, id: u64) -> Header {
    Header { verb, id, ..Header::new(Kind::Request) }
}

fn frames(mut bytes: &[u8]) -> Vec<Frame<'_>> {
    let mut all = Vec::new();
    while let Some(frame) = parse_frame(bytes).expect("a node writes frames") {
        bytes = &bytes[frame.bytes()..];
        all.push(frame);
    }
    all
}

fn hello(number: u32) -> (Dialing, Vec<u8>) {
    let me = Peer {
        protocol: LINK_PROTOCOL,
        herd: HERD,
        node: node(number),
        incarnation: 1,
        loops: 1,
        link: 0,
        epoch: 1,
        revision: 0,
        nonce: [9; 16],
    };
    let (dialing, mut out) = (Dialing::new(me, node(1), SECRET), Vec::new());
    dialing.hello(&mut out);
    (dialing, out)
}

/// A world of one node that runs, of three in its map, and a link to it that the test holds as the second.
fn linked() -> (World, usize) {
    let mut world = World::new(3);
    world.start(1);
    world.machine(1).push(&Arc::new(map(3)), false);
    let outside = link(&mut world, 2);
    assert_eq!(world.machine(1).linked(), [2]);
    (world, outside)
}

/// A link of the node of this number, which the test is, to the first.
fn link(world: &mut World, number: u32) -> usize {
    let outside = world.connect(1, ROOM);
    let (dialing, hello) = hello(number);
    let said = world.say(outside, &hello);
    let [welcome] = frames(&said)[..] else { panic!("a welcome") };
    let mut proof = Vec::new();
    dialing.welcomed(&welcome.fields().expect("fields"), &mut proof).expect("it is the node");
    let said = world.say(outside, &proof);
    assert_eq!(frames(&said)[0].header().verb, VERB_BEAT, "it speaks at once");
    outside
}

fn is_closed(world: &mut World, outside: usize) -> bool {
    world.outside[outside].1.end();
    world.pass(2 * TICK_MS);
    world.outside[outside].1.is_closed()
}

#[test]
fn who_breaks_the_protocol_of_a_link_is_told_goodbye_and_closed() {
    let beat = frame(request(VERB_BEAT, 1), &Fields::default(), b"");
    let changed = |at: usize| {
        let mut bytes = frame(request(200, 1), &Fields::default(), b"a body");
        bytes[at] ^= 1;
        bytes
    };
    let never_asked = frame(Header::reply_to(&request(200, 1 << 63 | 77), Status::Ok), &Fields::default(), b"");
    let (_, again) = hello(2);
    let no_map = frame(request(VERB_MAP, 1), &Fields::default(), b"");
    for bad in [vec![0xFF; 100], changed(9), changed(73), changed(77), never_asked, again] {
        let (mut world, outside) = linked();
        let said = world.say(outside, &[beat.clone(), bad, beat.clone()].concat());
        let kinds: Vec<_> = frames(&said).iter().map(|frame| frame.header().kind).collect();
        assert_eq!(kinds, [Kind::Reply, Kind::Goodbye]);
        assert!(world.machine(1).linked().is_empty());
        assert!(is_closed(&mut world, outside));
    }
    // What is no map is refused, and no more than that.
    let (mut world, outside) = linked();
    let said = world.say(outside, &no_map);
    assert_eq!(frames(&said)[0].header().status(), Some(Status::Error(ErrorKind::BadRequest)));
    assert_eq!(world.machine(1).linked(), [2]);
}

#[test]
fn who_has_not_proved_itself_costs_a_head_and_some_seconds() {
    let (_, hello) = hello(2);
    let long = frame(Header { length: 1 << 20, ..request(Verb::Put as u8, 1) }, &Fields::named(b"n"), &[0; 1 << 20]);
    let wrong = frame(Header::new(Kind::Hello), &Fields { proof: Some(&[1; 16]), ..Fields::default() }, b"");
    // Something other than a proof behind the hello or after the welcome, a wrong proof, and nothing more.
    for (behind, after, at_once) in [
        (true, &long, true),
        (false, &long, true),
        (false, &wrong, true),
        (false, &hello, true),
        (false, &vec![], false),
    ] {
        let (mut world, outside) = (World::new(2), 0);
        world.start(1);
        world.machine(1).push(&Arc::new(map(2)), false);
        world.connect(1, ROOM);
        if behind {
            world.say(outside, &[&hello[..], after].concat());
        } else {
            world.say(outside, &hello);
            world.say(outside, after);
        }
        world.pass(if at_once { 2 * TICK_MS } else { 5_000 });
        assert!(world.machine(1).linked().is_empty());
        assert_eq!(world.machine(1).shared.store.unsettled().1, 0, "nothing is kept");
        assert!(is_closed(&mut world, outside));
    }
    // A hello that never ends is no link, and has its time.
    let mut world = World::new(1);
    world.start(1);
    let outside = world.connect(1, ROOM);
    world.say(outside, &hello[..hello.len() - 1]);
    world.pass(5_000);
    assert!(world.outside[outside].1.is_closed());
}

#[test]
fn a_node_of_a_lower_number_does_not_dial() {
    let mut world = World::new(3);
    world.start(2);
    world.machine(2).adopt(&Arc::new(map(3)), false);
    world.settle();
    for (number, kind) in [(1, Kind::Goodbye), (3, Kind::Welcome)] {
        let outside = world.connect(2, ROOM);
        let said = world.say(outside, &hello(number).1);
        assert_eq!(frames(&said)[0].header().kind, kind);
    }
}

#[test]
fn who_asks_without_end_and_never_reads_is_closed_at_a_bound() {
    let (mut world, outside) = linked();
    let many = frame(request(200, 3), &Fields::default(), b"").repeat(10_000);
    let mut asked = 0;
    while world.machine(1).linked() == [2] {
        let mut left = &many[..];
        while !left.is_empty() && world.machine(1).linked() == [2] {
            left = &left[world.outside[outside].1.write(left)..];
            world.settle();
        }
        asked += 1;
        let (_, held) = world.machine(1).shared.store.unsettled();
        assert!(held <= LINK_UNSENT_MAX_BYTES + (1 << 20), "{held} bytes");
        assert!(asked < 1_000, "it goes on for ever");
    }
    assert!(asked > 10, "a link may owe much");
    world.outside[outside].1.reset();
    world.pass(2 * TICK_MS);
    assert_eq!((world.machine(1).engine.open(), world.machine(1).shared.store.unsettled().1), (0, 0));
}

#[test]
fn who_sends_and_never_reads_is_given_up() {
    let (mut world, outside) = linked();
    let one = frame(request(VERB_BEAT, 3), &Fields::default(), b"");
    let mut silent_ms = 0;
    while world.machine(1).linked() == [2] {
        assert_eq!(world.outside[outside].1.write(&one), one.len());
        world.pass(LINK_SILENCE_MS / 10);
        silent_ms += LINK_SILENCE_MS / 10;
        assert!(silent_ms < 2 * STALLED_TIMEOUT_MS, "beats come, and none of ours is answered");
    }
    assert!(silent_ms >= STALLED_TIMEOUT_MS, "{silent_ms} ms: it may have had much to read");
}

#[test]
fn a_map_that_never_ends_holds_up_no_other() {
    let (mut world, outside) = linked();
    world.machine(1).adopts = false;
    let sent = MapSent { mark: MapMark { epoch: 9, ..MapMark::default() }, is_difference: false, may_be_done: false };
    let mut whole = Vec::new();
    let body: Vec<u8> = (0..3 << 20).map(|at| (at / 1000) as u8).collect();
    sent.encode(&mut whole, 7, &body).expect("within the limits");
    let (cut, more) = whole.split_at(WIRE_FRAME_BODY_MAX_BYTES * 2);
    // Half of it, and a beat: not in the middle of a frame.
    world.say(outside, cut);
    world.say(outside, more);
    assert_eq!(
        world.machine(1).told.came().into_iter().map(|came| came.bytes).collect::<Vec<_>>(),
        std::slice::from_ref(&body)
    );
    // A part, then another map from the start; and data that belongs to nothing.
    let first = parse_frame(&whole).expect("a frame").expect("whole").bytes();
    world.say(outside, &whole[..first]);
    world.say(outside, &whole);
    let stray = frame(Header { flags: FLAG_MORE, ..Header::data(99, 0, true) }, &Fields::default(), &[]);
    world.say(outside, &stray);
    assert_eq!(world.machine(1).told.came().len(), 1);
    // While one comes, that of another node is refused, all of it.
    let other = link(&mut world, 3);
    world.say(outside, &whole[..first]);
    let said = world.say(other, &whole);
    let refused = frames(&said).iter().map(|frame| frame.header().status()).collect::<Vec<_>>();
    assert_eq!(refused, [Some(Status::Error(ErrorKind::Busy))]);
    world.say(outside, &whole[first..]);
    let came = world.machine(1).told.came();
    assert_eq!(came.iter().map(|came| came.from).collect::<Vec<_>>(), [node(2)]);
    world.say(other, &whole);
    assert_eq!(world.machine(1).told.came().len(), 1);
    // A frame that does not go on where the last one ended.
    world.say(outside, &whole[..first]);
    world.say(outside, &frame(Header::data(7, 5, false), &Fields::default(), b"x"));
    assert_eq!(world.machine(1).linked(), [3]);
    assert!(world.machine(1).told.came().is_empty());
}

#[test]
fn clients_on_the_same_port_are_served_as_before() {
    let mut world = World::linked(2);
    let text = world.connect(1, ROOM);
    assert_eq!(world.say(text, b"set n 0 0 5\r\nhello\r\nget n\r\n"), b"STORED\r\nVALUE n 0 5\r\nhello\r\nEND\r\n");
    let web = world.connect(1, ROOM);
    assert!(world.say(web, b"GET /o/default/n HTTP/1.1\r\nHost: x\r\n\r\n").ends_with(b"hello"));
    let get = Header { collection: CollectionId::DEFAULT.0, ..Header::request(Verb::Get, 5) };
    let get = frame(get, &Fields::named(b"n"), b"");
    let hello = frame(Header::new(Kind::Hello), &Fields { features: Some(0), ..Fields::default() }, b"");
    // With a hello or without, in one piece or byte by byte.
    for (bytes, kinds) in
        [([&hello[..], &get].concat(), vec![Kind::Welcome, Kind::Reply]), (get.clone(), vec![Kind::Reply])]
    {
        for piece in [bytes.len(), 1] {
            let wire = world.connect(1, ROOM);
            let said: Vec<u8> = bytes.chunks(piece).flat_map(|piece| world.say(wire, piece)).collect();
            let told = frames(&said);
            assert_eq!(told.iter().map(|frame| frame.header().kind).collect::<Vec<_>>(), kinds);
            assert_eq!(told.last().expect("a reply").body().expect("checked"), b"hello");
        }
    }
    assert_eq!(world.machine(1).linked(), [2]);
}

#[test]
fn a_node_without_a_herd_takes_no_links_and_says_why() {
    let mut world = crate::drive::World::new();
    let peer = world.connect();
    let said = world.send(peer, &hello(2).1);
    let [goodbye] = frames(&said)[..] else { panic!("a goodbye") };
    assert_eq!(goodbye.header().kind, Kind::Goodbye);
    assert!(goodbye.fields().expect("fields").error.expect("a text").contains("takes no links"));
    assert!(world.is_closed(peer));
}
