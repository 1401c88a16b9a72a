//! HTTP/1.1 as far as etcd's gateway needs it: a POST of JSON on a connection, and the answer, whole or as it comes.
//!
//! Ours, and not a library's, for what is asked of it: whether all of a request was handed over (if not, nothing was
//! done), answers in chunks with trailers, which all errors of etcd are, a bound on each wait, and an end of all waits
//! when the node stops. Blocking.

use herd_core::limits::{ETCD_ANSWER_MAX_BYTES, ETCD_DIAL_MS, ETCD_HALT_MS};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Set when the node is to stop: what waits ends soon.
#[derive(Clone, Debug, Default)]
pub(crate) struct Halt(Arc<OnceLock<Instant>>);

impl Halt {
    pub(crate) fn set(&self) {
        self.0.get_or_init(|| Instant::now() + Duration::from_millis(ETCD_HALT_MS));
    }

    /// When what was under way ends.
    fn end(&self) -> Option<Instant> {
        self.0.get().copied()
    }
}

/// How often it is looked at.
const SLICE: Duration = Duration::from_millis(50);
/// Bytes of the head of an answer; those of etcd have some 400.
const HEAD_MAX_BYTES: usize = 16 * 1024;
const HEADERS_MAX: usize = 64;

/// Until when a call may wait.
#[derive(Clone, Debug)]
pub(super) struct Until {
    end: Instant,
    halt: Halt,
}

impl Until {
    /// What is begun when the node is to stop already has a little time too.
    pub(super) fn within(ms: u64, halt: &Halt) -> Self {
        let (ms, halt) = match halt.end() {
            Some(_) => (ms.min(ETCD_HALT_MS), Halt::default()),
            None => (ms, halt.clone()),
        };
        Self { end: Instant::now() + Duration::from_millis(ms), halt }
    }

    fn left(&self) -> Duration {
        let end = self.halt.end().map_or(self.end, |end| end.min(self.end));
        end.saturating_duration_since(Instant::now())
    }

    /// The same, but no longer than so.
    pub(super) fn at_most(&self, ms: u64) -> Self {
        Self { end: self.end.min(Instant::now() + Duration::from_millis(ms)), halt: self.halt.clone() }
    }

    /// Whether it is over.
    pub(super) fn is_over(&self) -> bool {
        self.left().is_zero()
    }

    /// How long to wait before it is looked again; an error if it is over.
    fn slice(&self) -> io::Result<Duration> {
        let left = self.left();
        if left.is_zero() {
            return Err(late());
        }
        Ok(left.min(SLICE))
    }
}

fn late() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "no answer in time")
}

/// Whether there is just nothing yet.
fn is_early(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted)
}

fn bad(text: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}

/// A connection between two answers, or in the middle of one.
#[derive(Debug)]
pub(super) struct Connection {
    stream: TcpStream,
    /// What has come and was not taken.
    ahead: Vec<u8>,
    frame: Frame,
    /// The peer closes it after this answer.
    closes: bool,
}

/// How the rest of a body is told.
#[derive(Debug)]
enum Frame {
    /// So many bytes.
    Length(u64),
    /// So many bytes of a chunk, and then more chunks; 0 before the first.
    Chunk(u64),
    /// To the end of the connection.
    Close,
}

