//! What every plan must keep, over herds of all sizes and shapes.

use super::super::plan::Shortfall;
use super::*;
use crate::key::{HashKey, ObjectId};
use crate::limits::SLOTS;
use std::collections::{BTreeMap, BTreeSet};

/// Herds looked at by each test; a plan takes some 10 ms without optimisation.
const SEEDS: u64 = 50;

/// How far a share may be off, slots: each of up to eight layers rounds by less than one, sharing out by one.
const TOLERANCE: f64 = 9.0;

/// 1 to 64 nodes of 1 to 64 GiB, some of them on hosts and racks together; and the copies to keep.
fn drawn(seed: u64) -> (Vec<Node>, u8) {
    let mut chance = Chance(seed);
    let count = 1 + chance.below(64) as u32;
    let hosts = 1 + chance.below(u64::from(count) * 2);
    let racks = 1 + chance.below(8);
    let nodes = (1..=count).map(|number| {
        let host = chance.below(hosts);
        let memory_bytes = (1 + chance.below(64)) * GIB;
        Node { host: format!("h{host}"), rack: format!("r{}", host % racks), ..node(number, memory_bytes) }
    });
    (nodes.collect(), 1 + chance.below(4) as u8)
}

fn planned(nodes: &[Node], copies: u8) -> Map {
    let mut draft = Draft { nodes: nodes.to_vec(), ..Draft::empty(HERD) };
    draft.add_spread(Kind::Kept, copies, Grows::No).expect("the first spread group");
    Map::first(draft, 1).expect("a plan is a valid map")
}

/// Of each node: slots it leads, and slots it holds.
fn loads(map: &Map) -> BTreeMap<NodeId, (usize, usize)> {
    let mut loads: BTreeMap<_, _> = map.nodes.iter().map(|node| (node.id, (0, 0))).collect();
    for slot in 0..SLOTS {
        let group = map.spreads[0].group_of(slot);
        group.members().for_each(|node| loads.get_mut(&node).expect("known").1 += 1);
        loads.get_mut(&group.primary.expect("planned")).expect("known").0 += 1;
    }
    loads
}

#[test]
fn no_node_twice_in_a_group_and_no_host_while_others_are_free() {
    for seed in 0..SEEDS {
        let (nodes, copies) = drawn(seed);
        let map = planned(&nodes, copies);
        let hosts: BTreeSet<&str> = nodes.iter().map(|node| node.host.as_str()).collect();
        for group in &map.spreads[0].groups {
            let members: BTreeSet<NodeId> = group.members().collect();
            let used: BTreeSet<&str> = members.iter().map(|&id| map.node(id).expect("known").host.as_str()).collect();
            assert_eq!(members.len(), nodes.len().min(copies.into()), "seed {seed}: {group:?}");
            assert_eq!(used.len(), hosts.len().min(copies.into()), "seed {seed}: {group:?}");
        }
    }
}

/// The share of a node follows its memory: two nodes that no bound holds back hold as many slots a byte.
#[test]
fn shares_follow_memory() {
    for seed in 0..SEEDS {
        let (nodes, copies) = drawn(seed);
        let map = planned(&nodes, copies);
        let loads = loads(&map);
        let all_copies = SLOTS * nodes.len().min(copies.into());
        assert_eq!(loads.values().map(|load| load.1).sum::<usize>(), all_copies, "seed {seed}");
        let host_load =
            |host: &str| nodes.iter().filter(|node| node.host == host).map(|node| loads[&node.id].1).sum::<usize>();
        let free: Vec<&Node> = nodes.iter().filter(|node| host_load(&node.host) + 64 < SLOTS).collect();
        let memory: u64 = free.iter().map(|node| node.memory_bytes).sum();
        let held: usize = free.iter().map(|node| loads[&node.id].1).sum();
        for node in free {
            let fair = held as f64 * node.memory_bytes as f64 / memory as f64;
            let off = (loads[&node.id].1 as f64 - fair).abs();
            assert!(off <= TOLERANCE, "seed {seed}: {} holds {}, fair {fair}", node.name, loads[&node.id].1);
        }
    }
}

#[test]
fn each_node_leads_its_part_of_what_it_holds() {
    for seed in 0..SEEDS {
        let (nodes, copies) = drawn(seed);
        let copies_kept = nodes.len().min(copies.into()) as f64;
        for (node, (leads, holds)) in loads(&planned(&nodes, copies)) {
            let off = (leads as f64 - holds as f64 / copies_kept).abs();
            assert!(off <= TOLERANCE, "seed {seed}: {node:?} leads {leads} of {holds}");
        }
    }
}

