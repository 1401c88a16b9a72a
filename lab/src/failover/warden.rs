//! Line warden: the warden's node is killed. What has no copy there must not notice at all, caches included; what has
//! is back soon after the node is started again.

use std::thread;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::failover::probe::{PATIENCE, Probe, Probes};
use crate::failover::strike::caches;
use crate::failover::table::{NEVER_MS, Of, Row};
use crate::failover::{LEASE, Run, WHOLE};
use crate::faults::seen;
use crate::map::{Group, Map};
use crate::nodes::Herd;
use crate::sys;

const LINE: &str = "warden";
/// How long the warden's node is dead, and how long writes go on before that.
const DEAD: Duration = Duration::from_secs(3);
const BEFORE: Duration = Duration::from_millis(250);
/// Groups of each kind.
const GROUPS: usize = 10;
/// Beyond a lease.
const SLACK_MS: f64 = 1_000.0;

/// What was seen in all rounds.
#[derive(Default)]
struct Seen {
    others: (usize, u64),
    caches: (usize, u64),
    back_ms: [Vec<f64>; 2],
    lost: u64,
}

impl Run<'_> {
    /// Kills the warden's node, in rounds, and makes the rows.
    pub(super) fn without_warden(&mut self) -> Result<()> {
        let rounds = self.options.long_rounds();
        let herd = self.herd()?;
        let mut seen = Seen::default();
        for _ in 0..rounds {
            kill_warden(herd, &mut seen)?;
        }
        let bars = [(Of::Max, LEASE.as_secs_f64() * 1e3 + SLACK_MS)];
        let back = |who: &str, times: &[f64]| {
            Row::times(LINE, format!("writes of its own groups are back after its restart, {who}"), times, &bars)
        };
        let others = "requests in groups without a copy there, and in caches elsewhere";
        let (count, failed) = (seen.others.0 + seen.caches.0, seen.others.1 + seen.caches.1);
        let [own, plain] = &seen.back_ms;
        let rows = vec![
            Row::failures(LINE, others, count, failed),
            back("Herd's client", own),
            back("memcached client of another node", plain),
            Row::wrongs(LINE, "acknowledged writes are there in the end", own.len() + plain.len(), seen.lost),
        ];
        self.rows.extend(rows);
        Ok(())
    }
}

/// One round.
fn kill_warden(herd: &Herd, seen: &mut Seen) -> Result<()> {
    let warden = seen::warden(herd, 1)?;
    let witness = herd.numbers().into_iter().find(|number| *number != warden);
    let witness = witness.ok_or_else(|| Error::new("there is one node only"))?;
    let map = seen::map(herd, witness)?;
    let (own, others) = (groups(&map, herd, warden, true), groups(&map, herd, warden, false));
    let kept = caches(&map, herd, witness)?;
    let all = [&own[..], &others].concat();
    let probes = Probes::new(&map, &all, (kept.0, &kept.1), &herd.addresses(), herd.place(witness))?;
    let (from_ns, restarted_ns) = thread::scope(|scope| {
        let writing = scope.spawn(|| {
            herd.on_clients(|| {
                probes.run();
                Ok(())
            })
        });
        thread::sleep(BEFORE);
        let struck = restart(herd, warden, &probes);
        probes.end();
        let ended = writing.join().map_err(|_| Error::new("a thread that writes panicked"))?;
        struck.and_then(|struck| ended.map(|()| struck))
    })?;
    let is_own = |probe: &Probe| own.contains(&probe.group);
    add(&mut seen.others, probes.count(from_ns, |probe| others.contains(&probe.group)));
    add(&mut seen.caches, probes.count(from_ns, |probe| !is_own(probe) && !others.contains(&probe.group)));
    let mut slowest_ms: f64 = 0.0;
    for probe in probes.all.iter().filter(|probe| is_own(probe)) {
        let back_ms = probe.back_ns(restarted_ns).map_or(NEVER_MS, |back_ns| (back_ns - restarted_ns) as f64 / 1e6);
        slowest_ms = slowest_ms.max(back_ms);
        seen.back_ms[usize::from(!probe.is_own)].push(back_ms);
    }
    println!("  warden of node {}: its own groups back {slowest_ms:.0} ms after its restart", warden + 1);
    herd.wait_whole(witness, WHOLE)?;
    seen.lost += herd.on_clients(|| Ok(probes.look()))?;
    Ok(())
}

fn add(to: &mut (usize, u64), more: (usize, u64)) {
    *to = (to.0 + more.0, to.1 + more.1);
}

/// Kills the node and starts it again: when the one, when the other.
fn restart(herd: &Herd, warden: usize, probes: &Probes) -> Result<(u64, u64)> {
    let killed_ns = sys::monotonic_ns();
    herd.kill(warden)?;
    thread::sleep(DEAD);
    let restarted_ns = sys::monotonic_ns();
    herd.start_node(warden)?;
    probes.await_back(restarted_ns, PATIENCE + LEASE);
    Ok((killed_ns, restarted_ns))
}

/// Some of the groups of `default` that have a copy at a node, or have none.
fn groups(map: &Map, herd: &Herd, node: usize, has: bool) -> Vec<Group> {
    let is_one = |group: &Group| group.0 == 0 && map.members(*group).contains(&herd.place(node)) == has;
    let mut groups: Vec<Group> = map.groups().filter(is_one).collect();
    groups.sort_unstable();
    groups.truncate(GROUPS);
    groups
}
