//! Nodes that are one herd: they come together, know each other, make collections together; and who is not let in is
//! told why.

use crate::node::{Node, herd, text, within};
use herd_core::place::HerdId;
use herd_core::warden::{Identity, Join};
use herd_core::wire::{Joining, Kind, LinkErrorKind, Secret, parse_frame};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Maps, links and restarts take some 100 ms; a busy machine more.
const SOON: Duration = Duration::from_secs(10);

/// A node of a herd, in a directory of its own.
fn member(dir: &Path, name: &str, more: &[&str]) -> Node {
    member_of(dir, name, "64m", more)
}

/// One with so much memory.
fn member_of(dir: &Path, name: &str, memory: &str, more: &[&str]) -> Node {
    let data = dir.join(name);
    let data = data.to_str().expect("text");
    let args = ["--memory", memory, "--threads", "1", "--name", name, "--data", data];
    Node::start(&[&args, more].concat())
}

/// Three nodes of which the last has little memory and a copy of all.
fn with_a_small_one(dir: &Path, small: &str) -> [Node; 3] {
    let first = member_of(dir, "n1", "64m", &["--replicas", "3"]);
    let second = member_of(dir, "n2", "64m", &["--join", &first.addr]);
    let third = member_of(dir, "n3", small, &["--join", &first.addr]);
    let nodes = [first, second, third];
    all_serve(&nodes, &["n1", "n2", "n3"]);
    for node in &nodes {
        assert!(within(SOON, || kept(node) == [(3.into(), 2.into(), 3)]), "{:?}", kept(node));
    }
    nodes
}

#[test]
fn an_error_of_full_memory_names_the_node_that_is_full() {
    let dir = tempfile::tempdir().expect("a directory");
    let nodes = with_a_small_one(dir.path(), "16m");
    let value = dir.path().join("value");
    std::fs::write(&value, vec![7; 512 << 10]).expect("written");
    let value = value.to_str().expect("text");
    let is_full = |number: &u32| !nodes[0].herd(&["put", &format!("o{number}"), value]).status.success();
    assert!((0..40).filter(is_full).count() > 8, "the third has 16 MiB");
    let there = json(&nodes[0], &["nodes", "--json"]);
    let bytes = there[2]["memory_used_bytes"].as_u64().expect("a number");
    assert!(bytes <= 16 << 20, "{there}");
    let body = "x".repeat(512 << 10);
    for node in &nodes {
        // Each of them decides on some of these.
        for number in 0..8 {
            let output = node.herd(&["put", &format!("more{number}"), value]);
            let said = text(&output.stderr);
            assert!(output.status.code() == Some(3) && said.contains("node 'n3'"), "{said}");
            let head = format!("PUT /o/default/more{number} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n");
            let request = format!("{head}Content-Length: {}\r\n\r\n{body}", body.len());
            let said = text(&node.talk(request.as_bytes()));
            assert!(said.starts_with("HTTP/1.1 507") && said.contains("node 'n3'"), "{said}");
            let request = format!("set more{number} 0 0 {}\r\n{body}\r\nquit\r\n", body.len());
            let said = text(&node.talk(request.as_bytes()));
            let begins = said.starts_with("SERVER_ERROR out of memory storing object: ");
            assert!(begins && said.contains("node 'n3'") && said.lines().count() == 1, "{said}");
        }
    }
}

/// Three nodes; the third one joins by way of the second, which names the first.
pub(crate) fn three(dir: &Path) -> [Node; 3] {
    let first = member(dir, "n1", &[]);
    let second = member(dir, "n2", &["--join", &first.addr]);
    let third = member(dir, "n3", &["--join", &second.addr]);
    [first, second, third]
}

/// Three nodes that keep so many copies, each in a directory of its own, once they see each other.
pub(crate) fn three_that_keep(copies: u8, more: &[&str], env: &[(&str, &str)]) -> Vec<(Node, TempDir)> {
    let mut nodes: Vec<(Node, TempDir)> = Vec::new();
    let copies = copies.to_string();
    for name in ["n1", "n2", "n3"] {
        let dir = tempfile::tempdir().expect("a directory");
        let data = dir.path().to_str().expect("text");
        let herd = nodes.first().map_or(["--replicas", &copies], |(first, _)| ["--join", &first.addr]);
        nodes.push((Node::with_env(&[&["--name", name, "--data", data][..], &herd, more].concat(), env), dir));
    }
    for (node, _) in &nodes {
        all_serve(std::slice::from_ref(node), &["n1", "n2", "n3"]);
    }
    nodes
}

pub(crate) fn json(node: &Node, args: &[&str]) -> Value {
    serde_json::from_str(&node.ok(args)).expect("JSON")
}

