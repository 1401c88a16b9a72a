//! One connection that moves large objects, by any of the protocols, with one code for all of them.
//!
//! A body is sent by `writev` straight from the resident source, a reply's body is received into a buffer the caller
//! reuses and is discarded (or handed to a closure). Only heads differ between protocols. The socket may be blocking
//! (line d) or not (line e): [`Bulk::send`] and [`Bulk::receive`] stop where the socket does. States of a transfer:
//! `sending` (segments left; waits when Herd's credit is used up) -> `receiving` -> done; a credit frame may arrive in
//! either.

use std::io::{self, IoSlice, Read, Write};
use std::net::TcpStream;
use std::ops::Range;

use crate::error::{Context, Error, Result};
use crate::proto::{Link, Op, Proto, herd, http, line_end, memcached, resp};
use crate::values::Source;
use crate::wire::{self, Header, flag, kind, tag, verb};

/// Bytes of the null bulk protocol's request and of its reply head.
pub(crate) const NULL_HEAD_BYTES: usize = 8;
/// Longest text reply head.
const HEAD_MAX: usize = 16_384;
const SLICES: usize = 16;
const NO_ETCD: &str = "specifications of large objects refuse etcd";

/// A stretch of what is to be sent.
enum Segment {
    Head(Range<usize>),
    Body(Range<usize>),
}

/// What the head of a reply, or of one frame of it, announces.
#[derive(Debug, PartialEq, Eq)]
struct Piece {
    head_bytes: usize,
    body_bytes: u64,
    tail_bytes: usize,
    last: bool,
    credit: u64,
    found: bool,
}

impl Piece {
    fn whole(head_bytes: usize, body_bytes: u64, tail_bytes: usize) -> Self {
        Self { head_bytes, body_bytes, tail_bytes, last: true, credit: 0, found: true }
    }
}

/// How a finished transfer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Done {
    /// False when a get found nothing.
    pub(crate) found: bool,
    /// Bytes of body received.
    pub(crate) body_bytes: u64,
}

/// A connection for large objects, one transfer at a time.
pub(crate) struct Bulk {
    stream: TcpStream,
    proto: Proto,
    link: Link,
    sequence: u64,
    op: Op,
    heads: Vec<u8>,
    segments: Vec<Segment>,
    segment: usize,
    sent_in_segment: usize,
    granted_bytes: u64,
    head: Vec<u8>,
    body_left: u64,
    tail_left: usize,
    last: bool,
    done: Done,
    blocks: Option<Blocks>,
}

impl Bulk {
    /// Greets on a blocking connection; the caller may make it non-blocking afterwards.
    pub(crate) fn open(mut stream: TcpStream, proto: Proto) -> Result<Self> {
        let link = proto.greet(&mut stream)?;
        Ok(Self::greeted(stream, proto, link))
    }

    /// Takes a connection, blocking or not, on which the greeting was done.
    pub(crate) fn greeted(stream: TcpStream, proto: Proto, link: Link) -> Self {
        Self {
            stream,
            proto,
            link,
            sequence: 0,
            op: Op::Get,
            heads: Vec::new(),
            segments: Vec::new(),
            segment: 0,
            sent_in_segment: 0,
            granted_bytes: 0,
            head: Vec::new(),
            body_left: 0,
            tail_left: 0,
            last: false,
            done: Done { found: true, body_bytes: 0 },
            blocks: None,
        }
    }

    /// The socket.
    pub(crate) fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// From now on every checksum on Herd's wire is checked (header, head, blocks).
    pub(crate) fn check_blocks(&mut self, check: bool) {
        self.blocks = check.then(Blocks::default);
    }

    fn begin(&mut self, op: Op) {
        self.op = op;
        self.sequence += 1;
        self.heads.clear();
        self.segments.clear();
        (self.segment, self.sent_in_segment) = (0, 0);
        self.head.clear();
        (self.body_left, self.tail_left, self.last) = (0, 0, false);
        self.done = Done { found: true, body_bytes: 0 };
        self.granted_bytes = if self.proto == Proto::Herd { wire::FIRST_CREDIT_BYTES } else { wire::ALL };
    }

