//! What is counted against the budget, and when it is given back.

use super::*;
use herd_core::entry::Fence;

/// Memory in use once upkeep has nothing left to do.
fn settled(store: &Store, now: Now) -> u64 {
    (0..4).for_each(|_| upkeep(store, now));
    store.memory().1
}

#[test]
fn names_kept_in_order_are_counted_and_given_back() {
    let store = store(64 << 20);
    let plain = store.create("plain", spec("ram:1")).expect("new");
    let sorted = store.create("sorted", Spec { ordered: true, ..spec("ram:1") }).expect("new");
    let name = |i: u64| format!("{i:0900}").into_bytes();
    let fill = |c: &Collection| {
        let before = store.memory().1;
        for i in 0..5_000 {
            put(&store, c, &name(i), b"v", at(1)).expect("fits");
        }
        store.memory().1 - before
    };
    let (of_plain, of_sorted) = (fill(&plain), fill(&sorted));
    assert!(of_sorted > of_plain + 5_000 * 900, "{of_sorted} with names in order, {of_plain} without");
    assert_eq!(store.counts(&sorted).bytes - store.counts(&plain).bytes, 5_000 * 948, "quotas see them");
    for i in 0..2_000 {
        store.entry(&sorted, &name(i), at(1)).remove(None);
    }
    assert_eq!(store.counts(&sorted).bytes, 3_000 * (928 + 948));
    store.flush(&plain, None);
    store.flush(&sorted, None);
    assert_eq!(store.counts(&sorted).bytes, 0);
    let flushed = settled(&store, at(1));
    assert!(flushed < 2 << 20, "{flushed} are held after the flush");
}

#[test]
fn what_is_written_again_and_again_with_copies_elsewhere_stays_where_it_is() {
    let store = store(64 << 20);
    let c = store.create("c", spec("ram:1")).expect("new");
    let write = |i: u64, value: &[u8]| {
        let name = i.to_le_bytes();
        let value = Given::Small(value, None);
        let new =
            NewObject { value, flags: 0, expires_ms: 0, attributes: &[], memcached: Default::default(), fence: None };
        let mut entry = store.entry(&c, &name, at(1));
        let (base, version) = (entry.committed(), entry.take_version(0));
        entry.prepare(version, base, &new).expect("there is room");
        assert!(entry.commit(version));
    };
    (0..3).for_each(|_| (0..500).for_each(|i| write(i, &[7; 300])));
    let used = store.memory().1;
    for round in 0..200u64 {
        (0..500).for_each(|i| write(i * 77 % 500, &[round as u8; 300]));
    }
    assert_eq!(store.memory().1, used, "no page more");
    let values = |store: &Store| {
        let found =
            |i: u64| store.get(&c, &i.to_le_bytes(), at(1), |found| (found.head.size_bytes, found.head.version > 0));
        (0..500).filter(|i| found(*i) == Got::Hit((300, true))).count()
    };
    assert_eq!(values(&store), 500);
    // What is as long takes the place of another, and what is not does not.
    for round in 0..40 {
        (0..500).for_each(|i| write(i, &vec![1; 200 + (round + i as usize) % 5 * 40]));
        let all = (0..500).all(|i: u64| {
            let size = 200 + (round + i as usize) % 5 * 40;
            store.get(&c, &i.to_le_bytes(), at(1), |found| found.head.size_bytes as usize) == Got::Hit(size)
        });
        assert!(all, "round {round}");
    }
}

#[test]
fn names_kept_in_order_leave_with_a_flush_that_meets_a_put() {
    let store = store(64 << 20);
    let sorted = store.create("sorted", Spec { ordered: true, ..spec("ram:1") }).expect("new");
    let before = settled(&store, at(1));
    for i in 0..1_000u64 {
        let name = i.to_le_bytes();
        let mut entry = store.entry(&sorted, &name, at(1));
        store.flush(&sorted, None);
        entry.put(&NewObject::of(Given::Small(b"v", None))).expect("fits");
    }
    let after = settled(&store, at(1));
    assert!(after < before + 4_096, "names of no object are held: {after} after {before}");
}