/// What the node says of all, by name.
fn states(node: &Node) -> Vec<(String, String)> {
    let all = json(node, &["nodes", "--json"]);
    let field = |node: &Value, field: &str| node[field].as_str().expect("text").to_owned();
    all.as_array().expect("nodes").iter().map(|node| (field(node, "name"), field(node, "state"))).collect()
}

fn serving(names: &[&str]) -> Vec<(String, String)> {
    names.iter().map(|name| (name.to_string(), "serving".to_string())).collect()
}

pub(crate) fn all_serve(nodes: &[Node], names: &[&str]) {
    for node in nodes {
        assert!(within(SOON, || states(node) == serving(names)), "{:?}", states(node));
    }
}

/// A node that is not let in: its exit status, and what it told.
fn refused(dir: &Path, name: &str, more: &[&str], env: &[(&str, &str)]) -> (Option<i32>, String) {
    let mut command = herd();
    command.args(["node", "--listen", "127.0.0.1:0", "--memory", "64m", "--threads", "1"]);
    command.args(["--name", name, "--data"]).arg(dir.join(name)).args(more).envs(env.iter().copied());
    let output = command.stdin(Stdio::null()).output().expect("herd runs");
    (output.status.code(), text(&output.stderr))
}

#[test]
fn three_nodes_are_one_herd_and_make_collections_together() {
    let dir = tempfile::tempdir().expect("a directory");
    let nodes = three(dir.path());
    all_serve(&nodes, &["n1", "n2", "n3"]);
    let statuses: Vec<Value> = nodes.iter().map(|node| json(node, &["status", "--json"])).collect();
    for status in &statuses {
        assert_eq!(status["herd_id"], statuses[0]["herd_id"]);
        assert_eq!((&status["warden"], &status["groups_stopped"]), (&"n1".into(), &0.into()), "{status}");
        let epochs = status["nodes"].as_array().expect("nodes").iter().map(|node| &node["epoch"]);
        assert!(epochs.into_iter().all(|epoch| *epoch == status["epoch"]), "{status}");
    }
    let led = |node: &Value| node["groups"].as_u64().expect("a number");
    assert!(statuses[0]["nodes"].as_array().expect("nodes").iter().all(|node| led(node) > 0), "each has its share");

    nodes[2].ok(&["collection", "create", "photos", "--ordered"]);
    for node in &nodes {
        assert!(node.ok(&["collection", "ls"]).contains("photos"), "it is there at once");
    }
    nodes[1].ok(&["collection", "create", "photos", "--ordered"]);
    let other = nodes[0].herd(&["collection", "create", "photos"]);
    assert!(text(&other.stderr).contains("exists with"), "{}", text(&other.stderr));
    nodes[1].ok(&["collection", "rm", "photos"]);
    for node in &nodes {
        assert!(!node.ok(&["collection", "ls"]).contains("photos"), "it is gone at once");
    }
    let groups = nodes[1].ok(&["group", "ls"]);
    assert!(groups.lines().count() > 8 && groups.contains("takes writes"), "{groups}");
}

/// Copies, and those needed, of each group: as promised, and as there are.
fn kept(node: &Node) -> Vec<(Value, Value, usize)> {
    let groups = json(node, &["group", "ls", "--json"]);
    let of = |group: &Value| {
        let members = group["members"].as_array().expect("members").len();
        (group["copies"].clone(), group["needed"].clone(), members)
    };
    let mut all: Vec<_> = groups.as_array().expect("groups").iter().map(of).collect();
    all.dedup();
    all
}

/// All nodes say by every door how the objects of a collection are kept, also of those that others have.
fn all_say(nodes: &[Node], (collection, class, copies): (&str, &str, u8)) {
    for node in nodes {
        let is_so = |said: &Value| said["class"] == class && said["copies"] == copies;
        for number in 0..8 {
            let key = format!("{collection}/k{number}");
            let acked = node.ok(&["put", &key, "/dev/null", "--json"]);
            assert!(is_so(&serde_json::from_str(&acked).expect("JSON")), "{acked}");
            let stat = json(node, &["stat", &key, "--json"]);
            assert!(is_so(&stat), "{stat}");
            for request in ["GET", "HEAD", "PUT", "DELETE"] {
                let head = format!("{request} /o/{key} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n");
                let said = text(&node.talk(format!("{head}Content-Length: 0\r\n\r\n").as_bytes()));
                let told = [format!("\r\nHerd-Class: {class}\r\n"), format!("\r\nHerd-Copies: {copies}\r\n")];
                assert!(told.iter().all(|told| said.contains(told)), "{request}: {said}");
            }
        }
        let all = json(node, &["collection", "ls", "--json"]);
        let all = all.as_array().expect("collections");
        assert!(all.iter().any(|said| said["name"] == collection && is_so(said)), "{all:?}");
    }
}

