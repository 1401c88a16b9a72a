//! Nodes that are gone, links that break and maps that change while requests are under way.

use super::*;
use crate::link::{
    self,
    tests::world::{At, node, serving},
};
use herd_core::limits::{FLIGHT_LINK_MS, FLIGHT_MS, LINK_REDIAL_MS, LINK_SILENCE_MS, TICK_MS};
use herd_core::place::{Map, Member, Standing};
use herd_net::Cable;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

const REFUSED: &str = "SERVER_ERROR the node that has it can't be reached\r\n";
const UNKNOWN: &str = "SERVER_ERROR the outcome is unknown\r\n";

/// The first key `k..` that a node has.
fn key_of(world: &mut World, number: u32) -> String {
    let shared = world.machine(number).shared.clone();
    let has = |key: &String| shared.store.seat(&shared.default, key.as_bytes()) == herd_store::Seat::Alone;
    (0..).map(|at| format!("k{at}")).find(has).expect("it has some")
}

/// What has been answered since.
fn hear(world: &mut World, client: usize) -> String {
    say(world, client, "")
}

/// What nothing is under way for is given back.
fn assert_settled(world: &mut World, number: u32) {
    let machine = world.machine(number);
    assert!(machine.engine.service().cx.flights.is_empty());
    assert_eq!(machine.shared.store.unsettled(), (0, 0));
}

/// The map after which one node has what another had.
fn given_to(map: &Map, from: u32, to: u32) -> Arc<Map> {
    let next = map.next(|draft| {
        for group in draft.spreads[0].groups.iter_mut().filter(|group| group.primary == Some(node(from))) {
            (group.primary, group.eligible) = (Some(node(to)), vec![node(to)]);
        }
    });
    Arc::new(next.expect("valid"))
}

#[test]
fn what_a_dead_node_had_is_an_error_soon_and_never_a_miss() {
    let (mut world, clients) = herd(3);
    let (own, theirs) = (key_of(&mut world, 1), key_of(&mut world, 2));
    assert_eq!(say(&mut world, clients[0], &format!("set {theirs} 0 0 1\r\nx\r\n")), "STORED\r\n");
    world.kill(2);
    // That was asked before the link was known to be lost: it only reads, so it waits for another.
    assert_eq!(say(&mut world, clients[0], &format!("get {theirs}\r\nmn\r\n")), "");
    world.pass(FLIGHT_MS + TICK_MS);
    assert_eq!(hear(&mut world, clients[0]), format!("{REFUSED}MN\r\n"));
    // That it is gone is known by now.
    assert_eq!(say(&mut world, clients[0], &format!("get {theirs}\r\nmn\r\n")), format!("{REFUSED}MN\r\n"));
    // The error ends the answer to the line; what stands behind it is answered.
    let line = format!("get {own} {theirs} {own}\r\nset {theirs} 0 0 1\r\ny\r\nincr {own} 1\r\n");
    assert_eq!(say(&mut world, clients[0], &line), format!("{REFUSED}{REFUSED}NOT_FOUND\r\n"));
    assert_settled(&mut world, 1);
}

/// Of a herd that has lost all, groups are planned anew as nodes come: what a node with an earlier map hands on waits.
#[test]
fn what_brings_an_object_waits_where_the_herd_holds_nothing_by_a_later_map() {
    let (mut world, clients) = herd(2);
    let theirs = key_of(&mut world, 2);
    let map = world.machine(2).map.clone().expect("all have it");
    let empty = Arc::new(map.next(|draft| draft.nodes[0].rack = "other".into()).expect("valid"));
    world.machine(2).adopt(&empty, false);
    let put = format!("set {theirs} 0 0 1\r\nx\r\nincr {theirs} 1\r\n");
    assert_eq!(say(&mut world, clients[0], &put), "");
    assert_eq!(say(&mut world, clients[1], &format!("get {theirs}\r\ndelete {theirs}\r\n")), "END\r\nNOT_FOUND\r\n");
    world.pass(1_000);
    assert_eq!(hear(&mut world, clients[0]), "");
    for number in [1, 2] {
        world.machine(number).adopt(&empty, true);
    }
    world.pass(100);
    let said = hear(&mut world, clients[0]);
    assert!(said.starts_with("STORED\r\nCLIENT_ERROR"), "{said}");
    // Without leave it is refused in the end.
    let later = Arc::new(empty.next(|draft| draft.nodes[0].rack = "third".into()).expect("valid"));
    world.machine(2).adopt(&later, false);
    assert_eq!(say(&mut world, clients[0], &format!("set {theirs} 0 0 1\r\ny\r\n")), "");
    world.pass(FLIGHT_MS + TICK_MS);
    assert!(hear(&mut world, clients[0]).starts_with("SERVER_ERROR "));
    assert_eq!(
        say(&mut world, clients[1], &format!("get {theirs}\r\n")),
        format!("VALUE {theirs} 0 1\r\nx\r\nEND\r\n")
    );
}

