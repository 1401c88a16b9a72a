//! Herd's wire, version 1, from the client's side, written from PROTOCOL.md §1: headers, heads and checksums.
//!
//! No state and no sockets. Used by the small-operation client ([`crate::proto::herd`]), the bulk client
//! ([`crate::bulk`]) and the null server.

use crc_fast::{CrcAlgorithm, checksum};

/// Bytes of a frame header.
pub(crate) const HEADER_BYTES: usize = 72;
/// Bytes of a brief reply's header.
pub(crate) const BRIEF_BYTES: usize = 32;
/// Bytes a block checksum covers.
pub(crate) const BLOCK_BYTES: usize = 65_536;
/// Largest body of one frame.
pub(crate) const FRAME_BODY_MAX: usize = 1 << 20;
/// Body bytes that may be sent before any credit.
pub(crate) const FIRST_CREDIT_BYTES: u64 = 4 << 20;
/// "Unknown", "to the end", "the whole rest".
pub(crate) const ALL: u64 = u64::MAX;
/// Id of collection `default`.
pub(crate) const DEFAULT_COLLECTION: u64 = 2;
const MAGIC: u8 = 0xce;
const BRIEF_MAGIC: u8 = 0xcf;
const HEAD_MAX: usize = 8_192;

/// Frame kinds the lab sends or expects.
pub(crate) mod kind {
    pub(crate) const HELLO: u8 = 1;
    pub(crate) const WELCOME: u8 = 2;
    pub(crate) const REQUEST: u8 = 3;
    pub(crate) const REPLY: u8 = 4;
    pub(crate) const DATA: u8 = 5;
    pub(crate) const CREDIT: u8 = 6;
    pub(crate) const GOODBYE: u8 = 8;
}

/// Verbs the lab uses.
pub(crate) mod verb {
    pub(crate) const GET: u8 = 1;
    pub(crate) const PUT: u8 = 2;
    pub(crate) const REMOVE: u8 = 3;
    pub(crate) const EXECUTE: u8 = 4;
    pub(crate) const CREATE: u8 = 5;
    pub(crate) const DESTROY: u8 = 6;
    pub(crate) const LIST: u8 = 7;
    pub(crate) const MAP: u8 = 17;
}

/// Flag bits the lab uses.
pub(crate) mod flag {
    pub(crate) const MORE: u8 = 1;
    pub(crate) const RANGE: u8 = 4;
    pub(crate) const BRIEF: u8 = 16;
}

/// Conditions of a request that the lab uses.
pub(crate) mod condition {
    pub(crate) const IF_ABSENT: u16 = 1;
    pub(crate) const IF_VERSION: u16 = 3;
}

/// Statuses of a reply that the lab tells apart.
pub(crate) mod status {
    pub(crate) const OK: u16 = 0;
    pub(crate) const NOT_FOUND: u16 = 1;
    pub(crate) const CONDITION_FAILED: u16 = 2;
    pub(crate) const TOO_LARGE: u16 = 6;
    pub(crate) const FULL: u16 = 7;
    pub(crate) const QUOTA: u16 = 8;
    pub(crate) const BUSY: u16 = 12;
    pub(crate) const NOT_ALLOWED: u16 = 14;
    pub(crate) const UNREACHABLE: u16 = 16;
}

/// Head fields the lab uses.
pub(crate) mod tag {
    pub(crate) const NAME: u8 = 1;
    pub(crate) const COLLECTION: u8 = 5;
    pub(crate) const SPECIFICATION: u8 = 6;
    pub(crate) const ERROR: u8 = 7;
    pub(crate) const PREFIX: u8 = 8;
    pub(crate) const METHOD: u8 = 11;
    pub(crate) const FEATURES: u8 = 12;
    pub(crate) const VERSION: u8 = 13;
    pub(crate) const SESSION: u8 = 14;
    pub(crate) const TOKEN: u8 = 18;
    pub(crate) const ROUTES: u8 = 29;
}

