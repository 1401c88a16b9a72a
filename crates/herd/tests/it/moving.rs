//! Copies that go from node to node while the herd serves: a node that comes late gets its share, one that drains gives
//! all away and is forgotten, and no client notices.

use crate::herds::three_that_keep;
use crate::node::{Node, within};
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Copies of some MiB take a second or so; a busy machine more.
const PATIENCE: Duration = Duration::from_secs(40);
/// Objects that are written all the while.
const KEYS: u64 = 200;

fn told(node: &Node, words: &[&str]) -> Value {
    serde_json::from_str(&node.ok(words)).expect("JSON")
}

/// What the herd says of a node, at another one.
fn about(at: &Node, name: &str) -> Option<Value> {
    let nodes = told(at, &["nodes", "--json"]);
    nodes.as_array().expect("a list").iter().find(|node| node["name"] == name).cloned()
}

fn groups(at: &Node, name: &str) -> Option<u64> {
    about(at, name)?["groups"].as_u64()
}

/// Sets its objects one after the other, each to a number that rises, and reads each back, until it is told to end;
/// then all have the last numbers. Any other answer is a failure.
pub(crate) fn write_and_read(addr: &str, own: u64, ends: &AtomicBool, done: &AtomicU64) -> u64 {
    let mut socket = BufReader::new(TcpStream::connect(addr).expect("the node listens"));
    let mut ask = |request: String, lines: usize| {
        socket.get_mut().write_all(request.as_bytes()).expect("sent");
        let mut said = String::new();
        for _ in 0..lines {
            socket.read_line(&mut said).expect("it answers");
        }
        said
    };
    let mut round = 0;
    while !ends.load(Relaxed) {
        round += 1;
        for key in 0..KEYS {
            let value = format!("{round:08}{}", "v".repeat(2_000));
            let said = ask(format!("set w{own}.{key} 0 0 {}\r\n{value}\r\n", value.len()), 1);
            assert_eq!(said, "STORED\r\n", "w{own}.{key}");
            let said = ask(format!("get w{own}.{key}\r\n"), 3);
            assert!(said.contains(&value), "w{own}.{key} is not {round}: {said}");
            done.fetch_add(2, Relaxed);
        }
    }
    round
}

#[test]
fn a_node_comes_and_drains_and_no_client_notices() {
    let nodes = three_that_keep(2, &["--memory", "96m", "--threads", "1"], &[]);
    let [first, second, third] = [0, 1, 2].map(|at| &nodes[at].0);
    let dir = tempfile::tempdir().expect("a directory");
    let data = dir.path().join("n4");
    let (ends, done) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let writers: Vec<_> = [first, second, third]
            .into_iter()
            .enumerate()
            .map(|(own, node)| {
                let (ends, done, addr) = (&ends, &done, node.addr.clone());
                scope.spawn(move || write_and_read(&addr, own as u64, ends, done))
            })
            .collect();
        // Clients end whatever fails here.
        let ends = End(&ends);
        assert!(within(PATIENCE, || done.load(Relaxed) > 2_000));
        let data = data.to_str().expect("text");
        let fourth =
            Node::start(&["--memory", "96m", "--threads", "1", "--name", "n4", "--data", data, "--join", &first.addr]);
        // Of 24 groups of two copies.
        assert!(within(PATIENCE, || groups(first, "n4") == Some(12)), "{:?}", groups(first, "n4"));
        assert!(within(PATIENCE, || told(first, &["nodes", "--json"])
            .as_array()
            .is_some_and(|all| { all.iter().all(|node| node["groups"] == 12) })));
        first.ok(&["status", "--wait"]);
        first.ok(&["drain", "n4"]);
        let drained = about(second, "n4").expect("it is there still");
        assert_eq!((drained["groups"].as_u64(), drained["state"].as_str()), (Some(0), Some("draining")), "{drained}");
        let text = first.ok(&["status"]);
        assert!(text.contains("4 of 4 serving, n4 is drained\n") && text.contains(" drained "), "{text}");
        first.ok(&["status", "--wait"]);
        drop(fourth);
        assert!(within(PATIENCE, || about(first, "n4").is_none()), "it is forgotten");
        // As many others as there are copies must stay: one may go, and a second may not.
        second.ok(&["drain", "n3"]);
        let refused = first.herd(&["drain", "n2"]);
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(refused.status.code() == Some(3) && said.contains("add a node first"), "{said}");
        first.ok(&["drain", "n3", "--cancel"]);
        assert!(within(PATIENCE, || groups(first, "n3").is_some_and(|groups| groups >= 15)), "it gets its share again");
        drop(ends);
        for writer in writers {
            assert!(writer.join().expect("no client failed") > 1);
        }
    });
    first.ok(&["status", "--wait"]);
    first.ok(&["fsck"]);
}

