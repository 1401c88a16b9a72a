//! `herd-lab check`: whether the pretend network does what it says, measured from within.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use crate::awake::Awake;
use crate::client;
use crate::error::{Context, Error, Result};
use crate::hist::median;
use crate::net::conditions::{DISTANCES, Firewall, PAYLOAD_SHARE, Rate, distance};
use crate::net::{HostId, Network, Plan, SiteId, outer_address, presets, sandbox};
use crate::peers::{IPERF3, Peer, Stream, find_program};
use crate::processor::{self, ATTEMPTS, Processor, STOLEN_MAX};
use crate::relay::{self, Conditions};
use crate::sys;

/// Where the probes listen.
const PORT: u16 = 7_700;
/// Share of packets lost in the check of losses.
const LOSS: f64 = 0.02;
/// No answer within this means that nothing gets through.
const SILENCE: Duration = Duration::from_millis(700);

/// What is checked.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Options {
    /// Shorter, for a machine that may be busy: fewer packets, seconds and hosts. Then nothing may be faster than its
    /// link, and what is slower than it should be is told as BUSY and not held against the network.
    #[arg(long)]
    short: bool,
}

/// One thing that was checked.
struct Finding {
    what: String,
    value: String,
    verdict: Verdict,
}

/// What to think of it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Pass,
    Fail,
    /// Too slow, in the short form: the machine may be the reason.
    Busy,
}

/// A check, in its short form or not.
type Check = fn(bool) -> Result<Vec<Finding>>;

/// Checks everything; true if all is as it should be.
pub(crate) fn run(options: &Options) -> Result<bool> {
    sandbox::enter(false)?;
    let awake = Awake::start()?;
    let checks: [(&str, Check); 8] = [
        ("hosts", many_hosts),
        ("firewalls", firewalls),
        ("a cut", cuts),
        ("round trips", round_trips),
        ("rates", rates),
        ("the relay", relay_speed),
        ("losses", losses),
        ("kill -9", killed),
    ];
    let mut good = true;
    for (name, check) in checks {
        let findings = match undisturbed(name, check, options.short, awake.pid()) {
            Err(error) if error.is_lacking() => {
                println!("SKIP  {name}: {error}");
                continue;
            }
            findings => findings.map_err(|error| error.within(name))?,
        };
        for Finding { what, value, verdict } in findings {
            let word = match verdict {
                Verdict::Pass => "PASS",
                Verdict::Fail => "FAIL",
                Verdict::Busy => "BUSY",
            };
            println!("{word}  {what}: {value}");
            good &= verdict != Verdict::Fail;
        }
    }
    Ok(good)
}

/// A check's findings; in the long form it is made again where something fell short while others had the processor.
fn undisturbed(name: &str, check: Check, short: bool, awake_pid: i32) -> Result<Vec<Finding>> {
    for _ in 1..ATTEMPTS {
        let before = Processor::now(awake_pid)?;
        let findings = check(short)?;
        let stolen = Processor::now(awake_pid)?.since(before).stolen;
        let good = findings.iter().all(|finding| finding.verdict == Verdict::Pass);
        if short || good || stolen <= STOLEN_MAX {
            return Ok(findings);
        }
        println!("again: {name}: {:.0} % of the time was stolen", 100.0 * stolen);
        processor::await_quiet(awake_pid)?;
    }
    check(short)
}

fn finding(what: impl Into<String>, value: impl Into<String>, pass: bool) -> Finding {
    Finding { what: what.into(), value: value.into(), verdict: if pass { Verdict::Pass } else { Verdict::Fail } }
}

/// A finding of something that a busy machine makes slower, but never faster than `possible`.
fn timed(what: impl Into<String>, value: impl Into<String>, pass: bool, possible: bool, short: bool) -> Finding {
    let finding = finding(what, value, pass);
    let busy = short && possible && !pass;
    Finding { verdict: if busy { Verdict::Busy } else { finding.verdict }, ..finding }
}

/// Two sites of one host each.
fn two_sites(conditions: Conditions) -> Result<(Network, [SiteId; 2], [HostId; 2])> {
    let mut plan = Plan::new();
    let ((one, near), (other, far)) = (plan.lone_host("near"), plan.lone_host("far"));
    plan.distance(one, other, conditions);
    Ok((plan.build()?, [one, other], [near, far]))
}

