//! Herd's wire: frames in, objects in and out, replies by request id (PROTOCOL.md §1).
//!
//! A connection is multiplexed: requests may be open side by side, their bodies interleave frame by frame, and replies
//! come in the order they are ready. A session is between frames, inside the body of one, or dropping such a body.
//! Bodies on their way in are in `receive.rs`, those on their way out in `send.rs`, the verbs in
//! `verbs.rs` and, those that change an object, `write.rs`; what a client is told of the herd's map is in `map.rs`.
//! What another node answers is in `later.rs`; what one hands on to this one comes here too, and is in `handed.rs`.

mod asks;
mod handed;
mod later;
mod list;
mod map;
mod passing;
mod receive;
mod send;
mod verbs;
mod write;

use crate::context::{Context, Output};
use crate::memcached;
use crate::metrics::VerbName;
use asks::Asking;
pub(crate) use handed::{get_is_use, with_object};
use herd_core::key::CollectionId;
use herd_core::limits::{
    INLINE_MAX_BYTES, LINK_OPS_MAX, OUTPUT_HIGH_BYTES, WIRE_ARGUMENTS_MAX_BYTES, WIRE_OPEN_REQUESTS_MAX,
};
use herd_core::wire::{self, Between, Fields, Frame, FrameHead, Header, Kind, LinkId, Status, VERB_MAP, Verb};
use herd_core::{Error, ErrorKind};
use herd_net::{Next, Step};
use herd_store::Given;
pub(crate) use later::Later;
use list::Listing;
use receive::Incoming;
use send::Outgoing;
use std::collections::{BTreeMap, HashMap};
use std::io::IoSliceMut;
use verbs::Wait;

/// The protocol version this door speaks.
const SPOKEN: u16 = wire::PROTOCOL_VERSION;

/// State of a connection.
#[derive(Default)]
pub(crate) struct Session {
    state: State,
    /// Transfers and waits; made when there is the first.
    open: Option<Box<Open>>,
    /// The number of its connection, once it has handed something on.
    conn: Option<u64>,
    /// The link whose other node asks here what its clients have asked there.
    peer: Option<LinkId>,
    /// A body on its way out came to no end.
    is_broken: bool,
}

#[derive(Default)]
enum State {
    /// Between frames.
    #[default]
    Frames,
    /// Inside a body of the put with that id.
    Body { id: u64, left: u64, more: bool },
    /// Dropping that many bytes.
    Swallow(u64),
}

/// What is under way on a connection.
#[derive(Default)]
struct Open {
    incoming: HashMap<u64, Incoming>,
    outgoing: std::collections::VecDeque<Outgoing>,
    /// By the serial of their tickets.
    waits: BTreeMap<u32, Wait>,
    listings: BTreeMap<u32, Listing>,
    asks: BTreeMap<u32, Asking>,
}

impl Open {
    fn requests(&self) -> usize {
        self.incoming.len() + self.outgoing.len() + self.waits.len() + self.listings.len() + self.asks.len()
    }
}

impl Session {
    /// That of requests which another node hands on over this link.
    pub(crate) fn of_node(link: LinkId) -> Self {
        Self { peer: Some(link), ..Self::default() }
    }

    /// Whether the body of the request with this id is on its way in.
    pub(crate) fn is_receiving(&self, id: u64) -> bool {
        self.open.as_ref().is_some_and(|open| open.incoming.contains_key(&id))
    }

    /// The number of its connection, if it has handed anything on.
    pub(crate) fn flying(&self) -> Option<u64> {
        self.conn
    }

    /// Whether its connection can't go on.
    pub(crate) fn is_broken(&self) -> bool {
        self.is_broken
    }

    /// Whether no body is under way. A get that waits for a newer version does not make the connection busy: it may
    /// wait longer than a transfer may stand still.
    pub(crate) fn is_idle(&self) -> bool {
        let transfers = |open: &Open| open.incoming.len() + open.outgoing.len();
        matches!(self.state, State::Frames) && self.open.as_ref().is_none_or(|open| transfers(open) == 0)
    }

    /// Whether replies are still to come: bodies that are being sent, waits and listings.
    pub(crate) fn owes(&self) -> bool {
        self.open
            .as_ref()
            .is_some_and(|open| open.outgoing.len() + open.waits.len() + open.listings.len() + open.asks.len() > 0)
    }

