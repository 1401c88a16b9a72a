//! The head of a request, understood: the request line and the header fields (RFC 9112 §2 to §6).

use super::fields::{Field, Fields};
use super::number::{decimal, octal_mode, seconds_as_ms};
use super::percent::{Plus, decode};
use super::preconditions::{Read, Tags, write_condition};
use super::refusal::Refusal;
use super::status::Status;
use super::target::Target;
use crate::attributes::Attributes;
use crate::entry::Condition;
use crate::limits::{HTTP_HEAD_MAX_BYTES, HTTP_HEADERS_MAX};
use std::mem::MaybeUninit;

/// What is to be done with the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Read.
    Get,
    /// Read, without a body in the response.
    Head,
    /// Write an object.
    Put,
    /// Remove an object.
    Delete,
}

/// The body that follows the head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// None: the next request follows at once.
    None,
    /// So many bytes (may be 0), of a PUT.
    Length(u64),
    /// Chunks, of a PUT: see [`ChunkedDecoder`](super::ChunkedDecoder).
    Chunked,
}

/// What becomes of the connection after the response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Connection {
    /// It stays, as HTTP/1.1 has it.
    #[default]
    Keep,
    /// It stays, and the response must say so: a client of HTTP/1.0 asked for it.
    KeepAnnounced,
    /// It closes after the response, which says so.
    Close,
}

/// What the header fields of a PUT (or, the condition, a DELETE) ask for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Write<'a> {
    /// If-Match and If-None-Match.
    pub condition: Condition,
    /// Herd-TTL: time to live, at least 1 ms, up to 64 bits.
    pub ttl_ms: Option<u64>,
    /// Content-Type.
    pub content_type: Option<&'a str>,
    /// Herd-Mode: POSIX mode with the file type bits.
    pub mode: Option<u32>,
    /// Herd-Mtime: ns since 1970.
    pub mtime_ns: Option<i64>,
    /// Herd-Link, still percent-encoded, known to be well formed.
    pub(super) link: Option<&'a [u8]>,
}

impl Write<'_> {
    /// The attributes to store; allocates only where there are some. Whether they fit is told by their encoding.
    pub fn attributes(&self) -> Attributes {
        let decoded = |text| decode(text, Plus::Plus).expect("it was decoded when the head was parsed").into_owned();
        Attributes {
            content_type: self.content_type.map(str::to_owned),
            mode: self.mode,
            mtime_ns: self.mtime_ns,
            link: self.link.map(decoded),
            pairs: Vec::new(),
        }
    }
}

/// One request, borrowed from the bytes of its head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request<'a> {
    /// What is to be done.
    pub method: Method,
    /// With what.
    pub target: Target<'a>,
    /// Header Host; only HTTP/1.0 may leave it out.
    pub host: Option<&'a [u8]>,
    /// The body that follows.
    pub body: Body,
    /// The client waits for [`CONTINUE`](super::CONTINUE) (or the final response) before it sends the body.
    pub expect_continue: bool,
    /// What becomes of the connection.
    pub connection: Connection,
    /// What a GET or HEAD asks for; empty for other methods.
    pub read: Read<'a>,
    /// What a PUT or DELETE asks for; empty for other methods.
    pub write: Write<'a>,
}

/// Parses what has arrived. `Ok(None)`: more is needed; else the request and the bytes of its head (empty lines before
/// it included), behind which the body lies. The outcome is the same however the bytes arrive.
///
/// Errors, each with its status: 400, 404, 405, 411, 413, 414, 415, 417, 431, 501, 505.
pub fn parse_head(bytes: &[u8]) -> Result<Option<(Request<'_>, usize)>, Refusal> {
    let seen = &bytes[..bytes.len().min(HTTP_HEAD_MAX_BYTES)];
    parse_seen(seen).map_err(|refusal| Refusal { head_only: request_line(seen).starts_with(b"HEAD "), ..refusal })
}

