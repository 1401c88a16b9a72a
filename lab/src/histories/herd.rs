//! The herd that histories are made on: real nodes, on hosts of a pretend network or side by side on loopback.

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::error::{Context, Error, Result};
use crate::net::conditions::Rate;
use crate::net::{HostId, Network, Plan, presets};
use crate::peers::server::Server;
use crate::sys;

/// The port of a node that has a host to itself.
const PORT: u16 = 7_700;
/// What the nodes of a herd prove to each other.
const SECRET: &str = "6c6162206c6162206c6162206c616220";
/// What was cut off for a while holds the same as the others after so long.
const TOGETHER: Duration = Duration::from_secs(10);
/// A node that was started again has its copies of what a history makes within this.
const WHOLE_AGAIN: Duration = Duration::from_secs(20);
/// Cables of the nodes.
pub(super) const RATE: Rate = Rate::GBIT_1;

/// Hosts for nodes and clients.
pub(super) struct Hosts {
    pub(super) net: Network,
    pub(super) clients: HostId,
    pub(super) nodes: Vec<HostId>,
}

/// A herd that runs; its nodes end when it is dropped, before their hosts vanish.
pub(super) struct Herd {
    pub(super) nodes: Vec<Mutex<Server>>,
    addresses: Vec<SocketAddr>,
    /// `None`: all on loopback.
    pub(super) hosts: Option<Hosts>,
    program: PathBuf,
    replicas: Option<u8>,
    /// Where logs and the nodes' own directories are.
    dir: PathBuf,
}

impl Hosts {
    /// A switch with the clients' host and one for each node. The caller is inside the lab's own namespaces.
    pub(super) fn build(nodes: usize) -> Result<Self> {
        let (plan, clients, nodes): (Plan, _, _) = presets::farm(nodes, RATE);
        Ok(Self { net: plan.build()?, clients, nodes })
    }
}

impl Herd {
    /// Starts the nodes, one after the other: the first begins a herd, the others join it. Their logs go to `dir`.
    /// `replicas`: copies of each object, if the herd is told.
    pub(super) fn start(
        program: &Path,
        (count, replicas): (usize, Option<u8>),
        hosts: Option<Hosts>,
        dir: &Path,
    ) -> Result<Self> {
        let (nodes, addresses) = (Vec::new(), Vec::new());
        let mut herd = Self { nodes, addresses, hosts, program: program.to_owned(), replicas, dir: dir.to_owned() };
        if count > 1 && !herd.knows(&["node", "--help"], "--join") {
            return Err(Error::lacking(format!(
                "{} has no `node --join`: --nodes 1 is what it can do",
                program.display()
            )));
        }
        for number in 0..count {
            let node = herd.start_one(number, count)?;
            herd.addresses.push(node.addr);
            herd.nodes.push(Mutex::new(node));
        }
        Ok(herd)
    }

    /// Starts one of so many nodes; its log goes on.
    fn start_one(&self, number: usize, count: usize) -> Result<Server> {
        let path = self.dir.join(format!("node-{}.log", number + 1));
        let log = File::options().create(true).append(true).open(&path);
        let log = log.during(|| format!("create {}", path.display()))?;
        let data = self.dir.join(format!("node-{}", number + 1));
        let mut command = self.command(number);
        let listen = self.address(number).map_or_else(|| "127.0.0.1:0".into(), |at| format!("{at}:{PORT}"));
        command.args(["node", "--listen", &listen, "--threads", "2", "--memory", "256m", "--plain"]);
        command.args(["--log", "warn", "--name", &format!("n{}", number + 1)]);
        command.env("HERD_SECRET", SECRET).stderr(log);
        if let Some(replicas) = self.replicas.filter(|_| number == 0) {
            command.args(["--replicas", &replicas.to_string()]);
        }
        if count > 1 {
            fs::create_dir_all(&data).during(|| format!("create {}", data.display()))?;
            command.arg("--data").arg(&data);
        }
        let first = self.addresses.first().filter(|_| number > 0);
        if let (Some(first), Some(own)) = (first, self.address(number)) {
            command.args(["--join", &first.to_string(), "--advertise", &format!("{own}:{PORT}")]);
        } else if let Some(first) = first {
            command.args(["--join", &first.to_string()]);
        }
        Server::announced(command).map_err(|error| {
            let said = fs::read_to_string(&path).unwrap_or_default();
            error.within(&format!("node {}: {}", number + 1, said.trim()))
        })
    }

