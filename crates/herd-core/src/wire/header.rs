//! The header of a frame: 72 bytes, or 32 of a brief reply, little-endian, checked by itself before anything behind it
//! is looked at (PROTOCOL.md §1.1).

use super::error::WireError;
use crate::checksum::crc32c;
use crate::collection::Class;
use crate::entry::{Condition, Range, Version};
use crate::error::{Error, ErrorKind};
use crate::key::CollectionId;
use crate::limits::{BLOCK_BYTES, WIRE_FRAME_BODY_MAX_BYTES, WIRE_HEAD_MAX_BYTES};

/// Bytes of a header.
pub const HEADER_BYTES: usize = 72;

/// Bytes of a brief reply's header.
pub const BRIEF_BYTES: usize = 32;

/// First byte of every frame but a brief reply.
pub const MAGIC: u8 = 0xCE;

/// First byte of a brief reply.
pub const BRIEF_MAGIC: u8 = 0xCF;

/// A length nobody knows yet, or "to the end"; as a credit, the whole rest.
pub const LENGTH_UNKNOWN: u64 = u64::MAX;

/// The offset of a get that wants the last `length` bytes of an object, however many it has.
pub const OFFSET_LAST: u64 = u64::MAX;

/// Of the class in a reply: above these bits, one less than the copies that a write needs.
const ACK_NEEDED_SHIFT: u32 = 4;

/// Flag: further data frames of this body follow.
pub const FLAG_MORE: u8 = 1;
/// Flag of a get: no body wanted.
pub const FLAG_HEAD_ONLY: u8 = 2;
/// Flag: offset and length select a range.
pub const FLAG_RANGE: u8 = 4;
/// Flag of a request: no reply unless it is an error.
pub const FLAG_QUIET: u8 = 8;
/// Flag of a request: the reply may be brief.
pub const FLAG_BRIEF: u8 = 16;

/// Code of a get that waits until the object's version is greater than `version`.
pub const CODE_NEWER: u16 = 4;

/// Status of a reply between nodes: the map has changed, and comes with it ([`super::MapSent::moved`]). No client sees
/// it.
pub const STATUS_MOVED: u16 = 15;

/// Code of a goodbye: what was asked about objects, and is not answered, was not read.
pub const GOODBYE_UNREAD: u16 = 11;

/// Bits of the sequence within a request id.
pub const SEQUENCE_BITS: u32 = 40;

/// Bits of the session above it; the highest bit of an id says who opened the request ([`super::Side`]).
pub const SESSION_BITS: u32 = 23;

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// First frame of the opener.
    Hello = 1,
    /// The answer to a hello.
    Welcome = 2,
    /// Asks for something; the first frame of its body, if it has one.
    Request = 3,
    /// Answers a request; the first frame of its body, if it has one.
    Reply = 4,
    /// A further frame of a body.
    Data = 5,
    /// Allows more bytes of a body.
    Credit = 6,
    /// Gives up a request.
    Cancel = 7,
    /// Says why the connection ends.
    Goodbye = 8,
}

impl Kind {
    /// All kinds, in the order of their codes.
    pub const ALL: [Kind; 8] =
        [Kind::Hello, Kind::Welcome, Kind::Request, Kind::Reply, Kind::Data, Kind::Credit, Kind::Cancel, Kind::Goodbye];

    /// The kind with this code.
    #[inline]
    pub fn from_code(code: u8) -> Option<Kind> {
        Kind::ALL.get(usize::from(code).wrapping_sub(1)).copied()
    }

    fn may_have_body(self) -> bool {
        matches!(self, Kind::Request | Kind::Reply | Kind::Data)
    }

    fn may_have_head(self) -> bool {
        !matches!(self, Kind::Data | Kind::Credit | Kind::Cancel)
    }
}

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Verb {
    /// Reads an object.
    Get = 1,
    /// Writes an object or a range of it.
    Put = 2,
    /// Removes an object.
    Remove = 3,
    /// Runs a method on an object.
    Execute = 4,
    /// Creates a collection.
    Create = 5,
    /// Destroys a collection.
    Destroy = 6,
    /// Lists names.
    List = 7,
}

