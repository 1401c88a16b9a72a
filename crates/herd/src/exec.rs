//! `herd exec`: runs a method on an object, at once and alone, and prints its answer.

use crate::args::ExecArgs;
use crate::exit::{Failure, Outcome, USAGE};
use crate::list::{base64, json_name};
use crate::objects::{client_of, explained};
use crate::out;
use herd_client::{Answer, Condition};
use herd_core::limits::WIRE_ARGUMENTS_MAX_BYTES;
use herd_core::method::items;
use herd_core::{key, size};
use serde_json::{Value, json};
use std::ffi::OsString;
use std::io::{self, Read};
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

/// Who reads it.
#[derive(Clone, Copy, PartialEq)]
enum Reader {
    /// Somebody at a terminal.
    Person,
    /// A pipe or a file.
    Pipe,
    /// One who told that zero bytes are to end what is printed.
    Null,
}

fn form(method: &str) -> Form {
    match method {
        "get-and-remove" | "list-pop" | "list-pop-back" => Form::Value,
        "list-range" | "lock" => Form::Lines,
        _ => Form::Line,
    }
}

/// The last `literals` of the words are values whatever they look like.
pub(crate) fn run(args: &ExecArgs, literals: usize) -> Outcome {
    let client = client_of(&args.herd, args.token)?;
    let condition = args.if_version.map_or(Condition::None, Condition::IfVersion);
    let arguments = arguments(&args.arguments, literals, &mut io::stdin())?;
    let key = args.key.as_bytes();
    let answer = client.execute(key, &args.method, &arguments, condition);
    let answer = answer.map_err(|error| explained(&client, key, error))?;
    if args.json {
        return out::print(format!("{}\n", answer_json(key, &args.method, &answer)));
    }
    let reader = match (args.null, out::is_terminal()) {
        (true, _) => Reader::Null,
        (false, true) => Reader::Person,
        (false, false) => Reader::Pipe,
    };
    out::print(printed(form(&args.method), &answer.value, reader))
}

/// The values to send: one that is a dash, and not behind `--`, is read from `stdin`.
fn arguments(words: &[OsString], literals: usize, stdin: &mut impl Read) -> Result<Vec<Vec<u8>>, Failure> {
    let mut values: Vec<Vec<u8>> = words.iter().map(|word| word.as_bytes().to_vec()).collect();
    let mut dashes = values[..words.len().saturating_sub(literals)].iter_mut().filter(|word| *word == b"-");
    let Some(value) = dashes.next() else { return Ok(values) };
    if dashes.next().is_some() {
        return Err(Failure::new(USAGE, "standard input can be one argument only; behind -- a dash is a dash"));
    }
    value.clear();
    stdin.take(WIRE_ARGUMENTS_MAX_BYTES as u64 + 1).read_to_end(value).map_err(Failure::local("standard input"))?;
    if value.len() > WIRE_ARGUMENTS_MAX_BYTES {
        let most = size::show(WIRE_ARGUMENTS_MAX_BYTES as u64);
        return Err(Failure::new(USAGE, format!("standard input: over {most}, the most that a method takes")));
    }
    Ok(values)
}

fn printed(form: Form, answer: &[u8], reader: Reader) -> Vec<u8> {
    let line = |text: &[u8]| match reader {
        Reader::Null => [text, b"\0"].concat(),
        _ => [&out::listed(text, reader == Reader::Person), &b"\n"[..]].concat(),
    };
    match (form, items(answer)) {
        (_, _) if answer.is_empty() => Vec::new(),
        (Form::Lines, Some(items)) => items.into_iter().flat_map(line).collect(),
        (Form::Value, _) if reader == Reader::Person => {
            let text = answer.strip_suffix(b"\n").unwrap_or(answer);
            text.split(|byte| *byte == b'\n').flat_map(line).collect()
        }
        (Form::Value, _) if reader == Reader::Pipe => answer.to_vec(),
        _ => line(answer),
    }
}

