//! One header field in an otherwise plain request, against models of what the common ones mean.
//!
//! The input is a field line (`Range: bytes=1-2`) or, beginning with a slash, a target. It is put into a GET, a PUT and
//! a DELETE of an object, so that mutations are spent on the value and not on the frame around it.

use super::http_head::{REASONS, percent, refusal};
use crate::Outcomes;
use herd_core::attributes::Attributes;
use herd_core::collection::Class;
use herd_core::door::http::{Body, Content, HttpDate, ObjectHead, Plan, Request, Response, Status, parse_head};
use herd_core::limits::HTTP_HEAD_MAX_BYTES;

/// What the corpus reaches.
#[rustfmt::skip]
pub const OUTCOMES: &[&[&str]] = &[
    STATUSES, FIELD_REASONS,
    &["not one line", "range", "range ignored", "ttl", "mode", "mtime", "link", "media type", "length", "chunked"],
    &["target", "field", "understood", "waits"],
];

/// Words of the driver.
#[rustfmt::skip]
pub const DICTIONARY: &[&[u8]] = &[
    b"Range: bytes=", b"If-Range: ", b"If-Match: ", b"If-None-Match: ", b"Herd-TTL: ", b"Herd-Mode: ", b"Herd-Mtime: ",
    b"Herd-Link: ", b"Content-Type: ", b"Content-Length: ", b"Transfer-Encoding: ", b"Prefer: wait=", b"Expect: ",
    b"Connection: ", b"Host: ", b"/o/c?limit=", b"/o/c/", b"bytes=0-0", b"-", b",", b"\"", b"W/\"5\"", b"*", b"=", b".",
    b"18446744073709551615", b"18446744073709551616", b"9223372036854775807", b"-9223372036854775808", b"chunked",
    b"gzip, chunked", b"100-continue", b"%", b"%2F", b"+", b" ", b"\t", b";", b"0", b"177777", b"200000",
];

/// The refusals that one field or target can give; those of whole heads are `http_head`'s.
#[rustfmt::skip]
const FIELD_REASONS: &[&str] = &[
    "header Host is not a host", "a line of the head does not end in CR LF", "malformed name of a header field",
     "malformed value of a header field",
    "malformed request line: METHOD TARGET HTTP/1.1", "no such path: objects are at /o/COLLECTION/NAME",
    "the target does not have this method: see Allow", "the head of the request is over 16 KiB",
    "the target is over 16 KiB", "only HTTP/1.1 and HTTP/1.0 are spoken here", "only a PUT has a body",
    "Content-Length is not a number", "Content-Length is over 64 bits", "Transfer-Encoding has chunked before its end",
    "only the transfer coding chunked is understood", "only 100-continue can be expected",
    "{} is * or a version in double quotes", "Herd-TTL is seconds above 0, such as 90 or 0.5",
    "If-Unmodified-Since is not in this version: use If-Match with the version",
    "Content-Encoding would be lost: send the bytes as they are to be read",
    "a PUT writes the whole object and takes no Content-Range", "Content-Type is not plain ASCII",
    "Herd-Mode is octal, at most 16 bits", "Herd-Mtime is ns since 1970", "Herd-Link is not empty and percent-encoded",
    "the target has a fragment: write # in a name as %23", "an object takes no query: write ? in a name as %3F",
    "the name of the object is empty: /o/COLLECTION/NAME", "the name of the object is over 1,024 bytes",
    "the name of the collection is not UTF-8", "the name of the collection is empty: /o/COLLECTION/NAME",
    "the name of the collection is over 255 bytes", "a listing takes prefix, after and limit and nothing else",
    "a field of the query stands twice", "a name in the query is over 1,024 bytes",
    "limit is a number from 1 to 10,000", "a % in the target lacks its two hexadecimal digits",
    "If-None-Match of a write takes * only: use If-Match with the version to replace",
    "If-Match of a write takes one version only",
];

const STATUSES: &[&str] = &["400", "404", "405", "413", "414", "415", "417", "431", "501", "505"];

