//! Members that go from node to node: each step is a valid map, nobody leads or counts who has not all, and what comes
//! of it is what was wanted, with no more copies made than that takes.

use super::*;
use crate::limits::{MOVES_AT_ONCE, SLOTS};
use crate::replica::Want;
use std::collections::{BTreeMap, BTreeSet};

/// A node is told to end in the midst of moves, with all that was told known by the map of which it was told. Who
/// answers reads by one map is in the group still by the next one, by which it does not.
#[test]
fn who_leaves_while_groups_move_is_taken_out_once_it_answers_nothing() {
    let mut left = 0;
    for seed in 0..150 {
        let (mut map, mut chance) = (drawn(seed, true), Chance(seed));
        map = map.next(|draft| draft.join(node(100, GIB), true)).expect("valid");
        for _ in 0..60 {
            let (before, done) = (map.clone(), syncing(&map));
            let leaves = map.nodes[chance.below(map.nodes.len() as u64) as usize].id;
            map = map
                .next(|draft| {
                    let told = |epoch| epoch <= before.epoch;
                    draft.seat_joined();
                    for (id, epoch, node) in done {
                        draft.grant(id, epoch, Want::Joining(node));
                    }
                    draft.retire(leaves, told, |_| true);
                    draft.end_moves(|_, epoch| told(epoch), |_| true, |id| id == leaves);
                    draft.begin_moves(|_, _| true, true);
                })
                .expect("a valid map");
            for (old, new) in before.spreads[0].groups.iter().zip(&map.spreads[0].groups) {
                let gone: Vec<NodeId> = old.members().filter(|id| new.members().all(|it| it != *id)).collect();
                assert!(gone.iter().all(|id| old.primary != Some(*id) && !old.answers(*id)), "{seed}: {old:?} {new:?}");
                left += usize::from(gone.contains(&leaves));
            }
        }
    }
    assert!(left > 100, "{left} copies of who left went");
}

/// 4 to 12 nodes of a size or of several, and 1 to 3 copies, at least one fewer than nodes.
fn drawn(seed: u64, even: bool) -> Map {
    let mut chance = Chance(seed);
    let mut size = || if even { GIB } else { (2 + chance.below(3)) * GIB };
    let nodes: Vec<Node> = (1..=4 + (seed as u32 % 9)).map(|number| node(number, size())).collect();
    let mut draft = Draft { nodes, ..Draft::empty(HERD) };
    draft.add_spread(Kind::Kept, 1 + (seed % 3) as u8, Grows::No).expect("the first spread group");
    Map::first(draft, 1).expect("a plan is a valid map")
}

/// Slots that a node keeps.
fn kept(map: &Map, node: NodeId) -> u64 {
    let slots = map.spreads[0].slots_of_groups();
    map.groups_of(node).map(|(id, _)| slots[usize::from(id.number)]).sum()
}

/// Members move until nothing does; how many slots were copied. Each node has each map a step later, if at all.
fn go_on(map: &mut Map, evens: bool, seed: u64) -> u64 {
    let mut chance = Chance(seed);
    let (mut copied, mut has) = (0, map.epoch);
    for _ in 0..2_000 {
        let before = map.clone();
        let done: Vec<(GroupId, u32, NodeId)> = syncing(map).into_iter().filter(|_| chance.below(3) > 0).collect();
        *map = map
            .next(|draft| {
                draft.seat_joined();
                for (id, epoch, node) in done {
                    draft.grant(id, epoch, Want::Joining(node));
                }
                draft.end_moves(|_, epoch| epoch <= has, |_| true, |_| false);
                draft.begin_moves(|_, _| true, evens);
            })
            .expect("a valid map");
        holds(&before, map);
        copied += new_slots(&before, map);
        if map.epoch == before.epoch && has == map.epoch && syncing(map).is_empty() {
            return copied;
        }
        if map.epoch == before.epoch || chance.below(2) == 0 {
            has = before.epoch;
        }
    }
    panic!("seed {seed}: it comes to no end");
}

fn syncing(map: &Map) -> Vec<(GroupId, u32, NodeId)> {
    let groups = (0..).zip(&map.spreads[0].groups);
    let of = |(number, group): (u16, &Group)| {
        let id = GroupId { spread: 0, number };
        let its = group.others.iter().filter(|member| member.standing == Standing::Syncing);
        its.map(|member| (id, group.epoch, member.node)).collect::<Vec<_>>()
    };
    groups.flat_map(of).collect()
}

fn new_slots(before: &Map, map: &Map) -> u64 {
    let slots = map.spreads[0].slots_of_groups();
    let new = |number: &usize| {
        let old: BTreeSet<NodeId> = before.spreads[0].groups[*number].members().collect();
        map.spreads[0].groups[*number].members().any(|id| !old.contains(&id))
    };
    (0..slots.len()).filter(new).map(|number| slots[number]).sum()
}

