//! Replies that are more than a fixed line, appended to the connection's output.

use super::meta::{FlagSet, Meta};
use super::number::{Tail, decimal};
use super::{expires_ms, remaining_s};
use crate::entry::Head;
use std::fmt::Display;
use std::io::Write;

/// The times a reply may speak of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Clock {
    /// Now, ms since 1970.
    pub now_ms: u64,
    /// Now, seconds since the node's start, as [`Head::access_s`] counts.
    pub node_s: u32,
}

/// Appends the answer to `mg` for an item that is there, or was just made for it (`created`, flag `N`); true: the value
/// and its CR LF follow.
///
/// Changes in `head` what the command changes: the expiry (`T`, `N`) and the right to recache. The caller stores that,
/// and after it, unless `u` was given, marks the item fetched and accessed. Flags take effect in the order they were
/// sent: a `t` before `T` tells the old time.
pub fn meta_get(meta: &Meta<'_>, head: &mut Head, created: bool, clock: Clock, out: &mut Vec<u8>) -> bool {
    const WANTED: FlagSet = FlagSet::of(b"stcflhOk");
    let with_value = meta.has(b'v') && !(meta.has(b'C') && meta.compare_cas == head.cas());
    start(with_value.then_some(head.size_bytes), out);
    let mut won = flags(meta, WANTED, head, created, clock, out);
    if head.memcached.token_sent {
        out.extend_from_slice(b" Z");
    }
    if head.memcached.stale {
        out.extend_from_slice(b" X");
        won |= !head.memcached.token_sent;
    }
    if won {
        out.extend_from_slice(b" W");
        head.memcached.token_sent = true;
    }
    out.extend_from_slice(b"\r\n");
    with_value
}

/// Changes `head` as [`meta_get`] does.
pub fn meta_get_effects(meta: &Meta<'_>, head: &mut Head, created: bool, clock: Clock) {
    let won = flags(meta, FlagSet::default(), head, created, clock, &mut Vec::new());
    head.memcached.token_sent |= won || head.memcached.stale;
}

/// Changes `head` as [`meta_arith`] does.
pub fn meta_arith_effects(meta: &Meta<'_>, head: &mut Head, created: bool, clock: Clock) {
    flags(meta, FlagSet::default(), head, created, clock, &mut Vec::new());
}

/// Appends the answer to `ma` for an item that now has the number `value`, with the value if `v` was given.
///
/// `head` is the item's after the change, with its old expiry, which is changed as by [`meta_get`].
pub fn meta_arith(meta: &Meta<'_>, head: &mut Head, created: bool, clock: Clock, value: u64, out: &mut Vec<u8>) {
    let mut digits = Tail::<20>::new();
    digits.number(value);
    let with_value = meta.has(b'v');
    start(with_value.then_some(digits.bytes().len() as u64), out);
    flags(meta, FlagSet::of(b"ctOk"), head, created, clock, out);
    out.extend_from_slice(b"\r\n");
    if with_value {
        out.extend_from_slice(digits.bytes());
        out.extend_from_slice(b"\r\n");
    }
}

/// Appends a line with `status` (`HD`, `NS`, `EX`, `NF`) and the flags `ms` returns: `c` and `s` as `cas` and
/// `size_bytes`, the opaque and the key. Where nothing was stored the CAS value is 0.
pub fn meta_status(meta: &Meta<'_>, status: &[u8; 2], cas: u64, size_bytes: u64, out: &mut Vec<u8>) {
    let mut head = Head { version: cas, size_bytes, ..Head::default() };
    out.extend_from_slice(status);
    flags(meta, FlagSet::of(b"csOk"), &mut head, false, Clock::default(), out);
    out.extend_from_slice(b"\r\n");
}

/// Appends a line with `status` and only the opaque and the key: `EN` of `mg`, all of `md`, `NF` and `EX` of `ma`.
pub fn meta_miss(meta: &Meta<'_>, status: &[u8; 2], out: &mut Vec<u8>) {
    out.extend_from_slice(status);
    flags(meta, FlagSet::of(b"Ok"), &mut Head::default(), false, Clock::default(), out);
    out.extend_from_slice(b"\r\n");
}

