//! What the warden does of itself: nodes that were started anew get their copies back, and lead again.

use super::*;
use crate::limits::{BALANCE_CALM_MS, FORGET_AFTER_MS, REPAIR_AFTER_MS, WANTS_MAX, WARDEN_HEARS_MS, WARDEN_TICK_MS};
use crate::limits::{MAP_EPOCHS_END, TEND_AGAIN_MS};
use crate::place::{Draft, Group, GroupId, Life, Member, NodeState, Standing};
use crate::replica::Want;
use crate::warden::MoveGroup;
use crate::warden::tend::{Known, Todo};

/// Three nodes that keep three copies, and the herd holds objects.
pub(super) fn held() -> Bench {
    let mut bench = Bench::new(config("a"));
    bench.join_all(1..=3);
    bench.all_have();
    bench.ask(Ask::Hold).expect("all have the map");
    bench.tick(WARDEN_HEARS_MS);
    bench
}

/// Members of the default spread group's groups that are so.
pub(super) fn all(bench: &Bench, standing: Standing) -> Vec<(GroupId, u32, NodeId)> {
    let map = bench.map();
    let groups = map.spread(0).expect("the default one").groups.iter().enumerate();
    let of = |(number, group): (usize, &crate::place::Group)| {
        let id = GroupId { spread: 0, number: number as u16 };
        let epoch = group.epoch;
        let its = group.others.iter().filter(|member: &&Member| member.standing == standing);
        its.map(|member| (id, epoch, member.node)).collect::<Vec<_>>()
    };
    groups.flat_map(of).collect()
}

pub(super) fn led(bench: &Bench) -> [usize; 3] {
    let map = bench.map();
    let groups = &map.spread(0).expect("the default one").groups;
    [1, 2, 3].map(|number| groups.iter().filter(|it| it.primary.is_some_and(|node| node.0.get() == number)).count())
}

/// Time goes by, for the lead to be shared out.
fn calm(bench: &mut Bench) {
    bench.tick(BALANCE_CALM_MS);
    bench.tick(WARDEN_TICK_MS);
}

/// The primaries of these groups want this.
fn want(bench: &mut Bench, all: &[(GroupId, u32, NodeId)], want: impl Fn(NodeId) -> Want) {
    let wants: Vec<_> = all.iter().map(|(id, epoch, node)| (*id, *epoch, want(*node))).collect();
    for some in wants.chunks(WANTS_MAX) {
        assert_eq!(bench.ask(Ask::Wants(some.to_vec())), Ok(Answer::Noted));
    }
}

#[test]
fn who_was_started_anew_is_a_backup_again_when_it_has_all_and_leads_its_share_when_all_is_calm() {
    let mut bench = held();
    let before = led(&bench);
    assert_eq!(before, [8, 8, 8]);
    bench.join(join(2, 2));
    assert_eq!(led(&bench), [12, 0, 12], "what it led is led by others, evenly");
    let syncing = all(&bench, Standing::Syncing);
    assert_eq!(syncing.len(), 24);
    calm(&mut bench);
    assert_eq!(led(&bench), [12, 0, 12], "nothing moves while copies are made");
    want(&mut bench, &syncing[..10], Want::Joining);
    bench.tick(WARDEN_TICK_MS);
    assert_eq!(all(&bench, Standing::Joining).len(), 10);
    bench.tick(WARDEN_TICK_MS);
    assert_eq!((all(&bench, Standing::Joining).len(), all(&bench, Standing::Syncing).len()), (0, 14));
    let epoch = bench.map().epoch;
    want(&mut bench, &syncing[..10], Want::Joining);
    bench.tick(WARDEN_TICK_MS);
    assert_eq!(bench.map().epoch, epoch, "what was asked in a view that is over stands for nothing");
    want(&mut bench, &syncing[10..], Want::Joining);
    bench.tick(WARDEN_TICK_MS);
    bench.tick(WARDEN_TICK_MS);
    let map = bench.map();
    assert_eq!(map.short_groups(3), []);
    let is_eligible = |group: &crate::place::Group| group.eligible.len() == 3;
    assert!(map.spread(0).expect("the default one").groups.iter().all(is_eligible));
    calm(&mut bench);
    assert_eq!(led(&bench), [12, 0, 12], "not before all have the map");
    bench.all_have();
    calm(&mut bench);
    assert_eq!(led(&bench), [8, 8, 8]);
    let epoch = bench.map().epoch;
    bench.all_have();
    calm(&mut bench);
    assert_eq!(bench.map().epoch, epoch, "and there it stays");
}

