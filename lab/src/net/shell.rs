//! `herd-lab shell`: a shell on a host of a pretend network; `herd-lab on HOST` from there to the others.

use std::env;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, ExitCode};

use crate::client;
use crate::error::{Context, Error, Result};
use crate::net::Network;
use crate::net::presets::Preset;
use crate::net::sandbox;
use crate::sys::{self, Mount};

/// `name=namespace` of every host, for `on`.
const HOSTS: &str = "HERD_LAB_HOSTS";

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
    let status = child.status().during(|| format!("run {}", words[0]))?;
    Ok(exit_code(status))
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
    eprintln!("Hosts know each other by name. `herd-lab on HOST COMMAND` runs a command on another.");
    eprintln!("Everything started here ends with this shell.");
}

fn exit_code(status: std::process::ExitStatus) -> ExitCode {
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}
