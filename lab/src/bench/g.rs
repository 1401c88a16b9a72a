//! Line g: connections. What 10,000 idle ones cost in memory and slow 64 active ones, and what happens when 5,000
//! clients reconnect at once beside 64 established ones.
//!
//! An idle connection has been answered once. The established ones' rate is compared over the three seconds the
//! newcomers may take, and, for information, until the last newcomer was answered.

use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

use crate::bench::c::values;
use crate::bench::{Arm, Bench};
use crate::error::{Error, Result};
use crate::hist::median;
use crate::peers::server::Server;
use crate::peers::{Kind, Setup};
use crate::proc;
use crate::processor::CLIENT_CORE;
use crate::proto::{Op, Proto};
use crate::report::Sample;
use crate::spec::{Outcome, Spec, TICK_NS};
use crate::storm::{self, StormOutcome, StormSpec};
use crate::sys;

const LINE: &str = "g";
const KEYS: u32 = 10_000;
const VALUE_BYTES: usize = 256;
const IDLE: usize = 10_000;
const CLIENTS: usize = 5_000;
const QUIET: &str = "64 active, no idle connection";
const BESIDE: &str = "64 active beside 10,000 idle";
const STORM: &str = "5,000 clients reconnect at once";
/// Time for the crowd to connect the first time.
const PREPARE_NS: u64 = 10_000_000_000;
/// The established clients start so long before the crowd reconnects.
const LEAD_NS: u64 = 2_500_000_000;
const BEFORE_NS: u64 = 1_500_000_000;
const BOUND_NS: u64 = 3_000_000_000;

/// Windows on each server.
const WINDOWS: usize = 5;

type Values = BTreeMap<&'static str, f64>;

/// Measures the line and judges it.
pub(crate) fn run(bench: &mut Bench) -> Result<()> {
    let arms: Vec<Arm> = [
        bench.arm("memcached text", Kind::Memcached(""), Proto::Memcached),
        bench.arm("redis", Kind::Redis, Proto::Resp),
        bench.arm("herd text", Kind::Herd, Proto::Memcached),
        bench.arm("herd wire", Kind::Herd, Proto::Herd),
    ]
    .into_iter()
    .flatten()
    .collect();
    for round in 0..bench.options.rounds {
        for arm in crate::run::alternated(&arms, round) {
            if let Err(error) = run_arm(bench, arm, round) {
                bench.report.failure(format!("[{LINE}] {}: {error}", arm.name))?;
            }
        }
        println!("[{LINE}] round {} of {}", round + 1, bench.options.rounds);
    }
    let metrics = ["idle_bytes", "per_s", "cpu_us", "p99_us", "last_ms", "kept_3s", "kept_until_last"];
    bench.report.print_tables(LINE, &metrics);
    for door in ["herd text", "herd wire"] {
        let idle = bench.report.summary(LINE, BESIDE, door, "idle_bytes");
        bench.report.judge(LINE, format!("resident bytes of an idle connection, {door}"), idle, 1_024.0, true)?;
        let rate = bench.report.ratio(LINE, (BESIDE, door), (QUIET, door), "per_s");
        bench.report.judge(LINE, format!("rate beside idle connections / without, {door}"), rate, 0.95, false)?;
        let last = bench.report.summary(LINE, STORM, door, "last_ms");
        bench.report.judge(LINE, format!("ms until all 5,000 were answered, {door}"), last, 3_000.0, true)?;
        let kept = bench.report.summary(LINE, STORM, door, "kept_3s");
        bench.report.judge(LINE, format!("rate of the established over those 3 s, {door}"), kept, 0.8, false)?;
    }
    bench.report.print_verdicts(LINE);
    let title = "Resident memory of an idle connection";
    bench.chart(LINE, "idle", title, "bytes", "idle_bytes", |group| group == BESIDE)
}

fn run_arm(bench: &mut Bench, arm: &Arm, round: usize) -> Result<()> {
    let server = arm.peer.start(&Setup::default())?;
    bench.started(&arm.name, &server)?;
    bench.preload(&server, arm.proto, KEYS, VALUE_BYTES)?;
    let active = Spec {
        keys: KEYS,
        value_bytes: VALUE_BYTES,
        run_ms: bench.options.window_ms,
        seed: round as u64 + 1,
        ..server.small(arm.proto, Op::Get)
    };
    bench.engine(&active)?;
    let before_bytes = proc::resident_bytes(server.pid())? as f64;
    let idle = storm::connect_answered(server.addr, arm.proto, IDLE, VALUE_BYTES)?;
    let after_bytes = proc::resident_bytes(server.pid())? as f64;
    let (quiet, mut beside) = compare(bench, arm, &active)?;
    beside.insert("idle_bytes", (after_bytes - before_bytes) / IDLE as f64);
    drop(idle);
    note(bench, QUIET, arm, round, quiet)?;
    note(bench, BESIDE, arm, round, beside)?;
    if arm.proto == Proto::Herd {
        // A greeting would be counted with the reply; the crowd comes by the text door of the same server.
        return Ok(());
    }
    let crowd = run_storm(bench, arm, &server, &active)?;
    note(bench, STORM, arm, round, crowd)
}

