//! Tests only: a small server of Herd's wire by PROTOCOL.md §1, one thread for each connection, that is strict about
//! what the lab's clients send (checksums, blocks, credit), and the clients' tests against it.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use crate::bulkrun::{self, BulkSpec};
use crate::churn::{self, ChurnSpec};
use crate::engine;
use crate::hist::Latencies;
use crate::proto::{Op, Proto};
use crate::spec::{SideSpec, Spec};
use crate::wire::{self, Header, flag, kind, tag, verb};

const COLLECTION: u64 = 21;
const SESSION: u32 = 5;

type Objects = Arc<Mutex<HashMap<Vec<u8>, Vec<u8>>>>;

/// What the server does wrong.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    /// Flips a bit of each body behind its checksums.
    Damage,
    /// Checksums are right, the bytes are not those that were put.
    Forge,
}

/// Serves until the test process ends.
fn start(fault: Fault) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let addr = listener.local_addr().expect("bound");
    let objects = Objects::default();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let objects = Arc::clone(&objects);
            thread::spawn(move || serve(stream, &objects, fault));
        }
    });
    addr
}

struct Frame {
    header: Header,
    head: Vec<u8>,
    body: Vec<u8>,
}

/// Reads one frame and checks all of it; `None` at the end of the connection.
fn read_frame(stream: &mut TcpStream) -> Option<Frame> {
    let mut bytes = vec![0; wire::HEADER_BYTES];
    stream.read_exact(&mut bytes).ok()?;
    let header = Header::decode(&bytes).expect("a good header").expect("whole");
    bytes.resize(header.body_start(), 0);
    stream.read_exact(&mut bytes[wire::HEADER_BYTES..]).ok()?;
    wire::check_start(&header, &bytes).expect("good checksums");
    let mut body = vec![0; header.body_len as usize];
    stream.read_exact(&mut body).ok()?;
    for (index, block) in body.chunks(wire::BLOCK_BYTES).enumerate() {
        assert_eq!(wire::crc32c(block), wire::block_crc(&header, &bytes, index), "block {index}");
    }
    assert!(!header.more() || body.len().is_multiple_of(wire::BLOCK_BYTES), "only the last frame may be uneven");
    let head = header.head(&bytes).to_vec();
    Some(Frame { header, head, body })
}

fn send(stream: &mut TcpStream, mut header: Header, head: &[u8], body: &[u8], fault: Fault) {
    let mut body = body.to_vec();
    if let (Fault::Forge, Some(last)) = (fault, body.last_mut()) {
        *last ^= 1;
    }
    header.body_len = u32::try_from(body.len()).expect("a frame's body");
    let crcs: Vec<u32> = body.chunks(wire::BLOCK_BYTES).map(wire::crc32c).collect();
    if let (Fault::Damage, Some(last)) = (fault, body.last_mut()) {
        *last ^= 1;
    }
    let mut out = Vec::new();
    wire::append_start(&mut out, header, head, &crcs);
    out.extend_from_slice(&body);
    // The client may have left; then its test fails, not this thread.
    let _ = stream.write_all(&out);
}

fn serve(mut stream: TcpStream, objects: &Objects, fault: Fault) {
    stream.set_nodelay(true).expect("a socket");
    let hello = read_frame(&mut stream).expect("a hello");
    assert_eq!(hello.header.kind, kind::HELLO);
    assert_eq!(wire::find_field(&hello.head, tag::VERSION), Some(&[1, 0][..]));
    let mut head = Vec::new();
    wire::append_field(&mut head, tag::SESSION, &SESSION.to_le_bytes());
    send(&mut stream, Header { kind: kind::WELCOME, ..Header::default() }, &head, &[], fault);
    while let Some(frame) = read_frame(&mut stream) {
        if frame.header.kind == kind::CREDIT {
            continue;
        }
        assert_eq!(frame.header.kind, kind::REQUEST);
        assert_eq!(frame.header.id >> 40, u64::from(SESSION));
        assert_eq!(frame.header.collection, wire::DEFAULT_COLLECTION);
        match frame.header.verb {
            verb::GET => get(&mut stream, &frame, objects, fault),
            verb::PUT => put(&mut stream, frame, objects),
            other => panic!("verb {other}"),
        }
    }
}

