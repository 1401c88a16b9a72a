//! Bodies in chunks: the same body however it arrives, bounded framing, and what is cut into chunks comes back.

use super::http_head::refusal;
use crate::Outcomes;
use crate::pieces::{Log, readings};
use crate::random::Random;
use herd_core::door::http::{ChunkedDecoder, Fed, Refusal};
use herd_core::limits::{HTTP_CHUNK_LINE_MAX_BYTES, HTTP_HEAD_MAX_BYTES};

/// What the corpus reaches.
pub const OUTCOMES: &[&[&str]] = &[REASONS, &["400", "413", "431", "ended", "more is needed", "data"]];

/// The texts of its refusals.
pub const REASONS: &[&str] = &[
    "malformed trailer of a chunked body",
    "malformed chunk: a hexadecimal size, CR LF, that many bytes, CR LF",
    "trailers of a chunked body are over 16 KiB",
    "the line that announces a chunk is over 256 bytes",
    "the size of a chunk is not a hexadecimal number",
    "the chunks of the body add up to more than 64 bits can count",
];

/// Words of the driver.
#[rustfmt::skip]
pub const DICTIONARY: &[&[u8]] = &[
    b"0\r\n\r\n", b"1\r\na\r\n", b"5;x=y\r\nhello\r\n", b"\r\n", b"\n", b"\r", b";", b" ", b"FFFFFFFFFFFFFFFF",
    b"8000000000000000", b"0\r\nX: y\r\n", b"0", b"a", b"\0", b"\x7F",
];

/// What one reading found.
#[derive(Debug, PartialEq, Eq)]
struct Found {
    body: Log,
    body_bytes: u64,
    announced_bytes: u64,
    end: Result<Option<usize>, Refusal>,
}

/// Runs the target.
pub fn run(input: &[u8]) -> Outcomes {
    let mut outcomes = Outcomes::default();
    let mut first = None;
    for (at, pieces) in readings(input).into_iter().enumerate() {
        let found = decode(&pieces, at % 2 == 1);
        assert_eq!(first.get_or_insert_with(|| decode(&[input], false)), &found, "in {} pieces", pieces.len());
    }
    let found = first.expect("there is one reading at least");
    if found.body_bytes > 0 {
        outcomes.add("data");
    }
    assert!(found.body_bytes <= found.announced_bytes.min(input.len() as u64));
    match found.end {
        Ok(None) => outcomes.add("more is needed"),
        Ok(Some(used)) => {
            assert!(used <= input.len() && found.body_bytes == found.announced_bytes);
            outcomes.add("ended");
        }
        Err(error) => refusal(REASONS, &error, &mut outcomes),
    }
    comes_back(input);
    outcomes
}

/// Decodes `pieces`; `past`: takes pending bytes past the decoder, as the shell does.
fn decode(pieces: &[&[u8]], past: bool) -> Found {
    let mut decoder = ChunkedDecoder::default();
    let mut found = Found { body: Log::default(), body_bytes: 0, announced_bytes: 0, end: Ok(None) };
    let (mut used, mut framing) = (0, 0);
    'pieces: for piece in pieces {
        let mut rest = *piece;
        while !rest.is_empty() {
            let (skip, length) = match step(&mut decoder, rest, past) {
                Ok(Fed::Data { skip, length }) => (skip, length),
                Ok(Fed::More) => (rest.len(), 0),
                Ok(Fed::End { used: last }) => {
                    found.end = Ok(Some(used + last));
                    break 'pieces;
                }
                Err(refusal) => {
                    found.end = Err(refusal);
                    break 'pieces;
                }
            };
            framing = if length > 0 { 0 } else { framing + skip };
            assert!(framing <= HTTP_CHUNK_LINE_MAX_BYTES + HTTP_HEAD_MAX_BYTES + 2, "framing without end");
            assert!(skip + length > 0, "each step uses bytes");
            found.body.bytes(&rest[skip..skip + length]);
            found.body_bytes += length as u64;
            used += skip + length;
            rest = &rest[skip + length..];
        }
        // An end is told with the byte that makes it, or with the next call.
        if let Ok(Fed::End { used: 0 }) = decoder.clone().feed(&[]) {
            found.end = Ok(Some(used));
            break;
        }
    }
    found.announced_bytes = decoder.announced_bytes();
    found
}

/// One step: the decoder's, or, if bytes are pending and `past`, what it would have said of them.
fn step(decoder: &mut ChunkedDecoder, rest: &[u8], past: bool) -> Result<Fed, Refusal> {
    let pending = decoder.pending_bytes().min(rest.len() as u64);
    if !past || pending == 0 {
        return decoder.feed(rest);
    }
    decoder.received(pending);
    Ok(Fed::Data { skip: 0, length: pending as usize })
}

/// The input as a body, cut into chunks.
fn comes_back(body: &[u8]) {
    let mut random = Random::of(body);
    let mut bytes = Vec::new();
    let (mut rest, mut model) = (body, Log::default());
    model.bytes(body);
    while !rest.is_empty() {
        let (piece, after) = rest.split_at(rest.len().min(1 + random.below(700)));
        bytes.extend_from_slice(format!("{:x}\r\n", piece.len()).as_bytes());
        bytes.extend_from_slice(piece);
        bytes.extend_from_slice(b"\r\n");
        rest = after;
    }
    bytes.extend_from_slice(b"0\r\n\r\n");
    let found = decode(&[&bytes], false);
    assert_eq!((found.body, found.end), (model, Ok(Some(bytes.len()))), "what was cut into chunks comes back");
}
