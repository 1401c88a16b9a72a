//! A node for tests: follows PROTOCOL.md §1 over real sockets, keeps objects in a map, watches that the client keeps
//! the rules, and fails in the ways a test asks for. Two threads for each connection: one reads, one writes.

use herd_core::entry::{Fence, Found, Head, Memcached, Token, Value};
use herd_core::key::{self, CollectionId, HashKey, ObjectId};
use herd_core::limits::{BLOCK_BYTES, WIRE_FIRST_CREDIT_BYTES, WIRE_FRAME_BODY_MAX_BYTES};
use herd_core::method::Method;
use herd_core::op::{self, Action, Answer, Change, Circumstances, Decided, Given, NewValue, Op, Put, There};
use herd_core::place::Map;
use herd_core::wire::*;
use herd_core::{Chunks, Error, ErrorKind};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// What goes wrong, each so many times.
#[derive(Default)]
pub(crate) struct Faults {
    /// Requests answered with `busy`.
    pub(crate) busy: AtomicUsize,
    /// Requests at which the connection is closed without an answer.
    pub(crate) close: AtomicUsize,
    /// Requests that are never answered.
    pub(crate) ignore: AtomicUsize,
    /// Replies whose first block has a flipped bit.
    pub(crate) corrupt: AtomicUsize,
    /// Connections closed after the second frame of a reply's body.
    pub(crate) cut_body: AtomicUsize,
}

/// A value of any size, as the core's decisions want it.
#[derive(Clone)]
struct Large(Arc<Vec<u8>>);

impl Chunks for Large {
    fn size_bytes(&self) -> u64 {
        self.0.len() as u64
    }

    fn chunk(&self, at: u64) -> &[u8] {
        &self.0[at as usize..]
    }
}

/// An object as the core's decisions want it.
fn found(object: &Object) -> Found<'_, Large> {
    let Object { version, value, flags, expires_ms, attributes, fence } = object;
    let memcached = Memcached::default();
    let size_bytes = value.len() as u64;
    let (flags, expires_ms) = (*flags, *expires_ms);
    let head = Head { version: *version, size_bytes, flags, expires_ms, access_s: 0, fetched: false, memcached };
    Found { head, attributes, fence: *fence, value: Value::Inline(value, 0) }
}

fn id_of(key: &(u64, Vec<u8>)) -> [u8; 16] {
    let mut id = [0; 16];
    id[..8].copy_from_slice(&key.0.to_le_bytes());
    key.1.iter().enumerate().for_each(|(i, byte)| id[8 + i % 8] ^= byte.rotate_left(i as u32));
    id
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_millis() as u64
}

/// Takes one from a count.
fn one_of(count: &AtomicUsize) -> bool {
    count.fetch_update(SeqCst, SeqCst, |n| n.checked_sub(1)).is_ok()
}

#[derive(Clone, Default)]
struct Object {
    version: u64,
    value: Arc<Vec<u8>>,
    flags: u32,
    expires_ms: u64,
    attributes: Vec<u8>,
    fence: Option<Fence>,
}

type Objects = BTreeMap<(u64, Vec<u8>), Object>;
type Fences = BTreeMap<(u64, Vec<u8>), Fence>;

/// The key of the name hash.
pub(crate) const KEY: HashKey = HashKey([5; 16]);

/// A node's place in a herd.
#[derive(Clone)]
pub(crate) struct Place {
    map: Arc<Map>,
    me: u32,
}

impl Place {
    fn is_meant(&self, meant: Meant) -> bool {
        (self.map.herd, self.me) == (meant.herd, meant.node.0.get())
    }

    /// Whether this node decides on the object of a request.
    fn decides(&self, collection: u64, name: &[u8]) -> bool {
        let id = CollectionId(collection);
        let indexed = self.map.collections.iter().any(|it| it.id == id && it.spec.indexed);
        let object = match if indexed { key::index(name) } else { None } {
            Some(index) => ObjectId::at(&KEY, id, index),
            None => ObjectId::of(&KEY, id, name),
        };
        let primary = self.map.group_of(id, object).and_then(|(_, group)| group.primary);
        primary.is_some_and(|node| node.0.get() == self.me)
    }
}

