//! The input buffer of a connection: small until more arrives than it takes, then one that is reused; what is unread is
//! moved only when room runs short.

use crate::limits::{INPUT_BYTES, INPUT_FIRST_BYTES, INPUT_ROOM_BYTES};
use std::ops::Range;

pub(super) struct Input {
    buffer: Vec<u8>,
    /// First unread byte.
    start: usize,
    /// Behind the last byte that has arrived.
    end: usize,
}

impl Input {
    pub(super) fn new() -> Self {
        Self { buffer: vec![0; INPUT_FIRST_BYTES], start: 0, end: 0 }
    }

    pub(super) fn unread(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    pub(super) fn at(&self, range: Range<usize>) -> &[u8] {
        &self.buffer[range]
    }

    /// Room for bytes to arrive in: at least `INPUT_ROOM_BYTES`, as less than a block and a head stay unread.
    pub(super) fn space(&mut self) -> &mut [u8] {
        let was_filled = self.end == self.buffer.len();
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.buffer.len() - self.end < INPUT_ROOM_BYTES {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let is_short = self.buffer.len() - self.end < INPUT_ROOM_BYTES;
        if self.buffer.len() < INPUT_BYTES && (was_filled || is_short) {
            self.buffer.resize(INPUT_BYTES, 0);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_grows_once_when_a_read_has_filled_it_and_keeps_what_is_unread() {
        let mut input = Input::new();
        let arrive = |input: &mut Input, byte: u8| {
            let room = input.space();
            room.fill(byte);
            let n = room.len();
            input.filled(n);
            n
        };
        assert_eq!(arrive(&mut input, 1), INPUT_FIRST_BYTES);
        input.consume(10);
        assert_eq!(arrive(&mut input, 2), INPUT_BYTES - (INPUT_FIRST_BYTES - 10));
        let unread = [vec![1; INPUT_FIRST_BYTES - 10], vec![2; INPUT_BYTES - (INPUT_FIRST_BYTES - 10)]].concat();
        assert!(input.unread() == unread);
        input.consume(unread.len() - 3);
        assert_eq!(arrive(&mut input, 3), INPUT_BYTES - 3, "it grows no more");
        assert_eq!(input.unread()[..4], [2, 2, 2, 3]);
    }

    #[test]
    fn there_is_room_for_the_head_of_any_frame() {
        for unread in 1..INPUT_FIRST_BYTES {
            let mut input = Input::new();
            input.space();
            input.filled(unread);
            assert!(input.space().len() >= INPUT_ROOM_BYTES, "behind {unread} bytes");
        }
    }

    #[test]
    fn small_answers_leave_it_small() {
        let mut input = Input::new();
        input.space()[..10].fill(1);
        input.filled(10);
        for _ in 0..1_000 {
            assert!(input.space().len() >= INPUT_ROOM_BYTES);
            input.filled(100);
            input.consume(100);
            assert_eq!(input.unread().len(), 10);
        }
        assert_eq!(input.buffer.len(), INPUT_FIRST_BYTES);
    }
}
