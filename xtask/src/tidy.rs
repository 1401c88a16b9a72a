//! `cargo xtask tidy`: the rules of STYLE.md that can be checked by reading files. Also run as a test.

use crate::links;
use std::fs;
use std::path::{Path, PathBuf};

const LINE_MAX: usize = 120;
const FILE_MAX_LINES: usize = 1000;
const FUNCTION_MAX_LINES: usize = 70;
const BLOB_MAX_BYTES: u64 = 1 << 20;

/// Files that may have `unsafe`, each use with its `// SAFETY:`. An allocator that counts, by which the fuzz driver
/// finds growth, can't be written without.
const UNSAFE_ALLOWED: [&str; 5] = [
    "crates/herd-net/src/sys.rs",
    "crates/herd-store/src/arena.rs",
    "fuzz/src/alloc.rs",
    "lab/src/sys.rs",
    "lab/src/relay/tun.rs",
];

/// Which crates of the project each crate may use.
const EDGES: [(&str, &[&str]); 10] = [
    ("crates/herd-core", &[]),
    ("crates/herd-store", &["herd-core"]),
    ("crates/herd-net", &["herd-core"]),
    ("crates/herd-client", &["herd-core", "herd-net"]),
    ("crates/herd-node", &["herd-core", "herd-store", "herd-net"]),
    ("crates/herd", &["herd-core", "herd-client", "herd-node"]),
    ("crates/herd-sim", &["herd-core", "herd-net", "herd-client", "herd-node"]),
    ("fuzz", &["herd-core", "herd-net", "herd-node"]),
    ("lab", &["herd-client"]),
    ("xtask", &[]),
];

pub(crate) fn run() -> Result<(), String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().ok_or("xtask lies within the project")?;
    let mut faults = Vec::new();
    let paths = tracked(root)?;
    let name = |path: &PathBuf| path.strip_prefix(root).unwrap_or(path).to_string_lossy().into_owned();
    let names: Vec<String> = paths.iter().map(name).collect();
    for (path, name) in paths.iter().zip(&names) {
        check_file(path, name, &mut faults)?;
        if name.ends_with(".md") {
            let text = fs::read_to_string(path).map_err(|error| format!("{name}: {error}"))?;
            links::check(root, name, &text, &names, &mut faults);
        }
    }
    for (krate, allowed) in EDGES {
        check_edges(root, krate, allowed, &mut faults)?;
    }
    if faults.is_empty() { Ok(()) } else { Err(format!("{} faults:\n{}", faults.len(), faults.join("\n"))) }
}

/// All files below `root` but build output and version control.
fn tracked(root: &Path) -> Result<Vec<PathBuf>, String> {
    let mut found = Vec::new();
    let mut open = vec![root.to_path_buf()];
    while let Some(dir) = open.pop() {
        for entry in fs::read_dir(&dir).map_err(|error| format!("{}: {error}", dir.display()))? {
            let path = entry.map_err(|error| error.to_string())?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let skipped = ["target", ".git", "results", "artifacts", "coverage"].contains(&name.as_str());
            match path.is_dir() {
                true if !skipped => open.push(path),
                true => {}
                false => found.push(path),
            }
        }
    }
    found.sort();
    Ok(found)
}

fn check_file(path: &Path, name: &str, faults: &mut Vec<String>) -> Result<(), String> {
    let size = fs::metadata(path).map_err(|error| format!("{name}: {error}"))?.len();
    if size > BLOB_MAX_BYTES {
        faults.push(format!("{name}: {size} bytes is over 1 MiB"));
        return Ok(());
    }
    if name.ends_with(".rs") {
        let text = fs::read_to_string(path).map_err(|error| format!("{name}: {error}"))?;
        check_rust(name, &text, faults);
    }
    Ok(())
}

fn check_rust(name: &str, text: &str, faults: &mut Vec<String>) {
    if !text.starts_with("//!") {
        faults.push(format!("{name}:1: a module opens with //! and its purpose"));
    }
    if text.lines().count() > FILE_MAX_LINES {
        faults.push(format!("{name}: over {FILE_MAX_LINES} lines"));
    }
    let uses_unsafe = |line: &str| line.contains("unsafe {") || line.contains("unsafe impl");
    let mut before = ["", ""];
    for (number, line) in text.lines().enumerate() {
        let at = format!("{name}:{}", number + 1);
        if line.chars().count() > LINE_MAX {
            faults.push(format!("{at}: over {LINE_MAX} columns"));
        }
        // The words are put together here so that this file does not find itself.
        for word in [concat!("FIX", "ME"), concat!("X", "XX"), concat!("dbg", "!("), concat!("todo", "!(")] {
            if line.contains(word) {
                faults.push(format!("{at}: left over: {word}"));
            }
        }
        if uses_unsafe(line) && name != "xtask/src/tidy.rs" {
            let told = before.iter().any(|line| line.contains("SAFETY:") || line.contains("allow(unsafe_code)"));
            if !UNSAFE_ALLOWED.contains(&name) || !(told || line.contains("SAFETY:")) {
                faults.push(format!("{at}: unsafe without leave or without // SAFETY:"));
            }
        }
        before = [before[1], line];
    }
    check_functions(name, text, faults);
}

/// Functions longer than a screen, told by the indentation of their braces.
fn check_functions(name: &str, text: &str, faults: &mut Vec<String>) {
    let mut open: Option<(usize, usize, String)> = None;
    for (number, line) in text.lines().enumerate() {
        let indent = line.len() - line.trim_start().len();
        let word = line.trim_start();
        let starts = word.starts_with("fn ")
            || (word.starts_with("pub") || word.starts_with("const fn")) && word.contains("fn ");
        if open.is_none() && starts && !word.ends_with(';') {
            open = Some((number, indent, word.chars().take(60).collect()));
        }
        if let Some((start, column, what)) = &open
            && indent == *column
            && line.trim_end() == format!("{}}}", " ".repeat(*column))
        {
            let lines = number - start + 1;
            if lines > FUNCTION_MAX_LINES {
                faults.push(format!("{name}:{}: {lines} lines in {what}", start + 1));
            }
            open = None;
        }
    }
}

fn check_edges(root: &Path, krate: &str, allowed: &[&str], faults: &mut Vec<String>) -> Result<(), String> {
    let path = root.join(krate).join("Cargo.toml");
    let text = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let plain = text.split("[dev-dependencies]").next().unwrap_or("");
    for line in plain.lines().filter(|line| line.starts_with("herd-")) {
        let used = line.split([' ', '.', '=']).next().unwrap_or("");
        if !allowed.contains(&used) {
            faults.push(format!("{krate}: may not depend on {used}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_project_keeps_its_rules() {
        super::run().expect("tidy");
    }
}
