//! Herds that are struck, and what they answer. They wait more than they compute: `cargo xtask test`
//! runs them beside other tests.

use crate::{beside, path, release, runs, skipped, text};
use std::path::Path;
use std::process::{Command, Output};
use std::sync::OnceLock;

#[test]
fn memcached_commands_are_answered_as_memcached_answers_them() {
    let _beside = beside();
    for (nodes, copies) in [("1", "1"), ("3", "1"), ("3", "3")] {
        let arguments =
            ["differ", "--herd", &path("herd"), "--commands", "4000", "--nodes", nodes, "--replicas", copies];
        let Some(printed) = runs("the comparison with memcached", &arguments) else { return };
        assert!(printed.contains("PASS"), "{printed}");
    }
}

/// How long nodes that fall are missed is measured elsewhere; here each line must be measured, and nothing be wrong.
#[test]
fn nothing_is_wrong_when_nodes_fall() {
    let _beside = beside();
    let arguments = ["failover", "--short", "--herd", &path("herd"), "--out", &path("failover-short")];
    let Some(printed) = runs("nodes that fall", &arguments) else { return };
    for line in ["kill", "stop", "detach", "warden", "paused", "map", "idle", "rolling"] {
        let is_row = |row: &str| row.split_whitespace().nth(1) == Some(line);
        assert!(printed.lines().any(is_row), "no row of {line}:\n{printed}");
    }
}

fn go(arguments: &[&str]) -> Output {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("histories");
    Command::new("go").args(arguments).current_dir(sources).output().expect("go runs")
}

/// Whether the checker of histories is there: it is tested and built once.
fn has_checker() -> bool {
    static DONE: OnceLock<bool> = OnceLock::new();
    *DONE.get_or_init(|| {
        if Command::new("go").arg("version").output().is_err() {
            skipped("histories and faults", "no go (Debian: golang-go)");
            return false;
        }
        let program = release().join("herd-histories").display().to_string();
        let build = ["build", "-mod=readonly", "-buildvcs=false", "-trimpath", "-o", &program, "."];
        for arguments in [&["test", "-mod=readonly", "./..."][..], &build] {
            let output = go(arguments);
            assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
        }
        true
    })
}

#[test]
fn histories_of_real_nodes_are_legal() {
    let _beside = beside();
    if has_checker() {
        let arguments = ["histories", "--herd", &path("herd"), "--out", &path("histories-short"), "--nodes", "3"];
        runs("histories", &[&arguments[..], &["--histories", "6", "--operations", "1000"]].concat());
    }
}

#[test]
fn faults_lose_nothing() {
    let _beside = beside();
    if has_checker() {
        runs("faults", &["faults", "--short", "--herd", &path("herd"), "--out", &path("faults-short")]);
    }
}
