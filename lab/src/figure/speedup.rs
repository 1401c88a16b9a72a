//! (hoc-speedup) One to eight nodes on thin links and a client that spreads its keys over them: aggregate bytes/s of
//! 16 KB objects, and hits/s of small ones, against n times one node [HOC, Speedup; Sustained aggregate throughput].

use crate::error::Result;
use crate::figure::{Figure, LINE, Stage, linear};
use crate::net::conditions::Rate;
use crate::net::presets;
use crate::peers::Load;
use crate::plot::Chart;

/// Below this share of idle time the processor may have been the limit: nothing is judged.
const IDLE_MIN: f64 = 0.20;
/// Connections to each node.
const CONNS_PER_NODE: usize = 64;
/// Objects on each node.
const OBJECTS_PER_NODE: usize = 500;

/// A kind of load: name, rate of each node's link, bytes of an object, and what is counted.
#[derive(Clone, Copy)]
struct Kind {
    name: &'static str,
    rate: Rate,
    bytes: usize,
    metric: &'static str,
}

const LOADS: [Kind; 2] = [
    Kind { name: "16 KB on 100 Mbit/s", rate: Rate::MBIT_100, bytes: 16 * 1_024, metric: "MB/s" },
    Kind { name: "512 B on 10 Mbit/s", rate: Rate::MBIT_10, bytes: 512, metric: "replies/s" },
];

fn nodes(figure: &Figure) -> Vec<usize> {
    match (figure.options.short, figure.options.full) {
        (true, _) => vec![1, 2],
        (_, true) => (1..=8).collect(),
        _ => vec![1, 2, 4, 8],
    }
}

fn group(load: Kind, count: usize) -> String {
    format!("{}, {count} {}", load.name, if count == 1 { "node" } else { "nodes" })
}

/// Measures both loads, judges and draws.
pub(super) fn run(figure: &mut Figure) -> Result<()> {
    let peers = figure.peers(&["herd wire", "memcached"]);
    for kind in LOADS {
        println!("{}", kind.name);
        for round in 0..figure.options.rounds {
            for count in nodes(figure) {
                let load = Load {
                    conns: CONNS_PER_NODE * count,
                    object_bytes: kind.bytes,
                    objects: OBJECTS_PER_NODE * count,
                    ..figure.load(1_500, round)
                };
                for peer in crate::run::alternated(&peers, round) {
                    figure.take((&group(kind, count), round), &**peer, || farm(kind.rate, count), &load)?;
                }
            }
        }
        judge(figure, kind)?;
        draw(figure, kind)?;
    }
    figure.report.print_tables(LINE, &["MB/s", "replies/s", "p99 ms", "server cpu us", "idle"]);
    Ok(())
}

fn farm(rate: Rate, count: usize) -> Stage {
    let (plan, clients, nodes) = presets::farm(count, rate);
    Stage { plan, nodes, clients, core: None }
}

/// Each number of nodes against that many times one node, in the same round.
fn judge(figure: &mut Figure, load: Kind) -> Result<()> {
    let one = group(load, 1);
    for count in nodes(figure).into_iter().filter(|count| *count > 1) {
        let many = group(load, count);
        let idle = figure.report.summary(LINE, &many, "herd wire", "idle");
        if idle.is_some_and(|idle| idle.median < IDLE_MIN) {
            println!("  {many}: the processor had too little idle time for a judgement");
            continue;
        }
        let ratio = figure.report.ratio(LINE, (&many, "herd wire"), (&one, "herd wire"), load.metric);
        let each = ratio.map(|ratio| ratio.times(1.0 / count as f64));
        figure.report.judge(LINE, format!("{}: {many}, share of linear", load.metric), each, 0.97, false)?;
    }
    Ok(())
}

fn draw(figure: &mut Figure, load: Kind) -> Result<()> {
    let groups: Vec<(f64, String)> = nodes(figure).into_iter().map(|n| (n as f64, group(load, n))).collect();
    let unit = if load.metric == "MB/s" { "MB/s of objects" } else { "hits/s" };
    let title = format!("Speedup: {}, {CONNS_PER_NODE} connections a node", load.name);
    let mut chart = figure.curves(&title, linear("nodes"), linear(unit), load.metric, &groups, 1.0);
    if let Some(one) = figure.report.summary(LINE, &groups[0].1, "herd wire", load.metric) {
        let last = groups.last().expect("there is at least one node").0;
        chart.limits.push(("linear".into(), vec![(1.0, one.median), (last, last * one.median)]));
    }
    figure.report.draw(if load.metric == "MB/s" { "bytes" } else { "hits" }, &Chart::Curves(chart))
}
