//! Values that lie outside the log: blocks of 64 KiB, reference-counted, never changed once finished.
//!
//! A [`BodyWriter`] receives bytes straight into its blocks and checksums each when it is full; finishing it gives a
//! [`Body`]. Readers share a body, so a get ends on the version it began with, whatever happens to the entry. A body
//! that replaces a range of another shares the blocks it does not change.

use crate::arena::{Arena, For, GRANULE_BYTES, PAGE_BYTES, Piece};
use herd_core::Chunks;
use herd_core::checksum::{self, crc32c};
use herd_core::limits::BLOCK_BYTES;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// What a body costs beyond its blocks: lists, counters, allocator.
const BODY_OVERHEAD_BYTES: u64 = 160;
/// Fewer bytes are copied sooner than they are lent.
const LEND_MIN_BYTES: u64 = 16 * 1024;
/// What a block costs beyond its memory.
const BLOCK_OVERHEAD_BYTES: u64 = 64;
/// What a reference to the shared block of zeros costs: its places in two lists.
const ZEROS_OVERHEAD_BYTES: u64 = 16;

/// What a body of `len` bytes with no shared block costs.
pub(crate) fn cost_bytes(len: u64) -> u64 {
    let memory = len.saturating_add(GRANULE_BYTES as u64 - 1) / GRANULE_BYTES as u64 * GRANULE_BYTES as u64;
    memory.saturating_add(BODY_OVERHEAD_BYTES + len.div_ceil(BLOCK_BYTES as u64) * BLOCK_OVERHEAD_BYTES)
}

/// What the lists of a body of `len` bytes cost at least, of which `changed` are not in blocks that it shares.
pub(crate) fn lists_bytes(len: u64, changed: u64) -> u64 {
    let blocks = |len: u64| len.div_ceil(BLOCK_BYTES as u64);
    BODY_OVERHEAD_BYTES
        + blocks(len) * ZEROS_OVERHEAD_BYTES
        + blocks(changed) * (BLOCK_OVERHEAD_BYTES - ZEROS_OVERHEAD_BYTES)
}

/// The memory of one block; given back when the last body that shares it goes.
struct Block {
    arena: Arc<Arena>,
    piece: Option<Piece>,
    /// The kernel may read it as long as it likes.
    lent: AtomicBool,
    /// It is the block of zeros, which many bodies share and none is counted for.
    is_zeros: bool,
}

impl Block {
    fn take(arena: &Arc<Arena>, bytes: usize, what: For) -> Option<Self> {
        let piece = arena.take_piece(bytes, what)?;
        Some(Self { arena: arena.clone(), piece: Some(piece), lent: AtomicBool::new(false), is_zeros: false })
    }

    fn memory_bytes(&self) -> u64 {
        if self.is_zeros { 0 } else { self.piece().bytes() as u64 }
    }

    fn overhead_bytes(&self) -> u64 {
        if self.is_zeros { ZEROS_OVERHEAD_BYTES } else { BLOCK_OVERHEAD_BYTES }
    }

    fn bytes(&self) -> &[u8] {
        self.arena.piece(self.piece())
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        self.arena.piece_mut(self.piece.as_mut().expect("held until drop"))
    }

    fn piece(&self) -> &Piece {
        self.piece.as_ref().expect("held until drop")
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        self.arena.give_piece(self.piece.take().expect("dropped once"), *self.lent.get_mut());
    }
}

/// A finished value in blocks.
pub struct Body {
    arena: Arc<Arena>,
    blocks: Vec<Arc<Block>>,
    checksums: Box<[u32]>,
    checksum: u32,
    len: u64,
    charged: u64,
    memory_bytes: u64,
}

impl Drop for Body {
    fn drop(&mut self) {
        #[cfg(test)]
        assert!(self.blocks.is_empty() || !crate::sync::Held::has(crate::sync::Rank::Shard), "freed under a lock");
        self.arena.discharge(self.charged);
        self.give_blocks(usize::MAX);
    }
}

impl Body {
    fn new(arena: Arc<Arena>, blocks: Vec<Arc<Block>>, checksums: Vec<u32>, len: u64) -> Self {
        assert_eq!(blocks.len(), checksums.len(), "a checksum for every block");
        let charged = BODY_OVERHEAD_BYTES + blocks.iter().map(|block| block.overhead_bytes()).sum::<u64>();
        let memory_bytes = charged + blocks.iter().map(|block| block.memory_bytes()).sum::<u64>();
        arena.charge(charged);
        let checksum = checksum::of_blocks(&checksums);
        Self { arena, blocks, checksums: checksums.into(), checksum, len, charged, memory_bytes }
    }

