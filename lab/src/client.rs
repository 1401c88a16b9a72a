//! Our own subcommands as processes: a specification as JSON on stdin, an outcome as JSON on stdout.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use serde::{Serialize, de::DeserializeOwned};

use crate::error::{Context, Error, Result};

/// The file of this program.
pub(crate) fn program() -> Result<PathBuf> {
    std::env::current_exe().during(|| "find this program's file".into())
}

/// Starts `command`, which is this program somewhere, with a subcommand and its specification.
pub(crate) fn start(mut command: Command, subcommand: &str, spec: &impl Serialize) -> Result<Child> {
    command.arg(subcommand).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().during(|| format!("start {subcommand}"))?;
    child.stdin.take().expect("its stdin is piped").write_all(serde_json::to_string(spec)?.as_bytes())?;
    Ok(child)
}

/// Waits for it and gives what it found; an error is its own words.
pub(crate) fn finish<T: DeserializeOwned>(child: Child) -> Result<T> {
    let output = child.wait_with_output()?;
    if !output.status.success() {
        return Err(Error::new(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}
