//! The rules of a control store as a value, without a disk.
//!
//! A call is first judged, which changes nothing and gives a [`Record`] if something is to be written; then the record
//! is applied. Between the two the embedded store makes it last. So the file and the memory never differ by more than
//! the last record, and what is in the file after a restart is what was judged before.
//!
//! Callers: the embedded store, simulations, a herd of one without a writable place.

use super::{
    Change, Changes, Control, ControlError, Entry, NUMBERS_END, Office, Outcome, Page, Range, Revision, Snapshot, Term,
    Txn, Write, check_key,
};
use crate::bugs::{Bug, has};
use crate::limits::{CONTROL_HISTORY_BYTES, CONTROL_MAX_BYTES, CONTROL_PAGE_BYTES};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

/// What an entry costs besides key and value, about.
const ENTRY_BYTES: usize = 64;

/// One write: what makes a table of the one before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The revision it makes.
    pub revision: Revision,
    /// The term from then on.
    pub term: Term,
    /// The writes, by rising key; none where only the term rises.
    pub writes: Vec<Write>,
}

/// What becomes of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Judged {
    /// It ends so, without a write.
    Ends(Outcome),
    /// It holds; this is to be applied.
    Writes(Record),
}

#[derive(Clone, Debug)]
struct Held {
    value: Arc<[u8]>,
    revision: Revision,
}

#[derive(Clone, Debug)]
struct Holder {
    name: String,
    until_ms: u64,
}

/// A control store in memory.
#[derive(Clone, Debug, Default)]
pub struct Table {
    revision: Revision,
    term: Term,
    entries: BTreeMap<String, Held>,
    /// Of all entries, with what they cost.
    size_bytes: usize,
    /// Who holds the office, also when its lease has run out; `None`: nobody since the start, or it was resigned.
    holder: Option<Holder>,
    /// The latest changes, all of each revision above `forgotten`.
    history: VecDeque<Change>,
    history_bytes: usize,
    forgotten: Revision,
}

impl Table {
    /// What a snapshot holds; nobody is in office. An error if its numbers or keys are out of order or out of range.
    pub fn restored(snapshot: Snapshot) -> Result<Self, ControlError> {
        let invalid = |text: &str| Err(ControlError::Invalid(text.into()));
        if snapshot.revision.max(snapshot.term) >= NUMBERS_END {
            return invalid("a revision or term out of range");
        }
        if !snapshot.entries.is_sorted_by(|a, b| a.key < b.key) {
            return invalid("keys out of order");
        }
        let (revision, term) = (snapshot.revision, snapshot.term);
        let mut table = Self { revision, term, forgotten: revision, ..Self::default() };
        for Entry { key, value, revision } in snapshot.entries {
            check_key(&key)?;
            if !(1..=table.revision).contains(&revision) {
                return invalid("an entry of a later revision");
            }
            table.size_bytes += key.len() + value.len() + ENTRY_BYTES;
            table.entries.insert(key, Held { value, revision });
        }
        Ok(table)
    }

    /// The latest revision.
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// The latest term.
    pub fn term(&self) -> Term {
        self.term
    }

    /// What it holds, overhead included.
    pub fn size_bytes(&self) -> usize {
        self.size_bytes
    }

    /// [`Control::range`].
    pub fn read(&self, range: &Range) -> Result<Page, ControlError> {
        let revision = range.at.unwrap_or(self.revision);
        // It has the past only where nothing has changed since.
        let changed = |change: &Change| change.revision > revision && change.key.starts_with(&range.prefix);
        if revision > self.revision || revision < self.forgotten || self.history.iter().any(changed) {
            return Err(ControlError::Gap(self.revision));
        }
        let from = match &range.after {
            Some(after) if after.as_str() >= range.prefix.as_str() => Bound::Excluded(after.as_str()),
            _ => Bound::Included(range.prefix.as_str()),
        };
        let mut found = self.entries.range::<str, _>((from, Bound::Unbounded));
        let mut page = Page { revision, entries: Vec::new(), more: false };
        let mut bytes = 0;
        while let Some((key, held)) = found.next().filter(|(key, _)| key.starts_with(&range.prefix)) {
            page.more = bytes >= CONTROL_PAGE_BYTES;
            if page.more {
                break;
            }
            bytes += key.len() + held.value.len() + ENTRY_BYTES;
            page.entries.push(entry(key, held));
        }
        Ok(page)
    }

    /// What becomes of a transaction; changes nothing.
    pub fn judge(&self, txn: &Txn) -> Result<Judged, ControlError> {
        txn.check()?;
        let is_present = |term| term == self.term || has(Bug::TwoWardens);
        let in_office = txn.term.is_none_or(|term| self.holder.is_some() && is_present(term));
        let holds = |key: &str, revision| self.entries.get(key).map_or(0, |held| held.revision) == revision;
        if !in_office || !txn.compares.iter().all(|compare| holds(&compare.key, compare.revision)) {
            return Ok(Judged::Ends(Outcome::Refused));
        }
        let effective = |write: &&Write| matches!(write, Write::Put { .. }) || self.entries.contains_key(write.key());
        let mut writes: Vec<Write> = txn.writes.iter().filter(effective).cloned().collect();
        if writes.is_empty() {
            return Ok(Judged::Ends(Outcome::Done(self.revision)));
        }
        writes.sort_by(|a, b| a.key().cmp(b.key()));
        self.check_room(&writes)?;
        Ok(Judged::Writes(Record { revision: self.revision + 1, term: self.term, writes }))
    }

