//! What a client says at a door for an [`Ask`], and what the node's answer means.
//!
//! An answer that tells nothing of the object (it can't be reached, it is full, busy) means that nothing was done: the
//! node says so. "Timed out" and "unknown" alone leave it open.

use super::check::{Answer, Ask, Guarded, When};
use herd_client::connection::{Body, Connection, Delivery, Event, Patience};
use herd_client::limits::COPIED_BODY_MAX_BYTES;
use herd_client::{Condition, PutOptions, Reply, Request};
use herd_core::ErrorKind;
use herd_core::entry::Token;
use herd_core::limits::LOCK_LEASE_MAX_MS;
use herd_core::method::{items, push_item};
use herd_core::wire::{Own, Status};
use std::collections::{BTreeMap, VecDeque};

/// How long the node may take; the client gives nothing up by itself.
const PATIENCE: Patience = Patience { begin_ms: 10_000, first_ms: 10_000, then_ms: u32::MAX as u64 };

/// Why what brings an object was not taken, where the herd held nothing and that took too long to change.
const NOT_HELD: &str = "not all nodes have the herd's map";

/// The answer to one request: the number it was asked under, what it means, and the version it tells.
pub(super) type Heard = (u64, Answer, Option<u64>);

/// A connection's protocol.
pub(super) enum Door {
    Memcached(Lines),
    Http(Lines),
    Wire(Box<Wire>),
}

/// A protocol that answers in order.
#[derive(Default)]
pub(super) struct Lines {
    out: Vec<u8>,
    input: Vec<u8>,
    /// Numbers and names of the objects of each request, and what was asked.
    asked: VecDeque<(Vec<(u64, String)>, Ask)>,
}

/// Herd's wire, by the client's own connection.
pub(super) struct Wire {
    connection: Connection,
    out: Vec<u8>,
    asked: BTreeMap<u64, Asked>,
    /// Values that are sent in frames.
    bodies: BTreeMap<u64, Vec<u8>>,
    told: Option<Told>,
}

/// What nodes have told for the ids of requests.
#[derive(Clone, Copy)]
pub(super) struct Told {
    /// How far the highest clock is ahead of that of clients, ms.
    pub(super) ahead_ms: u64,
    /// The latest epoch.
    pub(super) epoch: u32,
}

/// What is said with a request besides what is asked.
#[derive(Clone, Copy, Default)]
pub(super) struct With {
    /// The token of the lock that it is about.
    pub(super) token: Option<Token>,
    /// Where the protocol has such, what is put lives for so many seconds.
    pub(super) lives: Option<u64>,
    /// Its own id, by the wire.
    pub(super) own: Option<Own>,
}

struct Asked {
    number: u64,
    ask: Ask,
    /// It has an id of its own, and was not asked before.
    is_first: bool,
    reply: Option<Reply>,
    bytes: Vec<u8>,
}

impl Door {
    /// One of each kind, by number.
    pub(super) fn new(kind: u64, now_ms: u64) -> Self {
        match kind % 3 {
            0 => Door::Memcached(Lines::default()),
            1 => Door::Http(Lines::default()),
            _ => {
                let (connection, out, asked, bodies) =
                    (Connection::new(now_ms), Vec::new(), <_>::default(), <_>::default());
                Door::Wire(Box::new(Wire { connection, out, asked, bodies, told: None }))
            }
        }
    }

