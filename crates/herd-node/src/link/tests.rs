//! Links of real nodes over pipes, in one thread and in virtual time; and over the kernel's sockets.

mod hostile;
mod maps;
mod opening;
mod sockets;
pub(crate) mod world;
