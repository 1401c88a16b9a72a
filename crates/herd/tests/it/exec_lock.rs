//! `herd exec` and `herd lock` on a real node.

use crate::node::{Node, herd, signal, text, within};
use std::fs;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

fn node() -> Node {
    Node::start(&["--memory", "64m"])
}

fn lock(node: &Node, args: &[&str]) -> Child {
    let mut command = herd();
    command.arg("lock").args(args).env("HERD_NODE", &node.addr);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("herd runs")
}

/// Its exit status and what it wrote on stderr.
fn end(child: Child) -> (Option<i32>, String) {
    let output = child.wait_with_output().expect("it ends");
    (output.status.code(), text(&output.stderr))
}

fn host() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").expect("a host has a name");
    name.trim().to_string()
}

fn soon(holds: impl FnMut() -> bool) {
    assert!(within(Duration::from_secs(10), holds), "it does not come true");
}

#[test]
fn methods_run_on_objects_and_print_their_answers() {
    let node = node();
    assert_eq!(node.ok(&["exec", "n", "fetch-and-add", "5"]), "0\n");
    assert_eq!(node.ok(&["exec", "n", "fetch-and-add", "-2"]), "5\n");
    assert_eq!(node.ok(&["get", "n"]), "3");
    assert_eq!(node.ok(&["exec", "l", "list-push", "one", "two"]), "2\n");
    assert_eq!(node.ok(&["exec", "l", "list-range", "0", "10"]), "one\ntwo\n");
    assert_eq!(node.ok(&["exec", "l", "list-pop"]), "one");
    assert_eq!(node.ok(&["exec", "n", "get-and-remove"]), "3");
    for (args, code) in [
        (&["exec", "n", "get-and-remove"][..], 1),
        (&["exec", "n", "no-such-method"], 2),
        (&["exec", "n", "fetch-and-add", "x"], 2),
        (&["exec", "l", "list-push", "x", "--if-version", "1"], 1),
        (&["exec", "none/l", "list-push", "x"], 1),
    ] {
        let output = node.herd(args);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {}", text(&output.stderr));
    }
}

#[test]
fn one_runs_at_a_time_and_the_next_when_it_is_done() {
    let node = node();
    let dir = tempfile::tempdir().expect("temporary directory");
    let counter = dir.path().join("n");
    fs::write(&counter, "0").expect("written");
    // Without the lock some would read the same number.
    let script = format!("n=$(cat {0}); sleep 0.05; echo $((n + 1)) > {0}", counter.display());
    let all: Vec<Child> = (0..6).map(|_| lock(&node, &["l", "--", "sh", "-c", &script])).collect();
    all.into_iter().for_each(|child| assert_eq!(end(child), (Some(0), String::new())));
    assert_eq!(fs::read_to_string(&counter).expect("there").trim(), "6");
    assert_eq!(node.herd(&["stat", "l"]).status.code(), Some(1), "the last one took the lock with it");
}

#[test]
fn the_exit_status_is_the_command_s_or_tells_that_others_hold_it() {
    let node = node();
    assert_eq!(end(lock(&node, &["l", "--", "sh", "-c", "exit 42"])).0, Some(42));
    assert_eq!(end(lock(&node, &["l", "--", "/no/such/program"])).0, Some(2));
    assert_eq!(end(lock(&node, &["l"])).0, Some(2), "a command is needed");
    let mut holder = lock(&node, &["l", "--shared", "--", "sleep", "60"]);
    soon(|| node.herd(&["stat", "l"]).status.success());
    let (code, told) = end(lock(&node, &["l", "--wait", "0", "--", "true"]));
    let label = format!("{} {}", host(), holder.id());
    assert!(code == Some(1) && told.contains(&format!("held by {label}")) && told.contains("s if it is not"), "{told}");
    assert_eq!(end(lock(&node, &["l", "--wait", "300ms", "--", "true"])).0, Some(1));
    assert_eq!(end(lock(&node, &["l", "--shared", "--wait", "0", "--", "true"])).0, Some(0), "it may be shared");
    signal(holder.id(), "-TERM");
    assert_eq!(holder.wait().expect("it ends").code(), Some(143), "a signal is passed on, and the lock given back");
    assert_eq!(end(lock(&node, &["l", "--wait", "0", "--", "true"])).0, Some(0));
}

