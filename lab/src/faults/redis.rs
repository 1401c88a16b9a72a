//! The same in short for a Redis Cluster: three masters, three replicas, stops and kills of masters with writes under
//! way, and how much of what it had acknowledged is gone in the end.
//!
//! Its rules are those of Herd's registers (`register`): one client writes each object, with rising numbers, and none
//! after an unknown outcome. Its time to think a node dead is Herd's lease, 2 s. A master that was stopped for longer
//! finds another one in its place when it goes on; one that was killed stays away, as its replica serves. Clients
//! follow `MOVED`, and ask others where one does not answer.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::ask::redis;
use crate::error::{Error, Result};
use crate::faults::register::{End, Register};
use crate::faults::seen;
use crate::peers::server::{Kind, Program, Server, Setup, find_program, free_port};
use crate::peers::spread::{REDIS_SLOTS, make_redis_cluster, redis_slot};
use crate::sys;
use crate::values::Random;

const MASTERS: usize = 3;
const WRITERS: usize = 6;
/// Registers of a writer.
const EACH: usize = 100;
/// A write that lies in a stopped node's socket is waited for as long as by Herd's clients of such nodes.
const PATIENCE: Duration = Duration::from_secs(12);
/// Stops, each of another node that is master then, and kills of masters whose replica is well.
const STOPS: usize = 6;
const KILLS: usize = 2;
/// How long a node is stopped: beyond the time after which it is thought dead.
const STOP_MS: (u64, u64) = (4_000, 6_000);
const NODE_TIMEOUT_MS: &str = "2000";
/// The cluster is well again within this.
const WELL: Duration = Duration::from_secs(30);
/// Redirections that a request follows.
const REDIRECTIONS: usize = 8;
/// A client whose server does not serve rests so long.
const AWAY: Duration = Duration::from_millis(200);

/// What was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Found {
    peer: String,
    stops: u64,
    kills: u64,
    acknowledged: u64,
    unknown: u64,
    /// Objects whose latest acknowledged write is gone.
    lost: u64,
}

impl std::fmt::Display for Found {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { peer, stops, kills, acknowledged, unknown, lost } = self;
        write!(f, "{peer}: {stops} stops and {kills} kills of masters; {acknowledged} writes acknowledged, ")?;
        write!(f, "{unknown} of unknown outcome; of {lost} objects the latest acknowledged write is gone")
    }
}

/// Servers, and what their clients were told.
struct Cluster {
    servers: Vec<Server>,
    board: Mutex<Board>,
    over: AtomicBool,
}

#[derive(Default)]
struct Board {
    registers: Vec<Register>,
    acknowledged: u64,
    unknown: u64,
}

/// Runs all of it, on loopback.
pub(crate) fn run(program: &Path, seed: u64) -> Result<Found> {
    let path = if program.is_file() { Some(program.to_owned()) } else { find_program(&program.to_string_lossy()) };
    let path = path.ok_or_else(|| Error::lacking(format!("no {} (Debian: redis-server)", program.display())))?;
    let cluster = Cluster::start(&Program::new(Kind::RedisMember, path))?;
    let mut random = Random::new(seed);
    thread::scope(|scope| {
        for writer in 0..WRITERS {
            let cluster = &cluster;
            scope.spawn(move || cluster.write_on(writer, seed));
        }
        let struck = cluster.strike_all(&mut random);
        cluster.over.store(true, Ordering::Relaxed);
        struck
    })?;
    cluster.await_well()?;
    let lost = cluster.lost()?;
    let board = cluster.board();
    let (stops, kills) = (STOPS as u64, KILLS as u64);
    let (acknowledged, unknown) = (board.acknowledged, board.unknown);
    Ok(Found { peer: "redis cluster".into(), stops, kills, acknowledged, unknown, lost })
}

impl Cluster {
    fn start(program: &Program) -> Result<Self> {
        let (mut servers, mut buses) = (Vec::new(), Vec::new());
        for _ in 0..2 * MASTERS {
            let bus_port = free_port(Ipv4Addr::LOCALHOST)?;
            let setup = Setup { memory_mib: 256, core: None, bus_port, ..Setup::default() };
            servers.push(program.start(&setup)?);
            buses.push(bus_port);
        }
        for server in &servers {
            redis(server.addr, &["CONFIG", "SET", "cluster-node-timeout", NODE_TIMEOUT_MS])?;
        }
        make_redis_cluster(&servers[..MASTERS], &buses[..MASTERS])?;
        let cluster = Self { servers, board: Mutex::default(), over: AtomicBool::new(false) };
        cluster.add_replicas(buses[0])?;
        cluster.await_well()?;
        Ok(cluster)
    }

