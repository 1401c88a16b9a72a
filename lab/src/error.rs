//! The lab's one error: what was being done, and what the system said. A lab error ends an arm, never the whole run.

use std::fmt;
use std::io;

/// What failed, with the system's reason where there is one.
#[derive(Debug)]
pub(crate) struct Error {
    context: String,
    source: Option<io::Error>,
    /// This machine lacks what was wanted: nothing is wrong, and what needs it is skipped.
    lacking: bool,
}

/// Result with the lab's error.
pub(crate) type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error without a cause from the system: wrong replies, bad specifications, peers that do not start.
    pub(crate) fn new(context: impl Into<String>) -> Self {
        Self { context: context.into(), source: None, lacking: false }
    }

    /// This machine lacks something: a program, a device, a right.
    pub(crate) fn lacking(context: impl Into<String>) -> Self {
        Self { lacking: true, ..Self::new(context) }
    }

    /// Whether it is of that kind.
    pub(crate) fn is_lacking(&self) -> bool {
        self.lacking
    }

    /// Puts what was being done in front.
    pub(crate) fn within(self, work: &str) -> Self {
        Self { context: format!("{work}: {}", self.context), ..self }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.context)?;
        self.source.as_ref().map_or(Ok(()), |source| write!(f, ": {source}"))
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|source| source as _)
    }
}

impl From<io::Error> for Error {
    fn from(source: io::Error) -> Self {
        Self { context: "system call".into(), source: Some(source), lacking: false }
    }
}

impl From<serde_json::Error> for Error {
    fn from(source: serde_json::Error) -> Self {
        Self::new(format!("JSON: {source}"))
    }
}

/// Adds what was being done to a failed system call.
pub(crate) trait Context<T> {
    /// Names the work that failed; the closure runs only on failure.
    fn during(self, work: impl FnOnce() -> String) -> Result<T>;

    /// The same, where failure means that this machine lacks something.
    fn needing(self, work: impl FnOnce() -> String) -> Result<T>;
}

impl<T> Context<T> for io::Result<T> {
    fn during(self, work: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|source| Error { context: work(), source: Some(source), lacking: false })
    }

    fn needing(self, work: impl FnOnce() -> String) -> Result<T> {
        self.during(work).map_err(|error| Error { lacking: true, ..error })
    }
}