#[test]
fn large_objects_that_went_are_given_back_on_an_idle_node() {
    let store = store(64 << 20);
    let base = store.memory().1;
    type Remove = fn(&Store, &Collection);
    let ways: [(&str, Remove); 3] = [
        ("removed", |store, c| store.destroy(c)),
        ("flushed", |store, c| store.flush(c, None)),
        ("expired", |_, _| ()),
    ];
    for (name, remove) in ways {
        let c = store.create(name, spec("ram:1")).expect("new");
        for i in 0..10u64 {
            let body = Arc::new(store.body_of(&c, b"n", &[&value(i, 3 << 20)], at(1)).expect("fits"));
            let new = NewObject { expires_ms: 5_000, ..NewObject::of(Given::Large(body)) };
            store.entry(&c, &i.to_le_bytes(), at(1)).put(&new).expect("fits");
        }
        assert!(store.memory().1 > base + (30 << 20));
        remove(&store, &c);
        let left = settled(&store, at(if name == "expired" { 6_000 } else { 1 }));
        assert!(left < base + (6 << 20), "{left} are held after they were {name}");
    }
}

/// A page in which nothing lives is given back by upkeep, without anybody who needs it.
#[test]
fn small_objects_that_expired_are_given_back_on_an_idle_node() {
    let store = store(32 << 20);
    let (mixed, cache) =
        (store.create("r", spec("ram:1")).expect("new"), store.create("c", spec("cache")).expect("new"));
    let some = |expires_ms| NewObject { expires_ms, ..NewObject::of(Given::Small(&[7; 100], None)) };
    for c in [&mixed, &cache] {
        for i in 0..10_000u64 {
            store.entry(c, &i.to_le_bytes(), at(1)).put(&some(0)).expect("fits");
        }
    }
    let before = settled(&store, at(1));
    for c in [&mixed, &cache] {
        for i in 10_000..50_000u64 {
            store.entry(c, &i.to_le_bytes(), at(1)).put(&some(300)).expect("fits");
        }
    }
    let full = store.memory().1;
    let after = settled(&store, at(2_000));
    assert_eq!(store.counts(&mixed).objects + store.counts(&cache).objects, 20_000);
    let open_pages = store.shards.len() as u64 * 4 * 64 * 1024;
    assert!(after < before + open_pages + (1 << 20), "{before} bytes before, {full} at most, {after} after");
    for c in [&mixed, &cache] {
        for i in 0..30_000u64 {
            let value = get(&store, c, &i.to_le_bytes(), at(2_000));
            assert_eq!(value, (i < 10_000).then(|| vec![7; 100]));
            put(&store, c, &i.to_le_bytes(), b"v", at(2_000)).expect("fits");
        }
    }
    store.flush(&mixed, None);
    store.flush(&cache, None);
    assert!(settled(&store, at(2_000)) < before);
}

#[test]
fn an_object_of_unknown_size_is_held_to_the_limit() {
    let config = Config {
        node: "n".into(),
        memory_bytes: 16 << 20,
        threads: 1,
        object_max_bytes: 1 << 20,
        hash_key: HashKey([3; 16]),
        start_ms: 1_800_000_000_000,
    };
    let store = Store::new(&config).expect("maps");
    let c = store.create("r", spec("ram:1")).expect("new");
    let mut exact = store.admit(&c, b"n", None).expect("admitted");
    exact.write(&value(1, 1 << 20), at(1)).expect("the limit itself is allowed");
    assert_eq!(exact.finish(at(1)).map(|body| body.len()).ok(), Some(1 << 20));
    let mut over = store.admit(&c, b"n", None).expect("admitted");
    while let Ok(room @ 1..) = over.reserve(256 << 10, at(1)) {
        over.writer.advance(room);
        assert!(over.writer.len() <= (1 << 20) + 1, "{} bytes were taken", over.writer.len());
    }
    assert_eq!(over.finish(at(1)).err().map(|error| error.kind), Some(ErrorKind::TooLarge));
}

