//! The one error type of the core, and the kinds every door translates.

use crate::limits::{ERROR_TEXT_MAX_BYTES, QUOTE_MAX_BYTES};
use crate::size;
use std::fmt;

/// What went wrong, independent of the protocol that asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// No such object.
    NotFound,
    /// The condition of the request does not hold.
    ConditionFailed,
    /// No such collection.
    NoCollection,
    /// The collection exists with another specification.
    Exists,
    /// Malformed or out of range.
    BadRequest,
    /// The object is over the limit.
    TooLarge,
    /// Memory is full and nothing may be evicted.
    Full,
    /// The collection's quota is full.
    Quota,
    /// A block failed its checksum.
    BadChecksum,
    /// Not in this version.
    NotInVersion,
    /// A deadline passed.
    Timeout,
    /// Too many requests open, or the node is stopping.
    Busy,
    /// The range starts past the end.
    BadRange,
    /// The caller may not do this.
    NotAllowed,
    /// The node that has the object, or some of what is asked for, can't be asked.
    Unreachable,
    /// It may have been done, and nothing tells: who might have had the answer is out of reach.
    OutcomeUnknown,
    /// The same, and nobody will ever know: who has the object now keeps no ids of requests, or what was known is gone.
    OutcomeLost,
}

impl ErrorKind {
    /// Whether there was no room for a value.
    pub fn lacks_room(self) -> bool {
        matches!(self, ErrorKind::Full | ErrorKind::Quota | ErrorKind::TooLarge)
    }

    /// All kinds, for tables of metrics.
    pub const ALL: [ErrorKind; 17] = [
        ErrorKind::NotFound,
        ErrorKind::ConditionFailed,
        ErrorKind::NoCollection,
        ErrorKind::Exists,
        ErrorKind::BadRequest,
        ErrorKind::TooLarge,
        ErrorKind::Full,
        ErrorKind::Quota,
        ErrorKind::BadChecksum,
        ErrorKind::NotInVersion,
        ErrorKind::Timeout,
        ErrorKind::Busy,
        ErrorKind::BadRange,
        ErrorKind::NotAllowed,
        ErrorKind::Unreachable,
        ErrorKind::OutcomeUnknown,
        ErrorKind::OutcomeLost,
    ];

    /// The kind as a word, as metrics and JSON have it.
    pub fn name(self) -> &'static str {
        match self {
            ErrorKind::NotFound => "not_found",
            ErrorKind::ConditionFailed => "condition_failed",
            ErrorKind::NoCollection => "no_collection",
            ErrorKind::Exists => "exists",
            ErrorKind::BadRequest => "bad_request",
            ErrorKind::TooLarge => "too_large",
            ErrorKind::Full => "full",
            ErrorKind::Quota => "quota",
            ErrorKind::BadChecksum => "bad_checksum",
            ErrorKind::NotInVersion => "not_in_version",
            ErrorKind::Timeout => "timeout",
            ErrorKind::Busy => "busy",
            ErrorKind::BadRange => "bad_range",
            ErrorKind::NotAllowed => "not_allowed",
            ErrorKind::Unreachable => "unreachable",
            ErrorKind::OutcomeUnknown => "outcome_unknown",
            ErrorKind::OutcomeLost => "outcome_lost",
        }
    }
}

/// An error of the core: its kind and what a person should read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// What went wrong.
    pub kind: ErrorKind,
    /// One line: what, which object, what to do.
    pub text: String,
}

impl Error {
    /// An error of `kind` that says `text`, of which [`ERROR_TEXT_MAX_BYTES`] are kept: others' words may be in it.
    pub fn new(kind: ErrorKind, text: impl Into<String>) -> Self {
        let mut text = text.into();
        text.truncate(text.floor_char_boundary(ERROR_TEXT_MAX_BYTES));
        Self { kind, text }
    }

    /// An object of `size_bytes` is over a node's limit of `limit_bytes`.
    #[cold]
    pub fn too_large(size_bytes: u64, limit_bytes: u64) -> Self {
        let (has, limit) = (size::show(size_bytes), size::show(limit_bytes));
        let has = if has == limit { format!("more than {has}") } else { has };
        Self::new(ErrorKind::TooLarge, format!("object of {has} is over the node's limit of {limit} (--max-object)"))
    }
}

/// A client's words as an error tells them: escaped, and at most [`QUOTE_MAX_BYTES`] of them before `..`.
pub fn quote(words: &[u8]) -> String {
    let cut = words.len() > QUOTE_MAX_BYTES;
    // A character is not cut within; what is none ends anywhere.
    let in_character = |at: &usize| cut && words[*at] & 0xC0 == 0x80;
    let end = words.len().min(QUOTE_MAX_BYTES);
    let end = (end.saturating_sub(3)..=end).rev().find(|at| !in_character(at)).unwrap_or(end);
    let mut quoted = String::new();
    for chunk in words[..end].utf8_chunks() {
        quoted.extend(chunk.valid().chars().flat_map(char::escape_debug));
        quoted.extend(chunk.invalid().iter().flat_map(|byte| byte.escape_ascii()).map(char::from));
    }
    if cut {
        quoted.push_str("..");
    }
    quoted
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_say_is_quoted_escaped_and_cut() {
        let table: [(&[u8], &str); 6] = [
            (b"a/b", "a/b"),
            (b"", ""),
            ("\u{65e5}\u{1b}[2J\n".as_bytes(), "\u{65e5}\\u{1b}[2J\\n"),
            (b"\xff\x00'", "\\xff\\0\\'"),
            (&[b'x'; 40], "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"),
            (&[b'x'; 41], "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx.."),
        ];
        for (words, quoted) in table {
            assert_eq!(quote(words), quoted);
        }
        assert_eq!(quote("\u{65e5}".repeat(20).as_bytes()), "\u{65e5}".repeat(13) + "..");
    }

    #[test]
    fn the_text_of_an_error_is_bounded() {
        let text = Error::new(ErrorKind::Full, "\u{65e5}".repeat(1000)).text;
        assert!(text.len() <= ERROR_TEXT_MAX_BYTES && text.len() > ERROR_TEXT_MAX_BYTES - 3);
    }
}
