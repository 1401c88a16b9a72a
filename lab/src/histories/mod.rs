//! `herd-lab histories`: many clients ask a herd of real nodes at once, whatever befalls its nodes and links; what they
//! were told is written down, and a program of its own (lab/histories, with porcupine) judges whether each object was
//! a linearizable register and each lock had one holder at a time.
//!
//! Every second history is made at full speed and undisturbed, the others take a few seconds with disturbances. At the
//! end of each, every object is read through every node: so nothing acknowledged may be lost.

pub(crate) mod door;
pub(crate) mod judge;
pub(crate) mod nemesis;
mod plain_door;
pub(crate) mod record;
mod wire_door;
pub(crate) mod work;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::Args;

use crate::error::{Context, Error, Result};
use crate::histories::judge::{Judge, Word};
use crate::histories::nemesis::Fault;
use crate::histories::record::{Outcome, Record};
use crate::histories::work::Plan;
use crate::nodes::{Herd, Hosts, MEMORY, Shape};

/// Options of `histories`.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Herd's binary.
    #[arg(long)]
    herd: PathBuf,
    /// Nodes of the herd.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=9))]
    nodes: u8,
    /// Copies of each object [default: what the herd makes of itself].
    #[arg(long)]
    replicas: Option<u8>,
    /// How many histories.
    #[arg(long, default_value_t = 100)]
    histories: u64,
    /// Requests of each.
    #[arg(long, default_value_t = 2_000)]
    operations: usize,
    /// Clients that ask at once.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=256))]
    clients: u16,
    /// Whatever is drawn depends on it; which request meets which does not.
    #[arg(long)]
    seed: Option<u64>,
    /// What befalls the herd, of what this machine can do.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Fault::ALL)]
    faults: Vec<Fault>,
    /// The checker [default: herd-histories beside this program].
    #[arg(long)]
    checker: Option<PathBuf>,
    /// The checker's longest time for one history, in seconds.
    #[arg(long, default_value_t = 30)]
    checker_seconds: u64,
    /// Where histories go that are not legal, and the nodes' logs.
    #[arg(long, default_value = "lab/results/histories")]
    out: PathBuf,
    /// Keep the legal ones too.
    #[arg(long)]
    keep: bool,
}

impl Options {
    fn shape(&self, dir: &Path) -> Shape {
        let nodes = usize::from(self.nodes);
        let (program, dir) = (self.herd.clone(), dir.to_owned());
        Shape { program, nodes, room: nodes, replicas: self.replicas, memory: MEMORY, small: None, etcd: None, dir }
    }
}

/// A disturbed history takes about so long.
const SPAN: Duration = Duration::from_secs(3);
/// No history asks longer than this: an undisturbed one, and a disturbed one, whose clients wait most of the time.
const LONGEST: Duration = Duration::from_secs(60);
const LONGEST_DISTURBED: Duration = Duration::from_secs(20);
/// Of an undisturbed history at most one request in so many may be without an answer, or it says too little.
const UNANSWERED: usize = 50;
/// Of a disturbed one.
const UNANSWERED_DISTURBED: usize = 2;
/// At most one history in so many may be beyond the checker.
const UNDECIDED: u64 = 1_000;

/// What was found in all histories.
#[derive(Debug, Default)]
struct Totals {
    operations: usize,
    unknown: usize,
    refused: usize,
    illegal: u64,
    undecided: u64,
    /// Histories that failed otherwise.
    failed: u64,
    /// Histories after which all copies were the same.
    compared: u64,
}

/// Runs all; false if any history is not legal.
pub(crate) fn run(options: &Options) -> Result<bool> {
    let seed =
        options.seed.unwrap_or_else(|| SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |since| since.as_secs()));
    let hosts = Hosts::own(usize::from(options.nodes));
    let judge = Judge::find(options.checker.as_deref(), Duration::from_secs(options.checker_seconds))?;
    let dir = options.out.join(format!("seed-{seed}"));
    fs::create_dir_all(&dir).during(|| format!("create {}", dir.display()))?;
    let herd = Herd::start(options.shape(&dir), hosts?)?;
    println!("{} nodes, seed {seed}, files in {}", options.nodes, dir.display());
    let mut totals = Totals::default();
    for number in 0..options.histories {
        let one = History { options, seed: seed.wrapping_add(number), number, dir: &dir };
        match one.run(&herd, &judge, &mut totals) {
            Ok(line) => println!("history {number}: {line}"),
            Err(error) => {
                println!("FAILED history {number}: {error}");
                totals.failed += 1;
                if herd.check_alive().is_err() {
                    break;
                }
            }
        }
        match herd.fsck() {
            Ok(true) => totals.compared += 1,
            Ok(false) => {}
            Err(error) => {
                println!("FAILED history {number}: {error}");
                totals.failed += 1;
            }
        }
    }
    println!("herd fsck: clean after {} of {} histories", totals.compared, options.histories);
    let good = totals.are_good(options.histories);
    println!("{} {} histories: {totals}", if good { "PASS" } else { "FAIL" }, options.histories);
    Ok(good)
}