/// What no step may break.
fn holds(before: &Map, map: &Map) {
    let copies = usize::from(map.spreads[0].copies);
    let mut busy: BTreeMap<NodeId, usize> = BTreeMap::new();
    for (old, new) in before.spreads[0].groups.iter().zip(&map.spreads[0].groups) {
        let had_all = |id: &NodeId| {
            old.full().any(|it| it == *id)
                || old.others.iter().any(|it| it.node == *id && it.standing == Standing::Joining)
        };
        assert!(new.primary.is_some_and(|id| had_all(&id)) && new.eligible.iter().all(had_all));
        assert!(new.copies() >= copies && new.members().count() <= copies + 1, "{new:?}");
        let gone = old.members().find(|id| new.members().all(|other| other != *id));
        assert!(gone.is_none() || old.primary != gone, "who led has not heard that it does not");
        assert!(gone.is_none_or(|id| !old.answers(id)), "who answers reads has not heard that it does not");
        new.others
            .iter()
            .filter(|it| it.standing == Standing::Syncing)
            .for_each(|it| *busy.entry(it.node).or_default() += 1);
    }
    assert!(busy.values().all(|copies| *copies <= MOVES_AT_ONCE));
}

#[test]
fn a_node_that_drains_gives_all_away_and_each_copy_is_made_once() {
    for seed in 0..150 {
        let mut map = drawn(seed, seed % 2 == 0);
        let one = map.nodes[seed as usize % map.nodes.len()].id;
        let had = kept(&map, one);
        map = map.next(|draft| state(draft, one, NodeState::Draining)).expect("valid");
        assert!(map.is_moving());
        let copied = go_on(&mut map, false, seed);
        assert_eq!((kept(&map, one), copied), (0, had), "seed {seed}");
        assert!(!map.is_moving());
        map = map.next(|draft| draft.forget(one)).expect("nothing names it");
    }
}

/// What a node that drains had goes where it is to stay.
#[test]
fn what_is_drained_goes_nowhere_a_second_time() {
    let drained = |mut map: Map, seed: u64| {
        map = map.next(|draft| draft.join(node(100, GIB), true)).expect("valid");
        go_on(&mut map, true, seed);
        let one = map.nodes[seed as usize % map.nodes.len()].id;
        map = map.next(|draft| state(draft, one, NodeState::Draining)).expect("valid");
        let all = go_on(&mut map, false, seed);
        map = map.next(|draft| draft.forget(one)).expect("nothing names it");
        (go_on(&mut map, true, seed), all)
    };
    for seed in 0..200 {
        assert_eq!(drained(even(3, 2), seed).0, 0, "seed {seed}");
    }
    let each: Vec<(u64, u64)> = (0..300).map(|seed| drained(drawn(seed, true), seed)).collect();
    let (again, all) = each.into_iter().fold((0, 0), |sum, it| (sum.0 + it.0, sum.1 + it.1));
    assert!(50 * again < all, "{again} slots moved again of {all}");
}

/// Nodes of one size.
fn even(nodes: u32, copies: u8) -> Map {
    let nodes: Vec<Node> = (1..=nodes).map(|number| node(number, GIB)).collect();
    let mut draft = Draft { nodes, ..Draft::empty(HERD) };
    draft.add_spread(Kind::Kept, copies, Grows::No).expect("the first spread group");
    Map::first(draft, 1).expect("a plan is a valid map")
}

fn state(draft: &mut Draft, node: NodeId, state: NodeState) {
    draft.nodes.iter_mut().filter(|it| it.id == node).for_each(|it| it.state = state);
}

#[test]
fn what_is_called_off_stays_where_it_was() {
    for seed in 0..50 {
        let mut map = drawn(seed, true);
        let before: Vec<BTreeSet<NodeId>> = members(&map);
        let one = map.nodes[0].id;
        map = map.next(|draft| state(draft, one, NodeState::Draining)).expect("valid");
        map = map.next(|draft| assert!(draft.begin_moves(|_, _| true, false))).expect("valid");
        assert!(!syncing(&map).is_empty());
        map = map
            .next(|draft| {
                draft.drain(one, false);
            })
            .expect("valid");
        assert_eq!((members(&map), map.is_moving()), (before, false), "seed {seed}");
    }
}

fn members(map: &Map) -> Vec<BTreeSet<NodeId>> {
    map.spreads[0].groups.iter().map(|group| group.members().collect()).collect()
}

#[test]
fn who_comes_late_gets_its_share_and_nothing_else_moves() {
    for seed in 0..150 {
        let mut map = drawn(seed, true);
        let count = map.nodes.len() as u64;
        assert_eq!(go_on(&mut map, true, seed), 0, "seed {seed}: a new plan is even");
        let new = node(100, GIB);
        map = map.next(|draft| draft.join(new.clone(), true)).expect("valid");
        let copied = go_on(&mut map, true, seed);
        let copies = u64::from(map.spreads[0].copies);
        let (share, has) = (copies * SLOTS as u64 / (count + 1), kept(&map, new.id));
        // No group is in two pieces.
        let largest = map.spreads[0].slots_of_groups().into_iter().max().expect("there are groups");
        assert_eq!(copied, has, "seed {seed}: all that moved went there");
        assert!(has.abs_diff(share) <= largest, "seed {seed}: {has} of {share}, groups of {largest}");
    }
}

