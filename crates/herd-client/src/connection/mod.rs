//! One connection to a node, as a pure state machine: bytes in, bytes out, time passed in. No socket, no clock.
//!
//! A shell moves bytes: it reads into [`Connection::space`] and says [`Connection::filled`], takes
//! [`Connection::next_event`] until there is none, and writes [`Connection::output_head`] and the part of a body that
//! [`Connection::output_body`] names, and says [`Connection::sent`]. Bodies of puts stay in the caller's memory, and
//! those of gets may be read straight into it ([`Connection::expected_body`]), so that bulk bytes are not copied here.
//!
//! A request passes these states:
//!
//! | from | by | to |
//! |---|---|---|
//! | - | [`Connection::open`] | open; its body, if streamed, is waiting |
//! | body waiting | [`Connection::wanted_body`], [`Connection::start_frame`] | body waiting, or body sent |
//! | open | [`Event::Reply`] that does not end | answered; its body arrives as [`Event::Body`] |
//! | open, answered | an event with `ends` | closed |
//! | open, answered | [`Connection::expire`] | given up: closed, the node is told, late bytes are skipped |
//!
//! Any error from here means that the connection is lost: drop it. [`Connection::may_be_done`] then tells whether a
//! request may be sent again elsewhere without being done twice.

mod input;
mod output;
#[cfg(test)]
mod tests;

pub use output::BodyPart;

use crate::error::{Error, Result};
use crate::limits::COPIED_BODY_MAX_BYTES;
use crate::reply::{Reply, Welcome};
use crate::request::Request;
use herd_core::entry::Range as ByteRange;
use herd_core::limits::{BLOCK_BYTES, WIRE_FIRST_CREDIT_BYTES, WIRE_FRAME_BODY_MAX_BYTES, WIRE_OPEN_REQUESTS_MAX};
use herd_core::wire::{
    BlockChecks, FLAG_MORE, Fields, Header, Kind, LENGTH_UNKNOWN, PROTOCOL_VERSION, Verb, WireError, block_checks,
    encode_frame, encode_frame_head, parse_frame_head, request_id,
};
use input::Input;
use output::Output;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

/// What a client calls itself. The empty line at its end makes a server of a line protocol, such as HTTP, memcached or
/// Redis, answer at once, so that a wrong address is told as one.
const NAME: &str = concat!("herd client ", env!("CARGO_PKG_VERSION"), "\r\n\r\n");

/// The body of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body<'a> {
    /// These bytes, at most [`COPIED_BODY_MAX_BYTES`]; they are copied.
    Copied(&'a [u8]),
    /// So many bytes, `None` for a number not known yet, asked for by [`Connection::wanted_body`].
    Streamed(Option<u64>),
}

/// How the bytes of a reply's body are handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// Whole blocks that have passed their checks.
    Checked,
    /// As they arrive: they are good once the event with `ends` has come.
    Early,
}

/// How long a request may be silent before it is given up, ms. What moves is a byte of its own body, or of any reply on
/// its connection: replies stand in line behind each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// Until the first time that something moves.
    pub first_ms: u64,
    /// From then on, each time.
    pub then_ms: u64,
}

/// What has happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The node has answered the hello.
    Welcome(Welcome),
    /// A request is answered.
    Reply {
        /// The request.
        id: u64,
        /// The head of the answer.
        reply: Reply,
        /// Bytes its body will have; `None`: that is not known before its end.
        body_bytes: Option<u64>,
        /// Whether that is all.
        ends: bool,
    },
    /// Bytes of a reply's body are there: [`Connection::body`] until the next call of any `&mut` method.
    Body {
        /// The request.
        id: u64,
        /// Whether these are the last.
        ends: bool,
    },
    /// The node ends the connection and says why.
    Goodbye(String),
}

/// What [`Connection::wanted_body`] asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The request.
    pub id: u64,
    /// First byte wanted, counted from the start of the body.
    pub position: u64,
    /// Bytes wanted: just so many, unless a body of unknown length ends before.
    pub bytes: usize,
}

