//! A shard: an index, logs of entries for each collection, and what is known of its slots; all behind one lock.
//!
//! Entries of a collection are appended to pages; a page holds entries of one collection and queue only. Invariants:
//!
//! 1. Every live record is in the index exactly once, and every word of it points at a live record. A name has at most
//!    one record as committed, and one that is pending.
//! 2. A page's `live_bytes` is the sum of its live records; a queue's `bytes` adds their bodies.
//! 3. Pages of an older generation of their collection are in `stale`, and found by nobody.
//! 4. Logs and stale pages hold their collection, so its index stands for no other.
//!
//! Bodies whose entry is gone are freed a bounded number at a time, and after the lock is left unless a put waits for
//! their memory. Who may call: `Store` and its `Entry`, which hold the lock. Making room is in `evict.rs`.

use crate::arena::{Arena, Owner, PAGE_BYTES, PageId, PageNote, prefetch};
use crate::body::Body;
use crate::collection::{Counts, Generation, State};
use crate::index::{Addr, Index, Tag};
use crate::left::{Cause, Left};
use crate::pending::{ByName, Prepared};
use crate::record::{self, Draft, PENDING, Record};
use crate::slot::{Layout, Slot};
use crate::sync::{Mutex, MutexGuard, Rank};
use herd_core::bugs::{Bug, has};
use herd_core::entry::{Fence, Version};
use herd_core::key::HashKey;
use herd_core::limits::{LEFT_FENCES_PART, SLOTS};
use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// Bytes fetched ahead of an entry: a small object, or the start of a larger one that the hardware goes on with.
pub(crate) const FETCH_BYTES: usize = 320;
/// Blocks of bodies freed when a shard's lock is left, but for the last body, which goes whole: 0.3 ms.
const TRASH_BLOCKS: usize = 4096;
/// Blocks freed under a shard's lock for a put that waits for memory: 5 us.
const TRASH_BLOCKS_LOCKED: usize = 64;
/// Garbage of a queue that may make the difference for a put that was refused.
const GARBAGE_STEP_BYTES: u64 = 8 * 1024;
/// Places of replaced records that a queue remembers: about as many writes as are pending in a shard at once.
const SPOTS_MAX: usize = 16;

/// The queue of entries that proved useful, and of those that are never evicted.
pub(crate) const MAIN: u8 = 0;
/// The queue of new entries of an evicting collection (S3-FIFO).
pub(crate) const SMALL: u8 = 1;

pub(crate) struct Shard {
    pub(crate) arena: Arc<Arena>,
    pub(crate) owner: Owner,
    pub(crate) index: Index,
    pub(crate) logs: Vec<Option<Box<Logs>>>,
    pub(crate) stale: Vec<Stale>,
    pub(crate) ghost: Vec<u32>,
    /// Tokens that removed objects left behind.
    pub(crate) left: Left,
    /// Writes that are prepared, and neither committed nor dropped.
    pub(crate) pending: ByName<Prepared>,
    /// Bodies of large entries, by the number in their record.
    bodies: Vec<Option<Arc<Body>>>,
    free_bodies: Vec<u32>,
    /// Bodies whose entry is gone.
    pub(crate) trash: Vec<Arc<Body>>,
    pub(crate) layout: Layout,
    /// This shard's slots, of spread group 0, then of 1 and on: as many as were met.
    pub(crate) slots: Vec<Slot>,
    /// How many of them are not this node's alone.
    pub(crate) shared_slots: usize,
    /// The versions of each spread group's first slot here follow this one.
    pub(crate) first_version: Version,
    /// Where the sweep for expired entries stands: collection, queue, page.
    pub(crate) sweep_at: (usize, usize, usize),
    hash_key: HashKey,
}

/// Pages of an older generation.
pub(crate) struct Stale {
    pub(crate) c: Arc<State>,
    pub(crate) pages: VecDeque<PageId>,
}

/// The entries of one collection in one shard.
pub(crate) struct Logs {
    pub(crate) c: Arc<State>,
    pub(crate) queues: [Queue; 2],
    pub(crate) generation: Generation,
    pub(crate) counts: Counts,
    /// Pages at the back of the main queue in which nothing may go, as far as eviction has seen.
    pub(crate) kept_pages: usize,
    /// Change of bytes not yet reported to the collection.
    unreported: i64,
}

