//! The objects of one slot of a spread group, in turns: to copy them, to compare them, or to have done with them.
//!
//! They are told by their tags, and from those of other spread groups by their pages; so a turn reads words of the
//! index and touches only what is the slot's, or that of another group's slot of the same number. A
//! [`SlotCursor`] stands between two tags, so it survives growth of the index, and changes: what is there all the time
//! is met once. The order, that of [`Key`], is the same in every node, whatever its number of shards.
//!
//! Who may call: the node, without any lock. A turn has the lock of the slot's shard for a stretch at a time.

use crate::arena::PageId;
use crate::collection::{Generation, State, object_id};
use crate::index::{Addr, Tag};
use crate::pending::{ByName, Of};
use crate::record::PENDING;
use crate::shard::{Logs, Shard};
use crate::slot::Layout;
use crate::{Collection, Now, Store};
use herd_core::entry::Version;
use herd_core::key::{CollectionId, ObjectId};
use herd_core::replica::Pending;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Objects of the slot that one stretch is meant to meet where slots are of one size.
const STRETCH_OBJECTS: usize = 16;
/// Entries of one stretch at most: 5 us of reading.
const STRETCH_ENTRIES_MAX: usize = 4096;
/// A stretch without an entry costs as much as so many entries.
const EMPTY_STRETCH_ENTRIES: usize = 64;

/// What names an object in its herd, in the order in which the objects of a slot are met: by the hash of the name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    slot: u16,
    hash: u64,
    /// Its collection.
    pub collection: CollectionId,
    /// Its name; shared, as a key is cloned for each member of a group.
    pub name: Arc<[u8]>,
    /// Its id, made of collection and name: whoever has the key need not hash the name again.
    id: ObjectId,
}

impl Key {
    fn of(id: ObjectId, collection: CollectionId, name: &[u8]) -> Self {
        Self { slot: id.slot() as u16, hash: id.tag_bits(), collection, name: name.into(), id }
    }

    pub(crate) fn id(&self) -> ObjectId {
        self.id
    }

    /// What tells its object from others, nearly: a hash of collection and name.
    pub fn fingerprint(&self) -> u64 {
        self.hash
    }

    /// Its slot.
    pub fn slot(&self) -> usize {
        usize::from(self.slot)
    }

    /// The spread group whose slot that is.
    pub fn spread(&self) -> u16 {
        self.collection.spread_group()
    }
}

/// An object of a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotItem {
    /// The object.
    pub key: Key,
    /// The version that is committed; 0: nothing is, but a write is pending, or the token of a lock is left there.
    pub version: Version,
}

/// Where one who goes through a slot stands. It holds no lock and no object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotCursor {
    pub(crate) spread: u16,
    pub(crate) slot: usize,
    /// `None`: at the end.
    pub(crate) next: Option<Tag>,
}

impl SlotCursor {
    /// Before all objects of a slot (below [`herd_core::limits::SLOTS`]) of a spread group.
    pub fn new(spread: u16, slot: usize) -> Self {
        Self { spread, slot, next: Some(Tag::MIN) }
    }

    /// Whether all objects were met.
    pub fn is_at_end(&self) -> bool {
        self.next.is_none()
    }
}

impl Store {
    /// The key of the object `name`.
    pub fn key(&self, c: &Collection, name: &[u8]) -> Key {
        self.key_of(&c.0, name)
    }

    /// The key of the object `name` of a collection that may not be known here, or no more. Of one that is not known
    /// yet it may be another than it will be: [`Store::is_key`] tells.
    pub fn key_in(&self, id: CollectionId, name: &[u8]) -> Key {
        Key::of(object_id(&self.hash_key, (id, self.registry.is_indexed(id)), name), id, name)
    }

    /// Whether this is the key of its object, by what is known of its collection now.
    #[inline]
    pub fn is_key(&self, c: &Collection, key: &Key) -> bool {
        !c.0.spec.indexed || c.0.object_id(&self.hash_key, &key.name) == key.id
    }

    pub(crate) fn key_of(&self, c: &State, name: &[u8]) -> Key {
        Key::of(c.object_id(&self.hash_key, name), c.id, name)
    }

    /// A cursor before this object, and before others whose hash begins as that of its name does.
    pub fn cursor_at(&self, key: &Key) -> SlotCursor {
        let next = self.layout.tag_at(key.slot(), key.hash);
        SlotCursor { spread: key.spread(), slot: key.slot(), next: Some(next) }
    }

