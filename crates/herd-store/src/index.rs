//! The index of a shard: an open-addressing table of 8-byte words, tag and address in one.
//!
//! A word holds 27 bits of the name's hash (the *tag*) and the 37-bit address of the entry. The top bits of the tag
//! give the home position, so growing never touches an entry; its low bits are the object's slot, which is as evenly
//! spread as the rest of the hash. Linear probing; removal shifts back, so there are no graves and probes end at the
//! first empty word. Cost: 8 bytes / load, 10 to 20 per object.

use crate::arena::prefetch;

const ADDR_BITS: u32 = 37;
const TAG_BITS: u32 = 27;
const ADDR_MASK: u64 = (1 << ADDR_BITS) - 1;
const FIRST_BITS: u32 = 6;

/// 27 bits: the top ones of a name's hash, and its slot's number in the shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Tag(u32);

impl Tag {
    /// The tag out of 64 well-mixed bits and the number of a slot, which has `slot_bits` bits.
    #[inline]
    pub(crate) fn new(bits: u64, slot: usize, slot_bits: u32) -> Self {
        let high = (bits >> (64 - TAG_BITS)) as u32;
        Self(high >> slot_bits << slot_bits | slot as u32)
    }

    /// The lowest and the highest tag.
    pub(crate) const MIN: Tag = Tag(0);
    /// The tag with that number; `None`: there is none.
    pub(crate) fn from_value(value: u32) -> Option<Self> {
        (value < 1 << TAG_BITS).then_some(Self(value))
    }

    /// As a number below 2^27.
    pub(crate) fn value(self) -> u32 {
        self.0
    }
}

/// Address of an entry: page (24 bits) and offset in units of 8 bytes (13 bits). Never zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Addr(u64);

impl Addr {
    #[inline]
    pub(crate) fn new(page: u32, offset: usize) -> Self {
        assert!(page != 0 && offset.is_multiple_of(8) && offset < 1 << 16, "an address is that of an entry");
        Self(u64::from(page) << 13 | (offset as u64 >> 3))
    }

    #[inline]
    pub(crate) fn page(self) -> u32 {
        (self.0 >> 13) as u32
    }

    #[inline]
    pub(crate) fn offset(self) -> usize {
        (self.0 as usize & 0x1FFF) << 3
    }
}

/// The table.
pub(crate) struct Index {
    words: Box<[u64]>,
    bits: u32,
    /// The table has at most 2 to the power of this many words.
    last_bits: u32,
    len: usize,
}

impl Index {
    pub(crate) fn new() -> Self {
        Self { words: vec![0; 1 << FIRST_BITS].into(), bits: FIRST_BITS, last_bits: TAG_BITS, len: 0 }
    }

    /// Objects in it.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Bytes of the table.
    pub(crate) fn bytes(&self) -> u64 {
        self.words.len() as u64 * 8
    }

