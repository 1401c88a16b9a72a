//! `herd up` and `herd down`: a herd on this machine, in the background. A keeper (`keep.rs`), which is this program
//! again in a session of its own, starts the nodes and starts again what dies. It has the directory's lock as long as
//! it lives. What it has written may be left of one that was killed: it says when that process began, so that nobody
//! takes another one of the same number for it.

mod keep;

pub(crate) use keep::{KEPT, run as keep};

use crate::args::{DownArgs, UpArgs};
use crate::exit::{Failure, NOT_SO, Outcome, REFUSED, USAGE};
use crate::node::{check_data, check_replicas};
use crate::{machine, out};
use herd_core::size;
use herd_node::control::{self, Home};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The command that this program gives itself, as the keeper.
pub(crate) const KEEPER: &str = "keep";
/// What the keeper writes when all nodes serve.
const STATE: &str = "up.json";
/// Locked by the keeper.
const LOCK: &str = "up.lock";
/// What the keeper tells.
const LOG: &str = "up.log";
/// How long `down` waits: a node that stops takes 4 s at most, and the keeper ends it after 5.
const DOWN_PATIENCE: Duration = Duration::from_millis(5_700);
/// How long a keeper that was killed takes to be gone.
const KILL_PATIENCE: Duration = Duration::from_millis(250);

/// The directory of a herd of this machine: `--data`, or one below the state directory.
fn place(data: Option<&Path>) -> Result<PathBuf, Failure> {
    let dir = control::place(data, "up", |name| std::env::var_os(name));
    let dir = dir.ok_or_else(|| Failure::new(USAGE, "there is no state directory: name one with --data"))?;
    check_data(Some(&dir))?;
    std::path::absolute(&dir).map_err(Failure::local(dir.display()))
}

/// A command on the herd that was named with `--data`, or that was not.
fn hint(command: &str, data: Option<&Path>) -> String {
    data.map_or_else(|| format!("`herd {command}`"), |data| format!("`herd {command} --data {}`", data.display()))
}

/// The lock of a directory, if nobody has it.
fn lock(dir: &Path) -> Result<Option<File>, Failure> {
    lock_as(dir, File::try_lock)
}

/// Whether no keeper has the directory's lock. Who looks keeps no other one out that does.
fn is_free(dir: &Path) -> Result<bool, Failure> {
    Ok(lock_as(dir, File::try_lock_shared)?.is_some())
}

fn lock_as(dir: &Path, take: impl FnOnce(&File) -> Result<(), TryLockError>) -> Result<Option<File>, Failure> {
    let path = dir.join(LOCK);
    let file = OpenOptions::new().create(true).truncate(false).read(true).write(true).open(&path);
    let file = file.map_err(Failure::local(path.display()))?;
    match take(&file) {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(Failure::local(path.display())(error)),
    }
}

/// The directory of a node, of so many.
fn home(dir: &Path, number: u16) -> PathBuf {
    dir.join(format!("n{number}"))
}

pub(crate) fn up(args: &UpArgs) -> Outcome {
    check_replicas("up", args.replicas)?;
    let machine_bytes = machine::memory_bytes();
    if let Some(memory) = args.memory.filter(|memory| *memory > machine_bytes) {
        let (asked, has) = (size::show(memory), size::show(machine_bytes));
        let text = format!(
            "up: --memory {asked} is for all nodes together, and this machine or its control group has {has}: the most \
             that fits is --memory {}m",
            machine_bytes >> 20
        );
        return Err(Failure::new(USAGE, text));
    }
    let dir = place(args.data.as_deref())?;
    if Home::is_used(&dir) {
        let text = "it holds the files of a node that was started by `herd node`: give another --data";
        return Err(Failure::new(USAGE, format!("up: {}: {text}", dir.display())));
    }
    fs::create_dir_all(&dir).map_err(Failure::local(dir.display()))?;
    let Some(free) = lock(&dir)? else {
        let (dir, ends) = (dir.display(), hint("down", args.data.as_deref()));
        let text =
            format!("a herd runs in {dir} already: {ends} ends it; one beside it needs another --data and --port");
        return Err(Failure::new(USAGE, text));
    };
    let last = u32::from(args.port) + u32::from(args.nodes) - 1;
    if args.port > 0 && last > u32::from(u16::MAX) {
        let text =
            format!("up: {} nodes need the ports {} to {last}: the last there is is 65535", args.nodes, args.port);
        return Err(Failure::new(USAGE, text));
    }
    begin(&dir, args)?;
    drop(free);
    let memory = args.memory.unwrap_or(machine_bytes / 2) / u64::from(args.nodes);
    if let Err(error) = herd_node::check_memory(memory) {
        return Err(Failure::new(USAGE, format!("up: each of {} nodes: {error}", args.nodes)));
    }
    let mut keeper = Command::new(std::env::current_exe().map_err(Failure::local("this program"))?);
    keeper.args([KEEPER, "--nodes", &args.nodes.to_string(), "--port", &args.port.to_string()]);
    keeper.args(["--memory", &memory.to_string(), "--dir"]).arg(&dir);
    if let Some(copies) = args.replicas {
        keeper.args(["--replicas", &copies.to_string()]);
    }
    let log = File::create(dir.join(LOG)).map_err(Failure::local(dir.join(LOG).display()))?;
    let mut child =
        keeper.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log).spawn().map_err(Failure::local("keeper"))?;
    let mut line = String::new();
    if let Some(stdout) = child.stdout.take() {
        // The keeper bounds how long nodes may take, and its end is the end of this.
        BufReader::new(stdout).read_line(&mut line).map_err(Failure::local("keeper"))?;
    }
    match line.strip_prefix("ready ") {
        Some(_) => {
            out::tell(format!(
                "{}; {} ends {}",
                started(args.nodes, memory, &dir),
                hint("down", args.data.as_deref()),
                if args.nodes == 1 { "it" } else { "them" },
            ));
            out::print(line)
        }
        None => {
            // It has the lock until its end.
            child.wait().ok();
            let said = line.trim().strip_prefix("failed ").and_then(|said| said.split_once(' '));
            let (code, text) = said.unwrap_or(("", "the keeper ended: look at its log"));
            let (code, log) = (code.parse().unwrap_or(REFUSED), dir.join(LOG));
            Err(Failure::new(code, format!("up: {text} (logs: {} and n*.log beside it)", log.display())))
        }
    }
}

