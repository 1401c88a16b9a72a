//! How a node is started.

use herd_core::limits::{MEMCACHED_VALUE_MAX_BYTES, OBJECT_MAX_BYTES};
use std::net::SocketAddr;

/// Options of a node.
#[derive(Clone, Debug)]
pub struct Config {
    /// Addresses to listen on; port 0: any free one.
    pub listen: Vec<SocketAddr>,
    /// Its name.
    pub name: String,
    /// Bound on the memory of the store, bytes.
    pub memory_bytes: u64,
    /// Event loops.
    pub threads: usize,
    /// Whether collection `default` evicts.
    pub evict: bool,
    /// Largest object, bytes.
    pub object_max_bytes: u64,
    /// Largest value through the memcached door, bytes.
    pub memcached_max_bytes: u64,
    /// Plaintext beyond loopback was allowed.
    pub plain: bool,
    /// memcached's `debugtime` is enabled.
    pub debug_time: bool,
    /// Most connections.
    pub connections_max: u64,
    /// Version and commit, as `--version` shows them.
    pub build: String,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: vec![SocketAddr::from(([127, 0, 0, 1], 7700))],
            name: "node".into(),
            memory_bytes: 1 << 30,
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            evict: false,
            object_max_bytes: OBJECT_MAX_BYTES,
            memcached_max_bytes: MEMCACHED_VALUE_MAX_BYTES,
            plain: false,
            debug_time: false,
            connections_max: 10_000,
            build: format!("herd {}", env!("CARGO_PKG_VERSION")),
        }
    }
}
