//! How long commands wait: `--timeout` bounds silence, not a transfer that moves.

use crate::herds::three_that_keep;
use crate::node::{Node, herd, pattern, text, within};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// A command under way whose standard input is ours.
fn begin(node: &Node, args: &[&str]) -> Child {
    let mut command = herd();
    command.args(args).env("HERD_NODE", &node.addr).stdin(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("herd runs")
}

/// Its exit status and what it said.
fn end(child: Child) -> (Option<i32>, String) {
    let output = child.wait_with_output().expect("it ends");
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// A node that is stopped for as long as this lives.
struct Paused<'a>(&'a Node);

impl<'a> Paused<'a> {
    fn new(node: &'a Node) -> Self {
        node.signal("-STOP");
        Self(node)
    }
}

impl Drop for Paused<'_> {
    fn drop(&mut self) {
        self.0.signal("-CONT");
    }
}

#[test]
fn a_steady_upload_may_take_longer_than_the_timeout() {
    let node = Node::start(&["--memory", "64m"]);
    let mut put = begin(&node, &["put", "slow", "-", "--timeout", "1"]);
    let mut input = put.stdin.take().expect("piped");
    let value = pattern(4 << 20, 5);
    for piece in value.chunks(256 << 10) {
        std::thread::sleep(Duration::from_millis(120));
        input.write_all(piece).expect("herd reads");
    }
    drop(input);
    assert_eq!(end(put), (Some(0), String::new()));
    assert!(node.herd(&["get", "slow"]).stdout == value);
}

#[test]
fn a_pipe_may_be_silent_before_its_first_byte() {
    let node = Node::start(&["--memory", "64m"]);
    let mut put = begin(&node, &["put", "late", "-", "--timeout", "1"]);
    // Longer than a connection may be without a word.
    std::thread::sleep(Duration::from_millis(5_300));
    put.stdin.take().expect("piped").write_all(b"hi\n").expect("herd reads");
    assert_eq!(end(put), (Some(0), String::new()));
    assert_eq!(node.ok(&["get", "late"]), "hi\n");
}

#[test]
fn a_stopped_node_costs_the_timeout_and_what_was_sent_is_told_unknown() {
    let node = Node::start(&["--memory", "64m"]);
    node.ok(&["collection", "create", "old"]);
    let paused = Paused::new(&node);
    let commands: [(&[&str], i32); 6] = [
        (&["get", "x"], 3),
        (&["ls"], 3),
        // Nothing of these is sent before the node has said a word.
        (&["rm", "x"], 3),
        (&["put", "x", "-"], 3),
        (&["collection", "create", "new"], 4),
        (&["collection", "rm", "old"], 4),
    ];
    for (args, code) in commands {
        let start = Instant::now();
        let output = node.herd(&[args, &["--timeout", "0.7"]].concat());
        let (took, said) = (start.elapsed(), String::from_utf8_lossy(&output.stderr).into_owned());
        assert_eq!(output.status.code(), Some(code), "{args:?}: {said}");
        assert!((650..1_300).contains(&took.as_millis()), "{args:?} took {took:?}");
    }
    drop(paused);
    // What was sent is done as soon as the node goes on.
    let deadline = Instant::now() + Duration::from_secs(5);
    while !node.ok(&["collection", "ls"]).contains("new") {
        assert!(Instant::now() < deadline, "the node never did what it was sent");
    }
}

#[test]
fn a_slow_reader_of_a_download_is_no_silent_node() {
    let node = Node::start(&["--memory", "64m"]);
    let value = pattern(8 << 20, 9);
    let mut put = begin(&node, &["put", "big", "-"]);
    put.stdin.take().expect("piped").write_all(&value).expect("herd reads");
    assert_eq!(end(put).0, Some(0));
    let mut get = herd();
    get.args(["get", "big", "--timeout", "0.3"]).env("HERD_NODE", &node.addr);
    let mut get = get.stdout(Stdio::piped()).spawn().expect("herd runs");
    let mut out = get.stdout.take().expect("piped");
    let mut found = vec![0; 1 << 20];
    out.read_exact(&mut found).expect("read");
    std::thread::sleep(Duration::from_millis(900));
    out.read_to_end(&mut found).expect("read");
    assert!(get.wait().expect("it ends").success());
    assert!(found == value);
}

/// A server on a port of its own that does `serve` with each connection as long as the test runs; its address.
fn server(serve: impl Fn(std::net::TcpStream) + Send + Sync + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let addr = listener.local_addr().expect("bound").to_string();
    std::thread::spawn(move || listener.incoming().for_each(|socket| serve(socket.expect("accepted"))));
    addr
}

