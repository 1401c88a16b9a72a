//! Line paused: a node is stopped beyond its lease with requests in its sockets. It must neither answer a get with what
//! has been replaced elsewhere (`faults::outlast`), nor acknowledge a put that others then do not have.

use std::thread;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::failover::table::Row;
use crate::failover::{LEASE, Run, WHOLE};
use crate::faults::field::Field;
use crate::faults::outlast::Stopped;
use crate::faults::seen;
use crate::faults::strike::members;
use crate::histories::door::{Door, Kind};
use crate::map::Map;
use crate::nodes::Herd;
use crate::sys;

const LINE: &str = "paused";
/// Beyond a lease.
const BEYOND: Duration = Duration::from_millis(2_000);
/// Registers, so many that a node leads some and has copies of others.
const REGISTERS: usize = 64;
/// Puts that lie in the stopped node's sockets.
const PUTS: usize = 4;
/// A node that leads so many groups leads its share again, or nearly.
const LED: usize = 4;
/// What lies there is answered within this after the node goes on.
const PATIENCE: Duration = Duration::from_secs(14);
/// A put is in the socket so long after it was sent.
const SENT: Duration = Duration::from_millis(150);

impl Run<'_> {
    /// Stops one node after the other, and makes the rows.
    pub(super) fn paused(&mut self) -> Result<()> {
        let rounds = self.options.long_rounds();
        let herd = self.herd()?;
        let field = Field::new(format!("paused-{}-", sys::monotonic_ns()));
        let (mut gets, mut puts) = (0, 0);
        for round in 0..rounds as usize {
            let victim = 1 + round % (herd.count() - 1);
            let witness = if victim == 1 { 2 } else { 1 };
            gets += usize::from(gets_in_socket(herd, &field, victim, witness)?);
            herd.wait_whole(0, WHOLE)?;
            puts += puts_in_socket(herd, &field, victim, witness)?;
            herd.wait_whole(0, WHOLE)?;
            let (stale, lost) = wrong(&field);
            println!("  paused node {}: {stale} old values and {lost} missing puts so far", victim + 1);
        }
        let (stale, lost) = wrong(&field);
        let what = "pauses beyond the lease with a get in the socket, its object written elsewhere: old values told";
        let rows = vec![
            Row::wrongs(LINE, what, gets, stale),
            Row::wrongs(LINE, "puts in the socket: acknowledged, and others do not have them", puts, lost),
        ];
        self.rows.extend(rows);
        Ok(())
    }
}

/// Old values that were told, and acknowledged puts that are missing.
fn wrong(field: &Field) -> (u64, u64) {
    let board = field.board();
    (board.stale, board.lost)
}

/// Whether a get lay in the socket while its object was written elsewhere; what it told is judged on the board.
fn gets_in_socket(herd: &Herd, field: &Field, victim: usize, witness: usize) -> Result<bool> {
    let map = await_lead(herd, victim, witness)?;
    let registers: Vec<usize> = (0..REGISTERS).map(|_| field.own()).collect();
    let stopped = Stopped { herd, field, map: &map, victim, witness, time: LEASE + BEYOND };
    Ok(stopped.run(&registers, sys::monotonic_ns)?.was_written)
}

/// Waits until a node that was disturbed leads its share again: the map.
pub(super) fn await_lead(herd: &Herd, victim: usize, witness: usize) -> Result<Map> {
    let (at, begun) = (herd.place(victim), Instant::now());
    loop {
        let map = seen::map(herd, witness)?;
        if map.groups().filter(|group| group.0 == 0 && map.members(*group).first() == Some(&at)).count() >= LED {
            return Ok(map);
        }
        if begun.elapsed() > WHOLE {
            return Err(Error::new(format!("node {} does not lead its share again after {WHOLE:?}", victim + 1)));
        }
        thread::sleep(SENT);
    }
}

/// Puts that lie in the socket of a node that leads their groups, until others have gone on without it; then each is
/// read elsewhere: what was acknowledged must be there. How many there were.
fn puts_in_socket(herd: &Herd, field: &Field, victim: usize, witness: usize) -> Result<usize> {
    let at = herd.place(victim);
    let map = await_lead(herd, victim, witness)?;
    let leads = |register: &usize| members(&map, &field.name(*register)).first() == Some(&at);
    let registers: Vec<usize> = (0..REGISTERS).map(|_| field.own()).filter(leads).take(PUTS).collect();
    let doors = herd.on_clients(|| {
        let open = |_: &usize| Door::open_within(Kind::Wire, at, PATIENCE);
        registers.iter().map(open).collect::<Result<Vec<_>>>()
    })?;
    let pid = herd.pid(victim);
    seen::stop(pid)?;
    let asked = thread::scope(|scope| {
        let asking: Vec<_> = registers
            .iter()
            .zip(doors)
            .map(|(register, mut door)| scope.spawn(move || field.write(*register, &mut door, None)))
            .collect();
        thread::sleep(SENT + LEASE + BEYOND);
        let goes_on = sys::signal(pid, libc::SIGCONT);
        let ended = asking.into_iter().map(|asking| asking.join()).collect::<Vec<_>>();
        goes_on?;
        if ended.iter().any(|ended| ended.is_err()) {
            return Err(Error::new("a thread that asks a stopped node panicked"));
        }
        Ok(ended.len())
    })?;
    herd.on_clients(|| {
        for register in &registers {
            let node = herd.place(witness);
            let mut door = Door::open_within(Kind::Wire, node, PATIENCE)?;
            field.read(*register, node, &mut door, true);
        }
        Ok(())
    })?;
    Ok(asked)
}