fn many_hosts(short: bool) -> Result<Vec<Finding>> {
    let count = if short { 8 } else { 32 };
    let start = Instant::now();
    let mut plan = Plan::new();
    let site = plan.site();
    let hosts: Vec<HostId> = (0..count).map(|n| plan.host(site, &format!("host{n}"), Rate::MBIT_100)).collect();
    let net = plan.build()?;
    let last = SocketAddr::from((net.address(hosts[count - 1]), PORT));
    let listener = net.on(hosts[count - 1], || TcpListener::bind(last).during(|| "listen on the last host".into()))?;
    let reached = net.on(hosts[0], || Ok(TcpStream::connect_timeout(&last, SILENCE).is_ok()))?;
    drop((listener, net));
    let seconds = start.elapsed().as_secs_f64();
    Ok(vec![finding(
        format!("{count} hosts up and down (bar 10 s)"),
        format!("{seconds:.2} s"),
        seconds < 10.0 && reached,
    )])
}

/// Answers every datagram until told to stop.
fn echo(socket: &UdpSocket, stop: &AtomicBool) {
    let mut buffer = [0; 2_048];
    while !stop.load(SeqCst) {
        if let Ok((len, from)) = socket.recv_from(&mut buffer) {
            socket.send_to(&buffer[..len], from).ok();
        }
    }
}

fn udp(at: Ipv4Addr, port: u16) -> Result<UdpSocket> {
    let socket = UdpSocket::bind((at, port)).during(|| format!("open a socket on {at}"))?;
    socket.set_read_timeout(Some(Duration::from_millis(200)))?;
    Ok(socket)
}

fn round_trips(short: bool) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    for (name, round_trip_us) in DISTANCES {
        let (mut net, _, [near, far]) = two_sites(distance(round_trip_us))?;
        let there = net.on(far, || udp(net.address(far), PORT))?;
        let here = net.on(near, || udp(net.address(near), 0))?;
        here.connect((net.address(far), PORT))?;
        let stop = AtomicBool::new(false);
        let times_ms = thread::scope(|scope| {
            scope.spawn(|| echo(&there, &stop));
            let times = (0..if short { 20 } else { 200 }).map(|_| ping(&here)).collect::<Result<Vec<_>>>();
            stop.store(true, SeqCst);
            times
        })?;
        let (median_ms, wanted_ms) = (median(&times_ms), round_trip_us as f64 / 1e3);
        let bar_ms = (0.05 * wanted_ms).max(0.15);
        let what = format!("round trip {name}, {wanted_ms} ms (within {bar_ms:.2} ms)");
        let possible = median_ms >= wanted_ms - bar_ms;
        let pass = (median_ms - wanted_ms).abs() <= bar_ms;
        findings.push(timed(what, format!("{median_ms:.3} ms"), pass, possible, short));
        findings.extend(lateness(&mut net, name, short)?);
    }
    Ok(findings)
}

/// A finding, a bad one, if the relay was late with more than one packet in twenty: it lacked the processor.
fn lateness(net: &mut Network, what: &str, short: bool) -> Result<Option<Finding>> {
    let share = net.late_share()?;
    let value = format!("{:.1} % of the packets over 1 ms late: this machine is too busy for it", 100.0 * share);
    Ok((share > relay::LATE_MAX).then(|| timed(format!("punctual at {what}"), value, false, true, short)))
}

/// Milliseconds of one round trip.
fn ping(socket: &UdpSocket) -> Result<f64> {
    thread::sleep(Duration::from_millis(3));
    let start = Instant::now();
    socket.send(&[1; 56])?;
    socket.recv(&mut [0; 64]).during(|| "wait for an echo".into())?;
    Ok(start.elapsed().as_secs_f64() * 1e3)
}

