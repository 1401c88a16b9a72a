//! The embedded control store: a [`Table`], and a file that has every record before the table does.
//!
//! * What was answered is on the disk. A record is appended and synced, then applied, then answered.
//! * A record that could not be written is cut off again: nothing was done. Where even that fails, or the disk does not
//!   say whether it has the record, the answer is `unknown` and the store refuses all further calls: only reading the
//!   file anew tells, and a new process does that.
//! * Opening writes the file anew, so that nothing is gone on from that is not on the disk, and a place that can't be
//!   written to is found at the start. The file is written anew as well when its log has outgrown what it holds.
//! * A file has one owner: a lock ends with its process, however that ends.
//!
//! Callers: what drives the warden.

use super::disk::{Directory, Disk, Failed};
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
pub fn open(path: &Path) -> Result<Box<dyn Control + Send>, OpenError> {
    let at = format!("control store in {}", path.display());
    let no_place = |error: io::Error| {
        OpenError::NoPlace(format!("{at}: {error}: give the node a directory that it can write to with --data"))
    };
    let Some(directory) = Directory::lock(path).map_err(no_place)? else {
        let text = format!("{at}: another process has it: give each node a --data, or a --name, of its own");
        return Err(OpenError::InUse(text));
    };
    match Store::open(directory, CONTROL_LOG_BYTES) {
        Ok(store) => Ok(Box::new(store)),
        Err(Opening::Disk(error)) => Err(no_place(error)),
        Err(Opening::Content(text)) => Err(OpenError::Damaged(format!(
            "{at}: {text}: put back a copy of it; or move it away, and the herd begins anew, with nothing in it"
        ))),
    }
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
    /// How long the log may grow at least.
    log_bytes: u64,
    /// The file is written anew when it has so many bytes.
    renew_bytes: u64,
    /// Why no call is taken any more.
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
        let mut store = Self { table, disk, len_bytes: 0, log_bytes, renew_bytes: 0, broken: None };
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

    /// An error once nothing can be relied upon.
    fn check(&self) -> Result<(), ControlError> {
        self.broken.clone().map_or(Ok(()), |text| Err(ControlError::Broken(text)))
    }

    /// From now on all calls are refused.
    fn break_off(&mut self, what: &str, error: &io::Error) -> ControlError {
        let text = format!("{what}: {error}: when the disk is sound, start this node again");
        self.broken = Some(text.clone());
        ControlError::Unknown(text)
    }

    /// Makes a record last, then applies it.
    fn write(&mut self, next: Record) -> Result<(), ControlError> {
        let bytes = record(&next);
        if self.len_bytes + bytes.len() as u64 > CONTROL_FILE_MAX_BYTES {
            let text = format!("its file of {} bytes can't be written anew: see to its disk", self.len_bytes);
            return Err(ControlError::Full(text));
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
