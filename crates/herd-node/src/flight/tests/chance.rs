//! The same requests by chance to a herd of three, at any of its nodes, and to a node that is alone: the same answers,
//! byte for byte, but for versions, of which one of the one goes with one of the other.

use super::*;
use crate::tests::{frame, frames_of};
use herd_core::collection::Class;
use herd_core::place::plan::needed_of;
use herd_core::wire::{FLAG_HEAD_ONLY, FLAG_QUIET, FLAG_RANGE, Fields, Frame, Header, Verb};
use std::collections::HashMap;

/// Versions are above this: their epoch is in their high bits.
const VERSIONS_FROM: u64 = 1 << 40;
const KEYS: u64 = 9;

/// Numbers from a seed (SplitMix64).
pub(super) struct Chance(pub(super) u64);

impl Chance {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

/// A herd and a node that is alone, of the same age.
struct Pair {
    herd: World,
    /// Copies that the herd keeps.
    copies: u8,
    alone: World,
    /// Connections of both, in the same order; the herd's in turn to its nodes.
    clients: Vec<(usize, usize)>,
    /// From versions of the one that is alone to those of the herd.
    versions: HashMap<u64, u64>,
    /// Such pairs, in order.
    seen: Vec<(u64, u64)>,
}

impl Pair {
    fn new(copies: u8) -> Self {
        let (mut herd, mut alone) = (World::keeping(3, copies), World::serving(1));
        let clients = (0..9).map(|at| (herd.connect(at % 3 + 1, 1 << 20), alone.connect(1, 1 << 20))).collect();
        Self { herd, copies, alone, clients, versions: HashMap::new(), seen: Vec::new() }
    }

    /// One of the three connections of a kind.
    fn client(&self, kind: usize, chance: &mut Chance) -> (usize, usize) {
        self.clients[kind * 3 + chance.below(3) as usize]
    }

    /// A version of the one goes with one of the other.
    fn pair(&mut self, theirs: u64, ours: u64, what: &str) {
        if theirs < VERSIONS_FROM || ours < VERSIONS_FROM {
            assert_eq!(theirs, ours, "{what}");
            return;
        }
        let known = *self.versions.entry(theirs).or_insert(ours);
        assert_eq!(known, ours, "versions after {what}");
        self.seen.push((theirs, ours));
    }

    /// A version that was seen, or none that ever was, of both.
    fn some_version(&self, chance: &mut Chance) -> (u64, u64) {
        match self.seen.len() as u64 {
            0 => (77, 77),
            // One of the last is more likely to be the present one.
            n if chance.below(4) > 0 => self.seen[(n - 1 - chance.below(n.min(12))) as usize],
            n => self.seen[chance.below(n) as usize],
        }
    }

    /// Sends texts that say the same to both, and compares what they answer.
    fn text(&mut self, client: (usize, usize), ours: &str, theirs: &str) {
        let kept = |class, copies| format!("\r\nHerd-Class: {class}\r\nHerd-Copies: {copies}\r\n");
        let many = kept(Class::Ram(needed_of(self.copies)), self.copies);
        let herd = say(&mut self.herd, client.0, ours).replace(&many, &kept(Class::Ram(1), 1));
        let alone = say(&mut self.alone, client.1, theirs);
        let words =
            |text: &str| text.split_inclusive([' ', '\r', '\n', '"', 'c']).map(str::to_owned).collect::<Vec<_>>();
        let (herd_words, alone_words) = (words(&herd), words(&alone));
        let what = format!("{ours:?}\nherd:  {herd:?}\nalone: {alone:?}");
        assert_eq!(herd_words.len(), alone_words.len(), "{what}");
        for (ours, theirs) in herd_words.iter().zip(&alone_words) {
            let number = |word: &str| word.trim_end_matches([' ', '\r', '\n', '"', 'c']).parse::<u64>().ok();
            match number(theirs).zip(number(ours)) {
                Some((theirs, ours)) => self.pair(theirs, ours, &what),
                None => assert_eq!(ours, theirs, "{what}"),
            }
        }
    }