/// The header's fields that the lab sets or reads; the others are zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) kind: u8,
    pub(crate) verb: u8,
    pub(crate) flags: u8,
    pub(crate) id: u64,
    pub(crate) code: u16,
    pub(crate) head_len: u16,
    pub(crate) body_len: u32,
    pub(crate) collection: u64,
    pub(crate) version: u64,
    pub(crate) offset: u64,
    pub(crate) length: u64,
    pub(crate) head_crc: u32,
    /// A brief reply.
    pub(crate) brief: bool,
}

/// CRC-32C of `bytes`.
pub(crate) fn crc32c(bytes: &[u8]) -> u32 {
    checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// CRC-32C of the header's bytes 0..4 and from 8 on (of `bytes`, a whole header).
fn header_crc(bytes: &[u8]) -> u32 {
    let mut covered = [0; HEADER_BYTES - 4];
    covered[..4].copy_from_slice(&bytes[..4]);
    covered[4..bytes.len() - 4].copy_from_slice(&bytes[8..]);
    crc32c(&covered[..bytes.len() - 4])
}

fn le16(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn le32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn le64(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

impl Header {
    /// The header's bytes with their checksum.
    pub(crate) fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut out = [0; HEADER_BYTES];
        out[..4].copy_from_slice(&[MAGIC, self.kind, self.verb, self.flags]);
        out[8..16].copy_from_slice(&self.id.to_le_bytes());
        out[16..18].copy_from_slice(&self.code.to_le_bytes());
        out[18..20].copy_from_slice(&self.head_len.to_le_bytes());
        out[20..24].copy_from_slice(&self.body_len.to_le_bytes());
        out[24..32].copy_from_slice(&self.collection.to_le_bytes());
        out[32..40].copy_from_slice(&self.version.to_le_bytes());
        out[40..48].copy_from_slice(&self.offset.to_le_bytes());
        out[48..56].copy_from_slice(&self.length.to_le_bytes());
        out[68..72].copy_from_slice(&self.head_crc.to_le_bytes());
        let crc = header_crc(&out);
        out[4..8].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// The bytes of a brief reply, of no or one block, with their checksum.
    pub(crate) fn encode_brief(&self) -> [u8; BRIEF_BYTES] {
        let mut out = [0; BRIEF_BYTES];
        out[..2].copy_from_slice(&[BRIEF_MAGIC, self.verb]);
        out[2..4].copy_from_slice(&u16::try_from(self.body_len).expect("below one block").to_le_bytes());
        out[8..16].copy_from_slice(&self.id.to_le_bytes());
        out[16..24].copy_from_slice(&self.version.to_le_bytes());
        out[30] = u8::try_from(self.code).expect("one byte");
        let crc = header_crc(&out);
        out[4..8].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// Reads the header at the start of `bytes`, checking magic and limits but not the checksum; none while it is not
    /// whole.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Option<Self>, String> {
        let Some(&first) = bytes.first() else { return Ok(None) };
        match first {
            MAGIC if bytes.len() < HEADER_BYTES => return Ok(None),
            BRIEF_MAGIC if bytes.len() < BRIEF_BYTES => return Ok(None),
            BRIEF_MAGIC => return Ok(Some(Self::decode_brief(bytes))),
            MAGIC => {}
            other => return Err(format!("frame starts with {other:#04x}, not the magic")),
        }
        let header = Self {
            kind: bytes[1],
            verb: bytes[2],
            flags: bytes[3],
            id: le64(bytes, 8),
            code: le16(bytes, 16),
            head_len: le16(bytes, 18),
            body_len: le32(bytes, 20),
            collection: le64(bytes, 24),
            version: le64(bytes, 32),
            offset: le64(bytes, 40),
            length: le64(bytes, 48),
            head_crc: le32(bytes, 68),
            brief: false,
        };
        if header.head_len as usize > HEAD_MAX || header.body_len as usize > FRAME_BODY_MAX {
            return Err(format!("frame over its limits: head {}, body {}", header.head_len, header.body_len));
        }
        Ok(Some(header))
    }

    fn decode_brief(bytes: &[u8]) -> Self {
        let body_len = le16(bytes, 2);
        Self {
            kind: kind::REPLY,
            verb: bytes[1],
            id: le64(bytes, 8),
            code: u16::from(bytes[30]),
            body_len: u32::from(body_len),
            version: le64(bytes, 16),
            length: u64::from(body_len),
            brief: true,
            ..Self::default()
        }
    }

    /// Bytes of the header itself.
    pub(crate) fn bytes(&self) -> usize {
        if self.brief { BRIEF_BYTES } else { HEADER_BYTES }
    }

    /// Block checksums in this frame.
    pub(crate) fn blocks(&self) -> usize {
        (self.body_len as usize).div_ceil(BLOCK_BYTES)
    }

    /// Bytes of header, head and block checksums: where the body starts.
    pub(crate) fn body_start(&self) -> usize {
        self.bytes() + self.head_len as usize + 4 * self.blocks()
    }

    /// The head of a frame, from its start on.
    pub(crate) fn head<'a>(&self, frame: &'a [u8]) -> &'a [u8] {
        &frame[self.bytes()..][..self.head_len as usize]
    }

    /// True when further data frames of this body follow.
    pub(crate) fn more(&self) -> bool {
        self.flags & flag::MORE != 0
    }
}

/// Checks both checksums of a frame's start: `bytes` holds at least header, head and block checksums.
pub(crate) fn check_start(header: &Header, bytes: &[u8]) -> Result<(), String> {
    if header_crc(&bytes[..header.bytes()]) != le32(bytes, 4) {
        return Err("header checksum is wrong".into());
    }
    if header.brief {
        return Ok(());
    }
    let covered = &bytes[HEADER_BYTES..header.body_start()];
    let head_crc = if covered.is_empty() { 0 } else { crc32c(covered) };
    if head_crc == header.head_crc { Ok(()) } else { Err("head checksum is wrong".into()) }
}

/// The checksum of block `index` of a frame, from its start as for [`check_start`].
pub(crate) fn block_crc(header: &Header, bytes: &[u8], index: usize) -> u32 {
    le32(bytes, header.bytes() + header.head_len as usize + 4 * index)
}

/// Appends one head field.
pub(crate) fn append_field(out: &mut Vec<u8>, tag: u8, value: &[u8]) {
    let len = u16::try_from(value.len()).expect("head fields are below 64 KiB");
    out.push(tag);
    out.extend_from_slice(&len.to_le_bytes());
    out.extend_from_slice(value);
}

/// The value of the first field `tag` of a head.
pub(crate) fn find_field(mut head: &[u8], wanted: u8) -> Option<&[u8]> {
    while head.len() >= 3 {
        let len = le16(head, 1) as usize;
        let value = head.get(3..3 + len)?;
        if head[0] == wanted {
            return Some(value);
        }
        head = &head[3 + len..];
    }
    None
}

/// Appends a frame's header (brief or long, as it says), `head` and `block_crcs`; the caller appends the body of
/// `header.body_len` bytes.
pub(crate) fn append_start(out: &mut Vec<u8>, mut header: Header, head: &[u8], block_crcs: &[u32]) {
    header.head_len = u16::try_from(head.len()).expect("heads are at most 8,192 bytes");
    debug_assert_eq!(header.blocks(), block_crcs.len());
    let start = out.len();
    out.resize(start + header.bytes(), 0);
    out.extend_from_slice(head);
    for crc in block_crcs {
        out.extend_from_slice(&crc.to_le_bytes());
    }
    if header.brief {
        assert!(head.is_empty(), "a brief reply has no head");
        out[start..start + BRIEF_BYTES].copy_from_slice(&header.encode_brief());
        return;
    }
    let covered = &out[start + HEADER_BYTES..];
    header.head_crc = if covered.is_empty() { 0 } else { crc32c(covered) };
    out[start..start + HEADER_BYTES].copy_from_slice(&header.encode());
}

/// The opener's first frame.
pub(crate) fn hello() -> Vec<u8> {
    let mut head = Vec::new();
    append_field(&mut head, tag::FEATURES, &0u64.to_le_bytes());
    append_field(&mut head, tag::VERSION, &1u16.to_le_bytes());
    let mut out = Vec::new();
    append_start(&mut out, Header { kind: kind::HELLO, ..Header::default() }, &head, &[]);
    out
}

/// What a frame that is not an ok reply says, for messages.
pub(crate) fn explain(header: &Header, head: &[u8]) -> String {
    let text = find_field(head, tag::ERROR).map_or_else(String::new, |text| String::from_utf8_lossy(text).into_owned());
    match header.kind {
        kind::GOODBYE => format!("goodbye: {text}"),
        kind::REPLY => format!("status {} {text}", header.code),
        other => format!("unexpected frame of kind {other}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crc_is_castagnoli() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }

    #[test]
    fn headers_round_trip_and_lie_where_the_protocol_says() {
        let header = Header {
            kind: kind::REQUEST,
            verb: verb::PUT,
            flags: flag::MORE,
            id: 0x0102_0304_0506_0708,
            code: 2,
            body_len: 70_000,
            length: 9,
            ..Header::default()
        };
        let mut out = Vec::new();
        append_start(&mut out, header, b"\x01\x01\x00k", &[7, 8]);
        let read = Header::decode(&out).expect("a good header").expect("whole");
        assert_eq!((read.head_len, read.blocks(), read.body_start()), (4, 2, 84));
        assert_eq!(Header { head_len: 0, head_crc: 0, ..read }, header);
        check_start(&read, &out).expect("good checksums");
        assert_eq!((out[0], out[2], out[8], out[20], out[48]), (0xce, 2, 8, 0x70, 9));
        assert_eq!(block_crc(&read, &out, 1), 8);
        out[50] ^= 1;
        assert!(check_start(&read, &out).is_err());
    }

    #[test]
    fn brief_replies_lie_where_the_protocol_says() {
        let header = Header {
            kind: kind::REPLY,
            verb: verb::GET,
            id: 0x0102_0304_0506_0708,
            code: 1,
            body_len: 3,
            length: 3,
            version: 9,
            brief: true,
            ..Header::default()
        };
        let mut out = Vec::new();
        append_start(&mut out, header, &[], &[0x0a0b_0c0d]);
        assert_eq!((out.len(), out[0], out[1], out[2], out[8], out[16], out[30]), (36, 0xcf, 1, 3, 8, 9, 1));
        assert_eq!(Header::decode(&out), Ok(Some(header)));
        assert_eq!(Header::decode(&out[..31]), Ok(None));
        assert_eq!((header.body_start(), block_crc(&header, &out, 0)), (36, 0x0a0b_0c0d));
        check_start(&header, &out).expect("a good checksum");
        out[16] ^= 1;
        assert!(check_start(&header, &out).is_err());
    }

    #[test]
    fn fields_are_found_behind_unknown_ones() {
        let mut head = Vec::new();
        append_field(&mut head, 200, b"later");
        append_field(&mut head, tag::NAME, b"k");
        assert_eq!(find_field(&head, tag::NAME), Some(&b"k"[..]));
        assert_eq!(find_field(&head, tag::ERROR), None);
        assert_eq!(find_field(&head[..6], 200), None);
    }

    #[test]
    fn limits_are_checked() {
        let bytes = Header { body_len: (1 << 20) + 1, ..Header::default() }.encode();
        assert!(Header::decode(&bytes).is_err());
        assert!(Header::decode(&[0; HEADER_BYTES]).is_err());
    }
}
