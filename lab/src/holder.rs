//! What a holder of a lock does in line locks: adds one to a number, again and again, while `herd lock` runs it.
//!
//! The number is an object, got and put with the lock's token, or a file, written after a look whether the lock is
//! still held. `did N` on stdout says that the number N was acknowledged; `in PID` comes first. It ends at the first
//! refusal. A process of its own (`herd-lab holder`), which may be stopped or killed at any point.

use std::fs;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Command, Stdio, id};
use std::thread;
use std::time::Duration;

use clap::Args;

use crate::error::{Context, Error, Result};
use crate::values::Random;

/// Options of `holder`; HERD_NODE and HERD_LOCK_TOKEN are in its environment.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Herd's binary.
    #[arg(long)]
    herd: PathBuf,
    /// The lock.
    #[arg(long)]
    lock: String,
    /// Object that holds the number.
    #[arg(long, conflicts_with = "file")]
    object: Option<String>,
    /// File that holds the number.
    #[arg(long)]
    file: Option<PathBuf>,
    /// Increments before it gives the lock back.
    #[arg(long)]
    times: u64,
    /// Longest time between its steps.
    #[arg(long)]
    pause_ms: u64,
}

/// Runs one holder in this process.
pub(crate) fn run(options: &Options) -> Result<()> {
    let token = std::env::var("HERD_LOCK_TOKEN").map_err(|_| Error::new("a holder is run by herd lock"))?;
    tell(&format!("in {}", id()))?;
    let mut random = Random::new(u64::from(id()));
    let mut pause = || thread::sleep(Duration::from_millis(random.below(options.pause_ms + 1)));
    for _ in 0..options.times {
        let number = options.read(&token)? + 1;
        pause();
        options.write(&token, number, &mut pause)?;
        tell(&format!("did {number}"))?;
        pause();
    }
    Ok(())
}

/// One line at once: others write to the same pipe.
fn tell(line: &str) -> Result<()> {
    Ok(std::io::stdout().write_all(format!("{line}\n").as_bytes())?)
}

impl Options {
    fn read(&self, token: &str) -> Result<u64> {
        let text = match (&self.object, &self.file) {
            (Some(object), _) => self.herd(&["get", object, "--token", token], None)?,
            (None, Some(file)) => fs::read(file).during(|| format!("read {}", file.display()))?,
            (None, None) => return Err(Error::new("neither an object nor a file")),
        };
        let text = String::from_utf8_lossy(&text);
        text.trim().parse().map_err(|_| Error::new(format!("{:?} is no number", text.trim())))
    }

    /// A file knows no tokens: whoever is stopped between the look and the write does not see that the lock was lost.
    fn write(&self, token: &str, number: u64, mut pause: impl FnMut()) -> Result<()> {
        match (&self.object, &self.file) {
            (Some(object), _) => {
                self.herd(&["put", object, "-", "--token", token], Some(&number.to_string())).map(drop)
            }
            (None, Some(file)) => {
                self.herd(&["exec", &self.lock, "check", token], None)?;
                pause();
                // One call, always of as many bytes: whoever is killed leaves a whole number.
                let open = fs::File::options().write(true).open(file);
                let written = open.and_then(|to| to.write_all_at(format!("{number:020}").as_bytes(), 0));
                written.during(|| format!("write {}", file.display()))
            }
            (None, None) => Err(Error::new("neither an object nor a file")),
        }
    }

    /// What a `herd` command prints; an error if it ends otherwise than well.
    fn herd(&self, arguments: &[&str], input: Option<&str>) -> Result<Vec<u8>> {
        let mut command = Command::new(&self.herd);
        command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() });
        let mut child = command.spawn().during(|| "start herd".into())?;
        if let Some(input) = input {
            child.stdin.take().expect("its stdin is piped").write_all(input.as_bytes())?;
        }
        let output = child.wait_with_output()?;
        if output.status.success() {
            return Ok(output.stdout);
        }
        Err(Error::new(format!("refused: herd {}: {}", arguments[0], String::from_utf8_lossy(&output.stderr).trim())))
    }
}
