//! The requests that one side of a connection has asked: their ids, and how far the bodies of requests and replies have
//! come (PROTOCOL.md §1.3). Pure, and the same for a client and for a link between nodes.
//!
//! Both sides of a link ask on one stream. Who opened a request stands in its id ([`Side`]), so that data, credit and
//! cancel, which have nothing but an id, never meet the request of the other side. An [`Asker`] says what each frame
//! means for the requests of its side; sockets, buffers, deadlines and the checksums of blocks are the caller's, who
//! keeps a note of its own, `T`, beside each request.
//!
//! | from | by | to |
//! |---|---|---|
//! | - | [`Asker::open`], or [`Asker::open_streamed`] with a body to send | open |
//! | body waiting | [`Asker::wanted`], [`Asker::encode_frame`] | body waiting, or body sent |
//! | open | [`Asker::take_reply`] | answered; its body arrives by [`Asker::take_data`] |
//! | answered | [`Asker::end`], behind the last byte of the reply | closed |
//! | open, answered | [`Asker::give_up`] | closed; what still comes for it is late, and to be skipped |
//!
//! An error means that the other side breaks the protocol: the connection is lost.

use super::error::WireError;
use super::fields::Fields;
use super::header::{
    FLAG_HEAD_ONLY, FLAG_MORE, FLAG_RANGE, Header, LENGTH_UNKNOWN, OFFSET_LAST, Status, Verb, request_id,
};
use super::{SEQUENCE_BITS, encode_frame_head};
use crate::limits::{BLOCK_BYTES, WIRE_FIRST_CREDIT_BYTES};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;

/// The bit of a request id that says that the accepting side opened it.
pub const ID_OF_ACCEPTOR: u64 = 1 << 63;

/// A side of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// The one that opened the connection: a client always.
    Dialer,
    /// The one that accepted it.
    Acceptor,
}

impl Side {
    /// The id of a request that this side opens, of a session (23 bits) and a sequence number (40 bits).
    #[inline]
    pub fn id(self, session: u32, sequence: u64) -> u64 {
        let by = if self == Side::Acceptor { ID_OF_ACCEPTOR } else { 0 };
        request_id(session, sequence) | by
    }

    /// Whether this side opened the request with that id.
    #[inline]
    pub fn opened(self, id: u64) -> bool {
        (id & ID_OF_ACCEPTOR != 0) == (self == Side::Acceptor)
    }
}

/// The part of a request's body that may be sent next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The request.
    pub id: u64,
    /// First byte wanted, counted from the start of the body.
    pub position: u64,
    /// Bytes wanted: just so many, unless a body of unknown length ends before.
    pub bytes: usize,
}

/// A frame of a request's body that was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Started {
    /// Its first byte, counted from the start of the body.
    pub position: u64,
    /// Whether further frames follow, when it is this request's turn again.
    pub more: bool,
}

/// What a reply says of its request, besides what is in its own fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Id of the collection, which a brief reply does not repeat.
    pub collection: u64,
    /// Bytes its body will have; `None`: that is not known before its end.
    pub body_bytes: Option<u64>,
    /// Whether its sender must be told that it may send all of it: a credit of [`LENGTH_UNKNOWN`].
    pub needs_credit: bool,
}

/// How the other side breaks the order of frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Breach {
    /// The reply has another verb, or is the second one.
    AnotherRequest,
    /// A get is answered from another offset than it asked for.
    AnotherPart,
    /// Data that follows no reply, or not where the frame before it ended.
    UnaskedData,
    /// The frames of a body have more bytes than the object.
    BodyTooLong,
    /// A body ended with so many bytes to come.
    BodyTooShort(u64),
    /// The id was never given out.
    NeverAsked,
}

impl fmt::Display for Breach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Breach::AnotherRequest => f.write_str("a reply to another request"),
            Breach::AnotherPart => f.write_str("another part of the object than was asked for"),
            Breach::UnaskedData => f.write_str("data that nobody asked for"),
            Breach::BodyTooLong => f.write_str("a body longer than the object"),
            Breach::BodyTooShort(left) => write!(f, "a body that ends {left} bytes early"),
            Breach::NeverAsked => f.write_str("a reply to a request that was never sent"),
        }
    }
}

impl std::error::Error for Breach {}

