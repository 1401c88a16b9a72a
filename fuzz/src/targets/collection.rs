//! The specification of a collection, as the wire carries it: JSON, and the class within.

use crate::Outcomes;
use crate::names::names;
use crate::reasons::reason;
use herd_core::collection::{Class, Spec};
use serde_json::error::Category;

/// What the corpus reaches.
pub const OUTCOMES: &[&[&str]] = &[FAULTS, CLASSES, REASONS, &["quota", "ordered", "class alone"]];

/// Words of the driver.
#[rustfmt::skip]
pub const DICTIONARY: &[&[u8]] = &[
    b"{\"class\":\"cache\"}", b"\"class\"", b"\"ordered\"", b"\"quota_bytes\"", b"true", b"null", b"ram:1", b"ram:9",
    b"log:1", b"ram:", b"cache", b"{", b"}", b"[", b"\\u0000", b"18446744073709551616", b"1e9", b"-1", b",", b":",
];

/// Why a class can't be had: the texts of its errors.
pub const REASONS: &[&str] = &[
    "class '{class}': use cache, ram:1, ram:2 or ram:3",
    "class ram:{k} can't be made in this version: use ram:1",
    "class log is not in this version: use ram:1",
];

names!(fault, FAULTS, Category {
    Category::Syntax => "JSON: syntax",
    Category::Data => "JSON: not a specification",
    Category::Eof => "JSON: cut short",
    ; never Category::Io
});

names!(class, CLASSES, Class {
    Class::Cache => "cache",
    Class::Ram(_) => "ram",
    Class::Log(_) => "log",
});

/// Runs the target.
pub fn run(input: &[u8]) -> Outcomes {
    let mut outcomes = Outcomes::default();
    if let Some(parsed) = std::str::from_utf8(input).ok().and_then(Class::parse) {
        outcomes.add("class alone");
        outcomes.add(class(&parsed));
        assert_eq!(Class::parse(&parsed.to_string()), Some(parsed), "a class reads back as it is written");
        assert!(parsed.evicts() == (parsed == Class::Cache));
    }
    match serde_json::from_slice::<Spec>(input) {
        Err(error) => outcomes.add(fault(&error.classify())),
        Ok(spec) => understood(&spec, input, &mut outcomes),
    }
    outcomes
}

fn understood(spec: &Spec, input: &[u8], outcomes: &mut Outcomes) {
    let text = serde_json::to_string(spec).expect("a specification is written as JSON");
    assert_eq!(serde_json::from_str::<Spec>(&text).ok().as_ref(), Some(spec), "it reads back as it is written");
    if spec.quota_bytes.is_some() {
        outcomes.add("quota");
    }
    if spec.ordered {
        outcomes.add("ordered");
    }
    match spec.class() {
        Ok(parsed) => {
            assert!(matches!(parsed, Class::Cache | Class::Ram(1)), "others are not in this version");
            outcomes.add(class(&parsed));
        }
        Err(error) => {
            assert!(error.text.len() <= input.len() + 100, "a message grows with its input only");
            outcomes.add(reason(REASONS, &error.text));
        }
    }
}
