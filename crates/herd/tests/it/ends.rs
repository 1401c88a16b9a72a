//! How connections end: a client that closes, or only stops sending, with its last bytes.

use crate::node::{Node, pattern};
use herd_core::wire::{self, Fields, Header, Kind, Verb};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

/// Sends `request` and the end of the stream at once; gives all that comes back until the node closes too.
fn ask_and_end(node: &Node, request: &[u8]) -> Vec<u8> {
    let mut socket = node.connect();
    send_with_end(&mut socket, request);
    let mut answer = Vec::new();
    socket.read_to_end(&mut answer).expect("answered, and closed by the node");
    answer
}

/// Has the kernel put the bytes and the end of the stream into one segment.
fn send_with_end(socket: &mut TcpStream, request: &[u8]) {
    rustix::net::sockopt::set_tcp_cork(&*socket, true).expect("a socket can be corked");
    socket.write_all(request).expect("sent");
    socket.shutdown(Shutdown::Write).expect("open");
}

fn connections(node: &Node) -> u64 {
    let status = node.talk(b"GET /status HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    let status = String::from_utf8(status).expect("text");
    let rest = status.split("\"connections\":").nth(1).expect("the status tells it");
    rest.split(',').next().expect("a number").parse().expect("a number")
}

/// Waits until only the connection that asks is open.
fn wait_until_alone(node: &Node) {
    let until = Instant::now() + Duration::from_secs(3);
    while connections(node) > 1 {
        assert!(Instant::now() < until, "{} connections are still open", connections(node) - 1);
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn wire_frame(header: Header, fields: &Fields<'_>, body: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    wire::encode_frame(&mut out, header, fields, body).expect("within the limits");
    out
}

#[test]
fn a_client_that_closes_behind_its_last_request_is_served_and_closed() {
    let node = Node::start(&["--memory", "64m"]);
    for i in 0..40 {
        let mut socket = node.connect();
        let (set, put) = (format!("set a{i} 0 0 1 noreply\r\nx\r\n"), format!("PUT /o/default/h{i} HTTP/1.1\r\n"));
        let mut header = Header::request(Verb::Put, 1);
        header.length = 1;
        let name = format!("w{i}");
        let fields = Fields { name: Some(name.as_bytes()), ..Fields::default() };
        let request = match i % 3 {
            0 => set.into_bytes(),
            1 => (put + "Host: localhost\r\nContent-Length: 1\r\n\r\nx").into_bytes(),
            _ => wire_frame(header, &fields, b"x"),
        };
        send_with_end(&mut socket, &request);
    }
    wait_until_alone(&node);
    let got = node.talk(b"get a0 h1 w2 a39 h37 w38\r\nquit\r\n");
    assert_eq!(got.iter().filter(|byte| **byte == b'x').count(), 6, "{}", String::from_utf8_lossy(&got));
}

#[test]
fn a_client_that_stops_sending_gets_its_answer_and_the_end() {
    let node = Node::start(&["--memory", "64m"]);
    for _ in 0..10 {
        assert!(ask_and_end(&node, b"version\r\n").starts_with(b"VERSION"));
        assert!(ask_and_end(&node, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n").starts_with(b"HTTP/1.1 200"));
        let hello = wire_frame(Header::new(Kind::Hello), &Fields::default(), &[]);
        let welcome = ask_and_end(&node, &hello);
        assert_eq!(wire::parse_header(&welcome).expect("a header").expect("whole").kind, Kind::Welcome);
    }
    wait_until_alone(&node);
}

#[test]
fn a_client_that_stopped_sending_gets_all_replies_however_slowly_it_reads() {
    let node = Node::start(&["--memory", "64m"]);
    node.talk(&[&b"set k 0 0 4000\r\n"[..], &[b'v'; 4000], b"\r\nquit\r\n"].concat());
    let reply_bytes = b"VALUE k 0 4000\r\n".len() + 4000 + b"\r\nEND\r\n".len();
    let mut socket = node.connect();
    send_with_end(&mut socket, &b"get k\r\n".repeat(5_000));
    std::thread::sleep(Duration::from_millis(300));
    let mut answer = Vec::new();
    socket.read_to_end(&mut answer).expect("answered, and closed by the node");
    assert_eq!(answer.len(), 5_000 * reply_bytes);
}

#[test]
fn a_large_body_goes_to_a_client_that_stopped_sending() {
    let node = Node::start(&["--memory", "64m"]);
    let body = pattern(3 << 20, 5);
    let head = format!("PUT /o/default/big HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n", body.len());
    assert!(ask_and_end(&node, &[head.as_bytes(), &body].concat()).starts_with(b"HTTP/1.1 201"));
    let got = ask_and_end(&node, b"GET /o/default/big HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert!(got.ends_with(&body), "{} bytes", got.len());
    let fields = Fields { name: Some(b"big"), ..Fields::default() };
    let got = ask_and_end(&node, &wire_frame(Header::request(Verb::Get, 1), &fields, &[]));
    assert!(got.len() > body.len(), "{} bytes", got.len());
}

#[test]
fn a_reply_that_comes_later_goes_to_a_client_that_stopped_sending() {
    let node = Node::start(&["--memory", "64m"]);
    let fields = Fields { name: Some(b"none"), ..Fields::default() };
    let header = Header { code: wire::CODE_NEWER, time_ms: 300, ..Header::request(Verb::Get, 7) };
    let got = ask_and_end(&node, &wire_frame(header, &fields, &[]));
    assert_eq!(wire::parse_header(&got).expect("a header").expect("whole").id, 7);
    node.talk(b"set k 0 0 1\r\nx\r\nquit\r\n");
    let head = node.talk(b"HEAD /o/default/k HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    let head = String::from_utf8(head).expect("text").to_ascii_lowercase();
    let tag = head.lines().find_map(|line| line.strip_prefix("etag: ")).expect("a version").to_string();
    let wait =
        format!("GET /o/default/k HTTP/1.1\r\nHost: localhost\r\nIf-None-Match: {tag}\r\nPrefer: wait=1\r\n\r\n");
    assert!(ask_and_end(&node, wait.as_bytes()).starts_with(b"HTTP/1.1 304"));
    wait_until_alone(&node);
}

#[test]
fn half_a_request_and_the_end_close_at_once() {
    let node = Node::start(&["--memory", "64m"]);
    let begin = Instant::now();
    for half in [
        &b"get k"[..],
        b"set k 0 0 10\r\nabc",
        b"set k 0 0 100000\r\nabc",
        b"PUT /o/default/k HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\nabc",
        b"x",
    ] {
        ask_and_end(&node, half);
    }
    assert!(begin.elapsed() < Duration::from_secs(3), "no time limit was waited for");
    wait_until_alone(&node);
}
