//! Frames of Herd's wire, made from a script, and what the node's frames say.

use super::client::Judge;
use super::http::compared;
use super::model::{Action, Class, Model, Seen};
use super::script::{KEYS, Script, name};
use crate::Outcomes;
use herd_core::ErrorKind;
use herd_core::entry::Condition;
use herd_core::key::CollectionId;
use herd_core::limits::BLOCK_BYTES;
use herd_core::wire::{
    CODE_NEWER, FLAG_BRIEF, FLAG_HEAD_ONLY, FLAG_MORE, FLAG_QUIET, FLAG_RANGE, Fields, Frame, Header, Kind as Frames,
    LENGTH_UNKNOWN, Status, Verb, encode_frame, parse_frame,
};
use std::collections::BTreeMap;

/// Outcomes of this door alone.
pub(crate) const OUTCOMES: &[&str] = &[
    "get by name",
    "get of a range",
    "get that waits",
    "head only",
    "hello",
    "list",
    "cancel",
    "announced",
    "announced and refused",
    "create",
    "destroy",
    "remove",
    "put",
    "put quietly",
    "put in frames",
    "put under a condition",
    "put of a range",
    "found in frames",
    "range behind the end",
    "nothing newer in time",
    "goodbye",
];

/// Where a request ends whose answer may come or not.
const NOT_OWED: u64 = u64::MAX - 1;

/// What is asked for with one id.
struct Request {
    kind: Kind,
    part: Option<(usize, u64)>,
    /// Where it ends in all that the client has to send; nothing is owed before that.
    end: u64,
    /// The object as far as it has come.
    coming: Option<Coming>,
}

/// An object on its way.
struct Coming {
    version: u64,
    size_bytes: usize,
    flags: u32,
    checksum: Option<u32>,
    /// Where its bytes begin.
    at: usize,
    bytes: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Get {
        head_only: bool,
        from: usize,
    },
    /// A get of a newer version than that.
    Newer,
    Write {
        quiet: bool,
    },
    /// A put whose body never comes.
    Announced,
    /// Anything that is answered with one frame.
    Other,
}

/// What a client has asked for.
#[derive(Default)]
pub(super) struct Talk {
    requests: BTreeMap<u64, Request>,
    ids: u64,
    /// Welcomes that are due.
    welcomes: usize,
}

impl Talk {
    /// The next frames, appended to `out`.
    pub(super) fn ask(
        &mut self,
        script: &mut Script<'_>,
        model: &mut Model,
        outcomes: &mut Outcomes,
        out: &mut Vec<u8>,
    ) {
        let (what, choice) = (script.byte() % 24, script.byte());
        let (key, option) = (usize::from(choice) % KEYS, choice / KEYS as u8);
        match what {
            0..=3 => self.get(key, option, script, model, outcomes, out),
            4 | 5 => self.newer(key, option, model, outcomes, out),
            6 => self.hello(outcomes, out),
            7 => self.list(option, outcomes, out),
            8 => self.cancel(outcomes, out),
            9 => self.announce(key, option, outcomes, out),
            10 => self.collection(option, outcomes, out),
            11 | 12 if model.may_write(key) => {
                self.remove(key, model, outcomes, out);
            }
            13..=18 if model.may_write(key) => self.put(key, option, script, model, outcomes, out),
            19..=21 if model.is_quiet(key) => self.put_if(key, option, script, model, outcomes, out),
            22 | 23 if model.is_quiet(key) => self.put_range(key, option, script, model, outcomes, out),
            _ => self.get(key, option, script, model, outcomes, out),
        }
    }

    fn add(&mut self, kind: Kind, part: Option<(usize, u64)>) -> u64 {
        self.ids += 1;
        self.requests.insert(self.ids, Request { kind, part, end: u64::MAX, coming: None });
        self.ids
    }

    /// What was asked for last ends there in all that the client has to send.
    pub(super) fn ends(&mut self, end: u64) {
        let last = self.requests.values_mut().filter(|request| request.end == u64::MAX);
        last.for_each(|request| request.end = end);
    }

