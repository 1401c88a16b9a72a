//! Herd's wire: get and put of one small object in one frame each way (PROTOCOL.md §1).
//!
//! Requests after the welcome carry the session it gave. They give collection `default` by its id, so that their
//! replies may be brief.

use super::{Asked, Care, Link, Op, Reply};
use crate::values::{Values, key};
use crate::wire::{self, Header, flag, kind, tag, verb};

const SEQUENCE_BITS: u32 = 40;
const STATUS_OK: u16 = 0;

/// Request id of a sequence number in a session.
pub(crate) fn request_id(session: u64, sequence: u64) -> u64 {
    (session << SEQUENCE_BITS) | (sequence & ((1 << SEQUENCE_BITS) - 1))
}

/// A request header for `op`.
pub(crate) fn request(link: &Link, op: Op, sequence: u64) -> Header {
    Header {
        kind: kind::REQUEST,
        verb: if op == Op::Get { verb::GET } else { verb::PUT },
        flags: flag::BRIEF,
        id: request_id(link.session, sequence),
        collection: if link.collection == 0 { wire::DEFAULT_COLLECTION } else { link.collection },
        length: wire::ALL,
        ..Header::default()
    }
}

/// The sequence number of the request that a reply answers.
pub(crate) fn sequence_of(reply: &[u8]) -> Option<u64> {
    let header = Header::decode(reply).ok().flatten()?;
    Some(header.id & ((1 << SEQUENCE_BITS) - 1))
}

/// Appends one request.
pub(super) fn append_request(link: &Link, op: Op, asked: Asked, values: &Values, out: &mut Vec<u8>) {
    let start = out.len();
    let mut header = request(link, op, asked.sequence);
    out.resize(start + wire::HEADER_BYTES, 0);
    wire::append_field(out, tag::NAME, &key(asked.key));
    header.head_len = u16::try_from(out.len() - start - wire::HEADER_BYTES).expect("heads are short");
    if op == Op::Set {
        header.length = values.value_bytes() as u64;
        header.body_len = u32::try_from(values.value_bytes()).expect("Spec::check bounds small values");
        let crc_at = out.len();
        out.extend_from_slice(&[0; 4]);
        values.append(asked.key, out);
        let crc = wire::crc32c(&out[crc_at + 4..]);
        out[crc_at..crc_at + 4].copy_from_slice(&crc.to_le_bytes());
    }
    header.head_crc = wire::crc32c(&out[start + wire::HEADER_BYTES..start + header.body_start()]);
    out[start..start + wire::HEADER_BYTES].copy_from_slice(&header.encode());
}

/// Reads one reply. `asked` gives the key of an open request by its sequence number.
pub(super) fn read_reply(
    op: Op,
    care: Care,
    asked: impl Fn(Option<u64>) -> Option<u32>,
    values: &Values,
    bytes: &[u8],
) -> Reply {
    let header = match Header::decode(bytes) {
        Ok(Some(header)) => header,
        Ok(None) => return Reply::Partial,
        Err(reason) => return Reply::Wrong(reason),
    };
    let body_start = header.body_start();
    let used = body_start + header.body_len as usize;
    if bytes.len() < used {
        return Reply::Partial;
    }
    if header.kind != kind::REPLY || header.code != STATUS_OK || header.more() {
        return Reply::Wrong(wire::explain(&header, header.head(bytes)));
    }
    let sequence = header.id & ((1 << SEQUENCE_BITS) - 1);
    let Some(key) = asked(Some(sequence)) else {
        return Reply::Wrong(format!("a reply to request {sequence}, which is not open"));
    };
    let body_bytes = if op == Op::Get { values.value_bytes() } else { 0 };
    if header.body_len as usize != body_bytes {
        return Reply::Wrong(format!("{} bytes of body, not {body_bytes}", header.body_len));
    }
    if care == Care::Content
        && let Err(reason) = check_content(op, &header, key, values, &bytes[..used])
    {
        return Reply::Wrong(reason);
    }
    Reply::Good { used, sequence: Some(sequence) }
}