impl Verb {
    /// All verbs, in the order of their codes.
    pub const ALL: [Verb; 7] =
        [Verb::Get, Verb::Put, Verb::Remove, Verb::Execute, Verb::Create, Verb::Destroy, Verb::List];

    /// The verb with this code.
    #[inline]
    pub fn from_code(code: u8) -> Option<Verb> {
        Verb::ALL.get(usize::from(code).wrapping_sub(1)).copied()
    }

    /// The verb as a word, as metrics and messages have it.
    pub fn name(self) -> &'static str {
        match self {
            Verb::Get => "get",
            Verb::Put => "put",
            Verb::Remove => "remove",
            Verb::Execute => "execute",
            Verb::Create => "create",
            Verb::Destroy => "destroy",
            Verb::List => "list",
        }
    }
}

/// How a request ended: code of a reply (PROTOCOL.md §1.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    /// It was done.
    Ok,
    /// It was not.
    Error(ErrorKind),
}

impl Status {
    /// The status with this code; `None` for codes of later versions.
    #[inline]
    pub fn from_code(code: u16) -> Option<Status> {
        match code {
            0 => Some(Status::Ok),
            _ => ErrorKind::ALL.into_iter().find(|kind| error_code(*kind) == code).map(Status::Error),
        }
    }

    /// Its code on the wire.
    #[inline]
    pub fn code(self) -> u16 {
        match self {
            Status::Ok => 0,
            Status::Error(kind) => error_code(kind),
        }
    }
}

/// Code of an error on the wire; a match, so that a new kind cannot go without one.
fn error_code(kind: ErrorKind) -> u16 {
    match kind {
        ErrorKind::NotFound => 1,
        ErrorKind::ConditionFailed => 2,
        ErrorKind::NoCollection => 3,
        ErrorKind::Exists => 4,
        ErrorKind::BadRequest => 5,
        ErrorKind::TooLarge => 6,
        ErrorKind::Full => 7,
        ErrorKind::Quota => 8,
        ErrorKind::BadChecksum => 9,
        ErrorKind::NotInVersion => 10,
        ErrorKind::Timeout => 11,
        ErrorKind::Busy => 12,
        ErrorKind::BadRange => 13,
        ErrorKind::NotAllowed => 14,
        ErrorKind::Unreachable => 16,
        ErrorKind::OutcomeUnknown => 17,
        ErrorKind::OutcomeLost => 18,
    }
}

/// The id of a client's request, of a session (23 bits) and a sequence number (40 bits); higher bits are cut off.
#[inline]
pub fn request_id(session: u32, sequence: u64) -> u64 {
    let session = u64::from(session) & ((1 << SESSION_BITS) - 1);
    (session << SEQUENCE_BITS) | (sequence & ((1 << SEQUENCE_BITS) - 1))
}

/// A header, decoded. `head_len`, `body_len` and `head_crc` are filled in by the encoders of frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What the frame is.
    pub kind: Kind,
    /// Code of the verb, 0 outside requests and replies; see [`Header::verb`].
    pub verb: u8,
    /// `FLAG_*`.
    pub flags: u8,
    /// Request id.
    pub id: u64,
    /// Request: condition; reply: status.
    pub code: u16,
    /// Bytes of the head.
    pub head_len: u16,
    /// Bytes of the body in this frame.
    pub body_len: u32,
    /// Collection id; 0: named in the head.
    pub collection: u64,
    /// Request: belongs to `code`; reply: version of the object.
    pub version: Version,
    /// First byte of the range, or of this data frame, in the object.
    pub offset: u64,
    /// Request: bytes asked for, or of the body; reply: bytes of the whole object; or [`LENGTH_UNKNOWN`].
    pub length: u64,
    /// Map epoch of the sender.
    pub epoch: u32,
    /// Request: deadline, ms from now, 0 none; reply: age bound, ms.
    pub time_ms: u32,
    /// Request: credential slot; reply: class and copies, see [`Header::set_ack`].
    pub extra: u16,
    /// Relays passed.
    pub hops: u8,
    /// CRC-32C of head and block checksums together, 0 when both are empty.
    pub head_crc: u32,
    /// Of a reply to be written: it may be brief, and is where it fits; of one that was read: it was.
    pub brief: bool,
}

