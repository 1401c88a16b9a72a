//! The null servers: servers that do nothing but move bytes, as cheaply as this lab knows how to.
//!
//! `null-server` reads, counts whole requests and writes as many copies of one fixed reply: no keys, no lookup, no
//! parsing beyond finding where a request ends. `null-bulk` moves bodies between the socket and one resident buffer by
//! a trivial protocol: a request word (verb in the low byte, length above), for a get the length and the body, for a
//! put the body and then the length back; with `--checked` it also takes the CRC-32C of what it receives, as a server
//! must that promises it.
//!
//! They use what a fast server may: edge-triggered epoll and rounds (read from up to [`ROUND`] connections, then answer
//! all of them); huge pages; bodies lent to the kernel instead of copied. `--plain` does without: level-triggered, one
//! connection at a time, small pages, `write`. All are processes of their own, end with their parent, and trust the
//! lab.

use std::hint::black_box;
use std::io::{ErrorKind, IoSlice, Read, Write};
use std::net::{TcpListener, TcpStream};

use crate::bulk::NULL_HEAD_BYTES;
use crate::error::{Error, Result};
use crate::proto::{Op, Proto};
use crate::sys::{self, Epoll, Lender};
use crate::values::{Values, printable};
use crate::wire::{self, Header, kind, tag};

const RECEIVE_BYTES: usize = 256 * 1_024;
/// Connections read from before any of them is answered.
const ROUND: usize = 16;
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
pub(crate) fn serve(proto: Proto, op: Op, value_bytes: usize, plain: bool) -> Result<()> {
    let null = Null::new(proto, op, value_bytes)?;
    sys::raise_open_files()?;
    let listener = sys::listen_loopback()?;
    announce(&listener)?;
    null.run(&listener, plain)
}

impl Null {
    fn new(proto: Proto, op: Op, value_bytes: usize) -> Result<Self> {
        let reply = fixed_reply(proto, op, &Values::new(value_bytes))?;
        Ok(Self { proto, op, reply_bytes: reply.len(), replies: reply.repeat(COPIES) })
    }

    fn run(&self, listener: &TcpListener, plain: bool) -> Result<()> {
        listener.set_nonblocking(true)?;
        let mut epoll = if plain { Epoll::new(256)? } else { Epoll::edge_triggered(256)? };
        epoll.add(listener, usize::MAX >> 1, false)?;
        let round = if plain { 1 } else { ROUND };
        let mut conns: Vec<Option<Conn>> = Vec::new();
        let mut buffer = vec![0; RECEIVE_BYTES];
        let mut owed = Vec::with_capacity(round);
        loop {
            let ready = epoll.wait(-1)?;
            for first in (0..ready).step_by(round) {
                for token in (first..ready.min(first + round)).map(|index| epoll.event(index).token) {
                    match conns.get_mut(token) {
                        None => accept_all(listener, &epoll, &mut conns)?,
                        Some(None) => (),
                        Some(Some(conn)) => match self.receive(conn, token, &epoll, &mut buffer)? {
                            Some(requests) => owed.push((token, requests)),
                            None => conns[token] = None,
                        },
                    }
                }
                for (token, requests) in owed.drain(..) {
                    if conns[token].as_mut().is_some_and(|conn| !self.answer(conn, requests)) {
                        conns[token] = None;
                    }
                }
            }
        }
    }
}

/// All that wait: an edge tells of them once.
fn accept_all(listener: &TcpListener, epoll: &Epoll, conns: &mut Vec<Option<Conn>>) -> Result<()> {
    while accept(listener, epoll, conns)? {}
    Ok(())
}