    /// Starts to read object `name` of at most `len` bytes (the null protocol's reply has exactly so many).
    pub(crate) fn start_get(&mut self, name: &str, len: usize) {
        self.begin(Op::Get);
        match self.proto {
            Proto::Memcached => self.heads.extend_from_slice(format!("get {name}\r\n").as_bytes()),
            Proto::Resp => {
                let request = format!("*2\r\n$3\r\nGET\r\n${}\r\n{name}\r\n", name.len());
                self.heads.extend_from_slice(request.as_bytes());
            }
            Proto::Http => http::append_head(Op::Get, name.as_bytes(), 0, &mut self.heads),
            Proto::Herd => self.herd_get(name, len),
            Proto::Null => self.null_request(b'G', len),
            Proto::Etcd => unreachable!("{NO_ETCD}"),
        }
        self.segments.push(Segment::Head(0..self.heads.len()));
    }

    /// A get, and behind it a credit of the whole body where it needs any: this client drains into memory it owns.
    fn herd_get(&mut self, name: &str, len: usize) {
        let mut head = Vec::new();
        wire::append_field(&mut head, tag::NAME, name.as_bytes());
        let request = herd::request(&self.link, Op::Get, self.sequence);
        wire::append_start(&mut self.heads, request, &head, &[]);
        if len as u64 <= wire::FIRST_CREDIT_BYTES {
            return;
        }
        let credit = Header { kind: kind::CREDIT, id: request.id, length: wire::ALL, ..Header::default() };
        wire::append_start(&mut self.heads, credit, &[], &[]);
    }

    fn null_request(&mut self, verb: u8, len: usize) {
        let word = (len as u64) << 8 | u64::from(verb);
        self.heads.extend_from_slice(&word.to_le_bytes());
    }

    /// Starts to write the first `len` bytes of `source` to object `name`.
    pub(crate) fn start_put(&mut self, name: &str, source: &Source, len: usize) {
        self.begin(Op::Set);
        if self.proto == Proto::Herd {
            return self.herd_put(name, source, len);
        }
        let tail = match self.proto {
            Proto::Memcached => {
                self.heads.extend_from_slice(format!("set {name} 0 0 {len}\r\n").as_bytes());
                &b"\r\n"[..]
            }
            Proto::Resp => {
                let request = format!("*3\r\n$3\r\nSET\r\n${}\r\n{name}\r\n${len}\r\n", name.len());
                self.heads.extend_from_slice(request.as_bytes());
                &b"\r\n"[..]
            }
            Proto::Http => {
                http::append_head(Op::Set, name.as_bytes(), len as u64, &mut self.heads);
                &b""[..]
            }
            Proto::Etcd => unreachable!("{NO_ETCD}"),
            Proto::Null | Proto::Herd => {
                self.null_request(b'P', len);
                &b""[..]
            }
        };
        let head_bytes = self.heads.len();
        self.heads.extend_from_slice(tail);
        self.segments.push(Segment::Head(0..head_bytes));
        self.segments.push(Segment::Body(0..len));
        self.segments.push(Segment::Head(head_bytes..self.heads.len()));
    }

    fn herd_put(&mut self, name: &str, source: &Source, len: usize) {
        let mut start = 0;
        while start == 0 || start < len {
            let end = len.min(start + wire::FRAME_BODY_MAX);
            let mut header = herd::request(&self.link, Op::Set, self.sequence);
            if start > 0 {
                (header.kind, header.flags) = (kind::DATA, 0);
            }
            header.flags |= if end < len { flag::MORE } else { 0 };
            header.offset = start as u64;
            header.length = len as u64;
            header.body_len = u32::try_from(end - start).expect("a frame's body is at most 1 MiB");
            let mut head = Vec::new();
            if start == 0 {
                wire::append_field(&mut head, tag::NAME, name.as_bytes());
            }
            let head_start = self.heads.len();
            wire::append_start(&mut self.heads, header, &head, &block_crcs(source, start..end));
            self.segments.push(Segment::Head(head_start..self.heads.len()));
            self.segments.push(Segment::Body(start..end));
            start = end.max(1);
        }
    }

