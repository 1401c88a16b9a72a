//! How links come up, are refused, take each other's place, and end.

use super::world::*;
use crate::link::{LinkLost, Membership, NoLink, Note};
use herd_core::ErrorKind;
use herd_core::limits::{
    ASK_AROUND_MS, DIAL_TIMEOUT_MS, LINK_ASKED_MAX_MS, LINK_BEAT_MS, LINK_REDIAL_MAX_MS, LINK_REDIAL_MS,
    LINK_SILENCE_MS, TICK_MS,
};
use herd_core::place::{HerdId, Map, Node, NodeState};
use herd_core::wire::{Header, Kind, LinkErrorKind, MapMark, MapSent, Secret, Status, VERB_MAP};
use std::sync::Arc;

#[test]
fn nothing_runs_in_a_node_without_others() {
    let mut world = World::new(1);
    world.start(1);
    assert_eq!(world.machine(1).engine.alarm_ms(), u64::MAX);
    let alone = Arc::new(map(1));
    world.machine(1).push(&alone, false);
    world.settle();
    assert_eq!((world.machine(1).engine.alarm_ms(), world.dialed), (u64::MAX, 0));
    assert_eq!(world.machine(1).probe(2, 1, 10), Err(NoLink::Down));
}

#[test]
fn a_link_comes_up_in_whichever_order_nodes_start_and_learn_of_each_other() {
    for order in [[1, 2], [2, 1]] {
        for late_map in [0, 1, 2] {
            let (mut world, both) = (World::new(2), Arc::new(map(2)));
            for number in order {
                world.start(number);
                if number != late_map {
                    world.machine(number).adopt(&both, false);
                }
                world.pass(300);
            }
            if late_map > 0 {
                world.machine(late_map).adopt(&both, false);
            }
            world.pass(2 * LINK_REDIAL_MAX_MS);
            for number in [1, 2] {
                let other = 3 - number;
                assert_eq!(world.machine(number).linked(), [other], "{order:?}, {late_map}");
                assert_eq!(world.machine(number).told.has(other), Some(MapMark::of(&both, false)));
            }
            assert_eq!((world.machine(1).engine.open(), world.machine(2).engine.open()), (1, 1));
        }
    }
}

/// Lets the second of two nodes dial the first for some time; gives why it was refused, and how often it dialed.
fn refused(mut world: World) -> (World, Vec<(u32, LinkErrorKind)>) {
    world.settle();
    let first = world.dialed;
    assert!((1..=2).contains(&first), "{first} times at once");
    world.pass(10 * LINK_REDIAL_MAX_MS);
    // The first one, which has no link either, asks now and then whether the herd goes on without it.
    let asked = 1 + (10 * LINK_REDIAL_MAX_MS / ASK_AROUND_MS) as usize;
    assert!((9..=12 + asked).contains(&(world.dialed - first)), "{} times more", world.dialed - first);
    assert!(world.machines.iter().flatten().all(|machine| machine.linked().is_empty()));
    let told = world.machine(2).told.refused();
    assert!(world.machine(1).told.refused().is_empty(), "who is dialed tells nobody");
    (world, told)
}

/// Two nodes, the second one as it says, with a map of its own each.
fn two(change: impl FnOnce(&mut Membership), maps: [Map; 2]) -> World {
    let (mut world, mut me) = (World::new(2), membership(2));
    change(&mut me);
    world.start(1);
    world.start_as(2, me);
    for (number, map) in (1..).zip(maps) {
        world.machine(number).adopt(&Arc::new(map), false);
    }
    world
}

#[test]
fn a_node_with_another_secret_or_of_another_herd_is_told_why_once_and_tries_on() {
    let (_, told) = refused(two(|me| me.secret = Secret([1; 16]), [map(2), map(2)]));
    assert_eq!(told, [(1, LinkErrorKind::WrongSecret)]);
    let (_, told) = refused(two(|me| me.herd = HerdId([8; 16]), [map(2), map(2)]));
    assert_eq!(told, [(1, LinkErrorKind::OtherHerd)]);
}

