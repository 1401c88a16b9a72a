//! `herd-lab figure`: the figures of the papers, drawn again on pretend networks, with peers beside Herd in each run.
//!
//! A figure is a list of cells; in a cell the arms take turns, round after round, each on a network and with servers
//! of its own: [`Figure::take`] builds, starts, loads and reads, for all of them alike. A run in which the processor
//! was busier than the figure allows measured the processor, not the link: it is said, and its bars are not judged.

mod elastic;
mod mixed;
mod peers;
mod speedup;
mod spread;
mod throughput;

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde_json::json;

use crate::awake::Awake;
use crate::error::{Error, Result};
use crate::net::{CONGESTION_CONTROL, HostId, Plan, sandbox};
use crate::peers::{Load, Peer, Values};
use crate::plot::curves::{Axis, Curve, Curves, Point, Quantity};
use crate::processor::{self, Processor, STOLEN_MAX, Shares};
use crate::proto::Op;
use crate::relay;
use crate::report::{Report, Sample, Summary};
use crate::run::{self, Programs};
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
    /// A herd of one to eight nodes on 100 Mbit/s: gets by clients that have its map, and through one address.
    #[value(name = "adhoc-spread")]
    Spread,
    /// An array of 16 KB objects over one to eight nodes on 100 Mbit/s, read and written by 8 clients [AdHoc, Fig. 4].
    #[value(name = "adhoc-array")]
    Array,
    /// A herd of three on 200 Mbit/s under load: a fourth node joins, one drains, one is killed and comes back empty.
    #[value(name = "herd-elastic")]
    Elastic,
    /// Every peer that is here, alike: small gets over 1 Gbit/s, as fast as replies come.
    Peers,
}

impl Name {
    /// As given on the command line.
    fn word(self) -> String {
        self.to_possible_value().expect("no figure is hidden").get_name().to_owned()
    }
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
    /// Bytes of all objects, in MiB (herd-elastic).
    #[arg(long, default_value_t = 1_024, value_parser = sizes)]
    pub(crate) size: usize,
    /// Where JSON lines and plots go.
    #[arg(long, default_value = "lab/results")]
    pub(crate) out: PathBuf,
}

/// A size in MiB that a herd of three can hold here.
fn sizes(text: &str) -> std::result::Result<usize, String> {
    let size = text.parse().ok().filter(|size| (1..=1_024).contains(size));
    size.ok_or_else(|| "from 1 to 1024".to_owned())
}

/// Who serves and who asks in a run, on which network.
struct Stage {
    plan: Plan,
    nodes: Vec<HostId>,
    clients: HostId,
    /// Core of the servers.
    core: Option<usize>,
}

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
    let name = options.name.word();
    let environment = json!({
        "figure": name, "rounds": options.rounds, "full": options.full, "short": options.short,
        "congestion_control": CONGESTION_CONTROL, "lab": env!("CARGO_PKG_VERSION"),
        "machine": processor::machine(), "versions": run::print_versions(&options.programs),
    });
    let report = Report::create(&options.out, &name, &environment)?;
    let mut figure = Figure { options, report, awake: Awake::start()? };
    match figure.options.name {
        Name::Throughput => throughput::run(&mut figure)?,
        Name::Speedup => speedup::run(&mut figure)?,
        Name::Spread => spread::spread(&mut figure)?,
        Name::Array => spread::array(&mut figure)?,
        Name::Mixed => mixed::run(&mut figure)?,
        Name::Elastic => elastic::run(&mut figure)?,
        Name::Peers => peers::run(&mut figure)?,
    }
    figure.report.print_verdicts(LINE);
    figure.report.conclude()
}

impl Figure {
    /// Those of these peers whose program is here.
    fn peers(&self, names: &[&str]) -> Vec<Box<dyn Peer>> {
        crate::peers::of(names, |program| self.options.programs.path(program))
    }

