//! The memcached door: conversations, limits, and memcached's own tests where its source is at hand.

use crate::node::{Node, pattern};
use std::io::Write;
use std::path::PathBuf;
use std::process::Command;

/// memcached's black-box tests that this door passes.
const SUITE: [&str; 22] = [
    "bogus-commands",
    "cas",
    "flags",
    "getandtouch",
    "getset",
    "incrdecr",
    "issue_3",
    "issue_68",
    "issue_70",
    "issue_108",
    "issue_152",
    "issue_192",
    "malicious-commands",
    "metaget",
    "multiversioning",
    "noreply",
    "quit",
    "touch",
    "expirations",
    "issue_14",
    "issue_29",
    "issue_41",
];

fn say(node: &Node, request: &[u8]) -> String {
    String::from_utf8_lossy(&node.talk(&[request, b"quit\r\n"].concat())).into_owned()
}

/// Runs one conversation: lines with `>` are sent, lines with `<` expected; `*` at the end of a word is a number.
/// What is expected was taken from memcached 1.6.45, except where PROTOCOL.md differs.
fn converse(name: &str, script: &str) {
    let node = Node::start(&["--memory", "64m"]);
    let unescape = |text: &str| text.replace("\\n", "\n");
    let sent: String = script.lines().filter_map(|l| l.strip_prefix("> ")).map(|l| unescape(l) + "\r\n").collect();
    let wanted: Vec<&str> = script.lines().filter_map(|line| line.strip_prefix("< ")).collect();
    let matches = |got: &str, wanted: &str| {
        let (got, wanted): (Vec<_>, Vec<_>) = (got.split(' ').collect(), wanted.split(' ').collect());
        let number = |g: &str, w: &str| {
            let digits = w.strip_suffix('*').and_then(|start| g.strip_prefix(start));
            digits.is_some_and(|digits| !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()))
        };
        let same = |(g, w): (&&str, &&str)| g == w || number(g, w);
        got.len() == wanted.len() && got.iter().zip(&wanted).all(same)
    };
    let at_once = say(&node, sent.as_bytes());
    let got: Vec<&str> = at_once.lines().collect();
    assert!(got.len() == wanted.len() && got.iter().zip(&wanted).all(|(g, w)| matches(g, w)), "{name}: {got:#?}");
    // The same byte by byte on a fresh node.
    let node = Node::start(&["--memory", "64m"]);
    let mut socket = node.connect();
    socket.set_nodelay(true).expect("set");
    for byte in (sent + "quit\r\n").bytes() {
        socket.write_all(&[byte]).expect("sent");
    }
    let mut slowly = String::new();
    std::io::Read::read_to_string(&mut socket, &mut slowly).expect("answered");
    let got: Vec<&str> = slowly.lines().collect();
    assert!(got.len() == wanted.len() && got.iter().zip(&wanted).all(|(g, w)| matches(g, w)), "{name}: {got:#?}");
}

#[test]
fn golden_conversations() {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/memcached");
    let mut count = 0;
    for entry in std::fs::read_dir(dir).expect("the conversations are there") {
        let path = entry.expect("readable").path();
        let script = std::fs::read_to_string(&path).expect("text");
        converse(&path.display().to_string(), &script);
        count += 1;
    }
    assert!(count >= 20, "{count} conversations");
}

#[test]
fn a_line_of_a_hundred_thousand_keys_is_served_as_it_arrives() {
    let node = Node::start(&["--memory", "64m"]);
    say(&node, b"set k 0 0 1\r\nv\r\n");
    let keys = " k".repeat(100_000);
    let answer = say(&node, format!("get{keys}\r\n").as_bytes());
    assert_eq!(answer.matches("VALUE k 0 1\r\nv\r\n").count(), 100_000);
    let answer = say(&node, format!("get{}\r\n", " k".repeat(200_000)).as_bytes());
    assert!(answer.contains("line too long"), "the line limit holds");
}

/// A line of the most bytes, whose CR comes alone: the CR is not part of the line, so nothing is refused.
#[test]
fn a_line_end_may_be_cut_in_two() {
    let node = Node::start(&["--memory", "64m"]);
    let mut socket = node.connect();
    socket.set_nodelay(true).expect("set");
    let line = format!("{:<2048}", "set cut 0 0 2");
    socket.write_all(b"set a 0 0 1\r\nx\r\n").expect("sent");
    socket.write_all(format!("{line}\r").as_bytes()).expect("sent");
    std::thread::sleep(std::time::Duration::from_millis(50));
    socket.write_all(b"\nhi\r\nget cut\r\nquit\r\n").expect("sent");
    let mut answer = String::new();
    std::io::Read::read_to_string(&mut socket, &mut answer).expect("read");
    assert_eq!(answer, "STORED\r\nSTORED\r\nVALUE cut 0 2\r\nhi\r\nEND\r\n");
}

