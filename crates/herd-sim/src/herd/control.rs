//! A control store in virtual time: a table, and between it and whoever calls it a network that is slow, loses answers,
//! or is not there. What a call does it does at one moment, which may lie behind its answer.

use super::plan::Trouble;
use crate::random::Random;
use herd_core::control::{Control, ControlError, Page, Table, Term, Txn};
use herd_core::limits::OFFICE_LEASE_MS;
use herd_core::place::Map;
use herd_core::warden::{Call, Reply, map_in};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Entries of a page: few, so that others write between two of them.
const PAGE: usize = 3;
const MS: u64 = 1_000_000;

/// What is said where a write is done whose warden is not in office.
pub(crate) const TWO_WARDENS: &str = "wrote the map in a term that";

/// A call on its way.
struct Flying {
    number: u64,
    who: String,
    call: Call,
    /// By the caller's clock.
    now_ms: u64,
    /// When it is done; `None`: never.
    done_ns: Option<u64>,
}

/// What a caller knows of its call.
pub(super) struct Ticket {
    number: u64,
    /// When it is answered.
    until_ns: u64,
    /// What it is answered, whatever was done.
    fate: Option<ControlError>,
}

/// See the module.
pub(super) struct Store {
    table: Table,
    random: Random,
    /// It lies beside its one warden, and dies with it; else it has a clock of its own, and wardens stand for office.
    pub(super) is_embedded: bool,
    flying: Vec<Flying>,
    replies: BTreeMap<u64, Result<Reply, ControlError>>,
    calls: u64,
    /// What was due by then is done, ns.
    passed_ns: u64,
    /// Until when it has which trouble, ns.
    troubles: BTreeMap<Trouble, u64>,
    /// Who wrote in each term.
    wrote: BTreeMap<Term, String>,
    /// The map that it has, and whether the herd may hold objects; and whether that is news.
    pub(super) map: Option<(Arc<Map>, bool)>,
    pub(super) has_news: bool,
    /// What is wrong.
    pub(super) wrong: Option<String>,
}

impl Store {
    pub(super) fn new(seed: u64, is_embedded: bool) -> Self {
        Self {
            table: Table::default(),
            random: Random::new(seed ^ 0x57_08E0),
            is_embedded,
            flying: Vec::new(),
            replies: BTreeMap::new(),
            calls: 0,
            passed_ns: 0,
            troubles: BTreeMap::new(),
            wrote: BTreeMap::new(),
            map: None,
            has_news: false,
            wrong: None,
        }
    }

    /// It has this trouble until then.
    pub(super) fn ail(&mut self, trouble: Trouble, until_ns: u64) {
        self.troubles.insert(trouble, until_ns);
    }

    /// Nothing ails it any more.
    pub(super) fn heal(&mut self) {
        self.troubles.clear();
    }

    pub(super) fn has(&self, trouble: Trouble, now_ns: u64) -> bool {
        self.troubles.get(&trouble).is_some_and(|until_ns| *until_ns > now_ns)
    }

    /// Begins a call of a process.
    pub(super) fn begin(&mut self, who: &str, call: Call, now_ms: u64, now_ns: u64) -> Ticket {
        self.calls += 1;
        let random = &mut self.random;
        let mut some = |least: u64, most: u64| (least + random.below(most - least)) * MS;
        let (there_ns, back_ns) = if self.troubles.get(&Trouble::Slow).is_some_and(|until_ns| *until_ns > now_ns) {
            (some(25, 750), some(25, 750))
        } else {
            (some(0, 4), some(0, 4))
        };
        let late_ns = some(100, 3_000);
        let (mut done_ns, until_ns) = (Some(now_ns + there_ns), now_ns + there_ns + back_ns);
        let mut fate = None;
        if self.has(Trouble::Gone, now_ns) {
            (done_ns, fate) = (None, Some(ControlError::Unreachable("it is gone".into())));
        } else if self.has(Trouble::Lossy, now_ns) && self.random.chance(40) {
            fate = Some(ControlError::Unknown("its answer is lost".into()));
            done_ns = match self.random.below(3) {
                0 => None,
                1 if !self.is_embedded => Some(until_ns + late_ns),
                _ => done_ns,
            };
        }
        let number = self.calls;
        self.flying.push(Flying { number, who: who.into(), call, now_ms, done_ns });
        Ticket { number, until_ns, fate }
    }

