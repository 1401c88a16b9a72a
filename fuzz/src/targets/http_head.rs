//! The head of an HTTP request: the same outcome for every prefix, bounds on all it holds, replies that are whole.

use crate::Outcomes;
use crate::names::names;
use crate::pieces::prefixes;
use crate::reasons::reason;
use herd_core::door::http::{
    Body, ByteRange, Connection, Method, Plan, Refusal, Request, Status, Tags, Target, parse_head,
};
use herd_core::entry::Condition;
use herd_core::key::name_is_valid;
use herd_core::limits::{COLLECTION_NAME_MAX_BYTES, HTTP_HEAD_MAX_BYTES, LIST_PAGE_MAX, NAME_MAX_BYTES};
use std::fmt::Write;

/// What the corpus reaches.
#[rustfmt::skip]
pub const OUTCOMES: &[&[&str]] = &[
    STATUSES, REASONS, METHODS, TARGETS, BODIES, CONNECTIONS, CONDITIONS, RANGES, TAGS, PLANS,
    &["more is needed", "continue expected", "waits", "head only", "ttl", "mode", "mtime", "link", "media type"],
];

/// Words of the driver.
#[rustfmt::skip]
pub const DICTIONARY: &[&[u8]] = &[
    b"GET ", b"HEAD ", b"PUT ", b"DELETE ", b"POST ", b"OPTIONS ", b"/o/c/n", b"/o/c", b"?prefix=", b"&after=",
    b"&limit=10", b"/metrics", b"/status", b"/healthz", b"http://h", b"https://", b"%41", b"%2F", b"%", b"#", b"?",
    b" HTTP/1.1\r\n", b" HTTP/1.0\r\n", b" HTTP/2\r\n", b"\r\n", b"\r\n\r\n", b"\n", b"\r", b"Host: h\r\n", b": ",
    b"Content-Length: 3\r\n", b"Transfer-Encoding: chunked\r\n", b"Expect: 100-continue\r\n", b"If-Match: \"3\"\r\n",
    b"If-None-Match: *\r\n", b"If-Range: \"3\"\r\n", b"Range: bytes=1-2\r\n", b"Prefer: wait=1\r\n", b"*", b"\"", b"W/",
    b"Herd-TTL: 1.5\r\n", b"Herd-Mode: 644\r\n", b"Herd-Mtime: -1\r\n", b"Herd-Link: ..%2F\r\n", b", ", b"=",
    b"Content-Type: a/b\r\n", b"Content-Encoding: gzip\r\n", b"Content-Range: bytes 0-1/2\r\n", b"-",
    b"If-Unmodified-Since: x\r\n",
    b"Connection: close\r\n", b"Connection: keep-alive\r\n", b"X: y\r\n", b"18446744073709551616", b"\0", b"\xFF",
];

/// The texts of its refusals; a test compares them with the source.
#[rustfmt::skip]
pub const REASONS: &[&str] = &[
    "a line of the head does not end in CR LF",
    "16 KiB without a method",
    "the target is over 16 KiB",
    "the head of the request is over 16 KiB",
    "over 64 header fields",
    "only HTTP/1.1 and HTTP/1.0 are spoken here",
    "malformed name of a header field",
    "malformed value of a header field",
    "malformed request line: METHOD TARGET HTTP/1.1",
    "no such path: objects are at /o/COLLECTION/NAME",
    "the target does not have this method: see Allow",
    "unknown method: use GET, HEAD, PUT or DELETE",
    "header Host is missing",
    "header Host is not a host",
    "both Content-Length and Transfer-Encoding",
    "Transfer-Encoding in HTTP/1.0",
    "a PUT needs Content-Length or Transfer-Encoding: chunked",
    "only a PUT has a body",
    "Content-Length is not a number",
    "Content-Length is over 64 bits",
    "Transfer-Encoding has chunked before its end",
    "only the transfer coding chunked is understood",
    "only 100-continue can be expected",
    "{} is * or a version in double quotes",
    "If-Unmodified-Since is not in this version: use If-Match with the version",
    "Content-Encoding would be lost: send the bytes as they are to be read",
    "a PUT writes the whole object and takes no Content-Range",
    "Herd-TTL is seconds above 0, such as 90 or 0.5",
    "Content-Type is not plain ASCII",
    "Herd-Mode is octal, at most 16 bits",
    "Herd-Mtime is ns since 1970",
    "Herd-Link is not empty and percent-encoded",
    "header {} stands twice",
    "the target has a fragment: write # in a name as %23",
    "the target does not begin with /",
    "the target has a scheme other than http",
    "an object takes no query: write ? in a name as %3F",
    "the name of the object is empty: /o/COLLECTION/NAME",
    "the name of the object is over 1,024 bytes",
    "the name of the collection is not UTF-8",
    "the name of the collection is empty: /o/COLLECTION/NAME",
    "the name of the collection is over 255 bytes",
    "a listing takes prefix, after and limit and nothing else",
    "a field of the query stands twice",
    "a name in the query is over 1,024 bytes",
    "limit is a number from 1 to 10,000",
    "a % in the target lacks its two hexadecimal digits",
    "If-None-Match of a write takes * only: use If-Match with the version to replace",
    "If-Match of a write takes one version only",
];