impl Connection {
    /// Dials one address after the other.
    pub(super) fn open(addrs: &[SocketAddr], until: &Until) -> io::Result<Self> {
        let mut last = late();
        for addr in addrs {
            let left = until.left().min(Duration::from_millis(ETCD_DIAL_MS));
            if left.is_zero() {
                break;
            }
            match TcpStream::connect_timeout(addr, left) {
                Ok(stream) => {
                    stream.set_nodelay(true)?;
                    return Ok(Self { stream, ahead: Vec::new(), frame: Frame::Length(0), closes: false });
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Whether a request may be sent: the last answer was taken whole, and the peer has not closed.
    pub(super) fn is_ready(&self) -> bool {
        let is_open = || {
            self.stream.set_nonblocking(true)?;
            let peeked = self.stream.peek(&mut [0]);
            self.stream.set_nonblocking(false)?;
            peeked
        };
        let is_done = matches!(self.frame, Frame::Length(0)) && self.ahead.is_empty() && !self.closes;
        is_done && is_open().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }

    /// Hands a request over. After an error the peer has not all of it, so it does nothing.
    pub(super) fn send(&mut self, host: &str, path: &str, body: &[u8], until: &Until) -> io::Result<()> {
        let length = body.len();
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
        );
        let (all, mut sent) = ([head.as_bytes(), body].concat(), 0);
        while sent < all.len() {
            self.stream.set_write_timeout(Some(until.slice()?))?;
            match self.stream.write(&all[sent..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => sent += count,
                Err(error) if is_early(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Reads the head of the answer; its status.
    pub(super) fn status(&mut self, until: &Until) -> io::Result<u16> {
        loop {
            if let Some(status) = self.head()? {
                return Ok(status);
            }
            if self.ahead.len() > HEAD_MAX_BYTES {
                return Err(bad("it answers with too long a head"));
            }
            self.fill(until)?;
        }
    }

    fn head(&mut self) -> io::Result<Option<u16>> {
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut parsed = httparse::Response::new(&mut headers);
        let parse = parsed.parse(&self.ahead).map_err(|_| bad("it does not speak HTTP"))?;
        let httparse::Status::Complete(length) = parse else { return Ok(None) };
        let value = |name: &str| {
            let found = parsed.headers.iter().find(|header| header.name.eq_ignore_ascii_case(name));
            found.map(|header| String::from_utf8_lossy(header.value).trim().to_ascii_lowercase())
        };
        let frame = match (value("transfer-encoding"), value("content-length")) {
            (Some(coding), _) if coding == "chunked" => Frame::Chunk(0),
            (Some(_), _) => return Err(bad("it answers in an unknown coding")),
            (None, Some(length)) => Frame::Length(length.parse().map_err(|_| bad("its answer has no length"))?),
            (None, None) => Frame::Close,
        };
        let closes = matches!(frame, Frame::Close) || value("connection").is_some_and(|value| value == "close");
        let status = parsed.code.ok_or_else(|| bad("it does not speak HTTP"))?;
        (self.frame, self.closes) = (frame, closes);
        self.ahead.drain(..length);
        Ok(Some(status))
    }

    /// The rest of the body.
    pub(super) fn body(&mut self, until: &Until) -> io::Result<Vec<u8>> {
        let mut body = Vec::new();
        while self.more(&mut body, until)? {
            if body.len() > ETCD_ANSWER_MAX_BYTES {
                return Err(bad("its answer is too long"));
            }
        }
        Ok(body)
    }

    /// Puts what comes next of the body behind `out`; false at its end.
    pub(super) fn more(&mut self, out: &mut Vec<u8>, until: &Until) -> io::Result<bool> {
        match self.frame {
            Frame::Length(0) => return Ok(false),
            Frame::Chunk(0) => {
                let length = self.chunk(until)?;
                if length == 0 {
                    self.frame = Frame::Length(0);
                    return Ok(false);
                }
                self.frame = Frame::Chunk(length);
            }
            Frame::Length(_) | Frame::Chunk(_) | Frame::Close => {}
        }
        if self.ahead.is_empty() {
            match self.fill(until) {
                Err(error) if matches!(self.frame, Frame::Close) && error.kind() == io::ErrorKind::UnexpectedEof => {
                    self.frame = Frame::Length(0);
                    return Ok(false);
                }
                filled => filled?,
            }
        }
        let most = match self.frame {
            Frame::Length(left) | Frame::Chunk(left) => usize::try_from(left).unwrap_or(usize::MAX),
            Frame::Close => usize::MAX,
        };
        let taken = self.ahead.len().min(most);
        out.extend(self.ahead.drain(..taken));
        match &mut self.frame {
            Frame::Length(left) => *left -= taken as u64,
            Frame::Chunk(left) => {
                *left -= taken as u64;
                if *left == 0 && !self.line(until)?.is_empty() {
                    return Err(bad("its chunks are not whole"));
                }
            }
            Frame::Close => {}
        }
        Ok(true)
    }

    /// The length of the next chunk; behind the last one, 0, what follows it is passed over.
    fn chunk(&mut self, until: &Until) -> io::Result<u64> {
        let line = self.line(until)?;
        let digits = line.split(';').next().unwrap_or_default().trim();
        let length = u64::from_str_radix(digits, 16).map_err(|_| bad("its chunks have no length"))?;
        while length == 0 && !self.line(until)?.is_empty() {}
        Ok(length)
    }

    fn line(&mut self, until: &Until) -> io::Result<String> {
        loop {
            if let Some(end) = self.ahead.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.ahead.drain(..=end).collect();
                return Ok(String::from_utf8_lossy(&line).trim_end().to_owned());
            }
            if self.ahead.len() > HEAD_MAX_BYTES {
                return Err(bad("its chunks have no length"));
            }
            self.fill(until)?;
        }
    }

    /// Waits for more to come.
    fn fill(&mut self, until: &Until) -> io::Result<()> {
        let mut piece = [0; 16 * 1024];
        loop {
            self.stream.set_read_timeout(Some(until.slice()?))?;
            match self.stream.read(&mut piece) {
                Ok(0) => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it closed the connection")),
                Ok(count) => {
                    self.ahead.extend_from_slice(&piece[..count]);
                    return Ok(());
                }
                Err(error) if is_early(&error) => {}
                Err(error) => return Err(error),
            }
        }
    }
}
