//! A memcached connection's bytes, cut into lines, keys of long lines and bodies as a session does: the same events
//! however the bytes arrive, progress with every step, and never more held than one line or one key.

use crate::Outcomes;
use crate::names::names;
use crate::pieces::{Log, readings};
use herd_core::door::memcached::{Command, KeyStep, KeyStream, parse_line, reply, split_line};
use herd_core::limits::{MEMCACHED_COMMAND_MAX_BYTES, MEMCACHED_KEY_MAX_BYTES};

/// What the corpus reaches.
#[rustfmt::skip]
pub const OUTCOMES: &[&[&str]] = &[
    STEPS, REPLIES, &["line", "refused line", "body", "long line", "long line that is no get", "quit"],
    &["opened get", "opened gets", "opened gat", "opened gats", "nothing after an error"],
];

/// Words of the driver; a run of spaces brings a line over the length at which keys are streamed.
#[rustfmt::skip]
pub const DICTIONARY: &[&[u8]] = &[
    b"get ", b"gets ", b"gat ", b"gats ", b"gat 0 ", b"gats -1 ", b"set k 0 0 2\r\nab\r\n", b"\r\n", b"\n", b"\r",
    b" ", b"noreply", b"quit\r\n", b"ms k 2\r\nab\r\n", b"key ", &[b' '; 1024], &[b'k'; 250], &[b'k'; 251],
];

names!(step_name, STEPS, KeyStep<'_> {
    KeyStep::Key { .. } => "key",
    KeyStep::More { .. } => "more is needed",
    KeyStep::End { .. } => "end",
    KeyStep::Refused { .. } => "refused",
});

/// The replies of the key stream; a test compares them with its source.
pub const REPLIES: &[&str] = &["END", "BAD_FORMAT", "BAD_EXPTIME", "LINE_TOO_LONG"];

enum State {
    Lines,
    Keys(KeyStream),
    Skip(u64),
    Closed,
}

/// The model of a session.
struct Session {
    held: Vec<u8>,
    state: State,
    log: Log,
    outcomes: Outcomes,
    steps: usize,
}

/// Runs the target.
pub fn run(input: &[u8]) -> Outcomes {
    let mut outcomes = Outcomes::default();
    let mut first = None;
    for pieces in readings(input) {
        let mut session = Session::new();
        for piece in &pieces {
            session.feed(piece);
        }
        assert!(session.steps <= 2 * input.len() + 2 * pieces.len() + 2, "{} steps", session.steps);
        session.outcomes.names().iter().for_each(|name| outcomes.add(name));
        match &first {
            None => first = Some(session.log),
            Some(first) => assert_eq!(&session.log, first, "in {} pieces", pieces.len()),
        }
    }
    outcomes
}

impl Session {
    fn new() -> Self {
        let (log, outcomes) = (Log::default(), Outcomes::default());
        Self { held: Vec::new(), state: State::Lines, log, outcomes, steps: 0 }
    }

    /// Takes in what has arrived.
    fn feed(&mut self, piece: &[u8]) {
        let mut held = std::mem::take(&mut self.held);
        held.extend_from_slice(piece);
        let mut used = 0;
        loop {
            self.steps += 1;
            let rest = &held[used..];
            let taken = match &self.state {
                State::Lines => self.line(rest),
                State::Keys(stream) => self.keys(*stream, rest),
                State::Skip(left) => self.skip(*left, rest),
                State::Closed => Some(rest.len()),
            };
            match taken {
                Some(bytes) if bytes > 0 => used += bytes,
                _ => break,
            }
        }
        held.drain(..used);
        let most = match self.state {
            State::Lines => MEMCACHED_COMMAND_MAX_BYTES + 1,
            State::Keys(_) => MEMCACHED_KEY_MAX_BYTES + 1,
            State::Skip(_) | State::Closed => 0,
        };
        assert!(held.len() <= most, "{} bytes are held", held.len());
        self.held = held;
    }