    fn get(
        &mut self,
        key: usize,
        option: u8,
        script: &mut Script<'_>,
        model: &mut Model,
        outcomes: &mut Outcomes,
        out: &mut Vec<u8>,
    ) {
        let (head_only, ranged) = (option % 8 == 7, option % 8 == 6);
        let (from, length) = if ranged { (script.amount() - 1, script.amount()) } else { (0, 0) };
        let id = self.add(Kind::Get { head_only, from }, Some((key, model.read(key))));
        let mut header = request(Verb::Get, id);
        outcomes.add(if ranged { "get of a range" } else { "get by name" });
        header.flags = if head_only {
            FLAG_HEAD_ONLY
        } else if ranged {
            FLAG_RANGE
        } else {
            0
        };
        header.flags |= if option.is_multiple_of(2) { FLAG_BRIEF } else { 0 };
        (header.offset, header.length) = (from as u64, length as u64);
        frame(out, header, &Fields::named(name(key).as_bytes()), &[]);
    }

    fn newer(&mut self, key: usize, option: u8, model: &mut Model, outcomes: &mut Outcomes, out: &mut Vec<u8>) {
        let id = self.add(Kind::Newer, Some((key, model.read(key))));
        let version = model.version(key).saturating_sub(u64::from(option % 2));
        let time_ms = [1, 500, 2_000, 4_000][usize::from(option / 2) % 4];
        outcomes.add("get that waits");
        let header = Header { code: CODE_NEWER, version, time_ms, ..request(Verb::Get, id) };
        frame(out, header, &Fields::named(name(key).as_bytes()), &[]);
    }

    fn hello(&mut self, outcomes: &mut Outcomes, out: &mut Vec<u8>) {
        self.welcomes += 1;
        outcomes.add("hello");
        let fields = Fields { features: Some(0), highest_version: Some(1), ..Fields::default() };
        frame(out, Header::new(Frames::Hello), &fields, &[]);
    }

    fn list(&mut self, option: u8, outcomes: &mut Outcomes, out: &mut Vec<u8>) {
        let id = self.add(Kind::Other, None);
        outcomes.add("list");
        let fields = Fields { prefix: Some(b"fuzz-"), limit: Some(u32::from(option)), ..Fields::default() };
        frame(out, request(Verb::List, id), &fields, &[]);
    }

    /// Gives up what was asked for first.
    fn cancel(&mut self, outcomes: &mut Outcomes, out: &mut Vec<u8>) {
        let Some((id, given_up)) = self.requests.iter().next().map(|(id, request)| (*id, request.kind)) else {
            return self.hello(outcomes, out);
        };
        // A write that is whole may have been done; its answer may be under way: it is waited for.
        if matches!(given_up, Kind::Write { .. } | Kind::Other) {
            return self.hello(outcomes, out);
        }
        outcomes.add("cancel");
        frame(out, Header::cancel(id), &Fields::default(), &[]);
        if let Some(request) = self.requests.get_mut(&id) {
            // Its answer may come all the same, but is not owed.
            request.end = NOT_OWED;
        }
    }

    /// A put whose body does not come: memory is promised to it.
    fn announce(&mut self, key: usize, option: u8, outcomes: &mut Outcomes, out: &mut Vec<u8>) {
        let id = self.add(Kind::Announced, None);
        outcomes.add("announced");
        let length = [LENGTH_UNKNOWN, 5_000, 1 << 20, 2 << 20, (2 << 20) + 1][usize::from(option) % 5];
        let header = Header { flags: FLAG_MORE, length, ..request(Verb::Put, id) };
        let other = format!("{}-announced", name(key));
        frame(out, header, &Fields::named(other.as_bytes()), &[]);
        self.ends(NOT_OWED);
    }