    fn add_replicas(&self, bus: u16) -> Result<()> {
        let first = self.servers[0].addr;
        let (ip, port, bus) = (first.ip().to_string(), first.port().to_string(), bus.to_string());
        for (number, replica) in self.servers[MASTERS..].iter().enumerate() {
            redis(replica.addr, &["CLUSTER", "MEET", &ip, &port, &bus])?;
            let id = redis(self.servers[number].addr, &["CLUSTER", "MYID"])?;
            let begun = Instant::now();
            // It must have heard of its master first.
            while redis(replica.addr, &["CLUSTER", "REPLICATE", id.trim()]).is_err() {
                if begun.elapsed() > WELL {
                    return Err(Error::new("a replica of the Redis Cluster hears of no master"));
                }
                thread::sleep(Duration::from_millis(100));
            }
        }
        Ok(())
    }

    fn client(&self, seed: u64) -> Client {
        Client::new(self.servers.iter().map(|server| server.addr).collect(), MASTERS, PATIENCE, seed)
    }

    fn board(&self) -> MutexGuard<'_, Board> {
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until each living server finds the cluster well, and each master of slots has a replica it is linked to,
    /// but for those whose partner was killed.
    fn await_well(&self) -> Result<()> {
        let begun = Instant::now();
        while !self.is_well() {
            if begun.elapsed() > WELL {
                return Err(Error::new("the Redis Cluster is not well in time"));
            }
            thread::sleep(Duration::from_millis(100));
        }
        Ok(())
    }

    fn is_well(&self) -> bool {
        let states = self.living().map(|addr| {
            let info = redis(addr, &["CLUSTER", "INFO"]).unwrap_or_default();
            let state = redis(addr, &["INFO", "replication"]).unwrap_or_default();
            let is_replica = state.contains("role:slave");
            (info.contains("cluster_state:ok"), is_replica, !is_replica || state.contains("master_link_status:up"))
        });
        let states: Vec<_> = states.collect();
        let replicas = states.iter().filter(|state| state.1).count();
        let dead = 2 * MASTERS - states.len();
        states.iter().all(|state| state.0 && state.2) && replicas + dead >= MASTERS
    }

    fn living(&self) -> impl Iterator<Item = SocketAddr> {
        let is_alive = |server: &&Server| is_running(server.pid());
        self.servers.iter().filter(is_alive).map(|server| server.addr)
    }

    /// A living master with a replica that is well, as it says itself.
    fn master(&self, random: &mut Random) -> Result<&Server> {
        let is_led = |server: &&Server| {
            let state = redis(server.addr, &["INFO", "replication"]).unwrap_or_default();
            state.contains("role:master") && state.contains("connected_slaves:1")
        };
        let masters: Vec<&Server> =
            self.servers.iter().filter(|server| is_running(server.pid())).filter(is_led).collect();
        let place = random.below(masters.len().max(1) as u64) as usize;
        masters.get(place).copied().ok_or_else(|| Error::new("the Redis Cluster has no master with a replica"))
    }

    fn strike_all(&self, random: &mut Random) -> Result<()> {
        for number in 0..STOPS + KILLS {
            self.await_well()?;
            thread::sleep(Duration::from_millis(500));
            let pid = self.master(random)?.pid();
            if number < STOPS {
                seen::stop(pid)?;
                thread::sleep(Duration::from_millis(STOP_MS.0 + random.below(STOP_MS.1 - STOP_MS.0)));
                sys::signal(pid, libc::SIGCONT)?;
            } else {
                sys::signal(pid, libc::SIGKILL)?;
                thread::sleep(Duration::from_secs(3));
            }
        }
        Ok(())
    }

    fn write_on(&self, writer: usize, seed: u64) {
        let mut client = self.client(seed.wrapping_add(writer as u64));
        let own = |round: u64, place: u64| format!("redis-{writer}-{round}-{place}");
        let mut rounds = [0; EACH];
        let add = |name: String| {
            let mut board = self.board();
            board.registers.push(Register::new(name));
            board.registers.len() - 1
        };
        let mut registers: Vec<usize> = (0..EACH).map(|place| add(own(0, place as u64))).collect();
        while !self.over.load(Ordering::Relaxed) {
            let place = client.random.below(EACH as u64) as usize;
            if self.write(registers[place], &mut client) == End::Unknown {
                rounds[place] += 1;
                registers[place] = add(own(rounds[place], place as u64));
            }
            thread::sleep(Duration::from_micros(client.random.below(3_000)));
        }
    }

    fn write(&self, register: usize, client: &mut Client) -> End {
        let mut board = self.board();
        let it = &mut board.registers[register];
        let Some(number) = it.begin() else { return End::Unknown };
        let (name, value) = (it.name.clone(), it.value(number));
        drop(board);
        let told = client.ask(&name, &["SET", &name, &value]);
        let end = if told.is_ok_and(|told| told == "OK") { End::Acknowledged } else { End::Unknown };
        let mut board = self.board();
        board.registers[register].end(number, end);
        *if end == End::Acknowledged { &mut board.acknowledged } else { &mut board.unknown } += 1;
        end
    }

