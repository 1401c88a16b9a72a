//! Exit statuses (docs/guide/errors.md) and how a failure is told: one line on stderr.

use crate::out;
use herd_client::{Error, ErrorKind};
use herd_core::ErrorKind as Core;
use std::fmt::Display;
use std::io;
use std::process::ExitCode;
use std::sync::OnceLock;

/// What every command returns.
pub(crate) type Outcome = Result<(), Failure>;

/// A command that failed: its exit status and what is told.
pub(crate) struct Failure {
    pub(crate) code: u8,
    pub(crate) text: String,
    /// Whether the same would happen to all else that was asked for.
    pub(crate) fatal: bool,
}

/// What was asked is not so.
pub(crate) const NOT_SO: u8 = 1;
/// Bad usage, or a local file fails.
pub(crate) const USAGE: u8 = 2;
/// The herd can't be reached, or refuses.
pub(crate) const REFUSED: u8 = 3;
/// It may have been done.
const UNKNOWN: u8 = 4;

/// The command as it was typed, `collection rm`: errors speak of it, not of the verbs of the wire.
static COMMAND: OnceLock<&str> = OnceLock::new();

/// Says which command runs, once.
pub(crate) fn begin(command: &'static str) {
    COMMAND.get_or_init(|| command);
}

impl Failure {
    pub(crate) fn new(code: u8, text: impl Into<String>) -> Self {
        Self { code, text: text.into(), fatal: false }
    }

    /// A failure of the command as it was typed.
    pub(crate) fn spoken(code: u8, reason: &str) -> Self {
        let text = COMMAND.get().map_or_else(|| reason.to_owned(), |command| format!("{command}: {reason}"));
        Self::new(code, text)
    }

    /// An end before the end that nobody needs to hear of: who reads has enough.
    pub(crate) fn quiet() -> Self {
        Self { code: 0, text: String::new(), fatal: true }
    }

    /// Whether nobody needs to hear of it.
    pub(crate) fn is_quiet(&self) -> bool {
        self.text.is_empty() && self.code == 0
    }

    /// A failure of something on this machine, about `what`.
    pub(crate) fn local<E: Display>(what: impl Display) -> impl FnOnce(E) -> Self {
        move |error| Self::new(USAGE, format!("{what}: {}", plain(&error.to_string())))
    }

    /// A failure of something on this machine that is told elsewhere.
    pub(crate) fn io(error: io::Error) -> Self {
        Self { fatal: is_everywhere(error.kind()), ..Self::new(USAGE, plain(&error.to_string())) }
    }

    /// Tells it and gives the exit status.
    pub(crate) fn report(&self) -> ExitCode {
        if !self.text.is_empty() {
            out::tell(format!("herd: {}", self.text));
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
        let mut text = typed(COMMAND.get().copied(), error.subject(), &plain(&error.reason()));
        // A node says so itself.
        if code == UNKNOWN && !["outcome is unknown", "outcome unknown"].iter().any(|told| text.contains(told)) {
            let rest = if text.contains("may have been done") { "" } else { ": it may have been done" };
            text.push_str(&format!("; the outcome is unknown{rest}"));
        }
        if error.kind() == ErrorKind::Unreachable && text.contains("no node answers") {
            text.push_str("; `herd up` starts a herd on this machine, --node names another");
        }
        Self { fatal: is_fatal(error.kind()), ..Self::new(code, text) }
    }
}

/// Whether the next object would fail for the same reason.
fn is_fatal(kind: ErrorKind) -> bool {
    match kind {
        ErrorKind::NoCollection | ErrorKind::Unreachable | ErrorKind::OutcomeUnknown => true,
        ErrorKind::Refused(Core::Full | Core::Quota | Core::Timeout | Core::Busy) => true,
        ErrorKind::Local(kind) => is_everywhere(kind),
        _ => false,
    }
}

fn is_everywhere(kind: io::ErrorKind) -> bool {
    use io::ErrorKind::{OutOfMemory, QuotaExceeded, ReadOnlyFilesystem, StorageFull};
    matches!(kind, StorageFull | QuotaExceeded | ReadOnlyFilesystem | OutOfMemory)
}

/// What went wrong with a request, told of the command that was typed.
fn typed(command: Option<&str>, subject: Option<&str>, reason: &str) -> String {
    match (command, subject) {
        // Documents of the node itself: nobody asked for them by name.
        (Some(command), Some(subject)) if subject.starts_with("system/") => format!("{command}: {reason}"),
        (Some(command), Some(subject)) => format!("{command} {subject}: {reason}"),
        (None, Some(subject)) => format!("{subject}: {reason}"),
        (_, None) => reason.into(),
    }
}

/// A text without the numbers that only programmers know.
pub(crate) fn plain(text: &str) -> String {
    match text.rsplit_once(" (os error ") {
        Some((before, number)) if number.trim_end_matches(')').bytes().all(|b| b.is_ascii_digit()) => before.into(),
        _ => text.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_the_system_is_told_without_its_number() {
        assert_eq!(plain(&io::Error::from_raw_os_error(2).to_string()), "No such file or directory");
        assert_eq!(plain("as it is (os error x)"), "as it is (os error x)");
    }

    #[test]
    fn an_error_speaks_of_the_command_that_was_typed() {
        for (command, subject, reason, told) in [
            ("exec", Some("default/n"), "no such method", "exec default/n: no such method"),
            ("rm", Some("photos"), "no such collection", "rm photos: no such collection"),
            ("collection rm", Some("c"), "no", "collection rm c: no"),
            ("status", Some("system/status"), "no node answers at h:1", "status: no node answers at h:1"),
            ("put", None, "no node answers at h:1", "no node answers at h:1"),
        ] {
            assert_eq!(typed(Some(command), subject, reason), told);
        }
    }

    #[test]
    fn a_full_disk_ends_a_copy_and_a_file_that_is_gone_does_not() {
        assert!(Failure::io(io::Error::from_raw_os_error(28)).fatal);
        assert!(!Failure::io(io::Error::from_raw_os_error(2)).fatal);
    }
}
