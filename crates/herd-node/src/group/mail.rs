//! What loops of a node hand each other about groups: operations, to the loop on which the part lives, and what they
//! came to, back to the loop that asked.
//!
//! Who may call: any loop. A letter box is locked for a push or for taking all; its loop is woken then.

use super::{Operation, Origin, Told};
use crate::context::Shared;
use herd_core::limits::PART_OPS_MAX;
use herd_store::Collection;
use std::sync::atomic::{
    AtomicBool,
    Ordering::{Acquire, Release},
};
use std::sync::{Mutex, PoisonError};

/// The letter boxes of all loops.
pub(crate) struct Mail {
    boxes: Vec<LetterBox>,
}

#[derive(Default)]
struct LetterBox {
    letters: Mutex<Vec<Letter>>,
    has_any: AtomicBool,
}

/// See the module.
pub(super) enum Letter {
    /// An operation on the object of that name.
    Ask(Collection, Box<[u8]>, Box<Operation>),
    /// What an operation came to.
    Told(Origin, Box<Told>),
}

impl Mail {
    /// Of so many loops.
    pub(crate) fn new(loops: usize) -> Self {
        Self { boxes: (0..loops).map(|_| LetterBox::default()).collect() }
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
