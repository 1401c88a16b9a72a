//! Line rolling: under load each node is ended (SIGTERM) and started again, the next one when the groups are whole.
//! Herd's own client knows all nodes; memcached's clients ask any node but the one that is being restarted. With
//! `--other` all nodes become that release, one after the other, and then this one again.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use crate::caller::Caller;
use crate::error::{Error, Result};
use crate::failover::probe::PATIENCE;
use crate::failover::table::Row;
use crate::failover::{Run, WHOLE};
use crate::foreground::{Crew, Foreground};
use crate::nodes::Herd;

const LINE: &str = "rolling";
/// The load: objects, their size, requests each second, threads of each kind of client.
const OBJECTS: usize = 400;
const OBJECT_BYTES: usize = 4_096;
const RATE_PER_S: f64 = 400.0;
const THREADS: usize = 8;
/// Before the first restart, and after each.
const QUIET: Duration = Duration::from_millis(500);

impl Run<'_> {
    /// Restarts all nodes, once or as many times as asked for, and makes the rows.
    pub(super) fn rolling(&mut self) -> Result<()> {
        let times = self.options.long_rounds().div_ceil(3);
        let other = self.options.other.as_deref();
        let releases = other.map_or_else(|| vec![None], |other| vec![Some(other), None]);
        let herd = self.herd()?;
        let mut rows = Vec::new();
        let plain = |node: usize| Caller::memcached(herd.place(node), PATIENCE);
        let kinds = [
            ("Herd's client", vec![Caller::own(&herd.addresses(), PATIENCE)?]),
            ("memcached clients of other nodes", herd.numbers().into_iter().map(plain).collect()),
        ];
        for (kind, callers) in kinds {
            let foreground = Foreground::new(OBJECTS, OBJECT_BYTES, RATE_PER_S);
            herd.on_clients(|| foreground.fill(&callers[0]))?;
            let crews = [Crew { callers, threads: THREADS, share: 1.0 }];
            thread::scope(|scope| {
                let asking = scope.spawn(|| {
                    herd.on_clients(|| {
                        foreground.run(&crews, 1);
                        Ok(())
                    })
                });
                let rolled =
                    (0..times).flat_map(|_| &releases).try_for_each(|release| roll(herd, &foreground, *release));
                foreground.end();
                let asked = asking.join().map_err(|_| Error::new("a thread that asks panicked"))?;
                rolled.and(asked)
            })?;
            let (count, failed, wrong) = foreground.counts();
            let how = if other.is_some() { "restarted as another release and back" } else { "restarted" };
            rows.push(Row::failures(LINE, format!("requests while all nodes are {how}, {kind}"), count, failed));
            rows.push(Row::wrongs(LINE, format!("wrong replies meanwhile, {kind}"), count, wrong));
        }
        self.rows.extend(rows);
        Ok(())
    }
}

/// Each node once, as that program.
fn roll(herd: &Herd, foreground: &Foreground, release: Option<&Path>) -> Result<()> {
    thread::sleep(QUIET);
    for node in herd.numbers() {
        let (before, begun) = (foreground.counts(), Instant::now());
        foreground.leave_alone(Some(herd.place(node)), PATIENCE + QUIET)?;
        herd.end_node(node)?;
        herd.set_program(node, release);
        herd.start_node(node)?;
        herd.wait_whole(node, WHOLE)?;
        foreground.leave_alone(None, PATIENCE)?;
        let failed = foreground.counts().1 - before.1;
        println!("  node {} is back and whole after {:.1} s, {failed} failed", node + 1, begun.elapsed().as_secs_f64());
        thread::sleep(QUIET);
    }
    if let Some(release) = release {
        await_protocol(herd, release)?;
    }
    Ok(())
}

/// Waits until the herd says that the upgrade is over: what is new in a release counts from then on.
fn await_protocol(herd: &Herd, release: &Path) -> Result<()> {
    let begun = Instant::now();
    while begun.elapsed() < PATIENCE {
        let status = herd.status(0)?;
        let nodes = status["nodes"].as_array().map_or(&[][..], Vec::as_slice);
        let spoken = &status["protocol"];
        if spoken.is_u64() && nodes.iter().all(|node| node["protocol"] == *spoken) {
            println!("  all nodes are of {}, protocol {spoken}", release.display());
            return Ok(());
        }
        thread::sleep(QUIET);
    }
    Err(Error::new(format!("the herd is not said to be of the release of {}", release.display())))
}
