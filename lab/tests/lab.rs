//! Every command of docs/guide/lab.md is run in the network it is meant for, and what it prints is compared.
//! Where this machine cannot make such a network, the reason is printed and the test is skipped.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

const LAB: &str = env!("CARGO_BIN_EXE_herd-lab");

/// They share the processor: what depends on how fast a network is runs alone.
static PROCESSOR: RwLock<()> = RwLock::new(());

fn alone() -> RwLockWriteGuard<'static, ()> {
    PROCESSOR.write().unwrap_or_else(PoisonError::into_inner)
}

/// Beside others that judge only what is answered.
fn beside() -> RwLockReadGuard<'static, ()> {
    PROCESSOR.read().unwrap_or_else(PoisonError::into_inner)
}

fn lab(arguments: &[&str]) -> Output {
    let mut command = Command::new(LAB);
    command.args(arguments).output().expect("the lab's program was built for this test")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The lab's exit code where the machine lacks namespaces, its own /proc, the device of distances, or programs.
const LACKING: i32 = 77;

/// Why `network` cannot be made here, if it cannot; any other reason than those is the lab's own fault.
fn missing(network: &str) -> Option<String> {
    let output = lab(&["shell", network, "--", "true"]);
    let reason = text(&output.stderr).trim().to_owned();
    assert!(output.status.success() || output.status.code() == Some(LACKING), "{reason}");
    (!output.status.success()).then_some(reason)
}

/// A `console` block: the network it is in (none: outside), its commands, and what they print.
struct Block {
    network: Option<String>,
    commands: Vec<String>,
    wanted: Vec<String>,
}

fn blocks() -> Vec<Block> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/guide/lab.md");
    let page = fs::read_to_string(page).expect("the guide is in the repository");
    let mut blocks: Vec<Block> = Vec::new();
    let mut open = false;
    for line in page.lines() {
        if let Some(language) = line.strip_prefix("```") {
            open = language.starts_with("console");
            if open {
                let network = language.split_once(' ').map(|(_, network)| network.to_owned());
                blocks.push(Block { network, commands: Vec::new(), wanted: Vec::new() });
            }
        } else if let (true, Some(block)) = (open, blocks.last_mut()) {
            match line.strip_prefix("$ ") {
                Some(command) => block.commands.push(command.to_owned()),
                None => block.wanted.push(line.to_owned()),
            }
        }
    }
    blocks
}

#[test]
fn the_guides_commands_do_what_it_says() {
    let _alone = alone();
    let blocks = blocks();
    assert_eq!(blocks.len(), 5, "blocks of the guide");
    for block in blocks {
        let network = block.network.as_deref().unwrap_or("sites");
        if let Some(reason) = missing(network) {
            println!("SKIPPED the guide's {network}: {reason}");
            continue;
        }
        let pings = block.commands.iter().any(|command| command.starts_with("ping "));
        if pings && Command::new("ping").arg("-V").output().is_err() {
            println!("SKIPPED the guide's {network}: no ping (Debian: iputils-ping)");
            continue;
        }
        let masked =
            block.commands.iter().find(|command| command.contains("||") && !command.ends_with("echo \"exit $?\""));
        assert_eq!(masked, None, "what may fail shows how");
        let script = block.commands.join("\n");
        let inside = format!("set -e\nexec 2>&1\n{script}");
        let output = match &block.network {
            Some(network) => lab(&["shell", network, "--", "sh", "-c", &inside]),
            None => lab(&script.split(' ').skip(1).collect::<Vec<_>>()),
        };
        let printed = text(&output.stdout) + &text(&output.stderr);
        assert!(output.status.success(), "{script}\n{printed}");
        assert!(!printed.contains("FAIL"), "{printed}");
        // In order, each line once: what is printed beside them does not matter.
        let mut lines = printed.lines();
        for wanted in &block.wanted {
            assert!(lines.any(|line| line.contains(wanted)), "{script}\nlacks, or has elsewhere: {wanted}\n{printed}");
        }
    }
}

