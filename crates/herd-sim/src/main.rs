//! `herd-sim one` runs seeds until one fails; `herd-sim bugs`, in a build with `--cfg herd_bugs`, looks for each
//! planted bug.

use std::ops::Range;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

const USAGE: &str = "usage: herd-sim one [--seed N | --seeds A..B] [--seconds S] [--jobs N]";

struct Args {
    seeds: Range<u64>,
    limit: Duration,
    jobs: usize,
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    #[cfg(herd_bugs)]
    if words == ["bugs"] {
        return bugs();
    }
    let Some(args) = parse(&words) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let start = Instant::now();
    let (done, failed) = run(&args);
    for (seed, error) in &failed {
        println!("seed {seed}: {error}\nreplay: herd-sim one --seed {seed}");
    }
    let seconds = start.elapsed().as_secs_f64();
    println!("{done} seeds in {seconds:.1} s, {} failed", failed.len());
    if failed.is_empty() && done > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Whether each planted bug is found.
#[cfg(herd_bugs)]
fn bugs() -> ExitCode {
    // A bug often shows as a panic; its first line is told below.
    std::panic::set_hook(Box::new(|_| {}));
    let mut all = true;
    herd_sim::bugs(|bug, found| match found {
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
    let mut args = Args { seeds: 0..u64::MAX, limit: Duration::from_secs(60), jobs };
    let (first, options) = words.split_first()?;
    if first != "one" || options.len() % 2 != 0 {
        return None;
    }
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
            "--jobs" => args.jobs = option[1].parse().ok().filter(|jobs| *jobs > 0)?,
            _ => return None,
        }
    }
    Some(args)
}

/// Runs seeds side by side until one fails or the time is up; how many were run, and those that failed.
fn run(args: &Args) -> (u64, Vec<(u64, String)>) {
    let (next, stop, done) = (AtomicU64::new(args.seeds.start), AtomicBool::new(false), AtomicU64::new(0));
    let (failed, start) = (Mutex::new(Vec::new()), Instant::now());
    std::thread::scope(|scope| {
        for _ in 0..args.jobs {
            scope.spawn(|| {
                while !stop.load(Relaxed) && start.elapsed() < args.limit {
                    let seed = next.fetch_add(1, Relaxed);
                    if seed >= args.seeds.end {
                        return;
                    }
                    let result = herd_sim::run(seed);
                    done.fetch_add(1, Relaxed);
                    if let Err(error) = result {
                        failed.lock().expect("nobody panics with it").push((seed, error));
                        stop.store(true, Relaxed);
                    }
                }
            });
        }
    });
    (done.into_inner(), failed.into_inner().expect("as above"))
}
