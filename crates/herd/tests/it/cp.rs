//! `herd cp`: what it takes, what it writes and what it leaves alone.

use crate::node::{Node, herd, pattern, text, within};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

fn node() -> Node {
    Node::start(&["--memory", "256m"])
}

fn dir() -> tempfile::TempDir {
    tempfile::tempdir().expect("temporary directory")
}

fn put(node: &Node, key: &str, bytes: &[u8]) {
    let file = tempfile::NamedTempFile::new().expect("temporary file");
    fs::write(file.path(), bytes).expect("written");
    node.ok(&["put", key, file.path().to_str().expect("text")]);
}

fn collection(node: &Node, name: &str) {
    node.ok(&["collection", "create", name]);
}

fn str(path: &Path) -> &str {
    path.to_str().expect("text")
}

/// Names in a directory, sorted.
fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).expect("a directory");
    let mut names: Vec<String> =
        entries.map(|entry| entry.expect("readable").file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).expect("there").permissions().mode() & 0o7777
}

/// Puts an object that `cp` takes for a directory or link, as another herd or an attacker would.
fn put_special(node: &Node, path: &str, headers: &str) {
    let request =
        format!("PUT /o/{path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n{headers}Connection: close\r\n\r\n");
    let answer = node.talk(request.as_bytes());
    assert!(answer.starts_with(b"HTTP/1.1 20"), "{}", text(&answer));
}

#[test]
fn files_whose_long_names_begin_alike_come_back_as_they_were() {
    let node = node();
    collection(&node, "long");
    let (from, to) = (dir(), dir());
    let begin = "n".repeat(200);
    for i in 0..24 {
        let bytes = pattern((1 << 20) + i * 100_000, 7 + i as u64);
        fs::write(from.path().join(format!("{begin}{i:02}")), bytes).expect("written");
    }
    node.ok(&["cp", "-q", "-r", str(from.path()), "herd:long"]);
    node.ok(&["cp", "-q", "-r", "herd:long", str(to.path())]);
    let same = Command::new("diff").arg("-rq").args([from.path(), to.path()]).output().expect("diff runs");
    assert!(same.status.success(), "{}", text(&same.stdout));
}

#[test]
fn of_objects_that_mean_one_path_only_one_is_copied_and_the_others_told() {
    let node = node();
    collection(&node, "same");
    for name in ["a/b", "a//b", "a/./b"] {
        put(&node, &format!("same/{name}"), name.as_bytes());
    }
    let to = dir();
    let output = node.herd(&["cp", "-r", "herd:same", str(to.path())]);
    assert_eq!(output.status.code(), Some(1));
    let told = text(&output.stderr);
    assert!(told.contains("copied 1 ") && told.contains("2 failed") && told.contains("same path"), "{told}");
}

