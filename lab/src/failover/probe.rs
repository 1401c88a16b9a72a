//! Who writes while nodes fall: for each group two clients, one of Herd's own and one of memcached's protocol at a node
//! that is left alone, each with an object of that group, written again and again with rising numbers.
//!
//! **Writes are back** in a group, for a client, when a write that it began after the blow had fallen is
//! acknowledged; time counts from before the blow. What was under way then does not count, since its reply may have
//! been on the way. So what such a write is held up for
//! counts in full. In the end each object is read, and must have what was acknowledged last.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::ask::Asker;
use crate::caller::Caller;
use crate::error::{Error, Result};
use crate::faults::register::{End, Register};
use crate::map::{Group, Map};
use crate::sys;
use crate::wire::DEFAULT_COLLECTION;

/// The deadline of a request.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);
/// Between two writes of a client.
const REST: Duration = Duration::from_millis(10);
/// Names that are tried until enough lie in the group that is wanted.
const TRIED: u64 = 200_000;
/// Objects that a client has: one more for each write of unknown outcome.
const NAMES: usize = 200;
/// The collection of what is a cache.
pub(super) const CACHE: &str = "caches";
/// The last read of an object is tried so long.
const LAST: Duration = Duration::from_secs(20);
/// Failures that are described.
const DESCRIBED: usize = 3;

/// A request of a probe.
#[derive(Clone, Debug)]
pub(super) struct Told {
    pub(super) begun_ns: u64,
    pub(super) ended_ns: u64,
    /// Why it failed, if it did.
    pub(super) why: Option<String>,
}

/// What is known of a probe.
struct Known {
    /// The last one is written; those before it had a write of unknown outcome, and are read in the end.
    registers: Vec<Register>,
    /// Names for more of them.
    names: Vec<String>,
    told: Vec<Told>,
}

impl Known {
    /// The object that is written now, another one after an unknown outcome: its name, and the number of the write.
    fn begin(&mut self) -> Option<(String, u64, String)> {
        if self.registers.last().is_none_or(Register::is_closed) {
            self.registers.push(Register::new(self.names.pop()?));
        }
        let register = self.registers.last_mut()?;
        let number = register.begin()?;
        Some((register.name.clone(), number, register.value(number)))
    }

    fn end(&mut self, number: u64, end: End, told: Told) {
        if let Some(register) = self.registers.last_mut() {
            register.end(number, end);
        }
        self.told.push(told);
    }
}

/// One client of one group.
pub(super) struct Probe {
    pub(super) group: Group,
    /// It is written by Herd's own client.
    pub(super) is_own: bool,
    /// What it writes may be gone at any time.
    is_cache: bool,
    known: Mutex<Known>,
}

impl Probe {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// When the first write that was begun after that moment was acknowledged.
    pub(super) fn back_ns(&self, after_ns: u64) -> Option<u64> {
        let known = self.known();
        let back = known.told.iter().filter(|told| told.begun_ns > after_ns && told.why.is_none());
        back.map(|told| told.ended_ns).min()
    }

    /// The longest time without an acknowledged write, from one moment until the first one that was begun after
    /// another moment is acknowledged.
    pub(super) fn pause_ns(&self, from_ns: u64, until_ns: u64) -> Option<u64> {
        let (mut longest, mut last_ns) = (0, from_ns);
        for told in self.told_since(from_ns).iter().filter(|told| told.why.is_none()) {
            longest = longest.max(told.ended_ns - last_ns);
            last_ns = told.ended_ns;
            if told.begun_ns > until_ns {
                return Some(longest);
            }
        }
        None
    }

    /// All requests that ended after that moment.
    pub(super) fn told_since(&self, after_ns: u64) -> Vec<Told> {
        self.known().told.iter().filter(|told| told.ended_ns > after_ns).cloned().collect()
    }

    fn write_on(&self, caller: &mut Caller, over: &AtomicBool) {
        while !over.load(Ordering::Relaxed) {
            let Some((name, number, value)) = self.known().begin() else { return };
            let begun_ns = sys::monotonic_ns();
            let put = caller.put(&name, &value);
            let ended_ns = sys::monotonic_ns();
            let end = put.as_ref().map_or_else(|failed| failed.end, |()| End::Acknowledged);
            let why = put.err().map(|failed| failed.why);
            self.known().end(number, end, Told { begun_ns, ended_ns, why });
            thread::sleep(REST);
        }
    }

    /// Reads what there is in the end; an error if it is not what was acknowledged, or cannot be read.
    fn look(&self, caller: &mut Caller) -> Result<()> {
        let begun = Instant::now();
        for register in &mut self.known().registers {
            let value = loop {
                match caller.get(&register.name) {
                    Ok(value) => break value,
                    Err(failed) if begun.elapsed() > LAST => {
                        return Err(Error::new(format!("{} cannot be read in the end: {}", register.name, failed.why)));
                    }
                    Err(_) => thread::sleep(Duration::from_millis(50)),
                }
            };
            let told = value.map_or(Some(0), |value| register.number(&value));
            let told = told.ok_or_else(|| Error::new(format!("{} has a value that nobody wrote", register.name)))?;
            let must = register.floor();
            register.read(must, told).map_err(|wrong| Error::new(format!("{}: {wrong:?}", register.name)))?;
        }
        Ok(())
    }
}

