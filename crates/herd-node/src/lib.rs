//! The daemon as a library: event loops over one store, and the doors between them.
//!
//! Reading order: `service.rs` (which door), `memcached/`, `apply.rs` (what changes an object), `watch.rs` (who waits),
//! `context.rs`; `link/` (other nodes).

mod apply;
mod bulk;
mod config;
mod context;
pub mod control;
mod debug_time;
mod defect;
mod doors;
#[cfg(test)]
mod drive;
mod environment;
mod flight;
mod gate;
mod group;
mod held;
mod http;
mod inside;
mod lease;
mod link;
mod member;
mod memcached;
mod metrics;
pub mod place;
mod report;
mod request;
mod service;
#[cfg(test)]
mod tests;
pub mod warden;
mod watch;
mod wire;

pub use config::Config;
pub use defect::abort_on_panic;
pub use environment::Environment;
pub use herd_store::check_memory;
pub use inside::{Copy, Inside, Unsettled};
pub use lease::{Clock, Leases};
pub use link::{Came, Hub, Membership, Owner, Replies, Warden};
pub use member::{Entry, JoinError, StartError, StartWitness, Tell, Told, Witness};

#[cfg(target_os = "linux")]
pub use herd_net::close_handed;

use context::Shared;
use debug_time::DebugTime;
use herd_core::collection::Spec;
use herd_core::key::HashKey;
use herd_core::limits::{LEAVE_MS, NODE_NAME_MAX_BYTES, STOP_MS};
use herd_net::{EventLoop, LoopHandle, listen};
use herd_store::Store;
use member::{Duty, Founded, InHerd, Own};
use metrics::Metrics;
use service::NodeService;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use watch::Watch;

/// How long loops that were told to stop are waited for: a little over `STOP_MS`, which they keep by themselves.
const STOP_PATIENCE: Duration = Duration::from_millis(STOP_MS + 500);

/// A running node.
pub struct Node {
    shared: Arc<Shared>,
    addrs: Vec<SocketAddr>,
    loops: LoopHandle,
    threads: Vec<JoinHandle<io::Result<()>>>,
    duty: Option<Duty>,
}

impl Node {
    /// Starts a node; it serves when this returns. Errors: an address can't be had, memory is too little.
    pub fn start(config: Config) -> io::Result<Self> {
        Self::start_with(config, None)
    }

    /// As [`Node::start`], of a node that has links to others of its herd, by the maps that the hub is given.
    pub fn start_linked(config: Config, hub: Arc<Hub>) -> io::Result<Self> {
        Self::start_with(config, Some(hub))
    }

    fn start_with(config: Config, hub: Option<Arc<Hub>>) -> io::Result<Self> {
        let (listeners, addrs) = bind(&config)?;
        let (start, environment) = (Instant::now(), machine()?);
        let shared = Arc::new(shared(config, &environment)?);
        if let Some(hub) = hub {
            shared.link_by(hub);
        }
        Self::run(shared, listeners, addrs, start)
    }

    /// Starts a node that begins a herd, goes on with the one it was in, or joins one; it serves when this returns.
    pub fn start_in_herd(config: Config, entry: &Entry) -> Result<Self, StartError> {
        check(&config)?;
        let (listeners, addrs) = bind(&config)?;
        let (start, environment) = (Instant::now(), machine()?);
        let (name, memory_bytes) = (config.name.as_str(), config.memory_bytes);
        let own = Own { name, memory_bytes, evict: config.evict, unix_ms: environment.unix_ms, listens: &addrs };
        let InHerd { member, founded, map, held } = member::enter(entry, &own)?;
        let config = Config { evict: founded.default.class == "cache", ..config };
        let shared = Arc::new(shared_as(config, &environment, founded)?);
        shared.held.store(false, Relaxed);
        shared.member.set(member.clone()).ok();
        member.hub.get().into_iter().for_each(|hub| shared.link_by(hub.clone()));
        member.first(&shared, &map, held).map_err(|error| io::Error::other(error.text))?;
        let node = Self::run(shared.clone(), listeners, addrs, start)?;
        let duty = Duty::begin(member, shared, entry)?;
        Ok(Self { duty: Some(duty), ..node })
    }

    fn run(
        shared: Arc<Shared>,
        listeners: Vec<TcpListener>,
        addrs: Vec<SocketAddr>,
        start: Instant,
    ) -> io::Result<Self> {
        let services = (0..shared.config.threads).map(|n| NodeService::new(shared.clone(), n)).collect();
        let (handle, group) = EventLoop::group(listeners, services, shared.config.connections_max, start)?;
        shared.loops.set(handle.clone()).ok();
        shared.hub.get().into_iter().for_each(|hub| hub.set_loops(handle.clone()));
        shared.addrs.set(addrs.clone()).ok();
        let spawn = |(n, event_loop): (usize, EventLoop<NodeService>)| {
            std::thread::Builder::new().name(format!("loop-{n}")).spawn(move || event_loop.run())
        };
        let threads = group.into_iter().enumerate().map(spawn).collect::<io::Result<Vec<_>>>()?;
        Ok(Self { shared, addrs, loops: handle, threads, duty: None })
    }

