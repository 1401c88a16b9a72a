//! (hoc-speedup) One to eight nodes on thin links and a client that spreads its keys over them: aggregate bytes/s of
//! 16 KB objects, and hits/s of small ones, against n times one node [HOC, Speedup; Sustained aggregate throughput].

use crate::crowd::CrowdSpec;
use crate::error::Result;
use crate::figure::{Arm, Figure, LINE, Values, linear};
use crate::net::Plan;
use crate::net::conditions::Rate;
use crate::plot::Chart;
use crate::report::Summary;

/// Below this share of idle time the processor may have been the limit: nothing is judged.
const IDLE_MIN: f64 = 0.20;
/// Connections to each node.
const CONNS_PER_NODE: usize = 64;
/// Objects on each node.
const OBJECTS_PER_NODE: usize = 500;

/// A kind of load: name, rate of each node's link, bytes of an object, what is counted, and its unit.
#[derive(Clone, Copy)]
struct Load {
    name: &'static str,
    rate: Rate,
    bytes: usize,
    metric: &'static str,
}

const LOADS: [Load; 2] = [
    Load { name: "16 KB on 100 Mbit/s", rate: Rate::MBIT_100, bytes: 16 * 1_024, metric: "MB/s" },
    Load { name: "512 B on 10 Mbit/s", rate: Rate::MBIT_10, bytes: 512, metric: "hits/s" },
];

fn nodes(figure: &Figure) -> Vec<usize> {
    match (figure.options.short, figure.options.full) {
        (true, _) => vec![1, 2],
        (_, true) => (1..=8).collect(),
        _ => vec![1, 2, 4, 8],
    }
}

fn group(load: Load, count: usize) -> String {
    format!("{}, {count} {}", load.name, if count == 1 { "node" } else { "nodes" })
}

/// Measures both loads, judges and draws.
pub(super) fn run(figure: &mut Figure) -> Result<()> {
    let arms: Vec<Arm> = figure.arms().into_iter().filter(|arm| arm.name != "herd text").collect();
    for load in LOADS {
        println!("{}", load.name);
        for round in 0..figure.options.rounds {
            for count in nodes(figure) {
                for arm in crate::bench::rotated(&arms, round) {
                    let group = group(load, count);
                    figure.take((&group, arm.name, round), |figure| run_once(figure, load, count, arm, round))?;
                }
            }
        }
        judge(figure, load)?;
        draw(figure, load)?;
    }
    figure.report.print_tables(LINE, &["MB/s", "hits/s", "p99 ms", "idle"]);
    Ok(())
}

fn run_once(figure: &mut Figure, load: Load, count: usize, arm: &Arm, round: usize) -> Result<Values> {
    let mut plan = Plan::new();
    let site = plan.site();
    let clients = plan.host(site, "clients", Rate::GBIT_1);
    let hosts: Vec<_> = (1..=count).map(|number| plan.host(site, &format!("node{number}"), load.rate)).collect();
    let net = plan.build()?;
    let servers = hosts.iter().map(|host| figure.start(arm, &net, *host, None)).collect::<Result<Vec<_>>>()?;
    let spec = CrowdSpec {
        servers: servers.iter().map(|server| server.addr).collect(),
        proto: arm.proto,
        conns: CONNS_PER_NODE * count,
        object_bytes: load.bytes,
        objects: OBJECTS_PER_NODE * count,
        store: true,
        rate_per_s: None,
        warm_ms: if figure.options.short { 200 } else { 700 },
        run_ms: if figure.options.short { 300 } else { 2_000 },
        core: None,
        server_pids: servers.iter().map(|server| server.pid()).collect(),
        seed: round as u64 + 1,
    };
    let outcome = figure.crowd(&net, clients, &spec)?;
    Ok(vec![
        ("MB/s", outcome.bytes as f64 / outcome.seconds / 1e6),
        ("hits/s", outcome.replies as f64 / outcome.seconds),
        ("p99 ms", super::p99_ms(&outcome.latencies)),
        ("server cpu s", outcome.server_cpu_ns as f64 / 1e9),
    ])
}

/// Each number of nodes against that many times one node, in the same round.
fn judge(figure: &mut Figure, load: Load) -> Result<()> {
    let one = group(load, 1);
    for count in nodes(figure).into_iter().filter(|count| *count > 1) {
        let many = group(load, count);
        let idle = figure.report.summary(LINE, &many, "herd wire", "idle");
        if idle.is_some_and(|idle| idle.median < IDLE_MIN) {
            println!("  {many}: the processor had too little idle time for a judgement");
            continue;
        }
        let ratio = figure.report.ratio(LINE, (&many, "herd wire"), (&one, "herd wire"), load.metric);
        let each = ratio.map(|Summary { median, low, high }| {
            let nodes = count as f64;
            Summary { median: median / nodes, low: low / nodes, high: high / nodes }
        });
        figure.report.judge(LINE, format!("{}: {many}, share of linear", load.metric), each, 0.97, false)?;
    }
    Ok(())
}

fn draw(figure: &mut Figure, load: Load) -> Result<()> {
    let groups: Vec<(f64, String)> = nodes(figure).into_iter().map(|n| (n as f64, group(load, n))).collect();
    let title = format!("Speedup: {}, {CONNS_PER_NODE} connections a node", load.name);
    let mut chart = figure.curves(&title, linear("nodes"), linear(load.metric), load.metric, &groups, 1.0);
    if let Some(one) = figure.report.summary(LINE, &groups[0].1, "herd wire", load.metric) {
        let last = groups.last().expect("there is at least one node").0;
        chart.limits.push(("linear".into(), vec![(1.0, one.median), (last, last * one.median)]));
    }
    figure.report.draw(if load.metric == "MB/s" { "bytes" } else { "hits" }, &Chart::Curves(chart))
}
