//! The herd's control store on its way from node to node while clients set and get: no request fails, and each node
//! starts again as it was started before.

use crate::etcd::{Etcd, FORCE};
use crate::herds::{json, three_that_keep};
use crate::moving::{End, write_and_read};
use crate::node::{Node, herd, within};
use crate::silence::put;
use herd_client::Config;
use herd_client::blocking::Client;
use herd_core::limits::WARDEN_ASKS_MAX;
use serde_json::Value;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tempfile::TempDir;

const ARGS: [&str; 4] = ["--memory", "96m", "--threads", "1"];
/// A busy machine takes its time.
const PATIENCE: Duration = Duration::from_secs(40);

fn shown(node: &Node) -> Value {
    json(node, &["control", "show", "--json"])
}

fn names(value: &Value) -> (Option<&str>, Option<&str>) {
    (value["backend"].as_str(), value["node"].as_str())
}

/// Does something while clients of these nodes set and get.
fn under_load(round: u64, nodes: &[&Node], work: impl FnOnce(&dyn Fn(u64))) {
    let (ends, done) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let writers: Vec<_> = nodes
            .iter()
            .enumerate()
            .map(|(own, node)| {
                let (ends, done, addr) = (&ends, &done, node.addr.clone());
                scope.spawn(move || write_and_read(&addr, 10 * round + own as u64, ends, done))
            })
            .collect();
        let ends = End(&ends);
        let goes_on = |more: u64| {
            let before = done.load(Relaxed);
            let is_over = || writers.iter().any(|writer| writer.is_finished());
            assert!(within(PATIENCE, || done.load(Relaxed) > before + more || is_over()));
        };
        goes_on(400);
        work(&goes_on);
        goes_on(400);
        drop(ends);
        for writer in writers {
            assert!(writer.join().expect("no client failed") > 0);
        }
    });
}

/// The node with that number again, as it was started at first.
fn again(nodes: &mut [(Node, TempDir)], number: usize, first: &str, env: &[(&str, &str)]) {
    let (addr, data) = (nodes[number].0.addr.clone(), nodes[number].1.path().to_str().expect("text").to_owned());
    let name = format!("n{}", number + 1);
    let herd = if number == 0 { vec!["--replicas", "2"] } else { vec!["--join", first] };
    let words = [&["--listen", &addr, "--name", &name, "--data", &data][..], &herd, &ARGS].concat();
    nodes[number].0 = Node::again(&words, env);
}

#[test]
fn the_control_store_goes_to_another_node_and_back_and_no_client_notices() {
    let mut nodes = three_that_keep(2, &ARGS, &[]);
    let first = nodes[0].0.addr.clone();
    assert!((0..24).all(|number| put(&nodes[0].0, &format!("k{number}"), "v")));
    let before = shown(&nodes[2].0);
    assert_eq!(names(&before), (Some("embedded"), Some("n1")), "{before}");
    assert!(nodes[2].0.ok(&["control", "show"]).contains("backend     embedded"));
    let all: Vec<&Node> = nodes.iter().map(|(node, _)| node).collect();
    under_load(0, &all, |goes_on| {
        for (to, at) in [("n2", 2), ("n1", 0), ("n2", 1)] {
            all[at].ok(&["control", "move", to]);
            goes_on(200);
            let after = shown(all[at]);
            assert_eq!(names(&after), (Some("embedded"), Some(to)), "{after}");
            all[at].ok(&["collection", "create", &format!("at-{to}-{}", after["term"])]);
        }
    });
    let after = shown(&nodes[0].0);
    assert!(after["term"].as_u64() >= before["term"].as_u64().map(|term| term + 3), "{before} {after}");
    let collections = nodes[2].0.ok(&["collection", "ls"]);
    assert_eq!(collections.matches("at-n").count(), 3, "{collections}");
    // Who was the first node is one as any other: it is killed, and the others go on.
    nodes[0].0.signal("-KILL");
    nodes[0].0.wait();
    let others = [&nodes[1].0, &nodes[2].0];
    assert!(within(PATIENCE, || (0..24).all(|number| put(others[1], &format!("k{number}"), "w"))));
    others[1].ok(&["collection", "create", "without-the-first"]);
    // All start as they did: the first one without --join, the others with that of the first one.
    again(&mut nodes, 0, &first, &[]);
    nodes[0].0.ok(&["status", "--wait", "--timeout", "60s"]);
    for number in [2, 1] {
        nodes[number].0.signal("-TERM");
        assert_eq!(nodes[number].0.wait(), Some(0));
        again(&mut nodes, number, &first, &[]);
        nodes[number].0.ok(&["status", "--wait", "--timeout", "60s"]);
    }
    let last = shown(&nodes[0].0);
    assert_eq!(names(&last), (Some("embedded"), Some("n2")), "{last}");
    assert!((0..24).all(|number| nodes[0].0.ok(&["get", &format!("k{number}")]) == "w"));
    nodes[0].0.ok(&["fsck"]);
}

