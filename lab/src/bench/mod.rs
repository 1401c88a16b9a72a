//! `herd-lab bench`: the lines of the first milestone, each in a file of its own, and what they share.
//!
//! Arms of a comparison take turns within each round, in another order each time; servers are started
//! anew in each round, so that one unlucky memory layout does not stand for a server. The server has core 0, the
//! client core 1, unless a line says otherwise.

mod before;
pub(crate) mod c;
mod calm;
pub(crate) mod d;
pub(crate) mod e;
pub(crate) mod f;
pub(crate) mod g;
mod gib;
mod locks;
mod nodes;

use std::path::PathBuf;
use std::process::Command;

use clap::{Args, ValueEnum};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use crate::awake::Awake;
use crate::client;
use crate::error::{Error, Result};
use crate::net::private::{self, Network};
use crate::peers::server::Server;
use crate::peers::{Kind, Program};
use crate::plot::{Bar, Chart};
use crate::processor::machine;
use crate::proto::{Op, Proto};
use crate::report::{Report, Summary};
use crate::run::{Programs, print_versions};
use crate::spec::{Outcome, Spec};
use crate::sys;

/// Window of the short form's runs.
const SHORT_WINDOW_MS: u64 = 150;
/// Above this multiple of memcached's CPU per request the short form fails.
pub(crate) const GROSS: f64 = 1.5;

/// A line of the milestone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Line {
    /// Small get and put: server CPU per request.
    C,
    /// Large objects: GB/s and CPU seconds per GB.
    D,
    /// The tail of small gets beside large transfers.
    E,
    /// Memory: bytes per small object, and under churn.
    F,
    /// Connections: idle ones, and a crowd that reconnects.
    G,
    /// This Herd beside another one: CPU per request, memory per object. Only where it is named.
    Before,
    /// What strokes at millions of objects do to others, and the node's longest turn. Only where it is named.
    Calm,
    /// What nodes cost each other: requests that are handed on, puts of which two keep copies. Only where it is named.
    Nodes,
    /// Increments under one lock by 32 processes that are killed and stopped. Only where it is named.
    Locks,
}

impl Line {
    /// What is measured unless lines are named.
    const ALL: [Self; 5] = [Self::C, Self::D, Self::E, Self::F, Self::G];
}

/// Options of `bench`.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    #[command(flatten)]
    pub(crate) programs: Programs,
    /// Lines to measure.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Line::ALL)]
    pub(crate) lines: Vec<Line>,
    /// Line before: another Herd's binary, to compare with.
    #[arg(long)]
    pub(crate) before: Option<PathBuf>,
    /// Rounds of each comparison.
    #[arg(long, default_value_t = 7)]
    pub(crate) rounds: usize,
    /// Measured window of one run, in milliseconds.
    #[arg(long, default_value_t = 1_000)]
    pub(crate) window_ms: u64,
    /// Objects of line f's first part.
    #[arg(long, default_value_t = 10_000_000, value_parser = clap::value_parser!(u32).range(1..=16_000_000))]
    pub(crate) objects: u32,
    /// Objects of each of line calm's collections.
    #[arg(long, default_value_t = 5_000_000, value_parser = clap::value_parser!(u32).range(1..=16_000_000))]
    pub(crate) calm_objects: u32,
    /// Length of each half of line locks.
    #[arg(long, default_value_t = 60)]
    pub(crate) lock_seconds: u64,
    /// Length of line f's churn.
    #[arg(long, default_value_t = 600)]
    pub(crate) churn_seconds: u64,
    /// About one minute: line c at 64 connections and 16 MiB of line d; fails on wrong replies and gross ratios only.
    #[arg(long)]
    pub(crate) short: bool,
    /// Where JSON lines and plots go.
    #[arg(long, default_value = "lab/results")]
    pub(crate) out: PathBuf,
}

/// One server of a comparison and the door it is asked by.
#[derive(Clone, Debug)]
pub(crate) struct Arm {
    /// As printed.
    pub(crate) name: String,
    /// The server.
    pub(crate) peer: Program,
    /// The door.
    pub(crate) proto: Proto,
}

/// A bench in progress.
pub(crate) struct Bench {
    /// As given, the short form's changes applied.
    pub(crate) options: Options,
    /// What it found.
    pub(crate) report: Report,
    /// Keeps the processor awake until the end.
    pub(crate) awake: Awake,
    own_program: PathBuf,
    memcached: Option<PathBuf>,
    redis: Option<PathBuf>,
    /// iperf3's program.
    pub(crate) iperf3: Option<PathBuf>,
}

/// Runs a bench; an error when the run as a whole failed, by the short form's measure or by a failed arm.
pub(crate) fn run(mut options: Options) -> Result<()> {
    let network = private::enter();
    sys::raise_open_files()?;
    if options.short {
        (options.rounds, options.window_ms) = (2, SHORT_WINDOW_MS);
        options.lines = vec![Line::C, Line::D];
    }
    let mut bench = Bench::open(options, &network)?;
    for line in bench.options.lines.clone() {
        match line {
            Line::C => c::run(&mut bench)?,
            Line::D => d::run(&mut bench)?,
            Line::E => e::run(&mut bench)?,
            Line::F => f::run(&mut bench)?,
            Line::G => g::run(&mut bench)?,
            Line::Before => before::run(&mut bench)?,
            Line::Calm => calm::run(&mut bench)?,
            Line::Nodes => nodes::run(&mut bench)?,
            Line::Locks => locks::run(&mut bench)?,
        }
    }
    bench.report.conclude()
}