/// See the module.
pub struct Asker<T> {
    side: Side,
    session: u32,
    /// Requests opened so far.
    sequence: u64,
    open: BTreeMap<u64, Asked<T>>,
    /// Requests with a body to send, in turn.
    turns: VecDeque<u64>,
}

struct Asked<T> {
    request: Header,
    sending: Option<Sending>,
    receiving: Option<Arriving>,
    /// The whole body of its reply is allowed.
    credited: bool,
    note: T,
}

/// A body on its way out.
struct Sending {
    /// The encoded head of the request, until the first frame has gone.
    head: Option<Vec<u8>>,
    position: u64,
    length: Option<u64>,
    credit: u64,
    /// Bytes of it that are there.
    ready: u64,
}

/// A body on its way in.
struct Arriving {
    /// Where in the object the next frame must begin.
    next_offset: u64,
    /// Bytes still to come; `None`: not known.
    left: Option<u64>,
}

impl<T> Asker<T> {
    /// Of the side that has asked nothing yet.
    pub fn new(side: Side) -> Self {
        Self { side, session: 0, sequence: 0, open: BTreeMap::new(), turns: VecDeque::new() }
    }

    /// Takes up the session of the welcome: ids have it from now on.
    pub fn set_session(&mut self, session: u32) {
        self.session = session;
    }

    /// The id that the next request must have.
    #[inline]
    pub fn next_id(&self) -> u64 {
        self.side.id(self.session, self.sequence)
    }

    /// Requests that are open.
    #[inline]
    pub fn len(&self) -> usize {
        self.open.len()
    }

    /// Whether no request is open.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// The note beside an open request.
    #[inline]
    pub fn note(&self, id: u64) -> Option<&T> {
        self.open.get(&id).map(|asked| &asked.note)
    }

    /// The note beside an open request, to be changed.
    #[inline]
    pub fn note_mut(&mut self, id: u64) -> Option<&mut T> {
        self.open.get_mut(&id).map(|asked| &mut asked.note)
    }

    /// The open requests and their notes, in the order of their ids.
    pub fn notes(&self) -> impl Iterator<Item = (u64, &T)> {
        self.open.iter().map(|(&id, asked)| (id, &asked.note))
    }

    // Asking.

    /// Notes a request, with [`Asker::next_id`], that is sent whole. True: a credit of [`LENGTH_UNKNOWN`] is to follow
    /// it, as so long a part of an object was asked for.
    #[inline]
    pub fn open(&mut self, request: Header, note: T) -> bool {
        let most = if request.has(FLAG_RANGE) && request.length != LENGTH_UNKNOWN { request.length } else { 0 };
        let credited = request.verb == Verb::Get as u8 && most > WIRE_FIRST_CREDIT_BYTES;
        self.insert(Asked { request, sending: None, receiving: None, credited, note });
        credited
    }

    /// Notes a request, with [`Asker::next_id`], whose body of `request.length` bytes is sent frame by frame; its first
    /// frame is the request itself.
    pub fn open_streamed(&mut self, request: Header, fields: &Fields<'_>, note: T) -> Result<(), WireError> {
        let mut head = Vec::new();
        fields.encode(&mut head)?;
        let length = (request.length != LENGTH_UNKNOWN).then_some(request.length);
        let (credit, ready) = (WIRE_FIRST_CREDIT_BYTES, u64::MAX);
        let sending = Sending { head: Some(head), position: 0, length, credit, ready };
        self.turns.push_back(request.id);
        self.insert(Asked { request, sending: Some(sending), receiving: None, credited: false, note });
        Ok(())
    }

    /// Of a body that comes bit by bit: its first `ready_bytes` are there; `is_whole`: these are all. Of one that is
    /// not whole the last byte is kept back, so that its sender may still give it up.
    pub fn supply(&mut self, id: u64, ready_bytes: u64, is_whole: bool) {
        let Some(asked) = self.open.get_mut(&id) else { return };
        let Some(sending) = &mut asked.sending else { return };
        if is_whole {
            (sending.length, asked.request.length) = (Some(ready_bytes), ready_bytes);
        }
        let last = sending.length.filter(|_| !is_whole).map(|length| length.saturating_sub(1));
        sending.ready = ready_bytes.min(last.unwrap_or(u64::MAX));
    }

    #[inline]
    fn insert(&mut self, asked: Asked<T>) {
        assert!(asked.request.id == self.next_id(), "a request has the id that was given out for it");
        self.sequence += 1;
        self.open.insert(asked.request.id, asked);
    }