#[test]
fn copies_that_are_asked_for_come_with_the_nodes() {
    let dir = tempfile::tempdir().expect("a directory");
    let first = member(dir.path(), "n1", &["--replicas", "3"]);
    assert_eq!(kept(&first), [(3.into(), 1.into(), 1)]);
    assert!(first.ok(&["status"]).contains("fewer than 3 copies"), "{}", first.ok(&["status"]));
    let second = member(dir.path(), "n2", &["--join", &first.addr]);
    assert!(within(SOON, || kept(&first) == [(3.into(), 1.into(), 2)]), "{:?}", kept(&first));
    let third = member(dir.path(), "n3", &["--join", &first.addr]);
    let nodes = [first, second, third];
    all_serve(&nodes, &["n1", "n2", "n3"]);
    for node in &nodes {
        assert!(within(SOON, || kept(node) == [(3.into(), 2.into(), 3)]), "{:?}", kept(node));
        assert!(!node.ok(&["status"]).contains("fewer than"), "{}", node.ok(&["status"]));
    }
    nodes[0].ok(&["collection", "create", "one"]);
    all_say(&nodes, ("default", "ram:2", 3));
    all_say(&nodes, ("one", "ram:1", 1));
    // Each asked of another node than the warden's.
    nodes[1].ok(&["collection", "create", "two", "--replicas", "2"]);
    all_say(&nodes, ("two", "ram:1", 2));
    nodes[2].ok(&["collection", "create", "safe", "--class", "ram:2"]);
    all_say(&nodes, ("safe", "ram:2", 3));
    nodes[1].ok(&["collection", "create", "there", "--spread", "0"]);
    all_say(&nodes, ("there", "ram:2", 3));
    for (more, told) in [
        (&["--spread", "77"][..], "spread group 77 is not there: `herd group ls` lists them"),
        (
            &["--class", "ram:2", "--spread", "2"],
            "spread group 2 keeps 2 copies, of which a write needs 1, and not what is asked for",
        ),
        (&["--class", "ram:9"], "9 copies of an object are not in this version, which keeps up to 3"),
        (&["--replicas", "4"], "which keeps up to 3"),
    ] {
        let output = nodes[2].herd(&[&["collection", "create", "x"], more].concat());
        let said = text(&output.stderr);
        assert!(output.status.code() != Some(0) && said.contains(told), "{said}");
    }

    let two = tempfile::tempdir().expect("a directory");
    let first = member(two.path(), "n1", &["--replicas", "2"]);
    all_say(std::slice::from_ref(&first), ("default", "ram:1", 1));
    let second = member(two.path(), "n2", &["--join", &first.addr]);
    all_serve(&[second], &["n1", "n2"]);
    // It has ended, and with it its copies, if it had got some.
    assert!(within(SOON, || kept(&first) == [(2.into(), 1.into(), 1)]), "{:?}", kept(&first));
    assert!(first.ok(&["status"]).contains("fewer than 2 copies"));
}

/// The first lines of what a node answers to this head, before anything of its body is sent.
fn answered_at_once(node: &Node, head: &str) -> String {
    let mut socket = node.connect();
    socket.write_all(head.as_bytes()).expect("sent");
    let mut got = [0; 300];
    let read = socket.read(&mut got).expect("answered before the value is sent");
    text(&got[..read])
}

#[test]
fn a_value_that_a_member_has_no_memory_for_is_refused_before_it_is_sent() {
    let dir = tempfile::tempdir().expect("a directory");
    let nodes = with_a_small_one(dir.path(), "16m");
    let file = dir.path().join("file");
    std::fs::File::create(&file).and_then(|file| file.set_len(20 << 20)).expect("a hole");
    let why = "object of 20.0 MiB does not fit at node 'n3': 15.0 MiB of 15.0 MiB free";
    for node in &nodes {
        for number in 0..4 {
            let head = format!("PUT /o/default/x{number} HTTP/1.1\r\nHost: h\r\nContent-Length: {}\r\n\r\n", 20 << 20);
            let said = answered_at_once(node, &head);
            assert!(said.starts_with("HTTP/1.1 507") && said.contains(why), "{said}");
            let output = node.herd(&["put", &format!("x{number}"), file.to_str().expect("text")]);
            let said = text(&output.stderr);
            assert!(output.status.code() == Some(3) && said.contains(why), "{said}");
        }
    }
}

