//! `herd node`: checks, starts, waits for a signal, hands over what the node leads, stops.

use crate::args::{Level, NodeArgs};
use crate::exit::{Failure, Outcome, REFUSED, USAGE};
use crate::values::{Control, date, node_name};
use crate::{machine, out};
use herd_core::limits::{CONNECTIONS_MAX, COPIES_BUILT};
use herd_core::size;
use herd_core::warden::Hex;
use herd_core::wire::Secret;
use herd_node::{Config, Entry, Node, StartError, StartWitness, control};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use signal_hook::consts::{SIGINT, SIGTERM};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Descriptors kept for anything but connections and loops; half of them where there are few.
const SPARE_DESCRIPTORS: u64 = 64;
/// Descriptors of a loop: its poller, twice, what wakes it, its ticks, its alarm, and the three it lends with.
const LOOP_DESCRIPTORS: u64 = 8;
/// How often the log tells of shed connections, if there were any.
const REPORT_EVERY: Duration = Duration::from_secs(10);

pub(crate) fn run(args: &NodeArgs) -> Outcome {
    herd_node::abort_on_panic();
    check_replicas("node", args.replicas)?;
    check_replicas_of_join(args)?;
    check_control_of_join(args)?;
    check_data(args.data.as_deref())?;
    let config = config(args)?;
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT] {
        signal_hook::flag::register(signal, stop.clone()).map_err(Failure::local("signals"))?;
    }
    end_with_keeper();
    let (start, memory_bytes) = (start_line(&config), config.memory_bytes);
    let log = Log { level: args.log };
    let entry = entry(args, &config, &log)?;
    let node = Node::start_in_herd(config, &entry).map_err(|error| not_started(args, &error))?;
    let addrs: Vec<String> = node.addrs().iter().map(ToString::to_string).collect();
    log.info(&format!("{start}, on {}", addrs.join(", ")));
    if let Some(text) = too_much(memory_bytes, machine::memory_bytes()) {
        log.warn(&text);
    }
    out::print(addrs.iter().map(|addr| format!("ready {addr}\n")).collect::<String>())?;
    wait(&node, &stop, &log);
    // From here on another signal says that it is not to wait for others.
    let is_ended = node.is_told_to_end();
    let (is_told, since) = (stop.swap(false, Relaxed) || is_ended, Instant::now());
    if is_ended {
        log.warn("it was told to end, by `herd detach`: it is taken out of the herd");
    }
    let outcast = node.outcast().filter(|_| !is_told).map(outcast);
    match (is_told, &outcast) {
        (true, _) => node.leave(|| stop.load(Relaxed), |line| log.info(line)),
        (false, None) => log.error("an event loop has ended by itself; the node stops"),
        (false, Some(_)) => {}
    }
    let result = node.stop_after(since.elapsed()).map_err(Failure::local("stopping"));
    log.info("stopped");
    result.and(outcast.map_or(Ok(()), Err))
}

/// Said as the process ends because the herd does without it.
fn outcast(why: &str) -> Failure {
    let text = format!("node: the herd goes on without this process; {why}: start the node again, and it joins anew");
    Failure::new(REFUSED, text)
}

/// A node that a keeper has ends with it, however that ends.
fn end_with_keeper() {
    #[cfg(target_os = "linux")]
    if std::env::var_os(crate::up::KEPT).is_some() {
        // Without it the node only lives on when its keeper is killed.
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM)).ok();
    }
}

/// What a node tells while it runs: lines on stderr with time and level.
#[derive(Clone, Copy)]
struct Log {
    level: Level,
}

impl Log {
    fn error(&self, text: &str) {
        self.line(Level::Error, "error", text);
    }

    fn warn(&self, text: &str) {
        self.line(Level::Warn, "warn", text);
    }

    fn info(&self, text: &str) {
        self.line(Level::Info, "info", text);
    }

    fn line(&self, level: Level, word: &str, text: &str) {
        if level <= self.level {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
            out::tell(format!("{} {word}: {text}", date(now as i64)));
        }
    }
}

/// Said of a bound that the machine can't keep.
fn too_much(memory_bytes: u64, machine_bytes: u64) -> Option<String> {
    let (memory, machine) = (size::show(memory_bytes), size::show(machine_bytes));
    let text = || format!("--memory {memory} is more than the {machine} this machine or its control group has");
    (memory_bytes > machine_bytes).then(text)
}

