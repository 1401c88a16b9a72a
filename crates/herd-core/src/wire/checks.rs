//! Block checksums of a frame's body (PROTOCOL.md §1.3): one CRC-32C for each block of 64 KiB.

use super::error::WireError;
use crate::checksum::{Crc32c, crc32c};
use crate::limits::{BLOCK_BYTES, WIRE_FRAME_BODY_MAX_BYTES};

/// Most blocks of one frame.
pub const FRAME_BLOCKS_MAX: usize = WIRE_FRAME_BODY_MAX_BYTES / BLOCK_BYTES;

/// The checksums of a body in one piece, in order.
#[inline]
pub fn block_checks(body: &[u8]) -> impl Iterator<Item = u32> + '_ {
    body.chunks(BLOCK_BYTES).map(crc32c)
}

/// Checks the body of one frame while it arrives in pieces of any size.
///
/// Transitions: [`BlockChecks::update`] moves within a block, and at its end compares and goes on to the next one.
#[derive(Clone)]
pub struct BlockChecks {
    expected: [u32; FRAME_BLOCKS_MAX],
    body_bytes: usize,
    taken_bytes: usize,
    /// Over the bytes of the block under way; made when a block first arrives in pieces.
    crc: Option<Crc32c>,
}

impl BlockChecks {
    /// For a body of `body_bytes` whose checksums are `checks` (little-endian, as they stand in the frame). The
    /// number of checksums must be the right one, as it is behind [`super::parse_frame_head`].
    pub fn new(body_bytes: usize, checks: &[u8]) -> Self {
        let blocks = body_bytes.div_ceil(BLOCK_BYTES);
        assert!(blocks <= FRAME_BLOCKS_MAX && checks.len() == 4 * blocks, "one checksum for each block");
        let mut expected = [0; FRAME_BLOCKS_MAX];
        for (slot, check) in expected.iter_mut().zip(checks.as_chunks::<4>().0) {
            *slot = u32::from_le_bytes(*check);
        }
        Self { expected, body_bytes, taken_bytes: 0, crc: None }
    }

    /// Bytes of the body still to come.
    #[inline]
    pub fn remaining_bytes(&self) -> usize {
        self.body_bytes - self.taken_bytes
    }

    /// Takes in the next bytes of the body, at most [`BlockChecks::remaining_bytes`]. Bytes behind the last whole
    /// block are not checked until their block is complete. After an error the frame is lost.
    pub fn update(&mut self, mut bytes: &[u8]) -> Result<(), WireError> {
        assert!(bytes.len() <= self.remaining_bytes(), "only bytes of this frame");
        while !bytes.is_empty() {
            let index = self.taken_bytes / BLOCK_BYTES;
            let end = ((index + 1) * BLOCK_BYTES).min(self.body_bytes);
            let at_start = self.taken_bytes.is_multiple_of(BLOCK_BYTES);
            let (piece, rest) = bytes.split_at(bytes.len().min(end - self.taken_bytes));
            bytes = rest;
            self.taken_bytes += piece.len();
            let ends = self.taken_bytes == end;
            let crc = match (at_start, ends) {
                (true, true) => crc32c(piece),
                _ => self.partial(piece, at_start),
            };
            if ends && crc != self.expected[index] {
                return Err(WireError::BadBlock(index));
            }
        }
        Ok(())
    }

    fn partial(&mut self, piece: &[u8], at_start: bool) -> u32 {
        if at_start {
            self.crc = None;
        }
        let crc = self.crc.get_or_insert_default();
        crc.update(piece);
        crc.value()
    }
}
