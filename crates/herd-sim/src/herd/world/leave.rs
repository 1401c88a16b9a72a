//! Nodes that are about to end, as at SIGTERM: they ask a warden for leave and serve until the map says that others
//! lead, as `herd_node` has it; then the process ends, and another one starts in its place.
//!
//! And witnesses: that a process has ended is told to the wardens that hear its machine, or nobody says so.

use super::reign::Reign;
use super::*;
use herd_core::limits::{LEAVE_LAST_MS, LEAVE_MS, LEAVE_UNHEARD_MS};
use herd_core::place::Life;
use herd_core::warden::{Answer, Ask, Refusal};

/// How soon somebody asks again who came too early, ms.
const AGAIN_MS: u64 = 50;
/// When a witness tells of an end, ms after it.
const TOLD_MS: [u64; 3] = [1, 300, 1_500];
const MS: u64 = 1_000_000;

pub(super) const LEFT: &str = "nodes that left, and others led what they led";
pub(super) const LEFT_PENDING: &str = "nodes that ask for leave with writes pending there";
const LEFT_LEADING: &str = "nodes that left while they led something";
const STAYED: &str = "nodes that asked for leave and stay, as what they hold nobody else has";

/// A node that is about to end.
pub(super) struct Leaving {
    life: Life,
    since_ns: u64,
    /// When it asks, or asks again.
    asks_ns: Option<u64>,
    /// Whether it led something.
    led: bool,
    /// The epoch of the map that it waits for.
    epoch: Option<u32>,
    ends_ns: Option<u64>,
    /// How long it is away, ms.
    away_ms: u64,
}

impl<S: Service> World<S> {
    /// A node is about to end.
    pub(super) fn leave(&mut self, at: usize, away_ms: u64) {
        let (now_ns, life, led) = (self.now_ns(), Life { node: node(at), incarnation: self.lives[at] }, self.leads(at));
        if self.machines[at].is_none() || self.paused[at].0 > now_ns || !self.is_held() {
            return;
        }
        self.count_pendings(at, LEFT_PENDING);
        let Some(reign) = &mut self.reign else { return };
        let (asks_ns, epoch, ends_ns) = (Some(now_ns), None, None);
        reign.leaving.entry(at).or_insert(Leaving { life, since_ns: now_ns, asks_ns, led, epoch, ends_ns, away_ms });
    }

    /// Whether a node leads something by the map that it has.
    fn leads(&self, at: usize) -> bool {
        let map = self.machines[at].as_ref().and_then(|machine| machine.map.as_ref());
        map.is_some_and(|map| map.groups_of(node(at)).any(|(_, group)| group.primary == Some(node(at))))
    }

    /// Those that are about to end go on with it.
    pub(super) fn go_on_leaving(&mut self) {
        let Some(mut reign) = self.reign.take_if(|reign| !reign.leaving.is_empty()) else { return };
        let leaving = std::mem::take(&mut reign.leaving);
        let mut ending = Vec::new();
        for (at, mut it) in leaving {
            if self.quiet || self.machines[at].as_ref().is_none_or(|machine| machine.me != it.life) {
                continue;
            }
            match self.paused[at].0 <= self.now_ns() && self.is_done(&mut reign, at, &mut it) {
                true => ending.push((at, it)),
                false => _ = reign.leaving.insert(at, it),
            }
        }
        self.reign = Some(reign);
        ending.into_iter().for_each(|(at, it)| self.end_leave(at, &it));
    }

    /// A node asks, or waits; whether it ends now.
    fn is_done(&mut self, reign: &mut Reign, at: usize, it: &mut Leaving) -> bool {
        let now_ns = self.now_ns();
        if it.asks_ns.take_if(|asks_ns| *asks_ns <= now_ns).is_some() && !reign.offices.is_empty() {
            let number = reign.random.below(reign.offices.len() as u64) as usize;
            let office = &mut reign.offices[number];
            match self.hears(at, office.at) {
                true => {
                    let ticket = office.ask(Ask::Leave(it.life));
                    office.leaves.insert(ticket, it.life);
                }
                false => it.asks_ns = Some(now_ns + AGAIN_MS * MS),
            }
        }
        let epoch = self.machines[at].as_ref().and_then(|machine| machine.map.as_ref()).map_or(0, |map| map.epoch);
        if it.epoch.is_some_and(|awaited| awaited <= epoch) {
            it.ends_ns.get_or_insert(now_ns + LEAVE_LAST_MS * MS);
        }
        let patience_ms = if self.leads(at) { LEAVE_UNHEARD_MS } else { LEAVE_MS };
        it.ends_ns.map_or(now_ns > it.since_ns + patience_ms * MS, |ends_ns| ends_ns <= now_ns)
    }

    /// A warden answers who asked for leave, if that hears it.
    pub(super) fn told_of_leave(
        &mut self,
        reign: &mut Reign,
        from: usize,
        life: Life,
        answer: &Result<Answer, Refusal>,
    ) {
        let (at, now_ns) = (life.node.0.get() as usize - 1, self.now_ns());
        let hears = self.hears(at, from);
        let Some(it) = reign.leaving.get_mut(&at).filter(|it| hears && it.life == life) else { return };
        match answer {
            Ok(Answer::Leaves { epoch }) => it.epoch = Some(*epoch),
            Err(Refusal::Busy) => it.asks_ns = Some(now_ns + AGAIN_MS * MS),
            _ => it.ends_ns = Some(now_ns),
        }
    }

    fn end_leave(&mut self, at: usize, it: &Leaving) {
        let leads = self.leads(at);
        self.crash(at, self.now_ns() + it.away_ms * MS);
        match (self.machines[at].is_some(), leads) {
            (true, _) => self.count(STAYED),
            (_, true) => self.count(LEFT_LEADING),
            _ if it.led => self.count(LEFT),
            _ => {}
        }
    }

    /// A process has ended, and its witness will say so, or there is none.
    pub(super) fn witness(&mut self, at: usize) {
        let (now_ns, life) = (self.now_ns(), Life { node: node(at), incarnation: self.lives[at] });
        if let Some(reign) = &mut self.reign
            && reign.random.chance(50)
        {
            reign.obituaries.extend(TOLD_MS.map(|ms| (now_ns + ms * MS, life)));
        }
    }

    /// Witnesses tell the wardens that they reach.
    pub(super) fn tell_of_ends(&mut self, reign: &mut Reign) {
        let now_ns = self.now_ns();
        let due: Vec<(u64, Life)> = reign.obituaries.extract_if(.., |(due_ns, _)| *due_ns <= now_ns).collect();
        for (_, life) in due {
            let at = life.node.0.get() as usize - 1;
            for office in &mut reign.offices {
                if self.hears(at, office.at) {
                    office.ask(Ask::Obituary(life));
                }
            }
        }
    }
}
