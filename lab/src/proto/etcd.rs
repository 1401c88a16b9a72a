//! etcd by its JSON gateway: `POST /v3/kv/range` and `/v3/kv/put`, names and values in base64 (etcd API, version 3).

use std::io::Write;

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};

use super::{Care, Op, Reply, http};
use crate::values::{Values, key};

/// What comes before a value in a reply.
const VALUE: &[u8] = b"\"value\":\"";

/// Appends one request.
pub(super) fn append_request(op: Op, index: u32, values: &Values, out: &mut Vec<u8>) {
    let name = BASE64.encode(key(index));
    let (path, body) = match op {
        Op::Get => ("range", format!("{{\"key\":\"{name}\"}}")),
        Op::Set => ("put", format!("{{\"key\":\"{name}\",\"value\":\"{}\"}}", encoded(index, values))),
    };
    let len = body.len();
    write!(out, "POST /v3/kv/{path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len}\r\n\r\n{body}")
        .expect("a Vec takes all bytes");
}

fn encoded(index: u32, values: &Values) -> String {
    let mut value = Vec::with_capacity(values.value_bytes());
    values.append(index, &mut value);
    BASE64.encode(value)
}

/// Reads one reply; `key` is the number of the key asked for. The gateway sends a length up to 2 KiB of reply.
pub(super) fn read_reply(op: Op, care: Care, key: Option<u32>, values: &Values, bytes: &[u8]) -> Reply {
    let head = match http::parse_head(bytes) {
        Ok(Some(head)) => head,
        Ok(None) => return Reply::Partial,
        Err(reason) => return Reply::wrong(&reason, bytes),
    };
    let body_bytes = usize::try_from(head.body_bytes).expect("small replies");
    let Some(body) = bytes.get(head.head_bytes..head.head_bytes + body_bytes) else { return Reply::Partial };
    if head.status != 200 {
        return Reply::wrong("refused", bytes);
    }
    let right = || value(body).is_some_and(|value| is_right(value, care, key, values));
    if op == Op::Get && !right() {
        return Reply::wrong("not the value asked for", body);
    }
    Reply::in_order(head.head_bytes + body_bytes)
}

/// The value of the first pair in a reply, in base64.
fn value(body: &[u8]) -> Option<&[u8]> {
    let start = body.windows(VALUE.len()).position(|part| part == VALUE)? + VALUE.len();
    let len = body[start..].iter().position(|&byte| byte == b'"')?;
    Some(&body[start..start + len])
}

fn is_right(value: &[u8], care: Care, key: Option<u32>, values: &Values) -> bool {
    let right_length = value.len() == values.value_bytes().div_ceil(3) * 4;
    right_length && (care == Care::Shape || key.is_some_and(|index| encoded(index, values).as_bytes() == value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_as_documented() {
        let values = Values::new(16);
        let mut out = Vec::new();
        append_request(Op::Set, 1, &values, &mut out);
        let text = String::from_utf8(out).expect("text");
        let name = "aGVyZGJlbmNoLTAwMDAwMQ==";
        assert!(text.starts_with("POST /v3/kv/put HTTP/1.1\r\n") && text.contains("Content-Length: 69\r\n"), "{text}");
        assert!(text.ends_with(&format!("{{\"key\":\"{name}\",\"value\":\"{name}\"}}")), "{text}");
    }

    #[test]
    fn replies() {
        let values = Values::new(16);
        let reply = |body: &str| format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        let read = |op, text: &str| read_reply(op, Care::Content, Some(1), &values, text.as_bytes());
        let right = reply(r#"{"kvs":[{"key":"aA==","version":"1","value":"aGVyZGJlbmNoLTAwMDAwMQ=="}],"count":"1"}"#);
        assert_eq!(read(Op::Get, &right), Reply::in_order(right.len()));
        assert_eq!(read(Op::Get, &right[..right.len() - 1]), Reply::Partial);
        let other = reply(r#"{"kvs":[{"key":"aA==","value":"aGVyZGJlbmNoLTAwMDAwMg=="}],"count":"1"}"#);
        assert!(matches!(read(Op::Get, &other), Reply::Wrong(_)), "another key's value");
        assert!(matches!(read(Op::Get, &reply(r#"{"header":{}}"#)), Reply::Wrong(_)), "a miss");
        let put = reply(r#"{"header":{}}"#);
        assert_eq!(read(Op::Set, &put), Reply::in_order(put.len()));
        assert!(matches!(read(Op::Set, &put.replace("200", "500")), Reply::Wrong(_)));
    }
}
