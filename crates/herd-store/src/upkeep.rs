//! What keeps memory free: upkeep in turns, and making room for a put.
//!
//! A turn of upkeep does a bounded amount of work and goes on where the last one stopped: each shard notes where it
//! stands, so any number of loops may take turns side by side. Who may call: the node's loops, without any lock, and
//! entries, with their shard's.

use crate::arena::PAGE_BYTES;
use crate::collection::State;
use crate::evict::Effort;
use crate::shard::Shard;
use crate::sync::atomic::Ordering::Relaxed;
use crate::{Now, Store};

/// Pages that upkeep keeps free while something can be evicted, so that puts rarely make room themselves.
const SPARE_PAGES: u32 = 32;
/// Tokens that are forgotten under one lock.
const LEFT_AT_ONCE: usize = 256;
/// Logs looked at for flushes and pages for expired entries in one turn: some 0.3 ms where there is nothing to do. All
/// pages of a TiB are seen in 4,096 turns.
const TURN_LOOKS: usize = 4096;
/// Records that making room once is taken for: those of a page of small objects, and a few.
const RECLAIM_RECORDS: usize = 1024;
/// Freeing so many blocks takes as long as looking at a record.
const BLOCKS_A_RECORD: usize = 4;
/// Names of flushed objects freed at once for a put that waits for memory: some 50 us.
const NAMES_AT_ONCE: usize = 512;

/// What a turn of upkeep may still do.
struct Turn {
    /// Records, or what takes as long.
    records: usize,
    /// Logs and pages to look at, which is no reason to take another turn at once.
    looks: usize,
}

impl Turn {
    fn spend(&mut self, records: usize) {
        self.records = self.records.saturating_sub(records.max(1));
    }
}

impl Store {
    /// A turn of upkeep, to be taken a few times a second by each loop: gives back memory of what was removed or
    /// flushed, takes out expired objects, and evicts a little ahead of need.
    ///
    /// It ends after some `budget` records, of 0.1 to 0.3 us each; a page of records, at most 2,730, is not cut. True:
    /// there is more to do, so take another turn once those who wait were served.
    pub fn maintain(&self, now: Now, budget: usize) -> bool {
        let mut turn = Turn { records: budget, looks: TURN_LOOKS };
        for _ in 0..self.shards.len() {
            let at = self.upkeep_at.fetch_add(1, Relaxed) & (self.shards.len() - 1);
            self.visit(at, now, &mut turn);
            if turn.records == 0 {
                return true;
            }
            if turn.looks == 0 {
                break;
            }
        }
        turn.records -= self.registry.free_names(turn.records);
        turn.records == 0 || self.keep_spare(now, &mut turn)
    }

    /// Upkeep of one shard. Its lock is held for one page at a time.
    fn visit(&self, at: usize, now: Now, turn: &mut Turn) {
        let mut shard = self.lock(at);
        shard.retire_old(None, now.unix_ms);
        turn.records -= shard.forget_old_left(now.unix_ms, turn.records.min(LEFT_AT_ONCE));
        turn.looks = turn.looks.saturating_sub(shard.logs.len());
        drop(shard);
        while turn.records > 0 {
            let mut shard = self.lock(at);
            let freed = shard.free_stale();
            let blocks = shard.trash_blocks();
            if freed.is_none() && blocks == 0 {
                let (pages, records) = shard.sweep(now.unix_ms, turn.looks, turn.records);
                turn.looks -= pages;
                turn.records = turn.records.saturating_sub(records);
                return;
            }
            turn.spend(freed.unwrap_or(0) + blocks / BLOCKS_A_RECORD);
        }
    }

    /// Evicts ahead of need; true where it stopped only because the turn is over.
    fn keep_spare(&self, now: Now, turn: &mut Turn) -> bool {
        while self.arena.spare_pages() < SPARE_PAGES && self.registry.victim(1).is_some() {
            if turn.records == 0 {
                return true;
            }
            if !self.reclaim_by(now, &[Effort::Usual]) {
                return false;
            }
            turn.spend(RECLAIM_RECORDS);
        }
        false
    }

    /// Frees some memory while no lock is held; false if nothing can be freed.
    pub(crate) fn reclaim(&self, now: Now) -> bool {
        let seen = self.freeable(now);
        if self.is_futile(seen) {
            return false;
        }
        let freed = self.reclaim_by(now, &[Effort::Usual, Effort::Last]);
        if !freed {
            self.futile.store(seen, Relaxed);
        }
        freed
    }

    fn reclaim_by(&self, now: Now, efforts: &[Effort]) -> bool {
        let victim = self.registry.victim(self.arena.budget_bytes());
        let free = |effort| {
            let mut shards = self.rotation();
            shards.any(|at| self.lock(at).free_memory(victim.as_deref(), None, now.unix_ms, effort))
        };
        self.registry.free_names(NAMES_AT_ONCE) > 0 || efforts.iter().any(|effort| free(*effort))
    }

    /// Frees some memory while `own` is locked, with an entry of `held`: in it, or in others that nobody holds.
    #[cold]
    pub(crate) fn reclaim_within(&self, own: &mut Shard, held: &State, now: Now) -> bool {
        let seen = self.freeable(now);
        if self.is_futile(seen) {
            return false;
        }
        if self.registry.free_names(NAMES_AT_ONCE) > 0 {
            return true;
        }
        // A flush of the collection of the entry frees something only after the entry is left.
        let mut looked_everywhere = own.logs(held).generation == held.generation(now.unix_ms);
        let victim = self.registry.victim(self.arena.budget_bytes());
        for effort in [Effort::Usual, Effort::Last] {
            if own.free_memory(victim.as_deref(), Some(held), now.unix_ms, effort) {
                own.empty_trash();
                return true;
            }
            let mut locked = 0;
            for at in self.rotation() {
                // Another shard's lock is only tried: waiting for one while holding one could wait for ever.
                let Some(mut other) = self.shards[at].try_lock() else {
                    locked += 1;
                    continue;
                };
                if other.free_memory(victim.as_deref(), None, now.unix_ms, effort) {
                    other.empty_trash();
                    own.trash.append(&mut other.trash);
                    return true;
                }
            }
            looked_everywhere &= locked == 1;
        }
        if looked_everywhere {
            self.futile.store(seen, Relaxed);
        }
        false
    }

    /// A number that changes whenever memory may be had where there was none: records died or were flushed, or time
    /// went on by which some expire.
    fn freeable(&self, now: Now) -> u64 {
        let events = self.arena.freeable().wrapping_add(self.registry.generations() as u32);
        u64::from(events) << 32 | now.unix_ms >> 6 & u64::from(u32::MAX)
    }

    /// Whether nothing could be freed when that number was the same, and nothing can be evicted. So refusing a put
    /// costs no more time the larger the memory is.
    fn is_futile(&self, seen: u64) -> bool {
        self.futile.load(Relaxed) == seen && self.registry.victim(1).is_none()
    }

    /// All shards, each time from another one on.
    pub(crate) fn rotation(&self) -> impl Iterator<Item = usize> + use<> {
        let shards = self.shards.len();
        let from = self.next_shard.fetch_add(1, Relaxed);
        (0..shards).map(move |i| (from + i) & (shards - 1))
    }
}

const _: () = assert!(PAGE_BYTES / 24 < 2731, "a page has at most 2,730 records");
