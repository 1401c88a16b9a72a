//! How a client gets the herd's map, and whom it means when it goes straight to the owner of an object (PROTOCOL.md
//! §1.13). Pure.
//!
//! A client asks any node with the mark of the map it has ([`MapMark::tell`]); the answer tells the node's own mark and
//! the key of the name hash, and has the map behind it if that is later. The address of a node in the map may be
//! another node's where the client stands: a hello that says who is [`Meant`] is refused by all others, before any
//! request behind it is read.
//!
//! Callers: the wire's door of a node, and Herd's client.

use super::WireError;
use super::body::encode_with_body;
use super::bytes::Reader;
use super::fields::{Between, Fields, MEANT, ROUTES};
use super::header::{Header, Status};
use super::map::{MARK_BYTES, MapMark};
use crate::key::HashKey;
use crate::place::{HerdId, NodeId};
use std::num::NonZeroU32;

/// The node that the sender of a hello means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meant {
    /// Its herd.
    pub herd: HerdId,
    /// Its number there.
    pub node: NodeId,
}

impl Meant {
    /// Its bytes, of [`Between::Meant`].
    pub fn bytes(self) -> [u8; 20] {
        let mut out = [0; 20];
        out[..16].copy_from_slice(&self.herd.0);
        out[16..].copy_from_slice(&self.node.0.get().to_le_bytes());
        out
    }

    /// The node that these fields of a hello mean; `None` if they mean whoever answers.
    pub fn told(fields: &Fields<'_>) -> Result<Option<Self>, WireError> {
        let Some(Between::Meant(bytes)) = fields.between else { return Ok(None) };
        let read = |rest: &mut Reader<'_>| {
            let (herd, node) = (HerdId(rest.fixed()?), NonZeroU32::new(rest.u32()?)?);
            Some(Self { herd, node: NodeId(node) })
        };
        read(&mut Reader(bytes)).map(Some).ok_or(WireError::BadField(MEANT))
    }
}

/// What a node of a herd answers to a client that asks for the map, besides the map.
#[derive(Clone, Copy)]
pub struct Routes {
    /// Which map it has.
    pub mark: MapMark,
    /// The key of the name hash.
    pub key: HashKey,
}

impl Routes {
    /// Appends the reply to `request`; `map` is empty if the client has no older one.
    pub fn encode(&self, out: &mut Vec<u8>, request: &Header, map: &[u8]) -> Result<(), WireError> {
        let mut told = [0; MARK_BYTES + 16];
        told[..MARK_BYTES].copy_from_slice(&self.mark.bytes(0));
        told[MARK_BYTES..].copy_from_slice(&self.key.0);
        let fields = Fields { between: Some(Between::Routes(&told)), ..Fields::default() };
        let reply = Header::reply_to(request, Status::Ok);
        encode_with_body(out, Header { epoch: self.mark.epoch, offset: 0, brief: false, ..reply }, &fields, map)
    }

    /// What such a reply tells; `None`: the node is in no herd with others.
    pub fn told(header: &Header, fields: &Fields<'_>) -> Result<Option<Self>, WireError> {
        let Some(Between::Routes(bytes)) = fields.between else { return Ok(None) };
        let read = |rest: &mut Reader<'_>| {
            let mark = MapMark::read(rest, header.epoch)?;
            Some(Self { mark, key: HashKey(rest.fixed()?) })
        };
        read(&mut Reader(bytes)).map(Some).ok_or(WireError::BadField(ROUTES))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Kind, VERB_MAP, encode_frame, parse_frame};

    const MARK: MapMark = MapMark { term: 3, epoch: 9, revision: 4, held: true };

    fn number(node: u32) -> NodeId {
        NodeId(NonZeroU32::new(node).expect("nodes count from 1"))
    }

    #[test]
    fn a_hello_says_whom_it_means() {
        let meant = Meant { herd: HerdId([7; 16]), node: number(258) };
        let (bytes, mut out) = (meant.bytes(), Vec::new());
        let fields = Fields { between: Some(Between::Meant(&bytes)), ..Fields::default() };
        encode_frame(&mut out, Header::new(Kind::Hello), &fields, b"").expect("within the limits");
        // Tag, length, herd, node.
        assert_eq!(out[72..75], [28, 20, 0]);
        assert_eq!((&out[75..91], &out[91..]), (&[7; 16][..], &[2, 1, 0, 0][..]));
        let frame = parse_frame(&out).expect("parses").expect("is whole");
        assert_eq!(Meant::told(&frame.fields().expect("fields")), Ok(Some(meant)));
        assert_eq!(Meant::told(&Fields::default()), Ok(None), "whoever answers");
        for bad in [&bytes[..19], &[0; 20]] {
            let fields = Fields { between: Some(Between::Meant(bad)), ..Fields::default() };
            assert_eq!(Meant::told(&fields), Err(WireError::BadField(MEANT)));
        }
    }

    #[test]
    fn the_answer_to_a_client_tells_the_mark_the_key_and_the_map() {
        let mut out = Vec::new();
        MARK.tell(&mut out, Header { verb: VERB_MAP, id: 5, ..Header::new(Kind::Request) });
        let request = *parse_frame(&out).expect("parses").expect("is whole").header();
        out.clear();
        Routes { mark: MARK, key: HashKey([8; 16]) }.encode(&mut out, &request, b"the map").expect("within the limits");
        let frame = parse_frame(&out).expect("parses").expect("is whole");
        let header = frame.header();
        assert_eq!((header.kind, header.verb, header.id, header.length), (Kind::Reply, VERB_MAP, 5, 7));
        assert_eq!(frame.body().expect("checked"), b"the map");
        let fields = frame.fields().expect("fields");
        let told = Routes::told(header, &fields).expect("well formed").expect("told");
        assert_eq!((told.mark, told.key.0), (MARK, [8; 16]));
        assert!(Routes::told(header, &Fields::default()).expect("well formed").is_none(), "a node that is alone");
        for cut in 0..MARK_BYTES + 16 {
            let fields = Fields { between: Some(Between::Routes(&[0; 40][..cut])), ..Fields::default() };
            assert!(Routes::told(header, &fields).is_err(), "{cut} bytes");
        }
    }
}
