//! The blocking shell: a [`Client`] that threads share, over `std::net`.
//!
//! Each call has a connection to itself; idle ones are kept and used again. Sockets never block: a call waits in
//! `poll` for just what it needs, so that a node that writes while we write stops neither.

use crate::address::Address;
use crate::error::{Error, Result};
use crate::exchange::{Exchange, Fill, Given, Need, Supply};
use crate::limits::{DOCUMENT_MAX_BYTES, SLOW_SOURCE_MS};
use crate::link::{Link, Sink, Socket};
use crate::listing::{Item, PAGE_MAX_BYTES, Pager};
use crate::reply::{Ack, Answer, Object, Reply, Stat};
use crate::request::{PutOptions, Request, json};
use crate::shell::{Common, Config, Dial};
use herd_core::collection::{Spec, Wanted};
use herd_core::entry::{Condition, Range, Token, Version};
use herd_core::limits::BLOCK_BYTES;
use herd_core::warden::{ControlAsk, GiveUp, MoveGroup};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

pub use lock::Lock;
pub use pipeline::{Pipeline, Ticket};

mod lock;
mod pipeline;

impl Socket for TcpStream {
    fn read(&self, into: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        Read::read_vectored(&mut &*self, into)
    }

    fn write(&self, from: &[IoSlice<'_>]) -> io::Result<usize> {
        Write::write_vectored(&mut &*self, from)
    }
}

/// A client of one herd, to be shared by threads. Clones, and what [`Client::with_token`] and [`Client::with_timeout`]
/// make, use the same connections.
#[derive(Clone)]
pub struct Client {
    common: Common<TcpStream>,
}

/// Where a request's body comes from.
enum Upload<'a> {
    Nothing,
    Slice(&'a [u8]),
    Reader(&'a mut dyn Read, Option<u64>),
}

/// Where a reply's body goes.
enum Download<'a> {
    Memory(u64, Vec<u8>),
    Writer(&'a mut dyn Write),
}

impl Client {
    /// A client of the herd that `nodes` belong to: `HOST:PORT[,HOST:PORT..]`, see [`Address::parse`], tried in turn.
    /// Nothing is sent yet.
    pub fn new(nodes: &str, config: Config) -> Result<Self> {
        Ok(Self { common: Common::new(nodes, config)? })
    }

    /// The same client as the holder of a lock: it shows `token` with each request about an object. An object to which
    /// a later token was shown refuses it.
    pub fn with_token(&self, token: Token) -> Self {
        Self { common: self.common.with_token(token) }
    }

    /// The same client with another [`Config::timeout`].
    pub fn with_timeout(&self, timeout: Duration) -> Self {
        Self { common: self.common.with_timeout(timeout) }
    }

    /// The object `key`: `NAME` or `COLLECTION/NAME`.
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Object> {
        self.get_object(Request::get(&key)?)
    }

    /// A range of an object, cut at its end.
    pub fn get_range(&self, key: impl AsRef<[u8]>, range: Range) -> Result<Object> {
        self.get_object(Request::get_range(&key, range)?)
    }

    /// The object once its version is above `version`; the error `timeout` after `wait`, `NotFound` when the object was
    /// there and goes.
    pub fn get_newer(&self, key: impl AsRef<[u8]>, version: Version, wait: Duration) -> Result<Object> {
        self.get_object(Request::get_newer(&key, version, wait)?)
    }

    /// The object into `value`, whose memory is used again.
    pub fn get_into(&self, key: impl AsRef<[u8]>, value: &mut Vec<u8>) -> Result<Stat> {
        let into = Download::Memory(self.common.pool.config.value_max_bytes, std::mem::take(value));
        let (reply, bytes) = self.call(Request::get(&key)?, Upload::Nothing, into)?;
        *value = bytes;
        reply.stat()
    }

    fn get_object(&self, request: Request<'_>) -> Result<Object> {
        let into = Download::Memory(self.common.pool.config.value_max_bytes, Vec::new());
        let (reply, value) = self.call(request, Upload::Nothing, into)?;
        Ok(Object { value, stat: reply.stat()? })
    }

    /// Writes an object, or a range of it, to `out`, block by block, each checked. If a connection is lost on the way,
    /// the rest comes from another, as long as the object is the same.
    pub fn get_to(&self, key: impl AsRef<[u8]>, range: Option<Range>, out: &mut impl Write) -> Result<Stat> {
        let request = match range {
            Some(range) => Request::get_range(&key, range)?,
            None => Request::get(&key)?,
        };
        self.call(request, Upload::Nothing, Download::Writer(out))?.0.stat()
    }

    /// Writes an object.
    pub fn put(&self, key: impl AsRef<[u8]>, value: &[u8], options: &PutOptions) -> Result<Ack> {
        self.write(Request::put_stream(&key, options)?, Upload::Slice(value))
    }

    /// Writes an object from `source`, of `length` bytes, or to its end if that is `None`.
    pub fn put_from(
        &self,
        key: impl AsRef<[u8]>,
        source: &mut impl Read,
        length: Option<u64>,
        options: &PutOptions,
    ) -> Result<Ack> {
        self.write(Request::put_stream(&key, options)?, Upload::Reader(source, length))
    }

    /// Writes `value` over a part of an object, from byte `offset` on; a gap before it reads as zeros.
    pub fn put_range(&self, key: impl AsRef<[u8]>, offset: u64, value: &[u8], options: &PutOptions) -> Result<Ack> {
        self.write(Request::put_range(&key, offset, value, options)?, Upload::Slice(value))
    }

    /// Removes an object.
    pub fn remove(&self, key: impl AsRef<[u8]>, condition: Condition) -> Result<Ack> {
        self.write(Request::remove(&key, condition)?, Upload::Nothing)
    }

    /// What is known of an object besides its value.
    pub fn stat(&self, key: impl AsRef<[u8]>) -> Result<Stat> {
        let into = Download::Memory(0, Vec::new());
        self.call(Request::stat(&key)?, Upload::Nothing, into)?.0.stat()
    }

    /// As [`Client::stat`], once the version is above `version`; the error `timeout` after `wait`.
    pub fn stat_newer(&self, key: impl AsRef<[u8]>, version: Version, wait: Duration) -> Result<Stat> {
        let into = Download::Memory(0, Vec::new());
        self.call(Request::stat_newer(&key, version, wait)?, Upload::Nothing, into)?.0.stat()
    }

    /// Runs a method on an object, if `condition` holds: at once, alone, and where the object is. `method` is a name of
    /// PROTOCOL.md §1.7.
    pub fn execute<A: AsRef<[u8]>>(
        &self,
        key: impl AsRef<[u8]>,
        method: &str,
        arguments: &[A],
        condition: Condition,
    ) -> Result<Answer> {
        let request = Request::execute(&key, method, arguments)?.with_condition(condition);
        let into = Download::Memory(self.common.pool.config.value_max_bytes, Vec::new());
        let (reply, value) = self.call(request, Upload::Nothing, into)?;
        Ok(Answer { value, version: reply.version })
    }

    /// The objects of `collection` whose names start with `prefix`, page by page.
    pub fn list(&self, collection: impl AsRef<[u8]>, prefix: impl AsRef<[u8]>) -> Listing<'_> {
        Listing { client: self, pager: Pager::new(collection.as_ref(), prefix.as_ref()) }
    }

    /// Creates a collection; it is no error if it exists with the same specification.
    pub fn create_collection(&self, name: &str, spec: &Spec) -> Result<()> {
        self.create_collection_as(name, &Wanted::of(spec.clone()))
    }

    /// As [`Client::create_collection`], with copies or a spread group that are asked for.
    pub fn create_collection_as(&self, name: &str, wanted: &Wanted) -> Result<()> {
        self.write(Request::create(name, wanted)?, Upload::Nothing).map(|_| ())
    }

    /// Destroys a collection and all its objects.
    pub fn destroy_collection(&self, name: &str) -> Result<()> {
        self.write(Request::destroy(name)?, Upload::Nothing).map(|_| ())
    }

    /// Has a node give away all that it keeps, or, if it `stays`, calls that off. This is told when it begins: the
    /// state of the herd tells how many groups the node keeps still.
    pub fn drain(&self, node: &str, stays: bool) -> Result<()> {
        let method = if stays { "stay" } else { "drain" };
        self.write(Request::about_node(method, node), Upload::Nothing).map(|_| ())
    }

    /// Asks something about the herd's control store; gives what that is then.
    pub fn control(&self, ask: &ControlAsk) -> Result<serde_json::Value> {
        let into = Download::Memory(DOCUMENT_MAX_BYTES, Vec::new());
        let (_, json) = self.call(Request::control(ask), Upload::Nothing, into)?;
        serde_json::from_slice(&json).map_err(|error| Error::bad_reply("the answer is no JSON").caused_by(error))
    }

    /// Has the node of that name end, which must be the one that is asked: as if it were told so on its machine.
    pub fn end(&self, node: &str) -> Result<()> {
        self.write(Request::about_node("end", node), Upload::Nothing).map(|_| ())
    }

    /// Has the herd give up what is lost (PROTOCOL.md §1.5); how many groups lost what they held.
    pub fn give_up(&self, asked: &GiveUp) -> Result<u64> {
        self.write(Request::about_node("give_up", &json(asked)), Upload::Nothing).map(|ack| ack.version)
    }

    /// Has the herd keep a group at a node, or wherever it comes to be (PROTOCOL.md §1.5). The moves come after the
    /// reply.
    pub fn move_group(&self, asked: &MoveGroup) -> Result<()> {
        self.write(Request::about_node("move", &json(asked)), Upload::Nothing).map(|_| ())
    }

    /// The collections, as the node describes them.
    pub fn collections(&self) -> Result<serde_json::Value> {
        self.document("collections")
    }

    /// The state of the herd, as the node describes it.
    pub fn status(&self) -> Result<serde_json::Value> {
        self.document("status")
    }

    /// What the node tells of itself under this name (PROTOCOL.md §1.15).
    pub fn about(&self, name: &str) -> Result<serde_json::Value> {
        self.document(name)
    }

    /// The node's metrics, as Prometheus text.
    pub fn metrics(&self) -> Result<String> {
        let text = self.system("metrics")?;
        String::from_utf8(text).map_err(|_| Error::bad_reply("metrics are not text"))
    }

    /// Connections for requests that do not wait for each other: to any node, and to the owners of the objects.
    pub fn pipeline(&self) -> Result<Pipeline<'_>> {
        let begun_ms = self.common.now_ms();
        let link = match self.common.pool.take(begun_ms, false) {
            Some(link) => link,
            None => {
                let dial = self.common.pool.dial(begun_ms, false);
                self.connect(dial, begun_ms.saturating_add(self.common.patience_ms))?
            }
        };
        Ok(Pipeline::new(self, link))
    }

