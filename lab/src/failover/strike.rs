//! Lines kill, stop, cut and detach: one node after the other, but the warden's, is struck; each group that it leads or
//! has a copy of is written to meanwhile (`probe`), at 250 ms before the blow and until all are back.

use std::thread;
use std::time::{Duration, Instant};

use crate::ask::Asker;
use crate::error::{Context, Error, Result};
use crate::failover::paused::await_lead;
use crate::failover::probe::{CACHE, PATIENCE, Probe, Probes};
use crate::failover::table::{NEVER_MS, Of, Row};
use crate::failover::{LEASE, Run, WHOLE};
use crate::faults::seen;
use crate::map::{Group, Map};
use crate::nodes::Herd;
use crate::sys;

/// How a node is struck.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Kill,
    Stop,
    Cut,
    /// `herd detach --now`: it ends, and the herd goes on without it; then an empty one takes its place.
    Detach,
}

/// Writes go on so long before the blow.
const BEFORE: Duration = Duration::from_millis(250);
/// Who is stopped or cut off is so for at least this: beyond any time after which others go on without it.
const AWAY: Duration = Duration::from_millis(4_500);
/// Groups of each kind that are written to: not so many that the processor is the limit.
const GROUPS: usize = 8;
/// Bars, in milliseconds.
const KILL_P50: f64 = 300.0;
const KILL_P99: f64 = 2_000.0;
const SLACK_MS: f64 = 500.0;
/// What a dead node's caches have beyond a lease.
const CACHE_SLACK_MS: f64 = 1_000.0;

impl Way {
    fn word(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::Stop => "stop",
            Self::Cut => "cut",
            Self::Detach => "detach",
        }
    }

    /// What is held against the times of a kind of group.
    fn bars(self, role: Role) -> Vec<(Of, f64)> {
        let lease_ms = LEASE.as_secs_f64() * 1e3;
        match (self, role) {
            (Self::Kill | Self::Detach, Role::Leads) => vec![(Of::P50, KILL_P50), (Of::P99, KILL_P99)],
            (Self::Kill | Self::Detach, Role::Backs) => vec![(Of::P99, KILL_P99)],
            (_, Role::Caches) => vec![(Of::Max, lease_ms + CACHE_SLACK_MS)],
            (Self::Stop | Self::Cut, _) => vec![(Of::Max, lease_ms + SLACK_MS)],
        }
    }
}

/// What the node that is struck is to a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Leads,
    Backs,
    /// It alone has what is a cache.
    Caches,
}

impl Role {
    const ALL: [Self; 3] = [Self::Leads, Self::Backs, Self::Caches];

    fn word(self, way: Way) -> &'static str {
        match (self, way) {
            (Self::Leads, Way::Detach) => "longest pause of writes of what it led",
            (Self::Backs, Way::Detach) => "longest pause of writes of what it had a copy of",
            (Self::Leads, _) => "writes of what it led are back",
            (Self::Backs, _) => "writes of what it had a copy of are back",
            (Self::Caches, _) => "its caches are back, empty",
        }
    }
}

/// Times that one kind of client had to wait in one kind of group.
struct Waits {
    role: Role,
    is_own: bool,
    times_ms: Vec<f64>,
    asked: usize,
    failed: u64,
}

impl Run<'_> {
    /// Strikes in rounds, and makes the rows.
    pub(super) fn strike(&mut self, way: Way, rounds: u32) -> Result<()> {
        let has_links = self.has_links();
        let herd = self.herd()?;
        if way == Way::Cut && !has_links {
            println!("SKIPPED cut: there are no links of our own");
            return Ok(());
        }
        // What is stopped or cut may come back: what is a cache then is not lost, so only kills say something of it.
        let mut waits: Vec<Waits> = Role::ALL
            .iter()
            .filter(|role| way == Way::Kill || **role != Role::Caches)
            .flat_map(|role| [true, false].map(|is_own| (*role, is_own)))
            .filter(|(role, is_own)| *is_own || *role != Role::Caches)
            .map(|(role, is_own)| Waits { role, is_own, times_ms: Vec::new(), asked: 0, failed: 0 })
            .collect();
        let mut lost = 0;
        for round in 0..rounds as usize {
            let victim = 1 + round % (herd.count() - 1);
            lost += strike_once(herd, way, victim, &mut waits)?;
        }
        let mut rows: Vec<Row> = waits.iter().map(|waits| waits.row(way)).collect();
        let writers = waits.iter().map(|waits| waits.times_ms.len()).sum();
        if way == Way::Detach {
            let asked = waits.iter().map(|waits| waits.asked).sum();
            let failed = waits.iter().map(|waits| waits.failed).sum();
            rows.push(Row::failures(way.word(), "requests from the command's start on", asked, failed));
        }
        rows.push(Row::wrongs(way.word(), "acknowledged writes are there in the end", writers, lost));
        self.rows.extend(rows);
        Ok(())
    }
}

impl Waits {
    fn row(&self, way: Way) -> Row {
        let who = if self.is_own { "Herd's client" } else { "memcached client of another node" };
        let what = format!("{}, {who}", self.role.word(way));
        Row { failed: self.failed, ..Row::times(way.word(), what, &self.times_ms, &way.bars(self.role)) }
    }
}

