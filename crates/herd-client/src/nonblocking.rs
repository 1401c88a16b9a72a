//! The async shell: a [`Client`] that tasks share, on tokio.
//!
//! Each call has a connection to itself; idle ones are kept and used again. Nothing is spawned: a call that is dropped
//! before it ends drops its connection, which gives the request up.

use crate::address::Address;
use crate::error::{Error, Result};
use crate::exchange::{Exchange, Fill, Given, Need, Supply};
use crate::limits::{DOCUMENT_MAX_BYTES, SLOW_SOURCE_MS};
use crate::link::{Sink, Socket};
use crate::listing::{Item, PAGE_MAX_BYTES, Pager};
use crate::reply::{Ack, Answer, Object, Reply, Stat};
use crate::request::{PutOptions, Request, json};
use crate::shell::{Common, Config};
use herd_core::collection::{Spec, Wanted};
use herd_core::entry::{Condition, Range, Token, Version};
use herd_core::limits::BLOCK_BYTES;
use herd_core::warden::{ControlAsk, GiveUp, MoveGroup};
use std::io::{self, IoSlice, IoSliceMut};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, Interest};
use tokio::net::TcpStream;

pub use lock::Lock;

mod lock;

impl Socket for TcpStream {
    fn read(&self, into: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.try_read_vectored(into)
    }

