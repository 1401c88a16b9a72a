//! What nodes tell of their slots (PROTOCOL.md §1.15).

use super::suspects::{Item, Items};
use super::{ENDS_EACH_MS, ENDS_SLACK_MS, Group, Node, Slot};
use crate::exit::plain;
use crate::out;
use indicatif::ProgressBar;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

/// What a node has of a slot.
#[derive(Clone, Copy, Default)]
pub(super) struct Sum {
    pub(super) objects: u64,
    sum: u128,
    /// Objects that end some time, and when, all together: ms since this program began, by its clock.
    ending: u64,
    ends_ms: u128,
}

impl Sum {
    /// Whether two nodes may have the same. When objects end each of them heard at another time.
    pub(super) fn is_like(&self, other: &Sum) -> bool {
        let slack_ms = u128::from(ENDS_SLACK_MS) + u128::from(self.ending) * u128::from(ENDS_EACH_MS);
        let alike = (self.objects, self.sum, self.ending) == (other.objects, other.sum, other.ending);
        alike && self.ends_ms.abs_diff(other.ends_ms) <= slack_ms
    }
}

/// What a node told: of each slot that has objects its group, and the sum.
pub(super) type Sums = BTreeMap<Slot, (u64, Sum)>;

/// The groups of those slots, by spread group and number.
pub(super) type Groups = BTreeMap<(u64, u64), Group>;

/// The sums of a node's slots, and their groups. `None`: it goes by another map.
pub(super) fn sums(
    node: &Node,
    epoch: u64,
    since: Instant,
    bar: &ProgressBar,
) -> Result<Option<(Sums, Groups)>, String> {
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
                add(&mut all, spread, slot, since).ok_or("it tells of its slots in a way that is not known here")?;
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

fn add(all: &mut Sums, spread: u64, told: &Value, since: Instant) -> Option<()> {
    let group = told[1].as_u64().unwrap_or(0);
    let (slot, objects) = (told[0].as_u64()?, told[2].as_u64()?);
    let sum = u128::from_str_radix(told[3].as_str()?, 16).ok()?;
    let (_, of) = all.entry((spread, slot)).or_insert((group, Sum::default()));
    (of.objects, of.sum) = (of.objects.saturating_add(objects), of.sum.wrapping_add(sum));
    let (ending, left_ms) = (told[4].as_u64().unwrap_or(0), told[5].as_u64().unwrap_or(0));
    let ends_ms = u128::from(left_ms) + u128::from(ending) * since.elapsed().as_millis();
    (of.ending, of.ends_ms) = (of.ending.saturating_add(ending), of.ends_ms.saturating_add(ends_ms));
    Some(())
}

/// The objects that a node has of a slot.
pub(super) fn items(node: &Node, (spread, slot): Slot, since: Instant) -> Result<Items, String> {
    let (mut all, mut next) = (Items::new(), String::new());
    loop {
        let page = page(node, &format!("slot/{spread}/{slot}{next}"))?;
        for object in page["objects"].as_array().into_iter().flatten() {
            let (id, item) = item(object, since).ok_or("it tells of its objects in a way that is not known here")?;
            all.insert(id, item);
        }
        match page["next"].as_str() {
            Some(mark) => next = format!("/{mark}"),
            None => return Ok(all),
        }
    }
}

fn item(object: &Value, since: Instant) -> Option<(String, Item)> {
    let hex = object["name"].as_str()?;
    let byte = |at: usize| u8::from_str_radix(hex.get(2 * at..2 * at + 2)?, 16).ok();
    let name: Vec<u8> = (0..hex.len() / 2).map(byte).collect::<Option<_>>()?;
    let collection = object["collection"].as_str().unwrap_or("?");
    let name = format!("{}/{}", out::shown(collection.as_bytes()), out::shown(&name));
    let digest = u128::from_str_radix(object["digest"].as_str()?, 16).ok()?;
    let ends_ms = object["left_ms"].as_u64().map(|left_ms| u128::from(left_ms) + since.elapsed().as_millis());
    Some((object["id"].as_str()?.to_owned(), Item { name, version: object["version"].as_u64()?, digest, ends_ms }))
}

fn page(node: &Node, name: &str) -> Result<Value, String> {
    node.client.as_ref().map_err(Clone::clone)?.about(name).map_err(|error| plain(&error.reason()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// What a node told that has so many objects which end, of which so much is left.
    fn told(ending: u64, left_ms: u64) -> Sum {
        let mut all = Sums::new();
        let page = json!([7, 1, 100, "000000000000000000000000000000ff", ending, left_ms]);
        add(&mut all, 0, &page, Instant::now()).expect("it is understood");
        all[&(0, 7)].1
    }

    #[test]
    fn sums_are_alike_where_objects_end_at_about_the_same_time() {
        let all = told(3, 1_000_000);
        assert!(all.is_like(&told(3, 1_000_000)) && all.is_like(&told(3, 990_000)) && all.is_like(&told(3, 1_017_000)));
        assert!(
            !all.is_like(&told(3, 980_000)) && !all.is_like(&told(3, 3_000_000)) && !all.is_like(&told(2, 1_000_000))
        );
        let mut all = Sums::new();
        assert_eq!(add(&mut all, 0, &json!([7, 1, 100, "ff"]), Instant::now()), Some(()), "of an earlier version");
    }
}
