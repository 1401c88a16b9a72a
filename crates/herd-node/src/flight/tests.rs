//! Herds of several nodes over their links, and what their clients see.

use crate::link::tests::world::World;

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
