//! Writes that are prepared and neither committed nor dropped: of an entry at most one, beside what is committed.
//!
//! A pending object is a second record, with its own place in the log and in the index, that nobody finds until it is
//! committed (`record::PENDING`). So a commit takes no memory and can't fail. What is committed has a mark meanwhile
//! (`record::BESIDE`), by which a reader knows. What a record doesn't tell, and removals, which have no record and
//! so need no room in full memory, are kept by name.
//!
//! Invariants: a write is kept by name as long as it is pending. There is a pending record of that name if, and only
//! if, it is no removal; what is committed is marked if, and only if, a write is kept. What is pending counts in bytes,
//! but not as an object, and neither expires nor is evicted; a flush takes it like all else.
//!
//! Who may call: the node, with the entry locked. Whether a write follows its base, and when it may be committed, is
//! not judged here but by [`herd_core::replica`]. A write kept by name takes some 220 bytes and its name, charged to
//! the arena; there are as many as operations under way, which the node bounds.

use crate::arena::{Arena, PageId};
use crate::collection::Generation;
use crate::entry::{Entry, Found, Given, NewObject};
use crate::index::{Addr, Tag};
use crate::record::{self, BESIDE, Draft, PENDING};
use crate::refusal;
use herd_core::Error;
use herd_core::entry::{Fence, Version};
use herd_core::replica::Pending;

/// What something kept by name costs beyond its name: its place in a list that may be half full, and the allocator's
/// share.
const OVERHEAD_BYTES: u64 = 224;
/// It is charged in steps of so many bytes, and given back two steps late.
const CHARGE_BYTES: u64 = 4096;

/// The tag of a name, the generation of its collection, and the name.
pub(crate) type Of = (Tag, Generation, Box<[u8]>);

/// What is kept in a shard by name: by tag, and mostly little.
pub(crate) struct ByName<T> {
    all: Vec<(Of, T)>,
    bytes: u64,
    charged_bytes: u64,
}

/// A write that is pending.
pub(crate) struct Prepared {
    pub(crate) write: Pending,
    /// The token that a removal leaves behind.
    fence: Option<Fence>,
}

impl<T> ByName<T> {
    pub(crate) fn new() -> Self {
        Self { all: Vec::new(), bytes: 0, charged_bytes: 0 }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// What is kept of a name.
    #[inline]
    pub(crate) fn get(&self, tag: Tag, generation: Generation, name: &[u8]) -> Option<&T> {
        let at = self.find(tag, generation, name)?;
        self.all.get(at).map(|(_, kept)| kept)
    }

    #[inline]
    fn find(&self, tag: Tag, generation: Generation, name: &[u8]) -> Option<usize> {
        let mut at = self.first(tag);
        while let Some(((t, g, n), _)) = self.all.get(at).filter(|((t, ..), _)| *t == tag) {
            if (*t, *g, &**n) == (tag, generation, name) {
                return Some(at);
            }
            at += 1;
        }
        None
    }

    /// Where those of a tag begin, or would.
    #[inline]
    fn first(&self, tag: Tag) -> usize {
        self.all.partition_point(|((t, ..), _)| *t < tag)
    }

    /// What is kept of the tags `from..=to`, by tag.
    pub(crate) fn range(&self, from: Tag, to: Tag) -> impl Iterator<Item = (&Of, &T)> {
        self.all[self.first(from)..].iter().take_while(move |((tag, ..), _)| *tag <= to).map(|(of, kept)| (of, kept))
    }

    /// All that is kept.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Of, &T)> {
        self.all.iter().map(|(of, kept)| (of, kept))
    }

    /// Keeps something of a name, of which nothing is kept.
    fn insert(&mut self, arena: &Arena, tag: Tag, generation: Generation, name: &[u8], kept: T) {
        let at = self.first(tag);
        self.all.insert(at, ((tag, generation, name.into()), kept));
        self.bytes += cost_bytes(name);
        self.charge(arena);
    }

    fn remove(&mut self, arena: &Arena, tag: Tag, generation: Generation, name: &[u8]) -> Option<T> {
        let at = self.find(tag, generation, name)?;
        let (_, kept) = self.all.remove(at);
        self.bytes -= cost_bytes(name);
        self.charge(arena);
        Some(kept)
    }

