//! Herd's wire: frames (PROTOCOL.md §1). Pure: bytes in, views of them out.
//!
//! A frame is `header | head | block checksums | body`. The header checks itself, head and block checksums are checked
//! by the header, and the body by the block checksums, so nothing is used before it is known to be what was sent. Most
//! replies on small objects need few of a header's fields: their brief form is 40 bytes shorter.
//!
//! Two ways to read: [`parse_frame`] for a frame that lies whole in a buffer, and [`parse_frame_head`] for one whose
//! body the caller takes straight from the socket to where it belongs, with [`BlockChecks`] beside it. Two ways to
//! write: [`encode_frame`] with the body, and [`encode_frame_head`] for a body that is sent from where it lies.
//! Node and client call this; it knows of no connection. Order and credit of the frames that belong to a request are
//! the business of its [`Asker`]; how two nodes open a link, of [`Dialing`] and [`Accepting`];
//! how a node joins, of [`Joining`] and [`Admitting`].

mod ahead;
mod asker;
mod body;
mod bytes;
mod checks;
mod errand;
mod error;
mod fields;
mod forward;
mod group;
mod header;
mod hello;
mod join;
pub mod lanes;
mod link;
mod list;
mod map;
mod obituary;
mod own;
mod petition;
mod route;
#[cfg(test)]
mod tests;

pub use ahead::{Ahead, Said, is_ahead};
pub use asker::{Answer, Asker, Breach, ID_OF_ACCEPTOR, Side, Started, Wanted};
pub use body::Assembly;
pub use checks::{BlockChecks, FRAME_BLOCKS_MAX, block_checks};
pub use errand::{Errand, ErrandComing, VERB_CONTROL};
pub use error::WireError;
pub use fields::{Between, Fields};
pub use forward::{Asked, Became, Handed, encode_op, value_of};
pub use group::{Answers, Becomes, Delta, GroupMessage, Key, PutOf, Sent, VERB_GROUP, ValueOf};
pub use header::{
    BRIEF_BYTES, BRIEF_MAGIC, CODE_NEWER, FLAG_BRIEF, FLAG_HEAD_ONLY, FLAG_MORE, FLAG_QUIET, FLAG_RANGE,
    GOODBYE_UNREAD, HEADER_BYTES, Header, Kind, LENGTH_UNKNOWN, MAGIC, OFFSET_LAST, SEQUENCE_BITS, SESSION_BITS,
    STATUS_MOVED, Status, Verb, request_id,
};
pub use hello::{Accepting, Dialing, LinkError, LinkErrorKind, PEER_BYTES, PROOF_BYTES, Peer, Secret};
pub use join::{Admitting, Greeting, Joining, decode_joined, encode_joined, wants_in};
pub use link::{Beat, Beats, LinkId, Links, Nonces, VERB_BEAT};
pub use list::{LIST_ENTRY_OVERHEAD_BYTES, ListEntries, ListEntry};
pub use map::{MapMark, MapSent, VERB_MAP};
pub use obituary::{Hearing, Telling, encode_heard, is_obituary};
pub use own::{OWN_BYTES, Own, clock_bytes, clock_told, stamp_at};
pub use petition::{VERB_WARDEN, answer_of, ask_of, encode_answer, encode_ask, is_elsewhere};
pub use route::{Meant, Routes};

use crate::checksum::crc32c;
use crate::key::{CollectionId, name_is_valid};

/// The protocol version spoken here; the highest in hello and welcome.
pub const PROTOCOL_VERSION: u16 = 1;

/// The protocol of links between nodes spoken here. A build with `--cfg herd_next` pretends to be the release after
/// this one, by which it can be shown that the two serve together.
pub const LINK_PROTOCOL: u16 = if cfg!(herd_next) { 2 } else { 1 };

/// The oldest protocol of links spoken here: that of the release before.
pub const LINK_PROTOCOL_LEAST: u16 = 1;

