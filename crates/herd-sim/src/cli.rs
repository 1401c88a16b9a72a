//! The command line: `herd-sim one` and `herd-sim herd` run seeds until one fails; `herd-sim bugs`, in a build with
//! `--cfg herd_bugs`, looks for each planted bug. Caller: the program.

use std::io::Write;
use std::ops::Range;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::herd::{self, Counts, Cut};

const USAGE: &str = "usage: herd-sim one|herd [--seed N | --seeds A..B] [--seconds S] [--jobs N]
       herd-sim herd .. [--nodes N] [--copies N] [--warden herd|test] [--ops N] [--without N,N,..]   a run cut so";

struct Args {
    /// How whole herds are cut; none: one node each.
    herd: Option<Cut>,
    seeds: Range<u64>,
    limit: Duration,
    jobs: usize,
}

/// What its arguments ask for; 2 where these are not understood, 1 where a seed failed.
pub fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    #[cfg(herd_bugs)]
    if let Some(("bugs", names)) = words.split_first().map(|(first, rest)| (&first[..], rest)) {
        return bugs(names);
    }
    let Some(args) = parse(&words) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let start = Instant::now();
    let (done, failed, counts) = run(&args);
    for (seed, error) in &failed {
        match &args.herd {
            None => println!("seed {seed}: {error}\nreplay: herd-sim one --seed {seed}"),
            Some(cut) => tell(*seed, cut, error),
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    println!("{done} seeds in {seconds:.1} s, {} failed", failed.len());
    counts.iter().for_each(|(what, n)| println!("{n:>10} {what}"));
    if failed.is_empty() && done > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Tells of a herd's seed that failed, and of the least of it that does.
fn tell(seed: u64, cut: &Cut, error: &str) {
    println!("seed {seed}: {error}\nreplay: herd-sim herd --seed {seed}{}", words(cut));
    let (less, error) = herd::shrink(seed, cut, error.to_owned());
    println!("less of it: {error}\nreplay: herd-sim herd --seed {seed}{}", words(&less));
}

/// A cut as options.
fn words(cut: &Cut) -> String {
    let list = cut.without.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    let nodes = cut.nodes.map(|nodes| format!(" --nodes {nodes}"));
    let reigns = cut.reigns.map(|reigns| format!(" --warden {}", if reigns { "herd" } else { "test" }));
    let copies = cut.copies.map(|copies| format!(" --copies {copies}"));
    let ops = cut.ops.map(|ops| format!(" --ops {ops}"));
    let without = (!list.is_empty()).then(|| format!(" --without {list}"));
    [nodes, copies, reigns, ops, without].into_iter().flatten().collect()
}

/// Whether each planted bug is found, or those of these names.
#[cfg(herd_bugs)]
fn bugs(names: &[String]) -> ExitCode {
    // A bug often shows as a panic; its first line is told below.
    std::panic::set_hook(Box::new(|_| {}));
    let mut all = true;
    let is_meant = |bug| names.is_empty() || names.contains(&format!("{bug:?}"));
    crate::bugs(is_meant, |bug, found| match found {
        Some((seed, error)) => println!("{bug:?}: seed {seed}: {}", error.lines().next().unwrap_or_default()),
        None => {
            println!("{bug:?}: NOT FOUND");
            all = false;
        }
    });
    if all { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn parse(words: &[String]) -> Option<Args> {
    let jobs = std::thread::available_parallelism().map_or(1, usize::from);
    let mut args = Args { herd: None, seeds: 0..u64::MAX, limit: Duration::from_secs(60), jobs };
    let (first, options) = words.split_first()?;
    if !matches!(&first[..], "one" | "herd") || options.len() % 2 != 0 {
        return None;
    }
    args.herd = (first == "herd").then(Cut::default);
    for option in options.chunks(2) {
        match &option[0][..] {
            "--seed" => {
                let seed: u64 = option[1].parse().ok()?;
                args.seeds = seed..seed.checked_add(1)?;
            }
            "--seeds" => {
                let (from, to) = option[1].split_once("..")?;
                args.seeds = from.parse().ok()?..to.parse().ok()?;
                args.limit = Duration::MAX;
            }
            "--seconds" => args.limit = Duration::from_secs(option[1].parse().ok()?),
            "--nodes" => {
                args.herd.as_mut()?.nodes = Some(option[1].parse().ok().filter(|nodes| (2..=9).contains(nodes))?)
            }
            "--copies" => {
                args.herd.as_mut()?.copies = Some(option[1].parse().ok().filter(|copies| (1..=9).contains(copies))?);
            }
            "--warden" => {
                let reigns = ["test", "herd"].iter().position(|word| option[1] == *word)? == 1;
                args.herd.as_mut()?.reigns = Some(reigns);
            }
            "--ops" => args.herd.as_mut()?.ops = Some(option[1].parse().ok()?),
            "--without" => {
                let numbers = option[1].split(',').map(|number| number.parse().ok());
                args.herd.as_mut()?.without = numbers.collect::<Option<_>>()?;
            }
            #[cfg(herd_bugs)]
            "--bug" => {
                use herd_core::bugs::{Bug, plant};
                let mut all = Bug::ONE.into_iter().chain(Bug::HERD);
                plant(Some(all.find(|bug| format!("{bug:?}") == option[1])?));
            }
            "--jobs" => args.jobs = option[1].parse().ok().filter(|jobs| *jobs > 0)?,
            _ => return None,
        }
    }
    Some(args)
}

/// Runs seeds side by side until one fails or the time is up; how many were run, those that failed, and what happened.
fn run(args: &Args) -> (u64, Vec<(u64, String)>, Counts) {
    let (next, stop, done) = (AtomicU64::new(args.seeds.start), AtomicBool::new(false), AtomicU64::new(0));
    let (failed, counts, start) = (Mutex::new(Vec::new()), Mutex::new(Counts::new()), Instant::now());
    let minutes_told = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..args.jobs {
            scope.spawn(|| {
                while !stop.load(Relaxed) && start.elapsed() < args.limit {
                    let seed = next.fetch_add(1, Relaxed);
                    if seed >= args.seeds.end {
                        return;
                    }
                    let result = match &args.herd {
                        None => crate::run(seed).map(|()| Counts::new()),
                        Some(cut) => herd::run(seed, cut),
                    };
                    let done = done.fetch_add(1, Relaxed) + 1;
                    let seconds = start.elapsed().as_secs();
                    if minutes_told.fetch_max(seconds / 60, Relaxed) < seconds / 60 {
                        // Whether anybody reads it or not.
                        let (minutes, rate) = (seconds / 60, done / seconds);
                        _ = writeln!(std::io::stderr(), "{done} seeds in {minutes} min, {rate} a second");
                    }
                    match result {
                        Ok(more) => add(&mut counts.lock().expect("nobody panics with it"), more),
                        Err(error) => {
                            failed.lock().expect("nobody panics with it").push((seed, error));
                            stop.store(true, Relaxed);
                        }
                    }
                }
            });
        }
    });
    let (failed, counts) = (failed.into_inner().expect("as above"), counts.into_inner().expect("as above"));
    (done.into_inner(), failed, counts)
}

fn add(counts: &mut Counts, more: Counts) {
    more.into_iter().for_each(|(what, n)| *counts.entry(what).or_default() += n);
}
