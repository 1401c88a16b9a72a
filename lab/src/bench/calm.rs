//! Line calm: what the node does at a stroke to millions of objects, and what others see of it. A list whose prefix
//! matches nothing, one byte put at the end of 1 GiB of nothing, a collection removed, all of another flushed, each
//! beside small gets and puts in an open loop; the node's own longest turn is read from its metrics.
//!
//! A virtual machine's host may take memory that lay idle out of its tables: then the first touch of each 2 MiB costs
//! some 30 us that the kernel inside cannot tell from work, and a list of 2,048 objects, all far apart, touches all of
//! them in its first turn (17 to 33 ms; none in the next list). So objects are asked for all the time before.
//!
//! What keeps the cores awake takes 4 ms at a time from a thread that never rests ([`crate::awake`]). A node is one for
//! as long as a stroke lasts and for as long as it then gives memory back: so long its core is left to it alone.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use crate::ask::{self, Asker};
use crate::bench::{Arm, Bench, c};
use crate::error::{Error, Result};
use crate::hist::Latencies;
use crate::peers::server::Server;
use crate::peers::{Kind, Setup};
use crate::proc;
use crate::processor::{Processor, SERVER_CORE};
use crate::proto::{Op, Proto};
use crate::report::{Sample, Summary};
use crate::spec::{Outcome, Spec};
use crate::wire::DEFAULT_COLLECTION;

const LINE: &str = "calm";
const ARM: &str = "herd wire";
const QUIET: &str = "gets and puts, quiet";
const VALUE_BYTES: usize = 64;
/// The small objects that are asked for, and how often.
const KEYS: u32 = 10_000;
const RATE_PER_S: f64 = 4_000.0;
/// A window lasts so many of the bench's.
const WINDOWS: u64 = 5;
const WARM_MS: u64 = 500;
/// The disturbance comes so long after the window's beginning.
const LEAD: Duration = Duration::from_millis(500);
/// How often the node is looked at, whether it still works.
const LOOK: Duration = Duration::from_millis(50);
/// Where the one byte goes: the object is 1 GiB long then, the most that a node takes by default.
const FAR: u64 = (1 << 30) - 1;
/// The metric forgets after one or two minutes.
const FORGET: Duration = Duration::from_secs(150);
const LONGEST_MS: f64 = 2.0;
const ADDED_MS: f64 = 5.0;
/// How objects all over the memory are asked for, and how long of each collection before a window.
const TOUCH_RATE_PER_S: f64 = 4_000.0;
const TOUCH_MS: u64 = 2_000;
/// As many objects take long enough to load that the metric must forget it first.
const MANY: u32 = 1_000_000;
/// The collection that is removed.
const DOOMED: &str = "calm-doomed";
const SMALL: &str = "calm-small";
/// Specification of both.
const RAM: &str = "{\"class\":\"ram:1\"}";

/// What is done at a stroke.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stroke {
    List,
    PutFar,
    Remove,
    Flush,
}

impl Stroke {
    /// In an order in which each still finds its objects.
    const ALL: [Self; 4] = [Self::List, Self::PutFar, Self::Remove, Self::Flush];

    fn group(self) -> &'static str {
        match self {
            Self::List => "beside a list that finds nothing",
            Self::PutFar => "beside one byte put at 1 GiB",
            Self::Remove => "beside a collection removed",
            Self::Flush => "beside flush_all",
        }
    }

    fn strike(self, addr: SocketAddr, asker: &mut Asker) -> Result<()> {
        match self {
            Self::List => match asker.list(DEFAULT_COLLECTION, "no-name-begins-so")? {
                0 => Ok(()),
                found => Err(Error::new(format!("a list that should be empty has {found} bytes"))),
            },
            Self::PutFar => asker.put_at(DEFAULT_COLLECTION, "calm-far", FAR, b"x"),
            Self::Remove => asker.destroy(DOOMED),
            Self::Flush => match ask::text(addr, "flush_all")?.as_str() {
                "OK" => Ok(()),
                other => Err(Error::new(format!("flush_all was answered with {other}"))),
            },
        }
    }
}

