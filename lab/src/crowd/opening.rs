//! How a crowd's connections are opened: at most [`OPENING_MAX`] at once, none of them waited for.
//!
//! Each connects, greets where the protocol wants it, and asks for a name that is not there; its reply ends the
//! opening. What follows thus meets no half-open connection, and servers that close those that never spoke keep these.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, SocketAddrV4, TcpStream};

use crate::bulk::Bulk;
use crate::crowd::{CrowdSpec, PATIENCE, STEP_BYTES};
use crate::error::{Context, Error, Result};
use crate::proto::{Link, Proto, herd};
use crate::sys::{self, Epoll, Event};
use crate::values::Source;
use crate::wire::{self, Header};

/// Connections that are being opened at once: what the accept queues of common servers hold.
const OPENING_MAX: usize = 256;

/// How far a connection has come.
enum Stage {
    Connecting(TcpStream),
    /// Waits for the welcome, of which these bytes are there.
    Greeting(TcpStream, Vec<u8>),
    /// Waits for the reply to its first request.
    Asking(Bulk),
    Open(Bulk),
}

/// The connections while they are opened.
pub(super) struct Opening<'a> {
    spec: &'a CrowdSpec,
    stages: Vec<Option<Stage>>,
    open: usize,
}

impl<'a> Opening<'a> {
    /// None yet.
    pub(super) fn new(spec: &'a CrowdSpec) -> Self {
        Self { spec, stages: Vec::with_capacity(spec.conns), open: 0 }
    }

    /// Opens all, watched by `epoll` under their index.
    pub(super) fn run(mut self, epoll: &mut Epoll, buffer: &mut [u8]) -> Result<Vec<Bulk>> {
        let mut progress = (0, sys::monotonic_ns());
        while self.open < self.spec.conns {
            while self.stages.len() < self.spec.conns && self.stages.len() - self.open < OPENING_MAX {
                let token = self.stages.len();
                let stage = self.begin(token, epoll).map_err(|error| self.explain(token, &error.to_string()))?;
                self.stages.push(Some(stage));
            }
            for index in 0..epoll.wait(100)? {
                let event = epoll.event(index);
                let stage = self.stages[event.token].take().expect("a stage is put back after each step");
                let next = self.step(stage, event, epoll, buffer);
                let next = next.map_err(|error| self.explain(event.token, &error.to_string()))?;
                self.open += usize::from(matches!(next, Stage::Open(_)));
                self.stages[event.token] = Some(next);
            }
            let now_ns = sys::monotonic_ns();
            if progress.0 < self.open {
                progress = (self.open, now_ns);
            } else if u128::from(now_ns - progress.1) > PATIENCE.as_nanos() {
                return Err(self.out_of_patience());
            }
        }
        Ok(self.stages.into_iter().flatten().filter_map(Stage::opened).collect())
    }

    /// Starts to connect.
    fn begin(&self, token: usize, epoll: &Epoll) -> Result<Stage> {
        let server = self.spec.servers[self.spec.server_of(token)];
        let stream = sys::connect_start(ipv4(server)).during(|| "connect".into())?;
        epoll.add(&stream, token, true)?;
        Ok(Stage::Connecting(stream))
    }

    fn step(&self, stage: Stage, event: Event, epoll: &Epoll, buffer: &mut [u8]) -> Result<Stage> {
        match stage {
            Stage::Connecting(stream) => self.connected(stream, event, epoll),
            Stage::Greeting(stream, bytes) => self.greeting(event.token, stream, bytes),
            Stage::Asking(mut bulk) => match bulk.receive(buffer, |_, _| true)? {
                None => Ok(Stage::Asking(bulk)),
                Some(done) if !done.found => Ok(Stage::Open(bulk)),
                Some(_) => Err(Error::new(format!("there is an object {}", self.spec.absent(event.token)))),
            },
            Stage::Open(_) => Err(Error::new("the server spoke, or hung up, on an idle connection")),
        }
    }

