//! A client of real nodes that are one herd goes straight to the owners: what a node is asked for by clients, and what
//! others hand on to it, is counted in its metrics.

use crate::herds::{all_serve, three};
use crate::node::Node;
use herd_client::blocking::Client;
use herd_client::{Condition, Config, ErrorKind, PutOptions, Request};
use std::time::{Duration, Instant};

/// Requests of a kind that the nodes have had, those that were handed on to them included.
fn asked(nodes: &[Node], verb: &str) -> u64 {
    let client = |node: &Node| Client::new(&node.addr, Config::default()).expect("an address");
    let starts = ["wire", "node"].map(|door| format!("herd_requests_total{{door=\"{door}\",verb=\"{verb}\"}} "));
    let count = |node: &Node| {
        let metrics = client(node).metrics().expect("metrics");
        let of = |line: &str| starts.iter().find_map(|start| line.strip_prefix(start)?.parse::<u64>().ok());
        metrics.lines().filter_map(of).sum::<u64>()
    };
    nodes.iter().map(count).sum()
}

/// A client that was given one node, and has learned the map.
fn knowing(node: &Node) -> Client {
    let client = Client::new(&node.addr, Config::default()).expect("an address");
    for i in 0..4 {
        client.put(format!("warm{i}"), b"x", &PutOptions::default()).expect("put");
        std::thread::sleep(Duration::from_millis(30));
    }
    client
}

#[test]
fn nothing_is_handed_on_for_a_client_that_knows_the_map() {
    let dir = tempfile::tempdir().expect("a directory");
    let nodes = three(dir.path());
    all_serve(&nodes, &["n1", "n2", "n3"]);
    let client = knowing(&nodes[1]);
    let before = ["put", "execute", "remove"].map(|verb| asked(&nodes, verb));
    for i in 0..50 {
        let name = format!("name{i}");
        client.put(&name, b"value", &PutOptions::default()).expect("put");
        client.execute(&name, "append", &["!"], Condition::None).expect("append");
        assert_eq!(client.get(&name).expect("get").value, b"value!");
        client.remove(&name, Condition::None).expect("removed");
    }
    let mut pipeline = client.pipeline().expect("connected");
    let names: Vec<String> = (0..100).map(|i| format!("many{i}")).collect();
    let put = |name| Request::put(name, b"x", &PutOptions::default()).expect("valid");
    let tickets: Vec<_> = names.iter().map(|name| pipeline.send(&put(name)).expect("sent")).collect();
    tickets.into_iter().for_each(|ticket| _ = pipeline.wait(ticket).expect("put"));
    let after = ["put", "execute", "remove"].map(|verb| asked(&nodes, verb));
    assert_eq!([0, 1, 2].map(|at: usize| after[at] - before[at]), [150, 50, 50]);
    let other = Client::new(&nodes[0].addr, Config { routed: false, ..Config::default() }).expect("an address");
    for name in &names {
        assert_eq!(other.get(name).expect("any node has it handed on").value, b"x");
    }
}

#[test]
fn a_copy_of_many_files_is_handed_on_only_until_the_map_is_known() {
    // Far more than are sent ahead before the map is there, also by a slow machine.
    const FILES: u64 = 1_500;
    let dir = tempfile::tempdir().expect("a directory");
    let nodes = three(&dir.path().join("nodes"));
    all_serve(&nodes, &["n1", "n2", "n3"]);
    let from = dir.path().join("from");
    std::fs::create_dir(&from).expect("made");
    for i in 0..FILES {
        std::fs::write(from.join(format!("f{i}")), format!("{i}")).expect("written");
    }
    nodes[2].ok(&["collection", "create", "files"]);
    let before = asked(&nodes, "put");
    nodes[2].ok(&["cp", "-r", from.to_str().expect("text"), "herd:files"]);
    let handed_on = asked(&nodes, "put") - before - FILES;
    assert!(handed_on < FILES / 4, "{handed_on}: without the map it would be two thirds of {FILES}");
    assert_eq!(nodes[0].ok(&["get", "files/f7"]), "7");
}

#[test]
fn a_long_body_goes_to_the_owner_at_once() {
    let dir = tempfile::tempdir().expect("a directory");
    let nodes = three(dir.path());
    all_serve(&nodes, &["n1", "n2", "n3"]);
    let file = dir.path().join("long");
    std::fs::write(&file, vec![7; 2 << 20]).expect("written");
    let before = asked(&nodes, "put");
    for i in 0..8 {
        nodes[0].ok(&["put", &format!("long{i}"), file.to_str().expect("text")]);
    }
    assert_eq!(asked(&nodes, "put") - before, 8);
}

#[test]
fn a_client_whose_node_is_killed_goes_on_with_what_others_have() {
    let dir = tempfile::tempdir().expect("a directory");
    let nodes = three(dir.path());
    all_serve(&nodes, &["n1", "n2", "n3"]);
    // Of each node its own, told by where a put is counted.
    let puts = |node: &Node| asked(std::slice::from_ref(node), "put");
    let put_all = |round: usize| {
        let (client, mut of_node) = (knowing(&nodes[1]), [const { Vec::new() }; 3]);
        for i in 0..30 {
            let (name, before) = (format!("name{round}.{i}"), nodes.each_ref().map(puts));
            client.put(&name, b"x", &PutOptions::default()).expect("put");
            let at = (0..3).find(|&at| puts(&nodes[at]) > before[at]).expect("one has it");
            of_node[at].push(name);
        }
        (client, of_node)
    };
    // An owner that is slow to answer is passed by for a while: where it was, another client is not late.
    let mut rounds = (0..5).map(put_all);
    let all_have = |of_node: &[Vec<String>; 3]| of_node.iter().all(|names| !names.is_empty());
    let (client, of_node) = rounds.find(|(_, of_node)| all_have(of_node)).expect("each node is asked");
    nodes[1].signal("-KILL");
    std::thread::sleep(Duration::from_millis(100));
    let client = client.with_timeout(Duration::from_secs(3));
    for name in of_node[0].iter().chain(&of_node[2]) {
        assert_eq!(client.get(name).expect("its owner lives").value, b"x");
    }
    let begun = Instant::now();
    match client.get(&of_node[1][0]) {
        Ok(object) => assert_eq!(object.value, b"x", "another node had a copy"),
        Err(error) => assert_ne!(error.kind(), ErrorKind::NotFound, "that is no miss: {error}"),
    }
    assert!(begun.elapsed() < Duration::from_secs(10));
}