fn reply(asked: &Header) -> Header {
    let (verb, id) = (asked.verb, asked.id);
    Header { kind: kind::REPLY, verb, id, collection: COLLECTION, version: 1, ..Header::default() }
}

fn get(stream: &mut TcpStream, frame: &Frame, objects: &Objects, fault: Fault) {
    let name = wire::find_field(&frame.head, tag::NAME).expect("a name");
    let Some(object) = objects.lock().expect("no panics").get(name).cloned() else {
        return send(stream, Header { code: 1, ..reply(&frame.header) }, &[], &[], fault);
    };
    let (mut sent, mut granted) = (0, wire::FIRST_CREDIT_BYTES as usize);
    while sent == 0 || sent < object.len() {
        let end = object.len().min(sent + wire::FRAME_BODY_MAX);
        while end > granted {
            let credit = read_frame(stream).expect("credit");
            assert_eq!((credit.header.kind, credit.header.id), (kind::CREDIT, frame.header.id));
            granted = granted.saturating_add(usize::try_from(credit.header.length).expect("64 bits"));
        }
        let mut header = Header { length: object.len() as u64, ..reply(&frame.header) };
        if sent > 0 {
            header = Header { kind: kind::DATA, id: frame.header.id, offset: sent as u64, ..Header::default() };
        }
        header.flags = if end < object.len() { flag::MORE } else { 0 };
        send(stream, header, &[], &object[sent..end], fault);
        sent = end.max(1);
    }
}

fn put(stream: &mut TcpStream, frame: Frame, objects: &Objects) {
    let name = wire::find_field(&frame.head, tag::NAME).expect("a name").to_vec();
    let Frame { header: first, body: mut object, .. } = frame;
    let mut more = first.more();
    let mut granted = false;
    while more {
        if !granted && object.len() as u64 == wire::FIRST_CREDIT_BYTES {
            stream.set_read_timeout(Some(Duration::from_millis(30))).expect("a socket");
            assert!(stream.peek(&mut [0]).is_err(), "bytes beyond the credit");
            stream.set_read_timeout(None).expect("a socket");
            let credit = Header { kind: kind::CREDIT, id: first.id, length: wire::ALL, ..Header::default() };
            send(stream, credit, &[], &[], Fault::None);
            granted = true;
        }
        let data = read_frame(stream).expect("the rest of the body");
        assert_eq!((data.header.kind, data.header.id), (kind::DATA, first.id));
        assert_eq!(data.header.offset, object.len() as u64);
        object.extend_from_slice(&data.body);
        more = data.header.more();
    }
    assert_eq!(object.len() as u64, first.length);
    objects.lock().expect("no panics").insert(name, object);
    send(stream, reply(&first), &[], &[], Fault::None);
}

fn small(addr: SocketAddr, op: Op) -> Spec {
    let own = i32::try_from(std::process::id()).expect("pids fit an i32");
    Spec {
        chosen: Vec::new(),
        addr,
        proto: Proto::Herd,
        op,
        conns: 3,
        pipeline: 1,
        keys: 500,
        value_bytes: 256,
        rate_per_s: None,
        warm_ms: 20,
        run_ms: 100,
        sequential: false,
        fixed_reply: false,
        core: None,
        server_pids: vec![own],
        seed: 1,
        side: None,
        collection: None,
        mixed: false,
    }
}

fn load(addr: SocketAddr) {
    let outcome = engine::run(Spec { sequential: true, pipeline: 8, ..small(addr, Op::Set) }).expect("all stored");
    assert_eq!(outcome.ops, 500);
}

