//! Line f's churn: objects of 16 B to 4 MiB, log-uniform, put and got at random for minutes while memory is watched.
//!
//! Four blocking clients, half gets, half puts. The sizes a key may have follow from its number, so a get's length and
//! bytes are checked although other clients overwrite. Resident memory is sampled each second. A process of its own
//! (`herd-lab churn`).

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::bulk::Bulk;
use crate::error::{Context, Error, Result};
use crate::proc;
use crate::proto::Proto;
use crate::sys;
use crate::values::{Random, Source};

const SMALLEST_BYTES: f64 = 16.0;
const LARGEST_BYTES: usize = 4 << 20;
/// Sizes a key takes in turn at random.
const SIZES_OF_KEY: u64 = 4;
const CLIENTS: u64 = 4;

/// One churn.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ChurnSpec {
    /// Where the server listens.
    pub(crate) addr: SocketAddr,
    /// By which door.
    pub(crate) proto: Proto,
    /// Keys; their mean size is about 336 KiB.
    pub(crate) keys: u64,
    /// How long.
    pub(crate) run_s: u64,
    /// Process whose memory is sampled.
    pub(crate) server_pid: i32,
    /// Core of the clients.
    pub(crate) core: Option<usize>,
}

/// What it saw.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct ChurnOutcome {
    /// Resident bytes, a sample each second.
    pub(crate) resident_bytes: Vec<u64>,
    /// Puts acknowledged.
    pub(crate) puts: u64,
    /// Gets that found their object.
    pub(crate) hits: u64,
    /// Gets that did not.
    pub(crate) misses: u64,
    /// Body bytes put.
    pub(crate) put_bytes: u64,
}

/// Size number `turn` of key `key`.
fn size_bytes(key: u64, turn: u64) -> usize {
    let unit = Random::new(key * SIZES_OF_KEY + turn + 1).unit();
    let ratio = LARGEST_BYTES as f64 / SMALLEST_BYTES;
    ((SMALLEST_BYTES * ratio.powf(unit)) as usize).min(LARGEST_BYTES)
}

/// Runs one churn in this process.
pub(crate) fn run(spec: &ChurnSpec) -> Result<ChurnOutcome> {
    if let Some(core) = spec.core {
        sys::pin(core).during(|| format!("pin to core {core}"))?;
    }
    let source = Source::new(LARGEST_BYTES);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let client = |seed: u64| client(spec, &source, seed, &stop);
        let clients: Vec<_> = (1..=CLIENTS).map(|seed| scope.spawn(move || client(seed))).collect();
        let samples = watch(spec, || clients.iter().all(|client| !client.is_finished()));
        stop.store(true, Ordering::Relaxed);
        let mut outcome = ChurnOutcome { resident_bytes: samples?, ..ChurnOutcome::default() };
        for client in clients {
            let part = client.join().map_err(|_| Error::new("a churn client panicked"))??;
            outcome.puts += part.puts;
            outcome.hits += part.hits;
            outcome.misses += part.misses;
            outcome.put_bytes += part.put_bytes;
        }
        Ok(outcome)
    })
}

/// Samples resident memory until the time is over or a client has ended early.
fn watch(spec: &ChurnSpec, all_run: impl Fn() -> bool) -> Result<Vec<u64>> {
    let start = Instant::now();
    let mut samples = Vec::new();
    while start.elapsed() < Duration::from_secs(spec.run_s) && all_run() {
        thread::sleep(Duration::from_secs(1));
        samples.push(proc::resident_bytes(spec.server_pid)?);
    }
    Ok(samples)
}

fn client(spec: &ChurnSpec, source: &Source, seed: u64, stop: &AtomicBool) -> Result<ChurnOutcome> {
    let stream = sys::connect_blocking(spec.addr, Duration::from_secs(20))?;
    let mut bulk = Bulk::open(stream, spec.proto)?;
    let mut random = Random::new(seed);
    let mut buffer = vec![0; 256 * 1_024];
    let mut outcome = ChurnOutcome::default();
    while !stop.load(Ordering::Relaxed) {
        let key = random.below(spec.keys);
        let name = format!("churn-{key}");
        if random.next().is_multiple_of(2) {
            let len = size_bytes(key, random.below(SIZES_OF_KEY));
            bulk.start_put(&name, source, len);
            bulk.complete(source, &mut buffer, |_, _| true)?;
            outcome.puts += 1;
            outcome.put_bytes += len as u64;
        } else if get(&mut bulk, key, &name, source, &mut buffer)? {
            outcome.hits += 1;
        } else {
            outcome.misses += 1;
        }
    }
    Ok(outcome)
}

/// True when the object was there, and whole.
fn get(bulk: &mut Bulk, key: u64, name: &str, source: &Source, buffer: &mut [u8]) -> Result<bool> {
    bulk.start_get(name, 0);
    let (mut right, mut seen) = (true, 0);
    let done = bulk.complete(source, buffer, |offset, bytes| {
        let from = usize::try_from(offset).unwrap_or(usize::MAX);
        right &= source.bytes.get(from..).is_some_and(|rest| rest.starts_with(bytes));
        seen = from + bytes.len();
        true
    })?;
    let possible = (0..SIZES_OF_KEY).any(|turn| size_bytes(key, turn) == seen);
    if done.found && !(right && possible) {
        return Err(Error::new(format!("{name} came back as {seen} bytes, right so far: {right}")));
    }
    Ok(done.found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_log_uniform() {
        let sizes: Vec<usize> = (0..40_000).map(|key| size_bytes(key, key % SIZES_OF_KEY)).collect();
        assert!(sizes.iter().all(|&size| (16..=LARGEST_BYTES).contains(&size)));
        // Half of the doublings from 16 B to 4 MiB lie below 8 KiB.
        let below = sizes.iter().filter(|&&size| size < 8_192).count();
        assert!((19_000..21_000).contains(&below), "{below}");
    }
}