    fn pass(&mut self, ms: u64) {
        self.herd.pass(ms);
        self.alone.pass(ms);
    }
}

fn key(chance: &mut Chance) -> String {
    format!("k{}", chance.below(KEYS))
}

fn value(chance: &mut Chance) -> String {
    let length = match chance.below(12) {
        0 => 4096 + chance.below(3),
        1 => 9_000,
        2 => 70_000,
        3 => 0,
        n => n,
    };
    (0..length).map(|at| char::from(b'0' + ((at + length) % 10) as u8)).collect()
}

fn pick<'a>(chance: &mut Chance, of: &[&'a str]) -> &'a str {
    of[chance.below(of.len() as u64) as usize]
}

/// A command of memcached, for the herd and for the one that is alone.
fn command(pair: &Pair, chance: &mut Chance) -> (String, String) {
    let (k, v, (theirs, ours)) = (key(chance), value(chance), pair.some_version(chance));
    let n = v.len();
    let quiet = pick(chance, &["", "", " noreply"]);
    // Where copies are kept what is over is removed as by a client, which takes a version.
    let exptime = pick(chance, if pair.copies > 1 { &["0", "9000"] } else { &["0", "0", "0", "2", "-1"] });
    let same = |text: String| (text.clone(), text);
    // What is known of uses is each node's own.
    let uses = if pair.copies > 1 { "v u Oabc" } else { "v h l u Oabc" };
    let meta = pick(chance, &["", "v", "s v t f c k", "v N30 t c", "v R30 T9", "q v k", uses, "E7 v c N5"]);
    let set = pick(chance, &["", "T9 F3", "I T5", "MA", "ME", "MP N3", "MR", "q", "c s k", "E91 b"]);
    match chance.below(20) {
        0..3 => {
            let keys: Vec<String> = (0..1 + chance.below(6)).map(|_| key(chance)).collect();
            same(format!("{} {}\r\n", pick(chance, &["get", "gets", "gat 3", "gats 0"]), keys.join(" ")))
        }
        3..6 => {
            let verb = pick(chance, &["set", "set", "add", "replace", "append", "prepend"]);
            same(format!("{verb} {k} 5 {exptime} {n}{quiet}\r\n{v}\r\n"))
        }
        6 => {
            let cas = |cas: u64| format!("cas {k} 5 {exptime} {n} {cas}{quiet}\r\n{v}\r\n");
            (cas(ours), cas(theirs))
        }
        7 => same(format!("delete {k}{quiet}\r\n")),
        8 => same(format!("set {k} 0 0 2{quiet}\r\n17\r\n")),
        9 => same(format!("{} {k} {}{quiet}\r\n", pick(chance, &["incr", "decr"]), chance.below(99))),
        10 => same(format!("touch {k} {exptime}{quiet}\r\n")),
        11..14 => same(format!("mg {k} {meta}\r\n")),
        14..16 => same(format!("ms {} {n} {set}\r\n{v}\r\n", if set.contains('b') { "azE=" } else { &k })),
        16 => {
            let cas = |cas: u64| format!("ms {k} {n} C{cas}\r\n{v}\r\n");
            (cas(ours), cas(theirs))
        }
        17 => {
            let how = pick(chance, &["", "q", "I T3", "x", "k Ox"]);
            same(format!("md {k} {how}\r\n"))
        }
        18 => same(format!("ma {k} {}\r\n", pick(chance, &["", "t v", "MD D3 v", "N30 J7 v c", "q"]))),
        _ => same(format!("{}\r\n", pick(chance, &["mn", "version", "nonsense", &format!("me {k}x")]))),
    }
}