    /// A load's window and what comes before it, in milliseconds: `(warm, run)` of the long form.
    fn times(&self, run_ms: u64) -> (u64, u64) {
        if self.options.short { (200, 300) } else { (500, run_ms) }
    }

    /// Takes one sample; a void run does not count and is tried again after a pause. What goes wrong is a failure of
    /// this run, not of the figure.
    fn take(
        &mut self,
        (group, round): (&str, usize),
        peer: &dyn Peer,
        stage: impl Fn() -> Stage,
        load: &Load,
    ) -> Result<()> {
        let (awake_pid, short, arm) = (self.awake.pid(), self.options.short, peer.name());
        let taken = run::take(
            || processor::await_quiet(awake_pid),
            || {
                let values = self.run_once(peer, stage(), load)?;
                let reason = void(&values).filter(|_| !short);
                Ok((values, reason))
            },
        );
        let Some(values) = self.report.taken(&format!("{group}, round {round}"), arm, taken)? else { return Ok(()) };
        let (group, arm, values) = (group.to_owned(), arm.to_owned(), values.into_iter().collect());
        self.report.sample(Sample { line: LINE, group, arm, round, values })
    }

    /// Builds the network, starts the servers, loads them, reads what they gave, what it cost and what links carried.
    fn run_once(&mut self, peer: &dyn Peer, stage: Stage, load: &Load) -> Result<Values> {
        let Stage { plan, nodes, clients, core } = stage;
        let mut net = plan.build()?;
        let servers = peer.start_all(&net, &nodes, core)?;
        for server in &servers {
            self.report.options(peer.name(), &server.options_without_port())?;
        }
        let before = Processor::now(self.awake.pid())?;
        let mut values = peer.load(&net, clients, &servers, load)?;
        if let Some((_, count)) = values.iter().find(|(name, count)| *name == "unanswered" && *count > 0.0) {
            return Err(Error::new(format!("{count} requests unanswered")));
        }
        let Shares { idle, stolen } = Processor::now(self.awake.pid())?.since(before);
        if !values.iter().any(|(name, _)| *name == "idle") {
            values.push(("idle", idle));
        }
        let carried = nodes.iter().map(|node| net.link_bytes(*node)).collect::<Result<Vec<_>>>()?;
        let (received, sent) = carried.iter().fold((0, 0), |sum, link| (sum.0 + link.0, sum.1 + link.1));
        values.extend([("stolen", stolen), ("late", net.late_share()?)]);
        values.extend([("nodes received MB", received as f64 / 1e6), ("nodes sent MB", sent as f64 / 1e6)]);
        Ok(values)
    }

    /// A load of this figure, to be completed.
    fn load(&self, run_ms: u64, round: usize) -> Load {
        let (warm_ms, run_ms) = self.times(run_ms);
        Load {
            conns: 64,
            op: Op::Get,
            object_bytes: 0,
            objects: 1_000,
            gets_per_s: None,
            puts_per_s: None,
            warm_ms,
            run_ms,
            core: None,
            awake_pid: self.awake.pid(),
            seed: round as u64 + 1,
        }
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
}

/// Why a run does not count: the machine below was busy with others, or the relay came too late for its packets.
fn void(values: &Values) -> Option<String> {
    let share = |wanted: &str| values.iter().find(|(name, _)| *name == wanted).map_or(0.0, |(_, share)| *share);
    let (stolen, late) = (share("stolen"), share("late"));
    if stolen > STOLEN_MAX {
        return Some(format!("{:.0} % of the time was stolen", 100.0 * stolen));
    }
    (late > relay::LATE_MAX).then(|| format!("{:.0} % of the packets came late", 100.0 * late))
}

/// A linear axis of numbers.
fn linear(label: &str) -> Axis {
    Axis { label: label.into(), quantity: Quantity::Plain, log: false }
}

/// All samples of a figure are of one line.
const LINE: &str = "figure";