struct Open {
    verb: Verb,
    /// Its id, 0 where it was named: a brief reply does not repeat it.
    collection: u64,
    head_only: bool,
    /// What was asked for, where that is a part.
    range: Option<ByteRange>,
    delivery: Delivery,
    opened_ms: u64,
    then_ms: u64,
    deadline_ms: u64,
    /// Where in the output it ends; `None` before its last frame.
    ends: Option<u64>,
    sending: Option<Sending>,
    receiving: Option<Arriving>,
    credited: bool,
}

/// A body on its way out.
struct Sending {
    /// Header and fields, until the first frame has gone.
    first: Option<(Header, Vec<u8>)>,
    base_offset: u64,
    position: u64,
    length: Option<u64>,
    credit: u64,
}

/// A body on its way in.
struct Arriving {
    /// Where in the object the next frame must begin.
    next_offset: u64,
    /// Bytes still to come; `None`: not known.
    left: Option<u64>,
}

/// The frame whose body is arriving.
struct FrameBody {
    id: u64,
    left_bytes: usize,
    more: bool,
    /// `None`: the request is given up and the bytes are skipped.
    wanted: Option<(Delivery, BlockChecks)>,
}

/// See the module.
pub struct Connection {
    input: Input,
    output: Output,
    frame_body: Option<FrameBody>,
    body: Range<usize>,
    open: BTreeMap<u64, Open>,
    /// Requests with a body to send, in turn.
    turns: VecDeque<u64>,
    session: u32,
    /// Requests opened so far.
    sequence: u64,
    ended: bool,
    /// Whether what answers has sent a frame, and so is a Herd node.
    known: bool,
    /// Whether what answers is no Herd node.
    foreign: bool,
    now_ms: u64,
    /// When a byte of any reply arrived last.
    heard_ms: u64,
}

enum Found {
    Event(Event),
    Again,
    Starved,
}

impl Connection {
    /// A fresh connection; the hello is its first output. `now_ms` counts from any fixed moment.
    pub fn new(now_ms: u64) -> Self {
        let mut output = Output::default();
        let hello = Fields {
            features: Some(0),
            highest_version: Some(PROTOCOL_VERSION),
            node: Some(NAME),
            ..Fields::default()
        };
        output.push(|out| encode_frame(out, Header::new(Kind::Hello), &hello, b"")).expect("a hello fits");
        Self {
            input: Input::new(),
            output,
            frame_body: None,
            body: 0..0,
            open: BTreeMap::new(),
            turns: VecDeque::new(),
            session: 0,
            sequence: 0,
            ended: false,
            known: false,
            foreign: false,
            now_ms,
            heard_ms: now_ms,
        }
    }

    // Requests.

    /// Opens a request and says its id.
    pub fn open(
        &mut self,
        now_ms: u64,
        request: &Request<'_>,
        body: Body<'_>,
        delivery: Delivery,
        patience: Patience,
    ) -> Result<u64> {
        if self.open.len() >= WIRE_OPEN_REQUESTS_MAX {
            let text = "1,024 requests are open on this connection: wait for some of them first";
            return Err(Error::new(crate::ErrorKind::Refused(herd_core::ErrorKind::Busy), text));
        }
        self.now_ms = now_ms;
        let id = request_id(self.session, self.sequence);
        // The deadline bounds when a request begins; one whose body takes its time has none.
        let (length, deadline_ms) = match body {
            Body::Copied(bytes) => (Some(bytes.len() as u64), patience.first_ms),
            Body::Streamed(length) => (length, 0),
        };
        let header = request.header(id, length, deadline_ms);
        let sending = match body {
            Body::Copied(bytes) => {
                assert!(bytes.len() <= COPIED_BODY_MAX_BYTES, "larger bodies are streamed");
                self.output.push(|out| encode_frame(out, header, &request.fields(), bytes))?;
                None
            }
            Body::Streamed(length) => Some(Sending::new(header, request, length)?),
        };
        let ends = self.output.queued_bytes;
        let credited = request.range.and_then(|range| range.length).is_some_and(|n| n > WIRE_FIRST_CREDIT_BYTES);
        if sending.is_some() {
            self.turns.push_back(id);
        } else if credited {
            self.push_control(Header::credit(id, LENGTH_UNKNOWN));
        }
        let open = Open {
            verb: request.verb,
            collection: header.collection,
            head_only: request.head_only,
            range: request.range,
            delivery,
            opened_ms: now_ms,
            then_ms: patience.then_ms,
            deadline_ms: now_ms.saturating_add(patience.first_ms),
            ends: sending.is_none().then_some(ends),
            sending,
            receiving: None,
            credited,
        };
        self.sequence += 1;
        self.open.insert(id, open);
        Ok(id)
    }

