//! Conversations, word by word.

use super::*;
use crate::tests::{frame, frames_of, request};
use herd_core::wire::{Fields, ListEntries, Status, Verb};

/// Each node answers for all, whoever has the object.
#[test]
fn what_is_put_at_one_node_is_there_at_all() {
    let (mut world, clients) = herd(3);
    for at in 0..30 {
        let [writer, reader] = [at % 3, (at / 3) % 3].map(|at| clients[at]);
        assert_eq!(say(&mut world, writer, &format!("set k{at} 5 0 2\r\nv{}\r\n", at % 10)), "STORED\r\n");
        let value = format!("VALUE k{at} 5 2\r\nv{}\r\nEND\r\n", at % 10);
        assert_eq!(say(&mut world, reader, &format!("get k{at}\r\n")), value);
    }
    let all: String = (0..30).map(|at| format!(" k{at}")).collect();
    let values: String = (0..30).map(|at| format!("VALUE k{at} 5 2\r\nv{}\r\n", at % 10)).collect();
    for client in clients {
        assert_eq!(say(&mut world, client, &format!("get{all} absent\r\n")), format!("{values}END\r\n"));
    }
    let shared = (1..=3).map(|number| world.machine(number).shared.clone());
    let held: Vec<u64> = shared.map(|shared| shared.store.counts(&shared.default).objects).collect();
    assert!(held.iter().all(|objects| *objects > 0) && held.iter().sum::<u64>() == 30, "{held:?}");
}

/// A request by HTTP to a node's own connection.
fn http(world: &mut World, client: usize, line: &str, more: &str) -> String {
    say(world, client, &format!("{line} HTTP/1.1\r\nHost: localhost\r\n{more}"))
}

#[test]
fn http_answers_for_other_nodes() {
    let (mut world, clients) = herd(3);
    for at in 0..9 {
        let [writer, reader] = [at % 3, (at / 3) % 3].map(|at| clients[at]);
        let object = format!("/o/default/h{at}");
        let put = "Content-Length: 3\r\nContent-Type: a/b\r\n\r\nabc";
        let made = http(&mut world, writer, &format!("PUT {object}"), put);
        assert!(made.starts_with("HTTP/1.1 201 "), "{made}");
        let etag = made.split("\r\n").find(|line| line.starts_with("ETag: ")).expect("an ETag").to_owned();
        let got = http(&mut world, reader, &format!("GET {object}"), "\r\n");
        assert!(got.starts_with("HTTP/1.1 200 ") && got.ends_with("\r\n\r\nabc") && got.contains(&etag), "{got}");
        assert!(got.contains("Content-Type: a/b\r\n"), "{got}");
        let part = http(&mut world, reader, &format!("GET {object}"), "Range: bytes=1-1\r\n\r\n");
        assert!(part.starts_with("HTTP/1.1 206 ") && part.ends_with("\r\n\r\nb"), "{part}");
        let head = http(&mut world, reader, &format!("HEAD {object}"), "\r\n");
        assert!(head.contains("Content-Length: 3\r\n") && head.ends_with("\r\n\r\n"), "{head}");
        let refused = http(&mut world, reader, &format!("PUT {object}"), &format!("If-None-Match: *\r\n{put}"));
        assert!(refused.starts_with("HTTP/1.1 412 "), "{refused}");
        let gone = http(&mut world, reader, &format!("DELETE {object}"), "\r\n");
        assert!(gone.starts_with("HTTP/1.1 204 "), "{gone}");
        for reader in &clients {
            let got = http(&mut world, *reader, &format!("GET {object}"), "\r\n");
            assert!(got.starts_with("HTTP/1.1 404 ") && got.contains(&format!("'h{at}'")), "{got}");
        }
    }
}

/// The names in a page by HTTP, and where the next begins.
fn names(page: &str) -> (Vec<String>, Option<String>) {
    let quoted = |text: &str| text.split('"').next().unwrap_or_default().to_owned();
    let names = page.split("{\"name\":\"").skip(1).map(quoted).collect();
    (names, page.split("\"next\":\"").nth(1).map(quoted))
}

/// Page by page, at a node, through one of the doors.
fn listed(world: &mut World, client: usize, limit: u32, by_http: bool) -> Vec<String> {
    let (mut all, mut after) = (Vec::new(), None::<String>);
    loop {
        let (page, next) = if by_http {
            let after = after.map_or(String::new(), |after| format!("&after={after}"));
            names(&http(world, client, &format!("GET /o/default?prefix=k&limit={limit}{after}"), "\r\n"))
        } else {
            let after = after.as_deref().map(str::as_bytes);
            let fields = Fields { prefix: Some(b"k"), after, limit: Some(limit), ..Fields::default() };
            let said = world.say(client, &frame(request(Verb::List, 1), &fields, b""));
            let reply = &frames_of(&said)[0];
            assert_eq!(reply.header().status(), Some(Status::Ok), "{:?}", reply.fields());
            let entries = ListEntries::new(reply.body().expect("checked"));
            let names = entries.map(|entry| String::from_utf8_lossy(entry.expect("an entry").name).into_owned());
            let names: Vec<String> = names.collect();
            let next = (names.len() == limit as usize).then(|| names.last().cloned()).flatten();
            (names, next)
        };
        assert!(page.len() <= limit as usize);
        all.extend(page);
        after = next;
        if after.is_none() {
            return all;
        }
    }
}

#[test]
fn names_are_listed_of_all_nodes_page_by_page() {
    let (mut world, clients) = herd(3);
    let mut puts: String = (0..100).map(|at| format!("set k{at} 0 0 1\r\nx\r\n")).collect();
    puts += "set other 0 0 1\r\nx\r\n";
    assert_eq!(say(&mut world, clients[1], &puts), "STORED\r\n".repeat(101));
    let mut all: Vec<String> = (0..100).map(|at| format!("k{at}")).collect();
    all.sort();
    for number in 1..=3 {
        let [one, other] = [(); 2].map(|()| world.connect(number, 1 << 20));
        for limit in [1, 7, 100, 1_000] {
            for (client, by_http) in [(one, true), (other, false)] {
                let mut names = listed(&mut world, client, limit, by_http);
                names.sort();
                assert!(names == all, "{limit} at {number}, by HTTP {by_http}: {} names", names.len());
            }
        }
    }
    // A node that can't be asked makes it an error.
    world.kill(3);
    world.settle();
    let said = http(&mut world, clients[0], "GET /o/default", "\r\n");
    assert_eq!(said, "", "the node may be back at once");
    world.pass(2_000);
    let said = say(&mut world, clients[0], "");
    assert!(said.starts_with("HTTP/1.1 503 "), "{said}");
}
