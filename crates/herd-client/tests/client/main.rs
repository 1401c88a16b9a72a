//! The client against a node for tests, over real sockets on the loopback device.

mod blocking;
mod bulk;
mod memory;
mod server;
mod speed;
