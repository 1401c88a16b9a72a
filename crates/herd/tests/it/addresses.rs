//! Nodes that are started again at other addresses: the others hear of it, and none of them is restarted.

use crate::herds::three_that_keep;
use crate::node::{Node, within};
use crate::silence::{get, put};
use std::fs;
use std::path::Path;
use std::time::Duration;
use tempfile::TempDir;

const SOON: Duration = Duration::from_secs(10);
/// What follows the others' hearing of it; a busy machine takes its time.
const PATIENCE: Duration = Duration::from_secs(40);

fn args(threads: &str) -> [&str; 4] {
    ["--memory", "96m", "--threads", threads]
}

/// A copy of a node's directory, as another machine is given it.
fn copy(of: &Path) -> TempDir {
    let to = tempfile::tempdir().expect("a directory");
    for entry in fs::read_dir(of).expect("it is there") {
        let entry = entry.expect("listed");
        if entry.file_type().is_ok_and(|kind| kind.is_file()) {
            fs::copy(entry.path(), to.path().join(entry.file_name())).expect("copied");
        }
    }
    to
}

fn key(number: usize) -> String {
    format!("k{number}")
}

/// Kills a node and starts it, from a copy of its directory, at another port, in a herd with objects.
fn moves(nodes: &mut [(Node, TempDir)], number: usize, threads: &str, joins: bool) {
    assert!((0..24).all(|key_of| put(&nodes[0].0, &key(key_of), "old")));
    let others: Vec<u32> = nodes.iter().map(|(node, _)| node.pid()).collect();
    let before = nodes[number].0.addr.clone();
    nodes[number].0.signal("-KILL");
    nodes[number].0.wait();
    let dir = copy(nodes[number].1.path());
    let (name, data) = (format!("n{}", number + 1), dir.path().to_str().expect("text").to_owned());
    let other = nodes[(number + 1) % 3].0.addr.clone();
    let herd = if joins { vec!["--join", &other] } else { Vec::new() };
    // Nobody else is given its port meanwhile, and it is not given it again.
    let held = std::net::TcpListener::bind(&before);
    let node = Node::with_env(&[&["--name", &name, "--data", &data][..], &herd, &args(threads)].concat(), &[]);
    assert!(held.is_ok() && node.addr != before);
    nodes[number] = (node, dir);
    for (other, _) in &*nodes {
        let mut shown = String::new();
        let knows = || {
            shown = String::from_utf8_lossy(&other.herd(&["nodes"]).stdout).into_owned();
            shown.contains(&nodes[number].0.addr) && !shown.contains(&before)
        };
        assert!(within(SOON, knows), "{shown}");
    }
    for key_of in 0..24 {
        let (at, name) = (&nodes[key_of % 3].0, key(key_of));
        assert!(within(PATIENCE, || get(at, &name) == "old"), "{name}: {}", get(at, &name));
        assert!(within(PATIENCE, || put(at, &name, "new")), "{name}");
    }
    assert!((0..24).all(|key_of| get(&nodes[(key_of + 1) % 3].0, &key(key_of)) == "new"));
    let is_clean = || nodes[number].0.herd(&["fsck"]).status.success();
    assert!(within(PATIENCE, is_clean), "{}", nodes[number].0.ok(&["status"]));
    let same = |(at, pid): (usize, &u32)| at == number || (nodes[at].0.pid() == *pid);
    assert!(others.iter().enumerate().all(same));
    assert!(nodes.iter_mut().all(|(node, _)| !node.has_ended()));
}

#[test]
fn the_first_node_is_found_at_another_address() {
    for threads in ["1", "3"] {
        let mut nodes = three_that_keep(2, &args(threads), &[]);
        moves(&mut nodes, 0, threads, false);
    }
}

#[test]
fn the_node_of_the_warden_is_found_at_another_address_whatever_its_number() {
    let mut nodes = three_that_keep(2, &args("1"), &[]);
    nodes[0].0.ok(&["control", "move", "n2"]);
    moves(&mut nodes, 1, "1", false);
}

#[test]
fn a_node_that_joins_again_is_found_at_another_address() {
    let mut nodes = three_that_keep(2, &args("1"), &[]);
    moves(&mut nodes, 1, "1", true);
}
