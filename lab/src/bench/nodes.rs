//! Line nodes: what nodes cost each other, server CPU of all nodes per small request: gets and puts that a node hands
//! on because another has the object, and puts of which two nodes keep a copy, each beside one node alone.
//!
//! A node that joins a herd which holds objects gets none of them, so what is asked there is handed on, all of it.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use crate::ask::Asker;
use crate::bench::c::values;
use crate::bench::{Arm, Bench};
use crate::error::{Error, Result};
use crate::peers::server::Server;
use crate::peers::{Kind, Setup};
use crate::proto::{Op, Proto};
use crate::report::Sample;
use crate::run::alternated;
use crate::spec::Spec;
use crate::values::key;
use crate::wire::DEFAULT_COLLECTION;

const LINE: &str = "nodes";
const KEYS: u32 = 100_000;
const VALUE_BYTES: usize = 256;
/// How long the first node may take to hear of the second.
const MAP_PATIENCE: Duration = Duration::from_secs(2);
/// Windows of each kind in a round; an odd one out is the machine's.
const WINDOWS: usize = 3;

/// What stands beside what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Case {
    /// One node alone.
    Alone,
    /// Asked at a node that has none of the objects.
    HandedOn,
    /// Two nodes keep a copy of each; asked at the primary.
    TwoCopies,
}

const CASES: [Case; 3] = [Case::Alone, Case::HandedOn, Case::TwoCopies];

fn group(op: Op, case: Case) -> String {
    let case = match case {
        Case::Alone => "one node",
        Case::HandedOn => "handed on",
        Case::TwoCopies => "two copies",
    };
    format!("{}, {case}, 64 connections", op.name())
}

/// Measures the line and judges it.
pub(super) fn run(bench: &mut Bench) -> Result<()> {
    let doors = [("herd text", Proto::Memcached), ("herd wire", Proto::Herd)];
    let arms: Vec<Arm> = doors.iter().filter_map(|(name, proto)| bench.arm(name, Kind::HerdMember, *proto)).collect();
    for round in 0..bench.options.rounds {
        for arm in alternated(&arms, round) {
            for case in alternated(&CASES, round) {
                if let Err(error) = scene(bench, arm, *case, round) {
                    bench.report.failure(format!("[{LINE}] {}, {case:?}: {error}", arm.name))?;
                }
            }
        }
        println!("[{LINE}] round {} of {}", round + 1, bench.options.rounds);
    }
    bench.report.print_tables(LINE, &["cpu_us", "per_s", "p99_us"]);
    for arm in &arms {
        for (op, case, bar) in [(Op::Get, Case::HandedOn, 2.5), (Op::Set, Case::TwoCopies, 2.2)] {
            let (over, under) = (group(op, case), group(op, Case::Alone));
            bench.judge_ratio(LINE, (&over, &arm.name), (&under, &arm.name), "cpu_us", bar)?;
        }
        for (op, case) in [(Op::Set, Case::HandedOn), (Op::Get, Case::TwoCopies)] {
            let (over, under) = (group(op, case), group(op, Case::Alone));
            bench.print_ratio(LINE, (&over, &arm.name), (&under, &arm.name), "cpu_us");
        }
    }
    bench.report.print_verdicts(LINE);
    let unit = "microseconds of server CPU, all nodes, per request";
    bench.chart(LINE, "nodes", "What nodes cost each other", unit, "cpu_us", |_| true)
}

fn scene(bench: &mut Bench, arm: &Arm, case: Case, round: usize) -> Result<()> {
    let replicas = if case == Case::TwoCopies { 2 } else { 1 };
    let setup = Setup { value_bytes: VALUE_BYTES, replicas, ..Setup::default() };
    let first = arm.peer.start(&setup)?;
    bench.started(&arm.name, &first)?;
    let join = || arm.peer.start(&Setup { join: Some(first.addr), ..setup.clone() });
    let (second, chosen) = match case {
        Case::Alone => (None, Vec::new()),
        Case::HandedOn => {
            bench.preload(&first, arm.proto, KEYS, VALUE_BYTES)?;
            (Some(join()?), Vec::new())
        }
        Case::TwoCopies => (Some(join()?), led_by(first.addr)?),
    };
    if case != Case::HandedOn {
        bench.preload(&first, arm.proto, KEYS, VALUE_BYTES)?;
    }
    let asked = if case == Case::HandedOn { second.as_ref().unwrap_or(&first) } else { &first };
    let server_pids = [Some(&first), second.as_ref()].into_iter().flatten().map(Server::pid).collect();
    let usual = Spec { keys: KEYS, chosen, value_bytes: VALUE_BYTES, server_pids, ..asked.small(arm.proto, Op::Get) };
    for window in 0..WINDOWS {
        for op in [Op::Get, Op::Set] {
            let (run_ms, seed) = (bench.options.window_ms, (round * WINDOWS + window) as u64 + 1);
            let outcome = bench.engine(&Spec { op, run_ms, seed, ..usual.clone() })?;
            if outcome.unanswered > 0 {
                return Err(Error::new(format!("{} requests unanswered", outcome.unanswered)));
            }
            let (arm, round) = (arm.name.clone(), round * WINDOWS + window);
            bench.report.sample(Sample {
                line: LINE,
                group: group(op, case),
                arm,
                round,
                values: values(&outcome)?,
            })?;
        }
    }
    Ok(())
}

/// The keys whose objects this node decides on.
fn led_by(addr: SocketAddr) -> Result<Vec<u32>> {
    // The node that joined is ready when it has the map; the others hear of it a moment later.
    let until = Instant::now() + MAP_PATIENCE;
    let map = loop {
        match Asker::open(addr)?.map()? {
            Some(map) => break map,
            None if Instant::now() > until => return Err(Error::new("the second node is not in the map")),
            None => thread::sleep(Duration::from_millis(10)),
        }
    };
    let led: Vec<u32> =
        (0..KEYS).filter(|number| map.owner_by_name(DEFAULT_COLLECTION, &key(*number)) == Some(addr)).collect();
    if led.is_empty() { Err(Error::new(format!("{addr} leads no group"))) } else { Ok(led) }
}
