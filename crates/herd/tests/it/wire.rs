//! Herd's wire against hostile and clumsy peers, frame by frame.

use crate::node::{Node, pattern};
use herd_core::ErrorKind;
use herd_core::collection::Class;
use herd_core::key::CollectionId;
use herd_core::limits::BLOCK_BYTES;
use herd_core::wire::{
    self, FLAG_BRIEF, FLAG_HEAD_ONLY, FLAG_MORE, Fields, HEADER_BYTES, Header, Kind, LENGTH_UNKNOWN, Status, Verb,
};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// A frame that came back: its header and the text of its error.
struct Answer {
    header: Header,
    error: String,
}

fn frame(header: Header, fields: &Fields<'_>, body: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    wire::encode_frame(&mut out, header, fields, body).expect("within the limits");
    out
}

fn request(verb: Verb, id: u64) -> Header {
    Header { collection: CollectionId::DEFAULT.0, ..Header::request(verb, id) }
}

/// A put of `length` bytes whose first frame has `body`, with more to come.
fn put_start(id: u64, name: &[u8], length: u64, body: &[u8]) -> Vec<u8> {
    let header = Header { length, flags: FLAG_MORE, ..request(Verb::Put, id) };
    frame(header, &Fields::named(name), body)
}

fn read_answer(socket: &mut TcpStream) -> Answer {
    let mut header = [0; HEADER_BYTES];
    socket.read_exact(&mut header).expect("answered");
    let header = Header::decode(&header).expect("a header");
    let mut rest = vec![0; header.middle_bytes() + header.body_len as usize];
    socket.read_exact(&mut rest).expect("whole");
    let fields = Fields::decode(&rest[..usize::from(header.head_len)]).expect("fields");
    Answer { header, error: fields.error.unwrap_or("").to_string() }
}

/// The whole frame of a reply that came.
fn read_bytes(socket: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    loop {
        let header = wire::parse_header(&bytes).expect("a header");
        let due = header.map_or(bytes.len() + 1, |header| header.frame_bytes());
        if bytes.len() == due {
            return bytes;
        }
        let at = bytes.len();
        bytes.resize(due, 0);
        socket.read_exact(&mut bytes[at..]).expect("answered");
    }
}

fn connect(node: &Node) -> TcpStream {
    let socket = node.connect();
    socket.set_nodelay(true).expect("set");
    socket
}

/// Sends `bytes` and expects a goodbye that says `why`, then the end.
fn expect_goodbye(node: &Node, bytes: &[u8], why: &str) {
    let mut socket = connect(node);
    socket.write_all(bytes).expect("sent");
    let answer = read_answer(&mut socket);
    assert_eq!(answer.header.kind, Kind::Goodbye, "{why}");
    assert!(answer.error.contains(why), "'{}' does not say '{why}'", answer.error);
    assert_eq!(socket.read(&mut [0; 8]).expect("closed"), 0);
}

fn expect_error(answer: &Answer, id: u64, kind: ErrorKind) {
    assert_eq!((answer.header.id, answer.header.status()), (id, Some(Status::Error(kind))), "{}", answer.error);
    assert!(!answer.error.is_empty());
}

#[test]
fn what_can_not_be_a_frame_is_told_and_closed() {
    let node = Node::start(&["--memory", "64m"]);
    let good = frame(request(Verb::Get, 1), &Fields::named(b"x"), &[]);
    let changed = |at: usize| {
        let mut bytes = good.clone();
        bytes[at] ^= 1;
        bytes
    };
    expect_goodbye(&node, &changed(9), "checksum");
    expect_goodbye(&node, &changed(HEADER_BYTES + 3), "checksum");
    expect_goodbye(&node, &[0xCE; 200], "checksum");
    // Lengths beyond the limits, with the right checksums: each is told before its bytes are there.
    let long = Header { body_len: 3 << 20, ..request(Verb::Put, 1) };
    expect_goodbye(&node, &long.encode(), "body");
    let long = Header { head_len: 60_000, ..request(Verb::Put, 1) };
    expect_goodbye(&node, &long.encode(), "head");
    let odd = Header { body_len: 5, flags: FLAG_MORE, ..request(Verb::Put, 1) };
    expect_goodbye(&node, &odd.encode(), "block");
    // Random bytes behind the magic, many times over, cost the node nothing that stays.
    for seed in 1..200 {
        let mut socket = connect(&node);
        let mut bytes = pattern(4096, seed);
        bytes[0] = 0xCE;
        socket.write_all(&bytes).expect("sent");
        let mut answer = Vec::new();
        socket.read_to_end(&mut answer).expect("told and closed");
        assert!(answer.len() < 1024, "{} bytes", answer.len());
    }
    assert!(node.ok(&["status"]).contains("objects"));
}