#[test]
fn a_refused_put_does_not_look_for_memory_again_and_again() {
    let store = store(8 << 20);
    let c = store.create("r", spec("ram:1")).expect("new");
    let put_one = |i: u64, now| put(&store, &c, &i.to_le_bytes(), &value(i, 3_000), now);
    let held: Vec<u64> = (0..4_000).filter(|i| put_one(*i, at(1)).is_ok()).collect();
    let searches = || store.next_shard.load(Relaxed);
    let before = searches();
    for i in 5_000..5_100 {
        assert_eq!(put_one(i, at(1)).err().map(|error| error.kind), Some(ErrorKind::Full));
        assert!(store.admit(&c, b"n", None).expect("of unknown size").reserve(1 << 20, at(1)).is_err());
    }
    assert!(searches() - before < 4, "{} searches", searches() - before);
    // What was removed is found at once, what expires in time.
    for i in held.iter().step_by(2) {
        store.entry(&c, &i.to_le_bytes(), at(1)).remove(None);
    }
    let mut fits = (0..held.len() as u64 / 3).filter(|i| put_one(i + 10_000, at(1)).is_ok()).count();
    assert_eq!(fits, held.len() / 3);
    store.flush(&c, Some(500));
    fits = (0..1_000).filter(|i| put_one(i + 20_000, at(499)).is_ok()).count();
    assert!(fits < 1_000, "memory is full");
    fits = (0..1_000).filter(|i| put_one(i + 20_000, at(500)).is_ok()).count();
    assert_eq!(fits, 1_000, "all was flushed");
}

#[test]
fn a_collection_that_evicts_is_not_said_not_to_where_nothing_is_left_to_evict() {
    let store = store(8 << 20);
    let kept = store.create("kept", spec("ram:1")).expect("new");
    let cache = store.create("cache", spec("cache")).expect("new");
    let (mut i, value) = (0u64, [7; 2_000]);
    let text = loop {
        i += 1;
        if let Err(error) = put(&store, &kept, &i.to_le_bytes(), &value, at(1)) {
            break error.text;
        }
    };
    assert!(text.contains("'kept' of class ram:1 does not evict"), "{text}");
    let refused = (0..100u64).find_map(|i| put(&store, &cache, &i.to_le_bytes(), &value, at(1)).err());
    let text = refused.expect("there is no memory for 100 of them").text;
    assert!(text.contains("'cache' of class cache has nothing left to evict"), "{text}");
}

#[test]
fn a_value_that_only_passes_goes_through_a_full_node_and_many_at_once_are_told_that_it_is_full() {
    let store = store(8 << 20);
    let c = store.create("kept", spec("ram:1")).expect("new");
    let (mut i, value) = (0u64, [7; 2_000]);
    while put(&store, &c, &i.to_le_bytes(), &value, at(1)).is_ok() {
        i += 1;
    }
    let pass = || {
        let mut upload = store.admit_passing(&c, b"far", Some(1 << 20))?;
        upload.write(&vec![1; 1 << 20], at(1))?;
        upload.finish(at(1))
    };
    let mut passing = Vec::new();
    let error = loop {
        match pass() {
            Ok(body) => passing.push(body),
            Err(error) => break error,
        }
    };
    assert!((4..=8).contains(&passing.len()), "{} MiB beyond what is kept", passing.len());
    assert!(error.kind == ErrorKind::Full && error.text.contains("does not pass there"), "{}", error.text);
    let more = |i: u64| put(&store, &c, &(i << 32).to_le_bytes(), &value, at(1)).is_err();
    assert!((1..500).any(more), "what is kept gets nothing of it, but for what is left of pages begun");
    drop(passing);
    assert!(store.memory().1 <= store.memory().0, "it is given back: {:?}", store.memory());
    (0..20).for_each(|_| drop(pass().expect("one after the other there is no end of them")));
}

#[test]
fn an_index_that_may_not_grow_refuses() {
    let store = store(8 << 20);
    for at in 0..store.shards.len() {
        store.lock(at).index.stop_growing();
    }
    let (ram, cache) = (store.create("r", spec("ram:1")).expect("new"), store.create("c", spec("cache")).expect("new"));
    let error = (0u64..1_000).find_map(|i| put(&store, &ram, &i.to_le_bytes(), b"v", at(1)).err());
    let error = error.expect("it is full");
    assert!(error.kind == ErrorKind::Full && error.text.contains("the index of node 'n' is full"), "{}", error.text);
    assert!((0u64..1_000).any(|i| put(&store, &cache, &i.to_le_bytes(), b"v", at(1)).is_err()), "no room for a cache");
    store.flush(&ram, None);
    upkeep(&store, at(1));
    for i in 0..1_000u64 {
        put(&store, &cache, &i.to_le_bytes(), b"v", at(1)).expect("a cache evicts for its index too");
    }
}