#[test]
fn what_is_no_herd_node_is_told_at_once_and_has_stored_nothing() {
    // As memcached, Redis and HTTP do: an answer to each line, and the connection stays.
    let of_lines = server(|mut socket| {
        std::thread::spawn(move || {
            let mut byte = [0];
            while socket.read_exact(&mut byte).is_ok() {
                if byte == *b"\n" && socket.write_all(b"ERROR\r\n").is_err() {
                    return;
                }
            }
        });
    });
    // Who speaks first and closes, whatever is said.
    let greeter = server(|mut socket| _ = socket.write_all(b"SSH-2.0-x\r\n"));
    for addr in [of_lines, greeter] {
        for args in [&["get", "x"][..], &["put", "x", "/dev/null"], &["ls"], &["status"], &["exec", "n", "list-pop"]] {
            let begin = Instant::now();
            let output = herd().args(args).args(["--timeout", "60s", "--node", &addr]).output().expect("runs");
            let told = text(&output.stderr);
            assert_eq!(output.status.code(), Some(3), "{args:?}: {told}");
            assert!(told.contains(&format!("{addr} answers, but not as a Herd node")), "{args:?}: {told}");
            assert!(begin.elapsed() < Duration::from_secs(20), "{args:?}: {:?}", begin.elapsed());
        }
    }
}

#[test]
fn a_node_that_went_away_while_a_pipe_was_silent_has_stored_nothing() {
    let node = Node::start(&["--memory", "64m"]);
    let mut put = begin(&node, &["put", "slow", "-"]);
    let mut input = put.stdin.take().expect("piped");
    input.write_all(&pattern(1_000_000, 1)).expect("herd reads");
    let is_begun = || node.ok(&["status"]).contains("connections 2");
    assert!(within(Duration::from_secs(20), is_begun), "the put holds a connection");
    assert_eq!(node.stop(), Some(0));
    drop(input);
    let (code, told) = end(put);
    assert_eq!(code, Some(3), "{told}");
}

#[test]
fn of_a_server_that_says_nothing_that_is_told() {
    let closer = server(drop);
    let kept = std::sync::Mutex::new(Vec::new());
    let silent = server(move |socket| kept.lock().expect("no panic before").push(socket));
    let ended = "ended the connection before it said anything; it may be no Herd node";
    for (addr, said) in [(closer, ended), (silent, "it took the connection and said nothing")] {
        let output = herd().args(["get", "x", "--timeout", "500ms", "--node", &addr]).output().expect("runs");
        let told = text(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{told}");
        assert!(told.contains(&addr) && told.contains(said), "{told}");
    }
}

/// A change with an id is asked again until its time is over, and no longer, however much of it goes through each time.
#[test]
fn a_put_of_which_each_answer_is_lost_ends_with_its_time() {
    let nodes = three_that_keep(3, &["--memory", "64m"], &[]);
    let node = &nodes[0].0;
    let (to, length) = (node.addr.clone(), 100_000);
    let tries = Arc::new(AtomicUsize::new(0));
    let counted = tries.clone();
    let eater = server(move |client| {
        counted.fetch_add(1, Ordering::Relaxed);
        let node = TcpStream::connect(&to).expect("it listens");
        let taken = Arc::new(AtomicUsize::new(0));
        let (mut up, mut up_to) = (client.try_clone().expect("a socket"), node.try_clone().expect("a socket"));
        let counts = taken.clone();
        std::thread::spawn(move || {
            let mut bytes = [0; 16 << 10];
            while let Ok(count @ 1..) = up.read(&mut bytes) {
                counts.fetch_add(count, Ordering::Relaxed);
                if up_to.write_all(&bytes[..count]).is_err() {
                    break;
                }
            }
        });
        std::thread::spawn(move || {
            let (mut from, mut client) = (node, client);
            let mut bytes = [0; 16 << 10];
            while let Ok(count @ 1..) = from.read(&mut bytes) {
                if taken.load(Ordering::Relaxed) > length || client.write_all(&bytes[..count]).is_err() {
                    break;
                }
            }
            for socket in [from, client] {
                socket.shutdown(Shutdown::Both).unwrap_or_default();
            }
        });
    });
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), pattern(length, 3)).expect("written");
    let value = file.path().to_str().expect("UTF-8");
    let (begin, timeout) = (Instant::now(), Duration::from_secs(2));
    let mut put = herd();
    put.args(["put", "lost", value, "--timeout", "2s", "--node", &eater]).stderr(Stdio::piped());
    let mut put = put.spawn().expect("herd runs");
    let is_over = || put.try_wait().expect("a child").is_some();
    if !within(5 * timeout, is_over) {
        put.kill().expect("a child");
    }
    let (took, (code, told)) = (begin.elapsed(), end(put));
    assert_eq!(code, Some(4), "after {took:?}: {told}");
    assert!(tries.load(Ordering::Relaxed) > 2, "it was asked again");
    assert!(node.herd(&["get", "lost"]).stdout == pattern(length, 3), "and done");
}
