//! What an input says is to be done, read byte by byte; whatever it says means something.

use super::model::{Expiry, Value};
use crate::random::Random;
use std::rc::Rc;

/// Keys that all connections share; the last two hold numbers.
pub(super) const KEYS: usize = 10;
/// The first key that holds a number.
pub(super) const FIRST_NUMBER: usize = 8;

/// Bytes of all large values of one input together: beyond it they are small.
const LARGE_MAX_BYTES: usize = 14 << 20;

const SMALL: &[usize] = &[0, 1, 2, 9, 40, 100, 512, 1_024, 2_000, 4_000];
const MIDDLE: &[usize] = &[4_095, 4_096, 4_097, 5_000, 9_000, 20_000];
const BLOCKS: &[usize] = &[65_535, 65_536, 65_537, 131_072, 200_001];
const LARGE: &[usize] = &[(1 << 20) - 1, 1 << 20, 700_000];

/// The rest of an input, and what was made of it so far.
pub(super) struct Script<'a> {
    rest: &'a [u8],
    serial: u64,
    large_bytes: usize,
}

impl<'a> Script<'a> {
    pub(super) fn new(input: &'a [u8]) -> Self {
        Self { rest: input, serial: 0, large_bytes: 0 }
    }

    /// The next byte, or 0 behind the last.
    pub(super) fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.rest.split_first() else { return 0 };
        self.rest = rest;
        *first
    }

    pub(super) fn is_over(&self) -> bool {
        self.rest.is_empty()
    }

    /// A length and so many bytes.
    pub(super) fn raw(&mut self) -> &'a [u8] {
        let n = usize::from(self.byte()).min(self.rest.len());
        let (raw, rest) = self.rest.split_at(n);
        self.rest = rest;
        raw
    }

    /// A number of bytes for which much happens at the edges.
    pub(super) fn amount(&mut self) -> usize {
        match self.byte() {
            n @ 0..=99 => usize::from(n) + 1,
            n @ 100..=199 => (usize::from(n) - 99) * 100,
            n => (usize::from(n) - 199) * 4_096,
        }
    }

    /// The size of a value.
    pub(super) fn size(&mut self) -> usize {
        let byte = usize::from(self.byte());
        let size = match byte {
            0..=159 => SMALL[byte % SMALL.len()],
            160..=223 => MIDDLE[byte % MIDDLE.len()],
            224..=247 => BLOCKS[byte % BLOCKS.len()],
            _ => LARGE[byte % LARGE.len()],
        };
        if size > 9_000 {
            self.large_bytes += size;
        }
        if self.large_bytes > LARGE_MAX_BYTES { size.min(4_097) } else { size }
    }

    /// A new value for a key; no two are the same but for the shortest.
    pub(super) fn value(&mut self, key: usize, flags: u32, now_ms: u64, ttl_ms: u64) -> Rc<Value> {
        let expiry = (ttl_ms > 0).then(|| Expiry::after(now_ms, ttl_ms));
        Rc::new(Value { bytes: Rc::new(self.bytes(key)), flags, expiry })
    }

    /// As `value`, the bytes alone.
    pub(super) fn bytes(&mut self, key: usize) -> Vec<u8> {
        self.serial += 1;
        if key >= FIRST_NUMBER {
            let digits = [1, 2, 19, 20][usize::from(self.byte()) % 4];
            return (self.serial * 7_919).to_string().repeat(20).as_bytes()[..digits].to_vec();
        }
        let mut random = Random::new((key as u64) << 32 | self.serial);
        let size = self.size();
        let mut bytes = Vec::with_capacity(size + 8);
        while bytes.len() < size {
            bytes.extend(random.number().to_le_bytes());
        }
        bytes.truncate(size);
        bytes
    }
}

/// The name of a key; nothing wild says it by chance.
pub(super) fn name(key: usize) -> String {
    format!("fuzz-5e9d1c77-{key}")
}
