//! The embedded control store: a [`Table`], and a file that has every record before the table does.
//!
//! * What was answered is on the disk. A record is appended and synced, then applied, then answered.
//! * A record that could not be written is cut off again: nothing was done. Where even that fails, or the disk does not
//!   say whether it has the record, the answer is `unknown`, and the next call begins as opening does: it reads the
//!   file and writes it anew. Until that works all calls are refused.
//! * Opening writes the file anew, so that nothing is gone on from that is not on the disk, and a place that can't be
//!   written to is found at the start. The file is written anew as well when its log has outgrown what it holds.
//! * What was taken away from its place is not written to.
//!
//! Callers: [`Home`](super::Home).

use super::disk::{Directory, Disk, Failed};
use super::home::no_place;
use herd_core::control::file::{read, record, whole};
use herd_core::control::table::{Judged, Record};
use herd_core::control::{
    Changes, Control, ControlError, Office, Outcome, Page, Range, Revision, Snapshot, Table, Txn,
};
use herd_core::limits::{CONTROL_FILE_MAX_BYTES, CONTROL_LOG_BYTES};
use std::fmt;
use std::io;
use std::path::Path;

/// Why there is no store to be had at a place. Texts say where, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OpenError {
    /// Nothing can be written there: it is read-only, full, or not allowed.
    NoPlace(String),
    /// Another process has it.
    InUse(String),
    /// What is there can't be believed, or is of a later version.
    Damaged(String),
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::NoPlace(text) | OpenError::InUse(text) | OpenError::Damaged(text) => f.write_str(text),
        }
    }
}

impl std::error::Error for OpenError {}

/// Opens the control store in a directory, or begins one there.
pub(super) fn over(directory: Directory, path: &Path) -> Result<Box<dyn Control + Send>, OpenError> {
    match Store::open(directory, CONTROL_LOG_BYTES) {
        Ok(store) => Ok(Box::new(store)),
        Err(Opening::Disk(error)) => Err(no_place(path, &error)),
        Err(Opening::Content(text)) => {
            let path = path.display();
            let todo = "move it away, and the herd begins anew, with nothing in it";
            Err(OpenError::Damaged(format!("control store in {path}: {text}: {todo}")))
        }
    }
}

/// A control store in a directory without one, that goes on with what another held.
pub(super) fn hand_over(
    mut directory: Directory,
    path: &Path,
    snapshot: &Snapshot,
) -> Result<Box<dyn Control + Send>, OpenError> {
    let written = directory.replace(&whole(snapshot));
    written.map_err(|(Failed::Undone(error) | Failed::Unknown(error))| no_place(path, &error))?;
    over(directory, path)
}

/// Why [`Store::open`] failed.
#[derive(Debug)]
pub(super) enum Opening {
    Disk(io::Error),
    Content(String),
}

/// The store over any disk.
pub(super) struct Store<D> {
    table: Table,
    disk: D,
    /// Bytes of the file, all of them on the disk.
    len_bytes: u64,
    /// How long the file may be at most.
    pub(super) most_bytes: u64,
    /// How long the log may grow at least.
    log_bytes: u64,
    /// The file is written anew when it has so many bytes.
    renew_bytes: u64,
    /// Why nothing can be relied upon.
    broken: Option<String>,
}

impl<D: Disk> Store<D> {
    pub(super) fn open(mut disk: D, log_bytes: u64) -> Result<Self, Opening> {
        let bytes = disk.read(CONTROL_FILE_MAX_BYTES).map_err(Opening::Disk)?;
        let table = match bytes {
            None => Table::default(),
            Some(bytes) if bytes.len() as u64 > CONTROL_FILE_MAX_BYTES => {
                return Err(Opening::Content(format!("its file is over {CONTROL_FILE_MAX_BYTES} bytes")));
            }
            Some(bytes) => read(&bytes).map_err(|error| Opening::Content(error.to_string()))?.0,
        };
        let most_bytes = CONTROL_FILE_MAX_BYTES;
        let mut store = Self { table, disk, len_bytes: 0, most_bytes, log_bytes, renew_bytes: 0, broken: None };
        store.renew().map_err(|(Failed::Undone(error) | Failed::Unknown(error))| Opening::Disk(error))?;
        Ok(store)
    }

