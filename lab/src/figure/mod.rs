//! `herd-lab figure`: the figures of the papers, drawn again on pretend networks, with peers beside Herd in each run.
//!
//! A figure is a list of cells; in a cell the arms take turns, round after round, each on a network and with servers
//! of its own. A run in which the processor was busier than the figure allows measured the processor, not the link: it
//! is said, and its bars are not judged.

mod mixed;
mod speedup;
mod throughput;

use std::path::PathBuf;
use std::process::Child;

use clap::{Args, ValueEnum};
use serde::Serialize;
use serde_json::json;

use crate::awake::Awake;
use crate::bench::Programs;
use crate::client;
use crate::crowd::{CrowdOutcome, CrowdSpec};
use crate::error::Result;
use crate::hist::{Latencies, Recorded};
use crate::net::processor::{Processor, Shares};
use crate::net::{CONGESTION_CONTROL, HostId, Network, sandbox};
use crate::peers::{Kind, Peer, Server, Setup};
use crate::plot::curves::{Axis, Curve, Curves, Point, Quantity};
use crate::proto::Proto;
use crate::report::{Report, Sample, Summary};
use crate::sys;

/// A figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Name {
    /// One node on 100 Mbit/s and 1 Gbit/s, messages of 512 B to 1 MB, 1 to 3,072 connections [HOC, Performance
    /// figures].
    #[value(name = "hoc-throughput")]
    Throughput,
    /// One to eight nodes on thin links, keys spread over them: bytes/s and hits/s against linear [HOC, Speedup].
    #[value(name = "hoc-speedup")]
    Speedup,
    /// Gets and puts together at rising load: what is achieved, and how long it takes.
    #[value(name = "hoc-mixed")]
    Mixed,
}

/// Options of `figure`.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Which.
    #[arg(value_enum)]
    pub(crate) name: Name,
    #[command(flatten)]
    pub(crate) programs: Programs,
    /// Rounds of each cell.
    #[arg(long, default_value_t = 3)]
    pub(crate) rounds: usize,
    /// Every cell of the grid instead of a chosen few.
    #[arg(long)]
    pub(crate) full: bool,
    /// One cell, one round, short windows: whether it runs at all. Part of `make test`.
    #[arg(long, conflicts_with = "full")]
    pub(crate) short: bool,
    /// Where JSON lines and plots go.
    #[arg(long, default_value = "lab/results")]
    pub(crate) out: PathBuf,
}

/// A server that takes part, and the door it is asked by.
#[derive(Clone, Debug)]
pub(crate) struct Arm {
    /// As printed.
    name: &'static str,
    peer: Peer,
    proto: Proto,
}

