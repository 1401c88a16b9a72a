//! The HTTP door.

use super::say;
use crate::Config;
use crate::drive::World;
use herd_core::limits::{HTTP_DROPPED_MAX_BYTES, LIST_PAGE_HIGH_BYTES, NAME_MAX_BYTES};
use std::time::Duration;

fn put(world: &mut World, name: &str, more: &str) -> String {
    let peer = world.connect();
    say(world, peer, &format!("PUT /o/default/{name} HTTP/1.1\r\nHost: localhost\r\n{more}Content-Length: 1\r\n\r\nx"))
}

fn get(world: &mut World, target: &str, host: &str) -> String {
    let peer = world.connect();
    say(world, peer, &format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n"))
}

fn code(said: &str) -> &str {
    said.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)).unwrap_or("none")
}

/// The value of a header field.
fn field<'a>(said: &'a str, name: &str) -> Option<&'a str> {
    said.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}

#[test]
fn a_page_under_another_name_does_not_reach_a_node_on_loopback() {
    let mut world = World::new();
    for host in ["127.0.0.1:7700", "localhost", "LocalHost:7700", "[::1]:7700", "[::1]", "10.1.2.3", "x:80", ""] {
        assert_eq!(code(&get(&mut world, "/healthz", host)), "200", "{host}");
    }
    for host in ["example.com", "example.com:7700", "127.0.0.1.example.com", "localhost.example.com:80", "com."] {
        assert_eq!(code(&get(&mut world, "/healthz", host)), "403", "{host}");
    }
    let config = Config { listen: vec![([0, 0, 0, 0], 0).into()], memory_bytes: 8 << 20, ..Config::default() };
    assert_eq!(code(&get(&mut World::with(config), "/healthz", "one.example.com:7700")), "200");
}

#[test]
fn the_time_to_live_that_is_left_comes_back() {
    let mut world = World::new();
    assert_eq!(code(&put(&mut world, "n", "Herd-TTL: 60\r\n")), "201");
    world.pass(Duration::from_millis(1_250));
    assert_eq!(field(&get(&mut world, "/o/default/n", "localhost"), "Herd-TTL"), Some("58.750"));
    assert_eq!(code(&put(&mut world, "n", "")), "204");
    assert_eq!(field(&get(&mut world, "/o/default/n", "localhost"), "Herd-TTL"), None);
}

#[test]
fn nothing_was_modified_after_now() {
    let mut world = World::new();
    put(&mut world, "past", "Herd-Mtime: 1000000000000000000\r\n");
    put(&mut world, "future", "Herd-Mtime: 4000000000000000000\r\n");
    let past = get(&mut world, "/o/default/past", "localhost");
    assert_eq!(field(&past, "Last-Modified"), Some("Sun, 09 Sep 2001 01:46:40 GMT"));
    let future = get(&mut world, "/o/default/future", "localhost");
    assert_eq!(field(&future, "Last-Modified"), field(&future, "Date"));
    assert_eq!(field(&future, "Herd-Mtime"), Some("4000000000000000000"));
}

#[test]
fn an_empty_line_may_precede_the_first_request() {
    let mut world = World::new();
    let peer = world.connect();
    assert_eq!(say(&mut world, peer, "\r\n"), "");
    assert_eq!(code(&say(&mut world, peer, "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")), "200");
}

/// Clients that change one object under a condition keep their connections, whoever was first.
#[test]
fn a_put_that_is_refused_keeps_the_connection_where_its_body_is_small() {
    let mut world = World::new();
    put(&mut world, "n", "");
    let head = |more: &str, length: usize| {
        format!("PUT /o/default/n HTTP/1.1\r\nHost: localhost\r\n{more}Content-Length: {length}\r\n\r\n")
    };
    let health = "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let small = "y".repeat(HTTP_DROPPED_MAX_BYTES);
    let all = [head("If-None-Match: *\r\n", small.len()), small.clone(), health.into()].concat();
    let lengths = [all.len(), all.len() - health.len(), all.len() - health.len() - 5, all.len() - small.len()];
    for (at, cut) in lengths.into_iter().enumerate() {
        let peer = world.connect();
        let mut said = say(&mut world, peer, &all[..cut]);
        assert_eq!(code(&said), "412", "{at}");
        said += &say(&mut world, peer, &all[cut..]);
        assert!(said.ends_with("\r\n\r\nok\n"), "{at}: {said}");
        assert_eq!(field(&said, "Connection"), None, "{at}");
        assert!(!world.is_closed(peer));
    }
    assert!(get(&mut world, "/o/default/n", "localhost").ends_with("\r\n\r\nx"), "nothing was stored");
    let missing = format!("PUT /o/none/n HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\ny{health}");
    let peer = world.connect();
    let said = say(&mut world, peer, &missing);
    assert!(code(&said) == "404" && said.ends_with("ok\n"), "{said}");
    // Who expects to be told before the body may send it or not; who has much to send is stopped.
    for (more, length) in
        [("Expect: 100-continue\r\n", 1), ("", HTTP_DROPPED_MAX_BYTES + 1), ("Connection: close\r\n", 1)]
    {
        let peer = world.connect();
        let said = say(&mut world, peer, &head(&format!("If-None-Match: *\r\n{more}"), length));
        assert_eq!((code(&said), field(&said, "Connection")), ("412", Some("close")), "{more}{length}");
        let said = say(&mut world, peer, &format!("y{health}"));
        assert!(said.is_empty(), "{said}");
    }
}

/// However long its names, a page is no more than what one connection may hold; the pages together have all.
#[test]
fn a_page_of_long_names_ends_early() {
    let mut world = World::new();
    let start = "\u{1}".repeat(NAME_MAX_BYTES - 4).replace('\u{1}', "%01");
    for n in 0..200 {
        assert_eq!(code(&put(&mut world, &format!("{start}{n:04}"), "")), "201");
    }
    let (mut names, mut after) = (0, String::new());
    loop {
        let said = get(&mut world, &format!("/o/default?limit=10000{after}"), "localhost");
        let body = said.split_once("\r\n\r\n").expect("a body").1;
        assert!(body.len() < LIST_PAGE_HIGH_BYTES + 13 * NAME_MAX_BYTES, "{}", body.len());
        let page: serde_json::Value = serde_json::from_str(body).expect("JSON");
        names += page["objects"].as_array().expect("a list").len();
        let Some(next) = page["next"].as_str() else {
            break;
        };
        after = format!("&after={}", next.replace('\u{1}', "%01"));
    }
    assert_eq!(names, 200);
}

/// Its reply keeps its place among those of other requests on the connection.
#[test]
fn a_long_listing_is_answered_in_its_place() {
    let mut world = World::new();
    let text = world.connect();
    for n in 0..10_000 {
        say(&mut world, text, &format!("set n{n} 0 0 0 noreply\r\n\r\n"));
    }
    let peer = world.connect();
    let list = "GET /o/default?prefix=none HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let said = say(&mut world, peer, &format!("{list}GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"));
    let (page, health) = (said.find("\"objects\":[]").expect("a page"), said.find("ok\n").expect("healthy"));
    assert!(page < health, "{said}");
}
