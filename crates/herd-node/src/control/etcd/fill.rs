//! A control store that comes into an etcd whole (`herd_core::warden::moving`): first all of it but the key that makes
//! it a herd's, then, when the old store has its mark, that key.

use super::http::Until;
use super::members::Way;
use super::wire::{self, Decided, coded};
use super::{Etcd, TXN};
use herd_core::control::{Control, ControlError, Entry, Outcome, Snapshot, Txn, Write};
use herd_core::limits::{CONTROL_TXN_MAX_BYTES, MOVE_PREPARE_MS, WARDEN_BATCH_MAX};
use herd_core::place::HerdId;
use herd_core::warden::MoveId;
use herd_core::warden::moving::{COMING, Coming, Standing, beginning, standing, unbegun};
use serde_json::json;

/// Bytes of values that go in one transaction.
const BATCH_BYTES: usize = CONTROL_TXN_MAX_BYTES / 2;

impl Etcd {
    /// Puts the copy of that move here, as nobody's yet. Refused where there is a herd, this one too, or anything. It
    /// has a bound as a whole: the warden does nothing else meanwhile.
    pub(crate) fn prepare(&mut self, id: MoveId, herd: HerdId, copy: &Snapshot) -> Result<(), ControlError> {
        let invalid = |text: String| ControlError::Invalid(text);
        let until = self.members.within(MOVE_PREPARE_MS);
        let there = self.whole(&until)?;
        self.may_take(herd, &there)?;
        let (rest, coming) = unbegun(copy, id).map_err(invalid)?;
        let old: Vec<Write> = there.entries.iter().map(|entry| Write::Delete { key: entry.key.clone() }).collect();
        // What is there is taken away first, and none of it is a herd's.
        for part in old.chunks(WARDEN_BATCH_MAX) {
            self.write(part.to_vec(), &until)?;
        }
        self.write(vec![coming], &until)?;
        for part in batches(rest) {
            self.write(part, &until)?;
        }
        self.keep_term(copy.term, &until)?;
        // Nobody has begun a herd here meanwhile, and nobody does from now on: its head is there.
        match standing(&self.whole(&until)?.entries) {
            Ok(Standing::Coming(coming)) if coming.id == id => Ok(()),
            _ => Err(invalid("somebody else writes to the store in etcd: name another one".into())),
        }
    }

    /// The copy of that move becomes the herd's store; one that did so before is it still.
    pub(crate) fn begin(&mut self, id: MoveId) -> Result<(), ControlError> {
        let there = self.snapshot()?;
        match standing(&there.entries).map_err(ControlError::Broken)? {
            Standing::Open { came: Some(came), .. } if came == id => Ok(()),
            Standing::Coming(coming) if coming.id == id => self.begin_with(&coming, &there.entries),
            _ => Err(self.members.broken(&format!("the copy of the control store of move {} is gone", id.text()))),
        }
    }

    fn begin_with(&mut self, coming: &Coming, entries: &[Entry]) -> Result<(), ControlError> {
        let revision = entries.iter().find(|entry| entry.key == COMING).map_or(0, |entry| entry.revision);
        match self.txn(&beginning(coming, revision))? {
            Outcome::Done(_) => Ok(()),
            Outcome::Refused => Err(ControlError::Unreachable("it is written by somebody else: try again".into())),
        }
    }

    /// An error if what is there is, or may be, of use to somebody.
    fn may_take(&self, herd: HerdId, there: &Snapshot) -> Result<(), ControlError> {
        let name = self.prefix.trim_start_matches("herd/").trim_end_matches('/');
        let refused = |what: &str| {
            let todo = "name another one, as in etcd://HOST:PORT/NAME";
            Err(ControlError::Invalid(format!("the store '{name}' in etcd {what}: {todo}")))
        };
        match standing(&there.entries) {
            Ok(Standing::Empty) => Ok(()),
            Ok(Standing::Coming(coming)) if coming.herd == herd => Ok(()),
            Ok(Standing::Moved(mark)) if mark.herd == herd => Ok(()),
            Ok(Standing::Open { herd: there, .. }) if there == herd => {
                refused("is this herd's already, of another time")
            }
            Ok(_) => refused("is another herd's"),
            Err(_) => refused("has what is no herd's"),
        }
    }

    fn write(&mut self, writes: Vec<Write>, until: &Until) -> Result<(), ControlError> {
        match self.transact(&Txn { writes, ..Txn::default() }, until)? {
            Outcome::Done(_) => Ok(()),
            Outcome::Refused => Err(self.members.broken("it refuses what depends on nothing")),
        }
    }

    /// The next term that is won here is above that one. An error: somebody is in office here.
    fn keep_term(&mut self, term: u64, until: &Until) -> Result<(), ControlError> {
        let seen = self.seen(None, until)?;
        if seen.is_held() {
            return Err(ControlError::Invalid("the store in etcd has a warden: name another one".into()));
        }
        if seen.term >= term {
            return Ok(());
        }
        let key = self.term_key();
        let value = json!({"term": term, "name": "moved"}).to_string();
        let body = json!({
            "compare": [wire::at_revision(&key, seen.revision())],
            "success": [{"request_put": {"key": coded(&key), "value": coded(value)}}],
        });
        let told: Decided = self.members.ask(Way::Writes, TXN, &body, until)?;
        self.members.latest(&told.header)?;
        match told.succeeded {
            true => Ok(()),
            false => Err(ControlError::Invalid("the store in etcd has a warden: name another one".into())),
        }
    }
}

/// Puts of these entries, as many in one transaction as may be.
fn batches(entries: Vec<Entry>) -> Vec<Vec<Write>> {
    let (mut all, mut bytes) = (vec![Vec::new()], 0);
    for Entry { key, value, .. } in entries {
        bytes += key.len() + value.len();
        let last = all.last_mut().expect("there is one from the start");
        if last.len() >= WARDEN_BATCH_MAX || bytes > BATCH_BYTES && !last.is_empty() {
            bytes = key.len() + value.len();
            all.push(Vec::new());
        }
        all.last_mut().expect("as above").push(Write::Put { key, value });
    }
    all
}