impl Header {
    /// A header of this kind with everything else zero.
    #[inline]
    pub fn new(kind: Kind) -> Self {
        Self {
            kind,
            verb: 0,
            flags: 0,
            id: 0,
            code: 0,
            head_len: 0,
            body_len: 0,
            collection: 0,
            version: 0,
            offset: 0,
            length: 0,
            epoch: 0,
            time_ms: 0,
            extra: 0,
            hops: 0,
            head_crc: 0,
            brief: false,
        }
    }

    /// The header of a request.
    #[inline]
    pub fn request(verb: Verb, id: u64) -> Self {
        Self { verb: verb as u8, id, ..Self::new(Kind::Request) }
    }

    /// The header of the reply to `request`: echoes its verb, id, collection and offset. It may be brief where the
    /// asker says so and knows the collection's id, which a brief reply does not tell.
    #[inline]
    pub fn reply_to(request: &Header, status: Status) -> Self {
        Self {
            verb: request.verb,
            id: request.id,
            code: status.code(),
            collection: request.collection,
            offset: request.offset,
            brief: request.has(FLAG_BRIEF) && request.collection != CollectionId::BY_NAME.0,
            ..Self::new(Kind::Reply)
        }
    }

    /// The header of a further frame of the body of `id`, whose first byte is `offset` in the object.
    #[inline]
    pub fn data(id: u64, offset: u64, more: bool) -> Self {
        Self { id, offset, flags: if more { FLAG_MORE } else { 0 }, ..Self::new(Kind::Data) }
    }

    /// The header (and whole frame) that allows `bytes` more of the body of `id`.
    #[inline]
    pub fn credit(id: u64, bytes: u64) -> Self {
        Self { id, length: bytes, ..Self::new(Kind::Credit) }
    }

    /// The header (and whole frame) that gives up the request `id`.
    #[inline]
    pub fn cancel(id: u64) -> Self {
        Self { id, ..Self::new(Kind::Cancel) }
    }

    /// The verb; `None` if this version has no such verb.
    #[inline]
    pub fn verb(&self) -> Option<Verb> {
        Verb::from_code(self.verb)
    }

    /// Whether any of the flags is set.
    #[inline]
    pub fn has(&self, flags: u8) -> bool {
        self.flags & flags != 0
    }

    /// Of a reply: how the request ended; `None` for a code of a later version.
    #[inline]
    pub fn status(&self) -> Option<Status> {
        Status::from_code(self.code)
    }

    /// Of a request: the condition; `None` for [`CODE_NEWER`] and codes of later versions.
    #[inline]
    pub fn condition(&self) -> Option<Condition> {
        match self.code {
            0 => Some(Condition::None),
            1 => Some(Condition::IfAbsent),
            2 => Some(Condition::IfPresent),
            3 => Some(Condition::IfVersion(self.version)),
            5 => Some(Condition::IfCas(self.version)),
            _ => None,
        }
    }

    /// Sets the condition of a request.
    #[inline]
    pub fn set_condition(&mut self, condition: Condition) {
        (self.code, self.version) = match condition {
            Condition::None => (0, 0),
            Condition::IfAbsent => (1, 0),
            Condition::IfPresent => (2, 0),
            Condition::IfVersion(version) => (3, version),
            Condition::IfCas(cas) => (5, cas),
        };
    }

    /// Of a get: the version it waits to be passed, if it waits.
    #[inline]
    pub fn newer_than(&self) -> Option<Version> {
        (self.code == CODE_NEWER).then_some(self.version)
    }

    /// Of a get: where what it asks for begins in an object of so many bytes, and how long it is; an error if it starts
    /// past the end.
    #[inline]
    pub fn range_within(&self, size_bytes: u64) -> Result<(u64, u64), Error> {
        let length = (self.length != LENGTH_UNKNOWN).then_some(self.length);
        match self.offset {
            _ if !self.has(FLAG_RANGE) => Range::ALL.within(size_bytes),
            OFFSET_LAST => {
                let bytes = self.length.min(size_bytes);
                Ok((size_bytes - bytes, bytes))
            }
            offset => Range { offset, length }.within(size_bytes),
        }
    }

