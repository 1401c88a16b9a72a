//! Prepared, committed and dropped writes beside all that a store does by itself, in small memory: against a model, by
//! chance and from a seed.

use super::*;
use crate::index::Tag;
use crate::record::PENDING;
use herd_core::replica::Pending;
use std::collections::BTreeMap;

/// A write, its value's seed and size, and when it expires.
type Write = (Pending, (u64, usize), u64);

/// One object of the model.
#[derive(Clone, Default)]
struct Known {
    /// Version, value's seed and size, when it expires.
    committed: Option<(u64, (u64, usize), u64)>,
    pending: Option<Write>,
    /// The highest version it ever had.
    last: u64,
}

const NAMES: u64 = 1_200;
/// Taken from the memory, so that what is left is not enough.
const TAKEN_BYTES: u64 = 5 << 20;
/// Spread groups of the model's collections.
const SPREADS: u16 = 2;
/// Collections of the model: class, ordered, with a quota.
const COLLECTIONS: [(&str, bool, Option<u64>); 4] =
    [("ram:1", false, None), ("ram:1", true, None), ("ram:1", false, Some(400 << 10)), ("cache", false, None)];

struct Model {
    store: Arc<Store>,
    all: Vec<Collection>,
    known: BTreeMap<(usize, u64), Known>,
    random: Random,
    now_ms: u64,
    /// How often what has happened.
    seen: BTreeMap<&'static str, u32>,
}

fn is_shared(slot: usize) -> bool {
    !slot.is_multiple_of(3)
}

impl Model {
    fn new(seed: u64) -> Self {
        let store = store(8 << 20);
        store.arena.charge(TAKEN_BYTES);
        let seat = |slot| (if is_shared(slot) { Seat::Led } else { Seat::Alone }, 0);
        (0..SPREADS).for_each(|spread| store.set_seats(spread, seat));
        let create = |(i, (class, ordered, quota_bytes)): (usize, &(&str, bool, Option<u64>))| {
            let spec = Spec { ordered: *ordered, quota_bytes: *quota_bytes, ..spec(class) };
            store.create(&format!("c{i}"), spec).expect("new")
        };
        let all = COLLECTIONS.iter().enumerate().map(create).collect();
        Self { store, all, known: BTreeMap::new(), random: Random(seed), now_ms: 1_000, seen: BTreeMap::new() }
    }

    fn saw(&mut self, what: &'static str) {
        *self.seen.entry(what).or_default() += 1;
    }

    fn step(&mut self) {
        let at_name = (self.random.below(4) as usize, self.random.below(NAMES));
        match self.random.below(1_000) {
            0 => self.flush_seldom(at_name.0),
            1 => self.check_listed(),
            2 => self.check_scanned(),
            3..12 => drop(self.store.maintain(at(self.now_ms), 2_000)),
            12..35 => self.compact(),
            35..50 => self.now_ms += self.random.below(300),
            50..300 => self.prepare(at_name),
            300..360 => self.prepare_remove(at_name),
            360..660 => self.end(at_name),
            660..760 => self.put(at_name),
            760..800 => self.remove(at_name),
            _ => self.check(at_name),
        }
    }

    fn some_value(&mut self) -> ((u64, usize), u64) {
        let is_large = self.random.below(60) == 0;
        let size = match self.random.below(4) {
            _ if is_large => 5_000 + self.random.below(90_000),
            // Objects of one size take each other's place.
            0 => 300,
            _ => self.random.below(1_500),
        };
        let expires_ms = if self.random.below(5) == 0 { self.now_ms + self.random.below(2_000) } else { 0 };
        ((self.random.below(1 << 40), size as usize), expires_ms)
    }

    /// Hands an object to `f` with its entry locked.
    fn with<R>(
        &self,
        (c, name): (usize, u64),
        (of, expires_ms): ((u64, usize), u64),
        f: impl FnOnce(&mut Entry<'_>, &NewObject<'_>) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let (bytes, now, name) = (value(of.0, of.1), at(self.now_ms), name.to_le_bytes());
        let value = if bytes.len() <= herd_core::limits::INLINE_MAX_BYTES {
            Given::Small(&bytes, None)
        } else {
            Given::Large(Arc::new(self.store.body_of(&self.all[c], &name, &[&bytes], now)?))
        };
        let new = NewObject { expires_ms, ..NewObject::of(value) };
        f(&mut self.store.entry(&self.all[c], &name, now), &new)
    }

