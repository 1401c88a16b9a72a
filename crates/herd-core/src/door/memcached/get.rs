//! The way of a `get` through the protocol: its line is cut and told, its keys are taken one by one, and each that is
//! there is answered by a value line. A plain `get` or `set` touches each byte about once.

use super::number::Tail;
use super::parse::{BAD_FORMAT, Parsed, parse_other, store};
use super::{ClientError, Command, Get, GetHow, StoreVerb};
use crate::limits::MEMCACHED_KEY_MAX_BYTES;
use memchr::memchr;

/// Cuts the first line off `bytes`: the line without LF and one CR before it, and the bytes it took with them; `None`
/// if no line end is there yet.
#[inline]
pub fn split_line(bytes: &[u8]) -> Option<(&[u8], usize)> {
    let end = memchr(b'\n', bytes)?;
    let line = &bytes[..end];
    Some((line.strip_suffix(b"\r").unwrap_or(line), end + 1))
}

/// Parses one line without its CR LF.
#[inline]
pub fn parse_line(line: &[u8]) -> Parsed<'_> {
    match line {
        [b'g', b'e', b't', b' ', rest @ ..] => get(rest, false),
        [b's', b'e', b't', b' ', rest @ ..] => store(StoreVerb::Set, rest),
        _ => parse_other(line),
    }
}

/// The first key of a request that has just arrived, if it is a plain `get` or `set`: a guess, to fetch what serving
/// it will need.
#[inline]
pub fn foresee(input: &[u8]) -> Option<&[u8]> {
    let ([b'g', b'e', b't', b' ', rest @ ..] | [b's', b'e', b't', b' ', rest @ ..]) = input else {
        return None;
    };
    let end = rest.iter().take(MEMCACHED_KEY_MAX_BYTES + 1).position(|&byte| byte <= b' ')?;
    (end > 0).then(|| &rest[..end])
}

/// `get <key>*` and `gets <key>*`.
#[inline]
pub(super) fn get(rest: &[u8], with_cas: bool) -> Parsed<'_> {
    Ok(Command::Get(Get { keys: KeyList::new(rest)?, how: GetHow { with_cas, touch: None } }))
}

/// The keys of one whole line, in order; an iterator over them.
///
/// Made by the parser only: there is at least one key, and none is too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyList<'a> {
    /// What is left of the line; starts at a key, or is empty.
    rest: &'a [u8],
}

impl<'a> KeyList<'a> {
    /// The keys in `rest`; an error if there are none or one is too long.
    #[inline]
    pub(super) fn new(rest: &'a [u8]) -> Result<Self, ClientError> {
        let list = Self { rest: skip_spaces(rest) };
        if list.rest.is_empty() || (list.rest.len() > MEMCACHED_KEY_MAX_BYTES && list.has_long_key()) {
            return Err(BAD_FORMAT);
        }
        Ok(list)
    }

    /// Bytes of the line from the next key on.
    pub fn rest_bytes(&self) -> usize {
        self.rest.len()
    }

    fn has_long_key(mut self) -> bool {
        self.any(|key| key.len() > MEMCACHED_KEY_MAX_BYTES)
    }
}

impl<'a> Iterator for KeyList<'a> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        if self.rest.is_empty() {
            return None;
        }
        let end = memchr(b' ', self.rest).unwrap_or(self.rest.len());
        let (key, rest) = self.rest.split_at(end);
        self.rest = skip_spaces(rest);
        Some(key)
    }
}

/// `bytes` without the spaces it starts with.
#[inline]
pub(super) fn skip_spaces(mut bytes: &[u8]) -> &[u8] {
    while let [b' ', rest @ ..] = bytes {
        bytes = rest;
    }
    bytes
}

/// Appends `VALUE <key> <flags> <bytes> [<cas>]`; the value and its CR LF follow.
#[inline]
pub fn value_line(key: &[u8], client_flags: u32, size_bytes: u64, cas: Option<u64>, out: &mut Vec<u8>) {
    // Three numbers of at most 20 digits, three spaces, CR LF.
    let mut tail = Tail::<65>::new();
    tail.byte(b'\n');
    tail.byte(b'\r');
    if let Some(cas) = cas {
        tail.number(cas);
        tail.byte(b' ');
    }
    tail.number(size_bytes);
    tail.byte(b' ');
    tail.number(u64::from(client_flags));
    tail.byte(b' ');
    out.extend_from_slice(b"VALUE ");
    out.extend_from_slice(key);
    out.extend_from_slice(tail.bytes());
}
