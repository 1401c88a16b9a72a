//! What this node keeps of a group's objects: [`Copies`] over the store, each step under the lock of its object.
//!
//! A key of an earlier generation than the collection has here is over: nothing of it is found or kept. One of a later
//! generation flushes the collection, before its write is prepared or its copy kept. The requests that a write answers
//! are kept beside it while it is pending, and go into the window of the group when it is committed.

use super::change::{Becomes, Edit, Held, Key, Object, refusal_of};
use super::operation::PUT_AT_ONCE;
use crate::apply::Snapshot;
use crate::context::Context;
use crate::held as memory;
use herd_core::Error;
use herd_core::bugs::{Bug, has};
use herd_core::entry::{COUNTER_BITS, Version};
use herd_core::limits::{SLOTS, WINDOWS_PART};
use herd_core::place::GroupId;
use herd_core::replica::window::{Known, RequestId, Window};
use herd_core::replica::{self, GroupEpoch, Pending, Refusal, State};
use herd_core::wire::{Answers, Asked};
use herd_store::{Collection, Entry, Given, NewObject, Seat, SlotCursor, Store};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Entries of a shard that are looked at before the next object of a group is told.
const NEXT_BUDGET: usize = 256;

/// What a loop keeps of one group besides its part and the store.
pub(crate) struct Kept {
    /// The group.
    pub(super) group: GroupId,
    /// Its slots, rising.
    pub(super) slots: Vec<u16>,
    window: Window,
    /// Its bytes, counted in the memory.
    held: memory::Held,
    /// Since the view of this epoch all writes come by here; of those before, some may not have.
    since: GroupEpoch,
    /// Requests that stand in line or are under way here, and how often each does.
    standing: BTreeMap<RequestId, u32>,
    /// Those that were refused, as what was there goes for them.
    pub(super) undoing: BTreeSet<RequestId>,
    /// What is pending, by slot and version, where it answers requests.
    answering: BTreeMap<(u16, Version), Answering>,
    /// The ids of clients that this answers, which are looked for each time.
    under_way: BTreeMap<RequestId, u32>,
    /// The version that the write has that is about to begin.
    pub(super) version: Option<Version>,
}

/// A write that answers requests.
enum Answering {
    /// It makes this of its object.
    Edit(Edit),
    /// It is a put that began at once, for this request.
    Put(RequestId),
}

impl Answering {
    /// Whether it answers this request.
    fn has(&self, id: RequestId) -> bool {
        match self {
            Answering::Edit(edit) => edit.answers().iter().any(|(of, _)| of == id),
            Answering::Put(of) => *of == id,
        }
    }

    /// Hands the ids of the requests to `f`.
    fn ids(&self, mut f: impl FnMut(RequestId)) {
        match self {
            Answering::Edit(edit) => edit.answers().iter().for_each(|(id, _)| f(id)),
            Answering::Put(id) => f(*id),
        }
    }

    /// Hands the ids that clients have made to `f`.
    fn own_ids(&self, mut f: impl FnMut(RequestId)) {
        self.ids(|id| {
            if id.is_own() {
                f(id);
            }
        });
    }

    /// The requests, encoded as [`Answers`].
    fn bytes(&self) -> Vec<u8> {
        match self {
            Answering::Edit(edit) => edit.answers().bytes().to_vec(),
            Answering::Put(id) => {
                let mut answers = Vec::new();
                Answers::push(&mut answers, *id, PUT_AT_ONCE);
                answers
            }
        }
    }
}

/// One less of these is there.
fn count_off(counts: &mut BTreeMap<RequestId, u32>, id: RequestId) {
    let Some(count) = counts.get_mut(&id) else { return };
    *count -= 1;
    if *count == 0 {
        counts.remove(&id);
    }
}

/// See the module.
pub(crate) struct Copies<'c> {
    pub(super) cx: &'c Context,
    pub(super) kept: &'c mut Kept,
}

impl Kept {
    /// Of a group that holds these slots.
    pub(super) fn new(store: &Arc<Store>, group: GroupId) -> Self {
        Self {
            group,
            slots: Vec::new(),
            window: Window::default(),
            held: memory::Held::nothing(store),
            // What this node did before alone it has not noted.
            since: GroupEpoch::MAX,
            standing: BTreeMap::new(),
            undoing: BTreeSet::new(),
            answering: BTreeMap::new(),
            under_way: BTreeMap::new(),
            version: None,
        }
    }

