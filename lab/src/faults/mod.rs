//! `herd-lab faults`: a herd of real nodes that keeps three copies is killed, stopped, cut off and slowed down with
//! writes under way, and nothing that was acknowledged may be missing, no read may be old, no history illegal, and no
//! two copies different.
//!
//! A run is a row of *rounds*. In each a few faults (`schedule`) befall the herd while two kinds of clients ask it:
//! those of a history (`histories::work`), which the checker judges, and those of registers (`field`), which are judged
//! as they go (`register`). At the end of a round everything is read through the nodes, and `herd fsck` compares the
//! copies. What counts as a fault is said in `strike`, what a run must have seen in `tally`. After each round the
//! state is written down: `--resume` goes on there, with a herd that is begun anew. A run that is complete adds a line
//! to the ledger (`ledger`).

mod body;
pub(crate) mod field;
mod fill;
pub(crate) mod ledger;
pub(crate) mod outlast;
pub(crate) mod redis;
pub(crate) mod register;
mod round;
mod schedule;
pub(crate) mod seen;
mod state;
pub(crate) mod strike;
pub(crate) mod tally;

use std::collections::VecDeque;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::Args;

use crate::error::{Context, Error, Result};
use crate::faults::field::Field;
use crate::faults::round::{Judging, Round};
use crate::faults::schedule::LIFE;
use crate::faults::state::State;
use crate::faults::tally::Verdict;
use crate::histories::judge::Judge;
use crate::nodes::{Herd, Hosts, MEMORY, Shape};

/// Options of `faults`.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Herd's binary.
    #[arg(long)]
    herd: PathBuf,
    /// What is drawn depends on it; which request meets which does not [default: the time].
    #[arg(long)]
    seed: Option<u64>,
    /// Faults that must hit a write.
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    faults: u64,
    /// Nodes at first; one more comes later.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u8).range(3..=5))]
    nodes: u8,
    /// Requests of each history.
    #[arg(long, default_value_t = 5_000)]
    operations: usize,
    /// Eight faults and short histories, less than a minute; nothing is added to the ledger.
    #[arg(long)]
    short: bool,
    /// Go on with the run of this seed where it was broken off.
    #[arg(long, requires = "seed")]
    resume: bool,
    /// An etcd, whatever its version: it keeps the map of the herd, and is killed and stopped too.
    #[arg(long, value_name = "PROGRAM")]
    etcd: Option<PathBuf>,
    /// The checker [default: herd-histories beside this program].
    #[arg(long)]
    checker: Option<PathBuf>,
    /// The checker's longest time for one history, in seconds.
    #[arg(long, default_value_t = 60)]
    checker_seconds: u64,
    /// Then let a Redis Cluster of three masters and three replicas meet stops and kills of masters, and count what it
    /// has lost.
    #[arg(long)]
    beside: bool,
    /// Redis's server, for --beside.
    #[arg(long, default_value = "redis-server")]
    redis: PathBuf,
    /// Where state, logs and histories that are not legal go.
    #[arg(long, default_value = "lab/results/faults")]
    out: PathBuf,
    /// Where a line is added when all is done.
    #[arg(long, default_value = "lab/evidence/faults.jsonl")]
    ledger: PathBuf,
}

/// Faults of the short form, and requests of its histories.
const SHORT: (u64, usize) = (8, 600);
/// The short form's seed, unless another is named: what fails is to fail again.
const SHORT_SEED: u64 = 1;
/// Faults of a round.
const EACH_ROUND: usize = 2;
/// A run that has seen too little goes on for at most one in so many faults more.
const MORE: u64 = 5;
/// A run whose faults hit no write more often than one in so many gives up.
const MISSES: u64 = 2;
/// Registers that are written while a node is stopped.
const GATES: usize = 64;

impl Options {
    /// As they are meant: the short form is short, the seed is known.
    fn settled(mut self) -> Self {
        if self.short {
            (self.faults, self.operations) = SHORT;
            self.seed = self.seed.or(Some(SHORT_SEED));
        }
        let now = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |since| since.as_secs());
        self.seed = self.seed.or_else(|| Some(now()));
        self
    }

    fn seed(&self) -> u64 {
        self.seed.unwrap_or(SHORT_SEED)
    }

    /// The command that does the same again, without places of this machine.
    fn command(&self) -> String {
        let Self { faults, nodes, operations, etcd, .. } = self;
        let seed = self.seed();
        let etcd = if etcd.is_some() { " --etcd etcd" } else { "" };
        format!(
            "herd-lab faults --herd target/release/herd --seed {seed} --faults {faults} --nodes {nodes} \
             --operations {operations}{etcd}"
        )
    }
}

/// Runs all; false if it failed, or saw too little.
pub(crate) fn run(options: &Options) -> Result<bool> {
    let options = options.clone().settled();
    let room = usize::from(options.nodes) + 1;
    let hosts = Hosts::own(room + usize::from(options.etcd.is_some()))?;
    let dir = options.out.join(format!("seed-{}", options.seed()));
    let state = if options.resume {
        State::read(&dir)?.of(&options.command())?
    } else {
        State::begin(&dir, &options.command())?
    };
    println!("{}, files in {}", options.command(), dir.display());
    let mut run = Run { options: &options, dir: &dir, state, judge: find_judge(&options)?, life: None, hosts };
    if options.etcd.is_none() {
        println!("SKIPPED etcd killed and paused: the map is kept by the herd itself (--etcd)");
    }
    run.go_on()
}