    /// Ends the connection with an error: what it says now is not read. If nothing else of it is under way the client
    /// may take all that has no answer for not done.
    #[cold]
    pub(crate) fn refuse_all(&self, cx: &Context, error: &Error, out: &mut Output<'_>) {
        let is_idle = self.flying().is_none_or(|conn| cx.flights.of_connection(conn) == 0) && !self.owes();
        let code = if is_idle { wire::GOODBYE_UNREAD } else { 0 };
        cx.count_error(cx.door, VerbName::Put, error.kind);
        write_frame(Header { code, ..Header::new(Kind::Goodbye) }, &Fields::failed(&error.text), &[], out);
    }

    /// Serves what is there of `input`.
    #[inline]
    pub(crate) fn serve(&mut self, cx: &mut Context, input: &[u8], out: &mut Output<'_>) -> Step {
        let mut used = 0;
        loop {
            let step = match self.state {
                State::Frames => self.frame(cx, &input[used..], out),
                State::Body { id, left, more } => self.body(cx, (id, left, more), &input[used..], out),
                State::Swallow(left) => self.swallow(left, &input[used..]),
            };
            used += step.used;
            if step.used == 0 || step.next != Next::Read {
                return Step { used, next: step.next };
            }
            if out.pending_bytes() > OUTPUT_HIGH_BYTES || cx.take_dear() {
                return Step { used, next: Next::Again };
            }
        }
    }

    /// One frame, or the start of one with a large body.
    #[inline]
    fn frame(&mut self, cx: &mut Context, input: &[u8], out: &mut Output<'_>) -> Step {
        let head = match wire::parse_frame_head(input) {
            Ok(Some(head)) => head,
            Ok(None) => return Step { used: 0, next: Next::Read },
            Err(error) => return goodbye(cx, &error.to_string(), out),
        };
        let fields = match head.fields() {
            Ok(fields) => fields,
            Err(error) => return goodbye(cx, &error.to_string(), out),
        };
        match head.header.kind {
            Kind::Request => self.request(cx, input, &head, &fields, out),
            Kind::Data => self.enter_body(cx, &head, out),
            kind => {
                // A node asks nobody, so a reply is dropped, body and all; the others have none.
                if head.body_bytes() > 0 {
                    self.state = State::Swallow(head.body_bytes() as u64);
                }
                let next = self.control(cx, kind, &head.header, &fields, out);
                Step { used: head.bytes(), next }
            }
        }
    }