#[test]
fn a_group_is_put_on_a_node_while_all_is_written_and_stays_there() {
    let nodes = three_that_keep(2, &["--memory", "64m", "--threads", "1"], &[]);
    let [first, second] = [0, 1].map(|at| &nodes[at].0);
    let (ends, done) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| write_and_read(&second.addr, 0, &ends, &done));
        let ends = End(&ends);
        assert!(within(PATIENCE, || done.load(Relaxed) > 500));
        let members = |ids: &Value| ids.as_array().into_iter().flatten().filter_map(Value::as_u64).collect::<Vec<_>>();
        let group = || told(first, &["group", "ls", "--json"])[0].clone();
        let (before, name) = (members(&group()["members"]), format!("{}/{}", group()["spread"], group()["group"]));
        let outside = (1..=3).find(|id| !before.contains(id)).expect("two of three have it");
        let named = |id: u64| format!("n{id}");
        // Who leads it goes, so the lead is handed over, too.
        let primary = group()["primary"].as_u64().expect("it is led");
        let (to, from) = (named(outside), named(primary));
        let moved = first.herd(&["group", "move", &name, &to, "--from", &from]);
        let said = String::from_utf8_lossy(&moved.stderr).into_owned();
        assert!(moved.status.success() && said.ends_with(&format!("{name} is at {to}, and stays there\n")), "{said}");
        let now = members(&group()["members"]);
        assert!(now.contains(&outside) && !now.contains(&primary) && now.len() == 2, "{before:?}, then {now:?}");
        assert!(first.ok(&["group", "ls"]).contains(&format!("put on {to}")));
        let again = first.herd(&["group", "move", &name, &to]);
        assert!(String::from_utf8_lossy(&again.stderr).contains("already"), "{again:?}");
        first.ok(&["group", "move", &name, "--cancel"]);
        assert!(!first.ok(&["group", "ls"]).contains("put on"));
        for (args, code, words) in [
            (&["0/999", "n1"][..], 1, "no group 0/999"),
            (&["0/0", "n9"], 1, "no node 'n9'"),
            (&["0", "n1"], 2, "'0' names no group"),
            (&["0/0"], 2, "required"),
        ] {
            let refused = first.herd(&[&["group", "move"], args].concat());
            let said = String::from_utf8_lossy(&refused.stderr).into_owned();
            assert!(refused.status.code() == Some(code) && said.contains(words), "{args:?}: {said}");
        }
        drop(ends);
        assert!(writer.join().expect("no client failed") > 1);
    });
    first.ok(&["status", "--wait"]);
    first.ok(&["fsck"]);
}

/// Ends the clients.
pub(crate) struct End<'a>(pub(crate) &'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

#[test]
fn a_node_that_is_not_there_is_not_drained() {
    let nodes = three_that_keep(3, &["--memory", "64m", "--threads", "1"], &[]);
    let first = &nodes[0].0;
    let refused = first.herd(&["drain", "n9"]);
    assert_eq!(refused.status.code(), Some(1));
    let refused = first.herd(&["drain", "n2"]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(3) && said.contains("3 copies are kept"), "{said}");
}

