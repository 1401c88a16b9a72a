//! All changes since a revision, exactly up to another one.
//!
//! etcd tells changes as a stream that does not end, and says nothing when there are no more. But each of its revisions
//! is the change of some key. So all keys are watched, those of others too: once a change of revision R was told, all
//! up to R were. R is what a linearizable read says at first. Only changes of this store's keys are kept.
//!
//! Of revisions that etcd has compacted it tells no change, or not all. So it is looked, before and when they have
//! come, whether it still has the revision that was watched from: if it has, none was missing.
//!
//! A long answer comes in fragments, which may cut a revision in two: then the last one that was begun does not count.

use super::http::{Connection, Until};
use super::members::{Trouble, Way};
use super::wire::{Answer, Event, Ranged, Said, Watched, coded, plain};
use super::{Etcd, RANGE};
use herd_core::control::{Change, Changes, ControlError, Revision};
use herd_core::limits::{CONTROL_PAGE_BYTES, ETCD_ANSWER_MAX_BYTES, ETCD_CALL_MS, ETCD_TRY_MS};
use serde_json::json;

const WATCH: &str = "/v3/watch";
/// The first revision of each etcd, at which there was nothing.
const FIRST: Revision = 1;

/// What has come.
struct Came {
    changes: Vec<Change>,
    bytes: usize,
    /// All changes up to here are there.
    whole: Revision,
}

impl Etcd {
    pub(super) fn changes(&mut self, after: Revision, until: &Until) -> Result<Changes, ControlError> {
        let now = self.revision(until)?;
        if after > now {
            return Err(ControlError::Gap(now));
        }
        let after = after.max(FIRST);
        if after >= now {
            return Ok(Changes { changes: Vec::new(), up_to: now });
        }
        if !self.has(after, until)? {
            return Err(self.gap(until));
        }
        // What it waits for in vain may be what was compacted meanwhile: there must be time to look.
        let came = self.stream(after, now, &until.at_most(ETCD_CALL_MS - ETCD_TRY_MS));
        if !self.has(after, until)? {
            return Err(self.gap(until));
        }
        let Came { mut changes, whole, .. } = came?;
        changes.retain(|change| change.revision <= whole);
        changes.sort_by(|a, b| (a.revision, &a.key).cmp(&(b.revision, &b.key)));
        Ok(Changes { changes, up_to: whole })
    }

    /// Whether etcd still has a revision.
    fn has(&mut self, revision: Revision, until: &Until) -> Result<bool, ControlError> {
        let body = json!({"key": coded(self.term_key()), "count_only": true, "revision": revision.to_string()});
        match self.members.ask::<Ranged>(Way::Reads, RANGE, &body, until) {
            Ok(_) => Ok(true),
            Err(Trouble::Past) => Ok(false),
            Err(trouble) => Err(trouble.into()),
        }
    }

    /// Reads changes until all up to `now` have come, or enough of them.
    fn stream(&mut self, after: Revision, now: Revision, until: &Until) -> Result<Came, ControlError> {
        let all = coded([0]);
        let start = (after + 1).to_string();
        let body = json!({"create_request": {"key": all, "range_end": all, "start_revision": start, "fragment": true}});
        let mut lines = Lines { connection: self.members.stream(WATCH, &body, until)?, ahead: Vec::new() };
        let mut came = Came { changes: Vec::new(), bytes: 0, whole: after };
        while came.whole < now && (came.whole == after || came.bytes < CONTROL_PAGE_BYTES) {
            let line = match lines.next(until) {
                Ok(line) => line,
                Err(_) if came.whole > after => break,
                Err(text) => return Err(ControlError::Unreachable(format!("etcd: {text}: see that it runs"))),
            };
            let said: Said<Watched> =
                serde_json::from_slice(&line).map_err(|_| self.members.broken("it tells changes in an unknown way"))?;
            if let Some(fault) = said.fault() {
                return Err(ControlError::Unreachable(format!("etcd: {}", plain(&fault.message))));
            }
            self.members.belongs(&said.header())?;
            let Some(watched) = said.result else { continue };
            if watched.canceled {
                let text = format!("etcd: it tells no more changes: {}", plain(&watched.cancel_reason));
                return Err(if watched.compact_revision.0 > 0 {
                    self.gap(until)
                } else {
                    ControlError::Unreachable(text)
                });
            }
            self.add(&mut came, watched, (after, now))?;
        }
        Ok(came)
    }

    fn add(&self, came: &mut Came, watched: Watched, (after, now): (Revision, Revision)) -> Result<(), ControlError> {
        let Some(last) = watched.events.last().map(|event| event.kv.mod_revision.0) else { return Ok(()) };
        let data = self.data().into_bytes();
        for Event { kind, kv } in watched.events {
            let revision = kv.mod_revision.0;
            if revision <= after || revision > now || !kv.key.0.starts_with(&data) {
                continue;
            }
            let key = self.key(&kv.key.0)?;
            came.bytes += key.len() + kv.value.0.len();
            let value = (kind != "DELETE").then(|| kv.value.0.into());
            came.changes.push(Change { revision, key, value });
            if came.bytes > ETCD_ANSWER_MAX_BYTES {
                return Err(self.members.broken("it tells of a change that is too large"));
            }
        }
        let whole = if watched.fragment { last.saturating_sub(1) } else { last };
        came.whole = came.whole.max(whole.min(now));
        Ok(())
    }
}

/// An answer line by line.
struct Lines {
    connection: Connection,
    ahead: Vec<u8>,
}

impl Lines {
    fn next(&mut self, until: &Until) -> Result<Vec<u8>, String> {
        let mut looked = 0;
        loop {
            if let Some(end) = self.ahead[looked..].iter().position(|byte| *byte == b'\n') {
                return Ok(self.ahead.drain(..=looked + end).collect());
            }
            looked = self.ahead.len();
            if looked > ETCD_ANSWER_MAX_BYTES {
                return Err("its answer is too long".into());
            }
            match self.connection.more(&mut self.ahead, until) {
                Ok(true) => {}
                Ok(false) => return Err("it tells no more changes".into()),
                Err(error) => return Err(error.to_string()),
            }
        }
    }
}
