//! The keys of a line that is still arriving.

use super::get::skip_spaces;
use super::{ClientError, GetHow, number, reply};
use crate::limits::{MEMCACHED_COMMAND_MAX_BYTES, MEMCACHED_KEY_MAX_BYTES, MEMCACHED_LINE_MAX_BYTES};
use memchr::{memchr, memchr2};

/// A `get` line of which the session has the beginning: gives each key as soon as it has arrived.
///
/// The session calls [`KeyStream::open`] with what it has, then [`KeyStream::step`] with the bytes not yet used, again
/// and again; each step says how many bytes it used, and all but `More` use some. While it exists, the connection is
/// inside that line. The bytes the session must hold are one key and its end; the whole line is bounded by
/// `MEMCACHED_LINE_MAX_BYTES`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyStream {
    how: GetHow,
    taken_bytes: usize,
    state: Line,
}

/// Where a [`KeyStream`] stands: `Empty` becomes `Keys` by a key; both become `Refused` by a key that is too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Line {
    /// No key yet.
    Empty,
    /// Some keys given.
    Keys,
    /// An error was answered; what is left of the line is dropped.
    Refused,
}

/// What comes next in a line of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyStep<'a> {
    /// Serve this key.
    Key {
        /// It.
        key: &'a [u8],
        /// Bytes used, the key among them.
        used: usize,
    },
    /// More bytes are needed.
    More {
        /// Bytes used.
        used: usize,
    },
    /// The line is over.
    End {
        /// Bytes used, the line end among them.
        used: usize,
        /// What to answer: `END`, an error if there was no key, nothing if an error was answered.
        reply: &'static [u8],
    },
    /// Answer the error; unless it closes, go on.
    Refused {
        /// The error.
        error: ClientError,
        /// Bytes used.
        used: usize,
    },
}

impl KeyStream {
    /// Starts on `start`, the beginning of a line without its end: the stream, and the bytes used.
    ///
    /// An error, which closes the connection, if it is not a `get`, or a `gat` whose expiry is wrong or not there. Only
    /// the bytes every session has before it calls this are looked at, so the outcome does not depend on how they came.
    pub fn open(start: &[u8]) -> Result<(KeyStream, usize), ClientError> {
        let start = &start[..start.len().min(MEMCACHED_COMMAND_MAX_BYTES + 1)];
        let (rest, with_cas, touches) = match start {
            [b'g', b'e', b't', b' ', rest @ ..] => (rest, false, false),
            [b'g', b'e', b't', b's', b' ', rest @ ..] => (rest, true, false),
            [b'g', b'a', b't', b' ', rest @ ..] => (rest, false, true),
            [b'g', b'a', b't', b's', b' ', rest @ ..] => (rest, true, true),
            _ => return Err(ClientError::new(b"").close()),
        };
        let (touch, rest) = if touches { open_touch(rest)? } else { (None, rest) };
        let taken_bytes = start.len() - rest.len();
        let how = GetHow { with_cas, touch };
        Ok((KeyStream { how, taken_bytes, state: Line::Empty }, taken_bytes))
    }

    /// Goes on within a whole line of which `taken_bytes`, some keys among them, were served.
    pub fn within(how: GetHow, taken_bytes: usize) -> KeyStream {
        KeyStream { how, taken_bytes, state: Line::Keys }
    }

    /// How to answer each key.
    pub fn how(&self) -> GetHow {
        self.how
    }

    /// The next thing in `bytes`, which start where the last step ended.
    pub fn step<'a>(&mut self, bytes: &'a [u8]) -> KeyStep<'a> {
        let step = if self.state == Line::Refused { skip_line(bytes) } else { self.next_key(bytes) };
        let (KeyStep::Key { used, .. }
        | KeyStep::More { used }
        | KeyStep::End { used, .. }
        | KeyStep::Refused { used, .. }) = step;
        self.taken_bytes += used;
        if self.taken_bytes > MEMCACHED_LINE_MAX_BYTES {
            return KeyStep::Refused { error: ClientError::new(reply::LINE_TOO_LONG).close(), used };
        }
        step
    }

    fn next_key<'a>(&mut self, bytes: &'a [u8]) -> KeyStep<'a> {
        let token = skip_spaces(bytes);
        let used = bytes.len() - token.len();
        let Some(end) = memchr2(b' ', b'\n', token) else {
            return if token.len() > MEMCACHED_KEY_MAX_BYTES + 1 { self.refuse(used) } else { KeyStep::More { used } };
        };
        let mut key = &token[..end];
        if token[end] == b'\n' {
            key = key.strip_suffix(b"\r").unwrap_or(key);
        }
        if key.is_empty() {
            let reply = if self.state == Line::Empty { reply::BAD_FORMAT } else { reply::END };
            return KeyStep::End { used: used + end + 1, reply };
        }
        if key.len() > MEMCACHED_KEY_MAX_BYTES {
            return self.refuse(used);
        }
        self.state = Line::Keys;
        KeyStep::Key { key, used: used + key.len() }
    }

    /// Refuses the key behind `before_bytes`. As much of it is used as makes it too long, which is the same however it
    /// arrives; the rest is dropped with the line.
    fn refuse(&mut self, before_bytes: usize) -> KeyStep<'static> {
        self.state = Line::Refused;
        let used = before_bytes + MEMCACHED_KEY_MAX_BYTES + 1;
        KeyStep::Refused { error: ClientError::new(reply::BAD_FORMAT), used }
    }
}

/// Drops bytes up to the line end.
fn skip_line(bytes: &[u8]) -> KeyStep<'_> {
    match memchr(b'\n', bytes) {
        Some(end) => KeyStep::End { used: end + 1, reply: b"" },
        None => KeyStep::More { used: bytes.len() },
    }
}

/// The expiry of a `gat` line that is still arriving, and what follows it.
fn open_touch(rest: &[u8]) -> Result<(Option<i64>, &[u8]), ClientError> {
    let token = skip_spaces(rest);
    let end = memchr(b' ', token).unwrap_or(0);
    match number::signed(&token[..end]) {
        Some(exptime) => Ok((Some(exptime), &token[end..])),
        None => Err(ClientError::new(reply::BAD_EXPTIME).close()),
    }
}