    #[inline]
    fn request<'i>(
        &mut self,
        cx: &mut Context,
        input: &'i [u8],
        head: &FrameHead<'i>,
        fields: &Fields<'_>,
        out: &mut Output<'_>,
    ) -> Step {
        if self.may_stream(head.header.verb()) && receive::is_streamed(&head.header) {
            return self.begin_put(cx, head, fields, out);
        }
        if head.body_bytes() > body_max_bytes(&head.header) {
            return self.refuse_body(cx, head, out);
        }
        let Some(frame) = head.with_body(input) else {
            return Step { used: 0, next: Next::Read };
        };
        let step = Step { used: frame.bytes(), next: Next::Read };
        if let Err(error) = self.carry_out(cx, &frame, fields, out) {
            let verb = count_as(&head.header);
            refuse(cx, verb, &head.header, 0, &error, out);
        }
        step
    }

    /// Whether the body of a request may come in many frames. memcached's commands are handed on as methods, whose
    /// values may be large.
    #[inline]
    fn may_stream(&self, verb: Option<Verb>) -> bool {
        verb == Some(Verb::Put) || (verb == Some(Verb::Execute) && self.peer.is_some())
    }

    /// A request with a longer body than its verb has: answered, and the body dropped.
    #[cold]
    fn refuse_body(&mut self, cx: &mut Context, head: &FrameHead<'_>, out: &mut Output<'_>) -> Step {
        let verb = count_as(&head.header);
        cx.count(verb);
        let most = body_max_bytes(&head.header);
        let text = format!("a body of {} bytes where this verb has at most {most}", head.body_bytes());
        refuse(cx, verb, &head.header, 0, &Error::new(ErrorKind::BadRequest, text), out);
        self.state = State::Swallow(head.body_bytes() as u64);
        Step { used: head.bytes(), next: Next::Read }
    }

    /// Any request whose body is wholly there.
    #[inline]
    fn carry_out(
        &mut self,
        cx: &mut Context,
        frame: &Frame<'_>,
        fields: &Fields<'_>,
        out: &mut Output<'_>,
    ) -> Result<(), Error> {
        let header = frame.header();
        cx.count(count_as(header));
        match header.verb() {
            Some(Verb::Get) if self.peer.is_some() && handed::is_uncounted(header, fields) => {
                self.handed(cx, header, fields, Given::Small(b"", None), out)
            }
            Some(Verb::Get) => self.get(cx, header, fields, out),
            Some(Verb::Execute) if self.peer.is_some() && header.collection == CollectionId::SYSTEM.0 => {
                let answer = memcached::herd::asked(cx, fields.method.unwrap_or_default(), verbs::name(fields)?)?;
                let reply = Header { length: answer.len() as u64, ..cx.reply_to(header, Status::Ok) };
                write_frame(reply, &Fields::default(), &answer, out);
                Ok(())
            }
            Some(Verb::Put | Verb::Remove | Verb::Execute) if self.peer.is_some() => {
                self.handed(cx, header, fields, Given::Small(frame.body()?, None), out)
            }
            Some(Verb::Execute) if header.collection == CollectionId::SYSTEM.0 => {
                self.of_herd(cx, header, fields, frame.body()?, out)
            }
            Some(Verb::Put) => self.put_small(cx, frame, fields, out),
            Some(Verb::Remove) => self.remove(cx, header, fields, out),
            Some(Verb::Create) => self.create(cx, header, fields, out),
            Some(Verb::Destroy) => self.destroy(cx, header, fields, out),
            Some(Verb::List) => self.list(cx, header, fields, out),
            Some(Verb::Execute) => self.execute(cx, frame, fields, out),
            None if header.verb == VERB_MAP => map::answer(cx, header, fields, out),
            None => Err(Error::new(ErrorKind::NotInVersion, "this verb is not in this version of Herd")),
        }
    }

    /// Frames that are neither requests nor bodies of them.
    fn control(
        &mut self,
        cx: &mut Context,
        kind: Kind,
        header: &Header,
        fields: &Fields<'_>,
        out: &mut Output<'_>,
    ) -> Next {
        match kind {
            Kind::Hello => return welcome(cx, fields, out),
            Kind::Credit => self.credit(cx, header),
            Kind::Cancel => self.cancel(cx, header.id),
            Kind::Goodbye => return Next::Close,
            // A node asks nobody yet, so nobody owes it a welcome or a reply.
            Kind::Welcome | Kind::Reply | Kind::Request | Kind::Data => {}
        }
        Next::Read
    }

    fn cancel(&mut self, cx: &mut Context, id: u64) {
        if let Some(conn) = self.conn {
            later::cancel(cx, conn, id);
        }
        if let Some(open) = &mut self.open {
            open.incoming.remove(&id);
            open.outgoing.retain(|outgoing| outgoing.id() != id);
            open.waits.retain(|_, wait| wait.id() != id);
            open.listings.retain(|_, listing| listing.id() != id);
            open.asks.retain(|_, asking| asking.id() != id);
        }
    }

    fn swallow(&mut self, left: u64, input: &[u8]) -> Step {
        let n = left.min(input.len() as u64);
        self.state = if n == left { State::Frames } else { State::Swallow(left - n) };
        Step { used: n as usize, next: Next::Read }
    }

    fn open(&mut self) -> &mut Open {
        self.open.get_or_insert_default()
    }

    /// Refuses a request beyond the most that may be open.
    fn check_open(&self, cx: &Context) -> Result<(), Error> {
        let handed_on = self.conn.map_or(0, |conn| cx.flights.of_connection(conn));
        let open = self.open.as_ref().map_or(0, |open| open.requests()) + handed_on;
        // A link has what the clients of a whole loop of the other node ask.
        let most = if self.peer.is_some() { LINK_OPS_MAX } else { WIRE_OPEN_REQUESTS_MAX };
        if open < most {
            return Ok(());
        }
        let text = format!("{open} requests are open on this connection, the most it may have: wait for some");
        Err(Error::new(ErrorKind::Busy, text))
    }

    /// Where the next bytes of a body go.
    pub(crate) fn space<'a>(&'a mut self, cx: &mut Context, max: usize) -> Vec<IoSliceMut<'a>> {
        let State::Body { id, .. } = self.state else {
            return Vec::new();
        };
        match self.open.as_mut().and_then(|open| open.incoming.get_mut(&id)) {
            Some(incoming) => incoming.space(cx, max),
            None => Vec::new(),
        }
    }
}

