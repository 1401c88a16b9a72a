//! Line map: how long until each of many real nodes has a new map, from before the command that changes it is started.
//! The change is that a node drains, and then that it does not any more; the herd has its groups, and hardly an object.
//! The nodes are on loopback: so many hosts that all know each other have more neighbours than the kernel holds.

use std::thread;
use std::time::{Duration, Instant};

use crate::ask;
use crate::error::{Error, Result};
use crate::failover::table::{Of, Row};
use crate::failover::{Run, WHOLE, probe};
use crate::faults::seen;
use crate::faults::strike::ends_well;
use crate::nodes::Herd;

const LINE: &str = "map";
const BAR_MS: f64 = 1_000.0;
/// Memory of a node, of so many on one machine.
const MEMORY: &str = "24m";
/// A new map is everywhere within this, or never.
const PATIENCE: Duration = Duration::from_secs(20);
/// No map is newer than the last one after so long without one.
const STILL: Duration = Duration::from_millis(2_500);
/// Looks at a node are this far apart.
const LOOK: Duration = Duration::from_millis(5);
/// Threads that look at nodes.
const LOOKING: usize = 4;

impl Run<'_> {
    /// Starts the nodes, changes the map in rounds, and makes the row.
    pub(super) fn reach(&mut self) -> Result<()> {
        let nodes = usize::from(self.options.processes);
        let herd = Herd::start(self.shape(nodes, 1, MEMORY, self.dir.join("many"))?, None)?;
        herd.on_clients(|| probe::put_first(herd.place(0)))?;
        herd.wait_whole(0, WHOLE)?;
        let mut times_ms = Vec::new();
        for round in 0..self.options.long_rounds() as usize {
            let victim = 1 + round % (nodes - 1);
            for cancels in [false, true] {
                times_ms.push(change(&herd, victim, cancels)?);
            }
        }
        let what = format!("a changed map is at {nodes} nodes");
        self.rows.push(Row::times(LINE, what, &times_ms, &[(Of::Max, BAR_MS)]));
        Ok(())
    }
}

/// One change; how long until all nodes had it, in milliseconds.
fn change(herd: &Herd, victim: usize, cancels: bool) -> Result<f64> {
    let before = await_still(herd)?;
    let begun = Instant::now();
    let mut command = herd.drain(victim, 0, cancels)?;
    let changed = await_newer(herd, before);
    let reached = changed.and_then(|()| await_everywhere(herd, before + 1));
    let took_ms = begun.elapsed().as_secs_f64() * 1e3;
    // Its log says why there may be no new map.
    ends_well(&mut command, WHOLE)?;
    reached?;
    println!("  map {} is everywhere after {took_ms:.0} ms", before + 1);
    Ok(took_ms)
}

/// The epoch of a node's map.
fn epoch(herd: &Herd, node: usize) -> Result<u64> {
    seen::epoch(&seen::metrics(herd, node)?).ok_or_else(|| Error::new(format!("node {} tells no epoch", node + 1)))
}

/// Waits until the map has not changed for a while: its epoch.
fn await_still(herd: &Herd) -> Result<u64> {
    let begun = Instant::now();
    let (mut last, mut since) = (epoch(herd, 0)?, Instant::now());
    while since.elapsed() < STILL {
        thread::sleep(10 * LOOK);
        let now = epoch(herd, 0)?;
        if now != last {
            (last, since) = (now, Instant::now());
        }
        if begun.elapsed() > WHOLE {
            return Err(Error::new("the map changes all the time"));
        }
    }
    Ok(last)
}

fn await_newer(herd: &Herd, before: u64) -> Result<()> {
    let begun = Instant::now();
    while epoch(herd, 0)? <= before {
        if begun.elapsed() > PATIENCE {
            return Err(Error::new("the map does not change"));
        }
        thread::sleep(LOOK);
    }
    Ok(())
}

/// Waits until each node has a map of at least this epoch.
fn await_everywhere(herd: &Herd, wanted: u64) -> Result<()> {
    let addresses = herd.addresses();
    herd.on_clients(|| {
        thread::scope(|scope| {
            let looking = addresses.chunks(addresses.len().div_ceil(LOOKING)).map(|some| {
                scope.spawn(move || {
                    for node in some {
                        let begun = Instant::now();
                        while seen::epoch(&ask::page_within(*node, "/metrics", PATIENCE)?) < Some(wanted) {
                            if begun.elapsed() > PATIENCE {
                                return Err(Error::new(format!("{node} does not get map {wanted}")));
                            }
                            thread::sleep(LOOK);
                        }
                    }
                    Ok(())
                })
            });
            let looking: Vec<_> = looking.collect();
            let looked: Vec<Result<()>> = looking
                .into_iter()
                .map(|it| it.join().unwrap_or_else(|_| Err(Error::new("a thread that looks at nodes panicked"))))
                .collect();
            looked.into_iter().collect()
        })
    })
}
