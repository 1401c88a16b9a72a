//! Nodes that are told to stop: others lead what they led before they are gone, and no client of another node notices.

use crate::herds::{json, three_that_keep};
use crate::moving::{End, write_and_read};
use crate::node::{Node, herd, within};
use crate::silence::put;
use std::path::Path;
use std::process::{Child, Stdio};
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

/// `herd status --wait`, which asks that node.
fn waiting(node: &Node) -> Child {
    let mut command = herd();
    command.args(["status", "--wait"]).env("HERD_NODE", &node.addr);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("herd runs")
}

/// Whether it has ended, and how well.
fn ended(child: &mut Child) -> Option<bool> {
    child.try_wait().expect("it is ours").map(|status| status.success())
}

/// Of two copies one is at another node after 10 s: the herd is not whole for that.
#[test]
fn the_herd_is_waited_for_until_a_node_that_is_down_is_back_or_taken_out() {
    let mut nodes = three_that_keep(2, &ARGS, &[]);
    assert!((0..24).all(|number| put(&nodes[0].0, &format!("k{number}"), "v")));
    nodes[0].0.ok(&["status", "--wait"]);
    let addr = nodes[2].0.addr.clone();
    nodes[2].0.signal("-TERM");
    assert_eq!(nodes[2].0.wait(), Some(0));
    let mut waits = waiting(&nodes[0].0);
    let has_copies = || {
        let groups = json(&nodes[1].0, &["group", "ls", "--json"]);
        groups.as_array().expect("groups").iter().all(|group| group["has"] == 2)
    };
    assert!(within(PATIENCE, has_copies));
    std::thread::sleep(Duration::from_millis(1_500));
    assert_eq!(ended(&mut waits), None, "n3 is down");
    nodes[2].0 = again(2, &addr, nodes[2].1.path(), &nodes[1].0);
    assert!(within(PATIENCE, || ended(&mut waits) == Some(true)));
    let text = nodes[0].0.ok(&["status"]);
    assert!(text.contains("3 of 3 serving"), "{text}");

    nodes[2].0.signal("-KILL");
    nodes[2].0.wait();
    let mut waits = waiting(&nodes[0].0);
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(ended(&mut waits), None, "n3 is gone");
    nodes[0].0.ok(&["detach", "--now", "n3", "--yes"]);
    assert!(!nodes[0].0.ok(&["nodes"]).contains("n3"), "who was asked knows of it at once");
    assert!(within(PATIENCE, || ended(&mut waits) == Some(true)));
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
