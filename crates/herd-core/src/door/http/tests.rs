//! Golden texts of the HTTP door: request bytes and what is understood, responses and their exact bytes.

use super::*;
use crate::attributes::Attributes;
use crate::collection::Class;
use crate::entry::Condition;
use crate::error::{Error, ErrorKind};
use crate::limits::{ATTRIBUTES_MAX_BYTES, HTTP_HEAD_MAX_BYTES, HTTP_HEADERS_MAX};

const OBJECT: &str = "/o/c/n";

/// Parses a head that must be whole and understood.
pub(super) fn understood(head: &str) -> Request<'_> {
    let (request, head_bytes) = parse_head(head.as_bytes()).expect(head).expect(head);
    assert_eq!(head_bytes, head.len(), "{head}");
    Request { host: None, ..request }
}

/// Parses `line` with a Host and `headers`, each ending in CR LF.
fn code(line: &str, headers: &str) -> Result<(), u16> {
    let head = format!("{line} HTTP/1.1\r\nHost: h\r\n{headers}\r\n");
    parse_head(head.as_bytes()).map(|whole| assert!(whole.is_some(), "{head}")).map_err(|r| r.status.code())
}

fn get<'a>() -> Request<'a> {
    Request {
        method: Method::Get,
        target: Target::Object { collection: "c".into(), name: b"n"[..].into() },
        host: None,
        body: Body::None,
        expect_continue: false,
        connection: Connection::Keep,
        read: Read::default(),
        write: Write::default(),
    }
}

fn put<'a>(body: Body) -> Request<'a> {
    Request { method: Method::Put, body, ..get() }
}

#[test]
fn plain_requests_are_understood() {
    assert_eq!(understood("GET /o/c/n HTTP/1.1\r\nHost: 127.0.0.1:7700\r\nAccept: */*\r\n\r\n"), get());
    let head = Request { method: Method::Head, ..get() };
    assert_eq!(understood("HEAD /o/c/n HTTP/1.1\r\nHost: [::1]:7700\r\nRange: bytes=0-1\r\n\r\n"), head);
    let delete = Request { method: Method::Delete, ..get() };
    assert_eq!(understood("DELETE /o/c/n HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n"), delete);
    assert_eq!(understood("PUT /o/c/n HTTP/1.1\r\nHost:\r\nContent-Length: 12\r\n\r\n"), put(Body::Length(12)));
    assert_eq!(understood("PUT /o/c/n HTTP/1.1\r\nhost: h\r\ncontent-length:0 \r\n\r\n"), put(Body::Length(0)));
    let chunked = "PUT /o/c/n HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: Chunked\r\n\r\n";
    assert_eq!(understood(chunked), put(Body::Chunked));
    assert_eq!(understood("\r\n\r\nGET http://h/o/c/n HTTP/1.1\r\nHost: h\r\n\r\n"), get());
    let health = Request { target: Target::Health, ..get() };
    assert_eq!(understood("GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n"), health);
}

#[test]
fn what_follows_a_head_is_left_alone() {
    let bytes = b"GET /o/c/n HTTP/1.1\r\nHost: h\r\n\r\n\x00GET";
    assert_eq!(parse_head(bytes), Ok(Some((Request { host: Some(b"h"), ..get() }, 32))));
}

#[test]
fn connections_are_kept_as_their_version_has_it() {
    let connection = |head: &str| understood(head).connection;
    assert_eq!(connection("GET / HTTP/1.1\r\nHost: h\r\nConnection: keep-alive\r\n\r\n"), Connection::Keep);
    assert_eq!(connection("GET / HTTP/1.1\r\nHost: h\r\nConnection: x, Close\r\n\r\n"), Connection::Close);
    assert_eq!(connection("GET / HTTP/1.0\r\n\r\n"), Connection::Close);
    assert_eq!(connection("GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n"), Connection::KeepAnnounced);
    assert_eq!(connection("GET / HTTP/1.0\r\nConnection: keep-alive, close\r\n\r\n"), Connection::Close);
}

