//! The lab's own namespaces (docs/decisions/004-pretend-networks.md): process, mount and network, and user around
//! them for those who are not root.
//!
//! [`enter`] is called first thing. Outside it starts this program again, as the first process of the new namespaces,
//! waits for it and exits as it did; inside it prepares /proc, /dev/shm and loopback, and returns. Whichever of the two
//! is killed, the kernel ends everything that was started within, and with the last process go all namespaces,
//! devices and mounts: there is nothing to clean up, and so nothing that could be left.

use std::env;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, exit};

use crate::client;
use crate::error::{Context, Error, Result};
use crate::net::private;
use crate::sys::{self, Mount};

/// Set inside; holds nothing.
pub(crate) const INSIDE: &str = "HERD_LAB_INSIDE";

/// Returns in the lab's own namespaces, or says why they cannot be had. `interactive`: an interrupt from the terminal
/// is for what runs inside, not for the lab.
pub(crate) fn enter(interactive: bool) -> Result<()> {
    if env::var_os(INSIDE).is_none() {
        start_inside(interactive)?;
    }
    let inside = [Mount::Private, Mount::Proc, Mount::Memory];
    inside.into_iter().try_for_each(|mount| sys::mount(mount).needing(|| format!("mount {mount:?} for the lab")))?;
    sys::loopback_up().during(|| "bring loopback up".into())
}

/// Runs this program again inside and exits as it does.
fn start_inside(interactive: bool) -> Result<()> {
    let (user, group) = sys::effective_ids();
    sys::unshare_machine(user != 0).map_err(|error| {
        let cure = if user == 0 { "this container forbids it" } else { "allow user namespaces, or be root" };
        Error::lacking(format!("no namespaces of our own: {error} ({cure})"))
    })?;
    if user != 0 {
        private::map_to_root(user, group).during(|| "become root of a user namespace".into())?;
    }
    let program = client::program()?;
    let mut inside = Command::new(program);
    inside.args(env::args_os().skip(1)).env(INSIDE, "");
    sys::tie(&mut inside, None);
    let mut child = inside.spawn().during(|| "start inside the lab's namespaces".into())?;
    sys::ignore_interrupt(interactive);
    let status = child.wait().during(|| "wait for the lab".into())?;
    exit(status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0)))
}
