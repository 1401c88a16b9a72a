//! What the checker keeps of a group's entries at one node: values of two bytes, so that a range can go astray.

use crate::entry::{COUNTER_BITS, Version};
use crate::replica::bugs::{self, Bug};
use crate::replica::{Change, Copies, GroupEpoch, Pending, Refusal, State};
use std::collections::BTreeMap;

/// An entry, and in the lowest two bits the generation.
pub(super) type Key = u8;

pub(super) fn key_of(entry: u8, generation: u8) -> Key {
    entry << 2 | generation
}

fn generation_of(key: Key) -> u8 {
    key & 3
}

/// A change. Each byte names the operation it came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Val {
    Whole([u8; 2]),
    Range(usize, u8),
    Gone,
}

impl Val {
    /// The state after it.
    pub(super) fn over(self, state: Option<[u8; 2]>) -> Option<[u8; 2]> {
        match self {
            Val::Gone => None,
            Val::Whole(bytes) => Some(bytes),
            Val::Range(at, byte) => {
                let mut bytes = state.unwrap_or_default();
                bytes[at] = byte;
                Some(bytes)
            }
        }
    }

    fn of(state: Option<[u8; 2]>) -> Val {
        state.map_or(Val::Gone, Val::Whole)
    }
}

impl Change for Val {
    fn removes(&self) -> bool {
        *self == Val::Gone
    }

    fn size_bytes(&self) -> u64 {
        1
    }
}

#[derive(Clone, Debug, Default, Hash)]
pub(super) struct Entry {
    pub(super) version: Version,
    pub(super) state: Option<[u8; 2]>,
    pub(super) pending: Option<(Pending, Option<[u8; 2]>)>,
    /// The last write that was committed here, a removal too; the protocol does not see it.
    pub(super) last: Version,
}

#[derive(Clone, Debug, Default, Hash)]
pub(super) struct Store {
    pub(super) entries: BTreeMap<Key, Entry>,
    counter: u64,
    pub(super) generation: u8,
    /// The prepare so many from now on, or the copy, is refused; 0: none.
    pub(super) refuse_at: u8,
    pub(super) fault: Option<String>,
}

impl Store {
    pub(super) fn entry(&self, key: Key) -> Entry {
        self.entries.get(&key).cloned().unwrap_or_default()
    }

    pub(super) fn has_pending(&self) -> bool {
        self.entries.values().any(|entry| entry.pending.is_some())
    }

    /// There is a flush in the map.
    pub(super) fn flush(&mut self, generation: u8) {
        if generation > self.generation {
            (self.generation, self.entries) = (generation, BTreeMap::new());
        }
    }

    /// Whether what is to be kept of the key may be: it is not over.
    fn reach(&mut self, key: Key) -> bool {
        if !bugs::has(Bug::NoGeneration) {
            self.flush(generation_of(key));
        }
        !self.state(&key).is_over
    }

    fn room(&mut self) -> Result<(), Refusal> {
        let refuse = self.refuse_at == 1;
        self.refuse_at = self.refuse_at.saturating_sub(1);
        if refuse { Err(Refusal::Quota) } else { Ok(()) }
    }

    fn set(&mut self, key: Key, version: Version, last: Version, state: Option<[u8; 2]>) {
        let entry = self.entries.entry(key).or_default();
        if last < entry.last {
            self.fault = Some(format!("key {key} falls from {:x} to {last:x}", entry.last));
        }
        (entry.version, entry.last, entry.state) = (version, last, state);
    }
}

impl Copies<Key, Val> for Store {
    fn state(&self, key: &Key) -> State {
        let entry = self.entry(*key);
        let is_over = generation_of(*key) < self.generation && !bugs::has(Bug::NoGeneration);
        State { committed: entry.version, pending: entry.pending.map(|(pending, _)| pending), is_over }
    }

    fn pendings(&self) -> Vec<(Key, Pending)> {
        self.entries.iter().filter_map(|(key, entry)| entry.pending.map(|(pending, _)| (*key, pending))).collect()
    }

    fn next_version(&mut self, _: &Key, since: GroupEpoch) -> Version {
        self.counter = (self.counter + 1).max((u64::from(since) << COUNTER_BITS) + 1);
        self.counter
    }

    fn prepare(&mut self, key: &Key, write: Pending, change: &Val) -> Result<(), Refusal> {
        if !self.reach(*key) {
            return Ok(());
        }
        self.room()?;
        if change.removes() != write.removes {
            self.fault = Some(format!("{write:x?} of key {key} comes with {change:?}"));
        }
        let entry = self.entries.entry(*key).or_default();
        assert!(entry.pending.is_none(), "one pending write");
        entry.pending = Some((write, change.over(entry.state)));
        Ok(())
    }

    fn end(&mut self, key: &Key, version: Version, is_committed: bool) {
        let entry = self.entries.entry(*key).or_default();
        let Some((write, state)) = entry.pending.take_if(|(pending, _)| pending.version == version) else { return };
        if is_committed {
            self.set(*key, write.makes(), write.version, state);
        }
    }

    fn whole(&self, key: &Key) -> Val {
        let entry = self.entry(*key);
        Val::of(entry.pending.map_or(entry.state, |(_, state)| state))
    }

    fn whole_committed(&self, key: &Key) -> Val {
        Val::of(self.entry(*key).state)
    }

    fn has_token(&self, _: &Key) -> bool {
        false
    }

    fn next_key(&self, after: Option<&Key>) -> Option<Key> {
        let is_there = |entry: &Entry| entry.version != 0 || entry.pending.is_some();
        self.entries.iter().find(|(key, entry)| after.is_none_or(|after| *key > after) && is_there(entry)).map(|e| *e.0)
    }

    fn copy(&mut self, key: &Key, version: Version, state: &Val) -> Result<(), Refusal> {
        if !self.reach(*key) {
            return Ok(());
        }
        self.room()?;
        if self.entry(*key).pending.is_some() {
            self.fault = Some(format!("a copy of key {key} meets a pending write"));
        }
        self.set(*key, version, version, state.over(None));
        Ok(())
    }
}