fn answer_json(key: &[u8], method: &str, answer: &Answer) -> Value {
    let (collection, name) = key::split(key);
    let mut all = json!({
        "collection": String::from_utf8_lossy(collection),
        "method": method,
        "version": answer.version,
        "etag": answer.version.to_string(),
    });
    let (field, name) = json_name(name);
    all[field] = name.into();
    let list = items(&answer.value).filter(|_| form(method) == Form::Lines);
    let texts = |items: &[&[u8]]| {
        items.iter().map(|item| std::str::from_utf8(item).ok()).collect::<Option<Vec<_>>>().map(Value::from)
    };
    let coded = |items: &[&[u8]]| items.iter().map(|item| base64(item)).collect::<Vec<_>>();
    let (field, value) = match list {
        Some(items) => match texts(&items) {
            Some(texts) => ("items", texts),
            None => ("items_base64", coded(&items).into()),
        },
        None => match std::str::from_utf8(&answer.value) {
            Ok(text) => ("value", text.into()),
            Err(_) => ("value_base64", base64(&answer.value).into()),
        },
    };
    all[field] = value;
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use herd_core::method::{NAMES, push_item};

    fn list(all: &[&[u8]]) -> Vec<u8> {
        let mut list = Vec::new();
        all.iter().for_each(|item| push_item(&mut list, item));
        list
    }

    #[test]
    fn answers_are_printed_as_what_they_are() {
        let list = list(&[b"one", b"two\nlines"]);
        assert_eq!(printed(form("list-range"), &list, Reader::Pipe), b"one\ntwo\\nlines\n");
        assert_eq!(printed(form("fetch-and-add"), b"41", Reader::Pipe), b"41\n");
        assert_eq!(printed(form("get-and-remove"), b"\x00raw", Reader::Pipe), b"\x00raw");
        assert_eq!(printed(form("touch"), b"", Reader::Pipe), b"");
    }

    #[test]
    fn a_terminal_gets_lines_without_bytes_that_it_would_obey_and_zero_bytes_end_what_is_exact() {
        assert_eq!(printed(Form::Value, b"job 7", Reader::Person), b"job 7\n");
        assert_eq!(printed(Form::Value, b"two\nlines\x1b[2J\n", Reader::Person), b"two\nlines\\x1b[2J\n");
        assert_eq!(printed(Form::Lines, &list(&[b"a\nb", b"a\\nb"]), Reader::Null), b"a\nb\0a\\nb\0");
        assert_eq!(printed(Form::Value, b"raw\n", Reader::Null), b"raw\n\0");
    }

    #[test]
    fn an_answer_in_json_is_what_it_was() {
        let told = |method: &str, value: &[u8]| {
            answer_json(b"c/n", method, &Answer { value: value.to_vec(), version: u64::MAX }).to_string()
        };
        let text = told("list-range", &list(&[b"a\nb", b"c"]));
        assert!(
            text.contains(r#""items":["a\nb","c"]"#) && text.contains(r#""etag":"18446744073709551615""#),
            "{text}"
        );
        assert!(told("list-range", &list(&[b"\xff"])).contains(r#""items_base64":["/w=="]"#));
        assert!(told("list-range", b"").contains(r#""items":[]"#));
        assert!(told("list-pop", b"x").contains(r#""value":"x""#));
        assert!(told("list-pop", b"\xff").contains(r#""value_base64":"/w==""#));
    }

    #[test]
    fn one_value_may_come_from_standard_input_and_behind_dashes_each_is_itself() {
        let read = |words: &[&str], literals| {
            let words: Vec<OsString> = words.iter().map(OsString::from).collect();
            arguments(&words, literals, &mut &b"in\n"[..]).map_err(|failure| failure.code)
        };
        assert_eq!(read(&["a", "-"], 0), Ok(vec![b"a".to_vec(), b"in\n".to_vec()]));
        assert_eq!(read(&["-", "-"], 1), Ok(vec![b"in\n".to_vec(), b"-".to_vec()]));
        assert_eq!(read(&["-"], 3), Ok(vec![b"-".to_vec()]), "key and method stood behind them too");
        assert_eq!(read(&["-", "-"], 0), Err(USAGE));
        let over = arguments(&["-".into()], 0, &mut io::repeat(7));
        assert!(over.is_err_and(|failure| failure.code == USAGE && failure.text.contains("48.0 KiB")));
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
