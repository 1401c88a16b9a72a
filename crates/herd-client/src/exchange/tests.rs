//! Whole exchanges in virtual time, with nodes that fail in every way a seed comes up with. What must hold however they
//! fail: a call is told within its timeout of the last thing that moved; a put is done at most once, and what is told
//! of it is true; a get gives out just the bytes of the object.

use super::*;
use crate::limits::{AVOID_MS, QUICK_CONNECT_MS};
use crate::route::tests::{KEY, herd};
use crate::shell::Config;
use crate::{ErrorKind, PutOptions};
use herd_core::key::{CollectionId, ObjectId};
use herd_core::limits::BLOCK_BYTES;
use herd_core::place::Map;
use herd_core::replica::window::RequestId;
use herd_core::wire::{
    self, Between, FLAG_MORE, FLAG_RANGE, Fields, Header, Kind, LENGTH_UNKNOWN, MapMark, Routes, Status, Verb,
};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io::{IoSlice, IoSliceMut};
use std::rc::Rc;
use std::sync::LazyLock;

const TIMEOUT_MS: u64 = 1_000;
const SIZE: usize = 560_000;
const SEEDS: u64 = 200;

static VALUE: LazyLock<Vec<u8>> =
    LazyLock::new(|| (0..SIZE as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect());

/// Time, chance and what all nodes share.
struct World {
    now_ms: u64,
    state: u64,
    /// How often things go wrong, of 100.
    faults: u64,
    /// How often the object was put.
    puts: u32,
    /// The ids of what was done.
    done: BTreeSet<RequestId>,
    /// Ids that were refused as too old.
    refused: BTreeSet<RequestId>,
    /// Whether nodes take ids of clients.
    takes_ids: bool,
    /// How long the client is patient.
    patience_ms: u64,
    /// When something of the call moved last.
    moved_ms: u64,
    /// That of the herd, unless its node is alone.
    map: Option<Map>,
    /// How often it was asked for.
    asks: u32,
    /// The addresses that were dialed.
    dialed: Vec<String>,
}

impl World {
    fn new(seed: u64, faults: u64, map: Option<Map>) -> Self {
        let (done, refused, takes_ids) = <_>::default();
        let (now_ms, moved_ms, puts, asks, patience_ms) = (5, 5, 0, 0, TIMEOUT_MS);
        let dialed = Vec::new();
        Self { now_ms, state: seed, faults, puts, done, refused, takes_ids, patience_ms, moved_ms, map, asks, dialed }
    }

    fn chance(&mut self, of: u64) -> u64 {
        self.state = self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.state >> 33) % of
    }

    /// As the primary of a group does, whose window forgets now and then; false: it does not know whether it was done.
    fn decide(&mut self, own: Option<Own>) -> bool {
        let Some(own) = own else {
            self.puts += 1;
            return true;
        };
        assert!(!self.refused.contains(&own.id), "what was refused comes under another id");
        if self.done.contains(&own.id) {
            assert!(own.may_be_done, "it was asked before");
            return self.chance(8) > 0;
        }
        if self.fault() && self.chance(3) == 0 {
            self.refused.extend((!own.may_be_done).then_some(own.id));
            return false;
        }
        self.puts += 1;
        self.done.insert(own.id)
    }

    fn fault(&mut self) -> bool {
        let faults = self.faults;
        self.chance(100) < faults
    }
}

type Shared = Rc<RefCell<World>>;

/// A connection to a node, and the node's side of it.
struct Socket {
    world: Shared,
    side: RefCell<Side>,
}

#[derive(Default)]
struct Side {
    /// Bytes of the client, not served yet.
    received: Vec<u8>,
    /// A put under way.
    put: Option<(Header, Option<Own>, Vec<u8>)>,
    /// What the node says, and when.
    replies: Vec<(u64, Vec<u8>)>,
    closes_ms: Option<u64>,
    /// It takes no bytes any more.
    stuck: bool,
    /// It is another node than the hello meant, and has said so.
    refused: bool,
}

