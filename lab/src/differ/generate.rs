//! Random steps: commands of the text and the meta protocol, most of them right, many bent, some only noise.
//!
//! Names and tokens of `cas` stand in a step as places, filled in when it is sent: so a step can be sent again, in
//! another world of names, and to each server with the token that this server gave.

use crate::differ::talk::CONNS;
use crate::values::Random;

/// Names shared by all connections.
const KEYS: usize = 10;
/// Numbers of a name as long as may be, of one that is longer, of one as short as may be, and of one with bytes that
/// only base64 can tell.
const LONGEST: usize = KEYS;
const TOO_LONG: usize = KEYS + 1;
const SHORTEST: usize = KEYS + 2;
const BINARY: usize = KEYS + 3;

/// A piece of what is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Bytes(Vec<u8>),
    /// Name of a key; in base64 where true.
    Key(usize, bool),
    /// The token last seen of a key, plus so much.
    Cas(usize, u64),
}

/// What is sent on one connection before replies are compared.
#[derive(Clone, Debug)]
pub(super) struct Step {
    pub(super) conn: usize,
    /// Keys it names.
    pub(super) keys: Vec<usize>,
    /// Where it is cut in two pieces, if it is: that many bytes behind its start, or behind its start again.
    pub(super) cut: Option<usize>,
    commands: Vec<Vec<Part>>,
}

impl Step {
    fn new(conn: usize, commands: Vec<Vec<Part>>) -> Self {
        let mut keys = Vec::new();
        for part in commands.iter().flatten() {
            if let Part::Key(key, _) | Part::Cas(key, _) = part
                && !keys.contains(key)
            {
                keys.push(*key);
            }
        }
        Self { conn, keys, cut: None, commands }
    }

    /// How many commands are in it.
    pub(super) fn count(&self) -> u64 {
        self.commands.len() as u64
    }

    /// Its commands, each a step.
    pub(super) fn apart(&self) -> impl Iterator<Item = Self> {
        self.commands.iter().map(|command| Self::new(self.conn, vec![command.clone()]))
    }

    /// Its bytes, in a world of names, with the tokens that `cas` gives.
    pub(super) fn bytes(&self, world: &str, cas: impl Fn(usize) -> Option<u64>) -> Vec<u8> {
        let mut out = Vec::new();
        for part in self.commands.iter().flatten() {
            match part {
                Part::Bytes(bytes) => out.extend_from_slice(bytes),
                Part::Key(key, false) => out.extend_from_slice(name(world, *key).as_bytes()),
                Part::Key(key, true) => out.extend_from_slice(base64(name(world, *key).as_bytes()).as_bytes()),
                Part::Cas(key, more) => {
                    // Without one: older than any that either has given.
                    let token = cas(*key).map_or(1, |token| token.wrapping_add(*more));
                    out.extend_from_slice(token.to_string().as_bytes());
                }
            }
        }
        out
    }

    pub(super) fn shares_key(&self, other: &Self) -> bool {
        self.keys.is_empty() || self.keys.iter().any(|key| other.keys.contains(key))
    }

    /// The key of a name in a reply; without a name that of the step, where there is only one.
    pub(super) fn key_of(&self, named: Option<&[u8]>) -> Option<usize> {
        match named {
            Some(named) => self.keys.iter().copied().find(|key| {
                let ending = name("", *key);
                named.ends_with(ending.as_bytes())
            }),
            None => self.keys.first().copied().filter(|_| self.keys.len() == 1),
        }
    }
}

fn name(world: &str, key: usize) -> String {
    match key {
        LONGEST => format!("{world:n<250}"),
        TOO_LONG => format!("{world:n<251}"),
        SHORTEST => "z".into(),
        BINARY => format!("{world}\0 \n\u{e9}"),
        _ => format!("{world}k{key}"),
    }
}

