//! Whether a node that joins can be told apart by its addresses, and reached there. Caller: `state`.

use super::ask::{Join, Refusal};
use crate::place::{Map, NodeId};
use std::net::IpAddr;

/// An error if the node has no address, one that another node has, or only such as nobody else reaches. `own`: its
/// number, if it was a node of the herd before.
pub(super) fn check(map: &Map, join: &Join, own: Option<NodeId>) -> Result<(), Refusal> {
    let first = join.addresses.first().ok_or(Refusal::NoAddress)?;
    let others = || map.nodes.iter().filter(|node| Some(node.id) != own);
    for address in &join.addresses {
        if let Some(other) = others().find(|node| node.addresses.contains(address)) {
            return Err(Refusal::AddressTaken { address: address.clone(), name: other.name.clone() });
        }
    }
    let is_alone = on_loopback(&join.addresses) && others().any(|node| !on_loopback(&node.addresses));
    if is_alone { Err(Refusal::OnLoopback(first.clone())) } else { Ok(()) }
}

/// Whether all these addresses are of loopback.
fn on_loopback(addresses: &[String]) -> bool {
    addresses.iter().all(|address| {
        let host = address.rsplit_once(':').map_or(address.as_str(), |(host, _)| host);
        let host = host.trim_start_matches('[').trim_end_matches(']');
        host.eq_ignore_ascii_case("localhost") || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_told_from_what_others_reach() {
        let is_one = |text: &str| on_loopback(&text.split(',').map(str::to_owned).collect::<Vec<_>>());
        for text in ["127.0.0.1:7700", "127.9.9.9:1", "[::1]:7700", "localhost:7700", "127.0.0.1:1,[::1]:1"] {
            assert!(is_one(text), "{text}");
        }
        for text in ["10.0.0.1:7700", "vm:7700", "[fe80::1]:7700", "127.0.0.1:1,vm:1", "localhost.example:1"] {
            assert!(!is_one(text), "{text}");
        }
    }
}