#[test]
fn large_values_and_their_limit() {
    let node = Node::start(&["--memory", "64m"]);
    let value = String::from_utf8(pattern(1 << 20, 4).into_iter().map(|b| b'a' + b % 26).collect()).expect("letters");
    let answer = say(&node, format!("set big 0 0 {}\r\n{value}\r\nget big\r\n", value.len()).as_bytes());
    assert!(answer.starts_with("STORED\r\nVALUE big 0 1048576\r\n") && answer.contains(&value));
    let answer = say(&node, format!("set big 0 0 {}\r\n{value}x\r\nget big\r\n", value.len() + 1).as_bytes());
    assert_eq!(answer, "SERVER_ERROR object too large for cache\r\nEND\r\n");
    let half = &value[..600_000];
    let request =
        format!("set a 0 0 3\r\nabc\r\nappend a 0 0 {}\r\n{half}\r\nprepend a 0 0 1\r\n-\r\nget a\r\n", half.len());
    let answer = say(&node, request.as_bytes());
    assert!(answer.contains(&format!("VALUE a 0 {}\r\n-abc{half}\r\n", half.len() + 4)));
}

#[test]
fn a_full_node_says_so_and_serves_on() {
    let node = Node::start(&["--memory", "8m"]);
    let value = "v".repeat(100_000);
    let request: String = (0..150).map(|i| format!("set n{i} 0 0 {}\r\n{value}\r\n", value.len())).collect();
    let answer = say(&node, request.as_bytes());
    let (stored, full) = (answer.matches("STORED").count(), answer.matches("SERVER_ERROR out of memory").count());
    assert!(stored > 40 && full > 20 && stored + full == 150, "{stored} stored, {full} refused");
    assert!(say(&node, b"get n0\r\n").contains(&value));
    let evicting = Node::start(&["--memory", "8m", "--evict"]);
    let answer = say(&evicting, request.as_bytes());
    assert_eq!(answer.matches("STORED").count(), 150, "a cache evicts");
}

/// Not by a macro, whose output the test harness keeps to itself.
fn tell(text: &str) {
    writeln!(std::io::stdout(), "\n{text}").expect("stdout takes it");
}

#[test]
fn memcached_s_own_tests() {
    let Some(source) = std::env::var_os("MEMCACHED_SRC").map(PathBuf::from) else {
        tell("SKIPPED memcached's own tests: MEMCACHED_SRC names no checkout of memcached 1.6");
        return;
    };
    // Its test library asks a binary for the features it was built with.
    let stub = source.join("memcached-debug");
    std::fs::write(&stub, "#!/bin/sh\necho memcached 1.6\n").expect("written");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&stub, mode).expect("set");
    for (file, copies) in SUITE.iter().flat_map(|file| [0, 1, 3].map(|copies| (file, copies))) {
        let env = [("HERD_DEBUG_TIME", "1")];
        let nodes = match copies {
            0 => vec![(Node::with_env(&["--memory", "2g"], &env), tempfile::tempdir().expect("a directory"))],
            _ => crate::herds::three_that_keep(copies, &["--memory", "512m"], &env),
        };
        // Of a herd one that is not the warden's, and has a third of the items.
        let addr = &nodes[nodes.len() / 2].0.addr;
        let mut prove = Command::new("prove");
        prove.arg(format!("t/{file}.t")).current_dir(&source).env("T_MEMD_USE_DAEMON", addr);
        let output = prove.output().expect("prove runs");
        assert!(output.status.success(), "{file}, {copies}: {}", String::from_utf8_lossy(&output.stdout));
    }
}

#[test]
fn memccapable_ascii() {
    if Command::new("memccapable").arg("-V").output().is_err() {
        tell("SKIPPED memccapable: libmemcached-tools is not installed");
        return;
    }
    let node = Node::start(&["--memory", "256m"]);
    let (host, port) = node.addr.split_once(':').expect("host and port");
    let output = Command::new("memccapable").args(["-h", host, "-p", port, "-a"]).output().expect("it runs");
    // It writes the names to stderr and the verdicts to stdout.
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert_eq!((text.matches("[pass]").count(), text.matches("[FAIL]").count()), (27, 0), "{text}");
    assert!(node.pid() > 0);
}

/// Clients that reset their connection between a request and its reply; whoever comes next gets its own replies only.
#[test]
fn a_reply_that_can_not_be_sent_goes_to_nobody_else() {
    let node = Node::start(&["--memory", "64m", "--threads", "1"]);
    say(&node, b"set secret 0 0 6\r\nsecret\r\n");
    for _ in 0..300 {
        let sockets: Vec<_> = (0..16).map(|_| node.connect()).collect();
        for mut socket in sockets {
            let linger = Some(std::time::Duration::ZERO);
            rustix::net::sockopt::set_socket_linger(&socket, linger).expect("set");
            socket.write_all(&b"get secret\r\n".repeat(100)).expect("sent");
        }
        assert_eq!(say(&node, b"get other\r\n"), "END\r\n");
    }
}