/// Measures the line and judges it.
pub(super) fn run(bench: &mut Bench) -> Result<()> {
    let Some(arm) = bench.arm(ARM, Kind::Herd, Proto::Herd) else {
        return Err(Error::new("line calm is of a Herd: name it with --herd"));
    };
    for round in 0..bench.options.rounds {
        if let Err(error) = run_round(bench, &arm, round) {
            bench.report.failure(format!("[{LINE}] round {}: {error}", round + 1))?;
        }
        println!("[{LINE}] round {} of {}", round + 1, bench.options.rounds);
    }
    bench.report.print_tables(LINE, &["p50_us", "p99_us", "p9999_ms", "added_ms", "stroke_ms", "longest_turn_ms"]);
    for stroke in Stroke::ALL {
        let group = stroke.group();
        let turn = bench.report.summary(LINE, group, ARM, "longest_turn_ms");
        bench.report.judge(LINE, format!("ms of the longest turn, {group}"), turn, LONGEST_MS, true)?;
        let added = bench.report.summary(LINE, group, ARM, "added_ms");
        bench.report.judge(LINE, format!("ms of p99.99 more than quiet, {group}"), added, ADDED_MS, true)?;
    }
    bench.report.print_verdicts(LINE);
    Ok(())
}

fn run_round(bench: &mut Bench, arm: &Arm, round: usize) -> Result<()> {
    let server = arm.peer.start(&Setup { memory_mib: 4_096, ..Setup::default() })?;
    bench.started(&arm.name, &server)?;
    let mut asker = Asker::open(server.addr)?;
    let small = asker.create(SMALL, RAM)?;
    let doomed = asker.create(DOOMED, RAM)?;
    let many = bench.options.calm_objects;
    for (collection, keys) in [(small, KEYS), (DEFAULT_COLLECTION, many), (doomed, many)] {
        load(bench, &server, collection, keys)?;
    }
    let large = [DEFAULT_COLLECTION, doomed];
    if many >= MANY {
        await_forgotten(bench, &server, &large)?;
    }
    let spec = Spec {
        keys: KEYS,
        value_bytes: VALUE_BYTES,
        rate_per_s: Some(RATE_PER_S),
        warm_ms: WARM_MS,
        run_ms: bench.options.window_ms * WINDOWS,
        seed: round as u64 + 1,
        collection: Some(small),
        mixed: true,
        ..server.small(Proto::Herd, Op::Get)
    };
    let quiet = bench.engine(&spec)?;
    let quiet_ms = p9999_ms(&quiet);
    note(bench, QUIET, round, &quiet, &[("longest_turn_ms", longest_turn_ms(server.addr)?)])?;
    for stroke in Stroke::ALL {
        touch(bench, &server, if stroke == Stroke::Flush { &large[..1] } else { &large })?;
        let before = Processor::now(bench.awake.pid())?;
        let (outcome, stroke_ms) = beside(bench, &spec, &[server.pid()], || stroke.strike(server.addr, &mut asker))?;
        let stolen = Processor::now(bench.awake.pid())?.since(before).stolen;
        let more = [
            ("added_ms", p9999_ms(&outcome) - quiet_ms),
            ("stroke_ms", stroke_ms),
            ("longest_turn_ms", longest_turn_ms(server.addr)?),
            ("stolen", stolen),
        ];
        note(bench, stroke.group(), round, &outcome, &more)?;
    }
    Ok(())
}

/// Stores keys in a collection, by Herd's wire, and checks that each was stored.
fn load(bench: &Bench, server: &Server, collection: u64, keys: u32) -> Result<()> {
    let spec = Spec {
        conns: 16,
        pipeline: 50,
        sequential: true,
        keys,
        value_bytes: VALUE_BYTES,
        collection: Some(collection),
        ..server.small(Proto::Herd, Op::Set)
    };
    let stored = bench.engine(&spec)?.ops;
    if stored == u64::from(keys) { Ok(()) } else { Err(Error::new(format!("{stored} of {keys} keys were stored"))) }
}