/// What asks for nothing new may be asked again where its link is lost: it must not find then what the same connection
/// asked for after it.
#[test]
fn a_read_that_is_asked_again_does_not_find_what_was_asked_after_it() {
    let (mut world, clients) = herd(2);
    let theirs = key_of(&mut world, 2);
    assert_eq!(say(&mut world, clients[0], &format!("set {theirs} 0 0 1\r\n1\r\n")), "STORED\r\n");
    world.cut = true;
    let lines = format!("get {theirs}\r\nmg {theirs} v\r\nincr {theirs} 1\r\nget {theirs}\r\n");
    assert_eq!(say(&mut world, clients[0], &lines), "");
    world.pass(LINK_SILENCE_MS + 2 * TICK_MS);
    world.cut = false;
    world.pass(2 * LINK_SILENCE_MS);
    let value = |n| format!("VALUE {theirs} 0 1\r\n{n}\r\nEND\r\n");
    assert_eq!(hear(&mut world, clients[0]), [&*value(1), "VA 1\r\n1\r\n", "2\r\n", &*value(2)].concat());
    assert_settled(&mut world, 1);
}

#[test]
fn what_may_have_been_done_is_not_done_again_and_what_only_reads_is() {
    let (mut world, clients) = herd(2);
    let other = world.connect(1, 1 << 20);
    let theirs = key_of(&mut world, 2);
    assert_eq!(say(&mut world, clients[1], &format!("set {theirs} 0 0 1\r\n1\r\n")), "STORED\r\n");
    world.cut = true;
    assert_eq!(say(&mut world, clients[0], &format!("incr {theirs} 1\r\n")), "");
    assert_eq!(say(&mut world, other, &format!("get {theirs}\r\n")), "");
    world.pass(LINK_SILENCE_MS + 2 * TICK_MS);
    assert_eq!(hear(&mut world, clients[0]), UNKNOWN);
    world.cut = false;
    world.pass(2 * LINK_SILENCE_MS);
    assert_eq!(hear(&mut world, other), format!("VALUE {theirs} 0 1\r\n1\r\nEND\r\n"));
    assert_eq!(say(&mut world, clients[0], &format!("incr {theirs} 1\r\n")), "2\r\n");
    assert_settled(&mut world, 1);
}

/// A node that decides alone keeps nothing of what it was asked, so it does not know it when others get copies and it
/// is asked again: also where it was behind, and who asked had the map already by which they do.
#[test]
fn what_a_node_did_alone_is_not_done_again_by_its_group() {
    for is_behind in [false, true] {
        let (mut world, clients) = herd(2);
        let theirs = key_of(&mut world, 2);
        assert_eq!(say(&mut world, clients[1], &format!("set {theirs} 0 0 1\r\n1\r\n")), "STORED\r\n");
        let map = world.machine(1).map.clone().expect("it has one");
        let shared = map.next(|draft| {
            for group in draft.spreads[0].groups.iter_mut().filter(|group| group.primary == Some(node(2))) {
                group.others.push(Member { node: node(1), standing: Standing::Syncing, since: 0 });
            }
        });
        let shared = Arc::new(shared.expect("valid"));
        world.cut = true;
        if is_behind {
            world.machine(2).adopts = false;
            world.machine(1).adopt(&shared, true);
        }
        assert_eq!(say(&mut world, clients[0], &format!("incr {theirs} 1\r\n")), "");
        // It comes there and is done, and its answer stays on the way.
        world.cut = false;
        world.carry();
        world.cut = true;
        world.settle();
        let found = format!("VALUE {theirs} 0 1\r\n2\r\nEND\r\n");
        assert_eq!(say(&mut world, clients[1], &format!("get {theirs}\r\n")), found);
        world.machine(2).adopts = true;
        (1..=2).for_each(|number| world.machine(number).adopt(&shared, true));
        world.pass(LINK_SILENCE_MS + 2 * TICK_MS);
        assert_eq!(hear(&mut world, clients[0]), "", "it waits for the link");
        world.cut = false;
        world.pass(2 * LINK_SILENCE_MS);
        assert_eq!(hear(&mut world, clients[0]), UNKNOWN);
        assert_eq!(say(&mut world, clients[0], &format!("incr {theirs} 1\r\n")), "3\r\n");
    }
}

