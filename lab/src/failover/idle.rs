//! Line idle: a herd with nothing to do writes nothing to the control store: neither the map's epoch nor the store's
//! file changes, not even its time of change.

use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use crate::error::{Context, Error, Result};
use crate::failover::table::Row;
use crate::failover::{Run, WHOLE};
use crate::faults::seen;
use crate::nodes::Herd;

const LINE: &str = "idle";
/// The store's file in the directory of the warden's node.
const STORE: &str = "control";
const LOOK: Duration = Duration::from_millis(500);
/// What is still to be done for a herd that was just disturbed is done within this.
const SETTLED: Duration = Duration::from_secs(60);
/// It is settled when nothing was written for so long.
const STILL: Duration = Duration::from_secs(5);

/// What a write would change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seen {
    epoch: u64,
    changed: SystemTime,
    bytes: u64,
}

impl Run<'_> {
    /// Watches the herd, and makes the row.
    pub(super) fn idle(&mut self) -> Result<()> {
        let time = Duration::from_secs_f64(60.0 * self.options.idle_minutes.max(0.0));
        let herd = self.herd()?;
        herd.wait_whole(0, WHOLE)?;
        let warden = seen::warden(herd, 1)?;
        let path = herd.data(warden).join(STORE);
        let mut last = settle(herd, warden, &path)?;
        let (begun, mut looks, mut changes) = (Instant::now(), 0, 0);
        while begun.elapsed() < time || looks == 0 {
            thread::sleep(LOOK);
            let now = look(herd, warden, &path)?;
            looks += 1;
            if now != last {
                println!("  written: {last:?}, then {now:?}");
                changes += 1;
                last = now;
            }
        }
        let minutes = time.as_secs_f64() / 60.0;
        let what = format!("looks at the control store of an idle herd in {minutes:.1} minutes that found it written");
        self.rows.push(Row::wrongs(LINE, what, looks, changes));
        Ok(())
    }
}

/// Waits until nothing has been written for a while.
fn settle(herd: &Herd, warden: usize, path: &PathBuf) -> Result<Seen> {
    let begun = Instant::now();
    let (mut last, mut since) = (look(herd, warden, path)?, Instant::now());
    while since.elapsed() < STILL {
        thread::sleep(LOOK);
        let now = look(herd, warden, path)?;
        if now != last {
            (last, since) = (now, Instant::now());
        }
        if begun.elapsed() > SETTLED {
            return Err(Error::new(format!("the control store is still written to after {SETTLED:?}")));
        }
    }
    Ok(last)
}

fn look(herd: &Herd, warden: usize, path: &PathBuf) -> Result<Seen> {
    let file = fs::metadata(path).during(|| format!("look at {}", path.display()))?;
    let epoch = seen::epoch(&seen::metrics(herd, warden)?);
    let epoch = epoch.ok_or_else(|| Error::new("the warden's node tells no epoch"))?;
    Ok(Seen { epoch, changed: file.modified()?, bytes: file.len() })
}