/// Of a machine that was restored, or of one that was thought to be gone.
#[test]
fn a_copy_of_a_directory_is_not_started_from_while_the_herd_is_ahead_of_it_or_its_node_runs() {
    let dir = tempfile::tempdir().expect("a directory");
    let [first, second, _third] = three(dir.path());
    let copies = tempfile::tempdir().expect("a directory");
    for (name, file) in [("n1", "control"), ("n1", "node"), ("n2", "node")] {
        let to = copies.path().join(name);
        std::fs::create_dir_all(&to).expect("a directory");
        std::fs::copy(dir.path().join(name).join(file), to.join(file)).expect("a copy");
    }
    let (code, said) = refused(copies.path(), "n1", &[], &[]);
    let runs = format!("a process of this node runs at {}, from a copy of this directory: end that one", first.addr);
    assert!(code == Some(2) && said.contains(&runs), "{said}");
    let (code, said) = refused(copies.path(), "n2", &["--join", &first.addr], &[]);
    let runs = format!("a process of node 'n2' runs at {}: end that one first", second.addr);
    assert!(code == Some(3) && said.contains(&runs), "{said}");
    // Only collections were made since: what would go on from the copy would take them from all.
    first.ok(&["collection", "create", "new"]);
    first.signal("-KILL");
    drop(first);
    let (code, said) = refused(copies.path(), "n1", &[], &[]);
    assert!(code == Some(2) && said.contains("in an old copy, as the node at"), "{said}");
    let first = member(dir.path(), "n1", &[]);
    assert!(first.ok(&["collection", "ls"]).contains("new"));
}

#[test]
fn a_node_that_comes_back_is_the_same_and_one_that_comes_late_holds_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    let [first, second, third] = three(dir.path());
    let numbers = |node: &Node| {
        let all = json(node, &["nodes", "--json"]);
        let of = |node: &Value| (node["id"].as_u64(), node["incarnation"].as_u64(), node["groups"].as_u64());
        all.as_array().expect("nodes").iter().map(of).collect::<Vec<_>>()
    };
    let names: Vec<String> = (0..64).map(|number| format!("o{number}")).collect();
    let put = |name: &String| first.herd(&["put", name, "/dev/null"]).status.success();
    assert!(names.iter().any(put), "some objects lie at the first node");
    // The herd holds objects, so no groups are planned anew.
    let fourth = member(dir.path(), "n4", &["--join", &first.addr]);
    all_serve(&[fourth], &["n1", "n2", "n3", "n4"]);
    assert_eq!(numbers(&first)[3], (Some(4), Some(1), Some(0)));
    assert_eq!(second.stop(), Some(0));
    let away = |state: &str| within(SOON, || states(&first)[1] == ("n2".to_string(), state.to_string()));
    assert!(away("down"));
    assert!(first.ok(&["status"]).contains("serving, not n2"));
    let (code, told) = refused(dir.path(), "n2", &[], &[]);
    assert!(code == Some(2) && told.contains("belongs to herd"), "{told}");
    let second = member(dir.path(), "n2", &["--join", &third.addr]);
    assert!(away("serving"));
    let (id, life, _) = numbers(&first)[1];
    assert!(id == Some(2) && life > Some(1), "the same node in another life");
    drop(second);
}

#[test]
fn a_flush_at_one_node_empties_all_before_it_is_answered() {
    let dir = tempfile::tempdir().expect("a directory");
    let nodes = three(dir.path());
    all_serve(&nodes, &["n1", "n2", "n3"]);
    let keys: Vec<String> = (0..32).map(|number| format!("k{number}")).collect();
    let gets = format!("get {}\r\n", keys.join(" "));
    for node in &nodes {
        let sets: String = keys.iter().map(|key| format!("set {key} 0 0 1\r\nx\r\n")).collect();
        let stored = text(&node.talk((sets + "quit\r\n").as_bytes()));
        assert_eq!(stored, "STORED\r\n".repeat(keys.len()));
        // What stands behind it on the line finds nothing, and neither does anybody else.
        assert_eq!(text(&node.talk(format!("flush_all\r\n{gets}quit\r\n").as_bytes())), "OK\r\nEND\r\n");
        for other in &nodes {
            assert_eq!(text(&other.talk(format!("{gets}quit\r\n").as_bytes())), "END\r\n");
        }
    }
    nodes[1].feed(&["put", "k1", "-"], b"x");
    assert_eq!(text(&nodes[2].talk(b"flush_all noreply\r\nget k1\r\nquit\r\n")), "END\r\n");
    // One with a delay comes then, and at all nodes; unless another is told before.
    let sets: String = keys.iter().map(|key| format!("set {key} 0 0 1\r\nx\r\n")).collect();
    let has = |node: &Node| text(&node.talk(format!("{gets}quit\r\n").as_bytes())).matches("VALUE").count();
    let delayed = text(&nodes[1].talk(format!("{sets}flush_all 1\r\n{gets}quit\r\n").as_bytes()));
    assert!(delayed.contains("OK\r\nVALUE k0 ") && delayed.matches("VALUE").count() == keys.len(), "{delayed}");
    assert!(within(SOON, || nodes.iter().all(|node| has(node) == 0)));
    let told = text(&nodes[1].talk(format!("flush_all 1\r\nflush_all\r\n{sets}quit\r\n").as_bytes()));
    assert!(told.starts_with("OK\r\nOK\r\nSTORED"), "{told}");
    assert!(!within(Duration::from_secs(2), || has(&nodes[0]) < keys.len()), "it came all the same");
}