    /// Closes a request without its answer; true: the other side knows of it and must be told by a cancel.
    pub fn give_up(&mut self, id: u64) -> bool {
        self.turns.retain(|&other| other != id);
        self.open.remove(&id).is_some_and(|asked| asked.has_begun())
    }

    /// Whether the body of this request, or of any, has frames to come.
    pub fn is_sending(&self, id: Option<u64>) -> bool {
        self.turns.iter().any(|turn| id.is_none_or(|id| id == *turn))
    }

    /// Whether a frame of a body may be sent now.
    pub fn can_send(&self) -> bool {
        let sending = |id| self.open.get(id).and_then(|asked| asked.sending.as_ref());
        self.turns.iter().filter_map(sending).any(|sending| sending.next_bytes(BLOCK_BYTES).is_some())
    }

    /// What may be sent next, at most `frame_bytes` of it; `None`: there is nothing, or all waits for credit.
    pub fn wanted(&mut self, frame_bytes: usize) -> Option<Wanted> {
        for _ in 0..self.turns.len() {
            let id = *self.turns.front().expect("as many as counted");
            let sending = self.open.get(&id).and_then(|asked| asked.sending.as_ref()).expect("it has its turn");
            if let Some(bytes) = sending.next_bytes(frame_bytes) {
                return Some(Wanted { id, position: sending.position, bytes });
            }
            self.turns.rotate_left(1);
        }
        None
    }

    /// Appends header, head and `checks`, one for each block, of the frame that [`Asker::wanted`] asked for; its body
    /// of `body_bytes` follows. `last` ends a body of unknown length (one of known length ends by itself).
    pub fn encode_frame(
        &mut self,
        out: &mut Vec<u8>,
        (id, body_bytes): (u64, usize),
        checks: impl IntoIterator<Item = u32>,
        last: bool,
    ) -> Result<Started, WireError> {
        assert!(self.turns.front() == Some(&id), "it is its turn");
        let asked = self.open.get_mut(&id).expect("only an open request wants a body");
        let sending = asked.sending.as_mut().expect("only a streamed body is wanted");
        let (position, more) = (sending.position, sending.has_more(body_bytes, last));
        sending.encode_frame(out, &asked.request, (body_bytes, more), checks)?;
        self.turns.pop_front();
        if more {
            self.turns.push_back(id);
        } else {
            asked.sending = None;
        }
        Ok(Started { position, more })
    }

    // What the other side sends.

    /// Takes the head of a reply. `None`: its request was given up, and the bytes of this frame's body are to be
    /// skipped.
    pub fn take_reply(&mut self, header: &Header) -> Result<Option<Answer>, Breach> {
        let Some(asked) = self.open.get_mut(&header.id) else { return self.check_late(header.id).map(|()| None) };
        let is_ok = header.code == Status::Ok.code();
        if asked.receiving.is_some() || header.verb != asked.request.verb {
            return Err(Breach::AnotherRequest);
        }
        if asked.is_get() && is_ok && header.offset != asked.asked_offset(header) {
            return Err(Breach::AnotherPart);
        }
        let body_bytes = if is_ok { asked.body_bytes(header) } else { None };
        let mut arriving = Arriving { next_offset: header.offset, left: body_bytes };
        arriving.take(header)?;
        asked.receiving = Some(arriving);
        let is_long = body_bytes.is_none_or(|bytes| bytes > WIRE_FIRST_CREDIT_BYTES);
        let needs_credit = header.has(FLAG_MORE) && is_long && !asked.credited;
        asked.credited |= needs_credit;
        let collection = if header.brief { asked.request.collection } else { header.collection };
        Ok(Some(Answer { collection, body_bytes, needs_credit }))
    }

    /// Takes a further frame of a reply's body; false: its request was given up, and its bytes are to be skipped.
    pub fn take_data(&mut self, header: &Header) -> Result<bool, Breach> {
        let Some(asked) = self.open.get_mut(&header.id) else { return self.check_late(header.id).map(|()| false) };
        match &mut asked.receiving {
            Some(arriving) if arriving.next_offset == header.offset => arriving.take(header).map(|()| true),
            _ => Err(Breach::UnaskedData),
        }
    }

    /// Takes a credit; one for a body that needs none any more says nothing.
    pub fn take_credit(&mut self, header: &Header) {
        if let Some(sending) = self.open.get_mut(&header.id).and_then(|asked| asked.sending.as_mut()) {
            sending.credit = sending.credit.saturating_add(header.length);
        }
    }