#[test]
fn memcached_commands_are_answered_as_memcached_answers_them() {
    let _beside = beside();
    let herd = Path::new(LAB).with_file_name("herd").display().to_string();
    for (nodes, copies) in [("1", "1"), ("3", "1"), ("3", "3")] {
        let herds = ["--nodes", nodes, "--replicas", copies];
        let output = lab(&[&["differ", "--herd", &herd, "--commands", "4000"][..], &herds].concat());
        let printed = text(&output.stdout) + &text(&output.stderr);
        if output.status.code() == Some(LACKING) {
            println!("SKIPPED the comparison with memcached: {}", printed.trim());
            return;
        }
        assert!(output.status.success() && printed.contains("PASS"), "{printed}");
    }
}

#[test]
fn a_typo_is_told() {
    let output = lab(&["shell", "piar"]);
    assert!(!output.status.success());
    assert!(text(&output.stderr).contains("pair"), "{}", text(&output.stderr));
    for outside in [&["on", "two", "true"][..], &["net", "cut", "two"]] {
        let output = lab(outside);
        assert!(text(&output.stderr).contains("inside `herd-lab shell` only"), "{}", text(&output.stderr));
    }
}

/// The scheduling class of every thread of a process (field 41 of its stat, proc(5)); 5 is SCHED_IDLE.
fn classes(pid: u32) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let stats = tasks.filter_map(|task| fs::read_to_string(task.path().join("stat")).ok());
    let class = |stat: String| Some(stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(38)?.to_owned());
    stats.filter_map(class).collect()
}

#[test]
fn what_keeps_the_processor_awake_yields_to_all_else() {
    let cores = std::thread::available_parallelism().expect("the system tells").get();
    let mut awake = Command::new(LAB).arg("awake").spawn().expect("the lab's program was built for this test");
    let idle = || classes(awake.id()).iter().filter(|class| *class == "5").count();
    let start = Instant::now();
    while idle() < cores && start.elapsed() < Duration::from_secs(10) {
        std::thread::sleep(Duration::from_millis(10));
    }
    let (found, all) = (idle(), classes(awake.id()).len());
    awake.kill().and_then(|()| awake.wait()).expect("it runs until it is killed");
    // The first thread only waits for the others.
    assert_eq!((found, all), (cores, cores + 1));
}

#[test]
fn each_figure_can_be_measured() {
    let _alone = alone();
    let release = Path::new(LAB).parent().expect("a program is in a directory");
    if let Some(reason) = missing("pair") {
        println!("SKIPPED the figures: {reason}");
        return;
    }
    let out = release.join("figures-short");
    // It is not there the first time.
    fs::remove_dir_all(&out).ok();
    let (herd, out) = (release.join("herd").display().to_string(), out.display().to_string());
    for figure in ["hoc-throughput", "hoc-speedup", "hoc-mixed", "adhoc-array", "herd-elastic", "peers"] {
        let output = lab(&["figure", figure, "--short", "--herd", &herd, "--out", &out]);
        let printed = text(&output.stdout) + &text(&output.stderr);
        assert!(output.status.success() && printed.contains("0 runs failed"), "{printed}");
    }
    let files: Vec<String> = fs::read_dir(&out)
        .expect("the figures wrote there")
        .map(|entry| entry.expect("readable").file_name().to_string_lossy().into_owned())
        .collect();
    let count = |ending: &str| files.iter().filter(|file| file.ends_with(ending)).count();
    assert_eq!((count(".jsonl"), count(".svg")), (6, 8), "{files:?}");
}

/// How long nodes that fall are missed is measured elsewhere; here each line must be measured, and nothing be wrong.
#[test]
fn nothing_is_wrong_when_nodes_fall() {
    let _beside = beside();
    let release = Path::new(LAB).parent().expect("a program is in a directory");
    let path = |name: &str| release.join(name).display().to_string();
    let output = lab(&["failover", "--short", "--herd", &path("herd"), "--out", &path("failover-short")]);
    let printed = text(&output.stdout) + &text(&output.stderr);
    assert!(output.status.success(), "{printed}");
    for line in ["kill", "stop", "warden", "paused", "map", "idle", "rolling"] {
        let is_row = |row: &str| row.split_whitespace().nth(1) == Some(line);
        assert!(printed.lines().any(is_row), "no row of {line}:\n{printed}");
    }
}

#[test]
fn a_reader_that_has_enough_of_the_list_ends_it_quietly() {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let output = Command::new(LAB).arg("list").stdout(writer).output().expect("it runs");
    assert!(output.status.success() && output.stderr.is_empty(), "{}", text(&output.stderr));
}
