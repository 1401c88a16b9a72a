//! How idle the processor was: a figure of a network is void when the processor, not the link, was the limit.

use std::fs;

use crate::error::{Context, Error, Result};

/// The processor's time up to some moment, in ticks, all cores together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Idle {
    idle: u64,
    all: u64,
}

impl Idle {
    /// Up to now.
    pub(crate) fn now() -> Result<Self> {
        let text = fs::read_to_string("/proc/stat").during(|| "read /proc/stat".into())?;
        parse(&text).ok_or_else(|| Error::new("/proc/stat has no line of all cores"))
    }

    /// Share of the time since then in which the cores had nothing to do, 0 to 1.
    pub(crate) fn share_since(self) -> Result<f64> {
        let now = Self::now()?;
        Ok((now.idle - self.idle) as f64 / (now.all - self.all).max(1) as f64)
    }
}

/// `cpu user nice system idle iowait irq softirq steal ..`: idle and iowait are idle; the guest's times are in user's.
fn parse(text: &str) -> Option<Idle> {
    let counts: Vec<u64> = text
        .lines()
        .find_map(|line| line.strip_prefix("cpu "))?
        .split_ascii_whitespace()
        .take(8)
        .filter_map(|count| count.parse().ok())
        .collect();
    Some(Idle { idle: counts.get(3)? + counts.get(4)?, all: counts.iter().sum() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_and_waiting_are_idle() {
        let idle = parse("cpu  10 0 20 60 5 1 1 3 0 0\ncpu0 1 1 1 1\n").expect("the line is there");
        assert_eq!((idle.idle, idle.all), (65, 100));
        assert!(parse("intr 1 2").is_none());
    }
}
