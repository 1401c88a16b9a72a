//! A listing, page by page, as a pure state: what to ask for next, and the names in hand.

use crate::error::{Error, Result};
use crate::limits::LIST_PAGE;
use crate::request::Request;
use herd_core::entry::Version;
use herd_core::limits::NAME_MAX_BYTES;
use herd_core::wire::{LIST_ENTRY_OVERHEAD_BYTES, ListEntry};

/// Most bytes of one page.
pub(crate) const PAGE_MAX_BYTES: u64 = (LIST_PAGE as usize * (NAME_MAX_BYTES + LIST_ENTRY_OVERHEAD_BYTES)) as u64;

/// One object of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// Its name, without the collection.
    pub name: Vec<u8>,
    /// Bytes of its value.
    pub size_bytes: u64,
    /// Its version.
    pub version: Version,
}

/// Where a listing stands.
pub(crate) struct Pager {
    collection: Vec<u8>,
    prefix: Vec<u8>,
    after: Option<Vec<u8>>,
    /// The page in hand, encoded.
    page: Vec<u8>,
    read: usize,
    /// Whether the page in hand is the last.
    last: bool,
}

impl Pager {
    pub(crate) fn new(collection: &[u8], prefix: &[u8]) -> Self {
        let (collection, prefix) = (collection.to_vec(), prefix.to_vec());
        Self { collection, prefix, after: None, page: Vec::new(), read: 0, last: false }
    }

    /// The request for the next page; `None` while there are names in hand, or at the end.
    pub(crate) fn request(&self) -> Option<Result<Request<'_>>> {
        let needed = self.read == self.page.len() && !self.last;
        needed.then(|| Request::list(&self.collection, &self.prefix, self.after.as_deref()))
    }

    /// Takes the page that was asked for; an error if it is no page, or does not go on.
    pub(crate) fn accept(&mut self, page: Vec<u8>) -> Result<()> {
        let (mut rest, mut names, mut final_name) = (&page[..], 0, None);
        while !rest.is_empty() {
            final_name = Some(ListEntry::decode(&mut rest)?.name);
            names += 1;
        }
        if final_name.is_some() && final_name == self.after.as_deref() {
            return Err(Error::bad_reply("the listing does not go on"));
        }
        self.last = names < LIST_PAGE;
        self.after = final_name.map(<[u8]>::to_vec).or(self.after.take());
        (self.page, self.read) = (page, 0);
        Ok(())
    }

    /// Ends the listing.
    pub(crate) fn stop(&mut self) {
        (self.read, self.last) = (self.page.len(), true);
    }

    /// The next name in hand.
    pub(crate) fn next_item(&mut self) -> Option<Item> {
        let mut rest = &self.page[self.read..];
        let entry = ListEntry::decode(&mut rest).ok()?;
        let (name, size_bytes, version) = (entry.name.to_vec(), entry.size_bytes, entry.version);
        self.read = self.page.len() - rest.len();
        Some(Item { name, size_bytes, version })
    }

    /// The page that is used up, to be filled again.
    pub(crate) fn take_memory(&mut self) -> Vec<u8> {
        self.read = 0;
        std::mem::take(&mut self.page)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(names: impl IntoIterator<Item = String>) -> Vec<u8> {
        let mut out = Vec::new();
        for name in names {
            ListEntry { name: name.as_bytes(), size_bytes: 3, version: 9 }.encode(&mut out);
        }
        out
    }

    fn names(pager: &mut Pager) -> Vec<String> {
        std::iter::from_fn(|| pager.next_item()).map(|item| String::from_utf8(item.name).expect("text")).collect()
    }

    #[test]
    fn a_full_page_is_followed_by_a_request_for_the_next() {
        let mut pager = Pager::new(b"default", b"n");
        assert!(pager.request().is_some());
        pager.accept(page((0..LIST_PAGE).map(|i| format!("n{i:05}")))).expect("a page");
        assert!(pager.request().is_none(), "there are names in hand");
        assert_eq!(names(&mut pager).len(), LIST_PAGE as usize);
        let next = pager.request().expect("more").expect("valid");
        assert_eq!(next.fields().after, Some(&b"n00999"[..]));
        pager.accept(page(["n01000".to_owned()])).expect("a page");
        assert_eq!(names(&mut pager), ["n01000"]);
        assert!(pager.request().is_none(), "a short page is the last");
    }

    #[test]
    fn a_page_that_does_not_go_on_or_is_cut_is_refused() {
        let mut pager = Pager::new(b"default", b"");
        let full = page((0..LIST_PAGE).map(|i| format!("{i:05}")));
        pager.accept(full.clone()).expect("a page");
        assert!(pager.accept(full.clone()).is_err());
        assert!(Pager::new(b"default", b"").accept(full[..full.len() - 1].to_vec()).is_err());
    }
}
