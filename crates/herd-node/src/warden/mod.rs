//! The warden as it runs in a node: a thread that drives `herd_core::warden` over a control store, and how a herd
//! begins.
//!
//! * [`begin`]: a node that was not told to join opens or makes the store, is in office, and is the first to join. What
//!   comes of that ([`Begun`]) is all that the node's store of objects and its loops need.
//! * [`Newcomer`]: a node that was told to join.
//! * [`Handle`]: how the loops ask. A request is answered once: by the warden, or, when the node stops, by that.
//! * `shift.rs`: the control store as a whole, shown and moved.
//! * [`Running`]: the thread. What it does may block on the disk; nothing else of the node ever does for it.
//!
//! A store that does not work is told of once, and requests are refused with the reason; the thread goes on trying. The
//! node serves all the while: no request for an object comes by here.
//!
//! Callers: what starts a node, and its loops.

mod begin;
mod drive;
mod inbox;
mod newcomer;
mod shift;
#[cfg(test)]
mod tests;

pub(crate) use begin::go_on;
pub use begin::{BeginError, Begun, Drawn, Options, begin};
pub use drive::{Outlets, Running};
pub use inbox::Handle;
pub use newcomer::Newcomer;
pub use shift::Errands;
pub(crate) use shift::keep;