#[test]
fn a_reply_is_brief_where_that_was_asked_and_tells_all() {
    let node = Node::start(&["--memory", "64m"]);
    let mut socket = connect(&node);
    let brief = |verb: Verb, id: u64| Header { flags: FLAG_BRIEF, ..request(verb, id) };
    let mut ask = |header: Header, fields: &Fields<'_>, body: &[u8]| {
        socket.write_all(&frame(Header { length: body.len() as u64, ..header }, fields, body)).expect("sent");
        let bytes = read_bytes(&mut socket);
        let frame = wire::parse_frame(&bytes).expect("a frame").expect("whole");
        (*frame.header(), frame.body().expect("as it was sent").to_vec())
    };
    let name = |name: &'static str| Fields::named(name.as_bytes());
    // Small, nothing, and a body that is sent from its blocks; 65,536 bytes are one too many.
    for (id, (key, bytes, fits)) in
        (1..).zip([("small", 5, true), ("none", 0, true), ("large", 65_535, true), ("larger", 65_536, false)])
    {
        let value = pattern(bytes, 3);
        let (put, _) = ask(brief(Verb::Put, 2 * id), &name(key), &value);
        assert!(
            put.brief && put.status() == Some(Status::Ok) && put.version > 0 && put.ack() == (Class::Ram(1), 1),
            "{put:?}"
        );
        let (got, body) = ask(Header { length: LENGTH_UNKNOWN, ..brief(Verb::Get, 2 * id + 1) }, &name(key), &[]);
        assert_eq!((got.brief, got.id, got.version), (fits, 2 * id + 1, put.version), "{key}");
        assert_eq!((got.length, body == value), (bytes as u64, true), "{key}");
    }
    // Not asked for, the collection's id not known, a head to tell, an error to tell.
    assert!(!ask(request(Verb::Get, 20), &name("small"), &[]).0.brief);
    let by_name = Header { collection: CollectionId::BY_NAME.0, ..brief(Verb::Get, 21) };
    assert_eq!(ask(by_name, &name("small"), &[]).0.collection, CollectionId::DEFAULT.0);
    ask(brief(Verb::Put, 22), &Fields { flags: Some(7), ..name("flags") }, b"x");
    assert!(!ask(brief(Verb::Get, 23), &name("flags"), &[]).0.brief);
    assert!(!ask(Header { flags: FLAG_BRIEF | FLAG_HEAD_ONLY, ..brief(Verb::Get, 24) }, &name("small"), &[]).0.brief);
    let (missing, _) = ask(brief(Verb::Get, 25), &name("missing"), &[]);
    assert_eq!((missing.brief, missing.status()), (false, Some(Status::Error(ErrorKind::NotFound))));
    assert!(ask(brief(Verb::Remove, 26), &name("small"), &[]).0.brief);
    // A node that gets one is owed nothing and says nothing.
    let stray = Header::reply_to(&brief(Verb::Get, 27), Status::Ok);
    let mut socket = connect(&node);
    socket.write_all(&frame(stray, &Fields::default(), &[])).expect("sent");
    socket.write_all(&frame(brief(Verb::Get, 28), &name("none"), &[])).expect("sent");
    let next = wire::parse_header(&read_bytes(&mut socket)).expect("a header").expect("whole");
    assert_eq!((next.id, next.brief), (28, true));
}

