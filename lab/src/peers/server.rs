//! Servers as processes: how each program is started, and its address, pid and end. Nothing outlives a [`Server`].

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{LazyLock, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use crate::error::{Context, Error, Result};
use crate::processor::CLIENT_CORE;
use crate::proto::{Op, Proto};
use crate::spec::Spec;
use crate::sys;

/// A server that does not serve within this has failed.
const START_PATIENCE: Duration = Duration::from_secs(10);
/// A server that does not end within this after SIGTERM is killed.
const STOP_PATIENCE: Duration = Duration::from_secs(6);

/// There where the system has huge pages.
const HUGE_PAGES: &str = "/sys/kernel/mm/transparent_hugepage/enabled";

/// Which server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Herd,
    /// A node of a herd that spreads over hosts.
    HerdMember,
    /// With these options beside the usual ones.
    Memcached(&'static str),
    Redis,
    /// A node of a Redis Cluster, whose slots and peers it is told later.
    RedisMember,
    Pogocache,
    /// Files of memory, put by its DAV module.
    Nginx,
    /// One member, its log in memory.
    Etcd,
    /// Fixed replies to small requests.
    Null {
        proto: Proto,
        op: Op,
        plain: bool,
    },
    /// Large bodies from and to one resident buffer.
    NullBulk {
        checked: bool,
        plain: bool,
    },
}

impl Kind {
    /// Its program's name, as of the Debian command; our own for null servers.
    pub(crate) fn program(self) -> &'static str {
        match self {
            Self::Herd | Self::HerdMember => "herd",
            Self::Memcached(_) => "memcached",
            Self::Redis | Self::RedisMember => "redis",
            Self::Pogocache => "pogocache",
            Self::Nginx => "nginx",
            Self::Etcd => "etcd",
            Self::Null { .. } | Self::NullBulk { .. } => "herd-lab",
        }
    }

    /// True for those that print `ready ADDRESS`.
    fn announces(self) -> bool {
        matches!(self, Self::Herd | Self::HerdMember | Self::Null { .. } | Self::NullBulk { .. })
    }

    /// True for those that need a directory of their own.
    fn keeps_files(self) -> bool {
        matches!(self, Self::Nginx | Self::Etcd | Self::Herd | Self::HerdMember | Self::RedisMember)
    }
}

/// A server's program and where it is.
#[derive(Clone, Debug)]
pub(crate) struct Program {
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
    /// Largest object memcached takes, and Herd through its protocol.
    pub(crate) item_max_mib: u64,
    /// Herd evicts instead of refusing.
    pub(crate) evict: bool,
    /// Core to stay on.
    pub(crate) core: Option<usize>,
    /// Address of the pretend host whose namespace [`Program::start`] is called in: the server ends with the lab's
    /// namespaces. `None`: loopback, and it ends with the thread that starts it.
    pub(crate) host: Option<Ipv4Addr>,
    /// Bytes of a null server's value.
    pub(crate) value_bytes: usize,
    /// A node of the herd that this one joins; none: it begins one.
    pub(crate) join: Option<SocketAddr>,
    /// Copies of each object in the herd that it begins.
    pub(crate) replicas: u8,
    /// Port of a Redis Cluster's bus.
    pub(crate) bus_port: u16,
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
            join: None,
            replicas: 1,
            bus_port: 0,
        }
    }
}

/// What the nodes of the lab's herds prove to each other that they know.
const SECRET: &str = "6865726420616e64206974732070656e";

/// A running server; stopped when dropped.
pub(crate) struct Server {
    pub(super) child: Child,
    /// Where it listens.
    pub(crate) addr: SocketAddr,
    /// The command line, without the program's path.
    pub(crate) options: String,
    /// Its files, which go after it.
    pub(super) _scratch: Option<Scratch>,
}

/// A directory of memory; removed when dropped.
pub(crate) struct Scratch {
    dir: PathBuf,
}

impl Scratch {
    /// A new one.
    fn new() -> Result<Self> {
        static MADE: AtomicUsize = AtomicUsize::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let dir = PathBuf::from(format!("/dev/shm/herd-lab-{}-{number}", std::process::id()));
        fs::create_dir_all(&dir).during(|| format!("create {}", dir.display()))?;
        Ok(Self { dir })
    }

