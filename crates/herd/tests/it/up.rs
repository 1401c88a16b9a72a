//! A herd in the background: it comes up, what dies comes back, and nothing of it is left when it is ended.

use crate::node::{Node, herd, text, within};
use serde_json::Value;
use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_secs(10);

/// A command on the herd of this directory.
fn run(state: &Path, args: &[&str]) -> Output {
    herd().args(args).env("XDG_STATE_HOME", state).stdin(Stdio::null()).output().expect("herd runs")
}

fn up(state: &Path, more: &[&str]) -> Vec<String> {
    let output = run(state, &[&["up", "--port", "0", "--memory", "192m"], more].concat());
    let line = text(&output.stdout);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(line.lines().count(), 1, "{line}");
    line.strip_prefix("ready ").expect("it says that it is ready").split_whitespace().map(str::to_owned).collect()
}

/// The keeper of a herd; `None`: there is none.
fn keeper(dir: &Path) -> Option<u64> {
    serde_json::from_slice::<Value>(&fs::read(dir.join("up.json")).ok()?).ok()?["pid"].as_u64()
}

/// Processes whose parent is this one.
fn children(pid: u64) -> Vec<u64> {
    let path = format!("/proc/{pid}/task/{pid}/children");
    let text = fs::read_to_string(path).unwrap_or_default();
    text.split_whitespace().map(|pid| pid.parse().expect("a number")).collect()
}

fn is_there(pid: u64) -> bool {
    // One that has ended and is not waited for is not there either.
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| !rest.is_empty() && !rest.trim_start().starts_with('Z'))
}

fn kill(pid: u64) {
    Command::new("kill").args(["-KILL", &pid.to_string()]).status().expect("kill runs");
}

fn serving(addr: &str) -> usize {
    let output = herd().args(["nodes", "--json", "--node", addr]).output().expect("herd runs");
    let nodes: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    nodes.as_array().into_iter().flatten().filter(|node| node["state"] == "serving").count()
}

/// Ends the herd of a directory when it goes, so that a test that fails leaves none behind.
struct Ends<'a>(&'a Path, &'a [&'a str]);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        run(self.0, &[&["down"], self.1].concat());
    }
}

#[test]
fn more_memory_than_the_machine_has_is_refused_with_what_fits() {
    let state = tempfile::tempdir().expect("a directory");
    let output = run(state.path(), &["up", "--port", "0", "--memory", "1000000g"]);
    let told = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{told}");
    assert!(told.contains("--memory 976.5 TiB is for all nodes together, and this machine"), "{told}");
    let most = told.split("that fits is --memory ").nth(1).and_then(|rest| rest.trim().strip_suffix('m'));
    assert!(most.and_then(|most| most.parse::<u64>().ok()).is_some_and(|most| most > 64), "{told}");
    assert!(fs::read_dir(state.path()).expect("there").next().is_none(), "nothing was begun");
}

#[test]
fn the_directory_of_a_node_is_no_place_for_a_herd() {
    let state = tempfile::tempdir().expect("a directory");
    let dir = state.path().join("n1");
    let data = dir.to_str().expect("text");
    drop(Node::start(&["--memory", "64m", "--threads", "1", "--name", "n1", "--data", data]));
    let names = || {
        let entries = fs::read_dir(&dir).expect("there").map(|entry| entry.expect("read").file_name());
        entries.collect::<std::collections::BTreeSet<_>>()
    };
    let before = names();
    let output = run(state.path(), &["up", "--port", "0", "--memory", "192m", "--data", data]);
    let told = text(&output.stderr);
    assert!(output.status.code() == Some(2) && told.contains("holds the files of a node"), "{told}");
    assert_eq!(names(), before, "nothing is left behind");
    assert_eq!(run(state.path(), &["down", "--data", data]).status.code(), Some(1));
    assert_eq!(names(), before);
}

