//! How idle the processor was: a figure of a network is void when the processor, not the link, was the limit.

use std::fs;

use crate::error::{Context, Error, Result};

/// The processor's time up to some moment, in ticks, all cores together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Processor {
    idle: u64,
    stolen: u64,
    all: u64,
}

/// Shares of a stretch of time, 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Shares {
    /// The cores had nothing to do.
    pub(crate) idle: f64,
    /// The machine below a virtual one gave its cores to others.
    pub(crate) stolen: f64,
}

impl Processor {
    /// Up to now.
    pub(crate) fn now() -> Result<Self> {
        let text = fs::read_to_string("/proc/stat").during(|| "read /proc/stat".into())?;
        parse(&text).ok_or_else(|| Error::new("/proc/stat has no line of all cores"))
    }

    /// What it did since then.
    pub(crate) fn since(self) -> Result<Shares> {
        Ok(Self::now()?.over(self))
    }

    fn over(self, before: Self) -> Shares {
        let all = (self.all - before.all).max(1) as f64;
        let share = |now: u64, then: u64| now.saturating_sub(then) as f64 / all;
        Shares { idle: share(self.idle, before.idle), stolen: share(self.stolen, before.stolen) }
    }
}

/// `cpu user nice system idle iowait irq softirq steal ..`: idle and iowait are idle; the guest's times are in user's.
fn parse(text: &str) -> Option<Processor> {
    let counts: Vec<u64> = text
        .lines()
        .find_map(|line| line.strip_prefix("cpu "))?
        .split_ascii_whitespace()
        .take(8)
        .filter_map(|count| count.parse().ok())
        .collect();
    let stolen = counts.get(7).copied().unwrap_or(0);
    Some(Processor { idle: counts.get(3)? + counts.get(4)?, stolen, all: counts.iter().sum() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_and_waiting_are_idle() {
        let before = parse("cpu  0 0 0 0 0 0 0 0 0 0").expect("the line is there");
        let after = parse("cpu  10 0 20 60 5 1 1 3 0 0\ncpu0 1 1 1 1\n").expect("the line is there");
        assert_eq!(after.over(before), Shares { idle: 0.65, stolen: 0.03 });
        assert!(parse("intr 1 2").is_none());
    }
}
