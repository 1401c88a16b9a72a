//! The null servers: what this machine's kernel alone costs, the limit no real server can beat.
//!
//! `null-server` reads, counts whole requests and writes as many copies of one fixed reply: no keys, no lookup, no
//! parsing beyond finding where a request ends. `null-bulk` moves bodies between the socket and one resident buffer by
//! a trivial protocol: a request word (verb in the low byte, length above), for a get the length and the body, for a
//! put the body and then the length back; with `--checked` it also takes the CRC-32C of what it receives, as a server
//! must that promises it. Both are processes of their own, end with their parent, and trust the lab.

use std::hint::black_box;
use std::io::{ErrorKind, IoSlice, Read, Write};
use std::net::{TcpListener, TcpStream};

use crate::bulk::NULL_HEAD_BYTES;
use crate::error::{Error, Result};
use crate::proto::{Op, Proto};
use crate::sys::{self, Epoll};
use crate::values::{Values, printable};
use crate::wire::{self, Header, kind, tag};

const RECEIVE_BYTES: usize = 256 * 1_024;
/// Copies of the reply that one write can send.
const COPIES: usize = 1_024;
/// The largest body `null-bulk` holds.
const BULK_BYTES: usize = 64 << 20;
/// What it receives at a time where it checks it: still in the core's cache then.
const CHECKED_BYTES: usize = 256 * 1_024;

struct Conn {
    stream: TcpStream,
    /// Start of a frame whose rest is to come (Herd's wire), or lines of an unfinished request (text).
    received: Vec<u8>,
    lines: usize,
}

struct Null {
    proto: Proto,
    op: Op,
    reply_bytes: usize,
    replies: Vec<u8>,
}

/// Prints `ready ADDRESS`, as Herd does, and flushes it.
fn announce(listener: &TcpListener) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "ready {}", listener.local_addr()?)?;
    Ok(out.flush()?)
}

/// Serves fixed replies for ever.
pub(crate) fn serve(proto: Proto, op: Op, value_bytes: usize) -> Result<()> {
    let reply = fixed_reply(proto, op, &Values::new(value_bytes))?;
    let null = Null { proto, op, reply_bytes: reply.len(), replies: reply.repeat(COPIES) };
    sys::raise_open_files()?;
    let listener = sys::listen_loopback()?;
    listener.set_nonblocking(true)?;
    announce(&listener)?;
    let mut epoll = Epoll::new(256)?;
    epoll.add(&listener, usize::MAX >> 1, false)?;
    let mut conns: Vec<Option<Conn>> = Vec::new();
    let mut buffer = vec![0; RECEIVE_BYTES];
    loop {
        for index in 0..epoll.wait(-1)? {
            let token = epoll.event(index).token;
            let Some(slot) = conns.get_mut(token) else {
                accept(&listener, &epoll, &mut conns)?;
                continue;
            };
            let Some(conn) = slot else { continue };
            if !null.answer(conn, &mut buffer)? {
                *slot = None;
            }
        }
    }
}