/// What a run measured: names with their units, and numbers.
type Values = Vec<(&'static str, f64)>;

/// A figure in progress.
pub(crate) struct Figure {
    options: Options,
    report: Report,
    awake: Awake,
}

/// Measures and draws one figure; an error if a run failed.
pub(crate) fn run(mut options: Options) -> Result<()> {
    sandbox::enter(false)?;
    sys::raise_open_files()?;
    if options.short {
        options.rounds = 1;
    }
    let name = options.name.to_possible_value().expect("no figure is hidden").get_name().to_owned();
    let environment = json!({
        "figure": name, "rounds": options.rounds, "full": options.full, "short": options.short,
        "congestion_control": CONGESTION_CONTROL, "lab": env!("CARGO_PKG_VERSION"),
        "machine": crate::bench::machine(), "versions": crate::bench::print_versions(&options.programs),
    });
    let report = Report::create(&options.out, &name, &environment)?;
    let mut figure = Figure { options, report, awake: Awake::start()? };
    match figure.options.name {
        Name::Throughput => throughput::run(&mut figure)?,
        Name::Speedup => speedup::run(&mut figure)?,
        Name::Mixed => mixed::run(&mut figure)?,
    }
    figure.report.print_verdicts(LINE);
    figure.report.conclude()
}

impl Figure {
    /// Herd by its two doors for small objects, and memcached; those whose program is there.
    fn arms(&self) -> Vec<Arm> {
        let arm = |name, kind, program: &str, proto| {
            let program = self.options.programs.path(program)?;
            Some(Arm { name, peer: Peer::new(kind, program), proto })
        };
        let arms = [
            arm("herd text", Kind::Herd, "herd", Proto::Memcached),
            arm("herd wire", Kind::Herd, "herd", Proto::Herd),
            arm("memcached", Kind::Memcached, "memcached", Proto::Memcached),
        ];
        arms.into_iter().flatten().collect()
    }

    /// Starts an arm's server on a host; `core`: the one it stays on.
    fn start(&mut self, arm: &Arm, net: &Network, host: HostId, core: Option<usize>) -> Result<Server> {
        let host_address = Some(net.address(host));
        let setup = Setup { memory_mib: 1_024, item_max_mib: 16, host: host_address, core, ..Setup::default() };
        let server = net.on(host, || arm.peer.start(&setup))?;
        self.report.options(arm.name, &server.options_without_port())?;
        Ok(server)
    }

    /// Runs a crowd on a host.
    fn crowd(&self, net: &Network, host: HostId, spec: &CrowdSpec) -> Result<CrowdOutcome> {
        client::finish(self.client(net, host, "crowd", spec)?)
    }

    /// Starts one of our client subcommands on a host.
    fn client(&self, net: &Network, host: HostId, subcommand: &str, spec: &impl Serialize) -> Result<Child> {
        let program = client::program()?;
        client::start(net.command(host, &program), subcommand, spec)
    }

    /// A chart of a metric over a variable: one curve for each arm through the groups, whose places are given.
    fn curves(&self, title: &str, x: Axis, y: Axis, metric: &str, groups: &[(f64, String)], scale: f64) -> Curves {
        let mut arms: Vec<String> = Vec::new();
        for arm in groups.iter().flat_map(|(_, group)| self.report.arms(LINE, group)) {
            if !arms.contains(&arm) {
                arms.push(arm);
            }
        }
        let point = |arm: &str, (x, group): &(f64, String)| {
            let Summary { median, low, high } = self.report.summary(LINE, group, arm, metric)?;
            Some(Point { x: *x, median: median * scale, low: low * scale, high: high * scale })
        };
        let curve = |arm: String| {
            let points = groups.iter().filter_map(|group| point(&arm, group)).collect();
            Curve { name: arm, points }
        };
        let curves = arms.into_iter().map(curve).filter(|curve| !curve.points.is_empty()).collect();
        Curves { title: title.into(), x, y, curves, limits: Vec::new(), stars: Vec::new() }
    }

    /// Takes one sample: `run` gives what it measured; how idle the processor was is added. A run of which too much
    /// time was stolen is void, and tried again twice; what goes wrong is a failure of this run, not of the figure.
    fn take(
        &mut self,
        (group, arm, round): (&str, &str, usize),
        mut run: impl FnMut(&mut Self) -> Result<Values>,
    ) -> Result<()> {
        for attempt in 1..=ATTEMPTS {
            let before = Processor::now(&self.awake)?;
            let mut values = match run(self) {
                Ok(values) => values,
                Err(error) => return self.report.failure(format!("{group}, {arm}, round {round}: {error}")),
            };
            let Shares { idle, stolen } = Processor::now(&self.awake)?.since(before);
            if stolen > STOLEN_MAX && !self.options.short && attempt < ATTEMPTS {
                let what = format!("{group}, {arm}, round {round}: {:.0} % of the time was stolen", 100.0 * stolen);
                println!("  again: {what}");
                self.report.write("void", &what)?;
                continue;
            }
            values.extend([("idle", idle), ("stolen", stolen)]);
            let (group, arm) = (group.to_owned(), arm.to_owned());
            let values = values.into_iter().collect();
            return self.report.sample(Sample { line: LINE, group, arm, round, values });
        }
        Ok(())
    }
}

fn percentile_ms(recorded: &Recorded, percent: f64) -> f64 {
    let mut latencies = Latencies::new();
    latencies.merge(recorded);
    latencies.percentile_us(percent) / 1e3
}

fn p99_ms(recorded: &Recorded) -> f64 {
    percentile_ms(recorded, 99.0)
}

/// A linear axis of numbers.
fn linear(label: &str) -> Axis {
    Axis { label: label.into(), quantity: Quantity::Plain, log: false }
}

/// Share of a run's time beyond which the machine below us was busy with others, and the run is void.
const STOLEN_MAX: f64 = 0.03;
/// Tries of a run, the last of which counts however it was.
const ATTEMPTS: usize = 3;

/// All samples of a figure are of one line.
const LINE: &str = "figure";