#[test]
fn an_older_life_of_a_node_gets_no_link_and_one_that_was_taken_for_dead_does() {
    let later = |change: fn(&mut Node)| map(2).next(|draft| change(&mut draft.nodes[1])).expect("valid");
    let (_, told) = refused(two(|_| (), [later(|node| node.incarnation = 2), map(2)]));
    assert_eq!(told, [(1, LinkErrorKind::OlderIncarnation)]);
    let mut world = two(|_| (), [later(|node| node.state = NodeState::Down), map(2)]);
    world.settle();
    assert_eq!([1, 2].map(|number| world.machine(number).linked()), [vec![2], vec![1]], "so it hears that");
    let dead = Arc::new(later(|node| node.state = NodeState::Dead));
    world.machine(1).adopt(&dead, false);
    world.settle();
    assert!(world.machine(1).linked().is_empty(), "its process has ended, whatever is on its way still");
    let gone = map(1).next(|draft| draft.nodes[0].memory_bytes += 1).expect("valid");
    let (_, told) = refused(two(|_| (), [gone, map(2)]));
    assert_eq!(told, [(1, LinkErrorKind::OlderIncarnation)], "it is in no map of this herd");
}

#[test]
fn a_node_that_dials_itself_or_another_than_it_meant_says_so_until_the_map_is_mended() {
    let elsewhere = |to: u32| {
        let moved = map(3).next(|draft| draft.nodes[0].addresses = vec![address(to).to_string()]);
        moved.expect("valid")
    };
    let (mut world, told) = refused(two(|_| (), [map(1), elsewhere(2)]));
    assert_eq!(told, [(1, LinkErrorKind::Itself)]);
    let mended = elsewhere(2).next(|draft| draft.nodes[0].addresses = vec![address(1).to_string()]).expect("valid");
    world.machine(2).adopt(&Arc::new(mended), false);
    world.settle();
    assert_eq!(world.machine(2).linked(), [1]);

    let mut world = World::new(3);
    [2, 3].into_iter().for_each(|number| world.start(number));
    world.machine(2).adopt(&Arc::new(map(3)), false);
    world.machine(3).adopt(&Arc::new(elsewhere(2)), false);
    world.pass(LINK_REDIAL_MAX_MS);
    assert_eq!(world.machine(3).told.refused(), [(1, LinkErrorKind::OtherNode)]);
    assert_eq!(world.machine(3).linked(), [2]);
}

#[test]
fn only_the_node_of_the_higher_number_dials() {
    let mut world = World::linked(3);
    assert_eq!(world.dialed, 3);
    world.pass(5_000);
    assert_eq!(world.dialed, 3);
    assert_eq!([1, 2, 3].map(|number| world.machine(number).engine.open()), [2, 2, 2]);
}

#[test]
fn a_node_that_starts_anew_is_linked_again_and_one_that_leaves_is_not() {
    let mut world = World::linked(3);
    for number in [1, 2, 3] {
        world.kill(number);
        world.pass(500);
        assert!(world.machines.iter().flatten().all(|machine| !machine.linked().contains(&number)));
        let mut me = membership(number);
        me.incarnation = 2;
        world.start_as(number, me);
        let again = map(3).next(|draft| draft.nodes[number as usize - 1].incarnation = 2).expect("valid");
        world.machine(number).adopt(&Arc::new(again), false);
        world.pass(2 * LINK_REDIAL_MAX_MS);
        assert!(world.machines.iter().flatten().all(|machine| machine.linked().len() == 2), "without node {number}");
    }
    let without = map(3).next(|draft| {
        draft.nodes.truncate(2);
        for group in draft.spreads.iter_mut().flat_map(|spread| &mut spread.groups) {
            (group.primary, group.eligible) = (Some(node(1)), vec![node(1)]);
            group.others.clear();
        }
    });
    let without = Arc::new(without.expect("valid").next(|draft| draft.nodes[0].memory_bytes += 1).expect("valid"));
    [1, 2].into_iter().for_each(|number| world.machine(number).adopt(&without, false));
    world.pass(2 * TICK_MS);
    assert_eq!([1, 2].map(|number| world.machine(number).linked()), [vec![2], vec![1]]);
    assert!(world.machine(3).linked().is_empty(), "it was closed there as well");
}