#[test]
fn what_only_a_dead_node_had_is_told_and_what_is_removed_holds_nothing_up() {
    let mut nodes = three_that_keep(3, &["--memory", "64m", "--threads", "1"], &[]);
    let third = nodes.pop().expect("three").0;
    let first = &nodes[0].0;
    first.ok(&["collection", "create", "one"]);
    let value = tempfile::NamedTempFile::new().expect("a file");
    let path = value.path().to_str().expect("text");
    (0..24).for_each(|number| drop(first.ok(&["put", &format!("one/{number}"), path])));
    let said = |args: &[&str]| {
        let done = first.herd(args);
        (done.status.code(), String::from_utf8_lossy(&done.stderr).into_owned())
    };
    assert_eq!(said(&["drain", "n3", "--cancel"]).1, "herd: drain: n3 was not draining, and stays\n");
    third.signal("-KILL");
    assert!(within(PATIENCE, || about(first, "n3").is_some_and(|node| node["state"] == "down")));
    let (code, text) = said(&["drain", "n3"]);
    let part = "n3 has ended, and 8 groups had their only copy there";
    assert!(code == Some(3) && text.contains(part), "{code:?} {text}");
    let status = first.ok(&["status"]);
    assert!(
        status.contains("only n3 had its objects, and that process has ended") && !status.contains("fewer than 1"),
        "{status}"
    );
    let (code, text) = said(&["collection", "rm", "one"]);
    assert!(code == Some(0) || code == Some(4), "{text}");
    assert!(within(PATIENCE, || about(first, "n3").is_some_and(|node| node["waiting_groups"] == 0)));
    // Two others are there, and three copies of what is not lost are kept: it has ended, and keeps none of them.
    let (code, text) = said(&["drain", "n3"]);
    assert!(code == Some(0), "{text}");
    assert!(within(PATIENCE, || about(first, "n3").is_none()), "it is forgotten");
}

#[test]
fn a_drain_that_has_nowhere_to_go_any_more_ends_and_says_so_and_goes_on_when_a_node_comes() {
    let args = ["--memory", "64m", "--threads", "1"];
    let mut nodes = three_that_keep(3, &args, &[]);
    let dir = tempfile::tempdir().expect("a directory");
    let start = |name: &str, to: &Node| {
        let data = dir.path().join(name);
        let own = ["--name", name, "--data", data.to_str().expect("text"), "--join", &to.addr];
        Node::start(&[&args[..], &own].concat())
    };
    let fourth = start("n4", &nodes[0].0);
    let first = &nodes[0].0;
    assert!(within(PATIENCE, || groups(first, "n4").is_some_and(|groups| groups > 2)));
    first.ok(&["status", "--wait", "--timeout", "30s"]);
    // Nothing is copied to it, and it is there, for as long as it is not silent.
    nodes[2].0.signal("-STOP");
    let drain = std::thread::scope(|scope| {
        let drain = scope.spawn(|| first.herd(&["drain", "n4"]));
        assert!(within(PATIENCE, || about(first, "n4").is_some_and(|node| node["state"] == "draining")));
        nodes[2].0.signal("-KILL");
        drain.join().expect("it ends")
    });
    let said = String::from_utf8_lossy(&drain.stderr).into_owned();
    let part = "node 'n4' can't be drained: 3 copies are kept, and 2 other nodes are there";
    assert!(drain.status.code() == Some(3) && said.contains(part) && said.contains("n4 drains all the same"), "{said}");
    nodes.pop();
    let fifth = start("n5", &nodes[0].0);
    nodes[0].0.ok(&["drain", "n4"]);
    assert_eq!((groups(&fifth, "n4"), fourth.stop()), (Some(0), Some(0)));
}
