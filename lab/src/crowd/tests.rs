//! Tests only: the crowd against small servers of memcached text in threads, sound and faulty.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use crate::crowd::opening::read_welcome;
use crate::crowd::*;
use crate::wire::{self, Header, kind, tag};

type Objects = Arc<Mutex<HashMap<String, Vec<u8>>>>;

/// What a server does to the reply of a get that found something: sees how many there were on its connection.
type Fault = fn(usize, &mut Vec<u8>) -> bool;

const SOUND: Fault = |_, _| true;

/// A server of memcached text, a thread for each connection, until the test process ends. What it holds, too.
fn start(fault: Fault) -> (SocketAddr, Objects) {
    let listener = sys::listen_loopback().expect("loopback");
    let (addr, objects) = (listener.local_addr().expect("bound"), Objects::default());
    let shared = Arc::clone(&objects);
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let objects = Arc::clone(&shared);
            // A client that left ends the thread, not the test.
            thread::spawn(move || serve(&stream, &objects, fault));
        }
    });
    (addr, objects)
}

fn serve(stream: &TcpStream, objects: &Objects, fault: Fault) -> Option<()> {
    stream.set_nodelay(true).ok()?;
    let mut reader = BufReader::new(stream);
    let (mut line, mut gets) = (String::new(), 0);
    while reader.read_line(&mut line).ok()? > 0 {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let found = objects.lock().expect("no panics").get(words[1]).cloned();
        let reply = match (words[0], found) {
            ("get", None) => b"END\r\n".to_vec(),
            ("get", Some(mut value)) => {
                gets += 1;
                if !fault(gets, &mut value) {
                    return None;
                }
                let head = format!("VALUE {} 0 {}\r\n", words[1], value.len());
                [head.as_bytes(), &value, b"\r\nEND\r\n"].concat()
            }
            _ => {
                let mut value = vec![0; words[4].parse::<usize>().expect("a length") + 2];
                reader.read_exact(&mut value).ok()?;
                value.truncate(value.len() - 2);
                objects.lock().expect("no panics").insert(words[1].to_owned(), value);
                b"STORED\r\n".to_vec()
            }
        };
        (&mut &*stream).write_all(&reply).ok()?;
        line.clear();
    }
    None
}

fn small(servers: Vec<SocketAddr>) -> CrowdSpec {
    CrowdSpec {
        servers,
        proto: Proto::Memcached,
        conns: 7,
        object_bytes: 20_000,
        objects: 9,
        places: Vec::new(),
        op: Op::Get,
        collection: None,
        store: true,
        rate_per_s: None,
        warm_ms: 20,
        run_ms: 200,
        core: None,
        server_pids: vec![i32::try_from(std::process::id()).expect("pids fit an i32")],
        awake_pid: None,
        seed: 1,
    }
}

fn latencies(outcome: &CrowdOutcome) -> Latencies {
    let mut latencies = Latencies::new();
    latencies.merge(&outcome.latencies);
    latencies
}

#[test]
fn objects_are_written_again_where_they_are_placed() {
    let (servers, held): (Vec<_>, Vec<_>) = (0..2).map(|_| start(SOUND)).unzip();
    let spec = CrowdSpec { op: Op::Set, objects: 3, places: vec![1, 0, 1], ..small(servers) };
    let outcome = run(&spec).expect("right replies");
    assert!(outcome.server_replies.iter().all(|&replies| replies > 10), "{outcome:?}");
    assert!(outcome.bytes.abs_diff(outcome.replies * 20_000) <= 7 * 20_000, "{outcome:?}");
    assert_eq!(held.iter().map(|held| held.lock().expect("no panics").len()).collect::<Vec<_>>(), [1, 2]);
}

#[test]
fn closed_loop_over_several_servers() {
    let (servers, held): (Vec<_>, Vec<_>) = (0..3).map(|_| start(SOUND)).unzip();
    let outcome = run(&small(servers)).expect("right replies");
    assert!(outcome.server_replies.iter().all(|&replies| replies > 10), "{outcome:?}");
    assert_eq!(outcome.replies, outcome.server_replies.iter().sum::<u64>());
    // What is under way at the window's two ends counts in bytes, not in replies: at most one object each.
    assert!(outcome.bytes.abs_diff(outcome.replies * 20_000) <= 7 * 20_000, "{outcome:?}");
    assert!((0.2..2.0).contains(&outcome.seconds) && outcome.connect_ms > 0.0);
    assert!(outcome.server_cpu_ns > 0 && outcome.client_cpu_ns > 0 && outcome.unanswered == 0);
    assert!(latencies(&outcome).count().abs_diff(outcome.replies) <= 7);
    for (server, held) in held.iter().enumerate() {
        let held = held.lock().expect("no panics");
        let mut names: Vec<&str> = held.keys().map(String::as_str).collect();
        names.sort_unstable();
        let wanted = [0, 3, 6].map(|more| format!("lab-crowd-{}", server + more));
        assert_eq!(names, wanted.each_ref().map(String::as_str));
        assert!(held.values().all(|value| *value == Source::new(20_000).bytes));
    }
}

