//! Methods, locks and tokens on the wire, and what all doors make of them.

use super::{frame, frames_of, request, say};
use crate::drive::{Peer, World};
use crate::service::NodeService;
use herd_core::ErrorKind;
use herd_core::entry::Token;
use herd_core::key::CollectionId;
use herd_core::limits::{BLOCK_BYTES, WIRE_OPEN_REQUESTS_MAX};
use herd_core::method::push_item;
use herd_core::wire::{CODE_NEWER, FLAG_RANGE, Fields, Header, Status, Verb};
use herd_net::EventLoop;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

type Reply = (Status, u64, Vec<u8>);

/// The status, version and body of the one reply.
fn reply(said: &[u8]) -> Reply {
    let frames = frames_of(said);
    let header = frames.first().expect("a reply").header();
    let body = frames.iter().flat_map(|frame| frame.body().expect("whole").to_vec()).collect();
    (header.status().expect("a reply"), header.version, body)
}

fn ask(world: &mut World, peer: Peer, header: Header, fields: &Fields<'_>, body: &[u8]) -> Reply {
    let header = Header { length: body.len() as u64, ..header };
    let said = world.send(peer, &frame(header, fields, body));
    reply(&said)
}

fn execute(world: &mut World, peer: Peer, name: &[u8], method: &str, arguments: &[&[u8]]) -> Reply {
    let mut body = Vec::new();
    arguments.iter().for_each(|item| push_item(&mut body, item));
    let fields = Fields { method: Some(method), ..Fields::named(name) };
    ask(world, peer, request(Verb::Execute, 1), &fields, &body)
}

fn put(world: &mut World, peer: Peer, name: &[u8], value: &[u8]) -> Reply {
    ask(world, peer, request(Verb::Put, 1), &Fields::named(name), value)
}

fn get(world: &mut World, peer: Peer, name: &[u8]) -> Reply {
    ask(world, peer, request(Verb::Get, 1), &Fields::named(name), b"")
}

#[test]
fn a_method_answers_with_its_result_and_the_new_version() {
    let mut world = World::new();
    let peer = world.connect();
    let (status, first, before) = execute(&mut world, peer, b"n", "fetch-and-add", &[b"5"]);
    assert_eq!((status, &before[..]), (Status::Ok, &b"0"[..]));
    let (_, second, before) = execute(&mut world, peer, b"n", "fetch-and-add", &[b"-7"]);
    assert_eq!(before, b"5");
    assert!(second > first);
    assert_eq!(get(&mut world, peer, b"n"), (Status::Ok, second, b"-2".to_vec()));
    let (status, ..) = execute(&mut world, peer, b"n", "no-such-method", &[]);
    assert_eq!(status, Status::Error(ErrorKind::BadRequest));
    let (status, ..) = execute(&mut world, peer, b"none", "touch", &[b"1000"]);
    assert_eq!(status, Status::Error(ErrorKind::NotFound));
    let held = Header { code: 1, ..request(Verb::Execute, 1) };
    let fields = Fields { method: Some("get-and-remove"), ..Fields::named(b"n") };
    let (status, there, _) = ask(&mut world, peer, held, &fields, b"");
    assert_eq!((status, there), (Status::Error(ErrorKind::ConditionFailed), second));
}

#[test]
fn a_large_value_is_taken_out_whole() {
    let mut world = World::new();
    let peer = world.connect();
    let value: Vec<u8> = (0..3 * BLOCK_BYTES + 5).map(|n| (n * 7 / 3) as u8).collect();
    assert_eq!(put(&mut world, peer, b"n", &value).0, Status::Ok);
    assert_eq!(execute(&mut world, peer, b"n", "append", &[b"!"]).2, (value.len() + 1).to_string().as_bytes());
    let (status, _, taken) = execute(&mut world, peer, b"n", "get-and-remove", &[]);
    assert_eq!((status, &taken[..value.len()], taken.last()), (Status::Ok, &value[..], Some(&b'!')));
    assert_eq!(get(&mut world, peer, b"n").0, Status::Error(ErrorKind::NotFound));
}

