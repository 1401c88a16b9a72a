//! The locks of the store, each with a rank; a thread takes them in rising rank only, so no two ever wait for each
//! other. The ranks and what each lock guards stand on top of `lib.rs`.
//!
//! The order is checked where debug assertions are on, or with `--cfg herd_ranks`, and costs nothing elsewhere. A lock
//! that another thread left by a panic is taken all the same. With `--cfg herd_shuttle` locks and atomics are those of
//! a model checker, which runs threads in every order and finds those in which they wait for each other.

#[cfg(herd_shuttle)]
use shuttle::sync;
use std::ops::{Deref, DerefMut};
#[cfg(not(herd_shuttle))]
use std::sync;
use std::sync::{PoisonError, TryLockError};

pub(crate) use sync::atomic;

/// The order of the locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rank {
    /// One shard. A second one is only ever tried.
    Shard,
    /// The list of collections.
    Registry,
    /// One collection while it goes over to another generation of the map.
    Follow,
    /// The sorted names of one collection.
    Names,
    /// The free pages of the arena.
    Pool,
}

/// A mutex with a rank.
pub(crate) struct Mutex<T>(Rank, sync::Mutex<T>);

/// A reader-writer lock with a rank.
pub(crate) struct RwLock<T>(Rank, sync::RwLock<T>);

/// What a lock guards, while it is held.
pub(crate) struct Guard<G> {
    inner: G,
    _held: Held,
}

/// A locked mutex.
pub(crate) type MutexGuard<'a, T> = Guard<sync::MutexGuard<'a, T>>;

impl<T> Mutex<T> {
    pub(crate) fn new(rank: Rank, value: T) -> Self {
        Self(rank, sync::Mutex::new(value))
    }

    /// Waits for the lock.
    #[inline]
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        let held = Held::waiting(self.0);
        Guard { inner: self.1.lock().unwrap_or_else(PoisonError::into_inner), _held: held }
    }

    /// The lock, if nobody has it; so it may be of any rank.
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let inner = match self.1.try_lock() {
            Ok(inner) => inner,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(Guard { inner, _held: Held::trying(self.0) })
    }
}

impl<T> RwLock<T> {
    pub(crate) fn new(rank: Rank, value: T) -> Self {
        Self(rank, sync::RwLock::new(value))
    }

    /// Waits until nobody writes.
    pub(crate) fn read(&self) -> Guard<sync::RwLockReadGuard<'_, T>> {
        let held = Held::waiting(self.0);
        Guard { inner: self.1.read().unwrap_or_else(PoisonError::into_inner), _held: held }
    }

    /// Waits until it has the lock alone.
    pub(crate) fn write(&self) -> Guard<sync::RwLockWriteGuard<'_, T>> {
        let held = Held::waiting(self.0);
        Guard { inner: self.1.write().unwrap_or_else(PoisonError::into_inner), _held: held }
    }
}

impl<G: Deref> Deref for Guard<G> {
    type Target = G::Target;

    #[inline]
    fn deref(&self) -> &G::Target {
        &self.inner
    }
}

impl<G: DerefMut> DerefMut for Guard<G> {
    #[inline]
    fn deref_mut(&mut self) -> &mut G::Target {
        &mut self.inner
    }
}

#[cfg(all(any(debug_assertions, herd_ranks), not(herd_shuttle)))]
pub(crate) use checked::Held;
#[cfg(not(all(any(debug_assertions, herd_ranks), not(herd_shuttle))))]
pub(crate) use unchecked::Held;

#[cfg(all(any(debug_assertions, herd_ranks), not(herd_shuttle)))]
mod checked {
    use super::Rank;
    use std::cell::RefCell;

    thread_local! {
        static HELD: RefCell<Vec<Rank>> = const { RefCell::new(Vec::new()) };
    }

    /// Notes that this thread has a lock.
    pub(crate) struct Held(Rank);

    impl Held {
        /// Before the thread waits for a lock: all it has must be of lower rank.
        pub(crate) fn waiting(rank: Rank) -> Self {
            HELD.with_borrow(|held| {
                let highest = held.iter().max();
                assert!(highest.is_none_or(|held| *held < rank), "waits for {rank:?} while it has {highest:?}");
            });
            Self::trying(rank)
        }

        /// The thread has a lock for which it did not wait.
        pub(crate) fn trying(rank: Rank) -> Self {
            HELD.with_borrow_mut(|held| held.push(rank));
            Self(rank)
        }

        /// Whether this thread has a lock of that rank.
        #[cfg(test)]
        pub(crate) fn has(rank: Rank) -> bool {
            HELD.with_borrow(|held| held.contains(&rank))
        }
    }

    impl Drop for Held {
        fn drop(&mut self) {
            HELD.with_borrow_mut(|held| {
                let at = held.iter().rposition(|rank| *rank == self.0).expect("it was noted");
                held.remove(at);
            });
        }
    }
}

#[cfg(not(all(any(debug_assertions, herd_ranks), not(herd_shuttle))))]
mod unchecked {
    use super::Rank;

    /// Nothing is noted.
    pub(crate) struct Held;

    impl Held {
        #[inline(always)]
        pub(crate) fn waiting(_: Rank) -> Self {
            Self
        }

        #[inline(always)]
        pub(crate) fn trying(_: Rank) -> Self {
            Self
        }

        #[cfg(test)]
        pub(crate) fn has(_: Rank) -> bool {
            false
        }
    }
}

#[cfg(test)]
#[cfg(all(any(debug_assertions, herd_ranks), not(herd_shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn locks_are_taken_in_rising_rank_and_tried_in_any() {
        let (shard, pool) = (Mutex::new(Rank::Shard, 1), Mutex::new(Rank::Pool, 2));
        let other = Mutex::new(Rank::Shard, 3);
        for _ in 0..2 {
            let held = shard.lock();
            let last = pool.lock();
            assert_eq!(*held + *last + *other.try_lock().expect("free"), 6);
            drop(held);
            assert!(other.try_lock().is_some());
        }
    }

    #[test]
    #[should_panic(expected = "waits for Shard while it has Some(Registry)")]
    fn the_wrong_order_is_seen_without_a_second_thread() {
        let (shard, registry) = (Mutex::new(Rank::Shard, ()), RwLock::new(Rank::Registry, ()));
        let _held = registry.write();
        let _never = shard.lock();
    }

    #[test]
    #[should_panic(expected = "waits for Shard while it has Some(Shard)")]
    fn two_of_the_same_rank_are_never_waited_for() {
        let (one, other) = (Mutex::new(Rank::Shard, ()), Mutex::new(Rank::Shard, ()));
        let _held = one.lock();
        let _never = other.lock();
    }
}
