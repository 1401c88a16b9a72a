//! Several clients against one real node, in virtual time: bytes in, bytes out, values compared byte by byte.
//!
//! An input is a script. Its first byte chooses the class and the memory of the node; then each step has one client
//! send a well-made request or bytes of any kind, whole or in pieces, read or not read, stop sending, tear its
//! connection down, or has time pass. After every step the node works until it rests.
//!
//! Checked: the node takes no more memory than it has; each well-made request is answered, in order, in its form; what
//! is read is what the model allows (`model.rs`); versions and CAS values rise; and when all clients have gone, nothing
//! is held for them. A client that sent bytes of any kind is *wild*: nothing is expected of its answers, and from then
//! on it names no key of the model.
//!
//! Reading order: `script.rs`, `model.rs`, `client.rs`, one file a door, `node.rs`.

mod client;
pub(crate) mod http;
pub(crate) mod memcached;
mod model;
mod node;
mod script;
pub(crate) mod wire;

use crate::Outcomes;
use client::{Client, Judge, Talk};
use model::Model;
use node::Node;
use script::Script;

pub(crate) use client::Door;

/// Clients at once.
const CLIENTS: usize = 4;
/// Steps of one input.
pub(crate) const STEPS_MAX: usize = 96;
/// Largest object of the node, bytes.
pub(crate) const OBJECT_MAX_BYTES: usize = 2 << 20;
/// Largest value that memcached takes.
const VALUE_MAX_BYTES: usize = 1 << 20;
/// Memory of the node, MiB.
const MEMORY_MIB: [u64; 4] = [8, 8, 12, 16];
/// Bytes of a connection's buffers.
const ROOM_BYTES: [usize; 4] = [256 * 1024, 4_096, 100, 20_000];
/// Times that pass, ms: about a tick, an expiry, the time of one who does not speak, of one who stalls.
const TIMES_MS: [u64; 8] = [1, 100, 250, 1_000, 1_100, 3_100, 5_000, 31_000];
/// Seconds until all that waits is answered.
const WAITS_S: u64 = 8;

/// Outcomes at every door.
#[rustfmt::skip]
pub(crate) const COMMON: &[&str] = &[
    "class cache", "class ram:1", "time passes", "deaf", "small buffers", "evicted", "wild", "wild is over",
    "sent in pieces", "not taken", "half-close", "half-closed and answered", "reset", "reset midway", "shed",
    "done", "refused", "absent", "full", "miss", "miss after evictions",
    "found empty", "found beside its key", "found in a block", "found in blocks",
];

/// Words of the driver: steps and requests that begin so.
#[rustfmt::skip]
pub(crate) const WORDS: &[&[u8]] = &[
    b"\x0B", b"\x0C", b"\x0D\x05", b"\x0D\x07", b"\x0E", b"\x0F\x02", b"\x00\x00\x00", b"\x00\x06\x00\xF8", b"\x08\xFF",
    b"\x00\x0D\x00\x00", b"\x1E", b"\x10\x06\x01\xE5", b"\x09\x10", b"get a\r\n", b"GET / HTTP/1.1\r\n\r\n",
    b"\x0A\x10",
];

struct World {
    node: Node,
    model: Model,
    clients: Vec<Option<Client>>,
    outcomes: Outcomes,
    doors: &'static [Door],
    evicts: bool,
    /// A wild client may have emptied the collection.
    flushed: bool,
}

/// Runs a script against clients of these doors.
pub(crate) fn run(input: &[u8], doors: &'static [Door]) -> Outcomes {
    let mut script = Script::new(input);
    let first = script.byte();
    let (evicts, memory_mib) = (first.is_multiple_of(2), MEMORY_MIB[usize::from(first / 2) % 4]);
    let mut world = World {
        node: Node::new(memory_mib << 20, evicts),
        model: Model::new(script::KEYS, VALUE_MAX_BYTES),
        clients: (0..CLIENTS).map(|_| None).collect(),
        outcomes: Outcomes::default(),
        doors,
        evicts,
        flushed: false,
    };
    world.outcomes.add(if evicts { "class cache" } else { "class ram:1" });
    for _ in 0..STEPS_MAX {
        if script.is_over() {
            break;
        }
        world.step(&mut script);
    }
    world.finish();
    world.outcomes
}

