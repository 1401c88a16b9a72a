//! A network namespace without a name: held by a descriptor, gone when nothing uses it.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::process::{Command, Stdio};
use std::thread;

use crate::error::{Context, Error, Result};
use crate::sys;

/// A network namespace.
#[derive(Debug)]
pub(crate) struct Namespace {
    file: File,
}

impl Namespace {
    /// A new one with loopback up, no IPv6 (it would speak unasked) and long accept queues.
    pub(crate) fn new() -> Result<Self> {
        let made = || -> Result<File> {
            sys::unshare_network(false).during(|| "make a network namespace".into())?;
            sys::loopback_up().during(|| "bring loopback up".into())?;
            own()
        };
        let file = apart(made)?;
        let namespace = Self { file };
        let set = [("net/ipv6/conf/all/disable_ipv6", "1"), ("net/core/somaxconn", "8192")];
        set.into_iter().try_for_each(|(name, value)| namespace.set(name, value))?;
        Ok(namespace)
    }

    /// Runs `work` on a thread within; sockets and devices it opens stay there.
    pub(crate) fn run<T: Send>(&self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        apart(|| {
            sys::enter_network(&self.file).during(|| "enter a network namespace".into())?;
            work()
        })
    }

    /// Makes `command` start within.
    pub(crate) fn adopt(&self, command: &mut Command) {
        sys::in_network(command, self.file.as_raw_fd());
    }

    /// A path that names it as long as this process lives.
    pub(crate) fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd())
    }

    /// Sets a value under /proc/sys.
    pub(crate) fn set(&self, name: &str, value: &str) -> Result<()> {
        let path = format!("/proc/sys/{name}");
        self.run(|| std::fs::write(&path, value).during(|| format!("write {value} to {path}")))
    }

    /// Runs `ip`, `tc` or `nft` within, with its commands on stdin.
    pub(crate) fn batch(&self, program: &str, commands: &str) -> Result<()> {
        if commands.is_empty() {
            return Ok(());
        }
        let mut command = Command::new(program);
        command.args(if program == "nft" { ["-f", "-"] } else { ["-batch", "-"] });
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        self.adopt(&mut command);
        sys::tie(&mut command, None);
        let mut child = command.spawn().needing(|| format!("start {program} (Debian: iproute2, nftables)"))?;
        let fed = child.stdin.take().expect("piped").write_all(commands.as_bytes());
        let output = child.wait_with_output().during(|| format!("wait for {program}"))?;
        fed.during(|| format!("write to {program}"))?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        Err(Error::new(format!("{program} refused: {}\n{commands}", said.trim())))
    }

    /// Bytes that each device within has (received, sent) so far.
    pub(crate) fn device_bytes(&self, device: &str) -> Result<(u64, u64)> {
        let path = "/proc/thread-self/net/dev";
        let text = self.run(|| std::fs::read_to_string(path).during(|| format!("read {path}")))?;
        parse_device(&text, device).ok_or_else(|| Error::new(format!("there is no device {device}")))
    }
}

fn own() -> Result<File> {
    File::open("/proc/thread-self/ns/net").during(|| "open this thread's network namespace".into())
}

/// Runs `work` on a thread of its own, since a thread that changed its namespace is of no other use.
fn apart<T: Send>(work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    thread::scope(|scope| scope.spawn(work).join()).unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Received and sent bytes of a device in the text of /proc/net/dev.
fn parse_device(text: &str, device: &str) -> Option<(u64, u64)> {
    let counts = text.lines().find_map(|line| line.trim_start().strip_prefix(device)?.strip_prefix(':'))?;
    let counts: Vec<u64> = counts.split_ascii_whitespace().filter_map(|count| count.parse().ok()).collect();
    Some((*counts.first()?, *counts.get(8)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_counts_are_found() {
        let text =
            "Inter-|   Receive\n    lo: 10 1 0 0 0 0 0 0 20 2 0 0 0 0 0 0\n  eth0: 30 1 0 0 0 0 0 0 40 2 0 0 0 0 0 0\n";
        assert_eq!(parse_device(text, "lo"), Some((10, 20)));
        assert_eq!(parse_device(text, "eth0"), Some((30, 40)));
        assert_eq!(parse_device(text, "eth"), None);
    }
}
