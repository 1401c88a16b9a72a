//! Whole exchanges in virtual time, with nodes that fail in every way a seed comes up with. What must hold however they
//! fail: a call is told within its timeout of the last thing that moved; a put is done at most once, and what is told
//! of it is true; a get gives out just the bytes of the object.

use super::*;
use crate::shell::Config;
use crate::{ErrorKind, PutOptions};
use herd_core::limits::BLOCK_BYTES;
use herd_core::wire::{self, FLAG_MORE, FLAG_RANGE, Fields, Header, Kind, LENGTH_UNKNOWN, Status, Verb};
use std::cell::RefCell;
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
    /// When something of the call moved last.
    moved_ms: u64,
}

impl World {
    fn chance(&mut self, of: u64) -> u64 {
        self.state = self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.state >> 33) % of
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
    put: Option<(Header, Vec<u8>)>,
    /// What the node says, and when.
    replies: Vec<(u64, Vec<u8>)>,
    closes_ms: Option<u64>,
    /// It takes no bytes any more.
    stuck: bool,
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
            self.received.drain(..bytes);
            match header.kind {
                Kind::Hello => self.say(world, Header::new(Kind::Welcome), b""),
                Kind::Request if header.verb() == Some(Verb::Put) => self.put = Some((header, body)),
                Kind::Request => self.get(world, header),
                Kind::Data => self.put.as_mut().expect("of a put").1.extend(body),
                _ => {}
            }
            if self.put.is_some() && !header.has(FLAG_MORE) {
                self.finish_put(world);
            }
        }
    }

    fn say(&mut self, world: &mut World, header: Header, body: &[u8]) {
        let mut out = Vec::new();
        wire::encode_frame(&mut out, header, &Fields::default(), body).expect("encodes");
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
        let (header, body) = self.put.take().expect("checked by the caller");
        if self.fails(world, header) {
            return;
        }
        assert!(body == *VALUE, "what is stored is what was given");
        world.puts += 1;
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
}

fn run(seed: u64, request: Request<'_>, given: Given<'_>, sink: Sink) -> Ran {
    let world = Rc::new(RefCell::new(World { now_ms: 5, state: seed, faults: seed % 60, puts: 0, moved_ms: 5 }));
    let timeout = Duration::from_millis(TIMEOUT_MS);
    let config = Config { timeout, connect_timeout: timeout / 2, value_max_bytes: 1 << 30 };
    let nodes = ["a", "a,b", "a,b,c"][seed as usize % 3];
    let pool = Pool::new(nodes, config, seed).expect("addresses");
    let mut exchange = Exchange::new(&pool, (5, TIMEOUT_MS), request, given, (sink, Vec::new()));
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
            Need::Connect(_, within) => {
                let most_ms = within.as_millis() as u64;
                let fault = world.borrow_mut().fault();
                let hangs = fault && world.borrow_mut().chance(2) == 0;
                let took_ms = if hangs { most_ms } else { world.borrow_mut().chance(most_ms) };
                world.borrow_mut().now_ms += took_ms;
                let socket = Socket { world: world.clone(), side: RefCell::default() };
                let socket = if fault { Err(io::ErrorKind::TimedOut.into()) } else { Ok(socket) };
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
                return Ran { result, out, puts: world.puts, silent_ms: now_ms - world.moved_ms };
            }
        }
    }
    panic!("seed {seed}: it never ends");
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
        assert!(ran.silent_ms <= TIMEOUT_MS, "seed {seed}: told after a silence of {} ms", ran.silent_ms);
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
