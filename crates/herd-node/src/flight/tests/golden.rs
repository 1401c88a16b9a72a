//! Conversations, word by word.

use super::*;

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
