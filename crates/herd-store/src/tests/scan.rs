//! The objects of one slot, in turns.

use super::*;
use herd_core::entry::Fence;

fn array(store: &Store, name: &str) -> Collection {
    store.create(name, Spec { indexed: true, ..spec("ram:1") }).expect("new")
}

/// The name of the `i`th object of the slot in which object 0 lies.
fn name(i: u64) -> Vec<u8> {
    (i * SLOTS as u64).to_string().into_bytes()
}

fn all(store: &Store, slot: usize) -> Vec<SlotItem> {
    let (mut cursor, mut items) = (SlotCursor::new(0, slot), Vec::new());
    while !cursor.is_at_end() {
        store.slot_turn(&mut cursor, &mut items, 1, at(1));
    }
    items
}

#[test]
fn objects_that_stay_are_met_once_and_in_order_while_others_come_and_go() {
    let store = store(64 << 20);
    let (c, other) = (array(&store, "a"), store.create("b", spec("ram:1")).expect("new"));
    for i in 0..30_000 {
        put(&store, &c, &name(i), b"v", at(1)).expect("fits");
    }
    let slot = store.key(&c, b"0").slot();
    let bytes = || store.lock(store.layout.place(slot).0).index.bytes();
    let (mut cursor, mut items, mut turns, before) = (SlotCursor::new(0, slot), Vec::new(), 0u64, bytes());
    while !cursor.is_at_end() {
        store.slot_turn(&mut cursor, &mut items, 1, at(1));
        // Of the slot, and of others: the index grows beneath the cursor.
        for i in turns * 5_000..(turns + 1) * 5_000 {
            put(&store, &other, &i.to_le_bytes(), b"v", at(1)).expect("fits");
            put(&store, &c, &name(100_000 + i), b"v", at(1)).expect("fits");
            store.entry(&c, &name(i * 2 % 30_000), at(1)).remove(None);
        }
        turns += 1;
    }
    assert!(turns > 8 && bytes() > before, "{turns} turns");
    assert!(items.is_sorted_by(|a, b| a.key < b.key), "in order, and none twice");
    for i in (1..30_000).step_by(2) {
        let key = store.key(&c, &name(i));
        assert!(items.binary_search_by(|item| item.key.cmp(&key)).is_ok(), "object {i}");
    }
    assert!(items.iter().all(|item| item.key.slot() == slot && item.version != 0));
}

#[test]
fn nodes_with_other_shards_meet_the_same_objects_in_the_same_order() {
    let (small, large) = (store(8 << 20), store(64 << 20));
    assert_ne!(small.shards.len(), large.shards.len());
    let keys = [&small, &large].map(|store| {
        let (c, d) = (array(store, "a"), store.create("b", spec("ram:1")).expect("new"));
        for i in 0..1_000 {
            put(store, &c, &name(i), b"v", at(1)).expect("fits");
            put(store, &d, &name(i), b"v", at(1)).expect("fits");
        }
        let slots = (0..SLOTS).map(|slot| all(store, slot).into_iter().map(|item| item.key).collect::<Vec<_>>());
        slots.collect::<Vec<_>>()
    });
    assert!(keys[0] == keys[1]);
    assert_eq!(keys[0].iter().map(Vec::len).sum::<usize>(), 2_000);
}

#[test]
fn a_cursor_goes_on_at_a_key() {
    let store = store(8 << 20);
    let c = array(&store, "a");
    for i in 0..1_000 {
        put(&store, &c, &name(i), b"v", at(1)).expect("fits");
    }
    let items = all(&store, store.key(&c, b"0").slot());
    for i in [0, 1, 500, 999] {
        let (mut cursor, mut rest) = (store.cursor_at(&items[i].key), Vec::new());
        while !cursor.is_at_end() {
            store.slot_turn(&mut cursor, &mut rest, 1, at(1));
        }
        assert!(rest.ends_with(&items[i..]));
        assert!(rest.len() < items.len() - i + 10, "but for few it begins there");
    }
}

