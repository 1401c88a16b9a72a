//! The memory of the store: one mapping cut into pages of 64 KiB, in huge pages where the system has them, and the only
//! `unsafe` of this crate.
//!
//! A *log page* is owned by one shard, for its log of small entries. A *block page* is cut into *pieces* of 1 KiB
//! granules, for blocks of large values, or is one piece. Invariants:
//!
//! 1. A log page's owner is written only under the pool's lock, and only from or to "nobody".
//! 2. The bytes and the note of an owned page are reached only through the owner's token, of which there is one per
//!    shard: a shared borrow of the token gives shared borrows, a mutable one a mutable borrow.
//! 3. A granule belongs to at most one [`Piece`], which only the pool makes; a piece can't be copied, so borrows of it
//!    follow the same rule. That it lies in this mapping is asserted at each use.
//! 4. Page 0 is never handed out, so that an address is never zero.
//! 5. A page that was lent to the kernel is never written again: when it is free its memory is given back to the
//!    system, which keeps it for as long as packets still refer to it, and the page gets new memory.
//!
//! Pages in use never exceed the budget less what others charged; memory is touched in order, so resident memory
//! follows use.

use crate::collection::Generation;
pub(crate) use crate::pool::{GRANULE_BYTES, PAGE_BYTES, Piece};
use crate::pool::{Memory, Pool, REGION_PAGES};
use crate::sync::atomic::{AtomicU32 as Shared32, AtomicU64};
use crate::sync::{Mutex, MutexGuard, Rank};
use herd_core::quote;
use memmap2::{MmapMut, MmapOptions, UncheckedAdvice};
use std::cell::UnsafeCell;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, Ordering::Relaxed};

const REGION_BYTES: usize = REGION_PAGES as usize * PAGE_BYTES;

/// Index of a log page; never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct PageId(pub(crate) u32);

/// The right to a shard's pages: number of the arena and of the shard. One per shard; see the invariants above.
#[derive(Debug)]
pub(crate) struct Owner(u32);

/// The number of the next arena, so that no right to one is taken for that to another. A process makes one.
static NEXT_ARENA: AtomicU16 = AtomicU16::new(1);

/// What a shard notes of a page it owns.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PageNote {
    /// Collection of all its entries.
    pub(crate) collection: u16,
    /// Queue within the collection.
    pub(crate) queue: u8,
    /// Generation of the collection when the page was begun.
    pub(crate) generation: Generation,
    /// Bytes of entries, dead ones included.
    pub(crate) used_bytes: u32,
    /// Bytes of live entries.
    pub(crate) live_bytes: u32,
    /// No entry expires before this, seconds since 1970; 0: none expires.
    pub(crate) first_expiry_s: u32,
}

struct Slot {
    owner: AtomicU32,
    note: UnsafeCell<PageNote>,
}

/// The mapping, the owners of log pages and the pool of free pages.
pub(crate) struct Arena {
    map: MmapMut,
    number: u16,
    /// Where page 0 begins, at a multiple of a region's size.
    base: *mut u8,
    slots: Box<[Slot]>,
    pool: Mutex<Pool>,
    /// Pages that ordinary allocations may still take; a hint kept by the pool.
    spare: Shared32,
    charged_bytes: AtomicU64,
    /// An entry that expires was written.
    expires: AtomicBool,
    /// How often memory became such that it can be freed; see [`Arena::note_freeable`].
    freeable: Shared32,
    budget_bytes: u64,
    /// The node whose memory it is, as errors name it.
    node: String,
    reserve_pages: u32,
    /// Pages beyond the budget that values may take which only pass.
    passing_pages: u32,
}

/// Who asks for memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum For {
    /// What is kept: the reserve stays.
    Kept,
    /// Reclaiming, which frees more than it takes.
    Reclaiming,
    /// A value that only passes: a node that is full of objects must still hand on those of others.
    Passing,
}

/// The part of the budget, one in so many bytes, that values which only pass may take beyond it, and within what
/// bounds.
const PASSING_PART: u64 = 8;
const PASSING_BYTES: (u64, u64) = (8 << 20, 256 << 20);

// SAFETY: bytes and notes are reached only through owner tokens and pieces (invariants 2 and 3), which order all
// access between threads by the locks and Arcs that hold them; everything else is atomic or behind a mutex.
#[allow(unsafe_code)]
unsafe impl Sync for Arena {}
// SAFETY: as above; the mapping is not tied to a thread.
#[allow(unsafe_code)]
unsafe impl Send for Arena {}