/// State of the node.
#[derive(Default)]
pub(crate) struct Node {
    // What nodes of one herd share, as if each asked the one that has it.
    objects: Arc<Mutex<Objects>>,
    collections: Arc<Mutex<HashMap<String, (u64, String)>>>,
    changed: Arc<Condvar>,
    versions: Arc<AtomicU64>,
    /// Its place in a herd.
    pub(crate) place: Mutex<Option<Place>>,
    /// Requests about objects on which another node decides.
    pub(crate) handed_on: AtomicUsize,
    /// Requests for the map.
    pub(crate) asks: AtomicUsize,
    stopped: AtomicBool,
    /// Whether it can't hand anything on.
    pub(crate) cut_off: AtomicBool,
    /// Hellos that meant another node.
    pub(crate) refused: AtomicUsize,
    connections: Mutex<Vec<TcpStream>>,
    /// Connections accepted so far.
    pub(crate) accepted: AtomicUsize,
    /// Requests read so far.
    pub(crate) requests: AtomicUsize,
    /// Cancel frames read so far.
    pub(crate) cancels: AtomicUsize,
    /// Rules the client broke.
    pub(crate) breaches: Mutex<Vec<String>>,
    /// See [`Faults`].
    pub(crate) faults: Faults,
    /// What objects removed under a token left behind.
    left: Arc<Mutex<Fences>>,
    /// Largest object; 0: no limit.
    pub(crate) object_max_bytes: AtomicU64,
}

/// A running node; its connections end when it is dropped.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) node: Arc<Node>,
}

impl Server {
    pub(crate) fn start() -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound");
        Self::serve(listener, address, Node::default())
    }

    /// So many nodes that share all objects; the map is told by [`Server::set_map`].
    pub(crate) fn start_herd(nodes: usize) -> Vec<Server> {
        let first = Server::start();
        let share = |_| {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
            let address = listener.local_addr().expect("bound");
            let Node { objects, collections, changed, versions, left, .. } = &*first.node;
            let (objects, collections, changed) = (objects.clone(), collections.clone(), changed.clone());
            let (versions, left) = (versions.clone(), left.clone());
            let node = Node { objects, collections, changed, versions, left, ..Node::default() };
            Self::serve(listener, address, node)
        };
        let others: Vec<Server> = (1..nodes).map(share).collect();
        std::iter::once(first).chain(others).collect()
    }

    /// Has the node go by a map, in which it is `me`.
    pub(crate) fn set_map(&self, map: &Arc<Map>, me: u32) {
        *self.node.place.lock().expect("no panic before") = Some(Place { map: map.clone(), me });
    }

    fn serve(listener: TcpListener, address: SocketAddr, node: Node) -> Server {
        let node = Arc::new(node);
        let serving = node.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if Arc::strong_count(&serving) == 1 || serving.stopped.load(SeqCst) {
                    break;
                }
                serving.accepted.fetch_add(1, SeqCst);
                serving.connections.lock().expect("no panic before").push(stream.try_clone().expect("cloned"));
                serve(serving.clone(), stream);
            }
        });
        Server { address, node }
    }

    /// Closes all connections, as a node that restarts does.
    pub(crate) fn disconnect(&self) {
        self.node
            .connections
            .lock()
            .expect("no panic before")
            .drain(..)
            .for_each(|stream| _ = stream.shutdown(Shutdown::Both));
    }

    /// Ends it: nobody listens at its address any more.
    pub(crate) fn stop(self) {
        self.node.stopped.store(true, SeqCst);
        while TcpStream::connect(self.address).is_ok() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub(crate) fn name(&self) -> String {
        self.address.to_string()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.disconnect();
        let breaches = self.node.breaches.lock().expect("no panic before");
        assert!(breaches.is_empty() || std::thread::panicking(), "the client broke rules: {breaches:?}");
    }
}

/// What reader and writer of a connection share.
#[derive(Default)]
struct Shared {
    state: Mutex<Writing>,
    wake: Condvar,
}

#[derive(Default)]
struct Writing {
    frames: Vec<u8>,
    bodies: VecDeque<Reply>,
    credits: HashMap<u64, u64>,
    closed: bool,
}

/// A reply under way.
struct Reply {
    first: Option<(Header, Owned)>,
    id: u64,
    offset: u64,
    value: Arc<Vec<u8>>,
    start: usize,
    end: usize,
    position: usize,
    credit: u64,
}

/// Fields of a reply.
#[derive(Default, Clone)]
struct Owned {
    flags: Option<u32>,
    expires_ms: Option<u64>,
    attributes: Option<Vec<u8>>,
    error: Option<String>,
}

