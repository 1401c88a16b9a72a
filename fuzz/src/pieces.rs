//! The ways bytes are cut into reads, chosen by the bytes themselves, and a log by which two readings are compared.

use crate::random::Random;
use std::fmt::{self, Write};

/// Inputs up to this length are tried at every prefix.
const ALL_PREFIXES_BYTES: usize = 256;

/// Cuts `input` whole, byte by byte, and twice at places made from its contents.
pub(crate) fn readings(input: &[u8]) -> Vec<Vec<&[u8]>> {
    let mut random = Random::of(input);
    let scales = [3, 17, 300, 5_000];
    let mut all = vec![vec![input], input.chunks(1).collect()];
    for _ in 0..2 {
        let most = random.pick(&scales);
        let (mut pieces, mut rest) = (Vec::new(), input);
        while !rest.is_empty() {
            let (piece, after) = rest.split_at(rest.len().min(1 + random.below(most)));
            pieces.push(piece);
            rest = after;
        }
        all.push(pieces);
    }
    all
}

/// Lengths of prefixes to try, rising, the whole last: all of a short input; of a long one some, and all around
/// `edges`.
pub(crate) fn prefixes(input: &[u8], edges: &[usize]) -> Vec<usize> {
    let length = input.len();
    if length <= ALL_PREFIXES_BYTES {
        return (0..=length).collect();
    }
    let mut random = Random::of(input);
    let mut ends: Vec<usize> = (0..48).map(|_| random.below(length)).collect();
    for edge in edges {
        ends.extend((edge.saturating_sub(2)..edge + 3).filter(|end| *end < length));
    }
    ends.push(length);
    ends.sort_unstable();
    ends.dedup();
    ends
}

/// A hash of what happened, fed with `write!`: two readings agree if their logs do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Log(u64);

impl Default for Log {
    fn default() -> Self {
        Self(0xCBF2_9CE4_8422_2325)
    }
}

impl Log {
    /// Takes in bytes.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01B3);
        }
    }

    /// Takes in an event.
    pub(crate) fn event(&mut self, event: &impl fmt::Debug) {
        write!(self, "{event:?};").expect("a log takes all");
    }
}

impl Write for Log {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.bytes(text.as_bytes());
        Ok(())
    }
}
