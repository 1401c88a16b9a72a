//! Tokens of locks that objects leave behind when they are removed or expire, and that a get of nothing showed: for an
//! hour, an earlier holder's token must not make the object again.
//!
//! They belong to a generation of their collection, as entries do, so a flush takes them too. What they cost is charged
//! to the arena, and there are no more than so many: beyond that a removal is refused, and what expires leaves nothing
//! behind. Who may call: the shard they lie in, and its entries.

use crate::arena::Arena;
use herd_core::entry::Fence;
use herd_core::limits::LEFT_FENCE_MS;
use std::collections::BTreeMap;

/// What a fence costs beyond the name: its place in a node of the tree, and the allocator's share.
const OVERHEAD_BYTES: u64 = 96;

/// The fences of a shard, by generation and name.
pub(crate) struct Left {
    generations: BTreeMap<u32, BTreeMap<Box<[u8]>, Kept>>,
    len: usize,
    /// The most there may be.
    most: usize,
    /// When the first of them may go, ms since 1970.
    first_ms: u64,
}

struct Kept {
    fence: Fence,
    until_ms: u64,
}

impl Left {
    /// None, and at most `most` of them.
    pub(crate) fn new(most: usize) -> Self {
        Self { generations: BTreeMap::new(), len: 0, most, first_ms: 0 }
    }

    /// The fence that was left at a name.
    #[inline]
    pub(crate) fn get(&self, generation: u32, name: &[u8], now_ms: u64) -> Option<Fence> {
        if self.len == 0 {
            return None;
        }
        let kept = self.generations.get(&generation)?.get(name).filter(|kept| kept.until_ms > now_ms)?;
        Some(kept.fence)
    }

    /// How many there are.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Leaves a fence at a name; false: there are as many as there may be.
    pub(crate) fn leave(&mut self, arena: &Arena, generation: u32, name: &[u8], fence: Fence, now_ms: u64) -> bool {
        let is_there = || self.generations.get(&generation).is_some_and(|names| names.contains_key(name));
        if self.len >= self.most && !is_there() {
            return false;
        }
        let until_ms = now_ms.saturating_add(LEFT_FENCE_MS);
        self.first_ms = if self.len == 0 { until_ms } else { self.first_ms.min(until_ms) };
        let names = self.generations.entry(generation).or_default();
        if names.insert(name.into(), Kept { fence, until_ms }).is_none() {
            self.len += 1;
            arena.charge(OVERHEAD_BYTES + name.len() as u64);
        }
        true
    }

    /// There is an object again, which keeps its own.
    #[inline]
    pub(crate) fn take(&mut self, arena: &Arena, generation: u32, name: &[u8]) {
        if self.len == 0 {
            return;
        }
        if self.generations.get_mut(&generation).is_some_and(|names| names.remove(name).is_some()) {
            self.len -= 1;
            arena.discharge(OVERHEAD_BYTES + name.len() as u64);
        }
    }

    /// Drops those of a generation that is over.
    pub(crate) fn end(&mut self, arena: &Arena, generation: u32) {
        for name in self.generations.remove(&generation).into_iter().flatten().map(|(name, _)| name) {
            self.len -= 1;
            arena.discharge(OVERHEAD_BYTES + name.len() as u64);
        }
    }

    /// Drops those whose hour is over.
    pub(crate) fn forget(&mut self, arena: &Arena, now_ms: u64) {
        if self.len > 0 && self.first_ms <= now_ms {
            self.drop_old(arena, now_ms);
            let all = self.generations.values().flat_map(BTreeMap::values);
            self.first_ms = all.map(|kept| kept.until_ms).min().unwrap_or(0);
        }
    }

    fn drop_old(&mut self, arena: &Arena, now_ms: u64) {
        for names in self.generations.values_mut() {
            names.retain(|name, kept| {
                let stays = kept.until_ms > now_ms;
                if !stays {
                    self.len -= 1;
                    arena.discharge(OVERHEAD_BYTES + name.len() as u64);
                }
                stays
            });
        }
        self.generations.retain(|_, names| !names.is_empty());
    }
}
