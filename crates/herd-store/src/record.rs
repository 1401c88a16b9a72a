//! How an entry lies in a log page: a 20-byte header, optional fields, name, value; padded to 8 bytes.
//!
//! | offset | size | |
//! |---|---|---|
//! | 0 | 8 | version |
//! | 8 | 4 | name length (11 bits), value length (13), bits (8) |
//! | 12 | 4 | last access, seconds since start (29 bits: 17 years); marks: beside, pending, dead (3) |
//! | 16 | 4 | CRC-32C of an inline value |
//! | 20 | | [flags 4] [expiry 8] [extra 9 or 33] [attributes 2 + n] name, value |
//!
//! The extra field is what few entries have: memcached's CAS value (8) and bits (1: stale, 2: token sent, 4: a fence of
//! 24 bytes follows).
//!
//! The value of a large entry is 12 bytes: index of its body in the shard (4) and size (8).

use herd_core::entry::{Fence, Head, Memcached, TOKEN_BYTES};

const HEADER_BYTES: usize = 20;
const HAS_FLAGS: u32 = 1 << 24;
const HAS_EXPIRY: u32 = 1 << 25;
const HAS_EXTRA: u32 = 1 << 26;
const HAS_ATTRIBUTES: u32 = 1 << 27;
const LARGE: u32 = 1 << 28;
const FETCHED: u32 = 1 << 29;
const FREQ_SHIFT: u32 = 30;
/// Bits of the last access; those above are marks.
const ACCESS: u32 = (1 << 29) - 1;
/// The mark of an entry beside which a write is pending.
pub(crate) const BESIDE: u32 = 1 << 29;
/// The mark of an entry that is a pending write itself: nobody finds it until it is committed.
pub(crate) const PENDING: u32 = 1 << 30;
const DEAD: u32 = 1 << 31;
/// Bytes of the extra field without a fence.
const EXTRA_BYTES: usize = 9;
const STALE: u8 = 1;
const TOKEN_SENT: u8 = 2;
const FENCED: u8 = 4;
/// Bytes of the value field of a large entry.
const LARGE_BYTES: usize = 12;

/// The value of an entry about to be written.
#[derive(Clone, Copy)]
pub(crate) enum Stored<'a> {
    /// The bytes and their checksum.
    Inline(&'a [u8], u32),
    /// Index of the body and its size.
    Large(u32, u64),
}

/// An entry about to be written.
pub(crate) struct Draft<'a> {
    pub(crate) head: Head,
    pub(crate) name: &'a [u8],
    pub(crate) attributes: &'a [u8],
    pub(crate) fence: Option<Fence>,
    pub(crate) value: Stored<'a>,
}

