//! The connections to both servers: a step goes to each, and a fence behind it tells when its replies are whole.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use crate::error::{Context, Error, Result};

/// Connections to each server.
pub(super) const CONNS: usize = 4;
/// A server that has not answered the fence by then waits for more of a command, or hangs.
const PATIENCE: Duration = Duration::from_millis(60);
/// How much longer both are waited for.
const MORE_PATIENCE: Duration = Duration::from_millis(150);
/// How long one of them is waited for that is behind the other.
const LONG_PATIENCE: Duration = Duration::from_secs(5);

/// Between two pieces of a request: time enough for most to be read one by one.
const PAUSE: Duration = Duration::from_micros(500);

/// One server's end.
struct Side {
    addr: SocketAddr,
    conns: Vec<Option<TcpStream>>,
}

/// What a server said to a step.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Said {
    /// Its replies, all of them; whether the connection ended with them.
    Whole(Vec<u8>, bool),
    /// It waits for more.
    Waits,
}

/// Both servers, the one that is compared with first.
pub(super) struct Both {
    sides: [Side; 2],
    world: String,
    fences: u64,
}

impl Both {
    pub(super) fn open(first: SocketAddr, second: SocketAddr, world: usize) -> Result<Self> {
        let side = |addr| Side { addr, conns: (0..CONNS).map(|_| None).collect() };
        Ok(Self { sides: [side(first), side(second)], world: format!("w{world:06}-"), fences: 0 })
    }

    /// What every name begins with.
    pub(super) fn world(&self) -> &str {
        &self.world
    }

    /// Sends each its request, in pieces if it is to be cut. Gives the replies of both; an end of the connection is
    /// told in words. `None`: both wait for more of a command, so they agree; memcached keeps back what came before.
    pub(super) fn exchange(
        &mut self,
        conn: usize,
        requests: &[Vec<u8>; 2],
        cut: Option<usize>,
    ) -> Result<Option<[Vec<u8>; 2]>> {
        self.fences += 1;
        let fence = format!("md fence O{}\r\n", self.fences);
        let end = format!("NF O{}\r\n", self.fences);
        for (side, request) in self.sides.iter_mut().zip(requests) {
            let bytes = [request, fence.as_bytes()].concat();
            let (first, rest) = bytes.split_at(cut.map_or(0, |cut| cut % request.len().max(1)));
            if !first.is_empty() {
                side.send(conn, first)?;
                std::thread::sleep(PAUSE);
            }
            side.send(conn, rest)?;
        }
        let mut said = [Vec::new(), Vec::new()];
        let mut first = self.sides[0].hear(conn, end.as_bytes(), &mut said[0], PATIENCE)?;
        let mut second = self.sides[1].hear(conn, end.as_bytes(), &mut said[1], PATIENCE)?;
        if first == Said::Waits && second == Said::Waits {
            // So they agree, unless the machine is busy.
            first = self.sides[0].hear(conn, end.as_bytes(), &mut said[0], MORE_PATIENCE)?;
            second = self.sides[1].hear(conn, end.as_bytes(), &mut said[1], PATIENCE)?;
        }
        if (first == Said::Waits) != (second == Said::Waits) {
            let late = usize::from(second == Said::Waits);
            let again = self.sides[late].hear(conn, end.as_bytes(), &mut said[late], LONG_PATIENCE)?;
            *[&mut first, &mut second][late] = again;
        }
        let told = [first, second].map(|said| match said {
            Said::Whole(bytes, false) => Some(bytes),
            Said::Whole(mut bytes, true) => {
                bytes.extend_from_slice(b"(closed)\r\n");
                Some(bytes)
            }
            Said::Waits => None,
        });
        if told.iter().any(|told| told.as_ref().is_none_or(|bytes| bytes.ends_with(b"(closed)\r\n"))) {
            self.sides.iter_mut().for_each(|side| side.conns[conn] = None);
        }
        Ok(match told {
            [None, None] => None,
            told => Some(told.map(|bytes| bytes.unwrap_or_else(|| b"(waits)\r\n".to_vec()))),
        })
    }
}

impl Side {
    /// A connection whose door is settled: its first bytes are a command that all know.
    fn connect(&self) -> Result<TcpStream> {
        let mut stream = TcpStream::connect(self.addr).during(|| format!("connect to {}", self.addr))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(LONG_PATIENCE))?;
        stream.write_all(b"mn\r\n")?;
        let mut answer = [0; 4];
        stream.read_exact(&mut answer).during(|| format!("read the first reply of {}", self.addr))?;
        if &answer == b"MN\r\n" { Ok(stream) } else { Err(Error::new(format!("{} does not answer mn", self.addr))) }
    }

    fn send(&mut self, conn: usize, bytes: &[u8]) -> Result<()> {
        if self.conns[conn].is_none() {
            self.conns[conn] = Some(self.connect()?);
        }
        let stream = self.conns[conn].as_mut().expect("just made");
        match stream.write_all(bytes) {
            // It has closed within the request: what it said before is read, and its end.
            Err(error) if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => Ok(()),
            other => other.during(|| format!("send to {}", self.addr)),
        }
    }

    /// Reads into `bytes` until the fence's reply, the end, or for so long.
    fn hear(&mut self, conn: usize, end: &[u8], bytes: &mut Vec<u8>, patience: Duration) -> Result<Said> {
        let stream = self.conns[conn].as_mut().expect("the request was sent on it");
        let start = Instant::now();
        let mut chunk = [0; 65_536];
        while !bytes.ends_with(end) {
            let left = patience.checked_sub(start.elapsed()).filter(|left| !left.is_zero());
            let Some(left) = left else { return Ok(Said::Waits) };
            stream.set_read_timeout(Some(left))?;
            match stream.read(&mut chunk) {
                Ok(0) => return Ok(Said::Whole(std::mem::take(bytes), true)),
                Ok(count) => bytes.extend_from_slice(&chunk[..count]),
                Err(error) if error.kind() == ErrorKind::ConnectionReset => {
                    return Ok(Said::Whole(std::mem::take(bytes), true));
                }
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => (),
                Err(error) => return Err(error).during(|| format!("read from {}", self.addr)),
            }
        }
        bytes.truncate(bytes.len() - end.len());
        Ok(Said::Whole(std::mem::take(bytes), false))
    }
}
