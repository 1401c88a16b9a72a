//! Memory outside the store that counts in its budget, given back when it is dropped.

use herd_core::{Error, ErrorKind};
use herd_store::Store;
use std::sync::Arc;

/// What one request holds between its turns.
pub(crate) struct Held {
    store: Arc<Store>,
    bytes: u64,
}

impl Held {
    /// Nothing, for now.
    pub(crate) fn nothing(store: &Arc<Store>) -> Self {
        Self { store: store.clone(), bytes: 0 }
    }

    /// Holds so many bytes in all. Error: `Busy` where others hold all that may be held.
    pub(crate) fn set(&mut self, bytes: u64) -> Result<(), Error> {
        if bytes == self.bytes || self.store.hold(bytes as i64 - self.bytes as i64) {
            self.bytes = bytes;
            return Ok(());
        }
        Err(Error::new(ErrorKind::Busy, "requests under way hold all the memory they may: ask again later"))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.store.hold(-(self.bytes as i64));
    }
}
