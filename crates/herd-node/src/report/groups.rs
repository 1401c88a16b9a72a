//! Replica groups as people are told of them: which there are, and what keeps them from taking writes.

use herd_core::place::{Group, GroupId, Map, NodeId, Spread};

/// The groups of a spread group that have slots, and how many: a number may have been given up.
pub(super) fn used(spread: &Spread) -> impl Iterator<Item = (GroupId, &Group, usize)> {
    let mut slots = vec![0_usize; spread.groups.len()];
    spread.slots.iter().for_each(|group| slots[usize::from(*group)] += 1);
    let all = spread.groups.iter().zip(slots).enumerate().filter(|(_, (_, slots))| *slots > 0);
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
    let named = |ids: Vec<NodeId>| {
        let name = |id: &NodeId| map.node(*id).map_or_else(|| id.0.to_string(), |node| node.name.clone());
        ids.iter().map(name).collect::<Vec<_>>().join(", ")
    };
    let Some(primary) = group.primary else {
        return Some("no node may lead it".into());
    };
    let gone: Vec<NodeId> = group.members().filter(|id| !is_there(*id)).collect();
    match () {
        () if !gone.is_empty() => Some(named(gone) + " can't be reached"),
        () if group.copies() < usize::from(spread.needed) => Some(named(vec![primary]) + " has too few members"),
        () => None,
    }
}
