//! What measures. Every command of docs/guide/lab.md is run in the network it is meant for, and what it prints is
//! compared. `cargo xtask test` runs these when nothing else runs: they keep the processor awake, and beside that some
//! kernels let others wait for seconds.

use crate::{LAB, alone, lab, missing, path, release, runs, skipped, text};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

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
            skipped(&format!("the guide's {network}"), &reason);
            continue;
        }
        let pings = block.commands.iter().any(|command| command.starts_with("ping "));
        if pings && Command::new("ping").arg("-V").output().is_err() {
            skipped(&format!("the guide's {network}"), "no ping (Debian: iputils-ping)");
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
fn each_figure_can_be_measured() {
    let _alone = alone();
    if let Some(reason) = missing("pair") {
        return skipped("the figures", &reason);
    }
    let out = release().join("figures-short");
    // It is not there the first time.
    fs::remove_dir_all(&out).ok();
    for figure in ["hoc-throughput", "hoc-speedup", "hoc-mixed", "adhoc-array", "herd-elastic", "peers"] {
        let out = out.display().to_string();
        let output = lab(&["figure", figure, "--short", "--herd", &path("herd"), "--out", &out]);
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

#[test]
fn each_line_of_the_bench_is_answered_rightly() {
    let _alone = alone();
    runs("the bench", &["bench", "--short", "--herd", &path("herd"), "--out", &path("bench-short")]);
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
    let _alone = alone();
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
