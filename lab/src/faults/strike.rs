//! One fault: begun with a write under way, undone, healed, and counted.
//!
//! **When a fault counts.** When it struck (just before the signal was sent, or the link changed) a write had been sent
//! to some node and had no answer, and by the map, fetched just before, the victim was a member of the object's group.
//! That is either a put of several MiB of which half has been sent (`body`; values of that size travel to the members
//! as they come), or a small write of a register (`field`) that was not acknowledged within 5 ms (`HELD_NS`) after it
//! either: then its answer was not merely on its way. How many held up small writes is counted too (`held`). A node
//! that joins counts if any write was so under way.
//!
//! **Pending at the victim** (`KillPending`) is shown, not guessed: another member of the victim's group is stopped
//! first, so that no write of the group can be committed; the primary's `/metrics` then say that writes of this group
//! are pending, and 20 ms later, all links being well, the victim has them: it led the group, or prepared them. The
//! victim is killed, then the other member goes on. If the victim led the group, the third member has them pending, and
//! when the map names another primary, that one has *taken over with pendings*.
//!
//! **A get in its socket** (`outlast`) is sent when each thread of the victim stands still.
//!
//! After each fault the herd is whole again before the next: so fewer than k members of a group fall within one repair.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::faults::field::Field;
use crate::faults::register::End;
use crate::faults::schedule::{Kind, Step};
use crate::faults::tally::{Branch, Tally};
use crate::faults::{body, fill, outlast, seen};
use crate::histories::nemesis::SLOW;
use crate::map::{Group, Map};
use crate::nodes::{Herd, RATE};
use crate::sys;
use crate::wire::DEFAULT_COLLECTION;

/// A write that is not acknowledged so long after the fault was held up by it.
const HELD_NS: u64 = 5_000_000;
/// A write that was sent just so long ago has no answer yet.
const FRESH_NS: u64 = 150_000;
/// A write under way at the victim is waited for so long.
const AIM: Duration = Duration::from_millis(800);
/// Writes of a group whose member is stopped are pending within this.
const PENDING: Duration = Duration::from_millis(600);
/// Prepares reach a member that lives within this.
const PREPARED: Duration = Duration::from_millis(20);
/// Another node leads within this.
const TAKEN_OVER: Duration = Duration::from_secs(10);
/// All copies are there again within this.
const WHOLE: Duration = Duration::from_secs(40);
/// Writes that are made pending on purpose, beside those of the other clients.
const DIRECTED: usize = 3;
/// Names that are tried until one lies where it is wanted.
const NAMES: u64 = 10_000;
/// Long values that are kept.
const BODIES: usize = 6;

/// Who disturbs a herd.
pub(super) struct Striker<'a> {
    pub(super) herd: &'a Herd,
    pub(super) field: &'a Field,
    pub(super) tally: &'a mut Tally,
    /// What names begin with.
    pub(super) prefix: &'a str,
    /// The node with the least memory.
    pub(super) small: usize,
    /// Registers written while a node is stopped.
    pub(super) gates: &'a mut Vec<usize>,
    /// Long values that were acknowledged, newest last.
    pub(super) bodies: &'a mut VecDeque<String>,
    pub(super) serial: &'a mut u64,
}

/// Where a fault strikes.
struct Aim {
    map: Map,
    victim: usize,
    /// A node that is left alone.
    witness: usize,
}

