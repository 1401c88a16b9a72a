//! What a node's log tells of its herd: who goes and comes, what takes no writes, who is refused.

use crate::herds::all_serve;
use crate::node::{Node, herd, within};
use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

/// Nodes are told of after a second, and links made anew within another.
const SOON: Duration = Duration::from_secs(20);

/// A node of a herd, whose directory and log are its own.
fn member(dir: &Path, name: &str, more: &[&str]) -> Node {
    let data = dir.join(name);
    let data = data.to_str().expect("text");
    let args = ["--memory", "64m", "--threads", "1", "--name", name, "--data", data];
    Node::with_log(&[&args, more].concat(), &dir.join(format!("{name}.log")))
}

fn three(dir: &Path) -> [Node; 3] {
    let first = member(dir, "n1", &[]);
    let join = ["--join", &first.addr];
    let others = [member(dir, "n2", &join), member(dir, "n3", &join)];
    let [second, third] = others;
    let nodes = [first, second, third];
    all_serve(&nodes, &["n1", "n2", "n3"]);
    nodes
}

/// The lines of a log that hold all these parts.
fn lines(dir: &Path, name: &str, parts: &[&str]) -> Vec<String> {
    let log = fs::read_to_string(dir.join(format!("{name}.log"))).expect("a log");
    log.lines().filter(|line| parts.iter().all(|part| line.contains(part))).map(str::to_owned).collect()
}

fn told(dir: &Path, name: &str, parts: &[&str]) {
    assert!(within(SOON, || !lines(dir, name, parts).is_empty()), "{parts:?}: {:#?}", lines(dir, name, &[]));
}

#[test]
fn the_log_tells_in_one_line_who_goes_and_comes_and_what_that_stops() {
    let dir = tempfile::tempdir().expect("a directory");
    let dir = dir.path();
    let [first, second, third] = three(dir);
    first.feed(&["put", "a", "-"], b"1");
    let at = third.addr.clone();
    third.signal("-STOP");
    // Each finds it out by itself: one that has not yet would have nothing to tell when it is back.
    for name in ["n1", "n2"] {
        told(dir, name, &["warn: node n3 (", &at, ") is out of reach"]);
    }
    told(dir, "n1", &["24 groups (0/0, 0/1, 0/2, 0/3 and 20 more) take no writes: n3 can't be reached"]);
    third.signal("-CONT");
    for name in ["n1", "n2"] {
        told(dir, name, &["node n3 (", ") is back, after "]);
    }
    told(dir, "n1", &[" take writes again, after "]);
    third.signal("-KILL");
    drop(third);
    for name in ["n1", "n2"] {
        told(dir, name, &["node n3 (", ") has ended: its groups go on without it"]);
    }
    let third = member(dir, "n3", &["--join", &second.addr]);
    told(dir, "n2", &["node n3 (", &third.addr, ") was started anew"]);
    second.ok(&["status", "--wait", "--timeout", "30s"]);
    // Where that took less than a second nothing is told of it.
    let count = |parts: &[&str]| lines(dir, "n2", parts).len();
    let ends = || count(&["all 24 groups have their copies again, after "]);
    assert!(within(SOON, || count(&["24 groups", "have fewer copies than there should be"]) == ends()));
    let again = lines(dir, "n1", &[" take writes again, after "]).len();
    assert!((1..=2).contains(&again), "the second time they may not have stopped for long enough to be told of");
    assert_eq!(lines(dir, "n1", &["lost"]).len(), 0);
    for (name, lost) in [("n1", 1), ("n2", 1), ("n3", 0)] {
        assert_eq!(lines(dir, name, &["out of reach"]).len(), lost, "{:#?}", lines(dir, name, &[]));
    }
}

#[test]
fn the_log_tells_who_was_not_let_in_and_why_once() {
    let dir = tempfile::tempdir().expect("a directory");
    let dir = dir.path();
    let first = member(dir, "n1", &[]);
    let join = |name: &str, secret: &str| {
        let mut command = herd();
        command.args(["node", "--listen", "127.0.0.1:0", "--memory", "64m", "--threads", "1", "--join", &first.addr]);
        command.args(["--name", name, "--data"]).arg(dir.join("other")).env("HERD_SECRET", secret);
        let output = command.stdin(Stdio::null()).output().expect("herd runs");
        assert_eq!(output.status.code(), Some(3));
    };
    (0..3).for_each(|_| join("n2", "0123456789abcdef0123456789abcdef"));
    join("n1", "");
    told(dir, "n1", &["a node that wanted to join was refused: another node has the name 'n1'"]);
    assert_eq!(lines(dir, "n1", &["secret"]).len(), 1, "{:#?}", lines(dir, "n1", &[]));
}

