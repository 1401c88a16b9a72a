//! `herd-lab shell`: a shell on a host of a pretend network; from there `herd-lab on HOST` runs commands on the others,
//! and `herd-lab net` changes the network, by a socket that the lab listens at.

use std::env;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, ExitCode};
use std::thread;

use serde::{Deserialize, Serialize};

use crate::client;
use crate::error::{Context, Error, Result};
use crate::net::Network;
use crate::net::conditions::Rate;
use crate::net::presets::Preset;
use crate::net::sandbox;
use crate::sys::{self, Mount};

/// `name=namespace` of every host, for `on`.
const HOSTS: &str = "HERD_LAB_HOSTS";

/// Where the lab listens for changes: in memory that only this lab sees.
const CHANGES: &str = "/dev/shm/herd-lab-changes";

/// A change of the network that one stands in.
#[derive(Clone, Debug, clap::Subcommand, Serialize, Deserialize)]
pub(crate) enum Change {
    /// Cuts the distance between the sites of two hosts, or pulls one host's cable: all that is under way is lost.
    Cut {
        /// A host.
        host: String,
        /// A host of another site.
        other: Option<String>,
    },
    /// Undoes a cut.
    Heal {
        /// A host.
        host: String,
        /// A host of another site.
        other: Option<String>,
    },
    /// Gives a host's cable a rate, or another one.
    Rate {
        /// The host.
        host: String,
        /// Mbit/s, 1 to 10,000.
        #[arg(value_parser = clap::value_parser!(u64).range(1..=10_000))]
        mbit: u64,
    },
    /// Stops every process of a host in its tracks.
    Pause {
        /// The host.
        host: String,
    },
    /// Lets a paused host's processes run again.
    Resume {
        /// The host.
        host: String,
    },
    /// Kills every process of a host: a power failure.
    Kill {
        /// The host.
        host: String,
    },
    /// Shows what the relay between sites has done: packets delivered, lost, late.
    Counts,
}

/// Builds the network and runs `command` (default: a shell) on its first host; gives its exit status.
pub(crate) fn run(preset: Preset, command: &[String]) -> Result<ExitCode> {
    sandbox::enter(true)?;
    let (plan, first) = preset.plan();
    let net = plan.build()?;
    name_hosts(&net)?;
    let shell = [env::var("SHELL").unwrap_or_else(|_| "/bin/sh".into())];
    let words = if command.is_empty() { &shell[..] } else { command };
    if command.is_empty() {
        welcome(&net);
    }
    let mut child = net.command(first, Path::new(&words[0]));
    child.args(&words[1..]).env(HOSTS, hosts_variable(&net)).env("PATH", path_with_us()?);
    let listener = UnixListener::bind(CHANGES).during(|| format!("listen at {CHANGES}"))?;
    let mut child = child.spawn().during(|| format!("run {}", words[0]))?;
    // It ends with this process, as everything here does.
    thread::spawn(move || serve_changes(net, &listener));
    let status = child.wait().during(|| format!("wait for {}", words[0]))?;
    Ok(exit_code(status))
}

/// Makes the changes that are asked for, one after the other; an answer is empty, or what went wrong, or a report.
fn serve_changes(mut net: Network, listener: &UnixListener) {
    for stream in listener.incoming().flatten() {
        if let Err(error) = serve_change(&mut net, stream) {
            eprintln!("herd-lab: a change of the network: {error}");
        }
    }
}

fn serve_change(net: &mut Network, mut stream: UnixStream) -> Result<()> {
    let mut asked = String::new();
    stream.read_to_string(&mut asked)?;
    let answer: Answer = make(net, &serde_json::from_str(&asked)?).map_err(|error| error.to_string());
    stream.write_all(serde_json::to_string(&answer)?.as_bytes())?;
    Ok(())
}

/// What to print, or what went wrong.
type Answer = std::result::Result<String, String>;

fn make(net: &mut Network, change: &Change) -> Result<String> {
    let done = match change {
        Change::Cut { host, other } => join(net, host, other.as_deref(), false),
        Change::Heal { host, other } => join(net, host, other.as_deref(), true),
        Change::Rate { host, mbit } => net.limit(net.find(host)?, Rate(mbit * 1_000_000)),
        Change::Pause { host } => return signal(net, host, libc::SIGSTOP, "paused"),
        Change::Resume { host } => return signal(net, host, libc::SIGCONT, "resumed"),
        Change::Kill { host } => return signal(net, host, libc::SIGKILL, "killed"),
        Change::Counts => return counts(net),
    };
    done.map(|()| String::new())
}

