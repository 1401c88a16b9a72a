//! What goes wrong, and when.

use super::super::check::{Answer, Ask, Op};
use super::super::machine::node;
use super::super::plan::{Fault, Reigning};
use super::super::warden;
use super::*;
use herd_core::place::Standing;

/// Operations that are kept back for when groups change.
const LAST_OPS: usize = 60;
/// They are kept back for so long at most: a warden stands still for 21 s at most, and has to come back then.
const WAIT_NS: u64 = 40_000_000_000;

/// A fault that waits for its moment.
pub(super) enum Trap {
    /// Something is on its way from the node that made the link to the other, which gets it so much later, ms.
    Late(usize, usize, u64),
    /// A node, in that life of it, refuses more writes than these; for how long others are not told then, ms.
    Refuse(usize, u64, u64, u64),
    /// The time has come, ns, to have others lead what a node leads.
    Depose(usize, u64),
    /// A write that the node decided, in that life of it, is at one member and not at another.
    Return(usize, u64),
    /// The time has come, ns, to have the second lead what the first leads.
    LeadAgain(usize, usize, u64),
    /// The time has come, ns, for the store to go on somewhere else.
    Move(u64),
    /// The time has come, ns, for a node that drains to stay.
    Stay(usize, u64),
    /// The time has come, ns, to change groups if none were changed while clients asked.
    Change(u64),
}

impl<S: Service> World<S> {
    /// Faults whose time has come.
    pub(super) fn go_wrong(&mut self) {
        while self.plan.faults.first().is_some_and(|(after, _)| *after <= self.history.asked) {
            let (_, fault) = self.plan.faults.remove(0);
            self.count(FAULTS);
            self.fail(fault);
        }
    }

    pub(super) fn fail(&mut self, fault: Fault) {
        let now_ns = self.now_ns();
        let until = |ms: u64| now_ns + ms * 1_000_000;
        match fault {
            Fault::Reign(fault) => self.fail_reign(fault),
            Fault::Break(a, b) => {
                self.count("links broken");
                self.break_links(a, b);
            }
            Fault::Cut(a, b, ms) => {
                self.count("cuts");
                self.path(a, b).cut_ns = until(ms);
                self.break_links(a, b);
            }
            Fault::Silence(a, b, ms) => {
                self.count("silences");
                self.path(a, b).silent_ns = until(ms);
            }
            Fault::Slow(a, b, ms) => {
                self.count("slow links");
                self.path(a, b).slow_ns = until(ms);
            }
            Fault::Stand(at, ms) => {
                let at = self.no_warden(at);
                self.fail(Fault::PauseInside(at, ms));
            }
            Fault::Unheard(at, ms) => {
                let (at, warden) = (self.no_warden(at), self.warden());
                self.count(UNHEARD);
                self.path(at, warden).silent_ns = until(ms);
                self.deaf[at] = until(ms);
            }
            Fault::Pause(at, ms) | Fault::PauseInside(at, ms) => {
                let (end_ns, paused_ns) = self.paused[at];
                if end_ns > now_ns || self.machines[at].is_none() {
                    return;
                }
                self.count(if matches!(fault, Fault::Pause(..)) { "pauses" } else { INSIDE });
                if let (Some(machine), Fault::PauseInside(..)) = (&mut self.machines[at], fault)
                    && !machine.began
                {
                    machine.begin();
                }
                self.paused[at] = (until(ms), paused_ns + ms * 1_000_000);
            }
            Fault::Crash(at, ms) => self.crash(at, until(ms)),
            Fault::Epoch(at) => {
                self.count("epochs");
                self.next_map(|draft| draft.nodes[at].memory_bytes += 1);
            }
            Fault::Depose(at) => self.depose(at),
            Fault::Drain(at, ms) => {
                self.later(Task::Drain(at, false));
                self.tasks.push((until(ms), Task::Drain(at, true)));
            }
            Fault::Change => self.traps.push(Trap::Change(0)),
            Fault::Expel(at) => self.expel(at),
            Fault::Return(at) => self.traps.push(Trap::Return(at, self.lives[at])),
            Fault::Late(a, b, ms) => self.traps.push(Trap::Late(a.max(b), a.min(b), ms)),
            Fault::Refuse(at, ms) => {
                let Some(machine) = &self.machines[at] else { return };
                machine.inside.leave_memory(Some(0));
                self.traps.push(Trap::Refuse(at, self.lives[at], machine.inside.happened().0, ms));
            }
        }
    }

