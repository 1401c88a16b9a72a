//! What was measured: a row for each thing that has a bar, printed as a table and written to the ledger. Pure.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::hist;

/// One thing that was measured, many times.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Row {
    /// As selected on the command line.
    pub(crate) line: String,
    pub(crate) what: String,
    /// How often.
    pub(crate) count: usize,
    /// Times, in milliseconds; none where only failures are counted.
    pub(crate) p50_ms: Option<f64>,
    pub(crate) p99_ms: Option<f64>,
    pub(crate) max_ms: Option<f64>,
    /// Requests that failed, or things that were wrong: any is one too many, where `failures_count`.
    pub(crate) failed: u64,
    pub(crate) failures_count: bool,
    /// What failed was wrong, and not merely refused or late.
    pub(crate) is_wrong: bool,
    /// What was held against what.
    pub(crate) bars: Vec<Bar>,
}

/// Something that is at most so much.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Bar {
    pub(crate) of: String,
    pub(crate) value_ms: f64,
    pub(crate) at_most_ms: f64,
}

/// Which value of many is held against a bar.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Of {
    P50,
    P99,
    Max,
}

impl Row {
    /// Times against their bars. A time that never came counts as infinite.
    pub(crate) fn times(line: &str, what: impl Into<String>, times_ms: &[f64], bars: &[(Of, f64)]) -> Self {
        let [p50, p99, max] = [0.5, 0.99, 1.0].map(|share| at(times_ms, share));
        let bar = |(of, at_most_ms): &(Of, f64)| {
            let (name, value) = match of {
                Of::P50 => ("p50", p50),
                Of::P99 => ("p99", p99),
                Of::Max => ("max", max),
            };
            Bar { of: name.into(), value_ms: value.unwrap_or(NEVER_MS), at_most_ms: *at_most_ms }
        };
        Self {
            line: line.into(),
            what: what.into(),
            count: times_ms.len(),
            p50_ms: p50,
            p99_ms: p99,
            max_ms: max,
            failed: 0,
            failures_count: false,
            is_wrong: false,
            bars: bars.iter().map(bar).collect(),
        }
    }

    /// Requests of which none may fail.
    pub(crate) fn failures(line: &str, what: impl Into<String>, count: usize, failed: u64) -> Self {
        Self { count, failed, failures_count: true, ..Self::times(line, what, &[], &[]) }
    }

    /// Looks at what was told, or is there in the end, of which none may be wrong.
    pub(crate) fn wrongs(line: &str, what: impl Into<String>, count: usize, wrong: u64) -> Self {
        Self { is_wrong: true, ..Self::failures(line, what, count, wrong) }
    }

    /// Whether all bars are met, and something was measured.
    pub(crate) fn passes(&self) -> bool {
        let are_met = self.bars.iter().all(|bar| bar.value_ms <= bar.at_most_ms);
        are_met && self.count > 0 && !(self.failures_count && self.failed > 0)
    }

    /// Why it does not, in words.
    pub(crate) fn shortfall(&self) -> Option<String> {
        if self.passes() {
            return None;
        }
        let missed = self.bars.iter().filter(|bar| bar.value_ms > bar.at_most_ms);
        let mut why: Vec<String> =
            missed.map(|bar| format!("{} {:.0} ms, not {:.0}", bar.of, bar.value_ms, bar.at_most_ms)).collect();
        if self.failures_count && self.failed > 0 {
            why.push(format!("{} of {} failed", self.failed, self.count));
        }
        if self.count == 0 {
            why.push("nothing was measured".into());
        }
        Some(format!("{}: {}: {}", self.line, self.what, why.join(", ")))
    }
}

/// What never came took longer than anything is waited for; a number, as JSON has no infinity.
pub(crate) const NEVER_MS: f64 = 3_600_000.0;

/// The value that a share of all does not exceed; none of none.
fn at(times_ms: &[f64], share: f64) -> Option<f64> {
    let mut sorted = times_ms.to_vec();
    sorted.sort_by(f64::total_cmp);
    if share == 0.5 && !sorted.is_empty() {
        return Some(hist::median(&sorted));
    }
    let place = (sorted.len() as f64 * share).ceil() as usize;
    sorted.get(place.saturating_sub(1)).copied()
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = if self.passes() { "PASS      " } else { "FALL-SHORT" };
        let time = |time: Option<f64>| match time {
            None => "-".to_owned(),
            Some(time) if time >= NEVER_MS => "never".to_owned(),
            Some(time) => format!("{time:.0}"),
        };
        let [p50, p99, max] = [self.p50_ms, self.p99_ms, self.max_ms].map(time);
        write!(
            f,
            "{word} {:<8} {:>7} {p50:>7} {p99:>7} {max:>7} {:>7}  {}",
            self.line, self.count, self.failed, self.what
        )?;
        let bars: Vec<String> = self.bars.iter().map(|bar| format!("{} <= {:.0} ms", bar.of, bar.at_most_ms)).collect();
        if bars.is_empty() { Ok(()) } else { write!(f, " [{}]", bars.join(", ")) }
    }
}

/// Above the rows.
pub(crate) const HEAD: &str = "           line       count  p50 ms  p99 ms  max ms  failed  what";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_pass_by_their_bars_alone() {
        let times: Vec<f64> = (1..=200).map(f64::from).collect();
        let row = Row::times("kill", "w", &times, &[(Of::P50, 100.5), (Of::P99, 198.0), (Of::Max, 200.0)]);
        assert_eq!((row.p50_ms, row.p99_ms, row.max_ms), (Some(100.5), Some(198.0), Some(200.0)));
        assert!(row.passes() && row.shortfall().is_none());
        assert!(!Row::times("kill", "w", &times, &[(Of::P99, 197.9)]).passes());
        assert!(!Row::times("kill", "w", &[], &[(Of::P99, 1.0)]).passes(), "nothing was measured");
        assert!(!Row::times("kill", "w", &[1.0, NEVER_MS], &[(Of::Max, 1e4)]).passes());
        let some = Row::times("kill", "w", &[1.0], &[]);
        assert!(Row { failed: 3, ..some }.passes(), "failures are told only");
        assert!(Row::failures("rolling", "w", 10, 0).passes());
        assert!(Row::failures("rolling", "w", 10, 1).shortfall().is_some_and(|why| why.contains("1 of 10 failed")));
    }
}
