//! The client against a node for tests, over real sockets on the loopback device.

mod blocking;
mod bulk;
mod locks;
mod memory;
mod nonblocking;
mod patience;
mod routes;
mod server;
mod speed;