/// A put under way.
struct Incoming {
    header: Header,
    name: Vec<u8>,
    token: Option<[u8; 24]>,
    object: Object,
    given: (bool, bool, bool),
    collection: u64,
    body: Vec<u8>,
    granted: u64,
}

impl Incoming {
    fn whole(self) -> Object {
        Object { value: Arc::new(self.body), ..self.object }
    }

    /// The object after a ranged put over `old`: what is not given stays.
    fn over(self, old: Object) -> Object {
        let mut value = old.value.to_vec();
        let start = self.header.offset as usize;
        value.resize(value.len().max(start + self.body.len()), 0);
        value[start..start + self.body.len()].copy_from_slice(&self.body);
        let (flags, ttl, attributes) = self.given;
        Object {
            version: 0,
            value: Arc::new(value),
            flags: if flags { self.object.flags } else { old.flags },
            expires_ms: if ttl { self.object.expires_ms } else { old.expires_ms },
            attributes: if attributes { self.object.attributes } else { old.attributes },
            fence: None,
        }
    }
}

fn serve(node: Arc<Node>, stream: TcpStream) {
    let shared = Arc::new(Shared::default());
    let (writer, socket) = (shared.clone(), stream.try_clone().expect("cloned"));
    let write_node = node.clone();
    std::thread::spawn(move || write_loop(&write_node, &writer, socket));
    std::thread::spawn(move || {
        let mut reader = Reader { node, shared: shared.clone(), puts: HashMap::new() };
        reader.run(&stream);
        shared.state.lock().expect("no panic before").closed = true;
        shared.wake.notify_all();
        let _ = stream.shutdown(Shutdown::Both);
    });
}

fn write_loop(node: &Node, shared: &Shared, mut socket: TcpStream) {
    loop {
        let mut state = shared.state.lock().expect("no panic before");
        let others = state.bodies.len() > 1;
        let frame_max = if others { BLOCK_BYTES } else { WIRE_FRAME_BODY_MAX_BYTES };
        let ready = state.bodies.iter().position(|body| body.next_bytes(frame_max).is_some());
        if state.frames.is_empty() && ready.is_none() {
            if state.closed {
                return;
            }
            drop(shared.wake.wait_timeout(state, Duration::from_millis(100)).expect("no panic before"));
            continue;
        }
        let mut bytes = std::mem::take(&mut state.frames);
        let mut cut = false;
        if let Some(at) = ready {
            let mut body = state.bodies.remove(at).expect("found");
            let more = body.encode(frame_max, &mut bytes);
            if body.end > body.start && body.position > 0 && one_of(&node.faults.corrupt) {
                let last = bytes.len() - 1;
                bytes[last] ^= 1;
            }
            cut = more && body.position > 2 * BLOCK_BYTES && one_of(&node.faults.cut_body);
            if more {
                state.bodies.push_back(body);
            }
        }
        drop(state);
        if socket.write_all(&bytes).is_err() || cut {
            let _ = socket.shutdown(Shutdown::Both);
            return;
        }
    }
}

impl Reply {
    fn next_bytes(&self, frame_max: usize) -> Option<usize> {
        let left = self.end - self.start - self.position;
        let most = (frame_max as u64).min(self.credit) as usize;
        match left <= most {
            true => Some(left),
            false => Some(most / BLOCK_BYTES * BLOCK_BYTES).filter(|&bytes| bytes > 0),
        }
    }

    /// Appends the next frame; whether more follow.
    fn encode(&mut self, frame_max: usize, out: &mut Vec<u8>) -> bool {
        let bytes = self.next_bytes(frame_max).expect("it is ready");
        let from = self.start + self.position;
        let part = &self.value[from..from + bytes];
        let more = from + bytes < self.end;
        match self.first.take() {
            Some((mut header, owned)) => {
                header.flags |= if more { FLAG_MORE } else { 0 };
                let fields = Fields {
                    flags: owned.flags,
                    expires_ms: owned.expires_ms,
                    attributes: owned.attributes.as_deref(),
                    error: owned.error.as_deref(),
                    ..Fields::default()
                };
                encode_frame(out, header, &fields, part).expect("encodes");
            }
            None => {
                let header = Header::data(self.id, self.offset + self.position as u64, more);
                encode_frame(out, header, &Fields::default(), part).expect("encodes");
            }
        }
        self.position += bytes;
        self.credit = self.credit.saturating_sub(bytes as u64);
        more
    }
}

