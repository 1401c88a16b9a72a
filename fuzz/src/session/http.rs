//! Requests of HTTP, made from a script, and what their answers say.

use super::client::{Asked, Judge};
use super::model::{Action, Class, Model, Seen};
use super::script::{KEYS, Script, name};
use crate::Outcomes;
use std::collections::VecDeque;

/// Outcomes of this door alone.
pub(crate) const OUTCOMES: &[&str] = &[
    "GET",
    "HEAD",
    "GET of a range",
    "GET that waits",
    "page",
    "PUT",
    "PUT in chunks",
    "PUT under a condition",
    "DELETE",
    "found a part",
    "range not satisfiable",
    "not modified",
    "closed by an answer",
];

/// What the answer to a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The object, or bytes of it from there on.
    Object { from: usize, head_only: bool },
    /// About the write of an object.
    Written,
    /// The object when it is another than that version, or 304.
    Waited(u64),
    /// A page.
    Page,
}

/// The next request, appended to `out`.
pub(super) fn ask(
    script: &mut Script<'_>,
    model: &mut Model,
    outcomes: &mut Outcomes,
    out: &mut Vec<u8>,
) -> Asked<Kind> {
    let (what, choice) = (script.byte() % 16, script.byte());
    let (key, option) = (usize::from(choice) % KEYS, choice / KEYS as u8);
    match what {
        0 | 1 => get(key, "", Kind::Object { from: 0, head_only: false }, model, outcomes, out),
        2 => head(key, model, outcomes, out),
        3 => part(key, script, model, outcomes, out),
        4 => wait(key, option, model, outcomes, out),
        5 => page(option, outcomes, out),
        6..=9 if model.may_write(key) => put(key, option, script, model, outcomes, out),
        10 | 11 if model.may_write(key) => delete(key, model, outcomes, out),
        12..=14 if model.is_quiet(key) => put_if(key, option, script, model, outcomes, out),
        15 if model.may_write(key) => put(key, option, script, model, outcomes, out),
        _ => get(key, "", Kind::Object { from: 0, head_only: false }, model, outcomes, out),
    }
}

fn line(method: &str, key: usize, fields: &str, out: &mut Vec<u8>) {
    let name = name(key);
    out.extend_from_slice(format!("{method} /o/default/{name} HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n").as_bytes());
}

fn get(
    key: usize,
    fields: &str,
    kind: Kind,
    model: &mut Model,
    outcomes: &mut Outcomes,
    out: &mut Vec<u8>,
) -> Asked<Kind> {
    outcomes.add("GET");
    line("GET", key, fields, out);
    Asked { kind, parts: vec![(key, model.read(key))], writes: false, end: 0 }
}

fn head(key: usize, model: &mut Model, outcomes: &mut Outcomes, out: &mut Vec<u8>) -> Asked<Kind> {
    outcomes.add("HEAD");
    line("HEAD", key, "", out);
    let kind = Kind::Object { from: 0, head_only: true };
    Asked { kind, parts: vec![(key, model.read(key))], writes: false, end: 0 }
}

fn part(
    key: usize,
    script: &mut Script<'_>,
    model: &mut Model,
    outcomes: &mut Outcomes,
    out: &mut Vec<u8>,
) -> Asked<Kind> {
    let (from, length) = (script.amount() - 1, script.amount());
    let fields = format!("Range: bytes={from}-{}\r\n", from + length - 1);
    outcomes.add("GET of a range");
    get(key, &fields, Kind::Object { from, head_only: false }, model, outcomes, out)
}

fn wait(key: usize, option: u8, model: &mut Model, outcomes: &mut Outcomes, out: &mut Vec<u8>) -> Asked<Kind> {
    let (version, wait_s) = (model.version(key), u64::from(option % 4));
    let fields = format!("If-None-Match: \"{version}\"\r\nPrefer: wait={wait_s}\r\n");
    outcomes.add("GET that waits");
    get(key, &fields, Kind::Waited(version), model, outcomes, out)
}

