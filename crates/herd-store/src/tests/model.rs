//! The store under a model checker: a few operations of two or three threads on a few names, in many orders.
//!
//! A schedule chooses which thread goes on at each lock and each shared number, by chance or by priorities (PCT), from
//! a seed that is printed with a failure. It fails where threads wait for each other, an invariant's assertion trips, a
//! value is not one that was put, or memory doesn't come back. `make shuttle` runs them, `SCHEDULES=100000` of each
//! kind.

use super::*;
use herd_core::entry::Memcached;
use shuttle::rand::Rng;
use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::{Config as Checker, Runner};

const AMENDED: Amended = Amended {
    flags: 1,
    expires_ms: 5_000,
    memcached: Memcached { cas: 0, stale: false, token_sent: false },
    fence: None,
};

/// What is left of the memory when the threads begin: two pages, so that puts must make room.
const LEFT_BYTES: u64 = 2 * 65_536;

fn schedules() -> usize {
    std::env::var("SCHEDULES").ok().and_then(|text| text.parse().ok()).unwrap_or(2_000)
}

fn run(scheduler: impl Scheduler + 'static, f: impl Fn() + Send + Sync + 'static) {
    let mut checker = Checker::new();
    checker.stack_size = 1 << 18;
    Runner::new(scheduler, checker).run(f);
}

fn chance(n: u64) -> u64 {
    shuttle::rand::thread_rng().gen_range(0..n)
}

/// A small store of which nearly all memory is taken.
fn tight() -> (Arc<Store>, u64) {
    let store = store(8 << 20);
    let taken = store.memory().0 - u64::from(RESERVE_PAGES) * 65_536 - LEFT_BYTES;
    store.arena.charge(taken);
    (store, taken)
}

fn told(name: u64, stamp: u64) -> Vec<u8> {
    let len = [20, 700, 4_000, 6_000][stamp as usize % 4];
    [&name.to_le_bytes()[..], &stamp.to_le_bytes(), &value(name << 32 ^ stamp, len)].concat()
}

fn check(name: u64, bytes: &[u8]) {
    let stamp = u64::from_le_bytes(bytes[8..16].try_into().expect("eight bytes"));
    assert!(bytes == told(name, stamp), "object {name} has other bytes");
}

/// One operation, chosen by chance.
fn step(store: &Arc<Store>, held: &mut Option<Collection>) {
    let which = chance(2);
    let spec = Spec { ordered: which == 0, ..spec(["ram:1", "cache"][which as usize]) };
    let c = match held.take().filter(|_| chance(3) == 0) {
        Some(c) => c,
        None => store.create(["a", "b"][which as usize], spec).expect("there is a place"),
    };
    let name = chance(3);
    let key = name.to_le_bytes();
    match chance(12) {
        0..4 => drop(put(store, &c, &key, &told(name, chance(1 << 20)), at(1))),
        4..6 => get(store, &c, &key, at(1)).into_iter().for_each(|bytes| check(name, &bytes)),
        6 => drop(store.entry(&c, &key, at(1)).remove(None)),
        7 => store.flush(&c, None),
        8 => store.destroy(&c),
        9 => drop(store.list(&c, b"", None, 10, at(1))),
        10 => drop(store.entry(&c, &key, at(1)).amend(&AMENDED)),
        _ => drop(store.maintain(at(1), 100)),
    }
    *held = Some(c);
}

/// Some operations side by side; then all is removed, and all memory must be back.
fn side_by_side() {
    let (store, taken) = tight();
    let threads: Vec<_> = (0..2 + chance(2))
        .map(|_| {
            let store = store.clone();
            shuttle::thread::spawn(move || {
                let mut held = None;
                (0..4).for_each(|_| step(&store, &mut held));
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().expect("it ends"));
    for c in store.collections() {
        let counts = store.counts(&c);
        let listed = store.list(&c, b"", None, 10, at(1)).len() as u64;
        assert_eq!(counts.objects, listed, "what is counted is there");
        store.destroy(&c);
    }
    upkeep(&store, at(1));
    upkeep(&store, at(1));
    assert_eq!(store.promised.load(Relaxed), 0);
    let tables: u64 = (0..store.shards.len()).map(|at| store.lock(at).index.bytes() / 2).sum();
    let left = store.memory().1 - taken;
    assert!(left <= tables + 4 * 4 * 1024, "{left} bytes are left");
    store.arena.discharge(taken);
}

#[test]
fn operations_side_by_side_in_orders_by_chance() {
    run(RandomScheduler::new(schedules()), side_by_side);
}

#[test]
fn operations_side_by_side_in_orders_by_priority() {
    run(PctScheduler::new(3, schedules()), side_by_side);
}

#[test]
#[should_panic(expected = "deadlock")]
fn two_shards_in_either_order_are_found_to_wait_for_each_other() {
    run(RandomScheduler::new(1_000), || {
        let (store, _) = tight();
        let both = |first: usize, second: usize| {
            let store = store.clone();
            shuttle::thread::spawn(move || {
                let _first = store.lock(first);
                drop(store.lock(second));
            })
        };
        let threads = [both(0, 1), both(1, 0)];
        threads.into_iter().for_each(|thread| thread.join().expect("it ends"));
    });
}