/// A node that is told of a flush while it is alone has it done by all that have come by then.
#[test]
fn a_flush_that_is_put_off_is_done_by_nodes_that_joined_meanwhile() {
    let dir = tempfile::tempdir().expect("a directory");
    let first = member(dir.path(), "n1", &["--replicas", "2"]);
    assert_eq!(text(&first.talk(b"flush_all 10\r\nquit\r\n")), "OK\r\n");
    let others = ["n2", "n3"].map(|name| member(dir.path(), name, &["--join", &first.addr]));
    let nodes: Vec<Node> = [first].into_iter().chain(others).collect();
    all_serve(&nodes, &["n1", "n2", "n3"]);
    let keys: Vec<String> = (0..32).map(|number| format!("k{number}")).collect();
    let sets: String = keys.iter().map(|key| format!("set {key} 0 0 1\r\nx\r\n")).collect();
    assert_eq!(text(&nodes[1].talk((sets + "quit\r\n").as_bytes())), "STORED\r\n".repeat(keys.len()));
    let gets = format!("get {}\r\nquit\r\n", keys.join(" "));
    let is_empty = |node: &Node| text(&node.talk(gets.as_bytes())) == "END\r\n";
    assert!(within(Duration::from_secs(20), || nodes.iter().all(is_empty)));
}

/// Whatever a client asks, and of whichever node; and what a dead node led is an error at most, and soon led by others.
#[test]
fn each_node_answers_for_all_and_of_a_dead_one_nothing_is_missed() {
    let dir = tempfile::tempdir().expect("a directory");
    let nodes = three(dir.path());
    all_serve(&nodes, &["n1", "n2", "n3"]);
    let large = crate::node::pattern(6 << 20, 7);
    for (number, node) in nodes.iter().enumerate() {
        let object = format!("/o/default/large{number}");
        let mut put = format!("PUT {object} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n").into_bytes();
        put.extend_from_slice(format!("Content-Length: {}\r\n\r\n", large.len()).as_bytes());
        put.extend_from_slice(&large);
        assert!(text(&node.talk(&put)).starts_with("HTTP/1.1 201 "));
        let sets: String = (0..20).map(|at| format!("set n{number}k{at} 0 0 2\r\nxy\r\n")).collect();
        assert_eq!(text(&node.talk(format!("{sets}quit\r\n").as_bytes())), "STORED\r\n".repeat(20));
    }
    let keys: Vec<String> = (0..60).map(|at| format!("n{}k{}", at / 20, at % 20)).collect();
    let gets = format!("get {}\r\nquit\r\n", keys.join(" "));
    let values: String = keys.iter().map(|key| format!("VALUE {key} 0 2\r\nxy\r\n")).collect();
    for node in &nodes {
        assert_eq!(text(&node.talk(gets.as_bytes())), format!("{values}END\r\n"));
        for number in 0..3 {
            let get = format!("GET /o/default/large{number} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
            let said = node.talk(get.as_bytes());
            assert!(said.starts_with(b"HTTP/1.1 200 ") && said.ends_with(&large));
        }
        assert_eq!(node.ok(&["ls"]).lines().count(), 63);
        assert_eq!(json(node, &["collection", "ls", "--json"])[0]["objects"], 63);
    }
    let [first, second, third] = nodes;
    second.signal("-KILL");
    let began = Instant::now();
    let is_there = |key: &String| {
        let said = text(&first.talk(format!("get {key}\r\nquit\r\n").as_bytes()));
        let is_there = said == format!("VALUE {key} 0 2\r\nxy\r\nEND\r\n");
        assert!(is_there || said.starts_with("SERVER_ERROR "), "{key}: {said}");
        is_there
    };
    assert!(keys.iter().all(|key| within(SOON, || is_there(key))));
    assert!(within(SOON, || first.herd(&["ls"]).status.success()));
    assert_eq!(first.ok(&["ls"]).lines().count(), 63);
    assert!(began.elapsed() < Duration::from_secs(12), "{:?}", began.elapsed());
    assert!(first.ok(&["status"]).contains("2 of 3 serving, not n2"));
    drop((second, third));
}

/// Any number of loops: a node rounded them down to a power of two.
#[test]
fn nodes_of_any_number_of_loops_serve_on_all_of_them() {
    let dir = tempfile::tempdir().expect("a directory");
    let member = |name: &str, threads: &str, join: &[&str]| {
        let data = dir.path().join(name);
        let args = ["--memory", "64m", "--threads", threads, "--name", name, "--data", data.to_str().expect("text")];
        Node::start(&[&args, join].concat())
    };
    let first = member("n1", "3", &[]);
    assert_eq!(json(&first, &["status", "--json"])["threads"], 3, "alone too");
    let join = ["--join", &first.addr.clone()];
    let nodes = [first, member("n2", "5", &join), member("n3", "8", &join)];
    all_serve(&nodes, &["n1", "n2", "n3"]);
    nodes[0].ok(&["collection", "create", "one"]);
    for (node, threads) in nodes.iter().zip([3, 5, 8]) {
        let status = json(node, &["status", "--json"]);
        assert_eq!((&status["threads"], &status["groups_stopped"]), (&threads.into(), &0.into()));
    }
    // Connections go to the loops in turn.
    for (number, node) in nodes.iter().enumerate() {
        for at in 0..10 {
            let sets: String = (0..24).map(|key| format!("set n{number}c{at}k{key} 0 0 2\r\nxy\r\n")).collect();
            assert_eq!(text(&node.talk(format!("{sets}quit\r\n").as_bytes())), "STORED\r\n".repeat(24));
            for key in 0..8 {
                let put = format!("PUT /o/one/n{number}c{at}k{key} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n");
                let said = node.talk(format!("{put}Content-Length: 1\r\n\r\nx").as_bytes());
                assert!(said.starts_with(b"HTTP/1.1 201 "), "{}", text(&said));
            }
        }
    }
    for node in &nodes {
        assert_eq!(node.ok(&["ls"]).lines().count(), 720);
        assert_eq!(node.ok(&["ls", "one/"]).lines().count(), 240);
        for number in 0..3 {
            let keys: Vec<String> = (0..24).map(|key| format!("n{number}c9k{key}")).collect();
            let said = text(&node.talk(format!("get {}\r\nquit\r\n", keys.join(" ")).as_bytes()));
            assert_eq!(said.matches("VALUE").count(), 24, "{said}");
        }
    }
    assert!(nodes[1].herd(&["fsck"]).status.success());
}

/// Most bytes that the process ever had in memory.
fn peak_bytes(node: &Node) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", node.pid())).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("it is there");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") * 1024
}