    /// Whether the table is as full as it may be, so that it must grow before one more insertion.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.len + 1 > self.words.len() / 5 * 4
    }

    /// Bytes the table will have when it grows; `None` if it has its greatest size, that of all tags.
    pub(crate) fn growth_bytes(&self) -> Option<u64> {
        (self.bits < self.last_bits).then(|| self.bytes() * 2)
    }

    /// Makes the size the table has its greatest.
    #[cfg(test)]
    pub(crate) fn stop_growing(&mut self) {
        self.last_bits = self.bits;
    }

    /// Doubles the table.
    pub(crate) fn grow(&mut self) {
        let old = std::mem::take(&mut self.words);
        self.bits += 1;
        self.words = vec![0; 1 << self.bits].into();
        for word in old.iter().filter(|word| **word != 0) {
            self.place(*word);
        }
    }

    /// Begins to fetch the place where an entry with `tag` would be.
    #[inline]
    pub(crate) fn foresee(&self, tag: Tag) {
        prefetch(&self.words[self.home(tag)]);
    }

    /// Position and address of the entry with `tag` for which `is_it` holds.
    #[inline]
    pub(crate) fn find(&self, tag: Tag, mut is_it: impl FnMut(Addr) -> bool) -> Option<(usize, Addr)> {
        let mask = self.words.len() - 1;
        let mut at = self.home(tag);
        while self.words[at] != 0 {
            let (word, addr) = (self.words[at], Addr(self.words[at] & ADDR_MASK));
            if word >> ADDR_BITS == u64::from(tag.0) && is_it(addr) {
                return Some((at, addr));
            }
            at = (at + 1) & mask;
        }
        None
    }

    /// Where the search for a tag begins.
    #[inline]
    fn home(&self, tag: Tag) -> usize {
        (tag.0 >> (TAG_BITS - self.bits)) as usize
    }

    /// Adds an entry and gives its position; the table is not full.
    pub(crate) fn insert(&mut self, tag: Tag, addr: Addr) -> usize {
        assert!(self.len + 1 < self.words.len(), "a table always has an empty word");
        self.len += 1;
        self.place(word_of(tag, addr))
    }

    /// The tag of the entry at `at`.
    pub(crate) fn tag(&self, at: usize) -> Tag {
        tag_of(self.words[at])
    }

    /// Points the entry at `at` elsewhere.
    pub(crate) fn set_addr(&mut self, at: usize, addr: Addr) {
        assert_ne!(self.words[at], 0, "only an entry has an address");
        self.words[at] = (self.words[at] & !ADDR_MASK) | addr.0;
    }

    /// Takes the entry at `at` out and closes the gap.
    pub(crate) fn remove(&mut self, mut at: usize) {
        assert_ne!(self.words[at], 0, "only an entry can be removed");
        let mask = self.words.len() - 1;
        let mut next = at;
        loop {
            next = (next + 1) & mask;
            let word = self.words[next];
            if word == 0 {
                break;
            }
            let home = self.home(tag_of(word));
            if (next.wrapping_sub(home) & mask) >= (next.wrapping_sub(at) & mask) {
                self.words[at] = word;
                at = next;
            }
        }
        self.words[at] = 0;
        self.len -= 1;
    }

    /// Calls `each` for every entry with a tag in `from..=to`, in no order.
    pub(crate) fn range(&self, from: Tag, to: Tag, mut each: impl FnMut(Tag, Addr)) {
        let mask = self.words.len() - 1;
        let last = self.home(to);
        let mut at = self.home(from);
        let mut passed_last = at > last;
        for _ in 0..self.words.len() {
            let word = self.words[at];
            if word == 0 && passed_last {
                break;
            }
            let tag = tag_of(word);
            if word != 0 && tag >= from && tag <= to {
                each(tag, Addr(word & ADDR_MASK));
            }
            passed_last |= at == last;
            at = (at + 1) & mask;
        }
    }

    /// The highest tag of a stretch of about `entries` entries that begins at `from`; of fewer where the table is
    /// nearly empty, so that a stretch is never more than 16 words for each of them.
    pub(crate) fn stretch(&self, from: Tag, entries: usize) -> Tag {
        let per_word = self.len as f64 / self.words.len() as f64;
        let words = (entries as f64 / per_word.max(1.0 / 16.0)).min(self.words.len() as f64) as u64;
        let width = (words.max(1) << (TAG_BITS - self.bits)) - 1;
        Tag((u64::from(from.0) + width).min((1 << TAG_BITS) - 1) as u32)
    }

    fn place(&mut self, word: u64) -> usize {
        let mask = self.words.len() - 1;
        let mut at = self.home(tag_of(word));
        while self.words[at] != 0 {
            at = (at + 1) & mask;
        }
        self.words[at] = word;
        at
    }
}

impl Tag {
    /// The next tag, or `None` after the last.
    pub(crate) fn next(self) -> Option<Tag> {
        (self.0 + 1 < 1 << TAG_BITS).then_some(Tag(self.0 + 1))
    }
}

fn word_of(tag: Tag, addr: Addr) -> u64 {
    u64::from(tag.0) << ADDR_BITS | addr.0
}

fn tag_of(word: u64) -> Tag {
    Tag((word >> ADDR_BITS) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn agrees_with_a_map_under_random_use() {
        let mut index = Index::new();
        let mut model: BTreeMap<u32, Addr> = BTreeMap::new();
        let mut seed = 1u64;
        for round in 0..20_000u32 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let tag = Tag((seed >> 40) as u32 % 700 * 191_000);
            let found = index.find(tag, |_| true);
            assert_eq!(found.map(|(_, addr)| addr), model.get(&tag.0).copied());
            match found {
                Some((at, _)) if round % 3 == 0 => {
                    index.remove(at);
                    model.remove(&tag.0);
                }
                Some((at, _)) => {
                    let addr = Addr::new(round + 1, 8);
                    index.set_addr(at, addr);
                    model.insert(tag.0, addr);
                }
                None => {
                    if index.is_full() {
                        index.grow();
                    }
                    let addr = Addr::new(round + 1, 16);
                    index.insert(tag, addr);
                    model.insert(tag.0, addr);
                }
            }
            assert_eq!(index.len(), model.len());
        }
        let mut all = 0;
        index.range(Tag::MIN, Tag((1 << 27) - 1), |_, _| all += 1);
        assert_eq!(all, model.len());
    }

    #[test]
    fn stretches_cover_every_entry_once() {
        let mut index = Index::new();
        for i in 0..5_000u64 {
            if index.is_full() {
                index.grow();
            }
            let bits = (i + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            index.insert(Tag::new(bits, i as usize % 64, 6), Addr::new(i as u32 + 1, 0));
        }
        let (mut seen, mut from) = (Vec::new(), Some(Tag::MIN));
        while let Some(start) = from {
            let to = index.stretch(start, 100);
            index.range(start, to, |_, addr| seen.push(addr.page()));
            from = to.next();
        }
        seen.sort_unstable();
        assert_eq!(seen, (1..=5_000).collect::<Vec<_>>());
    }
}
