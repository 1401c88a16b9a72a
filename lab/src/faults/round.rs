//! One round: a few faults, clients all the while, and a look at everything when all is well again.

use std::collections::VecDeque;
use std::fs;
use std::net::SocketAddr;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::error::{Context, Error, Result};
use crate::faults::body;
use crate::faults::field::Field;
use crate::faults::schedule::{self, Has, Step};
use crate::faults::strike::Striker;
use crate::faults::tally::Tally;
use crate::histories::judge::{Judge, Verdict, Word};
use crate::histories::record::{self, Outcome, Record};
use crate::histories::work::{self, Plan};
use crate::nodes::Herd;

/// Clients of a history.
const CLIENTS: usize = 16;
/// Requests of a history are spread over so long for each fault of its round, if nothing holds them up.
const SPAN: Duration = Duration::from_secs(5);
/// No history asks longer than this.
const LONGEST: Duration = Duration::from_secs(60);
/// The herd is whole again within this, at last.
const WHOLE: Duration = Duration::from_secs(40);
/// Of a history at least one request in so many has an answer, or it says too little.
const ANSWERED: usize = 2;

/// What a round is made of.
pub(super) struct Round<'a> {
    pub(super) herd: &'a Herd,
    pub(super) field: &'a Field,
    pub(super) prefix: &'a str,
    pub(super) gates: &'a mut Vec<usize>,
    pub(super) seed: u64,
    /// Those that are still to come.
    pub(super) steps: Range<usize>,
    /// Makes names of a round differ.
    pub(super) serial: u64,
    pub(super) operations: usize,
    pub(super) small: usize,
    pub(super) dir: &'a Path,
}

impl Round<'_> {
    /// Runs it; the file of its history.
    pub(super) fn run(&mut self, bodies: &mut VecDeque<String>, tally: &mut Tally) -> Result<PathBuf> {
        let mut plan = Plan {
            nodes: self.herd.addresses(),
            prefix: format!("{}{}.", self.prefix, self.steps.start),
            clients: CLIENTS,
            operations: self.operations,
            span: SPAN * self.steps.len() as u32,
            seed: self.seed.wrapping_add(self.steps.start as u64),
            until: Instant::now() + LONGEST,
        };
        let first = self.steps.start;
        if self.all_steps().iter().any(|step| step.fills) {
            self.striker(bodies, tally).fill()?;
        }
        self.field.board().landed.clear();
        let made = self.disturb(&plan, bodies, tally);
        self.take_counts(tally);
        let mut records = made?;
        self.herd.check_alive()?;
        self.herd.wait_whole(0, WHOLE)?;
        // Others may have come, and some have gone.
        plan.nodes = self.herd.addresses();
        let looked = self.look(&plan.nodes, bodies);
        self.take_counts(tally);
        looked?;
        records.extend(self.herd.on_clients(|| work::last_reads(&plan))?);
        tally.operations += records.len() as u64;
        if self.herd.fsck()? {
            tally.compared += 1;
        }
        let file = self.dir.join(format!("history-{first}.ndjson"));
        record::write(&file, &records)?;
        says_enough(&records)?;
        Ok(file)
    }

    /// Clients and faults at once. Nodes end with the thread that started them: so it is this one that disturbs.
    fn disturb(&mut self, plan: &Plan, bodies: &mut VecDeque<String>, tally: &mut Tally) -> Result<Vec<Record>> {
        let (herd, field) = (self.herd, self.field);
        thread::scope(|scope| {
            let asking = scope.spawn(|| herd.on_clients(|| work::run(plan)));
            let writing = scope.spawn(|| {
                herd.on_clients(|| {
                    field.run(&plan.nodes, plan.seed);
                    Ok(())
                })
            });
            let struck = self.strike_all(bodies, tally);
            let records = asking.join().map_err(|_| Error::new("the thread that asks panicked"))?;
            field.over.store(true, Ordering::Relaxed);
            writing.join().map_err(|_| Error::new("the thread that writes panicked"))??;
            struck?;
            records
        })
    }

    fn strike_all(&mut self, bodies: &mut VecDeque<String>, tally: &mut Tally) -> Result<()> {
        for step in self.all_steps() {
            let line = self.striker(bodies, tally).strike(&step)?;
            println!("step {}: {line}", self.steps.start);
            self.steps.start += 1;
        }
        Ok(())
    }

    fn all_steps(&self) -> Vec<Step> {
        let has = Has { links: self.herd.hosts.is_some(), etcd: self.herd.has_etcd() };
        self.steps.clone().map(|number| schedule::step(self.seed, number, has)).collect()
    }

    fn striker<'b>(&'b mut self, bodies: &'b mut VecDeque<String>, tally: &'b mut Tally) -> Striker<'b> {
        let Self { herd, field, prefix, small, .. } = *self;
        let (gates, serial) = (&mut *self.gates, &mut self.serial);
        Striker { herd, field, tally, prefix, small, gates, bodies, serial }
    }

    /// Reads everything that was acknowledged.
    fn look(&self, nodes: &[SocketAddr], bodies: &VecDeque<String>) -> Result<()> {
        self.herd.on_clients(|| {
            self.field.read_all(nodes, self.seed)?;
            for (number, name) in bodies.iter().enumerate() {
                if !body::is_there(nodes[number % nodes.len()], name)? {
                    self.field.board().found(format!("{name}, of several MiB, is not there"), true);
                }
            }
            Ok(())
        })
    }

    /// Moves what the board has counted to the tally.
    fn take_counts(&self, tally: &mut Tally) {
        let mut board = self.field.board();
        for (to, from) in [
            (&mut tally.acknowledged, std::mem::take(&mut board.acknowledged)),
            (&mut tally.refused, std::mem::take(&mut board.refused)),
            (&mut tally.unknown, std::mem::take(&mut board.unknown)),
            (&mut tally.reads, std::mem::take(&mut board.reads)),
            (&mut tally.stale, std::mem::take(&mut board.stale)),
            (&mut tally.lost, std::mem::take(&mut board.lost)),
        ] {
            *to += from;
        }
        tally.problems.append(&mut board.wrongs);
    }
}

