//! The keeper of a herd on this machine: starts the first node, then the others, which join it; starts again what dies,
//! the later the more often; ends all at SIGTERM. If it is killed itself, the kernel ends its nodes.

use super::{LOCK, STATE, home, lock, write};
use crate::args::KeepArgs;
use crate::exit::{Failure, Outcome, REFUSED, USAGE};
use crate::out;
use crate::view::status_of;
use rustix::process::{Pid, Signal, kill_process, setsid};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::fs::OpenOptions;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

/// How long all nodes may take to serve.
const READY_PATIENCE: Duration = Duration::from_secs(20);
/// How long a node may take to say whom it sees.
const ASK_PATIENCE: Duration = Duration::from_secs(1);
/// How long nodes that were told to stop may take.
const STOP_PATIENCE: Duration = Duration::from_secs(5);
/// How often a node is started that was refused with a port of the system's choice, which it tells in these words.
const TRIES_MAX: u32 = 4;
const ANOTHERS: &str = "is the address of node";
/// How often it looks.
const STEP: Duration = Duration::from_millis(20);
/// How long it rests before it starts a node again that has just died, and at most.
const REST: Duration = Duration::from_millis(100);
const REST_MAX: Duration = Duration::from_secs(10);
/// A node that served for so long has not just died.
const HEALTHY: Duration = Duration::from_secs(30);
/// Set for nodes that a keeper has.
pub(crate) const KEPT: &str = "HERD_KEPT";

/// A node, running or at rest.
struct Kept {
    number: u16,
    child: Option<Child>,
    since: Instant,
    rest: Duration,
    again: Instant,
    /// Where it serves; before it has, where it is to.
    addr: String,
    ready: bool,
}

/// What a node said first: its address.
type Said = (u16, u32, Option<String>);

struct Keeper<'a> {
    args: &'a KeepArgs,
    nodes: Vec<Kept>,
    tell: SyncSender<Said>,
    told: Receiver<Said>,
}

pub(crate) fn run(args: &KeepArgs) -> Outcome {
    // Away from the terminal; one that leads a session already is.
    setsid().ok();
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT] {
        signal_hook::flag::register(signal, stop.clone()).map_err(Failure::local("signals"))?;
    }
    // The terminal it was started from may close.
    signal_hook::flag::register(SIGHUP, Arc::new(AtomicBool::new(false))).map_err(Failure::local("signals"))?;
    let Some(_lock) = lock(&args.dir)? else {
        out::print(format!("failed {USAGE} another herd has just been started here\n"))?;
        return Err(Failure::new(USAGE, format!("{}: it is locked", args.dir.join(LOCK).display())));
    };
    // Of a keeper that was killed.
    std::fs::remove_file(args.dir.join(STATE)).ok();
    let (tell, told) = sync_channel(2 * usize::from(args.nodes));
    let mut keeper =
        Keeper { args, nodes: (1..=args.nodes).map(|number| Kept::new(number, args.port)).collect(), tell, told };
    let done = keeper.begin(&stop).and_then(|()| {
        let addrs: Vec<String> = keeper.nodes.iter().map(|node| node.addr.clone()).collect();
        write(&args.dir, &addrs).map_err(Failure::local(args.dir.display()))?;
        out::print(format!("ready {}\n", addrs.join(" ")))?;
        out::tell(format!("herd up: {}", addrs.join(" ")));
        keeper.watch(&stop);
        Ok(())
    });
    keeper.end();
    std::fs::remove_file(args.dir.join(STATE)).ok();
    done.or_else(|Failure { code, text, .. }| {
        out::tell(format!("herd up: {text}"));
        out::print(format!("failed {code} {text}\n"))
    })
}

impl Kept {
    fn new(number: u16, base: u16) -> Self {
        let port = if base == 0 { 0 } else { base.saturating_add(number - 1) };
        let (now, addr) = (Instant::now(), format!("127.0.0.1:{port}"));
        Self { number, child: None, since: now, rest: REST, again: now, addr, ready: false }
    }

    fn pid(&self) -> u32 {
        self.child.as_ref().map_or(0, Child::id)
    }
}