#[test]
fn nothing_is_taken_out_by_a_connection_that_has_too_many_requests_open() {
    let mut world = World::new();
    let (peer, other) = (world.connect(), world.connect());
    assert_eq!(put(&mut world, peer, b"n", &[7; BLOCK_BYTES]).0, Status::Ok);
    for id in 0..WIRE_OPEN_REQUESTS_MAX as u64 {
        let newer = Header { code: CODE_NEWER, version: 0, time_ms: 60_000, ..request(Verb::Get, id) };
        assert!(world.send(peer, &frame(newer, &Fields::named(b"none"), &[])).is_empty());
    }
    assert_eq!(execute(&mut world, peer, b"n", "get-and-remove", &[]).0, Status::Error(ErrorKind::Busy));
    assert_eq!(get(&mut world, other, b"n").2, [7; BLOCK_BYTES]);
}

/// A request may be served long after its batch began, as threads stand still: the lease counts from when it is served.
#[test]
fn a_lease_does_not_begin_before_its_request_came() {
    let mut world = World::new();
    let peer = world.connect();
    // By the clock of the loops a second has gone by since the batch began.
    let start = Instant::now().checked_sub(Duration::from_secs(1)).expect("it was before");
    let loops = EventLoop::<NodeService>::group(Vec::new(), Vec::new(), 0, start).expect("no loops").0;
    assert!(world.shared.loops.set(loops).is_ok());
    let (_, _, answer) = execute(&mut world, peer, b"lock", "lock", &[b"exclusive", b"20000"]);
    let token = herd_core::method::items(&answer).expect("a list")[1].to_vec();
    world.pass(Duration::from_millis(20_500));
    let (status, ..) = execute(&mut world, peer, b"lock", "check", &[&token]);
    assert_eq!(status, Status::Ok, "it lasts for 20 s");
}

