//! What a node is given of the world at its start: the date and chance. All later times come from its loops' clock, so
//! a node does the same again when it is given the same.

use std::fs::File;
use std::io::{self, Read};

/// The world when a node starts.
#[derive(Clone, Copy, Debug)]
pub struct Environment {
    /// The date, ms since 1970, when the clock of the node's loops is at 0.
    pub unix_ms: u64,
    /// Bytes nobody outside can guess: they become the key of the name hash.
    pub random: [u8; 16],
}

/// Bytes that nobody can guess, as this machine has them.
pub(crate) fn random() -> io::Result<[u8; 16]> {
    let mut bytes = [0; 16];
    File::open("/dev/urandom")?.read_exact(&mut bytes).map(|()| bytes)
}
