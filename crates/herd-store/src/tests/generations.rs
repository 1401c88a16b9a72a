//! Flushes and removed collections beside handles and entries that are still held.

use super::*;

/// Fills a store of 8 MiB until no shard has room for a longer value any more; gives the objects it holds.
fn fill(store: &Arc<Store>, c: &Collection) -> Vec<u64> {
    let write = |i: &u64, len: usize| put(store, c, &i.to_le_bytes(), &value(*i, len), at(1)).is_ok();
    let held: Vec<u64> = (0..9_000).filter(|i| write(i, 500)).collect();
    let refused = held.iter().filter(|i| !write(i, 900)).count();
    assert!(refused > 1_000, "memory is full: {refused} of {} were refused", held.len());
    held
}

#[test]
fn an_old_handle_does_not_touch_the_collection_that_came_after() {
    let store = store(64 << 20);
    let old = store.create("old", spec("ram:1")).expect("new");
    put(&store, &old, b"n", b"v", at(1)).expect("fits");
    store.destroy(&old);
    (0..4).for_each(|_| upkeep(&store, at(1)));
    let new = store.create("new", spec("ram:1")).expect("new");
    for i in 0..3_000u64 {
        put(&store, &new, &i.to_le_bytes(), &value(i, 100), at(1)).expect("fits");
    }
    for i in 0..100u64 {
        assert_eq!(get(&store, &old, &i.to_le_bytes(), at(1)), None);
        let refused = put(&store, &old, &i.to_le_bytes(), b"v", at(1)).err().map(|error| error.kind);
        assert_eq!(refused, Some(ErrorKind::NoCollection));
    }
    for i in 0..3_000u64 {
        assert_eq!(get(&store, &new, &i.to_le_bytes(), at(1)), Some(value(i, 100)), "object {i}");
    }
    assert_eq!(store.counts(&new).objects, 3_000);
}

#[test]
fn the_places_of_removed_collections_are_used_again() {
    let store = store(8 << 20);
    for round in 0..3_000u64 {
        let c = store.create("again", spec("ram:1")).expect("there is a place");
        put(&store, &c, b"n", &value(round, 100), at(1)).expect("fits");
        store.destroy(&c);
        drop(c);
        upkeep(&store, at(1));
    }
}

#[test]
fn a_flush_while_a_put_makes_room_comes_after_the_put() {
    let store = store(8 << 20);
    let c = store.create("r", spec("ram:1")).expect("new");
    for round in 0..4u64 {
        let held = fill(&store, &c);
        let i = held[held.len() - 1 - round as usize * 37];
        let name = i.to_le_bytes();
        let mut entry = store.entry(&c, &name, at(1));
        store.flush(&c, None);
        // Another length: it needs a place of its own, for which memory has room only where the flush made some.
        let len = if round % 2 == 0 { 3_000 } else { 20 };
        entry.put(&NewObject::of(Given::Small(&value(i, len), None))).ok();
        drop(entry);
        assert!(get(&store, &c, &name, at(1)).is_none(), "the flush came last");
        upkeep(&store, at(1));
        assert_eq!((store.counts(&c).objects, store.counts(&c).bytes), (0, 0));
    }
}

#[test]
fn a_removal_while_a_put_makes_room_leaks_nothing() {
    let store = store(8 << 20);
    let empty = store.memory().1;
    for round in 0..3u64 {
        let c = store.create(&format!("r{round}"), spec("ram:1")).expect("new");
        fill(&store, &c);
        for name in [round.to_le_bytes(), [9; 8]] {
            let mut entry = store.entry(&c, &name, at(1));
            store.destroy(&c);
            entry.put(&NewObject::of(Given::Small(&value(1, 4_000), None))).ok();
        }
        (0..4).for_each(|_| upkeep(&store, at(1)));
        assert!(store.memory().1 < empty + (256 << 10), "pages leaked: {} after {empty}", store.memory().1);
    }
}

#[test]
fn other_uses_of_an_entry_that_is_flushed_meanwhile_harm_nothing() {
    let store = store(8 << 20);
    let c = store.create("r", Spec { ordered: true, ..spec("cache") }).expect("new");
    for i in 0..300u64 {
        let name = (i % 10).to_le_bytes();
        put(&store, &c, &name, &value(i, 100 + i as usize % 6_000), at(1)).expect("fits");
        let mut entry = store.entry(&c, &name, at(1));
        store.flush(&c, None);
        match i % 5 {
            0 => drop(entry.remove(None)),
            1 => {
                let memcached = Default::default();
                entry.amend(&Amended { expires_ms: 9_000, flags: 7, memcached, fence: None }).expect("fits");
            }
            2 => entry.count_get(true),
            3 => entry.count_hit(),
            _ => drop(entry.put(&NewObject::of(Given::Small(&[1; 50], None))).expect("fits")),
        }
        drop(entry);
        assert_eq!(get(&store, &c, &name, at(1)), None, "round {i}");
        assert_eq!(store.counts(&c).objects, 0);
    }
    upkeep(&store, at(1));
    assert!(store.list(&c, b"", None, 100, at(1)).is_empty());
}