    fn check_room(&self, writes: &[Write]) -> Result<(), ControlError> {
        let (mut more, mut less) = (0, 0);
        for write in writes {
            less += self.entries.get(write.key()).map_or(0, |held| size(write.key(), &held.value));
            if let Write::Put { key, value } = write {
                more += size(key, value);
            }
        }
        if more > less && self.size_bytes + more - less > CONTROL_MAX_BYTES {
            return Err(ControlError::Full(format!("it holds {} bytes, the most it may", self.size_bytes)));
        }
        Ok(())
    }

    /// Renews, resigns, or finds another in office: what writes nothing. A record: the office is free, and `name` has
    /// it by [`take_office`](Self::take_office) once the record is applied.
    pub fn stand(&mut self, name: &str, lease_ms: u64, now_ms: u64) -> Result<Option<Record>, ControlError> {
        check_key(name)?;
        match &mut self.holder {
            Some(holder) if holder.name == name && lease_ms == 0 => self.holder = None,
            Some(holder) if holder.name == name && holder.until_ms > now_ms => {
                holder.until_ms = now_ms.saturating_add(lease_ms);
            }
            Some(holder) if holder.until_ms > now_ms => {}
            _ if lease_ms == 0 => {}
            _ => {
                let (revision, term) = (self.revision + 1, self.term + 1);
                return Ok(Some(Record { revision, term, writes: Vec::new() }));
            }
        }
        Ok(None)
    }

    /// After [`stand`](Self::stand) gave a record and it was applied.
    pub fn take_office(&mut self, name: &str, lease_ms: u64, now_ms: u64) {
        self.holder = Some(Holder { name: name.into(), until_ms: now_ms.saturating_add(lease_ms) });
    }

    /// The office at a time.
    pub fn office(&self, now_ms: u64) -> Office {
        let holder = self.holder.as_ref().filter(|holder| holder.until_ms > now_ms);
        Office { term: self.term, holder: holder.map(|holder| holder.name.clone()) }
    }

    /// Makes the write.
    pub fn apply(&mut self, record: Record) {
        let Record { revision, term, writes } = record;
        (self.revision, self.term) = (revision, term);
        for write in writes {
            let (key, value) = match write {
                Write::Put { key, value } => (key, Some(value)),
                Write::Delete { key } => (key, None),
            };
            let old = match &value {
                Some(value) => self.entries.insert(key.clone(), Held { value: value.clone(), revision }),
                None => self.entries.remove(&key),
            };
            self.size_bytes += value.as_ref().map_or(0, |value| size(&key, value));
            self.size_bytes -= old.map_or(0, |old| size(&key, &old.value));
            self.history_bytes += size(&key, value.as_deref().unwrap_or_default());
            self.history.push_back(Change { revision, key, value });
        }
        self.forget();
    }

    /// Drops the oldest revisions while there are too many, but never the latest.
    fn forget(&mut self) {
        while self.history_bytes > CONTROL_HISTORY_BYTES
            && let Some(oldest) = self.history.front().map(|change| change.revision)
            && oldest < self.revision
        {
            while let Some(change) = self.history.pop_front_if(|change| change.revision == oldest) {
                self.history_bytes -= size(&change.key, change.value.as_deref().unwrap_or_default());
            }
            self.forgotten = oldest;
        }
    }

    /// [`Control::watch`].
    pub fn since(&self, after: Revision) -> Result<Changes, ControlError> {
        if after > self.revision || after < self.forgotten {
            return Err(ControlError::Gap(self.revision));
        }
        let first = self.history.partition_point(|change| change.revision <= after);
        let (mut changes, mut bytes) = (Vec::<Change>::new(), 0);
        for change in self.history.range(first..) {
            if bytes >= CONTROL_PAGE_BYTES
                && let Some(last) = changes.last().filter(|last| last.revision < change.revision)
            {
                let up_to = last.revision;
                return Ok(Changes { changes, up_to });
            }
            bytes += size(&change.key, change.value.as_deref().unwrap_or_default());
            changes.push(change.clone());
        }
        Ok(Changes { changes, up_to: self.revision })
    }

    /// [`Control::snapshot`].
    pub fn all(&self) -> Snapshot {
        let entries = self.entries.iter().map(|(key, held)| entry(key, held)).collect();
        Snapshot { revision: self.revision, term: self.term, entries }
    }
}

impl Control for Table {
    fn range(&mut self, range: &Range) -> Result<Page, ControlError> {
        self.read(range)
    }

    fn txn(&mut self, txn: &Txn) -> Result<Outcome, ControlError> {
        match self.judge(txn)? {
            Judged::Ends(outcome) => Ok(outcome),
            Judged::Writes(record) => {
                self.apply(record);
                Ok(Outcome::Done(self.revision))
            }
        }
    }

    fn watch(&mut self, after: Revision) -> Result<Changes, ControlError> {
        self.since(after)
    }

    fn campaign(&mut self, name: &str, lease_ms: u64, now_ms: u64) -> Result<Office, ControlError> {
        if let Some(record) = self.stand(name, lease_ms, now_ms)? {
            self.apply(record);
            self.take_office(name, lease_ms, now_ms);
        }
        Ok(self.office(now_ms))
    }

    fn snapshot(&mut self) -> Result<Snapshot, ControlError> {
        Ok(self.all())
    }
}

fn size(key: &str, value: &[u8]) -> usize {
    key.len() + value.len() + ENTRY_BYTES
}

fn entry(key: &str, held: &Held) -> Entry {
    Entry { key: key.into(), value: held.value.clone(), revision: held.revision }
}
