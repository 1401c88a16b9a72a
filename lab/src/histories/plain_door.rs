//! One operation of a history by memcached's meta commands, or by HTTP: the request's text, and what its reply means.
//! Both tell versions: as the CAS value, and as the ETag.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::error::{Context, Error, Result};
use crate::histories::door::Request;
use crate::histories::record::{Answer, Op, Outcome, Status};
use crate::proto::http::PREFIX;
use crate::sys;

/// Longest value that is believed.
const VALUE_MAX_BYTES: usize = 1 << 20;
/// What memcached's clients are told where nothing was done.
const NOTHING_DONE: [&str; 2] = ["busy", "the node that has it can't be reached"];
/// What they are told where a value found no room. Nothing was done then, but for a set: what was there before it is
/// removed, as at memcached, so that nobody reads what is old.
const NO_ROOM: [&str; 2] = ["out of memory", "object too large"];

/// A connection for one request at a time.
struct Lines {
    reader: BufReader<TcpStream>,
}

impl Lines {
    fn open(addr: SocketAddr, patience: Duration) -> Result<Self> {
        let stream = sys::connect_blocking(addr, patience).during(|| format!("connect to {addr}"))?;
        Ok(Self { reader: BufReader::new(stream) })
    }

    fn send(&mut self, bytes: &[u8]) -> Result<()> {
        Ok(self.reader.get_mut().write_all(bytes)?)
    }

    /// The next line, without its end.
    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.reader.by_ref().take(VALUE_MAX_BYTES as u64).read_line(&mut line)?;
        match line.strip_suffix("\r\n") {
            Some(text) => Ok(text.to_owned()),
            None => Err(Error::new("the connection ended within a reply")),
        }
    }

    fn text(&mut self, bytes: usize) -> Result<String> {
        if bytes > VALUE_MAX_BYTES {
            return Err(Error::new("a value that nobody wrote"));
        }
        let mut out = vec![0; bytes];
        self.reader.read_exact(&mut out)?;
        String::from_utf8(out).map_err(|_| Error::new("a value that nobody wrote"))
    }
}

fn answered(status: Status, value: String, version: u64) -> Outcome {
    Outcome::Answered(Answer { status, value, version, ..Answer::default() })
}

/// A connection that speaks memcached's meta commands.
pub(crate) struct MemcachedDoor {
    lines: Lines,
}

impl MemcachedDoor {
    pub(crate) fn open(addr: SocketAddr, patience: Duration) -> Result<Self> {
        Ok(Self { lines: Lines::open(addr, patience)? })
    }

    pub(crate) fn ask(&mut self, request: &Request) -> Result<Outcome> {
        let Request { op, name, arg, .. } = request;
        let version = arg.version;
        let flags = match op {
            Op::Cas => format!("c C{version}"),
            Op::Add => "c ME".to_owned(),
            // Makes it where there is nothing, to live for ever.
            Op::Append => "c MA N0".to_owned(),
            _ => "c".to_owned(),
        };
        let text = match op {
            Op::Get => format!("mg {name} v c\r\n"),
            Op::Remove => format!("md {name}\r\n"),
            Op::Put | Op::Cas | Op::Add | Op::Append => {
                format!("ms {name} {} {flags}\r\n{}\r\n", arg.value.len(), arg.value)
            }
            Op::Take | Op::Lock | Op::Renew | Op::Unlock | Op::Check => {
                return Err(Error::new("memcached has no such operation"));
            }
        };
        self.lines.send(text.as_bytes())?;
        let line = self.lines.line()?;
        let cas = || line.split(' ').find_map(|word| word.strip_prefix('c')?.parse().ok()).unwrap_or(0);
        let words: Vec<&str> = line.split(' ').collect();
        Ok(match words[0] {
            "VA" => {
                let bytes = words.get(1).and_then(|word| word.parse().ok());
                let value = self.lines.text(bytes.ok_or_else(|| Error::new("a value without its length"))?)?;
                self.lines.text(2)?;
                answered(Status::Ok, value, cas())
            }
            "HD" => answered(Status::Ok, String::new(), cas()),
            "EN" | "NF" => answered(Status::NotFound, String::new(), 0),
            "EX" | "NS" => answered(Status::ConditionFailed, String::new(), 0),
            _ => refusal(&line, *op),
        })
    }
}

