//! Making room in a shard, cheapest first: pages of an older generation, pages with much garbage, eviction
//! (S3-FIFO), expired entries, and at last pages with little garbage.
//!
//! Eviction is S3-FIFO (Yang et al., SOSP 2023): new entries enter a small queue of about a tenth of the bytes; one
//! that was used meanwhile moves to the main queue, others leave and are remembered by a fingerprint (the *ghost*), so
//! that a quick return goes to the main queue at once. The main queue gives an entry as many further rounds as it was
//! used, up to three. Queues are the logs themselves: an entry's age is its place, its use count lies in its header,
//! and there is no second index.

use crate::arena::{PAGE_BYTES, PageId};
use crate::collection::State;
use crate::index::{Addr, Tag};
use crate::left::Cause;
use crate::record::{self, PENDING};
use crate::shard::{MAIN, SMALL, Shard};

/// Garbage is worth compacting before evicting if this many pages hold one page of it.
const CHEAP_WINDOW_PAGES: usize = 4;
/// The most pages moved to free one page before a put is refused.
const LAST_WINDOW_PAGES: usize = 64;
/// Part of the bytes of a collection that the small queue may have: one tenth.
const SMALL_PART: u64 = 10;

/// Pages looked at in one visit of upkeep to a shard, for expired entries and for whether any lives: some 5 us where
/// there is nothing to do.
const SWEEP_PAGES: usize = 64;

/// Pages of entries that may not go which are put to the back of their queue in search of others: some 0.5 ms.
const KEPT_PAGES: usize = 16;

/// After this a page is looked at again in which something has expired that may not go by itself.
const KEPT_AGAIN_MS: u64 = 1_000;

/// How far to go for room.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effort {
    /// Stale pages, cheap compaction, eviction.
    Usual,
    /// Also expired entries and costly compaction.
    Last,
}

/// What became of a record at the head of a queue.
enum Fate {
    /// It went; so many bytes are free.
    Gone(u64),
    /// It is garbage, or at the back of the main queue; true: it goes sooner than before.
    Passed(bool),
    /// It may not go, and there is no page to move it to.
    Stuck,
}

impl Shard {
    /// Frees some memory; false if nothing could be. `victim` is the collection to evict from; the logs of `held`, of
    /// which an entry is locked, stay those of its generation.
    pub(crate) fn free_memory(
        &mut self,
        victim: Option<&State>,
        held: Option<&State>,
        now_ms: u64,
        effort: Effort,
    ) -> bool {
        self.retire_old(held, now_ms);
        if self.empty_trash() || self.free_stale().is_some() {
            return true;
        }
        let all = self.collections();
        if effort == Effort::Usual {
            return all.iter().any(|c| self.compact(c, CHEAP_WINDOW_PAGES))
                || victim.is_some_and(|c| self.evict(c, now_ms));
        }
        let expired: usize = all.iter().map(|c| self.expire_all(c, now_ms)).sum();
        all.iter().any(|c| self.compact(c, LAST_WINDOW_PAGES))
            || all.iter().filter(|c| c.class.evicts()).any(|c| self.evict(c, now_ms))
            || expired > 0
    }

    /// Gives back one stale page, with the index words of its entries; gives how many records it looked at.
    pub(crate) fn free_stale(&mut self) -> Option<usize> {
        let stale = self.stale.last_mut()?;
        let c = stale.c.clone();
        let page = stale.pages.pop_back().expect("there are pages while they are stale");
        if stale.pages.is_empty() {
            self.stale.pop();
        }
        let all: Vec<Addr> = self.records(page, 0).collect();
        let live = all.iter().filter(|addr| !self.record(**addr).is_dead());
        let live: Vec<(Addr, Tag)> = live.map(|addr| (*addr, self.tag(&c, *addr))).collect();
        // Their places in the index lie far apart: they are fetched all at once.
        live.iter().for_each(|(_, tag)| self.index.foresee(*tag));
        for (addr, tag) in live {
            let at = self.index.find(tag, |there| there == addr).expect("a live entry is in the index").0;
            self.unlink(&c, at);
            self.record(addr).body().into_iter().for_each(|number| self.drop_body(number));
        }
        self.give_page(page);
        Some(all.len())
    }

    /// Evicts from a collection until a page or its worth of bodies is free, or will be the sooner; false if it has
    /// nothing here that may go.
    pub(crate) fn evict(&mut self, c: &State, now_ms: u64) -> bool {
        for _ in 0..KEPT_PAGES {
            let Some(queue) = self.queue_to_evict(c) else {
                return false;
            };
            if let Some(done) = self.evict_page(c, queue, now_ms) {
                return done;
            }
            self.logs(c).kept_pages += usize::from(queue == MAIN);
        }
        false
    }

