//! Groups of real nodes, over pipes, in one thread and in virtual time.

mod chance;
mod herd;
mod steps;
