//! What a map numbers, refuses and answers.

use super::*;
use crate::key::{HashKey, ObjectId};
use crate::limits::SLOTS;

fn next(map: &Map, change: impl FnOnce(&mut Draft)) -> Map {
    map.next(change).expect("a valid map")
}

/// Makes the group's first backup its primary, as after the primary's death.
fn fail_over(group: &mut Group) {
    let heir = group.others.remove(0).node;
    group.eligible.retain(|&node| Some(node) != group.primary);
    group.primary = Some(heir);
}

#[test]
fn a_map_that_nothing_changed_keeps_its_numbers() {
    let map = herd(nodes(3));
    assert_eq!(next(&map, |_| ()), map);
    assert_eq!(next(&map, |draft| draft.plan()), map, "the same nodes make the same plan");
    let other_term = next(&map, |draft| draft.term = 7);
    assert_eq!((other_term.epoch, other_term.revision, other_term.term), (1, 1, 7));
}

#[test]
fn placement_counts_epochs_and_collections_count_revisions() {
    let map = herd(nodes(3));
    let id = CollectionId::new(0, 77);
    let made = next(&map, |draft| draft.collections.push(collection(id, "more", "ram:2")));
    assert_eq!((made.epoch, made.revision), (map.epoch, map.revision + 1));
    let joined = next(&made, |draft| draft.nodes.push(node(4, GIB)));
    assert_eq!((joined.epoch, joined.revision), (map.epoch + 1, map.revision + 1));
}

#[test]
fn a_new_primary_raises_since_of_its_slots_and_of_no_other() {
    let map = herd(nodes(3));
    let failed = next(&map, |draft| fail_over(&mut draft.spreads[0].groups[5]));
    let (before, after) = (&map.spreads[0], &failed.spreads[0]);
    assert_eq!((after.groups[5].epoch, after.groups[4].epoch), (2, 1));
    for slot in 0..SLOTS {
        let wanted = if before.slots[slot] == 5 { 2 } else { 1 };
        assert_eq!(after.since(slot), wanted, "slot {slot}");
    }
}

#[test]
fn a_backup_that_leaves_changes_the_view_but_not_since() {
    let map = herd(nodes(3));
    let left = next(&map, |draft| {
        let group = &mut draft.spreads[0].groups[0];
        let gone = group.others.pop().expect("two backups");
        group.eligible.retain(|&node| node != gone.node);
    });
    let group = &left.spreads[0].groups[0];
    assert_eq!((left.epoch, group.epoch, group.primary_since), (2, 2, 1));
    assert!((0..SLOTS).all(|slot| left.spreads[0].since(slot) == 1));
}

#[test]
fn since_never_falls_when_a_slot_moves_to_an_older_group() {
    let mut map = herd(nodes(3));
    for _ in 0..5 {
        map = next(&map, |draft| draft.spreads[0].groups[1].others.rotate_left(1));
    }
    let slot = map.spreads[0].slots.iter().position(|&number| number == 1).expect("each group has slots");
    let moved = next(&map, |draft| draft.spreads[0].slots[slot] = 0);
    assert_eq!(moved.spreads[0].groups[0].epoch, 1, "its new group is as it was");
    assert_eq!(moved.spreads[0].since(slot), moved.epoch);
}

/// Its counters began anew: with the old prefix it would give a version twice.
#[test]
fn a_primary_that_started_anew_begins_a_new_prefix() {
    let map = herd(nodes(1));
    let again = next(&map, |draft| draft.nodes[0].incarnation += 1);
    assert!((0..SLOTS).all(|slot| again.spreads[0].since(slot) == again.epoch));
    assert!(again.spreads[0].groups.iter().all(|group| group.epoch == again.epoch));
}

/// What a syncing member holds is worth something under the primary that copies to it, and in the life it began in.
#[test]
fn a_copy_begins_anew_under_another_primary_and_in_another_life() {
    let standing = |map: &Map| map.spreads[0].groups[0].others.last().map(|it| (it.standing, it.since));
    let stand = |draft: &mut Draft, standing| {
        draft.spreads[0].groups[0].others.last_mut().expect("a backup").standing = standing;
    };
    let map = herd(nodes(3));
    let syncing = next(&map, |draft| stand(draft, Standing::Syncing));
    assert_eq!(standing(&syncing), Some((Standing::Syncing, 2)), "a backup that lost what it had");
    let quiet = next(&syncing, |draft| draft.spreads[0].groups[1].others.rotate_left(1));
    assert_eq!(standing(&quiet), Some((Standing::Syncing, 2)));
    let other_primary = next(&quiet, |draft| fail_over(&mut draft.spreads[0].groups[0]));
    assert_eq!(standing(&other_primary), Some((Standing::Syncing, 4)));
    let joining = next(&other_primary, |draft| stand(draft, Standing::Joining));
    assert_eq!(standing(&joining), Some((Standing::Joining, 4)), "its copy is whole");
    let again = next(&joining, |draft| draft.nodes.iter_mut().for_each(|node| node.incarnation += 1));
    assert_eq!(standing(&again), Some((Standing::Joining, 6)));
}

