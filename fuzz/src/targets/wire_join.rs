//! The frames by which a node joins, and the proofs behind them.
//!
//! The first byte says which of the four is tried, the rest is the head of the frame.

use crate::Outcomes;
use crate::names::names;
use herd_core::limits::{ERROR_TEXT_MAX_BYTES, MAP_TEXT_MAX_BYTES, NODE_ADDRESSES_MAX};
use herd_core::place::{HerdId, NodeId};
use herd_core::warden::{Identity, Join};
use herd_core::wire::{
    Admitting, Fields, Greeting, Header, Joining, Kind, LinkError, LinkErrorKind, Secret, decode_joined, encode_joined,
    parse_frame,
};
use std::num::NonZeroU32;

/// What the corpus reaches.
pub const OUTCOMES: &[&[&str]] = &[ERRORS, &["no head", "wants in", "welcomed", "proved", "let in"]];

/// Words of the driver: tags and lengths of the fields, protocols, texts.
pub const DICTIONARY: &[&[u8]] = &[
    b"\x15\x68\0",
    b"\x15\x28\0",
    b"\x14\x10\0",
    b"\x16\x2C\0",
    b"\x01\0\0\0",
    b"\0\0\0\0",
    b"\x02n2",
    b"\0",
    b"\xFF",
];

names!(error_name, ERRORS, LinkErrorKind {
    LinkErrorKind::OtherHerd => "OtherHerd",
    LinkErrorKind::OlderProtocol => "OlderProtocol",
    LinkErrorKind::WrongSecret => "WrongSecret",
    LinkErrorKind::BadHello => "BadHello",
    ; never LinkErrorKind::OtherNode
        | LinkErrorKind::Itself
        | LinkErrorKind::OlderIncarnation
        | LinkErrorKind::JoinRefused
        | LinkErrorKind::AskWarden
        | LinkErrorKind::NotNow
});

pub(super) const SECRET: Secret = Secret(*b"sixteen bytes ..");
pub(super) const HERD: HerdId = HerdId(*b"the herd's id ..");
const NONCE: [u8; 16] = [1; 16];
const MAP: &[u8] = b"a map";

/// A node that has been in the herd before.
fn join() -> Join {
    Join {
        herd: Some(HERD),
        protocol: 1,
        identity: Identity(*b"the identity is."),
        process: *b"the process is..",
        name: "n2".into(),
        addresses: vec!["10.0.0.2:7700".into(), "unix:/s".into()],
        host: "h2".into(),
        rack: String::new(),
        memory_bytes: 0x0102_0304_0506_0708,
        evict: false,
        moved: None,
    }
}

/// What the member says of itself.
pub(super) fn greeting() -> Greeting {
    Greeting { protocol: 1, herd: HERD, node: NodeId(NonZeroU32::MIN), nonce: [2; 16] }
}

/// Runs the target.
pub fn run(input: &[u8]) -> Outcomes {
    let mut outcomes = Outcomes::default();
    let Some((which, head)) = input.split_first() else { return outcomes };
    let Ok(fields) = Fields::decode(head) else {
        outcomes.add("no head");
        return outcomes;
    };
    match which % 4 {
        0 => tell(&mut outcomes, "wants in", wants_in(&fields)),
        1 => tell(&mut outcomes, "welcomed", joining(&join()).welcomed(&fields, &mut Vec::new()).map(|_| ())),
        2 => tell(&mut outcomes, "proved", proved(&fields)),
        _ => tell(&mut outcomes, "let in", let_in(&fields)),
    }
    outcomes
}

fn tell(outcomes: &mut Outcomes, well: &'static str, result: Result<(), LinkError>) {
    match result {
        Ok(()) => outcomes.add(well),
        Err(error) => {
            assert!(error.text.len() < ERROR_TEXT_MAX_BYTES, "{error}");
            outcomes.add(error_name(&error.kind));
        }
    }
}

fn joining(join: &Join) -> Joining {
    Joining::new(join, NONCE, SECRET).expect("within the limits")
}

/// A hello, whose welcome is a frame that somebody who knows the secret takes.
fn wants_in(fields: &Fields<'_>) -> Result<(), LinkError> {
    let mut out = Vec::new();
    Admitting::new(fields, &greeting(), SECRET)?.welcome(&mut out);
    let welcome = parse_frame(&out).expect("parses").expect("is whole");
    assert_eq!((welcome.header().kind, welcome.bytes()), (Kind::Welcome, out.len()));
    Ok(())
}

/// The second hello of the node above; whatever it was taken for can be said again.
fn proved(fields: &Fields<'_>) -> Result<(), LinkError> {
    let mut hello = Vec::new();
    joining(&join()).hello(&mut hello);
    let hello = parse_frame(&hello).expect("parses").expect("is whole");
    let admitting = Admitting::new(&hello.fields().expect("fields"), &greeting(), SECRET).expect("a good hello");
    let proved = admitting.proved(fields)?;
    assert_eq!(proved, join());
    assert!(proved.addresses.len() <= NODE_ADDRESSES_MAX && proved.name.len() <= MAP_TEXT_MAX_BYTES);
    Ok(())
}

fn let_in(fields: &Fields<'_>) -> Result<(), LinkError> {
    let (joined, _) = decode_joined(&Header { length: 5, ..Header::new(Kind::Welcome) }, fields)?;
    let mut out = Vec::new();
    encode_joined(&mut out, &joined, MAP).expect("within the limits");
    let welcome = parse_frame(&out).expect("parses").expect("is whole");
    let again = decode_joined(welcome.header(), &welcome.fields().expect("fields")).expect("understood");
    assert_eq!(again.0, joined, "it reads back as it was written");
    Ok(())
}
