//! CRC-32C (Castagnoli, RFC 3720 B.4), the checksum of headers and blocks.

use crc_fast::{CrcAlgorithm, Digest};

/// The CRC-32C of `bytes`.
#[inline]
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

/// Checksums of blocks that are summed up at once.
const PIECE: usize = 256;

/// The checksum of a value made of blocks with these checksums: that of its one block, else that of their list
/// (each 4 bytes, little-endian).
pub fn of_blocks(checksums: &[u32]) -> u32 {
    match checksums {
        [] => 0,
        [one] => *one,
        many => {
            let mut sum = Crc32c::default();
            for some in many.chunks(PIECE) {
                let mut list = [0; 4 * PIECE];
                list.chunks_exact_mut(4).zip(some).for_each(|(bytes, crc)| bytes.copy_from_slice(&crc.to_le_bytes()));
                sum.update(&list[..4 * some.len()]);
            }
            sum.value()
        }
    }
}

/// A CRC-32C over bytes that arrive in pieces.
#[derive(Clone)]
pub struct Crc32c(Digest);

impl Default for Crc32c {
    fn default() -> Self {
        Self(Digest::new(CrcAlgorithm::Crc32Iscsi))
    }
}

impl Crc32c {
    /// Takes in more bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The checksum of all bytes so far.
    pub fn value(&self) -> u32 {
        self.0.finalize() as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_check_value_of_the_standard() {
        assert_eq!(crc32c(b"123456789"), 0xE306_9283);
    }

    #[test]
    fn pieces_give_the_checksum_of_the_whole() {
        let mut crc = Crc32c::default();
        crc.update(b"1234");
        crc.update(b"56789");
        assert_eq!(crc.value(), 0xE306_9283);
    }
}
