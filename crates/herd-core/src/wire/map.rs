//! How nodes tell each other which map they have, and send it (PROTOCOL.md §1.10). Pure.
//!
//! Each beat, and the answer to it, has a [`MapMark`]; so whoever has a later map sees to whom to send it. A map that
//! is sent is a request with its bytes as the body; the answer is again a mark, of what the receiver has then.
//!
//! Callers: link sessions of nodes.

use super::WireError;
use super::body::{Assembly, encode_with_body};
use super::bytes::Reader;
use super::encode_frame;
use super::fields::{Between, Fields, MAP};
use super::header::{Header, Kind, STATUS_MOVED, Status};
use crate::lease::Grant;
use crate::limits::MAP_MAX_BYTES;
use crate::place::{Map, MapError};

/// Verb of a map, the request by which a node sends it.
pub const VERB_MAP: u8 = 17;

/// Bytes of a mark in a field.
pub(super) const MARK_BYTES: usize = 17;

/// Bytes of a grant behind the mark in the answer to a beat.
const GRANT_BYTES: usize = 16;

/// Bits of a mark: the herd holds objects; the bytes are the difference from another map.
const HELD: u8 = 1;
const DIFFERENCE: u8 = 2;
const MAY_BE_DONE: u8 = 4;

/// Which map a node has. The later one is the greater: a node takes a map that is greater than its own, and no other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct MapMark {
    /// Term of the warden that wrote it.
    pub term: u64,
    /// Its epoch.
    pub epoch: u32,
    /// Its revision.
    pub revision: u64,
    /// Whether the herd holds objects.
    pub held: bool,
}

/// A map that is being sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapSent {
    /// Which it is.
    pub mark: MapMark,
    /// Whether its bytes are those of [`Map::encode_since`], else of [`Map::encode`].
    pub is_difference: bool,
    /// Of the answer to a request for which another node decides by now: it may have been done.
    pub may_be_done: bool,
}

impl MapMark {
    /// That of this map.
    pub fn of(map: &Map, held: bool) -> Self {
        Self { term: map.term, epoch: map.epoch, revision: map.revision, held }
    }

    /// Appends a frame without a body that tells it: a beat, or the answer to a beat or a map.
    pub fn tell(self, out: &mut Vec<u8>, header: Header) {
        let bytes = self.bytes(0);
        let header = Header { epoch: self.epoch, brief: false, ..header };
        let fields = Fields { between: Some(Between::Map(&bytes)), ..Fields::default() };
        encode_frame(out, header, &fields, b"").expect("a head of some bytes is within the limits");
    }

    /// As [`MapMark::tell`], the answer of the warden's node to a beat, which grants something.
    pub fn tell_granted(self, out: &mut Vec<u8>, header: Header, grant: Grant) {
        let mut bytes = [0; MARK_BYTES + GRANT_BYTES];
        bytes[..MARK_BYTES].copy_from_slice(&self.bytes(0));
        bytes[MARK_BYTES..][..8].copy_from_slice(&grant.term.to_le_bytes());
        bytes[MARK_BYTES + 8..][..4].copy_from_slice(&grant.epoch.to_le_bytes());
        bytes[MARK_BYTES + 12..].copy_from_slice(&grant.lease_ms.to_le_bytes());
        let header = Header { epoch: self.epoch, brief: false, ..header };
        let fields = Fields { between: Some(Between::Map(&bytes)), ..Fields::default() };
        encode_frame(out, header, &fields, b"").expect("a head of some bytes is within the limits");
    }

    /// What the answer to a beat grants, if anything.
    pub fn granted(fields: &Fields<'_>) -> Option<Grant> {
        let Some(Between::Map(bytes)) = fields.between else { return None };
        let mut rest = Reader(bytes.get(MARK_BYTES..)?);
        Some(Grant { term: rest.u64()?, epoch: rest.u32()?, lease_ms: rest.u32()? })
    }

    /// The mark that a frame tells; `None` if it tells none.
    pub fn told(header: &Header, fields: &Fields<'_>) -> Result<Option<Self>, WireError> {
        MapSent::told(header, fields).map(|sent| sent.map(|sent| sent.mark))
    }

    /// Reads one; its epoch stands in the header of its frame.
    pub(super) fn read(rest: &mut Reader<'_>, epoch: u32) -> Option<Self> {
        Self::read_bits(rest, epoch).map(|(mark, _)| mark)
    }

    fn read_bits(rest: &mut Reader<'_>, epoch: u32) -> Option<(Self, u8)> {
        let (term, revision, bits) = (rest.u64()?, rest.u64()?, rest.u8()?);
        Some((Self { term, epoch, revision, held: bits & HELD != 0 }, bits))
    }

    pub(super) fn bytes(self, bits: u8) -> [u8; MARK_BYTES] {
        let mut out = [0; MARK_BYTES];
        out[..8].copy_from_slice(&self.term.to_le_bytes());
        out[8..16].copy_from_slice(&self.revision.to_le_bytes());
        out[16] = bits | if self.held { HELD } else { 0 };
        out
    }
}

