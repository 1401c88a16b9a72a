//! Groups of real nodes, over pipes, in one thread and in virtual time.

mod chance;
mod compare;
mod herd;
mod steps;
