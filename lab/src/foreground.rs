//! Clients that ask for objects at a steady rate while something befalls who serves them: every reply is checked
//! against what was written, and how each request ended is kept.
//!
//! Open loop: each crew's requests are due at times drawn beforehand (Poisson), its threads take them in turn, and
//! latency counts from the due time. An object has one writer at a time, and a write of unknown outcome is its last
//! (`faults::register`), so that each read can be judged. A crew that knows nodes by their addresses asks any of them
//! but the one that is said to be away.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::caller::{Caller, Failed};
use crate::error::{Error, Result};
use crate::faults::register::{End, Register};
use crate::hist::Latencies;
use crate::sys;
use crate::values::{Random, printable};

/// Of so many requests one is a put.
const PUT_EACH: u64 = 5;
/// Threads that store the objects at first.
const FILLING: usize = 8;
/// How far values start into the pool, so that each number's is another.
const OFFSETS: usize = 4_093;
/// Failures that are described.
const DESCRIBED: usize = 12;
/// A thread looks at least so often whether it is over.
const LOOK: Duration = Duration::from_millis(50);

/// How a request ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended {
    pub(crate) due_ns: u64,
    pub(crate) ended_ns: u64,
    pub(crate) is_well: bool,
    is_put: bool,
    /// Of the client that asked: the number of its crew.
    crew: usize,
}

/// Clients of one kind.
pub(crate) struct Crew {
    /// One, or one of each node that is asked.
    pub(crate) callers: Vec<Caller>,
    pub(crate) threads: usize,
    /// Of all requests.
    pub(crate) share: f64,
}

struct Object {
    register: Register,
    is_being_written: bool,
}

/// What is known.
#[derive(Default)]
struct Board {
    ended: Vec<Ended>,
    failed: u64,
    wrong: u64,
    why: Vec<String>,
}

/// Which node is left alone, and which are being asked.
#[derive(Default)]
struct Gate {
    away: Option<SocketAddr>,
    /// All that ever were away, in order: connections to them from before are no more.
    left: Vec<SocketAddr>,
    busy: Vec<SocketAddr>,
}

/// Objects, and what was seen of them.
pub(crate) struct Foreground {
    objects: Vec<Mutex<Object>>,
    object_bytes: usize,
    pool: String,
    board: Mutex<Board>,
    gate: Mutex<Gate>,
    over: AtomicBool,
    /// Requests each second, times 1,000.
    rate_milli: AtomicU64,
}

