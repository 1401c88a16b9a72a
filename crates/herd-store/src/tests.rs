//! The store against a model, and under memory pressure.

use super::*;
use herd_core::ErrorKind;
use herd_core::key::HashKey;
use herd_core::limits::SLOTS;
use std::collections::HashMap;

mod adopt;
mod compare;
mod generations;
mod left;
mod memory;
#[cfg(herd_shuttle)]
mod model;
mod pending;
mod replicas;
mod scan;
mod slots;
mod threads;
mod writes;

/// A whole round of upkeep.
fn upkeep(store: &Store, now: Now) {
    while store.maintain(now, 4096) {}
}

fn store(memory_bytes: u64) -> Arc<Store> {
    let config = Config {
        node: "n".into(),
        memory_bytes,
        threads: 2,
        object_max_bytes: 1 << 30,
        hash_key: HashKey([3; 16]),
        start_ms: 1_800_000_000_000,
    };
    Store::new(&config).expect("maps")
}

fn spec(class: &str) -> Spec {
    Spec::of(class)
}

fn at(unix_ms: u64) -> Now {
    Now { unix_ms, uptime_s: (unix_ms / 1000) as u32 }
}

fn put(store: &Arc<Store>, c: &Collection, name: &[u8], value: &[u8], now: Now) -> Result<u64, Error> {
    if value.len() <= herd_core::limits::INLINE_MAX_BYTES {
        return store.entry(c, name, now).put(&NewObject::of(Given::Small(value, None)));
    }
    let body = Arc::new(store.body_of(c, name, &[value], now)?);
    store.entry(c, name, now).put(&NewObject::of(Given::Large(body)))
}

fn bytes_of(found: &Found<'_>) -> Vec<u8> {
    match found.value {
        Value::Inline(bytes, crc) => {
            assert_eq!(crc, herd_core::checksum::crc32c(bytes));
            bytes.to_vec()
        }
        Value::Body(body) => bytes(body),
    }
}

fn bytes(body: &Body) -> Vec<u8> {
    let mut out = Vec::new();
    while (out.len() as u64) < body.len() {
        out.extend_from_slice(body.chunk(out.len() as u64));
    }
    out
}

fn get(store: &Store, c: &Collection, name: &[u8], now: Now) -> Option<Vec<u8>> {
    alone(store.get(c, name, now, bytes_of))
}

/// What was made of an object, if there is one, where this node is alone.
fn alone<R>(got: Got<R>) -> Option<R> {
    match got {
        Got::Hit(made) => Some(made),
        Got::Miss => None,
        Got::Away { slot, seat } => panic!("slot {slot} is {seat:?}"),
    }
}

/// Has one slot of spread group 0 be this, and leaves the others as they are.
fn set_seat(store: &Store, slot: usize, seat: Seat, floor: u64) {
    let before: Vec<Seat> = (0..SLOTS).map(|slot| store.slot(0, slot).seat).collect();
    store.set_seats(0, |at| if at == slot { (seat, floor) } else { (before[at], 0) });
}

/// Bytes that follow from `seed`, by which any other are told.
fn value(seed: u64, len: usize) -> Vec<u8> {
    let word = |i: usize| ((i as u64 ^ seed << 20).wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15)).to_le_bytes();
    let mut bytes = Vec::with_capacity(len + 8);
    (0..len.div_ceil(8)).for_each(|i| bytes.extend_from_slice(&word(i)));
    bytes.truncate(len);
    bytes
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }

    fn size(&mut self) -> usize {
        let bits = self.below(18);
        (self.below(1 << bits) + 1) as usize
    }
}

