//! One object as the store holds it, and the decisions about it.
//!
//! Per-object logic is a pure step: the doors and the store hold the entry's lock, hand in what is there and the
//! request, and carry out what comes back. Nothing here knows how a value is stored.

use crate::error::{Error, ErrorKind};

/// Version of an object: group epoch (24 bits) and counter of its slot (40 bits); rises per key for ever.
pub type Version = u64;

/// Bits of the counter within a [`Version`].
pub const COUNTER_BITS: u32 = 40;

/// The first version of a slot after a start at `unix_ms`, above all versions of earlier starts.
///
/// In a herd of one no map hands out epochs, so the clock at the start does: minutes since 2026 are the epoch and the
/// milliseconds within the minute the top of the counter.
pub fn first_version(unix_ms: u64) -> Version {
    const YEAR_2026_MS: u64 = 1_767_225_600_000;
    let since = unix_ms.saturating_sub(YEAR_2026_MS);
    let epoch = (since / 60_000 + 1) & 0xFF_FFFF;
    (epoch << COUNTER_BITS) | ((since % 60_000) << 22)
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
}

impl Condition {
    /// Whether it holds for what is there; the error names the present version.
    pub fn check(self, present: Option<Version>) -> Result<(), Error> {
        let holds = match self {
            Condition::None => true,
            Condition::IfAbsent => present.is_none(),
            Condition::IfPresent => present.is_some(),
            Condition::IfVersion(version) => present == Some(version),
        };
        if holds {
            return Ok(());
        }
        let there = match present {
            Some(version) => format!("it has version {version}"),
            None => "there is no such object".to_string(),
        };
        Err(Error::new(ErrorKind::ConditionFailed, format!("condition failed: {there}")))
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
