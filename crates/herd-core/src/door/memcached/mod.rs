//! memcached text and meta, as memcached 1.6 speaks them (its doc/protocol.txt): parsing and encoding.
//!
//! Pure: bytes in, a [`Command`] that borrows from them or a [`ClientError`] out; replies are appended to a buffer.
//! Nothing here allocates but for that buffer. Called by the node's memcached door and by fuzz targets only.
//!
//! A door's session cuts lines with [`split_line`] and hands each to [`parse_line`]. When more than
//! `MEMCACHED_COMMAND_MAX_BYTES` have come without a line end, only a list of keys can be meant: [`KeyStream`] then
//! gives the keys as they arrive. A command with a body gives `bytes`; the body and its own CR LF follow the line.
//! Where the body is not there yet, the session keeps the line and parses it again when it is: no command needs an
//! owned form.
//!
//! Where this differs from memcached 1.6, it is on purpose: expiry times are 64 bits wide (no end in 2038), client
//! flags above 32 bits are refused, and a command's numbers with a plus sign; words of `stats` are matched whole,
//! `noreply` counts only behind the key, a base64 key must be proper base64, and `b` works for `me` without a further
//! flag.

mod admin;
mod encode;
mod get;
mod keys;
mod meta;
mod number;
mod parse;
pub mod reply;

pub use admin::{DebugTime, StatsTopic};
pub use encode::{
    Clock, meta_arith, meta_arith_effects, meta_debug, meta_get, meta_get_effects, meta_miss, meta_status, stat,
};
pub use get::{KeyList, foresee, parse_line, split_line, value_line};
pub use keys::{KeyStep, KeyStream};
pub use meta::{FlagSet, Meta, SetMode};
pub use number::{apply_delta, decimal};

use crate::error::{Error, ErrorKind};

/// One command line, understood. Keys are 1 to `MEMCACHED_KEY_MAX_BYTES` bytes without spaces.
///
/// `quiet` is `noreply`: the reply, errors too, is left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command<'a> {
    /// `get`, `gets`, `gat`, `gats`.
    Get(Get<'a>),
    /// `set`, `add`, `replace`, `append`, `prepend`, `cas`; a body follows.
    Store(Store<'a>),
    /// `delete`.
    Delete {
        /// Key.
        key: &'a [u8],
        /// No reply.
        quiet: bool,
    },
    /// `incr` and `decr`.
    Arith {
        /// Key.
        key: &'a [u8],
        /// What to add or take away.
        delta: u64,
        /// Take away.
        decrement: bool,
        /// No reply.
        quiet: bool,
    },
    /// `touch`.
    Touch {
        /// Key.
        key: &'a [u8],
        /// New expiry, see [`expires_ms`].
        exptime: i64,
        /// No reply.
        quiet: bool,
    },
    /// `mg`.
    MetaGet(Meta<'a>),
    /// `ms`; a body follows.
    MetaSet {
        /// Key and flags.
        meta: Meta<'a>,
        /// How to store.
        mode: SetMode,
        /// Bytes of the body without its CR LF.
        bytes: u32,
    },
    /// `md`.
    MetaDelete(Meta<'a>),
    /// `ma`.
    MetaArith {
        /// Key and flags.
        meta: Meta<'a>,
        /// Take away.
        decrement: bool,
    },
    /// `mn`: answered `MN`; what was held back is sent.
    MetaNoop,
    /// `me`: a line about one item.
    MetaDebug(Meta<'a>),
    /// `flush_all`.
    FlushAll {
        /// 0 or less: now; else when, counted like an expiry.
        delay: i64,
        /// No reply.
        quiet: bool,
    },
    /// `stats`.
    Stats(StatsTopic),
    /// `verbosity`.
    Verbosity {
        /// Level asked for.
        level: u32,
        /// No reply.
        quiet: bool,
    },
    /// `version`.
    Version,
    /// `quit`: close once everything before it is answered.
    Quit,
    /// `debugtime`: only where the node was started with debug time; elsewhere the answer is `ERROR`.
    DebugTime(DebugTime),
}

/// A `get` in one of its four forms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Get<'a> {
    /// Keys, in order; at least one.
    pub keys: KeyList<'a>,
    /// How to answer.
    pub how: GetHow,
}

/// What a `get` does with each of its keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GetHow {
    /// Give the CAS value (`gets`, `gats`).
    pub with_cas: bool,
    /// Set this expiry (`gat`, `gats`), see [`expires_ms`].
    pub touch: Option<i64>,
}

/// A storage command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Store<'a> {
    /// Which.
    pub verb: StoreVerb,
    /// Key.
    pub key: &'a [u8],
    /// Client's flags.
    pub flags: u32,
    /// Expiry, see [`expires_ms`].
    pub exptime: i64,
    /// Bytes of the body without its CR LF.
    pub bytes: u32,
    /// CAS value (`cas`), else 0.
    pub cas: u64,
    /// No reply.
    pub quiet: bool,
}

/// The storage commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreVerb {
    /// Whatever is there.
    Set,
    /// Only if nothing is there.
    Add,
    /// Only if something is there.
    Replace,
    /// Behind what is there.
    Append,
    /// Before what is there.
    Prepend,
    /// Only if the CAS value is the given one.
    Cas,
}