fn rates(short: bool) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    for rate in [Rate::MBIT_10, Rate::MBIT_100, Rate::GBIT_1] {
        let (plan, [one, two]) = presets::pair(rate);
        let cable = plan.build()?;
        findings.push(rate_of(&cable, one, two, rate, "cable", short)?);
        if rate == Rate::MBIT_100 {
            // The same cable slowed down while it is there, and its own count of what it carried.
            cable.limit(two, Rate::MBIT_10)?;
            let before = cable.link_bytes(two)?.0;
            findings.push(rate_of(&cable, one, two, Rate::MBIT_10, "slowed cable", short)?);
            let carried = (cable.link_bytes(two)?.0 - before) as f64;
            // A second more than is measured, and headers both ways.
            let filled = Rate::MBIT_10.0 as f64 / 8.0 * (seconds(short) + 1) as f64;
            let value = format!("{:.2} MB, {:.2} of its rate", carried / 1e6, carried / filled);
            let (pass, possible) = ((0.8..1.3).contains(&(carried / filled)), carried / filled < 1.3);
            findings.push(timed("the cable counted them", value, pass, possible, short));
        }
        drop(cable);
        let mut far = distance(1_000);
        far.rate_bits_s = Some(rate.0);
        let (mut net, _, [near, far]) = two_sites(far)?;
        findings.push(rate_of(&net, near, far, rate, "distance", short)?);
        findings.extend(lateness(&mut net, "that rate", short)?);
    }
    Ok(findings)
}

/// What the relay itself can carry: one stream without a rate over 20 ms. In the short form the processor is not ours.
fn relay_speed(short: bool) -> Result<Vec<Finding>> {
    if short {
        return Ok(Vec::new());
    }
    let (net, _, [near, far]) = two_sites(distance(20_000))?;
    let stream = Stream::new(IPERF3.into());
    let server = stream.start(&net, near, None)?;
    let gbit_s = stream.bits_per_s(&net, far, &server, seconds(short))? / 1e9;
    let what = "one TCP stream over 20 ms as fast as it goes (at least 6 Gbit/s)";
    Ok(vec![finding(what, format!("{gbit_s:.2} Gbit/s"), gbit_s >= 6.0)])
}

/// How long a stream is measured.
fn seconds(short: bool) -> u64 {
    if short { 1 } else { 6 }
}

fn rate_of(net: &Network, from: HostId, to: HostId, rate: Rate, what: &str, short: bool) -> Result<Finding> {
    let wanted = rate.0 as f64 * PAYLOAD_SHARE / 1e6;
    let stream = Stream::new(IPERF3.into());
    let server = stream.start(net, from, None)?;
    let found = stream.bits_per_s(net, to, &server, seconds(short))? / 1e6;
    let megabits = rate.0 / 1_000_000;
    let value = format!("{found:.2} Mbit/s, {:.3} of {wanted:.2}", found / wanted);
    let pass = (found / wanted - 1.0).abs() <= 0.05;
    // In one second, what the buffers give shows.
    let possible = found / wanted <= 1.25;
    Ok(timed(format!("one TCP stream, {what} of {megabits} Mbit/s (within 5 %)"), value, pass, possible, short))
}

fn losses(short: bool) -> Result<Vec<Finding>> {
    let packets: u64 = if short { 20_000 } else { 120_000 };
    let (mut net, _, [near, far]) = two_sites(Conditions { loss: LOSS, ..distance(1_000) })?;
    let there = net.on(far, || udp(net.address(far), PORT))?;
    let here = net.on(near, || udp(net.address(near), 0))?;
    here.connect((net.address(far), PORT))?;
    let received = AtomicU64::new(0);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut buffer = [0; 256];
            while there.recv(&mut buffer).is_ok() {
                received.fetch_add(1, SeqCst);
            }
        });
        // In small lots, so that no socket's buffer overflows and is taken for the link.
        for packet in 0..packets {
            here.send(&[2; 200])?;
            if packet % 20 == 0 {
                thread::sleep(Duration::from_micros(500));
            }
        }
        Ok::<_, Error>(())
    })?;
    let share = 1.0 - received.load(SeqCst) as f64 / packets as f64;
    let close = |share: f64, tolerance: f64| (share / LOSS - 1.0).abs() <= tolerance;
    // What the relay says it drew, from fewer packets in the short form; a busy receiver loses more.
    let counts = &net.relay_report()?.paths[0].counts;
    let drawn = counts.lost_packets as f64 / counts.offered_packets.max(1) as f64;
    let what = format!("loss of {LOSS} over {packets} packets (within 10 %)");
    let value = format!("{share:.5} at the receiver, {drawn:.5} drawn");
    let possible = close(drawn, 0.25);
    Ok(vec![timed(what, value, close(share, 0.1) && close(drawn, 0.1), possible, short)])
}