#[test]
fn who_had_no_room_is_asked_again_later() {
    let mut bench = held();
    bench.join(join(3, 2));
    let syncing = all(&bench, Standing::Syncing);
    want(&mut bench, &syncing[..1], Want::Removed);
    bench.tick(WARDEN_TICK_MS);
    assert_eq!(all(&bench, Standing::Syncing).len(), 23);
    bench.tick(WARDEN_TICK_MS);
    bench.tick(REPAIR_AFTER_MS - WARDEN_TICK_MS);
    assert_eq!(all(&bench, Standing::Syncing).len(), 23);
    bench.tick(WARDEN_TICK_MS);
    assert_eq!(all(&bench, Standing::Syncing).len(), 24);
    // Each time costs a copy: it is asked ever later.
    let mut waits = Vec::new();
    for _ in 0..4 {
        let refusing = syncing[0].0;
        let of_group = all(&bench, Standing::Syncing).into_iter().filter(|(id, ..)| *id == refusing);
        want(&mut bench, &of_group.collect::<Vec<_>>(), Want::Removed);
        let mut ticks = 0;
        while all(&bench, Standing::Syncing).len() < 24 || ticks < 2 {
            bench.tick(1_000);
            bench.tick(WARDEN_TICK_MS);
            ticks += 1;
        }
        waits.push(ticks);
    }
    assert!(waits.is_sorted() && waits[3] >= 6 * waits[0], "{waits:?} s");
    // Started anew, perhaps with more memory, it is another matter.
    let syncing = all(&bench, Standing::Syncing);
    want(&mut bench, &syncing[..1], Want::Removed);
    bench.tick(WARDEN_TICK_MS);
    bench.join(join(3, 3));
    assert_eq!(all(&bench, Standing::Syncing).len(), 23);
    bench.tick(WARDEN_TICK_MS);
    bench.tick(REPAIR_AFTER_MS);
    bench.tick(WARDEN_TICK_MS);
    assert_eq!(all(&bench, Standing::Syncing).len(), 24);
}

/// One group that stays short of a copy keeps no other from being led by whom it should.
#[test]
fn the_lead_is_shared_out_beside_a_group_that_stays_short() {
    let mut bench = held();
    bench.join(join(2, 2));
    let syncing = all(&bench, Standing::Syncing);
    want(&mut bench, &syncing[..1], Want::Removed);
    want(&mut bench, &syncing[1..], Want::Joining);
    bench.tick(WARDEN_TICK_MS);
    bench.tick(WARDEN_TICK_MS);
    assert_eq!(bench.map().short_groups(3).len(), 1);
    bench.all_have();
    bench.tick(WARDEN_TICK_MS);
    calm(&mut bench);
    assert_eq!(bench.map().short_groups(3).len(), 1);
    assert!(led(&bench)[1] >= 7, "{:?}", led(&bench));
}

/// Who was joining has all: nothing is lost where the last one that was a member before it goes.
#[test]
fn who_is_joining_takes_over_from_the_last_that_had_all() {
    let mut bench = Bench::new(Config { birth: Some(Birth { copies: Some(2), ..birth() }), ..config("a") });
    bench.join_all(1..=2);
    bench.all_have();
    bench.ask(Ask::Hold).expect("all have the map");
    bench.join(join(2, 2));
    let syncing = all(&bench, Standing::Syncing);
    want(&mut bench, &syncing, Want::Joining);
    bench.tick(WARDEN_TICK_MS);
    assert_eq!(all(&bench, Standing::Joining).len(), syncing.len());
    bench.join(join(1, 2));
    let map = bench.map();
    let groups = &map.spread(0).expect("the default one").groups;
    assert!(groups.iter().all(|group| group.lost == 0 && group.primary.is_some_and(|node| node.0.get() == 2)));
}

