//! An etcd in which a herd of the lab keeps its map: one member on a host of its own, that can be killed and stopped.
//!
//! It is one member, so it reads nothing that is old, whatever its version: so it is taken by force.

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::ask;
use crate::error::{Context, Error, Result};
use crate::nodes::Hosts;
use crate::peers::server::free_port;
use crate::sys;

/// It serves within this.
const PATIENCE: Duration = Duration::from_secs(15);
const CLIENT_PORT: u16 = 2_379;
const PEER_PORT: u16 = 2_380;

/// It runs, or was killed; it ends with the thread that started it.
pub(crate) struct Etcd {
    program: PathBuf,
    dir: PathBuf,
    /// For clients, and for other members.
    places: (SocketAddr, SocketAddr),
    /// Number of its host.
    host: usize,
    child: Child,
}

impl Etcd {
    /// Starts it on a host, with files in `dir`.
    pub(crate) fn start(program: &Path, dir: &Path, hosts: Option<&Hosts>, host: usize) -> Result<Self> {
        let places = match hosts {
            Some(hosts) => [CLIENT_PORT, PEER_PORT].map(|port| SocketAddr::from((hosts.address(host), port))),
            None => {
                let one = || free_port(Ipv4Addr::LOCALHOST).map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
                [one()?, one()?]
            }
        };
        let (program, dir, places) = (program.to_owned(), dir.to_owned(), (places[0], places[1]));
        let child = spawn(&program, &dir, places, hosts, host)?;
        let etcd = Self { program, dir, places, host, child };
        etcd.wait(hosts)?;
        Ok(etcd)
    }

    /// As a node is told.
    pub(crate) fn control(&self) -> String {
        format!("etcd://{}", self.places.0)
    }

    pub(crate) fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).expect("pids fit an i32")
    }

    pub(crate) fn kill(&mut self) -> Result<()> {
        self.child.kill().during(|| "kill etcd".into())?;
        self.child.wait().map(drop).during(|| "wait for etcd".into())
    }

    /// Starts it again after it was killed, with what it had.
    pub(crate) fn start_again(&mut self, hosts: Option<&Hosts>) -> Result<()> {
        self.child = spawn(&self.program, &self.dir, self.places, hosts, self.host)?;
        self.wait(hosts)
    }

    fn wait(&self, hosts: Option<&Hosts>) -> Result<()> {
        let begun = Instant::now();
        let look = || ask::page_within(self.places.0, "/health", Duration::from_secs(1));
        loop {
            let said = match hosts {
                Some(hosts) => hosts.net.on(hosts.clients, look),
                None => look(),
            };
            if said.is_ok_and(|said| said.contains("\"true\"")) {
                return Ok(());
            }
            if begun.elapsed() > PATIENCE {
                return Err(Error::new(format!("etcd at {} does not serve: see its log", self.places.0)));
            }
            thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        // It may have been stopped, or killed before.
        let _ = sys::signal(self.pid(), libc::SIGCONT);
        let _ = self.kill();
    }
}

fn spawn(
    program: &Path,
    dir: &Path,
    (clients, peers): (SocketAddr, SocketAddr),
    hosts: Option<&Hosts>,
    host: usize,
) -> Result<Child> {
    let mut command = match hosts {
        Some(hosts) => hosts.net.command(hosts.nodes[host], program),
        None => {
            let mut command = Command::new(program);
            sys::tie(&mut command, None);
            command
        }
    };
    fs::create_dir_all(dir).during(|| format!("create {}", dir.display()))?;
    let path = dir.join("log");
    let log = File::options().create(true).append(true).open(&path).during(|| format!("create {}", path.display()))?;
    let (clients, peers) = (format!("http://{clients}"), format!("http://{peers}"));
    command.arg("--data-dir").arg(dir.join("data")).args(["--logger", "zap", "--log-level", "error"]);
    command.args(["--listen-client-urls", &clients, "--advertise-client-urls", &clients]);
    command.args(["--listen-peer-urls", &peers, "--initial-advertise-peer-urls", &peers]);
    command.args(["--initial-cluster", &format!("default={peers}")]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
    command.spawn().during(|| format!("start {}", program.display()))
}
