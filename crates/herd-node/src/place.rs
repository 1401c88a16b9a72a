//! A node's place in its herd: the map it goes by, and what it is to each slot by that.
//!
//! A map is taken whole: first what the node is to each slot, shard by shard, then the collections. So whoever finds a
//! new collection finds the seats that go with it. A map is noted once all of it is done, so that one which failed
//! midway can be taken again. Who may call: whoever hears of maps, from any thread, without a lock.
//!
//! Two mutexes, as loops ask for the map with every request that they hand on, and a change of map waits for each of
//! the shards: one is held by who takes a map, to its end; the other, for the map that is told, for a moment. So that
//! one has all its seats; but a seat may be of the one that is being taken already.

use crate::group::Gates;
use herd_core::Error;
use herd_core::limits::{SLOTS, SPREADS_MAX};
use herd_core::place::{Kind, Life, Map, Seat, Spread};
use herd_core::wire::Meant;
use herd_store::{Collection, Now, Store};
use std::sync::atomic::{
    AtomicBool, AtomicU8, AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// A node's place in its herd.
pub struct Place {
    me: Life,
    /// Held while a map is taken; behind it come the shards' locks.
    taking: Mutex<()>,
    /// The map, and whether the herd may hold objects; none yet.
    taken: Mutex<Option<(Arc<Map>, bool)>>,
    /// A map was taken since this was last asked.
    news: AtomicBool,
    /// The epoch of the map, as clients are told; 0: there is no other node.
    told: AtomicU32,
    /// Maps taken so far.
    maps: AtomicU64,
    /// What is kept of objects, by spread group.
    kept: [Kept; SPREADS_MAX],
}

/// Copies of the objects of a spread group.
#[derive(Default)]
struct Kept {
    /// Those that a write needs; 0: no map has told.
    needed: AtomicU8,
    /// Those there are; 0: not of all slots as many.
    copies: AtomicU8,
    /// Those of each slot.
    slots: OnceLock<Box<[AtomicU8]>>,
}

impl Kept {
    fn adopt(&self, spread: &Spread) {
        let slots = self.slots.get_or_init(|| (0..SLOTS).map(|_| AtomicU8::new(0)).collect());
        let of_group: Vec<u8> =
            spread.groups.iter().map(|group| u8::try_from(group.copies()).unwrap_or(u8::MAX)).collect();
        let first = of_group[usize::from(spread.slots[0])];
        let mut same = true;
        for (there, number) in slots.iter().zip(spread.slots.iter()) {
            let copies = of_group[usize::from(*number)];
            there.store(copies, Relaxed);
            same &= copies == first;
        }
        self.copies.store(if same { first } else { 0 }, Relaxed);
        self.needed.store(spread.needed, Relaxed);
    }
}

impl Place {
    /// That of a node in this life of it, before it has a map.
    pub fn new(me: Life) -> Self {
        let (news, told, maps) = (AtomicBool::new(false), AtomicU32::new(0), AtomicU64::new(0));
        Self { me, taking: Mutex::new(()), taken: Mutex::new(None), news, told, maps, kept: Default::default() }
    }

    /// Who the node is.
    pub(crate) fn me(&self) -> Life {
        self.me
    }

    /// How many maps it has taken: whoever sees another number looks at [`Place::map`].
    #[inline]
    pub(crate) fn maps(&self) -> u64 {
        self.maps.load(Acquire)
    }

    /// The map it goes by, and whether the herd may hold objects. All seats are set by it, or by a later one.
    pub fn map(&self) -> Option<(Arc<Map>, bool)> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Goes over to a map, if it is later than the one it has; gives whether it did. Errors: as of [`Store::adopt`];
    /// the map may be taken again then.
    pub(crate) fn take(
        &self,
        (store, now): (&Store, Now),
        gates: &Gates,
        map: &Arc<Map>,
        held: bool,
    ) -> Result<bool, Error> {
        let _turn = self.taking.lock().unwrap_or_else(PoisonError::into_inner);
        if self.map().is_some_and(|(than, than_held)| !map.is_later(held, (&than, than_held))) {
            return Ok(false);
        }
        if !held {
            gates.note_held(false);
        }
        gates.adopt(self.me, map);
        let (before, is_leased) = (self.map(), gates.is_leased(map));
        for spread in &map.spreads {
            self.kept[usize::from(spread.id)].adopt(spread);
            let seat_of = map.seats(self.me, spread, |number, seat| gates.seat(spread, number, seat, is_leased));
            let lost = before.as_ref().map_or_else(Vec::new, |(before, _)| self.lost(before, spread));
            if !lost.is_empty() {
                let is_lost = |slot| lost.binary_search(&slot).is_ok();
                store.set_seats(spread.id, |slot| {
                    let (seat, floor) = seat_of(slot);
                    (if is_lost(slot) { Seat::Away } else { seat }, floor)
                });
                store.clear_slots(spread.id, lost.iter().copied(), now);
            }
            store.set_seats(spread.id, seat_of);
        }
        let adopted = store.adopt(map);
        if adopted.is_err() {
            // In part it was taken all the same.
            self.news.store(true, Release);
        }
        adopted?;
        if held {
            gates.note_held(true);
        }
        self.told.store(if map.nodes.len() > 1 { map.epoch } else { 0 }, Relaxed);
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let before = taken.replace((map.clone(), held));
        drop(taken);
        drop(before);
        self.maps.fetch_add(1, Release);
        // Behind all that has changed: whoever reads it finds the rest.
        self.news.store(true, Release);
        Ok(true)
    }

    /// Sets all seats anew by the map at hand: what is asked of it beside the map has changed.
    pub(crate) fn sit_again(&self, store: &Store, gates: &Gates) {
        let _turn = self.taking.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((map, _)) = self.map() else { return };
        let is_leased = gates.is_leased(&map);
        for spread in &map.spreads {
            let seats = map.seats(self.me, spread, |number, seat| gates.seat(spread, number, seat, is_leased));
            store.set_seats(spread.id, seats);
        }
        self.maps.fetch_add(1, Release);
    }

    /// The slots of class `cache` that this node had by the map before, and that it has not any more, or anew: others
    /// may have had them meanwhile, and what is here of them is worth nothing.
    fn lost(&self, before: &Map, spread: &Spread) -> Vec<usize> {
        let old = before.spread(spread.id).filter(|old| old.kind == Kind::Cache);
        let Some(old) = old else { return Vec::new() };
        let had = |slot: &usize| old.group_of(*slot).primary == Some(self.me.node);
        let has_still =
            |slot: usize| spread.group_of(slot).primary == Some(self.me.node) && spread.since(slot) == old.since(slot);
        (0..SLOTS).filter(had).filter(|slot| !has_still(*slot)).collect()
    }

    /// Copies without which no write of a collection is acknowledged; 0: no map has told.
    #[inline]
    pub(crate) fn needed(&self, c: &Collection) -> u8 {
        self.kept[usize::from(c.id().spread_group())].needed.load(Relaxed)
    }

    /// Copies that are kept of an object.
    #[inline]
    pub(crate) fn copies(&self, store: &Store, c: &Collection, name: &[u8]) -> u8 {
        let kept = &self.kept[usize::from(c.id().spread_group())];
        match kept.copies.load(Relaxed) {
            0 => kept.slots.get().map_or(1, |slots| slots[store.slot_of(c, name)].load(Relaxed)),
            copies => copies,
        }
    }

    /// The least copies that are kept of any object of a collection.
    pub(crate) fn least_copies(&self, c: &Collection) -> u8 {
        let slots = self.kept[usize::from(c.id().spread_group())].slots.get();
        slots.and_then(|slots| slots.iter().map(|slot| slot.load(Relaxed)).min()).unwrap_or(1)
    }

    /// The epoch that is told to clients, who ask for the map if theirs is of a lower one; 0 while there is no other
    /// node to go to.
    #[inline]
    pub(crate) fn epoch_told(&self) -> u32 {
        self.told.load(Relaxed)
    }

    /// Whether it is this node that a client means.
    pub(crate) fn is_meant(&self, meant: Meant) -> bool {
        self.me.node == meant.node && self.map().is_some_and(|(map, _)| map.herd == meant.herd)
    }

    /// Whether a map was taken, whole or in part, since this was last asked.
    pub(crate) fn has_news(&self) -> bool {
        self.news.load(Relaxed) && self.news.swap(false, Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drive::World;
    use crate::tests::away::{herd, life};
    use herd_store::{Given, NewObject};
    use std::cell::Cell;
    use std::sync::mpsc::channel;
    use std::time::Duration;

    /// Also where it hears only that it has it again: another node may have answered for it meanwhile.
    #[test]
    fn what_is_of_class_cache_and_was_given_to_others_is_dropped() {
        let (world, first) = (World::new(), Arc::new(herd(2)));
        let (shared, now) = (&world.shared, Now { unix_ms: 1, uptime_s: 0 });
        assert_eq!(shared.take_map(life(1), &first, true), Ok(true));
        let names: Vec<String> = (0..400).map(|number| format!("k{number}")).collect();
        let c = shared.store.collection(b"cache").expect("the map has it");
        for name in &names {
            let mut entry = shared.store.entry(&c, name.as_bytes(), now);
            entry.put(&NewObject::of(Given::Small(b"v", None))).expect("there is room");
        }
        let there = |name: &&String| shared.store.entry(&c, name.as_bytes(), now).found().is_some();
        assert_eq!(names.iter().filter(there).count(), 400);
        let own = |slot: usize| first.spreads[1].group_of(slot).primary == Some(life(1).node);
        let slot = |name: &String| shared.store.slot_of(&c, name.as_bytes());
        let kept = |map: &Map, name: &String| own(slot(name)) && map.spreads[1].since(slot(name)) == 1 << 20;
        // One of its groups goes, and comes back by a map that it never sees the one before of.
        let gone = first.next(|draft| {
            let its = draft.spreads[1].groups.iter_mut().find(|group| group.primary == Some(life(1).node));
            its.into_iter().for_each(|group| (group.primary, group.eligible) = (None, Vec::new()));
        });
        let back = gone.expect("valid").next(|draft| draft.reopen(&first.nodes[..1]));
        let back = Arc::new(back.expect("valid"));
        assert_eq!(back.spreads[1].groups.iter().filter(|group| group.primary_since > 1 << 20).count(), 1);
        // What another node has it has nothing of: it was put here by a test.
        let before: Vec<&String> = names.iter().filter(|name| kept(&back, name)).collect();
        assert_eq!(shared.take_map(life(1), &back, true), Ok(true));
        assert!(before.iter().all(there), "what it has as before stays");
        let anew = |name: &&String| own(slot(name)) && !kept(&back, name);
        let anew: Vec<&String> = names.iter().filter(anew).collect();
        assert!(!anew.is_empty() && !anew.iter().any(there), "and nothing else of its own is found");
    }

    /// Loops ask for it with each request that they hand on.
    #[test]
    fn while_a_map_is_taken_the_one_before_is_told() {
        let (world, first) = (World::new(), Arc::new(herd(2)));
        let shared = &world.shared;
        assert_eq!(shared.take_map(life(1), &first, false), Ok(true));
        let place = shared.place.get().expect("it has a map");
        let next = Arc::new(first.next(|draft| draft.collections[0].generation += 1).expect("valid"));
        let ((came, comes), (go, goes), (told, tells)) = (channel(), channel::<()>(), channel());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (goes, came) = (goes, Cell::new(Some(came)));
                let seats = first.seats(life(1), &first.spreads[0], |_, seat| seat);
                // The first shard is busy.
                shared.store.set_seats(0, |slot| {
                    came.take().into_iter().for_each(|came| came.send(()).expect("somebody waits"));
                    goes.recv().ok();
                    seats(slot)
                });
            });
            comes.recv().expect("it is busy");
            let taken = scope.spawn(|| shared.take_map(life(1), &next, false));
            while place.taking.try_lock().is_ok() {
                std::thread::yield_now();
            }
            scope.spawn(move || told.send(place.map().map(|(map, _)| map.revision)));
            let now = tells.recv_timeout(Duration::from_secs(10));
            assert!(!taken.is_finished());
            drop(go);
            assert_eq!(now, Ok(Some(first.revision)));
            assert_eq!(taken.join().expect("no panic"), Ok(true));
            assert_eq!(place.map().map(|(map, _)| map.revision), Some(next.revision));
        });
    }
}
