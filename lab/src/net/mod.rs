//! A pretend network (docs/decisions/004-pretend-networks.md): planned in terms of sites, hosts, cables and distances,
//! built out of network namespaces, changed while things run in it, gone when dropped.
//!
//! ```text
//!     let mut plan = Plan::new();
//!     let (pisa, tsukuba) = (plan.site(), plan.site());
//!     let node = plan.host(pisa, "node", Rate::GBIT_1);
//!     let client = plan.host(tsukuba, "client", Rate::MBIT_100);
//!     plan.distance(pisa, tsukuba, conditions::distance(100_000));
//!     let net = plan.build()?;
//! ```
//!
//! Each site is 10.N.0.0/16, hosts from .0.2 on. A site of one host that others are at a distance from has no switch:
//! the host itself holds the relay's device `wan`. Other sites have a way out, a namespace between switch and `wan`.
//! Callers are inside [`sandbox::enter`]: processes, namespaces and mounts of a run are of that run alone.

pub(crate) mod check;
pub(crate) mod conditions;
pub(crate) mod namespace;
pub(crate) mod presets;
pub(crate) mod private;
pub(crate) mod sandbox;
pub(crate) mod shell;

use std::fs;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::Command;

use crate::client;
use crate::error::{Context, Error, Result};
use crate::net::conditions::{Firewall, Rate};
use crate::net::namespace::Namespace;
use crate::relay::{self, Conditions, Relay};
use crate::sys;

/// A site of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SiteId(usize);

/// A host of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HostId(usize);

struct SitePlan {
    firewall: Firewall,
    hosts: usize,
    /// Some other site is at a distance from it.
    far: bool,
}

struct HostPlan {
    name: String,
    site: SiteId,
    /// Number within its site, from 0.
    number: usize,
    /// `None`: as fast as the machine.
    rate: Option<Rate>,
}

/// What is to be built.
#[derive(Default)]
pub(crate) struct Plan {
    sites: Vec<SitePlan>,
    hosts: Vec<HostPlan>,
    distances: Vec<(SiteId, SiteId, Conditions)>,
}

impl Plan {
    /// Nothing yet.
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Adds a site: a switch, and an open way out.
    pub(crate) fn site(&mut self) -> SiteId {
        self.sites.push(SitePlan { firewall: Firewall::Open, hosts: 0, far: false });
        SiteId(self.sites.len() - 1)
    }

    /// Adds a host to a site; `rate`: of its cable, both ways, or `None` for as fast as the machine.
    pub(crate) fn host(&mut self, site: SiteId, name: &str, rate: impl Into<Option<Rate>>) -> HostId {
        let number = self.sites[site.0].hosts;
        self.sites[site.0].hosts += 1;
        self.hosts.push(HostPlan { name: name.into(), site, number, rate: rate.into() });
        HostId(self.hosts.len() - 1)
    }

    /// A site of one host.
    pub(crate) fn lone_host(&mut self, name: &str) -> (SiteId, HostId) {
        let site = self.site();
        (site, self.host(site, name, None))
    }

    /// Puts two sites at a distance, the same both ways.
    pub(crate) fn distance(&mut self, one: SiteId, other: SiteId, conditions: Conditions) {
        self.sites[one.0].far = true;
        self.sites[other.0].far = true;
        self.distances.push((one, other, conditions));
    }

    /// Says who may speak to a site's hosts from outside.
    pub(crate) fn firewall(&mut self, site: SiteId, firewall: Firewall) {
        self.sites[site.0].firewall = firewall;
    }

    /// Builds it. The caller is inside [`sandbox::enter`].
    pub(crate) fn build(self) -> Result<Network> {
        let mut network = Network {
            fabric: Namespace::new()?,
            hosts: Vec::new(),
            ways_out: Vec::new(),
            relay: None,
            places: Vec::new(),
            distances: self.distances.clone(),
        };
        for site in (0..self.sites.len()).map(SiteId).filter(|site| !self.is_lone(*site)) {
            network.switch(site)?;
        }
        for host in &self.hosts {
            let built = if self.is_lone(host.site) { lone_host(host)? } else { network.plug_in(host)? };
            network.hosts.push(built);
        }
        let far: Vec<SiteId> = (0..self.sites.len()).map(SiteId).filter(|site| self.sites[site.0].far).collect();
        let devices = far.iter().map(|site| network.open_up(&self, *site)).collect::<Result<Vec<_>>>()?;
        if !devices.is_empty() {
            network.start_relay(devices)?;
        }
        Ok(network)
    }