#[test]
fn a_herd_comes_up_lives_on_and_goes_without_a_trace() {
    let state = tempfile::tempdir().expect("a directory");
    let _ends = Ends(state.path(), &[]);
    let dir = state.path().join("herd/up");
    let since = Instant::now();
    let addrs = up(state.path(), &[]);
    assert!(addrs.len() == 3 && since.elapsed() < SOON, "{addrs:?}");
    assert_eq!(addrs.iter().map(|addr| serving(addr)).collect::<Vec<_>>(), [3, 3, 3], "each sees all at once");
    let twice = run(state.path(), &["up", "--port", "0"]);
    assert!(twice.status.code() == Some(2) && text(&twice.stderr).contains("runs in"), "{}", text(&twice.stderr));

    let keeper = keeper(&dir).expect("it is noted");
    let before = children(keeper);
    assert_eq!(before.len(), 3);
    kill(before[1]);
    assert!(
        within(SOON, || children(keeper).len() == 3 && !children(keeper).contains(&before[1])),
        "it is started again"
    );
    assert!(within(SOON, || serving(&addrs[0]) == 3), "and is in the herd again, at its old address");

    let (all, since) = (children(keeper), Instant::now());
    let down = run(state.path(), &["down"]);
    assert!(down.status.success() && since.elapsed() < Duration::from_secs(6), "{}", text(&down.stderr));
    assert!(!all.iter().chain([&keeper]).any(|pid| is_there(*pid)));
    assert_eq!(run(state.path(), &["down"]).status.code(), Some(1), "there is none any more");
}

/// What a keeper has written is still there, and another one has just been started, which has written nothing yet.
fn who_has_the_number_of_a_keeper_that_was_killed_is_left_alone(state: &Path, dir: &Path) {
    let mut other = Command::new("sleep").arg("60").spawn().expect("sleep runs");
    let mut left: Value = serde_json::from_slice(&fs::read(dir.join("up.json")).expect("left")).expect("JSON");
    left["pid"] = other.id().into();
    fs::write(dir.join("up.json"), left.to_string()).expect("written");
    let lock = fs::File::open(dir.join("up.lock")).expect("left");
    lock.lock().expect("nobody has it");
    let down = run(state, &["down", "--data", dir.to_str().expect("text")]);
    let told = text(&down.stderr);
    assert!(down.status.code() == Some(3) && told.contains("can't be seen from here"), "{told}");
    assert!(is_there(other.id().into()));
    other.kill().and_then(|()| other.wait()).expect("it is ours");
}

#[test]
fn a_keeper_that_is_killed_takes_its_nodes_along() {
    let state = tempfile::tempdir().expect("a directory");
    let dir = state.path().join("data");
    let data = dir.to_str().expect("text");
    let with_data = ["--data", data];
    let _ends = Ends(state.path(), &with_data);
    let addrs = up(state.path(), &["--nodes", "2", "--replicas", "1", "--data", data]);
    let groups = herd().args(["group", "ls", "--json", "--node", &addrs[0]]).output().expect("herd runs");
    let groups: Value = serde_json::from_slice(&groups.stdout).expect("JSON");
    assert!(groups.as_array().is_some_and(|all| all.iter().all(|group| group["copies"] == 1)), "{groups}");
    let made = herd().args(["collection", "create", "photos", "--node", &addrs[1]]).status().expect("herd runs");
    assert!(made.success());
    let keeper = keeper(&dir).expect("it is noted");
    let all = children(keeper);
    kill(keeper);
    assert!(within(SOON, || !all.iter().any(|pid| is_there(*pid))));
    let down = run(state.path(), &["down", "--data", data]);
    let told = text(&down.stderr);
    assert!(down.status.code() == Some(1) && told.contains(&format!("`herd up --data {data}` starts one")), "{told}");
    who_has_the_number_of_a_keeper_that_was_killed_is_left_alone(state.path(), &dir);
    // With a directory of its own the herd goes on.
    let fewer = run(state.path(), &["up", "--nodes", "1", "--port", "0", "--data", data]);
    assert!(fewer.status.code() == Some(2) && text(&fewer.stderr).contains("--nodes 2"), "{}", text(&fewer.stderr));
    let other = run(state.path(), &["up", "--nodes", "2", "--replicas", "2", "--port", "0", "--data", data]);
    let told = text(&other.stderr);
    assert!(other.status.code() == Some(2) && told.contains("--replicas 2: the herd that is there keeps 1 "), "{told}");
    let addrs = up(state.path(), &["--nodes", "2", "--data", data]);
    let twice = run(state.path(), &["up", "--port", "0", "--data", data]);
    let told = text(&twice.stderr);
    assert!(told.contains(&format!("`herd down --data {data}` ends it")), "{told}");
    let listed = herd().args(["collection", "ls", "--node", &addrs[0]]).output().expect("herd runs");
    assert!(text(&listed.stdout).contains("photos"));
    assert!(run(state.path(), &["down", "--data", data]).status.success());
}