struct Reader {
    node: Arc<Node>,
    shared: Arc<Shared>,
    puts: HashMap<u64, Incoming>,
}

impl Reader {
    fn run(&mut self, mut stream: &TcpStream) {
        let mut buffer = vec![0; 3 << 20];
        let (mut start, mut end) = (0, 0);
        loop {
            match parse_frame(&buffer[start..end]) {
                Ok(Some(frame)) => {
                    let bytes = frame.bytes();
                    if self.is_for_another(&frame) {
                        self.node.refused.fetch_add(1, SeqCst);
                        let mut out = Vec::new();
                        let goodbye = Header { code: 4, ..Header::new(Kind::Goodbye) };
                        encode_frame(&mut out, goodbye, &Fields::failed("another node"), b"").expect("encodes");
                        stream.write_all(&out).ok();
                        return;
                    }
                    if !self.take(&frame) {
                        return;
                    }
                    start += bytes;
                    continue;
                }
                Ok(None) => {}
                Err(error) => {
                    self.breach(format!("bad frame: {error}"));
                    return;
                }
            }
            buffer.copy_within(start..end, 0);
            (start, end) = (0, end - start);
            match stream.read(&mut buffer[end..]) {
                Ok(0) | Err(_) => return,
                Ok(bytes) => end += bytes,
            }
        }
    }

    /// Whether it is a hello that means another node.
    fn is_for_another(&self, frame: &Frame<'_>) -> bool {
        let meant = match frame.header().kind {
            Kind::Hello => Meant::told(&frame.fields().expect("a hello")).expect("well formed"),
            _ => None,
        };
        meant.is_some_and(|meant| self.place().is_none_or(|place| !place.is_meant(meant)))
    }

    fn place(&self) -> Option<Place> {
        self.node.place.lock().expect("no panic before").clone()
    }

    /// Answers who asks for the map.
    fn tell_map(&self, header: &Header, fields: &Fields<'_>) {
        self.node.asks.fetch_add(1, SeqCst);
        let mut out = Vec::new();
        match self.place() {
            None => {
                let reply = Header::reply_to(header, Status::Ok);
                encode_frame(&mut out, reply, &Fields::default(), b"").expect("encodes");
            }
            Some(Place { map, .. }) => {
                let mark = MapMark::of(&map, true);
                let theirs = MapMark::told(header, fields).expect("well formed");
                let bytes = if theirs.is_none_or(|theirs| theirs < mark) { map.encode() } else { Vec::new() };
                Routes { mark, key: KEY }.encode(&mut out, header, &bytes).expect("encodes");
            }
        }
        self.push(&out);
    }

    /// Notes whether the request is for an object on which this node decides; whether it can be done.
    fn judge(&self, header: &Header, fields: &Fields<'_>) -> bool {
        let on_object = matches!(header.verb(), Some(Verb::Get | Verb::Put | Verb::Remove | Verb::Execute));
        let Some(place) = self.place().filter(|_| on_object && header.collection != 1) else { return true };
        let (Ok(id), Some(name)) = (self.collection(header, fields), fields.name) else { return true };
        let decides = place.decides(id, name);
        self.node.handed_on.fetch_add(usize::from(!decides), SeqCst);
        decides || !self.node.cut_off.load(SeqCst)
    }

    fn breach(&self, text: String) {
        self.node.breaches.lock().expect("no panic before").push(text);
    }

    /// Takes one frame; whether the connection goes on.
    fn take(&mut self, frame: &Frame<'_>) -> bool {
        let header = *frame.header();
        match header.kind {
            Kind::Hello => {
                let fields = frame.fields().expect("a hello");
                if fields.highest_version != Some(1) || fields.features.is_none() {
                    self.breach("a hello without its fields".into());
                }
                let between = None;
                let welcome = Fields { session: Some(0x00AB_CDEF), node: Some("test 0"), between, ..fields };
                let mut out = Vec::new();
                encode_frame(&mut out, Header::new(Kind::Welcome), &welcome, b"").expect("encodes");
                self.push(&out);
            }
            Kind::Request => return self.request(frame),
            Kind::Data => self.data(frame),
            Kind::Credit => {
                let mut state = self.shared.state.lock().expect("no panic before");
                match state.bodies.iter_mut().find(|body| body.id == header.id) {
                    Some(body) => body.credit = body.credit.saturating_add(header.length),
                    None => _ = state.credits.insert(header.id, header.length),
                }
                self.shared.wake.notify_all();
            }
            Kind::Cancel => {
                self.node.cancels.fetch_add(1, SeqCst);
                self.puts.remove(&header.id);
                self.shared.state.lock().expect("no panic before").bodies.retain(|body| body.id != header.id);
            }
            Kind::Goodbye => return false,
            Kind::Welcome | Kind::Reply => self.breach(format!("frame {:?}", header.kind)),
        }
        true
    }

