//! Moving large bodies between the store and the sockets.

use herd_core::entry::Value;
use herd_core::limits::INLINE_MAX_BYTES;
use herd_core::op::Given;
use herd_store::Body;
use std::io::IoSliceMut;
use std::sync::Arc;

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

/// A body that has arrived as the value of an operation; a small one lies in `bytes`.
pub(crate) fn given(body: Body, bytes: &mut Vec<u8>) -> Given<'_, Arc<Body>> {
    if body.len() > INLINE_MAX_BYTES as u64 {
        return Given::Large(Arc::new(body));
    }
    Value::Body(&body).copy(0, body.len(), bytes);
    Given::Small(bytes, None)
}
