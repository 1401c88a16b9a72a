//! The HTTP door as a client sees it.

use crate::node::{Node, pattern};
use std::io::{Read, Write};
use std::time::{Duration, Instant};

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

#[test]
fn objects_are_put_got_and_deleted() {
    let node = Node::start(&["--memory", "64m"]);
    let made = put(&node, "/o/default/a%2Fb", "Content-Type: text/plain\r\nHerd-TTL: 100\r\n", b"hello");
    assert_eq!(status(&made), "201");
    let got = ask(&node, "GET /o/default/a%2Fb");
    assert!(got.ends_with("\r\n\r\nhello") && header(&got, "Content-Type") == "text/plain", "{got}");
    assert_eq!(header(&got, "ETag"), header(&made, "ETag"));
    assert_eq!((header(&got, "Herd-Class"), header(&got, "Herd-Copies")), ("ram:1", "1"));
    let head = ask(&node, "HEAD /o/default/a%2Fb");
    assert!(head.ends_with("\r\n\r\n") && header(&head, "Content-Length") == "5", "{head}");
    assert_eq!(status(&put(&node, "/o/default/a%2Fb", "", b"again")), "204");
    assert_eq!(status(&ask(&node, "DELETE /o/default/a%2Fb")), "204");
    assert_eq!(status(&ask(&node, "GET /o/default/a%2Fb")), "404");
    assert_eq!(status(&ask(&node, "DELETE /o/default/a%2Fb")), "404");
}

#[test]
fn conditions_and_ranges() {
    let node = Node::start(&["--memory", "64m"]);
    let tag = header(&put(&node, "/o/default/x", "If-None-Match: *\r\n", b"0123456789"), "ETag").to_string();
    assert_eq!(status(&put(&node, "/o/default/x", "If-None-Match: *\r\n", b"no")), "412");
    assert_eq!(status(&put(&node, "/o/default/x", "If-Match: \"1\"\r\n", b"no")), "412");
    assert_eq!(status(&put(&node, "/o/default/x", &format!("If-Match: {tag}\r\n"), b"0123456789")), "204");
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

#[test]
fn a_large_body_goes_both_ways_whole() {
    let node = Node::start(&["--memory", "256m"]);
    let body = pattern(50_000_000, 9);
    assert_eq!(status(&put(&node, "/o/default/big", "", &body)), "201");
    let got = node.talk(b"GET /o/default/big HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    assert!(got.ends_with(&body));
}

#[test]
fn chunked_bodies_in_odd_pieces() {
    let node = Node::start(&["--memory", "64m"]);
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

#[test]
fn pipelined_requests_are_answered_in_order_however_they_arrive() {
    let node = Node::start(&["--memory", "64m"]);
    put(&node, "/o/default/big", "", &pattern(200_000, 2));
    put(&node, "/o/default/small", "", b"small");
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

#[test]
fn bad_requests_get_their_own_errors() {
    let node = Node::start(&["--memory", "16m", "--max-object", "8m"]);
    assert_eq!(status(&ask(&node, "GET /nothing")), "404");
    assert_eq!(status(&ask(&node, "PATCH /o/default/x")), "405");
    let missing = put(&node, "/o/missing/x", "", b"v");
    assert!(status(&missing) == "404" && missing.contains("herd collection create missing"), "{missing}");
    let head = "PUT /o/default/x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999\r\n\r\n";
    assert_eq!(status(&text(&node.talk(format!("{head}{}", "x".repeat(1 << 20)).as_bytes()))), "413");
    let long = format!("GET /o/default/x HTTP/1.1\r\nHost: localhost\r\nX: {}\r\n\r\n", "x".repeat(20_000));
    assert_eq!(status(&text(&node.talk(long.as_bytes()))), "431");
    let smuggled =
        "PUT /o/default/x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\nabc";
    assert_eq!(status(&text(&node.talk(smuggled.as_bytes()))), "400");
    let full: Vec<String> = (0..4).map(|i| put(&node, &format!("/o/default/f{i}"), "", &vec![1; 6 << 20])).collect();
    assert!(full.iter().any(|answer| status(answer) == "507" && answer.contains("MiB")), "{full:?}");
    assert_eq!(status(&ask(&node, "GET /healthz")), "200");
}

#[test]
fn a_get_waits_for_a_newer_version() {
    let node = Node::start(&["--memory", "64m"]);
    let tag = header(&put(&node, "/o/default/w", "", b"old"), "ETag").to_string();
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
    put(&node, "/o/default/w", "", b"new");
    let mut answer = Vec::new();
    socket.read_to_end(&mut answer).expect("answered");
    assert!(text(&answer).ends_with("\r\n\r\nnew"));
    assert!(begin.elapsed() < Duration::from_secs(2), "told at once, not at the end of the wait");
}

#[test]
fn pages_metrics_and_status() {
    let node = Node::start(&["--memory", "64m"]);
    for i in 0..25 {
        put(&node, &format!("/o/default/n{i}"), "", b"v");
    }
    let (mut seen, mut after) = (0, String::new());
    loop {
        let page = ask(&node, &format!("GET /o/default?prefix=n&limit=10&after={after}"));
        seen += page.matches("\"name\":").count();
        let Some((_, next)) = page.split_once("\"next\":\"") else {
            break;
        };
        after = next.split('"').next().unwrap_or("").to_string();
    }
    assert_eq!(seen, 25);
    let metrics = ask(&node, "GET /metrics");
    assert!(metrics.contains("herd_requests_total{door=\"http\",verb=\"put\"} 25"), "{metrics}");
    assert!(metrics.contains("herd_objects{collection=\"default\"} 25"));
    let body = metrics.split("\r\n\r\n").nth(1).expect("a body");
    for line in body.lines().filter(|line| !line.starts_with('#')) {
        let value = line.rsplit(' ').next().unwrap_or("");
        assert!(value.parse::<f64>().is_ok(), "{line}");
    }
    assert!(ask(&node, "GET /status").contains("\"objects\":25"));
}

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
