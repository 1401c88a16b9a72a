//! Tokens of locks that objects leave behind when they are removed or expire, and that a get of nothing showed: for an
//! hour, an earlier holder's token must not make the object again.
//!
//! They belong to a generation of their collection, as entries do, so a flush takes them too. What they cost is charged
//! to the arena, and bounded: beyond that the oldest goes. Invariant: `by_time` has each once, `bytes` is their cost.
//!
//! Who may call: the shard they lie in, and its entries.

use crate::arena::Arena;
use herd_core::entry::Fence;
use herd_core::limits::LEFT_FENCE_MS;
use std::collections::BTreeMap;

/// What a fence costs beyond its name, which is kept twice: places in two trees, and the allocator's share.
const OVERHEAD_BYTES: u64 = 192;

/// The fences of a shard, by generation and name.
pub(crate) struct Left {
    generations: BTreeMap<u32, BTreeMap<Box<[u8]>, Kept>>,
    /// By when they end, and in which order they came.
    by_time: BTreeMap<(u64, u64), Of>,
    serial: u64,
    bytes: u64,
    most_bytes: u64,
}

/// A generation and a name in it.
type Of = (u32, Box<[u8]>);

struct Kept {
    fence: Fence,
    /// Its key in `by_time`.
    time: (u64, u64),
}

impl Left {
    /// None, and never more than cost `most_bytes`.
    pub(crate) fn new(most_bytes: u64) -> Self {
        Self { generations: BTreeMap::new(), by_time: BTreeMap::new(), serial: 0, bytes: 0, most_bytes }
    }

    /// The fence that was left at a name.
    #[inline]
    pub(crate) fn get(&self, generation: u32, name: &[u8], now_ms: u64) -> Option<Fence> {
        if self.by_time.is_empty() {
            return None;
        }
        let kept = self.generations.get(&generation)?.get(name).filter(|kept| kept.time.0 > now_ms)?;
        Some(kept.fence)
    }

    /// Whether one more, of that name, would push out the oldest.
    pub(crate) fn is_full(&self, name: &[u8]) -> bool {
        self.bytes + cost_bytes(name) > self.most_bytes
    }

    /// Leaves a fence at a name.
    pub(crate) fn leave(&mut self, arena: &Arena, generation: u32, name: &[u8], fence: Fence, now_ms: u64) {
        self.take(arena, generation, name);
        while self.is_full(name) && !self.by_time.is_empty() {
            self.drop_first(arena);
        }
        self.serial += 1;
        let time = (now_ms.saturating_add(LEFT_FENCE_MS), self.serial);
        self.by_time.insert(time, (generation, name.into()));
        self.generations.entry(generation).or_default().insert(name.into(), Kept { fence, time });
        arena.charge(cost_bytes(name));
        self.bytes += cost_bytes(name);
    }

    /// There is an object again, which keeps its own.
    #[inline]
    pub(crate) fn take(&mut self, arena: &Arena, generation: u32, name: &[u8]) {
        if self.by_time.is_empty() {
            return;
        }
        let Some(names) = self.generations.get_mut(&generation) else { return };
        if let Some(kept) = names.remove(name) {
            self.by_time.remove(&kept.time);
            arena.discharge(cost_bytes(name));
            self.bytes -= cost_bytes(name);
        }
        if names.is_empty() {
            self.generations.remove(&generation);
        }
    }

    /// Drops those of a generation that is over.
    pub(crate) fn end(&mut self, arena: &Arena, generation: u32) {
        for (name, kept) in self.generations.remove(&generation).into_iter().flatten() {
            self.by_time.remove(&kept.time);
            arena.discharge(cost_bytes(&name));
            self.bytes -= cost_bytes(&name);
        }
    }

    /// Drops those whose hour is over.
    pub(crate) fn forget(&mut self, arena: &Arena, now_ms: u64) {
        while self.by_time.first_key_value().is_some_and(|((until_ms, _), _)| *until_ms <= now_ms) {
            self.drop_first(arena);
        }
    }

    fn drop_first(&mut self, arena: &Arena) {
        if let Some((_, (generation, name))) = self.by_time.first_key_value().map(|(time, of)| (*time, of.clone())) {
            self.take(arena, generation, &name);
        }
    }
}

fn cost_bytes(name: &[u8]) -> u64 {
    OVERHEAD_BYTES + 2 * name.len() as u64
}
