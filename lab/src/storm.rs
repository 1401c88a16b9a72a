//! Line g's crowd: clients that lose their connections at one moment and all come back at once.
//!
//! Every client is connected and answered first. At the given time all connections are closed and as many non-blocking
//! connects are started; each client asks as soon as it is connected and is done at its right reply. Time counts from
//! the given moment, closing included. A process of its own (`herd-lab storm`).

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error::{Context, Error, Result};
use crate::proto::{Asked, Care, Link, Op, Proto, Reply};
use crate::sys::{self, Epoll};
use crate::values::Values;

/// Clients without a reply by then have failed.
const PATIENCE_NS: u64 = 15_000_000_000;

/// One crowd.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct StormSpec {
    /// Where the server listens.
    pub(crate) addr: SocketAddr,
    /// A door without a greeting.
    pub(crate) proto: Proto,
    /// Clients.
    pub(crate) clients: usize,
    /// Bytes of the value of key 0.
    pub(crate) value_bytes: usize,
    /// Monotonic time at which all reconnect.
    pub(crate) at_ns: u64,
    /// Core to stay on.
    pub(crate) core: Option<usize>,
}

/// How they fared.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct StormOutcome {
    /// Clients with a right reply.
    pub(crate) answered: usize,
    /// Clients refused, reset or never answered.
    pub(crate) failed: usize,
    /// When the last right reply came, since the moment.
    pub(crate) last_ms: f64,
    /// When half of them were answered.
    pub(crate) half_ms: f64,
}

struct Client {
    stream: TcpStream,
    asked: bool,
    received: Vec<u8>,
}

/// One request for key 0 and its reply, checked, on a blocking connection.
pub(crate) fn ask_once(stream: &mut TcpStream, proto: Proto, link: &Link, values: &Values) -> Result<()> {
    let mut request = Vec::new();
    proto.append_request(link, Op::Get, Asked { key: 0, sequence: 0 }, values, &mut request);
    stream.write_all(&request)?;
    let (mut bytes, mut chunk) = (Vec::new(), [0; 4_096]);
    loop {
        let count = stream.read(&mut chunk)?;
        bytes.extend_from_slice(&chunk[..count]);
        match proto.read_reply(Op::Get, Care::Content, |_| Some(0), values, &bytes) {
            Reply::Good { .. } => return Ok(()),
            Reply::Partial if count > 0 => (),
            other => return Err(Error::new(format!("the first reply: {other:?}"))),
        }
    }
}

/// Opens `count` connections, each with one right reply behind it.
pub(crate) fn connect_answered(
    addr: SocketAddr,
    proto: Proto,
    count: usize,
    value_bytes: usize,
) -> Result<Vec<TcpStream>> {
    let values = Values::new(value_bytes);
    let open = |index: usize| {
        let mut stream = sys::connect_blocking(addr, Duration::from_secs(5))?;
        let link = proto.greet(&mut stream)?;
        ask_once(&mut stream, proto, &link, &values)?;
        Ok::<_, Error>(stream).map_err(|error| Error::new(format!("connection {index}: {error}")))
    };
    (0..count).map(open).collect()
}

/// Runs one crowd in this process.
pub(crate) fn run(spec: &StormSpec) -> Result<StormOutcome> {
    if let Some(core) = spec.core {
        sys::pin(core).during(|| format!("pin to core {core}"))?;
    }
    sys::raise_open_files()?;
    let established = connect_answered(spec.addr, spec.proto, spec.clients, spec.value_bytes)?;
    let wait_ns = spec.at_ns.checked_sub(sys::monotonic_ns());
    thread::sleep(Duration::from_nanos(wait_ns.ok_or_else(|| Error::new("connecting took too long"))?));
    drop(established);
    reconnect(spec)
}

fn reconnect(spec: &StormSpec) -> Result<StormOutcome> {
    let SocketAddr::V4(addr) = spec.addr else { return Err(Error::new("storms go to IPv4 addresses")) };
    let mut epoll = Epoll::new(512)?;
    let mut clients = Vec::with_capacity(spec.clients);
    for token in 0..spec.clients {
        let stream = sys::connect_start(addr).during(|| format!("connect client {token}"))?;
        epoll.add(&stream, token, true)?;
        clients.push(Some(Client { stream, asked: false, received: Vec::new() }));
    }
    let values = Values::new(spec.value_bytes);
    let mut outcome = StormOutcome::default();
    let mut open = spec.clients;
    while open > 0 && sys::monotonic_ns() < spec.at_ns + PATIENCE_NS {
        for index in 0..epoll.wait(100)? {
            let event = epoll.event(index);
            let Some(client) = &mut clients[event.token] else { continue };
            let step = client.step(spec.proto, &values, event, &epoll);
            if matches!(step, Ok(false)) {
                continue;
            }
            clients[event.token] = None;
            open -= 1;
            if step.is_ok() {
                let elapsed_ms = (sys::monotonic_ns() - spec.at_ns) as f64 / 1e6;
                outcome.answered += 1;
                outcome.last_ms = elapsed_ms;
                if outcome.answered * 2 <= spec.clients {
                    outcome.half_ms = elapsed_ms;
                }
            }
        }
    }
    outcome.failed = spec.clients - outcome.answered;
    Ok(outcome)
}

impl Client {
    /// True when the right reply is there; an error when this client has failed.
    fn step(&mut self, proto: Proto, values: &Values, event: sys::Event, epoll: &Epoll) -> Result<bool> {
        if event.writable && !self.asked {
            let mut request = Vec::new();
            proto.append_request(&Link::default(), Op::Get, Asked { key: 0, sequence: 0 }, values, &mut request);
            self.stream.write_all(&request)?;
            self.asked = true;
            epoll.change(&self.stream, event.token, false)?;
        }
        if !event.readable {
            return Ok(false);
        }
        let mut chunk = [0; 4_096];
        match self.stream.read(&mut chunk) {
            Ok(0) => return Err(Error::new("closed")),
            Ok(count) => self.received.extend_from_slice(&chunk[..count]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(error.into()),
        }
        match proto.read_reply(Op::Get, Care::Content, |_| Some(0), values, &self.received) {
            Reply::Partial => Ok(false),
            Reply::Good { .. } => Ok(true),
            Reply::Wrong(what) => Err(Error::new(what)),
        }
    }
}
