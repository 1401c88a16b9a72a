//! Frames of the wire: header, head, block checksums and body.
//!
//! Random bytes seldom pass a checksum, so each input is tried as it is and with its checksums put right: the header's,
//! the head's as well, and the blocks' as well. What lies behind a checksum is thus reached with plain mutations.

use super::wire_fields;
use crate::Outcomes;
use crate::names::names;
use crate::pieces::{prefixes, readings};
use herd_core::checksum::crc32c;
use herd_core::limits::{BLOCK_BYTES, WIRE_FRAME_BODY_MAX_BYTES, WIRE_HEAD_MAX_BYTES};
use herd_core::wire::{
    BRIEF_BYTES, BRIEF_MAGIC, Fields, Frame, FrameHead, HEADER_BYTES, Header, Kind, Status, Verb, WireError,
    block_checks, encode_frame, foresee, parse_frame, parse_frame_head, parse_header,
};

/// What the corpus reaches.
pub const OUTCOMES: &[&[&str]] =
    &[ERRORS, KINDS, VERBS, FOUND, &["more is needed", "checked body", "unknown verb", "brief reply"]];

const FOUND: &[&str] = wire_fields::FOUND;

/// Words of the driver: starts of headers of each kind, and fields.
#[rustfmt::skip]
pub const DICTIONARY: &[&[u8]] = &[
    b"\xCE\x01\0\0", b"\xCE\x02\0\0", b"\xCE\x03\x01\0", b"\xCE\x03\x02\x01", b"\xCE\x04\x01\x04", b"\xCE\x05\0\x01",
    b"\xCE\x06\0\0", b"\xCE\x07\0\0", b"\xCE\x08\0\0", b"\x01\x01\0n", b"\x05\x01\0c", b"\x0F\x01\0h", b"\0\0\x01\0",
    b"\0\0\0\0\0\0\0\0", b"\xFF\xFF\xFF\xFF", b"\0\x20", b"\x01\x20", b"\0\0\x10\0", b"\x01\0\x10\0", b"\xCF\x01\0\0",
];

names!(error_of, ERRORS, WireError {
    WireError::BadMagic(_) => "BadMagic",
    WireError::BadHeaderCrc => "BadHeaderCrc",
    WireError::UnknownKind(_) => "UnknownKind",
    WireError::HeadTooLong(_) => "HeadTooLong",
    WireError::BodyTooLong(_) => "BodyTooLong",
    WireError::BodyNotInBlocks(_) => "BodyNotInBlocks",
    WireError::UnexpectedBody(_) => "UnexpectedBody",
    WireError::UnexpectedHead(_) => "UnexpectedHead",
    WireError::BadHeadCrc => "BadHeadCrc",
    WireError::CutShort => "CutShort",
    WireError::FieldLength { .. } => "FieldLength",
    WireError::FieldTwice(_) => "FieldTwice",
    WireError::NotText(_) => "NotText",
    WireError::BadBlock(_) => "BadBlock",
    ; never WireError::BadField(_) | WireError::BodyBroken // Of what nodes say to each other: targets of its own.
});

names!(kind, KINDS, Kind {
    Kind::Hello => "hello",
    Kind::Welcome => "welcome",
    Kind::Request => "request",
    Kind::Reply => "reply",
    Kind::Data => "data",
    Kind::Credit => "credit",
    Kind::Cancel => "cancel",
    Kind::Goodbye => "goodbye",
});

names!(verb, VERBS, Verb {
    Verb::Get => "verb get",
    Verb::Put => "verb put",
    Verb::Remove => "verb remove",
    Verb::Execute => "verb execute",
    Verb::Create => "verb create",
    Verb::Destroy => "verb destroy",
    Verb::List => "verb list",
});

/// The name of an error, whose message is short too.
pub(super) fn error_name(error: &WireError) -> &'static str {
    assert!(error.to_string().len() < 80);
    error_of(error)
}

/// Runs the target.
pub fn run(input: &[u8]) -> Outcomes {
    let mut outcomes = Outcomes::default();
    frame(input, &mut outcomes);
    let mut repaired = input.to_vec();
    let header_bytes = if input.first() == Some(&BRIEF_MAGIC) { BRIEF_BYTES } else { HEADER_BYTES };
    if input.len() >= header_bytes {
        repair_header(&mut repaired[..header_bytes]);
        frame(&repaired, &mut outcomes);
        if repair_middle(&mut repaired, false) {
            frame(&repaired, &mut outcomes);
        }
        if repair_middle(&mut repaired, true) {
            frame(&repaired, &mut outcomes);
        }
    }
    written(input, &mut outcomes);
    outcomes
}

fn repair_header(header: &mut [u8]) {
    let covered = [&header[..4], &header[8..]].concat();
    header[4..8].copy_from_slice(&crc32c(&covered).to_le_bytes());
}

/// Puts the checksum of the head right, those of the blocks too if `blocks`; false if there is nothing to put right.
fn repair_middle(frame: &mut [u8], blocks: bool) -> bool {
    let Ok(Some(header)) = parse_header(frame) else { return false };
    let (start, end) = (header.bytes(), header.bytes() + header.middle_bytes());
    if end == start || frame.len() < end {
        return false;
    }
    if blocks {
        let Some(body) = frame.get(end..header.frame_bytes()) else { return false };
        let checks: Vec<u8> = block_checks(body).flat_map(u32::to_le_bytes).collect();
        frame[end - checks.len()..end].copy_from_slice(&checks);
    }
    if !header.brief {
        let crc = crc32c(&frame[start..end]);
        frame[68..HEADER_BYTES].copy_from_slice(&crc.to_le_bytes());
        repair_header(&mut frame[..HEADER_BYTES]);
    }
    true
}

