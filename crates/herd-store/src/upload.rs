//! A large value on its way in: admitted before its first byte, received into blocks, finished as a body.
//!
//! Invariant: what was admitted and is not finished is promised, and what is promised fits beside what is never
//! evicted. Who may call: the node, without any lock.

use crate::arena::PAGE_BYTES;
use crate::body::{self, Body, BodyWriter, NoRoom};
use crate::collection::Collection;
use crate::sync::atomic::Ordering::Relaxed;
use crate::{Now, Store, refusal};
use herd_core::Error;
use herd_core::bugs::{Bug, has};
use herd_core::limits::BLOCK_BYTES;
use std::sync::Arc;

/// A large value on its way in, admitted against the budget.
pub struct Upload {
    store: Arc<Store>,
    collection: Collection,
    promised: u64,
    /// It is kept elsewhere.
    passes: bool,
    /// Where its bytes go.
    pub writer: BodyWriter,
}

impl Drop for Upload {
    fn drop(&mut self) {
        if !has(Bug::PromisedForEver) {
            self.store.promised.fetch_sub(self.promised, Relaxed);
        }
    }
}

impl Store {
    /// Admits a value of `expected` bytes (or of unknown size) for the object `name` before its first byte is read.
    ///
    /// Errors: `BadRequest` where no object may have that name; `TooLarge`, `Quota` and `Full`, each with the figures.
    /// What it replaces doesn't count against a quota, but takes its memory until the put is done.
    pub fn admit(self: &Arc<Self>, c: &Collection, name: &[u8], expected: Option<u64>) -> Result<Upload, Error> {
        self.admit_with(c, name, expected, expected.unwrap_or(0))
    }

    /// Admits a value that only passes here, on its way between a client and another node: no quota counts it.
    /// Where the memory is full it may go a little beyond it. Errors: as of [`Store::admit`], but `Quota`.
    pub fn admit_passing(
        self: &Arc<Self>,
        c: &Collection,
        name: &[u8],
        expected: Option<u64>,
    ) -> Result<Upload, Error> {
        c.0.check_name(name)?;
        self.check_size(expected.unwrap_or(0))?;
        let lists = expected.filter(|n| *n > 0).map_or(0, |n| body::lists_bytes(n, n));
        let promised = expected.unwrap_or(0) + lists;
        self.promise(expected.unwrap_or(0), lists, self.body_budget_bytes() + self.arena.passing_bytes())
            .map_err(|_| refusal::no_way_through(&c.0, &self.arena))?;
        let writer = BodyWriter::passing(self.arena.clone(), expected);
        Ok(Upload { store: self.clone(), collection: c.clone(), promised, passes: true, writer })
    }

    /// Admits a value of `size_bytes` that shares its blocks with what is there, but for `changed_bytes` of it.
    pub fn admit_change(
        self: &Arc<Self>,
        c: &Collection,
        name: &[u8],
        size_bytes: u64,
        changed_bytes: u64,
    ) -> Result<Upload, Error> {
        // The blocks at both ends of the change are new as well.
        let memory = changed_bytes.saturating_add(2 * BLOCK_BYTES as u64).min(size_bytes);
        self.admit_with(c, name, Some(size_bytes), memory)
    }

    fn admit_with(
        self: &Arc<Self>,
        c: &Collection,
        name: &[u8],
        expected: Option<u64>,
        memory_bytes: u64,
    ) -> Result<Upload, Error> {
        c.0.check_name(name)?;
        self.check_size(expected.unwrap_or(0))?;
        // The list of a gap's blocks takes memory, though its zeros do not.
        let lists = expected.filter(|n| *n > 0).map_or(0, |n| body::lists_bytes(n, memory_bytes));
        let admitted = self
            .check_quota(c, name, memory_bytes)
            .and_then(|()| self.promise(memory_bytes, lists, self.body_budget_bytes()));
        admitted.inspect_err(|_| c.0.count_refused())?;
        Ok(Upload {
            store: self.clone(),
            collection: c.clone(),
            promised: memory_bytes + lists,
            passes: false,
            writer: BodyWriter::new(self.arena.clone(), expected),
        })
    }

    /// An error if an object of that size is over the limit.
    pub fn check_size(&self, size_bytes: u64) -> Result<(), Error> {
        let limit_bytes = self.object_max_bytes;
        if size_bytes <= limit_bytes { Ok(()) } else { Err(Error::too_large(size_bytes, limit_bytes)) }
    }

    /// An error if so much in place of what is there can't be within the quota. The last word has the put itself.
    fn check_quota(&self, c: &Collection, name: &[u8], memory_bytes: u64) -> Result<(), Error> {
        let Some(quota) = c.0.spec.quota_bytes.filter(|_| memory_bytes > 0) else { return Ok(()) };
        let held = if c.0.class.evicts() {
            0
        } else {
            c.0.used_bytes().saturating_sub(self.entry(c, name, Now::default()).weight())
        };
        let more = body::cost_bytes(memory_bytes);
        if held.saturating_add(more) <= quota { Ok(()) } else { Err(refusal::quota(&c.0, more, quota)) }
    }