#[test]
fn beats_keep_a_link_and_silence_ends_it_with_what_was_asked() {
    let mut world = World::linked(2);
    world.pass(20 * LINK_SILENCE_MS);
    assert_eq!(world.dialed, 1);
    world.machine(2).probe(1, 1, 10).expect("it is up");
    world.settle();
    let answered = Ok(Some(Status::Error(ErrorKind::NotInVersion)));
    assert_eq!(world.machine(2).links().probes, [(1, answered)]);
    // The network takes no more, and tells nobody.
    world.cut = true;
    world.machine(2).probe(1, 2, 10).expect("it seems up");
    world.pass(LINK_SILENCE_MS - LINK_BEAT_MS);
    assert_eq!((world.machine(1).linked(), world.machine(2).links().probes.len()), (vec![2], 1));
    world.pass(2 * LINK_BEAT_MS);
    assert_eq!((world.machine(1).linked(), world.machine(2).linked()), (vec![], vec![]));
    assert_eq!(world.machine(2).links().probes, [(1, answered), (2, Err(LinkLost))]);
    assert_eq!(world.machine(2).probe(1, 3, 10), Err(NoLink::Down));
    world.pass(TICK_MS);
    assert_eq!(world.machine(1).engine.open(), 0, "the socket is given back");
    world.cut = false;
    world.pass(DIAL_TIMEOUT_MS + 2 * TICK_MS);
    assert_eq!((world.machine(1).linked(), world.machine(2).linked()), (vec![2], vec![1]));
}

#[test]
fn what_is_not_reached_is_dialed_again() {
    let mut world = World::new(2);
    world.start(2);
    world.machine(2).adopt(&Arc::new(map(2)), false);
    world.pass(10_000);
    let refused = world.dialed;
    assert!((12..=16).contains(&refused), "{refused} times: later each time, up to a second");
    world.cut = true;
    world.pass(10_000);
    let silent = world.dialed - refused;
    assert!((3..=5).contains(&silent), "{silent} times where nobody answers");
    assert!(world.machine(2).engine.open() <= 1);
    assert!(world.machine(2).told.refused().is_empty(), "nobody said anything");
}

/// What is unread of an old link must not be served behind what came over the new one.
#[test]
fn a_link_that_is_replaced_has_none_of_its_unread_bytes_served() {
    // Whether the node is told of the old link in the same round in which it takes the new one's proof, or later.
    for late in [false, true] {
        let mut world = World::linked(2);
        world.machine(1).adopts = false;
        let send = |world: &mut World, byte: u8| {
            let request = Header { verb: VERB_MAP, ..Header::new(Kind::Request) };
            let sent = MapSent { mark: MapMark::default(), is_difference: false, may_be_done: false };
            let encode = |header: Header, out: &mut Vec<u8>| sent.encode(out, header.id, &[byte; 9]);
            let links = &mut world.machine(2).engine.service_mut().cx.links;
            links.ask(node(1), request, Note::Map(0), encode).expect("it is up");
        };
        send(&mut world, b'a');
        (0..3).for_each(|_| world.work(1));
        let ([first, second], mut old) = world.unplug(0);
        assert!(old.carry(1, usize::MAX) > 70, "it lies before the first node, unread");
        // The second one loses the link; the first is not told.
        old.end(1).reset();
        world.note(second, old.end(1));
        assert_eq!((world.machine(2).linked(), world.machine(1).linked()), (vec![], vec![2]));
        world.clock.pass(LINK_REDIAL_MS * 1_000_000);
        world.work(1);
        assert!(world.answer(), "it dials again");
        while world.machine(2).linked().is_empty() {
            world.work(1);
            world.carry();
            if world.machine(2).linked().is_empty() {
                world.work(0);
                world.carry();
            }
        }
        send(&mut world, b'b');
        (0..3).for_each(|_| world.work(1));
        world.carry();
        // Now the first is told of both.
        if late {
            world.work(0);
            world.note(first, old.end(0));
        } else {
            let ready = old.end(0).news().expect("a map");
            let new = world.cables[0].1.end(0).news().expect("a proof and a map");
            let own = world.cables[0].0[0].1;
            let engine = &mut world.machine(1).engine;
            engine.begin();
            engine.note(own, new);
            engine.note(first.1, ready);
            engine.rounds();
            engine.turns();
        }
        world.pass(2 * TICK_MS);
        let came: Vec<_> = world.machine(1).told.came().into_iter().map(|came| came.bytes).collect();
        assert_eq!(came, [vec![b'b'; 9]], "late {late}");
        assert!(old.end(0).is_closed());
        assert_eq!((world.machine(1).linked(), world.machine(1).engine.open()), (vec![2], 1));
    }
}

