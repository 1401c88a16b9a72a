//! Herd's arm: idle, to count what moves and how fast, then under load.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use crate::caller::Caller;
use crate::error::{Context, Error, Result};
use crate::faults::seen;
use crate::faults::strike::ends_well;
use crate::figure::elastic::{
    COPIES, FOREGROUND, IDLE_MIN, LINK, MOVED_MAX, NODES, OBJECT_BYTES, P99_MAX, PATIENCE, RATE_MIN, Story, THREADS,
    beside, is_idle_enough, keep, objects, quiet, seconds, single, stretch,
};
use crate::figure::{Figure, LINE};
use crate::foreground::{Crew, Foreground};
use crate::nodes::{Herd, Hosts, Shape};
use crate::peers::{IPERF3, Peer, Stream};
use crate::processor::Processor;
use crate::sys;

const ARM: &str = "herd";
/// Memory of a node: all of 1 GiB would fit.
const MEMORY: &str = "1500m";
/// The node that comes, the one that drains, and the one that is killed.
const NEWCOMER: usize = 3;
const DRAINED: usize = 1;
const KILLED: usize = 3;
/// Nodes that memcached's clients ask: they stay.
const STAY: [usize; 2] = [0, 2];
/// Copies begin to move within this, and have all moved when none has for so long.
const BEGINS: Duration = Duration::from_secs(30);
const STILL: Duration = Duration::from_secs(4);
/// All has moved within this.
const MOVED: Duration = Duration::from_secs(600);
const FORGOTTEN: Duration = Duration::from_secs(90);
/// Who is killed comes back after so long.
const DEAD: Duration = Duration::from_secs(3);
/// How long iperf3 is run.
const IPERF_S: u64 = 4;
/// The rate is set by what links carry in this time, and first guessed as if each request crossed one link once.
const GAUGE: Duration = Duration::from_secs(4);
const LOOK: Duration = Duration::from_millis(100);

/// What moved without a foreground.
struct Moved {
    seconds: f64,
    bytes: u64,
    idle: f64,
    /// Of the bytes, those that had come when the command said that it was done.
    told_bytes: u64,
}

/// Measures it all; the story under load, and the requests each second of it.
pub(super) fn run(figure: &mut Figure) -> Result<(Story, f64)> {
    let dir = figure.report.path("-nodes");
    fs::create_dir_all(&dir).during(|| format!("create {}", dir.display()))?;
    let herd = start(figure, &dir)?;
    let count = objects(figure);
    let guess = FOREGROUND * NODES as f64 * LINK.0 as f64 / 8.0 / OBJECT_BYTES as f64 / 1.5;
    let foreground = Foreground::new(count, OBJECT_BYTES, guess);
    let own = Caller::own(&herd.addresses(), PATIENCE)?;
    herd.on_clients(|| foreground.fill(&own))?;
    println!("herd: {count} objects of 64 KiB are stored");
    alone(figure, &herd, (count * OBJECT_BYTES) as f64)?;
    let plain = STAY.map(|node| Caller::memcached(herd.place(node), PATIENCE)).into();
    let crews = [
        Crew { callers: vec![own], threads: THREADS, share: 0.5 },
        Crew { callers: plain, threads: THREADS, share: 0.5 },
    ];
    let run = || {
        herd.on_clients(|| {
            foreground.run(&crews, 1);
            Ok(())
        })
    };
    let story = beside(run, || foreground.end(), || under_load(figure, &herd, &foreground))?;
    judge(figure, &foreground)?;
    drop(herd);
    fs::remove_dir_all(&dir).during(|| format!("remove {}", dir.display()))?;
    Ok((story, foreground.rate()))
}

fn start(figure: &mut Figure, dir: &Path) -> Result<Herd> {
    let hosts = Hosts::build(NODES + 1, LINK)?;
    let program = figure.options.programs.herd.clone().ok_or_else(|| Error::new("no --herd"))?;
    let (room, replicas, small, etcd) = (NODES + 1, Some(COPIES), None, None);
    let shape = Shape { program, nodes: NODES, room, replicas, memory: MEMORY, small, etcd, dir: dir.to_owned() };
    figure.report.options(ARM, &format!("node --threads 2 --memory {MEMORY} --replicas {COPIES} --plain"))?;
    Herd::start(shape, Some(hosts))
}

fn hosts(herd: &Herd) -> Result<&Hosts> {
    herd.hosts.as_ref().ok_or_else(|| Error::new("there is no network of our own"))
}

