//! The file of an embedded control store, and what a warden reads of it: all that a node believes at its start.

use crate::Outcomes;
use crate::names::names;
use crate::reasons::reason;
use herd_core::checksum::crc32c;
use herd_core::control::file::{FileError, read, whole};
use herd_core::control::{Control, Entry, Range};
use herd_core::warden::MoveId;
use herd_core::warden::moving::{Standing, copy, standing, unbegun};

/// What the corpus reaches.
pub const OUTCOMES: &[&[&str]] = &[ERRORS, REASONS, FOUND, STANDINGS];

const FOUND: &[&str] = &["a store", "entries", "nothing in it", "an end dropped"];

/// What a store is, by what stands in it.
const STANDINGS: &[&str] = &["nobody's", "a herd's", "that came by a move", "moved", "not begun", "no herd's"];

/// Words of the driver: starts, heads and writes.
#[rustfmt::skip]
pub const DICTIONARY: &[&[u8]] = &[
    b"HERDCTL\x01", b"\x01\x05moved", b"\x01\x06coming", b"\x01\x04came", b"\x01\x04herd",
    b"\x01\x01a\x01\0\0\0b", b"\x00\x01a", b"\x01\0\0\0\0\0\0\0", b"\xFF\xFF\xFF\xFF",
];

names!(error_name, ERRORS, FileError {
    FileError::NotAStore => "not a store",
    FileError::Version(_) => "version",
    FileError::Damaged(..) => "damaged",
});

/// What can be damaged.
pub const REASONS: &[&str] = &[
    "the start",
    "an entry",
    "an entry is none",
    "entries that do not go together",
    "a record before others",
    "a record that does not follow",
    "a record of no transaction",
];

/// Bytes of the start, and of the head of a record, the checksum last in both.
const START_BYTES: usize = 32;
const HEAD_BYTES: usize = 28;

/// Runs the target.
pub fn run(input: &[u8]) -> Outcomes {
    let mut outcomes = Outcomes::default();
    read_one(input, &mut outcomes);
    // Few inputs have the right checksums by chance: the rest of the reader is tried with them put right.
    let mut righted = input.to_vec();
    right(&mut righted);
    read_one(&righted, &mut outcomes);
    outcomes
}

/// Puts the checksums right, as far as there are whole records.
fn right(bytes: &mut [u8]) {
    let Some((start, mut rest)) = bytes.split_at_mut_checked(START_BYTES) else { return };
    seal(start);
    while let Some((head, behind)) = rest.split_at_mut_checked(HEAD_BYTES) {
        let length = u32::from_le_bytes([head[0], head[1], head[2], head[3]]) as usize;
        let Some((payload, next)) = behind.split_at_mut_checked(length) else { return };
        head[20..24].copy_from_slice(&crc32c(payload).to_le_bytes());
        seal(head);
        rest = next;
    }
}

fn seal(bytes: &mut [u8]) {
    let (content, crc) = bytes.split_at_mut(bytes.len() - 4);
    crc.copy_from_slice(&crc32c(content).to_le_bytes());
}

fn read_one(input: &[u8], outcomes: &mut Outcomes) {
    match read(input) {
        Err(error) => {
            outcomes.add(error_name(&error));
            if let FileError::Damaged(at, what) = error {
                assert!(at <= input.len());
                outcomes.add(reason(REASONS, what));
            }
        }
        Ok((mut table, dropped)) => {
            outcomes.add("a store");
            assert!(dropped <= input.len());
            if dropped > 0 {
                outcomes.add("an end dropped");
                let sound = read(&input[..input.len() - dropped]).expect("what is left is sound");
                assert_eq!((sound.0.all(), sound.1), (table.all(), 0));
            }
            let snapshot = table.all();
            outcomes.add(if snapshot.entries.is_empty() { "nothing in it" } else { "entries" });
            stands(&snapshot.entries, outcomes);
            let copied = copy(&snapshot, MoveId([7; 16]));
            // A herd's has been written to.
            assert!(snapshot.revision == 0 || read(&whole(&copied)).is_ok(), "a copy of it can be read");
            unbegun(&copied, MoveId([7; 16])).ok();
            let (again, nothing) = read(&whole(&snapshot)).expect("it reads back as it is written");
            assert_eq!((again.all(), nothing), (snapshot, 0));
            let page = table.range(&Range::default()).expect("it can be read");
            assert!(!page.more || !page.entries.is_empty());
        }
    }
}

/// What a node's start goes by.
fn stands(entries: &[Entry], outcomes: &mut Outcomes) {
    let reads_back = |id: MoveId| assert_eq!(MoveId::parse(&id.text()), Some(id));
    match standing(entries) {
        Ok(Standing::Empty) => outcomes.add("nobody's"),
        Ok(Standing::Open { came, .. }) => {
            outcomes.add("a herd's");
            came.into_iter().for_each(|id| {
                outcomes.add("that came by a move");
                reads_back(id);
            });
        }
        Ok(Standing::Moved(mark)) => {
            outcomes.add("moved");
            reads_back(mark.id);
        }
        Ok(Standing::Coming(coming)) => {
            outcomes.add("not begun");
            reads_back(coming.id);
        }
        Err(_) => outcomes.add("no herd's"),
    }
}