/// One after the other, each time when the last one has all: nothing is lost.
#[test]
fn all_nodes_can_be_started_anew_in_turn() {
    let mut bench = held();
    for life in 2..4 {
        for number in 1..=3 {
            bench.join(join(number, life));
            let syncing = all(&bench, Standing::Syncing);
            assert_eq!(syncing.len(), 24);
            want(&mut bench, &syncing, Want::Joining);
            bench.tick(WARDEN_TICK_MS);
            bench.tick(WARDEN_TICK_MS);
        }
    }
    let map = bench.map();
    assert!(
        map.short_groups(3).is_empty()
            && map.spread(0).expect("the default one").groups.iter().all(|group| group.lost == 0)
    );
    assert_eq!(map.collections[0].generation, 1);
}

/// Half a copy of what is lost is nothing: the collections are emptied where somebody has it.
#[test]
fn what_was_half_copied_when_its_last_holder_went_is_gone_everywhere() {
    let mut bench = held();
    for number in 1..=3 {
        bench.join(join(number, 2));
    }
    let map = bench.map();
    assert!(map.collections[0].generation > 1);
    assert!(map.spread(0).expect("the default one").groups.iter().all(|group| group.lost == map.epoch));
}

/// The warden hears these nodes, and of these nothing for longer than a lease lasts.
fn hear(bench: &mut Bench, beating: &[u32], silent: &[u32]) {
    let map = bench.map();
    let of = |numbers: &[u32]| {
        let nodes = map.nodes.iter().filter(|node| numbers.contains(&node.id.0.get()));
        nodes.map(|node| (node.id, node.incarnation)).collect()
    };
    bench.warden.beats(of(silent), of(beating));
    bench.links(beating);
    bench.tick(WARDEN_TICK_MS);
}

pub(super) fn state_of(bench: &Bench, number: u32) -> NodeState {
    let map = bench.map();
    map.nodes.iter().find(|node| node.id.0.get() == number).expect("it is a node").state
}

#[test]
fn who_is_silent_is_taken_out_and_gets_copies_when_it_is_heard_again() {
    let mut bench = held();
    hear(&mut bench, &[1, 3], &[2]);
    assert_eq!((led(&bench), state_of(&bench, 2)), ([12, 0, 12], NodeState::Down));
    assert_eq!(all(&bench, Standing::Backup).len(), 24, "each group has two copies still");
    let epoch = bench.map().epoch;
    hear(&mut bench, &[1, 3], &[2]);
    assert_eq!(bench.map().epoch, epoch, "once");
    hear(&mut bench, &[1, 2, 3], &[]);
    assert_eq!(state_of(&bench, 2), NodeState::Up);
    hear(&mut bench, &[1, 2, 3], &[]);
    assert_eq!(all(&bench, Standing::Syncing).len(), 24, "at once: there is nobody to wait for");
}

#[test]
fn silence_leaves_no_group_with_fewer_copies_than_a_write_needs() {
    let mut bench = held();
    hear(&mut bench, &[1], &[2, 3]);
    assert_eq!((led(&bench), state_of(&bench, 2), state_of(&bench, 3)), ([16, 0, 8], NodeState::Down, NodeState::Down));
    let map = bench.map();
    let groups = &map.spread(0).expect("the default one").groups;
    assert!(groups.iter().all(|group| group.copies() == 2), "one of the silent ones is a member still");
}

#[test]
fn a_life_that_is_over_is_neither_silent_nor_heard() {
    let mut bench = held();
    let old = bench.map();
    let second = old.nodes[1].id;
    bench.join(join(2, 2));
    bench.warden.beats(vec![(second, 1)], Vec::new());
    bench.tick(WARDEN_TICK_MS);
    assert_eq!(state_of(&bench, 2), NodeState::Up);
    hear(&mut bench, &[1, 3], &[2]);
    assert_eq!(state_of(&bench, 2), NodeState::Down);
    bench.warden.beats(Vec::new(), vec![(second, 1)]);
    bench.tick(WARDEN_TICK_MS);
    assert_eq!(state_of(&bench, 2), NodeState::Down, "its life before");
}

/// While a change is written nobody may say that a node may be granted something again.
#[test]
fn nodes_are_not_judged_while_a_change_is_written() {
    let mut bench = held();
    assert_eq!(bench.warden.judged().map(|nodes| nodes.len()), Some(3));
    bench.faults.push(crate::control::ControlError::Unknown("the answer was lost".into()));
    bench.send(Ask::Flush { name: "default".into() });
    assert_eq!(bench.warden.judged(), None);
    bench.settle();
    assert!(bench.warden.judged().is_some());
}