#[test]
fn agrees_with_a_map_where_nothing_is_evicted() {
    let store = store(64 << 20);
    let c = store.create("r", spec("ram:1")).expect("new");
    let mut model: HashMap<Vec<u8>, (Vec<u8>, u64)> = HashMap::new();
    let mut random = Random(42);
    let mut last_version = 0;
    for round in 0..30_000u64 {
        let name = format!("name-{}", random.below(900)).into_bytes();
        match random.below(10) {
            0..5 => {
                let value = value(round, random.size().min(40_000));
                let version = put(&store, &c, &name, &value, at(1)).expect("fits");
                assert!(model.get(&name).is_none_or(|(_, old)| *old < version), "versions rise");
                last_version = last_version.max(version);
                model.insert(name, (value, version));
            }
            5 => {
                let removed = store.entry(&c, &name, at(1)).remove(None);
                assert_eq!(removed.is_some(), model.remove(&name).is_some());
            }
            6 => {
                let memcached = herd_core::entry::Memcached { cas: round, ..Default::default() };
                let amended = Amended { expires_ms: 0, flags: round as u32, memcached, fence: None };
                let version = store.entry(&c, &name, at(1)).amend(&amended).expect("fits");
                if let Some((_, old)) = model.get_mut(&name) {
                    assert!(*old < version, "whatever changes an object takes a version");
                    (*old, last_version) = (version, last_version.max(version));
                }
            }
            _ => assert_eq!(get(&store, &c, &name, at(1)), model.get(&name).map(|(value, _)| value.clone())),
        }
    }
    let counts = store.counts(&c);
    assert_eq!(counts.objects as usize, model.len());
    assert_eq!(counts.evictions, 0);
    for (name, (value, version)) in &model {
        let head = store.entry(&c, name, at(1)).found().expect("there").head;
        assert_eq!((head.version, head.size_bytes), (*version, value.len() as u64));
    }
    for name in model.keys() {
        store.entry(&c, name, at(1)).remove(None);
    }
    assert_eq!(store.counts(&c).bytes, 0, "nothing is left counted");
}

#[test]
fn a_full_ram_collection_refuses_and_loses_nothing() {
    let store = store(8 << 20);
    let c = store.create("r", spec("ram:1")).expect("new");
    let mut kept = Vec::new();
    let refused = (0u64..).find_map(|i| {
        let name = i.to_le_bytes();
        match put(&store, &c, &name, &value(i, 500), at(1)) {
            Ok(_) => kept.push(name),
            Err(error) => return Some(error),
        }
        None
    });
    assert_eq!(refused.map(|e| e.kind), Some(ErrorKind::Full));
    assert!(kept.len() * 550 > (8 << 20) / 3 * 2, "most of the memory holds objects: {}", kept.len());
    for (i, name) in kept.iter().enumerate() {
        assert_eq!(get(&store, &c, name, at(1)), Some(value(i as u64, 500)));
    }
    for name in kept.iter().step_by(2) {
        store.entry(&c, name, at(1)).remove(None);
    }
    for i in 0..kept.len() as u64 / 3 {
        put(&store, &c, &(i + (1 << 40)).to_le_bytes(), &value(i, 500), at(1)).expect("garbage is compacted");
    }
    for (i, name) in kept.iter().enumerate().filter(|(i, _)| i % 2 == 1) {
        assert_eq!(get(&store, &c, name, at(1)), Some(value(i as u64, 500)), "compaction keeps what lives");
    }
}

#[test]
fn a_full_cache_evicts_and_stays_within_its_memory() {
    let store = store(16 << 20);
    let c = store.create("c", spec("cache")).expect("new");
    let mut random = Random(7);
    let (mut sizes, mut read) = (Vec::new(), 0);
    for i in 0..60_000u64 {
        let len = random.size();
        put(&store, &c, &i.to_le_bytes(), &value(i, len), at(1 + i / 100)).expect("evicts");
        let (budget, used) = store.memory();
        assert!(used <= budget, "{used} of {budget}");
        sizes.push(len);
        let other = random.below(i + 1);
        if let Some(got) = get(&store, &c, &other.to_le_bytes(), at(1)) {
            assert!(got == value(other, sizes[other as usize]), "object {other} has other bytes");
            read += 1;
        }
    }
    let counts = store.counts(&c);
    assert!(counts.evictions > 1000 && read > 1000);
    assert_eq!(counts.objects + counts.evictions, 60_000);
    assert!(counts.bytes > 8 << 20, "the memory is used: {}", counts.bytes);
}

