//! The command line: what it prints and how it exits (docs/guide/errors.md).

use crate::node::{Node, herd, pattern};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

fn code(node: &Node, args: &[&str]) -> (Option<i32>, String) {
    let output = node.herd(args);
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn objects_go_in_and_out() {
    let node = Node::start(&["--memory", "256m"]);
    let dir = tempfile::tempdir().expect("temporary directory");
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    for len in [0, 1, 4096, 4097, 65_536, 1 << 20, 20_000_001] {
        let value = pattern(len, len as u64);
        fs::write(&from, &value).expect("written");
        node.ok(&["put", "object", from.to_str().expect("text")]);
        node.ok(&["get", "object", "-o", to.to_str().expect("text")]);
        assert!(fs::read(&to).expect("there") == value, "{len} bytes");
    }
    let range = node.herd(&["get", "object", "--range", "1000000-1000099"]).stdout;
    assert_eq!(range, pattern(20_000_001, 20_000_001)[1_000_000..1_000_100]);
    fs::write(&from, b"patch").expect("written");
    node.ok(&["put", "object", from.to_str().expect("text"), "--range", "70000"]);
    assert_eq!(node.herd(&["get", "object", "--range", "70000-70004"]).stdout, b"patch");
    assert_eq!(node.stop(), Some(0), "SIGTERM ends it with 0");
}

#[test]
fn exit_statuses_tell_what_happened() {
    let node = Node::start(&["--memory", "64m", "--max-object", "10m"]);
    assert_eq!(code(&node, &["get", "nothing"]).0, Some(1));
    assert_eq!(code(&node, &["rm", "nothing"]).0, Some(1));
    let (status, text) = code(&node, &["put", "missing/x", "/dev/null"]);
    assert_eq!(status, Some(1));
    assert!(text.contains("herd collection create missing") && text.lines().count() == 1, "{text}");
    node.ok(&["put", "x", "/dev/null"]);
    assert_eq!(code(&node, &["put", "x", "/dev/null", "--if-absent"]).0, Some(1));
    assert_eq!(code(&node, &["put", "x", "/dev/null", "--if-version", "1"]).0, Some(1));
    assert_eq!(code(&node, &["put", "x", "/no/such/file"]).0, Some(2));
    assert_eq!(code(&node, &["put"]).0, Some(2));
    assert_eq!(code(&node, &["frobnicate"]).0, Some(2));
    let (status, text) = code(&node, &["mount", "v", "/mnt"]);
    assert!(status == Some(2) && text.contains("not in this version"), "{text}");
    let (status, text) = code(&node, &["node", "--replicas", "9"]);
    assert!(status == Some(2) && text.contains("not in this version"), "{text}");
    let (status, text) = code(&node, &["node", "--listen", "0.0.0.0:0"]);
    assert!(status == Some(2) && text.contains("--plain"), "{text}");
    let (status, text) = code(&node, &["node", "--listen", &node.addr]);
    assert!(status == Some(2) && text.contains("is taken"), "{text}");
    assert_eq!(code(&node, &["get", "x", "--node", "127.0.0.1:1"]).0, Some(3));
    let big = tempfile::NamedTempFile::new().expect("temporary file");
    big.as_file().set_len(11 << 20).expect("grows");
    let (status, text) = code(&node, &["put", "big", big.path().to_str().expect("text")]);
    assert!(status == Some(3) && text.contains("11.0 MiB") && text.contains("10.0 MiB"), "{text}");
    assert!(node.ok(&["ls", "none"]).is_empty(), "an empty listing is no error");
}

#[test]
fn a_full_node_refuses_and_serves_on() {
    let node = Node::start(&["--memory", "16m"]);
    let file = tempfile::NamedTempFile::new().expect("temporary file");
    fs::write(file.path(), pattern(3 << 20, 1)).expect("written");
    let path = file.path().to_str().expect("text");
    let statuses: Vec<_> = (0..8).map(|i| code(&node, &["put", &format!("n{i}"), path])).collect();
    let stored = statuses.iter().filter(|(status, _)| *status == Some(0)).count();
    assert!((3..=5).contains(&stored), "{statuses:?}");
    let refused = statuses.iter().find(|(status, _)| *status == Some(3)).expect("some are refused");
    assert!(refused.1.contains("MiB"), "{}", refused.1);
    assert_eq!(node.herd(&["get", "n0"]).stdout, pattern(3 << 20, 1), "what was acknowledged is there");
    node.ok(&["rm", "n0"]);
    node.ok(&["put", "again", path]);
}

#[test]
fn trees_come_back_as_they_were() {
    let node = Node::start(&["--memory", "256m"]);
    let dir = tempfile::tempdir().expect("temporary directory");
    let tree = dir.path().join("tree");
    fs::create_dir_all(tree.join("a/b/empty")).expect("made");
    fs::write(tree.join("a/file"), pattern(100_000, 3)).expect("written");
    fs::write(tree.join("a/b/nothing"), b"").expect("written");
    fs::write(tree.join("a/odd name \u{e4}%?#"), b"x").expect("written");
    fs::set_permissions(tree.join("a/file"), fs::Permissions::from_mode(0o640)).expect("set");
    fs::set_permissions(tree.join("a/b/empty"), fs::Permissions::from_mode(0o750)).expect("set");
    symlink("../file", tree.join("a/b/link")).expect("linked");
    symlink("/no/such/place", tree.join("broken")).expect("linked");
    node.ok(&["collection", "create", "trees"]);
    let (from, back) = (tree.to_str().expect("text").to_string(), dir.path().join("back"));
    node.ok(&["cp", "-q", "-r", &from, "herd:trees/one"]);
    let to = back.to_str().expect("text");
    node.ok(&["cp", "-q", "-r", "herd:trees/one", to]);
    let same = std::process::Command::new("diff").args(["-r", "--no-dereference", &from, to]).output().expect("diff");
    assert!(same.status.success(), "{}", String::from_utf8_lossy(&same.stdout));
    let mode = |path: &str| fs::metadata(back.join(path)).expect("there").permissions().mode() & 0o7777;
    assert_eq!((mode("a/file"), mode("a/b/empty")), (0o640, 0o750));
    let time = |root: &std::path::Path| fs::metadata(root.join("a/file")).and_then(|m| m.modified()).expect("time");
    assert_eq!(time(&tree), time(&back));
    let again = node.herd(&["cp", "-r", &from, "herd:trees/one"]);
    let text = String::from_utf8_lossy(&again.stderr).into_owned();
    assert!(text.contains("copied 0") && again.status.success(), "{text}");
}

#[test]
fn a_name_that_leads_out_is_not_written() {
    let node = Node::start(&["--memory", "64m"]);
    node.ok(&["collection", "create", "evil"]);
    node.ok(&["put", "evil/../../escaped", "/dev/null"]);
    node.ok(&["put", "evil/fine", "/dev/null"]);
    let dir = tempfile::tempdir().expect("temporary directory");
    let target = dir.path().join("in/target");
    let output = node.herd(&["cp", "-q", "-r", "herd:evil", target.to_str().expect("text")]);
    assert_eq!(output.status.code(), Some(1), "some failed, the others went on");
    assert!(target.join("fine").exists() && !dir.path().join("escaped").exists());
}

#[test]
fn collections_listings_and_status() {
    let node = Node::start(&["--memory", "64m"]);
    node.ok(&["collection", "create", "sorted", "--ordered", "--class", "cache", "--quota", "4m"]);
    for name in ["c", "a", "b/2", "b/1"] {
        node.ok(&["put", &format!("sorted/{name}"), "/dev/null"]);
    }
    assert_eq!(node.ok(&["ls", "sorted/"]), "a\nb/1\nb/2\nc\n");
    assert_eq!(node.ok(&["ls", "sorted/b/"]), "b/1\nb/2\n");
    let stat = node.ok(&["stat", "sorted/a", "--json"]);
    for field in
        ["\"collection\":\"sorted\"", "\"size_bytes\":0", "\"class\":\"cache\"", "\"copies\":1", "\"checksum\""]
    {
        assert!(stat.contains(field), "{field} in {stat}");
    }
    let all = node.ok(&["collection", "ls", "--json"]);
    assert!(all.contains("\"quota_bytes\":4194304") && all.contains("\"ordered\":true"), "{all}");
    assert!(node.ok(&["status", "--json"]).contains("\"objects\":4"));
    assert!(node.ok(&["nodes", "--json"]).contains("serving"));
    node.ok(&["collection", "rm", "sorted"]);
    assert_eq!(code(&node, &["ls", "sorted/"]).0, Some(1));
    assert_eq!(code(&node, &["collection", "create", "l", "--class", "log:1"]).0, Some(2), "not in this version");
}

#[test]
fn help_man_and_completion_are_there() {
    for args in [&["--help"][..], &["put", "--help"], &["man"], &["completion", "bash"], &["completion", "zsh"]] {
        let output = herd().args(args).output().expect("herd runs");
        assert!(output.status.success() && output.stdout.len() > 200, "{args:?}");
    }
    let man = herd().arg("man").output().expect("herd runs").stdout;
    let man = String::from_utf8_lossy(&man);
    for told in
        ["HERD PUT", "HERD COLLECTION CREATE", "if\\-version", "ordered", "ENVIRONMENT", "HERD_NODE", "EXIT STATUS"]
    {
        assert!(man.contains(told), "{told} in {man}");
    }
    assert!(!man.contains("EXTRA"), "a heading of the generator's");
    let version = herd().arg("--version").output().expect("herd runs").stdout;
    assert!(String::from_utf8_lossy(&version).starts_with("herd 0.1.0 ("));
}