    /// Writes the file anew, without the log.
    fn renew(&mut self) -> Result<(), Failed> {
        let bytes = whole(&self.table.all());
        self.disk.replace(&bytes)?;
        self.len_bytes = bytes.len() as u64;
        self.renew_bytes = self.len_bytes + self.log_bytes.max(self.len_bytes);
        Ok(())
    }

    /// Whether the store can be relied upon; where it could not, whether it can again.
    fn check(&mut self) -> Result<(), ControlError> {
        let Some(text) = self.broken.take() else { return Ok(()) };
        if self.begin_anew().is_none() {
            self.broken = Some(text.clone());
            return Err(ControlError::Broken(text));
        }
        Ok(())
    }

    /// Goes on from what the file says, once all of that is on the disk. Nobody is in office then.
    fn begin_anew(&mut self) -> Option<()> {
        let bytes = self.disk.read(CONTROL_FILE_MAX_BYTES).ok().flatten()?;
        let (table, _) =
            Some(bytes).filter(|it| it.len() as u64 <= CONTROL_FILE_MAX_BYTES).map(|it| read(&it))?.ok()?;
        if table.revision() < self.table.revision() {
            return None;
        }
        self.table = table;
        self.renew().ok()
    }

    /// Until the store has begun anew all calls are refused.
    fn break_off(&mut self, what: &str, error: &io::Error) -> ControlError {
        let text = format!("{what}: {error}: see to its disk");
        self.broken = Some(text.clone());
        ControlError::Unknown(text)
    }

    /// Makes a record last, then applies it.
    fn write(&mut self, next: Record) -> Result<(), ControlError> {
        let bytes = record(&next);
        if self.len_bytes + bytes.len() as u64 > self.most_bytes {
            self.renew().map_err(|failed| match failed {
                Failed::Undone(error) => ControlError::Full(format!("its file can't be written anew: {error}")),
                Failed::Unknown(error) => self.break_off("its directory can't be synced", &error),
            })?;
        }
        if let Err(error) = self.disk.append(&bytes) {
            return Err(match self.disk.cut(self.len_bytes) {
                Ok(()) => ControlError::Full(format!("{error}: see to its disk")),
                Err(error) => self.break_off("its file can't be written to", &error),
            });
        }
        if let Err(error) = self.disk.sync() {
            return Err(self.break_off("its file can't be synced", &error));
        }
        self.len_bytes += bytes.len() as u64;
        self.table.apply(next);
        self.renew_in_time();
        Ok(())
    }

    /// Writes the file anew if its log has grown long. The record that made it so is done in any case.
    fn renew_in_time(&mut self) {
        if self.len_bytes < self.renew_bytes {
            return;
        }
        match self.renew() {
            Ok(()) => {}
            // There may be no room for two: the log grows on, and another try comes.
            Err(Failed::Undone(_)) => self.renew_bytes = self.len_bytes + self.log_bytes,
            Err(Failed::Unknown(error)) => drop(self.break_off("its directory can't be synced", &error)),
        }
    }
}

impl<D: Disk> Control for Store<D> {
    fn range(&mut self, range: &Range) -> Result<Page, ControlError> {
        self.check()?;
        self.table.read(range)
    }

    fn txn(&mut self, txn: &Txn) -> Result<Outcome, ControlError> {
        self.check()?;
        match self.table.judge(txn)? {
            Judged::Ends(outcome) => Ok(outcome),
            Judged::Writes(record) => {
                let revision = record.revision;
                self.write(record).map(|()| Outcome::Done(revision))
            }
        }
    }

    fn watch(&mut self, after: Revision) -> Result<Changes, ControlError> {
        self.check()?;
        self.table.since(after)
    }

    fn campaign(&mut self, name: &str, lease_ms: u64, now_ms: u64) -> Result<Office, ControlError> {
        self.check()?;
        if let Some(record) = self.table.stand(name, lease_ms, now_ms)? {
            self.write(record)?;
            self.table.take_office(name, lease_ms, now_ms);
        }
        Ok(self.table.office(now_ms))
    }

    fn snapshot(&mut self) -> Result<Snapshot, ControlError> {
        self.check()?;
        Ok(self.table.all())
    }
}