/// Medians of windows on a second server without idle connections, and on the one that has them (`beside`). The windows
/// alternate, so that both see the same weather: on a shared machine it changes within seconds.
fn compare(bench: &mut Bench, arm: &Arm, beside: &Spec) -> Result<(Values, Values)> {
    let server = arm.peer.start(&Setup::default())?;
    bench.preload(&server, arm.proto, KEYS, VALUE_BYTES)?;
    let quiet = Spec { addr: server.addr, server_pids: vec![server.pid()], ..beside.clone() };
    let (mut without, mut with) = (Vec::new(), Vec::new());
    for window in 0..WINDOWS {
        let mut pair = [(&quiet, &mut without), (beside, &mut with)];
        if window % 2 == 1 {
            pair.reverse();
        }
        for (spec, seen) in pair {
            seen.push(values(&bench.engine(spec)?)?);
        }
    }
    Ok((medians(&without), medians(&with)))
}

/// The median of each figure.
fn medians(windows: &[Values]) -> Values {
    let of = |name: &&'static str| windows.iter().filter_map(|window| window.get(name).copied()).collect::<Vec<_>>();
    windows[0].keys().map(|name| (*name, median(&of(name)))).collect()
}

fn note(bench: &mut Bench, group: &str, arm: &Arm, round: usize, values: Values) -> Result<()> {
    bench.report.sample(Sample { line: LINE, group: group.into(), arm: arm.name.clone(), round, values })
}

/// The crowd and the established clients, each in a process of its own, both on the clients' core.
fn run_storm(bench: &Bench, arm: &Arm, server: &Server, active: &Spec) -> Result<BTreeMap<&'static str, f64>> {
    let at_ns = sys::monotonic_ns() + PREPARE_NS;
    let crowd = StormSpec {
        addr: server.addr,
        proto: arm.proto,
        clients: CLIENTS,
        value_bytes: VALUE_BYTES,
        at_ns,
        core: Some(CLIENT_CORE),
    };
    let run_ms = (LEAD_NS + BOUND_NS) / 1_000_000 + 500;
    let established = Spec { run_ms, warm_ms: 0, ..active.clone() };
    let (crowd, established) = thread::scope(|scope| {
        let crowd = scope.spawn(|| bench.client::<StormOutcome>("storm", &crowd));
        thread::sleep(Duration::from_nanos(PREPARE_NS - LEAD_NS));
        let established = bench.engine(&established);
        (crowd.join(), established)
    });
    let crowd = crowd.map_err(|_| Error::new("the crowd's thread panicked"))??;
    let established = established?;
    if crowd.failed > 0 {
        return Err(Error::new(format!("{} of {CLIENTS} reconnecting clients got no right reply", crowd.failed)));
    }
    let before = rate(&established, at_ns - BEFORE_NS, at_ns);
    let until_last_ns = (crowd.last_ms * 1e6) as u64;
    Ok(BTreeMap::from([
        ("last_ms", crowd.last_ms),
        ("half_ms", crowd.half_ms),
        ("kept_3s", rate(&established, at_ns, at_ns + BOUND_NS) / before),
        ("kept_until_last", rate(&established, at_ns, at_ns + until_last_ns.max(TICK_NS)) / before),
    ]))
}

/// Replies per tick of an engine between two moments, whole ticks only.
fn rate(outcome: &Outcome, from_ns: u64, to_ns: u64) -> f64 {
    let tick = |at_ns: u64| usize::try_from((at_ns - outcome.ticks_from_ns) / TICK_NS).unwrap_or(usize::MAX);
    let (from, to) = (tick(from_ns), tick(to_ns).max(tick(from_ns) + 1));
    let ticks = outcome.ticks.get(from..to.min(outcome.ticks.len())).unwrap_or_default();
    ticks.iter().sum::<u64>() as f64 / (to - from) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_cover_whole_ticks_and_count_stalls() {
        let ticks_from_ns = 1_000 * TICK_NS;
        let outcome = Outcome { ticks_from_ns, ticks: vec![10, 20, 30, 0, 40], ..Outcome::default() };
        let at = |tick: u64| ticks_from_ns + tick * TICK_NS;
        assert_eq!(rate(&outcome, at(0), at(3)), 20.0);
        assert_eq!(rate(&outcome, at(2), at(4)), 15.0);
        assert_eq!(rate(&outcome, at(3), at(7)), 10.0, "after the last reply nothing came");
    }
}
