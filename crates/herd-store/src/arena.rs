//! The memory of the store: one mapping cut into pages of 64 KiB, and the only `unsafe` of this crate.
//!
//! A page is either *owned* by one shard (its log of small entries), cut into *pieces* of 1 KiB granules (blocks of
//! large values), or free. Invariants:
//!
//! 1. A page's owner is written only under the pool's lock, and only from or to "nobody".
//! 2. The bytes and the note of an owned page are reached only through the owner's token, of which there is one per
//!    shard: a shared borrow of the token gives shared borrows, a mutable one a mutable borrow.
//! 3. A granule belongs to at most one [`Piece`]; a piece can't be copied, so borrows of it follow the same rule.
//! 4. Page 0 is never handed out, so that an address is never zero.
//!
//! Pages in use never exceed the budget less what others charged; the mapping is touched page by page, so resident
//! memory follows use.

use herd_core::limits::BLOCK_BYTES;
use memmap2::{MmapMut, MmapOptions};
use std::cell::UnsafeCell;
use std::collections::{BTreeSet, HashMap};
use std::io;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Bytes of a page.
pub(crate) const PAGE_BYTES: usize = BLOCK_BYTES;
/// Bytes of the smallest piece.
pub(crate) const GRANULE_BYTES: usize = PAGE_BYTES / 64;

/// Index of a page within the mapping; never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct PageId(pub(crate) u32);

/// The right to a shard's pages. One per shard; see the invariants above.
#[derive(Debug)]
pub(crate) struct Owner(u16);

/// What a shard notes of a page it owns.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PageNote {
    /// Collection of all its entries.
    pub(crate) collection: u16,
    /// Queue within the collection.
    pub(crate) queue: u8,
    /// Generation of the collection when the page was begun.
    pub(crate) generation: u32,
    /// Bytes of entries, dead ones included.
    pub(crate) used_bytes: u32,
    /// Bytes of live entries.
    pub(crate) live_bytes: u32,
    /// No entry expires before this, seconds since 1970; 0: none expires.
    pub(crate) first_expiry_s: u32,
}

/// A run of granules within a page: the memory of one block of a large value.
#[derive(Debug)]
pub(crate) struct Piece {
    page: PageId,
    first: u8,
    granules: u8,
}

impl Piece {
    /// Bytes of memory it takes.
    pub(crate) fn bytes(&self) -> usize {
        usize::from(self.granules) * GRANULE_BYTES
    }
}

struct Slot {
    owner: AtomicU16,
    note: UnsafeCell<PageNote>,
}

/// The mapping, its pages' owners and the pool of free ones.
pub(crate) struct Arena {
    base: *mut u8,
    _map: MmapMut,
    slots: Box<[Slot]>,
    pool: Mutex<Pool>,
    /// Pages that ordinary allocations may still take; a hint kept by the pool.
    spare: AtomicU32,
    charged_bytes: AtomicU64,
    budget_bytes: u64,
    reserve_pages: u32,
}

// SAFETY: bytes and notes are reached only through owner tokens and pieces (invariants 2 and 3), which order all
// access between threads by the locks and Arcs that hold them; everything else is atomic or behind a mutex.
#[allow(unsafe_code)]
unsafe impl Sync for Arena {}
// SAFETY: as above; the mapping is not tied to a thread.
#[allow(unsafe_code)]
unsafe impl Send for Arena {}

/// Free memory: whole pages, and granules of pages that are cut into pieces.
struct Pool {
    free: Vec<PageId>,
    fresh: u32,
    pages: u32,
    used: u32,
    /// Free granules of each page that is cut into pieces, one bit a granule.
    cut: HashMap<PageId, u64>,
    /// Cut pages by the length of their longest free run, 0 to 63.
    by_run: [BTreeSet<PageId>; 64],
}