#[test]
fn the_same_nodes_make_the_same_plan() {
    for seed in 0..SEEDS / 4 {
        let (nodes, copies) = drawn(seed);
        assert_eq!(planned(&nodes, copies), planned(&nodes, copies), "seed {seed}");
    }
}

/// A plan may be made by any node of any release: if this changes, maps made anew change.
#[test]
fn a_plan_is_the_same_everywhere() {
    let map = planned(&nodes(5), 3);
    let checksum = *map.encode().last_chunk().expect("a map ends with its checksum");
    assert_eq!(u32::from_le_bytes(checksum), 0x889F_208E);
}

#[test]
fn about_eight_groups_a_node() {
    for count in [1, 2, 3, 4, 5, 6, 7, 8, 13, 16, 29, 50, 64] {
        for copies in 1..=3 {
            let groups = planned(&nodes(count), copies).spreads[0].groups.len();
            let per_node = groups as f64 / f64::from(count);
            assert!((4.0..=16.0).contains(&per_node), "{count} nodes, {copies} copies: {groups} groups");
        }
    }
}

#[test]
fn eight_neighbours_lie_on_eight_nodes() {
    let key = HashKey([7; 16]);
    for copies in 1..=4 {
        let map = planned(&nodes(8), copies);
        for collection in [CollectionId::new(0, 5), CollectionId::new(0, 123_456)] {
            for from in 0..2 * SLOTS as u64 {
                let primary = |index| {
                    let object = ObjectId::at(&key, collection, index);
                    map.group_of(collection, object).and_then(|(_, group)| group.primary)
                };
                let on: BTreeSet<_> = (from..from + 8).map(primary).collect();
                assert_eq!(on.len(), 8, "{copies} copies, from {from}");
            }
        }
    }
}

/// The rows of slots, also from the last to the first ones, in which one node leads two.
fn broken_rows(map: &Map, row: usize) -> usize {
    let primary = |slot: usize| map.spreads[0].group_of(slot % SLOTS).primary;
    let distinct = |from: usize| (from..from + row).map(primary).collect::<BTreeSet<_>>().len();
    (0..SLOTS).filter(|&from| distinct(from) < row).count()
}

#[test]
fn neighbours_lie_on_different_nodes_in_herds_of_any_size() {
    for count in [2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 15, 16, 23, 32, 47, 64] {
        let broken = broken_rows(&planned(&nodes(count), 3), NEIGHBOURS.min(count as usize));
        // Where a row takes all nodes, one slot that one leads more than another breaks some rows.
        let most = if count < 8 { SLOTS / 50 } else { 0 };
        assert!(broken <= most, "{count} nodes: {broken} rows");
    }
}

#[test]
fn neighbours_lie_on_different_nodes_where_memories_differ() {
    let mut looked_at = 0;
    for seed in 0..SEEDS {
        let (nodes, copies) = drawn(seed);
        let map = planned(&nodes, copies);
        let most = loads(&map).values().map(|load| load.0).max().unwrap_or(SLOTS);
        // A node that leads more than every eighth slot must come twice in some rows of eight.
        let row = (SLOTS / most - 1).clamp(1, NEIGHBOURS);
        looked_at += usize::from(row == NEIGHBOURS);
        assert_eq!(broken_rows(&map, row), 0, "seed {seed}: rows of {row}");
    }
    assert!(looked_at > SEEDS as usize / 4, "{looked_at} herds large enough for whole rows");
}

#[test]
fn members_lie_in_different_racks_where_shares_allow() {
    let nodes: Vec<Node> =
        nodes(12).into_iter().enumerate().map(|(at, node)| Node { rack: format!("r{}", at % 4), ..node }).collect();
    let map = planned(&nodes, 3);
    assert_eq!(map.shortfalls(), []);
    for group in &map.spreads[0].groups {
        let racks: BTreeSet<&str> = group.members().map(|id| map.node(id).expect("known").rack.as_str()).collect();
        assert_eq!(racks.len(), 3);
    }
}

#[test]
fn what_a_dead_node_held_is_spread_over_many() {
    let map = planned(&nodes(20), 3);
    for node in &map.nodes {
        let heirs: BTreeSet<NodeId> = map.groups_of(node.id).flat_map(|(_, group)| group.members()).collect();
        assert!(heirs.len() > 6, "{}: {heirs:?}", node.name);
    }
}