    /// A connection to the first address that answers.
    fn connect(&self, mut dial: Dial, deadline_ms: u64) -> Result<Link<TcpStream>> {
        while let Some((node, within)) = dial.next(self.common.now_ms(), deadline_ms) {
            match connect(&self.common.pool.node(node), within) {
                Ok(socket) => return Ok(Link::new(socket, node, self.common.now_ms(), dial.meant())),
                Err(error) => {
                    self.common.pool.not_connected(self.common.now_ms(), &mut dial, error);
                }
            }
        }
        Err(self.common.pool.unreachable(dial.last))
    }

    fn document(&self, name: &str) -> Result<serde_json::Value> {
        let json = self.system(name)?;
        serde_json::from_slice(&json).map_err(|error| Error::bad_reply(format!("{name} is no JSON")).caused_by(error))
    }

    fn system(&self, name: &str) -> Result<Vec<u8>> {
        let into = Download::Memory(DOCUMENT_MAX_BYTES, Vec::new());
        Ok(self.call(Request::system(name), Upload::Nothing, into)?.1)
    }

    fn write(&self, request: Request<'_>, upload: Upload<'_>) -> Result<Ack> {
        Ok(self.call(request, upload, Download::Memory(0, Vec::new()))?.0.ack())
    }

    /// Does a request, again where that is safe.
    fn call(
        &self,
        request: Request<'_>,
        mut upload: Upload<'_>,
        mut download: Download<'_>,
    ) -> Result<(Reply, Vec<u8>)> {
        let (given, sink) = (upload.given(), download.sink());
        let request = request.held_by(self.common.token);
        let times = (self.common.now_ms(), self.common.patience_ms);
        let mut exchange = Exchange::new(&self.common.pool, times, request, given, sink);
        loop {
            match exchange.next(self.common.now_ms()) {
                Need::Source(how) => {
                    let supply = upload.read(exchange.room(), how);
                    exchange.supply(self.common.now_ms(), supply);
                }
                Need::Connect(node, within) => {
                    let socket = connect(&self.common.pool.node(node), within);
                    exchange.connected(self.common.now_ms(), socket);
                }
                Need::Wait { write, most } => {
                    let waited = wait(exchange.socket(), write, most);
                    exchange.waited(self.common.now_ms(), waited);
                }
                Need::Chunk => {
                    let written = download.write(exchange.chunk());
                    exchange.taken(self.common.now_ms(), written);
                }
                Need::Pause(time) => std::thread::sleep(time),
                Need::Time => {}
                Need::Done(result) => return result,
            }
        }
    }
}

