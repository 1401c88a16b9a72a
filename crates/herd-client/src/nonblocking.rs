//! The async shell: a [`Client`] that tasks share, on tokio.
//!
//! Each call has a connection to itself; idle ones are kept and used again. Nothing is spawned: a call that is dropped
//! before it ends drops its connection, which gives the request up.

use crate::error::{Error, Result};
use crate::limits::DOCUMENT_MAX_BYTES;
use crate::link::{Link, Sink, Socket, Source, Step};
use crate::listing::{Item, PAGE_MAX_BYTES, Pager};
use crate::reply::{Ack, Object, Reply, Stat};
use crate::request::{PutOptions, Request};
use crate::retry::{Failure, Next, Tries};
use crate::shell::{Config, Pool, Progress, answer, failure_of, silence};
use herd_core::collection::Spec;
use herd_core::entry::{Condition, Range, Version};
use std::io::{self, IoSlice, IoSliceMut};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, Interest};
use tokio::net::TcpStream;

impl Socket for TcpStream {
    fn read(&self, into: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.try_read_vectored(into)
    }

    fn write(&self, from: &[IoSlice<'_>]) -> io::Result<usize> {
        self.try_write_vectored(from)
    }
}

/// A client of one herd, to be shared by tasks.
pub struct Client {
    pool: Pool<TcpStream>,
    config: Config,
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
    Writer(&'a mut (dyn AsyncWrite + Send + Unpin), &'a mut Progress),
}

impl Client {
    /// A client of the herd that `nodes` belong to: `HOST:PORT[,HOST:PORT..]`, tried in turn. Nothing is sent yet.
    pub fn new(nodes: &str, config: Config) -> Result<Self> {
        Ok(Self { pool: Pool::new(nodes)?, config })
    }

    /// The object `key`: `NAME` or `COLLECTION/NAME`.
    pub async fn get(&self, key: impl AsRef<[u8]>) -> Result<Object> {
        self.get_object(&Request::get(&key)?).await
    }

    /// A range of an object, cut at its end.
    pub async fn get_range(&self, key: impl AsRef<[u8]>, range: Range) -> Result<Object> {
        self.get_object(&Request::get_range(&key, range)?).await
    }

    /// The object once its version is above `version`; the error `timeout` after `wait`.
    pub async fn get_newer(&self, key: impl AsRef<[u8]>, version: Version, wait: Duration) -> Result<Object> {
        self.get_object(&Request::get_newer(&key, version, wait)?).await
    }

    /// The object into `value`, whose memory is used again.
    pub async fn get_into(&self, key: impl AsRef<[u8]>, value: &mut Vec<u8>) -> Result<Stat> {
        let into = Download::Memory(self.config.value_max_bytes, std::mem::take(value));
        let (reply, bytes) = self.call(&Request::get(&key)?, Upload::Nothing, into).await?;
        *value = bytes;
        reply.stat()
    }

    async fn get_object(&self, request: &Request<'_>) -> Result<Object> {
        let into = Download::Memory(self.config.value_max_bytes, Vec::new());
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
        let mut progress = Progress::default();
        let mut tries = 0;
        while let Some(request) = progress.rest(key.as_ref(), range) {
            let before = progress.bytes;
            match self.call(&request?, Upload::Nothing, Download::Writer(out, &mut progress)).await {
                Ok((reply, _)) => {
                    progress.accept(&reply)?;
                    break;
                }
                Err(error) => progress.after(error, before, &mut tries)?,
            }
        }
        progress.reply.expect("an answered get has a reply").stat()
    }

    /// Writes an object.
    pub async fn put(&self, key: impl AsRef<[u8]>, value: &[u8], options: &PutOptions) -> Result<Ack> {
        self.write(&Request::put_stream(&key, options)?, Upload::Slice(value)).await
    }

    /// Writes an object from `source`, of `length` bytes, or to its end if that is `None`.
    pub async fn put_from(
        &self,
        key: impl AsRef<[u8]>,
        source: &mut (impl AsyncRead + Send + Unpin),
        length: Option<u64>,
        options: &PutOptions,
    ) -> Result<Ack> {
        self.write(&Request::put_stream(&key, options)?, Upload::Reader(source, length)).await
    }

    /// Writes `value` over a part of an object, from byte `offset` on; a gap before it reads as zeros.
    pub async fn put_range(
        &self,
        key: impl AsRef<[u8]>,
        offset: u64,
        value: &[u8],
        options: &PutOptions,
    ) -> Result<Ack> {
        self.write(&Request::put_range(&key, offset, value, options)?, Upload::Slice(value)).await
    }

    /// Removes an object.
    pub async fn remove(&self, key: impl AsRef<[u8]>, condition: Condition) -> Result<Ack> {
        self.write(&Request::remove(&key, condition)?, Upload::Nothing).await
    }

    /// What is known of an object besides its value.
    pub async fn stat(&self, key: impl AsRef<[u8]>) -> Result<Stat> {
        let into = Download::Memory(0, Vec::new());
        self.call(&Request::stat(&key)?, Upload::Nothing, into).await?.0.stat()
    }

    /// The objects of `collection` whose names start with `prefix`, page by page.
    pub fn list(&self, collection: &str, prefix: impl AsRef<[u8]>) -> Listing<'_> {
        Listing { client: self, pager: Pager::new(collection, prefix.as_ref()) }
    }

    /// Creates a collection; it is no error if it exists with the same specification.
    pub async fn create_collection(&self, name: &str, spec: &Spec) -> Result<()> {
        self.write(&Request::create(name, spec)?, Upload::Nothing).await.map(|_| ())
    }