/// A node of 64 MiB through which 300 MiB go both ways, while other clients come and go.
#[test]
fn what_is_larger_than_a_node_goes_through_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let start = |name: &str, memory: &str, more: &[&str]| {
        let data = dir.path().join(name);
        let data = data.to_str().expect("text");
        Node::start(&[&["--memory", memory, "--threads", "1", "--name", name, "--data", data], more].concat())
    };
    let first = start("n1", "64m", &["--replicas", "1"]);
    let second = start("n2", "1g", &["--join", &first.addr]);
    let third = start("n3", "1g", &["--join", &first.addr]);
    let nodes = [first, second, third];
    all_serve(&nodes, &["n1", "n2", "n3"]);
    let large = crate::node::pattern(300 << 20, 7);
    let file = dir.path().join("large");
    std::fs::write(&file, &large).expect("there is room");
    let before = peak_bytes(&nodes[0]);
    let put = |name: &str| {
        let url = format!("http://{}/o/default/{name}", nodes[0].addr);
        let mut curl = std::process::Command::new("curl");
        curl.args(["-sS", "-o", "/dev/null", "-w", "%{http_code}", "-T"]).arg(&file).arg(url);
        text(&curl.output().expect("curl runs").stdout)
    };
    // Of those that it has itself it says so at once.
    let name = (0..32).map(|at| format!("large{at}")).find(|name| put(name) == "201").expect("another node has some");
    let stalled = nodes[0].connect();
    let head = format!("PUT /o/default/{name} HTTP/1.1\r\nHost: h\r\nContent-Length: {}\r\n\r\n", large.len());
    (&stalled).write_all(&[head.as_bytes(), &large[..32 << 20]].concat()).expect("sent");
    let sets: String = (0..200).map(|at| format!("set k{at} 0 0 2\r\nxy\r\n")).collect();
    assert_eq!(text(&nodes[0].talk(format!("{sets}quit\r\n").as_bytes())), "STORED\r\n".repeat(200));
    drop(stalled);
    let get = format!("GET /o/default/{name} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
    assert!(nodes[0].talk(get.as_bytes()).ends_with(&large), "what stalled and went left what was there");
    let grown = peak_bytes(&nodes[0]) - before;
    assert!(grown < 64 << 20, "{grown} bytes more were there");
}

