//! What a node holds, as it is compared with what others hold: sums of slots, and one slot's objects, page by page.
//! The node keeps nothing between two pages, and a page takes no longer than one turn of other work.

use crate::context::Shared;
use herd_core::key::ObjectId;
use herd_core::limits::{COMPARE_ENTRIES, COMPARE_NAME_BYTES, COMPARE_PAGE_BYTES, SLOTS, SPREADS_MAX};
use herd_core::place::{Map, Spread, Standing};
use herd_store::{Now, SlotCursor, SlotDigest, SlotSum, SumCursor};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::sync::Arc;

impl Shared {
    /// `sums/SPREAD[/SHARD.NEXT]`: sums of the slots of a spread group, or a part of them, to be added up.
    pub(super) fn sums(&self, asked: &str, now: Now) -> Option<String> {
        let (spread, mark) = asked.split_once('/').map_or((asked, None), |(spread, mark)| (spread, Some(mark)));
        let spread = spread_of(spread)?;
        let mut cursor = match mark {
            None => SumCursor::default(),
            Some(mark) => {
                let (shard, next) = mark.split_once('.')?;
                SumCursor { shard: shard.parse().ok()?, next: next.parse().ok()? }
            }
        };
        let map = self.map_now();
        let mut sums = BTreeMap::new();
        let goes_on = self.store.sum_turn(spread, &mut cursor, &mut sums, COMPARE_ENTRIES, now);
        let of_map = map.as_ref().and_then(|map| map.spread(spread));
        let one = |(slot, sum): (u16, SlotSum)| {
            let group = of_map.map(|spread| spread.slots[usize::from(slot)]);
            json!([slot, group, sum.objects, format!("{:032x}", sum.sum), sum.ending, sum.left_ms])
        };
        let mut page = self.page(map.as_ref());
        page["next"] = goes_on.then(|| format!("{}.{}", cursor.shard, cursor.next)).into();
        page["done"] = cursor.shard.into();
        page["shards"] = self.store.shards().into();
        page["spreads"] = map.iter().flat_map(|map| &map.spreads).map(|spread| spread.id).collect();
        page["groups"] = of_map.map_or_else(Vec::new, |spread| groups(spread, sums.keys())).into();
        page["slots"] = sums.into_iter().map(one).collect();
        Some(page.to_string())
    }

    /// `slot/SPREAD/SLOT[/NEXT]`: the objects of a slot, or some of them.
    pub(super) fn slot_objects(&self, asked: &str, now: Now) -> Option<String> {
        let mut words = asked.split('/');
        let spread = spread_of(words.next()?)?;
        let slot: usize = words.next()?.parse().ok().filter(|slot| *slot < SLOTS)?;
        let mut cursor = match words.next() {
            None => SlotCursor::new(spread, slot),
            Some(mark) => SlotCursor::at_mark(spread, slot, mark.parse().ok()?),
        };
        let map = self.map_now();
        let (mut items, mut objects, mut bytes) = (Vec::new(), Vec::new(), 0);
        // Each turn is one stretch: many of them where few objects are the slot's.
        for _ in 0..COMPARE_STRETCHES {
            if cursor.is_at_end() || bytes > COMPARE_PAGE_BYTES {
                break;
            }
            self.store.digest_turn(&mut cursor, &mut items, 1, now);
            for item in items.drain(..) {
                let object = self.object(&item);
                bytes += OBJECT_BYTES + 2 * item.key.name.len().min(COMPARE_NAME_BYTES);
                objects.push(object);
            }
        }
        let mut page = self.page(map.as_ref());
        page["next"] = cursor.mark().map(|mark| mark.to_string()).into();
        page["objects"] = objects.into();
        Some(page.to_string())
    }

    fn map_now(&self) -> Option<Arc<Map>> {
        Some(self.place.get()?.map()?.0)
    }

    /// What stands in each page: who tells it, and by which map.
    fn page(&self, map: Option<&Arc<Map>>) -> Value {
        let node = self.member.get().map(|member| member.life.node.0.get());
        json!({"node": node, "epoch": map.map_or(0, |map| map.epoch)})
    }

    fn object(&self, item: &SlotDigest) -> Value {
        let key = &item.key;
        let id = ObjectId::of(&self.store.hash_key(), key.collection, &key.name);
        let collection = self.store.collection_by_id(key.collection).map(|c| c.name().to_owned());
        json!({
            "id": hex(&id.to_bytes()),
            "collection": collection,
            "name": hex(&key.name[..key.name.len().min(COMPARE_NAME_BYTES)]),
            "version": item.version,
            "digest": format!("{:032x}", item.digest),
            "left_ms": item.left_ms,
        })
    }
}

/// Stretches of one page of a slot at most: 1 ms.
const COMPARE_STRETCHES: usize = 32;
/// Bytes of an object on a page beside its name, about.
const OBJECT_BYTES: usize = 200;

/// The groups of these slots: number, members, and which of those are being brought up to date.
fn groups<'s>(spread: &Spread, slots: impl Iterator<Item = &'s u16>) -> Vec<Value> {
    let numbers: BTreeSet<u16> = slots.map(|slot| spread.slots[usize::from(*slot)]).collect();
    let one = |number: u16| {
        let group = &spread.groups[usize::from(number)];
        let members: Vec<u32> = group.members().map(|id| id.0.get()).collect();
        let syncing = group.others.iter().filter(|member| member.standing != Standing::Backup);
        let syncing: Vec<u32> = syncing.map(|member| member.node.0.get()).collect();
        json!([number, members, syncing])
    };
    numbers.into_iter().map(one).collect()
}

fn spread_of(text: &str) -> Option<u16> {
    text.parse().ok().filter(|spread| usize::from(*spread) < SPREADS_MAX)
}

fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 * bytes.len());
    bytes.iter().for_each(|byte| write!(text, "{byte:02x}").expect("a string takes all"));
    text
}
