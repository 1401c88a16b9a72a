//! What the keys may hold, as far as clients can know it.
//!
//! Every write has the time it was asked for and the time its answer was read; its effect came between them. A read may
//! give what any write left whose effect no other write certainly covered, before the read was asked for. What a read
//! gave is itself such knowledge, so a value that was once missed must not come back.
//!
//! A write whose effect depends on what is there is asked for only while nothing else is open on its key.

use herd_core::checksum::{crc32c, of_blocks};
use herd_core::wire::block_checks;
use std::cell::Cell;
use std::rc::Rc;

/// What a key holds.
pub(super) type State = Option<Rc<Value>>;

/// A value, and when it expires.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Value {
    pub(super) bytes: Rc<Vec<u8>>,
    pub(super) flags: u32,
    pub(super) expiry: Option<Rc<Expiry>>,
}

/// When a value expires, which is counted from when its write took effect.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Expiry {
    /// Milliseconds it lives.
    ttl_ms: u64,
    /// Least and most the date may be, ms since 1970.
    least_ms: u64,
    most_ms: Cell<u64>,
}

impl Expiry {
    /// That of a value which is asked for at `now_ms`, or later.
    pub(super) fn after(now_ms: u64, ttl_ms: u64) -> Rc<Self> {
        Rc::new(Self { ttl_ms, least_ms: now_ms + ttl_ms, most_ms: Cell::new(u64::MAX) })
    }
}

impl Value {
    /// Whether it may be gone at that date.
    fn may_be_gone(&self, now_ms: u64) -> bool {
        self.expiry.as_ref().is_some_and(|expiry| expiry.least_ms <= now_ms)
    }

    /// The write it came with has taken effect by now.
    fn settle(&self, now_ms: u64) {
        if let Some(expiry) = self.expiry.as_ref().filter(|expiry| expiry.most_ms.get() == u64::MAX) {
            expiry.most_ms.set(now_ms + expiry.ttl_ms);
        }
    }

    /// Whether it must be.
    fn must_be_gone(&self, now_ms: u64) -> bool {
        self.expiry.as_ref().is_some_and(|expiry| expiry.most_ms.get() <= now_ms)
    }
}

/// How a request ended, whatever the door calls it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    Done,
    /// A condition did not hold.
    Refused,
    Absent,
    Full,
    TooLarge,
    /// The value is no number.
    NoNumber,
}

/// What a request asks for.
#[derive(Clone, Debug)]
pub(super) enum Action {
    /// Puts a value; if it fails, the old one goes too.
    Set(Rc<Value>),
    /// Puts a value; if it fails, the old one stays.
    Put(Rc<Value>),
    Add(Rc<Value>),
    Replace(Rc<Value>),
    /// Puts if the version is the one that was named; whether it is, if that is known; how an absent one is told.
    Compare(Rc<Value>, Option<bool>, Class),
    Join(Vec<u8>, bool),
    Range(usize, Vec<u8>),
    Delete,
    /// All keys are emptied.
    Clear,
    Arith(u64, bool),
    Touch(Option<Rc<Expiry>>),
}

/// When a branch can be taken at all.
#[derive(Clone, Copy, Debug)]
enum If {
    Always,
    /// Not before that date.
    After(u64),
    /// Only once something was evicted.
    Evicted,
    /// Only if other writes may have come between.
    Overlapped,
}

/// A way a write may go.
#[derive(Clone, Debug)]
struct Branch {
    class: Class,
    /// What the key holds then; `None`: what it held.
    becomes: Option<State>,
    when: If,
}

#[derive(Default)]
struct Write {
    id: u64,
    began: u64,
    ended: Option<u64>,
    derived: bool,
    /// Highest version that was told before.
    floor: u64,
    /// Ways it may go, until its answer is known.
    branches: Vec<Branch>,
    /// What it left, once its answer is known.
    states: Vec<State>,
}

struct Read {
    id: u64,
    began: u64,
    began_ms: u64,
    floor: u64,
    cas_floor: u64,
    allowed: Vec<State>,
}

#[derive(Default)]
struct Key {
    writes: Vec<Write>,
    reads: Vec<Read>,
    /// Highest version and CAS value that were told.
    version: u64,
    cas: u64,
    /// What they are now, if that is certain but for eviction.
    exact_version: Option<u64>,
    exact_cas: Option<u64>,
    /// Versions and the hash of the value they were told with.
    known: Vec<(u64, u64)>,
}

