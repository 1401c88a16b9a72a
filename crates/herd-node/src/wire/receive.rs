//! Bodies on their way in: frames of a put, straight into the store, or on to the node that has the object; checked
//! block by block against what was sent.

use super::{Later, Session, State, goodbye, refuse, verbs, write, write_frame};
use crate::context::{Context, Output};
use crate::flight::{Handing, Later as Kept, Sink, Where, bad_block};
use crate::held::Held;
use crate::metrics::VerbName;
use herd_core::attributes::Attributes;
use herd_core::entry::{Condition, TOKEN_BYTES, Token};
use herd_core::limits::{INLINE_MAX_BYTES, WIRE_FIRST_CREDIT_BYTES};
use herd_core::wire::{
    Between, FLAG_MORE, FLAG_RANGE, Fields, FrameHead, Header, Kind, LENGTH_UNKNOWN, OWN_BYTES, Own,
};
use herd_core::{Error, ErrorKind};
use herd_net::{Next, Step, Ticket};
use herd_store::{Body, Collection, Given};
use std::io::IoSliceMut;

/// A put whose body is arriving.
pub(super) struct Incoming {
    pub(super) request: Header,
    pub(super) collection: Collection,
    pub(super) name: Box<[u8]>,
    pub(super) options: PutOptions,
    /// The fields of a request that another node hands on.
    pub(super) handed: Option<Box<[u8]>>,
    sink: Sink,
    /// Checksums that came with the frames; compared when the body is whole.
    announced: Vec<u32>,
    /// Bytes granted, for a body of unknown length or one that goes to another node.
    granted: u64,
    /// Set when there was no room midway; the rest is dropped.
    failed: Option<Error>,
    /// What it keeps besides the body, counted in the node's memory.
    _held: Held,
}

/// What a put says besides its value.
#[derive(Clone, Debug, Default)]
pub(super) struct PutOptions {
    pub(super) condition: Condition,
    pub(super) token: Option<Token>,
    pub(super) flags: Option<u32>,
    pub(super) ttl_ms: Option<u64>,
    pub(super) attributes: Option<Box<[u8]>>,
    pub(super) range_from: Option<u64>,
    /// The id that its client has given it.
    pub(super) own: Option<Own>,
}

/// What fields of a request borrow.
#[derive(Default)]
pub(super) struct Scratch {
    token: [u8; TOKEN_BYTES],
    own: [u8; OWN_BYTES],
}

impl PutOptions {
    /// As fields of a request for an object of that name.
    pub(super) fn fields<'a>(&'a self, name: &'a [u8], scratch: &'a mut Scratch) -> Fields<'a> {
        let Scratch { token, own } = scratch;
        let shown = self.token.map(|shown| *token = shown.to_bytes()).is_some();
        let has_own = self.own.map(|given| *own = given.bytes()).is_some();
        Fields {
            token: shown.then_some(&*token),
            between: has_own.then_some(Between::Own(own)),
            flags: self.flags,
            ttl_ms: self.ttl_ms,
            attributes: self.attributes.as_deref(),
            ..Fields::named(name)
        }
    }

    /// Reads them from a request.
    pub(super) fn of(header: &Header, fields: &Fields<'_>) -> Result<Self, Error> {
        if let Some(attributes) = fields.attributes {
            Attributes::decode(attributes)?;
        }
        let bad = || Error::new(ErrorKind::BadRequest, "this condition is not one of a put");
        Ok(Self {
            condition: header.condition().ok_or_else(bad)?,
            token: write::token(fields),
            flags: fields.flags,
            ttl_ms: fields.ttl_ms,
            attributes: fields.attributes.map(Into::into),
            range_from: header.has(FLAG_RANGE).then_some(header.offset),
            own: Own::told(fields)?,
        })
    }
}