    /// Evicts from the front page of a queue; false if that takes a page and there is none, `None` if all of it had to
    /// stay and is now at the back.
    fn evict_page(&mut self, c: &State, queue: u8, now_ms: u64) -> Option<bool> {
        let log = &mut self.logs(c).queues[usize::from(queue)];
        log.spots.clear();
        let (page, mut at) = (*log.pages.front().expect("the queue has pages"), log.head);
        let note = *self.arena.note(&self.owner, page);
        let (mut freed, mut done) = (0, false);
        while at < self.arena.note(&self.owner, page).used_bytes as usize {
            let addr = Addr::new(page.0, at);
            let len = self.record(addr).len_bytes();
            match self.evict_record(c, queue, addr, now_ms) {
                Fate::Gone(bytes) => (freed, done) = (freed + bytes, true),
                Fate::Passed(sooner) => done |= sooner,
                Fate::Stuck => return Some(done),
            }
            at += len;
            self.logs(c).queues[usize::from(queue)].head = at;
            if freed >= PAGE_BYTES as u64 {
                return Some(true);
            }
        }
        self.pop_front(c, queue);
        (done || note.live_bytes < note.used_bytes).then_some(true)
    }

    /// The small queue while it has more than its part, else the main one; whichever has entries that may go.
    fn queue_to_evict(&self, c: &State) -> Option<u8> {
        let logs = self.logs.get(usize::from(c.index))?.as_ref().filter(|logs| logs.c.id == c.id)?;
        let [main, small] = &logs.queues;
        let small_first = small.bytes * SMALL_PART >= small.bytes + main.bytes;
        match (small.pages.is_empty(), main.pages.len() <= logs.kept_pages) {
            (true, true) => None,
            (false, true) => Some(SMALL),
            (true, false) => Some(MAIN),
            (false, false) => Some(if small_first { SMALL } else { MAIN }),
        }
    }

    /// Decides on one record at the head of a queue.
    fn evict_record(&mut self, c: &State, queue: u8, addr: Addr, now_ms: u64) -> Fate {
        let record = self.record(addr);
        if record.is_dead() {
            return Fate::Passed(false);
        }
        let freq = record.freq();
        if self.is_kept(c, addr) {
            return if self.requeue(c, queue, addr, freq) { Fate::Passed(false) } else { Fate::Stuck };
        }
        let expires_ms = self.record(addr).expires_ms();
        let expired = expires_ms != 0 && expires_ms <= now_ms;
        if freq > 0 && !expired && self.requeue(c, queue, addr, if queue == SMALL { 0 } else { freq - 1 }) {
            self.logs(c).kept_pages = 0;
            return Fate::Passed(true);
        }
        let weight = self.weight(c, self.record(addr));
        self.forget_name(c, addr);
        if queue == SMALL && !expired {
            self.remember(c, addr);
        }
        let at = self.position(c, addr);
        self.kill(c, at, addr);
        let counts = &mut self.logs(c).counts;
        *(if expired { &mut counts.expired } else { &mut counts.evictions }) += 1;
        Fate::Gone(weight)
    }

    /// Whether an entry may not go by itself: it is a pending write, or others have it too.
    fn is_kept(&self, c: &State, addr: Addr) -> bool {
        self.record(addr).is_marked(PENDING) || self.shared_slots > 0 && self.is_shared(c, self.tag(c, addr))
    }

    /// Moves a record to the back of the main queue, with a use count; false if there is no page even in the reserve.
    fn requeue(&mut self, c: &State, from: u8, addr: Addr, freq: u8) -> bool {
        let len = self.record(addr).len_bytes();
        let weight = self.weight(c, self.record(addr));
        let expires_ms = self.record(addr).expires_ms();
        let at = self.position(c, addr);
        let Ok(to) = self.append(c, MAIN, len, true) else {
            return false;
        };
        let place = |addr: Addr| (PageId(addr.page()), addr.offset());
        self.arena.move_bytes(&mut self.owner, place(addr), place(to), len);
        record::set_freq(self.bytes_mut(to), freq);
        self.note_expiry(PageId(to.page()), expires_ms);
        self.index.set_addr(at, to);
        record::mark_dead(self.bytes_mut(addr));
        self.arena.note_mut(&mut self.owner, PageId(addr.page())).live_bytes -= len as u32;
        let logs = self.logs(c);
        logs.queues[usize::from(from)].bytes -= weight;
        logs.queues[usize::from(from)].garbage += len as u64;
        logs.queues[usize::from(MAIN)].bytes += weight;
        true
    }

    fn pop_front(&mut self, c: &State, queue: u8) {
        let log = &mut self.logs(c).queues[usize::from(queue)];
        let page = log.pages.pop_front().expect("the queue has pages");
        log.head = 0;
        let note = *self.arena.note(&self.owner, page);
        assert_eq!(note.live_bytes, 0, "all entries of an evicted page are gone");
        self.logs(c).queues[usize::from(queue)].garbage -= u64::from(note.used_bytes);
        self.give_page(page);
    }

