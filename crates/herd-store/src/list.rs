//! Listings by page: sorted where the collection keeps names in order, else in the order of the names' hashes.
//!
//! Either way a page begins after a name, not at a position, so a listing survives changes between its pages: what was
//! there all the time is listed once.

use crate::collection::State;
use crate::index::Tag;
use crate::shard::Shard;
use crate::{Collection, Now, Store};
use herd_core::key::ObjectId;

/// Entries looked at under one lock.
const STRETCH: usize = 256;

/// One object of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListItem {
    /// Its name.
    pub name: Box<[u8]>,
    /// Bytes of its value.
    pub size_bytes: u64,
    /// Its version.
    pub version: u64,
}

/// One page of a listing; fewer items than asked for: the last.
pub type Page = Vec<ListItem>;

impl Store {
    /// Up to `limit` objects whose names begin with `prefix`, after the name `after`.
    pub fn list(&self, c: &Collection, prefix: &[u8], after: Option<&[u8]>, limit: usize, now: Now) -> Page {
        if c.0.spec.ordered {
            self.list_sorted(c, prefix, after, limit, now)
        } else {
            self.list_hashed(c, prefix, after, limit, now)
        }
    }

    fn list_sorted(&self, c: &Collection, prefix: &[u8], after: Option<&[u8]>, limit: usize, now: Now) -> Page {
        let mut page = Page::new();
        let mut after: Option<Box<[u8]>> = after.map(Into::into);
        while page.len() < limit {
            let sorted = c.0.names.as_ref().expect("this collection keeps names");
            let names = sorted.after(prefix, after.as_deref(), STRETCH.min(limit));
            let Some(last) = names.last() else {
                break;
            };
            after = Some(last.clone());
            for name in names.into_iter() {
                let head = self.entry(c, &name, now).found().map(|found| found.head);
                if let Some(head) = head.filter(|_| page.len() < limit) {
                    page.push(ListItem { name, size_bytes: head.size_bytes, version: head.version });
                }
            }
        }
        page
    }

    fn list_hashed(&self, c: &Collection, prefix: &[u8], after: Option<&[u8]>, limit: usize, now: Now) -> Page {
        let mut page = Page::new();
        let (mut shard, mut from) = (0, Some(Tag::MIN));
        let mut passed = after.map(|name| {
            let id = ObjectId::of(&self.hash_key, c.0.id, name);
            let tag = Tag::new(id.tag_bits());
            (shard, from) = (id.slot() & (self.shards.len() - 1), Some(tag));
            (tag, name)
        });
        while page.len() < limit && shard < self.shards.len() {
            let Some(start) = from else {
                (shard, from) = (shard + 1, Some(Tag::MIN));
                continue;
            };
            let (mut items, next) = stretch(&self.lock(shard), &c.0, prefix, start, now);
            items.sort_by(|(a, x), (b, y)| (a, &x.name).cmp(&(b, &y.name)));
            let later = |tag: Tag, name: &[u8]| passed.is_none_or(|passed| (tag, name) > passed);
            let fresh = items.into_iter().filter(|(tag, item)| later(*tag, &item.name)).map(|(_, item)| item);
            page.extend(fresh.take(limit - page.len()));
            passed = None;
            from = next;
        }
        page
    }
}

/// The objects of one stretch of a shard, and where the next stretch begins.
fn stretch(shard: &Shard, c: &State, prefix: &[u8], from: Tag, now: Now) -> (Vec<(Tag, ListItem)>, Option<Tag>) {
    let mut items = Vec::new();
    let to = shard.index.stretch(from, STRETCH);
    let generation = c.generation(now.unix_ms);
    shard.index.range(from, to, |tag, addr| {
        let note = shard.arena.note(&shard.owner, crate::arena::PageId(addr.page()));
        let record = shard.record(addr);
        let head = record.head();
        let current = note.collection == c.index && note.generation == generation;
        if current && record.name().starts_with(prefix) && !head.is_expired(now.unix_ms) {
            let item = ListItem { name: record.name().into(), size_bytes: head.size_bytes, version: head.version };
            items.push((tag, item));
        }
    });
    (items, to.next())
}
