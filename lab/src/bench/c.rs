//! Line c: small gets and sets of 256 B, server CPU per request beside peers and null servers.
//!
//! Phases: saturated (closed loop, pipeline 1 and 50), then one fixed rate for all arms (70 % of memcached's saturated
//! rate, open loop), then one and two server threads with nobody pinned. All servers of a round stay up; each case goes
//! round the arms several times in short windows, and ratios are taken within each time round: on a shared machine the
//! weather changes within seconds. A window of which others took over 3 % is void, which is written down, and taken
//! again; one with an unanswered request is a failure.

use std::collections::BTreeMap;

use crate::bench::{Arm, Bench, GROSS};
use crate::error::{Error, Result};
use crate::hist::Latencies;
use crate::peers::server::Server;
use crate::peers::{Kind, Setup};
use crate::processor::{self, CLIENT_CORE, Processor, STOLEN_MAX};
use crate::proto::{Op, Proto};
use crate::report::Sample;
use crate::run::{self, alternated};
use crate::spec::{Outcome, Spec};

const LINE: &str = "c";
const KEYS: u32 = 100_000;
const VALUE_BYTES: usize = 256;
/// Share of memcached's saturated rate in the fixed-rate phase.
const SHARE: f64 = 0.7;
const DOORS: [(&str, Proto, &str); 2] =
    [("herd text", Proto::Memcached, "null text"), ("herd wire", Proto::Herd, "null wire")];
/// Times a case goes round the arms in a round; the window is divided among them.
const CYCLES: usize = 5;
const PEERS: [&str; 4] = ["memcached text", "memcached tuned", "redis", "pogocache text"];
/// memcached as it is started by default, and with what its documents advise for this: Herd is held to the better one.
const MEMCACHED: [(&str, &str); 2] = [("memcached text", ""), ("memcached tuned", "-R 1000 -L")];

/// What the arms of one group have in common.
#[derive(Clone, Debug)]
pub(super) struct Case {
    pub(super) op: Op,
    pub(super) conns: usize,
    pub(super) pipeline: usize,
    pub(super) rate_per_s: Option<f64>,
    /// Nobody stays on a core of its own.
    pub(super) unpinned: bool,
}

/// An arm and how its server is started.
#[derive(Clone, Debug)]
pub(super) struct Entrant {
    pub(super) arm: Arm,
    pub(super) setup: Setup,
}

impl Case {
    /// What is alike for its arms, in words.
    pub(super) fn group(&self) -> String {
        let mode = match (self.unpinned, self.rate_per_s, self.pipeline) {
            (true, ..) => "nobody pinned".to_owned(),
            (false, Some(_), _) => "fixed rate".to_owned(),
            (false, None, 1) => "saturated".to_owned(),
            (false, None, pipeline) => format!("pipeline {pipeline}"),
        };
        format!("{}, {} connections, {mode}", self.op.name(), self.conns)
    }
}

/// Measures the line and judges it.
pub(crate) fn run(bench: &mut Bench) -> Result<()> {
    let conns: &[usize] = if bench.options.short { &[64] } else { &[64, 256] };
    let cases = |pipeline: usize, unpinned: bool| -> Vec<Case> {
        let both =
            |&conns: &usize| [Op::Get, Op::Set].map(|op| Case { op, conns, pipeline, rate_per_s: None, unpinned });
        conns.iter().flat_map(both).collect()
    };
    let saturated = [cases(1, false), cases(50, false)].concat();
    phase(bench, LINE, &saturated, &pinned(bench))?;
    let mut fixed = cases(1, false);
    for case in &mut fixed {
        let rate = bench.report.summary(LINE, &case.group(), "memcached text", "per_s");
        case.rate_per_s = rate.map(|summary| summary.median * SHARE);
    }
    if fixed.iter().all(|case| case.rate_per_s.is_some()) {
        phase(bench, LINE, &fixed, &pinned(bench))?;
    }
    phase(bench, LINE, &cases(1, true), &unpinned(bench))?;
    bench.report.print_tables(LINE, &["cpu_us", "per_s", "p50_us", "p99_us", "p999_us"]);
    judge(bench, conns)?;
    bench.report.print_verdicts(LINE);
    draw(bench)?;
    refuse_gross(bench)
}

fn pinned(bench: &Bench) -> Vec<Entrant> {
    let null = |proto, op| Kind::Null { proto, op, plain: false };
    let plain = |proto, op| Kind::Null { proto, op, plain: true };
    let all = [
        bench.arm(MEMCACHED[0].0, Kind::Memcached(MEMCACHED[0].1), Proto::Memcached),
        bench.arm(MEMCACHED[1].0, Kind::Memcached(MEMCACHED[1].1), Proto::Memcached),
        bench.arm("redis", Kind::Redis, Proto::Resp),
        bench.arm("pogocache text", Kind::Pogocache, Proto::Memcached),
        bench.arm("herd text", Kind::Herd, Proto::Memcached),
        bench.arm("null text", null(Proto::Memcached, Op::Get), Proto::Memcached),
        bench.arm("null text", null(Proto::Memcached, Op::Set), Proto::Memcached),
        bench.arm("null text, plain", plain(Proto::Memcached, Op::Get), Proto::Memcached),
        bench.arm("null text, plain", plain(Proto::Memcached, Op::Set), Proto::Memcached),
        bench.arm("herd wire", Kind::Herd, Proto::Herd),
        bench.arm("null wire", null(Proto::Herd, Op::Get), Proto::Herd),
        bench.arm("null wire", null(Proto::Herd, Op::Set), Proto::Herd),
        bench.arm("null wire, plain", plain(Proto::Herd, Op::Get), Proto::Herd),
        bench.arm("null wire, plain", plain(Proto::Herd, Op::Set), Proto::Herd),
    ];
    let setup = setup();
    all.into_iter().flatten().map(|arm| Entrant { arm, setup: setup.clone() }).collect()
}

