//! Keys and values that can be written, and checked when they come back, without a table of either.
//!
//! Key `i` is 16 bytes; its value is the key followed by printable bytes that depend on `i`, so a reply that belongs
//! to another key, or is cut or shifted, differs. Values hold no newline: the null server counts lines.

use crate::wire;

/// Bytes of every key.
pub(crate) const KEY_BYTES: usize = 16;
/// Keys are numbered below this (six hexadecimal digits).
pub(crate) const KEYS_MAX: u32 = 1 << 24;
/// How far values start into the pool: a prime, so that neighbours differ.
const OFFSETS: usize = 4_093;

/// Name of key `index`.
pub(crate) fn key(index: u32) -> [u8; KEY_BYTES] {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut name = *b"herdbench-000000";
    for (place, digit) in name[10..].iter_mut().enumerate() {
        *digit = DIGITS[(index >> (20 - 4 * place)) as usize & 15];
    }
    name
}

/// The pool all small values are cut from.
pub(crate) struct Values {
    pool: Vec<u8>,
    value_bytes: usize,
}

impl Values {
    /// Values of `value_bytes` bytes each, at least [`KEY_BYTES`].
    pub(crate) fn new(value_bytes: usize) -> Self {
        assert!(value_bytes >= KEY_BYTES, "a value starts with its key");
        Self { pool: printable(OFFSETS + value_bytes), value_bytes }
    }

    /// Bytes of every value.
    pub(crate) fn value_bytes(&self) -> usize {
        self.value_bytes
    }

    fn tail(&self, index: u32) -> &[u8] {
        let start = index as usize % OFFSETS;
        &self.pool[start + KEY_BYTES..start + self.value_bytes]
    }

    /// Appends the value of key `index`.
    pub(crate) fn append(&self, index: u32, out: &mut Vec<u8>) {
        out.extend_from_slice(&key(index));
        out.extend_from_slice(self.tail(index));
    }

    /// True if `value` is the value of key `index`.
    pub(crate) fn matches(&self, index: u32, value: &[u8]) -> bool {
        value.len() == self.value_bytes && value[..KEY_BYTES] == key(index) && value[KEY_BYTES..] == *self.tail(index)
    }
}

/// `len` bytes from the 64 letters of base64, repeatable and without a short period.
pub(crate) fn printable(len: usize) -> Vec<u8> {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut random = Random::new(0x5eed);
    (0..len).map(|_| LETTERS[random.below(64) as usize]).collect()
}

/// A large object's bytes with the checksum of each 64 KiB block, made once and sent many times.
pub(crate) struct Source {
    /// The body, resident.
    pub(crate) bytes: Vec<u8>,
    /// CRC-32C of each whole block.
    pub(crate) block_crcs: Vec<u32>,
}

impl Source {
    /// `len` bytes of content.
    pub(crate) fn new(len: usize) -> Self {
        let bytes = printable(len);
        let block_crcs = bytes.chunks_exact(wire::BLOCK_BYTES).map(wire::crc32c).collect();
        Self { bytes, block_crcs }
    }
}

/// A small, seeded random source (xorshift64*), for schedules and keys; the same seed gives every arm the same run.
pub(crate) struct Random(u64);

impl Random {
    /// A source that depends only on `seed`.
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// 64 random bits.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `bound` (at most 2^32; the bias of multiplying is below 2^-32).
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        ((self.next() >> 32) * bound) >> 32
    }

    /// A number in [0, 1).
    pub(crate) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Time to the next arrival of a Poisson process with `rate_per_s`, in nanoseconds.
    pub(crate) fn gap_ns(&mut self, rate_per_s: f64) -> f64 {
        -(1.0 - self.unit()).ln() * 1e9 / rate_per_s
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_distinct_and_of_one_length() {
        assert_eq!(&key(0), b"herdbench-000000");
        assert_eq!(&key(KEYS_MAX - 1), b"herdbench-ffffff");
        assert_eq!(&key(0x00ab_c123), b"herdbench-abc123");
    }

    #[test]
    fn values_know_their_key() {
        let values = Values::new(256);
        let mut value = Vec::new();
        values.append(77, &mut value);
        assert!(values.matches(77, &value));
        assert!(!values.matches(78, &value));
        assert!(!values.matches(77, &value[..255]));
        value[200] ^= 1;
        assert!(!values.matches(77, &value));
        assert!(!value.contains(&b'\n'));
    }

    #[test]
    fn poisson_gaps_have_their_mean() {
        let mut random = Random::new(3);
        let mean = (0..100_000).map(|_| random.gap_ns(1_000.0)).sum::<f64>() / 100_000.0;
        assert!((mean - 1e6).abs() < 2e4, "{mean}");
    }
}
