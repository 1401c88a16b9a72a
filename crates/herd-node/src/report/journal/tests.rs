//! What is told of a herd of three, and when.

use super::*;
use crate::link::tests::world::{node, serving};
use herd_core::place::{Draft, Standing};

/// A herd of three with two copies, as its first node sees it: which others have links to it.
struct World {
    journal: Journal,
    map: Map,
    linked: Vec<NodeId>,
}

impl World {
    fn new() -> Self {
        Self { journal: Journal::default(), map: serving(3, 2), linked: vec![node(2), node(3)] }
    }

    fn look(&mut self, now_ms: u64) -> Vec<String> {
        self.journal.look((node(1), &self.map), |id| self.linked.contains(&id), now_ms)
    }

    fn change(&mut self, change: impl FnOnce(&mut Draft)) {
        self.map = self.map.next(change).expect("a valid map");
    }
}

/// Each line begins with this.
fn begin(lines: &[String], with: &[&str]) {
    assert!(lines.len() == with.len(), "{lines:#?}");
    assert!(lines.iter().zip(with).all(|(line, with)| line.starts_with(with)), "{lines:#?}");
}

#[test]
fn who_goes_out_of_reach_and_what_that_stops_is_told_once_and_so_is_its_return() {
    let mut world = World::new();
    assert_eq!(world.look(0), [""; 0]);
    world.linked.pop();
    for now_ms in [1_000, 1_999] {
        assert_eq!(world.look(now_ms), [""; 0], "it may be there again at once");
    }
    let lines = world.look(2_000);
    begin(&lines, &["node n3 (127.0.0.1:7003) is out of reach", "16 of 24 groups (0/0, 0/"]);
    assert!(lines[1].ends_with(" and 12 more) take no writes: n3 can't be reached"), "{}", lines[1]);
    assert_eq!(world.look(60_000), [""; 0]);
    world.linked.push(node(3));
    let lines = world.look(61_234);
    begin(&lines, &["node n3 (127.0.0.1:7003) is back, after 60.2 s", "16 of 24 groups (0/0, 0/"]);
    assert!(lines[1].ends_with(" take writes again, after 59.2 s"), "{}", lines[1]);
    assert_eq!(world.look(70_000), [""; 0]);
}

#[test]
fn a_short_loss_of_a_link_is_nobody_s_concern() {
    let mut world = World::new();
    for at_ms in (0..20_000).step_by(200) {
        match at_ms % 800 {
            0 => world.linked = vec![node(2), node(3)],
            _ => world.linked = vec![node(2)],
        }
        assert_eq!(world.look(at_ms), [""; 0]);
    }
}

#[test]
fn who_is_started_anew_or_comes_into_the_herd_is_told() {
    let mut world = World::new();
    world.look(0);
    world.change(|draft| draft.nodes[1].incarnation += 1);
    begin(&world.look(200), &["node n2 (127.0.0.1:7002) was started anew: what its memory held is gone"]);
    world.change(|draft| {
        let fourth = crate::link::tests::world::member(4, "127.0.0.1:7004".into());
        draft.nodes.push(fourth);
    });
    begin(&world.look(400), &["node n4 (127.0.0.1:7004) has joined the herd"]);
    begin(&world.look(1_500), &["node n4 (127.0.0.1:7004) is out of reach"]);
}

#[test]
fn a_group_that_nobody_leads_is_told_beside_those_that_are_stopped_otherwise() {
    let mut world = World::new();
    world.look(0);
    world.change(|draft| draft.spreads[0].groups[5].primary = None);
    begin(&world.look(200), &["1 of 24 groups (0/5) takes no writes: no reads either: only n"]);
    world.linked.clear();
    world.look(400);
    let lines = world.look(1_400);
    begin(&lines[..2], &["node n2 (127.0.0.1:7002) is out", "node n3 (127.0.0.1:7003) is out"]);
    assert!(lines[2..].iter().all(|line| !line.contains("(0/5)")), "{lines:#?}");
}

