//! The distance between pretend sites (docs/decisions/004): one process that holds a TUN device in each site and hands
//! frames from one to the other by the conditions of the path between them.
//!
//! `frame`, `path`, `pool` and `hub` are what it decides, without clock or descriptor; this module is the loop around
//! them, `tun` its system calls, and `handle` starts the process and talks to it. The process has one thread: it
//! reads its [`Spec`] as a line of JSON from stdin, prints `{"ready":true}`, and then answers every [`Command`], a
//! line of JSON each, with one line: `{"done":true}` or a [`Report`]. It ends well when stdin ends, and with a message
//! and status 1 when it can't understand a line or a device is gone.

mod frame;
mod handle;
mod hub;
mod path;
mod pool;
mod tun;

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, RawFd};

use serde::{Deserialize, Serialize};

use crate::error::{Context, Error, Result};
use crate::sys;

pub(crate) use self::handle::Relay;
use self::hub::Hub;
pub(crate) use self::path::{Conditions, Counts};
use self::tun::Waiter;
pub(crate) use self::tun::create;

/// Frames read from one device before those that are due are handed on.
const READ_BATCH: usize = 8;
/// Frames of one path handed on before the next path has its turn.
const HAND_ON_BATCH: usize = 16;
/// A line of JSON is no longer than this: a thousand paths take a fifth of it.
const LINE_BYTES_MAX: usize = 1 << 20;

/// What a relay is told when it starts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Spec {
    /// The devices, one for each site; sites are numbered by their place here.
    pub(crate) devices: Vec<Device>,
    /// The paths; a pair of sites without one has no connection. Each direction is a path of its own.
    pub(crate) paths: Vec<PathSpec>,
    /// Core to stay on.
    #[serde(default)]
    pub(crate) core: Option<usize>,
    /// Seed of losses and jitter.
    #[serde(default)]
    pub(crate) seed: u64,
}

/// One site's device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Device {
    /// The inherited descriptor; [`Relay::start`] fills it in.
    #[serde(default)]
    pub(crate) fd: RawFd,
    /// The IPv4 addresses behind it, such as `10.1.0.0/16`; no two sites share any.
    pub(crate) network: String,
}

/// One direction between two sites.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PathSpec {
    /// Number of the site where packets set out.
    pub(crate) from: usize,
    /// Number of the site where they arrive.
    pub(crate) to: usize,
    /// How the path is.
    #[serde(default)]
    pub(crate) conditions: Conditions,
}

/// What a running relay can be told.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Command {
    /// Changes the conditions of a path that the relay was started with, at once.
    Set(PathSpec),
    /// Asks for a [`Report`]; the value says nothing.
    Report(bool),
}

/// What has happened since the relay started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Report {
    /// Every path, in the order of [`Spec::paths`].
    pub(crate) paths: Vec<PathReport>,
    /// Packets to an address of no site.
    pub(crate) unroutable_packets: u64,
    /// Packets between sites without a path, or from a site to itself.
    pub(crate) unconnected_packets: u64,
    /// Packets dropped because all frames in flight had reached the bound of 1 GiB; their paths count them as dropped
    /// too.
    pub(crate) out_of_memory_packets: u64,
    /// Frames of IPv6, which the relay does not carry.
    pub(crate) ipv6_frames: u64,
    /// Frames that could not be understood.
    pub(crate) malformed_frames: u64,
    /// Memory of the frames in flight, in bytes.
    pub(crate) buffers_in_use_bytes: u64,
}

/// Share of late packets beyond which nothing that was measured counts.
pub(crate) const LATE_MAX: f64 = 0.05;

impl Report {
    /// Share of the packets that arrived over 1 ms after their time, 0 to 1.
    pub(crate) fn late_share(&self) -> f64 {
        let sum = |count: fn(&Counts) -> u64| self.paths.iter().map(|path| count(&path.counts)).sum::<u64>() as f64;
        sum(|counts| counts.late_packets) / sum(|counts| counts.delivered_packets).max(1.0)
    }
}