/// That objects are gone is said to be so when all nodes have heard of it; a node that is gone is named soon.
#[test]
fn who_has_not_heard_that_objects_are_gone_is_named() {
    let dir = tempfile::tempdir().expect("a directory");
    let [first, second, third] = three(dir.path());
    let nodes = [first, second];
    all_serve(&nodes, &["n1", "n2", "n3"]);
    nodes[0].ok(&["collection", "create", "photos"]);
    third.signal("-STOP");
    for node in &nodes {
        let began = Instant::now();
        let told = text(&node.talk(b"flush_all\r\nquit\r\n"));
        assert!(told.starts_with("SERVER_ERROR") && told.contains("n3"), "{told}");
        assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
    }
    let began = Instant::now();
    let output = nodes[1].herd(&["collection", "rm", "photos"]);
    let told = text(&output.stderr);
    let said = "removed at 2 of 3 nodes; n3 can't be reached and does it when it is back";
    assert!(output.status.code() == Some(4) && told.contains(said) && !told.contains("may have been"), "{told}");
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
    third.signal("-CONT");
    assert!(within(SOON, || !third.ok(&["collection", "ls"]).contains("photos")), "it does it when it is back");
}

/// Before the first object no group is without a node that is gone, and new groups are made of those that are there.
#[test]
fn an_empty_herd_tells_at_once_which_node_is_gone() {
    let dir = tempfile::tempdir().expect("a directory");
    let [first, second, third] = three(dir.path());
    let nodes = [first, second];
    all_serve(&nodes, &["n1", "n2", "n3"]);
    let first = &nodes[0];
    third.signal("-STOP");
    let gone = ("n3".to_string(), "unreachable".to_string());
    assert!(within(SOON, || states(first)[2] == gone), "{:?}", states(first));
    let refused = |args: &[&str], why: &str| {
        let began = Instant::now();
        let output = first.herd(args);
        let told = text(&output.stderr);
        assert!(output.status.code() == Some(3) && told.contains(why), "{told}");
        assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
    };
    // A new way to keep copies is a map that the third node has not.
    first.ok(&["collection", "create", "two", "--replicas", "2", "--class", "ram:2"]);
    refused(&["put", "two/x", "/dev/null"], "n3 can't be reached");
    refused(&["collection", "create", "safe", "--class", "ram:3"], "1 can't be reached (n3): start them");
    third.signal("-CONT");
    assert!(within(SOON, || first.herd(&["put", "two/x", "/dev/null"]).status.success()));
    first.ok(&["collection", "create", "safe", "--class", "ram:3"]);
}

#[test]
fn the_herd_goes_on_when_its_first_node_was_started_anew() {
    let dir = tempfile::tempdir().expect("a directory");
    let first = member(dir.path(), "n1", &[]);
    let addr = first.addr.clone();
    let second = member(dir.path(), "n2", &["--join", &addr]);
    second.ok(&["collection", "create", "photos"]);
    assert_eq!(first.stop(), Some(0));
    let output = second.herd(&["collection", "create", "more", "--timeout", "20s"]);
    assert_eq!(output.status.code(), Some(3), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("warden"), "{}", text(&output.stderr));
    let first = member(dir.path(), "n1", &["--listen", &addr]);
    all_serve(&[first, second], &["n1", "n2"]);
}

#[test]
fn a_node_that_does_not_belong_there_is_told_why() {
    let dir = tempfile::tempdir().expect("a directory");
    let first = member(dir.path(), "n1", &[]);
    let join = ["--join", &first.addr];
    // A name that is taken.
    let other = dir.path().join("elsewhere");
    let (code, told) = refused(&other, "n1", &join, &[]);
    assert!(code == Some(3) && told.contains("another node has the name 'n1'"), "{told}");
    // An address that another one has, or that is its own.
    let (code, told) = refused(dir.path(), "n2", &["--join", &first.addr, "--advertise", &first.addr], &[]);
    assert!(code == Some(2) && told.contains(": that is this node itself"), "{told}");
    let local = first.addr.replace("127.0.0.1", "localhost");
    let (code, told) = refused(dir.path(), "n2", &["--join", &local, "--advertise", &first.addr], &[]);
    let why =
        format!("{} is the address of node 'n1': start that one from its --data, or take another port", first.addr);
    assert!(code == Some(3) && told.contains(&why), "{told}");
    // Another secret.
    let (code, told) = refused(dir.path(), "n2", &join, &[("HERD_SECRET", "0123456789abcdef0123456789abcdef")]);
    assert!(code == Some(3) && told.contains("secret"), "{told}");
    let (code, told) = refused(dir.path(), "n2", &join, &[("HERD_SECRET", "1234")]);
    assert!(code == Some(2) && told.contains("HERD_SECRET"), "{told}");
    // What the herd does not do.
    let (code, told) = refused(dir.path(), "n2", &[&join[..], &["--evict"]].concat(), &[]);
    assert!(code == Some(2) && told.contains("--evict"), "{told}");
    // A node of another herd.
    let stranger = member(dir.path(), "s1", &[]);
    assert_eq!(member(dir.path(), "s2", &["--join", &stranger.addr]).stop(), Some(0));
    let (code, told) = refused(dir.path(), "s2", &join, &[]);
    assert!(code == Some(3) && told.contains("belongs to herd"), "{told}");
    assert_eq!(stranger.stop(), Some(0));
    let (code, told) = refused(dir.path(), "s1", &join, &[]);
    assert!(code == Some(2) && told.contains("control store"), "{told}");
    assert_eq!(states(&first), serving(&["n1"]), "nobody came in");
}

