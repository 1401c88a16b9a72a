//! Line f: memory. Resident bytes beyond payload of ten million small objects, and resident memory under churn with
//! eviction against the limit that was asked for.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use crate::bench::{Arm, Bench};
use crate::churn::{ChurnOutcome, ChurnSpec, ORDERED};
use crate::error::{Context, Error, Result};
use crate::peers::{Kind, Setup};
use crate::proc;
use crate::processor::CLIENT_CORE;
use crate::proto::{Op, Proto};
use crate::report::{Sample, Summary};
use crate::spec::Spec;
use crate::values::KEY_BYTES;

const LINE: &str = "f";
/// As it is started by default, and with chunk sizes 5 % apart, as its documents advise where objects are of one size.
/// Not `-C`, which saves 8 bytes an object: it takes `cas` away, which all others have.
const MEMCACHED: [(&str, &str); 2] = [("memcached", ""), ("memcached tuned", "-f 1.05 -L")];
const VALUE_BYTES: usize = 64;
const CHURN_MIB: u64 = 1_024;
const CHURN_KEYS: u64 = 20_000;
const MIB: f64 = 1_048_576.0;

/// What is alike for all arms that are loaded with objects.
pub(super) fn group(bench: &Bench) -> String {
    format!("{} objects of 16 B key and 64 B value", bench.options.objects)
}

/// Measures the line and judges it.
pub(crate) fn run(bench: &mut Bench) -> Result<()> {
    let arms = [
        bench.arm(MEMCACHED[0].0, Kind::Memcached(MEMCACHED[0].1), Proto::Memcached),
        bench.arm(MEMCACHED[1].0, Kind::Memcached(MEMCACHED[1].1), Proto::Memcached),
        bench.arm("redis", Kind::Redis, Proto::Resp),
        bench.arm("pogocache", Kind::Pogocache, Proto::Memcached),
        bench.arm("herd", Kind::Herd, Proto::Memcached),
    ];
    for arm in arms.into_iter().flatten() {
        if let Err(error) = overhead(bench, LINE, &arm, 0) {
            bench.report.failure(format!("[{LINE}] {}: {error}", arm.name))?;
        }
        println!("[{LINE}] objects loaded and read back: {}", arm.name);
    }
    for arm in [bench.arm("herd, all doors", Kind::Herd, Proto::Http)].into_iter().flatten() {
        if let Err(error) = churn(bench, &arm) {
            bench.report.failure(format!("[{LINE}] churn, {}: {error}", arm.name))?;
        }
    }
    let metrics = ["beyond_payload_bytes", "resident_mib", "limit_mib", "puts", "hits", "misses"];
    bench.report.print_tables(LINE, &metrics);
    let group = group(bench);
    let memcached = MEMCACHED.map(|(name, _)| name);
    if let Some(peer) = bench.report.lowest(LINE, &group, &memcached, "beyond_payload_bytes") {
        bench.judge_ratio(LINE, (&group, "herd"), (&group, peer), "beyond_payload_bytes", 1.0)?;
    }
    bench.report.print_verdicts(LINE);
    let title = format!("Resident bytes beyond payload, {group}");
    bench.chart(LINE, "overhead", &title, "bytes per object", "beyond_payload_bytes", |each| each == group)
}

/// Loads all objects, reads each back, and divides what is resident beyond their keys and values.
pub(super) fn overhead(bench: &mut Bench, line: &'static str, arm: &Arm, round: usize) -> Result<()> {
    let objects = bench.options.objects;
    let setup = Setup { memory_mib: 4_096, ..Setup::default() };
    let server = arm.peer.start(&setup)?;
    bench.started(&arm.name, &server)?;
    let empty_bytes = proc::resident_bytes(server.pid())? as f64;
    bench.preload(&server, arm.proto, objects, VALUE_BYTES)?;
    let all = Spec {
        conns: 16,
        pipeline: 50,
        sequential: true,
        keys: objects,
        value_bytes: VALUE_BYTES,
        ..server.small(arm.proto, Op::Get)
    };
    let found = bench.engine(&all)?.ops;
    if found != u64::from(objects) {
        return Err(Error::new(format!("{found} of {objects} objects came back")));
    }
    thread::sleep(Duration::from_secs(1));
    let resident_bytes = proc::resident_bytes(server.pid())? as f64;
    let payload_bytes = f64::from(objects) * (KEY_BYTES + VALUE_BYTES) as f64;
    let values = BTreeMap::from([
        ("beyond_payload_bytes", (resident_bytes - payload_bytes) / f64::from(objects)),
        ("resident_mib", resident_bytes / MIB),
        ("empty_mib", empty_bytes / MIB),
        ("peak_mib", proc::peak_resident_bytes(server.pid())? as f64 / MIB),
    ]);
    let (group, arm) = (group(bench), arm.name.clone());
    bench.report.sample(Sample { line, group, arm, round, values })
}

fn churn(bench: &mut Bench, arm: &Arm) -> Result<()> {
    let setup = Setup { memory_mib: CHURN_MIB, evict: true, item_max_mib: 8, ..Setup::default() };
    let server = arm.peer.start(&setup)?;
    bench.started(&format!("{} churn", arm.name), &server)?;
    let mut create = Command::new(&arm.peer.program);
    create.args(["collection", "create", ORDERED, "--ordered", "--class", "cache"]);
    create.env("HERD_NODE", server.addr.to_string()).stdin(Stdio::null()).stdout(Stdio::null());
    if !create.status().during(|| "start herd collection create".into())?.success() {
        return Err(Error::new("herd collection create failed"));
    }
    let spec = ChurnSpec {
        addr: server.addr,
        doors: vec![Proto::Http, Proto::Http, Proto::Memcached, Proto::Herd],
        beside: true,
        keys: CHURN_KEYS,
        run_s: bench.options.churn_seconds,
        server_pid: server.pid(),
        core: Some(CLIENT_CORE),
    };
    let outcome: ChurnOutcome = bench.client("churn", &spec)?;
    bench.report.write("churn", &outcome)?;
    let ChurnOutcome { names, expiring, slow, slow_bytes, .. } = outcome;
    println!("  churn: {names} long names, {expiring} expiring objects, {slow} slow readers took {slow_bytes} bytes");
    let limit_mib = CHURN_MIB as f64 * 1.1 + 64.0;
    let series: Vec<f64> = outcome.resident_bytes.iter().map(|&bytes| bytes as f64 / MIB).collect();
    let highest = series.iter().copied().fold(0.0, f64::max);
    let values = BTreeMap::from([
        ("resident_mib", highest),
        ("limit_mib", limit_mib),
        ("puts", outcome.puts as f64),
        ("hits", outcome.hits as f64),
        ("misses", outcome.misses as f64),
        ("put_gib", outcome.put_bytes as f64 / MIB / 1_024.0),
        ("names", outcome.names as f64),
        ("expiring", outcome.expiring as f64),
        ("slow_readers", outcome.slow as f64),
        ("slow_mib", outcome.slow_bytes as f64 / MIB),
    ]);
    let group = format!("churn of 16 B to 4 MiB for {} s, eviction", bench.options.churn_seconds);
    bench.report.sample(Sample { line: LINE, group, arm: arm.name.clone(), round: 0, values })?;
    let highest = Summary { median: highest, low: highest, high: highest };
    let what = "highest resident MiB under churn".to_owned();
    bench.report.judge(LINE, what, Some(highest), limit_mib, true)?;
    bench.line_chart("churn", "Resident memory under churn, --memory 1g", &series, limit_mib)
}
