//! A value that is sent ahead of the message of a replica group that names it (PROTOCOL.md §1.11): too long for one
//! frame, it goes in parts, and the receiver tells how much of it has come. Pure.
//!
//! Callers: the node, where a part of a group meets its links.

use super::bytes::Reader;
use super::fields::{Between, Fields, GROUP};
use super::group::VERB_GROUP;
use super::header::{FLAG_QUIET, Header, Kind};
use super::{WireError, encode_frame_head};
use crate::key::CollectionId;
use crate::place::GroupId;

const PART: u16 = 10;
const TAKEN: u16 = 11;

/// A part of a value, or how much of one has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ahead<'a> {
    /// The group.
    pub group: GroupId,
    /// The number by which the message names the value; rises with each of the sender's.
    pub id: u64,
    /// What is said.
    pub said: Said<'a>,
}

/// See [`Ahead`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Said<'a> {
    /// The bytes from there on, which is at the start of a block.
    Part {
        /// The object's collection and name.
        of: (CollectionId, &'a [u8]),
        /// Bytes of the whole value.
        length: u64,
        /// Where they begin.
        from: u64,
        /// The bytes.
        bytes: &'a [u8],
    },
    /// So many bytes have come.
    Taken(u64),
}

/// Whether a message of this code is one of these.
pub fn is_ahead(header: &Header) -> bool {
    header.verb == VERB_GROUP && matches!(header.code, PART | TAKEN)
}

impl<'a> Ahead<'a> {
    /// Appends its frame; `checks` are the checksums of the blocks of its bytes. Error: they are too many for a frame.
    pub fn encode(
        &self,
        out: &mut Vec<u8>,
        map_epoch: u32,
        checks: impl IntoIterator<Item = u32>,
    ) -> Result<(), WireError> {
        let mut tag = [0; 20];
        tag[..2].copy_from_slice(&self.group.spread.to_le_bytes());
        tag[2..4].copy_from_slice(&self.group.number.to_le_bytes());
        tag[4..12].copy_from_slice(&self.id.to_le_bytes());
        let header = Header { verb: VERB_GROUP, flags: FLAG_QUIET, epoch: map_epoch, ..Header::new(Kind::Request) };
        let (code, count, bytes, collection, name, from) = match self.said {
            Said::Part { of: (collection, name), length, from, bytes } => {
                (PART, length, bytes, collection.0, Some(name), from)
            }
            Said::Taken(bytes) => (TAKEN, bytes, &[][..], 0, None, 0),
        };
        tag[12..].copy_from_slice(&count.to_le_bytes());
        let header = Header { code, collection, offset: from, length: bytes.len() as u64, ..header };
        let fields = Fields { name, between: Some(Between::Group(&tag)), ..Fields::default() };
        encode_frame_head(out, header, &fields, bytes.len(), checks)?;
        out.extend_from_slice(bytes);
        Ok(())
    }

    /// Of a frame for which [`is_ahead`], whose body has passed its checks.
    pub fn decode(header: &Header, fields: &Fields<'a>, body: &'a [u8]) -> Result<Self, WireError> {
        let Some(Between::Group(tag)) = fields.between else { return Err(WireError::BadField(GROUP)) };
        let read = |rest: &mut Reader<'_>| {
            let group = GroupId { spread: rest.u16()?, number: rest.u16()? };
            Some((group, rest.u64()?, rest.u64()?))
        };
        let (group, id, count) = read(&mut Reader(tag)).ok_or(WireError::BadField(GROUP))?;
        let said = match (header.code, fields.name) {
            (TAKEN, None) if body.is_empty() => Said::Taken(count),
            (PART, Some(name)) if header.offset.checked_add(body.len() as u64).is_some_and(|end| end <= count) => {
                Said::Part {
                    of: (CollectionId(header.collection), name),
                    length: count,
                    from: header.offset,
                    bytes: body,
                }
            }
            _ => return Err(WireError::BadField(GROUP)),
        };
        Ok(Self { group, id, said })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{block_checks, parse_frame};

    #[test]
    fn a_part_and_what_was_taken_read_back_as_they_were_sent() {
        let (group, bytes) = (GroupId { spread: 3, number: 700 }, vec![7; 100_000]);
        let part = Said::Part { of: (CollectionId(9), b"name"), length: 200_000, from: 65_536, bytes: &bytes };
        for said in [part, Said::Taken(165_536)] {
            let (ahead, mut frame) = (Ahead { group, id: 5, said }, Vec::new());
            let checks: Vec<u32> = if said == part { block_checks(&bytes).collect() } else { Vec::new() };
            ahead.encode(&mut frame, 4, checks).expect("it fits a frame");
            let read = parse_frame(&frame).expect("valid").expect("whole");
            assert!(is_ahead(read.header()) && read.header().epoch == 4);
            let fields = read.fields().expect("valid");
            assert_eq!(Ahead::decode(read.header(), &fields, read.body().expect("checked")), Ok(ahead));
        }
    }

    #[test]
    fn a_part_beyond_its_value_is_refused() {
        let said = Said::Part { of: (CollectionId(9), b"n"), length: 9, from: 0, bytes: &[1; 10] };
        let (ahead, mut frame) = (Ahead { group: GroupId { spread: 0, number: 0 }, id: 1, said }, Vec::new());
        ahead.encode(&mut frame, 1, block_checks(&[1; 10])).expect("it fits a frame");
        let read = parse_frame(&frame).expect("valid").expect("whole");
        let fields = read.fields().expect("valid");
        assert!(Ahead::decode(read.header(), &fields, read.body().expect("checked")).is_err());
    }
}