    /// The machine that grants leases.
    fn warden(&self) -> usize {
        self.in_office().unwrap_or(WARDEN)
    }

    /// This machine, or the next one if it grants leases.
    fn no_warden(&self, at: usize) -> usize {
        if at == self.warden() { (at + 1) % self.plan.nodes } else { at }
    }

    /// Faults whose moment has come.
    pub(super) fn spring(&mut self) {
        for trap in std::mem::take(&mut self.traps) {
            match trap {
                Trap::Late(from, to, ms) => self.be_late(from, to, ms),
                Trap::Refuse(at, life, before, ms) => self.refuse(at, life, before, ms),
                Trap::Depose(at, due_ns) if due_ns <= self.now_ns() => self.depose(at),
                Trap::Return(at, life) if self.lives[at] == life => self.lead_for_a_moment(at),
                Trap::Return(..) => {}
                Trap::LeadAgain(at, next, due_ns) if due_ns <= self.now_ns() => self.depose_for(at, next),
                Trap::Move(due_ns) if due_ns <= self.now_ns() => self.move_store(),
                Trap::Stay(at, due_ns) if due_ns <= self.now_ns() => self.drain(at, true),
                Trap::Change(due_ns) if due_ns <= self.now_ns() => self.change_something(),
                Trap::Change(..) | Trap::Depose(..) | Trap::LeadAgain(..) | Trap::Move(..) | Trap::Stay(..) => {
                    self.traps.push(trap)
                }
            }
        }
    }

    /// Whether clients leave time for that, but not for ever: little is left to be asked, and no group was changed.
    pub(super) fn waits_for_change(&mut self) -> bool {
        let is_late = self.history.asked + LAST_OPS > self.plan.ops;
        if !is_late || !self.traps.iter().any(|trap| matches!(trap, Trap::Change(_))) {
            return false;
        }
        let now_ns = self.now_ns();
        now_ns < *self.waits_until_ns.get_or_insert(now_ns + WAIT_NS)
    }

    /// Groups are changed, if none were so far while clients asked: no run goes without.
    fn change_something(&mut self) {
        if self.counts.contains_key(RECONFIGURED) {
            return;
        }
        let at = self.plan.random.below(self.plan.nodes as u64) as usize;
        match (self.reign.is_some(), self.plan.copies) {
            (true, _) => self.fail_reign(Reigning::Drain(at, 500)),
            (_, 1) => self.drain_alone(at, true),
            _ => self.depose(at),
        }
        self.traps.push(Trap::Change(self.now_ns() + 100_000_000));
    }

    pub(super) fn be_late(&mut self, from: usize, to: usize, ms: u64) {
        let late_ns = self.now_ns() + ms * 1_000_000;
        let is_it = |it: &&mut Laid| (it.ends[0].0, it.ends[1].0) == (to, from) && it.late_ns == 0;
        let Some(it) = self.cables.iter_mut().find(|it| is_it(it) && it.cable.sent(1) > 0) else {
            return self.traps.push(Trap::Late(from, to, ms));
        };
        it.cable.lose(1);
        it.late_ns = late_ns;
        self.count(LATE);
    }