#[test]
fn a_body_that_is_not_as_it_was_announced_is_not_stored() {
    let node = Node::start(&["--memory", "64m"]);
    let block = vec![7; BLOCK_BYTES];
    let data = |id: u64, offset: u64, more: bool| frame(Header::data(id, offset, more), &Fields::default(), &block);
    let mut socket = connect(&node);
    // A gap, a frame twice, too much, too little: each ends its request, not the connection.
    let faults: [(&[u8], u64, Vec<u8>); 4] = [
        (b"gap", 3 << 16, data(1, 2 << 16, true)),
        (b"twice", 3 << 16, data(2, 0, true)),
        (b"long", 1 << 16, data(3, 1 << 16, false)),
        (b"short", 3 << 16, data(4, 1 << 16, false)),
    ];
    for (id, (name, length, second)) in (1..).zip(faults) {
        socket.write_all(&[put_start(id, name, length, &block), second].concat()).expect("sent");
        expect_error(&read_answer(&mut socket), id, ErrorKind::BadRequest);
        assert_eq!(node.herd(&["stat", std::str::from_utf8(name).expect("text")]).status.code(), Some(1));
    }
    // A block that was damaged on the way.
    let mut damaged = data(5, 1 << 16, false);
    *damaged.last_mut().expect("bytes") ^= 1;
    socket.write_all(&[put_start(5, b"damaged", 2 << 16, &block), damaged].concat()).expect("sent");
    expect_error(&read_answer(&mut socket), 5, ErrorKind::BadChecksum);
    let mut small = frame(Header { length: 5, ..request(Verb::Put, 6) }, &Fields::named(b"damaged"), b"small");
    *small.last_mut().expect("bytes") ^= 1;
    socket.write_all(&small).expect("sent");
    expect_error(&read_answer(&mut socket), 6, ErrorKind::BadChecksum);
    // Data nobody asked for is dropped; the connection serves on.
    socket.write_all(&[data(99, 0, true), data(99, 1 << 16, false)].concat()).expect("sent");
    socket.write_all(&frame(request(Verb::Get, 7), &Fields::named(b"damaged"), &[])).expect("sent");
    expect_error(&read_answer(&mut socket), 7, ErrorKind::NotFound);
}

#[test]
fn a_body_without_end_is_refused_while_it_comes() {
    let node = Node::start(&["--memory", "16m"]);
    let mut socket = connect(&node);
    let block = vec![7; BLOCK_BYTES];
    socket.write_all(&put_start(1, b"endless", LENGTH_UNKNOWN, &block)).expect("sent");
    let mut offset = BLOCK_BYTES as u64;
    let answer = loop {
        // What was granted at the start, then what each credit allows.
        for _ in 0..16 {
            socket.write_all(&frame(Header::data(1, offset, true), &Fields::default(), &block)).expect("sent");
            offset += BLOCK_BYTES as u64;
        }
        socket.set_read_timeout(Some(Duration::from_millis(20))).expect("set");
        if socket.peek(&mut [0]).is_ok() {
            socket.set_read_timeout(Some(Duration::from_secs(5))).expect("set");
            let answer = read_answer(&mut socket);
            if answer.header.kind == Kind::Reply {
                break answer;
            }
        }
        assert!(offset < 64 << 20, "never refused");
    };
    expect_error(&answer, 1, ErrorKind::Full);
    assert_eq!(node.herd(&["stat", "endless"]).status.code(), Some(1));
    node.ok(&["put", "small", "/etc/hostname"]);
}

#[test]
fn too_many_requests_on_one_connection_are_busy() {
    let node = Node::start(&["--memory", "64m"]);
    let mut socket = connect(&node);
    let wait = |id: u64| {
        let header = Header { code: wire::CODE_NEWER, time_ms: 60_000, ..request(Verb::Get, id) };
        frame(header, &Fields::named(format!("w{id}").as_bytes()), &[])
    };
    let waits: Vec<u8> = (1..=2_000).flat_map(wait).collect();
    socket.write_all(&waits).expect("sent");
    let answer = read_answer(&mut socket);
    assert_eq!(answer.header.status(), Some(Status::Error(ErrorKind::Busy)), "{}", answer.error);
}

#[test]
fn a_frame_that_stops_midway_ends_in_bounded_time() {
    let node = Node::start(&["--memory", "64m"]);
    let begin = Instant::now();
    let mut socket = connect(&node);
    socket.set_read_timeout(Some(Duration::from_secs(40))).expect("set");
    socket.write_all(&put_start(1, b"half", 10 << 20, &vec![7; BLOCK_BYTES])[..10_000]).expect("sent");
    assert_eq!(read_answer(&mut socket).header.kind, Kind::Credit);
    assert_eq!(socket.read(&mut [0; 8]).expect("closed"), 0);
    assert!(begin.elapsed() < Duration::from_secs(35), "{:?}", begin.elapsed());
}
