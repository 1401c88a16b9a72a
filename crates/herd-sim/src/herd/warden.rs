//! The warden of a simulated herd: what the map says of groups when a node dies, comes back, or is taken the lead from.
//!
//! It is the test's own, so that views come in orders that no good warden makes soon; what it never does is to take
//! for a copy what is none. What primaries ask for is granted as the herd's own does it (`herd_core::place`), and half
//! of the nodes that start anew come back as with that.

use herd_core::place::{Draft, Group, Map, Member, NodeId, Standing};

/// Whether each group outlives the node: it was alone there, or another one that lives has all that was acknowledged.
pub(super) fn may_go(map: &Map, node: NodeId, lives: impl Fn(NodeId) -> bool) -> bool {
    let backed = |group: &Group| {
        let backups = group.others.iter().filter(|member| member.standing == Standing::Backup);
        let mut holders = group.primary.into_iter().chain(backups.map(|member| member.node));
        let is_alone = group.primary == Some(node) && group.others.is_empty();
        let has_all = holders.clone().any(|holder| holder == node);
        !has_all || is_alone || holders.any(|holder| holder != node && lives(holder))
    };
    map.spreads.iter().flat_map(|spread| &spread.groups).all(backed)
}

/// Takes a node out of all groups that others are in too; those that it led are led by a backup that lives.
pub(super) fn remove(draft: &mut Draft, node: NodeId, lives: &impl Fn(NodeId) -> bool) {
    for group in groups(draft).filter(|group| !group.others.is_empty() || group.primary != Some(node)) {
        if group.primary == Some(node) {
            let backup = |member: &Member| member.standing == Standing::Backup && lives(member.node);
            let Some(at) = group.others.iter().position(backup) else { continue };
            group.primary = Some(group.others.remove(at).node);
        }
        group.others.retain(|member| member.node != node);
        settle(group);
    }
}

/// Brings a node back, with nothing, to the groups that it was meant for.
pub(super) fn bring_back(draft: &mut Draft, node: NodeId, plan: &Map) {
    let meant = plan.spreads.iter().flat_map(|spread| &spread.groups);
    let meant: Vec<bool> = meant.map(|group| group.members().any(|member| member == node)).collect();
    for (group, meant) in groups(draft).zip(meant) {
        if meant && group.members().all(|member| member != node) {
            group.others.push(Member { node, standing: Standing::Syncing, since: 0 });
        }
    }
}

/// Gives the lead of each group that the node leads to one of its backups that may; it stays as a backup.
pub(super) fn depose(draft: &mut Draft, node: NodeId, may: impl Fn(NodeId) -> bool) {
    for group in groups(draft).filter(|group| group.primary == Some(node)) {
        let backup = |member: &Member| member.standing == Standing::Backup && may(member.node);
        let Some(at) = group.others.iter().position(backup) else { continue };
        group.primary = Some(group.others.remove(at).node);
        group.others.push(Member { node, standing: Standing::Backup, since: 0 });
        settle(group);
    }
}

fn groups(draft: &mut Draft) -> impl Iterator<Item = &mut Group> {
    draft.spreads.iter_mut().flat_map(|spread| &mut spread.groups)
}

/// Those who hold all that is acknowledged from now on.
fn settle(group: &mut Group) {
    let backups = group.others.iter().filter(|member| member.standing == Standing::Backup);
    group.eligible = group.primary.into_iter().chain(backups.map(|member| member.node)).collect();
}