impl MapSent {
    /// Appends the request `id` that sends a map's bytes.
    pub fn encode(self, out: &mut Vec<u8>, id: u64, map: &[u8]) -> Result<(), WireError> {
        self.send(out, Header { verb: VERB_MAP, id, ..Header::new(Kind::Request) }, map)
    }

    /// Appends the reply to a request that went by an older map: another node decides, and this is the later
    /// map.
    pub fn moved(self, out: &mut Vec<u8>, request: &Header, map: &[u8]) -> Result<(), WireError> {
        let reply = Header::reply_to(request, Status::Ok);
        self.send(out, Header { code: STATUS_MOVED, offset: 0, brief: false, ..reply }, map)
    }

    fn send(self, out: &mut Vec<u8>, header: Header, map: &[u8]) -> Result<(), WireError> {
        let bits = [(self.is_difference, DIFFERENCE), (self.may_be_done, MAY_BE_DONE)];
        let bytes = self.mark.bytes(bits.iter().map(|(is_set, bit)| u8::from(*is_set) * bit).sum());
        let header = Header { epoch: self.mark.epoch, ..header };
        encode_with_body(out, header, &Fields { between: Some(Between::Map(&bytes)), ..Fields::default() }, map)
    }

    /// What such a request or reply sends, and its body, of which the frame itself has the first part.
    pub fn decode(header: &Header, fields: &Fields<'_>) -> Result<(Self, Assembly), WireError> {
        let sent = Self::told(header, fields)?.ok_or(WireError::BadField(MAP))?;
        Ok((sent, Assembly::new(header.length, MAP_MAX_BYTES)?))
    }

    /// The map of these bytes, given the one at hand. [`MapError::OtherBase`]: its sender must send the whole one, and
    /// sees so by the answer, which tells a mark that is less than what it sent.
    pub fn map(self, bytes: &[u8], at_hand: &Map) -> Result<Map, MapError> {
        if self.is_difference { at_hand.decode_since(bytes) } else { Map::decode(bytes) }
    }

    fn told(header: &Header, fields: &Fields<'_>) -> Result<Option<Self>, WireError> {
        let Some(Between::Map(bytes)) = fields.between else { return Ok(None) };
        let read = |rest: &mut Reader<'_>| {
            let (mark, bits) = MapMark::read_bits(rest, header.epoch)?;
            Some(Self { mark, is_difference: bits & DIFFERENCE != 0, may_be_done: bits & MAY_BE_DONE != 0 })
        };
        read(&mut Reader(bytes)).map(Some).ok_or(WireError::BadField(MAP))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chance::Chance;
    use crate::place::{Draft, Grows, HerdId, Kind as Keeps, Node, NodeId, NodeState};
    use crate::wire::hello::hex;
    use crate::wire::{FLAG_BRIEF, FLAG_RANGE, Frame, VERB_BEAT, Verb, parse_frame};
    use std::num::NonZeroU32;

    // Made by another program from PROTOCOL.md, with a bitwise CRC-32C.
    const BEAT: &str = "\
        ce031000774ef55707000000000000000000140000000000000000000000000000000000000000000000000000000000\
        000000000000000009000000000000000000000013fb54851711000300000000000000040000000000000001";

    fn map(nodes: u32) -> Map {
        let node = |number| Node {
            id: NodeId(NonZeroU32::new(number).expect("nodes count from 1")),
            name: format!("n{number}"),
            addresses: vec![format!("10.0.0.{number}:7700")],
            incarnation: 1,
            host: format!("h{number}"),
            rack: String::new(),
            memory_bytes: 1 << 30,
            state: NodeState::Up,
            protocol: 1,
        };
        let mut draft = Draft { nodes: (1..=nodes).map(node).collect(), ..Draft::empty(HerdId([1; 16])) };
        draft.add_spread(Keeps::Kept, 1, Grows::ByItself).expect("there is room");
        Map::first(draft, 3).expect("a valid map")
    }

