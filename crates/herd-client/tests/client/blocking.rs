//! The blocking client: every verb, bodies of all sizes, and what it does when nodes fail.

use super::server::Server;
use herd_client::blocking::Client;
use herd_client::{Attributes, Class, Condition, Config, ErrorKind, PutOptions, Range, Request, Spec};
use std::io::{self, Read};
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

fn client(server: &Server) -> Client {
    Client::new(&server.name(), Config::default()).expect("an address")
}

/// Bytes that tell their place, so that a lost or doubled block shows.
pub(super) fn pattern(length: usize) -> Vec<u8> {
    let mut state = length as u64 + 1;
    let mut out = Vec::with_capacity(length + 8);
    while out.len() < length {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        out.extend_from_slice(&state.to_le_bytes());
    }
    out.truncate(length);
    out
}

const SIZES: [usize; 12] =
    [0, 1, 4096, 65_535, 65_536, 65_537, 300_000, 1 << 20, (1 << 20) + 1, 4 << 20, (4 << 20) + 77, (11 << 20) + 12_345];

#[test]
fn objects_of_all_sizes_come_back_as_they_were_put() {
    let server = Server::start();
    let client = client(&server);
    for size in SIZES {
        let value = pattern(size);
        let ack = client.put("object", &value, &PutOptions::default()).expect("put");
        let object = client.get("default/object").expect("get");
        assert!(object.value == value, "{size} bytes");
        assert_eq!((object.stat.version, object.stat.size_bytes), (ack.version, size as u64));
        let mut out = Vec::new();
        let stat = client.get_to("object", None, &mut out).expect("get to");
        assert!(out == value, "{size} bytes");
        assert_eq!(stat, object.stat);
    }
    let accepted = server.node.accepted.load(SeqCst);
    assert!(accepted <= 4, "only a refused put of many frames costs its connection: {accepted}");
}

/// A reader that gives odd pieces.
struct Pieces<'a>(&'a [u8], usize);

impl Read for Pieces<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.1 = self.1 * 7 % 100_003 + 1;
        let bytes = self.1.min(self.0.len()).min(into.len());
        into[..bytes].copy_from_slice(&self.0[..bytes]);
        self.0 = &self.0[bytes..];
        Ok(bytes)
    }
}

#[test]
fn streams_of_known_and_unknown_length_are_put() {
    let server = Server::start();
    let client = client(&server);
    for size in SIZES {
        let value = pattern(size);
        for length in [Some(size as u64), None] {
            client.put_from("stream", &mut Pieces(&value, 11), length, &PutOptions::default()).expect("put");
            assert!(client.get("stream").expect("get").value == value, "{size} bytes");
        }
    }
}

#[test]
fn a_source_that_ends_early_or_fails_stores_nothing() {
    let server = Server::start();
    let client = client(&server);
    let value = pattern(3 << 20);
    let short = client.put_from("s", &mut &value[..], Some(5 << 20), &PutOptions::default());
    assert_eq!(short.expect_err("short").kind(), ErrorKind::Local(io::ErrorKind::UnexpectedEof));
    struct Failing;
    impl Read for Failing {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::ErrorKind::PermissionDenied.into())
        }
    }
    let failed = client.put_from("s", &mut Failing, None, &PutOptions::default());
    assert_eq!(failed.expect_err("fails").kind(), ErrorKind::Local(io::ErrorKind::PermissionDenied));
    assert_eq!(client.get("s").expect_err("not there").kind(), ErrorKind::NotFound);
}

