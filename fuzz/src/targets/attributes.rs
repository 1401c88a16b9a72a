//! The attributes of an object: what is decoded encodes to the same, and nothing decoded is larger than it was told.

use crate::Outcomes;
use crate::reasons::reason;
use herd_core::attributes::Attributes;
use herd_core::limits::ATTRIBUTES_MAX_BYTES;

/// What the corpus reaches.
pub const OUTCOMES: &[&[&str]] = &[REASONS, FOUND];

/// Words of the driver: starts of fields.
#[rustfmt::skip]
pub const DICTIONARY: &[&[u8]] = &[
    b"\x01\x03\0a/b", b"\x02\x04\0\xA4\x81\0\0", b"\x03\x08\0\0\0\0\0\0\0\0\x80", b"\x04\x02\0..", b"\x05\x03\0\x01kv",
    b"\x05\0\0", b"\x06\x01\0x", b"\x05\x02\0\x09k", b"\0\0", b"\xFF\xFF",
];

/// The texts of its errors.
pub const REASONS: &[&str] = &[
    "attribute key is over 255 bytes",
    "attributes are over 4,096 bytes",
    "attribute is cut short",
    "content type is not text",
    "mode is not 4 bytes",
    "mtime is not 8 bytes",
    "pair is empty",
    "pair is cut short",
];

const FOUND: &[&str] = &["nothing", "content type", "mode", "mtime", "link", "pair"];

/// Runs the target.
pub fn run(input: &[u8]) -> Outcomes {
    let mut outcomes = Outcomes::default();
    match Attributes::decode(input) {
        Ok(found) => {
            assert!(input.len() <= ATTRIBUTES_MAX_BYTES);
            note(&found, &mut outcomes);
            let encoded = found.encode().expect("what was decoded fits");
            assert!(encoded.len() <= input.len(), "encoded again it is no larger");
            assert_eq!(Attributes::decode(&encoded).as_ref(), Ok(&found), "it reads back as it was written");
        }
        Err(error) => outcomes.add(reason(REASONS, &error.text)),
    }
    told(input, &mut outcomes);
    outcomes
}

fn note(found: &Attributes, outcomes: &mut Outcomes) {
    let Attributes { content_type, mode, mtime_ns, link, pairs } = found;
    let there = [content_type.is_some(), mode.is_some(), mtime_ns.is_some(), link.is_some(), !pairs.is_empty()];
    if !there.contains(&true) {
        outcomes.add("nothing");
    }
    for (name, _) in FOUND[1..].iter().zip(there).filter(|(_, is_there)| *is_there) {
        outcomes.add(name);
    }
}

/// The other way about: the input as what a user tells.
fn told(input: &[u8], outcomes: &mut Outcomes) {
    let (key, value) = input.split_at(input.len() / 2);
    let told = Attributes {
        content_type: std::str::from_utf8(key).ok().map(str::to_owned),
        mode: Some(input.len() as u32),
        mtime_ns: None,
        link: Some(input.to_vec()),
        pairs: vec![(key.to_vec(), value.to_vec())],
    };
    match told.encode() {
        Ok(encoded) => assert_eq!(Attributes::decode(&encoded), Ok(told), "it reads back as it was told"),
        Err(error) => outcomes.add(reason(REASONS, &error.text)),
    }
}
