//! Herd's sockets: event loops and their connections.
//!
//! One loop per thread, readiness-driven and edge-triggered (epoll, kqueue). A loop owns its connections; a request is
//! read, served and answered without leaving its thread. What a connection says is the business of a [`Service`]; this
//! crate knows bytes, turns and deadlines only. The [`Engine`] of a loop knows no poller and reads no clock: it runs
//! over any [`System`], the kernel's sockets or the [`Pipes`] of a simulation. Reading order: `event_loop.rs`,
//! `engine.rs`, `conn.rs`, `turn.rs`, `output.rs`.

mod conn;
mod engine;
mod event_loop;
mod group;
mod laps;
mod listen;
mod output;
mod pipe;
mod service;
mod sink;
mod stats;
mod sys;
mod system;
#[cfg(test)]
mod tests;
mod turn;

pub use engine::{Engine, Ready};
pub use event_loop::EventLoop;
pub use group::{LoopHandle, Remote};
pub use listen::listen;
pub use output::{Output, Ticket};
pub use pipe::{Cable, Dialed, Moved, Peer, Pipe, Pipes};
pub use service::{Call, Due, Intake, Next, Service, Step};
pub use sink::Sink;
pub use stats::LoopStats;
pub use sys::boot_ns;
#[cfg(target_os = "linux")]
pub use sys::close_handed;
pub use system::System;
