//! Exit statuses (DESIGN §5) and how a failure is told: one line on stderr.

use herd_client::{Error, ErrorKind};
use herd_core::ErrorKind as Core;
use std::fmt::Display;
use std::process::ExitCode;

/// What every command returns.
pub(crate) type Outcome = Result<(), Failure>;

/// A command that failed: its exit status and what is told.
pub(crate) struct Failure {
    pub(crate) code: u8,
    pub(crate) text: String,
}

/// What was asked is not so.
pub(crate) const NOT_SO: u8 = 1;
/// Bad usage, or a local file fails.
pub(crate) const USAGE: u8 = 2;
/// The herd can't be reached, or refuses.
const REFUSED: u8 = 3;
/// It may have been done.
const UNKNOWN: u8 = 4;

impl Failure {
    pub(crate) fn new(code: u8, text: impl Into<String>) -> Self {
        Self { code, text: text.into() }
    }

    /// A failure of something on this machine, about `what`.
    pub(crate) fn local<E: Display>(what: impl Display) -> impl FnOnce(E) -> Self {
        move |error| Self::new(USAGE, format!("{what}: {error}"))
    }

    /// Tells it and gives the exit status.
    pub(crate) fn report(&self) -> ExitCode {
        if !self.text.is_empty() {
            eprintln!("herd: {}", self.text.replace('\n', " "));
        }
        ExitCode::from(self.code)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let code = match error.kind() {
            ErrorKind::NotFound | ErrorKind::ConditionFailed { .. } | ErrorKind::NoCollection => NOT_SO,
            ErrorKind::Refused(Core::BadRange | Core::Exists) | ErrorKind::Changed => NOT_SO,
            ErrorKind::Refused(Core::BadRequest | Core::NotInVersion) | ErrorKind::Local(_) => USAGE,
            ErrorKind::Refused(_) | ErrorKind::Unreachable | ErrorKind::BadReply => REFUSED,
            ErrorKind::OutcomeUnknown => UNKNOWN,
        };
        Self::new(code, error.to_string())
    }
}