    /// True when everything is sent.
    pub(crate) fn sent(&self) -> bool {
        self.segment == self.segments.len()
    }

    /// True when sending waits for the peer's credit.
    pub(crate) fn needs_credit(&self) -> bool {
        !self.sent() && !self.allowed(self.segment)
    }

    /// A frame is sent whole or not begun: its head waits with its body.
    fn allowed(&self, index: usize) -> bool {
        let body = self.segments[index..].iter().take(2).find_map(|segment| match segment {
            Segment::Body(range) => Some(range.end as u64),
            Segment::Head(_) => None,
        });
        body.is_none_or(|end| end <= self.granted_bytes)
    }

    /// Sends with one `writev` of at most about `max_bytes`; returns false when the socket is full or credit lacks.
    pub(crate) fn send(&mut self, source: &Source, max_bytes: usize) -> Result<bool> {
        let mut slices = [IoSlice::new(&[]); SLICES];
        let (mut count, mut bytes) = (0, 0);
        let mut skip = self.sent_in_segment;
        for index in self.segment..self.segments.len().min(self.segment + SLICES) {
            if bytes >= max_bytes || !self.allowed(index) {
                break;
            }
            let slice = &self.bytes_of(index, source)[skip..];
            let slice = &slice[..slice.len().min(max_bytes - bytes)];
            slices[count] = IoSlice::new(slice);
            (count, bytes, skip) = (count + 1, bytes + slice.len(), 0);
        }
        if count == 0 {
            return Ok(false);
        }
        // One slice, as every get is, costs less by a plain write.
        let written = match &slices[..count] {
            [one] => (&self.stream).write(one),
            several => (&self.stream).write_vectored(several),
        };
        match written {
            Ok(sent) => self.advance(sent, source),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(error).during(|| "send a body".into()),
        }
        Ok(true)
    }

    fn bytes_of<'a>(&'a self, index: usize, source: &'a Source) -> &'a [u8] {
        match &self.segments[index] {
            Segment::Head(range) => &self.heads[range.clone()],
            Segment::Body(range) => &source.bytes[range.clone()],
        }
    }

    fn advance(&mut self, mut sent: usize, source: &Source) {
        while self.segment < self.segments.len() {
            let left = self.bytes_of(self.segment, source).len() - self.sent_in_segment;
            if sent < left {
                self.sent_in_segment += sent;
                return;
            }
            sent -= left;
            (self.segment, self.sent_in_segment) = (self.segment + 1, 0);
        }
    }

    /// Receives once into `buffer`; `body(offset, bytes)` sees the body. `Some` when the reply is complete.
    pub(crate) fn receive(
        &mut self,
        buffer: &mut [u8],
        mut body: impl FnMut(u64, &[u8]) -> bool,
    ) -> Result<Option<Done>> {
        let count = match (&self.stream).read(buffer) {
            Ok(0) => return Err(Error::new("the server closed the connection within a transfer")),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(error) => return Err(error).during(|| "receive a body".into()),
        };
        let complete = self.feed(&buffer[..count], &mut body).map_err(Error::new)?;
        if complete && !self.sent() {
            return Err(Error::new("the server answered before it had the whole request"));
        }
        Ok(complete.then_some(self.done))
    }

    /// Carries a started transfer through on a blocking connection.
    pub(crate) fn complete(
        &mut self,
        source: &Source,
        buffer: &mut [u8],
        mut body: impl FnMut(u64, &[u8]) -> bool,
    ) -> Result<Done> {
        loop {
            if !self.sent() && self.send(source, usize::MAX)? {
                continue;
            }
            if let Some(done) = self.receive(buffer, &mut body)? {
                return Ok(done);
            }
        }
    }

