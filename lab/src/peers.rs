//! The servers that are measured, as processes: start, address, pid, stop. Nothing outlives a [`Server`].

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use crate::error::{Context, Error, Result};
use crate::proto::{Op, Proto};
use crate::sys;

/// A server that does not serve within this has failed.
const START_PATIENCE: Duration = Duration::from_secs(10);
/// A server that does not end within this after SIGTERM is killed.
const STOP_PATIENCE: Duration = Duration::from_secs(6);

/// Which server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Herd,
    Memcached,
    Redis,
    Pogocache,
    /// Fixed replies to small requests.
    Null(Proto, Op),
    /// Large bodies from and to one resident buffer.
    NullBulk,
}

/// A server and where its program is.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    pub(crate) kind: Kind,
    pub(crate) program: PathBuf,
}

/// How a server is started; the same for all arms of a comparison.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    /// Server threads.
    pub(crate) threads: usize,
    /// Memory for objects.
    pub(crate) memory_mib: u64,
    /// Largest object memcached takes.
    pub(crate) item_max_mib: u64,
    /// Herd evicts instead of refusing.
    pub(crate) evict: bool,
    /// Core to stay on.
    pub(crate) core: Option<usize>,
    /// Address of the pretend host whose namespace [`Peer::start`] is called in: the server ends with the lab's
    /// namespaces. `None`: loopback, and it ends with the thread that starts it.
    pub(crate) host: Option<Ipv4Addr>,
    /// Bytes of a null server's value.
    pub(crate) value_bytes: usize,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            threads: 1,
            memory_mib: 1_024,
            item_max_mib: 1,
            evict: false,
            core: Some(0),
            host: None,
            value_bytes: 256,
        }
    }
}

/// A running server; stopped when dropped.
pub(crate) struct Server {
    child: Child,
    /// Where it listens.
    pub(crate) addr: SocketAddr,
    /// The command line, without the program's path.
    pub(crate) options: String,
}

impl Peer {
    /// A peer by its program's path.
    pub(crate) fn new(kind: Kind, program: impl Into<PathBuf>) -> Self {
        Self { kind, program: program.into() }
    }

    /// Starts it and waits until it serves.
    pub(crate) fn start(&self, setup: &Setup) -> Result<Server> {
        let address = setup.host.unwrap_or(Ipv4Addr::LOCALHOST);
        let port = if self.announces() { 0 } else { free_port(address)? };
        let arguments = self.arguments(setup, port);
        let mut command = Command::new(&self.program);
        command.args(&arguments).stdin(Stdio::null()).stderr(Stdio::null());
        command.stdout(if self.announces() { Stdio::piped() } else { Stdio::null() });
        match setup.host {
            Some(_) => sys::pinned(&mut command, setup.core),
            None => sys::tie(&mut command, setup.core),
        }
        let child = command.spawn().during(|| format!("start {}", self.program.display()))?;
        let addr = SocketAddr::from((address, port));
        let mut server = Server { child, addr, options: arguments.join(" ") };
        let ready = if self.announces() { server.await_line() } else { server.await_port() };
        ready.map_err(|error| Error::new(format!("{} {}: {error}", self.program.display(), server.options)))?;
        Ok(server)
    }

    /// True for those that print `ready ADDRESS`.
    fn announces(&self) -> bool {
        matches!(self.kind, Kind::Herd | Kind::Null(..) | Kind::NullBulk)
    }

