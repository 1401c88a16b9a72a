//! What Markdown files point to: links lead to files and headings that are there, and no file is named that is not.

use std::fs;
use std::path::Path;

/// A name that ends so is one of a file of the project.
const NAMED: [&str; 3] = [".md", ".rs", ".toml"];
/// A name with this stands for many.
const PLACEHOLDER: &str = "NNN";

/// Checks the text of the file `name` of the project at `root`, whose files are `files`, by path from the root.
pub(crate) fn check(root: &Path, name: &str, text: &str, files: &[String], faults: &mut Vec<String>) {
    let dir = Path::new(name).parent().unwrap_or(Path::new(""));
    for (number, line) in prose(text) {
        let at = format!("{name}:{}", number + 1);
        let (plain, code) = spans(line);
        let linked = links(&plain);
        for target in linked.iter().filter(|target| !is_elsewhere(target)) {
            let (path, anchor) = target.split_once('#').unwrap_or((*target, ""));
            let file = if path.is_empty() { root.join(name) } else { root.join(dir).join(path) };
            if !file.exists() {
                faults.push(format!("{at}: link to {path}, which is not there"));
            } else if !anchor.is_empty() && !has_heading(&file, anchor) {
                faults.push(format!("{at}: link to #{anchor}, which no heading has"));
            }
        }
        let told = words(&plain).filter(|word| word.ends_with(".md") && !linked.contains(word));
        let words = words(&code).chain(told);
        for word in words.filter(|word| NAMED.iter().any(|end| word.ends_with(end)) && !word.contains(PLACEHOLDER)) {
            if !is_there(word, files) {
                faults.push(format!("{at}: names {word}, which is not there"));
            }
        }
    }
}

/// The lines that are not within fences of code, with their numbers.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fenced = false;
    text.lines().enumerate().filter(move |(_, line)| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        !fenced && !fence
    })
}

/// A line without its code spans, and the code spans alone.
fn spans(line: &str) -> (String, String) {
    let (mut plain, mut code) = (String::new(), String::new());
    for (i, part) in line.split('`').enumerate() {
        let to = if i % 2 == 0 { &mut plain } else { &mut code };
        to.push_str(part);
        to.push(' ');
    }
    (plain, code)
}

/// The targets of `[text](target)`.
fn links(line: &str) -> Vec<&str> {
    line.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(target, _)| target.trim()).collect()
}

fn is_elsewhere(target: &str) -> bool {
    target.contains("://") || target.starts_with("mailto:")
}

/// Words that could be paths; an address of the web is none.
fn words(text: &str) -> impl Iterator<Item = &str> {
    let split = text.split(|c: char| c.is_whitespace() || "()[]{}<>,;|'\"*=".contains(c));
    split.map(|word| word.trim_end_matches(['.', ':'])).filter(|word| !word.contains("://"))
}

/// Whether a file has this name, be it from the root, from its crate or alone.
fn is_there(word: &str, files: &[String]) -> bool {
    let ending = format!("/{}", word.trim_start_matches("./"));
    files.iter().any(|file| file == word || file.ends_with(&ending))
}

/// Whether a heading of the file has this anchor, as code forges make them.
fn has_heading(file: &Path, anchor: &str) -> bool {
    let text = fs::read_to_string(file).unwrap_or_default();
    let slug = |heading: &str| -> String {
        let kept = heading.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect::<String>().to_lowercase()
    };
    prose(&text).any(|(_, line)| line.starts_with('#') && slug(line.trim_start_matches('#').trim()) == anchor)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The faults of a text that stands as docs/page.md in this project.
    fn faults(text: &str) -> Vec<String> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies within the project");
        let files = ["README.md", "crates/herd-core/src/lib.rs", "Cargo.toml"].map(String::from);
        let mut faults = Vec::new();
        check(root, "docs/page.md", text, &files, &mut faults);
        faults
    }

    #[test]
    fn what_is_there_is_no_fault() {
        for text in [
            "[text](../README.md) and [more](papers/), [web](https://rustup.rs/none.md)",
            "[other page](../README.md#ten-minutes)",
            "See README.md, `herd-core/src/lib.rs`, `lib.rs`; `crates/herd-core/src/lib.rs`: there. (`Cargo.toml`)",
            "a page `docs/decisions/NNN-title.md`",
            "```\n[x](none) none.md\n```\nfine",
            "rustup.rs is a place, `https://docs.rs` too",
        ] {
            assert_eq!(faults(text), Vec::<String>::new(), "{text}");
        }
    }

    #[test]
    fn what_is_not_there_is_told_with_its_line() {
        for (text, fault) in [
            ("one\n[x](none.md)", "docs/page.md:2: link to none.md, which is not there"),
            ("[x](README.md)", "docs/page.md:1: link to README.md, which is not there"),
            ("[x](../README.md#no-such-heading)", "docs/page.md:1: link to #no-such-heading, which no heading has"),
            ("as `core/src/gone.rs` has it", "docs/page.md:1: names core/src/gone.rs, which is not there"),
            ("as GONE.md says.", "docs/page.md:1: names GONE.md, which is not there"),
            ("`xlib.rs`", "docs/page.md:1: names xlib.rs, which is not there"),
        ] {
            assert!(faults(text).contains(&fault.to_string()), "{text}: {:?}", faults(text));
        }
    }
}
