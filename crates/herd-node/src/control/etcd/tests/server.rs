//! Servers for tests: a real etcd of one member, and one that is none and answers as it is told.

use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Longer than an etcd needs to serve.
const PATIENCE: Duration = Duration::from_secs(30);

/// An etcd of its own, of one or more members, over a directory; its processes end with this, also when a test panics.
pub(crate) struct Real {
    directory: TempDir,
    /// Of each member: for clients, and for members.
    ports: Vec<(u16, u16)>,
    children: Vec<Child>,
}

impl Real {
    /// One of one member. `None`: there is none on this machine, which is said.
    pub(crate) fn start() -> Option<Self> {
        Self::of(1)
    }

    /// One of so many members.
    pub(crate) fn of(count: usize) -> Option<Self> {
        let known = Command::new("etcd").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        if !known.is_ok_and(|status| status.success()) {
            println!("passed over: there is no etcd on the PATH");
            return None;
        }
        let directory = TempDir::new().expect("a directory");
        let ports = (0..count).map(|_| (free_port(), free_port())).collect();
        let mut real = Self { directory, ports, children: Vec::new() };
        (0..count).for_each(|member| real.children.push(real.spawn(member)));
        real.wait();
        Some(real)
    }

    pub(crate) fn url(&self, name: &str) -> String {
        let endpoints: Vec<String> = self.ports.iter().map(|(client, _)| format!("127.0.0.1:{client}")).collect();
        format!("etcd://{}/{name}", endpoints.join(","))
    }

    /// Ends the first member at once, as a machine that goes does.
    pub(crate) fn kill(&mut self) {
        self.kill_member(0);
    }

    pub(crate) fn kill_member(&mut self, member: usize) {
        self.children[member].kill().expect("it is ours");
        self.children[member].wait().expect("it is ours");
    }

    /// Begins anew over the same directory.
    pub(crate) fn restart(&mut self) {
        self.kill();
        self.revive();
    }

    /// Starts the first member again.
    pub(crate) fn revive(&mut self) {
        self.revive_member(0);
    }

    pub(crate) fn revive_member(&mut self, member: usize) {
        self.children[member] = self.spawn(member);
        self.wait();
    }

    /// Stops the first member, or lets it go on: `STOP`, `CONT`. It has stopped when this returns: where the machine is
    /// busy its threads go on for a while after `kill` has ended, and answer.
    pub(crate) fn signal(&self, name: &str) {
        let pid = self.children[0].id();
        let status = Command::new("kill").args([&format!("-{name}"), &pid.to_string()]).status();
        assert!(status.expect("kill runs").success());
        let end = Instant::now() + PATIENCE;
        while name == "STOP" && !stands_still(pid) {
            assert!(Instant::now() < end, "etcd stops");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Forgets what was before a revision.
    pub(crate) fn compact(&self, revision: u64) {
        let answer = post(self.ports[0].0, "/v3/kv/compaction", &json!({"revision": revision.to_string()}));
        assert!(answer.is_some_and(|answer| answer.contains("header")), "it is compacted");
    }

    /// Waits until all members read: then they have a leader.
    fn wait(&self) {
        let end = Instant::now() + PATIENCE;
        for (client, _) in &self.ports {
            while !post(*client, "/v3/kv/range", &json!({"key": "AA=="})).is_some_and(|it| it.contains("cluster_id")) {
                assert!(Instant::now() < end, "etcd serves");
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }

    fn spawn(&self, member: usize) -> Child {
        let url = |port: u16| format!("http://127.0.0.1:{port}");
        let all = self.ports.iter().enumerate().map(|(n, (_, peer))| format!("m{n}={}", url(*peer)));
        let (client, peer) = (url(self.ports[member].0), url(self.ports[member].1));
        let mut command = Command::new("etcd");
        command.args(["--name", &format!("m{member}"), "--data-dir"]);
        command.arg(self.directory.path().join(format!("m{member}")));
        command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
        command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
        command.args(["--initial-cluster", &all.collect::<Vec<_>>().join(",")]);
        // A leader is found soon.
        command.args(["--heartbeat-interval", "20", "--election-timeout", "200"]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().expect("etcd runs")
    }
}

impl Drop for Real {
    fn drop(&mut self) {
        self.children.iter_mut().for_each(|child| drop(child.kill()));
        self.children.iter_mut().for_each(|child| drop(child.wait()));
    }
}

/// Whether all threads of a process are stopped.
fn stands_still(pid: u32) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).expect("its threads are listed");
    threads.into_iter().all(|thread| {
        // A thread that ends meanwhile is none. The state stands behind the name, which may have brackets in it.
        let told = std::fs::read_to_string(thread.expect("a thread").path().join("stat"));
        told.map_or(true, |told| told.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T')))
    })
}

pub(crate) fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("an address").port()
}

/// Asks without the code that is tested; `None`: no answer.
fn post(port: u16, path: &str, body: &Value) -> Option<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(2))).ok()?;
    let body = body.to_string();
    let head = format!("POST {path} HTTP/1.0\r\nHost: etcd\r\nContent-Length: {}\r\n\r\n", body.len());
    stream.write_all(&[head.as_bytes(), body.as_bytes()].concat()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}

/// What a fake does with a request, by path and body.
pub(super) enum Answer {
    /// Answers with a status and a body.
    Says(u16, String),
    /// Sends these bytes, and closes.
    Raw(Vec<u8>),
    /// Closes without a word.
    Closes,
    /// Says nothing until the client goes.
    Silent,
}

type Behaviour = dyn Fn(&str, &Value) -> Answer + Send + Sync;

/// A server on a port of its own; it ends with this.
pub(super) struct Fake {
    port: u16,
    behaviour: Arc<Mutex<Arc<Behaviour>>>,
    thread: Option<JoinHandle<()>>,
    /// The connection that is served; `None`: it has ended.
    open: Arc<Mutex<Open>>,
}

#[derive(Default)]
struct Open {
    stream: Option<TcpStream>,
    ends: bool,
}

/// The header of an answer.
pub(super) fn header(cluster: u64, revision: u64) -> Value {
    json!({"cluster_id": cluster.to_string(), "member_id": "1", "revision": revision.to_string(), "raft_term": "1"})
}

/// The standing of a member.
pub(super) fn standing(version: &str, cluster: u64) -> Answer {
    Answer::Says(200, json!({"header": header(cluster, 1), "version": version}).to_string())
}

impl Fake {
    /// Answers as an etcd that holds nothing.
    pub(super) fn etcd(version: &'static str, cluster: u64) -> Self {
        Self::new(move |path, _| match path {
            "/v3/maintenance/status" => standing(version, cluster),
            _ => Answer::Says(200, json!({"header": header(cluster, 1)}).to_string()),
        })
    }

