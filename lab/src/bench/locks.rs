//! Line locks: many processes add one to a number under one lock, while holders are killed and stopped beyond their
//! lease at any point. The number is an object that they get and put with their token: no increment may be lost. Then
//! it is a plain file, written after a look at the lock: what is lost there is counted, not judged.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::bench::Bench;
use crate::client;
use crate::error::{Context, Error, Result};
use crate::peers::server::Server;
use crate::peers::{Kind, Setup};
use crate::proto::Proto;
use crate::report::Sample;
use crate::sys;
use crate::values::Random;

const LINE: &str = "locks";
const PROCESSES: usize = 32;
const LEASE_MS: u64 = 500;
const WAIT: &str = "20s";
/// Increments of a holder before it gives the lock back.
const TIMES: u64 = 5;
/// Longest time between a holder's steps.
const PAUSE_MS: u64 = 20;
/// Longest time between two disturbances.
const DISTURB_MS: u64 = 400;
const LOCK: &str = "locks-lock";
const OBJECT: &str = "locks-number";

/// Where the number is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Object,
    File,
}

impl Place {
    fn arm(self) -> &'static str {
        match self {
            Self::Object => "an object, with tokens",
            Self::File => "a file, after a check",
        }
    }
}

/// A holder's processes, while they are there.
#[derive(Clone, Copy, Debug, Default)]
struct Holder {
    /// `herd lock`, a child of ours.
    lock: Option<i32>,
    /// What it runs, which leads a process group.
    command: Option<i32>,
}

/// What is common to all threads of one run.
struct Run<'a> {
    herd: &'a Path,
    node: String,
    place: Place,
    file: PathBuf,
    holders: Vec<Mutex<Holder>>,
    over: AtomicBool,
}

/// What was seen.
#[derive(Debug, Default)]
struct Seen {
    /// Numbers that were acknowledged, in no order.
    numbers: Vec<u64>,
    /// Runs of `herd lock` that ended with each status; 137 and the like: by a signal.
    statuses: BTreeMap<i32, u64>,
}

/// Measures the line and judges it.
pub(super) fn run(bench: &mut Bench) -> Result<()> {
    let Some(arm) = bench.arm("herd", Kind::Herd, Proto::Herd) else {
        return Err(Error::new("line locks is of a Herd: name it with --herd"));
    };
    let group = format!("{PROCESSES} processes, lease of {LEASE_MS} ms");
    for place in [Place::Object, Place::File] {
        let server = arm.peer.start(&Setup { threads: 2, core: None, ..Setup::default() })?;
        bench.started(place.arm(), &server)?;
        let outcome = run_one(bench.options.lock_seconds, &arm.peer.program, &server, place);
        match outcome {
            Ok(values) => {
                let (group, arm) = (group.clone(), place.arm().to_owned());
                bench.report.sample(Sample { line: LINE, group, arm, round: 0, values })?;
            }
            Err(error) => bench.report.failure(format!("[{LINE}] {}: {error}", place.arm()))?,
        }
    }
    let metrics = ["increments", "lost", "kills", "stops", "lock_lost", "unacknowledged"];
    bench.report.print_tables(LINE, &metrics);
    let lost = bench.report.summary(LINE, &group, Place::Object.arm(), "lost");
    bench.report.judge(LINE, format!("increments lost: {}", Place::Object.arm()), lost, 0.0, true)?;
    let done = bench.report.summary(LINE, &group, Place::Object.arm(), "increments");
    bench.report.judge(LINE, format!("increments in all: {}", Place::Object.arm()), done, 1.0, false)?;
    bench.report.print_verdicts(LINE);
    Ok(())
}

fn run_one(seconds: u64, herd: &Path, server: &Server, place: Place) -> Result<BTreeMap<&'static str, f64>> {
    let run = Run {
        herd,
        node: server.addr.to_string(),
        place,
        file: std::env::temp_dir().join(format!("herd-lab-number-{}", std::process::id())),
        holders: (0..PROCESSES).map(|_| Mutex::default()).collect(),
        over: AtomicBool::new(false),
    };
    run.set_number()?;
    let outcome: Result<_> = thread::scope(|scope| {
        let shared = &run;
        let workers: Vec<_> = (0..PROCESSES).map(|index| scope.spawn(move || shared.work(index))).collect();
        let disturbed = run.disturb(Duration::from_secs(seconds));
        run.over.store(true, Ordering::Relaxed);
        let mut seen = Seen::default();
        for worker in workers {
            let part = worker.join().map_err(|_| Error::new("a worker panicked"))??;
            seen.numbers.extend(part.numbers);
            part.statuses.into_iter().for_each(|(status, count)| *seen.statuses.entry(status).or_default() += count);
        }
        Ok((disturbed?, seen))
    });
    let last = outcome.and_then(|outcome| Ok((outcome, run.number()?)));
    // Ours, and not there where the number was an object.
    let _ = fs::remove_file(&run.file);
    let (((kills, stops), seen), last) = last?;
    println!("  {}: ends of herd lock by status: {:?}", place.arm(), seen.statuses);
    let (lost, unacknowledged) = account(&seen.numbers, last);
    Ok(BTreeMap::from([
        ("increments", seen.numbers.len() as f64),
        ("lost", lost as f64),
        ("unacknowledged", unacknowledged as f64),
        ("kills", kills as f64),
        ("stops", stops as f64),
        ("lock_lost", seen.statuses.get(&1).copied().unwrap_or(0) as f64),
    ]))
}