#[test]
fn ranges_are_read_and_written() {
    let server = Server::start();
    let client = client(&server);
    let mut value = pattern(10 << 20);
    let options = PutOptions { flags: Some(7), ..PutOptions::default() };
    client.put("r", &value, &options).expect("put");
    for (offset, length) in [(0, Some(1)), (70_000, Some(65_536)), (1, Some(6 << 20)), (9 << 20, None)] {
        let object = client.get_range("r", Range { offset, length }).expect("get");
        let end = length.map_or(value.len(), |length| (offset + length) as usize);
        assert!(object.value == value[offset as usize..end], "{offset} {length:?}");
        assert_eq!(object.stat.size_bytes, value.len() as u64);
        let mut out = Vec::new();
        client.get_to("r", Some(Range { offset, length }), &mut out).expect("get to");
        assert!(out == object.value, "{offset} {length:?}");
    }
    let past = client.get_range("r", Range { offset: 11 << 20, length: None });
    assert_eq!(past.expect_err("past").kind(), ErrorKind::Refused(herd_core::ErrorKind::BadRange));
    let patch = pattern(5 << 20);
    client.put_range("r", 6 << 20, &patch, &PutOptions::default()).expect("patch");
    value.resize(11 << 20, 0);
    value[6 << 20..].copy_from_slice(&patch);
    let object = client.get("r").expect("get");
    assert!(object.value == value);
    assert_eq!(object.stat.flags, 7, "flags stay");
}

#[test]
fn conditions_flags_and_attributes_are_carried() {
    let server = Server::start();
    let client = client(&server);
    let attributes = Attributes { content_type: Some("text/plain".into()), mode: Some(0o644), ..Default::default() };
    let options = PutOptions {
        condition: Condition::IfAbsent,
        ttl: Some(Duration::from_secs(60)),
        flags: Some(0xABCD_EF01),
        attributes: Some(attributes.clone()),
    };
    let first = client.put("c", b"one", &options).expect("put");
    let again = client.put("c", b"two", &options).expect_err("present");
    assert_eq!(again.kind(), ErrorKind::ConditionFailed { version: first.version });
    let stat = client.stat("c").expect("stat");
    assert_eq!((stat.flags, stat.expires_ms, stat.attributes), (0xABCD_EF01, Some(60_000), attributes));
    assert_eq!((stat.class, stat.copies, stat.size_bytes), (Class::Ram(1), 1, 3));
    let wrong = client.remove("c", Condition::IfVersion(first.version + 1)).expect_err("another version");
    assert_eq!(wrong.kind(), ErrorKind::ConditionFailed { version: first.version });
    let removed = client.remove("c", Condition::IfVersion(first.version)).expect("remove");
    assert!(removed.version > first.version);
    assert_eq!(client.stat("c").expect_err("gone").kind(), ErrorKind::NotFound);
    assert_eq!(client.remove("c", Condition::None).expect_err("gone").kind(), ErrorKind::NotFound);
}

#[test]
fn collections_are_made_and_destroyed() {
    let server = Server::start();
    let client = client(&server);
    let spec = Spec { ordered: true, ..Spec::of("ram:1") };
    client.create_collection("tree", &spec).expect("create");
    client.create_collection("tree", &spec).expect("it is there");
    let other = Spec { class: "cache".into(), ..spec };
    let refused = client.create_collection("tree", &other).expect_err("another");
    assert_eq!(refused.kind(), ErrorKind::Refused(herd_core::ErrorKind::Exists));
    client.put("tree/x", b"1", &PutOptions::default()).expect("put");
    assert_eq!(client.get("x").expect_err("it is in the tree").kind(), ErrorKind::NotFound);
    assert_eq!(client.get("tree/x").expect("get").value, b"1");
    client.destroy_collection("tree").expect("destroyed");
    assert_eq!(client.get("tree/x").expect_err("gone").kind(), ErrorKind::NoCollection);
}

#[test]
fn a_pipeline_goes_on_after_a_large_put_was_refused() {
    let server = Server::start();
    let client = client(&server);
    server.node.object_max_bytes.store(1 << 20, SeqCst);
    let (large, small) = (pattern(64 << 20), pattern(700_000));
    let mut pipeline = client.pipeline().expect("connected");
    for _ in 0..3 {
        let put = |value| Request::put("x", value, &PutOptions::default()).expect("valid");
        let refused = pipeline.send(&put(&large)).expect("sent");
        let stored = pipeline.send(&put(&small)).expect("sent");
        let error = pipeline.wait(refused).expect_err("too large");
        assert_eq!(error.kind(), ErrorKind::Refused(herd_core::ErrorKind::TooLarge));
        pipeline.wait(stored).expect("put");
    }
    drop(pipeline);
    assert!(client.get("x").expect("get").value == small);
}

