//! Line d: large objects, one stream, get and put: GB/s beside the null bulk server and iperf3, server CPU seconds per
//! GB beside memcached -I.
//!
//! memcached checks no bytes, Herd all of them: `null bulk, checked` tells what a put costs at least where that is
//! done.
//!
//! All arms run the same client code. On Herd's wire the timed pass parses every header and counts the body's bytes but
//! checks no checksum, as no other arm does; the pass before it checks all of them (arm note in the JSON).

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::bench::gib;
use crate::bench::{Arm, Bench};
use crate::bulkrun::{BulkOutcome, BulkSpec};
use crate::error::{Context, Error, Result};
use crate::peers::server::{Server, free_port};
use crate::peers::{Kind, Setup};
use crate::processor::{CLIENT_CORE, SERVER_CORE};
use crate::proto::{Op, Proto};
use crate::report::Sample;
use crate::run::alternated;
use crate::sys;

const LINE: &str = "d";
const MIB: usize = 1 << 20;
const DOORS: [&str; 2] = ["herd http", "herd wire"];
const NULL: &str = "null bulk";
const PLAIN: &str = "null bulk, plain";
const CHECKED: &str = "null bulk, checked";
const IPERF3: &str = "iperf3 -C cubic";
/// As it is started by default but for its largest object, and with huge pages, as its documents advise.
const MEMCACHED: [(&str, &str); 2] = [("memcached -I 128m", ""), ("memcached -I 128m tuned", "-L")];

fn group(op: Op, mib: usize) -> String {
    format!("{}, {mib} MiB", op.name())
}

/// Measures the line and judges it.
pub(crate) fn run(bench: &mut Bench) -> Result<()> {
    let sizes_mib: &[usize] = if bench.options.short { &[16] } else { &[1, 16, 64] };
    let arms: Vec<Arm> = [
        bench.arm(NULL, Kind::NullBulk { checked: false, plain: false }, Proto::Null),
        bench.arm(PLAIN, Kind::NullBulk { checked: false, plain: true }, Proto::Null),
        bench.arm(CHECKED, Kind::NullBulk { checked: true, plain: false }, Proto::Null),
        bench.arm(MEMCACHED[0].0, Kind::Memcached(MEMCACHED[0].1), Proto::Memcached),
        bench.arm(MEMCACHED[1].0, Kind::Memcached(MEMCACHED[1].1), Proto::Memcached),
        bench.arm("redis", Kind::Redis, Proto::Resp),
        bench.arm("herd http", Kind::Herd, Proto::Http),
        bench.arm("herd wire", Kind::Herd, Proto::Herd),
    ]
    .into_iter()
    .flatten()
    .collect();
    for round in 0..bench.options.rounds {
        run_round(bench, &arms, sizes_mib, round)?;
        println!("[{LINE}] round {} of {}", round + 1, bench.options.rounds);
    }
    bench.report.print_tables(LINE, &["gb_per_s", "cpu_s_per_gb", "client_cpu_s_per_gb"]);
    judge(bench, sizes_mib)?;
    if !bench.options.short {
        gib::run(bench)?;
    }
    bench.report.print_verdicts(LINE);
    bench.chart(LINE, "large", "Large objects, one stream", "GB/s", "gb_per_s", |_| true)?;
    let unit = "seconds of server CPU per GB";
    bench.chart(LINE, "large-cpu", "Large objects, one stream", unit, "cpu_s_per_gb", |_| true)
}

fn run_round(bench: &mut Bench, arms: &[Arm], sizes_mib: &[usize], round: usize) -> Result<()> {
    let setup = Setup { memory_mib: 2_048, item_max_mib: 128, ..Setup::default() };
    let mut running = Vec::new();
    for arm in arms {
        match arm.peer.start(&setup) {
            Ok(server) => {
                bench.started(&arm.name, &server)?;
                running.push((arm, server));
            }
            Err(error) => bench.report.failure(format!("[{LINE}] {}: {error}", arm.name))?,
        }
    }
    for op in [Op::Get, Op::Set] {
        let iperf = iperf(bench, op).transpose();
        for &mib in sizes_mib {
            for (arm, server) in alternated(&running, round) {
                // What is sent, nobody checksums anew.
                if op == Op::Get && arm.name == CHECKED {
                    continue;
                }
                let outcome = measure(bench, arm, server, op, mib);
                note(bench, group(op, mib), &arm.name, round, outcome)?;
            }
            // One stream of iperf3 has no objects: the same run stands beside each size.
            match &iperf {
                Some(Ok(outcome)) => note(bench, group(op, mib), IPERF3, round, Ok(outcome.clone()))?,
                Some(Err(error)) => bench.report.failure(format!("[{LINE}] {IPERF3}: {error}"))?,
                None => (),
            }
        }
    }
    Ok(())
}