#[test]
fn what_is_replaced_does_not_count_against_a_quota_whatever_its_size() {
    let store = store(64 << 20);
    let quota = Spec { quota_bytes: Some(1 << 20), ..spec("ram:1") };
    let c = store.create("r", quota).expect("new");
    for round in 0..3 {
        put(&store, &c, b"large", &value(round, 700 << 10), at(1)).expect("it replaces itself");
        put(&store, &c, b"small", &value(round, 4_000), at(1)).expect("it replaces itself");
    }
    let refused = put(&store, &c, b"other", &value(1, 700 << 10), at(1)).err().map(|error| error.kind);
    assert_eq!(refused, Some(ErrorKind::Quota), "at its header");
    assert_eq!(get(&store, &c, b"large", at(1)), Some(value(2, 700 << 10)));
}

#[test]
fn a_quota_is_kept_by_threads_that_put_at_once() {
    const QUOTA: u64 = 32 << 10;
    let store = store(64 << 20);
    for round in 0..60 {
        let spec = Spec { quota_bytes: Some(QUOTA), ..spec("ram:1") };
        let c = store.create(&format!("c{round}"), spec).expect("new");
        std::thread::scope(|scope| {
            for t in 0..4u64 {
                let (store, c) = (&store, &c);
                scope.spawn(move || {
                    let size = 900 + t as usize * 100;
                    // More than fits: it ends full.
                    for i in 0..60u64 {
                        put(store, c, &(i + t * 1_000).to_le_bytes(), &value(i, size), at(1)).ok();
                    }
                });
            }
        });
        let held = store.counts(&c).bytes;
        assert!((QUOTA - 2_000..=QUOTA).contains(&held), "{held} bytes in a quota of {QUOTA}");
        assert_eq!(c.0.used_bytes(), held, "no claim is left");
        store.destroy(&c);
        upkeep(&store, at(1));
    }
}

#[test]
fn a_body_put_together_while_memory_is_short_has_the_right_bytes() {
    let store = store(8 << 20);
    let cache = store.create("c", spec("cache")).expect("new");
    let data = value(5, 300_000);
    let source = store.body_of(&cache, b"n", &[&data], at(1)).expect("fits");
    let mut fill = (0u64..).map(|i| put(&store, &cache, &i.to_le_bytes(), &[1; 1000], at(1)));
    fill.nth(8_000).expect("endless").expect("evicts");
    for i in 0..60u64 {
        fill.nth(300).expect("endless").expect("evicts");
        let skip = 1 + i * 997;
        let mut upload = store.admit(&cache, b"n", None).expect("admitted");
        upload.write(&data[..skip as usize], at(1)).expect("evicts");
        upload.copy(&source, 1000, 300_000, at(1)).expect("evicts");
        upload.zeros(100_000 + i, at(1)).expect("evicts");
        let body = upload.finish(at(1)).expect("evicts");
        let zeros = vec![0; 100_000 + i as usize];
        let wanted = [&data[..skip as usize], &data[1000..], &zeros].concat();
        assert!(bytes(&body) == wanted, "round {i}");
    }
}

#[test]
fn a_gap_takes_no_memory() {
    let store = store(32 << 20);
    let c = store.create("r", spec("ram:1")).expect("new");
    let before = store.memory().1;
    let len = (1 << 30) - 5;
    let mut upload = store.admit_change(&c, b"n", len, 10).expect("only what is changed needs memory");
    upload.write(b"begin", at(1)).expect("fits");
    upload.zeros(len - 10, at(1)).expect("fits");
    upload.write(b"endof", at(1)).expect("fits");
    let body = Arc::new(upload.finish(at(1)).expect("fits"));
    assert_eq!((body.len(), body.checksums().len()), (len, 16_384));
    for block in [0, 1, 7_000, 16_383] {
        let chunk = body.chunk(block * 65_536);
        assert_eq!(body.checksums()[block as usize], herd_core::checksum::crc32c(chunk));
        let ends = (chunk.starts_with(b"begin"), chunk.ends_with(b"endof"));
        assert_eq!(ends, (block == 0, block == 16_383));
        let count = chunk.iter().filter(|byte| **byte != 0).count();
        assert_eq!(count, if ends == (false, false) { 0 } else { 5 });
    }
    store.entry(&c, b"n", at(1)).put(&NewObject::of(Given::Large(body))).expect("fits");
    let taken = store.memory().1 - before;
    assert!(taken < 1 << 20, "{taken} bytes for a gap");
    assert!(store.counts(&c).bytes < 1 << 20);
    store.entry(&c, b"n", at(1)).remove(None);
    assert!(store.memory().1 - before < 130 << 10, "the shared block and a page of the log stay");
}