    /// Gives up a request; the node is told if it knows of it.
    pub fn cancel(&mut self, id: u64) {
        if let Some(open) = self.open.remove(&id)
            && open.has_begun()
            && !self.ended
        {
            self.push_control(Header::cancel(id));
        }
        self.turns.retain(|&other| other != id);
        if let Some(frame) = self.frame_body.as_mut().filter(|frame| frame.id == id) {
            frame.wanted = None;
        }
    }

    /// When the open request is given up unless something moves, ms.
    pub fn deadline(&self, id: u64) -> Option<u64> {
        self.open.get(&id).map(|open| open.deadline(self.heard_ms))
    }

    /// The earliest deadline of an open request, ms.
    pub fn next_deadline(&self) -> Option<u64> {
        self.open.values().map(|open| open.deadline(self.heard_ms)).min()
    }

    /// Gives up one request whose deadline has passed, and says which; call until there is none.
    pub fn expire(&mut self, now_ms: u64) -> Option<u64> {
        self.now_ms = now_ms;
        let id = self.open.iter().find(|(_, open)| open.deadline(self.heard_ms) <= now_ms).map(|(&id, _)| id)?;
        self.cancel(id);
        Some(id)
    }

    /// Of an open request: whether the socket has taken its last byte, so that it may have been done. Of one that is
    /// closed or was given up nothing is known, and the answer is yes. Who is no Herd node has done nothing.
    pub fn may_be_done(&self, id: u64) -> bool {
        let sent = |open: &Open| open.ends.is_some_and(|ends| ends <= self.output.sent_bytes);
        !self.foreign && self.open.get(&id).is_none_or(sent)
    }

    /// Whether what answers is a Herd node: its first bytes are a frame.
    pub fn is_known(&self) -> bool {
        self.known
    }

    /// Whether what answers is no Herd node: its first bytes are no frame.
    pub fn is_foreign(&self) -> bool {
        self.foreign
    }

    /// Notes that the caller kept a request waiting, by its source or by taking bytes: that was no silence of the node.
    pub fn resumed(&mut self, now_ms: u64, id: u64) {
        self.now_ms = now_ms;
        self.touch(id);
    }

    /// Whether nothing is under way, so that the connection can be kept for another request.
    pub fn is_idle(&self) -> bool {
        let quiet = self.open.is_empty() && self.output.is_empty() && self.frame_body.is_none();
        quiet && self.input.unread().is_empty() && !self.ended
    }

    // Output.

    /// Whether there are bytes to send (output of bodies that wait for credit or for the caller does not count).
    pub fn has_output(&self) -> bool {
        !self.output.is_empty()
    }

    /// What to send first.
    pub fn output_head(&self) -> &[u8] {
        self.output.head()
    }

    /// What to send right behind it.
    pub fn output_body(&self) -> Option<BodyPart> {
        self.output.body()
    }

    /// Says that the socket has taken so many bytes of head and body part.
    pub fn sent(&mut self, now_ms: u64, bytes: usize) {
        self.now_ms = now_ms;
        if let Some(part) = self.output.body() {
            self.touch(part.id);
        }
        self.output.sent(bytes);
    }

    /// Whether the body of this request, or of any, is not yet sent wholly.
    pub fn is_sending(&self, id: Option<u64>) -> bool {
        let part = self.output.body().is_some_and(|part| id.is_none_or(|id| id == part.id));
        part || self.turns.iter().any(|turn| id.is_none_or(|id| id == *turn))
    }

    /// The next bytes of an outgoing body that may be sent; `None` while there are none to send, one is still under
    /// way, or all wait for credit.
    pub fn wanted_body(&mut self) -> Option<Wanted> {
        if self.output.body().is_some() || self.ended {
            return None;
        }
        let frame_bytes = if self.open.len() > 1 { BLOCK_BYTES } else { WIRE_FRAME_BODY_MAX_BYTES };
        for _ in 0..self.turns.len() {
            let id = *self.turns.front().expect("as many as counted");
            let sending = self.open.get(&id).and_then(|open| open.sending.as_ref()).expect("it has its turn");
            if let Some(bytes) = sending.next_bytes(frame_bytes) {
                return Some(Wanted { id, position: sending.position, bytes });
            }
            self.turns.rotate_left(1);
        }
        None
    }

