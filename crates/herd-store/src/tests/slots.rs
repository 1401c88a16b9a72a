//! What a node is to a slot, and what that changes.

use super::*;
use herd_core::entry::COUNTER_BITS;

/// Where the index and the slots disagree, or `entries` is not what the index holds.
fn check_entries(store: &Store) {
    let mut all_shared = 0;
    for at in 0..store.shards.len() {
        let shard = store.lock(at);
        let counted: usize = shard.slots.iter().map(|slot| slot.entries as usize).sum();
        assert_eq!(counted, shard.index.len());
        let shared = shard.slots.iter().filter(|slot| slot.seat != Seat::Alone).count();
        assert_eq!(shared, shard.shared_slots);
        all_shared += shared;
    }
    let counted: Vec<usize> = store.shared_slots.iter().map(|count| count.load(Relaxed)).collect();
    assert_eq!(counted.iter().sum::<usize>(), all_shared);
    assert_eq!(store.is_alone_with_all(), all_shared == 0);
}

fn slot_of(store: &Store, c: &Collection, name: &[u8]) -> usize {
    store.entry(c, name, at(1)).slot()
}

fn got(store: &Store, c: &Collection, name: &[u8], now: Now) -> Got<Vec<u8>> {
    store.get(c, name, now, bytes_of)
}

#[test]
fn a_get_is_served_where_the_node_is_alone_and_told_where_it_is_not() {
    let store = store(8 << 20);
    let c = store.create("r", spec("ram:1")).expect("new");
    put(&store, &c, b"n", b"v", at(1)).expect("fits");
    let slot = slot_of(&store, &c, b"n");
    let other = (0u32..).map(u32::to_le_bytes).find(|name| slot_of(&store, &c, name) != slot).expect("endless");
    put(&store, &c, &other, b"w", at(1)).expect("fits");
    let counts = store.counts(&c);
    for seat in [Seat::Led, Seat::Held, Seat::Away] {
        set_seat(&store, slot, seat, 0);
        assert_eq!(got(&store, &c, b"n", at(1)), Got::Away { slot, seat });
        assert_eq!(store.entry(&c, b"n", at(1)).seat(), seat);
        assert_eq!(store.counts(&c), counts, "it is not counted");
    }
    assert_eq!(got(&store, &c, &other, at(1)), Got::Hit(b"w".to_vec()));
    set_seat(&store, slot, Seat::Alone, 0);
    assert_eq!(got(&store, &c, b"n", at(1)), Got::Hit(b"v".to_vec()));
    check_entries(&store);
}

#[test]
fn versions_of_a_slot_go_on_above_where_they_are_set_and_never_fall() {
    let store = store(8 << 20);
    let c = store.create("r", spec("ram:1")).expect("new");
    let first = put(&store, &c, b"n", b"v", at(1)).expect("fits");
    let slot = slot_of(&store, &c, b"n");
    let floor = ((first >> COUNTER_BITS) + 1) << COUNTER_BITS;
    set_seat(&store, slot, Seat::Led, floor);
    set_seat(&store, slot, Seat::Alone, first);
    assert_eq!(put(&store, &c, b"n", b"w", at(1)).expect("fits"), floor + 1);
}

/// A node that has all of one spread group may have nothing of another.
#[test]
fn each_spread_group_has_slots_of_its_own() {
    let store = store(8 << 20);
    let (kept, cache) =
        (store.create("k", spec("ram:1")).expect("new"), store.create("c", spec("cache")).expect("new"));
    assert_eq!([kept.id(), cache.id()].map(|id| id.spread_group()), [0, 1]);
    let put_both = |i: u64| [&kept, &cache].map(|c| put(&store, c, &i.to_le_bytes(), b"v", at(1)).expect("fits"));
    (0..1_000).for_each(|i| assert!(put_both(i).iter().all(|version| *version > 0)));
    let floor = 1 << 62;
    store.set_seats(1, |_| (Seat::Away, floor));
    assert_eq!([&kept, &cache].map(|c| store.is_alone(c)), [true, false]);
    for i in 0..1_000u64 {
        let name = i.to_le_bytes();
        assert_eq!(got(&store, &kept, &name, at(1)), Got::Hit(b"v".to_vec()));
        assert!(matches!(got(&store, &cache, &name, at(1)), Got::Away { seat: Seat::Away, .. }));
        assert_eq!([&kept, &cache].map(|c| store.seat(c, &name)), [Seat::Alone, Seat::Away]);
    }
    let [of_kept, of_cache] = put_both(7);
    assert!(of_kept < floor && of_cache > floor);
    check_entries(&store);
    // One that nobody met before, with slots that were never used.
    assert_eq!((store.slot(9, 5).entries, store.slot(9, 5).seat), (0, Seat::Alone));
    store.set_seats(9, |slot| (if slot == 5 { Seat::Led } else { Seat::Alone }, floor));
    assert_eq!((store.slot(9, 5).seat, store.slot(0, 5).seat), (Seat::Led, Seat::Alone));
    store.set_seats(1, |_| (Seat::Alone, 0));
    assert!(store.is_alone(&cache) && !store.is_alone_with_all());
    store.set_seats(9, |_| (Seat::Alone, 0));
    check_entries(&store);
    (0..1_000u64).for_each(|i| assert_eq!(got(&store, &cache, &i.to_le_bytes(), at(1)), Got::Hit(b"v".to_vec())));
}