impl Arena {
    /// Maps `budget_bytes` and makes the tokens of `shards` owners. `reserve_pages` are kept for reclaiming.
    pub(crate) fn new(budget_bytes: u64, shards: u16, reserve_pages: u32) -> io::Result<(Self, Vec<Owner>)> {
        let pages = u32::try_from(budget_bytes / PAGE_BYTES as u64)
            .ok()
            .filter(|pages| (1..1 << 24).contains(pages))
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "memory must be 64 KiB to 1 TiB"))?;
        let passing_bytes = (budget_bytes / PASSING_PART).clamp(PASSING_BYTES.0, PASSING_BYTES.1);
        let passing_pages = (passing_bytes / PAGE_BYTES as u64) as u32;
        let all_pages = pages + passing_pages;
        let bytes = (all_pages as usize + 1) * PAGE_BYTES;
        let slot = |_| Slot { owner: AtomicU32::new(0), note: UnsafeCell::new(PageNote::default()) };
        let mut map = MmapOptions::new().len(bytes + REGION_BYTES).no_reserve_swap().map_anon()?;
        #[cfg(target_os = "linux")]
        map.advise(memmap2::Advice::HugePage).ok();
        let number = NEXT_ARENA.fetch_add(1, Relaxed);
        let arena = Self {
            number,
            base: map.as_mut_ptr().wrapping_add(map.as_ptr().align_offset(REGION_BYTES)),
            map,
            slots: (0..=all_pages).map(slot).collect(),
            pool: Mutex::new(Rank::Pool, Pool::new(number, all_pages)),
            freeable: Shared32::new(0),
            spare: Shared32::new(pages.saturating_sub(reserve_pages)),
            charged_bytes: AtomicU64::new(0),
            expires: AtomicBool::new(false),
            budget_bytes,
            node: String::new(),
            reserve_pages,
            passing_pages,
        };
        Ok((arena, (1..=shards).map(|shard| Owner(u32::from(number) << 16 | u32::from(shard))).collect()))
    }

    /// Says whose memory it is.
    pub(crate) fn name_node(&mut self, node: &str) {
        self.node = quote(node.as_bytes());
    }

    /// The node whose memory it is.
    pub(crate) fn node(&self) -> &str {
        &self.node
    }

    /// Bytes of the whole budget.
    pub(crate) fn budget_bytes(&self) -> u64 {
        self.budget_bytes
    }

    /// Bytes of pages in use and of what was charged.
    pub(crate) fn used_bytes(&self) -> u64 {
        u64::from(self.lock().used()) * PAGE_BYTES as u64 + self.charged_bytes.load(Relaxed)
    }

    /// Pages that may still be taken without reclaiming; a hint that may lag.
    #[inline]
    pub(crate) fn spare_pages(&self) -> u32 {
        self.spare.load(Relaxed)
    }

    /// Notes that memory which is in use may be freed now, by making room.
    pub(crate) fn note_freeable(&self) {
        self.freeable.fetch_add(1, Relaxed);
    }

    /// How often that was noted.
    pub(crate) fn freeable(&self) -> u32 {
        self.freeable.load(Relaxed)
    }

    /// An entry that expires is written.
    pub(crate) fn note_expiring(&self) {
        if !self.has_expiring() {
            self.expires.store(true, Relaxed);
        }
    }

    /// Whether any was.
    pub(crate) fn has_expiring(&self) -> bool {
        self.expires.load(Relaxed)
    }

    /// Counts memory outside the mapping (index tables, block lists) against the budget.
    pub(crate) fn charge(&self, bytes: u64) {
        self.charged_bytes.fetch_add(bytes, Relaxed);
        self.strip(&mut self.lock());
    }

    /// Gives memory back that is free and beyond the budget.
    fn strip(&self, pool: &mut Pool) {
        while let Some(page) = pool.strip(self.limit_pages()) {
            self.give_back(page, PAGE_BYTES);
        }
        self.note_spare(pool);
    }

    /// Bytes that values which only pass may take beyond the budget.
    pub(crate) fn passing_bytes(&self) -> u64 {
        u64::from(self.passing_pages) * PAGE_BYTES as u64
    }

    /// Takes back a charge.
    pub(crate) fn discharge(&self, bytes: u64) {
        let before = self.charged_bytes.fetch_sub(bytes, Relaxed);
        assert!(before >= bytes, "discharged more than was charged");
        self.note_spare(&self.lock());
    }

    /// Takes a free page for `owner`; `None` if the budget is used up. `reserved` may use the reserve.
    pub(crate) fn take_page(&self, owner: &mut Owner, note: PageNote, reserved: bool) -> Option<PageId> {
        let mut pool = self.lock();
        let id = PageId(self.take_from(&mut pool, if reserved { For::Reclaiming } else { For::Kept })?);
        self.note_spare(&pool);
        let before = self.slots[id.0 as usize].owner.swap(owner.0, Relaxed);
        assert_eq!(before, 0, "a free page has no owner");
        drop(pool);
        *self.note_mut(owner, id) = note;
        Some(id)
    }

    /// Gives a page of `owner` back.
    pub(crate) fn give_page(&self, owner: &mut Owner, id: PageId) {
        self.check(owner, id);
        let mut pool = self.lock();
        self.slots[id.0 as usize].owner.store(0, Relaxed);
        pool.give_page(id.0, false);
        self.note_spare(&pool);
    }

    /// Takes a piece of at least `bytes` (1 to 64 KiB); `None` if the budget is used up.
    pub(crate) fn take_piece(&self, bytes: usize, what: For) -> Option<Piece> {
        assert!((1..=PAGE_BYTES).contains(&bytes), "a piece has 1 B to 64 KiB");
        let granules = bytes.div_ceil(GRANULE_BYTES) as u8;
        let mut pool = self.lock();
        let piece = pool.cut_piece(granules).or_else(|| {
            let page = self.take_from(&mut pool, what)?;
            Some(pool.open_page(page, granules))
        });
        self.note_spare(&pool);
        piece
    }

    /// Begins to fetch a piece that is about to be filled into the core's cache, which makes the kernel's copy into it
    /// faster: a put of 16 MiB costs 0.03 s of CPU per GB less.
    pub(crate) fn fetch_piece(&self, piece: &Piece) {
        prefetch_lines(self.piece(piece));
    }

    /// Gives a piece back; `lent`: it was lent to the kernel.
    pub(crate) fn give_piece(&self, piece: Piece, lent: bool) {
        let mut pool = self.lock();
        pool.give_piece(piece, lent);
        self.strip(&mut pool);
    }

    /// The bytes of an owned page.
    #[inline]
    #[allow(unsafe_code)]
    pub(crate) fn page<'a>(&'a self, owner: &'a Owner, id: PageId) -> &'a [u8] {
        self.check(owner, id);
        // SAFETY: `check` proves the page is the owner's; the borrow of the token keeps writers out (invariant 2).
        unsafe { std::slice::from_raw_parts(self.base.add(id.0 as usize * PAGE_BYTES), PAGE_BYTES) }
    }

    /// Begins to fetch the `bytes` at `offset` of an owned page into the core's cache.
    #[inline]
    pub(crate) fn fetch(&self, owner: &Owner, id: PageId, offset: usize, bytes: usize) {
        let page = self.page(owner, id);
        prefetch_lines(&page[offset..page.len().min(offset + bytes)]);
    }

    /// The bytes of an owned page, to write.
    #[inline]
    #[allow(unsafe_code)]
    pub(crate) fn page_mut<'a>(&'a self, owner: &'a mut Owner, id: PageId) -> &'a mut [u8] {
        self.check(owner, id);
        // SAFETY: as in `page`, and the mutable borrow of the token keeps all others out.
        unsafe { std::slice::from_raw_parts_mut(self.base.add(id.0 as usize * PAGE_BYTES), PAGE_BYTES) }
    }

    /// Moves `len` bytes between or within pages of one owner; the places may overlap.
    #[allow(unsafe_code)]
    pub(crate) fn move_bytes(&self, owner: &mut Owner, from: (PageId, usize), to: (PageId, usize), len: usize) {
        self.check(owner, from.0);
        self.check(owner, to.0);
        assert!(from.1 + len <= PAGE_BYTES && to.1 + len <= PAGE_BYTES, "a move stays within its pages");
        // SAFETY: both ranges lie in pages of this owner, whose token is borrowed mutably; `copy` allows overlap.
        unsafe {
            let source = self.base.add(from.0.0 as usize * PAGE_BYTES + from.1);
            std::ptr::copy(source, self.base.add(to.0.0 as usize * PAGE_BYTES + to.1), len);
        }
    }

    /// The note of an owned page.
    #[inline]
    #[allow(unsafe_code)]
    pub(crate) fn note<'a>(&'a self, owner: &'a Owner, id: PageId) -> &'a PageNote {
        self.check(owner, id);
        // SAFETY: as in `page`.
        unsafe { &*self.slots[id.0 as usize].note.get() }
    }

    /// The note of an owned page, to write.
    #[inline]
    #[allow(unsafe_code)]
    #[allow(clippy::mut_from_ref)]
    pub(crate) fn note_mut<'a>(&'a self, owner: &'a mut Owner, id: PageId) -> &'a mut PageNote {
        self.check(owner, id);
        // SAFETY: as in `page_mut`.
        unsafe { &mut *self.slots[id.0 as usize].note.get() }
    }

    /// The bytes of a piece.
    #[inline]
    #[allow(unsafe_code)]
    pub(crate) fn piece<'a>(&'a self, piece: &'a Piece) -> &'a [u8] {
        // SAFETY: `place` proves that the piece is of this arena and within the mapping; it is nobody else's (3).
        unsafe { std::slice::from_raw_parts(self.place(piece), piece.bytes()) }
    }

    /// The bytes of a piece, to write.
    #[inline]
    #[allow(unsafe_code)]
    #[allow(clippy::mut_from_ref)]
    pub(crate) fn piece_mut<'a>(&'a self, piece: &'a mut Piece) -> &'a mut [u8] {
        // SAFETY: as in `piece`, and the mutable borrow keeps all others out.
        unsafe { std::slice::from_raw_parts_mut(self.place(piece), piece.bytes()) }
    }

    /// The bytes of those of `pieces` that are whole pages and lie one behind the other; none if the first is no page.
    #[allow(unsafe_code)]
    pub(crate) fn run<'a>(&'a self, pieces: impl Iterator<Item = &'a Piece>) -> &'a [u8] {
        let mut pieces = pieces.take_while(|piece| piece.bytes() == PAGE_BYTES);
        let Some(first) = pieces.next() else { return &[] };
        let adjacent = |(piece, page): &(&Piece, u32)| self.is_here(piece) && piece.page() == *page;
        let more = pieces.zip(first.page() + 1..).take_while(adjacent).count();
        // SAFETY: as in `piece`, of pieces all of which are borrowed for as long and whose memory is adjacent.
        unsafe { std::slice::from_raw_parts(self.place(first), (1 + more) * PAGE_BYTES) }
    }

    /// Where a piece of this arena begins.
    #[inline]
    fn place(&self, piece: &Piece) -> *mut u8 {
        assert!(self.is_here(piece), "a piece of another arena");
        self.base.wrapping_add(piece.offset())
    }

    #[inline]
    fn is_here(&self, piece: &Piece) -> bool {
        piece.arena() == self.number && piece.offset() + piece.bytes() <= self.slots.len() * PAGE_BYTES
    }

    #[inline]
    fn check(&self, owner: &Owner, id: PageId) {
        assert_eq!(self.slots[id.0 as usize].owner.load(Relaxed), owner.0, "page of another owner");
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Pool> {
        self.pool.lock()
    }

    fn limit_pages(&self) -> u32 {
        let left = self.budget_bytes.saturating_sub(self.charged_bytes.load(Relaxed));
        (left / PAGE_BYTES as u64) as u32
    }

    /// Takes a page out of the pool and sees to its memory; `None` if the budget is used up.
    fn take_from(&self, pool: &mut Pool, what: For) -> Option<u32> {
        let limit = self.limit_pages() + if what == For::Passing { self.passing_pages } else { 0 };
        let reserve = if what == For::Kept { self.reserve_pages } else { 0 };
        if pool.used() + reserve >= limit {
            return None;
        }
        let (page, memory) = pool.take_page(limit)?;
        match memory {
            Memory::Ready | Memory::New => {}
            Memory::Renew => self.give_back(page, PAGE_BYTES),
            Memory::RenewRegion => self.give_back(page, REGION_BYTES),
        }
        if memory != Memory::Ready {
            self.populate(page);
        }
        Some(page)
    }

    /// Gives the memory of pages that nobody uses back to the system; they read as zeros then.
    #[allow(unsafe_code)]
    fn give_back(&self, first: u32, bytes: usize) {
        // SAFETY: the pages are in no list of pages in use, so no borrow of their bytes exists; the pool is locked.
        let done =
            unsafe { self.map.unchecked_advise_range(UncheckedAdvice::DontNeed, self.offset_in_map(first), bytes) };
        assert!(done.is_ok(), "memory that may have been lent to the kernel can't be given back: {done:?}");
    }

    /// Has a page's memory at once rather than by a fault for every 4 KiB. Without effect where none can ask for that.
    fn populate(&self, page: u32) {
        #[cfg(target_os = "linux")]
        self.map.advise_range(memmap2::Advice::PopulateWrite, self.offset_in_map(page), PAGE_BYTES).ok();
        #[cfg(not(target_os = "linux"))]
        let _ = page;
    }

    fn offset_in_map(&self, page: u32) -> usize {
        self.base.addr() - self.map.as_ptr().addr() + page as usize * PAGE_BYTES
    }

    fn note_spare(&self, pool: &Pool) {
        let limit = self.limit_pages().saturating_sub(self.reserve_pages);
        self.spare.store(limit.saturating_sub(pool.used()), Relaxed);
    }
}