/// Increments lost, and those in the last number that nobody was told of. An acknowledged number that came twice, or
/// that is above the last one, was overwritten by somebody who had read an older one.
fn account(numbers: &[u64], last: u64) -> (u64, u64) {
    let distinct: BTreeSet<u64> = numbers.iter().copied().filter(|number| *number <= last).collect();
    let lost = numbers.len() - distinct.len();
    (lost as u64, last - distinct.len() as u64)
}

impl Run<'_> {
    /// Runs `herd lock` again and again; what its holders acknowledged.
    fn work(&self, index: usize) -> Result<Seen> {
        let mut seen = Seen::default();
        while !self.over.load(Ordering::Relaxed) {
            let mut command = Command::new(self.herd);
            command.args(["lock", LOCK, "--lease", &format!("{LEASE_MS}ms"), "--wait", WAIT, "--"]);
            command.arg(client::program()?).arg("holder").arg("--herd").arg(self.herd).args(["--lock", LOCK]);
            match self.place {
                Place::Object => command.args(["--object", OBJECT]),
                Place::File => command.arg("--file").arg(&self.file),
            };
            command.args(["--times", &TIMES.to_string(), "--pause-ms", &PAUSE_MS.to_string()]);
            command.env("HERD_NODE", &self.node).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
            sys::tie(&mut command, None);
            let mut child = command.spawn().during(|| "start herd lock".into())?;
            self.holder(index).lock = i32::try_from(child.id()).ok();
            let stdout = child.stdout.take().expect("its stdout is piped");
            // The pipe ends when the command has ended too, also where it outlives herd lock.
            for line in BufReader::new(stdout).lines() {
                let line = line?;
                match line.split_once(' ') {
                    Some(("in", pid)) => self.holder(index).command = pid.parse().ok(),
                    Some(("did", number)) => seen.numbers.extend(number.parse::<u64>().ok()),
                    _ => return Err(Error::new(format!("a holder said {line:?}"))),
                }
            }
            *self.holder(index) = Holder::default();
            let status = child.wait()?;
            let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
            *seen.statuses.entry(code).or_default() += 1;
            if code == 2 {
                return Err(Error::new("herd lock ended with status 2"));
            }
        }
        Ok(seen)
    }

    fn holder(&self, index: usize) -> MutexGuard<'_, Holder> {
        self.holders[index].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Kills and stops holders at random until the time is over; how often each.
    fn disturb(&self, time: Duration) -> Result<(u64, u64)> {
        let (start, mut random) = (Instant::now(), Random::new(11));
        let (mut kills, mut stops) = (0, 0);
        while start.elapsed() < time {
            thread::sleep(Duration::from_millis(random.below(DISTURB_MS)));
            // Those that hold it have a command; the others wait for it.
            let holding = (0..PROCESSES).find(|index| self.holder(*index).command.is_some());
            let index = holding.unwrap_or_else(|| random.below(PROCESSES as u64) as usize);
            let whom = random.below(3);
            if random.below(3) == 0 {
                kills += u64::from(self.signal(index, whom, libc::SIGKILL));
            } else if self.signal(index, whom, libc::SIGSTOP) {
                stops += 1;
                thread::sleep(Duration::from_millis(LEASE_MS / 2 + random.below(2 * LEASE_MS)));
                self.signal(index, whom, libc::SIGCONT);
            }
        }
        Ok((kills, stops))
    }

    /// Signals a holder's `herd lock`, its command, or both; whether there was any.
    fn signal(&self, index: usize, whom: u64, signal: i32) -> bool {
        let holder = self.holder(index);
        let lock = holder.lock.filter(|_| whom != 0);
        // A group of its own.
        let command = holder.command.filter(|_| whom != 1).map(|pid| -pid);
        let signalled = [command, lock].into_iter().flatten().map(|pid| sys::signal(pid, signal).is_ok());
        signalled.fold(false, |any, one| any | one)
    }

    fn set_number(&self) -> Result<()> {
        match self.place {
            Place::Object => {
                let mut put = Command::new(self.herd);
                put.args(["put", OBJECT, "-"]).env("HERD_NODE", &self.node).stdin(Stdio::piped());
                let mut child = put.spawn().during(|| "start herd put".into())?;
                child.stdin.take().expect("its stdin is piped").write_all(b"0")?;
                if child.wait()?.success() { Ok(()) } else { Err(Error::new("herd put failed")) }
            }
            Place::File => fs::write(&self.file, "0").during(|| format!("write {}", self.file.display())),
        }
    }

    fn number(&self) -> Result<u64> {
        let text = match self.place {
            Place::Object => {
                let mut get = Command::new(self.herd);
                get.args(["get", OBJECT]).env("HERD_NODE", &self.node).stdin(Stdio::null());
                get.output().during(|| "start herd get".into())?.stdout
            }
            Place::File => fs::read(&self.file).during(|| format!("read {}", self.file.display()))?,
        };
        let text = String::from_utf8_lossy(&text).trim().to_owned();
        text.parse().map_err(|_| Error::new(format!("the last number is {text:?}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_came_twice_or_is_above_the_last_number_was_lost() {
        assert_eq!(account(&[1, 2, 3], 3), (0, 0));
        assert_eq!(account(&[1, 3, 4], 5), (0, 2), "two that nobody was told of");
        assert_eq!(account(&[1, 2, 2, 3], 3), (1, 0));
        assert_eq!(account(&[1, 2, 3, 4], 2), (2, 0));
    }
}
