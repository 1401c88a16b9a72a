//! `herd-lab failover`: five real nodes with three copies of each object, two needed for a write, on a pretend network
//! where one can be made. Nodes are killed, stopped, cut off and detached while each group is written to all the time,
//! and what is measured is how long writes stay away, what fails that should not, and what is served that must not be.
//!
//! Each line is a row or two of a table (`table`) with its bar. Who writes is in `probe`: for each group that is hit
//! one of Herd's own clients and one of memcached's protocol at another node.

mod idle;
mod paused;
mod probe;
mod reach;
mod rolling;
mod strike;
mod table;
mod warden;

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};

use crate::error::{Context, Error, Result};
use crate::failover::strike::Way;
use crate::failover::table::{HEAD, Row};
use crate::faults::ledger;
use crate::faults::tally::Verdict;
use crate::nodes::{Herd, Hosts, MEMORY, Shape};

/// A line of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Line {
    /// kill -9 of a node: what it led.
    Kill,
    /// SIGSTOP of a node: what it led, and what it had a copy of.
    Stop,
    /// The cable of a node is pulled: the same.
    Cut,
    /// kill -9 of the warden's node: what has no member there, and what has, after its restart.
    Warden,
    /// A node that is stopped beyond its lease, with requests in its sockets.
    Paused,
    /// How long until each of many nodes has a new map.
    Map,
    /// What a herd with nothing to do writes to the control store.
    Idle,
    /// All nodes are restarted, one after the other, under load.
    Rolling,
    /// `herd detach --now` of a node: what it led, and what it had a copy of.
    Detach,
}

/// Options of `failover`.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Herd's binary.
    #[arg(long)]
    herd: PathBuf,
    /// Another release of Herd: in line rolling each node is restarted as that, and then as this again.
    #[arg(long, value_name = "PROGRAM")]
    other: Option<PathBuf>,
    /// Which lines [default: all].
    #[arg(long, value_enum, value_delimiter = ',')]
    lines: Vec<Line>,
    /// Kills; a third as many of what takes longer.
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rounds: u32,
    /// How long a herd idles, in minutes.
    #[arg(long, default_value_t = 2.0)]
    idle_minutes: f64,
    /// Nodes that a new map is to reach.
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u8).range(3..=64))]
    processes: u8,
    /// One round of each line but cut, few nodes, less than a minute; what is wrong makes it fail, and nothing that is
    /// slow. Nothing is added to the ledger.
    #[arg(long)]
    short: bool,
    /// Where logs and the nodes' directories go.
    #[arg(long, default_value = "lab/results/failover")]
    out: PathBuf,
    /// Where a line is added when all is done.
    #[arg(long, default_value = "lab/evidence/failover.jsonl")]
    ledger: PathBuf,
}

/// Nodes, copies of each object, and how long a node may be silent.
const NODES: usize = 5;
const COPIES: u8 = 3;
const LEASE: Duration = Duration::from_secs(2);
/// The herd is whole again within this.
const WHOLE: Duration = Duration::from_secs(60);
/// Nodes of the short form's long line, and how long its herd idles.
const SHORT_PROCESSES: u8 = 8;
const SHORT_IDLE_MINUTES: f64 = 0.05;

impl Options {
    /// As they are meant: the short form is short.
    fn settled(mut self) -> Self {
        if self.short {
            (self.rounds, self.processes, self.idle_minutes) = (1, SHORT_PROCESSES, SHORT_IDLE_MINUTES);
        }
        if self.lines.is_empty() {
            self.lines = Line::value_variants().to_vec();
            self.lines.retain(|line| !(self.short && *line == Line::Cut));
        }
        self
    }

    /// Rounds of what takes seconds each.
    fn long_rounds(&self) -> u32 {
        self.rounds.div_ceil(3)
    }

    /// The command that does the same again, without places of this machine.
    fn command(&self) -> String {
        let Self { rounds, processes, idle_minutes, other, .. } = self;
        let other = if other.is_some() { " --other OTHER" } else { "" };
        let words: Vec<String> = self.lines.iter().map(|line| line.word()).collect();
        format!(
            "herd-lab failover --herd target/release/herd --lines {} --rounds {rounds} --processes {processes} \
             --idle-minutes {idle_minutes}{other}",
            words.join(",")
        )
    }
}

