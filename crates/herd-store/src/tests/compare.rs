//! Sums of slots, and digests of a slot's objects.

use super::*;
use std::collections::BTreeMap;

fn sums(store: &Store, budget: usize) -> BTreeMap<u16, SlotSum> {
    let (mut cursor, mut sums) = (SumCursor::default(), BTreeMap::new());
    while store.sum_turn(0, &mut cursor, &mut sums, budget, at(1)) {}
    sums
}

fn digests(store: &Store, slot: usize) -> Vec<SlotDigest> {
    let (mut cursor, mut items) = (SlotCursor::new(0, slot), Vec::new());
    while let Some(mark) = cursor.mark() {
        cursor = SlotCursor::at_mark(0, slot, mark);
        store.digest_turn(&mut cursor, &mut items, 1, at(1));
    }
    items
}

fn filled(memory_bytes: u64, order: impl Iterator<Item = u32>) -> (Arc<Store>, Collection) {
    let store = store(memory_bytes);
    let c = store.create("c", spec("ram:1")).expect("new");
    for i in order {
        let name = i.to_le_bytes();
        let mut entry = store.entry(&c, &name, at(1));
        let version = 1 << 60 | u64::from(i);
        entry.prepare(version, 0, &NewObject::of(Given::Small(b"value", None))).expect("fits");
        entry.commit(version);
    }
    (store, c)
}

#[test]
fn the_same_objects_have_the_same_sums_whatever_the_order_and_the_shards() {
    let (small, large) = (filled(8 << 20, 0..5_000).0, filled(64 << 20, (0..5_000).rev()).0);
    assert_ne!(small.shards.len(), large.shards.len());
    let all = sums(&small, 1);
    assert_eq!(all, sums(&large, 1000));
    assert_eq!(all.values().map(|sum| sum.objects).sum::<u64>(), 5_000);
    for (slot, sum) in all.into_iter().take(100) {
        let (a, b) = (digests(&small, slot.into()), digests(&large, slot.into()));
        assert_eq!(a, b);
        let added = a.iter().fold(0u128, |added, item| added.wrapping_add(item.digest));
        assert_eq!((a.len() as u64, added), (sum.objects, sum.sum));
    }
}

/// The sum of the one object there is, and that while it was only prepared.
fn sum_of(new: &NewObject<'_>, version: u64) -> (SlotSum, Option<SlotSum>) {
    let store = store(8 << 20);
    let c = store.create("c", spec("ram:1")).expect("new");
    store.entry(&c, b"a", at(1)).prepare(version, 0, new).expect("fits");
    let prepared = sums(&store, 64).into_values().next();
    store.entry(&c, b"a", at(1)).commit(version);
    store.get(&c, b"a", at(5), |_| ());
    (sums(&store, 64).into_values().next().expect("an object"), prepared)
}

/// What a copy may not have otherwise changes the sum of its slot; what it may does not.
#[test]
fn whatever_a_copy_must_have_alike_changes_the_sum() {
    let plain = || NewObject::of(Given::Small(b"value", None));
    let memcached = |cas, stale| herd_core::entry::Memcached { cas, stale, token_sent: false };
    let shown = |grant| NewObject { fence: Some(core_entry::Token { lock: [1; 16], grant }), ..plain() };
    let kinds = [
        plain(),
        NewObject::of(Given::Small(b"other", None)),
        NewObject { flags: 7, ..plain() },
        NewObject { attributes: b"\x01\x01\0a", ..plain() },
        NewObject { expires_ms: 1 << 50, ..plain() },
        NewObject { memcached: memcached(5, false), ..plain() },
        NewObject { memcached: memcached(5, true), ..plain() },
        shown(1),
        shown(2),
    ];
    let version = 1 << 60;
    let mut sums: Vec<u128> = kinds.iter().map(|new| sum_of(new, version).0.sum).collect();
    sums.push(sum_of(&plain(), version + 1).0.sum);
    let distinct: std::collections::BTreeSet<u128> = sums.iter().copied().collect();
    assert_eq!(distinct.len(), sums.len());
    assert_eq!(sum_of(&plain(), version).1, None, "what is prepared does not count");
    let later = NewObject { expires_ms: 1 << 51, ..plain() };
    let (later, sooner) = (sum_of(&later, version).0, sum_of(&kinds[4], version).0);
    assert_eq!(later.sum, sums[4], "each node has its own clock");
    assert_eq!((later.left_ms - sooner.left_ms, later.ending, sooner.ending), (1 << 50, 1, 1), "which is told beside");
    assert_eq!((sum_of(&plain(), version).0.ending, sum_of(&plain(), version).0.left_ms), (0, 0));
}