/// How every pinned server is started.
pub(super) fn setup() -> Setup {
    Setup { value_bytes: VALUE_BYTES, ..Setup::default() }
}

fn unpinned(bench: &Bench) -> Vec<Entrant> {
    let entrant = |name: &str, threads: usize, kind, proto| {
        let arm = bench.arm(&threaded(name, threads), kind, proto)?;
        Some(Entrant { arm, setup: Setup { threads, core: None, ..Setup::default() } })
    };
    let herd = DOORS.into_iter().flat_map(|(name, proto, _)| [1, 2].map(|threads| (name, threads, proto)));
    let herd = herd.filter_map(|(name, threads, proto)| entrant(name, threads, Kind::Herd, proto));
    let both = MEMCACHED.into_iter().flat_map(|(name, more)| [1, 2].map(|threads| (name, threads, more)));
    let both = both.filter_map(|(name, threads, more)| entrant(name, threads, Kind::Memcached(more), Proto::Memcached));
    both.chain(herd).collect()
}

fn threaded(name: &str, threads: usize) -> String {
    format!("{name}, {threads} thread{}", if threads == 1 { "" } else { "s" })
}

/// Runs all cases over all entrants, round by round, with fresh servers in each round.
pub(super) fn phase(bench: &mut Bench, line: &'static str, cases: &[Case], entrants: &[Entrant]) -> Result<()> {
    let cycles = cycles(bench);
    for round in 0..bench.options.rounds {
        let mut running = Vec::new();
        for entrant in entrants {
            match start(bench, entrant) {
                Ok(server) => running.push((&entrant.arm, server)),
                Err(error) => bench.report.failure(format!("[{line}] {}: {error}", entrant.arm.name))?,
            }
        }
        for case in cases {
            let serving: Vec<_> = running.iter().filter(|(arm, _)| serves(arm, case.op)).collect();
            for cycle in 0..cycles {
                for (arm, server) in alternated(&serving, round * cycles + cycle) {
                    measure(bench, (line, case), arm, server, round * cycles + cycle)?;
                }
            }
        }
        println!("[{line}] {}: round {} of {}", cases[0].group(), round + 1, bench.options.rounds);
    }
    Ok(())
}

fn cycles(bench: &Bench) -> usize {
    if bench.options.short { 1 } else { CYCLES }
}

/// A null server answers one operation only.
fn serves(arm: &Arm, op: Op) -> bool {
    !matches!(arm.peer.kind, Kind::Null { op: answered, .. } if answered != op)
}

fn start(bench: &mut Bench, entrant: &Entrant) -> Result<Server> {
    let Entrant { arm, setup } = entrant;
    let server = arm.peer.start(setup)?;
    bench.started(&arm.name, &server)?;
    if !matches!(arm.peer.kind, Kind::Null { .. }) {
        bench.preload(&server, arm.proto, KEYS, VALUE_BYTES)?;
    }
    Ok(server)
}