    pub(super) fn name(&self) -> &'static str {
        match self {
            Door::Memcached(_) => "memcached",
            Door::Http(_) => "http",
            Door::Wire(_) => "wire",
        }
    }

    /// Whether this can be asked there.
    pub(super) fn takes(&self, ask: &Ask) -> bool {
        let when = |when: &When| matches!(when, When::Value(_));
        match (self, ask) {
            (_, Ask::Lose) => false,
            (_, Ask::Guarded { .. }) => matches!(self, Door::Wire(_)),
            (Door::Wire(_), Ask::Append { create, .. } | Ask::Count { create, .. }) => *create,
            (Door::Wire(_), _) => true,
            (Door::Memcached(_), Ask::Put { when: w, .. }) => !when(w),
            (Door::Memcached(_), Ask::Append { create, .. } | Ask::Count { create, .. }) => !create,
            (Door::Memcached(_), Ask::Get | Ask::Remove) => true,
            (Door::Http(_), Ask::Put { when: w, .. }) => !when(w),
            (Door::Http(_), Ask::Get | Ask::Remove) => true,
            _ => false,
        }
    }

    /// What its node has told for the ids of requests.
    pub(super) fn told(&self) -> Option<Told> {
        if let Door::Wire(wire) = self { wire.told } else { None }
    }

    /// Asks about an object.
    pub(super) fn ask(&mut self, number: u64, name: &str, ask: &Ask, now_ms: u64, with: With) {
        match self {
            Door::Memcached(lines) => {
                memcached(&mut lines.out, name, ask, with.lives);
                lines.asked.push_back((vec![(number, name.into())], ask.clone()));
            }
            Door::Http(lines) => {
                http(&mut lines.out, name, ask);
                lines.asked.push_back((vec![(number, name.into())], ask.clone()));
            }
            Door::Wire(wire) => wire.ask(number, name, ask, now_ms, with),
        }
    }

    /// Asks for several objects in one line; whether the door has such.
    pub(super) fn get_all(&mut self, keys: &[(u64, String)]) -> bool {
        let Door::Memcached(lines) = self else { return false };
        let names: Vec<&str> = keys.iter().map(|(_, name)| &name[..]).collect();
        lines.out.extend(format!("gets {}\r\n", names.join(" ")).bytes());
        lines.asked.push_back((keys.to_vec(), Ask::Get));
        true
    }

    /// Bytes to be sent.
    pub(super) fn output(&mut self) -> &[u8] {
        match self {
            Door::Memcached(lines) | Door::Http(lines) => &lines.out,
            Door::Wire(wire) => wire.pump(),
        }
    }

    /// So many of them were.
    pub(super) fn sent(&mut self, n: usize) {
        let out = match self {
            Door::Memcached(lines) | Door::Http(lines) => &mut lines.out,
            Door::Wire(wire) => &mut wire.out,
        };
        out.drain(..n);
    }

    /// Bytes came. Gives the answers that are whole now; an error is what no node may say.
    pub(super) fn hear(
        &mut self,
        bytes: &[u8],
        now_ms: u64,
        granted: &mut Vec<(u64, Token)>,
    ) -> Result<Vec<Heard>, String> {
        match self {
            Door::Memcached(lines) => lines.hear(bytes, memcached_answer),
            Door::Http(lines) => lines.hear(bytes, http_answer),
            Door::Wire(wire) => wire.hear(bytes, now_ms, granted),
        }
    }
}

/// The answer at the front of the input, if it is whole: what it means, the version, and its length.
type Answered = Result<Option<(Answer, Option<u64>, usize)>, String>;

/// How a door's answers are read.
type Reads = fn(&Ask, &[u8]) -> Answered;

impl Lines {
    fn hear(&mut self, bytes: &[u8], answer: Reads) -> Result<Vec<Heard>, String> {
        self.input.extend_from_slice(bytes);
        let mut heard = Vec::new();
        while !self.input.is_empty() {
            let (keys, ask) = self.asked.front_mut().ok_or_else(|| format!("nobody asked: {}", text(&self.input)))?;
            let Some((answer, version, used)) = answer(ask, &self.input)? else { break };
            // A value of a line of keys: those before it are absent.
            if self.input.starts_with(b"VALUE ") {
                let name = text(self.input[6..].split(|byte| *byte == b' ').next().unwrap_or_default());
                let at =
                    keys.iter().position(|(_, key)| *key == name).ok_or_else(|| format!("{name} was not asked for"))?;
                heard.extend(keys.drain(..at).map(|(number, _)| (number, Answer::Value(None), None)));
                heard.push((keys.remove(0).0, answer, version));
            } else {
                heard.extend(keys.drain(..).map(|(number, _)| (number, answer.clone(), version)));
                self.asked.pop_front();
            }
            self.input.drain(..used);
        }
        Ok(heard)
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(100)]).into_owned()
}

/// The first line, without its end, and how long it is with it.
fn line(bytes: &[u8]) -> Option<(&[u8], usize)> {
    let end = bytes.windows(2).position(|end| end == b"\r\n")?;
    Some((&bytes[..end], end + 2))
}

fn memcached(out: &mut Vec<u8>, name: &str, ask: &Ask, lives: Option<u64>) {
    let set = |out: &mut Vec<u8>, value: &[u8], flags: String| {
        out.extend(format!("ms {name} {} c{flags}\r\n", value.len()).bytes());
        out.extend(value);
        out.extend(b"\r\n");
    };
    match ask {
        Ask::Get => out.extend(format!("gets {name}\r\n").bytes()),
        Ask::Put { value, when } => {
            let flags = match when {
                When::Always | When::Value(_) => lives.map_or_else(String::new, |seconds| format!(" T{seconds}")),
                When::Absent => " ME".into(),
                When::Present => " MR".into(),
                When::Version(version) => format!(" C{version}"),
            };
            set(out, value, flags);
        }
        Ask::Append { value, .. } => set(out, value, " MA".into()),
        Ask::Count { delta, .. } => out.extend(format!("incr {name} {delta}\r\n").bytes()),
        _ => out.extend(format!("delete {name}\r\n").bytes()),
    }
}

