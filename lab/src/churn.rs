//! Line f's churn: objects of 16 B to 4 MiB, log-uniform, put and got at random for minutes while memory is watched.
//!
//! Blocking clients over all doors, half gets, half puts. The sizes a key may have follow from its number, so a
//! get's length and bytes are checked although other clients overwrite. Beside them what is easily left out of a
//! budget: tiny objects with long names in an ordered collection, large objects that expire and that nobody asks for
//! again, and clients that ask for much and read little of it. Resident memory is sampled each second. A process of its
//! own (`herd-lab churn`).

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::bulk::Bulk;
use crate::error::{Context, Error, Result};
use crate::proc;
use crate::proto::{Proto, http};
use crate::sys;
use crate::values::{Random, Source};

const SMALLEST_BYTES: f64 = 16.0;
const LARGEST_BYTES: usize = 4 << 20;
/// Sizes a key takes in turn at random.
const SIZES_OF_KEY: u64 = 4;
/// The collection of long names, which is ordered and evicts.
pub(crate) const ORDERED: &str = "churn-ordered";
/// Longest name there.
const NAME_BYTES_MAX: u64 = 900;
/// Puts of names that are sent at once.
const NAMES_AT_ONCE: u64 = 32;
/// Seconds that an expiring object lives.
const TTL_S: u64 = 1;
/// Connections that read slowly, half by text, half by HTTP.
const SLOW: usize = 64;
/// What one of them reads at a time, and how often; then it is closed with most of its replies unread.
const SLOW_STEP_BYTES: usize = 4_096;
const SLOW_STEPS: u64 = 40;
const SLOW_PAUSE: Duration = Duration::from_millis(50);
const PATIENCE: Duration = Duration::from_secs(20);

/// One churn.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ChurnSpec {
    /// Where the server listens.
    pub(crate) addr: SocketAddr,
    /// A client for each of these doors.
    pub(crate) doors: Vec<Proto>,
    /// Long names, expiring objects and slow readers too, which need HTTP, text, and collection [`ORDERED`].
    pub(crate) beside: bool,
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
    /// Objects put under long names.
    pub(crate) names: u64,
    /// Large objects put that expire.
    pub(crate) expiring: u64,
    /// Connections that read slowly, one after the other.
    pub(crate) slow: u64,
    /// Bytes they read.
    pub(crate) slow_bytes: u64,
}

