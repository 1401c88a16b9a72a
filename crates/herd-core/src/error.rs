//! The one error type of the core, and the kinds every door translates.

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
}

impl ErrorKind {
    /// All kinds, for tables of metrics.
    pub const ALL: [ErrorKind; 14] = [
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
    /// An error of `kind` that says `text`.
    pub fn new(kind: ErrorKind, text: impl Into<String>) -> Self {
        Self { kind, text: text.into() }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Error {}
