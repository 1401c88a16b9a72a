//! Why a call to the control store failed, by what the caller is to do.

use super::Revision;
use std::fmt;

/// What went wrong; texts are for people, and say what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControlError {
    /// The call breaks a limit; nothing was done.
    Invalid(String),
    /// No room for it; nothing was done.
    Full(String),
    /// The store does not answer now; nothing was done.
    Unreachable(String),
    /// Whether it was done is not known, and it may yet be done: read before going on.
    Unknown(String),
    /// The store no longer has the past that was asked for; its latest revision.
    Gap(Revision),
    /// The store can't go on in this process; nothing was done.
    Broken(String),
}

impl fmt::Display for ControlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ControlError::Invalid(text)
            | ControlError::Full(text)
            | ControlError::Unreachable(text)
            | ControlError::Broken(text) => write!(f, "control store: {text}"),
            ControlError::Unknown(text) => write!(f, "control store: outcome unknown: {text}"),
            ControlError::Gap(revision) => {
                write!(f, "control store: it is at revision {revision} and has no older one")
            }
        }
    }
}

impl std::error::Error for ControlError {}
