//! (herd-elastic) A herd of three nodes with two copies of each object, on links of 200 Mbit/s, grows and shrinks
//! under load: a fourth node joins, another one drains, one is killed and comes back empty. Beside it a Redis Cluster
//! of three masters gets a fourth one, and its share of the slots.
//!
//! **Foreground** (`foreground`): one put to four gets of 64 KiB objects, half of them by Herd's own client, the other
//! half by memcached's protocol at two nodes that stay. Its rate is set once, before anything befalls the herd, so that
//! the nodes' links carry 30 % of their rate in their busier direction, by the interfaces' counters; Redis is asked at
//! the same rate.
//!
//! **Bytes moved** are counted without a foreground, as the sum of what the interfaces of all nodes receive, headers
//! and beats included, from the command until no copy has moved for 4 s: so what is moved once more afterwards, to
//! even shares out, counts too. What must move is `copies x bytes / N`. The **rate of moving** is what must move over
//! the time from the first copy to the last, and stands beside iperf3 over the same link in the same run. Then node 4
//! is taken out again, and all is done once more under load: there failures and the 99th percentile are judged.

mod herd;
mod redis;

use std::thread;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::figure::{Figure, LINE};
use crate::foreground::Foreground;
use crate::net::conditions::Rate;
use crate::plot::Chart;
use crate::plot::times::{Mark, Panel, Series, Times};
use crate::processor::{Processor, Shares};
use crate::report::{Sample, Summary};
use crate::sys;

const LINK: Rate = Rate(200_000_000);
/// Nodes at first, and copies of each object.
const NODES: usize = 3;
const COPIES: u8 = 2;
const OBJECT_BYTES: usize = 64 * 1_024;
/// Share of the links that the foreground takes.
const FOREGROUND: f64 = 0.30;
/// Below this share of idle time the processor may have been the limit: times are not judged.
const IDLE_MIN: f64 = 0.20;
/// The deadline of a request.
const PATIENCE: Duration = Duration::from_secs(10);
/// Threads of each kind of client.
const THREADS: usize = 24;

/// By the number of the crew: Herd's own client, or Redis's, and memcached's clients.
const KINDS: [(usize, bool, &str); 4] = [
    (0, false, "p99 ms of gets, own"),
    (0, true, "p99 ms of puts, own"),
    (1, false, "p99 ms of gets, memcached"),
    (1, true, "p99 ms of puts, memcached"),
];

const MOVED_MAX: f64 = 1.05;
const RATE_MIN: f64 = 0.7;
const P99_MAX: f64 = 2.0;

/// What was seen of an arm.
struct Story {
    arm: &'static str,
    /// Of the foreground's first second.
    begun_ns: u64,
    marks: Vec<(u64, String)>,
    /// Second by second: MB/s, and the 99th percentile in ms.
    seconds: Vec<(f64, Option<f64>)>,
}

/// Objects in all, by the options.
fn objects(figure: &Figure) -> usize {
    let mib = if figure.options.short { 16 } else { figure.options.size };
    mib * (1 << 20) / OBJECT_BYTES
}

/// How long the foreground is looked at before anything befalls who serves it, and between two of these.
fn quiet(figure: &Figure) -> Duration {
    Duration::from_secs(if figure.options.short { 2 } else { 20 })
}

/// Measures both and draws.
pub(super) fn run(figure: &mut Figure) -> Result<()> {
    let mut stories = Vec::new();
    let mut rate_per_s = None;
    if figure.options.programs.herd.is_some() {
        match herd::run(figure) {
            Ok((story, rate)) => {
                rate_per_s = Some(rate);
                stories.push(story);
            }
            Err(error) => figure.report.failure(format!("herd: {error}"))?,
        }
    }
    match redis::run(figure, rate_per_s) {
        Ok(story) => stories.push(story),
        Err(error) if error.is_lacking() => println!("SKIPPED Redis Cluster: {error}"),
        Err(error) => figure.report.failure(format!("redis cluster: {error}"))?,
    }
    figure.report.draw("times", &Chart::Times(times(&stories)))?;
    figure.report.print_tables(LINE, &["p99 ms", "seconds", "MB moved", "MB/s moved", "failed", "wrong", "idle"]);
    Ok(())
}

fn times(stories: &[Story]) -> Times {
    let panel = |label: &str, log: bool, value: fn(&(f64, Option<f64>)) -> Option<f64>| {
        let series = |story: &Story| {
            let values = story.seconds.iter().map(value).collect();
            Series { arm: story.arm.into(), values }
        };
        Panel { label: label.into(), log, series: stories.iter().map(series).collect() }
    };
    let marks = stories.iter().flat_map(|story| {
        story.marks.iter().map(|(at_ns, label)| {
            let second = (*at_ns as f64 - story.begun_ns as f64) / 1e9;
            Mark { arm: story.arm.into(), second, label: label.clone() }
        })
    });
    Times {
        title: "64 KiB objects on links of 200 Mbit/s while nodes come and go".into(),
        panels: vec![
            panel("answered, MB/s", false, |(mb_s, _)| Some(*mb_s)),
            panel("99th percentile, ms", true, |(_, p99_ms)| *p99_ms),
        ],
        marks: marks.collect(),
    }
}