    /// Does what is due.
    pub(super) fn pass(&mut self, now_ns: u64) {
        self.passed_ns = now_ns;
        self.flying.retain(|it| it.done_ns.is_some());
        while let Some(at) = self.next_due(now_ns) {
            let Flying { number, who, call, now_ms, .. } = self.flying.swap_remove(at);
            let reply = self.run(&who, &call, if self.is_embedded { now_ms } else { now_ns / MS });
            self.replies.insert(number, reply);
        }
    }

    fn next_due(&self, now_ns: u64) -> Option<usize> {
        let due = self.flying.iter().enumerate().filter(|(_, it)| it.done_ns.is_some_and(|done_ns| done_ns <= now_ns));
        due.min_by_key(|(_, it)| (it.done_ns, it.number)).map(|(at, _)| at)
    }

    fn run(&mut self, who: &str, call: &Call, now_ms: u64) -> Result<Reply, ControlError> {
        let before = self.table.revision();
        let reply = match call {
            Call::Range(range) => self.table.read(range).map(|page| Reply::Page(short(page))),
            call => call.run(&mut self.table, now_ms),
        };
        if let Call::Txn(txn) = call
            && self.table.revision() > before
        {
            self.note(who, txn);
        }
        reply
    }

    /// Something was written: only who is in office may, and no two in one term.
    fn note(&mut self, who: &str, txn: &Txn) {
        let (term, present) = (txn.term.unwrap_or(0), self.table.term());
        let first = self.wrote.entry(term).or_insert_with(|| who.into());
        if term != present || first != who {
            self.wrong = Some(format!("{who} {TWO_WARDENS} is not its own: {term}, where {present} is in office"));
        }
        let entries = self.table.all().entries;
        (self.map, self.has_news) = (map_in(&entries), true);
    }

    /// Whether it is time to answer a call: a call that takes no time at all is run in the next pass, too.
    pub(super) fn is_due(&self, ticket: &Ticket) -> bool {
        ticket.until_ns <= self.passed_ns && (ticket.fate.is_some() || self.replies.contains_key(&ticket.number))
    }

    /// What a call is answered, once it is time.
    pub(super) fn answer(&mut self, ticket: Ticket) -> Result<Reply, ControlError> {
        let reply = self.replies.remove(&ticket.number);
        match ticket.fate {
            Some(error) => Err(error),
            None => reply.expect("what is answered was done before"),
        }
    }

    /// The process that called is no more: what it called may be done yet, unless the store was its own.
    pub(super) fn forget(&mut self, who: &str) {
        if self.is_embedded {
            self.flying.retain(|it| it.who != who);
            self.anew();
        }
    }

    /// It goes on somewhere else, or after a restart: nobody is in office.
    pub(super) fn anew(&mut self) {
        self.table = Table::restored(self.table.all()).expect("its own snapshot");
    }

    /// The same, and this one is in office at once, as somebody asked for it.
    pub(super) fn anew_for(&mut self, who: &str, now_ns: u64) {
        self.anew();
        self.table.campaign(who, OFFICE_LEASE_MS, now_ns / MS).expect("a table with room");
    }

    /// Who holds the office.
    pub(super) fn holder(&self, now_ns: u64) -> Option<String> {
        self.table.office(if self.is_embedded { 0 } else { now_ns / MS }).holder
    }
}

/// A page of few entries.
fn short(mut page: Page) -> Page {
    page.more |= page.entries.len() > PAGE;
    page.entries.truncate(PAGE);
    page
}