    /// Starts the frame that [`Connection::wanted_body`] asked for, with `bytes` as its body; they must be at hand
    /// until they are sent. `last` ends a body of unknown length (one of known length ends by itself).
    pub fn start_frame(&mut self, id: u64, bytes: &[u8], last: bool) -> Result<()> {
        let open = self.open.get_mut(&id).expect("only an open request wants a body");
        let sending = open.sending.as_mut().expect("only a streamed body is wanted");
        let position = sending.position;
        let more = match sending.length {
            Some(length) => position + (bytes.len() as u64) < length,
            None => !last,
        };
        self.output.push(|out| sending.encode_frame(out, id, bytes, more))?;
        self.output.attach(BodyPart { id, position, bytes: bytes.len() });
        self.turns.pop_front();
        if more {
            self.turns.push_back(id);
        } else {
            (open.sending, open.ends) = (None, Some(self.output.queued_bytes));
        }
        Ok(())
    }

    // Input.

    /// Room for bytes from the socket.
    pub fn space(&mut self) -> &mut [u8] {
        self.body = 0..0;
        self.input.space()
    }

    /// Says that so many bytes have arrived in [`Connection::space`].
    pub fn filled(&mut self, now_ms: u64, bytes: usize) {
        self.now_ms = now_ms;
        if bytes > 0 && self.frame_body.is_some() {
            self.heard_ms = now_ms;
        }
        self.input.filled(bytes);
    }

    /// When the next bytes from the socket belong to the body of a request with [`Delivery::Early`], which, and how
    /// many. The shell may read them into its own memory and hand them to [`Connection::take_direct`].
    pub fn expected_body(&self) -> Option<(u64, usize)> {
        let frame = self.frame_body.as_ref()?;
        let direct = matches!(frame.wanted, Some((Delivery::Early, _))) && self.input.unread().is_empty();
        direct.then_some((frame.id, frame.left_bytes))
    }

    /// Takes note of body bytes that were read elsewhere, at most as many as expected; whether they end the reply.
    pub fn take_direct(&mut self, now_ms: u64, bytes: &[u8]) -> Result<bool> {
        self.now_ms = now_ms;
        let frame = self.frame_body.as_mut().expect("a body is expected");
        frame.take(bytes)?;
        self.heard_ms = now_ms;
        Ok(self.end_frame_if_whole())
    }

    /// The next thing that has happened; `None` until more bytes arrive.
    pub fn next_event(&mut self) -> Result<Option<Event>> {
        loop {
            self.body = 0..0;
            if self.ended {
                return Ok(None);
            }
            let found = if self.frame_body.is_some() { self.next_body()? } else { self.next_frame()? };
            match found {
                Found::Event(event) => return Ok(Some(event)),
                Found::Again => {}
                Found::Starved => return Ok(None),
            }
        }
    }

    /// The bytes of the last [`Event::Body`].
    pub fn body(&self) -> &[u8] {
        self.input.at(self.body.clone())
    }

    fn next_frame(&mut self) -> Result<Found> {
        let frame = parse_frame_head(self.input.unread());
        self.foreign |= !self.known && matches!(frame, Err(WireError::BadMagic(_)));
        let Some(frame) = frame? else { return Ok(Found::Starved) };
        self.known = true;
        let (header, bytes) = (frame.header, frame.bytes());
        let checks = frame.checker();
        if matches!(header.kind, Kind::Reply | Kind::Data | Kind::Credit) {
            self.heard_ms = self.now_ms;
        }
        let event = match header.kind {
            Kind::Welcome => {
                let welcome = Welcome::from_wire(&frame.fields()?);
                self.session = welcome.session;
                Found::Event(Event::Welcome(welcome))
            }
            Kind::Goodbye => {
                self.ended = true;
                Found::Event(Event::Goodbye(frame.fields()?.error.unwrap_or_default().to_owned()))
            }
            Kind::Reply => {
                let reply = Reply::from_wire(&header, &frame.fields()?);
                self.take_reply(&header, reply, checks)?
            }
            Kind::Data => self.take_data(&header, checks)?,
            Kind::Credit => self.take_credit(&header),
            Kind::Hello | Kind::Request | Kind::Cancel => {
                return Err(Error::bad_reply(format!("a node sends no frame of kind {}", header.kind as u8)));
            }
        };
        self.input.consume(bytes);
        Ok(event)
    }