    fn write(&self, from: &[IoSlice<'_>]) -> io::Result<usize> {
        self.try_write_vectored(from)
    }
}

/// A client of one herd, to be shared by tasks. Clones, and what [`Client::with_token`] and [`Client::with_timeout`]
/// make, use the same connections.
#[derive(Clone)]
pub struct Client {
    common: Common<TcpStream>,
}

/// Where a request's body comes from.
enum Upload<'a> {
    Nothing,
    Slice(&'a [u8]),
    Reader(&'a mut (dyn AsyncRead + Send + Unpin), Option<u64>),
}

/// Where a reply's body goes.
enum Download<'a> {
    Memory(u64, Vec<u8>),
    Writer(&'a mut (dyn AsyncWrite + Send + Unpin)),
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
    pub async fn get(&self, key: impl AsRef<[u8]>) -> Result<Object> {
        self.get_object(Request::get(&key)?).await
    }

    /// A range of an object, cut at its end.
    pub async fn get_range(&self, key: impl AsRef<[u8]>, range: Range) -> Result<Object> {
        self.get_object(Request::get_range(&key, range)?).await
    }

    /// The object once its version is above `version`; the error `timeout` after `wait`, `NotFound` when the object was
    /// there and goes.
    pub async fn get_newer(&self, key: impl AsRef<[u8]>, version: Version, wait: Duration) -> Result<Object> {
        self.get_object(Request::get_newer(&key, version, wait)?).await
    }

    /// The object into `value`, whose memory is used again.
    pub async fn get_into(&self, key: impl AsRef<[u8]>, value: &mut Vec<u8>) -> Result<Stat> {
        let into = Download::Memory(self.common.pool.config.value_max_bytes, std::mem::take(value));
        let (reply, bytes) = self.call(Request::get(&key)?, Upload::Nothing, into).await?;
        *value = bytes;
        reply.stat()
    }

    async fn get_object(&self, request: Request<'_>) -> Result<Object> {
        let into = Download::Memory(self.common.pool.config.value_max_bytes, Vec::new());
        let (reply, value) = self.call(request, Upload::Nothing, into).await?;
        Ok(Object { value, stat: reply.stat()? })
    }

    /// Writes an object, or a range of it, to `out`, block by block, each checked. If a connection is lost on the way,
    /// the rest comes from another, as long as the object is the same.
    pub async fn get_to(
        &self,
        key: impl AsRef<[u8]>,
        range: Option<Range>,
        out: &mut (impl AsyncWrite + Send + Unpin),
    ) -> Result<Stat> {
        let request = match range {
            Some(range) => Request::get_range(&key, range)?,
            None => Request::get(&key)?,
        };
        self.call(request, Upload::Nothing, Download::Writer(out)).await?.0.stat()
    }

    /// Writes an object.
    pub async fn put(&self, key: impl AsRef<[u8]>, value: &[u8], options: &PutOptions) -> Result<Ack> {
        self.write(Request::put_stream(&key, options)?, Upload::Slice(value)).await
    }

    /// Writes an object from `source`, of `length` bytes, or to its end if that is `None`.
    pub async fn put_from(
        &self,
        key: impl AsRef<[u8]>,
        source: &mut (impl AsyncRead + Send + Unpin),
        length: Option<u64>,
        options: &PutOptions,
    ) -> Result<Ack> {
        self.write(Request::put_stream(&key, options)?, Upload::Reader(source, length)).await
    }

    /// Writes `value` over a part of an object, from byte `offset` on; a gap before it reads as zeros.
    pub async fn put_range(
        &self,
        key: impl AsRef<[u8]>,
        offset: u64,
        value: &[u8],
        options: &PutOptions,
    ) -> Result<Ack> {
        self.write(Request::put_range(&key, offset, value, options)?, Upload::Slice(value)).await
    }

    /// Removes an object.
    pub async fn remove(&self, key: impl AsRef<[u8]>, condition: Condition) -> Result<Ack> {
        self.write(Request::remove(&key, condition)?, Upload::Nothing).await
    }

    /// What is known of an object besides its value.
    pub async fn stat(&self, key: impl AsRef<[u8]>) -> Result<Stat> {
        let into = Download::Memory(0, Vec::new());
        self.call(Request::stat(&key)?, Upload::Nothing, into).await?.0.stat()
    }

    /// As [`Client::stat`], once the version is above `version`; the error `timeout` after `wait`.
    pub async fn stat_newer(&self, key: impl AsRef<[u8]>, version: Version, wait: Duration) -> Result<Stat> {
        let into = Download::Memory(0, Vec::new());
        self.call(Request::stat_newer(&key, version, wait)?, Upload::Nothing, into).await?.0.stat()
    }

    /// Runs a method on an object, if `condition` holds: at once, alone, and where the object is. `method` is a name of
    /// PROTOCOL.md §1.7.
    pub async fn execute<A: AsRef<[u8]>>(
        &self,
        key: impl AsRef<[u8]>,
        method: &str,
        arguments: &[A],
        condition: Condition,
    ) -> Result<Answer> {
        let request = Request::execute(&key, method, arguments)?.with_condition(condition);
        let into = Download::Memory(self.common.pool.config.value_max_bytes, Vec::new());
        let (reply, value) = self.call(request, Upload::Nothing, into).await?;
        Ok(Answer { value, version: reply.version })
    }

    /// The objects of `collection` whose names start with `prefix`, page by page.
    pub fn list(&self, collection: impl AsRef<[u8]>, prefix: impl AsRef<[u8]>) -> Listing<'_> {
        Listing { client: self, pager: Pager::new(collection.as_ref(), prefix.as_ref()) }
    }

    /// Creates a collection; it is no error if it exists with the same specification.
    pub async fn create_collection(&self, name: &str, spec: &Spec) -> Result<()> {
        self.create_collection_as(name, &Wanted::of(spec.clone())).await
    }

    /// As [`Client::create_collection`], with copies or a spread group that are asked for.
    pub async fn create_collection_as(&self, name: &str, wanted: &Wanted) -> Result<()> {
        self.write(Request::create(name, wanted)?, Upload::Nothing).await.map(|_| ())
    }

    /// Destroys a collection and all its objects.
    pub async fn destroy_collection(&self, name: &str) -> Result<()> {
        self.write(Request::destroy(name)?, Upload::Nothing).await.map(|_| ())
    }

    /// Has a node give away all that it keeps, or, if it `stays`, calls that off. This is told when it begins: the
    /// state of the herd tells how many groups the node keeps still.
    pub async fn drain(&self, node: &str, stays: bool) -> Result<()> {
        let method = if stays { "stay" } else { "drain" };
        self.write(Request::about_node(method, node), Upload::Nothing).await.map(|_| ())
    }

    /// Asks something about the herd's control store; gives what that is then.
    pub async fn control(&self, ask: &ControlAsk) -> Result<serde_json::Value> {
        let into = Download::Memory(DOCUMENT_MAX_BYTES, Vec::new());
        let (_, json) = self.call(Request::control(ask), Upload::Nothing, into).await?;
        serde_json::from_slice(&json).map_err(|error| Error::bad_reply("the answer is no JSON").caused_by(error))
    }

    /// Has the node of that name end, which must be the one that is asked: as if it were told so on its machine.
    pub async fn end(&self, node: &str) -> Result<()> {
        self.write(Request::about_node("end", node), Upload::Nothing).await.map(|_| ())
    }

    /// Has the herd give up what is lost (PROTOCOL.md §1.5); how many groups lost what they held.
    pub async fn give_up(&self, asked: &GiveUp) -> Result<u64> {
        self.write(Request::about_node("give_up", &json(asked)), Upload::Nothing).await.map(|ack| ack.version)
    }

    /// Has the herd keep a group at a node, or wherever it comes to be (PROTOCOL.md §1.5). The moves come after the
    /// reply.
    pub async fn move_group(&self, asked: &MoveGroup) -> Result<()> {
        self.write(Request::about_node("move", &json(asked)), Upload::Nothing).await.map(|_| ())
    }

    /// The collections, as the node describes them.
    pub async fn collections(&self) -> Result<serde_json::Value> {
        self.document("collections").await
    }

    /// The state of the herd, as the node describes it.
    pub async fn status(&self) -> Result<serde_json::Value> {
        self.document("status").await
    }

    /// The node's metrics, as Prometheus text.
    pub async fn metrics(&self) -> Result<String> {
        let text = self.system("metrics").await?;
        String::from_utf8(text).map_err(|_| Error::bad_reply("metrics are not text"))
    }

    async fn document(&self, name: &str) -> Result<serde_json::Value> {
        let json = self.system(name).await?;
        serde_json::from_slice(&json).map_err(|error| Error::bad_reply(format!("{name} is no JSON")).caused_by(error))
    }

    async fn system(&self, name: &str) -> Result<Vec<u8>> {
        let into = Download::Memory(DOCUMENT_MAX_BYTES, Vec::new());
        Ok(self.call(Request::system(name), Upload::Nothing, into).await?.1)
    }

    async fn write(&self, request: Request<'_>, upload: Upload<'_>) -> Result<Ack> {
        Ok(self.call(request, upload, Download::Memory(0, Vec::new())).await?.0.ack())
    }

    /// Does a request, again where that is safe.
    async fn call(
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
                    let supply = upload.read(exchange.room(), how).await;
                    exchange.supply(self.common.now_ms(), supply);
                }
                Need::Connect(node, within) => {
                    let socket = connect(&self.common.pool.node(node), within).await;
                    exchange.connected(self.common.now_ms(), socket);
                }
                Need::Wait { write, most } => {
                    let waited = wait(exchange.socket(), write, most).await;
                    exchange.waited(self.common.now_ms(), waited);
                }
                Need::Chunk => {
                    let written = download.write(exchange.chunk()).await;
                    exchange.taken(self.common.now_ms(), written);
                }
                Need::Pause(time) => tokio::time::sleep(time).await,
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

    async fn read(&mut self, room: &mut [u8], how: Fill) -> io::Result<Supply> {
        let Upload::Reader(reader, _) = self else { unreachable!("only a reader is asked for bytes") };
        let start = Instant::now();
        let (mut bytes, mut enough) = (0, room.len());
        while bytes < enough {
            match reader.read(&mut room[bytes..enough]).await {
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

    async fn write(&mut self, chunk: &[u8]) -> io::Result<()> {
        let Download::Writer(out) = self else { unreachable!("only a writer takes chunks") };
        out.write_all(chunk).await
    }
}

async fn connect(node: &Address, within: Duration) -> io::Result<TcpStream> {
    let connecting = TcpStream::connect((node.host.as_str(), node.port));
    let socket = tokio::time::timeout(within, connecting).await??;
    socket.set_nodelay(true)?;
    Ok(socket)
}

/// Waits until the socket can do what is wanted, at most so long.
async fn wait(socket: &TcpStream, write: bool, most: Duration) -> io::Result<()> {
    let interest = if write { Interest::READABLE | Interest::WRITABLE } else { Interest::READABLE };
    match tokio::time::timeout(most, socket.ready(interest)).await {
        Ok(Ok(_)) | Err(_) => Ok(()),
        Ok(Err(error)) => Err(error),
    }
}

/// The objects of a collection: asks for the next page when it needs one. It ends behind an error.
pub struct Listing<'a> {
    client: &'a Client,
    pager: Pager,
}

impl Listing<'_> {
    /// The next object; `None` at the end.
    pub async fn next(&mut self) -> Option<Result<Item>> {
        if self.pager.request().is_some()
            && let Err(error) = self.next_page().await
        {
            self.pager.stop();
            return Some(Err(error));
        }
        self.pager.next_item().map(Ok)
    }

    async fn next_page(&mut self) -> Result<()> {
        let memory = self.pager.take_memory();
        let Some(request) = self.pager.request() else { return Ok(()) };
        let into = Download::Memory(PAGE_MAX_BYTES, memory);
        let (_, page) = self.client.call(request?, Upload::Nothing, into).await?;
        self.pager.accept(page)
    }
}
