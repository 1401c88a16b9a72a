//! The test as the warden: it makes the maps, and each node hears of one at a time of its own.

use super::super::machine::node;
use super::super::warden;
use super::*;
use herd_core::place::{Draft, Node, NodeState};
use herd_core::replica::Want;

/// How often it is looked at what moves, ms.
const MOVES_MS: u64 = 150;

/// What the warden is about to do.
pub(super) enum Task {
    /// Takes a node that died in that life of it out of its groups.
    Remove(usize, u64),
    /// Brings one back that started anew, in that life of it.
    BringBack(usize, u64),
    /// Does what the primary of a group asked for in the view of that epoch.
    Grant(GroupId, u32, Want),
    /// Makes those backups who are joining.
    Seat,
    /// Has a node give away what it keeps alone, or stay.
    Drain(usize, bool),
}

impl<S: Service> World<S> {
    /// The warden's node grants leases, and those of whom it has heard nothing for longer than one lasts are taken out:
    /// dead, paused or cut off from it, which they may not know.
    pub(super) fn judge_silence(&mut self) {
        let is_awake = self.paused[WARDEN].0 <= self.now_ns();
        let Some(host) = self.machines[WARDEN].as_ref().filter(|_| is_awake && self.plan.copies > 1) else { return };
        let now_ns = host.leases.now_ns();
        let nodes: Vec<(NodeId, u64)> = self.map.nodes.iter().map(|node| (node.id, node.incarnation)).collect();
        let silent = {
            let mut grants = host.leases.grants();
            grants.in_office(self.map.term, now_ns, now_ns);
            grants.wrote(self.map.term, self.map.epoch);
            grants.silent(&nodes, now_ns)
        };
        let is_up = |node: &NodeId| self.map.node(*node).is_some_and(|node| node.state == NodeState::Up);
        let silent: Vec<NodeId> = silent.into_iter().map(|(node, _)| node).filter(is_up).collect();
        for node in silent {
            let at = node.0.get() as usize - 1;
            let lives = self.machines[at].is_some();
            self.count(if lives { SILENT } else { DEAD });
            self.count_pendings(at, SILENT_PENDING);
            let living = self.living();
            self.next_map(|draft| draft.take_out(node, &living));
        }
        self.hear_again();
        self.open_lost();
    }

    /// Groups that hold nothing any more, as those that had what they held were started anew, are opened anew once
    /// enough nodes are there.
    fn open_lost(&mut self) {
        if !self.map.has_lost_groups() {
            return;
        }
        let living = self.living();
        let there: Vec<Node> = self.map.nodes.iter().filter(|node| living(node.id)).cloned().collect();
        if self.map.may_reopen(&there) {
            self.next_map(|draft| draft.reopen(&there));
            self.count("groups opened anew");
        }
    }

    /// Those that were taken out as silent, and are heard again, are brought back.
    pub(super) fn hear_again(&mut self) {
        let Some(host) = &self.machines[WARDEN] else { return };
        let (now_ns, grants) = (host.leases.now_ns(), host.leases.grants());
        let down = self.map.nodes.iter().filter(|node| node.state == NodeState::Down);
        let heard = down.filter(|node| grants.is_heard(node.id, node.incarnation, now_ns));
        let heard: Vec<NodeId> = heard.map(|node| node.id).collect();
        drop(grants);
        for node in heard {
            let at = node.0.get() as usize - 1;
            self.next_map(|draft| draft.bring_back(node));
            self.later(Task::BringBack(at, self.lives[at]));
        }
    }

    /// The warden does what it is about to.
    pub(super) fn reign(&mut self) {
        let (now_ns, quiet) = (self.now_ns(), self.quiet);
        let is_due = |(from_ns, _): &mut (u64, Task)| *from_ns <= now_ns || quiet;
        let mut due: Vec<Task> = self.tasks.extract_if(.., is_due).map(|(_, task)| task).collect();
        // What was asked in a view is done before the view changes.
        due.sort_by_key(|task| !matches!(task, Task::Grant(..)));
        if due.is_empty() {
            return;
        }
        let (living, plan, lives) = (self.living(), self.plan_of_all.clone(), self.lives.clone());
        let mut granted = false;
        // Who could not keep a copy is asked to once more.
        let removed = due.iter().filter_map(|task| match task {
            Task::Grant(_, _, Want::Removed(node)) => Some(node.0.get() as usize - 1),
            _ => None,
        });
        let removed: Vec<usize> = removed.collect();
        let back: Vec<Task> = removed.iter().map(|at| Task::BringBack(*at, lives[*at])).collect();
        back.into_iter().for_each(|task| self.later(task));
        let drains = due.iter().filter_map(|task| match task {
            Task::Drain(at, stays) => Some((*at, !stays)),
            _ => None,
        });
        drains.collect::<Vec<_>>().into_iter().for_each(|(at, drains)| self.drain_alone(at, drains));
        self.next_map(|draft| {
            for task in due {
                match task {
                    // What started anew was taken out then.
                    Task::Remove(at, life) if lives[at] == life => warden::remove(draft, node(at), &living),
                    // By another map than the one that takes it out, or nobody would see that it was out.
                    Task::BringBack(at, life) if lives[at] == life && living(node(at)) && !removed.contains(&at) => {
                        warden::bring_back(draft, node(at), &plan);
                    }
                    Task::Remove(..) | Task::BringBack(..) | Task::Drain(..) => {}
                    Task::Grant(group, epoch, want) => granted |= draft.grant(group, epoch, want),
                    Task::Seat => drop(draft.seat_joined()),
                }
            }
        });
        if granted {
            self.later(Task::Seat);
        }
    }

