//! What nodes tell of the maps they have, and the requests that wait until all have one.

use super::ask::{Answer, Ask, Refusal};
use super::order::Order;
use super::state::State;
use super::{Phase, Ticket, Warden};
use crate::place::{Node, NodeId, NodeState};

/// A request that waits for nodes to have a map.
#[derive(Debug)]
pub(super) struct Wait {
    pub(super) ticket: Ticket,
    /// How long.
    pub(super) until_ms: u64,
    /// The map's epoch and revision.
    pub(super) map: (u32, u64),
    /// What is answered then.
    pub(super) answer: Answer,
    /// It is so even where nodes have not the map in time.
    pub(super) is_sure: bool,
    /// Only nodes that are heard are waited for.
    pub(super) of_heard: bool,
}

/// Whether a node must have a map before something of it holds. While the herd holds no object who drains gives all it
/// has away at once, and goes by the plan of before until it hears of that.
fn must_have(state: &State) -> impl Fn(&&Node) -> bool + use<'_> {
    |node| state.map.counts(node) || !state.held && node.state == NodeState::Draining
}

impl Warden {
    /// A node tells which map it has, in this of its lives: with each beat, since what is told while nobody is in
    /// office is forgotten.
    #[must_use]
    pub fn have(&mut self, node: NodeId, incarnation: u64, epoch: u32, revision: u64) -> Vec<Order> {
        let known = self.map().and_then(|map| map.node(node).map(|node| (node.incarnation, (map.epoch, map.revision))));
        let Some((lives, latest)) = known.filter(|(lives, _)| *lives <= incarnation) else { return Vec::new() };
        self.told = self.told.max((epoch, revision));
        let news = (incarnation, epoch, revision);
        if lives == incarnation && self.have.get(&node).is_none_or(|known| *known < news) {
            self.have.insert(node, news);
            self.release();
            // It may be what is waited for to go on.
            self.is_urgent |= self.leaves.iter().any(|leave| leave.life.node == node)
                || self.map().is_some_and(|map| map.has_sealed(node));
            self.hurry();
        }
        if (epoch, revision) > latest && matches!(self.phase, Phase::Idle) {
            self.kept = None;
            self.seek();
        }
        self.step();
        self.taken()
    }

    /// The nodes that are up and have not told that they have the map: who asks to hold objects waits for them.
    pub fn missing(&self) -> Vec<NodeId> {
        self.kept.as_ref().map_or(Vec::new(), |kept| self.without(&kept.state, (kept.state.map.epoch, 0)))
    }

    /// Goes on with what waited for nodes to have the map, where they have it.
    pub(super) fn release(&mut self) {
        self.end_leaves();
        let Some(kept) = self.kept.as_ref().filter(|_| !self.holds.is_empty() || !self.waits.is_empty()) else {
            return;
        };
        let state = kept.state.clone();
        if kept.state.held || self.is_ready(&kept.state) {
            let holds = std::mem::take(&mut self.holds);
            self.asks.extend(holds.into_iter().map(|(ticket, _)| (ticket, Ask::Hold)));
        }
        let waits = std::mem::take(&mut self.waits);
        let heard = self.reach.at(self.now_ms);
        let is_missing = |wait: &Wait, node: &NodeId| !wait.of_heard || heard.hears(*node);
        let (done, waits): (Vec<Wait>, Vec<Wait>) = waits
            .into_iter()
            .partition(|wait| !self.without(&state, wait.map).iter().any(|node| is_missing(wait, node)));
        self.waits = waits;
        done.into_iter().for_each(|wait| self.answer(wait.ticket, Ok(wait.answer)));
    }

    /// Answers what has waited for nodes for too long.
    pub(super) fn give_up(&mut self) {
        let now_ms = self.now_ms;
        self.give_up_leaves();
        for wait in self.waits.extract_if(.., |wait| wait.until_ms <= now_ms).collect::<Vec<_>>() {
            let without = self.kept.as_ref().map_or(Vec::new(), |kept| self.without(&kept.state, wait.map));
            let answer = if wait.is_sure { Ok(wait.answer) } else { Err(self.not_told(&wait.answer, without)) };
            self.answer(wait.ticket, answer);
        }
        self.refuse_holds();
        let holds: Vec<_> = self.holds.extract_if(.., |(_, until_ms)| *until_ms <= now_ms).collect();
        if !holds.is_empty() {
            let refusal = Refusal::Missing(self.names(self.missing()));
            holds.into_iter().for_each(|(ticket, _)| self.answer(ticket, Err(refusal.clone())));
        }
    }

    /// Before the first object all nodes must have the map; who waits for one that is gone is told so at once.
    pub(super) fn refuse_holds(&mut self) {
        let Some(map) = self.map().filter(|_| !self.holds.is_empty()) else { return };
        let missing = self.missing();
        let gone = self.reach.at(self.now_ms).gone(map).into_iter().filter(|node| missing.contains(node));
        let gone = self.names(gone.collect());
        if !gone.is_empty() {
            let holds = std::mem::take(&mut self.holds);
            holds.into_iter().for_each(|(ticket, _)| self.answer(ticket, Err(Refusal::Away(gone.clone()))));
        }
    }

    /// It is done, but not at these.
    fn not_told(&self, answer: &Answer, without: Vec<NodeId>) -> Refusal {
        let done = if matches!(answer, Answer::Destroyed) { "removed" } else { "flushed" };
        let all =
            self.kept.as_ref().map_or(0, |kept| kept.state.map.nodes.iter().filter(must_have(&kept.state)).count());
        Refusal::NotTold { done, names: self.names(without), nodes: all }
    }

    fn names(&self, nodes: Vec<NodeId>) -> Vec<String> {
        nodes.into_iter().filter_map(|id| self.map()?.node(id)).map(|node| node.name.clone()).collect()
    }

    pub(super) fn is_ready(&self, state: &State) -> bool {
        !state.map.nodes.is_empty() && self.without(state, (state.map.epoch, 0)).is_empty()
    }

    /// The nodes that must have the map of this epoch and revision, and have not told that they do.
    fn without(&self, state: &State, (epoch, revision): (u32, u64)) -> Vec<NodeId> {
        let has = |id, incarnation| {
            let known = self.have.get(&id).filter(|(life, ..)| *life == incarnation);
            known.is_some_and(|known| known.1 >= epoch && known.2 >= revision)
        };
        let all = state.map.nodes.iter().filter(must_have(state));
        all.filter(|node| !has(node.id, node.incarnation)).map(|node| node.id).collect()
    }
}