fn check_content(op: Op, header: &Header, key: u32, values: &Values, frame: &[u8]) -> Result<(), String> {
    wire::check_start(header, frame)?;
    if op == Op::Set {
        return if header.version > 0 { Ok(()) } else { Err("a put without a version".into()) };
    }
    let body = &frame[header.body_start()..];
    if header.length != body.len() as u64 {
        return Err(format!("length {} of an object of {}", header.length, body.len()));
    }
    for (index, block) in body.chunks(wire::BLOCK_BYTES).enumerate() {
        if wire::crc32c(block) != wire::block_crc(header, frame, index) {
            return Err("block checksum is wrong".into());
        }
    }
    if values.matches(key, body) { Ok(()) } else { Err("another value than was stored".into()) }
}

/// The session a welcome gives.
pub(crate) fn read_welcome(header: &Header, head: &[u8]) -> Result<u64, String> {
    if header.kind != kind::WELCOME {
        return Err(wire::explain(header, head));
    }
    let session = wire::find_field(head, tag::SESSION).ok_or("a welcome without a session")?;
    let session = u32::from_le_bytes(session.try_into().map_err(|_| "a session that is no u32")?);
    Ok(u64::from(session))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINK: Link = Link { session: 3, collection: 0 };

    fn reply(op: Op, sequence: u64, index: u32, values: &Values) -> Vec<u8> {
        let mut header = request(&LINK, op, sequence);
        header.kind = kind::REPLY;
        header.version = 4;
        let mut body = Vec::new();
        if op == Op::Get {
            values.append(index, &mut body);
        }
        header.length = body.len() as u64;
        header.body_len = u32::try_from(body.len()).expect("small");
        let crcs: Vec<u32> = body.chunks(wire::BLOCK_BYTES).map(wire::crc32c).collect();
        let mut out = Vec::new();
        wire::append_start(&mut out, header, &[], &crcs);
        out.extend_from_slice(&body);
        out
    }

    #[test]
    fn requests_are_good_frames() {
        let values = Values::new(256);
        let mut out = Vec::new();
        append_request(&LINK, Op::Set, Asked { key: 7, sequence: 5 }, &values, &mut out);
        let header = Header::decode(&out).expect("a header").expect("whole");
        wire::check_start(&header, &out).expect("checksums");
        assert_eq!((header.verb, header.collection, header.length), (verb::PUT, 2, 256));
        assert_eq!(header.id, (3 << 40) | 5);
        assert_eq!(out.len(), header.body_start() + 256);
        assert_eq!(wire::block_crc(&header, &out, 0), wire::crc32c(&out[header.body_start()..]));
        assert_eq!(wire::find_field(header.head(&out), tag::NAME), Some(&key(7)[..]));
    }

    #[test]
    fn replies_are_matched_by_sequence_and_checked() {
        let values = Values::new(256);
        let open = |sequence: Option<u64>| (sequence == Some(5)).then_some(7u32);
        let bytes = reply(Op::Get, 5, 7, &values);
        let good = Reply::Good { used: bytes.len(), sequence: Some(5) };
        assert_eq!(read_reply(Op::Get, Care::Content, open, &values, &bytes), good);
        for cut in 0..bytes.len() {
            assert_eq!(read_reply(Op::Get, Care::Content, open, &values, &bytes[..cut]), Reply::Partial);
        }
        let wrong = |op, bytes: &[u8]| matches!(read_reply(op, Care::Content, open, &values, bytes), Reply::Wrong(_));
        assert!(wrong(Op::Get, &reply(Op::Get, 5, 8, &values)), "another key's value");
        assert!(wrong(Op::Get, &reply(Op::Get, 6, 7, &values)), "not open");
        assert!(wrong(Op::Get, &reply(Op::Set, 5, 7, &values)), "no body");
        for at in [10, 30, 72, 80, 300] {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x40;
            assert!(wrong(Op::Get, &damaged), "damage at {at}");
        }
    }

    #[test]
    fn greetings() {
        let hello = wire::hello();
        let header = Header::decode(&hello).expect("a header").expect("whole");
        assert_eq!(header.kind, kind::HELLO);
        let mut head = Vec::new();
        wire::append_field(&mut head, tag::SESSION, &9u32.to_le_bytes());
        let welcome = Header { kind: kind::WELCOME, ..Header::default() };
        assert_eq!(read_welcome(&welcome, &head), Ok(9));
        assert!(read_welcome(&welcome, &[]).is_err());
        assert!(read_welcome(&header, &head).is_err());
    }
}
