//! What lies in the store: of any size, whole at any moment, and believed only if it goes together.

use super::super::layout::{Kept, Stamp, load, plan};
use super::super::state::{Member, State};
use super::*;
use crate::control::{Control, Entry, Outcome, Range, Txn, Write};
use crate::limits::NODES_MAX;
use crate::place::{Draft, Node, NodeId, NodeState};
use std::collections::BTreeMap;
use std::num::NonZeroU32;

fn id(number: u32) -> NodeId {
    NodeId(NonZeroU32::new(number).expect("from 1"))
}

/// What is known of all nodes there may be.
fn members() -> BTreeMap<NodeId, Member> {
    let member = |number: u32| (id(number), Member { identity: Identity([number as u8; 16]), process: [0; 16] });
    (1..=NODES_MAX as u32).map(member).collect()
}

/// A herd of so many nodes, with addresses as long as may be: some 2 KiB each.
fn state(nodes: u32, epoch: u32) -> State {
    let mut state = State { members: members(), ..State::born(&birth(), 1).expect("a herd") };
    let mut draft = Draft { nodes: Vec::new(), ..Draft::clone(&state.map) };
    for number in 1..=nodes {
        draft.nodes.push(Node {
            id: id(number),
            name: format!("n{number}"),
            addresses: vec!["a".repeat(255); 8],
            incarnation: 1,
            host: "h".into(),
            rack: String::new(),
            memory_bytes: GIB,
            state: NodeState::Up,
            protocol: 1,
        });
    }
    state.next_node = NODES_MAX as u32 + 1;
    state.map = Arc::new(Map::first(draft, epoch).expect("a map"));
    state
}

/// A store in which term 1 is in office.
fn store() -> Table {
    let mut store = Table::default();
    store.campaign("a", 1, 0).expect("the office is free");
    store
}