/// Where others have copies, what was handed on to a node that goes out of reach is asked again: of the node that takes
/// over, or of the same one. Each is done once.
#[test]
fn what_was_handed_on_is_asked_again_of_who_takes_over() {
    let mut world = World::keeping(3, 2);
    let client = world.connect(3, 1 << 20);
    let map = world.machine(1).map.clone().expect("it has one");
    let key = led_by_second(&mut world, 1);
    assert_eq!(say(&mut world, client, &format!("set {key} 0 0 1\r\n1\r\n")), "STORED\r\n");
    world.cut = true;
    assert_eq!(say(&mut world, client, &format!("incr {key} 1\r\n")), "");
    world.pass(LINK_SILENCE_MS + 2 * TICK_MS);
    assert_eq!(hear(&mut world, client), "", "it waits");
    world.cut = false;
    world.pass(2 * LINK_SILENCE_MS);
    assert_eq!(hear(&mut world, client), "2\r\n", "the same node is there again");
    world.cut = true;
    assert_eq!(say(&mut world, client, &format!("incr {key} 1\r\n")), "");
    world.pass(LINK_SILENCE_MS + 2 * TICK_MS);
    world.kill(2);
    world.cut = false;
    world.pass(2 * LINK_SILENCE_MS);
    let next = map.next(|draft| draft.bury(node(2), |_| true)).expect("valid");
    world.machine(1).push(&Arc::new(next), true);
    world.pass(2 * TICK_MS);
    assert_eq!(hear(&mut world, client), "3\r\n", "another took over");
    assert_settled(&mut world, 3);
}

/// Takes the cable between two nodes away.
fn unplug(world: &mut World, one: u32, other: u32) -> ([At; 2], Cable) {
    let joins = |ends: &[At; 2]| [one, other].iter().all(|number| ends.iter().any(|end| end.0 + 1 == *number as usize));
    let cable = world.cables.iter().position(|(ends, _)| joins(ends)).expect("they are linked");
    world.unplug(cable)
}

/// What waits for its turn where it came by a link that is lost is asked again by the next one. It must not have its
/// turn after that, whether the node that was asked has given the link up itself or not.
#[test]
fn what_waits_on_a_link_goes_when_another_takes_its_place() {
    for gives_up in [false, true] {
        let mut world = World::keeping(3, 2);
        let clients = [(); 2].map(|()| world.connect(3, 1 << 20));
        let key = led_by_second(&mut world, 1);
        assert_eq!(say(&mut world, clients[0], &format!("set {key} 0 0 1\r\n1\r\n")), "STORED\r\n");
        // The first one waits for the backup, and the second one for the first.
        let to_backup = unplug(&mut world, 1, 2);
        clients.iter().for_each(|client| assert_eq!(say(&mut world, *client, &format!("incr {key} 1\r\n")), ""));
        let waiting = |world: &mut World| world.machine(2).engine.service().cx.flights.count();
        assert_eq!(waiting(&mut world), 2);
        // Who asked loses the link, and nobody asks for the first one any more. Who was asked hears of neither.
        let (ends, old) = unplug(&mut world, 2, 3);
        let at = ends.iter().position(|end| end.0 == 2).expect("it is one of them");
        old.end(at).reset();
        world.note(ends[at], old.end(at));
        world.outside[clients[0]].1.reset();
        if gives_up {
            let cx = &mut world.machine(2).engine.service_mut().cx;
            let (link, _) = cx.links.current().find(|(link, _)| link.node == node(3)).expect("it is up");
            link::close(cx, link);
        }
        // No tick is in between, with which connections are looked at that nothing comes from.
        for _ in 0..2 * LINK_REDIAL_MS {
            world.clock.pass(1_000_000);
            world.settle();
        }
        assert_eq!(hear(&mut world, clients[1]), "", "it is asked again, and waits");
        assert_eq!((world.machine(3).linked(), waiting(&mut world)), (vec![1, 2], 1));
        world.cables.push(to_backup);
        world.pass(2 * LINK_REDIAL_MS);
        assert_eq!(hear(&mut world, clients[1]), "3\r\n");
        let other = world.connect(1, 1 << 20);
        assert_eq!(say(&mut world, other, &format!("get {key}\r\n")), format!("VALUE {key} 0 1\r\n3\r\nEND\r\n"));
    }
}