#[test]
fn a_node_that_stops_closes_its_links_and_dials_nobody() {
    let mut world = World::linked(2);
    let dialed = world.dialed;
    world.machine(2).shared.stopping.store(true, std::sync::atomic::Ordering::Relaxed);
    world.machine(2).engine.stop();
    world.pass(2 * TICK_MS);
    assert!(world.machine(2).engine.has_stopped());
    world.pass(2_000);
    // The other one asks why.
    assert_eq!((world.dialed, world.machine(1).linked()), (dialed + 1, vec![]));
    assert!(world.machine(2).pipes.dialed().is_empty());
}

#[test]
fn names_of_machines_are_looked_up() {
    let mut world = World::new(2);
    world.start(2);
    let named = map(2).next(|draft| draft.nodes[0].addresses = vec![format!("localhost:{}", address(1).port())]);
    world.machine(2).adopt(&Arc::new(named.expect("valid")), false);
    let until = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while world.dialed == 0 {
        assert!(std::time::Instant::now() < until, "nobody looked it up");
        std::thread::sleep(std::time::Duration::from_millis(5));
        world.settle();
    }
}

/// Nodes that know the first one at an address where nobody is; the map of its next life, at its own one.
fn moved(nodes: u32, change: fn(&mut Node)) -> (Arc<Map>, Arc<Map>) {
    let old = map(nodes).next(|draft| {
        draft.nodes[0].addresses = vec![address(9).to_string()];
        change(&mut draft.nodes[0]);
    });
    let old = old.expect("valid");
    let new = old.next(|draft| {
        draft.nodes[0].addresses = vec![address(1).to_string()];
        (draft.nodes[0].incarnation, draft.nodes[0].state) = (2, NodeState::Up);
    });
    (Arc::new(old), Arc::new(new.expect("valid")))
}

fn start_moved(world: &mut World, map: &Arc<Map>) {
    let mut me = membership(1);
    me.incarnation = 2;
    world.start_as(1, me);
    world.machine(1).push(map, false);
}

#[test]
fn a_node_that_others_dial_tells_them_its_new_address() {
    for state in [NodeState::Up, NodeState::Down, NodeState::Dead] {
        let (mut world, change): (_, fn(&mut Node)) = match state {
            NodeState::Down => (World::new(3), |node| node.state = NodeState::Down),
            NodeState::Dead => (World::new(3), |node| node.state = NodeState::Dead),
            _ => (World::new(3), |_| ()),
        };
        let (old, new) = moved(3, change);
        for number in [2, 3] {
            world.start(number);
            world.machine(number).adopt(&old, false);
        }
        world.pass(2 * LINK_REDIAL_MAX_MS);
        start_moved(&mut world, &new);
        world.pass(LINK_REDIAL_MAX_MS + 2 * LINK_REDIAL_MS + 2 * TICK_MS);
        let dialed = world.dialed;
        for number in [1, 2, 3] {
            assert_eq!(world.machine(number).linked().len(), 2, "{state:?}: node {number}");
            assert_eq!(world.machine(number).map.as_ref().map(|map| map.revision), Some(new.revision));
        }
        // These are links as always, and stay.
        world.pass(2 * LINK_ASKED_MAX_MS);
        assert_eq!([1, 2, 3].map(|number| world.machine(number).linked().len()), [2; 3]);
        assert_eq!([1, 2, 3].map(|number| world.machine(number).engine.open()), [2; 3]);
        assert_eq!(world.dialed, dialed);
        assert!([1, 2, 3].iter().all(|number| world.machine(*number).told.refused().is_empty()));
    }
}

