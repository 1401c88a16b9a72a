//! The control store in etcd, over its v3 gateway (HTTP and JSON), for a herd whose map must survive any machine.
//!
//! # Where things lie
//!
//! All keys begin with `herd/NAME/`, the store's own ([`Address`]). What the warden keeps lies below `data/`, its
//! office below `warden/` (FORMATS.md, "In etcd"). Revisions are those of the whole etcd: they rise by more than one
//! where others write there too.
//!
//! # What holds
//!
//! * A read is linearizable, never one member's alone. A transaction that only asks has a read in it for that reason:
//!   etcd answers one without any from what one member has.
//! * A transaction is one of etcd's: its comparisons, and that of the term (`office`), decide about all writes at once.
//! * `history`: how all changes up to a revision are known to have come.
//! * `members`: what an answer that does not come means.
//! * Each call ends in time ([`ETCD_CALL_MS`]), and soon when the node is to stop.
//!
//! Callers: how a herd begins (`warden/begin.rs`), and its warden's thread.

mod address;
mod fill;
mod history;
mod http;
mod members;
mod office;
#[cfg(test)]
pub(crate) mod tests;
mod version;
mod wire;

pub use address::Address;
pub(crate) use http::Halt;

use herd_core::control::{
    Changes, Control, ControlError, Entry, Office, Outcome, Page, Range, Revision, Snapshot, Txn, Write, check_key,
};
use herd_core::limits::{CONTROL_MAX_BYTES, ETCD_CALL_MS, ETCD_PAGE_ENTRIES, ETCD_SNAPSHOT_MS, ETCD_START_MS};
use http::Until;
use members::{Members, Trouble, Way};
use office::Held;
use serde_json::{Value, json};
use std::time::Duration;
use wire::{Decided, Pair, Ranged, coded, plain};

const RANGE: &str = "/v3/kv/range";
const TXN: &str = "/v3/kv/txn";
/// How soon an etcd that does not answer yet is asked again.
const START_AGAIN: Duration = Duration::from_millis(200);
/// How often a snapshot is begun anew where etcd forgets its revision meanwhile.
const SNAPSHOT_TRIES: usize = 3;

/// A control store in etcd.
#[derive(Debug)]
pub(crate) struct Etcd {
    members: Members,
    /// `herd/NAME/`.
    prefix: String,
    /// The lease of the office, while it is known to be ours.
    held: Option<Held>,
}

impl Etcd {
    /// Opens it: one of its members answers when this returns. Once `halt` is set calls end soon.
    pub(crate) fn open(address: &Address, halt: Halt) -> Result<Self, ControlError> {
        let all = Until::within(ETCD_START_MS, &halt);
        loop {
            match Self::open_within(address, ETCD_START_MS, halt.clone()) {
                Err(ControlError::Unreachable(_)) if !all.is_over() => std::thread::sleep(START_AGAIN),
                opened => return opened,
            }
        }
    }

    /// As [`Etcd::open`], of one that is there already: it is asked once, and takes as long as two calls at most.
    pub(crate) fn open_at_once(address: &Address, halt: Halt) -> Result<Self, ControlError> {
        Self::open_within(address, ETCD_CALL_MS, halt)
    }

    /// Its names are looked up for so long at most.
    fn open_within(address: &Address, names_ms: u64, halt: Halt) -> Result<Self, ControlError> {
        let mut members = Members::new(address, Duration::from_millis(names_ms), halt)?;
        let until = members.within(ETCD_CALL_MS);
        members.check(&until)?;
        Ok(Self { members, prefix: address.prefix(), held: None })
    }

    /// Waits until it reads, for as long as a node that starts waits for etcd: one whose members have just been started
    /// tells who it is before it has a leader.
    pub(crate) fn wait(&mut self) -> Result<(), ControlError> {
        let all = self.members.within(ETCD_START_MS);
        loop {
            match self.revision(&self.until()) {
                Err(ControlError::Unreachable(_)) if !all.is_over() => std::thread::sleep(START_AGAIN),
                read => return read.map(drop),
            }
        }
    }

