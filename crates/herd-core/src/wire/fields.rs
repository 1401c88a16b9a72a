//! The head of a frame: a sequence of tagged fields (PROTOCOL.md §1.2).
//!
//! One struct serves both ways: it borrows what it holds, decoding is one pass without allocation, and encoding
//! appends to a buffer the caller reuses.

use super::error::WireError;
use super::hello::PROOF_BYTES;
use crate::entry::TOKEN_BYTES;
use crate::limits::{
    ATTRIBUTES_MAX_BYTES, COLLECTION_NAME_MAX_BYTES, ERROR_TEXT_MAX_BYTES, GROUP_ANSWERS_MAX_BYTES, NAME_MAX_BYTES,
    WIRE_HEAD_MAX_BYTES, WIRE_JOIN_MAX_BYTES, WIRE_PEER_MAX_BYTES,
};

pub(super) const NAME: u8 = 1;
const TTL: u8 = 2;
const FLAGS: u8 = 3;
const ATTRIBUTES: u8 = 4;
const COLLECTION: u8 = 5;
const SPEC: u8 = 6;
const ERROR: u8 = 7;
const PREFIX: u8 = 8;
const AFTER: u8 = 9;
const LIMIT: u8 = 10;
const METHOD: u8 = 11;
const FEATURES: u8 = 12;
const HIGHEST_VERSION: u8 = 13;
const SESSION: u8 = 14;
const NODE: u8 = 15;
const EXPIRES: u8 = 16;
const CHECKSUM: u8 = 17;
const TOKEN: u8 = 18;
const PEER: u8 = 19;
const PROOF: u8 = 20;
pub(super) const JOIN: u8 = 21;
const JOINED: u8 = 22;
pub(super) const MAP: u8 = 23;
pub(super) const ASKED: u8 = 24;
pub(super) const BECAME: u8 = 25;
pub(super) const GROUP: u8 = 26;
pub(super) const ANSWERED: u8 = 27;
pub(super) const MEANT: u8 = 28;
pub(super) const ROUTES: u8 = 29;
const OBITUARY: u8 = 30;
pub(super) const OWN: u8 = 31;

/// Bytes of tag and length before each value.
const FIELD_BYTES: usize = 3;

/// The fields of a head; what is `None` is not there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fields<'a> {
    /// Object name, 1 to [`NAME_MAX_BYTES`] bytes.
    pub name: Option<&'a [u8]>,
    /// Time to live, ms.
    pub ttl_ms: Option<u64>,
    /// Opaque flags of the client.
    pub flags: Option<u32>,
    /// Encoded attributes, see [`crate::attributes`].
    pub attributes: Option<&'a [u8]>,
    /// Collection name, 1 to [`COLLECTION_NAME_MAX_BYTES`] bytes.
    pub collection: Option<&'a str>,
    /// Collection specification, JSON of [`crate::collection::Spec`].
    pub spec: Option<&'a str>,
    /// What a person should read of an error.
    pub error: Option<&'a str>,
    /// List: names that start so; at most [`NAME_MAX_BYTES`].
    pub prefix: Option<&'a [u8]>,
    /// List: names after this one; at most [`NAME_MAX_BYTES`].
    pub after: Option<&'a [u8]>,
    /// List: names wanted.
    pub limit: Option<u32>,
    /// Execute: method.
    pub method: Option<&'a str>,
    /// Hello and welcome: feature bits.
    pub features: Option<u64>,
    /// Hello and welcome: highest protocol version spoken.
    pub highest_version: Option<u16>,
    /// Welcome: bits 40 to 62 of request ids.
    pub session: Option<u32>,
    /// Welcome: node name and build.
    pub node: Option<&'a str>,
    /// When the object expires, ms since 1970.
    pub expires_ms: Option<u64>,
    /// Checksum of the whole value (reply to a HEAD_ONLY get): of its bytes up to 64 KiB, else of its blocks' list.
    pub checksum: Option<u32>,
    /// Token of a lock ([`crate::entry::Token`]) that is shown with a request.
    pub token: Option<&'a [u8; TOKEN_BYTES]>,
    /// Hello and welcome of a link: what the node says of itself ([`super::Peer`]).
    pub peer: Option<&'a [u8]>,
    /// Welcome and second hello of a link: that its sender knows the herd's secret.
    pub proof: Option<&'a [u8; PROOF_BYTES]>,
    /// What only nodes, and Herd's own clients, say to each other; one of its kinds at most.
    pub between: Option<Between<'a>>,
    /// Message of a replica group: the requests that a write answers ([`super::Answers`]).
    pub answered: Option<&'a [u8]>,
}