    /// Drops of what is kept of the tags `from..=to` that which is `meant`.
    pub(crate) fn drop_range(&mut self, arena: &Arena, from: Tag, to: Tag, meant: impl Fn(&Of) -> bool) {
        self.retain(arena, |of, _| !((from..=to).contains(&of.0) && meant(of)));
    }

    /// Keeps only what `stays`.
    pub(crate) fn retain(&mut self, arena: &Arena, mut stays: impl FnMut(&Of, &T) -> bool) {
        self.all.retain(|(of, kept)| {
            let stays = stays(of, kept);
            self.bytes -= if stays { 0 } else { cost_bytes(&of.2) };
            stays
        });
        self.charge(arena);
    }

    /// Charges what is kept to the arena, in steps, as it comes and goes with each write.
    fn charge(&mut self, arena: &Arena) {
        let wanted = self.bytes.next_multiple_of(CHARGE_BYTES);
        if wanted > self.charged_bytes {
            arena.charge(wanted - self.charged_bytes);
        } else if wanted + CHARGE_BYTES < self.charged_bytes {
            arena.discharge(self.charged_bytes - wanted);
            self.all.shrink_to(2 * self.all.len());
        } else {
            return;
        }
        self.charged_bytes = wanted;
    }
}

fn cost_bytes(name: &[u8]) -> u64 {
    OVERHEAD_BYTES + name.len() as u64
}

