//! One node, several HTTP clients: see `session`.

use crate::Outcomes;
use crate::session::{self, Door};

/// What the corpus reaches.
#[rustfmt::skip]
pub const OUTCOMES: &[&[&str]] = &[session::COMMON, session::http::OUTCOMES];

/// Words of the driver.
pub const DICTIONARY: &[&[u8]] = session::WORDS;

/// Runs the target.
pub fn run(input: &[u8]) -> Outcomes {
    session::run(input, &[Door::Http])
}