    /// When a node has refused a write, others lead what the write's primary led, before that can tell its members.
    pub(super) fn refuse(&mut self, at: usize, life: u64, before: u64, ms: u64) {
        let Some(machine) = self.machines[at].as_ref().filter(|_| self.lives[at] == life) else { return };
        if machine.inside.happened().0 <= before {
            return self.traps.push(Trap::Refuse(at, life, before, ms));
        }
        machine.inside.leave_memory(None);
        let Some(primary) = (0..self.machines.len()).find(|other| self.waits_for(*other, at)) else { return };
        self.count(REFUSING);
        let until_ns = self.now_ns() + ms * 1_000_000;
        for other in (0..self.machines.len()).filter(|other| *other != at) {
            self.path(primary, other).silent_ns = until_ns;
        }
        let due_ns = self.now_ns() + self.plan.random.size(200) * 1_000_000;
        self.traps.push(Trap::Depose(primary, due_ns));
    }

    /// Whether a write that the machine decided waits for the other.
    pub(super) fn waits_for(&self, at: usize, other: usize) -> bool {
        let (Some(machine), spread) = (&self.machines[at], &self.map.spreads[0]) else { return false };
        let waits = |name: &[u8]| {
            let group = spread.group_of(machine.inside.slot(name));
            group.primary == Some(node(at)) && group.members().any(|member| member == node(other))
        };
        at != other && machine.inside.pendings().iter().any(|(name, _)| waits(name))
    }

    /// Another leads what a node led, and after a moment that leads again, if a write that it decided is at one member
    /// and not at the other. It hears nothing from them meanwhile, nor they from it.
    pub(super) fn lead_for_a_moment(&mut self, at: usize) {
        let Some((member, next)) = self.half_prepared(at) else {
            return self.traps.push(Trap::Return(at, self.lives[at]));
        };
        self.count(RETURNED);
        let now_ns = self.now_ns();
        let (back_ns, heard_ns) = (50 + self.plan.random.below(500), 400 + self.plan.random.below(1_000));
        self.path(at, member).silent_ns = now_ns + heard_ns * 1_000_000;
        self.path(at, next).silent_ns = now_ns + heard_ns * 1_000_000;
        self.depose_for(at, next);
        self.traps.push(Trap::LeadAgain(next, at, now_ns + back_ns * 1_000_000));
    }

    /// Of a write that this machine decided and that is under way: a member that holds it, and a backup that does not.
    pub(super) fn half_prepared(&self, at: usize) -> Option<(usize, usize)> {
        let (mine, spread) = (self.machines[at].as_ref()?, &self.map.spreads[0]);
        let holds = |other: usize, name: &[u8], version: u64| {
            let pendings = self.machines[other].as_ref().map(|machine| machine.inside.pendings());
            pendings.is_some_and(|pendings| pendings.iter().any(|it| *it.0 == *name && it.1 == version))
        };
        mine.inside.pendings().iter().find_map(|(name, version)| {
            let group = spread.group_of(mine.inside.slot(name));
            if group.primary != Some(node(at)) {
                return None;
            }
            let backups = group.others.iter().filter(|member| member.standing == Standing::Backup);
            let (have, have_not): (Vec<usize>, Vec<usize>) = backups
                .map(|member| member.node.0.get() as usize - 1)
                .filter(|other| self.machines[*other].is_some() && self.paused[*other].0 <= self.now_ns())
                .partition(|other| holds(*other, name, *version));
            Some((*have.first()?, *have_not.first()?))
        })
    }

    /// The next one leads what a node led, where it may; both hear of it at once.
    pub(super) fn depose_for(&mut self, at: usize, next: usize) {
        let living = self.living();
        self.depose_to(at, move |other| other == node(next) && living(other), true);
        let map = self.map.clone();
        if let Some(machine) = &mut self.machines[next] {
            machine.take(&map, true);
        }
    }

    /// Others lead what a node led, who hears of it first or, as it stays a member, sometime.
    pub(super) fn depose(&mut self, at: usize) {
        let (living, hears_first) = (self.living(), self.map.epoch.is_multiple_of(2));
        self.depose_to(at, living, hears_first);
    }

