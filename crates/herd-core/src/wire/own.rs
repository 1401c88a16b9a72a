//! The id that a client gives a request of its own (PROTOCOL.md §1.17): the same however often, and at whichever node,
//! the client asks it. Pure.
//!
//! The client's count is made of stamps: the time by the clock of a node of the herd, which its welcome tells, above a
//! count. So the stamps of all clients rise together, and a group that has forgotten requests knows by one number what
//! it may have forgotten ([`crate::replica::window`]). A clock that is wrong costs a client the answer to a request
//! that it asks again, and never has one done twice.
//!
//! Callers: Herd's client, the wire's door of a node, and who hands requests on.

use super::WireError;
use super::bytes::Reader;
use super::fields::{Between, Fields, OWN};
use crate::limits::OWN_AHEAD_MAX_MS;
use crate::replica::window::{OWN_STAMP, RequestId};

/// Bits of a stamp below its milliseconds.
const COUNT_BITS: u32 = 20;

const MAY_BE_DONE: u8 = 1;

/// Bytes of an id.
pub const OWN_BYTES: usize = 21;

/// A request's own id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Own {
    /// The client, drawn by chance, and the stamp.
    pub id: RequestId,
    /// The latest epoch that the client had heard of when it asked first.
    pub epoch: u32,
    /// The client has asked it before, and does not know what became of it.
    pub may_be_done: bool,
}

impl Own {
    /// Its bytes, of [`Between::Own`].
    pub fn bytes(&self) -> [u8; OWN_BYTES] {
        let mut out = [0; OWN_BYTES];
        out[..8].copy_from_slice(&self.id.client.to_le_bytes());
        out[8..16].copy_from_slice(&self.id.sequence.to_le_bytes());
        out[16..20].copy_from_slice(&self.epoch.to_le_bytes());
        out[20] = if self.may_be_done { MAY_BE_DONE } else { 0 };
        out
    }

    /// That of a request's fields; `None`: it has none. Error: `BadField`.
    pub fn told(fields: &Fields<'_>) -> Result<Option<Self>, WireError> {
        let Some(Between::Own(bytes)) = fields.between else { return Ok(None) };
        let read = |rest: &mut Reader<'_>| {
            let id = RequestId { client: rest.u64()?, sequence: rest.u64()? };
            let (epoch, bits) = (rest.u32()?, rest.u8()?);
            id.is_own().then_some(Self { id, epoch, may_be_done: bits & MAY_BE_DONE != 0 })
        };
        read(&mut Reader(bytes)).map(Some).ok_or(WireError::BadField(OWN))
    }

    /// Whether its stamp is so far ahead of a node's clock that it would make those of all others look old.
    pub fn is_ahead(&self, now_ms: u64) -> bool {
        (self.id.sequence & !OWN_STAMP) >> COUNT_BITS > now_ms.saturating_add(OWN_AHEAD_MAX_MS)
    }
}

/// The least stamp at a time, ms since 1970.
pub fn stamp_at(now_ms: u64) -> u64 {
    OWN_STAMP | now_ms.min((1 << 42) - 1) << COUNT_BITS
}

/// The time that a welcome tells, ms since 1970, as the bytes of [`Between::Own`].
pub fn clock_bytes(now_ms: u64) -> [u8; 8] {
    now_ms.to_le_bytes()
}

/// That time, of a welcome's fields; `None`: the node takes no ids of clients.
pub fn clock_told(fields: &Fields<'_>) -> Option<u64> {
    let Some(Between::Own(bytes)) = fields.between else { return None };
    Reader(bytes).u64()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(bytes: &[u8]) -> Fields<'_> {
        Fields { between: Some(Between::Own(bytes)), ..Fields::default() }
    }

    #[test]
    fn an_id_goes_over_the_wire_and_comes_back() {
        for may_be_done in [false, true] {
            let id = RequestId { client: 0x1122, sequence: stamp_at(1_700_000_000_000) + 5 };
            let own = Own { id, epoch: 77, may_be_done };
            assert_eq!(Own::told(&fields(&own.bytes())), Ok(Some(own)));
            let longer = [&own.bytes()[..], b"later"].concat();
            assert_eq!(Own::told(&fields(&longer)), Ok(Some(own)), "later versions may add to its end");
        }
        assert_eq!(Own::told(&Fields::default()), Ok(None));
        assert_eq!(clock_told(&fields(&clock_bytes(12_345))), Some(12_345));
        assert_eq!(clock_told(&Fields::default()), None);
    }

    #[test]
    fn what_is_cut_short_or_has_no_stamp_is_refused() {
        let id = RequestId { client: 1, sequence: stamp_at(5) };
        let own = Own { id, epoch: 7, may_be_done: false };
        let bytes = own.bytes();
        for end in 0..bytes.len() {
            assert_eq!(Own::told(&fields(&bytes[..end])), Err(WireError::BadField(OWN)));
        }
        let of_a_node = Own { id: RequestId { sequence: 5, ..id }, ..own };
        assert_eq!(Own::told(&fields(&of_a_node.bytes())), Err(WireError::BadField(OWN)));
    }

    #[test]
    fn stamps_rise_with_the_time_and_those_far_ahead_are_told_apart() {
        assert!(stamp_at(5) > stamp_at(4) + (1 << COUNT_BITS) - 1);
        assert!(stamp_at(u64::MAX) >= OWN_STAMP);
        let of = |sequence| Own { id: RequestId { client: 1, sequence }, epoch: 1, may_be_done: false };
        assert!(!of(stamp_at(1_000 + OWN_AHEAD_MAX_MS)).is_ahead(1_000));
        assert!(of(stamp_at(1_001 + OWN_AHEAD_MAX_MS)).is_ahead(1_000));
        assert!(of(u64::MAX).is_ahead(1_000) && !of(OWN_STAMP).is_ahead(0));
    }
}
