//! The control store: the one small table, strongly consistent, in which a herd's warden keeps its map.
//!
//! Five calls, [`Control`]: range, transaction, watch, campaign, snapshot. Whoever implements them passes `suite`;
//! who uses them relies on nothing else, so one store can take another's place.
//!
//! * [`table`]: the rules as a value, without a disk. The embedded store (`herd-node/src/control`) is one of them and
//!   a file; a herd of one without a writable place has nothing else.
//! * [`file`]: the bytes of that file (FORMATS.md, "The control store").
//!
//! Not for objects, heartbeats or load: what is written more often than a herd changes belongs elsewhere. The data path
//! never waits for it. Callers: what drives the warden in a node, from a thread of its own, since calls may block.

mod error;
pub mod file;
pub mod suite;
pub mod table;
#[cfg(test)]
mod tests;

pub use error::ControlError;
pub use table::Table;

use crate::limits::{CONTROL_KEY_MAX_BYTES, CONTROL_TXN_MAX_BYTES, CONTROL_TXN_STEPS_MAX, CONTROL_VALUE_MAX_BYTES};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Rises with each write, for ever, by one or more. 0: before any; no key has it.
pub type Revision = u64;

/// Rises with each warden, for ever. 0: there was none.
pub type Term = u64;

/// Revisions and terms end here: nobody gets so far, and sums of them do not overflow.
pub const NUMBERS_END: u64 = 1 << 62;

/// Bytes that a step of a transaction is counted for besides key and value.
pub const STEP_BYTES: usize = 8;

/// A key and what it has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The key.
    pub key: String,
    /// Its value.
    pub value: Arc<[u8]>,
    /// The revision that wrote it last.
    pub revision: Revision,
}

/// What is to be read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Range {
    /// Keys that begin so; empty: all.
    pub prefix: String,
    /// Keys behind this one, the last of the page before.
    pub after: Option<String>,
    /// As it was at this revision, that of the first page; `None`: as it is now.
    pub at: Option<Revision>,
}

/// Entries by rising key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// All of them are as they were at this revision.
    pub revision: Revision,
    /// The entries; at least one if `more`.
    pub entries: Vec<Entry>,
    /// Whether there are more behind the last one.
    pub more: bool,
}

/// Holds if the key was last written at that revision; 0: if there is no such key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compare {
    /// The key.
    pub key: String,
    /// The revision it must have.
    pub revision: Revision,
}

/// One change of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Write {
    /// The key has this value; also if it had it before, that is a write.
    Put {
        /// The key.
        key: String,
        /// Its value.
        value: Arc<[u8]>,
    },
    /// There is no such key; if there was none, that is no write.
    Delete {
        /// The key.
        key: String,
    },
}

impl Write {
    /// The key it writes.
    pub fn key(&self) -> &str {
        match self {
            Write::Put { key, .. } | Write::Delete { key } => key,
        }
    }

    /// What it is counted for in a transaction.
    pub fn counted_bytes(&self) -> usize {
        let value = match self {
            Write::Put { value, .. } => value.len(),
            Write::Delete { .. } => 0,
        };
        self.key().len() + value + STEP_BYTES
    }
}

/// If all that is compared holds, all is written, else nothing. One without writes only asks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Txn {
    /// The term that must hold the office.
    pub term: Option<Term>,
    /// What must hold besides.
    pub compares: Vec<Compare>,
    /// What is then written; no key twice.
    pub writes: Vec<Write>,
}