/// Others have it too: the node that decides removes it, as by any other operation.
#[test]
fn what_is_shared_does_not_expire_by_itself_and_is_not_found_either() {
    let store = store(8 << 20);
    let c = store.create("r", spec("ram:1")).expect("new");
    let some = NewObject { expires_ms: 500, ..NewObject::of(Given::Small(b"v", None)) };
    let version = store.entry(&c, b"n", at(1)).put(&some).expect("fits");
    store.set_seats(0, |_| (Seat::Led, 0));
    upkeep(&store, at(10_000));
    assert_eq!((store.counts(&c).objects, store.counts(&c).expired), (1, 0));
    for i in 0..20_000u64 {
        store.entry(&c, &i.to_le_bytes(), at(1)).put(&some).expect("fits");
    }
    // They are not looked at again and again.
    upkeep(&store, at(11_000));
    assert_eq!((store.counts(&c).objects, store.maintain(at(11_000), 1)), (20_001, false));
    {
        let before = store.entry(&c, b"n", at(499));
        assert_eq!((before.version(), before.is_due()), (Some(version), false));
    }
    let mut entry = store.entry(&c, b"n", at(10_000));
    assert!(entry.is_due() && entry.found().is_none() && entry.version().is_none());
    assert!(entry.remove(None).is_some_and(|removal| removal > version));
    drop(entry);
    assert_eq!(store.counts(&c).objects, 20_000);
    store.set_seats(0, |_| (Seat::Alone, 0));
    upkeep(&store, at(13_000));
    assert_eq!(store.counts(&c).objects, 0, "what nobody else has goes");
    check_entries(&store);
}

#[test]
fn what_is_shared_is_not_evicted_and_the_rest_is() {
    let store = store(8 << 20);
    let c = store.create("c", spec("cache")).expect("new");
    let name = |i: u64| i.to_le_bytes();
    let is_shared = |slot: usize| slot.is_multiple_of(4);
    store.set_seats(0, |slot| (if is_shared(slot) { Seat::Led } else { Seat::Alone }, 0));
    let mut kept = Vec::new();
    for i in 0..60_000u64 {
        let shared = is_shared(slot_of(&store, &c, &name(i)));
        if !shared || kept.len() < 1_500 {
            put(&store, &c, &name(i), &value(i, 500), at(1)).expect("the rest is evicted");
            kept.extend(shared.then_some(i));
        }
    }
    assert!(store.counts(&c).evictions > 30_000);
    for i in kept {
        let entry_name = name(i);
        let entry = store.entry(&c, &entry_name, at(1));
        assert_eq!(bytes_of(&entry.found().expect("it is kept")), value(i, 500));
    }
    check_entries(&store);
}

#[test]
fn a_cache_of_which_nothing_may_go_refuses_and_comes_to_an_end() {
    let store = store(8 << 20);
    let c = store.create("c", spec("cache")).expect("new");
    store.set_seats(0, |_| (Seat::Led, 0));
    let refused = (0u64..).find_map(|i| put(&store, &c, &i.to_le_bytes(), &value(i, 500), at(1)).err());
    assert_eq!(refused.map(|error| error.kind), Some(ErrorKind::Full));
    let counts = store.counts(&c);
    assert_eq!((counts.evictions, counts.expired, counts.objects), (0, 0, counts.puts));
    for i in 0..counts.objects {
        let name = i.to_le_bytes();
        assert!(store.entry(&c, &name, at(1)).found().is_some(), "object {i}");
    }
    store.set_seats(0, |_| (Seat::Alone, 0));
    put(&store, &c, b"n", &value(1, 500), at(1)).expect("evicts");
}