/// A request by HTTP.
fn request(pair: &Pair, chance: &mut Chance) -> (String, String) {
    let (k, v, (theirs, ours)) = (key(chance), value(chance), pair.some_version(chance));
    let ttl = pick(chance, &["", "", "Herd-TTL: 2\r\n", "Content-Type: x/y\r\n"]);
    let with = |line: &str, ours: String, theirs: String, end: &str| {
        let text = |more: &str| format!("{line} HTTP/1.1\r\nHost: localhost\r\n{more}{end}");
        (text(&ours), text(&theirs))
    };
    let object = format!("/o/default/{k}");
    let condition = |name: &str| (format!("{name}: \"{ours}\"\r\n"), format!("{name}: \"{theirs}\"\r\n"));
    let (ours, theirs) = match chance.below(5) {
        0 => condition("If-Match"),
        1 => condition("If-None-Match"),
        2 => ("If-None-Match: *\r\n".to_owned(), "If-None-Match: *\r\n".to_owned()),
        _ => Default::default(),
    };
    // A body that is not small, or of unknown length, is refused before it comes where the object is here, and the
    // connection closes.
    let v = if ours.is_empty() { v } else { v[..v.len().min(9_000)].to_owned() };
    let n = v.len();
    match chance.below(9) {
        0..3 => with(&format!("GET {object}"), ours, theirs, "\r\n"),
        3 => {
            let range = pick(chance, &["bytes=1-3", "bytes=-2", "bytes=5000-", "bytes=99999999-"]);
            with(&format!("GET {object}"), ours, theirs, &format!("Range: {range}\r\n\r\n"))
        }
        4 => with(&format!("HEAD {object}"), ours, theirs, "\r\n"),
        5 => with(&format!("DELETE {object}"), ours, theirs, "\r\n"),
        6 => {
            let chunked = format!("Transfer-Encoding: chunked\r\n\r\n{n:x}\r\n{v}\r\n0\r\n\r\n");
            let chunked = if n == 0 { "Content-Length: 0\r\n\r\n".to_owned() } else { chunked };
            with(&format!("PUT {object}"), String::new(), String::new(), &format!("{ttl}{chunked}"))
        }
        _ => {
            let none = ours.starts_with("If-None-Match: \"");
            let (ours, theirs) = if none { Default::default() } else { (ours, theirs) };
            with(&format!("PUT {object}"), ours, theirs, &format!("{ttl}Content-Length: {n}\r\n\r\n{v}"))
        }
    }
}

/// A request on Herd's wire with this id, for both.
fn wire_request(pair: &Pair, chance: &mut Chance, id: u64) -> (Vec<u8>, Vec<u8>) {
    let (k, v, (theirs, ours)) = (key(chance), value(chance), pair.some_version(chance));
    let v = &v.as_bytes()[..v.len().min(9_000)];
    let quiet = if chance.below(4) == 0 { FLAG_QUIET } else { 0 };
    let code = [0, 0, 0, 1, 2, 3][chance.below(6) as usize];
    let items = |items: &[&[u8]]| {
        let mut out = Vec::new();
        items.iter().for_each(|item| herd_core::method::push_item(&mut out, item));
        out
    };
    let (header, fields, body): (Header, Fields<'_>, Vec<u8>) = match chance.below(8) {
        0 | 1 => {
            let flags = [0, 0, FLAG_HEAD_ONLY, FLAG_RANGE][chance.below(4) as usize];
            let (offset, length) = if flags == FLAG_RANGE { (chance.below(9), chance.below(9)) } else { (0, 0) };
            let get = Header { flags, offset, length, ..crate::tests::request(Verb::Get, id) };
            (get, Fields::named(k.as_bytes()), Vec::new())
        }
        2 | 3 => {
            let put = Header { length: v.len() as u64, code, flags: quiet, ..crate::tests::request(Verb::Put, id) };
            let ttl_ms = (chance.below(3) == 0).then_some(2_000);
            (put, Fields { flags: Some(3), ttl_ms, ..Fields::named(k.as_bytes()) }, v.to_vec())
        }
        4 => {
            let (offset, flags) = (chance.below(9), quiet | FLAG_RANGE);
            let put = crate::tests::request(Verb::Put, id);
            (Header { length: v.len() as u64, offset, flags, ..put }, Fields::named(k.as_bytes()), v.to_vec())
        }
        5 => {
            let remove = Header { code, flags: quiet, ..crate::tests::request(Verb::Remove, id) };
            (remove, Fields::named(k.as_bytes()), Vec::new())
        }
        _ => {
            let (method, arguments) = match chance.below(7) {
                0 => ("append", items(&[&v[..v.len().min(50)]])),
                1 => ("fetch-and-add", items(&[b"3"])),
                2 => ("get-and-remove", Vec::new()),
                3 => ("set-if-absent", items(&[b"0"])),
                4 => ("compare-and-set", items(&[b"0", b"1"])),
                5 => ("touch", items(&[b"3000"])),
                _ => ("list-length", Vec::new()),
            };
            let execute = Header { flags: quiet, ..crate::tests::request(Verb::Execute, id) };
            (execute, Fields { method: Some(method), ..Fields::named(k.as_bytes()) }, arguments)
        }
    };
    let with = |version| if header.code == 3 { Header { version, ..header } } else { header };
    (frame(with(ours), &fields, &body), frame(with(theirs), &fields, &body))
}