/// Its blocks are nothing, but the list of them is not: it is admitted like other bytes, and beyond the memory refused.
#[test]
fn gaps_stay_within_the_memory() {
    for (len, others) in [(32 << 30, 0), (1 << 30, 0), (1 << 30, 3_000)] {
        let config = Config {
            node: "n".into(),
            memory_bytes: 16 << 20,
            threads: 2,
            object_max_bytes: 1 << 40,
            hash_key: HashKey([3; 16]),
            start_ms: 1_800_000_000_000,
        };
        let store = Store::new(&config).expect("maps");
        let c = store.create("r", spec("ram:1")).expect("new");
        // Tokens, which no collection is counted for.
        (0..others)
            .for_each(|i: u64| store.entry(&c, &i.to_le_bytes(), at(1)).leave(Fence { lock: [1; 16], grant: i }));
        let gap = |i: u64| {
            let mut upload = store.admit_change(&c, &i.to_le_bytes(), len, 1)?;
            upload.zeros(len - 1, at(1))?;
            upload.write(b"x", at(1))?;
            let body = Arc::new(upload.finish(at(1))?);
            let (budget, used) = store.memory();
            assert!(used <= budget, "{used} bytes of {budget}");
            store.entry(&c, &i.to_le_bytes(), at(1)).put(&NewObject::of(Given::Large(body)))
        };
        let refused = (0..1_000).find_map(|i| gap(i).err()).expect("it is full");
        assert_eq!(refused.kind, ErrorKind::Full);
        let (budget, used) = store.memory();
        assert!(used > budget / 2 && used <= budget, "{used} bytes of {budget}");
        assert_eq!(store.unsettled().0, 0);
    }
}

#[test]
fn a_turn_of_upkeep_frees_a_bounded_part_of_what_was_flushed() {
    let store = store(64 << 20);
    let c = store.create("r", spec("ram:1")).expect("new");
    for i in 0..60_000u64 {
        put(&store, &c, &i.to_le_bytes(), &value(i, 60), at(1)).expect("fits");
    }
    for i in 0..20u64 {
        put(&store, &c, &(i + 100_000).to_le_bytes(), &value(i, 1 << 20), at(1)).expect("fits");
    }
    let base = store.memory().1;
    store.flush(&c, None);
    assert_eq!(store.memory().1, base, "a flush itself frees nothing");
    let mut left = base;
    let mut turns = 0;
    while store.maintain(at(1), 1_000) {
        let now = store.memory().1;
        assert!(left - now < (21 << 20) + (512 << 10), "{} bytes in one turn", left - now);
        (left, turns) = (now, turns + 1);
    }
    assert!(turns > 60_000 / (1_000 + 800), "{turns} turns");
    assert!(store.memory().1 < 3 << 20, "all but the index came back: {}", store.memory().1);
}

#[test]
fn upkeep_of_many_collections_takes_few_looks_a_turn_and_reaches_all() {
    let store = store(64 << 20);
    let all: Vec<_> = (0..1_000).map(|i| store.create(&format!("c{i}"), spec("ram:1")).expect("new")).collect();
    for (i, c) in all.iter().enumerate() {
        put(&store, c, &i.to_le_bytes(), b"v", at(1)).expect("fits");
    }
    all.iter().for_each(|c| store.flush(c, None));
    // A loop takes a turn at each tick, and more at once only while there is something to free.
    let ticks = (0..100).find(|_| {
        upkeep(&store, at(1));
        store.memory().1 < 1 << 20
    });
    assert!(ticks.is_some_and(|ticks| ticks < 40), "{ticks:?} ticks");
    assert!(!store.maintain(at(1), 1), "an idle store has nothing to do");
}
