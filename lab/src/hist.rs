//! Latency histograms that travel between processes and merge, and the few statistics of a bench.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// Longest latency told apart, in nanoseconds; longer ones count as this.
const LONGEST_NS: u64 = 60_000_000_000;

/// Latencies in nanoseconds, to three digits.
pub(crate) struct Latencies(Histogram<u64>);

/// Latencies as (nanoseconds, count) pairs, for JSON.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Recorded(Vec<(u64, u64)>);

impl Latencies {
    /// No latencies yet.
    pub(crate) fn new() -> Self {
        Self(Histogram::new_with_bounds(1, LONGEST_NS, 3).expect("bounds and digits are within the library's"))
    }

    /// Adds one.
    #[inline]
    pub(crate) fn record(&mut self, latency_ns: u64) {
        self.0.saturating_record(latency_ns.clamp(1, LONGEST_NS));
    }

    /// Adds what another process recorded.
    pub(crate) fn merge(&mut self, other: &Recorded) {
        for &(value_ns, count) in &other.0 {
            self.0.saturating_record_n(value_ns, count);
        }
    }

    /// For JSON.
    pub(crate) fn recorded(&self) -> Recorded {
        Recorded(self.0.iter_recorded().map(|step| (step.value_iterated_to(), step.count_at_value())).collect())
    }

    /// How many.
    pub(crate) fn count(&self) -> u64 {
        self.0.len()
    }

    /// The latency that `percent` of them do not exceed, in microseconds.
    pub(crate) fn percentile_us(&self, percent: f64) -> f64 {
        self.0.value_at_percentile(percent) as f64 / 1e3
    }
}

/// The middle of `values` (mean of the two middle ones); NaN when there are none.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        len if len % 2 == 1 => sorted[len / 2],
        len => (sorted[len / 2 - 1] + sorted[len / 2]) / 2.0,
    }
}

/// First and third quartile of `values`, each the nearest value; NaN when there are none.
pub(crate) fn quartiles(values: &[f64]) -> (f64, f64) {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().saturating_sub(1);
    let at = |index: usize| sorted.get(index).copied().unwrap_or(f64::NAN);
    (at((last + 2) / 4), at((3 * last + 2) / 4))
}

/// Smallest and largest of `values`; NaN when there are none.
pub(crate) fn spread(values: &[f64]) -> (f64, f64) {
    let smallest = values.iter().copied().fold(f64::NAN, f64::min);
    (smallest, values.iter().copied().fold(f64::NAN, f64::max))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merged_histograms_equal_one() {
        let (mut one, mut left, mut right) = (Latencies::new(), Latencies::new(), Latencies::new());
        for value in 1..=100_000u64 {
            one.record(value * 37);
            if value % 3 == 0 { left.record(value * 37) } else { right.record(value * 37) }
        }
        let mut merged = Latencies::new();
        let json = serde_json::to_string(&left.recorded()).expect("plain numbers");
        merged.merge(&serde_json::from_str(&json).expect("what was written"));
        merged.merge(&right.recorded());
        assert_eq!(merged.count(), 100_000);
        for percent in [50.0, 99.0, 99.9] {
            assert_eq!(merged.percentile_us(percent), one.percentile_us(percent));
            let exact = percent / 100.0 * 100_000.0 * 37.0 / 1e3;
            assert!((one.percentile_us(percent) / exact - 1.0).abs() < 0.002, "{percent}");
        }
    }

    #[test]
    fn too_long_counts_as_longest() {
        let mut latencies = Latencies::new();
        latencies.record(u64::MAX);
        assert!((latencies.percentile_us(100.0) / 6e7 - 1.0).abs() < 0.002);
    }

    #[test]
    fn statistics() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(&[]).is_nan());
        assert_eq!(spread(&[3.0, 1.0, 2.0]), (1.0, 3.0));
        assert!(spread(&[]).0.is_nan());
        assert_eq!(quartiles(&[5.0, 1.0, 4.0, 2.0, 3.0]), (2.0, 4.0));
        assert_eq!(quartiles(&[7.0]), (7.0, 7.0));
        assert!(quartiles(&[]).0.is_nan());
    }
}