    /// Gives up to `max` blocks back before the body goes, the last one first, so that the next value takes them in
    /// order; gives how many.
    pub(crate) fn give_blocks(&mut self, max: usize) -> usize {
        let count = max.min(self.blocks.len());
        (0..count).for_each(|_| drop(self.blocks.pop()));
        count
    }

    /// Whether there are blocks left to give back.
    pub(crate) fn has_blocks(&self) -> bool {
        !self.blocks.is_empty()
    }

    /// Bytes of the value.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// CRC-32C of each block of 64 KiB, the last one over what it holds.
    pub fn checksums(&self) -> &[u32] {
        &self.checksums
    }

    /// Checksum of the whole value, as the wire has it.
    pub fn checksum(&self) -> u32 {
        self.checksum
    }

    /// The bytes from `at` (below `len`) to the end of their block.
    #[inline]
    pub fn chunk(&self, at: u64) -> &[u8] {
        let block = (at / BLOCK_BYTES as u64) as usize;
        let held = (self.len - block as u64 * BLOCK_BYTES as u64).min(BLOCK_BYTES as u64) as usize;
        &self.blocks[block].bytes()[(at % BLOCK_BYTES as u64) as usize..held]
    }

    /// Bytes of memory it takes, as counted for its collection: blocks that it shares with another body in full, the
    /// shared block of zeros not at all.
    pub fn memory_bytes(&self) -> u64 {
        self.memory_bytes
    }
}

impl Chunks for Body {
    fn size_bytes(&self) -> u64 {
        self.len
    }

    #[inline]
    fn chunk(&self, at: u64) -> &[u8] {
        Body::chunk(self, at)
    }

    /// Blocks that are whole pages and lie one behind the other are lent together.
    fn lend(&self, at: u64, max: usize) -> Option<&[u8]> {
        let rest = self.len.min(at.saturating_add(max as u64)) - at;
        if rest < LEND_MIN_BYTES || cfg!(not(target_os = "linux")) {
            return None;
        }
        let (first, skip) = ((at / BLOCK_BYTES as u64) as usize, (at % BLOCK_BYTES as u64) as usize);
        let blocks = (skip + rest as usize).div_ceil(BLOCK_BYTES);
        let blocks = &self.blocks[first..first + blocks];
        let run = self.arena.run(blocks.iter().map(|block| block.piece()));
        blocks[..run.len() / BLOCK_BYTES].iter().for_each(|block| block.lent.store(true, Relaxed));
        (!run.is_empty()).then(|| &run[skip..run.len().min(skip + rest as usize)])
    }
}

/// A block of zeros that all bodies share, so that a gap takes no memory.
#[derive(Clone)]
pub(crate) struct Zeros {
    block: Arc<Block>,
    checksum: u32,
}

impl Zeros {
    /// Takes the memory of a block for it.
    pub(crate) fn new(arena: &Arc<Arena>) -> Result<Self, NoRoom> {
        let mut block = Block::take(arena, BLOCK_BYTES, For::Kept).ok_or(NoRoom)?;
        block.bytes_mut().fill(0);
        block.is_zeros = true;
        Ok(Self { checksum: crc32c(block.bytes()), block: Arc::new(block) })
    }
}

/// A value on its way in. Dropping it gives its memory back.
pub struct BodyWriter {
    arena: Arc<Arena>,
    /// Full blocks, some perhaps shared with an older body.
    done: Vec<Arc<Block>>,
    checksums: Vec<u32>,
    /// Blocks that are being filled; the first holds `filled` bytes.
    open: std::collections::VecDeque<Block>,
    filled: usize,
    len: u64,
    expected: Option<u64>,
    what: For,
}

/// There was no memory for the next block.
#[derive(Debug, PartialEq, Eq)]
pub struct NoRoom;

impl BodyWriter {
    /// A writer for a value of `expected` bytes, or of any size.
    pub(crate) fn new(arena: Arc<Arena>, expected: Option<u64>) -> Self {
        let blocks = expected.map_or(0, |n| n.div_ceil(BLOCK_BYTES as u64) as usize);
        Self {
            arena,
            done: Vec::with_capacity(blocks),
            checksums: Vec::with_capacity(blocks),
            open: std::collections::VecDeque::new(),
            filled: 0,
            len: 0,
            expected,
            what: For::Kept,
        }
    }

    /// As [`BodyWriter::new`], for a value that only passes.
    pub(crate) fn passing(arena: Arc<Arena>, expected: Option<u64>) -> Self {
        Self { what: For::Passing, ..Self::new(arena, expected) }
    }