/// A frame without its body: what must be read before anyone can say where the body goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHead<'a> {
    /// The header.
    pub header: Header,
    head: &'a [u8],
    checks: &'a [u8],
}

impl<'a> FrameHead<'a> {
    /// The fields of the head.
    #[inline]
    pub fn fields(&self) -> Result<Fields<'a>, WireError> {
        Fields::decode(self.head)
    }

    /// The checksums of the body's blocks, in order.
    pub fn block_checks(&self) -> impl Iterator<Item = u32> + 'a {
        self.checks.as_chunks::<4>().0.iter().map(|check| u32::from_le_bytes(*check))
    }

    /// A checker for a body that arrives in pieces.
    pub fn checker(&self) -> BlockChecks {
        BlockChecks::new(self.body_bytes(), self.checks)
    }

    /// Bytes of header, head and block checksums: where the body starts.
    #[inline]
    pub fn bytes(&self) -> usize {
        self.header.bytes() + self.head.len() + self.checks.len()
    }

    /// The whole frame, if its body is there; `bytes` are those this head was parsed from.
    #[inline]
    pub fn with_body(self, bytes: &'a [u8]) -> Option<Frame<'a>> {
        let (body, _) = bytes[self.bytes()..].split_at_checked(self.body_bytes())?;
        Some(Frame { head: self, body })
    }

    /// Bytes of the body that follows.
    #[inline]
    pub fn body_bytes(&self) -> usize {
        self.header.body_len as usize
    }
}

/// A whole frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// All but the body.
    pub head: FrameHead<'a>,
    body: &'a [u8],
}

impl<'a> Frame<'a> {
    /// The header.
    #[inline]
    pub fn header(&self) -> &Header {
        &self.head.header
    }

    /// The fields of the head.
    #[inline]
    pub fn fields(&self) -> Result<Fields<'a>, WireError> {
        self.head.fields()
    }

    /// The body, once its blocks have passed their checks.
    #[inline]
    pub fn body(&self) -> Result<&'a [u8], WireError> {
        for (index, (expected, found)) in self.head.block_checks().zip(block_checks(self.body)).enumerate() {
            if expected != found {
                return Err(WireError::BadBlock(index));
            }
        }
        Ok(self.body)
    }

    /// Bytes of the whole frame.
    #[inline]
    pub fn bytes(&self) -> usize {
        self.head.bytes() + self.body.len()
    }
}

/// The header at the start of `bytes`; `None` while it is incomplete. A wrong first byte is told at once.
#[inline]
pub fn parse_header(bytes: &[u8]) -> Result<Option<Header>, WireError> {
    match bytes.first() {
        Some(&MAGIC) => bytes.first_chunk().map(Header::decode).transpose(),
        Some(&BRIEF_MAGIC) => bytes.first_chunk().map(Header::decode_brief).transpose(),
        Some(&first) => Err(WireError::BadMagic(first)),
        None => Ok(None),
    }
}

/// The frame at the start of `bytes` up to its body; `None` while that much is not there.
#[inline]
pub fn parse_frame_head(bytes: &[u8]) -> Result<Option<FrameHead<'_>>, WireError> {
    let Some(header) = parse_header(bytes)? else { return Ok(None) };
    let Some((middle, _)) = bytes[header.bytes()..].split_at_checked(header.middle_bytes()) else { return Ok(None) };
    // The one checksum that may stand in a brief reply is as good as the block it is compared with.
    let crc = if middle.is_empty() || header.brief { 0 } else { crc32c(middle) };
    if crc != header.head_crc {
        return Err(WireError::BadHeadCrc);
    }
    let (head, checks) = middle.split_at(usize::from(header.head_len));
    Ok(Some(FrameHead { header, head, checks }))
}