#[test]
fn open_loop_keeps_its_rate_and_charges_stalls() {
    let (addr, _) = start(SOUND);
    let spec = CrowdSpec { rate_per_s: Some(1_000.0), run_ms: 500, ..small(vec![addr]) };
    let outcome = run(&spec).expect("right replies");
    // Of what was due in the window, however late a busy machine answered it.
    let due = latencies(&outcome).count();
    assert!((350..650).contains(&due), "{due} were due");
    assert_eq!(outcome.unanswered, 0);
    let stalling: Fault = |gets, _| {
        thread::sleep(Duration::from_millis(if gets == 5 { 200 } else { 0 }));
        true
    };
    let spec = CrowdSpec { conns: 1, rate_per_s: Some(200.0), ..small(vec![start(stalling).0]) };
    let stalled = latencies(&run(&CrowdSpec { warm_ms: 0, run_ms: 500, ..spec }).expect("right replies"));
    // Some 40 were due while the only connection was busy for 200 ms: they waited half of it each.
    assert!(stalled.percentile_us(80.0) > 50_000.0, "{} us", stalled.percentile_us(80.0));
}

#[test]
fn large_objects_by_few_connections() {
    let (addr, _) = start(SOUND);
    let spec = CrowdSpec { object_bytes: 9 << 20, objects: 2, conns: 2, ..small(vec![addr]) };
    assert!(run(&spec).expect("right replies").bytes > 9 << 20);
}

#[test]
fn wrong_replies_end_the_run() {
    let faults: [(Fault, &str); 4] = [
        (|gets, _| gets < 5, "closed the connection"),
        (
            |gets, value| {
                value.truncate(20_000 - gets / 5);
                true
            },
            "where 20000 bytes were stored",
        ),
        (
            |gets, value| {
                value.resize(20_000 + gets / 5, b'x');
                true
            },
            "where 20000 bytes were stored",
        ),
        (
            |_, value| {
                value[19_999] ^= 1;
                true
            },
            "wrong bytes in the body",
        ),
    ];
    for (fault, said) in faults {
        let (addr, _) = start(fault);
        let error = run(&small(vec![addr])).expect_err(said).to_string();
        assert!(error.contains(said) && error.contains(&addr.to_string()), "{error}");
    }
    let error = run(&CrowdSpec { store: false, ..small(vec![start(SOUND).0]) }).expect_err("nothing there");
    assert!(error.to_string().contains("found: false"), "{error}");
}

#[test]
fn a_server_that_is_not_there_is_named() {
    let gone = TcpListener::bind("127.0.0.1:0").and_then(|bound| bound.local_addr()).expect("loopback");
    let error = run(&small(vec![start(SOUND).0, gone])).expect_err("nobody listens").to_string();
    assert!(error.contains(&gone.to_string()) && error.contains("0 to it were open"), "{error}");
}

#[test]
fn welcomes_are_read_whole_and_checked() {
    let mut head = Vec::new();
    wire::append_field(&mut head, tag::SESSION, &77u32.to_le_bytes());
    let mut welcome = Vec::new();
    wire::append_start(&mut welcome, Header { kind: kind::WELCOME, ..Header::default() }, &head, &[]);
    for cut in 0..welcome.len() {
        assert_eq!(read_welcome(&welcome[..cut]), Ok(None));
    }
    assert_eq!(read_welcome(&welcome), Ok(Some(77)));
    *welcome.last_mut().expect("not empty") ^= 1;
    assert!(read_welcome(&welcome).is_err());
}

#[test]
fn specifications_are_checked() {
    let good = small(vec!["127.0.0.1:1".parse().expect("an address")]);
    assert!(good.check().is_ok());
    let four = || vec![good.servers[0]; 4];
    for bad in [
        CrowdSpec { servers: vec![], ..good.clone() },
        CrowdSpec { servers: vec!["[::1]:1".parse().expect("an address")], ..good.clone() },
        CrowdSpec { servers: four(), conns: 3, ..good.clone() },
        CrowdSpec { servers: four(), objects: 3, ..good.clone() },
        CrowdSpec { conns: 8_193, ..good.clone() },
        CrowdSpec { object_bytes: 511, ..good.clone() },
        CrowdSpec { proto: Proto::Null, ..good.clone() },
        CrowdSpec { proto: Proto::Etcd, ..good.clone() },
        CrowdSpec { rate_per_s: Some(0.0), ..good.clone() },
    ] {
        assert!(bad.check().is_err(), "{bad:?}");
    }
    let spread = CrowdSpec { servers: four(), ..good.clone() };
    assert_eq!(spread.objects_by_server().iter().map(Vec::len).collect::<Vec<_>>(), [3, 2, 2, 2]);
    let placed = CrowdSpec { places: vec![3, 3, 0, 1, 2, 9, 0, 0, 3], ..spread };
    assert_eq!(placed.objects_by_server(), [vec![2, 6, 7], vec![3], vec![4], vec![0, 1, 8]]);
}