impl Draft<'_> {
    /// Bytes it takes in a page.
    pub(crate) fn bytes(&self) -> usize {
        let value = match self.value {
            Stored::Inline(bytes, _) => bytes.len(),
            Stored::Large(..) => LARGE_BYTES,
        };
        let optional = if self.head.flags != 0 { 4 } else { 0 }
            + if self.head.expires_ms != 0 { 8 } else { 0 }
            + match self.fence {
                Some(_) => EXTRA_BYTES + TOKEN_BYTES,
                None if self.head.memcached.is_empty() => 0,
                None => EXTRA_BYTES,
            }
            + if self.attributes.is_empty() { 0 } else { 2 + self.attributes.len() };
        (HEADER_BYTES + optional + self.name.len() + value).next_multiple_of(8)
    }

    /// Writes it to the start of `out`, with use count `freq` and no mark.
    pub(crate) fn write(&self, out: &mut [u8], freq: u8) {
        let head = &self.head;
        let (value_len, large, crc) = match self.value {
            Stored::Inline(bytes, crc) => (bytes.len(), 0, crc),
            Stored::Large(..) => (LARGE_BYTES, LARGE, 0),
        };
        let mut bits = self.name.len() as u32 | (value_len as u32) << 11 | large | u32::from(freq) << FREQ_SHIFT;
        if head.fetched {
            bits |= FETCHED;
        }
        let mut at = HEADER_BYTES;
        let mut put = |bytes: &[u8]| {
            out[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        };
        if head.flags != 0 {
            bits |= HAS_FLAGS;
            put(&head.flags.to_le_bytes());
        }
        if head.expires_ms != 0 {
            bits |= HAS_EXPIRY;
            put(&head.expires_ms.to_le_bytes());
        }
        if !head.memcached.is_empty() || self.fence.is_some() {
            bits |= HAS_EXTRA;
            let bit = |set: bool, bit: u8| if set { bit } else { 0 };
            let memcached = bit(head.memcached.stale, STALE) | bit(head.memcached.token_sent, TOKEN_SENT);
            put(&head.memcached.cas.to_le_bytes());
            put(&[memcached | bit(self.fence.is_some(), FENCED)]);
            self.fence.into_iter().for_each(|fence| put(&fence.to_bytes()));
        }
        if !self.attributes.is_empty() {
            bits |= HAS_ATTRIBUTES;
            put(&(self.attributes.len() as u16).to_le_bytes());
            put(self.attributes);
        }
        put(self.name);
        match self.value {
            Stored::Inline(bytes, _) => put(bytes),
            Stored::Large(body, size) => {
                put(&body.to_le_bytes());
                put(&size.to_le_bytes());
            }
        }
        out[0..8].copy_from_slice(&head.version.to_le_bytes());
        out[8..12].copy_from_slice(&bits.to_le_bytes());
        out[12..16].copy_from_slice(&(head.access_s & ACCESS).to_le_bytes());
        out[16..20].copy_from_slice(&crc.to_le_bytes());
    }
}

/// An entry in a page, to read.
#[derive(Clone, Copy)]
pub(crate) struct Record<'a> {
    bytes: &'a [u8],
    bits: u32,
}

impl<'a> Record<'a> {
    /// The entry that starts at the first byte of `bytes`.
    #[inline]
    pub(crate) fn at(bytes: &'a [u8]) -> Self {
        Self { bytes, bits: u32_at(bytes, 8) }
    }

    /// Its version.
    pub(crate) fn version(&self) -> u64 {
        u64_at(self.bytes, 0)
    }