/// What only nodes, and Herd's own clients, say to each other: the bytes of one field, read by the module of
/// what they are about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Between<'a> {
    /// First hello of a join, and its answer (`join.rs`).
    Join(&'a [u8]),
    /// A node was let in (`join.rs`).
    Joined(&'a [u8]),
    /// Which map a node has, or sends (`map.rs`).
    Map(&'a [u8]),
    /// Who asks what is handed on (`forward.rs`).
    Asked(&'a [u8]),
    /// What became of the object of a request that was handed on (`forward.rs`).
    Became(&'a [u8]),
    /// Message of a replica group (`group.rs`).
    Group(&'a [u8]),
    /// The node that a client's hello means (`route.rs`).
    Meant(&'a [u8]),
    /// What a client is told besides the map (`route.rs`).
    Routes(&'a [u8]),
    /// First hello of a witness, and that it was heard (`obituary.rs`).
    Obituary(&'a [u8]),
    /// The id that a client gives its request, and by what clock it counts (`own.rs`).
    Own(&'a [u8]),
}

impl<'a> Between<'a> {
    /// Its tag and its bytes.
    fn parts(self) -> (u8, &'a [u8]) {
        match self {
            Between::Join(bytes) => (JOIN, bytes),
            Between::Joined(bytes) => (JOINED, bytes),
            Between::Map(bytes) => (MAP, bytes),
            Between::Asked(bytes) => (ASKED, bytes),
            Between::Became(bytes) => (BECAME, bytes),
            Between::Group(bytes) => (GROUP, bytes),
            Between::Meant(bytes) => (MEANT, bytes),
            Between::Routes(bytes) => (ROUTES, bytes),
            Between::Obituary(bytes) => (OBITUARY, bytes),
            Between::Own(bytes) => (OWN, bytes),
        }
    }

    /// That of a tag; `None` if the tag is another's.
    fn of(tag: u8, bytes: &'a [u8]) -> Option<Self> {
        Some(match tag {
            JOIN => Between::Join(bytes),
            JOINED => Between::Joined(bytes),
            MAP => Between::Map(bytes),
            ASKED => Between::Asked(bytes),
            BECAME => Between::Became(bytes),
            GROUP => Between::Group(bytes),
            MEANT => Between::Meant(bytes),
            ROUTES => Between::Routes(bytes),
            OBITUARY => Between::Obituary(bytes),
            OWN => Between::Own(bytes),
            _ => return None,
        })
    }
}

impl<'a> Fields<'a> {
    /// Only a name, as most requests have it.
    #[inline]
    pub fn named(name: &'a [u8]) -> Self {
        Self { name: Some(name), ..Self::default() }
    }

    /// Only an error text, of which [`ERROR_TEXT_MAX_BYTES`] are told.
    pub fn failed(error: &'a str) -> Self {
        let text = &error[..error.floor_char_boundary(ERROR_TEXT_MAX_BYTES)];
        Self { error: Some(text), ..Self::default() }
    }

    /// Whether there is none. Each is looked at by itself: where the caller has just set them, the compiler knows.
    #[inline]
    pub fn is_empty(&self) -> bool {
        #[rustfmt::skip]
        let Self {
            name, ttl_ms, flags, attributes, collection, spec, error, prefix, after, limit, method, features,
            highest_version, session, node, expires_ms, checksum, token, peer, proof, between,
            answered,
        } = self;
        let bytes = [name, attributes, prefix, after, peer, answered];
        let texts = [collection, spec, error, method, node];
        bytes.iter().all(|field| field.is_none())
            && texts.iter().all(|field| field.is_none())
            && [ttl_ms, features, expires_ms].iter().all(|field| field.is_none())
            && [flags, limit, session, checksum].iter().all(|field| field.is_none())
            && highest_version.is_none()
            && token.is_none()
            && proof.is_none()
            && between.is_none()
    }

    /// Decodes a head. Unknown tags are skipped; a known one that stands there twice is refused.
    #[inline]
    pub fn decode(mut head: &'a [u8]) -> Result<Self, WireError> {
        let mut fields = Self::default();
        let mut seen = 0u32;
        while let [tag, low, high, rest @ ..] = head {
            let length = usize::from(u16::from_le_bytes([*low, *high]));
            let (value, after) = rest.split_at_checked(length).ok_or(WireError::CutShort)?;
            if fields.take(*tag, value)? {
                if seen & (1 << tag) != 0 {
                    return Err(WireError::FieldTwice(*tag));
                }
                seen |= 1 << tag;
            }
            head = after;
        }
        if head.is_empty() { Ok(fields) } else { Err(WireError::CutShort) }
    }

    /// Takes one field in; whether its tag is known (and so below 32).
    #[inline]
    fn take(&mut self, tag: u8, value: &'a [u8]) -> Result<bool, WireError> {
        match tag {
            NAME => self.name = Some(sized(tag, value)?),
            TTL => self.ttl_ms = Some(u64::from_le_bytes(fixed(tag, value)?)),
            FLAGS => self.flags = Some(u32::from_le_bytes(fixed(tag, value)?)),
            ATTRIBUTES => self.attributes = Some(sized(tag, value)?),
            COLLECTION => self.collection = Some(text(tag, sized(tag, value)?)?),
            SPEC => self.spec = Some(text(tag, value)?),
            ERROR => self.error = Some(text(tag, value)?),
            PREFIX => self.prefix = Some(sized(tag, value)?),
            AFTER => self.after = Some(sized(tag, value)?),
            LIMIT => self.limit = Some(u32::from_le_bytes(fixed(tag, value)?)),
            METHOD => self.method = Some(text(tag, value)?),
            FEATURES => self.features = Some(u64::from_le_bytes(fixed(tag, value)?)),
            HIGHEST_VERSION => self.highest_version = Some(u16::from_le_bytes(fixed(tag, value)?)),
            SESSION => self.session = Some(u32::from_le_bytes(fixed(tag, value)?)),
            NODE => self.node = Some(text(tag, value)?),
            EXPIRES => self.expires_ms = Some(u64::from_le_bytes(fixed(tag, value)?)),
            CHECKSUM => self.checksum = Some(u32::from_le_bytes(fixed(tag, value)?)),
            TOKEN => self.token = Some(value.try_into().map_err(|_| field_length(tag, value))?),
            PEER => self.peer = Some(sized(tag, value)?),
            PROOF => self.proof = Some(value.try_into().map_err(|_| field_length(tag, value))?),
            ANSWERED => self.answered = Some(sized(tag, value)?),
            _ => match Between::of(tag, value) {
                None => return Ok(false),
                Some(_) if self.between.is_some() => return Err(WireError::FieldTwice(tag)),
                between => {
                    sized(tag, value)?;
                    self.between = between;
                }
            },
        }
        Ok(true)
    }

    /// Appends the head to `out`; on an error `out` is as it was.
    #[inline]
    pub fn encode(&self, out: &mut Vec<u8>) -> Result<(), WireError> {
        let start = out.len();
        let result = self.append(out).and_then(|()| match out.len() - start {
            bytes if bytes > WIRE_HEAD_MAX_BYTES => Err(WireError::HeadTooLong(bytes)),
            _ => Ok(()),
        });
        if result.is_err() {
            out.truncate(start);
        }
        result
    }

    #[inline]
    fn append(&self, out: &mut Vec<u8>) -> Result<(), WireError> {
        put(out, NAME, self.name)?;
        put(out, TTL, self.ttl_ms.map(u64::to_le_bytes))?;
        put(out, FLAGS, self.flags.map(u32::to_le_bytes))?;
        put(out, ATTRIBUTES, self.attributes)?;
        put(out, COLLECTION, self.collection)?;
        put(out, SPEC, self.spec)?;
        put(out, ERROR, self.error)?;
        put(out, PREFIX, self.prefix)?;
        put(out, AFTER, self.after)?;
        put(out, LIMIT, self.limit.map(u32::to_le_bytes))?;
        put(out, METHOD, self.method)?;
        put(out, FEATURES, self.features.map(u64::to_le_bytes))?;
        put(out, HIGHEST_VERSION, self.highest_version.map(u16::to_le_bytes))?;
        put(out, SESSION, self.session.map(u32::to_le_bytes))?;
        put(out, NODE, self.node)?;
        put(out, EXPIRES, self.expires_ms.map(u64::to_le_bytes))?;
        put(out, CHECKSUM, self.checksum.map(u32::to_le_bytes))?;
        put(out, TOKEN, self.token)?;
        put(out, PEER, self.peer)?;
        put(out, PROOF, self.proof)?;
        put(out, ANSWERED, self.answered)?;
        match self.between.map(Between::parts) {
            Some((tag, value)) => put(out, tag, Some(value)),
            None => Ok(()),
        }
    }
}

/// Appends one field, if there is one; its length is checked as the decoder will.
#[inline]
fn put(out: &mut Vec<u8>, tag: u8, value: Option<impl AsRef<[u8]>>) -> Result<(), WireError> {
    let Some(value) = value else { return Ok(()) };
    let value = sized(tag, value.as_ref())?;
    let length = (value.len() as u16).to_le_bytes();
    out.extend_from_slice(&[tag, length[0], length[1]]);
    out.extend_from_slice(value);
    Ok(())
}

/// Least and most bytes of a field of variable length.
#[inline]
fn bounds(tag: u8) -> (usize, usize) {
    match tag {
        NAME => (1, NAME_MAX_BYTES),
        ATTRIBUTES => (0, ATTRIBUTES_MAX_BYTES),
        COLLECTION => (1, COLLECTION_NAME_MAX_BYTES),
        PREFIX | AFTER => (0, NAME_MAX_BYTES),
        PEER => (0, WIRE_PEER_MAX_BYTES),
        JOIN => (0, WIRE_JOIN_MAX_BYTES),
        ANSWERED => (0, GROUP_ANSWERS_MAX_BYTES),
        _ => (0, WIRE_HEAD_MAX_BYTES - FIELD_BYTES),
    }
}

#[inline]
fn sized(tag: u8, value: &[u8]) -> Result<&[u8], WireError> {
    let (least, most) = bounds(tag);
    match value.len() {
        length if (least..=most).contains(&length) => Ok(value),
        length_bytes => Err(WireError::FieldLength { tag, length_bytes }),
    }
}

#[inline]
fn fixed<const N: usize>(tag: u8, value: &[u8]) -> Result<[u8; N], WireError> {
    value.try_into().map_err(|_| field_length(tag, value))
}

#[cold]
fn field_length(tag: u8, value: &[u8]) -> WireError {
    WireError::FieldLength { tag, length_bytes: value.len() }
}

#[inline]
fn text(tag: u8, value: &[u8]) -> Result<&str, WireError> {
    std::str::from_utf8(value).map_err(|_| WireError::NotText(tag))
}