impl<'a> Upload<'a> {
    fn given(&self) -> Given<'a> {
        match self {
            Upload::Nothing => Given::Nothing,
            Upload::Slice(bytes) => Given::Slice(bytes),
            Upload::Reader(_, length) => Given::Stream(*length),
        }
    }

    fn read(&mut self, room: &mut [u8], how: Fill) -> io::Result<Supply> {
        let Upload::Reader(reader, _) = self else { unreachable!("only a reader is asked for bytes") };
        let start = Instant::now();
        let (mut bytes, mut enough) = (0, room.len());
        while bytes < enough {
            match reader.read(&mut room[bytes..enough]) {
                Ok(0) => return Ok(Supply { bytes, ended: true }),
                Ok(read) => bytes += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            if how == Fill::Blocks && start.elapsed() > Duration::from_millis(SLOW_SOURCE_MS) {
                enough = bytes.next_multiple_of(BLOCK_BYTES).min(enough);
            }
        }
        Ok(Supply { bytes, ended: false })
    }
}

impl Download<'_> {
    fn sink(&mut self) -> (Sink, Vec<u8>) {
        match self {
            Download::Memory(most, memory) => (Sink::Memory(*most), std::mem::take(memory)),
            Download::Writer(_) => (Sink::Stream, Vec::new()),
        }
    }

    fn write(&mut self, chunk: &[u8]) -> io::Result<()> {
        let Download::Writer(out) = self else { unreachable!("only a writer takes chunks") };
        out.write_all(chunk)
    }
}