/// Runs the target.
pub fn run(input: &[u8]) -> Outcomes {
    let mut outcomes = Outcomes::default();
    if input.contains(&b'\r') || input.contains(&b'\n') {
        outcomes.add("not one line");
        return outcomes;
    }
    let is_target = input.starts_with(b"/");
    outcomes.add(if is_target { "target" } else { "field" });
    for method in ["GET", "PUT", "DELETE"] {
        let (target, field) = if is_target { (input, &b"X: y"[..]) } else { (&b"/o/c/n"[..], input) };
        let is_framed = ["content-length", "transfer-encoding"].iter().any(|name| has_name(input, name));
        let length = if method == "PUT" && !is_framed { "Content-Length: 0\r\n" } else { "" };
        let start = [method.as_bytes(), b" ", target, b" HTTP/1.1\r\n", length.as_bytes()].concat();
        let host = if has_name(input, "host") { &b""[..] } else { b"Host: h\r\n" };
        let head = [&start, host, field, b"\r\n\r\n"].concat();
        match parse_head(&head) {
            Ok(None) => panic!("a head that ends needs no more"),
            Ok(Some((request, used))) => {
                outcomes.add("understood");
                assert!(used <= head.len().min(HTTP_HEAD_MAX_BYTES));
                if !is_target {
                    check_field(method, input, &request, &mut outcomes);
                }
            }
            Err(error) => {
                refusal(REASONS, &error, &mut outcomes);
                check_refused(method, input);
            }
        }
    }
    outcomes
}

fn has_name(line: &[u8], name: &str) -> bool {
    value_of(line, name).is_some()
}

/// The value of the field, without white space around it, if the line is of that name.
fn value_of<'a>(line: &'a [u8], name: &str) -> Option<&'a [u8]> {
    let (found, value) = line.split_at_checked(name.len())?;
    let value = value.strip_prefix(b":")?;
    let mut value = value;
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = value {
        value = rest;
    }
    found.eq_ignore_ascii_case(name.as_bytes()).then_some(value)
}

fn check_field(method: &str, line: &[u8], request: &Request<'_>, outcomes: &mut Outcomes) {
    let mut note = |name, holds: bool| {
        if holds {
            outcomes.add(name);
        }
    };
    match method {
        "GET" => {
            note("waits", request.read.wait_ms.is_some());
            if let Some(value) = value_of(line, "range") {
                check_range(value, request);
                note("range", request.read.range.is_some());
                note("range ignored", request.read.range.is_none());
            }
        }
        "PUT" => {
            let write = &request.write;
            note("ttl", write.ttl_ms.is_some());
            note("mode", write.mode.is_some());
            note("mtime", write.mtime_ns.is_some());
            note("media type", write.content_type.is_some());
            note("chunked", request.body == Body::Chunked);
            let attributes = write.attributes();
            note("link", attributes.link.is_some());
            note("length", matches!(request.body, Body::Length(1..)));
            let wanted = |name: &str| value_of(line, name);
            assert_eq!(write.ttl_ms, wanted("herd-ttl").and_then(model_ttl), "time to live");
            assert_eq!(write.mode, wanted("herd-mode").and_then(model_mode), "mode");
            if let Some(length) = wanted("content-length") {
                assert_eq!(Some(request.body), model_number(length).map(Body::Length));
            }
            comes_back(&attributes);
        }
        _ => assert_eq!(request.body, Body::None),
    }
}

/// What the model takes is not refused.
fn check_refused(method: &str, line: &[u8]) {
    if method != "PUT" || line.contains(&0) {
        return;
    }
    let is_taken = |name: &str, model: fn(&[u8]) -> Option<u64>| value_of(line, name).and_then(model).is_some();
    assert!(!is_taken("herd-ttl", model_ttl) || line.len() > HTTP_HEAD_MAX_BYTES / 2, "a good time to live");
    assert!(!is_taken("content-length", model_number) || line.len() > HTTP_HEAD_MAX_BYTES / 2, "a good length");
}

/// A number in digits, of 64 bits.
fn model_number(value: &[u8]) -> Option<u64> {
    let is_number = !value.is_empty() && value.iter().all(u8::is_ascii_digit);
    let digits = value.iter().position(|digit| *digit != b'0').map_or(&b""[..], |at| &value[at..]);
    if !is_number || digits.len() > 20 {
        return None;
    }
    u64::try_from(digits.iter().fold(0u128, |sum, digit| sum * 10 + u128::from(digit - b'0'))).ok()
}

