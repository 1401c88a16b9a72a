//! The checker: drives whole groups of [`Part`]s through every order of events of small cases, and through random
//! orders of larger ones, and holds each state against what a group promises.

mod bounds;
mod shared;
mod store;
mod walk;
mod world;

use super::Standing::{Backup, Syncing};
use super::bugs::{self, Bug};
use super::{Copies, Offer, Pending, Verdict, View, copies};
use crate::place::Group;
use std::collections::HashMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use store::{Store, Val, key_of};
use world::{Action, Kind, Op, Turn, World, node, view};

/// A state on the way down, and what has not been tried from it.
struct Frame {
    world: World,
    hash: u64,
    left: Vec<Action>,
    tried: Option<Action>,
}

/// Goes through all orders of events from `world` on. The number of states, or what is wrong and how it came to it.
fn explore(world: World) -> Result<usize, String> {
    // Whether a state is on the way down to where we are: then the way is a circle.
    let mut seen: HashMap<u64, bool> = HashMap::new();
    let mut way: Vec<Frame> = Vec::new();
    enter(world, &mut seen, &mut way)?;
    while let Some(frame) = way.last_mut() {
        let Some(action) = frame.left.pop() else {
            seen.insert(frame.hash, false);
            way.pop();
            continue;
        };
        let mut world = frame.world.clone();
        world.act(&action);
        frame.tried = Some(action);
        if let Some(fault) = world.fault {
            return Err(told(&way, &fault));
        }
        enter(world, &mut seen, &mut way)?;
    }
    Ok(seen.len())
}

fn enter(mut world: World, seen: &mut HashMap<u64, bool>, way: &mut Vec<Frame>) -> Result<(), String> {
    let mut hasher = DefaultHasher::new();
    world.hash(&mut hasher);
    let hash = hasher.finish();
    match seen.get(&hash) {
        Some(true) => return Err(told(way, "runs in a circle")),
        Some(false) => return Ok(()),
        None => seen.insert(hash, true),
    };
    let left = world.actions(true);
    if world.actions(false).is_empty() {
        world.check_quiet();
        if let Some(fault) = &world.fault {
            return Err(told(way, fault));
        }
    }
    way.push(Frame { world, hash, left, tried: None });
    Ok(())
}

fn told(way: &[Frame], fault: &str) -> String {
    let steps: Vec<String> = way.iter().filter_map(|frame| frame.tried.as_ref()).map(|a| format!("{a:?}")).collect();
    format!("{fault}\nafter:\n  {}", steps.join("\n  "))
}

fn op(id: u8, key: u8, kind: Kind) -> Op {
    Op { id, key, kind }
}

/// A group of nodes 1, 2 and 3, node 1 its primary, k = 2, and what may befall it.
#[derive(Clone, Default)]
struct Case {
    name: &'static str,
    /// Asked of node 1 at once.
    first: Vec<Op>,
    /// Asked of node 2, should it become the primary.
    then: Vec<Op>,
    /// Asked of the primary one by one, at any time.
    later: Vec<Op>,
    turn: Option<Turn>,
    breaks: u8,
    flushes: u8,
    /// This node refuses its so manieth prepare, or copy.
    refuses: Option<(u32, u8)>,
    /// Node 3 is syncing at first, and joins.
    joins: bool,
}

impl Case {
    fn world(&self) -> World {
        let standing = if self.joins { Syncing } else { Backup };
        let mut world = World::new(3, view(1, 1, 1, &[(2, Backup, 1), (3, standing, 1)], 2));
        world.asks.insert(node(1), self.first.clone());
        world.asks.insert(node(2), self.then.clone());
        world.turns.extend(self.turn.clone());
        world.later.extend(self.later.clone());
        (world.breaks, world.flushes, world.grants) = (self.breaks, self.flushes, self.joins);
        if let Some((id, at)) = self.refuses {
            world.refuse(node(id), at);
        }
        world
    }
}

fn dies() -> Option<Turn> {
    Some(Turn { kill: Some(node(1)), comes_back: false, view: view(2, 2, 2, &[(3, Backup, 1)], 2) })
}

fn deposed() -> Option<Turn> {
    Some(Turn { kill: None, comes_back: false, view: view(2, 2, 2, &[(1, Backup, 2), (3, Backup, 1)], 2) })
}