    /// Its name.
    #[inline]
    pub(crate) fn name(&self) -> &'a [u8] {
        let at = self.starts().1;
        &self.bytes[at..at + self.name_len()]
    }

    /// Its value.
    #[inline]
    pub(crate) fn value(&self) -> Stored<'a> {
        let at = self.starts().1 + self.name_len();
        if self.has(LARGE) {
            Stored::Large(u32_at(self.bytes, at), u64_at(self.bytes, at + 4))
        } else {
            Stored::Inline(&self.bytes[at..at + self.value_len()], u32_at(self.bytes, 16))
        }
    }

    /// All that is known besides the value.
    #[inline]
    pub(crate) fn head(&self) -> Head {
        let mut head = Head {
            version: u64_at(self.bytes, 0),
            size_bytes: self.value_len() as u64,
            access_s: u32_at(self.bytes, 12) & ACCESS,
            fetched: self.has(FETCHED),
            ..Head::default()
        };
        if self.bits & (HAS_FLAGS | HAS_EXPIRY | HAS_EXTRA | LARGE) != 0 {
            self.optional(&mut head);
        }
        head
    }

    #[inline]
    fn name_len(&self) -> usize {
        (self.bits & 0x7FF) as usize
    }

    #[inline]
    fn value_len(&self) -> usize {
        (self.bits >> 11 & 0x1FFF) as usize
    }

    #[inline]
    fn has(&self, bit: u32) -> bool {
        self.bits & bit != 0
    }

    /// Where attributes (their length field) and the name begin.
    #[inline]
    fn starts(&self) -> (usize, usize) {
        let mut at = HEADER_BYTES;
        if self.bits & (HAS_FLAGS | HAS_EXPIRY | HAS_EXTRA | HAS_ATTRIBUTES) == 0 {
            return (at, at);
        }
        at += if self.has(HAS_FLAGS) { 4 } else { 0 };
        at += if self.has(HAS_EXPIRY) { 8 } else { 0 };
        at += if self.has(HAS_EXTRA) { self.extra_bytes(at) } else { 0 };
        let name = if self.has(HAS_ATTRIBUTES) { at + 2 + u16_at(self.bytes, at) } else { at };
        (at, name)
    }

    /// Bytes of the extra field, which begins at `at`.
    fn extra_bytes(&self, at: usize) -> usize {
        EXTRA_BYTES + if self.bytes[at + EXTRA_BYTES - 1] & FENCED != 0 { TOKEN_BYTES } else { 0 }
    }

    /// The highest token that was shown with an operation on it.
    #[inline]
    pub(crate) fn fence(&self) -> Option<Fence> {
        if !self.has(HAS_EXTRA) {
            return None;
        }
        let flags = if self.has(HAS_FLAGS) { 4 } else { 0 };
        let at = HEADER_BYTES + flags + if self.has(HAS_EXPIRY) { 8 } else { 0 } + EXTRA_BYTES;
        let fenced = self.bytes[at - 1] & FENCED != 0;
        if fenced { Fence::from_bytes(&self.bytes[at..at + TOKEN_BYTES]) } else { None }
    }

    /// When it expires, ms since 1970; 0: never.
    #[inline]
    pub(crate) fn expires_ms(&self) -> u64 {
        if !self.has(HAS_EXPIRY) {
            return 0;
        }
        u64_at(self.bytes, HEADER_BYTES + if self.has(HAS_FLAGS) { 4 } else { 0 })
    }

    /// Bytes it takes in the page.
    #[inline]
    pub(crate) fn len_bytes(&self) -> usize {
        (self.starts().1 + self.name_len() + self.value_len()).next_multiple_of(8)
    }

    /// Its attributes, encoded; empty if it has none.
    pub(crate) fn attributes(&self) -> &'a [u8] {
        let (at, name) = self.starts();
        if self.has(HAS_ATTRIBUTES) { &self.bytes[at + 2..name] } else { &[] }
    }

    /// Index of its body if it is large.
    pub(crate) fn body(&self) -> Option<u32> {
        match self.value() {
            Stored::Large(body, _) => Some(body),
            Stored::Inline(..) => None,
        }
    }

    /// Whether it was removed or overwritten.
    #[inline]
    pub(crate) fn is_dead(&self) -> bool {
        self.is_marked(DEAD)
    }

    /// Whether it has this mark.
    #[inline]
    pub(crate) fn is_marked(&self, mark: u32) -> bool {
        u32_at(self.bytes, 12) & mark != 0
    }

    /// Uses seen by eviction, 0 to 3.
    #[inline]
    pub(crate) fn freq(&self) -> u8 {
        (self.bits >> FREQ_SHIFT) as u8
    }

    /// What few entries have.
    fn optional(&self, head: &mut Head) {
        let mut at = HEADER_BYTES;
        if self.has(HAS_FLAGS) {
            head.flags = u32_at(self.bytes, at);
            at += 4;
        }
        if self.has(HAS_EXPIRY) {
            head.expires_ms = u64_at(self.bytes, at);
            at += 8;
        }
        if self.has(HAS_EXTRA) {
            let bits = self.bytes[at + 8];
            let cas = u64_at(self.bytes, at);
            head.memcached = Memcached { cas, stale: bits & STALE != 0, token_sent: bits & TOKEN_SENT != 0 };
        }
        if let Stored::Large(_, size_bytes) = self.value() {
            head.size_bytes = size_bytes;
        }
    }
}

/// Notes a use at `access_s` of the entry at the start of `bytes`; writes only what changes, so that hot entries stay
/// clean in the cache.
#[inline]
pub(crate) fn mark_used(bytes: &mut [u8], access_s: u32) {
    let bits = u32_at(bytes, 8);
    let freq = bits >> FREQ_SHIFT;
    let next = (bits & !(3 << FREQ_SHIFT)) | FETCHED | (freq + 1).min(3) << FREQ_SHIFT;
    if next != bits {
        bytes[8..12].copy_from_slice(&next.to_le_bytes());
    }
    let access = u32_at(bytes, 12);
    let next = access & !ACCESS | access_s & ACCESS;
    if next != access {
        bytes[12..16].copy_from_slice(&next.to_le_bytes());
    }
}

