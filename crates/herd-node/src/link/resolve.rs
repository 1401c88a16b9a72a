//! Addresses of nodes. Those in digits are taken as they are; names are looked up by a thread of their own, which there
//! is from the first name on: the system's resolver may take many seconds, and neither a loop nor the warden can wait.
//! For the same reason nobody waits for its end, which comes with that of the hub.

use super::Hub;
use herd_core::limits::{NAMES_AGAIN_MS, NAMES_RETRY_MS, NODE_ADDRESSES_MAX};
use herd_core::place::NodeId;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// The names that are wanted, and what was found.
#[derive(Default)]
pub(super) struct Names {
    wanted: BTreeSet<String>,
    known: BTreeMap<String, Vec<SocketAddr>>,
    /// Has the thread look at once; it ends when this is dropped.
    wake: Option<SyncSender<()>>,
}

impl Names {
    /// The names among these addresses are wanted from now on, and no others.
    pub(super) fn want<'a>(&mut self, hub: &Arc<Hub>, addresses: impl Iterator<Item = &'a String>) {
        self.wanted = addresses.filter(|text| is_name(text)).cloned().collect();
        self.known.retain(|name, _| self.wanted.contains(name));
        if self.wanted.iter().any(|name| !self.known.contains_key(name)) {
            self.wake(hub);
        }
    }

    fn wake(&mut self, hub: &Arc<Hub>) {
        if let Some(wake) = &self.wake {
            // If it can't be told, it was told before and is about to look.
            wake.try_send(()).ok();
            return;
        }
        let (wake, woken) = sync_channel(1);
        let hub = Arc::downgrade(hub);
        // Without a thread names are not found; the next map tries again.
        let thread = std::thread::Builder::new().name("names".into()).spawn(move || look_up(&hub, &woken));
        self.wake = thread.ok().map(|_| wake);
    }

    pub(super) fn wanted(&self) -> BTreeSet<String> {
        self.wanted.clone()
    }

    /// Takes what was found; whether anything changed.
    pub(super) fn take(&mut self, found: &BTreeMap<String, Vec<SocketAddr>>) -> bool {
        let mut changed = false;
        for (name, addresses) in found.iter().filter(|(name, _)| self.wanted.contains(*name)) {
            changed |= self.known.insert(name.clone(), addresses.clone()).as_ref() != Some(addresses);
        }
        changed
    }

    /// Where these nodes are, as far as it is known.
    pub(super) fn addresses<'a>(
        &self,
        nodes: impl Iterator<Item = (NodeId, &'a [String])>,
    ) -> BTreeMap<NodeId, Vec<SocketAddr>> {
        let found = |text: &String| match text.parse() {
            Ok(address) => vec![address],
            Err(_) => self.known.get(text).cloned().unwrap_or_default(),
        };
        nodes.map(|(node, texts)| (node, texts.iter().flat_map(found).collect())).collect()
    }
}

/// Whether it must be looked up.
fn is_name(address: &str) -> bool {
    address.parse::<SocketAddr>().is_err() && !address.starts_with("unix:")
}

/// Looks the wanted names up until the hub is gone: at once when it is woken, soon after one was not found, and now and
/// then, since machines move.
fn look_up(hub: &Weak<Hub>, woken: &Receiver<()>) {
    loop {
        let Some(wanted) = hub.upgrade().map(|hub| hub.names()) else { return };
        let found: BTreeMap<_, _> = wanted.iter().filter_map(|name| Some((name.clone(), addresses(name)?))).collect();
        let rest_ms = if found.len() < wanted.len() { NAMES_RETRY_MS } else { NAMES_AGAIN_MS };
        hub.upgrade().iter().for_each(|hub| hub.found(&found));
        if woken.recv_timeout(Duration::from_millis(rest_ms)) == Err(RecvTimeoutError::Disconnected) {
            return;
        }
    }
}

/// What the system says of a name, in the order in which it says it; `None`: nothing.
fn addresses(name: &str) -> Option<Vec<SocketAddr>> {
    let found: Vec<SocketAddr> = name.to_socket_addrs().ok()?.take(NODE_ADDRESSES_MAX).collect();
    Some(found).filter(|found| !found.is_empty())
}