fn base64(bytes: &[u8]) -> String {
    use base64::Engine;
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

/// Draws steps.
pub(super) struct Generator {
    random: Random,
}

const FLAGS: [&str; 8] = ["0", "0", "0", "77777", "65535", "4294967295", "007", "0000000000009"];
const TIMES: [&str; 19] = [
    "0",
    "0",
    "0",
    "0",
    "0",
    "1000",
    "1000",
    "5000",
    "5000",
    "100000",
    "2000000000",
    "-1",
    "2592000",
    "2592001",
    "abc",
    "2147483647",
    "-2147483648",
    "9223372036854775808",
    "0010",
];
/// What one of the two takes for a number and the other does not, or takes for another: never where its answer would
/// be kept back, or the two would go apart in silence.
const ODD_FLAGS: [&str; 7] = ["4294967296", "4294967296", "+5", "\t5", "5\t", "18446744073709551616", "1x"];
const ODD_TIMES: [&str; 9] =
    ["2147483648", "4294967295", "4294967296", "-2147483649", "+1000", "\t9", "1.5", "-", "-0"];
const NUMBERS: [&str; 20] = [
    "0",
    "1",
    "1",
    "7",
    "99",
    "10",
    "18446744073709551615",
    "18446744073709551616",
    "-1",
    "007",
    "x",
    "4294967295",
    "4294967296",
    "00000000001",
    "0000000000000000000001",
    "00000000000000000000001",
    "+1",
    "0x10",
    "9223372036854775808",
    "1x",
];
const LENGTHS: [&str; 7] = ["-1", "abc", "+3", "3x", "2147483646", "4294967296", "18446744073709551616"];
const VALUES: [&str; 15] = [
    "0",
    "5",
    "99",
    "18446744073709551615",
    "  7",
    "7  ",
    "12 junk",
    "-3",
    "",
    "00100",
    "123456789012345678901",
    "a",
    "10",
    "+5",
    "000000000000000000000000009",
];
const NOISE: [&str; 64] = [
    "",
    " ",
    "get",
    "set",
    "GET",
    "gets",
    "gat",
    "gats",
    "gat 0",
    "mg",
    "ms",
    "md",
    "ma",
    "me",
    "foo bar",
    "get  ",
    "delete",
    "incr",
    "decr",
    "mn x",
    "mn",
    "verbosity",
    "verbosity 1",
    "verbosity 0 noreply",
    "verbosity x",
    "verbosity -1",
    "verbosity 4294967296",
    "verbosity 1 2",
    "stats nothing",
    "stats reset",
    "slabs",
    "touch",
    "cas",
    "add",
    "replace",
    "append",
    "prepend",
    "noreply",
    "foo noreply",
    "delete noreply",
    "touch noreply",
    "cache_memlimit",
    "cache_memlimit 7",
    "cache_memlimit x",
    "cache_memlimit 1 noreply",
    "cache_memlimit 4294967296",
    "shutdown",
    "shutdown noreply",
    "shutdown graceful",
    "debugtime 5",
    "version",
    "version x",
    "lru",
    "lru tune",
    "lru_crawler",
    "extstore",
    "misbehave",
    "ms z",
    "mx z",
    "m",
    "\t",
    "get\tz",
    "  get z",
    "verbosity noreply",
];
const FLUSHES: [&str; 10] = [
    "flush_all",
    "flush_all 0",
    "flush_all noreply",
    "flush_all 1000",
    "flush_all 0 noreply",
    "flush_all -1",
    "flush_all x",
    "flush_all noreply 0",
    "flush_all noreply x noreply",
    "flush_all 2147483648",
];
/// Flags of meta commands, `#` standing for a number, `=` for a time, `?` for a token.
const GET_FLAGS: [&str; 25] = [
    "v",
    "k",
    "c",
    "f",
    "s",
    "t",
    "h",
    "l",
    "q",
    "b",
    "Oabc",
    "N=",
    "R#",
    "T=",
    "E#",
    "v",
    "x",
    "O12345678",
    "u",
    "C?",
    "t",
    "c",
    "P",
    "Lx",
    "R=",
];
const SET_FLAGS: [&str; 25] = [
    "T=", "F#", "C?", "I", "MS", "ME", "MA", "MP", "MR", "k", "c", "q", "b", "Oxy", "E#", "N=", "s", "MZ", "t", "S#",
    "Ma", "c", "s", "T=", "M",
];
const DELETE_FLAGS: [&str; 12] = ["q", "I", "C?", "T=", "x", "k", "b", "Oq", "E#", "I", "C0", "F#"];
const ARITHMETIC_FLAGS: [&str; 20] =
    ["C0", "t", "c", "v", "q", "k", "D#", "J#", "N=", "T=", "C?", "MI", "MD", "M+", "E#", "b", "Oz", "v", "M-", "N0"];
/// Flags that are none, that are known but lack what must follow, and that are too long.
const BENT_FLAGS: [&str; 24] = [
    "z",
    "Z",
    "A",
    "1",
    "-",
    "_",
    "!",
    "\u{e9}",
    "T",
    "F",
    "C",
    "E",
    "D",
    "J",
    "M",
    "N",
    "R",
    "O",
    "Tx",
    "Cx",
    "T-",
    "O1234567890123456789012345678901",
    "O12345678901234567890123456789012",
    "b",
];

impl Generator {
    pub(super) fn new(seed: u64) -> Self {
        Self { random: Random::new(seed) }
    }

    /// The next one: a command most of the time, sometimes several at once.
    pub(super) fn step(&mut self) -> Step {
        let conn = self.below(CONNS);
        let count = if self.chance(10) { 1 + self.below(5) } else { 1 };
        let commands = (0..count).map(|_| self.command()).collect();
        let cut = self.chance(5).then(|| 1 + self.below(200));
        Step { cut, ..Step::new(conn, commands) }
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.random.below(bound as u64)).expect("below a usize")
    }

    /// True `percent` times in a hundred.
    fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    fn one<'a>(&mut self, of: &[&'a str]) -> &'a str {
        of[self.below(of.len())]
    }

    fn command(&mut self) -> Vec<Part> {
        let (mut words, data) = match self.below(100) {
            0..12 => (self.retrieval(), None),
            12..38 => self.storage(),
            38..48 => (self.simple(), None),
            48..62 => (self.meta("mg", &GET_FLAGS), None),
            62..78 => self.meta_set(),
            78..84 => (self.meta("md", &DELETE_FLAGS), None),
            84..92 => (self.meta("ma", &ARITHMETIC_FLAGS), None),
            92..94 => (self.meta("me", &["b", "v"]), None),
            94..95 if self.chance(6) => (vec![text(self.one(&FLUSHES))], None),
            94..95 if self.chance(10) => (self.long_line(), None),
            95..96 if self.chance(10) => (vec![text("quit")], None),
            _ => (vec![text(self.one(&NOISE))], None),
        };
        // A large block that is not taken for one is a line that is too long: the end comes before all of it was read.
        let small = data.as_ref().is_none_or(|data: &Vec<u8>| data.len() < 1_000);
        let flushes = words.first().is_some_and(|word| FLUSHES.iter().any(|flush| *word == text(flush)));
        let plain = !is_odd(&words) && !has_token(&words) && !flushes;
        if self.chance(8) && small && plain {
            self.bend(&mut words);
        }
        // Where a block follows, a tab would make words of it others than they were.
        let (tabs, mut parts) = (data.is_none() && !has_token(&words), Vec::new());
        for (index, word) in words.into_iter().enumerate() {
            if index > 0 {
                parts.extend(self.space(tabs));
            }
            parts.extend(word);
        }
        if self.chance(1) {
            parts.extend(text(" "));
        }
        parts.push(Part::Bytes(if self.chance(2) { b"\n".to_vec() } else { b"\r\n".to_vec() }));
        parts.extend(data.map(Part::Bytes));
        parts
    }

    fn space(&mut self, tabs: bool) -> Vec<Part> {
        text(match self.below(300) {
            0..3 => "  ",
            3 if tabs => "\t",
            4 if tabs => " \t ",
            _ => " ",
        })
    }

    fn key(&mut self) -> Vec<Part> {
        match self.below(200) {
            0..2 => vec![Part::Key(LONGEST, false)],
            2..4 => vec![Part::Key(TOO_LONG, false)],
            4 => text("\u{e9}\u{1}"),
            5..8 => vec![Part::Key(SHORTEST, false)],
            8 => Vec::new(),
            _ => vec![Part::Key(self.below(KEYS), false)],
        }
    }

    /// A name in base64, or what only looks like one.
    fn coded_key(&mut self, key: usize) -> Vec<Part> {
        match self.below(40) {
            0 => vec![Part::Key(key, true), Part::Bytes(b"=".to_vec())],
            1 => vec![Part::Bytes(b"A".to_vec()), Part::Key(key, true)],
            2 => vec![Part::Bytes(b"-_".to_vec()), Part::Key(key, true)],
            3 => text("===="),
            4 => vec![Part::Key(LONGEST, true)],
            5 => vec![Part::Key(SHORTEST, true)],
            6..14 => vec![Part::Key(BINARY, true)],
            _ => vec![Part::Key(key, true)],
        }
    }

    /// A line longer than any command may be; most are only keys.
    fn long_line(&mut self) -> Vec<Vec<Part>> {
        let verb = self.one(&["get", "gets", "gat 0", "gats 0", "mg", "set", "delete", "nothing"]);
        let mut words = vec![text(verb)];
        words.extend((0..300 + self.below(900)).map(|_| self.key()));
        words
    }

    fn retrieval(&mut self) -> Vec<Vec<Part>> {
        let verb = self.one(&["get", "get", "gets", "gets", "gat", "gats"]);
        let mut words = vec![text(verb)];
        if verb.starts_with("gat") {
            words.push(text(self.time()));
        }
        let count = if self.chance(2) { 20 + self.below(40) } else { 1 + self.below(3) * self.below(2) };
        words.extend((0..count).map(|_| self.key()));
        words
    }

    fn value(&mut self) -> Vec<u8> {
        match self.below(400) {
            0 => self.letters(1_048_400, 400),
            1..4 => self.letters(4_000, 200),
            4..6 => self.letters(65_500, 100),
            6..250 => self.one(&VALUES).as_bytes().to_vec(),
            _ => self.letters(0, 60),
        }
    }

    /// From `least` bytes on, fewer than `more` more.
    fn letters(&mut self, least: usize, more: usize) -> Vec<u8> {
        let len = least + self.below(more);
        let first = b'a' + u8::try_from(self.below(26)).expect("below 26");
        (0..len).map(|at| if at % 7 == 0 { first } else { b'm' }).collect()
    }

    fn storage(&mut self) -> (Vec<Vec<Part>>, Option<Vec<u8>>) {
        let verb = self.one(&["set", "set", "set", "add", "replace", "append", "prepend", "cas"]);
        let (key, value) = (self.below(KEYS), self.value());
        let name = if self.chance(99) { vec![Part::Key(key, false)] } else { self.key() };
        let flags = if self.chance(1) { self.one(&ODD_FLAGS) } else { self.one(&FLAGS) };
        let time = self.time();
        let (len, data) = self.data(value);
        let mut words = vec![text(verb), name, text(flags), text(time), text(&len)];
        if verb == "cas" {
            words.push(vec![self.token(key)]);
        }
        // One of the two may refuse a value of nearly 1 MiB, in silence.
        if !is_odd(&words) && data.len() < 1_000_000 && self.chance(6) {
            words.push(text("noreply"));
        }
        (words, Some(data))
    }

    /// A token: the last one seen of the key, or near it.
    fn token(&mut self, key: usize) -> Part {
        Part::Cas(key, if self.chance(75) { 0 } else { 1_000_000 + self.below(3) as u64 })
    }

    /// The length that is told of a value, and the block; one in fifty is longer than told, or ends otherwise.
    fn data(&mut self, mut value: Vec<u8>) -> (String, Vec<u8>) {
        // A large block that is no block is a line that is too long: the end comes before all was read of it.
        let len = match self.below(150) {
            0 if !value.is_empty() && value.len() < 1_000 => (value.len() - 1).to_string(),
            1 if value.len() < 1_000 => (value.len() + 1).to_string(),
            2 if value.len() < 1_000 => format!("00{}", value.len()),
            3..5 if value.len() < 1_000 => self.one(&LENGTHS).into(),
            _ => value.len().to_string(),
        };
        value.extend_from_slice(b"\r\n");
        if value.len() < 1_000 && self.chance(1) {
            let end = self.one(&["XX\r\n", "\n", "\r", "\r\n\r\n", " \r\n"]);
            value.splice(value.len() - 2.., end.bytes());
        }
        (len, value)
    }

    fn simple(&mut self) -> Vec<Vec<Part>> {
        let verb = self.one(&["delete", "incr", "incr", "decr", "touch"]);
        let mut words = vec![text(verb), self.key()];
        match verb {
            "incr" | "decr" => words.push(text(self.one(&NUMBERS))),
            "touch" => words.push(text(self.time())),
            _ if self.chance(5) => words.push(text(self.one(&["0", "1", "x"]))),
            _ => (),
        }
        if !is_odd(&words) && (verb != "delete" || words.len() == 2) && self.chance(6) {
            words.push(text("noreply"));
        }
        words
    }

    fn time(&mut self) -> &'static str {
        if self.chance(1) { self.one(&ODD_TIMES) } else { self.one(&TIMES) }
    }

    fn meta(&mut self, verb: &str, flags: &[&str]) -> Vec<Vec<Part>> {
        let key = self.below(KEYS);
        let name = if self.chance(99) { vec![Part::Key(key, false)] } else { self.key() };
        let mut words = vec![text(verb), name];
        self.add_flags(&mut words, flags, key);
        words
    }

    fn meta_set(&mut self) -> (Vec<Vec<Part>>, Option<Vec<u8>>) {
        let (key, value) = (self.below(KEYS), self.value());
        let (len, data) = self.data(value);
        let mut words = vec![text("ms"), vec![Part::Key(key, false)], text(&len)];
        self.add_flags(&mut words, &SET_FLAGS, key);
        (words, Some(data))
    }

    fn add_flags(&mut self, words: &mut Vec<Vec<Part>>, flags: &[&str], key: usize) {
        // More than twenty words are too many.
        let count = if self.chance(1) { 16 + self.below(6) } else { self.below(5) };
        for _ in 0..count {
            let flag = if self.chance(4) { self.one(&BENT_FLAGS) } else { self.one(flags) };
            let (letter, rest) = flag.split_at(flag.ceil_char_boundary(1));
            let word = match rest {
                "#" => text(&format!("{letter}{}", self.one(&NUMBERS))),
                "=" => text(&format!("{letter}{}", self.time())),
                "?" => vec![Part::Bytes(letter.as_bytes().to_vec()), self.token(key)],
                _ => text(flag),
            };
            if flag == "b" && self.chance(90) {
                words[1] = self.coded_key(key);
            }
            words.push(word);
        }
    }

    /// A word too few, too many, twice, elsewhere, or another one.
    fn bend(&mut self, words: &mut Vec<Vec<Part>>) {
        let at = self.below(words.len());
        match self.below(5) {
            0 => drop(words.remove(at)),
            1 => words.insert(at, words[at].clone()),
            // A length in the place of a time would make an object that expires while the test runs.
            2 if words.len() < 5 => {
                let with = self.below(words.len());
                words.swap(at, with);
            }
            3 => words[at] = text(self.one(&["0", "x", "-1", "noreply", "99999999999999999999", "q", "k0"])),
            _ => words.push(text(self.one(&["0", "noreply", "q", "extra", "1"]))),
        }
        if words.is_empty() {
            words.push(text(""));
        }
    }
}