impl Bench {
    fn open(options: Options, network: &Network) -> Result<Self> {
        let (own_program, awake) = (client::program()?, Awake::start()?);
        let versions = print_versions(&options.programs);
        let (memcached, redis) = (options.programs.path("memcached"), options.programs.path("redis"));
        let iperf3 = options.programs.path("iperf3");
        println!("network    {network:?}");
        let environment = environment(&options, network, versions);
        let report = Report::create(&options.out, "bench", &environment)?;
        Ok(Self { options, report, awake, own_program, memcached, redis, iperf3 })
    }

    /// The arms of small operations; null servers answer `ops`, one arm each.
    pub(crate) fn arm(&self, name: &str, kind: Kind, proto: Proto) -> Option<Arm> {
        let program = match kind {
            Kind::Herd | Kind::HerdMember => self.options.programs.herd.clone(),
            Kind::Memcached(_) => self.memcached.clone(),
            Kind::Redis => self.redis.clone(),
            Kind::Pogocache => self.options.programs.pogocache.clone(),
            Kind::Nginx | Kind::Etcd | Kind::RedisMember => self.options.programs.path(kind.program()),
            Kind::Null { .. } | Kind::NullBulk { .. } => Some(self.own_program.clone()),
        }?;
        Some(Arm { name: name.to_owned(), peer: Program::new(kind, program), proto })
    }

    /// Runs the small-operation engine as a process.
    pub(crate) fn engine(&self, spec: &Spec) -> Result<Outcome> {
        self.client("engine", spec)
    }

    /// Runs one of our client subcommands with a specification.
    pub(crate) fn client<T: DeserializeOwned>(&self, subcommand: &str, spec: &impl Serialize) -> Result<T> {
        let mut command = Command::new(&self.own_program);
        sys::tie(&mut command, None);
        client::finish(client::start(command, subcommand, spec)?)
    }

    /// Stores all keys of `spec` through its door, pipelined, and checks that each was stored.
    pub(crate) fn preload(&self, server: &Server, proto: Proto, keys: u32, value_bytes: usize) -> Result<()> {
        let mut spec = server.small(proto, Op::Set);
        (spec.conns, spec.pipeline, spec.sequential) = (16, 50, true);
        (spec.keys, spec.value_bytes) = (keys, value_bytes);
        let outcome = self.engine(&spec)?;
        if outcome.ops == u64::from(keys) {
            return Ok(());
        }
        Err(Error::new(format!("{} of {keys} keys were stored", outcome.ops)))
    }

    /// Writes down how an arm's server was started, once for each way.
    pub(crate) fn started(&mut self, arm: &str, server: &Server) -> Result<()> {
        self.report.options(arm, &server.options_without_port())
    }

    /// Judges the ratio of a metric between two (group, arm): at most `bar`.
    pub(crate) fn judge_ratio(
        &mut self,
        line: &'static str,
        over: (&str, &str),
        under: (&str, &str),
        metric: &str,
        bar: f64,
    ) -> Result<()> {
        let ratio = self.report.ratio(line, over, under, metric);
        let other_group = if over.0 == under.0 { String::new() } else { format!(" ({})", under.0) };
        let what = format!("{metric}: {}, {} / {}{other_group}", over.0, over.1, under.1);
        self.report.judge(line, what, ratio, bar, true)
    }

    /// Prints a ratio that no bar is for.
    pub(crate) fn print_ratio(&self, line: &str, over: (&str, &str), under: (&str, &str), metric: &str) {
        if let Some(Summary { median, low, high }) = self.report.ratio(line, over, under, metric) {
            println!("  {median:.3} ({low:.3}..{high:.3})  {metric}: {}, {} / {}, not judged", over.0, over.1, under.1);
        }
    }

    /// Draws a metric of a line's groups as bars.
    pub(crate) fn chart(
        &mut self,
        line: &'static str,
        name: &str,
        title: &str,
        unit: &str,
        metric: &str,
        wanted: impl Fn(&str) -> bool,
    ) -> Result<()> {
        let mut groups = Vec::new();
        for group in self.report.groups(line).into_iter().filter(|group| wanted(group)) {
            let bar = |arm: String| {
                let Summary { median, low, high } = self.report.summary(line, &group, &arm, metric)?;
                Some(Bar { arm, median, low, high })
            };
            let bars: Vec<Bar> = self.report.arms(line, &group).into_iter().filter_map(bar).collect();
            if !bars.is_empty() {
                groups.push((group, bars));
            }
        }
        self.report.draw(name, &Chart::Bars { title: title.into(), unit: unit.into(), groups })
    }

    /// Draws resident MiB over seconds and the limit.
    pub(crate) fn line_chart(&mut self, name: &str, title: &str, values: &[f64], limit: f64) -> Result<()> {
        let unit = "resident MiB".to_owned();
        self.report.draw(name, &Chart::Line { title: title.into(), unit, values: values.to_vec(), limit })
    }
}

fn environment(options: &Options, network: &Network, versions: serde_json::Map<String, Value>) -> Value {
    let mut environment = machine();
    let more = [
        ("network", json!(network)),
        ("versions", json!(versions)),
        ("rounds", json!(options.rounds)),
        ("window_ms", json!(options.window_ms)),
        ("short", json!(options.short)),
        ("lines", json!(options.lines)),
        ("lab", json!(env!("CARGO_PKG_VERSION"))),
    ];
    environment.extend(more.into_iter().map(|(name, fact)| (name.to_owned(), fact)));
    Value::Object(environment)
}