/// The joiner had written its own name into the first node's directory, which was no place for a herd from then on.
#[test]
fn a_name_that_was_forgotten_harms_neither_node_and_is_told_at_once() {
    let state = tempfile::tempdir().expect("a directory");
    let env = [("XDG_STATE_HOME", state.path().to_str().expect("text"))];
    let args = ["--memory", "64m", "--threads", "1"];
    let first = Node::with_env(&[&args[..], &["--name", "vm"]].concat(), &env);
    first.feed(&["put", "a", "-"], b"1");
    let mut command = herd();
    command.args(["node", "--listen", "127.0.0.1:0", "--name", "vm", "--join", &first.addr]).args(args).envs(env);
    let output = command.stdin(Stdio::null()).output().expect("herd runs");
    let (place, told) = (state.path().join("herd/vm"), text(&output.stderr));
    let why = format!("{} belongs to a node that runs: give this one another --name or --data", place.display());
    assert!(output.status.code() == Some(2) && told.contains(&why), "{told}");
    // Who joins nobody is a herd by itself.
    let lone = Node::with_env(&[&args[..], &["--name", "vm"]].concat(), &env);
    lone.feed(&["put", "a", "-"], b"2");
    drop(lone);
    // One that is refused for its name, from a place of its own, leaves nothing there.
    let place = state.path().join("elsewhere");
    let join = ["--join", &first.addr, "--data", place.to_str().expect("text")];
    let (code, told) = refused(state.path(), "vm", &join[..2], &[]);
    assert!(code == Some(3) && told.contains("another node has the name 'vm'"), "{told}");
    assert!(!state.path().join("vm").exists());
    let second = Node::with_env(&[&args[..], &["--name", "two"], &join].concat(), &env);
    all_serve(&[first, second], &["vm", "two"]);
}

#[test]
fn a_herd_without_a_place_takes_nobody_and_serves() {
    let dir = tempfile::tempdir().expect("a directory");
    let first = Node::start(&["--memory", "64m", "--threads", "1", "--name", "n1"]);
    first.feed(&["put", "a", "-"], b"1");
    let (code, told) = refused(dir.path(), "n2", &["--join", &first.addr], &[]);
    assert!(code == Some(3) && told.contains("no place for the control store"), "{told}");
    assert_eq!(first.ok(&["get", "a"]), "1");
}

#[test]
fn who_is_no_node_is_told_so_in_bounded_time() {
    let dir = tempfile::tempdir().expect("a directory");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let addr = listener.local_addr().expect("an address").to_string();
    let other = std::thread::spawn(move || {
        let (mut socket, _) = listener.accept().expect("somebody comes");
        socket.write_all(b"SSH-2.0-OpenSSH_9.9\r\n").expect("said");
        let mut rest = Vec::new();
        socket.read_to_end(&mut rest).ok();
    });
    let (code, told) = refused(dir.path(), "n2", &["--join", &addr], &[]);
    assert!(code == Some(3) && told.contains("does not answer as a node"), "{told}");
    other.join().expect("no panic");
    let since = Instant::now();
    let (code, told) = refused(dir.path(), "n2", &["--join", "127.0.0.1:1"], &[]);
    assert!(code == Some(3) && told.contains("no node answers at 127.0.0.1:1"), "{told}");
    assert!(since.elapsed() < Duration::from_secs(15));
}

#[test]
fn a_node_of_an_older_protocol_is_told_so() {
    let dir = tempfile::tempdir().expect("a directory");
    let first = member(dir.path(), "n1", &[]);
    let join = Join {
        herd: Some(HerdId([1; 16])),
        protocol: 0,
        identity: Identity([2; 16]),
        process: [3; 16],
        name: "old".into(),
        addresses: vec!["127.0.0.1:1".into()],
        host: "h".into(),
        rack: String::new(),
        memory_bytes: 64 << 20,
        evict: false,
        moved: None,
    };
    let mut out = Vec::new();
    Joining::new(&join, [4; 16], Secret([0; 16])).expect("short").hello(&mut out);
    let mut socket = TcpStream::connect(&first.addr).expect("it accepts");
    socket.set_read_timeout(Some(SOON)).expect("a timeout");
    socket.write_all(&out).expect("said");
    let mut told = Vec::new();
    socket.read_to_end(&mut told).expect("answered and closed");
    let frame = parse_frame(&told).expect("a frame").expect("whole");
    assert_eq!((frame.header().kind, frame.header().code), (Kind::Goodbye, LinkErrorKind::OlderProtocol as u16));
}
