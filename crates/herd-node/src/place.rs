//! A node's place in its herd: the map it goes by, and what it is to each slot by that.
//!
//! A map is taken whole: first what the node is to each slot, shard by shard, then the collections. So whoever finds a
//! new collection finds the seats that go with it. A map is noted once all of it is done, so that one which failed
//! midway can be taken again. Who may call: whoever hears of maps, from any thread, without a lock.

use herd_core::Error;
use herd_core::place::{Life, Map};
use herd_store::Store;
use std::sync::atomic::{
    AtomicBool,
    Ordering::{Acquire, Relaxed, Release},
};
use std::sync::{Arc, Mutex, PoisonError};

/// A node's place in its herd.
pub struct Place {
    me: Life,
    /// The map, and whether the herd may hold objects; none yet.
    taken: Mutex<Option<(Arc<Map>, bool)>>,
    /// A map was taken since this was last asked.
    news: AtomicBool,
}

impl Place {
    /// That of a node in this life of it, before it has a map.
    pub fn new(me: Life) -> Self {
        Self { me, taken: Mutex::new(None), news: AtomicBool::new(false) }
    }

    /// The map it goes by, and whether the herd may hold objects.
    pub fn map(&self) -> Option<(Arc<Map>, bool)> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Goes over to a map, if it is later than the one it has; gives whether it did. Errors: as of [`Store::adopt`];
    /// the map may be taken again then.
    pub fn take(&self, store: &Store, map: &Arc<Map>, held: bool) -> Result<bool, Error> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if taken.as_ref().is_some_and(|(than, than_held)| !map.is_later(held, (than, *than_held))) {
            return Ok(false);
        }
        for spread in &map.spreads {
            store.set_seats(spread.id, map.seats(self.me, spread));
        }
        let adopted = store.adopt(map);
        // Behind all that has changed: whoever reads it finds the rest.
        self.news.store(true, Release);
        adopted?;
        *taken = Some((map.clone(), held));
        Ok(true)
    }

    /// Whether a map was taken, whole or in part, since this was last asked.
    pub(crate) fn has_news(&self) -> bool {
        self.news.load(Relaxed) && self.news.swap(false, Acquire)
    }
}
