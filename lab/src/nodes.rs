//! A herd of real nodes, on hosts of a pretend network or side by side on loopback, that can be disturbed.
//!
//! Who starts a node is the thread it ends with. A node keeps its number, its name, its directory and its address when
//! it is killed and started again. Used by `histories` and `faults`.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::error::{Context, Error, Result};
use crate::etcd::Etcd;
use crate::net::conditions::Rate;
use crate::net::{HostId, Network, Plan, presets, sandbox};
use crate::peers::server::{Server, free_port};
use crate::sys;

/// The port of a node that has a host to itself.
const PORT: u16 = 7_700;
/// What the nodes of a herd prove to each other.
const SECRET: &str = "6c6162206c6162206c6162206c616220";
/// What was cut off for a while holds the same as the others after so long.
const TOGETHER: Duration = Duration::from_secs(10);
/// A node that was started again has its copies of what a history makes within this.
pub(crate) const WHOLE_AGAIN: Duration = Duration::from_secs(20);
/// A warden has its office again within this, when its etcd serves.
const OFFICE: Duration = Duration::from_secs(30);
/// A node that is told to end has ended within this.
const ENDED: Duration = Duration::from_secs(10);
/// Between two looks at a herd that is to be whole.
const LOOK: Duration = Duration::from_millis(100);
/// Cables of the nodes.
pub(crate) const RATE: Rate = Rate::GBIT_1;
/// Memory of a node, where nothing else is asked for.
pub(crate) const MEMORY: &str = "256m";

/// Hosts for nodes and clients.
pub(crate) struct Hosts {
    pub(crate) net: Network,
    pub(crate) clients: HostId,
    pub(crate) nodes: Vec<HostId>,
}

/// What kind of herd is wanted.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    pub(crate) program: PathBuf,
    /// Nodes at first.
    pub(crate) nodes: usize,
    /// Nodes there is room for: the others come later.
    pub(crate) room: usize,
    /// Copies of each object, if the herd is told.
    pub(crate) replicas: Option<u8>,
    /// Memory of a node.
    pub(crate) memory: &'static str,
    /// Memory of the last of the first nodes, if it has less than the others.
    pub(crate) small: Option<&'static str>,
    /// The etcd that keeps its map, if it does not itself; with hosts, it has the one behind those of the nodes.
    pub(crate) etcd: Option<PathBuf>,
    /// Where logs and the nodes' own directories are.
    pub(crate) dir: PathBuf,
}

/// A herd that runs; its nodes end when it is dropped, before their hosts vanish.
pub(crate) struct Herd {
    nodes: Vec<Mutex<Option<Server>>>,
    /// Of all there is room for.
    places: Vec<SocketAddr>,
    /// `None`: all on loopback.
    etcd: Mutex<Option<Etcd>>,
    pub(crate) hosts: Option<Hosts>,
    shape: Shape,
    /// Of which program each node is; that of the shape unless it was given another.
    programs: Mutex<BTreeMap<usize, PathBuf>>,
}

impl Hosts {
    /// A switch with the clients' host and one for each node. The caller is inside the lab's own namespaces.
    pub(crate) fn build(nodes: usize, rate: Rate) -> Result<Self> {
        let (plan, clients, nodes): (Plan, _, _) = presets::farm(nodes, rate);
        Ok(Self { net: plan.build()?, clients, nodes })
    }

    /// Hosts inside namespaces of our own, so that nothing outlives this run; where they cannot be had, none: then
    /// everything is on loopback, and ends with this process too. Called first, while there is one thread.
    pub(crate) fn own(nodes: usize) -> Result<Option<Self>> {
        match sandbox::enter(false).and_then(|()| Self::build(nodes, RATE)) {
            Err(error) if error.is_lacking() => {
                println!("SKIPPED links that are cut, slow or broken: {error}");
                Ok(None)
            }
            built => built.map(Some),
        }
    }

    /// Of the host of that number.
    pub(crate) fn address(&self, number: usize) -> Ipv4Addr {
        self.net.address(self.nodes[number])
    }
}

