//! What a warden gives to whoever drives it: calls to the store, maps to push, answers.

use super::Ticket;
use super::ask::{Answer, Refusal};
use crate::control::{Control, ControlError, Office, Outcome, Page, Range, Txn};
use crate::place::Map;
use std::sync::Arc;

/// A call to the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    /// [`Control::campaign`], for this long.
    Campaign {
        /// The candidate.
        name: String,
        /// The lease.
        lease_ms: u64,
    },
    /// [`Control::range`].
    Range(Range),
    /// [`Control::txn`].
    Txn(Txn),
}

impl Call {
    /// Makes the call.
    pub fn run(&self, store: &mut (impl Control + ?Sized), now_ms: u64) -> Result<Reply, ControlError> {
        match self {
            Call::Campaign { name, lease_ms } => store.campaign(name, *lease_ms, now_ms).map(Reply::Office),
            Call::Range(range) => store.range(range).map(Reply::Page),
            Call::Txn(txn) => store.txn(txn).map(Reply::Outcome),
        }
    }
}

/// What the store answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// To a candidacy.
    Office(Office),
    /// To a range.
    Page(Page),
    /// To a transaction.
    Outcome(Outcome),
}

/// What is to be done, in this order.
#[derive(Clone, Debug, PartialEq)]
pub enum Order {
    /// Make this call and hand the answer to [`Warden::reply`]. The one before has been answered.
    Store(Call),
    /// Give this map to all its nodes.
    Push {
        /// The map; in the store.
        map: Arc<Map>,
        /// Whether the herd may hold objects: before, no primary accepts a write. It goes with the map, and of two maps
        /// of one epoch and revision the one with it is the later.
        held: bool,
    },
    /// Answer this request.
    Answer(Ticket, Result<Answer, Refusal>),
    /// Tell this where people see it: told once while it lasts.
    Tell(String),
}