/// Appends the answer to `me` for an item that is there; `cls` is 0, for Herd has no slab classes.
pub fn meta_debug(meta: &Meta<'_>, head: &Head, clock: Clock, out: &mut Vec<u8>) {
    out.extend_from_slice(b"ME ");
    out.extend_from_slice(meta.sent_key);
    out.extend_from_slice(b" exp=");
    time_left(head.expires_ms, clock.now_ms, out);
    out.extend_from_slice(b" la=");
    decimal(u64::from(clock.node_s.saturating_sub(head.access_s)), out);
    out.extend_from_slice(b" cas=");
    decimal(head.cas(), out);
    out.extend_from_slice(if head.fetched { b" fetch=yes" } else { b" fetch=no" });
    out.extend_from_slice(b" cls=0 size=");
    decimal(head.size_bytes, out);
    out.extend_from_slice(b"\r\n");
}

/// Appends one line of `stats`.
pub fn stat(name: &str, value: impl Display, out: &mut Vec<u8>) {
    write!(out, "STAT {name} {value}\r\n").expect("writing to memory does not fail");
}

/// `VA <bytes>` or `HD`.
#[inline]
fn start(value_bytes: Option<u64>, out: &mut Vec<u8>) {
    match value_bytes {
        None => out.extend_from_slice(b"HD"),
        Some(bytes) => {
            out.extend_from_slice(b"VA ");
            decimal(bytes, out);
        }
    }
}

/// Walks over the flags in their order: appends those of `wanted`, lets `T` and `N` change the expiry in `head`; true
/// if the right to recache was won.
#[inline]
fn flags(meta: &Meta<'_>, wanted: FlagSet, head: &mut Head, created: bool, clock: Clock, out: &mut Vec<u8>) -> bool {
    let mut won = false;
    for word in meta.flags() {
        match word[0] {
            b'T' => head.expires_ms = expires_ms(meta.exptime, clock.now_ms),
            b'N' if created => {
                head.expires_ms = expires_ms(meta.vivify_exptime, clock.now_ms);
                won = true;
            }
            b'R' => won |= !created && wins_recache(meta, head, clock.now_ms),
            letter if wanted.has(letter) => flag(letter, word, meta, head, clock, out),
            _ => {}
        }
    }
    won
}

/// Whether less time is left than flag `R` says, and nobody was given the right before.
fn wins_recache(meta: &Meta<'_>, head: &Head, now_ms: u64) -> bool {
    let before_ms = expires_ms(meta.recache_exptime, now_ms);
    !head.memcached.token_sent && head.expires_ms != 0 && head.expires_ms < before_ms
}

/// Appends one flag of a reply.
#[inline]
fn flag(letter: u8, word: &[u8], meta: &Meta<'_>, head: &Head, clock: Clock, out: &mut Vec<u8>) {
    out.extend_from_slice(&[b' ', letter]);
    match letter {
        b's' => decimal(head.size_bytes, out),
        b't' => time_left(head.expires_ms, clock.now_ms, out),
        b'c' => decimal(head.cas(), out),
        b'f' => decimal(u64::from(head.flags), out),
        b'l' => decimal(u64::from(clock.node_s.saturating_sub(head.access_s)), out),
        b'h' => out.push(b'0' + u8::from(head.fetched)),
        b'O' => out.extend_from_slice(&word[1..]),
        b'k' => {
            out.extend_from_slice(meta.sent_key);
            if meta.has(b'b') {
                out.extend_from_slice(b" b");
            }
        }
        _ => unreachable!("only flags with an answer are wanted"),
    }
}

/// Seconds until `expires_ms`, or -1.
fn time_left(expires_ms: u64, now_ms: u64, out: &mut Vec<u8>) {
    match remaining_s(expires_ms, now_ms) {
        None => out.extend_from_slice(b"-1"),
        Some(seconds) => decimal(seconds, out),
    }
}