/// The nodes of these numbers keep so many groups.
fn keep(bench: &Bench) -> Vec<usize> {
    let map = bench.map();
    map.nodes.iter().map(|node| map.groups_of(node.id).count()).collect()
}

/// Primaries bring members up to date, nodes have each map, and time goes by, until nothing changes.
fn move_all(bench: &mut Bench) {
    for _ in 0..400 {
        let epoch = bench.map().epoch;
        let syncing = all(bench, Standing::Syncing);
        want(bench, &syncing, Want::Joining);
        bench.tick(WARDEN_TICK_MS);
        bench.all_have();
        let comes = [Standing::Syncing, Standing::Joining].iter().any(|standing| !all(bench, *standing).is_empty());
        if epoch == bench.map().epoch && !comes {
            return;
        }
    }
    panic!("it comes to no end");
}

#[test]
fn who_comes_late_gets_its_share_when_all_is_calm_and_who_drains_gives_all_away() {
    let two = Config { birth: Some(Birth { copies: Some(2), ..birth() }), ..config("a") };
    let mut bench = Bench::new(two);
    bench.join_all(1..=3);
    bench.all_have();
    bench.ask(Ask::Hold).expect("all have the map");
    bench.tick(WARDEN_HEARS_MS);
    bench.join(join(4, 1));
    bench.all_have();
    bench.tick(WARDEN_TICK_MS);
    assert_eq!(keep(&bench), [16, 16, 16, 0], "not at once");
    calm(&mut bench);
    assert_eq!(all(&bench, Standing::Syncing).len(), 2, "two at a time");
    move_all(&mut bench);
    assert_eq!(keep(&bench), [12, 12, 12, 12]);
    let drain = |stays| Ask::Drain { name: bench_name(2), stays };
    assert_eq!(bench.ask(drain(false)), Ok(Answer::Drains));
    assert_eq!(bench.ask(drain(false)), Ok(Answer::Drains), "asked again it is so already");
    bench.tick(WARDEN_TICK_MS);
    assert!(!all(&bench, Standing::Syncing).is_empty());
    assert_eq!(bench.ask(drain(true)), Ok(Answer::Drains));
    assert_eq!((keep(&bench), all(&bench, Standing::Syncing)), (vec![12; 4], vec![]), "it is called off");
    bench.ask(drain(false)).expect("it drains again");
    move_all(&mut bench);
    assert_eq!(keep(&bench)[1], 0);
    // It has started anew, and drains still.
    bench.join(join(2, 2));
    move_all(&mut bench);
    calm(&mut bench);
    assert_eq!(keep(&bench)[1], 0);
    let second = bench.map().nodes[1].clone();
    assert_eq!(second.state, NodeState::Draining);
    // It is in no map once it has been silent for long.
    let silent = |bench: &mut Bench| {
        let _ = bench.warden.judged();
        bench.warden.beats(vec![(second.id, second.incarnation)], Vec::new());
        bench.tick(WARDEN_TICK_MS);
        bench.map().nodes.len()
    };
    // While it stays in office.
    let passes = |bench: &mut Bench, ms| (0..ms / OFFICE_RENEW_MS).for_each(|_| bench.tick(OFFICE_RENEW_MS));
    assert_eq!(silent(&mut bench), 4, "it may be but paused");
    passes(&mut bench, FORGET_AFTER_MS / 2);
    bench.warden.beats(Vec::new(), vec![(second.id, second.incarnation)]);
    passes(&mut bench, FORGET_AFTER_MS / 2);
    assert_eq!(silent(&mut bench), 4, "it was heard in between");
    passes(&mut bench, FORGET_AFTER_MS);
    assert_eq!(silent(&mut bench), 3);
    bench.ask(drain(false)).expect_err("there is no such node");
    bench.ask(Ask::Drain { name: bench_name(1), stays: false }).expect("two others stay");
    move_all(&mut bench);
    let refused = bench.ask(Ask::Drain { name: bench_name(3), stays: false });
    assert!(matches!(refused, Err(Refusal::NoRoomFor { copies: 2, nodes: 1, .. })), "{refused:?}");
}

