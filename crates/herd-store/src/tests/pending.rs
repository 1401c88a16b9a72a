//! Writes that are prepared, committed and dropped.

use super::*;
use herd_core::entry::Fence;
use herd_core::replica::Pending;

fn small(value: &[u8]) -> NewObject<'_> {
    NewObject::of(Given::Small(value, None))
}

fn pending(version: u64, base: u64, removes: bool) -> Option<Pending> {
    Some(Pending { version, base, removes })
}

#[test]
fn a_pending_object_is_found_by_nobody_until_it_is_committed() {
    let store = store(8 << 20);
    for ordered in [false, true] {
        let c = store.create(&format!("{ordered}"), Spec { ordered, ..spec("ram:1") }).expect("new");
        let first = put(&store, &c, b"n", b"old", at(1)).expect("fits");
        for (name, base) in [(&b"n"[..], first), (b"new", 0)] {
            let mut entry = store.entry(&c, name, at(1));
            let version = entry.take_version(0);
            entry.prepare(version, base, &small(b"a longer value")).expect("fits");
            assert_eq!((entry.pending(), entry.committed()), (pending(version, base, false), base));
            assert_eq!(bytes_of(&entry.found_pending().expect("it is kept")), b"a longer value");
            assert!(!entry.is_clean() && entry.found().is_some() == (base != 0));
            let again = entry.prepare(version + 1, base, &small(b"x")).err().map(|error| error.kind);
            assert_eq!(again, Some(ErrorKind::Busy));
            drop(entry);
            assert_eq!(get(&store, &c, name, at(1)), (base != 0).then(|| b"old".to_vec()));
            assert_eq!((store.counts(&c).objects, store.list(&c, b"", None, 9, at(1)).len()), (1, 1));
            let mut entry = store.entry(&c, name, at(1));
            assert!(!entry.commit(version + 1), "another version");
            assert!(entry.commit(version) && !entry.commit(version) && !entry.abort(version), "once");
            assert_eq!((entry.pending(), entry.committed(), entry.is_clean()), (None, version, true));
            drop(entry);
            assert_eq!(get(&store, &c, name, at(1)), Some(b"a longer value".to_vec()));
            store.entry(&c, b"new", at(1)).remove(None);
        }
        assert_eq!(store.counts(&c).objects, 1);
    }
}

#[test]
fn a_write_that_is_dropped_leaves_everything_as_it_was() {
    let store = store(8 << 20);
    let c = store.create("r", Spec { ordered: true, ..spec("ram:1") }).expect("new");
    put(&store, &c, b"new", b"old", at(1)).expect("fits");
    store.entry(&c, b"new", at(1)).remove(None);
    let first = put(&store, &c, b"n", b"old", at(1)).expect("fits");
    let (counts, used) = (store.counts(&c), store.memory().1);
    for (name, base) in [(&b"n"[..], first), (b"new", 0)] {
        let large = Arc::new(store.body_of(&c, name, &[&value(1, 300_000)], at(1)).expect("fits"));
        let mut entry = store.entry(&c, name, at(1));
        entry.prepare(first + 10, base, &NewObject::of(Given::Large(large.clone()))).expect("fits");
        assert!(entry.abort(first + 10));
        assert_eq!((entry.pending(), entry.committed(), entry.is_clean()), (None, base, true));
        entry.prepare_remove(first + 20, base, None).expect("none is pending");
        assert_eq!(entry.pending(), pending(first + 20, base, true));
        assert!(!entry.is_clean() && entry.found_pending().is_none() && entry.abort(first + 20));
        drop((entry, large));
    }
    assert_eq!(store.counts(&c), counts);
    // Lists of what is pending are charged in steps, and given back late.
    assert!(store.memory().1 <= used + 2 * 4096, "{} bytes, {used} before", store.memory().1);
    assert_eq!(store.list(&c, b"", None, 9, at(1)).len(), 1);
    let next = put(&store, &c, b"n", b"v", at(1)).expect("fits");
    assert_eq!(next, first + 21, "what was dropped is not used again");
    assert_eq!(store.slot(0, store.key(&c, b"n").slot()).version, next);
}

#[test]
fn a_removal_that_is_committed_leaves_its_token_behind() {
    let store = store(8 << 20);
    let c = store.create("r", spec("ram:1")).expect("new");
    let first = put(&store, &c, b"n", b"v", at(1)).expect("fits");
    let fence = Fence { lock: [3; 16], grant: 5 };
    let mut entry = store.entry(&c, b"n", at(1));
    entry.prepare_remove(first + 1, first, Some(fence)).expect("none is pending");
    assert_eq!((entry.left(), entry.leaves()), (None, Some(fence)));
    assert!(entry.commit(first + 1));
    assert_eq!((entry.committed(), entry.left(), entry.pending()), (0, Some(fence), None));
}

/// A primary that has the room aborts nothing for a member that has not: what needs none is never refused.
#[test]
fn a_removal_is_prepared_in_full_memory_and_a_commit_needs_no_room() {
    let store = store(8 << 20);
    let c = store.create("r", spec("ram:1")).expect("new");
    let name = |i: u64| i.to_le_bytes();
    let mut prepared = Vec::new();
    for i in 0..40_000 {
        let key = name(i);
        let mut entry = store.entry(&c, &key, at(1));
        let version = entry.take_version(0);
        match entry.prepare(version, 0, &small(&value(i, 300))) {
            Ok(()) => prepared.push((i, version)),
            Err(error) => assert_eq!(error.kind, ErrorKind::Full),
        }
    }
    assert!(prepared.len() > 5_000 && prepared.len() < 40_000, "{}", prepared.len());
    for (i, version) in &prepared {
        assert!(store.entry(&c, &name(*i), at(1)).commit(*version));
    }
    assert_eq!(store.counts(&c).objects as usize, prepared.len());
    for (i, version) in &prepared {
        assert_eq!(get(&store, &c, &name(*i), at(1)), Some(value(*i, 300)));
        let (key, next) = (name(*i), version + 1_000_000);
        let mut entry = store.entry(&c, &key, at(1));
        entry.prepare_remove(next, *version, None).expect("it needs no room");
        assert!(entry.commit(next));
    }
    assert_eq!((store.counts(&c).objects, store.counts(&c).bytes), (0, 0));
}

#[test]
fn a_quota_is_taken_when_a_write_is_prepared_and_what_it_replaces_counts_for_it() {
    let store = store(64 << 20);
    let c = store.create("r", Spec { quota_bytes: Some(100_000), ..spec("ram:1") }).expect("new");
    let first = put(&store, &c, b"large", &value(1, 60_000), at(1)).expect("fits");
    let large = Arc::new(store.body_of(&c, b"large", &[&value(2, 60_000)], at(1)).expect("fits"));
    let mut entry = store.entry(&c, b"large", at(1));
    entry.prepare(first + 1, first, &NewObject::of(Given::Large(large.clone()))).expect("it replaces itself");
    drop((entry, large));
    let refused = put(&store, &c, b"other", &value(3, 3_000), at(1)).err().map(|error| error.kind);
    assert_eq!(refused, Some(ErrorKind::Quota), "while both are there");
    assert!(store.entry(&c, b"large", at(1)).commit(first + 1));
    put(&store, &c, b"other", &value(3, 3_000), at(1)).expect("fits");
    assert_eq!(get(&store, &c, b"large", at(1)), Some(value(2, 60_000)));
}
