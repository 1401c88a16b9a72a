//! Threads side by side: what they read is what was written, and nobody waits for ever.
//!
//! Every value tells its name and which put wrote it, and every byte follows from these two, so a reader can tell any
//! mixture. A watchdog ends the process with a message when no thread gets anywhere. The long form:
//! `HERD_STRESS_SECONDS=600 cargo test --release -p herd-store stress`, with `RUSTFLAGS=--cfg=herd_ranks` for the order
//! of the locks.

use super::*;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// What no thread may need to get one step further.
const PATIENCE: Duration = Duration::from_secs(5);

/// Runs `threads` workers for a while, each with a random source of its own, step after step.
fn side_by_side(threads: u64, time: Duration, step: impl Fn(u64, &mut Random) + Sync) {
    let (steps, end) = (AtomicU64::new(0), AtomicBool::new(false));
    let running = AtomicU64::new(threads);
    std::thread::scope(|scope| {
        for t in 0..threads {
            let (steps, end, running, step) = (&steps, &end, &running, &step);
            scope.spawn(move || {
                let _leave = Leave(running);
                let mut random = Random(t + 1);
                while !end.load(Relaxed) {
                    step(t, &mut random);
                    steps.fetch_add(1, Relaxed);
                }
            });
        }
        watch(time, &steps, &end, &running);
    });
}

/// Counts a thread out, also when it panics.
struct Leave<'a>(&'a AtomicU64);

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

/// Ends the workers after `time`, or the process where they are stuck.
fn watch(time: Duration, steps: &AtomicU64, end: &AtomicBool, running: &AtomicU64) {
    let begin = Instant::now();
    let (mut seen, mut since) = (0, Instant::now());
    while running.load(Relaxed) > 0 {
        std::thread::sleep(Duration::from_millis(5));
        end.fetch_or(begin.elapsed() >= time, Relaxed);
        let now = steps.load(Relaxed);
        if now != seen {
            (seen, since) = (now, Instant::now());
        } else if since.elapsed() > PATIENCE {
            eprintln!("no thread got anywhere for {PATIENCE:?} after {now} steps: they wait for each other");
            std::process::abort();
        }
    }
}

#[test]
fn collections_come_and_go_beside_puts_into_full_memory() {
    let store = store(8 << 20);
    let c = store.create("r", spec("ram:1")).expect("new");
    side_by_side(3, Duration::from_secs(1), |t, random| match t {
        0 => {
            let other = store.create("other", spec("ram:1")).expect("there is a place");
            put(&store, &other, b"n", &[1; 100], at(1)).ok();
            store.destroy(&other);
            upkeep(&store, at(1));
        }
        _ => drop(put(&store, &c, &random.below(100_000).to_le_bytes(), &[2; 300], at(1))),
    });
}

/// Names that all threads fight for.
const NAMES: u64 = 400;

/// A value that tells who wrote it: name, stamp, and bytes that follow from both.
fn told(name: u64, stamp: u64) -> Vec<u8> {
    let len = match stamp % 16 {
        0 => stamp as usize % 300_000,
        1..4 => stamp as usize % 20_000,
        _ => stamp as usize % 600,
    };
    [&name.to_le_bytes()[..], &stamp.to_le_bytes(), &value(name << 32 ^ stamp, len)].concat()
}

/// Whether these are the bytes of one put of that name.
fn is_told(name: u64, bytes: &[u8]) -> bool {
    let stamp = bytes.get(8..16).map(|stamp| u64::from_le_bytes(stamp.try_into().expect("eight bytes")));
    stamp.is_some_and(|stamp| bytes == told(name, stamp))
}

/// What one thread of the stress knows.
struct Worker<'a> {
    store: &'a Arc<Store>,
    random: &'a mut Random,
    /// The highest version it saw of each name of each collection, by the collection's id.
    seen: &'a mut HashMap<(u64, u64), u64>,
    now: Now,
}