#[test]
fn who_waits_for_a_lock_is_told_once_for_whom() {
    let node = node();
    let mut holder = lock(&node, &["l", "--", "sleep", "60"]);
    soon(|| node.herd(&["stat", "l"]).status.success());
    let waits = lock(&node, &["l", "--wait", "3s", "--", "true"]);
    let (code, told) = end(waits);
    let said = format!("herd: lock l: waiting: held by {} {}; ", host(), holder.id());
    assert!(code == Some(1) && told.starts_with(&said) && told.matches("waiting").count() == 1, "{told}");
    signal(holder.id(), "-TERM");
    holder.wait().expect("it ends");
}

#[test]
fn a_lease_is_renewed_as_long_as_the_command_runs() {
    let node = node();
    let dir = tempfile::tempdir().expect("temporary directory");
    let done = dir.path().join("done");
    let script = format!("sleep 1.5; touch {}", done.display());
    let mut holder = lock(&node, &["l", "--lease", "300ms", "--", "sh", "-c", &script]);
    soon(|| node.herd(&["stat", "l"]).status.success());
    while holder.try_wait().expect("it can be waited for").is_none() {
        let (code, told) = end(lock(&node, &["l", "--wait", "0", "--", "true"]));
        assert!(code == Some(1) || done.exists(), "{told}");
    }
    assert_eq!(end(holder).0, Some(0));
}

#[test]
fn a_live_loser_ends_its_command_within_half_a_lease() {
    let node = node();
    let dir = tempfile::tempdir().expect("temporary directory");
    let told = dir.path().join("told");
    let script = format!("trap 'echo told > {}; exit' TERM; sleep 60 & wait", told.display());
    let holder = lock(&node, &["l", "--lease", "6s", "--", "sh", "-c", &script]);
    soon(|| node.herd(&["stat", "l"]).status.success());
    node.ok(&["rm", "l"]);
    let begin = Instant::now();
    let (code, text) = end(holder);
    assert!(code == Some(1) && text.contains("lost"), "{text}");
    assert!(begin.elapsed() < Duration::from_millis(4_500), "{:?}", begin.elapsed());
    assert_eq!(fs::read_to_string(told).expect("it was told"), "told\n");
}

#[test]
fn a_holder_that_was_paused_beyond_its_lease_learns_it_on_resuming_and_can_undo_nothing() {
    let node = node();
    let dir = tempfile::tempdir().expect("temporary directory");
    let token_file = dir.path().join("token");
    let script = format!("echo $HERD_LOCK_TOKEN > {}; exec sleep 60", token_file.display());
    let holder = lock(&node, &["l", "--lease", "300ms", "--", "sh", "-c", &script]);
    soon(|| fs::read_to_string(&token_file).is_ok_and(|text| text.ends_with('\n')));
    let token = |path: &Path| fs::read_to_string(path).expect("there").trim().to_string();
    let late = token(&token_file);
    signal(holder.id(), "-STOP");
    let script = format!("echo $HERD_LOCK_TOKEN > {}", token_file.display());
    assert_eq!(end(lock(&node, &["l", "--wait", "10s", "--", "sh", "-c", &script])).0, Some(0));
    node.ok(&["put", "guarded", "/dev/null", "--token", &token(&token_file)]);
    assert_eq!(node.herd(&["put", "guarded", "/dev/null", "--token", &late]).status.code(), Some(1));
    assert_eq!(node.herd(&["get", "guarded", "--token", &late]).status.code(), Some(1));
    assert_eq!(node.herd(&["rm", "guarded", "--token", &late]).status.code(), Some(1));
    assert_eq!(node.herd(&["exec", "guarded", "append", "x", "--token", &late]).status.code(), Some(1));
    assert_eq!(node.herd(&["put", "guarded", "/dev/null"]).status.code(), Some(3), "no token is not allowed");
    let begin = Instant::now();
    signal(holder.id(), "-CONT");
    assert_eq!(end(holder).0, Some(1));
    assert!(begin.elapsed() < Duration::from_secs(5));
}

