//! How maps reach all nodes.

use super::world::*;
use herd_core::limits::{LINK_BEAT_MS, MAP_AGAIN_MS, WIRE_FRAME_BODY_MAX_BYTES};
use herd_core::place::Map;
use herd_core::wire::MapMark;
use std::sync::Arc;

/// The next map, with that much memory of the first node.
fn next(map: &Map, memory_bytes: u64) -> Arc<Map> {
    Arc::new(map.next(|draft| draft.nodes[0].memory_bytes = memory_bytes).expect("valid"))
}

#[test]
fn a_map_that_is_pushed_reaches_all_and_the_warden_hears_of_it_soon() {
    let mut world = World::linked(3);
    for memory_bytes in 1..5 {
        let map = next(world.machine(1).map.clone().as_deref().expect("it has one"), memory_bytes);
        let held = memory_bytes > 2;
        world.machine(1).push(&map, held);
        world.settle();
        let mark = MapMark::of(&map, held);
        for number in [2, 3] {
            assert_eq!(world.machine(number).map.as_ref(), Some(&map));
            assert_eq!(world.machine(1).told.has(number), Some(mark), "without waiting for a beat");
            assert_eq!(world.machine(number).told.has(1), Some(mark));
        }
    }
    // Of the same numbers, and yet later.
    let map = world.machine(1).map.clone().expect("it has one");
    let next = next(&map, 9);
    for held in [false, true] {
        world.machine(1).push(&next, held);
        world.settle();
        assert_eq!(world.machine(1).told.has(2), Some(MapMark::of(&next, held)));
    }
}

#[test]
fn who_comes_late_gets_the_map_and_who_has_the_one_before_what_has_changed() {
    let (mut world, first) = (World::linked(2), map(2));
    world.machine(2).adopts = false;
    let second = next(&first, 5);
    world.machine(1).push(&second, false);
    world.settle();
    let [came] = &world.machine(2).told.came()[..] else { panic!("one map") };
    assert!(came.sent.is_difference && came.bytes.len() < second.encode().len() / 4, "{} bytes", came.bytes.len());
    assert_eq!(came.sent.map(&came.bytes, &first).as_ref(), Ok(&*second));
    // It was not taken: it comes again, whole, and not all the time.
    world.pass(3 * MAP_AGAIN_MS + 3 * LINK_BEAT_MS);
    let again = world.machine(2).told.came();
    assert!((2..=3).contains(&again.len()) && again.iter().all(|came| !came.sent.is_difference));
    assert_eq!(Map::decode(&again[0].bytes).as_ref(), Ok(&*second));
    // A node that knows only the first map comes.
    world.kill(2);
    let third = next(&second, 6);
    world.machine(1).push(&third, true);
    world.start(2);
    world.machine(2).adopt(&Arc::new(first), false);
    world.pass(2_000);
    assert_eq!(world.machine(2).map.as_ref(), Some(&third));
    assert_eq!(world.machine(1).told.has(2), Some(MapMark::of(&third, true)));
}

#[test]
fn a_map_that_a_node_has_of_another_is_sent_to_it_once() {
    let (mut world, first) = (World::linked(2), map(2));
    let second = next(&first, 5);
    world.machine(1).push(&second, true);
    world.settle();
    let third = next(&second, 6);
    world.machine(2).adopt(&third, true);
    world.pass(2 * LINK_BEAT_MS);
    let mark = MapMark::of(&third, true);
    assert_eq!(world.machine(1).told.has(2), Some(mark));
    world.machine(2).adopts = false;
    world.machine(1).push(&third, true);
    world.pass(3 * MAP_AGAIN_MS);
    let came: Vec<_> = world.machine(2).told.came().iter().map(|came| came.sent.mark).collect();
    assert_eq!(came, [mark], "it hears so whose it is, and no more than once");
}

#[test]
fn one_map_at_most_is_on_its_way_to_a_node() {
    let mut world = World::linked(2);
    world.machine(2).adopts = false;
    world.cut = true;
    let mut last = Arc::new(map(2));
    for memory_bytes in 1..6 {
        last = next(&last, memory_bytes);
        world.machine(1).push(&last, false);
        world.settle();
    }
    world.cut = false;
    world.settle();
    let marks: Vec<_> = world.machine(2).told.came().iter().map(|came| came.sent.mark.epoch).collect();
    assert_eq!(marks, [2, last.epoch], "the first, and when that was answered the last");
}

#[test]
fn a_node_that_is_not_the_wardens_gives_its_map_to_nobody() {
    let mut world = World::linked(3);
    let later = next(&map(3), 5);
    world.machine(2).adopt(&later, true);
    world.pass(5_000);
    for number in [1, 3] {
        assert_eq!(world.machine(number).map.as_deref(), Some(&map(3)));
        assert_eq!(world.machine(number).told.has(2), Some(MapMark::of(&later, true)), "they see that it has one");
    }
}

#[test]
fn a_map_of_many_frames_comes_whole_through_narrow_pipes() {
    let large = {
        let of = |number: u32| {
            let mut node = member(number, address(number % 2 + 1).to_string());
            node.addresses.extend((0..6).map(|at| format!("{number}.{at}.{}:7700", "x".repeat(200))));
            node
        };
        let grown = map(2).next(|draft| draft.nodes.extend((3..=1_000).map(of)));
        Arc::new(grown.expect("valid"))
    };
    assert!(large.encode().len() > WIRE_FRAME_BODY_MAX_BYTES);
    let mut world = World::linked(2);
    world.machine(1).push(&large, false);
    world.settle();
    assert_eq!(world.machine(2).map.as_ref(), Some(&large));
    assert_eq!(world.machine(1).told.has(2), Some(MapMark::of(&large, false)));
    assert!(world.machine(1).told.refused().is_empty() && world.machine(2).linked() == [1]);
}
