//! What `/metrics` tells of a node's herd: its links, the groups it is in, and what it handed on. A node that is alone
//! has none of it. Bounded: a line for each other node, and for some of the groups.

use super::prometheus::{gauge, head, line};
use crate::context::Shared;
use crate::metrics::Metrics;
use herd_core::limits::STATUS_GROUPS_MAX;
use herd_core::place::{Group, GroupId, Life, Map, Spread, Standing};
use herd_store::Now;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// A counter of a loop: its name, what it says, and where it stands.
type Counter = (&'static str, &'static str, fn(&Metrics) -> &AtomicU64);

const COUNTERS: [Counter; 5] = [
    ("herd_handed_on_total", "Requests, or parts of them, that were handed on to another node.", |it| &it.handed_on),
    ("herd_refused_copies_total", "Writes of groups of other nodes that this node has no room for.", |it| {
        &it.refused_copies
    }),
    (
        "herd_answered_again_total",
        "Requests that were asked again after a change of the primary, and answered as the first time.",
        |it| &it.answered_again,
    ),
    ("herd_take_overs_total", "Times that this node began to decide for a replica group.", |it| &it.take_overs),
    (
        "herd_take_overs_pending_total",
        "Of these, those with writes that were pending here, and that it went on with.",
        |it| &it.take_overs_pending,
    ),
];

impl Shared {
    pub(super) fn herd_text(&self, out: &mut String, now: Now) {
        let Some((me, (map, _))) = self.place.get().and_then(|place| Some((place.me(), place.map()?))) else { return };
        gauge(out, "herd_map_epoch", "Epoch of the map that the node goes by.", map.epoch.into());
        let total = |of: fn(&Metrics) -> &AtomicU64| self.metrics.iter().map(|it| of(it).load(Relaxed)).sum::<u64>();
        for (name, text, of) in COUNTERS {
            head(out, name, "counter", text);
            line(out, format_args!("{name} {}", total(of)));
        }
        self.links_text(out, me, &map);
        self.groups_text(out, me, &map, now);
    }

    fn links_text(&self, out: &mut String, me: Life, map: &Map) {
        let linked = self.hub.get().map(|hub| hub.links()).unwrap_or_default();
        head(out, "herd_links", "gauge", "Links that are up to each other node; 0: it can't be reached.");
        for node in map.nodes.iter().filter(|node| node.id != me.node) {
            let (peer, links) = (label(&node.name), linked.get(&node.id).copied().unwrap_or(0));
            line(out, format_args!("herd_links{{peer=\"{peer}\"}} {links}"));
        }
    }

    fn groups_text(&self, out: &mut String, me: Life, map: &Map, now: Now) {
        // A number may have been given up: a group without slots is none.
        let of_slots = |spread: &Spread| -> Vec<GroupId> {
            spread.slots.iter().map(|number| GroupId { spread: spread.id, number: *number }).collect()
        };
        let used: BTreeSet<GroupId> = map.spreads.iter().flat_map(of_slots).collect();
        let groups: Vec<(GroupId, &Group)> = map.groups_of(me.node).filter(|(id, _)| used.contains(id)).collect();
        let led = groups.iter().filter(|(_, group)| group.primary == Some(me.node)).count();
        gauge(out, "herd_groups_led", "Replica groups that this node decides for.", led as u64);
        let help = "What the node is to each replica group it is in; 0: it leads it, and has not taken over yet.";
        head(out, "herd_group_state", "gauge", help);
        for (id, group) in groups.iter().copied().take(STATUS_GROUPS_MAX) {
            let is_shared = !group.others.is_empty();
            let standing = group.others.iter().find(|member| member.node == me.node).map(|member| member.standing);
            let (role, is_ready) = match standing {
                None => ("primary", !is_shared || self.gates.is_open(id)),
                Some(Standing::Backup) => ("backup", true),
                Some(Standing::Joining) => ("joining", true),
                Some(Standing::Syncing) => ("syncing", true),
            };
            let (spread, number, is_ready) = (id.spread, id.number, u8::from(is_ready));
            line(out, format_args!("herd_group_state{{group=\"{spread}/{number}\",role=\"{role}\"}} {is_ready}"));
        }
        let help = "Writes of a replica group that this node leads which wait for its other members.";
        head(out, "herd_group_pending_writes", "gauge", help);
        let led = groups.iter().filter(|(_, group)| group.primary == Some(me.node));
        for (id, _) in led.take(STATUS_GROUPS_MAX) {
            let (spread, number, pending) = (id.spread, id.number, self.gates.pending(*id));
            line(out, format_args!("herd_group_pending_writes{{group=\"{spread}/{number}\"}} {pending}"));
        }
        let help = "Writes of a replica group that are prepared at this node, and neither committed nor dropped.";
        head(out, "herd_group_prepared_writes", "gauge", help);
        let prepared = self.prepared(map, now);
        for (id, _) in groups.iter().take(STATUS_GROUPS_MAX) {
            let (spread, number, prepared) = (id.spread, id.number, prepared.get(id).copied().unwrap_or(0));
            line(out, format_args!("herd_group_prepared_writes{{group=\"{spread}/{number}\"}} {prepared}"));
        }
    }

    /// How many writes are pending here, by group.
    fn prepared(&self, map: &Map, now: Now) -> BTreeMap<GroupId, usize> {
        let mut prepared = BTreeMap::new();
        for spread in &map.spreads {
            for (key, _) in self.store.pendings(spread.id, |_| true, now) {
                *prepared.entry(GroupId { spread: spread.id, number: spread.slots[key.slot()] }).or_default() += 1;
            }
        }
        prepared
    }
}

/// A text as the value of a label.
fn label(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
