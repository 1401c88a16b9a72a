//! Nodes that are about to end, and ask for leave while they serve ([`Ask::Leave`](super::Ask::Leave)): others lead
//! what they led before anybody misses them.
//!
//! It takes two maps. By the first one others lead; the node stays a backup, so that nothing is written past it while
//! it may answer reads. When it has told that it has that map, it is taken out by the second, as far as enough copies
//! stay without it ([`Draft::retire`](crate::place::Draft::retire)). What it alone has it keeps and serves to its end,
//! which somebody else tells, or its silence. The request is answered when the others that are heard have the second
//! map, or after [`WARDEN_LEAVE_MS`], and in office only.
//!
//! That a node is about to end is known to this warden alone, and believed for [`WARDEN_LEFT_MS`]: meanwhile it gets no
//! copies and no lead, and is not taken for one that was silent and is back.

use super::ask::{Answer, Refusal};
use super::told::Wait;
use super::{Ticket, Warden};
use crate::limits::{WARDEN_LEAVE_MS, WARDEN_LEFT_MS};
use crate::place::{Life, NodeState};

/// A request for leave.
#[derive(Debug)]
pub(super) struct Leave {
    pub(super) ticket: Ticket,
    pub(super) life: Life,
    /// How long it waits.
    until_ms: u64,
}

impl Warden {
    /// A node asks for leave.
    pub(super) fn leave(&mut self, ticket: Ticket, life: Life) {
        let Some(kept) = &self.kept else { return self.answer(ticket, Err(Refusal::Busy)) };
        let (map, held) = (&kept.state.map, kept.state.held);
        let node = map.node(life.node).filter(|node| node.incarnation == life.incarnation);
        if node.is_none_or(|node| node.state == NodeState::Dead) {
            return self.answer(ticket, Err(Refusal::OldLife));
        }
        if !held {
            // Nobody leads anything yet.
            let epoch = map.epoch;
            return self.answer(ticket, Ok(Answer::Leaves { epoch }));
        }
        self.reach.leaves(life, self.now_ms + WARDEN_LEFT_MS);
        self.leaves.push(Leave { ticket, life, until_ms: self.now_ms + WARDEN_LEAVE_MS });
        self.is_urgent = true;
        self.hurry();
        self.release();
    }

    /// Those for whom nothing is left to do go when the others have the map.
    pub(super) fn end_leaves(&mut self) {
        let Some(kept) = self.kept.as_ref().filter(|_| !self.leaves.is_empty()) else { return };
        let (map, heard) = (&kept.state.map, self.reach.at(self.now_ms));
        let is_retired = |leave: &mut Leave| map.is_retired(leave.life.node, |node| heard.hears(node));
        let map_at = (map.epoch, map.revision);
        let done: Vec<Leave> = self.leaves.extract_if(.., is_retired).collect();
        let wait = |Leave { ticket, until_ms, .. }: Leave| {
            let answer = Answer::Leaves { epoch: map_at.0 };
            Wait { ticket, until_ms, map: map_at, answer, is_sure: true, of_heard: true }
        };
        self.waits.extend(done.into_iter().map(wait));
    }

    /// Answers those that have waited for too long: what could be done is done.
    pub(super) fn give_up_leaves(&mut self) {
        let now_ms = self.now_ms;
        let epoch = self.map().map_or(0, |map| map.epoch);
        for leave in self.leaves.extract_if(.., |leave| leave.until_ms <= now_ms).collect::<Vec<_>>() {
            self.answer(leave.ticket, Ok(Answer::Leaves { epoch }));
        }
    }
}