/// A queue of pages: entries are appended at the back and leave at the front.
#[derive(Default)]
pub(crate) struct Queue {
    pub(crate) pages: VecDeque<PageId>,
    /// Where eviction stands in the front page.
    pub(crate) head: usize,
    /// Bytes of live entries and their bodies.
    pub(crate) bytes: u64,
    /// Bytes of dead entries in the pages.
    pub(crate) garbage: u64,
    /// Dead records whose place the next write of just their length may take, the latest last, and their lengths. Who
    /// moves or frees what is in the pages forgets them.
    pub(crate) spots: Vec<(Addr, usize)>,
}

/// There was no page for an entry.
pub(crate) struct NoPage;

impl Shard {
    pub(crate) fn new(arena: Arc<Arena>, owner: Owner, hash_key: HashKey, layout: Layout, first: Version) -> Self {
        let left = Left::new(arena.budget_bytes() / LEFT_FENCES_PART * layout.slots() as u64 / SLOTS as u64);
        Self {
            arena,
            owner,
            index: Index::new(),
            logs: Vec::new(),
            stale: Vec::new(),
            ghost: Vec::new(),
            left,
            pending: ByName::new(),
            bodies: Vec::new(),
            free_bodies: Vec::new(),
            trash: Vec::new(),
            layout,
            slots: Vec::new(),
            shared_slots: 0,
            first_version: first,
            sweep_at: (0, 0, 0),
            hash_key,
        }
    }

    /// Begins to fetch a slot, which is needed once the index and the record were waited for.
    #[inline]
    pub(crate) fn foresee_slot(&self, at: usize) {
        prefetch(&self.slots[at]);
    }

    /// Leaves a token behind at a name.
    pub(crate) fn leave(&mut self, of: (Generation, Tag, &[u8]), cause: Cause, fence: Fence, now_ms: u64) {
        self.left.leave(&self.arena, of, cause, fence, now_ms);
    }

    /// There is an object of that name again.
    #[inline]
    pub(crate) fn forget_left(&mut self, generation: Generation, tag: Tag, name: &[u8]) {
        self.left.take(&self.arena, generation, tag, name);
    }

    /// Forgets up to `max` of the tokens whose time or generation is over; gives how many.
    pub(crate) fn forget_old_left(&mut self, now_ms: u64, max: usize) -> usize {
        self.left.forget(&self.arena, now_ms, max)
    }

    /// Makes the logs of a collection those of its generation; gives it.
    #[inline]
    pub(crate) fn begin(&mut self, c: &Arc<State>, now_ms: u64) -> Generation {
        let at = usize::from(c.index);
        let generation = c.generation(now_ms);
        let current = self.logs.get(at).and_then(Option::as_ref).is_some_and(|logs| logs.generation == generation);
        if !current {
            self.renew(c, generation);
        }
        generation
    }

    /// The logs of a collection that has some.
    #[inline]
    pub(crate) fn logs(&mut self, c: &State) -> &mut Logs {
        self.logs[usize::from(c.index)].as_mut().expect("logs are made before entries")
    }

    #[cold]
    fn renew(&mut self, c: &Arc<State>, generation: Generation) {
        let at = usize::from(c.index);
        if at >= self.logs.len() {
            self.logs.resize_with(at + 1, || None);
        }
        self.meet(c.spread());
        let counts = self.retire(at);
        let queues = Default::default();
        self.logs[at] = Some(Box::new(Logs { c: c.clone(), queues, generation, counts, kept_pages: 0, unreported: 0 }));
    }

    /// Takes the logs at an index out; their pages are stale then. Gives what they counted that lasts.
    fn retire(&mut self, at: usize) -> Counts {
        let Some(old) = self.logs[at].take() else { return Counts::default() };
        self.left.end(old.generation);
        self.pending.retain(&self.arena, |(_, generation, _), _| *generation != old.generation);
        old.c.report_now(old.unreported - old.counts.bytes as i64);
        let stale = old.queues.into_iter().map(|queue| queue.pages).filter(|pages| !pages.is_empty());
        self.stale.extend(stale.map(|pages| Stale { c: old.c.clone(), pages }));
        Counts { objects: 0, bytes: 0, ..old.counts }
    }

    /// Makes stale what was flushed or destroyed, but for the collection `held`, of which an entry is locked.
    pub(crate) fn retire_old(&mut self, held: Option<&State>, now_ms: u64) {
        for at in (0..self.logs.len()).filter(|at| held.is_none_or(|held| usize::from(held.index) != *at)) {
            let Some(logs) = &self.logs[at] else { continue };
            let generation = logs.c.generation(now_ms);
            if logs.c.is_destroyed() {
                self.retire(at);
            } else if generation != logs.generation {
                let c = logs.c.clone();
                self.renew(&c, generation);
            }
        }
    }