    fn push(&self, bytes: &[u8]) {
        self.shared.state.lock().expect("no panic before").frames.extend_from_slice(bytes);
        self.shared.wake.notify_all();
    }

    fn request(&mut self, frame: &Frame<'_>) -> bool {
        let header = frame.header();
        let fields = frame.fields().expect("good fields");
        if header.verb == VERB_MAP {
            self.tell_map(header, &fields);
            return true;
        }
        self.node.requests.fetch_add(1, SeqCst);
        if !self.judge(header, &fields) {
            self.fail(header, ErrorKind::Unreachable, "the node that has it can't be reached");
            return true;
        }
        let faults = &self.node.faults;
        if one_of(&faults.close) {
            return false;
        }
        if one_of(&faults.ignore) {
            return true;
        }
        if one_of(&faults.busy) {
            self.fail(header, ErrorKind::Busy, "try again");
            return true;
        }
        if let Err(error) = self.act(frame) {
            self.fail(header, error.kind, &error.text);
        }
        true
    }

    fn fail(&self, header: &Header, kind: ErrorKind, text: &str) {
        let owned = Owned { error: Some(text.to_owned()), ..Owned::default() };
        self.reply(Header::reply_to(header, Status::Error(kind)), owned, Arc::default(), 0, 0);
    }

    fn reply(&self, header: Header, owned: Owned, value: Arc<Vec<u8>>, start: usize, end: usize) {
        let mut state = self.shared.state.lock().expect("no panic before");
        let credit = WIRE_FIRST_CREDIT_BYTES.saturating_add(state.credits.remove(&header.id).unwrap_or(0));
        let (id, offset) = (header.id, header.offset);
        let epoch = self.place().map_or(0, |place| place.map.epoch);
        let header = Header { epoch, ..header };
        state.bodies.push_back(Reply {
            first: Some((header, owned)),
            id,
            offset,
            value,
            start,
            end,
            position: 0,
            credit,
        });
        self.shared.wake.notify_all();
    }

    fn collection(&self, header: &Header, fields: &Fields<'_>) -> Result<u64, Error> {
        match (header.collection, fields.collection) {
            (0, Some(name)) => match self.node.collections.lock().expect("no panic before").get(name) {
                Some((id, _)) => Ok(*id),
                None => Err(Error::new(ErrorKind::NoCollection, format!("no collection '{name}'"))),
            },
            (0, None) => Err(Error::new(ErrorKind::BadRequest, "no collection is given")),
            (id, _) => Ok(id),
        }
    }

    fn act(&mut self, frame: &Frame<'_>) -> Result<(), Error> {
        let header = *frame.header();
        let fields = frame.fields()?;
        match header.verb().ok_or_else(|| Error::new(ErrorKind::NotInVersion, "verb"))? {
            Verb::Get => self.get(header, &fields),
            Verb::Put => self.begin_put(header, &fields, frame.body()?),
            Verb::Remove => self.remove(header, &fields),
            Verb::List => self.list(header, &fields),
            Verb::Create => self.create(header, &fields),
            Verb::Destroy => {
                let id = self.collection(&header, &fields)?;
                self.node.collections.lock().expect("no panic before").retain(|_, (other, _)| *other != id);
                self.node.objects.lock().expect("no panic before").retain(|(other, _), _| *other != id);
                self.ok(header, 0);
                Ok(())
            }
            Verb::Execute => self.execute(header, &fields, frame.body()?),
        }
    }