#[test]
fn a_node_that_dies_is_a_lock_that_is_lost() {
    let node = node();
    let holder = lock(&node, &["l", "--lease", "500ms", "--", "sleep", "60"]);
    soon(|| node.herd(&["stat", "l"]).status.success());
    node.signal("-KILL");
    let begin = Instant::now();
    assert_eq!(end(holder).0, Some(1));
    assert!(begin.elapsed() < Duration::from_secs(5));
}

#[test]
fn a_lock_that_went_with_its_node_is_no_success() {
    let node = node();
    let holder = lock(&node, &["l", "--", "sleep", "1"]);
    soon(|| node.herd(&["stat", "l"]).status.success());
    node.signal("-KILL");
    let (code, told) = end(holder);
    assert!(code == Some(1) && told.contains("lock l: nothing tells that it was held"), "{code:?} {told}");
}

#[test]
fn an_object_that_a_lock_guards_is_named_and_holds_up_no_copy() {
    let node = node();
    let dir = tempfile::tempdir().expect("temporary directory");
    let tree = dir.path().join("tree");
    fs::create_dir(&tree).expect("made");
    (0..20).for_each(|n| fs::write(tree.join(format!("f{n:02}")), "x").expect("written"));
    let put =
        format!("{} put t/f05 {} --token $HERD_LOCK_TOKEN", env!("CARGO_BIN_EXE_herd"), tree.join("f05").display());
    node.ok(&["collection", "create", "t"]);
    assert_eq!(end(lock(&node, &["l", "--", "sh", "-c", &put])), (Some(0), String::new()));
    fs::write(tree.join("f05"), "another size").expect("written");
    let output = node.herd(&["cp", "-r", &tree.display().to_string(), "herd:t"]);
    let told = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(told.contains("f05") && told.contains("guarded by a lock"), "{told}");
    assert_eq!(node.ok(&["ls", "t/"]).lines().count(), 20, "the others were copied");
    let output = node.herd(&["rm", "-r", "t/"]);
    let told = text(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{told}");
    assert!(told.contains("t/f05: ") && told.contains("removed before it"), "{told}");
}

#[test]
fn what_somebody_else_removes_meanwhile_ends_neither_a_removal_nor_a_listing() {
    let node = node();
    let dir = tempfile::tempdir().expect("temporary directory");
    let tree = dir.path().join("tree");
    fs::create_dir(&tree).expect("made");
    (0..3000).for_each(|n| fs::write(tree.join(format!("f{n}")), "x").expect("written"));
    node.ok(&["collection", "create", "t"]);
    node.ok(&["cp", "-r", &tree.display().to_string(), "herd:t"]);
    let start = |args: &[&str]| {
        let mut command = herd();
        command.args(args).env("HERD_NODE", &node.addr).stdout(Stdio::null()).stderr(Stdio::piped());
        command.spawn().expect("herd runs")
    };
    let all = [start(&["ls", "-l", "t/"]), start(&["rm", "-r", "t/"]), start(&["rm", "-r", "t/"])];
    for child in all {
        let (code, told) = end(child);
        let came_late = code == Some(1) && told.contains("no objects under");
        assert!(code == Some(0) || came_late, "{code:?} {told}");
    }
    assert_eq!(node.ok(&["ls", "t/"]), "");
}