fn parse_seen(seen: &[u8]) -> Result<Option<(Request<'_>, usize)>, Refusal> {
    let mut headers = [const { MaybeUninit::uninit() }; HTTP_HEADERS_MAX];
    let mut parsed = httparse::Request::new(&mut []);
    match parsed.parse_with_uninit_headers(seen, &mut headers) {
        Ok(httparse::Status::Complete(head_bytes)) => {
            refuse_bare_line_feeds(&seen[..head_bytes])?;
            Ok(Some((understand(&parsed)?, head_bytes)))
        }
        Ok(httparse::Status::Partial) if seen.len() < HTTP_HEAD_MAX_BYTES => Ok(None),
        Ok(httparse::Status::Partial) => Err(too_long(&parsed)),
        Err(error) => Err(malformed(error, seen)),
    }
}

/// A line that ends in LF alone is one line to some recipients and two to others.
fn refuse_bare_line_feeds(head: &[u8]) -> Result<(), Refusal> {
    let is_bare = |at: usize| at == 0 || head[at - 1] != b'\r';
    if memchr::memchr_iter(b'\n', head).any(is_bare) {
        return Err(Refusal::bad("a line of the head does not end in CR LF"));
    }
    Ok(())
}

fn too_long(parsed: &httparse::Request<'_, '_>) -> Refusal {
    match (parsed.method, parsed.path) {
        (None, _) => Refusal::bad("16 KiB without a method"),
        (_, None) => Refusal::new(Status::TargetTooLong, "the target is over 16 KiB"),
        _ => Refusal::new(Status::HeadTooLarge, "the head of the request is over 16 KiB"),
    }
}

fn malformed(error: httparse::Error, seen: &[u8]) -> Refusal {
    match error {
        httparse::Error::TooManyHeaders => Refusal::new(Status::HeadTooLarge, "over 64 header fields"),
        httparse::Error::Version if has_other_version(seen) => {
            Refusal::new(Status::VersionNotSupported, "only HTTP/1.1 and HTTP/1.0 are spoken here")
        }
        httparse::Error::HeaderName => Refusal::bad("malformed name of a header field"),
        httparse::Error::HeaderValue => Refusal::bad("malformed value of a header field"),
        httparse::Error::NewLine => Refusal::bad("a line of the head does not end in CR LF"),
        _ => Refusal::bad("malformed request line: METHOD TARGET HTTP/1.1"),
    }
}

/// Whether the third word of the request line names a version of HTTP.
fn has_other_version(seen: &[u8]) -> bool {
    let version = request_line(seen).split(|b| *b == b' ').nth(2).unwrap_or_default();
    version.strip_prefix(b"HTTP/").and_then(<[u8]>::first).is_some_and(u8::is_ascii_digit)
}

/// What follows the empty lines that may precede a request.
fn request_line(mut seen: &[u8]) -> &[u8] {
    while let Some(rest) = seen.strip_prefix(b"\r\n").or_else(|| seen.strip_prefix(b"\n")) {
        seen = rest;
    }
    seen
}

fn understand<'a>(parsed: &httparse::Request<'_, 'a>) -> Result<Request<'a>, Refusal> {
    let whole = "a whole head has all three words of its first line";
    let is_old = parsed.version.expect(whole) == 0;
    let target = Target::parse(parsed.path.expect(whole))?;
    let method = method_of(parsed.method.expect(whole), &target)?;
    let fields = Fields::collect(parsed.headers)?;
    let host = fields.get(Field::Host);
    check_host(host, is_old)?;
    let body = body_of(method, &fields, is_old)?;
    let expect_continue = expects_continue(&fields)? && body != Body::None && !is_old;
    let connection = match (fields.close, is_old, fields.keep_alive) {
        (true, ..) | (_, true, false) => Connection::Close,
        (_, true, true) => Connection::KeepAnnounced,
        (_, false, _) => Connection::Keep,
    };
    let (read, write) = match method {
        Method::Get | Method::Head => (read_of(method, &fields)?, Write::default()),
        Method::Put => (Read::default(), put_of(&fields)?),
        Method::Delete => (Read::default(), Write { condition: condition_of(&fields)?, ..Write::default() }),
    };
    Ok(Request { method, target, host, body, expect_continue, connection, read, write })
}

