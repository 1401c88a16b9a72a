//! A value of several MiB that comes slowly, by HTTP, while the map changes.
//!
//! Each is an object of its own with one value. Half of it is sent at once, the rest in drops, and its end not before
//! the one who disturbs says so, or the map has another epoch at the node that is asked.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::ask;
use crate::error::{Error, Result};
use crate::faults::register::End;
use crate::faults::seen;
use crate::proto::http::PREFIX;
use crate::sys;
use crate::values::printable;

/// Bytes of a value.
const BYTES: usize = 3 << 20;
/// What is kept back until the end.
const KEPT_BACK: usize = 256 << 10;
/// A drop, and the time between two.
const DROP: usize = 8 << 10;
const BETWEEN: Duration = Duration::from_millis(50);
/// The reply comes within this, longer than the node's own 10 s.
const PATIENCE: Duration = Duration::from_secs(15);

/// What the one who disturbs and the one who sends know of each other.
#[derive(Debug, Default)]
pub(super) struct Talk {
    /// The node has half of it.
    pub(super) is_under_way: AtomicBool,
    pub(super) may_end: AtomicBool,
}

/// A body that has ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ended {
    pub(super) end: End,
    pub(super) begun_ns: u64,
    pub(super) ended_ns: u64,
    /// The map's epoch was another when the last bytes were sent than when the first were.
    pub(super) under_change: bool,
}

/// Puts one. `at_once`: it ends as soon as the epoch is another; else when it may.
pub(super) fn put(node: SocketAddr, name: &str, at_once: bool, talk: &Talk) -> Result<Ended> {
    let value = value(name);
    let mut stream = sys::connect_blocking(node, PATIENCE)?;
    let before = epoch(node);
    let head = format!("PUT {PREFIX}{name} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {BYTES}\r\n\r\n");
    let (mut sent, mut after) = (BYTES / 2, before);
    let begun = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&value[..sent]));
    let mut is_well = begun.is_ok();
    let begun_ns = sys::monotonic_ns();
    talk.is_under_way.store(is_well, Ordering::Relaxed);
    while is_well && !talk.may_end.load(Ordering::Relaxed) && !(at_once && after > before) {
        thread::sleep(BETWEEN);
        let drop = DROP.min((BYTES - KEPT_BACK).saturating_sub(sent));
        is_well = stream.write_all(&value[sent..sent + drop]).is_ok();
        sent += drop;
        after = epoch(node).or(after);
    }
    after = epoch(node).or(after);
    let end = if is_well { finish(&mut stream, &value[sent..]) } else { End::Unknown };
    let under_change = is_well && before.is_some() && after > before;
    Ok(Ended { end, begun_ns, ended_ns: sys::monotonic_ns(), under_change })
}

fn epoch(node: SocketAddr) -> Option<u64> {
    ask::page_within(node, "/metrics", Duration::from_secs(1)).ok().as_deref().and_then(seen::epoch)
}

/// The last bytes, and what is said to them.
fn finish(stream: &mut TcpStream, rest: &[u8]) -> End {
    let mut line = String::new();
    let read = stream.write_all(rest).and_then(|()| BufReader::new(stream).read_line(&mut line));
    match line.split(' ').nth(1).filter(|_| read.is_ok()) {
        Some("201" | "204") => End::Acknowledged,
        Some("413" | "503" | "507") => End::Refused,
        _ => End::Unknown,
    }
}

/// Whether an object is whole there; an error if that cannot be told.
pub(super) fn is_there(node: SocketAddr, name: &str) -> Result<bool> {
    let mut stream = sys::connect_blocking(node, PATIENCE)?;
    let head = format!("GET {PREFIX}{name} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(head.as_bytes())?;
    let mut reply = Vec::new();
    stream.read_to_end(&mut reply)?;
    let body = reply.windows(4).position(|bytes| bytes == b"\r\n\r\n").map(|at| &reply[at + 4..]);
    match (reply.get(9..12), body) {
        (Some(b"200"), Some(body)) if body == value(name) => Ok(true),
        (Some(b"404"), _) => Ok(false),
        _ => Err(Error::new(format!("{name}: {} bytes that are no whole value", reply.len()))),
    }
}

/// Removes one; that it is gone is not looked for.
pub(super) fn remove(node: SocketAddr, name: &str) -> Result<()> {
    let mut stream = sys::connect_blocking(node, PATIENCE)?;
    stream.write_all(format!("DELETE {PREFIX}{name} HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes())?;
    Ok(BufReader::new(stream).read_line(&mut String::new()).map(drop)?)
}

/// The one value of an object: its name, again and again, among letters.
fn value(name: &str) -> Vec<u8> {
    let mut value = printable(BYTES);
    value.chunks_mut(4_096).for_each(|block| block[..name.len()].copy_from_slice(name.as_bytes()));
    value
}