/// And the third gets a copy from the one that leads now.
fn deposed_while_joining() -> Option<Turn> {
    Some(Turn { kill: None, comes_back: false, view: view(2, 2, 2, &[(1, Backup, 2), (3, Syncing, 2)], 2) })
}

fn removed() -> Option<Turn> {
    Some(Turn { kill: None, comes_back: false, view: view(2, 1, 1, &[(2, Backup, 1)], 2) })
}

/// Node 3 loses its memory and comes back, before its primary knows.
fn starts_anew() -> Option<Turn> {
    Some(Turn { kill: Some(node(3)), comes_back: true, view: view(2, 1, 1, &[(2, Backup, 1), (3, Syncing, 2)], 2) })
}

/// Node 3 is syncing and nobody else is left.
fn alone() -> Option<Turn> {
    Some(Turn { kill: Some(node(2)), comes_back: false, view: view(2, 1, 1, &[(3, Syncing, 2)], 2) })
}

/// Small cases, the quick ones first.
fn cases() -> Vec<Case> {
    use Kind::{Put, Range, Remove};
    let none = Case::default;
    let three = vec![op(1, 1, Put), op(2, 1, Range(1)), op(3, 2, Put)];
    let two = vec![op(1, 1, Put), op(2, 1, Range(1))];
    let (one, after) = (vec![op(1, 1, Put)], vec![op(4, 1, Remove)]);
    let line = vec![op(1, 1, Put), op(2, 1, Remove), op(3, 2, Put)];
    vec![
        Case { name: "quiet", first: three.clone(), ..none() },
        Case { name: "refusal", first: three.clone(), refuses: Some((3, 2)), ..none() },
        Case { name: "three in a row", later: three.clone(), ..none() },
        Case { name: "three in a row, refusal", later: three.clone(), refuses: Some((3, 2)), ..none() },
        Case { name: "three in a row, death", later: three.clone(), turn: dies(), ..none() },
        Case { name: "removal", first: two.clone(), turn: removed(), ..none() },
        Case { name: "death", first: two.clone(), then: after.clone(), turn: dies(), ..none() },
        Case { name: "death and refusal", first: two.clone(), turn: dies(), refuses: Some((3, 2)), ..none() },
        Case { name: "break", first: two.clone(), breaks: 1, ..none() },
        Case { name: "break and refusal", first: one.clone(), breaks: 1, refuses: Some((3, 1)), ..none() },
        Case { name: "deposed", first: one.clone(), then: after.clone(), turn: deposed(), ..none() },
        Case { name: "deposed and refusal", first: one.clone(), turn: deposed(), refuses: Some((3, 1)), ..none() },
        Case { name: "removal, death", first: one.clone(), later: vec![op(2, 1, Remove)], turn: dies(), ..none() },
        Case {
            name: "removal, death and refusal",
            first: one.clone(),
            later: vec![op(2, 1, Remove)],
            turn: dies(),
            refuses: Some((3, 3)),
            ..none()
        },
        Case { name: "another life", first: one.clone(), later: vec![op(2, 1, Put)], turn: starts_anew(), ..none() },
        Case { name: "flush", first: one.clone(), later: vec![op(2, 1, Range(1))], flushes: 1, ..none() },
        Case { name: "flush and refusal", first: two.clone(), flushes: 1, refuses: Some((3, 2)), ..none() },
        Case { name: "flush and death", first: one.clone(), turn: dies(), flushes: 1, ..none() },
        Case { name: "flush and break", first: one.clone(), breaks: 1, flushes: 1, ..none() },
        Case { name: "flush while joining", first: one.clone(), flushes: 1, joins: true, ..none() },
        Case { name: "below k", first: one.clone(), later: vec![op(2, 1, Put)], turn: alone(), joins: true, ..none() },
        Case { name: "join", first: line.clone(), joins: true, ..none() },
        Case { name: "put while joining", first: one.clone(), later: vec![op(2, 1, Put)], joins: true, ..none() },
        Case {
            name: "removal while joining",
            first: one.clone(),
            later: vec![op(2, 1, Remove)],
            joins: true,
            ..none()
        },
        Case {
            name: "put while joining, another view",
            first: one.clone(),
            later: vec![op(2, 1, Put)],
            turn: Some(Turn {
                kill: None,
                comes_back: false,
                view: view(2, 1, 1, &[(2, Backup, 1), (3, Syncing, 1)], 2),
            }),
            joins: true,
            ..none()
        },
        Case { name: "join and break", first: one.clone(), joins: true, breaks: 1, ..none() },
    ]
}