impl Totals {
    fn are_good(&self, histories: u64) -> bool {
        self.illegal == 0 && self.failed == 0 && self.undecided <= histories.div_ceil(UNDECIDED).saturating_sub(1)
    }
}

impl std::fmt::Display for Totals {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { operations, unknown, refused, illegal, undecided, failed, .. } = self;
        write!(f, "{operations} operations, {unknown} of unknown outcome, {refused} refused; ")?;
        write!(f, "{illegal} illegal, {undecided} beyond the checker, {failed} failed")
    }
}

/// One history.
struct History<'a> {
    options: &'a Options,
    seed: u64,
    number: u64,
    dir: &'a Path,
}

impl History<'_> {
    /// Makes it, has it judged, and says so in a line.
    fn run(&self, herd: &Herd, judge: &Judge, totals: &mut Totals) -> Result<String> {
        let disturbed = self.number % 2 == 1 && !self.options.faults.is_empty();
        let plan = Plan {
            nodes: herd.addresses(),
            prefix: format!("{}.{}.", self.seed, self.number),
            clients: usize::from(self.options.clients),
            operations: self.options.operations,
            span: if disturbed { SPAN } else { Duration::ZERO },
            seed: self.seed,
            until: Instant::now() + if disturbed { LONGEST_DISTURBED } else { LONGEST },
        };
        let faults: &[Fault] = if disturbed { &self.options.faults } else { &[] };
        let (mut records, counts) = self.make(herd, &plan, faults)?;
        herd.check_alive()?;
        let last = herd.on_clients(|| work::last_reads(&plan));
        let missing = last.as_ref().err().map(ToString::to_string);
        records.extend(last.unwrap_or_default());
        let file = self.dir.join(format!("history-{}.ndjson", self.number));
        record::write(&file, &records)?;
        let line = self.judged(&file, &records, &counts, judge, totals)?;
        missing.map_or(Ok(line), |why| Err(Error::new(format!("{why}; kept in {}", file.display()))))
    }

    /// Clients and disturbances at once. Nodes end with the thread that started them: so it is this one that disturbs.
    fn make(&self, herd: &Herd, plan: &Plan, faults: &[Fault]) -> Result<(Vec<Record>, BTreeMap<Fault, u64>)> {
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            let asking = scope.spawn(|| {
                let records = herd.on_clients(|| work::run(plan));
                over.store(true, Ordering::Relaxed);
                records
            });
            let counts = nemesis::run(herd, faults, self.seed, &over);
            let records = asking.join().map_err(|_| Error::new("the thread that asks panicked"))?;
            Ok((records?, counts?))
        })
    }

    /// The checker's verdict. What is not legal, or says too little, is an error and stays where it is.
    fn judged(
        &self,
        file: &Path,
        records: &[Record],
        counts: &BTreeMap<Fault, u64>,
        judge: &Judge,
        totals: &mut Totals,
    ) -> Result<String> {
        let count = |is: fn(&Outcome) -> bool| records.iter().filter(|record| is(&record.outcome)).count();
        let unknown = count(|outcome| *outcome == Outcome::Unknown);
        let refused = count(|outcome| matches!(outcome, Outcome::Refused(_)));
        totals.operations += records.len();
        totals.unknown += unknown;
        totals.refused += refused;
        let verdict = judge.judge(file)?;
        let named = || format!("{}: {} {}", verdict.keys.join(", "), file.display(), verdict.pages.join(" "));
        match verdict.verdict {
            Word::Ok => (),
            Word::Illegal => {
                totals.illegal += 1;
                return Ok(format!("ILLEGAL {}\n  {}", named(), verdict.why.join("\n  ")));
            }
            Word::Unknown => {
                totals.undecided += 1;
                return Ok(format!("UNDECIDED {}", named()));
            }
        }
        let few = if counts.is_empty() { UNANSWERED } else { UNANSWERED_DISTURBED };
        if (unknown + refused) * few > records.len() {
            let why = records.iter().find_map(|record| match &record.outcome {
                Outcome::Refused(why) => Some(why.as_str()),
                Outcome::Answered(_) | Outcome::Removed | Outcome::Unknown => None,
            });
            let why = why.unwrap_or("no answers");
            let all = records.len();
            return Err(Error::new(format!(
                "{unknown} unknown and {refused} refused of {all} requests say too little: {why}"
            )));
        }
        if !self.options.keep {
            fs::remove_file(file).during(|| format!("remove {}", file.display()))?;
        }
        let faults: String = counts.iter().map(|(fault, count)| format!(", {count} {fault:?}")).collect();
        let (all, seconds) = (records.len(), verdict.seconds);
        Ok(format!("ok, {all} operations, {unknown} unknown, {refused} refused{faults}; judged in {seconds:.2} s"))
    }
}
