//! Who waits for which object: the only notification of the core (DESIGN §3.6).
//!
//! A put looks at one counter; only if somebody waits does it look further. Waiters are told that something changed
//! and look for themselves.

use herd_core::key::CollectionId;
use herd_net::Ticket;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError};

type Key = (CollectionId, Box<[u8]>);

/// The waiters of a node.
#[derive(Default)]
pub(crate) struct Watch {
    waiting: AtomicUsize,
    table: Mutex<HashMap<Key, Vec<Waiter>>>,
}

/// A connection that waits: its loop and the ticket of its reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Waiter {
    pub(crate) loop_number: usize,
    pub(crate) ticket: Ticket,
}

impl Watch {
    pub(crate) fn add(&self, collection: CollectionId, name: &[u8], waiter: Waiter) {
        self.lock().entry((collection, name.into())).or_default().push(waiter);
        self.waiting.fetch_add(1, SeqCst);
    }

    pub(crate) fn remove(&self, collection: CollectionId, name: &[u8], waiter: Waiter) {
        let mut table = self.lock();
        let key = (collection, name.into());
        let Some(waiters) = table.get_mut(&key) else {
            return;
        };
        let before = waiters.len();
        waiters.retain(|other| *other != waiter);
        self.waiting.fetch_sub(before - waiters.len(), SeqCst);
        if waiters.is_empty() {
            table.remove(&key);
        }
    }

    /// Who waits for an object that changed.
    #[inline]
    pub(crate) fn waiters(&self, collection: CollectionId, name: &[u8]) -> Vec<Waiter> {
        if self.waiting.load(SeqCst) == 0 {
            return Vec::new();
        }
        self.lock().get(&(collection, name.into())).cloned().unwrap_or_default()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Vec<Waiter>>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_those_who_wait_for_an_object_are_told() {
        let watch = Watch::default();
        let one = Waiter { loop_number: 0, ticket: Ticket { conn: 1, serial: 1 } };
        let two = Waiter { loop_number: 1, ticket: Ticket { conn: 1, serial: 1 } };
        watch.add(CollectionId(2), b"n", one);
        watch.add(CollectionId(2), b"n", two);
        assert_eq!(watch.waiters(CollectionId(2), b"n"), [one, two]);
        assert!(watch.waiters(CollectionId(3), b"n").is_empty());
        watch.remove(CollectionId(2), b"n", one);
        assert_eq!(watch.waiters(CollectionId(2), b"n"), [two]);
        watch.remove(CollectionId(2), b"n", two);
        assert!(watch.waiters(CollectionId(2), b"n").is_empty());
    }
}
