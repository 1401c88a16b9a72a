//! Sizes as people write them.

use crate::Outcomes;
use herd_core::size::{parse, show};

/// What the corpus reaches.
pub const OUTCOMES: &[&[&str]] = &[&["not text", "whole number", "fraction", "unit behind a space", "refused"]];

/// Words of the driver.
pub const DICTIONARY: &[&[u8]] = &[
    b"k",
    b"M",
    b"GiB",
    b"tb",
    b" ",
    b".",
    b"1.5",
    b"-1",
    b"+",
    b"1e3",
    b"inf",
    b"nan",
    b"18446744073709551615",
    b"0x",
];

/// Runs the target.
pub fn run(input: &[u8]) -> Outcomes {
    let mut outcomes = Outcomes::default();
    let Ok(text) = std::str::from_utf8(input) else {
        outcomes.add("not text");
        return outcomes;
    };
    let parsed = parse(text);
    outcomes.add(match parsed {
        None => "refused",
        Some(_) if text.contains('.') => "fraction",
        Some(_) if text.trim().contains(' ') => "unit behind a space",
        Some(_) => "whole number",
    });
    assert_eq!(parse(&format!(" {text}\n")), parsed, "white space around it does not matter");
    assert_eq!(parse(&text.to_ascii_uppercase()), parse(&text.to_ascii_lowercase()), "case does not matter");
    if let Some(bytes) = parsed {
        assert_eq!(parse(&bytes.to_string()), Some(bytes), "a number of bytes reads back");
        assert!(show(bytes).len() <= 16, "{}", show(bytes));
        let back = parse(&show(bytes)).expect("what is shown is a size");
        assert!(back <= bytes && bytes - back <= bytes / 10, "{bytes}: {}", show(bytes));
        assert!(text.trim().len() - text.trim().trim_end_matches(|c: char| c.is_ascii_alphabetic()).len() <= 3);
    }
    outcomes
}
