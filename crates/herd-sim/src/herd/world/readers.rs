//! Readers behind writers: one at each node. Where a node takes itself for one that answers reads of a group, as its
//! primary or as a backup, and by the map it is none any more, what others have just changed is looked at there: reads
//! that nobody may answer as it was before. So that there is something to see, they put something by that node, or by
//! the one that leads, and what is said to be done is looked at at both.
//!
//! They have a source of chance of their own, so that all else of a run is the same without them.

use super::super::machine::node;
use super::*;
use crate::random::Random;

/// What one of them has open at most: more are asked while a node stands still.
const OPEN_MAX: usize = 12;
/// What is looked at so late is no news.
const CHANGED_MAX: usize = 8;
/// What they put in the time of one map at most: most of what is asked others ask.
const PUTS_MAX: usize = 8;

pub(super) const PUT: &str = "puts where somebody answers no more and does not know it, by it or by who leads";
pub(super) const UNAWARE: &str = "reads where somebody answers no more and does not know it";

/// See the module.
pub(super) struct Readers {
    random: Random,
    /// The first of them among the clients.
    first: usize,
    /// The epoch of a map, and how often they put something in its time.
    puts: (u32, usize),
}

impl Readers {
    pub(super) fn new(seed: u64, first: usize) -> Self {
        Self { random: Random::new(seed ^ 0x04EA_DE45), first, puts: (0, 0) }
    }
}

impl<S: Service> World<S> {
    /// The readers look, send and read; how many bytes moved.
    pub(super) fn read_behind(&mut self) -> Result<usize, String> {
        let changed = std::mem::take(&mut self.history.changed);
        let Some(mut readers) = self.readers.take() else { return Ok(0) };
        std::mem::swap(&mut self.plan.random, &mut readers.random);
        for key in changed.into_iter().take(CHANGED_MAX) {
            for at in self.rivals(key) {
                if self.history.asked < self.plan.ops {
                    self.look_there(readers.first + at, at, key);
                }
            }
        }
        self.put_beside(&mut readers);
        let mut moved = 0;
        for number in readers.first..self.clients.len() {
            let now_ns = self.now_ns();
            moved += self.clients[number].exchange(&mut self.plan, &mut self.history, now_ns)?;
        }
        std::mem::swap(&mut self.plan.random, &mut readers.random);
        self.readers = Some(readers);
        Ok(moved)
    }

    /// The primary of the object's group, and the nodes that answer reads of it and should not, if there is such a one.
    fn rivals(&self, key: usize) -> Vec<usize> {
        let all = || 0..self.machines.len();
        if !all().any(|at| self.is_unaware(at, key)) {
            return Vec::new();
        }
        let present = self.map.spreads.first().and_then(|spread| spread.group_of(self.slots[&key]).primary);
        all().filter(|at| present == Some(node(*at)) || self.is_unaware(*at, key)).collect()
    }

    /// Something is put where a node answers no more and does not know it, by it or by who leads.
    fn put_beside(&mut self, readers: &mut Readers) {
        if readers.puts.0 != self.map.epoch {
            readers.puts = (self.map.epoch, 0);
        }
        let may = readers.puts.1 < PUTS_MAX && self.history.asked < self.plan.ops && !self.slots.is_empty();
        if !may || !self.plan.random.chance(10) {
            return;
        }
        let key = self.plan.value_key();
        let rivals = self.rivals(key);
        if rivals.is_empty() {
            return;
        }
        let at = rivals[self.plan.random.below(rivals.len() as u64) as usize];
        if !self.has_reader(readers.first + at, at) {
            return;
        }
        readers.puts.1 += 1;
        self.count(PUT);
        let (now_ns, ask) = (self.now_ns(), self.plan.small_put());
        let paused_ns = slept(&self.paused[at], now_ns);
        self.clients[readers.first + at].put(&mut self.history, (key, ask), now_ns, paused_ns);
    }

    /// Whether the node answers reads of the object by the map that it has, and is to answer none by the present one.
    fn is_unaware(&self, at: usize, key: usize) -> bool {
        let answers = |map: &Map| {
            let group = map.spreads.first().map(|spread| spread.group_of(self.slots[&key]));
            group.is_some_and(|group| super::answers(group, node(at)))
        };
        let own = self.machines[at].as_ref().and_then(|machine| machine.map.as_ref());
        own.is_some_and(|map| map.epoch < self.map.epoch && answers(map)) && !answers(&self.map)
    }

    fn look_there(&mut self, number: usize, at: usize, key: usize) {
        if self.has_reader(number, at) {
            let now_ns = self.now_ns();
            self.clients[number].look(&mut self.history, key, now_ns, slept(&self.paused[at], now_ns));
            if self.is_unaware(at, key) {
                self.count(UNAWARE);
            }
        }
    }

    /// Whether a node's reader may ask for something more.
    fn has_reader(&mut self, number: usize, at: usize) -> bool {
        if self.clients[number].link.is_none() {
            let kind = self.plan.random.below(3);
            self.connect_to(number, at, kind);
        }
        let client = &self.clients[number];
        client.link.is_some() && client.waits() < OPEN_MAX
    }
}