impl Txn {
    /// An error if it breaks a limit of [`crate::limits`], or names a key twice.
    pub fn check(&self) -> Result<(), ControlError> {
        let invalid = |text: String| Err(ControlError::Invalid(text));
        let steps = self.compares.len() + self.writes.len();
        if steps > CONTROL_TXN_STEPS_MAX {
            return invalid(format!("{steps} steps of a transaction are over {CONTROL_TXN_STEPS_MAX}"));
        }
        let mut written = BTreeSet::new();
        for write in &self.writes {
            check_key(write.key())?;
            if !written.insert(write.key()) {
                return invalid(format!("key {} is written twice", write.key()));
            }
            match write {
                Write::Put { key, value } if value.len() > CONTROL_VALUE_MAX_BYTES => {
                    let bytes = value.len();
                    return invalid(format!("{bytes} bytes of key {key} are over {CONTROL_VALUE_MAX_BYTES}"));
                }
                _ => {}
            }
        }
        self.compares.iter().try_for_each(|compare| check_key(&compare.key))?;
        let compared: usize = self.compares.iter().map(|compare| compare.key.len() + STEP_BYTES).sum();
        let bytes = compared + self.writes.iter().map(Write::counted_bytes).sum::<usize>();
        if bytes > CONTROL_TXN_MAX_BYTES {
            return invalid(format!("{bytes} bytes of a transaction are over {CONTROL_TXN_MAX_BYTES}"));
        }
        Ok(())
    }
}

/// An error unless it may be a key, or the name of a candidate: 1 to 255 bytes that a terminal would not obey.
pub fn check_key(key: &str) -> Result<(), ControlError> {
    let holds = !key.is_empty() && key.len() <= CONTROL_KEY_MAX_BYTES && !key.chars().any(char::is_control);
    if holds { Ok(()) } else { Err(ControlError::Invalid("a key has 1 to 255 printable bytes".into())) }
}

/// How a transaction ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All held, all is written, with this revision; without a write it is the latest one.
    Done(Revision),
    /// Something did not hold; nothing is written.
    Refused,
}

/// What a revision made of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The revision.
    pub revision: Revision,
    /// The key.
    pub key: String,
    /// What it has now; `None`: it is gone.
    pub value: Option<Arc<[u8]>>,
}

/// What happened, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changes {
    /// All changes of the revisions behind the one that was named, up to `up_to`; of one revision by rising key.
    pub changes: Vec<Change>,
    /// The revision to name next. No revision is cut in two.
    pub up_to: Revision,
}

/// The office of warden after a candidacy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Office {
    /// The latest term.
    pub term: Term,
    /// Who holds the office; `None`: nobody.
    pub holder: Option<String>,
}

/// All that a store holds, at one revision: to hand it over to another.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// The revision.
    pub revision: Revision,
    /// The latest term; the store that takes over begins with a later one.
    pub term: Term,
    /// All entries, by rising key.
    pub entries: Vec<Entry>,
}

/// The five calls. Each takes effect at one moment between call and answer, and all of them in one order
/// (linearizable); what was answered lasts, also over a restart of the store. Errors: [`ControlError`].
pub trait Control {
    /// Entries of a range, about [`CONTROL_PAGE_BYTES`](crate::limits::CONTROL_PAGE_BYTES) of them. A page is of one
    /// revision; further pages of it are asked for `at` that revision, and are [`ControlError::Gap`] if the store no
    /// longer has it: then begin anew.
    fn range(&mut self, range: &Range) -> Result<Page, ControlError>;

    /// Writes if all holds. [`ControlError::Unknown`]: it may have been done, or may be yet; a comparison with what was
    /// there before tells, and keeps it from being done twice. A term that a later one followed, or that was resigned,
    /// is refused for ever; one whose lease has run out may be.
    fn txn(&mut self, txn: &Txn) -> Result<Outcome, ControlError>;

    /// What has happened since a revision; does not wait for more. No change is left out or told twice, if each call
    /// names the `up_to` of the last. [`ControlError::Gap`]: the store no longer has what came next; begin anew with
    /// a range, and watch from its revision.
    fn watch(&mut self, after: Revision) -> Result<Changes, ControlError>;

    /// Stands for the office of warden, for `lease_ms` from now on (at most a second longer, or as long again where the
    /// store itself was away meanwhile); 0 resigns. If nobody holds it, or the holder's lease has run out, `name` gets
    /// it, with a term above all earlier ones; if `name` holds it, the term stays and the lease begins anew. A name is
    /// one process's: nobody else may use it, ever. `now_ms` is the caller's clock, which only rises; a store with a
    /// clock of its own passes it over.
    fn campaign(&mut self, name: &str, lease_ms: u64, now_ms: u64) -> Result<Office, ControlError>;

    /// All there is, at one revision.
    fn snapshot(&mut self) -> Result<Snapshot, ControlError>;
}
