//! Random steps: commands of the text and the meta protocol, most of them right, many bent, some only noise.
//!
//! Names and tokens of `cas` stand in a step as places, filled in when it is sent: so a step can be sent again, in
//! another world of names, and to each server with the token that this server gave.

use crate::differ::talk::CONNS;
use crate::values::Random;

/// Names shared by all connections.
const KEYS: usize = 10;
/// Numbers of a name as long as may be, and of one that is longer.
const LONGEST: usize = KEYS;
const TOO_LONG: usize = KEYS + 1;

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
        Self { conn, keys, commands }
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

const FLAGS: [&str; 6] = ["0", "0", "77777", "65535", "4294967295", "-1"];
/// More than a client's flags can be: told apart by both, and kept by one.
const WIDE: &str = "4294967296";
const TIMES: [&str; 10] = ["0", "0", "0", "1000", "5000", "100000", "2000000000", "-1", "2592001", "abc"];
const NUMBERS: [&str; 10] =
    ["0", "1", "7", "99", "10", "18446744073709551615", "18446744073709551616", "-1", "007", "x"];
const VALUES: [&str; 12] =
    ["0", "5", "99", "18446744073709551615", "  7", "7  ", "12 junk", "-3", "", "00100", "123456789012345678901", "a"];
const NOISE: [&str; 22] = [
    "",
    " ",
    "get",
    "set",
    "GET",
    "gets",
    "mg",
    "ms",
    "md",
    "ma",
    "me",
    "foo bar",
    "get  ",
    "delete",
    "incr",
    "mn x",
    "verbosity",
    "verbosity 1",
    "stats nothing",
    "slabs",
    "touch",
    "cas",
];
/// Flags of meta commands, `#` standing for a number, `=` for a time, `?` for a token.
const GET_FLAGS: [&str; 18] =
    ["v", "k", "c", "f", "s", "t", "h", "l", "q", "b", "Oabc", "N=", "R#", "T=", "E#", "v", "x", "O12345678"];
const SET_FLAGS: [&str; 20] =
    ["T=", "F#", "C?", "I", "MS", "ME", "MA", "MP", "MR", "k", "c", "q", "b", "Oxy", "E#", "N=", "s", "MZ", "t", "S#"];
const DELETE_FLAGS: [&str; 9] = ["q", "I", "C?", "T=", "x", "k", "b", "Oq", "E#"];
const ARITHMETIC_FLAGS: [&str; 18] =
    ["C0", "t", "c", "v", "q", "k", "D#", "J#", "N=", "T=", "C?", "MI", "MD", "M+", "E#", "b", "Oz", "v"];

impl Generator {
    pub(super) fn new(seed: u64) -> Self {
        Self { random: Random::new(seed) }
    }

    /// The next one: a command most of the time, sometimes several at once.
    pub(super) fn step(&mut self) -> Step {
        let conn = self.below(CONNS);
        let count = if self.chance(10) { 1 + self.below(5) } else { 1 };
        let commands = (0..count).map(|_| self.command()).collect();
        Step::new(conn, commands)
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
            94..95 if self.chance(4) => {
                (vec![text(self.one(&["flush_all", "flush_all 0", "flush_all noreply"]))], None)
            }
            95..96 if self.chance(10) => (vec![text("quit")], None),
            _ => (vec![text(self.one(&NOISE))], None),
        };
        // A large block that is not taken for one is a line that is too long: the end comes before all of it was read.
        let small = data.as_ref().is_none_or(|data: &Vec<u8>| data.len() < 1_000);
        let plain = !words.contains(&text(WIDE)) && !words.iter().flatten().any(|part| matches!(part, Part::Cas(..)));
        if self.chance(8) && small && plain {
            self.bend(&mut words);
        }
        let mut parts = Vec::new();
        for (index, word) in words.into_iter().enumerate() {
            if index > 0 {
                parts.push(Part::Bytes(if self.chance(1) { b"  ".to_vec() } else { b" ".to_vec() }));
            }
            parts.extend(word);
        }
        parts.push(Part::Bytes(if self.chance(2) { b"\n".to_vec() } else { b"\r\n".to_vec() }));
        parts.extend(data.map(Part::Bytes));
        parts
    }

    fn key(&mut self) -> Vec<Part> {
        match self.below(200) {
            0 => vec![Part::Key(LONGEST, false)],
            1 => vec![Part::Key(TOO_LONG, false)],
            2 => text("\u{e9}\u{1}"),
            _ => vec![Part::Key(self.below(KEYS), false)],
        }
    }

    fn retrieval(&mut self) -> Vec<Vec<Part>> {
        let verb = self.one(&["get", "get", "gets", "gets", "gat", "gats"]);
        let mut words = vec![text(verb)];
        if verb.starts_with("gat") {
            words.push(text(self.one(&TIMES)));
        }
        for _ in 0..1 + self.below(3) * self.below(2) {
            words.push(self.key());
        }
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
        let flags = if self.chance(1) { WIDE } else { self.one(&FLAGS) };
        let time = self.one(&TIMES);
        let (len, data) = self.data(value);
        let mut words = vec![text(verb), name, text(flags), text(time), text(&len)];
        if verb == "cas" {
            words.push(vec![self.token(key)]);
        }
        if flags != WIDE && self.chance(6) {
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
            1 if value.len() < 1_000 => "-1".into(),
            2 if value.len() < 1_000 => "abc".into(),
            _ => value.len().to_string(),
        };
        value.extend_from_slice(b"\r\n");
        if value.len() < 1_000 && self.chance(1) {
            value.splice(value.len() - 2.., *b"XX\r\n");
        }
        (len, value)
    }

    fn simple(&mut self) -> Vec<Vec<Part>> {
        let verb = self.one(&["delete", "incr", "incr", "decr", "touch"]);
        let mut words = vec![text(verb), self.key()];
        match verb {
            "incr" | "decr" => words.push(text(self.one(&NUMBERS))),
            "touch" => words.push(text(self.one(&TIMES))),
            _ if self.chance(5) => words.push(text(self.one(&["0", "1", "x"]))),
            _ => (),
        }
        if (verb != "delete" || words.len() == 2) && self.chance(6) {
            words.push(text("noreply"));
        }
        words
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
        for _ in 0..self.below(5) {
            let flag = self.one(flags);
            let (letter, rest) = flag.split_at(1);
            let word = match rest {
                "#" => text(&format!("{letter}{}", self.one(&NUMBERS))),
                "=" => text(&format!("{letter}{}", self.one(&TIMES))),
                "?" => vec![Part::Bytes(letter.as_bytes().to_vec()), self.token(key)],
                _ => text(flag),
            };
            if flag == "b" && self.chance(90) {
                words[1] = vec![Part::Key(key, true)];
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
