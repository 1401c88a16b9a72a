//! The frames by which a witness tells the end of its node, and the proofs behind them.
//!
//! The first byte says which of the three is tried, the rest is the head of the frame.

use super::wire_join::{HERD, SECRET, greeting};
use crate::Outcomes;
use crate::names::names;
use herd_core::limits::ERROR_TEXT_MAX_BYTES;
use herd_core::place::{Life, NodeId};
use herd_core::wire::{Fields, Hearing, Kind, LinkError, LinkErrorKind, Telling, parse_frame};
use std::num::NonZeroU32;

/// What the corpus reaches.
pub const OUTCOMES: &[&[&str]] = &[ERRORS, &["no head", "told", "welcomed", "proved"]];

/// Words of the driver: tags and lengths of the fields, protocols, a node.
pub const DICTIONARY: &[&[u8]] =
    &[b"\x1E\x30\0", b"\x15\x28\0", b"\x14\x10\0", b"\x01\0\0\0", b"\0\0\0\0", b"\x02\0\0\0", b"\xFF"];

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

const LIFE: Life = Life { node: NodeId(NonZeroU32::MIN.saturating_add(1)), incarnation: 3 };

fn telling() -> Telling {
    Telling::new(HERD, LIFE, [1; 16], SECRET)
}

/// Runs the target.
pub fn run(input: &[u8]) -> Outcomes {
    let mut outcomes = Outcomes::default();
    let Some((which, head)) = input.split_first() else { return outcomes };
    let Ok(fields) = Fields::decode(head) else {
        outcomes.add("no head");
        return outcomes;
    };
    let (well, result) = match which % 3 {
        0 => ("told", told(&fields)),
        1 => ("welcomed", telling().welcomed(&fields, &mut Vec::new())),
        _ => ("proved", proved(&fields)),
    };
    match result {
        Ok(()) => outcomes.add(well),
        Err(error) => {
            assert!(error.text.len() < ERROR_TEXT_MAX_BYTES, "{error}");
            outcomes.add(error_name(&error.kind));
        }
    }
    outcomes
}

/// A hello, whose welcome is a frame.
fn told(fields: &Fields<'_>) -> Result<(), LinkError> {
    let mut out = Vec::new();
    Hearing::new(fields, &greeting(), SECRET)?.welcome(&mut out);
    let welcome = parse_frame(&out).expect("parses").expect("is whole");
    assert_eq!((welcome.header().kind, welcome.bytes()), (Kind::Welcome, out.len()));
    Ok(())
}

/// The second hello of the witness above.
fn proved(fields: &Fields<'_>) -> Result<(), LinkError> {
    let mut hello = Vec::new();
    telling().hello(&mut hello);
    let hello = parse_frame(&hello).expect("parses").expect("is whole");
    let hearing = Hearing::new(&hello.fields().expect("fields"), &greeting(), SECRET).expect("a good hello");
    assert_eq!(hearing.proved(fields)?, LIFE);
    Ok(())
}