    /// What a collection has here, and counted.
    pub(crate) fn counts(&self, c: &State) -> Counts {
        match self.logs.get(usize::from(c.index)) {
            Some(Some(logs)) if logs.c.id == c.id && logs.generation == c.generation(0) => logs.counts,
            Some(Some(logs)) if logs.c.id == c.id => Counts { objects: 0, bytes: 0, ..logs.counts },
            _ => Counts::default(),
        }
    }

    /// The collections that have logs here.
    pub(crate) fn collections(&self) -> Vec<Arc<State>> {
        self.logs.iter().flatten().map(|logs| logs.c.clone()).collect()
    }

    /// Position and address of an entry as committed.
    #[inline]
    pub(crate) fn find(&self, c: &State, generation: Generation, tag: Tag, name: &[u8]) -> Option<(usize, Addr)> {
        self.find_either(c, generation, tag, name, false)
    }

    /// Position and address of an entry's pending write.
    pub(crate) fn find_pending(
        &self,
        c: &State,
        generation: Generation,
        tag: Tag,
        name: &[u8],
    ) -> Option<(usize, Addr)> {
        self.find_either(c, generation, tag, name, true)
    }

    #[inline]
    fn find_either(
        &self,
        c: &State,
        generation: Generation,
        tag: Tag,
        name: &[u8],
        is_pending: bool,
    ) -> Option<(usize, Addr)> {
        self.index.find(tag, |addr| {
            self.arena.fetch(&self.owner, PageId(addr.page()), addr.offset(), FETCH_BYTES);
            let note = self.arena.note(&self.owner, PageId(addr.page()));
            let current = note.generation == generation || has(Bug::StaleGeneration);
            let is_it = |record: Record<'_>| record.name() == name && record.is_marked(PENDING) == is_pending;
            note.collection == c.index && current && is_it(self.record(addr))
        })
    }