    /// Those that may lead what a node led.
    pub(super) fn depose_to(&mut self, at: usize, may: impl Fn(NodeId) -> bool, hears_first: bool) {
        let leads = |map: &Map| map.groups_of(node(at)).filter(|(_, group)| group.primary == Some(node(at))).count();
        let before = leads(&self.map);
        if self.machines[at].is_none() || self.paused[at].0 > self.now_ns() {
            return;
        }
        self.next_map(|draft| warden::depose(draft, node(at), may));
        if leads(&self.map) < before {
            self.count("take-overs from the living");
            self.count_pendings(at, TAKEN_OVER);
        }
        if let Some(machine) = self.machines[at].as_mut().filter(|_| hears_first) {
            machine.take(&self.map, true);
        }
    }

    /// A node that lives is in no group any more. It hears of it first, as above, and is brought back later.
    pub(super) fn expel(&mut self, at: usize) {
        let may_hear = self.machines[at].is_some() && self.paused[at].0 <= self.now_ns();
        let living = self.living();
        if !may_hear || !warden::may_go(&self.map, node(at), |other| other != node(at) && living(other)) {
            return;
        }
        self.count("members taken out that live");
        self.count_pendings(at, EXPELLED);
        self.next_map(|draft| warden::remove(draft, node(at), &living));
        if let Some(machine) = &mut self.machines[at] {
            machine.take(&self.map, true);
        }
        self.later(Task::BringBack(at, self.lives[at]));
    }

    pub(super) fn break_links(&mut self, a: usize, b: usize) {
        let mut unread = 0;
        for Laid { ends: [(one, _), (other, _)], cable, .. } in &self.cables {
            if (*one, *other) == (a, b) || (*one, *other) == (b, a) {
                unread += cable.under_way();
                cable.cut();
            }
        }
        if unread > 0 {
            self.count(UNREAD);
        }
    }

    /// The process dies; the kernel tells the others.
    pub(super) fn crash(&mut self, at: usize, until_ns: u64) {
        let copied = self.plan.copies > 1;
        let may_go = || match &self.reign {
            Some(_) => warden::may_go(&self.map, node(at), |id| self.is_alive(id)),
            None => warden::may_go(&self.map, node(at), self.living()),
        };
        if self.machines[at].is_none() || !may_go() {
            return;
        }
        self.count_pendings(at, CRASHED);
        self.count_happened(at);
        self.machines[at] = None;
        self.count("crashes");
        if self.reign.is_some() {
            self.note_death(at);
            self.witness(at);
            self.end_process(at);
        } else if copied {
            self.later(Task::Remove(at, self.lives[at]));
        }
        self.restarts.insert(at, until_ns);
        let is_its = |(machine, _): At| machine == at;
        let (gone, kept): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.cables).into_iter().partition(|it| it.ends.iter().any(|end| is_its(*end)));
        self.cables = kept;
        for Laid { ends, cable, .. } in gone {
            let [first, second] = cable.into_ends();
            let (end, peer) = if is_its(ends[0]) { (ends[1], second) } else { (ends[0], first) };
            peer.reset();
            self.alone.push((end, peer));
        }
        self.alone.retain(|(end, _)| !is_its(*end));
        self.unheard.retain(|(end, _)| !is_its(*end));
        for client in &mut self.clients {
            if client.link.as_ref().is_some_and(|(node, ..)| *node == at) {
                drop(client.lost(&mut self.history));
            }
        }
        if self.reign.is_none() {
            self.lose(at);
        }
    }

    /// What only this machine had, which is dead, is lost: it is noted once.
    pub(super) fn lose(&mut self, at: usize) {
        let spread = &self.map.spreads[0];
        let lost = self.losses.entry(at).or_default();
        for (key, slot) in &self.slots {
            let group = spread.group_of(*slot);
            let is_noted = lost.iter().any(|(noted, _)| noted == key);
            if group.primary == Some(node(at)) && group.others.is_empty() && !is_noted {
                let by = format!("n{} died", at + 1);
                let begin = self.history.moment();
                let (ask, answer, version) = (Ask::Lose, Answer::Done, None);
                let op = Op { ask, answer, version, begin, end: u64::MAX, after: None, by };
                self.history.ops.entry(*key).or_default().push(op);
                lost.push((*key, begin));
            }
        }
    }
}
