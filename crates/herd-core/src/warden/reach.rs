//! Which nodes the warden hears: who joined by it and was not lost since, and who has a link to its node.

use super::ask::{Answer, Refusal};
use super::{Phase, Warden};
use crate::limits::{FORGET_AFTER_MS, FORGET_DEAD_AFTER_MS, WARDEN_BATCH_MAX, WARDEN_HEARS_MS};
use crate::place::{Life, Map, Node, NodeId, NodeState};
use std::collections::{BTreeMap, BTreeSet};

/// Who is there.
#[derive(Debug, Default)]
pub(super) struct Reach {
    heard: BTreeSet<NodeId>,
    /// As it was told last.
    linked: BTreeSet<NodeId>,
    /// From when on who was not heard is gone; `None`: this warden was never in office.
    sure_ms: Option<u64>,
    /// Those that may be taken out, and those that beat, in these lives.
    silent: Vec<(NodeId, u64)>,
    beating: Vec<(NodeId, u64)>,
    /// Those that may answer reads by what was granted to them.
    granted: Vec<(NodeId, u64)>,
    /// Of the silent ones those whose groups of class `cache` may be given to others.
    cold: Vec<(NodeId, u64)>,
    /// Those that are silent, in these lives, and since when without a pause.
    silent_since: BTreeMap<(NodeId, u64), u64>,
    /// Those whose process has ended; until they join again.
    dead: BTreeMap<NodeId, Dead>,
    /// Those that are about to end, which of their lives that is, and until when this is believed; until they join
    /// again.
    leaving: BTreeMap<NodeId, (u64, u64)>,
}

/// A node whose process has ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Dead {
    /// Which of its lives that was.
    incarnation: u64,
    /// From when on it may be forgotten, if it drains: one that had not given all away may be started again, to go on.
    forget_ms: u64,
}

impl Reach {
    /// In office: nodes that live are linked soon, and those that start join.
    pub(super) fn begins(&mut self, now_ms: u64) {
        self.sure_ms.get_or_insert(now_ms + WARDEN_HEARS_MS);
    }

    /// What was said last of who may be taken out is over: another warden may have granted them something since. What
    /// was granted may be good still.
    pub(super) fn judges_anew(&mut self) {
        (self.silent, self.beating, self.cold) = Default::default();
        self.silent_since.clear();
    }

    /// A node joined. Its links, if there are any, may be those of its life before: that these end tells nothing of it.
    pub(super) fn joined(&mut self, node: NodeId, life: u64) {
        self.heard.insert(node);
        self.linked.remove(&node);
        self.dead.retain(|id, dead| *id != node || dead.incarnation >= life);
        self.leaving.retain(|id, (leaving, _)| *id != node || *leaving >= life);
    }

    /// This life of a node is about to end.
    pub(super) fn leaves(&mut self, life: Life, until_ms: u64) {
        self.leaving.insert(life.node, (life.incarnation, until_ms));
    }

    /// What is known of nodes that the map does not know any more is of no use, nor of lives that are over: where
    /// another warden let a node in again, this one did not hear of it.
    pub(super) fn forget_others(&mut self, map: &Map) {
        let is_over = |id: NodeId, life: u64| map.node(id).is_none_or(|node| node.incarnation > life);
        self.dead.retain(|id, dead| !is_over(*id, dead.incarnation));
        self.leaving.retain(|id, (life, _)| !is_over(*id, *life));
    }

    /// The nodes of the map that are about to end.
    pub(super) fn leaving(&self, map: &Map, now_ms: u64) -> Vec<NodeId> {
        let is = |node: &&Node| {
            let life = self.leaving.get(&node.id).filter(|(_, until_ms)| now_ms < *until_ms);
            life.is_some_and(|(life, _)| *life == node.incarnation) && node.state != NodeState::Dead
        };
        map.nodes.iter().filter(is).map(|node| node.id).collect()
    }

    /// These have links.
    fn links(&mut self, linked: BTreeSet<NodeId>) {
        self.heard.retain(|node| linked.contains(node) || !self.linked.contains(node));
        self.heard.extend(&linked);
        self.linked = linked;
    }

    /// What this comes to at a time.
    pub(super) fn at(&self, now_ms: u64) -> Heard<'_> {
        let (nodes, dead, leaving) = (&self.heard, &self.dead, &self.leaving);
        let (silent, granted, cold) = (&self.silent, &self.granted, &self.cold);
        Heard {
            nodes,
            dead,
            leaving,
            silent,
            granted,
            cold,
            now_ms,
            sure: self.sure_ms.is_some_and(|sure_ms| sure_ms <= now_ms),
        }
    }
}

