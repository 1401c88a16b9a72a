//! What commands write, here and on their streams: `get -o`, closed pipes, names of any bytes.

use crate::node::{Node, herd, text};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};

fn node_with(key: &str, value: &str) -> Node {
    let node = Node::start(&["--memory", "64m"]);
    node.feed(&["put", key], value.as_bytes());
    node
}

fn dir() -> tempfile::TempDir {
    tempfile::tempdir().expect("temporary directory")
}

fn get(node: &Node, key: &str, path: &Path) -> (Option<i32>, String) {
    let output = herd().args(["get", key, "-o"]).arg(path).env("HERD_NODE", &node.addr).output().expect("runs");
    (output.status.code(), text(&output.stderr))
}

#[test]
fn get_o_keeps_what_is_there_a_file_s_mode_a_link_a_pipe_and_a_device() {
    let node = node_with("k", "new");
    let at = dir();
    let (file, link, fifo) = (at.path().join("file"), at.path().join("link"), at.path().join("fifo"));
    fs::write(&file, "old").expect("written");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("set");
    symlink("file", &link).expect("linked");
    assert_eq!(get(&node, "k", &link), (Some(0), String::new()));
    assert!(link.is_symlink() && fs::read(&file).expect("there") == b"new");
    assert_eq!(fs::metadata(&file).expect("there").permissions().mode() & 0o7777, 0o600);
    symlink("nowhere-yet", at.path().join("dangling")).expect("linked");
    assert_eq!(get(&node, "k", &at.path().join("dangling")).0, Some(0));
    assert_eq!(fs::read(at.path().join("nowhere-yet")).expect("there"), b"new");
    Command::new("mkfifo").arg(&fifo).status().expect("mkfifo runs");
    let mut child = herd().args(["get", "k", "-o"]).arg(&fifo).env("HERD_NODE", &node.addr).spawn().expect("runs");
    let mut got = String::new();
    File::open(&fifo).and_then(|mut fifo| fifo.read_to_string(&mut got)).expect("readable");
    assert_eq!((got.as_str(), child.wait().expect("ends").code()), ("new", Some(0)));
    assert_eq!(get(&node, "k", Path::new("/dev/null")), (Some(0), String::new()));
    let full = get(&node, "k", Path::new("/dev/full"));
    assert!(full.0 == Some(2) && full.1.contains("No space left"), "{full:?}");
}

#[test]
fn get_o_of_what_is_not_there_leaves_the_file_as_it_was() {
    let node = node_with("k", "new");
    let at = dir();
    let file = at.path().join("file");
    fs::write(&file, "old").expect("written");
    assert_eq!(get(&node, "none", &file).0, Some(1));
    assert_eq!(fs::read(&file).expect("there"), b"old");
    assert_eq!(fs::read_dir(at.path()).expect("readable").count(), 1, "no rest is left");
    assert_eq!(get(&node, "k", at.path()).0, Some(2), "a directory is no file");
    assert_eq!(get(&node, "k", &at.path().join("none/x")).0, Some(2));
}

#[test]
fn get_o_does_not_write_through_a_planted_temporary() {
    let node = node_with("k", "new");
    let at = dir();
    fs::write(at.path().join("precious"), "precious").expect("written");
    let script = format!("ln -s precious .f.herd-$$; exec {} get k -o f", herd().get_program().to_str().expect("text"));
    let status = Command::new("sh").args(["-c", &script]).current_dir(at.path()).env("HERD_NODE", &node.addr).status();
    assert!(status.expect("sh runs").success());
    assert_eq!(fs::read(at.path().join("precious")).expect("there"), b"precious");
    assert!(!at.path().join("f").is_symlink() && fs::read(at.path().join("f")).expect("there") == b"new");
}

#[test]
fn a_new_file_has_the_mode_of_a_new_file() {
    let node = node_with("k", "new");
    let at = dir();
    let script = format!("umask 027; exec {} get k -o f", herd().get_program().to_str().expect("text"));
    let status = Command::new("sh").args(["-c", &script]).current_dir(at.path()).env("HERD_NODE", &node.addr).status();
    assert!(status.expect("sh runs").success());
    assert_eq!(fs::metadata(at.path().join("f")).expect("there").permissions().mode() & 0o7777, 0o640);
}

