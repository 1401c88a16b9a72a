//! What nodes tell of their slots (PROTOCOL.md §1.15).

use super::suspects::{Item, Items};
use super::{Group, Node, Slot};
use crate::out;
use indicatif::ProgressBar;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// What a node has of a slot.
#[derive(Clone, Copy, Default, PartialEq)]
pub(super) struct Sum {
    pub(super) objects: u64,
    sum: u128,
}

/// What a node told: of each slot that has objects its group, and the sum.
pub(super) type Sums = BTreeMap<Slot, (u64, Sum)>;

/// The groups of those slots, by spread group and number.
pub(super) type Groups = BTreeMap<(u64, u64), Group>;

/// The sums of a node's slots, and their groups. `None`: it goes by another map.
pub(super) fn sums(node: &Node, epoch: u64, bar: &ProgressBar) -> Result<Option<(Sums, Groups)>, String> {
    let (mut all, mut groups) = (Sums::new(), Groups::new());
    let (mut left, mut seen) = (vec![0], BTreeSet::from([0]));
    while let Some(spread) = left.pop() {
        let (mut next, mut done) = (String::new(), None);
        loop {
            let page = page(node, &format!("sums/{spread}{next}"))?;
            if page["epoch"].as_u64() != Some(epoch) {
                return Ok(None);
            }
            let list = |field: &str| page[field].as_array().into_iter().flatten();
            for slot in list("slots") {
                add(&mut all, spread, slot).ok_or("it tells of its slots in a way that is not known here")?;
            }
            let ids = |value: &Value| value.as_array().into_iter().flatten().filter_map(Value::as_u64).collect();
            for group in list("groups") {
                let id = (spread, group[0].as_u64().unwrap_or(0));
                groups.entry(id).or_insert_with(|| Group { members: ids(&group[1]), syncing: ids(&group[2]) });
            }
            left.extend(list("spreads").filter_map(Value::as_u64).filter(|spread| seen.insert(*spread)));
            let shard = page["done"].as_u64().unwrap_or(0);
            if done.is_none() {
                bar.inc_length(page["shards"].as_u64().unwrap_or(0));
            }
            bar.inc(shard.saturating_sub(done.unwrap_or(0)));
            done = Some(shard);
            match page["next"].as_str() {
                Some(mark) => next = format!("/{mark}"),
                None => break,
            }
        }
    }
    Ok(Some((all, groups)))
}

fn add(all: &mut Sums, spread: u64, told: &Value) -> Option<()> {
    let group = told[1].as_u64().unwrap_or(0);
    let (slot, objects) = (told[0].as_u64()?, told[2].as_u64()?);
    let sum = u128::from_str_radix(told[3].as_str()?, 16).ok()?;
    let (_, of) = all.entry((spread, slot)).or_insert((group, Sum::default()));
    (of.objects, of.sum) = (of.objects + objects, of.sum.wrapping_add(sum));
    Some(())
}

/// The objects that a node has of a slot.
pub(super) fn items(node: &Node, (spread, slot): Slot) -> Result<Items, String> {
    let (mut all, mut next) = (Items::new(), String::new());
    loop {
        let page = page(node, &format!("slot/{spread}/{slot}{next}"))?;
        for object in page["objects"].as_array().into_iter().flatten() {
            let (id, item) = item(object).ok_or("it tells of its objects in a way that is not known here")?;
            all.insert(id, item);
        }
        match page["next"].as_str() {
            Some(mark) => next = format!("/{mark}"),
            None => return Ok(all),
        }
    }
}

fn item(object: &Value) -> Option<(String, Item)> {
    let hex = object["name"].as_str()?;
    let byte = |at: usize| u8::from_str_radix(hex.get(2 * at..2 * at + 2)?, 16).ok();
    let name: Vec<u8> = (0..hex.len() / 2).map(byte).collect::<Option<_>>()?;
    let collection = object["collection"].as_str().unwrap_or("?");
    let name = format!("{}/{}", out::shown(collection.as_bytes()), out::shown(&name));
    let digest = u128::from_str_radix(object["digest"].as_str()?, 16).ok()?;
    Some((object["id"].as_str()?.to_owned(), Item { name, version: object["version"].as_u64()?, digest }))
}

/// A page of this node, and of no other that answers at its address.
fn page(node: &Node, name: &str) -> Result<Value, String> {
    let page = node.client.as_ref().map_err(Clone::clone)?.about(name).map_err(|error| error.to_string())?;
    match page["node"].as_u64() {
        Some(id) if id != node.id => Err(format!("another node answers at its address, number {id}")),
        _ => Ok(page),
    }
}