    fn feed(&mut self, mut data: &[u8], body: &mut impl FnMut(u64, &[u8]) -> bool) -> Result<bool, String> {
        while !data.is_empty() {
            if self.body_left > 0 {
                let count = data.len().min(usize::try_from(self.body_left).unwrap_or(usize::MAX));
                if let Some(blocks) = &mut self.blocks {
                    blocks.check(&data[..count])?;
                }
                if !body(self.done.body_bytes, &data[..count]) {
                    return Err(format!("wrong bytes in the body near {}", self.done.body_bytes));
                }
                self.done.body_bytes += count as u64;
                self.body_left -= count as u64;
                data = &data[count..];
            } else if self.tail_left > 0 {
                let count = data.len().min(self.tail_left);
                self.tail_left -= count;
                data = &data[count..];
            } else if self.last {
                return Err("bytes behind the reply".into());
            } else {
                data = self.feed_head(data)?;
            }
        }
        Ok(self.last && self.body_left == 0 && self.tail_left == 0)
    }

    /// Takes what belongs to the head from `data`; returns the rest.
    ///
    /// A head that arrived whole is read where it lies: copying would keep 16 KiB for each of thousands of connections.
    fn feed_head<'a>(&mut self, data: &'a [u8]) -> Result<&'a [u8], String> {
        let near = &data[..data.len().min(HEAD_MAX)];
        let mut head = std::mem::take(&mut self.head);
        let before = head.len();
        if before > 0 {
            head.extend_from_slice(near);
        }
        let bytes = if before > 0 { &head[..] } else { near };
        let Some(piece) = parse_piece(self.proto, self.op, bytes)? else {
            if bytes.len() > HEAD_MAX || data.len() > HEAD_MAX {
                return Err("an endless reply head".into());
            }
            self.head = if before > 0 { head } else { near.to_vec() };
            return Ok(&[]);
        };
        if let Some(blocks) = &mut self.blocks {
            blocks.begin(self.proto, bytes)?;
        }
        self.granted_bytes = self.granted_bytes.saturating_add(piece.credit);
        self.done.found &= piece.found;
        (self.body_left, self.tail_left, self.last) = (piece.body_bytes, piece.tail_bytes, piece.last);
        Ok(&data[piece.head_bytes - before..])
    }
}

fn block_crcs(source: &Source, range: Range<usize>) -> Vec<u32> {
    let whole = source.block_crcs.get(range.start / wire::BLOCK_BYTES..).unwrap_or_default().iter().copied();
    let blocks = source.bytes[range].chunks(wire::BLOCK_BYTES);
    let mut known = whole;
    blocks
        .map(|block| known.next().filter(|_| block.len() == wire::BLOCK_BYTES).unwrap_or_else(|| wire::crc32c(block)))
        .collect()
}

fn parse_piece(proto: Proto, op: Op, bytes: &[u8]) -> Result<Option<Piece>, String> {
    match proto {
        Proto::Http => parse_http(op, bytes),
        Proto::Herd => parse_frame(op, bytes),
        Proto::Etcd => unreachable!("{NO_ETCD}"),
        Proto::Null => Ok(bytes.first_chunk().map(|head: &[u8; NULL_HEAD_BYTES]| {
            let body_bytes = if op == Op::Get { u64::from_le_bytes(*head) } else { 0 };
            Piece::whole(NULL_HEAD_BYTES, body_bytes, 0)
        })),
        Proto::Memcached | Proto::Resp => {
            let Some(end) = line_end(bytes) else { return Ok(None) };
            let line = &bytes[..end - 2];
            let piece = if proto == Proto::Resp { parse_resp(op, line) } else { parse_memcached(op, line) };
            piece.map(Some).ok_or_else(|| format!("refused: {:?}", String::from_utf8_lossy(line)))
        }
    }
}