/// Seconds with a fraction as ms, rounded up, above 0.
fn model_ttl(value: &[u8]) -> Option<u64> {
    let mut parts = value.split(|byte| *byte == b'.');
    let (whole, fraction) = (parts.next()?, parts.next());
    if parts.next().is_some() || fraction.is_some_and(|f| f.is_empty() || !f.iter().all(u8::is_ascii_digit)) {
        return None;
    }
    let mut thousandths = fraction.unwrap_or_default().to_vec();
    let more = thousandths.iter().skip(3).any(|digit| *digit != b'0');
    thousandths.resize(3, b'0');
    let ms = u128::from(model_number(whole)?) * 1000 + u128::from(model_number(&thousandths)?) + u128::from(more);
    u64::try_from(ms).ok().filter(|ms| *ms > 0)
}

fn model_mode(value: &[u8]) -> Option<u32> {
    let is_octal = value.iter().all(|digit| matches!(digit, b'0'..=b'7'));
    let text = std::str::from_utf8(value).ok().filter(|_| is_octal)?;
    u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0xFFFF)
}

/// The bytes a range selects, in numbers that can't overflow, against the plan.
fn check_range(value: &[u8], request: &Request<'_>) {
    for size in [0u64, 1, 7, 1 << 40, u64::MAX] {
        let plan = request.read.plan(5, size);
        let expected = match model_range(value, size) {
            None => Plan::Whole,
            Some(Selected::All) => Plan::Whole,
            Some(Selected::None) => Plan::Unsatisfiable,
            Some(Selected::Part(offset_bytes, length_bytes)) => Plan::Part { offset_bytes, length_bytes },
        };
        assert_eq!(plan, expected, "{:?} of {size} bytes", String::from_utf8_lossy(value));
    }
}

enum Selected {
    All,
    None,
    Part(u64, u64),
}

/// The part a range selects of `size` bytes; `None`: no range, which is ignored.
fn model_range(value: &[u8], size: u64) -> Option<Selected> {
    let text = std::str::from_utf8(value).ok()?;
    let range = text.get(..6).filter(|unit| unit.eq_ignore_ascii_case("bytes=")).map(|_| &text[6..])?;
    let (first, last) = range.split_once('-')?;
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if !is_number(first) || !is_number(last) || range == "-" {
        return None;
    }
    // What is over 64 bits is past the end.
    let number = |text: &str| model_number(text.as_bytes()).unwrap_or(u64::MAX);
    if first.is_empty() {
        let count = number(last).min(size);
        return Some(match (number(last), size) {
            (0, _) => Selected::None,
            (_, 0) => Selected::All,
            _ => Selected::Part(size - count, count),
        });
    }
    let first = number(first);
    let last = if last.is_empty() { u64::MAX } else { number(last) };
    match (first <= last, first < size) {
        (false, _) => None,
        (true, false) => Some(Selected::None),
        (true, true) => Some(Selected::Part(first, last.min(size - 1) - first + 1)),
    }
}

/// Attributes told by a response come back as they were told by a request.
fn comes_back(told: &Attributes) {
    let object = ObjectHead { version: 5, class: Class::Ram(1), copies: 1, attributes: Some(told), ttl_ms: None };
    let date = HttpDate::from_unix_s(told.mtime_ns.unwrap_or_default());
    let content = Content::Whole { length_bytes: 0 };
    let response = Response { content, object: Some(object), date: Some(&date), ..Response::of(Status::Ok) };
    let mut out = Vec::new();
    response.encode(&mut out);
    let link_bytes = told.link.as_ref().map_or(0, |link| percent(link).len());
    let type_bytes = told.content_type.as_ref().map_or(0, String::len);
    assert!(out.len() <= 400 + link_bytes + type_bytes, "a head of {} bytes", out.len());
    let text = std::str::from_utf8(&out).expect("a head is text");
    assert!(text.lines().all(|line| line.is_empty() || line.starts_with("HTTP/1.1 200") || line.contains(": ")));
    if out.len() > HTTP_HEAD_MAX_BYTES - 100 {
        return;
    }
    let head = text.replace("HTTP/1.1 200 OK", "PUT /o/c/n HTTP/1.1\r\nHost: h");
    let again = parse_head(head.as_bytes()).expect("what is told is understood").expect("whole").0.write.attributes();
    let media_type = told.content_type.clone().unwrap_or_else(|| "application/octet-stream".to_string());
    assert_eq!(again, Attributes { content_type: Some(media_type), ..told.clone() });
}