#[test]
fn a_single_node_that_begins_anew_tells_once_what_was_lost() {
    let dir = tempfile::tempdir().expect("a directory");
    let dir = dir.path();
    let lost = || lines(dir, "n1", &[" lost their objects at epoch "]).len();
    member(dir, "n1", &[]).feed(&["put", "a", "-"], b"1");
    for _ in 0..3 {
        let node = member(dir, "n1", &[]);
        told(dir, "n1", &[" lost their objects at epoch "]);
        // The log is looked after five times a second.
        std::thread::sleep(Duration::from_millis(700));
        assert_eq!(lost(), 1, "{:#?}", lines(dir, "n1", &[]));
        drop(node);
    }
}

/// Nodes that are killed one after the other get their copies back. All at once: the loss is told, at once and later,
/// wherever one looks.
#[test]
fn a_loss_is_told_by_the_log_and_by_every_command() {
    let dir = tempfile::tempdir().expect("a directory");
    let dir = dir.path();
    let mut nodes = three(dir);
    let keys: Vec<String> = (0..40).map(|number| format!("k{number}")).collect();
    let sets: String = keys.iter().map(|key| format!("set {key} 0 0 1\r\nx\r\n")).collect();
    let stored = nodes[0].talk((sets + "quit\r\n").as_bytes());
    assert_eq!(String::from_utf8_lossy(&stored), "STORED\r\n".repeat(keys.len()));
    let at: Vec<String> = nodes.iter().map(|node| node.addr.clone()).collect();
    let kill = |nodes: &mut [Node; 3], which: usize| {
        nodes[which].signal("-KILL");
        // Its old port is free once it has ended.
        let other = std::mem::replace(&mut nodes[which], Node::start(&["--memory", "64m", "--threads", "1"]));
        drop(other);
    };
    let start = |nodes: &mut [Node; 3], which: usize| {
        let (name, listen) = (format!("n{}", which + 1), &at[which]);
        let more: &[&str] = if which == 0 { &[] } else { &["--join", &at[0]] };
        nodes[which] = member(dir, &name, &[&["--listen", listen], more].concat());
    };
    for which in [1, 2, 0] {
        kill(&mut nodes, which);
        start(&mut nodes, which);
        all_serve(&nodes, &["n1", "n2", "n3"]);
        nodes[1].ok(&["status", "--wait"]);
        for (number, key) in keys.iter().enumerate() {
            assert_eq!(nodes[number % 3].ok(&["get", key]), "x");
        }
        assert!(nodes[which].ok(&["fsck"]).contains("clean"));
    }
    assert!(!nodes[0].ok(&["status"]).contains("lost"), "one after the other lost nothing");
    (0..3).for_each(|which| kill(&mut nodes, which));
    (0..3).for_each(|which| start(&mut nodes, which));
    all_serve(&nodes, &["n1", "n2", "n3"]);

    let lost = "24 of 24 groups (0/0, 0/1, 0/2, 0/3 and 20 more) lost their objects at epoch ";
    for (at, node) in nodes.iter().enumerate() {
        assert!(within(SOON, || node.ok(&["status"]).contains("all take writes")), "{}", node.ok(&["status"]));
        assert!(node.ok(&["status"]).contains(&format!("\nlost        {lost}")), "{}", node.ok(&["status"]));
        let groups = node.ok(&["group", "ls"]);
        assert_eq!(groups.matches("takes writes; lost its objects at epoch ").count(), 24, "{groups}");
        let fsck = node.ok(&["fsck"]);
        assert!(fsck.contains(lost) && fsck.contains("all nodes that had them were started anew"), "{fsck}");
        let name = format!("n{}", at + 1);
        // When the second one came it was known that the third had ended: two nodes, 16 groups, and nothing left.
        if at < 2 {
            told(dir, &name, &[" warn: ", " lost their objects at epoch "]);
        }
        assert!(lines(dir, &name, &["lost"]).len() <= 1);
    }
    let get = nodes[1].herd(&["get", &keys[0]]);
    assert_eq!(get.status.code(), Some(1), "it is there no more, and can be put again");
    nodes[1].feed(&["put", &keys[0], "-"], b"2");
    assert_eq!(nodes[2].ok(&["get", &keys[0]]), "2");
}
