//! What the warden's node has another one do with a control store (PROTOCOL.md §1.16): keep a copy of all of it, and
//! begin with that copy. Pure.
//!
//! Callers: links of nodes.

use super::body::{Assembly, encode_with_body};
use super::fields::Fields;
use super::header::{Header, Kind};
use super::{WireError, encode_frame};
use crate::error::{Error, ErrorKind};
use crate::limits::CONTROL_FILE_MAX_BYTES;
use crate::warden::MoveId;
use std::sync::Arc;

/// Verb of an errand.
pub const VERB_CONTROL: u8 = 20;

const PREPARE: u16 = 1;
const BEGIN: u16 = 2;

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Errand {
    /// The bytes of a store's file are to be kept for that move, and nothing else is to be done with them.
    Prepare(MoveId, Arc<[u8]>),
    /// The warden is to go on here, with the copy of that move.
    Begin(MoveId),
}

impl Errand {
    /// Appends the request with this id.
    pub fn encode(&self, out: &mut Vec<u8>, id: u64) -> Result<(), WireError> {
        let (code, which) = match self {
            Errand::Prepare(which, _) => (PREPARE, which.text()),
            Errand::Begin(which) => (BEGIN, which.text()),
        };
        let header = Header { verb: VERB_CONTROL, id, code, ..Header::new(Kind::Request) };
        let fields = Fields { name: Some(which.as_bytes()), ..Fields::default() };
        match self {
            Errand::Prepare(_, bytes) => encode_with_body(out, header, &fields, bytes),
            Errand::Begin(_) => encode_frame(out, header, &fields, b""),
        }
    }
}

/// An errand of which the first frame has come.
#[derive(Debug)]
pub struct ErrandComing {
    which: MoveId,
    prepares: bool,
    body: Assembly,
}

impl ErrandComing {
    /// From its first frame; [`take`](Self::take) takes that one's body, too.
    pub fn begin(header: &Header, fields: &Fields<'_>) -> Result<Self, Error> {
        let bad = |text: &str| Error::new(ErrorKind::BadRequest, text);
        let which = fields.name.and_then(|name| std::str::from_utf8(name).ok()).and_then(MoveId::parse);
        let which = which.ok_or_else(|| bad("the request names no move of a control store"))?;
        let prepares = match header.code {
            PREPARE => true,
            BEGIN => false,
            _ => return Err(Error::new(ErrorKind::NotInVersion, "this version knows no such errand")),
        };
        let most = if prepares { CONTROL_FILE_MAX_BYTES as usize } else { 0 };
        let length = if prepares { header.length } else { 0 };
        Ok(Self { which, prepares, body: Assembly::new(length, most)? })
    }

    /// Takes the body of a frame; whether that was the last.
    pub fn take(&mut self, header: &Header, body: &[u8]) -> Result<bool, WireError> {
        self.body.take(header, body)
    }

    /// The errand, when all of it has come.
    pub fn done(self) -> Errand {
        match self.prepares {
            true => Errand::Prepare(self.which, self.body.into_bytes().into()),
            false => Errand::Begin(self.which),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::parse_frame;

    #[test]
    fn an_errand_is_read_as_it_was_written() {
        let id = MoveId([0xa7; 16]);
        let bytes: Vec<u8> = (0..3_000_000_u32).map(|at| (at / 251) as u8).collect();
        for errand in [Errand::Begin(id), Errand::Prepare(id, b"x"[..].into()), Errand::Prepare(id, bytes.into())] {
            let mut out = Vec::new();
            errand.encode(&mut out, 9).expect("within the limits");
            let (mut rest, mut coming, mut whole) = (out.as_slice(), None, false);
            while !rest.is_empty() {
                let frame = parse_frame(rest).expect("parses").expect("is whole");
                let coming = coming.get_or_insert_with(|| {
                    assert_eq!((frame.header().verb, frame.header().id), (VERB_CONTROL, 9));
                    ErrandComing::begin(frame.header(), &frame.fields().expect("fields")).expect("an errand")
                });
                whole = coming.take(frame.header(), frame.body().expect("right")).expect("goes on");
                rest = &rest[frame.bytes()..];
            }
            assert!(whole);
            assert_eq!(coming.expect("a frame").done(), errand);
        }
        for (code, name) in [(3, id.text()), (1, "no id".into())] {
            let header = Header { verb: VERB_CONTROL, code, ..Header::new(Kind::Request) };
            let fields = Fields { name: Some(name.as_bytes()), ..Fields::default() };
            assert!(ErrandComing::begin(&header, &fields).is_err());
        }
    }
}
