//! Commands of memcached, made from a script, and what their answers say.

use super::client::{Asked, Judge};
use super::model::{Action, Class, Expiry, Model, Seen};
use super::script::{FIRST_NUMBER, KEYS, Script, name};
use crate::Outcomes;
use std::collections::VecDeque;

/// Outcomes of this door alone.
pub(crate) const OUTCOMES: &[&str] = &[
    "get",
    "get of many",
    "mg",
    "line",
    "set",
    "set noreply",
    "ms",
    "delete",
    "md",
    "flush_all",
    "add",
    "replace",
    "append",
    "prepend",
    "cas",
    "incr",
    "decr",
    "touch",
    "too large",
    "no number",
];

/// What the answer to a command is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Values, then `END`.
    Values,
    /// A line about a write.
    Written,
    /// A number, or a line.
    Number,
    /// `OK` for all keys.
    Flushed,
    /// `VA` or `EN`.
    MetaValue,
    /// `HD` and the CAS value, or a code.
    MetaWritten,
    /// A line that begins so.
    Line(&'static str),
    /// None.
    Silent,
}

impl Kind {
    pub(super) fn is_silent(self) -> bool {
        self == Kind::Silent
    }
}

/// The next command, appended to `out`.
pub(super) fn ask(
    script: &mut Script<'_>,
    model: &mut Model,
    outcomes: &mut Outcomes,
    out: &mut Vec<u8>,
) -> Asked<Kind> {
    let (what, choice) = (script.byte() % 24, script.byte());
    let numbers = matches!(what, 16..=19);
    let key = usize::from(choice) % KEYS;
    let key = if numbers { FIRST_NUMBER + key % 2 } else { key };
    let option = choice / KEYS as u8;
    let may = match what {
        0..=5 => true,
        6..=8 => model.may_write(key),
        9 => (0..KEYS).all(|key| model.is_quiet(key)),
        _ => model.is_quiet(key),
    };
    match what {
        _ if !may => values("get ", &[key], model, outcomes, out),
        0 => values("get ", &[key], model, outcomes, out),
        1 => values("gets ", &[key], model, outcomes, out),
        2 => values("gets ", &(0..KEYS).chain([key]).collect::<Vec<_>>(), model, outcomes, out),
        3 => meta_get(key, model, outcomes, out),
        4 => line("mn\r\n", "MN", outcomes, out),
        5 if option > 20 => line("version\r\n", "VERSION ", outcomes, out),
        5 => line("verbosity 1\r\n", "OK", outcomes, out),
        6 => store("set", key, option, script, model, outcomes, out),
        7 => meta_set(key, option, script, model, outcomes, out),
        8 => delete(key, option, model, outcomes, out),
        9 => flush(model, outcomes, out),
        10 => store("add", key, option, script, model, outcomes, out),
        11 => store("replace", key, option, script, model, outcomes, out),
        12 => store("append", key, option, script, model, outcomes, out),
        13 => store("prepend", key, option, script, model, outcomes, out),
        14 | 15 => compare(key, option, script, model, outcomes, out),
        16..=19 => arith(key, option, model, outcomes, out),
        20 | 21 => touch(key, option, model, outcomes, out),
        _ => store("set", key, option, script, model, outcomes, out),
    }
}

fn asked(kind: Kind, parts: Vec<(usize, u64)>, writes: bool) -> Asked<Kind> {
    Asked { kind, parts, writes, end: 0 }
}

fn values(verb: &str, keys: &[usize], model: &mut Model, outcomes: &mut Outcomes, out: &mut Vec<u8>) -> Asked<Kind> {
    outcomes.add(if keys.len() > 1 { "get of many" } else { "get" });
    out.extend_from_slice(verb.as_bytes());
    let names: Vec<String> = keys.iter().map(|key| name(*key)).collect();
    out.extend_from_slice(names.join(" ").as_bytes());
    out.extend_from_slice(b"\r\n");
    asked(Kind::Values, keys.iter().map(|key| (*key, model.read(*key))).collect(), false)
}