fn measure(bench: &Bench, arm: &Arm, server: &Server, op: Op, mib: usize) -> Result<BulkOutcome> {
    let spec = BulkSpec {
        addr: server.addr,
        proto: arm.proto,
        op,
        object_bytes: mib * MIB,
        run_ms: bench.options.window_ms,
        core: Some(CLIENT_CORE),
        server_pids: vec![server.pid()],
    };
    bench.client("bulk", &spec)
}

fn note(bench: &mut Bench, group: String, arm: &str, round: usize, outcome: Result<BulkOutcome>) -> Result<()> {
    let outcome = match outcome {
        Ok(outcome) => outcome,
        Err(error) => return bench.report.failure(format!("[{LINE}] {group}, {arm}: {error}")),
    };
    let gb = outcome.bytes as f64 / 1e9;
    let values = BTreeMap::from([
        ("gb_per_s", gb / outcome.seconds),
        ("cpu_s_per_gb", outcome.server_cpu_ns as f64 / 1e9 / gb),
        ("client_cpu_s_per_gb", outcome.client_cpu_ns as f64 / 1e9 / gb),
    ]);
    bench.report.sample(Sample { line: LINE, group, arm: arm.to_owned(), round, values })
}

/// One stream of iperf3 with cubic; a put is client to server, a get the reverse. `None` without the program.
fn iperf(bench: &Bench, op: Op) -> Result<Option<BulkOutcome>> {
    let Some(program) = &bench.iperf3 else { return Ok(None) };
    let port = free_port(Ipv4Addr::LOCALHOST)?;
    let mut server = Command::new(program);
    server.args(["-s", "-1", "-B", "127.0.0.1", "-p", &port.to_string()]);
    server.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    sys::tie(&mut server, Some(SERVER_CORE));
    let mut server = server.spawn().during(|| "start iperf3".into())?;
    std::thread::sleep(Duration::from_millis(200));
    let result = iperf_client(bench, op, port);
    // It has ended after its one test, or must now; it is ours and not waited for, so both calls are safe to repeat.
    let _ = server.kill();
    let _ = server.wait();
    result.map(Some)
}

fn iperf_client(bench: &Bench, op: Op, port: u16) -> Result<BulkOutcome> {
    let program = bench.iperf3.as_ref().expect("the caller has it");
    let seconds = bench.options.window_ms.div_ceil(1_000).to_string();
    let mut client = Command::new(program);
    client.args(["-c", "127.0.0.1", "-p", &port.to_string(), "-C", "cubic", "-J", "-t", &seconds]);
    if op == Op::Get {
        client.arg("-R");
    }
    client.stdin(Stdio::null());
    sys::tie(&mut client, Some(CLIENT_CORE));
    let output = client.output().during(|| "run iperf3".into())?;
    let answer: Value = serde_json::from_slice(&output.stdout)?;
    read_iperf(&answer).ok_or_else(|| Error::new(format!("iperf3 said {}", answer["error"])))
}

/// Bytes and CPU of an iperf3 run, from its own report (its CPU share is of the whole test).
fn read_iperf(answer: &Value) -> Option<BulkOutcome> {
    let received = &answer["end"]["sum_received"];
    let seconds = received["seconds"].as_f64()?;
    let cpu = &answer["end"]["cpu_utilization_percent"];
    let cpu_ns = |side: &str| Some((cpu[side].as_f64()? / 100.0 * seconds * 1e9) as u64);
    Some(BulkOutcome {
        bytes: received["bytes"].as_u64()?,
        seconds,
        server_cpu_ns: cpu_ns("remote_total")?,
        client_cpu_ns: cpu_ns("host_total")?,
    })
}

fn judge(bench: &mut Bench, sizes_mib: &[usize]) -> Result<()> {
    for door in DOORS {
        for op in [Op::Get, Op::Set] {
            for &mib in sizes_mib {
                let group = group(op, mib);
                for (other, bar) in [(NULL, 0.90), (IPERF3, 0.75)] {
                    let ratio = bench.report.ratio(LINE, (&group, door), (&group, other), "gb_per_s");
                    bench.report.judge(LINE, format!("gb_per_s: {group}, {door} / {other}"), ratio, bar, false)?;
                }
                let memcached = MEMCACHED.map(|(name, _)| name);
                if let Some(peer) = bench.report.lowest(LINE, &group, &memcached, "cpu_s_per_gb") {
                    bench.judge_ratio(LINE, (&group, door), (&group, peer), "cpu_s_per_gb", 1.0)?;
                }
                bench.print_ratio(LINE, (&group, door), (&group, PLAIN), "gb_per_s");
            }
        }
    }
    Ok(())
}