/// A window with a stroke in it, and how long that took, in milliseconds. The node keeps its core awake itself then.
fn beside(
    bench: &Bench,
    spec: &Spec,
    pids: &[i32],
    strike: impl FnOnce() -> Result<()> + Send,
) -> Result<(Outcome, f64)> {
    thread::scope(|scope| {
        let stroke = scope.spawn(|| {
            thread::sleep(Duration::from_millis(WARM_MS) + LEAD);
            let start = Instant::now();
            let until = start + Duration::from_millis(spec.run_ms) - LEAD;
            bench.awake.aside(SERVER_CORE, || -> Result<f64> {
                strike()?;
                let stroke_ms = start.elapsed().as_secs_f64() * 1e3;
                await_rest(pids, until)?;
                Ok(stroke_ms)
            })?
        });
        let outcome = bench.engine(spec);
        let stroke_ms = stroke.join().map_err(|_| Error::new("the stroke panicked"))??;
        Ok((outcome?, stroke_ms))
    })
}

/// Waits until the node has worked off what the stroke left to do, and rests more than it works.
fn await_rest(pids: &[i32], until: Instant) -> Result<()> {
    let mut used_ns = proc::cpu_ns(pids)?;
    while Instant::now() < until {
        thread::sleep(LOOK);
        let before_ns = std::mem::replace(&mut used_ns, proc::cpu_ns(pids)?);
        if u128::from(used_ns - before_ns) < LOOK.as_nanos() / 2 {
            break;
        }
    }
    Ok(())
}

fn note(bench: &mut Bench, group: &str, round: usize, outcome: &Outcome, more: &[(&'static str, f64)]) -> Result<()> {
    let mut values: BTreeMap<&'static str, f64> = c::values(outcome)?;
    values.insert("p9999_ms", p9999_ms(outcome));
    values.extend(more.iter().copied());
    bench.report.sample(Sample { line: LINE, group: group.into(), arm: ARM.into(), round, values })
}

fn p9999_ms(outcome: &Outcome) -> f64 {
    let mut latencies = Latencies::new();
    latencies.merge(&outcome.latencies);
    latencies.percentile_us(99.99) / 1e3
}

/// Asks for objects all over the memory of these collections.
fn touch(bench: &Bench, server: &Server, collections: &[u64]) -> Result<()> {
    for &collection in collections {
        let spec = Spec {
            keys: bench.options.calm_objects,
            value_bytes: VALUE_BYTES,
            rate_per_s: Some(TOUCH_RATE_PER_S),
            run_ms: TOUCH_MS,
            collection: Some(collection),
            ..server.small(Proto::Herd, Op::Get)
        };
        bench.engine(&spec)?;
    }
    Ok(())
}

/// Touches the memory until the node's metric has forgotten how objects were loaded.
fn await_forgotten(bench: &Bench, server: &Server, collections: &[u64]) -> Result<()> {
    let start = Instant::now();
    while start.elapsed() < FORGET && longest_turn_ms(server.addr)? > LONGEST_MS / 2.0 {
        touch(bench, server, collections)?;
    }
    Ok(())
}

/// The longest turn of any of the node's loops in the last minute or two.
fn longest_turn_ms(addr: SocketAddr) -> Result<f64> {
    const NAME: &str = "herd_loop_longest_turn_seconds";
    let page = ask::page(addr, "/metrics")?;
    let turns = page.lines().filter(|line| line.starts_with(NAME)).filter_map(|line| line.rsplit_once(' '));
    let turns: Vec<f64> = turns.filter_map(|(_, seconds)| seconds.parse().ok()).collect();
    Summary::of(&turns).map(|turns| turns.high * 1e3).ok_or_else(|| Error::new(format!("/metrics has no {NAME}")))
}