/// What a reply says but for its version, the epoch of the map, and the copies there are, if they are so many.
fn said(reply: &Frame<'_>, copies: u8) -> String {
    let mut header = Header { version: 0, epoch: 0, head_crc: 0, brief: false, ..*reply.header() };
    if header.ack() == (Class::Ram(needed_of(copies)), copies) {
        header.set_ack(Class::Ram(1), 1);
    }
    let mut fields = reply.fields().expect("fields");
    // It names the version that is there.
    fields.error = fields.error.map(|error| error.split(" it has version").next().unwrap_or_default());
    let header = Header { head_len: if fields.error.is_some() { 0 } else { header.head_len }, ..header };
    format!("{header:?} {fields:?} {:?}", reply.body().map(<[u8]>::len))
}

impl Pair {
    fn wire(&mut self, client: (usize, usize), ours: &[u8], theirs: &[u8]) {
        let (herd, alone) = (self.herd.say(client.0, ours), self.alone.say(client.1, theirs));
        let (mut herd, mut alone) = (frames_of(&herd), frames_of(&alone));
        let all = |frames: &[Frame<'_>], copies| frames.iter().map(|frame| said(frame, copies)).collect::<Vec<_>>();
        let asked = all(&frames_of(ours), 0);
        // Replies come in any order.
        herd.sort_by_key(|frame| (frame.header().id, frame.header().offset));
        alone.sort_by_key(|frame| (frame.header().id, frame.header().offset));
        assert_eq!(all(&herd, self.copies), all(&alone, 1), "{asked:?}");
        for (ours, theirs) in herd.iter().zip(&alone) {
            self.pair(theirs.header().version, ours.header().version, &said(ours, 0));
            assert!(ours.body() == theirs.body(), "{asked:?}\n{:?}\n{:?}", ours.body(), theirs.body());
        }
    }
}

fn run(copies: u8, seed: u64, steps: usize) {
    let (mut pair, chance) = (Pair::new(copies), &mut Chance(seed));
    let mut ids = 1;
    for _ in 0..steps {
        match chance.below(8) {
            0..4 => {
                let commands: Vec<_> = (0..1 + chance.below(6)).map(|_| command(&pair, chance)).collect();
                let (ours, theirs): (Vec<_>, Vec<_>) = commands.into_iter().unzip();
                let client = pair.client(0, chance);
                // The last answer tells that the one before has its end.
                pair.text(client, &format!("{}mn\r\n", ours.concat()), &format!("{}mn\r\n", theirs.concat()));
            }
            4 | 5 => {
                let (ours, theirs) = request(&pair, chance);
                let client = pair.client(1, chance);
                pair.text(client, &ours, &theirs);
            }
            6 => {
                let (mut ours, mut theirs) = (Vec::new(), Vec::new());
                for _ in 0..1 + chance.below(4) {
                    let (one, other) = wire_request(&pair, chance, ids);
                    (ours, theirs, ids) = ([ours, one].concat(), [theirs, other].concat(), ids + 1);
                }
                let client = pair.client(2, chance);
                pair.wire(client, &ours, &theirs);
            }
            _ if copies > 1 => pair.pass(3),
            _ => pair.pass([1, 40, 700, 2_100][chance.below(4) as usize]),
        }
    }
    assert!(pair.seen.len() > steps / 8, "{} versions were told", pair.seen.len());
}

#[test]
fn a_herd_answers_as_a_node_that_is_alone() {
    for seed in 0..16 {
        run(1, seed, 120);
    }
}

#[test]
fn a_herd_that_keeps_copies_answers_as_a_node_that_is_alone() {
    for seed in 0..16 {
        println!("seed {seed}");
        run(2 + (seed % 2) as u8, seed, 120);
    }
}
