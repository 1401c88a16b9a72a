//! Which pages are free, and in what state their memory is; bookkeeping only, it touches no memory itself.
//!
//! Invariants: a page is in at most one list of its [`Stock`]; `used` counts the pages in none, those never taken left
//! out. Who may call: [`Arena`](crate::arena::Arena), under its lock, which carries out what a [`Taken`] says.

use crate::arena::Piece;
use std::collections::{BTreeSet, HashMap};

/// Which mapping a page is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Zone {
    /// Logs of small entries.
    Logs,
    /// Blocks of large values.
    Blocks,
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
}

/// A page that was taken.
pub(crate) struct Taken {
    pub(crate) page: u32,
    pub(crate) memory: Memory,
    /// A free page of the other mapping whose memory must be given back for it.
    pub(crate) instead_of: Option<u32>,
}

/// The pages of one mapping that are not in use.
struct Stock {
    /// With memory.
    free: Vec<u32>,
    /// With memory the kernel may still read.
    lent: Vec<u32>,
    /// Used before, without memory now.
    bare: Vec<u32>,
    /// The first page never used.
    fresh: u32,
    pages: u32,
}

/// Free memory: whole pages of both mappings, and granules of block pages that are cut into pieces.
pub(crate) struct Pool {
    logs: Stock,
    blocks: Stock,
    used: u32,
    /// Free granules of each page that is cut into pieces, one bit a granule.
    cut: HashMap<u32, u64>,
    /// Cut pages by the length of their longest free run, 0 to 63.
    by_run: [BTreeSet<u32>; 64],
}

impl Stock {
    fn new(pages: u32) -> Self {
        Self { free: Vec::new(), lent: Vec::new(), bare: Vec::new(), fresh: 1, pages }
    }

    fn resident(&self) -> u32 {
        (self.free.len() + self.lent.len()) as u32
    }

    /// A page without memory.
    fn bare(&mut self) -> Option<u32> {
        self.bare.pop().or_else(|| {
            self.fresh += 1;
            (self.fresh - 1 <= self.pages).then_some(self.fresh - 1)
        })
    }

    /// Has a free page go without memory.
    fn strip(&mut self) -> Option<u32> {
        let page = self.free.pop().or_else(|| self.lent.pop())?;
        self.bare.push(page);
        Some(page)
    }
}

