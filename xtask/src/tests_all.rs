//! `cargo xtask test`: everything `make test` runs, with one line of counts at the end.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

/// Tests passed, failed and skipped.
#[derive(Default)]
struct Counts {
    passed: u64,
    failed: u64,
    skipped: u64,
}

pub(crate) fn run() -> Result<(), String> {
    let mut counts = Counts::default();
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    const ALL: [&str; 5] = ["test", "--release", "--workspace", "--locked", "--no-fail-fast"];
    // What is measured and installed, too: built as here, so it is built once.
    let mut tests = Command::new(&cargo);
    tests.args(ALL);
    cargo_tests(tests, &mut counts)?;
    let mut client = Command::new(&cargo);
    client.args(ALL).args(["--features", "herd-client/async", "--test", "client"]);
    cargo_tests(client, &mut counts)?;
    step(&mut counts, "house rules", crate::tidy::run());
    let mut build = Command::new(&cargo);
    build.args(["build", "--release", "--locked"]);
    step(&mut counts, "build", succeed(build));
    step(&mut counts, "install", install());
    tour(&mut counts);
    bench(&mut counts);
    histories(&mut counts);
    println!("total: {} passed, {} failed, {} skipped", counts.passed, counts.failed, counts.skipped);
    if counts.failed == 0 { Ok(()) } else { Err(format!("{} failed", counts.failed)) }
}

fn step(counts: &mut Counts, what: &str, result: Result<(), String>) {
    match result {
        Ok(()) => counts.passed += 1,
        Err(text) => {
            println!("FAILED {what}: {text}");
            counts.failed += 1;
        }
    }
}

/// Runs cargo's tests, shows what they print and sums their counts. They wait more than they compute: a fifth of the
/// processor is used where as many run at once as there are cores.
fn cargo_tests(mut command: Command, counts: &mut Counts) -> Result<(), String> {
    const THREADS: &str = "RUST_TEST_THREADS";
    if std::env::var_os(THREADS).is_none() {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        command.env(THREADS, (2 * cores).to_string());
    }
    let mut child = command.stdout(Stdio::piped()).spawn().map_err(|error| format!("cargo: {error}"))?;
    let output = BufReader::new(child.stdout.take().ok_or("no output of cargo")?);
    for line in output.lines() {
        let line = line.map_err(|error| format!("cargo's output: {error}"))?;
        println!("{line}");
        let number = |word: &str| -> u64 {
            let before = line.split(word).next().unwrap_or("");
            before.split_whitespace().next_back().and_then(|n| n.parse().ok()).unwrap_or(0)
        };
        if line.starts_with("test result:") {
            counts.passed += number(" passed");
            counts.failed += number(" failed");
            counts.skipped += number(" ignored");
        } else if line.starts_with("SKIPPED") {
            counts.skipped += 1;
        }
    }
    let status = child.wait().map_err(|error| format!("cargo: {error}"))?;
    if !status.success() && counts.failed == 0 {
        println!("FAILED cargo test: {status}");
        counts.failed += 1;
    }
    Ok(())
}

/// `make install` into an empty directory: the binary and all that comes with it are there.
fn install() -> Result<(), String> {
    const DIR: &str = "target/install-check";
    const FILES: [&str; 5] = [
        "bin/herd",
        "share/man/man1/herd.1",
        "share/bash-completion/completions/herd",
        "share/zsh/site-functions/_herd",
        "share/fish/vendor_completions.d/herd.fish",
    ];
    // It is not there the first time.
    std::fs::remove_dir_all(DIR).ok();
    let mut make = Command::new("make");
    make.args(["install", "PREFIX=/usr/local", &format!("DESTDIR={DIR}")]);
    succeed(make)?;
    let is_there = |file: &&str| std::fs::metadata(format!("{DIR}/usr/local/{file}")).is_ok_and(|file| file.len() > 0);
    match FILES.iter().find(|file| !is_there(file)) {
        Some(file) => Err(format!("{DIR} has no {file}")),
        None => Ok(()),
    }
}

/// The tour of `make run` on a small tree, once.
fn tour(counts: &mut Counts) {
    let mut tour = Command::new("target/release/xtask");
    tour.arg("tour").env("ONCE", "1").env("DIR", "crates").env("PORT", "17700");
    step(counts, "tour", succeed(tour));
}

/// The one-minute form of the bench: every arm runs and answers rightly.
fn bench(counts: &mut Counts) {
    let mut bench = Command::new("target/release/herd-lab");
    bench.args(["bench", "--short", "--herd", "target/release/herd", "--out", "target/bench-short"]);
    step(counts, "bench, short form", succeed(bench));
}

/// The checker of histories passes its own tests, a few histories of real nodes pass the checker, and a few faults lose
/// nothing.
fn histories(counts: &mut Counts) {
    const CHECKER: &str = "../../target/release/herd-histories";
    if Command::new("go").arg("version").stdout(Stdio::null()).status().is_err() {
        println!("SKIPPED histories: no go (Debian: golang-go)");
        counts.skipped += 1;
        return;
    }
    let go = |arguments: &[&str]| {
        let mut go = Command::new("go");
        go.args(arguments).current_dir("lab/histories");
        succeed(go)
    };
    step(counts, "tests of the checker of histories", go(&["test", "-mod=readonly", "./..."]));
    let built = go(&["build", "-mod=readonly", "-buildvcs=false", "-trimpath", "-o", CHECKER, "."]);
    let is_built = built.is_ok();
    step(counts, "the checker of histories", built);
    if is_built {
        let mut short = Command::new("target/release/herd-lab");
        short.args(["histories", "--herd", "target/release/herd", "--out", "target/histories-short"]);
        short.args(["--nodes", "3", "--histories", "6", "--operations", "1000"]);
        step(counts, "histories, short form", succeed(short));
        let mut short = Command::new("target/release/herd-lab");
        short.args(["faults", "--short", "--herd", "target/release/herd", "--out", "target/faults-short"]);
        step(counts, "faults, short form", succeed(short));
    }
}

fn succeed(mut command: Command) -> Result<(), String> {
    let status = command.status().map_err(|error| format!("{command:?}: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("{command:?}: {status}")) }
}
