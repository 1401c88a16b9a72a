//! What a node's log tells of its herd: who goes and comes, what takes no writes, who is refused.

use crate::herds::all_serve;
use crate::node::{Node, herd, within};
use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

/// Nodes are told of after a second, and links made anew within another.
const SOON: Duration = Duration::from_secs(10);

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
    told(dir, "n1", &["warn: node n3 (", &at, ") is out of reach"]);
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
    told(dir, "n2", &["8 of 24 groups (0/", " and 4 more) take no writes: no node "]);
    told(dir, "n3", &["8 of 24 groups (0/", " and 4 more) take no writes: no node "]);
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
