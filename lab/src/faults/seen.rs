//! What can be seen of a herd from outside: the map that a node goes by, its metrics, who is the warden, and whether a
//! process is stopped.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use crate::ask::{self, Asker};
use crate::error::{Context, Error, Result};
use crate::map::{Group, Map};
use crate::nodes::{Herd, name_of};
use crate::sys;

/// A node that lives answers within this.
const PATIENCE: Duration = Duration::from_secs(5);

/// Copies that a node had no room for.
pub(crate) const REFUSED: &str = "herd_refused_copies_total";
/// Groups that a node came to decide for with writes pending.
const TAKE_OVERS: &str = "herd_take_overs_pending_total";
const EPOCH: &str = "herd_map_epoch";
const PENDING: &str = "herd_group_pending_writes";
const PREPARED: &str = "herd_group_prepared_writes";

/// The map that a node goes by.
pub(crate) fn map(herd: &Herd, node: usize) -> Result<Map> {
    let addr = herd.place(node);
    let map = herd.on_clients(|| Asker::open_within(addr, PATIENCE)?.map())?;
    map.ok_or_else(|| Error::new(format!("{addr} has no map")))
}

/// A node's metrics.
pub(crate) fn metrics(herd: &Herd, node: usize) -> Result<String> {
    let addr = herd.place(node);
    herd.on_clients(|| ask::page_within(addr, "/metrics", PATIENCE))
}

/// The value of a metric without labels.
pub(crate) fn value(metrics: &str, name: &str) -> Option<u64> {
    metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

/// The map's epoch by a node's metrics.
pub(crate) fn epoch(metrics: &str) -> Option<u64> {
    value(metrics, EPOCH)
}

/// The groups that a node leads in which writes wait for other members.
pub(crate) fn pending(metrics: &str) -> Vec<Group> {
    groups(metrics, PENDING)
}

/// The groups of which writes are prepared at a node, and neither committed nor dropped.
pub(crate) fn prepared(metrics: &str) -> Vec<Group> {
    groups(metrics, PREPARED)
}

/// The groups for which a gauge is above 0.
fn groups(metrics: &str, gauge: &str) -> Vec<Group> {
    let group = |line: &str| {
        let (group, count) = line.strip_prefix(gauge)?.strip_prefix("{group=\"")?.split_once("\"} ")?;
        let (spread, number) = group.split_once('/')?;
        let is_any = count.trim().parse::<u64>().ok()? > 0;
        Some((spread.parse().ok()?, number.parse().ok()?)).filter(|_| is_any)
    };
    metrics.lines().filter_map(group).collect()
}

/// How often nodes other than this one took over with writes pending, since they started.
pub(crate) fn take_overs(herd: &Herd, but: usize) -> Result<u64> {
    let others = herd.numbers().into_iter().filter(|&number| number != but);
    others.map(|number| Ok(value(&metrics(herd, number)?, TAKE_OVERS).unwrap_or(0))).sum()
}

/// The node of the warden, as another node tells.
pub(crate) fn warden(herd: &Herd, node: usize) -> Result<usize> {
    let status = herd.status(node)?;
    let name = status["warden"].as_str().unwrap_or_default();
    let found = herd.numbers().into_iter().find(|&number| name_of(number) == name);
    found.ok_or_else(|| Error::new(format!("node {} knows no warden", node + 1)))
}

/// Stops a process, and waits until each of its threads stands still.
pub(crate) fn stop(pid: i32) -> Result<()> {
    sys::signal(pid, libc::SIGSTOP)?;
    let begun = Instant::now();
    while !stands_still(pid)? {
        if begun.elapsed() > PATIENCE {
            return Err(Error::new(format!("process {pid} does not stop")));
        }
        thread::sleep(Duration::from_micros(200));
    }
    Ok(())
}

fn stands_still(pid: i32) -> Result<bool> {
    let path = format!("/proc/{pid}/task");
    for task in fs::read_dir(&path).during(|| format!("read {path}"))? {
        // A thread that ends meanwhile stands still, too.
        let stat = fs::read_to_string(task?.path().join("stat")).unwrap_or_default();
        let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
        if state.is_some_and(|state| state != 'T') {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# HELP herd_map_epoch Epoch\n# TYPE herd_map_epoch gauge\nherd_map_epoch 7\n\
        herd_refused_copies_total 3\nherd_group_pending_writes{group=\"0/3\"} 0\n\
        herd_group_pending_writes{group=\"0/11\"} 2\nherd_group_prepared_writes{group=\"1/3\"} 1\n";

    #[test]
    fn metrics_are_read() {
        assert_eq!(epoch(TEXT), Some(7));
        assert_eq!(value(TEXT, REFUSED), Some(3));
        assert_eq!(value(TEXT, "herd_refused"), None);
        assert_eq!((pending(TEXT), prepared(TEXT)), (vec![(0, 11)], vec![(1, 3)]));
    }

    #[test]
    fn a_stopped_process_is_seen() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().expect("sleep is everywhere");
        let pid = i32::try_from(child.id()).expect("pids fit");
        assert!(!stands_still(pid).expect("it lives"));
        stop(pid).expect("it stops");
        assert!(stands_still(pid).expect("it lives"));
        child.kill().expect("it is ours");
        child.wait().expect("it ends");
    }
}