    /// Sets class and number of copies of a reply.
    #[inline]
    pub fn set_ack(&mut self, class: Class, copies: u8) {
        let class = match class {
            Class::Cache => 0,
            Class::Ram(needed) => 1 | needed.saturating_sub(1) << ACK_NEEDED_SHIFT,
            Class::Log(needed) => 2 | needed.saturating_sub(1) << ACK_NEEDED_SHIFT,
        };
        self.extra = u16::from_le_bytes([class, copies]);
    }

    /// Of a reply: class and number of copies.
    #[inline]
    pub fn ack(&self) -> (Class, u8) {
        let [class, copies] = self.extra.to_le_bytes();
        let needed = (class >> ACK_NEEDED_SHIFT) + 1;
        let class = match class & ((1 << ACK_NEEDED_SHIFT) - 1) {
            0 => Class::Cache,
            1 => Class::Ram(needed),
            _ => Class::Log(needed),
        };
        (class, copies)
    }

    /// Blocks the body of this frame touches, each with a checksum behind the head.
    #[inline]
    pub fn blocks(&self) -> usize {
        (self.body_len as usize).div_ceil(BLOCK_BYTES)
    }

    /// Bytes of head and block checksums, which stand between header and body.
    #[inline]
    pub fn middle_bytes(&self) -> usize {
        usize::from(self.head_len) + 4 * self.blocks()
    }

    /// Bytes of this header, as it was read.
    #[inline]
    pub fn bytes(&self) -> usize {
        if self.brief { BRIEF_BYTES } else { HEADER_BYTES }
    }

    /// Bytes of the whole frame, as it was read.
    #[inline]
    pub fn frame_bytes(&self) -> usize {
        self.bytes() + self.middle_bytes() + self.body_len as usize
    }

    /// Whether the brief form tells all of this reply: a whole object of one block, or none, without a head.
    #[inline]
    pub(super) fn fits_brief(&self) -> bool {
        let plain = self.kind == Kind::Reply && self.flags == 0 && self.head_len == 0 && self.time_ms == 0;
        let whole = self.offset == 0 && self.length == u64::from(self.body_len);
        plain && whole && self.code <= u16::from(u8::MAX) && self.body_len <= u32::from(u16::MAX)
    }