impl ChurnOutcome {
    fn add(&mut self, part: &Self) {
        self.puts += part.puts;
        self.hits += part.hits;
        self.misses += part.misses;
        self.put_bytes += part.put_bytes;
        self.names += part.names;
        self.expiring += part.expiring;
        self.slow += part.slow;
        self.slow_bytes += part.slow_bytes;
    }
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
        let (source, stop) = (&source, &stop);
        let mut clients = Vec::new();
        if spec.beside {
            clients.push(scope.spawn(|| long_names(spec, stop)));
            clients.push(scope.spawn(|| expiring(spec, source, stop)));
            clients.push(scope.spawn(|| slow_readers(spec, stop)));
        }
        for (seed, proto) in (1..).zip(spec.doors.iter().copied()) {
            clients.push(scope.spawn(move || client(spec, proto, source, seed, stop)));
        }
        let samples = watch(spec, || clients.iter().all(|client| !client.is_finished()));
        stop.store(true, Ordering::Relaxed);
        let mut outcome = ChurnOutcome { resident_bytes: samples?, ..ChurnOutcome::default() };
        for client in clients {
            outcome.add(&client.join().map_err(|_| Error::new("a churn client panicked"))??);
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

fn client(spec: &ChurnSpec, proto: Proto, source: &Source, seed: u64, stop: &AtomicBool) -> Result<ChurnOutcome> {
    let stream = sys::connect_blocking(spec.addr, PATIENCE)?;
    let mut bulk = Bulk::open(stream, proto)?;
    let mut random = Random::new(seed);
    let mut buffer = vec![0; 256 * 1_024];
    let mut outcome = ChurnOutcome::default();
    while !stop.load(Ordering::Relaxed) {
        let key = random.below(spec.keys);
        let name = name(key);
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

fn name(key: u64) -> String {
    format!("churn-{key}")
}

/// Puts tiny objects under names of up to 900 bytes that never come again, into an ordered collection.
fn long_names(spec: &ChurnSpec, stop: &AtomicBool) -> Result<ChurnOutcome> {
    let mut stream = sys::connect_blocking(spec.addr, PATIENCE)?;
    let (mut random, mut outcome) = (Random::new(7), ChurnOutcome::default());
    while !stop.load(Ordering::Relaxed) {
        let mut requests = Vec::new();
        for _ in 0..NAMES_AT_ONCE {
            let (number, padding) = (random.next(), "n".repeat(random.below(NAME_BYTES_MAX - 16) as usize));
            write!(
                requests,
                "PUT /o/{ORDERED}/{number:016x}{padding} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\nv"
            )?;
        }
        put_all(&mut stream, &requests, &[], NAMES_AT_ONCE)?;
        outcome.names += NAMES_AT_ONCE;
    }
    Ok(outcome)
}

/// Puts large objects that expire after a second, under names that nobody asks for.
fn expiring(spec: &ChurnSpec, source: &Source, stop: &AtomicBool) -> Result<ChurnOutcome> {
    let mut stream = sys::connect_blocking(spec.addr, PATIENCE)?;
    let (mut random, mut outcome) = (Random::new(8), ChurnOutcome::default());
    while !stop.load(Ordering::Relaxed) {
        let len = LARGEST_BYTES / 4 + random.below(LARGEST_BYTES as u64 * 3 / 4) as usize;
        let (number, name) = (outcome.expiring, "PUT /o/default/expiring");
        let head = format!(
            "{name}-{number} HTTP/1.1\r\nHost: localhost\r\nHerd-TTL: {TTL_S}\r\nContent-Length: {len}\r\n\r\n"
        );
        put_all(&mut stream, head.as_bytes(), &source.bytes[..len], 1)?;
        outcome.expiring += 1;
        thread::sleep(Duration::from_millis(20));
    }
    Ok(outcome)
}

/// Sends puts by HTTP and reads as many replies, each of success.
fn put_all(stream: &mut TcpStream, requests: &[u8], body: &[u8], mut count: u64) -> Result<()> {
    stream.write_all(requests)?;
    stream.write_all(body)?;
    let (mut received, mut chunk) = (Vec::new(), [0; 16_384]);
    while count > 0 {
        let len = stream.read(&mut chunk)?;
        received.extend_from_slice(&chunk[..len]);
        let mut at = 0;
        while let Some(head) = http::parse_head(&received[at..]).map_err(Error::new)? {
            if !matches!(head.status, 201 | 204) {
                return Err(Error::new(format!("a put by HTTP was answered with status {}", head.status)));
            }
            at += head.head_bytes;
            count = count.checked_sub(1).ok_or_else(|| Error::new("a reply nobody asked for"))?;
        }
        received.drain(..at);
        if len == 0 {
            return Err(Error::new("the server closed the connection of puts"));
        }
    }
    Ok(())
}

/// Connections that ask for hundreds of objects at once and read a few KiB of them now and then. A server may close
/// them; it may not keep what they do not read beyond its budget.
fn slow_readers(spec: &ChurnSpec, stop: &AtomicBool) -> Result<ChurnOutcome> {
    let (mut random, mut outcome) = (Random::new(9), ChurnOutcome::default());
    let mut readers: Vec<Option<TcpStream>> = (0..SLOW).map(|_| None).collect();
    let mut chunk = [0; SLOW_STEP_BYTES];
    let mut step = 0;
    while !stop.load(Ordering::Relaxed) {
        for (index, reader) in readers.iter_mut().enumerate() {
            // They end one after the other, not all at once.
            if reader.is_none() || (step + index as u64).is_multiple_of(SLOW_STEPS) {
                *reader = Some(ask_much(spec, index % 2 == 0, &mut random)?);
                outcome.slow += 1;
            }
            match reader.as_mut().map(|stream| stream.read(&mut chunk)) {
                Some(Ok(0)) | None => *reader = None,
                Some(Ok(count)) => outcome.slow_bytes += count as u64,
                Some(Err(error)) if error.kind() == ErrorKind::WouldBlock => (),
                Some(Err(_)) => *reader = None,
            }
        }
        step += 1;
        thread::sleep(SLOW_PAUSE);
    }
    Ok(outcome)
}

/// A connection on which many objects have been asked for, as far as the server took the requests.
fn ask_much(spec: &ChurnSpec, text: bool, random: &mut Random) -> Result<TcpStream> {
    let mut stream = sys::connect_blocking(spec.addr, PATIENCE)?;
    stream.set_nonblocking(true)?;
    let mut requests = Vec::new();
    for _ in 0..40 {
        if text {
            let keys: String = (0..50).map(|_| format!(" {}", name(random.below(spec.keys)))).collect();
            write!(requests, "get{keys}\r\n")?;
        } else {
            let name = name(random.below(spec.keys));
            write!(requests, "GET /o/default/{name} HTTP/1.1\r\nHost: localhost\r\n\r\n")?;
        }
    }
    // What the socket does not take is not asked for.
    stream.write(&requests).map(drop).or_else(|error| match error.kind() {
        ErrorKind::WouldBlock => Ok(()),
        _ => Err(error),
    })?;
    Ok(stream)
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
