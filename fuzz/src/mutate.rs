//! Mutations: how the next input is made from those kept so far.

use herd_fuzz::random::Random;

/// Longest input made from a shorter one; large inputs of the corpus stay about as large as they are.
const GROWN_MAX_BYTES: usize = 20 * 1024;
const SLACK_BYTES: usize = 4 * 1024;

/// Inputs above this are chosen once in 256 times.
const LARGE_BYTES: usize = 6 * 1024;

/// Most changes of one input.
const CHANGES_MAX: usize = 6;

const BYTES: &[u8] = b"\0\x01\x7F\x80\xFF\r\n\t ,;:=\"%/+-*09aZ";

/// Numbers at the edges of types and limits.
#[rustfmt::skip]
const NUMBERS: &[u64] = &[
    0, 1, 7, 15, 16, 31, 32, 64, 100, 127, 128, 250, 251, 255, 256, 1_000, 1_024, 1_025, 2_048, 4_096, 8_192, 8_193,
    10_000, 10_001, 16_384, 32_767, 32_768, 65_535, 65_536, 262_144, 1 << 20, (1 << 20) + 1, (1 << 31) - 3,
    (1 << 31) - 2, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, (1 << 63) - 1, 1 << 63, u64::MAX - 1, u64::MAX,
];

/// Makes inputs.
pub(crate) struct Mutator {
    dictionary: &'static [&'static [u8]],
    random: Random,
}

impl Mutator {
    /// One that uses these words.
    pub(crate) fn new(dictionary: &'static [&'static [u8]], random: Random) -> Self {
        Self { dictionary, random }
    }

    /// Makes `out` from one or two of `from`, which is not empty.
    pub(crate) fn make(&mut self, from: &[Vec<u8>], out: &mut Vec<u8>) {
        let base = self.choose(from);
        out.clear();
        out.extend_from_slice(base);
        let most = if base.len() > GROWN_MAX_BYTES { base.len() + SLACK_BYTES } else { GROWN_MAX_BYTES };
        for _ in 0..1 + self.random.below(CHANGES_MAX) {
            self.change(from, out);
            out.truncate(most);
        }
    }

    /// One of the inputs; of several the shortest, mostly, for short ones run fast, and a large one seldom.
    fn choose<'a>(&mut self, from: &'a [Vec<u8>]) -> &'a [u8] {
        let mut best = &from[self.random.below(from.len())];
        for _ in 0..if self.random.once_in(256) { 0 } else { 16 } {
            if best.len() <= LARGE_BYTES {
                break;
            }
            best = &from[self.random.below(from.len())];
        }
        for _ in 0..if self.random.once_in(16) { 0 } else { 2 } {
            let other = &from[self.random.below(from.len())];
            if other.len() < best.len() {
                best = other;
            }
        }
        best
    }

    fn change(&mut self, from: &[Vec<u8>], out: &mut Vec<u8>) {
        match self.random.below(12) {
            0 => self.put(out, |random, byte| byte ^ (1 << random.below(8))),
            1 => self.put(out, |random, _| random.pick(BYTES)),
            2 => self.put(out, |random, _| random.number() as u8),
            3 | 4 => self.insert_word(out),
            5 => self.overwrite(out),
            6 => self.cross(from, out),
            7 => self.cut_end(out),
            8 => self.remove(out),
            9 => self.repeat(out),
            10 => self.edit_decimal(out),
            _ => self.edit_binary(out),
        }
    }

    /// Changes one byte.
    fn put(&mut self, out: &mut [u8], change: impl Fn(&mut Random, u8) -> u8) {
        if !out.is_empty() {
            let at = self.random.below(out.len());
            out[at] = change(&mut self.random, out[at]);
        }
    }

    /// A part of `out`: mostly short.
    fn part(&mut self, out: &[u8]) -> std::ops::Range<usize> {
        let start = self.random.below(out.len() + 1);
        let most = if self.random.once_in(8) { out.len() } else { 16 };
        let length = self.random.below((out.len() - start).min(most) + 1);
        start..start + length
    }

    fn insert_word(&mut self, out: &mut Vec<u8>) {
        let at = self.random.below(out.len() + 1);
        let word = self.random.pick(self.dictionary);
        out.splice(at..at, word.iter().copied());
    }

    fn overwrite(&mut self, out: &mut Vec<u8>) {
        let part = self.part(out);
        let word = self.random.pick(self.dictionary);
        out.splice(part, word.iter().copied());
    }

    /// The beginning of this and the end of another.
    fn cross(&mut self, from: &[Vec<u8>], out: &mut Vec<u8>) {
        let other = self.choose(from);
        let (keep, start) = (self.random.below(out.len() + 1), self.random.below(other.len() + 1));
        out.truncate(keep);
        out.extend_from_slice(&other[start..]);
    }

    fn cut_end(&mut self, out: &mut Vec<u8>) {
        let keep = self.random.below(out.len() + 1);
        out.truncate(keep);
    }

    fn remove(&mut self, out: &mut Vec<u8>) {
        let part = self.part(out);
        out.drain(part);
    }

    fn repeat(&mut self, out: &mut Vec<u8>) {
        let part = self.part(out);
        let often = if self.random.once_in(8) { 300 } else { 4 };
        let times = self.random.below(often);
        let copy = out[part.clone()].repeat(times.min(GROWN_MAX_BYTES / part.len().max(1)));
        out.splice(part.end..part.end, copy);
    }

    /// Another number in place of decimal digits.
    fn edit_decimal(&mut self, out: &mut Vec<u8>) {
        let from = self.random.below(out.len() + 1);
        let Some(start) = out[from..].iter().position(u8::is_ascii_digit).map(|at| from + at) else { return };
        let length = out[start..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        let old = std::str::from_utf8(&out[start..start + length]).ok().and_then(|text| text.parse::<u64>().ok());
        let new = match (self.random.below(4), old) {
            (0, Some(old)) => old.wrapping_add(1),
            (1, Some(old)) => old.wrapping_sub(1),
            _ => self.random.pick(NUMBERS),
        };
        out.splice(start..start + length, new.to_string().into_bytes());
    }

    /// Another number, little-endian, over 1, 2, 4 or 8 bytes.
    fn edit_binary(&mut self, out: &mut [u8]) {
        let width = self.random.pick(&[1, 2, 4, 8]);
        if out.len() >= width {
            let at = self.random.below(out.len() - width + 1);
            let number = self.random.pick(NUMBERS).to_le_bytes();
            out[at..at + width].copy_from_slice(&number[..width]);
        }
    }
}
