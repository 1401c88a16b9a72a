//! What is given up: nodes that are detached, and groups that begin anew.

use crate::herds::{json, three_that_keep};
use crate::node::{Node, herd, within};
use std::process::Stdio;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(30);
const ARGS: [&str; 4] = ["--memory", "64m", "--threads", "1"];

/// The exit status of a command, and what it says.
fn said(at: &Node, args: &[&str]) -> (i32, String, String) {
    let done = at.herd(args);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (done.status.code().expect("it ends by itself"), text(&done.stdout), text(&done.stderr))
}

/// Three nodes, and collection `one` of one copy with 60 objects.
fn herd_with_one_copy() -> Vec<(Node, tempfile::TempDir)> {
    let nodes = three_that_keep(3, &ARGS, &[]);
    nodes[0].0.ok(&["collection", "create", "one"]);
    let value = tempfile::NamedTempFile::new().expect("a file");
    let path = value.path().to_str().expect("text");
    (0..60).for_each(|number| drop(nodes[0].0.ok(&["put", &format!("one/{number}"), path])));
    nodes
}

fn knows(at: &Node, name: &str) -> bool {
    json(at, &["nodes", "--json"]).as_array().expect("nodes").iter().any(|node| node["name"] == name)
}

fn is(at: &Node, name: &str, state: &str) -> bool {
    let all = json(at, &["nodes", "--json"]);
    all.as_array().expect("nodes").iter().any(|node| node["name"] == name && node["state"] == state)
}

fn is_down(at: &Node, name: &str) -> bool {
    is(at, name, "down")
}

fn stops(at: &Node) -> u64 {
    json(at, &["status", "--json"])["groups_stopped"].as_u64().expect("a number")
}

#[test]
fn a_node_that_lives_is_told_to_end_and_what_it_alone_had_is_lost_where_that_was_said() {
    let mut nodes = herd_with_one_copy();
    let (third, _dir) = nodes.pop().expect("three");
    let first = &nodes[0].0;
    assert_eq!(said(first, &["detach", "--now", "n9"]).0, 1);
    let (code, _, text) = said(first, &["detach", "--now", "n1"]);
    assert!(code == 3 && text.contains("keeps the herd's map"), "{text}");
    let (code, listed, text) = said(first, &["detach", "--now", "n3"]);
    assert!(code == 3 && text.contains("nothing was done") && text.contains("--yes"), "{text}");
    let objects = listed.strip_prefix("collection one: ").and_then(|line| line.split(" of 4096 slots (33.").nth(1));
    assert!(objects.is_some_and(|rest| rest.contains(" objects would be lost, as only this node has it")), "{listed}");
    assert!(knows(first, "n3") && first.ok(&["status"]).contains("3 of 3 serving"));
    let (code, again, text) = said(first, &["detach", "--now", "n3", "--yes"]);
    assert!(code == 0 && again == listed && text.contains("lost what they held"), "{text}");
    let pid = third.pid();
    let ended = || std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| stat.contains(") Z "));
    assert!(within(PATIENCE, ended), "it was told to end");
    assert!(!knows(first, "n3"));
    assert!(within(PATIENCE, || stops(first) == 0), "they begin anew");
    let status = first.ok(&["status"]);
    assert!(status.contains("lost their objects at epoch") && status.contains(": given up by "), "{status}");
    // What others had is there, and two thirds of what was kept once.
    let left = first.ok(&["ls", "one/"]).lines().count();
    assert!((20..60).contains(&left), "{left}");
}

/// Of a herd that died, another one may have an address, and name its nodes alike.
#[test]
fn who_has_the_address_of_a_dead_node_is_not_taken_for_it() {
    let mut nodes = herd_with_one_copy();
    let (third, _dir) = nodes.pop().expect("three");
    let (first, addr) = (&nodes[0].0, third.addr.clone());
    third.signal("-KILL");
    drop(third);
    assert!(within(PATIENCE, || is_down(first, "n3")));
    let dir = tempfile::tempdir().expect("a directory");
    let data = dir.path().to_str().expect("text");
    let stranger = Node::at(&addr, &[&["--name", "n3", "--data", data][..], &ARGS].concat());
    let all = json(first, &["nodes", "--json"]);
    let third = all.as_array().expect("nodes").iter().find(|node| node["name"] == "n3").expect("it is of the herd");
    assert!(third["answers"] == false && third["state"] == "down" && third["objects"].is_null(), "{third}");
    let (code, told, text) = said(first, &["fsck"]);
    let told = told + &text;
    assert!(code == 3 && told.contains("n3") && told.contains("2 of 3 nodes asked"), "{told}");
    let (code, _, text) = said(first, &["detach", "--now", "n3", "--yes"]);
    assert!(code == 0 && !text.contains("was told to end") && !knows(first, "n3"), "{text}");
    std::thread::sleep(Duration::from_millis(300));
    let own = json(&stranger, &["nodes", "--json"]);
    assert_eq!(own.as_array().map(Vec::len), Some(1), "it is of another herd, and serves on: {own}");
}

