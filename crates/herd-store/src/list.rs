//! Listings in turns: sorted where the collection keeps names in order, else in the order of the names' hashes.
//!
//! A [`ListCursor`] stands after a name, not at a position, so a listing survives changes between its turns: what was
//! there all the time is listed once. A turn looks at a bounded number of entries, whether they match or not, and takes
//! a lock for a stretch of them at a time.

use crate::arena::PageId;
use crate::collection::State;
use crate::index::Tag;
use crate::record::PENDING;
use crate::shard::Shard;
use crate::{Collection, Now, Store};

/// Entries looked at under one lock.
const STRETCH: usize = 256;
/// Entries looked at in one turn: 0.2 to 0.6 ms.
const TURN_ENTRIES: usize = 2048;
/// A stretch without an entry costs as much as so many entries.
const EMPTY_STRETCH_ENTRIES: usize = 16;

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

/// Objects of a listing, one after the other.
pub type Page = Vec<ListItem>;

/// Where a listing stands. It holds its collection, but no lock and no object.
pub struct ListCursor {
    c: Collection,
    prefix: Box<[u8]>,
    at: Place,
}

enum Place {
    /// After this name, or at the first.
    Sorted(Option<Box<[u8]>>),
    /// In this shard, at this tag; of the names with this tag those after the given one.
    Hashed(usize, Tag, Option<Box<[u8]>>),
    End,
}

impl ListCursor {
    /// What it lists.
    pub fn collection(&self) -> &Collection {
        &self.c
    }

    /// Whether everything was listed.
    pub fn is_at_end(&self) -> bool {
        matches!(self.at, Place::End)
    }
}

impl Store {
    /// Begins a listing of the objects whose names begin with `prefix` and come after the name `after`.
    pub fn begin_list(&self, c: &Collection, prefix: &[u8], after: Option<&[u8]>) -> ListCursor {
        let at = match after {
            _ if c.spec().ordered => Place::Sorted(after.map(Into::into)),
            None => Place::Hashed(0, Tag::MIN, None),
            Some(name) => {
                let id = c.0.object_id(&self.hash_key, name);
                Place::Hashed(self.layout.place(id.slot()).0, self.layout.tag(id), Some(name.into()))
            }
        };
        ListCursor { c: c.clone(), prefix: prefix.into(), at }
    }

    /// A turn of a listing: appends objects to `page` until it has `limit`, everything is listed, or 2,048 entries were
    /// looked at. There is more as long as the cursor is not at its end.
    pub fn list_turn(&self, cursor: &mut ListCursor, page: &mut Page, limit: usize, now: Now) {
        let mut looked = 0;
        while page.len() < limit && looked < TURN_ENTRIES && !cursor.is_at_end() {
            looked += match &cursor.at {
                Place::Sorted(_) => self.list_sorted(cursor, page, limit, now),
                _ => self.list_hashed(cursor, page, limit, now),
            };
        }
    }

    /// Up to `limit` objects whose names begin with `prefix`, after the name `after`, however long that takes; fewer:
    /// there are no more.
    pub fn list(&self, c: &Collection, prefix: &[u8], after: Option<&[u8]>, limit: usize, now: Now) -> Page {
        let (mut cursor, mut page) = (self.begin_list(c, prefix, after), Page::new());
        while page.len() < limit && !cursor.is_at_end() {
            self.list_turn(&mut cursor, &mut page, limit, now);
        }
        page
    }

    /// Lists one stretch of the sorted names; gives how many it looked at.
    fn list_sorted(&self, cursor: &mut ListCursor, page: &mut Page, limit: usize, now: Now) -> usize {
        let (c, Place::Sorted(after)) = (&cursor.c, &mut cursor.at) else { return 0 };
        let sorted = c.0.names.as_ref().expect("this collection keeps names");
        let names = sorted.after(&cursor.prefix, after.as_deref(), STRETCH.min(limit - page.len()));
        let looked = names.len();
        match names.last() {
            Some(last) => *after = Some(last.clone()),
            None => cursor.at = Place::End,
        }
        for name in names {
            let head = self.entry(c, &name, now).found().map(|found| found.head);
            if let Some(head) = head {
                page.push(ListItem { name, size_bytes: head.size_bytes, version: head.version });
            }
        }
        looked
    }

    /// Lists one stretch of a shard; gives how many entries it looked at.
    fn list_hashed(&self, cursor: &mut ListCursor, page: &mut Page, limit: usize, now: Now) -> usize {
        let Place::Hashed(at, from, passed) = &cursor.at else { return 0 };
        let (at, from) = (*at, *from);
        let (mut items, next, looked) = stretch(&self.lock(at), &cursor.c.0, &cursor.prefix, from, now);
        if let Some(passed) = passed {
            items.retain(|(tag, item)| (*tag, &item.name) > (from, passed));
        }
        items.sort_by(|(a, x), (b, y)| (a, &x.name).cmp(&(b, &y.name)));
        let room = limit - page.len();
        cursor.at = match items.get(room - 1).filter(|_| items.len() > room) {
            Some((tag, last)) => Place::Hashed(at, *tag, Some(last.name.clone())),
            None => match next {
                Some(tag) => Place::Hashed(at, tag, None),
                None if at + 1 < self.shards.len() => Place::Hashed(at + 1, Tag::MIN, None),
                None => Place::End,
            },
        };
        page.extend(items.into_iter().take(room).map(|(_, item)| item));
        looked + EMPTY_STRETCH_ENTRIES
    }
}

/// The objects of one stretch of a shard, where the next stretch begins, and how many entries were looked at.
fn stretch(shard: &Shard, c: &State, prefix: &[u8], from: Tag, now: Now) -> (Vec<(Tag, ListItem)>, Option<Tag>, usize) {
    let (mut items, mut looked) = (Vec::new(), 0);
    let to = shard.index.stretch(from, STRETCH);
    let generation = c.generation(now.unix_ms);
    shard.index.range(from, to, |tag, addr| {
        looked += 1;
        let note = shard.arena.note(&shard.owner, PageId(addr.page()));
        if note.collection != c.index || note.generation != generation {
            return;
        }
        let record = shard.record(addr);
        let expires_ms = record.expires_ms();
        let is_there = !record.is_marked(PENDING) && (expires_ms == 0 || expires_ms > now.unix_ms);
        if is_there && record.name().starts_with(prefix) {
            let head = record.head();
            let item = ListItem { name: record.name().into(), size_bytes: head.size_bytes, version: head.version };
            items.push((tag, item));
        }
    });
    (items, to.next(), looked)
}
