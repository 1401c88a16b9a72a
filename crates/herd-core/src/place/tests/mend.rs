//! Nodes that come and go while the herd holds objects, over herds of all sizes.

use super::*;
use crate::limits::SLOTS;
use crate::replica::Want;
use std::collections::{BTreeMap, BTreeSet};

/// 3 to 12 nodes, and 2 to 4 copies.
fn drawn(seed: u64) -> Draft {
    let mut chance = Chance(seed);
    let nodes = (1..=3 + chance.below(10) as u32).map(|number| node(number, (1 + chance.below(4)) * GIB)).collect();
    let mut draft = Draft { nodes, ..Draft::empty(HERD) };
    draft.add_spread(Kind::Kept, 2 + chance.below(3) as u8, Grows::No).expect("the first spread group");
    draft.epoch = 1;
    draft
}

/// Whatever happens, a map of it is valid, and who leads is one of those who had all.
#[test]
fn who_leads_has_all_whatever_is_started_anew() {
    for seed in 0..200 {
        let chance = &mut Chance(seed);
        let mut map = Map::first(drawn(seed), 1).expect("a plan is a valid map");
        for _ in 0..60 {
            let before = map.clone();
            let draw = chance.below(6);
            let one = map.nodes[chance.index(map.nodes.len())].id;
            map = map
                .next(|draft| match draw {
                    0 => {
                        draft.start_anew(one, |_| true);
                        draft.nodes.iter_mut().filter(|node| node.id == one).for_each(|node| node.incarnation += 1);
                    }
                    1 => drop(draft.seat_joined()),
                    2 => drop(draft.balance()),
                    3 => draft.take_out(one, |_| true),
                    4 => draft.bring_back(one),
                    _ => {
                        for number in 0..draft.spreads[0].groups.len() as u16 {
                            let id = GroupId { spread: 0, number };
                            let group = draft.group(id).expect("it is there").clone();
                            let syncing = group.others.iter().find(|it| it.standing == Standing::Syncing);
                            if let Some(member) = syncing.filter(|_| number % 2 == 0) {
                                let granted = draft.grant(id, group.epoch, Want::Joining(member.node));
                                assert_eq!(granted, group.primary.is_some());
                            }
                            assert!(!draft.grant(id, group.epoch + 1, Want::Joining(one)), "of another view");
                        }
                    }
                })
                .expect("a valid map");
            for (old, new) in before.spreads[0].groups.iter().zip(&map.spreads[0].groups) {
                let joined =
                    |id: &NodeId| old.others.iter().any(|it| it.node == *id && it.standing == Standing::Joining);
                let had_all = |id: &NodeId| old.eligible.contains(id) || joined(id);
                assert!(new.primary.is_none_or(|id| had_all(&id) && (draw != 0 || id != one)), "seed {seed}");
                assert!(new.primary.is_some() || new.eligible.is_empty(), "seed {seed}: {new:?}");
                let mut members: BTreeSet<NodeId> = old.members().collect();
                let left = new.copies();
                if draw == 3 && new.members().all(|id| id != one) {
                    members.remove(&one);
                    let needed = usize::from(map.spreads[0].needed);
                    let had_all = old.full().any(|id| id == one) || joined(&one);
                    assert!(!had_all || left >= needed, "seed {seed}: {left} copies stay");
                }
                assert!(new.primary.is_none() || new.members().collect::<BTreeSet<_>>() == members, "seed {seed}");
                assert!(new.eligible.iter().all(had_all), "seed {seed}: only who has all");
            }
        }
    }
}

/// A warden that comes into office finds it silent, too; only with its next life is it known what was lost.
#[test]
fn a_group_that_waits_for_who_has_ended_goes_on_to_when_that_is_silent() {
    let mut draft = drawn(7);
    let [one, other] = [0, 1].map(|at| draft.nodes[at].id);
    draft.spreads[0].groups[0] = Group { primary: Some(one), eligible: vec![one], ..Group::default() };
    draft.bury(one, |_| true);
    draft.take_out(one, |_| true);
    draft.take_out(other, |_| true);
    let group = &draft.spreads[0].groups[0];
    assert_eq!((group.primary, &group.eligible[..], group.lost), (None, &[one][..], 0));
    draft.start_anew(one, |_| true);
    let group = &draft.spreads[0].groups[0];
    assert_eq!((&group.eligible[..], group.lost), (&[][..], draft.epoch + 1));
}