fn cuts(short: bool) -> Result<Vec<Finding>> {
    let (mut net, [one, other], [near, far]) = two_sites(distance(6_000))?;
    let sites =
        cut_and_heal(&mut net, near, far, |net, cut| if cut { net.cut(one, other) } else { net.heal(one, other) })?;
    let (plan, [near, far]) = presets::pair(Rate::MBIT_100);
    let mut net = plan.build()?;
    let cable = cut_and_heal(&mut net, near, far, |net, cut| net.plug(far, !cut))?;
    let told = |what: &str, (last_ms, healed): (f64, bool)| {
        let value =
            format!("last packet {last_ms:.2} ms after it, {}", if healed { "then healed" } else { "NOT healed" });
        let pass = last_ms <= 10.0 && healed;
        timed(format!("a cut {what} stops all (within 10 ms) and heals"), value, pass, healed, short)
    };
    Ok(vec![told("between sites", sites), told("of a cable", cable)])
}

/// Sends a datagram every millisecond across a cut; gives when the last came after the cut was asked for, in ms (0:
/// none), and whether some came once it was healed.
fn cut_and_heal(
    net: &mut Network,
    near: HostId,
    far: HostId,
    mut cut: impl FnMut(&mut Network, bool) -> Result<()>,
) -> Result<(f64, bool)> {
    let there = net.on(far, || udp(net.address(far), PORT))?;
    let here = net.on(near, || udp(net.address(near), 0))?;
    here.connect((net.address(far), PORT))?;
    let (stop, start) = (AtomicBool::new(false), Instant::now());
    let last_us = AtomicU64::new(0);
    let elapsed_us = || start.elapsed().as_micros() as u64;
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(SeqCst) {
                if there.recv(&mut [0; 64]).is_ok() {
                    last_us.store(elapsed_us(), SeqCst);
                }
            }
        });
        scope.spawn(|| {
            while !stop.load(SeqCst) {
                here.send(&[3; 32]).ok();
                thread::sleep(Duration::from_millis(1));
            }
        });
        let result = (|| {
            thread::sleep(Duration::from_millis(200));
            if last_us.load(SeqCst) == 0 {
                return Err(Error::new("nothing arrives before the cut"));
            }
            let asked_us = elapsed_us();
            cut(net, true)?;
            thread::sleep(Duration::from_millis(300));
            let last_ms = last_us.load(SeqCst).saturating_sub(asked_us) as f64 / 1e3;
            cut(net, false)?;
            let healed_us = elapsed_us();
            thread::sleep(Duration::from_millis(1_500));
            Ok((last_ms, last_us.load(SeqCst) > healed_us))
        })();
        stop.store(true, SeqCst);
        result
    })
}

fn firewalls(_: bool) -> Result<Vec<Finding>> {
    let mut plan = Plan::new();
    let (open, lone, site, private) = (plan.site(), plan.site(), plan.site(), plan.site());
    let outside = plan.host(open, "outside", None);
    let alone = plan.host(lone, "alone", None);
    let inside = plan.host(site, "inside", None);
    plan.host(site, "beside", None);
    let hidden = plan.host(private, "hidden", None);
    plan.firewall(lone, Firewall::Outbound(Vec::new()));
    plan.firewall(site, Firewall::Outbound(vec![PORT]));
    plan.firewall(private, Firewall::Private(vec![(PORT, 0)]));
    for to in [lone, site, private] {
        plan.distance(open, to, distance(1_000));
    }
    let net = plan.build()?;
    let at = |host: HostId, port: u16| SocketAddr::from((net.address(host), port));
    let through = SocketAddr::from((outer_address(private), PORT));
    let expected = [
        ("a host that only calls out reaches others", alone, at(outside, PORT), true),
        ("and cannot be dialled", outside, at(alone, PORT), false),
        ("a site that only calls out reaches others", inside, at(outside, PORT), true),
        ("its one open port can be dialled", outside, at(inside, PORT), true),
        ("and no other", outside, at(inside, PORT + 1), false),
        ("a private host reaches others", hidden, at(outside, PORT), true),
        ("its own address cannot be dialled", outside, at(hidden, PORT), false),
        ("the port that leads to it can", outside, through, true),
    ];
    let mut listeners = Vec::new();
    for host in [outside, alone, inside, hidden] {
        for port in [PORT, PORT + 1] {
            let address = at(host, port);
            listeners.push(net.on(host, || TcpListener::bind(address).during(|| format!("listen on {address}")))?);
        }
    }
    let mut findings = Vec::new();
    for (what, from, to, wanted) in expected {
        let reached = net.on(from, || dial(to))?;
        findings.push(finding(what, if reached { "reached" } else { "not reached" }, reached == wanted));
    }
    Ok(findings)
}