/// What is known besides the keys.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Circumstances {
    /// The date, ms since 1970.
    pub(super) now_ms: u64,
    /// Objects may have gone by eviction, or by what a wild client asked for.
    pub(super) may_vanish: bool,
}

/// All keys.
pub(super) struct Model {
    keys: Vec<Key>,
    clock: u64,
    value_max_bytes: usize,
    pub(super) at: Circumstances,
}

/// Most that a key may hold where a write is asked for that depends on it: each one that is lost doubles them.
const STATES_MAX: usize = 8;
/// Versions told twice that are remembered of each key.
const KNOWN_MAX: usize = 16;

impl Model {
    /// So many keys that hold nothing.
    pub(super) fn new(keys: usize, value_max_bytes: usize) -> Self {
        let empty = |_| {
            let nothing = Write { id: 0, began: 0, ended: Some(0), states: vec![None], ..Write::default() };
            Key { writes: vec![nothing], ..Key::default() }
        };
        Self { keys: (0..keys).map(empty).collect(), clock: 0, value_max_bytes, at: Circumstances::default() }
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// Whether a write that depends on what is there may be asked for.
    pub(super) fn is_quiet(&self, key: usize) -> bool {
        let writes = &self.keys[key].writes;
        let states: usize = writes.iter().map(|write| write.states.len()).sum();
        states <= STATES_MAX && writes.iter().all(|write| write.ended.is_some())
    }

    /// Whether any write may be asked for.
    pub(super) fn may_write(&self, key: usize) -> bool {
        !self.keys[key].writes.iter().any(|write| write.ended.is_none() && write.derived)
    }

    /// The version of the key, where it is certain.
    pub(super) fn exact_version(&self, key: usize) -> Option<u64> {
        self.keys[key].exact_version
    }

    /// The CAS value of the key, where it is certain.
    pub(super) fn exact_cas(&self, key: usize) -> Option<u64> {
        self.keys[key].exact_cas
    }

    /// The highest version of the key that was told.
    pub(super) fn version(&self, key: usize) -> u64 {
        self.keys[key].version
    }

    /// A write is asked for.
    pub(super) fn write(&mut self, key: usize, action: &Action) -> u64 {
        let began = self.tick();
        let derived = !matches!(action, Action::Set(_) | Action::Put(_) | Action::Delete | Action::Clear);
        assert!(if derived { self.is_quiet(key) } else { self.may_write(key) }, "the script asks only for what it may");
        let branches = self.branches(key, action);
        let key = &mut self.keys[key];
        for read in &mut key.reads {
            read.allowed.extend(branches.iter().filter_map(|branch| branch.becomes.clone()));
        }
        (key.exact_version, key.exact_cas) = (None, None);
        let floor = key.version;
        key.writes.push(Write { id: began, began, derived, floor, branches, ..Write::default() });
        began
    }

    /// All ways a write may go.
    fn branches(&self, key: usize, action: &Action) -> Vec<Branch> {
        let mut all = Vec::new();
        for state in self.possible(key) {
            if !state.as_ref().is_some_and(|value| value.must_be_gone(self.at.now_ms)) {
                all.push(self.branch(action, &state, If::Always));
            }
            if let Some(expiry) = state.as_ref().and_then(|value| value.expiry.as_ref()) {
                all.push(self.branch(action, &None, If::After(expiry.least_ms)));
            }
        }
        all.push(self.branch(action, &None, If::Evicted));
        if matches!(action, Action::Delete) {
            let either = |class| Branch { class, becomes: Some(None), when: If::Overlapped };
            all.extend([Class::Done, Class::Absent].map(either));
        }
        let becomes = if matches!(action, Action::Set(_)) { Some(None) } else { None };
        if !matches!(action, Action::Delete | Action::Clear) {
            all.push(Branch { class: Class::Full, becomes, when: If::Always });
        }
        all
    }

    /// How a write goes where the key holds `state`.
    fn branch(&self, action: &Action, state: &State, when: If) -> Branch {
        let most = self.value_max_bytes;
        let (class, becomes) = match (action, state) {
            (Action::Set(value), _) if value.bytes.len() > most => (Class::TooLarge, Some(None)),
            (Action::Set(value) | Action::Put(value), _) => (Class::Done, Some(Some(value.clone()))),
            (Action::Add(value) | Action::Replace(value) | Action::Compare(value, ..), _)
                if value.bytes.len() > most =>
            {
                (Class::TooLarge, None)
            }
            (Action::Add(value), None) | (Action::Replace(value), Some(_)) => (Class::Done, Some(Some(value.clone()))),
            (Action::Add(_), Some(_)) | (Action::Replace(_) | Action::Join(..), None) => (Class::Refused, None),
            (Action::Compare(_, _, absent), None) => (*absent, None),
            (Action::Compare(_, Some(false), _), Some(_)) => (Class::Refused, None),
            (Action::Compare(value, ..), Some(_)) => (Class::Done, Some(Some(value.clone()))),
            (Action::Join(more, _), Some(_)) if more.len() > most => (Class::TooLarge, None),
            (Action::Join(more, behind), Some(old)) => match joined(old, more, *behind) {
                new if new.bytes.len() > most => (Class::TooLarge, None),
                new => (Class::Done, Some(Some(Rc::new(new)))),
            },
            (Action::Range(from, bytes), old) => (Class::Done, Some(Some(Rc::new(spliced(old, *from, bytes))))),
            (Action::Delete, None) => (Class::Absent, Some(None)),
            (Action::Delete, Some(_)) | (Action::Clear, _) => (Class::Done, Some(None)),
            (Action::Arith(..) | Action::Touch(_), None) => (Class::Absent, None),
            (Action::Arith(delta, down), Some(old)) => match sum(old, *delta, *down) {
                Some(new) => (Class::Done, Some(Some(Rc::new(new)))),
                None => (Class::NoNumber, None),
            },
            (Action::Touch(expiry), Some(old)) => {
                let new = Value { bytes: old.bytes.clone(), flags: old.flags, expiry: expiry.clone() };
                (Class::Done, Some(Some(Rc::new(new))))
            }
        };
        Branch { class, becomes, when }
    }

    /// What the key may hold, or come to hold by what is asked for.
    fn possible(&self, key: usize) -> Vec<State> {
        let mut all: Vec<State> = Vec::new();
        for write in &self.keys[key].writes {
            let open = write.branches.iter().filter_map(|branch| branch.becomes.as_ref());
            for state in open.chain(&write.states) {
                if !all.contains(state) {
                    all.push(state.clone());
                }
            }
        }
        all
    }

    /// The answer to a write: `version` and `cas` as far as it tells them.
    pub(super) fn written(&mut self, key: usize, id: u64, class: Class, version: Option<u64>, cas: Option<u64>) {
        let (now, at) = (self.tick(), self.at);
        let found = &mut self.keys[key];
        let alone = found.begun_alone(id);
        let write = found.writes.iter_mut().find(|write| write.id == id).expect("it was asked for");
        let can = |when: If| match when {
            If::Always => true,
            If::After(ms) => ms <= at.now_ms,
            If::Evicted => at.may_vanish,
            If::Overlapped => !alone,
        };
        let branches = std::mem::take(&mut write.branches);
        let taken: Vec<&Branch> = branches.iter().filter(|branch| branch.class == class && can(branch.when)).collect();
        assert!(!taken.is_empty(), "key {key}: {class:?} can't be: {}", Shown(&branches));
        write.ended = Some(now);
        write.states = taken.iter().filter_map(|branch| branch.becomes.clone()).collect();
        let settle = |value: &Rc<Value>| value.settle(at.now_ms);
        write.states.iter().flatten().for_each(settle);
        let (began, floor) = (write.began, write.floor);
        let version = version.filter(|_| class == Class::Done);
        if let Some(version) = version {
            assert!(version > floor, "key {key}: version {version} after {floor}");
            found.version = found.version.max(version);
        }
        found.cas = found.cas.max(cas.unwrap_or(0));
        if class == Class::Done && alone {
            (found.exact_version, found.exact_cas) = (version, cas);
        }
        if taken.iter().any(|branch| branch.becomes.is_none()) {
            found.writes.retain(|write| write.id != id);
        } else {
            found.covered(began);
        }
    }

    /// A write whose answer will never be known; it has no effect from now on.
    pub(super) fn lost(&mut self, key: usize, id: u64) {
        let now = self.tick();
        let found = &mut self.keys[key];
        let write = found.writes.iter_mut().find(|write| write.id == id).expect("it was asked for");
        write.ended = Some(now);
        write.states = std::mem::take(&mut write.branches).into_iter().filter_map(|branch| branch.becomes).collect();
        (found.exact_version, found.exact_cas) = (None, None);
    }

    /// A write that is not answered was done, or failed, before now.
    pub(super) fn silent(&mut self, key: usize, id: u64) {
        self.lost(key, id);
        self.keys[key].covered(id);
    }

    /// A read is asked for.
    pub(super) fn read(&mut self, key: usize) -> u64 {
        let (began, began_ms, allowed) = (self.tick(), self.at.now_ms, self.possible(key));
        let found = &mut self.keys[key];
        let (floor, cas_floor) = (found.version, found.cas);
        found.reads.push(Read { id: began, began, began_ms, floor, cas_floor, allowed });
        began
    }

    /// A read that will not be answered.
    pub(super) fn forget(&mut self, key: usize, id: u64) {
        self.keys[key].reads.retain(|read| read.id != id);
    }

    /// A read found nothing.
    pub(super) fn missed(&mut self, key: usize, id: u64) {
        let at = self.at;
        let read = self.take(key, id);
        let gone = |state: &State| state.as_ref().is_none_or(|value| value.may_be_gone(at.now_ms));
        assert!(
            at.may_vanish || read.allowed.iter().any(gone),
            "key {key}: nothing was found, and there was {:?}",
            read.allowed.iter().map(shown).collect::<Vec<_>>()
        );
        (self.keys[key].exact_version, self.keys[key].exact_cas) = (None, None);
        self.learn(key, read.began, vec![None]);
    }

    /// A read found a value, or bytes `from..` of one.
    pub(super) fn found(&mut self, key: usize, id: u64, seen: &Seen<'_>) {
        let read = self.take(key, id);
        let fits = |state: &&State| match state {
            None => false,
            Some(value) => !value.must_be_gone(read.began_ms) && seen.is_of(value),
        };
        let states: Vec<State> = read.allowed.iter().filter(fits).cloned().collect();
        assert!(
            !states.is_empty(),
            "key {key}: {seen:?} was found, and there was {:?}",
            read.allowed.iter().map(shown).collect::<Vec<_>>()
        );
        let found = &mut self.keys[key];
        let quiet = found.begun_alone(read.began);
        if let Some(version) = seen.version {
            assert!(version >= read.floor, "key {key}: version {version} was found after {}", read.floor);
            found.version = found.version.max(version);
            if seen.is_whole() {
                found.remember(key, version, crate::random::hash(seen.bytes));
            }
            found.exact_version = quiet.then_some(version);
        }
        if let Some(cas) = seen.cas {
            assert!(cas >= read.cas_floor, "key {key}: CAS {cas} was found after {}", read.cas_floor);
            found.cas = found.cas.max(cas);
            found.exact_cas = quiet.then_some(cas);
        }
        self.learn(key, read.began, states);
    }

    fn take(&mut self, key: usize, id: u64) -> Read {
        let reads = &mut self.keys[key].reads;
        let at = reads.iter().position(|read| read.id == id).expect("it was asked for");
        reads.swap_remove(at)
    }

    /// At some time since `began` the key held one of `states`.
    fn learn(&mut self, key: usize, began: u64, states: Vec<State>) {
        let now = self.tick();
        let found = &mut self.keys[key];
        found.writes.push(Write { id: now, began, ended: Some(now), states, ..Write::default() });
        found.covered(began);
    }
}

impl Key {
    /// Drops what ended before a certain effect could begin.
    fn covered(&mut self, began: u64) {
        self.writes.retain(|write| write.ended.is_none_or(|ended| ended > began));
    }