impl Striker<'_> {
    /// The fault, from aiming until the herd is whole; a line about it.
    pub(super) fn strike(&mut self, step: &Step) -> Result<String> {
        let begun = Instant::now();
        let aim = self.aim_at(step)?;
        self.field.renew(self.gates);
        let (talk, herd, field) = (body::Talk::default(), self.herd, self.field);
        let name = self.body_name(step.kind, &aim);
        let (node, at_once) = (herd.place(aim.witness), step.draw.is_multiple_of(2));
        let both = thread::scope(|scope| {
            let body = scope.spawn(|| herd.on_clients(|| body::put(node, &name, at_once, &talk)));
            wait_for(&talk.is_under_way);
            let struck = self.befall(step, &aim).and_then(|struck_ns| {
                herd.wait_whole(aim.witness, WHOLE)?;
                Ok(struck_ns)
            });
            talk.may_end.store(true, Ordering::Relaxed);
            let body = body.join().map_err(|_| Error::new("a body panicked"))?;
            struck.and_then(|struck_ns| Ok((struck_ns, body?)))
        });
        let (struck_ns, body) = both.map_err(|error| error.within(&self.describe(step, &aim)))?;
        let struck_ns = struck_ns.unwrap_or(0);
        let victim = herd.place(aim.victim);
        let touches = |at: &str| step.kind == Kind::Join || members(&aim.map, at).contains(&victim);
        let is_held = is_held(field, struck_ns, touches);
        let is_hit = is_held || touches(&name) && body.begun_ns < struck_ns && body.ended_ns > struck_ns;
        self.count(step.kind, is_hit, is_held);
        let told = self.keep_body(name, body)?;
        let word = if is_hit { "" } else { ", hit no write" };
        Ok(format!("{}{word}{told}; {:.1} s", self.describe(step, &aim), begun.elapsed().as_secs_f64()))
    }

    fn count(&mut self, kind: Kind, is_hit: bool, is_held: bool) {
        if is_hit {
            *self.tally.faults.entry(kind).or_default() += 1;
        } else {
            self.tally.missed += 1;
        }
        self.tally.held += u64::from(is_held);
    }

    fn describe(&self, step: &Step, aim: &Aim) -> String {
        format!("{:?} of node {} for {} ms", step.kind, aim.victim + 1, step.time_ms)
    }

    /// Makes a replica refuse writes, while nobody else writes: a `set` by memcached's protocol that finds no room takes
    /// away what was there, which no register and no history knows of.
    pub(super) fn fill(&mut self) -> Result<()> {
        let map = seen::map(self.herd, 0)?;
        *self.serial += 1;
        let prefix = format!("{}{}-", self.prefix, self.serial);
        if fill::refuse(self.herd, &map, self.small, &prefix)? {
            self.tally.note(Branch::RefusedPrepare);
        }
        self.herd.wait_whole(0, WHOLE)
    }

    /// The victim of a step, and the map by which it is hit. Only who keeps something can be hit: a node that has just
    /// come does not, until others are gone for so long that their copies are made anew.
    fn aim_at(&self, step: &Step) -> Result<Aim> {
        let (count, draw) = (self.herd.count(), step.draw as usize);
        let (warden, map) = (seen::warden(self.herd, 0)?, seen::map(self.herd, 0)?);
        let keeps = |number: &usize| map.groups().any(|group| map.members(group).contains(&self.herd.place(*number)));
        let keepers: Vec<usize> = (0..count).filter(keeps).collect();
        // While the warden's node is stopped no map changes: that is seen now and then.
        let spares_warden = step.kind == Kind::Outlast && !draw.is_multiple_of(8);
        let others: Vec<usize> = keepers.into_iter().filter(|&number| !(spares_warden && number == warden)).collect();
        let victim = match step.kind {
            Kind::Warden => warden,
            Kind::Join => count,
            _ => *others.get(draw % others.len().max(1)).ok_or_else(|| Error::new("no node keeps anything"))?,
        };
        let witness = (victim + 1 + draw / 7 % (count - 1)) % count;
        Ok(Aim { map: seen::map(self.herd, witness)?, victim, witness })
    }

    /// The fault itself, undone at its end; when it struck, none if it could not.
    fn befall(&mut self, step: &Step, aim: &Aim) -> Result<Option<u64>> {
        let (herd, time) = (self.herd, Duration::from_millis(step.time_ms));
        match step.kind {
            Kind::Kill | Kind::Warden => {
                let struck_ns = self.when_under_way(aim);
                herd.kill(aim.victim)?;
                thread::sleep(time);
                herd.start_node(aim.victim)?;
                Ok(Some(struck_ns))
            }
            Kind::KillPending => self.kill_pending(aim, time).map(Some),
            Kind::Pause => {
                let struck_ns = self.when_under_way(aim);
                let pid = herd.pid(aim.victim);
                sys::signal(pid, libc::SIGSTOP)?;
                thread::sleep(time);
                sys::signal(pid, libc::SIGCONT)?;
                Ok(Some(struck_ns))
            }
            Kind::Outlast => {
                let (map, victim, witness) = (&aim.map, aim.victim, aim.witness);
                let stopped = outlast::Stopped { herd, field: self.field, map, victim, witness, time };
                let seen = stopped.run(self.gates, || self.when_under_way(aim))?;
                if seen.was_written {
                    self.tally.note(Branch::GetInSocket);
                }
                Ok(Some(seen.struck_ns))
            }
            Kind::Cut | Kind::Slow => self.on_link(step.kind, aim, time).map(Some),
            Kind::Join => {
                if !herd.has_room() {
                    return Ok(None);
                }
                let struck_ns = self.when(|_| true);
                herd.start_node(aim.victim)?;
                Ok(Some(struck_ns))
            }
        }
    }

    fn on_link(&self, kind: Kind, aim: &Aim, time: Duration) -> Result<u64> {
        let hosts = self.herd.hosts.as_ref().ok_or_else(|| Error::new("there is no network of our own"))?;
        let host = hosts.nodes[aim.victim];
        let struck_ns = self.when_under_way(aim);
        if kind == Kind::Cut {
            hosts.net.plug(host, false)?;
            thread::sleep(time);
            hosts.net.plug(host, true)?;
        } else {
            hosts.net.limit(host, SLOW)?;
            thread::sleep(time);
            hosts.net.limit(host, RATE)?;
        }
        Ok(struck_ns)
    }

    /// Kills a node at which writes are pending.
    fn kill_pending(&mut self, aim: &Aim, time: Duration) -> Result<u64> {
        let (herd, victim) = (self.herd, self.herd.place(aim.victim));
        let Some((holder, groups)) = self.holder(aim) else {
            return Err(Error::new("the victim is in no group of three"));
        };
        let mut led = groups.clone();
        led.retain(|group| aim.map.members(*group).first() == Some(&victim));
        let wanted = if led.is_empty() { groups } else { led.clone() };
        let registers = self.registers_of(&aim.map, &wanted);
        let (field, witness) = (self.field, herd.place(aim.witness));
        let (struck_ns, pending) = thread::scope(|scope| {
            let pid = herd.pid(holder);
            seen::stop(pid)?;
            scope.spawn(|| herd.on_clients(|| field.write_at_once(&registers, witness)));
            let pending = self.pending(&aim.map, &wanted);
            let struck_ns = sys::monotonic_ns();
            let killed = pending.and_then(|pending| herd.kill(aim.victim).map(|()| (struck_ns, pending)));
            sys::signal(pid, libc::SIGCONT)?;
            killed
        })?;
        if !pending.is_empty() {
            self.tally.note(Branch::PendingAtVictim);
        }
        thread::sleep(time);
        herd.start_node(aim.victim)?;
        led.retain(|group| pending.contains(group));
        if !led.is_empty() && self.is_taken_over(aim, &led)? {
            self.tally.note(Branch::TakeOverWithPendings);
        }
        Ok(struck_ns)
    }

    /// A few registers of these groups.
    fn registers_of(&self, map: &Map, groups: &[Group]) -> Vec<usize> {
        let is_in = |register: &&usize| {
            let name = self.field.name(**register);
            map.group_by_name(DEFAULT_COLLECTION, name.as_bytes()).is_some_and(|group| groups.contains(&group))
        };
        self.gates.iter().filter(is_in).take(DIRECTED).copied().collect()
    }

    /// A node to hold writes up that is a backup of most groups that the victim leads, and these groups and those the
    /// victim is a backup of beside it.
    fn holder(&self, aim: &Aim) -> Option<(usize, Vec<Group>)> {
        let victim = self.herd.place(aim.victim);
        let others = self.herd.numbers().into_iter().filter(|&number| number != aim.victim);
        let of = |number| {
            let holder = self.herd.place(number);
            let held = |group: &Group| {
                let members = aim.map.members(*group);
                members.len() > 2 && members.contains(&victim) && members[1..].contains(&holder)
            };
            (number, aim.map.groups().filter(held).collect::<Vec<_>>())
        };
        let led = |groups: &[Group]| groups.iter().filter(|group| aim.map.members(**group)[0] == victim).count();
        others.map(of).filter(|(_, groups)| !groups.is_empty()).max_by_key(|(_, groups)| led(groups))
    }

    /// Those of the groups in which writes have been pending long enough to be at all members that live.
    fn pending(&self, map: &Map, groups: &[Group]) -> Result<Vec<Group>> {
        let begun = Instant::now();
        let mut leaders: Vec<usize> = Vec::new();
        for number in self.herd.numbers() {
            let leads = |group: &Group| map.members(*group).first() == Some(&self.herd.place(number));
            if groups.iter().any(leads) {
                leaders.push(number);
            }
        }
        loop {
            let mut found = Vec::new();
            for leader in &leaders {
                found.extend(seen::pending(&seen::metrics(self.herd, *leader)?));
            }
            found.retain(|group| groups.contains(group));
            if !found.is_empty() || begun.elapsed() > PENDING {
                thread::sleep(PREPARED);
                return Ok(found);
            }
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// Whether another node comes to lead one of the groups that the victim led.
    fn is_taken_over(&self, aim: &Aim, led: &[Group]) -> Result<bool> {
        let (begun, victim) = (Instant::now(), self.herd.place(aim.victim));
        while begun.elapsed() < TAKEN_OVER {
            let map = seen::map(self.herd, aim.witness)?;
            if led.iter().any(|group| map.members(*group).first().is_some_and(|leader| *leader != victim)) {
                return Ok(true);
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(false)
    }

    /// A moment just after a small write was sent whose group has the victim, or the last of the time for that.
    fn when_under_way(&self, aim: &Aim) -> u64 {
        let victim = self.herd.place(aim.victim);
        self.when(|name| members(&aim.map, name).contains(&victim))
    }

    fn when(&self, touches: impl Fn(&str) -> bool) -> u64 {
        let until = Instant::now() + AIM;
        loop {
            let now_ns = sys::monotonic_ns();
            let is_fresh = |sent_ns: u64| sent_ns + FRESH_NS > now_ns;
            let board = self.field.board();
            let mut flying = board.flights.iter().flatten();
            if flying.any(|flight| is_fresh(flight.sent_ns) && touches(&flight.name)) || Instant::now() > until {
                return now_ns;
            }
            drop(board);
            thread::sleep(Duration::from_micros(20));
        }
    }

    /// A name for a long value, of a group with the victim, and without the small node if it can be.
    fn body_name(&mut self, kind: Kind, aim: &Aim) -> String {
        let (small, victim) = (self.herd.place(self.small), self.herd.place(aim.victim));
        let spares_small = small != victim && self.herd.count() > 3;
        let is_fit = |name: &String| {
            let members = members(&aim.map, name);
            let is_hit = kind == Kind::Join || members.contains(&victim);
            is_hit && !(spares_small && members.contains(&small))
        };
        *self.serial += 1;
        let mut names = (0..NAMES).map(|number| format!("{}body-{}-{number}", self.prefix, self.serial));
        names.find(is_fit).unwrap_or_else(|| format!("{}body-{}", self.prefix, self.serial))
    }

    /// What became of a long value; the oldest goes.
    fn keep_body(&mut self, name: String, ended: body::Ended) -> Result<String> {
        if ended.under_change {
            self.tally.note(Branch::EpochUnderBody);
        }
        if ended.end == End::Acknowledged {
            self.bodies.push_back(name);
        }
        if self.bodies.len() > BODIES
            && let Some(oldest) = self.bodies.pop_front()
        {
            self.herd.on_clients(|| body::remove(self.herd.place(0), &oldest))?;
        }
        Ok(format!(", body {:?}", ended.end))
    }
}

/// Waits a while for something to become true.
fn wait_for(flag: &AtomicBool) {
    let begun = Instant::now();
    while !flag.load(Ordering::Relaxed) && begun.elapsed() < AIM {
        thread::sleep(Duration::from_millis(1));
    }
}

/// The members of an object's group.
pub(super) fn members(map: &Map, name: &str) -> Vec<SocketAddr> {
    map.group_by_name(DEFAULT_COLLECTION, name.as_bytes()).map(|group| map.members(group)).unwrap_or_default()
}

/// Whether a small write that the fault touches was held up by it.
fn is_held(field: &Field, struck_ns: u64, touches: impl Fn(&str) -> bool) -> bool {
    let board = field.board();
    let flying = board.flights.iter().flatten().filter(|flight| flight.sent_ns < struck_ns);
    let is_late =
        |end: End, ended_ns: u64| ended_ns > struck_ns && (end != End::Acknowledged || ended_ns > struck_ns + HELD_NS);
    let landed = board.landed.iter().filter(|it| it.flight.sent_ns < struck_ns && is_late(it.end, it.ended_ns));
    flying.chain(landed.map(|it| &it.flight)).any(|flight| touches(&flight.name))
}
