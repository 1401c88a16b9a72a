//! The input buffer of a connection: one allocation, reused; what is unread is moved only when room runs short.

use crate::limits::{INPUT_BYTES, INPUT_ROOM_BYTES};
use std::ops::Range;

pub(super) struct Input {
    buffer: Box<[u8]>,
    /// First unread byte.
    start: usize,
    /// Behind the last byte that has arrived.
    end: usize,
}

impl Input {
    pub(super) fn new() -> Self {
        Self { buffer: vec![0; INPUT_BYTES].into_boxed_slice(), start: 0, end: 0 }
    }

    pub(super) fn unread(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    pub(super) fn at(&self, range: Range<usize>) -> &[u8] {
        &self.buffer[range]
    }

    /// Room for bytes to arrive in; never empty, as less than a block and a head stay unread.
    pub(super) fn space(&mut self) -> &mut [u8] {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.buffer.len() - self.end < INPUT_ROOM_BYTES {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        &mut self.buffer[self.end..]
    }

    pub(super) fn filled(&mut self, bytes: usize) {
        assert!(bytes <= self.buffer.len() - self.end, "only what there was room for");
        self.end += bytes;
    }

    /// Marks the next bytes read; says where they lie until [`Input::space`] is called.
    pub(super) fn consume(&mut self, bytes: usize) -> Range<usize> {
        assert!(bytes <= self.end - self.start, "only what is there");
        self.start += bytes;
        self.start - bytes..self.start
    }
}
