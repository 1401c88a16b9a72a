//! `cargo xtask test`: everything `make test` runs, with one line of counts at the end.

use std::io::{BufRead, BufReader, Write};
use std::ops::AddAssign;
use std::process::{Command, Stdio};

/// Tests passed, failed and skipped.
#[derive(Default)]
struct Counts {
    passed: u64,
    failed: u64,
    skipped: u64,
}

impl AddAssign for Counts {
    fn add_assign(&mut self, more: Self) {
        self.passed += more.passed;
        self.failed += more.failed;
        self.skipped += more.skipped;
    }
}

/// The client's tests once more, as it is built for asynchronous programs.
const CLIENT: [&str; 4] = ["--features", "herd-client/async", "--test", "client"];
/// Herds that the lab strikes wait more than they compute: they run beside the tests that do so, too, two at a time.
const STRUCK: [&str; 5] = ["--test", "lab", "--", "struck::", "--test-threads=2"];
/// What measures, if only in short, runs alone.
const MEASURED: [&str; 4] = ["--test", "lab", "--", "measured::"];
const OTHERS: [&str; 5] = ["--", "--skip", "struck::", "--skip", "measured::"];

pub(crate) fn run() -> Result<(), String> {
    // What is installed, too: built as here, so it is built once.
    succeed(cargo_test(&["--no-run"]))?;
    let (mut counts, mut shown) = (Counts::default(), std::io::stdout());
    std::thread::scope(|scope| {
        let beside = scope.spawn(beside);
        run_tests(cargo_test(&OTHERS), &mut counts, &mut shown)?;
        let (printed, more) = beside.join().map_err(|_| "the tests beside them panicked")??;
        counts += more;
        shown.write_all(&printed).map_err(|error| error.to_string())
    })?;
    run_tests(cargo_test(&MEASURED), &mut counts, &mut shown)?;
    step(&mut counts, "house rules", crate::tidy::run());
    let mut build = Command::new(cargo());
    build.args(["build", "--release", "--locked"]);
    step(&mut counts, "build", succeed(build));
    step(&mut counts, "install", install());
    tour(&mut counts);
    println!("total: {} passed, {} failed, {} skipped", counts.passed, counts.failed, counts.skipped);
    if counts.failed == 0 { Ok(()) } else { Err(format!("{} failed", counts.failed)) }
}

/// What runs beside the others: what it printed, and its counts.
fn beside() -> Result<(Vec<u8>, Counts), String> {
    let (mut counts, mut printed) = (Counts::default(), Vec::new());
    run_tests(cargo_test(&STRUCK), &mut counts, &mut printed)?;
    let built = cargo_test(&[&CLIENT[..], &["--no-run"]].concat());
    let mut yields = Command::new("nice");
    yields.args(["-n", "19"]).arg(built.get_program()).args(built.get_args());
    succeed(yields)?;
    run_tests(cargo_test(&CLIENT), &mut counts, &mut printed)?;
    Ok((printed, counts))
}

fn cargo() -> String {
    std::env::var("CARGO").unwrap_or_else(|_| "cargo".into())
}

/// Tests of all crates, of these targets. They wait more than they compute: a fifth of the processor is used where as
/// many run at once as there are cores.
fn cargo_test(targets: &[&str]) -> Command {
    const THREADS: &str = "RUST_TEST_THREADS";
    let mut command = Command::new(cargo());
    command.args(["test", "--release", "--workspace", "--locked", "--no-fail-fast"]).args(targets);
    if std::env::var_os(THREADS).is_none() {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        command.env(THREADS, (3 * cores).to_string());
    }
    command
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

/// Runs cargo's tests, shows what they print and sums their counts.
fn run_tests(mut command: Command, counts: &mut Counts, shown: &mut impl Write) -> Result<(), String> {
    let mut child = command.stdout(Stdio::piped()).spawn().map_err(|error| format!("cargo: {error}"))?;
    let output = BufReader::new(child.stdout.take().ok_or("no output of cargo")?);
    let failed_before = counts.failed;
    for line in output.lines() {
        let line = line.map_err(|error| format!("cargo's output: {error}"))?;
        writeln!(shown, "{line}").map_err(|error| error.to_string())?;
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
    if !status.success() && counts.failed == failed_before {
        writeln!(shown, "FAILED {command:?}: {status}").map_err(|error| error.to_string())?;
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

fn succeed(mut command: Command) -> Result<(), String> {
    let status = command.status().map_err(|error| format!("{command:?}: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("{command:?}: {status}")) }
}
