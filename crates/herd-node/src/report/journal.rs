//! What an operator must know of the herd, as lines for the log: nodes that go out of reach, come back or were started
//! anew, groups that take no writes or lost their objects, what was refused. Pure: map, links and time are handed in.
//!
//! Each change is told once. What is short is not told at all: a link that was lost is there again within some 100 ms.
//! Lines of one text are told once a minute, and so many different ones at most, whoever brings them about.

use super::groups::{few, losses, several, short, used, waiting, why_stopped};
use herd_core::limits::{JOURNAL_AGAIN_MS, JOURNAL_LINES_MAX, JOURNAL_PATIENCE_MS};
use herd_core::place::{GroupId, Map, Node, NodeId, NodeState};
use std::collections::{BTreeMap, BTreeSet};
use std::mem;

/// What was told.
#[derive(Default)]
pub(crate) struct Journal {
    nodes: BTreeMap<NodeId, Known>,
    /// The map and the nodes out of reach that the groups were looked at with.
    looked: Option<(u32, BTreeSet<NodeId>)>,
    /// Groups that take no writes, by why, and since when.
    stopped: BTreeMap<String, BTreeSet<GroupId>>,
    since_ms: BTreeMap<GroupId, u64>,
    /// Since when there are groups with fewer copies than they should have, and whether that was told.
    short: Option<(u64, bool)>,
    /// The map in which all groups had their copies.
    whole: u32,
    /// Losses up to this epoch were told.
    lost: u32,
    /// Other lines, and when they were told.
    lines: BTreeMap<String, u64>,
}

/// Another node.
struct Known {
    incarnation: u64,
    /// As the map had it last, and what it is called.
    state: NodeState,
    called: String,
    /// Since when there is no link to it.
    lost_ms: Option<u64>,
    /// That it is out of reach was told.
    is_told: bool,
}

impl Journal {
    /// Of a node that came into its herd with the map of this epoch: what was lost before was told when it was.
    pub(crate) fn since(epoch: u32) -> Self {
        Self { lost: epoch.saturating_sub(1), ..Self::default() }
    }

    /// What is to be told now, by node `me`, which has links to those of whom `is_linked` says so.
    pub(crate) fn look(
        &mut self,
        (me, map): (NodeId, &Map),
        is_linked: impl Fn(NodeId) -> bool,
        now_ms: u64,
    ) -> Vec<String> {
        let (mut lines, is_first) = (Vec::new(), self.looked.is_none());
        let gone = self.nodes.extract_if(.., |id, _| map.node(*id).is_none());
        lines.extend(gone.map(|(_, known)| format!("node {} is no longer in the herd", known.called)));
        for node in map.nodes.iter().filter(|node| node.id != me) {
            let known = self.nodes.entry(node.id).or_insert_with(|| {
                lines.extend((!is_first).then(|| format!("node {} has joined the herd", called(node))));
                let (state, called) = (if is_first { node.state } else { NodeState::Up }, called(node));
                Known { incarnation: node.incarnation, state, called, lost_ms: None, is_told: false }
            });
            lines.extend(known.look(node, is_linked(node.id), now_ms));
        }
        let gone = self.nodes.iter().filter(|(_, known)| known.is_told).map(|(id, _)| *id).collect();
        let looked = Some((map.epoch, gone));
        if self.looked != looked {
            self.looked = looked;
            self.groups(map, now_ms, &mut lines);
        }
        self.short(map, now_ms, &mut lines);
        lines
    }

    /// Whether a line is to be told that others came up with.
    pub(crate) fn is_news(&mut self, line: &str, now_ms: u64) -> bool {
        self.lines.retain(|_, at_ms| now_ms < *at_ms + JOURNAL_AGAIN_MS);
        let is_news = self.lines.len() < JOURNAL_LINES_MAX && !self.lines.contains_key(line);
        is_news.then(|| self.lines.insert(line.to_owned(), now_ms)).is_some()
    }