    /// Whether its only host holds the relay's device itself.
    fn is_lone(&self, site: SiteId) -> bool {
        let plan = &self.sites[site.0];
        plan.far && plan.hosts == 1 && !matches!(plan.firewall, Firewall::Private(_))
    }
}

/// Inner address of a host of a site, both counted from 0.
fn address(site: SiteId, number: usize) -> Ipv4Addr {
    let number = u16::try_from(number + 2).expect("a site has fewer than 65,000 hosts").to_be_bytes();
    Ipv4Addr::new(10, octet(site), number[0], number[1])
}

fn gateway(site: SiteId) -> Ipv4Addr {
    Ipv4Addr::new(10, octet(site), 0, 1)
}

/// The one address a private site shows.
pub(crate) fn outer_address(site: SiteId) -> Ipv4Addr {
    Ipv4Addr::new(172, 31, octet(site), 1)
}

fn octet(site: SiteId) -> u8 {
    u8::try_from(site.0 + 1).expect("a plan has fewer than 255 sites")
}

/// A host that is there.
struct Host {
    name: String,
    site: SiteId,
    address: Ipv4Addr,
    namespace: Namespace,
    /// The switch's side of its cable; `None` on a lone host.
    port: Option<String>,
}

/// A network that is there; what runs in it is ended, and it vanishes, when it is dropped.
pub(crate) struct Network {
    /// Where the switches are.
    fabric: Namespace,
    hosts: Vec<Host>,
    ways_out: Vec<Namespace>,
    relay: Option<Relay>,
    /// The sites of the relay's devices, in their order.
    places: Vec<SiteId>,
    distances: Vec<(SiteId, SiteId, Conditions)>,
}

impl Network {
    fn switch(&self, site: SiteId) -> Result<()> {
        let add = format!("link add {0} type bridge forward_delay 0\nlink set {0} up\n", switch(site));
        self.fabric.batch("ip", &add)
    }

    /// A host on its site's switch, by a cable of its rate.
    fn plug_in(&self, plan: &HostPlan) -> Result<Host> {
        let namespace = Namespace::new()?;
        let port = format!("s{}h{}", plan.site.0, plan.number);
        self.cable(&port, plan.site, &namespace, plan.rate)?;
        let address = address(plan.site, plan.number);
        namespace.batch("ip", &inner_routes(address, plan.site))?;
        if let Some(rate) = plan.rate {
            self.shape(&namespace, &port, rate)?;
        }
        Ok(Host { name: plan.name.clone(), site: plan.site, address, namespace, port: Some(port) })
    }

    /// Gives a site its door to the others: in its lone host, or in a way out that it gets here.
    fn open_up(&mut self, plan: &Plan, site: SiteId) -> Result<Device> {
        let lone = plan.is_lone(site);
        let within: Vec<usize> = (0..plan.hosts.len()).filter(|&host| plan.hosts[host].site == site).collect();
        if !lone {
            let way_out = self.way_out(site)?;
            self.ways_out.push(way_out);
            let leave = format!("route add default via {} congctl {CONGESTION_CONTROL}\n", gateway(site));
            within.iter().try_for_each(|&host| self.hosts[host].namespace.batch("ip", &leave))?;
        }
        for host in &within {
            wide_windows(&self.hosts[*host].namespace)?;
        }
        let door = if lone { &self.hosts[within[0]].namespace } else { self.ways_out.last().expect("just built") };
        let firewall = &plan.sites[site.0].firewall;
        door.batch("nft", &firewall.rules(|host| address(site, host).to_string()))?;
        device(door, site, lone, firewall)
    }