/// The whole frame at the start of `bytes`; `None` while it is incomplete. The blocks of its body are checked by
/// [`Frame::body`].
#[inline]
pub fn parse_frame(bytes: &[u8]) -> Result<Option<Frame<'_>>, WireError> {
    Ok(parse_frame_head(bytes)?.and_then(|head| head.with_body(bytes)))
}

/// The name in a request that has just arrived, if it may be on the default collection and is its first field: a guess,
/// unchecked, to fetch what serving it will need.
#[inline]
pub fn foresee(bytes: &[u8]) -> Option<&[u8]> {
    let (header, head) = bytes.split_first_chunk::<HEADER_BYTES>()?;
    let ([fields::NAME, low, high, rest @ ..], true) = (head, Header::may_be_on_default(header)) else { return None };
    rest.get(..usize::from(u16::from_le_bytes([*low, *high]))).filter(|name| name_is_valid(name))
}

/// What of a message that has just arrived may be fetched ahead: an object, by collection and name.
pub type ForeseenObject<'a> = (CollectionId, &'a [u8]);

/// As [`foresee`], of a message of a replica group: bytes of its frame, and the object it is about. `None`: it is no
/// such frame.
pub fn foresee_group(bytes: &[u8]) -> Option<(usize, Option<ForeseenObject<'_>>)> {
    let header = parse_header(bytes).ok()??;
    let (head, frame_bytes) = (bytes.get(header.bytes()..)?, header.frame_bytes());
    if header.verb != VERB_GROUP {
        return None;
    }
    let [fields::NAME, low, high, rest @ ..] = head else { return Some((frame_bytes, None)) };
    let name = rest.get(..usize::from(u16::from_le_bytes([*low, *high]))).filter(|name| name_is_valid(name));
    Some((frame_bytes, name.map(|name| (CollectionId(header.collection), name))))
}

/// Appends header, head and block checksums of a frame whose body of `body_bytes` the caller sends right behind, with
/// `checks` one for each of its blocks. Lengths and checksums in `header` are filled in here; a reply that may be brief
/// is so where that form tells all of it. On an error `out` is as it was.
#[inline]
pub fn encode_frame_head(
    out: &mut Vec<u8>,
    mut header: Header,
    fields: &Fields<'_>,
    body_bytes: usize,
    checks: impl IntoIterator<Item = u32>,
) -> Result<(), WireError> {
    (header.head_len, header.body_len) =
        (0, u32::try_from(body_bytes).map_err(|_| WireError::BodyTooLong(body_bytes))?);
    if header.brief && header.fits_brief() && fields.is_empty() {
        out.extend_from_slice(&header.encode_brief());
        append_checks(out, &header, checks);
        return Ok(());
    }
    let start = out.len();
    out.extend_from_slice(&[0; HEADER_BYTES]);
    let middle = start + HEADER_BYTES;
    let encoded = fields.encode(out).and_then(|()| {
        header.head_len = (out.len() - middle) as u16;
        header.check_lengths()
    });
    if let Err(error) = encoded {
        out.truncate(start);
        return Err(error);
    }
    append_checks(out, &header, checks);
    header.head_crc = if out.len() == middle { 0 } else { crc32c(&out[middle..]) };
    out[start..middle].copy_from_slice(&header.encode());
    Ok(())
}

#[inline]
fn append_checks(out: &mut Vec<u8>, header: &Header, checks: impl IntoIterator<Item = u32>) {
    let before = out.len();
    checks.into_iter().for_each(|check| out.extend_from_slice(&check.to_le_bytes()));
    assert!(out.len() - before == 4 * header.blocks(), "one checksum for each block");
}

/// Appends a whole frame. On an error `out` is as it was.
#[inline]
pub fn encode_frame(out: &mut Vec<u8>, header: Header, fields: &Fields<'_>, body: &[u8]) -> Result<(), WireError> {
    encode_frame_head(out, header, fields, body.len(), block_checks(body))?;
    out.extend_from_slice(body);
    Ok(())
}
