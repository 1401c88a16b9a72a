//! `flush_all`, `stats`, `version` and the clock of memcached's tests.

use super::flush;
use super::herd::{self, Gathered};
use super::lines::answer_error;
use crate::context::{Context, Output};
use crate::metrics::{DoorName, VerbName};
use herd_core::door::memcached::{DebugTime, StatsTopic, expires_ms, reply, stat};
use herd_net::Ticket;
use std::sync::atomic::Ordering::Relaxed;

/// The version of memcached whose commands this door speaks; clients look at it to choose commands.
const SPOKEN: &str = "1.6.45-herd";

/// Appends a reply unless it is not wanted.
pub(super) fn say(reply: &[u8], quiet: bool, out: &mut Output<'_>) {
    if !quiet {
        out.buf.extend_from_slice(reply);
    }
}

pub(super) fn version(cx: &mut Context, out: &mut Output<'_>) {
    cx.count(VerbName::Admin);
    out.buf.extend_from_slice(format!("VERSION {SPOKEN}\r\n").as_bytes());
}

pub(super) fn flush_all(cx: &mut Context, delay: i64, quiet: bool, out: &mut Output<'_>) {
    cx.count(VerbName::Admin);
    let at_ms = (delay > 0).then(|| expires_ms(delay, cx.now.unix_ms));
    let is_member = cx.shared.member.get().is_some();
    if is_member {
        cx.shared.flush_at_ms.store(at_ms.unwrap_or(0), Relaxed);
        // Also where this node is alone: others may have come by then.
        if at_ms.is_some() {
            return say(reply::OK, quiet, out);
        }
    }
    if is_member && !cx.shared.store.is_alone(&cx.shared.default) {
        if let Err(error) = flush::begin(cx, quiet, out) {
            answer_error(cx, VerbName::Admin, &error, quiet, out);
        }
        return;
    }
    let default = &cx.shared.default;
    if let Err(error) = cx.shared.check_alone(default) {
        return answer_error(cx, VerbName::Admin, &error, quiet, out);
    }
    cx.shared.store.flush(default, at_ms);
    cx.shared.watch.flush_at(default.id(), at_ms);
    if at_ms.is_none() {
        cx.emptied(default.id());
    }
    say(reply::OK, quiet, out);
}

/// Moves or stops the clock that requests see, at all nodes; only where the node was started for tests.
pub(super) fn debug_time(cx: &mut Context, time: DebugTime, out: &mut Output<'_>) -> Option<Ticket> {
    if !cx.shared.config.debug_time {
        out.buf.extend_from_slice(reply::ERROR);
        return None;
    }
    move_clock(cx, time);
    let asked = herd::gather(cx, Gathered::Clocks, &herd::word_of(time), out);
    if asked.is_none() {
        out.buf.extend_from_slice(reply::OK);
    }
    asked
}

/// Moves or stops the clock of this node.
pub(super) fn move_clock(cx: &mut Context, time: DebugTime) {
    match time {
        DebugTime::Pause => cx.shared.debug_time.pause(cx.up()),
        DebugTime::Resume => cx.shared.debug_time.resume(cx.up()),
        DebugTime::Move(seconds) => cx.shared.debug_time.advance(seconds),
    }
    cx.look_again();
}

/// What the nodes of a herd tell together: sums.
#[derive(Clone, Copy, Default)]
pub(super) struct Figures([u64; 12]);

const OBJECTS: usize = 0;
const BYTES: usize = 1;
const PUTS: usize = 2;
const HITS: usize = 3;
const MISSES: usize = 4;
const EXPIRED: usize = 5;
const EVICTIONS: usize = 6;
const REFUSALS: usize = 7;
const GET_REQUESTS: usize = 8;
const PUT_REQUESTS: usize = 9;
const TOUCH_REQUESTS: usize = 10;
const MEMORY: usize = 11;

impl Figures {
    /// Its bytes, for another node.
    pub(super) fn encode(&self) -> Vec<u8> {
        self.0.iter().flat_map(|figure| figure.to_le_bytes()).collect()
    }

    /// Of bytes that another node has sent.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let (figures, rest) = bytes.as_chunks::<8>();
        let figures: Vec<u64> = figures.iter().map(|figure| u64::from_le_bytes(*figure)).collect();
        if rest.is_empty() { figures.try_into().ok().map(Self) } else { None }
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.0.iter_mut().zip(other.0).for_each(|(sum, other)| *sum = sum.saturating_add(other));
    }
}

/// Objects of collection `default`, as they are once what is pending is committed: a member has just acknowledged it,
/// and hears some ms later that it is. Else a client would not find its own put in the sum of all nodes.
fn objects(cx: &Context, committed: u64) -> u64 {
    let default = cx.shared.default.id();
    let pendings = cx.shared.store.pendings(default.spread_group(), |_| true, cx.now);
    pendings.iter().filter(|(key, _)| key.collection == default).fold(committed, |objects, (_, write)| {
        match (write.base, write.removes) {
            (0, false) => objects + 1,
            (1.., true) => objects.saturating_sub(1),
            _ => objects,
        }
    })
}