#[test]
fn the_warden_s_node_drains_and_is_forgotten_like_any_other() {
    let mut nodes = three_that_keep(2, &ARGS, &[]);
    assert!((0..24).all(|number| put(&nodes[0].0, &format!("k{number}"), "v")));
    let (first, second, third) = (&nodes[0].0, &nodes[1].0, &nodes[2].0);
    under_load(1, &[second, third], |_| {
        let output = second.herd(&["drain", "n1"]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success() && said.contains("n1 had the herd's map"), "{said}");
        assert!(said.contains("n1 is empty: stop it, and the herd forgets it"), "{said}");
    });
    assert_ne!(names(&shown(second)).1, Some("n1"));
    first.signal("-TERM");
    let is_gone = || {
        let nodes = json(third, &["nodes", "--json"]);
        nodes.as_array().expect("a list").iter().all(|node| node["name"] != "n1")
    };
    assert!(within(PATIENCE, is_gone), "it is forgotten");
    second.ok(&["fsck"]);
    assert_eq!(nodes[0].0.wait(), Some(0));
}

#[test]
fn the_control_store_goes_to_etcd_and_back_and_no_client_notices() {
    let Some(etcd) = Etcd::start() else { return };
    let mut nodes = three_that_keep(2, &ARGS, &[FORCE]);
    let first = nodes[0].0.addr.clone();
    let url = etcd.url();
    assert!((0..24).all(|number| put(&nodes[0].0, &format!("k{number}"), "v")));
    let forced = |node: &Node, words: &[&str]| {
        let output = herd().args(words).env("HERD_NODE", &node.addr).envs([FORCE]).output().expect("herd runs");
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    };
    let restart = |nodes: &mut Vec<(Node, TempDir)>, number: usize| {
        nodes[number].0.signal("-TERM");
        assert_eq!(nodes[number].0.wait(), Some(0));
        again(nodes, number, &first, &[FORCE]);
        nodes[number].0.ok(&["status", "--wait", "--timeout", "60s"]);
    };
    under_load(2, &[&nodes[0].0, &nodes[1].0, &nodes[2].0], |goes_on| {
        forced(&nodes[1].0, &["control", "migrate", &url]);
        goes_on(200);
        let there = shown(&nodes[2].0);
        assert_eq!(names(&there), (Some("etcd"), Some("n1")), "{there}");
        assert_eq!(there["etcd"].as_str(), Some(url.as_str()));
        nodes[2].0.ok(&["collection", "create", "in-etcd"]);
    });
    // The node of the warden, which was told of no etcd, and one of the others.
    restart(&mut nodes, 0);
    restart(&mut nodes, 1);
    let there = shown(&nodes[2].0);
    assert_eq!(names(&there), (Some("etcd"), Some("n1")), "{there}");
    under_load(3, &[&nodes[0].0, &nodes[1].0, &nodes[2].0], |goes_on| {
        nodes[1].0.ok(&["control", "migrate", "embedded"]);
        goes_on(200);
        assert_eq!(names(&shown(&nodes[2].0)), (Some("embedded"), Some("n1")));
        // There again, and to another node from there.
        forced(&nodes[1].0, &["control", "migrate", &url]);
        nodes[1].0.ok(&["control", "migrate", "embedded", "--at", "n3"]);
        goes_on(200);
        assert_eq!(names(&shown(&nodes[0].0)), (Some("embedded"), Some("n3")));
        nodes[0].0.ok(&["collection", "create", "back-again"]);
    });
    drop(etcd);
    // Its directory says that the map went to that etcd: others know more.
    nodes[0].0.signal("-TERM");
    assert_eq!(nodes[0].0.wait(), Some(0));
    let data = nodes[0].1.path().to_str().expect("text");
    let words = ["--name", "n1", "--data", data, "--listen", &first, "--join", &nodes[1].0.addr];
    let node = Node::with_env(&[&words[..], &ARGS].concat(), &[FORCE]);
    nodes[0].0 = node;
    nodes[0].0.ok(&["status", "--wait", "--timeout", "60s"]);
    assert_eq!(names(&shown(&nodes[0].0)), (Some("embedded"), Some("n3")));
    restart(&mut nodes, 1);
    restart(&mut nodes, 2);
    assert_eq!(names(&shown(&nodes[1].0)), (Some("embedded"), Some("n3")));
    let collections = nodes[1].0.ok(&["collection", "ls"]);
    assert!(collections.contains("in-etcd") && collections.contains("back-again"), "{collections}");
    assert!((0..24).all(|number| nodes[1].0.ok(&["get", &format!("k{number}")]) == "v"));
    nodes[1].0.ok(&["fsck"]);
}