/// What was started, as it is told.
fn started(nodes: u16, memory: u64, dir: &Path) -> String {
    let memory = size::show(memory);
    match nodes {
        1 => format!("1 node with {memory}; its log: {}", home(dir, 1).with_extension("log").display()),
        _ => format!("{nodes} nodes with {memory} each; their logs: {}", dir.join("n*.log").display()),
    }
}

/// Makes the directory ready. Without `--data` each herd is a new one; with it, it goes on.
fn begin(dir: &Path, args: &UpArgs) -> Outcome {
    // Of a keeper that was killed: nobody is to take it for the one that comes.
    fs::remove_file(dir.join(STATE)).ok();
    let number = |entry: fs::DirEntry| entry.file_name().to_str()?.strip_prefix('n')?.parse::<u16>().ok();
    let there = fs::read_dir(dir).map_err(Failure::local(dir.display()))?;
    let known: Vec<u16> = there.filter_map(|entry| number(entry.ok()?)).collect();
    let most = known.iter().copied().max().unwrap_or(0);
    if args.data.is_some() && most > args.nodes {
        let text =
            format!("{}: a herd of {most} nodes was here: give --nodes {most}, or another --data", dir.display());
        return Err(Failure::new(USAGE, text));
    }
    if args.data.is_none() {
        for number in known {
            let home = home(dir, number);
            fs::remove_dir_all(&home).map_err(Failure::local(home.display()))?;
        }
    }
    Ok(())
}

pub(crate) fn down(args: &DownArgs) -> Outcome {
    let dir = place(args.data.as_deref())?;
    let up = hint("up", args.data.as_deref());
    let none = || Failure::new(NOT_SO, format!("no herd runs in {}: {up} starts one", dir.display()));
    if !dir.join(LOCK).exists() || is_free(&dir)? {
        return Err(none());
    }
    let starting = || Failure::new(REFUSED, "the herd is only starting: try again in a moment");
    let keeper = read(&dir).as_ref().and_then(Process::of).ok_or_else(starting)?;
    if !keeper.runs() {
        if is_free(&dir)? {
            return Err(none());
        }
        let text = format!("the herd's keeper, process {}, can't be seen from here", keeper.pid);
        return Err(Failure::new(REFUSED, text + ": run `herd down` where `herd up` was run, with /proc there"));
    }
    keeper.signal(Signal::TERM);
    if is_over(&dir, DOWN_PATIENCE)? {
        return Ok(());
    }
    // Its nodes are told by the kernel that it is gone.
    keeper.signal(Signal::KILL);
    let text = || Failure::new(REFUSED, format!("the herd's keeper, process {}, does not end", keeper.pid));
    if is_over(&dir, KILL_PATIENCE)? { Ok(()) } else { Err(text()) }
}

/// A process, as it was noted.
struct Process {
    pid: i32,
    /// See [`began`].
    began: Option<u64>,
}

impl Process {
    /// The keeper that has written this.
    fn of(state: &Value) -> Option<Self> {
        let pid = i32::try_from(state["pid"].as_i64()?).ok().filter(|pid| *pid > 0)?;
        Some(Self { pid, began: state["began"].as_u64() })
    }

    /// Whether it is the one that has this number now, as far as it can be told.
    fn runs(&self) -> bool {
        self.began.is_none() || began(self.pid) == self.began
    }

    /// What is gone already needs no signal.
    fn signal(&self, signal: Signal) {
        if let Some(pid) = Pid::from_raw(self.pid).filter(|_| self.runs()) {
            kill_process(pid, signal).ok();
        }
    }
}

/// When the process that has this number now began, as the kernel counts: field 22 of `/proc/PID/stat`. `None`: there
/// is none, or the system does not tell.
fn began(pid: i32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // Its name, field 2, may have blanks and brackets in it.
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

/// Whether the keeper ends in time.
fn is_over(dir: &Path, patience: Duration) -> Result<bool, Failure> {
    let until = Instant::now() + patience;
    while Instant::now() < until {
        if is_free(dir)? {
            return Ok(true);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(false)
}

fn read(dir: &Path) -> Option<Value> {
    serde_json::from_slice(&fs::read(dir.join(STATE)).ok()?).ok()
}

/// Writes what `down` needs, and people may want.
fn write(dir: &Path, addrs: &[String]) -> std::io::Result<()> {
    let log = |number| home(dir, number).with_extension("log");
    let node = |(number, addr): (u16, &String)| json!({"name": format!("n{number}"), "addr": addr, "log": log(number)});
    let nodes: Vec<Value> = (1..).zip(addrs).map(node).collect();
    let new = dir.join("up.json.new");
    let pid = std::process::id();
    let began = i32::try_from(pid).ok().and_then(began);
    fs::write(&new, json!({"pid": pid, "began": began, "nodes": nodes}).to_string() + "\n")?;
    fs::rename(new, dir.join(STATE))
}