fn memcached_answer(ask: &Ask, input: &[u8]) -> Answered {
    let Some((said, len)) = line(input) else { return Ok(None) };
    let words: Vec<&str> = std::str::from_utf8(said).map_err(|_| text(said))?.split(' ').collect();
    let cas = || words.get(1).and_then(|word| word.strip_prefix('c')?.parse().ok());
    let (answer, version) = match (ask, words[0]) {
        (_, "SERVER_ERROR") if text(said).contains("unknown") => (Answer::Open, None),
        (_, "SERVER_ERROR") if text(said).contains("out of memory") => (Answer::Full, None),
        (_, "SERVER_ERROR") => (Answer::Nothing, None),
        (Ask::Get, "END") => (Answer::Value(None), None),
        (Ask::Get, "VALUE") => {
            let size: usize = words.get(3).and_then(|word| word.parse().ok()).ok_or_else(|| text(said))?;
            let Some(rest) = input.get(len..len + size + 2) else { return Ok(None) };
            if !rest.ends_with(b"\r\n") {
                return Err(format!("no end of line behind a value: {}", text(&rest[size..])));
            }
            let version = words.get(4).and_then(|word| word.parse().ok());
            return Ok(Some((Answer::Value(Some(rest[..size].to_vec())), version, len + size + 2)));
        }
        (Ask::Put { .. } | Ask::Append { .. }, "HD") => (Answer::Done, cas()),
        (Ask::Put { when: When::Present, .. } | Ask::Append { .. }, "NS") => (Answer::Absent, None),
        (Ask::Put { when: When::Absent, .. }, "NS") => (Answer::Differs, None),
        (Ask::Put { when: When::Version(_), .. }, "EX") => (Answer::Differs, None),
        (Ask::Put { when: When::Version(_), .. }, "NF") => (Answer::Absent, None),
        (Ask::Count { .. } | Ask::Remove, "NOT_FOUND") => (Answer::Absent, None),
        (Ask::Remove, "DELETED") => (Answer::Done, None),
        (Ask::Count { .. }, number) => (Answer::Number(number.parse().map_err(|_| text(said))?), None),
        _ => return Err(format!("'{}' to {ask:?}", text(said))),
    };
    Ok(Some((answer, version, len)))
}

fn http(out: &mut Vec<u8>, name: &str, ask: &Ask) {
    let (method, value, field) = match ask {
        Ask::Get => ("GET", None, String::new()),
        Ask::Put { value, when } => {
            let field = match when {
                When::Always | When::Value(_) => String::new(),
                When::Absent => "If-None-Match: *\r\n".into(),
                When::Present => "If-Match: *\r\n".into(),
                When::Version(version) => format!("If-Match: \"{version}\"\r\n"),
            };
            ("PUT", Some(value), field)
        }
        _ => ("DELETE", None, String::new()),
    };
    out.extend(format!("{method} /o/default/{name} HTTP/1.1\r\nHost: localhost\r\n{field}").bytes());
    if let Some(value) = value {
        out.extend(format!("Content-Length: {}\r\n", value.len()).bytes());
    }
    out.extend(b"\r\n");
    out.extend(value.into_iter().flatten());
}

fn http_answer(ask: &Ask, input: &[u8]) -> Answered {
    let (mut at, mut status, mut length, mut version) = (0, 0, 0, None);
    loop {
        let Some((field, len)) = line(&input[at..]) else { return Ok(None) };
        at += len;
        if field.is_empty() {
            break;
        }
        let field = text(field).to_ascii_lowercase();
        if let Some(said) = field.strip_prefix("http/1.1 ") {
            status = said[..3].parse().map_err(|_| field.clone())?;
        } else if let Some(said) = field.strip_prefix("content-length: ") {
            length = said.parse().map_err(|_| field.clone())?;
        } else if let Some(tag) = field.strip_prefix("etag: ") {
            version = tag.trim_matches('"').parse().ok();
        }
    }
    let Some(body) = input.get(at..at + if status == 204 { 0 } else { length }) else { return Ok(None) };
    let is_open =
        ["\"timeout\"", "\"outcome_unknown\"", "\"outcome_lost\""].iter().any(|kind| text(body).contains(kind));
    let answer = match (ask, status) {
        (Ask::Get, 200) => Answer::Value(Some(body.to_vec())),
        (Ask::Get, 404) => Answer::Value(None),
        (Ask::Put { .. }, 200 | 201 | 204) => Answer::Done,
        (Ask::Put { .. }, 412) => Answer::Differs,
        (Ask::Remove, 204) => Answer::Done,
        (Ask::Remove, 404) => Answer::Absent,
        (_, 500..) if is_open => Answer::Open,
        (_, 507) => Answer::Full,
        (_, 500..) => Answer::Nothing,
        _ => return Err(format!("status {status} to {ask:?}: {}", text(body))),
    };
    let version = version.filter(|_| matches!(answer, Answer::Value(_) | Answer::Done));
    Ok(Some((answer, version, at + body.len())))
}

