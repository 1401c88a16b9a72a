//! One fault: begun with a write under way, undone, healed, and counted.
//!
//! **When a fault counts.** When it struck (just before the signal was sent, or the link changed) a write had been sent
//! to some node and had no answer, and by the map, fetched just before, the victim was a member of the object's group.
//! That is either a put of several MiB of which half has been sent (`body`; values of that size travel to the members
//! as they come), or a small write of a register (`field`) that was not acknowledged within 5 ms (`HELD_NS`) after it
//! either: then its answer was not merely on its way. How many held up small writes is counted too (`held`). A node
//! that joins, and an etcd that is killed or stopped, count if any write was so under way.
//!
//! **Pending at the victim** (`KillPending`) is shown, not guessed: another member of the victim's group is stopped
//! first, so that no write of the group can be committed; then the primary's `/metrics` say that writes of this group
//! wait, and the victim's own that such are prepared there. The victim is killed, then the other member goes on. If the
//! victim led the group, another primary is named, and a node has counted that it took over with writes pending, that
//! was a *take-over with pendings*.
//!
//! **While copies move** (`moving`): a node that comes is waited for until the map shows that a copy goes to it, one
//! that drains until one goes from it. Then, as the seed has it, that node is killed or stopped, or another one is, or
//! the drain is called off (`Within`). A node that is empty is ended, and its place is another one's. Faults of that
//! kind count among the others if they held up a small write.
//!
//! **A get in its socket** (`outlast`) is sent when each thread of the victim stands still.
//!
//! After each fault the herd is whole again before the next: so fewer than k members of a group fall within one repair.
//! The node of the warden is never drained (it must go on running), nor is the small one (it must have copies).

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::process::Child;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::error::{Context, Error, Result};
use crate::faults::field::Field;
use crate::faults::register::End;
use crate::faults::schedule::{Kind, Step, Within};
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
/// Writes of a group whose member is stopped are pending within this, on a busy machine too; until a lease is over.
const PENDING: Duration = Duration::from_millis(1_200);
/// Another node leads within this.
const TAKEN_OVER: Duration = Duration::from_secs(10);
/// All copies are there again within this.
const WHOLE: Duration = Duration::from_secs(40);
/// Copies move for a node that comes or drains within this.
const MOVES: Duration = Duration::from_secs(8);
/// A node is empty within this.
const EMPTY: Duration = Duration::from_secs(60);
/// And forgotten, also if it is killed before it has a witness: after a minute of silence.
const FORGOTTEN: Duration = Duration::from_secs(75);
/// How long a node that came back while it drained is left alone: by then it has a witness.
const SETTLED: Duration = Duration::from_secs(1);
/// As many copies are kept.
const COPIES: usize = 3;
/// A node that falls while copies move, or while there is no etcd, does so for this part of its time.
const PART: u32 = 3;
/// Two nodes go by one map within this.
const AGREED: Duration = Duration::from_secs(5);
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
    map: Rc<Map>,
    victim: usize,
    /// A node that is left alone.
    witness: usize,
}

/// A fault that struck.
struct Hit {
    kind: Kind,
    struck_ns: u64,
    /// By it, fetched just before, the node is in the groups of what it may have hit.
    map: Rc<Map>,
    /// `None`: whatever was under way was hit.
    victim: Option<SocketAddr>,
}

impl Hit {
    fn touches(&self, name: &str) -> bool {
        self.victim.is_none_or(|victim| members(&self.map, name).contains(&victim))
    }
}

