//! What is said where a put is refused: what, which collection, with the figures.

use crate::arena::Arena;
use crate::collection::State;
use herd_core::{Error, ErrorKind, quote, size};

#[cold]
pub(crate) fn removed(c: &State) -> Error {
    Error::new(ErrorKind::NoCollection, format!("collection '{}' was removed", quote(c.name.as_bytes())))
}

#[cold]
pub(crate) fn full(c: &State, arena: &Arena) -> Error {
    let why = if c.class.evicts() { "has nothing left to evict" } else { "does not evict" };
    let text = format!(
        "the memory of node '{}' is full: {} of {} in use and collection '{}' of class {} {why}; --memory gives the \
         node more",
        arena.node(),
        size::show(arena.used_bytes()),
        size::show(arena.budget_bytes()),
        quote(c.name.as_bytes()),
        c.class
    );
    Error::new(ErrorKind::Full, text)
}

/// A value on its way between a client and another node finds no room here.
#[cold]
pub(crate) fn no_way_through(c: &State, arena: &Arena) -> Error {
    let text = format!(
        "the memory of node '{}' is full, {} of {} in use: a value of collection '{}' that another node has does not \
         pass there; ask that node, or --memory gives this one more",
        arena.node(),
        size::show(arena.used_bytes()),
        size::show(arena.budget_bytes()),
        quote(c.name.as_bytes()),
    );
    Error::new(ErrorKind::Full, text)
}

#[cold]
pub(crate) fn quota(c: &State, more: u64, quota: u64) -> Error {
    let (used, more, quota) = (size::show(c.used_bytes()), size::show(more), size::show(quota));
    Error::new(
        ErrorKind::Quota,
        format!("quota of collection '{}' is {quota}: {used} in use, {more} asked", quote(c.name.as_bytes())),
    )
}

/// A table of the index has its greatest size; more threads would cut the memory into more shards.
#[cold]
pub(crate) fn index(c: &State, objects: usize, arena: &Arena) -> Error {
    let text = format!(
        "the index of node '{}' is full: {objects} objects in this shard, collection '{}' gets no more",
        arena.node(),
        quote(c.name.as_bytes())
    );
    Error::new(ErrorKind::Full, text)
}

/// Another write of the object is pending.
#[cold]
pub(crate) fn busy(c: &State) -> Error {
    let text = format!("another write of this object of collection '{}' is under way", quote(c.name.as_bytes()));
    Error::new(ErrorKind::Busy, text)
}

/// A map has a collection more, and those it has no more are still in use.
#[cold]
pub(crate) fn too_many_gone(name: &str) -> Error {
    let text = format!("no place for collection '{}' yet: too many that are gone are in use", quote(name.as_bytes()));
    Error::new(ErrorKind::Busy, text)
}

/// A value does not fit beside what is never evicted.
#[cold]
pub(crate) fn no_room(size_bytes: u64, free_bytes: u64, budget_bytes: u64, node: &str) -> Error {
    let (has, free, budget) = (size::show(size_bytes), size::show(free_bytes), size::show(budget_bytes));
    Error::new(
        ErrorKind::Full,
        format!("object of {has} does not fit at node '{node}': {free} of {budget} free; --memory gives the node more"),
    )
}