/// Slots of two spread groups share their tags: what is done to one must leave the other.
#[test]
fn a_slot_has_nothing_of_the_slot_of_another_spread_group() {
    let store = store(8 << 20);
    let c = array(&store, "kept");
    let other = store.create("cache", Spec { indexed: true, ..spec("cache") }).expect("new");
    let slot = store.key(&c, b"0").slot();
    let from = (slot + SLOTS - store.key(&other, b"0").slot()) % SLOTS;
    let of_other = |i: u64| (from as u64 + i * SLOTS as u64).to_string().into_bytes();
    let new = NewObject::of(Given::Small(b"v", None));
    for i in 0..300 {
        put(&store, &c, &name(i), b"v", at(1)).expect("fits");
        put(&store, &other, &of_other(i), b"v", at(1)).expect("fits");
    }
    for (c, key) in [(&c, name(300)), (&other, of_other(300))] {
        let mut entry = store.entry(c, &key, at(1));
        assert_eq!(entry.slot(), slot);
        let version = entry.take_version(0);
        entry.prepare(version, 0, &new).expect("fits");
    }
    let met = |spread| {
        let (mut cursor, mut items) = (SlotCursor::new(spread, slot), Vec::new());
        while !cursor.is_at_end() {
            store.slot_turn(&mut cursor, &mut items, 1, at(1));
        }
        items
    };
    for (spread, of) in [(0, &c), (1, &other)] {
        let (items, pendings) = (met(spread), store.pendings(spread, |_| true, at(1)));
        assert_eq!((items.len(), pendings.len(), store.slot(spread, slot).entries), (301, 1, 301));
        assert!(items.iter().map(|item| &item.key).chain([&pendings[0].0]).all(|key| key.collection == of.id()));
    }
    let mut cursor = SlotCursor::new(0, slot);
    while !cursor.is_at_end() {
        store.clear_turn(&mut cursor, 1, at(1), |_| true);
    }
    assert_eq!((met(0).len(), met(1).len()), (0, 301));
    assert_eq!([0, 1].map(|spread| store.pendings(spread, |_| true, at(1)).len()), [0, 1]);
    assert_eq!([0, 1].map(|spread| store.slot(spread, slot).entries), [0, 301]);
}

/// A token that a read leaves where nothing is has no place in the index while it is pending.
#[test]
fn a_pending_token_is_met_and_cleared_where_nothing_else_is() {
    let store = store(16 << 20);
    let (c, name) = (array(&store, "a"), name(3));
    let leave = || {
        let mut entry = store.entry(&c, &name, at(1));
        let version = entry.take_version(0);
        entry.prepare_remove(version, 0, Some(Fence { lock: [3; 16], grant: 1 })).expect("none is pending");
    };
    leave();
    let key = store.key(&c, &name);
    assert_eq!(all(&store, key.slot()), [SlotItem { key: key.clone(), version: 0 }]);
    assert_eq!(all(&store, (key.slot() + 1) % SLOTS), []);
    let mut cursor = SlotCursor::new(0, key.slot());
    while !cursor.is_at_end() {
        store.clear_turn(&mut cursor, 100, at(1), |_| true);
    }
    assert!(store.pendings(0, |_| true, at(1)).is_empty());
    leave();
    store.clear_slots(0, [key.slot()], at(1));
    assert!(store.pendings(0, |_| true, at(1)).is_empty());
}

#[test]
fn a_slot_that_is_cleared_has_nothing_and_the_others_have_all() {
    let store = store(16 << 20);
    let c = array(&store, "a");
    let d = store.create("sorted", Spec { ordered: true, ..spec("ram:1") }).expect("new");
    let slot = store.key(&c, b"0").slot();
    for i in 0..500 {
        put(&store, &c, &name(i), &value(i, 100), at(1)).expect("fits");
        put(&store, &c, (i * SLOTS as u64 + 1).to_string().as_bytes(), b"next", at(1)).expect("fits");
    }
    let in_slot: Vec<_> = (0u64..).filter(|i| store.key(&d, &i.to_le_bytes()).slot() == slot).take(3).collect();
    put(&store, &d, &in_slot[0].to_le_bytes(), &value(1, 70_000), at(1)).expect("fits");
    for (i, key) in [(0, name(1)), (1, name(2)), (2, name(10_000))] {
        let mut entry = store.entry(&c, &key, at(1));
        let version = entry.take_version(0);
        let base = entry.committed();
        match i {
            0 => entry.prepare_remove(version, base, None).expect("none is pending"),
            _ => entry.prepare(version, base, &NewObject::of(Given::Small(b"v", None))).expect("fits"),
        }
    }
    let new = NewObject::of(Given::Small(b"v", None));
    store.entry(&d, &in_slot[1].to_le_bytes(), at(1)).prepare(1 << 60, 0, &new).expect("fits");
    assert_eq!((all(&store, slot).len(), store.pendings(0, |_| true, at(1)).len()), (503, 4));
    let mut cursor = SlotCursor::new(0, slot);
    while !cursor.is_at_end() {
        store.clear_turn(&mut cursor, 100, at(1), |_| true);
    }
    assert_eq!((all(&store, slot).len(), store.slot(0, slot).entries), (0, 0));
    assert!(store.pendings(0, |_| true, at(1)).is_empty());
    assert_eq!((store.counts(&c).objects, store.counts(&d).objects, store.counts(&d).bytes), (500, 0, 0));
    assert!(store.list(&d, b"", None, 9, at(1)).is_empty());
    assert_eq!(all(&store, (slot + 1) % SLOTS).len(), 500);
    assert!((0..500).all(|i| get(&store, &c, &name(i), at(1)).is_none()));
}