    /// A node that lives is to give away all that it keeps, or stays: where one copy is kept.
    pub(super) fn drain_alone(&mut self, at: usize, drains: bool) {
        // As a warden does: what it keeps goes to somebody.
        let is_other_up = self.map.nodes.iter().any(|it| it.id != node(at) && it.state == NodeState::Up);
        if self.plan.copies == 1 && self.machines[at].is_some() && (!drains || is_other_up) {
            self.next_map(|draft| draft.drain(node(at), drains));
        }
    }

    /// What nodes keep alone goes from one to the other, where that is wanted.
    pub(super) fn go_on_moving(&mut self) {
        if self.plan.copies > 1 || self.moves_ns > self.now_ns() {
            return;
        }
        self.moves_ns = self.now_ns() + MOVES_MS * 1_000_000;
        let living = self.living();
        let epoch = |machine: &Option<Machine<S>>| machine.as_ref()?.map.as_ref().map(|map| map.epoch);
        let epochs: Vec<Option<u32>> = self.machines.iter().map(epoch).collect();
        let has = |id: NodeId, epoch| epochs[id.0.get() as usize - 1].is_some_and(|its| its >= epoch);
        let go_on =
            |draft: &mut Draft| draft.end_moves(has, &living, |_| false) | draft.begin_moves(|_, id| living(id), false);
        if self.map.is_moving() && go_on(&mut Draft::clone(&self.map)) {
            self.next_map(|draft| _ = go_on(draft));
        }
    }

    /// Takes what the node asks of the warden, where it leads by the present view and asks in that.
    pub(super) fn hear_wants(&mut self, at: usize) {
        let Some(machine) = &self.machines[at] else { return };
        for (id, epoch, want) in machine.take_wants() {
            let present = self.map.group(id).filter(|group| group.primary == Some(node(at)));
            let asked = (id, epoch, want);
            let is_known = |task: &Task| matches!(task, Task::Grant(of, since, what) if (*of, *since, *what) == asked);
            if present.is_some_and(|group| group.epoch == epoch) && !self.tasks.iter().any(|(_, task)| is_known(task)) {
                self.later(Task::Grant(id, epoch, want));
            }
        }
    }

    pub(super) fn later(&mut self, task: Task) {
        let from_ns = self.now_ns() + self.plan.random.below(WARDEN_MS) * 1_000_000;
        self.tasks.push((from_ns, task));
    }

    /// A map that differs from the one before; each node hears of it some time later.
    pub(super) fn next_map(&mut self, change: impl FnOnce(&mut Draft)) {
        if self.clients.iter().any(Client::has_large) {
            self.count(UNDER_WAY);
        }
        let next = Arc::new(self.map.next(change).expect("a valid map"));
        let old = std::mem::replace(&mut self.map, next);
        self.count_changes(&old);
        // Not all deaths are known when a map is made: one that is dead may be the last that had something.
        let dead: Vec<usize> = self.restarts.keys().copied().collect();
        dead.into_iter().for_each(|at| self.lose(at));
        let now_ns = self.now_ns();
        for at in 0..self.news.len() {
            self.news[at] = now_ns + self.plan.random.size(2_000) * 1_000_000;
        }
    }

    pub(super) fn hear_of_maps(&mut self) {
        let now_ns = self.now_ns();
        for (at, machine) in self.machines.iter_mut().enumerate() {
            let Some(machine) = machine else { continue };
            let has_it = machine.map.as_ref().is_some_and(|map| Arc::ptr_eq(map, &self.map));
            if !has_it && self.news[at].max(self.paused[at].0).max(self.deaf[at]) <= now_ns {
                machine.take(&self.map, true);
            }
        }
    }

    /// Machines whose time has come start anew.
    pub(super) fn restart(&mut self) {
        let now_ns = self.now_ns();
        for at in 0..self.machines.len() {
            if self.restarts.get(&at).is_none_or(|until_ns| *until_ns > now_ns) {
                continue;
            }
            self.restarts.remove(&at);
            if self.reign.is_some() {
                self.begin_process(at);
                continue;
            }
            self.lives[at] += 1;
            let life = self.lives[at];
            let living = self.living();
            let is_alone = self.map.groups_of(node(at)).any(|(_, group)| group.others.is_empty());
            let at_once = !is_alone && (at as u64 + life).is_multiple_of(2);
            let mut lost = false;
            self.next_map(|draft| {
                match at_once {
                    true => drop(draft.start_anew(node(at), &living)),
                    false => warden::remove(draft, node(at), &living),
                }
                draft.nodes[at].incarnation = life;
                draft.nodes[at].state = NodeState::Up;
                lost = draft.has_lost_groups();
                if lost {
                    let is_there = |other: &Node| other.id == node(at) || living(other.id);
                    let there: Vec<Node> = draft.nodes.iter().filter(|other| is_there(other)).cloned().collect();
                    draft.reopen(&there);
                }
            });
            if lost {
                self.count("groups opened anew");
            }
            self.start(at);
            self.later(Task::BringBack(at, life));
            for (key, begin) in self.losses.remove(&at).into_iter().flatten() {
                let end = self.history.moment();
                let ops = self.history.ops.get_mut(&key).into_iter().flatten();
                ops.filter(|op| op.begin == begin).for_each(|op| op.end = end);
            }
        }
    }
}