names!(status, STATUSES, Status {
    Status::BadRequest => "400",
    Status::NotFound => "404",
    Status::MethodNotAllowed => "405",
    Status::LengthRequired => "411",
    Status::TooLarge => "413",
    Status::TargetTooLong => "414",
    Status::UnsupportedCoding => "415",
    Status::ExpectationFailed => "417",
    Status::HeadTooLarge => "431",
    Status::NotImplemented => "501",
    Status::VersionNotSupported => "505",
    ; never Status::Ok
        | Status::Created
        | Status::NoContent
        | Status::Partial
        | Status::NotModified
        | Status::Forbidden
        | Status::Conflict
        | Status::PreconditionFailed
        | Status::BadRange
        | Status::Unavailable
        | Status::Timeout
        | Status::InsufficientStorage
});

names!(method, METHODS, Method {
    Method::Get => "GET",
    Method::Head => "HEAD",
    Method::Put => "PUT",
    Method::Delete => "DELETE",
});

names!(target_name, TARGETS, Target<'_> {
    Target::Object { .. } => "object",
    Target::List { .. } => "list",
    Target::Metrics => "metrics",
    Target::Status => "status",
    Target::Health => "health",
    Target::Root => "root",
    Target::NotFound => "not found",
});

names!(body_name, BODIES, Body {
    Body::None => "no body",
    Body::Length(_) => "body with length",
    Body::Chunked => "chunked body",
});

names!(connection, CONNECTIONS, Connection {
    Connection::Keep => "keep",
    Connection::KeepAnnounced => "keep, announced",
    Connection::Close => "close",
});

names!(condition, CONDITIONS, Condition {
    Condition::None => "no condition",
    Condition::IfAbsent => "if absent",
    Condition::IfPresent => "if present",
    Condition::IfVersion(_) => "if version",
    ; never Condition::IfCas(_)
});

names!(range_name, RANGES, ByteRange {
    ByteRange::From { last: None, .. } => "range to the end",
    ByteRange::From { last: Some(_), .. } => "range",
    ByteRange::Last(_) => "last bytes",
});

names!(tags_name, TAGS, Tags<'_> {
    Tags::Any => "any tag",
    Tags::List(_) => "tags",
});

names!(plan_name, PLANS, Plan {
    Plan::Whole => "plan: whole",
    Plan::Part { .. } => "plan: part",
    Plan::NotModified => "plan: not modified",
    Plan::ConditionFailed => "plan: condition failed",
    Plan::Unsatisfiable => "plan: unsatisfiable",
});

/// Runs the target.
pub fn run(input: &[u8]) -> Outcomes {
    let mut outcomes = Outcomes::default();
    let whole = parse_head(input);
    let used = whole.as_ref().ok().and_then(Option::as_ref).map_or(input.len(), |(_, used)| *used);
    for end in prefixes(input, &[used, HTTP_HEAD_MAX_BYTES]) {
        match parse_head(&input[..end]) {
            Ok(None) => assert!(whole == Ok(None) || end < used, "{end} of {used} bytes are enough"),
            told => check_same(&told, &whole, end),
        }
    }
    match whole {
        Ok(None) => {
            assert!(input.len() < HTTP_HEAD_MAX_BYTES, "a head is at its limit and more is asked for");
            outcomes.add("more is needed");
        }
        Ok(Some((request, used))) => {
            assert!(used <= input.len().min(HTTP_HEAD_MAX_BYTES) && input[..used].ends_with(b"\r\n\r\n"));
            understood(&request, &mut outcomes);
        }
        Err(error) => refusal(REASONS, &error, &mut outcomes),
    }
    outcomes
}

type Told<'a> = Result<Option<(Request<'a>, usize)>, Refusal>;

fn check_same(told: &Told<'_>, whole: &Told<'_>, end: usize) {
    assert!(told == whole, "the first {end} bytes tell {told:?}, the whole {whole:?}");
}

