//! Entries of a page of a listing, the body of a reply to list (PROTOCOL.md §1.5).

use super::error::WireError;
use crate::entry::Version;

/// One object of a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListEntry<'a> {
    /// Its name.
    pub name: &'a [u8],
    /// Bytes of its value.
    pub size_bytes: u64,
    /// Its version.
    pub version: Version,
}

/// Bytes of an entry besides its name.
pub const LIST_ENTRY_OVERHEAD_BYTES: usize = 18;

impl<'a> ListEntry<'a> {
    /// Bytes of the entry on the wire.
    pub fn encoded_bytes(&self) -> usize {
        LIST_ENTRY_OVERHEAD_BYTES + self.name.len()
    }

    /// Appends the entry to a page. The name must be a valid one, as all names of a store are.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let length = u16::try_from(self.name.len()).expect("names have at most 1,024 bytes");
        out.extend_from_slice(&length.to_le_bytes());
        out.extend_from_slice(self.name);
        out.extend_from_slice(&self.size_bytes.to_le_bytes());
        out.extend_from_slice(&self.version.to_le_bytes());
    }

    /// Takes the next entry off `page`; an error if it is cut short or has no valid name.
    pub fn decode(page: &mut &'a [u8]) -> Result<Self, WireError> {
        let (length, rest) = page.split_first_chunk::<2>().ok_or(WireError::CutShort)?;
        let length = usize::from(u16::from_le_bytes(*length));
        let (name, rest) = rest.split_at_checked(length).ok_or(WireError::CutShort)?;
        let (size, rest) = rest.split_first_chunk::<8>().ok_or(WireError::CutShort)?;
        let (version, rest) = rest.split_first_chunk::<8>().ok_or(WireError::CutShort)?;
        if !crate::key::name_is_valid(name) {
            return Err(WireError::FieldLength { tag: super::fields::NAME, length_bytes: length });
        }
        *page = rest;
        Ok(Self { name, size_bytes: u64::from_le_bytes(*size), version: u64::from_le_bytes(*version) })
    }
}

/// The entries of a page, in order; ends behind the first error.
pub struct ListEntries<'a> {
    page: &'a [u8],
}

impl<'a> ListEntries<'a> {
    /// Over the body of one reply.
    pub fn new(page: &'a [u8]) -> Self {
        Self { page }
    }
}

impl<'a> Iterator for ListEntries<'a> {
    type Item = Result<ListEntry<'a>, WireError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.page.is_empty() {
            return None;
        }
        let entry = ListEntry::decode(&mut self.page);
        if entry.is_err() {
            self.page = &[];
        }
        Some(entry)
    }
}