/// It is the node which was asked that asks anew: from elsewhere it could come after its client was told.
#[test]
fn what_was_under_way_where_another_node_decides_now_goes_back() {
    let mut world = World::keeping(3, 2);
    let client = world.connect(3, 1 << 20);
    let key = led_by_second(&mut world, 1);
    assert_eq!(say(&mut world, client, &format!("set {key} 0 0 1\r\n1\r\n")), "STORED\r\n");
    let to_backup = unplug(&mut world, 1, 2);
    assert_eq!(say(&mut world, client, &format!("incr {key} 1\r\n")), "");
    let map = world.machine(1).map.clone().expect("it has one");
    let next = map.next(|draft| {
        for group in draft.spreads[0].groups.iter_mut().filter(|group| group.primary == Some(node(2))) {
            group.primary = Some(group.others[0].node);
            group.others[0].node = node(2);
        }
    });
    let next = Arc::new(next.expect("valid"));
    world.machine(1).push(&next, true);
    let passed_on = |world: &mut World| world.machine(2).shared.metrics[0].handed_on.load(Relaxed);
    let before = passed_on(&mut world);
    world.machine(2).adopt(&next, true);
    world.settle();
    world.cables.push(to_backup);
    world.pass(100);
    assert_eq!(hear(&mut world, client), "2\r\n");
    assert_eq!(passed_on(&mut world), before);
}

/// What others are asked for clients is answered still: links end last.
#[test]
fn a_node_that_stops_answers_what_it_has_asked_of_others() {
    let (mut world, clients) = herd(2);
    let theirs = key_of(&mut world, 2);
    assert_eq!(say(&mut world, clients[0], &format!("set {theirs} 0 0 1\r\n1\r\n")), "STORED\r\n");
    world.cut = true;
    assert_eq!(say(&mut world, clients[0], &format!("get {theirs}\r\n")), "");
    world.machine(1).engine.stop();
    world.pass(2 * TICK_MS);
    world.cut = false;
    world.pass(20);
    assert_eq!(hear(&mut world, clients[0]), format!("VALUE {theirs} 0 1\r\n1\r\nEND\r\n"));
    world.pass(2 * TICK_MS);
    assert!(world.machine(1).engine.has_stopped() && world.machine(2).linked().is_empty());
}

#[test]
fn nothing_waits_longer_than_its_time() {
    let (mut world, clients) = herd(2);
    let theirs = key_of(&mut world, 2);
    // It hears, and does not work.
    world.machine(2).adopts = false;
    let away = given_to(&serving(2, 1), 2, 1);
    let shared = world.machine(2).shared.clone();
    let me = herd_core::place::Life { node: node(2), incarnation: 1 };
    assert_eq!(shared.take_map(me, &away, true), Ok(true));
    // The second node says that it has nothing of it any more; the first never hears of the map.
    world.machine(1).adopts = false;
    assert_eq!(say(&mut world, clients[0], &format!("set {theirs} 0 0 1\r\nx\r\n")), "");
    world.pass(FLIGHT_MS - TICK_MS);
    assert_eq!(hear(&mut world, clients[0]), "");
    world.pass(2 * TICK_MS);
    assert_eq!(hear(&mut world, clients[0]), REFUSED);
    assert_settled(&mut world, 1);
}

/// Whoever goes by an older map is told of the later one, and asks once more.
#[test]
fn who_asks_the_wrong_node_gets_the_map_and_goes_on() {
    let (mut world, clients) = herd(3);
    let theirs = key_of(&mut world, 2);
    let map = world.machine(1).map.clone().expect("it has one");
    let given = given_to(&map, 2, 3);
    // The first node is the last to hear of it: by the answer that it gets.
    [2, 3].into_iter().for_each(|number| world.machine(number).adopt(&given, true));
    let line = format!("set {theirs} 0 0 1 noreply\r\n1\r\nincr {theirs} 1 noreply\r\nget {theirs}\r\n");
    let mut said = say(&mut world, clients[0], &line);
    world.pass(TICK_MS);
    said += &hear(&mut world, clients[0]);
    assert_eq!(said, format!("VALUE {theirs} 0 1\r\n2\r\nEND\r\n"));
    assert_eq!(world.machine(1).map.as_ref(), Some(&given));
    let shared = world.machine(3).shared.clone();
    assert!(shared.store.entry(&shared.default, theirs.as_bytes(), Default::default()).found().is_some());
    assert_settled(&mut world, 1);
}

