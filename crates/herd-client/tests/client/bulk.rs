//! A node for tests of bulk transfers: every object is a repeated pattern, and what is put is only counted. It does as
//! little per byte as a node can, so that what is measured is the client.

use herd_core::limits::{BLOCK_BYTES, WIRE_FIRST_CREDIT_BYTES, WIRE_FRAME_BODY_MAX_BYTES};
use herd_core::wire::*;
use std::io::{IoSlice, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// A running bulk node. Each connection has one request at a time.
pub(crate) struct Bulk {
    pub(crate) address: SocketAddr,
    received: Arc<AtomicU64>,
}

struct Content {
    pattern: Vec<u8>,
    checks: Vec<u32>,
    object_bytes: u64,
    /// Whether blocks that arrive are checked.
    verify: bool,
}

impl Bulk {
    /// Serves objects of `object_bytes`: `pattern`, a multiple of 1 MiB, again and again.
    pub(crate) fn start(pattern: Vec<u8>, object_bytes: u64, verify: bool) -> Bulk {
        assert!(pattern.len().is_multiple_of(WIRE_FRAME_BODY_MAX_BYTES));
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound");
        let received = Arc::new(AtomicU64::new(0));
        let content = Arc::new(Content { checks: block_checks(&pattern).collect(), pattern, object_bytes, verify });
        let counted = received.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (content, received) = (content.clone(), counted.clone());
                std::thread::spawn(move || Session { content, received, stream, buffer: vec![0; 2 << 20] }.run());
            }
        });
        Bulk { address, received }
    }

    /// Bytes of all bodies that have been put wholly.
    pub(crate) fn received_bytes(&self) -> u64 {
        self.received.load(SeqCst)
    }
}

struct Session {
    content: Arc<Content>,
    received: Arc<AtomicU64>,
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Session {
    fn run(mut self) {
        self.stream.set_nodelay(true).expect("TCP");
        let (mut start, mut end) = (0, 0);
        let mut put = None;
        // The frame whose body is arriving, with the bytes still to come.
        let mut arriving: Option<(Header, BlockChecks, usize)> = None;
        loop {
            if let Some((header, checks, left)) = &mut arriving {
                let there = (*left).min(end - start);
                if self.content.verify {
                    checks.update(&self.buffer[start..start + there]).expect("good blocks");
                }
                start += there;
                *left -= there;
                if *left == 0 {
                    let header = *header;
                    arriving = None;
                    self.put(&mut put, &header);
                    continue;
                }
            } else if let Some(head) = parse_frame_head(&self.buffer[start..end]).expect("a frame") {
                let (header, checks) = (head.header, head.checker());
                start += head.bytes();
                match (header.kind, header.verb()) {
                    (Kind::Request, Some(Verb::Get)) => self.get(&header),
                    (Kind::Request, Some(Verb::Put)) => {
                        if header.length > WIRE_FIRST_CREDIT_BYTES {
                            self.send(&Header::credit(header.id, LENGTH_UNKNOWN).encode(), b"");
                        }
                        put = Some((header, 0));
                        arriving = Some((header, checks, header.body_len as usize));
                    }
                    (Kind::Hello, _) => self.send(&Header::new(Kind::Welcome).encode(), b""),
                    (Kind::Data, _) => arriving = Some((header, checks, header.body_len as usize)),
                    _ => {}
                }
                continue;
            }
            self.buffer.copy_within(start..end, 0);
            (start, end) = (0, end - start);
            match self.stream.read(&mut self.buffer[end..]) {
                Ok(0) | Err(_) => return,
                Ok(bytes) => end += bytes,
            }
        }
    }

    fn put(&mut self, put: &mut Option<(Header, u64)>, frame: &Header) {
        let (request, bytes) = put.as_mut().expect("a put is under way");
        *bytes += u64::from(frame.body_len);
        if !frame.has(FLAG_MORE) {
            assert_eq!(*bytes, request.length);
            self.received.fetch_add(*bytes, SeqCst);
            self.send(&Header { version: 1, ..Header::reply_to(request, Status::Ok) }.encode(), b"");
        }
    }

    fn get(&mut self, request: &Header) {
        let content = self.content.clone();
        let (mut head, mut position) = (Vec::new(), 0);
        loop {
            let bytes = (content.object_bytes - position).min(WIRE_FRAME_BODY_MAX_BYTES as u64) as usize;
            let more = position + (bytes as u64) < content.object_bytes;
            let mut header = match position {
                0 => Header { version: 1, length: content.object_bytes, ..Header::reply_to(request, Status::Ok) },
                _ => Header::data(request.id, position, more),
            };
            header.flags = u8::from(more);
            let at = (position % content.pattern.len() as u64) as usize;
            let checks = content.checks[at / BLOCK_BYTES..].iter().copied().take(bytes.div_ceil(BLOCK_BYTES));
            head.clear();
            encode_frame_head(&mut head, header, &Fields::default(), bytes, checks).expect("encodes");
            self.send(&head, &content.pattern[at..at + bytes]);
            position += bytes as u64;
            if !more {
                return;
            }
        }
    }

    fn send(&mut self, head: &[u8], body: &[u8]) {
        let mut slices = &mut [IoSlice::new(head), IoSlice::new(body)][..];
        while slices.iter().any(|slice| !slice.is_empty()) {
            let Ok(bytes) = self.stream.write_vectored(slices) else { return };
            IoSlice::advance_slices(&mut slices, bytes);
        }
    }
}