/// Whether a put that another node hands on is not for this one.
fn is_away(cx: &Context, header: &Header, fields: &Fields<'_>) -> bool {
    match (verbs::collection(cx, header, fields), verbs::name(fields)) {
        (Ok(collection), Ok(name)) => !matches!(cx.whereabouts(&collection, name), Where::Here | Where::Group(_)),
        _ => false,
    }
}

fn by_ticket<'a>(mut all: impl Iterator<Item = &'a mut Incoming>, ticket: Ticket) -> Option<&'a mut Incoming> {
    all.find(|incoming| incoming.sink.ticket() == Some(ticket))
}

/// Whether the body of a put goes into blocks rather than beside its key.
pub(super) fn is_streamed(header: &Header) -> bool {
    header.has(FLAG_MORE) || header.body_len as usize > INLINE_MAX_BYTES
}

impl Incoming {
    fn begin(
        cx: &mut Context,
        head: &FrameHead<'_>,
        fields: &Fields<'_>,
        is_handed: bool,
        out: &mut Output<'_>,
    ) -> Result<Self, Error> {
        let header = &head.header;
        let collection = verbs::collection(cx, header, fields)?;
        let name: Box<[u8]> = verbs::name(fields)?.into();
        let expected = (header.length != LENGTH_UNKNOWN).then_some(header.length);
        if expected.is_some_and(|n| n < u64::from(header.body_len)) {
            return Err(Error::new(ErrorKind::BadRequest, "the body is longer than its length says"));
        }
        let options = PutOptions::of(header, fields)?;
        write::check_own(cx, options.own)?;
        let size = expected.unwrap_or(0).saturating_add(options.range_from.unwrap_or(0));
        cx.shared.store.check_size(size)?;
        let sink = if !is_handed && cx.goes_on(&collection, &name, expected) {
            let later = Later::of(header, &collection, &name);
            let max_bytes = cx.shared.config.object_max_bytes;
            let value = Given::Small(b"", None);
            let handing = Handing::of_frame(cx, &collection, header, fields, value, max_bytes)?;
            Sink::There(cx.take_in(out, false, Kept::Wire(Box::new(later)), handing, expected)?)
        } else {
            Sink::Here(cx.admit(&collection, &name, expected)?)
        };
        let mut held = Held::nothing(&cx.shared.store);
        let mut handed = Vec::new();
        if is_handed {
            fields.encode(&mut handed)?;
        }
        let kept = name.len() + handed.len() + options.attributes.as_ref().map_or(0, |attributes| attributes.len());
        held.set((size_of::<Self>() + kept) as u64)?;
        Ok(Self {
            request: *header,
            collection,
            name,
            options,
            handed: is_handed.then(|| handed.into()),
            sink,
            announced: Vec::new(),
            granted: WIRE_FIRST_CREDIT_BYTES,
            failed: None,
            _held: held,
        })
    }

    pub(super) fn space<'a>(&'a mut self, cx: &mut Context, max: usize) -> Vec<IoSliceMut<'a>> {
        if self.failed.is_some() {
            return Vec::new();
        }
        match self.sink.space(cx, max) {
            Ok(space) => space,
            Err(error) => {
                self.failed = Some(error);
                Vec::new()
            }
        }
    }

    /// Whether a frame goes on where the last one ended, within what was announced.
    fn check_frame(&self, frame: &Header) -> Result<(), Error> {
        let taken = self.sink.len();
        let due = self.options.range_from.unwrap_or(0).saturating_add(taken);
        if frame.kind == Kind::Data && frame.offset != due {
            let text = format!("a frame of the body begins at {} where {due} was due", frame.offset);
            return Err(Error::new(ErrorKind::BadRequest, text));
        }
        if self.request.length != LENGTH_UNKNOWN && taken + u64::from(frame.body_len) > self.request.length {
            return Err(Error::new(ErrorKind::BadRequest, "the body is longer than its length says"));
        }
        Ok(())
    }

    /// The finished body, if every block is as it was sent; `None`: it goes to another node.
    pub(super) fn finish(mut self, cx: &mut Context) -> Result<Option<Body>, Error> {
        let is_short = self.request.length != LENGTH_UNKNOWN && self.sink.len() != self.request.length;
        let short = || Error::new(ErrorKind::BadRequest, "the body is shorter than its length says");
        let failed = self.failed.take().or_else(|| is_short.then(short));
        let upload = match (self.sink, failed) {
            (Sink::There(intake), Some(error)) => {
                cx.fail_intake(intake.ticket, error);
                return Ok(None);
            }
            (Sink::There(intake), None) => {
                cx.count_in(VerbName::Put, intake.len());
                intake.end(cx, &self.announced);
                return Ok(None);
            }
            (Sink::Here(_), Some(error)) => return Err(error),
            (Sink::Here(upload), None) => upload,
        };
        let body = upload.finish(cx.now)?;
        match body.checksums().iter().zip(&self.announced).position(|(made, sent)| made != sent) {
            None => Ok(Some(body)),
            Some(block) => Err(bad_block(block)),
        }
    }
}