/// The figures of this node.
pub(super) fn figures(cx: &Context) -> Figures {
    let shared = &cx.shared;
    let counts = shared.store.counts(&shared.default);
    let requests =
        |verb| -> u64 { shared.metrics.iter().map(|m| m.of(DoorName::Memcached, verb).requests.load(Relaxed)).sum() };
    let (gets, puts, touches) = (requests(VerbName::Get), requests(VerbName::Put), requests(VerbName::Touch));
    Figures([
        objects(cx, counts.objects),
        counts.bytes,
        counts.puts,
        counts.hits,
        counts.misses,
        counts.expired,
        counts.evictions,
        counts.refusals,
        gets,
        puts,
        touches,
        shared.store.memory().0,
    ])
}

/// `stats`: of what a herd stores it tells the sums of all nodes.
pub(super) fn stats(cx: &mut Context, topic: StatsTopic, out: &mut Output<'_>) -> Option<Ticket> {
    cx.count(VerbName::Admin);
    let is_of_all = matches!(topic, StatsTopic::General | StatsTopic::Items | StatsTopic::Slabs);
    if is_of_all {
        // These look into every shard.
        cx.was_dear();
        let asked = herd::gather(cx, Gathered::Stats(topic), b"all", out);
        if asked.is_some() {
            return asked;
        }
    }
    let figures = if is_of_all { figures(cx) } else { Figures::default() };
    write_stats(cx, topic, &figures, out);
    None
}

/// The answer to `stats`.
pub(super) fn write_stats(cx: &Context, topic: StatsTopic, figures: &Figures, out: &mut Output<'_>) {
    // An object is counted where its copies are.
    let copies = u64::from(cx.durability(&cx.shared.default, b"stats").copies).max(1);
    let mut sums = figures.0;
    for figure in [OBJECTS, BYTES, PUTS] {
        sums[figure] = sums[figure].div_ceil(copies);
    }
    match topic {
        StatsTopic::General => general(cx, &sums, out.buf),
        StatsTopic::Settings => settings(cx, out.buf),
        StatsTopic::Items => items(&sums, out.buf),
        StatsTopic::Slabs => slabs(&sums, out.buf),
        StatsTopic::Sizes => stat("sizes_status", "disabled", out.buf),
        StatsTopic::Conns => stat("curr_connections", connections(cx), out.buf),
        StatsTopic::Reset => return out.buf.extend_from_slice(reply::RESET),
    }
    out.buf.extend_from_slice(reply::END);
}

fn connections(cx: &Context) -> u64 {
    cx.shared.loops.get().map_or(0, |loops| loops.open())
}

fn general(cx: &Context, sums: &[u64; 12], out: &mut Vec<u8>) {
    let shared = &cx.shared;
    let net = |pick: fn(&herd_net::LoopStats) -> u64| -> u64 {
        shared.loops.get().map_or(0, |loops| loops.loops().iter().map(|remote| pick(&remote.stats)).sum())
    };
    stat("pid", std::process::id(), out);
    stat("uptime", cx.now.uptime_s, out);
    stat("time", cx.now.unix_ms / 1000, out);
    stat("version", SPOKEN, out);
    stat("pointer_size", usize::BITS, out);
    stat("curr_connections", connections(cx), out);
    stat("total_connections", net(|s| s.opened.load(Relaxed)), out);
    stat("rejected_connections", net(|s| s.shed.load(Relaxed)), out);
    stat("cmd_get", sums[GET_REQUESTS], out);
    stat("cmd_set", sums[PUT_REQUESTS], out);
    stat("cmd_touch", sums[TOUCH_REQUESTS], out);
    stat("get_hits", sums[HITS], out);
    stat("get_misses", sums[MISSES], out);
    stat("get_expired", sums[EXPIRED], out);
    stat("bytes_read", net(|s| s.read_bytes.load(Relaxed)), out);
    stat("bytes_written", net(|s| s.written_bytes.load(Relaxed)), out);
    stat("limit_maxbytes", sums[MEMORY], out);
    stat("threads", shared.config.threads, out);
    stat("bytes", sums[BYTES], out);
    stat("curr_items", sums[OBJECTS], out);
    stat("total_items", sums[PUTS], out);
    stat("evictions", sums[EVICTIONS], out);
}

fn settings(cx: &Context, out: &mut Vec<u8>) {
    let config = &cx.shared.config;
    stat("maxbytes", config.memory_bytes, out);
    stat("maxconns", config.connections_max, out);
    stat("num_threads", config.threads, out);
    stat("evictions", if config.evict { "on" } else { "off" }, out);
    stat("cas_enabled", "yes", out);
    stat("item_size_max", config.memcached_max_bytes, out);
    stat("binding_protocol", "ascii", out);
    stat("client_flags_size", 4, out);
}

/// All objects are of one class: Herd has no slab classes.
fn items(sums: &[u64; 12], out: &mut Vec<u8>) {
    if sums[OBJECTS] > 0 {
        stat("items:1:number", sums[OBJECTS], out);
        stat("items:1:evicted", sums[EVICTIONS], out);
        stat("items:1:outofmemory", sums[REFUSALS], out);
    }
}

fn slabs(sums: &[u64; 12], out: &mut Vec<u8>) {
    if sums[OBJECTS] > 0 {
        stat("1:used_chunks", sums[OBJECTS], out);
        stat("1:mem_requested", sums[BYTES], out);
    }
    stat("active_slabs", u8::from(sums[OBJECTS] > 0), out);
    stat("total_malloced", sums[MEMORY], out);
}
