//! The HTTP door as a client sees it: that of a node by itself, and, where it is not about one process alone, that of
//! each node of a herd of three.

use crate::node::{Node, pattern};
use std::io::{Read, Write};
use std::time::{Duration, Instant};

/// What holds at a node by itself and at any node of a herd, of what is to be none of the names before.
const CHECKS: [fn(&Node); 9] = [
    objects_are_put_got_and_deleted,
    conditions_and_ranges,
    conditions_are_judged_before_the_body_is_asked_for,
    a_large_body_goes_both_ways_whole,
    chunked_bodies_in_odd_pieces,
    pipelined_requests_are_answered_in_order_however_they_arrive,
    bad_requests_get_their_own_errors,
    a_get_waits_for_a_newer_version,
    pages,
];

#[test]
fn a_node_by_itself() {
    for check in CHECKS {
        check(&Node::start(&["--memory", "256m", "--max-object", "64m"]));
    }
}

/// Each name is asked for at each node: with one copy two of three have it not, with three one decides for the others.
#[test]
fn each_node_of_a_herd() {
    for copies in [1, 3] {
        let nodes = crate::herds::three_that_keep(copies, &["--memory", "256m", "--max-object", "64m"], &[]);
        for check in CHECKS {
            for (node, _) in &nodes {
                check(node);
                assert_eq!(node.talk(b"flush_all\r\nquit\r\n"), b"OK\r\n");
            }
        }
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn ask(node: &Node, request: &str) -> String {
    text(&node.talk(format!("{request} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").as_bytes()))
}

fn put(node: &Node, path: &str, headers: &str, body: &[u8]) -> String {
    let head = format!(
        "PUT {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}Content-Length: {}\r\n\r\n",
        body.len()
    );
    text(&node.talk(&[head.as_bytes(), body].concat()))
}

fn status(answer: &str) -> &str {
    answer.get(9..12).unwrap_or("none")
}

fn header<'a>(answer: &'a str, name: &str) -> &'a str {
    let line = answer.lines().find_map(|line| line.strip_prefix(&format!("{name}: ")));
    line.unwrap_or("")
}

fn objects_are_put_got_and_deleted(node: &Node) {
    let made = put(node, "/o/default/a%2Fb", "Content-Type: text/plain\r\nHerd-TTL: 100\r\n", b"hello");
    assert_eq!(status(&made), "201");
    let got = ask(node, "GET /o/default/a%2Fb");
    assert!(got.ends_with("\r\n\r\nhello") && header(&got, "Content-Type") == "text/plain", "{got}");
    assert_eq!(header(&got, "ETag"), header(&made, "ETag"));
    let head = ask(node, "HEAD /o/default/a%2Fb");
    assert!(head.ends_with("\r\n\r\n") && header(&head, "Content-Length") == "5", "{head}");
    assert_eq!(status(&put(node, "/o/default/a%2Fb", "", b"again")), "204");
    assert_eq!(status(&ask(node, "DELETE /o/default/a%2Fb")), "204");
    assert_eq!(status(&ask(node, "GET /o/default/a%2Fb")), "404");
    assert_eq!(status(&ask(node, "DELETE /o/default/a%2Fb")), "404");
}

fn conditions_and_ranges(node: &Node) {
    let tag = header(&put(node, "/o/default/x", "If-None-Match: *\r\n", b"0123456789"), "ETag").to_string();
    assert_eq!(status(&put(node, "/o/default/x", "If-None-Match: *\r\n", b"no")), "412");
    assert_eq!(status(&put(node, "/o/default/x", "If-Match: \"1\"\r\n", b"no")), "412");
    assert_eq!(status(&put(node, "/o/default/x", &format!("If-Match: {tag}\r\n"), b"0123456789")), "204");
    let range = |range: &str| {
        let request =
            format!("GET /o/default/x HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nRange: {range}\r\n\r\n");
        text(&node.talk(request.as_bytes()))
    };
    let part = range("bytes=2-4");
    assert!(part.ends_with("\r\n\r\n234") && header(&part, "Content-Range") == "bytes 2-4/10", "{part}");
    assert!(range("bytes=-3").ends_with("\r\n\r\n789"));
    assert!(range("bytes=7-").ends_with("\r\n\r\n789"));
    let past = range("bytes=10-");
    assert!(status(&past) == "416" && header(&past, "Content-Range") == "bytes */10", "{past}");
}

/// What is said at once to the head of a PUT whose body has not come.
fn put_head(node: &Node, path: &str, headers: &str) -> String {
    let mut socket = node.connect();
    let head = format!("PUT {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}\r\n");
    socket.write_all(head.as_bytes()).expect("sent");
    let mut answer = vec![0; 1024];
    let bytes = socket.read(&mut answer).expect("answered");
    text(&answer[..bytes])
}