#[test]
fn a_lost_pipeline_tells_what_may_have_been_done() {
    let server = Server::start();
    let client = client(&server);
    let mut pipeline = client.pipeline().expect("connected");
    let first = pipeline.send(&Request::get("x").expect("valid")).expect("sent");
    assert_eq!(pipeline.wait(first).expect_err("missing").kind(), ErrorKind::NotFound);
    server.node.faults.close.store(1, SeqCst);
    let get = pipeline.send(&Request::get("x").expect("valid")).expect("sent");
    let put = pipeline.send(&Request::put("x", b"1", &PutOptions::default()).expect("valid")).expect("sent");
    assert_eq!(pipeline.wait(get).expect_err("lost").kind(), ErrorKind::Unreachable);
    assert_eq!(pipeline.wait(put).expect_err("lost").kind(), ErrorKind::OutcomeUnknown);
    assert_eq!(pipeline.send(&Request::get("x").expect("valid")).expect_err("lost").kind(), ErrorKind::Unreachable);
}

#[test]
fn a_node_that_takes_no_bytes_costs_the_timeout_and_no_more() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let node = listener.local_addr().expect("bound").to_string();
    let config = Config { timeout: Duration::from_millis(200), ..Config::default() };
    let client = Client::new(&node, config).expect("an address");
    let value = pattern(64 << 20);
    let start = Instant::now();
    let error = client.put("x", &value, &PutOptions::default()).expect_err("stuck");
    assert_eq!(error.kind(), ErrorKind::Unreachable, "what was not sent wholly was not done");
    let mut pipeline = client.pipeline().expect("connected");
    let put = Request::put("x", &value, &PutOptions::default()).expect("valid");
    let ticket = pipeline.send(&put).expect("sent as far as it goes");
    assert_eq!(pipeline.wait(ticket).expect_err("stuck").kind(), ErrorKind::OutcomeUnknown);
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
}

#[test]
fn a_pipeline_is_bounded() {
    let server = Server::start();
    let client = client(&server);
    let mut pipeline = client.pipeline().expect("connected");
    let get = Request::get("x").expect("valid");
    let mut tickets = Vec::new();
    let refused = loop {
        match pipeline.send(&get) {
            Ok(ticket) => tickets.push(ticket),
            Err(error) => break error,
        }
        assert!(tickets.len() <= 1024);
    };
    assert_eq!(refused.kind(), ErrorKind::Refused(herd_core::ErrorKind::Busy));
    let first = tickets.remove(0);
    assert_eq!(pipeline.wait(first).expect_err("missing").kind(), ErrorKind::NotFound);
    tickets.push(pipeline.send(&get).expect("there is room again"));
    for ticket in tickets {
        assert_eq!(pipeline.wait(ticket).expect_err("missing").kind(), ErrorKind::NotFound);
    }
}

#[test]
fn a_pipeline_answers_each_ticket_in_any_order() {
    let server = Server::start();
    let client = client(&server);
    let mut pipeline = client.pipeline().expect("connected");
    let values: Vec<Vec<u8>> = (0..60).map(|i| pattern(i * i * i * 10)).collect();
    let mut tickets = Vec::new();
    for (i, value) in values.iter().enumerate() {
        let key = format!("p{i}");
        let put = pipeline.send(&Request::put(&key, value, &PutOptions::default()).expect("valid")).expect("sent");
        tickets.push((i, put, pipeline.send(&Request::get(&key).expect("valid")).expect("sent")));
    }
    for (i, put, get) in tickets.into_iter().rev() {
        let (_, value) = pipeline.wait(get).expect("get");
        assert!(value == values[i], "{i}");
        assert!(pipeline.wait(put).expect("put").0.version > 0);
    }
    let missing = pipeline.send(&Request::get("nobody").expect("valid")).expect("sent");
    assert_eq!(pipeline.wait(missing).expect_err("missing").kind(), ErrorKind::NotFound);
    drop(pipeline);
    client.get("p3").expect("the connection goes back to the pool");
    assert_eq!(server.node.accepted.load(SeqCst), 1);
}

