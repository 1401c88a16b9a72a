//! The bytes of an embedded control store's file (FORMATS.md, "The control store"): a snapshot, then a log of records.
//!
//! The snapshot is written with a new file, which takes the old one's place when it is whole. A record is appended, and
//! on the disk before the next one begins. So a crash can damage the last record only, and none that anybody was told
//! of: a damaged end is dropped; damage before a record that is right is not that of a crash, and nothing of the
//! file is believed. Callers: the embedded store (`herd-node/src/control`), fuzzing.

use super::table::{Record, Table};
use super::{Entry, NUMBERS_END, STEP_BYTES, Snapshot, Txn, Write};
use crate::checksum::crc32c;
use crate::limits::CONTROL_TXN_MAX_BYTES;
use std::fmt;
use std::sync::Arc;

const MAGIC: [u8; 7] = *b"HERDCTL";
const VERSION: u8 = 1;
/// Magic, version, revision, term, entries, checksum.
const START_BYTES: usize = 7 + 1 + 8 + 8 + 4 + CRC_BYTES;
/// Length, revision, term, checksum of the writes, checksum of this.
const FRAME_BYTES: usize = 4 + 8 + 8 + CRC_BYTES + CRC_BYTES;
const CRC_BYTES: usize = 4;

const DELETE: u8 = 0;
const PUT: u8 = 1;

// A step counts for at least what it takes here: tag, length of the key, length of the value.
const _: () = assert!(STEP_BYTES >= 1 + 1 + 4);

/// Why a file is no control store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileError {
    /// The bytes are not those of a control store.
    NotAStore,
    /// Written by a later version.
    Version(u8),
    /// What was once written is no longer as it was: where, in bytes, and what.
    Damaged(usize, &'static str),
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FileError::NotAStore => f.write_str("the file is not a control store"),
            FileError::Version(version) => write!(f, "the file has format {version}: this program reads format 1"),
            FileError::Damaged(at, what) => write!(f, "the file is damaged at byte {at}: {what}"),
        }
    }
}

impl std::error::Error for FileError {}

/// The bytes of a new file that holds a snapshot.
pub fn whole(snapshot: &Snapshot) -> Vec<u8> {
    let mut out = Vec::new();
    out.extend_from_slice(&MAGIC);
    out.push(VERSION);
    out.extend_from_slice(&snapshot.revision.to_le_bytes());
    out.extend_from_slice(&snapshot.term.to_le_bytes());
    let entries = u32::try_from(snapshot.entries.len()).expect("a store's entries are far below 2^32");
    out.extend_from_slice(&entries.to_le_bytes());
    let crc = crc32c(&out);
    out.extend_from_slice(&crc.to_le_bytes());
    for Entry { key, value, revision } in &snapshot.entries {
        let put = Write::Put { key: key.clone(), value: value.clone() };
        write_frame(&mut out, *revision, snapshot.term, std::slice::from_ref(&put));
    }
    out
}

/// The bytes to append for a record.
pub fn record(record: &Record) -> Vec<u8> {
    let mut out = Vec::new();
    write_frame(&mut out, record.revision, record.term, &record.writes);
    out
}

fn write_frame(out: &mut Vec<u8>, revision: u64, term: u64, writes: &[Write]) {
    let mut payload = Vec::new();
    for write in writes {
        payload.push(if matches!(write, Write::Put { .. }) { PUT } else { DELETE });
        payload.push(u8::try_from(write.key().len()).expect("a key that was checked is below 256 bytes"));
        payload.extend_from_slice(write.key().as_bytes());
        if let Write::Put { value, .. } = write {
            let length = u32::try_from(value.len()).expect("a value that was checked is below 4 GiB");
            payload.extend_from_slice(&length.to_le_bytes());
            payload.extend_from_slice(value);
        }
    }
    let start = out.len();
    let length = u32::try_from(payload.len()).expect("a transaction that was checked is below 4 GiB");
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(&revision.to_le_bytes());
    out.extend_from_slice(&term.to_le_bytes());
    out.extend_from_slice(&crc32c(&payload).to_le_bytes());
    let crc = crc32c(&out[start..]);
    out.extend_from_slice(&crc.to_le_bytes());
    out.extend_from_slice(&payload);
}

/// The head of a frame whose own checksum holds.
struct Head {
    payload_bytes: usize,
    revision: u64,
    term: u64,
    payload_crc: u32,
}

impl Head {
    fn of(bytes: &[u8]) -> Option<Self> {
        let (head, crc) = bytes.first_chunk::<FRAME_BYTES>()?.split_last_chunk::<CRC_BYTES>()?;
        if crc32c(head) != u32::from_le_bytes(*crc) {
            return None;
        }
        let mut rest = Fields(head);
        let payload_bytes = rest.u32()? as usize;
        Some(Self { payload_bytes, revision: rest.u64()?, term: rest.u64()?, payload_crc: rest.u32()? })
    }
}