/// Parses one frame whole and by its prefixes.
fn frame(bytes: &[u8], outcomes: &mut Outcomes) {
    let _ = foresee(bytes);
    let whole = parse_frame(bytes);
    check_prefixes(bytes, &whole);
    match whole {
        Err(error) => outcomes.add(error_name(&error)),
        Ok(None) => {
            outcomes.add("more is needed");
            let most = HEADER_BYTES + WIRE_HEAD_MAX_BYTES + WIRE_FRAME_BODY_MAX_BYTES + 4 * (1 << 20) / BLOCK_BYTES;
            assert!(bytes.len() < most, "no frame is that long");
        }
        Ok(Some(frame)) => understood(bytes, &frame, outcomes),
    }
}

/// What a prefix tells, the whole tells too; a prefix that tells nothing is shorter than the frame.
fn check_prefixes(bytes: &[u8], whole: &Result<Option<Frame<'_>>, WireError>) {
    let length = whole.as_ref().ok().and_then(Option::as_ref).map_or(bytes.len(), Frame::bytes);
    for end in prefixes(bytes, &[BRIEF_BYTES, HEADER_BYTES, length]) {
        match parse_frame(&bytes[..end]) {
            Ok(None) => assert!(end < length || whole == &Ok(None), "{end} of {length} bytes are enough"),
            told => assert_eq!(&told, whole, "the first {end} bytes tell otherwise"),
        }
    }
}

fn understood(bytes: &[u8], frame: &Frame<'_>, outcomes: &mut Outcomes) {
    let header = frame.header();
    // What is foreseen is a guess: it does not look whether the frame has a head at all.
    if let (Some(name), Some(asked)) = (foresee(bytes), frame.fields().ok().and_then(|fields| fields.name)) {
        assert_eq!((header.kind, asked), (Kind::Request, name), "what was foreseen is asked for");
    }
    assert_eq!(header.frame_bytes(), frame.bytes());
    check_header(header, bytes, outcomes);
    let fields = frame.fields();
    match &fields {
        Ok(fields) => wire_fields::understood(fields, &bytes[header.bytes()..frame.head.bytes()], outcomes),
        Err(error) => outcomes.add(error_name(error)),
    }
    let body = frame.body();
    check_body_in_pieces(&frame.head, &bytes[frame.head.bytes()..frame.bytes()], body.map(|_| ()));
    match body {
        Ok([]) => {}
        Ok(_) => outcomes.add("checked body"),
        Err(error) => outcomes.add(error_name(&error)),
    }
    if let (Ok(fields), Ok(body)) = (fields, body) {
        let mut out = Vec::new();
        encode_frame(&mut out, *header, &fields, body).expect("what was read can be written");
        let again = parse_frame(&out).expect("what was written can be read").expect("whole");
        assert_eq!((again.fields(), again.body()), (Ok(fields), Ok(body)), "it reads back as it was written");
    }
}

fn check_header(header: &Header, bytes: &[u8], outcomes: &mut Outcomes) {
    outcomes.add(kind(&header.kind));
    outcomes.add(header.verb().as_ref().map_or("unknown verb", verb));
    if header.brief {
        outcomes.add("brief reply");
        assert_eq!(header.encode_brief(), bytes[..BRIEF_BYTES], "a header is written as it was read");
    } else {
        let encoded = header.encode();
        assert_eq!(Header::decode(&encoded).as_ref(), Ok(header), "a header reads back as it was written");
        // Byte 67 is reserved and not kept.
        if bytes[67] == 0 {
            assert_eq!(encoded, bytes[..HEADER_BYTES], "and is written as it was read");
        }
    }
    if let Some(condition) = header.condition() {
        let mut other = *header;
        other.set_condition(condition);
        assert_eq!(other.condition(), Some(condition));
    }
    if let Some(status) = header.status() {
        assert_eq!(Status::from_code(status.code()), Some(status));
    }
}

/// However the body arrives, its blocks are found right or wrong alike.
fn check_body_in_pieces(head: &FrameHead<'_>, body: &[u8], whole: Result<(), WireError>) {
    assert_eq!(head.body_bytes(), body.len());
    for pieces in readings(body).into_iter().filter(|pieces| pieces.len() <= 4096) {
        let mut checker = head.checker();
        let result = pieces.iter().try_for_each(|piece| checker.update(piece));
        assert_eq!(result, whole, "in {} pieces", pieces.len());
        assert!(result.is_err() || checker.remaining_bytes() == 0);
    }
}

/// The other way about: a frame made of the input as name and body.
fn written(input: &[u8], outcomes: &mut Outcomes) {
    let (name, body) = input.split_at(input.len() / 2);
    let mut out = b"before".to_vec();
    match encode_frame(&mut out, Header::request(Verb::Put, 7), &Fields::named(name), body) {
        Ok(()) => {
            let head = parse_frame_head(&out[6..]).expect("what was written can be read").expect("whole");
            let frame = parse_frame(&out[6..]).expect("what was written can be read").expect("whole");
            assert_eq!((frame.head, frame.bytes()), (head, out.len() - 6));
            assert_eq!((frame.fields(), frame.body()), (Ok(Fields::named(name)), Ok(body)));
        }
        Err(error) => {
            assert_eq!(out, b"before", "an error leaves nothing behind");
            outcomes.add(error_name(&error));
        }
    }
}
