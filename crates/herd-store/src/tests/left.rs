//! Tokens that objects were shown, and leave behind.

use super::*;
use herd_core::entry::Fence;
use herd_core::limits::LEFT_FENCE_MS;

fn fence(grant: u64) -> Option<Fence> {
    Some(Fence { lock: [3; 16], grant })
}

fn left(store: &Store, c: &Collection, now_ms: u64) -> Option<Fence> {
    store.entry(c, b"n", at(now_ms)).left()
}

#[test]
fn a_token_lies_with_its_object_and_stays_for_an_hour_when_that_goes() {
    let store = store(8 << 20);
    let c = store.create("r", spec("ram:1")).expect("new");
    let empty = store.memory().1;
    let new = NewObject { fence: fence(5), ..NewObject::of(Given::Small(b"v", None)) };
    store.entry(&c, b"n", at(1)).put(&new).expect("fits");
    assert_eq!(store.entry(&c, b"n", at(1)).found().expect("there").fence, fence(5));
    store.entry(&c, b"n", at(1)).remove(fence(6));
    assert_eq!(left(&store, &c, 1), fence(6));
    assert_eq!(left(&store, &c, LEFT_FENCE_MS), fence(6));
    assert_eq!(left(&store, &c, 1 + LEFT_FENCE_MS), None);
    // An object that is put keeps its own; what is over is forgotten.
    store.entry(&c, b"n", at(2)).put(&NewObject::of(Given::Small(b"v", None))).expect("fits");
    assert_eq!(left(&store, &c, 2), None);
    store.entry(&c, b"n", at(3)).remove(fence(7));
    upkeep(&store, at(4 + LEFT_FENCE_MS));
    store.destroy(&c);
    upkeep(&store, at(5 + LEFT_FENCE_MS));
    assert_eq!(store.memory().1, empty, "everything is given back");
}

#[test]
fn an_object_that_expires_leaves_its_token_and_a_flush_takes_it() {
    let store = store(8 << 20);
    let c = store.create("r", spec("ram:1")).expect("new");
    for (seen, swept) in [(true, false), (false, true)] {
        let new = NewObject { fence: fence(5), expires_ms: 10, ..NewObject::of(Given::Small(b"v", None)) };
        store.entry(&c, b"n", at(1)).put(&new).expect("fits");
        if swept {
            upkeep(&store, at(2_000));
        }
        assert_eq!(left(&store, &c, 2_000), fence(5), "seen {seen}");
        store.flush(&c, None);
        assert_eq!(left(&store, &c, 2_000), None);
        assert_eq!(get(&store, &c, b"n", at(2_000)), None);
    }
}

/// So nobody can keep others from removing what a lock guards.
#[test]
fn beyond_the_bound_the_tokens_that_gets_left_go_first_and_then_the_oldest() {
    let store = store(8 << 20);
    let c = store.create("r", spec("ram:1")).expect("new");
    let name = |kind: &str, i: u64| format!("{kind}{i}").into_bytes();
    let is_left = |name: &[u8]| store.entry(&c, name, at(1)).left().is_some();
    let remove = |i: u64| {
        let name = name("removed", i);
        put(&store, &c, &name, b"v", at(1)).expect("fits");
        assert!(store.entry(&c, &name, at(1)).remove(fence(i)).is_some());
    };
    let show = |i: u64| store.entry(&c, &name("shown", i), at(1)).leave(Fence { lock: [3; 16], grant: i });
    let most = 8 << 20 >> 6;
    let base = store.memory().1;
    (0..10).for_each(remove);
    (0..2_000).for_each(show);
    assert!((0..10).all(|i| is_left(&name("removed", i))), "what gets left goes first");
    assert!(!is_left(&name("shown", 0)) && is_left(&name("shown", 1_999)), "the oldest of it");
    (10..200).for_each(remove);
    assert!((0..200).all(|i| is_left(&name("removed", i))));
    (200..2_000).for_each(remove);
    assert!(!(0..2_000).any(|i| is_left(&name("shown", i))));
    assert!(!is_left(&name("removed", 0)) && is_left(&name("removed", 1_999)));
    let kept = (0..2_000).filter(|i| is_left(&name("removed", *i))).count();
    (2_000..4_000).for_each(show);
    let still = (0..2_000).filter(|i| is_left(&name("removed", *i))).count();
    assert!(still + 8 >= kept, "gets of nothing took {} of {kept} tokens of removed objects", kept - still);
    assert!(store.memory().1 - base < most + (1 << 20), "they are bounded");
}

/// What an object left is not of less worth because a get of nothing shows a later token there.
#[test]
fn a_token_that_is_shown_where_one_was_left_stays_as_long_as_that() {
    let store = store(8 << 20);
    let c = store.create("r", spec("ram:1")).expect("new");
    put(&store, &c, b"n", b"v", at(1)).expect("fits");
    store.entry(&c, b"n", at(1)).remove(fence(1));
    store.entry(&c, b"n", at(1)).leave(Fence { lock: [3; 16], grant: 2 });
    for i in 0..2_000u64 {
        store.entry(&c, &i.to_le_bytes(), at(1)).leave(Fence { lock: [3; 16], grant: i });
    }
    assert_eq!(left(&store, &c, 1), fence(2));
}

#[test]
fn tokens_that_expired_objects_leave_are_bounded_the_oldest_goes_first() {
    let store = store(8 << 20);
    let c = store.create("r", spec("ram:1")).expect("new");
    let (mut highest, empty) = (0, store.memory().1);
    for round in 0..40u64 {
        let now_ms = 1 + round * 1_000;
        for i in 0..4_000u64 {
            let name = (round * 4_000 + i).to_le_bytes();
            let new = NewObject { fence: fence(i), expires_ms: now_ms + 10, ..NewObject::of(Given::Small(b"v", None)) };
            store.entry(&c, &name, at(now_ms)).put(&new).expect("expired objects make room");
        }
        upkeep(&store, at(now_ms + 20_000_000));
        highest = highest.max(store.memory().1);
    }
    assert!(highest < 8 << 20);
    store.destroy(&c);
    upkeep(&store, at(30_000_000));
    assert!(store.memory().1 - empty < 1 << 20, "the index only");
}
