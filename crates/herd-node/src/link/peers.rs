//! Whom a loop dials, when and where. Pure: time is handed in.
//!
//! A link rests until its time, is being dialed or is up, and rests again when it is lost. Its time is the shorter the
//! better things go: at once where it is new, [`LINK_REDIAL_MS`] after it was up, twice as long after each dialing that
//! failed, up to [`LINK_REDIAL_MAX_MS`]; so long, too, after the other node has refused it, which a dialing soon after
//! would not change. After each failure the node's next address is tried.
//!
//! How many links there are between two nodes the loops of both tell ([`lanes`]); those of the other node are known
//! once a link to it was up.

use herd_core::limits::{LINK_REDIAL_MAX_MS, LINK_REDIAL_MS};
use herd_core::place::NodeId;
use herd_core::wire::lanes;
use std::collections::BTreeMap;
use std::net::SocketAddr;

/// A link, by the node at its other end and its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Target {
    /// The node.
    pub(crate) node: NodeId,
    /// The link's number.
    pub(crate) link: u16,
}

/// The links that one loop dials.
#[derive(Debug)]
pub(super) struct Peers {
    /// Number of the loop, and how many there are.
    number: u16,
    loops: u16,
    nodes: BTreeMap<NodeId, Way>,
}

/// The way to a node.
#[derive(Debug, Default)]
struct Way {
    addresses: Vec<SocketAddr>,
    links: BTreeMap<u16, Link>,
}

#[derive(Debug)]
struct Link {
    /// When it is dialed; `None`: it is being dialed, or is up.
    at_ms: Option<u64>,
    /// How long it rests when the next dialing has failed.
    rest_ms: u64,
    /// Addresses tried.
    tried: usize,
}

impl Link {
    fn new(at_ms: u64) -> Self {
        Self { at_ms: Some(at_ms), rest_ms: LINK_REDIAL_MS, tried: 0 }
    }
}

impl Peers {
    /// Of the loop of this number, nobody yet.
    pub(super) fn new(number: u16, loops: u16) -> Self {
        Self { number, loops, nodes: BTreeMap::new() }
    }

    /// Dials these nodes from now on, and no others. One that has new addresses is tried there at once.
    pub(super) fn adopt(&mut self, nodes: &BTreeMap<NodeId, Vec<SocketAddr>>, now_ms: u64) {
        self.nodes.retain(|node, _| nodes.contains_key(node));
        for (&node, addresses) in nodes {
            let way = self.nodes.entry(node).or_default();
            let own = lanes::link_of(self.number, self.loops);
            way.links.entry(own).or_insert_with(|| Link::new(now_ms));
            if way.addresses != *addresses {
                way.addresses.clone_from(addresses);
                let resting = way.links.values_mut().filter(|link| link.at_ms.is_some());
                resting.for_each(|link| *link = Link::new(now_ms));
            }
        }
    }

    /// When the next link is to be dialed; `u64::MAX`: none.
    pub(super) fn due_ms(&self) -> u64 {
        let reachable = self.nodes.values().filter(|way| !way.addresses.is_empty());
        reachable.flat_map(|way| way.links.values()).filter_map(|link| link.at_ms).min().unwrap_or(u64::MAX)
    }

    /// The links whose time has come, and where to; they count as being dialed.
    pub(super) fn dial(&mut self, now_ms: u64) -> Vec<(Target, SocketAddr)> {
        let mut due = Vec::new();
        for (&node, way) in &mut self.nodes {
            for (&number, link) in &mut way.links {
                let to = way.addresses.get(link.tried % way.addresses.len().max(1));
                let is_due = link.at_ms.is_some_and(|at_ms| at_ms <= now_ms);
                if let Some(to) = to.filter(|_| is_due) {
                    link.at_ms = None;
                    due.push((Target { node, link: number }, *to));
                }
            }
        }
        due
    }

    /// A link is up, to a node of `theirs` loops: it has this loop's other links as well.
    pub(super) fn up(&mut self, target: Target, theirs: u16, now_ms: u64) {
        let Some(way) = self.nodes.get_mut(&target.node) else { return };
        way.links.retain(|&link, _| lanes::is_link(link, self.loops, theirs));
        for link in lanes::links(self.number, self.loops, theirs) {
            way.links.entry(link).or_insert_with(|| Link::new(now_ms));
        }
        if let Some(link) = way.links.get_mut(&target.link) {
            (link.at_ms, link.rest_ms) = (None, LINK_REDIAL_MS);
        }
    }

    /// A link that was up is lost.
    pub(super) fn lost(&mut self, target: Target, now_ms: u64) {
        self.rest(target, |link| link.at_ms = Some(now_ms + LINK_REDIAL_MS));
    }

    /// A dialing has failed.
    pub(super) fn failed(&mut self, target: Target, now_ms: u64) {
        self.rest(target, |link| {
            link.tried += 1;
            link.at_ms = Some(now_ms + link.rest_ms);
            link.rest_ms = (2 * link.rest_ms).min(LINK_REDIAL_MAX_MS);
        });
    }

    /// The link was refused, by either side.
    pub(super) fn refused(&mut self, target: Target, now_ms: u64) {
        self.rest(target, |link| link.rest_ms = LINK_REDIAL_MAX_MS);
        self.failed(target, now_ms);
    }

