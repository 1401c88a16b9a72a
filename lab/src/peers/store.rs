//! Servers of objects, each by a protocol one of our clients speaks.

use std::path::PathBuf;
use std::process::Child;

use serde::Serialize;

use crate::client;
use crate::crowd::{CrowdOutcome, CrowdSpec};
use crate::error::Result;
use crate::hist::{Latencies, Recorded};
use crate::net::{HostId, Network};
use crate::peers::server::{Kind, Program, Server, Setup};
use crate::peers::{Load, Peer, Values};
use crate::proc;
use crate::proto::{Op, Proto};
use crate::spec::{Outcome, Spec};

/// A server of objects and the door it is asked by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known {
    /// As printed.
    pub(crate) name: &'static str,
    /// Which server.
    pub(crate) kind: Kind,
    /// The door.
    pub(crate) proto: Proto,
}

/// All there are.
pub(crate) const STORES: [Known; 8] = [
    Known { name: "herd text", kind: Kind::Herd, proto: Proto::Memcached },
    Known { name: "herd wire", kind: Kind::Herd, proto: Proto::Herd },
    Known { name: "herd http", kind: Kind::Herd, proto: Proto::Http },
    Known { name: "memcached", kind: Kind::Memcached(""), proto: Proto::Memcached },
    Known { name: "redis", kind: Kind::Redis, proto: Proto::Resp },
    Known { name: "pogocache", kind: Kind::Pogocache, proto: Proto::Memcached },
    Known { name: "nginx", kind: Kind::Nginx, proto: Proto::Http },
    Known { name: "etcd", kind: Kind::Etcd, proto: Proto::Etcd },
];

/// One of them, with its program.
pub(crate) struct Store {
    known: &'static Known,
    program: Program,
}

impl Store {
    /// By its program's path.
    pub(crate) fn new(known: &'static Known, path: PathBuf) -> Self {
        Self { known, program: Program::new(known.kind, path) }
    }

    /// A crowd of gets over all servers, and puts beside them on the first.
    fn crowd(&self, net: &Network, clients: HostId, servers: &[Server], load: &Load) -> Result<Values> {
        let spec = CrowdSpec {
            servers: servers.iter().map(|server| server.addr).collect(),
            proto: self.known.proto,
            server_pids: servers.iter().map(Server::pid).collect(),
            ..CrowdSpec::of(load)
        };
        let putting = match load.puts_per_s {
            Some(puts_per_s) => Some(start(net, clients, "engine", &self.puts(&servers[0], load, puts_per_s))?),
            None => None,
        };
        let got = crowd(net, clients, &spec);
        let put = putting.map(client::finish::<Outcome>).transpose();
        let (mut values, put) = (got?, put?);
        if let Some(put) = put {
            values.push(("puts/s", put.ops as f64 / put.seconds));
            values.push(("put p99 ms", percentile_ms(&put.latencies, 99.0)));
            values.iter_mut().filter(|(name, _)| *name == "unanswered").for_each(|(_, n)| *n += put.unanswered as f64);
        }
        Ok(values)
    }

    /// Puts that begin before the crowd's window, for it stores its objects first, and end after it.
    fn puts(&self, server: &Server, load: &Load, puts_per_s: f64) -> Spec {
        Spec {
            conns: load.conns.div_ceil(4),
            rate_per_s: Some(puts_per_s),
            warm_ms: load.warm_ms + 500,
            run_ms: load.run_ms + 1_000,
            ..self.small(server, load, Op::Set)
        }
    }

    /// Small requests as fast as replies come, for a protocol in which only they make sense.
    fn small(&self, server: &Server, load: &Load, op: Op) -> Spec {
        Spec {
            conns: load.conns,
            keys: u32::try_from(load.objects).expect("objects are numbered below 2^24"),
            value_bytes: load.object_bytes,
            rate_per_s: load.gets_per_s,
            warm_ms: load.warm_ms,
            run_ms: load.run_ms,
            core: load.core,
            seed: load.seed,
            ..server.small(self.known.proto, op)
        }
    }

    fn engine(&self, net: &Network, clients: HostId, server: &Server, load: &Load) -> Result<Values> {
        let run = |spec: &Spec| start(net, clients, "engine", spec).and_then(client::finish::<Outcome>);
        run(&Spec { sequential: true, rate_per_s: None, ..self.small(server, load, Op::Set) })?;
        let got = run(&self.small(server, load, Op::Get))?;
        let per_s = got.ops as f64 / got.seconds;
        Ok(vec![
            ("MB/s", per_s * load.object_bytes as f64 / 1e6),
            ("replies/s", per_s),
            ("p50 ms", percentile_ms(&got.latencies, 50.0)),
            ("p99 ms", percentile_ms(&got.latencies, 99.0)),
            ("server cpu us", got.server_cpu_ns as f64 / 1e3 / got.ops.max(1) as f64),
            ("unanswered", got.unanswered as f64),
        ])
    }
}

impl Peer for Store {
    fn name(&self) -> &'static str {
        self.known.name
    }

    fn start(&self, net: &Network, host: HostId, core: Option<usize>) -> Result<Server> {
        let address = Some(net.address(host));
        let setup = Setup { memory_mib: 1_024, item_max_mib: 16, host: address, core, ..Setup::default() };
        net.on(host, || self.program.start(&setup))
    }

    fn load(&self, net: &Network, clients: HostId, servers: &[Server], load: &Load) -> Result<Values> {
        let mut values = match self.known.proto {
            Proto::Etcd => self.engine(net, clients, &servers[0], load)?,
            _ => self.crowd(net, clients, servers, load)?,
        };
        let peaks = servers.iter().map(|server| proc::peak_resident_bytes(server.pid()));
        let peaks = peaks.collect::<Result<Vec<u64>>>()?;
        values.push(("server peak MiB", peaks.into_iter().max().unwrap_or(0) as f64 / f64::from(1 << 20)));
        Ok(values)
    }
}

/// Lets a crowd on host `clients` do this, and reads what it got.
pub(super) fn crowd(net: &Network, clients: HostId, spec: &CrowdSpec) -> Result<Values> {
    let got: CrowdOutcome = start(net, clients, "crowd", spec).and_then(client::finish)?;
    Ok(vec![
        ("MB/s", got.bytes as f64 / got.seconds / 1e6),
        ("replies/s", got.replies as f64 / got.seconds),
        ("p50 ms", percentile_ms(&got.latencies, 50.0)),
        ("p99 ms", percentile_ms(&got.latencies, 99.0)),
        ("server cpu us", got.server_cpu_ns as f64 / 1e3 / got.replies.max(1) as f64),
        ("client cpu us", got.client_cpu_ns as f64 / 1e3 / got.replies.max(1) as f64),
        ("unanswered", got.unanswered as f64),
        ("idle", got.idle),
    ])
}

/// Starts one of our client subcommands on a host.
fn start(net: &Network, host: HostId, subcommand: &str, spec: &impl Serialize) -> Result<Child> {
    client::start(net.command(host, &client::program()?), subcommand, spec)
}

fn percentile_ms(recorded: &Recorded, percent: f64) -> f64 {
    let mut latencies = Latencies::new();
    latencies.merge(recorded);
    latencies.percentile_us(percent) / 1e3
}