#[test]
fn what_is_used_again_and_again_survives_a_scan() {
    let store = store(16 << 20);
    let c = store.create("c", spec("cache")).expect("new");
    let hot: Vec<[u8; 8]> = (0..500u64).map(|i| (i + (1 << 50)).to_le_bytes()).collect();
    for name in &hot {
        put(&store, &c, name, &[1; 1000], at(1)).expect("fits");
        get(&store, &c, name, at(1));
    }
    for i in 0..100_000u64 {
        put(&store, &c, &i.to_le_bytes(), &[2; 1000], at(1)).expect("evicts");
        get(&store, &c, &hot[i as usize % hot.len()], at(1));
    }
    let left = hot.iter().filter(|name| get(&store, &c, *name, at(1)).is_some()).count();
    assert!(left > 490, "{left} of 500 hot objects survived a scan of 100 MB");
}

#[test]
fn the_collection_over_its_share_gives_way() {
    let store = store(32 << 20);
    let big = store.create("big", spec("cache")).expect("new");
    let small = store.create("small", spec("cache")).expect("new");
    for i in 0..4_000u64 {
        put(&store, &small, &i.to_le_bytes(), &[1; 1000], at(1)).expect("fits");
    }
    for i in 0..100_000u64 {
        put(&store, &big, &i.to_le_bytes(), &[2; 1000], at(1)).expect("evicts");
    }
    assert_eq!(store.counts(&small).evictions, 0, "small is under its share");
    assert!(store.counts(&big).evictions > 50_000);
}

#[test]
fn expired_objects_are_gone_and_their_memory_is_given_back() {
    let store = store(8 << 20);
    let c = store.create("r", spec("ram:1")).expect("new");
    for i in 0..5_000u64 {
        let new = NewObject { expires_ms: 5_000, ..NewObject::of(Given::Small(&[1; 1000], None)) };
        store.entry(&c, &i.to_le_bytes(), at(1)).put(&new).expect("fits");
    }
    assert!(get(&store, &c, &0u64.to_le_bytes(), at(4_999)).is_some());
    assert!(get(&store, &c, &0u64.to_le_bytes(), at(5_000)).is_none());
    upkeep(&store, at(6_000));
    assert_eq!(store.counts(&c).objects, 0);
    for i in 0..5_000u64 {
        put(&store, &c, &(i + 90_000).to_le_bytes(), &[1; 1000], at(7_000)).expect("their memory is free again");
    }
}

#[test]
fn flush_and_destroy_remove_everything_at_once() {
    let store = store(32 << 20);
    let c = store.create("r", spec("ram:1")).expect("new");
    for i in 0..5_000u64 {
        put(&store, &c, &i.to_le_bytes(), &value(i, 3000), at(1)).expect("fits");
    }
    store.flush(&c, Some(100));
    assert!(get(&store, &c, &1u64.to_le_bytes(), at(99)).is_some());
    assert!(get(&store, &c, &1u64.to_le_bytes(), at(100)).is_none());
    assert_eq!(store.counts(&c).objects, 0);
    put(&store, &c, b"later", b"v", at(101)).expect("fits");
    upkeep(&store, at(102));
    assert_eq!(get(&store, &c, b"later", at(103)), Some(b"v".to_vec()));
    store.flush(&c, Some(150));
    store.flush(&c, None);
    assert!(get(&store, &c, b"later", at(104)).is_none());
    put(&store, &c, b"later", b"v", at(104)).expect("fits");
    assert!(get(&store, &c, b"later", at(200)).is_some(), "a flush at once ends one that was to come");
    store.destroy(&c);
    assert!(get(&store, &c, b"later", at(103)).is_none());
    assert_eq!(put(&store, &c, b"x", b"v", at(1)).err().map(|e| e.kind), Some(ErrorKind::NoCollection));
    upkeep(&store, at(104));
    upkeep(&store, at(105));
    assert!(store.memory().1 < 1 << 20, "all pages came back: {}", store.memory().1);
}

