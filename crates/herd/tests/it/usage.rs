//! What a command line is taken for, and what is said where it can't be done.

use crate::node::{Node, herd, text};
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Stdio;

/// Exit status, stdout and stderr.
fn run(node: &Node, args: &[&str]) -> (Option<i32>, String, String) {
    let output = node.herd(args);
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

/// The same with `input` on its standard input.
fn run_with(node: &Node, args: &[&str], input: &[u8]) -> (Option<i32>, String, String) {
    let mut command = herd();
    command.args(args).env("HERD_NODE", &node.addr).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("herd runs");
    // One that needs no more may have ended.
    child.stdin.take().expect("piped").write_all(input).ok();
    let output = child.wait_with_output().expect("it ends");
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn a_name_of_a_collection_that_is_taken_for_an_object_is_hinted_at() {
    let node = Node::start(&["--memory", "64m"]);
    node.ok(&["collection", "create", "photos"]);
    for args in [&["get", "photos"][..], &["stat", "photos"], &["rm", "photos"], &["exec", "photos", "list-pop"]] {
        let (code, _, told) = run(&node, args);
        assert_eq!(code, Some(1), "{args:?}: {told}");
        assert!(told.contains("collection 'photos' is listed by `herd ls photos/`"), "{args:?}: {told}");
        assert_eq!(told.lines().count(), 1);
    }
    for args in [&["get", "other"][..], &["get", "photos/x"], &["get", "default/photos"]] {
        assert!(!run(&node, args).2.contains("herd ls"), "{args:?}");
    }
}

#[test]
fn a_version_survives_a_reader_of_json_that_rounds_numbers() {
    let node = Node::start(&["--memory", "64m"]);
    let etag =
        |text: &str| text.split("\"etag\":\"").nth(1).and_then(|rest| rest.split('"').next()).map(str::to_string);
    let put = etag(&node.ok(&["put", "k", "/dev/null", "--json"])).expect("an etag");
    assert_eq!(etag(&node.ok(&["stat", "k", "--json"])).as_deref(), Some(&*put));
    assert_eq!(etag(&node.ok(&["ls", "--json"])).as_deref(), Some(&*put));
    let page = text(&node.talk(b"GET /o/default HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"));
    assert_eq!(etag(&page).as_deref(), Some(&*put), "{page}");
    node.ok(&["put", "k", "/dev/null", "--if-version", &put]);
    let answer = node.ok(&["exec", "k", "append", "x", "--json"]);
    assert_eq!(etag(&answer), etag(&node.ok(&["stat", "k", "--json"])), "{answer}");
}

#[test]
fn an_address_that_is_empty_is_a_variable_that_nobody_set() {
    let node = Node::start(&["--memory", "64m"]);
    let (code, _, told) = run(&node, &["ls", "--node", ""]);
    assert!(code == Some(2) && told.contains("--node"), "{told}");
    for value in ["", " "] {
        let output = herd().arg("ls").env("HERD_NODE", value).output().expect("runs");
        let told = text(&output.stderr);
        assert!(output.status.code() == Some(2) && told.contains("HERD_NODE"), "{told}");
    }
}

#[test]
fn a_method_s_value_may_come_from_standard_input() {
    let node = Node::start(&["--memory", "64m"]);
    let binary = b"a\0b\xff\n";
    assert_eq!(run_with(&node, &["exec", "k", "append", "-"], binary), (Some(0), "5\n".into(), String::new()));
    assert_eq!(node.herd(&["get", "k"]).stdout, binary);
    assert_eq!(run_with(&node, &["exec", "d", "append", "--", "-"], b"unread").1, "1\n");
    assert_eq!(node.ok(&["get", "d"]), "-");
    assert_eq!(run_with(&node, &["exec", "k", "compare-and-set", "-", "-"], b"x").0, Some(2));
    let (code, _, told) = run_with(&node, &["exec", "k", "append", "-"], &[7; 100_000]);
    assert!(code == Some(2) && told.contains("48.0 KiB"), "{told}");
}

#[test]
fn answers_of_methods_can_be_had_exactly() {
    let node = Node::start(&["--memory", "64m"]);
    node.ok(&["exec", "l", "list-push", "a\nb", "a\\nb"]);
    assert_eq!(node.ok(&["exec", "l", "list-range", "0", "9", "--null"]), "a\nb\0a\\nb\0");
    let told = node.ok(&["exec", "l", "list-range", "0", "9", "--json"]);
    assert!(told.contains(r#""items":["a\nb","a\\nb"]"#) && told.ends_with("}\n"), "{told}");
    assert_eq!(node.ok(&["exec", "l", "list-pop"]), "a\nb", "a pipe gets the bytes");
}

#[test]
fn what_would_be_of_no_use_is_refused() {
    let node = Node::start(&["--memory", "64m"]);
    for args in [
        &["collection", "create", "c", "--quota", "0"][..],
        &["node", "--listen", "127.0.0.1:0", "--max-object", "0"],
        &["node", "--listen", "127.0.0.1:0", "--name", ""],
        &["node", "--listen", "127.0.0.1:0", "--name", "a b"],
        &["node", "--listen", "127.0.0.1:0", "--join", &node.addr, "--replicas", "1"],
    ] {
        let (code, _, told) = run(&node, args);
        assert_eq!(code, Some(2), "{args:?}: {told}");
    }
    assert_eq!(run(&node, &["ls", "c/"]).0, Some(1), "nothing was created");
}

#[test]
fn errors_name_what_was_typed_and_what_is_near() {
    let node = Node::start(&["--memory", "64m"]);
    node.ok(&["put", "n", "/dev/null"]);
    for (args, code, told) in [
        (&["exec", "n", "fetch-and-add", "1"][..], 2, "herd: exec default/n: "),
        (&["rm", "none"], 1, "herd: rm default/none: "),
        (&["stat", "none"], 1, "herd: stat default/none: "),
        (&["ls", "none/"], 1, "herd: ls none: "),
        (&["collection", "rm", "none"], 1, "herd: collection rm: "),
        (&["collection", "rm", "default"], 3, "herd: collection rm default: "),
        (&["status", "--node", "127.0.0.1:1"], 3, "; `herd up` starts a herd on this machine, --node names another"),
        (&["collection", "ls", "--node", "127.0.0.1:1"], 3, "herd: collection ls: no node answers"),
        (&["cp", "herd:none", "-"], 1, "herd: cp default/none: "),
        (&["exec", "n", "Fetch-And-Add", "1"], 2, "fetch-and-add"),
        (&["put", "/n", "/dev/null"], 2, "herd: a key may not begin with a slash"),
        (&["ls", "--node", "7701"], 2, "a port of this machine is written ':7701'"),
        (&["collection", "create", "c", "--class", "disk"], 2, "class 'disk': use cache, ram:1, ram:2 or ram:3"),
        (&["get", "n", "--range", "-2"], 2, "A-B with A <= B, or A-"),
        (&["get", "n", "--range", "3-1"], 2, "A-B with A <= B, or A-"),
    ] {
        let (status, _, text) = run(&node, args);
        assert_eq!(status, Some(code), "{args:?}: {text}");
        assert!(text.contains(told), "{args:?}: {text}");
    }
    let (code, _, told) = run(&node, &["put", "n", "/dev/null", "--home", "x"]);
    assert!(
        code == Some(2) && told.contains("'--home'") && !told.contains("as a value") && !told.contains("\n\n\n"),
        "{told}"
    );
    for args in [&["exec", "n", "append", "-x"][..], &["--timeout", "5s", "exec", "n", "append", "-x"]] {
        let (_, _, told) = run(&node, args);
        assert!(told.contains("-- -x"), "what a method takes may begin with a dash: {told}");
    }
}

#[test]
fn rm_r_can_be_quiet() {
    let node = Node::start(&["--memory", "64m"]);
    node.ok(&["collection", "create", "c"]);
    node.ok(&["put", "c/x", "/dev/null"]);
    assert_eq!(run(&node, &["rm", "-r", "-q", "c"]), (Some(0), String::new(), String::new()));
}

#[test]
fn every_command_has_examples() {
    for args in [
        "node",
        "put",
        "get",
        "rm",
        "ls",
        "stat",
        "cp",
        "exec",
        "lock",
        "collection",
        "collection create",
        "collection ls",
        "collection rm",
        "ping",
        "nodes",
        "status",
        "completion",
    ] {
        let output = herd().args(args.split(' ')).arg("--help").output().expect("runs");
        assert!(text(&output.stdout).contains("Example"), "{args}");
    }
}

#[test]
fn completion_offers_methods_and_classes() {
    let script = herd().args(["completion", "bash"]).output().expect("runs").stdout;
    let script = text(&script);
    assert!(script.contains("fetch-and-add") && script.contains("cache ram:1"), "{script}");
    assert!(script.contains("\"embedded\"") && !script.contains("keep"), "{script}");
}

#[test]
fn a_command_of_another_program_is_answered_with_what_does_that_here() {
    let refused = |args: &[&str]| {
        let output = herd().args(args).output().expect("runs");
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        text(&output.stderr)
    };
    for (word, tip) in [
        ("remove", "`herd drain` or `herd detach`"),
        ("leave", "`herd drain`"),
        ("stop", "`herd down`"),
        ("restart", "docs/guide/herd.md"),
        ("upgrade", "docs/guide/herd.md"),
        ("add", "`herd node --join HOST:PORT`"),
        ("join", "`herd node --join HOST:PORT`"),
        ("start", "`herd up`"),
    ] {
        let told = refused(&[word, "n4"]);
        assert!(told.contains(tip) && !told.contains("similar"), "{word}: {told}");
    }
    assert!(refused(&["statsu"]).contains("'status'"));
    let told = refused(&["detach", "n4", "--node", "127.0.0.1:1"]);
    assert!(told.contains("`--now` says that nothing is moved away first; `herd drain n4` moves it"), "{told}");
    assert!(refused(&["detach"]).contains("--now") && !refused(&["detach"]).contains("herd drain"));
    for (args, told) in [
        (&["node", "--listen", "22100"][..], ":22100 for all addresses of this machine"),
        (&["node", "--memory", "300"], "300 is bytes: did you mean 300m?"),
        (&["up", "--memory", "300"], "300 is bytes: did you mean 300m?"),
        (&["control", "migrate", "embeded"], "did you mean 'embedded'?"),
        (&["node", "--control", "http://127.0.0.1:2379"], "an etcd is written etcd://HOST:PORT, not http://"),
        (&["control", "migrate", "etcd://127.0.0.1"], "the port is missing: etcd://127.0.0.1:2379"),
    ] {
        let text = refused(args);
        assert!(text.contains(told), "{args:?}: {text}");
    }
}

#[test]
fn a_file_is_no_directory_of_a_node_or_a_herd() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    let path = file.path().to_str().expect("text");
    for args in [&["node", "--listen", "127.0.0.1:0"][..], &["up", "--port", "0"], &["down"]] {
        let output = herd().args(args).args(["--data", path]).output().expect("runs");
        let told = text(&output.stderr);
        let is_told = told.contains(&format!("{path} is a file, not a directory"));
        assert!(output.status.code() == Some(2) && is_told, "{args:?}: {told}");
    }
}

/// A directory of ten files.
fn tree(dir: &Path) -> String {
    let tree = dir.join("tree");
    fs::create_dir(&tree).expect("made");
    (0..10).for_each(|n| fs::write(tree.join(format!("f{n}")), "x").expect("written"));
    tree.display().to_string()
}

#[test]
fn a_copy_that_ends_early_says_how_many_it_left() {
    let node = Node::start(&["--memory", "64m"]);
    let dir = tempfile::tempdir().expect("temporary directory");
    let (code, _, told) = run(&node, &["cp", "-r", &tree(dir.path()), "herd:none"]);
    assert_eq!(code, Some(1), "{told}");
    assert!(told.contains("copied 0 (0 B), 0 unchanged, 0 failed, 10 not copied"), "{told}");
    assert!(told.lines().count() == 2 && told.contains("herd collection create none"), "{told}");
}

#[test]
fn a_tree_can_be_written_under_a_lock() {
    let node = Node::start(&["--memory", "64m"]);
    let dir = tempfile::tempdir().expect("temporary directory");
    node.ok(&["collection", "create", "t"]);
    let copy = format!("{} cp -q -r {} herd:t --token $HERD_LOCK_TOKEN", env!("CARGO_BIN_EXE_herd"), tree(dir.path()));
    for _ in 0..2 {
        node.ok(&["lock", "l", "--", "sh", "-c", &copy]);
        let (code, _, told) = run(&node, &["put", "t/f3", "/dev/null"]);
        assert!(code == Some(3) && told.contains("guarded by a lock"), "{told}");
    }
    assert_eq!(node.ok(&["stat", "t/f3"]).lines().next(), Some("t/f3"), "what only looks needs no token");
    assert_eq!(node.ok(&["ls", "t/"]).lines().count(), 10);
}

#[test]
fn a_copy_to_an_object_that_is_called_as_a_collection_says_so() {
    let node = Node::start(&["--memory", "64m"]);
    node.ok(&["collection", "create", "photos"]);
    let (code, _, told) = run(&node, &["cp", "/dev/null", "herd:photos"]);
    assert!(code == Some(0) && told.contains("collection 'photos' is herd:photos/"), "{told}");
    assert_eq!(run(&node, &["cp", "-q", "/dev/null", "herd:photos"]).2, "");
    assert!(!run(&node, &["cp", "/dev/null", "herd:photos/"]).2.contains("collection"));
}

#[test]
fn a_copy_of_more_than_one_object_says_how() {
    let node = Node::start(&["--memory", "64m"]);
    node.ok(&["collection", "create", "photos"]);
    node.ok(&["collection", "create", "empty"]);
    node.ok(&["put", "photos/2026/a", "/dev/null"]);
    for from in ["herd:photos", "herd:photos/", "herd:photos/2026", "herd:photos/2026/", "herd:empty"] {
        let (code, _, told) = run(&node, &["cp", from, "-"]);
        assert!(code == Some(2) && told.contains(&format!("{from} is more than one object: add -r")), "{told}");
    }
    let (code, _, told) = run(&node, &["cp", "herd:photos/2027", "-"]);
    assert!(code == Some(1) && told.contains("no object '2027'"), "{told}");
}

#[test]
fn what_can_not_be_both_file_and_directory_is_told_with_its_name_in_the_herd() {
    let node = Node::start(&["--memory", "64m"]);
    let dir = tempfile::tempdir().expect("temporary directory");
    node.ok(&["collection", "create", "m"]);
    for name in ["m/a", "m/a/b", "m/c"] {
        node.ok(&["put", name, "/dev/null"]);
    }
    let out = dir.path().join("out");
    let (code, _, told) = run(&node, &["cp", "-r", "herd:m", out.to_str().expect("text")]);
    assert_eq!(code, Some(1), "{told}");
    assert!(told.contains("m/a: can't be a file, as there are others below it"), "{told}");
    assert!(out.join("a/b").exists() && out.join("c").exists());
    fs::remove_file(out.join("c")).expect("there");
    fs::create_dir_all(out.join("c/full")).expect("made");
    let (_, _, told) = run(&node, &["cp", "-r", "herd:m", out.to_str().expect("text")]);
    assert!(told.contains(&format!("m/c: {}: ", out.join("c").display())), "{told}");
}

#[test]
fn a_collection_with_other_settings_is_told_with_them() {
    let node = Node::start(&["--memory", "64m"]);
    for _ in 0..2 {
        node.ok(&["collection", "create", "c", "--quota", "1m"]);
    }
    let (code, _, told) = run(&node, &["collection", "create", "c", "--quota", "2m", "--ordered"]);
    assert!(code == Some(1) && told.contains("exists with class ram:1, quota 1.0 MiB"), "{told}");
}

#[test]
fn a_word_that_should_be_a_number_is_named() {
    let node = Node::start(&["--memory", "64m"]);
    for (args, told) in [
        (&["exec", "n", "fetch-and-add", "x"][..], "'x' is not a whole number in range; usage: fetch-and-add DELTA"),
        (&["exec", "n", "touch", "-1"], "'-1' is not a whole number in range; usage: touch TTL_MS"),
        (&["exec", "n", "list-range", "0", "z"], "'z' is not a whole number in range; usage: list-range FROM TO"),
        (&["exec", "n", "fetch-and-add"], "exec default/n: usage: fetch-and-add DELTA"),
    ] {
        let (code, _, text) = run(&node, args);
        assert!(code == Some(2) && text.contains(told), "{args:?}: {text}");
    }
}