impl Session {
    /// A put with a body of more than one frame, or too large to lie beside its key.
    pub(super) fn begin_put(
        &mut self,
        cx: &mut Context,
        head: &FrameHead<'_>,
        fields: &Fields<'_>,
        out: &mut Output<'_>,
    ) -> Step {
        cx.count(VerbName::Put);
        let header = &head.header;
        if self.open.as_ref().is_some_and(|open| open.incoming.contains_key(&header.id)) {
            // Whose the frames are that follow can't be told.
            return goodbye(cx, "a put has the id of one whose body is under way", out);
        }
        if let Some(link) = self.peer
            && is_away(cx, header, fields)
        {
            // Before its body comes, which the other node may not have twice.
            cx.links.moved(link, header, false, out.buf);
            return self.enter_body(cx, head, out);
        }
        let begun = self.check_open(cx).and_then(|()| Incoming::begin(cx, head, fields, self.peer.is_some(), out));
        match begun {
            Ok(incoming) => {
                let ticket = incoming.sink.ticket();
                self.conn = ticket.map(|ticket| ticket.conn).or(self.conn);
                let is_here = ticket.is_none() && header.has(FLAG_MORE);
                if is_here && header.length > WIRE_FIRST_CREDIT_BYTES && header.length != LENGTH_UNKNOWN {
                    write_frame(Header::credit(header.id, LENGTH_UNKNOWN), &Fields::default(), &[], out);
                }
                self.open().incoming.insert(header.id, incoming);
            }
            Err(error) if self.refuse_handed(cx, header, fields, &error, out) => {}
            Err(error) => refuse(cx, VerbName::Put, header, 0, &error, out),
        }
        self.enter_body(cx, head, out)
    }

    /// The body of a put's frame, the first or a further one.
    pub(super) fn enter_body(&mut self, cx: &mut Context, head: &FrameHead<'_>, out: &mut Output<'_>) -> Step {
        let (id, left, more) = (head.header.id, u64::from(head.header.body_len), head.header.has(FLAG_MORE));
        let incoming = self.open.as_mut().and_then(|open| open.incoming.get_mut(&id));
        self.state = match incoming {
            Some(incoming) => {
                if incoming.failed.is_none() {
                    incoming.failed = incoming.check_frame(&head.header).err();
                }
                incoming.announced.extend(head.block_checks());
                State::Body { id, left, more }
            }
            None if left > 0 => State::Swallow(left),
            None => State::Frames,
        };
        // Nothing more may come that would end an empty body.
        let next = if left == 0 { self.took(cx, (id, 0, more), out) } else { Next::Read };
        Step { used: head.bytes(), next }
    }