#[test]
fn listings_run_over_pages_and_know_prefixes() {
    let server = Server::start();
    let client = client(&server);
    client.create_collection("tree", &Spec { ordered: true, ..Spec::of("ram:1") }).expect("made");
    for batch in 0..5 {
        let mut pipeline = client.pipeline().expect("connected");
        let tickets: Vec<_> = (0..500)
            .map(|i| {
                let n = batch * 500 + i;
                let key = format!("tree/{}{n:05}", if n % 5 == 0 { "a" } else { "b" });
                pipeline.send(&Request::put(&key, b"xyz", &PutOptions::default()).expect("valid")).expect("sent")
            })
            .collect();
        tickets.into_iter().for_each(|ticket| _ = pipeline.wait(ticket).expect("put"));
    }
    let all: Vec<_> = client.list("tree", "").collect::<Result<_, _>>().expect("lists");
    assert_eq!(all.len(), 2500);
    assert!(all.windows(2).all(|pair| pair[0].name < pair[1].name));
    assert!(all.iter().all(|item| item.size_bytes == 3 && item.version > 0));
    assert_eq!(client.list("tree", "a").count(), 500);
    assert_eq!(client.list("tree", "c").count(), 0);
    let none: Vec<_> = client.list("nowhere", "").collect();
    assert_eq!(none.len(), 1);
    assert_eq!(none[0].as_ref().expect_err("no collection").kind(), ErrorKind::NoCollection);
    client.destroy_collection("tree").expect("destroyed");
    assert_eq!(client.get("tree/a00000").expect_err("gone").kind(), ErrorKind::NoCollection);
    assert_eq!(client.status().expect("status")["nodes"], 1);
}

#[test]
fn a_get_waits_for_a_newer_version() {
    let server = Server::start();
    let client = client(&server);
    let first = client.put("w", b"1", &PutOptions::default()).expect("put").version;
    let start = Instant::now();
    let none = client.get_newer("w", first, Duration::from_millis(150)).expect_err("nothing newer");
    assert_eq!(none.kind(), ErrorKind::Refused(herd_core::ErrorKind::Timeout));
    assert!(start.elapsed() >= Duration::from_millis(150));
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| client.get_newer("w", first, Duration::from_secs(20)).expect("newer"));
        std::thread::sleep(Duration::from_millis(50));
        client.put("w", b"2", &PutOptions::default()).expect("put");
        assert_eq!(waiting.join().expect("joined").value, b"2");
    });
}

#[test]
fn a_get_goes_to_another_connection_and_a_put_says_that_its_outcome_is_unknown() {
    let server = Server::start();
    let client = client(&server);
    client.put("f", b"value", &PutOptions::default()).expect("put");
    server.node.faults.close.store(1, SeqCst);
    assert_eq!(client.get("f").expect("again").value, b"value");
    server.node.faults.close.store(1, SeqCst);
    let unknown = client.put("f", b"other", &PutOptions::default()).expect_err("lost");
    assert_eq!(unknown.kind(), ErrorKind::OutcomeUnknown);
    assert!(unknown.to_string().starts_with("put default/f: connection lost"), "{unknown}");
    server.node.faults.close.store(100, SeqCst);
    assert_eq!(client.get("f").expect_err("never").kind(), ErrorKind::Unreachable);
}