impl Keeper<'_> {
    /// Starts all, the first one first, since the others join it.
    fn begin(&mut self, stop: &AtomicBool) -> Outcome {
        let until = Instant::now() + READY_PATIENCE;
        // One after the other, so that they are numbered as they are named.
        (0..self.nodes.len()).try_for_each(|at| self.begin_one(at, stop, until))?;
        self.wait(stop, until, |nodes| nodes.iter().all(|node| sees(node, nodes)))
    }

    /// Starts one and waits until it serves. A port that the system chose may be the one that the herd knows another of
    /// its nodes by, from its last run: then it is refused, and takes another.
    fn begin_one(&mut self, at: usize, stop: &AtomicBool, until: Instant) -> Outcome {
        let mut tries = if self.args.port == 0 { TRIES_MAX } else { 1 };
        loop {
            self.start(at)?;
            let done = self.wait(stop, until, |nodes| nodes[at].ready);
            tries -= 1;
            let is_taken = done.as_ref().is_err_and(|failure| failure.text.contains(ANOTHERS));
            if !is_taken || tries == 0 {
                return done;
            }
        }
    }

    /// Waits until nodes are so; an error if one ends meanwhile.
    fn wait(&mut self, stop: &AtomicBool, until: Instant, holds: impl Fn(&[Kept]) -> bool) -> Outcome {
        while !holds(&self.nodes) {
            if stop.load(Relaxed) {
                return Err(Failure::new(REFUSED, "it was told to stop"));
            }
            if Instant::now() > until {
                return Err(Failure::new(REFUSED, "not all nodes serve in time"));
            }
            self.listen(STEP);
            for node in &mut self.nodes {
                let tried = node.child.as_mut().map(Child::try_wait);
                if let Some(ended) = tried.filter(|ended| !matches!(ended, Ok(None))) {
                    node.child = None;
                    // What is wrong with the command line of `node` is so with that of `up`.
                    let is_usage = ended.ok().flatten().and_then(|status| status.code()) == Some(USAGE.into());
                    let text = format!("node n{}: {}", node.number, last_line(&self.args.dir, node.number));
                    return Err(Failure::new(if is_usage { USAGE } else { REFUSED }, text));
                }
            }
        }
        Ok(())
    }

    /// Takes what nodes say.
    fn listen(&mut self, patience: Duration) {
        let Ok((number, pid, said)) = self.told.recv_timeout(patience) else { return };
        let node = self.nodes.iter_mut().find(|node| node.number == number && node.pid() == pid);
        if let Some((node, addr)) = node.zip(said) {
            (node.addr, node.ready) = (addr, true);
        }
    }

    fn start(&mut self, at: usize) -> Outcome {
        let first = self.nodes[0].addr.clone();
        let (dir, memory) = (&self.args.dir, self.args.memory);
        let node = &mut self.nodes[at];
        let log = home(dir, node.number).with_extension("log");
        let file = OpenOptions::new().create(true).append(true).open(&log);
        let file = file.map_err(Failure::local(log.display()))?;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = (cores / usize::from(self.args.nodes)).max(1);
        let mut command = Command::new(std::env::current_exe().map_err(Failure::local("this program"))?);
        command.args(["node", "--listen", &node.addr, "--name", &format!("n{}", node.number)]);
        command.args(["--memory", &memory.to_string(), "--threads", &threads.to_string()]);
        command.arg("--data").arg(home(dir, node.number));
        if at > 0 {
            command.args(["--join", &first]);
        } else if let Some(copies) = self.args.replicas {
            command.args(["--replicas", &copies.to_string()]);
        }
        command.env(KEPT, "1").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(file);
        let mut child = command.spawn().map_err(Failure::local(format_args!("node n{}", node.number)))?;
        let (number, pid, tell) = (node.number, child.id(), self.tell.clone());
        if let Some(stdout) = child.stdout.take() {
            // It ends with the node's first line, or with the node.
            std::thread::spawn(move || {
                let mut line = String::new();
                let read = BufReader::new(stdout).read_line(&mut line);
                let addr = read.ok().and_then(|_| line.trim().strip_prefix("ready ").map(str::to_owned));
                tell.send((number, pid, addr)).ok();
            });
        }
        (node.child, node.since, node.ready) = (Some(child), Instant::now(), false);
        Ok(())
    }

    /// Starts again what dies, until it is told to stop.
    fn watch(&mut self, stop: &AtomicBool) {
        while !stop.load(Relaxed) {
            self.listen(STEP);
            for at in 0..self.nodes.len() {
                self.look_after(at);
            }
        }
    }

    fn look_after(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        match node.child.as_mut().map(Child::try_wait) {
            Some(Ok(None)) => {}
            Some(ended) => {
                let how = ended.ok().flatten().map_or_else(|| "ended".to_owned(), |status| status.to_string());
                if node.since.elapsed() >= HEALTHY {
                    node.rest = REST;
                }
                node.again = Instant::now() + node.rest;
                let rest = node.rest.as_millis();
                out::tell(format!("node n{} has ended ({how}); it is started again in {rest} ms", node.number));
                node.rest = (2 * node.rest).min(REST_MAX);
                node.child = None;
            }
            None if Instant::now() >= node.again => {
                if let Err(failure) = self.start(at) {
                    out::tell(failure.text);
                    self.nodes[at].again = Instant::now() + REST_MAX;
                }
            }
            None => {}
        }
    }

    /// Ends all: the others before the first, whose links they have.
    fn end(&mut self) {
        let signal = |node: &Kept, signal| {
            let pid = node.child.as_ref().and_then(|child| Pid::from_raw(i32::try_from(child.id()).ok()?));
            // One that has ended was not waited for, so its number is nobody else's.
            pid.into_iter().for_each(|pid| kill_process(pid, signal).unwrap_or(()));
        };
        self.nodes.iter().for_each(|node| signal(node, Signal::TERM));
        let until = Instant::now() + STOP_PATIENCE;
        let runs = |node: &mut Kept| node.child.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None)));
        while self.nodes.iter_mut().any(runs) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
        for node in &mut self.nodes {
            if runs(node) {
                signal(node, Signal::KILL);
            }
            node.child.as_mut().into_iter().for_each(|child| drop(child.wait()));
        }
    }
}

/// Whether a node says that these serve, itself among them.
fn sees(node: &Kept, nodes: &[Kept]) -> bool {
    let status = status_of(&node.addr, ASK_PATIENCE).unwrap_or_default();
    let seen = status["nodes"].as_array().map_or(&[][..], Vec::as_slice);
    let serves = |name: String| seen.iter().any(|node| node["name"] == name && node["state"] == "serving");
    nodes.iter().all(|node| serves(format!("n{}", node.number)))
}

/// What a node told last.
fn last_line(dir: &Path, number: u16) -> String {
    let log = std::fs::read_to_string(home(dir, number).with_extension("log")).unwrap_or_default();
    log.lines().last().unwrap_or("it ended without a word").trim_start_matches("herd: ").to_owned()
}
