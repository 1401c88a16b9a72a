//! `/metrics`.

use crate::context::Shared;
use crate::metrics::{DoorName, LATENCY_BUCKETS, VerbMetrics, VerbName};
use herd_core::ErrorKind;
use herd_store::{Counts, Now};
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Picks one counter of a door and verb.
type Pick<'a> = &'a dyn Fn(&VerbMetrics) -> &AtomicU64;
/// Sums a counter over all loops.
type Sum<'a> = &'a dyn Fn(Pick<'_>) -> u64;

impl Shared {
    /// All metrics as Prometheus text.
    pub(crate) fn metrics_text(&self, now: Now) -> String {
        let mut out = String::new();
        self.requests_text(&mut out);
        self.collections_text(&mut out);
        self.connections_text(&mut out);
        self.herd_text(&mut out, now);
        let (budget, used) = self.store.memory();
        gauge(&mut out, "herd_memory_bytes", "Memory the store may use.", budget);
        gauge(&mut out, "herd_memory_used_bytes", "Memory the store uses, overhead included.", used);
        gauge(&mut out, "herd_uptime_seconds", "Seconds since the node's start.", u64::from(now.uptime_s));
        head(&mut out, "herd_build_info", "gauge", "The build, as labels.");
        line(&mut out, format_args!("herd_build_info{{build=\"{}\"}} 1", self.config.build));
        out
    }

    fn requests_text(&self, out: &mut String) {
        head(
            out,
            "herd_requests_total",
            "counter",
            "Requests answered, by door and verb; door node: those that other nodes handed on, which they count too.",
        );
        self.each_verb(|door, verb, sum| {
            let requests = sum(&|v| &v.requests);
            if requests > 0 {
                line(out, format_args!("herd_requests_total{{door=\"{door}\",verb=\"{verb}\"}} {requests}"));
            }
        });
        head(out, "herd_errors_total", "counter", "Requests answered with an error, by kind.");
        self.each_verb(|door, verb, sum| {
            for kind in ErrorKind::ALL {
                let errors = sum(&|v| &v.errors[kind as usize]);
                let labels = format_args!("door=\"{door}\",verb=\"{verb}\",kind=\"{}\"", kind.name()).to_string();
                if errors > 0 {
                    line(out, format_args!("herd_errors_total{{{labels}}} {errors}"));
                }
            }
        });
        head(out, "herd_request_seconds", "histogram", "Time from the bytes' arrival to the reply being made.");
        self.each_verb(|door, verb, sum| latency_text(out, door, verb, sum));
        head(out, "herd_value_bytes_total", "counter", "Bytes of values received and sent.");
        self.each_verb(|door, verb, sum| {
            for (way, bytes) in [("in", sum(&|v| &v.in_bytes)), ("out", sum(&|v| &v.out_bytes))] {
                let labels = format_args!("door=\"{door}\",verb=\"{verb}\",way=\"{way}\"").to_string();
                if bytes > 0 {
                    line(out, format_args!("herd_value_bytes_total{{{labels}}} {bytes}"));
                }
            }
        });
    }

    /// Calls `each` for every door and verb with a way to sum one of their counters over all loops.
    fn each_verb(&self, mut each: impl FnMut(&str, &str, Sum<'_>)) {
        for door in DoorName::ALL {
            for verb in VerbName::ALL {
                let sum = |pick: Pick<'_>| self.metrics.iter().map(|m| pick(m.of(door, verb)).load(Relaxed)).sum();
                each(door.name(), verb.name(), &sum);
            }
        }
    }

    fn collections_text(&self, out: &mut String) {
        type Column = (&'static str, &'static str, &'static str, fn(&Counts) -> u64);
        const COLUMNS: [Column; 8] = [
            ("herd_objects", "gauge", "Objects held.", |c| c.objects),
            ("herd_bytes", "gauge", "Bytes held, overhead of entries included.", |c| c.bytes),
            ("herd_puts_total", "counter", "Objects put.", |c| c.puts),
            ("herd_hits_total", "counter", "Gets that found their object.", |c| c.hits),
            ("herd_misses_total", "counter", "Gets that did not.", |c| c.misses),
            ("herd_evictions_total", "counter", "Objects evicted to make room.", |c| c.evictions),
            ("herd_expired_total", "counter", "Objects that expired.", |c| c.expired),
            ("herd_refusals_total", "counter", "Puts refused for want of memory or quota.", |c| c.refusals),
        ];
        let all = self.counted();
        for (name, kind, help, pick) in COLUMNS {
            head(out, name, kind, help);
            for (c, counts) in &all {
                line(out, format_args!("{name}{{collection=\"{}\"}} {}", c.name(), pick(counts)));
            }
        }
    }

    fn connections_text(&self, out: &mut String) {
        let Some(loops) = self.loops.get() else {
            return;
        };
        let sum = |pick: fn(&herd_net::LoopStats) -> &AtomicU64| -> u64 {
            loops.loops().iter().map(|remote| pick(&remote.stats).load(Relaxed)).sum()
        };
        gauge(out, "herd_connections", "Connections open.", loops.open());
        for (name, help, value) in [
            ("herd_connections_opened_total", "Connections opened.", sum(|s| &s.opened)),
            ("herd_connections_closed_total", "Connections closed.", sum(|s| &s.closed)),
            (
                "herd_connections_shed_total",
                "Connections shed: too slow, too much held, or too many.",
                sum(|s| &s.shed),
            ),
            ("herd_connections_overrun_total", "Connections closed for a request too long.", sum(|s| &s.overrun)),
            ("herd_network_read_bytes_total", "Bytes read from clients.", sum(|s| &s.read_bytes)),
            ("herd_network_written_bytes_total", "Bytes written to clients.", sum(|s| &s.written_bytes)),
        ] {
            head(out, name, "counter", help);
            line(out, format_args!("{name} {value}"));
        }
        let help = "The longest a loop was busy with one thing in the last minute or two.";
        head(out, "herd_loop_longest_turn_seconds", "gauge", help);
        for (number, remote) in loops.loops().iter().enumerate() {
            let seconds = remote.stats.longest_recent_ns.load(Relaxed) as f64 / 1e9;
            line(out, format_args!("herd_loop_longest_turn_seconds{{loop=\"{number}\"}} {seconds}"));
        }
    }
}

fn latency_text(out: &mut String, door: &str, verb: &str, sum: Sum<'_>) {
    let total = sum(&|v| &v.requests);
    if total == 0 {
        return;
    }
    let labels = format!("door=\"{door}\",verb=\"{verb}\"");
    let mut below = 0;
    for bucket in 0..LATENCY_BUCKETS - 1 {
        below += sum(&|v| &v.latency[bucket]);
        let bound = (1u64 << bucket) as f64 / 1e6;
        line(out, format_args!("herd_request_seconds_bucket{{{labels},le=\"{bound}\"}} {below}"));
    }
    line(out, format_args!("herd_request_seconds_bucket{{{labels},le=\"+Inf\"}} {total}"));
    let seconds = sum(&|v| &v.latency_ns) as f64 / 1e9;
    line(out, format_args!("herd_request_seconds_sum{{{labels}}} {seconds}"));
    line(out, format_args!("herd_request_seconds_count{{{labels}}} {total}"));
}

pub(super) fn gauge(out: &mut String, name: &str, help: &str, value: u64) {
    head(out, name, "gauge", help);
    line(out, format_args!("{name} {value}"));
}

pub(super) fn head(out: &mut String, name: &str, kind: &str, help: &str) {
    line(out, format_args!("# HELP {name} {help}"));
    line(out, format_args!("# TYPE {name} {kind}"));
}

pub(super) fn line(out: &mut String, text: std::fmt::Arguments<'_>) {
    writeln!(out, "{text}").expect("writing to memory does not fail");
}