#[test]
fn one_that_has_forgotten_the_first_node_hears_its_new_address_too() {
    let (old, new) = moved(3, |_| ());
    let without = map(3).next(|draft| {
        draft.nodes.remove(0);
        for group in draft.spreads.iter_mut().flat_map(|spread| &mut spread.groups) {
            (group.primary, group.eligible) = (Some(node(2)), vec![node(2)]);
            group.others.clear();
        }
    });
    let without = Arc::new(without.expect("valid"));
    assert!((without.epoch, without.revision) < (new.epoch, new.revision) && without.epoch == old.epoch);
    let mut world = World::new(3);
    for number in [2, 3] {
        world.start(number);
        world.machine(number).adopt(&without, false);
    }
    start_moved(&mut world, &new);
    world.pass(2 * LINK_REDIAL_MAX_MS);
    assert_eq!([1, 2, 3].map(|number| world.machine(number).linked().len()), [2; 3]);
}

#[test]
fn one_that_comes_late_hears_the_new_address_though_others_have_links() {
    let (old, new) = moved(3, |_| ());
    let mut world = World::new(3);
    world.start(2);
    world.machine(2).adopt(&old, false);
    start_moved(&mut world, &new);
    world.pass(2 * LINK_REDIAL_MAX_MS);
    assert_eq!(world.machine(1).linked(), [2]);
    world.start(3);
    world.machine(3).adopt(&old, false);
    world.pass(ASK_AROUND_MS + LINK_REDIAL_MAX_MS);
    assert_eq!(world.machine(3).map.as_ref().map(|map| map.revision), Some(new.revision));
    assert_eq!([1, 2, 3].map(|number| world.machine(number).linked().len()), [2; 3]);
}

#[test]
fn who_has_nothing_to_tell_is_dialed_and_does_not_dial() {
    // The same map, or the same life.
    for (incarnation, later) in [(2, false), (1, true)] {
        let (old, new) = moved(2, |_| ());
        let mut world = World::new(2);
        world.start(2);
        world.machine(2).adopt(if later { &old } else { &new }, false);
        let mut me = membership(1);
        me.incarnation = incarnation;
        world.start_as(1, me);
        let own = old.next(|draft| draft.nodes[0].memory_bytes += 1).expect("valid");
        world.machine(1).push(&Arc::new(own), false);
        world.machine(2).adopts = false;
        world.pass(TICK_MS);
        let linked = if later { vec![] } else { vec![1] };
        for _ in 0..40 {
            world.pass(250);
            assert_eq!(world.machine(2).linked(), linked, "{incarnation}, {later}");
        }
        assert!(world.machine(1).told.refused().is_empty(), "it only asked");
    }
}

#[test]
fn a_map_that_is_not_taken_keeps_no_link_from_below() {
    let (old, new) = moved(2, |_| ());
    let mut world = World::new(2);
    world.start(2);
    world.machine(2).adopt(&old, false);
    world.machine(2).adopts = false;
    start_moved(&mut world, &new);
    world.pass(2 * LINK_REDIAL_MAX_MS);
    assert_eq!(world.machine(2).linked(), [1]);
    let mut up_ms = 0;
    for _ in 0..600 {
        world.pass(100);
        up_ms += 100 * world.machine(2).linked().len() as u64;
    }
    // It rests before it asks again.
    let most_ms = 60_000 * LINK_ASKED_MAX_MS / (LINK_ASKED_MAX_MS + LINK_REDIAL_MAX_MS) + 2_000;
    assert!((LINK_ASKED_MAX_MS..=most_ms).contains(&up_ms), "{up_ms} of 60,000 ms");
    // It takes it at last.
    world.machine(2).adopts = true;
    world.pass(ASK_AROUND_MS + LINK_ASKED_MAX_MS);
    assert_eq!(world.machine(2).map.as_ref().map(|map| map.revision), Some(new.revision));
    assert_eq!([1, 2].map(|number| world.machine(number).linked().len()), [1; 2]);
}
