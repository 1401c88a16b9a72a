//! `etcd://HOST:PORT[,HOST:PORT..][/NAME]`: which etcd, and which of the stores in it.
//!
//! Two herds may share an etcd: each has a name of its own there, and sees no key of the other.

use herd_core::control::ControlError;
use herd_core::key::collection_name_is_valid;
use herd_core::limits::{COLLECTION_NAME_MAX_BYTES, ETCD_ENDPOINTS_MAX};
use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::mpsc::sync_channel;
use std::time::Duration;

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

    /// The endpoints with their numbers. Names are looked up here, and not again while the store is open: a call to it
    /// is bounded, and looking up is not.
    pub(super) fn look_up(&self) -> Result<Vec<Endpoint>, ControlError> {
        self.endpoints.iter().map(|endpoint| look_up(endpoint)).collect()
    }

    /// The same for the warden's thread, which can't wait for the system's resolver: a thread of its own does it, which
    /// ends when the system has answered, and nobody waits for that.
    pub(super) fn look_up_within(&self, within: Duration) -> Result<Vec<Endpoint>, ControlError> {
        let address = self.clone();
        bounded(within, move || address.look_up())
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

fn bounded<T: Send + 'static>(
    within: Duration,
    look_up: impl FnOnce() -> Result<T, ControlError> + Send + 'static,
) -> Result<T, ControlError> {
    let (found, finds) = sync_channel(1);
    let thread = std::thread::Builder::new().name("name".into()).spawn(move || found.send(look_up()).ok());
    thread.map_err(|error| ControlError::Unreachable(format!("a thread to look names up: {error}")))?;
    let late = "its name is not found in time: see to what this machine looks names up with";
    finds.recv_timeout(within).unwrap_or_else(|_| Err(ControlError::Unreachable(format!("etcd: {late}"))))
}

fn look_up(endpoint: &str) -> Result<Endpoint, ControlError> {
    let unknown = |why: String| ControlError::Unreachable(format!("{endpoint}: {why}: check the address of etcd"));
    let addrs: Vec<SocketAddr> = endpoint.to_socket_addrs().map_err(|error| unknown(error.to_string()))?.collect();
    match addrs.is_empty() {
        true => Err(unknown("there is no such host".into())),
        false => Ok(Endpoint { name: endpoint.into(), addrs }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn a_name_that_is_not_found_in_time_is_not_waited_for() {
        let (since, within) = (Instant::now(), Duration::from_millis(50));
        let slow = bounded(within, || {
            std::thread::sleep(Duration::from_secs(5));
            Ok(())
        });
        assert!(matches!(slow, Err(ControlError::Unreachable(text)) if text.contains("not found in time")));
        assert!(since.elapsed() < Duration::from_secs(2), "{:?}", since.elapsed());
        let address = Address::parse("etcd://127.0.0.1:7").expect("it is right");
        let found = address.look_up_within(Duration::from_secs(5)).expect("no name");
        assert_eq!(found[0].addrs, ["127.0.0.1:7".parse().expect("an address")]);
    }
}