    /// One line; `None` if more is needed.
    fn line(&mut self, input: &[u8]) -> Option<usize> {
        let line = split_line(input);
        let least = line.map_or(input.strip_suffix(b"\r").unwrap_or(input), |(line, _)| line);
        if least.len() > MEMCACHED_COMMAND_MAX_BYTES {
            return Some(self.open(input));
        }
        let (line, used) = line?;
        let parsed = parse_line(line);
        self.log.event(&parsed);
        self.outcomes.add("line");
        match parsed {
            Ok(Command::Store(store)) => self.begin_skip(u64::from(store.bytes) + 2),
            Ok(Command::MetaSet { bytes, .. }) => self.begin_skip(u64::from(bytes) + 2),
            Ok(Command::Quit) => {
                self.outcomes.add("quit");
                self.state = State::Closed;
            }
            Ok(_) => {}
            Err(error) => {
                self.outcomes.add("refused line");
                if error.swallow_bytes > 0 {
                    self.begin_skip(u64::from(error.swallow_bytes));
                }
                if error.close {
                    self.state = State::Closed;
                }
            }
        }
        Some(used)
    }

    fn begin_skip(&mut self, bytes: u64) {
        self.outcomes.add("body");
        self.state = State::Skip(bytes);
    }

    fn skip(&mut self, left: u64, input: &[u8]) -> Option<usize> {
        let bytes = left.min(input.len() as u64);
        self.state = if bytes == left { State::Lines } else { State::Skip(left - bytes) };
        Some(bytes as usize)
    }

    /// A line too long for any command but a `get`; the bytes used.
    fn open(&mut self, input: &[u8]) -> usize {
        self.outcomes.add("long line");
        match KeyStream::open(input) {
            Ok((stream, used)) => {
                assert!((4..=input.len()).contains(&used), "the word at least is used");
                self.log.event(&stream.how());
                self.outcomes.add(match (stream.how().touch.is_some(), stream.how().with_cas) {
                    (false, false) => "opened get",
                    (false, true) => "opened gets",
                    (true, false) => "opened gat",
                    (true, true) => "opened gats",
                });
                self.state = State::Keys(stream);
                used
            }
            Err(error) => {
                assert!(error.close);
                self.log.event(&error);
                match error.reply {
                    b"" => self.outcomes.add("long line that is no get"),
                    reply => self.reply(reply),
                }
                self.state = State::Closed;
                input.len()
            }
        }
    }

    /// One step of a line of keys; `None` if more is needed.
    fn keys(&mut self, mut stream: KeyStream, input: &[u8]) -> Option<usize> {
        let step = stream.step(input);
        self.state = State::Keys(stream);
        self.outcomes.add(step_name(&step));
        match step {
            KeyStep::Key { key, used } => {
                assert!((1..=MEMCACHED_KEY_MAX_BYTES).contains(&key.len()));
                assert!(!key.contains(&b' ') && !key.contains(&b'\n') && input[..used].ends_with(key));
                self.log.event(&key);
                Some(used)
            }
            KeyStep::More { used } => Some(used),
            KeyStep::End { used, reply } => {
                self.log.event(&reply);
                self.reply(reply);
                self.state = State::Lines;
                assert!(used > 0, "a line end has bytes");
                Some(used)
            }
            KeyStep::Refused { error, used } => {
                self.log.event(&error);
                self.reply(error.reply);
                if error.close {
                    self.state = State::Closed;
                } else {
                    assert!(used > 0, "a session reads on only after a step that used bytes");
                }
                Some(used)
            }
        }
    }

    fn reply(&mut self, text: &[u8]) {
        self.outcomes.add(match text {
            reply::END => "END",
            reply::BAD_FORMAT => "BAD_FORMAT",
            reply::BAD_EXPTIME => "BAD_EXPTIME",
            reply::LINE_TOO_LONG => "LINE_TOO_LONG",
            b"" => "nothing after an error",
            other => panic!("a reply without a name: {other:?}"),
        });
    }
}