impl Reach {
    /// The nodes of the map that are silent, and those that were taken out and are not, but for those that are to end.
    pub(super) fn changed(&self, map: &Map, now_ms: u64) -> (Vec<NodeId>, Vec<NodeId>) {
        let of = |nodes: &[(NodeId, u64)], is_so: &dyn Fn(&Node) -> bool| {
            let is = |(id, life): &&(NodeId, u64)| {
                let is_dead = self.dead.contains_key(id);
                map.node(*id).is_some_and(|node| node.incarnation == *life && !is_dead && is_so(node))
            };
            nodes.iter().filter(is).map(|(id, _)| *id).collect()
        };
        let leaving = self.leaving(map, now_ms);
        let is_back = |node: &Node| node.state == NodeState::Down && !leaving.contains(&node.id);
        (of(&self.silent, &|node| map.counts(node)), of(&self.beating, &is_back))
    }

    /// The nodes of the map that have groups of class `cache` which may be given to others.
    pub(super) fn cold(&self, map: &Map) -> Vec<NodeId> {
        let is = |(id, life): &&(NodeId, u64)| map.node(*id).is_some_and(|node| node.incarnation == *life);
        self.cold.iter().filter(is).map(|(id, _)| *id).filter(|id| map.has_caches(*id)).collect()
    }

    /// Those that drained, keep nothing any more and have ended: as many as one write has room for. Who is silent may
    /// live, and is waited for for long: where the herd held no object when it drained, it may go by a map of before.
    pub(super) fn left(&self, map: &Map, held: bool, now_ms: u64) -> Vec<NodeId> {
        let is = |node: &&Node| {
            let since_ms = self.silent_since.get(&(node.id, node.incarnation)).filter(|_| held);
            let is_silent = since_ms.is_some_and(|since_ms| now_ms >= since_ms + FORGET_AFTER_MS);
            let is_over = self.death(node).is_some_and(|dead| now_ms >= dead.forget_ms);
            node.state == NodeState::Draining && (is_silent || is_over) && !map.counts(node)
        };
        map.nodes.iter().filter(is).map(|node| node.id).take(WARDEN_BATCH_MAX).collect()
    }

    /// The end of a node's present life.
    fn death(&self, node: &Node) -> Option<&Dead> {
        self.dead.get(&node.id).filter(|dead| dead.incarnation == node.incarnation)
    }

    /// The nodes whose process has ended, which the map does not say yet. One that drains goes on to, and may be waited
    /// for by groups that it alone had: it is known once it is a member of none.
    pub(super) fn unburied(&self, map: &Map) -> Vec<NodeId> {
        let is_out = |id: NodeId| map.groups_of(id).next().is_none() && !map.has_caches(id);
        let is_known =
            |node: &Node| node.state == NodeState::Dead || node.state == NodeState::Draining && is_out(node.id);
        let is = |node: &&Node| !is_known(node) && self.death(node).is_some();
        map.nodes.iter().filter(is).map(|node| node.id).collect()
    }
}

/// The nodes that are heard, at a time, but for those that are about to end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Heard<'a> {
    nodes: &'a BTreeSet<NodeId>,
    dead: &'a BTreeMap<NodeId, Dead>,
    leaving: &'a BTreeMap<NodeId, (u64, u64)>,
    silent: &'a [(NodeId, u64)],
    granted: &'a [(NodeId, u64)],
    cold: &'a [(NodeId, u64)],
    now_ms: u64,
    /// The others are gone; else they may be but late.
    sure: bool,
}

