//! Bodies that are sent at once and needed whole, maps above all: cut into frames, and put together again. They need no
//! credit: who takes one knows its bound.
//!
//! Callers: the modules that encode what nodes say to each other; link sessions, to receive it.

use super::fields::Fields;
use super::header::{FLAG_MORE, Header, Kind};
use super::{WireError, encode_frame};
use crate::limits::WIRE_FRAME_BODY_MAX_BYTES;

/// Appends a frame with a body of any length: what the frame can't carry follows in data frames. A welcome carries none
/// of it. The length stands in the header of the first. On an error `out` is as it was.
pub(super) fn encode_with_body(
    out: &mut Vec<u8>,
    header: Header,
    fields: &Fields<'_>,
    body: &[u8],
) -> Result<(), WireError> {
    let most = if header.kind == Kind::Welcome { 0 } else { WIRE_FRAME_BODY_MAX_BYTES };
    let (first, rest) = body.split_at(body.len().min(most));
    let flags = header.flags | if rest.is_empty() { 0 } else { FLAG_MORE };
    encode_frame(out, Header { flags, length: body.len() as u64, ..header }, fields, first)?;
    let mut at = first.len();
    for piece in rest.chunks(WIRE_FRAME_BODY_MAX_BYTES) {
        let end = at + piece.len();
        let data = Header::data(header.id, at as u64, end < body.len());
        encode_frame(out, data, &Fields::default(), piece)?;
        at = end;
    }
    Ok(())
}

/// A body on its way in, of a length that was told before. It holds as much as has come.
#[derive(Debug)]
pub struct Assembly {
    bytes: Vec<u8>,
    length: usize,
}

impl Assembly {
    /// A body of `length` bytes, at most `most`. Error: `BodyTooLong`.
    pub fn new(length: u64, most: usize) -> Result<Self, WireError> {
        let length = usize::try_from(length).map_err(|_| WireError::BodyTooLong(usize::MAX))?;
        if length > most { Err(WireError::BodyTooLong(length)) } else { Ok(Self { bytes: Vec::new(), length }) }
    }

    /// Takes the body of one of its frames, whose blocks have passed their checks. Whether that was the last. Error:
    /// `BodyBroken`.
    pub fn take(&mut self, header: &Header, body: &[u8]) -> Result<bool, WireError> {
        let (at, end) = (self.bytes.len(), self.bytes.len() + body.len());
        let is_last = !header.has(FLAG_MORE);
        let fits = if is_last { end == self.length } else { end < self.length };
        if header.offset != at as u64 || !fits || body.is_empty() && !is_last {
            return Err(WireError::BodyBroken);
        }
        self.bytes.extend_from_slice(body);
        Ok(is_last)
    }

    /// What has come.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Verb, parse_frame};

    const MOST: usize = 4 << 20;

    fn body(length: usize) -> Vec<u8> {
        (0..length).map(|at| (at / 251) as u8).collect()
    }

    fn sent(header: Header, body: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        encode_with_body(&mut out, header, &Fields::default(), body).expect("within the limits");
        out
    }

    /// The frames of `bytes`, each handed to `each`.
    fn frames(mut bytes: &[u8], mut each: impl FnMut(&Header, &[u8])) {
        while !bytes.is_empty() {
            let frame = parse_frame(bytes).expect("parses").expect("is whole");
            each(frame.header(), frame.body().expect("its blocks are right"));
            bytes = &bytes[frame.bytes()..];
        }
    }

    #[test]
    fn a_body_of_any_length_is_put_together_from_its_frames() {
        const FRAME: usize = WIRE_FRAME_BODY_MAX_BYTES;
        for length in [0, 1, FRAME - 1, FRAME, FRAME + 1, 3 * FRAME, 3 * FRAME + 5] {
            for header in [Header::request(Verb::Put, 7), Header::new(Kind::Welcome)] {
                let body = body(length);
                let (mut assembly, mut count, mut whole) = (None, 0, length == 0);
                frames(&sent(header, &body), |header, piece| {
                    count += 1;
                    let assembly = assembly.get_or_insert_with(|| Assembly::new(header.length, MOST).expect("fits"));
                    if header.kind != Kind::Welcome {
                        assert!(count == 1 || !whole, "nothing behind the last");
                        whole = assembly.take(header, piece).expect("goes on");
                    }
                });
                assert!(whole, "{length} bytes");
                assert_eq!(
                    count,
                    length.div_ceil(FRAME).max(1) + usize::from(header.kind == Kind::Welcome && length > 0)
                );
                assert!(assembly.expect("a first frame").into_bytes() == body);
            }
        }
    }

    #[test]
    fn frames_that_do_not_go_together_are_refused_and_nothing_is_held_that_has_not_come() {
        assert_eq!(Assembly::new(u64::MAX, MOST).err(), Some(WireError::BodyTooLong(usize::MAX)));
        assert_eq!(Assembly::new(MOST as u64 + 1, MOST).err(), Some(WireError::BodyTooLong(MOST + 1)));
        let new = || Assembly::new(10, MOST).expect("fits");
        let broken = |assembly: &mut Assembly, offset, more, body: &[u8]| {
            assert_eq!(assembly.take(&Header::data(0, offset, more), body), Err(WireError::BodyBroken));
        };
        broken(&mut new(), 0, false, b"nine byte");
        broken(&mut new(), 0, false, b"eleven byte");
        broken(&mut new(), 0, true, b"ten bytes!");
        broken(&mut new(), 1, true, b"a gap");
        broken(&mut new(), 0, true, b"");
        let mut half = new();
        assert_eq!(half.take(&Header::data(0, 0, true), b"half "), Ok(false));
        broken(&mut half, 0, false, b"again");
        assert_eq!(half.take(&Header::data(0, 5, false), b"whole"), Ok(true));
        assert_eq!(half.into_bytes(), b"half whole");
        assert_eq!(Assembly::new(MOST as u64, MOST).expect("fits").into_bytes().capacity(), 0);
    }
}