impl Striker<'_> {
    /// The fault, from aiming until the herd is whole; a line about it.
    pub(super) fn strike(&mut self, step: &Step) -> Result<String> {
        let begun = Instant::now();
        let step = &Step { kind: self.kind_now(step.kind), ..*step };
        let aim = self.aim_at(step)?;
        self.field.renew(self.gates);
        let (talk, herd) = (body::Talk::default(), self.herd);
        let name = self.body_name(step.kind, &aim);
        let (node, at_once) = (herd.place(aim.witness), step.draw.is_multiple_of(2));
        let both = thread::scope(|scope| {
            let body = scope.spawn(|| herd.on_clients(|| body::put(node, &name, at_once, &talk)));
            wait_for(&talk.is_under_way);
            let struck = self.befall(step, &aim).and_then(|hits| {
                herd.wait_whole(aim.witness, WHOLE)?;
                Ok(hits)
            });
            talk.may_end.store(true, Ordering::Relaxed);
            let body = body.join().map_err(|_| Error::new("a body panicked"))?;
            struck.and_then(|hits| Ok((hits, body?)))
        });
        let (hits, body) = both.map_err(|error| error.within(&self.describe(step, &aim)))?;
        let mut missed = String::new();
        for hit in hits {
            let lasts = body.begun_ns < hit.struck_ns && body.ended_ns > hit.struck_ns;
            if !self.count(&hit, lasts && hit.touches(&name)) {
                missed += &format!(", {:?} hit no write", hit.kind);
            }
        }
        let told = self.keep_body(name, body)?;
        Ok(format!("{}{missed}{told}; {:.1} s", self.describe(step, &aim), begun.elapsed().as_secs_f64()))
    }

    /// A node can come only if there is a place, and drain only if enough stay.
    fn kind_now(&self, kind: Kind) -> Kind {
        match kind {
            Kind::Join if self.herd.vacancy().is_none() => Kind::Drain,
            Kind::Drain if self.herd.count() <= COPIES => Kind::Join,
            kind => kind,
        }
    }

    /// Counts a fault; whether it hit a write.
    fn count(&mut self, hit: &Hit, hit_body: bool) -> bool {
        let is_held = is_held(self.field, hit.struck_ns, |name| hit.touches(name));
        if !is_held && !hit_body {
            self.tally.missed += 1;
            return false;
        }
        *self.tally.faults.entry(hit.kind).or_default() += 1;
        self.tally.held += u64::from(is_held);
        self.tally.moving += u64::from(hit.map.has_more_than(COPIES));
        true
    }

    fn describe(&self, step: &Step, aim: &Aim) -> String {
        let within = match step.kind {
            Kind::Join | Kind::Drain => format!(" with {:?}", step.within),
            _ => String::new(),
        };
        format!("{:?}{within} of node {} for {} ms", step.kind, aim.victim + 1, step.time_ms)
    }

    /// Makes a replica refuse writes, while nobody else does: a `set` by memcached's protocol that finds no room takes
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

    /// The victim of a step, and the map by which it is hit: both the first node and the witness go by it.
    fn aim_at(&self, step: &Step) -> Result<Aim> {
        let begun = Instant::now();
        loop {
            let why = match self.choose(step, seen::map(self.herd, 0)?) {
                Ok(aim) if *aim.map == seen::map(self.herd, aim.witness)? => return Ok(aim),
                Ok(aim) => Error::new(format!("nodes 1 and {} go by different maps", aim.witness + 1)),
                Err(error) => error,
            };
            if begun.elapsed() > AGREED {
                return Err(why.within(&format!("for {AGREED:?}")));
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// The victim of a step by this map, and a witness. Only who keeps something can be hit: a node that has just come
    /// does not, until others are gone for so long that their copies are made anew. A node with little memory may keep
    /// so few copies that no write of theirs can be held up: then writes are made pending at another.
    fn choose(&self, step: &Step, map: Map) -> Result<Aim> {
        let (numbers, draw) = (self.herd.numbers(), step.draw as usize);
        let warden = seen::warden(self.herd, 0)?;
        let keeps = |number: &usize| map.groups().any(|group| map.members(group).contains(&self.herd.place(*number)));
        // While the warden's node is stopped no map changes: that is seen now and then.
        let spares_warden = step.kind == Kind::Outlast && !draw.is_multiple_of(8);
        let is_spared = |number: usize| match step.kind {
            Kind::Drain => [0, warden, self.small].contains(&number),
            _ => spares_warden && number == warden,
        };
        let witnesses = |victim: usize| {
            let fits = |witness| step.kind != Kind::KillPending || self.holder(&map, victim, witness).is_some();
            numbers.iter().copied().filter(|&number| number != victim && fits(number)).collect::<Vec<usize>>()
        };
        let is_fit = |number: &usize| keeps(number) && !is_spared(*number) && !witnesses(*number).is_empty();
        let others: Vec<usize> = numbers.iter().copied().filter(is_fit).collect();
        let victim = match (step.kind, self.herd.vacancy()) {
            (Kind::Warden, _) => warden,
            (Kind::Join, Some(vacancy)) => vacancy,
            _ => *others.get(draw % others.len().max(1)).ok_or_else(|| Error::new("no node can be hit"))?,
        };
        let rest = witnesses(victim);
        let witness = rest[draw / 7 % rest.len()];
        Ok(Aim { map: Rc::new(map), victim, witness })
    }

    /// The fault itself, undone at its end, and others in the midst of it; all that struck.
    fn befall(&mut self, step: &Step, aim: &Aim) -> Result<Vec<Hit>> {
        let (herd, time) = (self.herd, Duration::from_millis(step.time_ms));
        let struck_ns = match step.kind {
            Kind::Kill | Kind::Warden => self.fell(aim, || rest(time))?,
            Kind::KillPending => self.kill_pending(aim, time)?,
            Kind::Pause => self.pause(aim, time)?,
            Kind::Outlast => {
                let (map, victim, witness) = (&aim.map, aim.victim, aim.witness);
                let stopped = outlast::Stopped { herd, field: self.field, map, victim, witness, time };
                let seen = stopped.run(self.gates, || self.when_under_way(aim))?;
                if seen.was_written {
                    self.tally.note(Branch::GetInSocket);
                }
                seen.struck_ns
            }
            Kind::Cut | Kind::Slow => self.on_link(step.kind, aim, time)?,
            Kind::Join => return self.join(step, aim),
            Kind::Drain => return self.drain(step, aim),
            Kind::EtcdKill | Kind::EtcdPause => return self.without_etcd(step, aim),
        };
        let (map, victim) = (Rc::clone(&aim.map), Some(herd.place(aim.victim)));
        Ok(vec![Hit { kind: step.kind, struck_ns, map, victim }])
    }

    fn pause(&self, aim: &Aim, time: Duration) -> Result<u64> {
        let struck_ns = self.when_under_way(aim);
        let pid = self.herd.pid(aim.victim);
        sys::signal(pid, libc::SIGSTOP)?;
        thread::sleep(time);
        sys::signal(pid, libc::SIGCONT)?;
        Ok(struck_ns)
    }

    /// Another node comes, and something befalls the herd when copies go to it.
    fn join(&self, step: &Step, aim: &Aim) -> Result<Vec<Hit>> {
        let struck_ns = self.when(|_| true);
        self.herd.start_node(aim.victim)?;
        let mut hits = vec![Hit { kind: Kind::Join, struck_ns, map: Rc::clone(&aim.map), victim: None }];
        if let Some(map) = self.wait_for_moves(aim, |_| true)? {
            hits.extend(self.within(step, aim, map)?);
        }
        Ok(hits)
    }

    /// A node gives away all that it keeps, and something befalls the herd meanwhile; then it ends, and is forgotten.
    fn drain(&self, step: &Step, aim: &Aim) -> Result<Vec<Hit>> {
        let (herd, victim) = (self.herd, Some(self.herd.place(aim.victim)));
        let struck_ns = self.when_under_way(aim);
        let mut drains = herd.drain(aim.victim, aim.witness, false)?;
        let mut hits = vec![Hit { kind: Kind::Drain, struck_ns, map: Rc::clone(&aim.map), victim }];
        // Not before the warden has it: copies may move already for another node.
        let moves = self.wait_for_moves(aim, |map| map.drains(herd.place(aim.victim)))?;
        if step.within == Within::Cancel {
            ends_well(&mut herd.drain(aim.victim, aim.witness, true)?, EMPTY)?;
            // It says so, too.
            return drains.kill().and_then(|()| drains.wait()).map(|_| hits).during(|| "end herd drain".into());
        }
        if let Some(map) = moves {
            hits.extend(self.within(step, aim, map)?);
        }
        ends_well(&mut drains, EMPTY)?;
        if step.within == Within::KillMoving {
            thread::sleep(SETTLED);
        }
        if step.draw.is_multiple_of(2) {
            herd.kill(aim.victim)?;
        }
        herd.let_go(aim.victim, aim.witness, FORGOTTEN)?;
        Ok(hits)
    }

    /// Waits until a map that is meant shows that a copy goes from node to node: that map; none if none does.
    fn wait_for_moves(&self, aim: &Aim, is_meant: impl Fn(&Map) -> bool) -> Result<Option<Map>> {
        let begun = Instant::now();
        while begun.elapsed() < MOVES {
            let map = seen::map(self.herd, aim.witness)?;
            if is_meant(&map) && map.has_more_than(COPIES) {
                return Ok(Some(map));
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(None)
    }

    /// What befalls the herd while copies move, by this map.
    fn within(&self, step: &Step, aim: &Aim, map: Map) -> Result<Option<Hit>> {
        let (herd, time) = (self.herd, Duration::from_millis(step.time_ms) / PART);
        let map = Rc::new(map);
        let others = || herd.numbers().into_iter().filter(|number| ![aim.victim, aim.witness].contains(number));
        let victim = match step.within {
            Within::Nothing | Within::Cancel => return Ok(None),
            Within::KillMoving | Within::PauseMoving => aim.victim,
            Within::KillOther => others().nth(step.draw as usize / 3 % others().count().max(1)).unwrap_or(aim.victim),
        };
        let aim = Aim { map: Rc::clone(&map), victim, witness: aim.witness };
        let (kind, struck_ns) = match step.within {
            Within::PauseMoving => (Kind::Pause, self.pause(&aim, time)?),
            _ => (Kind::Kill, self.fell(&aim, || rest(time))?),
        };
        Ok(Some(Hit { kind, struck_ns, map, victim: Some(herd.place(victim)) }))
    }

    /// Kills a node, and starts it again behind that.
    fn fell(&self, aim: &Aim, meanwhile: impl FnOnce() -> Result<()>) -> Result<u64> {
        let struck_ns = self.when_under_way(aim);
        self.herd.kill(aim.victim)?;
        meanwhile()?;
        self.herd.start_node(aim.victim)?;
        Ok(struck_ns)
    }

    /// The etcd is killed or stopped; every second time a node is killed meanwhile, and started when it is back.
    fn without_etcd(&self, step: &Step, aim: &Aim) -> Result<Vec<Hit>> {
        let (herd, time) = (self.herd, Duration::from_millis(step.time_ms));
        let kills = step.kind == Kind::EtcdKill;
        let struck_ns = self.when(|_| true);
        herd.with_etcd(|etcd, _| if kills { etcd.kill() } else { Ok(sys::signal(etcd.pid(), libc::SIGSTOP)?) })?;
        let mut hits = vec![Hit { kind: step.kind, struck_ns, map: Rc::clone(&aim.map), victim: None }];
        let back = || {
            thread::sleep(time);
            let back = herd.with_etcd(|etcd, hosts| match kills {
                true => etcd.start_again(hosts),
                false => Ok(sys::signal(etcd.pid(), libc::SIGCONT)?),
            });
            back.map(drop)
        };
        if (step.draw / 2).is_multiple_of(2) {
            back()?;
        } else {
            let (map, victim) = (Rc::clone(&aim.map), Some(herd.place(aim.victim)));
            hits.push(Hit { kind: Kind::Kill, struck_ns: self.fell(aim, back)?, map, victim });
        }
        Ok(hits)
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
        let held = self.holder(&aim.map, aim.victim, aim.witness);
        let (holder, groups) = held.ok_or_else(|| Error::new("no other node holds up a write there"))?;
        let mut led = groups.clone();
        led.retain(|group| aim.map.members(*group).first() == Some(&victim));
        let wanted = if led.is_empty() { groups } else { led.clone() };
        let registers = self.registers_of(&aim.map, &wanted);
        let (field, witness) = (self.field, herd.place(aim.witness));
        let before = seen::take_overs(herd, aim.victim)?;
        let (struck_ns, pending) = thread::scope(|scope| {
            let pid = herd.pid(holder);
            seen::stop(pid)?;
            scope.spawn(|| herd.on_clients(|| field.write_at_once(&registers, witness)));
            let pending = self.pending(aim, &wanted);
            let struck_ns = sys::monotonic_ns();
            let killed = pending.and_then(|pending| herd.kill(aim.victim).map(|()| (struck_ns, pending)));
            sys::signal(pid, libc::SIGCONT)?;
            let killed = killed?;
            // The writes may wait for the very node that was killed.
            thread::sleep(time);
            herd.start_node(aim.victim)?;
            Ok::<_, Error>(killed)
        })?;
        if !pending.is_empty() {
            self.tally.note(Branch::PendingAtVictim);
        }
        led.retain(|group| pending.contains(group));
        if !led.is_empty() && self.is_taken_over(aim, &led, before)? {
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
    fn holder(&self, map: &Map, victim: usize, witness: usize) -> Option<(usize, Vec<Group>)> {
        // The writes are asked of the witness.
        let others = self.herd.numbers().into_iter().filter(|&number| ![victim, witness].contains(&number));
        let victim = self.herd.place(victim);
        let of = |number| {
            let holder = self.herd.place(number);
            let held = |group: &Group| {
                let members = map.members(*group);
                members.len() > 2 && members.contains(&victim) && members[1..].contains(&holder)
            };
            (number, map.groups().filter(held).collect::<Vec<_>>())
        };
        let led = |groups: &[Group]| groups.iter().filter(|group| map.members(**group)[0] == victim).count();
        others.map(of).filter(|(_, groups)| !groups.is_empty()).max_by_key(|(_, groups)| led(groups))
    }

    /// Those of the groups in which writes wait for members, and are prepared at the victim.
    fn pending(&self, aim: &Aim, groups: &[Group]) -> Result<Vec<Group>> {
        let begun = Instant::now();
        let leads = |number: usize, group: &Group| aim.map.members(*group).first() == Some(&self.herd.place(number));
        let leaders: Vec<usize> =
            self.herd.numbers().into_iter().filter(|&number| groups.iter().any(|group| leads(number, group))).collect();
        loop {
            let mut found = Vec::new();
            for leader in &leaders {
                found.extend(seen::pending(&seen::metrics(self.herd, *leader)?));
            }
            found.retain(|group| groups.contains(group));
            if !found.is_empty() {
                let prepared = seen::prepared(&seen::metrics(self.herd, aim.victim)?);
                found.retain(|group| prepared.contains(group));
            }
            if !found.is_empty() || begun.elapsed() > PENDING {
                return Ok(found);
            }
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// Whether another node comes to lead one of the groups that the victim led, and one has counted more than so many
    /// take-overs with writes pending.
    fn is_taken_over(&self, aim: &Aim, led: &[Group], before: u64) -> Result<bool> {
        let (begun, victim) = (Instant::now(), self.herd.place(aim.victim));
        while begun.elapsed() < TAKEN_OVER {
            let map = seen::map(self.herd, aim.witness)?;
            if led.iter().any(|group| map.members(*group).first().is_some_and(|leader| *leader != victim))
                && seen::take_overs(self.herd, aim.victim)? > before
            {
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
        let spares_small = small != victim && self.herd.count() > COPIES;
        let hits_any = matches!(kind, Kind::Join | Kind::EtcdKill | Kind::EtcdPause);
        let is_fit = |name: &String| {
            let members = members(&aim.map, name);
            let is_hit = hits_any || members.contains(&victim);
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

/// For so long a node is dead.
fn rest(time: Duration) -> Result<()> {
    thread::sleep(time);
    Ok(())
}

/// Waits for a command, which must end well.
pub(crate) fn ends_well(command: &mut Child, patience: Duration) -> Result<()> {
    let begun = Instant::now();
    loop {
        match command.try_wait()? {
            Some(status) if status.success() => return Ok(()),
            Some(status) => return Err(Error::new(format!("herd drain: {status}: see its log"))),
            None if begun.elapsed() > patience => {
                command.kill()?;
                command.wait()?;
                return Err(Error::new(format!("herd drain has not ended after {patience:?}")));
            }
            None => thread::sleep(Duration::from_millis(10)),
        }
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
pub(crate) fn members(map: &Map, name: &str) -> Vec<SocketAddr> {
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