fn lock<T>(it: &Mutex<T>) -> MutexGuard<'_, T> {
    it.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Foreground {
    /// Objects of that size, none of them stored yet.
    pub(crate) fn new(objects: usize, object_bytes: usize, rate_per_s: f64) -> Self {
        let object = |index: usize| Register::new(format!("foreground-{index}"));
        let object = |index| Mutex::new(Object { register: object(index), is_being_written: false });
        let pool = String::from_utf8(printable(OFFSETS + object_bytes)).unwrap_or_default();
        let foreground = Self {
            objects: (0..objects).map(object).collect(),
            object_bytes,
            pool,
            board: Mutex::default(),
            gate: Mutex::default(),
            over: AtomicBool::new(false),
            rate_milli: AtomicU64::new(0),
        };
        foreground.set_rate(rate_per_s);
        foreground
    }

    /// Requests each second, of all crews.
    pub(crate) fn rate(&self) -> f64 {
        self.rate_milli.load(Ordering::Relaxed) as f64 / 1e3
    }

    pub(crate) fn set_rate(&self, rate_per_s: f64) {
        self.rate_milli.store((rate_per_s * 1e3).max(1.0) as u64, Ordering::Relaxed);
    }

    /// The value of that number: it, the name, and letters that depend on both.
    fn value(&self, name: &str, number: u64) -> String {
        let head = format!("{number} {name};");
        let from = (number as usize * 31 + name.len() * 7) % OFFSETS;
        let rest = self.object_bytes.saturating_sub(head.len());
        head + &self.pool[from..from + rest]
    }

    /// The number of a value that was read; none if nobody wrote it.
    fn number(&self, name: &str, value: &str) -> Option<u64> {
        let number = value.split_once(' ')?.0.parse().ok()?;
        (value == self.value(name, number)).then_some(number)
    }

    /// Stores every object once. Called where the clients are.
    pub(crate) fn fill(&self, caller: &Caller) -> Result<()> {
        let results = thread::scope(|scope| {
            let filling = (0..FILLING).map(|lane| {
                let mut caller = caller.renewed();
                scope.spawn(move || self.fill_lane(lane, &mut caller))
            });
            filling.collect::<Vec<_>>().into_iter().map(|lane| lane.join()).collect::<Vec<_>>()
        });
        for result in results {
            result.map_err(|_| Error::new("a thread that stores objects panicked"))??;
        }
        Ok(())
    }

    fn fill_lane(&self, lane: usize, caller: &mut Caller) -> Result<()> {
        for object in self.objects.iter().skip(lane).step_by(FILLING) {
            let mut object = lock(object);
            let Some(number) = object.register.begin() else { continue };
            let name = object.register.name.clone();
            let put = caller.put(&name, &self.value(&name, number));
            put.map_err(|failed| Error::new(format!("store {name}: {}", failed.why)))?;
            object.register.end(number, End::Acknowledged);
        }
        Ok(())
    }

    /// All crews, until it is over. Called where the clients are.
    pub(crate) fn run(&self, crews: &[Crew], seed: u64) {
        self.over.store(false, Ordering::Relaxed);
        thread::scope(|scope| {
            for (number, crew) in crews.iter().enumerate() {
                let schedule = Mutex::new((sys::monotonic_ns() as f64, Random::new(seed + number as u64)));
                let schedule = std::sync::Arc::new(schedule);
                for thread in 0..crew.threads {
                    let schedule = schedule.clone();
                    let random = Random::new(seed * 1_000 + (number * 100 + thread) as u64);
                    let callers = crew.callers.iter().map(Caller::renewed).collect();
                    scope.spawn(move || self.ask_on(callers, (number, crew.share), &schedule, random));
                }
            }
        });
    }

    pub(crate) fn end(&self) {
        self.over.store(true, Ordering::Relaxed);
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    fn ask_on(
        &self,
        mut callers: Vec<Caller>,
        (crew, share): (usize, f64),
        schedule: &Mutex<(f64, Random)>,
        mut random: Random,
    ) {
        let mut heard = 0;
        loop {
            let due_ns = {
                let mut schedule = lock(schedule);
                let due_ns = schedule.0;
                schedule.0 += schedule.1.gap_ns((self.rate() * share).max(1e-3));
                due_ns as u64
            };
            while let Some(left_ns) = due_ns.checked_sub(sys::monotonic_ns()).filter(|left_ns| *left_ns > 0) {
                if self.is_over() {
                    return;
                }
                thread::sleep(Duration::from_nanos(left_ns).min(LOOK));
            }
            if self.is_over() {
                return;
            }
            let caller = self.enter(&mut callers, &mut heard, &mut random);
            let is_put = random.below(PUT_EACH) == 0;
            let asked = if is_put {
                self.put(&mut callers[caller], &mut random)
            } else {
                self.get(&mut callers[caller], &mut random)
            };
            self.leave(&callers[caller]);
            let mut board = lock(&self.board);
            let ended_ns = sys::monotonic_ns();
            board.ended.push(Ended { due_ns, ended_ns, is_well: asked.is_ok(), is_put, crew });
            if let Err((why, is_wrong)) = asked {
                *if is_wrong { &mut board.wrong } else { &mut board.failed } += 1;
                if board.why.len() < DESCRIBED {
                    println!("  {} {why}", if is_wrong { "WRONG" } else { "FAILED" });
                    board.why.push(why);
                }
            }
        }
    }

    /// Which of the callers is asked: any whose node is not away. A connection to a node that was away since this
    /// thread last `heard` of such is given up.
    fn enter(&self, callers: &mut [Caller], heard: &mut usize, random: &mut Random) -> usize {
        let mut gate = lock(&self.gate);
        for left in &gate.left[*heard..] {
            callers.iter_mut().filter(|caller| caller.node() == Some(*left)).for_each(Caller::hang_up);
        }
        *heard = gate.left.len();
        let there: Vec<usize> =
            (0..callers.len()).filter(|caller| gate.away.is_none() || callers[*caller].node() != gate.away).collect();
        let caller = there.get(random.below(there.len().max(1) as u64) as usize).copied().unwrap_or(0);
        gate.busy.extend(callers[caller].node());
        caller
    }

    fn leave(&self, caller: &Caller) {
        let mut gate = lock(&self.gate);
        let place = caller.node().and_then(|node| gate.busy.iter().position(|busy| *busy == node));
        place.map(|place| gate.busy.swap_remove(place));
    }

    /// From now on nobody asks that node who knows nodes by their addresses; returns when nobody does any more.
    pub(crate) fn leave_alone(&self, node: Option<SocketAddr>, patience: Duration) -> Result<()> {
        let mut gate = lock(&self.gate);
        gate.away = node;
        gate.left.extend(node);
        drop(gate);
        let begun = Instant::now();
        while node.is_some_and(|node| lock(&self.gate).busy.contains(&node)) {
            if begun.elapsed() > patience {
                return Err(Error::new("a node is asked for longer than any request may take"));
            }
            thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// One get: why it failed, and whether the reply was wrong.
    fn get(&self, caller: &mut Caller, random: &mut Random) -> Result<(), (String, bool)> {
        let object = &self.objects[random.below(self.objects.len() as u64) as usize];
        let (name, must) = {
            let object = lock(object);
            (object.register.name.clone(), object.register.floor())
        };
        let value = caller.get(&name).map_err(|failed| (format!("get {name}: {}", failed.why), false))?;
        let told = value.map_or(Some(0), |value| self.number(&name, &value));
        let told = told.ok_or_else(|| (format!("{name} has a value that nobody wrote"), true))?;
        let judged = lock(object).register.read(must, told);
        judged.map_err(|wrong| (format!("{name}: {wrong:?}"), true))
    }

    fn put(&self, caller: &mut Caller, random: &mut Random) -> Result<(), (String, bool)> {
        let (object, name, number) = loop {
            let object = &self.objects[random.below(self.objects.len() as u64) as usize];
            let mut it = lock(object);
            if it.is_being_written {
                continue;
            }
            if let Some(number) = it.register.begin() {
                it.is_being_written = true;
                break (object, it.register.name.clone(), number);
            }
        };
        let put = caller.put(&name, &self.value(&name, number));
        let mut it = lock(object);
        it.is_being_written = false;
        it.register.end(number, put.as_ref().map_or_else(|failed| failed.end, |()| End::Acknowledged));
        put.map_err(|Failed { why, .. }| (format!("put {name}: {why}"), false))
    }

    /// How many requests there were so far, how many failed, and how many had a wrong reply.
    pub(crate) fn counts(&self) -> (usize, u64, u64) {
        let board = lock(&self.board);
        (board.ended.len(), board.failed, board.wrong)
    }

    /// The 99th percentile of what was due in that time, in milliseconds; none if nothing was.
    pub(crate) fn p99_ms(&self, from_ns: u64, to_ns: u64) -> Option<f64> {
        self.p99_of_ms(from_ns, to_ns, |_| true)
    }

    /// The same of gets, or of puts, of one crew.
    pub(crate) fn p99_kind_ms(&self, from_ns: u64, to_ns: u64, crew: usize, is_put: bool) -> Option<f64> {
        self.p99_of_ms(from_ns, to_ns, |ended| ended.crew == crew && ended.is_put == is_put)
    }

    fn p99_of_ms(&self, from_ns: u64, to_ns: u64, counts: impl Fn(&Ended) -> bool) -> Option<f64> {
        let mut latencies = Latencies::new();
        let board = lock(&self.board);
        let within = board.ended.iter().filter(|ended| (from_ns..to_ns).contains(&ended.due_ns) && counts(ended));
        within.for_each(|ended| latencies.record(ended.ended_ns - ended.due_ns));
        (latencies.count() > 0).then(|| latencies.percentile_us(99.0) / 1e3)
    }

    /// What clients moved in that time, in MB/s: objects of requests that ended well.
    pub(crate) fn mb_s(&self, from_ns: u64, to_ns: u64) -> f64 {
        let board = lock(&self.board);
        let within = |ended: &&Ended| ended.is_well && (from_ns..to_ns).contains(&ended.ended_ns);
        let bytes = board.ended.iter().filter(within).count() * self.object_bytes;
        bytes as f64 * 1e3 / to_ns.saturating_sub(from_ns).max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_of_one_size_and_tell_their_number() {
        let foreground = Foreground::new(2, 65_536, 1.0);
        let value = foreground.value("foreground-1", 77);
        assert_eq!(value.len(), 65_536);
        assert_eq!(foreground.number("foreground-1", &value), Some(77));
        assert_eq!(foreground.number("foreground-0", &value), None, "another object's");
        assert_eq!(foreground.number("foreground-1", &value[..65_535]), None, "cut");
        let mixed = value[..40_000].to_owned() + &foreground.value("foreground-1", 78)[40_000..];
        assert_eq!(foreground.number("foreground-1", &mixed), None, "half of another value");
    }

    #[test]
    fn times_are_taken_of_what_was_due_then() {
        let foreground = Foreground::new(1, 1_000, 1.0);
        let ended = |due_ns, ended_ns| Ended { due_ns, ended_ns, is_well: true, is_put: false, crew: 0 };
        lock(&foreground.board).ended = vec![ended(0, 5_000_000), ended(1_000_000_000, 1_200_000_000)];
        let p99 = foreground.p99_ms(0, 1_000_000_000).expect("one was due");
        assert!((p99 / 5.0 - 1.0).abs() < 0.01, "{p99}");
        assert_eq!(foreground.p99_ms(2_000_000_000, 3_000_000_000), None);
        assert!((foreground.mb_s(0, 1_000_000_000) - 0.001).abs() < 1e-9);
    }

    #[test]
    fn a_node_that_is_away_is_not_asked() {
        let foreground = Foreground::new(1, 1_000, 1.0);
        let nodes: [SocketAddr; 2] = ["10.0.0.1:1", "10.0.0.2:1"].map(|node| node.parse().expect("an address"));
        let mut callers = nodes.map(|node| Caller::memcached(node, LOOK));
        let (mut random, mut heard) = (Random::new(1), 0);
        foreground.leave_alone(Some(nodes[0]), LOOK).expect("nobody asks it");
        assert!((0..50).all(|_| foreground.enter(&mut callers, &mut heard, &mut random) == 1));
        assert!(foreground.leave_alone(Some(nodes[1]), LOOK).is_err(), "it is being asked");
        (0..50).for_each(|_| foreground.leave(&callers[1]));
        foreground.leave_alone(Some(nodes[1]), LOOK).expect("nobody asks it any more");
    }
}
