//! The command line of `herd-fuzz`.

use herd_fuzz::{TARGETS, Target};
use std::path::PathBuf;

/// What `--help` prints.
pub(crate) const HELP: &str = "\
Fuzzes parsers, and sessions of a node, with seeded mutations of their corpus. Needs no nightly compiler.

Usage: herd-fuzz [OPTIONS] [TARGET...]       all targets if none is named

Options:
  --seconds N   CPU seconds for each target (default 10)
  --seed S      where the random numbers start (default 1); the same seed makes the same inputs
  --file PATH   run one input (or .recipe) of the one target named, and print what it reaches
  --distil DIR  fuzz, then write the fewest inputs that reach all that was reached to DIR/TARGET, as recipes
  --cook DIR    write the corpus as plain inputs, recipes carried out, to DIR/TARGET
  --list        print the names of the targets
  --help        print this

One line is printed for each target: executions, executions a CPU second, outcomes reached, CPU seconds. A panic, an
input over 1 CPU second, memory over its target's bound + 64 times the input, or memory kept after a run is a finding:
the input is saved in fuzz/artifacts, the command to replay it is printed, and the exit status is 1.
";

/// What is to be done.
pub(crate) enum Task {
    Help,
    List,
    Replay(PathBuf),
    Cook(PathBuf),
    Distil(PathBuf),
    Fuzz,
}

/// The command line, understood.
pub(crate) struct Args {
    pub(crate) task: Task,
    pub(crate) targets: Vec<&'static Target>,
    pub(crate) seconds: u64,
    pub(crate) seed: u64,
}

/// Parses the words behind the program's name.
pub(crate) fn parse(words: impl Iterator<Item = String>) -> Result<Args, String> {
    let mut args = Args { task: Task::Fuzz, targets: Vec::new(), seconds: 10, seed: 1 };
    let mut words = words;
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("{word} needs a value: see --help"));
        match word.as_str() {
            "--seconds" => args.seconds = number(&value()?)?,
            "--seed" => args.seed = number(&value()?)?,
            "--file" => args.task = Task::Replay(value()?.into()),
            "--cook" => args.task = Task::Cook(value()?.into()),
            "--distil" => args.task = Task::Distil(value()?.into()),
            "--list" => args.task = Task::List,
            "--help" | "-h" => args.task = Task::Help,
            name => args.targets.push(Target::named(name).ok_or_else(|| format!("no target {name}: see --list"))?),
        }
    }
    if matches!(args.task, Task::Replay(_)) && args.targets.len() != 1 {
        return Err("--file needs one target: see --list".to_string());
    }
    if args.targets.is_empty() {
        args.targets = TARGETS.iter().collect();
    }
    Ok(args)
}

fn number(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("{text} is not a number"))
}
