//! What loops of a node hand each other about groups: operations, to the loop on which the part lives, and what they
//! came to, back to the loop that asked.
//!
//! Who may call: any loop. A letter box is locked for a push or for taking all; its loop is woken then.

use super::{Key, Operation, Origin, Told};
use crate::context::Shared;
use crate::held::Held;
use herd_core::limits::{HELD_PART, PART_OPS_MAX};
use herd_core::place::GroupId;
use herd_core::replica::GroupEpoch;
use herd_core::{Error, ErrorKind};
use std::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};
use std::sync::{Arc, Mutex, PoisonError};

/// The letter boxes of all loops, and what their groups hold.
pub(crate) struct Mail {
    boxes: Vec<LetterBox>,
    /// Bytes of the operations in the lines of all groups.
    in_line_bytes: AtomicU64,
}

/// Memory of an operation in line, given back when it is dropped.
pub(super) struct Room {
    shared: Arc<Shared>,
    _held: Held,
    bytes: u64,
}

impl Room {
    /// Takes so much, within half of what a node may hold: the other half is that of connections, which would be closed
    /// without it. Error: `Busy`.
    pub(super) fn take(shared: &Arc<Shared>, bytes: u64) -> Result<Self, Error> {
        let (all, most) = (&shared.mail.in_line_bytes, shared.config.memory_bytes / (2 * HELD_PART));
        let more = |sum: u64| sum.checked_add(bytes).filter(|sum| *sum <= most);
        let mut held = Held::nothing(&shared.store);
        held.set(bytes)?;
        all.fetch_update(Relaxed, Relaxed, more).map_err(|_| too_many())?;
        Ok(Self { shared: shared.clone(), _held: held, bytes })
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.shared.mail.in_line_bytes.fetch_sub(self.bytes, Relaxed);
    }
}

/// The error where no more operations may wait.
#[cold]
pub(super) fn too_many() -> Error {
    Error::new(ErrorKind::Busy, "too many changes wait for the groups of this node: ask again later")
}

#[derive(Default)]
struct LetterBox {
    letters: Mutex<Vec<Letter>>,
    has_any: AtomicBool,
}

/// See the module.
pub(super) enum Letter {
    /// An operation on that object.
    Ask(Key, Box<Operation>),
    /// What a read of an object of that group has found: to be told when the members have confirmed it.
    Confirm(GroupId, Origin, Box<Told>, GroupEpoch),
    /// What an operation came to.
    Told(Origin, Box<Told>),
}

impl Mail {
    /// Of so many loops.
    pub(crate) fn new(loops: usize) -> Self {
        Self { boxes: (0..loops).map(|_| LetterBox::default()).collect(), in_line_bytes: AtomicU64::new(0) }
    }

    /// Whether there is something for a loop.
    #[inline]
    pub(super) fn has_any(&self, number: usize) -> bool {
        self.boxes.get(number).is_some_and(|it| it.has_any.load(Acquire))
    }

    /// Takes what there is for a loop, in order.
    pub(super) fn take(&self, number: usize) -> Vec<Letter> {
        let Some(it) = self.boxes.get(number).filter(|it| it.has_any.load(Acquire)) else { return Vec::new() };
        let mut letters = it.letters.lock().unwrap_or_else(PoisonError::into_inner);
        it.has_any.store(false, Release);
        std::mem::take(&mut *letters)
    }
}

impl Shared {
    /// Hands a letter to a loop. An operation comes back where too many wait there.
    pub(super) fn post(&self, to: usize, letter: Letter) -> Result<(), Letter> {
        let Some(it) = self.mail.boxes.get(to) else { return Err(letter) };
        let mut letters = it.letters.lock().unwrap_or_else(PoisonError::into_inner);
        // What operations came to always goes: there is no more of it than was asked.
        if matches!(letter, Letter::Ask(..)) && letters.len() >= PART_OPS_MAX {
            return Err(letter);
        }
        letters.push(letter);
        let is_first = !it.has_any.swap(true, Release);
        drop(letters);
        if is_first && let Some(loops) = self.loops.get() {
            loops.loops()[to].resume(&[]);
        }
        Ok(())
    }
}
