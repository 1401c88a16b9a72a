//! Replica groups as people are told of them: which there are, what keeps them from taking writes, which lost what they
//! held.

use herd_core::door::http::HttpDate;
use herd_core::place::{GivenUp, Group, GroupId, Kind, Map, NodeId, NodeState, Spread, Standing};
use std::collections::{BTreeMap, BTreeSet};

/// The groups of a spread group that have slots, and how many: a number may have been given up.
pub(super) fn used(spread: &Spread) -> impl Iterator<Item = (GroupId, &Group, u64)> {
    let all = spread.groups.iter().zip(spread.slots_of_groups()).enumerate().filter(|(_, (_, slots))| *slots > 0);
    let id = |number: usize| GroupId { spread: spread.id, number: number as u16 };
    all.map(move |(number, (group, slots))| (id(number), group, slots))
}

/// What keeps a group from taking writes, where these nodes are there.
pub(super) fn why_stopped(
    map: &Map,
    spread: &Spread,
    group: &Group,
    is_there: impl Fn(NodeId) -> bool,
) -> Option<String> {
    let syncing = |id: &NodeId| group.others.iter().any(|it| it.node == *id && it.standing == Standing::Syncing);
    let gone: Vec<NodeId> = group.members().filter(|id| !syncing(id) && !is_there(*id)).collect();
    match () {
        () if group.primary.is_none() => Some(format!("no reads either: {}", not_led(map, group))),
        () if !gone.is_empty() => Some(named(map, &gone) + " can't be reached"),
        () if group.copies() < usize::from(spread.needed) => Some(too_few(group, spread.needed)),
        () => None,
    }
}

/// Why nobody decides in a group.
pub(crate) fn not_led(map: &Map, group: &Group) -> String {
    let is_cache = map.spreads.iter().filter(|spread| spread.kind == Kind::Cache);
    let is_cache = is_cache.flat_map(|spread| &spread.groups).any(|it| std::ptr::eq(it, group));
    let is_dead = |id| map.node(id).is_some_and(|node| node.state == NodeState::Dead);
    match group.eligible[..] {
        [node] if !is_cache && is_dead(node) => {
            let name = named(map, &[node]);
            format!(
                "only {name} had its objects, and that process has ended: they are gone. It begins anew, empty, when \
                 {name} is started again, or by `herd group recover`"
            )
        }
        _ if is_cache => "it is of class cache, and goes to another node just now, empty".into(),
        [] => "all nodes that had its objects were started anew; it begins anew, empty, when enough nodes are there"
            .into(),
        [_] => {
            format!("only {} has its objects; start that node again from its directory", named(map, &group.eligible))
        }
        _ => {
            let names = named(map, &group.eligible);
            format!("only {names} have its objects; start one of these again from its directory")
        }
    }
}

/// Kept groups that nobody leads, and that wait for this node.
pub(super) fn waiting_for(map: &Map, node: NodeId) -> usize {
    let kept = map.spreads.iter().filter(|spread| spread.kind == Kind::Kept).flat_map(used);
    kept.filter(|(_, group, _)| group.primary.is_none() && group.eligible.contains(&node)).count()
}

/// Who is being brought up to date, if anybody is.
pub(super) fn syncing(map: &Map, group: &Group) -> Option<String> {
    let nodes: Vec<NodeId> =
        group.others.iter().filter(|it| it.standing != Standing::Backup).map(|it| it.node).collect();
    (!nodes.is_empty()).then(|| named(map, &nodes))
}

fn too_few(group: &Group, needed: u8) -> String {
    let (copies, are) = (group.copies(), if group.copies() == 1 { "copy is" } else { "copies are" });
    format!("{copies} {are} left of the {needed} that a write needs, until another is made")
}

/// Groups that somebody leads and that have fewer copies than they should, as far as there are nodes for them.
pub(super) fn short(map: &Map) -> BTreeSet<GroupId> {
    let up = map.nodes.iter().filter(|node| node.state == NodeState::Up).count();
    let is_short =
        |spread: &Spread, group: &Group| group.primary.is_some() && group.copies() < up.min(usize::from(spread.copies));
    let all = map.spreads.iter().flat_map(|spread| used(spread).map(move |(id, group, _)| (spread, id, group)));
    all.filter(|(spread, _, group)| is_short(spread, group)).map(|(_, id, _)| id).collect()
}

/// Whether some group that somebody leads has fewer copies than it is to have, be it that there are no nodes for them.
pub(super) fn few(map: &Map) -> bool {
    let is_short = |group: &Group, copies: u8| group.primary.is_some() && group.copies() < usize::from(copies);
    map.spreads.iter().any(|spread| used(spread).any(|(_, group, _)| is_short(group, spread.copies)))
}

/// How many groups wait for a node that the herd goes on without, as nobody else has what it had.
pub(super) fn waiting(map: &Map) -> usize {
    let is_gone = |id: NodeId| map.node(id).is_none_or(|node| matches!(node.state, NodeState::Down | NodeState::Dead));
    map.spreads.iter().flat_map(used).filter(|(_, group, _)| group.primary.is_none_or(is_gone)).count()
}

/// By rising number.
fn named(map: &Map, ids: &[NodeId]) -> String {
    let ids: BTreeSet<NodeId> = ids.iter().copied().collect();
    let name = |id: &NodeId| map.node(*id).map_or_else(|| id.0.to_string(), |node| node.name.clone());
    ids.iter().map(name).collect::<Vec<_>>().join(", ")
}

/// What groups lost, by the epoch of the loss; empty: nothing ever.
pub(super) fn losses(map: &Map) -> BTreeMap<u32, String> {
    let (mut lost, mut count) = (BTreeMap::<u32, BTreeSet<GroupId>>::new(), 0);
    for (id, group, _) in map.spreads.iter().flat_map(used) {
        count += 1;
        if group.lost > 0 {
            lost.entry(group.lost).or_default().insert(id);
        }
    }
    let text = |epoch: u32, groups: &BTreeSet<GroupId>| {
        let their = if groups.len() == 1 { "its" } else { "their" };
        let why = map.given_up.iter().find(|it| it.epoch == epoch).map(given_up);
        let why = why.unwrap_or_else(|| "all nodes that had them were started anew".into());
        format!("{} lost {their} objects at epoch {epoch}: {why}", several(groups, count))
    };
    let before = map.given_up.iter().map(|it| {
        let groups = if it.groups == 1 { "1 group".into() } else { format!("{} groups", it.groups) };
        (it.epoch, format!("{groups} lost what was held at epoch {}: {}", it.epoch, given_up(it)))
    });
    let mut all: BTreeMap<u32, String> = before.collect();
    all.extend(lost.into_iter().map(|(epoch, groups)| (epoch, text(epoch, &groups))));
    all
}

fn given_up(it: &GivenUp) -> String {
    let date = HttpDate::from_unix_s((it.unix_ms / 1_000) as i64);
    format!("given up by {} on {}", it.who, String::from_utf8_lossy(date.as_bytes()))
}

/// `2 of 24 groups (0/1, 0/7)`: the first of them by name.
pub(super) fn several(groups: &BTreeSet<GroupId>, of: usize) -> String {
    const SHOWN: usize = 4;
    let named: Vec<String> = groups.iter().take(SHOWN).map(|id| format!("{}/{}", id.spread, id.number)).collect();
    let more = groups.len().saturating_sub(SHOWN);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{} of {of} groups ({}{more})", groups.len(), named.join(", "))
}