/// False when none waits.
fn accept(listener: &TcpListener, epoll: &Epoll, conns: &mut Vec<Option<Conn>>) -> Result<bool> {
    let stream = match listener.accept() {
        Ok((stream, _)) => stream,
        Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
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
    Ok(true)
}

impl Null {
    /// One read: how many requests it completed; none when the connection has ended.
    fn receive(&self, conn: &mut Conn, token: usize, epoll: &Epoll, buffer: &mut [u8]) -> Result<Option<usize>> {
        let kept = conn.received.len();
        buffer[..kept].copy_from_slice(&conn.received);
        conn.received.clear();
        let count = match conn.stream.read(&mut buffer[kept..]) {
            Ok(0) | Err(_) => return Ok(None),
            Ok(count) => count,
        };
        if kept + count == buffer.len() {
            // There may be more, of which an edge has told already: it tells again.
            epoll.change(&conn.stream, token, false)?;
        }
        let bytes = &buffer[..kept + count];
        let requests = if self.proto == Proto::Herd { frames(conn, bytes)? } else { self.lines(conn, bytes) };
        Ok(Some(requests))
    }

    /// One write for all; false when the connection has ended.
    fn answer(&self, conn: &mut Conn, requests: usize) -> bool {
        let owed = requests.min(COPIES) * self.reply_bytes;
        owed == 0 || conn.stream.write_all(&self.replies[..owed]).is_ok()
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
pub(crate) fn serve_bulk(checked: bool, plain: bool) -> Result<()> {
    let listener = sys::listen_loopback()?;
    announce(&listener)?;
    let mut body = Vec::with_capacity(BULK_BYTES);
    if !plain {
        // A system without huge pages gives small ones.
        sys::advise_huge(body.spare_capacity_mut()).ok();
    }
    body.extend_from_slice(&printable(BULK_BYTES));
    let lender = if plain { None } else { Some(Lender::new()?) };
    loop {
        let (mut stream, _) = listener.accept()?;
        stream.set_nodelay(true)?;
        while let Ok(true) = transfer(&mut stream, &mut body, checked, lender.as_ref()) {}
    }
}

/// One get or put; false or an error when the client has left.
fn transfer(stream: &mut TcpStream, body: &mut [u8], checked: bool, lender: Option<&Lender>) -> Result<bool> {
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
    if let Some(lender) = lender {
        // The next put overwrites what was lent only after its client has read all of it.
        lender.send(stream, &len_word, body)?;
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
    fn both_bulk_servers_give_back_what_they_hold() {
        for lender in [None, Some(Lender::new().expect("a pipe"))] {
            let listener = sys::listen_loopback().expect("loopback");
            let mut client = TcpStream::connect(listener.local_addr().expect("bound")).expect("it listens");
            let (mut stream, _) = listener.accept().expect("it connected");
            let held = printable(3 << 20);
            let mut body = held.clone();
            let server =
                std::thread::spawn(
                    move || {
                        while let Ok(true) = transfer(&mut stream, &mut body, false, lender.as_ref()) {}
                    },
                );
            for len in [0, 1, 65_536, 1_000_001, held.len()] {
                client.write_all(&(((len as u64) << 8) | u64::from(b'G')).to_le_bytes()).expect("it reads");
                let mut reply = vec![0; NULL_HEAD_BYTES + len];
                client.read_exact(&mut reply).expect("it answers");
                assert_eq!(reply[..NULL_HEAD_BYTES], (len as u64).to_le_bytes());
                assert!(reply[NULL_HEAD_BYTES..] == held[..len], "{len} bytes came back otherwise");
            }
            drop(client);
            server.join().expect("it ends with its client");
        }
    }

    #[test]
    fn every_connection_has_a_reply_to_each_request() {
        for plain in [true, false] {
            let listener = sys::listen_loopback().expect("loopback");
            let addr = listener.local_addr().expect("bound");
            let null = Null::new(Proto::Memcached, Op::Get, 16).expect("a protocol it speaks");
            let reply_bytes = null.reply_bytes;
            // It serves until the test process ends.
            std::thread::spawn(move || null.run(&listener, plain));
            let connect = |_| sys::connect_blocking(addr, std::time::Duration::from_secs(10)).expect("it listens");
            let mut clients: Vec<TcpStream> = (0..40).map(connect).collect();
            for turn in 1..=3 {
                clients.iter_mut().for_each(|client| client.write_all(&b"get k\r\n".repeat(turn)).expect("it reads"));
                for client in &mut clients {
                    client.read_exact(&mut vec![0; turn * reply_bytes]).expect("it answers each");
                }
            }
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