/// A line that is not carried out, and what to do instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientError {
    /// The whole reply with its CR LF; empty: none.
    pub reply: &'static [u8],
    /// Bytes that follow the line and are to be dropped (a body with its CR LF).
    pub swallow_bytes: u32,
    /// `noreply` was given: the reply is left out.
    pub quiet: bool,
    /// Close the connection after the reply.
    pub close: bool,
}

impl ClientError {
    /// An error answered with `reply`.
    const fn new(reply: &'static [u8]) -> Self {
        Self { reply, swallow_bytes: 0, quiet: false, close: false }
    }

    /// The same, left out if `quiet`.
    const fn quiet(self, quiet: bool) -> Self {
        Self { quiet, ..self }
    }

    /// The same, with a body of `bytes` to drop.
    const fn swallow(self, bytes: u32) -> Self {
        Self { swallow_bytes: bytes + 2, ..self }
    }

    /// The same, closing the connection.
    const fn close(self) -> Self {
        Self { close: true, ..self }
    }
}

/// Longest relative expiry (30 days, protocol.txt "Expiration times"); above it a number is seconds since 1970.
const RELATIVE_MAX_S: i64 = 60 * 60 * 24 * 30;

/// When something stored at `now_ms` with `exptime` expires, in ms since 1970; 0: never.
///
/// A negative time, or one that is past, is at once: 1, which [`crate::entry::Head::is_expired`] takes for expired.
pub fn expires_ms(exptime: i64, now_ms: u64) -> u64 {
    match u64::try_from(exptime) {
        Err(_) => 1,
        Ok(0) => 0,
        Ok(seconds) if exptime <= RELATIVE_MAX_S => now_ms.saturating_add(seconds * 1000),
        Ok(seconds) => seconds.saturating_mul(1000),
    }
}

/// Whole seconds until `expires_ms`, begun ones counted; `None`: never expires.
pub fn remaining_s(expires_ms: u64, now_ms: u64) -> Option<u64> {
    (expires_ms != 0).then(|| expires_ms.saturating_sub(now_ms).div_ceil(1000))
}

/// The reply to a command that the store refused with an error of `kind`.
pub fn refusal(kind: ErrorKind) -> &'static [u8] {
    match kind {
        ErrorKind::TooLarge => reply::TOO_LARGE,
        ErrorKind::Full | ErrorKind::Quota => reply::OUT_OF_MEMORY,
        ErrorKind::Busy => reply::BUSY,
        ErrorKind::Timeout => reply::TIMEOUT,
        ErrorKind::BadChecksum => reply::BAD_CHECKSUM,
        ErrorKind::NotAllowed => reply::NOT_ALLOWED,
        ErrorKind::Unreachable => reply::UNREACHABLE,
        ErrorKind::OutcomeUnknown | ErrorKind::OutcomeLost => reply::OUTCOME_UNKNOWN,
        ErrorKind::NotInVersion => reply::ERROR,
        ErrorKind::NotFound => reply::NOT_FOUND,
        ErrorKind::ConditionFailed => reply::NOT_STORED,
        ErrorKind::BadRequest | ErrorKind::BadRange => reply::BAD_FORMAT,
        ErrorKind::NoCollection | ErrorKind::Exists => reply::NO_COLLECTION,
    }
}

/// Appends the reply to a command that the store refused: where memory is full, which memory that is stands behind
/// memcached's own words.
pub fn write_refusal(out: &mut Vec<u8>, error: &Error) {
    let line = refusal(error.kind);
    if !matches!(error.kind, ErrorKind::Full | ErrorKind::Quota) {
        return out.extend_from_slice(line);
    }
    let words = error.text.replace(char::is_control, " ");
    out.extend_from_slice(line.trim_ascii_end());
    out.extend_from_slice(b": ");
    out.extend_from_slice(words.as_bytes());
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests;
