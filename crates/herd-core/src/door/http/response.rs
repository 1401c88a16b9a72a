//! Responses: heads appended to the connection's output, without formatting machinery, and errors with their bodies.

use super::date::HttpDate;
use super::json::error_body;
use super::number::{put_decimal, put_octal};
use super::percent;
use super::request::Connection;
use super::status::Status;
use crate::attributes::Attributes;
use crate::collection::Class;
use crate::entry::Version;
use crate::error::{Error, ErrorKind};

/// The interim response to `Expect: 100-continue`, once the body is wanted.
pub const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// After how long a client may try again when the node is busy.
const RETRY_AFTER_S: u64 = 1;

const NS_PER_S: i64 = 1_000_000_000;

/// What the head says of the body behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Nothing: there never is a body (204, 304).
    Absent,
    /// A body of so many bytes; to a HEAD, that of the GET.
    Whole {
        /// Its length.
        length_bytes: u64,
    },
    /// A part of an object (206), of at least one byte.
    Part {
        /// Its first byte.
        offset_bytes: u64,
        /// Its length.
        length_bytes: u64,
        /// Length of the whole object.
        size_bytes: u64,
    },
    /// The body of an error about a range outside an object (416).
    Unsatisfied {
        /// Length of the body.
        length_bytes: u64,
        /// Length of the whole object.
        size_bytes: u64,
    },
}

/// What the head says of an object.
#[derive(Clone, Copy, Debug)]
pub struct ObjectHead<'a> {
    /// Its version, told as ETag.
    pub version: Version,
    /// Its class.
    pub class: Class,
    /// Copies there are.
    pub copies: u8,
    /// Its attributes, told with 200 and 206: Content-Type, Last-Modified, Herd-Mode, Herd-Mtime, Herd-Link.
    pub attributes: Option<&'a Attributes>,
    /// Time it has still to live, ms, told with 200 and 206: Herd-TTL; `None`: it does not expire.
    pub ttl_ms: Option<u64>,
}

/// The head of a response.
#[derive(Clone, Copy, Debug)]
pub struct Response<'a> {
    /// Its status.
    pub status: Status,
    /// What becomes of the connection.
    pub connection: Connection,
    /// The present date, if the shell has a clock to trust.
    pub date: Option<&'a HttpDate>,
    /// The body that follows.
    pub content: Content,
    /// Media type of the body; that of an object is in its attributes.
    pub content_type: Option<&'a str>,
    /// The object it is about.
    pub object: Option<ObjectHead<'a>>,
    /// Methods the target has (405).
    pub allow: Option<&'static str>,
    /// Seconds after which to try again (503).
    pub retry_after_s: Option<u64>,
}

impl Response<'_> {
    /// A response with this status and nothing else, to be filled in.
    pub fn of(status: Status) -> Self {
        Self {
            status,
            connection: Connection::Keep,
            date: None,
            content: Content::Absent,
            content_type: None,
            object: None,
            allow: None,
            retry_after_s: None,
        }
    }

    /// Appends the head with the empty line that ends it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.status.line().as_bytes());
        if let Some(date) = self.date {
            put_field(out, "Date: ", date.as_bytes());
        }
        match self.connection {
            Connection::Keep => {}
            Connection::KeepAnnounced => out.extend_from_slice(b"Connection: keep-alive\r\n"),
            Connection::Close => out.extend_from_slice(b"Connection: close\r\n"),
        }
        self.put_content(out);
        if let Some(object) = &self.object {
            self.put_object(out, object);
        } else if let Some(media_type) = self.content_type {
            put_field(out, "Content-Type: ", media_type.as_bytes());
        }
        if let Some(methods) = self.allow {
            put_field(out, "Allow: ", methods.as_bytes());
        }
        if let Some(seconds) = self.retry_after_s {
            put_number(out, "Retry-After: ", seconds);
        }
        out.extend_from_slice(b"\r\n");
    }

    fn put_content(&self, out: &mut Vec<u8>) {
        match self.content {
            Content::Absent => {}
            Content::Whole { length_bytes } => put_number(out, "Content-Length: ", length_bytes),
            Content::Part { offset_bytes, length_bytes, size_bytes } => {
                assert!(length_bytes > 0 && offset_bytes < size_bytes, "a part has bytes of the object");
                assert!(length_bytes <= size_bytes - offset_bytes, "a part lies within the object");
                put_number(out, "Content-Length: ", length_bytes);
                out.extend_from_slice(b"Content-Range: bytes ");
                put_decimal(out, offset_bytes);
                out.push(b'-');
                put_decimal(out, offset_bytes + (length_bytes - 1));
                put_number(out, "/", size_bytes);
            }
            Content::Unsatisfied { length_bytes, size_bytes } => {
                put_number(out, "Content-Length: ", length_bytes);
                put_number(out, "Content-Range: bytes */", size_bytes);
            }
        }
    }

    fn put_object(&self, out: &mut Vec<u8>, object: &ObjectHead<'_>) {
        out.extend_from_slice(b"ETag: \"");
        put_decimal(out, object.version);
        out.extend_from_slice(b"\"\r\nHerd-Class: ");
        put_class(out, object.class);
        put_number(out, "\r\nHerd-Copies: ", u64::from(object.copies));
        if matches!(self.status, Status::Ok | Status::Partial) {
            out.extend_from_slice(b"Accept-Ranges: bytes\r\nContent-Type: ");
            let media_type = object.attributes.and_then(|attributes| attributes.content_type.as_deref());
            out.extend_from_slice(media_type.filter(|text| is_plain(text)).unwrap_or(OCTETS).as_bytes());
            out.extend_from_slice(b"\r\n");
            if let Some(ms) = object.ttl_ms {
                put_seconds(out, "Herd-TTL: ", ms);
            }
            if let Some(attributes) = object.attributes {
                put_attributes(out, attributes, self.date);
            }
        }
    }
}

