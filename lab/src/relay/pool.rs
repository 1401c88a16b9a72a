//! Buffers for frames, of two sizes, kept for reuse: in steady state no frame allocates.
//!
//! The buffer freed last is taken first, since it is the one still in the processor's cache. What is in use is
//! bounded; freed buffers stay, so the relay's memory is that of its fullest moment.

use crate::relay::frame::FRAME_BYTES_MAX;

/// Most ordinary packets and all acknowledgements fit into a small buffer.
const SMALL_BYTES: usize = 2 * 1_024;
/// Any frame fits into a large one.
const LARGE_BYTES: usize = 66 * 1_024;
const _: () = assert!(LARGE_BYTES >= FRAME_BYTES_MAX);
/// Memory of all frames in flight: half a second at 16 Gbit/s.
pub(crate) const IN_USE_BYTES_MAX: usize = 1 << 30;

/// The bytes of one frame in a buffer of the pool. Goes back by [`Pool::free`].
#[derive(Debug)]
pub(crate) struct Held {
    buffer: Box<[u8]>,
    bytes: usize,
}

impl Held {
    /// The frame.
    pub(crate) fn frame(&self) -> &[u8] {
        &self.buffer[..self.bytes]
    }

    /// The frame, to be written.
    pub(crate) fn frame_mut(&mut self) -> &mut [u8] {
        &mut self.buffer[..self.bytes]
    }
}

/// Where the next frame is read into; any frame fits.
pub(crate) struct Landing(Box<[u8]>);

impl Landing {
    /// A buffer of its own, beside those of the pool.
    pub(crate) fn new() -> Self {
        Self(buffer(LARGE_BYTES))
    }

    /// All of it, to be read into.
    pub(crate) fn room(&mut self) -> &mut [u8] {
        &mut self.0
    }

    /// The first `bytes` of what was read.
    pub(crate) fn read(&self, bytes: usize) -> &[u8] {
        &self.0[..bytes]
    }
}

/// Free buffers.
pub(crate) struct Pool {
    small: Vec<Box<[u8]>>,
    large: Vec<Box<[u8]>>,
    in_use_bytes: usize,
    in_use_bytes_max: usize,
}

fn buffer(bytes: usize) -> Box<[u8]> {
    vec![0; bytes].into_boxed_slice()
}

impl Pool {
    /// A pool without free buffers that has at most `in_use_bytes_max` in use.
    pub(crate) fn new(in_use_bytes_max: usize) -> Self {
        Self { small: Vec::new(), large: Vec::new(), in_use_bytes: 0, in_use_bytes_max }
    }

    /// Keeps the first `bytes` of what was read into `landing`: a long frame stays where it is, and a free buffer takes
    /// its place.
    pub(crate) fn keep(&mut self, landing: &mut Landing, bytes: usize) -> Option<Held> {
        let mut held = self.take(bytes)?;
        if held.buffer.len() == LARGE_BYTES {
            std::mem::swap(&mut held.buffer, &mut landing.0);
        } else {
            held.frame_mut().copy_from_slice(&landing.0[..bytes]);
        }
        Some(held)
    }

    /// A buffer for a frame of `bytes`; none when too much is in use.
    pub(crate) fn take(&mut self, bytes: usize) -> Option<Held> {
        assert!(bytes <= LARGE_BYTES, "no frame is longer than a large buffer");
        let (list, size) =
            if bytes <= SMALL_BYTES { (&mut self.small, SMALL_BYTES) } else { (&mut self.large, LARGE_BYTES) };
        if self.in_use_bytes + size > self.in_use_bytes_max {
            return None;
        }
        self.in_use_bytes += size;
        Some(Held { buffer: list.pop().unwrap_or_else(|| buffer(size)), bytes })
    }

    /// Takes a buffer back.
    pub(crate) fn free(&mut self, held: Held) {
        self.in_use_bytes -= held.buffer.len();
        let list = if held.buffer.len() == SMALL_BYTES { &mut self.small } else { &mut self.large };
        list.push(held.buffer);
    }

    /// Bytes of all buffers in use.
    pub(crate) fn in_use_bytes(&self) -> usize {
        self.in_use_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kept_frame_has_the_bytes_that_were_read_and_buffers_are_used_again() {
        let (mut pool, mut landing) = (Pool::new(IN_USE_BYTES_MAX), Landing::new());
        for bytes in [1, SMALL_BYTES, SMALL_BYTES + 1, LARGE_BYTES] {
            landing.room()[..bytes].fill(7);
            let held = pool.keep(&mut landing, bytes).expect("memory");
            landing.room().fill(0);
            assert_eq!(held.frame(), vec![7; bytes]);
            let address = held.frame().as_ptr();
            pool.free(held);
            let again = pool.take(bytes).expect("memory");
            assert_eq!(again.frame().as_ptr(), address, "the last freed is the first taken");
            pool.free(again);
        }
        assert_eq!((pool.small.len(), pool.large.len()), (1, 1), "one of each was ever needed");
    }

    #[test]
    fn what_is_in_use_is_bounded() {
        let mut pool = Pool::new(LARGE_BYTES + SMALL_BYTES);
        let large = pool.take(LARGE_BYTES).expect("room for it");
        assert!(pool.take(LARGE_BYTES).is_none());
        let small = pool.take(9).expect("room for a small one");
        assert!(pool.take(9).is_none());
        pool.free(large);
        pool.free(small);
        assert_eq!(pool.in_use_bytes(), 0);
        assert!(pool.take(LARGE_BYTES).is_some());
    }
}
