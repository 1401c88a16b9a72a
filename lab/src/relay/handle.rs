//! The other side of the relay: starts its process, tells it conditions, reads its counts.

use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command as Process, Stdio};

use serde::{Serialize, de::DeserializeOwned};

use crate::error::{Context, Error, Result};
use crate::relay::{Command, Conditions, Done, PathSpec, Ready, Report, Spec, tun};
use crate::sys;

/// A running relay; killed, with its devices, when dropped or when the thread that started it ends.
pub(crate) struct Relay {
    child: Child,
    commands: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Relay {
    /// Starts `program relay` and returns once it carries frames. `fds` are the sites' devices, in the order of
    /// `spec.devices`, whose numbers are filled in; this process keeps none of them, so that devices go with the relay.
    pub(crate) fn start(program: &Path, mut spec: Spec, fds: Vec<OwnedFd>) -> Result<Self> {
        if fds.len() != spec.devices.len() {
            return Err(Error::new(format!("relay: {} devices, but {} descriptors", spec.devices.len(), fds.len())));
        }
        for (device, fd) in spec.devices.iter_mut().zip(&fds) {
            device.fd = fd.as_raw_fd();
        }
        let mut process = Process::new(program);
        process.arg("relay").stdin(Stdio::piped()).stdout(Stdio::piped());
        tun::hand_down(&mut process, fds.iter().map(AsRawFd::as_raw_fd).collect());
        sys::tie(&mut process, None);
        let mut child = process.spawn().during(|| format!("relay: starting {}", program.display()))?;
        drop(fds);
        let commands = child.stdin.take().expect("asked for above");
        let answers = BufReader::new(child.stdout.take().expect("asked for above"));
        let mut relay = Self { child, commands, answers };
        relay.ask::<Ready>(&spec)?;
        Ok(relay)
    }

    /// Changes the conditions from site `from` to site `to`; in force when this returns.
    pub(crate) fn set(&mut self, from: usize, to: usize, conditions: Conditions) -> Result<()> {
        conditions.check()?;
        self.ask::<Done>(&Command::Set(PathSpec { from, to, conditions })).map(drop)
    }

    /// What has happened since the start.
    pub(crate) fn report(&mut self) -> Result<Report> {
        self.ask(&Command::Report(true))
    }

    /// The relay's process.
    #[cfg(test)]
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    fn ask<T: DeserializeOwned>(&mut self, what: &impl Serialize) -> Result<T> {
        let mut line = serde_json::to_vec(what)?;
        line.push(b'\n');
        self.commands.write_all(&line).during(|| "relay: it has ended; its message is on stderr".into())?;
        let mut answer = String::new();
        self.answers.read_line(&mut answer).during(|| "relay: reading its answer".into())?;
        if answer.is_empty() {
            return Err(Error::new("relay: it has ended without an answer; its message is on stderr"));
        }
        Ok(serde_json::from_str(&answer)?)
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        // Both fail only for a process that was waited for, which none was before.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
