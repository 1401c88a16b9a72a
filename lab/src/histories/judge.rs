//! The checker (lab/histories, in Go with porcupine) as a process: a file with a history in, a verdict out.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde::Deserialize;

use crate::client;
use crate::error::{Context, Error, Result};
use crate::sys;

/// Its name, beside this program unless another place is named.
const NAME: &str = "herd-histories";

/// The checker's program.
#[derive(Clone, Debug)]
pub(crate) struct Judge {
    program: PathBuf,
    patience: Duration,
}

/// What it found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Word {
    Ok,
    Illegal,
    /// The time was over.
    Unknown,
}

/// Its verdict on one history.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Verdict {
    pub(crate) verdict: Word,
    /// Those that are not ok.
    pub(crate) keys: Vec<String>,
    pub(crate) seconds: f64,
    /// Of each that is illegal, a request that no order explains.
    pub(crate) why: Vec<String>,
    /// Why keys are illegal, drawn.
    pub(crate) pages: Vec<String>,
}

impl Judge {
    /// The checker at `program`, or the one beside this program; `patience`: its longest time for one history.
    pub(crate) fn find(program: Option<&Path>, patience: Duration) -> Result<Self> {
        let beside = || Ok::<_, Error>(client::program()?.with_file_name(NAME));
        let program = program.map_or_else(beside, |program| Ok(program.to_owned()))?;
        if program.is_file() {
            return Ok(Self { program, patience });
        }
        Err(Error::lacking(format!("no checker at {}: `make histories` builds it, with Go", program.display())))
    }

    /// Judges the history in a file.
    pub(crate) fn judge(&self, file: &Path) -> Result<Verdict> {
        let mut command = Command::new(&self.program);
        command.arg(format!("-time={}ms", self.patience.as_millis())).arg(file);
        command.stdin(Stdio::null());
        sys::tie(&mut command, None);
        let output = command.output().during(|| format!("start {}", self.program.display()))?;
        // 1 is an illegal history.
        if !matches!(output.status.code(), Some(0 | 1)) {
            let said = String::from_utf8_lossy(&output.stderr);
            return Err(Error::new(format!("the checker: {}: {}", output.status, said.trim())));
        }
        Ok(serde_json::from_slice(&output.stdout)?)
    }
}