const OCTETS: &str = "application/octet-stream";

/// Whether a stored media type may stand in a head: through another door it may hold line ends.
fn is_plain(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| matches!(b, b' '..=b'~'))
}

fn put_attributes(out: &mut Vec<u8>, attributes: &Attributes, date: Option<&HttpDate>) {
    if let Some(ns) = attributes.mtime_ns {
        let modified = HttpDate::from_unix_s(ns.div_euclid(NS_PER_S));
        // A file's time may lie ahead; what HTTP tells may not (RFC 9110 section 8.8.2.1).
        let told = date.map_or(modified, |date| modified.earlier(*date));
        put_field(out, "Last-Modified: ", told.as_bytes());
        out.extend_from_slice(b"Herd-Mtime: ");
        if ns < 0 {
            out.push(b'-');
        }
        put_number(out, "", ns.unsigned_abs());
    }
    if let Some(mode) = attributes.mode {
        out.extend_from_slice(b"Herd-Mode: ");
        put_octal(out, mode);
        out.extend_from_slice(b"\r\n");
    }
    if let Some(target) = &attributes.link {
        out.extend_from_slice(b"Herd-Link: ");
        percent::put(out, target);
        out.extend_from_slice(b"\r\n");
    }
}

fn put_class(out: &mut Vec<u8>, class: Class) {
    let (word, copies) = match class {
        Class::Cache => return out.extend_from_slice(b"cache"),
        Class::Ram(copies) => ("ram:", copies),
        Class::Log(copies) => ("log:", copies),
    };
    out.extend_from_slice(word.as_bytes());
    put_decimal(out, u64::from(copies));
}

fn put_field(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// Seconds with three places.
fn put_seconds(out: &mut Vec<u8>, name: &str, ms: u64) {
    out.extend_from_slice(name.as_bytes());
    put_decimal(out, ms / 1000);
    let digit = |of: u64| b'0' + (ms % 1000 / of % 10) as u8;
    out.extend_from_slice(&[b'.', digit(100), digit(10), digit(1), b'\r', b'\n']);
}

fn put_number(out: &mut Vec<u8>, name: &str, value: u64) {
    out.extend_from_slice(name.as_bytes());
    put_decimal(out, value);
    out.extend_from_slice(b"\r\n");
}

/// What an error response has to know of the request it answers.
#[derive(Clone, Copy, Debug, Default)]
pub struct About<'a> {
    /// What becomes of the connection.
    pub connection: Connection,
    /// The request was a HEAD: no body.
    pub head_only: bool,
    /// The present date, if the shell has a clock to trust.
    pub date: Option<&'a HttpDate>,
    /// Length of the object, told where a range lies outside it.
    pub size_bytes: Option<u64>,
}

/// Appends the whole response that tells an error: its status, and a JSON body with its kind and text.
pub fn put_error(out: &mut Vec<u8>, error: &Error, about: &About<'_>) {
    let body = error_body(error.kind.name(), &error.text);
    let length_bytes = body.len() as u64;
    let content = match (error.kind, about.size_bytes) {
        (ErrorKind::BadRange, Some(size_bytes)) => Content::Unsatisfied { length_bytes, size_bytes },
        _ => Content::Whole { length_bytes },
    };
    let head = Response {
        connection: about.connection,
        date: about.date,
        content,
        content_type: Some("application/json"),
        retry_after_s: matches!(error.kind, ErrorKind::Busy | ErrorKind::Unreachable).then_some(RETRY_AFTER_S),
        ..Response::of(Status::of(error.kind))
    };
    head.encode(out);
    if !about.head_only {
        out.extend_from_slice(&body);
    }
}
