//! The flags of the meta commands `mg`, `ms`, `md`, `ma`, `me` (protocol.txt, "Meta Commands").
//!
//! All commands know the same flags, as in memcached; each heeds those that mean something to it.

use super::parse::{BAD_FORMAT, Parsed, body_bytes, take_key, take_word};
use super::{ClientError, Command, number, reply};
use crate::limits::MEMCACHED_KEY_MAX_BYTES;

/// Longest token of flag `O`, the letter included.
const OPAQUE_MAX_BYTES: usize = 32;

/// Most words of a meta command line, the command and the key included.
const WORDS_MAX: usize = 20;

/// Some of the flags, each a letter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlagSet(u64);

impl FlagSet {
    /// The flags in `letters`; for constants.
    pub const fn of(letters: &[u8]) -> Self {
        let mut set = 0;
        let mut at = 0;
        while at < letters.len() {
            set |= 1 << (letters[at] - b'A');
            at += 1;
        }
        Self(set)
    }

    /// Whether `letter` is among them.
    #[inline]
    pub const fn has(self, letter: u8) -> bool {
        letter >= b'A' && letter <= b'z' && self.0 >> (letter - b'A') & 1 == 1
    }
}

/// How `ms` stores (flag `M`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetMode {
    /// `S`, or none given.
    Set,
    /// `E`: add.
    Add,
    /// `A`: append.
    Append,
    /// `P`: prepend.
    Prepend,
    /// `R`: replace.
    Replace,
}

/// The key and the flags of a meta command.
///
/// A field of a flag that was not given holds the value named in its description; [`Meta::has`] tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meta<'a> {
    /// The key as it was sent; base64 if `b` was given, see [`Meta::key`].
    pub(super) sent_key: &'a [u8],
    /// The flags as they were sent, for they are answered in their order.
    words: &'a [u8],
    given: FlagSet,
    /// Mode letter (`M`), or 0.
    mode: u8,
    /// Client's flags to store (`F`), or 0.
    pub client_flags: u32,
    /// New expiry (`T`), or 0.
    pub exptime: i64,
    /// Expiry of an item made because there was none (`N`), or 0.
    pub vivify_exptime: i64,
    /// Win the right to recache if less time is left (`R`), or 0.
    pub recache_exptime: i64,
    /// CAS value to compare with (`C`), or 0.
    pub compare_cas: u64,
    /// CAS value to set (`E`), or 0.
    pub new_cas: u64,
    /// Amount of `ma` (`D`), or 1.
    pub delta: u64,
    /// First value of `ma` if it makes the item (`J`), or 0.
    pub initial: u64,
}

impl<'a> Meta<'a> {
    /// Parses `<key> <flag>*`.
    pub(super) fn parse(mut rest: &'a [u8]) -> Result<Self, ClientError> {
        let key = take_key(&mut rest).ok_or(BAD_FORMAT)?;
        Self::parse_flags(key, rest, WORDS_MAX - 2)
    }

    /// Parses at most `flags_max` flags that follow `key`.
    fn parse_flags(key: &'a [u8], words: &'a [u8], flags_max: usize) -> Result<Self, ClientError> {
        if key.len() > MEMCACHED_KEY_MAX_BYTES {
            return Err(BAD_FORMAT);
        }
        let mut meta = Self::bare(key, words);
        let mut rest = words;
        let mut count = 0;
        while let Some(word) = take_word(&mut rest) {
            count += 1;
            if count > flags_max || meta.take_flag(word[0], &word[1..]).is_err() {
                return Err(ClientError::new(Self::named_fault(key, words, flags_max)));
            }
        }
        Ok(meta)
    }

    /// Key and flags as they were sent, by which [`Meta::of_sent`] makes the same anew.
    pub(crate) fn sent(&self) -> (&'a [u8], &'a [u8]) {
        (self.sent_key, self.words)
    }

    /// Of key and flags as they were sent; `None` if no command has such.
    pub(crate) fn of_sent(key: &'a [u8], words: &'a [u8]) -> Option<Self> {
        Self::parse_flags(key, words, WORDS_MAX - 2).ok().filter(|_| !key.is_empty())
    }