    /// The entry at an address.
    #[inline]
    pub(crate) fn record(&self, addr: Addr) -> Record<'_> {
        Record::at(&self.arena.page(&self.owner, PageId(addr.page()))[addr.offset()..])
    }

    /// The bytes of the entry at an address and what follows it in its page.
    #[inline]
    pub(crate) fn bytes_mut(&mut self, addr: Addr) -> &mut [u8] {
        &mut self.arena.page_mut(&mut self.owner, PageId(addr.page()))[addr.offset()..]
    }

    /// The tag of the entry at an address.
    pub(crate) fn tag(&self, c: &State, addr: Addr) -> Tag {
        self.layout.tag(c.object_id(&self.hash_key, self.record(addr).name()))
    }

    /// Adds an entry to the index, which has room; gives its position.
    pub(crate) fn link(&mut self, c: &State, tag: Tag, addr: Addr) -> usize {
        self.count_entry(c, tag);
        self.index.insert(tag, addr)
    }

    /// Takes the entry at index position `at` out; others may be at another position then.
    pub(crate) fn unlink(&mut self, c: &State, at: usize) {
        self.uncount_entry(c, self.index.tag(at));
        self.index.remove(at);
    }

    /// Index position of the live entry at an address.
    pub(crate) fn position(&self, c: &State, addr: Addr) -> usize {
        self.index.find(self.tag(c, addr), |there| there == addr).expect("a live entry is in the index").0
    }

    /// The body a large record refers to.
    pub(crate) fn body(&self, number: u32) -> &Arc<Body> {
        self.bodies[number as usize].as_ref().expect("a live record's body is kept")
    }

    /// Keeps a body; gives its number.
    pub(crate) fn keep_body(&mut self, body: Arc<Body>) -> u32 {
        match self.free_bodies.pop() {
            Some(number) => {
                self.bodies[number as usize] = Some(body);
                number
            }
            None => {
                self.bodies.push(Some(body));
                (self.bodies.len() - 1) as u32
            }
        }
    }

    /// Lets a body go.
    pub(crate) fn drop_body(&mut self, number: u32) {
        let body = self.bodies[number as usize].take().expect("a body is dropped once");
        self.free_bodies.push(number);
        self.trash.push(body);
    }

    /// Frees up to [`TRASH_BLOCKS_LOCKED`] blocks of bodies whose entry is gone; false if there were none.
    pub(crate) fn empty_trash(&mut self) -> bool {
        let mut left = TRASH_BLOCKS_LOCKED;
        while left > 0
            && let Some(body) = self.trash.pop()
        {
            // What others still read is not freed here, nor by them alone: they drop it later.
            let Some(mut body) = Arc::into_inner(body) else { continue };
            left -= body.give_blocks(left);
            if body.has_blocks() {
                self.trash.push(Arc::new(body));
            }
        }
        left < TRASH_BLOCKS_LOCKED
    }

    /// Bodies that will be freed when the lock is left, and their blocks.
    fn trash_to_take(&self) -> (usize, usize) {
        let (mut bodies, mut blocks) = (0, 0);
        for body in self.trash.iter().rev() {
            if blocks >= TRASH_BLOCKS {
                break;
            }
            (bodies, blocks) = (bodies + 1, blocks + body.checksums().len());
        }
        (bodies, blocks)
    }

    /// Blocks that will be freed when the lock is left.
    pub(crate) fn trash_blocks(&self) -> usize {
        self.trash_to_take().1
    }

    /// Takes out what is to be freed after the lock is left.
    fn take_trash(&mut self) -> Vec<Arc<Body>> {
        let (bodies, _) = self.trash_to_take();
        self.trash.split_off(self.trash.len() - bodies)
    }

    /// Bytes of an entry as counted: its record, its body and its place among the sorted names.
    pub(crate) fn weight(&self, c: &State, record: Record<'_>) -> u64 {
        let body = record.body().map_or(0, |number| self.body(number).memory_bytes());
        record.len_bytes() as u64 + body + c.name_cost_bytes(record.name().len())
    }

    /// Room for an entry of `len` bytes: the place of one that was replaced, or at the end of a queue; `reserved` may
    /// take the last pages. The caller writes the record there before anything else happens to the shard.
    pub(crate) fn append(&mut self, c: &State, queue: u8, len: usize, reserved: bool) -> Result<Addr, NoPage> {
        let logs = self.logs[usize::from(c.index)].as_mut().expect("logs are made before entries");
        let log = &mut logs.queues[usize::from(queue)];
        if let Some(at) = log.spots.iter().rposition(|(_, spot)| *spot == len) {
            let (addr, _) = log.spots.remove(at);
            log.garbage -= len as u64;
            self.arena.note_mut(&mut self.owner, PageId(addr.page())).live_bytes += len as u32;
            return Ok(addr);
        }
        let last = log.pages.back().copied();
        let room = last.filter(|id| self.arena.note(&self.owner, *id).used_bytes as usize + len <= PAGE_BYTES);
        let page = match room {
            Some(page) => page,
            None => {
                let note = PageNote { collection: c.index, queue, generation: logs.generation, ..Default::default() };
                let page = self.arena.take_page(&mut self.owner, note, reserved).ok_or(NoPage)?;
                log.pages.push_back(page);
                page
            }
        };
        let note = self.arena.note_mut(&mut self.owner, page);
        let offset = note.used_bytes as usize;
        note.used_bytes += len as u32;
        note.live_bytes += len as u32;
        Ok(Addr::new(page.0, offset))
    }

    /// Notes that an entry of this page expires, so that sweeps look at it.
    pub(crate) fn note_expiry(&mut self, page: PageId, expires_ms: u64) {
        if expires_ms != 0 {
            self.arena.note_expiring();
            let seconds = (expires_ms / 1000).clamp(1, u64::from(u32::MAX)) as u32;
            let note = self.arena.note_mut(&mut self.owner, page);
            note.first_expiry_s = if note.first_expiry_s == 0 { seconds } else { note.first_expiry_s.min(seconds) };
        }
    }

    /// Counts the bytes of a new live entry of `weight` bytes in `queue`; the object counts once it is committed.
    pub(crate) fn count_in(&mut self, c: &State, queue: u8, weight: u64) {
        let logs = self.logs(c);
        logs.kept_pages = if queue == MAIN { 0 } else { logs.kept_pages };
        logs.queues[usize::from(queue)].bytes += weight;
        logs.change(c, weight as i64);
    }

    /// Removes the entry at index position `at`: marks it dead, uncounts it, lets its body go.
    pub(crate) fn kill(&mut self, c: &State, at: usize, addr: Addr) {
        self.unlink(c, at);
        self.bury(c, addr);
    }

    /// As `kill`, for an entry whose word in the index is used for its successor.
    pub(crate) fn bury(&mut self, c: &State, addr: Addr) {
        let record = self.record(addr);
        let (len, weight, body) = (record.len_bytes(), self.weight(c, record), record.body());
        let objects = u64::from(!record.is_marked(PENDING));
        if let Some(number) = body {
            self.drop_body(number);
        }
        record::mark_dead(self.bytes_mut(addr));
        let note = self.arena.note_mut(&mut self.owner, PageId(addr.page()));
        note.live_bytes -= len as u32;
        let queue = usize::from(note.queue);
        let logs = self.logs(c);
        let before = logs.queues[queue].garbage;
        logs.queues[queue].bytes -= weight;
        logs.queues[queue].garbage += len as u64;
        logs.counts.objects -= objects;
        logs.change(c, -(weight as i64));
        if before / GARBAGE_STEP_BYTES != (before + len as u64) / GARBAGE_STEP_BYTES {
            self.arena.note_freeable();
        }
    }

    /// As `kill`, of an entry that a committed write replaces. Its place is taken by the next write of the same length:
    /// objects that are written again and again stay in the memory they are in, as in a herd of one.
    pub(crate) fn replace(&mut self, c: &State, at: usize, addr: Addr) {
        let (len, queue) = (self.record(addr).len_bytes(), self.arena.note(&self.owner, PageId(addr.page())).queue);
        self.kill(c, at, addr);
        let spots = &mut self.logs(c).queues[usize::from(queue)].spots;
        if spots.len() == SPOTS_MAX {
            spots.remove(0);
        }
        spots.push((addr, len));
    }

    /// Overwrites an entry with one of the same length in the page.
    pub(crate) fn overwrite(&mut self, c: &State, addr: Addr, draft: &Draft<'_>, weight: u64) {
        let record = self.record(addr);
        let (old_weight, body, freq) = (self.weight(c, record), record.body(), record.freq());
        if let Some(number) = body {
            self.drop_body(number);
        }
        draft.write(self.bytes_mut(addr), (freq + 1).min(3));
        self.note_expiry(PageId(addr.page()), draft.head.expires_ms);
        let queue = usize::from(self.arena.note(&self.owner, PageId(addr.page())).queue);
        let logs = self.logs(c);
        logs.queues[queue].bytes = logs.queues[queue].bytes + weight - old_weight;
        logs.change(c, weight as i64 - old_weight as i64);
    }

    /// Gives a page whose live entries are gone back to the pool.
    pub(crate) fn give_page(&mut self, page: PageId) {
        self.arena.give_page(&mut self.owner, page);
    }

    /// The addresses of all records of a page, dead ones included, from `offset` on.
    pub(crate) fn records(&self, page: PageId, from: usize) -> impl Iterator<Item = Addr> + '_ {
        let used = self.arena.note(&self.owner, page).used_bytes as usize;
        let mut offset = from;
        std::iter::from_fn(move || {
            let addr = (offset < used).then(|| Addr::new(page.0, offset))?;
            offset += self.record(addr).len_bytes();
            Some(addr)
        })
    }
}