    /// A collection that comes and goes.
    fn collection(&mut self, option: u8, outcomes: &mut Outcomes, out: &mut Vec<u8>) {
        let verb = if option.is_multiple_of(2) { Verb::Create } else { Verb::Destroy };
        let id = self.add(Kind::Other, None);
        outcomes.add(if option.is_multiple_of(2) { "create" } else { "destroy" });
        let spec = (verb == Verb::Create).then_some("{\"class\":\"ram:1\",\"ordered\":true}");
        let fields = Fields { collection: Some("other"), spec, ..Fields::default() };
        frame(out, Header { collection: 0, ..request(verb, id) }, &fields, &[]);
        if verb == Verb::Create {
            let id = self.add(Kind::Other, None);
            let fields = Fields { name: Some(b"here"), ..fields };
            let fields = Fields { spec: None, ..fields };
            frame(out, Header { collection: 0, length: 5, ..request(Verb::Put, id) }, &fields, b"hello");
        }
    }

    fn remove(&mut self, key: usize, model: &mut Model, outcomes: &mut Outcomes, out: &mut Vec<u8>) {
        let id = self.add(Kind::Write { quiet: false }, Some((key, model.write(key, &Action::Delete))));
        outcomes.add("remove");
        frame(out, request(Verb::Remove, id), &Fields::named(name(key).as_bytes()), &[]);
    }

    fn put(
        &mut self,
        key: usize,
        option: u8,
        script: &mut Script<'_>,
        model: &mut Model,
        outcomes: &mut Outcomes,
        out: &mut Vec<u8>,
    ) {
        let (flags, ttl_ms) = (u32::from(option), [0, 0, 0, 700, 3_000][usize::from(option) % 5]);
        let value = script.value(key, flags, model.at.now_ms, ttl_ms);
        let quiet = option % 7 == 6;
        let part = (key, model.write(key, &Action::Put(value.clone())));
        let id = self.add(Kind::Write { quiet }, Some(part));
        let mut header = request(Verb::Put, id);
        header.flags = if quiet { FLAG_QUIET } else { 0 };
        outcomes.add(if quiet { "put quietly" } else { "put" });
        let name = name(key);
        let ttl_ms = (ttl_ms > 0).then_some(ttl_ms);
        let fields = Fields { name: Some(name.as_bytes()), flags: Some(flags), ttl_ms, ..Fields::default() };
        if option.is_multiple_of(2) {
            header.length = value.bytes.len() as u64;
            return frame(out, header, &fields, &value.bytes);
        }
        outcomes.add("put in frames");
        header.length = if option % 4 == 1 { LENGTH_UNKNOWN } else { value.bytes.len() as u64 };
        frames(out, header, &fields, &value.bytes);
    }

    fn put_if(
        &mut self,
        key: usize,
        option: u8,
        script: &mut Script<'_>,
        model: &mut Model,
        outcomes: &mut Outcomes,
        out: &mut Vec<u8>,
    ) {
        let value = script.value(key, 0, model.at.now_ms, 0);
        let (condition, action) = match option % 4 {
            0 => (Condition::IfAbsent, Action::Add(value.clone())),
            1 => (Condition::IfPresent, Action::Replace(value.clone())),
            way => {
                let (version, holds) = compared(model, key, way == 2);
                let action = Action::Compare(value.clone(), Some(holds), Class::Refused);
                (Condition::IfVersion(version), action)
            }
        };
        let id = self.add(Kind::Write { quiet: false }, Some((key, model.write(key, &action))));
        outcomes.add("put under a condition");
        let mut header = Header { length: value.bytes.len() as u64, ..request(Verb::Put, id) };
        header.set_condition(condition);
        frame(out, header, &Fields::named(name(key).as_bytes()), &value.bytes);
    }

    fn put_range(
        &mut self,
        key: usize,
        option: u8,
        script: &mut Script<'_>,
        model: &mut Model,
        outcomes: &mut Outcomes,
        out: &mut Vec<u8>,
    ) {
        let (from, bytes) = (script.amount() - 1, script.bytes(key));
        let action = Action::Range(from, bytes.clone());
        let id = self.add(Kind::Write { quiet: false }, Some((key, model.write(key, &action))));
        outcomes.add("put of a range");
        let flags = FLAG_RANGE;
        let header = Header { flags, offset: from as u64, length: bytes.len() as u64, ..request(Verb::Put, id) };
        let name = name(key);
        let fields = Fields::named(name.as_bytes());
        if option.is_multiple_of(2) {
            frame(out, header, &fields, &bytes)
        } else {
            frames(out, header, &fields, &bytes)
        }
    }