    /// Below which the keys of the store's users lie.
    fn data(&self) -> String {
        format!("{}data/", self.prefix)
    }

    fn until(&self) -> Until {
        self.members.within(ETCD_CALL_MS)
    }

    /// The latest revision.
    fn revision(&mut self, until: &Until) -> Result<Revision, ControlError> {
        let body = json!({"key": coded(self.term_key()), "count_only": true});
        let told: Ranged = self.members.ask(Way::Reads, RANGE, &body, until)?;
        self.members.latest(&told.header)
    }

    /// The error that a revision is no longer there, or not yet.
    fn gap(&mut self, until: &Until) -> ControlError {
        self.revision(until).map_or_else(|error| error, ControlError::Gap)
    }

    fn read(&mut self, range: &Range, until: &Until) -> Result<Page, ControlError> {
        let Some(body) = self.range_body(range) else { return Err(self.gap(until)) };
        let told: Ranged = match self.members.ask(Way::Reads, RANGE, &body, until) {
            Err(Trouble::Past) => return Err(self.gap(until)),
            told => told?,
        };
        let latest = self.members.latest(&told.header)?;
        let entries = told.kvs.into_iter().map(|pair| self.entry(pair, latest)).collect::<Result<Vec<_>, _>>()?;
        let first = range.after.as_deref().unwrap_or_default();
        let keys = || entries.iter().map(|entry| entry.key.as_str());
        if !std::iter::once(first).chain(keys()).is_sorted_by(|a, b| a < b)
            || !keys().all(|key| key.starts_with(&range.prefix))
        {
            return Err(self.members.broken("it tells other keys than it was asked for"));
        }
        let more = told.more && !entries.is_empty();
        Ok(Page { revision: range.at.unwrap_or(latest), entries, more })
    }

    /// `None`: etcd was never at that revision.
    fn range_body(&self, range: &Range) -> Option<Value> {
        let prefix = format!("{}{}", self.data(), range.prefix);
        let first = match &range.after {
            Some(after) if after.as_str() >= range.prefix.as_str() => format!("{}{after}\0", self.data()),
            _ => prefix.clone(),
        };
        let end = wire::end_of(&prefix);
        // etcd has nothing behind an end that is not behind the start; it would take some of these for errors.
        let end = if first.as_bytes() < end.as_slice() { end } else { [first.as_bytes(), b"\0"].concat() };
        let mut body = json!({"key": coded(first), "range_end": coded(end), "limit": ETCD_PAGE_ENTRIES.to_string()});
        match range.at {
            Some(0) => return None,
            Some(at) => body["revision"] = json!(at.to_string()),
            None => {}
        }
        Some(body)
    }

    /// What a pair of etcd's is in this store, which is at that revision.
    fn entry(&self, pair: Pair, latest: Revision) -> Result<Entry, ControlError> {
        let Pair { key, mod_revision, value, .. } = pair;
        if !(1..=latest).contains(&mod_revision.0) {
            return Err(self.members.broken("it tells of a key from a revision that never was"));
        }
        Ok(Entry { key: self.key(&key.0)?, value: value.0.into(), revision: mod_revision.0 })
    }

    fn key(&self, key: &[u8]) -> Result<String, ControlError> {
        let text = std::str::from_utf8(key).ok().and_then(|key| key.strip_prefix(&self.data()));
        let text = text.filter(|key| check_key(key).is_ok());
        let bad = || {
            let key = plain(&key.escape_ascii().to_string());
            self.members.broken(&format!("key {key} is not Herd's: take it away, and leave these keys to Herd"))
        };
        text.map(str::to_owned).ok_or_else(bad)
    }

    /// A transaction that only asks.
    fn asking(&self, compares: Value) -> Value {
        // Without a read etcd takes it for one that may be answered by what one member has.
        let read = json!([{"request_range": {"key": coded(self.term_key()), "count_only": true}}]);
        json!({"compare": compares, "success": read, "failure": read})
    }

