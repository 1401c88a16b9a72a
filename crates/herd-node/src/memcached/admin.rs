//! `flush_all`, `stats`, `version` and the clock of memcached's tests.

use super::flush;
use super::lines::answer_error;
use crate::context::{Context, Output};
use crate::metrics::{DoorName, VerbName};
use herd_core::door::memcached::{DebugTime, StatsTopic, expires_ms, reply, stat};
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
    if at_ms.is_none() && cx.shared.member.get().is_some() && !cx.shared.store.is_alone(&cx.shared.default) {
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

/// Moves or stops the clock that requests see; only where the node was started for tests.
pub(super) fn debug_time(cx: &mut Context, time: DebugTime, out: &mut Output<'_>) {
    if !cx.shared.config.debug_time {
        return out.buf.extend_from_slice(reply::ERROR);
    }
    match time {
        DebugTime::Pause => cx.shared.debug_time.pause(cx.up()),
        DebugTime::Resume => cx.shared.debug_time.resume(cx.up()),
        DebugTime::Move(seconds) => cx.shared.debug_time.advance(seconds),
    }
    cx.look_again();
    out.buf.extend_from_slice(reply::OK);
}

pub(super) fn stats(cx: &mut Context, topic: StatsTopic, out: &mut Output<'_>) {
    cx.count(VerbName::Admin);
    if matches!(topic, StatsTopic::General | StatsTopic::Items | StatsTopic::Slabs) {
        // These look into every shard.
        cx.was_dear();
    }
    match topic {
        StatsTopic::General => general(cx, out.buf),
        StatsTopic::Settings => settings(cx, out.buf),
        StatsTopic::Items => items(cx, out.buf),
        StatsTopic::Slabs => slabs(cx, out.buf),
        StatsTopic::Sizes => stat("sizes_status", "disabled", out.buf),
        StatsTopic::Conns => stat("curr_connections", connections(cx), out.buf),
        StatsTopic::Reset => return out.buf.extend_from_slice(reply::RESET),
    }
    out.buf.extend_from_slice(reply::END);
}

fn connections(cx: &Context) -> u64 {
    cx.shared.loops.get().map_or(0, |loops| loops.open())
}

fn general(cx: &Context, out: &mut Vec<u8>) {
    let shared = &cx.shared;
    let counts = shared.store.counts(&shared.default);
    let requests =
        |verb| -> u64 { shared.metrics.iter().map(|m| m.of(DoorName::Memcached, verb).requests.load(Relaxed)).sum() };
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
    stat("cmd_get", requests(VerbName::Get), out);
    stat("cmd_set", requests(VerbName::Put), out);
    stat("cmd_touch", requests(VerbName::Touch), out);
    stat("get_hits", counts.hits, out);
    stat("get_misses", counts.misses, out);
    stat("get_expired", counts.expired, out);
    stat("bytes_read", net(|s| s.read_bytes.load(Relaxed)), out);
    stat("bytes_written", net(|s| s.written_bytes.load(Relaxed)), out);
    stat("limit_maxbytes", shared.store.memory().0, out);
    stat("threads", shared.config.threads, out);
    stat("bytes", counts.bytes, out);
    stat("curr_items", counts.objects, out);
    stat("total_items", counts.puts, out);
    stat("evictions", counts.evictions, out);
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
fn items(cx: &Context, out: &mut Vec<u8>) {
    let counts = cx.shared.store.counts(&cx.shared.default);
    if counts.objects > 0 {
        stat("items:1:number", counts.objects, out);
        stat("items:1:evicted", counts.evictions, out);
        stat("items:1:outofmemory", counts.refusals, out);
    }
}

fn slabs(cx: &Context, out: &mut Vec<u8>) {
    let counts = cx.shared.store.counts(&cx.shared.default);
    if counts.objects > 0 {
        stat("1:used_chunks", counts.objects, out);
        stat("1:mem_requested", counts.bytes, out);
    }
    stat("active_slabs", u8::from(counts.objects > 0), out);
    stat("total_malloced", cx.shared.store.memory().0, out);
}