fn meta_get(key: usize, model: &mut Model, outcomes: &mut Outcomes, out: &mut Vec<u8>) -> Asked<Kind> {
    outcomes.add("mg");
    out.extend_from_slice(format!("mg {} v f c\r\n", name(key)).as_bytes());
    asked(Kind::MetaValue, vec![(key, model.read(key))], false)
}

fn line(line: &str, answer: &'static str, outcomes: &mut Outcomes, out: &mut Vec<u8>) -> Asked<Kind> {
    outcomes.add("line");
    out.extend_from_slice(line.as_bytes());
    asked(Kind::Line(answer), Vec::new(), false)
}

/// Seconds that a value lives: mostly for ever.
fn seconds(option: u8) -> u64 {
    [0, 0, 0, 0, 0, 1, 3, 100][usize::from(option) % 8]
}

fn store(
    verb: &'static str,
    key: usize,
    option: u8,
    script: &mut Script<'_>,
    model: &mut Model,
    outcomes: &mut Outcomes,
    out: &mut Vec<u8>,
) -> Asked<Kind> {
    let (flags, ttl_s) = (u32::from(option), seconds(option));
    let value = script.value(key, flags, model.at.now_ms, ttl_s * 1_000);
    let quiet = verb == "set" && option % 8 == 3;
    let action = match verb {
        "set" => Action::Set(value.clone()),
        "add" => Action::Add(value.clone()),
        "replace" => Action::Replace(value.clone()),
        "append" => Action::Join(value.bytes.to_vec(), true),
        _ => Action::Join(value.bytes.to_vec(), false),
    };
    outcomes.add(if quiet { "set noreply" } else { verb });
    let noreply = if quiet { " noreply" } else { "" };
    let bytes = value.bytes.len();
    out.extend_from_slice(format!("{verb} {} {flags} {ttl_s} {bytes}{noreply}\r\n", name(key)).as_bytes());
    out.extend_from_slice(&value.bytes);
    out.extend_from_slice(b"\r\n");
    asked(if quiet { Kind::Silent } else { Kind::Written }, vec![(key, model.write(key, &action))], true)
}

fn compare(
    key: usize,
    option: u8,
    script: &mut Script<'_>,
    model: &mut Model,
    outcomes: &mut Outcomes,
    out: &mut Vec<u8>,
) -> Asked<Kind> {
    let (flags, exact) = (u32::from(option), model.exact_cas(key));
    let value = script.value(key, flags, model.at.now_ms, 0);
    // What is one lower was never the CAS value of this key while it held the present one.
    let wrong = option.is_multiple_of(4);
    let (cas, holds) = match exact {
        Some(cas) if wrong => (cas - 1, Some(false)),
        Some(cas) => (cas, Some(true)),
        None => (0, Some(false)),
    };
    outcomes.add("cas");
    let bytes = value.bytes.len();
    out.extend_from_slice(format!("cas {} {flags} 0 {bytes} {cas}\r\n", name(key)).as_bytes());
    out.extend_from_slice(&value.bytes);
    out.extend_from_slice(b"\r\n");
    let action = Action::Compare(value, holds, Class::Absent);
    asked(Kind::Written, vec![(key, model.write(key, &action))], true)
}

fn meta_set(
    key: usize,
    option: u8,
    script: &mut Script<'_>,
    model: &mut Model,
    outcomes: &mut Outcomes,
    out: &mut Vec<u8>,
) -> Asked<Kind> {
    let (flags, ttl_s) = (u32::from(option), seconds(option));
    let value = script.value(key, flags, model.at.now_ms, ttl_s * 1_000);
    outcomes.add("ms");
    out.extend_from_slice(format!("ms {} {} c F{flags} T{ttl_s}\r\n", name(key), value.bytes.len()).as_bytes());
    out.extend_from_slice(&value.bytes);
    out.extend_from_slice(b"\r\n");
    asked(Kind::MetaWritten, vec![(key, model.write(key, &Action::Set(value)))], true)
}