impl Heard<'_> {
    fn is_there(&self, node: &Node) -> bool {
        self.hears(node.id)
    }

    /// Whether a node is heard.
    pub(super) fn hears(&self, node: NodeId) -> bool {
        let leaves = self.leaving.get(&node).is_some_and(|(_, until_ms)| self.now_ms < *until_ms);
        self.nodes.contains(&node) && !self.dead.contains_key(&node) && !leaves
    }

    /// Whether the process of a node that the map has may answer reads.
    pub(super) fn runs(&self, node: &Node) -> bool {
        let leaves = self.leaving.get(&node.id).is_some_and(|(life, _)| *life == node.incarnation);
        self.granted.contains(&(node.id, node.incarnation)) && !self.has_died(node) && !leaves
    }

    /// Whether a node answers for nothing any more: its process has ended, or all is over that was granted to it, also
    /// for what it has of class `cache`.
    pub(super) fn is_over(&self, map: &Map, node: &Node) -> bool {
        let silent = if map.has_caches(node.id) { self.cold } else { self.silent };
        self.has_died(node) || silent.contains(&(node.id, node.incarnation))
    }

    /// Whether the process of a node that the map has is known to have ended.
    fn has_died(&self, node: &Node) -> bool {
        let is_told = self.dead.get(&node.id).is_some_and(|dead| dead.incarnation == node.incarnation);
        is_told || node.state == NodeState::Dead
    }

    /// Those that are up and heard.
    pub(super) fn there(&self, nodes: &[Node]) -> Vec<Node> {
        up(nodes).filter(|node| self.is_there(node)).cloned().collect()
    }

    /// Those that are up and not heard, whether that is sure or not.
    pub(super) fn silent<'a>(&self, nodes: &'a [Node]) -> Vec<&'a Node> {
        up(nodes).filter(|node| !self.is_there(node)).collect()
    }

    /// Whether all are heard that keep something, or may get something.
    pub(super) fn all_count(&self, map: &Map) -> bool {
        map.nodes.iter().all(|node| !map.counts(node) || self.is_there(node))
    }

    /// Those that are heard, `joining` too, once it is sure that the others are gone.
    pub(super) fn all_there(&self, nodes: &[Node], joining: Option<NodeId>) -> Option<Vec<Node>> {
        let is_there = |node: &&Node| self.is_there(node) || Some(node.id) == joining;
        let there: Vec<Node> = up(nodes).filter(is_there).cloned().collect();
        (self.sure || there.len() == up(nodes).count()).then_some(there)
    }

    /// Those that are gone.
    pub(super) fn gone(&self, map: &Map) -> Vec<NodeId> {
        let silent = self.silent(&map.nodes).into_iter().filter(|_| self.sure);
        silent.map(|node| node.id).collect()
    }
}

fn up(nodes: &[Node]) -> impl Iterator<Item = &Node> {
    nodes.iter().filter(|node| node.state == NodeState::Up)
}

impl Warden {
    /// The nodes of the map, in their lives: to be judged by what they were granted. `None`: a change is being written,
    /// and what was said of them last stands until it is.
    pub fn judged(&self) -> Option<Vec<(NodeId, u64)>> {
        let map = self.map().filter(|_| self.flight.is_none())?;
        Some(map.nodes.iter().map(|node| (node.id, node.incarnation)).collect())
    }

    /// Of those, the ones that may be taken out, to which nothing is granted until this is told again, and the ones
    /// that beat.
    pub fn beats(&mut self, silent: Vec<(NodeId, u64)>, beating: Vec<(NodeId, u64)>) {
        let since = std::mem::take(&mut self.reach.silent_since);
        let since = silent.iter().map(|life| (*life, since.get(life).copied().unwrap_or(self.now_ms)));
        self.reach.silent_since = since.collect();
        (self.reach.silent, self.reach.beating) = (silent, beating);
    }

    /// Of the nodes of the map, in their lives, those that may answer reads by what was granted to them: told with each
    /// of [`Warden::beats`].
    pub fn granted(&mut self, granted: Vec<(NodeId, u64)>) {
        self.reach.granted = granted;
    }

    /// Of those that may be taken out, the ones whose groups of class `cache` may be given to others
    /// ([`Grants::cold`](crate::lease::Grants::cold)): told with each of [`Warden::beats`].
    pub fn cold(&mut self, cold: Vec<(NodeId, u64)>) {
        self.reach.cold = cold;
    }

    /// The process of a node has ended. What is said of another life than its present one changes nothing.
    pub(super) fn obituary(&mut self, life: Life) -> Result<Answer, Refusal> {
        let map = self.map().ok_or(Refusal::Busy)?;
        let is_new = |node: &&Node| node.incarnation == life.incarnation && node.state != NodeState::Dead;
        if let Some(node) = map.node(life.node).filter(is_new) {
            let forget_ms = self.now_ms + if map.counts(node) { FORGET_DEAD_AFTER_MS } else { 0 };
            let dead = Dead { incarnation: life.incarnation, forget_ms };
            let known = self.reach.dead.entry(life.node).or_insert(dead);
            if known.incarnation != dead.incarnation {
                *known = dead;
            }
            self.is_urgent = true;
            self.hurry();
        }
        Ok(Answer::Noted)
    }

    /// Looks at who has died or goes, if no call is under way. Where that fails it is tried again with each tick.
    pub(super) fn hurry(&mut self) {
        if self.is_urgent && matches!(self.phase, Phase::Idle) {
            self.is_urgent = false;
            self.tend();
        }
    }

    /// The nodes to which its own has links: told each 100 ms or so. One that had some and has none is out of reach.
    pub fn links(&mut self, linked: BTreeSet<NodeId>) {
        self.reach.links(linked);
    }
}
