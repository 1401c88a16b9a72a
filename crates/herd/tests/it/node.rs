//! A node for tests, and what is common to them.

use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A running node, stopped when it goes.
pub(crate) struct Node {
    child: Child,
    pub(crate) addr: String,
}

impl Node {
    pub(crate) fn start(args: &[&str]) -> Self {
        Self::with_env(args, &[])
    }

    pub(crate) fn with_env(args: &[&str], env: &[(&str, &str)]) -> Self {
        Self::run(
            herd().args(["node", "--listen", "127.0.0.1:0", "--log", "error"]).args(args).envs(env.iter().copied()),
        )
    }

    /// A node at an address that was another one's.
    pub(crate) fn at(addr: &str, args: &[&str]) -> Self {
        Self::run(herd().args(["node", "--listen", addr, "--log", "error"]).args(args))
    }

    /// A node with all of its words.
    pub(crate) fn again(words: &[&str], env: &[(&str, &str)]) -> Self {
        Self::run(herd().args(["node", "--log", "error"]).args(words).envs(env.iter().copied()))
    }

    /// A node that logs into a file, behind what is there.
    pub(crate) fn with_log(args: &[&str], log: &Path) -> Self {
        let file = OpenOptions::new().create(true).append(true).open(log).expect("a file");
        Self::run(herd().args(["node", "--listen", "127.0.0.1:0"]).args(args).stderr(file))
    }

    fn run(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("herd starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("readable");
        let addr = line.strip_prefix("ready ").expect("the node says that it is ready").trim().to_string();
        Self { child, addr }
    }

    /// A connection that gives up after 10 s.
    pub(crate) fn connect(&self) -> TcpStream {
        let socket = TcpStream::connect(&self.addr).expect("the node accepts");
        socket.set_read_timeout(Some(Duration::from_secs(10))).expect("a socket takes a timeout");
        socket
    }

    /// Sends `request` on a new connection, ends it, and gives all that came back.
    pub(crate) fn talk(&self, request: &[u8]) -> Vec<u8> {
        let mut socket = self.connect();
        socket.write_all(request).expect("sent");
        let mut answer = Vec::new();
        socket.read_to_end(&mut answer).expect("answered and closed");
        answer
    }

    /// Runs a command against this node.
    pub(crate) fn herd(&self, args: &[&str]) -> Output {
        herd().args(args).env("HERD_NODE", &self.addr).stdin(Stdio::null()).output().expect("herd runs")
    }

    /// Runs a command that must succeed with `input` on its standard input.
    pub(crate) fn feed(&self, args: &[&str], input: &[u8]) {
        let mut child =
            herd().args(args).env("HERD_NODE", &self.addr).stdin(Stdio::piped()).spawn().expect("herd runs");
        child.stdin.take().expect("piped").write_all(input).expect("taken");
        assert!(child.wait().expect("it ends").success(), "{args:?}");
    }

    /// Runs a command that must succeed; gives what it printed.
    pub(crate) fn ok(&self, args: &[&str]) -> String {
        let output = self.herd(args);
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text")
    }

    /// Asks the node to stop; its exit status.
    pub(crate) fn stop(mut self) -> Option<i32> {
        self.signal("-TERM");
        self.wait()
    }

    /// Waits for its end; its exit status.
    pub(crate) fn wait(&mut self) -> Option<i32> {
        self.child.wait().expect("it ends").code()
    }

    /// Whether its process has ended.
    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().is_ok_and(|ended| ended.is_some())
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, name: &str) {
        signal(self.pid(), name);
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            self.signal("-KILL");
            self.child.wait().expect("it ends");
        }
    }
}

/// Sends a process a signal. One that stops it has stopped all its threads when this returns: where the machine is busy
/// some go on for a while after `kill` has ended.
pub(crate) fn signal(pid: u32, name: &str) {
    Command::new("kill").args([name, &pid.to_string()]).stderr(Stdio::null()).status().expect("kill runs");
    if name == "-STOP" {
        assert!(within(Duration::from_secs(10), || stands_still(pid)), "process {pid} goes on");
    }
}

/// Whether all threads of a process are stopped; of systems that do not tell, it is believed.
fn stands_still(pid: u32) -> bool {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return true };
    let is_stopped = |thread: std::io::Result<std::fs::DirEntry>| {
        let told = std::fs::read_to_string(thread.expect("its threads are listed").path().join("stat"));
        // Behind the name, which may have brackets in it.
        told.is_ok_and(|told| told.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T')))
    };
    threads.into_iter().all(is_stopped)
}

/// The program. A node has no place of its own, unless a test gives it one: what a developer's nodes have is none of
/// its.
pub(crate) fn herd() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_herd"));
    command.env("XDG_STATE_HOME", "/dev/null/none").env_remove("STATE_DIRECTORY");
    command
}

/// What a program wrote.
pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Whether `holds` comes true within `most`.
pub(crate) fn within(most: Duration, mut holds: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + most;
    loop {
        match holds() {
            true => return true,
            false if Instant::now() > end => return false,
            false => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}

/// Bytes that differ from place to place.
pub(crate) fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..len).map(|_| next()).collect()
}
