//! `herd exec`: runs a method on an object, at once and alone, and prints its answer.

use crate::args::ExecArgs;
use crate::exit::Outcome;
use crate::objects::client_of;
use crate::out;
use herd_client::Condition;
use herd_core::method::items;
use std::os::unix::ffi::OsStrExt;

/// How an answer is printed.
#[derive(Debug, PartialEq)]
enum Form {
    /// Bytes of an object: as they are.
    Value,
    /// A number or a word: a line.
    Line,
    /// A list: a line for each item.
    Lines,
}

fn form(method: &str) -> Form {
    match method {
        "get-and-remove" | "list-pop" | "list-pop-back" => Form::Value,
        "list-range" | "lock" => Form::Lines,
        _ => Form::Line,
    }
}

pub(crate) fn run(args: &ExecArgs) -> Outcome {
    let client = client_of(&args.herd, args.token)?;
    let condition = args.if_version.map_or(Condition::None, Condition::IfVersion);
    let arguments: Vec<&[u8]> = args.arguments.iter().map(|argument| argument.as_bytes()).collect();
    let answer = client.execute(args.key.as_bytes(), &args.method, &arguments, condition)?;
    out::print(printed(form(&args.method), &answer.value, out::is_terminal()))
}

fn printed(form: Form, answer: &[u8], terminal: bool) -> Vec<u8> {
    let line = |text: &[u8]| [&out::listed(text, terminal), &b"\n"[..]].concat();
    match (form, items(answer)) {
        (_, _) if answer.is_empty() => Vec::new(),
        (Form::Lines, Some(items)) => items.into_iter().flat_map(line).collect(),
        (Form::Line, _) => line(answer),
        _ => answer.to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use herd_core::method::{NAMES, push_item};

    #[test]
    fn answers_are_printed_as_what_they_are() {
        let mut list = Vec::new();
        [&b"one"[..], b"two\nlines"].iter().for_each(|item| push_item(&mut list, item));
        assert_eq!(printed(form("list-range"), &list, false), b"one\ntwo\\nlines\n");
        assert_eq!(printed(form("fetch-and-add"), b"41", false), b"41\n");
        assert_eq!(printed(form("get-and-remove"), b"\x00raw", false), b"\x00raw");
        assert_eq!(printed(form("touch"), b"", false), b"");
    }

    /// Those whose answers are values or lists, by what the core says of them, are known here.
    #[test]
    fn every_method_has_its_form() {
        for (name, _, meaning) in NAMES {
            let is_value = meaning.starts_with("get the value") || meaning.starts_with("take the");
            let is_list = meaning.starts_with("items ") || meaning.starts_with("take a lock");
            let want = if is_value {
                Form::Value
            } else if is_list {
                Form::Lines
            } else {
                Form::Line
            };
            assert_eq!(form(name), want, "{name}: {meaning}");
        }
    }
}
