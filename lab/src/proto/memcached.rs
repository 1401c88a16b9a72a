//! memcached text: `get` and `set` of one key (memcached's doc/protocol.txt).

use std::io::Write;

use super::{Care, Op, Reply, decimal, line_end};
use crate::values::{Values, key};

const STORED: &[u8] = b"STORED\r\n";
const TAIL: &[u8] = b"\r\nEND\r\n";
/// Longest reply line that is waited for.
const LINE_MAX: usize = 2_048;

/// Appends one request.
pub(super) fn append_request(op: Op, index: u32, values: &Values, out: &mut Vec<u8>) {
    match op {
        Op::Get => {
            out.extend_from_slice(b"get ");
            out.extend_from_slice(&key(index));
        }
        Op::Set => {
            out.extend_from_slice(b"set ");
            out.extend_from_slice(&key(index));
            write!(out, " 0 0 {}\r\n", values.value_bytes()).expect("a Vec takes all bytes");
            values.append(index, out);
        }
    }
    out.extend_from_slice(b"\r\n");
}

/// Reads one reply; `key` is the number of the key asked for.
pub(super) fn read_reply(op: Op, care: Care, key: Option<u32>, values: &Values, bytes: &[u8]) -> Reply {
    match op {
        Op::Set if bytes.starts_with(STORED) => Reply::in_order(STORED.len()),
        Op::Set if STORED.starts_with(bytes) => Reply::Partial,
        Op::Set => Reply::wrong("set refused", bytes),
        Op::Get => read_value(care, key, values, bytes),
    }
}

fn read_value(care: Care, asked: Option<u32>, values: &Values, bytes: &[u8]) -> Reply {
    let Some(start) = line_end(bytes) else {
        return if bytes.len() > LINE_MAX { Reply::wrong("endless line", bytes) } else { Reply::Partial };
    };
    let declared = parse_value_line(&bytes[..start - 2]);
    if declared != Some(values.value_bytes() as u64) {
        return Reply::wrong("not the value asked for", bytes);
    }
    let end = start + values.value_bytes();
    let Some(tail) = bytes.get(end..end + TAIL.len()) else { return Reply::Partial };
    if tail != TAIL {
        return Reply::wrong("value not followed by END", tail);
    }
    let content_right =
        || asked.is_some_and(|index| bytes[6..].starts_with(&key(index)) && values.matches(index, &bytes[start..end]));
    if care == Care::Content && !content_right() {
        return Reply::wrong("another value than was stored", bytes);
    }
    Reply::in_order(end + TAIL.len())
}

/// Length in a line `VALUE key flags length`, without its CR LF.
pub(crate) fn parse_value_line(line: &[u8]) -> Option<u64> {
    let rest = line.strip_prefix(b"VALUE ")?;
    let mut words = rest.split(|&byte| byte == b' ');
    let (_key, _flags, len) = (words.next()?, words.next()?, words.next()?);
    if words.next().is_some() { None } else { decimal(len) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(index: u32, values: &Values) -> Vec<u8> {
        let mut bytes = b"VALUE ".to_vec();
        bytes.extend_from_slice(&key(index));
        bytes.extend_from_slice(b" 0 64\r\n");
        values.append(index, &mut bytes);
        bytes.extend_from_slice(TAIL);
        bytes
    }

    #[test]
    fn requests_are_as_documented() {
        let values = Values::new(16);
        let mut out = Vec::new();
        append_request(Op::Get, 1, &values, &mut out);
        append_request(Op::Set, 2, &values, &mut out);
        let expected = b"get herdbench-000001\r\nset herdbench-000002 0 0 16\r\nherdbench-000002\r\n";
        assert_eq!(out, expected);
    }

    #[test]
    fn values_are_read_from_any_cut() {
        let values = Values::new(64);
        let bytes = reply(5, &values);
        for cut in 0..bytes.len() {
            assert_eq!(read_reply(Op::Get, Care::Content, Some(5), &values, &bytes[..cut]), Reply::Partial);
        }
        let good = Reply::in_order(bytes.len());
        assert_eq!(read_reply(Op::Get, Care::Content, Some(5), &values, &bytes), good);
    }

    #[test]
    fn wrong_replies_are_wrong() {
        let values = Values::new(64);
        let bytes = reply(5, &values);
        let read = |op, bytes: &[u8]| read_reply(op, Care::Content, Some(6), &values, bytes);
        let wrong = |op, bytes: &[u8]| matches!(read(op, bytes), Reply::Wrong(_));
        assert!(wrong(Op::Get, &bytes), "another key's value");
        assert!(wrong(Op::Get, b"END\r\n"), "a miss");
        assert!(wrong(Op::Get, b"VALUE k 0 63\r\n"), "another length");
        assert!(wrong(Op::Get, b"SERVER_ERROR out of memory\r\n"));
        assert!(wrong(Op::Set, b"NOT_STORED\r\n"));
        assert!(wrong(Op::Set, b"STOLEN\r\n"));
        let mut cut = reply(6, &values);
        let last = cut.len() - 3;
        cut[last] = b'X';
        assert!(wrong(Op::Get, &cut), "a bad end");
    }

    #[test]
    fn stored_is_read_from_any_cut() {
        let values = Values::new(64);
        assert_eq!(read_reply(Op::Set, Care::Shape, None, &values, b"STOR"), Reply::Partial);
        assert_eq!(read_reply(Op::Set, Care::Shape, None, &values, b"STORED\r\nST"), Reply::in_order(8));
    }
}
