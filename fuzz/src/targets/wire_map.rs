//! What nodes tell each other of their maps, in beats, answers, and with a map; what they tell clients of it, and whom
//! clients mean.
//!
//! So do control stores on their way from one node to another.
//!
//! The first byte says how long the map or the store is said to be, and which errand it is; the rest is the head of the
//! frame.

use super::wire_frame::error_name;
use crate::Outcomes;
use herd_core::ErrorKind;
use herd_core::limits::MAP_MAX_BYTES;
use herd_core::wire::{
    Between, ErrandComing, Fields, Header, Kind, MapMark, MapSent, Meant, Routes, VERB_CONTROL, WireError, parse_frame,
};

/// What the corpus reaches.
pub const OUTCOMES: &[&[&str]] = &[&[
    "no head",
    "no mark",
    "BadField",
    "mark",
    "of a herd that holds objects",
    "whole",
    "difference",
    "BodyTooLong",
    "meant",
    "routes",
    "errand",
    "errand whose store is cut",
    "no such errand",
    "errand of no move",
]];

/// Words of the driver: the field, and its bits.
pub const DICTIONARY: &[&[u8]] = &[b"\x17\x11\0", b"\x1c\x14\0", b"\x1d\x21\0", b"\x01\0\0\0\0\0\0\0", b"\0", b"\x03"];

/// Runs the target.
pub fn run(input: &[u8]) -> Outcomes {
    let mut outcomes = Outcomes::default();
    let Some((long, head)) = input.split_first() else { return outcomes };
    let Ok(fields) = Fields::decode(head) else {
        outcomes.add("no head");
        return outcomes;
    };
    let length = if long % 2 == 1 { MAP_MAX_BYTES as u64 + 1 } else { 5 };
    let header = Header { epoch: 7, length, ..Header::new(Kind::Request) };
    match MapMark::told(&header, &fields) {
        Ok(None) => outcomes.add("no mark"),
        Ok(Some(mark)) => told(mark, &mut outcomes),
        Err(error) => refused(&error, &mut outcomes),
    }
    match MapSent::decode(&header, &fields) {
        Ok((sent, _)) => arrives(sent, &mut outcomes),
        Err(error) => refused(&error, &mut outcomes),
    }
    of_clients(&header, &fields, &mut outcomes);
    errand(&Header { verb: VERB_CONTROL, code: u16::from(long / 2 % 4), ..header }, &fields, &mut outcomes);
    outcomes
}

/// What the warden's node has another one do with a control store.
fn errand(header: &Header, fields: &Fields<'_>, outcomes: &mut Outcomes) {
    let mut coming = match ErrandComing::begin(header, fields) {
        Ok(coming) => coming,
        Err(error) if error.kind == ErrorKind::NotInVersion => return outcomes.add("no such errand"),
        Err(error) if error.kind == ErrorKind::BadRequest => return outcomes.add("errand of no move"),
        Err(error) => panic!("{error}"),
    };
    let body = if header.code == 1 { b"store".as_slice() } else { b"" };
    if coming.take(header, body).is_err() {
        return outcomes.add("errand whose store is cut");
    }
    outcomes.add("errand");
    let (errand, mut out) = (coming.done(), Vec::new());
    errand.encode(&mut out, 9).expect("within the limits");
    let frame = parse_frame(&out).expect("parses").expect("is whole");
    let mut again = ErrandComing::begin(frame.header(), &frame.fields().expect("fields")).expect("understood");
    assert_eq!(again.take(frame.header(), frame.body().expect("checked")), Ok(true));
    assert_eq!(again.done(), errand, "it reads back as it was written");
}

/// What clients say, and what they are told.
fn of_clients(header: &Header, fields: &Fields<'_>, outcomes: &mut Outcomes) {
    match Meant::told(fields) {
        Ok(None) => {}
        Ok(Some(meant)) => {
            outcomes.add("meant");
            let bytes = meant.bytes();
            let again = Fields { between: Some(Between::Meant(&bytes)), ..Fields::default() };
            assert_eq!(Meant::told(&again), Ok(Some(meant)), "it reads back as it was written");
        }
        Err(error) => refused(&error, outcomes),
    }
    match Routes::told(header, fields) {
        Ok(None) => {}
        Ok(Some(routes)) => {
            outcomes.add("routes");
            let mut out = Vec::new();
            routes.encode(&mut out, header, b"a map").expect("within the limits");
            let frame = parse_frame(&out).expect("parses").expect("is whole");
            let again = Routes::told(frame.header(), &frame.fields().expect("fields")).expect("understood");
            assert_eq!(again.map(|again| (again.mark, again.key.0)), Some((routes.mark, routes.key.0)));
        }
        Err(error) => refused(&error, outcomes),
    }
}

/// BadField is this target's own, the others are known by the frame's.
fn refused(error: &WireError, outcomes: &mut Outcomes) {
    match error {
        WireError::BadField(_) => outcomes.add("BadField"),
        _ => outcomes.add(error_name(error)),
    }
}

fn told(mark: MapMark, outcomes: &mut Outcomes) {
    outcomes.add("mark");
    if mark.held {
        outcomes.add("of a herd that holds objects");
    }
    let mut out = Vec::new();
    mark.tell(&mut out, Header::new(Kind::Request));
    let frame = parse_frame(&out).expect("parses").expect("is whole");
    let again = MapMark::told(frame.header(), &frame.fields().expect("fields"));
    assert_eq!(again, Ok(Some(mark)), "it reads back as it was written");
}

fn arrives(sent: MapSent, outcomes: &mut Outcomes) {
    outcomes.add(if sent.is_difference { "difference" } else { "whole" });
    let mut out = Vec::new();
    sent.encode(&mut out, 3, b"a map").expect("within the limits");
    let frame = parse_frame(&out).expect("parses").expect("is whole");
    let (again, mut map) = MapSent::decode(frame.header(), &frame.fields().expect("fields")).expect("understood");
    assert_eq!(again, sent, "it reads back as it was written");
    assert_eq!(map.take(frame.header(), frame.body().expect("checked")), Ok(true));
    assert_eq!(map.into_bytes(), b"a map");
}
