//! The real binary over real sockets: command line, HTTP, memcached, limits.

mod cli;
mod http;
mod limits;
mod memcached;
mod node;
