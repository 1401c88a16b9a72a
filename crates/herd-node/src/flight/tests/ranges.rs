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
            for range in ["0-0", "10-19", "99-", "100-", "5-69999", "65536-65600", "1-5242879", "-7", "4194304-9999999"]
            {
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
                }
            }
        }
    }
}