#[test]
fn a_reader_that_went_away_ends_every_command_quietly() {
    let node = node_with("k", "value");
    for args in [
        &["ls"][..],
        &["ls", "--json"],
        &["get", "k"],
        &["cp", "-q", "herd:k", "-"],
        &["stat", "k"],
        &["stat", "k", "--json"],
        &["collection", "ls"],
        &["collection", "ls", "--json"],
        &["nodes"],
        &["nodes", "--json"],
        &["status"],
        &["status", "--json"],
        &["completion", "bash"],
        &["man"],
        &["--help"],
    ] {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let output = herd().args(args).env("HERD_NODE", &node.addr).stdout(writer).output().expect("runs");
        assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), String::new()), "{args:?}");
    }
}

#[test]
fn a_full_stdout_is_a_failure_and_no_panic() {
    let node = node_with("k", "value");
    for args in [
        &["ls"][..],
        &["get", "k"],
        &["stat", "k"],
        &["status"],
        &["collection", "ls"],
        &["man"],
        &["--help"],
        &["put", "--help"],
        &["--version"],
    ] {
        let full = File::options().write(true).open("/dev/full").expect("a device");
        let output = herd().args(args).env("HERD_NODE", &node.addr).stdout(full).output().expect("runs");
        let told = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {told}");
        assert!(told.contains("No space left") && told.lines().count() == 1, "{args:?}: {told}");
    }
}

#[test]
fn keys_and_files_of_any_bytes_are_taken() {
    let node = Node::start(&["--memory", "64m"]);
    let at = dir();
    let name = OsStr::from_bytes(b"caf\xe9");
    let run = |args: &[&OsStr]| {
        herd()
            .args(args)
            .current_dir(at.path())
            .env("HERD_NODE", &node.addr)
            .stdin(Stdio::null())
            .output()
            .expect("runs")
    };
    let word = OsStr::new;
    fs::write(at.path().join(name), "hello").expect("written");
    for args in [&[word("put"), name, name][..], &[word("stat"), name], &[word("cp"), name, word("herd:")]] {
        let output = run(args);
        assert_eq!(output.status.code(), Some(0), "{args:?}: {}", text(&output.stderr));
    }
    assert_eq!(run(&[word("get"), name]).stdout, b"hello");
    assert_eq!(run(&[word("ls")]).stdout, b"caf\xe9\n");
    assert!(text(&run(&[word("ls"), word("--json")]).stdout).contains(r#""name_base64":"Y2Fm6Q==""#));
    assert_eq!(run(&[word("rm"), name]).status.code(), Some(0));
    assert_eq!(run(&[word("get"), name]).status.code(), Some(1));
    assert_eq!(run(&[name]).status.code(), Some(2), "an unknown command is no panic");
    assert_eq!(run(&[word("collection"), word("create"), name]).status.code(), Some(2));
}

#[test]
fn a_name_with_a_line_s_end_is_one_line_and_can_be_had_exactly() {
    let node = node_with("two\nlines\x1b[2J", "x");
    assert_eq!(node.ok(&["ls"]), "two\\nlines\\x1b[2J\n");
    assert_eq!(node.ok(&["ls", "-0"]), "two\nlines\x1b[2J\0");
    let told = node.herd(&["get", "no\nsuch\x1b[2J"]).stderr;
    assert!(text(&told).lines().count() == 1 && !told.contains(&0x1b), "{}", text(&told));
}

#[test]
fn a_listing_is_sorted() {
    let node = Node::start(&["--memory", "64m"]);
    for name in ["c", "a", "b", "e", "d"] {
        node.ok(&["put", name, "/dev/null"]);
    }
    assert_eq!(node.ok(&["ls"]), "a\nb\nc\nd\ne\n");
}

#[test]
fn a_range_to_the_last_number_there_is_ends_at_the_object_s_end() {
    let node = node_with("k", "value");
    assert_eq!(node.ok(&["get", "k", "--range", "0-18446744073709551615"]), "value");
    assert_eq!(node.ok(&["get", "k", "--range", "1-18446744073709551615"]), "alue");
}

#[test]
fn options_may_stand_before_the_verb_and_times_have_units() {
    let node = node_with("k", "value");
    let run = |args: &[&str]| {
        let output = herd().args(args).stdin(Stdio::null()).env_remove("HERD_NODE").output().expect("runs");
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    assert_eq!(run(&["--node", &node.addr, "get", "k"]).1, "value");
    assert_eq!(run(&["--timeout", "500ms", "--node", &node.addr, "put", "k", "/dev/null", "--ttl", "1h"]).0, Some(0));
    for args in
        [&["get", "k", "--timeout", "x"][..], &["put", "k", "--ttl", "soon"], &["put", "k", "--if-version", "x"]]
    {
        let (code, _, told) = run(args);
        assert_eq!(code, Some(2));
        assert!(!told.contains("literal") && !told.contains("digit found"), "{told}");
    }
}

#[test]
fn rm_r_removes_what_is_below_and_nothing_else() {
    let node = Node::start(&["--memory", "64m"]);
    node.ok(&["collection", "create", "c"]);
    for i in 0..200 {
        node.ok(&["put", &format!("c/a/{i}"), "/dev/null"]);
    }
    for key in ["c/a", "c/ab", "c/b/x", "top"] {
        node.ok(&["put", key, "/dev/null"]);
    }
    let output = node.herd(&["rm", "-r", "c/a"]);
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), "removed 200\n".into()));
    assert_eq!(node.ok(&["ls", "c/"]), "a\nab\nb/x\n");
    assert_eq!(node.herd(&["rm", "-r", "c/a"]).status.code(), Some(1), "nothing is below it any more");
    node.ok(&["rm", "-r", "c"]);
    assert_eq!((node.ok(&["ls", "c/"]), node.ok(&["ls"])), (String::new(), "top\n".into()));
    assert_eq!(node.herd(&["rm", "-r", "none"]).status.code(), Some(1));
}