fn measure(
    bench: &mut Bench,
    (line, case): (&'static str, &Case),
    arm: &Arm,
    server: &Server,
    round: usize,
) -> Result<()> {
    let spec = Spec {
        conns: case.conns,
        pipeline: case.pipeline,
        rate_per_s: case.rate_per_s,
        keys: KEYS,
        value_bytes: VALUE_BYTES,
        run_ms: bench.options.window_ms / cycles(bench) as u64,
        warm_ms: 80,
        fixed_reply: matches!(arm.peer.kind, Kind::Null { .. }),
        core: (!case.unpinned).then_some(CLIENT_CORE),
        seed: round as u64 + 1,
        ..server.small(arm.proto, case.op)
    };
    let (awake_pid, stolen_max) = (bench.awake.pid(), if bench.options.short { 1.0 } else { STOLEN_MAX });
    let taken = run::take(
        || processor::await_quiet(awake_pid),
        || {
            let before = Processor::now(awake_pid)?;
            let values = values(&bench.engine(&spec)?)?;
            let stolen = Processor::now(awake_pid)?.since(before).stolen;
            Ok((values, (stolen > stolen_max).then(|| format!("{:.0} % of the time was stolen", 100.0 * stolen))))
        },
    );
    let (group, arm) = (case.group(), arm.name.clone());
    match bench.report.taken(&format!("[{line}] {group}"), &arm, taken)? {
        Some(values) => bench.report.sample(Sample { line, group, arm, round, values }),
        None => Ok(()),
    }
}

/// Whether a window saw no reply, or not one to each request.
fn lacks(outcome: &Outcome) -> bool {
    outcome.ops == 0 || outcome.unanswered > 0
}

/// An outcome as the report's metrics.
pub(super) fn values(outcome: &Outcome) -> Result<BTreeMap<&'static str, f64>> {
    if lacks(outcome) {
        return Err(Error::new(format!("{} replies, {} requests unanswered", outcome.ops, outcome.unanswered)));
    }
    let mut latencies = Latencies::new();
    latencies.merge(&outcome.latencies);
    let per_op_us = |cpu_ns: u64| cpu_ns as f64 / 1e3 / outcome.ops as f64;
    Ok(BTreeMap::from([
        ("cpu_us", per_op_us(outcome.server_cpu_ns)),
        ("client_cpu_us", per_op_us(outcome.client_cpu_ns)),
        ("server_busy", outcome.server_cpu_ns as f64 / 1e9 / outcome.seconds),
        ("per_s", outcome.ops as f64 / outcome.seconds),
        ("p50_us", latencies.percentile_us(50.0)),
        ("p99_us", latencies.percentile_us(99.0)),
        ("p999_us", latencies.percentile_us(99.9)),
    ]))
}

fn judge(bench: &mut Bench, conns: &[usize]) -> Result<()> {
    for (door, _, null) in DOORS {
        for &conns in conns {
            for op in [Op::Get, Op::Set] {
                let case = |pipeline, rate_per_s, unpinned| Case { op, conns, pipeline, rate_per_s, unpinned }.group();
                let memcached = MEMCACHED.map(|(name, _)| name);
                let (saturated, fixed) = (case(1, None, false), case(1, Some(1.0), false));
                for group in [&saturated, &fixed] {
                    judge_best(bench, group, door, &PEERS, "cpu_us", 1.03)?;
                    bench.judge_ratio(LINE, (group, door), (group, null), "cpu_us", 1.10)?;
                    bench.print_ratio(LINE, (group, door), (group, &format!("{null}, plain")), "cpu_us");
                }
                judge_best(bench, &fixed, door, &memcached, "p99_us", 1.1)?;
                judge_best(bench, &case(50, None, false), door, &memcached, "cpu_us", 0.65)?;
                let (group, two) = (case(1, None, true), threaded(door, 2));
                bench.judge_ratio(LINE, (&group, &two), (&group, &threaded(door, 1)), "cpu_us", 1.10)?;
                let memcached = memcached.map(|name| threaded(name, 2));
                judge_best(bench, &group, &two, &memcached.each_ref().map(String::as_str), "cpu_us", 1.0)?;
            }
        }
    }
    Ok(())
}

/// Judges the ratio of a metric to the best of `peers`: at most `bar`.
fn judge_best(bench: &mut Bench, group: &str, arm: &str, peers: &[&str], metric: &str, bar: f64) -> Result<()> {
    match bench.report.lowest(LINE, group, peers, metric) {
        Some(peer) => bench.judge_ratio(LINE, (group, arm), (group, peer), metric, bar),
        None => Ok(()),
    }
}

fn draw(bench: &mut Bench) -> Result<()> {
    let unit = "microseconds of server CPU per request";
    let pipelined = |group: &str| group.contains("pipeline");
    let title = "Server CPU per request, 256 B values";
    bench.chart(LINE, "cpu", title, unit, "cpu_us", |group| !pipelined(group))?;
    let title = "Server CPU per request, 256 B values, pipeline 50";
    bench.chart(LINE, "cpu-pipelined", title, unit, "cpu_us", pipelined)?;
    let title = "p99 latency at one fixed rate (70 % of memcached's saturated rate)";
    bench.chart(LINE, "p99", title, "microseconds", "p99_us", |group| group.contains("fixed rate"))
}

/// The short form fails on ratios that no noise explains: those that are gross in each of its few rounds.
fn refuse_gross(bench: &mut Bench) -> Result<()> {
    for group in bench.report.groups(LINE) {
        let of = |name: &str| [name.to_owned(), threaded(name, 2)];
        let pairs = DOORS.into_iter().flat_map(|(door, ..)| of(door).into_iter().zip(of("memcached text")));
        for (door, memcached) in pairs {
            let ratio = bench.report.ratio(LINE, (&group, &door), (&group, &memcached), "cpu_us");
            if let Some(summary) = ratio.filter(|summary| bench.options.short && summary.low > GROSS) {
                let what = format!("[{LINE}] {group}, {door}: {:.2}x memcached's CPU", summary.low);
                bench.report.failure(what)?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_with_an_unanswered_request_is_no_sample() {
        let whole = Outcome { ops: 5, seconds: 1.0, ..Outcome::default() };
        assert!(values(&whole).is_ok());
        assert!(values(&Outcome { unanswered: 1, ..whole.clone() }).is_err());
        assert!(values(&Outcome { ops: 0, ..whole }).is_err());
    }
}
