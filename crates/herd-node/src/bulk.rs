//! Moving large bodies between the store and the sockets.

use std::io::IoSliceMut;

/// The first `room` bytes of `places`, as slices to read into.
pub(crate) fn cut<'a>(places: impl Iterator<Item = &'a mut [u8]>, room: usize) -> Vec<IoSliceMut<'a>> {
    let mut left = room;
    let mut slices = Vec::with_capacity(room.div_ceil(herd_core::limits::BLOCK_BYTES) + 2);
    for place in places {
        let n = place.len().min(left);
        left -= n;
        if n > 0 {
            slices.push(IoSliceMut::new(&mut place[..n]));
        }
        if left == 0 {
            break;
        }
    }
    slices
}
