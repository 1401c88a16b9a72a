//! Single requests to a Herd node, blocking, by its wire and by HTTP: what a line does to a node between its loads.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::error::{Context, Error, Result};
use crate::map::Map;
use crate::proto::{Proto, http, resp::parse_bulk_line};
use crate::sys;
use crate::wire::{self, Header, flag, kind, tag, verb};

/// How long an answer is waited for.
const PATIENCE: Duration = Duration::from_secs(30);
const STATUS_OK: u16 = 0;

/// A connection by Herd's wire, for one request at a time.
pub(crate) struct Asker {
    stream: TcpStream,
    session: u64,
    sequence: u64,
}

/// A reply: its header, and its body or whole frame.
type Answer = (Header, Vec<u8>);

impl Asker {
    /// Connects and greets.
    pub(crate) fn open(addr: SocketAddr) -> Result<Self> {
        Self::open_within(addr, PATIENCE)
    }

    /// Connects and greets; no read or write on it takes longer than `patience`.
    pub(crate) fn open_within(addr: SocketAddr, patience: Duration) -> Result<Self> {
        let mut stream = sys::connect_blocking(addr, patience).during(|| format!("connect to {addr}"))?;
        let link = Proto::Herd.greet(&mut stream)?;
        Ok(Self { stream, session: link.session, sequence: 0 })
    }

    /// Creates a collection by its specification, JSON; gives its id.
    pub(crate) fn create(&mut self, name: &str, specification: &str) -> Result<u64> {
        let fields = [(tag::COLLECTION, name.as_bytes()), (tag::SPECIFICATION, specification.as_bytes())];
        Ok(self.ask(Header { verb: verb::CREATE, ..Header::default() }, &fields, &[])?.0.collection)
    }

    /// Removes a collection.
    pub(crate) fn destroy(&mut self, name: &str) -> Result<()> {
        let header = Header { verb: verb::DESTROY, ..Header::default() };
        self.ask(header, &[(tag::COLLECTION, name.as_bytes())], &[]).map(drop)
    }

    /// Bytes of the first page of the names that begin so: 0 where there are none.
    pub(crate) fn list(&mut self, collection: u64, prefix: &str) -> Result<usize> {
        let header = Header { verb: verb::LIST, collection, ..Header::default() };
        Ok(self.ask(header, &[(tag::PREFIX, prefix.as_bytes())], &[])?.1.len())
    }

    /// Puts `bytes`, at most a block, into an object from `offset` on.
    pub(crate) fn put_at(&mut self, collection: u64, name: &str, offset: u64, bytes: &[u8]) -> Result<()> {
        let length = bytes.len() as u64;
        let header = Header { verb: verb::PUT, flags: flag::RANGE, collection, offset, length, ..Header::default() };
        self.ask(header, &[(tag::NAME, name.as_bytes())], bytes).map(drop)
    }

    /// The herd's map (PROTOCOL.md §1.13); `None` from a node without others.
    pub(crate) fn map(&mut self) -> Result<Option<Map>> {
        let request = Header { verb: verb::MAP, ..Header::default() };
        let (header, frame) = self.ask_frame(request, &[], &[])?;
        let routes = wire::find_field(header.head(&frame), tag::ROUTES);
        let Some(routes) = routes else { return Ok(None) };
        let key = routes.get(17..33).and_then(|key| key.try_into().ok());
        let key = key.ok_or_else(|| Error::new("the node told no key of the name hash"))?;
        let (mut bytes, mut more) = (frame[header.body_start()..].to_vec(), header.more());
        while more {
            let (header, frame) = self.read_frame()?;
            bytes.extend_from_slice(&frame[header.body_start()..]);
            more = header.more();
        }
        Map::parse(&bytes, key).map(Some).map_err(Error::new)
    }

    fn ask(&mut self, header: Header, fields: &[(u8, &[u8])], body: &[u8]) -> Result<Answer> {
        let (header, frame) = self.ask_frame(header, fields, body)?;
        Ok((header, frame[header.body_start()..].to_vec()))
    }

    /// The header of a reply of status ok, and its first frame.
    fn ask_frame(&mut self, header: Header, fields: &[(u8, &[u8])], body: &[u8]) -> Result<Answer> {
        let (header, frame) = self.exchange(header, fields, body)?;
        if header.code != STATUS_OK {
            return Err(Error::new(wire::explain(&header, header.head(&frame))));
        }
        Ok((header, frame))
    }