#[test]
fn copies_that_are_made_anew_are_told_when_that_begins_and_when_all_are_there() {
    let mut world = World::new();
    world.look(0);
    let syncing = |draft: &mut Draft, numbers: &[usize], standing| {
        numbers.iter().for_each(|number| draft.spreads[0].groups[*number].others[0].standing = standing);
    };
    world.change(|draft| syncing(draft, &[3, 4], Standing::Syncing));
    assert_eq!(world.look(200), [""; 0], "it may pass at once");
    begin(&world.look(1_200), &["2 of 24 groups (0/3, 0/4) have fewer copies than there should be"]);
    world.change(|draft| syncing(draft, &[4], Standing::Backup));
    assert_eq!(world.look(1_400), [""; 0]);
    world.change(|draft| syncing(draft, &[3], Standing::Backup));
    begin(&world.look(2_400), &["all 24 groups have their copies again, after 2.2 s"]);
    for at_ms in [3_000, 5_000] {
        world.change(|draft| syncing(draft, &[3], Standing::Syncing));
        assert_eq!(world.look(at_ms), [""; 0]);
        world.change(|draft| syncing(draft, &[3], Standing::Backup));
        assert_eq!(world.look(at_ms + 900), [""; 0], "it was short");
    }
    world.change(|draft| {
        syncing(draft, &[3], Standing::Syncing);
        draft.spreads[0].groups[5].primary = None;
    });
    begin(&world.look(6_000), &["1 of 24 groups (0/5) takes no writes"]);
    begin(&world.look(7_000), &["1 of 24 groups (0/3) has fewer copies"]);
    world.change(|draft| syncing(draft, &[3], Standing::Backup));
    assert_eq!(world.look(8_200), ["23 of 24 groups have their copies again, after 2.2 s"]);
}

/// As a group of one copy, which the herd can't take from its node.
#[test]
fn a_group_waits_also_for_a_node_that_leads_it_and_is_gone() {
    let mut world = World::new();
    assert_eq!(waiting(&world.map), 0);
    let led = world.map.spreads[0].groups.iter().filter(|group| group.primary == Some(node(2))).count();
    assert!((1..24).contains(&led), "{led}");
    for (state, waits) in [(NodeState::Down, led), (NodeState::Draining, 0), (NodeState::Dead, led)] {
        world.change(|draft| draft.nodes[1].state = state);
        assert_eq!(waiting(&world.map), waits, "{state:?}");
    }
}

#[test]
fn what_becomes_of_a_node_is_told() {
    let mut world = World::new();
    world.look(0);
    let becomes = |world: &mut World, state, at_ms| {
        world.change(|draft| draft.nodes[2].state = state);
        world.look(at_ms)
    };
    let n3 = |what: &str| vec![format!("node n3 (127.0.0.1:7003) {what}")];
    let silent = "is silent or about to end: groups that have enough copies go on without it";
    assert_eq!(becomes(&mut world, NodeState::Down, 200), n3(silent));
    assert_eq!(becomes(&mut world, NodeState::Up, 400), n3("is heard again, and gets its copies back"));
    assert_eq!(becomes(&mut world, NodeState::Draining, 600), n3("drains: what it keeps goes to the others"));
    assert_eq!(becomes(&mut world, NodeState::Up, 800), n3("no longer drains: it keeps what it has"));
    assert_eq!(becomes(&mut world, NodeState::Dead, 1_000), n3("has ended: its groups go on without it"));
    assert_eq!(becomes(&mut world, NodeState::Draining, 1_200), n3("drains: what it keeps goes to the others"));
    world.change(|draft| {
        draft.forget(node(3));
        for group in &mut draft.spreads[0].groups {
            group.others.retain(|member| member.node != node(3));
            group.primary = group.primary.filter(|primary| *primary != node(3));
        }
    });
    assert_eq!(world.look(1_400)[..1], n3("is no longer in the herd"));
}

#[test]
fn a_loss_is_told_once_when_it_came_and_not_at_every_start_that_follows() {
    let mut world = World::new();
    world.look(0);
    for (at, lost) in [(3, 7), (5, 7), (9, 8)] {
        world.change(|draft| draft.spreads[0].groups[at].lost = lost);
        let text = format!("lost its objects at epoch {lost}: all nodes that had them were started anew");
        let lines = world.look(200);
        match at {
            5 => assert_eq!(lines, [""; 0], "of that epoch it was told"),
            _ => assert_eq!(lines, [format!("1 of 24 groups (0/{at}) {text}")]),
        }
    }
    world.journal = Journal::since(8);
    begin(&world.look(0), &["1 of 24 groups (0/9) lost its objects at epoch 8"]);
    assert_eq!(world.look(200), [""; 0]);
    world.journal = Journal::since(9);
    assert_eq!(world.look(0), [""; 0], "it was started again, and nothing more was lost");
}

#[test]
fn what_others_bring_about_is_told_once_a_minute_and_no_more_than_so_much() {
    let mut journal = Journal::default();
    assert!(journal.is_news("a link was refused", 0));
    assert!(!journal.is_news("a link was refused", 59_999));
    assert!(journal.is_news("a link was refused", 60_000));
    let told = (0..1_000).filter(|n| journal.is_news(&format!("another, {n}"), 60_000)).count();
    assert_eq!(told, JOURNAL_LINES_MAX - 1);
}