#[test]
fn engine_speaks_herds_wire() {
    let addr = start(Fault::None);
    let missing = engine::run(small(addr, Op::Get)).expect_err("nothing is stored yet");
    assert!(missing.to_string().contains("status 1"), "{missing}");
    load(addr);
    let mixed = Spec { mixed: true, pipeline: 3, ..small(addr, Op::Get) };
    assert!(engine::run(mixed).expect("right replies to gets and puts").ops > 100);
    for pipeline in [1, 50] {
        let outcome = engine::run(Spec { pipeline, ..small(addr, Op::Get) }).expect("right replies");
        assert!(outcome.ops > 100 && outcome.server_cpu_ns > 0, "{outcome:?}");
        assert!(outcome.ticks.iter().sum::<u64>() >= outcome.ops);
    }
}

#[test]
fn open_loop_keeps_its_rate_beside_large_transfers() {
    let addr = start(Fault::None);
    load(addr);
    let side = SideSpec { addr, proto: Proto::Herd, object_bytes: 9 << 20, gets_per_s: 20.0, puts_per_s: 10.0 };
    let spec = Spec { rate_per_s: Some(2_000.0), run_ms: 500, side: Some(side), ..small(addr, Op::Get) };
    let outcome = engine::run(spec).expect("right replies");
    // Of what was due in the window, however late a busy machine answered it.
    let mut answered = Latencies::new();
    answered.merge(&outcome.latencies);
    let rate = answered.count() as f64 / outcome.seconds;
    assert!((1_500.0..2_500.0).contains(&rate), "{rate} a second");
    assert!(outcome.side_done.0 > 2 && outcome.side_done.1 > 1, "{:?}", outcome.side_done);
    assert_eq!(outcome.unanswered, 0);
}

#[test]
fn engine_refuses_wrong_bytes() {
    for fault in [Fault::Damage, Fault::Forge] {
        let addr = start(fault);
        load(addr);
        let spec = Spec { run_ms: 500, ..small(addr, Op::Get) };
        let error = engine::run(spec).expect_err("the first reply is compared");
        assert!(error.to_string().contains("wrong reply"), "{error}");
    }
}

fn large(addr: SocketAddr, op: Op, object_bytes: usize) -> BulkSpec {
    let own = i32::try_from(std::process::id()).expect("pids fit an i32");
    BulkSpec { addr, proto: Proto::Herd, op, object_bytes, run_ms: 20, core: None, server_pids: vec![own] }
}

#[test]
fn bulk_keeps_credit_and_blocks() {
    let addr = start(Fault::None);
    for object_bytes in [1, 65_536, 1 << 20, (1 << 20) + 1, 4 << 20, (4 << 20) + 70_000, 9 << 20] {
        for op in [Op::Get, Op::Set] {
            let outcome = bulkrun::run(&large(addr, op, object_bytes)).expect("whole objects");
            assert!(outcome.bytes >= 2 * object_bytes as u64);
        }
    }
}

#[test]
fn bulk_refuses_wrong_bytes() {
    for (fault, said) in [(Fault::Damage, "is damaged"), (Fault::Forge, "wrong bytes")] {
        let error = bulkrun::run(&large(start(fault), Op::Get, 100_000)).expect_err("it is compared");
        assert!(error.to_string().contains(said), "{error}");
    }
}

#[test]
fn churn_finds_what_it_put() {
    let addr = start(Fault::None);
    let server_pid = i32::try_from(std::process::id()).expect("pids fit an i32");
    let doors = vec![Proto::Herd; 4];
    let spec = ChurnSpec { addr, doors, beside: false, keys: 20, run_s: 1, server_pid, core: None };
    let outcome = churn::run(&spec).expect("right replies");
    assert!(outcome.puts > 10 && outcome.hits > 0 && !outcome.resident_bytes.is_empty(), "{outcome:?}");
}