    /// A cable from a site's switch to `eth0` of a namespace.
    fn cable(&self, port: &str, site: SiteId, to: &Namespace, rate: Option<Rate>) -> Result<()> {
        let packets = rate.map_or(44, Rate::frame_packets);
        let (switch, path) = (switch(site), to.path());
        let add = format!(
            "link add {port} gso_max_segs {packets} type veth peer name eth0 gso_max_segs {packets} netns {path}\n\
             link set {port} master {switch} up\n"
        );
        self.fabric.batch("ip", &add)
    }

    /// The namespace between a site's switch and the relay's device, which it does not have yet.
    fn way_out(&self, site: SiteId) -> Result<Namespace> {
        let namespace = Namespace::new()?;
        self.cable(&format!("s{}out", site.0), site, &namespace, None)?;
        let inner = gateway(site);
        namespace.batch("ip", &format!("link set eth0 up\naddr add {inner}/16 dev eth0\n"))?;
        namespace.set("net/ipv4/ip_forward", "1")?;
        Ok(namespace)
    }

    /// Starts the relay over the sites' devices.
    fn start_relay(&mut self, devices: Vec<Device>) -> Result<()> {
        let place = |site: SiteId| devices.iter().position(|device| device.site == site).expect("far sites have one");
        let both = self.distances.iter().flat_map(|(one, other, to)| [(*one, *other, *to), (*other, *one, *to)]);
        let paths = both
            .map(|(from, to, conditions)| relay::PathSpec { from: place(from), to: place(to), conditions })
            .collect();
        let program = client::program()?;
        self.places = devices.iter().map(|device| device.site).collect();
        let (fds, networks): (Vec<OwnedFd>, Vec<String>) =
            devices.into_iter().map(|device| (device.fd, device.network)).unzip();
        let devices = networks.into_iter().map(|network| relay::Device { fd: 0, network }).collect();
        let spec = relay::Spec { devices, paths, core: None, seed: 1 };
        self.relay = Some(Relay::start(&program, spec, fds)?);
        Ok(())
    }

    /// The host of this name.
    pub(crate) fn find(&self, name: &str) -> Result<HostId> {
        let found = self.hosts.iter().position(|host| host.name == name).map(HostId);
        found.ok_or_else(|| {
            let names: Vec<&str> = self.hosts.iter().map(|host| &*host.name).collect();
            Error::new(format!("no host {name}; there are: {}", names.join(", ")))
        })
    }

    /// A host's site.
    pub(crate) fn site_of(&self, host: HostId) -> SiteId {
        self.hosts[host.0].site
    }

    /// A site of the relay's report, by its first host.
    pub(crate) fn name_of_place(&self, place: usize) -> &str {
        let first = self.hosts.iter().find(|host| self.places.get(place) == Some(&host.site));
        first.map_or("?", |host| &host.name)
    }

    /// Where a host is.
    pub(crate) fn address(&self, host: HostId) -> Ipv4Addr {
        self.hosts[host.0].address
    }

    /// All hosts: name, address, and a path that names the namespace.
    pub(crate) fn hosts(&self) -> impl Iterator<Item = (&str, Ipv4Addr, String)> {
        self.hosts.iter().map(|host| (&*host.name, host.address, host.namespace.path()))
    }

    /// Runs `work` on a thread that is on a host; sockets it opens stay there.
    pub(crate) fn on<T: Send>(&self, host: HostId, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        self.hosts[host.0].namespace.run(work)
    }

    /// A command that will run on a host, and die with the thread that starts it.
    pub(crate) fn command(&self, host: HostId, program: &Path) -> Command {
        let mut command = Command::new(program);
        self.hosts[host.0].namespace.adopt(&mut command);
        sys::tie(&mut command, None);
        command
    }

    /// Bytes that a host's link has carried so far: to it, from it.
    pub(crate) fn link_bytes(&self, host: HostId) -> Result<(u64, u64)> {
        let host = &self.hosts[host.0];
        host.namespace.device_bytes(if host.port.is_some() { "eth0" } else { "wan" })
    }

    /// Changes the conditions between two sites, both ways.
    pub(crate) fn change(&mut self, one: SiteId, other: SiteId, conditions: Conditions) -> Result<()> {
        let places = (self.place(one)?, self.place(other)?);
        let relay = self.relay.as_mut().expect("there are places");
        relay.set(places.0, places.1, conditions)?;
        relay.set(places.1, places.0, conditions)
    }

