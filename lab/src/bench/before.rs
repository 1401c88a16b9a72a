//! Line before: this Herd beside another one, named by `--before`: server CPU per small request and memory per object.
//!
//! Both nodes of a door are up at once and are asked in turn in short windows, as in line c; a ratio is taken between
//! two windows of the same time round. With as many windows a median tells differences of a few percent.

use crate::bench::c::{self, Case, Entrant};
use crate::bench::{Arm, Bench, f};
use crate::error::{Error, Result};
use crate::hist::quartiles;
use crate::peers::{Kind, Program};
use crate::proto::{Op, Proto};
use crate::report::Summary;
use crate::run::alternated;

const LINE: &str = "before";
const DOORS: [(&str, Proto); 2] = [("text", Proto::Memcached), ("wire", Proto::Herd)];
/// Connections.
const CONNS: usize = 64;
/// What this Herd may cost of the other.
const BAR: f64 = 1.05;

fn now(door: &str) -> String {
    format!("herd {door}")
}

fn before(door: &str) -> String {
    format!("before {door}")
}

/// Measures the line and judges it.
pub(super) fn run(bench: &mut Bench) -> Result<()> {
    let (Some(herd), Some(other)) = (bench.options.programs.herd.clone(), bench.options.before.clone()) else {
        return Err(Error::new("line before compares --herd with --before: name both"));
    };
    let arm = |name, program: &std::path::Path, proto| Arm { name, peer: Program::new(Kind::Herd, program), proto };
    let both = |(door, proto): (&str, Proto)| [arm(now(door), &herd, proto), arm(before(door), &other, proto)];
    let arms: Vec<Arm> = DOORS.into_iter().flat_map(both).collect();
    let entrants: Vec<Entrant> = arms.iter().map(|arm| Entrant { arm: arm.clone(), setup: c::setup() }).collect();
    let case =
        |pipeline| [Op::Get, Op::Set].map(|op| Case { op, conns: CONNS, pipeline, rate_per_s: None, unpinned: false });
    let cases = [case(1), case(50)].concat();
    c::phase(bench, LINE, &cases, &entrants)?;
    let text: Vec<&Arm> = arms.iter().filter(|arm| arm.proto == Proto::Memcached).collect();
    for round in 0..2 {
        for arm in alternated(&text, round) {
            if let Err(error) = f::overhead(bench, LINE, arm, round) {
                bench.report.failure(format!("[{LINE}] {}: {error}", arm.name))?;
            }
        }
    }
    bench.report.print_tables(LINE, &["cpu_us", "per_s", "p99_us", "beyond_payload_bytes"]);
    println!("\n[{LINE}] this Herd / the one before: median (first quartile..third quartile), pairs");
    for (door, _) in DOORS {
        for case in &cases {
            judge(bench, &case.group(), door, "cpu_us")?;
        }
    }
    judge(bench, &f::group(bench), "text", "beyond_payload_bytes")?;
    bench.report.print_verdicts(LINE);
    let title = "Server CPU per request, beside the Herd before";
    let unit = "microseconds of server CPU per request";
    bench.chart(LINE, "before", title, unit, "cpu_us", |group| group.contains("connections"))
}

fn judge(bench: &mut Bench, group: &str, door: &str, metric: &str) -> Result<()> {
    let (now, before) = (now(door), before(door));
    let ratios = bench.report.ratios(LINE, (group, &now), (group, &before), metric);
    let (Some(summary), (first, third)) = (Summary::of(&ratios), quartiles(&ratios)) else { return Ok(()) };
    println!("  {:.3} ({first:.3}..{third:.3}) {:>3}  {metric}: {group}, {door}", summary.median, ratios.len());
    bench.report.judge(LINE, format!("{metric}: {group}, {now} / {before}"), Some(summary), BAR, true)
}