fn page(option: u8, outcomes: &mut Outcomes, out: &mut Vec<u8>) -> Asked<Kind> {
    let target =
        ["/o/default?prefix=fuzz-&limit=3", "/o/default", "/metrics", "/status", "/healthz", "/no", "/o/none/x"]
            [usize::from(option) % 7];
    outcomes.add("page");
    out.extend_from_slice(format!("GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes());
    Asked { kind: Kind::Page, parts: Vec::new(), writes: false, end: 0 }
}

/// The fields and the body of a PUT, chunked or not.
fn put_body(key: usize, fields: &str, bytes: &[u8], chunked: bool, outcomes: &mut Outcomes, out: &mut Vec<u8>) {
    outcomes.add(if chunked { "PUT in chunks" } else { "PUT" });
    if !chunked {
        line("PUT", key, &format!("{fields}Content-Length: {}\r\n", bytes.len()), out);
        return out.extend_from_slice(bytes);
    }
    line("PUT", key, &format!("{fields}Transfer-Encoding: chunked\r\n"), out);
    for chunk in bytes.chunks(bytes.len() / 3 + 1) {
        out.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
        out.extend_from_slice(chunk);
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(b"0\r\n\r\n");
}

fn put(
    key: usize,
    option: u8,
    script: &mut Script<'_>,
    model: &mut Model,
    outcomes: &mut Outcomes,
    out: &mut Vec<u8>,
) -> Asked<Kind> {
    let ttl_s = [0, 0, 0, 1, 3, 100][usize::from(option) % 6];
    let value = script.value(key, 0, model.at.now_ms, ttl_s * 1_000);
    let fields = if ttl_s > 0 { format!("Herd-TTL: {ttl_s}\r\n") } else { String::new() };
    put_body(key, &fields, &value.bytes, option % 4 == 3, outcomes, out);
    Asked { kind: Kind::Written, parts: vec![(key, model.write(key, &Action::Put(value)))], writes: true, end: 0 }
}

fn put_if(
    key: usize,
    option: u8,
    script: &mut Script<'_>,
    model: &mut Model,
    outcomes: &mut Outcomes,
    out: &mut Vec<u8>,
) -> Asked<Kind> {
    let value = script.value(key, 0, model.at.now_ms, 0);
    let bytes = value.bytes.clone();
    let (fields, action) = match option % 4 {
        0 => ("If-None-Match: *\r\n".to_string(), Action::Add(value)),
        1 => ("If-Match: *\r\n".to_string(), Action::Replace(value)),
        way => {
            let (version, holds) = compared(model, key, way == 2);
            (format!("If-Match: \"{version}\"\r\n"), Action::Compare(value, Some(holds), Class::Refused))
        }
    };
    outcomes.add("PUT under a condition");
    let parts = vec![(key, model.write(key, &action))];
    put_body(key, &fields, &bytes, option % 8 > 3, outcomes, out);
    Asked { kind: Kind::Written, parts, writes: true, end: 0 }
}

/// A version to compare with, and whether it is the key's: a right one if that is known and wanted.
pub(super) fn compared(model: &Model, key: usize, right: bool) -> (u64, bool) {
    match model.exact_version(key) {
        Some(version) if right => (version, true),
        Some(version) => (version - 1, false),
        None => (1, false),
    }
}

fn delete(key: usize, model: &mut Model, outcomes: &mut Outcomes, out: &mut Vec<u8>) -> Asked<Kind> {
    outcomes.add("DELETE");
    line("DELETE", key, "", out);
    Asked { kind: Kind::Written, parts: vec![(key, model.write(key, &Action::Delete))], writes: true, end: 0 }
}

/// An answer.
struct Response<'a> {
    status: u16,
    version: Option<u64>,
    /// Where the bytes of the body begin in the object, and how many that has.
    range: Option<(usize, usize)>,
    length: usize,
    closes: bool,
    body: &'a [u8],
    used: usize,
}

/// The answer at the start of `got`, if it is whole.
fn parse(got: &[u8], head_only: bool) -> Option<Response<'_>> {
    let end = got.windows(4).position(|end| end == b"\r\n\r\n")?;
    let head = std::str::from_utf8(&got[..end]).expect("a head is text");
    let mut lines = head.split("\r\n");
    let status = lines.next().and_then(|line| line.strip_prefix("HTTP/1.1 ")).and_then(|line| line.get(..3));
    let status = status.and_then(|status| status.parse().ok()).unwrap_or_else(|| panic!("no status: {head:?}"));
    let field = |name: &str| {
        let named = |line: &&str| line.get(..name.len()).is_some_and(|start| start.eq_ignore_ascii_case(name));
        head.split("\r\n").find(named).map(|line| line[name.len()..].trim())
    };
    let number = |text: &str| text.parse::<u64>().unwrap_or_else(|_| panic!("no number {text:?} in {head:?}"));
    let length = field("content-length:").map_or(0, |length| number(length) as usize);
    let used = end + 4;
    let body_bytes = if head_only || status == 304 || status == 204 { 0 } else { length };
    let part = field("content-range:").filter(|_| status == 206);
    let range = part.and_then(|range| range.strip_prefix("bytes ")).and_then(|range| {
        let (part, size) = range.split_once('/')?;
        Some((number(part.split('-').next()?) as usize, number(size) as usize))
    });
    Some(Response {
        status,
        version: field("etag:").map(|tag| number(tag.trim_matches('"'))),
        range,
        length,
        closes: field("connection:") == Some("close"),
        body: got.get(used..used + body_bytes)?,
        used: used + body_bytes,
    })
}

/// Takes the next answer off `got`: bytes used, or `None` if it is not whole.
pub(super) fn hear(
    asked: &mut VecDeque<Asked<Kind>>,
    got: &[u8],
    judge: &mut Judge<'_>,
    told_end: &mut bool,
) -> Option<usize> {
    let first = asked.front()?;
    let head_only = matches!(first.kind, Kind::Object { head_only: true, .. });
    let response = parse(got, head_only)?;
    match (first.kind, first.parts.first().copied()) {
        (Kind::Page, _) => assert!(matches!(response.status, 200 | 404), "a page: {}", response.status),
        (Kind::Written, Some(part)) => {
            let class = match response.status {
                200 | 201 | 204 => Class::Done,
                412 => Class::Refused,
                404 => Class::Absent,
                507 => Class::Full,
                status => panic!("a write is answered with {status}: {}", response.body.escape_ascii()),
            };
            judge.written(part, class, response.version, None);
        }
        (Kind::Waited(version), Some(part)) => waited(part, version, &response, judge),
        (Kind::Object { from, .. }, Some(part)) => object(part, from, head_only, &response, judge),
        (_, None) => unreachable!("it is about an object"),
    }
    if response.closes {
        judge.outcomes.add("closed by an answer");
    }
    *told_end |= response.closes;
    asked.pop_front();
    Some(response.used)
}

fn waited(part: (usize, u64), version: u64, response: &Response<'_>, judge: &mut Judge<'_>) {
    match response.status {
        304 => {
            judge.outcomes.add("not modified");
            judge.model.forget(part.0, part.1);
            assert_eq!(response.version, Some(version), "it is what the client has");
        }
        503 => {
            judge.model.forget(part.0, part.1);
        }
        _ => object(part, 0, false, response, judge),
    }
}

fn object(part: (usize, u64), from: usize, head_only: bool, response: &Response<'_>, judge: &mut Judge<'_>) {
    let seen = Seen { head_only, version: response.version, ..Seen::whole(response.body) };
    match response.status {
        404 => judge.missed(part),
        200 => judge.found(part, &Seen { size_bytes: response.length, ..seen }),
        206 => {
            let (at, size_bytes) = response.range.expect("a part tells which");
            assert_eq!(at, from, "the part that was asked for");
            judge.outcomes.add("found a part");
            judge.found(part, &Seen { from, size_bytes, ..seen });
        }
        416 => {
            judge.outcomes.add("range not satisfiable");
            judge.model.forget(part.0, part.1);
        }
        status => panic!("a read is answered with {status}: {}", response.body.escape_ascii()),
    }
}