impl Pool {
    pub(crate) fn new(pages: u32) -> Self {
        Self {
            logs: Stock::new(pages),
            blocks: Stock::new(pages),
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
        self.used + self.logs.resident() + self.blocks.resident()
    }

    /// Takes a page: the one freed last, whose bytes are likeliest to be in cache; else, while fewer than
    /// `limit_pages` have memory, one without; else one in place of a free page of the other mapping; last, one that
    /// was lent to the kernel.
    pub(crate) fn take_page(&mut self, zone: Zone, limit_pages: u32) -> Option<Taken> {
        let room = self.resident() < limit_pages;
        let (own, other) = match zone {
            Zone::Logs => (&mut self.logs, &mut self.blocks),
            Zone::Blocks => (&mut self.blocks, &mut self.logs),
        };
        let (page, memory, instead_of) = match own.free.pop() {
            Some(page) => (page, Memory::Ready, None),
            None if room => (own.bare()?, Memory::New, None),
            None if own.lent.is_empty() || !other.free.is_empty() => {
                let stripped = other.strip()?;
                (own.bare()?, Memory::New, Some(stripped))
            }
            None => (own.lent.pop()?, Memory::Renew, None),
        };
        self.used += 1;
        Some(Taken { page, memory, instead_of })
    }

    /// Takes a page back; `lent`: the kernel may still read it.
    pub(crate) fn give_page(&mut self, zone: Zone, page: u32, lent: bool) {
        assert!(self.used > 0, "more pages given back than taken");
        self.used -= 1;
        match (zone, lent) {
            (Zone::Logs, _) => self.logs.free.push(page),
            (Zone::Blocks, false) => self.blocks.free.push(page),
            (Zone::Blocks, true) => self.blocks.lent.push(page),
        }
    }

    /// A free page whose memory is to be given back, while more than `limit_pages` have memory.
    pub(crate) fn strip(&mut self, limit_pages: u32) -> Option<(Zone, u32)> {
        if self.resident() <= limit_pages {
            return None;
        }
        let block = self.blocks.strip().map(|page| (Zone::Blocks, page));
        block.or_else(|| self.logs.strip().map(|page| (Zone::Logs, page)))
    }

    /// A piece from a page that is cut already, the tightest fit first.
    pub(crate) fn cut_piece(&mut self, granules: u8) -> Option<Piece> {
        let runs = self.by_run.get(usize::from(granules)..)?;
        let page = *runs.iter().find_map(|pages| pages.first())?;
        let free = self.cut[&page];
        let first = find_run(free, granules).expect("the set of a run length holds pages with such a run");
        self.set_free(page, free, free & !mask(first, granules));
        Some(Piece { page, first, granules })
    }

    /// The first piece of a page that was taken for it.
    pub(crate) fn open_page(&mut self, page: u32, granules: u8) -> Piece {
        if granules < 64 {
            self.set_free(page, 0, !mask(0, granules));
        }
        Piece { page, first: 0, granules }
    }

    /// Takes a piece back; `lent`: the kernel may still read it.
    pub(crate) fn give_piece(&mut self, piece: &Piece, lent: bool) {
        if piece.granules == 64 {
            return self.give_page(Zone::Blocks, piece.page, lent);
        }
        assert!(!lent, "only whole pages are lent");
        let before = self.cut[&piece.page];
        let bits = mask(piece.first, piece.granules);
        assert_eq!(before & bits, 0, "a piece is given back once");
        self.set_free(piece.page, before, before | bits);
        if before | bits == u64::MAX {
            self.by_run[63].remove(&piece.page);
            self.cut.remove(&piece.page);
            self.give_page(Zone::Blocks, piece.page, false);
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
        let mut pool = Pool::new(8);
        let logs: Vec<u32> = (0..6).map(|_| pool.take_page(Zone::Logs, 8).expect("room").page).collect();
        logs.iter().for_each(|page| pool.give_page(Zone::Logs, *page, false));
        let taken: Vec<Taken> = (0..8).map(|_| pool.take_page(Zone::Blocks, 8).expect("room")).collect();
        let instead: Vec<bool> = taken.iter().map(|taken| taken.instead_of.is_some()).collect();
        assert_eq!(instead, [false, false, true, true, true, true, true, true]);
        assert!(pool.take_page(Zone::Logs, 8).is_none(), "all memory is in use");
        assert_eq!(pool.resident(), 8);
    }

    #[test]
    fn what_was_lent_comes_back_last_and_with_new_memory() {
        let mut pool = Pool::new(3);
        let pages: Vec<u32> = (0..2).map(|_| pool.take_page(Zone::Blocks, 3).expect("room").page).collect();
        pages.iter().for_each(|page| pool.give_page(Zone::Blocks, *page, true));
        let memory: Vec<Memory> = (0..3).map(|_| pool.take_page(Zone::Blocks, 3).expect("room").memory).collect();
        assert_eq!(memory, [Memory::New, Memory::Renew, Memory::Renew]);
    }

    #[test]
    fn free_memory_over_a_lower_limit_is_given_back() {
        let mut pool = Pool::new(4);
        let page = pool.take_page(Zone::Logs, 4).expect("room").page;
        pool.take_page(Zone::Blocks, 4).expect("room");
        pool.give_page(Zone::Logs, page, false);
        assert_eq!(pool.strip(1), Some((Zone::Logs, page)));
        assert_eq!(pool.strip(1), None);
    }
}