fn conditions_are_judged_before_the_body_is_asked_for(node: &Node) {
    let (expects, long) = ("Content-Length: 3\r\nExpect: 100-continue\r\n", "Content-Length: 50000000\r\n");
    assert_eq!(status(&put_head(node, "/o/default/e", &format!("If-Match: *\r\n{expects}"))), "412");
    assert_eq!(status(&put_head(node, "/o/default/e", &format!("If-None-Match: *\r\n{expects}"))), "100");
    let tag = header(&put(node, "/o/default/e", "", b"old"), "ETag").to_string();
    for body in [expects, long, "Transfer-Encoding: chunked\r\n"] {
        for condition in ["If-None-Match: *", "If-Match: \"1\""] {
            let refused = put_head(node, "/o/default/e", &format!("{condition}\r\n{body}"));
            assert_eq!((status(&refused), header(&refused, "Connection")), ("412", "close"), "{body}{refused}");
        }
    }
    assert_eq!(status(&put_head(node, "/o/default/e", &format!("If-Match: {tag}\r\n{expects}"))), "100");
    let body = pattern(5_000_000, 3);
    assert_eq!(status(&put(node, "/o/default/e", &format!("If-Match: {tag}\r\n"), &body)), "204");
    assert!(node.talk(b"GET /o/default/e HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").ends_with(&body));
    let asked = b"GET /o/default/e HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nRange: bytes=-4500001\r\n\r\n";
    let got = node.talk(asked);
    assert!(got.starts_with(b"HTTP/1.1 206 ") && got.ends_with(&body[body.len() - 4_500_001..]));
    assert!(text(&got[..500]).contains("Content-Range: bytes 499999-4999999/5000000"));
}

