//! The office of warden in etcd: two keys below `warden/`.
//!
//! * `term`: the latest term, and who won it. It stays, so terms rise for ever.
//! * `office`: that term again, bound to a lease of etcd's. It is there as long as its winner holds the office: it goes
//!   when the lease runs out, or when it is resigned.
//!
//! Vacant -> (both are as they were read, and both are written) -> held -> (the lease runs out, or the holder takes
//! `office` away) -> vacant.
//!
//! # What holds
//!
//! * A term is one transaction's that compares both keys, so of two candidates one wins, and none while another holds
//!   the office.
//! * What a term guards compares `office` with it. So a term that was resigned, that was followed, or whose lease has
//!   run out, writes nothing, however late it comes.
//! * To renew writes nothing: the lease is kept alive, and after that a linearizable read shows that `office` still
//!   hangs on it.
//! * The lease says only who may stand for office. etcd begins it anew when it changes its own leader, and looks for
//!   what has run out each half second: then an office lasts so much longer, and nothing else comes of it.
//!
//! # What a crash leaves
//!
//! A lease that nothing hangs on, which runs out by itself; or an office that nobody renews, which ends with its lease.
//! A transaction that comes late finds `term` changed, or its lease gone, and does nothing; or it makes its candidate
//! the holder, who sees that when it stands the next time.

use super::http::Until;
use super::members::{Trouble, Way};
use super::wire::{self, Decided, Granted, Kept, Pair, Ranged, Said, coded};
use super::{Etcd, RANGE, TXN};
use herd_core::control::{ControlError, NUMBERS_END, Office, Revision, Term, check_key};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

const GRANT: &str = "/v3/lease/grant";
const KEEP_ALIVE: &str = "/v3/lease/keepalive";
/// How often the keys are read where they change meanwhile.
const LOOKS: usize = 3;

/// The lease of the office, and whose it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Held {
    name: String,
    lease: u64,
    /// What was asked for; etcd may have given more.
    ttl_s: u64,
}

/// The value of `term`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Winner {
    term: Term,
    name: String,
}

/// The two keys at one revision.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// The latest term.
    pub(super) term: Term,
    /// Who won it.
    name: Option<String>,
    /// Revision of `term`; 0: there is none.
    term_revision: Revision,
    /// Revision of `office`; 0: nobody holds it.
    office_revision: Revision,
    /// The lease it hangs on.
    lease: u64,
}

impl Seen {
    /// Whether somebody is in office.
    pub(super) fn is_held(&self) -> bool {
        self.office_revision > 0
    }

    /// Revision of the latest term; 0: there was none.
    pub(super) fn revision(&self) -> Revision {
        self.term_revision
    }

    fn office(&self) -> Office {
        let holder = self.name.clone().filter(|_| self.office_revision > 0);
        Office { term: self.term, holder }
    }
}

impl Etcd {
    pub(super) fn term_key(&self) -> String {
        format!("{}warden/term", self.prefix)
    }

    fn office_key(&self) -> String {
        format!("{}warden/office", self.prefix)
    }

    /// What compares that a term is in office.
    pub(super) fn in_office(&self, term: Term) -> Value {
        wire::has_value(&self.office_key(), &term.to_string())
    }

    /// Both keys, now or at a revision.
    pub(super) fn seen(&mut self, at: Option<Revision>, until: &Until) -> Result<Seen, ControlError> {
        let body = self.both(at);
        let told: Ranged = match self.members.ask(Way::Reads, RANGE, &body, until) {
            Err(Trouble::Past) => return Err(self.gap(until)),
            told => told?,
        };
        self.members.latest(&told.header)?;
        self.understood(told.kvs)
    }

    fn both(&self, at: Option<Revision>) -> Value {
        let prefix = format!("{}warden/", self.prefix);
        let revision = at.unwrap_or(0).to_string();
        json!({"key": coded(&prefix), "range_end": coded(wire::end_of(&prefix)), "revision": revision})
    }

    fn understood(&self, pairs: Vec<Pair>) -> Result<Seen, ControlError> {
        let (term_key, office_key) = (self.term_key().into_bytes(), self.office_key().into_bytes());
        let (mut seen, mut value) = (Seen::default(), Vec::new());
        for pair in pairs {
            let revision = pair.mod_revision.0;
            if pair.key.0 == term_key {
                let winner: Winner = serde_json::from_slice(&pair.value.0)
                    .map_err(|error| self.members.broken(&format!("key {}: {error}", self.term_key())))?;
                (seen.term, seen.name, seen.term_revision) = (winner.term, Some(winner.name), revision);
            } else if pair.key.0 == office_key {
                (seen.office_revision, seen.lease, value) = (revision, pair.lease.0, pair.value.0);
            }
        }
        let is_name = seen.name.as_ref().is_none_or(|name| check_key(name).is_ok());
        if !is_name || seen.term >= NUMBERS_END || seen.office_revision > 0 && value != seen.term.to_string().as_bytes()
        {
            let text = format!("keys {} and {} are not what Herd wrote", self.term_key(), self.office_key());
            return Err(self.members.broken(&text));
        }
        Ok(seen)
    }