impl super::Socket for Socket {
    fn read(&self, into: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let (mut side, mut world) = (self.side.borrow_mut(), self.world.borrow_mut());
        let now_ms = world.now_ms;
        if let Some((due_ms, bytes)) = side.replies.first_mut().filter(|(due_ms, _)| *due_ms <= now_ms) {
            let room = into.iter_mut().find(|slice| !slice.is_empty()).expect("there is room");
            let count = bytes.len().min(room.len()).min(1 + world.chance(300_000) as usize);
            room[..count].copy_from_slice(&bytes[..count]);
            bytes.drain(..count);
            // A body takes its time.
            *due_ms += world.chance(TIMEOUT_MS / 2);
            if bytes.is_empty() {
                side.replies.remove(0);
            }
            world.moved_ms = now_ms;
            return Ok(count);
        }
        match side.closes_ms {
            Some(closes_ms) if closes_ms <= now_ms => Ok(0),
            _ => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    fn write(&self, from: &[IoSlice<'_>]) -> io::Result<usize> {
        let (mut side, mut world) = (self.side.borrow_mut(), self.world.borrow_mut());
        if side.closes_ms.is_some_and(|closes_ms| closes_ms <= world.now_ms) {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        if side.stuck || world.fault() && world.chance(4) == 0 {
            side.stuck = true;
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let all: usize = from.iter().map(|slice| slice.len()).sum();
        let count = all.min(1 + world.chance(400_000) as usize);
        let head = count.min(from[0].len());
        side.received.extend_from_slice(&from[0][..head]);
        side.received.extend_from_slice(&from[1][..count - head]);
        if all > 4_096 {
            world.moved_ms = world.now_ms;
        }
        side.serve(&mut world);
        Ok(count)
    }
}

impl Side {
    fn serve(&mut self, world: &mut World) {
        while let Some(frame) = wire::parse_frame(&self.received).expect("the client speaks the protocol") {
            let (header, bytes) = (*frame.header(), frame.bytes());
            let body = frame.body().expect("good checksums").to_vec();
            match header.kind {
                Kind::Hello if frame.fields().expect("fields").between.is_some() && world.fault() => {
                    self.say(world, Header::new(Kind::Goodbye), b"");
                    self.refused = true;
                }
                _ if self.refused => {}
                Kind::Hello => {
                    let clock = wire::clock_bytes(1_000_000 + world.now_ms);
                    let between = world.takes_ids.then_some(Between::Own(&clock));
                    self.say_all(world, Header::new(Kind::Welcome), &Fields { between, ..Fields::default() }, b"");
                }
                Kind::Request if header.verb == wire::VERB_MAP => {
                    world.asks += 1;
                    let mut out = Vec::new();
                    match &world.map {
                        Some(map) => routes(map).encode(&mut out, &header, &map.encode()).expect("encodes"),
                        None => {
                            let reply = Header::reply_to(&header, Status::Ok);
                            wire::encode_frame(&mut out, reply, &Fields::default(), b"").expect("encodes");
                        }
                    }
                    self.send(world, out);
                }
                Kind::Request if header.verb() == Some(Verb::Put) => {
                    let own = Own::told(&frame.fields().expect("fields")).expect("well formed");
                    assert!(own.is_none() || world.takes_ids, "no id that nobody takes");
                    self.put = Some((header, own, body));
                }
                Kind::Request => self.get(world, header),
                Kind::Data => self.put.as_mut().expect("of a put").2.extend(body),
                _ => {}
            }
            self.received.drain(..bytes);
            if self.put.is_some() && !header.has(FLAG_MORE) && header.verb != wire::VERB_MAP {
                self.finish_put(world);
            }
        }
    }

    fn say(&mut self, world: &mut World, header: Header, body: &[u8]) {
        self.say_all(world, header, &Fields::default(), body);
    }

    fn say_all(&mut self, world: &mut World, header: Header, fields: &Fields<'_>, body: &[u8]) {
        let mut out = Vec::new();
        let epoch = world.map.as_ref().map_or(0, |map| map.epoch);
        wire::encode_frame(&mut out, Header { epoch, ..header }, fields, body).expect("encodes");
        self.send(world, out);
    }

    fn send(&mut self, world: &mut World, out: Vec<u8>) {
        let after_ms = self.replies.last().map_or(0, |(due_ms, _)| *due_ms);
        let due_ms = (world.now_ms + world.chance(TIMEOUT_MS / 3)).max(after_ms);
        self.replies.push((due_ms, out));
    }

    /// Whether the request goes wrong before it is done.
    fn fails(&mut self, world: &mut World, header: Header) -> bool {
        if !world.fault() {
            return false;
        }
        match world.chance(3) {
            0 => {}
            1 => self.closes_ms = Some(world.now_ms + world.chance(2 * TIMEOUT_MS)),
            _ => self.say(world, Header::reply_to(&header, Status::Error(herd_core::ErrorKind::Busy)), b""),
        }
        true
    }

    fn finish_put(&mut self, world: &mut World) {
        let (header, own, body) = self.put.take().expect("checked by the caller");
        if self.fails(world, header) {
            return;
        }
        assert!(VALUE.starts_with(&body), "what is stored is what was given");
        if !world.decide(own) {
            let kind = if own.is_some_and(|own| own.may_be_done) {
                herd_core::ErrorKind::OutcomeUnknown
            } else {
                herd_core::ErrorKind::Timeout
            };
            return self.say(world, Header::reply_to(&header, Status::Error(kind)), b"");
        }
        if world.fault() {
            self.closes_ms = Some(world.now_ms + world.chance(2 * TIMEOUT_MS));
            return;
        }
        let reply = Header { version: 7, ..Header::reply_to(&header, Status::Ok) };
        self.say(world, reply, b"");
    }

    fn get(&mut self, world: &mut World, header: Header) {
        if self.fails(world, header) {
            return;
        }
        let (from, to) = match header.has(FLAG_RANGE) {
            true if header.length != LENGTH_UNKNOWN => {
                (header.offset as usize, (header.offset + header.length) as usize)
            }
            _ => (0, SIZE),
        };
        let mut position = from;
        while position < to {
            let end = to.min(position + BLOCK_BYTES);
            let frame = match position == from {
                true => Header { version: 7, length: SIZE as u64, ..Header::reply_to(&header, Status::Ok) },
                false => Header::data(header.id, position as u64, end < to),
            };
            let flags = if end < to { FLAG_MORE } else { 0 };
            self.say(world, Header { flags, brief: false, offset: position as u64, ..frame }, &VALUE[position..end]);
            position = end;
            if world.chance(10) == 0 && world.fault() {
                self.closes_ms = Some(self.replies.last().map_or(0, |(due_ms, _)| *due_ms));
                break;
            }
        }
    }
}

/// The result of a call, and what it gave out.
struct Ran {
    result: Result<(Reply, Vec<u8>)>,
    out: Vec<u8>,
    puts: u32,
    silent_ms: u64,
    patience_ms: u64,
    dialed: Vec<String>,
    asks: u32,
}

fn routes(map: &Map) -> Routes {
    Routes { mark: MapMark::of(map, true), key: KEY }
}

fn run(seed: u64, request: Request<'_>, given: Given<'_>, sink: Sink) -> Ran {
    run_with(seed, (false, TIMEOUT_MS), request, given, sink)
}

fn run_with(
    seed: u64,
    (takes_ids, patience_ms): (bool, u64),
    request: Request<'_>,
    given: Given<'_>,
    sink: Sink,
) -> Ran {
    let map = (!seed.is_multiple_of(4)).then(|| herd(&["a:7700", "d:1|e:1", "f:1"]));
    let world = World { takes_ids, patience_ms, ..World::new(seed, seed % 60, map) };
    let knows = seed % 4 > 1;
    run_in(world, knows, request, given, sink)
}

/// A call of a client that has the map already if it `knows`.
fn run_in(world: World, knows: bool, request: Request<'_>, given: Given<'_>, sink: Sink) -> Ran {
    let seed = world.state;
    let told = world.map.as_ref().filter(|_| knows).map(|map| (routes(map), map.encode()));
    let patience_ms = world.patience_ms;
    let world = Rc::new(RefCell::new(world));
    let timeout = Duration::from_millis(TIMEOUT_MS);
    let config = Config { timeout, connect_timeout: timeout / 2, value_max_bytes: 1 << 30, ..Config::default() };
    let nodes = ["a", "a,b", "a,b,c"][seed as usize % 3];
    let pool = Pool::new(nodes, config, seed).expect("addresses");
    if let Some((routes, bytes)) = told {
        pool.learn(Some((routes.mark, routes.key.0)), &bytes);
    }
    let mut exchange = Exchange::new(&pool, (5, patience_ms), request, given, (sink, Vec::new()));
    let (mut read, mut out) = (0, Vec::new());
    for _ in 0..100_000 {
        let now_ms = world.borrow().now_ms;
        match exchange.next(now_ms) {
            Need::Source(_) => {
                let room = exchange.room();
                let bytes = room.len().min(SIZE - read);
                room[..bytes].copy_from_slice(&VALUE[read..read + bytes]);
                read += bytes;
                let ended = bytes < room.len();
                pass(&world, 3 * TIMEOUT_MS);
                let now_ms = world.borrow().now_ms;
                world.borrow_mut().moved_ms = now_ms;
                exchange.supply(now_ms, Ok(Supply { bytes, ended }));
            }
            Need::Connect(node, within) => {
                world.borrow_mut().dialed.push(pool.node(node).to_string());
                let (took_ms, socket) = connect(&world, within.as_millis() as u64);
                exchange.connected(now_ms + took_ms, socket);
            }
            Need::Wait { write, most } => {
                let until_ms = now_ms + most.as_millis() as u64;
                let next_ms = {
                    let side = exchange.socket().side.borrow();
                    let writable_ms = (write && !side.stuck).then_some(now_ms);
                    let reply_ms = side.replies.first().map(|(due_ms, _)| *due_ms);
                    writable_ms.into_iter().chain(reply_ms).chain(side.closes_ms).min().unwrap_or(u64::MAX)
                };
                world.borrow_mut().now_ms = next_ms.clamp(now_ms, until_ms);
                exchange.waited(now_ms, Ok(()));
            }
            Need::Pause(time) => world.borrow_mut().now_ms += time.as_millis() as u64,
            Need::Chunk => {
                out.extend_from_slice(exchange.chunk());
                pass(&world, 3 * TIMEOUT_MS);
                let now_ms = world.borrow().now_ms;
                world.borrow_mut().moved_ms = now_ms;
                exchange.taken(now_ms, Ok(()));
            }
            Need::Time => {}
            Need::Done(result) => {
                let world = world.borrow();
                let silent_ms = now_ms - world.moved_ms;
                return Ran {
                    result,
                    out,
                    puts: world.puts,
                    silent_ms,
                    patience_ms,
                    dialed: world.dialed.clone(),
                    asks: world.asks,
                };
            }
        }
    }
    panic!("seed {seed}: it never ends");
}

/// Connects to a node, which may take all the time there is, and fail.
fn connect(world: &Shared, most_ms: u64) -> (u64, io::Result<Socket>) {
    let mut state = world.borrow_mut();
    let fault = state.fault();
    let hangs = fault && state.chance(2) == 0;
    let took_ms = if hangs { most_ms } else { state.chance(most_ms) };
    state.now_ms += took_ms;
    let socket = Socket { world: world.clone(), side: RefCell::default() };
    (took_ms, if fault { Err(io::ErrorKind::TimedOut.into()) } else { Ok(socket) })
}

/// Lets some time pass, now and then.
fn pass(world: &Shared, most_ms: u64) {
    let mut world = world.borrow_mut();
    if world.chance(8) == 0 {
        world.now_ms += world.chance(most_ms);
    }
}

#[derive(Debug, Default)]
struct Seen {
    done: u32,
    unknown: u32,
    unreachable: u32,
    other: u32,
}

impl Seen {
    fn note(&mut self, seed: u64, ran: &Ran) {
        assert!(ran.silent_ms <= ran.patience_ms, "seed {seed}: told after a silence of {} ms", ran.silent_ms);
        match ran.result.as_ref().map_err(Error::kind) {
            Ok(_) => self.done += 1,
            Err(ErrorKind::OutcomeUnknown) => self.unknown += 1,
            Err(ErrorKind::Unreachable) => self.unreachable += 1,
            Err(_) => self.other += 1,
        }
    }
}

#[test]
fn a_put_is_done_once_or_what_is_told_of_it_is_true() {
    let mut seen = Seen::default();
    for seed in 0..SEEDS {
        let given = match seed % 5 {
            0 | 1 => Given::Slice(&VALUE),
            2 => Given::Stream(Some(SIZE as u64)),
            _ => Given::Stream(None),
        };
        let request = Request::put_stream("x", &PutOptions::default()).expect("valid");
        let ran = run(seed, request, given, Sink::Memory(0));
        seen.note(seed, &ran);
        match ran.result.as_ref().map_err(Error::kind) {
            Ok(_) => assert_eq!(ran.puts, 1, "seed {seed}"),
            Err(ErrorKind::OutcomeUnknown) => assert!(ran.puts <= 1, "seed {seed}"),
            Err(_) => assert_eq!(ran.puts, 0, "seed {seed}: {:?}", ran.result),
        }
    }
    assert!(seen.done > 50 && seen.unknown > 10 && seen.unreachable > 10 && seen.other > 2, "{seen:?}");
}

#[test]
fn a_put_with_an_id_is_asked_again_and_done_once() {
    let outcomes = [false, true].map(|takes_ids| {
        let mut seen = Seen::default();
        for seed in 0..2 * SEEDS {
            let request = Request::put_stream("x", &PutOptions::default()).expect("valid");
            // Nodes answer within a fraction of the client's patience.
            let given = Given::Slice(&VALUE[..1_000]);
            let ran = run_with(seed, (takes_ids, 10 * TIMEOUT_MS), request, given, Sink::Memory(0));
            seen.note(seed, &ran);
            match ran.result.as_ref().map_err(Error::kind) {
                Ok(_) => assert_eq!(ran.puts, 1, "seed {seed}"),
                Err(ErrorKind::OutcomeUnknown) => assert!(ran.puts <= 1, "seed {seed}"),
                Err(_) => assert_eq!(ran.puts, 0, "seed {seed}: {:?}", ran.result),
            }
        }
        seen
    });
    let [without, with] = &outcomes;
    assert!(with.done > without.done && 2 * with.unknown < without.unknown, "{outcomes:?}");
    assert!(with.unknown > 0, "what a node does not know is told so: {outcomes:?}");
}

#[test]
fn a_get_gives_out_the_object_and_nothing_else() {
    let mut seen = Seen::default();
    for seed in 0..SEEDS {
        let sink = if seed % 2 == 0 { Sink::Memory(1 << 30) } else { Sink::Stream };
        let ran = run(seed, Request::get("x").expect("valid"), Given::Nothing, sink);
        seen.note(seed, &ran);
        match &ran.result {
            Ok((reply, found)) => {
                let found = if sink == Sink::Stream { &ran.out } else { found };
                assert!(*found == *VALUE && reply.version == 7, "seed {seed}: {} bytes", found.len());
            }
            Err(_) => assert!(VALUE.starts_with(&ran.out), "seed {seed}"),
        }
    }
    assert!(seen.done > 100 && seen.unreachable > 10 && seen.unknown == 0, "{seen:?}");
}

/// A node that takes all and says nothing.
#[derive(Default)]
struct Silent(RefCell<Vec<u8>>);

impl super::Socket for Silent {
    fn read(&self, _: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        Err(io::ErrorKind::WouldBlock.into())
    }

    fn write(&self, from: &[IoSlice<'_>]) -> io::Result<usize> {
        from.iter().for_each(|slice| self.0.borrow_mut().extend_from_slice(slice));
        Ok(from.iter().map(|slice| slice.len()).sum())
    }
}

#[test]
fn a_wait_is_no_silence_of_its_node_and_what_is_left_of_it_goes_to_the_next() {
    let pool = Pool::new("a,b", Config::default(), 1).expect("addresses");
    let request = Request::get_newer("x", 7, Duration::from_secs(10)).expect("valid");
    let mut exchange = Exchange::new(&pool, (0, 1_000), request, Given::Nothing, (Sink::Memory(9), Vec::new()));
    for (now_ms, node, asked_ms) in [(0, 0, 10_000), (10_500, 1, 0)] {
        assert!(matches!(exchange.next(now_ms), Need::Connect(to, _) if to == node));
        exchange.connected(now_ms, Ok(Silent::default()));
        let Need::Wait { most, .. } = exchange.next(now_ms) else { panic!("it waits for the answer") };
        assert_eq!(most, Duration::from_millis(if node == 0 { 10_500 } else { 500 }));
        let sent = exchange.socket().0.borrow();
        let hello = wire::parse_frame_head(&sent).expect("a frame").expect("whole").bytes();
        let request = wire::parse_frame_head(&sent[hello..]).expect("a frame").expect("whole").header;
        assert_eq!((request.kind, request.time_ms), (Kind::Request, asked_ms));
    }
    let Need::Done(result) = exchange.next(11_000) else { panic!("there is no third") };
    assert_eq!(result.expect_err("nobody said anything").kind(), ErrorKind::Unreachable);
}

/// A name whose object one of the nodes of such a herd decides on.
fn name_of(map: &Map, node: usize) -> String {
    let names = (0..).map(|i| format!("n{i}"));
    let slot = |name: &String| ObjectId::of(&KEY, CollectionId::DEFAULT, name.as_bytes()).slot();
    names.into_iter().find(|name| slot(name) % map.nodes.len() == node).expect("one of many")
}

#[test]
fn a_client_that_knows_the_map_goes_to_the_owner_and_one_that_does_not_to_the_node_it_was_given() {
    let map = herd(&["a:7700", "d:1|e:1", "f:1"]);
    for (node, address) in ["a:7700", "d:1", "f:1"].into_iter().enumerate() {
        let name = name_of(&map, node);
        for knows in [true, false] {
            let world = World::new(0, 0, Some(map.clone()));
            let request = Request::get(&name).expect("valid");
            let ran = run_in(world, knows, request, Given::Nothing, Sink::Stream);
            let first = if knows { address } else { "a:7700" };
            assert_eq!((&ran.dialed[0][..], ran.asks), (first, 0), "the first request asks for nothing");
        }
    }
}

#[test]
fn before_the_first_long_body_the_map_is_asked_for_once() {
    let map = herd(&["a:7700", "d:1|e:1", "f:1"]);
    for (node, way) in [&["a:7700"][..], &["a:7700", "d:1"], &["a:7700", "f:1"]].into_iter().enumerate() {
        for given in [Given::Slice(&VALUE), Given::Stream(Some(SIZE as u64)), Given::Stream(None)] {
            let name = name_of(&map, node);
            let request = Request::put_stream(&name, &PutOptions::default()).expect("valid");
            let world = World::new(0, 0, Some(map.clone()));
            let ran = run_in(world, false, request.clone(), given, Sink::Memory(0));
            ran.result.expect("nothing goes wrong");
            assert_eq!((ran.puts, ran.asks), (1, 1));
            assert_eq!(ran.dialed, way);
            let ran = run_in(World::new(0, 0, None), false, request, given, Sink::Memory(0));
            ran.result.expect("a node that is alone answers that too");
            assert_eq!((ran.dialed, ran.asks), (vec!["a:7700".to_owned()], 1));
        }
    }
}

/// What its shell does for an exchange, where all nodes take connections but say nothing of themselves.
fn dialed(exchange: &mut Exchange<'_, Silent>, pool: &Pool<Silent>, now_ms: u64) -> (String, Duration) {
    match exchange.next(now_ms) {
        Need::Connect(node, within) => (pool.node(node).to_string(), within),
        need => panic!("it connects, not {need:?}"),
    }
}

#[test]
fn an_owner_that_can_not_be_reached_costs_one_try_and_is_left_alone_for_a_while() {
    let map = herd(&["a:7700", "d:1|e:1", "f:1"]);
    let name = name_of(&map, 1);
    let pool = Pool::new("a", Config::default(), 1).expect("addresses");
    let Routes { mark, key } = routes(&map);
    pool.learn(Some((mark, key.0)), &map.encode());
    let request = Request::get(&name).expect("valid");
    let new = |now_ms| {
        let sink = (Sink::Memory(9), Vec::new());
        Exchange::new(&pool, (now_ms, 10_000), request.clone(), Given::Nothing, sink)
    };
    let mut exchange = new(0);
    assert_eq!(dialed(&mut exchange, &pool, 0), ("d:1".into(), Duration::from_millis(750)));
    exchange.connected(750, Err(io::ErrorKind::TimedOut.into()));
    assert_eq!(dialed(&mut exchange, &pool, 750), ("e:1".into(), Duration::from_millis(750)), "its other address");
    exchange.connected(1_500, Err(io::ErrorKind::TimedOut.into()));
    assert_eq!(dialed(&mut exchange, &pool, 1_500).0, "a:7700", "any node does it too");
    assert_eq!(dialed(&mut new(2_000), &pool, 2_000).0, "a:7700", "nobody tries again so soon");
    assert_eq!(dialed(&mut new(1_500 + AVOID_MS), &pool, 1_500 + AVOID_MS).0, "d:1");
}

#[test]
fn behind_a_firewall_one_owner_that_hangs_stands_for_all_that_never_answered() {
    let map = herd(&["a:7700", "d:1|e:1", "f:1"]);
    for (kind, second) in [(io::ErrorKind::TimedOut, "a:7700"), (io::ErrorKind::ConnectionRefused, "f:1")] {
        let pool = Pool::new("a", Config::default(), 1).expect("addresses");
        let Routes { mark, key } = routes(&map);
        pool.learn(Some((mark, key.0)), &map.encode());
        let names = [name_of(&map, 1), name_of(&map, 2)];
        let new = |now_ms, node: usize| {
            let sink = (Sink::Memory(9), Vec::new());
            let request = Request::get(&names[node - 1]).expect("valid");
            Exchange::new(&pool, (now_ms, 10_000), request, Given::Nothing, sink)
        };
        let mut exchange = new(0, 1);
        assert_eq!(dialed(&mut exchange, &pool, 0).0, "d:1");
        exchange.connected(0, Err(kind.into()));
        assert_eq!(dialed(&mut exchange, &pool, 0).0, "e:1");
        exchange.connected(0, Err(kind.into()));
        assert_eq!(dialed(&mut exchange, &pool, 0).0, "a:7700");
        assert_eq!(dialed(&mut new(1, 2), &pool, 1).0, second);
        assert_eq!(dialed(&mut new(AVOID_MS, 2), &pool, AVOID_MS).0, "f:1", "it is tried again");
    }
}

#[test]
fn where_no_given_node_answers_others_of_the_map_do() {
    let map = herd(&["a:7700", "d:1|e:1", "f:1"]);
    let pool = Pool::new("a", Config::default(), 1).expect("addresses");
    let Routes { mark, key } = routes(&map);
    pool.learn(Some((mark, key.0)), &map.encode());
    let all = |request: Request<'_>| {
        let sink = (Sink::Memory(9), Vec::new());
        let mut exchange = Exchange::<Silent>::new(&pool, (0, 10_000), request, Given::Nothing, sink);
        let mut seen = Vec::new();
        while let Need::Connect(node, _) = exchange.next(0) {
            seen.push(pool.node(node).to_string());
            exchange.connected(0, Err(io::ErrorKind::ConnectionRefused.into()));
        }
        seen
    };
    let mut listing = all(Request::list(b"default", b"", None).expect("valid"));
    assert_eq!(listing.remove(0), "a:7700");
    listing.sort();
    assert_eq!(listing, ["d:1", "f:1"]);
    assert_eq!(all(Request::system("status")), ["a:7700"], "which tells of itself alone");
}

#[test]
fn a_node_that_hangs_does_not_hold_up_what_the_next_one_can_do() {
    let pool = Pool::new("a,b,c", Config::default(), 1).expect("addresses");
    let request = Request::get("x").expect("valid");
    let mut exchange = Exchange::new(&pool, (0, 9_000), request, Given::Nothing, (Sink::Memory(9), Vec::new()));
    let quick = Duration::from_millis(QUICK_CONNECT_MS);
    assert_eq!(dialed(&mut exchange, &pool, 0), ("a:7700".into(), quick));
    exchange.connected(0, Ok(Silent::default()));
    assert!(matches!(exchange.next(0), Need::Wait { most, .. } if most == Duration::from_secs(3)));
    assert_eq!(dialed(&mut exchange, &pool, 3_000), ("b:7700".into(), quick));
    exchange.connected(3_500, Err(io::ErrorKind::TimedOut.into()));
    assert_eq!(dialed(&mut exchange, &pool, 3_500), ("c:7700".into(), quick));
    exchange.connected(3_500, Err(io::ErrorKind::ConnectionRefused.into()));
    assert_eq!(dialed(&mut exchange, &pool, 3_500).0, "a:7700", "which may have recovered");
    exchange.connected(4_000, Err(io::ErrorKind::TimedOut.into()));
    let share = Duration::from_millis(2_000);
    assert_eq!(dialed(&mut exchange, &pool, 4_000), ("b:7700".into(), share), "with all the time that one node gets");
    let next = |now_ms| dialed(&mut list(&pool, now_ms), &pool, now_ms).0;
    assert_eq!(next(5_000), "b:7700", "which has been late, and has not failed as the others");
    assert_eq!(next(4_000 + AVOID_MS), "b:7700", "whose turn it is");
}

fn list(pool: &Pool<Silent>, now_ms: u64) -> Exchange<'_, Silent> {
    let request = Request::list(b"default", b"", None).expect("valid");
    Exchange::new(pool, (now_ms, 9_000), request, Given::Nothing, (Sink::Memory(9), Vec::new()))
}

#[test]
fn nothing_of_a_change_is_sent_before_its_node_has_said_whether_it_takes_ids() {
    let nothing: [&[u8]; 0] = [];
    let put = |given| (Request::put_stream("x", &PutOptions::default()), given);
    let changes = [
        put(Given::Stream(None)),
        put(Given::Slice(b"v")),
        (Request::remove("x", crate::Condition::None), Given::Nothing),
        (Request::execute("x", "fetch-and-add", &nothing), Given::Nothing),
    ];
    for (request, given) in changes {
        let pool = Pool::<Silent>::new("a", Config::default(), 1).expect("addresses");
        pool.heard(0, false);
        let sink = (Sink::Memory(0), Vec::new());
        let mut exchange = Exchange::new(&pool, (0, 10_000), request.expect("valid"), given, sink);
        if let Given::Stream(_) = given {
            assert!(matches!(exchange.next(0), Need::Source(Fill::Full)));
            let bytes = exchange.room().len();
            exchange.supply(0, Ok(Supply { bytes, ended: false }));
        }
        assert!(matches!(exchange.next(0), Need::Connect(..)));
        exchange.connected(0, Ok(Silent::default()));
        assert!(matches!(exchange.next(0), Need::Wait { .. }));
        let sent = exchange.socket().0.borrow().clone();
        let hello = wire::parse_frame(&sent).expect("well formed").expect("whole");
        assert_eq!((hello.header().kind, hello.bytes()), (Kind::Hello, sent.len()));
        // Nothing was sent that could have been done.
        assert!(matches!(exchange.next(10_000), Need::Done(Err(error)) if error.kind() == ErrorKind::Unreachable));
    }
}