    /// Promises memory to a value and its lists, if it fits beside what is never evicted and what is promised already.
    fn promise(&self, value_bytes: u64, lists_bytes: u64, budget_bytes: u64) -> Result<(), Error> {
        let memory_bytes = value_bytes.saturating_add(lists_bytes);
        if self.try_promise(memory_bytes, budget_bytes).is_ok() {
            return Ok(());
        }
        // What was flushed or removed is counted until each shard has seen it.
        (0..self.shards.len()).for_each(|at| self.lock(at).retire_old(None, 0));
        let free = |held: u64| budget_bytes.saturating_sub(held).saturating_sub(lists_bytes);
        let no_room = |held: u64| refusal::no_room(value_bytes, free(held), budget_bytes, self.arena.node());
        self.try_promise(memory_bytes, budget_bytes).map_err(no_room)
    }

    /// As `promise`; the error is what is held and promised.
    fn try_promise(&self, memory_bytes: u64, budget: u64) -> Result<(), u64> {
        let pinned = self.registry.pinned_bytes();
        let fits = |sum: u64| memory_bytes == 0 || sum.saturating_add(pinned) <= budget;
        let more = |promised: u64| promised.checked_add(memory_bytes).filter(|sum| fits(*sum));
        self.promised.fetch_update(Relaxed, Relaxed, more).map(drop).map_err(|promised| pinned + promised)
    }

    fn body_budget_bytes(&self) -> u64 {
        crate::values_bytes(self.arena.budget_bytes())
    }

    /// A body of `parts` one after the other, for a value of `name` that the node puts together.
    pub fn body_of(self: &Arc<Self>, c: &Collection, name: &[u8], parts: &[&[u8]], now: Now) -> Result<Body, Error> {
        let size_bytes: usize = parts.iter().map(|part| part.len()).sum();
        let mut upload = self.admit(c, name, Some(size_bytes as u64))?;
        for part in parts {
            upload.write(part, now)?;
        }
        upload.finish(now)
    }
}

impl Upload {
    /// Makes room for up to `max` more bytes, evicting if need be; gives how many fit now. A value of unknown size gets
    /// room for one byte over the limit at most, by which it is told to be too large.
    pub fn reserve(&mut self, max: usize, now: Now) -> Result<usize, Error> {
        self.store.check_size(self.writer.len())?;
        let limit = self.store.object_max_bytes.saturating_add(1) - self.writer.len();
        let max = usize::try_from(limit).map_or(max, |limit| max.min(limit));
        self.retry(now, |writer| writer.reserve(max))
    }

    /// Copies `bytes` in.
    pub fn write(&mut self, bytes: &[u8], now: Now) -> Result<(), Error> {
        let from = self.writer.len();
        self.check_more(bytes.len() as u64)?;
        self.retry(now, |writer| writer.write(&bytes[(writer.len() - from) as usize..]))
    }

    /// Copies a range of another body in.
    pub fn copy(&mut self, body: &Body, from: u64, to: u64, now: Now) -> Result<(), Error> {
        let start = self.writer.len();
        self.check_more(to.saturating_sub(from))?;
        self.retry(now, |writer| writer.copy(body, from + (writer.len() - start), to))
    }

    /// Appends `n` zeros; whole blocks of them take no memory, only some bytes in lists.
    pub fn zeros(&mut self, n: u64, now: Now) -> Result<(), Error> {
        self.check_more(n)?;
        let end = self.writer.len() + n;
        let store = self.store.clone();
        self.retry(now, |writer| writer.zeros(end - writer.len(), &store.zeros()?))
    }

    /// The finished body.
    pub fn finish(mut self, now: Now) -> Result<Body, Error> {
        self.check_more(0)?;
        self.make_room_to_finish(now)?;
        let empty = BodyWriter::new(self.store.arena.clone(), None);
        let writer = std::mem::replace(&mut self.writer, empty);
        writer.finish().map_err(|NoRoom| self.full())
    }

    /// The lists are counted when the body is made, and a value of unforeseen size takes memory for its last, smaller
    /// block. What is kept back for eviction may serve, but nothing beyond the budget.
    fn make_room_to_finish(&self, now: Now) -> Result<(), Error> {
        if self.passes {
            return Ok(());
        }
        let (arena, lists) = (&self.store.arena, self.writer.lists_bytes());
        let mut tries = 64 + lists / PAGE_BYTES as u64;
        while u64::from(arena.spare_pages()) * PAGE_BYTES as u64 <= lists {
            if tries == 0 || !self.store.reclaim(now) {
                let fits = arena.used_bytes() + lists <= arena.budget_bytes();
                return if fits { Ok(()) } else { Err(self.full()) };
            }
            tries -= 1;
        }
        Ok(())
    }

    fn check_more(&self, n: u64) -> Result<(), Error> {
        self.store.check_size(self.writer.len().saturating_add(n))
    }

    /// Takes a step again from where it stopped, as long as memory can be had for it.
    fn retry<R>(&mut self, now: Now, mut step: impl FnMut(&mut BodyWriter) -> Result<R, NoRoom>) -> Result<R, Error> {
        loop {
            match step(&mut self.writer) {
                Ok(done) => return Ok(done),
                Err(NoRoom) if self.store.reclaim(now) => {}
                Err(NoRoom) => return Err(self.full()),
            }
        }
    }

    #[cold]
    fn full(&self) -> Error {
        if self.passes {
            return refusal::no_way_through(&self.collection.0, &self.store.arena);
        }
        self.collection.0.count_refused();
        refusal::full(&self.collection.0, &self.store.arena)
    }
}