fn parse_memcached(op: Op, line: &[u8]) -> Option<Piece> {
    match op {
        Op::Get if line == b"END" => Some(Piece { found: false, ..Piece::whole(5, 0, 0) }),
        Op::Get => Some(Piece::whole(line.len() + 2, memcached::parse_value_line(line)?, 7)),
        Op::Set => (line == b"STORED").then(|| Piece::whole(8, 0, 0)),
    }
}

fn parse_resp(op: Op, line: &[u8]) -> Option<Piece> {
    match op {
        Op::Get if line == b"$-1" => Some(Piece { found: false, ..Piece::whole(5, 0, 0) }),
        Op::Get => Some(Piece::whole(line.len() + 2, resp::parse_bulk_line(line)?, 2)),
        Op::Set => (line == b"+OK").then(|| Piece::whole(5, 0, 0)),
    }
}

fn parse_http(op: Op, bytes: &[u8]) -> Result<Option<Piece>, String> {
    let Some(head) = http::parse_head(bytes)? else { return Ok(None) };
    let piece = Piece::whole(head.head_bytes, head.body_bytes, 0);
    match (op, head.status) {
        (Op::Get, 200) | (Op::Set, 200 | 201 | 204) => Ok(Some(piece)),
        (Op::Get, 404) => Ok(Some(Piece { found: false, ..piece })),
        (_, status) => Err(format!("refused with status {status}")),
    }
}

fn parse_frame(op: Op, bytes: &[u8]) -> Result<Option<Piece>, String> {
    let Some(header) = Header::decode(bytes)? else { return Ok(None) };
    let head_bytes = header.body_start();
    if bytes.len() < head_bytes {
        return Ok(None);
    }
    let piece = Piece { last: !header.more(), ..Piece::whole(head_bytes, u64::from(header.body_len), 0) };
    match (header.kind, header.code, op) {
        (kind::CREDIT, _, Op::Set) => Ok(Some(Piece { last: false, credit: header.length, ..piece })),
        (kind::DATA, _, Op::Get) => Ok(Some(piece)),
        (kind::REPLY, 0, _) if header.verb == (if op == Op::Get { verb::GET } else { verb::PUT }) => Ok(Some(piece)),
        (kind::REPLY, 1, Op::Get) => Ok(Some(Piece { found: false, ..piece })),
        _ => Err(wire::explain(&header, header.head(bytes))),
    }
}

/// The block checksums of the frame that is arriving.
#[derive(Default)]
struct Blocks {
    expected: Vec<u32>,
    next: usize,
    left_bytes: usize,
    block: Vec<u8>,
}

impl Blocks {
    fn begin(&mut self, proto: Proto, start: &[u8]) -> Result<(), String> {
        if proto != Proto::Herd {
            return Ok(());
        }
        let header = Header::decode(start)?.ok_or("a frame begins before its header is whole")?;
        wire::check_start(&header, start)?;
        self.expected = (0..header.blocks()).map(|index| wire::block_crc(&header, start, index)).collect();
        (self.next, self.left_bytes) = (0, header.body_len as usize);
        Ok(())
    }

    fn check(&mut self, mut bytes: &[u8]) -> Result<(), String> {
        while self.next < self.expected.len() && !bytes.is_empty() {
            let wanted = self.left_bytes.min(wire::BLOCK_BYTES) - self.block.len();
            let taken = wanted.min(bytes.len());
            self.block.extend_from_slice(&bytes[..taken]);
            bytes = &bytes[taken..];
            if taken == wanted {
                if wire::crc32c(&self.block) != self.expected[self.next] {
                    return Err(format!("block {} of a frame is damaged", self.next));
                }
                self.left_bytes -= self.block.len();
                self.block.clear();
                self.next += 1;
            }
        }
        Ok(())
    }
}
