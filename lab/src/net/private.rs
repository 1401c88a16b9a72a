//! A private network namespace for a bench: loopback up, congestion control cubic.
//!
//! A namespace may choose only among the algorithms its machine allows to all; where cubic is not among them it is
//! allowed for the moment of choosing, and the machine's list is put back.
//! Called once, first thing, while the process has a single thread; children inherit the namespace and it vanishes
//! with the last of them. Where no namespace can be made, the bench runs in place and the report says so.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::FileExt;

use serde::Serialize;

use crate::sys;

/// Where the bench runs and the congestion control in force there.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Network {
    /// True inside our own namespace.
    pub(crate) private: bool,
    /// Why there is no private namespace, or what could not be set in it.
    pub(crate) note: Option<String>,
    /// As the kernel reports it.
    pub(crate) congestion_control: String,
}

const CONGESTION_CONTROL: &str = "/proc/sys/net/ipv4/tcp_congestion_control";
const ALLOWED: &str = "/proc/sys/net/ipv4/tcp_allowed_congestion_control";
const ACCEPT_QUEUE: &str = "/proc/sys/net/core/somaxconn";

/// Enters a private namespace if that can be had.
pub(crate) fn enter() -> Network {
    let mut notes = Vec::new();
    let allowed = Allowed::with("cubic");
    let private = match unshare().and_then(|()| sys::loopback_up()) {
        Ok(()) => true,
        Err(error) => {
            notes.push(format!("no private network namespace: {error}"));
            false
        }
    };
    if private {
        for (path, value) in [(CONGESTION_CONTROL, "cubic"), (ACCEPT_QUEUE, "8192")] {
            if let Err(error) = fs::write(path, value) {
                notes.push(format!("{path} not set to {value}: {error}"));
            }
        }
    }
    if let Err(error) = allowed.and_then(Allowed::restore) {
        notes.push(format!("{ALLOWED}: {error}"));
    }
    let in_force = fs::read_to_string(CONGESTION_CONTROL).unwrap_or_else(|error| format!("unknown ({error})"));
    let note = if notes.is_empty() { None } else { Some(notes.join("; ")) };
    Network { private, note, congestion_control: in_force.trim().to_owned() }
}

/// Leaves the shared network; one that is not root becomes root of a user namespace for it.
fn unshare() -> std::io::Result<()> {
    let (user, group) = sys::effective_ids();
    if user == 0 {
        return sys::unshare_network(false);
    }
    sys::unshare_network(true)?;
    map_to_root(user, group)
}

/// Makes the user and group of before root of the user namespace that this process has just moved into.
pub(crate) fn map_to_root(user: u32, group: u32) -> io::Result<()> {
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("0 {user} 1"))?;
    fs::write("/proc/self/gid_map", format!("0 {group} 1"))
}

/// The machine's list of algorithms open to all, kept to be put back. The descriptor is opened before the namespace
/// is left, since the list is visible in the first one only.
struct Allowed {
    file: File,
    before: Option<String>,
}

impl Allowed {
    /// Adds `algorithm` to the list if it lacks it.
    fn with(algorithm: &str) -> io::Result<Self> {
        let mut before = String::new();
        File::open(ALLOWED)?.read_to_string(&mut before)?;
        let file = OpenOptions::new().write(true).open(ALLOWED)?;
        if before.split_ascii_whitespace().any(|name| name == algorithm) {
            return Ok(Self { file, before: None });
        }
        file.write_all_at(format!("{} {algorithm}", before.trim()).as_bytes(), 0)?;
        Ok(Self { file, before: Some(before) })
    }

    /// Puts the list back as it was.
    fn restore(self) -> io::Result<()> {
        self.before.as_ref().map_or(Ok(()), |before| self.file.write_all_at(before.trim().as_bytes(), 0))
    }
}
