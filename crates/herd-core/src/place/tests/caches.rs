//! Groups of class `cache` that go from node to node: nobody leads one while its node may not have heard that it does
//! not, they come to an end near their shares, and no more of them go than that takes.

use super::*;
use crate::limits::SLOTS;

/// So many nodes, of a size or of several, of which the first `led` have all groups.
fn drawn(seed: u64, led: u32) -> Map {
    let mut chance = Chance(seed);
    let mut size = || if seed.is_multiple_of(2) { GIB } else { (2 + chance.below(3)) * GIB };
    let mut draft = Draft { nodes: (1..=led).map(|number| node(number, size())).collect(), ..Draft::empty(HERD) };
    draft.add_spread(Kind::Cache, 1, Grows::No).expect("the first spread group");
    Map::first(draft, 1).expect("a plan is a valid map")
}

fn led(map: &Map, node: NodeId) -> i64 {
    (0..SLOTS).filter(|slot| map.spreads[0].group_of(*slot).primary == Some(node)).count() as i64
}

/// What the warden does, again and again, while each node has each map a step later, if at all; how many slots went.
fn go_on(map: &mut Map, evens: bool, seed: u64) -> i64 {
    let slots = map.spreads[0].slots_of_groups();
    let mut chance = Chance(seed ^ 77);
    let (mut gone, mut has) = (0, map.epoch);
    let mut last: Vec<Option<NodeId>> = map.spreads[0].groups.iter().map(|group| group.primary).collect();
    for _ in 0..2_000 {
        let before = map.clone();
        *map = map
            .next(|draft| {
                draft.unseal_caches(|_, epoch| epoch <= has);
                let there: Vec<Node> = draft.nodes.iter().filter(|it| it.state == NodeState::Up).cloned().collect();
                if draft.may_reopen(&there) {
                    draft.reopen(&there);
                }
                draft.seal_caches(|_| true, evens);
            })
            .expect("a valid map");
        for (at, (old, new)) in before.spreads[0].groups.iter().zip(&map.spreads[0].groups).enumerate() {
            let is_new = new.primary.is_some() && new.primary != last[at];
            assert!(!is_new || old.primary.is_none() && old.epoch <= has, "seed {seed}: its node has not heard of it");
            gone += if new.primary.is_some() && old.primary.is_none() { slots[at] as i64 } else { 0 };
            last[at] = new.primary.or(last[at]);
        }
        if map.epoch == before.epoch && has == map.epoch {
            return gone;
        }
        if map.epoch == before.epoch || chance.below(2) == 0 {
            has = before.epoch;
        }
    }
    panic!("seed {seed}: it comes to no end");
}

#[test]
fn who_comes_late_gets_its_share_and_nothing_else_goes() {
    for seed in 0..60 {
        let count = 3 + seed as u32 % 6;
        let mut map = drawn(seed, count);
        let new = node(count + 1, GIB * (2 + seed % 3));
        map = map.next(|draft| draft.join(new, true)).expect("valid");
        let groups = map.spreads[0].groups.len();
        let gone = go_on(&mut map, true, seed);
        let shares = super::super::plan::shares(&map.nodes, 1);
        let slots = (SLOTS / groups) as i64;
        for (id, share) in shares {
            let off = led(&map, id) - share as i64;
            assert!(off.abs() <= 2 * slots, "seed {seed}: {id:?} is {off} slots off, a group has {slots}");
        }
        let its = led(&map, id(count + 1));
        assert!(its > 0 && gone <= its + 2 * slots, "seed {seed}: {gone} slots went for {its}");
        assert_eq!(go_on(&mut map, true, seed), 0);
    }
}

#[test]
fn who_drains_keeps_none_and_all_are_led_again() {
    for seed in 0..60 {
        let count = 2 + seed as u32 % 6;
        let mut map = drawn(seed, count);
        let one = id(1 + seed as u32 % count);
        let its = led(&map, one);
        map = map.next(|draft| draft.drain(one, true)).expect("valid");
        assert!(map.is_moving());
        assert_eq!(go_on(&mut map, false, seed), its);
        assert!(!map.keeps(one) && !map.is_moving() && !map.has_caches(one));
        assert!(map.spreads[0].groups.iter().all(|group| group.primary.is_some()));
    }
}

#[test]
fn what_a_silent_node_had_is_given_up_when_all_is_over_that_it_was_granted_and_not_before() {
    let mut map = drawn(0, 3);
    let its = map.groups_of(id(2)).count();
    map = map.next(|draft| draft.take_out(id(2), |_| true)).expect("valid");
    assert_eq!((map.groups_of(id(2)).count(), map.nodes[1].state), (its, NodeState::Down));
    // Also what was just taken from it: it may not have heard of that.
    map = map.next(|draft| assert!(draft.seal_caches_of(id(2)))).expect("valid");
    map = map.next(|draft| draft.take_out(id(2), |_| true)).expect("valid");
    assert!(map.has_sealed(id(2)) && !map.has_lost_groups());
    let its: Vec<usize> = (0..SLOTS).filter(|slot| map.spreads[0].group_of(*slot).eligible == [id(2)]).collect();
    let since: Vec<u32> = (0..SLOTS).map(|slot| map.spreads[0].since(slot)).collect();
    map = map
        .next(|draft| {
            assert!(draft.give_up_caches(id(2)));
            let there: Vec<Node> = draft.nodes.iter().filter(|it| it.state == NodeState::Up).cloned().collect();
            draft.reopen(&there);
        })
        .expect("valid");
    assert!(!map.has_caches(id(2)) && map.spreads[0].groups.iter().all(|group| group.primary.is_some()));
    let apart = led(&map, id(1)) - led(&map, id(3));
    assert!(apart.abs() <= (SLOTS / 8) as i64, "{apart}");
    let changed: Vec<usize> = (0..SLOTS).filter(|slot| map.spreads[0].since(*slot) > since[*slot]).collect();
    assert_eq!(changed, its, "versions go on above those of before");
}

#[test]
fn of_a_dead_node_and_of_one_that_is_started_anew_nothing_is_waited_for() {
    let map = drawn(0, 3);
    let its = map.groups_of(id(2)).count();
    let dead = map.next(|draft| draft.bury(id(2), |_| true)).expect("valid");
    assert!(!dead.has_caches(id(2)) && dead.has_lost_groups());
    let sealed = map.next(|draft| assert!(draft.seal_caches_of(id(2)))).expect("valid");
    let dead = sealed.next(|draft| draft.bury(id(2), |_| true)).expect("valid");
    assert!(!dead.has_caches(id(2)) && dead.has_lost_groups());
    let anew = map
        .next(|draft| {
            draft.start_anew(id(2), |_| true);
            draft.nodes[1].incarnation += 1;
            let there = draft.nodes.clone();
            draft.reopen(&there);
        })
        .expect("valid");
    assert_eq!(anew.groups_of(id(2)).count(), its, "it has least of its share");
    assert!(anew.spreads[0].groups.iter().all(|group| group.lost == 0));
}