/// Who waits for it hears so; the drain goes on when a node comes.
#[test]
fn a_drain_that_has_nowhere_to_go_any_more_is_refused_when_it_is_asked_for_again() {
    let mut bench = Bench::new(config("a"));
    bench.join_all(1..=4);
    bench.ask(Ask::Hold).expect("it may hold objects");
    let drain = Ask::Drain { name: bench_name(4), stays: false };
    assert_eq!(bench.ask(drain.clone()), Ok(Answer::Drains));
    let life = Life { node: bench.map().nodes[2].id, incarnation: 1 };
    bench.ask(Ask::Obituary(life)).expect("noted");
    let refused = bench.ask(drain.clone());
    assert!(matches!(refused, Err(Refusal::NoRoomFor { copies: 3, nodes: 2, .. })), "{refused:?}");
    assert_eq!(bench.map().nodes[3].state, NodeState::Draining);
    bench.join(join(3, 2));
    assert_eq!(bench.ask(drain), Ok(Answer::Drains));
}

fn bench_name(number: u32) -> String {
    join(number as u8, 1).name
}

/// So many nodes whose herd, which was begun so, holds objects.
fn held_by(config: Config, nodes: u8) -> Bench {
    let mut bench = Bench::new(config);
    bench.join_all(1..=nodes);
    bench.all_have();
    bench.ask(Ask::Hold).expect("all have the map");
    bench.tick(WARDEN_HEARS_MS);
    bench
}

/// As a herd that keeps so many copies.
fn keeping(copies: u8) -> Config {
    Config { birth: Some(Birth { copies: Some(copies), ..birth() }), ..config("a") }
}

/// Time goes by while these nodes live and those are silent: primaries that live bring members up to date that do.
fn live_on(bench: &mut Bench, beating: &[u32], silent: &[u32], ms: u64) {
    let lives = |node: NodeId| beating.contains(&node.0.get());
    for _ in 0..ms / WARDEN_TICK_MS {
        let map = bench.map();
        let mut syncing = all(bench, Standing::Syncing);
        syncing.retain(|(id, _, node)| lives(*node) && map.group(*id).is_some_and(|it| it.primary.is_some_and(lives)));
        want(bench, &syncing, Want::Joining);
        hear(bench, beating, silent);
        let map = bench.map();
        let there = map.nodes.iter().filter(|node| lives(node.id));
        there.for_each(|node| bench.have(node.id, node.incarnation, map.epoch, map.revision));
    }
}

fn groups(bench: &Bench) -> Vec<Group> {
    bench.map().spread(0).expect("the default one").groups.clone()
}

fn has(group: &Group, number: u32) -> bool {
    group.members().any(|node| node.0.get() == number)
}

#[test]
fn who_was_kept_though_silent_goes_once_others_have_enough_and_leads_nothing_meanwhile() {
    // Two of three go at once: one is taken out, the other is kept, as a write needs two.
    let mut bench = held();
    hear(&mut bench, &[1], &[2, 3]);
    let before = led(&bench);
    live_on(&mut bench, &[1], &[2, 3], 10_000);
    assert_eq!(led(&bench), before, "nobody is given the lead who is silent");
    bench.join(join(2, 2));
    live_on(&mut bench, &[1, 2], &[3], 60_000);
    let led_here = |group: &&Group| group.primary.is_some_and(|node| node.0.get() < 3);
    let groups_led: Vec<Group> = groups(&bench).iter().filter(led_here).cloned().collect();
    assert!(groups_led.len() > 12 && groups_led.iter().all(|it| it.copies() == 2 && !has(it, 3)), "{groups_led:?}");
    // Of five two go: all groups are whole again, at the three.
    let mut bench = held_by(config("a"), 5);
    live_on(&mut bench, &[1, 4, 5], &[2, 3], 60_000);
    for group in groups(&bench) {
        let is_lost = group.primary.is_some_and(|node| [2, 3].contains(&node.0.get()));
        let lives = |node: NodeId| [1, 4, 5].contains(&node.0.get());
        assert!(is_lost || group.copies() == 3 && group.members().all(lives), "{group:?}");
    }
}