    fn take_reply(&mut self, header: &Header, mut reply: Reply, checks: BlockChecks) -> Result<Found> {
        let Some(open) = self.open.get_mut(&header.id) else { return self.skip(header) };
        if header.brief {
            reply.collection = open.collection;
        }
        if open.receiving.is_some() || header.verb != open.verb as u8 {
            return Err(Error::bad_reply("a reply to another request"));
        }
        if open.verb == Verb::Get && reply.is_ok() && reply.offset != open.range.map_or(0, |range| range.offset) {
            return Err(Error::bad_reply("another part of the object than was asked for"));
        }
        let body_bytes = open.body_bytes(&reply);
        open.receiving = Some(Arriving { next_offset: header.offset, left: body_bytes });
        let needs_credit = body_bytes.is_none_or(|left| left > WIRE_FIRST_CREDIT_BYTES);
        let grant = header.has(FLAG_MORE) && needs_credit && !open.credited;
        open.credited |= grant;
        let id = header.id;
        if grant {
            self.push_control(Header::credit(id, LENGTH_UNKNOWN));
        }
        let ends = self.begin_body(header, checks)?;
        Ok(Found::Event(Event::Reply { id, reply, body_bytes, ends }))
    }

    fn take_data(&mut self, header: &Header, checks: BlockChecks) -> Result<Found> {
        match self.open.get(&header.id).map(|open| &open.receiving) {
            None => return self.skip(header),
            Some(Some(arriving)) if arriving.next_offset == header.offset => {}
            Some(_) => return Err(Error::bad_reply("data that nobody asked for")),
        }
        let ends = self.begin_body(header, checks)?;
        let event = Event::Body { id: header.id, ends };
        Ok(if ends { Found::Event(event) } else { Found::Again })
    }

    fn take_credit(&mut self, header: &Header) -> Found {
        self.touch(header.id);
        if let Some(sending) = self.open.get_mut(&header.id).and_then(|open| open.sending.as_mut()) {
            sending.credit = sending.credit.saturating_add(header.length);
        }
        Found::Again
    }

    /// Takes a frame of an answered request's body up; whether the reply ends with it already.
    fn begin_body(&mut self, header: &Header, checks: BlockChecks) -> Result<bool> {
        let (id, more) = (header.id, header.has(FLAG_MORE));
        self.touch(id);
        let open = self.open.get_mut(&id).expect("checked by the caller");
        let arriving = open.receiving.as_mut().expect("checked by the caller");
        let bytes = u64::from(header.body_len);
        arriving.next_offset = arriving.next_offset.wrapping_add(bytes);
        if let Some(left) = &mut arriving.left {
            *left = left.checked_sub(bytes).ok_or_else(|| Error::bad_reply("a body longer than the object"))?;
            if !more && *left > 0 {
                return Err(Error::bad_reply(format!("a body that ends {left} bytes early")));
            }
        }
        let (left_bytes, wanted) = (header.body_len as usize, Some((open.delivery, checks)));
        self.frame_body = Some(FrameBody { id, left_bytes, more, wanted });
        Ok(self.end_frame_if_whole())
    }

    /// Skips a frame of a request that was given up; an error if there never was such a request.
    fn skip(&mut self, header: &Header) -> Result<Found> {
        let sequence = request_id(0, header.id);
        if sequence >= self.sequence {
            return Err(Error::bad_reply("a reply to a request that was never sent"));
        }
        let left_bytes = header.body_len as usize;
        self.frame_body = Some(FrameBody { id: header.id, left_bytes, more: true, wanted: None });
        self.end_frame_if_whole();
        Ok(Found::Again)
    }

    fn next_body(&mut self) -> Result<Found> {
        let frame = self.frame_body.as_mut().expect("checked by the caller");
        let there = frame.left_bytes.min(self.input.unread().len());
        let bytes = match frame.wanted {
            Some((Delivery::Checked, _)) if there < frame.left_bytes => there - there % BLOCK_BYTES,
            _ => there,
        };
        if bytes == 0 {
            return Ok(Found::Starved);
        }
        frame.take(&self.input.unread()[..bytes])?;
        let (id, wanted) = (frame.id, frame.wanted.is_some());
        self.body = self.input.consume(bytes);
        let ends = self.end_frame_if_whole();
        Ok(if wanted { Found::Event(Event::Body { id, ends }) } else { Found::Again })
    }

