//! Keys: how a name becomes a place (DESIGN §3.2).
//!
//! A key is a collection id (8 bytes) and an object id (16 bytes, here the keyed hash of the name). The object id
//! gives the slot, the shard within a node and the tag of the index, so a name is hashed once per request.

use crate::limits::{NAME_MAX_BYTES, SLOTS};
use siphasher::sip128::{Hasher128, SipHasher13};
use std::hash::Hasher;

/// Collection ids: 0 says "by name", 1 is the system's, 2 is `default`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CollectionId(pub u64);

impl CollectionId {
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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
