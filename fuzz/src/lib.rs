//! Fuzz targets of every parser in herd-core and of every session of a node: one module a target, one corpus
//! directory a target.
//!
//! A target is a plain function from bytes to the [`Outcomes`] they reach. It feeds its parser whole and in pieces, and
//! panics where the pieces change the outcome, where an invariant is broken, or where what was understood does not read
//! back as it was written. It depends on the input alone, so any finding can be replayed from its file.
//!
//! Three callers: the replay of the corpus in `make test`, the driver `herd-fuzz`, and libFuzzer (`fuzz/libfuzzer`).

pub mod corpus;
mod names;
mod outcomes;
mod pieces;
pub mod random;
mod reasons;
#[cfg(test)]
mod replay;
mod session;
pub mod targets;

pub use outcomes::Outcomes;
pub use targets::{TARGETS, Target};