impl Arena {
    /// Maps `budget_bytes` and makes the tokens of `shards` owners. `reserve_pages` are kept for reclaiming.
    pub(crate) fn new(budget_bytes: u64, shards: u16, reserve_pages: u32) -> io::Result<(Self, Vec<Owner>)> {
        let pages = u32::try_from(budget_bytes / PAGE_BYTES as u64)
            .ok()
            .filter(|pages| (1..1 << 24).contains(pages))
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "memory must be 64 KiB to 1 TiB"))?;
        let bytes = (pages as usize + 1) * PAGE_BYTES;
        let mut map = MmapOptions::new().len(bytes).no_reserve_swap().map_anon()?;
        #[cfg(target_os = "linux")]
        map.advise(memmap2::Advice::HugePage).ok();
        let slot = |_| Slot { owner: AtomicU16::new(0), note: UnsafeCell::new(PageNote::default()) };
        let arena = Self {
            base: map.as_mut_ptr(),
            _map: map,
            slots: (0..=pages).map(slot).collect(),
            pool: Mutex::new(Pool::new(pages)),
            spare: AtomicU32::new(pages.saturating_sub(reserve_pages)),
            charged_bytes: AtomicU64::new(0),
            budget_bytes,
            reserve_pages,
        };
        Ok((arena, (1..=shards).map(Owner).collect()))
    }

    /// Bytes of the whole budget.
    pub(crate) fn budget_bytes(&self) -> u64 {
        self.budget_bytes
    }

    /// Bytes of pages in use and of what was charged.
    pub(crate) fn used_bytes(&self) -> u64 {
        u64::from(self.lock().used) * PAGE_BYTES as u64 + self.charged_bytes.load(Relaxed)
    }

    /// Pages that may still be taken without reclaiming; a hint that may lag.
    #[inline]
    pub(crate) fn spare_pages(&self) -> u32 {
        self.spare.load(Relaxed)
    }

    /// Counts memory outside the mapping (index tables, block lists) against the budget.
    pub(crate) fn charge(&self, bytes: u64) {
        self.charged_bytes.fetch_add(bytes, Relaxed);
        self.note_spare(&self.lock());
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
        let id = self.allowed(&pool, reserved).then(|| pool.take_page()).flatten()?;
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
        pool.give_page(id);
        self.note_spare(&pool);
    }

    /// Takes a piece of at least `bytes` (1 to 64 KiB); `None` if the budget is used up.
    pub(crate) fn take_piece(&self, bytes: usize) -> Option<Piece> {
        assert!((1..=PAGE_BYTES).contains(&bytes), "a piece has 1 B to 64 KiB");
        let granules = bytes.div_ceil(GRANULE_BYTES) as u8;
        let mut pool = self.lock();
        let piece = pool.cut_piece(granules).or_else(|| {
            let page = self.allowed(&pool, false).then(|| pool.take_page()).flatten()?;
            Some(pool.open_page(page, granules))
        });
        self.note_spare(&pool);
        piece
    }

    /// Gives a piece back.
    pub(crate) fn give_piece(&self, piece: Piece) {
        let mut pool = self.lock();
        pool.give_piece(&piece);
        self.note_spare(&pool);
    }

    /// The bytes of an owned page.
    #[inline]
    #[allow(unsafe_code)]
    pub(crate) fn page<'a>(&'a self, owner: &'a Owner, id: PageId) -> &'a [u8] {
        self.check(owner, id);
        // SAFETY: `check` proves the page is the owner's; the borrow of the token keeps writers out (invariant 2).
        unsafe { std::slice::from_raw_parts(self.base.add(id.0 as usize * PAGE_BYTES), PAGE_BYTES) }
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
        // SAFETY: a piece is made only by the pool of this arena, within the mapping, and is nobody else's (3).
        unsafe { std::slice::from_raw_parts(self.base.add(piece_offset(piece)), piece.bytes()) }
    }

    /// The bytes of a piece, to write.
    #[inline]
    #[allow(unsafe_code)]
    #[allow(clippy::mut_from_ref)]
    pub(crate) fn piece_mut<'a>(&'a self, piece: &'a mut Piece) -> &'a mut [u8] {
        // SAFETY: as in `piece`, and the mutable borrow keeps all others out.
        unsafe { std::slice::from_raw_parts_mut(self.base.add(piece_offset(piece)), piece.bytes()) }
    }

    #[inline]
    fn check(&self, owner: &Owner, id: PageId) {
        assert_eq!(self.slots[id.0 as usize].owner.load(Relaxed), owner.0, "page of another owner");
    }

    fn lock(&self) -> MutexGuard<'_, Pool> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn limit_pages(&self) -> u32 {
        let left = self.budget_bytes.saturating_sub(self.charged_bytes.load(Relaxed));
        (left / PAGE_BYTES as u64) as u32
    }

    fn allowed(&self, pool: &Pool, reserved: bool) -> bool {
        let reserve = if reserved { 0 } else { self.reserve_pages };
        pool.used + reserve < self.limit_pages()
    }

    fn note_spare(&self, pool: &Pool) {
        let limit = self.limit_pages().saturating_sub(self.reserve_pages);
        self.spare.store(limit.saturating_sub(pool.used), Relaxed);
    }
}

fn piece_offset(piece: &Piece) -> usize {
    piece.page.0 as usize * PAGE_BYTES + usize::from(piece.first) * GRANULE_BYTES
}

impl Pool {
    fn new(pages: u32) -> Self {
        Self {
            free: Vec::new(),
            fresh: 1,
            pages,
            used: 0,
            cut: HashMap::new(),
            by_run: std::array::from_fn(|_| BTreeSet::new()),
        }
    }