/// Whether a word is taken otherwise by one of the two, if as a number: in a text command or behind a flag's letter.
fn is_odd(words: &[Vec<Part>]) -> bool {
    let odd = |bytes: &[u8]| ODD_FLAGS.iter().chain(&ODD_TIMES).any(|odd| odd.as_bytes() == bytes);
    words
        .iter()
        .flatten()
        .any(|part| matches!(part, Part::Bytes(bytes) if odd(bytes) || odd(&bytes[bytes.len().min(1)..])))
}

fn has_token(words: &[Vec<Part>]) -> bool {
    words.iter().flatten().any(|part| matches!(part, Part::Cas(..)))
}

fn text(word: &str) -> Vec<Part> {
    vec![Part::Bytes(word.as_bytes().to_vec())]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn a_seed_gives_the_same_steps_and_all_verbs() {
        let draw = |seed| -> Vec<Vec<u8>> {
            let mut generator = Generator::new(seed);
            (0..5_000).map(|_| generator.step().bytes("w-", |_| Some(7))).collect()
        };
        assert_eq!(draw(3), draw(3));
        assert_ne!(draw(3), draw(4));
        let drawn = draw(3);
        let verbs: BTreeSet<&[u8]> = drawn.iter().filter_map(|step| step.split(|byte| *byte == b' ').next()).collect();
        for verb in ["get", "gets", "gat", "gats", "set", "add", "replace", "append", "prepend", "cas", "delete"] {
            assert!(verbs.contains(verb.as_bytes()), "{verb}");
        }
        for verb in ["incr", "decr", "touch", "mg", "ms", "md", "ma", "me"] {
            assert!(verbs.contains(verb.as_bytes()), "{verb}");
        }
    }

    #[test]
    fn places_are_filled_in_for_each_server() {
        let step = Step::new(0, vec![vec![Part::Key(3, false), Part::Bytes(b" ".to_vec()), Part::Cas(3, 1)]]);
        assert_eq!(step.bytes("w1-", |_| Some(41)), b"w1-k3 42");
        assert_eq!(step.bytes("w2-", |_| None), b"w2-k3 1");
        assert_eq!(
            (step.key_of(Some(b"w1-k3")), step.key_of(None), step.key_of(Some(b"other"))),
            (Some(3), Some(3), None)
        );
    }
}
