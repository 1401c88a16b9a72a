//! Which pages are free, and in what state their memory is; bookkeeping only, it touches no memory itself.
//!
//! Invariants: a page is in at most one of the lists; `used` counts the pages in none, those never taken left out. Who
//! may call: [`Arena`](crate::arena::Arena), under its lock, which carries out what a [`Memory`] says.

use herd_core::limits::BLOCK_BYTES;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Bytes of a page.
pub(crate) const PAGE_BYTES: usize = BLOCK_BYTES;
/// Bytes of the smallest piece.
pub(crate) const GRANULE_BYTES: usize = PAGE_BYTES / 64;

/// Pages of a region: as much as a huge page has.
pub(crate) const REGION_PAGES: u32 = 32;

/// A run of granules within a page: the memory of one block of a large value. Only a pool makes one, and each granule
/// is in one only.
#[derive(Debug)]
pub(crate) struct Piece {
    page: u32,
    arena: u16,
    first: u8,
    granules: u8,
}

impl Piece {
    /// Bytes of memory it takes.
    #[inline]
    pub(crate) fn bytes(&self) -> usize {
        usize::from(self.granules) * GRANULE_BYTES
    }

    /// Its page.
    #[inline]
    pub(crate) fn page(&self) -> u32 {
        self.page
    }

    /// The number of the arena it is of.
    #[inline]
    pub(crate) fn arena(&self) -> u16 {
        self.arena
    }

    /// Where it begins in the arena, in bytes.
    #[inline]
    pub(crate) fn offset(&self) -> usize {
        self.page as usize * PAGE_BYTES + usize::from(self.first) * GRANULE_BYTES
    }
}

/// What must happen to a page's memory before it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Memory {
    /// Nothing.
    Ready,
    /// It has none yet.
    New,
    /// The kernel may still read it: it must be given back and had anew.
    Renew,
    /// As `Renew`, with all of its region, of which no page is in use; the others have no memory then.
    RenewRegion,
}

/// Free pages whose memory the kernel may still read.
#[derive(Default)]
struct Lent {
    /// Regions of which some pages are here, one bit a page.
    parts: BTreeMap<u32, u32>,
    /// Regions all of whose pages are here.
    whole: Vec<u32>,
    count: u32,
}

impl Lent {
    fn push(&mut self, page: u32) {
        let region = page / REGION_PAGES;
        let bits = self.parts.entry(region).or_default();
        *bits |= 1 << (page % REGION_PAGES);
        if *bits == u32::MAX {
            self.parts.remove(&region);
            self.whole.push(region);
        }
        self.count += 1;
    }

    /// A single page, of a region that is not whole if there is one.
    fn pop(&mut self) -> Option<u32> {
        if self.parts.is_empty() {
            self.parts.insert(self.whole.pop()?, u32::MAX);
        }
        let mut region = self.parts.first_entry()?;
        let bit = region.get().trailing_zeros();
        let page = region.key() * REGION_PAGES + bit;
        *region.get_mut() &= !(1 << bit);
        if *region.get() == 0 {
            region.remove();
        }
        self.count -= 1;
        Some(page)
    }

    /// The first page of a whole region, all of which is taken out.
    fn pop_region(&mut self) -> Option<u32> {
        let region = self.whole.pop()?;
        self.count -= REGION_PAGES;
        Some(region * REGION_PAGES)
    }
}

/// Free memory: whole pages, and granules of pages that are cut into pieces.
pub(crate) struct Pool {
    /// The number of the arena whose memory it is.
    arena: u16,
    /// Free pages with memory.
    free: Vec<u32>,
    lent: Lent,
    /// Pages used before, without memory now.
    bare: Vec<u32>,
    /// The first page never used.
    fresh: u32,
    pages: u32,
    used: u32,
    /// Free granules of each page that is cut into pieces, one bit a granule.
    cut: HashMap<u32, u64>,
    /// Cut pages by the length of their longest free run, 0 to 63.
    by_run: [BTreeSet<u32>; 64],
}

impl Pool {
    pub(crate) fn new(arena: u16, pages: u32) -> Self {
        Self {
            arena,
            free: Vec::new(),
            lent: Lent::default(),
            bare: Vec::new(),
            fresh: 1,
            pages,
            used: 0,
            cut: HashMap::new(),
            by_run: std::array::from_fn(|_| BTreeSet::new()),
        }
    }

    /// Pages in use.
    pub(crate) fn used(&self) -> u32 {
        self.used
    }

    /// Pages with memory.
    fn resident(&self) -> u32 {
        self.used + self.free.len() as u32 + self.lent.count
    }

    /// Takes a page: the one freed last, whose bytes are likeliest to be in cache; else one of a region that was lent
    /// to the kernel as a whole; else, while fewer than `limit_pages` have memory, one without; last, any that was
    /// lent.
    pub(crate) fn take_page(&mut self, limit_pages: u32) -> Option<(u32, Memory)> {
        let taken = if let Some(page) = self.free.pop() {
            (page, Memory::Ready)
        } else if let Some(first) = self.lent.pop_region() {
            self.bare.extend((first + 1..first + REGION_PAGES).rev());
            (first, Memory::RenewRegion)
        } else if self.resident() < limit_pages {
            (self.bare()?, Memory::New)
        } else {
            (self.lent.pop()?, Memory::Renew)
        };
        self.used += 1;
        Some(taken)
    }

    /// A page without memory.
    fn bare(&mut self) -> Option<u32> {
        self.bare.pop().or_else(|| {
            self.fresh += 1;
            (self.fresh - 1 <= self.pages).then_some(self.fresh - 1)
        })
    }

