//! Why bytes are not a frame of the wire.

use crate::error::{Error, ErrorKind};
use std::fmt;

/// A breach of the wire's rules. All but [`WireError::BadBlock`] end the connection: after them nobody knows where
/// the next frame starts, or the peer speaks another version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WireError {
    /// The first byte is not the magic.
    BadMagic(u8),
    /// The header fails its checksum.
    BadHeaderCrc,
    /// No such kind of frame.
    UnknownKind(u8),
    /// The head is over [`crate::limits::WIRE_HEAD_MAX_BYTES`].
    HeadTooLong(usize),
    /// The body is over [`crate::limits::WIRE_FRAME_BODY_MAX_BYTES`].
    BodyTooLong(usize),
    /// More data frames follow, and this one does not end with a whole block.
    BodyNotInBlocks(usize),
    /// This kind of frame has no body.
    UnexpectedBody(u8),
    /// This kind of frame has no head.
    UnexpectedHead(u8),
    /// Head and block checksums fail their checksum.
    BadHeadCrc,
    /// A field of the head, or an entry of a list, ends behind its container.
    CutShort,
    /// A field of fixed or bounded length has another one.
    FieldLength {
        /// Tag of the field.
        tag: u8,
        /// Bytes it has.
        length_bytes: usize,
    },
    /// The field stands in the head twice.
    FieldTwice(u8),
    /// The field must be UTF-8.
    NotText(u8),
    /// What a field between nodes holds does not go together.
    BadField(u8),
    /// The frame does not go on where the one before it of the same body ended, or ends it too early or too late.
    BodyBroken,
    /// A block of the body, counted within its frame, fails its checksum.
    BadBlock(usize),
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            WireError::BadMagic(byte) => write!(f, "frame starts with {byte:#04x} instead of 0xce or 0xcf"),
            WireError::BadHeaderCrc => f.write_str("frame header fails its checksum"),
            WireError::UnknownKind(kind) => write!(f, "frame kind {kind} is unknown"),
            WireError::HeadTooLong(bytes) => write!(f, "frame head of {bytes} bytes is over the limit"),
            WireError::BodyTooLong(bytes) => write!(f, "frame body of {bytes} bytes is over the limit"),
            WireError::BodyNotInBlocks(bytes) => write!(f, "frame body of {bytes} bytes is cut within a block"),
            WireError::UnexpectedBody(kind) => write!(f, "frame of kind {kind} has a body"),
            WireError::UnexpectedHead(kind) => write!(f, "frame of kind {kind} has a head"),
            WireError::BadHeadCrc => f.write_str("frame head fails its checksum"),
            WireError::CutShort => f.write_str("field is cut short"),
            WireError::FieldLength { tag, length_bytes } => write!(f, "field {tag} has {length_bytes} bytes"),
            WireError::FieldTwice(tag) => write!(f, "field {tag} is given twice"),
            WireError::NotText(tag) => write!(f, "field {tag} is not UTF-8"),
            WireError::BadField(tag) => write!(f, "what field {tag} says does not go together"),
            WireError::BodyBroken => f.write_str("the frames of a body do not go together"),
            WireError::BadBlock(index) => write!(f, "block {index} of the frame fails its checksum"),
        }
    }
}

impl std::error::Error for WireError {}

impl From<WireError> for Error {
    fn from(error: WireError) -> Self {
        let kind = match error {
            WireError::BadBlock(_) => ErrorKind::BadChecksum,
            _ => ErrorKind::BadRequest,
        };
        Error::new(kind, error.to_string())
    }
}