    /// Whether no other write is open, and none was asked for since.
    fn begun_alone(&self, id: u64) -> bool {
        self.writes.iter().all(|write| write.id == id || write.ended.is_some_and(|ended| ended < id))
    }

    fn remember(&mut self, key: usize, version: u64, hash: u64) {
        if let Some((_, other)) = self.known.iter().find(|(known, _)| *known == version) {
            assert_eq!(*other, hash, "key {key}: version {version} has two values");
            return;
        }
        if self.known.len() == KNOWN_MAX {
            self.known.remove(0);
        }
        self.known.push((version, hash));
    }
}

/// What a read gave.
pub(super) struct Seen<'a> {
    pub(super) bytes: &'a [u8],
    /// Where they begin, and how many the whole value has.
    pub(super) from: usize,
    pub(super) size_bytes: usize,
    /// Whether only the size was asked for.
    pub(super) head_only: bool,
    pub(super) flags: Option<u32>,
    pub(super) version: Option<u64>,
    pub(super) cas: Option<u64>,
    /// Checksum of the whole value.
    pub(super) checksum: Option<u32>,
}

impl<'a> Seen<'a> {
    pub(super) fn whole(bytes: &'a [u8]) -> Self {
        let size_bytes = bytes.len();
        Self { bytes, from: 0, size_bytes, head_only: false, flags: None, version: None, cas: None, checksum: None }
    }