fn method_of(name: &str, target: &Target<'_>) -> Result<Method, Refusal> {
    let is_object = matches!(target, Target::Object { .. });
    match name {
        "GET" => Ok(Method::Get),
        "HEAD" => Ok(Method::Head),
        "PUT" if is_object => Ok(Method::Put),
        "DELETE" if is_object => Ok(Method::Delete),
        "PUT" | "DELETE" | "POST" if *target == Target::NotFound => {
            Err(Refusal::new(Status::NotFound, "no such path: objects are at /o/COLLECTION/NAME"))
        }
        "PUT" | "DELETE" | "POST" | "PATCH" | "OPTIONS" | "TRACE" | "CONNECT" => Err(Refusal {
            allow: Some(target.allow()),
            ..Refusal::new(Status::MethodNotAllowed, "the target does not have this method: see Allow")
        }),
        _ => Err(Refusal::new(Status::NotImplemented, "unknown method: use GET, HEAD, PUT or DELETE")),
    }
}

/// One Host, which only HTTP/1.0 may leave out (RFC 9112 §3.2), of characters a host and port may have.
fn check_host(host: Option<&[u8]>, is_old: bool) -> Result<(), Refusal> {
    let may_stand = |b: &u8| {
        matches!(b, b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'%' | b':' | b'[' | b']')
            || matches!(b, b'!' | b'$' | b'&' | b'\'' | b'(' | b')' | b'*' | b'+' | b';' | b'=')
    };
    match host {
        None if is_old => Ok(()),
        None => Err(Refusal::bad("header Host is missing")),
        Some(host) if host.iter().all(may_stand) => Ok(()),
        Some(_) => Err(Refusal::bad("header Host is not a host")),
    }
}

/// How the body is framed (RFC 9112 §6.3); whatever could be read in two ways is refused.
fn body_of(method: Method, fields: &Fields<'_>, is_old: bool) -> Result<Body, Refusal> {
    let coding = fields.get(Field::TransferEncoding);
    let body = match (coding, fields.get(Field::ContentLength)) {
        (Some(_), Some(_)) => return Err(Refusal::bad("both Content-Length and Transfer-Encoding")),
        (Some(_), None) if is_old => return Err(Refusal::bad("Transfer-Encoding in HTTP/1.0")),
        (Some(coding), None) => check_coding(coding).map(|()| Body::Chunked)?,
        (None, Some(length)) => Body::Length(content_length(length)?),
        (None, None) if method == Method::Put => {
            let text = "a PUT needs Content-Length or Transfer-Encoding: chunked";
            return Err(Refusal::new(Status::LengthRequired, text));
        }
        (None, None) => Body::None,
    };
    match body {
        _ if method == Method::Put => Ok(body),
        Body::None | Body::Length(0) => Ok(Body::None),
        _ => Err(Refusal::bad("only a PUT has a body")),
    }
}

fn content_length(value: &[u8]) -> Result<u64, Refusal> {
    let length = decimal(value).ok_or_else(|| Refusal::bad("Content-Length is not a number"))?;
    length.ok_or_else(|| Refusal::new(Status::TooLarge, "Content-Length is over 64 bits"))
}

/// Takes `chunked` alone. 400 where chunked is not the last coding, which leaves no end of the body; 501 for others.
fn check_coding(value: &[u8]) -> Result<(), Refusal> {
    let is_chunked = |coding: &[u8]| coding.trim_ascii().eq_ignore_ascii_case(b"chunked");
    let count = value.split(|b| *b == b',').filter(|coding| is_chunked(coding)).count();
    let ends_so = value.rsplit(|b| *b == b',').next().is_some_and(is_chunked);
    if is_chunked(value) {
        Ok(())
    } else if count > 1 || (count == 1 && !ends_so) {
        Err(Refusal::bad("Transfer-Encoding has chunked before its end"))
    } else {
        Err(Refusal::new(Status::NotImplemented, "only the transfer coding chunked is understood"))
    }
}

