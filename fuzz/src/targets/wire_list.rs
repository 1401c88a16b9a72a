//! Pages of a listing, the body of a reply to list.

use super::wire_frame::error_name;
use crate::Outcomes;
use herd_core::key::name_is_valid;
use herd_core::wire::{LIST_ENTRY_OVERHEAD_BYTES, ListEntries, ListEntry};

/// What the corpus reaches.
pub const OUTCOMES: &[&[&str]] = &[&["CutShort", "FieldLength", "entry", "empty page"]];

/// Words of the driver: a whole entry, and lengths.
pub const DICTIONARY: &[&[u8]] =
    &[b"\x01\0n\0\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0", b"\0\0", b"\x01\x04", b"\0\x04", b"\xFF\xFF", b"\x01\0n"];

/// Runs the target.
pub fn run(input: &[u8]) -> Outcomes {
    let mut outcomes = Outcomes::default();
    let (mut written, mut count) = (Vec::new(), 0);
    let mut failed = None;
    for entry in ListEntries::new(input) {
        assert!(failed.is_none(), "nothing comes behind an error");
        match entry {
            Ok(entry) => {
                assert!(name_is_valid(entry.name));
                let before = written.len();
                entry.encode(&mut written);
                assert_eq!(written.len() - before, entry.encoded_bytes());
                count += 1;
                outcomes.add("entry");
            }
            Err(error) => {
                outcomes.add(error_name(&error));
                failed = Some(error);
            }
        }
    }
    assert!(input.starts_with(&written), "entries read back as they were written");
    assert!(count * (LIST_ENTRY_OVERHEAD_BYTES + 1) <= input.len(), "each entry takes its bytes");
    let mut rest = &input[written.len()..];
    let before = rest;
    match failed {
        Some(error) => {
            assert_eq!(ListEntry::decode(&mut rest), Err(error));
            assert_eq!(rest, before, "an error uses nothing");
        }
        None => assert!(rest.is_empty()),
    }
    if input.is_empty() {
        outcomes.add("empty page");
    }
    outcomes
}
