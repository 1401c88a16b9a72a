//! The chunked transfer coding (RFC 9112 §7.1), taken apart as it arrives.
//!
//! Nothing is buffered or copied: the decoder says where in the received bytes body lies, and how much of the chunk is
//! still to come, so that the shell may receive it straight into storage. Extensions and trailers are checked and
//! dropped.
//!
//! States: `Size` -> (`Space` -> `Extension`) -> `SizeLf` -> `Data` -> `DataCr` -> `DataLf` -> `Size`; after the chunk
//! of size 0 `TrailerStart` -> `TrailerName` -> `Trailer` -> `TrailerLf` -> `TrailerStart` for each trailer, then
//! `EndLf`
//! -> `Done`.

use super::percent::hex;
use super::refusal::Refusal;
use super::status::Status;
use crate::limits::{HTTP_CHUNK_LINE_MAX_BYTES, HTTP_HEAD_MAX_BYTES};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Size,
    Space,
    Extension,
    SizeLf,
    Data,
    DataCr,
    DataLf,
    TrailerStart,
    TrailerName,
    Trailer,
    TrailerLf,
    EndLf,
    Done,
}

/// What the bytes fed to a [`ChunkedDecoder`] hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fed {
    /// `skip` bytes of framing, then `length` (at least 1) of body; feed what follows them again.
    Data {
        /// Bytes of framing before the body.
        skip: usize,
        /// Bytes of body.
        length: usize,
    },
    /// All bytes were framing; more are needed.
    More,
    /// The body has ended after `used` bytes; what follows belongs to the next request.
    End {
        /// Bytes of framing that ended it.
        used: usize,
    },
}

/// Decodes one body; see the module for its states.
#[derive(Clone, Debug)]
pub struct ChunkedDecoder {
    state: State,
    /// Bytes of the chunk still to come.
    left_bytes: u64,
    /// Bytes of all chunks announced.
    total_bytes: u64,
    /// Bytes of the line, or of all trailers.
    line_bytes: usize,
}

impl Default for ChunkedDecoder {
    fn default() -> Self {
        Self { state: State::Size, left_bytes: 0, total_bytes: 0, line_bytes: 0 }
    }
}

