//! One object as the store holds it, and the decisions about it.
//!
//! Per-object logic is a pure step: the doors and the store hold the entry's lock, hand in what is there and the
//! request, and carry out what comes back. Nothing here knows how a value is stored.

use crate::Chunks;
use crate::error::{Error, ErrorKind};
use std::fmt;

/// Version of an object: group epoch (24 bits) and counter of its slot (40 bits); rises per key for ever.
pub type Version = u64;

/// Bits of the counter within a [`Version`].
pub const COUNTER_BITS: u32 = 40;

/// The epoch of a start at `unix_ms` where nothing else hands out epochs: minutes since 2026, from 1.
pub fn first_epoch(unix_ms: u64) -> u32 {
    (since_2026_ms(unix_ms) / 60_000 + 1) as u32 & 0xFF_FFFF
}

/// The first version of a slot after a start at `unix_ms`, above all versions of earlier starts: of [`first_epoch`],
/// with the milliseconds within the minute on top of the counter.
pub fn first_version(unix_ms: u64) -> Version {
    (u64::from(first_epoch(unix_ms)) << COUNTER_BITS) | ((since_2026_ms(unix_ms) % 60_000) << 22)
}

fn since_2026_ms(unix_ms: u64) -> u64 {
    const YEAR_2026_MS: u64 = 1_767_225_600_000;
    unix_ms.saturating_sub(YEAR_2026_MS)
}

/// What is known of an object besides its value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Head {
    /// Its version.
    pub version: Version,
    /// Bytes of the value.
    pub size_bytes: u64,
    /// Opaque flags of the client (memcached).
    pub flags: u32,
    /// When it expires, ms since 1970; 0: never.
    pub expires_ms: u64,
    /// Last access, seconds since the node's start.
    pub access_s: u32,
    /// Whether it was read since it was written.
    pub fetched: bool,
    /// What the memcached door keeps of it, if anything.
    pub memcached: Memcached,
}

/// An object that was found, borrowed from where it lies; `B` is a large value.
pub struct Found<'a, B> {
    /// What is known of it.
    pub head: Head,
    /// Its attributes, encoded; empty if it has none.
    pub attributes: &'a [u8],
    /// The highest token of a lock that was shown with an operation on it.
    pub fence: Option<Fence>,
    /// Its value.
    pub value: Value<'a, B>,
}

/// The value of an object that was found.
pub enum Value<'a, B> {
    /// Up to 4 KiB, with its CRC-32C; valid while the object is held.
    Inline(&'a [u8], u32),
    /// Larger; may be kept.
    Body(&'a B),
}

impl<B> Clone for Value<'_, B> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<B> Copy for Value<'_, B> {}

impl<B: Chunks> Value<'_, B> {
    /// Appends bytes `from..to`, which lie within it, to `out`.
    pub fn copy(&self, from: u64, to: u64, out: &mut Vec<u8>) {
        match self {
            Value::Inline(bytes, _) => out.extend_from_slice(&bytes[from as usize..to as usize]),
            Value::Body(body) => {
                let mut at = from;
                while at < to {
                    let chunk = body.chunk(at);
                    let n = chunk.len().min((to - at) as usize);
                    out.extend_from_slice(&chunk[..n]);
                    at += n as u64;
                }
            }
        }
    }
}

/// What tells one holder of a lock from all earlier ones (Kleppmann's fencing token): grants of one lock rise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Token {
    /// Id of the lock's object.
    pub lock: [u8; 16],
    /// The grant; above those of all earlier holders.
    pub grant: u64,
}

/// The highest token that was shown with an operation on an object.
pub type Fence = Token;

/// Bytes of a token on the wire and in the store.
pub const TOKEN_BYTES: usize = 24;

impl Token {
    /// Its bytes: the lock's id, then the grant, little-endian.
    pub fn to_bytes(self) -> [u8; TOKEN_BYTES] {
        let mut out = [0; TOKEN_BYTES];
        out[..16].copy_from_slice(&self.lock);
        out[16..].copy_from_slice(&self.grant.to_le_bytes());
        out
    }

    /// The token of these bytes; `None` if they are not as many.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (lock, grant) = bytes.split_first_chunk::<16>()?;
        Some(Self { lock: *lock, grant: u64::from_le_bytes(grant.try_into().ok()?) })
    }

    /// The token that was written as by `Display`.
    pub fn parse(text: &str) -> Option<Self> {
        let (lock, grant) = text.split_once('-').filter(|(lock, grant)| lock.len() == 32 && grant.len() <= 20)?;
        let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let lock = u128::from_str_radix(lock, 16).ok().filter(|_| digits(lock))?;
        let grant = grant.parse().ok().filter(|_| grant.bytes().all(|byte| byte.is_ascii_digit()))?;
        Some(Self { lock: lock.to_be_bytes(), grant })
    }
}

impl fmt::Display for Token {
    /// The lock's id in 32 hexadecimal digits, a dash, the grant.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}-{}", u128::from_be_bytes(self.lock), self.grant)
    }
}

/// State that only memcached's meta commands give and ask for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memcached {
    /// A CAS value given by the client (flag E); 0: the version is the CAS value.
    pub cas: u64,
    /// Marked stale (flag I).
    pub stale: bool,
    /// The right to recache has been handed out (flags N, R, I).
    pub token_sent: bool,
}