#[test]
fn nothing_outside_the_target_is_changed_through_a_link_that_was_copied_before() {
    let node = node();
    collection(&node, "evil");
    let (outside, to) = (dir(), dir());
    fs::set_permissions(outside.path(), fs::Permissions::from_mode(0o700)).expect("set");
    let before = fs::metadata(outside.path()).expect("there");
    put_special(&node, "evil/d", &format!("Herd-Link: {}\r\nHerd-Mode: 120777\r\n", str(outside.path())));
    node.ok(&["cp", "-q", "-r", "herd:evil", str(to.path())]);
    assert!(to.path().join("d").is_symlink());
    put_special(&node, "evil/d/", "Herd-Mode: 40777\r\nHerd-Mtime: 1000000000\r\n");
    put_special(&node, "evil/d/sub/", "Herd-Mode: 40777\r\nHerd-Mtime: 1000000000\r\n");
    put(&node, "evil/d/file", b"x");
    let output = node.herd(&["cp", "-r", "herd:evil", str(to.path())]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    let after = fs::metadata(outside.path()).expect("there");
    assert_eq!((after.mode(), after.mtime(), after.mtime_nsec()), (before.mode(), before.mtime(), before.mtime_nsec()));
    assert!(names(outside.path()).is_empty());
}

#[test]
fn a_file_where_the_herd_has_a_directory_is_told_and_left_as_it_is() {
    let node = node();
    collection(&node, "c");
    put_special(&node, "c/d/", "Herd-Mode: 40700\r\n");
    put(&node, "c/d/x", b"x");
    let to = dir();
    fs::write(to.path().join("d"), b"mine").expect("written");
    let before = mode(&to.path().join("d"));
    let output = node.herd(&["cp", "-r", "herd:c", str(to.path())]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!((fs::read(to.path().join("d")).expect("there"), mode(&to.path().join("d"))), (b"mine".to_vec(), before));
}

#[test]
fn a_link_given_as_argument_is_followed_by_cp_and_copied_by_cp_r() {
    let node = node();
    collection(&node, "c");
    let at = dir();
    fs::create_dir(at.path().join("real")).expect("made");
    fs::write(at.path().join("real/f"), b"hello").expect("written");
    symlink("real/f", at.path().join("file-link")).expect("linked");
    symlink("real", at.path().join("dir-link")).expect("linked");
    let path = |name: &str| format!("{}/{name}", str(at.path()));
    node.ok(&["cp", "-q", &path("file-link"), "herd:c/followed"]);
    assert_eq!(node.ok(&["get", "c/followed"]), "hello");
    node.ok(&["cp", "-q", "-r", &path("dir-link"), "herd:c/link"]);
    node.ok(&["cp", "-q", "herd:c/link", &path("back")]);
    assert_eq!(fs::read_link(path("back")).expect("a link"), Path::new("real"));
    node.ok(&["cp", "-q", "-r", &path("dir-link/"), "herd:c/tree"]);
    assert_eq!(node.ok(&["get", "c/tree/f"]), "hello");
}

#[test]
fn a_pipe_given_as_argument_is_copied_by_its_bytes() {
    let node = node();
    let script = "exec \"$0\" cp -q <(printf hello) herd:q";
    let status = Command::new("bash")
        .args(["-c", script, herd().get_program().to_str().expect("text")])
        .env("HERD_NODE", &node.addr)
        .status()
        .expect("bash runs");
    assert!(status.success());
    assert_eq!(node.ok(&["get", "q"]), "hello");
}

#[test]
fn sub_directories_and_the_current_one_are_copied() {
    let node = node();
    collection(&node, "photos");
    let at = dir();
    fs::create_dir_all(at.path().join("2026/may")).expect("made");
    fs::write(at.path().join("2026/may/cat"), b"cat").expect("written");
    fs::set_permissions(at.path().join("2026"), fs::Permissions::from_mode(0o750)).expect("set");
    let run = |args: &[&str]| {
        let output = herd().args(args).current_dir(at.path()).env("HERD_NODE", &node.addr).output().expect("runs");
        assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
    };
    run(&["cp", "-q", "-r", ".", "herd:photos"]);
    run(&["cp", "-q", "-r", "herd:photos/2026", "out"]);
    assert_eq!(fs::read(at.path().join("out/may/cat")).expect("there"), b"cat");
    assert_eq!(mode(&at.path().join("out")), 0o750);
    fs::remove_dir_all(at.path().join("out")).expect("removed");
    run(&["cp", "-q", "-r", ".", "herd:"]);
    assert_eq!(node.ok(&["get", "default/2026/may/cat"]), "cat");
    // A target that was there keeps its own mode.
    fs::create_dir(at.path().join("there")).expect("made");
    fs::set_permissions(at.path().join("there"), fs::Permissions::from_mode(0o700)).expect("set");
    run(&["cp", "-q", "-r", "herd:photos/2026", "there"]);
    assert_eq!(mode(&at.path().join("there")), 0o700);
}

#[test]
fn what_fails_for_all_ends_a_copy_at_once() {
    let node = Node::start(&["--memory", "16m"]);
    let at = dir();
    for i in 0..400 {
        fs::write(at.path().join(format!("f{i}")), pattern(100_000, 1 + i)).expect("written");
    }
    let fails = |to: &str, code: i32| {
        let output = node.herd(&["cp", "-r", str(at.path()), to]);
        let told = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{told}");
        assert!(told.lines().count() <= 3 && told.contains("ends here"), "{told}");
    };
    fails("herd:unknown/x", 1);
    collection(&node, "full");
    fails("herd:full", 3);
    let output = node.herd(&["cp", "-r", str(at.path()), "herd:full", "--node", "127.0.0.1:1"]);
    assert_eq!((output.status.code(), text(&output.stderr).lines().count()), (Some(3), 2));
}

#[test]
fn a_dash_is_a_pipe_everywhere() {
    let node = node();
    let at = dir();
    let run = |args: &[&str], input: &[u8]| {
        let mut child = herd()
            .args(args)
            .current_dir(at.path())
            .env("HERD_NODE", &node.addr)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("runs");
        child.stdin.take().expect("piped").write_all(input).expect("taken");
        let output = child.wait_with_output().expect("ends");
        assert!(output.status.success(), "{args:?}");
        output.stdout
    };
    run(&["cp", "-q", "-", "herd:x"], b"from a pipe");
    assert_eq!(run(&["cp", "-q", "herd:x", "-"], b""), b"from a pipe");
    assert_eq!(run(&["get", "x", "-o", "-"], b""), b"from a pipe");
    assert!(names(at.path()).is_empty(), "no file was made");
}

#[test]
fn names_beyond_ascii_and_of_any_bytes_come_back() {
    let node = node();
    collection(&node, "odd");
    let (from, to) = (dir(), dir());
    let names =
        ["\u{65e5}".repeat(82).into_bytes(), "\u{1f600}".repeat(63).into_bytes(), vec![0xff; 100], vec![b'x'; 255]];
    for name in &names {
        fs::write(from.path().join(OsStr::from_bytes(name)), name).expect("written");
    }
    node.ok(&["cp", "-q", "-r", str(from.path()), "herd:odd"]);
    node.ok(&["cp", "-q", "-r", "herd:odd", str(to.path())]);
    for name in &names {
        assert_eq!(&fs::read(to.path().join(OsStr::from_bytes(name))).expect("there"), name);
    }
    let path = to.path().join("y".repeat(255));
    put(&node, "x", b"x");
    node.ok(&["get", "x", "-o", str(&path)]);
    assert_eq!(fs::read(path).expect("there"), b"x");
}

#[test]
fn an_interrupted_copy_leaves_nothing_behind() {
    let node = node();
    put(&node, "big", &pattern(100 << 20, 5));
    let to = dir();
    for (signal, code, args) in [
        ("-INT", 130, &["get", "big", "-o"][..]),
        ("-TERM", 143, &["get", "big", "-o"]),
        ("-INT", 130, &["cp", "herd:big"]),
    ] {
        let path = to.path().join("out");
        // The node stands still, so that the copy can't end before the signal.
        let mut child = herd();
        child.args(args).arg(&path).env("HERD_NODE", &node.addr).stderr(Stdio::null());
        node.signal("-STOP");
        let mut child = child.spawn().expect("runs");
        let pid = child.id();
        let has_thread = || fs::read_dir(format!("/proc/{pid}/task")).is_ok_and(|tasks| tasks.count() > 1);
        assert!(within(Duration::from_secs(5), has_thread), "it listens to signals");
        Command::new("kill").args([signal, &pid.to_string()]).status().expect("kill runs");
        assert_eq!(child.wait().expect("ends").code(), Some(code));
        node.signal("-CONT");
        assert!(names(to.path()).is_empty(), "{:?}", names(to.path()));
    }
}

#[test]
fn several_sources_go_into_one_place_each_under_its_name() {
    let node = node();
    collection(&node, "c");
    let (at, to) = (dir(), dir());
    fs::create_dir(at.path().join("tree")).expect("made");
    fs::write(at.path().join("tree/f"), b"f").expect("written");
    fs::write(at.path().join("one"), b"1").expect("written");
    let path = |name: &str| format!("{}/{name}", str(at.path()));
    node.ok(&["cp", "-q", "-r", &path("tree"), &path("one"), "herd:c"]);
    assert_eq!(node.ok(&["ls", "c/"]), "one\ntree/\ntree/f\n");
    node.ok(&["cp", "-q", "-r", "herd:c/tree", "herd:c/one", str(to.path())]);
    assert_eq!(names(to.path()), ["one", "tree"]);
    assert_eq!(fs::read(to.path().join("tree/f")).expect("there"), b"f");
}

#[test]
fn a_dry_run_tells_and_does_nothing() {
    let node = node();
    collection(&node, "c");
    let (at, to) = (dir(), dir());
    fs::write(at.path().join("f"), b"f").expect("written");
    let told = |args: &[&str]| text(&node.herd(args).stderr);
    let said = told(&["cp", "-n", "-r", str(at.path()), "herd:c"]);
    assert!(said.contains("would copy") && said.contains("/f") && node.ok(&["ls", "c/"]).is_empty(), "{said}");
    let said = told(&["cp", "-v", "-r", str(at.path()), "herd:c"]);
    assert!(said.contains("copied 1 ") && said.lines().count() == 2, "{said}");
    told(&["cp", "-n", "-r", "herd:c", str(to.path())]);
    assert!(names(to.path()).is_empty());
}

#[test]
fn no_program_with_set_user_id_comes_out_of_a_herd() {
    let node = node();
    collection(&node, "c");
    put_special(&node, "c/su", "Herd-Mode: 106755\r\nHerd-Mtime: 1000000000\r\n");
    let to = dir();
    for copied in ["copied 1 ", "copied 0 "] {
        let output = node.herd(&["cp", "-r", "herd:c", str(to.path())]);
        assert!(text(&output.stderr).contains(copied), "{}", text(&output.stderr));
        assert_eq!(mode(&to.path().join("su")), 0o755);
    }
}

#[test]
fn a_special_file_within_a_tree_is_told_and_not_read() {
    let node = node();
    collection(&node, "c");
    let at = dir();
    Command::new("mkfifo").arg(at.path().join("fifo")).status().expect("mkfifo runs");
    let output = node.herd(&["cp", "-r", str(at.path()), "herd:c"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("neither a file"), "{}", text(&output.stderr));
}

#[test]
fn a_single_object_goes_into_what_is_there() {
    let node = node();
    put(&node, "x", b"hello");
    let at = dir();
    let fifo = at.path().join("fifo");
    Command::new("mkfifo").arg(&fifo).status().expect("mkfifo runs");
    let child = herd().args(["cp", "-q", "herd:x", str(&fifo)]).env("HERD_NODE", &node.addr).spawn();
    let mut child = child.expect("runs");
    let mut got = String::new();
    File::open(&fifo).and_then(|mut fifo| fifo.read_to_string(&mut got)).expect("readable");
    assert_eq!((got.as_str(), child.wait().expect("ends").code()), ("hello", Some(0)));
}
