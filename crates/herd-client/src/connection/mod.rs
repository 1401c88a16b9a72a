//! One connection to a node, as a pure state machine: bytes in, bytes out, time passed in. No socket, no clock.
//!
//! A shell moves bytes: it reads into [`Connection::space`] and says [`Connection::filled`], takes
//! [`Connection::next_event`] until there is none, and writes [`Connection::output_head`] and the part of a body that
//! [`Connection::output_body`] names, and says [`Connection::sent`]. Bodies of puts stay in the caller's memory, and
//! those of gets may be read straight into it ([`Connection::expected_body`]), so that bulk bytes are not copied here.
//!
//! What frames mean for a request is known to its [`Asker`]. A request passes these states:
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

pub use herd_core::wire::Wanted;
pub use output::BodyPart;

use crate::error::{Error, Result};
use crate::limits::COPIED_BODY_MAX_BYTES;
use crate::reply::{Reply, Welcome};
use crate::request::Request;
use herd_core::limits::{BLOCK_BYTES, WIRE_FRAME_BODY_MAX_BYTES, WIRE_OPEN_REQUESTS_MAX};
use herd_core::wire::{
    Asker, Between, BlockChecks, FLAG_MORE, Fields, GOODBYE_UNREAD, Header, Kind, LENGTH_UNKNOWN, MapMark, Meant,
    PROTOCOL_VERSION, Side, VERB_MAP, WireError, block_checks, encode_frame, parse_frame_head,
};
use input::Input;
use output::Output;
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
/// its connection: replies stand in line behind each other. Credit, empty frames behind a reply and replies without a
/// body to what was given up move nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// Until it must have begun, which the node is told.
    pub begin_ms: u64,
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