/// Marks the entry at the start of `bytes` dead.
pub(crate) fn mark_dead(bytes: &mut [u8]) {
    set_mark(bytes, DEAD, true);
}

/// Sets a mark of the entry at the start of `bytes`, or takes it away.
pub(crate) fn set_mark(bytes: &mut [u8], mark: u32, on: bool) {
    let access = u32_at(bytes, 12) & !mark | if on { mark } else { 0 };
    bytes[12..16].copy_from_slice(&access.to_le_bytes());
}

/// Sets the use count.
pub(crate) fn set_freq(bytes: &mut [u8], freq: u8) {
    let bits = u32_at(bytes, 8) & !(3 << FREQ_SHIFT) | u32::from(freq) << FREQ_SHIFT;
    bytes[8..12].copy_from_slice(&bits.to_le_bytes());
}

#[inline]
fn u16_at(bytes: &[u8], at: usize) -> usize {
    usize::from(u16::from_le_bytes(bytes[at..at + 2].try_into().expect("two bytes")))
}

#[inline]
fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

#[inline]
fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_reads_back_as_it_was_written() {
        let memcached = Memcached { cas: 9, stale: true, token_sent: true };
        let fence = Fence { lock: *b"the id of a lock", grant: 78 };
        for bits in 0..32u32 {
            let head = Head {
                version: 77,
                size_bytes: 5,
                flags: if bits & 1 != 0 { 3 } else { 0 },
                expires_ms: if bits & 2 != 0 { 1 << 41 } else { 0 },
                access_s: 12,
                fetched: false,
                memcached: if bits & 4 != 0 { memcached } else { Memcached::default() },
            };
            let attributes: &[u8] = if bits & 8 != 0 { b"attributes" } else { b"" };
            let fence = (bits & 16 != 0).then_some(fence);
            let draft = Draft { head, name: b"name", attributes, fence, value: Stored::Inline(b"value", 42) };
            let mut bytes = vec![0xAA; draft.bytes() + 8];
            draft.write(&mut bytes, 2);
            mark_used(&mut bytes, 99);
            let record = Record::at(&bytes);
            assert_eq!(record.len_bytes(), draft.bytes());
            assert_eq!(record.head(), Head { access_s: 99, fetched: true, ..head });
            assert_eq!((record.name(), record.attributes(), record.freq()), (&b"name"[..], attributes, 3));
            assert_eq!((record.expires_ms(), record.fence()), (head.expires_ms, fence));
            assert!(matches!(record.value(), Stored::Inline(b"value", 42)));
            assert!(!record.is_dead());
            mark_dead(&mut bytes);
            assert!(Record::at(&bytes).is_dead());
        }
    }

    #[test]
    fn a_use_leaves_the_marks_as_they_are() {
        let (head, value) = (Head { access_s: 5, ..Head::default() }, Stored::Inline(b"value", 0));
        let draft = Draft { head, name: b"name", attributes: b"", fence: None, value };
        for mark in [BESIDE, PENDING] {
            let mut bytes = vec![0xAA; draft.bytes()];
            draft.write(&mut bytes, 0);
            assert!(!Record::at(&bytes).is_marked(BESIDE | PENDING | DEAD));
            set_mark(&mut bytes, mark, true);
            for access_s in [7, 7, ACCESS, u32::MAX] {
                mark_used(&mut bytes, access_s);
                assert_eq!(Record::at(&bytes).head().access_s, access_s & ACCESS);
                assert!(Record::at(&bytes).is_marked(mark) && !Record::at(&bytes).is_dead());
            }
            set_mark(&mut bytes, mark, false);
            assert!(!Record::at(&bytes).is_marked(BESIDE | PENDING | DEAD));
        }
    }

    #[test]
    fn a_small_object_costs_twenty_bytes_and_padding() {
        let (head, value) = (Head::default(), Stored::Inline(&[2; 64], 0));
        let draft = Draft { head, name: &[1; 16], attributes: b"", fence: None, value };
        assert_eq!(draft.bytes(), 104);
    }
}