/// All that write.
pub(super) struct Probes {
    pub(super) all: Vec<Probe>,
    own: Caller,
    plain: Caller,
    over: AtomicBool,
}

/// The herd's first object: then its groups are dealt. Called where the clients are.
pub(super) fn put_first(node: SocketAddr) -> Result<()> {
    Caller::own(&[node], PATIENCE)?.put("first", "object").map_err(|failed| Error::new(failed.why))
}

/// Makes the collection of caches. Called where the clients are.
pub(super) fn make_caches(node: SocketAddr) -> Result<()> {
    Asker::open(node)?.create(CACHE, r#"{"class":"cache"}"#).map(drop)
}

impl Probes {
    /// Of these groups of `default`, and of the collection of caches if that is `caches`: `nodes` are all, `plain` the
    /// one that memcached's clients ask.
    pub(super) fn new(
        map: &Map,
        groups: &[Group],
        caches: (u64, &[Group]),
        nodes: &[SocketAddr],
        plain: SocketAddr,
    ) -> Result<Self> {
        let mut all = Vec::new();
        for &group in groups {
            for is_own in [true, false] {
                all.push(probe(map, DEFAULT_COLLECTION, group, is_own)?);
            }
        }
        for &group in caches.1 {
            all.push(probe(map, caches.0, group, true)?);
        }
        let (own, plain) = (Caller::own(nodes, PATIENCE)?, Caller::memcached(plain, PATIENCE));
        Ok(Self { all, own, plain, over: AtomicBool::new(false) })
    }

    fn caller(&self, probe: &Probe) -> Caller {
        if probe.is_own { self.own.renewed() } else { self.plain.renewed() }
    }

    /// Writes until it is over. Called where the clients are.
    pub(super) fn run(&self) {
        thread::scope(|scope| {
            for probe in &self.all {
                let mut caller = self.caller(probe);
                scope.spawn(move || probe.write_on(&mut caller, &self.over));
            }
        });
    }

    pub(super) fn end(&self) {
        self.over.store(true, Ordering::Relaxed);
    }

    /// Waits until each probe had a write acknowledged that was begun after that moment; whether all had.
    pub(super) fn await_back(&self, after_ns: u64, patience: Duration) -> bool {
        let begun = Instant::now();
        while begun.elapsed() < patience {
            if self.all.iter().all(|probe| probe.back_ns(after_ns).is_some()) {
                return true;
            }
            thread::sleep(Duration::from_millis(5));
        }
        false
    }

    /// Reads all that is no cache: how much is missing or old. Called where the clients are.
    pub(super) fn look(&self) -> u64 {
        let lost = self.all.iter().filter(|probe| !probe.is_cache).filter(|probe| {
            let looked = probe.look(&mut self.own.renewed());
            looked.inspect_err(|error| println!("  WRONG {error}")).is_err()
        });
        lost.count() as u64
    }

    /// Requests of some probes that ended after that moment, and how many of them failed; the first of these are said.
    pub(super) fn count(&self, after_ns: u64, counts: impl Fn(&Probe) -> bool) -> (usize, u64) {
        let (mut count, mut failed) = (0, Vec::new());
        for probe in self.all.iter().filter(|probe| counts(probe)) {
            for told in probe.told_since(after_ns) {
                count += 1;
                let (group, who) = (probe.group, probe.kind());
                failed.extend(told.why.map(|why| format!("{}/{} {who}: {why}", group.0, group.1)));
            }
        }
        failed.iter().take(DESCRIBED).for_each(|why| println!("  failed: {why}"));
        (count, failed.len() as u64)
    }
}

impl Probe {
    /// Who writes.
    pub(super) fn kind(&self) -> &'static str {
        if self.is_own { "Herd's client" } else { "memcached client" }
    }
}

fn probe(map: &Map, collection: u64, group: Group, is_own: bool) -> Result<Probe> {
    let is_cache = collection != DEFAULT_COLLECTION;
    // Each set of probes has objects of its own.
    let serial = sys::monotonic_ns();
    let object = |number: u64| format!("probe-{serial}-{}-{number}", u8::from(is_own));
    let lies_there = |name: &String| map.group_by_name(collection, name.as_bytes()) == Some(group);
    let names: Vec<String> = (0..TRIED).map(object).filter(lies_there).take(NAMES).collect();
    if names.len() < NAMES {
        return Err(Error::new(format!("too few names lie in group {}/{}", group.0, group.1)));
    }
    let names = if is_cache { names.iter().map(|name| format!("{CACHE}/{name}")).collect() } else { names };
    let known = Mutex::new(Known { registers: Vec::new(), names, told: Vec::new() });
    Ok(Probe { group, is_own, is_cache, known })
}
