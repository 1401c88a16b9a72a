//! herd-node.
