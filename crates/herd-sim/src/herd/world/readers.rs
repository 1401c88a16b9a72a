//! Readers behind writers: one at each node. Where a node takes itself for the primary of a group, and the map has
//! another lead it, what others have just changed is looked at there: reads that nobody may answer as it was before.
//!
//! They have a source of chance of their own, so that all else of a run is the same without them.

use super::super::machine::node;
use super::*;
use crate::random::Random;

/// What one of them has open at most: more are asked while a node stands still.
const OPEN_MAX: usize = 12;
/// What is looked at so late is no news.
const CHANGED_MAX: usize = 8;

pub(super) const UNAWARE: &str = "reads where somebody leads no more and does not know it";

/// See the module.
pub(super) struct Readers {
    random: Random,
    /// The first of them among the clients.
    first: usize,
}

impl Readers {
    pub(super) fn new(seed: u64, first: usize) -> Self {
        Self { random: Random::new(seed ^ 0x04EA_DE45), first }
    }
}

impl<S: Service> World<S> {
    /// The readers look, send and read; how many bytes moved.
    pub(super) fn read_behind(&mut self) -> Result<usize, String> {
        let changed = std::mem::take(&mut self.history.changed);
        let Some(mut readers) = self.readers.take() else { return Ok(0) };
        std::mem::swap(&mut self.plan.random, &mut readers.random);
        for key in changed.into_iter().take(CHANGED_MAX) {
            for at in 0..self.machines.len() {
                if self.history.asked < self.plan.ops && self.is_unaware(at, key) {
                    self.look_there(readers.first + at, at, key);
                }
            }
        }
        let mut moved = 0;
        for number in readers.first..self.clients.len() {
            let now_ns = self.now_ns();
            moved += self.clients[number].exchange(&mut self.plan, &mut self.history, now_ns)?;
        }
        std::mem::swap(&mut self.plan.random, &mut readers.random);
        self.readers = Some(readers);
        Ok(moved)
    }

    /// Whether the node leads the object's group by the map that it has, and not by the present one.
    fn is_unaware(&self, at: usize, key: usize) -> bool {
        let leads = |map: &Map| {
            let spread = map.spreads.first();
            spread.is_some_and(|spread| spread.group_of(self.slots[&key]).primary == Some(node(at)))
        };
        let own = self.machines[at].as_ref().and_then(|machine| machine.map.as_ref());
        own.is_some_and(|map| map.epoch < self.map.epoch && leads(map)) && !leads(&self.map)
    }

    fn look_there(&mut self, number: usize, at: usize, key: usize) {
        if self.clients[number].link.is_none() {
            let kind = self.plan.random.below(3);
            self.connect_to(number, at, kind);
        }
        let (now_ns, client) = (self.now_ns(), &mut self.clients[number]);
        if client.link.is_some() && client.waits() < OPEN_MAX {
            client.look(&mut self.history, key, now_ns, slept(&self.paused[at], now_ns));
            self.count(UNAWARE);
        }
    }
}