/// Larger ones, of some 20,000 to 30 million states.
fn long_cases() -> Vec<Case> {
    use Kind::{Put, Remove};
    let none = Case::default;
    let (one, next) = (vec![op(1, 1, Put)], vec![op(2, 1, Put)]);
    let both = vec![op(1, 1, Put), op(2, 1, Remove)];
    vec![
        Case {
            name: "deposed while joining, break and removal",
            first: one.clone(),
            then: vec![op(4, 1, Remove)],
            turn: deposed_while_joining(),
            joins: true,
            breaks: 1,
            ..none()
        },
        Case {
            name: "deposed while joining, break, removal and put",
            first: one.clone(),
            then: vec![op(4, 1, Remove)],
            later: vec![op(5, 1, Put)],
            turn: deposed_while_joining(),
            joins: true,
            breaks: 1,
            ..none()
        },
        Case {
            name: "removal, put and removal while joining, break",
            first: one.clone(),
            later: vec![op(2, 1, Remove), op(3, 1, Put), op(4, 1, Remove)],
            joins: true,
            breaks: 1,
            ..none()
        },
        Case {
            name: "deposed while joining, flush and removal",
            first: one.clone(),
            then: vec![op(4, 1, Remove)],
            turn: deposed_while_joining(),
            joins: true,
            flushes: 1,
            ..none()
        },
        Case { name: "put while joining and break", first: one, later: next.clone(), joins: true, breaks: 1, ..none() },
        Case { name: "death and break", later: both, then: vec![op(4, 1, Put)], turn: dies(), breaks: 1, ..none() },
    ]
}

fn hold(cases: Vec<Case>) {
    for case in cases {
        for at_once in [false, true] {
            let mut world = case.world();
            world.at_once = at_once;
            match explore(world) {
                Ok(states) => println!("{}, {at_once}: {states} states", case.name),
                Err(fault) => panic!("{}, {at_once}: {fault}", case.name),
            }
        }
    }
}

#[test]
fn every_order_of_events_keeps_what_was_acknowledged() {
    hold(cases());
}

#[test]
#[ignore = "takes ten minutes"]
fn every_order_of_more_events_keeps_what_was_acknowledged() {
    hold(long_cases());
}

/// Each bug, and a case that finds it.
const FOUND_BY: [(Bug, &str); 24] = [
    (Bug::ForgottenPending, "death"),
    (Bug::AckBelowK, "quiet"),
    (Bug::OldAck, "removal"),
    (Bug::DropCommitted, "three in a row, death"),
    (Bug::EarlyRefusal, "deposed and refusal"),
    (Bug::OldLink, "break and refusal"),
    (Bug::NewVersion, "death"),
    (Bug::HigherCommits, "three in a row, death"),
    (Bug::EarlyOpen, "death"),
    (Bug::LateNeed, "join and break"),
    (Bug::LostSettle, "break"),
    (Bug::BesideCopy, "removal while joining"),
    (Bug::BehindCopy, "put while joining"),
    (Bug::EarlyAdopted, "another life"),
    (Bug::RemovedTwice, "removal, death and refusal"),
    (Bug::FirstForAll, "three in a row, death"),
    (Bug::WholeOfNothing, "flush and death"),
    (Bug::ResolvedOver, "flush and break"),
    (Bug::NoGeneration, "flush"),
    (Bug::WaitingCursor, "below k"),
    (Bug::NamedAtCopy, "deposed while joining, break and removal"),
    (Bug::OlderWhole, "removal, put and removal while joining, break"),
    (Bug::RemovedAhead, "removal, death"),
    (Bug::MissedTarget, "put while joining, another view"),
];