    /// Cuts all links between two sites; what is under way is lost.
    pub(crate) fn cut(&mut self, one: SiteId, other: SiteId) -> Result<()> {
        let conditions = self.planned(one, other)?;
        self.change(one, other, Conditions { cut: true, ..conditions })
    }

    /// Two sites are as they were planned again.
    pub(crate) fn heal(&mut self, one: SiteId, other: SiteId) -> Result<()> {
        let conditions = self.planned(one, other)?;
        self.change(one, other, conditions)
    }

    /// Gives a host's cable a rate, or another one.
    pub(crate) fn limit(&self, host: HostId, rate: Rate) -> Result<()> {
        let host = &self.hosts[host.0];
        let port = host.port.as_deref().ok_or_else(|| Error::new(format!("{} has no cable", host.name)))?;
        self.shape(&host.namespace, port, rate)
    }

    /// Shapes both ends of a cable: the host's device, and the switch's port.
    fn shape(&self, host: &Namespace, port: &str, rate: Rate) -> Result<()> {
        host.batch("tc", &shaper("eth0", rate, rate.host_bytes()))?;
        self.fabric.batch("tc", &shaper(port, rate, rate.port_bytes()))
    }

    /// Pulls a host's cable out of the switch, or puts it in again.
    pub(crate) fn plug(&self, host: HostId, plugged: bool) -> Result<()> {
        let host = &self.hosts[host.0];
        let port = host.port.as_deref().ok_or_else(|| Error::new(format!("{} has no cable", host.name)))?;
        self.fabric.batch("ip", &format!("link set {port} {}\n", if plugged { "up" } else { "down" }))
    }

    /// Two hosts of a switch do not hear each other any more, though all others hear both; `reset`: what they send to
    /// each other is answered as if nobody were there, so that connections break at once.
    pub(crate) fn part(&self, host: HostId, other: HostId, reset: bool) -> Result<()> {
        let other = self.hosts[other.0].address;
        // Resets themselves must get through, both ways.
        let (within, without) = if reset {
            let refuse = "meta l4proto tcp reject with tcp reset";
            (format!("tcp flags & rst == rst accept\nip saddr {other} {refuse}"), String::new())
        } else {
            (format!("ip saddr {other} drop"), format!("ip daddr {other} drop"))
        };
        let rules = format!(
            "table ip apart {{\nchain in {{ type filter hook input priority 0;\n{within}\n}}\n\
             chain out {{ type filter hook output priority 0;\n{without}\n}}\n}}\n"
        );
        self.hosts[host.0].namespace.batch("nft", &rules)
    }

    /// Undoes [`Network::part`] at a host.
    pub(crate) fn join(&self, host: HostId) -> Result<()> {
        self.hosts[host.0].namespace.batch("nft", "delete table ip apart\n")
    }

    /// Sends a signal to every process on a host: SIGSTOP pauses it, SIGCONT wakes it, SIGKILL is a power failure.
    pub(crate) fn signal(&self, host: HostId, signal: i32) -> Result<usize> {
        let on_host = self.processes(host)?;
        let sent = on_host.iter().filter(|&&pid| sys::signal(pid, signal).is_ok()).count();
        Ok(sent)
    }

    /// All processes on a host: within the lab's own process namespace, those whose network is the host's.
    fn processes(&self, host: HostId) -> Result<Vec<i32>> {
        let name = |path: &str| fs::read_link(path).ok();
        let network = name(&self.hosts[host.0].namespace.path());
        let all = fs::read_dir("/proc").during(|| "list /proc".into())?;
        let pids = all.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
        Ok(pids.filter(|pid| network.is_some() && name(&format!("/proc/{pid}/ns/net")) == network).collect())
    }

    /// What the relay counted, path by path.
    pub(crate) fn relay_report(&mut self) -> Result<relay::Report> {
        self.relay.as_mut().ok_or_else(|| Error::new("no site is at a distance from another"))?.report()
    }