    /// The addresses it listens on.
    pub fn addrs(&self) -> &[SocketAddr] {
        &self.addrs
    }

    /// Whether a loop has ended by itself, which only a defect or a failing poller does.
    pub fn has_ended(&self) -> bool {
        self.threads.iter().any(JoinHandle::is_finished)
    }

    /// Why the herd goes on without this process, if it does: it is to be started anew.
    pub fn outcast(&self) -> Option<&str> {
        self.shared.member.get().and_then(|member| member.outcast())
    }

    /// Whether a client has asked it to stop: it is none of its herd soon.
    pub fn is_told_to_end(&self) -> bool {
        self.shared.told_to_end.load(Relaxed)
    }

    /// Connections shed so far: too slow, or too many.
    pub fn shed(&self) -> u64 {
        self.loops.loops().iter().map(|remote| remote.stats.shed.load(Relaxed)).sum()
    }

    /// Asks the warden that others lead what this node leads, and serves until they do; to be called before it is
    /// stopped. Within [`LEAVE_MS`](herd_core::limits::LEAVE_MS), and until `is_cut` says that it is not waited for any
    /// more. `tell` takes lines for the log.
    pub fn leave(&self, is_cut: impl Fn() -> bool, tell: impl Fn(&str)) {
        if let Some(member) = self.shared.member.get() {
            member.leave(&self.shared, || is_cut() || self.has_ended(), tell);
        }
    }

    /// Finishes what is under way and stops, within 5 s. An error is that of a loop; one that does not end, which only
    /// a defect can cause, is left behind.
    pub fn stop(self) -> io::Result<()> {
        self.stop_after(Duration::ZERO)
    }

    /// As [`Node::stop`], where so much of these 5 s is over.
    pub fn stop_after(self, gone: Duration) -> io::Result<()> {
        self.shared.stopping.store(true, Relaxed);
        let gone = gone.min(Duration::from_millis(LEAVE_MS));
        self.loops.stop_within(STOP_MS - gone.as_millis() as u64);
        let until = Instant::now() + STOP_PATIENCE - gone;
        while !self.threads.iter().all(JoinHandle::is_finished) {
            if Instant::now() > until {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "an event loop does not end"));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        for thread in self.threads {
            thread.join().map_err(|_| io::Error::other("an event loop panicked"))??;
        }
        self.duty.map_or(Ok(()), Duty::stop)
    }
}

/// What can be refused before the herd hears of a node.
fn check(config: &Config) -> io::Result<()> {
    if config.name.len() > NODE_NAME_MAX_BYTES {
        let text = format!("the node's name is over {NODE_NAME_MAX_BYTES} bytes");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    check_memory(config.memory_bytes)
}

/// Takes the addresses to listen on; gives those that came of it.
fn bind(config: &Config) -> io::Result<(Vec<TcpListener>, Vec<SocketAddr>)> {
    let listeners = config.listen.iter().map(|addr| listen(*addr)).collect::<io::Result<Vec<_>>>()?;
    let addrs = listeners.iter().map(|listener| listener.local_addr()).collect::<io::Result<Vec<_>>>()?;
    Ok((listeners, addrs))
}

/// What all loops share, of a node that is a herd of its own.
fn shared(config: Config, environment: &Environment) -> io::Result<Shared> {
    let default = Spec::of(if config.evict { "cache" } else { "ram:1" });
    let (hash_key, versions_ms) = (HashKey(environment.random), environment.unix_ms);
    shared_as(config, environment, Founded { hash_key, versions_ms, default })
}

fn shared_as(config: Config, environment: &Environment, founded: Founded) -> io::Result<Shared> {
    check(&config)?;
    let store = Store::new(&herd_store::Config {
        node: config.name.clone(),
        memory_bytes: config.memory_bytes,
        threads: config.threads,
        object_max_bytes: config.object_max_bytes,
        hash_key: founded.hash_key,
        start_ms: founded.versions_ms,
    })?;
    let default = store.create("default", founded.default).map_err(|error| io::Error::other(error.text))?;
    let (watch, mail) = (Watch::new(store.clone()), group::Mail::new(config.threads));
    Ok(Shared {
        store,
        default,
        metrics: (0..config.threads).map(|_| Metrics::default()).collect(),
        is_private: config.listen.iter().all(|addr| addr.ip().is_loopback()),
        config,
        loops: OnceLock::new(),
        stopping: AtomicBool::new(false),
        told_to_end: AtomicBool::new(false),
        start_unix_ms: environment.unix_ms,
        debug_time: DebugTime::new(),
        flush_at_ms: AtomicU64::new(0),
        watch,
        place: OnceLock::new(),
        gates: group::Gates::default(),
        member: OnceLock::new(),
        held: AtomicBool::new(true),
        mail,
        addrs: OnceLock::new(),
        sessions: AtomicU32::new(0),
        copies: AtomicU64::new(0),
        asked_ms: AtomicU64::new(0),
        hub: OnceLock::new(),
    })
}

/// The date and chance as this machine has them.
fn machine() -> io::Result<Environment> {
    let unix_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64);
    Ok(Environment { unix_ms, random: environment::random()? })
}
