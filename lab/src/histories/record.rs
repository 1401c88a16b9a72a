//! A history as it is written: one line of JSON for each request (FORMATS.md).

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use serde::Serialize;

use crate::error::{Context, Result};

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Op {
    Get,
    Put,
    /// A put if the version is as named.
    Cas,
    /// A put if there is nothing.
    Add,
    Append,
    /// Get-and-remove.
    Take,
    Remove,
    Lock,
    Renew,
    Unlock,
    Check,
}

/// What it is asked with; what is empty or 0 is left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Arg {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) value: String,
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) version: u64,
    /// Of the token that is shown, or that a method on a lock names.
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) grant: u64,
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) lease_ms: u64,
}

/// How a request was answered that was carried out, or refused for what is there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Status {
    #[default]
    Ok,
    NotFound,
    ConditionFailed,
    NotAllowed,
    /// The lock is another's.
    Held,
}

/// The answer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Answer {
    pub(crate) status: Status,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) value: String,
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) version: u64,
    /// After an append.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) size: Option<u64>,
    /// That a lock gave.
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) grant: u64,
}

/// What became of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Answered(Answer),
    /// Nothing was done, and why.
    Refused(String),
    /// It was not done, and what was there before may have been removed in its place.
    Removed,
    /// It may have been done, or may yet be.
    Unknown,
}

/// One request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) client: usize,
    pub(crate) op: Op,
    pub(crate) key: String,
    pub(crate) arg: Arg,
    pub(crate) outcome: Outcome,
    pub(crate) call_ns: u64,
    pub(crate) return_ns: u64,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// A line of the file.
#[derive(Serialize)]
struct Line<'a> {
    client: usize,
    op: Op,
    key: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    arg: Option<&'a Arg>,
    result: Option<&'a Answer>,
    #[serde(skip_serializing_if = "Option::is_none")]
    refused: Option<&'a str>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    unknown: bool,
    call_ns: u64,
    return_ns: Option<u64>,
}

impl Record {
    fn line(&self) -> Line<'_> {
        let (result, refused, unknown) = match &self.outcome {
            Outcome::Answered(answer) => (Some(answer), None, false),
            Outcome::Refused(why) => (None, Some(why.as_str()), false),
            Outcome::Removed | Outcome::Unknown => (None, None, true),
        };
        let return_ns = (!unknown).then_some(self.return_ns);
        let Self { client, op, key, arg, call_ns, .. } = self;
        // To the checker that is a removal of which nobody knows whether it was done.
        let (op, arg) = if self.outcome == Outcome::Removed { (Op::Remove, None) } else { (*op, Some(arg)) };
        Line { client: *client, op, key, arg, result, refused, unknown, call_ns: *call_ns, return_ns }
    }
}

/// Writes a history.
pub(crate) fn write(path: &Path, records: &[Record]) -> Result<()> {
    let file = File::create(path).during(|| format!("create {}", path.display()))?;
    let mut out = BufWriter::new(file);
    for record in records {
        serde_json::to_writer(&mut out, &record.line())?;
        out.write_all(b"\n")?;
    }
    out.flush().during(|| format!("write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_as_formats_says() {
        let line = |outcome| {
            let arg = Arg { value: "a;".into(), version: 7, ..Arg::default() };
            let key = "object-1".to_owned();
            let record = Record { client: 3, op: Op::Cas, key, arg, outcome, call_ns: 5, return_ns: 9 };
            serde_json::to_string(&record.line()).expect("plain values")
        };
        let head = r#"{"client":3,"op":"cas","key":"object-1","arg":{"value":"a;","version":7},"#;
        let answer = Answer { status: Status::ConditionFailed, version: 8, ..Answer::default() };
        let told = r#""result":{"status":"condition_failed","version":8},"call_ns":5,"return_ns":9}"#;
        assert_eq!(line(Outcome::Answered(answer)), format!("{head}{told}"));
        let told = r#""result":null,"refused":"busy","call_ns":5,"return_ns":9}"#;
        assert_eq!(line(Outcome::Refused("busy".into())), format!("{head}{told}"));
        let told = r#""result":null,"unknown":true,"call_ns":5,"return_ns":null}"#;
        assert_eq!(line(Outcome::Unknown), format!("{head}{told}"));
    }
}