impl Memcached {
    /// Whether there is nothing to keep.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl Head {
    /// Whether it has expired at `now_ms` (ms since 1970).
    #[inline]
    pub fn is_expired(&self, now_ms: u64) -> bool {
        self.expires_ms != 0 && self.expires_ms <= now_ms
    }

    /// `at_ms`, or when it expires if that is sooner (ms since 1970).
    pub fn or_expiry_ms(&self, at_ms: u64) -> u64 {
        if self.expires_ms == 0 { at_ms } else { at_ms.min(self.expires_ms) }
    }

    /// The CAS value memcached clients see.
    pub fn cas(&self) -> u64 {
        if self.memcached.cas != 0 { self.memcached.cas } else { self.version }
    }
}

/// What must hold for a put or a remove to be done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Condition {
    /// Nothing.
    #[default]
    None,
    /// No such object.
    IfAbsent,
    /// There is such an object.
    IfPresent,
    /// The object has just this version.
    IfVersion(Version),
    /// The object has just this CAS value, as memcached's clients see it.
    IfCas(u64),
}

impl Condition {
    /// Whether it holds for what is there; the error names the present version.
    pub fn check(self, present: Option<Version>) -> Result<(), Error> {
        let holds = match self {
            Condition::None => true,
            Condition::IfAbsent => present.is_none(),
            Condition::IfPresent => present.is_some(),
            Condition::IfVersion(version) | Condition::IfCas(version) => present == Some(version),
        };
        if holds { Ok(()) } else { Err(Self::failed(present)) }
    }

    /// Whether it holds for the object that is there, if one is; the error names its version.
    #[inline]
    pub fn check_head(self, present: Option<&Head>) -> Result<(), Error> {
        let holds = match self {
            Condition::None => true,
            Condition::IfAbsent => present.is_none(),
            Condition::IfPresent => present.is_some(),
            Condition::IfVersion(version) => present.is_some_and(|head| head.version == version),
            Condition::IfCas(cas) => present.is_some_and(|head| head.cas() == cas),
        };
        if holds { Ok(()) } else { Err(Self::failed(present.map(|head| head.version))) }
    }

    #[cold]
    fn failed(present: Option<Version>) -> Error {
        let there = match present {
            Some(version) => format!("it has version {version}"),
            None => "there is no such object".to_string(),
        };
        Error::new(ErrorKind::ConditionFailed, format!("condition failed: {there}"))
    }
}

/// A range of an object as a client asks for it: from `offset`, `length` bytes or to the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// First byte.
    pub offset: u64,
    /// Bytes wanted; `None`: to the end.
    pub length: Option<u64>,
}

impl Range {
    /// The whole object.
    pub const ALL: Range = Range { offset: 0, length: None };

    /// Offset and length within an object of `size` bytes; an error if it starts past the end.
    pub fn within(self, size: u64) -> Result<(u64, u64), Error> {
        if self.offset > size || (self.offset == size && self.offset != 0) {
            let text = format!("range starts at {} and the object has {size} bytes", self.offset);
            return Err(Error::new(ErrorKind::BadRange, text));
        }
        let rest = size - self.offset;
        Ok((self.offset, self.length.map_or(rest, |n| n.min(rest))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_hold_just_where_they_should() {
        let table = [
            (Condition::None, true, true, true),
            (Condition::IfAbsent, true, false, false),
            (Condition::IfPresent, false, true, true),
            (Condition::IfVersion(5), false, true, false),
        ];
        for (condition, absent, five, six) in table {
            assert_eq!(condition.check(None).is_ok(), absent);
            assert_eq!(condition.check(Some(5)).is_ok(), five);
            assert_eq!(condition.check(Some(6)).is_ok(), six);
        }
    }

    #[test]
    fn a_token_reads_back_as_it_was_written() {
        let token = Token { lock: std::array::from_fn(|i| i as u8 * 17), grant: u64::MAX };
        assert_eq!(Token::from_bytes(&token.to_bytes()), Some(token));
        assert_eq!(Token::parse(&token.to_string()), Some(token));
        let zeros = "0".repeat(32);
        for text in
            ["", "-", "0-1", &zeros, &format!("{zeros}-"), &format!("+{}-1", &zeros[1..]), &format!("{zeros}-+1")]
        {
            assert_eq!(Token::parse(text), None, "{text}");
        }
        assert_eq!(Token::from_bytes(&[0; 23]), None);
    }

    #[test]
    fn versions_rise_over_restarts() {
        let a = first_version(1_800_000_000_000);
        let b = first_version(1_800_000_000_900);
        let c = first_version(1_800_000_060_000);
        assert!(a < b && b < c);
        assert!(b - a > 1 << 30, "room for a billion writes to one slot in the time between");
    }

    #[test]
    fn ranges_are_cut_at_the_end_and_refused_past_it() {
        assert_eq!(Range::ALL.within(0), Ok((0, 0)));
        assert_eq!(Range { offset: 3, length: Some(10) }.within(5), Ok((3, 2)));
        assert!(Range { offset: 5, length: None }.within(5).is_err());
        assert!(Range { offset: 9, length: None }.within(5).is_err());
    }
}
