//! Herd's client library.
//!
//! Bottom up: [`connection`] is the protocol as a pure state machine; [`retry`] decides what may be sent again;
//! a link drives a connection over a socket that never blocks, and an exchange one request over links; [`blocking`]
//! and, with the feature `async`, `nonblocking` wait for it. What can be asked and answered is in [`Request`] and
//! [`Reply`], shared by both.
//!
//! Every block of a body is checked end to end: its checksum is made from the caller's bytes on a put, and compared
//! before a get returns. A change has an id of the client's own: where its connection is lost it is asked again, at
//! another node if need be, and is done once. A request whose outcome is unknown says so
//! ([`ErrorKind::OutcomeUnknown`]).

pub mod address;
pub mod blocking;
pub mod connection;
mod error;
mod exchange;
mod ids;
pub mod limits;
mod link;
mod listing;
pub mod lock;
#[cfg(feature = "async")]
pub mod nonblocking;
mod reply;
mod request;
pub mod retry;
mod route;
mod shell;

pub use error::{Error, ErrorKind, Result};
pub use listing::Item;
pub use lock::{LockOptions, Standing};
pub use reply::{Ack, Answer, Object, Reply, Stat, Welcome};
pub use request::{PutOptions, Request};
pub use shell::Config;

pub use herd_core::attributes::Attributes;
pub use herd_core::collection::{Class, Spec, Wanted};
pub use herd_core::entry::{Condition, Range, Token, Version};
pub use herd_core::place::{HerdId, NodeId};
pub use herd_core::wire::Meant;
