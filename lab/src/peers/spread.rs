//! Stores whose nodes know of each other: a herd, asked by clients that have its map or through one address, and a
//! Redis Cluster. Their objects are named by index, 0 and on.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use crate::ask::{Asker, redis};
use crate::crowd::{CrowdSpec, usual_name};
use crate::error::{Error, Result};
use crate::net::{HostId, Network};
use crate::peers::server::{Kind, Program, Server, Setup, free_port};
use crate::peers::store::crowd;
use crate::peers::{Load, Peer, Values};
use crate::proto::Proto;

/// Its name among the peers.
pub(crate) const REDIS_CLUSTER: &str = "redis cluster";
/// A cluster that is not ready within this has failed.
const READY_PATIENCE: Duration = Duration::from_secs(30);
/// Slots of a Redis Cluster.
pub(crate) const REDIS_SLOTS: usize = 16_384;
/// Herd's collection: its objects are named by index, so neighbours lie on different nodes.
const COLLECTION: (&str, &str) = ("array", r#"{"class":"ram:1","indexed":true}"#);

/// How its clients know where an object is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// They have Herd's map.
    Map,
    /// They do not: the first node is asked for everything.
    OneAddress,
    /// They know Redis Cluster's rule.
    RedisSlots,
}

/// The names of figures, and how clients go.
const WAYS: [(&str, Way); 3] =
    [("herd", Way::Map), ("herd, one address", Way::OneAddress), (REDIS_CLUSTER, Way::RedisSlots)];

/// One of them, with its program.
pub(crate) struct Spread {
    name: &'static str,
    way: Way,
    program: Program,
}

impl Spread {
    /// Whether this is the name of one of these.
    pub(crate) fn is_one(name: &str) -> bool {
        WAYS.iter().any(|(known, _)| *known == name)
    }

    /// The one of that name, if its program is there.
    pub(crate) fn of(name: &str, path: impl Fn(&str) -> Option<PathBuf>) -> Option<Self> {
        let (name, way) = *WAYS.iter().find(|(known, _)| *known == name)?;
        let kind = if way == Way::RedisSlots { Kind::RedisMember } else { Kind::HerdMember };
        Some(Self { name, way, program: Program::new(kind, path(kind.program())?) })
    }

    fn start_one(
        &self,
        net: &Network,
        host: HostId,
        core: Option<usize>,
        join: Option<SocketAddr>,
    ) -> Result<(Server, u16)> {
        let address = net.address(host);
        net.on(host, || {
            let bus_port = if self.way == Way::RedisSlots { free_port(address)? } else { 0 };
            let setup = Setup { memory_mib: 512, host: Some(address), core, join, bus_port, ..Setup::default() };
            Ok((self.program.start(&setup)?, bus_port))
        })
    }

    /// The server of each object, by its place among `servers`.
    fn places(&self, servers: &[Server], objects: usize) -> Result<(Vec<u8>, Option<u64>)> {
        let place_of = |addr: Option<SocketAddr>| servers.iter().position(|server| Some(server.addr) == addr);
        if self.way == Way::RedisSlots {
            let place = |index: usize| redis_slot(&usual_name(index)) * servers.len() / REDIS_SLOTS;
            return Ok(((0..objects).map(|index| place(index) as u8).collect(), None));
        }
        let mut asker = Asker::open(servers[0].addr)?;
        let collection = asker.create(COLLECTION.0, COLLECTION.1)?;
        let map = if self.way == Way::OneAddress { None } else { asker.map()? };
        let Some(map) = map else { return Ok((vec![0; objects], Some(collection))) };
        let place = |index: usize| {
            let place = place_of(map.owner(collection, index as u64));
            let place = place.ok_or_else(|| Error::new(format!("the map has no owner of object {index}")))?;
            Ok(place as u8)
        };
        Ok(((0..objects).map(place).collect::<Result<_>>()?, Some(collection)))
    }
}

impl Peer for Spread {
    fn name(&self) -> &'static str {
        self.name
    }

    fn start(&self, net: &Network, host: HostId, core: Option<usize>) -> Result<Server> {
        Ok(self.start_one(net, host, core, None)?.0)
    }

    fn start_all(&self, net: &Network, hosts: &[HostId], core: Option<usize>) -> Result<Vec<Server>> {
        let (mut servers, mut bus_ports) = (Vec::<Server>::new(), Vec::new());
        for host in hosts {
            let join = servers.first().map(|first| first.addr);
            let (server, bus_port) = self.start_one(net, *host, core, join)?;
            servers.push(server);
            bus_ports.push(bus_port);
        }
        if self.way == Way::RedisSlots {
            net.on(hosts[0], || make_redis_cluster(&servers, &bus_ports))?;
        }
        Ok(servers)
    }

    fn load(&self, net: &Network, clients: HostId, servers: &[Server], load: &Load) -> Result<Values> {
        let (places, collection): (Vec<u8>, Option<u64>) = net.on(clients, || self.places(servers, load.objects))?;
        let asked = if self.way == Way::OneAddress { &servers[..1] } else { servers };
        let spec = CrowdSpec {
            servers: asked.iter().map(|server| server.addr).collect(),
            proto: if self.way == Way::RedisSlots { Proto::Resp } else { Proto::Herd },
            places,
            collection,
            server_pids: servers.iter().map(Server::pid).collect(),
            ..CrowdSpec::of(load)
        };
        crowd(net, clients, &spec)
    }
}

/// Deals the slots, and waits until every node knows of all others.
pub(crate) fn make_redis_cluster(servers: &[Server], bus_ports: &[u16]) -> Result<()> {
    let nodes = servers.len();
    for (number, server) in servers.iter().enumerate() {
        // Slot s is on node s * nodes / slots: these are the first and the last of node `number`.
        let first = (number * REDIS_SLOTS).div_ceil(nodes);
        let last = ((number + 1) * REDIS_SLOTS).div_ceil(nodes) - 1;
        redis(server.addr, &["CLUSTER", "ADDSLOTSRANGE", &first.to_string(), &last.to_string()])?;
        let (ip, port) = (servers[0].addr.ip().to_string(), servers[0].addr.port().to_string());
        if number > 0 {
            redis(server.addr, &["CLUSTER", "MEET", &ip, &port, &bus_ports[0].to_string()])?;
        }
    }
    let start = Instant::now();
    let knows_all = |server: &Server| -> Result<bool> {
        let info = redis(server.addr, &["CLUSTER", "INFO"])?;
        Ok(info.contains("cluster_state:ok") && info.contains(&format!("cluster_known_nodes:{nodes}\r\n")))
    };
    while !servers.iter().map(knows_all).collect::<Result<Vec<bool>>>()?.into_iter().all(|knows| knows) {
        if start.elapsed() > READY_PATIENCE {
            return Err(Error::new("the Redis Cluster is not ready after 30 s"));
        }
        thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// The slot of a key without braces: CRC-16 (XMODEM) modulo 16,384 (Redis Cluster specification).
pub(crate) fn redis_slot(key: &str) -> usize {
    let crc = key.bytes().fold(0u16, |crc, byte| {
        (0..8).fold(crc ^ u16::from(byte) << 8, |crc, _| if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 })
    });
    usize::from(crc) % REDIS_SLOTS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_redis() {
        // The check value of this CRC, and what `CLUSTER KEYSLOT foo` says.
        assert_eq!(redis_slot("123456789"), 0x31c3);
        assert_eq!(redis_slot("foo"), 12_182);
    }
}