    fn parse(bytes: &[u8]) -> Frame<'_> {
        parse_frame(bytes).expect("parses").expect("is whole")
    }

    fn random_mark(chance: &mut Chance) -> MapMark {
        let (term, epoch, revision) = (chance.next(), chance.next() as u32, chance.next());
        MapMark { term, epoch, revision, held: chance.below(2) == 1 }
    }

    #[test]
    fn the_later_map_is_the_one_of_the_greater_mark() {
        let mark = |term, epoch, revision, held| MapMark { term, epoch, revision, held };
        let rising =
            [mark(0, 9, 9, true), mark(1, 0, 9, true), mark(1, 1, 0, true), mark(1, 1, 1, false), mark(1, 1, 1, true)];
        assert!(rising.is_sorted_by(|a, b| a < b));
        assert!(MapMark::default() < MapMark::of(&map(1), false), "who has none takes any");
    }

    #[test]
    fn a_beat_has_its_golden_bytes() {
        let (mark, mut out) = (MapMark { term: 3, epoch: 9, revision: 4, held: true }, Vec::new());
        mark.tell(&mut out, Header { verb: VERB_BEAT, id: 7, ..Header::new(Kind::Request) });
        assert_eq!(hex(&out), BEAT);
    }

    #[test]
    fn a_beat_and_every_answer_tell_which_map_their_sender_has() {
        let chance = &mut Chance(1);
        for _ in 0..200 {
            let (mark, mut out) = (random_mark(chance), Vec::new());
            let beat = Header { verb: VERB_BEAT, id: 7, ..Header::new(Kind::Request) };
            let reply = Header::reply_to(&beat, crate::wire::Status::Ok);
            for header in [beat, reply] {
                out.clear();
                mark.tell(&mut out, header);
                let frame = parse(&out);
                assert_eq!((frame.header().kind, frame.header().id), (header.kind, 7));
                assert_eq!(MapMark::told(frame.header(), &frame.fields().expect("fields")), Ok(Some(mark)));
            }
        }
        assert_eq!(MapMark::told(&Header::new(Kind::Request), &Fields::default()), Ok(None));
        for cut in 0..MARK_BYTES {
            let fields = Fields { between: Some(Between::Map(&[0; MARK_BYTES][..cut])), ..Fields::default() };
            assert_eq!(MapMark::told(&Header::new(Kind::Request), &fields), Err(WireError::BadField(MAP)));
        }
    }

    /// What the receiver makes of a map that is sent.
    fn received(sent: MapSent, bytes: &[u8], at_hand: &Map) -> Result<Map, MapError> {
        let mut out = Vec::new();
        sent.encode(&mut out, 9, bytes).expect("within the limits");
        let frame = parse(&out);
        assert_eq!((frame.header().verb, frame.header().id, frame.bytes()), (VERB_MAP, 9, out.len()));
        let (told, mut assembly) = MapSent::decode(frame.header(), &frame.fields().expect("fields")).expect("told");
        assert_eq!(told, sent);
        assert_eq!(assembly.take(frame.header(), frame.body().expect("checked")), Ok(true));
        told.map(&assembly.into_bytes(), at_hand)
    }

    #[test]
    fn a_map_is_sent_whole_or_as_what_has_changed() {
        let (old, other) = (map(2), map(3));
        let new = old.next(|draft| draft.nodes[0].state = NodeState::Draining).expect("valid");
        let mark = MapMark::of(&new, true);
        assert_eq!(
            received(MapSent { mark, is_difference: false, may_be_done: false }, &new.encode(), &other),
            Ok(new.clone())
        );
        let (sent, bytes) = (MapSent { mark, is_difference: true, may_be_done: false }, new.encode_since(&old));
        assert_eq!(received(sent, &bytes, &old), Ok(new.clone()));
        assert_eq!(received(sent, &bytes, &new), Err(MapError::OtherBase));
    }

    #[test]
    fn who_goes_by_an_older_map_gets_the_later_one_and_nobody_takes_that_for_an_answer() {
        let (old, mut out) = (map(2), Vec::new());
        let new = old.next(|draft| draft.nodes[0].state = NodeState::Draining).expect("valid");
        let flags = FLAG_BRIEF | FLAG_RANGE;
        let request = Header { flags, offset: 70_000, collection: 2, ..Header::request(Verb::Get, 9) };
        let sent = MapSent { mark: MapMark::of(&new, true), is_difference: true, may_be_done: false };
        sent.moved(&mut out, &request, &new.encode_since(&old)).expect("within the limits");
        let frame = parse(&out);
        let header = frame.header();
        assert_eq!((header.kind, header.id, header.code), (Kind::Reply, 9, STATUS_MOVED));
        assert_eq!(header.status(), None, "a client knows no such status");
        let (told, mut assembly) = MapSent::decode(header, &frame.fields().expect("fields")).expect("told");
        assert_eq!(assembly.take(header, frame.body().expect("checked")), Ok(true));
        assert_eq!(told.map(&assembly.into_bytes(), &old), Ok(new));
    }

    #[test]
    fn a_map_that_is_not_told_or_too_long_is_refused() {
        let header = Header { length: 5, ..Header::new(Kind::Request) };
        let decode = |header: &Header, fields| MapSent::decode(header, &fields).map(|(sent, _)| sent);
        let told = Fields { between: Some(Between::Map(&[0; MARK_BYTES])), ..Fields::default() };
        let mark = MapMark::default();
        assert_eq!(decode(&header, told), Ok(MapSent { mark, is_difference: false, may_be_done: false }));
        assert_eq!(decode(&header, Fields::default()), Err(WireError::BadField(MAP)));
        let long = Header { length: MAP_MAX_BYTES as u64 + 1, ..header };
        assert_eq!(decode(&long, told), Err(WireError::BodyTooLong(MAP_MAX_BYTES + 1)));
    }
}
