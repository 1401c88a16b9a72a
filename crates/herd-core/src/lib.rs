//! The pure core of Herd: formats, protocols and decisions.
//!
//! Nothing here opens a socket or a file, reads a clock, draws a random number or starts a thread; time is a value
//! passed in. That is what lets a whole herd run in one thread in virtual time.

pub mod attributes;
pub mod bugs;
#[cfg(test)]
mod chance;
mod change;
pub mod checksum;
pub mod collection;
pub mod control;
pub mod door;
pub mod entry;
pub mod error;
pub mod key;
pub mod lease;
pub mod limits;
pub mod method;
pub mod op;
pub mod place;
pub mod replica;
pub mod size;
pub mod warden;
pub mod wire;

pub use error::{Error, ErrorKind, quote};

/// Bytes that lie in pieces, to be sent without being put together.
pub trait Chunks {
    /// Bytes of all pieces together.
    fn size_bytes(&self) -> u64;

    /// The bytes from `at` to the end of their piece; not empty while `at` is below the end.
    fn chunk(&self, at: u64) -> &[u8];

    /// Lends up to `max` bytes from `at` on to the kernel, which sends them without copying and may read them long
    /// after the call that sent them: their memory is not changed as long as anyone may read it. `None`: they can't be
    /// lent, or are too few.
    fn lend(&self, at: u64, max: usize) -> Option<&[u8]> {
        let _ = (at, max);
        None
    }
}

impl<T: Chunks> Chunks for std::sync::Arc<T> {
    fn size_bytes(&self) -> u64 {
        (**self).size_bytes()
    }

    fn chunk(&self, at: u64) -> &[u8] {
        (**self).chunk(at)
    }

    fn lend(&self, at: u64, max: usize) -> Option<&[u8]> {
        (**self).lend(at, max)
    }
}