/// Until a signal comes, a loop ends, or the herd goes on without this process; tells of shed connections now and then.
fn wait(node: &Node, stop: &AtomicBool, log: &Log) {
    let step = Duration::from_millis(50);
    let (mut told, mut since) = (0, Duration::ZERO);
    let is_over = || node.has_ended() || node.is_told_to_end() || node.outcast().is_some();
    while !stop.load(Relaxed) && !is_over() {
        std::thread::sleep(step);
        since += step;
        if since >= REPORT_EVERY {
            let shed = node.shed();
            if shed > told {
                log.warn(&format!("shed {} connections that were too slow or too many", shed - told));
            }
            (told, since) = (shed, Duration::ZERO);
        }
    }
}

fn config(args: &NodeArgs) -> Result<Config, Failure> {
    if let Some(open) = args.listen.iter().find(|addr| !addr.ip().is_loopback() && !args.plain) {
        let text = format!(
            "{open} is beyond loopback and this version has no TLS: add --plain on a network you trust, \
             or listen on 127.0.0.1"
        );
        return Err(Failure::new(USAGE, text));
    }
    let memory = args.memory.unwrap_or_else(|| machine::memory_bytes() / 2);
    let threads = args.threads.map_or_else(|| std::thread::available_parallelism().map_or(1, usize::from), usize::from);
    Ok(Config {
        listen: args.listen.clone(),
        name: name(args)?,
        memory_bytes: memory,
        threads,
        evict: args.evict,
        object_max_bytes: args.max_object,
        memcached_max_bytes: args.memcached_max_value,
        plain: args.plain,
        debug_time: std::env::var_os("HERD_DEBUG_TIME").is_some_and(|value| value == "1"),
        connections_max: connections_max(raise_descriptors(), threads)?,
        build: format!("herd {}", crate::BUILD),
    })
}

/// The node's name: the one it was given, or its host's.
fn name(args: &NodeArgs) -> Result<String, Failure> {
    let name = args.name.clone().unwrap_or_else(machine::name);
    let bad =
        |why| Failure::new(USAGE, format!("the host's name '{}': {why}: give --name", out::shown(name.as_bytes())));
    node_name(&name).map_err(bad)
}

/// What it is told of the herd.
fn entry(args: &NodeArgs, config: &Config, log: &Log) -> Result<Entry, Failure> {
    let private = config.listen.iter().all(|addr| addr.ip().is_loopback());
    let secret = match (secret()?, private) {
        // Who reaches it is on this machine.
        (None, true) => Some(Secret([0; 16])),
        (secret, _) => secret,
    };
    if secret.is_none() && !args.join.is_empty() {
        let text = "a node that listens beyond loopback needs the herd's secret to join: set HERD_SECRET, 32 hex \
                    digits, to that of the other nodes";
        return Err(Failure::new(USAGE, text));
    }
    if secret.is_none() {
        log.info("no HERD_SECRET: it serves clients, and no other node can join it");
    }
    let host = args.host.clone().unwrap_or_else(machine::name);
    let log = *log;
    Ok(Entry {
        join: args.join.clone(),
        place: control::place(args.data.as_deref(), &config.name, |name| std::env::var_os(name)),
        lasts: args.data.is_some(),
        etcd: etcd(args, &log),
        forced: forced_etcd(),
        advertise: args.advertise.clone(),
        machine: machine::name(),
        host,
        rack: args.rack.clone(),
        copies: args.replicas,
        secret,
        witness: witness(&config.name),
        tell: Arc::new(move |text| log.warn(text)),
    })
}

/// How it starts the process that tells of this one's end, where the system has what that needs.
fn witness(name: &str) -> Option<StartWitness> {
    #[cfg(target_os = "linux")]
    return Some(crate::witness::starter(name));
    #[cfg(not(target_os = "linux"))]
    return Some(name).and(None);
}

/// The secret that the nodes of the herd share.
fn secret() -> Result<Option<Secret>, Failure> {
    let Some(text) = std::env::var_os("HERD_SECRET").filter(|text| !text.is_empty()) else { return Ok(None) };
    let bad = || Failure::new(USAGE, "HERD_SECRET is not 32 hex digits: make one with `openssl rand -hex 16`");
    let hex = text.to_str().and_then(|text| Hex::try_from(text.to_owned()).ok()).ok_or_else(bad)?;
    Ok(Some(Secret(hex.0)))
}

/// An error if a command asks for more copies than this version keeps.
pub(crate) fn check_replicas(command: &str, asked: Option<u8>) -> Outcome {
    let Some(copies) = asked.filter(|copies| *copies > COPIES_BUILT) else { return Ok(()) };
    let text = format!("'{command} --replicas {copies}' is not in this version, which keeps up to {COPIES_BUILT}");
    Err(Failure::new(USAGE, text))
}