impl Line {
    fn word(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

/// What lines have in common.
struct Run<'a> {
    options: &'a Options,
    dir: PathBuf,
    rows: Vec<Row>,
    /// The herd of five, once it is there; the hosts, while no herd has them.
    herd: Option<Herd>,
    hosts: Option<Hosts>,
}

/// Measures all; false if a bar is missed.
pub(crate) fn run(options: &Options) -> Result<bool> {
    let options = options.clone().settled();
    let begun = Instant::now();
    let hosts = Hosts::own(NODES)?;
    let dir = options.out.join(format!("run-{}", std::process::id()));
    fresh(&dir)?;
    println!("{}, files in {}", options.command(), dir.display());
    let mut run = Run { options: &options, dir, rows: Vec::new(), herd: None, hosts };
    let mut broken = Vec::new();
    for line in &options.lines {
        println!("{}", line.word());
        if let Err(error) = run.measure(*line) {
            println!("  FAILED: {error}");
            broken.push(error.within(&line.word()).to_string());
        }
    }
    println!("\n{HEAD}");
    run.rows.iter().for_each(|row| println!("{row}"));
    // A machine that tests run on may be busy: there times, and what came too late, are told only.
    let is_judged = |row: &&Row| !options.short || row.is_wrong || row.count == 0;
    let mut short: Vec<String> = run.rows.iter().filter(is_judged).filter_map(Row::shortfall).collect();
    short.append(&mut broken);
    let verdict = if short.is_empty() { Verdict::Passed } else { Verdict::Failed(short) };
    println!("{verdict}");
    if !options.short {
        let (seconds, rows) = (begun.elapsed().as_secs(), run.rows.clone());
        let line = ledger::Line::new(&options.command(), &options.herd, Vec::new(), seconds, rows);
        line.finish(&verdict).append(&options.ledger)?;
        println!("a line was added to {}", options.ledger.display());
    }
    Ok(verdict == Verdict::Passed)
}

impl Run<'_> {
    fn measure(&mut self, line: Line) -> Result<()> {
        match line {
            Line::Kill => self.strike(Way::Kill, self.options.rounds),
            Line::Stop => self.strike(Way::Stop, self.options.long_rounds()),
            Line::Cut => self.strike(Way::Cut, self.options.long_rounds()),
            Line::Detach => self.strike(Way::Detach, self.options.long_rounds()),
            Line::Warden => self.without_warden(),
            Line::Paused => self.paused(),
            Line::Map => self.reach(),
            Line::Idle => self.idle(),
            Line::Rolling => self.rolling(),
        }
    }

    /// The herd of five; the first line that needs it starts it. A warden that has just come into office takes nobody
    /// out for two leases (docs/guide/herd.md): the herd is older than that.
    fn herd(&mut self) -> Result<&Herd> {
        if self.herd.is_none() {
            let dir = self.dir.join("five");
            let herd = Herd::start(self.shape(NODES, COPIES, MEMORY, dir)?, self.hosts.take())?;
            herd.on_clients(|| {
                probe::put_first(herd.place(0))?;
                probe::make_caches(herd.place(0))
            })?;
            herd.wait_whole(0, WHOLE)?;
            thread::sleep(2 * LEASE);
            self.herd = Some(herd);
        }
        self.herd.as_ref().ok_or_else(|| Error::new("there is no herd"))
    }

    /// A herd of that many nodes.
    fn shape(&self, nodes: usize, replicas: u8, memory: &'static str, dir: PathBuf) -> Result<Shape> {
        fresh(&dir)?;
        let (program, replicas) = (self.options.herd.clone(), Some(replicas));
        Ok(Shape { program, nodes, room: nodes, replicas, memory, small: None, etcd: None, dir })
    }

    /// Whether this is on a network of its own, where cables can be pulled.
    fn has_links(&self) -> bool {
        self.hosts.is_some() || self.herd.as_ref().is_some_and(|herd| herd.hosts.is_some())
    }
}

/// A directory with nothing in it.
fn fresh(dir: &Path) -> Result<()> {
    if dir.exists() {
        fs::remove_dir_all(dir).during(|| format!("remove {}", dir.display()))?;
    }
    fs::create_dir_all(dir).during(|| format!("create {}", dir.display()))
}