/// Begins to fetch the cache line of a value; without effect where the compiler has no name for that.
#[inline]
#[allow(unsafe_code)]
pub(crate) fn prefetch<T>(value: &T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint; it has no effect on what the program sees.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>((&raw const *value).cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = value;
}

/// As `prefetch`, all lines of `bytes`.
#[inline]
fn prefetch_lines(bytes: &[u8]) {
    bytes.chunks(64).for_each(|line| prefetch(&line[0]));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small() -> (Arena, Vec<Owner>) {
        Arena::new(8 * PAGE_BYTES as u64, 2, 1).expect("maps")
    }

    #[test]
    fn pages_end_with_the_budget_and_the_reserve_is_kept() {
        let (arena, mut owners) = small();
        let owner = &mut owners[0];
        let taken: Vec<_> = std::iter::from_fn(|| arena.take_page(owner, PageNote::default(), false)).collect();
        assert_eq!(taken.len(), 7);
        assert_eq!(arena.spare_pages(), 0);
        let last = arena.take_page(owner, PageNote::default(), true).expect("the reserve");
        assert!(arena.take_page(owner, PageNote::default(), true).is_none());
        arena.give_page(owner, last);
        arena.charge(PAGE_BYTES as u64);
        assert!(arena.take_page(owner, PageNote::default(), true).is_none(), "what is charged is not free");
        arena.discharge(PAGE_BYTES as u64);
        assert!(arena.take_page(owner, PageNote::default(), true).is_some());
    }

    #[test]
    #[should_panic(expected = "page of another owner")]
    fn a_page_is_reached_only_by_its_owner() {
        let (arena, mut owners) = small();
        let page = arena.take_page(&mut owners[0], PageNote::default(), false).expect("free");
        arena.page(&owners[1], page);
    }

    #[test]
    #[should_panic(expected = "page of another owner")]
    fn a_right_to_one_arena_is_none_to_another() {
        let ((one, mut owners), (_other, others)) = (small(), small());
        let page = one.take_page(&mut owners[0], PageNote::default(), false).expect("free");
        one.page(&others[0], page);
    }

    #[test]
    #[should_panic(expected = "a piece of another arena")]
    fn a_piece_of_one_arena_is_none_of_another() {
        let ((one, _owners), (other, _others)) = (small(), small());
        let piece = one.take_piece(PAGE_BYTES, For::Kept).expect("free");
        other.piece(&piece);
    }

    #[test]
    fn pieces_share_pages_and_pages_come_back_whole() {
        let (arena, _owners) = small();
        let mut pieces: Vec<_> = (0..9).map(|_| arena.take_piece(6000, For::Kept).expect("fits")).collect();
        assert_eq!(arena.used_bytes(), PAGE_BYTES as u64, "nine pieces of 6 KiB lie in one page");
        for (i, piece) in pieces.iter_mut().enumerate() {
            arena.piece_mut(piece).fill(i as u8);
        }
        assert!(pieces.iter().enumerate().all(|(i, p)| arena.piece(p).iter().all(|&b| b == i as u8)));
        let whole = arena.take_piece(PAGE_BYTES, For::Kept).expect("fits");
        arena.give_piece(pieces.remove(4), false);
        let again = arena.take_piece(5000, For::Kept).expect("fits into the hole");
        assert_eq!(arena.used_bytes(), 2 * PAGE_BYTES as u64);
        for piece in pieces.into_iter().chain([whole, again]) {
            arena.give_piece(piece, false);
        }
        assert_eq!(arena.used_bytes(), 0);
    }

    #[test]
    fn random_pieces_never_overlap() {
        let (arena, _owners) = Arena::new(64 * PAGE_BYTES as u64, 1, 0).expect("maps");
        let mut held: Vec<(Piece, u8)> = Vec::new();
        let mut seed = 12345u32;
        for round in 0..5_000u32 {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let size = (seed >> 8) as usize % PAGE_BYTES + 1;
            match arena.take_piece(size, For::Kept) {
                Some(mut piece) if !seed.is_multiple_of(3) => {
                    arena.piece_mut(&mut piece).fill(round as u8);
                    held.push((piece, round as u8));
                }
                Some(piece) => arena.give_piece(piece, false),
                None => {}
            }
            if held.len() > 40 {
                let (piece, mark) = held.swap_remove((seed >> 16) as usize % held.len());
                assert!(arena.piece(&piece).iter().all(|&b| b == mark));
                arena.give_piece(piece, false);
            }
        }
        held.drain(..).for_each(|(piece, _)| arena.give_piece(piece, false));
        assert_eq!(arena.used_bytes(), 0);
    }

    #[test]
    fn only_neighbours_that_are_whole_pages_make_a_run() {
        let (arena, _owners) = small();
        let whole: Vec<_> = (0..4).map(|_| arena.take_piece(PAGE_BYTES, For::Kept).expect("room")).collect();
        let part = arena.take_piece(PAGE_BYTES / 2, For::Kept).expect("room");
        let pages = |pieces: &[&Piece]| arena.run(pieces.iter().copied()).len() / PAGE_BYTES;
        assert_eq!(pages(&[&whole[0], &whole[1], &whole[2], &whole[3], &part]), 4);
        assert_eq!(pages(&[&whole[0], &whole[2], &whole[3]]), 1);
        assert_eq!(pages(&[&part, &whole[0]]), 0);
        assert_eq!(arena.run([&whole[1]].into_iter()).as_ptr(), arena.piece(&whole[1]).as_ptr());
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_region_lent_as_a_whole_has_new_memory_in_every_page() {
        let pages = 2 * REGION_PAGES;
        let (arena, _owners) = Arena::new(u64::from(pages) * PAGE_BYTES as u64, 1, 0).expect("maps");
        let take = || std::iter::from_fn(|| arena.take_piece(PAGE_BYTES, For::Kept)).collect::<Vec<_>>();
        let mut pieces = take();
        assert_eq!(pieces.len(), pages as usize);
        pieces.iter_mut().for_each(|piece| arena.piece_mut(piece).fill(7));
        pieces.into_iter().for_each(|piece| arena.give_piece(piece, true));
        let again = take();
        assert_eq!(again.len(), pages as usize);
        assert!(again.iter().all(|piece| arena.piece(piece).iter().all(|&byte| byte == 0)), "old memory is used again");
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn what_the_kernel_was_lent_never_changes() {
        use rustix::pipe::{IoSliceRaw, SpliceFlags, pipe, vmsplice};
        let (arena, _owners) = Arena::new(2 * PAGE_BYTES as u64, 1, 0).expect("maps");
        let mut piece = arena.take_piece(PAGE_BYTES, For::Kept).expect("room");
        arena.piece_mut(&mut piece).fill(1);
        // A pipe refers to the page as packets would.
        let (reader, writer) = pipe().expect("a pipe");
        let bytes = IoSliceRaw::from_slice(&arena.piece(&piece)[..4096]);
        // SAFETY: the bytes are not written while the pipe holds them, which is what is tested.
        #[allow(unsafe_code)]
        let spliced = unsafe { vmsplice(&writer, &[bytes], SpliceFlags::empty()) };
        assert_eq!(spliced, Ok(4096));
        let place = piece.page();
        arena.give_piece(piece, true);
        let taken: Vec<_> = (0..2).map(|_| arena.take_piece(PAGE_BYTES, For::Kept).expect("room")).collect();
        assert!(taken.iter().any(|piece| piece.page() == place), "the page is used again");
        for mut piece in taken {
            arena.piece_mut(&mut piece).fill(2);
        }
        let mut seen = [0; 4096];
        let n = rustix::io::read(&reader, &mut seen[..]).expect("readable");
        assert!(n == 4096 && seen.iter().all(|&byte| byte == 1), "the page was changed under the kernel");
    }
}
