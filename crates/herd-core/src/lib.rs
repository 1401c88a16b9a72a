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