/// What is in the directories of nodes that had the store once, before it went to etcd a second time, is of before.
#[test]
fn nodes_that_once_put_the_store_into_etcd_start_again_where_another_one_is_the_warden() {
    let Some(etcd) = Etcd::start() else { return };
    let mut nodes = three_that_keep(2, &ARGS, &[FORCE]);
    let (first, url) = (nodes[0].0.addr.clone(), etcd.url());
    let (there, third, second) = ([url.as_str()], ["embedded", "--at", "n3"], ["embedded", "--at", "n2"]);
    for to in [&there[..], &third, &there, &second, &there] {
        let words = [&["control", "migrate"][..], to].concat();
        let output = herd().args(&words).env("HERD_NODE", &first).envs([FORCE]).output().expect("herd runs");
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    // The one without --join, and one with it.
    for number in [0, 2] {
        nodes[number].0.signal("-TERM");
        assert_eq!(nodes[number].0.wait(), Some(0));
        again(&mut nodes, number, &first, &[FORCE]);
        nodes[number].0.ok(&["status", "--wait", "--timeout", "60s"]);
    }
    // All of them at once: whoever comes first is the warden.
    nodes.iter().for_each(|(node, _)| node.signal("-TERM"));
    nodes.iter_mut().for_each(|(node, _)| assert_eq!(node.wait(), Some(0)));
    (0..3).for_each(|number| again(&mut nodes, number, &first, &[FORCE]));
    nodes[2].0.ok(&["status", "--wait", "--timeout", "60s"]);
    let there = shown(&nodes[1].0);
    assert_eq!(names(&there), (Some("etcd"), Some("n1")), "{there}");
}

#[test]
fn a_node_that_had_the_store_is_led_to_a_warden_of_which_it_has_never_heard() {
    let mut nodes = three_that_keep(2, &ARGS, &[]);
    let first = nodes[0].0.addr.clone();
    nodes[1].0.ok(&["control", "move", "n2"]);
    nodes[0].0.signal("-TERM");
    assert_eq!(nodes[0].0.wait(), Some(0));
    let data = TempDir::new().expect("a directory");
    let words = ["--name", "n4", "--data", data.path().to_str().expect("text"), "--join", &nodes[1].0.addr];
    let fourth = Node::start(&[&words[..], &ARGS].concat());
    fourth.ok(&["control", "move", "n4"]);
    again(&mut nodes, 0, &first, &[]);
    nodes[0].0.ok(&["status", "--wait", "--timeout", "60s"]);
    let there = shown(&nodes[0].0);
    assert_eq!(names(&there), (Some("embedded"), Some("n4")), "{there}");
}

#[test]
fn a_node_that_can_t_have_it_is_refused_and_all_stays_as_it_was() {
    let nodes = three_that_keep(2, &ARGS, &[]);
    let first = &nodes[0].0;
    let placeless = Node::start(&[&["--name", "n4", "--join", &first.addr][..], &ARGS].concat());
    for (to, code, why) in [("n4", 3, "no directory that it can write to"), ("n9", 1, "no node 'n9'")] {
        let output = first.herd(&["control", "move", to]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(code) && said.contains(why), "{said}");
    }
    let output = first.herd(&["control", "migrate", "etcd://127.0.0.1:1"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(3) && said.contains("Connection refused: see that it runs"), "{said}");
    let shown = shown(&placeless);
    assert_eq!(names(&shown), (Some("embedded"), Some("n1")), "{shown}");
    first.ok(&["collection", "create", "still"]);
}

/// The map that its directory had went to a node that has it no more, and it knows no other one.
#[test]
fn a_node_finds_the_map_that_went_on_since_it_went_away_there() {
    let mut nodes = three_that_keep(2, &ARGS, &[]);
    let first = nodes[0].0.addr.clone();
    nodes[2].0.ok(&["control", "move", "n2"]);
    nodes[0].0.signal("-KILL");
    nodes[0].0.wait();
    assert!(within(PATIENCE, || nodes[1].0.herd(&["control", "move", "n3"]).status.success()));
    std::fs::remove_file(nodes[0].1.path().join("nodes")).expect("it knew the others");
    again(&mut nodes, 0, &first, &[]);
    nodes[0].0.ok(&["status", "--wait", "--timeout", "60s"]);
    assert_eq!(names(&shown(&nodes[0].0)), (Some("embedded"), Some("n3")));
}

#[test]
fn a_drain_that_can_t_be_leaves_the_map_where_it_is() {
    let nodes = three_that_keep(3, &ARGS, &[]);
    let first = &nodes[0].0;
    let output = first.herd(&["drain", "n1"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(3) && said.contains("can't be drained"), "{said}");
    assert_eq!(names(&shown(first)), (Some("embedded"), Some("n1")));
}

/// No other node can keep the map: it does not drain either.
#[test]
fn a_node_that_can_t_give_the_map_away_does_not_drain() {
    let dir = tempfile::tempdir().expect("a directory");
    let data = dir.path().to_str().expect("text");
    let first = Node::start(&[&["--name", "n1", "--data", data, "--replicas", "1"][..], &ARGS].concat());
    let _second = Node::start(&[&["--name", "n2", "--join", &first.addr][..], &ARGS].concat());
    assert!(within(PATIENCE, || json(&first, &["nodes", "--json"]).as_array().is_some_and(|it| it.len() == 2)));
    let output = first.herd(&["drain", "n1"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("no directory that it can write to"), "{said}");
    let nodes = json(&first, &["nodes", "--json"]);
    assert!(nodes.as_array().expect("a list").iter().all(|node| node["state"] == "serving"), "{nodes}");
}

/// What the warden of a node has answered takes no place from what is asked of it next.
#[test]
fn the_warden_s_node_asks_it_again_and_again() {
    const CLIENTS: usize = 16;
    let node = Node::start(&[&["--name", "n1"][..], &ARGS].concat());
    std::thread::scope(|scope| {
        for own in 0..CLIENTS {
            let addr = node.addr.as_str();
            scope.spawn(move || {
                let client = Client::new(addr, Config::default()).expect("an address");
                for number in 0..WARDEN_ASKS_MAX / CLIENTS + 10 {
                    let asked = client.drain("n1", true);
                    assert!(asked.is_ok(), "{own} {number}: {asked:?}");
                }
            });
        }
    });
}
