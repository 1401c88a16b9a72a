//! What a member that is syncing was sent, or should have been, and has not acked.

use crate::entry::Version;
use crate::limits::{PART_BYTES_MAX, PART_OPS_MAX};
use std::collections::{BTreeMap, VecDeque};

/// For how much a change of so many bytes counts beside others ([`PART_BYTES_MAX`]).
pub(super) fn counted(size_bytes: u64) -> u64 {
    size_bytes.min(PART_BYTES_MAX / 2)
}

/// Writes by key, and how much they are. Nobody waits for them, so they have a bound of their own.
#[derive(Clone, Debug, Hash)]
pub(super) struct Unacked<K> {
    /// Versions of each key, rising, with what their bytes count for; none is empty.
    keys: BTreeMap<K, VecDeque<(Version, u64)>>,
    count: usize,
    bytes: u64,
}

impl<K: Ord + Clone> Unacked<K> {
    pub(super) fn new() -> Self {
        Self { keys: BTreeMap::new(), count: 0, bytes: 0 }
    }

    /// One more, unless it is known.
    pub(super) fn insert(&mut self, key: &K, version: Version, size_bytes: u64) {
        if !self.keys.contains_key(key) {
            self.keys.insert(key.clone(), VecDeque::new());
        }
        let Some(versions) = self.keys.get_mut(key) else { return };
        if let Err(at) = versions.binary_search_by_key(&version, |(version, _)| *version) {
            versions.insert(at, (version, counted(size_bytes)));
            (self.count, self.bytes) = (self.count + 1, self.bytes + counted(size_bytes));
        }
    }

    /// This one is done with.
    pub(super) fn remove(&mut self, key: &K, version: Version) {
        self.take(key, |versions| {
            let at = versions.binary_search_by_key(&version, |(version, _)| *version);
            at.ok().and_then(|at| versions.remove(at))
        });
    }

    /// All of a key up to this version are done with.
    pub(super) fn remove_up_to(&mut self, key: &K, version: Version) {
        while self.take(key, |versions| versions.pop_front_if(|(first, _)| *first <= version)) {}
    }

    /// Whether `one` took a write out.
    fn take(&mut self, key: &K, one: impl FnOnce(&mut VecDeque<(Version, u64)>) -> Option<(Version, u64)>) -> bool {
        let Some(versions) = self.keys.get_mut(key) else { return false };
        let Some((_, bytes)) = one(versions) else { return false };
        (self.count, self.bytes) = (self.count - 1, self.bytes - bytes);
        if versions.is_empty() {
            self.keys.remove(key);
        }
        true
    }

    pub(super) fn contains(&self, key: &K, version: Version) -> bool {
        self.keys.get(key).is_some_and(|versions| versions.binary_search_by_key(&version, |(v, _)| *v).is_ok())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Whether it is too much: the member does not keep up.
    pub(super) fn is_over(&self) -> bool {
        self.count > PART_OPS_MAX || self.bytes > PART_BYTES_MAX
    }

    /// The last version of each key that is meant.
    pub(super) fn last(&self, is_meant: impl Fn(&K, Version) -> bool) -> Vec<(K, Version)> {
        let last = |(key, versions): (&K, &VecDeque<(Version, u64)>)| {
            let version = versions.iter().rev().map(|(version, _)| *version).find(|version| is_meant(key, *version));
            version.map(|version| (key.clone(), version))
        };
        self.keys.iter().filter_map(last).collect()
    }
}