    /// Share of packets that the relay handed on over 1 ms late; 0 where there is none.
    pub(crate) fn late_share(&mut self) -> Result<f64> {
        self.relay.as_mut().map_or(Ok(0.0), |relay| Ok(relay.report()?.late_share()))
    }

    fn place(&self, site: SiteId) -> Result<usize> {
        let place = self.places.iter().position(|at| *at == site);
        place.ok_or_else(|| Error::new("no site is at a distance from this one"))
    }

    fn planned(&self, one: SiteId, other: SiteId) -> Result<Conditions> {
        let between =
            |pair: &&(SiteId, SiteId, Conditions)| (pair.0, pair.1) == (one, other) || (pair.0, pair.1) == (other, one);
        let found = self.distances.iter().find(between);
        found.map(|pair| pair.2).ok_or_else(|| Error::new("these sites are not at a distance from each other"))
    }
}

impl Drop for Network {
    /// Ends what runs on the hosts; the namespaces, and all devices in them, go with the last descriptors.
    fn drop(&mut self) {
        for host in (0..self.hosts.len()).map(HostId) {
            // Only processes that have just ended can be missed.
            self.signal(host, libc::SIGKILL).ok();
        }
    }
}

/// The relay's device in a site.
struct Device {
    site: SiteId,
    fd: OwnedFd,
    /// Addresses that are reached through it.
    network: String,
}

fn switch(site: SiteId) -> String {
    format!("switch{}", site.0)
}

/// Routes of a host on a switch. Congestion control is a property of its routes: unlike the system's default it can be
/// chosen in any namespace by anyone.
fn inner_routes(address: Ipv4Addr, site: SiteId) -> String {
    let site = octet(site);
    format!(
        "link set eth0 up\naddr add {address}/16 dev eth0 noprefixroute\n\
         route add 10.{site}.0.0/16 dev eth0 congctl {CONGESTION_CONTROL}\n"
    )
}

/// Far hosts need windows of a whole round trip.
fn wide_windows(namespace: &Namespace) -> Result<()> {
    let names = ["net/ipv4/tcp_rmem", "net/ipv4/tcp_wmem"];
    names.iter().try_for_each(|name| namespace.set(name, &format!("4096 131072 {WINDOW_MAX_BYTES}")))
}

/// A host without a switch; its device comes later.
fn lone_host(plan: &HostPlan) -> Result<Host> {
    let address = address(plan.site, plan.number);
    Ok(Host { name: plan.name.clone(), site: plan.site, address, namespace: Namespace::new()?, port: None })
}

/// Makes the relay's device at a site's way out.
fn device(door: &Namespace, site: SiteId, lone: bool, firewall: &Firewall) -> Result<Device> {
    let fd = door.run(|| relay::create("wan").needing(|| "make the relay's device (/dev/net/tun)".into()))?;
    let (own, network) = match firewall {
        Firewall::Private(_) => (outer_address(site), format!("{}/32", outer_address(site))),
        _ if lone => (address(site, 0), format!("10.{}.0.0/16", octet(site))),
        _ => (gateway(site), format!("10.{}.0.0/16", octet(site))),
    };
    let mut commands = format!("link set wan up txqueuelen {RELAY_QUEUE_PACKETS}\n");
    if own != gateway(site) {
        commands += &format!("addr add {own}/32 dev wan\n");
    }
    commands += &format!("route add default dev wan src {own} congctl {CONGESTION_CONTROL}\n");
    door.batch("ip", &commands)?;
    Ok(Device { site, fd, network })
}

/// A shaper at one end of a cable.
fn shaper(device: &str, rate: Rate, queue_bytes: u64) -> String {
    let (bits, burst) = (rate.0, rate.burst_bytes());
    format!("qdisc replace dev {device} root handle 1: tbf rate {bits}bit burst {burst} limit {queue_bytes}\n")
}

/// Frames a relay's device holds before the relay reads them.
const RELAY_QUEUE_PACKETS: u32 = 20_000;
/// Largest window of a TCP connection between sites: 10 Gbit/s over 100 ms.
const WINDOW_MAX_BYTES: u64 = 128 << 20;
/// Of all hosts, as the system this is built on has it by default almost everywhere.
pub(crate) const CONGESTION_CONTROL: &str = "cubic";