/// What a lock's successor did can't be undone by a holder that was away, through any door.
#[test]
fn an_object_refuses_the_token_of_an_earlier_holder() {
    let mut world = World::new();
    let peer = world.connect();
    let token = |world: &mut World| {
        let (_, _, answer) = execute(world, peer, b"lock", "lock", &[b"exclusive", b"1000"]);
        let all = herd_core::method::items(&answer).expect("a list");
        Token::parse(std::str::from_utf8(all[1]).expect("text")).expect("a token")
    };
    let first = token(&mut world);
    world.pass(Duration::from_secs(2));
    let second = token(&mut world);
    assert!(second.grant > first.grant && second.lock == first.lock);
    let with = |world: &mut World, verb, token: Option<Token>, body: &[u8]| {
        let bytes = token.map(Token::to_bytes);
        let fields = Fields { token: bytes.as_ref(), ..Fields::named(b"n") };
        ask(world, peer, request(verb, 1), &fields, body).0
    };
    assert_eq!(with(&mut world, Verb::Get, Some(second), b""), Status::Error(ErrorKind::NotFound));
    let lost = Status::Error(ErrorKind::ConditionFailed);
    assert_eq!(with(&mut world, Verb::Put, Some(first), b"old"), lost, "the successor has only read so far");
    assert_eq!(with(&mut world, Verb::Put, Some(second), b"new"), Status::Ok);
    assert_eq!(with(&mut world, Verb::Get, Some(first), b""), lost);
    let guarded = Status::Error(ErrorKind::NotAllowed);
    assert_eq!(with(&mut world, Verb::Put, None, b"x"), guarded);
    assert_eq!(with(&mut world, Verb::Remove, None, b""), guarded);
    assert_eq!(with(&mut world, Verb::Get, None, b""), Status::Ok);
    let text = world.connect();
    assert_eq!(say(&mut world, text, "set n 0 0 1\r\nx\r\n"), "CLIENT_ERROR not allowed\r\n");
    let http = world.connect();
    let said = say(&mut world, http, "DELETE /o/default/n HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert!(said.starts_with("HTTP/1.1 403"), "{said}");
    let http = world.connect();
    let said = say(&mut world, http, "PUT /o/default/n HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\nx");
    assert!(said.starts_with("HTTP/1.1 403"), "{said}");
    assert_eq!(get(&mut world, peer, b"n").2, b"new");
    assert_eq!(with(&mut world, Verb::Remove, Some(second), b""), Status::Ok);
    assert_eq!(with(&mut world, Verb::Put, Some(first), b"old"), lost, "also after it was removed");
}

/// An hour is an hour, however often somebody without a token looks.
#[test]
fn a_look_without_a_token_does_not_prolong_the_guard_of_what_is_gone() {
    let mut world = World::new();
    let peer = world.connect();
    let token = Token { lock: [1; 16], grant: 7 }.to_bytes();
    let guarded = Fields { token: Some(&token), ..Fields::named(b"n") };
    assert_eq!(ask(&mut world, peer, request(Verb::Put, 1), &guarded, b"x").0, Status::Ok);
    assert_eq!(ask(&mut world, peer, request(Verb::Remove, 1), &guarded, b"").0, Status::Ok);
    for _ in 0..2 {
        assert_eq!(put(&mut world, peer, b"n", b"x").0, Status::Error(ErrorKind::NotAllowed));
        assert_eq!(execute(&mut world, peer, b"n", "list-length", &[]).2, b"0");
        world.pass(Duration::from_secs(31 * 60));
    }
    assert_eq!(put(&mut world, peer, b"n", b"x").0, Status::Ok);
}

#[test]
fn a_touch_is_a_new_version_and_the_same_cas_value() {
    let mut world = World::new();
    let (peer, text) = (world.connect(), world.connect());
    for touch in ["touch n 100\r\n", "gat 200 n\r\n", "mg n T300\r\n"] {
        let (_, version, _) = put(&mut world, peer, b"n", b"x");
        let gets = say(&mut world, text, "gets n\r\n");
        assert!(gets.contains(&version.to_string()), "{gets}");
        let newer = Header { code: CODE_NEWER, version, time_ms: 60_000, ..request(Verb::Get, 7) };
        let waiter = world.connect();
        assert!(world.send(waiter, &frame(newer, &Fields::named(b"n"), &[])).is_empty(), "{touch}");
        say(&mut world, text, touch);
        world.pass(Duration::ZERO);
        let (status, touched, _) = reply(&world.hear(waiter));
        assert!(status == Status::Ok && touched > version, "{touch}");
        assert_eq!(say(&mut world, text, "gets n\r\n"), gets, "{touch}");
    }
}

#[test]
fn a_range_far_out_leaves_zeros_between() {
    let mut world = World::new();
    let peer = world.connect();
    put(&mut world, peer, b"n", b"start");
    let far = Header { offset: 10 * BLOCK_BYTES as u64, flags: FLAG_RANGE, ..request(Verb::Put, 1) };
    assert_eq!(ask(&mut world, peer, far, &Fields::named(b"n"), b"end").0, Status::Ok);
    let (_, _, value) = get(&mut world, peer, b"n");
    assert_eq!((&value[..5], &value[10 * BLOCK_BYTES..]), (&b"start"[..], &b"end"[..]));
    assert!(value[5..10 * BLOCK_BYTES].iter().all(|byte| *byte == 0));
    let used = world.shared.store.memory().1;
    let gap = Header { offset: 900 << 20, flags: FLAG_RANGE, ..request(Verb::Put, 1) };
    assert_eq!(ask(&mut world, peer, gap, &Fields::named(b"gap"), b"end").0, Status::Ok);
    assert!(world.shared.store.memory().1 - used < 4 << 20, "zeros are no memory, on a node of 64 MiB");
}

#[test]
fn bytes_of_values_are_counted_at_every_door() {
    let mut world = World::new();
    let (text, wire, http) = (world.connect(), world.connect(), world.connect());
    say(&mut world, text, "set a 0 0 5\r\nhello\r\n");
    say(&mut world, text, "get a a b\r\nmg a v\r\n");
    put(&mut world, wire, b"b", &[1; BLOCK_BYTES]);
    get(&mut world, wire, b"b");
    get(&mut world, wire, b"a");
    execute(&mut world, wire, b"c", "append", &[b"xyz"]);
    say(&mut world, http, "GET /o/default/a HTTP/1.1\r\nHost: localhost\r\nRange: bytes=1-2\r\n\r\n");
    let said = say(&mut world, http, "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
    for (door, verb, way, bytes) in [
        ("memcached", "put", "in", 5),
        ("memcached", "get", "out", 15),
        ("wire", "put", "in", BLOCK_BYTES),
        ("wire", "get", "out", BLOCK_BYTES + 5),
        ("wire", "execute", "out", 1),
        ("http", "get", "out", 2),
    ] {
        let line = format!("herd_value_bytes_total{{door=\"{door}\",verb=\"{verb}\",way=\"{way}\"}} {bytes}\n");
        assert!(said.contains(&line), "{line}");
    }
}

#[test]
fn what_is_asked_of_the_herd_itself_is_no_request_for_an_object() {
    let mut world = World::new();
    let (wire, http) = (world.connect(), world.connect());
    world.pass(Duration::from_secs(1));
    let is_served = |world: &World| world.shared.asked_ms.load(Relaxed) > 0;
    let of_herd = |verb| Header { collection: CollectionId::SYSTEM.0, ..request(verb, 1) };
    let fields = Fields { method: Some("drain"), ..Fields::named(b"a-node") };
    world.send(wire, &frame(of_herd(Verb::Get), &Fields::named(b"status"), b""));
    world.send(wire, &frame(of_herd(Verb::Execute), &fields, b""));
    say(&mut world, http, "GET /status HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert!(!is_served(&world));
    get(&mut world, wire, b"a");
    assert!(is_served(&world));
    let said = say(&mut world, http, "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
    for line in ["verb=\"get\"} 1\n", "verb=\"admin\"} 2\n"] {
        let line = format!("herd_requests_total{{door=\"wire\",{line}");
        assert!(said.contains(&line), "{line} in {said}");
    }
    assert!(!said.contains("herd_requests_total{door=\"wire\",verb=\"execute\"}"), "{said}");
}

/// A get that shows a token is told what was there when the token was judged: never what a later holder has put.
#[test]
fn a_get_with_a_token_sees_nothing_of_a_later_holder() {
    let config = crate::Config { memory_bytes: 64 << 20, threads: 2, ..crate::Config::default() };
    let mut world = World::with(config);
    let mut other = world.beside(1);
    let token = |grant| Token { lock: [7; 16], grant }.to_bytes();
    let (old, new) = (token(1), token(2));
    let put = |name: &str, token: &[u8; 24], value: &[u8]| {
        let fields = Fields { token: Some(token), ..Fields::named(name.as_bytes()) };
        frame(Header { length: 1, ..request(Verb::Put, 1) }, &fields, value)
    };
    for round in 0..300 {
        let name = format!("n{round}");
        let writer = world.connect();
        world.send(writer, &put(&name, &old, b"o"));
        let get = frame(request(Verb::Get, 2), &Fields { token: Some(&old), ..Fields::named(name.as_bytes()) }, b"");
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let peer = other.connect();
                let mut seen = 0;
                loop {
                    let said = other.send(peer, &get);
                    let reply = &frames_of(&said)[0];
                    match reply.header().status() {
                        Some(Status::Ok) => assert_eq!(reply.body(), Ok(&b"o"[..]), "round {round}"),
                        status => {
                            assert_eq!(status, Some(Status::Error(ErrorKind::ConditionFailed)));
                            return seen;
                        }
                    }
                    seen += 1;
                }
            });
            (0..round).for_each(|_| std::hint::spin_loop());
            world.send(writer, &put(&name, &new, b"n"));
            reader.join().expect("no value of the later holder");
        });
    }
}