impl World {
    /// One step of the script.
    fn step(&mut self, script: &mut Script<'_>) {
        let byte = script.byte();
        let (what, at) = (byte % 16, usize::from(byte / 16) % CLIENTS);
        self.look();
        let mut client = self.clients[at].take().unwrap_or_else(|| self.connect(at, ROOM_BYTES[0]));
        match what {
            0..=5 => {
                self.ask(&mut client, script);
                self.deliver(&mut client, usize::MAX);
            }
            6 => self.ask(&mut client, script),
            7 => {
                self.ask(&mut client, script);
                self.deliver(&mut client, script.amount());
            }
            8 => self.deliver(&mut client, script.amount()),
            9 => {
                self.read(&mut client, script.amount());
            }
            10 => self.go_wild(&mut client, script.raw()),
            11 => self.end(&mut client),
            12 => self.reset(&mut client),
            13 => {
                let ms = TIMES_MS[usize::from(script.byte()) % TIMES_MS.len()];
                self.outcomes.add("time passes");
                self.node.pass(ms);
            }
            14 => {
                client.deaf = !client.deaf;
                self.outcomes.add("deaf");
            }
            _ => {
                self.outcomes.add("small buffers");
                let room = ROOM_BYTES[usize::from(script.byte()) % 4];
                self.leave(client);
                client = self.connect(at, room);
            }
        }
        self.clients[at] = Some(client);
        self.node.work();
        self.hear_all();
    }

    fn connect(&mut self, at: usize, room_bytes: usize) -> Client {
        let door = self.doors[at % self.doors.len()];
        let number = self.node.connect(room_bytes, room_bytes);
        Client::new(number, door, self.node.shed())
    }

    /// Tells the model what time it is and what may have gone.
    fn look(&mut self) {
        let evicted = self.node.evictions() > 0;
        assert!(self.evicts || !evicted, "a class that does not evict has evicted");
        self.model.at.now_ms = self.node.now_ms();
        self.model.at.may_vanish = evicted || self.flushed;
        if evicted {
            self.outcomes.add("evicted");
        }
    }

    /// Queues the next request of the script.
    fn ask(&mut self, client: &mut Client, script: &mut Script<'_>) {
        if client.ended || client.wild {
            let what = script.byte();
            return self.murmur(client, what);
        }
        let (model, outcomes) = (&mut self.model, &mut self.outcomes);
        let mut bytes = Vec::new();
        match &mut client.talk {
            Talk::Memcached(asked) => asked.push_back(memcached::ask(script, model, outcomes, &mut bytes)),
            Talk::Http(asked) => asked.push_back(http::ask(script, model, outcomes, &mut bytes)),
            Talk::Wire(talk) => talk.ask(script, model, outcomes, &mut bytes),
        }
        client.outgoing.extend(bytes);
        let end = client.end();
        match &mut client.talk {
            Talk::Memcached(asked) => asked.back_mut().expect("pushed above").end = end,
            Talk::Http(asked) => asked.back_mut().expect("pushed above").end = end,
            Talk::Wire(talk) => talk.ends(end),
        }
    }

    /// A wild client goes on: requests that name no key of the model.
    fn murmur(&mut self, client: &mut Client, what: u8) {
        if client.ended {
            return;
        }
        let name = usize::from(what) % 8;
        let bytes: Vec<u8> = match (client.door, what % 3) {
            (Door::Memcached, 0) => format!("set wild{name} 0 0 5000\r\n{}\r\n", "w".repeat(5_000)).into(),
            (Door::Memcached, _) => format!("get wild{name}\r\n").into(),
            (Door::Http, 0) => format!("PUT /o/default/wild{name} HTTP/1.1\r\nContent-Length: 4\r\n\r\nwild").into(),
            (Door::Http, _) => format!("GET /o/default/wild{name} HTTP/1.1\r\n\r\n").into(),
            (Door::Wire, _) => wire::murmur(name),
        };
        client.outgoing.extend(bytes);
    }

    /// Bytes of any kind.
    fn go_wild(&mut self, client: &mut Client, raw: &[u8]) {
        if client.ended || raw.is_empty() {
            return;
        }
        self.outcomes.add("wild");
        client.wild = true;
        client.strange |= client.end() == 0;
        client.raw.extend_from_slice(raw);
        self.flushed |= client.raw.windows(9).any(|word| word == b"flush_all");
        client.outgoing.extend(raw);
        self.deliver(client, usize::MAX);
    }

