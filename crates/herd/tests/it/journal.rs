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
    assert!(within(SOON, || lines(dir, "n2", &["node n3 (", "out of reach"]).len() == 2));
    let third = member(dir, "n3", &["--join", &second.addr]);
    told(dir, "n2", &["node n3 (", &third.addr, ") was started anew"]);
    told(dir, "n2", &["8 of 24 groups (0/", " and 4 more) take no writes: not read either: the node that led"]);
    told(dir, "n3", &["8 of 24 groups (0/", " the copies at n1, n2 can't take over in this version"]);
    for (name, lost) in [("n1", 2), ("n2", 2), ("n3", 0)] {
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

/// All copies are lost, one after the other: that is told, at once and later, wherever one looks.
#[test]
fn a_loss_is_told_by_the_log_and_by_every_command() {
    let dir = tempfile::tempdir().expect("a directory");
    let dir = dir.path();
    let mut nodes = three(dir);
    let keys: Vec<String> = (0..40).map(|number| format!("k{number}")).collect();
    let sets: String = keys.iter().map(|key| format!("set {key} 0 0 1\r\nx\r\n")).collect();
    let stored = nodes[0].talk((sets + "quit\r\n").as_bytes());
    assert_eq!(String::from_utf8_lossy(&stored), "STORED\r\n".repeat(keys.len()));
    let again = |nodes: &mut [Node; 3], at: usize| {
        nodes[at].signal("-KILL");
        let (name, listen, join) = (format!("n{}", at + 1), nodes[at].addr.clone(), nodes[(at + 1) % 3].addr.clone());
        let more: &[&str] = if at == 0 { &[] } else { &["--join", &join] };
        // Its old port is free once it has ended.
        let other = std::mem::replace(&mut nodes[at], Node::start(&["--memory", "64m", "--threads", "1"]));
        drop(other);
        nodes[at] = member(dir, &name, &[&["--listen", &listen], more].concat());
        all_serve(nodes, &["n1", "n2", "n3"]);
    };
    again(&mut nodes, 1);
    // What it led can't be had, and that it is back is no help.
    let node = &nodes[0];
    let failed = |key: &&String| !node.herd(&["get", key]).status.success();
    let key = keys.iter().find(failed).expect("it led some of them");
    for asked in [&["get", key][..], &["rm", key]] {
        let told = String::from_utf8_lossy(&node.herd(asked).stderr).into_owned();
        let why = "the node that led was started anew, without its objects, and the copies at n1, n3 can't take over";
        assert!(told.contains(&format!("nobody decides on '{key}': {why}")), "{told}");
    }
    let led = node.ok(&["status"]);
    assert!(
        led.contains("24, 8 of them stopped: not read either: the node that led") && !led.contains("lost"),
        "{led}"
    );
    again(&mut nodes, 2);
    let other = nodes[0].ok(&["group", "ls"]);
    assert!(other.contains("1 copy is left of the 2 that a write needs") && !other.contains("lost"), "{other}");
    let key = keys.iter().find(|key| nodes[0].herd(&["get", key]).status.success()).expect("n1 leads some");
    let error = String::from_utf8_lossy(&nodes[0].herd(&["rm", key]).stderr).into_owned();
    assert!(error.contains(&format!("fewer than the 2 nodes that must keep '{key}' have a copy")), "{error}");
    again(&mut nodes, 0);

    let lost = "24 of 24 groups (0/0, 0/1, 0/2, 0/3 and 20 more) lost their objects at epoch ";
    for (at, node) in nodes.iter().enumerate() {
        assert!(within(SOON, || node.ok(&["status"]).contains("all take writes")), "{}", node.ok(&["status"]));
        assert!(node.ok(&["status"]).contains(&format!("\nlost        {lost}")), "{}", node.ok(&["status"]));
        let groups = node.ok(&["group", "ls"]);
        assert_eq!(groups.matches("takes writes; lost its objects at epoch ").count(), 24, "{groups}");
        let fsck = node.ok(&["fsck"]);
        assert!(fsck.contains(lost) && fsck.contains("all nodes that had them were started anew"), "{fsck}");
        told(dir, &format!("n{}", at + 1), &[" warn: ", lost]);
        assert_eq!(lines(dir, &format!("n{}", at + 1), &["lost"]).len(), 1);
    }
    let get = nodes[1].herd(&["get", &keys[0]]);
    assert_eq!(get.status.code(), Some(1), "it is there no more, and can be put again");
    nodes[1].feed(&["put", &keys[0], "-"], b"2");
    assert_eq!(nodes[2].ok(&["get", &keys[0]]), "2");
}
