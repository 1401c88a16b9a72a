//! The ledger: one line of JSON for each run that is complete, in lab/evidence (FORMATS.md). A line holds as long as
//! the code it covers is what it was at the commit that the binary was built of; `herd-lab evidence` says which do.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::{Context, Result};
use crate::faults::redis::Found;
use crate::faults::tally::{Tally, Verdict};
use crate::peers::server::version;

/// What a run of real nodes says something about.
const COVERED: [&str; 6] = [
    "crates/herd-core",
    "crates/herd-store",
    "crates/herd-net",
    "crates/herd-node",
    "crates/herd-client",
    "crates/herd",
];

/// Options of `evidence`.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// The ledger.
    #[arg(long, default_value = "lab/evidence/faults.jsonl")]
    ledger: PathBuf,
    /// Fail unless a line that passed still holds.
    #[arg(long)]
    check: bool,
}

/// One run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Line<C = Tally> {
    command: String,
    /// Of which the binary was built, as it says itself.
    commit: String,
    /// SHA-256 of the binary.
    binary: String,
    seeds: Vec<u64>,
    /// `passed`, `void` or `failed`.
    result: String,
    /// What was wrong, or too little.
    why: Vec<String>,
    seconds: u64,
    counts: C,
    /// A Redis Cluster under a short form of the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    beside: Option<Found>,
}

impl<C: Serialize> Line<C> {
    /// Of a run of that binary, without its result.
    pub(crate) fn new(command: &str, binary: &Path, seeds: Vec<u64>, seconds: u64, counts: C) -> Self {
        Self {
            command: command.to_owned(),
            commit: commit_of(&version(binary)).to_owned(),
            binary: sha256(binary),
            seeds,
            result: String::new(),
            why: Vec::new(),
            seconds,
            counts,
            beside: None,
        }
    }

    pub(super) fn beside(mut self, found: Option<Found>) -> Self {
        self.beside = found;
        self
    }

    pub(crate) fn finish(mut self, verdict: &Verdict) -> Self {
        verdict.word().clone_into(&mut self.result);
        self.why = match verdict {
            Verdict::Passed => Vec::new(),
            Verdict::Void(why) | Verdict::Failed(why) => why.clone(),
        };
        self
    }

    /// Adds it to a ledger.
    pub(crate) fn append(&self, path: &Path) -> Result<()> {
        if let Some(dir) = path.parent() {
            fs::create_dir_all(dir).during(|| format!("create {}", dir.display()))?;
        }
        let file = File::options().create(true).append(true).open(path);
        let line = serde_json::to_string(self)? + "\n";
        file.and_then(|mut file| file.write_all(line.as_bytes())).during(|| format!("write {}", path.display()))
    }

    fn holds(&self) -> Holds {
        let mut diff = Command::new("git");
        diff.args(["diff", "--quiet", &self.commit, "--"]).args(COVERED);
        match diff.output().ok().and_then(|output| output.status.code()) {
            Some(0) => Holds::Still,
            Some(1) => Holds::NoMore,
            _ => Holds::NotKnown,
        }
    }
}

/// Whether a line still says something of the code that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holds {
    Still,
    /// The code has changed since.
    NoMore,
    /// The commit is not known here.
    NotKnown,
}

impl Holds {
    fn word(self) -> &'static str {
        match self {
            Self::Still => "holds",
            Self::NoMore => "code has changed since",
            Self::NotKnown => "commit is not known here",
        }
    }
}

/// Says of each line whether it holds; false if none does that should.
pub(crate) fn run(options: &Options) -> Result<bool> {
    let path = options.ledger.display();
    let text = fs::read_to_string(&options.ledger).during(|| format!("read {path}"))?;
    let mut any = false;
    for line in parse::<Value>(&text)? {
        let holds = line.holds();
        any |= holds == Holds::Still && line.result == "passed";
        let Line { result, commit, seconds, counts, command, .. } = &line;
        // Another command's counts are of another kind.
        let tally = serde_json::from_value::<Tally>(counts.clone());
        let faults = tally.map_or_else(|_| String::new(), |tally| format!("{} faults in ", tally.counted()));
        println!("{}: {result}, {faults}{seconds} s, {commit}: {command}", holds.word());
    }
    if options.check && !any {
        println!("FAIL: no run in {path} that passed is of the code that is here");
    }
    Ok(any || !options.check)
}

fn parse<C: DeserializeOwned>(text: &str) -> Result<Vec<Line<C>>> {
    text.lines().map(|line| Ok(serde_json::from_str(line)?)).collect()
}

/// The commit in `herd 0.1.0 (60c96e720eab)`.
fn commit_of(version: &str) -> &str {
    let within = version.split_once('(').and_then(|(_, rest)| rest.split_once(')'));
    within.map_or("unknown", |(commit, _)| commit)
}

fn sha256(path: &Path) -> String {
    let output = Command::new("sha256sum").arg(path).output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    text.split(' ').next().filter(|sum| sum.len() == 64).unwrap_or("unknown").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::faults::schedule::Kind;

    #[test]
    fn lines_are_read_as_they_were_written() {
        let mut tally = Tally { seconds: 9, ..Tally::default() };
        tally.faults.insert(Kind::Outlast, 2);
        let line = Line::new("herd-lab faults", Path::new("/nowhere/herd"), vec![7], tally.seconds, tally.clone());
        let line = line.finish(&Verdict::Void(vec!["too few".into()]));
        assert_eq!((&*line.commit, &*line.binary, &*line.result), ("unknown", "unknown", "void"));
        let path = std::env::temp_dir().join(format!("herd-lab-ledger-{}", std::process::id()));
        line.append(&path).and_then(|()| line.append(&path)).expect("a place to write");
        let text = fs::read_to_string(&path).expect("it is there");
        fs::remove_file(&path).expect("it is ours");
        assert_eq!(parse::<Tally>(&text).expect("lines"), [line.clone(), line.clone()]);
        assert!(text.contains(r#""faults":{"outlast":2}"#));
        assert_eq!(line.holds(), Holds::NotKnown);
    }

    #[test]
    fn a_binary_tells_its_commit() {
        assert_eq!(commit_of("herd 0.1.0 (60c96e720eab)"), "60c96e720eab");
        assert_eq!(commit_of("herd 0.1.0"), "unknown");
    }
}
