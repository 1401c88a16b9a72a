//! What stands beside Herd in a figure, and Herd itself: each is started, loaded, and read, by one small trait.
//!
//! [`Store`] is any server of objects that one of our clients' protocols reaches: Herd by each of its doors, memcached,
//! Redis, nginx, etcd. [`Spread`] is a herd, or a Redis Cluster, whose nodes know of each other. [`Stream`] is iperf3:
//! no objects, but what the link carries. A peer of another kind is another implementation of [`Peer`]; a server of
//! objects is an entry of [`STORES`] and a [`Kind`].

pub(crate) mod server;
pub(crate) mod spread;
mod store;
mod stream;

use std::path::PathBuf;

use crate::error::Result;
use crate::net::{HostId, Network};
use crate::peers::server::Server;
use crate::proto::Op;

pub(crate) use crate::peers::server::{Kind, Program, Setup, find_program, version};
pub(crate) use crate::peers::spread::{REDIS_CLUSTER, Spread};
pub(crate) use crate::peers::store::{STORES, Store};
pub(crate) use crate::peers::stream::{IPERF3, Stream};

/// What a run measured: names with their units, and numbers.
pub(crate) type Values = Vec<(&'static str, f64)>;

/// Something that can be started on a host and loaded from another.
pub(crate) trait Peer {
    /// As printed.
    fn name(&self) -> &'static str;

    /// Starts it on a host, on core `core` if given, and returns once it serves.
    fn start(&self, net: &Network, host: HostId, core: Option<usize>) -> Result<Server>;

    /// Starts it on each of these hosts, and returns once all serve, together if they know of each other.
    fn start_all(&self, net: &Network, hosts: &[HostId], core: Option<usize>) -> Result<Vec<Server>> {
        hosts.iter().map(|host| self.start(net, *host, core)).collect()
    }

    /// Lets a client on host `clients` load the servers, and reads what they gave: at least `MB/s`.
    fn load(&self, net: &Network, clients: HostId, servers: &[Server], load: &Load) -> Result<Values>;
}

/// What clients ask for.
#[derive(Clone, Debug)]
pub(crate) struct Load {
    /// Connections in all.
    pub(crate) conns: usize,
    /// What is asked for: gets, or to write the objects again.
    pub(crate) op: Op,
    /// Bytes of each object.
    pub(crate) object_bytes: usize,
    /// Distinct objects in all.
    pub(crate) objects: usize,
    /// Gets per second, open loop. None: as fast as replies come.
    pub(crate) gets_per_s: Option<f64>,
    /// Puts per second beside them, open loop, by a quarter as many connections of their own.
    pub(crate) puts_per_s: Option<f64>,
    /// Time before the measured window, in milliseconds.
    pub(crate) warm_ms: u64,
    /// The measured window, in milliseconds.
    pub(crate) run_ms: u64,
    /// Core of the clients.
    pub(crate) core: Option<usize>,
    /// The process whose time counts as idle ([`crate::awake`]).
    pub(crate) awake_pid: i32,
    /// Seed of names and arrivals.
    pub(crate) seed: u64,
}

/// The peers of these names whose programs are there, in order; `path` gives a program's.
pub(crate) fn of(names: &[&str], path: impl Fn(&str) -> Option<PathBuf>) -> Vec<Box<dyn Peer>> {
    let peer = |name: &&str| -> Option<Box<dyn Peer>> {
        if *name == IPERF3 {
            return Some(Box::new(Stream::new(path(IPERF3)?)));
        }
        if Spread::is_one(name) {
            return Some(Box::new(Spread::of(name, &path)?));
        }
        let known = STORES.iter().find(|store| store.name == *name).expect("figures name only peers there are");
        Some(Box::new(Store::new(known, path(known.kind.program())?)))
    };
    names.iter().filter_map(peer).collect()
}