    fn write(&self, name: &str, text: &str) -> Result<()> {
        let path = self.dir.join(name);
        fs::write(&path, text).during(|| format!("write {}", path.display()))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Inside the lab's namespaces it would vanish anyway.
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// nginx as a store of files: it takes them by PUT and gives them by sendfile. One worker needs no second process.
fn nginx_conf(setup: &Setup, addr: SocketAddr, scratch: &Scratch) -> String {
    let dir = scratch.dir.display();
    let master = if setup.threads == 1 { "off" } else { "on" };
    let Setup { threads, item_max_mib, .. } = setup;
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|what| format!("    {what}_temp_path {dir}/{what};\n"))
        .concat();
    format!(
        "daemon off;\nmaster_process {master};\nworker_processes {threads};\npid {dir}/pid;\n\
         events {{ worker_connections 19000; }}\n\
         http {{\n    access_log off;\n    sendfile on;\n    keepalive_requests 1000000000;\n{temporary}\
         \x20   client_max_body_size {item_max_mib}m;\n\
         \x20   server {{\n        listen {addr} backlog=8192;\n        root {dir};\n\
         \x20       location / {{ dav_methods PUT; create_full_put_path on; }}\n    }}\n}}\n"
    )
}

impl Program {
    /// A server by its program's path.
    pub(crate) fn new(kind: Kind, program: impl Into<PathBuf>) -> Self {
        Self { kind, program: program.into() }
    }

    /// Starts it and waits until it serves.
    pub(crate) fn start(&self, setup: &Setup) -> Result<Server> {
        let address = setup.host.unwrap_or(Ipv4Addr::LOCALHOST);
        let port = if self.kind.announces() { 0 } else { free_port(address)? };
        let addr = SocketAddr::from((address, port));
        let scratch = if self.kind.keeps_files() { Some(Scratch::new()?) } else { None };
        let arguments = self.arguments(setup, addr, scratch.as_ref());
        let mut command = Command::new(&self.program);
        command.args(&arguments).stdin(Stdio::null()).stderr(Stdio::null());
        command.stdout(if self.kind.announces() { Stdio::piped() } else { Stdio::null() });
        match (self.kind, &scratch) {
            (Kind::Nginx, Some(scratch)) => scratch.write("nginx.conf", &nginx_conf(setup, addr, scratch))?,
            // Away from the user's own, whose herd it would go on with.
            (Kind::Herd, Some(scratch)) => drop(command.env("XDG_STATE_HOME", &scratch.dir)),
            (Kind::HerdMember, _) => drop(command.env("HERD_SECRET", SECRET)),
            (Kind::Etcd, _) => drop(command.env("GOMAXPROCS", setup.threads.to_string())),
            _ => (),
        }
        match setup.host {
            Some(_) => sys::pinned(&mut command, setup.core),
            None => sys::tie(&mut command, setup.core),
        }
        let child = command.spawn().during(|| format!("start {}", self.program.display()))?;
        let mut server = Server { child, addr, options: arguments.join(" "), _scratch: scratch };
        let ready = if self.kind.announces() { server.await_line() } else { server.await_port() };
        ready.map_err(|error| Error::new(format!("{} {}: {error}", self.program.display(), server.options)))?;
        Ok(server)
    }

