//! Seats, and which map is later.

use super::*;
use crate::entry::COUNTER_BITS;
use crate::limits::SLOTS;

fn life(number: u32, incarnation: u64) -> Life {
    Life { node: id(number), incarnation }
}

/// How many slots of the default spread group a life has as what: alone, led, held, away.
fn counted(map: &Map, me: Life) -> [usize; 4] {
    let (mut counts, seats) = ([0; 4], map.seats(me, &map.spreads[0], |_, seat| seat));
    (0..SLOTS).for_each(|slot| counts[seats(slot).0 as usize] += 1);
    counts
}

#[test]
fn one_node_is_alone_with_all_and_three_with_three_copies_share_all() {
    assert_eq!(counted(&herd(nodes(1)), life(1, 1)), [SLOTS, 0, 0, 0]);
    let three = herd(nodes(3));
    let of_all = [1, 2, 3].map(|number| counted(&three, life(number, 1)));
    assert!(of_all.iter().all(|[alone, led, held, away]| (*alone, *away) == (0, 0) && led + held == SLOTS));
    assert_eq!(of_all.iter().map(|counts| counts[Seat::Led as usize]).sum::<usize>(), SLOTS, "one decides on each");
}

#[test]
fn where_one_copy_is_kept_each_slot_is_one_nodes_alone() {
    let mut draft = Draft { nodes: nodes(3), ..Draft::empty(HERD) };
    draft.add_spread(Kind::Cache, 1, Grows::No).expect("the first");
    let map = Map::first(draft, 1).expect("a valid map");
    let of_all = [1, 2, 3].map(|number| counted(&map, life(number, 1)));
    assert_eq!(of_all.iter().map(|counts| counts[Seat::Alone as usize]).sum::<usize>(), SLOTS);
    assert!(of_all.iter().all(|[alone, led, held, away]| *alone > 0 && led + held == 0 && alone + away == SLOTS));
}

/// Its memory is gone, or it is the one that is gone: what it finds, or does not find, says nothing.
#[test]
fn another_life_of_a_node_has_nothing_and_a_stranger_neither() {
    let map = herd(nodes(1));
    for me in [life(1, 0), life(1, 2), life(2, 1)] {
        assert_eq!(counted(&map, me), [0, 0, 0, SLOTS]);
    }
}

#[test]
fn a_primary_whose_members_left_is_not_alone_where_two_copies_are_needed() {
    let map = herd(nodes(3));
    let bereft = map.next(|draft| draft.spreads[0].groups.iter_mut().for_each(|group| group.others.clear()));
    let bereft = bereft.expect("a valid map");
    assert_eq!(bereft.spreads[0].needed, 2);
    let [alone, led, ..] = counted(&bereft, life(1, 1));
    assert!(alone == 0 && led > 0);
}

#[test]
fn versions_of_a_slot_begin_where_its_primary_last_changed() {
    let map = herd(nodes(1));
    let again = map.next(|draft| draft.nodes[0].incarnation = 2).expect("a valid map");
    let floor = |map: &Map, me, slot| map.seats(me, &map.spreads[0], |_, seat| seat)(slot).1;
    assert_eq!(floor(&map, life(1, 1), 7) >> COUNTER_BITS, 1);
    assert_eq!(floor(&again, life(1, 2), 7) >> COUNTER_BITS, 2);
    assert!(floor(&map, life(1, 1), 4_095) < 2 << COUNTER_BITS);
    assert!(floor(&map, life(1, 1), 7) > floor(&map, life(1, 1), 6) + 1_000, "slots begin apart");
}

#[test]
fn of_two_maps_the_one_of_the_later_term_epoch_and_revision_holds() {
    let map = herd(nodes(2));
    let next = |change: fn(&mut Draft)| map.next(change).expect("a valid map");
    let (term, revision) = (next(|draft| draft.term += 1), next(|draft| draft.collections.clear()));
    let epoch = next(|draft| draft.nodes[0].memory_bytes += 1);
    for later in [&term, &revision, &epoch] {
        assert!(later.is_later(false, (&map, true)) && !map.is_later(true, (later, false)));
    }
    assert!(term.is_later(false, (&epoch, true)) && epoch.is_later(false, (&revision, true)));
    assert!(map.is_later(true, (&map, false)), "the same map, told that the herd holds objects");
    for (held, than) in [(true, true), (false, false), (false, true)] {
        assert!(!map.is_later(held, (&map, than)));
    }
    let other = Map::new(Draft { herd: HerdId([1; 16]), ..Draft::clone(&term) }).expect("a valid map");
    assert!(!other.is_later(true, (&map, false)), "another herd's");
}