    /// Ends the frame whose body has arrived wholly; whether the reply ends with it.
    fn end_frame_if_whole(&mut self) -> bool {
        let Some(frame) = self.frame_body.take_if(|frame| frame.left_bytes == 0) else { return false };
        if frame.more {
            return false;
        }
        let stopped = self.open.remove(&frame.id).is_some_and(|open| open.sending.is_some() && open.has_begun());
        if stopped {
            self.push_control(Header::cancel(frame.id));
        }
        self.turns.retain(|&id| id != frame.id);
        true
    }

    fn push_control(&mut self, header: Header) {
        self.output.push(|out| encode_frame(out, header, &Fields::default(), b"")).expect("a bare header fits");
    }

    fn touch(&mut self, id: u64) {
        if let Some(open) = self.open.get_mut(&id) {
            open.deadline_ms = self.now_ms.saturating_add(open.then_ms);
        }
    }
}

impl FrameBody {
    /// Takes in the next bytes, checking them if anyone wants them.
    fn take(&mut self, bytes: &[u8]) -> Result<()> {
        self.left_bytes -= bytes.len();
        match &mut self.wanted {
            Some((_, checks)) => Ok(checks.update(bytes)?),
            None => Ok(()),
        }
    }
}

impl Open {
    /// Whether its first frame is on its way.
    fn has_begun(&self) -> bool {
        self.sending.as_ref().is_none_or(|sending| sending.first.is_none())
    }

    /// When it is given up, where something of any reply arrived at `heard_ms`.
    fn deadline(&self, heard_ms: u64) -> u64 {
        let heard = heard_ms > self.opened_ms;
        if heard { self.deadline_ms.max(heard_ms.saturating_add(self.then_ms)) } else { self.deadline_ms }
    }

    /// Bytes the body of this reply must have; `None`: it is not known.
    fn body_bytes(&self, reply: &Reply) -> Option<u64> {
        if self.verb != Verb::Get || !reply.is_ok() {
            return None;
        }
        if self.head_only {
            return Some(0);
        }
        let rest = reply.size_bytes?.saturating_sub(reply.offset);
        let asked = self.range.and_then(|range| range.length);
        Some(asked.map_or(rest, |asked| asked.min(rest)))
    }
}

impl Sending {
    fn new(header: Header, request: &Request<'_>, length: Option<u64>) -> Result<Self> {
        let mut head = Vec::new();
        request.fields().encode(&mut head)?;
        let base_offset = header.offset;
        let first = Some((header, head));
        Ok(Self { first, base_offset, position: 0, length, credit: WIRE_FIRST_CREDIT_BYTES })
    }

    /// Bytes of the next frame, at most `frame_bytes`; `None`: it waits for credit. All but the last are whole blocks.
    fn next_bytes(&self, frame_bytes: usize) -> Option<usize> {
        let left = self.length.map_or(u64::MAX, |length| length - self.position);
        let most = (frame_bytes as u64).min(self.credit);
        if left <= most {
            return Some(left as usize);
        }
        let bytes = most as usize / BLOCK_BYTES * BLOCK_BYTES;
        (bytes > 0).then_some(bytes)
    }

    fn encode_frame(&mut self, out: &mut Vec<u8>, id: u64, bytes: &[u8], more: bool) -> Result<()> {
        let offset = self.base_offset + self.position;
        match self.first.take() {
            Some((mut header, head)) => {
                header.flags |= if more { FLAG_MORE } else { 0 };
                let fields = Fields::decode(&head)?;
                encode_frame_head(out, header, &fields, bytes.len(), block_checks(bytes))?;
            }
            None => {
                let header = Header::data(id, offset, more);
                encode_frame_head(out, header, &Fields::default(), bytes.len(), block_checks(bytes))?;
            }
        }
        self.position += bytes.len() as u64;
        self.credit = self.credit.saturating_sub(bytes.len() as u64);
        Ok(())
    }
}