impl Entry<'_> {
    /// Version of what is committed, whether its time is over or not; 0: nothing is.
    pub fn committed(&self) -> Version {
        self.place.map_or(0, |(_, addr)| self.shard.record(addr).version())
    }

    /// What is committed, whether its time is over or not.
    pub fn found_committed(&self) -> Option<Found<'_>> {
        self.place.map(|(_, addr)| self.found_at(addr))
    }

    /// The write that is pending.
    pub fn pending(&self) -> Option<Pending> {
        self.shard.pending.get(self.tag, self.generation, self.name).map(|prepared| prepared.write)
    }

    /// The token that the pending write leaves behind: of a removal. `None`: it leaves none, or none is pending.
    pub fn leaves(&self) -> Option<Fence> {
        self.shard.pending.get(self.tag, self.generation, self.name).and_then(|prepared| prepared.fence)
    }

    /// Whether no write is pending: what is committed is the last that was begun here.
    #[inline]
    pub fn is_clean(&self) -> bool {
        match self.place {
            Some((_, addr)) => !self.shard.record(addr).is_marked(BESIDE),
            None => self.pending().is_none(),
        }
    }

    /// The object as it will be when the pending write is committed; `None`: none is pending, or it is a removal.
    pub fn found_pending(&self) -> Option<Found<'_>> {
        let pending = self.pending().filter(|pending| !pending.removes);
        pending.map(|_| self.found_at(self.pending_place().1))
    }

    /// Gives out the next version, which is above `floor` too.
    pub fn take_version(&mut self, floor: Version) -> Version {
        self.shard.raise_version(self.slot_at, floor);
        self.shard.next_version(self.slot_at)
    }

    /// Keeps a write, which follows version `base` (0: absence), beside what is committed. It takes all the room and
    /// quota that its commit needs.
    ///
    /// Errors: `Busy` where a write is pending, else those of a put. Nothing is kept then.
    pub fn prepare(&mut self, version: Version, base: Version, new: &NewObject<'_>) -> Result<(), Error> {
        let done = self.try_prepare(version, base, new);
        if done.is_err() {
            self.refused(new);
        }
        done
    }

    /// As [`Entry::prepare`], by who tries another way where it is refused: that is not counted.
    pub fn try_prepare(&mut self, version: Version, base: Version, new: &NewObject<'_>) -> Result<(), Error> {
        self.check_free()?;
        self.check_name()?;
        let mut draft = self.draft(version, new);
        let weight = self.weight_of(&draft, &new.value);
        let claimed = self.claim_quota(weight)?;
        let done = self.store_pending(&mut draft, &new.value, weight);
        self.c.unclaim(claimed);
        done.map(|()| self.note(Pending { version, base, removes: false }, None))
    }

    /// Writes a pending record, in place of none.
    fn store_pending(&mut self, draft: &mut Draft<'_>, value: &Given<'_>, weight: u64) -> Result<(), Error> {
        self.make_index_room()?;
        let (queue, addr) = self.room_for_new(draft.bytes())?;
        self.complete(draft, value);
        draft.write(self.shard.bytes_mut(addr), 0);
        record::set_mark(self.shard.bytes_mut(addr), PENDING, true);
        self.shard.note_expiry(PageId(addr.page()), draft.head.expires_ms);
        self.shard.count_in(self.c, queue, weight);
        self.shard.link(self.c, self.tag, addr);
        // Where names are kept in order, this one has its room now. A listing passes over it until it is committed.
        self.c.add_name(self.generation, self.name);
        Ok(())
    }

    /// Keeps a removal, which follows version `base`, and which leaves a fence behind. Error: `Busy` where a write is
    /// pending.
    pub fn prepare_remove(&mut self, version: Version, base: Version, fence: Option<Fence>) -> Result<(), Error> {
        self.check_free()?;
        self.note(Pending { version, base, removes: true }, fence);
        Ok(())
    }

    fn check_free(&self) -> Result<(), Error> {
        if self.pending().is_none() { Ok(()) } else { Err(refusal::busy(self.c)) }
    }

    fn note(&mut self, write: Pending, fence: Option<Fence>) {
        self.shard.raise_version(self.slot_at, write.version);
        let shard = &mut *self.shard;
        shard.pending.insert(&shard.arena, self.tag, self.generation, self.name, Prepared { write, fence });
        self.mark_beside(true);
    }

    /// Marks what is committed.
    fn mark_beside(&mut self, is_beside: bool) {
        if let Some((_, addr)) = self.place {
            record::set_mark(self.shard.bytes_mut(addr), BESIDE, is_beside);
        }
    }

    /// What was just put is marked if a write is pending beside it.
    #[inline]
    pub(crate) fn mark_put(&mut self) {
        if !self.shard.pending.is_empty() && self.pending().is_some() {
            self.mark_beside(true);
        }
    }

    /// The pending write of this version becomes what is committed; can't fail. False: it is not pending.
    pub fn commit(&mut self, version: Version) -> bool {
        match self.end_pending(version) {
            None => false,
            Some(Prepared { write: Pending { removes: true, .. }, fence }) => {
                // Where there is nothing, the removal was prepared to leave its token, or to tell that there is none.
                match fence {
                    _ if self.take_out(fence) => {}
                    Some(fence) => self.leave(fence),
                    None => self.shard.forget_left(self.generation, self.tag, self.name),
                }
                true
            }
            Some(_) => {
                self.commit_object();
                true
            }
        }
    }

    fn commit_object(&mut self) {
        if let Some((at, addr)) = self.place.take() {
            self.shard.replace(self.c, at, addr);
        }
        let (at, addr) = self.pending_place();
        record::set_mark(self.shard.bytes_mut(addr), PENDING, false);
        (self.place, self.is_due) = (Some((at, addr)), false);
        let logs = self.shard.logs(self.c);
        (logs.counts.objects, logs.counts.puts) = (logs.counts.objects + 1, logs.counts.puts + 1);
        logs.kept_pages = 0;
        self.shard.forget_left(self.generation, self.tag, self.name);
        // What was committed may have been removed beside it, and the name with it.
        self.c.add_name(self.generation, self.name);
    }

    /// Drops the pending write of this version; false: it is not pending.
    pub fn abort(&mut self, version: Version) -> bool {
        let Some(Prepared { write, .. }) = self.end_pending(version) else { return false };
        self.mark_beside(false);
        if !write.removes {
            let (at, addr) = self.pending_place();
            self.shard.kill(self.c, at, addr);
            self.look_again();
            if self.place.is_none() {
                self.c.remove_name(self.generation, self.name);
            }
        }
        true
    }

    fn end_pending(&mut self, version: Version) -> Option<Prepared> {
        self.pending().filter(|write| write.version == version)?;
        let shard = &mut *self.shard;
        shard.pending.remove(&shard.arena, self.tag, self.generation, self.name)
    }

    fn pending_place(&self) -> (usize, Addr) {
        let place = self.shard.find_pending(self.c, self.generation, self.tag, self.name);
        place.expect("a write that is pending and no removal has a record")
    }

    /// Sets what is committed to a version that was committed elsewhere, below what is pending here. Errors: as those
    /// of a put.
    pub fn copy(&mut self, version: Version, new: &NewObject<'_>) -> Result<(), Error> {
        let done = self.try_put(version, new).map(drop);
        if done.is_err() {
            self.refused(new);
        }
        done
    }
}