    /// More bytes of a body.
    pub(super) fn body(
        &mut self,
        cx: &mut Context,
        (id, left, more): (u64, u64, bool),
        input: &[u8],
        out: &mut Output<'_>,
    ) -> Step {
        let n = (input.len() as u64).min(left) as usize;
        let Some(incoming) = self.open.as_mut().and_then(|open| open.incoming.get_mut(&id)) else {
            self.state = State::Swallow(left);
            return self.swallow(left, input);
        };
        if incoming.failed.is_none()
            && let Err(error) = incoming.sink.write(cx, &input[..n], &incoming.announced)
        {
            incoming.failed = Some(error);
        }
        let failed = incoming.failed.is_some();
        let next = self.took(cx, (id, left - n as u64, more), out);
        let next = if failed && matches!(next, Next::Bulk(_)) { Next::Read } else { next };
        Step { used: n, next }
    }

    /// Bytes of a body were received into its space.
    pub(crate) fn filled(&mut self, cx: &mut Context, n: usize, out: &mut Output<'_>) -> Step {
        let State::Body { id, left, more } = self.state else {
            unreachable!("space was given for a body");
        };
        if let Some(incoming) = self.open.as_mut().and_then(|open| open.incoming.get_mut(&id))
            && let Err(error) = incoming.sink.advance(cx, n, &incoming.announced)
        {
            incoming.failed.get_or_insert(error);
        }
        Step { used: 0, next: self.took(cx, (id, left - n as u64, more), out) }
    }

    /// What follows when `left` bytes of a frame's body are still to come.
    fn took(&mut self, cx: &mut Context, (id, left, more): (u64, u64, bool), out: &mut Output<'_>) -> Next {
        if left > 0 {
            self.state = State::Body { id, left, more };
            return Next::Bulk(left);
        }
        self.state = State::Frames;
        let failed = self.open().incoming.get(&id).is_some_and(|incoming| incoming.failed.is_some());
        // What failed is answered now: the sender may be waiting for credit.
        if more && !failed {
            self.grant(id, out);
        } else if let Some(incoming) = self.open().incoming.remove(&id) {
            self.put_large(cx, incoming, out);
        }
        Next::Read
    }

    /// A value that goes to another node has gone on there: as much more may come.
    pub(super) fn grant_on(&mut self, cx: &Context, ticket: Ticket, out: &mut Output<'_>) {
        let incoming = self.open.iter_mut().flat_map(|open| open.incoming.values_mut());
        let (Some(incoming), Some(gone_bytes)) = (by_ticket(incoming, ticket), cx.gone_on_bytes(ticket)) else {
            return;
        };
        let more = (gone_bytes + WIRE_FIRST_CREDIT_BYTES).saturating_sub(incoming.granted);
        if more >= WIRE_FIRST_CREDIT_BYTES / 4 && incoming.granted < incoming.request.length {
            incoming.granted += more;
            write_frame(Header::credit(incoming.request.id, more), &Fields::default(), &[], out);
        }
    }

    /// The reply of this ticket has its answer: if its value is still coming, the rest is dropped.
    pub(super) fn end_intake(&mut self, ticket: Ticket) {
        if let Some(open) = &mut self.open {
            open.incoming.retain(|_, incoming| incoming.sink.ticket() != Some(ticket));
        }
    }

    /// Values that come and go to other nodes.
    pub(crate) fn intakes(&self) -> usize {
        let incoming = self.open.iter().flat_map(|open| open.incoming.values());
        incoming.filter(|incoming| incoming.sink.ticket().is_some()).count()
    }

    /// Extends the credit of a body of unknown length when half of it is used.
    fn grant(&mut self, id: u64, out: &mut Output<'_>) {
        let Some(incoming) = self.open().incoming.get_mut(&id) else {
            return;
        };
        let used = incoming.sink.len();
        let low = used + WIRE_FIRST_CREDIT_BYTES / 2 > incoming.granted;
        if incoming.request.length == LENGTH_UNKNOWN && low && incoming.sink.ticket().is_none() {
            incoming.granted += WIRE_FIRST_CREDIT_BYTES;
            write_frame(Header::credit(id, WIRE_FIRST_CREDIT_BYTES), &Fields::default(), &[], out);
        }
    }
}
