//! The processor: who has which core, how idle it was, and how much of it others took. What is measured of a network is
//! void when the processor, not the link, was the limit, and anything when the machine below was busy with others.

use std::fs;
use std::thread;
use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::error::{Context, Error, Result};
use crate::proc;

/// Core of the servers.
pub(crate) const SERVER_CORE: usize = 0;
/// Core of the clients.
pub(crate) const CLIENT_CORE: usize = 1;

/// The processor's time up to some moment, in seconds, all cores together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Processor {
    idle: f64,
    stolen: f64,
    all: f64,
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
    /// Up to now; process `awake_pid`, which keeps it awake ([`crate::awake`]), counts as idle.
    pub(crate) fn now(awake_pid: i32) -> Result<Self> {
        let text = fs::read_to_string("/proc/stat").during(|| "read /proc/stat".into())?;
        let now = parse(&text).ok_or_else(|| Error::new("/proc/stat has no line of all cores"))?;
        Ok(Self { idle: now.idle + proc::cpu_ns(&[awake_pid])? as f64 / 1e9, ..now })
    }

    /// What it did since `before`.
    pub(crate) fn since(self, before: Self) -> Shares {
        let all = (self.all - before.all).max(1.0 / TICKS_PER_S);
        let share = |now: f64, then: f64| ((now - then) / all).clamp(0.0, 1.0);
        Shares { idle: share(self.idle, before.idle), stolen: share(self.stolen, before.stolen) }
    }
}

/// Share of a run's time beyond which the machine below us was busy with others, and the run is void.
pub(crate) const STOLEN_MAX: f64 = 0.03;
/// Tries of a run that was void.
pub(crate) const ATTEMPTS: usize = 8;

/// Waits for a second in which little time is stolen, a minute at most: others' bursts last seconds.
pub(crate) fn await_quiet(awake_pid: i32) -> Result<()> {
    for _ in 0..60 {
        let before = Processor::now(awake_pid)?;
        thread::sleep(Duration::from_secs(1));
        if Processor::now(awake_pid)?.since(before).stolen <= STOLEN_MAX {
            break;
        }
    }
    Ok(())
}

/// Of /proc/stat, on all machines (USER_HZ).
const TICKS_PER_S: f64 = 100.0;

/// `cpu user nice system idle iowait irq softirq steal ..`: idle and iowait are idle; the guest's times are in user's.
fn parse(text: &str) -> Option<Processor> {
    let counts: Vec<f64> = text
        .lines()
        .find_map(|line| line.strip_prefix("cpu "))?
        .split_ascii_whitespace()
        .take(8)
        .filter_map(|count| Some(count.parse::<f64>().ok()? / TICKS_PER_S))
        .collect();
    let stolen = counts.get(7).copied().unwrap_or(0.0);
    Some(Processor { idle: counts.get(3)? + counts.get(4)?, stolen, all: counts.iter().sum() })
}

fn first_line(path: &str) -> String {
    std::fs::read_to_string(path).map_or_else(|error| error.to_string(), |text| text.trim().to_owned())
}

/// The machine that measures: kernel, processor, cores.
pub(crate) fn machine() -> Map<String, Value> {
    let cpus = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpus.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or("unknown");
    let facts = [
        ("kernel", json!(first_line("/proc/sys/kernel/osrelease"))),
        ("cpu", json!(model.trim_start_matches([' ', '\t', ':']))),
        ("cores", json!(cpus.lines().filter(|line| line.starts_with("processor")).count())),
    ];
    facts.into_iter().map(|(name, fact)| (name.to_owned(), fact)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_and_waiting_are_idle() {
        let before = parse("cpu  0 0 0 0 0 0 0 0 0 0").expect("the line is there");
        let after = parse("cpu  10 0 20 60 5 1 1 3 0 0\ncpu0 1 1 1 1\n").expect("the line is there");
        assert_eq!(after.since(before), Shares { idle: 0.65, stolen: 0.03 });
        assert!(parse("intr 1 2").is_none());
    }
}