    /// What is known, after what the store did by itself: it evicts and expires what it has alone.
    fn learn(&mut self, of: (usize, u64)) -> Known {
        let name = of.1.to_le_bytes();
        let entry = self.store.entry(&self.all[of.0], &name, at(self.now_ms));
        let known = self.known.entry(of).or_default();
        if let Some((version, _, expires_ms)) = known.committed
            && !is_shared(entry.slot())
        {
            let may_go = self.all[of.0].class().evicts();
            let is_over = expires_ms != 0 && expires_ms <= self.now_ms;
            if is_over || may_go && entry.committed() == 0 {
                assert_eq!(entry.committed(), 0, "{of:?} of {version:x} is over");
                known.committed = None;
            }
        }
        known.clone()
    }

    fn refused(&mut self, error: &Error) {
        assert!(matches!(error.kind, ErrorKind::Full | ErrorKind::Quota), "{}", error.text);
        self.saw(if error.kind == ErrorKind::Full { "full" } else { "over quota" });
    }

    fn prepare(&mut self, of: (usize, u64)) {
        let new = self.some_value();
        let done = self.with(of, new, |entry, new| {
            let (base, version) = (entry.committed(), entry.take_version(0));
            entry.prepare(version, base, new).map(|()| Pending { version, base, removes: false })
        });
        let known = self.learn(of);
        match done {
            Ok(write) => {
                assert!(known.pending.is_none() && write.version > known.last);
                let known = self.known.entry(of).or_default();
                (known.pending, known.last) = (Some((write, new.0, new.1)), write.version);
                self.saw("prepared");
            }
            Err(error) if error.kind == ErrorKind::Busy => assert!(known.pending.is_some()),
            Err(error) => self.refused(&error),
        }
        self.check(of);
    }

    fn prepare_remove(&mut self, of: (usize, u64)) {
        let known = self.learn(of);
        let base = known.committed.map_or(0, |(version, ..)| version);
        let name = of.1.to_le_bytes();
        let mut entry = self.store.entry(&self.all[of.0], &name, at(self.now_ms));
        let version = entry.take_version(0);
        let done = entry.prepare_remove(version, base, None);
        drop(entry);
        assert_eq!(done.is_ok(), known.pending.is_none(), "nothing else keeps a removal from being prepared");
        if done.is_ok() {
            let known = self.known.entry(of).or_default();
            (known.pending, known.last) = (Some((Pending { version, base, removes: true }, (0, 0), 0)), version);
            self.saw("removal prepared");
        }
        self.check(of);
    }

    /// A write that is pending, somewhere from this name on.
    fn next_pending(&self, from: (usize, u64)) -> Option<((usize, u64), Write)> {
        self.known.range(from..).find_map(|(of, known)| known.pending.map(|pending| (*of, pending)))
    }

    /// Commits or drops a write that is pending.
    fn end(&mut self, from: (usize, u64)) {
        let Some((of, (write, value, expires_ms))) = self.next_pending(from) else { return };
        self.learn(of);
        let name = of.1.to_le_bytes();
        let commits = self.random.below(3) > 0;
        let mut entry = self.store.entry(&self.all[of.0], &name, at(self.now_ms));
        let done = if commits { entry.commit(write.version) } else { entry.abort(write.version) };
        drop(entry);
        assert!(done, "{of:?} has it pending");
        let known = self.known.entry(of).or_default();
        known.pending = None;
        if commits {
            known.committed = (!write.removes).then_some((write.version, value, expires_ms));
        }
        self.saw(if commits { "committed" } else { "dropped" });
        self.check(of);
    }

    /// As a copy that comes below what is pending, or as a node does that is alone.
    fn put(&mut self, of: (usize, u64)) {
        let copies = self.random.below(2) == 0;
        let of = self.next_pending(of).filter(|_| copies).map_or(of, |(of, _)| of);
        let (new, known) = (self.some_value(), self.learn(of));
        let done = self.with(of, new, |entry, new| {
            if !copies {
                return entry.put(new);
            }
            let version = entry.take_version(0);
            entry.copy(version, new).map(|()| version)
        });
        match done {
            Ok(version) => {
                assert!(version > known.last);
                let known = self.known.entry(of).or_default();
                (known.committed, known.last) = (Some((version, new.0, new.1)), version);
                let is_pending = known.pending.is_some();
                self.saw(if is_pending { "put below a pending write" } else { "put" });
            }
            Err(error) => self.refused(&error),
        }
        self.check(of);
    }