    /// All that was here is dropped; what comes by from now on is not all.
    pub(super) fn forget(&mut self) {
        (self.since, self.window) = (GroupEpoch::MAX, Window::default());
        self.answering.clear();
        self.under_way.clear();
        // To hold nothing is never refused.
        self.held.set(0).ok();
    }

    /// Whether writes may pass it by.
    pub(super) fn is_blind(&self) -> bool {
        self.since == GroupEpoch::MAX
    }

    /// The node is waited for in the view of this epoch: what is asked first under its map, or a later one, comes by.
    pub(super) fn sees_all(&mut self, epoch: GroupEpoch) {
        self.since = epoch;
    }

    /// Nothing is left of what was done before the view of this epoch.
    pub(super) fn lost_before(&mut self, epoch: GroupEpoch) {
        self.since = self.since.max(epoch);
    }

    /// Writes under way whose answers are kept for the windows.
    #[cfg(test)]
    pub(super) fn answering(&self) -> usize {
        self.answering.len()
    }

    /// What is known of a request.
    pub(super) fn known(&self, asked: &Asked, now_ms: u64) -> Known {
        let is_under_way = match asked.id.is_own() {
            true => self.under_way.contains_key(&asked.id),
            false => self.answering.values().any(|write| write.has(asked.id)),
        };
        if is_under_way {
            return Known::UnderWay;
        }
        let all_seen = asked.first_epoch == 0 || asked.first_epoch >= self.since;
        self.window.find(asked.id, all_seen, now_ms)
    }

    /// Whether a request is new, and does not stand here.
    pub(super) fn is_new(&self, asked: &Asked, now_ms: u64) -> bool {
        let is_sure = asked.first_epoch == 0 || self.known(asked, now_ms) == Known::New;
        is_sure && !self.standing.contains_key(&asked.id)
    }

    /// A request comes, and stands here until it leaves: whether it is new. Where the same stands here already, which
    /// may itself be one that is not new, or may have been done, that is told when it is decided.
    pub(super) fn stand(&mut self, asked: &Asked, now_ms: u64) -> bool {
        let is_new = self.is_new(asked, now_ms);
        *self.standing.entry(asked.id).or_default() += 1;
        is_new
    }

    /// Whether no other stands here that is the same request.
    pub(super) fn stands_alone(&self, id: RequestId) -> bool {
        self.standing.get(&id).is_none_or(|count| *count <= 1)
    }

    /// A request that stood here has its answer.
    pub(super) fn leave(&mut self, id: RequestId) {
        count_off(&mut self.standing, id);
    }

    /// Keeps the window within its part of the memory after it has grown.
    fn bound(&mut self, now_ms: u64, memory_bytes: u64) {
        let most_bytes = memory_bytes / WINDOWS_PART * self.slots.len() as u64 / SLOTS as u64;
        while self.window.bytes() > most_bytes && self.window.forget_oldest(now_ms) {}
        // Within its part it is there even if nobody counts it.
        self.held.set(self.window.room_bytes()).ok();
    }

    fn has(&self, slot: usize) -> bool {
        slot < SLOTS && self.slots.binary_search(&(slot as u16)).is_ok()
    }

    /// A write is prepared that answers requests.
    fn begin(&mut self, key: &Key, version: Version, edit: &Edit) {
        if !edit.answers().bytes().is_empty() {
            self.answer((key.of.slot() as u16, version), Answering::Edit(edit.clone()));
        }
    }

    /// A write that answers requests is pending.
    fn answer(&mut self, write: (u16, Version), answering: Answering) {
        answering.own_ids(|id| *self.under_way.entry(id).or_default() += 1);
        self.answering.insert(write, answering);
    }

    /// It is not any more; gives what it answers.
    fn answered(&mut self, write: (u16, Version)) -> Option<Answering> {
        let answering = self.answering.remove(&write)?;
        answering.own_ids(|id| count_off(&mut self.under_way, id));
        Some(answering)
    }

    /// The write under way of this object has ended; `true`: it is committed.
    fn end(&mut self, key: &Key, version: Version, is_done: bool, (now_ms, memory_bytes): (u64, u64)) {
        let Some(answering) = self.answered((key.of.slot() as u16, version)) else { return };
        if is_done {
            match answering {
                Answering::Edit(edit) => {
                    edit.answers().iter().for_each(|(id, result)| self.window.end(id, version, result, now_ms));
                }
                Answering::Put(id) => self.window.end(id, version, Some(PUT_AT_ONCE), now_ms),
            }
            self.bound(now_ms, memory_bytes);
        }
    }
}

