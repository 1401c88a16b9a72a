//! The real binary over real sockets: command line, HTTP, memcached, limits.

mod cli;
mod ends;
mod guide;
mod http;
mod limits;
mod memcached;
mod node;
mod patience;
mod wire;