/// Bytes of the longest body of a request that is taken when it is wholly there.
#[inline]
fn body_max_bytes(request: &Header) -> usize {
    match request.verb() {
        Some(Verb::Put) => INLINE_MAX_BYTES,
        Some(Verb::Execute) => WIRE_ARGUMENTS_MAX_BYTES,
        _ => 0,
    }
}

/// The verb as counted.
fn count_as(header: &Header) -> VerbName {
    match header.verb() {
        // What is asked of the herd itself, or told of it, is about no object.
        Some(Verb::Get | Verb::Execute) if header.collection == CollectionId::SYSTEM.0 => VerbName::Admin,
        Some(Verb::Get) => VerbName::Get,
        Some(Verb::Put) => VerbName::Put,
        Some(Verb::Remove) => VerbName::Remove,
        Some(Verb::List) => VerbName::List,
        Some(Verb::Create | Verb::Destroy) => VerbName::Collection,
        Some(Verb::Execute) => VerbName::Execute,
        None => VerbName::Admin,
    }
}

/// Answers a hello. One that means another node gets a goodbye, and what stands behind it is not read.
fn welcome(cx: &mut Context, fields: &Fields<'_>, out: &mut Output<'_>) -> Next {
    cx.count(VerbName::Admin);
    if let Err((code, text)) = map::check_meant(cx, fields) {
        cx.count_error(cx.door, VerbName::Admin, ErrorKind::BadRequest);
        write_frame(Header { code, ..Header::new(Kind::Goodbye) }, &Fields::failed(text), &[], out);
        return Next::Close;
    }
    let session = cx.shared.next_session();
    let node = format!("{} {}", cx.shared.config.name, cx.shared.config.build);
    let version = fields.highest_version.unwrap_or(SPOKEN).min(SPOKEN);
    let (epoch, clock) = (cx.epoch_told(), wire::clock_bytes(cx.now.unix_ms));
    let answer = Fields {
        features: Some(0),
        highest_version: Some(version),
        session: Some(session),
        node: Some(&node),
        // Where nothing is known of requests that were done, ids are of no use.
        between: (epoch != 0).then_some(Between::Own(&clock)),
        ..Fields::default()
    };
    write_frame(Header { epoch, ..Header::new(Kind::Welcome) }, &answer, &[], out);
    Next::Read
}

/// Appends a frame that is known to be within the limits.
fn write_frame(header: Header, fields: &Fields<'_>, body: &[u8], out: &mut Output<'_>) {
    // Names and attributes were taken within the limits, texts of errors are cut, pages of names are bounded.
    wire::encode_frame(out.buf, header, fields, body).expect("a reply of this door is within the limits");
}

/// Answers a request with an error; `version` is the object's where a condition failed.
#[cold]
fn refuse(cx: &Context, verb: VerbName, request: &Header, version: u64, error: &Error, out: &mut Output<'_>) {
    cx.count_error(cx.door, verb, error.kind);
    let mut header = cx.reply_to(request, Status::Error(error.kind));
    header.version = version;
    write_frame(header, &Fields::failed(&error.text), &[], out);
}

/// Ends the connection with an error that no single request is to blame for.
#[cold]
fn fail_all(cx: &Context, error: &Error, out: &mut Output<'_>) {
    cx.count_error(cx.door, VerbName::Put, error.kind);
    write_frame(Header::new(Kind::Goodbye), &Fields::failed(&error.text), &[], out);
}

/// A frame that can't be understood ends the connection: what follows it can't be told apart.
#[cold]
fn goodbye(cx: &Context, text: &str, out: &mut Output<'_>) -> Step {
    cx.count_error(cx.door, VerbName::Admin, ErrorKind::BadRequest);
    write_frame(Header::new(Kind::Goodbye), &Fields::failed(text), &[], out);
    Step { used: 0, next: Next::Close }
}