    pub(super) fn new(behaviour: impl Fn(&str, &Value) -> Answer + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let behaviour: Arc<Behaviour> = Arc::new(behaviour);
        let (behaviour, open) = (Arc::new(Mutex::new(behaviour)), Arc::<Mutex<Open>>::default());
        let (mine, served) = (behaviour.clone(), open.clone());
        let thread = std::thread::spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                let mut open = served.lock().expect("no fake panics with it");
                if open.ends {
                    return;
                }
                open.stream = stream.try_clone().ok();
                drop(open);
                // One client at a time is all there is.
                serve(stream, &mine);
                served.lock().expect("no fake panics with it").stream = None;
            }
        });
        Self { port, behaviour, thread: Some(thread), open }
    }

    /// From now on it behaves so.
    pub(super) fn becomes(&self, behaviour: impl Fn(&str, &Value) -> Answer + Send + Sync + 'static) {
        *self.behaviour.lock().expect("no fake panics with it") = Arc::new(behaviour);
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    pub(super) fn url(&self) -> String {
        format!("etcd://127.0.0.1:{}", self.port)
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        let mut open = self.open.lock().expect("no fake panics with it");
        open.ends = true;
        open.stream.take().into_iter().for_each(|stream| drop(stream.shutdown(std::net::Shutdown::Both)));
        drop(open);
        TcpStream::connect(("127.0.0.1", self.port)).ok();
        if std::thread::panicking() {
            return;
        }
        self.thread.take().into_iter().for_each(|thread| thread.join().expect("no fake panics"));
    }
}

/// Serves one connection to its end.
fn serve(stream: TcpStream, behaviour: &Mutex<Arc<Behaviour>>) {
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
    let mut reader = BufReader::new(stream);
    while let Some((path, body)) = request(&mut reader) {
        let behaviour = behaviour.lock().expect("no fake panics with it").clone();
        let bytes = match behaviour(&path, &body) {
            Answer::Says(status, body) => {
                // In chunks and with a trailer, as errors of etcd are.
                let head = format!("HTTP/1.1 {status} X\r\nTrailer: T\r\nTransfer-Encoding: chunked\r\n\r\n");
                format!("{head}{:x}\r\n{body}\r\n0\r\nT: x\r\n\r\n", body.len()).into_bytes()
            }
            Answer::Raw(bytes) => {
                reader.get_mut().write_all(&bytes).ok();
                return;
            }
            Answer::Closes => return,
            Answer::Silent => {
                reader.read_to_end(&mut Vec::new()).ok();
                return;
            }
        };
        if reader.get_mut().write_all(&bytes).is_err() {
            return;
        }
    }
}

/// Path and body of the next request; `None`: there is none.
fn request(reader: &mut BufReader<TcpStream>) -> Option<(String, Value)> {
    let (mut first, mut length) = (String::new(), 0);
    reader.read_line(&mut first).ok().filter(|count| *count > 0)?;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|count| *count > 0)?;
        if line.trim().is_empty() {
            break;
        }
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().ok()?;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some((first.split(' ').nth(1)?.to_owned(), serde_json::from_slice(&body).ok()?))
}