#[test]
fn a_client_may_wait_before_it_sends_a_body() {
    let expects = |head: &str| understood(head).expect_continue;
    assert!(expects("PUT /o/c/n HTTP/1.1\r\nHost: h\r\nExpect: 100-Continue\r\nContent-Length: 9\r\n\r\n"));
    assert!(!expects("PUT /o/c/n HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 9\r\n\r\n"));
    assert!(!expects("GET /o/c/n HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\n\r\n"));
    assert_eq!(code("PUT /o/c/n", "Content-Length: 1\r\nExpect: 200-ok\r\n"), Err(417));
}

#[test]
fn a_put_carries_conditions_time_to_live_and_attributes() {
    let head = "PUT /o/c/n HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\nIf-Match: \"42\"\r\nHerd-TTL: 1.5\r\n\
                Content-Type: text/plain; charset=utf-8\r\nHerd-Mode: 120777\r\nHerd-Mtime: -7\r\n\
                Herd-Link: ../a%20b%FF\r\n\r\n";
    let write = understood(head).write;
    assert_eq!((write.condition, write.ttl_ms), (Condition::IfVersion(42), Some(1500)));
    let attributes = Attributes {
        content_type: Some("text/plain; charset=utf-8".to_string()),
        mode: Some(0o120777),
        mtime_ns: Some(-7),
        link: Some(b"../a b\xff".to_vec()),
        pairs: Vec::new(),
    };
    assert_eq!(write.attributes(), attributes);
    let absent = understood("PUT /o/c/n HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\nIf-None-Match: *\r\n\r\n").write;
    assert_eq!(absent, Write { condition: Condition::IfAbsent, ..Write::default() });
    assert_eq!(absent.attributes(), Attributes::default());
    let delete = understood("DELETE /o/c/n HTTP/1.1\r\nHost: h\r\nIf-Match: *\r\nHerd-TTL: x\r\n\r\n").write;
    assert_eq!(delete, Write { condition: Condition::IfPresent, ..Write::default() });
}

#[test]
fn what_a_put_may_not_say_is_refused() {
    let table = [
        ("Herd-TTL: 0\r\n", 400),
        ("Herd-TTL: -1\r\n", 400),
        ("Herd-TTL: 1e3\r\n", 400),
        ("Herd-TTL: 99999999999999999999\r\n", 400),
        ("Herd-Mode: 8\r\n", 400),
        ("Herd-Mtime: now\r\n", 400),
        ("Herd-Mtime: 9223372036854775808\r\n", 400),
        ("Herd-Link: %x\r\n", 400),
        ("Herd-Link:\r\n", 400),
        ("Content-Type: t\u{e9}xt\r\n", 400),
        ("Content-Type: a\r\nContent-Type: a\r\n", 400),
        ("Content-Encoding: gzip\r\n", 415),
        ("Content-Range: bytes 0-0/9\r\n", 400),
        ("If-Match: 42\r\n", 400),
        ("If-None-Match: 42\r\n", 400),
        ("If-None-Match: \"42\"\r\n", 501),
        ("If-Match: \"1\", \"2\"\r\n", 501),
        ("If-Unmodified-Since: Sun, 06 Nov 1994 08:49:37 GMT\r\n", 501),
    ];
    for (headers, status) in table {
        assert_eq!(code("PUT /o/c/n", &format!("Content-Length: 1\r\n{headers}")), Err(status), "{headers}");
    }
    assert_eq!(code("PUT /o/c/n", "Content-Length: 1\r\nContent-Encoding: Identity\r\n"), Ok(()));
}