#[test]
fn quotas_refuse_or_evict_by_class() {
    let store = store(64 << 20);
    let quota = |class| Spec { quota_bytes: Some(1 << 20), ..spec(class) };
    let (ram, cache) = (store.create("r", quota("ram:1")), store.create("c", quota("cache")));
    let (ram, cache) = (ram.expect("new"), cache.expect("new"));
    let fits = (0..2_000u64).take_while(|i| put(&store, &ram, &i.to_le_bytes(), &[1; 1000], at(1)).is_ok()).count();
    assert!((950..1050).contains(&fits), "{fits} objects of 1 KB in 1 MiB");
    for i in 0..5_000u64 {
        put(&store, &cache, &i.to_le_bytes(), &[1; 1000], at(1)).expect("evicts its own");
        assert!(store.counts(&cache).bytes <= 1 << 20);
    }
    assert_eq!(store.counts(&ram).objects as usize, fits);
    let before = store.counts(&ram).refusals;
    let error = store.admit(&ram, b"n", Some(2 << 20)).err().expect("refused at its header");
    assert_eq!((error.kind, store.counts(&ram).refusals - before), (ErrorKind::Quota, 1));
}

#[test]
fn what_can_not_fit_is_refused_before_it_arrives() {
    let store = store(16 << 20);
    let c = store.create("r", spec("ram:1")).expect("new");
    assert_eq!(store.admit(&c, b"n", Some(2 << 30)).err().map(|e| e.kind), Some(ErrorKind::TooLarge));
    let error = store.admit(&c, b"n", Some(20 << 20)).err().expect("refused");
    assert_eq!(error.kind, ErrorKind::Full);
    assert!(error.text.contains("20.0 MiB") && error.text.contains("15.0 MiB"), "{}", error.text);
    let first = store.admit(&c, b"n", Some(10 << 20)).expect("fits");
    assert!(store.admit(&c, b"n", Some(10 << 20)).is_err(), "what is admitted is promised");
    drop(first);
    assert!(store.admit(&c, b"n", Some(10 << 20)).is_ok());
}

#[test]
fn a_reader_keeps_the_version_it_began_with() {
    let store = store(16 << 20);
    let c = store.create("c", spec("cache")).expect("new");
    put(&store, &c, b"n", &value(1, 300_000), at(1)).expect("fits");
    let held = store.get(&c, b"n", at(1), |found| match found.value {
        Value::Body(body) => body.clone(),
        Value::Inline(..) => unreachable!("it is large"),
    });
    let held = alone(held).expect("there");
    for i in 0..200u64 {
        put(&store, &c, b"n", &value(i, 300_000), at(1)).expect("fits");
    }
    assert!(bytes(&held) == value(1, 300_000));
}

#[test]
fn listings_name_every_object_once() {
    let store = store(64 << 20);
    for ordered in [false, true] {
        let name = if ordered { "sorted" } else { "hashed" };
        let c = store.create(name, Spec { ordered, ..spec("ram:1") }).expect("new");
        let mut names: Vec<String> = (0..5_000).map(|i| format!("{}/{i}", ["a", "b"][i % 2])).collect();
        for name in &names {
            put(&store, &c, name.as_bytes(), b"v", at(1)).expect("fits");
        }
        let (mut seen, mut after) = (Vec::new(), None::<Vec<u8>>);
        loop {
            let page = store.list(&c, b"a/", after.as_deref(), 77, at(1));
            seen.extend(page.iter().map(|item| String::from_utf8(item.name.to_vec()).expect("text")));
            after = page.last().map(|item| item.name.to_vec());
            if page.len() < 77 {
                assert!(store.list(&c, b"a/", after.as_deref(), 1, at(1)).is_empty());
                break;
            }
        }
        names.retain(|name| name.starts_with("a/"));
        names.sort();
        if ordered {
            assert_eq!(seen, names);
        }
        seen.sort();
        assert_eq!(seen, names);
    }
}