    /// Destroys a collection and all its objects.
    pub async fn destroy_collection(&self, name: &str) -> Result<()> {
        self.write(&Request::destroy(name)?, Upload::Nothing).await.map(|_| ())
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
        Ok(self.call(&Request::system(name), Upload::Nothing, into).await?.1)
    }

    async fn write(&self, request: &Request<'_>, upload: Upload<'_>) -> Result<Ack> {
        Ok(self.call(request, upload, Download::Memory(0, Vec::new())).await?.0.ack())
    }

    /// Does a request, again where that is safe.
    async fn call(
        &self,
        request: &Request<'_>,
        mut upload: Upload<'_>,
        mut download: Download<'_>,
    ) -> Result<(Reply, Vec<u8>)> {
        let mut tries = Tries::new(request.is_repeatable(), self.config.patience_ms());
        loop {
            let failure = match self.attempt(request, &mut upload, &mut download, &mut tries).await {
                Ok(answer) => return Ok(answer),
                Err(failure) => failure,
            };
            match tries.after(failure) {
                Next::Again(pause_ms) => tokio::time::sleep(Duration::from_millis(pause_ms)).await,
                Next::Fail(error) => return Err(error.about(request)),
            }
        }
    }

    async fn attempt(
        &self,
        request: &Request<'_>,
        upload: &mut Upload<'_>,
        download: &mut Download<'_>,
        tries: &mut Tries,
    ) -> std::result::Result<(Reply, Vec<u8>), Failure> {
        let mut link = self.connection().await?;
        match run(&mut link, &self.config, request, upload, download, tries).await {
            Err(failure @ (Failure::Lost { .. } | Failure::Busy(_))) => {
                self.pool.failed(link.node);
                Err(failure)
            }
            result => {
                self.pool.give_back(link);
                result
            }
        }
    }

    /// An idle connection, or a new one to the first node that answers.
    async fn connection(&self) -> std::result::Result<Link<TcpStream>, Failure> {
        if let Some(link) = self.pool.take() {
            return Ok(link);
        }
        let mut last = None;
        for node in self.pool.order() {
            match connect(self.pool.node(node), self.config.connect_timeout).await {
                Ok(socket) => return Ok(Link::new(socket, node)),
                Err(error) => last = Some(error),
            }
            self.pool.failed(node);
        }
        Err(self.pool.unreachable(last))
    }
}

async fn connect(node: &str, timeout: Duration) -> io::Result<TcpStream> {
    let socket = tokio::time::timeout(timeout, TcpStream::connect(node)).await??;
    socket.set_nodelay(true)?;
    Ok(socket)
}

/// Does one request over one connection.
async fn run(
    link: &mut Link<TcpStream>,
    config: &Config,
    request: &Request<'_>,
    upload: &mut Upload<'_>,
    download: &mut Download<'_>,
    tries: &mut Tries,
) -> std::result::Result<(Reply, Vec<u8>), Failure> {
    let source = match upload {
        Upload::Nothing => (Source::Nothing, None),
        Upload::Slice(bytes) => (Source::Slice(bytes), Some(bytes.len() as u64)),
        Upload::Reader(_, length) => (Source::Stream, *length),
    };
    let sink = match download {
        Download::Memory(most, memory) => (Sink::Memory(*most), std::mem::take(memory)),
        Download::Writer(..) => (Sink::Stream, Vec::new()),
    };
    let (id, source) = link.begin(request, source, sink, config.patience_ms()).map_err(Failure::Final)?;
    loop {
        match link.step(Some(id), source).map_err(|error| failure_of(link, id, error))? {
            Step::Done => break,
            Step::Wait { write } => {
                wait(link, write).await.map_err(|error| failure_of(link, id, error))?;
                if link.timeout().is_zero()
                    && let Some(failure) = silence(link, id)
                {
                    return Err(failure);
                }
            }
            Step::Source(bytes) => {
                tries.consumed();
                read_source(link, upload, bytes).await.map_err(Failure::Final)?;
            }
            Step::Chunk => {
                tries.consumed();
                write_chunk(link, id, download).await.map_err(Failure::Final)?;
            }
        }
    }
    answer(link.finish(id))
}

/// Waits until the socket can do what is wanted, or the next deadline has come.
async fn wait(link: &Link<TcpStream>, write: bool) -> Result<()> {
    let interest = if write { Interest::READABLE | Interest::WRITABLE } else { Interest::READABLE };
    match tokio::time::timeout(link.timeout(), link.socket.ready(interest)).await {
        Ok(Ok(_)) | Err(_) => Ok(()),
        Ok(Err(error)) => Err(Error::lost(error)),
    }
}

async fn read_source(link: &mut Link<TcpStream>, upload: &mut Upload<'_>, bytes: usize) -> Result<()> {
    let Upload::Reader(reader, length) = upload else { unreachable!("only a reader is asked for bytes") };
    let scratch = &mut link.scratch()[..bytes];
    let mut filled = 0;
    while filled < bytes {
        match reader.read(&mut scratch[filled..]).await {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Error::local(error)),
        }
    }
    if filled < bytes && length.is_some() {
        return Err(Error::local(io::Error::new(io::ErrorKind::UnexpectedEof, "it is shorter than was said")));
    }
    link.supply(filled, filled < bytes)
}

async fn write_chunk(link: &Link<TcpStream>, id: u64, download: &mut Download<'_>) -> Result<()> {
    let Download::Writer(out, progress) = download else { unreachable!("only a writer takes chunks") };
    let reply = link.reply(id).expect("a body comes behind its reply");
    if !reply.is_ok() {
        return Ok(());
    }
    progress.accept(reply)?;
    out.write_all(link.chunk()).await.map_err(Error::local)?;
    progress.bytes += link.chunk().len() as u64;
    Ok(())
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
        let (_, page) = self.client.call(&request?, Upload::Nothing, into).await?;
        self.pager.accept(page)
    }
}