#[test]
fn a_herd_that_can_not_come_up_says_why_and_leaves_nothing() {
    let state = tempfile::tempdir().expect("a directory");
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("an address").port().to_string();
    let output = run(state.path(), &["up", "--port", &port, "--memory", "192m"]);
    let told = text(&output.stderr);
    assert!(output.status.code() == Some(2) && told.contains("is taken") && told.contains("up.log"), "{told}");
    assert_eq!(run(state.path(), &["down"]).status.code(), Some(1));
    let output = run(state.path(), &["up", "--port", "0", "--memory", "12m"]);
    assert!(output.status.code() == Some(2) && text(&output.stderr).contains("too little"), "{}", text(&output.stderr));
}

#[test]
fn a_herd_that_was_ended_goes_on_with_its_collections_and_takes_writes_in_each() {
    let state = tempfile::tempdir().expect("a directory");
    let dir = state.path().join("data");
    let data = dir.to_str().expect("it is text");
    let _ends = Ends(state.path(), &["--data", data]);
    let asked = |addr: &str, args: &[&str]| run(state.path(), &[args, &["--node", addr]].concat());
    let put = |addr: &str| {
        for key in ["x", "alone/x"] {
            let output = asked(addr, &["put", key, "Cargo.toml"]);
            assert!(output.status.success(), "{key}: {}", text(&output.stderr));
        }
    };
    let addr = up(state.path(), &["--data", data]).remove(1);
    let made = asked(&addr, &["collection", "create", "alone", "--class", "ram:1"]);
    assert!(made.status.success(), "{}", text(&made.stderr));
    put(&addr);
    assert!(run(state.path(), &["down", "--data", data]).status.success());

    let addr = up(state.path(), &["--data", data]).remove(1);
    put(&addr);
    let status: Value = serde_json::from_slice(&asked(&addr, &["status", "--json"]).stdout).expect("it is JSON");
    assert_eq!(status["groups_stopped"], 0, "{status}");
    let losses = status["losses"].as_array().map_or(0, Vec::len);
    assert!(losses > 0, "what was there is gone, and that is told: {status}");
}

/// Groups of before the third node are those of two: when all was started anew they open over nodes that live.
#[test]
fn a_herd_that_grew_between_two_starts_takes_writes_in_each_collection() {
    let state = tempfile::tempdir().expect("a directory");
    let dir = state.path().join("data");
    let data = dir.to_str().expect("it is text");
    let _ends = Ends(state.path(), &["--data", data]);
    let ok = |addr: &str, args: &[&str]| {
        let output = run(state.path(), &[args, &["--node", addr]].concat());
        assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
        output.stdout
    };
    let addr = up(state.path(), &["--data", data, "--nodes", "2", "--replicas", "1"]).remove(0);
    ok(&addr, &["collection", "create", "photos", "--replicas", "2"]);
    ok(&addr, &["collection", "create", "pics", "--class", "ram:2"]);
    ok(&addr, &["put", "x", "Cargo.toml"]);
    for _ in 0..3 {
        assert!(run(state.path(), &["down", "--data", data]).status.success());
        let addr = up(state.path(), &["--data", data, "--nodes", "3"]).remove(0);
        let status: Value = serde_json::from_slice(&ok(&addr, &["status", "--json"])).expect("it is JSON");
        assert_eq!(status["groups_stopped"], 0, "{status}");
        for key in ["x", "photos/x", "pics/x"] {
            ok(&addr, &["put", key, "Cargo.toml"]);
        }
    }
}