impl ChunkedDecoder {
    /// Takes the next bytes up to the first body or the end. An error (400, 413 or 431) ends the connection.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<Fed, Refusal> {
        for (at, byte) in bytes.iter().enumerate() {
            match self.state {
                State::Done => return Ok(Fed::End { used: at }),
                State::Data => {
                    let length = self.left_bytes.min((bytes.len() - at) as u64);
                    self.received(length);
                    return Ok(Fed::Data { skip: at, length: length as usize });
                }
                _ => self.state = self.step(*byte)?,
            }
        }
        Ok(if self.state == State::Done { Fed::End { used: bytes.len() } } else { Fed::More })
    }

    /// Bytes of body that come next without framing between; up to as many may be received straight into storage.
    pub fn pending_bytes(&self) -> u64 {
        if self.state == State::Data { self.left_bytes } else { 0 }
    }

    /// Tells that `length_bytes` of the pending bytes were received past the decoder.
    pub fn received(&mut self, length_bytes: u64) {
        assert!(length_bytes <= self.pending_bytes(), "more was received than is pending");
        self.left_bytes -= length_bytes;
        if self.left_bytes == 0 && self.state == State::Data {
            self.state = State::DataCr;
        }
    }

    /// Bytes of body announced so far, those to come of the present chunk included.
    pub fn announced_bytes(&self) -> u64 {
        self.total_bytes
    }

    fn step(&mut self, byte: u8) -> Result<State, Refusal> {
        self.count_line()?;
        match (self.state, byte) {
            (State::Size, b'\r') if self.line_bytes > 1 => Ok(State::SizeLf),
            (State::Size, b';') if self.line_bytes > 1 => Ok(State::Extension),
            (State::Size, b' ' | b'\t') if self.line_bytes > 1 => Ok(State::Space),
            (State::Size, digit) => self.add_digit(digit),
            (State::Space, b' ' | b'\t') => Ok(State::Space),
            (State::Space, b';') => Ok(State::Extension),
            (State::Extension, b'\r') => Ok(State::SizeLf),
            (State::Extension, b) if is_text(b) => Ok(State::Extension),
            (State::SizeLf, b'\n') => self.begin_chunk(),
            (State::DataCr, b'\r') => Ok(State::DataLf),
            (State::DataLf, b'\n') => self.begin_line(State::Size),
            (State::TrailerStart, b'\r') => Ok(State::EndLf),
            (State::TrailerStart | State::TrailerName, b) if is_token(b) => Ok(State::TrailerName),
            (State::TrailerName, b':') => Ok(State::Trailer),
            (State::Trailer, b'\r') => Ok(State::TrailerLf),
            (State::Trailer, b) if is_text(b) => Ok(State::Trailer),
            (State::TrailerLf, b'\n') => Ok(State::TrailerStart),
            (State::EndLf, b'\n') => Ok(State::Done),
            _ if self.in_trailers() => Err(Refusal::bad("malformed trailer of a chunked body")),
            _ => Err(Refusal::bad("malformed chunk: a hexadecimal size, CR LF, that many bytes, CR LF")),
        }
    }

    fn in_trailers(&self) -> bool {
        matches!(
            self.state,
            State::TrailerStart | State::TrailerName | State::Trailer | State::TrailerLf | State::EndLf
        )
    }

    fn count_line(&mut self) -> Result<(), Refusal> {
        self.line_bytes += 1;
        let in_trailers = self.in_trailers();
        if in_trailers && self.line_bytes > HTTP_HEAD_MAX_BYTES {
            return Err(Refusal::new(Status::HeadTooLarge, "trailers of a chunked body are over 16 KiB"));
        }
        if !in_trailers && self.line_bytes > HTTP_CHUNK_LINE_MAX_BYTES {
            return Err(Refusal::bad("the line that announces a chunk is over 256 bytes"));
        }
        Ok(())
    }

    fn add_digit(&mut self, digit: u8) -> Result<State, Refusal> {
        let value = hex(digit).ok_or_else(|| Refusal::bad("the size of a chunk is not a hexadecimal number"))?;
        let size = self.left_bytes.checked_mul(16).ok_or_else(too_large)?;
        self.left_bytes = size + u64::from(value);
        Ok(State::Size)
    }

    fn begin_chunk(&mut self) -> Result<State, Refusal> {
        self.total_bytes = self.total_bytes.checked_add(self.left_bytes).ok_or_else(too_large)?;
        self.begin_line(if self.left_bytes == 0 { State::TrailerStart } else { State::Data })
    }

    fn begin_line(&mut self, state: State) -> Result<State, Refusal> {
        self.line_bytes = 0;
        Ok(state)
    }
}

/// What may stand in an extension or a trailer: no control but the tab.
fn is_text(byte: u8) -> bool {
    byte == b'\t' || (byte >= b' ' && byte != 0x7F)
}

/// What may stand in the name of a field (RFC 9110 §5.6.2).
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