#[test]
fn who_dies_before_its_copies_are_whole_keeps_no_place() {
    let mut bench = held_by(config("a"), 5);
    bench.join(join(2, 2));
    bench.join(join(3, 2));
    live_on(&mut bench, &[1, 4, 5], &[2, 3], 60_000);
    let whole = |group: &Group| group.copies() == 3 && !has(group, 2) && !has(group, 3);
    assert!(groups(&bench).iter().all(whole), "{:?}", groups(&bench));
}

#[test]
fn a_flush_waits_for_who_is_silent_and_leads_still() {
    let mut bench = held_by(keeping(1), 2);
    hear(&mut bench, &[1], &[2]);
    let flush = bench.send(Ask::Flush { name: "default".into() });
    let map = bench.map();
    let first = map.nodes[0].clone();
    bench.have(first.id, first.incarnation, map.epoch, map.revision);
    assert_eq!(bench.answer(flush), None, "the other may serve what it has");
}

#[test]
fn the_first_object_waits_for_who_drains() {
    let mut bench = Bench::new(keeping(1));
    bench.join_all(1..=2);
    bench.all_have();
    bench.ask(Ask::Drain { name: bench_name(2), stays: false }).expect("drains");
    let hold = bench.send(Ask::Hold);
    let map = bench.map();
    let tell = |bench: &mut Bench, at: usize| {
        let node = map.nodes[at].clone();
        bench.have(node.id, node.incarnation, map.epoch, map.revision);
    };
    tell(&mut bench, 0);
    assert_eq!(bench.answer(hold), None, "the second goes by the plan of before");
    tell(&mut bench, 1);
    assert!(bench.answer(hold).is_some_and(|answer| answer.is_ok()));
}

#[test]
fn who_drains_and_is_started_anew_before_the_first_object_gets_nothing() {
    let evicts = Config { birth: Some(Birth { evict: true, ..birth() }), ..config("a") };
    let mut bench = Bench::new(evicts);
    bench.join_all(1..=2);
    bench.all_have();
    bench.ask(Ask::Drain { name: bench_name(2), stays: false }).expect("drains");
    bench.join(join(2, 2));
    assert_eq!((keep(&bench)[1], state_of(&bench, 2)), (0, NodeState::Draining));
}

#[test]
fn who_drains_hands_the_lead_to_nobody_who_is_silent() {
    let mut bench = held_by(keeping(2), 4);
    bench.links(&[1, 2, 3, 4]);
    let before = groups(&bench);
    let ask = Ask::Drain { name: bench_name(1), stays: false };
    bench.ask(ask).expect("drains");
    for _ in 0..100 {
        live_on(&mut bench, &[1, 3, 4], &[], WARDEN_TICK_MS);
        for (old, new) in before.iter().zip(groups(&bench)) {
            let second = new.primary.filter(|node| node.0.get() == 2);
            assert!(second.is_none() || old.primary == second, "{old:?} {new:?}");
        }
    }
    assert_eq!(led(&bench)[0], 0, "what it led others lead");
}

fn moved(group: u16, to: Option<u32>, from: Option<u32>) -> Ask {
    let name = |number: u32| format!("node-{number}");
    Ask::MoveGroup(MoveGroup { spread: 0, group, to: to.map(name), from: from.map(name) })
}