    fn arguments(&self, setup: &Setup, addr: SocketAddr, scratch: Option<&Scratch>) -> Vec<String> {
        let Setup { threads, memory_mib, item_max_mib, value_bytes, .. } = setup;
        let (address, port) = (addr.ip(), addr.port());
        let dir = scratch.map(|scratch| scratch.dir.display().to_string()).unwrap_or_default();
        let line = match self.kind {
            Kind::Herd => {
                let evict = if setup.evict { " --evict" } else { "" };
                let plain = if setup.host.is_some() { " --plain" } else { "" };
                let item =
                    if *item_max_mib > 1 { format!(" --memcached-max-value {item_max_mib}m") } else { String::new() };
                format!("node --listen {address}:0 --threads {threads} --memory {memory_mib}m{item}{evict}{plain}")
            }
            Kind::HerdMember => {
                let name = dir.rsplit('/').next().unwrap_or_default();
                let begun = || format!(" --replicas {}", setup.replicas);
                let herd = setup.join.map_or_else(begun, |addr| format!(" --join {addr}"));
                let more = format!("--memory {memory_mib}m --plain --data {dir} --name {name}{herd}");
                format!("node --listen {address}:0 --threads {threads} {more}")
            }
            Kind::Memcached(more) => {
                // Where the system has no huge pages memcached refuses to start with -L.
                let lacks = |option: &str| option == "-L" && !Path::new(HUGE_PAGES).exists();
                let more: String = more.split(' ').filter(|option| !lacks(option)).map(|o| format!(" {o}")).collect();
                let user = if sys::effective_ids().0 == 0 { " -u root" } else { "" };
                let fixed = "-U 0 -c 19000 -b 8192";
                format!("-l {address} {fixed} -p {port} -t {threads} -m {memory_mib} -I {item_max_mib}m{user}{more}")
            }
            Kind::Redis | Kind::RedisMember => {
                let cluster = match self.kind {
                    Kind::RedisMember => {
                        format!(" --cluster-enabled yes --dir {dir} --cluster-port {}", setup.bus_port)
                    }
                    _ => String::new(),
                };
                let fixed = "--protected-mode no --appendonly no --maxclients 19000 --tcp-backlog 8192 --daemonize no";
                let memory = format!("--maxmemory {memory_mib}mb{cluster}");
                format!("--bind {address} --port {port} {fixed} --io-threads {threads} {memory} --save")
            }
            Kind::Pogocache => {
                let fixed = "--maxconns 19000 --backlog 8192";
                format!("-h {address} {fixed} -p {port} --threads {threads} --maxmemory {memory_mib}M")
            }
            Kind::Nginx => format!("-e stderr -p {dir} -c {dir}/nginx.conf"),
            Kind::Etcd => {
                let urls = format!("--listen-client-urls http://{addr} --advertise-client-urls http://{addr}");
                format!("{urls} --data-dir {dir} --logger zap --log-level error")
            }
            Kind::Null { proto, op, plain } => {
                let proto = if proto == Proto::Herd { "herd" } else { "memcached" };
                let plain = if plain { " --plain" } else { "" };
                format!("null-server --proto {proto} --op {} --value-bytes {value_bytes}{plain}", op.name())
            }
            Kind::NullBulk { checked, plain } => {
                let option = |given, name| if given { name } else { "" };
                format!("null-bulk {} {}", option(checked, "--checked"), option(plain, "--plain"))
            }
        };
        let mut words: Vec<String> = line.split_ascii_whitespace().map(str::to_owned).collect();
        if matches!(self.kind, Kind::Redis | Kind::RedisMember) {
            words.push(String::new());
        }
        words
    }
}

/// A program's own word on what it is, one line.
pub(crate) fn version(program: &Path) -> String {
    let said = |flag: &str| {
        let output = Command::new(program).arg(flag).stdin(Stdio::null()).output().ok()?;
        let text = if output.stdout.is_empty() { &output.stderr } else { &output.stdout };
        let line = String::from_utf8_lossy(text).lines().next().unwrap_or_default().trim().to_owned();
        (output.status.success() && !line.is_empty()).then_some(line)
    };
    said("--version").or_else(|| said("-v")).unwrap_or_else(|| "unknown".into())
}

/// A port of this address that nobody listens on now. It is none of those that systems give to connections that go
/// out, by their default: one of these could have it by the time the server is started, or while it is down.
pub(crate) fn free_port(address: Ipv4Addr) -> Result<u16> {
    const LOWEST: u32 = 10_000;
    const COUNT: u32 = 20_000;
    // The next one to try. Others that look begin elsewhere.
    static NEXT: LazyLock<AtomicU32> = LazyLock::new(|| AtomicU32::new(std::process::id().wrapping_mul(97)));
    let is_free = |port: &u16| TcpListener::bind((address, *port)).is_ok();
    let mut tried = (0..COUNT).map(|_| LOWEST + NEXT.fetch_add(1, Ordering::Relaxed) % COUNT);
    let port = tried.find_map(|port| u16::try_from(port).ok().filter(is_free));
    port.ok_or_else(|| Error::new(format!("{address}: no port of {LOWEST} to {} is free", LOWEST + COUNT - 1)))
}

impl Server {
    /// Starts a command that prints `ready ADDRESS`, and waits until it does.
    pub(crate) fn announced(mut command: Command) -> Result<Self> {
        let words = command.get_args().map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>();
        let program = command.get_program().to_string_lossy().into_owned();
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let child = command.spawn().during(|| format!("start {program}"))?;
        let nowhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let mut server = Server { child, addr: nowhere, options: words.join(" "), _scratch: None };
        let ready = server.await_line();
        ready.map_err(|error| Error::new(format!("{program} {}: {error}", server.options)))?;
        Ok(server)
    }

    /// Its process.
    pub(crate) fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).expect("pids fit an i32")
    }

    /// Small operations on it with the usual values.
    pub(crate) fn small(&self, proto: Proto, op: Op) -> Spec {
        Spec {
            addr: self.addr,
            proto,
            op,
            conns: 64,
            pipeline: 1,
            keys: 100_000,
            chosen: Vec::new(),
            value_bytes: 256,
            rate_per_s: None,
            warm_ms: 200,
            run_ms: 1_000,
            sequential: false,
            fixed_reply: false,
            core: Some(CLIENT_CORE),
            server_pids: vec![self.pid()],
            seed: 1,
            side: None,
            collection: None,
            mixed: false,
        }
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

/// Path of a program on PATH, or where Debian keeps servers, if it is there.
pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .chain([PathBuf::from("/usr/sbin")])
        .map(|dir| dir.join(name))
        .find(|file| fs::metadata(file).is_ok_and(|m| m.is_file()))
}