fn a_large_body_goes_both_ways_whole(node: &Node) {
    let body = pattern(15_000_000, 9);
    assert_eq!(status(&put(node, "/o/default/big", "", &body)), "201");
    let got = node.talk(b"GET /o/default/big HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    assert!(got.ends_with(&body));
}

fn chunked_bodies_in_odd_pieces(node: &Node) {
    let body = pattern(300_000, 5);
    let mut request = b"PUT /o/default/c HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n".to_vec();
    request.extend_from_slice(b"Transfer-Encoding: chunked\r\n\r\n");
    for piece in body.chunks(7_777) {
        request.extend_from_slice(format!("{:x};note=1\r\n", piece.len()).as_bytes());
        request.extend_from_slice(piece);
        request.extend_from_slice(b"\r\n");
    }
    request.extend_from_slice(b"0\r\n\r\n");
    let mut socket = node.connect();
    for piece in request.chunks(10_001) {
        socket.write_all(piece).expect("sent");
    }
    let mut answer = Vec::new();
    socket.read_to_end(&mut answer).expect("answered");
    assert_eq!(status(&text(&answer)), "201");
    let got = node.talk(b"GET /o/default/c HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    assert!(got.ends_with(&body));
}

fn pipelined_requests_are_answered_in_order_however_they_arrive(node: &Node) {
    put(node, "/o/default/big", "", &pattern(200_000, 2));
    put(node, "/o/default/small", "", b"small");
    let mut request = Vec::new();
    for name in ["small", "big", "none", "small"] {
        request.extend_from_slice(format!("GET /o/default/{name} HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes());
    }
    request.extend_from_slice(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    let without_dates = |bytes: &[u8]| -> Vec<u8> {
        text(bytes)
            .lines()
            .filter(|line| !line.starts_with("Date:"))
            .flat_map(|l| l.bytes().collect::<Vec<_>>())
            .collect()
    };
    let at_once = without_dates(&node.talk(&request));
    let mut socket = node.connect();
    for byte in &request {
        socket.write_all(&[*byte]).expect("sent");
    }
    let mut slowly = Vec::new();
    socket.read_to_end(&mut slowly).expect("answered");
    assert!(at_once == without_dates(&slowly));
    assert!(text(&at_once).ends_with("ok"));
}

fn bad_requests_get_their_own_errors(node: &Node) {
    assert_eq!(status(&ask(node, "GET /nothing")), "404");
    assert_eq!(status(&ask(node, "PATCH /o/default/x")), "405");
    let missing = put(node, "/o/missing/x", "", b"v");
    assert!(status(&missing) == "404" && missing.contains("herd collection create missing"), "{missing}");
    let head = "PUT /o/default/x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999\r\n\r\n";
    assert_eq!(status(&text(&node.talk(format!("{head}{}", "x".repeat(1 << 20)).as_bytes()))), "413");
    let long = format!("GET /o/default/x HTTP/1.1\r\nHost: localhost\r\nX: {}\r\n\r\n", "x".repeat(20_000));
    assert_eq!(status(&text(&node.talk(long.as_bytes()))), "431");
    let smuggled =
        "PUT /o/default/x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\nabc";
    assert_eq!(status(&text(&node.talk(smuggled.as_bytes()))), "400");
    assert_eq!(status(&ask(node, "GET /healthz")), "200");
}

/// Of one node: how much memory it has is its own.
#[test]
fn a_full_node_says_so_and_serves_on() {
    let node = Node::start(&["--memory", "16m", "--max-object", "8m"]);
    let full: Vec<String> = (0..4).map(|i| put(&node, &format!("/o/default/f{i}"), "", &vec![1; 6 << 20])).collect();
    assert!(full.iter().any(|answer| status(answer) == "507" && answer.contains("MiB")), "{full:?}");
    assert_eq!(status(&ask(&node, "GET /healthz")), "200");
}

fn a_get_waits_for_a_newer_version(node: &Node) {
    let tag = header(&put(node, "/o/default/w", "", b"old"), "ETag").to_string();
    let wait = |seconds: u32| {
        format!(
            "GET /o/default/w HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nIf-None-Match: {tag}\r\n\
             Prefer: wait={seconds}\r\n\r\n"
        )
    };
    assert_eq!(status(&text(&node.talk(wait(1).as_bytes()))), "304");
    let mut socket = node.connect();
    socket.write_all(wait(20).as_bytes()).expect("sent");
    std::thread::sleep(Duration::from_millis(200));
    let begin = Instant::now();
    put(node, "/o/default/w", "", b"new");
    let mut answer = Vec::new();
    socket.read_to_end(&mut answer).expect("answered");
    assert!(text(&answer).ends_with("\r\n\r\nnew"));
    assert!(begin.elapsed() < Duration::from_secs(2), "told at once, not at the end of the wait");
}

fn pages(node: &Node) {
    for i in 0..25 {
        put(node, &format!("/o/default/n{i}"), "", b"v");
    }
    let (mut seen, mut after) = (0, String::new());
    loop {
        let page = ask(node, &format!("GET /o/default?prefix=n&limit=10&after={after}"));
        seen += page.matches("\"name\":").count();
        let Some((_, next)) = page.split_once("\"next\":\"") else {
            break;
        };
        after = next.split('"').next().unwrap_or("").to_string();
    }
    assert_eq!(seen, 25);
}

/// Of one node: each tells what it was asked itself, and what it has. How a herd keeps objects, `herds.rs` looks at.
#[test]
fn metrics_and_status() {
    let node = Node::start(&["--memory", "64m"]);
    for i in 0..25 {
        put(&node, &format!("/o/default/n{i}"), "", b"v");
    }
    let metrics = ask(&node, "GET /metrics");
    assert!(metrics.contains("herd_requests_total{door=\"http\",verb=\"put\"} 25"), "{metrics}");
    assert!(metrics.contains("herd_objects{collection=\"default\"} 25"));
    let body = metrics.split("\r\n\r\n").nth(1).expect("a body");
    for line in body.lines().filter(|line| !line.starts_with('#')) {
        let value = line.rsplit(' ').next().unwrap_or("");
        assert!(value.parse::<f64>().is_ok(), "{line}");
    }
    assert!(ask(&node, "GET /status").contains("\"objects\":25"));
    let got = ask(&node, "GET /o/default/n7");
    assert_eq!((header(&got, "Herd-Class"), header(&got, "Herd-Copies")), ("ram:1", "1"));
}

/// Of one node: a client that has not said what it wants has nothing to do with others.
#[test]
fn a_silent_and_a_stalled_client_are_shed_and_others_served() {
    let node = Node::start(&["--memory", "64m"]);
    let (mut silent, mut stalled) = (node.connect(), node.connect());
    stalled.write_all(b"GET /o/default/x HTTP/1.1\r\nHo").expect("sent");
    let begin = Instant::now();
    assert_eq!(status(&ask(&node, "GET /healthz")), "200");
    let mut rest = Vec::new();
    silent.read_to_end(&mut rest).expect("closed");
    stalled.read_to_end(&mut rest).expect("closed");
    assert!(rest.is_empty() && begin.elapsed() < Duration::from_secs(6), "{:?}", begin.elapsed());
    assert!(ask(&node, "GET /metrics").contains("herd_connections_shed_total 2"));
}