impl<'c> Copies<'c> {
    /// The collection of a key, if it is of the generation that the key names.
    fn collection(&self, key: &Key) -> Option<Collection> {
        let c = self.cx.shared.store.collection_by_id(key.of.collection)?;
        (c.generation() == key.generation && self.cx.shared.store.is_key(&c, &key.of)).then_some(c)
    }

    /// As [`Copies::collection`], and flushes it if its generation is an earlier one. `Ok(None)`: the key is over.
    fn reach(&self, key: &Key) -> Result<Option<Collection>, Refusal> {
        let store = &self.cx.shared.store;
        let Some(c) = store.collection_by_id(key.of.collection) else {
            return if store.is_gone(key.of.collection) { Ok(None) } else { Err(Refusal::NoCollection) };
        };
        if !store.is_key(&c, &key.of) {
            // It came before the map that has its collection.
            return Err(Refusal::NoCollection);
        }
        if c.generation() < key.generation {
            c.reach(key.generation);
            self.cx.emptied(c.id());
        }
        Ok(Some(c).filter(|c| c.generation() == key.generation))
    }

    /// Looks at an object; `None` where its key is not of the present generation.
    pub(super) fn look<R>(&self, key: &Key, look: impl FnOnce(Entry<'_>) -> R) -> Option<R> {
        let c = self.collection(key)?;
        let entry = self.cx.shared.store.entry_of(&c, &key.of, self.cx.now);
        c.is_still(key.generation).then(|| look(entry))
    }

    /// The object as it is committed, whether its time is over or not.
    pub(super) fn snapshot(&self, key: &Key) -> Option<Snapshot> {
        self.look(key, |entry| entry.found_committed().as_ref().map(Snapshot::of)).flatten()
    }

    /// Has `keep` put an object in its place in the store; false: its key is over.
    fn keep(
        &self,
        (c, key): (&Collection, &Key),
        object: &Object,
        keep: impl FnOnce(&mut Entry<'_>, &NewObject<'_>) -> Result<(), Error>,
    ) -> Result<bool, Refusal> {
        let before = match (&object.value, &object.attributes) {
            (Held::Kept, _) | (_, None) => self.snapshot(key),
            _ => None,
        };
        let value = match &object.value {
            Held::Kept => match &before {
                Some(before) => Held::of(before),
                // It was flushed meanwhile, or there is nothing to keep.
                None if !c.is_still(key.generation) => return Ok(false),
                None => return Err(Refusal::Full),
            },
            value => value.clone(),
        };
        let given = match &value {
            Held::Small(bytes, crc) => Given::Small(bytes, Some(*crc)),
            Held::Large(body) => Given::Large(body.clone()),
            Held::Kept => return Err(Refusal::Full),
        };
        let old = before.as_ref().map_or(&[][..], |before| &before.attributes);
        let attributes = object.attributes.as_deref().unwrap_or(old);
        let Object { flags, expires_ms, memcached, fence, .. } = *object;
        let new = NewObject { value: given, flags, expires_ms, attributes, memcached, fence };
        let mut entry = self.cx.shared.store.entry_of(c, &key.of, self.cx.now);
        if !c.is_still(key.generation) {
            // It was flushed before the entry was locked.
            return Ok(false);
        }
        keep(&mut entry, &new).map(|()| true).map_err(|error| refusal_of(&error))
    }

    /// Prepares a put that needs no decision, above this floor, for this request. `None`: it has to be decided,
    /// or there is no room for it.
    pub(super) fn prepare_put(
        &mut self,
        (c, key): (&Collection, &Key),
        new: &NewObject<'_>,
        floor: Version,
        id: RequestId,
    ) -> Option<Pending> {
        let mut entry = self.cx.shared.store.entry_of(c, &key.of, self.cx.now);
        let is_plain = entry.seat() == Seat::Led && entry.is_clean() && !entry.is_fenced();
        if !is_plain || !c.is_still(key.generation) {
            return None;
        }
        let write = Pending { version: entry.take_version(floor), base: entry.committed(), removes: false };
        entry.try_prepare(write.version, write.base, new).ok()?;
        drop(entry);
        self.kept.answer((key.of.slot() as u16, write.version), Answering::Put(id));
        Some(write)
    }
}

impl replica::Copies<Key, Edit> for Copies<'_> {
    fn state(&self, key: &Key) -> State {
        let store = &self.cx.shared.store;
        let Some(c) = store.collection_by_id(key.of.collection) else {
            return State { is_over: store.is_gone(key.of.collection), ..State::default() };
        };
        if c.generation() != key.generation {
            return State { is_over: c.generation() > key.generation, ..State::default() };
        }
        let entry = store.entry_of(&c, &key.of, self.cx.now);
        if !c.is_still(key.generation) {
            return State { is_over: true, ..State::default() };
        }
        State { committed: entry.committed(), pending: entry.pending(), is_over: false }
    }