#[test]
fn a_get_carries_its_range_conditions_and_wait() {
    let head = "GET /o/c/n HTTP/1.1\r\nHost: h\r\nRange: bytes=2-3\r\nIf-Range: \"5\"\r\n\
                If-None-Match: \"4\", W/\"3\"\r\n\
                Prefer: wait=2\r\n\r\n";
    let read = understood(head).read;
    assert_eq!((read.range, read.range_if), (Some(ByteRange::From { first: 2, last: Some(3) }), Some(5)));
    assert_eq!(read.wait(), Some(Wait { newer_than: 4, wait_ms: 2000 }));
    assert_eq!(read.plan(5, 10), Plan::Part { offset_bytes: 2, length_bytes: 2 });
    assert_eq!(read.plan(6, 10), Plan::Whole);
    assert_eq!(read.plan(3, 10), Plan::NotModified);
    let several = "GET /o/c/n HTTP/1.1\r\nHost: h\r\nRange: bytes=0-1\r\nRange: bytes=3-4\r\n\r\n";
    assert_eq!(understood(several), get());
    assert_eq!(code("GET /o/c/n", "If-None-Match: 5\r\n"), Err(400));
}

#[test]
fn shapes_that_smuggle_a_request_are_refused() {
    let table = [
        ("Content-Length: 1\r\nTransfer-Encoding: chunked\r\n", 400),
        ("Transfer-Encoding: chunked\r\nContent-Length: 1\r\n", 400),
        ("Content-Length: 1\r\nContent-Length: 2\r\n", 400),
        ("Content-Length: 1\r\nContent-Length: 1\r\n", 400),
        ("Content-Length: 1, 1\r\n", 400),
        ("Content-Length: +1\r\n", 400),
        ("Content-Length: 0x1\r\n", 400),
        ("Content-Length: 1 1\r\n", 400),
        ("Content-Length:\r\n", 400),
        ("Content-Length: 18446744073709551616\r\n", 413),
        ("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", 400),
        ("Transfer-Encoding: chunked, chunked\r\n", 400),
        ("Transfer-Encoding: chunked, gzip\r\n", 400),
        ("Transfer-Encoding: gzip, chunked\r\n", 501),
        ("Transfer-Encoding: gzip\r\n", 501),
        ("Transfer-Encoding: identity\r\n", 501),
        ("Transfer-Encoding: xchunked\r\n", 501),
        ("Transfer-Encoding: \"chunked\"\r\n", 501),
        ("Transfer-Encoding:\r\n", 501),
        ("Transfer-Encoding : chunked\r\n", 400),
        ("Content-Length : 1\r\n", 400),
        ("Content-Length: 1\r\nX: a\r\n b\r\n", 400),
        ("Content-Length: 1\r\n X: a\r\n", 400),
        ("Content-Length: 1\r\nX: a\rTransfer-Encoding: chunked\r\n", 400),
        ("Content-Length: 1\r\nX: a\nY: b\r\n", 400),
        ("Content-Length: 1\r\nX: a\0\r\n", 400),
        ("Content-Length: 1\r\n: a\r\n", 400),
        ("Content-Length: 1\r\nX\r\n", 400),
        ("Content-Length: 1\r\nHost: h\r\n", 400),
        ("", 411),
    ];
    for (headers, status) in table {
        assert_eq!(code("PUT /o/c/n", headers), Err(status), "{headers}");
    }
    for method in ["GET", "HEAD", "DELETE"] {
        assert_eq!(code(&format!("{method} /o/c/n"), "Content-Length: 1\r\n"), Err(400));
        assert_eq!(code(&format!("{method} /o/c/n"), "Transfer-Encoding: chunked\r\n"), Err(400));
    }
}

