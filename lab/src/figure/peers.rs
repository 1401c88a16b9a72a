//! (peers) Every peer that is here, loaded alike: gets of 512 B objects over 1 Gbit/s, as fast as replies come. What
//! each gives and costs, and whether it works at all.

use crate::error::Result;
use crate::figure::{Figure, LINE, Stage};
use crate::net::conditions::Rate;
use crate::net::presets;
use crate::peers::{IPERF3, Load, STORES};
use crate::plot::{Bar, Chart};
use crate::processor::{CLIENT_CORE, SERVER_CORE};

const GROUP: &str = "512 B, 64 connections, 1 Gbit/s";
const BYTES: usize = 512;

/// Measures all and draws.
pub(super) fn run(figure: &mut Figure) -> Result<()> {
    let names: Vec<&str> = STORES.iter().map(|store| store.name).chain([IPERF3]).collect();
    let peers = figure.peers(&names);
    for round in 0..figure.options.rounds {
        let load = Load { object_bytes: BYTES, core: Some(CLIENT_CORE), ..figure.load(1_000, round) };
        for peer in crate::run::alternated(&peers, round) {
            figure.take((GROUP, round), &**peer, stage, &load)?;
        }
    }
    let bar = |name: &&str| {
        let cpu = figure.report.summary(LINE, GROUP, name, "server cpu us")?;
        Some(Bar { arm: (*name).to_owned(), median: cpu.median, low: cpu.low, high: cpu.high })
    };
    let bars = names.iter().filter_map(bar).collect();
    let (title, unit) = ("Server CPU per get".into(), "microseconds of server CPU per request".into());
    figure.report.draw("cpu", &Chart::Bars { title, unit, groups: vec![(GROUP.into(), bars)] })?;
    figure.report.print_tables(LINE, &["MB/s", "replies/s", "p50 ms", "p99 ms", "server cpu us", "server peak MiB"]);
    Ok(())
}

fn stage() -> Stage {
    let (plan, [node, clients]) = presets::pair(Rate::GBIT_1);
    Stage { plan, nodes: vec![node], clients, core: Some(SERVER_CORE) }
}