    /// Frees a page by moving together the live entries of at most `window` neighbouring pages; order is kept.
    pub(crate) fn compact(&mut self, c: &State, window: usize) -> bool {
        for queue in [MAIN, SMALL] {
            if let Some((first, last)) = self.best_window(c, queue, window)
                && self.slide(c, queue, first, last)
            {
                return true;
            }
        }
        false
    }

    /// The shortest run of pages that holds more than a page of garbage.
    fn best_window(&self, c: &State, queue: u8, window: usize) -> Option<(usize, usize)> {
        let logs = self.logs.get(usize::from(c.index))?.as_ref()?;
        let log = &logs.queues[usize::from(queue)];
        if log.garbage < PAGE_BYTES as u64 {
            return None;
        }
        let free = |page: &PageId| PAGE_BYTES as u64 - u64::from(self.arena.note(&self.owner, *page).live_bytes);
        let free: Vec<u64> = log.pages.iter().map(free).collect();
        let mut best: Option<(usize, usize)> = None;
        let (mut first, mut sum) = (0, 0);
        for last in 0..free.len() {
            sum += free[last];
            // Moving records together leaves up to a record's length unused at the end of each page.
            while first <= last && sum >= PAGE_BYTES as u64 + (last - first) as u64 * (PAGE_BYTES as u64 / 64) {
                if last - first < window && best.is_none_or(|(f, l)| last - first < l - f) {
                    best = Some((first, last));
                }
                sum -= free[first];
                first += 1;
            }
        }
        best
    }

    /// Moves the live records of pages `first..=last` of a queue to the front of that run and frees what is left over.
    /// Packing in order never overtakes what it reads, so no spare page is needed. False if nothing was left over.
    fn slide(&mut self, c: &State, queue: u8, first: usize, last: usize) -> bool {
        let log = &mut self.logs(c).queues[usize::from(queue)];
        log.spots.clear();
        let pages: Vec<PageId> = log.pages.range(first..=last).copied().collect();
        let mut garbage = 0;
        let (mut to, mut to_at) = (0, 0);
        let mut expiry = 0;
        for page in &pages {
            let note = *self.arena.note(&self.owner, *page);
            garbage += u64::from(note.used_bytes - note.live_bytes);
            let mut offset = 0;
            while offset < note.used_bytes as usize {
                let addr = Addr::new(page.0, offset);
                let (len, dead) = (self.record(addr).len_bytes(), self.record(addr).is_dead());
                offset += len;
                if dead {
                    continue;
                }
                if to_at + len > PAGE_BYTES {
                    self.close_slid(pages[to], to_at, expiry);
                    (to, to_at, expiry) = (to + 1, 0, 0);
                }
                expiry = earlier(expiry, self.record(addr).expires_ms());
                self.relocate(c, addr, Addr::new(pages[to].0, to_at), len);
                to_at += len;
            }
        }
        self.close_slid(pages[to], to_at, expiry);
        let kept = if to_at > 0 { to + 1 } else { to };
        let log = &mut self.logs(c).queues[usize::from(queue)];
        log.pages.drain(first + kept..=last);
        log.garbage -= garbage;
        if first == 0 {
            log.head = 0;
        }
        pages[kept..].iter().for_each(|page| self.give_page(*page));
        self.logs(c).kept_pages = 0;
        kept < pages.len()
    }

    fn close_slid(&mut self, page: PageId, used: usize, expiry_ms: u64) {
        let note = self.arena.note_mut(&mut self.owner, page);
        (note.used_bytes, note.live_bytes, note.first_expiry_s) = (used as u32, used as u32, 0);
        self.note_expiry(page, expiry_ms);
    }

    fn relocate(&mut self, c: &State, from: Addr, to: Addr, len: usize) {
        if from == to {
            return;
        }
        let at = self.position(c, from);
        let place = |addr: Addr| (PageId(addr.page()), addr.offset());
        self.arena.move_bytes(&mut self.owner, place(from), place(to), len);
        self.index.set_addr(at, to);
    }

