//! Larger groups, by chance: seven nodes, many views, joins with copies. A seed tells the whole run.

use super::world::{Action, Kind, Op, World, stand, view};
use crate::chance::Chance;
use crate::replica::{Member, NodeId, Standing, View};
use std::cell::RefCell;
use std::collections::BTreeMap;

const NODES: u32 = 7;
const KEYS: u64 = 4;
/// Nodes that may lose their memory in one run; the rest are enough for k = 2.
const DEATHS_MAX: usize = 4;
/// A run that has not come to its end after so many events hangs.
const EVENTS_MAX: usize = 20_000;

std::thread_local! {
    static SEEN: RefCell<BTreeMap<&'static str, u32>> = const { RefCell::new(BTreeMap::new()) };
}

/// A rare thing has happened.
pub(super) fn seen(what: &'static str) {
    SEEN.with_borrow_mut(|seen| *seen.entry(what).or_default() += 1);
}

/// How often what has happened in this thread.
pub(super) fn all_seen() -> BTreeMap<&'static str, u32> {
    SEEN.with_borrow(BTreeMap::clone)
}

/// One run of so many events, and then on to its quiet end. What is wrong, and the last events before it.
pub(super) fn walk(seed: u64, events: usize) -> Result<(), String> {
    let backups: Vec<_> = (2..=5).map(|id| (id, Standing::Backup, 1)).collect();
    let mut world = World::new(NODES, view(1, 1, 1, &backups, 2));
    (world.grants, world.tells_all, world.at_once) = (true, true, seed.is_multiple_of(2));
    let mut run = Run { world, chance: Chance(seed), ops: 0, deaf: None, trace: Vec::new() };
    for _ in 0..events {
        match run.chance.below(12) {
            0 => run.fault(),
            _ => drop(run.go_on()),
        }
        run.judge(seed)?;
    }
    for _ in 0..NODES {
        run.rest(seed)?;
    }
    if !run.world.view.is_enough() {
        run.world.fault = Some(format!("stays below k: {:?}", run.world.view));
    }
    run.world.check_quiet();
    run.judge(seed)
}

struct Run {
    world: World,
    chance: Chance,
    ops: u8,
    /// Who hears nothing of views from the warden for a while.
    deaf: Option<NodeId>,
    trace: Vec<String>,
}

impl Run {
    /// What has to happen, in any order, until nothing is left; nobody stays a member too few.
    fn rest(&mut self, seed: u64) -> Result<(), String> {
        self.world.nodes.keys().copied().collect::<Vec<_>>().into_iter().for_each(|id| self.world.refuse(id, 0));
        self.deaf = None;
        if !self.world.view.is_enough() {
            self.comes();
        }
        for _ in 0..EVENTS_MAX {
            if !self.go_on() {
                return Ok(());
            }
            self.judge(seed)?;
        }
        self.world.fault = Some("comes to no end".into());
        self.judge(seed)
    }

    fn judge(&self, seed: u64) -> Result<(), String> {
        let last = self.trace.iter().rev().take(60).rev().cloned().collect::<Vec<_>>().join("\n  ");
        self.world.fault.as_ref().map_or(Ok(()), |fault| Err(format!("seed {seed}: {fault}\nafter:\n  {last}")))
    }

    fn go_on(&mut self) -> bool {
        let mut actions = self.world.actions(false);
        actions.retain(|action| !matches!(action, Action::Tell(id) if Some(*id) == self.deaf));
        let Some(action) = self.chance.one_of(&actions) else { return false };
        self.act(&action);
        true
    }

    fn act(&mut self, action: &Action) {
        self.trace.push(format!("{action:?} {}", self.world.letter(action)));
        self.world.act(action);
    }

    /// Something that need not happen.
    fn fault(&mut self) {
        match self.chance.below(16) {
            0..6 => self.ask(),
            6..8 => self.read(),
            8..11 => self.breaks(),
            11 if self.chance.below(3) == 0 => self.deaf = None,
            11 => {
                let nodes: Vec<NodeId> = self.world.nodes.keys().copied().collect();
                let Some(id) = self.chance.one_of(&nodes) else { return };
                let at = 1 + self.chance.below(4) as u8;
                self.trace.push(format!("{id:?} refuses its {at}th"));
                self.world.refuse(id, at);
            }
            12 if self.world.generation < 3 && self.chance.below(4) == 0 => {
                self.trace.push("flush".into());
                self.world.flush();
            }
            12 => self.leaves(),
            13 => self.new_primary(),
            _ => self.comes(),
        }
    }