impl Wire {
    fn ask(&mut self, number: u64, name: &str, ask: &Ask, now_ms: u64, With { token, own, .. }: With) {
        let (method, arguments): (&str, Vec<Vec<u8>>) = match ask {
            Ask::Put { value, when: When::Value(expected) } => {
                ("compare-and-set", vec![expected.clone(), value.clone()])
            }
            Ask::Append { value, .. } => ("append", vec![value.clone()]),
            Ask::Count { delta, .. } => ("fetch-and-add", vec![delta.to_string().into_bytes()]),
            Ask::Take => ("get-and-remove", vec![]),
            Ask::Lock => ("lock", vec![b"exclusive".to_vec(), LOCK_LEASE_MAX_MS.to_string().into_bytes()]),
            Ask::Unlock { .. } => ("unlock", vec![token.expect("it holds the lock").to_string().into_bytes()]),
            Ask::Get | Ask::Put { .. } | Ask::Guarded { .. } | Ask::Remove | Ask::Lose => ("", vec![]),
        };
        let mut encoded = Vec::new();
        arguments.iter().for_each(|argument| push_item(&mut encoded, argument));
        let request = match ask {
            _ if !method.is_empty() => Request::execute(name, method, &arguments),
            Ask::Put { value, when } => {
                let condition = match when {
                    When::Always | When::Value(_) => Condition::None,
                    When::Absent => Condition::IfAbsent,
                    When::Present => Condition::IfPresent,
                    When::Version(version) => Condition::IfVersion(*version),
                };
                Request::put(name, value, &PutOptions { condition, ..PutOptions::default() })
            }
            Ask::Guarded { what, .. } => {
                let request = match what {
                    Guarded::Get => Request::get(name),
                    Guarded::Put(value) => Request::put(name, value, &PutOptions::default()),
                    Guarded::Remove => Request::remove(name, Condition::None),
                };
                request.map(|request| request.with_token(token.expect("it held the lock")))
            }
            Ask::Remove => Request::remove(name, Condition::None),
            _ => Request::get(name),
        };
        let request = request.expect("a valid request");
        let request = own.map_or(request.clone(), |own| request.with_id(own));
        let value = match ask {
            Ask::Put { value, .. } | Ask::Guarded { what: Guarded::Put(value), .. } if method.is_empty() => value,
            _ => &encoded,
        };
        let body = match value.len() {
            0..=COPIED_BODY_MAX_BYTES => Body::Copied(value),
            len => Body::Streamed(Some(len as u64)),
        };
        let id = self.connection.open(now_ms, &request, body, Delivery::Checked, PATIENCE).expect("it may be asked");
        if value.len() > COPIED_BODY_MAX_BYTES {
            self.bodies.insert(id, value.clone());
        }
        let is_first = own.is_some_and(|own| !own.may_be_done);
        self.asked.insert(id, Asked { number, ask: ask.clone(), is_first, reply: None, bytes: Vec::new() });
    }

    /// Takes all that the connection has to send.
    fn pump(&mut self) -> &[u8] {
        loop {
            if let Some(wanted) = self.connection.wanted_body() {
                let body = &self.bodies[&wanted.id];
                let from = wanted.position as usize;
                let to = body.len().min(from + wanted.bytes);
                self.connection.start_frame(wanted.id, &body[from..to], to == body.len()).expect("a frame of its body");
            }
            if !self.connection.has_output() {
                return &self.out;
            }
            let mut n = self.connection.output_head().len();
            self.out.extend(self.connection.output_head());
            if let Some(part) = self.connection.output_body() {
                let from = part.position as usize;
                self.out.extend(&self.bodies[&part.id][from..from + part.bytes]);
                n += part.bytes;
            }
            self.connection.sent(0, n);
        }
    }