/// An error if too few requests of a history had an answer.
fn says_enough(records: &[Record]) -> Result<()> {
    let count = |is: fn(&Outcome) -> bool| records.iter().filter(|record| is(&record.outcome)).count();
    let answered = count(|outcome| matches!(outcome, Outcome::Answered(_)));
    if answered * ANSWERED >= records.len() {
        return Ok(());
    }
    let refused = count(|outcome| matches!(outcome, Outcome::Refused(_)));
    let all = records.len();
    Err(Error::new(format!("{answered} answers to {all} requests, {refused} of them refused, say too little")))
}

/// A history that is being judged, beside the next round.
pub(super) struct Judging {
    file: PathBuf,
    judge: JoinHandle<Result<Verdict>>,
}

impl Judging {
    pub(super) fn begin(judge: Judge, file: PathBuf) -> Self {
        let path = file.clone();
        Self { file, judge: thread::spawn(move || judge.judge(&path)) }
    }

    /// Waits for the verdict, and counts it. What is not legal stays where it is.
    pub(super) fn end(self, tally: &mut Tally) {
        let verdict = self.judge.join().map_err(|_| Error::new("the thread of the checker panicked"));
        match verdict.and_then(|verdict| verdict) {
            Ok(verdict) => count(&self.file, &verdict, tally),
            Err(error) => tally.problems.push(error.to_string()),
        }
    }
}

/// Counts a verdict.
fn count(file: &Path, verdict: &Verdict, tally: &mut Tally) {
    tally.histories += 1;
    let at = file.display();
    match verdict.verdict {
        Word::Ok => {
            let removed = fs::remove_file(file).during(|| format!("remove {at}"));
            tally.problems.extend(removed.err().map(|error| error.to_string()));
        }
        Word::Illegal => {
            tally.illegal += 1;
            println!("ILLEGAL {}: {at}\n  {}", verdict.keys.join(", "), verdict.why.join("\n  "));
        }
        Word::Unknown => {
            tally.undecided += 1;
            println!("UNDECIDED {} after {:.0} s: {at}", verdict.keys.join(", "), verdict.seconds);
        }
    }
}
