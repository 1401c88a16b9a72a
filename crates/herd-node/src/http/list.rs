//! Pages of names. One that needs many turns leaves a gap for its reply, and goes on beside what else is served; one of
//! a herd begins with the pages of the other nodes.

use super::get::Form;
use super::{Later, Session, answer_text, fail_as};
use crate::context::{Context, Output};
use crate::flight::{Landed, Later as Kept, Pages};
use crate::held::Held;
use crate::metrics::VerbName;
use herd_core::door::http::ListPage;
use herd_core::limits::{FLIGHT_MS, LIST_PAGE_HIGH_BYTES, LIST_STEP, WIRE_LIST_PAGE_MAX};
use herd_core::{Error, ErrorKind};
use herd_net::Ticket;
use herd_store::{Collection, ListCursor, ListItem, Page};

/// A page that is being made.
pub(super) struct Listing {
    form: Form,
    /// `None`: nothing of this node belongs to it.
    cursor: Option<ListCursor>,
    text: Vec<u8>,
    page: ListPage,
    /// The last name of the page.
    last: Option<Box<[u8]>>,
    left: usize,
    held: Held,
    herd: Option<OfHerd>,
}

/// What a page of a herd is put together of.
struct OfHerd {
    pages: Pages,
    others: Vec<Page>,
    own: Page,
}

/// What is asked for.
pub(super) struct Wanted<'a> {
    pub(super) collection: &'a str,
    pub(super) prefix: &'a [u8],
    pub(super) after: &'a [u8],
    pub(super) limit: u32,
}

/// What a listing of a herd keeps while the other nodes are asked.
pub(crate) struct Asked {
    form: Form,
    collection: Collection,
    pages: Pages,
    prefix: Box<[u8]>,
    after: Option<Box<[u8]>>,
    limit: usize,
}

impl Listing {
    fn begin(cx: &Context, form: Form, collection: &Collection, cursor: Option<ListCursor>, limit: usize) -> Self {
        let mut text = Vec::new();
        let page = ListPage::start(&mut text, collection.name());
        let (last, held) = (None, Held::nothing(&cx.shared.store));
        Self { form, cursor, text, page, last, left: limit, held, herd: None }
    }

    /// A turn; true when the page is whole: it has its names, or many bytes, or there are no more.
    fn turn(&mut self, cx: &Context) -> Result<bool, Error> {
        let mut items = Page::new();
        let Some(cursor) = &mut self.cursor else {
            self.end_of_herd();
            return Ok(true);
        };
        let own = self.herd.as_ref().map_or(0, |herd| herd.own.len());
        cx.shared.store.list_turn(cursor, &mut items, (self.left - own).min(LIST_STEP), cx.now);
        let is_end = cursor.is_at_end();
        if let Some(herd) = &mut self.herd {
            herd.pages.check(cx)?;
            let c = cursor.collection();
            herd.own.extend(items.into_iter().filter(|item| cx.decides_on(c, &item.name)));
            self.held.set(herd.own.iter().map(|item| (size_of_val(item) + item.name.len()) as u64).sum())?;
            let is_whole = is_end || herd.own.len() == self.left;
            if is_whole {
                self.end_of_herd();
            }
            return Ok(is_whole);
        }
        cx.shared.check_alone(cursor.collection())?;
        let is_end = self.take(items) && is_end;
        if is_end {
            self.last = None;
        }
        self.held.set(self.text.capacity() as u64)?;
        Ok(is_end || self.left == 0 || self.text.len() >= LIST_PAGE_HIGH_BYTES)
    }

    /// Writes names; false where the page has no room for all of them.
    fn take(&mut self, items: Vec<ListItem>) -> bool {
        for item in items {
            if self.text.len() >= LIST_PAGE_HIGH_BYTES {
                return false;
            }
            self.page.object(&mut self.text, &item.name, item.size_bytes, item.version);
            (self.last, self.left) = (Some(item.name), self.left - 1);
        }
        true
    }

    /// All nodes' names are there.
    fn end_of_herd(&mut self) {
        let Some(OfHerd { pages, others, own }) = self.herd.take() else { return };
        let (page, is_end) = pages.merge(own, others);
        if self.take(page) && is_end {
            self.last = None;
        }
    }
}

impl Session {
    /// A listing that was asked for.
    pub(super) fn list(
        &mut self,
        cx: &mut Context,
        form: Form,
        wanted: &Wanted<'_>,
        out: &mut Output<'_>,
    ) -> Result<(), Error> {
        let collection = cx.shared.collection(wanted.collection)?;
        cx.was_dear();
        let (after, mut limit) = ((!wanted.after.is_empty()).then_some(wanted.after), wanted.limit as usize);
        let mut herd = None;
        if !cx.shared.store.is_alone(&collection) {
            limit = limit.min(WIRE_LIST_PAGE_MAX as usize);
            let (pages, handings) = cx.pages(&collection, wanted.prefix, after, limit)?;
            if !handings.is_empty() {
                let (prefix, after) = (wanted.prefix.into(), after.map(Into::into));
                let later = Later::List(Asked { form, collection, pages, prefix, after, limit });
                let ticket = cx.hand_on(out, true, Kept::Http(Box::new(later)), handings, FLIGHT_MS)?;
                self.conn = Some(ticket.conn);
                return Ok(());
            }
            herd = Some(OfHerd { pages, others: Vec::new(), own: Page::new() });
        }
        let cursor = Some(cx.shared.store.begin_list(&collection, wanted.prefix, after));
        let listing = Listing { herd, ..Listing::begin(cx, form, &collection, cursor, limit) };
        self.list_turn(cx, listing, None, out);
        Ok(())
    }

    /// The pages of the other nodes are there: this node's own comes next.
    pub(super) fn list_own(
        &mut self,
        cx: &mut Context,
        ticket: Ticket,
        asked: Asked,
        landed: Vec<Landed>,
        out: &mut Output<'_>,
    ) {
        let Asked { form, collection, pages, prefix, after, limit } = asked;
        let others = match pages.check(cx).and_then(|()| pages.of_others(landed)) {
            Ok(others) => others,
            Err(error) => return fail_as(cx, form, VerbName::List, &error, None, out),
        };
        let after = |goes_on: bool| after.as_deref().filter(|_| goes_on);
        let cursor = pages.own().map(|goes_on| cx.shared.store.begin_list(&collection, &prefix, after(goes_on)));
        let herd = Some(OfHerd { pages, others, own: Page::new() });
        let listing = Listing { herd, ..Listing::begin(cx, form, &collection, cursor, limit) };
        self.list_turn(cx, listing, Some(ticket), out);
    }

    /// A turn of a listing: answers if the page is whole, and else has it go on.
    pub(super) fn list_turn(
        &mut self,
        cx: &mut Context,
        mut listing: Listing,
        ticket: Option<Ticket>,
        out: &mut Output<'_>,
    ) {
        let form = listing.form;
        match listing.turn(cx) {
            Err(error) => return fail_as(cx, form, VerbName::List, &error, None, out),
            Ok(true) => {
                listing.page.finish(&mut listing.text, listing.last.as_deref());
                return answer_text(cx, form, &listing.text, "application/json", out);
            }
            Ok(false) => {}
        }
        let Some(ticket) = ticket.or_else(|| out.defer()) else {
            let error = Error::new(ErrorKind::Busy, "too many requests wait on this connection");
            return fail_as(cx, form, VerbName::List, &error, None, out);
        };
        self.listings.insert(ticket.serial, listing);
        cx.list_later(ticket);
    }
}
