//! HTTP/1.1: GET and PUT of `/o/default/NAME` (RFC 9112), replies with a Content-Length.

use std::io::Write;

use super::{Care, Op, Reply, decimal};
use crate::values::{Values, key};

/// Longest reply head that is waited for.
const HEAD_MAX: usize = 16_384;
/// Path in front of every name.
pub(crate) const PREFIX: &str = "/o/default/";

/// Appends one request.
pub(super) fn append_request(op: Op, index: u32, values: &Values, out: &mut Vec<u8>) {
    let body_bytes = values.value_bytes() as u64;
    append_head(op, &key(index), body_bytes, out);
    if op == Op::Set {
        values.append(index, out);
    }
}

/// Appends the request's head; `body_bytes` counts only for a PUT.
pub(crate) fn append_head(op: Op, name: &[u8], body_bytes: u64, out: &mut Vec<u8>) {
    let method = if op == Op::Get { "GET " } else { "PUT " };
    out.extend_from_slice(method.as_bytes());
    out.extend_from_slice(PREFIX.as_bytes());
    out.extend_from_slice(name);
    out.extend_from_slice(b" HTTP/1.1\r\nHost: localhost\r\n");
    if op == Op::Set {
        write!(out, "Content-Length: {body_bytes}\r\n").expect("a Vec takes all bytes");
    }
    out.extend_from_slice(b"\r\n");
}

/// A reply head: its bytes with the blank line, the status and the bytes of body that follow.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) head_bytes: usize,
    pub(crate) status: u16,
    pub(crate) body_bytes: u64,
}

/// Reads a reply head; `None` while it is not whole.
pub(crate) fn parse_head(bytes: &[u8]) -> Result<Option<Head>, String> {
    let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else {
        let endless = bytes.len() > HEAD_MAX || (bytes.len() >= 5 && !bytes.starts_with(b"HTTP/"));
        return if endless { Err("not an HTTP reply head".into()) } else { Ok(None) };
    };
    let mut lines = bytes[..end].split(|&byte| byte == b'\n').map(<[u8]>::trim_ascii);
    let status_line = lines.next().unwrap_or_default();
    let status = status_line
        .strip_prefix(b"HTTP/1.1 ")
        .and_then(|rest| decimal(rest.get(..3)?))
        .and_then(|status| u16::try_from(status).ok())
        .ok_or_else(|| format!("bad status line {:?}", String::from_utf8_lossy(status_line)))?;
    let mut body_bytes = None;
    for line in lines {
        let (name, value) = split_header(line).ok_or("a header without a colon")?;
        if name.eq_ignore_ascii_case(b"content-length") {
            body_bytes = Some(decimal(value).ok_or("a Content-Length that is no number")?);
        } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
            return Err("a chunked reply where the length is known".into());
        }
    }
    let body_bytes = match (status, body_bytes) {
        (204 | 304, None) => 0,
        (_, Some(known)) => known,
        _ => return Err("a reply without Content-Length".into()),
    };
    Ok(Some(Head { head_bytes: end + 4, status, body_bytes }))
}

fn split_header(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let colon = line.iter().position(|&byte| byte == b':')?;
    Some((&line[..colon], line[colon + 1..].trim_ascii()))
}

/// Reads one reply; `key` is the number of the key asked for.
pub(super) fn read_reply(op: Op, care: Care, key: Option<u32>, values: &Values, bytes: &[u8]) -> Reply {
    let head = match parse_head(bytes) {
        Ok(Some(head)) => head,
        Ok(None) => return Reply::Partial,
        Err(reason) => return Reply::wrong(&reason, bytes),
    };
    let right_length = op == Op::Set || head.body_bytes == values.value_bytes() as u64;
    let right_status = match op {
        Op::Get => head.status == 200,
        Op::Set => matches!(head.status, 200 | 201 | 204),
    };
    if !right_status || !right_length {
        return Reply::wrong("refused or of another length", bytes);
    }
    let body_bytes = usize::try_from(head.body_bytes).expect("small replies");
    let Some(body) = bytes.get(head.head_bytes..head.head_bytes + body_bytes) else { return Reply::Partial };
    let compare = op == Op::Get && care == Care::Content;
    if compare && !key.is_some_and(|index| values.matches(index, body)) {
        return Reply::wrong("another value than was stored", body);
    }
    Reply::in_order(head.head_bytes + body_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_as_documented() {
        let values = Values::new(16);
        let mut out = Vec::new();
        append_request(Op::Get, 1, &values, &mut out);
        assert_eq!(out, b"GET /o/default/herdbench-000001 HTTP/1.1\r\nHost: localhost\r\n\r\n");
        out.clear();
        append_request(Op::Set, 1, &values, &mut out);
        let text = String::from_utf8(out).expect("text");
        assert!(text.starts_with("PUT /o/default/herdbench-000001 HTTP/1.1\r\n"));
        assert!(text.ends_with("Content-Length: 16\r\n\r\nherdbench-000001"));
    }

    #[test]
    fn heads() {
        let good = b"HTTP/1.1 200 OK\r\nETag: \"1\"\r\ncontent-length: 16\r\n\r\nbody";
        let head = Head { head_bytes: good.len() - 4, status: 200, body_bytes: 16 };
        assert_eq!(parse_head(good), Ok(Some(head)));
        assert_eq!(parse_head(&good[..30]), Ok(None));
        let empty = Head { head_bytes: 27, status: 204, body_bytes: 0 };
        assert_eq!(parse_head(b"HTTP/1.1 204 No Content\r\n\r\n"), Ok(Some(empty)));
        assert!(parse_head(b"HTTP/1.1 200 OK\r\n\r\n").is_err());
        assert!(parse_head(b"HTTP/1.1 2x0 OK\r\n\r\n").is_err());
        assert!(parse_head(b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n").is_err());
        assert!(parse_head(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").is_err());
        assert!(parse_head(b"VALUE").is_err());
    }

    #[test]
    fn replies() {
        let values = Values::new(16);
        let read = |op, bytes: &[u8]| read_reply(op, Care::Content, Some(9), &values, bytes);
        let good = b"HTTP/1.1 200 OK\r\nContent-Length: 16\r\n\r\nherdbench-000009";
        assert_eq!(read(Op::Get, good), Reply::in_order(good.len()));
        assert_eq!(read(Op::Get, &good[..good.len() - 1]), Reply::Partial);
        let other = b"HTTP/1.1 200 OK\r\nContent-Length: 16\r\n\r\nherdbench-000008";
        assert!(matches!(read(Op::Get, other), Reply::Wrong(_)));
        assert!(matches!(read(Op::Get, b"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n"), Reply::Wrong(_)));
        assert_eq!(read(Op::Set, b"HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n"), Reply::in_order(43));
        assert!(matches!(read(Op::Set, b"HTTP/1.1 507 Full\r\nContent-Length: 0\r\n\r\n"), Reply::Wrong(_)));
    }
}