/// What is noted beside an open request.
struct Open {
    delivery: Delivery,
    opened_ms: u64,
    then_ms: u64,
    deadline_ms: u64,
    /// Where in the output it ends; `None` before its last frame.
    ends: Option<u64>,
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
    asker: Asker<Open>,
    ended: bool,
    /// Whether what answers has sent a frame, and so is a Herd node.
    known: bool,
    /// Whether what answers is no Herd node.
    foreign: bool,
    /// Whether the node has answered the hello.
    welcomed: bool,
    /// Whether it has refused the hello, or says so otherwise, and so has read no request about an object.
    refused: bool,
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
        Self::with_hello(now_ms, None)
    }

    /// A fresh connection to one node only: any other refuses it before it does anything.
    pub fn to_node(now_ms: u64, meant: Meant) -> Self {
        Self::with_hello(now_ms, Some(Between::Meant(&meant.bytes())))
    }

    fn with_hello(now_ms: u64, between: Option<Between<'_>>) -> Self {
        let mut output = Output::default();
        let hello = Fields {
            features: Some(0),
            highest_version: Some(PROTOCOL_VERSION),
            node: Some(NAME),
            between,
            ..Fields::default()
        };
        output.push(|out| encode_frame(out, Header::new(Kind::Hello), &hello, b"")).expect("a hello fits");
        Self {
            input: Input::new(),
            output,
            frame_body: None,
            body: 0..0,
            asker: Asker::new(Side::Dialer),
            ended: false,
            known: false,
            foreign: false,
            welcomed: false,
            refused: false,
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
        if self.asker.len() >= WIRE_OPEN_REQUESTS_MAX {
            let text = "1,024 requests are open on this connection: wait for some of them first";
            return Err(Error::new(crate::ErrorKind::Refused(herd_core::ErrorKind::Busy), text));
        }
        self.now_ms = now_ms;
        let id = self.asker.next_id();
        let open = Open {
            delivery,
            opened_ms: now_ms,
            then_ms: patience.then_ms,
            deadline_ms: now_ms.saturating_add(patience.first_ms),
            ends: None,
        };
        match body {
            Body::Copied(bytes) => self.open_copied(request, bytes, patience, open)?,
            // The deadline bounds when a request begins; one whose body takes its time has none.
            Body::Streamed(length) => {
                self.asker.open_streamed(request.header(id, length, 0), &request.fields(), open)?;
            }
        }
        Ok(id)
    }

    /// Opens a request whose body is copied behind its head.
    fn open_copied(&mut self, request: &Request<'_>, body: &[u8], patience: Patience, open: Open) -> Result<()> {
        assert!(body.len() <= COPIED_BODY_MAX_BYTES, "larger bodies are streamed");
        let header = request.header(self.asker.next_id(), Some(body.len() as u64), patience.begin_ms);
        self.output.push(|out| encode_frame(out, header, &request.fields(), body))?;
        if self.asker.open(header, Open { ends: Some(self.output.queued_bytes), ..open }) {
            self.push_control(Header::credit(header.id, LENGTH_UNKNOWN));
        }
        Ok(())
    }

    /// Asks for the map, unless it is that of `mark`, and says the id; the answer may take any time.
    pub fn ask_map(&mut self, now_ms: u64, mark: Option<MapMark>) -> Result<u64> {
        self.now_ms = now_ms;
        let id = self.asker.next_id();
        let header = Header { verb: VERB_MAP, id, ..Header::new(Kind::Request) };
        self.output.push(|out| match mark {
            Some(mark) => {
                mark.tell(out, header);
                Ok(())
            }
            None => encode_frame(out, header, &Fields::default(), b""),
        })?;
        let ends = Some(self.output.queued_bytes);
        let (then_ms, deadline_ms) = (u64::MAX, u64::MAX);
        self.asker.open(header, Open { delivery: Delivery::Early, opened_ms: now_ms, then_ms, deadline_ms, ends });
        Ok(id)
    }

    /// Gives up a request; the node is told if it knows of it.
    pub fn cancel(&mut self, id: u64) {
        if self.asker.give_up(id) && !self.ended {
            self.push_control(Header::cancel(id));
        }
        if let Some(frame) = self.frame_body.as_mut().filter(|frame| frame.id == id) {
            frame.wanted = None;
        }
    }

    /// When the open request is given up unless something moves, ms.
    pub fn deadline(&self, id: u64) -> Option<u64> {
        self.asker.note(id).map(|open| open.deadline(self.heard_ms))
    }

    /// The earliest deadline of an open request, ms.
    pub fn next_deadline(&self) -> Option<u64> {
        self.asker.notes().map(|(_, open)| open.deadline(self.heard_ms)).min()
    }

    /// Gives up one request whose deadline has passed, and says which; call until there is none.
    pub fn expire(&mut self, now_ms: u64) -> Option<u64> {
        self.now_ms = now_ms;
        let (id, _) = self.asker.notes().find(|(_, open)| open.deadline(self.heard_ms) <= now_ms)?;
        self.cancel(id);
        Some(id)
    }

    /// Of an open request: whether the socket has taken its last byte, so that it may have been done. Of one that is
    /// closed or was given up nothing is known, and the answer is yes. Who is no Herd node has done nothing, nor has
    /// one that refused the hello.
    pub fn may_be_done(&self, id: u64) -> bool {
        let sent = |open: &Open| open.ends.is_some_and(|ends| ends <= self.output.sent_bytes);
        !self.foreign && !self.refused && self.asker.note(id).is_none_or(sent)
    }

    /// Whether the node has answered the hello.
    pub fn is_welcomed(&self) -> bool {
        self.welcomed
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
        let quiet = self.asker.is_empty() && self.output.is_empty() && self.frame_body.is_none();
        quiet && self.input.unread().is_empty() && !self.ended
    }

    /// Whether nothing is under way but the answer to this request.
    pub fn is_idle_but(&self, id: u64) -> bool {
        self.asker.len() == 1 && self.asker.note(id).is_some() && self.output.is_empty() && !self.ended
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
        part || self.asker.is_sending(id)
    }

    /// The next bytes of an outgoing body that may be sent; `None` while there are none to send, one is still under
    /// way, or all wait for credit.
    pub fn wanted_body(&mut self) -> Option<Wanted> {
        if self.output.body().is_some() || self.ended {
            return None;
        }
        self.asker.wanted(if self.asker.len() > 1 { BLOCK_BYTES } else { WIRE_FRAME_BODY_MAX_BYTES })
    }

    /// Starts the frame that [`Connection::wanted_body`] asked for, with `bytes` as its body; they must be at hand
    /// until they are sent. `last` ends a body of unknown length (one of known length ends by itself).
    pub fn start_frame(&mut self, id: u64, bytes: &[u8], last: bool) -> Result<()> {
        let asker = &mut self.asker;
        let started = self.output.push(|out| asker.encode_frame(out, (id, bytes.len()), block_checks(bytes), last))?;
        self.output.attach(BodyPart { id, position: started.position, bytes: bytes.len() });
        if let Some(open) = self.asker.note_mut(id).filter(|_| !started.more) {
            open.ends = Some(self.output.queued_bytes);
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
        let event = match header.kind {
            Kind::Welcome => {
                let welcome = Welcome::from_wire(&header, &frame.fields()?);
                self.asker.set_session(welcome.session);
                self.welcomed = true;
                Found::Event(Event::Welcome(welcome))
            }
            Kind::Goodbye => {
                self.ended = true;
                self.refused = !self.welcomed || header.code == GOODBYE_UNREAD;
                Found::Event(Event::Goodbye(frame.fields()?.error.unwrap_or_default().to_owned()))
            }
            Kind::Reply => {
                let reply = Reply::from_wire(&header, &frame.fields()?);
                self.take_reply(&header, reply, checks)?
            }
            Kind::Data => self.take_data(&header, checks)?,
            // What it allows to be sent counts when it is.
            Kind::Credit => {
                self.asker.take_credit(&header);
                Found::Again
            }
            Kind::Hello | Kind::Request | Kind::Cancel => {
                return Err(Error::bad_reply(format!("a node sends no frame of kind {}", header.kind as u8)));
            }
        };
        self.input.consume(bytes);
        Ok(event)
    }

    fn take_reply(&mut self, header: &Header, mut reply: Reply, checks: BlockChecks) -> Result<Found> {
        let Some(answer) = self.asker.take_reply(header)? else { return self.skip(header) };
        if !reply.is_ok() && header.has(FLAG_MORE) {
            return Err(Error::bad_reply("an error with a long body"));
        }
        reply.collection = answer.collection;
        let (id, body_bytes) = (header.id, answer.body_bytes);
        if answer.needs_credit {
            self.push_control(Header::credit(id, LENGTH_UNKNOWN));
        }
        let ends = self.begin_body(header, checks);
        Ok(Found::Event(Event::Reply { id, reply, body_bytes, ends }))
    }

    fn take_data(&mut self, header: &Header, checks: BlockChecks) -> Result<Found> {
        if !self.asker.take_data(header)? {
            return self.skip(header);
        }
        let ends = self.begin_body(header, checks);
        let event = Event::Body { id: header.id, ends };
        Ok(if ends { Found::Event(event) } else { Found::Again })
    }

    /// Takes a frame of an answered request's body up; whether the reply ends with it already.
    fn begin_body(&mut self, header: &Header, checks: BlockChecks) -> bool {
        let (id, more) = (header.id, header.has(FLAG_MORE));
        // An empty frame behind the reply is no sign of life: a server could send such for ever.
        if header.kind == Kind::Reply || header.body_len > 0 {
            self.heard_ms = self.now_ms;
            self.touch(id);
        }
        let open = self.asker.note(id).expect("the asker took the frame for it");
        let (left_bytes, wanted) = (header.body_len as usize, Some((open.delivery, checks)));
        self.frame_body = Some(FrameBody { id, left_bytes, more, wanted });
        self.end_frame_if_whole()
    }

    /// Skips a frame of a request that was given up.
    fn skip(&mut self, header: &Header) -> Result<Found> {
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
        if self.asker.end(frame.id).is_some_and(|(_, stopped)| stopped) {
            self.push_control(Header::cancel(frame.id));
        }
        true
    }

    fn push_control(&mut self, header: Header) {
        self.output.push(|out| encode_frame(out, header, &Fields::default(), b"")).expect("a bare header fits");
    }

    fn touch(&mut self, id: u64) {
        if let Some(open) = self.asker.note_mut(id) {
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
    /// When it is given up, where something of any reply arrived at `heard_ms`.
    fn deadline(&self, heard_ms: u64) -> u64 {
        let heard = heard_ms > self.opened_ms;
        if heard { self.deadline_ms.max(heard_ms.saturating_add(self.then_ms)) } else { self.deadline_ms }
    }
}
