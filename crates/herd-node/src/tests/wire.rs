//! The wire.

use super::{frame, frames_of, request};
use crate::drive::World;
use herd_core::ErrorKind;
use herd_core::key::CollectionId;
use herd_core::limits::{BLOCK_BYTES, ERROR_TEXT_MAX_BYTES, NAME_MAX_BYTES, WIRE_HEAD_MAX_BYTES};
use herd_core::wire::{FLAG_MORE, FLAG_QUIET, FLAG_RANGE, Fields, Header, Kind, LENGTH_UNKNOWN, Status, Verb};

/// Every way to be refused with one's own words, each of the greatest length the wire takes.
#[test]
fn an_error_is_told_however_long_the_words_it_quotes() {
    let mut world = World::new();
    let peer = world.connect();
    let long = "\u{65e5}".repeat(WIRE_HEAD_MAX_BYTES);
    let spec = |start: &str, end: &str, room: usize| {
        let mut text = format!("{start}{long}");
        text.truncate(text.floor_char_boundary(room - end.len()));
        text + end
    };
    // Two fields, each with tag and length, and the name of one byte.
    let room = WIRE_HEAD_MAX_BYTES - 2 * 3 - 1;
    let class = spec("{\"class\":\"", "\"}", room);
    let field = spec("{\"class\":\"cache\",\"", "\":1}", room);
    let control = format!("{{\"class\":\"{}\"}}", "\\u0000".repeat(1300));
    let (names, collection) = (vec![0xFF; NAME_MAX_BYTES], "c".repeat(255));
    let bad_name = "'".repeat(255);
    let named = |name: &'static str| Fields { collection: Some(name), ..Fields::default() };
    let cases = [
        (Verb::Create, Fields { spec: Some(&class), ..named("c") }),
        (Verb::Create, Fields { spec: Some(&field), ..named("c") }),
        (Verb::Create, Fields { spec: Some(&control), ..named("c") }),
        (
            Verb::Create,
            Fields { collection: Some(&bad_name), spec: Some("{\"class\":\"cache\"}"), ..Fields::default() },
        ),
        (Verb::Get, Fields::named(&names)),
        (Verb::Remove, Fields::named(&names)),
        (Verb::Get, Fields { collection: Some(&collection), ..Fields::named(&names) }),
        (Verb::List, Fields { collection: Some(&bad_name), ..Fields::default() }),
        (Verb::Destroy, Fields { collection: Some(&collection), ..Fields::default() }),
        (Verb::Execute, Fields { method: Some(&long[..8100]), ..Fields::default() }),
        (Verb::Put, Fields { attributes: Some(&[0xFF; 4096]), ..Fields::named(&names) }),
    ];
    for (verb, fields) in cases {
        let by_name = fields.collection.is_some();
        let header = if by_name { Header::request(verb, 1) } else { request(verb, 1) };
        let said = world.send(peer, &frame(header, &fields, &[]));
        let [reply] = frames_of(&said)[..] else { panic!("one reply") };
        assert!(matches!(reply.header().status(), Some(Status::Error(_))), "{verb:?}");
        let text = reply.fields().expect("fields").error.expect("a text");
        assert!(!text.is_empty() && text.len() <= ERROR_TEXT_MAX_BYTES, "{} bytes", text.len());
        assert!(!text.chars().any(char::is_control), "{text:?}");
    }
    let far = Header { offset: u64::MAX, length: 1, flags: FLAG_RANGE, ..request(Verb::Put, 2) };
    let said = world.send(peer, &frame(far, &Fields::named(b"n"), b"x"));
    assert_eq!(frames_of(&said)[0].header().status(), Some(Status::Error(ErrorKind::TooLarge)));
    assert!(!world.is_closed(peer));
}

fn put_frame(id: u64, length: u64, flags: u8, body: &[u8]) -> Vec<u8> {
    frame(Header { length, flags, ..request(Verb::Put, id) }, &Fields::named(b"n"), body)
}

fn data(id: u64, offset: u64, more: bool, body: &[u8]) -> Vec<u8> {
    frame(Header { length: body.len() as u64, ..Header::data(id, offset, more) }, &Fields::default(), body)
}

