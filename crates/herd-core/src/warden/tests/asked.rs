//! One warden, one request after the other.

use super::*;
use crate::control::Control;
use crate::error::ErrorKind;
use crate::key::CollectionId;
use crate::limits::{OFFICE_LEASE_MS, OFFICE_RENEW_MS, SLOTS, WARDEN_ASKS_MAX};
use crate::place::Life;
use crate::place::{GroupId, Grows, Kind, Standing};
use std::collections::BTreeSet;
use std::num::NonZeroU32;

fn spread(bench: &Bench) -> (u8, u8) {
    let map = bench.map();
    let spread = map.spread(0).expect("the default one");
    (spread.copies, spread.needed)
}

fn flushed(bench: &mut Bench, name: &str) -> u32 {
    match bench.ask(Ask::Flush { name: name.into() }) {
        Ok(Answer::Flushed { generation }) => generation,
        other => panic!("{other:?}"),
    }
}

fn created(bench: &mut Bench, create: Create) -> CollectionId {
    match bench.ask(Ask::Create(create)) {
        Ok(Answer::Created(id)) => id,
        other => panic!("{other:?}"),
    }
}

fn kind(refused: Result<Answer, Refusal>) -> ErrorKind {
    match refused {
        Err(Refusal::Collection(error)) => error.kind,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_herd_begins_and_its_copies_grow_with_its_first_nodes() {
    let mut bench = Bench::new(config("a"));
    let first = bench.map();
    assert_eq!((first.herd, first.epoch, first.revision, first.term), (HERD, 1, 1, 1));
    assert_eq!(
        first.collection("default").map(|it| (it.id, it.spec.class.as_str())),
        Some((CollectionId::DEFAULT, "ram:1"))
    );
    for (number, kept) in [(1, (1, 1)), (2, (2, 1)), (3, (3, 2)), (4, (3, 2))] {
        let joined = bench.join(join(number, 1));
        assert_eq!((joined.herd, joined.hash_key), (HERD, [7; 16]));
        assert_eq!((joined.node.0.get(), joined.incarnation), (number.into(), 1));
        let map = bench.map();
        assert_eq!((map.epoch, map.revision), (u32::from(number) + 1, 1), "one epoch a join");
        assert_eq!(spread(&bench), kept);
        let own = map.groups_of(joined.node).count();
        assert!(own > 0, "the herd is empty, so the node has its share");
        assert_eq!(bench.pushed.last(), Some(&(map, false)));
    }
}

#[test]
fn each_node_that_can_t_join_is_told_why() {
    let mut bench = Bench::new(config("a"));
    bench.join(Join { herd: Some(HERD), ..join(1, 1) });
    let before = (bench.map(), bench.store.revision());
    let other = HerdId(*b"another herd....");
    let at = |address: &str| Join { addresses: vec!["10.0.0.9:1".into(), address.into()], ..join(2, 1) };
    let alone = Join { addresses: vec!["127.0.0.1:7700".into(), "[::1]:7700".into()], ..join(2, 1) };
    let table: [(Join, &str); 10] = [
        (Join { herd: Some(other), ..join(2, 1) }, "this node belongs to herd 616e6f74, not to 61206865: join"),
        (Join { protocol: 1, ..join(2, 1) }, "this node speaks protocol 1 and the herd 2 or later: install"),
        (Join { name: "node-1".into(), ..join(2, 1) }, "another node has the name 'node-1': give this one another"),
        (Join { evict: true, ..join(2, 1) }, "the herd does not evict, and --evict says it does: leave"),
        (Join { addresses: vec![], ..join(2, 1) }, "the node tells no address: give it one with --advertise"),
        (at("10.0.0.1:7700"), "10.0.0.1:7700 is the address of node 'node-1': start that one from its --data, or take"),
        (alone, "127.0.0.1:7700 can't be reached from other machines: --listen on an address that they reach, or give"),
        (Join { name: String::new(), ..join(2, 1) }, "the map is not valid: node without name or host"),
        (Join { host: "a\u{1b}[2J".into(), ..join(2, 1) }, "the map is not valid: text of node too long or not"),
        (Join { addresses: vec!["a".into(); 9], ..join(2, 1) }, "the map is not valid: too many addresses"),
    ];
    for (join, told) in table {
        let refusal = bench.refused(join).to_string();
        assert!(refusal.starts_with(told), "{refusal}");
    }
    assert_eq!((bench.map(), bench.store.revision()), before, "nothing was written");
    assert_eq!(bench.join(join(2, 1)).node.0.get(), 2, "and no number used up");
}

#[test]
fn a_node_comes_back_at_its_address_and_a_herd_may_be_on_loopback() {
    let mut bench = Bench::new(config("a"));
    let at = |port: u16, join: Join| Join { addresses: vec![format!("127.0.0.1:{port}")], ..join };
    bench.join(at(1, join(1, 1)));
    bench.join(at(2, join(2, 1)));
    assert_eq!(bench.join(at(2, join(2, 2))).incarnation, 2);
    bench.join(join(3, 1));
    let refusal = bench.refused(at(1, join(2, 3)));
    assert_eq!(refusal, Refusal::AddressTaken { address: "127.0.0.1:1".into(), name: "node-1".into() });
    assert_eq!(bench.refused(at(2, join(2, 3))), Refusal::OnLoopback("127.0.0.1:2".into()));
}

#[test]
fn a_herd_without_a_place_is_one_node() {
    let mut bench = Bench::new(Config { lasts: false, ..config("a") });
    bench.join(join(1, 1));
    assert_eq!(bench.refused(join(2, 1)), Refusal::NoPlace);
    assert_eq!(bench.join(join(1, 2)).incarnation, 2);
    assert_eq!(bench.ask(Ask::Flush { name: "default".into() }), Ok(Answer::Flushed { generation: 2 }));
}

#[test]
fn a_herd_that_evicts_says_so_and_one_with_copies_keeps_them() {
    let evict = Config { birth: Some(Birth { evict: true, ..birth() }), ..config("a") };
    let mut bench = Bench::new(evict);
    bench.join(Join { evict: true, ..join(1, 1) });
    bench.join(join(2, 1));
    assert_eq!(bench.map().spread(0).map(|it| (it.kind, it.copies)), Some((Kind::Cache, 1)));
    let copies = Config { birth: Some(Birth { copies: Some(5), ..birth() }), ..config("a") };
    let mut bench = Bench::new(copies);
    bench.join_all(1..=4);
    assert_eq!(spread(&bench), (5, 2), "of the four copies that can be kept two are needed");
    assert_eq!(bench.map().shortfalls().len(), 1, "as long as there are but four nodes");
    assert_ne!(created(&mut bench, create("c", "ram:2")), CollectionId::DEFAULT);
    bench.join(join(5, 1));
    assert_eq!((spread(&bench), bench.map().shortfalls().len()), ((5, 3), 0));
    let never = Config { birth: Some(Birth { copies: Some(10), ..birth() }), ..config("a") };
    assert!(Bench::new(never).warden.map().is_none());
}

/// It may answer reads of what it has.
#[test]
fn a_second_process_of_a_node_is_not_let_in_while_the_first_one_may_answer() {
    let mut bench = Bench::new(config("a"));
    bench.join_all(1..=2);
    let node = NodeId(NonZeroU32::new(2).expect("from 1"));
    let runs = Refusal::Runs { name: "node-2".into(), address: "10.0.0.2:7700".into() };
    assert!(!runs.is_final());
    bench.warden.granted(vec![(node, 1)]);
    assert_eq!(bench.refused(join(2, 2)), runs);
    bench.warden.granted(Vec::new());
    assert_eq!(bench.join(join(2, 2)).incarnation, 2);
    bench.warden.granted(vec![(node, 2)]);
    let life = Life { node, incarnation: 2 };
    assert_eq!(bench.ask(Ask::Obituary(life)), Ok(Answer::Noted));
    assert_eq!(bench.join(join(2, 3)).incarnation, 3, "its process has ended");
}

/// A warden that goes by an old copy of the store would let in with a number that is known.
#[test]
fn no_two_processes_of_a_node_have_the_number_of_one_life() {
    let lives = [0x0123_4567_89ab_cdef_u128, 0x1123_4567_8fab_cdef].map(|process| {
        let mut bench = Bench::new(config("a"));
        bench.join(join(1, 1));
        bench.join(Join { process: process.to_le_bytes(), ..join(1, 1) }).incarnation
    });
    assert!(lives[0] != lives[1] && lives.iter().all(|life| *life > 1), "{lives:?}");
}

#[test]
fn a_node_that_asks_again_is_told_the_same_and_one_that_is_back_has_another_life() {
    let mut bench = Bench::new(config("a"));
    let first = bench.join(join(1, 1));
    bench.join(join(2, 1));
    let revision = bench.store.revision();
    assert_eq!(bench.join(join(1, 1)), first);
    assert_eq!(bench.store.revision(), revision, "nothing is written for it");
    let back = Join { name: "renamed".into(), host: "elsewhere".into(), ..join(1, 2) };
    assert_eq!(bench.join(back), Joined { incarnation: 2, ..first.clone() });
    let map = bench.map();
    let node = map.node(first.node).expect("it is there");
    assert_eq!((node.name.as_str(), node.host.as_str(), node.incarnation), ("renamed", "elsewhere", 2));
    assert_eq!(bench.join(join(3, 1)).node.0.get(), 3, "the name it had is free, numbers are not");
    let taken = Join { identity: Identity([9; 16]), name: "renamed".into(), ..join(4, 1) };
    assert_eq!(bench.refused(taken), Refusal::NameTaken("renamed".into()));
}

#[test]
fn nobody_holds_an_object_before_all_nodes_have_the_map() {
    let mut bench = Bench::new(config("a"));
    let early = bench.send(Ask::Hold);
    bench.join_all(1..=3);
    let hold = bench.send(Ask::Hold);
    let map = bench.map();
    for node in &map.nodes[..2] {
        bench.have(node.id, 1, map.epoch, map.revision);
        bench.have(map.nodes[2].id, 1, map.epoch - 1, map.revision);
        assert_eq!((bench.answer(early), bench.answer(hold)), (None, None));
    }
    assert_eq!(bench.warden.missing(), [map.nodes[2].id]);
    bench.have(map.nodes[2].id, 2, map.epoch, map.revision);
    assert_eq!(bench.answer(hold), None, "another life of the node is not this one");
    bench.all_have();
    assert_eq!((bench.answer(early), bench.answer(hold)), (Some(Ok(Answer::Held)), Some(Ok(Answer::Held))));
    assert_eq!(bench.pushed.last(), Some(&(map.clone(), true)));
    assert_eq!(bench.ask(Ask::Hold), Ok(Answer::Held), "from then on at once");
    let late = bench.join(join(4, 1));
    assert_eq!(bench.map().groups_of(late.node).count(), 0, "who comes now holds nothing yet");
    assert_eq!(bench.map().spread(0).map(|it| &it.slots), map.spread(0).map(|it| &it.slots));
    let bench = bench.restarted("b");
    assert_eq!(bench.pushed.last().map(|(_, held)| *held), Some(true), "it is not forgotten");
}

#[test]
fn a_join_sends_who_wants_to_hold_back_to_wait() {
    let mut bench = Bench::new(config("a"));
    bench.join(join(1, 1));
    let hold = bench.send(Ask::Hold);
    let seen = bench.map();
    bench.join(join(2, 1));
    bench.have(seen.nodes[0].id, 1, seen.epoch, seen.revision);
    assert_eq!(bench.answer(hold), None, "that map is no longer the plan");
    bench.all_have();
    assert_eq!(bench.answer(hold), Some(Ok(Answer::Held)));
}

#[test]
fn who_lost_its_memory_is_brought_up_to_date_by_who_has_not_until_all_have() {
    let mut bench = Bench::new(config("a"));
    bench.join_all(1..=3);
    bench.all_have();
    bench.ask(Ask::Hold).expect("all have the map");
    let before = bench.map();
    let back = bench.join(join(1, 2));
    let map = bench.map();
    assert_eq!(map.groups_of(back.node).count(), before.groups_of(back.node).count());
    for (number, group) in map.spread(0).expect("the default one").groups.iter().enumerate() {
        let old = before.group(GroupId { spread: 0, number: number as u16 }).expect("it was there");
        assert!(!group.eligible.contains(&back.node));
        let led = old.primary == Some(back.node);
        assert!(group.primary.is_some_and(|primary| led || old.primary == Some(primary)), "who leads goes on");
        assert!(group.primary.is_some_and(|primary| old.eligible.contains(&primary)), "who leads has all");
        assert_eq!(group.members().collect::<BTreeSet<_>>(), old.members().collect());
        let of_back = group.others.iter().find(|member| member.node == back.node).map(|it| (it.standing, it.since));
        assert_eq!(of_back, Some((Standing::Syncing, map.epoch)), "what it had is gone");
        assert_eq!((group.epoch, group.copies()), (map.epoch, 2), "those that are left have a view without it");
    }
    bench.join(join(2, 2));
    assert_eq!(bench.pushed.last().map(|(_, held)| *held), Some(true));
    assert_eq!(losses(&bench), BTreeSet::from([0]), "the third node has it all");
    let all = bench.join(join(3, 2));
    assert_eq!(bench.pushed.last().map(|(_, held)| *held), Some(false), "the loss is a fact: it holds nothing");
    let map = bench.map();
    assert!(map.groups_of(all.node).count() > 0);
    assert!((0..SLOTS).all(|slot| map.spread(0).expect("the default one").group_of(slot).copies() == 3));
    assert!((0..SLOTS).all(|slot| map.spread(0).expect("the default one").since(slot) == map.epoch), "versions rise");
    assert_eq!(losses(&bench), BTreeSet::from([map.epoch]), "it is told for ever");
    bench.join(join(4, 1));
    assert_eq!(losses(&bench), BTreeSet::from([map.epoch]), "however it is planned anew");
}

#[test]
fn what_all_lost_is_kept_anew_where_others_hold_theirs() {
    let mut bench = Bench::new(config("a"));
    bench.join_all(1..=3);
    let alone = created(&mut bench, create("alone", "ram:1")).spread_group();
    bench.all_have();
    bench.ask(Ask::Hold).expect("all have the map");
    for number in 1..=3 {
        bench.join(join(number, 2));
    }
    assert_eq!(bench.pushed.last().map(|(_, held)| *held), Some(true), "who is back alone may hold anew");
    let map = bench.map();
    let (default, alone) = (map.spread(0).expect("the default one"), map.spread(alone).expect("it was made"));
    let led: BTreeSet<NodeId> = default.groups.iter().filter_map(|group| group.primary).collect();
    assert_eq!(led.len(), 3, "as at the beginning");
    assert!((0..SLOTS).all(|slot| default.group_of(slot).copies() == 3 && default.group_of(slot).lost == map.epoch));
    assert!((0..SLOTS).all(|slot| default.since(slot) == map.epoch), "versions rise");
    assert!((0..SLOTS).all(|slot| alone.group_of(slot).copies() == 1 && alone.group_of(slot).lost > 0));
}

#[test]
fn a_group_that_lost_all_is_kept_anew_by_who_is_there() {
    let mut bench = Bench::new(Config { birth: Some(Birth { copies: Some(2), ..birth() }), ..config("a") });
    bench.join_all(1..=5);
    bench.all_have();
    bench.ask(Ask::Hold).expect("all have the map");
    let before = bench.map();
    let back: BTreeSet<NodeId> = [1, 2].map(|number| bench.join(join(number, 2)).node).into();
    let map = bench.map();
    for slot in 0..SLOTS {
        let was = before.spread(0).expect("the default one").group_of(slot);
        let is = map.spread(0).expect("the default one").group_of(slot);
        let lost = was.members().all(|node| back.contains(&node));
        assert_eq!(is.lost, if lost { map.epoch } else { 0 });
        let gone = was.members().filter(|node| back.contains(node)).count();
        assert_eq!((is.members().count(), is.copies()), (2, if lost { 2 } else { 2 - gone }), "slot {slot}");
        assert!(!lost || is.copies() == 2 && is.primary_since == map.epoch);
    }
    assert!(map.spread(0).expect("the default one").groups.iter().any(|group| group.lost > 0), "some did");
}

/// When groups of the default spread group lost what they held.
fn losses(bench: &Bench) -> BTreeSet<u32> {
    bench.map().spread(0).expect("the default one").groups.iter().map(|group| group.lost).collect()
}

#[test]
fn what_a_cache_held_may_go_and_is_no_loss() {
    let mut bench = Bench::new(Config { birth: Some(Birth { evict: true, ..birth() }), ..config("a") });
    bench.join_all(1..=2);
    bench.all_have();
    bench.ask(Ask::Hold).expect("all have the map");
    bench.join(join(1, 2));
    bench.join(join(2, 2));
    assert_eq!(losses(&bench), BTreeSet::from([0]));
}

#[test]
fn collections_are_made_once_found_emptied_and_removed() {
    let mut bench = Bench::new(config("a"));
    assert_eq!(kind(bench.ask(Ask::Create(create("early", "ram:1")))), ErrorKind::BadRequest, "no node yet");
    bench.join(join(1, 1));
    let epoch = bench.map().epoch;
    let id = created(&mut bench, create("c", "ram:1"));
    assert_eq!((bench.map().epoch, bench.map().revision), (epoch + 1, 2), "with a spread group of one copy");
    assert_eq!(
        bench.map().spread(id.spread_group()).map(|it| (it.kind, it.copies, it.grows)),
        Some((Kind::Kept, 1, Grows::No))
    );
    assert_eq!(created(&mut bench, create("c", "ram:1")), id, "asked again it is the same");
    assert_eq!(created(&mut bench, create("c", "ram:01")), id, "however it is written");
    let second = created(&mut bench, create("d", "ram:1"));
    assert_eq!((bench.map().epoch, bench.map().revision), (epoch + 1, 3), "the spread group was there");
    assert_eq!((id.serial(), second.serial(), second.spread_group()), (3, 4, id.spread_group()));
    assert_eq!(kind(bench.ask(Ask::Create(create("c", "cache")))), ErrorKind::Exists);
    assert_eq!(kind(bench.ask(Ask::Create(Create { copies: Some(2), ..create("c", "ram:1") }))), ErrorKind::Exists);
    assert_eq!((flushed(&mut bench, "c"), flushed(&mut bench, "c"), flushed(&mut bench, "default")), (2, 3, 2));
    assert_eq!(bench.map().revision, 6);
    assert_eq!(bench.ask(Ask::Destroy { name: "c".into() }), Ok(Answer::Destroyed));
    for ask in [Ask::Destroy { name: "c".into() }, Ask::Flush { name: "c".into() }] {
        assert_eq!(kind(bench.ask(ask)), ErrorKind::NoCollection);
    }
    assert_eq!(kind(bench.ask(Ask::Destroy { name: "default".into() })), ErrorKind::BadRequest);
    let again = created(&mut bench, create("c", "ram:1"));
    assert_eq!(again.serial(), 5, "an id is given once");
    assert_eq!(bench.map().epoch, epoch + 1);
}

#[test]
fn a_collection_lies_where_its_class_is_kept() {
    let mut bench = Bench::new(config("a"));
    bench.join(join(1, 1));
    assert_eq!(kind(bench.ask(Ask::Create(create("two", "ram:2")))), ErrorKind::BadRequest, "one node");
    bench.join_all(2..=3);
    let at = |bench: &mut Bench, create: Create| created(bench, create).spread_group();
    let copies = |name: &str, class: &str, copies| Create { copies: Some(copies), ..create(name, class) };
    assert_eq!(at(&mut bench, create("two", "ram:2")), 0, "the default group keeps three, two of them needed");
    let (cache, one) = (at(&mut bench, create("cache", "cache")), at(&mut bench, create("one", "ram:1")));
    assert!(cache != 0 && one != 0 && cache != one);
    assert_eq!(at(&mut bench, create("cache-2", "cache")), cache);
    let wide = at(&mut bench, copies("wide", "ram:1", 3));
    let map = bench.map();
    assert_eq!(map.spread(wide).map(|it| (it.copies, it.needed, it.groups.len() > 1)), Some((3, 1, true)));
    assert_eq!(at(&mut bench, Create { spread: Some(wide), ..create("there", "ram:1") }), wide);
    for bad in [
        Create { spread: Some(wide), ..create("x", "ram:2") },
        Create { spread: Some(wide), ..create("x", "cache") },
        Create { spread: Some(99), ..create("x", "ram:1") },
        copies("x", "ram:2", 1),
        copies("x", "ram:1", 10),
        copies("x", "cache", 2),
        create("x", "ram:4"),
        create("x", "disk"),
        create("a/b", "ram:1"),
        Create { spec: Spec { ordered: true, indexed: true, ..Spec::of("ram:1") }, ..create("x", "ram:1") },
    ] {
        assert_eq!(kind(bench.ask(Ask::Create(bad.clone()))), ErrorKind::BadRequest, "{bad:?}");
    }
    assert_eq!(kind(bench.ask(Ask::Create(create("x", "log:1")))), ErrorKind::NotInVersion);
    let made = (2..=9).map(|n| kind_or_ok(bench.ask(Ask::Create(copies(&format!("r{n}"), "ram:2", n)))));
    let made: Vec<_> = made.collect();
    assert!(made.iter().all(|it| it.is_none()), "{made:?}");
    let more = (4..=9).map(|n| kind_or_ok(bench.ask(Ask::Create(copies(&format!("s{n}"), "ram:1", n)))));
    assert_eq!(more.last(), Some(Some(ErrorKind::Full)), "16 spread groups");
}

fn kind_or_ok(answer: Result<Answer, Refusal>) -> Option<ErrorKind> {
    answer.is_err().then(|| kind(answer))
}

#[test]
fn a_new_warden_goes_on_where_the_last_one_was() {
    let mut bench = Bench::new(config("a"));
    let first = bench.join(join(1, 1));
    let id = created(&mut bench, create("c", "ram:1"));
    bench.ask(Ask::Destroy { name: "c".into() }).expect("it is there");
    let before = bench.map();
    let mut bench = bench.restarted("b");
    let map = bench.map();
    assert_eq!((map.term, before.term), (2, 1));
    assert_eq!(
        (map.epoch, map.revision, &map.spreads, &map.nodes),
        (before.epoch, before.revision, &before.spreads, &before.nodes)
    );
    assert_eq!(bench.pushed.len(), 1, "the new term is told");
    assert_eq!(bench.join(join(1, 1)), first);
    assert_eq!(bench.join(join(2, 1)).node.0.get(), 2);
    assert!(created(&mut bench, create("c", "ram:1")).serial() > id.serial());
}

#[test]
fn where_there_is_no_herd_none_is_begun_unless_told() {
    let mut bench = Bench::new(Config { birth: None, ..config("a") });
    let ticket = bench.send(Ask::Join(join(1, 1)));
    bench.settle();
    match bench.answer(ticket) {
        Some(Err(Refusal::Store(text))) => assert!(text.contains("no herd"), "{text}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn one_warden_at_a_time_and_the_other_says_who() {
    let mut first = Bench::new(config("a"));
    first.join(join(1, 1));
    let mut second = Bench::over(first.store.clone(), config("b"));
    second.now_ms = first.now_ms;
    assert_eq!(second.ask(Ask::Hold), Err(Refusal::NotWarden(Some("a".into()))));
    second.now_ms += OFFICE_LEASE_MS;
    second.settle();
    assert_eq!(second.join(join(2, 1)).node.0.get(), 2);
    // The first one was paused, and does not know.
    for late in [Ask::Join(join(3, 1)), Ask::Join(join(1, 1)), Ask::Destroy { name: "nothing".into() }] {
        let mut first = Bench::new(config("a"));
        first.join(join(1, 1));
        first.store = second.store.clone();
        assert_eq!(first.ask(late), Err(Refusal::NotWarden(Some("b".into()))));
        assert!(first.warden.map().is_none());
    }
}

#[test]
fn a_reply_that_is_lost_is_found_out_about() {
    let unknown = || ControlError::Unknown("a test".into());
    let unreachable = || ControlError::Unreachable("a test".into());
    for faults in [
        vec![unknown()],
        vec![unreachable()],
        vec![unknown(), unknown()],
        vec![unreachable(), unknown()],
        vec![unknown(), unreachable()],
        vec![unreachable(), unknown(), unknown()],
    ] {
        let mut bench = Bench::new(config("a"));
        bench.join(join(1, 1));
        bench.faults = faults.clone();
        let flush = bench.send(Ask::Flush { name: "default".into() });
        assert_eq!(bench.answer(flush), None);
        let next = bench.send(Ask::Flush { name: "default".into() });
        // Nodes tell it with each beat.
        for _ in 0..10 {
            bench.tick(OFFICE_RENEW_MS);
            bench.all_have();
        }
        assert_eq!(bench.answer(flush), Some(Ok(Answer::Flushed { generation: 2 })), "{faults:?}");
        assert_eq!(bench.answer(next), Some(Ok(Answer::Flushed { generation: 3 })), "each flushes once");
    }
}

#[test]
fn who_wrote_in_between_leaves_the_outcome_unknown() {
    let mut bench = Bench::new(config("a"));
    bench.join(join(1, 1));
    bench.faults = vec![ControlError::Unknown("a test".into())];
    let flush = bench.send(Ask::Flush { name: "default".into() });
    let mut other = Bench::over(Table::restored(bench.store.all()).expect("a store"), config("b"));
    other.join(join(2, 1));
    bench.store = Table::restored(other.store.all()).expect("a store");
    bench.settle();
    assert_eq!(bench.answer(flush), Some(Err(Refusal::Unknown)));
    assert_eq!(flushed(&mut bench, "default"), 3, "it was done, as it happens");
}

#[test]
fn what_the_store_refuses_is_told_and_nothing_has_changed() {
    let mut bench = Bench::new(config("a"));
    bench.join(join(1, 1));
    let before = bench.map();
    for error in [ControlError::Full("no room".into()), ControlError::Broken("a disk".into())] {
        bench.faults = vec![error.clone()];
        assert_eq!(bench.ask(Ask::Flush { name: "default".into() }), Err(Refusal::Store(error.to_string())));
        assert_eq!(bench.map(), before);
    }
    bench.faults = vec![ControlError::Broken("a disk".into()); 3];
    bench.ask(Ask::Flush { name: "default".into() }).expect_err("the store is broken");
    let waits = bench.send(Ask::Flush { name: "default".into() });
    bench.settle();
    assert!(matches!(bench.answer(waits), Some(Err(Refusal::Store(_)))));
    bench.settle();
    assert!(flushed(&mut bench, "default") > 1, "it goes on when the store does");
}

#[test]
fn what_can_t_be_read_after_a_write_that_failed_is_not_gone_on_from() {
    let mut bench = Bench::new(config("a"));
    bench.join(join(1, 1));
    let before = bench.map();
    let full = ControlError::Full("no room".into());
    bench.faults = vec![ControlError::Unreachable("a test".into()), full.clone()];
    assert_eq!(bench.ask(Ask::Flush { name: "default".into() }), Err(Refusal::Store(full.to_string())));
    assert_eq!(bench.warden.map(), None, "parts of it may be there");
    bench.tick(OFFICE_RENEW_MS);
    assert_eq!(bench.map(), before, "it was read anew");
}

#[test]
fn a_program_that_is_too_old_is_no_warden() {
    let bench = Bench::new(config("a"));
    let store = Table::restored(bench.store.all()).expect("a store");
    let mut bench = Bench::over(store, Config { protocol: 1, ..config("b") });
    assert_eq!(bench.ask(Ask::Hold), Err(Refusal::OldProtocol { theirs: 1, least: 2 }));
    let (term, later) = (bench.store.term(), bench.now_ms + OFFICE_LEASE_MS);
    bench.settle();
    assert_eq!(bench.store.campaign("c", 1, later).expect("a candidacy").term, term + 1, "it leaves the office");
}

#[test]
fn what_waits_has_an_end() {
    let mut bench = Bench::new(config("a"));
    bench.join(join(1, 1));
    bench.faults = vec![ControlError::Unreachable("a test".into())];
    bench.send(Ask::Flush { name: "default".into() });
    let nothing = || Ask::Destroy { name: "nothing".into() };
    let tickets: Vec<Ticket> = (0..=WARDEN_ASKS_MAX).map(|_| bench.send(nothing())).collect();
    assert_eq!(bench.answer(tickets[WARDEN_ASKS_MAX]), Some(Err(Refusal::Busy)));
    bench.settle();
    let last = bench.answer(tickets[WARDEN_ASKS_MAX - 1]).expect("an answer");
    assert_eq!(kind(last), ErrorKind::NoCollection);
}

#[test]
fn more_copies_than_this_version_keeps_are_refused_whoever_asks() {
    let asked = |class: &str, copies| Create { copies, ..create("c", class) }.check_copies();
    for (class, copies) in [("ram:1", None), ("ram:3", None), ("ram:1", Some(3)), ("cache", Some(1)), ("log:9", None)] {
        assert_eq!(asked(class, copies), Ok(()), "{class} {copies:?}");
    }
    for (class, copies) in [("ram:4", None), ("ram:1", Some(4)), ("cache", Some(4))] {
        assert_eq!(
            asked(class, copies).map_err(|error| error.kind),
            Err(ErrorKind::NotInVersion),
            "{class} {copies:?}"
        );
    }
    let mut bench = Bench::new(config("a"));
    bench.join_all(1..=5);
    let id = created(&mut bench, create("three", "ram:3"));
    assert_eq!(bench.map().spread(id.spread_group()).map(|it| (it.copies, it.needed)), Some((3, 3)));
}

#[test]
fn the_map_says_which_protocol_all_nodes_speak() {
    let mut bench = Bench::new(config("a"));
    let speaks = |number, life, protocol| Join { protocol, ..join(number, life) };
    bench.join(speaks(1, 1, 3));
    assert_eq!(bench.map().protocol(), 3);
    bench.join(speaks(2, 1, 2));
    bench.join(speaks(3, 1, 3));
    assert_eq!(bench.map().protocol(), 2, "the lowest");
    bench.join(speaks(2, 2, 3));
    assert_eq!(bench.map().protocol(), 3, "it was upgraded");
    bench.join(speaks(1, 2, 2));
    assert_eq!(bench.map().protocol(), 2, "and one put back");
    let map = bench.map();
    assert_eq!(Map::decode(&map.encode()).map(|read| read.protocol()), Ok(2));
}
