//! What befalls a herd while a history is made: nodes that are stopped in their tracks, or killed, cables pulled, slow
//! links, and pairs of nodes that do not hear each other, or whose connections are reset, for moments or seconds.
//!
//! Each disturbance is undone before the next begins, and all of them before the history ends.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use clap::ValueEnum;

use crate::error::{Error, Result};
use crate::net::conditions::Rate;
use crate::nodes::{Herd, Hosts, RATE};
use crate::sys;
use crate::values::Random;

/// A kind of disturbance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(super) enum Fault {
    /// A node is stopped and goes on later.
    Pause,
    /// A node's cable is pulled and put in again.
    Cut,
    /// A node's link has 1 Mbit/s.
    Slow,
    /// A node and another one, or the clients, do not hear each other; all others hear both.
    Part,
    /// Connections between such two are reset again and again.
    Reset,
    /// A node is killed, and started again later; the next disturbance waits until it has its copies again.
    Kill,
}

impl Fault {
    /// All of them.
    pub(super) const ALL: [Self; 6] = [Self::Pause, Self::Cut, Self::Slow, Self::Part, Self::Reset, Self::Kill];

    /// All but the first need a network of our own; who is killed loses nothing where others have copies.
    fn can_befall(self, herd: &Herd) -> bool {
        match self {
            Self::Pause => true,
            Self::Kill => herd.hosts.is_some() && herd.keeps_copies(),
            _ => herd.hosts.is_some(),
        }
    }
}

/// A link so slow that prepares lie in it for tens of milliseconds.
pub(crate) const SLOW: Rate = Rate(1_000_000);
/// How often a pair's connections are reset, and how long they are left alone between.
const RESETS: u64 = 5;
/// How a moment and a long time are drawn, in milliseconds: below a node's patience with another, and beyond it.
const MOMENT_MS: (u64, u64) = (5, 150);
const LONG_MS: (u64, u64) = (500, 2_500);
/// Between two disturbances.
const QUIET_MS: u64 = 400;

/// Disturbs `herd` until `over`; how often each.
pub(super) fn run(herd: &Herd, wanted: &[Fault], seed: u64, over: &AtomicBool) -> Result<BTreeMap<Fault, u64>> {
    let faults: Vec<Fault> = wanted.iter().copied().filter(|fault| fault.can_befall(herd)).collect();
    let mut random = Random::new(seed);
    let mut counts = BTreeMap::new();
    while !faults.is_empty() && !over.load(Ordering::Relaxed) {
        let quiet = random.below(QUIET_MS);
        rest(quiet, over);
        let fault = faults[random.below(faults.len() as u64) as usize];
        let range = if random.below(2) == 0 { MOMENT_MS } else { LONG_MS };
        let node = random.below(herd.count() as u64) as usize;
        // Counted from it on; the last one of all are the clients.
        let other = (node + 1 + random.below(herd.count() as u64) as usize) % (herd.count() + 1);
        let time_ms = range.0 + random.below(range.1 - range.0);
        *counts.entry(fault).or_default() += 1;
        befall(herd, fault, (node, other), time_ms, over)?;
    }
    Ok(counts)
}

/// One disturbance, undone again in any case.
fn befall(herd: &Herd, fault: Fault, (node, other): (usize, usize), time_ms: u64, over: &AtomicBool) -> Result<()> {
    let hosts = || herd.hosts.as_ref().ok_or_else(|| Error::new("there is no network of our own"));
    match fault {
        Fault::Pause => {
            let pid = herd.pid(node);
            sys::signal(pid, libc::SIGSTOP)?;
            rest(time_ms, over);
            Ok(sys::signal(pid, libc::SIGCONT)?)
        }
        Fault::Cut => {
            let Hosts { net, nodes, .. } = hosts()?;
            net.plug(nodes[node], false)?;
            rest(time_ms, over);
            net.plug(nodes[node], true)
        }
        Fault::Slow => {
            let Hosts { net, nodes, .. } = hosts()?;
            net.limit(nodes[node], SLOW)?;
            rest(time_ms, over);
            net.limit(nodes[node], RATE)
        }
        Fault::Part => {
            let Hosts { net, nodes, clients } = hosts()?;
            net.part(nodes[node], *nodes.get(other).unwrap_or(clients), false)?;
            rest(time_ms, over);
            net.join(nodes[node])
        }
        Fault::Reset => {
            let Hosts { net, nodes, clients } = hosts()?;
            for _ in 0..RESETS {
                net.part(nodes[node], *nodes.get(other).unwrap_or(clients), true)?;
                rest(time_ms / (2 * RESETS), over);
                net.join(nodes[node])?;
                rest(time_ms / (2 * RESETS), over);
            }
            Ok(())
        }
        Fault::Kill => {
            hosts()?;
            herd.kill(node)?;
            rest(time_ms, over);
            herd.start_again(node)
        }
    }
}

/// Waits, but not beyond the history's end.
fn rest(time_ms: u64, over: &AtomicBool) {
    let until = Instant::now() + Duration::from_millis(time_ms);
    while !over.load(Ordering::Relaxed) {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        thread::sleep(left.min(Duration::from_millis(20)));
    }
}
