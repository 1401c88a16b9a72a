//! Line nodes: what nodes cost each other, server CPU of all nodes per small request: gets and puts that a node hands
//! on because another has the object, and puts of which two nodes keep a copy, each beside one node alone.
//!
//! A node that joins gets its part of the objects. So a window begins when nothing moves any more, and what is asked is
//! the objects that the first node decides on: at that node, or at the other one, which hands on all of it.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use crate::ask::Asker;
use crate::bench::c::values;
use crate::bench::{Arm, Bench};
use crate::error::{Error, Result};
use crate::map::Map;
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
/// How long the second node may take to get its part.
const PART_PATIENCE: Duration = Duration::from_secs(60);
/// Nothing has moved for so long: nothing does any more.
const STILL: Duration = Duration::from_secs(1);
const LOOK: Duration = Duration::from_millis(10);
/// Windows of each kind in a round; an odd one out is the machine's.
const WINDOWS: usize = 3;

/// What stands beside what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Case {
    /// One node alone.
    Alone,
    /// Asked at a node that has none of these objects.
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
            if let Err(error) = windows(bench, arm, round) {
                bench.report.failure(format!("[{LINE}] {}: {error}", arm.name))?;
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

/// Windows of all cases in turn: the machine is faster at one time than at another, and so a ratio is of two windows
/// that are seconds apart. A round in which objects went to another node after all is none.
fn windows(bench: &mut Bench, arm: &Arm, round: usize) -> Result<()> {
    let (mut scenes, mut samples) = (Vec::new(), Vec::new());
    for case in CASES {
        let scene = Scene::begin(bench, arm, case).map_err(|error| Error::new(format!("{case:?}: {error}")))?;
        scenes.push(scene);
    }
    for window in 0..WINDOWS {
        let (run_ms, number) = (bench.options.window_ms, round * WINDOWS + window);
        for op in [Op::Get, Op::Set] {
            for scene in alternated(&scenes, window) {
                let spec = Spec { op, run_ms, seed: number as u64 + 1, ..scene.usual.clone() };
                let outcome = bench.engine(&spec)?;
                if outcome.unanswered > 0 {
                    return Err(Error::new(format!("{:?}: {} requests unanswered", scene.case, outcome.unanswered)));
                }
                let (arm, group) = (arm.name.clone(), group(op, scene.case));
                samples.push(Sample { line: LINE, group, arm, round: number, values: values(&outcome)? });
            }
        }
    }
    for scene in &scenes {
        scene.check_led()?;
    }
    samples.into_iter().try_for_each(|sample| bench.report.sample(sample))
}

/// A case's nodes, full of objects, and what they are asked.
struct Scene {
    case: Case,
    usual: Spec,
    /// The first one decides on what is asked for. They end with this.
    nodes: Vec<Server>,
}

impl Scene {
    fn begin(bench: &mut Bench, arm: &Arm, case: Case) -> Result<Self> {
        let replicas = if case == Case::TwoCopies { 2 } else { 1 };
        let setup = Setup { value_bytes: VALUE_BYTES, replicas, ..Setup::default() };
        let mut nodes = vec![arm.peer.start(&setup)?];
        let addr = nodes[0].addr;
        bench.started(&arm.name, &nodes[0])?;
        // Who joins a herd with objects gets its part of them. But when a second copy of them is whole the map does not
        // tell, so these are put when there are two nodes.
        if case != Case::TwoCopies {
            bench.preload(&nodes[0], arm.proto, KEYS, VALUE_BYTES)?;
        }
        let mut chosen = Vec::new();
        if case != Case::Alone {
            nodes.push(arm.peer.start(&Setup { join: Some(addr), ..setup.clone() })?);
            chosen = led_by(addr, usize::from(replicas))?;
        }
        if case == Case::TwoCopies {
            bench.preload(&nodes[0], arm.proto, KEYS, VALUE_BYTES)?;
        }
        let asked = if case == Case::HandedOn { &nodes[1] } else { &nodes[0] };
        let server_pids = nodes.iter().map(Server::pid).collect();
        let usual =
            Spec { keys: KEYS, chosen, value_bytes: VALUE_BYTES, server_pids, ..asked.small(arm.proto, Op::Get) };
        Ok(Self { case, usual, nodes })
    }

    /// Fails if the first node no longer decides on just what was asked for.
    fn check_led(&self) -> Result<()> {
        let addr = self.nodes[0].addr;
        let led = match self.case {
            Case::Alone => Vec::new(),
            Case::HandedOn | Case::TwoCopies => {
                let map = Asker::open(addr)?.map()?;
                map.map_or(Vec::new(), |map| led_in(&map, addr))
            }
        };
        if led == self.usual.chosen {
            return Ok(());
        }
        Err(Error::new(format!("{:?}: groups went to other nodes while they were measured", self.case)))
    }
}

/// The keys whose objects this node decides on, once the other one has its part of the groups and nothing moves.
fn led_by(addr: SocketAddr, copies: usize) -> Result<Vec<u32>> {
    let led = led_in(&parted(addr, copies)?, addr);
    if led.is_empty() { Err(Error::new(format!("{addr} leads no group"))) } else { Ok(led) }
}

fn led_in(map: &Map, addr: SocketAddr) -> Vec<u32> {
    (0..KEYS).filter(|number| map.owner_by_name(DEFAULT_COLLECTION, &key(*number)) == Some(addr)).collect()
}

/// The map in which another node leads groups too, and which has no copy that moves.
fn parted(addr: SocketAddr, copies: usize) -> Result<Map> {
    let until = Instant::now() + PART_PATIENCE;
    let mut still_since = Instant::now();
    while Instant::now() < until {
        thread::sleep(LOOK);
        // The node that joined is ready when it has the map; the others hear of it a moment later.
        let map = Asker::open(addr)?.map()?;
        let is_led_elsewhere =
            |map: &Map| map.groups().any(|group| map.members(group).first().is_some_and(|leader| *leader != addr));
        match map {
            Some(map) if is_led_elsewhere(&map) && !map.has_more_than(copies) => {
                if still_since.elapsed() > STILL {
                    return Ok(map);
                }
            }
            _ => still_since = Instant::now(),
        }
    }
    Err(Error::new(format!("the second node does not get its part of the groups within {PART_PATIENCE:?}")))
}