/// Joins and drains without a foreground, beside iperf3: how much moves, and how fast.
fn alone(figure: &mut Figure, herd: &Herd, bytes: f64) -> Result<()> {
    let line_mb_s = iperf(figure, herd)?;
    let must = f64::from(COPIES) * bytes / (NODES + 1) as f64;
    let joined = moved(figure, herd, || herd.start_node(NEWCOMER).map(|()| None))?;
    let drained = moved(figure, herd, || herd.drain(NEWCOMER, 0, false).map(Some))?;
    herd.let_go(NEWCOMER, 0, FORGOTTEN)?;
    for (group, moved) in [("join, idle", joined), ("drain, idle", drained)] {
        let (share, mb_s) = (moved.bytes as f64 / must, must / moved.seconds / 1e6);
        let values = [
            ("seconds", moved.seconds),
            ("MB moved", moved.bytes as f64 / 1e6),
            ("MB moved when told", moved.told_bytes as f64 / 1e6),
            ("MB/s moved", mb_s),
            ("MB/s iperf3", line_mb_s.unwrap_or(f64::NAN)),
            ("idle", moved.idle),
        ];
        println!("  herd, {group}: {values:.3?}");
        let (group, arm, values) = (group.to_owned(), ARM.to_owned(), values.into_iter().collect());
        figure.report.sample(crate::report::Sample { line: LINE, group: group.clone(), arm, round: 0, values })?;
        let what = format!("{group}: bytes over the links, of copies x bytes/N");
        figure.report.judge(LINE, what, single(share), MOVED_MAX, true)?;
        let rate = line_mb_s.filter(|_| moved.idle >= IDLE_MIN).and_then(|line_mb_s| single(mb_s / line_mb_s));
        figure.report.judge(LINE, format!("{group}: rate of moving, of iperf3"), rate, RATE_MIN, false)?;
    }
    Ok(())
}

/// What one stream of iperf3 carries from the first node to the one that is to come, in MB/s.
fn iperf(figure: &Figure, herd: &Herd) -> Result<Option<f64>> {
    let Some(program) = figure.options.programs.path(IPERF3) else {
        println!("SKIPPED the rate beside iperf3: no iperf3 (Debian: iperf3)");
        return Ok(None);
    };
    let (stream, hosts) = (Stream::new(program), hosts(herd)?);
    let server = stream.start(&hosts.net, hosts.nodes[0], None)?;
    let bits = stream.bits_per_s(&hosts.net, hosts.nodes[NEWCOMER], &server, IPERF_S)?;
    Ok(Some(bits / 8e6))
}

/// Lets copies move: the time from the first to the last, and what all nodes received from the command on.
fn moved(figure: &Figure, herd: &Herd, begin: impl FnOnce() -> Result<Option<std::process::Child>>) -> Result<Moved> {
    let received_before = received(herd)?;
    let mut command = begin()?;
    await_moves(herd, BEGINS)?;
    let (first_ns, before) = (sys::monotonic_ns(), Processor::now(figure.awake.pid())?);
    if let Some(command) = &mut command {
        ends_well(command, MOVED)?;
    }
    let told = received(herd)?;
    let (last_ns, bytes) = await_still(figure, herd)?;
    let idle = Processor::now(figure.awake.pid())?.since(before).idle;
    Ok(Moved {
        seconds: (last_ns - first_ns) as f64 / 1e9,
        bytes: bytes - received_before,
        idle,
        told_bytes: told - received_before,
    })
}

/// What the nodes' interfaces have received so far.
fn received(herd: &Herd) -> Result<u64> {
    let hosts = hosts(herd)?;
    hosts.nodes.iter().map(|node| Ok(hosts.net.link_bytes(*node)?.0)).sum()
}

fn sent(herd: &Herd) -> Result<u64> {
    let hosts = hosts(herd)?;
    hosts.nodes.iter().map(|node| Ok(hosts.net.link_bytes(*node)?.1)).sum()
}

fn moves(herd: &Herd) -> Result<bool> {
    Ok(seen::map(herd, 0)?.has_more_than(usize::from(COPIES)))
}

/// Waits until the map shows that a copy moves.
fn await_moves(herd: &Herd, patience: Duration) -> Result<()> {
    let begun = Instant::now();
    while !moves(herd)? {
        if begun.elapsed() > patience {
            return Err(Error::new(format!("no copy moves within {patience:?}")));
        }
        thread::sleep(LOOK / 4);
    }
    Ok(())
}

/// How long something is looked at: the short form looks at it for a moment.
fn watch(figure: &Figure, time: Duration) -> Duration {
    if figure.options.short { time / 4 } else { time }
}

