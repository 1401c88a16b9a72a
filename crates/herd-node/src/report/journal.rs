//! What an operator must know of the herd, as lines for the log: nodes that go out of reach, come back or were started
//! anew, groups that take no writes or lost their objects, what was refused. Pure: map, links and time are handed in.
//!
//! Each change is told once. What is short is not told at all: a link that was lost is there again within some 100 ms.
//! Lines of one text are told once a minute, and so many different ones at most, whoever brings them about.

use super::groups::{losses, several, short, used, why_stopped};
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
    /// Since when there are groups with fewer copies than they should have, which was told.
    short_ms: Option<u64>,
    /// Losses up to this epoch were told.
    lost: u32,
    /// Other lines, and when they were told.
    lines: BTreeMap<String, u64>,
}

/// Another node.
struct Known {
    incarnation: u64,
    /// It was silent for so long that the others go on without it.
    is_down: bool,
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
        self.nodes.retain(|id, _| map.node(*id).is_some());
        for node in map.nodes.iter().filter(|node| node.id != me) {
            let known = self.nodes.entry(node.id).or_insert_with(|| {
                lines.extend((!is_first).then(|| format!("node {} has joined the herd", called(node))));
                Known { incarnation: node.incarnation, is_down: false, lost_ms: None, is_told: false }
            });
            lines.extend(known.look(node, is_linked(node.id), now_ms));
        }
        let gone = self.nodes.iter().filter(|(_, known)| known.is_told).map(|(id, _)| *id).collect();
        let looked = Some((map.epoch, gone));
        if self.looked != looked {
            self.looked = looked;
            self.groups(map, now_ms, &mut lines);
        }
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
        self.short(map, now_ms, count, lines);
        for (why, groups) in stopped.iter().filter(|(why, groups)| self.stopped.get(*why) != Some(*groups)) {
            lines.push(format!("{} no writes: {why}", take(groups, count)));
        }
        for id in stopped.values().flatten() {
            self.since_ms.entry(*id).or_insert(now_ms);
        }
        drop(mem::replace(&mut self.stopped, stopped));
    }

    /// Groups that have fewer copies than they should, while they get them back.
    fn short(&mut self, map: &Map, now_ms: u64, count: usize, lines: &mut Vec<String>) {
        let short = short(map);
        match self.short_ms {
            None if !short.is_empty() => {
                self.short_ms = Some(now_ms);
                let have = if short.len() == 1 { "has" } else { "have" };
                lines.push(format!("{} {have} fewer copies than there should be", several(&short, count)));
            }
            Some(since_ms) if short.is_empty() => {
                self.short_ms = None;
                lines.push(format!("all {count} groups have their copies again, after {}", seconds(now_ms - since_ms)));
            }
            _ => {}
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
        let is_dead = node.state == NodeState::Dead;
        let is_down = is_dead || node.state == NodeState::Down;
        if mem::replace(&mut self.is_down, is_down) != is_down {
            lines.push(match is_down {
                true if is_dead => format!("node {} has ended: its groups go on without it", called(node)),
                true => format!(
                    "node {} is silent or about to end: groups that have enough copies go on without it",
                    called(node)
                ),
                false => format!("node {} is heard again, and gets its copies back", called(node)),
            });
        }
        if is_dead {
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
