//! `cargo xtask tour` (`make run`): a herd of three nodes, a real tree into it and back, compared; then it is left
//! serving.
//!
//! Environment: `DIR` another tree, `PORT` the first port to try, `ONCE=1` to end after the comparison.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

const HERD: &str = "target/release/herd";
/// Ports tried, one after the other.
const PORTS: u16 = 20;

/// Nodes of the herd.
const NODES: usize = 3;

/// A started herd, stopped when it goes.
struct Herd {
    children: Vec<Child>,
    addrs: Vec<String>,
    /// What its nodes keep on disk.
    dir: PathBuf,
}

impl Drop for Herd {
    fn drop(&mut self) {
        for child in &self.children {
            // It may be gone already; then there is nothing to stop.
            Command::new("kill").args(["-TERM", &child.id().to_string()]).stderr(Stdio::null()).status().ok();
        }
        self.children.iter_mut().for_each(|child| drop(child.wait()));
        fs::remove_dir_all(&self.dir).ok();
    }
}

pub(crate) fn run() -> Result<(), String> {
    let temporary = |what: &str| std::env::temp_dir().join(format!("herd-tour-{what}-{}", std::process::id()));
    let mut herd = Herd { children: Vec::new(), addrs: Vec::new(), dir: temporary("nodes") };
    herd.start(first_port(std::env::var("PORT").ok())?)?;
    let back = temporary("back");
    let done = trees().iter().try_for_each(|tree| round(&herd, tree, &back));
    // The copy is only for the comparison.
    fs::remove_dir_all(&back).ok();
    done?;
    if std::env::var("ONCE").is_ok_and(|once| once == "1") {
        return Ok(());
    }
    let addr = &herd.addrs[0];
    println!("\nThe herd serves on {} until Ctrl-C. Try, in another terminal:", herd.addrs.join(", "));
    println!("  {HERD} status --node {addr}");
    println!("  echo hello | {HERD} put greeting --node {addr} && {HERD} get greeting --node {}", herd.addrs[1]);
    println!("  curl http://{}/o/default/greeting", herd.addrs[2]);
    let mut herd = herd;
    herd.children[0].wait().map(|_| ()).map_err(|error| error.to_string())
}

/// The first port to try: `PORT`, or 7700.
fn first_port(given: Option<String>) -> Result<u16, String> {
    let Some(text) = given.filter(|text| !text.is_empty()) else {
        return Ok(7700);
    };
    let port = text.parse().ok().filter(|port| (1..=u16::MAX - PORTS).contains(port));
    port.ok_or_else(|| format!("PORT={text} is not a port: write a number from 1 to {}", u16::MAX - PORTS))
}

/// The trees to copy: `DIR`, or what every Debian has.
fn trees() -> Vec<PathBuf> {
    if let Some(dir) = std::env::var_os("DIR") {
        return vec![dir.into()];
    }
    let mut found = vec![PathBuf::from("/usr/share/doc")];
    let python = fs::read_dir("/usr/lib").into_iter().flatten().flatten().map(|entry| entry.path());
    found.extend(python.filter(|path| {
        path.is_dir() && path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("python3"))
    }));
    found.retain(|path| path.is_dir());
    found
}

impl Herd {
    /// Starts all nodes: the first at the first port that is free, the others at any.
    fn start(&mut self, first: u16) -> Result<(), String> {
        let is_free = |port: &u16| {
            let is_free = std::net::TcpListener::bind(("127.0.0.1", *port)).is_ok();
            if !is_free {
                println!("port {port} is taken, trying the next");
            }
            is_free
        };
        let port = (first..first + PORTS).find(is_free);
        let port = port.ok_or_else(|| format!("ports {first} to {} are taken", first + PORTS - 1))?;
        (0..NODES).try_for_each(|number| self.start_node(if number == 0 { port } else { 0 }))
    }

    fn start_node(&mut self, port: u16) -> Result<(), String> {
        let name = format!("n{}", self.addrs.len() + 1);
        let mut command = Command::new(HERD);
        command.args(["node", "--listen", &format!("127.0.0.1:{port}"), "--name", &name, "--log", "warn"]);
        // Together they have half of the machine's, as one node alone would.
        command.args(["--memory", &format!("{}k", memory_kib()? / 2 / NODES as u64), "--data"]);
        command.arg(self.dir.join(&name)).stdout(Stdio::piped());
        if let Some(first) = self.addrs.first() {
            command.args(["--join", first]);
        }
        let mut child = command.spawn().map_err(|error| format!("{HERD}: {error}"))?;
        let out = child.stdout.take().ok_or("no output of the node")?;
        self.children.push(child);
        let mut lines = BufReader::new(out).lines().map_while(Result::ok);
        // Where there is none it ended by itself, and its error is on the screen.
        let addr = lines.find_map(|line| line.strip_prefix("ready ").map(str::to_owned));
        self.addrs.push(addr.ok_or_else(|| format!("node {name} could not be started"))?);
        Ok(())
    }
}