/// What was kept by two, and one has gone: nobody else is asked, so nobody else would object.
#[test]
fn a_node_that_the_herd_goes_on_without_answers_for_no_group_alone() {
    for mut world in [World::keeping(2, 2), without_leases(2, 2)] {
        let client = world.connect(1, 1 << 20);
        let key = led_by_first(&mut world);
        world.kill(2);
        let map = world.machine(1).map.clone().expect("it has one");
        let next = map.next(|draft| draft.bury(node(2), |_| true)).expect("valid");
        world.machine(1).push(&Arc::new(next), true);
        world.settle();
        let (set, there) = (format!("set {key} 0 0 1\r\na\r\n"), format!("VALUE {key} 0 1\r\na\r\nEND\r\n"));
        let lines = [&set[..], &format!("append {key} 0 0 1\r\nb\r\n"), &format!("delete {key}\r\n")];
        assert_eq!(say(&mut world, client, &set), "STORED\r\n");
        assert_eq!(say(&mut world, client, &format!("get {key}\r\n")), there);
        let shared = world.machine(1).shared.clone();
        shared.bar(true);
        for line in lines {
            assert_eq!(say(&mut world, client, line), REFUSED, "{line}");
        }
        if !world.has_leases {
            assert_eq!(say(&mut world, client, &format!("get {key}\r\n")), REFUSED);
        }
        shared.bar(false);
        assert_eq!(say(&mut world, client, &format!("get {key}\r\n")), there, "nothing was done");
        assert_eq!(say(&mut world, client, &set), "STORED\r\n");
    }
}

/// A key that the first of two nodes leads.
fn led_by_first(world: &mut World) -> String {
    let shared = world.machine(1).shared.clone();
    let leads = |key: &String| shared.store.seat(&shared.default, key.as_bytes()) == herd_store::Seat::Led;
    (0..).map(|at| format!("k{at}")).find(leads).expect("it leads some")
}

/// What comes to this node while it was asked for elsewhere is done here.
#[test]
fn what_comes_here_meanwhile_is_done_here() {
    let (mut world, clients) = herd(2);
    let theirs = key_of(&mut world, 2);
    world.cut = true;
    world.pass(LINK_SILENCE_MS + TICK_MS);
    assert_eq!(say(&mut world, clients[0], &format!("set {theirs} 0 0 1\r\nx\r\nget {theirs}\r\n")), "");
    let map = world.machine(1).map.clone().expect("it has one");
    world.machine(1).adopt(&given_to(&map, 2, 1), true);
    world.pass(TICK_MS);
    assert_eq!(hear(&mut world, clients[0]), format!("STORED\r\nVALUE {theirs} 0 1\r\nx\r\nEND\r\n"));
    assert_settled(&mut world, 1);
}

#[test]
fn a_client_that_goes_leaves_nothing_behind() {
    let (mut world, clients) = herd(2);
    let theirs = key_of(&mut world, 2);
    world.cut = true;
    let lines = format!("get {theirs}\r\nset {theirs} 0 0 1\r\nx\r\nget {theirs}\r\n");
    assert_eq!(say(&mut world, clients[0], &lines), "");
    assert!(!world.machine(1).engine.service().cx.flights.is_empty());
    world.outside[clients[0]].1.reset();
    world.settle();
    assert_settled(&mut world, 1);
    world.cut = false;
    world.pass(LINK_SILENCE_MS);
}

/// What a client says may fill a head to the last byte; with who asks it is longer.
#[test]
fn a_request_that_fills_its_head_is_handed_on_or_refused() {
    use crate::tests::{frame, frames_of, request};
    use herd_core::limits::WIRE_HEAD_MAX_BYTES;
    use herd_core::wire::{Fields, Verb};
    let (mut world, _) = herd(2);
    let theirs = key_of(&mut world, 2);
    let wire = world.connect(1, 1 << 20);
    for verb in [Verb::Get, Verb::Put, Verb::Remove, Verb::Execute] {
        let least = Fields { error: Some(""), ..Fields::named(theirs.as_bytes()) };
        let mut head = Vec::new();
        least.encode(&mut head).expect("it is short");
        for short in [0, 1, 36, 40, 60] {
            let text = "x".repeat(WIRE_HEAD_MAX_BYTES - head.len() - short);
            let said = world.say(wire, &frame(request(verb, 7), &Fields { error: Some(&text), ..least }, b""));
            assert_eq!(frames_of(&said).len(), 1);
        }
    }
    assert_settled(&mut world, 1);
}