    fn hear(&mut self, bytes: &[u8], now_ms: u64, granted: &mut Vec<(u64, Token)>) -> Result<Vec<Heard>, String> {
        let (mut rest, mut heard) = (bytes, Vec::new());
        while !rest.is_empty() {
            let space = self.connection.space();
            let n = space.len().min(rest.len());
            space[..n].copy_from_slice(&rest[..n]);
            rest = &rest[n..];
            self.connection.filled(now_ms, n);
            while let Some(event) = self.connection.next_event().map_err(|error| error.to_string())? {
                let over = match event {
                    Event::Welcome(welcome) => {
                        let told =
                            |clock_ms: u64| Told { ahead_ms: clock_ms.saturating_sub(now_ms), epoch: welcome.epoch };
                        self.told = welcome.clock_ms.map(told);
                        None
                    }
                    // It brings an object while the herd may hold none, and that took too long: the connection ends.
                    Event::Goodbye(text) if text.starts_with(NOT_HELD) => None,
                    Event::Goodbye(text) => return Err(format!("the node says goodbye: {text}")),
                    Event::Reply { id, reply, ends, .. } => {
                        self.told.iter_mut().for_each(|told| told.epoch = told.epoch.max(reply.epoch));
                        self.asked.get_mut(&id).ok_or("a reply nobody asked for")?.reply = Some(reply);
                        ends.then_some(id)
                    }
                    Event::Body { id, ends } => {
                        let bytes = self.connection.body().to_vec();
                        self.asked.get_mut(&id).ok_or("a body nobody asked for")?.bytes.extend(bytes);
                        ends.then_some(id)
                    }
                };
                if let Some(asked) = over.and_then(|id| {
                    self.bodies.remove(&id);
                    self.asked.remove(&id)
                }) {
                    heard.push(asked.answer(granted)?);
                }
            }
        }
        Ok(heard)
    }
}

impl Asked {
    fn answer(self, granted: &mut Vec<(u64, Token)>) -> Result<Heard, String> {
        let (ask, bytes) = (&self.ask, self.bytes);
        let reply = self.reply.ok_or("a body without a reply")?;
        let short = || format!("{ask:?}").chars().take(100).collect::<String>();
        let said = || format!("status {} '{}' to {}", reply.code, reply.text, short());
        let status = Status::from_code(reply.code).ok_or_else(said)?;
        let text = String::from_utf8_lossy(&bytes);
        let may_differ = matches!(ask, Ask::Unlock { .. } | Ask::Put { .. } | Ask::Guarded { .. });
        let reads = matches!(ask, Ask::Get | Ask::Take | Ask::Guarded { what: Guarded::Get, .. });
        let removes = matches!(ask, Ask::Remove | Ask::Guarded { what: Guarded::Remove, .. });
        let answer = match (ask, status) {
            (_, Status::Ok) if reads => Answer::Value(Some(bytes)),
            (_, Status::Error(ErrorKind::NotFound)) if reads => Answer::Value(None),
            (_, Status::Error(ErrorKind::NotFound)) if removes => Answer::Absent,
            (
                Ask::Put { .. } | Ask::Guarded { .. } | Ask::Remove | Ask::Append { .. } | Ask::Unlock { .. },
                Status::Ok,
            ) => Answer::Done,
            (Ask::Count { delta, .. }, Status::Ok) => Answer::Number(text.parse::<i64>().map_err(|_| said())? + delta),
            (Ask::Lock, Status::Ok) => match &items(&bytes).ok_or_else(said)?[..] {
                [b"granted", token, ..] => {
                    let token = std::str::from_utf8(token).ok().and_then(Token::parse).ok_or_else(said)?;
                    granted.push((self.number, token));
                    Answer::Granted(token.grant)
                }
                _ => Answer::Differs,
            },
            (_, Status::Error(ErrorKind::ConditionFailed)) if may_differ => Answer::Differs,
            (Ask::Put { when: When::Value(_), .. }, Status::Error(ErrorKind::NotFound)) => Answer::Absent,
            // It is to be asked under another id: neither is it done nor will it be.
            (_, Status::Error(ErrorKind::Timeout)) if self.is_first => Answer::Nothing,
            (_, Status::Error(ErrorKind::Timeout | ErrorKind::OutcomeUnknown | ErrorKind::OutcomeLost)) => Answer::Open,
            (_, Status::Error(ErrorKind::Full)) => Answer::Full,
            (_, Status::Error(ErrorKind::Unreachable | ErrorKind::Busy)) => Answer::Nothing,
            _ => return Err(said()),
        };
        let tells = matches!(ask, Ask::Get | Ask::Put { .. } | Ask::Append { .. } | Ask::Count { .. })
            || matches!(ask, Ask::Guarded { what: Guarded::Put(_), .. });
        let version = Some(reply.version).filter(|_| status == Status::Ok && tells);
        Ok((self.number, answer, version))
    }
}