#[test]
fn a_group_is_put_on_a_node_and_let_go_again() {
    let mut bench = Bench::new(Config { birth: Some(Birth { copies: Some(2), ..birth() }), ..config("a") });
    bench.join_all(1..=3);
    bench.all_have();
    let not = |said: Result<Answer, Refusal>, words: &str| {
        let text = said.expect_err("refused").to_string();
        assert!(text.contains(words), "{text}");
    };
    not(bench.ask(moved(0, Some(1), None)), "no object yet");
    bench.ask(Ask::Hold).expect("all have the map");
    bench.links(&[1, 2, 3]);
    let members = |bench: &Bench| bench.map().spreads[0].groups[0].members().map(|id| id.0.get()).collect::<Vec<_>>();
    let before = members(&bench);
    let outside = (1..=3).find(|number| !before.contains(number)).expect("two of three have it");
    not(bench.ask(moved(999, Some(1), None)), "no group 0/999");
    not(bench.ask(moved(0, Some(9), None)), "no node 'node-9'");
    not(bench.ask(moved(0, Some(before[0]), Some(outside))), "has no copy of group 0/0");
    not(bench.ask(moved(0, Some(before[0]), Some(before[1]))), "has a copy of group 0/0 already");
    assert_eq!(bench.ask(moved(0, Some(outside), Some(before[0]))), Ok(Answer::Placed));
    assert_eq!(bench.map().placed.len(), 1);
    bench.tick(WARDEN_TICK_MS);
    assert_eq!(members(&bench), [&before[..], &[outside]].concat(), "a copy is on its way");
    // Asked again nothing changes; called off it is as it was.
    let epoch = bench.map().epoch;
    assert_eq!(bench.ask(moved(0, Some(outside), Some(before[0]))), Ok(Answer::Placed));
    assert_eq!(bench.map().epoch, epoch);
    assert_eq!(bench.ask(moved(0, None, None)), Ok(Answer::Placed));
    assert_eq!((members(&bench), bench.map().placed.len()), (before.clone(), 0));
    // Who drains gets nothing, and what was put there is forgotten with it.
    assert_eq!(bench.ask(moved(0, Some(outside), None)), Ok(Answer::Placed));
    let name = format!("node-{outside}");
    bench.ask(Ask::Drain { name, stays: false }).expect("two stay");
    assert!(bench.map().placed.is_empty());
    not(bench.ask(moved(0, Some(outside), None)), "drains, or is not there");
    bench.ask(Ask::Create(create("cache", "cache"))).expect("it is made");
    let cache = Ask::MoveGroup(MoveGroup { spread: 1, group: 0, to: Some("node-1".into()), from: None });
    not(bench.ask(cache), "of class cache");
}

/// One step that makes no map keeps no other from being taken.
#[test]
fn what_makes_no_map_is_left_out_and_the_rest_is_done() {
    let bench = held();
    let kept = bench.warden.kept.as_ref().expect("it is in office");
    let id = |number: u32| NodeId(std::num::NonZeroU32::new(number).expect("from 1"));
    let there: Vec<_> = kept.state.map.nodes.clone();
    let known = Known { there: &there, has: &|_, _| true, may: &|_, _| true };
    // A node that leads groups can't be forgotten.
    let todo = || Todo { left: vec![id(1)], silent: vec![id(3)], ..Todo::default() };
    let tended = kept.state.tended(&bench.warden.rules(), &todo(), &known, 0);
    assert!(tended.why.as_ref().is_some_and(|why| why.contains("unknown node in group")), "{:?}", tended.why);
    let map = tended.map.expect("the rest is done");
    assert!(map.node(id(1)).is_some());
    assert_eq!(map.node(id(3)).map(|node| node.state), Some(NodeState::Down));
    let again = kept.state.tended(&bench.warden.rules(), &todo(), &known, tended.failing);
    assert_eq!((again.map.map(|again| again == map), again.why), (Some(true), None), "it is left out for now");
}

#[test]
fn that_the_map_can_t_be_changed_is_told_once_and_the_warden_serves_on() {
    let mut bench = held();
    let epoch = bench.map().epoch;
    // No epoch is left.
    let of_last = |bench: &mut Bench, epoch: u32| {
        let kept = bench.warden.kept.as_mut().expect("it is in office");
        let draft = Draft { epoch, ..Draft::clone(&kept.state.map) };
        kept.state.map = Arc::new(Map::new(draft).expect("valid"));
    };
    let syncing = |bench: &mut Bench| {
        bench.join(join(2, 2));
        all(bench, Standing::Syncing)
    };
    let syncing = syncing(&mut bench);
    assert!(epoch < bench.map().epoch && bench.told.is_empty());
    of_last(&mut bench, MAP_EPOCHS_END - 1);
    for _ in 0..30 {
        want(&mut bench, &syncing[..1], Want::Joining);
        bench.tick(TEND_AGAIN_MS / 2);
    }
    assert_eq!(bench.told.len(), 1, "{:?}", bench.told);
    assert!(
        bench.told[0].contains("what primaries want") && bench.told[0].contains("no such epoch"),
        "{}",
        bench.told[0]
    );
    assert!(bench.ask(Ask::Flush { name: "default".into() }).is_ok());
}