/// One blow, until the herd is whole again; how many objects were lost.
fn strike_once(herd: &Herd, way: Way, victim: usize, waits: &mut [Waits]) -> Result<u64> {
    let witness = if victim == 1 { 2 } else { 1 };
    let map = await_lead(herd, victim, 0)?;
    let [leads, backs] = roles(&map, herd, victim);
    let caches = if way == Way::Kill { caches(&map, herd, victim)? } else { (0, Vec::new()) };
    let groups = [&leads[..], &backs].concat();
    let (nodes, plain) = (herd.addresses(), herd.place(witness));
    let probes = Probes::new(&map, &groups, (caches.0, &caches.1), &nodes, plain)?;
    let (struck_ns, felt_ns, all_back) = thread::scope(|scope| {
        let writing = scope.spawn(|| {
            herd.on_clients(|| {
                probes.run();
                Ok(())
            })
        });
        thread::sleep(BEFORE);
        let struck = blow(herd, way, victim, &probes);
        probes.end();
        let ended = writing.join().map_err(|_| Error::new("a thread that writes panicked"))?;
        struck.and_then(|struck| ended.map(|()| struck))
    })?;
    let role = |group: &Group| match () {
        () if leads.contains(group) => Role::Leads,
        () if backs.contains(group) => Role::Backs,
        () => Role::Caches,
    };
    // Others write on while one is detached: there what counts is how long they had to wait, all in all.
    let waited_ns = |probe: &Probe| match way {
        Way::Detach => probe.pause_ns(struck_ns, felt_ns),
        _ => probe.back_ns(felt_ns).map(|back_ns| back_ns - struck_ns),
    };
    for waits in waits.iter_mut() {
        for probe in probes.all.iter().filter(|it| it.is_own == waits.is_own && role(&it.group) == waits.role) {
            waits.times_ms.push(waited_ns(probe).map_or(NEVER_MS, |waited_ns| waited_ns as f64 / 1e6));
            let told = probe.told_since(struck_ns);
            waits.asked += told.len();
            waits.failed += told.iter().filter(|told| told.why.is_some()).count() as u64;
        }
    }
    let (_, failed) = probes.count(struck_ns, |_| true);
    let slowest_ms = probes.all.iter().filter_map(waited_ns).max().unwrap_or(0) / 1_000_000;
    let all = if all_back { "all back" } else { "NOT all back" };
    println!("  {} of node {}: {all}, {slowest_ms} ms at most, {failed} requests failed", way.word(), victim + 1);
    herd.wait_whole(0, WHOLE)?;
    herd.on_clients(|| Ok(probes.look()))
}

/// The blow, and what undoes it when writes are back: when it began and when it had fallen, and whether all were back.
fn blow(herd: &Herd, way: Way, victim: usize, probes: &Probes) -> Result<(u64, u64, bool)> {
    let begun = Instant::now();
    let struck_ns = sys::monotonic_ns();
    match way {
        Way::Kill => herd.kill(victim)?,
        Way::Stop => seen::stop(herd.pid(victim))?,
        Way::Cut => plug(herd, victim, false)?,
        Way::Detach => {
            let ended = herd.detach(victim, 0)?.wait().during(|| "wait for herd detach".into())?;
            if !ended.success() {
                return Err(Error::new("herd detach failed (see detach.log)"));
            }
        }
    }
    let felt_ns = sys::monotonic_ns();
    let all_back = probes.await_back(felt_ns, PATIENCE + LEASE);
    if matches!(way, Way::Stop | Way::Cut) {
        thread::sleep(AWAY.saturating_sub(begun.elapsed()));
    }
    match way {
        Way::Kill => herd.start_node(victim)?,
        Way::Stop => sys::signal(herd.pid(victim), libc::SIGCONT)?,
        Way::Cut => plug(herd, victim, true)?,
        Way::Detach => {
            herd.let_go(victim, 0, WHOLE)?;
            herd.start_node(victim)?;
        }
    }
    Ok((struck_ns, felt_ns, all_back))
}

fn plug(herd: &Herd, node: usize, plugged: bool) -> Result<()> {
    let hosts = herd.hosts.as_ref().ok_or_else(|| Error::new("there is no network of our own"))?;
    hosts.net.plug(hosts.nodes[node], plugged)
}

/// Some of the groups of `default` that a node leads, and of those that it has a copy of.
fn roles(map: &Map, herd: &Herd, node: usize) -> [Vec<Group>; 2] {
    let at = herd.place(node);
    let of = |leads: bool| {
        let is_one = |group: &Group| {
            let place = map.members(*group).iter().position(|member| *member == at);
            group.0 == 0 && place.is_some_and(|place| (place == 0) == leads)
        };
        let mut groups: Vec<Group> = map.groups().filter(is_one).collect();
        groups.sort_unstable();
        groups.truncate(GROUPS);
        groups
    };
    [of(true), of(false)]
}

/// The id of the collection of caches, and its groups that a node has.
pub(super) fn caches(map: &Map, herd: &Herd, node: usize) -> Result<(u64, Vec<Group>)> {
    let first = herd.place(0);
    let id = herd.on_clients(|| Asker::open(first)?.create(CACHE, r#"{"class":"cache"}"#))?;
    let spread = (id >> 48) as u16;
    let mut groups: Vec<Group> = map.groups().filter(|group| group.0 == spread).collect();
    groups.retain(|group| map.members(*group).first() == Some(&herd.place(node)));
    groups.sort_unstable();
    groups.truncate(GROUPS);
    Ok((id, groups))
}