    /// The error of a write for which etcd says that it has no room: it refuses it without doing it, or does it as the
    /// last one and says so all the same. Either way it is over, so etcd tells which it was: one that puts a key that
    /// it compares was not done while all that it compares holds, as a put gives its key a new revision.
    fn without_room(&mut self, txn: &Txn, compares: &Value, text: String, until: &Until) -> ControlError {
        let is_put =
            |key: &str| txn.writes.iter().any(|write| matches!(write, Write::Put { key: put, .. } if put == key));
        if !txn.compares.iter().any(|compare| is_put(&compare.key)) {
            return ControlError::Unknown(text);
        }
        let asked = self.members.ask(Way::Reads, TXN, &self.asking(compares.clone()), until);
        let holds = asked.map_err(ControlError::from).and_then(|told: Decided| {
            self.members.latest(&told.header)?;
            Ok(told.succeeded)
        });
        if holds == Ok(true) { ControlError::Full(text) } else { ControlError::Unknown(text) }
    }

    /// All there is at one revision; [`ControlError::Gap`]: it was forgotten meanwhile.
    fn all(&mut self, until: &Until) -> Result<Snapshot, ControlError> {
        let (mut range, mut snapshot, mut bytes) = (Range::default(), Snapshot::default(), 0);
        loop {
            let page = self.read(&range, until)?;
            bytes += page.entries.iter().map(|entry| entry.key.len() + entry.value.len()).sum::<usize>();
            if bytes > CONTROL_MAX_BYTES {
                return Err(self.members.broken(&format!("the store has over {CONTROL_MAX_BYTES} bytes")));
            }
            snapshot.revision = page.revision;
            snapshot.entries.extend(page.entries);
            if !page.more {
                break;
            }
            range.at = Some(page.revision);
            range.after = snapshot.entries.last().map(|entry| entry.key.clone());
        }
        snapshot.term = self.seen(Some(snapshot.revision), until)?.term;
        Ok(snapshot)
    }

    /// As [`Control::snapshot`], until then.
    fn whole(&mut self, until: &Until) -> Result<Snapshot, ControlError> {
        for _ in 1..SNAPSHOT_TRIES {
            match self.all(until) {
                Err(ControlError::Gap(_)) => {}
                done => return done,
            }
        }
        self.all(until)
    }
}

impl Control for Etcd {
    fn range(&mut self, range: &Range) -> Result<Page, ControlError> {
        self.read(range, &self.until())
    }

    fn txn(&mut self, txn: &Txn) -> Result<Outcome, ControlError> {
        txn.check()?;
        let data = self.data();
        let mut compares: Vec<Value> = txn.compares.iter().map(|compare| wire::compare(&data, compare)).collect();
        compares.extend(txn.term.map(|term| self.in_office(term)));
        let mut writes: Vec<&Write> = txn.writes.iter().collect();
        // In a revision of etcd changes have the order in which they were made.
        writes.sort_by_key(|write| write.key());
        let (way, body) = match writes.is_empty() {
            false => {
                let writes: Vec<Value> = writes.into_iter().map(|write| wire::write(&data, write)).collect();
                (Way::Writes, json!({"compare": compares, "success": writes}))
            }
            true => (Way::Reads, self.asking(json!(compares))),
        };
        let until = self.until();
        let told: Decided = match self.members.ask(way, TXN, &body, &until) {
            Err(Trouble::NoRoom(text)) => return Err(self.without_room(txn, &body["compare"], text, &until)),
            told => told?,
        };
        let revision = self.members.latest(&told.header)?;
        Ok(if told.succeeded { Outcome::Done(revision) } else { Outcome::Refused })
    }

    fn watch(&mut self, after: Revision) -> Result<Changes, ControlError> {
        self.changes(after, &self.until())
    }

    fn campaign(&mut self, name: &str, lease_ms: u64, _now_ms: u64) -> Result<Office, ControlError> {
        self.stand(name, lease_ms, &self.until())
    }

    fn snapshot(&mut self) -> Result<Snapshot, ControlError> {
        let until = self.members.within(ETCD_SNAPSHOT_MS);
        self.whole(&until)
    }
}
