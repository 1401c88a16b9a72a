//! Pages of names. One that needs many turns leaves a gap for its reply, and goes on beside what else is served.

use super::get::Form;
use super::{Session, answer_text, fail_as};
use crate::context::{Context, Output};
use crate::held::Held;
use crate::metrics::VerbName;
use herd_core::door::http::ListPage;
use herd_core::limits::{LIST_PAGE_HIGH_BYTES, LIST_STEP};
use herd_core::{Error, ErrorKind};
use herd_net::Ticket;
use herd_store::{ListCursor, Page};

/// A page that is being made.
pub(super) struct Listing {
    form: Form,
    cursor: ListCursor,
    text: Vec<u8>,
    page: ListPage,
    /// The last name of the page.
    last: Option<Box<[u8]>>,
    left: usize,
    held: Held,
}

impl Listing {
    pub(super) fn begin(
        cx: &Context,
        form: Form,
        collection: &str,
        prefix: &[u8],
        after: &[u8],
        limit: u32,
    ) -> Result<Self, Error> {
        let (store, found) = (&cx.shared.store, cx.shared.collection(collection)?);
        cx.shared.check_alone(&found)?;
        cx.was_dear();
        let cursor = store.begin_list(&found, prefix, (!after.is_empty()).then_some(after));
        let mut text = Vec::new();
        let page = ListPage::start(&mut text, collection);
        Ok(Self { form, cursor, text, page, last: None, left: limit as usize, held: Held::nothing(store) })
    }

    /// A turn; true when the page is whole: it has its names, or many bytes, or there are no more.
    fn turn(&mut self, cx: &Context) -> Result<bool, Error> {
        let mut items = Page::new();
        cx.shared.store.list_turn(&mut self.cursor, &mut items, self.left.min(LIST_STEP), cx.now);
        cx.shared.check_alone(self.cursor.collection())?;
        let mut is_end = self.cursor.is_at_end();
        for item in items {
            if self.text.len() >= LIST_PAGE_HIGH_BYTES {
                is_end = false;
                break;
            }
            self.page.object(&mut self.text, &item.name, item.size_bytes, item.version);
            (self.last, self.left) = (Some(item.name), self.left - 1);
        }
        if is_end {
            self.last = None;
        }
        self.held.set(self.text.capacity() as u64)?;
        Ok(is_end || self.left == 0 || self.text.len() >= LIST_PAGE_HIGH_BYTES)
    }
}

impl Session {
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
