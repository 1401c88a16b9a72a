//! Line d's client: one stream of large gets or puts on one blocking connection, the same code for every server.
//!
//! Before the timed window one object is stored, read back and compared byte by byte, on Herd's wire with every
//! checksum; in the window heads are parsed and lengths checked, and body bytes are received into one reused buffer
//! and discarded. A process of its own (`herd-lab bulk`), so that it can be pinned.

use std::net::SocketAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::bulk::{Bulk, Done};
use crate::error::{Context, Error, Result};
use crate::proc;
use crate::proto::{Op, Proto};
use crate::sys;
use crate::values::Source;

/// The reused receive buffer.
const RECEIVE_BYTES: usize = 512 * 1_024;
const NAME: &str = "lab-bulk";

/// One run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct BulkSpec {
    /// Where the server listens.
    pub(crate) addr: SocketAddr,
    /// By which door.
    pub(crate) proto: Proto,
    /// Direction.
    pub(crate) op: Op,
    /// Bytes of the object.
    pub(crate) object_bytes: usize,
    /// Transfers go on until so much time has passed (at least two).
    pub(crate) run_ms: u64,
    /// Core to stay on.
    pub(crate) core: Option<usize>,
    /// Processes whose CPU time is the server's.
    pub(crate) server_pids: Vec<i32>,
}

/// What it measured.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct BulkOutcome {
    /// Body bytes moved in the window.
    pub(crate) bytes: u64,
    /// Length of the window.
    pub(crate) seconds: f64,
    /// CPU time of the server in it.
    pub(crate) server_cpu_ns: u64,
    /// CPU time of this client in it.
    pub(crate) client_cpu_ns: u64,
}

/// Runs one specification in this process.
pub(crate) fn run(spec: &BulkSpec) -> Result<BulkOutcome> {
    if let Some(core) = spec.core {
        sys::pin(core).during(|| format!("pin to core {core}"))?;
    }
    let stream =
        sys::connect_blocking(spec.addr, Duration::from_secs(20)).during(|| format!("connect to {}", spec.addr))?;
    let mut bulk = Bulk::open(stream, spec.proto)?;
    let source = Source::new(spec.object_bytes);
    let mut buffer = vec![0; RECEIVE_BYTES];
    if spec.proto != Proto::Null {
        store_and_verify(&mut bulk, &source, &mut buffer)?;
    }
    transfer(&mut bulk, spec, &source, &mut buffer)?;
    let mut outcome = BulkOutcome::default();
    let own = i32::try_from(std::process::id()).expect("pids fit an i32");
    let (server_ns, client_ns) = (proc::cpu_ns(&spec.server_pids)?, proc::cpu_ns(&[own])?);
    let start_ns = sys::monotonic_ns();
    let end_ns = start_ns + spec.run_ms * 1_000_000;
    while outcome.bytes < 2 * spec.object_bytes as u64 || sys::monotonic_ns() < end_ns {
        transfer(&mut bulk, spec, &source, &mut buffer)?;
        outcome.bytes += spec.object_bytes as u64;
    }
    outcome.seconds = (sys::monotonic_ns() - start_ns) as f64 / 1e9;
    outcome.server_cpu_ns = proc::cpu_ns(&spec.server_pids)? - server_ns;
    outcome.client_cpu_ns = proc::cpu_ns(&[own])? - client_ns;
    Ok(outcome)
}

fn store_and_verify(bulk: &mut Bulk, source: &Source, buffer: &mut [u8]) -> Result<()> {
    let len = source.bytes.len();
    bulk.start_put(NAME, source, len);
    bulk.complete(source, buffer, |_, _| true)?;
    bulk.check_blocks(true);
    bulk.start_get(NAME, len);
    let done = bulk.complete(source, buffer, |offset, bytes| {
        let from = usize::try_from(offset).unwrap_or(usize::MAX);
        source.bytes.get(from..).is_some_and(|rest| rest.starts_with(bytes))
    })?;
    bulk.check_blocks(false);
    expect_whole(done, len)
}

fn transfer(bulk: &mut Bulk, spec: &BulkSpec, source: &Source, buffer: &mut [u8]) -> Result<()> {
    match spec.op {
        Op::Get => {
            bulk.start_get(NAME, spec.object_bytes);
            expect_whole(bulk.complete(source, buffer, |_, _| true)?, spec.object_bytes)
        }
        Op::Set => {
            bulk.start_put(NAME, source, spec.object_bytes);
            bulk.complete(source, buffer, |_, _| true).map(drop)
        }
    }
}

fn expect_whole(done: Done, len: usize) -> Result<()> {
    if done == (Done { found: true, body_bytes: len as u64 }) {
        return Ok(());
    }
    Err(Error::new(format!("{done:?} where {len} bytes were stored")))
}