fn too_large() -> Refusal {
    Refusal::new(Status::TooLarge, "the chunks of the body add up to more than 64 bits can count")
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Body, bytes used and error, feeding `step` bytes at a time.
    pub(in super::super) fn decode(bytes: &[u8], step: usize) -> (Vec<u8>, Result<Option<usize>, Refusal>) {
        let mut decoder = ChunkedDecoder::default();
        let (mut body, mut used) = (Vec::new(), 0);
        for piece in bytes.chunks(step) {
            let mut rest = piece;
            loop {
                match decoder.feed(rest) {
                    Err(refusal) => return (body, Err(refusal)),
                    Ok(Fed::End { used: n }) => return (body, Ok(Some(used + n))),
                    Ok(Fed::More) => {
                        used += rest.len();
                        break;
                    }
                    Ok(Fed::Data { skip, length }) => {
                        assert!(length > 0);
                        body.extend_from_slice(&rest[skip..skip + length]);
                        used += skip + length;
                        rest = &rest[skip + length..];
                    }
                }
            }
        }
        (body, Ok(None))
    }

    #[test]
    fn bodies_are_found_between_the_framing() {
        let table: [(&[u8], &[u8], Option<usize>); 8] = [
            (b"0\r\n\r\n", b"", Some(5)),
            (b"5\r\nhello\r\n0\r\n\r\nGET", b"hello", Some(15)),
            (b"5\r\nhello\r\n06\r\n world\r\n000\r\n\r\n", b"hello world", Some(29)),
            (b"A;x=\"y;z\"\r\n0123456789\r\n0;last\r\n\r\n", b"0123456789", Some(33)),
            (b"2 \t;x\r\n\r\n\r\n0\r\n\r\n", b"\r\n", Some(16)),
            (b"1\r\na\r\n0\r\nX-Sum: 1\r\nY:\r\n\r\n!", b"a", Some(25)),
            (b"3\r\nab", b"ab", None),
            (b"1\r\na\r\n0\r\n\r", b"a", None),
        ];
        for (bytes, body, used) in table {
            for step in 1..=bytes.len() {
                let text = String::from_utf8_lossy(bytes);
                assert_eq!(decode(bytes, step), (body.to_vec(), Ok(used)), "{text} by {step}");
            }
        }
    }

    #[test]
    fn what_others_might_read_differently_is_refused() {
        let table: [&[u8]; 20] = [
            b"\r\n",
            b"\n",
            b";x\r\n",
            b" 5\r\nhello",
            b"0x5\r\nhello",
            b"-5\r\nhello",
            b"+5\r\nhello",
            b"5\nhello",
            b"5\r\rhello",
            b"5 \r\nhello",
            b"5 5\r\nhello",
            b"5;x\nhello",
            b"5;\x01\r\nhello",
            b"5\r\nhello0\r\n\r\n",
            b"5\r\nhello\n0\r\n\r\n",
            b"0\r\n folded\r\n\r\n",
            b"0\r\nA: b\nC: d\r\n\r\n",
            b"0\r\nno colon\r\n\r\n",
            b"0\r\nnone\r\n\r\n",
            b"0\r\n: b\r\n\r\n",
        ];
        for bytes in table {
            let (_, outcome) = decode(bytes, 1);
            let status = outcome.expect_err(&String::from_utf8_lossy(bytes)).status;
            assert_eq!(status, Status::BadRequest, "{}", String::from_utf8_lossy(bytes));
        }
    }

    #[test]
    fn sizes_and_lines_are_bounded() {
        let status = |bytes: &[u8]| decode(bytes, 7).1.map_err(|refusal| refusal.status);
        assert_eq!(status(b"FFFFFFFFFFFFFFFF\r\n"), Ok(None));
        assert_eq!(status(b"10000000000000000\r\n"), Err(Status::TooLarge));
        assert_eq!(status(b"1\r\na\r\nFFFFFFFFFFFFFFFF\r\n"), Err(Status::TooLarge));
        let line = |length: usize| [&b"1;"[..], &vec![b'x'; length - 4], b"\r\n"].concat();
        assert_eq!(status(&line(HTTP_CHUNK_LINE_MAX_BYTES)), Ok(None));
        assert_eq!(status(&line(HTTP_CHUNK_LINE_MAX_BYTES + 1)), Err(Status::BadRequest));
        let trailers = |length: usize| [&b"0\r\nx:"[..], &vec![b'x'; length - 6], b"\r\n\r\n"].concat();
        assert_eq!(status(&trailers(HTTP_HEAD_MAX_BYTES)), Ok(Some(HTTP_HEAD_MAX_BYTES + 3)));
        assert_eq!(status(&trailers(HTTP_HEAD_MAX_BYTES + 1)), Err(Status::HeadTooLarge));
    }

    #[test]
    fn a_chunk_may_be_received_past_the_decoder() {
        let mut decoder = ChunkedDecoder::default();
        assert_eq!(decoder.feed(b"1000\r\nab"), Ok(Fed::Data { skip: 6, length: 2 }));
        assert_eq!((decoder.pending_bytes(), decoder.announced_bytes()), (4094, 4096));
        decoder.received(4000);
        decoder.received(94);
        assert_eq!(decoder.pending_bytes(), 0);
        assert_eq!(decoder.feed(b"\r\n0\r\n\r\nnext"), Ok(Fed::End { used: 7 }));
        assert_eq!(decoder.feed(b"next"), Ok(Fed::End { used: 0 }));
    }
}
