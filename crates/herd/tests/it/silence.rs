//! Nodes that stand still: the others go on without them, and what they answer afterwards is not of before.

use crate::herds::three_that_keep;
use crate::node::{Node, within};
use std::io::{BufRead, BufReader, Write};
use std::time::{Duration, Instant};

/// Longer than a lease and what follows take, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) fn put(node: &Node, name: &str, value: &str) -> bool {
    let mut socket = BufReader::new(node.connect());
    write!(socket.get_mut(), "set {name} 0 0 {}\r\n{value}\r\n", value.len()).expect("sent");
    let mut said = String::new();
    socket.read_line(&mut said).is_ok() && said == "STORED\r\n"
}

/// What a node says to a get that was sent.
pub(crate) fn value(mut from: impl BufRead) -> String {
    let mut lines = from.by_ref().lines().map_while(Result::ok);
    match lines.next() {
        Some(line) if line.starts_with("VALUE ") => lines.next().unwrap_or_default(),
        other => other.unwrap_or_default(),
    }
}

pub(crate) fn get(node: &Node, name: &str) -> String {
    let mut socket = BufReader::new(node.connect());
    write!(socket.get_mut(), "get {name}\r\n").expect("sent");
    value(socket)
}

#[test]
fn others_go_on_without_a_node_that_stands_still_and_it_answers_nothing_of_before() {
    let nodes = three_that_keep(3, &["--memory", "64m", "--threads", "1"], &[]);
    let [first, second, third] = [0, 1, 2].map(|at| &nodes[at].0);
    let names: Vec<String> = (0..24).map(|number| format!("k{number}")).collect();
    assert!(names.iter().all(|name| put(first, name, "old")));
    // Each get lies in the node's socket while its object is written elsewhere.
    let asked: Vec<_> = names.iter().map(|name| (name, third.connect())).collect();
    for (_, socket) in &asked {
        // Its door is settled.
        let mut socket = socket;
        socket.write_all(b"mn\r\n").expect("sent");
        let mut said = [0; 4];
        std::io::Read::read_exact(&mut socket, &mut said).expect("it answers");
    }
    third.signal("-STOP");
    let since = Instant::now();
    for (name, socket) in &asked {
        let mut socket = socket;
        write!(socket, "get {name}\r\n").expect("it fits into the socket");
    }
    for (number, name) in names.iter().enumerate() {
        let node = if number % 2 == 0 { first } else { second };
        assert!(within(PATIENCE, || put(node, name, "new")), "{name} is written without the third node");
    }
    assert!(names.iter().all(|name| get(second, name) == "new"));
    let took = since.elapsed();
    assert!(took < Duration::from_secs(12), "{took:?}");
    third.signal("-CONT");
    for (name, socket) in asked {
        let said = value(BufReader::new(socket));
        assert!(said == "new" || said.starts_with("SERVER_ERROR"), "{name}: {said}");
    }
    first.ok(&["status", "--wait", "--timeout", "30s"]);
    assert!(within(PATIENCE, || names.iter().all(|name| get(third, name) == "new")));
    first.ok(&["fsck"]);
}

#[test]
fn a_node_that_stands_still_for_a_moment_is_not_taken_out() {
    let nodes = three_that_keep(3, &["--memory", "64m", "--threads", "1"], &[]);
    let (first, third) = (&nodes[0].0, &nodes[2].0);
    assert!((0..24).all(|number| put(first, &format!("k{number}"), "old")));
    let epoch = || {
        let status: serde_json::Value = serde_json::from_str(&first.ok(&["status", "--json"])).expect("JSON");
        status["epoch"].as_u64().expect("a number")
    };
    let before = epoch();
    for _ in 0..3 {
        third.signal("-STOP");
        std::thread::sleep(Duration::from_millis(700));
        third.signal("-CONT");
        std::thread::sleep(Duration::from_millis(300));
    }
    assert!((0..24).all(|number| get(third, &format!("k{number}")) == "old"));
    assert_eq!(epoch(), before);
}