    /// A turn through a slot: appends what it meets to `items`, in order, and ends when it has looked at some `budget`
    /// entries of the shard, of any slot; at 1 to 200 ns each. Objects whose time is over are met as all others.
    pub fn slot_turn(&self, cursor: &mut SlotCursor, items: &mut Vec<SlotItem>, budget: usize, now: Now) {
        self.turn(cursor, budget, |shard, stretch| self.list_stretch(shard, stretch, items, now));
    }

    /// Whether any object that expires was ever put here; without one nobody need look for what is over.
    pub fn has_expiring(&self) -> bool {
        self.arena.has_expiring()
    }

    /// As [`Store::slot_turn`], of the objects whose time is over: their keys.
    pub fn due_turn(&self, cursor: &mut SlotCursor, due: &mut Vec<Key>, budget: usize, now: Now) {
        self.turn(cursor, budget, |shard, stretch| {
            shard.look(stretch, now, |c, addr| {
                let record = shard.record(addr);
                let expires_ms = record.expires_ms();
                if expires_ms != 0 && expires_ms <= now.unix_ms && !record.is_marked(PENDING) {
                    due.push(self.key_of(c, record.name()));
                }
            })
        });
    }

    /// A turn of having done with a slot: what it meets goes, pending writes and tokens too. Only while `is_meant`,
    /// which is asked under the lock of the slot's shard, as is what the node is to the slot.
    pub fn clear_turn(&self, cursor: &mut SlotCursor, budget: usize, now: Now, is_meant: impl Fn(usize) -> bool) {
        let slot = cursor.slot;
        self.turn(cursor, budget, |shard, stretch| if is_meant(slot) { shard.clear_stretch(stretch, now) } else { 0 });
    }

    /// A turn in stretches; `look` gives how many entries it looked at.
    pub(crate) fn turn(
        &self,
        cursor: &mut SlotCursor,
        budget: usize,
        mut look: impl FnMut(&mut Shard, &Stretch) -> usize,
    ) {
        let (at, number) = self.layout.place(cursor.slot);
        let entries = (STRETCH_OBJECTS * self.layout.slots()).min(STRETCH_ENTRIES_MAX);
        let mut looked = 0;
        while looked < budget
            && let Some(from) = cursor.next
        {
            let mut shard = self.lock(at);
            if shard.is_empty_slot(cursor.spread, number) {
                cursor.next = None;
                return;
            }
            let to = shard.index.stretch(from, entries);
            let stretch = Stretch { spread: cursor.spread, number: Some(number), from, to };
            looked += look(&mut shard, &stretch) + EMPTY_STRETCH_ENTRIES;
            cursor.next = stretch.to.next();
        }
    }

    /// Lists a stretch; gives how many entries it looked at.
    fn list_stretch(&self, shard: &Shard, stretch: &Stretch, items: &mut Vec<SlotItem>, now: Now) -> usize {
        let mut met = Vec::new();
        let looked = shard.look(stretch, now, |c, addr| {
            let record = shard.record(addr);
            if !record.is_marked(PENDING) {
                met.push(SlotItem { key: self.key_of(c, record.name()), version: record.version() });
            }
        });
        for (of, _) in stretch.of(&shard.pending, self.layout) {
            if let Some(c) = shard.current(of.1, now).filter(|c| c.spread() == stretch.spread) {
                met.push(SlotItem { key: self.key_of(c, &of.2), version: 0 });
            }
        }
        for (generation, _, name) in shard.left_in(stretch, now) {
            if let Some(c) = shard.current(generation, now) {
                met.push(SlotItem { key: self.key_of(c, name), version: 0 });
            }
        }
        met.sort_by(|a, b| (&a.key, Reverse(a.version)).cmp(&(&b.key, Reverse(b.version))));
        met.dedup_by(|beside, committed| beside.key == committed.key);
        items.append(&mut met);
        looked
    }

    /// All writes that are pending in those slots of a spread group for which `is_meant`.
    pub fn pendings(&self, spread: u16, is_meant: impl Fn(usize) -> bool, now: Now) -> Vec<(Key, Pending)> {
        let mut all = Vec::new();
        for at in 0..self.shards.len() {
            let shard = self.lock(at);
            if shard.pending.is_empty() {
                continue;
            }
            let of_spread = shard.of_spread(spread);
            let meant = shard.pending.iter().filter(|((tag, ..), _)| is_meant(self.layout.slot(at, *tag)));
            all.extend(meant.filter_map(|((_, generation, name), prepared)| {
                let logs = of_spread.get(generation).filter(|logs| logs.is_current(*generation, now))?;
                Some((self.key_of(&logs.c, name), prepared.write))
            }));
        }
        all
    }
}