    /// Removes the expired entries of a page; gives how many records it looked at, and how many had expired.
    pub(crate) fn expire_page(&mut self, c: &State, page: PageId, now_ms: u64) -> (usize, usize) {
        let due = self.arena.note(&self.owner, page).first_expiry_s;
        if due == 0 || u64::from(due) * 1000 > now_ms {
            return (0, 0);
        }
        let (mut next, mut looked) = (0, 0);
        let mut dead = Vec::new();
        for addr in self.records(page, 0) {
            looked += 1;
            let (record, expires_ms) = (self.record(addr), self.record(addr).expires_ms());
            if record.is_dead() || expires_ms == 0 {
                continue;
            }
            let is_over = expires_ms <= now_ms;
            if is_over && !self.is_kept(c, addr) {
                dead.push(addr);
            } else {
                next = earlier(next, if is_over { now_ms + KEPT_AGAIN_MS } else { expires_ms });
            }
        }
        for addr in &dead {
            self.leave_fence(c, *addr, now_ms);
            self.forget_name(c, *addr);
            let at = self.position(c, *addr);
            self.kill(c, at, *addr);
        }
        self.logs(c).counts.expired += dead.len() as u64;
        self.arena.note_mut(&mut self.owner, page).first_expiry_s = 0;
        self.note_expiry(page, next);
        (looked, dead.len())
    }

    fn expire_all(&mut self, c: &State, now_ms: u64) -> usize {
        let pages: Vec<PageId> = self.logs(c).queues.iter().flat_map(|queue| queue.pages.iter().copied()).collect();
        pages.into_iter().map(|page| self.expire_page(c, page, now_ms).1).sum()
    }

    /// Gives a page of a queue back in which nothing lives; false if something does.
    fn give_dead(&mut self, c: &State, queue: usize, at: usize) -> bool {
        let page = self.logs(c).queues[queue].pages[at];
        let note = *self.arena.note(&self.owner, page);
        if note.live_bytes > 0 {
            return false;
        }
        let log = &mut self.logs(c).queues[queue];
        log.spots.clear();
        log.pages.remove(at);
        log.garbage -= u64::from(note.used_bytes);
        if at == 0 {
            log.head = 0;
        }
        self.logs(c).kept_pages = 0;
        self.give_page(page);
        true
    }

    /// Looks at up to `max_pages` pages for expired entries, until `budget` records are looked at, and goes on from
    /// there at the next call; gives the pages and the records looked at.
    pub(crate) fn sweep(&mut self, now_ms: u64, max_pages: usize, budget: usize) -> (usize, usize) {
        let (mut index, mut queue, mut page) = self.sweep_at;
        let (mut pages, mut records) = (0, 0);
        let max_pages = max_pages.min(SWEEP_PAGES);
        while pages < max_pages && records < budget && index < self.logs.len() {
            let logs = self.logs[index].as_ref();
            match logs.and_then(|logs| logs.queues.get(queue)).map(|log| log.pages.get(page).copied()) {
                Some(Some(id)) => {
                    let c = logs.expect("it has queues").c.clone();
                    records += self.expire_page(&c, id, now_ms).0;
                    pages += 1;
                    page += usize::from(!self.give_dead(&c, queue, page));
                }
                Some(None) => (queue, page) = (queue + 1, 0),
                None => (index, queue, page) = (index + 1, 0, 0),
            }
        }
        self.sweep_at = if index < self.logs.len() { (index, queue, page) } else { (0, 0, 0) };
        (pages, records)
    }

    /// The token an expired entry was shown stays behind.
    fn leave_fence(&mut self, c: &State, addr: Addr, now_ms: u64) {
        if let Some(fence) = self.record(addr).fence() {
            let tag = self.tag(c, addr);
            let (name, generation): (Box<[u8]>, _) = (self.record(addr).name().into(), self.logs(c).generation);
            self.leave((generation, tag, &name), Cause::Gone, fence, now_ms);
        }
    }

    /// Takes the name of an entry that goes by itself out of the sorted names.
    pub(crate) fn forget_name(&self, c: &State, addr: Addr) {
        let generation = self.arena.note(&self.owner, PageId(addr.page())).generation;
        c.remove_name(generation, self.record(addr).name());
    }

    /// Remembers the fingerprint of an entry evicted from the small queue.
    fn remember(&mut self, c: &State, addr: Addr) {
        let wanted = (self.index.len() / 2).next_power_of_two().clamp(256, 1 << 22);
        if self.ghost.len() < wanted {
            self.arena.charge((wanted - self.ghost.len()) as u64 * 4);
            self.ghost = vec![0; wanted];
        }
        let tag = self.tag(c, addr).value();
        let at = tag as usize % self.ghost.len();
        self.ghost[at] = tag | 1 << 31;
    }

    /// Whether an entry with this tag was evicted a short while ago; forgets it.
    pub(crate) fn recall(&mut self, tag: u32) -> bool {
        let slots = self.ghost.len();
        if slots == 0 || self.ghost[tag as usize % slots] != tag | 1 << 31 {
            return false;
        }
        self.ghost[tag as usize % slots] = 0;
        true
    }
}

fn earlier(a_ms: u64, b_ms: u64) -> u64 {
    match (a_ms, b_ms) {
        (0, b) => b,
        (a, 0) => a,
        (a, b) => a.min(b),
    }
}
