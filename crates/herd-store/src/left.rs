//! Tokens of locks that objects leave behind when they are removed or expire, and that a get of nothing showed: for an
//! hour, an earlier holder's token must not make the object again.
//!
//! They belong to a generation of their collection, as entries do, so a flush takes them too. What they cost is charged
//! to the arena, and bounded: beyond that the oldest goes, first of those that gets showed, since anybody can make any
//! number of them. They lie by tag, as a slot's are met in turns with its objects. Invariant: `by_time` has each once,
//! `bytes` is their cost.
//!
//! Who may call: the shard they lie in, and its entries.

use crate::arena::Arena;
use crate::collection::Generation;
use crate::index::Tag;
use herd_core::entry::Fence;
use herd_core::limits::LEFT_FENCE_MS;
use std::collections::BTreeMap;

/// What a fence costs beyond its name, which is kept twice: places in two trees, and the allocator's share.
const OVERHEAD_BYTES: u64 = 192;

/// The fences of a shard, by generation, tag and name.
pub(crate) struct Left {
    generations: BTreeMap<Generation, Names>,
    /// Generations that are over, whose fences are not all freed yet.
    ended: Vec<Generation>,
    /// By [`Cause`], then by when they end, and in which order they came.
    by_time: [BTreeMap<(u64, u64), Of>; 2],
    serial: u64,
    bytes: u64,
    most_bytes: u64,
}

/// An object's tag and name.
type Name = (Tag, Box<[u8]>);
/// What is kept of a generation.
type Names = BTreeMap<Name, Kept>;
/// A generation, and an object of it.
type Of = (Generation, Name);

/// Why a fence is left; at the bound the first goes before the second.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Cause {
    /// A get of nothing showed it.
    Shown,
    /// Its object was removed, or expired.
    Gone,
}

struct Kept {
    fence: Fence,
    cause: Cause,
    /// Its key in `by_time`.
    time: (u64, u64),
}

impl Left {
    /// None, and never more than cost `most_bytes`.
    pub(crate) fn new(most_bytes: u64) -> Self {
        Self {
            generations: BTreeMap::new(),
            ended: Vec::new(),
            by_time: Default::default(),
            serial: 0,
            bytes: 0,
            most_bytes,
        }
    }

    /// The fence that was left at a name.
    #[inline]
    pub(crate) fn get(&self, generation: Generation, tag: Tag, name: &[u8], now_ms: u64) -> Option<Fence> {
        if self.generations.is_empty() {
            return None;
        }
        let kept = find(self.generations.get(&generation)?, tag, name).filter(|kept| kept.time.0 > now_ms)?;
        Some(kept.fence)
    }

    /// The generations of which there are some.
    pub(crate) fn generations(&self) -> impl Iterator<Item = Generation> {
        self.generations.keys().copied()
    }

    /// The tags of all.
    pub(crate) fn tags(&self) -> impl Iterator<Item = Tag> {
        self.generations.values().flat_map(|names| names.keys().map(|(tag, _)| *tag))
    }

    /// Tags and names of a generation at which one is left, of the tags `from..=to`.
    pub(crate) fn range(
        &self,
        generation: Generation,
        (from, to): (Tag, Tag),
        now_ms: u64,
    ) -> impl Iterator<Item = (Tag, &[u8])> {
        let names = self.generations.get(&generation).map(|names| names.range((from, Box::default())..));
        let names = names.into_iter().flatten().take_while(move |((tag, _), _)| *tag <= to);
        names.filter(move |(_, kept)| kept.time.0 > now_ms).map(|((tag, name), _)| (*tag, &**name))
    }

    /// Leaves a fence at a name of a generation.
    pub(crate) fn leave(
        &mut self,
        arena: &Arena,
        (generation, tag, name): (Generation, Tag, &[u8]),
        cause: Cause,
        fence: Fence,
        now_ms: u64,
    ) {
        let before = self.take(arena, generation, tag, name);
        let cause = before.map_or(cause, |before| before.max(cause));
        while self.bytes + cost_bytes(name) > self.most_bytes && !self.generations.is_empty() {
            self.drop_first(arena);
        }
        self.serial += 1;
        let time = (now_ms.saturating_add(LEFT_FENCE_MS), self.serial);
        self.by_time[cause as usize].insert(time, (generation, (tag, name.into())));
        self.generations.entry(generation).or_default().insert((tag, name.into()), Kept { fence, cause, time });
        arena.charge(cost_bytes(name));
        self.bytes += cost_bytes(name);
    }

    /// There is an object again, which keeps its own; gives why there was one, if there was.
    #[inline]
    pub(crate) fn take(&mut self, arena: &Arena, generation: Generation, tag: Tag, name: &[u8]) -> Option<Cause> {
        if self.generations.is_empty() {
            return None;
        }
        let names = self.generations.get_mut(&generation)?;
        find(names, tag, name)?;
        let kept = names.remove(&(tag, name.into()))?;
        if names.is_empty() {
            self.generations.remove(&generation);
        }
        self.forget_one(arena, name, &kept);
        Some(kept.cause)
    }

    /// A generation is over: nobody asks for its fences any more. They go in turns, as they may be many.
    pub(crate) fn end(&mut self, generation: Generation) {
        if self.generations.contains_key(&generation) {
            self.ended.push(generation);
        }
    }

    fn forget_one(&mut self, arena: &Arena, name: &[u8], kept: &Kept) {
        self.by_time[kept.cause as usize].remove(&kept.time);
        arena.discharge(cost_bytes(name));
        self.bytes -= cost_bytes(name);
    }

    /// Drops up to `max` of those whose generation, or whose hour, is over; gives how many.
    pub(crate) fn forget(&mut self, arena: &Arena, now_ms: u64, max: usize) -> usize {
        (0..max).take_while(|_| self.forget_ended(arena) || self.forget_late(arena, now_ms)).count()
    }

    /// Drops one whose generation is over. False: there is none.
    fn forget_ended(&mut self, arena: &Arena) -> bool {
        while let Some(generation) = self.ended.last() {
            let first = self.generations.get_mut(generation).and_then(BTreeMap::pop_first);
            if let Some(((_, name), kept)) = first {
                self.forget_one(arena, &name, &kept);
                return true;
            }
            self.generations.remove(generation);
            self.ended.pop();
        }
        false
    }

    /// Drops one whose hour is over. False: there is none.
    fn forget_late(&mut self, arena: &Arena, now_ms: u64) -> bool {
        let mut firsts = self.by_time.iter().filter_map(|of| of.first_key_value());
        let first = firsts.find(|(time, _)| time.0 <= now_ms).map(|(_, of)| of.clone());
        let Some((generation, (tag, name))) = first else { return false };
        self.take(arena, generation, tag, &name);
        true
    }

    /// Drops the oldest that gets showed, or else the oldest.
    fn drop_first(&mut self, arena: &Arena) {
        if let Some((generation, (tag, name))) = self.by_time.iter().find_map(|of| of.values().next().cloned()) {
            self.take(arena, generation, tag, &name);
        }
    }
}

/// Looks without a copy of the name.
fn find<'n>(names: &'n Names, tag: Tag, name: &[u8]) -> Option<&'n Kept> {
    let mut of_tag = names.range((tag, Box::default())..).take_while(|((of, _), _)| *of == tag);
    of_tag.find(|((_, of), _)| **of == *name).map(|(_, kept)| kept)
}

fn cost_bytes(name: &[u8]) -> u64 {
    OVERHEAD_BYTES + 2 * name.len() as u64
}