/// Notes a refusal and checks its response: a head, and a JSON body of the length it says.
pub(super) fn refusal(table: &'static [&'static str], error: &Refusal, outcomes: &mut Outcomes) {
    outcomes.add(status(&error.status));
    outcomes.add(reason(table, &error.text));
    if error.head_only {
        outcomes.add("head only");
    }
    let mut out = Vec::new();
    error.encode(&mut out, None);
    let text = std::str::from_utf8(&out).expect("a refusal is text");
    let (head, body) = text.split_once("\r\n\r\n").expect("a response has a head");
    assert!(head.starts_with("HTTP/1.1 ") && head.contains("\r\nConnection: close") && out.len() < 600);
    assert_eq!(error.allow.is_some(), error.status == Status::MethodNotAllowed);
    if error.head_only {
        assert!(body.is_empty());
        return;
    }
    let length = head.split("Content-Length: ").nth(1).and_then(|rest| rest.lines().next());
    assert_eq!(length, Some(body.len().to_string().as_str()));
    let json: serde_json::Value = serde_json::from_str(body).expect("the body of a refusal is JSON");
    assert_eq!(json["message"], *error.text);
}

fn understood(request: &Request<'_>, outcomes: &mut Outcomes) {
    let Request { method: asked, target, host, body, expect_continue, connection: stays, read, write } = request;
    outcomes.add(method(asked));
    outcomes.add(target_name(target));
    outcomes.add(body_name(body));
    outcomes.add(connection(stays));
    outcomes.add(condition(&write.condition));
    assert_eq!(*asked == Method::Put, *body != Body::None, "only a PUT has a body, and it has one");
    let is_object = matches!(target, Target::Object { .. });
    assert!(is_object || matches!(asked, Method::Get | Method::Head), "only objects are written");
    assert!(host.is_none_or(|host| !host.contains(&b'/')), "a host has no path");
    check_target(target);
    let attributes = write.attributes();
    for (holds, name) in [
        (*expect_continue, "continue expected"),
        (write.ttl_ms.is_some_and(|ms| ms > 0), "ttl"),
        (write.mode.is_some_and(|mode| mode <= 0xFFFF), "mode"),
        (attributes.mtime_ns.is_some(), "mtime"),
        (attributes.link.as_ref().is_some_and(|link| !link.is_empty()), "link"),
        (attributes.content_type.as_ref().is_some_and(|text| !text.contains(['\r', '\n'])), "media type"),
        (read.wait().is_some(), "waits"),
    ] {
        if holds {
            outcomes.add(name);
        }
    }
    assert!(write.ttl_ms != Some(0) && read.range.is_none_or(|_| *asked == Method::Get));
    for tags in [read.if_match, read.if_none_match].into_iter().flatten() {
        outcomes.add(tags_name(&tags));
        assert!(!tags.matches_strongly(3) || tags.matches_weakly(3), "a strong match is a weak one");
    }
    check_plans(request, outcomes);
}

/// What is planned lies within the object, of whatever size.
fn check_plans(request: &Request<'_>, outcomes: &mut Outcomes) {
    if let Some(range) = request.read.range {
        outcomes.add(range_name(&range));
    }
    for (version, size_bytes) in [(3, 0), (3, 1), (5, 10), (3, 1 << 30), (u64::MAX, u64::MAX)] {
        let plan = request.read.plan(version, size_bytes);
        outcomes.add(plan_name(&plan));
        if let Plan::Part { offset_bytes, length_bytes } = plan {
            assert!(length_bytes > 0 && offset_bytes < size_bytes && length_bytes <= size_bytes - offset_bytes);
        }
    }
}

/// What a target holds keeps its bounds, and reads back as it is written.
fn check_target(target: &Target<'_>) {
    let path = match target {
        Target::Object { collection, name } => {
            assert!((1..=COLLECTION_NAME_MAX_BYTES).contains(&collection.len()) && name_is_valid(name));
            format!("/o/{}/{}", percent(collection.as_bytes()), percent(name))
        }
        Target::List { collection, prefix, after, limit } => {
            assert!((1..=COLLECTION_NAME_MAX_BYTES).contains(&collection.len()) && (1..=LIST_PAGE_MAX).contains(limit));
            assert!(prefix.len() <= NAME_MAX_BYTES && after.len() <= NAME_MAX_BYTES);
            let (collection, prefix, after) = (percent(collection.as_bytes()), percent(prefix), percent(after));
            format!("/o/{collection}?limit={limit}&prefix={prefix}&after={after}")
        }
        _ => return,
    };
    let head = format!("GET {path} HTTP/1.1\r\nHost: h\r\n\r\n");
    let again = parse_head(head.as_bytes()).expect("a target is understood as it is written").expect("whole").0;
    assert_eq!(again.target, *target);
}

/// Every byte in percent-encoding but letters and digits.
pub(super) fn percent(bytes: &[u8]) -> String {
    let mut out = String::new();
    for byte in bytes {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => out.push(char::from(*byte)),
            _ => write!(out, "%{byte:02x}").expect("a string takes all"),
        }
    }
    out
}