#[test]
fn a_listing_that_finds_nothing_ends_each_turn_soon() {
    let store = store(64 << 20);
    let other = store.create("other", spec("ram:1")).expect("new");
    let c = store.create("c", spec("ram:1")).expect("new");
    for i in 0..50_000u64 {
        put(&store, &other, &i.to_le_bytes(), b"v", at(1)).expect("fits");
    }
    put(&store, &c, b"a", b"v", at(1)).expect("fits");
    for (prefix, found) in [(&b""[..], 1), (b"no such", 0)] {
        let (mut cursor, mut page, mut turns) = (store.begin_list(&c, prefix, None), Page::new(), 0);
        while !cursor.is_at_end() {
            store.list_turn(&mut cursor, &mut page, 10, at(1));
            turns += 1;
        }
        assert_eq!(page.len(), found);
        assert!((50_000 / 3_000..100).contains(&turns), "{turns} turns over 50,000 entries");
    }
}

#[test]
fn a_listing_in_turns_survives_changes_between_them() {
    let store = store(64 << 20);
    for ordered in [false, true] {
        let c = store.create(&format!("c-{ordered}"), Spec { ordered, ..spec("ram:1") }).expect("new");
        let put_one = |i: u64| put(&store, &c, format!("n{i}").as_bytes(), b"v", at(1)).expect("fits");
        (0..9_000).for_each(|i| assert!(put_one(i) > 0));
        let (mut cursor, mut seen, mut round) = (store.begin_list(&c, b"n", None), HashMap::new(), 0);
        while !cursor.is_at_end() {
            let mut page = Page::new();
            store.list_turn(&mut cursor, &mut page, 100, at(1));
            page.iter().for_each(|item| *seen.entry(item.name.clone()).or_insert(0) += 1);
            // Names with an even number come and go, the others stay.
            round += 1;
            store.entry(&c, format!("n{}", round * 2).as_bytes(), at(1)).remove(None);
            put_one(100_000 + round * 2);
            put_one(round * 2 - 1);
        }
        for i in (1..9_000).step_by(2) {
            assert_eq!(seen.get(format!("n{i}").as_bytes()), Some(&1), "n{i}, ordered: {ordered}");
        }
        assert!(seen.values().all(|times| *times == 1), "none is listed twice");
    }
}

#[test]
fn objects_named_by_index_are_found_listed_and_lie_in_slots_that_follow_each_other() {
    let store = store(16 << 20);
    let c = store.create("array", Spec { indexed: true, ..spec("ram:1") }).expect("new");
    let slots = store.shards.len();
    for i in (0..2_000u64).chain([u64::MAX]) {
        put(&store, &c, i.to_string().as_bytes(), &value(i, 40), at(1)).expect("fits");
    }
    for i in (0..2_000u64).chain([u64::MAX]) {
        assert_eq!(get(&store, &c, i.to_string().as_bytes(), at(1)), Some(value(i, 40)));
    }
    let first = c.id().first_slot();
    let of = |i: usize| c.0.object_id(&store.hash_key, i.to_string().as_bytes()).slot();
    assert!((0..5_000).all(|i| of(i) == (first + i) % SLOTS), "neighbours, over {slots} shards");
    for name in [&b"x"[..], b"01", b"-1", b"18446744073709551616"] {
        let refused = put(&store, &c, name, b"v", at(1)).expect_err("no index");
        assert_eq!(refused.kind, ErrorKind::BadRequest);
        let refused = store.admit(&c, name, None).err().expect("it would be refused when it is there");
        assert_eq!(refused.kind, ErrorKind::BadRequest);
        assert_eq!(get(&store, &c, name, at(1)), None);
    }
    let mut listed: Vec<u64> = Vec::new();
    let mut after: Option<Box<[u8]>> = None;
    loop {
        let page = store.list(&c, b"", after.as_deref(), 300, at(1));
        listed.extend(page.iter().map(|item| herd_core::key::index(&item.name).expect("an index")));
        match page.last() {
            Some(last) if page.len() == 300 => after = Some(last.name.clone()),
            _ => break,
        }
    }
    listed.sort_unstable();
    assert_eq!(listed, (0..2_000).chain([u64::MAX]).collect::<Vec<_>>());
    let both = Spec { indexed: true, ordered: true, ..spec("ram:1") };
    assert_eq!(store.create("both", both).err().map(|error| error.kind), Some(ErrorKind::BadRequest));
}