    fn groups(&mut self, map: &Map, now_ms: u64, lines: &mut Vec<String>) {
        let is_there = |id| !self.nodes.get(&id).is_some_and(|known| known.is_told);
        let told = self.lost;
        for (epoch, text) in losses(map).into_iter().filter(|(epoch, _)| *epoch > told) {
            self.lost = epoch;
            lines.push(text);
        }
        let (mut stopped, mut count) = (BTreeMap::<String, BTreeSet<GroupId>>::new(), 0);
        for spread in &map.spreads {
            for (id, group, _) in used(spread) {
                count += 1;
                if let Some(why) = why_stopped(map, spread, group, is_there) {
                    stopped.entry(why).or_default().insert(id);
                }
            }
        }
        let all = |of: &BTreeMap<String, BTreeSet<GroupId>>| of.values().flatten().copied().collect::<BTreeSet<_>>();
        let again: BTreeSet<GroupId> = &all(&self.stopped) - &all(&stopped);
        if !again.is_empty() {
            let since_ms = again.iter().filter_map(|id| self.since_ms.remove(id)).min().unwrap_or(now_ms);
            let groups = take(&again, count);
            lines.push(format!("{groups} writes again, after {}", seconds(now_ms - since_ms)));
        }
        for (why, groups) in stopped.iter().filter(|(why, groups)| self.stopped.get(*why) != Some(*groups)) {
            lines.push(format!("{} no writes: {why}", take(groups, count)));
        }
        for id in stopped.values().flatten() {
            self.since_ms.entry(*id).or_insert(now_ms);
        }
        drop(mem::replace(&mut self.stopped, stopped));
    }

    /// Groups that have fewer copies than they should, while they get them back. What passes soon, as where a node
    /// hands over and ends, is not told.
    fn short(&mut self, map: &Map, now_ms: u64, lines: &mut Vec<String>) {
        if self.short.is_none() && self.whole == map.epoch {
            return;
        }
        let short = short(map);
        let count = || map.spreads.iter().flat_map(used).count();
        match self.short {
            _ if short.is_empty() => {
                self.whole = map.epoch;
                if let Some((since_ms, true)) = self.short.take() {
                    let after = seconds(now_ms - since_ms);
                    let few = if few(map) { ", as far as there are nodes for them" } else { "" };
                    let groups = match (count(), waiting(map)) {
                        (all, 0) => format!("all {all}"),
                        (all, waiting) => format!("{} of {all}", all - waiting),
                    };
                    lines.push(format!("{groups} groups have their copies again, after {after}{few}"));
                }
            }
            None => self.short = Some((now_ms, false)),
            Some((since_ms, false)) if now_ms - since_ms >= JOURNAL_PATIENCE_MS => {
                self.short = Some((since_ms, true));
                let have = if short.len() == 1 { "has" } else { "have" };
                lines.push(format!("{} {have} fewer copies than there should be", several(&short, count())));
            }
            Some(_) => {}
        }
    }
}

impl Known {
    fn look(&mut self, node: &Node, is_linked: bool, now_ms: u64) -> Vec<String> {
        let mut lines = Vec::new();
        if self.incarnation != node.incarnation {
            self.incarnation = node.incarnation;
            lines.push(format!("node {} was started anew: what its memory held is gone from it", called(node)));
        }
        lines.extend(news(mem::replace(&mut self.state, node.state), node));
        if node.state == NodeState::Dead {
            // That nobody has a link to it is no news.
            self.lost_ms = None;
            return lines;
        }
        let lost_ms = if is_linked { self.lost_ms.take() } else { Some(*self.lost_ms.get_or_insert(now_ms)) };
        let Some(lost_ms) = lost_ms else { return lines };
        let lost = now_ms - lost_ms;
        if is_linked && mem::take(&mut self.is_told) {
            lines.push(format!("node {} is back, after {}", called(node), seconds(lost)));
        } else if !is_linked && !self.is_told && lost >= JOURNAL_PATIENCE_MS {
            self.is_told = true;
            lines.push(format!("node {} is out of reach", called(node)));
        }
        lines
    }
}

/// What is told of a node whose state has changed.
fn news(before: NodeState, node: &Node) -> Option<String> {
    let what = match node.state {
        now if now == before => return None,
        NodeState::Dead => "has ended: its groups go on without it",
        NodeState::Down => "is silent or about to end: groups that have enough copies go on without it",
        NodeState::Draining => "drains: what it keeps goes to the others",
        NodeState::Up if before == NodeState::Draining => "no longer drains: it keeps what it has",
        NodeState::Up => "is heard again, and gets its copies back",
    };
    Some(format!("node {} {what}", called(node)))
}

/// A node's name, and where it is.
pub(crate) fn called(node: &Node) -> String {
    format!("{} ({})", node.name, node.addresses.first().map_or("no address", String::as_str))
}

fn seconds(ms: u64) -> String {
    format!("{}.{} s", ms / 1_000, ms % 1_000 / 100)
}

/// `2 of 24 groups (0/1, 0/7) take`.
fn take(groups: &BTreeSet<GroupId>, of: usize) -> String {
    let take = if groups.len() == 1 { "takes" } else { "take" };
    format!("{} {take}", several(groups, of))
}

#[cfg(test)]
mod tests;