    fn is_whole(&self) -> bool {
        !self.head_only && self.bytes.len() == self.size_bytes
    }

    fn is_of(&self, value: &Value) -> bool {
        let part = || value.bytes.get(self.from..self.from + self.bytes.len());
        self.size_bytes == value.bytes.len()
            && self.flags.is_none_or(|flags| flags == value.flags)
            && self.checksum.is_none_or(|checksum| checksum == checksum_of(&value.bytes))
            && (self.head_only || part() == Some(self.bytes))
    }
}

impl std::fmt::Debug for Seen<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let start = self.bytes[..self.bytes.len().min(24)].escape_ascii();
        write!(f, "{} bytes from {} of {} \"{start}\"", self.bytes.len(), self.from, self.size_bytes)?;
        write!(f, " flags {:?} version {:?} cas {:?}", self.flags, self.version, self.cas)
    }
}

/// The checksum of a value as the wire tells it.
fn checksum_of(bytes: &[u8]) -> u32 {
    let blocks: Vec<u32> = block_checks(bytes).collect();
    if blocks.is_empty() { crc32c(&[]) } else { of_blocks(&blocks) }
}

fn shown(state: &State) -> String {
    match state {
        None => "nothing".to_string(),
        Some(value) => {
            let start = value.bytes[..value.bytes.len().min(24)].escape_ascii();
            let Value { flags, expiry, bytes } = &**value;
            format!("{} bytes \"{start}\" flags {flags} {expiry:?}", bytes.len())
        }
    }
}

