//! Herd's own client while nodes are restarted and killed: no request fails, and each is done once.

use crate::herds::three_that_keep;
use crate::moving::End;
use crate::node::{Node, within};
use herd_client::blocking::Client;
use herd_client::{Condition, Config, PutOptions};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tempfile::TempDir;

const ARGS: [&str; 4] = ["--memory", "96m", "--threads", "1"];
/// A busy machine takes its time.
const PATIENCE: Duration = Duration::from_secs(40);
/// Counters and objects of each client.
const KEYS: u64 = 20;

/// The node with that number again, which is of the herd of another one.
fn again(number: usize, addr: &str, dir: &Path, other: &Node) -> Node {
    let (name, data) = (format!("n{}", number + 1), dir.to_str().expect("text"));
    let joins = if number == 0 { vec![] } else { vec!["--join", &other.addr] };
    Node::at(addr, &[&["--name", &name, "--data", data][..], &joins, &ARGS].concat())
}

/// Counts, appends, puts and removes, until it is told to end. Any failure is one of the test; each counter is exact.
fn count_and_put(addrs: &str, own: u64, ends: &AtomicBool, done: &AtomicU64) {
    let client = Client::new(addrs, Config::default()).expect("addresses");
    let nothing: [&[u8]; 0] = [];
    let mut versions = vec![0; KEYS as usize];
    let mut round = 0u64;
    while !ends.load(Relaxed) {
        for key in 0..KEYS {
            let (counter, object) = (format!("c{own}.{key}"), format!("o{own}.{key}"));
            let answer = client.execute(&counter, "fetch-and-add", &["1"], Condition::None).expect("counted");
            assert_eq!(answer.value, round.to_string().as_bytes(), "{counter} is counted once each time");
            let value = format!("{round}:").repeat(if key == 0 { 40_000 } else { 20 });
            let condition = if round == 0 { Condition::IfAbsent } else { Condition::IfVersion(versions[key as usize]) };
            let options = PutOptions { condition, ..PutOptions::default() };
            versions[key as usize] = client.put(&object, value.as_bytes(), &options).expect("put").version;
            client.execute(format!("a{own}"), "append", &["x"], Condition::None).expect("appended");
            assert_eq!(client.get(&object).expect("read").value, value.as_bytes());
            done.fetch_add(4, Relaxed);
        }
        let list = format!("l{own}");
        client.execute(&list, "list-push", &["a", "b"], Condition::None).expect("pushed");
        assert_eq!(client.execute(&list, "list-pop", &nothing, Condition::None).expect("popped").value, b"a");
        client.remove(&list, Condition::None).expect("removed, as it is there");
        assert_eq!(client.get(format!("a{own}")).expect("read").value.len() as u64, (round + 1) * KEYS);
        round += 1;
    }
    assert!(round > 0);
}

/// Has clients count while a node ends, by that signal, and is started again.
fn while_it_ends(nodes: &mut [(Node, TempDir)], number: usize, round: u64, signal: &str) {
    let addrs: Vec<String> = nodes.iter().map(|node| node.0.addr.clone()).collect();
    let (ends, done) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let start = |own: u64| {
            let (ends, done) = (&ends, &done);
            // Each is given the nodes in another order, so that some are at the one that ends.
            let mut addrs = addrs.clone();
            addrs.rotate_left(own as usize % 3);
            scope.spawn(move || count_and_put(&addrs.join(","), round * 10 + own, ends, done))
        };
        let clients: Vec<_> = (0..3).map(start).collect();
        let ends = End(&ends);
        let goes_on = |more: u64| {
            let before = done.load(Relaxed);
            let is_over = || clients.iter().any(|it| it.is_finished());
            assert!(within(PATIENCE, || done.load(Relaxed) > before + more || is_over()));
        };
        goes_on(800);
        nodes[number].0.signal(signal);
        nodes[number].0.wait();
        goes_on(800);
        let other = &nodes[(number + 1) % 3].0;
        let node = again(number, &addrs[number], nodes[number].1.path(), other);
        nodes[number].0 = node;
        nodes[number].0.ok(&["status", "--wait", "--timeout", "60s"]);
        goes_on(800);
        drop(ends);
        for client in clients {
            client.join().expect("no request failed");
        }
    });
}

#[test]
fn nodes_are_restarted_one_after_the_other_and_no_request_of_the_client_fails() {
    let mut nodes = three_that_keep(3, &ARGS, &[]);
    // The first has the warden, and is the last.
    for (round, number) in [2, 1, 0].into_iter().enumerate() {
        while_it_ends(&mut nodes, number, round as u64, "-TERM");
    }
    nodes[1].0.ok(&["fsck"]);
}

#[test]
fn nodes_are_killed_and_no_request_of_the_client_fails() {
    let mut nodes = three_that_keep(3, &ARGS, &[]);
    for (round, number) in [2, 1, 2].into_iter().enumerate() {
        while_it_ends(&mut nodes, number, round as u64, "-KILL");
    }
    nodes[0].0.ok(&["fsck"]);
}