/// Whatever frames follow in the same segment are served too.
#[test]
fn frames_of_a_body_may_be_empty() {
    let mut world = World::new();
    let peer = world.connect();
    let get = frame(request(Verb::Get, 9), &Fields::named(b"n"), &[]);
    let block = vec![7; BLOCK_BYTES];
    let first_empty = [put_frame(1, 5, FLAG_MORE, b""), data(1, 0, false, b"hello"), get.clone()].concat();
    let last_empty =
        [put_frame(2, LENGTH_UNKNOWN, FLAG_MORE, &block), data(2, BLOCK_BYTES as u64, false, b""), get.clone()];
    let both = [put_frame(3, 0, FLAG_MORE, b""), data(3, 0, false, b""), get.clone()].concat();
    for (bytes, value) in [(first_empty, &b"hello"[..]), (last_empty.concat(), &block), (both, b"")] {
        let said = world.send(peer, &bytes);
        let [put, get] = frames_of(&said)[..] else { panic!("two replies") };
        assert_eq!((put.header().status(), get.header().status()), (Some(Status::Ok), Some(Status::Ok)));
        assert_eq!(get.body().expect("whole"), value);
    }
}

#[test]
fn a_put_with_the_id_of_one_under_way_ends_the_connection_and_stores_nothing() {
    let mut world = World::new();
    let peer = world.connect();
    let twice = [put_frame(1, 10, FLAG_MORE, b""), put_frame(1, 5, FLAG_MORE, b""), data(1, 0, false, b"hello")];
    let said = world.send(peer, &twice.concat());
    assert_eq!(frames_of(&said).last().map(|frame| frame.header().kind), Some(Kind::Goodbye));
    assert!(world.is_closed(peer));
    let other = world.connect();
    let said = world.send(other, &frame(request(Verb::Get, 9), &Fields::named(b"n"), &[]));
    assert_eq!(frames_of(&said)[0].header().status(), Some(Status::Error(ErrorKind::NotFound)));
}

#[test]
fn a_body_where_none_belongs_is_refused_and_dropped() {
    let mut world = World::new();
    let peer = world.connect();
    let body = vec![1; 1 << 20];
    for (verb, most) in [(Verb::Get, 0), (Verb::Remove, 0), (Verb::List, 0), (Verb::Execute, 48 * 1024)] {
        let asked = frame(request(verb, 5), &Fields::named(b"n"), &body[..most + 1]);
        let large = frame(request(verb, 6), &Fields::named(b"n"), &body);
        let said = world.send(peer, &[asked, large, frame(request(Verb::Get, 7), &Fields::named(b"n"), &[])].concat());
        let statuses: Vec<_> = frames_of(&said).iter().map(|frame| frame.header().status()).collect();
        let bad = Some(Status::Error(ErrorKind::BadRequest));
        assert_eq!(statuses, [bad, bad, Some(Status::Error(ErrorKind::NotFound))], "{verb:?}");
    }
}

/// A node asks nobody, so a reply is nothing to it, body and all.
#[test]
fn the_body_of_a_reply_that_nobody_asked_for_is_dropped() {
    let mut world = World::new();
    let peer = world.connect();
    for body in [&b""[..], b"x", &[0xCE; 2 * BLOCK_BYTES]] {
        let header = Header { length: body.len() as u64, ..Header::reply_to(&request(Verb::Get, 3), Status::Ok) };
        let reply = frame(header, &Fields::default(), body);
        let get = frame(request(Verb::Get, 4), &Fields::named(b"n"), &[]);
        let said = world.send(peer, &[reply, get].concat());
        let [answer] = frames_of(&said)[..] else { panic!("one reply") };
        assert_eq!(answer.header().status(), Some(Status::Error(ErrorKind::NotFound)));
    }
}

