//! Keys: how a name, or an index, becomes a place.
//!
//! A key is a collection id (8 bytes) and an object id (16 bytes): the keyed hash of the name, or of an index what
//! makes neighbours lie apart. The object id gives the slot, the shard within a node and the tag of the index.

use crate::limits::{NAME_MAX_BYTES, SLOTS};
use siphasher::sip128::{Hasher128, SipHasher13};
use std::hash::Hasher;

/// Collection ids: spread group (16 bits), first slot (12), serial (36). 0 says "by name", 1 is the system's, 2 is
/// `default`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CollectionId(pub u64);

/// Bits of a collection's serial number.
const SERIAL_BITS: u32 = 36;
/// Bits of a slot.
const SLOT_BITS: u32 = 12;
const _: () = assert!(SLOTS == 1 << SLOT_BITS);

impl CollectionId {
    /// The id of the collection with that serial number (36 bits) in a spread group. First slots of collections that
    /// follow each other lie far apart, so that what is at the start of each does not meet on one node.
    pub fn new(spread_group: u16, serial: u64) -> Self {
        // The golden ratio of 4,096, odd: every slot comes once in 4,096 serials.
        let first = serial.wrapping_mul(2531) % SLOTS as u64;
        let serial = serial & ((1 << SERIAL_BITS) - 1);
        Self(u64::from(spread_group) << (SLOT_BITS + SERIAL_BITS) | first << SERIAL_BITS | serial)
    }

    /// The spread group its objects are spread over.
    pub fn spread_group(self) -> u16 {
        (self.0 >> (SLOT_BITS + SERIAL_BITS)) as u16
    }

    /// The slot of its object 0.
    pub fn first_slot(self) -> usize {
        (self.0 >> SERIAL_BITS) as usize % SLOTS
    }

    /// Its number among the collections of its spread group.
    pub fn serial(self) -> u64 {
        self.0 & ((1 << SERIAL_BITS) - 1)
    }

    /// A request that names its collection in the head.
    pub const BY_NAME: CollectionId = CollectionId(0);
    /// Read-only objects about the node itself.
    pub const SYSTEM: CollectionId = CollectionId(1);
    /// The collection of names without a slash.
    pub const DEFAULT: CollectionId = CollectionId(2);
}

/// The herd's secret for hashing names, so that nobody outside can aim at one slot.
#[derive(Clone, Copy)]
pub struct HashKey(pub [u8; 16]);

/// The keyed 128-bit hash of a name in a collection (SipHash-1-3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectId {
    low: u64,
    high: u64,
}

impl ObjectId {
    /// The id of `name` in `collection`.
    #[inline]
    pub fn of(key: &HashKey, collection: CollectionId, name: &[u8]) -> Self {
        let mut hasher = SipHasher13::new_with_key(&key.0);
        hasher.write_u64(collection.0);
        hasher.write(name);
        let hash = hasher.finish128();
        Self { low: hash.h1, high: hash.h2 }
    }

    /// The id of the object at `index` of `collection`: neighbours lie in neighbouring slots, so on different nodes.
    pub fn at(key: &HashKey, collection: CollectionId, index: u64) -> Self {
        let mixed = Self::of(key, collection, &index.to_be_bytes());
        Self { low: (collection.first_slot() as u64).wrapping_add(index), high: mixed.high }
    }

    /// Its bytes, little-endian: what tells it from all others.
    pub fn to_bytes(self) -> [u8; 16] {
        (u128::from(self.high) << 64 | u128::from(self.low)).to_le_bytes()
    }

    /// The slot of the spread group, below [`SLOTS`].
    #[inline]
    pub fn slot(self) -> usize {
        (self.low % SLOTS as u64) as usize
    }

    /// Bits independent of the slot, for an index within a node.
    #[inline]
    pub fn tag_bits(self) -> u64 {
        self.high
    }
}

/// Whether `name` may name an object: 1 to 1,024 bytes, any bytes.
#[inline]
pub fn name_is_valid(name: &[u8]) -> bool {
    !name.is_empty() && name.len() <= NAME_MAX_BYTES
}

/// The index that a name of an indexed collection stands for: decimal digits without leading zeros.
#[inline]
pub fn index(name: &[u8]) -> Option<u64> {
    let plain = matches!(name, [b'0'] | [b'1'..=b'9', ..]) && name.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(name).ok().filter(|_| plain)?.parse().ok()
}

