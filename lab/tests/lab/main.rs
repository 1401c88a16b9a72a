//! The lab's own commands, in their short forms. Where this machine cannot make a network that one needs, the reason is
//! printed and the test is skipped.

mod measured;
mod struck;

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

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

/// Tells what is not tested; the harness would keep what is printed to itself.
fn skipped(what: &str, why: &str) {
    let told = writeln!(std::io::stdout(), "\nSKIPPED {what}: {}", why.trim().replace('\n', " "));
    told.expect("standard output is open");
}

/// Where the programs are that were built with this test, and what they write.
fn release() -> &'static Path {
    Path::new(LAB).parent().expect("a program is in a directory")
}

fn path(name: &str) -> String {
    release().join(name).display().to_string()
}

/// What the lab printed, if this machine lacks nothing that it needs.
fn runs(what: &str, arguments: &[&str]) -> Option<String> {
    let output = lab(arguments);
    let printed = text(&output.stdout) + &text(&output.stderr);
    if output.status.code() == Some(LACKING) {
        skipped(what, &printed);
        return None;
    }
    assert!(output.status.success(), "{printed}");
    Some(printed)
}

/// Why `network` cannot be made here, if it cannot; any other reason than those is the lab's own fault.
fn missing(network: &str) -> Option<String> {
    let output = lab(&["shell", network, "--", "true"]);
    let reason = text(&output.stderr).trim().to_owned();
    assert!(output.status.success() || output.status.code() == Some(LACKING), "{reason}");
    (!output.status.success()).then_some(reason)
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

#[test]
fn a_reader_that_has_enough_of_the_list_ends_it_quietly() {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let output = Command::new(LAB).arg("list").stdout(writer).output().expect("it runs");
    assert!(output.status.success() && output.stderr.is_empty(), "{}", text(&output.stderr));
}
