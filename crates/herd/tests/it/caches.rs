//! A herd that evicts keeps one copy of each object. When the node that has it dies, stands still, drains or comes, its
//! share is served by others, empty, and nobody reads what was there before something newer.

use crate::node::{Node, within};
use crate::silence::{get, put, value};
use herd_core::limits::{CACHE_LEASE_MS, LEASE_MS};
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const PATIENCE: Duration = Duration::from_secs(30);
const KEYS: u64 = 48;

/// A node of a herd that evicts, and its directory.
fn start(name: &str, first: Option<&Node>) -> (Node, TempDir) {
    let dir = tempfile::tempdir().expect("a directory");
    let data = dir.path().to_str().expect("text");
    let herd = first.map_or(vec!["--evict"], |first| vec!["--join", &first.addr]);
    let node = [&["--name", name, "--data", data, "--memory", "64m", "--threads", "1"][..], &herd].concat();
    (Node::start(&node), dir)
}

/// Three of them, that hold an object each of these names.
fn three() -> (Vec<(Node, TempDir)>, Vec<String>) {
    let mut nodes = vec![start("n1", None)];
    for name in ["n2", "n3"] {
        let next = start(name, Some(&nodes[0].0));
        nodes.push(next);
    }
    crate::herds::all_serve(std::slice::from_ref(&nodes[0].0), &["n1", "n2", "n3"]);
    let names: Vec<String> = (0..KEYS).map(|number| format!("k{number}")).collect();
    assert!(names.iter().all(|name| within(PATIENCE, || put(&nodes[0].0, name, "old"))));
    assert!(names.iter().all(|name| get(&nodes[1].0, name) == "old"));
    (nodes, names)
}

fn groups(at: &Node, name: &str) -> Option<u64> {
    let nodes: Value = serde_json::from_str(&at.ok(&["nodes", "--json"])).expect("JSON");
    nodes.as_array().expect("a list").iter().find(|node| node["name"] == name)?["groups"].as_u64()
}

/// Sets its objects to a number that rises, and reads each: it is what was set, or gone. Any other answer is a failure.
/// How many were gone.
fn set_and_get(addr: &str, own: u64, ends: &AtomicBool, done: &AtomicU64) -> u64 {
    let mut socket = BufReader::new(TcpStream::connect(addr).expect("the node listens"));
    let (mut round, mut gone) = (0, 0);
    while !ends.load(Relaxed) {
        round += 1;
        for key in 0..KEYS {
            let name = format!("w{own}.{key}");
            let mut said = String::new();
            let request = format!("set {name} 0 0 8\r\n{round:08}\r\nget {name}\r\n");
            socket.get_mut().write_all(request.as_bytes()).expect("sent");
            socket.read_line(&mut said).expect("it answers");
            assert_eq!(said, "STORED\r\n", "{name}");
            said.clear();
            socket.read_line(&mut said).expect("it answers");
            if said != "END\r\n" {
                assert!(said.starts_with("VALUE "), "{name}: {said}");
                socket.read_line(&mut said).expect("it answers");
                socket.read_line(&mut said).expect("it answers");
            }
            let is_gone = said == "END\r\n";
            assert!(is_gone || said.contains(&format!("{round:08}\r\n")), "{name} is not {round}: {said}");
            gone += u64::from(is_gone);
            done.fetch_add(1, Relaxed);
        }
    }
    gone
}

#[test]
fn what_a_killed_node_had_is_served_by_others_at_once_and_by_itself_when_it_is_back() {
    let (mut nodes, names) = three();
    let (third, dir) = nodes.pop().expect("three");
    let addr = third.addr.clone();
    let since = Instant::now();
    third.signal("-KILL");
    let [first, second] = [0, 1].map(|at| &nodes[at].0);
    assert!(names.iter().all(|name| within(PATIENCE, || put(first, name, "new"))));
    let took = since.elapsed();
    assert!(took < Duration::from_millis(LEASE_MS + 1_000), "{took:?}");
    assert!(names.iter().all(|name| get(second, name) == "new"));
    assert_eq!(first.ok(&["status"]).matches("lost").count(), 0, "what a cache forgets is no loss");
    drop(third);
    let data = dir.path().to_str().expect("text");
    let third = Node::start(&[
        "--data",
        data,
        "--name",
        "n3",
        "--memory",
        "64m",
        "--threads",
        "1",
        "--listen",
        &addr,
        "--join",
        &first.addr,
    ]);
    // By what each of them has heard: who has not reads what the one before it keeps.
    let has_share = |at: &Node| groups(at, "n3") == Some(8);
    assert!(within(PATIENCE, || [first, second, &third].into_iter().all(has_share)), "{:?}", groups(&third, "n3"));
    let of_all: Vec<String> = names.iter().map(|name| get(&third, name)).collect();
    assert!(of_all.iter().all(|value| value == "new" || value == "END"), "{of_all:?}");
    let kept = of_all.iter().filter(|value| *value == "new").count();
    assert!(kept > names.len() / 2 && kept < names.len(), "its share came to it, empty, and nothing else: {kept}");
}

