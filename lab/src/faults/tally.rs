//! What a run has seen so far, and what is to be thought of it. Pure; written to the state file and to the ledger.
//!
//! *Passed*: nothing lost, stale, illegal or stuck, and enough was seen. *Void*: nothing wrong, but too little was seen
//! for that to say anything. *Failed*: something was wrong, however much was seen.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::faults::schedule::Kind;

/// A situation that a run must have seen often enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Branch {
    /// A node was killed with writes pending at it.
    PendingAtVictim,
    /// A node was stopped for longer than a lease, with a get in its socket, and that object was written elsewhere.
    GetInSocket,
    /// A replica had no room for a write of another node.
    RefusedPrepare,
    /// Another node took over a group with pending writes.
    TakeOverWithPendings,
    /// The map changed while a value of several MiB was on its way.
    EpochUnderBody,
}

impl Branch {
    pub(crate) const ALL: [Self; 5] = [
        Self::PendingAtVictim,
        Self::GetInSocket,
        Self::RefusedPrepare,
        Self::TakeOverWithPendings,
        Self::EpochUnderBody,
    ];
}

/// So many faults need ...
const FAULTS: u64 = 200;
/// ... so many of each branch, ...
const NEEDED: u64 = 30;
/// ... and so many histories that were judged. Runs of fewer faults than that need none.
const HISTORIES: u64 = 100;

/// All that was counted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Tally {
    /// That hit a node with a write under way.
    pub(crate) faults: BTreeMap<Kind, u64>,
    /// Of all, those that held up small writes too.
    pub(crate) held: u64,
    /// Of all, those that struck while copies moved from node to node.
    #[serde(default)]
    pub(crate) moving: u64,
    /// That hit no write.
    pub(crate) missed: u64,
    pub(crate) branches: BTreeMap<Branch, u64>,
    /// Writes of registers.
    pub(crate) acknowledged: u64,
    pub(crate) refused: u64,
    pub(crate) unknown: u64,
    /// Reads of registers that were judged.
    pub(crate) reads: u64,
    pub(crate) lost: u64,
    pub(crate) stale: u64,
    pub(crate) histories: u64,
    pub(crate) operations: u64,
    pub(crate) illegal: u64,
    pub(crate) undecided: u64,
    pub(crate) compared: u64,
    pub(crate) problems: Vec<String>,
    pub(crate) seconds: u64,
}

/// What is to be thought of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Passed,
    Void(Vec<String>),
    Failed(Vec<String>),
}

impl Tally {
    /// Faults that count.
    pub(crate) fn counted(&self) -> u64 {
        self.faults.values().sum()
    }

    pub(crate) fn note(&mut self, branch: Branch) {
        *self.branches.entry(branch).or_default() += 1;
    }

    fn seen(&self, branch: Branch) -> u64 {
        self.branches.get(&branch).copied().unwrap_or(0)
    }

    /// What was wrong.
    pub(crate) fn wrongs(&self) -> Vec<String> {
        let counts =
            [("acknowledged writes lost", self.lost), ("stale reads", self.stale), ("illegal histories", self.illegal)];
        let counts = counts.iter().filter(|(_, count)| *count > 0).map(|(what, count)| format!("{count} {what}"));
        counts.chain(self.problems.iter().cloned()).collect()
    }

    /// What was seen too seldom for a run of so many wanted faults.
    pub(crate) fn lacks(&self, wanted: u64) -> Vec<String> {
        let needed = (NEEDED * wanted / FAULTS).max(1);
        let few = Branch::ALL.into_iter().filter(|branch| self.seen(*branch) < needed);
        let mut lacks: Vec<String> =
            few.map(|branch| format!("{branch:?} {} of {needed} times", self.seen(branch))).collect();
        if self.counted() < wanted {
            lacks.push(format!("{} of {wanted} faults that hit a write", self.counted()));
        }
        let histories = if wanted < HISTORIES { 0 } else { HISTORIES * wanted / FAULTS };
        if self.histories < histories {
            lacks.push(format!("{} of {histories} histories judged", self.histories));
        }
        // The bar of the checker: at most one history in a thousand may be beyond it, so none of fewer.
        if self.undecided > self.histories / 1_000 {
            lacks.push(format!("{} histories beyond the checker", self.undecided));
        }
        lacks
    }