/// An error if what is to be a directory is something else.
pub(crate) fn check_data(data: Option<&Path>) -> Outcome {
    let Some(path) = data.filter(|path| path.exists() && !path.is_dir()) else { return Ok(()) };
    Err(Failure::new(USAGE, format!("{} is a file, not a directory: give another --data", path.display())))
}

/// An error if a node that joins is told how many copies to keep: its herd knows.
fn check_replicas_of_join(args: &NodeArgs) -> Outcome {
    let Some(copies) = args.replicas.filter(|_| !args.join.is_empty()) else { return Ok(()) };
    let text = format!(
        "node --join --replicas {copies}: how many copies a herd keeps is told to its first node when it begins: leave \
         --replicas out"
    );
    Err(Failure::new(USAGE, text))
}

/// An error if a node that joins is told of an etcd.
fn check_control_of_join(args: &NodeArgs) -> Outcome {
    if args.join.is_empty() || matches!(args.control, Control::Embedded) {
        return Ok(());
    }
    let text = "'node --join' with '--control etcd://' is not in this version: only the herd's first node can use it";
    Err(Failure::new(USAGE, text))
}

/// The etcd it was told of.
fn etcd(args: &NodeArgs, log: &Log) -> Option<control::etcd::Address> {
    let Control::Etcd(address) = &args.control else { return None };
    let forced = forced_etcd();
    if forced {
        log.warn("HERD_ETCD_FORCE=1: an etcd is accepted whose version may answer reads with old data");
    }
    Some(address.clone().forced(forced))
}

/// Whether an etcd is taken whose version may read what is no longer so.
pub(crate) fn forced_etcd() -> bool {
    std::env::var_os("HERD_ETCD_FORCE").is_some_and(|value| value == "1")
}

/// Why a node does not start, and what to do.
fn not_started(args: &NodeArgs, error: &StartError) -> Failure {
    let code = if error.is_usage() { USAGE } else { REFUSED };
    match error {
        StartError::Machine(error) => Failure::new(code, hint(args, error)),
        StartError::Begin(error) => Failure::new(code, format!("node: {error}")),
        StartError::Join(error) => Failure::new(code, format!("node --join: {error}")),
    }
}

/// Connections that so many descriptors allow.
fn connections_max(descriptors: u64, threads: usize) -> Result<u64, Failure> {
    let spare = SPARE_DESCRIPTORS.min(descriptors / 2) + LOOP_DESCRIPTORS * threads as u64;
    let most = descriptors.saturating_sub(spare).min(CONNECTIONS_MAX);
    let text =
        || format!("{descriptors} open files are too few for a node of {threads} threads: raise the limit (ulimit -n)");
    if most > 0 { Ok(most) } else { Err(Failure::new(USAGE, text())) }
}

fn start_line(config: &Config) -> String {
    let security = if config.plain { "plain (no TLS, no authentication)" } else { "open on loopback" };
    format!(
        "{} node '{}': memory {}, {}, {security}",
        config.build,
        config.name,
        size::show(config.memory_bytes),
        if config.threads == 1 { "1 thread".into() } else { format!("{} threads", config.threads) }
    )
}

/// What to do about a node that does not start.
fn hint(args: &NodeArgs, error: &std::io::Error) -> String {
    let listen: Vec<String> = args.listen.iter().map(ToString::to_string).collect();
    match error.kind() {
        std::io::ErrorKind::AddrInUse => {
            // Who starts a herd with `up` chooses by another option.
            let option = if std::env::var_os(crate::up::KEPT).is_some() { "--port" } else { "--listen" };
            format!("{} is taken: stop what listens there, or choose another with {option}", listen.join(", "))
        }
        _ => format!("node on {}: {error}", listen.join(", ")),
    }
}

/// Raises the limit on open descriptors as far as it goes; gives it.
fn raise_descriptors() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let most = limit.maximum.unwrap_or(1 << 20);
    // Where it can't be raised, the present limit holds.
    match setrlimit(Resource::Nofile, Rlimit { current: Some(most), maximum: limit.maximum }) {
        Ok(()) => most,
        Err(_) => limit.current.unwrap_or(1024),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_above_the_machine_s_memory_is_told() {
        assert_eq!(too_much(1 << 30, 1 << 30), None);
        let told = too_much(100 << 30, 23 << 30).expect("too much");
        assert!(told.contains("100.0 GiB") && told.contains("23.0 GiB"), "{told}");
    }
}