/// The checker; where there is none, histories are made all the same, and not judged.
fn find_judge(options: &Options) -> Result<Option<Judge>> {
    match Judge::find(options.checker.as_deref(), Duration::from_secs(options.checker_seconds)) {
        Err(error) if error.is_lacking() => {
            println!("SKIPPED the judgement of histories: {error}");
            Ok(None)
        }
        found => found.map(Some),
    }
}

/// A herd, and what is in it.
struct Life {
    herd: Herd,
    field: Field,
    prefix: String,
    gates: Vec<usize>,
    bodies: VecDeque<String>,
}

/// A run as far as it has come.
struct Run<'a> {
    options: &'a Options,
    dir: &'a Path,
    state: State,
    judge: Option<Judge>,
    life: Option<Life>,
    /// While no herd has them.
    hosts: Option<Hosts>,
}

impl Run<'_> {
    /// Round after round until enough faults have hit, or something is wrong.
    fn go_on(&mut self) -> Result<bool> {
        let begun = Instant::now();
        let before = self.state.tally.seconds;
        let mut judging = self.begin_judging(self.state.unjudged.clone());
        while self.wants_more() {
            let made = self.round();
            if let Some(judging) = judging.take() {
                judging.end(&mut self.state.tally);
            }
            self.state.unjudged = made.map_err(|error| self.fail(error.to_string())).ok();
            judging = self.begin_judging(self.state.unjudged.clone());
            self.state.tally.seconds = before + begun.elapsed().as_secs();
            self.state.write(self.dir)?;
        }
        if let Some(judging) = judging {
            judging.end(&mut self.state.tally);
        }
        self.state.unjudged = None;
        self.end()
    }

    /// Has a history judged, if there is one and who judges it.
    fn begin_judging(&self, file: Option<PathBuf>) -> Option<Judging> {
        Some(Judging::begin(self.judge.clone()?, file?))
    }

    fn wants_more(&self) -> bool {
        let (tally, faults) = (&self.state.tally, self.options.faults);
        let most = if tally.lacks(faults).is_empty() { faults } else { faults + faults / MORE };
        let patience = faults.div_ceil(MISSES).max(4);
        tally.wrongs().is_empty() && tally.counted() < most && tally.missed < patience
    }

    fn fail(&mut self, why: String) {
        println!("FAILED step {}: {why}", self.state.step);
        self.state.tally.problems.push(why);
    }

    /// One round; the file of its history.
    fn round(&mut self) -> Result<PathBuf> {
        let step = self.state.step;
        if self.life.is_none() || step.is_multiple_of(LIFE) {
            self.begin_life()?;
        }
        let life = self.life.as_mut().ok_or_else(|| Error::new("there is no herd"))?;
        let Life { herd, field, prefix, gates, bodies } = life;
        let mut round = Round {
            herd,
            field,
            prefix,
            gates,
            seed: self.options.seed(),
            steps: step..step + EACH_ROUND,
            serial: step as u64 * 1_000,
            operations: self.options.operations,
            small: usize::from(self.options.nodes) - 1,
            dir: self.dir,
        };
        let made = round.run(bodies, &mut self.state.tally);
        self.state.step += EACH_ROUND;
        made
    }

    /// Another herd, with nothing in it.
    fn begin_life(&mut self) -> Result<()> {
        if let Some(life) = self.life.take() {
            self.hosts = life.herd.end();
        }
        let step = self.state.step;
        let dir = self.dir.join(format!("herd-{step}"));
        // What a run that was broken off has left would be another herd's.
        if dir.exists() {
            fs::remove_dir_all(&dir).during(|| format!("remove {}", dir.display()))?;
        }
        fs::create_dir_all(&dir).during(|| format!("create {}", dir.display()))?;
        let nodes = usize::from(self.options.nodes);
        let (program, etcd) = (self.options.herd.clone(), self.options.etcd.clone());
        let (memory, small) = (MEMORY, Some(fill::MEMORY));
        let shape = Shape { program, nodes, room: nodes + 1, replicas: Some(3), memory, small, etcd, dir };
        let herd = Herd::start(shape, self.hosts.take())?;
        let prefix = format!("{}.{step}.", self.options.seed());
        let field = Field::new(prefix.clone());
        let gates = (0..GATES).map(|_| field.own()).collect();
        self.life = Some(Life { herd, field, prefix, gates, bodies: VecDeque::new() });
        Ok(())
    }

    /// What a Redis Cluster makes of the like, if that was asked for. It is said, not judged.
    fn beside(&mut self) -> Result<Option<redis::Found>> {
        if !self.options.beside {
            return Ok(None);
        }
        // Its servers want the processor for themselves.
        self.life = None;
        match redis::run(&self.options.redis, self.options.seed()) {
            Err(error) if error.is_lacking() => {
                println!("SKIPPED Redis Cluster beside: {error}");
                Ok(None)
            }
            found => found.map(Some),
        }
    }

    /// The verdict, and the ledger's line.
    fn end(&mut self) -> Result<bool> {
        let beside = self.beside()?;
        let tally = &self.state.tally;
        let verdict = tally.verdict(self.options.faults);
        println!("{tally}\n{verdict}");
        if let Some(found) = &beside {
            println!("beside: {found}");
        }
        self.state.write(self.dir)?;
        if !self.options.short {
            let (command, seeds) = (self.options.command(), vec![self.options.seed()]);
            let line = ledger::Line::new(&command, &self.options.herd, seeds, tally.seconds, tally.clone());
            line.beside(beside).finish(&verdict).append(&self.options.ledger)?;
            println!("a line was added to {}", self.options.ledger.display());
        }
        Ok(verdict == Verdict::Passed)
    }
}
