//! Herds of several nodes over their links, and what their clients see.

use crate::link::tests::world::{World, node, serving};

mod admin;
mod at_once;
mod chance;
mod conditions;
mod golden;
mod intake;
mod large;
mod own;
mod passing;
mod ranges;
mod trouble;
mod waits;

/// Sends a text to a node's connection and gives what it answers by now.
fn say(world: &mut World, client: usize, text: &str) -> String {
    String::from_utf8_lossy(&world.say(client, text.as_bytes())).into_owned()
}

/// A herd of so many nodes, and a connection to each.
fn herd(nodes: u32) -> (World, Vec<usize>) {
    let mut world = World::serving(nodes);
    let clients = (1..=nodes).map(|number| world.connect(number, 1 << 20)).collect();
    (world, clients)
}

/// As [`World::keeping`], of nodes that have no leases.
fn without_leases(nodes: u32, copies: u8) -> World {
    let mut world = World::new(nodes as usize);
    world.has_leases = false;
    (1..=nodes).for_each(|number| world.start(number));
    let map = std::sync::Arc::new(serving(nodes, copies));
    (1..=nodes).for_each(|number| world.machine(number).adopt(&map, true));
    world.settle();
    world
}

/// A key of a group of two that the second node leads, of which this one is the other.
fn led_by_second(world: &mut World, backup: u32) -> String {
    let map = world.machine(1).map.clone().expect("it has one");
    let shared = world.machine(1).shared.clone();
    let is_it = |key: &String| {
        let group = map.spreads[0].group_of(shared.store.key(&shared.default, key.as_bytes()).slot());
        group.primary == Some(node(2)) && group.backups().eq([node(backup)])
    };
    (0..).map(|at| format!("k{at}")).find(is_it).expect("there is one")
}