    /// Bytes written so far.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether nothing was written yet.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Checksums of the blocks that are full.
    pub fn checksums(&self) -> &[u32] {
        &self.checksums
    }

    /// What the lists of the body cost, if it is finished now.
    pub(crate) fn lists_bytes(&self) -> u64 {
        let open = self.open.len() as u64 * BLOCK_OVERHEAD_BYTES;
        BODY_OVERHEAD_BYTES + open + self.done.iter().map(|block| block.overhead_bytes()).sum::<u64>()
    }

    /// Makes room for up to `max` more bytes; gives how many it found room for, 0 only where none are expected.
    pub fn reserve(&mut self, max: usize) -> Result<usize, NoRoom> {
        let left = self.expected.map_or(max as u64, |n| n - self.len).min(max as u64) as usize;
        while self.room() < left {
            let Some(block) = Block::take(&self.arena, self.next_block_bytes(), self.what) else {
                break;
            };
            self.arena.fetch_piece(block.piece());
            self.open.push_back(block);
        }
        match self.room().min(left) {
            0 if left > 0 => Err(NoRoom),
            room => Ok(room),
        }
    }

    /// The places the next bytes go to; what `reserve` made room for.
    pub fn space(&mut self) -> impl Iterator<Item = &mut [u8]> {
        let mut skip = self.filled;
        self.open.iter_mut().map(move |block| &mut block.bytes_mut()[std::mem::take(&mut skip)..])
    }

    /// Notes that `n` bytes were written into `space`.
    pub fn advance(&mut self, n: usize) {
        assert!(n <= self.room(), "more bytes than there was room for");
        self.len += n as u64;
        let mut filled = self.filled + n;
        while filled >= BLOCK_BYTES {
            self.close(BLOCK_BYTES);
            filled -= BLOCK_BYTES;
        }
        self.filled = filled;
    }

    /// Copies `bytes` in.
    pub fn write(&mut self, mut bytes: &[u8]) -> Result<(), NoRoom> {
        while !bytes.is_empty() {
            let room = self.reserve(bytes.len().min(BLOCK_BYTES))?;
            assert!(room > 0, "not more bytes than expected");
            let place = self.space().next().expect("room was found");
            let n = room.min(place.len());
            place[..n].copy_from_slice(&bytes[..n]);
            self.advance(n);
            bytes = &bytes[n..];
        }
        Ok(())
    }

    /// Copies a range of `body` in, sharing whole blocks where both stand at a block boundary.
    pub fn copy(&mut self, body: &Body, from: u64, to: u64) -> Result<(), NoRoom> {
        let mut at = from;
        while at < to {
            let block = (at / BLOCK_BYTES as u64) as usize;
            let aligned = self.filled == 0 && at == self.len && at.is_multiple_of(BLOCK_BYTES as u64);
            if aligned && to - at >= BLOCK_BYTES as u64 {
                assert!(self.open.is_empty(), "nothing is open at a block boundary");
                self.done.push(body.blocks[block].clone());
                self.checksums.push(body.checksums[block]);
                self.len += BLOCK_BYTES as u64;
                at += BLOCK_BYTES as u64;
                continue;
            }
            let chunk = body.chunk(at);
            let n = chunk.len().min((to - at) as usize);
            self.write(&chunk[..n])?;
            at += n as u64;
        }
        Ok(())
    }

    /// Appends `n` zeros: whole blocks are the shared one, only what begins or ends within a block is written.
    pub(crate) fn zeros(&mut self, n: u64, zeros: &Zeros) -> Result<(), NoRoom> {
        let end = self.len + n;
        while self.len < end {
            let left = end - self.len;
            if self.filled > 0 || left < BLOCK_BYTES as u64 {
                let part = left.min((BLOCK_BYTES - self.filled) as u64) as usize;
                self.write(&zeros.block.bytes()[..part])?;
                continue;
            }
            assert!(self.open.is_empty(), "nothing is open at a block boundary");
            let blocks = (left / BLOCK_BYTES as u64) as usize;
            self.done.extend(std::iter::repeat_n(&zeros.block, blocks).cloned());
            self.checksums.extend(std::iter::repeat_n(zeros.checksum, blocks));
            self.len += (blocks * BLOCK_BYTES) as u64;
        }
        Ok(())
    }

    /// The finished body. A last block of unforeseen size moves into memory of its own size.
    pub fn finish(mut self) -> Result<Body, NoRoom> {
        let filled = self.filled;
        if filled > 0 {
            let tight = self.expected.is_some();
            let last = self.open.front().expect("a block is being filled");
            if !tight && filled + PAGE_BYTES / 8 < PAGE_BYTES {
                let mut small = Block::take(&self.arena, filled, self.what).ok_or(NoRoom)?;
                small.bytes_mut()[..filled].copy_from_slice(&last.bytes()[..filled]);
                self.open[0] = small;
            }
            self.close(filled);
        }
        self.open.clear();
        let (done, checksums) = (std::mem::take(&mut self.done), std::mem::take(&mut self.checksums));
        Ok(Body::new(self.arena.clone(), done, checksums, self.len))
    }