#[test]
fn groups_that_wait_for_a_dead_node_begin_anew_where_that_was_said() {
    let mut nodes = herd_with_one_copy();
    let (third, dir) = nodes.pop().expect("three");
    let (first, addr) = (&nodes[0].0, third.addr.clone());
    let (code, _, text) = said(first, &["group", "recover", "--accept-data-loss"]);
    assert!(code == 0 && text.contains("nothing was done"), "{text}");
    third.signal("-KILL");
    assert!(within(PATIENCE, || is_down(first, "n3") && stops(first) == 8));
    let (code, listed, text) = said(first, &["group", "recover"]);
    assert!(code == 3 && text.contains("nothing was done") && stops(first) == 8, "{text}");
    assert!(listed.starts_with("collection one: ") && listed.contains("would be lost"), "{listed}");
    let waiting = json(first, &["group", "ls", "--json"]);
    let one = waiting.as_array().expect("groups").iter().find(|group| group["primary"].is_null()).expect("8 of them");
    let one = format!("{}/{}", one["spread"], one["group"]);
    let (code, _, text) = said(first, &["group", "recover", &one, "--accept-data-loss"]);
    assert!(code == 0 && text.contains("1 group lost") && within(PATIENCE, || stops(first) == 7), "{text}");
    let (code, _, text) = said(first, &["group", "recover", "--accept-data-loss"]);
    assert!(code == 0 && text.contains("7 groups lost") && within(PATIENCE, || stops(first) == 0), "{text}");
    let told = first.ok(&["group", "ls"]);
    assert_eq!(told.matches("lost its objects at epoch").count(), 8, "{told}");
    assert_eq!(first.ok(&["status"]).matches(": given up by ").count(), 2);
    // It comes back, and what was lost stays so.
    drop(third);
    let data = dir.path().to_str().expect("text");
    let own = ["--name", "n3", "--data", data, "--listen", &addr, "--join", &first.addr];
    let third = Node::start(&[&own[..], &ARGS].concat());
    third.ok(&["status", "--wait", "--timeout", "30s"]);
    assert_eq!(first.ok(&["status"]).matches("lost their objects").count(), 1);
    first.ok(&["fsck"]);
    // A node that has ended, and had the only copy of nothing, goes without a word more.
    third.signal("-KILL");
    assert!(within(PATIENCE, || is_down(first, "n3")));
    let (code, listed, text) = said(first, &["detach", "--now", "n3", "--yes"]);
    assert!(code == 0 && !knows(first, "n3"), "{listed} {text}");
    assert_eq!(said(first, &["group", "recover", "0/999"]).0, 1, "there is no such group");
}

/// It can't be told to end, and would serve those who reach it: that is said. When it hears of the herd again it ends.
#[test]
fn of_a_node_that_only_stands_still_it_is_said_that_it_may_serve_on() {
    let mut nodes = herd_with_one_copy();
    let (mut third, _dir) = nodes.pop().expect("three");
    let first = &nodes[0].0;
    third.signal("-STOP");
    assert!(within(PATIENCE, || is_down(first, "n3")));
    let (code, listed, text) = said(first, &["detach", "--now", "n3"]);
    assert!(code == 3 && listed.contains("would be lost") && !text.contains("can't be told to end"), "{text}");
    let (code, _, text) = said(first, &["detach", "--now", "n3", "--yes"]);
    assert!(code == 0 && text.contains("n3 can't be told to end") && text.contains("lost what they held"), "{text}");
    assert!(!knows(first, "n3") && stops(first) == 0);
    third.signal("-CONT");
    assert_eq!(third.wait(), Some(3));
}

/// It would end, and stay in the herd.
#[test]
fn a_node_that_runs_is_not_told_to_end_where_no_warden_could_take_it_out() {
    let mut nodes = three_that_keep(3, &ARGS, &[]);
    nodes[0].0.signal("-KILL");
    let (code, _, text) = said(&nodes[1].0, &["detach", "--now", "n3", "--yes"]);
    assert!(code == 3 && text.contains("n3: nothing was done: the warden's node can't be reached"), "{text}");
    assert!(knows(&nodes[1].0, "n3") && !nodes[2].0.has_ended());
}

#[test]
fn who_waits_for_a_drain_hears_soon_that_it_was_called_off() {
    let nodes = herd_with_one_copy();
    let (first, third) = (&nodes[0].0, &nodes[2].0);
    // Only it has what it has: who drains it waits for it.
    third.signal("-STOP");
    assert!(within(PATIENCE, || is_down(first, "n3")));
    let mut drain = herd();
    drain.args(["drain", "n3"]).env("HERD_NODE", &first.addr);
    let drain = drain.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("herd runs");
    assert!(within(PATIENCE, || is(first, "n3", "draining")));
    first.ok(&["drain", "n3", "--cancel"]);
    let start = Instant::now();
    let output = drain.wait_with_output().expect("it ends");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(1) && text.contains("it was called off"), "{text}");
    assert!(start.elapsed() < Duration::from_secs(9), "{:?}", start.elapsed());
}