#[test]
fn a_put_after_the_node_restarted_is_no_unknown_outcome() {
    let server = Server::start();
    let client = client(&server);
    for _ in 0..3 {
        client.put("f", b"value", &PutOptions::default()).expect("put");
        server.disconnect();
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(server.node.accepted.load(SeqCst), 3);
}

#[test]
fn busy_is_tried_again_and_nodes_take_turns() {
    let (one, two) = (Server::start(), Server::start());
    let nodes = format!("127.0.0.1:1, {}, {}", one.name(), two.name());
    let client = Client::new(&nodes, Config::default()).expect("addresses");
    client.put("b", b"1", &PutOptions::default()).expect("the first address is dead");
    assert_eq!((one.node.requests.load(SeqCst), two.node.requests.load(SeqCst)), (1, 0));
    one.node.faults.busy.store(1, SeqCst);
    client.put("b", b"2", &PutOptions::default()).expect("the other is not busy");
    assert_eq!((one.node.requests.load(SeqCst), two.node.requests.load(SeqCst)), (2, 1));
    two.node.faults.busy.store(3, SeqCst);
    one.node.faults.busy.store(3, SeqCst);
    client.put("b", b"3", &PutOptions::default()).expect("in the end");
    let dead = Client::new("127.0.0.1:1", Config::default()).expect("an address");
    let error = dead.put("b", b"", &PutOptions::default()).expect_err("nobody");
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    assert!(error.to_string().contains("127.0.0.1:1"), "{error}");
}

#[test]
fn a_silent_node_costs_the_timeout_and_no_more() {
    let server = Server::start();
    let config = Config { timeout: Duration::from_millis(200), ..Config::default() };
    let client = Client::new(&server.name(), config).expect("an address");
    server.node.faults.ignore.store(1, SeqCst);
    let start = Instant::now();
    let error = client.put("t", b"x", &PutOptions::default()).expect_err("silence");
    assert_eq!(error.kind(), ErrorKind::OutcomeUnknown);
    assert!((180..1500).contains(&start.elapsed().as_millis()), "{:?}", start.elapsed());
    assert_eq!(client.get("t").expect_err("not there").kind(), ErrorKind::NotFound);
    server.node.faults.ignore.store(1, SeqCst);
    let again = client.get("t").expect_err("not there");
    assert_eq!(again.kind(), ErrorKind::NotFound, "a connection that was idle may be dead: there is time for another");
    server.node.faults.ignore.store(1, SeqCst);
    let mut pipeline = client.pipeline().expect("connected");
    let lost = pipeline.send(&Request::get("t").expect("valid")).expect("sent");
    std::thread::sleep(Duration::from_millis(20));
    pipeline.flush();
    assert_eq!(pipeline.wait(lost).expect_err("silence").kind(), ErrorKind::Unreachable);
    let next = pipeline.send(&Request::get("t").expect("valid")).expect("sent");
    assert_eq!(pipeline.wait(next).expect_err("answered").kind(), ErrorKind::NotFound);
    assert!(server.node.cancels.load(SeqCst) >= 1, "the node is told");
}

#[test]
fn a_damaged_block_is_found_and_read_again() {
    let server = Server::start();
    let client = client(&server);
    for size in [100, 300_000, 9 << 20] {
        let value = pattern(size);
        client.put("d", &value, &PutOptions::default()).expect("put");
        server.node.faults.corrupt.store(1, SeqCst);
        assert!(client.get("d").expect("again").value == value, "{size}");
        server.node.faults.corrupt.store(1, SeqCst);
        let mut out = Vec::new();
        client.get_to("d", None, &mut out).expect("again");
        assert!(out == value, "{size}");
    }
    server.node.faults.corrupt.store(100, SeqCst);
    assert_eq!(client.get("d").expect_err("always damaged").kind(), ErrorKind::BadReply);
}

#[test]
fn a_stream_goes_on_where_its_connection_was_lost() {
    let server = Server::start();
    let client = client(&server);
    let value = pattern(9 << 20);
    client.put("s", &value, &PutOptions::default()).expect("put");
    server.node.faults.cut_body.store(3, SeqCst);
    let mut out = Vec::new();
    client.get_to("s", None, &mut out).expect("goes on");
    assert!(out == value);
    assert_eq!(server.node.faults.cut_body.load(SeqCst), 0);
    server.node.faults.cut_body.store(1, SeqCst);
    let mut out = Vec::new();
    client.get_to("s", Some(Range { offset: 5, length: Some(7 << 20) }), &mut out).expect("goes on");
    assert!(out == value[5..5 + (7 << 20)]);
}

#[test]
fn an_object_that_changes_under_a_broken_stream_is_an_error() {
    let server = Server::start();
    let client = client(&server);
    struct Changing<'a>(&'a Server, bool, usize);
    impl io::Write for Changing<'_> {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if !std::mem::replace(&mut self.1, true) {
                let other = Client::new(&self.0.name(), Config::default()).expect("an address");
                other.put("s", &pattern(self.2), &PutOptions::default()).expect("put");
            }
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    for new_size in [1 << 20, 9 << 20] {
        client.put("s", &pattern(9 << 20), &PutOptions::default()).expect("put");
        server.node.faults.cut_body.store(1, SeqCst);
        let error = client.get_to("s", None, &mut Changing(&server, false, new_size)).expect_err("changed");
        assert_eq!(error.kind(), ErrorKind::Changed, "{error}");
    }
}