    fn close(&mut self, bytes: usize) {
        let block = self.open.pop_front().expect("a block is being filled");
        self.checksums.push(crc32c(&block.bytes()[..bytes]));
        self.done.push(Arc::new(block));
    }

    fn room(&self) -> usize {
        self.open.iter().map(|block| block.bytes().len()).sum::<usize>().saturating_sub(self.filled)
    }

    /// A full block, or the rest of a value whose size is known.
    fn next_block_bytes(&self) -> usize {
        let held = (self.done.len() + self.open.len()) as u64 * BLOCK_BYTES as u64;
        self.expected.map_or(BLOCK_BYTES as u64, |n| (n - held).min(BLOCK_BYTES as u64)) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arena(pages: u64) -> Arc<Arena> {
        Arc::new(Arena::new(pages * PAGE_BYTES as u64, 1, 0).expect("maps").0)
    }

    fn bytes(n: usize) -> Vec<u8> {
        (0..n).map(|i| (i * 31 % 251) as u8).collect()
    }

    fn all(body: &Body) -> Vec<u8> {
        let mut out = Vec::new();
        while (out.len() as u64) < body.len() {
            out.extend_from_slice(body.chunk(out.len() as u64));
        }
        out
    }

    fn written(arena: &Arc<Arena>, data: &[u8], expected: bool) -> Body {
        let mut writer = BodyWriter::new(arena.clone(), expected.then_some(data.len() as u64));
        writer.write(data).expect("room");
        writer.finish().expect("room")
    }

    #[test]
    fn what_is_written_reads_back_and_is_checksummed_by_block() {
        let arena = arena(64);
        for n in [1, 5000, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 5 * BLOCK_BYTES + 77] {
            for expected in [true, false] {
                let data = bytes(n);
                let body = written(&arena, &data, expected);
                assert_eq!(all(&body), data);
                let sums: Vec<u32> = data.chunks(BLOCK_BYTES).map(crc32c).collect();
                assert_eq!(body.checksums(), sums);
            }
        }
        assert_eq!(arena.used_bytes(), 0);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn what_is_lent_is_the_value_and_ends_with_its_whole_blocks() {
        let arena = arena(64);
        let data = bytes(3 * BLOCK_BYTES + 20_000);
        let body = written(&arena, &data, true);
        assert_eq!(body.lend(0, usize::MAX), Some(&data[..3 * BLOCK_BYTES]));
        assert_eq!(body.lend(5, 100_000), Some(&data[5..100_005]));
        assert_eq!(body.lend(BLOCK_BYTES as u64 + 7, 1 << 20), Some(&data[BLOCK_BYTES + 7..3 * BLOCK_BYTES]));
        assert_eq!(body.lend(3 * BLOCK_BYTES as u64, 1 << 20), None, "the last block is no whole page");
        assert_eq!(body.lend(0, 100), None, "too few bytes");
    }

    #[test]
    fn a_value_that_does_not_fit_gives_its_memory_back() {
        let arena = arena(4);
        let mut writer = BodyWriter::new(arena.clone(), None);
        assert_eq!(writer.write(&bytes(5 * BLOCK_BYTES)), Err(NoRoom));
        drop(writer);
        assert_eq!(arena.used_bytes(), 0);
    }

    #[test]
    fn a_changed_range_shares_the_other_blocks() {
        let arena = arena(64);
        let data = bytes(10 * BLOCK_BYTES);
        let old = written(&arena, &data, true);
        let before = arena.used_bytes();
        let mut writer = BodyWriter::new(arena.clone(), Some(old.len()));
        let (from, to) = (3 * BLOCK_BYTES as u64 + 5, 3 * BLOCK_BYTES as u64 + 9);
        writer.copy(&old, 0, from).expect("room");
        writer.write(b"abcd").expect("room");
        writer.copy(&old, to, old.len()).expect("room");
        let new = writer.finish().expect("room");
        let mut wanted = data.clone();
        wanted[from as usize..to as usize].copy_from_slice(b"abcd");
        assert_eq!(all(&new), wanted);
        assert_eq!(all(&old), data, "readers of the old version see no change");
        assert!(arena.used_bytes() - before < 2 * PAGE_BYTES as u64, "one block is new");
    }
}