#[test]
fn more_copies_needed_is_a_new_view_of_each_group() {
    let map = herd(nodes(3));
    let safer = next(&map, |draft| draft.spreads[0].needed = 3);
    assert!(safer.spreads[0].groups.iter().all(|group| (group.epoch, group.primary_since) == (2, 1)));
}

#[test]
fn an_object_is_found_by_its_key() {
    let map = herd(nodes(3));
    let key = HashKey([3; 16]);
    let object = ObjectId::of(&key, CollectionId::DEFAULT, b"name");
    let (group_id, group) = map.group_of(CollectionId::DEFAULT, object).expect("in the default spread group");
    assert_eq!(map.group(group_id), Some(group));
    assert_eq!(map.spreads[0].group_of(object.slot()), group);
    assert!(map.group_of(CollectionId::new(9, 1), object).is_none(), "no such spread group");
}

#[test]
fn the_groups_of_a_node_are_those_it_is_a_member_of() {
    let map = herd(nodes(5));
    let groups: usize = map.spreads.iter().map(|spread| spread.groups.len()).sum();
    let memberships: usize = map.nodes.iter().map(|node| map.groups_of(node.id).count()).sum();
    assert_eq!(memberships, groups * 3, "three copies of each");
    assert_eq!(map.groups_of(id(99)).count(), 0);
}

/// What may be done to a valid map, and what is then wrong.
type Fault = (&'static str, fn(&mut Draft));

const FAULTS: [Fault; 19] = [
    ("nodes out of order", |draft| draft.nodes.swap(0, 1)),
    ("two nodes of one name", |draft| draft.nodes[1].name = draft.nodes[0].name.clone()),
    ("node without name or host", |draft| draft.nodes[1].host.clear()),
    ("text of node too long", |draft| draft.nodes[1].rack = "r".repeat(256)),
    ("text of node too long or not printable", |draft| draft.nodes[1].name = "a\u{1b}[2J".into()),
    ("too many addresses", |draft| draft.nodes[1].addresses = vec!["a:1".into(); 9]),
    ("unknown node in group", |draft| drop(draft.nodes.remove(2))),
    ("spread groups out of order", |draft| draft.spreads.push(draft.spreads[0].clone())),
    ("no spread group has number", |draft| draft.spreads[0].id = 16),
    ("copies out of range", |draft| draft.spreads[0].copies = 10),
    ("more copies needed", |draft| draft.spreads[0].needed = 4),
    ("a cache keeps one copy", |draft| draft.spreads[0].kind = Kind::Cache),
    ("no or too many groups", |draft| draft.spreads[0].groups.clear()),
    ("slot without group", |draft| draft.spreads[0].slots[9] = u16::MAX),
    ("a node twice in group", |draft| {
        let group = &mut draft.spreads[0].groups[0];
        group.others[0].node = group.primary.expect("planned");
    }),
    ("not eligible", |draft| draft.spreads[0].groups[0].eligible.clear()),
    ("two collections of one name", |draft| draft.collections.push(collection(CollectionId(3), "default", "ram:1"))),
    ("no spread group of its kind", |draft| draft.collections[0].spec.class = "cache".into()),
    ("bad class", |draft| draft.collections[0].spec.class = format!("ram:{}1", "0".repeat(9999))),
];

#[test]
fn parts_that_do_not_go_together_make_no_map() {
    let map = herd(nodes(3));
    for (what, break_it) in FAULTS {
        let error = map.next(break_it);
        let error = error.expect_err(what).to_string();
        assert!(error.contains(what), "{what}: {error}");
    }
}

#[test]
fn epochs_end_before_they_would_not_fit_a_version() {
    let last = Map::first(Draft::clone(&herd(nodes(2))), MAP_EPOCHS_END - 1).expect("the last epoch");
    assert_eq!(last.next(|draft| draft.term += 1).expect("no new epoch").epoch, MAP_EPOCHS_END - 1);
    assert!(last.next(|draft| draft.nodes[0].memory_bytes += 1).is_err());
    assert!(Map::first(Draft::clone(&last), 0).is_err());
}

#[test]
fn a_revision_that_could_not_rise_makes_no_map() {
    let last = Map::new(Draft { revision: u64::MAX - 1, ..Draft::clone(&herd(nodes(1))) }).expect("valid");
    assert!(last.next(|draft| draft.collections.clear()).is_err());
}