fn delete(key: usize, option: u8, model: &mut Model, outcomes: &mut Outcomes, out: &mut Vec<u8>) -> Asked<Kind> {
    let meta = option % 2 == 1;
    outcomes.add(if meta { "md" } else { "delete" });
    let verb = if meta { "md" } else { "delete" };
    out.extend_from_slice(format!("{verb} {}\r\n", name(key)).as_bytes());
    let kind = if meta { Kind::MetaWritten } else { Kind::Written };
    asked(kind, vec![(key, model.write(key, &Action::Delete))], true)
}

fn flush(model: &mut Model, outcomes: &mut Outcomes, out: &mut Vec<u8>) -> Asked<Kind> {
    outcomes.add("flush_all");
    out.extend_from_slice(b"flush_all\r\n");
    asked(Kind::Flushed, (0..KEYS).map(|key| (key, model.write(key, &Action::Clear))).collect(), true)
}

fn arith(key: usize, option: u8, model: &mut Model, outcomes: &mut Outcomes, out: &mut Vec<u8>) -> Asked<Kind> {
    let (down, delta) = (option % 2 == 1, [1, 7, 1_000, u64::MAX][usize::from(option / 2) % 4]);
    outcomes.add(if down { "decr" } else { "incr" });
    let verb = if down { "decr" } else { "incr" };
    out.extend_from_slice(format!("{verb} {} {delta}\r\n", name(key)).as_bytes());
    asked(Kind::Number, vec![(key, model.write(key, &Action::Arith(delta, down)))], true)
}

fn touch(key: usize, option: u8, model: &mut Model, outcomes: &mut Outcomes, out: &mut Vec<u8>) -> Asked<Kind> {
    let ttl_s = seconds(option);
    outcomes.add("touch");
    out.extend_from_slice(format!("touch {} {ttl_s}\r\n", name(key)).as_bytes());
    let expiry = (ttl_s > 0).then(|| Expiry::after(model.at.now_ms, ttl_s * 1_000));
    asked(Kind::Written, vec![(key, model.write(key, &Action::Touch(expiry)))], true)
}

/// Takes the next answer off `got`: bytes used, or `None` if it is not whole.
pub(super) fn hear(asked: &mut VecDeque<Asked<Kind>>, got: &[u8], judge: &mut Judge<'_>, wild: bool) -> Option<usize> {
    let spoken = asked.iter().position(|asked| !asked.kind.is_silent())?;
    let answered = answer(&asked[spoken], got, judge, wild)?;
    for silent in asked.drain(..=spoken).take(spoken) {
        silent.parts.iter().for_each(|(key, id)| judge.model.silent(*key, *id));
    }
    Some(answered)
}

/// Reads the answer to one command and judges it.
fn answer(asked: &Asked<Kind>, got: &[u8], judge: &mut Judge<'_>, wild: bool) -> Option<usize> {
    let (line, used) = first_line(got)?;
    let part = asked.parts.first().copied();
    match (asked.kind, part) {
        (Kind::Values, _) => return values_of(asked, got, judge),
        (Kind::Line(start), _) => assert!(line.starts_with(start), "{line:?} where {start:?} was due"),
        (Kind::Flushed, _) => {
            assert_eq!(line, "OK");
            asked.parts.iter().for_each(|part| judge.written(*part, Class::Done, None, None));
        }
        (Kind::Number, Some(part)) => match line.parse::<u64>() {
            Ok(_) => judge.written(part, Class::Done, None, None),
            Err(_) => judge.written(part, class_of(line), None, None),
        },
        (Kind::Written, Some(part)) => judge.written(part, class_of(line), None, None),
        (Kind::MetaWritten, Some(part)) => {
            let cas = line.split(' ').find_map(|word| word.strip_prefix('c')).and_then(|cas| cas.parse().ok());
            judge.written(part, class_of(line.split(' ').next().unwrap_or_default()), None, cas);
        }
        (Kind::MetaValue, Some(part)) => return meta_value(part, line, used, got, judge),
        (Kind::Silent, _) | (_, None) => unreachable!("it has no answer, wild or not: {wild}"),
    }
    Some(used)
}