#[test]
fn first_lines_that_are_none_are_refused() {
    let table: [(&str, u16); 19] = [
        ("GET / HTTP/1.1\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nHost: a, b\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", 400),
        ("GET / HTTP/1.0\r\nHost: user@a\r\n\r\n", 400),
        ("PUT /o/c/n HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        ("GET / HTTP/2.0\r\nHost: h\r\n\r\n", 505),
        ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
        ("GET / HTTP/1.2\r\nHost: h\r\n\r\n", 505),
        ("GET / HTTPS/1.1\r\nHost: h\r\n\r\n", 400),
        ("GET /\r\n", 400),
        ("GET  / HTTP/1.1\r\nHost: h\r\n\r\n", 400),
        ("GET / HTTP/1.1 \r\nHost: h\r\n\r\n", 400),
        ("GET / HTTP/1.1\nHost: h\r\n\r\n", 400),
        ("GET /\t HTTP/1.1\r\nHost: h\r\n\r\n", 400),
        ("\nGET / HTTP/1.1\r\nHost: h\r\n\r\n", 400),
        ("G@T / HTTP/1.1\r\nHost: h\r\n\r\n", 400),
        ("get / HTTP/1.1\r\nHost: h\r\n\r\n", 501),
        ("BREW / HTTP/1.1\r\nHost: h\r\n\r\n", 501),
    ];
    for (head, status) in table {
        let refusal = parse_head(head.as_bytes()).expect_err(head);
        assert_eq!(refusal.status.code(), status, "{head}");
    }
}

#[test]
fn methods_a_target_does_not_have_are_named() {
    let refused = |line: &str| {
        let head = format!("{line} HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n");
        let refusal = parse_head(head.as_bytes()).expect_err(line);
        (refusal.status.code(), refusal.allow)
    };
    for method in ["POST", "PATCH", "OPTIONS", "TRACE", "CONNECT"] {
        assert_eq!(refused(&format!("{method} {OBJECT}")), (405, Some("GET, HEAD, PUT, DELETE")));
    }
    for target in ["/", "/metrics", "/status", "/healthz", "/o/c"] {
        for method in ["PUT", "DELETE", "POST"] {
            assert_eq!(refused(&format!("{method} {target}")), (405, Some("GET, HEAD")));
        }
    }
    assert_eq!(refused("PUT /o"), (404, None));
    assert_eq!(code("GET /nowhere", ""), Ok(()));
}

#[test]
fn heads_are_bounded() {
    let status = |head: String| parse_head(head.as_bytes()).map(|_| ()).map_err(|refusal| refusal.status.code());
    let padded = |length: usize| {
        let start = "GET / HTTP/1.1\r\nHost: h\r\nX: ";
        format!("{start}{}\r\n\r\n", "x".repeat(length - start.len() - 4))
    };
    assert_eq!(status(padded(HTTP_HEAD_MAX_BYTES)), Ok(()));
    assert_eq!(status(padded(HTTP_HEAD_MAX_BYTES + 1)), Err(431));
    assert_eq!(status(format!("GET /o/c/{}", "x".repeat(HTTP_HEAD_MAX_BYTES))), Err(414));
    assert_eq!(status(format!("GET /o/c/{} HTTP/1.1\r\nHost: h\r\n\r\n", "x".repeat(1025))), Err(414));
    assert_eq!(status("G".repeat(HTTP_HEAD_MAX_BYTES)), Err(400));
    assert_eq!(status("\r\n".repeat(HTTP_HEAD_MAX_BYTES)), Err(400));
    assert_eq!(status("G".repeat(HTTP_HEAD_MAX_BYTES - 1)), Ok(()));
    let many = |count: usize| format!("GET / HTTP/1.1\r\nHost: h\r\n{}\r\n", "X: y\r\n".repeat(count - 1));
    assert_eq!(status(many(HTTP_HEADERS_MAX)), Ok(()));
    assert_eq!(status(many(HTTP_HEADERS_MAX + 1)), Err(431));
    for head in [padded(HTTP_HEAD_MAX_BYTES), padded(HTTP_HEAD_MAX_BYTES + 1), many(HTTP_HEADERS_MAX + 1)] {
        assert_eq!(piecewise(head.as_bytes(), 100), parse_head(head.as_bytes()));
    }
    let long = format!("Content-Length: 0\r\nContent-Type: {}\r\n", "x".repeat(ATTRIBUTES_MAX_BYTES));
    let head = format!("PUT {OBJECT} HTTP/1.1\r\nHost: h\r\n{long}\r\n");
    assert!(understood(&head).write.attributes().encode().is_err(), "refused before the body is read");
}

pub(super) fn encoded(response: &Response<'_>) -> String {
    let mut out = b"before".to_vec();
    response.encode(&mut out);
    String::from_utf8(out.split_off(6)).expect("ASCII")
}

pub(super) fn object(attributes: Option<&Attributes>) -> Option<ObjectHead<'_>> {
    Some(ObjectHead { version: 1 << 40, class: Class::Ram(1), copies: 1, attributes, ttl_ms: None })
}