    fn ask(&mut self) {
        self.ops = self.ops.wrapping_add(1).max(1);
        let kind = self.chance.one_of(&[Kind::Put, Kind::Put, Kind::Range(0), Kind::Range(1), Kind::Remove]);
        let op = Op { id: self.ops, key: self.chance.below(KEYS) as u8, kind: kind.unwrap_or(Kind::Put) };
        let nodes: Vec<NodeId> = self.world.nodes.keys().copied().collect();
        let at = if self.chance.below(8) == 0 { self.chance.one_of(&nodes) } else { None };
        let at = at.unwrap_or(self.world.view.primary);
        self.trace.push(format!("{at:?} is asked {op:?}"));
        if self.world.nodes.contains_key(&at) {
            self.world.ask(at, op);
        }
    }

    fn read(&mut self) {
        let open = self.world.nodes.iter().filter(|(_, node)| node.part.is_open()).map(|(id, _)| *id);
        let open: Vec<NodeId> = open.collect();
        let deaf = self.deaf.filter(|id| open.contains(id) && self.chance.below(2) == 0);
        let Some(id) = deaf.or_else(|| self.chance.one_of(&open)) else { return };
        self.trace.push(format!("{id:?} reads"));
        self.world.read(id);
    }

    fn breaks(&mut self) {
        self.world.breaks = 1;
        let is_break = |action: &Action| matches!(action, Action::Break(..));
        let breaks: Vec<Action> = self.world.actions(true).into_iter().filter(is_break).collect();
        if let Some(action) = self.chance.one_of(&breaks) {
            self.act(&action);
        }
        self.world.breaks = 0;
    }

    fn next_view(&self) -> View {
        View { epoch: self.world.view.epoch + 1, ..self.world.view.clone() }
    }

    fn new_view(&mut self, view: View) {
        self.trace.push(format!("{view:?}"));
        self.world.new_view(view);
    }

    /// Some of the nodes that leave lose their memory.
    fn dies(&mut self, id: NodeId) {
        let deaths = NODES as usize - self.world.nodes.len();
        match self.chance.below(4) {
            0 if deaths < DEATHS_MAX => {
                self.trace.push(format!("{id:?} dies"));
                self.world.kill(id);
            }
            1 => {
                self.trace.push(format!("{id:?} starts anew"));
                self.world.restart(id);
            }
            _ => {}
        }
    }

    fn leaves(&mut self) {
        let mut view = self.next_view();
        let members: Vec<NodeId> = view.members.iter().map(|member| member.node).collect();
        if let Some(id) = self.chance.one_of(&members) {
            stand(&mut view, id, None);
            self.dies(id);
            self.new_view(view);
        }
    }

    /// A backup takes over; the primary dies, or leaves, or stays as a backup.
    fn new_primary(&mut self) {
        let mut view = self.next_view();
        let is_backup = |member: &&Member| member.standing == Standing::Backup;
        let backups: Vec<NodeId> = view.members.iter().filter(is_backup).map(|member| member.node).collect();
        let Some(next) = self.chance.one_of(&backups) else { return };
        let old = std::mem::replace(&mut view.primary, next);
        view.since = view.epoch;
        stand(&mut view, next, None);
        self.dies(old);
        self.deaf = Some(old).filter(|_| self.chance.below(2) == 0);
        if self.world.has_memory(old, view.epoch) && self.chance.below(2) == 0 {
            stand(&mut view, old, Some(Standing::Backup));
        }
        for member in view.members.iter_mut().filter(|member| member.standing == Standing::Syncing) {
            member.since = view.epoch;
        }
        self.new_view(view);
    }

    fn comes(&mut self) {
        let mut view = self.next_view();
        let is_out = |id: &&NodeId| **id != view.primary && view.member(**id).is_none();
        let out: Vec<NodeId> = self.world.nodes.keys().filter(is_out).copied().collect();
        if let Some(id) = self.chance.one_of(&out) {
            stand(&mut view, id, Some(Standing::Syncing));
            self.new_view(view);
        }
    }
}
