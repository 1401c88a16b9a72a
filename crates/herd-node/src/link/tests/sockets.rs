//! Real loops over the kernel's sockets: nodes of several loops, of which each has its own links.

use super::world::{Told, map, member, membership};
use crate::link::Hub;
use crate::{Config, Node};
use herd_core::place::Map;
use herd_core::wire::MapMark;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(20);

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < until, "never: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

struct Running {
    node: Node,
    hub: Arc<Hub>,
    told: Arc<Told>,
}

fn start(number: u32, loops: usize) -> Running {
    let told = Arc::new(Told::default());
    let hub = Hub::new(membership(number), told.clone(), crate::lease::Leases::of_machine());
    let listen = vec![([127, 0, 0, 1], 0).into()];
    let config = Config { listen, memory_bytes: 64 << 20, threads: loops, ..Config::default() };
    let node = Node::start_linked(config, hub.clone()).expect("a node");
    Running { node, hub, told }
}

/// The map of these nodes, at the ports they have.
fn map_of(nodes: &[Running]) -> Arc<Map> {
    let members = (1..).zip(nodes).map(|(number, one)| member(number, one.node.addrs()[0].to_string()));
    Arc::new(map(nodes.len() as u32).next(|draft| draft.nodes = members.collect()).expect("valid"))
}

impl Running {
    /// Links of each loop: nobody else connects to it.
    fn links(&self) -> Vec<u64> {
        let loops = self.node.loops.loops().iter();
        loops.map(|one| one.stats.opened.load(Relaxed).saturating_sub(one.stats.closed.load(Relaxed))).collect()
    }
}

#[test]
fn each_loop_of_a_node_is_linked_to_one_of_each_other_and_maps_reach_all() {
    let nodes: Vec<Running> = (1..).zip([2, 2, 4]).map(|(number, loops)| start(number, loops)).collect();
    let first = map_of(&nodes);
    nodes.iter().skip(1).for_each(|one| one.hub.adopt(first.clone(), false));
    nodes[0].hub.push(first.clone(), false);
    // Two nodes of two loops have two links, and four each with that of four.
    until("links of all loops", || nodes.iter().map(Running::links).eq([vec![3, 3], vec![3, 3], vec![2; 4]]));
    let next = Arc::new(first.next(|draft| draft.nodes[0].memory_bytes += 1).expect("valid"));
    nodes[0].hub.push(next.clone(), true);
    for one in &nodes[1..] {
        until("the map", || {
            let came = one.told.came();
            came.iter().any(|came| came.sent.map(&came.bytes, &first).as_ref() == Ok(&*next))
        });
        one.hub.adopt(next.clone(), true);
    }
    for number in [2, 3] {
        until("the warden hears", || nodes[0].told.has(number) == Some(MapMark::of(&next, true)));
    }
    assert!(nodes.iter().all(|one| one.told.refused().is_empty()));
    let mut nodes = nodes.into_iter();
    let (gone, left) = (nodes.next().expect("three"), nodes.collect::<Vec<_>>());
    gone.node.stop().expect("a clean stop");
    until("links are closed", || left.iter().map(Running::links).eq([vec![2, 2], vec![1; 4]]));
    left.into_iter().for_each(|one| one.node.stop().expect("a clean stop"));
}
