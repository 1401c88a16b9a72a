//! What a load engine is told (JSON on its stdin) and what it reports (JSON on its stdout).

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::hist::Recorded;
use crate::proto::{Op, Proto};
use crate::values::{KEY_BYTES, KEYS_MAX};

/// One run of the small-operation engine.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Spec {
    /// Where the server listens.
    pub(crate) addr: SocketAddr,
    /// By which door.
    pub(crate) proto: Proto,
    /// What is asked for.
    pub(crate) op: Op,
    /// Connections.
    pub(crate) conns: usize,
    /// Requests outstanding on each connection (closed loop).
    pub(crate) pipeline: usize,
    /// Keys are numbered from 0 to below this.
    pub(crate) keys: u32,
    /// Only these of them are asked for, each below `keys`; empty: all.
    pub(crate) chosen: Vec<u32>,
    /// Bytes of a value.
    pub(crate) value_bytes: usize,
    /// Open loop: requests per second, Poisson arrivals; latency counts from the intended time.
    pub(crate) rate_per_s: Option<f64>,
    /// Time before the measured window.
    pub(crate) warm_ms: u64,
    /// The measured window.
    pub(crate) run_ms: u64,
    /// Ask for each key once, in order, and end; the window is the whole run.
    pub(crate) sequential: bool,
    /// The server answers with one fixed value: check status and length only.
    pub(crate) fixed_reply: bool,
    /// Core to stay on.
    pub(crate) core: Option<usize>,
    /// Processes whose CPU time is the server's.
    pub(crate) server_pids: Vec<i32>,
    /// Seed of keys and arrivals.
    pub(crate) seed: u64,
    /// Large transfers beside the small requests.
    pub(crate) side: Option<SideSpec>,
    /// Collection of the keys (Herd's wire only); none: `default`.
    pub(crate) collection: Option<u64>,
    /// Every second request of a connection is the other operation (Herd's wire only).
    pub(crate) mixed: bool,
}

/// Large transfers beside the small requests, open loop, on their own connections.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct SideSpec {
    /// Where and by which door.
    pub(crate) addr: SocketAddr,
    /// By which door.
    pub(crate) proto: Proto,
    /// Bytes of each object.
    pub(crate) object_bytes: usize,
    /// Gets each second.
    pub(crate) gets_per_s: f64,
    /// Puts each second.
    pub(crate) puts_per_s: f64,
}

/// What one run of an engine measured.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Outcome {
    /// Right replies within the window.
    pub(crate) ops: u64,
    /// Length of the window.
    pub(crate) seconds: f64,
    /// CPU time of the server within the window.
    pub(crate) server_cpu_ns: u64,
    /// CPU time of this client within the window.
    pub(crate) client_cpu_ns: u64,
    /// Latencies of the requests due within the window.
    pub(crate) latencies: Recorded,
    /// Monotonic time of the first tick.
    pub(crate) ticks_from_ns: u64,
    /// Replies in each [`TICK_NS`] from then on, warm-up included.
    pub(crate) ticks: Vec<u64>,
    /// Large transfers completed: gets, puts.
    pub(crate) side_done: (u64, u64),
    /// Large transfers due within the window.
    pub(crate) side_due: u64,
    /// Requests due within the window that had no reply 2 s after it.
    pub(crate) unanswered: u64,
}

/// Length of a tick of [`Outcome::ticks`].
pub(crate) const TICK_NS: u64 = 50_000_000;

impl Spec {
    /// What the request with this sequence number on its connection asks for.
    pub(crate) fn op_of(&self, sequence: Option<u64>) -> Op {
        match (self.mixed && sequence.is_some_and(|sequence| sequence % 2 == 1), self.op) {
            (true, Op::Get) => Op::Set,
            (true, Op::Set) => Op::Get,
            (false, op) => op,
        }
    }

    /// Refuses what the engine cannot do.
    pub(crate) fn check(&self) -> Result<()> {
        let good = self.proto != Proto::Null
            && (1..=20_000).contains(&self.conns)
            && (1..=1_000).contains(&self.pipeline)
            && (1..=KEYS_MAX).contains(&self.keys)
            && (KEY_BYTES..=32_768).contains(&self.value_bytes)
            && self.chosen.iter().all(|key| *key < self.keys)
            && (self.chosen.is_empty() || !self.sequential)
            && self.rate_per_s.is_none_or(|rate| rate > 0.0)
            && (self.proto == Proto::Herd || (self.collection.is_none() && !self.mixed));
        if good { Ok(()) } else { Err(Error::new(format!("an engine cannot run {self:?}"))) }
    }
}
