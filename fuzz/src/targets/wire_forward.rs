//! Requests that are handed on, and what a reply tells of the object.
//!
//! The first byte is the verb, the next the code, the next two the length of the head; the head and, as the body, the
//! rest follow.

use crate::Outcomes;
use herd_core::Chunks;
use herd_core::entry::Value;
use herd_core::op::{Action, Given, Op};
use herd_core::wire::{Became, Between, Fields, Handed, Header, Kind, encode_op, value_of};

/// What the corpus reaches.
pub const OUTCOMES: &[&[&str]] = &[&[
    "no head",
    "of a client",
    "BadField",
    "refused",
    "get",
    "put",
    "range",
    "remove",
    "method of the wire",
    "memcached command",
    "became",
    "became nothing",
    "object there",
]];

/// Words of the driver: heads of fields, commands, flags.
pub const DICTIONARY: &[&[u8]] = &[
    b"\x18\x1E\0",
    b"\x19\x0D\0",
    b"\x01\x01\0n",
    b"\x0B\x05\0touch",
    b"\x06\x01\0k\x03\0v t",
    b"\x07\0\x01\0k\0\0",
    b"\x03",
];

const NOW_MS: u64 = 1_800_000_000_000;

/// A large value: no input is so long.
#[derive(Clone, Debug)]
struct Huge;

impl Chunks for Huge {
    fn size_bytes(&self) -> u64 {
        0
    }

    fn chunk(&self, _: u64) -> &[u8] {
        &[]
    }
}

/// Runs the target.
pub fn run(input: &[u8]) -> Outcomes {
    let mut outcomes = Outcomes::default();
    let Some(([verb, code, low, high], rest)) = input.split_first_chunk() else { return outcomes };
    let length = usize::from(u16::from_le_bytes([*low, *high])).min(rest.len());
    let (head, body) = rest.split_at(length);
    let Ok(fields) = Fields::decode(head) else {
        outcomes.add("no head");
        return outcomes;
    };
    let (flags, hops) = (verb >> 5, code >> 4);
    let header = Header { verb: verb & 31, code: u16::from(code & 15), flags, hops, ..Header::new(Kind::Request) };
    handed_on(&Header { version: 9, offset: 4, ..header }, &fields, body, &mut outcomes);
    replied(&fields, body, &mut outcomes);
    outcomes
}

fn handed_on(header: &Header, fields: &Fields<'_>, body: &[u8], outcomes: &mut Outcomes) {
    let handed = match Handed::decode(header, fields) {
        Ok(Some(handed)) => handed,
        Ok(_) => return outcomes.add("of a client"),
        Err(_) => return outcomes.add("BadField"),
    };
    let op = match handed.op(header, fields, Given::<Huge>::Small(body, None), NOW_MS) {
        Ok(op) => op,
        Err(_) => return outcomes.add("refused"),
    };
    outcomes.add(match &op.action {
        Action::Read => "get",
        Action::Put(put) if put.from.is_some() => "range",
        Action::Put(_) => "put",
        Action::Remove => "remove",
        Action::Execute(_) if fields.method.is_some() => "method of the wire",
        Action::Execute(_) => "memcached command",
    });
    again(&op, &handed, fields.name.unwrap_or(b"n"));
}

/// What a door can ask is the same operation when it has been handed on once more.
fn again(op: &Op<'_, Huge>, handed: &Handed<'_>, name: &[u8]) {
    let mut scratch = Vec::new();
    let Some((header, fields)) = encode_op(op, name, &handed.asked, NOW_MS, &mut scratch) else { return };
    let given = match value_of(op) {
        Some(Given::Small(bytes, _)) => *bytes,
        _ => b"",
    };
    let read = Handed::decode(&header, &fields).expect("well formed").expect("it was handed on");
    let same = read.op(&header, &fields, Given::<Huge>::Small(given, None), NOW_MS).expect("an operation");
    assert_eq!((read.asked, format!("{:?}", same.action)), (handed.asked, format!("{:?}", op.action)));
    assert_eq!((same.condition, same.token, same.else_remove), (op.condition, op.token, op.else_remove));
}

fn replied(fields: &Fields<'_>, body: &[u8], outcomes: &mut Outcomes) {
    let became = match Became::decode(fields) {
        Ok(Some(became)) => became,
        Ok(_) => return outcomes.add("became nothing"),
        Err(_) => return outcomes.add("BadField"),
    };
    outcomes.add("became");
    let mut bytes = Vec::new();
    became.encode(&mut bytes);
    let again = Became::decode(&Fields { between: Some(Between::Became(&bytes)), ..Fields::default() });
    assert_eq!(again, Ok(Some(became)), "it reads back as it was written");
    if became.found::<Huge>(b"", Value::Inline(body, 0)).is_some() {
        outcomes.add("object there");
    }
}