    fn arguments(&self, setup: &Setup, port: u16) -> Vec<String> {
        let Setup { threads, memory_mib, item_max_mib, value_bytes, .. } = setup;
        let address = setup.host.unwrap_or(Ipv4Addr::LOCALHOST);
        let line = match self.kind {
            Kind::Herd => {
                let evict = if setup.evict { " --evict" } else { "" };
                let plain = if setup.host.is_some() { " --plain" } else { "" };
                format!("node --listen {address}:0 --threads {threads} --memory {memory_mib}m{evict}{plain}")
            }
            Kind::Memcached => {
                let user = if sys::effective_ids().0 == 0 { " -u root" } else { "" };
                let fixed = "-U 0 -c 19000 -b 8192";
                format!("-l {address} {fixed} -p {port} -t {threads} -m {memory_mib} -I {item_max_mib}m{user}")
            }
            Kind::Redis => {
                let fixed = "--protected-mode no --appendonly no --maxclients 19000 --tcp-backlog 8192 --daemonize no";
                format!(
                    "--bind {address} --port {port} {fixed} --io-threads {threads} --maxmemory {memory_mib}mb --save"
                )
            }
            Kind::Pogocache => {
                let fixed = "--maxconns 19000 --backlog 8192";
                format!("-h {address} {fixed} -p {port} --threads {threads} --maxmemory {memory_mib}M")
            }
            Kind::Null(proto, op) => {
                let proto = if proto == Proto::Herd { "herd" } else { "memcached" };
                format!("null-server --proto {proto} --op {} --value-bytes {value_bytes}", op.name())
            }
            Kind::NullBulk => "null-bulk".to_owned(),
        };
        let mut words: Vec<String> = line.split_ascii_whitespace().map(str::to_owned).collect();
        if self.kind == Kind::Redis {
            words.push(String::new());
        }
        words
    }

    /// Its own word on what it is, one line.
    pub(crate) fn version(&self) -> String {
        let output = Command::new(&self.program).arg("--version").stdin(Stdio::null()).output();
        match output {
            Ok(output) => {
                let text = String::from_utf8_lossy(&output.stdout);
                text.lines().next().unwrap_or("unknown").trim().to_owned()
            }
            Err(error) => format!("unknown ({error})"),
        }
    }
}

fn free_port(address: Ipv4Addr) -> Result<u16> {
    Ok(TcpListener::bind((address, 0))?.local_addr()?.port())
}

impl Server {
    /// Its process.
    pub(crate) fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).expect("pids fit an i32")
    }

    /// The options as a record: alike for all starts of one arm.
    pub(crate) fn options_without_port(&self) -> String {
        self.options.replace(&self.addr.port().to_string(), "PORT")
    }

    /// Waits for `ready ADDRESS` among the lines of stdout, and goes on draining them.
    fn await_line(&mut self) -> Result<()> {
        let stdout = self.child.stdout.take().expect("its stdout is piped");
        let (found, ready) = mpsc::sync_channel(1);
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(std::io::Result::ok) {
                if let Some(addr) = line.strip_prefix("ready ").and_then(|rest| rest.trim().parse().ok()) {
                    // The receiver takes one address; later lines are read only so that the pipe never fills.
                    let _ = found.try_send(addr);
                }
            }
        });
        let line = ready.recv_timeout(START_PATIENCE);
        self.addr = line.map_err(|_| Error::new("printed no `ready ADDRESS` within 10 s"))?;
        Ok(())
    }

    fn await_port(&mut self) -> Result<()> {
        let start = Instant::now();
        while start.elapsed() < START_PATIENCE {
            if TcpStream::connect(self.addr).is_ok() {
                return Ok(());
            }
            if let Some(status) = self.child.try_wait()? {
                return Err(Error::new(format!("ended at once: {status}")));
            }
            thread::sleep(Duration::from_millis(20));
        }
        Err(Error::new("does not accept connections after 10 s"))
    }

    /// True while the process runs.
    pub(crate) fn alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if !self.alive() || sys::signal(self.pid(), libc::SIGTERM).is_err() {
            return;
        }
        let start = Instant::now();
        while self.alive() && start.elapsed() < STOP_PATIENCE {
            thread::sleep(Duration::from_millis(10));
        }
        if self.alive() {
            // It ignored SIGTERM; both calls can fail only if it has ended meanwhile.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Path of a program on PATH, if it is there.
pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(name)).find(|file| fs::metadata(file).is_ok_and(|m| m.is_file()))
}