    fn pendings(&self) -> Vec<(Key, Pending)> {
        let store = &self.cx.shared.store;
        let all = store.pendings(self.kept.group.spread, |slot| self.kept.has(slot), self.cx.now);
        let generation = |key: &herd_store::Key| store.collection_by_id(key.collection).map(|c| c.generation());
        all.into_iter().filter_map(|(of, write)| Some((Key { generation: generation(&of)?, of }, write))).collect()
    }

    fn sift(&mut self) {
        if self.kept.answering.is_empty() {
            return;
        }
        let write = |(key, write): (Key, Pending)| (key.of.slot() as u16, write.version);
        let pending: BTreeSet<_> = self.pendings().into_iter().map(write).collect();
        let now_ms = self.cx.now_ms();
        let is_over = |write: &(u16, Version)| !pending.contains(write);
        for over in self.kept.answering.keys().copied().filter(is_over).collect::<Vec<_>>() {
            if let Some(answering) = self.kept.answered(over) {
                // It may have been done.
                answering.ids(|id| self.kept.window.end(id, over.1, None, now_ms));
            }
        }
        self.kept.bound(now_ms, self.cx.shared.config.memory_bytes);
    }

    fn next_version(&mut self, key: &Key, since: GroupEpoch) -> Version {
        let given = self.kept.version.take();
        let floor = floor(since);
        // Where the key is over its write is over too, whatever number it has.
        given.or_else(|| self.look(key, |mut entry| entry.take_version(floor))).unwrap_or(floor + 1)
    }

    fn prepare(&mut self, key: &Key, write: Pending, change: &Edit) -> Result<(), Refusal> {
        let Some(c) = self.reach(key)? else { return self.pass_over(write, change) };
        match change.becomes() {
            Becomes::Refused(refusal) => return Err(*refusal),
            Becomes::Removed(fence) => {
                let mut entry = self.cx.shared.store.entry_of(&c, &key.of, self.cx.now);
                if !c.is_still(key.generation) {
                    drop(entry);
                    return self.pass_over(write, change);
                }
                let kept = entry.prepare_remove(write.version, write.base, *fence);
                kept.map_err(|error| refusal_of(&error))?;
            }
            Becomes::Put(object) => {
                if !self.keep((&c, key), object, |entry, new| entry.prepare(write.version, write.base, new))? {
                    return self.pass_over(write, change);
                }
            }
        }
        self.kept.begin(key, write.version, change);
        Ok(())
    }

    fn prepare_next(&mut self, key: &Key, write: Pending, change: &Edit) -> Option<Result<(), Refusal>> {
        let Becomes::Put(object) = change.becomes() else { return None };
        let (Held::Small(bytes, crc), Some(attributes)) = (&object.value, object.attributes.as_deref()) else {
            return None;
        };
        let c = self.collection(key)?;
        let Object { flags, expires_ms, memcached, fence, .. } = *object;
        let value = Given::Small(bytes, Some(*crc));
        let new = NewObject { value, flags, expires_ms, attributes, memcached, fence };
        let mut entry = self.cx.shared.store.entry_of(&c, &key.of, self.cx.now);
        if !c.is_still(key.generation) || !entry.is_clean() || entry.committed() != write.base {
            return None;
        }
        let kept = entry.prepare(write.version, write.base, &new).map_err(|error| refusal_of(&error));
        drop(entry);
        if kept.is_ok() {
            self.kept.begin(key, write.version, change);
        }
        Some(kept)
    }

