//! Pages of names. One that needs many turns goes on beside what else is served; one of a herd begins with the pages of
//! the other nodes.

use super::later::Later;
use super::verbs::collection;
use super::{Session, refuse, write_frame};
use crate::context::{Context, Output};
use crate::flight::{Landed, Later as Kept, Pages};
use crate::held::Held;
use crate::metrics::VerbName;
use herd_core::key::CollectionId;
use herd_core::limits::{FLIGHT_MS, WIRE_LIST_PAGE_MAX};
use herd_core::wire::{Fields, Header, ListEntry, Status};
use herd_core::{Error, ErrorKind};
use herd_net::Ticket;
use herd_store::{ListCursor, Page};

/// A page of names that is being made.
pub(super) struct Listing {
    request: Header,
    collection: CollectionId,
    /// `None`: nothing of this node belongs to it.
    cursor: Option<ListCursor>,
    page: Page,
    limit: usize,
    held: Held,
    /// Which of this node's names belong to it.
    whose: Whose,
}

/// Whose names a page has.
enum Whose {
    /// This node's, which is alone.
    Alone,
    /// Those on which this node decides, by the map of this epoch, for another that puts the page together.
    Own(u32),
    /// The herd's: the pages of the other nodes are there.
    All(Pages, Vec<Page>),
}

/// What a listing of a herd keeps while the other nodes are asked.
pub(super) struct Asked {
    pages: Pages,
    prefix: Box<[u8]>,
    after: Option<Box<[u8]>>,
    limit: usize,
}

impl Listing {
    pub(super) fn id(&self) -> u64 {
        self.request.id
    }

    /// A turn; true when this node's part is whole.
    fn turn(&mut self, cx: &Context) -> Result<bool, Error> {
        let Some(cursor) = &mut self.cursor else { return Ok(true) };
        let from = self.page.len();
        cx.shared.store.list_turn(cursor, &mut self.page, self.limit, cx.now);
        match &self.whose {
            Whose::Alone => cx.shared.check_alone(cursor.collection())?,
            Whose::Own(epoch) if cx.shared.map_mark().epoch != *epoch => {
                return Err(Error::new(ErrorKind::Unreachable, "the map of the herd has changed: try again"));
            }
            Whose::All(pages, _) => pages.check(cx)?,
            Whose::Own(_) => {}
        }
        if !matches!(self.whose, Whose::Alone) {
            let new = self.page.split_off(from).into_iter();
            self.page.extend(new.filter(|item| cx.decides_on(cursor.collection(), &item.name)));
        }
        if self.page.len() == self.limit || cursor.is_at_end() {
            return Ok(true);
        }
        self.held.set(self.page.iter().map(|item| (size_of_val(item) + item.name.len()) as u64).sum())?;
        Ok(false)
    }

    fn answer(self, cx: &Context, out: &mut Output<'_>) {
        let page = match self.whose {
            Whose::All(pages, others) => pages.merge(self.page, others).0,
            Whose::Alone | Whose::Own(_) => self.page,
        };
        let mut body = Vec::new();
        for item in &page {
            ListEntry { name: &item.name, size_bytes: item.size_bytes, version: item.version }.encode(&mut body);
        }
        let mut reply = cx.reply_to(&self.request, Status::Ok);
        (reply.collection, reply.length) = (self.collection.0, body.len() as u64);
        write_frame(reply, &Fields::default(), &body, out);
    }
}

impl Session {
    pub(super) fn list(
        &mut self,
        cx: &mut Context,
        header: &Header,
        fields: &Fields<'_>,
        out: &mut Output<'_>,
    ) -> Result<(), Error> {
        let collection = collection(cx, header, fields)?;
        let limit = fields.limit.unwrap_or(WIRE_LIST_PAGE_MAX);
        if !(1..=WIRE_LIST_PAGE_MAX).contains(&limit) {
            let text = format!("a page has 1 to {WIRE_LIST_PAGE_MAX} names");
            return Err(Error::new(ErrorKind::BadRequest, text));
        }
        self.check_open(cx)?;
        cx.was_dear();
        let (prefix, limit) = (fields.prefix.unwrap_or_default(), limit as usize);
        let whose = match self.peer {
            Some(_) => {
                cx.check_lease(&collection)?;
                Whose::Own(header.epoch)
            }
            None if cx.shared.store.is_alone(&collection) => Whose::Alone,
            None => {
                let (pages, handings) = cx.pages(&collection, prefix, fields.after, limit)?;
                if handings.is_empty() {
                    Whose::All(pages, Vec::new())
                } else {
                    let after = fields.after.map(Into::into);
                    let listing = Some(Asked { pages, prefix: prefix.into(), after, limit });
                    let later = Later { listing, ..Later::of(header, &collection, b"") };
                    let ticket = cx.hand_on(out, false, Kept::Wire(Box::new(later)), handings, FLIGHT_MS)?;
                    self.conn = Some(ticket.conn);
                    return Ok(());
                }
            }
        };
        let cursor = Some(cx.shared.store.begin_list(&collection, prefix, fields.after));
        let (page, held) = (Page::new(), Held::nothing(&cx.shared.store));
        let listing = Listing { request: *header, collection: collection.id(), cursor, page, limit, held, whose };
        self.list_turn(cx, listing, None, out)
    }

    /// The pages of the other nodes are there: this node's own comes next.
    pub(super) fn list_own(
        &mut self,
        cx: &mut Context,
        ticket: Ticket,
        later: Later,
        landed: Vec<Landed>,
        out: &mut Output<'_>,
    ) -> Result<(), Error> {
        let Some(Asked { pages, prefix, after, limit }) = later.listing else { return Ok(()) };
        let others = pages.of_others(landed)?;
        pages.check(cx)?;
        let store = &cx.shared.store;
        let after = |goes_on: bool| after.as_deref().filter(|_| goes_on);
        let cursor = pages.own().map(|goes_on| store.begin_list(&later.collection, &prefix, after(goes_on)));
        let (page, held, whose) = (Page::new(), Held::nothing(store), Whose::All(pages, others));
        let (request, collection) = (later.request, later.collection.id());
        self.list_turn(cx, Listing { request, collection, cursor, page, limit, held, whose }, Some(ticket), out)
    }

    /// A turn of a listing: answers if the page is whole, and else has it go on.
    fn list_turn(
        &mut self,
        cx: &mut Context,
        mut listing: Listing,
        ticket: Option<Ticket>,
        out: &mut Output<'_>,
    ) -> Result<(), Error> {
        if listing.turn(cx)? {
            listing.answer(cx, out);
            return Ok(());
        }
        let ticket = ticket.unwrap_or_else(|| out.ticket());
        self.open().listings.insert(ticket.serial, listing);
        cx.list_later(ticket);
        Ok(())
    }

    /// A listing has its turn. False: it was cancelled.
    pub(super) fn list_on(&mut self, cx: &mut Context, ticket: Ticket, out: &mut Output<'_>) -> bool {
        let Some(listing) = self.open.as_mut().and_then(|open| open.listings.remove(&ticket.serial)) else {
            return false;
        };
        let request = listing.request;
        if let Err(error) = self.list_turn(cx, listing, Some(ticket), out) {
            refuse(cx, VerbName::List, &request, 0, &error, out);
        }
        true
    }
}