/// Branches as the text of a finding.
struct Shown<'a>(&'a [Branch]);

impl std::fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let each = |branch: &Branch| {
            let becomes = branch.becomes.as_ref().map_or("as it was".to_string(), shown);
            format!("{:?} {:?} -> {becomes}", branch.class, branch.when)
        };
        write!(f, "{}", self.0.iter().map(each).collect::<Vec<_>>().join("; "))
    }
}

fn joined(old: &Value, more: &[u8], behind: bool) -> Value {
    let bytes = if behind { [&old.bytes, more].concat() } else { [more, &old.bytes].concat() };
    Value { bytes: Rc::new(bytes), flags: old.flags, expiry: old.expiry.clone() }
}

fn spliced(old: &State, from: usize, new: &[u8]) -> Value {
    let (mut bytes, flags, expiry) = match old {
        None => (Vec::new(), 0, None),
        Some(old) => (old.bytes.to_vec(), old.flags, old.expiry.clone()),
    };
    bytes.resize(bytes.len().max(from + new.len()), 0);
    bytes[from..from + new.len()].copy_from_slice(new);
    Value { bytes: Rc::new(bytes), flags, expiry }
}

/// The number after `delta` was added or taken away, padded as memcached does; `None`: it is none.
fn sum(old: &Value, delta: u64, down: bool) -> Option<Value> {
    let digits = old.bytes.trim_ascii_end();
    if digits.is_empty() || digits.len() > 20 || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let number: u64 = std::str::from_utf8(digits).ok()?.parse().ok()?;
    let new = if down { number.saturating_sub(delta) } else { number.wrapping_add(delta) };
    let mut bytes = new.to_string().into_bytes();
    bytes.resize(bytes.len().max(old.bytes.len()), b' ');
    Some(Value { bytes: Rc::new(bytes), flags: old.flags, expiry: old.expiry.clone() })
}
