//! The real binary over real sockets: command line, HTTP, memcached, limits.

mod caches;
mod cli;
mod cp;
mod ends;
mod etcd;
mod exec_lock;
mod fsck;
mod guide;
mod herds;
mod http;
mod journal;
mod leaving;
mod limits;
mod locks;
mod memcached;
mod moving;
mod node;
mod obituary;
mod output;
mod patience;
mod routes;
mod silence;
mod top;
mod up;
mod usage;
mod wire;