impl Herd {
    /// Starts the first nodes, one after the other: the first begins a herd, the others join it.
    pub(crate) fn start(shape: Shape, hosts: Option<Hosts>) -> Result<Self> {
        let place = |number| match &hosts {
            Some(hosts) => Ok(SocketAddr::from((hosts.address(number), PORT))),
            None => free_port(Ipv4Addr::LOCALHOST).map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port))),
        };
        let places = (0..shape.room).map(place).collect::<Result<_>>()?;
        let nodes = (0..shape.room).map(|_| Mutex::new(None)).collect();
        let begin = |program: &PathBuf| Etcd::start(program, &shape.dir.join("etcd"), hosts.as_ref(), shape.room);
        let etcd = shape.etcd.as_ref().map(begin).transpose()?;
        let herd = Self { nodes, places, hosts, etcd: Mutex::new(etcd), shape, programs: Mutex::default() };
        if herd.shape.nodes > 1 && !herd.knows(&["node", "--help"], "--join") {
            let program = herd.shape.program.display();
            return Err(Error::lacking(format!("{program} has no `node --join`: --nodes 1 is what it can do")));
        }
        (0..herd.shape.nodes).try_for_each(|number| herd.start_node(number))?;
        Ok(herd)
    }

    /// The hosts, for another herd after this one has ended.
    pub(crate) fn end(mut self) -> Option<Hosts> {
        self.nodes.clear();
        *lock(&self.etcd) = None;
        self.hosts.take()
    }

    /// Starts a node, anew or for the first time; its log goes on. Where the map is in an etcd that may just have come
    /// back, the warden refuses nodes until it has its office again: then that is tried for a while.
    pub(crate) fn start_node(&self, number: usize) -> Result<()> {
        let begun = Instant::now();
        loop {
            match self.try_to_start(number) {
                Err(_) if self.has_etcd() && begun.elapsed() < OFFICE => thread::sleep(LOOK),
                started => return started,
            }
        }
    }

    /// From its next start on a node is of that program; `None`: of the shape's.
    pub(crate) fn set_program(&self, number: usize, program: Option<&Path>) {
        let mut programs = lock(&self.programs);
        match program {
            Some(program) => drop(programs.insert(number, program.to_owned())),
            None => drop(programs.remove(&number)),
        }
    }

    fn try_to_start(&self, number: usize) -> Result<()> {
        let path = self.shape.dir.join(format!("node-{}.log", number + 1));
        let log = File::options().create(true).append(true).open(&path);
        let log = log.during(|| format!("create {}", path.display()))?;
        let mut command = self.node_command(number)?;
        command.stderr(log);
        let node = Server::announced(command).map_err(|error| {
            let said = fs::read_to_string(&path).unwrap_or_default();
            error.within(&format!("node {}: {}", number + 1, said.trim()))
        })?;
        *lock(&self.nodes[number]) = Some(node);
        Ok(())
    }

    /// Whether an etcd keeps its map.
    pub(crate) fn has_etcd(&self) -> bool {
        lock(&self.etcd).is_some()
    }

    /// Does something with the etcd of this herd; `None`: it has none.
    pub(crate) fn with_etcd<T>(&self, work: impl FnOnce(&mut Etcd, Option<&Hosts>) -> Result<T>) -> Result<Option<T>> {
        let mut etcd = lock(&self.etcd);
        etcd.as_mut().map(|etcd| work(etcd, self.hosts.as_ref())).transpose()
    }

    /// Has a node give all away that it keeps, or no more of it: the command, which ends with this thread.
    pub(crate) fn drain(&self, number: usize, by: usize, cancels: bool) -> Result<Child> {
        let more: &[&str] = if cancels { &["--cancel"] } else { &[] };
        self.order("drain", number, by, more)
    }

    /// Has the herd go on without a node from now on, whatever that alone has: the command, as with `drain`.
    pub(crate) fn detach(&self, number: usize, by: usize) -> Result<Child> {
        self.order("detach", number, by, &["--now", "--yes"])
    }

    /// A subcommand that is about a node, asked of node `by`.
    fn order(&self, subcommand: &str, number: usize, by: usize, more: &[&str]) -> Result<Child> {
        let path = self.shape.dir.join(format!("{subcommand}.log"));
        let log = File::options().create(true).append(true).open(&path);
        let mut command = self.command(by);
        command.args([subcommand, &name_of(number), "--node", &self.places[by].to_string()]).args(more);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(log.during(|| format!("create {}", path.display()))?);
        command.spawn().during(|| format!("start herd {subcommand}"))
    }

    /// Ends a node that has nothing to do any more, and waits until node `by` says that the herd has forgotten it: then
    /// there is a place for another one.
    pub(crate) fn let_go(&self, number: usize, by: usize, patience: Duration) -> Result<()> {
        *lock(&self.nodes[number]) = None;
        let (begun, name) = (Instant::now(), name_of(number));
        loop {
            let status = self.status(by)?;
            if let Some(nodes) = status["nodes"].as_array()
                && nodes.iter().all(|node| node["name"] != *name)
            {
                break;
            }
            if begun.elapsed() > patience {
                return Err(Error::new(format!("{name} has ended for good, and is not forgotten")));
            }
            thread::sleep(LOOK);
        }
        let data = self.data(number);
        fs::remove_dir_all(&data).during(|| format!("remove {}", data.display()))
    }

    /// A node's own directory.
    pub(crate) fn data(&self, number: usize) -> PathBuf {
        self.shape.dir.join(format!("node-{}", number + 1))
    }

    fn node_command(&self, number: usize) -> Result<Command> {
        let Shape { nodes, memory, small, replicas, .. } = &self.shape;
        let memory = small.filter(|_| number + 1 == *nodes).unwrap_or(memory);
        let place = self.places[number].to_string();
        let mut command = self.command(number);
        command.args(["node", "--listen", &place, "--threads", "2", "--memory", memory, "--plain"]);
        command.args(["--log", "warn", "--name", &name_of(number)]);
        command.env("HERD_SECRET", SECRET);
        if let Some(replicas) = replicas.filter(|_| number == 0) {
            command.args(["--replicas", &replicas.to_string()]);
        }
        if let Some(control) = lock(&self.etcd).as_ref().map(Etcd::control).filter(|_| number == 0) {
            command.args(["--control", &control]).env("HERD_ETCD_FORCE", "1");
        }
        if *nodes > 1 {
            let data = self.data(number);
            fs::create_dir_all(&data).during(|| format!("create {}", data.display()))?;
            command.arg("--data").arg(&data);
        }
        if number > 0 {
            command.args(["--join", &self.places[0].to_string()]);
            if self.hosts.is_some() {
                command.args(["--advertise", &place]);
            }
        }
        Ok(command)
    }

    /// Whether each object is at several nodes.
    pub(crate) fn keeps_copies(&self) -> bool {
        self.shape.nodes > 1 && self.shape.replicas != Some(1)
    }

    /// Numbers of the nodes that were started, and not let go.
    pub(crate) fn numbers(&self) -> Vec<usize> {
        (0..self.nodes.len()).filter(|&number| lock(&self.nodes[number]).is_some()).collect()
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.numbers().len()
    }

    /// The number of one more, if there is a place for it.
    pub(crate) fn vacancy(&self) -> Option<usize> {
        (0..self.nodes.len()).find(|&number| lock(&self.nodes[number]).is_none())
    }

    /// The process of a node.
    pub(crate) fn pid(&self, number: usize) -> i32 {
        lock(&self.nodes[number]).as_ref().map_or(0, Server::pid)
    }

    /// Kills a node, in the midst of whatever it does.
    pub(crate) fn kill(&self, number: usize) -> Result<()> {
        let mut node = lock(&self.nodes[number]);
        let Some(node) = node.as_mut() else { return Ok(()) };
        sys::signal(node.pid(), libc::SIGKILL)?;
        while node.alive() {
            thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Has a node end in good order, and waits until it has.
    pub(crate) fn end_node(&self, number: usize) -> Result<()> {
        let mut node = lock(&self.nodes[number]);
        let Some(node) = node.as_mut() else { return Ok(()) };
        sys::signal(node.pid(), libc::SIGTERM)?;
        let begun = Instant::now();
        while node.alive() {
            if begun.elapsed() > ENDED {
                return Err(Error::new(format!("{} has not ended {ENDED:?} after SIGTERM", name_of(number))));
            }
            thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Starts a node again that was killed, on its host, and waits until all copies are there again.
    pub(crate) fn start_again(&self, number: usize) -> Result<()> {
        self.start_node(number)?;
        self.wait_whole(number, WHOLE_AGAIN)
    }

    /// Waits until the herd is whole, as that node sees it.
    pub(crate) fn wait_whole(&self, number: usize, patience: Duration) -> Result<()> {
        let begun = Instant::now();
        while !self.is_whole(number)? {
            if begun.elapsed() > patience {
                let all = "the groups do not take writes, with all their copies,";
                return Err(Error::new(format!("{all} after {patience:?}, as node {} sees it", number + 1)));
            }
            thread::sleep(LOOK);
        }
        Ok(())
    }

    /// Whether each group takes writes and has all its copies, as that node sees it.
    fn is_whole(&self, number: usize) -> Result<bool> {
        let status = self.status(number)?;
        let groups = status["group_list"].as_array().map_or(&[][..], Vec::as_slice);
        let is_whole = |group: &Value| group["stops"].is_null() && group["has"].as_u64() >= group["copies"].as_u64();
        Ok(!groups.is_empty() && groups.iter().all(is_whole))
    }

    /// What `herd status` says by that node; null if nothing.
    pub(crate) fn status(&self, number: usize) -> Result<Value> {
        let mut command = self.command(number);
        let node = self.places[number].to_string();
        let output =
            command.args(["status", "--json", "--node", &node]).output().during(|| "start herd status".into())?;
        Ok(serde_json::from_slice(&output.stdout).unwrap_or_default())
    }

    /// Where the nodes are.
    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        self.numbers().into_iter().map(|number| self.places[number]).collect()
    }

    /// Where a node is, or will be.
    pub(crate) fn place(&self, number: usize) -> SocketAddr {
        self.places[number]
    }

    /// A node's program as a command on its host, which ends with this thread.
    fn command(&self, number: usize) -> Command {
        let programs = lock(&self.programs);
        let program = programs.get(&number).unwrap_or(&self.shape.program);
        if let Some(hosts) = &self.hosts {
            return hosts.net.command(hosts.nodes[number], program);
        }
        let mut command = Command::new(program);
        sys::tie(&mut command, None);
        command
    }

    /// Runs `work` where the clients are.
    pub(crate) fn on_clients<T: Send>(&self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        match &self.hosts {
            Some(hosts) => hosts.net.on(hosts.clients, work),
            None => work(),
        }
    }

    /// An error that names the nodes that have ended.
    pub(crate) fn check_alive(&self) -> Result<()> {
        let is_dead = |number: &usize| lock(&self.nodes[*number]).as_mut().is_some_and(|node| !node.alive());
        let dead = self.numbers().into_iter().filter(is_dead);
        let dead: Vec<String> = dead.map(|number| format!("node {} has ended (see its log)", number + 1)).collect();
        if dead.is_empty() { Ok(()) } else { Err(Error::new(dead.join(", "))) }
    }

    /// Whether a subcommand exits well and what it prints has that word.
    pub(crate) fn knows(&self, arguments: &[&str], word: &str) -> bool {
        let output = Command::new(&self.shape.program).args(arguments).output();
        output.is_ok_and(|out| out.status.success() && String::from_utf8_lossy(&out.stdout).contains(word))
    }

    /// Has the herd compare its copies, where it can: whether it did. What was disturbed is given some time to come
    /// together again: what differs then, differs.
    pub(crate) fn fsck(&self) -> Result<bool> {
        if !self.knows(&["fsck", "--help"], "fsck") {
            return Ok(false);
        }
        let begun = Instant::now();
        loop {
            let mut command = self.command(0);
            let node = self.places[0].to_string();
            let output = command.args(["fsck", "--node", &node]).output().during(|| "start herd fsck".into())?;
            if output.status.success() {
                return Ok(true);
            }
            if begun.elapsed() > TOGETHER {
                let said = [output.stdout, output.stderr].concat();
                let said = String::from_utf8_lossy(&said);
                return Err(Error::new(format!("herd fsck: {}: {}", output.status, said.trim())));
            }
            thread::sleep(Duration::from_millis(500));
        }
    }
}

/// What a node is called.
pub(crate) fn name_of(number: usize) -> String {
    format!("n{}", number + 1)
}

fn lock<T>(it: &Mutex<T>) -> MutexGuard<'_, T> {
    it.lock().unwrap_or_else(PoisonError::into_inner)
}
