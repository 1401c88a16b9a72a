//! Nodes that are told to stop: others lead what they led before they are gone, and no client of another node notices.

use crate::herds::{json, three_that_keep};
use crate::moving::{End, write_and_read};
use crate::node::{Node, within};
use crate::silence::put;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const ARGS: [&str; 4] = ["--memory", "96m", "--threads", "1"];
/// A busy machine takes its time.
const PATIENCE: Duration = Duration::from_secs(40);

/// The node with that number again, which is of the herd of another one.
fn again(number: usize, addr: &str, dir: &Path, other: &Node) -> Node {
    let (name, data) = (format!("n{}", number + 1), dir.to_str().expect("text"));
    let joins = if number == 0 { vec![] } else { vec!["--join", &other.addr] };
    Node::at(addr, &[&["--name", &name, "--data", data][..], &joins, &ARGS].concat())
}

/// Ends a node and starts it again while clients of the others set and get; how long its end took.
fn restart(nodes: &mut [(Node, TempDir)], number: usize, round: u64) -> Duration {
    let others: Vec<(u64, String)> = (0..3)
        .filter(|other| *other != number)
        .map(|other| (round * 10 + other as u64, nodes[other].0.addr.clone()))
        .collect();
    let (ends, done) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let start = |(own, addr): (u64, String)| {
            let (ends, done) = (&ends, &done);
            scope.spawn(move || write_and_read(&addr, own, ends, done))
        };
        let writers: Vec<_> = others.into_iter().map(start).collect();
        let ends = End(&ends);
        let goes_on = |more: u64| {
            let before = done.load(Relaxed);
            assert!(
                within(PATIENCE, || done.load(Relaxed) > before + more || writers.iter().any(|it| it.is_finished()))
            );
        };
        goes_on(400);
        let addr = nodes[number].0.addr.clone();
        let since = Instant::now();
        nodes[number].0.signal("-TERM");
        assert_eq!(nodes[number].0.wait(), Some(0));
        let took = since.elapsed();
        goes_on(400);
        let other = &nodes[(number + 1) % 3].0;
        let node = again(number, &addr, nodes[number].1.path(), other);
        nodes[number].0 = node;
        nodes[number].0.ok(&["status", "--wait", "--timeout", "60s"]);
        goes_on(400);
        drop(ends);
        for writer in writers {
            assert!(writer.join().expect("no client failed") > 0);
        }
        took
    })
}

#[test]
fn nodes_are_restarted_one_after_the_other_and_clients_of_the_others_notice_nothing() {
    let mut nodes = three_that_keep(2, &ARGS, &[]);
    assert!((0..24).all(|number| put(&nodes[0].0, &format!("k{number}"), "v")));
    // The first has the warden, and is the last.
    for (round, number) in [2, 1, 0].into_iter().enumerate() {
        let took = restart(&mut nodes, number, round as u64);
        assert!(took < Duration::from_secs(5), "{took:?}");
    }
    nodes[1].0.ok(&["fsck"]);
    let names = json(&nodes[1].0, &["nodes", "--json"]);
    assert!(names.as_array().expect("nodes").iter().all(|node| node["state"] == "serving"), "{names}");
}