    /// The fault that memcached names, of a line that has some: a word that is no flag; or else too many; or else the
    /// first unknown or repeated flag; or else the last flag with a wrong token, `F` and `O` only if no other has one.
    #[cold]
    fn named_fault(key: &[u8], words: &[u8], flags_max: usize) -> &'static [u8] {
        if has_no_flag(words) {
            return reply::BAD_FORMAT;
        }
        let mut meta = Meta::bare(key, words);
        if meta.flags().count() > flags_max {
            return reply::TOO_MANY_FLAGS;
        }
        let mut named = reply::OPAQUE_TOO_LONG;
        for word in meta.flags() {
            match meta.take_flag(word[0], &word[1..]) {
                Err(fault @ (reply::DUPLICATE_FLAG | reply::INVALID_FLAG)) => return fault,
                Err(reply::BAD_FORMAT) if named != reply::OPAQUE_TOO_LONG => {}
                Ok(()) | Err(reply::OPAQUE_TOO_LONG) => {}
                Err(fault) => named = fault,
            }
        }
        named
    }

    /// Without any flag.
    fn bare(key: &'a [u8], words: &'a [u8]) -> Self {
        Self {
            sent_key: key,
            words,
            given: FlagSet::default(),
            mode: 0,
            client_flags: 0,
            exptime: 0,
            vivify_exptime: 0,
            recache_exptime: 0,
            compare_cas: 0,
            new_cas: 0,
            delta: 1,
            initial: 0,
        }
    }

    /// Takes in one flag with what follows its letter; the error is the reply.
    #[inline]
    fn take_flag(&mut self, letter: u8, token: &[u8]) -> Result<(), &'static [u8]> {
        const KNOWN: FlagSet = FlagSet::of(b"bcfhklqstuvxCDEFIJLMNOPRT");
        if self.given.has(letter) {
            return Err(reply::DUPLICATE_FLAG);
        }
        if !KNOWN.has(letter) {
            return Err(reply::INVALID_FLAG);
        }
        self.given.0 |= 1 << (letter - b'A');
        let exptime = || number::signed(token).ok_or(reply::BAD_TOKEN);
        let cas = || number::unsigned(token).ok_or(reply::BAD_TOKEN);
        match letter {
            b'T' => self.exptime = exptime()?,
            b'N' => self.vivify_exptime = exptime()?,
            b'R' => self.recache_exptime = exptime()?,
            b'C' => self.compare_cas = cas()?,
            b'E' => self.new_cas = cas()?,
            b'F' => self.client_flags = number::unsigned32(token).ok_or(reply::BAD_FORMAT)?,
            b'D' => self.delta = number::unsigned(token).ok_or(reply::BAD_META_DELTA)?,
            b'J' => self.initial = number::unsigned(token).ok_or(reply::BAD_META_INITIAL)?,
            b'M' => self.mode = token.first().copied().unwrap_or(b' '),
            b'O' if token.len() >= OPAQUE_MAX_BYTES => return Err(reply::OPAQUE_TOO_LONG),
            b'b' => decode(self.sent_key, |_| ()).ok_or(reply::BAD_BASE64)?,
            _ => {}
        }
        Ok(())
    }

    /// Whether the flag `letter` was given.
    #[inline]
    pub fn has(&self, letter: u8) -> bool {
        self.given.has(letter)
    }

    /// Quiet (`q`): what is expected is not said: a miss of `mg`, success of `ms`, `md`, `ma`.
    pub fn is_quiet(&self) -> bool {
        self.has(b'q')
    }

    /// The key of the item: as sent, or decoded into `buffer` if it was sent as base64.
    #[inline]
    pub fn key<'b>(&self, buffer: &'b mut Vec<u8>) -> &'b [u8]
    where
        'a: 'b,
    {
        if !self.has(b'b') {
            return self.sent_key;
        }
        buffer.clear();
        decode(self.sent_key, |bytes| buffer.extend_from_slice(bytes)).expect("parsing has decoded it before");
        buffer
    }

    /// The flags in the order they were sent, each with its token.
    pub(super) fn flags(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let mut rest = self.words;
        std::iter::from_fn(move || take_word(&mut rest))
    }
}