    fn rest(&mut self, target: Target, change: impl FnOnce(&mut Link)) {
        if let Some(way) = self.nodes.get_mut(&target.node)
            && let Some(link) = way.links.get_mut(&target.link)
        {
            change(link);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::num::NonZeroU32;

    fn node(number: u32) -> NodeId {
        NodeId(NonZeroU32::new(number).expect("not 0"))
    }

    fn address(port: u16) -> SocketAddr {
        ([127, 0, 0, 1], port).into()
    }

    fn known(nodes: &[(u32, &[u16])]) -> BTreeMap<NodeId, Vec<SocketAddr>> {
        nodes.iter().map(|(number, ports)| (node(*number), ports.iter().copied().map(address).collect())).collect()
    }

    fn dialed(peers: &mut Peers, now_ms: u64) -> Vec<(u32, u16, u16)> {
        let due = peers.dial(now_ms).into_iter();
        due.map(|(target, to)| (target.node.0.get(), target.link, to.port())).collect()
    }

    const FIRST: Target = Target { node: NodeId(NonZeroU32::MIN), link: 0 };

    #[test]
    fn a_link_is_dialed_once_and_again_when_it_failed_later_each_time() {
        let mut peers = Peers::new(0, 1);
        assert_eq!(peers.due_ms(), u64::MAX);
        peers.adopt(&known(&[(1, &[11, 12])]), 5);
        assert_eq!((peers.due_ms(), dialed(&mut peers, 4), dialed(&mut peers, 5)), (5, vec![], vec![(1, 0, 11)]));
        assert_eq!((peers.due_ms(), dialed(&mut peers, 9_999)), (u64::MAX, vec![]), "it is being dialed");
        let (mut now_ms, mut rests) = (10_000, Vec::new());
        for tried in 1..8 {
            peers.failed(FIRST, now_ms);
            rests.push(peers.due_ms() - now_ms);
            now_ms = peers.due_ms();
            assert_eq!(dialed(&mut peers, now_ms - 1), []);
            assert_eq!(dialed(&mut peers, now_ms), [(1, 0, 11 + tried % 2)], "one address after the other");
        }
        assert_eq!(rests, [50, 100, 200, 400, 800, 1_000, 1_000]);
        peers.up(FIRST, 1, now_ms);
        assert_eq!(peers.due_ms(), u64::MAX);
        peers.lost(FIRST, now_ms);
        assert_eq!(peers.due_ms() - now_ms, LINK_REDIAL_MS);
        now_ms = peers.due_ms();
        assert_eq!(dialed(&mut peers, now_ms), [(1, 0, 12)], "where it was up before");
        peers.refused(FIRST, now_ms);
        assert_eq!(peers.due_ms() - now_ms, LINK_REDIAL_MAX_MS);
    }

    #[test]
    fn each_link_of_two_nodes_is_dialed_by_one_loop() {
        for (own, theirs) in [(1, 1), (1, 4), (4, 1), (2, 3), (3, 2), (4, 4), (6, 4), (5, 8)] {
            let mut all = Vec::new();
            for number in 0..own {
                let mut peers = Peers::new(number, own);
                peers.adopt(&known(&[(1, &[11])]), 0);
                let first = dialed(&mut peers, 0);
                let link = lanes::link_of(number, own);
                assert_eq!(first, [(1, link, 11)]);
                peers.up(Target { link, ..FIRST }, theirs, 0);
                let more = dialed(&mut peers, 0);
                assert!(more.iter().all(|(_, link, _)| lanes::loop_of(*link, own) == number));
                all.extend(first.into_iter().chain(more).map(|(_, link, _)| link));
                // The node has started anew, with one loop.
                peers.up(Target { link, ..FIRST }, 1, 0);
                assert_eq!(peers.nodes[&node(1)].links.len(), 1);
            }
            all.sort_unstable();
            let mut links: Vec<u16> = (0..theirs).flat_map(|number| lanes::links(number, theirs, own)).collect();
            links.sort_unstable();
            assert_eq!(all, links, "{own} and {theirs} loops");
        }
    }

    #[test]
    fn a_new_map_tells_who_is_dialed() {
        let mut peers = Peers::new(0, 1);
        peers.adopt(&known(&[(1, &[11]), (2, &[]), (3, &[13])]), 0);
        assert_eq!(dialed(&mut peers, 0), [(1, 0, 11), (3, 0, 13)], "the second has no address");
        peers.failed(FIRST, 0);
        peers.adopt(&known(&[(1, &[21]), (2, &[22]), (4, &[14])]), 10);
        assert_eq!(dialed(&mut peers, 10), [(1, 0, 21), (2, 0, 22), (4, 0, 14)]);
        // What is told of a node that left means nothing any more.
        let gone = Target { node: node(3), link: 0 };
        peers.failed(gone, 20);
        peers.lost(gone, 20);
        peers.up(gone, 8, 20);
        assert_eq!(peers.due_ms(), u64::MAX);
        peers.adopt(&known(&[(1, &[21])]), 30);
        assert_eq!(peers.due_ms(), u64::MAX, "it is being dialed still");
    }
}
