//! (hoc-throughput) One node and a crowd of clients on one link: net throughput and its share of the line's rate, over
//! message size, number of connections and rate [HOC, Performance figures (1 PE)], beside memcached, nginx and iperf3.

use crate::error::Result;
use crate::figure::{Figure, LINE, Stage, linear};
use crate::net::conditions::{PAYLOAD_SHARE, Rate};
use crate::net::presets;
use crate::peers::{IPERF3, Load, Peer};
use crate::plot::Chart;
use crate::plot::curves::{Axis, Quantity, Star};
use crate::processor::{CLIENT_CORE, SERVER_CORE};

/// Below this share of idle time the processor may have been the limit.
const IDLE_MIN: f64 = 0.15;
/// Herd's doors that are held to the bars.
const JUDGED: [&str; 2] = ["herd text", "herd wire"];
/// Times as many rounds where the processor is the limit.
const BUSY_TIMES: usize = 4;
/// Objects at most.
const OBJECTS_MAX: usize = 2_000;

/// A cell of the grid.
#[derive(Clone, Copy, Debug)]
struct Cell {
    rate: Rate,
    bytes: usize,
    conns: usize,
    /// Share of the ideal that the paper has here.
    paper: Option<f64>,
}

const KB: usize = 1_024;
const MB: usize = 1_024 * KB;

/// The paper's own four rows, a curve over the size for each rate, and single connections.
const CHOSEN: [(Rate, usize, usize, Option<f64>); 11] = [
    (Rate::GBIT_1, MB, 2_048, Some(0.96)),
    (Rate::GBIT_1, 512, 3_072, Some(0.11)),
    (Rate::MBIT_100, 8 * KB, 1_024, Some(0.90)),
    (Rate::MBIT_100, 16 * KB, 1_024, Some(0.90)),
    (Rate::GBIT_1, 8 * KB, 2_048, None),
    (Rate::GBIT_1, 64 * KB, 2_048, None),
    (Rate::MBIT_100, 512, 1_024, None),
    (Rate::MBIT_100, 64 * KB, 1_024, None),
    (Rate::MBIT_100, MB, 1_024, None),
    (Rate::GBIT_1, MB, 1, None),
    (Rate::MBIT_100, 64 * KB, 1, None),
];

fn cells(figure: &Figure) -> Vec<Cell> {
    let cell = |(rate, bytes, conns, paper)| Cell { rate, bytes, conns, paper };
    if figure.options.short {
        return vec![cell((Rate::MBIT_100, 16 * KB, 64, None))];
    }
    let mut cells: Vec<Cell> = CHOSEN.map(cell).into();
    if figure.options.full {
        for rate in [Rate::MBIT_100, Rate::GBIT_1] {
            for bytes in [512, 2 * KB, 8 * KB, 16 * KB, 64 * KB, 256 * KB, MB] {
                let new = |conns: &usize| !CHOSEN.iter().any(|cell| (cell.0, cell.1, cell.2) == (rate, bytes, *conns));
                let conns = [1, 16, 64, 256, 1_024, 2_048, 3_072].into_iter().filter(new);
                cells.extend(conns.map(|conns| cell((rate, bytes, conns, None))));
            }
        }
    }
    cells
}

impl Cell {
    fn name(&self) -> String {
        let size = match self.bytes {
            bytes if bytes >= MB => format!("{} MB", bytes / MB),
            bytes if bytes >= KB => format!("{} KB", bytes / KB),
            bytes => format!("{bytes} B"),
        };
        let rate =
            if self.rate >= Rate::GBIT_1 { "1 Gbit/s".into() } else { format!("{} Mbit/s", self.rate.0 / 1_000_000) };
        format!("{rate}, {size}, {} connections", self.conns)
    }

    /// Distinct objects: as many as are stored in half a second.
    fn objects(&self) -> usize {
        (self.half_second_bytes() / self.bytes).clamp(1, OBJECTS_MAX)
    }

    fn half_second_bytes(&self) -> usize {
        usize::try_from(self.rate.0 / 16).expect("rates are below 2^64 bits a second")
    }

    /// Large objects on many connections all begin at once with ten packets each: what is lost then is long in coming
    /// back, and says nothing of the rate they settle at.
    fn warm_ms(&self, usual_ms: u64) -> u64 {
        if self.conns * self.bytes > self.half_second_bytes() { 3 * usual_ms } else { usual_ms }
    }

    /// What a MB/s is of the line's rate.
    fn share_of_line(&self) -> f64 {
        8e6 / self.rate.0 as f64
    }
}