/// Who is silent, and may live, while others change.
#[test]
fn what_a_silent_node_has_no_part_in_is_left_as_it_is() {
    let mut draft = drawn(7);
    let [one, other, third] = [0, 1, 2].map(|at| draft.nodes[at].id);
    let backup = Member { node: other, standing: Standing::Backup, since: 0 };
    draft.spreads[0].needed = 1;
    for group in &mut draft.spreads[0].groups {
        *group = Group { primary: Some(one), others: vec![backup], eligible: vec![one, other], ..Group::default() };
        assert!(group.seal(other));
    }
    let before = draft.spreads[0].groups.clone();
    draft.take_out(third, |_| true);
    assert_eq!(draft.spreads[0].groups, before, "who leaves stays sealed");
    draft.bury(third, |_| true);
    assert_eq!(draft.spreads[0].groups, before);
}

/// Which of them lives nobody knows.
#[test]
fn of_copies_that_are_silent_together_none_is_given_up_for_another() {
    let mut draft = drawn(7);
    let [one, other] = [0, 1].map(|at| draft.nodes[at].id);
    let backup = Member { node: other, standing: Standing::Backup, since: 0 };
    draft.spreads[0].needed = 1;
    for group in &mut draft.spreads[0].groups {
        *group = Group { primary: Some(one), others: vec![backup], eligible: vec![one, other], ..Group::default() };
    }
    let before = draft.spreads[0].groups.clone();
    for silent in [one, other] {
        draft.take_out(silent, |node| node != one && node != other);
        assert_eq!(draft.spreads[0].groups, before);
    }
    draft.take_out(one, |node| node != one);
    let group = &draft.spreads[0].groups[0];
    assert_eq!((group.primary, group.others.len()), (Some(other), 0), "the other one is heard again");
}

#[test]
fn a_new_plan_is_even_and_what_is_uneven_comes_to_be_so() {
    for seed in 0..100 {
        let mut draft = drawn(seed);
        let planned = draft.clone();
        let loads = |draft: &Draft| {
            let spread = &draft.spreads[0];
            let mut loads: BTreeMap<NodeId, (f64, f64)> = BTreeMap::new();
            for slot in 0..SLOTS {
                let group = spread.group_of(slot);
                group.members().for_each(|id| loads.entry(id).or_default().1 += 1.0);
                loads.entry(group.primary.expect("planned")).or_default().0 += 1.0;
            }
            loads.into_values().map(|(led, kept)| led / kept).collect::<Vec<f64>>()
        };
        let spread = |loads: &[f64]| loads.iter().fold(0.0_f64, |max, it| max.max(*it));
        let before = spread(&loads(&draft));
        while draft.balance() {}
        assert!(spread(&loads(&draft)) <= before + 1e-9, "seed {seed}");
        let gone = draft.nodes[0].id;
        draft.start_anew(gone, |_| true);
        for group in &mut draft.spreads[0].groups {
            group.others.iter_mut().for_each(|member| member.standing = Standing::Backup);
            group.eligible = group.members().collect();
        }
        let uneven = spread(&loads(&draft));
        let mut steps = 0;
        while draft.balance() {
            steps += 1;
            assert!(steps < 100, "seed {seed}: it comes to an end");
        }
        let after = spread(&loads(&draft));
        assert!(after <= uneven && after < before * 1.35, "seed {seed}: {before} {uneven} {after}");
        assert_eq!(draft.spreads[0].slots, planned.spreads[0].slots);
    }
}

#[test]
fn a_copy_is_made_anew_at_a_node_that_has_none_and_of_another_host() {
    let mut draft = drawn(7);
    let copies = usize::from(draft.spreads[0].copies);
    let lost: Vec<NodeId> = draft.spreads[0].groups.iter_mut().map(|group| group.others.remove(0).node).collect();
    let short = draft.short_groups(draft.nodes.len());
    assert_eq!(short.len(), draft.spreads[0].groups.len());
    let there: Vec<Node> = draft.nodes[1..].to_vec();
    let may = |nodes: &[Node]| -> BTreeMap<GroupId, BTreeSet<NodeId>> {
        short.iter().map(|id| (*id, nodes.iter().map(|node| node.id).collect())).collect()
    };
    assert!(!draft.clone().repair(&may(&[]), &there), "who may not is not asked");
    assert!(draft.repair(&may(&there), &there));
    for (group, lost) in draft.spreads[0].groups.iter().zip(lost) {
        let members: BTreeSet<NodeId> = group.members().collect();
        assert_eq!(members.len(), copies);
        let new = group.others.last().expect("one came");
        assert_eq!(new.standing, Standing::Syncing);
        assert!(new.node != draft.nodes[0].id || lost == new.node, "only who is there");
    }
    assert_eq!(draft.short_groups(draft.nodes.len()), Vec::new());
}