/// A connection to a node; each of its addresses has its share of the time.
fn connect(node: &Address, within: Duration) -> io::Result<TcpStream> {
    let end = Instant::now() + within;
    let addresses = resolve(node, within)?;
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for (tried, address) in addresses.iter().enumerate() {
        let share = end.saturating_duration_since(Instant::now()) / (addresses.len() - tried) as u32;
        match TcpStream::connect_timeout(address, share.max(Duration::from_millis(1))) {
            Ok(socket) => {
                socket.set_nodelay(true)?;
                socket.set_nonblocking(true)?;
                return Ok(socket);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// The addresses of a node's host. The system's resolver knows no time limit, so a name is looked up by a thread of its
/// own, which is left behind if it takes too long and ends when the resolver does.
fn resolve(node: &Address, within: Duration) -> io::Result<Vec<SocketAddr>> {
    if let Some(ip) = node.ip() {
        return Ok(vec![(ip, node.port).into()]);
    }
    let (found, result) = std::sync::mpsc::sync_channel(1);
    let (host, port) = (node.host.clone(), node.port);
    std::thread::Builder::new().name("herd-resolve".into()).spawn(move || {
        let addresses = (host.as_str(), port).to_socket_addrs().map(|addresses| addresses.collect());
        // Nobody waits any more if that fails.
        found.send(addresses).ok();
    })?;
    let late = |_| io::Error::new(io::ErrorKind::TimedOut, "its name was not looked up in time");
    result.recv_timeout(within).map_err(late)?
}

/// Waits until the socket can do what is wanted, at most so long.
fn wait(socket: &TcpStream, write: bool, most: Duration) -> io::Result<()> {
    let flags = if write { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
    let timeout = Timespec::try_from(most).unwrap_or(Timespec { tv_sec: i64::MAX, tv_nsec: 0 });
    match poll(&mut [PollFd::new(socket, flags)], Some(&timeout)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// The objects of a collection: an iterator that asks for the next page when it needs one. It ends behind an error.
pub struct Listing<'a> {
    client: &'a Client,
    pager: Pager,
}

impl Listing<'_> {
    fn next_page(&mut self) -> Result<()> {
        let memory = self.pager.take_memory();
        let Some(request) = self.pager.request() else { return Ok(()) };
        let into = Download::Memory(PAGE_MAX_BYTES, memory);
        let (_, page) = self.client.call(request?, Upload::Nothing, into)?;
        self.pager.accept(page)
    }
}

impl Iterator for Listing<'_> {
    type Item = Result<Item>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.pager.request().is_some()
            && let Err(error) = self.next_page()
        {
            self.pager.stop();
            return Some(Err(error));
        }
        self.pager.next_item().map(Ok)
    }
}