    /// Decides an operation as a node does; what it makes of the object's fence.
    fn decide<'a>(
        &self,
        key: &(u64, Vec<u8>),
        object: Option<&Object>,
        (header, fields): (&Header, &Fields<'_>),
        action: Action<'a, Large>,
    ) -> Result<Decided<'a, Large>, Error> {
        let condition = if header.newer_than().is_some() { None } else { header.condition() };
        let token = fields.token.and_then(|bytes| Token::from_bytes(bytes));
        let op = Op { condition: condition.unwrap_or_default(), token, ..Op::new(action, 1 << 30) };
        let left = self.node.left.lock().expect("no panic before").get(key).copied();
        let next_version = self.node.versions.load(SeqCst) + 1;
        let at = Circumstances { now_ms: now_ms(), next_version, id: id_of(key), evicts: false };
        op::decide(&op, &There { found: object.map(found), left }, &at)
    }

    fn execute(&self, header: Header, fields: &Fields<'_>, arguments: &[u8]) -> Result<(), Error> {
        let key = (self.collection(&header, fields)?, fields.name.unwrap_or_default().to_vec());
        let method = Method::parse(fields.method.unwrap_or_default(), arguments)?;
        let mut objects = self.node.objects.lock().expect("no panic before");
        let there = objects.get(&key).filter(|object| !found(object).head.is_expired(now_ms())).cloned();
        let decided = self.decide(&key, there.as_ref(), (&header, fields), Action::Execute(method))?;
        let mut version = there.as_ref().map_or(0, |object| object.version);
        match decided.change {
            Change::None => {}
            Change::Remove(fence) => {
                version = self.node.versions.fetch_add(1, SeqCst) + 1;
                objects.remove(&key);
                fence.map(|fence| self.node.left.lock().expect("no panic before").insert(key, fence));
            }
            Change::Leave(fence) => _ = self.node.left.lock().expect("no panic before").insert(key, fence),
            Change::Put(new) => {
                version = self.node.versions.fetch_add(1, SeqCst) + 1;
                let old = there.unwrap_or_default();
                let value = match new.value {
                    NewValue::Kept => old.value,
                    NewValue::Small(bytes, _) => Arc::new(bytes.into_owned()),
                    NewValue::Large(_) | NewValue::Parts(_) => unreachable!("tests keep objects of methods small"),
                };
                let attributes = new.attributes.map_or(old.attributes, <[u8]>::to_vec);
                let (flags, expires_ms, fence) = (new.flags, new.expires_ms, new.fence);
                objects.insert(key, Object { version, value, flags, expires_ms, attributes, fence });
            }
        }
        self.node.changed.notify_all();
        let answer = match decided.answer {
            Answer::Nothing => Vec::new(),
            Answer::Bytes(bytes) => bytes,
            Answer::Large(value) => value.0.to_vec(),
        };
        let mut reply = Header { version, length: answer.len() as u64, ..Header::reply_to(&header, Status::Ok) };
        reply.set_ack(herd_core::collection::Class::Ram(1), 1);
        let end = answer.len();
        self.reply(reply, Owned::default(), Arc::new(answer), 0, end);
        Ok(())
    }

    fn ok(&self, header: Header, version: u64) {
        let mut reply = Header { version, ..Header::reply_to(&header, Status::Ok) };
        reply.set_ack(herd_core::collection::Class::Ram(1), 1);
        self.reply(reply, Owned::default(), Arc::default(), 0, 0);
    }

    fn get(&self, header: Header, fields: &Fields<'_>) -> Result<(), Error> {
        let collection = self.collection(&header, fields)?;
        let name = fields.name.unwrap_or_default().to_vec();
        if collection == 1 {
            let json = br#"{"herd":"test","nodes":1}"#.to_vec();
            let header = Header { length: json.len() as u64, ..Header::reply_to(&header, Status::Ok) };
            let end = json.len();
            self.reply(header, Owned::default(), Arc::new(json), 0, end);
            return Ok(());
        }
        let key = (collection, name);
        let object = match header.newer_than() {
            None => self.node.objects.lock().expect("no panic before").get(&key).cloned(),
            Some(version) => Some(self.newer(&key, version, header.time_ms)?),
        };
        let change = self.decide(&key, object.as_ref(), (&header, fields), Action::Read)?.change;
        let mut object = object.ok_or_else(|| Error::new(ErrorKind::NotFound, ""))?;
        if let Change::Put(new) = change {
            object.fence = new.fence;
            self.node.objects.lock().expect("no panic before").insert(key, object.clone());
        }
        let size = object.value.len() as u64;
        let range = match header.has(FLAG_RANGE) {
            true => herd_core::entry::Range {
                offset: header.offset,
                length: (header.length != LENGTH_UNKNOWN).then_some(header.length),
            },
            false => herd_core::entry::Range::ALL,
        };
        let (offset, length) = range.within(size)?;
        let mut reply =
            Header { version: object.version, offset, length: size, ..Header::reply_to(&header, Status::Ok) };
        reply.set_ack(herd_core::collection::Class::Ram(1), 1);
        let owned = Owned {
            flags: Some(object.flags),
            expires_ms: Some(object.expires_ms).filter(|&ms| ms != 0),
            attributes: Some(object.attributes.clone()).filter(|bytes| !bytes.is_empty()),
            error: None,
        };
        let (start, end) = (offset as usize, (offset + length) as usize);
        let end = if header.has(FLAG_HEAD_ONLY) { start } else { end };
        self.reply(reply, owned, object.value, start, end);
        Ok(())
    }

    fn newer(&self, key: &(u64, Vec<u8>), version: u64, wait_ms: u32) -> Result<Object, Error> {
        let until = Instant::now() + Duration::from_millis(u64::from(wait_ms));
        let mut objects = self.node.objects.lock().expect("no panic before");
        let was_there = objects.contains_key(key);
        loop {
            if was_there && !objects.contains_key(key) {
                return Err(Error::new(ErrorKind::NotFound, ""));
            }
            if let Some(object) = objects.get(key).filter(|object| object.version > version) {
                return Ok(object.clone());
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Error::new(ErrorKind::Timeout, "nothing newer"));
            }
            objects = self.node.changed.wait_timeout(objects, left).expect("no panic before").0;
        }
    }

    fn begin_put(&mut self, header: Header, fields: &Fields<'_>, body: &[u8]) -> Result<(), Error> {
        let most = self.node.object_max_bytes.load(SeqCst);
        if most > 0 && header.length != LENGTH_UNKNOWN && header.length > most {
            return Err(Error::new(ErrorKind::TooLarge, format!("{} bytes, the limit is {most}", header.length)));
        }
        let collection = self.collection(&header, fields)?;
        let object = Object {
            flags: fields.flags.unwrap_or(0),
            expires_ms: fields.ttl_ms.unwrap_or(0),
            attributes: fields.attributes.unwrap_or_default().to_vec(),
            ..Object::default()
        };
        let put = Incoming {
            header,
            name: fields.name.unwrap_or_default().to_vec(),
            token: fields.token.copied(),
            object,
            given: (fields.flags.is_some(), fields.ttl_ms.is_some(), fields.attributes.is_some()),
            collection,
            body: Vec::new(),
            granted: WIRE_FIRST_CREDIT_BYTES,
        };
        let id = header.id;
        self.puts.insert(id, put);
        if header.length != LENGTH_UNKNOWN && header.length > WIRE_FIRST_CREDIT_BYTES {
            self.grant(id, LENGTH_UNKNOWN);
        }
        self.put_bytes(id, body, header.has(FLAG_MORE))
    }

    fn grant(&mut self, id: u64, bytes: u64) {
        let put = self.puts.get_mut(&id).expect("it was begun");
        put.granted = put.granted.saturating_add(bytes);
        self.push(&Header::credit(id, bytes).encode());
    }

    fn data(&mut self, frame: &Frame<'_>) {
        let header = *frame.header();
        let Some(put) = self.puts.get(&header.id) else { return };
        let first = put.header;
        if header.offset != first.offset + put.body.len() as u64 {
            self.breach(format!("data at {} instead of {}", header.offset, put.body.len()));
        }
        let result = match frame.body() {
            Ok(body) => self.put_bytes(header.id, body, header.has(FLAG_MORE)),
            Err(error) => Err(error.into()),
        };
        if let Err(error) = result {
            self.puts.remove(&header.id);
            self.fail(&first, error.kind, &error.text);
        }
    }

    fn put_bytes(&mut self, id: u64, body: &[u8], more: bool) -> Result<(), Error> {
        let put = self.puts.get_mut(&id).expect("it was begun");
        put.body.extend_from_slice(body);
        let (length, there) = (put.header.length, put.body.len() as u64);
        if there > put.granted {
            let text = format!("{there} bytes with a credit of {}", put.granted);
            self.breach(text);
        }
        if more {
            let put = &self.puts[&id];
            if length == LENGTH_UNKNOWN && put.granted - there < WIRE_FRAME_BODY_MAX_BYTES as u64 {
                self.grant(id, WIRE_FIRST_CREDIT_BYTES);
            }
            return Ok(());
        }
        if length != LENGTH_UNKNOWN && there != length {
            self.breach(format!("a body of {there} bytes instead of {length}"));
        }
        let put = self.puts.remove(&id).expect("it was begun");
        self.store(put)
    }

    fn store(&self, put: Incoming) -> Result<(), Error> {
        let mut objects = self.node.objects.lock().expect("no panic before");
        let key = (put.collection, put.name.clone());
        let present = objects.get(&key).cloned();
        if !self.holds(&put.header, present.as_ref().map(|object| object.version)) {
            return Ok(());
        }
        let fields = Fields { token: put.token.as_ref(), ..Fields::default() };
        let action = Action::Put(Put::of(Given::Small(b"", None)));
        let decided = self.decide(&key, present.as_ref(), (&put.header, &fields), action);
        let fence = match decided {
            Ok(Decided { change: Change::Put(new), .. }) => new.fence,
            Ok(_) => unreachable!("a put puts"),
            Err(error) => {
                self.fail(&put.header, error.kind, &error.text);
                return Ok(());
            }
        };
        let version = self.node.versions.fetch_add(1, SeqCst) + 1;
        let header = put.header;
        let object = if header.has(FLAG_RANGE) { put.over(present.unwrap_or_default()) } else { put.whole() };
        objects.insert(key, Object { version, fence, ..object });
        self.node.changed.notify_all();
        self.ok(header, version);
        Ok(())
    }

    /// Whether the condition holds; if not, that is answered.
    fn holds(&self, header: &Header, present: Option<u64>) -> bool {
        let holds = header.condition().expect("a condition").check(present);
        if let Err(error) = &holds {
            let version = present.unwrap_or(0);
            let reply = Header { version, ..Header::reply_to(header, Status::Error(error.kind)) };
            self.reply(reply, Owned::default(), Arc::default(), 0, 0);
        }
        holds.is_ok()
    }

    fn remove(&self, header: Header, fields: &Fields<'_>) -> Result<(), Error> {
        let key = (self.collection(&header, fields)?, fields.name.unwrap_or_default().to_vec());
        let mut objects = self.node.objects.lock().expect("no panic before");
        let present = objects.get(&key).map(|object| object.version);
        if !self.holds(&header, present) {
            return Ok(());
        }
        let decided = self.decide(&key, objects.get(&key), (&header, fields), Action::Remove)?;
        objects.remove(&key);
        if let Change::Remove(Some(fence)) = decided.change {
            self.node.left.lock().expect("no panic before").insert(key, fence);
        }
        self.node.changed.notify_all();
        self.ok(header, self.node.versions.fetch_add(1, SeqCst) + 1);
        Ok(())
    }

    fn list(&self, header: Header, fields: &Fields<'_>) -> Result<(), Error> {
        let collection = self.collection(&header, fields)?;
        let (prefix, after) = (fields.prefix.unwrap_or_default(), fields.after.unwrap_or_default());
        let limit = fields.limit.unwrap_or(1000) as usize;
        let objects = self.node.objects.lock().expect("no panic before");
        let names = objects.iter().filter(|((id, name), _)| *id == collection && name.starts_with(prefix));
        let mut page = Vec::new();
        for ((_, name), object) in names.filter(|((_, name), _)| &name[..] > after).take(limit) {
            let size_bytes = object.value.len() as u64;
            ListEntry { name, size_bytes, version: object.version }.encode(&mut page);
        }
        let end = page.len();
        let reply = Header { length: end as u64, ..Header::reply_to(&header, Status::Ok) };
        self.reply(reply, Owned::default(), Arc::new(page), 0, end);
        Ok(())
    }

    fn create(&self, header: Header, fields: &Fields<'_>) -> Result<(), Error> {
        let (name, spec) = (fields.collection.unwrap_or_default(), fields.spec.unwrap_or_default());
        let mut collections = self.node.collections.lock().expect("no panic before");
        let next = 10 + collections.len() as u64;
        let (id, there) = collections.entry(name.to_owned()).or_insert((next, spec.to_owned()));
        if there != spec {
            return Err(Error::new(ErrorKind::Exists, format!("'{name}' is there with another specification")));
        }
        self.ok(Header { collection: *id, ..header }, 0);
        Ok(())
    }
}
