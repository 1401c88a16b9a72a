//! What memcached's clients ask of one node and mean of the herd.

use super::*;

fn figure(world: &mut World, client: usize, topic: &str, name: &str) -> Option<u64> {
    let said = say(world, client, &format!("stats {topic}\r\n"));
    assert!(said.ends_with("END\r\n"), "{said}");
    let line = said.lines().find_map(|line| line.strip_prefix(&format!("STAT {name} ")).map(str::to_owned));
    line.map(|figure| figure.parse().expect("a number"))
}

#[test]
fn stats_are_those_of_the_herd_at_each_node() {
    for copies in [1, 3] {
        let mut world = World::keeping(3, copies);
        let clients: Vec<usize> = (1..=3).map(|number| world.connect(number, 1 << 20)).collect();
        let sets: String = (0..60).map(|at| format!("set k{at} 0 0 2\r\nxy\r\n")).collect();
        assert_eq!(say(&mut world, clients[0], &sets), "STORED\r\n".repeat(60));
        let gets: String = (0..70).map(|at| format!("get k{at}\r\n")).collect();
        assert_eq!(say(&mut world, clients[1], &gets).matches("VALUE").count(), 60);
        world.pass(1_000);
        for client in &clients {
            for (topic, name, wanted) in [
                ("", "curr_items", 60),
                ("", "total_items", 60),
                ("", "cmd_set", 60),
                ("", "cmd_get", 70),
                ("", "get_hits", 60),
                ("", "get_misses", 10),
                ("", "limit_maxbytes", 3 * (64 << 20)),
                ("items", "items:1:number", 60),
                ("slabs", "1:used_chunks", 60),
            ] {
                assert_eq!(figure(&mut world, *client, topic, name), Some(wanted), "{name}, {copies} copies");
            }
        }
        // What stands behind it on the line comes behind it.
        let said = say(&mut world, clients[2], "stats slabs\r\nmn\r\ndebugtime 1\r\nmn\r\n");
        assert!(said.ends_with("END\r\nMN\r\nERROR\r\nMN\r\n"), "{said}");
        world.kill(2);
        world.say(clients[0], b"stats\r\n");
        world.pass(3_000);
        let said = say(&mut world, clients[0], "mn\r\n");
        assert!(said.ends_with("MN\r\n"), "{said}");
    }
}

#[test]
fn what_was_read_tells_so_wherever_it_is() {
    for copies in [1, 3] {
        let mut world = World::keeping(3, copies);
        for number in 1..=3 {
            let client = world.connect(number, 1 << 20);
            for at in 0..12 {
                let key = format!("n{number}k{at}");
                assert_eq!(say(&mut world, client, &format!("ms {key} 2 T100\r\nxy\r\n")), "HD\r\n");
                let get = |flags: &str| format!("mg {key} {flags}\r\n");
                assert_eq!(say(&mut world, client, &get("u h")), "HD h0\r\n");
                assert_eq!(say(&mut world, client, &get("h v")), "VA 2 h0\r\nxy\r\n", "the one before did not count");
                assert_eq!(say(&mut world, client, &get("h l t")), "HD h1 l0 t100\r\n", "{key}, {copies} copies");
                // One that changes the object is a use of it, too.
                for reads in [format!("gat 200 {key}\r\n"), get("s R300"), get("s T200")] {
                    assert_eq!(say(&mut world, client, &format!("ms {key} 2 T200\r\nxy\r\n")), "HD\r\n");
                    say(&mut world, client, &reads);
                    let said = say(&mut world, client, &get("u h t"));
                    assert!(said.starts_with("HD h1 t200"), "{reads}, {copies} copies: {said}");
                }
                assert_eq!(say(&mut world, client, &get("s T100")), "HD s2\r\n");
            }
            world.pass(3_000);
            assert_eq!(say(&mut world, client, &format!("mg n{number}k3 h l t\r\n")), "HD h1 l3 t97\r\n");
        }
    }
}

/// A member that has acknowledged a put hears later that it is committed: till then it counts all the same.
#[test]
fn what_was_just_put_is_in_the_sum() {
    let mut world = World::keeping(3, 3);
    let client = world.connect(2, 1 << 20);
    for n in 1..=9 {
        assert_eq!(say(&mut world, client, &format!("set k{n} 0 0 1\r\nx\r\n")), "STORED\r\n");
        assert_eq!(figure(&mut world, client, "slabs", "1:used_chunks"), Some(n));
    }
    assert_eq!(say(&mut world, client, "delete k1\r\n"), "DELETED\r\n");
    assert_eq!(figure(&mut world, client, "slabs", "1:used_chunks"), Some(8));
}
