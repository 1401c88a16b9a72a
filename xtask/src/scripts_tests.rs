//! Tests of `scripts/toolchain` and `scripts/need`: a PATH of made-up commands stands for a machine that has, or lacks,
//! what the project needs.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// A machine that has no command but those given to it.
struct Machine {
    dir: PathBuf,
}

/// How a script ended.
#[derive(Debug)]
struct Ended {
    status: Option<i32>,
    out: String,
    error: String,
}

impl Machine {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("herd-scripts-{}-{}", std::process::id(), COUNT.fetch_add(1, Relaxed));
        let dir = std::env::temp_dir().join(name);
        fs::create_dir_all(dir.join("bin")).expect("a directory");
        let dirname = ["/usr/bin/dirname", "/bin/dirname"].into_iter().find(|path| Path::new(path).exists());
        symlink(dirname.expect("every system has it"), dir.join("bin/dirname")).expect("linked");
        Self { dir }
    }

    /// Adds a command with this shell text.
    fn with(self, name: &str, text: &str) -> Self {
        self.write(&format!("bin/{name}"), text);
        self
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.dir.join(path);
        fs::write(&path, format!("#!/bin/sh\n{text}\n")).expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("set");
    }

    /// Runs `scripts/NAME` there.
    fn run(&self, script: &str, args: &[&str]) -> Ended {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies within the project");
        let output = Command::new(root.join("scripts").join(script))
            .args(args)
            .env_clear()
            .env("PATH", self.dir.join("bin"))
            .env("HOME", &self.dir)
            .output()
            .expect("it runs");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ended { status: output.status.code(), out: text(&output.stdout), error: text(&output.stderr) }
    }

    /// What was asked of apt-get, a line a call.
    fn asked_of_apt(&self) -> String {
        fs::read_to_string(self.dir.join("apt")).unwrap_or_default()
    }

    /// A machine whose apt-get notes what it is asked and then does as `text` says.
    fn with_apt(self, uid: u32, text: &str) -> Self {
        let note = format!("echo \"$*\" >> \"{}\"\n{text}", self.dir.join("apt").display());
        self.with("id", &format!("echo {uid}")).with("apt-get", &note)
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // What can't be removed is left to the system.
        fs::remove_dir_all(&self.dir).ok();
    }
}

impl Ended {
    /// It refused with one line on stderr that has all these words.
    fn refused(&self, words: &[&str]) {
        let one_line = self.error.lines().count() == 1;
        assert!(self.status == Some(2) && one_line && words.iter().all(|word| self.error.contains(word)), "{self:?}");
    }

    /// It ended well and said nothing.
    fn silent(&self) {
        assert!(self.status == Some(0) && self.out.is_empty() && self.error.is_empty(), "{self:?}");
    }
}

/// A machine with a C compiler and this cargo.
fn with_cargo(version: &str) -> Machine {
    Machine::new().with("cc", "exit 0").with("cargo", &format!("echo '{version}'"))
}

#[test]
fn without_cargo_it_says_how_to_get_it() {
    Machine::new().with("cc", "exit 0").run("toolchain", &[]).refused(&["Rust 1.95", "https://rustup.rs"]);
}

#[test]
fn a_cargo_of_rustup_without_a_toolchain_counts_as_none() {
    let text = "echo 'error: rustup could not choose a version of cargo to run' >&2; exit 1";
    Machine::new().with("cargo", text).run("toolchain", &[]).refused(&["rustup default stable"]);
}

#[test]
fn a_cargo_that_is_not_on_the_path_is_found() {
    let machine = Machine::new();
    fs::create_dir_all(machine.dir.join(".cargo/bin")).expect("made");
    machine.write(".cargo/bin/cargo", "echo 'cargo 1.95.0'");
    machine.run("toolchain", &[]).refused(&["not on PATH", ". \"$HOME/.cargo/env\""]);
}

#[test]
fn an_old_cargo_is_too_old() {
    for version in ["cargo 1.80.0 (376290515 2024-07-16)", "cargo 1.9.0", "cargo 1.94.1"] {
        with_cargo(version).run("toolchain", &[]).refused(&["is too old", "1.95", "rustup update stable"]);
    }
    with_cargo("cargo 1.80.0 (376290515 2024-07-16)").run("toolchain", &[]).refused(&["Rust 1.80.0"]);
}

#[test]
fn a_new_cargo_is_good() {
    for version in ["cargo 1.95.0 (59807616e 2026-04-14)", "cargo 1.100.0-nightly (0 2027-01-01)", "cargo 2.0.0"] {
        with_cargo(version).run("toolchain", &[]).silent();
    }
}

#[test]
fn without_a_c_compiler_its_packages_are_named() {
    let machine = Machine::new().with("cargo", "echo 'cargo 1.95.0'").with_apt(1000, "exit 1");
    machine.run("toolchain", &[]).refused(&["sudo apt-get install -y gcc libc6-dev"]);
}

#[test]
fn who_is_not_root_is_told_one_line_to_run() {
    let machine = Machine::new().with("there", "exit 0").with_apt(1000, "exit 0");
    let ended = machine.run("need", &["one=herd-none-1", "has=there", "two=herd-none-2"]);
    ended.refused(&["sudo apt-get install -y one two\n"]);
    assert!(!ended.error.contains("has") && machine.asked_of_apt().is_empty(), "{ended:?}");
}

#[test]
fn where_nothing_is_missing_need_is_silent() {
    let machine = Machine::new().with("there", "exit 0").with_apt(0, "exit 1");
    machine.run("need", &["has=there"]).silent();
    assert!(machine.asked_of_apt().is_empty());
}

#[test]
fn root_has_what_is_missing_installed() {
    let machine = Machine::new().with("there", "exit 0").with_apt(0, "exit 0");
    let ended = machine.run("need", &["one=herd-none-1", "has=there", "two=herd-none-2"]);
    assert!(ended.status == Some(0) && ended.error.is_empty(), "{ended:?}");
    assert_eq!(machine.asked_of_apt(), "install -y -qq one two\n");
}

#[test]
fn package_lists_are_fetched_once_when_they_are_old() {
    let machine = Machine::new();
    let fresh = machine.dir.join("fresh").display().to_string();
    let text = format!("case $1 in update) : > {fresh} ;; *) [ -e {fresh} ] || exit 100 ;; esac");
    let machine = machine.with_apt(0, &text);
    let ended = machine.run("need", &["one=herd-none-1"]);
    assert!(ended.status == Some(0) && ended.error.is_empty(), "{ended:?}");
    assert_eq!(machine.asked_of_apt(), "install -y -qq one\nupdate -qq\ninstall -y -qq one\n");
}

#[test]
fn one_list_that_can_t_be_fetched_does_not_keep_the_others_from_use() {
    let machine = Machine::new();
    let fresh = machine.dir.join("fresh").display().to_string();
    let text = format!("case $1 in update) : > {fresh}; exit 100 ;; *) [ -e {fresh} ] || exit 100 ;; esac");
    let ended = machine.with_apt(0, &text).run("need", &["one=herd-none-1"]);
    assert!(ended.status == Some(0) && ended.error.is_empty(), "{ended:?}");
}

#[test]
fn an_apt_that_fails_is_told_with_the_line_to_run() {
    let machine = Machine::new().with_apt(0, "exit 100");
    machine.run("need", &["one=herd-none-1"]).refused(&["could not install one", "apt-get install -y one"]);
}

#[test]
fn without_apt_the_packages_are_named() {
    let ended = Machine::new().with("id", "echo 0").run("need", &["one=herd-none-1", "two=herd-none-2"]);
    ended.refused(&["no apt-get", "one two"]);
}
