//! (hoc-mixed) One node on a 100 Mbit/s link, four gets of 8 KB to each put, both open loop: what is achieved of the
//! load offered, and how long a get takes, from a tenth of what the link carries to 95 % of it. An open loop below what
//! the link carries is answered whole by every server, so what is judged is how long it takes.

use crate::error::Result;
use crate::figure::{Figure, LINE, Stage, linear};
use crate::net::conditions::{PAYLOAD_SHARE, Rate};
use crate::net::presets;
use crate::peers::Load;
use crate::plot::Chart;
use crate::plot::curves::{Axis, Quantity};
use crate::processor::SERVER_CORE;

const BYTES: usize = 8 * 1_024;
const CONNS: usize = 64;
/// A get's 99th percentile, in memcached's.
const P99_MAX: f64 = 1.1;
/// Puts to each get.
const PUTS: f64 = 0.25;
/// Offered gets, in shares of what the link would carry of them alone.
const SHARES: [f64; 6] = [0.1, 0.3, 0.5, 0.7, 0.9, 0.95];
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
    let peers = figure.peers(&["herd text", "herd wire", "memcached", "redis"]);
    for &share in shares(figure) {
        let group = group(share);
        println!("{group}");
        for round in 0..figure.options.rounds {
            let load = Load {
                conns: CONNS,
                object_bytes: BYTES,
                gets_per_s: Some(gets_per_s(share)),
                puts_per_s: Some(gets_per_s(share) * PUTS),
                ..figure.load(1_200, round)
            };
            for peer in crate::run::alternated(&peers, round) {
                figure.take((&group, round), &**peer, stage, &load)?;
            }
        }
        judge(figure, share)?;
    }
    draw(figure)?;
    figure
        .report
        .print_tables(LINE, &["replies/s", "puts/s", "p50 ms", "p99 ms", "put p99 ms", "server cpu us", "idle"]);
    Ok(())
}

fn stage() -> Stage {
    let (plan, [node, clients]) = presets::pair(Rate::MBIT_100);
    Stage { plan, nodes: vec![node], clients, core: Some(SERVER_CORE) }
}

fn judge(figure: &mut Figure, share: f64) -> Result<()> {
    let group = group(share);
    for herd in ["herd text", "herd wire"] {
        let ratio = figure.report.ratio(LINE, (&group, herd), (&group, "memcached"), "p99 ms");
        figure.report.judge(LINE, format!("p99 ms: {group}, {herd} / memcached"), ratio, P99_MAX, true)?;
    }
    Ok(())
}

fn draw(figure: &mut Figure) -> Result<()> {
    let groups: Vec<(f64, String)> = shares(figure).iter().map(|share| (gets_per_s(*share), group(*share))).collect();
    let title = "Gets and puts of 8 KB, 4 to 1, on 100 Mbit/s";
    let offered = || linear("gets offered per second");
    let mut rate = figure.curves(title, offered(), linear("gets answered per second"), "replies/s", &groups, 1.0);
    let last = gets_per_s(1.0);
    rate.limits.push(("all that is offered".into(), vec![(0.0, 0.0), (last, last)]));
    figure.report.draw("rate", &Chart::Curves(rate))?;
    let y = Axis { label: "99th percentile of a get, ms".into(), quantity: Quantity::Plain, log: true };
    let latency = figure.curves(title, offered(), y, "p99 ms", &groups, 1.0);
    figure.report.draw("latency", &Chart::Curves(latency))
}