fn class_of(line: &str) -> Class {
    match line {
        "STORED" | "DELETED" | "TOUCHED" | "HD" => Class::Done,
        "NOT_STORED" | "EXISTS" | "NS" | "EX" => Class::Refused,
        "NOT_FOUND" | "NF" => Class::Absent,
        _ if line.starts_with("SERVER_ERROR out of memory storing object: ") => Class::Full,
        "SERVER_ERROR object too large for cache" => Class::TooLarge,
        "CLIENT_ERROR cannot increment or decrement non-numeric value" => Class::NoNumber,
        _ => panic!("an answer that nothing asked for: {line:?}"),
    }
}

/// The line at the start of `got`, and its bytes with its end.
fn first_line(got: &[u8]) -> Option<(&str, usize)> {
    let at = got.windows(2).position(|end| end == b"\r\n")?;
    let line = std::str::from_utf8(&got[..at]).unwrap_or_else(|_| panic!("no text: {:?}", got[..at].escape_ascii()));
    Some((line, at + 2))
}

/// `bytes` behind a line that ends at `used`, and where they end.
fn body(got: &[u8], used: usize, bytes: usize) -> Option<(&[u8], usize)> {
    let body = got.get(used..used + bytes + 2)?;
    assert_eq!(&body[bytes..], b"\r\n", "a value ends in CR LF");
    Some((&body[..bytes], used + bytes + 2))
}

/// Values for some keys, in their order, then `END`. Nothing is judged before all is there.
fn values_of(asked: &Asked<Kind>, got: &[u8], judge: &mut Judge<'_>) -> Option<usize> {
    let (mut used, mut found) = (0, Vec::new());
    loop {
        let (line, n) = first_line(&got[used..])?;
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["END"] => {
                used += n;
                break;
            }
            ["VALUE", key, flags, bytes, ref cas @ ..] => {
                let number = |text: &str| text.parse::<u64>().unwrap_or_else(|_| panic!("no number: {line:?}"));
                let (bytes, after) = body(got, used + n, number(bytes) as usize)?;
                let cas = cas.first().map(|cas| number(cas));
                found.push((key, Seen { flags: Some(number(flags) as u32), cas, ..Seen::whole(bytes) }));
                used = after;
            }
            _ => panic!("no answer to a get: {line:?}"),
        }
    }
    let mut found = found.into_iter().peekable();
    for part in &asked.parts {
        match found.next_if(|(key, _)| *key == name(part.0)) {
            Some((_, seen)) => judge.found(*part, &seen),
            None => judge.missed(*part),
        }
    }
    assert!(found.next().is_none(), "a value that was not asked for, or not in its turn");
    Some(used)
}

fn meta_value(part: (usize, u64), line: &str, used: usize, got: &[u8], judge: &mut Judge<'_>) -> Option<usize> {
    let words: Vec<&str> = line.split(' ').collect();
    match words[..] {
        ["EN"] => judge.missed(part),
        ["VA", bytes, flags, cas] => {
            let number = |text: &str| text.parse::<u64>().unwrap_or_else(|_| panic!("no number: {line:?}"));
            let (bytes, used) = body(got, used, number(bytes) as usize)?;
            let flags = Some(number(flags.trim_start_matches('f')) as u32);
            let cas = Some(number(cas.trim_start_matches('c')));
            judge.found(part, &Seen { flags, cas, ..Seen::whole(bytes) });
            return Some(used);
        }
        _ => panic!("no answer to mg: {line:?}"),
    }
    Some(used)
}
