//! The collections of a map.

use super::*;
use herd_core::limits::{COLLECTIONS_KEPT_MAX, COLLECTIONS_MAX};
use herd_core::place::{self, Draft, Grows, HerdId, Kind};

/// Collections of kind `ram` in spread group 0, and of kind `cache` in 1.
fn map_of(collections: Vec<place::Collection>) -> Map {
    let mut draft = Draft { collections, ..Draft::empty(HerdId([1; 16])) };
    draft.add_spread(Kind::Kept, 3, Grows::No).expect("the first");
    draft.add_spread(Kind::Cache, 1, Grows::No).expect("the second");
    Map::first(draft, 1).expect("a valid map")
}

fn of(spread: u16, serial: u64, name: &str, class: &str) -> place::Collection {
    place::Collection { id: CollectionId::new(spread, serial), name: name.into(), spec: spec(class), generation: 1 }
}

fn default() -> place::Collection {
    place::Collection { id: CollectionId::DEFAULT, ..of(0, 2, "default", "ram:1") }
}

fn names(store: &Store) -> Vec<String> {
    let mut names: Vec<String> = store.collections().iter().map(|c| c.name().to_owned()).collect();
    names.sort_unstable();
    names
}

#[test]
fn the_collections_are_those_of_the_map_and_what_stays_keeps_its_objects() {
    let store = store(8 << 20);
    let kept = store.create("default", spec("ram:1")).expect("new");
    let local = store.create("local", spec("ram:1")).expect("new");
    let version = put(&store, &kept, b"n", b"v", at(1)).expect("fits");
    let (a, b) = (of(0, 7, "a", "ram:2"), of(1, 8, "b", "cache"));
    store.adopt(&map_of(vec![default(), a.clone(), b.clone()])).expect("there is place");
    assert_eq!(names(&store), ["a", "b", "default"]);
    assert!(local.is_destroyed() && !kept.is_destroyed());
    assert_eq!(store.entry(&kept, b"n", at(1)).version(), Some(version));
    for it in [&a, &b] {
        let c = store.collection_by_id(it.id).expect("there");
        assert_eq!((c.id(), c.name(), c.spec()), (it.id, &it.name[..], &it.spec));
        put(&store, &c, b"n", b"v", at(1)).expect("fits");
    }
    assert_eq!(store.collection(b"a").expect("there").class().to_string(), "ram:2");
    // The same name with another id is another collection.
    let again = place::Collection { id: CollectionId::new(0, 9), ..a };
    store.adopt(&map_of(vec![default(), again.clone()])).expect("there is place");
    assert_eq!(names(&store), ["a", "default"]);
    assert_eq!(get(&store, &store.collection_by_id(again.id).expect("there"), b"n", at(1)), None);
    assert!(store.create("c", spec("ram:1")).expect("new").id().serial() > 9, "no id is given twice");
}

#[test]
fn a_later_generation_takes_all_objects_and_the_same_one_none() {
    let store = store(8 << 20);
    let flushed = |generation| map_of(vec![place::Collection { generation, ..default() }]);
    // The first a map tells is that of what is there: a node may have served before, or hear of it late.
    let c = store.create("default", spec("ram:1")).expect("new");
    put(&store, &c, b"n", b"v", at(1)).expect("fits");
    for (generation, stays) in [(3, true), (3, true), (4, false), (4, true), (9, false), (8, true)] {
        put(&store, &c, b"n", b"v", at(1)).expect("fits");
        store.adopt(&flushed(generation)).expect("there is place");
        assert_eq!(get(&store, &c, b"n", at(1)).is_some(), stays, "generation {generation}");
    }
    let made = of(0, 5, "made", "ram:1");
    for (generation, stays) in [(0, true), (0, true), (1, false)] {
        store.adopt(&map_of(vec![place::Collection { generation, ..made.clone() }])).expect("there is place");
        let c = store.collection(b"made").expect("there");
        assert_eq!(get(&store, &c, b"n", at(1)).is_some(), stays && generation == 0 && store.counts(&c).puts > 0);
        put(&store, &c, b"n", b"v", at(1)).expect("fits");
    }
}

/// All at once gone and as many there in their place; beyond that it waits until they are forgotten.
#[test]
fn the_most_collections_take_the_place_of_as_many_and_of_no_more_while_those_are_in_use() {
    let store = store(8 << 20);
    let round = |n: u64| {
        let serials = 1_000 + n * COLLECTIONS_MAX as u64..1_000 + (n + 1) * COLLECTIONS_MAX as u64;
        let mut all: Vec<_> = serials.map(|serial| of(0, serial, &format!("c{serial}"), "ram:1")).collect();
        all.sort_by_key(|it| it.id);
        map_of(all)
    };
    let mut held = Vec::new();
    for n in 0..2 {
        store.adopt(&round(n)).expect("there is place");
        held.extend(store.collections());
    }
    assert_eq!(held.len(), COLLECTIONS_KEPT_MAX);
    let refused = store.adopt(&round(2)).expect_err("all places are in use");
    assert_eq!(refused.kind, ErrorKind::Busy);
    held.truncate(COLLECTIONS_MAX);
    store.adopt(&round(2)).expect("those of the second round are forgotten");
    assert_eq!(store.collections().len(), COLLECTIONS_MAX);
    assert!(held.iter().all(Collection::is_destroyed));
}

/// Where an object lies is told by its collection: what is under way of one that is gone, or comes before it is known.
#[test]
fn an_indexed_object_has_its_key_while_its_collection_is_known_and_after_that() {
    let store = store(8 << 20);
    let array = place::Collection { spec: Spec { indexed: true, ..spec("ram:1") }, ..of(0, 7, "array", "ram:1") };
    let early = store.key_in(array.id, b"11");
    store.adopt(&map_of(vec![default(), array.clone()])).expect("there is place");
    let c = store.collection_by_id(array.id).expect("there");
    let key = store.key(&c, b"11");
    assert_eq!((store.is_key(&c, &key), store.key_in(array.id, b"11")), (true, key.clone()));
    assert!(early != key && !store.is_key(&c, &early));
    drop(c);
    store.adopt(&map_of(vec![default()])).expect("there is place");
    assert_eq!(store.key_in(array.id, b"11"), key);
    // Another takes its place.
    store.adopt(&map_of(vec![default(), of(0, 8, "next", "ram:1")])).expect("there is place");
    assert_eq!(store.key_in(array.id, b"11"), key);
}

/// Ids of spread groups lie beside each other, so those of a map are not in the order of their serials.
#[test]
fn of_collections_for_which_there_is_no_place_none_is_taken_for_gone() {
    let store = store(8 << 20);
    let mut held = Vec::new();
    for n in 1..=COLLECTIONS_KEPT_MAX as u64 - 1 {
        store.adopt(&map_of(vec![of(0, 1_000 + n, "c", "ram:1")])).expect("there is place");
        held.extend(store.collections());
    }
    let first_slot = |serial: &u64| CollectionId::new(0, *serial).first_slot();
    let serial = (9_000..).find(|serial| first_slot(serial) > first_slot(&(serial + 1))).expect("some are");
    let mut all = vec![of(0, serial, "a", "ram:1"), of(0, serial + 1, "b", "ram:1")];
    all.sort_by_key(|it| it.id);
    assert_eq!(all[0].name, "b");
    store.adopt(&map_of(all)).expect_err("there is one place");
    assert!(!store.is_gone(CollectionId::new(0, serial)) && !store.is_gone(CollectionId::new(0, serial + 1)));
}