impl Logs {
    #[inline]
    fn change(&mut self, c: &State, bytes: i64) {
        self.counts.bytes = self.counts.bytes.checked_add_signed(bytes).expect("bytes are never negative");
        self.unreported = c.report(self.unreported + bytes);
    }
}

/// A shard behind its lock, on cache lines of its own.
#[repr(align(128))]
pub(crate) struct Lane(Mutex<Shard>);

impl Lane {
    pub(crate) fn new(shard: Shard) -> Self {
        Self(Mutex::new(Rank::Shard, shard))
    }

    #[inline]
    pub(crate) fn lock(&self) -> Locked<'_> {
        Locked { shard: self.0.lock(), trash: None }
    }

    /// The shard, if nobody has it: another one's lock is only tried by who has one.
    pub(crate) fn try_lock(&self) -> Option<Locked<'_>> {
        self.0.try_lock().map(|shard| Locked { shard, trash: None })
    }
}

/// A locked shard. What it threw away, if anything, is dropped after the lock, since fields are dropped in their order.
pub(crate) struct Locked<'s> {
    shard: MutexGuard<'s, Shard>,
    trash: Option<Vec<Arc<Body>>>,
}

impl Drop for Locked<'_> {
    #[inline]
    fn drop(&mut self) {
        if !self.shard.trash.is_empty() {
            self.trash = Some(self.shard.take_trash());
        }
    }
}

impl Deref for Locked<'_> {
    type Target = Shard;

    #[inline]
    fn deref(&self) -> &Shard {
        &self.shard
    }
}

impl DerefMut for Locked<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Shard {
        &mut self.shard
    }
}
