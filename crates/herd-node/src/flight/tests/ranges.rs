//! Ranges of objects that other nodes have, by HTTP: as one's own, and no more than they are is asked for.

use super::*;

/// What a GET is answered, but for its date.
fn get(world: &mut World, client: usize, name: &str, fields: &str) -> Vec<u8> {
    let asked = format!("GET /o/default/{name} HTTP/1.1\r\nHost: h\r\n{fields}\r\n");
    let said = world.say(client, asked.as_bytes());
    let end = said
        .windows(4)
        .position(|end| end == b"\r\n\r\n")
        .unwrap_or_else(|| panic!("{name} {client} {fields}: {said:?}"));
    let head = String::from_utf8_lossy(&said[..end]).into_owned();
    let lines: Vec<&str> = head.lines().filter(|line| !line.starts_with("Date: ")).collect();
    [lines.join("\n").as_bytes(), &said[end..]].concat()
}

#[test]
fn a_range_is_answered_by_each_node_as_by_the_one_that_has_the_object() {
    for copies in [1, 3] {
        let mut world = World::keeping(3, copies);
        let clients: Vec<usize> = (1..=3).map(|number| world.connect(number, 1 << 20)).collect();
        for (name, bytes) in [("empty", 0), ("small", 100), ("block", 70_000), ("large", 5 << 20)] {
            let value: Vec<u8> = (0..bytes).map(|at| (at % 251) as u8 ^ (at >> 16) as u8).collect();
            let head = format!("PUT /o/default/{name} HTTP/1.1\r\nHost: h\r\nContent-Length: {bytes}\r\n\r\n");
            let said = world.say(clients[0], &[head.as_bytes(), &value].concat());
            let said = String::from_utf8_lossy(&said);
            assert!(said.starts_with("HTTP/1.1 201 "), "{said}");
            let tag = said.lines().find_map(|line| line.strip_prefix("ETag: ")).expect("a version").to_owned();
            for range in [
                "0-0",
                "10-19",
                "99-",
                "100-",
                "5-69999",
                "65536-65600",
                "1-5242879",
                "4194304-9999999",
                "-7",
                "-0",
                "-4999999",
                "-18446744073709551615",
            ] {
                for more in
                    ["", "If-Range: \"7\"\r\n", "If-None-Match: TAG\r\n", "If-Match: \"7\"\r\n", "If-Range: TAG\r\n"]
                {
                    let fields = format!("Range: bytes={range}\r\n{more}").replace("TAG", &tag);
                    let said: Vec<Vec<u8>> =
                        clients.iter().map(|client| get(&mut world, *client, name, &fields)).collect();
                    let text = String::from_utf8_lossy(&said[0][..said[0].len().min(300)]).into_owned();
                    assert!(said[0] == said[1] && said[1] == said[2], "{name} {fields}: {text}");
                    let (first, last) = range.split_once('-').expect("two ends");
                    let (first, last) = (first.parse::<usize>(), last.parse().unwrap_or(usize::MAX));
                    if let (Ok(first), true) = (first, more.is_empty() || more == "If-Range: TAG\r\n")
                        && first < bytes
                    {
                        assert!(text.starts_with("HTTP/1.1 206 "), "{text}");
                        assert!(said[0].ends_with(&value[first..bytes.min(last.saturating_add(1))]));
                    }
                    if let (Ok(count @ 1..), "") = (range.trim_start_matches('-').parse::<usize>(), more)
                        && range.starts_with('-')
                    {
                        let status = if bytes > 0 { "HTTP/1.1 206 " } else { "HTTP/1.1 200 " };
                        assert!(text.starts_with(status), "{text}");
                        assert!(said[0].ends_with(&value[bytes.saturating_sub(count)..]));
                    }
                }
            }
        }
    }
}

/// Bytes of values that nodes have sent to each other.
fn passed_bytes(world: &mut World) -> u64 {
    let line = "herd_value_bytes_total{door=\"node\",verb=\"get\",way=\"out\"} ";
    let of = |number: u32, world: &mut World| {
        let metrics = world.machine(number).shared.metrics_text(Default::default());
        let told = metrics.lines().find_map(|said| said.strip_prefix(line));
        told.map_or(0, |count| count.parse::<u64>().expect("a number"))
    };
    (1..=3).map(|number| of(number, world)).sum()
}

#[test]
fn of_a_long_object_no_more_is_asked_for_than_its_range() {
    let mut world = World::keeping(3, 1);
    let bytes = 9 << 20;
    let clients: Vec<usize> = (1..=3).map(|number| world.connect(number, 1 << 20)).collect();
    let head = format!("PUT /o/default/long HTTP/1.1\r\nHost: h\r\nContent-Length: {bytes}\r\n\r\n");
    assert!(world.say(clients[0], &[head.into_bytes(), vec![7; bytes]].concat()).starts_with(b"HTTP/1.1 201 "));
    for (range, asked_bytes) in [("-10", 10), ("-5000000", 5_000_000), ("20-29", 10), ("-0", 0)] {
        let mut passed = Vec::new();
        for client in &clients {
            let before = passed_bytes(&mut world);
            get(&mut world, *client, "long", &format!("Range: bytes={range}\r\n"));
            passed.push(passed_bytes(&mut world) - before);
        }
        passed.sort_unstable();
        assert_eq!(passed, [0, asked_bytes, asked_bytes], "{range}");
    }
}