    fn connected(&self, mut stream: TcpStream, event: Event, epoll: &Epoll) -> Result<Stage> {
        if let Some(error) = stream.take_error()? {
            return Err(error).during(|| "connect".into());
        }
        if !event.writable {
            return Ok(Stage::Connecting(stream));
        }
        stream.set_nodelay(true)?;
        epoll.change(&stream, event.token, false)?;
        if self.spec.proto != Proto::Herd {
            return self.ask(event.token, stream, Link::default());
        }
        stream.write_all(&wire::hello()).during(|| "send hello".into())?;
        Ok(Stage::Greeting(stream, Vec::new()))
    }

    fn greeting(&self, token: usize, mut stream: TcpStream, mut bytes: Vec<u8>) -> Result<Stage> {
        let mut chunk = [0; 1_024];
        match stream.read(&mut chunk) {
            Ok(0) => return Err(Error::new("the server closed the connection instead of a welcome")),
            Ok(count) => bytes.extend_from_slice(&chunk[..count]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => (),
            Err(error) => return Err(error).during(|| "receive a welcome".into()),
        }
        match read_welcome(&bytes).map_err(Error::new)? {
            Some(session) => self.ask(token, stream, Link { session, collection: self.spec.collection.unwrap_or(0) }),
            None => Ok(Stage::Greeting(stream, bytes)),
        }
    }

    /// Asks for what is not there: the cheapest proof, by any protocol, that the server serves this connection.
    fn ask(&self, token: usize, stream: TcpStream, link: Link) -> Result<Stage> {
        let mut bulk = Bulk::greeted(stream, self.spec.proto, link);
        bulk.start_get(&self.spec.absent(token), self.spec.object_bytes);
        // No source: a get has no body. A fresh socket has room for a request of 200 bytes.
        while !bulk.sent() && bulk.send(&Source::new(0), STEP_BYTES)? {}
        if bulk.sent() { Ok(Stage::Asking(bulk)) } else { Err(Error::new("no room for the first request")) }
    }

    /// An error of connection `token`, and how many of its server's were open by then.
    fn explain(&self, token: usize, what: &str) -> Error {
        let server = self.spec.server_of(token);
        let of_server = |wanted: fn(&Option<Stage>) -> bool| {
            self.stages.iter().skip(server).step_by(self.spec.servers.len()).filter(|stage| wanted(stage)).count()
        };
        let open = of_server(|stage| matches!(stage, Some(Stage::Open(_))));
        let addr = self.spec.servers[server];
        let (all_open, all) = (self.open, self.spec.conns);
        Error::new(format!("connection {token} to {addr}: {what} ({open} to it were open, {all_open} of {all} in all)"))
    }

    fn out_of_patience(&self) -> Error {
        let unfinished = self.stages.iter().position(|stage| !matches!(stage, Some(Stage::Open(_))));
        let token = unfinished.expect("called while not all are open and all that may be are begun");
        let waits_for = match &self.stages[token] {
            Some(Stage::Connecting(_)) => "not connected",
            Some(Stage::Greeting(..)) => "no welcome",
            _ => "no reply to the first request",
        };
        self.explain(token, &format!("{waits_for}, and no other connection opened for {} s", PATIENCE.as_secs()))
    }
}

impl Stage {
    fn opened(self) -> Option<Bulk> {
        if let Self::Open(bulk) = self { Some(bulk) } else { None }
    }
}

fn ipv4(addr: SocketAddr) -> SocketAddrV4 {
    let SocketAddr::V4(addr) = addr else { unreachable!("CrowdSpec::check refuses other addresses") };
    addr
}

/// The session a welcome at the start of `bytes` gives; `None` while it is not whole.
pub(super) fn read_welcome(bytes: &[u8]) -> Result<Option<u64>, String> {
    let Some(header) = Header::decode(bytes)? else { return Ok(None) };
    if bytes.len() < header.body_start() {
        return Ok(None);
    }
    wire::check_start(&header, bytes)?;
    herd::read_welcome(&header, header.head(bytes)).map(Some)
}
