//! The corpus, replayed: no input fails, and together the files of a target reach each outcome it can have.

use std::collections::BTreeSet;
use std::fs;

use crate::reasons::literals;
use crate::targets::{attributes, collection, control_file, http_chunked, http_head, memcached_line, memcached_stream};
use crate::{TARGETS, corpus};

/// No file of the corpus is larger: a recipe makes what must be.
const FILE_MAX_BYTES: usize = 64 * 1024;

#[test]
fn the_corpus_of_each_target_reaches_each_of_its_outcomes() {
    let mut missing = Vec::new();
    for target in TARGETS {
        let mut open: BTreeSet<&str> = target.outcomes().collect();
        for seed in corpus::load(target.name).expect("every target has a corpus") {
            println!("{}", seed.path.display()); // The last line names the file that fails.
            for name in target.run(&seed.input).names() {
                open.remove(name);
            }
        }
        missing.extend(open.into_iter().map(|name| format!("{}: {name}", target.name)));
    }
    assert!(missing.is_empty(), "no corpus file reaches:\n{}", missing.join("\n"));
}

#[test]
fn every_corpus_directory_belongs_to_a_target_and_every_file_is_small() {
    for entry in fs::read_dir(corpus::root().join("corpus")).expect("there is a corpus") {
        let dir = entry.expect("a directory").path();
        let name = dir.file_name().expect("a name").to_string_lossy();
        assert!(TARGETS.iter().any(|target| target.name == name), "{name}: no such target");
        for file in fs::read_dir(&dir).expect("a directory") {
            let path = file.expect("a file").path();
            assert!(fs::metadata(&path).expect("a file").len() <= FILE_MAX_BYTES as u64, "{}", path.display());
        }
    }
}

#[test]
fn a_name_stands_in_a_list_once() {
    for target in TARGETS {
        let mut seen = BTreeSet::new();
        for name in target.outcomes() {
            assert!(seen.insert(name), "{}: {name} stands twice, so one of them is not told", target.name);
        }
    }
}

/// The source of a module of herd-core.
fn source(path: &str) -> String {
    let path = corpus::root().join("../crates/herd-core/src").join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The table of a target has just the texts of the source.
fn compare(what: &str, table: &[&str], source: BTreeSet<String>) {
    let table: BTreeSet<String> = table.iter().map(|text| text.to_string()).collect();
    assert_eq!(table.symmetric_difference(&source).collect::<Vec<_>>(), Vec::<&String>::new(), "{what}");
}

fn texts(paths: &[&str], markers: &[&str]) -> BTreeSet<String> {
    paths.iter().flat_map(|path| literals(&source(path), markers)).collect()
}

#[test]
fn each_refusal_in_the_source_of_the_http_door_is_in_the_table() {
    let statuses = source("door/http/status.rs");
    let names = statuses.lines().filter_map(|line| line.trim().strip_prefix("Status::")?.split_once(" => \"HTTP/"));
    let news = names.map(|(name, _)| format!("Refusal::new(Status::{name}, \""));
    let plain = ["Refusal::bad(\"", "Refusal::bad(format!(\"", "let text = \"", ",or(\""].map(str::to_owned);
    let markers: Vec<String> = news.chain(plain).collect();
    let markers: Vec<&str> = markers.iter().map(String::as_str).collect();
    assert_eq!(markers.len(), 23 + 4, "the statuses are found");
    let paths = ["request.rs", "fields.rs", "target.rs", "preconditions.rs"].map(|name| format!("door/http/{name}"));
    let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
    compare("head", http_head::REASONS, texts(&paths, &markers));
    compare("chunked", http_chunked::REASONS, texts(&["door/http/chunked.rs"], &markers));
    for path in paths.iter().chain(&["door/http/chunked.rs"]) {
        let text = source(path);
        let text = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
        let calls = text.matches("Refusal::new(").count() + text.matches("Refusal::bad(").count();
        let told = literals(text, &markers).len();
        assert!(told >= calls.saturating_sub(3), "{path}: {calls} refusals and {told} texts: one is written otherwise");
    }
}

#[test]
fn each_reason_in_the_source_of_attributes_and_collections_is_in_the_table() {
    compare("attributes", attributes::REASONS, texts(&["attributes.rs"], &["bad(\""]));
    let markers = ["Error::new(ErrorKind::BadRequest, format!(\"", "Error::new(ErrorKind::NotInVersion, \""];
    let found = texts(&["collection.rs"], &markers);
    compare("collection", collection::REASONS, found);
}

#[test]
fn each_kind_of_damage_in_the_source_of_the_control_store_is_in_the_table() {
    let markers = ["damaged(rest, \"", "FileError::Damaged(bytes.len(), \"", "FileError::Damaged(0, \""];
    compare("control file", control_file::REASONS, texts(&["control/file.rs"], &markers));
}

/// The constants of `reply` that a module names.
fn replies(paths: &[&str]) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for path in paths {
        let text = source(&format!("door/memcached/{path}"));
        for after in text.split("reply::").skip(1) {
            let name: String =
                after.chars().take_while(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || *c == '_').collect();
            found.insert(name);
        }
    }
    found.remove("");
    found
}

#[test]
fn each_reply_in_the_source_of_the_memcached_parser_is_in_the_table() {
    compare("line", memcached_line::REPLIES, replies(&["parse.rs", "meta.rs", "admin.rs"]));
    compare("stream", memcached_stream::REPLIES, replies(&["keys.rs"]));
}