/// The machine's memory, KiB.
fn memory_kib() -> Result<u64, String> {
    let text = fs::read_to_string("/proc/meminfo").map_err(|error| format!("/proc/meminfo: {error}"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches("kB").trim().parse().ok());
    kib.ok_or_else(|| "/proc/meminfo has no MemTotal".into())
}

/// One tree into the herd, back, and compared.
fn round(node: &Herd, tree: &Path, back: &Path) -> Result<(), String> {
    let name: String =
        tree.to_string_lossy().chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    let collection = format!("tour{name}");
    herd(node, &["collection", "create", &collection])?;
    let key = format!("herd:{collection}");
    let (files, bytes) = size(tree);
    let begin = Instant::now();
    herd(node, &["cp", "-q", "-r", &tree.to_string_lossy(), &key])?;
    say("in", tree, files, bytes, begin);
    let target = back.join(&name);
    fs::create_dir_all(back).map_err(|error| format!("{}: {error}", back.display()))?;
    let begin = Instant::now();
    herd(node, &["cp", "-q", "-r", &key, &target.to_string_lossy()])?;
    say("out", tree, files, bytes, begin);
    let mut different = Vec::new();
    compare(tree, &target, &mut different);
    herd(node, &["collection", "rm", &collection])?;
    if different.is_empty() {
        println!("{}: content, links, modes and times are the same", tree.display());
        return Ok(());
    }
    Err(format!("{} differences, the first: {}", different.len(), different[0]))
}

fn say(way: &str, tree: &Path, files: u64, bytes: u64, begin: Instant) {
    let seconds = begin.elapsed().as_secs_f64();
    let (per_s, mb_per_s) = (files as f64 / seconds, bytes as f64 / 1e6 / seconds);
    println!(
        "{} {way}: {files} entries, {:.1} MB: {per_s:.0} files/s, {mb_per_s:.0} MB/s",
        tree.display(),
        bytes as f64 / 1e6
    );
}

fn herd(node: &Herd, args: &[&str]) -> Result<(), String> {
    let status = Command::new(HERD).args(args).args(["--node", &node.addrs[0]]).status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("herd {}: {status}", args.join(" "))),
        Err(error) => Err(format!("{HERD}: {error}")),
    }
}

/// Entries and bytes of a tree.
fn size(dir: &Path) -> (u64, u64) {
    let mut sum = (0, 0);
    for path in fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()) {
        let Ok(meta) = fs::symlink_metadata(&path) else {
            continue;
        };
        let below = if meta.is_dir() { size(&path) } else { (0, if meta.is_file() { meta.len() } else { 0 }) };
        sum = (sum.0 + 1 + below.0, sum.1 + below.1);
    }
    sum
}

/// Lists what differs between two trees.
fn compare(one: &Path, two: &Path, different: &mut Vec<String>) {
    let names = |dir: &Path| -> Vec<_> {
        let mut names: Vec<_> = fs::read_dir(dir).into_iter().flatten().flatten().map(|e| e.file_name()).collect();
        names.sort();
        names
    };
    let (left, right) = (names(one), names(two));
    if left != right {
        different.push(format!("{}: other entries ({} and {})", one.display(), left.len(), right.len()));
        return;
    }
    for name in left {
        let (a, b) = (one.join(&name), two.join(&name));
        let (Ok(x), Ok(y)) = (fs::symlink_metadata(&a), fs::symlink_metadata(&b)) else {
            different.push(format!("{}: can't be read", a.display()));
            continue;
        };
        let times = (x.mtime(), x.mtime_nsec()) == (y.mtime(), y.mtime_nsec());
        if x.mode() != y.mode() || !times {
            different.push(format!("{}: mode or time", a.display()));
        }
        if x.is_dir() {
            compare(&a, &b, different);
        } else if x.is_symlink() && fs::read_link(&a).ok() != fs::read_link(&b).ok() {
            different.push(format!("{}: link", a.display()));
        } else if x.is_file() && fs::read(&a).ok() != fs::read(&b).ok() {
            different.push(format!("{}: content", a.display()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_port_is_refused_and_not_replaced() {
        let port = |text: &str| first_port(Some(text.into()));
        assert_eq!((first_port(None), port(""), port("8000")), (Ok(7700), Ok(7700), Ok(8000)));
        for text in ["abc", "0", "-1", "65535", "70000"] {
            assert!(port(text).is_err_and(|error| error.contains(text)), "{text}");
        }
    }
}