    /// Asks and gives the reply of whatever status: its header, and its first frame.
    pub(crate) fn exchange(&mut self, header: Header, fields: &[(u8, &[u8])], body: &[u8]) -> Result<Answer> {
        self.sequence += 1;
        let (mut head, mut frame) = (Vec::new(), Vec::new());
        fields.iter().for_each(|(tag, value)| wire::append_field(&mut head, *tag, value));
        let id = crate::proto::herd::request_id(self.session, self.sequence);
        let body_len = u32::try_from(body.len()).map_err(|_| Error::new("a body of one frame"))?;
        let crcs: Vec<u32> = body.chunks(wire::BLOCK_BYTES).map(wire::crc32c).collect();
        wire::append_start(&mut frame, Header { kind: kind::REQUEST, id, body_len, ..header }, &head, &crcs);
        frame.extend_from_slice(body);
        self.stream.write_all(&frame)?;
        loop {
            let (header, frame) = self.read_frame()?;
            // A put's credit may come before its reply.
            if header.kind == kind::CREDIT {
                continue;
            }
            if header.kind != kind::REPLY || header.id != id {
                return Err(Error::new(wire::explain(&header, header.head(&frame))));
            }
            return Ok((header, frame));
        }
    }

    /// One frame, whole, its checksums checked.
    fn read_frame(&mut self) -> Result<(Header, Vec<u8>)> {
        let mut bytes = vec![0; wire::BRIEF_BYTES];
        self.stream.read_exact(&mut bytes).during(|| "read a reply".into())?;
        let header = loop {
            if let Some(header) = Header::decode(&bytes).map_err(Error::new)? {
                break header;
            }
            let had = bytes.len();
            bytes.resize(wire::HEADER_BYTES, 0);
            self.stream.read_exact(&mut bytes[had..])?;
        };
        let had = bytes.len();
        bytes.resize(header.body_start() + header.body_len as usize, 0);
        self.stream.read_exact(&mut bytes[had..])?;
        wire::check_start(&header, &bytes).map_err(Error::new)?;
        Ok((header, bytes))
    }
}

/// One command to Redis and its reply: a line, or a text.
pub(crate) fn redis(addr: SocketAddr, words: &[&str]) -> Result<String> {
    let mut stream = sys::connect_blocking(addr, PATIENCE)?;
    let words: String = words.iter().map(|word| format!("${}\r\n{word}\r\n", word.len())).collect();
    let count = words.matches('$').count();
    stream.write_all(format!("*{count}\r\n{words}").as_bytes())?;
    let (mut bytes, mut chunk) = (Vec::new(), [0; 4_096]);
    loop {
        let text = String::from_utf8_lossy(&bytes);
        if let Some((line, rest)) = text.split_once("\r\n") {
            match (line.as_bytes().first(), parse_bulk_line(line.as_bytes())) {
                (Some(b'-'), _) => return Err(Error::new(format!("Redis: {line}"))),
                (Some(b'$'), Some(len)) if rest.len() as u64 >= len + 2 => return Ok(rest.to_owned()),
                (Some(b'$'), _) => {}
                _ => return Ok(line.to_owned()),
            }
        }
        let count = stream.read(&mut chunk).during(|| "read Redis's reply".into())?;
        if count == 0 {
            return Err(Error::new("Redis closed the connection"));
        }
        bytes.extend_from_slice(&chunk[..count]);
    }
}

/// One line of memcached text and the first line of its reply.
pub(crate) fn text(addr: SocketAddr, command: &str) -> Result<String> {
    let mut stream = sys::connect_blocking(addr, PATIENCE)?;
    stream.write_all(format!("{command}\r\n").as_bytes())?;
    let (mut bytes, mut chunk) = (Vec::new(), [0; 1_024]);
    while !bytes.ends_with(b"\r\n") {
        let count = stream.read(&mut chunk).during(|| format!("read the reply to {command}"))?;
        if count == 0 {
            return Err(Error::new(format!("the node closed the connection of {command}")));
        }
        bytes.extend_from_slice(&chunk[..count]);
    }
    Ok(String::from_utf8_lossy(&bytes).trim_end().to_owned())
}

/// The body of a page by HTTP.
pub(crate) fn page(addr: SocketAddr, path: &str) -> Result<String> {
    page_within(addr, path, PATIENCE)
}

/// The same; nothing is waited for longer than `patience`.
pub(crate) fn page_within(addr: SocketAddr, path: &str, patience: Duration) -> Result<String> {
    let mut stream = sys::connect_blocking(addr, patience)?;
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes())?;
    let (mut bytes, mut chunk) = (Vec::new(), vec![0; 65_536]);
    loop {
        let count = stream.read(&mut chunk).during(|| format!("read {path}"))?;
        bytes.extend_from_slice(&chunk[..count]);
        if let Some(head) = http::parse_head(&bytes).map_err(Error::new)?
            && bytes.len() as u64 >= head.head_bytes as u64 + head.body_bytes
        {
            let body = String::from_utf8_lossy(&bytes[head.head_bytes..]).into_owned();
            return if head.status == 200 {
                Ok(body)
            } else {
                Err(Error::new(format!("{path}: status {}", head.status)))
            };
        }
        if count == 0 {
            return Err(Error::new(format!("the node closed the connection of {path}")));
        }
    }
}