#[test]
fn nobody_is_asked_who_may_not_be_and_hosts_stay_apart() {
    for seed in 0..100 {
        let mut map = drawn(seed, false);
        let (first, barred) = (map.nodes[0].clone(), map.nodes[1].id);
        // Its host has another node, which may take what it has and nothing that it shares with others.
        let twin = Node { host: first.host.clone(), ..node(50, 8 * GIB) };
        map = map.next(|draft| draft.join(twin, true)).expect("valid");
        map = map.next(|draft| state(draft, map.nodes[2].id, NodeState::Draining)).expect("valid");
        let begun = map.next(|draft| assert!(draft.begin_moves(|_, to| to != barred, true))).expect("valid");
        for (_, _, to) in syncing(&begun) {
            assert_ne!(to, barred, "seed {seed}");
        }
        go_on(&mut map, true, seed);
        let hosts = |group: &Group| {
            let hosts = group.members().filter_map(|id| map.node(id)).map(|node| node.host.as_str());
            hosts.collect::<BTreeSet<_>>().len()
        };
        assert!(map.spreads[0].groups.iter().all(|group| hosts(group) == group.members().count()), "seed {seed}");
    }
}

/// Some groups, each with a node that is not in it, and one of its members that is to go for that.
fn draw_placed(map: &Map, chance: &mut Chance) -> Vec<Placed> {
    let mut all: BTreeMap<GroupId, Placed> = BTreeMap::new();
    for _ in 0..5 {
        let number = chance.below(map.spreads[0].groups.len() as u64) as u16;
        let group = &map.spreads[0].groups[usize::from(number)];
        let node = map.nodes[chance.below(map.nodes.len() as u64) as usize].id;
        let members: Vec<NodeId> = group.members().collect();
        let from = (chance.below(2) == 0).then(|| members[chance.below(members.len() as u64) as usize]);
        let id = GroupId { spread: 0, number };
        if !members.contains(&node) {
            all.insert(id, Placed { group: id, node, from });
        }
    }
    all.into_values().collect()
}

#[test]
fn groups_go_where_they_are_put_and_stay_there_while_the_rest_is_evened_out() {
    for seed in 0..60 {
        let mut map = drawn(seed, seed % 2 == 0);
        go_on(&mut map, true, seed);
        let placed = draw_placed(&map, &mut Chance(seed ^ 0xface));
        let before = map.epoch;
        map = map.next(|draft| placed.iter().for_each(|it| draft.place(*it))).expect("valid");
        assert_eq!((map.epoch > before, map.is_moving()), (!placed.is_empty(), !placed.is_empty()), "seed {seed}");
        go_on(&mut map, true, seed);
        assert!(!map.is_moving(), "seed {seed}");
        for it in &placed {
            let members: Vec<NodeId> = map.group(it.group).expect("it is there").members().collect();
            assert!(members.contains(&it.node), "seed {seed}: {it:?} is at {members:?}");
            assert_eq!(members.len(), usize::from(map.spreads[0].copies));
        }
        assert!(map.placed.iter().all(|it| it.from.is_none()), "seed {seed}: who has gone may come again");
        // Who is drained keeps nothing, whatever was put there.
        let one = map.nodes[seed as usize % map.nodes.len()].id;
        map = map.next(|draft| draft.drain(one, true)).expect("valid");
        go_on(&mut map, true, seed);
        assert_eq!((kept(&map, one), map.placed.iter().any(|it| it.node == one)), (0, false), "seed {seed}");
    }
}

#[test]
fn one_copy_is_put_in_one_place_and_who_goes_is_who_was_named() {
    for seed in 0..30 {
        let mut map = drawn(seed, true);
        let id = GroupId { spread: 0, number: 0 };
        let its = |map: &Map| map.group(id).expect("it is there").members().collect::<Vec<_>>();
        let outside = |map: &Map| map.nodes.iter().map(|node| node.id).find(|node| !its(map).contains(node));
        let copies = usize::from(map.spreads[0].copies);
        // One more than there is room for: the first one put there may go again.
        for _ in 0..=copies {
            let (node, from) = (outside(&map).expect("more nodes than copies"), its(&map).pop());
            map = map.next(|draft| draft.place(Placed { group: id, node, from })).expect("valid");
            go_on(&mut map, true, seed);
            assert!(its(&map).contains(&node) && !its(&map).contains(&from.expect("it has some")), "seed {seed}");
            assert!(map.placed.len() <= copies, "seed {seed}");
        }
        let node = outside(&map).expect("more nodes than copies");
        let before = its(&map);
        map = map.next(|draft| draft.place(Placed { group: id, node, from: None })).expect("valid");
        map = map.next(|draft| assert!(draft.begin_moves(|_, _| true, false))).expect("valid");
        map = map.next(|draft| draft.unplace(id)).expect("valid");
        assert_eq!((its(&map), map.placed.len(), map.is_moving()), (before, 0, false), "seed {seed}");
    }
}