    /// Closes a request whose answer is wholly there, and gives its note. True: it had begun a body that goes no
    /// further, and the other side must be told by a cancel.
    pub fn end(&mut self, id: u64) -> Option<(T, bool)> {
        let asked = self.open.remove(&id)?;
        if asked.sending.is_some() {
            self.turns.retain(|&other| other != id);
        }
        let stopped = asked.sending.is_some() && asked.has_begun();
        Some((asked.note, stopped))
    }

    /// Whether an id that is not open may be that of a request that was given up.
    fn check_late(&self, id: u64) -> Result<(), Breach> {
        let sequence = id & ((1 << SEQUENCE_BITS) - 1);
        let was_asked = self.side.opened(id) && sequence < self.sequence;
        if was_asked { Ok(()) } else { Err(Breach::NeverAsked) }
    }
}

impl<T> Asked<T> {
    /// Whether its first frame is on its way.
    fn has_begun(&self) -> bool {
        self.sending.as_ref().is_none_or(|sending| sending.head.is_none())
    }

    fn is_get(&self) -> bool {
        self.request.verb == Verb::Get as u8
    }

    /// Where the part of the object begins that was asked for.
    fn asked_offset(&self, reply: &Header) -> u64 {
        match self.request.offset {
            _ if !self.request.has(FLAG_RANGE) => 0,
            OFFSET_LAST => reply.length.saturating_sub(self.request.length),
            offset => offset,
        }
    }

    /// Bytes asked for; more than any object has, if that was all.
    fn most_bytes(&self) -> u64 {
        if self.request.has(FLAG_RANGE) { self.request.length } else { LENGTH_UNKNOWN }
    }

    /// Bytes the body of this reply, which is no error, must have; `None`: it is not known.
    fn body_bytes(&self, reply: &Header) -> Option<u64> {
        match () {
            () if !self.is_get() => None,
            () if self.request.has(FLAG_HEAD_ONLY) => Some(0),
            () if reply.length == LENGTH_UNKNOWN => None,
            () => Some(reply.length.saturating_sub(reply.offset).min(self.most_bytes())),
        }
    }
}

impl Arriving {
    /// Takes a frame into account.
    fn take(&mut self, header: &Header) -> Result<(), Breach> {
        let bytes = u64::from(header.body_len);
        self.next_offset = self.next_offset.wrapping_add(bytes);
        let Some(left) = &mut self.left else { return Ok(()) };
        *left = left.checked_sub(bytes).ok_or(Breach::BodyTooLong)?;
        match *left {
            left if left > 0 && !header.has(FLAG_MORE) => Err(Breach::BodyTooShort(left)),
            _ => Ok(()),
        }
    }
}

impl Sending {
    /// Bytes of the next frame, at most `frame_bytes`; `None`: it waits for credit. All but the last are whole blocks.
    fn next_bytes(&self, frame_bytes: usize) -> Option<usize> {
        let left = self.length.map_or(u64::MAX, |length| length.saturating_sub(self.position));
        let most = (frame_bytes as u64).min(self.credit).min(self.ready.saturating_sub(self.position));
        if left <= most {
            return Some(left as usize);
        }
        let bytes = most as usize / BLOCK_BYTES * BLOCK_BYTES;
        (bytes > 0).then_some(bytes)
    }

    /// Whether frames follow one of `body_bytes`.
    fn has_more(&self, body_bytes: usize, last: bool) -> bool {
        self.length.map_or(!last, |length| self.position + (body_bytes as u64) < length)
    }

    fn encode_frame(
        &mut self,
        out: &mut Vec<u8>,
        request: &Header,
        (body_bytes, more): (usize, bool),
        checks: impl IntoIterator<Item = u32>,
    ) -> Result<(), WireError> {
        match self.head.take() {
            Some(head) => {
                let flags = request.flags | if more { FLAG_MORE } else { 0 };
                encode_frame_head(out, Header { flags, ..*request }, &Fields::decode(&head)?, body_bytes, checks)?;
            }
            None => {
                let header = Header::data(request.id, request.offset.wrapping_add(self.position), more);
                encode_frame_head(out, header, &Fields::default(), body_bytes, checks)?;
            }
        }
        self.position += body_bytes as u64;
        self.credit = self.credit.saturating_sub(body_bytes as u64);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
