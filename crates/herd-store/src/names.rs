//! The names of an ordered collection, sorted, and what they cost of the budget.
//!
//! Names belong to a generation of their collection, as entries do: a flush puts them all aside at once, to be freed
//! little by little, and one that comes late, of an entry that was flushed before it was linked, is not kept.
//!
//! Invariant: what is charged to the arena is the cost of all names held, those put aside included.
//!
//! Who may call: `State`, for a shard that is locked, and listings and upkeep with no lock at all.

use crate::arena::Arena;
use crate::collection::Generation;
use crate::sync::{Mutex, Rank};
use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::Arc;

type Name = Box<[u8]>;

/// What a name costs beyond its bytes: its place in a node of the tree, at the usual two thirds full, and the
/// allocator's share.
const NAME_OVERHEAD_BYTES: u64 = 48;

/// The sorted names of a collection.
pub(crate) struct Names {
    arena: Arc<Arena>,
    inner: Mutex<Inner>,
}

struct Inner {
    generation: Generation,
    sorted: BTreeSet<Name>,
    /// Names of older generations, not yet freed.
    aside: Vec<BTreeSet<Name>>,
}

/// Bytes that a name of `len_bytes` costs.
pub(crate) fn cost_bytes(len_bytes: usize) -> u64 {
    len_bytes as u64 + NAME_OVERHEAD_BYTES
}

impl Names {
    pub(crate) fn new(arena: Arc<Arena>, generation: Generation) -> Self {
        let inner = Inner { generation, sorted: BTreeSet::new(), aside: Vec::new() };
        Self { arena, inner: Mutex::new(Rank::Names, inner) }
    }

    /// Puts the names of generations before this one aside.
    pub(crate) fn begin(&self, generation: Generation) {
        self.inner.lock().begin(generation);
    }

    /// Adds the name of an entry of `generation`.
    pub(crate) fn insert(&self, generation: Generation, name: &[u8]) {
        let mut inner = self.inner.lock();
        inner.begin(generation);
        if generation == inner.generation && inner.sorted.insert(name.into()) {
            self.arena.charge(cost_bytes(name.len()));
        }
    }

    /// Takes out the name of an entry of `generation`.
    pub(crate) fn remove(&self, generation: Generation, name: &[u8]) {
        let mut inner = self.inner.lock();
        if generation == inner.generation && inner.sorted.remove(name) {
            self.arena.discharge(cost_bytes(name.len()));
        }
    }

    /// Frees up to `max` names that were put aside; gives how many.
    pub(crate) fn free(&self, max: usize) -> usize {
        let mut freed = Vec::new();
        let mut inner = self.inner.lock();
        while let Some(names) = inner.aside.last_mut() {
            while freed.len() < max
                && let Some(name) = names.pop_first()
            {
                freed.push(name);
            }
            if !names.is_empty() {
                break;
            }
            inner.aside.pop();
        }
        drop(inner);
        if !freed.is_empty() {
            self.arena.discharge(freed.iter().map(|name| cost_bytes(name.len())).sum());
        }
        freed.len()
    }

    /// Whether it holds no name, not even one put aside.
    pub(crate) fn is_empty(&self) -> bool {
        let inner = self.inner.lock();
        inner.sorted.is_empty() && inner.aside.is_empty()
    }

    /// Up to `max` names that begin with `prefix` and come after `after`.
    pub(crate) fn after(&self, prefix: &[u8], after: Option<&[u8]>, max: usize) -> Vec<Name> {
        let from = match after {
            Some(name) if name >= prefix => Bound::Excluded(name),
            _ => Bound::Included(prefix),
        };
        let inner = self.inner.lock();
        let range = inner.sorted.range::<[u8], _>((from, Bound::Unbounded));
        range.take_while(|name| name.starts_with(prefix)).take(max).cloned().collect()
    }
}

impl Inner {
    fn begin(&mut self, generation: Generation) {
        if generation <= self.generation {
            return;
        }
        self.generation = generation;
        if !self.sorted.is_empty() {
            self.aside.push(std::mem::take(&mut self.sorted));
        }
    }
}

impl Drop for Names {
    fn drop(&mut self) {
        self.begin(Generation::MAX);
        self.free(usize::MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> (Arc<Arena>, Names) {
        let arena = Arc::new(Arena::new(1 << 20, 1, 0).expect("maps").0);
        (arena.clone(), Names::new(arena, 1))
    }

    #[test]
    fn what_is_charged_is_what_is_held() {
        let (arena, names) = names();
        names.insert(1, b"b");
        names.insert(1, b"a");
        names.insert(1, b"a");
        assert_eq!(arena.used_bytes(), 2 * 49);
        names.remove(1, b"a");
        names.remove(1, b"a");
        assert_eq!(arena.used_bytes(), 49);
        names.begin(2);
        assert_eq!((names.after(b"", None, 9).len(), arena.used_bytes()), (0, 49));
        assert_eq!((names.free(9), names.is_empty(), arena.used_bytes()), (1, true, 0));
        names.insert(2, b"c");
        drop(names);
        assert_eq!(arena.used_bytes(), 0);
    }

    #[test]
    fn a_name_of_an_older_generation_comes_too_late_and_one_of_a_newer_begins_it() {
        let (_arena, names) = names();
        names.insert(1, b"old");
        names.insert(3, b"new");
        names.insert(1, b"late");
        names.begin(2);
        names.remove(1, b"new");
        assert_eq!(names.after(b"", None, 9), [Box::from(*b"new")]);
    }
}