    /// The bytes of a reply that fits the brief form, with the header's own checksum.
    #[inline]
    pub fn encode_brief(&self) -> [u8; BRIEF_BYTES] {
        let mut out = [0; BRIEF_BYTES];
        out[0] = BRIEF_MAGIC;
        out[1] = self.verb;
        out[2..4].copy_from_slice(&(self.body_len as u16).to_le_bytes());
        out[8..16].copy_from_slice(&self.id.to_le_bytes());
        out[16..24].copy_from_slice(&self.version.to_le_bytes());
        out[24..28].copy_from_slice(&self.epoch.to_le_bytes());
        out[28..30].copy_from_slice(&self.extra.to_le_bytes());
        out[30] = self.code as u8;
        out[31] = self.hops;
        let crc = own_crc(&out);
        out[4..8].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// Decodes and checks the header of a brief reply. Its collection, which the asker knows, is 0.
    #[inline]
    pub fn decode_brief(bytes: &[u8; BRIEF_BYTES]) -> Result<Self, WireError> {
        if bytes[0] != BRIEF_MAGIC {
            return Err(WireError::BadMagic(bytes[0]));
        }
        if u32_at(bytes, 4) != own_crc(bytes) {
            return Err(WireError::BadHeaderCrc);
        }
        let body_len = u16_at(bytes, 2);
        Ok(Self {
            verb: bytes[1],
            body_len: u32::from(body_len),
            length: u64::from(body_len),
            id: u64_at(bytes, 8),
            version: u64_at(bytes, 16),
            epoch: u32_at(bytes, 24),
            extra: u16_at(bytes, 28),
            code: u16::from(bytes[30]),
            hops: bytes[31],
            brief: true,
            ..Self::new(Kind::Reply)
        })
    }

    /// The bytes of the long form, with the header's own checksum.
    #[inline]
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut out = [0; HEADER_BYTES];
        out[0] = MAGIC;
        out[1] = self.kind as u8;
        out[2] = self.verb;
        out[3] = self.flags;
        out[8..16].copy_from_slice(&self.id.to_le_bytes());
        out[16..18].copy_from_slice(&self.code.to_le_bytes());
        out[18..20].copy_from_slice(&self.head_len.to_le_bytes());
        out[20..24].copy_from_slice(&self.body_len.to_le_bytes());
        out[24..32].copy_from_slice(&self.collection.to_le_bytes());
        out[32..40].copy_from_slice(&self.version.to_le_bytes());
        out[40..48].copy_from_slice(&self.offset.to_le_bytes());
        out[48..56].copy_from_slice(&self.length.to_le_bytes());
        out[56..60].copy_from_slice(&self.epoch.to_le_bytes());
        out[60..64].copy_from_slice(&self.time_ms.to_le_bytes());
        out[64..66].copy_from_slice(&self.extra.to_le_bytes());
        out[66] = self.hops;
        out[68..72].copy_from_slice(&self.head_crc.to_le_bytes());
        let crc = own_crc(&out);
        out[4..8].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// Decodes and checks a header of the long form: magic, checksum, kind, lengths.
    #[inline]
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Self, WireError> {
        if bytes[0] != MAGIC {
            return Err(WireError::BadMagic(bytes[0]));
        }
        if u32_at(bytes, 4) != own_crc(bytes) {
            return Err(WireError::BadHeaderCrc);
        }
        let header = Self {
            kind: Kind::from_code(bytes[1]).ok_or(WireError::UnknownKind(bytes[1]))?,
            verb: bytes[2],
            flags: bytes[3],
            id: u64_at(bytes, 8),
            code: u16_at(bytes, 16),
            head_len: u16_at(bytes, 18),
            body_len: u32_at(bytes, 20),
            collection: u64_at(bytes, 24),
            version: u64_at(bytes, 32),
            offset: u64_at(bytes, 40),
            length: u64_at(bytes, 48),
            epoch: u32_at(bytes, 56),
            time_ms: u32_at(bytes, 60),
            extra: u16_at(bytes, 64),
            hops: bytes[66],
            head_crc: u32_at(bytes, 68),
            brief: false,
        };
        header.check_lengths()?;
        Ok(header)
    }

    /// Whether the bytes look like a request on the default collection; nothing is checked. One by name is on it
    /// unless its head names another.
    #[inline]
    pub(super) fn may_be_on_default(bytes: &[u8; HEADER_BYTES]) -> bool {
        let on_default = matches!(CollectionId(u64_at(bytes, 24)), CollectionId::DEFAULT | CollectionId::BY_NAME);
        bytes[0] == MAGIC && bytes[1] == Kind::Request as u8 && on_default
    }

    /// Whether head and body keep the limits and suit the kind.
    pub(super) fn check_lengths(&self) -> Result<(), WireError> {
        let (head, body) = (usize::from(self.head_len), self.body_len as usize);
        if head > WIRE_HEAD_MAX_BYTES {
            return Err(WireError::HeadTooLong(head));
        }
        if body > WIRE_FRAME_BODY_MAX_BYTES {
            return Err(WireError::BodyTooLong(body));
        }
        if head > 0 && !self.kind.may_have_head() {
            return Err(WireError::UnexpectedHead(self.kind as u8));
        }
        if body > 0 && !self.kind.may_have_body() {
            return Err(WireError::UnexpectedBody(self.kind as u8));
        }
        if self.has(FLAG_MORE) && !body.is_multiple_of(BLOCK_BYTES) {
            return Err(WireError::BodyNotInBlocks(body));
        }
        Ok(())
    }
}

/// The header's own checksum: of all bytes but the four it stands in.
#[inline]
fn own_crc<const BYTES: usize>(bytes: &[u8; BYTES]) -> u32 {
    let mut moved_up = *bytes;
    moved_up.copy_within(..4, 4);
    crc32c(&moved_up[4..])
}

#[inline]
fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

#[inline]
fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

#[inline]
fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let low = u64::from(u32_at(bytes, at));
    low | (u64::from(u32_at(bytes, at + 4)) << 32)
}
