//! How far a run has come: written after each round, in one move, so that it is whole at any time.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::{Context, Error, Result};
use crate::faults::tally::Tally;

const FILE: &str = "state.json";

/// What there is to know to go on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct State {
    /// What was asked for: who goes on must ask for the same.
    pub(super) command: String,
    /// The step that comes next.
    pub(super) step: usize,
    pub(super) tally: Tally,
    /// A history whose verdict is not in the tally yet.
    pub(super) unjudged: Option<PathBuf>,
}

impl State {
    /// Of a run that begins.
    pub(super) fn begin(dir: &Path, command: &str) -> Result<Self> {
        fs::create_dir_all(dir).during(|| format!("create {}", dir.display()))?;
        let state = Self { command: command.to_owned(), step: 0, tally: Tally::default(), unjudged: None };
        state.write(dir)?;
        Ok(state)
    }

    /// Of a run that was broken off.
    pub(super) fn read(dir: &Path) -> Result<Self> {
        let path = dir.join(FILE);
        let text = fs::read_to_string(&path).during(|| format!("read {}: was it ever begun?", path.display()))?;
        Ok(serde_json::from_str(&text)?)
    }

    /// An error unless that is what was asked for.
    pub(super) fn of(self, command: &str) -> Result<Self> {
        if self.command == command {
            return Ok(self);
        }
        Err(Error::new(format!("the run that was broken off is another: {}", self.command)))
    }

    pub(super) fn write(&self, dir: &Path) -> Result<()> {
        let (path, new) = (dir.join(FILE), dir.join("state.new"));
        fs::write(&new, serde_json::to_string(self)?).during(|| format!("write {}", new.display()))?;
        fs::rename(&new, &path).during(|| format!("write {}", path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::faults::schedule::Kind;
    use crate::faults::tally::Branch;

    #[test]
    fn a_run_goes_on_with_what_it_had() {
        let dir = std::env::temp_dir().join(format!("herd-lab-state-{}", std::process::id()));
        let mut state = State::begin(&dir, "a run").expect("a place to write");
        state.step = 12;
        state.tally.note(Branch::GetInSocket);
        state.tally.faults.insert(Kind::KillPending, 3);
        state.write(&dir).expect("written");
        let read = State::read(&dir).expect("it is there");
        assert_eq!(read, state);
        assert!(read.clone().of("a run").is_ok());
        assert!(read.of("another").is_err());
        fs::remove_dir_all(&dir).expect("it is ours");
    }
}