    /// Whether each object is at several nodes.
    pub(super) fn keeps_copies(&self) -> bool {
        self.nodes.len() > 1 && self.replicas != Some(1)
    }

    /// The process of a node.
    pub(super) fn pid(&self, number: usize) -> i32 {
        lock(&self.nodes[number]).pid()
    }

    /// Kills a node, in the midst of whatever it does.
    pub(super) fn kill(&self, number: usize) -> Result<()> {
        let mut node = lock(&self.nodes[number]);
        sys::signal(node.pid(), libc::SIGKILL)?;
        while node.alive() {
            thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Starts a node again that was killed, on its host, and waits until all copies are there again.
    pub(super) fn start_again(&self, number: usize) -> Result<()> {
        let node = self.start_one(number, self.nodes.len())?;
        *lock(&self.nodes[number]) = node;
        let begun = Instant::now();
        while !self.is_whole(number)? {
            if begun.elapsed() > WHOLE_AGAIN {
                return Err(Error::new(format!("node {} has not all its copies again in time", number + 1)));
            }
            thread::sleep(Duration::from_millis(100));
        }
        Ok(())
    }

    /// Whether each group takes writes and has all its copies, as that node sees it.
    fn is_whole(&self, number: usize) -> Result<bool> {
        let mut command = self.command(number);
        let node = self.addresses[number].to_string();
        let output =
            command.args(["status", "--json", "--node", &node]).output().during(|| "start herd status".into())?;
        let status: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        let groups = status["group_list"].as_array().map_or(&[][..], Vec::as_slice);
        let is_whole = |group: &Value| group["stops"].is_null() && group["has"].as_u64() >= group["copies"].as_u64();
        Ok(!groups.is_empty() && groups.iter().all(is_whole))
    }

    /// Where the nodes are.
    pub(super) fn addresses(&self) -> Vec<SocketAddr> {
        self.addresses.clone()
    }

    fn address(&self, number: usize) -> Option<Ipv4Addr> {
        self.hosts.as_ref().map(|hosts| hosts.net.address(hosts.nodes[number]))
    }

    /// The program as a command on a node's host, which ends with this thread.
    fn command(&self, number: usize) -> Command {
        if let Some(hosts) = &self.hosts {
            return hosts.net.command(hosts.nodes[number], &self.program);
        }
        let mut command = Command::new(&self.program);
        sys::tie(&mut command, None);
        command
    }

    /// Runs `work` where the clients are.
    pub(super) fn on_clients<T: Send>(&self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        match &self.hosts {
            Some(hosts) => hosts.net.on(hosts.clients, work),
            None => work(),
        }
    }

    /// An error that names the nodes that have ended.
    pub(super) fn check_alive(&mut self) -> Result<()> {
        let dead = (0..self.nodes.len()).filter(|&number| !lock(&self.nodes[number]).alive());
        let dead: Vec<String> = dead.map(|number| format!("node {} has ended (see its log)", number + 1)).collect();
        if dead.is_empty() { Ok(()) } else { Err(Error::new(dead.join(", "))) }
    }

    /// Whether a subcommand exits well and what it prints has that word.
    fn knows(&self, arguments: &[&str], word: &str) -> bool {
        let output = Command::new(&self.program).args(arguments).output();
        output.is_ok_and(|out| out.status.success() && String::from_utf8_lossy(&out.stdout).contains(word))
    }

    /// Has the herd compare its copies, where it can: whether it did. What was disturbed is given some time to come
    /// together again: what differs then, differs.
    pub(super) fn fsck(&self) -> Result<bool> {
        if !self.knows(&["fsck", "--help"], "fsck") {
            return Ok(false);
        }
        let begun = Instant::now();
        loop {
            let mut command = self.command(0);
            let node = self.addresses[0].to_string();
            let output = command.args(["fsck", "--node", &node]).output().during(|| "start herd fsck".into())?;
            if output.status.success() {
                return Ok(true);
            }
            if begun.elapsed() > TOGETHER {
                let said = [output.stdout, output.stderr].concat();
                let said = String::from_utf8_lossy(&said);
                return Err(Error::new(format!("herd fsck: {}: {}", output.status, said.trim())));
            }
            std::thread::sleep(Duration::from_millis(500));
        }
    }
}

fn lock(node: &Mutex<Server>) -> MutexGuard<'_, Server> {
    node.lock().unwrap_or_else(PoisonError::into_inner)
}