    /// Requests that are not answered.
    pub(super) fn open(&self) -> usize {
        self.requests.len() + self.welcomes
    }

    /// Whether an answer is owed to something that was wholly sent.
    pub(super) fn is_owed(&self, sent: u64) -> bool {
        let owed = |request: &Request| request.end <= sent && request.kind != Kind::Write { quiet: true };
        self.requests.values().any(owed)
    }

    /// Gives up all: whether each is a write, and its part.
    pub(super) fn forget(&mut self) -> Vec<(bool, Vec<(usize, u64)>)> {
        self.welcomes = 0;
        let requests = std::mem::take(&mut self.requests);
        let each = |request: Request| (matches!(request.kind, Kind::Write { .. }), request.part.into_iter().collect());
        requests.into_values().map(each).collect()
    }

    /// Takes the next frame off `got`: bytes used, or `None` if it is not whole.
    pub(super) fn hear(&mut self, got: &[u8], judge: &mut Judge<'_>, wild: bool, told_end: &mut bool) -> Option<usize> {
        let frame = parse_frame(got).unwrap_or_else(|error| panic!("the node's frame: {error}"))?;
        let header = *frame.header();
        let body = frame.body().unwrap_or_else(|error| panic!("the node's body: {error}"));
        let fields = frame.fields().unwrap_or_else(|error| panic!("the node's head: {error}"));
        match header.kind {
            Frames::Welcome if wild => {}
            Frames::Welcome => self.welcomes = self.welcomes.checked_sub(1).expect("a hello was sent"),
            Frames::Goodbye => {
                assert!(wild, "goodbye: {:?}", fields.error);
                (*told_end, _) = (true, judge.outcomes.add("goodbye"));
            }
            Frames::Credit => {}
            Frames::Reply | Frames::Data => {
                if self.requests.contains_key(&header.id) {
                    self.answered(&frame, &fields, body, judge);
                } else {
                    assert!(wild || header.kind == Frames::Data, "an answer nobody asked for: {header:?}");
                }
            }
            Frames::Hello | Frames::Request | Frames::Cancel => panic!("the node asks: {header:?}"),
        }
        Some(frame.bytes())
    }

    fn answered(&mut self, frame: &Frame<'_>, fields: &Fields<'_>, body: &[u8], judge: &mut Judge<'_>) {
        let header = frame.header();
        let request = self.requests.get_mut(&header.id).expect("looked up before");
        let done = match request.kind {
            Kind::Get { head_only, from } => got(request, (head_only, from), frame, fields, body, judge),
            Kind::Newer => got(request, (false, 0), frame, fields, body, judge),
            Kind::Write { .. } => {
                judge.written(
                    request.part.expect("it has a key"),
                    class_of(header, fields),
                    Some(header.version),
                    None,
                );
                true
            }
            Kind::Announced => {
                assert!(matches!(header.status(), Some(Status::Error(_))), "its body never came");
                judge.outcomes.add("announced and refused");
                true
            }
            Kind::Other => true,
        };
        if !done {
            return;
        }
        let id = header.id;
        self.requests.remove(&id);
        // What was to be quiet and was sent before is done, for puts of one connection are served in their order.
        let quiet: Vec<u64> = self
            .requests
            .range(..id)
            .filter(|(_, r)| r.kind == Kind::Write { quiet: true })
            .map(|(id, _)| *id)
            .collect();
        for id in quiet {
            let (key, write) = self.requests.remove(&id).and_then(|request| request.part).expect("it has a key");
            judge.model.silent(key, write);
        }
    }
}