    fn remove(&mut self, of: (usize, u64)) {
        let known = self.learn(of);
        let name = of.1.to_le_bytes();
        let removed = self.store.entry(&self.all[of.0], &name, at(self.now_ms)).remove(None);
        assert_eq!(removed.is_some(), known.committed.is_some());
        let known = self.known.entry(of).or_default();
        known.committed = None;
        known.last = known.last.max(removed.unwrap_or(0));
        self.check(of);
    }

    /// A quarter of the times that it is asked to.
    fn flush_seldom(&mut self, c: usize) {
        if self.random.below(4) > 0 {
            return;
        }
        self.store.flush(&self.all[c], None);
        for (_, known) in self.known.iter_mut().filter(|((of, _), _)| *of == c) {
            (known.committed, known.pending) = (None, None);
        }
        self.saw("flush");
    }

    fn compact(&mut self) {
        for at in 0..self.store.shards.len() {
            let mut shard = self.store.lock(at);
            for c in shard.collections() {
                while shard.compact(&c, 64) {
                    *self.seen.entry("compacted").or_default() += 1;
                }
            }
        }
    }

    fn check(&mut self, of: (usize, u64)) {
        let known = self.learn(of);
        let name = of.1.to_le_bytes();
        let entry = self.store.entry(&self.all[of.0], &name, at(self.now_ms));
        let committed = known.committed.map_or(0, |(version, ..)| version);
        assert_eq!((entry.committed(), entry.pending()), (committed, known.pending.map(|(write, ..)| write)), "{of:?}");
        assert_eq!(entry.is_clean(), known.pending.is_none());
        let is_over = |expires_ms: u64| expires_ms != 0 && expires_ms <= self.now_ms;
        let shown = known.committed.filter(|(.., expires_ms)| !is_over(*expires_ms));
        assert_eq!(entry.is_due(), committed != 0 && shown.is_none());
        let wanted = shown.map(|(_, (seed, size), _)| value(seed, size));
        assert!(entry.found().map(|found| bytes_of(&found)) == wanted, "{of:?} has other bytes");
        assert_eq!(entry.found_committed().map_or(0, |found| found.head.version), committed);
        let wanted = known.pending.filter(|(write, ..)| !write.removes).map(|(_, (seed, size), _)| value(seed, size));
        assert!(entry.found_pending().map(|found| bytes_of(&found)) == wanted, "{of:?} will have other bytes");
        let (budget, used) = self.store.memory();
        assert!(used <= budget, "{used} of {budget}");
    }

    fn check_all(&mut self) {
        let all: Vec<_> = self.known.keys().copied().collect();
        all.into_iter().for_each(|of| self.check(of));
        let mut wanted: Vec<_> = Vec::new();
        for ((c, name), known) in &self.known {
            let key = self.store.key(&self.all[*c], &name.to_le_bytes());
            wanted.extend(known.pending.map(|(write, ..)| (key, write)));
        }
        let pendings = |spread| self.store.pendings(spread, |_| true, at(self.now_ms));
        let mut there: Vec<_> = (0..SPREADS).flat_map(pendings).collect();
        wanted.sort_by(|a, b| a.0.cmp(&b.0));
        there.sort_by(|a, b| a.0.cmp(&b.0));
        assert_eq!(there, wanted);
        for (c, collection) in self.all.iter().enumerate() {
            let committed = self.known.range((c, 0)..(c + 1, 0)).filter(|(_, known)| known.committed.is_some());
            assert_eq!(self.store.counts(collection).objects as usize, committed.count(), "of {c}");
        }
        check_shards(&self.store);
    }

    fn check_listed(&mut self) {
        for c in 0..3 {
            let mut listed = self.store.list(&self.all[c], b"", None, usize::MAX, at(self.now_ms));
            listed.sort_by(|a, b| a.name.cmp(&b.name));
            let is_shown = |(.., expires_ms): &(u64, (u64, usize), u64)| *expires_ms == 0 || *expires_ms > self.now_ms;
            let of_c = self.known.range((c, 0)..(c + 1, 0));
            let shown = of_c.filter_map(|((_, name), known)| Some((*name, known.committed.filter(is_shown)?)));
            let mut wanted: Vec<_> = shown.map(|(name, (version, ..))| (name.to_le_bytes(), version)).collect();
            wanted.sort_unstable();
            assert_eq!(listed.len(), wanted.len());
            let is_it =
                |item: &ListItem, (name, version): ([u8; 8], u64)| *item.name == name && item.version == version;
            assert!(listed.iter().zip(wanted).all(|(item, wanted)| is_it(item, wanted)));
        }
        self.saw("listed");
    }

