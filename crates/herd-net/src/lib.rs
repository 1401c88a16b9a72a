//! herd-net.