#[test]
fn a_node_that_stands_still_answers_nothing_when_others_have_what_it_had() {
    let (nodes, names) = three();
    let [first, second, third] = [0, 1, 2].map(|at| &nodes[at].0);
    let asked: Vec<_> = names.iter().map(|name| (name, third.connect(), third.connect())).collect();
    for mut socket in asked.iter().flat_map(|(_, get, set)| [get, set]) {
        // Its door is settled.
        socket.write_all(b"mn\r\n").expect("sent");
        std::io::Read::read_exact(&mut socket, &mut [0; 4]).expect("it answers");
    }
    third.signal("-STOP");
    let since = Instant::now();
    for (name, get, set) in &asked {
        let (mut get, mut set) = (get, set);
        write!(get, "get {name}\r\n").expect("it fits into the socket");
        write!(set, "set {name} 0 0 4\r\nlate\r\n").expect("it fits into the socket");
    }
    for name in &names {
        assert!(within(PATIENCE, || put(first, name, "new")), "{name} is written without the third node");
    }
    let took = since.elapsed();
    assert!(took > Duration::from_millis(CACHE_LEASE_MS - 1_000), "its lease was not waited for: {took:?}");
    assert!(took < Duration::from_millis(CACHE_LEASE_MS + 5_000), "{took:?}");
    assert!(names.iter().all(|name| get(second, name) == "new"));
    third.signal("-CONT");
    for (name, get, set) in asked {
        let mut said = String::new();
        BufReader::new(set).read_line(&mut said).expect("it answers");
        assert!(said == "STORED\r\n" || said.starts_with("SERVER_ERROR"), "{name}: {said}");
        let got = value(BufReader::new(get));
        assert!(["new", "late", "END"].contains(&got.as_str()) || got.starts_with("SERVER_ERROR"), "{name}: {got}");
        // A set that was acknowledged is what is read from then on, wherever it is asked, or the object is gone.
        let now = self::get(second, name);
        let may = if said == "STORED\r\n" { ["late", "END"] } else { ["new", "late"] };
        assert!(may.contains(&now.as_str()), "{name}: {said}, and then {now}");
    }
    assert!(within(PATIENCE, || groups(first, "n3") == Some(8)), "it gets its share again");
}

#[test]
fn what_is_of_class_cache_goes_from_nodes_that_drain_and_to_those_that_come_and_no_request_fails() {
    let (nodes, _) = three();
    let [first, second, third] = [0, 1, 2].map(|at| &nodes[at].0);
    let (ends, done) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let (ends, done) = (&ends, &done);
        let addrs = [first, second, third].map(|node| node.addr.clone());
        let ask = |(own, addr): (usize, String)| scope.spawn(move || set_and_get(&addr, own as u64, ends, done));
        let clients: Vec<_> = addrs.into_iter().enumerate().map(ask).collect();
        let _ends = crate::moving::End(ends);
        assert!(within(PATIENCE, || done.load(Relaxed) > 2_000));
        second.ok(&["drain", "n3"]);
        assert_eq!(groups(first, "n3"), Some(0));
        let before = done.load(Relaxed);
        assert!(within(PATIENCE, || done.load(Relaxed) > before + 2_000));
        first.ok(&["drain", "n3", "--cancel"]);
        assert!(within(PATIENCE, || groups(first, "n3") == Some(8)), "it gets its share again");
        let before = done.load(Relaxed);
        assert!(within(PATIENCE, || done.load(Relaxed) > before + 2_000));
        ends.store(true, Relaxed);
        let gone: u64 = clients.into_iter().map(|client| client.join().expect("no client failed")).sum();
        // Each set is read at once: only what went between the two is gone.
        assert!(gone < 24, "{gone}");
    });
}