#[test]
fn copies_grow_with_the_nodes_and_never_fall() {
    let mut map = herd(nodes(1));
    let mut kept = vec![(map.spreads[0].copies, map.spreads[0].needed)];
    for number in 2..=4 {
        let joined = map.next(|draft| draft.join(node(number, GIB), false));
        map = joined.expect("valid");
        kept.push((map.spreads[0].copies, map.spreads[0].needed));
    }
    assert_eq!(kept, [(1, 1), (2, 1), (3, 2), (3, 2)]);
    let left = map.next(|draft| {
        draft.nodes.truncate(2);
        draft.plan();
    });
    let left = left.expect("valid");
    assert_eq!((left.spreads[0].copies, left.spreads[0].needed), (3, 2));
    let told: Vec<String> = left.shortfalls().iter().map(|short| short.to_string()).collect();
    assert_eq!(told, ["of the 16 replica groups of spread group 0, 16 have fewer than 3 copies"]);
}

#[test]
fn copies_that_are_asked_for_are_kept_once_there_are_nodes_for_them() {
    let mut draft = Draft::empty(HERD);
    draft.add_spread(Kind::Kept, 3, Grows::ToCopies).expect("the first spread group");
    let mut map = Map::first(draft, 1).expect("valid");
    let mut kept = Vec::new();
    for number in 1..=4 {
        map = map.next(|draft| draft.join(node(number, GIB), false)).expect("valid");
        let copies = (0..SLOTS).map(|slot| map.spreads[0].group_of(slot).copies()).collect::<BTreeSet<_>>();
        kept.push((copies.into_iter().collect::<Vec<_>>(), map.spreads[0].needed, map.shortfalls().len()));
    }
    assert_eq!(kept, [(vec![1], 1, 1), (vec![2], 1, 1), (vec![3], 2, 0), (vec![3], 2, 0)]);
    assert_eq!(map.spreads[0].copies, 3);
}

#[test]
fn a_node_that_comes_while_there_are_objects_holds_nothing_yet() {
    let map = herd(nodes(2));
    let joined = map.next(|draft| draft.join(node(3, GIB), true)).expect("valid");
    assert_eq!(joined.groups_of(id(3)).count(), 0);
    assert_eq!(joined.spreads, map.spreads, "also the copies kept are as they were: there is nobody to hold more");
    let again = joined.next(|draft| draft.join(Node { incarnation: 2, ..node(3, GIB) }, true)).expect("valid");
    assert_eq!((again.nodes.len(), again.nodes[2].incarnation), (3, 2), "its own old self it replaces");
}

#[test]
fn a_spread_group_of_caches_keeps_one_copy_however_many_nodes() {
    let map = herd(nodes(4)).next(|draft| {
        assert_eq!(draft.add_spread(Kind::Cache, 1, Grows::No), Some(1));
        draft.join(node(5, GIB), false);
    });
    let map = map.expect("valid");
    assert_eq!(map.groups_of(id(5)).filter(|(group, _)| group.spread == 1).count(), 8);
    assert!(map.spreads[1].groups.iter().all(|group| group.others.is_empty()));
    assert_eq!(map.spreads[1].needed, 1);
}

#[test]
fn where_placement_cannot_be_kept_the_plan_says_so() {
    let on = |host: &str, rack: &str, number| Node { host: host.into(), rack: rack.into(), ..node(number, GIB) };
    let one_host = planned(&[on("a", "", 1), on("a", "", 2)], 2);
    let groups = one_host.spreads[0].groups.len();
    let wanted = Shortfall { spread: 0, groups, wanted: 2, copies: 0, hosts: groups, racks: 0 };
    assert_eq!(one_host.shortfalls(), [wanted]);
    let uneven = planned(&[on("a", "x", 1), on("b", "x", 2), on("c", "x", 3), on("d", "y", 4)], 2);
    let [ref short] = uneven.shortfalls()[..] else { panic!("{:?}", uneven.shortfalls()) };
    assert!(short.racks > 0 && (short.copies, short.hosts) == (0, 0), "{short}");
}

#[test]
fn only_nodes_that_are_up_get_a_share() {
    let mut some = nodes(4);
    (some[1].state, some[2].state) = (NodeState::Down, NodeState::Draining);
    let loads = loads(&planned(&some, 2));
    assert_eq!([loads[&id(2)], loads[&id(3)]], [(0, 0); 2]);
    assert_eq!(loads[&id(1)].1, SLOTS);
    (some[0].state, some[3].state) = (NodeState::Down, NodeState::Down);
    let nobody = planned(&some, 2);
    assert!(nobody.spreads[0].group_of(0).primary.is_none());
    assert_eq!(nobody.shortfalls()[0].copies, 1);
}

/// The limits of a herd: planned in reasonable time, into a valid map within its bytes.
#[test]
fn a_herd_of_1024_nodes_is_planned() {
    let map = planned(&nodes(NODES_MAX as u32), 3);
    assert!(map.encode().len() < MAP_MAX_BYTES);
    assert!(loads(&map).values().all(|&(_, holds)| (8..=16).contains(&holds)));
}