/// Whatever a client of the wire says of an object of another node, the link stays.
#[test]
fn no_request_of_a_client_breaks_a_link() {
    use super::chance::Chance;
    use crate::tests::{frame, request};
    use herd_core::entry::TOKEN_BYTES;
    use herd_core::wire::{Fields, Header, Verb};
    for copies in [1, 2] {
        let mut world = World::keeping(2, copies);
        let dialed = world.dialed;
        let chance = &mut Chance(copies.into());
        let (mut wire, mut answered) = (world.connect(1, 1 << 20), 0);
        let values = [vec![], vec![7; 10], vec![7; 4096], vec![8; 5_000], vec![9; 70_000], vec![1; 200_000]];
        let methods = ["append", "incr", "lock", "push", "pop", "take", "swap", "get", "x", ""];
        for id in 1..3_000u64 {
            let verbs = [Verb::Get, Verb::Put, Verb::Remove, Verb::Execute, Verb::List];
            let verb = verbs[chance.below(verbs.len() as u64) as usize];
            let body = match verb {
                Verb::Put | Verb::Execute => &values[chance.below(values.len() as u64) as usize][..],
                _ => &[],
            };
            let number = |chance: &mut Chance| match chance.below(5) {
                0 => 0,
                1 => chance.below(20),
                2 => 65_536 * chance.below(4),
                3 => u64::MAX - chance.below(3),
                _ => chance.next(),
            };
            let header = Header {
                flags: (chance.next() as u8) & 0x1e,
                code: chance.below(7) as u16,
                version: number(chance),
                offset: if chance.below(2) == 0 { 0 } else { number(chance) },
                length: if body.is_empty() { number(chance) } else { body.len() as u64 },
                time_ms: chance.below(3) as u32,
                hops: chance.next() as u8,
                epoch: chance.next() as u32,
                extra: chance.next() as u16,
                ..request(verb, id)
            };
            let name = format!("k{}", chance.below(12));
            let token = [chance.next() as u8; TOKEN_BYTES];
            let maybe = |chance: &mut Chance| chance.below(4) == 0;
            let fields = Fields {
                ttl_ms: maybe(chance).then(|| number(chance)),
                flags: maybe(chance).then(|| chance.next() as u32),
                attributes: maybe(chance).then_some(&b""[..]),
                token: maybe(chance).then_some(&token),
                method: (verb == Verb::Execute).then(|| methods[chance.below(methods.len() as u64) as usize]),
                prefix: maybe(chance).then_some(&b"k"[..]),
                after: maybe(chance).then_some(name.as_bytes()),
                limit: maybe(chance).then(|| number(chance) as u32),
                expires_ms: maybe(chance).then(|| number(chance)),
                checksum: maybe(chance).then(|| chance.next() as u32),
                ..Fields::named(name.as_bytes())
            };
            answered += usize::from(!world.say(wire, &frame(header, &fields, body)).is_empty());
            assert_eq!(world.dialed, dialed, "{header:?} {fields:?}");
            if world.outside[wire].1.is_over() {
                wire = world.connect(1, 1 << 20);
            }
        }
        assert!(answered > 1_000, "{answered}");
    }
}

/// A node that is there and takes no more is not called out of reach.
#[test]
fn who_can_not_be_asked_for_so_much_is_under_way_is_busy() {
    use crate::tests::{frame, frames_of, request};
    use herd_core::ErrorKind;
    use herd_core::limits::LINK_OPS_MAX;
    use herd_core::wire::{Fields, Status, Verb};
    let (mut world, _) = herd(2);
    let (theirs, wire) = (key_of(&mut world, 2), world.connect(1, 1 << 20));
    world.cut = true;
    let probes = (0..).take_while(|number| world.machine(1).probe(2, *number, 1).is_ok()).count();
    assert!(probes > LINK_OPS_MAX - 10, "{probes}");
    let said = world.say(wire, &frame(request(Verb::Get, 7), &Fields::named(theirs.as_bytes()), b""));
    assert!(said.is_empty());
    world.pass(FLIGHT_LINK_MS + 2 * TICK_MS);
    let said = world.say(wire, b"");
    let reply = frames_of(&said);
    assert_eq!(reply[0].header().status(), Some(Status::Error(ErrorKind::Busy)));
    assert!(reply[0].fields().expect("fields").error.is_some_and(|text| text.contains(&theirs)));
}