#[test]
fn objects_are_told_with_all_that_is_known() {
    let attributes = Attributes {
        content_type: Some("image/png".to_string()),
        mode: Some(0o100644),
        mtime_ns: Some(784_111_777_999_999_999),
        link: Some(b"a b\n/\xff".to_vec()),
        pairs: vec![(b"k".to_vec(), b"v".to_vec())],
    };
    let date = HttpDate::from_unix_s(784_111_778);
    let whole = Response {
        connection: Connection::Close,
        date: Some(&date),
        content: Content::Whole { length_bytes: 5 },
        object: object(Some(&attributes)),
        ..Response::of(Status::Ok)
    };
    let text = "HTTP/1.1 200 OK\r\nDate: Sun, 06 Nov 1994 08:49:38 GMT\r\nConnection: close\r\nContent-Length: 5\r\n\
                ETag: \"1099511627776\"\r\nHerd-Class: ram:1\r\nHerd-Copies: 1\r\nAccept-Ranges: bytes\r\n\
                Content-Type: image/png\r\nLast-Modified: Sun, 06 Nov 1994 08:49:37 GMT\r\n\
                Herd-Mtime: 784111777999999999\r\nHerd-Mode: 100644\r\nHerd-Link: a%20b%0A/%FF\r\n\r\n";
    assert_eq!(encoded(&whole), text);
    let part = Response {
        connection: Connection::KeepAnnounced,
        content: Content::Part { offset_bytes: 2, length_bytes: 3, size_bytes: 9 },
        object: object(None),
        ..Response::of(Status::Partial)
    };
    let text = "HTTP/1.1 206 Partial Content\r\nConnection: keep-alive\r\nContent-Length: 3\r\n\
                Content-Range: bytes 2-4/9\r\nETag: \"1099511627776\"\r\nHerd-Class: ram:1\r\nHerd-Copies: 1\r\n\
                Accept-Ranges: bytes\r\nContent-Type: application/octet-stream\r\n\r\n";
    assert_eq!(encoded(&part), text);
}

#[test]
fn a_stored_media_type_cannot_split_the_response() {
    for stored in ["text/html\r\nSet-Cookie: a=b", "", "t\u{e9}xt", "a\0"] {
        let attributes = Attributes { content_type: Some(stored.to_string()), ..Attributes::default() };
        let content = Content::Whole { length_bytes: 0 };
        let text = encoded(&Response { content, object: object(Some(&attributes)), ..Response::of(Status::Ok) });
        assert!(text.ends_with("Content-Type: application/octet-stream\r\n\r\n"), "{text}");
    }
}

#[test]
fn writes_and_fresh_copies_are_answered_without_a_body() {
    let attributes = Attributes { mode: Some(1), ..Attributes::default() };
    let about = "ETag: \"1099511627776\"\r\nHerd-Class: ram:1\r\nHerd-Copies: 1\r\n\r\n";
    let content = Content::Whole { length_bytes: 0 };
    let created = Response { content, object: object(None), ..Response::of(Status::Created) };
    assert_eq!(encoded(&created), format!("HTTP/1.1 201 Created\r\nContent-Length: 0\r\n{about}"));
    let replaced = Response { object: object(None), ..Response::of(Status::NoContent) };
    assert_eq!(encoded(&replaced), format!("HTTP/1.1 204 No Content\r\n{about}"));
    let fresh = Response { object: object(Some(&attributes)), ..Response::of(Status::NotModified) };
    assert_eq!(encoded(&fresh), format!("HTTP/1.1 304 Not Modified\r\n{about}"));
    assert_eq!(encoded(&Response::of(Status::NoContent)), "HTTP/1.1 204 No Content\r\n\r\n");
    assert_eq!(CONTINUE, b"HTTP/1.1 100 Continue\r\n\r\n");
}