#[test]
fn a_refusal_stops_a_large_put() {
    let server = Server::start();
    let client = client(&server);
    server.node.object_max_bytes.store(1 << 20, SeqCst);
    let error = client.put("big", &pattern(64 << 20), &PutOptions::default()).expect_err("too large");
    assert_eq!(error.kind(), ErrorKind::Refused(herd_core::ErrorKind::TooLarge));
    client.put("small", b"x", &PutOptions::default()).expect("put");
}

#[test]
fn values_over_the_limit_in_memory_are_refused_and_memory_is_used_again() {
    let server = Server::start();
    let config = Config { value_max_bytes: 1 << 20, ..Config::default() };
    let client = Client::new(&server.name(), config).expect("an address");
    client.put("l", &pattern(2 << 20), &PutOptions::default()).expect("put");
    let error = client.get("l").expect_err("over the limit");
    assert_eq!(error.kind(), ErrorKind::Refused(herd_core::ErrorKind::TooLarge));
    client.put("l", &pattern(1 << 20), &PutOptions::default()).expect("put");
    let mut value = Vec::new();
    client.get_into("l", &mut value).expect("get");
    let memory = value.as_ptr();
    client.put("l", &pattern(70_000), &PutOptions::default()).expect("put");
    client.get_into("l", &mut value).expect("get");
    assert!(value == pattern(70_000));
    assert_eq!(value.as_ptr(), memory);
}

#[test]
fn threads_share_a_client() {
    let server = Server::start();
    let client = client(&server);
    std::thread::scope(|scope| {
        for thread in 0..8usize {
            let client = &client;
            scope.spawn(move || {
                for i in 0..50 {
                    let (key, value) = (format!("t{thread}"), pattern(thread * 40_000 + i));
                    client.put(&key, &value, &PutOptions::default()).expect("put");
                    assert!(client.get(&key).expect("get").value == value);
                }
            });
        }
    });
    assert!(server.node.accepted.load(SeqCst) <= 8);
}

#[test]
fn bad_keys_never_reach_a_node() {
    let client = Client::new("127.0.0.1:1", Config::default()).expect("an address");
    for key in ["", "default/", "/x", ".hidden/x", "bad name/x"] {
        let error = client.get(key).expect_err("bad");
        assert_eq!(error.kind(), ErrorKind::Refused(herd_core::ErrorKind::BadRequest), "{key}");
    }
    assert!(client.get("n".repeat(1025)).is_err());
    assert!(Client::new(" , ", Config::default()).is_err());
}

#[test]
fn another_protocol_is_told_at_once() {
    use std::io::Write;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound");
    let serving = std::thread::spawn(move || {
        for _ in 0..herd_client::limits::TRIES_MAX {
            let (mut stream, _) = listener.accept().expect("accepted");
            stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").expect("written");
        }
    });
    let client = Client::new(&address.to_string(), Config::default()).expect("an address");
    let error = client.get("x").expect_err("no herd");
    assert!(matches!(error.kind(), ErrorKind::BadReply | ErrorKind::Unreachable), "{error}");
    serving.join().expect("joined");
}
