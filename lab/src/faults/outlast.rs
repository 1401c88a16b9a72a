//! A node that is stopped for longer than a lease, with gets in its sockets while their objects are written elsewhere.
//!
//! For each of a few registers of groups that the victim is in: it is written, then the victim is stopped, and when
//! each of its threads stands still a get is sent to it. The register is written again, through another node; when that
//! is acknowledged, a second get is sent to the victim. Then the victim goes on.
//!
//! The second get was asked after the write was answered: to answer with the older value is a stale read. The first
//! one was asked before, but nothing of it was looked at before the victim went on, long after: to answer with the
//! older value is to answer under a lease that had run out, and counts as stale too.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::faults::field::{self, Field};
use crate::faults::register::{End, Register};
use crate::faults::seen;
use crate::faults::strike::members;
use crate::histories::door::{Door, Kind};
use crate::histories::record::{Outcome, Status};
use crate::map::Map;
use crate::nodes::Herd;
use crate::sys;

/// How long a lease lasts.
const LEASE: Duration = Duration::from_secs(2);
/// What is asked of a stopped node, or held up by it, is answered within this.
const PATIENCE: Duration = Duration::from_secs(12);
/// Registers of groups that the victim leads, and of others that it is in.
const LED: usize = 2;
const KEPT: usize = 1;

/// What is done, and to whom.
pub(crate) struct Stopped<'a> {
    pub(crate) herd: &'a Herd,
    pub(crate) field: &'a Field,
    pub(crate) map: &'a Map,
    pub(crate) victim: usize,
    pub(crate) witness: usize,
    pub(crate) time: Duration,
}

/// What was seen.
pub(crate) struct Seen {
    pub(crate) struck_ns: u64,
    /// A register was written elsewhere with a get of it in the victim's socket, and the pause outlasted a lease.
    pub(crate) was_written: bool,
}

/// A register, and the connections by which it is asked for.
struct Gate {
    register: usize,
    writer: Door,
    first: Door,
    second: Door,
}

impl Stopped<'_> {
    /// Stops the victim at the moment that `aim` gives, for its time, and judges what it says then.
    pub(crate) fn run(&self, registers: &[usize], aim: impl FnOnce() -> u64) -> Result<Seen> {
        let gates = self.herd.on_clients(|| self.gates(registers))?;
        let pid = self.herd.pid(self.victim);
        let goes_on_ns = AtomicU64::new(u64::MAX);
        let struck_ns = aim();
        let begun = Instant::now();
        let stopped = seen::stop(pid);
        let asked = thread::scope(|scope| {
            let asking = scope.spawn(|| self.herd.on_clients(|| Ok(self.ask_all(gates, &goes_on_ns))));
            thread::sleep(self.time.saturating_sub(begun.elapsed()));
            // From now on what is acknowledged may be so because it goes on.
            goes_on_ns.store(sys::monotonic_ns(), Ordering::SeqCst);
            sys::signal(pid, libc::SIGCONT)?;
            asking.join().map_err(|_| Error::new("the thread that asks a stopped node panicked"))?
        });
        stopped?;
        Ok(Seen { struck_ns, was_written: asked? && self.time > LEASE })
    }

    /// Registers that the victim leads or keeps, written once, with connections from before it is stopped.
    fn gates(&self, registers: &[usize]) -> Result<Vec<Gate>> {
        let victim = self.herd.place(self.victim);
        let place = |register: &usize| {
            let members = members(self.map, &self.field.name(*register));
            members.iter().position(|member| *member == victim)
        };
        let led = registers.iter().filter(|register| place(register) == Some(0)).take(LED);
        let kept = registers.iter().filter(|register| place(register).is_some_and(|place| place > 0)).take(KEPT);
        let mut gates = Vec::new();
        for (number, &register) in led.chain(kept).enumerate() {
            let kind = if number.is_multiple_of(2) { Kind::Wire } else { Kind::Memcached };
            let mut writer = Door::open_within(Kind::Wire, self.herd.place(self.witness), PATIENCE)?;
            if self.field.write(register, &mut writer, None) == End::Acknowledged {
                let first = Door::open_within(kind, victim, PATIENCE)?;
                let second = Door::open_within(Kind::Wire, victim, PATIENCE)?;
                gates.push(Gate { register, writer, first, second });
            }
        }
        Ok(gates)
    }

    /// Whether any register was written elsewhere, with a get of it in the socket, before the victim went on.
    fn ask_all(&self, gates: Vec<Gate>, goes_on_ns: &AtomicU64) -> bool {
        thread::scope(|scope| {
            let asking: Vec<_> =
                gates.into_iter().map(|gate| scope.spawn(move || self.ask(gate, goes_on_ns))).collect();
            // All are waited for.
            let asked: Vec<bool> = asking.into_iter().map(|asked| asked.join().unwrap_or(false)).collect();
            asked.contains(&true)
        })
    }

    fn ask(&self, gate: Gate, goes_on_ns: &AtomicU64) -> bool {
        let Gate { register, mut writer, mut first, mut second } = gate;
        let name = self.field.name(register);
        thread::scope(|scope| {
            let told = scope.spawn(|| {
                let (outcome, _) = first.ask(&field::get(name.clone())).ok()?;
                told(&Register::new(name.clone()), &outcome)
            });
            let end = self.field.write(register, &mut writer, None);
            let written_ns = sys::monotonic_ns();
            let is_elsewhere = end == End::Acknowledged && written_ns < goes_on_ns.load(Ordering::SeqCst);
            let must = self.field.board().floor(register);
            if is_elsewhere {
                self.field.read(register, self.herd.place(self.victim), &mut second, false);
            }
            if let Ok(Some(told)) = told.join()
                && is_elsewhere
                && told < must
            {
                let what = format!("{name}: a get that lay in a stopped node's socket told {told}, not {must}");
                self.field.board().found(what, false);
            }
            is_elsewhere
        })
    }
}

/// The number that a get told; 0: nothing is there.
fn told(register: &Register, outcome: &Outcome) -> Option<u64> {
    match outcome {
        Outcome::Answered(answer) if answer.status == Status::NotFound => Some(0),
        Outcome::Answered(answer) => register.number(&answer.value),
        Outcome::Refused(_) | Outcome::Removed | Outcome::Unknown => None,
    }
}
