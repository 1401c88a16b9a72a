//! (adhoc-spread, adhoc-array) One repository over one to eight nodes on thin links: gets of objects by index by
//! clients that have the map, and through one address; then an array that is read and written, as 16 KB objects
//! [AdHoc, Fig. 4]. Redis Cluster beside.

use crate::error::Result;
use crate::figure::{Figure, LINE, Stage, linear};
use crate::net::conditions::Rate;
use crate::net::presets;
use crate::peers::{Load, REDIS_CLUSTER};
use crate::plot::Chart;
use crate::proto::Op;

/// Clients that have the map.
const HERD: &str = "herd";
/// Below this share of idle time the processor may have been the limit: nothing is judged.
const IDLE_MIN: f64 = 0.20;
/// Clients, each with a connection to every node.
const CLIENTS: usize = 8;
/// Bytes of an object, 4,096 numbers of an array of 32-bit ones.
const OBJECT_BYTES: usize = 16 * 1_024;
/// Objects for each node.
const OBJECTS_PER_NODE: usize = 512;
const LINK: Rate = Rate::MBIT_100;

fn nodes(figure: &Figure) -> Vec<usize> {
    match (figure.options.short, figure.options.full) {
        (true, _) => vec![1, 2],
        (_, true) => (1..=8).collect(),
        _ => vec![1, 2, 4, 8],
    }
}

fn group(what: &str, count: usize) -> String {
    format!("{what}, {count} {}", if count == 1 { "node" } else { "nodes" })
}

fn link_mb_s(count: usize) -> f64 {
    count as f64 * LINK.0 as f64 / 8e6
}

/// Gets over one address and over all, against n times one node.
pub(super) fn spread(figure: &mut Figure) -> Result<()> {
    let what = "gets";
    measure(figure, what, Op::Get, &[HERD, "herd, one address", REDIS_CLUSTER])?;
    let one = group(what, 1);
    for count in nodes(figure).into_iter().filter(|count| *count > 1) {
        let many = group(what, count);
        let ratio = figure.report.ratio(LINE, (&many, HERD), (&one, HERD), "MB/s").filter(|_| !is_busy(figure, &many));
        let each = ratio.map(|ratio| ratio.times(1.0 / count as f64));
        figure.report.judge(LINE, format!("{many}: share of linear"), each, 0.97, false)?;
    }
    let title = "Gets of 16 KB objects, nodes on 100 Mbit/s";
    draw(figure, "gets", title, what)?;
    figure.report.print_tables(LINE, &["MB/s", "replies/s", "p99 ms", "server cpu us", "idle"]);
    Ok(())
}

/// An array read and written by all clients, against what the links carry.
pub(super) fn array(figure: &mut Figure) -> Result<()> {
    for (what, op) in [("read", Op::Get), ("write", Op::Set)] {
        measure(figure, what, op, &[HERD, REDIS_CLUSTER])?;
        for count in nodes(figure) {
            let many = group(what, count);
            let rate = figure.report.summary(LINE, &many, HERD, "MB/s").filter(|_| !is_busy(figure, &many));
            let share = rate.map(|rate| rate.times(1.0 / link_mb_s(count)));
            figure.report.judge(LINE, format!("{many}: share of the links"), share, 0.90, false)?;
        }
        draw(figure, what, &format!("An array of 16 KB objects, {what}, nodes on 100 Mbit/s"), what)?;
    }
    figure.report.print_tables(LINE, &["MB/s", "replies/s", "p99 ms", "server cpu us", "idle"]);
    Ok(())
}

fn measure(figure: &mut Figure, what: &str, op: Op, peers: &[&str]) -> Result<()> {
    let peers = figure.peers(peers);
    println!("{what}");
    for round in 0..figure.options.rounds {
        for count in nodes(figure) {
            let load = Load {
                conns: CLIENTS * count,
                op,
                object_bytes: OBJECT_BYTES,
                objects: OBJECTS_PER_NODE * count,
                ..figure.load(1_500, round)
            };
            for peer in crate::run::alternated(&peers, round) {
                figure.take((&group(what, count), round), &**peer, || farm(count), &load)?;
            }
        }
    }
    Ok(())
}

fn farm(count: usize) -> Stage {
    let (plan, clients, nodes) = presets::farm(count, LINK);
    Stage { plan, nodes, clients, core: None }
}

/// Whether the processor had too little idle time for the links to be what was measured.
fn is_busy(figure: &Figure, group: &str) -> bool {
    let busy = figure.report.summary(LINE, group, HERD, "idle").is_some_and(|idle| idle.median < IDLE_MIN);
    if busy {
        println!("  {group}: the processor had too little idle time for a judgement");
    }
    busy
}

fn draw(figure: &mut Figure, file: &str, title: &str, what: &str) -> Result<()> {
    let groups: Vec<(f64, String)> = nodes(figure).into_iter().map(|n| (n as f64, group(what, n))).collect();
    let title = format!("{title}, {CLIENTS} clients");
    let mut chart = figure.curves(&title, linear("nodes"), linear("MB/s of objects"), "MB/s", &groups, 1.0);
    let ends = [nodes(figure)[0], *nodes(figure).last().expect("there is at least one node")];
    chart.limits.push(("the links".into(), ends.map(|count| (count as f64, link_mb_s(count))).into()));
    figure.report.draw(file, &Chart::Curves(chart))
}