fn expects_continue(fields: &Fields<'_>) -> Result<bool, Refusal> {
    match fields.get(Field::Expect) {
        None => Ok(false),
        Some(value) if value.eq_ignore_ascii_case(b"100-continue") => Ok(true),
        Some(_) => Err(Refusal::new(Status::ExpectationFailed, "only 100-continue can be expected")),
    }
}

fn read_of<'a>(method: Method, fields: &Fields<'a>) -> Result<Read<'a>, Refusal> {
    let mut read = Read {
        if_match: tags_of(fields, Field::IfMatch)?,
        if_none_match: tags_of(fields, Field::IfNoneMatch)?,
        wait_ms: fields.wait_s.map(|s| u64::from(s) * 1000),
        ..Read::default()
    };
    if method == Method::Get {
        read.set_range(fields.get(Field::Range), fields.get(Field::IfRange));
    }
    Ok(read)
}

fn tags_of<'a>(fields: &Fields<'a>, field: Field) -> Result<Option<Tags<'a>>, Refusal> {
    let malformed = || Refusal::bad(format!("{} is * or a version in double quotes", field.name()));
    fields.get(field).map(|value| Tags::parse(value).ok_or_else(malformed)).transpose()
}

fn condition_of(fields: &Fields<'_>) -> Result<Condition, Refusal> {
    if fields.get(Field::IfUnmodifiedSince).is_some() {
        let text = "If-Unmodified-Since is not in this version: use If-Match with the version";
        return Err(Refusal::new(Status::NotImplemented, text));
    }
    write_condition(tags_of(fields, Field::IfMatch)?, tags_of(fields, Field::IfNoneMatch)?)
}

fn put_of<'a>(fields: &Fields<'a>) -> Result<Write<'a>, Refusal> {
    if fields.get(Field::ContentEncoding).is_some_and(|coding| !coding.eq_ignore_ascii_case(b"identity")) {
        let text = "Content-Encoding would be lost: send the bytes as they are to be read";
        return Err(Refusal::new(Status::UnsupportedCoding, text));
    }
    if fields.get(Field::ContentRange).is_some() {
        return Err(Refusal::bad("a PUT writes the whole object and takes no Content-Range"));
    }
    let or = |text: &'static str| move || Refusal::bad(text);
    Ok(Write {
        condition: condition_of(fields)?,
        ttl_ms: parsed(fields, Field::HerdTtl, positive_ms, or("Herd-TTL is seconds above 0, such as 90 or 0.5"))?,
        content_type: parsed(fields, Field::ContentType, media_type, or("Content-Type is not plain ASCII"))?,
        mode: parsed(fields, Field::HerdMode, octal_mode, or("Herd-Mode is octal, at most 16 bits"))?,
        mtime_ns: parsed(fields, Field::HerdMtime, nanoseconds, or("Herd-Mtime is ns since 1970"))?,
        link: parsed(fields, Field::HerdLink, link, or("Herd-Link is not empty and percent-encoded"))?,
    })
}

fn parsed<'a, T>(
    fields: &Fields<'a>,
    field: Field,
    parse: impl Fn(&'a [u8]) -> Option<T>,
    refusal: impl Fn() -> Refusal,
) -> Result<Option<T>, Refusal> {
    fields.get(field).map(|value| parse(value).ok_or_else(&refusal)).transpose()
}

fn positive_ms(value: &[u8]) -> Option<u64> {
    seconds_as_ms(value).filter(|ms| *ms > 0)
}

fn media_type(value: &[u8]) -> Option<&str> {
    let is_plain = !value.is_empty() && value.iter().all(|b| matches!(b, b' '..=b'~'));
    std::str::from_utf8(value).ok().filter(|_| is_plain)
}

fn nanoseconds(value: &[u8]) -> Option<i64> {
    std::str::from_utf8(value).ok()?.parse().ok()
}

fn link(value: &[u8]) -> Option<&[u8]> {
    decode(value, Plus::Plus).filter(|target| !target.is_empty()).map(|_| value)
}