/// A stretch of a shard's index.
pub(crate) struct Stretch {
    /// The spread group that is meant.
    pub(crate) spread: u16,
    /// The number of the slot that is meant; `None`: all are.
    pub(crate) number: Option<usize>,
    /// From this tag on.
    pub(crate) from: Tag,
    /// To this one.
    pub(crate) to: Tag,
}

impl Stretch {
    /// What is kept by name of objects in this stretch, in the slot of any spread group.
    fn of<'a, T>(&self, kept: &'a ByName<T>, layout: Layout) -> impl Iterator<Item = (&'a Of, &'a T)> {
        kept.range(self.from, self.to).filter(move |((tag, ..), _)| self.means(layout, *tag))
    }

    /// Whether an object with this tag, of the shard, is of a slot that is meant.
    fn means(&self, layout: Layout, tag: Tag) -> bool {
        self.number.is_none_or(|number| layout.number(tag) == number)
    }
}

impl Logs {
    /// Whether this generation of the collection is the present one.
    fn is_current(&self, generation: Generation, now: Now) -> bool {
        self.generation == generation && self.c.generation(now.unix_ms) == generation
    }
}

impl Shard {
    /// Calls `each` for the entries of the slot that are neither flushed nor removed; gives how many of any slot it
    /// looked at.
    pub(crate) fn look(&self, stretch: &Stretch, now: Now, mut each: impl FnMut(&Arc<State>, Addr)) -> usize {
        let mut looked = 0;
        self.index.range(stretch.from, stretch.to, |tag, addr| {
            looked += 1;
            if stretch.means(self.layout, tag) {
                let note = self.arena.note(&self.owner, PageId(addr.page()));
                let logs = self.logs.get(usize::from(note.collection)).and_then(Option::as_ref);
                let logs =
                    logs.filter(|logs| logs.c.spread() == stretch.spread && logs.is_current(note.generation, now));
                logs.into_iter().for_each(|logs| each(&logs.c, addr));
            }
        });
        looked
    }

    /// The collection whose generation this is, if it still is.
    fn current(&self, generation: Generation, now: Now) -> Option<&Arc<State>> {
        self.logs.iter().flatten().find(|logs| logs.is_current(generation, now)).map(|logs| &logs.c)
    }

    /// The logs of a spread group, by generation.
    fn of_spread(&self, spread: u16) -> BTreeMap<Generation, &Logs> {
        let logs = self.logs.iter().flatten().filter(|logs| logs.c.spread() == spread);
        logs.map(|logs| (logs.generation, &**logs)).collect()
    }

    /// Takes a stretch of a slot out; gives how many entries it looked at.
    fn clear_stretch(&mut self, stretch: &Stretch, now: Now) -> usize {
        let mut met = Vec::new();
        let looked = self.look(stretch, now, |c, addr| met.push((c.clone(), addr)));
        for (c, addr) in &met {
            self.forget_name(c, *addr);
            let at = self.position(c, *addr);
            self.kill(c, at, *addr);
        }
        let meant: BTreeSet<Generation> = self.of_spread(stretch.spread).into_keys().collect();
        let layout = self.layout;
        let goes = |of: &Of| stretch.means(layout, of.0) && meant.contains(&of.1);
        self.pending.drop_range(&self.arena, stretch.from, stretch.to, goes);
        let left: Vec<(Generation, Tag, Box<[u8]>)> =
            self.left_in(stretch, now).map(|(g, t, name)| (g, t, name.into())).collect();
        left.iter().for_each(|(generation, tag, name)| self.forget_left(*generation, *tag, name));
        looked
    }

    /// Where a token is left in a stretch, of the present generations of its spread group.
    fn left_in(&self, stretch: &Stretch, now: Now) -> impl Iterator<Item = (Generation, Tag, &[u8])> {
        let of_spread =
            move |generation: &Generation| self.current(*generation, now).is_some_and(|c| c.spread() == stretch.spread);
        let generations = self.left.generations().filter(of_spread);
        let within = move |generation| {
            let range = self.left.range(generation, (stretch.from, stretch.to), now.unix_ms);
            range.filter(|(tag, _)| stretch.means(self.layout, *tag)).map(move |(tag, name)| (generation, tag, name))
        };
        generations.flat_map(within)
    }
}