    /// A slot has what it should, in order, and nothing of another spread group.
    fn check_scanned(&mut self) {
        let at_slot = self.random.below(u64::from(SPREADS) * SLOTS as u64) as usize;
        let (spread, slot) = ((at_slot / SLOTS) as u16, at_slot % SLOTS);
        let all: Vec<_> = self.known.keys().copied().collect();
        let mut wanted = Vec::new();
        for of in all {
            let key = self.store.key(&self.all[of.0], &of.1.to_le_bytes());
            if (key.spread(), key.slot()) == (spread, slot) {
                let known = self.learn(of);
                let version = known.committed.map_or(0, |(version, ..)| version);
                wanted.extend((version != 0 || known.pending.is_some()).then_some(SlotItem { key, version }));
            }
        }
        wanted.sort_by(|a, b| a.key.cmp(&b.key));
        let (mut cursor, mut items) = (SlotCursor::new(spread, slot), Vec::new());
        while !cursor.is_at_end() {
            self.store.slot_turn(&mut cursor, &mut items, 1, at(self.now_ms));
        }
        assert_eq!(items, wanted);
        self.saw("scanned");
    }

    /// Everything is dropped and removed: nothing stays behind.
    fn end_all(&mut self) {
        let all: Vec<_> = self.known.keys().copied().collect();
        for of in all {
            if let Some((write, ..)) = self.learn(of).pending {
                let name = of.1.to_le_bytes();
                assert!(self.store.entry(&self.all[of.0], &name, at(self.now_ms)).abort(write.version));
                self.known.entry(of).or_default().pending = None;
            }
            self.remove(of);
        }
        self.check_all();
        assert!(self.all.iter().all(|c| self.store.counts(c).bytes == 0));
        self.all.iter().for_each(|c| self.store.destroy(c));
        (0..4).for_each(|_| upkeep(&self.store, at(self.now_ms)));
        let tables: u64 = (0..self.store.shards.len()).map(|at| self.store.lock(at).index.bytes()).sum();
        let left = self.store.memory().1 - TAKEN_BYTES;
        assert!(left < tables + (256 << 10), "{left} bytes are left");
    }
}

/// What each shard counts is what it holds.
fn check_shards(store: &Store) {
    for at in 0..store.shards.len() {
        let shard = store.lock(at);
        let mut entries = vec![0; shard.slots.len()];
        let mut pending = 0;
        shard.index.range(Tag::MIN, Tag::new(u64::MAX, 0, 0), |tag, addr| {
            let index = usize::from(shard.arena.note(&shard.owner, PageId(addr.page())).collection);
            let stale = shard.stale.iter().find(|stale| stale.pages.contains(&PageId(addr.page())));
            let c =
                stale.map(|stale| &stale.c).or(shard.logs[index].as_ref().map(|logs| &logs.c)).expect("a page of one");
            entries[shard.layout.of_spread(c.spread(), shard.layout.number(tag))] += 1;
            pending += usize::from(shard.record(addr).is_marked(PENDING) && stale.is_none());
        });
        assert_eq!(shard.slots.iter().map(|slot| slot.entries).collect::<Vec<_>>(), entries);
        let kept = shard.pending.iter().filter(|(_, prepared)| !prepared.write.removes).count();
        assert_eq!(pending, kept, "a record for each pending object");
    }
}

fn run(seed: u64, steps: usize, seen: &mut BTreeMap<&'static str, u32>) {
    let mut model = Model::new(seed);
    for step in 0..steps {
        model.step();
        if step % 5_000 == 0 {
            model.check_all();
        }
    }
    model.check_all();
    let evicted = store_evictions(&model);
    model.seen.insert("evicted", evicted);
    model.end_all();
    model.seen.iter().for_each(|(what, times)| *seen.entry(what).or_default() += times);
}

fn store_evictions(model: &Model) -> u32 {
    model.all.iter().map(|c| model.store.counts(c).evictions as u32).sum()
}

/// `HERD_STORE_SEEDS=1000` runs more.
#[test]
fn prepared_committed_and_dropped_writes_agree_with_a_model() {
    let seeds = std::env::var("HERD_STORE_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(3);
    let mut seen = BTreeMap::new();
    for seed in 1..=seeds {
        println!("seed {seed}");
        run(seed, 20_000, &mut seen);
    }
    println!("{seen:?}");
    for what in [
        "full",
        "over quota",
        "prepared",
        "removal prepared",
        "committed",
        "dropped",
        "put",
        "put below a pending write",
        "flush",
        "compacted",
        "evicted",
        "listed",
        "scanned",
    ] {
        assert!(seen.get(what).is_some_and(|times| *times > 0), "{what}: never happened");
    }
}