#[test]
fn ls_l_has_a_header_sizes_and_dates() {
    let node = Node::start(&["--memory", "64m"]);
    let at = dir();
    let file = at.path().join("f");
    fs::write(&file, vec![0; 3 << 19]).expect("written");
    let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_709_210_096);
    File::options().write(true).open(&file).and_then(|file| file.set_modified(time)).expect("set");
    node.ok(&["cp", "-q", file.to_str().expect("text"), "herd:"]);
    node.ok(&["put", "g", "/dev/null"]);
    let lines = node.ok(&["ls", "-l"]);
    let words: Vec<Vec<&str>> = lines.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(words[0], ["SIZE", "MODIFIED", "VERSION", "NAME"]);
    assert_eq!((&words[1][..5], words[1][6]), (&["1.5", "MiB", "2024-02-29", "12:34:56", "UTC"][..], "f"));
    assert_eq!((&words[2][..3], words[2][4]), (&["0", "B", "-"][..], "g"));
}

#[test]
fn a_collection_s_name_without_a_slash_is_hinted_at() {
    let node = Node::start(&["--memory", "64m"]);
    node.ok(&["collection", "create", "photos"]);
    let output = node.herd(&["ls", "photos"]);
    assert!(output.status.success() && output.stdout.is_empty());
    assert!(text(&output.stderr).contains("herd ls photos/"), "{}", text(&output.stderr));
    assert!(node.herd(&["ls", "phot"]).stderr.is_empty());
}

#[test]
fn put_tells_the_version_and_ping_the_time() {
    let node = node_with("k", "value");
    let told = node.ok(&["put", "k", "/dev/null", "--json"]);
    let stat = node.ok(&["stat", "k", "--json"]);
    let version = |text: &str| text.split("\"version\":").nth(1).map(|rest| rest[..10].to_string());
    assert!(version(&told).is_some() && version(&told) == version(&stat), "{told} {stat}");
    let told = node.ok(&["ping"]);
    assert!(told.starts_with(&node.addr) && told.ends_with(" ms\n"), "{told}");
    let both = format!("127.0.0.1:1,{}", node.addr);
    let output = node.herd(&["ping", "--node", &both]);
    assert_eq!((output.status.code(), text(&output.stdout).lines().count()), (Some(3), 1));
}

#[test]
fn a_node_s_log_has_times_and_levels() {
    let mut child = herd()
        .args(["node", "--listen", "127.0.0.1:0", "--memory", "900g", "--threads", "1"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("herd starts");
    let mut line = String::new();
    let mut out = std::io::BufReader::new(child.stdout.take().expect("piped"));
    std::io::BufRead::read_line(&mut out, &mut line).expect("readable");
    Command::new("kill").args(["-TERM", &child.id().to_string()]).status().expect("kill runs");
    let told = text(&child.wait_with_output().expect("ends").stderr);
    let words = |line: &str| line.split(' ').map(str::to_string).collect::<Vec<_>>();
    let lines: Vec<Vec<String>> = told.lines().map(words).collect();
    let levels: Vec<&str> = lines.iter().map(|words| words[3].as_str()).collect();
    assert_eq!(levels, ["info:", "warn:", "info:"], "{told}");
    assert!(lines.iter().all(|words| words[0].len() == 10 && words[2] == "UTC"), "{told}");
}