/// What has happened on one path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PathReport {
    /// Number of the site where packets set out.
    pub(crate) from: usize,
    /// Number of the site where they arrive.
    pub(crate) to: usize,
    /// The counts.
    pub(crate) counts: Counts,
}

/// Answer to the specification: the relay carries frames from now on.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Ready {
    ready: bool,
}

/// Answer to [`Command::Set`].
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Done {
    done: bool,
}

/// The relay's process: serves stdin and stdout until stdin ends.
pub(crate) fn run() -> Result<()> {
    let file = |fd: BorrowedFd<'_>| fd.try_clone_to_owned().map(File::from);
    // Refused where root is root of a user namespace only; the counts of late packets tell whether it mattered.
    let _ = tun::go_first();
    let commands = file(io::stdin().as_fd()).during(|| "relay: stdin".into())?;
    serve(commands, &mut file(io::stdout().as_fd()).during(|| "relay: stdout".into())?)
}

fn serve(commands: File, answers: &mut impl Write) -> Result<()> {
    let mut lines = Lines { source: commands, unread: Vec::new() };
    let Some(line) = lines.wait()? else { return Ok(()) };
    let spec: Spec = broken(serde_json::from_slice(&line), "specification", &line)?;
    let mut hub = Hub::new(&spec)?;
    let devices = adopt(&spec)?;
    if let Some(core) = spec.core {
        sys::pin(core).during(|| format!("relay: core {core}"))?;
    }
    tun::wake_on_time().during(|| "relay: timer slack".into())?;
    answer(answers, &Ready { ready: true })?;
    carry(&mut hub, &devices, &mut lines, answers)
}

fn adopt(spec: &Spec) -> Result<Vec<File>> {
    let mut seen = HashSet::new();
    let one = |device: &Device| {
        if !seen.insert(device.fd) {
            return Err(Error::new(format!("relay: descriptor {} is given twice", device.fd)));
        }
        let fd = tun::adopt(device.fd).during(|| format!("relay: descriptor {}", device.fd))?;
        Ok(File::from(fd))
    };
    spec.devices.iter().map(one).collect()
}

/// The loop: waits for a frame, a command or the next arrival, whichever is first.
fn carry(hub: &mut Hub, devices: &[File], lines: &mut Lines, answers: &mut impl Write) -> Result<()> {
    // The waiter borrows a second descriptor of stdin, since `lines` reads the first.
    let control = lines.source.try_clone().during(|| "relay: stdin".into())?;
    let polled = devices.iter().chain([&control]).map(File::as_fd).collect();
    let mut waiter = Waiter::new(polled);
    let mut alarm = Alarm::default();
    loop {
        let start_ns = sys::monotonic_ns();
        let timeout_ns = hub.next_due_ns().map(|due_ns| alarm.timeout_ns(due_ns.saturating_sub(start_ns)));
        if waiter.wait(timeout_ns).during(|| "relay: waiting".into())? {
            alarm.rang(timeout_ns.unwrap_or(0), sys::monotonic_ns() - start_ns);
        }
        hand_on(hub, devices);
        for (index, device) in devices.iter().enumerate() {
            if waiter.ready(index) {
                take_in(hub, index, device)?;
                hand_on(hub, devices);
            }
        }
        if waiter.ready(devices.len()) && !obey(hub, lines, answers)? {
            return Ok(());
        }
    }
}

/// Sets waits so that they end in time. An idle processor takes some time to wake, on virtual machines tens of
/// microseconds, which would come on top of every delay: so waits are shorter by what waking took lately, and the rest,
/// if any, is spent asking again and again.
#[derive(Default)]
struct Alarm {
    waking_ns: u64,
}

impl Alarm {
    /// The longest rest that is spent asking: a processor that takes longer to wake is busy with something else.
    const WAKING_NS_MAX: u64 = 60_000;