#[test]
fn planted_bugs_are_found() {
    let is_missed = |(bug, name): &&(Bug, &str)| {
        let case =
            cases().into_iter().chain(long_cases()).find(|case| case.name == *name).expect("a case of that name");
        bugs::plant(Some(*bug));
        let found = explore(case.world());
        bugs::plant(None);
        found.is_ok()
    };
    let missed: Vec<_> = FOUND_BY.iter().filter(is_missed).collect();
    assert!(missed.is_empty(), "not found: {missed:?}");
}

/// What a walk must meet, or it tries nothing.
const RARE: [&str; 17] = [
    "read by who leads no more",
    "read confirmed",
    "read void",
    "begun at once",
    "flush beside a write",
    "asked again after a flush",
    "comes back without its memory",
    "write pending at who dies",
    "prepare refused",
    "copy refused",
    "take-over with pendings",
    "resolve commit",
    "resolve drop",
    "need whole",
    "link replaced with unread bytes",
    "abort",
    "joined",
];

#[test]
fn larger_groups_keep_what_was_acknowledged() {
    let seeds: u64 = std::env::var("HERD_REPLICA_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(200);
    for seed in 0..seeds {
        if let Err(fault) = walk::walk(seed, 600) {
            panic!("{fault}");
        }
    }
    let seen = walk::all_seen();
    println!("{seen:?}");
    for rare in RARE {
        assert!(seen.contains_key(rare), "{rare}: never happened; {seen:?}");
    }
}

/// Node 2 leads alone from some time on, and a member of before has not heard of it.
#[test]
fn a_read_is_confirmed_by_all_that_a_write_needs() {
    let found = |bug| {
        let mut world = World::new(3, view(1, 1, 1, &[(2, Backup, 1), (3, Backup, 1)], 1));
        world.asks.insert(node(2), vec![op(1, 1, Kind::Put)]);
        world.turns.push_back(Turn { kill: None, comes_back: false, view: view(2, 2, 2, &[], 1) });
        world.reads = 1;
        bugs::plant(bug);
        let found = explore(world);
        bugs::plant(None);
        found
    };
    found(None).expect("each order is right");
    let fault = found(Some(Bug::OneConfirms)).expect_err("one member is not enough");
    assert!(fault.contains("its members confirm it"), "{fault}");
}

#[test]
fn a_view_is_what_the_map_says_of_a_group_that_has_a_primary() {
    let others = view(1, 1, 1, &[(2, Backup, 3), (3, Syncing, 7)], 2).members;
    let mut group = Group {
        epoch: 7,
        primary_since: 5,
        primary: None,
        others,
        eligible: vec![node(1), node(2)],
        ..Group::default()
    };
    assert_eq!(View::of(&group, 2), None);
    group.primary = Some(node(1));
    assert_eq!(View::of(&group, 2), Some(view(7, 5, 1, &[(2, Backup, 3), (3, Syncing, 7)], 2)));
}

#[test]
fn a_removal_of_what_is_absent_is_kept_for_the_token_it_leaves() {
    let (mut store, key) = (Store::default(), key_of(1, 0));
    let left = Pending { version: 5, base: 0, removes: true };
    assert_eq!(copies::prepare(&mut store, &key, left, &Offer::Name, false), (Verdict::NeedWhole, false));
    assert_eq!(copies::prepare(&mut store, &key, left, &Offer::Change(Val::Gone), false), (Verdict::Prepared, true));
    assert_eq!(store.state(&key).pending, Some(left));
    let again = Pending { base: 4, ..left };
    let mut store = Store::default();
    assert_eq!(copies::prepare(&mut store, &key, again, &Offer::Name, false), (Verdict::Prepared, false));
    assert_eq!(store.state(&key).pending, None, "it was removed here before");
}

/// What the member has of it was made from what was there before.
#[test]
fn a_later_write_that_is_pending_outlives_what_was_committed_before() {
    let (mut store, key) = (Store::default(), key_of(1, 0));
    let put = Pending { version: 6, base: 0, removes: false };
    assert_eq!(
        copies::prepare(&mut store, &key, put, &Offer::Change(Val::Whole([6, 6])), true),
        (Verdict::Prepared, true)
    );
    let before = Pending { version: 5, base: 0, removes: true };
    assert_eq!(copies::prepare(&mut store, &key, before, &Offer::Whole(Val::Gone), true), (Verdict::Prepared, false));
    assert_eq!(store.state(&key).pending, Some(put));
}
