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
    store.entry(&c, b"n", at(1)).remove(fence(6)).expect("room to remember");
    assert_eq!(left(&store, &c, 1), fence(6));
    assert_eq!(left(&store, &c, LEFT_FENCE_MS), fence(6));
    assert_eq!(left(&store, &c, 1 + LEFT_FENCE_MS), None);
    // An object that is put keeps its own; what is over is forgotten.
    store.entry(&c, b"n", at(2)).put(&NewObject::of(Given::Small(b"v", None))).expect("fits");
    assert_eq!(left(&store, &c, 2), None);
    store.entry(&c, b"n", at(3)).remove(fence(7)).expect("room to remember");
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

#[test]
fn more_tokens_than_may_be_left_are_refused_and_the_object_stays() {
    let store = store(8 << 20);
    let c = store.create("r", spec("ram:1")).expect("new");
    let mut refused = None;
    for i in 0..20_000u64 {
        let name = i.to_le_bytes();
        store.entry(&c, &name, at(1)).put(&NewObject::of(Given::Small(b"v", None))).expect("fits");
        if let Err(error) = store.entry(&c, &name, at(1)).remove(fence(i)) {
            refused = Some((name, error.kind));
            break;
        }
    }
    let (name, kind) = refused.expect("they are bounded");
    assert_eq!(kind, herd_core::ErrorKind::Full);
    assert_eq!(get(&store, &c, &name, at(1)), Some(b"v".to_vec()));
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