/// A frame of the answer to a get; true with the last.
fn got(
    request: &mut Request,
    (head_only, from): (bool, usize),
    frame: &Frame<'_>,
    fields: &Fields<'_>,
    body: &[u8],
    judge: &mut Judge<'_>,
) -> bool {
    let header = frame.header();
    let part = request.part.expect("it has a key");
    if header.kind == Frames::Data {
        let coming = request.coming.as_mut().expect("a reply came before");
        assert_eq!(header.offset as usize, coming.at + coming.bytes.len(), "no gap");
        coming.bytes.extend_from_slice(body);
    } else {
        match header.status() {
            Some(Status::Ok) => {}
            Some(Status::Error(ErrorKind::NotFound)) => {
                judge.missed(part);
                return true;
            }
            Some(Status::Error(kind @ (ErrorKind::BadRange | ErrorKind::Timeout | ErrorKind::Busy))) => {
                match kind {
                    ErrorKind::BadRange => judge.outcomes.add("range behind the end"),
                    ErrorKind::Timeout => judge.outcomes.add("nothing newer in time"),
                    _ => {}
                }
                judge.model.forget(part.0, part.1);
                return true;
            }
            status => panic!("a get is answered with {status:?}: {:?}", fields.error),
        }
        request.coming = Some(Coming {
            version: header.version,
            size_bytes: header.length as usize,
            flags: fields.flags.unwrap_or(0),
            checksum: fields.checksum,
            at: header.offset as usize,
            bytes: body.to_vec(),
        });
    }
    if header.has(FLAG_MORE) {
        judge.outcomes.add("found in frames");
        return false;
    }
    let Coming { version, size_bytes, flags, checksum, at, bytes } =
        request.coming.take().expect("a reply came before");
    assert_eq!(at, from, "what was asked for");
    assert_eq!(head_only, checksum.is_some(), "the checksum comes where the body does not");
    if head_only {
        judge.outcomes.add("head only");
    }
    let (flags, version) = (Some(flags), Some(version));
    judge.found(part, &Seen { bytes: &bytes, from, size_bytes, head_only, flags, version, cas: None, checksum });
    true
}

/// A get that names no key of the model.
pub(super) fn murmur(name: usize) -> Vec<u8> {
    let mut out = Vec::new();
    frame(&mut out, request(Verb::Get, u64::MAX), &Fields::named(format!("wild{name}").as_bytes()), &[]);
    out
}

fn class_of(header: &Header, fields: &Fields<'_>) -> Class {
    match header.status() {
        Some(Status::Ok) => Class::Done,
        Some(Status::Error(ErrorKind::ConditionFailed)) => Class::Refused,
        Some(Status::Error(ErrorKind::NotFound)) => Class::Absent,
        Some(Status::Error(ErrorKind::Full)) => Class::Full,
        Some(Status::Error(ErrorKind::TooLarge)) => Class::TooLarge,
        status => panic!("a write is answered with {status:?}: {:?}", fields.error),
    }
}

fn request(verb: Verb, id: u64) -> Header {
    Header { collection: CollectionId::DEFAULT.0, ..Header::request(verb, id) }
}

fn frame(out: &mut Vec<u8>, header: Header, fields: &Fields<'_>, body: &[u8]) {
    encode_frame(out, header, fields, body).expect("within the limits");
}

/// A put cut into frames of one block, or of three.
fn frames(out: &mut Vec<u8>, header: Header, fields: &Fields<'_>, body: &[u8]) {
    let step = if header.id.is_multiple_of(2) { BLOCK_BYTES } else { 3 * BLOCK_BYTES };
    let (first, rest) = body.split_at(body.len().min(step));
    let more = if rest.is_empty() { 0 } else { FLAG_MORE };
    frame(out, Header { flags: header.flags | more, ..header }, fields, first);
    let (mut rest, mut at) = (rest, header.offset + first.len() as u64);
    while !rest.is_empty() {
        let (piece, after) = rest.split_at(rest.len().min(step));
        let mut data = Header::data(header.id, at, !after.is_empty());
        data.length = piece.len() as u64;
        frame(out, data, &Fields::default(), piece);
        (rest, at) = (after, at + piece.len() as u64);
    }
}