/// Measures all cells, judges and draws.
pub(super) fn run(figure: &mut Figure) -> Result<()> {
    let peers = figure.peers(&[JUDGED[0], JUDGED[1], "memcached", "nginx", IPERF3]);
    for cell in cells(figure) {
        let group = cell.name();
        println!("{group}");
        for round in 0..figure.options.rounds {
            measure(figure, &cell, &peers, round)?;
        }
        if !figure.options.short && JUDGED.iter().any(|herd| is_busy(figure, &group, herd)) {
            println!("  the processor is the limit here, not the link: its speed varies, and takes more rounds");
            let stores = figure.peers(&[JUDGED[0], JUDGED[1], "memcached"]);
            for round in figure.options.rounds..BUSY_TIMES * figure.options.rounds {
                measure(figure, &cell, &stores, round)?;
            }
        }
        judge(figure, &cell, &group)?;
    }
    draw(figure, Rate::MBIT_100, "100 Mbit/s, 1,024 connections", |cell| cell.conns == 1_024)?;
    draw(figure, Rate::GBIT_1, "1 Gbit/s, 2,048 connections (512 B: 3,072)", |cell| match cell.bytes {
        512 => cell.conns == 3_072,
        _ => cell.conns == 2_048,
    })?;
    figure.report.print_tables(LINE, &["MB/s", "replies/s", "p99 ms", "server cpu us", "idle"]);
    Ok(())
}

/// One round of a cell.
fn measure(figure: &mut Figure, cell: &Cell, peers: &[Box<dyn Peer>], round: usize) -> Result<()> {
    let load = Load {
        conns: cell.conns,
        object_bytes: cell.bytes,
        objects: cell.objects(),
        core: Some(CLIENT_CORE),
        ..figure.load(1_000, round)
    };
    let load = Load { warm_ms: cell.warm_ms(load.warm_ms), ..load };
    for peer in crate::run::alternated(peers, round) {
        figure.take((&cell.name(), round), &**peer, || stage(cell), &load)?;
    }
    Ok(())
}

/// Whether the processor had too little idle time for the link to be what was measured.
fn is_busy(figure: &Figure, group: &str, arm: &str) -> bool {
    figure.report.summary(LINE, group, arm, "idle").is_some_and(|idle| idle.median < IDLE_MIN)
}

fn stage(cell: &Cell) -> Stage {
    let (plan, [node, clients]) = presets::pair(cell.rate);
    Stage { plan, nodes: vec![node], clients, core: Some(SERVER_CORE) }
}

fn judge(figure: &mut Figure, cell: &Cell, group: &str) -> Result<()> {
    for herd in JUDGED {
        let busy = is_busy(figure, group, herd);
        let over = |other: &str| figure.report.ratio(LINE, (group, herd), (group, other), "MB/s");
        let (memcached, stream) = (over("memcached"), over("iperf3"));
        figure.report.judge(LINE, format!("MB/s: {group}, {herd} / memcached"), memcached, 0.98, false)?;
        let share = figure.report.summary(LINE, group, herd, "MB/s").map(|rate| rate.times(cell.share_of_line()));
        if let Some(paper) = cell.paper {
            let stream = stream.filter(|_| !busy);
            figure.report.judge(LINE, format!("MB/s: {group}, {herd} / iperf3"), stream, 0.97, false)?;
            let (what, bar) = (format!("share of line: {group}, {herd}"), paper_bar(paper));
            figure.report.judge(LINE, what, share, bar, false)?;
        }
    }
    Ok(())
}

/// What a cell of the paper asks: its share of the line, but no more than 0.99 of what headers leave of it.
fn paper_bar(paper: f64) -> f64 {
    paper.min(0.99 * PAYLOAD_SHARE)
}

/// Share of the line's rate over the size of the messages.
fn draw(figure: &mut Figure, rate: Rate, title: &str, wanted: impl Fn(&Cell) -> bool) -> Result<()> {
    let mut cells: Vec<Cell> = cells(figure).into_iter().filter(|cell| cell.rate == rate && wanted(cell)).collect();
    cells.sort_by_key(|cell| cell.bytes);
    let (Some(first), Some(last)) = (cells.first(), cells.last()) else { return Ok(()) };
    let ends = [first.bytes as f64, last.bytes as f64];
    let groups: Vec<(f64, String)> = cells.iter().map(|cell| (cell.bytes as f64, cell.name())).collect();
    let x = Axis { label: "message size".into(), quantity: Quantity::Bytes, log: true };
    let y = linear("net throughput, % of the line's rate");
    let title = format!("One node, one link: {title}");
    let mut chart = figure.curves(&title, x, y, "MB/s", &groups, 100.0 * first.share_of_line());
    chart.limits.push(("what headers leave".into(), ends.map(|x| (x, 100.0 * PAYLOAD_SHARE)).into()));
    let star = |cell: &Cell| {
        let share = cell.paper?;
        Some(Star { label: format!("paper: {:.0} %", 100.0 * share), x: cell.bytes as f64, y: 100.0 * share })
    };
    chart.stars = cells.iter().filter_map(star).collect();
    figure.report.draw(if rate == Rate::GBIT_1 { "1g" } else { "100m" }, &Chart::Curves(chart))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_paper_that_had_more_asks_no_less() {
        let bars: Vec<f64> = (1..=100).map(|percent| paper_bar(f64::from(percent) / 100.0)).collect();
        assert!(bars.is_sorted(), "{bars:?}");
        assert_eq!(paper_bar(0.90), 0.90);
        assert!(paper_bar(0.96) > 0.94 && paper_bar(0.96) < PAYLOAD_SHARE);
    }
}
