//! Messages of replica groups.
//!
//! The first byte is the code of the message, the next two the length of the head; head and body follow. Each input is
//! a frame whose checksums hold.

use super::wire_frame::error_name;
use crate::Outcomes;
use crate::names::names;
use herd_core::checksum::crc32c;
use herd_core::limits::BLOCK_BYTES;
use herd_core::replica::{Message, Offer, Refusal, Verdict};
use herd_core::wire::{
    Becomes, Delta, Frame, GroupMessage, Header, Key, Kind, Sent, VERB_GROUP, ValueOf, WireError, parse_frame,
};

/// What the corpus reaches.
pub const OUTCOMES: &[&[&str]] = &[MESSAGES, REST];

const REST: &[&str] = &[
    "no head",
    "BadField",
    "FieldLength",
    "name alone",
    "change",
    "whole",
    "removed",
    "kept",
    "whole value",
    "range",
    "inline",
    "staged",
    "answers",
    "last",
    "not the last",
    "refused: full",
    "refused: quota",
    "refused: no collection",
];

/// Words of the driver: heads of the fields, kinds of changes.
pub const DICTIONARY: &[&[u8]] = &[
    b"\x1A\x08\0",
    b"\x1A\x09\0",
    b"\x1A\x22\0",
    b"\x1A\x2C\0",
    b"\x01\x01\0n",
    b"\x1B\x12\0",
    b"\x02",
    b"\x05",
    b"\xFF\xFF",
];

names!(message_name, MESSAGES, Message<Key<'_>, Delta<'_>> {
    Message::Adopt { .. } => "adopt",
    Message::Adopted { .. } => "adopted",
    Message::Prepare { .. } => "prepare",
    Message::Abort { .. } => "abort",
    Message::Settle { .. } => "settle",
    Message::Resolve { .. } => "resolve",
    Message::Copy { .. } => "copy",
    Message::Answer { .. } => "answer",
    Message::Moved { .. } => "moved",
    Message::Confirm { .. } => "confirm",
    Message::Confirmed { .. } => "confirmed",
});

/// A frame of this head and body, whatever they say; `None` if they are too long for one.
fn sealed(header: Header, head: &[u8], body: &[u8]) -> Option<Vec<u8>> {
    let checks: Vec<u8> = body.chunks(BLOCK_BYTES).flat_map(|block| crc32c(block).to_le_bytes()).collect();
    let middle = [head, &checks].concat();
    let header = Header {
        head_len: u16::try_from(head.len()).ok()?,
        body_len: u32::try_from(body.len()).ok()?,
        length: body.len() as u64,
        head_crc: if middle.is_empty() { 0 } else { crc32c(&middle) },
        ..header
    };
    let frame = [&header.encode()[..], &middle, body].concat();
    matches!(parse_frame(&frame), Ok(Some(_))).then_some(frame)
}

/// Runs the target.
pub fn run(input: &[u8]) -> Outcomes {
    let mut outcomes = Outcomes::default();
    let Some(([code, low, high], rest)) = input.split_first_chunk() else { return outcomes };
    let length = usize::from(u16::from_le_bytes([*low, *high])).min(rest.len());
    let (head, body) = rest.split_at(length);
    let request = Header { verb: VERB_GROUP, code: u16::from(*code), ..Header::new(Kind::Request) };
    let frame = sealed(Header { collection: 2, version: 9, offset: 4, ..request }, head, body);
    let Some(frame) = frame else {
        outcomes.add("no head");
        return outcomes;
    };
    let frame = parse_frame(&frame).expect("parses").expect("is whole");
    match decode(&frame) {
        Ok(read) => understood(&read, &mut outcomes),
        Err(WireError::BadField(_)) => outcomes.add("BadField"),
        Err(error @ WireError::FieldLength { .. }) => outcomes.add(error_name(&error)),
        Err(_) => outcomes.add("no head"),
    }
    outcomes
}

fn decode<'a>(frame: &Frame<'a>) -> Result<GroupMessage<'a>, WireError> {
    GroupMessage::decode(&frame.head, frame.body().expect("its blocks are right"))
}

fn understood(read: &GroupMessage<'_>, outcomes: &mut Outcomes) {
    outcomes.add(message_name(&read.message));
    note(&read.message, outcomes);
    let mut out = Vec::new();
    read.encode(&mut out, 1).expect("what was read can be said");
    let frame = parse_frame(&out).expect("parses").expect("is whole");
    assert_eq!(decode(&frame).as_ref(), Ok(read), "it reads back as it was written");
}

fn refusal_name(refusal: Refusal) -> &'static str {
    match refusal {
        Refusal::Full => "refused: full",
        Refusal::Quota => "refused: quota",
        Refusal::NoCollection => "refused: no collection",
    }
}

fn note(message: &Message<Key<'_>, Delta<'_>>, outcomes: &mut Outcomes) {
    let delta = match message {
        Message::Adopted { is_last, .. } => return outcomes.add(if *is_last { "last" } else { "not the last" }),
        Message::Answer { verdict: Verdict::Refused(refusal), .. } => return outcomes.add(refusal_name(*refusal)),
        Message::Prepare { offer: Offer::Name, .. } => return outcomes.add("name alone"),
        Message::Prepare { offer: Offer::Change(delta), .. } => {
            outcomes.add("change");
            delta
        }
        Message::Prepare { offer: Offer::Whole(delta), .. } | Message::Copy { state: delta, .. } => {
            outcomes.add("whole");
            delta
        }
        _ => return,
    };
    if delta.answers.iter().count() > 0 {
        outcomes.add("answers");
    }
    let (kind, sent) = match delta.becomes {
        Becomes::Removed(_) => ("removed", None),
        Becomes::Put(put) => match put.value {
            ValueOf::Kept => ("kept", None),
            ValueOf::Whole(sent) => ("whole value", Some(sent)),
            ValueOf::Range(_, sent) => ("range", Some(sent)),
        },
    };
    outcomes.add(kind);
    match sent {
        Some(Sent::Inline(bytes, crc)) => {
            assert_eq!(crc32c(bytes), crc, "the value comes with its checksum");
            outcomes.add("inline");
        }
        Some(Sent::Staged { .. }) => outcomes.add("staged"),
        None => {}
    }
}