fn dial(to: SocketAddr) -> Result<bool> {
    match TcpStream::connect_timeout(&to, SILENCE) {
        Ok(_) => Ok(true),
        Err(error) if matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::ConnectionRefused) => Ok(false),
        Err(error) if matches!(error.kind(), ErrorKind::NetworkUnreachable | ErrorKind::HostUnreachable) => Ok(false),
        Err(error) => Err(error).during(|| format!("dial {to}")),
    }
}

/// A lab in this lab is killed while traffic runs in it; a moment later nothing of it may be there.
fn killed(_: bool) -> Result<Vec<Finding>> {
    if find_program("iperf3").is_none() {
        return Err(Error::lacking("start iperf3 (Debian: iperf3)"));
    }
    let before = Seen::now()?;
    let program = client::program()?;
    let mut command = std::process::Command::new(program);
    command.args(["shell", "sites", "--", "sh", "-c", "iperf3 -s -D; herd-lab on there1 iperf3 -t 60 -c here1"]);
    command.env_remove(sandbox::INSIDE).stdout(Stdio::null()).stderr(Stdio::null());
    let mut lab = command.spawn().during(|| "start a lab in this lab".into())?;
    thread::sleep(Duration::from_millis(2_500));
    let during = Seen::now()?;
    sys::signal(i32::try_from(lab.id()).expect("pids fit an i32"), libc::SIGKILL)?;
    lab.wait()?;
    let killed = Instant::now();
    while Seen::now()? != before && killed.elapsed() < Duration::from_secs(5) {
        thread::sleep(Duration::from_millis(5));
    }
    let (after, took_ms) = (Seen::now()?, killed.elapsed().as_millis());
    let value = format!(
        "{} of {} processes, {} of {} namespaces left after {took_ms} ms",
        after.processes - before.processes,
        during.processes - before.processes,
        after.networks - before.networks,
        during.networks - before.networks
    );
    let ran = during.processes > before.processes + 3 && during.networks > before.networks + 3;
    Ok(vec![finding("a lab killed in the middle of a run leaves nothing", value, ran && after == before)])
}

/// What a killed lab could leave: processes, network namespaces, devices here, mounts here.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    processes: usize,
    networks: usize,
    devices: usize,
    mounts: usize,
}

impl Seen {
    fn now() -> Result<Self> {
        let lines = |path: &str| {
            Ok::<_, Error>(std::fs::read_to_string(path).during(|| format!("read {path}"))?.lines().count())
        };
        let entries = std::fs::read_dir("/proc").during(|| "list /proc".into())?;
        let pids: Vec<String> = entries
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .filter(|name| name.parse::<u32>().is_ok() && !is_zombie(name))
            .collect();
        let mut networks: Vec<_> = pids.iter().flat_map(|pid| networks_of(pid)).collect();
        networks.sort();
        networks.dedup();
        Ok(Self {
            processes: pids.len(),
            networks: networks.len(),
            devices: lines("/proc/net/dev")?,
            mounts: lines("/proc/self/mountinfo")?,
        })
    }
}

/// Whether a process has ended and only waits for its parent, here this check, to ask how.
fn is_zombie(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_none_or(|(_, rest)| rest.starts_with(" Z"))
}

/// The network namespaces that a process is in or holds open.
fn networks_of(pid: &str) -> Vec<String> {
    let link = |path: std::path::PathBuf| std::fs::read_link(path).ok()?.into_os_string().into_string().ok();
    let open = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten();
    let held = open.filter_map(|entry| link(entry.ok()?.path()));
    let own = link(format!("/proc/{pid}/ns/net").into());
    held.chain(own).filter(|name| name.starts_with("net:[")).collect()
}