    /// The page freed last, whose bytes are likeliest to be in cache, or one never used.
    fn take_page(&mut self) -> Option<PageId> {
        let id = match self.free.pop() {
            Some(id) => id,
            None if self.fresh <= self.pages => {
                self.fresh += 1;
                PageId(self.fresh - 1)
            }
            None => return None,
        };
        self.used += 1;
        Some(id)
    }

    fn give_page(&mut self, id: PageId) {
        assert!(self.used > 0, "more pages given back than taken");
        self.used -= 1;
        self.free.push(id);
    }

    /// A piece from a page that is cut already, the tightest fit first.
    fn cut_piece(&mut self, granules: u8) -> Option<Piece> {
        let runs = self.by_run.get(usize::from(granules)..)?;
        let page = *runs.iter().find_map(|pages| pages.first())?;
        let free = self.cut[&page];
        let first = find_run(free, granules).expect("the set of a run length holds pages with such a run");
        self.set_free(page, free, free & !mask(first, granules));
        Some(Piece { page, first, granules })
    }

    fn open_page(&mut self, page: PageId, granules: u8) -> Piece {
        if granules < 64 {
            self.set_free(page, 0, !mask(0, granules));
        }
        Piece { page, first: 0, granules }
    }

    fn give_piece(&mut self, piece: &Piece) {
        if piece.granules == 64 {
            return self.give_page(piece.page);
        }
        let before = self.cut[&piece.page];
        let bits = mask(piece.first, piece.granules);
        assert_eq!(before & bits, 0, "a piece is given back once");
        self.set_free(piece.page, before, before | bits);
        if before | bits == u64::MAX {
            self.by_run[63].remove(&piece.page);
            self.cut.remove(&piece.page);
            self.give_page(piece.page);
        }
    }

    /// Notes the free granules of a cut page and keeps the sets by run length right.
    fn set_free(&mut self, page: PageId, before: u64, after: u64) {
        let old = longest_run(before).min(63);
        let new = longest_run(after).min(63);
        if old != new {
            self.by_run[old].remove(&page);
        }
        if new > 0 {
            self.by_run[new].insert(page);
        }
        self.cut.insert(page, after);
    }
}

fn mask(first: u8, granules: u8) -> u64 {
    if granules == 64 { u64::MAX } else { ((1u64 << granules) - 1) << first }
}

/// Length of the longest run of ones.
fn longest_run(mut bits: u64) -> usize {
    let mut length = 0;
    while bits != 0 {
        bits &= bits << 1;
        length += 1;
    }
    length
}

/// Where the lowest run of `length` ones begins.
fn find_run(bits: u64, length: u8) -> Option<u8> {
    let mut starts = bits;
    for _ in 1..length {
        starts = bits & (starts >> 1);
    }
    (starts != 0).then(|| starts.trailing_zeros() as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small() -> (Arena, Vec<Owner>) {
        Arena::new(8 * PAGE_BYTES as u64, 2, 1).expect("maps")
    }

    #[test]
    fn runs_of_free_granules_are_found() {
        assert_eq!(longest_run(0b0111_0110), 3);
        assert_eq!(longest_run(u64::MAX), 64);
        assert_eq!(find_run(0b0111_0110, 3), Some(4));
        assert_eq!(find_run(0b0111_0110, 2), Some(1));
        assert_eq!(find_run(0b0111_0110, 4), None);
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
    fn pieces_share_pages_and_pages_come_back_whole() {
        let (arena, _owners) = small();
        let mut pieces: Vec<_> = (0..9).map(|_| arena.take_piece(6000).expect("fits")).collect();
        assert_eq!(arena.used_bytes(), PAGE_BYTES as u64, "nine pieces of 6 KiB lie in one page");
        for (i, piece) in pieces.iter_mut().enumerate() {
            arena.piece_mut(piece).fill(i as u8);
        }
        assert!(pieces.iter().enumerate().all(|(i, p)| arena.piece(p).iter().all(|&b| b == i as u8)));
        let whole = arena.take_piece(PAGE_BYTES).expect("fits");
        arena.give_piece(pieces.remove(4));
        let again = arena.take_piece(5000).expect("fits into the hole");
        assert_eq!(arena.used_bytes(), 2 * PAGE_BYTES as u64);
        for piece in pieces.into_iter().chain([whole, again]) {
            arena.give_piece(piece);
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
            match arena.take_piece(size) {
                Some(mut piece) if seed % 3 != 0 => {
                    arena.piece_mut(&mut piece).fill(round as u8);
                    held.push((piece, round as u8));
                }
                Some(piece) => arena.give_piece(piece),
                None => {}
            }
            if held.len() > 40 {
                let (piece, mark) = held.swap_remove((seed >> 16) as usize % held.len());
                assert!(arena.piece(&piece).iter().all(|&b| b == mark));
                arena.give_piece(piece);
            }
        }
        held.drain(..).for_each(|(piece, _)| arena.give_piece(piece));
        assert_eq!(arena.used_bytes(), 0);
    }
}
