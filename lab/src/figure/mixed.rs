//! (hoc-mixed) One node on a 100 Mbit/s link, four gets of 8 KB to each put, both open loop: what is achieved of the
//! load offered, and how long a get takes, from a tenth of what the link carries to beyond it.

use std::time::Duration;

use crate::bench::{CLIENT_CORE, SERVER_CORE};
use crate::client;
use crate::crowd::{CrowdOutcome, CrowdSpec};
use crate::error::Result;
use crate::figure::{Arm, Figure, LINE, Values, linear};
use crate::net::conditions::{PAYLOAD_SHARE, Rate};
use crate::net::presets;
use crate::plot::Chart;
use crate::plot::curves::{Axis, Quantity};
use crate::proto::Op;
use crate::spec::{Outcome, Spec};

const BYTES: usize = 8 * 1_024;
const CONNS: usize = 64;
/// Puts to each get.
const PUTS: f64 = 0.25;
/// Offered gets, in shares of what the link would carry of them alone.
const SHARES: [f64; 7] = [0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95];
/// Bytes on the wire for one get's reply: the object, its head, and the headers of its packets.
const WIRE_BYTES: f64 = (BYTES as f64 + 100.0) / PAYLOAD_SHARE;

fn shares(figure: &Figure) -> &'static [f64] {
    if figure.options.short { &SHARES[1..2] } else { &SHARES }
}

fn gets_per_s(share: f64) -> f64 {
    share * Rate::MBIT_100.0 as f64 / 8.0 / WIRE_BYTES
}

fn group(share: f64) -> String {
    format!(
        "{:.0} % of the link, {:.0} gets/s and {:.0} puts/s offered",
        100.0 * share,
        gets_per_s(share),
        gets_per_s(share) * PUTS
    )
}

/// Measures every load and draws.
pub(super) fn run(figure: &mut Figure) -> Result<()> {
    let arms = figure.arms();
    for &share in shares(figure) {
        println!("{}", group(share));
        for round in 0..figure.options.rounds {
            for arm in crate::bench::rotated(&arms, round) {
                let group = group(share);
                figure.take((&group, arm.name, round), |figure| run_once(figure, share, arm, round))?;
            }
        }
        judge(figure, share)?;
    }
    draw(figure)?;
    figure.report.print_tables(LINE, &["gets/s", "puts/s", "p50 ms", "p99 ms", "put p99 ms", "idle"]);
    Ok(())
}

fn run_once(figure: &mut Figure, share: f64, arm: &Arm, round: usize) -> Result<Values> {
    let (plan, [node, clients]) = presets::pair(Rate::MBIT_100);
    let net = plan.build()?;
    let server = figure.start(arm, &net, node, Some(SERVER_CORE))?;
    let (warm_ms, run_ms) = if figure.options.short { (200, 300) } else { (700, 2_000) };
    let seed = round as u64 + 1;
    let gets = CrowdSpec {
        servers: vec![server.addr],
        proto: arm.proto,
        conns: CONNS,
        object_bytes: BYTES,
        objects: 1_000,
        store: true,
        rate_per_s: Some(gets_per_s(share)),
        warm_ms,
        run_ms,
        core: Some(CLIENT_CORE),
        server_pids: vec![server.pid()],
        seed,
    };
    let puts = Spec {
        conns: CONNS / 4,
        keys: 1_000,
        value_bytes: BYTES,
        rate_per_s: Some(gets_per_s(share) * PUTS),
        // The crowd stores its objects first, so the puts begin before its window and end after it.
        warm_ms: warm_ms + 500,
        run_ms: run_ms + 1_000,
        seed,
        ..crate::bench::small(&server, arm.proto, Op::Set)
    };
    let putting = figure.client(&net, clients, "engine", &puts)?;
    std::thread::sleep(Duration::from_millis(50));
    let got = figure.crowd(&net, clients, &gets);
    let put: Outcome = client::finish(putting)?;
    let got: CrowdOutcome = got?;
    Ok(vec![
        ("gets/s", got.replies as f64 / got.seconds),
        ("puts/s", put.ops as f64 / put.seconds),
        ("p50 ms", super::percentile_ms(&got.latencies, 50.0)),
        ("p99 ms", super::p99_ms(&got.latencies)),
        ("put p99 ms", super::p99_ms(&put.latencies)),
        ("unanswered", got.unanswered as f64 + put.unanswered as f64),
    ])
}

fn judge(figure: &mut Figure, share: f64) -> Result<()> {
    let group = group(share);
    for herd in ["herd text", "herd wire"] {
        let ratio = figure.report.ratio(LINE, (&group, herd), (&group, "memcached"), "gets/s");
        figure.report.judge(LINE, format!("gets/s: {group}, {herd} / memcached"), ratio, 0.98, false)?;
    }
    Ok(())
}

fn draw(figure: &mut Figure) -> Result<()> {
    let groups: Vec<(f64, String)> = shares(figure).iter().map(|share| (gets_per_s(*share), group(*share))).collect();
    let title = "Gets and puts of 8 KB, 4 to 1, on 100 Mbit/s";
    let offered = || linear("gets offered per second");
    let mut rate = figure.curves(title, offered(), linear("gets answered per second"), "gets/s", &groups, 1.0);
    let last = gets_per_s(1.0);
    rate.limits.push(("all that is offered".into(), vec![(0.0, 0.0), (last, last)]));
    figure.report.draw("rate", &Chart::Curves(rate))?;
    let y = Axis { label: "99th percentile of a get, ms".into(), quantity: Quantity::Plain, log: true };
    let latency = figure.curves(title, offered(), y, "p99 ms", &groups, 1.0);
    figure.report.draw("latency", &Chart::Curves(latency))
}