    /// Objects whose latest acknowledged write is gone.
    fn lost(&self) -> Result<u64> {
        let mut client = self.client(1);
        let mut board = self.board();
        let mut lost = 0;
        for register in &mut board.registers {
            let value = client.ask(&register.name, &["GET", &register.name])?;
            let told = register.number(&value).unwrap_or(0);
            lost += u64::from(register.read(register.floor(), told).is_err());
        }
        Ok(lost)
    }
}

/// Whether that child still runs.
fn is_running(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

/// A client that goes where slots have moved.
pub(crate) struct Client {
    servers: Vec<SocketAddr>,
    /// Of these the slots were dealt to the first ones.
    masters: usize,
    patience: Duration,
    random: Random,
    /// Where a slot was last; by the masters of the beginning until then.
    moved: HashMap<usize, SocketAddr>,
    streams: HashMap<SocketAddr, BufReader<TcpStream>>,
}

impl Client {
    /// Of these servers, of which the first ones are masters; no answer is waited for longer than `patience`.
    pub(crate) fn new(servers: Vec<SocketAddr>, masters: usize, patience: Duration, seed: u64) -> Self {
        let random = Random::new(seed);
        Self { servers, masters, patience, random, moved: Default::default(), streams: Default::default() }
    }

    /// Another one of the same servers.
    pub(crate) fn renewed(&self) -> Self {
        Self { moved: self.moved.clone(), ..Self::new(self.servers.clone(), self.masters, self.patience, 2) }
    }

    /// Asks whoever has the slot; the reply's text. What may have been done is not asked again.
    pub(crate) fn ask(&mut self, name: &str, words: &[&str]) -> Result<String> {
        let slot = redis_slot(name);
        // A key that is just moving is asked for where it goes to, once.
        let mut asking = None;
        for _ in 0..REDIRECTIONS {
            let first = self.servers[slot * self.masters / REDIS_SLOTS];
            let addr = asking.unwrap_or_else(|| *self.moved.get(&slot).unwrap_or(&first));
            let is_asking = asking.take().is_some();
            let told = match self.stream(addr) {
                Ok(stream) if is_asking => exchange(stream, &["ASKING"]).and_then(|_| exchange(stream, words)),
                Ok(stream) => exchange(stream, words),
                // Nothing was asked.
                Err(_) => {
                    self.ask_any(slot);
                    thread::sleep(AWAY);
                    continue;
                }
            };
            if told.is_err() {
                self.streams.remove(&addr);
                self.ask_any(slot);
            }
            let told = told?;
            if let Some(to) = redirected(&told, "-MOVED ") {
                self.moved.insert(slot, to);
            } else if let Some(to) = redirected(&told, "-ASK ") {
                asking = Some(to);
            } else if told.starts_with("-CLUSTERDOWN") || told.starts_with("-TRYAGAIN") {
                thread::sleep(AWAY);
            } else {
                return Ok(told);
            }
        }
        Err(Error::new(format!("slot {slot} of the Redis Cluster is nowhere")))
    }

    /// From now on any server is asked for that slot, and tells where it is.
    fn ask_any(&mut self, slot: usize) {
        let any = self.random.below(self.servers.len() as u64) as usize;
        self.moved.insert(slot, self.servers[any]);
    }

    fn stream(&mut self, addr: SocketAddr) -> Result<&mut BufReader<TcpStream>> {
        match self.streams.entry(addr) {
            Entry::Occupied(there) => Ok(there.into_mut()),
            Entry::Vacant(place) => Ok(place.insert(BufReader::new(sys::connect_blocking(addr, self.patience)?))),
        }
    }
}

/// Where a redirection of that kind leads.
fn redirected(told: &str, kind: &str) -> Option<SocketAddr> {
    told.strip_prefix(kind)?.rsplit(' ').next()?.parse().ok()
}

/// One command and its reply: a line without its sign if it is `+`, or a text; empty if there is none.
fn exchange(stream: &mut BufReader<TcpStream>, words: &[&str]) -> Result<String> {
    let text: String = words.iter().map(|word| format!("${}\r\n{word}\r\n", word.len())).collect();
    stream.get_mut().write_all(format!("*{}\r\n{text}", words.len()).as_bytes())?;
    let mut line = String::new();
    if stream.read_line(&mut line)? == 0 {
        return Err(Error::new("Redis closed the connection"));
    }
    let line = line.trim_end();
    let Some(len) = line.strip_prefix('$') else { return Ok(line.trim_start_matches('+').to_owned()) };
    let Ok(len) = len.parse::<usize>() else { return Ok(String::new()) };
    let mut bytes = vec![0; len + 2];
    stream.read_exact(&mut bytes)?;
    bytes.truncate(len);
    String::from_utf8(bytes).map_err(|_| Error::new("a value that nobody wrote"))
}