/// Joins two hosts' sites or cuts what joins them; with one host, plugs its cable in or out.
fn join(net: &mut Network, host: &str, other: Option<&str>, joined: bool) -> Result<()> {
    let one = net.find(host)?;
    let Some(other) = other else { return net.plug(one, joined) };
    let (one, other) = (net.site_of(one), net.site_of(net.find(other)?));
    if joined { net.heal(one, other) } else { net.cut(one, other) }
}

fn signal(net: &Network, host: &str, signal: i32, done: &str) -> Result<String> {
    let sent = net.signal(net.find(host)?, signal)?;
    Ok(format!("{sent} process{} {done}", if sent == 1 { "" } else { "es" }))
}

fn counts(net: &mut Network) -> Result<String> {
    let mut text = String::new();
    for path in net.relay_report()?.paths {
        let (from, to) = (net.name_of_place(path.from), net.name_of_place(path.to));
        let counts = &path.counts;
        let _ = writeln!(
            text,
            "{from} -> {to}: {} packets delivered, {} lost, {} late",
            counts.delivered_packets, counts.lost_packets, counts.late_packets
        );
    }
    Ok(text.trim_end().to_owned())
}

/// Asks the lab that the caller's shell is in for a change.
pub(crate) fn change(change: &Change) -> Result<()> {
    let mut stream =
        UnixStream::connect(CHANGES).map_err(|_| Error::new("`net` works inside `herd-lab shell` only"))?;
    stream.write_all(serde_json::to_string(change)?.as_bytes())?;
    stream.shutdown(Shutdown::Write)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let text = serde_json::from_str::<Answer>(&answer)?.map_err(Error::new)?;
    if !text.is_empty() {
        println!("{text}");
    }
    Ok(())
}

/// Runs `command` on a host of the network that the caller's shell is in.
pub(crate) fn on(host: &str, command: &[String]) -> Result<ExitCode> {
    let hosts = env::var(HOSTS).map_err(|_| Error::new("`on` works inside `herd-lab shell` only"))?;
    let known = || hosts.split(' ').filter_map(|pair| pair.split_once('='));
    let path = known().find(|(name, _)| *name == host).map(|(_, path)| path).ok_or_else(|| {
        let names: Vec<&str> = known().map(|(name, _)| name).collect();
        Error::new(format!("no host {host}; there are: {}", names.join(", ")))
    })?;
    let namespace = File::open(path).during(|| format!("open {path}"))?;
    let mut child = Command::new(&command[0]);
    child.args(&command[1..]);
    sys::in_network(&mut child, namespace.as_raw_fd());
    Err(child.exec()).during(|| format!("run {}", command[0]))
}

/// Makes the hosts' names known to everything in this mount namespace.
fn name_hosts(net: &Network) -> Result<()> {
    let mut text = String::from("127.0.0.1 localhost\n");
    net.hosts().for_each(|(name, address, _)| text += &format!("{address} {name}\n"));
    fs::write("/dev/shm/hosts", text).during(|| "write the hosts' names".into())?;
    sys::mount(Mount::Over(c"/dev/shm/hosts", c"/etc/hosts")).during(|| "mount over /etc/hosts".into())
}

fn hosts_variable(net: &Network) -> String {
    let pairs: Vec<String> = net.hosts().map(|(name, _, path)| format!("{name}={path}")).collect();
    pairs.join(" ")
}

/// So that `herd-lab`, and `herd` beside it, are found by name.
fn path_with_us() -> Result<String> {
    let program = client::program()?;
    let dir = program.parent().expect("a program is in a directory").display().to_string();
    Ok(format!("{dir}:{}", env::var("PATH").unwrap_or_default()))
}

fn welcome(net: &Network) {
    let mut text = String::new();
    for (at, (name, address, _)) in net.hosts().enumerate() {
        let here = if at == 0 { "  you are here" } else { "" };
        let _ = writeln!(text, "  {name:12} {address}{here}");
    }
    eprint!("{text}");
    eprintln!("Hosts know each other by name. `herd-lab on HOST COMMAND` runs a command on another,");
    eprintln!("`herd-lab net --help` says how to cut, slow down, pause and kill.");
    eprintln!("Everything started here ends with this shell.");
}

fn exit_code(status: std::process::ExitStatus) -> ExitCode {
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}
