//! `etcd://HOST:PORT[,HOST:PORT..][/NAME]`: which etcd, and which of the stores in it.
//!
//! Two herds may share an etcd: each has a name of its own there, and sees no key of the other.

use herd_core::control::ControlError;
use herd_core::key::collection_name_is_valid;
use herd_core::limits::{COLLECTION_NAME_MAX_BYTES, ETCD_ENDPOINTS_MAX};
use std::fmt;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};

const SCHEME: &str = "etcd://";
/// Where a herd's store lies in an etcd if nothing is said.
const NAME: &str = "herd";

/// Where a control store in etcd is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// `HOST:PORT` of its members, at least one.
    endpoints: Vec<String>,
    /// The store's name there.
    name: String,
    /// Versions that may read stale are taken too.
    pub(super) forced: bool,
}

impl Address {
    /// Reads it as it is written on the command line; the error says how.
    pub fn parse(text: &str) -> Result<Self, String> {
        let usage = "write etcd://HOST:PORT[,HOST:PORT..][/NAME]";
        let rest = text.strip_prefix(SCHEME).ok_or_else(|| usage.to_string())?;
        let (hosts, name) = rest.split_once('/').unwrap_or((rest, NAME));
        if !collection_name_is_valid(name) {
            return Err(format!("NAME is 1 to {COLLECTION_NAME_MAX_BYTES} letters, digits, '.', '-' or '_': {usage}"));
        }
        if hosts.contains('@') {
            return Err(format!("users of etcd are not in this version: {usage}"));
        }
        let endpoints = hosts.split(',').map(|host| endpoint(host).ok_or_else(|| usage.to_string()));
        let endpoints = endpoints.collect::<Result<Vec<_>, _>>()?;
        match endpoints.len() {
            1..=ETCD_ENDPOINTS_MAX => Ok(Self { endpoints, name: name.into(), forced: false }),
            _ => Err(format!("an etcd has at most {ETCD_ENDPOINTS_MAX} endpoints here: {usage}")),
        }
    }

    /// The same, with versions that may read stale, if they are to be taken too.
    pub fn forced(self, forced: bool) -> Self {
        Self { forced, ..self }
    }

    /// `HOST:PORT` of its members, as they were written.
    pub fn endpoints(&self) -> &[String] {
        &self.endpoints
    }

    /// What all keys of the store begin with.
    pub(super) fn prefix(&self) -> String {
        format!("herd/{}/", self.name)
    }

    /// The endpoints with their numbers, if they are found within that time. Names are looked up here, and not again
    /// while the store is open.
    pub(super) fn look_up(&self, within: Duration) -> Result<Vec<Endpoint>, ControlError> {
        let until = Instant::now() + within;
        let system = |name: &str| name.to_socket_addrs().map(Iterator::collect);
        // All at once: one that takes its time takes none of the others'.
        let asked: Vec<_> = self.endpoints.iter().map(|endpoint| (endpoint, ask(endpoint, system))).collect();
        asked.into_iter().map(|(endpoint, found)| wait(endpoint, found, until)).collect()
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}", self.endpoints.join(","))?;
        if self.name == NAME { Ok(()) } else { write!(f, "/{}", self.name) }
    }
}

/// A member of an etcd, as clients reach it.
#[derive(Clone, Debug)]
pub(super) struct Endpoint {
    /// As it was written.
    pub(super) name: String,
    /// Its numbers; at least one.
    pub(super) addrs: Vec<SocketAddr>,
}

fn endpoint(text: &str) -> Option<String> {
    let (host, port) = text.rsplit_once(':')?;
    let port = port.parse::<u16>().ok().filter(|port| *port > 0)?;
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:[]".contains(&byte);
    (!host.is_empty() && text.len() <= 255 && host.bytes().all(is_plain)).then(|| format!("{host}:{port}"))
}

type Found = io::Result<Vec<SocketAddr>>;

/// Looks a name up. The system may take long, and can't be told to stop: a thread does it, which ends when the system
/// has answered, and nobody waits for that.
fn ask(endpoint: &str, look_up: impl FnOnce(&str) -> Found + Send + 'static) -> io::Result<Receiver<Found>> {
    let (found, finds) = sync_channel(1);
    if let Ok(address) = endpoint.parse() {
        found.try_send(Ok(vec![address])).ok();
        return Ok(finds);
    }
    let name = endpoint.to_owned();
    std::thread::Builder::new().name("name".into()).spawn(move || found.send(look_up(&name)).ok())?;
    Ok(finds)
}

fn wait(endpoint: &str, found: io::Result<Receiver<Found>>, until: Instant) -> Result<Endpoint, ControlError> {
    let late = || Err(io::Error::new(io::ErrorKind::TimedOut, "the name is not found in time"));
    let left = until.saturating_duration_since(Instant::now());
    let found = found.and_then(|finds| finds.recv_timeout(left).unwrap_or_else(|_| late()));
    let unknown = |why: String| ControlError::Unreachable(format!("{endpoint}: {why}: check the address of etcd"));
    let addrs = found.map_err(|error| unknown(error.to_string()))?;
    match addrs.is_empty() {
        true => Err(unknown("there is no such host".into())),
        false => Ok(Endpoint { name: endpoint.into(), addrs }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_not_found_in_time_is_not_waited_for() {
        let (answer, hangs) = sync_channel::<Found>(0);
        let since = Instant::now();
        let asked = ask("far:1", move |_| hangs.recv().unwrap_or_else(|_| Ok(Vec::new())));
        let late = wait("far:1", asked, since + Duration::from_millis(50));
        assert!(
            matches!(&late, Err(ControlError::Unreachable(text)) if text.contains("not found in time")),
            "{late:?}"
        );
        assert!(since.elapsed() < Duration::from_secs(10));
        drop(answer);
        let numbers = ask("127.0.0.1:7", |_| panic!("nothing is to be looked up"));
        assert!(wait("127.0.0.1:7", numbers, since).is_ok(), "no time is needed");
        let nobody = wait("none:1", ask("none:1", |_| Ok(Vec::new())), Instant::now() + Duration::from_secs(10));
        assert!(matches!(nobody, Err(ControlError::Unreachable(text)) if text.contains("no such host")));
    }
}