    /// Sends so many bytes of what is queued, as far as the node takes them.
    fn deliver(&mut self, client: &mut Client, max: usize) {
        let mut left = max.min(client.outgoing.len());
        let whole = left == client.outgoing.len();
        while left > 0 {
            let (front, _) = client.outgoing.as_slices();
            let n = self.node.peer(client.number).write(&front[..front.len().min(left)]);
            client.outgoing.drain(..n);
            (client.sent, left) = (client.sent + n as u64, left - n);
            self.node.work();
            let heard = !client.deaf && self.read(client, usize::MAX) > 0;
            if n == 0 && !heard {
                break;
            }
        }
        if !whole {
            self.outcomes.add("sent in pieces");
        }
        if left > 0 {
            self.outcomes.add("not taken");
        }
    }

    /// Reads up to so many bytes; how many there were.
    fn read(&mut self, client: &mut Client, max: usize) -> usize {
        let bytes = self.node.peer(client.number).read(max);
        self.look();
        let may_be_full = self.node.may_be_full();
        let judge = &mut Judge { model: &mut self.model, outcomes: &mut self.outcomes, may_be_full };
        client.got.extend_from_slice(&bytes);
        if bytes.is_empty() {
            client.hear_out(judge);
        } else {
            client.hear(judge);
        }
        bytes.len()
    }

    /// Everyone who reads by himself does; those whose connection is over leave.
    fn hear_all(&mut self) {
        for at in 0..CLIENTS {
            let Some(mut client) = self.clients[at].take() else { continue };
            while !client.deaf && self.read(&mut client, usize::MAX) > 0 {
                self.node.work();
            }
            let peer = self.node.peer(client.number);
            if peer.is_reset() || (!client.deaf && peer.is_over()) {
                self.over(client);
            } else {
                self.clients[at] = Some(client);
            }
        }
    }

    /// The connection is over: all that was owed must have come, or there is a reason why not.
    fn over(&mut self, mut client: Client) {
        self.look();
        let may_be_full = self.node.may_be_full();
        client.hear_out(&mut Judge { model: &mut self.model, outcomes: &mut self.outcomes, may_be_full });
        let shed = self.node.shed() > client.shed_before;
        if shed {
            self.outcomes.add("shed");
        }
        if client.wild {
            self.outcomes.add("wild is over");
        }
        let reason = shed || client.wild || client.told_end || client.torn;
        assert!(reason || client.ended, "the node closed a connection for no reason");
        assert!(reason || !client.is_owed(), "a connection is over, and not all is answered");
        if client.ended && !reason {
            self.outcomes.add("half-closed and answered");
        }
        client.forget(&mut self.model);
    }

    /// The client sends no more; what it has not sent it never will.
    fn end(&mut self, client: &mut Client) {
        if !client.ended {
            self.outcomes.add("half-close");
            client.ended = true;
            self.node.peer(client.number).end();
        }
    }

    fn reset(&mut self, client: &mut Client) {
        self.outcomes.add(if client.open() > 0 { "reset midway" } else { "reset" });
        client.torn = true;
        self.node.peer(client.number).reset();
    }

    /// The client sends and hears all there is, then stops sending.
    fn leave(&mut self, mut client: Client) {
        client.deaf = false;
        for second in 0..=WAITS_S {
            self.deliver(&mut client, usize::MAX);
            while self.read(&mut client, usize::MAX) > 0 {
                self.node.work();
            }
            if self.node.peer(client.number).is_over() {
                return self.over(client);
            }
            if client.outgoing.is_empty() && !client.is_owed() {
                break;
            }
            assert!(second < WAITS_S || client.wild || client.ended, "a request is not answered");
            self.node.pass(1_000);
        }
        self.end(&mut client);
        self.node.work();
        for _ in 0..WAITS_S {
            while self.read(&mut client, usize::MAX) > 0 {
                self.node.work();
            }
            if self.node.peer(client.number).is_over() {
                return self.over(client);
            }
            self.node.pass(1_000);
        }
        self.reset(&mut client);
        assert!(client.wild, "a client that sends no more is not let go");
        self.node.work();
        self.over(client);
    }

    /// All leave; then a last client reads all keys, and nothing is held.
    fn finish(&mut self) {
        for at in 0..CLIENTS {
            if let Some(client) = self.clients[at].take() {
                self.leave(client);
            }
        }
        for at in 0..self.doors.len() {
            let mut client = self.connect(at, ROOM_BYTES[0]);
            self.look();
            for key in 0..script::KEYS as u8 {
                self.ask(&mut client, &mut Script::new(&[0, key]));
            }
            self.leave(client);
        }
        self.node.pass(3_000);
        self.node.check_settled();
    }
}