    /// For how long to wait when something is due in `left_ns`.
    fn timeout_ns(&self, left_ns: u64) -> u64 {
        left_ns.saturating_sub(self.waking_ns)
    }

    /// A wait for `timeout_ns` took `took_ns`.
    fn rang(&mut self, timeout_ns: u64, took_ns: u64) {
        if timeout_ns > 0 {
            let waking_ns = took_ns.saturating_sub(timeout_ns).min(Self::WAKING_NS_MAX);
            self.waking_ns = (self.waking_ns * 7 + waking_ns) / 8;
        }
    }
}

/// Reads what a device has, up to a batch.
fn take_in(hub: &mut Hub, index: usize, mut device: &File) -> Result<()> {
    for _ in 0..READ_BATCH {
        match device.read(hub.landing()) {
            Ok(bytes) => hub.accept(sys::monotonic_ns(), index, bytes),
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error).during(|| format!("relay: reading device {index}")),
        }
    }
    Ok(())
}

/// Writes what has arrived. A device that does not take a frame, because it is down, has refused it.
fn hand_on(hub: &mut Hub, devices: &[File]) {
    for path in 0..hub.paths() {
        for _ in 0..HAND_ON_BATCH {
            let Some(arrived) = hub.arrived(path, sys::monotonic_ns()) else { break };
            let refused = (&devices[arrived.to]).write(arrived.held.frame()).is_err();
            hub.done(arrived, refused);
        }
    }
}

/// Carries out the commands that have come; false when there will be no more.
fn obey(hub: &mut Hub, lines: &mut Lines, answers: &mut impl Write) -> Result<bool> {
    let open = lines.fill()?;
    while let Some(line) = lines.pop() {
        match broken(serde_json::from_slice(&line), "command", &line)? {
            Command::Set(path) => {
                hub.set(sys::monotonic_ns(), path.from, path.to, path.conditions)?;
                answer(answers, &Done { done: true })?;
            }
            Command::Report(_) => answer(answers, &hub.report())?,
        }
    }
    Ok(open)
}

fn broken<T>(parsed: serde_json::Result<T>, what: &str, line: &[u8]) -> Result<T> {
    let text = || String::from_utf8_lossy(&line[..line.len().min(200)]).into_owned();
    parsed.map_err(|error| Error::new(format!("relay: broken {what} {:?}: {error}", text())))
}

fn answer(to: &mut impl Write, value: &impl Serialize) -> Result<()> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    to.write_all(&line).during(|| "relay: answering".into())
}

/// Lines of a descriptor that is read only when there is something to read.
struct Lines {
    source: File,
    unread: Vec<u8>,
}

impl Lines {
    /// Reads once; false at the end, which may not come within a line.
    fn fill(&mut self) -> Result<bool> {
        let mut chunk = [0; 4_096];
        let bytes = self.source.read(&mut chunk).during(|| "relay: reading commands".into())?;
        self.unread.extend_from_slice(&chunk[..bytes]);
        if bytes == 0 && !self.unread.is_empty() {
            return Err(Error::new("relay: the commands end within a line"));
        }
        if self.unread.len() > LINE_BYTES_MAX {
            return Err(Error::new(format!("relay: a line of commands is over {LINE_BYTES_MAX} bytes")));
        }
        Ok(bytes > 0)
    }

    /// The next whole line of what was read.
    fn pop(&mut self) -> Option<Vec<u8>> {
        let end = self.unread.iter().position(|byte| *byte == b'\n')?;
        let mut line: Vec<u8> = self.unread.drain(..=end).collect();
        line.pop();
        Some(line)
    }

    /// Waits for the next line; none at the end.
    fn wait(&mut self) -> Result<Option<Vec<u8>>> {
        loop {
            if let Some(line) = self.pop() {
                return Ok(Some(line));
            }
            if !self.fill()? {
                return Ok(None);
            }
        }
    }
}

#[cfg(test)]
mod tests;