fn accept(listener: &TcpListener, epoll: &Epoll, conns: &mut Vec<Option<Conn>>) -> Result<()> {
    let stream = match listener.accept() {
        Ok((stream, _)) => stream,
        Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    stream.set_nodelay(true)?;
    let token = conns.iter().position(Option::is_none).unwrap_or(conns.len());
    epoll.add(&stream, token, false)?;
    let conn = Some(Conn { stream, received: Vec::new(), lines: 0 });
    if token == conns.len() {
        conns.push(conn)
    } else {
        conns[token] = conn
    }
    Ok(())
}

impl Null {
    /// One read, and one write for all requests it completed; false when the connection has ended.
    fn answer(&self, conn: &mut Conn, buffer: &mut [u8]) -> Result<bool> {
        let kept = conn.received.len();
        buffer[..kept].copy_from_slice(&conn.received);
        conn.received.clear();
        let count = match conn.stream.read(&mut buffer[kept..]) {
            Ok(0) | Err(_) => return Ok(false),
            Ok(count) => count,
        };
        let bytes = &buffer[..kept + count];
        let requests = if self.proto == Proto::Herd { frames(conn, bytes)? } else { self.lines(conn, bytes) };
        let owed = requests.min(COPIES) * self.reply_bytes;
        Ok(owed == 0 || conn.stream.write_all(&self.replies[..owed]).is_ok())
    }

    /// memcached text: a get is one line, a set two.
    fn lines(&self, conn: &mut Conn, bytes: &[u8]) -> usize {
        let for_each = if self.op == Op::Get { 1 } else { 2 };
        let lines = conn.lines + newlines(bytes);
        conn.lines = lines % for_each;
        lines / for_each
    }
}

/// Newlines of `bytes`, counted in pieces whose count fits a byte and by an addition that cannot trap, so that the
/// compiler makes vectors of it: the null server must not be slower than a parser.
fn newlines(bytes: &[u8]) -> usize {
    let in_piece = |piece: &[u8]| piece.iter().fold(0u8, |sum, &byte| sum.wrapping_add(u8::from(byte == b'\n')));
    bytes.chunks(128).map(|piece| usize::from(in_piece(piece))).sum()
}

/// Herd's wire: counts whole request frames; answers a greeting on the spot.
fn frames(conn: &mut Conn, bytes: &[u8]) -> Result<usize> {
    let mut at = 0;
    let mut requests = 0;
    while let Some(header) = Header::decode(&bytes[at..]).map_err(Error::new)? {
        let end = at + header.body_start() + header.body_len as usize;
        if end > bytes.len() {
            break;
        }
        if header.kind == kind::HELLO {
            conn.stream.write_all(&welcome())?;
        } else {
            requests += 1;
        }
        at = end;
    }
    conn.received.extend_from_slice(&bytes[at..]);
    Ok(requests)
}

fn welcome() -> Vec<u8> {
    let (mut head, mut out) = (Vec::new(), Vec::new());
    wire::append_field(&mut head, tag::SESSION, &1u32.to_le_bytes());
    wire::append_start(&mut out, Header { kind: kind::WELCOME, ..Header::default() }, &head, &[]);
    out
}

/// A reply of the size a real server's would have.
fn fixed_reply(proto: Proto, op: Op, values: &Values) -> Result<Vec<u8>> {
    let mut value = Vec::new();
    values.append(0, &mut value);
    match (proto, op) {
        (Proto::Memcached, Op::Set) => Ok(b"STORED\r\n".to_vec()),
        (Proto::Memcached, Op::Get) => {
            let line = format!("VALUE herdbench-000000 0 {}\r\n", value.len());
            Ok([line.as_bytes(), &value, b"\r\nEND\r\n"].concat())
        }
        (Proto::Herd, op) => {
            let body = if op == Op::Get { &value[..] } else { &[] };
            let mut header = Header { kind: kind::REPLY, version: 1, brief: true, ..Header::default() };
            header.verb = if op == Op::Get { wire::verb::GET } else { wire::verb::PUT };
            header.length = body.len() as u64;
            header.body_len = u32::try_from(body.len()).expect("values are at most 32 KiB");
            let crcs: Vec<u32> = body.chunks(wire::BLOCK_BYTES).map(wire::crc32c).collect();
            let mut out = Vec::new();
            wire::append_start(&mut out, header, &[], &crcs);
            out.extend_from_slice(body);
            Ok(out)
        }
        _ => Err(Error::new("the null server speaks memcached text and Herd's wire")),
    }
}

/// Serves bodies for ever, one connection after the other.
pub(crate) fn serve_bulk(checked: bool) -> Result<()> {
    let listener = sys::listen_loopback()?;
    announce(&listener)?;
    let mut body = printable(BULK_BYTES);
    loop {
        let (mut stream, _) = listener.accept()?;
        stream.set_nodelay(true)?;
        while let Ok(true) = transfer(&mut stream, &mut body, checked) {}
    }
}

/// One get or put; false or an error when the client has left.
fn transfer(stream: &mut TcpStream, body: &mut [u8], checked: bool) -> Result<bool> {
    let mut word = [0; NULL_HEAD_BYTES];
    stream.read_exact(&mut word)?;
    let word = u64::from_le_bytes(word);
    let len_word = (word >> 8).to_le_bytes();
    let len = usize::try_from(word >> 8).unwrap_or(usize::MAX);
    let Some(body) = body.get_mut(..len) else { return Ok(false) };
    if word as u8 == b'P' {
        let step = if checked { CHECKED_BYTES } else { BULK_BYTES };
        for piece in body.chunks_mut(step) {
            stream.read_exact(piece)?;
            if checked {
                black_box(wire::crc32c(piece));
            }
        }
        stream.write_all(&len_word)?;
        return Ok(true);
    }
    let total = NULL_HEAD_BYTES + len;
    let mut sent = 0;
    while sent < total {
        let head = &len_word[sent.min(NULL_HEAD_BYTES)..];
        let rest = &body[sent.saturating_sub(NULL_HEAD_BYTES)..];
        sent += stream.write_vectored(&[IoSlice::new(head), IoSlice::new(rest)])?;
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newlines_are_counted_in_any_length() {
        for len in [0, 1, 127, 128, 129, 1_000, 70_000] {
            let bytes: Vec<u8> = (0..len).map(|at| if at % 3 == 0 { b'\n' } else { b'x' }).collect();
            assert_eq!(newlines(&bytes), usize::div_ceil(len, 3));
            assert_eq!(newlines(&vec![b'\n'; len]), len);
        }
    }

    #[test]
    fn fixed_replies_are_what_the_clients_expect() {
        use crate::proto::{Care, Reply};
        let values = Values::new(256);
        for proto in [Proto::Memcached, Proto::Herd] {
            for op in [Op::Get, Op::Set] {
                let reply = fixed_reply(proto, op, &values).expect("both protocols");
                let read = proto.read_reply(op, Care::Content, |_| Some(0), &values, &reply);
                assert!(matches!(read, Reply::Good { used, .. } if used == reply.len()), "{proto:?} {op:?}: {read:?}");
            }
        }
        assert!(fixed_reply(Proto::Http, Op::Get, &values).is_err());
    }
}
