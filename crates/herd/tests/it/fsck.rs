//! `herd fsck` over real nodes.

use crate::herds::{all_serve, three};
use crate::node::{Node, text, within};
use serde_json::Value;
use std::time::Duration;

fn fsck(node: &Node) -> (Option<i32>, Value, String) {
    let output = node.herd(&["fsck", "--json"]);
    let told = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", text(&output.stderr)));
    (output.status.code(), told, text(&output.stderr))
}

#[test]
fn a_herd_that_is_whole_is_clean_and_a_node_that_is_gone_is_told() {
    let dir = tempfile::tempdir().expect("a directory");
    let nodes = three(dir.path());
    all_serve(&nodes, &["n1", "n2", "n3"]);
    assert_eq!(fsck(&nodes[0]).0, Some(0));
    let large = "x".repeat(100_000);
    let sets = |number: u32| match number % 50 {
        0 => format!("set k{number} 5 900 100000\r\n{large}\r\n"),
        _ => format!("set k{number} 7 0 3\r\n{number:03}\r\n"),
    };
    let puts: String = (0..400).map(sets).collect();
    let stored = text(&nodes[1].talk((puts + "quit\r\n").as_bytes()));
    assert_eq!(stored, "STORED\r\n".repeat(400));
    for node in &nodes {
        let (code, told, error) = fsck(node);
        assert_eq!((code, &told["clean"]), (Some(0), &true.into()), "{told} {error}");
        assert!(told["copies"].as_u64().is_some_and(|copies| copies >= 400), "{told}");
        assert!(told["nodes"].as_array().is_some_and(|nodes| nodes.len() == 3), "{told}");
    }
    assert!(nodes[2].ok(&["fsck"]).contains("clean: "));
    // Groups that are empty are counted as what they are.
    nodes[0].ok(&["collection", "create", "one", "--replicas", "1"]);
    let told = nodes[2].ok(&["fsck"]);
    assert!(told.contains(" copies of objects, 24 groups of 3 and 24 of 1\n"), "{told}");
    let [first, second, third] = nodes;
    let nodes = format!("{},{}", first.addr, second.addr);
    let asked = || {
        let output = first.herd(&["fsck", "--node", &nodes]);
        (output.status.code(), text(&output.stdout) + &text(&output.stderr))
    };
    third.signal("-STOP");
    let (code, told) = asked();
    assert!(code == Some(3) && told.contains("node n3 could not be asked"), "{told}");
    // What has ended has no copies, and is of the herd all the same.
    drop(third);
    let is_told = || matches!(asked(), (Some(3), told) if told.contains("2 of 3 nodes asked, n3 is down, "));
    assert!(within(Duration::from_secs(10), is_told), "{:?}", asked());
    let (_, told) = asked();
    assert!(told.contains("as far as nodes could be asked, all copies are the same") && !told.contains("clean"));
    // One that was taken out is not.
    first.ok(&["detach", "--now", "n3", "--yes"]);
    let (code, told) = asked();
    assert!(code == Some(0) && told.contains("2 of 2 nodes asked, "), "{told}");
}

#[test]
fn a_node_that_is_alone_has_one_copy_of_each() {
    let node = Node::start(&["--memory", "64m", "--threads", "1"]);
    node.feed(&["put", "a", "-"], b"1");
    let told = node.ok(&["fsck"]);
    assert!(told.contains("1 of 1 node asked, 1 copy of objects") && told.contains("has one copy"), "{told}");
}
