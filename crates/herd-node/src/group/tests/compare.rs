//! What nodes tell of their slots: equal where their objects are, and told apart where one is not.

use super::herd::Herd;
use herd_core::op::{Action, Op, Put};
use herd_store::{Given, NewObject};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// Objects, and sums of digests.
type Sums = BTreeMap<u64, (u64, u128)>;

fn page(herd: &mut Herd, number: u32, name: &str) -> Value {
    let cx = herd.cx(number);
    let text = cx.shared.system_object(name.as_bytes(), cx.now).expect("there is such a page");
    serde_json::from_str(&text).expect("JSON")
}

/// All pages that begin with this one: their lists of that name.
fn all(herd: &mut Herd, number: u32, name: &str, list: &str) -> Vec<Value> {
    let (mut next, mut found) = (String::new(), Vec::new());
    loop {
        let page = page(herd, number, &format!("{name}{next}"));
        found.extend(page[list].as_array().expect("a list").iter().cloned());
        match page["next"].as_str() {
            Some(mark) => next = format!("/{mark}"),
            None => return found,
        }
    }
}

fn sums(herd: &mut Herd, number: u32) -> Sums {
    let mut sums = Sums::new();
    for slot in all(herd, number, "sums/0", "slots") {
        let (objects, sum) = sums.entry(slot[0].as_u64().expect("a slot")).or_default();
        *objects += slot[2].as_u64().expect("a number");
        let more = u128::from_str_radix(slot[3].as_str().expect("text"), 16).expect("hex");
        *sum = sum.wrapping_add(more);
    }
    sums
}

fn different(herd: &mut Herd) -> BTreeSet<u64> {
    let (a, b) = (sums(herd, 1), sums(herd, 2));
    a.keys().chain(b.keys()).filter(|slot| a.get(slot) != b.get(slot)).copied().collect()
}

#[test]
fn copies_that_are_made_to_differ_are_told_by_their_slot_and_digest() {
    let mut herd = Herd::new(2, 2);
    for i in 0..300u32 {
        let (name, value) = (i.to_le_bytes(), vec![7; 30 * i as usize]);
        let op = Op::new(Action::Put(Put::of(herd.given(&name, &value))), 1 << 30);
        herd.ask(&name, &op).expect("it is done");
    }
    herd.pass(5);
    assert_eq!(different(&mut herd), BTreeSet::new());
    let objects: u64 = sums(&mut herd, 1).values().map(|(objects, _)| objects).sum();
    assert_eq!(objects, 300);
    // One is other bytes under the same version, one is missing: what no rule of the group would do.
    let (spoiled, missing) = (3u32.to_le_bytes(), 5u32.to_le_bytes());
    let (version, _) = herd.at(2, &spoiled).expect("it is there");
    let cx = herd.cx(2);
    let c = cx.shared.default.clone();
    cx.shared.store.entry(&c, &missing, cx.now).remove(None);
    cx.shared.store.entry(&c, &spoiled, cx.now).remove(None);
    let new = NewObject::of(Given::Small(b"other", None));
    cx.shared.store.entry(&c, &spoiled, cx.now).prepare(version, 0, &new).expect("there is room");
    cx.shared.store.entry(&c, &spoiled, cx.now).commit(version);
    let slots = [&spoiled, &missing].map(|name| herd.key(name).of.slot() as u64);
    assert_eq!(different(&mut herd), BTreeSet::from(slots));
    let digests = |herd: &mut Herd, number, slot: u64| {
        let objects = all(herd, number, &format!("slot/0/{slot}"), "objects");
        let one = |object: &Value| {
            (object["name"].to_string(), (object["version"].to_string(), object["digest"].to_string()))
        };
        objects.iter().map(one).collect::<BTreeMap<_, _>>()
    };
    let (a, b) = (digests(&mut herd, 1, slots[0]), digests(&mut herd, 2, slots[0]));
    let name = format!("\"{:08x}\"", 3u32.swap_bytes());
    assert!(a[&name].0 == b[&name].0 && a[&name].1 != b[&name].1, "{a:?} {b:?}");
    let gone = format!("\"{:08x}\"", 5u32.swap_bytes());
    let (a, b) = (digests(&mut herd, 1, slots[1]), digests(&mut herd, 2, slots[1]));
    assert!(a.contains_key(&gone) && !b.contains_key(&gone));
}

#[test]
fn what_is_no_page_is_none() {
    let mut herd = Herd::new(2, 2);
    for name in
        ["sums", "sums/", "sums/x", "sums/99999", "sums/0/1", "sums/0/a.b", "slot/0", "slot/0/4096", "slot/0/1/x"]
    {
        let cx = herd.cx(1);
        assert!(cx.shared.system_object(name.as_bytes(), cx.now).is_none(), "{name}");
    }
    for name in ["sums/0/4294967295.4294967295", "slot/0/1/4294967295"] {
        assert!(page(&mut herd, 1, name)["next"].is_null(), "{name}: it is behind the end");
    }
}
