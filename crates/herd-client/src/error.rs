//! The one error type of the client: what went wrong, for which request, and what lies behind it.

use herd_core::entry::Version;
use std::fmt;
use std::io;

/// What went wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// No such object.
    NotFound,
    /// The condition does not hold.
    ConditionFailed {
        /// Present version of the object; 0: there is none.
        version: Version,
    },
    /// No such collection.
    NoCollection,
    /// The herd refused, and said why. Nothing was changed.
    Refused(herd_core::ErrorKind),
    /// No node could be reached, or none answered. Nothing was changed.
    Unreachable,
    /// The request was sent and the answer never came: it may have been done.
    OutcomeUnknown,
    /// A connection was lost in the middle of a get to a stream, and the object is another by now.
    Changed,
    /// A node's answer breaks the protocol or fails its checksums.
    BadReply,
    /// The caller's own reader or writer failed.
    Local(io::ErrorKind),
}

/// A kind, what was being done, and the cause.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    /// The request it is of: its verb, and what it was about.
    request: Option<(&'static str, String)>,
    context: String,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// What every call of this crate returns.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// An error that says `context`, one line.
    pub fn new(kind: ErrorKind, context: impl Into<String>) -> Self {
        Self { kind, request: None, context: context.into(), source: None }
    }

    /// The same with what caused it.
    pub fn caused_by(mut self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// What went wrong.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The same error of another kind.
    pub(crate) fn with_kind(mut self, kind: ErrorKind) -> Self {
        self.kind = kind;
        self
    }

    /// The same error, told of a request.
    pub(crate) fn of(mut self, verb: &'static str, what: String) -> Self {
        self.request = Some((verb, what));
        self
    }

    /// What the request was about that failed, `COLLECTION/NAME` or a collection, if the error is of one.
    pub fn subject(&self) -> Option<&str> {
        self.request.as_ref().map(|(_, what)| what.as_str())
    }

    /// What it says, without the request it is of.
    pub fn reason(&self) -> String {
        let cause = self.source.as_ref().map_or_else(String::new, |source| format!(": {source}"));
        format!("{}{cause}", self.context)
    }

    /// The same error, told of `what` besides.
    pub(crate) fn about(mut self, what: impl fmt::Display) -> Self {
        self.context = format!("{what}: {}", self.context);
        self
    }

    pub(crate) fn bad_reply(text: impl Into<String>) -> Self {
        Self::new(ErrorKind::BadReply, text)
    }

    pub(crate) fn bad_request(text: impl Into<String>) -> Self {
        Self::new(ErrorKind::Refused(herd_core::ErrorKind::BadRequest), text)
    }

    pub(crate) fn local(error: io::Error) -> Self {
        Self::new(ErrorKind::Local(error.kind()), "local data").caused_by(error)
    }

    pub(crate) fn lost(error: io::Error) -> Self {
        Self::new(ErrorKind::Unreachable, "connection lost").caused_by(error)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.request {
            Some((verb, what)) => write!(f, "{verb} {what}: {}", self.reason()),
            None => f.write_str(&self.reason()),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}
