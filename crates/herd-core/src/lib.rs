//! The pure core of Herd: formats, protocols and decisions.
//!
//! Nothing here opens a socket or a file, reads a clock, draws a random number or starts a thread; time is a value
//! passed in. That is what lets a whole herd run in one thread in virtual time.

pub mod attributes;
pub mod checksum;
pub mod collection;
pub mod door;
pub mod entry;
pub mod error;
pub mod key;
pub mod limits;
pub mod size;
pub mod wire;

pub use error::{Error, ErrorKind};

/// Bytes that lie in pieces, to be sent without being put together.
pub trait Chunks {
    /// The bytes from `at` to the end of their piece; not empty while `at` is below the end.
    fn chunk(&self, at: u64) -> &[u8];
}

impl<T: Chunks> Chunks for std::sync::Arc<T> {
    fn chunk(&self, at: u64) -> &[u8] {
        (**self).chunk(at)
    }
}
