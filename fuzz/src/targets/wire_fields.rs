//! The head of a frame: tagged fields.

use super::wire_frame::error_name;
use crate::Outcomes;
use herd_core::limits::WIRE_HEAD_MAX_BYTES;
use herd_core::wire::Fields;

/// What the corpus reaches.
pub const OUTCOMES: &[&[&str]] = &[ERRORS, FOUND];

const ERRORS: &[&str] = &["CutShort", "FieldLength", "FieldTwice", "NotText", "HeadTooLong"];

#[rustfmt::skip]
pub(super) const FOUND: &[&str] = &[
    "no field", "name", "ttl", "flags", "attributes", "collection", "spec", "error", "prefix", "after", "limit",
    "method", "features", "highest version", "session", "node", "expires", "checksum", "token", "peer", "proof",
    "between", "answered",
];

/// Words of the driver: one field each.
#[rustfmt::skip]
pub const DICTIONARY: &[&[u8]] = &[
    b"\x01\x01\0n", b"\x02\x08\0\x01\0\0\0\0\0\0\0", b"\x03\x04\0\x01\0\0\0", b"\x04\x03\0\x04\0\0", b"\x05\x01\0c",
    b"\x06\x02\0{}", b"\x07\x01\0e", b"\x08\0\0", b"\x09\x01\0a", b"\x0A\x04\0\x0A\0\0\0", b"\x0B\x01\0m",
    b"\x0C\x08\0\0\0\0\0\0\0\0\0", b"\x0D\x02\0\x01\0", b"\x0E\x04\0\x01\0\0\0", b"\x0F\x01\0h",
    b"\x10\x08\0\x01\0\0\0\0\0\0\0", b"\x11\x04\0\x01\0\0\0", b"\x12\x18\x00123456789012345678901234",
    b"\x13\x02\0\x01\0", b"\x14\x10\x000123456789012345", b"\x15\x01\0?",
    b"\x1A\x01\0?", b"\x1B\x01\0?", b"\xFF\0\0", b"\x01\x01\x04",
];

/// Runs the target.
pub fn run(input: &[u8]) -> Outcomes {
    let mut outcomes = Outcomes::default();
    match Fields::decode(input) {
        Ok(fields) => understood(&fields, input, &mut outcomes),
        Err(error) => outcomes.add(error_name(&error)),
    }
    outcomes
}

/// Notes the fields and checks that they read back as they are written.
pub(super) fn understood(fields: &Fields<'_>, head: &[u8], outcomes: &mut Outcomes) {
    note(fields, outcomes);
    let mut out = b"before".to_vec();
    match fields.encode(&mut out) {
        Ok(()) => {
            assert!(out.len() - 6 <= head.len().min(WIRE_HEAD_MAX_BYTES), "written again they are no longer");
            assert_eq!(Fields::decode(&out[6..]).as_ref(), Ok(fields), "they read back as they were written");
        }
        Err(error) => {
            assert_eq!(out, b"before", "an error leaves nothing behind");
            assert!(head.len() > WIRE_HEAD_MAX_BYTES, "what came in a head fits a head");
            outcomes.add(error_name(&error));
        }
    }
}

/// Notes which fields are there; a field that is new must be named here to compile.
fn note(fields: &Fields<'_>, outcomes: &mut Outcomes) {
    let Fields {
        name,
        ttl_ms,
        flags,
        attributes,
        collection,
        spec,
        error,
        prefix,
        after,
        limit,
        method,
        features,
        highest_version,
        session,
        node,
        expires_ms,
        checksum,
        token,
        peer,
        proof,
        between,
        answered,
    } = *fields;
    let there = [
        *fields == Fields::default(),
        name.is_some(),
        ttl_ms.is_some(),
        flags.is_some(),
        attributes.is_some(),
        collection.is_some(),
        spec.is_some(),
        error.is_some(),
        prefix.is_some(),
        after.is_some(),
        limit.is_some(),
        method.is_some(),
        features.is_some(),
        highest_version.is_some(),
        session.is_some(),
        node.is_some(),
        expires_ms.is_some(),
        checksum.is_some(),
        token.is_some(),
        peer.is_some(),
        proof.is_some(),
        between.is_some(),
        answered.is_some(),
    ];
    for (found, _) in FOUND.iter().zip(there).filter(|(_, is_there)| *is_there) {
        outcomes.add(found);
    }
}