    fn end(&mut self, key: &Key, version: Version, is_committed: bool) {
        let c = self.collection(key);
        let end = |c: &Collection| {
            let mut entry = self.cx.shared.store.entry_of(c, &key.of, self.cx.now);
            if is_committed { entry.commit(version) } else { entry.abort(version) }
        };
        // Of a key that is over the store has nothing any more; what its write answers is here still.
        if !c.as_ref().is_none_or(|c| end(c) || !c.is_still(key.generation)) {
            return;
        }
        let memory_bytes = self.cx.shared.config.memory_bytes;
        self.kept.end(key, version, is_committed, (self.cx.now_ms(), memory_bytes));
        if let Some(c) = c.filter(|_| is_committed) {
            self.cx.changed(&c, &key.of.name);
        }
    }

    fn whole(&self, key: &Key) -> Edit {
        let pending = self.look(key, |entry| {
            let write = entry.pending()?;
            let found = entry.found_pending().as_ref().map(Snapshot::of);
            // The token of a removal is kept beside it until it is committed.
            Some((write, found, entry.leaves()))
        });
        let Some((write, found, left)) = pending.flatten() else { return self.whole_committed(key) };
        match self.kept.answering.get(&(key.of.slot() as u16, write.version)) {
            Some(Answering::Edit(edit)) if write.removes => edit.clone(),
            Some(answering) => Edit::whole(found.as_ref(), left, answering.bytes()),
            None => Edit::whole(found.as_ref(), left, Vec::new()),
        }
    }

    fn whole_committed(&self, key: &Key) -> Edit {
        let found = self.look(key, |entry| (entry.found_committed().as_ref().map(Snapshot::of), entry.left()));
        let (found, left) = found.unwrap_or((None, None));
        Edit::whole(found.as_ref(), left, Vec::new())
    }

    fn has_token(&self, key: &Key) -> bool {
        self.look(key, |entry| entry.committed() == 0 && entry.left().is_some()) == Some(true)
    }

    fn next_key(&self, after: Option<&Key>) -> Option<Key> {
        let (store, spread, mut items) = (&self.cx.shared.store, self.kept.group.spread, Vec::new());
        let first = after.map_or(0, |key| key.of.slot() as u16);
        let from = self.kept.slots.partition_point(|slot| *slot < first);
        for slot in self.kept.slots[from..].iter().map(|slot| usize::from(*slot)) {
            let here = after.filter(|key| key.of.slot() == slot);
            let mut cursor = here.map_or(SlotCursor::new(spread, slot), |key| store.cursor_at(&key.of));
            while !cursor.is_at_end() {
                store.slot_turn(&mut cursor, &mut items, NEXT_BUDGET, self.cx.now);
                let keys = items.drain(..).filter_map(|item| self.key_of(item.key));
                if let Some(key) = keys.into_iter().find(|key| after.is_none_or(|after| key > after)) {
                    return Some(key);
                }
            }
        }
        None
    }

    fn copy(&mut self, key: &Key, version: Version, state: &Edit) -> Result<(), Refusal> {
        let Some(c) = self.reach(key)? else { return Ok(()) };
        match state.becomes() {
            Becomes::Refused(refusal) => return Err(*refusal),
            Becomes::Put(object) => {
                if !self.keep((&c, key), object, |entry, new| entry.copy(version, new))? {
                    return Ok(());
                }
            }
            Becomes::Removed(fence) => {
                let mut entry = self.cx.shared.store.entry_of(&c, &key.of, self.cx.now);
                if c.is_still(key.generation) {
                    fence.iter().for_each(|fence| entry.copy_left(*fence));
                }
                return Ok(());
            }
        }
        self.cx.changed(&c, &key.of.name);
        Ok(())
    }
}

/// What is below all versions of a primary since that epoch.
pub(super) fn floor(since: GroupEpoch) -> Version {
    if has(Bug::LowVersion) { 0 } else { Version::from(since) << COUNTER_BITS }
}

impl Copies<'_> {
    /// A flush has ended what is to be prepared, so nothing of it is kept. But it may be done at the primary, before it
    /// hears of the flush: who asks once more is not to do it again.
    fn pass_over(&mut self, write: Pending, change: &Edit) -> Result<(), Refusal> {
        let (now_ms, memory_bytes) = (self.cx.now_ms(), self.cx.shared.config.memory_bytes);
        change.answers().iter().for_each(|(id, _)| self.kept.window.end(id, write.version, None, now_ms));
        self.kept.bound(now_ms, memory_bytes);
        Ok(())
    }

    /// The key of an object that the store told of.
    pub(super) fn key_of(&self, of: herd_store::Key) -> Option<Key> {
        let c = self.cx.shared.store.collection_by_id(of.collection)?;
        Some(Key { of, generation: c.generation() })
    }
}
