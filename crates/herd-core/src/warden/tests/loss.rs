//! What an operator gives up: groups that wait for nodes which will not come back, and nodes.

use super::tend::{held, led, state_of};
use super::*;
use crate::limits::{GIVEN_UP_MAX, WARDEN_HEARS_MS, WARDEN_TICK_MS};
use crate::place::{GroupId, Life, NodeState};
use crate::warden::GiveUp;
use std::collections::BTreeSet;

fn node(number: u32) -> NodeId {
    NodeId(std::num::NonZeroU32::new(number).expect("from 1"))
}

fn groups(accepts: bool) -> GiveUp {
    GiveUp { node: None, spread: None, group: None, accepts, who: "somebody".into(), unix_ms: 7 }
}

fn of(name: &str, accepts: bool) -> Ask {
    Ask::GiveUp(GiveUp { node: Some(name.into()), ..groups(accepts) })
}

fn dies(bench: &mut Bench, number: u32, incarnation: u64) {
    assert_eq!(bench.ask(Ask::Obituary(Life { node: node(number), incarnation })), Ok(Answer::Noted));
}

/// Three nodes that keep one copy, of which the second has died.
fn one_of_one_copy_died() -> (Bench, BTreeSet<GroupId>) {
    let mut bench = Bench::new(Config { birth: Some(Birth { copies: Some(1), ..birth() }), ..config("a") });
    bench.join_all(1..=3);
    bench.all_have();
    bench.ask(Ask::Hold).expect("all have the map");
    bench.links(&[1, 2, 3]);
    bench.tick(WARDEN_HEARS_MS);
    let its = bench.map().only_at(node(2));
    assert!(!its.is_empty());
    dies(&mut bench, 2, 1);
    bench.links(&[1, 3]);
    (bench, its)
}

fn lost(bench: &Bench) -> BTreeSet<GroupId> {
    let map = bench.map();
    let all = (0..).zip(&map.spread(0).expect("the default one").groups);
    all.filter(|(_, group)| group.lost > 0).map(|(number, _)| GroupId { spread: 0, number }).collect()
}

#[test]
fn groups_that_wait_are_given_up_when_it_is_said_that_they_may_be() {
    let (mut bench, its) = one_of_one_copy_died();
    let before = bench.map();
    assert_eq!(before.waiting(|_| false), its);
    assert_eq!(bench.ask(Ask::GiveUp(groups(false))), Err(Refusal::WouldLose(its.len())));
    let other = GiveUp { spread: Some(3), ..groups(true) };
    assert_eq!((bench.ask(Ask::GiveUp(other)), bench.map()), (Ok(Answer::GaveUp { groups: 0 }), before));
    // One of them, then the others.
    let first = *its.first().expect("some");
    let one = GiveUp { spread: Some(0), group: Some(first.number), ..groups(true) };
    assert_eq!(bench.ask(Ask::GiveUp(one)), Ok(Answer::GaveUp { groups: 1 }));
    assert_eq!(lost(&bench), BTreeSet::from([first]));
    assert_eq!(bench.ask(Ask::GiveUp(groups(true))), Ok(Answer::GaveUp { groups: its.len() - 1 }));
    let map = bench.map();
    assert!(lost(&bench) == its && map.spreads[0].groups.iter().all(|group| group.primary.is_some()));
    let told: Vec<_> = map.given_up.iter().map(|it| (it.groups as usize, it.who.as_str(), it.unix_ms)).collect();
    assert_eq!(told, [(1, "somebody", 7), (its.len() - 1, "somebody", 7)]);
    assert!(map.spreads[0].groups.iter().all(|it| it.lost == 0 || map.given_up.iter().any(|up| up.epoch == it.lost)));
    assert_eq!(map.collections[0].generation, 1, "what others have stays");
    // What comes back with the node is not of these.
    assert_eq!(bench.ask(Ask::GiveUp(groups(true))), Ok(Answer::GaveUp { groups: 0 }));
    bench.join(join(2, 2));
    assert_eq!(lost(&bench), its);
    // A later warden knows it.
    let mut bench = bench.restarted("a");
    bench.settle();
    assert_eq!(bench.map().given_up.len(), 2);
}

#[test]
fn a_dead_node_is_detached_and_its_name_is_free() {
    let mut bench = held();
    dies(&mut bench, 2, 1);
    assert_eq!(bench.ask(of("node-2", false)), Ok(Answer::GaveUp { groups: 0 }), "others have all that it had");
    assert!(bench.map().node(node(2)).is_none() && lost(&bench).is_empty() && bench.map().given_up.is_empty());
    assert_eq!(led(&bench), [12, 0, 12]);
    assert_eq!(bench.ask(of("node-2", false)), Err(Refusal::NoNode("node-2".into())));
    let again = bench.join(Join { identity: Identity([99; 16]), ..join(2, 3) });
    assert_eq!(again.node, node(4), "another node has its name");
    let (mut bench, its) = one_of_one_copy_died();
    assert_eq!(bench.ask(of("node-2", false)), Err(Refusal::WouldLose(its.len())));
    assert_eq!(bench.ask(of("node-2", true)), Ok(Answer::GaveUp { groups: its.len() }));
    let map = bench.map();
    assert!(lost(&bench) == its && map.node(node(2)).is_none() && map.given_up.len() == 1);
    assert!(map.spreads[0].groups.iter().all(|group| group.primary.is_some()));
}

#[test]
fn who_may_live_is_not_detached() {
    let mut bench = held();
    let lives = Err(Refusal::Lives("node-2".into()));
    assert_eq!(bench.ask(of("node-2", true)), lives);
    bench.warden.beats(vec![(node(2), 7)], Vec::new());
    assert_eq!(bench.ask(of("node-2", true)), lives, "another life of it is silent");
    bench.warden.beats(vec![(node(2), 1)], Vec::new());
    assert_eq!(bench.ask(of("node-2", true)), Ok(Answer::GaveUp { groups: 0 }));
    assert!(bench.map().node(node(2)).is_none());
    // What it has of class `cache` it answers for longer.
    bench.ask(Ask::Create(create("cache", "cache"))).expect("it is made");
    bench.warden.beats(vec![(node(3), 1)], Vec::new());
    bench.tick(WARDEN_TICK_MS);
    assert_eq!(state_of(&bench, 3), NodeState::Down);
    assert_eq!(bench.ask(of("node-3", true)), Err(Refusal::Lives("node-3".into())));
    bench.warden.cold(vec![(node(3), 1)]);
    assert_eq!(bench.ask(of("node-3", true)), Ok(Answer::GaveUp { groups: 0 }));
}

#[test]
fn the_latest_times_are_kept() {
    let mut map = Map::clone(&one_of_one_copy_died().0.map());
    for time in 0..2 * GIVEN_UP_MAX as u64 {
        let id = BTreeSet::from([GroupId { spread: 0, number: 0 }]);
        let next = map.next(|draft| draft.give_up(&id, "somebody", time)).expect("valid");
        let read = map.decode_since(&next.encode_since(&map)).expect("what was written");
        assert_eq!((read, Map::decode(&next.encode())), (next.clone(), Ok(next.clone())));
        map = next;
    }
    let times: Vec<u64> = map.given_up.iter().map(|it| it.unix_ms).collect();
    assert_eq!(times, (GIVEN_UP_MAX as u64..2 * GIVEN_UP_MAX as u64).collect::<Vec<_>>());
}
