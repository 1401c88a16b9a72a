//! Requests on their way into the store: one write, of one transaction or, with a large map, some.

use super::Ticket;
use super::ask::{Answer, Ask, Refusal};
use super::layout::{Kept, Stamp, plan};
use super::state::State;
use crate::control::{Revision, Term, Txn};

type Answers = Vec<(Ticket, Result<Answer, Refusal>)>;

/// A write under way, or in doubt.
#[derive(Debug)]
pub(super) struct Flight {
    /// The requests it is made of.
    pub(super) asks: Vec<(Ticket, Ask)>,
    /// What they are answered once it is done.
    pub(super) answers: Answers,
    /// The term it was begun in.
    pub(super) term: Term,
    /// Whether a transaction of it may have been done without our knowing.
    pub(super) in_doubt: bool,
    /// Whether it was refused, and what the store holds was not read since.
    pub(super) is_refused: bool,
    /// The last one makes it so, those before bring parts.
    txns: Vec<Txn>,
    at: usize,
    /// Revision of the head it follows.
    base: Revision,
    /// What the store holds then.
    after: Kept,
}

impl Flight {
    /// What makes `state` of what is kept; `None`: of nothing.
    pub(super) fn new(
        kept: Option<&Kept>,
        state: State,
        stamp: Stamp,
        asks: Vec<(Ticket, Ask)>,
        answers: Answers,
    ) -> Self {
        let (txns, after) = plan(kept, state, stamp);
        let base = kept.map_or(0, |kept| kept.revision);
        Self { asks, answers, term: stamp.term, in_doubt: false, is_refused: false, txns, at: 0, base, after }
    }

    /// The transaction that is next.
    pub(super) fn txn(&self) -> &Txn {
        &self.txns[self.at]
    }

    /// The transaction was done; whether it was the last one.
    pub(super) fn advance(&mut self) -> bool {
        self.at += 1;
        self.at == self.txns.len()
    }

    /// What the store holds once it is done with this revision; and the answers.
    pub(super) fn done(self, revision: Revision) -> (Kept, Answers) {
        let head = if self.writes() { revision } else { self.base };
        (self.after.at(head), self.answers)
    }

    /// Whether it changes anything, or only asks whether all is as it was.
    pub(super) fn writes(&self) -> bool {
        self.txns.iter().any(|txn| !txn.writes.is_empty())
    }

    /// The same once more.
    pub(super) fn again(self) -> Self {
        Self { at: 0, ..self }
    }

    /// Whether this is what made what is kept.
    pub(super) fn made(&self, kept: &Kept) -> bool {
        kept.stamp == self.after.stamp
    }

    /// Whether nothing was written since it was begun.
    pub(super) fn follows(&self, kept: &Kept) -> bool {
        kept.revision == self.base
    }
}
