//! What a node says of itself: `/status` (JSON), `/metrics` (Prometheus text format 0.0.4), the system objects.

mod compare;
pub(crate) mod groups;
mod herd;
pub(crate) mod journal;
mod links;
mod prometheus;

use crate::context::Shared;
use herd_store::{Collection, Counts, Now};
use serde_json::{Value, json};
use std::sync::atomic::Ordering::Relaxed;

impl Shared {
    /// The read-only objects of the system collection.
    pub(crate) fn system_object(&self, name: &[u8], now: Now) -> Option<String> {
        match name {
            b"status" => Some(self.status_json(now)),
            b"collections" => Some(self.json_of(&self.counted()).to_string()),
            b"metrics" => Some(self.metrics_text(now)),
            _ => {
                let name = std::str::from_utf8(name).ok()?;
                let sums = name.strip_prefix("sums/").map(|asked| self.sums(asked, now));
                sums.or_else(|| Some(self.slot_objects(name.strip_prefix("slot/")?, now)))?
            }
        }
    }

    /// The node's state.
    pub(crate) fn status_json(&self, now: Now) -> String {
        let (budget, used) = self.store.memory();
        let collections = self.counted();
        let mut counts = Counts::default();
        collections.iter().for_each(|(_, of)| counts += *of);
        let config = &self.config;
        let listen: Vec<String> = self.addrs.get().into_iter().flatten().map(ToString::to_string).collect();
        let longest_ns = self.loops.get().into_iter().flat_map(|loops| loops.loops());
        let longest_ns = longest_ns.map(|remote| remote.stats.longest_ns.load(Relaxed)).max().unwrap_or(0);
        let state = if self.stopping.load(Relaxed) { "stopping" } else { "serving" };
        let mut all = json!({
            "herd": config.name,
            "node": config.name,
            "state": state,
            "build": config.build,
            "objects": counts.objects,
            "bytes": counts.bytes,
            "memory_bytes": budget,
            "memory_used_bytes": used,
            "evictions": counts.evictions,
            "connections": self.loops.get().map_or(0, |loops| loops.open()),
            "listen": listen,
            "security": if config.plain { "plain: no TLS, no authentication" } else { "open on loopback" },
            "io": "readiness",
            "threads": config.threads,
            "longest_turn_ms": longest_ns as f64 / 1e6,
            "uptime_s": now.uptime_s,
            "collections": self.json_of(&collections),
        });
        if let (Value::Object(all), Value::Object(herd)) = (&mut all, self.herd(listen.first()).fields) {
            all.extend(herd);
        }
        all.to_string() + "\n"
    }

    /// All collections with what they hold and counted.
    fn counted(&self) -> Vec<(Collection, Counts)> {
        let collections = self.store.collections();
        let counts = self.store.counts_of(&collections);
        collections.into_iter().zip(counts).collect()
    }
}

impl Shared {
    /// Collections with what they promise and hold.
    fn json_of(&self, collections: &[(Collection, Counts)]) -> Value {
        let one = |(c, counts): &(Collection, Counts)| {
            json!({
                "name": c.name(),
                "id": c.id().0,
                "class": self.class(c).to_string(),
                "copies": self.place.get().map_or(1, |place| place.least_copies(c)),
                "ordered": c.spec().ordered,
                "quota_bytes": c.spec().quota_bytes,
                "objects": counts.objects,
                "bytes": counts.bytes,
                "hits": counts.hits,
                "misses": counts.misses,
                "evictions": counts.evictions,
                "expired": counts.expired,
                "refusals": counts.refusals,
            })
        };
        Value::Array(collections.iter().map(one).collect())
    }
}
