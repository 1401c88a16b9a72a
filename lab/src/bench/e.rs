//! Line e: what large transfers do to the tail of small gets: 1 KiB gets, open loop at 40 % of the server's own
//! saturation (median of the rounds so far), quiet and beside ten 10 MiB gets and two 10 MiB puts a second.

use crate::bench::c::values;
use crate::bench::{Arm, Bench};
use crate::error::Result;
use crate::peers::server::Server;
use crate::peers::{Kind, Setup};
use crate::proto::{Op, Proto};
use crate::report::Sample;
use crate::run::alternated;
use crate::spec::{SideSpec, Spec};

const LINE: &str = "e";
const KEYS: u32 = 100_000;
const VALUE_BYTES: usize = 1_024;
const SHARE: f64 = 0.4;
/// Samples of an arm over all rounds at full length.
const SAMPLES: f64 = 1.05e6;
const OBJECT_BYTES: usize = 10 << 20;
const QUIET: &str = "1 KiB gets, quiet";
const LOUD: &str = "1 KiB gets, beside 10 MiB gets and puts";
const SATURATED: &str = "1 KiB gets, saturated";

/// Measures the line and judges it.
pub(crate) fn run(bench: &mut Bench) -> Result<()> {
    // Each arm with the door its large transfers take.
    let arms: Vec<(Arm, Proto)> = [
        (bench.arm("memcached text", Kind::Memcached(""), Proto::Memcached), Proto::Memcached),
        (bench.arm("redis", Kind::Redis, Proto::Resp), Proto::Resp),
        (bench.arm("herd text", Kind::Herd, Proto::Memcached), Proto::Http),
        (bench.arm("herd wire", Kind::Herd, Proto::Herd), Proto::Herd),
    ]
    .into_iter()
    .filter_map(|(arm, side)| Some((arm?, side)))
    .collect();
    for round in 0..bench.options.rounds {
        for (arm, side) in alternated(&arms, round) {
            if let Err(error) = run_arm(bench, arm, *side, round) {
                bench.report.failure(format!("[{LINE}] {}: {error}", arm.name))?;
            }
        }
        println!("[{LINE}] round {} of {}", round + 1, bench.options.rounds);
    }
    let metrics = ["per_s", "p50_us", "p99_us", "p999_us", "cpu_us"];
    bench.report.print_tables(LINE, &metrics);
    for arm in ["memcached text", "redis", "herd text", "herd wire"] {
        if let Some(growth) = bench.report.ratio(LINE, (LOUD, arm), (QUIET, arm), "p999_us") {
            println!("  {arm}: p99.9 grows {:.2}x ({:.2}..{:.2})", growth.median, growth.low, growth.high);
        }
    }
    for door in ["herd text", "herd wire"] {
        bench.judge_ratio(LINE, (LOUD, door), (QUIET, door), "p999_us", 2.0)?;
    }
    bench.report.print_verdicts(LINE);
    bench.chart(LINE, "tail", "p99.9 of 1 KiB gets at 40 % load", "microseconds", "p999_us", |group| group != SATURATED)
}

fn run_arm(bench: &mut Bench, arm: &Arm, side: Proto, round: usize) -> Result<()> {
    let setup = Setup { memory_mib: 2_048, item_max_mib: 16, value_bytes: VALUE_BYTES, ..Setup::default() };
    let server = arm.peer.start(&setup)?;
    bench.started(&arm.name, &server)?;
    bench.preload(&server, arm.proto, KEYS, VALUE_BYTES)?;
    let saturated = Spec { run_ms: bench.options.window_ms, ..usual(arm, &server) };
    note(bench, SATURATED, arm, round, &saturated)?;
    let saturated = bench.report.summary(LINE, SATURATED, &arm.name, "per_s").map_or(0.0, |summary| summary.median);
    let rate_per_s = saturated * SHARE;
    let run_ms = (SAMPLES / bench.options.rounds as f64 / rate_per_s * 1e3) as u64;
    let quiet = Spec { rate_per_s: Some(rate_per_s), run_ms, seed: round as u64 + 1, ..usual(arm, &server) };
    let side =
        SideSpec { addr: server.addr, proto: side, object_bytes: OBJECT_BYTES, gets_per_s: 10.0, puts_per_s: 2.0 };
    let loud = Spec { side: Some(side), ..quiet.clone() };
    let mut both = [(QUIET, quiet), (LOUD, loud)];
    both.rotate_left(round % 2);
    for (group, spec) in both {
        note(bench, group, arm, round, &spec)?;
    }
    Ok(())
}

fn usual(arm: &Arm, server: &Server) -> Spec {
    Spec { keys: KEYS, value_bytes: VALUE_BYTES, warm_ms: 500, ..server.small(arm.proto, Op::Get) }
}

fn note(bench: &mut Bench, group: &str, arm: &Arm, round: usize, spec: &Spec) -> Result<()> {
    let outcome = bench.engine(spec)?;
    let mut values = values(&outcome)?;
    values.insert("large_due", outcome.side_due as f64);
    values.insert("large_done", (outcome.side_done.0 + outcome.side_done.1) as f64);
    bench.report.sample(Sample { line: LINE, group: group.into(), arm: arm.name.clone(), round, values })
}
