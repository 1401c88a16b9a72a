//! Redis Cluster's arm: three masters without replicas get a fourth one, which `redis-cli` gives its share of the
//! slots, under the same load.

use std::net::SocketAddr;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use crate::ask::redis;
use crate::caller::Caller;
use crate::error::{Context, Error, Result};
use crate::faults::redis::Client;
use crate::figure::elastic::{
    FOREGROUND, LINK, NODES, OBJECT_BYTES, PATIENCE, Story, THREADS, beside, keep, objects, quiet, seconds, stretch,
};
use crate::figure::{Figure, LINE};
use crate::foreground::{Crew, Foreground};
use crate::nodes::Hosts;
use crate::peers::server::{Kind, Program, Server, Setup, free_port};
use crate::peers::spread::make_redis_cluster;
use crate::peers::{REDIS_CLUSTER, find_program};
use crate::sys;

/// The new master is known to all within this.
const KNOWN: Duration = Duration::from_secs(30);

/// Measures it; `rate_per_s` are the requests each second that Herd was asked.
pub(super) fn run(figure: &mut Figure, rate_per_s: Option<f64>) -> Result<Story> {
    let lacking = |name: &str| Error::lacking(format!("no {name} (Debian: redis-server)"));
    let program = figure.options.programs.path("redis").ok_or_else(|| lacking("redis-server"))?;
    let cli = find_program("redis-cli").ok_or_else(|| lacking("redis-cli"))?;
    let program = Program::new(Kind::RedisMember, program);
    let hosts = Hosts::build(NODES + 1, LINK)?;
    let (mut servers, mut buses) = (Vec::new(), Vec::new());
    for number in 0..=NODES {
        let (server, bus) = start(&program, &hosts, number)?;
        figure.report.options(REDIS_CLUSTER, &server.options_without_port())?;
        servers.push(server);
        buses.push(bus);
    }
    let on_clients = |work: &(dyn Fn() -> Result<()> + Sync)| hosts.net.on(hosts.clients, work);
    on_clients(&|| make_redis_cluster(&servers[..NODES], &buses[..NODES]))?;
    let addresses: Vec<SocketAddr> = servers.iter().map(|server| server.addr).collect();
    let caller = Caller::Redis(Client::new(addresses[..NODES].to_vec(), NODES, PATIENCE, 1));
    let usual = FOREGROUND * NODES as f64 * LINK.0 as f64 / 8.0 / OBJECT_BYTES as f64;
    let foreground = Foreground::new(objects(figure), OBJECT_BYTES, rate_per_s.unwrap_or(usual));
    on_clients(&|| foreground.fill(&caller))?;
    println!("redis cluster: {} objects of 64 KiB are stored", objects(figure));
    let crews = [Crew { callers: vec![caller], threads: 2 * THREADS, share: 1.0 }];
    let run = || {
        on_clients(&|| {
            foreground.run(&crews, 1);
            Ok(())
        })
    };
    let story = beside(
        run,
        || foreground.end(),
        || {
            let (pause, begun_ns) = (quiet(figure), sys::monotonic_ns());
            let before = stretch(figure, &foreground, || {
                thread::sleep(pause);
                Ok(None)
            })?;
            keep(figure, &foreground, (REDIS_CLUSTER, "before"), &before, &[])?;
            let mut marks = vec![(sys::monotonic_ns(), "Redis: 4th master".to_owned())];
            let join = stretch(figure, &foreground, || {
                on_clients(&|| meet(&addresses, buses[0]))?;
                let from_ns = sys::monotonic_ns();
                let mut command = hosts.net.command(hosts.clients, &cli);
                let first = addresses[0].to_string();
                command.args(["--cluster", "rebalance", &first, "--cluster-use-empty-masters", "--cluster-yes"]);
                let output = command.stdin(Stdio::null()).output().during(|| "run redis-cli".into())?;
                if !output.status.success() {
                    let said = String::from_utf8_lossy(&output.stdout);
                    let last = said.lines().rev().take(3).collect::<Vec<_>>().join("; ");
                    return Err(Error::new(format!("redis-cli --cluster rebalance: {}: {last}", output.status)));
                }
                Ok(Some((from_ns, sys::monotonic_ns())))
            })?;
            marks.push((join.to_ns, "Redis: has its share".to_owned()));
            keep(figure, &foreground, (REDIS_CLUSTER, "join"), &join, &[])?;
            thread::sleep(pause / 2);
            Ok(Story { arm: REDIS_CLUSTER, begun_ns, marks, seconds: seconds(&foreground, begun_ns) })
        },
    )?;
    let ratio = figure.report.ratio(LINE, ("join", REDIS_CLUSTER), ("before", REDIS_CLUSTER), "p99 ms");
    let (requests, failed, wrong) = foreground.counts();
    let times = ratio.map_or("?".into(), |ratio| format!("{:.1}", ratio.median));
    println!(
        "beside: redis cluster: {failed} of {requests} requests failed, {wrong} wrong; p99 {times}x while slots move"
    );
    Ok(story)
}

fn start(program: &Program, hosts: &Hosts, number: usize) -> Result<(Server, u16)> {
    let address = hosts.address(number);
    hosts.net.on(hosts.nodes[number], || {
        let bus_port = free_port(address)?;
        let setup = Setup { memory_mib: 2_048, host: Some(address), core: None, bus_port, ..Setup::default() };
        Ok((program.start(&setup)?, bus_port))
    })
}

/// Has the last of the servers meet the others, and waits until all know of it.
fn meet(servers: &[SocketAddr], bus: u16) -> Result<()> {
    let (first, last) = (servers[0], servers[servers.len() - 1]);
    redis(last, &["CLUSTER", "MEET", &first.ip().to_string(), &first.port().to_string(), &bus.to_string()])?;
    let begun = Instant::now();
    let known = format!("cluster_known_nodes:{}\r\n", servers.len());
    let knows_all = |server: &SocketAddr| {
        let info = redis(*server, &["CLUSTER", "INFO"])?;
        Ok(info.contains(&known) && info.contains("cluster_state:ok"))
    };
    while !servers.iter().map(knows_all).collect::<Result<Vec<bool>>>()?.into_iter().all(|knows| knows) {
        if begun.elapsed() > KNOWN {
            return Err(Error::new("the Redis Cluster does not know its fourth master in time"));
        }
        thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}