    /// Stands for the office, renews or resigns it.
    pub(super) fn stand(&mut self, name: &str, lease_ms: u64, until: &Until) -> Result<Office, ControlError> {
        check_key(name)?;
        let ttl_s = lease_ms.div_ceil(1_000);
        let known = self.held.clone().filter(|held| held.name == name && lease_ms > 0);
        let mut alive = match known {
            Some(held) => self.keep_alive(held.lease, until)?.then_some(held),
            None => None,
        };
        for _ in 0..LOOKS {
            let seen = self.seen(None, until)?;
            match &seen.name {
                Some(holder) if seen.office_revision > 0 && holder != name => return Ok(seen.office()),
                Some(_) if seen.office_revision > 0 => {}
                _ if lease_ms == 0 => return Ok(seen.office()),
                _ => return self.take(name, &seen, seen.term + 1, ttl_s, until),
            }
            match alive.take() {
                _ if lease_ms == 0 => return self.resign(&seen, until),
                Some(held) if held.lease == seen.lease && held.ttl_s == ttl_s => {
                    self.held = Some(held);
                    return Ok(seen.office());
                }
                Some(held) if held.lease == seen.lease => return self.take(name, &seen, seen.term, ttl_s, until),
                _ => {}
            }
            // It is ours, by a lease that we do not know: that of a call whose answer was lost, or of before a restart.
            if !self.keep_alive(seen.lease, until)? {
                return self.take(name, &seen, seen.term + 1, ttl_s, until);
            }
            alive = Some(Held { name: name.into(), lease: seen.lease, ttl_s });
        }
        Err(ControlError::Unreachable("the office of warden changes hands: try again".into()))
    }

    /// Begins a lease anew; false: it is there no more. That writes nothing, so it does not matter whether it was done.
    fn keep_alive(&mut self, lease: u64, until: &Until) -> Result<bool, ControlError> {
        let body = json!({"ID": lease.to_string()});
        match self.members.ask::<Said<Kept>>(Way::Reads, KEEP_ALIVE, &body, until) {
            Ok(said) => Ok(said.result.is_some_and(|kept| kept.ttl.0 > 0)),
            Err(Trouble::NoLease) => Ok(false),
            Err(trouble) => Err(trouble.into()),
        }
    }

    /// Takes the office with a lease of its own, if all is still as it was seen.
    fn take(&mut self, name: &str, seen: &Seen, term: Term, ttl_s: u64, until: &Until) -> Result<Office, ControlError> {
        self.held = None;
        // One that is lost runs out by itself: nothing was done.
        let grant = json!({"TTL": ttl_s.to_string(), "ID": "0"});
        let granted: Granted = self.members.ask(Way::Reads, GRANT, &grant, until)?;
        let lease = granted.id.0;
        if lease == 0 {
            // The office would never end.
            return Err(self.members.broken("it grants no lease"));
        }
        let winner = serde_json::to_string(&Winner { term, name: name.into() }).expect("plain data");
        let (term_key, office_key) = (self.term_key(), self.office_key());
        let body = json!({
            "compare": [
                wire::at_revision(&term_key, seen.term_revision),
                wire::at_revision(&office_key, seen.office_revision),
            ],
            "success": [
                {"request_put": {"key": coded(&term_key), "value": coded(winner)}},
                {"request_put": {
                    "key": coded(&office_key), "value": coded(term.to_string()), "lease": lease.to_string(),
                }},
            ],
            "failure": [{"request_range": self.both(None)}],
        });
        let told: Decided = self.members.ask(Way::Writes, TXN, &body, until)?;
        self.members.latest(&told.header)?;
        if told.succeeded {
            self.held = Some(Held { name: name.into(), lease, ttl_s });
            return Ok(Office { term, holder: Some(name.into()) });
        }
        self.instead(told)
    }

    /// Takes `office` away, if it is the one that was seen. Its lease runs out by itself.
    fn resign(&mut self, seen: &Seen, until: &Until) -> Result<Office, ControlError> {
        self.held = None;
        let office_key = self.office_key();
        let body = json!({
            "compare": [wire::at_revision(&office_key, seen.office_revision)],
            "success": [{"request_delete_range": {"key": coded(&office_key)}}],
            "failure": [{"request_range": self.both(None)}],
        });
        let told: Decided = self.members.ask(Way::Writes, TXN, &body, until)?;
        self.members.latest(&told.header)?;
        match told.succeeded {
            true => Ok(Office { term: seen.term, holder: None }),
            false => self.instead(told),
        }
    }

    /// What is there in place of what was seen.
    fn instead(&self, told: Decided) -> Result<Office, ControlError> {
        let there = told.responses.into_iter().find_map(|done| done.response_range);
        self.understood(there.map(|ranged| ranged.kvs).unwrap_or_default()).map(|seen| seen.office())
    }
}