    /// Takes a page back; `lent`: the kernel may still read it.
    pub(crate) fn give_page(&mut self, page: u32, lent: bool) {
        assert!(self.used > 0, "more pages given back than taken");
        self.used -= 1;
        if lent { self.lent.push(page) } else { self.free.push(page) }
    }

    /// A free page whose memory is to be given back, while more than `limit_pages` have memory.
    pub(crate) fn strip(&mut self, limit_pages: u32) -> Option<u32> {
        if self.resident() <= limit_pages {
            return None;
        }
        let page = self.free.pop().or_else(|| self.lent.pop())?;
        self.bare.push(page);
        Some(page)
    }

    /// A piece from a page that is cut already, the tightest fit first.
    pub(crate) fn cut_piece(&mut self, granules: u8) -> Option<Piece> {
        let runs = self.by_run.get(usize::from(granules)..)?;
        let page = *runs.iter().find_map(|pages| pages.first())?;
        let free = self.cut[&page];
        let first = find_run(free, granules).expect("the set of a run length holds pages with such a run");
        self.set_free(page, free, free & !mask(first, granules));
        Some(Piece { page, arena: self.arena, first, granules })
    }

    /// The first piece of a page that was taken for it.
    pub(crate) fn open_page(&mut self, page: u32, granules: u8) -> Piece {
        if granules < 64 {
            self.set_free(page, 0, !mask(0, granules));
        }
        Piece { page, arena: self.arena, first: 0, granules }
    }

    /// Takes a piece back; `lent`: the kernel may still read it.
    pub(crate) fn give_piece(&mut self, piece: Piece, lent: bool) {
        assert_eq!(piece.arena, self.arena, "a piece of another arena");
        if piece.granules == 64 {
            return self.give_page(piece.page, lent);
        }
        assert!(!lent, "only whole pages are lent");
        let before = self.cut[&piece.page];
        let bits = mask(piece.first, piece.granules);
        assert_eq!(before & bits, 0, "a piece is given back once");
        self.set_free(piece.page, before, before | bits);
        if before | bits == u64::MAX {
            self.by_run[63].remove(&piece.page);
            self.cut.remove(&piece.page);
            self.give_page(piece.page, false);
        }
    }

    /// Notes the free granules of a cut page and keeps the sets by run length right.
    fn set_free(&mut self, page: u32, before: u64, after: u64) {
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

    #[test]
    fn runs_of_free_granules_are_found() {
        assert_eq!(longest_run(0b0111_0110), 3);
        assert_eq!(longest_run(u64::MAX), 64);
        assert_eq!(find_run(0b0111_0110, 3), Some(4));
        assert_eq!(find_run(0b0111_0110, 2), Some(1));
        assert_eq!(find_run(0b0111_0110, 4), None);
    }

    #[test]
    fn no_more_pages_have_memory_than_the_limit_allows() {
        let mut pool = Pool::new(1, 8);
        let pages: Vec<u32> = (0..6).map(|_| pool.take_page(6).expect("room").0).collect();
        assert!(pool.take_page(6).is_none(), "all memory is in use");
        pages.iter().for_each(|page| pool.give_page(*page, false));
        let taken: Vec<Memory> = (0..8).map(|_| pool.take_page(8).expect("room").1).collect();
        assert_eq!(taken[..6], [Memory::Ready; 6]);
        assert_eq!(taken[6..], [Memory::New; 2]);
        assert!(pool.take_page(9).is_none(), "there are no more pages");
    }

    #[test]
    fn what_was_lent_comes_back_last_and_with_new_memory() {
        let mut pool = Pool::new(1, 3);
        let pages: Vec<u32> = (0..2).map(|_| pool.take_page(3).expect("room").0).collect();
        pages.iter().for_each(|page| pool.give_page(*page, true));
        let memory: Vec<Memory> = (0..3).map(|_| pool.take_page(3).expect("room").1).collect();
        assert_eq!(memory, [Memory::New, Memory::Renew, Memory::Renew]);
    }

    #[test]
    fn a_region_that_was_lent_as_a_whole_is_renewed_as_a_whole() {
        let mut pool = Pool::new(1, 3 * REGION_PAGES);
        let limit = 2 * REGION_PAGES;
        let pages: Vec<u32> = (0..limit).map(|_| pool.take_page(limit).expect("room").0).collect();
        assert_eq!(pages.first(), Some(&1));
        pages.iter().for_each(|page| pool.give_page(*page, true));
        let taken: Vec<_> = (0..limit).map(|_| pool.take_page(limit).expect("room")).collect();
        assert_eq!(taken[0], (REGION_PAGES, Memory::RenewRegion));
        let rest = (REGION_PAGES + 1..2 * REGION_PAGES).map(|page| (page, Memory::New));
        assert!(taken[1..].iter().copied().take(31).eq(rest), "{taken:?}");
        let renewed = taken.iter().filter(|(page, memory)| *page < REGION_PAGES && *memory == Memory::Renew).count();
        assert_eq!(renewed, 31, "page 0 is nobody's, so the first region is never whole");
        assert!(pool.take_page(limit).is_none());
        assert_eq!(pool.resident(), limit);
    }

    #[test]
    fn free_memory_over_a_lower_limit_is_given_back() {
        let mut pool = Pool::new(1, 4);
        let page = pool.take_page(4).expect("room").0;
        pool.take_page(4).expect("room");
        pool.give_page(page, false);
        assert_eq!(pool.strip(1), Some(page));
        assert_eq!(pool.strip(1), None);
        assert_eq!(pool.take_page(4), Some((page, Memory::New)), "its memory must be had anew");
    }
}