/// What another line of memcached's protocol means.
fn refusal(line: &str, op: Op) -> Outcome {
    let Some(why) = line.strip_prefix("SERVER_ERROR ").or_else(|| line.strip_prefix("CLIENT_ERROR ")) else {
        return Outcome::Unknown;
    };
    if why.starts_with("not allowed") {
        return answered(Status::NotAllowed, String::new(), 0);
    }
    let is_one_of = |texts: &[&str]| texts.iter().any(|text| why.starts_with(text));
    match is_one_of(&NO_ROOM) {
        true if op == Op::Put => Outcome::Removed,
        has_no_room if has_no_room || is_one_of(&NOTHING_DONE) => Outcome::Refused(why.to_owned()),
        _ => Outcome::Unknown,
    }
}

/// A connection that speaks HTTP.
pub(crate) struct HttpDoor {
    lines: Lines,
}

impl HttpDoor {
    pub(crate) fn open(addr: SocketAddr, patience: Duration) -> Result<Self> {
        Ok(Self { lines: Lines::open(addr, patience)? })
    }

    pub(crate) fn ask(&mut self, request: &Request) -> Result<Outcome> {
        let Request { op, name, arg, .. } = request;
        let method = match op {
            Op::Get => "GET",
            Op::Put | Op::Cas | Op::Add => "PUT",
            Op::Remove => "DELETE",
            Op::Append | Op::Take | Op::Lock | Op::Renew | Op::Unlock | Op::Check => {
                return Err(Error::new("HTTP has no such operation"));
            }
        };
        let condition = match op {
            Op::Cas => format!("If-Match: \"{}\"\r\n", arg.version),
            Op::Add => "If-None-Match: *\r\n".to_owned(),
            _ => String::new(),
        };
        let length = if method == "PUT" { format!("Content-Length: {}\r\n", arg.value.len()) } else { String::new() };
        let head = format!("{method} {PREFIX}{name} HTTP/1.1\r\nHost: localhost\r\n{condition}{length}\r\n");
        self.lines.send((head + &arg.value).as_bytes())?;
        let (status, version, body) = self.reply()?;
        Ok(match status {
            200 => answered(Status::Ok, body, version),
            201 | 204 => answered(Status::Ok, String::new(), version),
            403 => answered(Status::NotAllowed, String::new(), 0),
            404 => answered(Status::NotFound, String::new(), 0),
            412 => answered(Status::ConditionFailed, String::new(), 0),
            413 | 503 | 507 => Outcome::Refused(body),
            _ => Outcome::Unknown,
        })
    }

    /// A reply's status, version and body.
    fn reply(&mut self) -> Result<(u16, u64, String)> {
        let first = self.lines.line()?;
        let status = first.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)?.parse().ok());
        let status = status.ok_or_else(|| Error::new(format!("no status line: {first}")))?;
        let (mut length, mut version) = (0, 0);
        loop {
            let line = self.lines.line()?;
            let Some((name, value)) = line.split_once(':') else { break };
            match name.to_ascii_lowercase().as_str() {
                "content-length" => length = value.trim().parse().map_err(|_| Error::new("no length"))?,
                "etag" => version = value.trim().trim_matches('"').parse().map_err(|_| Error::new("no version"))?,
                _ => (),
            }
        }
        Ok((status, version, self.lines.text(length)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_not_done_is_refused() {
        let put = |line: &str| refusal(line, Op::Put);
        assert!(matches!(put("SERVER_ERROR busy, try again"), Outcome::Refused(_)));
        let away = "SERVER_ERROR the node that has it can't be reached";
        assert!(matches!(put(away), Outcome::Refused(_)));
        assert_eq!(put("SERVER_ERROR timed out, the outcome is unknown"), Outcome::Unknown);
        assert_eq!(put("ERROR"), Outcome::Unknown);
        for full in ["SERVER_ERROR out of memory storing object", "SERVER_ERROR object too large for cache"] {
            assert_eq!(put(full), Outcome::Removed, "a set takes away what was there");
            assert!([Op::Add, Op::Cas, Op::Append].iter().all(|op| matches!(refusal(full, *op), Outcome::Refused(_))));
        }
    }
}