/// Splits what a user wrote into collection and name: what precedes the first slash is the collection.
pub fn split(key: &[u8]) -> (&[u8], &[u8]) {
    match memchr::memchr(b'/', key) {
        Some(at) => (&key[..at], &key[at + 1..]),
        None => (b"default", key),
    }
}

/// Whether `name` may name a collection: 1 to 255 letters, digits, `.`, `-` and `_`, not starting with a dot.
pub fn collection_name_is_valid(name: &str) -> bool {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_');
    !name.is_empty()
        && name.len() <= crate::limits::COLLECTION_NAME_MAX_BYTES
        && !name.starts_with('.')
        && name.bytes().all(allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_has_one_name() {
        assert_eq!(index(b"0"), Some(0));
        assert_eq!(index(u64::MAX.to_string().as_bytes()), Some(u64::MAX));
        for name in [&b""[..], b"00", b"01", b"+1", b"-1", b"1a", b" 1", b"18446744073709551616", b"\xFF"] {
            assert_eq!(index(name), None);
        }
    }

    #[test]
    fn what_precedes_the_first_slash_is_the_collection() {
        assert_eq!(split(b"a/b/c"), (&b"a"[..], &b"b/c"[..]));
        assert_eq!(split(b"plain"), (&b"default"[..], &b"plain"[..]));
        assert_eq!(split(b"/x"), (&b""[..], &b"x"[..]));
    }

    #[test]
    fn one_name_has_another_id_in_another_collection_and_under_another_key() {
        let (k, l) = (HashKey([1; 16]), HashKey([2; 16]));
        let a = ObjectId::of(&k, CollectionId(2), b"n");
        assert_eq!(a, ObjectId::of(&k, CollectionId(2), b"n"));
        assert_ne!(a, ObjectId::of(&k, CollectionId(3), b"n"));
        assert_ne!(a, ObjectId::of(&l, CollectionId(2), b"n"));
    }

    /// These never change: keys stay valid for ever, on every node and in every client.
    #[test]
    fn golden_keys() {
        let key = HashKey(*b"the herd's key..");
        let c = CollectionId::new(1, 3);
        // Made by another program, from the papers of SipHash.
        let hex = |id: ObjectId| id.to_bytes().iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        assert_eq!(c.0, 0x0001_DA90_0000_0003);
        assert_eq!(hex(ObjectId::of(&key, CollectionId::DEFAULT, b"greeting")), "0d561de854dffdb78f564e5113d36ad2");
        assert_eq!(hex(ObjectId::of(&key, c, &[b'n'; 1024])), "1eabce6073088a9634bbe04fce4045da");
        assert_eq!(hex(ObjectId::at(&key, c, 17)), "ba0d000000000000d43d21670e005a8f");
    }

    #[test]
    fn eight_neighbours_lie_in_eight_slots_that_follow_each_other() {
        let key = HashKey([7; 16]);
        for serial in [2, 3, 4_000_000_000] {
            let c = CollectionId::new(5, serial);
            assert_eq!((c.spread_group(), c.serial()), (5, serial));
            for from in [0, 1, 4090, u64::MAX - 8] {
                let slots: Vec<usize> = (0..8).map(|i| ObjectId::at(&key, c, from + i).slot()).collect();
                let first = (c.first_slot() as u64).wrapping_add(from);
                let wanted: Vec<usize> = (0..8).map(|i| (first.wrapping_add(i) % SLOTS as u64) as usize).collect();
                assert_eq!(slots, wanted);
            }
        }
        let firsts: std::collections::BTreeSet<usize> =
            (0..SLOTS as u64).map(|serial| CollectionId::new(0, serial).first_slot()).collect();
        assert_eq!(firsts.len(), SLOTS, "every slot is the first of some collection");
    }

    #[test]
    fn names_spread_evenly_over_the_slots() {
        let key = HashKey([7; 16]);
        let mut count = vec![0u32; SLOTS];
        for i in 0..409_600u32 {
            count[ObjectId::of(&key, CollectionId(2), format!("key-{i}").as_bytes()).slot()] += 1;
        }
        assert!(count.iter().all(|&n| n > 40 && n < 180), "100 on average");
    }
}