/// A frame at the start of bytes and what is behind it; `None`: not all of it is there, or it is not right.
fn frame(bytes: &[u8]) -> Option<(Head, &[u8], &[u8])> {
    let head = Head::of(bytes)?;
    let (payload, rest) = bytes[FRAME_BYTES..].split_at_checked(head.payload_bytes)?;
    (crc32c(payload) == head.payload_crc).then_some((head, payload, rest))
}

/// Takes values off the front of bytes.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn u8(&mut self) -> Option<u8> {
        self.bytes(1).map(|taken| taken[0])
    }

    fn u32(&mut self) -> Option<u32> {
        let (taken, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u32::from_le_bytes(*taken))
    }

    fn u64(&mut self) -> Option<u64> {
        let (taken, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*taken))
    }

    fn write(&mut self) -> Option<Write> {
        let tag = self.u8()?;
        let length = self.u8()?;
        let key = std::str::from_utf8(self.bytes(length.into())?).ok()?.to_owned();
        match tag {
            DELETE => Some(Write::Delete { key }),
            PUT => {
                let length = self.u32()? as usize;
                Some(Write::Put { key, value: Arc::from(self.bytes(length)?) })
            }
            _ => None,
        }
    }
}

/// The writes of a payload, if they are some that a transaction may have.
fn writes(payload: &[u8]) -> Option<Vec<Write>> {
    let (mut fields, mut writes) = (Fields(payload), Vec::new());
    while !fields.0.is_empty() {
        writes.push(fields.write()?);
    }
    let txn = Txn { writes, ..Txn::default() };
    txn.check().ok().map(|()| txn.writes)
}

/// The store that a file holds, and how many bytes of a damaged end were dropped. `bytes` are the whole file.
pub fn read(bytes: &[u8]) -> Result<(Table, usize), FileError> {
    let (mut snapshot, entries) = start(bytes)?;
    let mut rest = &bytes[START_BYTES..];
    let damaged = |rest: &[u8], what| FileError::Damaged(bytes.len() - rest.len(), what);
    for _ in 0..entries {
        let (head, payload, behind) = frame(rest).ok_or(damaged(rest, "an entry"))?;
        let mut fields = Fields(payload);
        let (Some(Write::Put { key, value }), true) = (fields.write(), fields.0.is_empty()) else {
            return Err(damaged(rest, "an entry is none"));
        };
        snapshot.entries.push(Entry { key, value, revision: head.revision });
        rest = behind;
    }
    let mut table = Table::restored(snapshot).map_err(|_| damaged(rest, "entries that do not go together"))?;
    while !rest.is_empty() {
        let Some((head, payload, behind)) = frame(rest) else {
            let torn = is_torn(rest, table.revision());
            return if torn { Ok((table, rest.len())) } else { Err(damaged(rest, "a record before others")) };
        };
        let follows = head.revision == table.revision() + 1 && (table.term()..NUMBERS_END).contains(&head.term);
        if !follows || head.revision >= NUMBERS_END {
            return Err(damaged(rest, "a record that does not follow"));
        }
        let writes = writes(payload).ok_or(damaged(rest, "a record of no transaction"))?;
        table.apply(Record { revision: head.revision, term: head.term, writes });
        rest = behind;
    }
    Ok((table, 0))
}

/// What the start of a file says, and how many entries follow.
fn start(bytes: &[u8]) -> Result<(Snapshot, u32), FileError> {
    let after = bytes.strip_prefix(&MAGIC).ok_or(FileError::NotAStore)?;
    match after.first() {
        Some(&VERSION) => {}
        Some(&other) => return Err(FileError::Version(other)),
        None => return Err(FileError::Damaged(bytes.len(), "the start")),
    }
    let right = |start: &&[u8; START_BYTES]| {
        let (content, crc) = start.split_at(START_BYTES - CRC_BYTES);
        crc32c(content).to_le_bytes() == crc
    };
    let start = bytes.first_chunk().filter(right).ok_or(FileError::Damaged(0, "the start"))?;
    let mut fields = Fields(&start[MAGIC.len() + 1..]);
    let numbers = fields.u64().zip(fields.u64()).zip(fields.u32());
    let ((revision, term), entries) = numbers.expect("the start has room for its fields");
    Ok((Snapshot { revision, term, entries: Vec::new() }, entries))
}

/// Whether a crash may have left this behind the record of `revision`: one record's bytes, and none of a later one.
fn is_torn(rest: &[u8], revision: u64) -> bool {
    let later = |at: usize| Head::of(&rest[at..]).is_some_and(|head| head.revision > revision + 1);
    rest.len() <= FRAME_BYTES + CONTROL_TXN_MAX_BYTES && !(1..rest.len()).any(later)
}