impl Worker<'_> {
    fn step(&mut self) {
        let which = self.random.below(4);
        let ordered = which == 1;
        let quota_bytes = (which == 2).then_some(2 << 20);
        let class = if which.is_multiple_of(2) { "cache" } else { "ram:1" };
        let c = self.store.create(&format!("c{which}"), Spec { ordered, quota_bytes, ..spec(class) });
        let c = c.expect("there is a place");
        let name = self.random.below(NAMES);
        match self.random.below(1_000) {
            0 => self.store.destroy(&c),
            1..3 => self.store.flush(&c, None),
            3 => self.store.flush(&c, Some(self.now.unix_ms + 5)),
            4..8 => self.list(&c),
            8..30 => drop(self.store.maintain(self.now, 100 + self.random.below(3_000) as usize)),
            30..100 => self.remove(&c, name),
            100..130 => self.amend(&c, name),
            130..150 => self.give_up(&c, name),
            150..170 => self.splice(&c, name),
            170..500 => self.put(&c, name),
            _ => self.get(&c, name),
        }
    }

    /// A version of a name is never lower than one seen before.
    fn saw(&mut self, c: &Collection, name: u64, version: u64) {
        let seen = self.seen.entry((c.id().0, name)).or_insert(0);
        assert!(version >= *seen, "{version} after {seen}");
        *seen = version;
    }

    fn put(&mut self, c: &Collection, name: u64) {
        let bytes = told(name, self.random.below(1 << 40));
        if let Ok(version) = put(self.store, c, &name.to_le_bytes(), &bytes, self.now) {
            self.saw(c, name, version);
        }
    }

    fn get(&mut self, c: &Collection, name: u64) {
        let taken = self.store.get(c, &name.to_le_bytes(), self.now, |found| match found.value {
            Value::Inline(..) => (found.head, Ok(bytes_of(found))),
            Value::Body(body) => (found.head, Err(body.clone())),
        });
        let Some((head, taken)) = alone(taken) else { return };
        // A body is read after the lock, while others replace and evict the object.
        let bytes = taken.unwrap_or_else(|body| bytes(&body));
        assert!(is_told(name, &bytes) && bytes.len() as u64 == head.size_bytes, "object {name} has other bytes");
        self.saw(c, name, head.version);
    }

    fn remove(&mut self, c: &Collection, name: u64) {
        let removed = self.store.entry(c, &name.to_le_bytes(), self.now).remove(None);
        removed.into_iter().for_each(|version| self.saw(c, name, version));
    }

    fn amend(&mut self, c: &Collection, name: u64) {
        let expires_ms = self.now.unix_ms + self.random.below(200);
        let name = name.to_le_bytes();
        let memcached = herd_core::entry::Memcached { cas: self.random.below(2), ..Default::default() };
        self.store.entry(c, &name, self.now).amend(&Amended { flags: 1, expires_ms, memcached, fence: None }).ok();
    }

    /// An upload that is not finished gives its memory back.
    fn give_up(&mut self, c: &Collection, name: u64) {
        let expected = Some(self.random.below(1 << 20) + 1).filter(|n| n % 2 == 0);
        let Ok(mut upload) = self.store.admit(c, &name.to_le_bytes(), expected) else { return };
        while self.random.below(4) > 0
            && let Ok(room @ 1..) = upload.reserve(64 << 10, self.now)
        {
            upload.writer.advance(room);
        }
    }

    /// A copy of a body, put together from its parts, has the same bytes.
    fn splice(&mut self, c: &Collection, name: u64) {
        let held = self.store.get(c, &name.to_le_bytes(), self.now, |found| match found.value {
            Value::Body(body) => Some(body.clone()),
            Value::Inline(..) => None,
        });
        let Some(body) = alone(held).flatten() else { return };
        let cut = self.random.below(body.len());
        let Ok(mut upload) = self.store.admit_change(c, &name.to_le_bytes(), body.len(), 0) else { return };
        let parts = [(0, cut), (cut, body.len())];
        if parts.iter().all(|(from, to)| upload.copy(&body, *from, *to, self.now).is_ok())
            && let Ok(copy) = upload.finish(self.now)
        {
            assert!(is_told(name, &bytes(&copy)), "a copy of object {name} has other bytes");
            self.store.entry(c, &name.to_le_bytes(), self.now).put(&NewObject::of(Given::Large(copy.into()))).ok();
        }
    }

    fn list(&mut self, c: &Collection) {
        let mut names: Vec<_> = self.store.list(c, b"", None, 1_000, self.now);
        let listed = names.len();
        names.sort_by(|a, b| a.name.cmp(&b.name));
        names.dedup_by(|a, b| a.name == b.name);
        assert_eq!(names.len(), listed, "a name is listed once");
        for item in names {
            let name = u64::from_le_bytes((&*item.name).try_into().expect("a name of eight bytes"));
            assert!(name < NAMES && item.size_bytes >= 16);
        }
    }
}

#[test]
fn stress_of_everything_at_once() {
    let seconds = std::env::var("HERD_STRESS_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(3);
    let store = store(16 << 20);
    let empty = store.memory().1;
    let begin = Instant::now();
    let all_seen: Vec<_> = (0..4).map(|_| std::sync::Mutex::new(HashMap::new())).collect();
    side_by_side(4, Duration::from_secs(seconds), |t, random| {
        let now = at(1_000 + begin.elapsed().as_millis() as u64);
        let mut seen = all_seen[t as usize].lock().expect("its own");
        Worker { store: &store, random, seen: &mut seen, now }.step();
        let (budget, used) = store.memory();
        assert!(used <= budget + (512 << 10), "{used} of {budget}");
    });
    let now = at(1 << 40);
    for c in store.collections() {
        upkeep(&store, now);
        assert!(c.0.used_bytes().abs_diff(store.counts(&c).bytes) <= 16 * 1024 * store.shards.len() as u64);
        store.destroy(&c);
    }
    (0..4).for_each(|_| upkeep(&store, now));
    assert_eq!(store.promised.load(Relaxed), 0);
    let left = store.memory().1 - empty;
    assert!(left < 1 << 20, "{left} bytes are held after all was removed");
}
