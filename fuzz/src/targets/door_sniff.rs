//! Telling the door by the first bytes of a connection: once told it stays, and 17 bytes always tell.

use crate::Outcomes;
use crate::names::names;
use herd_core::door::{Door, sniff};

/// What the corpus reaches.
pub const OUTCOMES: &[&[&str]] = &[DOORS, &["not told yet"]];

/// Words of the driver.
pub const DICTIONARY: &[&[u8]] =
    &[b"GET ", b"PUT /o/c/n", b"get a", b"\x16\x03", b"\x16", b"\xCE\x01", b"*1\r\n", b"\x80"];

/// Bytes after which a door must be told: the longest method and its space.
const TOLD_BYTES: usize = 17;

names!(name, DOORS, Door {
    Door::Tls => "TLS",
    Door::Wire => "wire",
    Door::Resp => "RESP",
    Door::Http => "HTTP",
    Door::Memcached => "memcached",
});

/// Runs the target.
pub fn run(input: &[u8]) -> Outcomes {
    let mut outcomes = Outcomes::default();
    let mut told = None;
    for end in 0..=input.len().min(2 * TOLD_BYTES) {
        let now = sniff(&input[..end]);
        assert!(told.is_none() || now == told, "the door changed from {told:?} to {now:?} at byte {end}");
        assert!(now.is_some() || end < TOLD_BYTES, "no door after {end} bytes");
        told = now;
    }
    assert_eq!(sniff(input), told, "only the first bytes count");
    outcomes.add(told.as_ref().map_or("not told yet", name));
    outcomes
}
