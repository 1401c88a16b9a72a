//! Conditions of PUTs by HTTP whose refusal closes the connection: judged by the node that has the object before the
//! body is asked for, so that each node says what that one says.

use super::*;

const LONG_BYTES: usize = 100_000;

/// The lines of what is said that are the same at each node.
fn said(world: &mut World, client: usize, asked: &[u8]) -> String {
    let said = String::from_utf8_lossy(&world.say(client, asked)).into_owned();
    let differs = |line: &&str| !["Date: ", "ETag: "].iter().any(|name| line.starts_with(name));
    let without_version = |line: &str| line.split("it has version").next().unwrap_or_default().to_owned();
    said.lines().filter(differs).map(without_version).collect::<Vec<_>>().join("\n")
}

fn head(name: &str, fields: &str) -> Vec<u8> {
    format!("PUT /o/default/{name} HTTP/1.1\r\nHost: h\r\n{fields}\r\n").into_bytes()
}

/// Sends a head and, if it was not answered with an error, the body: what was said to both.
fn put(world: &mut World, client: usize, head: &[u8], body: &[u8]) -> [String; 2] {
    let first = said(world, client, head);
    let goes_on = first.is_empty() || first.starts_with("HTTP/1.1 100 ");
    let last = if goes_on { said(world, client, body) } else { String::new() };
    [first, last]
}

fn puts_counted(world: &mut World, number: u32) -> u64 {
    let metrics = world.machine(number).shared.metrics_text(Default::default());
    let line = metrics.lines().find(|line| line.starts_with("herd_requests_total{door=\"http\",verb=\"put\"}"));
    line.and_then(|line| line.rsplit(' ').next()).and_then(|count| count.parse().ok()).expect("a number")
}

#[test]
fn a_condition_is_judged_before_the_body_is_asked_for() {
    let long = vec![b'x'; LONG_BYTES];
    let chunk = [b"186a0\r\n", &long[..], b"\r\n0\r\n\r\n"].concat();
    let (length, chunked) = (format!("Content-Length: {LONG_BYTES}\r\n"), "Transfer-Encoding: chunked\r\n".to_owned());
    let small = "Content-Length: 3\r\nExpect: 100-continue\r\n".to_owned();
    let long_expected = format!("{length}Expect: 100-continue\r\n");
    let bodies = [(&small, &b"new"[..]), (&length, &long), (&long_expected, &long), (&chunked, &chunk)];
    for copies in [1, 3] {
        let mut world = World::keeping(3, copies);
        for (at, (fields, body)) in bodies.into_iter().enumerate() {
            for (condition, is_there, holds) in [
                ("If-None-Match: *\r\n", true, false),
                ("If-None-Match: *\r\n", false, true),
                ("If-Match: *\r\n", true, true),
                ("If-Match: *\r\n", false, false),
                ("If-Match: \"7\"\r\n", true, false),
            ] {
                let name = format!("o{at}{is_there}{}", condition.len());
                let mut all = Vec::new();
                for number in 1..=3 {
                    let client = world.connect(number, 1 << 20);
                    let first = match is_there {
                        true => [head(&name, "Content-Length: 3\r\n"), b"old".to_vec()].concat(),
                        false => format!("DELETE /o/default/{name} HTTP/1.1\r\nHost: h\r\n\r\n").into_bytes(),
                    };
                    world.say(client, &first);
                    let counted = puts_counted(&mut world, number);
                    let answers = put(&mut world, client, &head(&name, &format!("{condition}{fields}")), body);
                    let closes = world.outside[client].1.is_over();
                    assert_eq!((closes, puts_counted(&mut world, number) - counted), (!holds, 1), "{name} {answers:?}");
                    all.push(answers);
                }
                let [first, last] = &all[0];
                let text = format!("{copies} {fields}{condition}{is_there}: {all:#?}");
                assert!(all[0] == all[1] && all[1] == all[2], "{text}");
                match holds {
                    false => assert!(first.starts_with("HTTP/1.1 412 "), "{text}"),
                    true => {
                        let asks = if fields.contains("Expect") { "HTTP/1.1 100 Continue" } else { "" };
                        let status = if is_there { "HTTP/1.1 204 " } else { "HTTP/1.1 201 " };
                        assert!(first.trim_end() == asks && last.starts_with(status), "{text}");
                    }
                }
            }
        }
    }
}

#[test]
fn a_put_that_is_judged_stands_in_line_with_what_was_asked_before_and_behind_it() {
    for copies in [1, 3] {
        let mut world = World::keeping(3, copies);
        for number in 1..=3 {
            let client = world.connect(number, 1 << 20);
            let long = vec![b'x'; LONG_BYTES];
            let name = format!("line{number}");
            // The first makes the object that the second wants to be there; the third wants it gone.
            let mut asked = [head(&name, "Content-Length: 3\r\n"), b"old".to_vec()].concat();
            asked.extend(head(&name, &format!("If-Match: *\r\nContent-Length: {LONG_BYTES}\r\n")));
            asked.extend_from_slice(&long);
            asked.extend(format!("GET /o/default/{name} HTTP/1.1\r\nHost: h\r\n\r\n").bytes());
            asked.extend(head(&name, &format!("If-None-Match: *\r\nContent-Length: {LONG_BYTES}\r\n")));
            asked.extend_from_slice(&long);
            let said = say(&mut world, client, &String::from_utf8(asked).expect("text"));
            let codes: Vec<&str> = said.split("HTTP/1.1 ").map(|it| &it[..it.len().min(3)]).collect();
            assert_eq!(codes, ["", "201", "204", "200", "412"], "{copies} {number}");
            assert!(said.contains(&"x".repeat(LONG_BYTES)));
        }
    }
}

#[test]
fn where_nobody_tells_whether_a_condition_holds_the_put_is_refused() {
    let (mut world, clients) = herd(2);
    let shared = world.machine(1).shared.clone();
    let away = |name: &String| shared.store.seat(&shared.default, name.as_bytes()) == herd_store::Seat::Away;
    let name = (0..).map(|at| format!("o{at}")).find(away).expect("it has some");
    world.cut = true;
    world.pass(herd_core::limits::LINK_SILENCE_MS + herd_core::limits::FLIGHT_LINK_MS);
    let asked = head(&name, "If-None-Match: *\r\nContent-Length: 3\r\nExpect: 100-continue\r\n");
    let at_once = world.say(clients[0], &asked);
    world.pass(herd_core::limits::FLIGHT_MS);
    let said = String::from_utf8(at_once).expect("text") + &say(&mut world, clients[0], "");
    assert!(said.starts_with("HTTP/1.1 503 ") && !said.contains("100 Continue"), "{said}");
}