#[test]
fn pages_have_the_media_type_of_the_caller_and_classes_their_words() {
    let content = Content::Whole { length_bytes: 7 };
    let page = Response { content, content_type: Some("text/plain"), ..Response::of(Status::Ok) };
    assert_eq!(encoded(&page), "HTTP/1.1 200 OK\r\nContent-Length: 7\r\nContent-Type: text/plain\r\n\r\n");
    for class in [Class::Cache, Class::Ram(3), Class::Log(2)] {
        let object = Some(ObjectHead { version: 1, class, copies: 3, attributes: None, ttl_ms: None });
        let text = encoded(&Response { object, ..Response::of(Status::NoContent) });
        assert!(text.contains(&format!("\r\nHerd-Class: {class}\r\nHerd-Copies: 3\r\n")), "{text}");
    }
}

fn error(kind: ErrorKind, about: &About<'_>) -> String {
    let mut out = Vec::new();
    put_error(&mut out, &Error::new(kind, "no \"x\"\n"), about);
    String::from_utf8(out).expect("UTF-8")
}

#[test]
fn errors_say_what_in_json() {
    let type_and = "Content-Type: application/json\r\n";
    let full = format!("HTTP/1.1 507 Insufficient Storage\r\nContent-Length: 40\r\n{type_and}\r\n")
        + "{\"error\":\"full\",\"message\":\"no \\\"x\\\"\\n\"}\n";
    assert_eq!(error(ErrorKind::Full, &About::default()), full);
    let head = About { head_only: true, connection: Connection::Close, ..About::default() };
    let missing = format!("HTTP/1.1 404 Not Found\r\nConnection: close\r\nContent-Length: 45\r\n{type_and}\r\n");
    assert_eq!(error(ErrorKind::NotFound, &head), missing);
    let busy = error(ErrorKind::Busy, &About { head_only: true, ..About::default() });
    let text = "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 40\r\n";
    assert_eq!(busy, format!("{text}{type_and}Retry-After: 1\r\n\r\n"));
    let unreachable = error(ErrorKind::Unreachable, &About { head_only: true, ..About::default() });
    assert_eq!(unreachable, busy.replace("40", "47"));
    let range = error(ErrorKind::BadRange, &About { size_bytes: Some(9), head_only: true, ..About::default() });
    let text = "HTTP/1.1 416 Range Not Satisfiable\r\nContent-Length: 45\r\nContent-Range: bytes */9\r\n";
    assert_eq!(range, format!("{text}{type_and}\r\n"));
}

#[test]
fn refusals_close_the_connection() {
    let refused = |head: &str| {
        let mut out = Vec::new();
        parse_head(head.as_bytes()).expect_err(head).encode(&mut out, None);
        String::from_utf8(out).expect("UTF-8")
    };
    let text = "HTTP/1.1 405 Method Not Allowed\r\nConnection: close\r\nContent-Length: 91\r\n\
                Content-Type: application/json\r\nAllow: GET, HEAD\r\n\r\n\
                {\"error\":\"method_not_allowed\",\"message\":\"the target does not have this method: see Allow\"}\n";
    assert_eq!(refused("POST /status HTTP/1.1\r\nHost: h\r\n\r\n"), text);
    let text = "HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 59\r\n\
                Content-Type: application/json\r\n\r\n";
    assert_eq!(refused("HEAD / HTTP/1.1\r\n\r\n"), text);
}

/// The outcome of feeding `bytes` in growing pieces, `step` bytes at a time.
pub(super) fn piecewise(bytes: &[u8], step: usize) -> Result<Option<(Request<'_>, usize)>, Refusal> {
    for end in (0..bytes.len()).step_by(step).skip(1) {
        match parse_head(&bytes[..end]) {
            Ok(None) => {}
            decided => return decided,
        }
    }
    parse_head(bytes)
}