/// `ms <key> <bytes> <flag>*`. Once the length is known, any error drops the body.
pub(super) fn parse_set(mut rest: &[u8]) -> Parsed<'_> {
    let key = take_key(&mut rest).ok_or(BAD_FORMAT)?;
    let bytes = take_word(&mut rest).and_then(body_bytes).ok_or(BAD_FORMAT)?;
    let meta = Meta::parse_flags(key, rest, WORDS_MAX - 3).map_err(|error| error.swallow(bytes))?;
    let mode = match meta.mode {
        0 | b'S' => SetMode::Set,
        b'E' => SetMode::Add,
        b'A' => SetMode::Append,
        b'P' => SetMode::Prepend,
        b'R' => SetMode::Replace,
        _ => return Err(ClientError::new(reply::BAD_SET_MODE).swallow(bytes)),
    };
    Ok(Command::MetaSet { meta, mode, bytes })
}

/// `ma <key> <flag>*`. Whatever is wrong with a flag, but for an opaque, has one reply; a word that is none has
/// another.
pub(super) fn parse_arith(mut rest: &[u8]) -> Parsed<'_> {
    let key = take_key(&mut rest).ok_or(BAD_FORMAT)?;
    let meta = Meta::parse_flags(key, rest, WORDS_MAX - 2).map_err(|error| match error.reply {
        reply::OPAQUE_TOO_LONG => error,
        _ if has_no_flag(rest) => BAD_FORMAT,
        _ => ClientError::new(reply::INVALID_OR_DUPLICATE),
    })?;
    match meta.mode {
        0 | b'I' | b'+' => Ok(Command::MetaArith { meta, decrement: false }),
        b'D' | b'-' => Ok(Command::MetaArith { meta, decrement: true }),
        _ => Err(ClientError::new(reply::BAD_ARITH_MODE)),
    }
}

/// `me <key> [b]`; other words that could be flags are ignored, as in memcached.
pub(super) fn parse_debug(mut rest: &[u8]) -> Parsed<'_> {
    let key = take_key(&mut rest).filter(|_| !has_no_flag(rest)).ok_or(BAD_FORMAT)?;
    let words: &[u8] = if take_word(&mut rest) == Some(b"b") { b"b" } else { b"" };
    Meta::parse_flags(key, words, 1).map(Command::MetaDebug).map_err(|_| BAD_FORMAT)
}

/// Whether some word cannot be a flag, by its first byte.
fn has_no_flag(mut words: &[u8]) -> bool {
    std::iter::from_fn(|| take_word(&mut words)).any(|word| !matches!(word[0], b'A'..=b'z' | b'0'..=b'9'))
}

/// Decodes base64 (RFC 4648 §4, padding required), handing on up to three bytes at a time; `None` if it is none.
fn decode(text: &[u8], mut put: impl FnMut(&[u8])) -> Option<()> {
    if text.is_empty() || !text.len().is_multiple_of(4) {
        return None;
    }
    let padding = text.iter().rev().take(2).take_while(|&&byte| byte == b'=').count();
    let (digits, _) = text.split_at(text.len() - padding);
    for four in digits.chunks(4) {
        let mut bits = 0;
        for &byte in four {
            bits = bits << 6 | sextet(byte)?;
        }
        let [_, bytes @ ..] = (bits << (6 * (4 - four.len()))).to_be_bytes();
        put(&bytes[..four.len() - 1]);
    }
    Some(())
}

/// The six bits of one base64 digit.
fn sextet(digit: u8) -> Option<u32> {
    let bits = match digit {
        b'A'..=b'Z' => digit - b'A',
        b'a'..=b'z' => digit - b'a' + 26,
        b'0'..=b'9' => digit - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => return None,
    };
    Some(u32::from(bits))
}