/// The foreground second by second, from then to now.
fn seconds(foreground: &Foreground, begun_ns: u64) -> Vec<(f64, Option<f64>)> {
    const SECOND_NS: u64 = 1_000_000_000;
    let count = (sys::monotonic_ns() - begun_ns) / SECOND_NS;
    let second = |number: u64| {
        let from_ns = begun_ns + number * SECOND_NS;
        let to_ns = from_ns + SECOND_NS;
        (foreground.mb_s(from_ns, to_ns), foreground.p99_ms(from_ns, to_ns))
    };
    (0..count).map(second).collect()
}

/// A stretch of a run under load.
struct Stretch {
    from_ns: u64,
    to_ns: u64,
    shares: Shares,
    counts: (usize, u64, u64),
}

/// Watches a stretch of a run while `work` is done; what `work` gave is the time that counts of it, if not all.
fn stretch(
    figure: &Figure,
    foreground: &Foreground,
    work: impl FnOnce() -> Result<Option<(u64, u64)>>,
) -> Result<Stretch> {
    let (before, counts) = (Processor::now(figure.awake.pid())?, foreground.counts());
    let from_ns = sys::monotonic_ns();
    let within = work()?;
    let (from_ns, to_ns) = within.unwrap_or((from_ns, sys::monotonic_ns()));
    let shares = Processor::now(figure.awake.pid())?.since(before);
    let now = foreground.counts();
    Ok(Stretch { from_ns, to_ns, shares, counts: (now.0 - counts.0, now.1 - counts.1, now.2 - counts.2) })
}

/// Keeps what a stretch was like, with `more` values.
fn keep(
    figure: &mut Figure,
    foreground: &Foreground,
    (arm, group): (&str, &str),
    stretch: &Stretch,
    more: &[(&'static str, f64)],
) -> Result<()> {
    let (requests, failed, wrong) = stretch.counts;
    let p99_ms = foreground.p99_ms(stretch.from_ns, stretch.to_ns);
    let seconds = (stretch.to_ns - stretch.from_ns) as f64 / 1e9;
    let mut values: std::collections::BTreeMap<&'static str, f64> = [
        ("seconds", seconds),
        ("requests", requests as f64),
        ("failed", failed as f64),
        ("wrong", wrong as f64),
        ("idle", stretch.shares.idle),
        ("stolen", stretch.shares.stolen),
        ("MB/s", foreground.mb_s(stretch.from_ns, stretch.to_ns)),
    ]
    .into();
    values.extend(p99_ms.map(|p99_ms| ("p99 ms", p99_ms)));
    for (crew, is_put, name) in KINDS {
        let p99_ms = foreground.p99_kind_ms(stretch.from_ns, stretch.to_ns, crew, is_put);
        values.extend(p99_ms.map(|p99_ms| (name, p99_ms)));
    }
    values.extend(more.iter().copied());
    println!("  {arm}, {group}: {seconds:.1} s, {requests} requests, {failed} failed, {wrong} wrong, {values:.3?}");
    if stretch.shares.idle < IDLE_MIN {
        let reason = format!("{:.0} % of the processor's time was idle", 100.0 * stretch.shares.idle);
        println!("  void: {arm}, {group}: {reason}: times are not judged");
        figure.report.write("void", &serde_json::json!({ "run": group, "arm": arm, "reason": reason }))?;
    }
    figure.report.sample(Sample { line: LINE, group: group.into(), arm: arm.into(), round: 0, values })
}

/// Whether the processor had idle time enough in a group for times to be judged.
fn is_idle_enough(figure: &Figure, arm: &str, group: &str) -> bool {
    figure.report.summary(LINE, group, arm, "idle").is_some_and(|idle| idle.median >= IDLE_MIN)
}

/// One value, to be judged.
fn single(value: f64) -> Option<Summary> {
    Summary::of(&[value])
}

/// Clients on threads of their own while `work` is done on this one: nodes end with the thread that starts them.
fn beside<T>(
    run: impl FnOnce() -> Result<()> + Send,
    end: impl FnOnce(),
    work: impl FnOnce() -> Result<T>,
) -> Result<T> {
    thread::scope(|scope| {
        let asking = scope.spawn(run);
        let done = work();
        end();
        let asked = asking.join().map_err(|_| Error::new("a thread that asks panicked"))?;
        done.and_then(|done| asked.map(|()| done))
    })
}