/// Waits until no copy has moved for a while: when the last one did, and what had been received by then.
fn await_still(figure: &Figure, herd: &Herd) -> Result<(u64, u64)> {
    let still = watch(figure, STILL);
    let begun = Instant::now();
    let mut last = (sys::monotonic_ns(), received(herd)?);
    loop {
        thread::sleep(LOOK);
        if moves(herd)? {
            last = (sys::monotonic_ns(), received(herd)?);
        } else if u128::from(sys::monotonic_ns() - last.0) > still.as_nanos() {
            return Ok(last);
        }
        if begun.elapsed() > MOVED {
            return Err(Error::new(format!("copies still move after {MOVED:?}")));
        }
    }
}

/// All of it once more, while clients ask.
fn under_load(figure: &mut Figure, herd: &Herd, foreground: &Foreground) -> Result<Story> {
    gauge(figure, herd, foreground)?;
    let begun_ns = sys::monotonic_ns();
    let mut marks = Vec::new();
    let mut mark = |at_ns: u64, label: &str| marks.push((at_ns, label.to_owned()));
    let pause = quiet(figure);
    let links = (sent(herd)?, received(herd)?, Instant::now());
    let before = stretch(figure, foreground, || rest(pause))?;
    let bits = |bytes: u64| bytes as f64 * 8.0 / links.2.elapsed().as_secs_f64() / NODES as f64;
    let share = bits(sent(herd)? - links.0).max(bits(received(herd)? - links.1)) / LINK.0 as f64;
    keep(figure, foreground, (ARM, "before"), &before, &[("share of links", share)])?;

    mark(sys::monotonic_ns(), "node 4 joins");
    let join = stretch(figure, foreground, || {
        herd.start_node(NEWCOMER)?;
        await_moves(herd, BEGINS)?;
        let from_ns = sys::monotonic_ns();
        Ok(Some((from_ns, await_still(figure, herd)?.0)))
    })?;
    keep(figure, foreground, (ARM, "join"), &join, &[])?;
    mark(join.to_ns, "has its share");
    thread::sleep(pause / 2);

    mark(sys::monotonic_ns(), "node 2 drains");
    let drain = stretch(figure, foreground, || {
        let from_ns = sys::monotonic_ns();
        ends_well(&mut herd.drain(DRAINED, 0, false)?, MOVED)?;
        Ok(Some((from_ns, sys::monotonic_ns())))
    })?;
    keep(figure, foreground, (ARM, "drain"), &drain, &[])?;
    mark(drain.to_ns, "drained");
    herd.let_go(DRAINED, 0, FORGOTTEN)?;
    thread::sleep(pause / 2);

    mark(sys::monotonic_ns(), "node 4 killed");
    let back = stretch(figure, foreground, || {
        herd.kill(KILLED)?;
        thread::sleep(DEAD);
        herd.start_node(KILLED)?;
        herd.wait_whole(0, MOVED)?;
        Ok(None)
    })?;
    keep(figure, foreground, (ARM, "killed and back"), &back, &[])?;
    mark(back.to_ns, "has its copies again");
    thread::sleep(pause / 2);
    Ok(Story { arm: ARM, begun_ns, marks, seconds: seconds(foreground, begun_ns) })
}

fn rest(time: Duration) -> Result<Option<(u64, u64)>> {
    thread::sleep(time);
    Ok(None)
}

/// Sets the rate so that the links carry what they should in their busier direction.
fn gauge(figure: &Figure, herd: &Herd, foreground: &Foreground) -> Result<()> {
    let time = watch(figure, GAUGE);
    for _ in 0..2 {
        thread::sleep(time / 4);
        let (before, begun) = ((sent(herd)?, received(herd)?), Instant::now());
        thread::sleep(time);
        let most = (sent(herd)? - before.0).max(received(herd)? - before.1) as f64;
        let share = most * 8.0 / begun.elapsed().as_secs_f64() / NODES as f64 / LINK.0 as f64;
        foreground.set_rate(foreground.rate() * FOREGROUND / share.max(0.01));
        println!("  herd: {:.0} % of the links, {:.0} requests/s from now on", 100.0 * share, foreground.rate());
    }
    Ok(())
}

fn judge(figure: &mut Figure, foreground: &Foreground) -> Result<()> {
    let (_, failed, wrong) = foreground.counts();
    figure.report.judge(LINE, "failed replies, in all".into(), single(failed as f64), 0.0, true)?;
    figure.report.judge(LINE, "wrong replies, in all".into(), single(wrong as f64), 0.0, true)?;
    for group in ["join", "drain"] {
        let is_idle = ["before", group].iter().all(|group| is_idle_enough(figure, ARM, group));
        let ratio = figure.report.ratio(LINE, (group, ARM), ("before", ARM), "p99 ms").filter(|_| is_idle);
        figure.report.judge(LINE, format!("p99 while a node's {group} moves copies / before"), ratio, P99_MAX, true)?;
    }
    Ok(())
}
