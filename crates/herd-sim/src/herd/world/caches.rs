//! Groups of class `cache`: no two nodes answer for one of them at once, whatever each has heard.

use super::*;
use herd_core::place::{Kind, NodeState};

pub(super) const WENT: &str = "groups of class cache that went from a node that lives to another";
pub(super) const COLD: &str = "groups of class cache that another got when theirs was silent and lived";

impl<S: Service> World<S> {
    /// No two nodes answer for an object of class `cache`.
    pub(super) fn see_caches(&mut self) {
        let now_ns = self.now_ns();
        if self.soft_slots.is_empty() {
            return;
        }
        let mut answers: BTreeMap<usize, usize> = BTreeMap::new();
        let awake = |at: &usize| self.paused[*at].0 <= now_ns;
        for at in (0..self.machines.len()).filter(awake) {
            let Some(machine) = &self.machines[at] else { continue };
            for slot in machine.inside.answers_for(&self.soft_slots) {
                if let Some(other) = answers.insert(slot, at) {
                    let (one, other, group) = (at + 1, other + 1, self.map.spreads[0].group_of(slot));
                    self.wrong = Some(format!("n{other} and n{one} both answer for slot {slot}: {group:?}"));
                }
            }
        }
    }

    /// Counts groups that went to another node while the one that had them lives.
    pub(super) fn see_new_homes(&mut self) {
        let Some(spread) = self.map.spreads.first().filter(|spread| spread.kind == Kind::Cache) else { return };
        let homes: Vec<(usize, NodeId)> =
            spread.groups.iter().enumerate().filter_map(|(number, group)| Some((number, group.primary?))).collect();
        for (number, home) in homes {
            let Some(before) = self.had.insert(number, home).filter(|before| *before != home && !self.quiet) else {
                continue;
            };
            let is_down = self.map.node(before).is_none_or(|node| node.state == NodeState::Down);
            match (self.is_alive(before), is_down) {
                (true, true) => self.count(COLD),
                (true, false) => self.count(WENT),
                _ => {}
            }
        }
    }
}