#[test]
fn a_get_under_a_condition_that_is_none_of_a_get_is_refused() {
    let mut world = World::new();
    let peer = world.connect();
    world.send(peer, &put_frame(1, 1, 0, b"x"));
    for code in [1, 2, 3, 5, 6, u16::MAX] {
        for collection in [CollectionId::DEFAULT, CollectionId::SYSTEM] {
            let header = Header { code, collection: collection.0, ..request(Verb::Get, 2) };
            let said = world.send(peer, &frame(header, &Fields::named(b"n"), &[]));
            assert_eq!(frames_of(&said)[0].header().status(), Some(Status::Error(ErrorKind::BadRequest)), "{code}");
        }
    }
}

#[test]
fn what_is_quiet_is_answered_where_it_fails_or_asks_for_an_object() {
    let mut world = World::new();
    let peer = world.connect();
    let mut ask = |verb, name: &[u8]| {
        let header = Header { flags: FLAG_QUIET, ..request(verb, 1) };
        let said = world.send(peer, &frame(header, &Fields::named(name), &[]));
        frames_of(&said).first().map(|frame| frame.header().status())
    };
    assert_eq!(ask(Verb::Put, b"n"), None);
    assert_eq!(ask(Verb::Get, b"n"), Some(Some(Status::Ok)));
    assert_eq!(ask(Verb::List, b"n"), Some(Some(Status::Ok)));
    assert_eq!(ask(Verb::Remove, b"n"), None);
    assert_eq!(ask(Verb::Remove, b"n"), Some(Some(Status::Error(ErrorKind::NotFound))));
}

/// A listing of many objects none of which matches is no work of one turn, and holds up nobody on its connection.
#[test]
fn a_long_listing_takes_turns_with_what_else_is_asked() {
    let mut world = World::new();
    let peer = world.connect();
    for n in 0..10_000 {
        let header = Header { flags: FLAG_QUIET, ..request(Verb::Put, 1) };
        assert!(world.send(peer, &frame(header, &Fields::named(format!("n{n}").as_bytes()), b"")).is_empty());
    }
    let list = |id, prefix: &'static [u8]| {
        frame(request(Verb::List, id), &Fields { prefix: Some(prefix), ..Fields::default() }, &[])
    };
    let get = frame(request(Verb::Get, 4), &Fields::named(b"n1"), &[]);
    let said = world.send(peer, &[list(2, b"none"), list(3, b"n"), get].concat());
    let ids: Vec<_> = frames_of(&said).iter().map(|frame| (frame.header().id, frame.header().body_len > 0)).collect();
    assert_eq!(
        ids,
        [(3, true), (4, false), (2, false)],
        "the page that is soon full, the get, the page without a name"
    );
    let held = world.shared.store.memory().1;
    let cancel = frame(Header { id: 5, ..Header::new(Kind::Cancel) }, &Fields::default(), &[]);
    let said = world.send(peer, &[list(5, b"none"), cancel].concat());
    assert!(said.is_empty(), "it was cancelled before its second turn");
    assert_eq!(world.shared.store.memory().1, held);
}

#[test]
fn requests_that_take_long_do_not_follow_each_other_in_one_turn() {
    let mut world = World::new();
    let peer = world.connect();
    let metrics = Fields { name: Some(b"metrics"), ..Fields::default() };
    let system = |id| frame(Header { collection: CollectionId::SYSTEM.0, ..request(Verb::Get, id) }, &metrics, b"");
    assert_eq!(frames_of(&world.step(peer, &[system(2), system(3)].concat())).len(), 1);
    assert_eq!(frames_of(&world.hear_all(peer)).len(), 1);
    let mut web = |path: &str| {
        let peer = world.connect();
        let asked = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        let count = |said: Vec<u8>| String::from_utf8_lossy(&said).matches("HTTP/1.1 200").count();
        (count(world.step(peer, asked.repeat(2).as_bytes())), count(world.hear_all(peer)))
    };
    assert_eq!((web("/metrics"), web("/status")), ((1, 1), (1, 1)));
    let peer = world.connect();
    let ends = |said: Vec<u8>| String::from_utf8_lossy(&said).matches("END").count();
    assert_eq!(ends(world.step(peer, b"stats items\r\nstats\r\n")), 1);
    assert_eq!(ends(world.hear_all(peer)), 1);
}
