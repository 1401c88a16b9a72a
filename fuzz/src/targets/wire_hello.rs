//! The hello and the welcome of a link between two nodes, and the proof behind them.
//!
//! The first byte says which of the three is tried, the rest is the head of the frame.

use crate::Outcomes;
use crate::names::names;
use herd_core::limits::ERROR_TEXT_MAX_BYTES;
use herd_core::place::{HerdId, NodeId};
use herd_core::wire::{
    Accepting, Dialing, Fields, Kind, LinkError, LinkErrorKind, PEER_BYTES, Peer, Secret, parse_frame,
};
use std::num::NonZeroU32;

/// What the corpus reaches.
pub const OUTCOMES: &[&[&str]] = &[ERRORS, &["no head", "hello accepted", "welcomed", "proved"]];

/// Words of the driver: tags and lengths of the fields, numbers of protocols and nodes.
pub const DICTIONARY: &[&[u8]] =
    &[b"\x13\x3E\0", b"\x14\x10\0", b"\x01\0the herd's id ..", b"\x02\0\0\0", b"\x01\0\0\0", b"\0\0", b"\xFF\xFF"];

names!(error_name, ERRORS, LinkErrorKind {
    LinkErrorKind::OtherHerd => "OtherHerd",
    LinkErrorKind::OlderProtocol => "OlderProtocol",
    LinkErrorKind::WrongSecret => "WrongSecret",
    LinkErrorKind::OtherNode => "OtherNode",
    LinkErrorKind::Itself => "Itself",
    LinkErrorKind::BadHello => "BadHello",
    ; never LinkErrorKind::OlderIncarnation
        | LinkErrorKind::JoinRefused
        | LinkErrorKind::AskWarden
        | LinkErrorKind::NotNow
});

const SECRET: Secret = Secret(*b"sixteen bytes ..");

fn peer(number: u8) -> Peer {
    Peer {
        protocol: 1,
        herd: HerdId(*b"the herd's id .."),
        node: node(number),
        incarnation: 0x0102_0304_0506_0708,
        loops: 2,
        link: 1,
        epoch: 9,
        revision: 0x1_0000_0002,
        nonce: [number; 16],
    }
}

fn node(number: u8) -> NodeId {
    NodeId(NonZeroU32::new(number.into()).expect("not 0"))
}

/// Runs the target.
pub fn run(input: &[u8]) -> Outcomes {
    let mut outcomes = Outcomes::default();
    let Some((which, head)) = input.split_first() else { return outcomes };
    let Ok(fields) = Fields::decode(head) else {
        outcomes.add("no head");
        return outcomes;
    };
    match which % 3 {
        0 => tell(&mut outcomes, "hello accepted", hello(&fields)),
        1 => tell(&mut outcomes, "welcomed", Dialing::new(peer(1), node(2), SECRET).welcomed(&fields, &mut Vec::new())),
        _ => tell(&mut outcomes, "proved", proof(&fields)),
    }
    outcomes
}

fn tell(outcomes: &mut Outcomes, well: &'static str, result: Result<Peer, LinkError>) {
    match result {
        Ok(peer) => {
            assert_eq!(Peer::decode(&peer.encode()), Ok(peer), "it reads back as it was written");
            outcomes.add(well);
        }
        Err(error) => {
            assert!(error.text.len() < ERROR_TEXT_MAX_BYTES, "{error}");
            outcomes.add(error_name(&error.kind));
        }
    }
}

/// A hello to node 2, whose welcome is a frame.
fn hello(fields: &Fields<'_>) -> Result<Peer, LinkError> {
    let accepting = Accepting::new(fields, &peer(2), SECRET)?;
    let said = fields.peer.expect("it was understood");
    assert_eq!(accepting.claimed().encode(), said[..PEER_BYTES], "it is kept as it was said");
    let mut out = Vec::new();
    accepting.welcome(&mut out);
    let welcome = parse_frame(&out).expect("parses").expect("is whole");
    assert_eq!((welcome.header().kind, welcome.bytes()), (Kind::Welcome, out.len()));
    Ok(*accepting.claimed())
}

/// The second hello of node 1 to node 2.
fn proof(fields: &Fields<'_>) -> Result<Peer, LinkError> {
    let first = peer(1).encode();
    let accepting = Accepting::new(&Fields { peer: Some(&first), ..Fields::default() }, &peer(2), SECRET);
    accepting.expect("a good hello").proved(fields)
}
