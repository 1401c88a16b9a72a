//! Networks to play in, by name.

use crate::net::conditions::{Firewall, Rate, distance};
use crate::net::{HostId, Plan};

/// A network to play in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Preset {
    /// Two hosts on one switch, 1 Gbit/s each.
    Pair,
    /// A client at 1 Gbit/s and eight nodes at 100 Mbit/s on one switch.
    Farm,
    /// Two sites of two hosts, 20 ms apart by 100 Mbit/s.
    Sites,
    /// An open site, one that only calls out, and one behind address translation with port 7700 open; 6 ms apart.
    Firewalls,
}

impl Preset {
    /// Its plan, and the host one stands on.
    pub(crate) fn plan(self) -> (Plan, HostId) {
        match self {
            Preset::Pair => {
                let (plan, [one, _]) = pair(Rate::GBIT_1);
                (plan, one)
            }
            Preset::Farm => {
                let (plan, client, _) = farm(8, Rate::MBIT_100);
                (plan, client)
            }
            Preset::Sites => sites(),
            Preset::Firewalls => firewalls(),
        }
    }
}

/// `one` and `two` on a switch.
pub(crate) fn pair(rate: Rate) -> (Plan, [HostId; 2]) {
    let mut plan = Plan::new();
    let site = plan.site();
    let hosts = [plan.host(site, "one", rate), plan.host(site, "two", rate)];
    (plan, hosts)
}

/// `client` and `node1` to `nodeN` on a switch.
pub(crate) fn farm(nodes: usize, rate: Rate) -> (Plan, HostId, Vec<HostId>) {
    let mut plan = Plan::new();
    let site = plan.site();
    let client = plan.host(site, "client", Rate::GBIT_1);
    let nodes = (1..=nodes).map(|number| plan.host(site, &format!("node{number}"), rate)).collect();
    (plan, client, nodes)
}

fn sites() -> (Plan, HostId) {
    let mut plan = Plan::new();
    let (here, there) = (plan.site(), plan.site());
    let first = plan.host(here, "here1", None);
    plan.host(here, "here2", None);
    plan.host(there, "there1", None);
    plan.host(there, "there2", None);
    let mut apart = distance(20_000);
    apart.rate_bits_s = Some(Rate::MBIT_100.0);
    plan.distance(here, there, apart);
    (plan, first)
}

fn firewalls() -> (Plan, HostId) {
    let mut plan = Plan::new();
    let (open, outbound, private) = (plan.site(), plan.site(), plan.site());
    let host = plan.host(open, "open", None);
    plan.host(outbound, "outbound", None);
    plan.host(private, "private1", None);
    plan.host(private, "private2", None);
    plan.firewall(outbound, Firewall::Outbound(Vec::new()));
    plan.firewall(private, Firewall::Private(vec![(7700, 0)]));
    for (one, other) in [(open, outbound), (open, private), (outbound, private)] {
        plan.distance(one, other, distance(6_000));
    }
    (plan, host)
}
