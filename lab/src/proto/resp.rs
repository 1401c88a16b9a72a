//! RESP2: `GET` and `SET` of one key (the Redis serialization protocol specification).

use std::io::Write;

use super::{Care, Op, Reply, decimal, line_end};
use crate::values::{KEY_BYTES, Values, key};

const OK: &[u8] = b"+OK\r\n";
/// Longest reply line that is waited for.
const LINE_MAX: usize = 1_024;

/// Appends one request.
pub(super) fn append_request(op: Op, index: u32, values: &Values, out: &mut Vec<u8>) {
    match op {
        Op::Get => out.extend_from_slice(b"*2\r\n$3\r\nGET\r\n"),
        Op::Set => out.extend_from_slice(b"*3\r\n$3\r\nSET\r\n"),
    }
    write!(out, "${KEY_BYTES}\r\n").expect("a Vec takes all bytes");
    out.extend_from_slice(&key(index));
    if op == Op::Set {
        write!(out, "\r\n${}\r\n", values.value_bytes()).expect("a Vec takes all bytes");
        values.append(index, out);
    }
    out.extend_from_slice(b"\r\n");
}

/// Reads one reply; `key` is the number of the key asked for.
pub(super) fn read_reply(op: Op, care: Care, key: Option<u32>, values: &Values, bytes: &[u8]) -> Reply {
    match op {
        Op::Set if bytes.starts_with(OK) => Reply::in_order(OK.len()),
        Op::Set if OK.starts_with(bytes) => Reply::Partial,
        Op::Set => Reply::wrong("SET refused", bytes),
        Op::Get => read_bulk(care, key, values, bytes),
    }
}

fn read_bulk(care: Care, asked: Option<u32>, values: &Values, bytes: &[u8]) -> Reply {
    let Some(start) = line_end(bytes) else {
        return if bytes.len() > LINE_MAX { Reply::wrong("endless line", bytes) } else { Reply::Partial };
    };
    if parse_bulk_line(&bytes[..start - 2]) != Some(values.value_bytes() as u64) {
        return Reply::wrong("not the value asked for", bytes);
    }
    let end = start + values.value_bytes();
    let Some(tail) = bytes.get(end..end + 2) else { return Reply::Partial };
    if tail != b"\r\n" {
        return Reply::wrong("value not followed by CR LF", tail);
    }
    if care == Care::Content && !asked.is_some_and(|index| values.matches(index, &bytes[start..end])) {
        return Reply::wrong("another value than was stored", bytes);
    }
    Reply::in_order(end + 2)
}

/// Length in a line `$length`, without its CR LF.
pub(crate) fn parse_bulk_line(line: &[u8]) -> Option<u64> {
    decimal(line.strip_prefix(b"$")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_as_documented() {
        let values = Values::new(16);
        let mut out = Vec::new();
        append_request(Op::Get, 1, &values, &mut out);
        assert_eq!(out, b"*2\r\n$3\r\nGET\r\n$16\r\nherdbench-000001\r\n");
        out.clear();
        append_request(Op::Set, 1, &values, &mut out);
        let expected = b"*3\r\n$3\r\nSET\r\n$16\r\nherdbench-000001\r\n$16\r\nherdbench-000001\r\n";
        assert_eq!(out, expected);
    }

    #[test]
    fn replies() {
        let values = Values::new(16);
        let read = |op, bytes: &[u8]| read_reply(op, Care::Content, Some(9), &values, bytes);
        let good = b"$16\r\nherdbench-000009\r\n";
        assert_eq!(read(Op::Get, good), Reply::in_order(good.len()));
        for cut in 0..good.len() {
            assert_eq!(read(Op::Get, &good[..cut]), Reply::Partial);
        }
        assert!(matches!(read(Op::Get, b"$16\r\nherdbench-000008\r\n"), Reply::Wrong(_)));
        assert!(matches!(read(Op::Get, b"$-1\r\n"), Reply::Wrong(_)));
        assert!(matches!(read(Op::Get, b"-ERR no\r\n"), Reply::Wrong(_)));
        assert_eq!(read(Op::Set, b"+OK\r\n"), Reply::in_order(5));
        assert!(matches!(read(Op::Set, b"-OOM\r\n"), Reply::Wrong(_)));
    }
}