    pub(crate) fn verdict(&self, wanted: u64) -> Verdict {
        match (self.wrongs(), self.lacks(wanted)) {
            (wrongs, _) if !wrongs.is_empty() => Verdict::Failed(wrongs),
            (_, lacks) if !lacks.is_empty() => Verdict::Void(lacks),
            _ => Verdict::Passed,
        }
    }
}

impl Verdict {
    pub(crate) fn word(&self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Void(_) => "void",
            Self::Failed(_) => "failed",
        }
    }
}

impl std::fmt::Display for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Passed => f.write_str("PASS"),
            Self::Void(lacks) => write!(f, "VOID, too little was seen: {}", lacks.join("; ")),
            Self::Failed(wrongs) => write!(f, "FAIL: {}", wrongs.join("; ")),
        }
    }
}

impl std::fmt::Display for Tally {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kinds: Vec<String> = self.faults.iter().map(|(kind, count)| format!("{count} {kind:?}")).collect();
        let Self { held, moving, missed, acknowledged, unknown, refused, reads, lost, stale, .. } = self;
        let counted = self.counted();
        writeln!(
            f,
            "{counted} faults hit a write ({}), {missed} did not; {held} held up small ones, {moving} came in a move",
            kinds.join(", ")
        )?;
        let branches: Vec<String> =
            Branch::ALL.into_iter().map(|branch| format!("{} {branch:?}", self.seen(branch))).collect();
        writeln!(f, "seen: {}", branches.join(", "))?;
        write!(f, "registers: {acknowledged} writes acknowledged, {unknown} of unknown outcome, {refused} refused; ")?;
        writeln!(f, "{reads} reads; {lost} lost, {stale} stale")?;
        let Self { histories, operations, illegal, undecided, compared, seconds, .. } = self;
        write!(f, "{histories} histories of {operations} operations: {illegal} illegal, {undecided} undecided; ")?;
        write!(f, "herd fsck clean {compared} times; {seconds} s")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full() -> Tally {
        let mut tally = Tally { histories: 100, ..Tally::default() };
        tally.faults.insert(Kind::Kill, 200);
        tally.branches.extend(Branch::ALL.into_iter().map(|branch| (branch, 30)));
        tally
    }

    #[test]
    fn a_run_that_saw_enough_and_nothing_wrong_passes() {
        assert_eq!(full().verdict(200), Verdict::Passed);
        assert_eq!(full().verdict(20), Verdict::Passed);
    }

    #[test]
    fn too_little_voids_in_proportion() {
        let mut tally = full();
        tally.branches.insert(Branch::RefusedPrepare, 29);
        assert!(matches!(tally.verdict(200), Verdict::Void(lacks) if lacks.len() == 1));
        tally.branches.insert(Branch::RefusedPrepare, 1);
        assert_eq!(tally.verdict(10), Verdict::Passed);
        tally.branches.remove(&Branch::RefusedPrepare);
        assert!(matches!(tally.verdict(1), Verdict::Void(_)));
        assert!(matches!(full().verdict(201), Verdict::Void(_)), "too few faults");
        assert!(matches!(Tally { histories: 99, ..full() }.verdict(200), Verdict::Void(_)));
        assert!(matches!(Tally { undecided: 1, ..full() }.verdict(200), Verdict::Void(_)));
    }

    #[test]
    fn one_wrong_thing_fails_however_little_was_seen() {
        for tally in [
            Tally { lost: 1, ..full() },
            Tally { stale: 1, ..Tally::default() },
            Tally { illegal: 1, ..full() },
            Tally { problems: vec!["fsck".into()], ..full() },
        ] {
            assert!(matches!(tally.verdict(200), Verdict::Failed(_)));
        }
    }
}
