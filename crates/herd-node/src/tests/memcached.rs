//! The memcached door.

use super::say;
use crate::Config;
use crate::drive::World;
use herd_core::limits::{INLINE_MAX_BYTES, OUTPUT_HIGH_BYTES};

/// The answer to one line of a thousand keys is made piece by piece, as the connection takes it.
#[test]
fn a_line_of_many_keys_does_not_make_its_whole_answer_at_once() {
    let mut world = World::new();
    let peer = world.connect();
    let value = "v".repeat(INLINE_MAX_BYTES);
    assert_eq!(say(&mut world, peer, &format!("set k 0 0 {}\r\n{value}\r\n", value.len())), "STORED\r\n");
    for line in [format!("get{}\r\nmn\r\n", " k".repeat(1000)), format!("gat 0{}\r\nmn\r\n", " k".repeat(1000))] {
        let peer = world.connect();
        let held = world.send_deaf(peer, line.as_bytes());
        assert!(held <= OUTPUT_HIGH_BYTES + INLINE_MAX_BYTES + 100, "{held}");
        let said = String::from_utf8(world.hear_all(peer)).expect("text");
        assert_eq!(said.matches("VALUE k 0 4096\r\n").count(), 1000);
        assert!(said.ends_with("\r\nEND\r\nMN\r\n"));
    }
}

/// A full node that holds `k` with its CAS value 1: whatever else is refused, the old value stays.
#[test]
fn only_a_plain_set_that_fails_removes_the_old_value() {
    let long = "x".repeat(2000);
    let too_large = "y".repeat(100_001);
    let lines = [
        ("ms k 100001 MA", &too_large, true),
        ("ms k 100001 MP", &too_large, true),
        ("ms k 100001 MR", &too_large, true),
        ("ms k 100001 ME", &too_large, true),
        ("ms k 100001 C1", &too_large, true),
        ("append k 0 0 100001", &too_large, true),
        ("replace k 0 0 100001", &too_large, true),
        ("ms k 100001", &too_large, false),
        ("set k 0 0 100001", &too_large, false),
        ("ms k 2000 MA", &long, true),
        ("ms k 2000 MP", &long, true),
        ("ms k 2000 MR", &long, true),
        ("ms k 2000 C1", &long, true),
        ("append k 0 0 2000", &long, true),
        ("cas k 0 0 2000 1", &long, true),
        ("ms k 2000", &long, false),
        ("set k 0 0 2000", &long, false),
    ];
    let config = Config { memory_bytes: 8 << 20, threads: 1, memcached_max_bytes: 100_000, ..Config::default() };
    for (line, value, stays) in lines {
        let mut world = World::with(config.clone());
        let peer = world.connect();
        assert_eq!(say(&mut world, peer, "ms k 3 E1\r\nold\r\n"), "HD\r\n");
        let filler = "z".repeat(1900);
        let mut refused = 0;
        for n in 0.. {
            let said = say(&mut world, peer, &format!("set fill{n} 0 0 1900\r\n{filler}\r\n"));
            refused += usize::from(!said.starts_with("STORED"));
            if refused == 100 {
                break; // in every shard
            }
        }
        let said = say(&mut world, peer, &format!("{line}\r\n{value}\r\n"));
        assert!(said.starts_with("SERVER_ERROR "), "{line}: {said}");
        let there = say(&mut world, peer, "get k\r\n");
        assert_eq!(there, if stays { "VALUE k 0 3\r\nold\r\nEND\r\n" } else { "END\r\n" }, "{line}");
    }
}

/// As memcached 1.6.45 answers.
#[test]
fn ms_compares_whatever_its_mode() {
    let mut world = World::new();
    let peer = world.connect();
    let table = [
        // flags, answer with another CAS value there, with the right one, without the key
        ("C5", "EX", "HD", "NF"),
        ("C5 MR", "EX", "HD", "NF"),
        ("C5 ME", "NS", "NS", "HD"),
        ("C5 MA", "EX", "HD", "NS"),
        ("C5 MP", "EX", "HD", "NS"),
        ("C5 I MA", "EX", "HD", "NS"),
        ("C5 MA N60", "EX", "HD", "HD"),
    ];
    for (flags, other, right, absent) in table {
        let line = format!("ms k 1 {flags}\r\nx\r\n");
        say(&mut world, peer, "ms k 1 E6\r\n1\r\n");
        assert_eq!(say(&mut world, peer, &line), format!("{other}\r\n"), "{flags}, other");
        assert_eq!(say(&mut world, peer, "mg k v c\r\n"), "VA 1 c6\r\n1\r\n", "{flags}, other");
        say(&mut world, peer, "ms k 1 E5\r\n1\r\n");
        assert_eq!(say(&mut world, peer, &line), format!("{right}\r\n"), "{flags}, right");
        say(&mut world, peer, "md k\r\n");
        assert_eq!(say(&mut world, peer, &line), format!("{absent}\r\n"), "{flags}, absent");
    }
    // An older value is taken, and marked stale (flag I).
    say(&mut world, peer, "ms k 1 E7\r\n1\r\n");
    assert_eq!(say(&mut world, peer, "ms k 1 C5 I MR\r\n2\r\n"), "HD\r\n");
    assert_eq!(say(&mut world, peer, "mg k v\r\n"), "VA 1 X W\r\n2\r\n");
}
