//! The corpus: small files in `fuzz/corpus/TARGET/`, named after what they are about.
//!
//! A file is the input itself, unless its name ends in `.recipe`: then each line says what to append to the input, so
//! that large and binary inputs stay small and readable.
//!
//! ```text
//! # a comment
//! text GET / HTTP/1.1\r\n      text; \r \n \t \0 \s (space) \\ and \xHH stand for bytes
//! hex ce01 0000                bytes in hexadecimal
//! repeat 16384 x               text so many times
//! le16 300                     a number, little-endian, of 16, 32 or 64 bits
//! ```

use std::fs;
use std::path::{Path, PathBuf};

/// One input and the file it comes from.
#[derive(Clone, Debug)]
pub struct Seed {
    /// Where it lies.
    pub path: PathBuf,
    /// The input.
    pub input: Vec<u8>,
}

/// Where the project keeps its fuzzing: corpus and artifacts.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// All inputs of a target, in the order of their names.
pub fn load(target: &str) -> Result<Vec<Seed>, String> {
    let dir = root().join("corpus").join(target);
    let mut seeds = Vec::new();
    for entry in fs::read_dir(&dir).map_err(|error| format!("{}: {error}", dir.display()))? {
        let path = entry.map_err(|error| format!("{}: {error}", dir.display()))?.path();
        let input = read(&path)?;
        seeds.push(Seed { path, input });
    }
    seeds.sort_by(|a, b| a.path.cmp(&b.path));
    if seeds.is_empty() { Err(format!("{}: no corpus", dir.display())) } else { Ok(seeds) }
}

/// The input a file stands for.
pub fn read(path: &Path) -> Result<Vec<u8>, String> {
    let bytes = fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
    if path.extension().is_none_or(|extension| extension != "recipe") {
        return Ok(bytes);
    }
    let text = String::from_utf8(bytes).map_err(|_| format!("{}: a recipe is text", path.display()))?;
    cook(&text).map_err(|error| format!("{}: {error}", path.display()))
}

/// The input a recipe makes.
fn cook(recipe: &str) -> Result<Vec<u8>, String> {
    let mut out = Vec::new();
    for line in recipe.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        let number = || rest.parse::<u64>().map_err(|_| format!("not a number: {line}"));
        match word {
            "text" => out.extend(unescape(rest)?),
            "hex" => out.extend(unhex(rest)?),
            "le16" => out.extend((number()? as u16).to_le_bytes()),
            "le32" => out.extend((number()? as u32).to_le_bytes()),
            "le64" => out.extend(number()?.to_le_bytes()),
            "repeat" => {
                let (times, text) = rest.split_once(' ').ok_or_else(|| format!("repeat what: {line}"))?;
                let times = times.parse::<usize>().map_err(|_| format!("repeat how often: {line}"))?;
                out.extend(unescape(text)?.repeat(times));
            }
            _ => return Err(format!("unknown word: {line}")),
        }
    }
    Ok(out)
}

fn unhex(text: &str) -> Result<Vec<u8>, String> {
    let digits: String = text.chars().filter(|c| !c.is_whitespace()).collect();
    let pair = |at: usize| digits.get(at..at + 2).and_then(|two| u8::from_str_radix(two, 16).ok());
    (0..digits.len()).step_by(2).map(|at| pair(at).ok_or_else(|| format!("not hexadecimal: {text}"))).collect()
}

fn unescape(text: &str) -> Result<Vec<u8>, String> {
    let mut out = Vec::new();
    let mut rest = text.as_bytes();
    while let [byte, after @ ..] = rest {
        rest = after;
        if *byte != b'\\' {
            out.push(*byte);
            continue;
        }
        let [letter, after @ ..] = rest else { return Err(format!("ends in a backslash: {text}")) };
        rest = after;
        out.push(match letter {
            b'r' => b'\r',
            b'n' => b'\n',
            b't' => b'\t',
            b'0' => 0,
            b's' => b' ',
            b'\\' => b'\\',
            b'x' => {
                let two = rest.get(..2).and_then(|two| std::str::from_utf8(two).ok());
                let value = two.and_then(|two| u8::from_str_radix(two, 16).ok());
                rest = rest.get(2..).unwrap_or_default();
                value.ok_or_else(|| format!("\\x needs two digits: {text}"))?
            }
            _ => return Err(format!("unknown escape: {text}")),
        });
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recipe_makes_its_bytes() {
        let made =
            cook("# why\ntext a\\r\\n\\x41\\s\nhex ce 01\nrepeat 3 xy\nle16 258\nle32 1\nle64 2\n").expect("cooks");
        assert_eq!(made, b"a\r\nA \xCE\x01xyxyxy\x02\x01\x01\0\0\0\x02\0\0\0\0\0\0\0");
        for recipe in
            ["stir", "hex 0", "hex zz", "repeat x", "repeat x y", "text \\", "text \\q", "text \\x4", "le16 z"]
        {
            assert!(cook(recipe).is_err(), "{recipe}");
        }
    }
}