/// A herd without nodes in the store, where all that may come are known.
fn begun(store: &mut Table) -> Kept {
    let none = State { members: BTreeMap::new(), ..state(0, 1) };
    let (txns, _) = plan(None, none, Stamp { term: 1, flight: 0 });
    make(store, &txns[0]);
    for some in (1..=NODES_MAX).collect::<Vec<_>>().chunks(100) {
        let record = |number: &usize| {
            let identity = format!("{:02x}", *number as u8).repeat(16);
            let text = format!(r#"{{"identity":"{identity}","process":"{}"}}"#, "0".repeat(32));
            Write::Put { key: format!("node/{number:08x}"), value: text.into_bytes().into() }
        };
        make(store, &Txn { writes: some.iter().map(record).collect(), ..Txn::default() });
    }
    let mut kept = loaded(store);
    kept.state.members = members();
    kept
}

fn entries(store: &Table) -> Vec<Entry> {
    store.all().entries
}

fn make(store: &mut Table, txn: &Txn) -> u64 {
    match store.txn(txn) {
        Ok(Outcome::Done(revision)) => revision,
        other => panic!("{other:?}"),
    }
}

fn loaded(store: &Table) -> Kept {
    load(&entries(store)).expect("a herd").expect("one is there")
}

#[test]
fn a_map_of_any_size_takes_the_old_one_s_place_at_once() {
    let mut store = store();
    let mut kept = begun(&mut store);
    for (flight, nodes) in (1..).zip([3, 900, 1000, 10, 950, 20, 5]) {
        let next = state(nodes, flight as u32 + 1);
        let (mut txns, after) = plan(Some(&kept), next.clone(), Stamp { term: 1, flight });
        assert_eq!(txns.len() > 1, nodes > 500, "{nodes} nodes in {} transactions", txns.len());
        let last = txns.pop().expect("one counts");
        for txn in &txns {
            make(&mut store, txn);
            assert_eq!(loaded(&store).state.map, kept.state.map, "it is not there yet");
        }
        let revision = make(&mut store, &last);
        kept = after.at(revision);
        let there = loaded(&store);
        assert_eq!((&there.state.map, there.revision, there.stamp.flight), (&next.map, revision, flight));
        assert_eq!(there.state.members.len(), nodes as usize);
        assert!(store.size_bytes() < 8 << 20, "old parts go");
    }
    let keys = store.read(&Range { prefix: "map/".into(), ..Range::default() }).expect("a range").entries.len();
    assert!(keys < 3, "{keys} parts of a small map");
}

#[test]
fn what_a_warden_left_half_done_is_gone_after_the_next_write() {
    let mut store = store();
    let before = begun(&mut store);
    let (txns, _) = plan(Some(&before), state(900, 2), Stamp { term: 1, flight: 2 });
    for txn in &txns[..txns.len() - 1] {
        make(&mut store, txn);
    }
    let mut there = loaded(&store);
    assert_eq!(there.state.map, before.state.map);
    there.state.members = members();
    let (txns, _) = plan(Some(&there), state(4, 3), Stamp { term: 1, flight: 3 });
    assert_eq!(txns.len(), 1);
    make(&mut store, &txns[0]);
    assert_eq!(loaded(&store).state.map.nodes.len(), 4);
    assert_eq!(entries(&store).iter().filter(|entry| entry.key.starts_with("map/")).count(), 1);
}

#[test]
fn a_part_that_comes_late_is_none_of_a_later_map() {
    let mut store = store();
    let before = begun(&mut store);
    let (late, _) = plan(Some(&before), state(900, 2), Stamp { term: 1, flight: 2 });
    let (txns, _) = plan(Some(&before), state(950, 2), Stamp { term: 1, flight: 3 });
    for txn in &txns {
        make(&mut store, &late[0]);
        make(&mut store, txn);
    }
    make(&mut store, &late[0]);
    assert_eq!(loaded(&store).state.map.nodes.len(), 950);
}

#[test]
fn what_does_not_go_together_is_no_herd() {
    let mut store = store();
    let mut two = State { next_node: 3, ..state(2, 1) };
    two.members.retain(|node, _| node.0.get() < 3);
    let (txns, _) = plan(None, two, Stamp { term: 1, flight: 1 });
    make(&mut store, &txns[0]);
    let good = entries(&store);
    assert!(load(&good).is_ok() && load(&[]).is_ok_and(|kept| kept.is_none()));
    let text = |key: &str| {
        let entry = good.iter().find(|entry| entry.key == key).expect("it is there");
        String::from_utf8(entry.value.to_vec()).expect("JSON")
    };
    let part = good.iter().find(|entry| entry.key.starts_with("map/")).expect("a part").key.clone();
    let with = |key: &str, value: &[u8]| {
        let mut bad = good.clone();
        bad.iter_mut().filter(|entry| entry.key == key).for_each(|entry| entry.value = value.into());
        load(&bad).map(|_| ()).expect_err(key)
    };
    let without = |key: &str| {
        let bad: Vec<Entry> = good.iter().filter(|entry| entry.key != key).cloned().collect();
        load(&bad).map(|_| ()).expect_err(key)
    };
    let changed = |key: &str, from: &str, to: &str| {
        assert!(text(key).contains(from), "{}", text(key));
        with(key, text(key).replace(from, to).as_bytes())
    };
    assert!(without("herd").contains("no key 'herd'"));
    assert!(without("map").contains("no key 'map'"));
    assert!(without(&part).contains("is missing"));
    assert!(without("node/00000002").contains("no key 'node/00000002'"));
    assert!(with("herd", b"{").contains("key herd"));
    assert!(with(&part, b"HERDMAP").contains("cut short"));
    assert!(changed("herd", "\"format\":1", "\"format\":2").contains("format 2"));
    assert!(changed("herd", "612068", "622068").contains("not the one"));
    assert!(changed("herd", "612068", "61206").contains("32 hex digits"));
    assert!(changed("map", "\"next_node\":3", "\"next_node\":2").contains("not given yet"));
    assert!(changed("map", "\"next_collection\":3", "\"next_collection\":2").contains("not given yet"));
    assert!(changed("map", "\"flight\":1", "\"flight\":4611686018427387904").contains("out of range"));
    assert!(changed("map", "\"bytes\":", "\"bytes\":9").contains("missing"));
    assert!(changed("map", "}", ",\"later\":1}").contains("later"));
}

#[test]
fn what_a_herd_looks_like_in_the_store() {
    let mut bench = Bench::new(config("a"));
    bench.join(join(1, 1));
    let entries = entries(&bench.store);
    let keys: Vec<&str> = entries.iter().map(|entry| entry.key.as_str()).collect();
    assert_eq!(keys, ["herd", "map", "map/0000000000000001.0000000000000002/0000", "node/00000001"]);
    let text = |at: usize| std::str::from_utf8(&entries[at].value).expect("JSON");
    let bytes = entries[2].value.len();
    let hex = |byte: &str| byte.repeat(16);
    assert_eq!(
        text(0),
        format!(
            r#"{{"format":1,"herd":"612068657264206f662074657374732e","hash_key":"{}","protocol_min":2}}"#,
            hex("07")
        )
    );
    assert_eq!(
        text(1),
        format!(
            r#"{{"term":1,"flight":2,"held":false,"next_node":2,"next_collection":3,{},"bytes":{bytes}}}"#,
            r#""map_term":1,"map_flight":2"#
        )
    );
    assert_eq!(text(3), format!(r#"{{"identity":"{}","process":"{}"}}"#, hex("01"), hex("01")));
    assert_eq!(Map::decode(&entries[2].value).as_ref(), Ok(&*bench.map()));
}

#[test]
fn a_write_names_its_term_and_what_it_follows() {
    let mut store = store();
    let kept = begun(&mut store);
    let (birth, _) = plan(None, State { members: BTreeMap::new(), ..state(0, 1) }, Stamp { term: 1, flight: 1 });
    assert_eq!(store.txn(&birth[0]), Ok(Outcome::Refused), "a herd is born once");
    let (txns, _) = plan(Some(&kept), state(900, 2), Stamp { term: 1, flight: 2 });
    let puts = |txn: &Txn| txn.writes.iter().filter(|write| matches!(write, Write::Put { .. })).count();
    assert!(txns.iter().all(|txn| txn.term == Some(1) && puts(txn) > 0));
    store.campaign("b", 1, 10).expect("the lease has run out");
    assert!(txns.iter().all(|txn| store.txn(txn) == Ok(Outcome::Refused)));
}

#[test]
fn a_herd_has_so_many_nodes_and_no_more() {
    let most = NODES_MAX as u32;
    for (nodes, fits) in [(most - 1, true), (most, false)] {
        let mut store = store();
        let kept = begun(&mut store);
        let next = State { next_node: nodes + 1, ..state(nodes, 2) };
        let (txns, _) = plan(Some(&kept), next, Stamp { term: 1, flight: 1 });
        for txn in &txns {
            make(&mut store, txn);
        }
        let mut bench = Bench::over(Table::restored(store.all()).expect("a store"), config("b"));
        let one_more = Join { identity: Identity(*b"one more of them"), name: "more".into(), ..join(1, 1) };
        match bench.ask(Ask::Join(one_more)) {
            Ok(Answer::Joined(joined)) => assert!(fits && joined.node.0.get() == most),
            other => assert!(!fits && other == Err(Refusal::TooManyNodes)),
        }
    }
}
